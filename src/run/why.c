/* why.c: says of a value between parts why it is stored: what computes it, and what takes it from memory. */
#include <stdlib.h>

#include "pass/schedule/steps.h"
#include "run/run.h"

/* How a part takes a value, the strongest first. */
typedef enum use {
    USE_NONE,
    USE_PASS,    /* it is one operation over memory */
    USE_OPERAND, /* of a product, of attention or of a recurrence */
    USE_INDEX,   /* it is an index, or taken by one */
    USE_REDUCED,
    USE_ELEMENT,
} use;

static epi_kind kind_of(const epi_kernel *k, int part) {
    const epi_compiled *c = &k->parts[k->parts[part].first].full;
    return epi_compiled_steps(c)->plan.kind;
}

/* What the first node does that takes the value, seen through views and maps; *over: the axis of a reduction. */
static use use_in(const epi_part *p, int value, bool *of, epi_axis *over) {
    const epi_graph *g = &p->graph;
    use found = USE_NONE;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        bool input =
            n->op == EPI_OP_INPUT && p->tensors[n->tensor].tensor < 0 && p->tensors[n->tensor].value == value;
        bool takes = n->op != EPI_OP_INPUT && epi_node_takes(n, of);
        of[i] = input || (takes && epi_ops[n->op].from == EPI_FROM_ONE);
        use now = !takes                                           ? input ? USE_ELEMENT : USE_NONE
                  : epi_op_is_product(n->op)                       ? USE_OPERAND
                  : epi_op_by_index(n->op) || epi_op_orders(n->op) ? USE_INDEX
                  : epi_op_reduces(n->op) || epi_op_scans(n->op)   ? USE_REDUCED
                                                                   : USE_NONE;
        if (now == USE_NONE || (found != USE_NONE && found <= now))
            continue;
        found = now;
        if (now == USE_REDUCED)
            *over = n->over.at[0];
    }
    return found;
}

static void add_use(const epi_kernel *k, int value, int maker, int part, bool *of, epi_text *out) {
    const epi_part *p = &k->cut.parts[part];
    epi_axis over = {0};
    epi_kind kind = kind_of(k, part);
    use how = use_in(p, value, of, &over);
    const char *axis = p->graph.dims[over.dim];
    if (kind == EPI_KIND_PASS)
        epi_text_add(out, "part %d is one operation over memory, which reads whole tensors", part + 1);
    else if (kind == EPI_KIND_RECURRENCE)
        epi_text_add(out, "the recurrence of part %d reads it from memory", part + 1);
    else if (how == USE_OPERAND)
        epi_text_add(out, "the %s of part %d reads its operands from memory",
                     kind == EPI_KIND_ATTENTION ? "attention" : "product", part + 1);
    else if (how == USE_INDEX)
        epi_text_add(out, "part %d takes elements by an index", part + 1);
    else if (how == USE_REDUCED && kind_of(k, maker) == EPI_KIND_ROWS)
        epi_text_add(out, "part %d reduces it over %s, of which part %d does not have all in a row", part + 1,
                     axis, maker + 1);
    else if (how == USE_REDUCED)
        epi_text_add(out, "part %d reduces it over %s, of which a tile of part %d does not have all",
                     part + 1, axis, maker + 1);
    else
        epi_text_add(out, "part %d uses it with what is complete only after part %d", part + 1, maker + 1);
}

void epi_why_stored(const epi_kernel *k, int value, epi_text *out) {
    int maker = k->cut.values[value].part, readers = 0, first = -1, most = 0;
    for (int q = maker + 1; q < k->cut.part_count && maker >= 0; q++) {
        const epi_part *p = &k->cut.parts[q];
        bool reads = false;
        for (int t = 0; t < p->graph.input_count; t++)
            reads |= p->tensors[t].tensor < 0 && p->tensors[t].value == value;
        first = reads && first < 0 ? q : first;
        readers += reads;
        most = p->graph.node_count > most ? p->graph.node_count : most;
    }
    if (first < 0)
        return;
    bool *of = calloc((size_t)most + 1, sizeof *of);
    out->failed |= !of;
    if (of && kind_of(k, maker) == EPI_KIND_PASS)
        epi_text_add(out, "part %d is one operation over memory, which stores its result", maker + 1);
    else if (of)
        add_use(k, value, maker, first, of, out);
    if (readers > 1)
        epi_text_add(out, "; %d parts read it", readers);
    free(of);
}

size_t epi_kernel_value_why(const epi_kernel *kernel, int index, char *buf, size_t size) {
    epi_text t = {0};
    if (kernel && index >= 0 && index < kernel->cut.value_count - kernel->cut.prepared_values)
        epi_why_stored(kernel, index, &t);
    return epi_text_give(&t, buf, size);
}

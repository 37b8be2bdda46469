/* warnings.c: warns about what makes a kernel slow. */
#include <stdlib.h>
#include <string.h>

#include "run/run.h"

static const double MB = 1e6;

/* So much of what the kernel moves is worth a word. */
static const double SHARE = 1.0 / 16;

/* ---- remedies ---- */

/* A value between parts, as the part has it that stores it. */
typedef struct kept {
    const epi_kernel *kernel;
    int index;
    const epi_part *part;
    int node; /* of the part */
} kept;

static bool find_kept(const epi_kernel *k, int index, kept *out) {
    const epi_cut_value *v = &k->cut.values[index];
    *out = (kept){.kernel = k, .index = index};
    if (v->part < 0 || k->parts[v->part].first != v->part) /* of equal parts the first is spoken of */
        return false;
    out->part = &k->cut.parts[v->part];
    for (int t = out->part->graph.input_count; t < out->part->graph.tensor_count; t++)
        if (out->part->tensors[t].tensor < 0 && out->part->tensors[t].value == index) {
            out->node = out->part->graph.tensors[t].node;
            return true;
        }
    return false;
}

/* Does a later part take it as the first operand of such an operation, over so many axes at least? *over is the
 * first of them. */
static bool goes_into(const kept *v, epi_op op, int axes, const char **over) {
    for (int p = 0; p < v->kernel->cut.part_count; p++) {
        const epi_graph *g = &v->kernel->cut.parts[p].graph;
        const epi_part_tensor *at = v->kernel->cut.parts[p].tensors;
        for (int n = 0; n < g->node_count; n++) {
            const epi_node *use = &g->nodes[n];
            const epi_node *first = use->op == op && use->over.count >= axes ? &g->nodes[use->arg[0]] : NULL;
            if (!first || first->op != EPI_OP_INPUT || at[first->tensor].tensor >= 0 ||
                at[first->tensor].value != v->index)
                continue;
            *over = g->dims[use->over.at[0].dim];
            return true;
        }
    }
    return false;
}

static bool is_constant(const epi_graph *g, int node, double value) {
    return g->nodes[node].op == EPI_OP_CONST && g->nodes[node].value == value;
}

/* Does some product sum over this axis? */
static bool is_summed(const epi_kernel *k, const char *axis) {
    bool found = false;
    for (int p = 0; p < k->cut.part_count && !found; p++) {
        const epi_graph *g = &k->cut.parts[p].graph;
        for (int n = 0; n < g->node_count; n++)
            for (int i = 0; i < g->nodes[n].over.count && g->nodes[n].op == EPI_OP_MATMUL; i++)
                found |= !strcmp(g->dims[g->nodes[n].over.at[i].dim], axis);
    }
    return found;
}

/* where(c, x, 0), where x lacks an axis that c has: x is written out along that. */
static bool is_spread(const epi_graph *g, const epi_node *n) {
    return n->op == EPI_OP_WHERE && is_constant(g, n->arg[2], 0) && g->nodes[n->arg[1]].axes.count &&
           g->nodes[n->arg[1]].axes.count < n->axes.count;
}

/* Is the value computed of inputs of the program alone? *lowbit: one of 8 or 4 bits among them, or NULL. */
static bool is_of_inputs(const kept *v, const char **lowbit) {
    const epi_graph *g = &v->part->graph;
    bool *needs = calloc((size_t)g->node_count + 1, sizeof *needs), alone = needs != NULL;
    for (int i = v->node; i >= 0 && alone; i--) {
        const epi_node *n = &g->nodes[i];
        needs[i] |= i == v->node;
        for (int a = 0; a < 3 && needs[i]; a++)
            if (n->arg[a] != EPI_NO_NODE)
                needs[n->arg[a]] = true;
        if (needs[i] && n->op == EPI_OP_INPUT) {
            alone = v->part->tensors[n->tensor].tensor >= 0;
            *lowbit =
                epi_dtype_at(v->part->types[n->tensor])->size == 1 ? g->tensors[n->tensor].name : *lowbit;
        } else if (needs[i]) {
            alone = !epi_op_is_product(n->op) && !epi_op_reduces(n->op);
        }
    }
    free(needs);
    return alone;
}

/* Does a product read such a value? Then what it is made of are weights where it has no rows. And is it attention's? */
static bool is_operand(const kept *v, const char **lowbit, bool *attends) {
    const epi_kernel *k = v->kernel;
    bool read = false;
    *lowbit = NULL;
    *attends = false;
    for (int p = 0; p < k->cut.part_count; p++)
        for (int t = 0; t < k->cut.parts[p].graph.input_count; t++) {
            const epi_part *part = &k->cut.parts[p];
            bool takes = part->tensors[t].tensor < 0 && part->tensors[t].value == v->index;
            for (int n = 0; n < part->graph.node_count && takes; n++)
                read |= epi_op_is_product(part->graph.nodes[n].op);
            *attends |= takes && epi_compiled_steps(&k->parts[p].full)->plan.attention;
        }
    return read && is_of_inputs(v, lowbit);
}

/* The text that avoids storing it, in a clause; nothing where none is known. */
static void add_remedy(const kept *v, epi_text *out) {
    const epi_graph *g = &v->part->graph;
    const epi_node *n = &g->nodes[v->node];
    const char *axis, *lowbit;
    bool product = false, attends, operand = is_operand(v, &lowbit, &attends);
    for (int i = 0; i < g->node_count; i++)
        product |= g->nodes[i].op == EPI_OP_MATMUL;
    if (is_spread(g, n))
        epi_text_add(out, "; in a sum write where(c, 1, 0)*x instead of where(c, x, 0): that is a product");
    else if (product && goes_into(v, EPI_OP_GATHER, 1, &axis))
        epi_text_add(out, "; write sum(where(index(%s) == i, x, 0), %s) instead of gather(x, i, %s)", axis,
                     axis, axis);
    else if (product && goes_into(v, EPI_OP_SUM, 2, &axis))
        epi_text_add(out, "; write sum(sum(x, …), %s), one axis after the other", axis);
    else if (product && goes_into(v, EPI_OP_RMAX, 1, &axis) && is_summed(v->kernel, axis))
        epi_text_add(out,
                     "; scores stay on chip if a softmax is used only in sum(p*v, %s): subtract and scale "
                     "the results of such sums instead",
                     axis);
    else if (operand && !epi_spec_has_rows(&v->kernel->spec, &n->axes))
        epi_text_add(out, "; compute it once and pass it as an input, or mark its inputs `param`");
    else if (operand && lowbit)
        epi_text_add(out, "; %s loads %s by itself in the forms of docs/%s'",
                     attends ? "attention" : "a product", lowbit,
                     attends ? "attention.md, 'How do I decode with an 8-bit cache?"
                             : "language.md, 'Types of the operands of a product");
}

/* ---- warnings ---- */

/* Does the part store elements of the shape that it reduces to a number? Its row is then all there is. */
static bool has_one_row(const epi_graph *g) {
    for (int n = 0; n < g->node_count; n++) {
        const epi_node *sum = &g->nodes[n];
        if (!epi_op_reduces(sum->op) || sum->axes.count)
            continue;
        for (int t = g->input_count; t < g->tensor_count; t++)
            if (epi_axes_include(&g->tensors[t].axes, &g->nodes[sum->arg[0]].axes))
                return true;
    }
    return false;
}

/* Of a value that is larger than all tensors together, or large and made without need. */
static void warn_of_value(const epi_kernel *k, int i, const epi_kernel_info *whole, double tensors,
                          epi_text *out) {
    kept v;
    epi_value_info info;
    epi_text remedy = {0};
    const char *axis;
    if (epi_kernel_value(k, i, &info) != EPI_OK || !find_kept(k, i, &v))
        return;
    if (goes_into(&v, EPI_OP_GATHER, 2, &axis)) /* slots, which others take in another order */
        return;
    add_remedy(&v, &remedy);
    bool larger = (double)info.bytes > tensors;
    if (larger || (remedy.length && (double)info.bytes > SHARE * whole->bytes_fused)) {
        epi_text_add(out, "part %d of %d stores %s = %s, %.4g MB%s, because ", info.first + 1, whole->parts,
                     info.name, info.expression, (double)info.bytes / MB,
                     larger ? ", more than all inputs and outputs together" : "");
        epi_why_stored(k, i, out);
        epi_text_add(out, "%s\n", remedy.data ? remedy.data : "");
    }
    out->failed |= remedy.failed;
    epi_text_free(&remedy);
}

/* The operation of a pass, and what to write instead of it where that is known. */
static void add_pass(const epi_kernel *k, int i, const epi_kernel_info *p, const epi_kernel_info *whole,
                     epi_text *out) {
    const epi_graph *g = i < k->cut.part_count ? &k->cut.parts[i].graph : &k->program->graph;
    int node = g->tensors[g->tensor_count - 1].node;
    const epi_node *n = &g->nodes[node];
    epi_label says = epi_node_expression(g, node);
    epi_text_add(
        out,
        "part %d of %d, %s, is one operation over memory, which moves %.4g of %.4g MB: no mainloop can "
        "fuse it with its neighbours",
        i + 1, whole->parts, says.text, p->bytes_fused / MB, whole->bytes_fused / MB);
    if (epi_op_reduces(n->op) && k->spec.is_row[n->over.at[0].dim])
        epi_text_add(
            out, "; %s is a row axis here: a rows kernel may reduce over it where the options name others",
            g->dims[n->over.at[0].dim]);
    else if (epi_op_reduces(n->op))
        epi_text_add(out, "; a rows kernel reduces over %s where tensors have it as their last axis",
                     g->dims[n->over.at[0].dim]);
    else if (n->op == EPI_OP_UPDATE)
        epi_text_add(out, "; stored over its input, it writes the new elements alone");
    epi_text_add(out, "\n");
}

static void warn_of_part(const epi_kernel *k, int i, const epi_kernel_info *whole, double tensors,
                         epi_text *out) {
    epi_part_info part;
    if (epi_kernel_part(k, i, &part) != EPI_OK || part.first != i)
        return;
    const epi_kernel_info *p = &part.info;
    bool heavy = p->bytes_fused > SHARE * whole->bytes_fused &&
                 whole->bytes_fused > (1 + SHARE) * tensors; /* else no other kernel could do with less */
    if (!strcmp(p->mainloop, "pass") && heavy)
        add_pass(k, i, p, whole, out);
    if (k->gpu && i < k->cut.part_count && !strcmp(p->mainloop, "rows") && p->bytes_fused > MB &&
        has_one_row(&k->cut.parts[i].graph))
        epi_text_add(out,
                     "part %d of %d is one row of %ld elements, which a single block computes; sums of sums, "
                     "one axis after the other, with algebra 'written', use many blocks\n",
                     i + 1, whole->parts, (long)p->n);
    if (!strncmp(p->micro, "any_", 4) && p->flops > SHARE * whole->flops)
        epi_text_add(out,
                     "part %d of %d is a product without tensor cores, %.4g of %.4g GFLOP: they need bf16 or "
                     "f16 operands, in rows of 8 elements\n",
                     i + 1, whole->parts, p->flops / 1e9, whole->flops / 1e9);
}

/* The bytes of all inputs and outputs. */
static double tensor_bytes(const epi_kernel *k) {
    double bytes = 0;
    epi_tensor_shape shape;
    for (int t = 0; epi_kernel_tensor(k, t, &shape) == EPI_OK; t++)
        bytes += (double)shape.count * (double)epi_dtype_size(shape.type);
    return bytes;
}

size_t epi_kernel_warnings(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    epi_kernel_info whole = {0};
    double bytes = kernel ? tensor_bytes(kernel) : 0;
    if (kernel)
        epi_kernel_get_info(kernel, &whole);
    if (kernel)
        epi_integers_warn(kernel, &t);
    if (!kernel || whole.bytes_fused < MB) /* it is over before anyone wonders */
        return epi_text_give(&t, buf, size);
    for (int i = 0; i < whole.parts; i++)
        warn_of_part(kernel, i, &whole, bytes, &t);
    for (int i = 0; i < kernel->cut.value_count - kernel->cut.prepared_values; i++)
        warn_of_value(kernel, i, &whole, bytes, &t);
    if (whole.bytes_fused > 1.01 * whole.bytes_unfused && whole.bytes_unfused > 0)
        epi_text_add(&t, "it moves %.4g MB; one operation at a time (path unfused) would move only %.4g\n",
                     whole.bytes_fused / MB, whole.bytes_unfused / MB);
    return epi_text_give(&t, buf, size);
}

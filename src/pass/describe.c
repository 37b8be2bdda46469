/* describe.c: what a list of steps will do, in numbers and in words. */
#include "pass/steps.h"

static double count_of(const epi_steps *k, const epi_axes *axes) {
    return (double)epi_axes_size(axes, k->spec->sizes);
}

static double tensor_bytes(const epi_steps *k, int t) {
    return count_of(k, &k->spec->graph->tensors[t].axes) * (double)epi_dtype_size(k->spec->types[t]);
}

/* Bytes of a value when it is a tensor of its own. */
static double value_bytes(const epi_steps *k, int node) {
    const epi_node *n = &k->spec->graph->nodes[node];
    if (n->op == EPI_OP_INPUT)
        return tensor_bytes(k, n->tensor);
    if (epi_ops[n->op].cls == EPI_CLASS_LEAF)
        return 0;
    return count_of(k, &n->axes) * (double)epi_dtype_size(k->spec->type);
}

/* Bytes that an operation reads of an operand: gather only reads what it takes. */
static double read_bytes(const epi_steps *k, int node, int operand) {
    const epi_graph *g = k->spec->graph;
    const epi_node *n = &g->nodes[node];
    double all = value_bytes(k, n->arg[operand]), count = count_of(k, &g->nodes[n->arg[operand]].axes);
    if (n->op != EPI_OP_GATHER || operand != 0 || count == 0)
        return all;
    double taken = count_of(k, &n->axes);
    return taken < count ? all * (taken / count) : all;
}

/* Bytes that a fused program reads of an input: all of it, unless it is only gathered from. */
static double input_bytes(const epi_steps *k, int t) {
    const epi_graph *g = k->spec->graph;
    double all = tensor_bytes(k, t), bytes = 0;
    epi_use_list uses = epi_graph_uses(g, g->tensors[t].node);
    for (int i = 0; i < uses.count; i++)
        bytes += uses.at[i].node == EPI_NO_NODE ? all : read_bytes(k, uses.at[i].node, uses.at[i].operand);
    return bytes < all ? bytes : all;
}

void epi_steps_count(const epi_steps *k, double partial_bytes, epi_kernel_info *out) {
    const epi_graph *g = k->spec->graph;
    out->bytes_fused = 2 * partial_bytes;
    for (int t = 0; t < g->tensor_count; t++)
        if (t >= g->input_count || g->live[g->tensors[t].node])
            out->bytes_fused += t < g->input_count ? input_bytes(k, t) : tensor_bytes(k, t);
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        epi_op_class cls = epi_ops[n->op].cls;
        if (!g->live[i] || cls == EPI_CLASS_LEAF)
            continue;
        if (cls == EPI_CLASS_PRODUCT)
            out->flops += 2 * count_of(k, &n->axes) * count_of(k, &n->over);
        else if (cls == EPI_CLASS_REDUCE || n->op == EPI_OP_SCATTER)
            out->flops += count_of(k, &g->nodes[n->arg[0]].axes);
        else if (cls == EPI_CLASS_MAP || cls == EPI_CLASS_RANDOM)
            out->flops += count_of(k, &n->axes);
        out->bytes_unfused += value_bytes(k, i);
        for (int a = 0; a < epi_ops[n->op].arity; a++)
            out->bytes_unfused += read_bytes(k, i, a);
        if (k->plan.fused && (k->plan.placement[i].before || k->plan.placement[i].after))
            out->bytes_fused += 2 * value_bytes(k, i);
    }
    for (int t = g->input_count; t < g->tensor_count; t++) /* plain copies */
        if (g->nodes[g->tensors[t].node].op == EPI_OP_INPUT)
            out->bytes_unfused += 2 * tensor_bytes(k, t);
    if (!k->plan.fused)
        out->bytes_fused = out->bytes_unfused;
}

static void list_stage(const epi_steps *k, epi_text *out, const char *title, int which) {
    const epi_graph *g = k->spec->graph;
    int count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const epi_placement *s = &k->plan.placement[i];
        const epi_node *n = &g->nodes[i];
        bool in = which == 0 ? s->before : which == 1 ? s->tile && s->leave <= EPI_LEAVE_LOCAL : s->after;
        if (!in || !n->name || epi_ops[n->op].cls == EPI_CLASS_LEAF)
            continue;
        epi_text_add(out, "%s%s", count++ ? ", " : title, epi_node_label(g, i).text);
    }
    if (count)
        epi_text_add(out, "\n");
}

bool epi_steps_describe_unfused(const epi_steps *k, epi_text *out) {
    if (k->plan.fused)
        return false;
    epi_text_add(out, "unfused, an operation at a time");
    if (k->spec->path == EPI_PATH_FUSED)
        epi_text_add(out, ": %s", k->plan.reason);
    epi_text_add(out, "\n");
    return true;
}

void epi_steps_describe_shape(const epi_steps *k, epi_text *out) {
    const epi_graph *g = k->spec->graph;
    epi_axes batch = epi_plan_batch(&k->plan), of_batch = epi_plan_batch_rows(&k->plan);
    const epi_axes *groups[4] = {&batch, &of_batch, &k->plan.cols, &k->plan.depth};
    int count = 0;
    bool rows = k->plan.kind == EPI_KIND_ROWS;
    static const char *const names[4] = {"batches", "rows", "columns", "depth"};
    for (int i = batch.count ? 0 : k->plan.rows.count || !rows ? 1 : 2; i < (rows ? 3 : 4); i++)
        epi_text_add(out, "%s%s %s = %ld", count++ ? ", " : "", names[i], epi_axes_label(g, groups[i]).text,
                     (long)count_of(k, groups[i]));
    epi_text_add(out, "\n");
}

void epi_steps_describe_stages(const epi_steps *k, int64_t row_partials, int64_t col_partials,
                               epi_text *out) {
    const epi_graph *g = k->spec->graph;
    bool rows = k->plan.kind == EPI_KIND_ROWS;
    if (k->plan.split != EPI_OP_COUNT)
        epi_text_add(out, "%s of %s meet in the %s\n", epi_ops[k->plan.split].text,
                     epi_axis_label(g, k->plan.fine).text, rows ? "row" : "tile");
    list_stage(k, out, rows ? "before the rows: " : "before the product: ", 0);
    list_stage(k, out, rows ? "in the row: " : "on the tile: ", 1);
    for (int i = 0; i < g->node_count; i++) {
        epi_leave leave = k->plan.placement[i].leave;
        epi_label over = epi_axes_label(g, &g->nodes[i].over);
        if (leave == EPI_LEAVE_LOCAL)
            epi_text_add(out, "%s over %s stays in the %s\n", epi_ops[g->nodes[i].op].text, over.text,
                         rows ? "row" : "tile");
        else if (leave != EPI_LEAVE_NONE)
            epi_text_add(out, "%s over %s leaves as partials, %ld per result\n", epi_ops[g->nodes[i].op].text,
                         over.text, (long)(leave == EPI_LEAVE_ROWS ? row_partials : col_partials));
    }
    list_stage(k, out, rows ? "after the rows: " : "after the product: ", 2);
}

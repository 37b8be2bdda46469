/* describe.c: what a compiled kernel will do, in numbers and in words. */
#include "cpu/cpu.h"
#include "cpu/gemm.h"

static double count_of(const epi_cpu_kernel *k, const epi_axes *axes) {
    return (double)epi_axes_size(axes, k->spec.sizes);
}

static double tensor_bytes(const epi_cpu_kernel *k, int t) {
    return count_of(k, &k->spec.graph->tensors[t].axes) * (double)epi_dtype_size(k->spec.types[t]);
}

/* Bytes of a value when it is a tensor of its own. */
static double value_bytes(const epi_cpu_kernel *k, int node) {
    const epi_node *n = &k->spec.graph->nodes[node];
    if (n->op == EPI_OP_INPUT)
        return tensor_bytes(k, n->tensor);
    if (epi_ops[n->op].cls == EPI_CLASS_LEAF)
        return 0;
    return count_of(k, &n->axes) * (double)epi_dtype_size(k->spec.type);
}

static const epi_gemm *main_gemm(const epi_cpu_kernel *k) {
    for (int i = 0; i < k->steps.count; i++)
        if (k->steps.at[i].plan)
            return k->gemms[i];
    return NULL;
}

void epi_cpu_info(const epi_cpu_kernel *k, epi_kernel_info *out) {
    const epi_graph *g = k->spec.graph;
    static const char *const names[] = {"gemm", "passes", "naive", "reference"};
    *out = (epi_kernel_info){.mainloop = names[k->spec.path], .micro = "", .threads = k->spec.threads};
    const epi_gemm *gemm = main_gemm(k);
    if (k->spec.path == EPI_PATH_FUSED && !k->steps.plan.fused)
        out->mainloop = "passes";
    if (gemm) {
        out->micro = gemm->micro->name;
        out->m = gemm->m;
        out->n = gemm->n;
        out->k = gemm->k;
        out->tile_m = EPI_TILE_M;
        out->tile_n = gemm->epilogue.tile.tile_n;
        out->bytes_fused = 2.0 * (double)gemm->epilogue.partials * sizeof(float);
    }
    for (int t = 0; t < g->tensor_count; t++)
        if (t >= g->input_count || k->steps.live[g->tensors[t].node])
            out->bytes_fused += tensor_bytes(k, t);
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        epi_op_class cls = epi_ops[n->op].cls;
        if (!k->steps.live[i] || cls == EPI_CLASS_LEAF)
            continue;
        if (cls == EPI_CLASS_PRODUCT)
            out->flops += 2 * count_of(k, &n->axes) * count_of(k, &n->over);
        else if (cls == EPI_CLASS_REDUCE)
            out->flops += count_of(k, &g->nodes[n->arg[0]].axes);
        else if (cls == EPI_CLASS_MAP)
            out->flops += count_of(k, &n->axes);
        out->bytes_unfused += value_bytes(k, i);
        for (int a = 0; a < epi_ops[n->op].arity; a++)
            out->bytes_unfused += value_bytes(k, n->arg[a]);
        if (k->steps.plan.fused && (k->steps.plan.stage[i].before || k->steps.plan.stage[i].after))
            out->bytes_fused += 2 * value_bytes(k, i);
    }
    for (int t = g->input_count; t < g->tensor_count; t++) /* plain copies */
        if (g->nodes[g->tensors[t].node].op == EPI_OP_INPUT)
            out->bytes_unfused += 2 * tensor_bytes(k, t);
    if (!k->steps.plan.fused)
        out->bytes_fused = out->bytes_unfused;
}

static void list_stage(const epi_cpu_kernel *k, epi_text *out, const char *title, int which) {
    const epi_graph *g = k->spec.graph;
    int count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const epi_stage *s = &k->steps.plan.stage[i];
        const epi_node *n = &g->nodes[i];
        bool in = which == 0 ? s->before : which == 1 ? s->tile && s->leave <= EPI_LEAVE_LOCAL : s->after;
        if (!in || !n->name || epi_ops[n->op].cls == EPI_CLASS_LEAF)
            continue;
        epi_text_add(out, "%s%s", count++ ? ", " : title, epi_node_label(g, i).text);
    }
    if (count)
        epi_text_add(out, "\n");
}

void epi_cpu_describe(const epi_cpu_kernel *k, epi_text *out) {
    const epi_graph *g = k->spec.graph;
    if (k->spec.path >= EPI_PATH_NAIVE) {
        epi_text_add(out, "plain loops, one value after another\n");
        return;
    }
    if (!k->steps.plan.fused) {
        epi_text_add(out, "unfused, an operation at a time");
        if (k->spec.path == EPI_PATH_FUSED)
            epi_text_add(out, ": %s", k->steps.plan.reason);
        epi_text_add(out, "\n");
        return;
    }
    const epi_gemm *gemm = main_gemm(k);
    epi_text_add(out, "rows %s = %ld, columns %s = %ld, depth %s = %ld\n",
                 epi_axes_label(g, &k->steps.plan.rows).text, (long)gemm->m,
                 epi_axes_label(g, &k->steps.plan.cols).text, (long)gemm->n,
                 epi_axes_label(g, &k->steps.plan.depth).text, (long)gemm->k);
    long tiles = (long)(gemm->epilogue.row_tiles * gemm->epilogue.col_tiles);
    epi_text_add(out, "tile %d x %d, %ld tile%s, micro-kernel %s (%d x %d)\n", EPI_TILE_M,
                 gemm->epilogue.tile.tile_n, tiles, tiles == 1 ? "" : "s", gemm->micro->name, gemm->micro->mr,
                 gemm->micro->nr);
    if (k->steps.plan.part != EPI_OP_COUNT)
        epi_text_add(out, "%s of %s meet in the tile\n", epi_ops[k->steps.plan.part].text,
                     epi_axis_label(g, k->steps.plan.fine).text);
    list_stage(k, out, "before the product: ", 0);
    list_stage(k, out, "on the tile: ", 1);
    for (int i = 0; i < g->node_count; i++) {
        epi_leave leave = k->steps.plan.stage[i].leave;
        epi_label over = epi_axes_label(g, &g->nodes[i].over);
        if (leave == EPI_LEAVE_LOCAL)
            epi_text_add(out, "%s over %s stays in the tile\n", epi_ops[g->nodes[i].op].text, over.text);
        else if (leave != EPI_LEAVE_NONE)
            epi_text_add(
                out, "%s over %s leaves as partials, %ld per result\n", epi_ops[g->nodes[i].op].text,
                over.text,
                (long)(leave == EPI_LEAVE_ROWS ? gemm->epilogue.col_tiles : gemm->epilogue.row_tiles));
    }
    list_stage(k, out, "after the product: ", 2);
}

/* emit_pass.c: writes passes over memory: one operation at a time, or a copy. */
#include "cuda/emit/emit.h"

/* The axes a pass counts through: those of what it makes, one split of them at a time for a join. */
static epi_axes pass_axes(const epi_emit_context *c, int node, int copy_to) {
    const epi_node *n = &c->spec->graph->nodes[node];
    if (copy_to >= 0)
        return c->spec->graph->tensors[copy_to].axes;
    epi_axes axes = n->axes;
    if (epi_ops[n->op].joins)
        axes.at[epi_axes_find(&axes, n->over.at[0])].shift--;
    return epi_op_scans(n->op) ? epi_axes_without(&axes, &n->over) : axes;
}

/* How the threads of a block fold results of a reduction. Each goes through every `threads`th element of one. */
typedef struct fold_form {
    int threads;             /* of one result */
    const char *own, *share; /* which result a thread has, which of its elements */
} fold_form;

/* The lanes of a warp share a result where its elements are neighbours in memory. Where neighbouring results are, each lane has one of
 * its own: a thread goes through a few elements by itself, and the warps of a block share many. That follows from what is folded
 * alone, not from how many results there are, and so do the bits. */
static const fold_form *fold_form_of(const epi_emit_context *c, int node) {
    static const fold_form one = {1, "threadIdx.x", "0"},
                           lanes = {32, "threadIdx.x / 32", "threadIdx.x % 32"},
                           warps = {8, "threadIdx.x % 32", "threadIdx.x / 32"};
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_ref from = epi_emit_ref(c, n->arg[0], -1);
    int last = n->axes.count - 1;
    bool down = last >= 0 && epi_ref_stride(&from, n->axes.at[last]) == 1;
    bool few = epi_axes_size(&n->over, c->chosen) <= 64;
    for (int i = 0; i < n->over.count; i++)
        few &= !c->spec->is_open[n->over.at[i].dim];
    return !down ? &lanes : few ? &one : &warps;
}

int64_t epi_pass_elements(const epi_emit_context *c, int node, int copy_to) {
    epi_op op = copy_to < 0 ? c->spec->graph->nodes[node].op : EPI_OP_COUNT;
    if (copy_to < 0 && c->spec->graph->nodes[node].integer)
        return epi_integers_elements(c, node);
    epi_axes axes = pass_axes(c, node, copy_to);
    if (epi_op_scatters(op) || epi_op_orders(op))
        return 256 * (epi_op_scatters(op) ? epi_scatter_items : epi_sort_items)(c, node);
    if (op == EPI_OP_TOPK)
        return (epi_topk_by_block(c, node) ? 256 : 32) * epi_topk_rows(c, node);
    if (op == EPI_OP_UNIFORM)
        return epi_ceil_div(epi_axes_size(&axes, c->sizes), 4);
    if (copy_to < 0 && epi_op_reduces(op))
        return fold_form_of(c, node)->threads * epi_axes_size(&axes, c->sizes);
    return epi_axes_size(&axes, c->sizes);
}

int64_t epi_pass_fewer(const epi_emit_context *c, int node, int copy_to) {
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_axes rest = epi_axes_without(&n->axes, &n->over);
    return copy_to < 0 && n->op == EPI_OP_UPDATE && !n->integer ? epi_axes_size(&rest, c->sizes) : 0;
}

typedef struct pass {
    const epi_emit_context *c;
    const epi_node *n;
    epi_axes axes;
    epi_pass_pointers pointers;
    epi_text *out;
} pass;

/* Where the element x is, so far behind the first. */
static const char *put_place(pass *p, const epi_ref *ref, int64_t start) {
    epi_walk w = epi_walk_axes(ref, &p->axes, p->c->spec->sizes);
    return epi_emit_text(p->c, "%s + %s", epi_emit_count(p->c, start, "LL"), epi_emit_walk(p->c, &w, "x"));
}

static const char *put_load(pass *p, const epi_ref *ref, int pointer, int64_t start) {
    return epi_emit_load(p->c, ref->type, pointer, put_place(p, ref, start));
}

static void put_store(pass *p, const epi_ref *ref, int64_t start, const char *value) {
    epi_text_add(p->out, "store<%s>((void *)P.ptr[%d], %s, %s);\n", epi_emit_type(ref->type), p->pointers.to,
                 put_place(p, ref, start), value);
}

static void copy_body(pass *p, int node, int to) {
    epi_ref from = epi_emit_ref(p->c, node, -1), dst = epi_emit_ref(p->c, node, to);
    if (epi_dtype_is_integer(from.type) && epi_dtype_is_integer(dst.type)) { /* integers hold more than f32 */
        const char *type = dst.type == EPI_I32 ? "int" : "i64", *has = from.type == EPI_I32 ? "int" : "i64";
        epi_walk wf = epi_walk_axes(&from, &p->axes, p->c->spec->sizes),
                 wt = epi_walk_axes(&dst, &p->axes, p->c->spec->sizes);
        bool cuts = from.type != dst.type && dst.type == EPI_I32; /* to the largest number for what is beyond */
        const char *value =
            epi_emit_text(p->c, "((const %s *)P.ptr[%d])[%s]", has, p->pointers.from[0], epi_emit_walk(p->c, &wf, "x"));
        if (cuts)
            value = epi_emit_text(p->c, "(int)max(-2147483648LL, min(2147483647LL, %s))", value);
        epi_text_add(p->out, "    ((%s *)P.ptr[%d])[%s] = %s;\n", type, p->pointers.to,
                     epi_emit_walk(p->c, &wt, "x"), value);
        return;
    }
    epi_text_add(p->out, "    const float v = %s;\n    ", put_load(p, &from, p->pointers.from[0], 0));
    put_store(p, &dst, 0, "v");
}

static void map_body(pass *p, int node) {
    const epi_node *n = p->n;
    for (int a = 0; a < epi_ops[n->op].arity; a++) {
        bool number = epi_emit_is_number(p->c, n->arg[a]);
        epi_ref from = epi_emit_ref(p->c, n->arg[a], -1);
        epi_text_add(p->out, "    const float a%d = %s;\n", a,
                     number ? epi_emit_node_number(p->c, n->arg[a])
                            : put_load(p, &from, p->pointers.from[a], 0));
    }
    epi_ref to = epi_emit_ref(p->c, node, -1);
    epi_text_add(p->out, "    const float v = %s;\n    ",
                 epi_emit_op(p->c, n->op, (const char *const[]){"a0", "a1", "a2"}));
    put_store(p, &to, 0, "v");
}

static void split_body(pass *p, int node) {
    const epi_node *n = p->n;
    const int64_t *sizes = p->c->spec->sizes;
    for (int split = 0; split < (epi_ops[n->op].joins ? 2 : 1); split++) {
        epi_ref from = epi_emit_ref(p->c, n->arg[split], -1), to = epi_emit_ref(p->c, node, -1);
        int64_t read = 0, write = 0;
        if (epi_ops[n->op].joins)
            write = epi_ref_half(&to, n, split, sizes);
        else
            read = epi_ref_half(&from, n, epi_ops[n->op].second, sizes);
        epi_text_add(p->out, "    const float v%d = %s;\n    ", split,
                     put_load(p, &from, p->pointers.from[split], read));
        put_store(p, &to, write, split ? "v1" : "v0");
    }
}

static void leaf_body(pass *p, int node) {
    epi_ref to = epi_emit_ref(p->c, node, -1);
    bool number = epi_emit_is_number(p->c, node); /* else the position along an axis */
    epi_text_add(p->out, "    ");
    put_store(p, &to, 0, number ? epi_emit_node_number(p->c, node) : "(float)x");
}

/* A thread may have any number of elements, so sums keep what rounding loses. */
static void fold_results(pass *p, int node) {
    const epi_node *n = p->n;
    const int64_t *sizes = p->c->spec->sizes;
    epi_ref from = epi_emit_ref(p->c, n->arg[0], -1), to = epi_emit_ref(p->c, node, -1);
    epi_walk over = epi_walk_axes(&from, &n->over, sizes), base = epi_walk_axes(&from, &p->axes, sizes);
    int64_t count = epi_axes_size(&n->over, sizes);
    const fold_form *form = fold_form_of(p->c, node);
    int threads = form->threads, results = 256 / threads; /* of a block at a time */
    const char *fold = epi_ops[n->op].adds ? "Long" : epi_ops[n->op].cuda;
    epi_text_add(p->out,
                 "  const i64 results = P.extra[0] / %d;\n"
                 "  for (i64 first = (i64)blockIdx.x * %d; first < results; first += (i64)gridDim.x * %d) {\n"
                 "    const i64 x = first + %s, at = %s;\n    %s f;\n    f.clear();\n",
                 threads, results, results, form->own, epi_emit_walk(p->c, &base, "x"), fold);
    epi_text_add(p->out,
                 "    if (x < results)\n#pragma unroll %d\n"
                 "      for (i64 y = %s; y < %s; y += %d) f.take(load<%s>(P.ptr[%d], at + %s));\n",
                 threads == 32 ? 1 : 8, form->share, epi_emit_count(p->c, count, "LL"), threads,
                 epi_emit_type(from.type), p->pointers.from[0], epi_emit_walk(p->c, &over, "y"));
    if (threads == 32)
        epi_text_add(p->out, "#pragma unroll\n    for (int m = 1; m < 32; m <<= 1) f.across(m);\n");
    if (threads == 8)
        epi_text_add(
            p->out,
            "    __shared__ %s shares[8][32];\n    shares[threadIdx.x / 32][threadIdx.x %% 32] = f;\n"
            "    __syncthreads();\n"
            "    for (int i = 1; i < 8 && threadIdx.x < 32; i++) f.merge(shares[i][threadIdx.x]);\n"
            "    __syncthreads();\n",
            fold);
    epi_text_add(p->out, "    if (%s == 0 && x < results) ", form->share);
    put_store(p, &to, 0, epi_emit_fold_end(p->c, n->op, "f", count));
    epi_text_add(p->out, "  }\n}\n");
}

/* An operand of a scan, or its result: where the step y of the recurrence x is. */
static const char *step_place(const pass *p, const epi_ref *ref) {
    epi_walk base = epi_walk_axes(ref, &p->axes, p->c->spec->sizes),
             along = epi_walk_axes(ref, &p->n->over, p->c->spec->sizes);
    return epi_emit_text(p->c, "%s + %s", epi_emit_walk(p->c, &base, "x"), epi_emit_walk(p->c, &along, "y"));
}

/* A thread goes through all steps of one recurrence; what it carries on has more digits than what it stores. */
static void scan_body(pass *p, int node) {
    const epi_node *n = p->n;
    epi_ref to = epi_emit_ref(p->c, node, -1);
    epi_text_add(p->out,
                 "    double h = 0;\n    const i64 steps = %s;\n"
                 "    for (i64 k = 0; k < steps; k++) {\n      const i64 y = %s;\n",
                 epi_emit_count(p->c, epi_axes_size(&n->over, p->c->spec->sizes), "LL"),
                 epi_ops[n->op].back ? "steps - 1 - k" : "k");
    for (int a = 0; a < 2; a++) {
        epi_ref from = epi_emit_ref(p->c, n->arg[a], -1);
        epi_text_add(p->out, "      const float a%d = %s;\n", a,
                     epi_emit_is_number(p->c, n->arg[a])
                         ? epi_emit_node_number(p->c, n->arg[a])
                         : epi_emit_load(p->c, from.type, p->pointers.from[a], step_place(p, &from)));
    }
    epi_text_add(p->out,
                 "      h = k ? (double)a0 * h + (double)a1 : (double)a1;\n"
                 "      store<%s>((void *)P.ptr[%d], %s, (float)h);\n    }\n",
                 epi_emit_type(to.type), p->pointers.to, step_place(p, &to));
}

/* The operands that are in memory, then the result. */
static epi_pass_pointers give_pointers(const epi_emit_context *c, epi_kernel_text *k, int node, int copy_to) {
    const epi_node *n = &c->spec->graph->nodes[node];
    epi_pass_pointers p = {{-1, -1, -1}, -1};
    if (copy_to >= 0)
        p.from[0] = epi_emit_pointer(k, node, -1);
    for (int a = 0; a < 3 && copy_to < 0 && n->arg[a] >= 0; a++) {
        bool text = (epi_op_is_map(n->op) || epi_op_by_index(n->op) || epi_op_scans(n->op)) &&
                    epi_emit_is_number(c, n->arg[a]);
        int segments = epi_node_segments(c->spec->graph, n);
        if (a == 1 && segments != EPI_NO_NODE)
            p.from[a] = epi_emit_pointer(k, c->spec->graph->nodes[segments].arg[0], -1);
        else if (a == epi_op_index(n->op))
            p.from[a] = epi_emit_index_pointer(c, k, node);
        else if (!text)
            p.from[a] = epi_emit_pointer(k, n->arg[a], -1);
    }
    p.to = epi_emit_pointer(k, node, copy_to);
    if (copy_to < 0 && (epi_op_orders(n->op) || n->op == EPI_OP_TOPK))
        epi_sort_pointers(c, k);
    return p;
}

/* What is done for each element x. */
static void put_body(pass *p, int node, int copy_to) {
    if (copy_to >= 0) {
        copy_body(p, node, copy_to);
        return;
    }
    switch (epi_ops[p->n->op].cls) {
    case EPI_CLASS_MAP: map_body(p, node); break;
    case EPI_CLASS_SPLIT: split_body(p, node); break;
    case EPI_CLASS_MOVE:
        (p->n->op == EPI_OP_UPDATE ? epi_emit_update : epi_emit_gather)(p->c, node, &p->pointers, p->out);
        break;
    case EPI_CLASS_SHIFT: epi_emit_shift(p->c, node, &p->pointers, p->out); break;
    case EPI_CLASS_SORT: epi_emit_segments(p->c, node, &p->pointers, p->out); break;
    case EPI_CLASS_SCAN: scan_body(p, node); break;
    case EPI_CLASS_RANDOM: epi_emit_random(p->c, node, &p->pointers, p->out); break;
    default: leaf_body(p, node);
    }
}

epi_status epi_emit_pass(epi_emit_context *c, int node, int copy_to, epi_kernel_text *k, epi_error *err) {
    *k = (epi_kernel_text){.name = "pass", .block = 256};
    if (copy_to < 0 && c->spec->graph->nodes[node].integer)
        return epi_emit_integers(c, node, k, err);
    pass p = {.c = c, .n = &c->spec->graph->nodes[node], .out = &k->source};
    p.axes = pass_axes(c, node, copy_to);
    p.pointers = give_pointers(c, k, node, copy_to);
    epi_op op = copy_to >= 0 ? EPI_OP_COUNT : p.n->op;
    bool largest = op == EPI_OP_TOPK, orders = epi_op_orders(op);
    epi_emit_begin(c, k,
                   orders                ? epi_device_text("sort")
                   : largest             ? epi_device_text("topk")
                   : epi_op_by_index(op) ? epi_device_text("index")
                   : epi_op_draws(op)    ? epi_device_text("random")
                                         : "");
    if (orders || largest) {
        (orders ? epi_emit_sort : epi_emit_topk)(c, node, &p.pointers, k);
        return epi_emit_end(k, err);
    }
    if (epi_op_scatters(op)) {
        epi_emit_scatter(c, node, &p.pointers, p.out);
        return epi_emit_end(k, err);
    }
    epi_text_add(
        p.out,
        "// %s, line %d\nextern \"C\" __global__ void __launch_bounds__(256) pass(const __grid_constant__ "
        "Params P) {\n  dependency_start();\n  dependency_wait();\n",
        epi_emit_name(c, node), p.n->place.line);
    if (epi_op_reduces(op)) {
        fold_results(&p, node);
        return epi_emit_end(k, err);
    }
    epi_text_add(p.out,
                 "  const i64 stride = (i64)gridDim.x * 256;\n"
                 "  for (i64 x = (i64)blockIdx.x * 256 + threadIdx.x; x < P.extra[0]; x += stride) {\n");
    put_body(&p, node, copy_to);
    epi_text_add(p.out, "  }\n}\n");
    return epi_emit_end(k, err);
}

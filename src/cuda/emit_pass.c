/* emit_pass.c: passes over memory as texts: one operation at a time, and the finishing of partials. */
#include <stdio.h>
#include <string.h>

#include "cuda/emit.h"

static void begin(epi_kernel_text *k, bool fast, const char *arch, const char *more) {
    epi_text_add(&k->source, "#define EPI_FAST %d\n%s%s%s%s\n// ---- written for this program\n\n", fast,
                 epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"), more);
    k->arch = arch;
}

/* ---- one operation ---- */

static bool joins(const epi_node *n) {
    return n->op == EPI_OP_JOIN || n->op == EPI_OP_CONCAT;
}

/* The axes a pass counts through: those of what it makes, one part of it at a time for a join. */
static epi_axes pass_axes(const epi_emit_context *c, int node, int copy_to) {
    const epi_node *n = &c->spec->graph->nodes[node];
    if (copy_to >= 0)
        return c->spec->graph->tensors[copy_to].axes;
    epi_axes axes = n->axes;
    if (joins(n))
        axes.at[epi_axes_find(&axes, n->over.at[0])].shift--;
    return axes;
}

int64_t epi_pass_elements(const epi_emit_context *c, int node, int copy_to) {
    epi_op op = copy_to < 0 ? c->spec->graph->nodes[node].op : EPI_OP_COUNT;
    epi_axes axes = pass_axes(c, node, copy_to);
    if (op == EPI_OP_SCATTER)
        return 256 * epi_scatter_items(c, node);
    if (op == EPI_OP_UNIFORM)
        return epi_ceil_div(epi_axes_size(&axes, c->spec->sizes), 4);
    return epi_axes_size(&axes, c->spec->sizes);
}

typedef struct pass {
    epi_emit_context *c;
    const epi_node *n;
    epi_kernel_text *k;
    epi_text body;
    epi_axes axes;
} pass;

static void put_load(pass *p, epi_ref *ref, int node, int64_t start, const char *index) {
    epi_walk w = epi_walk_axes(ref, &p->axes, p->c->spec->sizes);
    epi_text_add(&p->body, "load<%s>(P.ptr[%d], %ldLL + ", epi_emit_type(ref->type),
                 epi_emit_pointer(p->k, node, -1), (long)start);
    epi_emit_walk(&p->body, &w, index);
    epi_text_add(&p->body, ")");
}

static void put_store(pass *p, epi_ref *ref, int node, int tensor, int64_t start, const char *value) {
    epi_walk w = epi_walk_axes(ref, &p->axes, p->c->spec->sizes);
    epi_text_add(&p->body, "store<%s>((void *)P.ptr[%d], %ldLL + ", epi_emit_type(ref->type),
                 epi_emit_pointer(p->k, node, tensor), (long)start);
    epi_emit_walk(&p->body, &w, "x");
    epi_text_add(&p->body, ", %s);\n", value);
}

static void copy_body(pass *p, int node, int to) {
    epi_ref from = epi_emit_ref(p->c, node, -1), dst = epi_emit_ref(p->c, node, to);
    if (from.type == EPI_I32 && dst.type == EPI_I32) { /* i32 holds more than f32 */
        epi_walk wf = epi_walk_axes(&from, &p->axes, p->c->spec->sizes),
                 wt = epi_walk_axes(&dst, &p->axes, p->c->spec->sizes);
        epi_text_add(&p->body, "    ((int *)P.ptr[%d])[", epi_emit_pointer(p->k, node, to));
        epi_emit_walk(&p->body, &wt, "x");
        epi_text_add(&p->body, "] = ((const int *)P.ptr[%d])[", epi_emit_pointer(p->k, node, -1));
        epi_emit_walk(&p->body, &wf, "x");
        epi_text_add(&p->body, "];\n");
        return;
    }
    epi_text_add(&p->body, "    const float v = ");
    put_load(p, &from, node, 0, "x");
    epi_text_add(&p->body, ";\n    ");
    put_store(p, &dst, node, to, 0, "v");
}

static void map_body(pass *p, int node) {
    const epi_node *n = p->n;
    for (int a = 0; a < epi_ops[n->op].arity; a++) {
        epi_text_add(&p->body, "    const float a%d = ", a);
        if (epi_emit_is_number(p->c, n->arg[a])) {
            epi_text_add(&p->body, "%s;\n", epi_emit_node_number(p->c, n->arg[a]).text);
            continue;
        }
        epi_ref from = epi_emit_ref(p->c, n->arg[a], -1);
        put_load(p, &from, n->arg[a], 0, "x");
        epi_text_add(&p->body, ";\n");
    }
    epi_text_add(&p->body, "    const float v = ");
    epi_emit_op(&p->body, n->op, "a0", "a1", "a2");
    epi_text_add(&p->body, ";\n    ");
    epi_ref to = epi_emit_ref(p->c, node, -1);
    put_store(p, &to, node, -1, 0, "v");
}

static void part_body(pass *p, int node) {
    const epi_node *n = p->n;
    const int64_t *sizes = p->c->spec->sizes;
    for (int part = 0; part < (joins(n) ? 2 : 1); part++) {
        int arg = n->arg[part];
        epi_ref from = epi_emit_ref(p->c, arg, -1), to = epi_emit_ref(p->c, node, -1);
        int64_t read = 0, write = 0;
        if (joins(n))
            write = epi_ref_half(&to, n, part, sizes);
        else
            read = epi_ref_half(&from, n, n->op == EPI_OP_ODD || n->op == EPI_OP_HIGH, sizes);
        epi_text_add(&p->body, "    const float v%d = ", part);
        put_load(p, &from, arg, read, "x");
        epi_text_add(&p->body, ";\n    ");
        put_store(p, &to, node, -1, write, part ? "v1" : "v0");
    }
}

static void leaf_body(pass *p, int node) {
    epi_ref to = epi_emit_ref(p->c, node, -1);
    bool number = epi_emit_is_number(p->c, node); /* else the position along an axis */
    epi_text_add(&p->body, "    ");
    put_store(p, &to, node, -1, 0, number ? epi_emit_node_number(p->c, node).text : "(float)x");
}

/* One warp folds one result: lanes take every 32nd element, then each other. */
static void reduce_body(pass *p, int node) {
    const epi_node *n = p->n;
    const int64_t *sizes = p->c->spec->sizes;
    epi_ref from = epi_emit_ref(p->c, n->arg[0], -1), to = epi_emit_ref(p->c, node, -1);
    epi_walk over = epi_walk_axes(&from, &n->over, sizes), base = epi_walk_axes(&from, &p->axes, sizes);
    int64_t count = epi_axes_size(&n->over, sizes);
    epi_text_add(&p->body, "    %s f;\n    f.clear();\n    const i64 at = ", epi_emit_fold(n->op));
    epi_emit_walk(&p->body, &base, "x");
    epi_text_add(&p->body,
                 ";\n    for (i64 y = threadIdx.x & 31; y < %ldLL; y += 32) f.take(load<%s>(P.ptr[%d], at + ",
                 (long)count, epi_emit_type(from.type), epi_emit_pointer(p->k, n->arg[0], -1));
    epi_emit_walk(&p->body, &over, "y");
    epi_text_add(&p->body, "));\n#pragma unroll\n    for (int m = 1; m < 32; m <<= 1) f.across(m);\n    if "
                           "((threadIdx.x & 31) == 0) ");
    put_store(p, &to, node, -1, 0, epi_emit_fold_end(n->op, "f", count).text);
}

epi_status epi_emit_pass(epi_emit_context *c, int node, int copy_to, epi_kernel_text *k, epi_error *err) {
    *k = (epi_kernel_text){.block = 256};
    pass p = {.c = c, .n = &c->spec->graph->nodes[node], .k = k, .axes = pass_axes(c, node, copy_to)};
    epi_op_class cls = epi_ops[p.n->op].cls;
    bool warps = copy_to < 0 && cls == EPI_CLASS_REDUCE;
    snprintf(k->name, sizeof k->name, "pass");
    if (copy_to >= 0)
        copy_body(&p, node, copy_to);
    else if (cls == EPI_CLASS_MAP)
        map_body(&p, node);
    else if (cls == EPI_CLASS_SPLIT)
        part_body(&p, node);
    else if (cls == EPI_CLASS_REDUCE)
        reduce_body(&p, node);
    else if (cls == EPI_CLASS_MOVE)
        (p.n->op == EPI_OP_GATHER ? epi_emit_gather : epi_emit_scatter)(c, node, k, &p.body);
    else if (cls == EPI_CLASS_RANDOM)
        epi_emit_random(c, node, k, &p.body);
    else
        leaf_body(&p, node);
    bool moves = copy_to < 0 && cls == EPI_CLASS_MOVE, random = copy_to < 0 && cls == EPI_CLASS_RANDOM;
    begin(k, false, epi_emit_arch(c),
          moves    ? epi_device_text("index")
          : random ? epi_device_text("random")
                   : "");
    epi_emit_params(k);
    bool whole = copy_to < 0 && p.n->op == EPI_OP_SCATTER; /* a kernel of its own */
    if (whole)
        epi_text_add(&k->source, "%s", p.body.data ? p.body.data : "");
    else
        epi_text_add(&k->source,
                     "// %s, line %d\nextern \"C\" __global__ void __launch_bounds__(256) pass(const "
                     "__grid_constant__ "
                     "Params P) {\n"
                     "  dependency_start();\n  dependency_wait();\n"
                     "  const i64 step = (i64)gridDim.x * 256%s;\n"
                     "  for (i64 x = ((i64)blockIdx.x * 256 + threadIdx.x)%s; x < P.extra[0]; x += step) "
                     "{\n%s  }\n}\n",
                     epi_emit_name(c->spec->graph, node).text, p.n->place.line, warps ? " / 32" : "",
                     warps ? " / 32" : "", p.body.data ? p.body.data : "");
    k->source.failed |= p.body.failed;
    epi_text_free(&p.body);
    return epi_emit_end(k, err);
}

/* ---- operands copied to where the copy engine can take them ---- */

/* Eight neighbours of a row of the copy. They are neighbours in the operand too, or come one by one. */
static void emit_eight(epi_kernel_text *k, const epi_repack *r, int number, long inner, long outer) {
    const epi_walk *along = r->mn ? &r->out.walk : &r->depth, *across = r->mn ? &r->depth : &r->out.walk;
    bool simple = !r->out.two && along->count == 1 && along->stride[0] == 1 && across->count == 1;
    if (simple) {
        long apart = (long)across->stride[0];
        epi_text_add(&k->source,
                     "  const uint4 v = eight_from(from, row * %ldLL + first, %ldLL, (int)min(%ld - first, "
                     "(i64)8));\n",
                     apart, (outer - 1) * apart + inner, inner);
        return;
    }
    epi_text_add(&k->source,
                 "  u32 e[8];\n#pragma unroll\n  for (int i = 0; i < 8; i++) {\n"
                 "    const i64 at = first + i;\n    e[i] = at < %ld ? from[out_at_%d(%s) + depth_at_%d(%s)] "
                 ": 0u;\n  }\n"
                 "  const uint4 v = make_uint4(e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] "
                 "| e[7] << 16);\n",
                 inner, number, r->mn ? "at" : "row", number, r->mn ? "row" : "at");
}

/* copy_N(P, x): number x of the eights of a copy; answers how many there are. */
static int64_t emit_copy(epi_emit_context *c, epi_kernel_text *k, const epi_repack *r, int number) {
    int from = epi_emit_pointer(k, r->node, -1), to = epi_emit_pointer(k, r->node, EPI_POINTER_WORKSPACE);
    long inner = (long)(r->mn ? r->out_count : r->depth_count),
         outer = (long)(r->mn ? r->depth_count : r->out_count), eights = (inner + 7) / 8;
    epi_text_add(&k->source,
                 "// %s, copied to rows of a multiple of 16 bytes\nDEV i64 out_at_%d(i64 x) { return ",
                 epi_emit_name(c->spec->graph, r->node).text, number);
    epi_emit_columns(&k->source, &r->out, "x");
    epi_text_add(&k->source, "; }\nDEV i64 depth_at_%d(i64 x) { return ", number);
    epi_emit_walk(&k->source, &r->depth, "x");
    epi_text_add(
        &k->source,
        "; }\nDEV void copy_%d(const Params &P, i64 x) {\n  const u16 *from = (const u16 *)P.ptr[%d];\n"
        "  u16 *to = (u16 *)P.ptr[%d] + %ldLL;\n  const i64 row = x / %ld, first = x %% %ld * 8;\n",
        number, from, to, (long)(r->offset / 2), eights, eights);
    emit_eight(k, r, number, inner, outer);
    epi_text_add(&k->source, "  *(uint4 *)(to + row * %ldLL + first) = v;\n}\n", (long)r->pitch);
    return outer * eights;
}

epi_status epi_emit_repack(epi_emit_context *c, const epi_kernel_text *product, epi_kernel_text *k,
                           int64_t *elements, epi_error *err) {
    *k = (epi_kernel_text){.name = "repack", .block = 256};
    const epi_repack *all = product->repacks;
    int count = product->repack_count;
    for (int i = 0; i < count; i++) /* asked for before their number is written down */
        epi_emit_pointer(k, all[i].node, -1);
    epi_emit_pointer(k, EPI_NO_NODE, EPI_POINTER_WORKSPACE);
    begin(k, false, epi_emit_arch(c), epi_device_text("repack"));
    epi_emit_params(k);
    int64_t first = emit_copy(c, k, &all[0], 0), second = count == 2 ? emit_copy(c, k, &all[1], 1) : 0;
    *elements = first + second;
    epi_text_add(
        &k->source,
        "extern \"C\" __global__ void __launch_bounds__(256) %s(const __grid_constant__ Params P) {\n"
        "  dependency_start();\n  dependency_wait();\n"
        "  for (i64 x = (i64)blockIdx.x * 256 + threadIdx.x; x < P.extra[0]; x += (i64)gridDim.x * "
        "256)\n    ",
        k->name);
    if (second)
        epi_text_add(&k->source, "if (x >= %ldLL) copy_1(P, x - %ldLL); else ", (long)first, (long)first);
    epi_text_add(&k->source, "copy_0(P, x);\n}\n");
    return epi_emit_end(k, err);
}

/* ---- finishing partials ---- */

/* Can the finishing kernel of this direction compute the value? It has the direction's axes alone, and comes
 * from what the kernel has or can load. */
static bool finishes(const epi_emit_context *c, const epi_plan *plan, int node, const epi_axes *group,
                     const bool *in) {
    const epi_graph *g = c->spec->graph;
    const epi_node *n = &g->nodes[node];
    if (!plan->placement[node].after || epi_ops[n->op].cls != EPI_CLASS_MAP || n->axes.count != group->count)
        return false;
    for (int i = 0; i < n->axes.count; i++)
        if (epi_axes_find(group, n->axes.at[i]) < 0)
            return false;
    for (int a = 0; a < epi_ops[n->op].arity; a++) {
        int arg = n->arg[a];
        bool late = plan->placement[arg].after || plan->placement[arg].leave > EPI_LEAVE_LOCAL;
        if (late && !in[arg])
            return false;
    }
    return true;
}

/* Is the value needed by a pass that this kernel does not do? */
static bool needed_later(const epi_emit_context *c, const epi_plan *plan, int node, const bool *in) {
    const epi_graph *g = c->spec->graph;
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < 3; a++)
            if (plan->placement[i].after && !in[i] && g->nodes[i].arg[a] == node)
                return true;
    return false;
}

/* Operand `at` of `node`. What has to be loaded is asked for ahead of the partials, so that it is there when
 * they are. */
static void put_operand(epi_emit_context *c, epi_kernel_text *k, epi_text *ahead, epi_text *body,
                        const epi_axes *group, int node, int at, const bool *in) {
    int arg = c->spec->graph->nodes[node].arg[at];
    const epi_node *n = &c->spec->graph->nodes[arg];
    if (!in[arg] && !epi_emit_is_number(c, arg) && n->op != EPI_OP_INDEX) {
        epi_ref ref = epi_emit_ref(c, arg, -1);
        epi_walk w = epi_walk_axes(&ref, group, c->spec->sizes);
        epi_text_add(ahead, "  const float a%d_%d = mine ? load<%s>(P.ptr[%d], ", at, node,
                     epi_emit_type(ref.type), epi_emit_pointer(k, arg, -1));
        epi_emit_walk(ahead, &w, "r");
        epi_text_add(ahead, ") : 0.f;\n");
        return;
    }
    epi_text_add(body, "    const float a%d_%d = ", at, node);
    if (in[arg]) {
        epi_text_add(body, "v%d;\n", arg);
    } else if (epi_emit_is_number(c, arg)) {
        epi_text_add(body, "%s;\n", epi_emit_node_number(c, arg).text);
    } else {
        epi_text_add(body, "(float)(");
        epi_emit_digit(body, group, epi_axes_find(group, n->over.at[0]), c->spec->sizes, "r");
        epi_text_add(body, ");\n");
    }
}

/* Stores a finished value at its home where somebody needs it there, and into every output that it is. */
static void put_results(epi_emit_context *c, const epi_plan *plan, epi_kernel_text *k, epi_text *body,
                        const epi_axes *group, int node, const bool *in) {
    const epi_graph *g = c->spec->graph;
    for (int t = g->input_count - 1; t < g->tensor_count; t++) {
        bool home = t < g->input_count;
        if (home ? !needed_later(c, plan, node, in) : g->tensors[t].node != node)
            continue;
        epi_ref ref = epi_emit_ref(c, node, home ? -1 : t);
        epi_walk w = epi_walk_axes(&ref, group, c->spec->sizes);
        epi_text_add(body, "    store<%s>((void *)P.ptr[%d], ", epi_emit_type(ref.type),
                     epi_emit_pointer(k, node, home ? -1 : t));
        epi_emit_walk(body, &w, "r");
        epi_text_add(body, ", v%d);   // %s\n", node, epi_emit_name(g, node).text);
        if (!home)
            c->stored[t] = true;
    }
    c->finished[node] = true;
}

/* The axes of the results, in the order in which partials count them. */
static bool finish_axes(const epi_emit_context *c, const epi_plan *plan, epi_leave leave, epi_axes *out) {
    const epi_graph *g = c->spec->graph;
    *out = leave == EPI_LEAVE_ROWS ? plan->rows : plan->cols;
    if (leave == EPI_LEAVE_ROWS || plan->split == EPI_OP_COUNT)
        return true;
    int at = epi_axes_find_dim(out, plan->fine.dim);
    bool first = true;
    for (int i = 0; i < g->node_count; i++) {
        if (plan->placement[i].leave != leave || c->partials[i] < 0)
            continue;
        epi_axis own = g->nodes[i].axes.at[epi_axes_find_dim(&g->nodes[i].axes, plan->fine.dim)];
        bool fine = own.shift == plan->fine.shift;
        if ((!first && !epi_axis_equal(out->at[at], own)) ||
            (fine && (plan->split != EPI_OP_EVEN || at != out->count - 1)))
            return false;
        out->at[at] = own;
        first = false;
    }
    return true;
}

/* Warps of a block, which share its results' partials: eight each, or more where a block has no more warps.
 * Few partials make small blocks, which all find room on the first multiprocessors that the product leaves
 * and wait there for its end; many make large ones, which spread over the GPU. */
static int count_segments(int64_t partials) {
    int segments = 4;
    while (segments < 32 && 8 * segments < partials)
        segments *= 2;
    return segments;
}

epi_status epi_emit_finish(epi_emit_context *c, const epi_step *gemm, epi_leave leave, epi_kernel_text *k,
                           int64_t *results_out, epi_error *err) {
    const epi_graph *g = c->spec->graph;
    const epi_plan *plan = gemm->plan;
    epi_axes axes;
    const epi_axes *group = &axes;
    if (!finish_axes(c, plan, leave, &axes))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a reduction down the rows of an axis that is taken apart");
    *results_out = epi_axes_size(&axes, c->spec->sizes);
    bool *in = epi_arena_alloc(c->arena, (size_t)g->node_count + 1);
    if (!in)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    int64_t m = epi_axes_size(&plan->rows, c->spec->sizes), n = epi_axes_size(&plan->cols, c->spec->sizes);
    int64_t blocks = plan->kind == EPI_KIND_ROWS ? c->partial_blocks
                     : leave == EPI_LEAVE_ROWS   ? epi_ceil_div(n, EPI_PARTIAL_COLS)
                                                 : epi_ceil_div(m, EPI_PARTIAL_ROWS);
    int segments = count_segments(blocks), fold = 0;
    *k = (epi_kernel_text){.block = 32 * segments};
    epi_text folds = {0}, ahead = {0}, body = {0};
    int pointer = epi_emit_pointer(k, 0, EPI_POINTER_WORKSPACE);
    for (int i = 0; i < g->node_count; i++) {
        if (plan->placement[i].leave != leave || c->partials[i] < 0)
            continue;
        in[i] = true;
        const epi_node *node = &g->nodes[i];
        int64_t count = *results_out;
        int64_t over = epi_axes_size(&node->over, c->spec->sizes);
        epi_name results;
        snprintf(results.text, sizeof results.text, leave == EPI_LEAVE_ROWS ? "P.M" : "%ldLL", (long)count);
        epi_text_add(
            &folds,
            "  float v%d;   // %s, line %d\n  {\n    %s f;\n    f.clear();\n    const i64 count = %s;\n"
            "    if (at < count) f = fold_segment<%s, %ld, %d>((const float *)P.ptr[%d] + %ldLL + at, "
            "threadIdx.x / 32, count, %ldLL * count);\n"
            "    f = fold_segments<%d>(f, room[%d]);\n    v%d = %s;\n  }\n",
            i, epi_ops[node->op].text, node->place.line, epi_emit_fold(node->op), results.text,
            epi_emit_fold(node->op), (long)blocks, segments, pointer, (long)(c->partials[i] / 4),
            (long)blocks, segments, fold++ & 1, i, epi_emit_fold_end(node->op, "f", over).text);
    }
    for (int i = 0; i < g->node_count; i++) {
        if (!in[i] && finishes(c, plan, i, group, in)) {
            const epi_node *node = &g->nodes[i];
            char arg[3][32];
            for (int a = 0; a < 3; a++)
                snprintf(arg[a], sizeof arg[a], "a%d_%d", a, i);
            for (int a = 0; a < epi_ops[node->op].arity; a++)
                put_operand(c, k, &ahead, &body, group, i, a, in);
            epi_text_add(&body, "    const float v%d = ", i);
            epi_emit_op(&body, node->op, arg[0], arg[1], arg[2]);
            epi_text_add(&body, ";   // %s, line %d\n", epi_emit_name(g, i).text, node->place.line);
            in[i] = true;
        }
    }
    for (int i = 0; i < g->node_count; i++)
        if (in[i])
            put_results(c, plan, k, &body, group, i, in);
    snprintf(k->name, sizeof k->name, "finish");
    begin(k, false, epi_emit_arch(c), "");
    epi_emit_params(k);
    epi_text_add(
        &k->source,
        "// 32 results a block; its warps share their partials in segments that depend on their number "
        "alone.\n"
        "extern \"C\" __global__ void __launch_bounds__(%d) finish(const __grid_constant__ Params P) {\n"
        "  __shared__ float room[2][%d];\n"
        "  const i64 first = (i64)blockIdx.x * 32, at = first + threadIdx.x %% 32, r = first + threadIdx.x / "
        "%d;\n"
        "  const bool mine = threadIdx.x %% %d == 0 && r < P.extra[0];\n"
        "  dependency_start();\n  dependency_wait();\n"
        "%s%s  if (mine) {\n%s  }\n}\n",
        k->block, 64 * segments + 64, segments, segments, ahead.data ? ahead.data : "",
        folds.data ? folds.data : "", body.data ? body.data : "");
    k->source.failed |= folds.failed || ahead.failed || body.failed;
    epi_text_free(&folds);
    epi_text_free(&ahead);
    epi_text_free(&body);
    return epi_emit_end(k, err);
}

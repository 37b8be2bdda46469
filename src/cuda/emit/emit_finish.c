/* emit_finish.c: writes the kernel that combines the partials of cross-tile reductions, and computes what
 * needs only their results. */
#include "cuda/emit/emit.h"

typedef struct finish {
    epi_emit_context *c;
    const epi_graph *g;
    const epi_plan *plan;
    epi_reduction reduction;
    epi_kernel_text *k;
    epi_text *out;    /* the kernel itself: what stands before it is written when all pointers are known */
    epi_axes axes;    /* of the results, in the order in which partials count them */
    bool turns;       /* of an axis that is split: the two parts of a column of the tile follow each other */
    int64_t results;  /* so many */
    int64_t partials; /* of each result: in this kernel's launches, */
    int64_t most;     /* and at most */
    bool of_rows;     /* a kernel over rows left them, not tiles */
    bool open;        /* the two differ, so the text asks the launch's parameter how many there are */
    int segments;     /* warps of a block, which share a result's partials */
    bool *in;         /* by node: the kernel computes it */
    int *places;      /* by node: the pointer to its partials */
} finish;

/* Can the finishing kernel of this direction compute the value? It has the direction's axes alone, and comes
 * from what the kernel has or can load. */
static bool finishes(const finish *f, int node) {
    const epi_placement *placement = f->plan->placement;
    const epi_node *n = &f->g->nodes[node];
    if (!placement[node].after || !epi_op_is_map(n->op) || n->axes.count != f->axes.count)
        return false;
    for (int i = 0; i < n->axes.count; i++)
        if (epi_axes_find(&f->axes, n->axes.at[i]) < 0)
            return false;
    for (int a = 0; a < epi_ops[n->op].arity; a++) {
        int arg = n->arg[a];
        bool after = placement[arg].after || placement[arg].reduction > EPI_REDUCE_LOCAL;
        if ((after && !f->in[arg]) || (f->turns && f->g->nodes[arg].op == EPI_OP_INDEX))
            return false;
    }
    return true;
}

/* Is the value needed by a pass that this kernel does not do? */
static bool needed_later(const finish *f, int node) {
    for (int i = 0; i < f->g->node_count; i++)
        for (int a = 0; a < 3; a++)
            if (f->plan->placement[i].after && !f->in[i] && f->g->nodes[i].arg[a] == node)
                return true;
    return false;
}

/* Is it a cross-tile reduction in this direction? */
static bool is_partial(const finish *f, int node) {
    return f->plan->placement[node].reduction == f->reduction && f->c->partials[node] >= 0;
}

/* Is it a mean that the partials of a variance give as well? */
static bool has_variance(const finish *f, int node) {
    return f->g->nodes[node].op == EPI_OP_MEAN &&
           epi_reduced_with(f->g, f->plan->placement, node, EPI_OP_VAR) != EPI_NO_NODE;
}

/* Finds the axes of the results; returns whether all reductions agree on them. */
static bool find_axes(finish *f) {
    const epi_plan *plan = f->plan;
    f->axes = f->reduction == EPI_REDUCE_ROWS ? plan->rows : plan->cols;
    if (f->reduction == EPI_REDUCE_ROWS || plan->split == EPI_OP_COUNT)
        return true;
    int at = epi_axes_find_dim(&f->axes, plan->fine.dim);
    bool first = true;
    for (int i = 0; i < f->g->node_count; i++) {
        if (!is_partial(f, i))
            continue;
        const epi_axes *axes = &f->g->nodes[i].axes;
        epi_axis own = axes->at[epi_axes_find_dim(axes, plan->fine.dim)];
        f->turns = own.shift == plan->fine.shift;
        if (!first && !epi_axis_equal(f->axes.at[at], own))
            return false;
        f->axes.at[at] = own;
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

/* Is the operand loaded? Others are computed here, known now, or positions. */
static bool is_loaded(const finish *f, int arg) {
    return !f->in[arg] && !epi_emit_is_number(f->c, arg) && f->g->nodes[arg].op != EPI_OP_INDEX;
}

/* Is the value stored at its home (t < 0) or in that output? */
static bool is_stored(const finish *f, int node, int t) {
    return f->in[node] && (t < 0 ? needed_later(f, node) : f->g->tensors[t].node == node);
}

/* ---- the text ---- */

#define PUT(...) epi_text_add(f->out, __VA_ARGS__)

/* Where the result `r` lies in a tensor. */
static const char *place_of(const finish *f, const epi_ref *ref) {
    if (f->turns) {
        epi_columns columns = epi_columns_of(f->plan, ref, f->c->spec->sizes, EPI_SCALE_FINE);
        return epi_emit_columns(f->c, &columns, "r");
    }
    epi_walk w = epi_walk_axes(ref, &f->axes, f->c->spec->sizes);
    return epi_emit_walk(f->c, &w, "r");
}

/* Operands from memory are loaded before the partials are folded, so that they are there when these are. */
static void put_loads(const finish *f) {
    for (int i = 0; i < f->g->node_count; i++)
        for (int a = 0; a < epi_ops[f->g->nodes[i].op].arity && f->in[i] && !is_partial(f, i); a++) {
            int arg = f->g->nodes[i].arg[a];
            if (!is_loaded(f, arg))
                continue;
            epi_ref ref = epi_emit_ref(f->c, arg, -1);
            PUT("  const float a%d_%d = mine ? %s : 0.f;\n", a, i,
                epi_emit_load(f->c, ref.type, epi_emit_pointer(f->k, arg, -1), place_of(f, &ref)));
        }
}

static void put_folds(const finish *f) {
    int room = 0;
    for (int i = 0; i < f->g->node_count; i++) {
        if (!is_partial(f, i) || has_variance(f, i))
            continue;
        const epi_node *n = &f->g->nodes[i];
        const char *fold = epi_ops[n->op].cuda;
        int mean =
            n->op == EPI_OP_VAR ? epi_reduced_with(f->g, f->plan->placement, i, EPI_OP_MEAN) : EPI_NO_NODE;
        const char *number = f->open ? "P.group" : epi_emit_text(f->c, "%ldLL", (long)f->partials);
        if (mean != EPI_NO_NODE)
            PUT("  float v%d;   // mean, line %d\n", mean, f->g->nodes[mean].place.line);
        PUT("  float v%d;   // %s, line %d\n  {\n    %s f;\n    f.clear();\n    const i64 count = %s;\n", i,
            epi_ops[n->op].text, n->place.line, fold,
            f->reduction == EPI_REDUCE_ROWS ? "P.M" : epi_emit_count(f->c, f->results, "LL"));
        if (f->open)
            PUT("    if (at < count) f = fold_some<%s>((int)%s, ", fold, number);
        else
            PUT("    if (at < count) f = fold_segment<%s, %ld, %d>(", fold, (long)f->partials, f->segments);
        PUT("(const float *)P.ptr[%d] + at, threadIdx.x / 32, count, %s * count);\n"
            "    f = fold_segments<%d>(f, room[%d]);\n    v%d = %s;\n",
            f->places[i], number, f->segments, room++ & 1, i,
            epi_emit_fold_end(f->c, n->op, "f", epi_axes_size(&n->over, f->c->spec->sizes)));
        if (mean != EPI_NO_NODE)
            PUT("    v%d = f.n > 0.f ? f.mean : v%d;\n", mean, i); /* of no elements both are NaN */
        PUT("  }\n");
    }
}

/* Words of the room in which warps exchange their folds: two for each, or three. */
static int room_words(const finish *f) {
    int words = 2;
    for (int i = 0; i < f->g->node_count; i++)
        if (is_partial(f, i) && epi_partial_words(f->g->nodes[i].op) > words)
            words = epi_partial_words(f->g->nodes[i].op);
    return words * 32 * (f->segments + 1);
}

/* A value that comes from the results. */
static void put_map(const finish *f, int node) {
    const epi_node *n = &f->g->nodes[node];
    const char *name[3] = {"", "", ""};
    for (int a = 0; a < epi_ops[n->op].arity; a++) {
        int arg = n->arg[a];
        name[a] = epi_emit_text(f->c, "a%d_%d", a, node);
        if (is_loaded(f, arg))
            continue;
        const char *value = "";
        if (f->in[arg])
            value = epi_emit_text(f->c, "v%d", arg);
        else if (epi_emit_is_number(f->c, arg))
            value = epi_emit_node_number(f->c, arg);
        else
            value = epi_emit_text(
                f->c, "(float)(%s)",
                epi_emit_digit(f->c, &f->axes, epi_axes_find(&f->axes, f->g->nodes[arg].over.at[0]), "r"));
        PUT("    const float %s = %s;\n", name[a], value);
    }
    PUT("    const float v%d = %s;   // %s, line %d\n", node, epi_emit_op(f->c, n->op, name),
        epi_emit_name(f->c, node), n->place.line);
}

static void put_store(const finish *f, int node, int tensor) {
    epi_ref ref = epi_emit_ref(f->c, node, tensor);
    PUT("    store<%s>((void *)P.ptr[%d], %s, v%d);   // %s\n", epi_emit_type(ref.type),
        epi_emit_pointer(f->k, node, tensor), place_of(f, &ref), node, epi_emit_name(f->c, node));
}

static void put_kernel(const finish *f) {
    const epi_graph *g = f->g;
    PUT("// 32 results a block; its warps share their partials in segments that depend on their number "
        "alone.\n"
        "extern \"C\" __global__ void __launch_bounds__(%d) finish(const __grid_constant__ Params P) {\n"
        "  __shared__ float room[2][%d];\n"
        "  const i64 first = (i64)blockIdx.x * 32, at = first + threadIdx.x %% 32, r = first + threadIdx.x / "
        "%d;\n"
        "  const bool mine = threadIdx.x %% %d == 0 && r < P.extra[0];\n"
        "  dependency_start();\n  dependency_wait();\n",
        f->k->block, room_words(f), f->segments, f->segments);
    put_loads(f);
    put_folds(f);
    PUT("  if (mine) {\n");
    for (int i = 0; i < g->node_count; i++)
        if (f->in[i] && !is_partial(f, i))
            put_map(f, i);
    for (int i = 0; i < g->node_count; i++)
        for (int t = -1; t < g->tensor_count; t++)
            if ((t < 0 || t >= g->input_count) && is_stored(f, i, t))
                put_store(f, i, t);
    PUT("  }\n}\n");
}

/* What other kernels need not do. */
static void note_done(const finish *f) {
    for (int i = 0; i < f->g->node_count; i++)
        f->c->finished[i] |= f->in[i];
    for (int t = f->g->input_count; t < f->g->tensor_count; t++)
        f->c->stored[t] |= f->in[f->g->tensors[t].node];
}

/* How many partials a result has, with these sizes. */
static int64_t count_partials(const finish *f, const int64_t *sizes, int64_t of_rows) {
    if (f->of_rows)
        return of_rows;
    return f->reduction == EPI_REDUCE_ROWS
               ? epi_ceil_div(epi_axes_size(&f->plan->cols, sizes), EPI_PARTIAL_COLS)
               : epi_ceil_div(epi_axes_size(&f->plan->rows, sizes), EPI_PARTIAL_ROWS);
}

epi_status epi_emit_finish(epi_emit_context *c, const epi_step *step, epi_reduction reduction,
                           epi_kernel_text *k, int64_t *results, int64_t *partials, epi_error *err) {
    epi_text own = {0};
    finish f = {.c = c, .g = c->spec->graph, .plan = step->plan, .reduction = reduction, .k = k, .out = &own};
    const epi_open *open = c->spec->open;
    *k = (epi_kernel_text){.name = "finish"};
    if (!find_axes(&f))
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "reductions down the rows of an axis that is split, and of its halves");
    f.results = epi_axes_size(&f.axes, c->spec->sizes);
    *results = epi_axes_size(&f.axes, c->sizes);
    f.in = epi_arena_alloc(c->arena, (size_t)f.g->node_count + 1);
    f.places = epi_arena_alloc(c->arena, ((size_t)f.g->node_count + 1) * sizeof *f.places);
    EPI_TRY(epi_has_memory(f.in && f.places, err));
    const epi_axes *over = reduction == EPI_REDUCE_ROWS ? &f.plan->cols : &f.plan->rows;
    f.of_rows = f.plan->kind == EPI_KIND_ROWS;
    f.open = f.of_rows ? c->partials_open : epi_emit_grows(c, epi_axes_size(over, c->spec->sizes));
    *partials = f.partials = count_partials(&f, c->sizes, c->partial_blocks);
    f.most = f.open ? count_partials(&f, open->largest, c->partial_blocks_most) : f.partials;
    f.segments = count_segments(f.most);
    k->block = 32 * f.segments;
    for (int i = 0; i < f.g->node_count; i++) {
        f.in[i] = is_partial(&f, i) || finishes(&f, i);
        if (is_partial(&f, i) && !has_variance(&f, i))
            f.places[i] = epi_emit_place(k, c->partials[i]);
    }
    put_kernel(&f);
    note_done(&f);
    epi_emit_begin(c, k, "");
    epi_text_add(&k->source, "%s", own.data ? own.data : "");
    k->source.failed |= own.failed;
    epi_text_free(&own);
    return epi_emit_end(k, err);
}

/* bind.c: a program and the caller's options become a spec: every axis has a size, every tensor a type. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "base/parallel.h"
#include "ir/index.h"
#include "run/run.h"

static epi_status no_axis(const epi_graph *g, const char *name, epi_error *err) {
    epi_nearest near = {.wanted = name};
    for (int i = 0; i < g->declared_count; i++)
        epi_nearest_offer(&near, g->dims[i]);
    return epi_fail(err, EPI_ERR_DIMS, "the program has no axis '%.60s'%s", name,
                    epi_nearest_hint(&near, "it has"));
}

static int find_dim(const epi_graph *g, const char *name) {
    int dim = 0;
    while (dim < g->declared_count && strcmp(g->dims[dim], name) != 0)
        dim++;
    return dim;
}

static bool is_of_integers(const epi_tensor_decl *t) {
    return t->has_type && epi_dtype_is_integer(t->type);
}

epi_axes epi_rows_of(const epi_graph *g) {
    const epi_tensor_decl *of = g->tensors, *end = of + g->input_count, *cotangent = of;
    epi_axes rows = {0};
    while (cotangent < end && !(cotangent->cotangent && cotangent->axes.count))
        cotangent++;
    while (cotangent < end && of < end &&
           !((of->axes.count > 1 || is_of_integers(of)) &&
             epi_axes_find_dim(&of->axes, cotangent->axes.at[0].dim) >= 0))
        of++;
    for (int i = 0; of < end && i + !is_of_integers(of) < of->axes.count; i++)
        if (cotangent == end || epi_axes_find_dim(&cotangent->axes, of->axes.at[i].dim) >= 0)
            rows.at[rows.count++] = of->axes.at[i];
    return rows;
}

/* Marks what marked axes are renamed to. */
static void mark_renamed(const epi_graph *g, bool *marked) {
    for (bool again = true; again;) {
        epi_axis from, to;
        again = false;
        for (int at = 0; epi_graph_next_pair(g, &at, &from, &to);)
            if (marked[from.dim] && !marked[to.dim])
                again = marked[to.dim] = true;
    }
}

/* The axes that count rows: those that are named, else those of epi_rows_of. */
static epi_status bind_rows(const epi_graph *g, const epi_options *o, bool *is_row, epi_error *err) {
    const epi_axes rows = epi_rows_of(g);
    for (int i = 0; !o->row_axes && i < rows.count; i++)
        is_row[rows.at[i].dim] = true;
    for (int i = 0; o->row_axes && i < o->row_axis_count; i++) {
        if (!o->row_axes[i])
            return epi_fail(err, EPI_ERR_ARGUMENT, "row axis %d has no name", i);
        int dim = find_dim(g, o->row_axes[i]);
        if (dim == g->declared_count)
            return no_axis(g, o->row_axes[i], err);
        is_row[dim] = true;
    }
    mark_renamed(g, is_row);
    return EPI_OK;
}

/* The axes that are open: those that are named, and what they are renamed to. They count rows. */
static epi_status bind_open(const epi_graph *g, const epi_options *o, bool *is_open, bool *is_row,
                            epi_error *err) {
    for (int i = 0; i < o->open_axis_count; i++) {
        if (!o->open_axes[i])
            return epi_fail(err, EPI_ERR_ARGUMENT, "open axis %d has no name", i);
        int dim = find_dim(g, o->open_axes[i]);
        if (dim == g->declared_count)
            return no_axis(g, o->open_axes[i], err);
        if (g->fixed[dim])
            return epi_fail(err, EPI_ERR_DIMS,
                            "the axis '%s' has %ld elements in the program, so it cannot be open",
                            o->open_axes[i], (long)g->fixed[dim]);
        if (is_open[dim])
            return epi_fail(err, EPI_ERR_ARGUMENT, "the axis '%s' is open twice", o->open_axes[i]);
        is_open[dim] = is_row[dim] = true;
    }
    epi_axis from, to;
    mark_renamed(g, is_open);
    mark_renamed(g, is_row);
    for (int at = 0; epi_graph_next_pair(g, &at, &from, &to);)
        if (is_open[to.dim] && !is_open[from.dim])
            return epi_fail(err, EPI_ERR_DIMS, "the axis '%s' is a rename of '%s': open that axis instead",
                            g->dims[to.dim], g->dims[from.dim]);
    return EPI_OK;
}

/* What open axes are renamed to has their size, whatever it was bound to where they had their largest. */
static void follow_open(const epi_graph *g, const bool *is_open, int64_t *sizes) {
    epi_axis from, to;
    for (int at = 0; epi_graph_next_pair(g, &at, &from, &to);)
        if (is_open[from.dim] && to.shift == 0)
            sizes[to.dim] = epi_axis_size(from, sizes);
}

/* Stand-ins for open sizes, which a GPU's texts are written with. */
static epi_status bind_stand_ins(epi_arena *arena, const epi_graph *g, const bool *is_open,
                                 const epi_spec *largest, epi_spec *spec, epi_error *err) {
    epi_open *open = epi_arena_alloc(arena, sizeof *open);
    EPI_TRY(epi_has_memory(open, err));
    if (!epi_open_make(g, is_open, spec->sizes, (largest ? largest : spec)->sizes, open))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "at most %d axes may be open", EPI_MAX_OPEN);
    spec->open = open;
    return EPI_OK;
}

/* Names the axis, and what else is missing. */
static epi_status fail_missing(const epi_graph *g, int first, const int64_t *sizes, epi_error *err) {
    epi_text more = {0}, remedy = {0};
    for (int dim = first; dim < g->declared_count; dim++)
        if (sizes[dim] < 0) {
            epi_text_add(&remedy, "%s%s=...", dim > first ? "," : "; give dims ", g->dims[dim]);
            if (dim > first)
                epi_text_add(&more, "%s%s", more.length ? ", " : ", nor were ", g->dims[dim]);
        }
    epi_status status = epi_fail(err, EPI_ERR_DIMS, "the size of axis '%s' was not given%.250s%.300s",
                                 g->dims[first], more.data ? more.data : "", remedy.data ? remedy.data : "");
    epi_text_free(&more);
    epi_text_free(&remedy);
    return status;
}

/* An output may have an axis that is one renamed; -1 where that is not countable. */
static void follow_renames(const epi_graph *g, int64_t *sizes) {
    epi_axis from, to;
    for (int at = 0; epi_graph_next_pair(g, &at, &from, &to);)
        if (to.shift == 0 && sizes[to.dim] < 0 && sizes[from.dim] >= 0)
            sizes[to.dim] = epi_axis_size(from, sizes);
}

static epi_status bind_dims(const epi_graph *g, const epi_options *o, int64_t *sizes, epi_error *err) {
    for (int dim = 0; dim < g->declared_count; dim++)
        if (g->fixed[dim])
            sizes[dim] = g->fixed[dim];
    for (int i = 0; i < o->dim_count; i++) {
        const char *name = o->dims[i].name;
        if (!name)
            return epi_fail(err, EPI_ERR_ARGUMENT, "dim %d has no name", i);
        int dim = find_dim(g, name);
        if (dim == g->declared_count)
            return no_axis(g, name, err);
        if (o->dims[i].size < 0)
            return epi_fail(err, EPI_ERR_DIMS, "the size of axis '%s' is negative", name);
        if (g->fixed[dim] && g->fixed[dim] != o->dims[i].size)
            return epi_fail(err, EPI_ERR_DIMS, "the program declares axis '%s' with %ld elements, not %ld",
                            name, (long)g->fixed[dim], (long)o->dims[i].size);
        if (sizes[dim] >= 0 && sizes[dim] != o->dims[i].size)
            return epi_fail(err, EPI_ERR_DIMS, "axis '%s' is given two sizes, %ld and %ld", name,
                            (long)sizes[dim], (long)o->dims[i].size);
        sizes[dim] = o->dims[i].size;
    }
    follow_renames(g, sizes);
    for (int dim = 0; dim < g->declared_count; dim++)
        if (sizes[dim] < 0)
            return fail_missing(g, dim, sizes, err);
    return EPI_OK;
}

/* Points the error at the operation whose axis does not come out. */
static epi_status fail_node(const epi_program *p, int node, epi_error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static epi_status fail_node(const epi_program *p, int node, epi_error *err, const char *fmt, ...) {
    char message[sizeof err->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    epi_fail(err, EPI_ERR_DIMS, "%s", message);
    if (err) {
        err->line = p->graph.nodes[node].place.line;
        err->column = p->graph.nodes[node].place.column;
        epi_ast_locate(&p->module->text, err);
    }
    return EPI_ERR_DIMS;
}

/* Are the sizes of all these axes known? */
static bool are_known(const epi_axes *axes, const int64_t *sizes) {
    bool known = true;
    for (int i = 0; i < axes->count; i++)
        known &= sizes[axes->at[i].dim] >= 0;
    return known;
}

/* As many as there are, and as few as a thread keeps in order. */
static epi_status check_largest(const epi_program *p, int node, const int64_t *sizes, epi_error *err) {
    enum { MOST_TAKEN = 64 };
    const epi_graph *g = &p->graph;
    const epi_node *n = &g->nodes[node];
    int64_t of = epi_axis_size(n->over.at[0], sizes), taken = epi_axis_size(n->over.at[1], sizes);
    if (taken > of)
        return fail_node(p, node, err, "topk takes %ld elements along %s, which has only %ld", (long)taken,
                         epi_axis_label(g, n->over.at[0]).text, (long)of);
    if (of > INT32_MAX)
        return fail_node(p, node, err,
                         "topk along %s, which has %ld elements: positions are i32, at most %ld",
                         epi_axis_label(g, n->over.at[0]).text, (long)of, (long)INT32_MAX);
    return taken <= MOST_TAKEN ? EPI_OK
                               : fail_node(p, node, err, "topk takes at most %d elements, but %s has %ld",
                                           MOST_TAKEN, epi_axis_label(g, n->over.at[1]).text, (long)taken);
}

/* Places are made as numbers of f32, which has all integers up to 2^24. */
static epi_status check_order(const epi_program *p, int node, const int64_t *sizes, epi_error *err) {
    enum { MOST_PLACES = 1 << 24 };
    const epi_graph *g = &p->graph;
    const epi_node *n = &g->nodes[node];
    const epi_axes *axes = &g->nodes[n->op == EPI_OP_OFFSETS ? n->arg[0] : node].axes;
    int64_t count = epi_axes_size(axes, sizes);
    int64_t values = epi_axis_size(n->over.at[0], sizes);
    if (values > MOST_PLACES && epi_op_index(n->op) >= 0)
        return fail_node(
            p, node, err, "%s by indices of %s, which has %ld elements: there may be at most %ld",
            epi_ops[n->op].text, epi_axis_label(g, n->over.at[0]).text, (long)values, (long)MOST_PLACES);
    return count <= MOST_PLACES ? EPI_OK
                                : fail_node(p, node, err, "%s of %ld elements: it can order at most %ld",
                                            epi_ops[n->op].text, (long)count, (long)MOST_PLACES);
}

/* Positions along an axis that name places on a shorter one: some of them name nothing. And numbers that name
 * nothing. */
static epi_status check_positions(const epi_program *p, const int64_t *sizes, epi_error *err) {
    const epi_graph *g = &p->graph;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        int64_t at, size = n->over.count ? epi_axis_size(n->over.at[0], sizes) : 0;
        if (!are_known(&n->over, sizes) ||
            (epi_op_index(n->op) >= 0 && !are_known(&epi_index_of(g, n)->axes, sizes)))
            continue;
        if (epi_ops[n->op].cls == EPI_CLASS_SORT)
            EPI_TRY(n->op == EPI_OP_TOPK ? check_largest(p, i, sizes, err) : check_order(p, i, sizes, err));
        if (epi_graph_at_number(g, i, &at) && at >= size)
            return fail_node(p, i, err, "the number %ld is outside the axis %s, which has %ld elements",
                             (long)at, epi_axis_label(g, n->over.at[0]).text, (long)size);
        if (epi_op_index(n->op) < 0)
            continue;
        epi_axes to = epi_index_along(g, n);
        epi_label why;
        if (epi_op_by_index(n->op) && epi_graph_misses(g, n->arg[1], &to, sizes, &why))
            return fail_node(p, i, err, "%s", why.text);
        if (epi_index_of(g, n)->op != EPI_OP_INDEX)
            continue;
        epi_axis from = epi_index_of(g, n)->over.at[0];
        int64_t have = epi_axes_size(&to, sizes), want = epi_axis_size(from, sizes);
        if (want > have)
            return fail_node(p, i, err, "index(%s) counts to %ld, but %s has %ld elements",
                             epi_axis_label(g, from).text, (long)want - 1, epi_along_label(g, &to).text,
                             (long)have);
    }
    return EPI_OK;
}

/* An axis that is renamed to one of the program's has its size. */
static epi_status check_renames(const epi_program *p, const int64_t *sizes, epi_error *err) {
    const epi_graph *g = &p->graph;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (n->op != EPI_OP_RENAME)
            continue;
        int64_t from = epi_axis_size(n->over.at[0], sizes), to = epi_axis_size(n->over.at[1], sizes);
        if (are_known(&n->over, sizes) && from != to) {
            epi_label one = epi_axis_label(g, n->over.at[0]), other = epi_axis_label(g, n->over.at[1]);
            return fail_node(p, i, err, "rename of %s to %s: %s has %ld elements, but %s has %ld", one.text,
                             other.text, one.text, (long)from, other.text, (long)to);
        }
    }
    return EPI_OK;
}

/* Every axis must have a whole number of elements, and every value a countable one. */
static epi_status check_axes(const epi_program *p, const int64_t *sizes, epi_error *err) {
    const epi_graph *g = &p->graph;
    for (int i = 0; i < g->node_count; i++) {
        const epi_axes *lists[2] = {&g->nodes[i].axes, &g->nodes[i].over};
        for (int l = 0; l < 2; l++)
            for (int j = 0; j < lists[l]->count; j++) {
                epi_axis a = lists[l]->at[j];
                if (sizes[a.dim] < 0 || epi_axis_size(a, sizes) >= 0)
                    continue;
                if (a.shift < 0)
                    return fail_node(p, i, err, "%s needs %s to be divisible by %ld, but it is %ld",
                                     epi_axis_label(g, a).text, g->dims[a.dim], 1L << -a.shift,
                                     (long)sizes[a.dim]);
                return fail_node(p, i, err, "the size of %s overflows 64 bits", epi_axis_label(g, a).text);
            }
        if (are_known(&g->nodes[i].axes, sizes) && epi_axes_size(&g->nodes[i].axes, sizes) < 0)
            return fail_node(p, i, err, "the size of %s overflows 64 bits", epi_node_label(g, i).text);
    }
    return EPI_OK;
}

/* Do the sizes that are known fit? */
static epi_status check_sizes(const epi_program *p, const int64_t *sizes, epi_error *err) {
    EPI_TRY(check_axes(p, sizes, err));
    EPI_TRY(check_renames(p, sizes, err));
    return check_positions(p, sizes, err);
}

epi_status epi_sizes_check(const epi_program *p, epi_error *err) {
    int64_t sizes[EPI_MAX_DIMS];
    for (int i = 0; i < EPI_MAX_DIMS; i++)
        sizes[i] = i < p->graph.declared_count && p->graph.fixed[i] ? p->graph.fixed[i] : -1;
    follow_renames(&p->graph, sizes);
    return check_sizes(p, sizes, err);
}

epi_status epi_types_bind(const epi_graph *g, const epi_options *o, epi_dtype *types, epi_error *err) {
    if (!epi_dtype_is_operand(o->type) && o->type != EPI_F64)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the storage type must be f32, bf16, f16 or f64");
    for (int t = 0; t < g->tensor_count; t++) {
        const epi_tensor_decl *d = &g->tensors[t];
        types[t] = d->has_type ? d->type : d->axes.count ? o->type : EPI_F32;
    }
    for (int i = 0; i < o->type_count; i++) {
        int t = 0;
        epi_nearest near = {.wanted = o->types[i].tensor ? o->types[i].tensor : ""};
        for (; t < g->tensor_count && strcmp(g->tensors[t].name, near.wanted) != 0; t++)
            epi_nearest_offer(&near, g->tensors[t].name);
        if (t == g->tensor_count)
            return epi_fail(err, EPI_ERR_ARGUMENT, "the program has no tensor '%.60s'%s", near.wanted,
                            epi_nearest_hint(&near, "it has"));
        if ((unsigned)o->types[i].type >= EPI_DTYPE_COUNT)
            return epi_fail(err, EPI_ERR_ARGUMENT, "the type of '%s' is unknown", o->types[i].tensor);
        types[t] = o->types[i].type;
    }
    return EPI_OK;
}

/* What is neither a size nor a type. */
static epi_status check_options(const epi_context *ctx, const epi_options *o, epi_error *err) {
    if (o->device >= epi_device_count(ctx) || (o->device < 0 && o->device > -70) || o->device < -999)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "there is no device %d%s%s", o->device,
                        ctx->cuda.why[0] ? ": " : "", ctx->cuda.why);
    if (o->threads < 0 || o->threads > EPI_MAX_THREADS)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the number of threads must be between 1 and %d",
                        EPI_MAX_THREADS);
    if ((unsigned)o->path > EPI_PATH_REFERENCE)
        return epi_fail(err, EPI_ERR_ARGUMENT, "unknown path %d", (int)o->path);
    if (o->perturb != 0 && (o->path != EPI_PATH_REFERENCE || !(fabs(o->perturb) < 1)))
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "perturb works only with the reference path, and must be below 1");
    if ((unsigned)o->rounding > EPI_ROUND_EXACT)
        return epi_fail(err, EPI_ERR_ARGUMENT, "unknown rounding %d", (int)o->rounding);
    if ((unsigned)o->algebra > EPI_ALGEBRA_WRITTEN)
        return epi_fail(err, EPI_ERR_ARGUMENT, "unknown algebra %d", (int)o->algebra);
    if (o->device && o->path > EPI_PATH_UNFUSED)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the naive and reference paths run on the CPU");
    if (o->device ? o->micro != NULL : o->config != NULL)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        o->device ? "a micro-kernel ('%s') is for the CPU; for a GPU, set `config`"
                                  : "a configuration ('%s') is for GPUs; for the CPU, set `micro`",
                        o->device ? o->micro : o->config);
    return EPI_OK;
}

epi_status epi_spec_bind(epi_arena *arena, const epi_program *program, const epi_options *o,
                         const epi_spec *largest, epi_spec *spec, epi_error *err) {
    const epi_graph *g = &program->graph;
    const epi_context *ctx = program->module->context;
    *spec = (epi_spec){.graph = g,
                       .path = o->path,
                       .perturb = o->perturb,
                       .perturb_seed = o->perturb_seed,
                       .type = o->type == EPI_F64 ? EPI_F32 : o->type,
                       .threads = o->threads ? o->threads : ctx->cpu_threads};
    spec->types = epi_arena_alloc(arena, (size_t)(g->tensor_count + 1) * sizeof *spec->types);
    if (o->micro)
        spec->micro = epi_arena_text(arena, o->micro, strlen(o->micro));
    EPI_TRY(epi_has_memory(!arena->failed, err));
    for (int i = 0; i < EPI_MAX_DIMS; i++)
        spec->sizes[i] = -1;
    EPI_TRY(bind_dims(g, o, spec->sizes, err));
    EPI_TRY(bind_rows(g, o, spec->is_row, err));
    EPI_TRY(bind_open(g, o, spec->is_open, spec->is_row, err));
    if (largest)
        follow_open(g, spec->is_open, spec->sizes);
    EPI_TRY(check_sizes(program, spec->sizes, err));
    EPI_TRY(epi_types_bind(g, o, spec->types, err));
    EPI_TRY(check_options(ctx, o, err));
    return o->open_axis_count && o->device ? bind_stand_ins(arena, g, spec->is_open, largest, spec, err)
                                           : EPI_OK;
}

/* memory.c: keeps the workspace within the memory budget of the options.
 *
 * If a kernel needs more, its parts run on slabs of a row axis (pass/schedule/slabs.c), each with as many
 * rows as the budget allows. To find the memory that a slab needs, the parts are planned for it. On a GPU
 * kernels are compiled once the number of rows is known. */
#include "run/run.h"

/* A slab has a multiple of so many rows, all row axes counted: a GPU's tiles are as high. So where slabs
 * begin, and with it how sums over rows are added up, follows from the sizes and the budget alone. */
enum { GRAIN = 128 };

static int64_t grain_of(const epi_kernel *k, int dim) {
    const epi_axes axes = epi_rows_of(&k->program->graph);
    int64_t others = 1, grain = 1;
    for (int i = epi_axes_find_dim(&axes, dim) + 1; i > 0 && i < axes.count; i++)
        if (k->spec.is_row[axes.at[i].dim])
            others *= epi_max64(1, epi_axis_size(axes.at[i], k->spec.sizes));
    while (grain * others < GRAIN)
        grain *= 2;
    return grain;
}

/* Are all sums over slabs that a product adds to added up in place? */
static bool adds_in_place(const epi_kernel *k) {
    for (int i = 0; i < k->part_count; i++) {
        const epi_part *p = k->parts[i].part;
        for (int t = p->graph.input_count; t < p->graph.tensor_count && p->loop >= 0; t++)
            for (int u = 0; u < p->graph.input_count; u++)
                if (p->tensors[t].tensor == p->tensors[u].tensor &&
                    (p->tensors[t].tensor >= 0 || p->tensors[t].value == p->tensors[u].value) &&
                    !epi_part_in_place(&k->parts[i], t, u))
                    return false;
    }
    return true;
}

/* The kernel with slabs of so many rows. */
static epi_status make(epi_kernel *k, const epi_options *o, const epi_cut *from, epi_slab_plan *plan,
                       epi_error *err) {
    for (int separate = 0; separate < 2; separate++) {
        plan->separate_sums = separate;
        epi_parts_free(k);
        EPI_TRY(epi_cut_slabs(&k->arena, &k->spec, &k->limits, from, plan, &k->cut, err));
        if (!k->cut.loop_count)
            return EPI_OK;
        EPI_TRY(epi_parts_compile(k, o, err));
        if (adds_in_place(k))
            return EPI_OK;
    }
    return EPI_OK;
}

/* What that would need, in bytes; 0: there is nothing to loop over. It is planned beside the kernel, and
 * forgotten. */
static epi_status measure(epi_kernel *k, const epi_options *o, const epi_cut *from, epi_slab_plan *plan,
                          size_t *bytes, epi_error *err) {
    epi_arena kept = k->arena;
    k->arena = (epi_arena){0};
    k->draft = true;
    epi_status status = make(k, o, from, plan, err);
    *bytes = status == EPI_OK && k->cut.loop_count ? epi_kernel_workspace(k) : 0;
    epi_parts_free(k);
    epi_arena_free(&k->arena);
    k->arena = kept;
    k->draft = false;
    return status;
}

/* The most grains that a slab may have; 0: not even one fits. *least is what one needs, if that is less. */
static epi_status find_rows(epi_kernel *k, const epi_options *o, const epi_cut *from, epi_slab_plan *plan,
                            int64_t *grains, size_t *least, epi_error *err) {
    int64_t size = k->spec.sizes[plan->dim], too_many = (size + plan->grain - 1) / plan->grain;
    size_t bytes;
    *grains = 0;
    if (too_many < 2)
        return EPI_OK;
    plan->rows = plan->grain;
    EPI_TRY(measure(k, o, from, plan, &bytes, err));
    if (!bytes)
        return EPI_OK;
    *least = bytes < *least ? bytes : *least;
    for (*grains = bytes <= o->memory; *grains && too_many - *grains > 1;) {
        int64_t middle = *grains + (too_many - *grains) / 2;
        plan->rows = middle * plan->grain;
        EPI_TRY(measure(k, o, from, plan, &bytes, err));
        *(bytes <= o->memory ? grains : &too_many) = middle;
    }
    return EPI_OK;
}

/* Slabs as long as they may be; of equal length where that takes no more than twice as many, so that one
 * kernel serves them all; else of about the same. */
static int64_t choose_rows(int64_t size, int64_t grain, int64_t grains) {
    for (int64_t n = grains; 2 * n > grains; n--)
        if (size % (n * grain) == 0)
            return n * grain;
    int64_t slabs = (size + grains * grain - 1) / (grains * grain);
    return epi_round_up((size + slabs - 1) / slabs, grain);
}

/* What puts rows into an order among all of them, as rows that choose their weight are sorted; or EPI_NO_NODE. */
static int find_order(const epi_kernel *k) {
    const epi_graph *g = k->spec.graph;
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_op_orders(g->nodes[i].op) &&
            epi_spec_has_rows(&k->spec, &g->nodes[g->nodes[i].arg[0]].axes))
            return i;
    return EPI_NO_NODE;
}

static epi_status fail(const epi_kernel *k, size_t budget, size_t least, size_t whole, epi_error *err) {
    const char *name = k->program->ast->name;
    int order = find_order(k);
    if (least < whole)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "a workspace of %zu bytes is too small: %s needs %zu, and %zu without a budget",
                        budget, name, least, whole);
    if (order == EPI_NO_NODE)
        return epi_fail(
            err, EPI_ERR_UNSUPPORTED,
            "a workspace of %zu bytes is too small: %s needs %zu, and chunks of rows do not need less",
            budget, name, least);
    return epi_fail(err, EPI_ERR_UNSUPPORTED,
                    "a workspace of %zu bytes is too small: %s needs %zu; its rows are sorted by %s, all of "
                    "them at once, so they cannot run in chunks: give it fewer rows in a call",
                    budget, name, least,
                    epi_node_label(k->spec.graph, k->spec.graph->nodes[order].arg[0]).text);
}

epi_status epi_memory_fit(epi_kernel *k, const epi_options *o, epi_error *err) {
    const epi_cut from = k->cut;
    size_t whole = epi_kernel_workspace(k), least = k->workspace_whole, bytes = whole;
    for (int dim = 0; dim < k->spec.graph->declared_count && bytes > o->memory; dim++) {
        epi_slab_plan plan = {.dim = dim, .aligned = k->limits.aligned};
        int64_t grains;
        if (!k->spec.is_row[dim] || !from.part_count)
            continue;
        plan.grain = grain_of(k, dim);
        EPI_TRY(find_rows(k, o, &from, &plan, &grains, &least, err));
        for (; grains && bytes > o->memory; grains--) {
            plan.rows = choose_rows(k->spec.sizes[dim], plan.grain, grains);
            EPI_TRY(make(k, o, &from, &plan, err));
            bytes = epi_kernel_workspace(k); /* the compiler may have refused what was planned with */
            grains = plan.rows / plan.grain;
        }
    }
    if (bytes > o->memory)
        return fail(k, o->memory, least, k->workspace_whole, err);
    if (!k->gpu || bytes != whole || k->cut.loop_count)
        return EPI_OK;
    epi_parts_free(k);
    return epi_parts_compile(k, o, err); /* what was only planned */
}

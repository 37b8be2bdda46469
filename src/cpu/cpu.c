/* cpu.c: runs the steps of a program on this machine's cores. */
#include "cpu/cpu.h"

#include <string.h>

/* ---- compile ---- */

/* Builds the mainloops; fails with EPI_ERR_UNSUPPORTED where a tile cannot hold what is asked of it. */
static epi_status build_mainloops(epi_cpu_kernel *k, epi_error *err) {
    epi_status status = EPI_OK;
    k->loop = NULL;
    k->partials = 0;
    k->info = (epi_kernel_info){.micro = ""};
    k->scratch_bytes = epi_pass_scratch(k->spec.threads);
    for (int i = 0; i < k->steps.count && status == EPI_OK; i++)
        status = epi_cpu_mainloops[epi_step_kind(&k->steps.at[i])].build(k, &k->steps.at[i], err);
    return status;
}

epi_backend_limits epi_cpu_limits(void) {
    return (epi_backend_limits){.shifts = true,
                                .local_most = 256,
                                .local_multiple = 1,
                                .full_row_most = 256,
                                .row_columns = 1,
                                .pairs = true,
                                .groups = true,
                                .dequants = true,
                                .pieces = true,
                                .scans = true,
                                .scan_folds = true,
                                .scan_last = true,
                                .aligned = 1,
                                .tensors = 64, /* streams that a core walks along at once */
                                .attention_most = 256,
                                .narrow_stream = true,
                                .attention_multiple = 1,
                                .recurrence_most = 1 << 16,
                                .recurrence_product = INT32_MAX,
                                .recurrence_sums = true,
                                .row_sums = true,
                                .reads_loaded_tile = true,
                                .halves = true};
}

epi_status epi_cpu_compile(epi_arena *arena, const epi_spec *spec, epi_cpu_kernel **out, epi_error *err) {
    const epi_graph *g = spec->graph;
    epi_cpu_kernel *k = epi_arena_alloc(arena, sizeof *k);
    EPI_TRY(epi_has_memory(k, err));
    *k =
        (epi_cpu_kernel){.arena = arena, .spec = *spec, .strips = epi_strips_choose(), .info = {.micro = ""}};
    EPI_TRY(epi_steps_begin(arena, &k->spec, &k->steps, err));
    *out = k;
    if (spec->path == EPI_PATH_REFERENCE || spec->path == EPI_PATH_NAIVE) {
        k->integers = epi_integers_find(arena, spec);
        EPI_TRY(epi_has_memory(k->integers, err));
        k->scratch = k->workspace = epi_reference_workspace(k);
        epi_reserve(&k->workspace, g->tensor_count, (int64_t)sizeof(epi_ref));
        return k->workspace < 0 ? epi_fail(err, EPI_ERR_MEMORY, "the workspace overflows 64 bits") : EPI_OK;
    }
    epi_status status = epi_steps_make(arena, &k->steps, err);
    if (status == EPI_OK)
        status = build_mainloops(k, err);
    if (status == EPI_ERR_UNSUPPORTED && k->steps.count) { /* right, but not for a tile */
        epi_error why = {0};
        if (err)
            why = *err;
        epi_error_clear(err);
        status = epi_steps_refuse(arena, &k->steps, why.message, err);
        if (status == EPI_OK)
            status = build_mainloops(k, err);
    }
    if (status != EPI_OK)
        return status;
    k->scratch = k->steps.workspace + (g->node_count + 1 + g->tensor_count) * (int64_t)sizeof(epi_ref);
    k->scratch = epi_round_up(k->scratch, 64);
    k->workspace = k->scratch + k->scratch_bytes;
    return EPI_OK;
}

/* ---- run ---- */

epi_ref epi_cpu_tensor(const epi_spec *spec, int t, const epi_tensor *given) {
    static _Alignas(8) unsigned char nothing[8]; /* where a tensor without elements lies, if it is NULL */
    epi_ref r = {.data = given->data ? given->data : nothing,
                 .type = spec->types[t],
                 .axes = spec->graph->tensors[t].axes};
    if (given->strides)
        memcpy(r.strides, given->strides, (size_t)r.axes.count * sizeof *r.strides);
    else
        epi_ref_contiguous(&r, spec->sizes);
    return r;
}

/* The workspace, and outputs that lie together and take no input's place, have nothing in them yet. */
static void mark_unwritten(const epi_cpu_kernel *k, const epi_tensor *given, unsigned char *workspace) {
#ifdef EPI_HAS_MSAN
    const epi_graph *g = k->spec.graph;
    EPI_UNWRITTEN(workspace, k->workspace);
    for (int t = g->input_count; t < g->tensor_count; t++) {
        bool own = !given[t].strides;
        for (int i = 0; i < g->tensor_count; i++)
            own &= i == t || given[i].data != given[t].data;
        if (own)
            EPI_UNWRITTEN(given[t].data, epi_axes_size(&g->tensors[t].axes, k->spec.sizes) *
                                             (int64_t)epi_dtype_size(k->spec.types[t]));
    }
#else
    (void)k, (void)given, (void)workspace;
#endif
}

void epi_cpu_run(const epi_cpu_kernel *k, const epi_tensor *given, void *workspace) {
    const epi_graph *g = k->spec.graph;
    unsigned char *base = workspace;
    mark_unwritten(k, given, base);
    if (k->spec.path == EPI_PATH_REFERENCE || k->spec.path == EPI_PATH_NAIVE) {
        epi_ref *tensors = (epi_ref *)(void *)(base + k->scratch);
        for (int t = 0; t < g->tensor_count; t++)
            tensors[t] = epi_cpu_tensor(&k->spec, t, &given[t]);
        epi_reference_run(k, tensors, base);
        return;
    }
    epi_ref *homes = (epi_ref *)(void *)(base + k->scratch) - (g->node_count + 1 + g->tensor_count);
    epi_ref *tensors = homes + g->node_count + 1;
    for (int t = 0; t < g->tensor_count; t++)
        tensors[t] = epi_cpu_tensor(&k->spec, t, &given[t]);
    for (int i = 0; i < g->node_count; i++) {
        if (k->steps.homes[i].tensor >= 0) {
            homes[i] = tensors[k->steps.homes[i].tensor];
            homes[i].axes = epi_graph_rename_axes(g, i, &homes[i].axes);
        } else {
            homes[i] = (epi_ref){.data = base + epi_max64(0, k->steps.homes[i].offset),
                                 .type = k->steps.homes[i].type,
                                 .axes = g->nodes[i].axes};
            epi_ref_contiguous(&homes[i], k->spec.sizes);
        }
    }
    for (int i = 0; i < k->steps.count; i++) {
        const epi_step *s = &k->steps.at[i];
        EPI_UNWRITTEN(base + k->scratch, k->workspace - k->scratch); /* by steps before it */
        epi_cpu_mainloops[epi_step_kind(s)].run(k, s, homes, tensors, base + k->scratch);
    }
}

/* kernel.c: a kernel from compiling to freeing: its spec is bound, and a backend compiles it. */
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "pass/place/kept.h"
#include "pass/place/split.h"
#include "pass/rewrite/integers.h"
#include "pass/rewrite/widen.h"
#include "run/run.h"

/* May sums be taken in another order? Terms may be larger then, which the storage type must hold. */
static bool is_free(const epi_options *o) {
    return o->algebra == EPI_ALGEBRA_FREE && epi_dtype_at(o->type)->full_range;
}

/* Why the algebra does not look at the program, or NULL. */
static const char *why_left(const epi_kernel *k, const epi_options *o, bool empty) {
    if (o->algebra != EPI_ALGEBRA_FREE)
        return "the options ask for the program as written";
    if (!is_free(o))
        return "in another order terms may be larger, beyond the range of the storage type";
    if (k->owner)
        return "it follows the kernel for the largest sizes";
    return empty ? "an axis has no elements" : NULL;
}

/* One operation a part: what such parts ask of the program, and no more. */
static epi_status cut_unfused(epi_kernel *k, epi_error *err) {
    EPI_TRY(epi_integers_write(&k->arena, &k->spec, err));
    EPI_TRY(epi_widen_operands(&k->arena, &k->spec, 0, err));
    EPI_TRY(epi_large_mark(&k->arena, &k->spec, err));
    return epi_cut_apart(&k->arena, &k->spec, &k->limits, &k->cut, err);
}

/* The program as the passes leave it, cut into parts. */
static epi_status cut(epi_kernel *k, const epi_options *o, epi_error *err) {
    k->spec.graph = &k->program->graph;
    /* A sum of no elements is 0 whatever scales them; what scales the sum may be NaN, as their mean is. */
    bool empty = epi_spec_has_empty(&k->spec);
    bool same = k->owner && k->owner->rewriting.applies && /* as the kernel that this one belongs to, */
                (!empty || k->gpu || k->owner->cut.prepared_parts); /* whose texts and params it takes */
    epi_compile passes = {.arena = &k->arena,
                          .spec = &k->spec,
                          .limits = &k->limits,
                          .narrows = !k->gpu || k->exact, /* else a tile is rounded first */
                          .strict = o->algebra != EPI_ALGEBRA_FREE,
                          .left = why_left(k, o, empty),
                          .same = same ? k->owner->rewriting.graph : NULL,
                          .rewriting = &k->rewriting,
                          .cut = &k->cut};
    if (o->path != EPI_PATH_FUSED && o->path != EPI_PATH_UNFUSED)
        return epi_integers_write(&k->arena, &k->spec, err);
    epi_status status = o->path == EPI_PATH_FUSED ? epi_compile_cut(&passes, err) : cut_unfused(k, err);
    if (status == EPI_OK && k->cut.part_count > 1 && o->config)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "a configuration is for one kernel; this program is %d kernels: leave it out",
                        k->cut.part_count);
    return status;
}

/* The steps of the part, or of its last slab, that the backend refused; or NULL. */
static const epi_steps *refused_steps(const epi_part_kernel *p) {
    const epi_compiled *of[] = {&p->full, &p->tail};
    for (int i = 0; i < 2; i++)
        if ((of[i]->cpu || of[i]->cuda) && epi_compiled_steps(of[i])->refused)
            return epi_compiled_steps(of[i]);
    return NULL;
}

/* A part that the backend accepted may be refused when it is compiled: no configuration of it is fast. The next cut does
 * without it. False: none was refused that the cut could do without. */
static bool note_refused(epi_kernel *k) {
    bool again = false;
    for (int i = 0; i < k->part_count && !(k->owner && k->gpu); i++) {
        const epi_part_kernel *p = &k->parts[i];
        if (!p->part || !refused_steps(p))
            continue;
        epi_spec spec = epi_part_spec(&k->spec, p->part);
        if (p->part->loop >= 0)
            spec.sizes[k->cut.slab_dim] = k->cut.slab_rows;
        again |= epi_kept_refuse(&spec);
    }
    return again;
}

static epi_status check_memory(const epi_options *o, epi_error *err) {
    if (o->memory && o->path != EPI_PATH_FUSED)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a memory budget works only with the fused path");
    if (o->memory && o->open_axis_count)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a memory budget needs known sizes: leave out open axes");
    return EPI_OK;
}

/* What the backend can hold, less what the options rule out. */
static epi_status find_limits(epi_kernel *k, const epi_options *o, epi_error *err) {
    int capability = epi_device_capability(k->program->module->context, o->device);
    const epi_arch *arch = epi_arch_of(capability);
    if (k->gpu && !arch)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "GPU kernels need compute capability %d.%d or newer; this is %d.%d",
                        epi_arch_at(0)->capability / 10, epi_arch_at(0)->capability % 10, capability / 10,
                        capability % 10);
    k->arch = arch;
    k->limits = k->gpu ? epi_arch_limits(arch) : epi_cpu_limits();
    k->limits.prepares = !o->memory;
    k->limits.merges_sums = is_free(o);
    k->limits.updates &= !o->memory;
    if (k->owner) {
        k->limits = k->owner->limits;
        k->limits.prepares &= k->owner->cut.prepared_parts > 0; /* a caller prepares what the owner says */
    }
    return EPI_OK;
}

/* Elements are counted once, so that a run does not. */
static epi_status count_elements(epi_kernel *k, epi_error *err) {
    const epi_graph *g = &k->program->graph;
    k->counts = epi_arena_alloc(&k->arena, ((size_t)g->tensor_count + 1) * sizeof *k->counts);
    EPI_TRY(epi_has_memory(k->counts, err));
    for (int t = 0; t < g->tensor_count; t++) { /* of those, too, that no part has */
        k->counts[t] = epi_axes_size(&g->tensors[t].axes, k->spec.sizes);
        if (k->counts[t] < 0 || k->counts[t] > (int64_t)1 << 48)
            return epi_fail(err, EPI_ERR_MEMORY, "%s would have more than 2^48 elements", g->tensors[t].name);
    }
    return EPI_OK;
}

/* The terms of the longest sum and of those that it is made of. */
static epi_status count_terms(epi_kernel *k, epi_error *err) {
    const epi_graph *g = &k->program->graph;
    double *terms = epi_arena_alloc(&k->arena, ((size_t)g->node_count + 1) * sizeof *terms);
    EPI_TRY(epi_has_memory(terms, err));
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        for (int a = 0; a < 3; a++)
            if (n->arg[a] != EPI_NO_NODE && terms[n->arg[a]] > terms[i])
                terms[i] = terms[n->arg[a]];
        if (epi_op_folds(n->op) || epi_op_scans(n->op))
            terms[i] += (double)epi_axes_size(&n->over, k->spec.sizes);
        else if (epi_op_scatters(n->op)) {
            epi_axes kept = epi_scatter_kept(g, n), sums = epi_axes_without(&g->nodes[n->arg[1]].axes, &kept);
            terms[i] += (double)epi_axes_size(&sums, k->spec.sizes);
        }
        if (g->live[i] && terms[i] > k->terms)
            k->terms = terms[i];
    }
    return EPI_OK;
}

static bool has_pieces(const epi_kernel *k) {
    bool has = false;
    for (int q = 0; q < k->cut.part_count; q++)
        for (int t = k->cut.parts[q].graph.input_count; t < k->cut.parts[q].graph.tensor_count; t++)
            has |= k->cut.parts[q].slices[t].memory.count > 0;
    return has;
}

/* Slabs add up a sum over rows, and an output that is put together of such is made behind them: where it takes
 * slabs to keep the budget, no output is stored piece by piece. */
static bool leave_pieces(epi_kernel *k, const epi_options *o) {
    if (k->limits.pieces)
        k->workspace_whole = epi_kernel_workspace(k);
    if (k->workspace_whole <= o->memory || !has_pieces(k))
        return false;
    k->limits.pieces = false;
    return true;
}

/* The program, cut and compiled; within a budget, once it is known what the parts need. */
static epi_status compile_parts(epi_kernel *k, const epi_options *o, epi_error *err) {
    bool again = true;
    while (again) {
        epi_parts_free(k);
        EPI_TRY(cut(k, o, err));
        k->draft = o->memory > 0;
        EPI_TRY(epi_parts_compile(k, o, err));
        k->draft = false;
        if (o->memory)
            EPI_TRY(epi_checks_compile(k, o, err)); /* which are in the workspace, too */
        again = o->memory && leave_pieces(k, o);
    }
    return o->memory ? epi_memory_fit(k, o, err) : EPI_OK;
}

static epi_status compile(epi_kernel *k, const epi_options *o, epi_error *err) {
    k->gpu = o->device != 0;
    k->exact = o->rounding == EPI_ROUND_EXACT;
    k->kept = epi_kept_make(k->owner ? k->owner->kept : NULL);
    EPI_TRY(epi_has_memory(k->kept, err));
    k->backend = (epi_backend){epi_part_accept, k};
    EPI_TRY(epi_spec_bind(&k->arena, k->program, o, k->owner ? &k->owner->spec : NULL, &k->spec, err));
    k->spec.kept = k->kept;
    k->spec.backend =
        o->config ? NULL : &k->backend; /* a configuration by name is to say itself what it lacks */
    EPI_TRY(find_limits(k, o, err));
    EPI_TRY(check_memory(o, err));
    do
        EPI_TRY(compile_parts(k, o, err));
    while (note_refused(k));
    EPI_TRY(epi_has_memory(epi_kept_is_whole(k->kept), err)); /* else it was not asked of all parts */
    for (int i = 0; i < k->part_count; i++) {
        const epi_steps *steps = refused_steps(&k->parts[i]);
        if (steps)
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "%s", steps->plan.reason);
    }
    if (!o->memory)
        EPI_TRY(epi_checks_compile(k, o, err));
    EPI_TRY(count_elements(k, err));
    EPI_TRY(epi_assumed_find(k, err));
    return count_terms(k, err);
}

epi_status epi_struct_take(void *out, size_t size, const void *given, const char *what, const char *macro,
                           epi_error *err) {
    enum { MOST = 4096 };
    size_t has;
    memcpy(&has, given, sizeof has);
    if (has < sizeof has || has > MOST)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the size of the %s is %zu: initialise with %s, which sets it",
                        what, has, macro);
    for (size_t i = size; i < has; i++)
        if (((const unsigned char *)given)[i])
            return epi_fail(err, EPI_ERR_ARGUMENT,
                            "the %s set a field that this library does not know: it is version %s", what,
                            epi_version());
    memset(out, 0, size);
    memcpy(out, given, has < size ? has : size);
    return EPI_OK;
}

void epi_struct_give(void *out, size_t size, const void *ours, size_t own) {
    memset(out, 0, size);
    memcpy(out, ours, size < own ? size : own);
}

/* Are the lists of the options there, and as long as a list can be? */
static epi_status check_lists(const epi_options *o, epi_error *err) {
    const struct {
        const void *list;
        int count;
    } lists[] = {{o->dims, o->dim_count},
                 {o->types, o->type_count},
                 {o->row_axes, o->row_axis_count},
                 {o->open_axes, o->open_axis_count},
                 {o->spent, o->spent_count}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].count < 0 || (lists[i].count && !lists[i].list))
            return epi_fail(err, EPI_ERR_ARGUMENT,
                            lists[i].count < 0 ? "the count of a list is negative"
                                               : "a list is NULL though its count is not zero");
    return EPI_OK;
}

epi_status epi_options_take(epi_options *out, const epi_options *given, epi_error *err) {
    epi_status status = given ? epi_struct_take(out, sizeof *out, given, "options", "EPI_OPTIONS", err)
                              : epi_fail(err, EPI_ERR_ARGUMENT, "options may not be NULL");
    return status == EPI_OK ? check_lists(out, err) : status;
}

epi_status epi_kernel_compile(const epi_program *program, const epi_options *given, epi_kernel **out,
                              epi_error *err) {
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!program)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_kernel_compile: the program is NULL, as epi_module_find returns where a module "
                        "has none of that name");
    if (!given || !out)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_kernel_compile: options and out may not be NULL");
    epi_options options;
    epi_status status = epi_options_take(&options, given, err);
    if (status == EPI_OK)
        status = epi_kernel_make(program, &options, NULL, false, out, err);
    if (status == EPI_ERR_INTERNAL && err && err->line)
        epi_ast_locate(&program->module->text, err);
    return status;
}

epi_status epi_kernel_make(const epi_program *program, const epi_options *options, const epi_kernel *owner,
                           bool is_form, epi_kernel **out, epi_error *err) {
    epi_kernel *k = calloc(1, sizeof *k);
    EPI_TRY(epi_has_memory(k, err));
    k->program = program;
    k->owner = owner;
    k->is_form = is_form;
    atomic_fetch_add(&program->module->owners, 1);
    epi_status status = compile(k, options, err);
    k->spec.kept = NULL; /* that of a kernel which is done does not change any more */
    if (status == EPI_OK && options->open_axis_count > 0 && !owner)
        status = epi_sizes_make(k, options, err);
    if (status != EPI_OK) {
        epi_kernel_free(k);
        return status;
    }
    *out = k;
    return EPI_OK;
}

void epi_kernel_free(epi_kernel *kernel) {
    if (!kernel)
        return;
    epi_sizes_free(kernel);
    epi_parts_free(kernel);
    epi_cuda_kernel_free(kernel->checks);
    epi_arena_free(&kernel->arena);
    epi_rewriting_free(&kernel->rewriting);
    epi_kept_free(kernel->kept);
    epi_module_free(kernel->program->module);
    free(kernel);
}

int64_t epi_kernel_parts_at(const epi_kernel *kernel) {
    return kernel->checks ? epi_round_up(kernel->checks->workspace, 256) : 0;
}

int64_t epi_kernel_numbers_at(const epi_kernel *kernel) {
    return epi_kernel_parts_at(kernel) + kernel->values + epi_round_up(kernel->cut.bytes, 64);
}

size_t epi_kernel_workspace(const epi_kernel *kernel) {
    if (!kernel)
        return 0;
    const epi_graph *g = &kernel->program->graph;
    int64_t bytes = epi_kernel_numbers_at(kernel);
    for (int t = 0; t < g->input_count; t++)
        bytes += g->tensors[t].axes.count ? 0 : EPI_NUMBER_BYTES;
    return (size_t)epi_round_up(bytes, 64);
}

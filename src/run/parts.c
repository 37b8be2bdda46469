/* parts.c: the parts of a kernel as their backend compiles them: equal ones once, a GPU's side by side; and what they use of
 * the workspace. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "run/run.h"

/* A GPU of this machine, or a compute capability alone: the texts without a device. */
static epi_cuda_target target_of(const epi_kernel *k, const epi_options *o) {
    epi_context *ctx = k->program->module->context;
    epi_cuda_target target = {.arch = epi_arch_of(epi_device_capability(ctx, o->device)),
                              .multiprocessors = EPI_USUAL_MULTIPROCESSORS,
                              .config = o->config,
                              .exact = o->rounding == EPI_ROUND_EXACT};
    if (o->device > 0)
        target.multiprocessors = ctx->cuda.devices[o->device - 1].multiprocessors;
    if (o->device > 0 && !k->draft) {
        target.cuda = &ctx->cuda;
        target.device = o->device - 1;
    }
    return target;
}

static epi_status compile_cuda(epi_kernel *k, const epi_spec *spec, const epi_options *o, epi_part_kernel *p,
                               epi_compiled *out, epi_error *err) {
    epi_cuda_target target = target_of(k, o);
    const epi_cuda_kernel *forms[EPI_MAX_FORMS];
    for (int i = 0; k->owner && i <= k->owner->form_count; i++) {
        const epi_kernel *form = i ? k->owner->forms[i - 1] : k->owner;
        forms[target.form_count++] = form->parts[p - k->parts].full.cuda;
    }
    target.forms = forms;
    target.is_form = k->is_form;
    return epi_cuda_compile(&p->arena, spec, &target, &out->cuda, err);
}

/* Looks for an equal part before this one, whose kernel it takes. */
static void find_equal(epi_kernel *k, epi_part_kernel *p) {
    epi_arena scratch = {0};
    int *to = epi_arena_alloc(&k->arena, ((size_t)p->part->graph.tensor_count + 1) * sizeof *to);
    int64_t sizes[EPI_MAX_DIMS]; /* equal whatever is open, and in every slab */
    memcpy(sizes, k->spec.open ? k->spec.open->sizes : k->spec.sizes, sizeof sizes);
    if (p->part->loop >= 0)
        sizes[k->cut.slab_dim] = -1;
    int own = p->first;
    p->hash = epi_part_hash(&scratch, p->part, sizes);
    for (int i = 0; i < own && p->first == own && to; i++) {
        const epi_part_kernel *q = &k->parts[i];
        if (q->first != i || q->hash != p->hash || (q->part->loop >= 0) != (p->part->loop >= 0) ||
            !epi_parts_equal(&scratch, q->part, p->part, sizes, to))
            continue;
        p->first = i;
        p->to = to;
    }
    epi_arena_free(&scratch);
}

static epi_status compile_spec(epi_kernel *k, const epi_spec *spec, const epi_options *o, epi_part_kernel *p,
                               epi_compiled *out, epi_error *err) {
    return o->device ? compile_cuda(k, spec, o, p, out, err)
                     : epi_cpu_compile(&p->arena, spec, &out->cpu, err);
}

static epi_status compile_part(epi_kernel *k, const epi_options *o, epi_part_kernel *p, epi_error *err) {
    epi_spec spec = k->spec;
    if (p->part) {
        spec.graph = &p->part->graph;
        spec.types = p->part->types;
        spec.slices = p->part->slices;
    }
    if (!p->part || p->part->loop < 0)
        return compile_spec(k, &spec, o, p, &p->full, err);
    spec.sizes[k->cut.slab_dim] = k->cut.slab_rows;
    EPI_TRY(compile_spec(k, &spec, o, p, &p->full, err));
    if (epi_slab_tail(k) == k->cut.slab_rows)
        return EPI_OK;
    spec.sizes[k->cut.slab_dim] = epi_slab_tail(k);
    return compile_spec(k, &spec, o, p, &p->tail, err);
}

const epi_steps *epi_compiled_steps(const epi_compiled *c) {
    return c->cpu ? &c->cpu->steps : &c->cuda->steps;
}

static int64_t workspace_of(const epi_compiled *c) {
    return c->cpu ? c->cpu->workspace : c->cuda ? c->cuda->workspace : 0;
}

int64_t epi_slab_count(const epi_kernel *k) {
    int64_t size = k->cut.loop_count ? k->spec.sizes[k->cut.slab_dim] : 1;
    return k->cut.loop_count ? (size + k->cut.slab_rows - 1) / k->cut.slab_rows : 1;
}

int64_t epi_slab_tail(const epi_kernel *k) {
    return k->spec.sizes[k->cut.slab_dim] - (epi_slab_count(k) - 1) * k->cut.slab_rows;
}

void epi_parts_free(epi_kernel *k) {
    for (int i = 0; i < k->part_count; i++)
        if (k->parts[i].first == i) {
            epi_cuda_kernel_free(k->parts[i].full.cuda);
            epi_cuda_kernel_free(k->parts[i].tail.cuda);
            epi_arena_free(&k->parts[i].arena);
        }
    k->part_count = 0;
}

/* Behind what the parts use for themselves. */
static void place_values(epi_kernel *k) {
    epi_parts_set_concurrent(k);
    k->values = 0;
    for (int i = 0; i < k->part_count; i++) {
        const epi_part_kernel *p = &k->parts[i];
        int64_t most = epi_max64(workspace_of(&p->full), workspace_of(&p->tail));
        k->values = epi_max64(k->values, p->own + most);
    }
    k->values = epi_round_up(epi_max64(64, k->values), 256);
}

/* Parts that are compiled side by side, and how each one ended. */
typedef struct side_by_side {
    epi_kernel *k;
    const epi_options *options;
    epi_error *ends; /* by part */
} side_by_side;

static void compile_one(void *ctx, int64_t i, int thread) {
    (void)thread;
    side_by_side *all = ctx;
    epi_part_kernel *p = &all->k->parts[i];
    if (p->first == i)
        all->ends[i].status = compile_part(all->k, all->options, p, &all->ends[i]);
}

/* CUDA's compiler takes seconds for a kernel, so a GPU's parts go to as many threads as there are. */
epi_status epi_parts_compile(epi_kernel *k, const epi_options *o, epi_error *err) {
    int count = k->cut.part_count ? k->cut.part_count : 1;
    side_by_side all = {.k = k, .options = o};
    if (k->owner && k->gpu && count != k->owner->part_count) /* which has the texts of each */
        return EPI_INTERNAL(err, (epi_place){0}, "the cut depends on a size that is open");
    k->parts = epi_arena_alloc(&k->arena, (size_t)count * sizeof *k->parts);
    all.ends = epi_arena_alloc(&k->arena, (size_t)count * sizeof *all.ends);
    EPI_TRY(epi_has_memory(k->parts && all.ends, err));
    for (int i = 0; i < count; i++) {
        k->parts[i] = (epi_part_kernel){.part = k->cut.part_count ? &k->cut.parts[i] : NULL, .first = i};
        if (k->parts[i].part)
            find_equal(k, &k->parts[i]);
    }
    k->part_count = count;
    epi_parallel_for(o->device > 0 ? epi_parallel_processors() : 1, count, compile_one, &all);
    for (int i = 0; i < count; i++) {
        epi_part_kernel *p = &k->parts[i];
        p->full = k->parts[p->first].full;
        p->tail = k->parts[p->first].tail;
        if (all.ends[i].status != EPI_OK) {
            if (err)
                *err = all.ends[i];
            return all.ends[i].status;
        }
    }
    place_values(k);
    return EPI_OK;
}

epi_spec epi_kernel_written(const epi_kernel *k) {
    epi_spec spec = k->spec;
    spec.graph = &k->program->graph;
    return spec;
}

epi_status epi_checks_compile(epi_kernel *k, const epi_options *o, epi_error *err) {
    if (!o->check_indices || !k->gpu)
        return EPI_OK;
    epi_cuda_target target = target_of(k, o);
    epi_cuda_kernel_free(k->checks);
    k->checks = NULL;
    epi_spec written = epi_kernel_written(k);
    return epi_cuda_compile_checks(&k->arena, &written, &target, k->owner ? k->owner->checks : NULL,
                                   &k->checks, &k->checked, err);
}

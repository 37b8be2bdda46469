/* parts.c: compiles the parts of a kernel: equal ones once, and on a GPU several at a time. It also gives
 * each its share of the workspace. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "run/run.h"

_Static_assert((int)EPI_MAX_FORMS == (int)EPI_MOST_FORMS, "the forms of a kernel are those of its parts");

/* A GPU of this machine, or a compute capability alone: the texts without a device. */
static epi_cuda_target target_of(const epi_kernel *k, const epi_options *o) {
    epi_context *ctx = k->program->module->context;
    epi_cuda_target target = {.arch = k->arch,
                              .multiprocessors = EPI_USUAL_MULTIPROCESSORS,
                              .config = o->config,
                              .exact = k->exact};
    if (o->device > 0)
        target.multiprocessors = ctx->cuda.devices[o->device - 1].multiprocessors;
    if (o->device > 0 && !k->draft) {
        target.cuda = &ctx->cuda;
        target.device = o->device - 1;
    }
    return target;
}

/* Parts of a group take one form together; others each the best. */
static epi_status plan_cuda(epi_kernel *k, const epi_spec *spec, const epi_options *o, epi_part_kernel *p,
                            epi_compiled *out, epi_error *err) {
    epi_cuda_target target = target_of(k, o);
    const epi_cuda_kernel *forms[EPI_MAX_FORMS];
    int part = (int)(p - k->parts);
    bool together = k->owner && !k->is_form && epi_joint_count(k->owner, p->leader) > 1;
    const epi_kernel *only = together ? epi_joint_form(k, p->leader, &target) : NULL;
    for (int i = 0; k->owner && i <= k->owner->form_count; i++) {
        const epi_kernel *form = i ? k->owner->forms[i - 1] : k->owner;
        if (!only || form == only)
            forms[target.form_count++] = form->parts[part].full.cuda;
    }
    target.forms = forms;
    target.is_form = k->is_form;
    return epi_cuda_plan(&p->arena, spec, &target, &out->cuda, err);
}

bool epi_part_accept(const void *kernel, const epi_spec *part) {
    const epi_kernel *k = kernel;
    const epi_cuda_target target = {
        .arch = k->arch, .multiprocessors = EPI_USUAL_MULTIPROCESSORS, .exact = k->exact};
    epi_arena scratch = {0};
    epi_compiled c = {0};
    epi_status status = k->gpu ? epi_cuda_plan(&scratch, part, &target, &c.cuda, NULL)
                               : epi_cpu_compile(&scratch, part, &c.cpu, NULL);
    bool refused = status == EPI_OK && epi_compiled_steps(&c)->refused;
    epi_cuda_kernel_free(c.cuda);
    epi_arena_free(&scratch);
    return !refused;
}

/* What is the same of parts that are equal whatever is open, and in every slab. */
static void sizes_of(const epi_kernel *k, const epi_part *part, int64_t *sizes) {
    memcpy(sizes, k->spec.open ? k->spec.open->sizes : k->spec.sizes, EPI_MAX_DIMS * sizeof *sizes);
    if (part->loop >= 0)
        sizes[k->cut.slab_dim] = -1;
}

/* Is the part equal to an earlier one? Then it takes its kernel. */
static bool share(epi_kernel *k, epi_arena *scratch, epi_part_kernel *p, int with, int *to) {
    int64_t sizes[EPI_MAX_DIMS];
    const epi_part_kernel *q = &k->parts[with];
    sizes_of(k, p->part, sizes);
    if (!to || q->hash != p->hash || (q->part->loop >= 0) != (p->part->loop >= 0) ||
        !epi_parts_equal(scratch, q->part, p->part, sizes, to))
        return false;
    p->first = with;
    p->to = to;
    return true;
}

/* Looks for an equal part before this one, whose kernel it takes. */
static void find_equal(epi_kernel *k, epi_part_kernel *p) {
    epi_arena scratch = {0};
    int *to = epi_arena_alloc(&k->arena, ((size_t)p->part->graph.tensor_count + 1) * sizeof *to);
    int64_t sizes[EPI_MAX_DIMS];
    sizes_of(k, p->part, sizes);
    p->hash = epi_part_hash(&scratch, p->part, sizes);
    bool found = false;
    for (int i = 0; i < p - k->parts && !found; i++)
        found = k->parts[i].first == i && share(k, &scratch, p, i, to);
    epi_arena_free(&scratch);
}

void epi_part_share(epi_kernel *k, int part, int with) {
    epi_part_kernel *p = &k->parts[part];
    epi_arena scratch = {0};
    if (p->first == with)
        return;
    p->first = part;
    p->to = NULL;
    if (with != part)
        share(k, &scratch, p, with,
              epi_arena_alloc(&k->arena, ((size_t)p->part->graph.tensor_count + 1) * sizeof *p->to));
    epi_arena_free(&scratch);
}

static epi_status compile_spec(epi_kernel *k, const epi_spec *spec, const epi_options *o, epi_part_kernel *p,
                               epi_compiled *out, epi_error *err) {
    return o->device ? plan_cuda(k, spec, o, p, out, err) : epi_cpu_compile(&p->arena, spec, &out->cpu, err);
}

static epi_status compile_part(epi_kernel *k, const epi_options *o, epi_part_kernel *p, epi_error *err) {
    epi_spec spec = p->part ? epi_part_spec(&k->spec, p->part) : k->spec;
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
            epi_joint_free(k->parts[i].joint);
            epi_cuda_kernel_free(k->parts[i].full.cuda);
            epi_cuda_kernel_free(k->parts[i].tail.cuda);
            epi_arena_free(&k->parts[i].arena);
        }
    k->part_count = 0;
}

/* Where what a part uses for itself ends, if that is at the workspace's beginning. */
static int64_t own_end(const epi_part_kernel *p) {
    return p->own + epi_max64(workspace_of(&p->full), workspace_of(&p->tail));
}

/* Is no other part on its way while this one runs? */
static bool runs_alone(const epi_kernel *k, int i) {
    const epi_part_kernel *p = &k->parts[i], *next = i + 1 < k->part_count ? p + 1 : NULL;
    return i >= k->cut.prepared_parts && !p->concurrent && p->leader == i &&
           (!next || (!next->concurrent && next->leader == i + 1));
}

/* The cut with values more: what parts use for themselves that use more than so much. None are added where one of these does not
 * run alone. */
static epi_status lay_out_among(epi_kernel *k, int64_t limit, epi_cut *out, epi_error *err) {
    int count = k->cut.value_count - k->cut.prepared_values;
    *out = k->cut;
    out->values = epi_arena_alloc(&k->arena, (size_t)(count + k->part_count) * sizeof *out->values);
    EPI_TRY(epi_has_memory(out->values, err));
    memcpy(out->values, k->cut.values, (size_t)count * sizeof *out->values);
    out->value_count = count;
    out->prepared_values = 0;
    for (int i = 0; i < k->part_count; i++) {
        int64_t own = own_end(&k->parts[i]);
        if (own > limit && !runs_alone(k, i)) {
            out->value_count = count;
            return EPI_OK;
        }
        if (own > limit)
            out->values[out->value_count++] = (epi_cut_value){
                .node = EPI_NO_NODE, .bytes = epi_round_up(own, 256), .first = i, .last = i, .part = i};
    }
    return epi_cut_lay_out(&k->arena, out, err);
}

/* What the part of all that uses most for itself below so much uses; 0: there is none. */
static int64_t own_below(const epi_kernel *k, int64_t bytes) {
    int64_t most = 0;
    for (int i = 0; i < k->part_count; i++)
        if (own_end(&k->parts[i]) < bytes)
            most = epi_max64(most, own_end(&k->parts[i]));
    return most;
}

/* Values lie behind what the parts use for themselves. Where a few of a GPU's use much, that lies among the values instead: they
 * are laid out once more. */
static epi_status place_values(epi_kernel *k, epi_error *err) {
    enum { WORTH = 1 << 18 }; /* bytes that a part more among the values saves at least */
    int64_t most, limit;
    int values = k->cut.value_count - k->cut.prepared_values;
    epi_cut best = k->cut, with;
    epi_parts_set_concurrent(k);
    limit = most = own_below(k, INT64_MAX);
    for (int64_t own = most; own > WORTH && k->gpu && values && !k->cut.loop_count;) {
        own = own_below(k, own);
        EPI_TRY(lay_out_among(k, own, &with, err));
        if (with.value_count > values && own + with.bytes + WORTH < limit + best.bytes) {
            limit = own;
            best = with;
        }
    }
    k->values = epi_round_up(epi_max64(64, limit), 256);
    if (limit == most)
        return EPI_OK;
    for (int i = 0; i < values; i++)
        k->cut.values[i].offset = best.values[i].offset;
    for (int i = values; i < best.value_count; i++)
        k->parts[best.values[i].part].own = k->values + best.values[i].offset;
    k->cut.bytes = best.bytes;
    k->cut.lowest = best.lowest;
    return EPI_OK;
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

/* The cubins of a group of parts, by its leader. */
static void build_one(void *ctx, int64_t i, int thread) {
    (void)thread;
    side_by_side *all = ctx;
    epi_part_kernel *p = &all->k->parts[i];
    epi_cuda_target target = target_of(all->k, all->options);
    if (p->first != i || p->leader != i)
        return;
    all->ends[i].status = epi_joint_build(all->k, (int)i, &target, &all->ends[i]);
    if (all->ends[i].status == EPI_OK && p->tail.cuda)
        all->ends[i].status = epi_cuda_build(p->tail.cuda, &target, &all->ends[i]);
}

/* Gives equal parts the kernel of the first of them; or the first error. */
static epi_status spread(epi_kernel *k, const epi_error *ends, epi_error *err) {
    for (int i = 0; i < k->part_count; i++) {
        epi_part_kernel *p = &k->parts[i];
        p->full = k->parts[p->first].full;
        p->tail = k->parts[p->first].tail;
        p->joint = p->leader == i ? k->parts[p->first].joint : NULL;
        if (ends[i].status != EPI_OK) {
            if (err)
                *err = ends[i];
            return ends[i].status;
        }
    }
    return EPI_OK;
}

/* Which parts are launched as one; some need kernels of their own then. */
static epi_status join_parts(epi_kernel *k, const epi_options *o, epi_error *err) {
    if (o->memory || o->config || k->part_count == 1 || k->owner)
        return EPI_OK;
    epi_cuda_target target = target_of(k, o);
    epi_parts_set_concurrent(k);
    EPI_TRY(epi_joints_find(k, &target, err));
    for (int i = 0; i < k->part_count; i++)
        if (k->parts[i].parted) {
            k->parts[i].full = k->parts[i].tail = (epi_compiled){0};
            EPI_TRY(compile_part(k, o, &k->parts[i], err));
        }
    return EPI_OK;
}

/* CUDA's compiler takes seconds for a kernel, so a GPU's parts go to as many threads as there are. */
epi_status epi_parts_compile(epi_kernel *k, const epi_options *o, epi_error *err) {
    int count = k->cut.part_count ? k->cut.part_count : 1,
        threads = o->device > 0 ? epi_parallel_processors() : 1;
    side_by_side all = {.k = k, .options = o};
    if (k->owner && k->gpu && count != k->owner->part_count) /* which has the texts of each */
        return EPI_INTERNAL(err, (epi_place){0}, "the cut depends on a size that is open");
    k->parts = epi_arena_alloc(&k->arena, (size_t)count * sizeof *k->parts);
    all.ends = epi_arena_alloc(&k->arena, (size_t)count * sizeof *all.ends);
    EPI_TRY(epi_has_memory(k->parts && all.ends, err));
    for (int i = 0; i < count; i++) {
        k->parts[i] =
            (epi_part_kernel){.part = k->cut.part_count ? &k->cut.parts[i] : NULL, .first = i, .leader = i};
        if (k->parts[i].part)
            find_equal(k, &k->parts[i]);
    }
    k->part_count = count;
    if (k->owner && k->gpu)
        EPI_TRY(epi_joints_like(k, k->owner, err));
    epi_parallel_for(threads, count, compile_one, &all);
    EPI_TRY(spread(k, all.ends, err));
    EPI_TRY(epi_spent_take(k, o, err)); /* which parts touch the same memory is known then */
    if (k->gpu && !k->draft) {
        EPI_TRY(join_parts(k, o, err));
        epi_parallel_for(threads, count, build_one, &all);
        EPI_TRY(spread(k, all.ends, err));
    }
    return place_values(k, err);
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

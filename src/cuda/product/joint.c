/* joint.c: launches the products of several parts as one.
 *
 * Queries, keys and values are products of the same rows with weights of different widths, and gradients of
 * weights are as many products of the same depth. Alone, each has a last wave of tiles that does not fill
 * the GPU, and a start and an end. In one launch their tiles follow each other. Parts do not change: each
 * tile has the operands and the epilogue of its part (emit_joint.c). Results are bitwise those of separate
 * launches. */
#include <string.h>

#include "cuda/cuda.h"
#include "cuda/jit.h"
#include "cuda/product/emit_gemm.h"

/* Is it a plain product by Hopper's mainloop? */
static bool is_plain(const epi_launch *l) {
    enum { MOST_ROWS = (1 << 28) - 512 }; /* of a part: device/joint.cuh */
    const epi_product_size *s = l ? &l->product.size : NULL;
    return l && l->text.config.mainloop == EPI_GEMM_SM90 && s->batches == 1 && !s->group && !s->gathered &&
           !s->scaled && !s->on_load && s->m < MOST_ROWS;
}

bool epi_joint_may(const epi_cuda_kernel *a, const epi_cuda_kernel *b) {
    const epi_launch *x = epi_cuda_product(a), *y = epi_cuda_product(b);
    return is_plain(x) && is_plain(y) && x->product.standing.k == y->product.standing.k &&
           x->text.piece.layout == y->text.piece.layout;
}

/* ---- configurations ---- */

typedef struct candidates {
    epi_product_size sizes[EPI_MOST_JOINED];
    int order[EPI_MOST_CONFIGS], count;
    double best, apart; /* the time of the first, and of launches one after the other */
} candidates;

/* Hopper's configurations, the fastest first. Of few rows all parts have as many: the ring is shared out by them. */
static void rank(epi_cuda_kernel *const *parts, int count, const epi_cuda_target *target, candidates *out) {
    double times[EPI_MOST_CONFIGS];
    bool same_rows = true;
    for (int i = 0; i < count; i++) {
        const epi_launch *l = epi_cuda_product(parts[i]);
        out->sizes[i] = l->product.size;
        out->sizes[i].joined = true;
        same_rows &= l->product.size.m == out->sizes[0].m;
        out->apart += epi_config_cost(l->choice, &l->product.size, target->exact, target->multiprocessors);
    }
    for (int c = 0; c < epi_config_count(); c++) {
        const epi_config *f = epi_config_at(c);
        if (f->mainloop != EPI_GEMM_SM90 || f->scaled || (f->few && !same_rows) ||
            !epi_config_suits(c, target->exact, target->arch))
            continue;
        double time = epi_joint_cost(c, out->sizes, count, target->exact, target->multiprocessors);
        int at = out->count++;
        for (; at > 0 && times[at - 1] > time; at--) {
            times[at] = times[at - 1];
            out->order[at] = out->order[at - 1];
        }
        times[at] = time;
        out->order[at] = c;
    }
    out->best = out->count ? times[0] : 0;
}

/* What a launch costs beside its tiles, of which the next one's hide a part: 1.5 microseconds, in which a multiprocessor does
 * so many multiplications. */
static const double launch_time = 128.0 * 256 * 320;

double epi_joint_time(epi_cuda_kernel *const *parts, int count, const epi_cuda_target *target) {
    candidates c = {0};
    rank(parts, count, target, &c);
    return count == 1 || !c.count ? count * launch_time + c.apart : launch_time + c.best;
}

/* ---- texts ---- */

/* Their texts again, made so. */
static epi_status plan_again(epi_cuda_kernel *const *parts, int count, const epi_cuda_target *target,
                             epi_join join, epi_error *err) {
    for (int i = 0; i < count; i++) {
        bool done = false;
        for (int j = 0; j < i; j++)
            done |= parts[j] == parts[i];
        epi_status status = done ? EPI_OK : epi_cuda_plan_again(parts[i], target, join, err);
        if (status != EPI_OK)
            return status;
    }
    return EPI_OK;
}

/* The narrowest of their subtiles; 0: they have the same. */
static int common_subtile(epi_cuda_kernel *const *parts, int count) {
    int least = 0, most = 0;
    for (int i = 0; i < count; i++) {
        int subtile = epi_cuda_product(parts[i])->text.config.subtile;
        least = !least || subtile < least ? subtile : least;
        most = subtile > most ? subtile : most;
    }
    return least < most ? least : 0;
}

/* The grid, and what else follows from sizes. */
static void shape(epi_joint *j, const epi_cuda_target *target) {
    epi_product_size sizes[EPI_MOST_JOINED];
    epi_launch *l = &j->launch;
    l->empty = true;
    for (int i = 0; i < j->count; i++) {
        sizes[i] = epi_cuda_product(j->parts[i])->product.size;
        l->empty &= epi_cuda_product(j->parts[i])->empty;
    }
    l->how.grid = (unsigned)(epi_joint_clusters(&l->text.config, sizes, j->count, target->multiprocessors) *
                             l->text.config.cluster);
    l->how.block = (unsigned)l->text.block;
    l->how.shared = (unsigned)l->text.shared;
    l->how.cluster = (unsigned)l->text.config.cluster;
    l->how.overlap = target->arch->overlap;
}

/* One text of what the configuration makes of them; UNSUPPORTED where it takes one of them not, or they do not agree. */
static epi_status write_text(epi_joint *j, const epi_cuda_target *target, int choice, epi_error *err) {
    const epi_kernel_text *texts[EPI_MOST_JOINED];
    epi_join join = {.on = true, .choice = choice};
    EPI_TRY(plan_again(j->parts, j->count, target, join, err));
    join.subtile = common_subtile(j->parts, j->count);
    if (join.subtile)
        EPI_TRY(plan_again(j->parts, j->count, target, join, err));
    for (int i = 0; i < j->count; i++)
        texts[i] = &epi_cuda_product(j->parts[i])->text;
    epi_text_free(&j->launch.text.source);
    j->launch = (epi_launch){.kind = epi_cuda_product(j->parts[0])->kind, .choice = choice};
    if (!epi_emit_joint(texts, j->count, j->parts[0]->spec.open, epi_arch_block_shared(target->arch),
                        &j->launch.text))
        return j->launch.text.source.failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                                            : EPI_ERR_UNSUPPORTED;
    shape(j, target);
    return EPI_OK;
}

/* Its cubin; UNSUPPORTED where there is no compiler, or it says that this would be slow, or a driver takes no such parameter. */
static epi_status load(epi_joint *j, const epi_joint *form, epi_error *err) {
    epi_launch *l = &j->launch;
    const epi_cuda_kernel *k = j->parts[0];
    epi_jit_item item = {.source = l->text.source.data, .name = l->text.name, .arch = l->text.arch};
    if (!k->cuda || l->empty)
        return EPI_OK;
    if (form && form->launch.how.function && !strcmp(item.source, form->launch.text.source.data)) {
        l->how.function = form->launch.how.function;
        l->registers = form->launch.registers;
        return EPI_OK;
    }
    EPI_TRY(epi_cuda_use(k->cuda, k->device, err));
    epi_status status = epi_jit_compile(&item);
    if (status != EPI_OK && err)
        *err = item.error;
    l->registers = item.cubin.registers;
    l->compile_seconds = item.cubin.seconds;
    l->cached = item.cubin.cached;
    if (status == EPI_OK)
        status = epi_cuda_load(k->cuda, item.cubin.data, l->text.name, l->text.shared, &l->library,
                               &l->how.function, err);
    epi_cubin_free(&item.cubin);
    return status == EPI_OK || status == EPI_ERR_MEMORY ? status : EPI_ERR_UNSUPPORTED;
}

/* ---- the whole ---- */

/* The first candidate that takes all of them and is not slow, while that is faster than launches apart; a few alone, as a
 * compiler takes seconds to find out. */
static epi_status make_first(epi_joint *j, const epi_cuda_target *target, const epi_joint *form,
                             epi_error *err) {
    enum { COMPILED = 3 };
    candidates c = {0};
    uint64_t slow = 0; /* configurations that were found so, as bits */
    epi_status status = EPI_ERR_UNSUPPORTED;
    rank(j->parts, j->count, target, &c);
    double apart = c.apart + (j->count - 1) * launch_time; /* and those launches more */
    for (int i = 0, compiled = 0; i < c.count && compiled < COMPILED && status == EPI_ERR_UNSUPPORTED; i++) {
        if (epi_joint_cost(c.order[i], c.sizes, j->count, target->exact, target->multiprocessors) > apart)
            break;
        if (slow >> c.order[i] & 1)
            continue;
        status = write_text(j, target, c.order[i], err);
        if (status != EPI_OK)
            continue;
        status = load(j, form, err);
        slow |= epi_config_same_text(c.order[i]);
        compiled++;
    }
    return status;
}

epi_status epi_joint_make(epi_arena *arena, epi_cuda_kernel *const *parts, int count,
                          const epi_cuda_target *target, const epi_joint *form, epi_joint **out,
                          epi_error *err) {
    epi_joint *j = epi_arena_alloc(arena, sizeof *j);
    *out = NULL;
    EPI_TRY(epi_has_memory(j, err));
    *j = (epi_joint){.count = count};
    memcpy(j->parts, parts, (size_t)count * sizeof *parts);
    epi_status status = make_first(j, target, form, err);
    if (status == EPI_OK) {
        *out = j;
        return EPI_OK;
    }
    epi_joint_free(j);
    if (status != EPI_ERR_UNSUPPORTED)
        return status;
    epi_error_clear(err);
    return plan_again(parts, count, target, (epi_join){0}, err);
}

epi_status epi_joint_make_like(epi_arena *arena, epi_cuda_kernel *const *parts, const epi_joint *like,
                               const epi_cuda_target *target, epi_joint **out, epi_error *err) {
    epi_joint *j = *out = epi_arena_alloc(arena, sizeof *j);
    EPI_TRY(epi_has_memory(j, err));
    *j = *like;
    j->like = like;
    memcpy(j->parts, parts, (size_t)like->count * sizeof *parts);
    j->launch.text.source = (epi_text){0}; /* what is asked about texts is asked of the form */
    j->launch.library = NULL;
    int there = 0;
    for (int i = 0; i < j->count; i++)
        there += epi_cuda_product(parts[i]) != NULL;
    if (there && there < j->count)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "some products of a joint launch with open sizes have no rows: on a GPU an open axis "
                        "needs elements here");
    if (there)
        shape(j, target);
    else
        j->launch.empty = true;
    return EPI_OK;
}

void epi_joint_free(epi_joint *j) {
    if (!j)
        return;
    if (j->launch.library)
        epi_cuda_unload(j->parts[0]->cuda, j->launch.library);
    epi_text_free(&j->launch.text.source);
}

double epi_joint_form_cost(const epi_joint *j, const epi_spec *spec, const epi_cuda_target *target) {
    epi_product_size sizes[EPI_MOST_JOINED];
    for (int i = 0; i < j->count; i++)
        sizes[i] = epi_size_now(&epi_cuda_product(j->parts[i])->product.standing, spec->open);
    return epi_joint_cost(j->launch.choice, sizes, j->count, target->exact, target->multiprocessors);
}

/* ---- run ---- */

epi_status epi_joint_put(const epi_joint *j, int part, const epi_tensor *tensors, unsigned char *workspace,
                         epi_joint_args *args, epi_error *err) {
    const epi_cuda_kernel *k = j->parts[part];
    const epi_launch *l = epi_cuda_product(k);
    const epi_kernel_text *t = &j->launch.text;
    if (!l) /* it has no rows, nor has any of them */
        return EPI_OK;
    epi_parameter how = {.maps = t->map_count,
                         .pointers = t->pointer_count,
                         .numbers = {.rows = l->numbers.rows, .order = l->numbers.order}};
    return epi_launch_write(k, l, tensors, workspace, &how,
                            args->bytes + (size_t)part * epi_joint_part_bytes(t, k->spec.open), err);
}

epi_status epi_joint_start(const epi_joint *j, unsigned char *workspace, epi_joint_args *args, void *stream,
                           int beside, bool *alone, epi_error *err) {
    const epi_cuda_kernel *k = j->parts[0];
    const epi_launch *l = &j->launch;
    const epi_open *open = k->spec.open;
    if (l->empty)
        return EPI_OK;
    epi_numbers numbers = {.count = l->text.config.queue | beside | (*alone ? EPI_OVERLAP_NEXT : 0),
                           .counter = (int64_t)(uintptr_t)workspace + epi_cuda_product(k)->numbers.counter};
    unsigned char *to = args->bytes + (size_t)j->count * epi_joint_part_bytes(&l->text, open);
    memcpy(to, &numbers, sizeof numbers);
    for (int i = 0; open && i < open->count; i++)
        memcpy(to + sizeof numbers + 8 * (size_t)i, &open->units[i], 8);
    *alone = false;
    return epi_cuda_start(k->cuda, &l->how, args->bytes, stream, err);
}

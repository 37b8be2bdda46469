/* cuda.c: compiles a kernel for a GPU: its launches, their cubins, and the forms that share these. */
#include "cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "cuda/jit.h"
#include "ir/index.h"

/* ---- cubins ---- */

static epi_jit_item item_of(const epi_launch *l) {
    return (epi_jit_item){.source = l->text.source.data,
                          .name = l->text.name,
                          .arch = l->text.arch,
                          .keep_slow = !l->alike,
                          .spills = l->spills};
}

/* Texts that are compiled before it is known whether they are wanted: a part's next configurations, side by
 * side. One after the other, each would wait for seconds until the compiler finds the one before slow. */
enum { MOST_AHEAD = 8 };

typedef struct ahead {
    epi_launch launches[MOST_AHEAD];
    epi_jit_item items[MOST_AHEAD];
    int count, refused; /* so many of them were refused */
} ahead;

static void free_ahead(ahead *a) {
    for (int i = 0; i < a->count; i++) {
        epi_text_free(&a->launches[i].text.source);
        epi_cubin_free(&a->items[i].cubin);
    }
    memset(a, 0, sizeof *a);
}

/* What became of a text ahead; NULL: it is none of them. */
static epi_jit_item *find_ahead(ahead *a, const char *source) {
    for (int i = 0; i < a->count && source; i++)
        if (a->items[i].source && !strcmp(a->items[i].source, source))
            return &a->items[i];
    return NULL;
}

/* Moves the part's text that may be refused there, unless another configuration has the same; false: there is
 * none. */
static bool move_ahead(epi_cuda_kernel *k, ahead *a) {
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        if (l->empty || !l->alike)
            continue;
        k->refused |= l->alike;
        if (!find_ahead(a, l->text.source.data)) {
            a->launches[a->count] = *l;
            a->items[a->count] = item_of(&a->launches[a->count]);
            l->text.source = (epi_text){0};
        }
        a->count++;
        return true;
    }
    return false;
}

/* As many of the next configurations as there are processors. */
static void look_ahead(epi_cuda_kernel *k, const epi_cuda_target *target, ahead *a) {
    uint64_t refused = k->refused;
    int most = epi_parallel_processors();
    epi_error why = {0};
    free_ahead(a);
    for (bool more = true; more && a->count < most && a->count < MOST_AHEAD;) {
        more = epi_cuda_emit(k, target, &why) == EPI_OK && move_ahead(k, a);
        epi_cuda_drop_launches(k);
    }
    k->refused = refused;
    epi_jit_compile_all(a->items, a->count);
}

/* Where the text was compiled ahead, the item has what became of it, and no source any more. */
static void take_ahead(ahead *a, epi_jit_item *item) {
    epi_jit_item *found = find_ahead(a, item->source);
    if (!found)
        return;
    *item = *found;
    item->source = NULL;
    if (found->cubin.data) /* it is the item's now */
        found->source = found->cubin.data = NULL;
}

/* Where the compiler says that a product or attention would be slow, *slow is it. */
static epi_status build(epi_cuda_kernel *k, ahead *a, const epi_launch **slow, epi_error *err) {
    epi_jit_item *items = calloc((size_t)k->count + 1, sizeof *items);
    EPI_TRY(epi_has_memory(items, err));
    for (int i = 0; i < k->count; i++)
        if (!k->launches[i].empty && !k->launches[i].joined) {
            items[i] = item_of(&k->launches[i]);
            take_ahead(a, &items[i]);
        }
    epi_jit_compile_all(items, k->count);
    epi_status status = EPI_OK;
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        if (l->empty || l->joined)
            continue;
        if (status == EPI_OK && items[i].status != EPI_OK) {
            status = items[i].status;
            if (err)
                *err = items[i].error;
            if (items[i].cubin.slow && l->alike)
                *slow = l;
        }
        if (status == EPI_OK && items[i].cubin.note[0])
            snprintf(k->note, sizeof k->note, "%s", items[i].cubin.note);
        l->registers = items[i].cubin.registers;
        l->compile_seconds = items[i].cubin.seconds;
        l->cached = items[i].cubin.cached;
        if (status == EPI_OK)
            status = epi_cuda_load(k->cuda, items[i].cubin.data, l->text.name, l->text.shared, &l->library,
                                   &l->how.function, err);
        epi_cubin_free(&items[i].cubin);
    }
    free(items);
    return status;
}

/* ---- launches ---- */

/* The tensor maps, for now of a tensor that lies nowhere in particular. */
static epi_status encode_maps(epi_cuda_kernel *k, epi_error *err) {
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        const epi_kernel_text *t = &l->text;
        void *room = epi_arena_alloc(k->arena, ((size_t)t->map_count + 1) * sizeof *l->maps);
        EPI_TRY(epi_has_memory(room, err));
        l->maps = (epi_tensor_map *)(((uintptr_t)room + 63) & ~(uintptr_t)63);
        for (int m = 0; m < t->map_count && !l->empty; m++) {
            const epi_map_need *n = &t->maps[m];
            EPI_TRY(epi_cuda_map(k->cuda, &l->maps[m], n->type, n->rank, (void *)(uintptr_t)4096, n->sizes,
                                 n->strides + 1, n->box, n->swizzle, err));
        }
    }
    return EPI_OK;
}

static epi_status check_types(const epi_cuda_kernel *k, epi_error *err) {
    const epi_graph *g = k->spec.graph;
    for (int t = 0; t < g->tensor_count; t++)
        if (k->spec.types[t] == EPI_F64)
            return epi_fail(err, EPI_ERR_UNSUPPORTED,
                            "the tensor '%s' is stored as f64, which GPU kernels do not support",
                            g->tensors[t].name);
    return EPI_OK;
}

/* The texts of the part, and the shapes of their launches; none where no tile can hold it. */
static epi_status make_launches(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err) {
    epi_error why = {0};
    epi_status status = epi_cuda_emit(k, target, &why);
    if (status == EPI_ERR_UNSUPPORTED && !target->config && !k->join.on) {
        epi_cuda_drop_launches(k);
        status = epi_steps_refuse(k->arena, &k->steps, why.message, &why);
        if (status == EPI_OK && !k->steps.refused)
            status = epi_cuda_emit(k, target, &why);
    }
    if (status != EPI_OK && err)
        *err = why;
    return status;
}

/* ---- forms ---- */

/* What the launches of a form would take with the sizes of this spec. */
double epi_cuda_form_cost(const epi_cuda_kernel *form, const epi_spec *spec, const epi_cuda_target *target) {
    double cost = 0;
    for (int i = 0; i < form->count; i++) {
        const epi_launch *l = &form->launches[i];
        if (epi_cuda_mainloops[l->kind].cost)
            cost += epi_cuda_mainloops[l->kind].cost(l, spec->open, target);
    }
    return cost;
}

static const epi_cuda_kernel *choose_form(const epi_spec *spec, const epi_cuda_target *target) {
    const epi_cuda_kernel *best = target->forms[0];
    for (int i = 1; i < target->form_count; i++)
        if (epi_cuda_form_cost(target->forms[i], spec, target) < epi_cuda_form_cost(best, spec, target))
            best = target->forms[i];
    return best->like ? best->like : best;
}

bool epi_cuda_same_text(const epi_cuda_kernel *a, const epi_cuda_kernel *b) {
    bool same = a->count == b->count;
    for (int i = 0; i < a->count && same; i++) {
        const epi_kernel_text *x = &a->launches[i].text, *y = &b->launches[i].text;
        same = x->source.length == y->source.length &&
               !memcmp(x->source.data, y->source.data, x->source.length) && x->block == y->block &&
               x->shared == y->shared && a->launches[i].choice == b->launches[i].choice;
    }
    return same;
}

/* The launches with this kernel's sizes take the form's cubins. */
static epi_status take_form(epi_cuda_kernel *k, epi_error *err) {
    if (!epi_cuda_same_text(k, k->like)) /* texts are written from stand-ins alone */
        return EPI_INTERNAL(err, (epi_place){0}, "a kernel's text depends on a size that is open");
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        const epi_launch *from = &k->like->launches[i];
        l->how.function = from->how.function;
        l->registers = from->registers;
        if (k->cuda) /* what is asked about texts is asked of the form */
            epi_text_free(&l->text.source);
    }
    return EPI_OK;
}

/* The form that this one, of another size, is the same as; NULL where it is one of its own. */
static const epi_cuda_kernel *find_form(const epi_cuda_kernel *k) {
    for (int i = 0; i < k->form_count; i++)
        if (epi_cuda_same_text(k, k->forms[i]))
            return k->forms[i];
    return NULL;
}

static void unload(epi_cuda_kernel *k) {
    for (int i = 0; i < k->count; i++)
        if (k->launches[i].library)
            epi_cuda_unload(k->cuda, k->launches[i].library);
}

/* Without launches yet; NULL: there is no memory. */
static epi_cuda_kernel *begin_kernel(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target) {
    epi_cuda_kernel *k = epi_arena_alloc(arena, sizeof *k);
    if (!k)
        return NULL;
    *k = (epi_cuda_kernel){.arena = arena,
                           .spec = *spec,
                           .text_spec = *spec,
                           .info = {.micro = ""},
                           .cuda = target->cuda,
                           .device = target->device};
    if (spec->open)
        memcpy(k->text_spec.sizes, spec->open->sizes, sizeof k->text_spec.sizes);
    for (int i = 0; i < target->form_count && i < EPI_MOST_FORMS; i++)
        k->forms[k->form_count++] = target->forms[i];
    return k;
}

/* What texts become on a GPU: maps, and the cubins of the form that it is like, or its own. */
static epi_status load(epi_cuda_kernel *k, ahead *a, const epi_launch **slow, epi_error *err) {
    epi_status status = k->cuda ? epi_cuda_use(k->cuda, k->device, err) : EPI_OK;
    if (status == EPI_OK && k->cuda)
        status = encode_maps(k, err);
    if (status == EPI_OK && k->like)
        return take_form(k, err);
    return status == EPI_OK && k->cuda ? build(k, a, slow, err) : status;
}

/* The texts, and the form that has the same. */
static epi_status plan_launches(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err) {
    epi_status status = make_launches(k, target, err);
    if (status == EPI_OK && !k->steps.refused && !k->like)
        k->like = find_form(k);
    return status;
}

/* With the first configuration that the compiler does not find slow. */
static epi_status build_first(epi_cuda_kernel *k, const epi_cuda_target *target, ahead *a, epi_error *err) {
    bool choice = k->cuda && !k->like && !target->config && !k->join.on;
    /* a reduction inside the tile takes registers; of another form it is known how many are too many */
    bool likely = k->steps.plan.local_axes > 0 && !k->form_count;
    for (;;) {
        bool looks = choice && likely && a->refused == a->count;
        if (looks) {
            epi_cuda_drop_launches(k);
            look_ahead(k, target, a);
        }
        epi_status status = k->count ? EPI_OK : plan_launches(k, target, err);
        if (status != EPI_OK || k->steps.refused)
            return status;
        const epi_launch *slow = NULL;
        status = load(k, a, &slow, err);
        if (status == EPI_OK || !slow || target->config)
            return status;
        k->refused |= slow->alike; /* so the next best */
        a->refused += a->count > 0;
        likely = true;
        epi_error_clear(err);
        unload(k);
        epi_cuda_drop_launches(k);
    }
}

epi_status epi_cuda_plan(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target,
                         epi_cuda_kernel **out, epi_error *err) {
    epi_cuda_kernel *k = *out = begin_kernel(arena, spec, target);
    EPI_TRY(epi_has_memory(k, err));
    if (target->form_count && !target->is_form)
        k->like = choose_form(&k->spec, target);
    if (k->like)
        k->join = k->like->join;
    epi_status status = epi_steps_begin(arena, &k->spec, &k->steps, err);
    if (status == EPI_OK)
        status = check_types(k, err);
    k->steps.pages = target->arch->wgmma;
    k->steps.updates = true;
    if (status == EPI_OK)
        status = epi_steps_make(arena, &k->steps, err);
    k->workspace = epi_round_up(k->steps.workspace, 64);
    if (status != EPI_OK || !k->steps.count) /* nothing is stored, so nothing is launched */
        return status;
    k->launches = epi_arena_alloc(arena, ((size_t)k->steps.count * 4 + 4) * sizeof *k->launches);
    EPI_TRY(epi_has_memory(k->launches, err));
    return plan_launches(k, target, err);
}

epi_status epi_cuda_build(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err) {
    if (!k->steps.count || k->steps.refused)
        return EPI_OK;
    ahead *a = calloc(1, sizeof *a);
    EPI_TRY(epi_has_memory(a, err));
    epi_status status = build_first(k, target, a, err);
    free_ahead(a);
    free(a);
    return status;
}

epi_status epi_cuda_compile(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target,
                            epi_cuda_kernel **out, epi_error *err) {
    EPI_TRY(epi_cuda_plan(arena, spec, target, out, err));
    return epi_cuda_build(*out, target, err);
}

epi_status epi_cuda_plan_again(epi_cuda_kernel *k, const epi_cuda_target *target, epi_join join,
                               epi_error *err) {
    epi_cuda_drop_launches(k);
    k->join = join;
    k->like = NULL;
    return plan_launches(k, target, err);
}

epi_status epi_cuda_compile_checks(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target,
                                   const epi_cuda_kernel *like, epi_cuda_kernel **out, int **nodes,
                                   epi_error *err) {
    int count = 0;
    for (int i = 0; i < spec->graph->node_count; i++)
        count += epi_index_is_input(spec, i);
    if (!count)
        return EPI_OK;
    epi_cuda_kernel *k = *out = begin_kernel(arena, spec, target);
    epi_launch *launches = epi_arena_alloc(arena, (size_t)count * sizeof *launches);
    *nodes = epi_arena_alloc(arena, (size_t)count * sizeof **nodes);
    EPI_TRY(epi_has_memory(k && launches && *nodes, err));
    for (int i = spec->graph->node_count - 1; i >= 0; i--)
        if (epi_index_is_input(spec, i))
            (*nodes)[--count] = i;
    k->launches = launches;
    k->like = like;
    const epi_launch *slow = NULL;
    ahead none = {.count = 0};
    epi_status status = epi_cuda_emit_checks(k, target, err);
    return status == EPI_OK ? load(k, &none, &slow, err) : status;
}

void epi_cuda_kernel_free(epi_cuda_kernel *k) {
    if (!k || !k->launches)
        return;
    unload(k);
    epi_cuda_drop_launches(k);
}

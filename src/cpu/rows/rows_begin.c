/* rows_begin.c: finds where the values of a run are, which stores are non-temporal, and what is the same for
 * all rows.
 */
#include "cpu/rows/rows_begin.h"

#include <unistd.h>

/* Non-temporal stores are better for what does not fit into the caches: a plain store reads its line first.
 */
static int64_t cache_bytes(void) {
#if defined(_SC_LEVEL3_CACHE_SIZE)
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes > 0)
        return bytes;
#endif
    return 32 << 20;
}

/* Is the output stored over something that the rows load? */
static bool is_in_place(const epi_rows_begun *r, int store) {
    const epi_tile_program *t = &r->k->tile;
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].kind == EPI_INSTR_LOAD && r->access[i].ref.data == r->access[store].ref.data)
            return true;
    return false;
}

static void find_store(epi_rows_begun *r, int i, int64_t cache) {
    const epi_rows *k = r->k;
    const epi_instr *s = &k->tile.instrs[i];
    epi_tile_access *a = &r->access[i];
    int64_t bytes = epi_axes_size(&a->ref.axes, k->tile.spec->sizes) * (int64_t)epi_dtype_size(a->ref.type);
    bool in_place = is_in_place(r, i);
    a->nontemporal = k->strips->nontemporal && a->plain && a->cols.walk.count && !in_place && bytes > cache;
    r->settles |= a->nontemporal;
    r->in_place |= in_place;
    if (k->store[s->arg[0]] == i && a->direct && !a->nontemporal && !in_place &&
        r->source[s->arg[0]] == EPI_IN_SLOT)
        r->source[s->arg[0]] = i;
}

/* An input that is stored as it is, while another output takes its place, is copied to a slot first. */
static void save_source(epi_rows_begun *r, int store) {
    const epi_tile_program *t = &r->k->tile;
    int v = t->instrs[store].arg[0], from = r->source[v];
    if (from < 0 || t->instrs[from].kind != EPI_INSTR_LOAD)
        return;
    for (int i = 0; i < t->instr_count; i++)
        if (i != store && t->instrs[i].full && t->instrs[i].kind == EPI_INSTR_STORE &&
            r->access[i].ref.data == r->access[from].ref.data) {
            r->access[from].direct = false;
            r->source[v] = EPI_IN_SLOT;
        }
}

/* Does some value that the item reads or makes lie in a tensor whose rows are not a fixed distance apart? */
static bool is_strewn(const epi_rows_begun *r, const epi_tapes *tapes, const epi_tape_item *item) {
    for (int at = item->first; at < item->first + item->count; at++) {
        const epi_instr *s = &r->k->tile.instrs[tapes->order[at]];
        const int values[] = {s->arg[0], s->arg[1], s->arg[2], s->dst};
        for (int i = 0; i < 4; i++)
            if (values[i] >= 0 && r->source[values[i]] >= 0 &&
                !epi_access_is_regular(&r->access[r->source[values[i]]]))
                return true;
    }
    return false;
}

static void find_regular(epi_rows_begun *r) {
    const epi_rows *k = r->k;
    r->nothing_else = !r->in_place;
    for (int p = 0; p < k->tile.phases; p++)
        for (int i = 0; i < k->tapes[p].item_count; i++) {
            const epi_tape_item *item = &k->tapes[p].items[i];
            const epi_instr *only = &k->tile.instrs[k->tapes[p].order[item->first]];
            bool tape = item->link_count > 0,
                 regular = tape && epi_tape_is_regular(&k->tapes[p], &k->tile, item, r->access) &&
                           !is_strewn(r, &k->tapes[p], item),
                 taken = !tape && only->kind == EPI_INSTR_LOAD && k->tapes[p].load[only->dst] >= 0;
            r->regular[k->item_start[p] + i] = regular;
            r->nothing_else &= regular || taken;
        }
}

void epi_rows_begin(epi_rows_begun *r, const epi_ref *homes, const epi_ref *tensors) {
    const epi_rows *k = r->k;
    const epi_tile_program *t = &k->tile;
    int64_t cache = cache_bytes();
    for (int v = 0; v < t->value_count; v++)
        r->source[v] = !t->values[v].rows ? EPI_IN_COLUMNS
                       : k->keep[v] >= 0  ? EPI_IN_ROW_BUFFER
                                          : EPI_IN_SLOT;
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        epi_tile_access *a = &r->access[i];
        epi_tile_access_find(t, i, homes, tensors, a);
        r->shifts |= s->kind == EPI_INSTR_SHIFT && s->full;
        if (s->full && a->plain && a->ref.type == EPI_F32 && k->band == 1)
            a->direct = true; /* one row is not apart from others */
        if (s->kind == EPI_INSTR_LOAD && t->values[s->dst].scale != EPI_SCALE_NONE && a->direct)
            r->source[s->dst] = i;
    }
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].full && t->instrs[i].kind == EPI_INSTR_STORE)
            find_store(r, i, cache);
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].full && t->instrs[i].kind == EPI_INSTR_STORE)
            save_source(r, i);
    for (int v = 0; v < t->value_count; v++)
        if (r->source[v] != EPI_IN_SLOT && (t->values[v].rows || t->values[v].scale != EPI_SCALE_NONE))
            r->moving[r->moves++] = v;
    find_regular(r);
}

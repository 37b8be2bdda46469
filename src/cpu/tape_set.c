/* tape_set.c: where the operands of a tape's links lie in a tile. */
#include "cpu/tape.h"

static epi_operand in_tensor(const epi_tape_place *p, const epi_tile_access *a, int v) {
    ptrdiff_t step = epi_tile_access_ld(a) * (ptrdiff_t)epi_dtype_size(a->ref.type);
    return (epi_operand){epi_block_address(p->block, a, p->block->tile->values[v].scale), a->ref.type, 1,
                         step, p->rows * step};
}

static epi_operand in_memory(const epi_tape_place *p, int v) {
    const epi_tile_value *value = &p->block->tile->values[v];
    const epi_spot *at = &p->block->at[v];
    const ptrdiff_t size = sizeof(float);
    if (epi_tile_is_full(value))
        return (epi_operand){at->p, EPI_F32, 1, at->ld * size, at->walk * size};
    if (value->rows)
        return (epi_operand){at->p, EPI_F32, 0, size, p->rows * size};
    return (epi_operand){at->p, EPI_F32, value->scale != EPI_SCALE_NONE, 0, 0};
}

static epi_operand operand_of(const epi_tape_place *p, int v) {
    if (v < 0)
        return (epi_operand){0};
    int load = p->tapes->load[v];
    if (load >= 0 && epi_access_is_regular(&p->block->access[load]))
        return in_tensor(p, &p->block->access[load], v);
    return in_memory(p, v);
}

static epi_operand partials_at(const epi_tape_place *p, const epi_instr *s) {
    const ptrdiff_t size = sizeof(float);
    float *at = p->partials(p->ctx, s);
    return s->kind == EPI_INSTR_PARTIAL_ROWS ? (epi_operand){at, EPI_F32, 0, size, p->rows * size}
                                             : (epi_operand){at, EPI_F32, 1, 0, 0};
}

static bool is_kept(const epi_tape_link *link, int count, int v) {
    for (int l = 0; l < count; l++)
        if (link[l].kind == EPI_LINK_KEEP && link[l].a == v)
            return true;
    return false;
}

/* Is what the link stores there already, or stored after the tape, from where it is kept? */
static bool needs_no_store(const epi_tape_place *p, const epi_tape_item *item, const epi_tape_link *k) {
    const epi_tile_access *a = &p->block->access[k->step];
    bool made_there = a->direct && p->block->tile->values[k->a].store == k->step;
    return (made_there || !epi_access_is_regular(a)) &&
           is_kept(p->tapes->links + item->link, item->link_count, k->a);
}

/* Elements of what lies in memory and goes on with the rows: a tensor's, the product's. */
static int bytes_each(const epi_link *k, const epi_operand *o) {
    bool fine = o == (k->kind == EPI_LINK_PARTS ? &k->a : k->kind == EPI_LINK_JOIN ? &k->b : NULL);
    return o->col && o->walk ? (int)epi_dtype_size(o->type) << fine : 0;
}

/* Ends the tape that begins with `link` and has links up to `end`. */
static void add_fetches(const epi_link *link, epi_link *end, int most) {
    epi_link *to = end;
    for (const epi_link *k = link; k < end; k++) {
        const epi_operand *const all[] = {&k->a, &k->b, &k->to};
        for (int i = 0; i < 3; i++) {
            int bytes = bytes_each(k, all[i]);
            const epi_link *same = end;
            while (same < to && same->a.p != all[i]->p)
                same++;
            if (bytes && same == to && to < end + most) {
                *to = (epi_link){.a = *all[i], .kind = EPI_LINK_FETCH};
                to++->a.col = bytes;
            }
        }
    }
    to->kind = EPI_LINK_NONE;
}

/* Where a link that keeps or stores puts v. */
static epi_operand target_of(const epi_tape_place *p, const epi_tape_link *k) {
    EPI_ASSERT(p->tapes->load[k->a] < 0); /* it may be where an input lies */
    const epi_tile_access *a = k->kind == EPI_LINK_STORE ? &p->block->access[k->step] : NULL;
    return a && epi_access_is_regular(a) ? in_tensor(p, a, k->a) : in_memory(p, k->a);
}

/* Brings the value that was the last to be made to `o`; the link that made it, which is before `to`, may do
 * it. */
static void add_store(epi_link **to, const epi_link *made, epi_operand o) {
    if (made && made == *to - 1 && !made->to.p && o.type == EPI_F32)
        (*to)[-1].to = o;
    else
        *(*to)++ = (epi_link){.kind = EPI_LINK_STORE, .a = o};
}

static bool is_row(const epi_operand *o) {
    return o->col && o->type == EPI_F32;
}

/* A link of two operands: one that only brings v before it goes into it. */
static void join_get(epi_link **to, const epi_link *first) {
    epi_link *k = *to - 1, *get = k - 1;
    if (get < first || get->kind != EPI_LINK_GET || get->to.p || k->kind > EPI_LINK_SUB_FROM ||
        !is_row(&get->a) || !is_row(&k->a))
        return;
    epi_operand v = get->a;
    *get = *k;
    get->b = v;
    --*to;
}

void epi_tape_set(const epi_tape_place *p, const epi_tape_item *item, epi_link *links) {
    epi_link *to = links + item->link;
    const epi_link *made = NULL; /* the last link that made something of v */
    for (int l = item->link; l < item->link + item->link_count; l++) {
        const epi_tape_link *k = &p->tapes->links[l];
        const epi_instr *s = k->step >= 0 ? &p->block->tile->instrs[k->step] : NULL;
        if (k->kind == EPI_LINK_KEEP || k->kind == EPI_LINK_STORE) {
            if (k->kind == EPI_LINK_KEEP || !needs_no_store(p, item, k))
                add_store(&to, made, target_of(p, k));
            continue;
        }
        *to = (epi_link){.a = operand_of(p, k->a), .kind = k->kind};
        if (k->kind != EPI_LINK_FOLD)
            to->b = operand_of(p, k->b);
        switch (k->kind) {
        case EPI_LINK_MULADD:
        case EPI_LINK_ADD_PRODUCT:
            to->scale[0] = s->sign;
            to->scale[1] = s->other;
            break;
        case EPI_LINK_JOIN:
            if (s && epi_access_is_regular(&p->block->access[k->step]))
                to->b = in_tensor(p, &p->block->access[k->step], k->b);
            break;
        case EPI_LINK_PARTS:
            if (k->b < 0)
                to->b = (epi_operand){p->block->tmp, EPI_F32, 1, 0, 0};
            break;
        case EPI_LINK_FOLD:
        case EPI_LINK_COLUMNS:
            to->a = partials_at(p, s);
            to->op = s->op;
            if (k->kind == EPI_LINK_FOLD) {
                to->scale[0] = epi_reduce_identity(s->op);
                to->keep = p->state + (ptrdiff_t)EPI_BLOCK_MOST * k->b;
            }
            break;
        default: break;
        }
        to++;
        join_get(&to, links + item->link);
        if (k->made >= 0)
            made = to - 1;
    }
    add_fetches(links + item->link, to, p->block->strips->fetches ? EPI_TAPE_FETCHES : 0);
    p->block->strips->ready(links + item->link);
}

static void walk(epi_operand *o) {
    if (o->walk)
        o->p = (const unsigned char *)o->p + o->walk;
}

void epi_tape_walk(epi_link *link) {
    for (; link->kind != EPI_LINK_NONE; link++) {
        walk(&link->a);
        walk(&link->b);
        walk(&link->to);
    }
}

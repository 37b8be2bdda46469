/* tape_set.c: where the operands of a tape's links are in a tile. */
#include "cpu/rows/tape.h"

static bool is_taken(const epi_tape_place *p, const epi_tile_access *a) {
    return p->alone ? epi_access_is_row(a) : epi_access_is_regular(a);
}

/* Does a tape load or store it, where it lies? */
static bool tape_moves(const epi_tape_place *p, int instr) {
    const epi_instr *s = &p->band->tile->instrs[instr];
    if (!is_taken(p, &p->band->access[instr]))
        return false;
    if (s->kind == EPI_INSTR_SHIFT) /* what is outside is nowhere */
        return p->alone && p->tapes->load[s->dst] == instr && epi_band_is_inside(p->band, instr);
    return s->kind == EPI_INSTR_STORE ? !p->held
                                      : s->kind == EPI_INSTR_LOAD && p->tapes->load[s->dst] == instr;
}

void epi_tape_strip(const epi_tape_place *p, const epi_tape_item *item) {
    int instr = p->tapes->order[item->first];
    if (p->band->tile->instrs[instr].kind != EPI_INSTR_STORE && !tape_moves(p, instr))
        p->strip(p->ctx, instr);
}

void epi_tape_stores(const epi_tape_place *p) {
    const epi_tapes *t = p->tapes;
    for (int k = 0; k < t->item_count; k++)
        for (int at = t->items[k].first; at < t->items[k].first + t->items[k].count; at++)
            if (p->band->tile->instrs[t->order[at]].kind == EPI_INSTR_STORE &&
                !(t->items[k].link_count && tape_moves(p, t->order[at])))
                p->strip(p->ctx, t->order[at]);
}

bool epi_tape_is_regular(const epi_tapes *t, const epi_tile_program *tile, const epi_tape_item *item,
                         const epi_tile_access *access) {
    for (int at = item->first; at < item->first + item->count; at++) {
        const epi_instr *s = &tile->instrs[t->order[at]];
        if (s->kind == EPI_INSTR_STORE && !epi_access_is_regular(&access[t->order[at]]))
            return false;
        for (int a = 0; a < 3; a++)
            if (s->arg[a] >= 0 && t->load[s->arg[a]] >= 0 &&
                !epi_access_is_regular(&access[t->load[s->arg[a]]]))
                return false;
    }
    return true;
}

/* ---- operands ---- */

static epi_link_operand in_tensor(const epi_tape_place *p, const epi_tile_access *a, int v) {
    epi_scale scale = p->band->tile->values[v].scale;
    ptrdiff_t size = (ptrdiff_t)epi_dtype_size(a->ref.type), row = epi_access_ld(a) * size;
    return (epi_link_operand){epi_band_address(p->band, a, scale), a->ref.type, 1, row, row, size};
}

static epi_link_operand in_memory(const epi_tape_place *p, int v) {
    const epi_tile_value *value = &p->band->tile->values[v];
    const epi_spot *at = &p->band->at[v];
    const ptrdiff_t size = sizeof(float), row = epi_value_is_full(value) ? at->ld * size
                                                : value->rows            ? size
                                                                         : 0;
    int col = value->scale != EPI_SCALE_NONE;
    return (epi_link_operand){at->p, EPI_F32, col, row, at->down ? row : 0, at->along && col ? size : 0};
}

static epi_link_operand operand_of(const epi_tape_place *p, int v) {
    int load = v >= 0 ? p->tapes->load[v] : -1;
    if (v < 0)
        return (epi_link_operand){0};
    return load >= 0 && tape_moves(p, load) ? in_tensor(p, &p->band->access[load], v) : in_memory(p, v);
}

static epi_link_operand fold_target(const epi_tape_place *p, int instr) {
    const epi_instr *s = &p->band->tile->instrs[instr];
    const ptrdiff_t size = sizeof(float);
    float *at = p->fold_at(p->ctx, instr);
    return s->kind == EPI_INSTR_PARTIAL_COLS
               ? (epi_link_operand){at, EPI_F32, 1, 0, 0, size}
               : (epi_link_operand){at, EPI_F32, 0, size, p->alone ? 0 : size, 0};
}

/* ---- stores ---- */

typedef struct setter {
    const epi_tape_place *p;
    const epi_tape_link *links; /* of the item */
    int count;
    epi_link *first, *to;
    const epi_link *made; /* the last link that made something of v */
} setter;

static bool is_kept(const setter *s, int v) {
    for (int l = 0; l < s->count; l++)
        if (s->links[l].kind == EPI_LINK_KEEP && s->links[l].a == v)
            return true;
    return false;
}

static bool is_made(const setter *s, int v) {
    for (int l = 0; l < s->count; l++)
        if (s->links[l].made == v)
            return true;
    return false;
}

/* Puts v, which was the last to be made, into memory; the link that made it may do so. */
static void add_store(setter *s, epi_link_operand o, bool nontemporal) {
    if (s->made && s->made == s->to - 1 && !s->made->to.p && o.type == EPI_F32 && !nontemporal)
        s->to[-1].to = o;
    else
        *s->to++ = (epi_link){.kind = EPI_LINK_STORE, .a = o, .nontemporal = nontemporal};
}

/* What the tape does not store itself is stored after it, from where it is kept. */
static void set_store(setter *s, const epi_tape_link *k) {
    const epi_tape_place *p = s->p;
    const epi_tile_access *a = &p->band->access[k->instr];
    bool moves = tape_moves(p, k->instr), in_registers = is_made(s, k->a) && !is_kept(s, k->a);
    epi_link_operand to = moves ? in_tensor(p, a, k->a) : in_memory(p, k->a);
    if (in_registers || to.p != p->band->at[k->a].p)
        add_store(s, to, moves && a->nontemporal);
}

/* ---- links ---- */

/* A link that only brings v goes into the one after it. */
static void join_get(setter *s) {
    epi_link *k = s->to - 1, *get = k - 1;
    if (get < s->first || get->kind != EPI_LINK_GET || get->folds || get->to.p || k->from.p ||
        k->kind == EPI_LINK_SPLIT)
        return;
    epi_link_operand from = get->from;
    *get = *k;
    get->from = from;
    s->to--;
}

static bool is_plain(const epi_link_operand *o) {
    return !o->col || o->type == EPI_F32;
}

/* Two products one after the other become one link. */
static void join_products(setter *s) {
    epi_link *k = s->to - 1, *before = k - 1;
    if (before < s->first || before != s->made || before->kind != EPI_LINK_MUL || k->kind != EPI_LINK_MUL ||
        before->folds || before->to.p || k->from.p || !is_plain(&before->a) || !is_plain(&k->a))
        return;
    before->kind = EPI_LINK_MUL_MUL;
    before->b = k->a;
    s->to--;
}

/* A sum is done by the link that made v where it has a form for that; else by one that leaves v as it is. */
static void set_fold(setter *s, const epi_tape_link *k) {
    const epi_tape_place *p = s->p;
    epi_op op = p->band->tile->instrs[k->instr].op;
    epi_link *to = s->to - 1;
    bool here = s->made && s->made == to && !to->folds && epi_ops[op].adds &&
                (to->kind == EPI_LINK_SQUARE || to->kind == EPI_LINK_MAP + EPI_OP_EXP ||
                 (to->kind == EPI_LINK_MUL && to->a.col));
    if (!here) {
        to = s->to++;
        *to = (epi_link){.kind = EPI_LINK_GET};
    }
    to->folds = true;
    to->b = fold_target(p, k->instr);
    to->op = op;
    to->identity = epi_reduce_identity(op);
    to->state = p->state + (ptrdiff_t)EPI_STATE_MOST * k->b;
    if (!here)
        join_get(s);
}

static void set_link(setter *s, const epi_tape_link *k) {
    const epi_tape_place *p = s->p;
    const epi_instr *instr = k->instr >= 0 ? &p->band->tile->instrs[k->instr] : NULL;
    epi_link *to = s->to++;
    *to = (epi_link){.kind = k->kind};
    switch (k->kind) {
    case EPI_LINK_GET: to->from = operand_of(p, k->a); break;
    case EPI_LINK_OVER:
        to->a = operand_of(p, k->a);
        to->state = p->state + (ptrdiff_t)EPI_STATE_MOST * k->b;
        break;
    case EPI_LINK_SPLIT:
        to->a = operand_of(p, k->a);
        to->a.along *= 2;
        to->b = k->b >= 0 ? in_memory(p, k->b) : (epi_link_operand){p->band->tmp, EPI_F32, 1, 0, 0, 0};
        break;
    case EPI_LINK_JOIN: {
        bool moves = instr && tape_moves(p, k->instr);
        to->a = operand_of(p, k->a);
        to->b = moves ? in_tensor(p, &p->band->access[k->instr], k->b) : in_memory(p, k->b);
        to->b.along *= 2;
        to->nontemporal = moves && p->band->access[k->instr].nontemporal;
        break;
    }
    case EPI_LINK_COLUMNS:
        to->a = fold_target(p, k->instr);
        to->op = instr->op;
        break;
    default:
        to->a = operand_of(p, k->a);
        to->b = operand_of(p, k->b);
        break;
    }
    join_get(s);
    join_products(s);
    if (k->made >= 0)
        s->made = s->to - 1;
}

epi_link *epi_tape_set(const epi_tape_place *p, const epi_tape_item *item, epi_link *links) {
    epi_link *first = links + item->link;
    setter s = {.p = p,
                .links = p->tapes->links + item->link,
                .count = item->link_count,
                .first = first,
                .to = first};
    for (int l = 0; l < s.count; l++) {
        const epi_tape_link *k = &s.links[l];
        if (k->kind == EPI_LINK_KEEP)
            add_store(&s, in_memory(p, k->a), false);
        else if (k->kind == EPI_LINK_STORE)
            set_store(&s, k);
        else if (k->kind == EPI_LINK_FOLD)
            set_fold(&s, k);
        else
            set_link(&s, k);
    }
    return s.to;
}

void epi_tape_prefetch(epi_link **end, const epi_link_operand *a, int64_t bytes, int n,
                       const int64_t share[3]) {
    int64_t lines = epi_ceil_div(bytes, EPI_LINE * EPI_WAYS), all = epi_max64(1, share[2]),
            from = lines * share[0] / all, to = lines * share[1] / all;
    if (n <= 0 || from == to)
        return;
    *(*end)++ = (epi_link){.kind = EPI_LINK_PREFETCH,
                           .a = *a,
                           .rate = (uint32_t)epi_ceil_div((to - from) << 16, n),
                           .ahead = lines * EPI_LINE};
    (*end)[-1].a.p = (const unsigned char *)a->p + from * EPI_LINE;
}

void epi_tape_end(const epi_strips *strips, epi_link *link, epi_link *end) {
    end->kind = EPI_LINK_NONE;
    strips->ready(link);
}

static void move(epi_link_operand *o, int64_t rows, int64_t columns) {
    if (o->p)
        o->p = (const unsigned char *)o->p + rows * o->down + columns * o->along;
}

void epi_tape_move(epi_link *link, int64_t rows, int64_t columns) {
    for (; link->kind != EPI_LINK_NONE; link++) {
        move(&link->from, rows, columns);
        move(&link->a, rows, columns);
        move(&link->b, rows, columns);
        move(&link->to, rows, columns);
    }
}

/* chain.c: which steps become a chain, and the chain of a row. */
#include "cpu/chain.h"

#include <string.h>

/* ---- once ---- */

typedef struct finder {
    const epi_tile_program *t;
    const int *list, *kept;
    int count;
    int *next, *before; /* by place in the list: the next link of a chain, and the one before; or -1 */
} finder;

static bool is_short(const epi_tile_program *t, int v) {
    return t->values[v].scale == EPI_SCALE_NONE;
}

epi_link_kind epi_link_of(const epi_instr *s, int v, int *a, int *b) {
    int times = epi_step_reads(s, v), other = s->arg[0] == v ? s->arg[1] : s->arg[0];
    bool product = s->kind == EPI_INSTR_MULADD;
    *a = *b = -1;
    if (times == 0 || (!product && s->kind != EPI_INSTR_MAP))
        return EPI_LINK_NONE;
    if (!product && epi_ops[s->op].arity == 1)
        return EPI_LINK_MAP + s->op;
    if (!product && s->op == EPI_OP_MUL && times == 2)
        return EPI_LINK_SQUARE;
    if (times != 1)
        return EPI_LINK_NONE;
    bool added = product && s->arg[2] == v;
    *a = added ? s->arg[0] : other;
    *b = added ? s->arg[1] : s->arg[2];
    if (product)
        return added ? EPI_LINK_ADD_PRODUCT : EPI_LINK_MULADD;
    switch (s->op) {
    case EPI_OP_MUL: return EPI_LINK_MUL;
    case EPI_OP_ADD: return EPI_LINK_ADD;
    case EPI_OP_SUB: return s->arg[0] == v ? EPI_LINK_SUB : EPI_LINK_SUB_FROM;
    case EPI_OP_DIV: return s->arg[0] == v ? EPI_LINK_SCALE : EPI_LINK_NONE;
    default: return EPI_LINK_NONE;
    }
}

/* Can the step go on with the value `v`? */
static bool is_link(const epi_tile_program *t, const epi_instr *s, int v) {
    int a, b;
    if (!s->full || epi_step_reads(s, v) == 0)
        return false;
    if (s->kind == EPI_INSTR_STORE || epi_chain_folds(s))
        return s->op != EPI_OP_LOGSUMEXP;
    epi_link_kind kind = epi_link_of(s, v, &a, &b);
    return kind != EPI_LINK_NONE && (kind != EPI_LINK_SCALE || is_short(t, a));
}

/* The operand that a chain which starts with the step takes up, or -1. */
static int start_of(const epi_tile_program *t, const epi_instr *s) {
    for (int a = 0; a < 3; a++)
        if (s->arg[a] >= 0 && epi_tile_is_full(&t->values[s->arg[a]]) && is_link(t, s, s->arg[a]))
            return s->arg[a];
    return -1;
}

/* Is the step one whose result the next link may take? */
static bool is_source(const epi_tile_program *t, const epi_instr *s) {
    return s->full && s->dst >= 0 && s->kind != EPI_INSTR_REDUCE_ROW &&
           (s->kind == EPI_INSTR_LOAD || start_of(t, s) >= 0);
}

/* The one step of the list that reads what step i makes, or -1. */
static int only_reader(const finder *f, int i) {
    int reader = -1, v = f->t->instrs[f->list[i]].dst;
    for (int j = 0; j < f->count; j++)
        if (epi_step_reads(&f->t->instrs[f->list[j]], v)) {
            if (reader >= 0)
                return -1;
            reader = j;
        }
    return reader;
}

/* Joins two steps where they can be; values that are computed go before those that are loaded. */
static void join(finder *f, bool loaded) {
    for (int i = 0; i < f->count; i++) {
        const epi_instr *s = &f->t->instrs[f->list[i]];
        if ((s->kind == EPI_INSTR_LOAD) != loaded || !is_source(f->t, s))
            continue;
        int j = only_reader(f, i);
        if (j < 0 || f->before[j] >= 0 || !is_link(f->t, &f->t->instrs[f->list[j]], s->dst))
            continue;
        f->next[i] = j;
        f->before[j] = i;
    }
}

/* A link, and one more where the value is kept. */
static void cut_long(finder *f) {
    for (int i = 0; i < f->count; i++) {
        if (f->before[i] >= 0)
            continue;
        for (int at = i, links = 0; at >= 0; at = f->next[at]) {
            const epi_instr *s = &f->t->instrs[f->list[at]];
            links += 1 + (s->dst >= 0 && f->kept[s->dst] >= 0);
            if (links + 2 >= EPI_LINKS && f->next[at] >= 0) {
                f->before[f->next[at]] = -1;
                f->next[at] = -1;
            }
        }
    }
}

/* Writes out what ends at place i: first what it alone loads besides. */
static int write_chain(const finder *f, int i, int *to, int *last, int n) {
    int start = n, first = i;
    while (f->before[first] >= 0)
        first = f->before[first];
    for (int at = first; at >= 0 && first != i; at = f->next[at])
        for (int j = 0; j < f->count; j++)
            if (j != first && f->t->instrs[f->list[j]].kind == EPI_INSTR_LOAD && f->next[j] < 0 &&
                only_reader(f, j) == at)
                to[n++] = f->list[j];
    for (int at = first; at >= 0; at = f->next[at])
        to[n++] = f->list[at];
    for (int j = start; j < n; j++)
        last[j] = n - 1;
    return n;
}

/* Is what step i loads left to the chain that reads it? */
static bool is_taken_along(const finder *f, int i) {
    if (f->t->instrs[f->list[i]].kind != EPI_INSTR_LOAD || f->next[i] >= 0)
        return false;
    int reader = only_reader(f, i);
    return reader >= 0 && (f->before[reader] >= 0 || f->next[reader] >= 0);
}

epi_status epi_chains_find(epi_arena *arena, const epi_tile_program *t, int *list, int *last, int count,
                           const int *kept) {
    finder f = {.t = t, .list = list, .kept = kept, .count = count};
    f.next = epi_arena_alloc(arena, ((size_t)count + 1) * sizeof *f.next);
    f.before = epi_arena_alloc(arena, ((size_t)count + 1) * sizeof *f.before);
    int *to = epi_arena_alloc(arena, ((size_t)count + 1) * sizeof *to);
    if (arena->failed)
        return EPI_ERR_MEMORY;
    for (int i = 0; i < count; i++)
        f.next[i] = f.before[i] = -1;
    join(&f, false);
    join(&f, true);
    cut_long(&f);
    int n = 0;
    for (int i = 0; i < count; i++)
        if (f.next[i] < 0 && !is_taken_along(&f, i))
            n = write_chain(&f, i, to, last, n);
    EPI_CHECK(n == count);
    memcpy(list, to, (size_t)count * sizeof *list);
    return EPI_OK;
}

/* ---- a row ---- */

typedef struct row {
    const epi_block *b;
    const int *steps;
    int count, i; /* of the block's rows */
} row;

static unsigned char *row_address(const epi_block *b, const epi_tile_access *a, epi_scale scale, int i) {
    return a->ref.data +
           (epi_walk_offset(&a->rows, b->m0 + b->row + i) + epi_columns_offset(&a->cols, b->first[scale])) *
               (int64_t)epi_dtype_size(a->ref.type);
}

/* Bytes from a row to the next that is worked on. */
static ptrdiff_t row_step(const epi_block *b, const epi_tile_access *a, epi_scale scale) {
    int64_t columns = b->step[1] >> (scale == EPI_SCALE_COARSE);
    return (b->step[0] * epi_tile_access_ld(a) + columns) * (ptrdiff_t)epi_dtype_size(a->ref.type);
}

/* The value where it lies; what the chain loads itself straight from its tensor. */
static epi_operand operand_of(const row *r, int v) {
    const epi_block *b = r->b;
    const epi_tile_value *value = &b->tile->values[v];
    const epi_spot *at = &b->at[v];
    if (!epi_tile_is_full(value))
        return (epi_operand){value->rows ? at->p + b->row + r->i : at->p, EPI_F32,
                             !value->rows && value->scale != EPI_SCALE_NONE, 0, 0};
    for (int k = 0; k < r->count; k++) {
        const epi_instr *s = &b->tile->instrs[r->steps[k]];
        const epi_tile_access *a = &b->access[r->steps[k]];
        if (s->kind == EPI_INSTR_LOAD && s->dst == v && epi_access_is_row(a))
            return (epi_operand){row_address(b, a, value->scale, r->i), a->ref.type, 1,
                                 row_step(b, a, value->scale), 0};
    }
    return (epi_operand){at->p + r->i * at->ld, EPI_F32, 1, at->walk * (ptrdiff_t)sizeof(float), 0};
}

/* Factors instead of a division: the inverse and 1. Where a float does not hold the inverse well, a power of
 * two and the inverse of b brought near 1 by it: neither of them nor a product in between leaves the range of
 * a float where the quotient does not. */
static void over(float b, float *scale) {
    uint32_t u;
    memcpy(&u, &b, sizeof u);
    uint32_t exponent = u >> 23 & 255;
    u = (exponent > 253 ? 1 : 254 - exponent) << 23;
    float power;
    memcpy(&power, &u, sizeof power);
    float inverse = 1 / (b * power);
    bool normal = exponent > 0 && exponent < 253;
    scale[0] = normal ? inverse * power : power > 1 ? power / 2 : inverse;
    scale[1] = normal ? 1 : power > 1 ? inverse * 2 : power;
}

/* The kind of link that the step is, whose operands go to k. In place: a copy would wait for what was written
 * just before. */
static epi_link_kind link_set(epi_link *k, const row *r, const epi_instr *s, int v) {
    int a, b;
    epi_link_kind kind = epi_link_of(s, v, &a, &b);
    if (a >= 0)
        k->a = operand_of(r, a);
    if (b >= 0) {
        k->b = operand_of(r, b);
        k->scale[0] = s->sign;
        k->scale[1] = s->other;
    }
    if (kind == EPI_LINK_SCALE)
        over(*(const float *)k->a.p, k->scale);
    return kind;
}

/* Where the chain's last value goes. */
static void end_with(const row *r, epi_chain *c, int last, int v, bool held_back) {
    const epi_block *b = r->b;
    const epi_instr *s = &b->tile->instrs[last];
    const epi_tile_access *a = &b->access[last];
    c->fold = s->op;
    c->out = NULL;
    c->beside = NULL;
    c->stream = false;
    if (epi_chain_folds(s))
        return;
    c->out = b->at[v].p + r->i * b->at[v].ld;
    c->out_step = b->at[v].walk * (ptrdiff_t)sizeof(float);
    c->out_type = EPI_F32;
    if (s->kind == EPI_INSTR_STORE && !held_back) {
        c->out = row_address(b, a, b->tile->values[v].scale, r->i);
        c->out_step = row_step(b, a, b->tile->values[v].scale);
        c->out_type = a->ref.type;
        c->stream = a->stream;
    }
}

/* The first step that is no load. */
static int first_link(const epi_tile_program *t, const int *steps) {
    int first = 0;
    while (t->instrs[steps[first]].kind == EPI_INSTR_LOAD)
        first++;
    return first;
}

/* Links are set as far as they are there. */
epi_scale epi_chain_set(epi_chain *c, const epi_block *b, const int *steps, int count, int i,
                        bool held_back) {
    const epi_tile_program *t = b->tile;
    int first = first_link(t, steps), start = start_of(t, &t->instrs[steps[first]]), v = start;
    row r = {.b = b, .steps = steps, .count = count, .i = i};
    c->x = operand_of(&r, start);
    uint64_t kinds = 0;
    for (int k = first, links = 0; k < count; k++) {
        const epi_instr *s = &t->instrs[steps[k]];
        if (s->kind == EPI_INSTR_STORE || epi_chain_folds(s))
            break;
        kinds |= (uint64_t)link_set(&c->link[links], &r, s, v) << 8 * links;
        links++;
        v = s->dst;
        if (k < count - 1 && b->keep[v] >= 0) {
            const epi_spot *at = &b->at[v];
            c->link[links].keep = at->p + i * at->ld;
            kinds |= (uint64_t)EPI_LINK_KEEP << 8 * links;
            links++;
        }
    }
    c->kinds = kinds;
    end_with(&r, c, steps[count - 1], v, held_back);
    return t->values[start].scale;
}

static void operand_next(epi_operand *o) {
    o->p = (const unsigned char *)o->p + o->step;
}

void epi_chain_next(epi_chain *c) {
    operand_next(&c->x);
    epi_link *k = c->link;
    for (uint64_t kinds = c->kinds; kinds; kinds >>= 8, k++) {
        epi_link_kind kind = kinds & 255;
        if (kind <= EPI_LINK_ADD_PRODUCT)
            operand_next(&k->a);
        if (kind == EPI_LINK_MULADD || kind == EPI_LINK_ADD_PRODUCT)
            operand_next(&k->b);
        if (kind == EPI_LINK_SCALE)
            over(*(const float *)k->a.p, k->scale);
    }
    if (c->out)
        c->out = (unsigned char *)c->out + c->out_step;
}

bool epi_chain_is_regular(const epi_tile_program *t, const epi_tile_access *access, const int *steps,
                          int count) {
    for (int i = 0; i < count; i++) {
        epi_instr_kind kind = t->instrs[steps[i]].kind;
        const epi_tile_access *a = &access[steps[i]];
        if ((kind == EPI_INSTR_LOAD || kind == EPI_INSTR_STORE) && !epi_access_is_regular(a))
            return false;
    }
    return true;
}

void epi_chain_run(const epi_block *b, const int *steps, int count, bool held, float *out,
                   const epi_fetch *next) {
    const epi_tile_program *t = b->tile;
    int first = first_link(t, steps), last = steps[count - 1];
    const epi_instr *end = &t->instrs[last];
    bool stores = end->kind == EPI_INSTR_STORE,
         held_back = stores && (held || !epi_access_is_row(&b->access[last]));
    bool copies = held_back && first == count - 1; /* what is loaded is all there is to store */
    for (int i = 0; i < first; i++)
        if (copies || !epi_access_is_row(&b->access[steps[i]]))
            epi_block_step(b, steps[i]);
    const epi_fetch none = {.count = 0};
    for (int i = 0; i < b->block_rows && !copies; i++) {
        epi_chain c;
        int n = b->columns[epi_chain_set(&c, b, steps, count, i, held_back)];
        c.ahead = i == 0 ? next : &none;
        float state = b->strips->chain(&c, n);
        if (epi_chain_folds(end))
            out[i] = state;
    }
    if (stores && held_back && !held)
        epi_block_step(b, last);
}

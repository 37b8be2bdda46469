/* tape_build.c: which steps become a tape, and its links. */
#include "cpu/tape.h"

#include <string.h>

#include "cpu/chain.h"

typedef struct builder {
    const epi_strips *strips;
    epi_tile_program *t;
    epi_tapes *out;
    epi_instr *to; /* steps in their new order */
    int count;     /* of these */
    bool *done;    /* by step */
    bool *ready;   /* by value */
    bool *wanted;  /* by value: read from memory */
    int now;       /* the value in registers, or -1 */
} builder;

static epi_scale scale_of(const epi_tile_program *t, const epi_instr *s) {
    bool made = s->kind != EPI_INSTR_JOIN && s->dst >= 0;
    return t->values[made ? s->dst : s->arg[0]].scale;
}

static bool is_source(const epi_instr *s) {
    return s->kind == EPI_INSTR_LOAD || s->kind == EPI_INSTR_INDEX || s->kind == EPI_INSTR_TAKE ||
           s->kind == EPI_INSTR_RANDOM || s->kind == EPI_INSTR_CONST;
}

/* Does the step take v from registers, and leave it there? */
static bool is_last(const epi_instr *s, int v) {
    return s->arg[0] == v && (s->kind == EPI_INSTR_STORE || s->kind == EPI_INSTR_PARTIAL_ROWS ||
                              s->kind == EPI_INSTR_PARTIAL_COLS);
}

/* A division is not the same by a factor. */
static epi_link_kind link_of(const epi_instr *s, int v, int *a, int *b) {
    epi_link_kind kind = v >= 0 ? epi_link_of(s, v, a, b) : EPI_LINK_NONE;
    return kind == EPI_LINK_SCALE ? EPI_LINK_NONE : kind;
}

/* Does the step take v from registers? */
static bool takes(const epi_instr *s, int v) {
    int a, b;
    return is_last(s, v) || (s->kind == EPI_INSTR_JOIN && s->arg[0] == v) ||
           link_of(s, v, &a, &b) != EPI_LINK_NONE;
}

static bool is_taped(const builder *b, const epi_instr *s) {
    if (s->kind == EPI_INSTR_SPLIT)
        return true;
    if (s->kind == EPI_INSTR_MAP && epi_step_is_dear(s) && !b->strips->takes(s->op))
        return false;
    if (s->op == EPI_OP_LOGSUMEXP && (s->kind == EPI_INSTR_PARTIAL_ROWS || s->kind == EPI_INSTR_PARTIAL_COLS))
        return false;
    return takes(s, s->arg[0]) || takes(s, s->arg[1]) || takes(s, s->arg[2]);
}

static bool is_ready(const builder *b, int i) {
    const epi_instr *s = &b->t->instrs[i];
    if (b->done[i])
        return false;
    for (int a = 0; a < 3; a++)
        if (s->arg[a] >= 0 && !b->ready[s->arg[a]])
            return false;
    return true;
}

static void do_step(builder *b, int i) {
    const epi_instr *s = &b->t->instrs[i];
    b->done[i] = true;
    if (s->dst >= 0)
        b->ready[s->dst] = true;
    b->to[b->count++] = *s;
}

static epi_tape_link *add_link(builder *b, epi_link_kind kind, int x, int y, int made) {
    epi_tape_link *k = &b->out->links[b->out->link_count++];
    *k = (epi_tape_link){kind, x, y, made, b->count};
    if (made >= 0)
        b->now = made;
    return k;
}

/* The value as an operand, from memory. */
static int read(builder *b, int v) {
    if (v >= 0)
        b->wanted[v] = true;
    return v;
}

/* Brings the value into registers. */
static void bring(builder *b, int v) {
    if (b->now != v)
        add_link(b, EPI_LINK_GET, read(b, v), -1, -1);
    b->now = v;
}

/* Both parts of a value; the other one's step, if any, is done with this one. */
static void add_parts(builder *b, int i) {
    const epi_instr *s = &b->t->instrs[i];
    int other = -1, part[2] = {-1, -1};
    for (int j = 0; j < b->t->instr_count; j++) {
        const epi_instr *o = &b->t->instrs[j];
        if (o->kind == EPI_INSTR_SPLIT && o->arg[0] == s->arg[0] && o->odd != s->odd && !b->done[j])
            other = j;
    }
    part[s->odd] = s->dst;
    if (other >= 0)
        part[!s->odd] = b->t->instrs[other].dst;
    b->now = -1;
    add_link(b, EPI_LINK_PARTS, read(b, s->arg[0]), part[1], part[0]);
    do_step(b, i);
    if (other >= 0)
        do_step(b, other);
}

/* The step that stores the value where nothing else reads it, or -1. */
static int only_store(const builder *b, int v) {
    int store = -1;
    for (int i = 0; i < b->t->instr_count; i++) {
        const epi_instr *s = &b->t->instrs[i];
        bool reads = epi_step_reads(s, v) > 0;
        if (reads && (store >= 0 || s->kind != EPI_INSTR_STORE))
            return -1;
        store = reads ? i : store;
    }
    return store;
}

static void add_step(builder *b, int i) {
    const epi_instr *s = &b->t->instrs[i];
    if (s->kind == EPI_INSTR_SPLIT) {
        add_parts(b, i);
        return;
    }
    int v = b->now, x, y;
    for (int a = 0; a < 3 && !takes(s, v); a++)
        v = s->arg[a];
    bring(b, v);
    epi_link_kind kind = link_of(s, v, &x, &y);
    if (kind != EPI_LINK_NONE)
        add_link(b, kind, read(b, x), read(b, y), s->dst);
    else if (s->kind == EPI_INSTR_JOIN)
        add_link(b, EPI_LINK_JOIN, read(b, s->arg[1]), s->dst, -1)->step = -1;
    else if (s->kind == EPI_INSTR_STORE)
        add_link(b, EPI_LINK_STORE, v, -1, -1);
    else if (s->kind == EPI_INSTR_PARTIAL_ROWS)
        add_link(b, EPI_LINK_FOLD, v, b->out->fold_count++, -1);
    else
        add_link(b, EPI_LINK_COLUMNS, v, -1, -1);
    do_step(b, i);
    int store = s->kind == EPI_INSTR_JOIN ? only_store(b, s->dst) : -1;
    if (store >= 0) {
        b->out->links[b->out->link_count - 1].step = b->count;
        do_step(b, store);
    }
}

/* The next step of a tape: one that stores or folds what is in registers, one that takes it, any. */
static int next_step(const builder *b, epi_scale scale) {
    int best = -1, rank = 0;
    for (int i = 0; i < b->t->instr_count; i++) {
        const epi_instr *s = &b->t->instrs[i];
        if (!is_ready(b, i) || !is_taped(b, s) || scale_of(b->t, s) != scale)
            continue;
        int r = is_last(s, b->now) ? 3 : takes(s, b->now) ? 2 : 1;
        if (r > rank) {
            rank = r;
            best = i;
        }
    }
    return best;
}

/* Is the value read by a step that is not among those of the item? */
static bool is_read_elsewhere(const epi_tile_program *t, const epi_tape_item *item, int v) {
    for (int i = 0; i < t->instr_count; i++)
        if (epi_step_reads(&t->instrs[i], v) && (i < item->first || i >= item->first + item->count))
            return true;
    return false;
}

static bool is_stored(const epi_tile_program *t, int v) {
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].kind == EPI_INSTR_STORE && t->instrs[i].arg[0] == v)
            return true;
    return false;
}

/* Says whether others than the item's links need the value, which the links themselves read from memory or
 * not; is it in memory? */
static bool settle_value(builder *b, const epi_tape_item *item, int v, bool read_here) {
    if (v < 0)
        return false;
    bool read_there = is_read_elsewhere(b->t, item, v);
    b->out->local[v] = !read_there && !is_stored(b->t, v);
    if (b->out->local[v] && read_here)
        b->out->own[v] = b->out->own_count++;
    return read_here || read_there;
}

/* Once all steps are in their order: puts what a tape makes and somebody reads from memory there. */
static void keep_values(builder *b, epi_tape_item *item, const epi_tape_link *from) {
    epi_tapes *p = b->out;
    int first = p->link_count;
    for (int l = item->link; l < item->link + item->link_count; l++) {
        const epi_tape_link *k = &from[l];
        p->links[p->link_count++] = *k;
        if (k->kind == EPI_LINK_PARTS || k->kind == EPI_LINK_JOIN)
            settle_value(b, item, k->b, true);
        if (k->made >= 0 && settle_value(b, item, k->made, b->wanted[k->made]))
            p->links[p->link_count++] = (epi_tape_link){EPI_LINK_KEEP, k->made, -1, -1, -1};
    }
    item->link = first;
    item->link_count = p->link_count - first;
    p->link_count += item->link_count ? EPI_TAPE_FETCHES + 1 : 0;
}

/* A tape that starts with the step, or a step on its own where nothing goes with it. */
static void add_item(builder *b, int i, bool tapes) {
    epi_tapes *p = b->out;
    epi_tape_item *item = &p->items[p->item_count++];
    *item =
        (epi_tape_item){.first = b->count, .link = p->link_count, .scale = scale_of(b->t, &b->t->instrs[i])};
    if (!tapes || !is_taped(b, &b->t->instrs[i])) {
        do_step(b, i);
    } else {
        b->now = -1;
        for (int next = i; next >= 0 && b->count - item->first < EPI_TAPE_STEPS;
             next = next_step(b, item->scale))
            add_step(b, next);
    }
    item->count = b->count - item->first;
    item->link_count = p->link_count - item->link;
    if (item->count == 1) { /* a strip does it */
        p->link_count = item->link;
        item->link_count = 0;
    }
}

/* Which values are loaded for tapes alone. */
static void find_loads(const epi_tile_program *t, epi_tapes *p) {
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].full && t->instrs[i].kind == EPI_INSTR_LOAD)
            p->load[t->instrs[i].dst] = i;
    for (int k = 0; k < p->item_count; k++) {
        const epi_instr *s = &t->instrs[p->items[k].first];
        for (int a = 0; a < 3 && !p->items[k].link_count; a++)
            if (s->arg[a] >= 0)
                p->load[s->arg[a]] = -1;
    }
}

epi_status epi_tapes_build(epi_arena *arena, const epi_strips *strips, epi_tile_program *t, epi_tapes *out) {
    size_t steps = (size_t)t->instr_count + 1, values = (size_t)t->value_count + 1;
    *out = (epi_tapes){.items = epi_arena_alloc(arena, steps * sizeof *out->items),
                       .links = epi_arena_alloc(arena, (4 + EPI_TAPE_FETCHES) * steps * sizeof *out->links),
                       .local = epi_arena_alloc(arena, values),
                       .own = epi_arena_alloc(arena, values * sizeof *out->own),
                       .load = epi_arena_alloc(arena, values * sizeof *out->load)};
    epi_tape_link *links = epi_arena_alloc(arena, 2 * steps * sizeof *links);
    builder b = {.strips = strips,
                 .t = t,
                 .out = out,
                 .to = epi_arena_alloc(arena, steps * sizeof *b.to),
                 .done = epi_arena_alloc(arena, steps),
                 .ready = epi_arena_alloc(arena, values),
                 .wanted = epi_arena_alloc(arena, values)};
    if (arena->failed)
        return EPI_ERR_MEMORY;
    b.ready[0] = true; /* the product */
    for (size_t v = 0; v < values; v++)
        out->own[v] = out->load[v] = -1;
    for (int i = 0; i < t->instr_count; i++)
        if (!t->instrs[i].full)
            do_step(&b, i);
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].full && is_source(&t->instrs[i]))
            add_item(&b, i, false);
    for (int i = 0; i < t->instr_count; i++)
        if (is_ready(&b, i)) {
            add_item(&b, i, true);
            i = -1;
        }
    EPI_CHECK(b.count == t->instr_count);
    memcpy(t->instrs, b.to, (size_t)t->instr_count * sizeof *t->instrs);
    memcpy(links, out->links, (size_t)out->link_count * sizeof *links);
    out->link_count = 0;
    for (int k = 0; k < out->item_count; k++)
        keep_values(&b, &out->items[k], links);
    find_loads(t, out);
    return EPI_OK;
}

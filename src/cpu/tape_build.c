/* tape_build.c: which instructions become a tape, its links, and which values need room. */
#include "cpu/tape.h"

#include <string.h>

typedef struct builder {
    const epi_strips *strips;
    const epi_tape_list *list;
    const epi_instr *instrs; /* of the tile's program */
    const epi_tile_value *values;
    epi_tapes *out;
    bool *done;   /* by instruction of the program; true of all that are not in the list */
    bool *ready;  /* by value */
    bool *wanted; /* by value: read from memory */
    int now;      /* the value in registers, or -1 */
} builder;

static epi_scale scale_of(const builder *b, const epi_instr *s) {
    bool made = s->kind != EPI_INSTR_JOIN && s->dst >= 0 && epi_value_is_full(&b->values[s->dst]);
    return b->values[made ? s->dst : s->arg[0]].scale;
}

static bool is_source(const epi_instr *s) {
    return s->kind == EPI_INSTR_LOAD || s->kind == EPI_INSTR_INDEX || s->kind == EPI_INSTR_TAKE ||
           s->kind == EPI_INSTR_RANDOM || s->kind == EPI_INSTR_CONST;
}

/* Does the instruction take v from registers, and leave it there? */
static bool is_last(const epi_instr *s, int v) {
    return s->arg[0] == v &&
           (s->kind == EPI_INSTR_STORE || s->kind == EPI_INSTR_PARTIAL_COLS || epi_instr_folds_row(s));
}

static epi_link_kind link_of_map(const builder *b, const epi_instr *s, int v, int other) {
    bool first = s->arg[0] == v;
    switch (s->op) {
    case EPI_OP_LT: return first ? EPI_LINK_LT : EPI_LINK_GT;
    case EPI_OP_LE: return first ? EPI_LINK_LE : EPI_LINK_GE;
    case EPI_OP_GT: return first ? EPI_LINK_GT : EPI_LINK_LT;
    case EPI_OP_GE: return first ? EPI_LINK_GE : EPI_LINK_LE;
    case EPI_OP_EQ: return EPI_LINK_EQ;
    case EPI_OP_NE: return EPI_LINK_NE;
    case EPI_OP_WHERE: return first ? EPI_LINK_IF : s->arg[1] == v ? EPI_LINK_THEN : EPI_LINK_ELSE;
    case EPI_OP_MUL: return EPI_LINK_MUL;
    case EPI_OP_ADD: return EPI_LINK_ADD;
    case EPI_OP_SUB: return first ? EPI_LINK_SUB : EPI_LINK_SUB_FROM;
    case EPI_OP_DIV:
        return !first                                     ? EPI_LINK_DIV_FROM
               : b->values[other].scale == EPI_SCALE_NONE ? EPI_LINK_OVER
                                                          : EPI_LINK_DIV;
    default: return EPI_LINK_NONE;
    }
}

/* The link that makes of v what the instruction makes of its operands, the others of which are x and y or -1;
 * NONE where there is none. */
static epi_link_kind link_of(const builder *b, const epi_instr *s, int v, int *x, int *y) {
    int times = v >= 0 ? epi_instr_reads(s, v) : 0;
    *x = *y = -1;
    if (times == 0 || (s->kind != EPI_INSTR_MULADD && s->kind != EPI_INSTR_MAP))
        return EPI_LINK_NONE;
    if (s->kind == EPI_INSTR_MAP && epi_ops[s->op].arity == 1)
        return EPI_LINK_MAP + s->op;
    if (s->kind == EPI_INSTR_MAP && s->op == EPI_OP_MUL && times == 2)
        return EPI_LINK_SQUARE;
    if (times != 1)
        return EPI_LINK_NONE;
    bool added = s->kind == EPI_INSTR_MULADD && s->arg[2] == v;
    *x = !added && s->arg[0] == v ? s->arg[1] : s->arg[0];
    *y = added || s->arg[2] == v ? s->arg[1] : s->arg[2];
    if (s->kind == EPI_INSTR_MULADD)
        return added ? EPI_LINK_ADD_PRODUCT : EPI_LINK_MULADD;
    return link_of_map(b, s, v, *x);
}

/* Does the instruction take v from registers? */
static bool takes(const builder *b, const epi_instr *s, int v) {
    int x, y;
    return is_last(s, v) || (s->kind == EPI_INSTR_JOIN && s->arg[0] == v) ||
           link_of(b, s, v, &x, &y) != EPI_LINK_NONE;
}

static bool is_loaded(const builder *b, int v) {
    for (int i = 0; i < b->list->count; i++)
        if (b->instrs[b->list->instrs[i]].dst == v)
            return is_source(&b->instrs[b->list->instrs[i]]);
    return false;
}

static bool is_taped(const builder *b, const epi_instr *s) {
    if (b->list->strips)
        return false;
    if (s->kind == EPI_INSTR_SPLIT)
        return true;
    if (s->kind == EPI_INSTR_MAP && epi_instr_is_dear(s) && !b->strips->takes(s->op))
        return false;
    if (epi_op_has_two(s->op) && (epi_instr_folds_row(s) || s->kind == EPI_INSTR_PARTIAL_COLS))
        return false;
    if (s->kind == EPI_INSTR_STORE && is_loaded(b, s->arg[0]))
        return false;
    return takes(b, s, s->arg[0]) || takes(b, s, s->arg[1]) || takes(b, s, s->arg[2]);
}

static bool is_ready(const builder *b, int i) {
    const epi_instr *s = &b->instrs[i];
    if (b->done[i])
        return false;
    for (int a = 0; a < 3; a++)
        if (s->arg[a] >= 0 && !b->ready[s->arg[a]])
            return false;
    return true;
}

static void do_instr(builder *b, int i) {
    b->done[i] = true;
    if (b->instrs[i].dst >= 0)
        b->ready[b->instrs[i].dst] = true;
    b->out->order[b->out->count++] = i;
}

/* ---- links ---- */

static epi_tape_link *add_link(builder *b, epi_link_kind kind, int x, int y, int made, int instr) {
    epi_tape_link *k = &b->out->links[b->out->link_count++];
    *k = (epi_tape_link){kind, x, y, made, instr};
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

/* Both splits of a value; the other one's instruction, if any, is done with this one. */
static void add_split(builder *b, int i) {
    const epi_instr *s = &b->instrs[i];
    int other = -1, split[2] = {-1, -1};
    for (int j = 0; j < b->list->count; j++) {
        int n = b->list->instrs[j];
        const epi_instr *o = &b->instrs[n];
        if (o->kind == EPI_INSTR_SPLIT && o->arg[0] == s->arg[0] && o->odd != s->odd && !b->done[n])
            other = n;
    }
    split[s->odd] = s->dst;
    if (other >= 0)
        split[!s->odd] = b->instrs[other].dst;
    b->now = -1;
    add_link(b, EPI_LINK_SPLIT, read(b, s->arg[0]), split[1], split[0], i);
    do_instr(b, i);
    if (other >= 0)
        do_instr(b, other);
}

/* The instruction that stores the value where nothing else reads it, or -1. */
static int only_store(const builder *b, int v) {
    int store = -1;
    for (int i = 0; i < b->list->count; i++) {
        const epi_instr *s = &b->instrs[b->list->instrs[i]];
        bool reads = epi_instr_reads(s, v) > 0;
        if (reads && (store >= 0 || s->kind != EPI_INSTR_STORE))
            return -1;
        store = reads ? b->list->instrs[i] : store;
    }
    return store;
}

static void add_join(builder *b, int i) {
    const epi_instr *s = &b->instrs[i];
    epi_tape_link *k = add_link(b, EPI_LINK_JOIN, read(b, s->arg[1]), s->dst, -1, -1);
    do_instr(b, i);
    k->instr = only_store(b, s->dst);
    if (k->instr >= 0)
        do_instr(b, k->instr);
}

static void add_instr(builder *b, int i) {
    const epi_instr *s = &b->instrs[i];
    if (s->kind == EPI_INSTR_SPLIT) {
        add_split(b, i);
        return;
    }
    int v = b->now, x, y;
    for (int a = 0; a < 3 && !takes(b, s, v); a++)
        v = s->arg[a];
    if (b->now != v)
        add_link(b, EPI_LINK_GET, read(b, v), -1, -1, -1);
    b->now = v;
    epi_link_kind kind = link_of(b, s, v, &x, &y);
    if (s->kind == EPI_INSTR_JOIN) {
        add_join(b, i);
        return;
    }
    if (kind == EPI_LINK_OVER)
        add_link(b, kind, read(b, x), b->out->state_count++, s->dst, i);
    else if (kind != EPI_LINK_NONE)
        add_link(b, kind, read(b, x), read(b, y), s->dst, i);
    else if (s->kind == EPI_INSTR_STORE)
        add_link(b, EPI_LINK_STORE, v, -1, -1, i);
    else if (epi_instr_folds_row(s))
        add_link(b, EPI_LINK_FOLD, v, b->out->state_count++, -1, i);
    else
        add_link(b, EPI_LINK_COLUMNS, v, -1, -1, i);
    do_instr(b, i);
}

/* ---- items ---- */

/* The next instruction of a tape: one that stores or folds what is in registers, one that takes what was made
 * there, any: what was loaded can as well be loaded once more. */
static int next_instr(const builder *b, epi_scale scale) {
    int best = -1, rank = 0;
    bool made = b->now >= 0 && !is_loaded(b, b->now);
    for (int j = 0; j < b->list->count; j++) {
        int i = b->list->instrs[j];
        const epi_instr *s = &b->instrs[i];
        if (!is_ready(b, i) || !is_taped(b, s) || scale_of(b, s) != scale)
            continue;
        int r = is_last(s, b->now) ? 3 : made && takes(b, s, b->now) ? 2 : 1;
        if (r > rank) {
            rank = r;
            best = i;
        }
    }
    return best;
}

/* A tape that starts with the instruction, or a strip where nothing goes with it. */
static void add_item(builder *b, int i, bool tapes) {
    epi_tapes *p = b->out;
    epi_tape_item *item = &p->items[p->item_count++];
    int states = p->state_count;
    *item = (epi_tape_item){.first = p->count, .link = p->link_count, .scale = scale_of(b, &b->instrs[i])};
    if (!tapes || !is_taped(b, &b->instrs[i])) {
        do_instr(b, i);
    } else {
        b->now = -1;
        for (int next = i; next >= 0 && p->count - item->first < EPI_TAPE_INSTRS;
             next = next_instr(b, item->scale))
            add_instr(b, next);
    }
    item->count = p->count - item->first;
    item->link_count = p->link_count - item->link;
    epi_link_kind last = item->link_count ? p->links[p->link_count - 1].kind : EPI_LINK_NONE;
    if (item->count == 1 && last != EPI_LINK_FOLD && last != EPI_LINK_OVER) { /* a strip does it as well */
        p->link_count = item->link;
        p->state_count = states;
        item->link_count = 0;
    }
}

/* ---- room for values, once all instructions are in their order ---- */

static bool is_within(const epi_tape_item *item, int at) {
    return at >= item->first && at < item->first + item->count;
}

/* Is the value read by an instruction that is not among those of the item, stored, or wanted later? */
static bool is_read_elsewhere(const builder *b, const epi_tape_item *item, int v) {
    if (b->list->kept && b->list->kept[v] >= 0)
        return true;
    for (int at = 0; at < b->out->count; at++)
        if (epi_instr_reads(&b->instrs[b->out->order[at]], v) && !is_within(item, at))
            return true;
    return false;
}

static bool is_stored(const builder *b, int v) {
    for (int at = 0; at < b->out->count; at++) {
        const epi_instr *s = &b->instrs[b->out->order[at]];
        if (s->kind == EPI_INSTR_STORE && s->arg[0] == v)
            return true;
    }
    return false;
}

/* Says whether others than the item's links need the value, which the links themselves read from memory or
 * not; is it in memory? */
static bool settle_value(builder *b, const epi_tape_item *item, int v, bool read_here) {
    if (v < 0)
        return false;
    bool read_there = is_read_elsewhere(b, item, v);
    b->out->local[v] = !read_there && !is_stored(b, v);
    if (b->out->local[v] && !read_here)
        b->out->start[v] = -1;
    return read_here || read_there;
}

/* Puts what a tape makes and somebody reads from memory there. */
static void keep_values(builder *b, epi_tape_item *item, const epi_tape_link *from) {
    epi_tapes *p = b->out;
    int first = p->link_count;
    for (int l = item->link; l < item->link + item->link_count; l++) {
        const epi_tape_link *k = &from[l];
        p->links[p->link_count++] = *k;
        if (k->kind == EPI_LINK_SPLIT || k->kind == EPI_LINK_JOIN)
            settle_value(b, item, k->b, true);
        if (k->made >= 0 && settle_value(b, item, k->made, b->wanted[k->made]))
            p->links[p->link_count++] = (epi_tape_link){EPI_LINK_KEEP, k->made, -1, -1, -1};
    }
    item->link = first;
    item->link_count = p->link_count - first;
    p->link_count += item->link_count ? EPI_TAPE_PREFETCHES + 1 : 0;
}

/* From which item to which a value needs a slot; what is stored may be as late as after the last item. */
static void find_lives(builder *b) {
    epi_tapes *p = b->out;
    for (int k = 0; k < p->item_count; k++)
        for (int at = p->items[k].first; is_within(&p->items[k], at); at++) {
            const epi_instr *s = &b->instrs[p->order[at]];
            bool slot = s->dst >= 0 && epi_value_is_full(&b->values[s->dst]);
            if (slot && !(b->list->kept && b->list->kept[s->dst] >= 0))
                p->start[s->dst] = p->last[s->dst] = k;
            for (int a = 0; a < 3; a++)
                if (s->arg[a] >= 0)
                    p->last[s->arg[a]] =
                        s->kind == EPI_INSTR_STORE ? p->item_count : (int)epi_max64(k, p->last[s->arg[a]]);
        }
}

/* Which values are loaded for tapes alone. */
static void find_loads(const builder *b) {
    epi_tapes *p = b->out;
    for (int at = 0; at < p->count; at++)
        if (b->instrs[p->order[at]].kind == EPI_INSTR_LOAD)
            p->load[b->instrs[p->order[at]].dst] = p->order[at];
    for (int k = 0; k < p->item_count; k++) {
        const epi_instr *s = &b->instrs[p->order[p->items[k].first]];
        for (int a = 0; a < 3 && !p->items[k].link_count; a++)
            if (s->arg[a] >= 0)
                p->load[s->arg[a]] = -1;
    }
}

/* ---- all ---- */

/* Does every instruction become one of an item? */
static bool cut_up(builder *b) {
    for (int j = 0; j < b->list->count; j++)
        if (is_source(&b->instrs[b->list->instrs[j]]))
            add_item(b, b->list->instrs[j], false);
    for (int j = 0; j < b->list->count; j++)
        if (is_ready(b, b->list->instrs[j])) {
            add_item(b, b->list->instrs[j], true);
            j = -1;
        }
    return b->out->count == b->list->count;
}

epi_status epi_tapes_build(epi_arena *arena, const epi_strips *strips, const epi_tape_list *list,
                           epi_tapes *out) {
    const epi_tile_program *t = list->tile;
    size_t count = (size_t)list->count + 1, values = (size_t)t->value_count + 1;
    *out = (epi_tapes){
        .order = epi_arena_alloc(arena, count * sizeof *out->order),
        .items = epi_arena_alloc(arena, count * sizeof *out->items),
        .links = epi_arena_alloc(arena, (4 + EPI_TAPE_PREFETCHES) * count * sizeof *out->links),
        .local = epi_arena_alloc(arena, values),
        .load = epi_arena_alloc(arena, values * sizeof *out->load),
        .start = epi_arena_alloc(arena, values * sizeof *out->start),
        .last = epi_arena_alloc(arena, values * sizeof *out->last),
    };
    epi_tape_link *links = epi_arena_alloc(arena, 2 * count * sizeof *links);
    builder b = {.strips = strips,
                 .list = list,
                 .instrs = t->instrs,
                 .values = t->values,
                 .out = out,
                 .done = epi_arena_alloc(arena, (size_t)t->instr_count + 1),
                 .ready = epi_arena_alloc(arena, values),
                 .wanted = epi_arena_alloc(arena, values)};
    if (arena->failed)
        return EPI_ERR_MEMORY;
    memset(b.done, true, (size_t)t->instr_count);
    memset(b.ready, true, values);
    for (size_t v = 0; v < values; v++)
        out->load[v] = out->start[v] = out->last[v] = -1;
    for (int j = 0; j < list->count; j++) {
        b.done[list->instrs[j]] = false;
        if (t->instrs[list->instrs[j]].dst >= 0)
            b.ready[t->instrs[list->instrs[j]].dst] = false;
    }
    if (!cut_up(&b))
        return EPI_ERR_INTERNAL;
    memcpy(links, out->links, (size_t)out->link_count * sizeof *links);
    out->link_count = 0;
    find_lives(&b);
    for (int k = 0; k < out->item_count; k++)
        keep_values(&b, &out->items[k], links);
    find_loads(&b);
    return EPI_OK;
}

static bool are_apart(const epi_tapes *tapes, int count, int v, int w) {
    for (int k = 0; k < count; k++) {
        const epi_tapes *t = &tapes[k];
        if (t->start[v] >= 0 && t->start[w] >= 0 && t->start[v] <= t->last[w] && t->start[w] <= t->last[v])
            return false;
    }
    return true;
}

int epi_tape_slots(const epi_tapes *tapes, int count, const epi_tile_program *t, int *slot, int *shorts) {
    int slots = 0;
    for (int v = 0; v < t->value_count; v++) {
        bool needed = false;
        slot[v] = -1;
        for (int k = 0; k < count; k++)
            needed |= tapes[k].start[v] >= 0;
        for (int s = 0; needed && slot[v] < 0; s++) {
            bool is_free = true;
            for (int w = 0; w < v && is_free; w++)
                is_free = slot[w] != s || are_apart(tapes, count, v, w);
            slot[v] = is_free ? s : -1;
            slots = is_free && s >= slots ? s + 1 : slots;
        }
    }
    *shorts = 0;
    for (int v = 0; v < t->value_count; v++)
        if (!epi_value_is_full(&t->values[v]))
            slot[v] = (*shorts)++;
    return slots;
}

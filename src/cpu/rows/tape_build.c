/* tape_build.c: which instructions become a tape, its links, and which values need memory. */
#include "cpu/rows/tape.h"

#include <string.h>

#include "base/heap.h"

/* Instructions that wait, the first of the program on top: a heap. */
typedef struct queue {
    int *at, count;
} queue;

typedef struct builder {
    const epi_strips *strips;
    const epi_tape_list *list;
    const epi_instr *instrs; /* of the tile's program */
    const epi_tile_value *values;
    epi_tapes *out;
    bool *listed; /* by instruction of the program */
    bool *done;   /* likewise; true of all that are not in the list */
    int *place;   /* likewise: its place in the order */
    bool *ready;  /* by value */
    bool *wanted; /* by value: read from memory */
    int now;      /* the value in registers, or -1 */
    int *reader,
        *reader_start; /* by value: instructions of the list that read it, up to where the next's do */
    queue ready_ones[1 + EPI_SCALE_COUNT]; /* what could be next: strips, and by scale what tapes take */
} builder;

static epi_scale scale_of(const builder *b, const epi_instr *s) {
    bool made = s->kind != EPI_INSTR_JOIN && s->dst >= 0 && epi_value_is_full(&b->values[s->dst]);
    return b->values[made ? s->dst : s->arg[0]].scale;
}

static bool is_source(const epi_instr *s) {
    return s->kind == EPI_INSTR_LOAD || s->kind == EPI_INSTR_INDEX || s->kind == EPI_INSTR_TAKE ||
           s->kind == EPI_INSTR_SHIFT || s->kind == EPI_INSTR_RANDOM || s->kind == EPI_INSTR_CONST;
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
        return !first                                                   ? EPI_LINK_DIV_FROM
               : s->inverse && b->values[other].scale == EPI_SCALE_NONE ? EPI_LINK_OVER
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
    if (s->kind ==
        EPI_INSTR_MULADD) /* their kinds follow each other: a sum, less what is added, less the product */
        return (added ? EPI_LINK_ADD_PRODUCT : EPI_LINK_MULADD) + (s->other < 0 ? 1 : s->sign < 0 ? 2 : 0);
    return link_of_map(b, s, v, *x);
}

/* Does the instruction take v from registers? */
static bool takes(const builder *b, const epi_instr *s, int v) {
    int x, y;
    return is_last(s, v) || (s->kind == EPI_INSTR_JOIN && s->arg[0] == v) ||
           link_of(b, s, v, &x, &y) != EPI_LINK_NONE;
}

static bool is_loaded(const builder *b, int v) {
    int made = b->values[v].made;
    return made >= 0 && b->listed[made] && is_source(&b->instrs[made]);
}

static bool is_taped(const builder *b, const epi_instr *s) {
    if (b->list->strips)
        return false;
    if (s->kind == EPI_INSTR_SPLIT)
        return true;
    if (s->kind == EPI_INSTR_MAP && epi_ops[s->op].expensive && !b->strips->takes(s->op))
        return false;
    if (epi_ops[s->op].two && (epi_instr_folds_row(s) || s->kind == EPI_INSTR_PARTIAL_COLS))
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

static bool comes_before(const void *ctx, int a, int b) {
    (void)ctx;
    return a < b;
}

/* The first that is not done, or -1. */
static int queue_first(const builder *b, queue *q) {
    while (q->count && b->done[q->at[0]])
        epi_heap_take(q->at, &q->count, comes_before, NULL);
    return q->count ? q->at[0] : -1;
}

static void queue_instr(builder *b, int i) {
    const epi_instr *s = &b->instrs[i];
    queue *q = &b->ready_ones[is_taped(b, s) ? 1 + scale_of(b, s) : 0];
    epi_heap_put(q->at, &q->count, i, comes_before, NULL);
}

static void do_instr(builder *b, int i) {
    int v = b->instrs[i].dst;
    b->done[i] = true;
    b->place[i] = b->out->count;
    b->out->order[b->out->count++] = i;
    if (v < 0 || b->ready[v])
        return;
    b->ready[v] = true;
    for (int r = b->reader_start[v]; r < b->reader_start[v + 1]; r++)
        if (is_ready(b, b->reader[r]))
            queue_instr(b, b->reader[r]);
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
    for (int r = b->reader_start[s->arg[0]]; r < b->reader_start[s->arg[0] + 1]; r++) {
        int n = b->reader[r];
        if (b->instrs[n].kind == EPI_INSTR_SPLIT && b->instrs[n].odd != s->odd && !b->done[n])
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
    for (int r = b->reader_start[v]; r < b->reader_start[v + 1]; r++) {
        if (store >= 0 || b->instrs[b->reader[r]].kind != EPI_INSTR_STORE)
            return -1;
        store = b->reader[r];
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
static int next_instr(builder *b, epi_scale scale) {
    int best = -1, rank = 1, v = b->now;
    bool made = v >= 0 && !is_loaded(b, v);
    for (int r = v < 0 ? 0 : b->reader_start[v]; v >= 0 && r < b->reader_start[v + 1] && rank < 3; r++) {
        int i = b->reader[r];
        const epi_instr *s = &b->instrs[i];
        int found = is_last(s, v) ? 3 : made && takes(b, s, v) ? 2 : 1;
        if (found > rank && is_ready(b, i) && is_taped(b, s) && scale_of(b, s) == scale) {
            rank = found;
            best = i;
        }
    }
    return best >= 0 ? best : queue_first(b, &b->ready_ones[1 + scale]);
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
    for (int r = b->reader_start[v]; r < b->reader_start[v + 1]; r++)
        if (!is_within(item, b->place[b->reader[r]]))
            return true;
    return false;
}

static bool is_stored(const builder *b, int v) {
    for (int r = b->reader_start[v]; r < b->reader_start[v + 1]; r++)
        if (b->instrs[b->reader[r]].kind == EPI_INSTR_STORE)
            return true;
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
        if (b->instrs[p->order[at]].kind == EPI_INSTR_LOAD || b->instrs[p->order[at]].kind == EPI_INSTR_SHIFT)
            p->load[b->instrs[p->order[at]].dst] = p->order[at];
    for (int k = 0; k < p->item_count; k++) {
        const epi_instr *s = &b->instrs[p->order[p->items[k].first]];
        for (int a = 0; a < 3 && !p->items[k].link_count; a++)
            if (s->arg[a] >= 0)
                p->load[s->arg[a]] = -1;
    }
}

/* ---- all ---- */

static int first_ready(builder *b) {
    int best = -1;
    for (int c = 0; c <= EPI_SCALE_COUNT; c++) {
        int first = queue_first(b, &b->ready_ones[c]);
        if (first >= 0 && (best < 0 || first < best))
            best = first;
    }
    return best;
}

/* Does every instruction become one of an item? */
static bool cut_up(builder *b) {
    for (int j = 0; j < b->list->count; j++)
        if (is_ready(b, b->list->instrs[j]))
            queue_instr(b, b->list->instrs[j]);
    for (int j = 0; j < b->list->count; j++)
        if (is_source(&b->instrs[b->list->instrs[j]]))
            add_item(b, b->list->instrs[j], false);
    for (int first; (first = first_ready(b)) >= 0;)
        add_item(b, first, true);
    return b->out->count == b->list->count;
}

/* Lists by value the instructions that read it, in their order: they are counted two places on, and while
 * they are filled in, one place on is where the next of a value goes. */
static void list_readers(builder *b) {
    const epi_tile_program *t = b->list->tile;
    int *start = b->reader_start;
    for (int fill = 0; fill < 2; fill++) {
        for (int j = 0; j < b->list->count; j++) {
            const int *arg = t->instrs[b->list->instrs[j]].arg;
            for (int a = 0; a < 3; a++) {
                if (arg[a] < 0 || (a > 0 && arg[a] == arg[0]) || (a > 1 && arg[a] == arg[1]))
                    continue;
                if (fill)
                    b->reader[start[arg[a] + 1]++] = b->list->instrs[j];
                else
                    start[arg[a] + 2]++;
            }
        }
        for (int v = 0; v <= t->value_count && !fill; v++)
            start[v + 1] += start[v];
    }
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
                 .listed = epi_arena_alloc(arena, (size_t)t->instr_count + 1),
                 .done = epi_arena_alloc(arena, (size_t)t->instr_count + 1),
                 .place = epi_arena_alloc(arena, ((size_t)t->instr_count + 1) * sizeof *b.place),
                 .reader = epi_arena_alloc(arena, 3 * count * sizeof *b.reader),
                 .reader_start = epi_arena_alloc(arena, (values + 1) * sizeof *b.reader_start),
                 .ready = epi_arena_alloc(arena, values),
                 .wanted = epi_arena_alloc(arena, values)};
    for (int c = 0; c <= EPI_SCALE_COUNT; c++)
        b.ready_ones[c].at = epi_arena_alloc(arena, count * sizeof(int));
    if (arena->failed)
        return EPI_ERR_MEMORY;
    memset(b.done, true, (size_t)t->instr_count);
    memset(b.ready, true, values);
    for (size_t v = 0; v < values; v++)
        out->load[v] = out->start[v] = out->last[v] = -1;
    for (int j = 0; j < list->count; j++) {
        b.listed[list->instrs[j]] = true;
        b.done[list->instrs[j]] = false;
        if (t->instrs[list->instrs[j]].dst >= 0)
            b.ready[t->instrs[list->instrs[j]].dst] = false;
    }
    list_readers(&b);
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

/* When values of one slot need it: items of all lists, counted on, in order and apart. */
typedef struct slot_use {
    int (*at)[2], count, capacity;
} slot_use;

/* How many of the slot's begin before this item. */
static int begun_before(const slot_use *u, int item) {
    int low = 0, high = u->count;
    while (low < high) {
        int mid = (low + high) / 2;
        *(u->at[mid][0] < item ? &low : &high) = u->at[mid][0] < item ? mid + 1 : mid;
    }
    return low;
}

static bool is_free(const slot_use *u, const int (*lives)[2], int count) {
    for (int i = 0; i < count; i++) {
        int next = begun_before(u, lives[i][1] + 1);
        if (next && u->at[next - 1][1] >= lives[i][0])
            return false;
    }
    return true;
}

static bool take_slot(epi_arena *arena, slot_use *u, const int (*lives)[2], int count) {
    for (int i = 0; i < count; i++) {
        void *grown = epi_arena_grow(arena, u->at, u->count, &u->capacity, sizeof *u->at);
        if (!grown)
            return false;
        u->at = grown;
        int at = begun_before(u, lives[i][0]);
        memmove(u->at + at + 1, u->at + at, (size_t)(u->count++ - at) * sizeof *u->at);
        memcpy(u->at[at], lives[i], sizeof *lives);
    }
    return true;
}

int epi_tape_slots(epi_arena *arena, const epi_tapes *tapes, int count, const epi_tile_program *t, int *slot,
                   int *shorts) {
    int slots = 0;
    slot_use *uses = epi_arena_alloc(arena, ((size_t)t->value_count + 1) * sizeof *uses);
    int(*lives)[2] = epi_arena_alloc(arena, ((size_t)count + 1) * sizeof *lives);
    for (int v = 0; v < t->value_count && !arena->failed; v++) {
        int needed = 0;
        slot[v] = -1;
        for (int k = 0, items = 0; k < count; items += tapes[k++].item_count + 1)
            if (tapes[k].start[v] >= 0) {
                lives[needed][0] = items + tapes[k].start[v];
                lives[needed++][1] = items + tapes[k].last[v];
            }
        for (int s = 0; needed && slot[v] < 0; s++)
            slot[v] = is_free(&uses[s], lives, needed) ? s : -1;
        if (needed && take_slot(arena, &uses[slot[v]], lives, needed) && slot[v] >= slots)
            slots = slot[v] + 1;
    }
    *shorts = 0;
    for (int v = 0; v < t->value_count; v++)
        if (!epi_value_is_full(&t->values[v]))
            slot[v] = (*shorts)++;
    return arena->failed ? -1 : slots;
}

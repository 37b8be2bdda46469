/* design_rows.c: makes the design of a kernel over rows: the instructions of each phase, pointers, partials.
 *
 * A value with columns is an array of a vector's elements; any other is one number. In a phase, the values
 * that its reductions, partials and stores need are recomputed for every vector, where they are first
 * needed. */
#include "cuda/rows/design_rows.h"

#include <math.h>
#include <stdio.h>

/* ---- folds in pairs ---- */

/* The map that makes the value, if it is this one. */
static const epi_instr *made_by(const epi_rows_design *d, int v, epi_op op) {
    const epi_instr *s = v >= 0 ? &d->tile.instrs[d->maker[v]] : NULL;
    return s && s->kind == EPI_INSTR_MAP && s->dst == v && s->op == op ? s : NULL;
}

static bool is_number(const epi_rows_design *d, int v, double value) {
    const epi_node *n = &d->g->nodes[d->tile.values[v].node];
    if (n->op == EPI_OP_NEG && d->g->nodes[n->arg[0]].op == EPI_OP_CONST)
        return -d->g->nodes[n->arg[0]].value == value;
    return n->op == EPI_OP_CONST && n->value == value;
}

/* Is it where(v == -inf, 0, v)? */
static bool is_safe(const epi_rows_design *d, int safe, int v) {
    const epi_instr *s = made_by(d, safe, EPI_OP_WHERE), *same = s ? made_by(d, s->arg[0], EPI_OP_EQ) : NULL;
    return same && same->arg[0] == v && is_number(d, same->arg[1], -INFINITY) && is_number(d, s->arg[1], 0) &&
           s->arg[2] == v;
}

/* Is the value x less the result of this fold of x? */
static bool is_distance(const epi_rows_design *d, int v, const epi_instr *fold, bool safe) {
    const epi_instr *s = made_by(d, v, EPI_OP_SUB);
    return s && s->arg[0] == fold->arg[0] &&
           (safe ? is_safe(d, s->arg[1], fold->dst) : s->arg[1] == fold->dst);
}

bool epi_rows_sums_exponentials(const epi_rows_design *d, const epi_instr *sum, const epi_instr *max,
                                bool safe) {
    const epi_instr *s = made_by(d, sum->arg[0], EPI_OP_EXP);
    return s && is_distance(d, s->arg[0], max, safe);
}

/* Does one walk over the row do both? The sum of exponentials less the largest element goes along with the
 * search for it. */
static bool go_together(const epi_rows_design *d, const epi_instr *first, const epi_instr *second) {
    return d->tile.n > 0 && first->kind == EPI_INSTR_REDUCE_ROW && first->op == EPI_OP_RMAX &&
           second->kind == EPI_INSTR_REDUCE_ROW && second->op == EPI_OP_SUM &&
           second->phase == first->phase + 1 && d->fast &&
           (epi_rows_sums_exponentials(d, second, first, false) ||
            epi_rows_sums_exponentials(d, second, first, true));
}

static void find_pairs(epi_rows_design *d) {
    for (int i = 0; i < d->tile.instr_count; i++)
        d->pair[i] = -1;
    for (int i = 0; i < d->tile.instr_count; i++)
        for (int j = 0; d->tile.instrs[i].op == EPI_OP_RMAX && j < d->tile.instr_count && d->pair[i] < 0; j++)
            if (d->pair[j] < 0 && go_together(d, &d->tile.instrs[i], &d->tile.instrs[j])) {
                d->pair[i] = j;
                d->pair[j] = i;
            }
}

/* ---- phases ---- */

/* When a number, a value per row, or what a square tile has for each row or column, is ready. */
static int ready(const epi_rows_design *d, const epi_instr *s) {
    if (d->down)
        return s->dst < 0 || epi_rows_is_walked(d, s->dst) ? EPI_ROWS_ON_VECTORS : -1;
    if (epi_rows_is_side(d, epi_rows_value(s)) && !epi_instr_folds(s))
        return s->phase;
    bool makes = s->dst >= 0 && !epi_rows_has_columns(d, s->dst) && s->kind != EPI_INSTR_REDUCE_ROW;
    if (s->full || (!makes && !(s->dst < 0 && s->kind == EPI_INSTR_STORE)))
        return EPI_ROWS_ON_VECTORS;
    return d->tile.values[epi_rows_value(s)].rows ? s->phase : -1;
}

/* Has the fold it makes a pair with given its result already? */
static bool comes_second(const epi_rows_design *d, int i) {
    return d->pair[i] >= 0 && d->tile.instrs[d->pair[i]].phase < d->tile.instrs[i].phase;
}

/* What a phase is for: folds, partials and stores of elements. */
static bool ends_in(const epi_rows_design *d, int i, int phase) {
    const epi_instr *s = &d->tile.instrs[i];
    return (s->full || d->down) && s->phase == phase && (epi_instr_ends(s) || s->kind == EPI_INSTR_SCAN) &&
           !comes_second(d, i) && d->access[i].ready == EPI_ROWS_ON_VECTORS;
}

static void add(const epi_rows_design *d, epi_rows_phase *p, int i) {
    const epi_rows_access *a = &d->access[i];
    bool registers = a->fetched ? d->shape.resident && !d->shape.stages : a->held;
    p->named |= registers || d->tile.instrs[i].kind == EPI_INSTR_PARTIAL_COLS;
    p->instrs[p->count++] = i;
}

/* A phase that is being listed. What is still to be looked at is a list, not recursion: programs are long. */
typedef struct lister {
    const epi_rows_design *d;
    epi_rows_phase *phase;
    bool *made;  /* by value: the phase makes it */
    bool *early; /* by value: what it needs early was listed */
    int *pending;
} lister;

static int push_operands(const epi_instr *s, int *pending, int count) {
    for (int a = 2; a >= 0; a--)
        if (s->arg[a] >= 0)
            pending[count++] = s->arg[a];
    return count;
}

/* Lists what makes the value, operands first. `count` values are pending for others. */
static void need(lister *l, int root, int count) {
    int bottom = count;
    l->pending[count++] = root;
    while (count > bottom) {
        int v = l->pending[--count];
        if (v < 0) { /* its operands are there */
            add(l->d, l->phase, l->d->maker[~v]);
        } else if (epi_rows_is_walked(l->d, v) && !l->made[v]) {
            l->made[v] = true;
            l->pending[count++] = ~v;
            count = push_operands(&l->d->tile.instrs[l->d->maker[v]], l->pending, count);
        }
    }
}

/* What the value needs from memory that an output may be stored over: it is read before anything is stored.
 */
static void need_early(lister *l, int root) {
    int count = 0;
    l->pending[count++] = root;
    while (count) {
        int v = l->pending[--count], i = l->d->maker[v];
        if (!epi_rows_is_walked(l->d, v) || l->made[v] || l->early[v])
            continue;
        l->early[v] = true;
        const epi_instr *s = &l->d->tile.instrs[i];
        const epi_rows_access *access = &l->d->access[i];
        bool on_chip = access->vectors && (l->d->shape.resident || (l->d->shape.stages && access->bytes));
        if (s->kind == EPI_INSTR_LOAD && !on_chip && access->overwritten)
            need(l, v, count);
        count = push_operands(s, l->pending, count);
    }
}

/* Is it what a scan left in registers? Phases that need it come after the scan's. */
static bool is_scanned(const epi_rows_design *d, int v) {
    return d->tile.instrs[d->maker[v]].kind == EPI_INSTR_SCAN;
}

static void list_phase(lister *l, int phase) {
    const epi_tile_program *t = &l->d->tile;
    for (int v = 0; v < t->value_count; v++)
        l->made[v] = l->early[v] = epi_rows_is_side(l->d, v) || is_scanned(l->d, v);
    for (int i = 0; i < t->instr_count; i++) {
        if (!ends_in(l->d, i, phase))
            continue;
        need(l, t->instrs[i].arg[0], 0);
        if (t->instrs[i].kind == EPI_INSTR_SCAN)
            need(l, t->instrs[i].arg[1], 0);
        for (int j = i + 1; j < t->instr_count && t->instrs[i].kind == EPI_INSTR_STORE; j++)
            if (ends_in(l->d, j, phase))
                need_early(l, t->instrs[j].arg[0]);
        add(l->d, l->phase, i);
    }
}

static epi_status list_phases(epi_rows_design *d, epi_error *err) {
    epi_arena *arena = d->c->arena;
    size_t instrs = (size_t)d->tile.instr_count + 1, values = (size_t)d->tile.value_count + 1;
    lister l = {.d = d, .made = epi_arena_alloc(arena, values), .early = epi_arena_alloc(arena, values)};
    l.pending =
        epi_arena_alloc(arena, 8 * values * sizeof *l.pending); /* need and need_early: 4 a value each */
    d->phases = epi_arena_alloc(arena, ((size_t)d->tile.phases + 1) * sizeof *d->phases);
    EPI_TRY(epi_has_memory(l.made && l.early && l.pending && d->phases, err));
    for (int p = 0; p < d->tile.phases; p++) {
        l.phase = &d->phases[p];
        l.phase->instrs = epi_arena_alloc(arena, instrs * sizeof(int));
        EPI_TRY(epi_has_memory(l.phase->instrs, err));
        list_phase(&l, p);
    }
    return EPI_OK;
}

/* ---- pointers and partials ---- */

/* Tensors first, in the order of the instructions; then what gathers are indexed by; then partials. */
static void give_pointers(epi_rows_design *d) {
    epi_kernel_text *k = &d->kernel;
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        d->access[i].pointer = d->access[i].index = -1;
        if (s->kind == EPI_INSTR_LOAD || epi_rows_stores(s))
            d->access[i].pointer = epi_emit_pointer(k, s->node, s->tensor);
        else if (s->kind == EPI_INSTR_TAKE || (s->kind == EPI_INSTR_SHIFT && !epi_rows_is_alias(s)) ||
                 s->kind == EPI_INSTR_RANDOM)
            d->access[i].pointer = epi_emit_pointer(k, d->g->nodes[s->node].arg[0], -1);
    }
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->tile.instrs[i].kind == EPI_INSTR_TAKE)
            d->access[i].index = epi_emit_index_pointer(d->c, k, d->tile.instrs[i].node);
    for (int i = 0; i < d->tile.instr_count; i++)
        if (epi_instr_is_partial(&d->tile.instrs[i]))
            d->access[i].pointer = epi_emit_place(k, d->c->partials[d->tile.instrs[i].node]);
}

/* Room for partials, and how many partials a result has. */
static epi_status give_partials(epi_rows_design *d, epi_emit_context *c, epi_error *err) {
    epi_rows_shape *s = &d->shape;
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *t = &d->tile.instrs[i];
        bool rows = t->kind == EPI_INSTR_PARTIAL_ROWS;
        if (!epi_instr_is_partial(t))
            continue;
        if (!rows && t->op == EPI_OP_LOGSUMEXP)
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "a log-sum-exp down the rows");
        /* a thread's sums are in registers, a block's in shared memory */
        int64_t room = s->stages ? 0 : (int64_t)4 * (s->rows - 1) * s->lanes * s->vector;
        if (!rows && (s->count > 32 || room > 40 << 10))
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "the sums of these rows do not fit on chip");
        c->partial_blocks = s->lines = d->down ? s->lines : s->blocks / s->cluster;
        c->partial_blocks_most = d->down ? d->most_lines : d->most_blocks / s->cluster;
        c->partials_open = epi_emit_grows(c, d->plan->flat ? d->tile.n : d->tile.m);
        c->partials[t->node] = c->workspace;
        int64_t n = rows ? 1 : epi_open_now(c->spec->open, d->tile.n);
        c->workspace += epi_round_up(4 * c->partial_blocks * n * epi_partial_words(t->op), 64);
    }
    return EPI_OK;
}

/* ---- all of it ---- */

/* Is it a store of the row's elements? What there is one of for a row, or for a column of a square tile, is none, as
 * beside a product's tile. */
static bool stores_elements(const epi_rows_design *d, const epi_instr *s) {
    return epi_rows_stores(s) && epi_rows_has_columns(d, s->arg[0]) &&
           !(d->plan->square && epi_rows_is_side(d, s->arg[0]));
}

/* Are all elements stored in 16 bits, of a square tile in fewer, too? Numbers of rows may be f32 beside them, so that
 * a norm has the same bits where its factor is saved; by themselves they have all digits. */
static bool is_stored_short(const epi_rows_design *d) {
    bool any = false;
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        size_t size = epi_dtype_size(d->access[i].ref.type);
        bool few = size == 2 || (d->plan->square && size < 2);
        if (epi_instr_is_partial(s) || (stores_elements(d, s) && !few))
            return false;
        any |= epi_rows_stores(s) && few;
    }
    return any;
}

/* What the instructions tell by themselves. */
static void look_at_instructions(epi_rows_design *d) {
    d->fast = is_stored_short(d);
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        if (s->dst >= 0)
            d->maker[s->dst] = i;
        d->access[i].ready = ready(d, s);
        d->random |= s->kind == EPI_INSTR_RANDOM;
        d->sums |= s->kind == EPI_INSTR_PARTIAL_COLS;
        d->downs |= s->kind == EPI_INSTR_REDUCE_DOWN;
        d->cross_tile |= epi_instr_is_partial(s);
        d->folds |= s->kind == EPI_INSTR_REDUCE_ROW || s->kind == EPI_INSTR_PARTIAL_ROWS;
    }
}

/* Have the lanes of a warp whole groups of columns, in vectors? All of them have columns then, or none. */
static epi_status check_groups(const epi_rows_design *d, epi_error *err) {
    int group = d->tile.group[EPI_SCALE_FINE], most = 32 * d->shape.vector;
    if (!d->plan->local_axes || (d->tile.n % most == 0 && most % group == 0 && group % d->shape.vector == 0 &&
                                 !epi_emit_grows(d->c, d->tile.n)))
        return EPI_OK;
    return epi_fail(err, EPI_ERR_UNSUPPORTED, "groups of %d columns in rows of %ld", group, (long)d->tile.n);
}

/* Of what a square tile has for each of its rows, threads load theirs, or count them. */
static epi_status check_lines(const epi_rows_design *d, epi_error *err) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        if ((s->kind == EPI_INSTR_TAKE || s->kind == EPI_INSTR_RANDOM) && epi_rows_is_line(d, s->dst))
            return epi_fail(err, EPI_ERR_UNSUPPORTED,
                            "rows of a square tile that are random, or taken by number");
    }
    return EPI_OK;
}

/* Numbers the phases of a chunk: what a scan makes is there in the next one. Stores come last. */
static epi_status number_scans(epi_rows_design *d, epi_error *err) {
    epi_tile_program *t = &d->tile;
    int *phase = epi_arena_alloc(d->c->arena, ((size_t)t->value_count + 1) * sizeof *phase);
    EPI_TRY(epi_has_memory(phase, err));
    t->phases = 1;
    for (int i = 0; i < t->instr_count; i++) {
        epi_instr *s = &t->instrs[i];
        bool scan = s->kind == EPI_INSTR_SCAN;
        bool sums =
            s->kind == EPI_INSTR_PARTIAL_COLS && d->down && s->full && !epi_rows_is_coarse(d, s->arg[0]);
        if (epi_instr_folds(s) || (epi_instr_is_partial(s) && !sums) || s->kind == EPI_INSTR_REDUCE_GROUP)
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "a reduction in addition to a scan");
        if (scan && (!s->full || epi_rows_is_coarse(d, s->dst)))
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "a scan of a value that does not have all axes");
        if (s->kind == EPI_INSTR_SHIFT && !epi_axis_equal(d->g->nodes[s->node].over.at[0], d->along))
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "a shift along another axis than a scan");
        s->phase = 0;
        for (int a = 0; a < 3; a++)
            if (s->arg[a] >= 0)
                s->phase = (int)epi_max64(s->phase, phase[s->arg[a]]);
        if (s->dst >= 0)
            phase[s->dst] = s->phase + scan;
        t->phases = (int)epi_max64(t->phases, s->phase + 1);
    }
    for (int i = 0; i < t->instr_count; i++)
        if (epi_rows_stores(&t->instrs[i]))
            t->instrs[i].phase = t->phases - 1;
    return EPI_OK;
}

/* Do its blocks walk along an axis? */
static void find_steps(epi_rows_design *d) {
    const epi_axes *rows = &d->plan->rows;
    d->window = d->plan->window;
    d->down = d->window || (d->plan->scan_count && epi_axes_find(rows, d->plan->scan) >= 0);
    d->walks = d->window || d->plan->scan_count;
    if (d->walks)
        d->along = d->plan->scan_count ? d->plan->scan : rows->at[rows->count - 1];
}

static epi_status prepare(epi_rows_design *d, const epi_step *step, epi_error *err) {
    epi_arena *arena = d->c->arena;
    EPI_TRY(
        epi_tile_program_rows(arena, d->c->spec, step->plan, step->roots, step->root_count, &d->tile, err));
    EPI_TRY(epi_tile_program_check(&d->tile, d->c->steps, step, err));
    size_t instrs = (size_t)d->tile.instr_count + 1, values = (size_t)d->tile.value_count + 1;
    d->access = epi_arena_alloc(arena, instrs * sizeof *d->access);
    d->pair = epi_arena_alloc(arena, instrs * sizeof *d->pair);
    d->maker = epi_arena_alloc(arena, values * sizeof *d->maker);
    EPI_TRY(epi_has_memory(d->access && d->pair && d->maker, err));
    d->columns = d->plan->flat ? epi_open_now(d->c->spec->open, d->tile.n)
                               : epi_open_most(d->c->spec->open, d->tile.n);
    if (!d->plan->flat && d->columns > INT32_MAX / 2)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a row of %ld columns", (long)d->columns);
    find_steps(d);
    if (d->walks)
        EPI_TRY(number_scans(d, err));
    epi_rows_find_access(d);
    look_at_instructions(d);
    find_pairs(d);
    if (d->window)
        epi_window_find(d);
    return EPI_OK;
}

/* racecheck reports hazards that are none in two kinds of kernels with teams of several warps, which have
 * names of their own for it: bench/notes/rows.md. */
static const char *kernel_name(const epi_rows_design *d) {
    const epi_rows_shape *s = &d->shape;
    bool warps = s->lanes > 32, folds = d->tile.phases > 1;
    if (d->walks)
        return d->window ? "window" : "scan";
    return warps && d->sums && s->rows > 1 ? "row_sums" : warps && s->stages && !folds ? "row_ring" : "rows";
}

/* What a launch is told. */
static void describe_kernel(epi_rows_design *d) {
    const epi_rows_shape *s = &d->shape;
    epi_kernel_text *k = &d->kernel;
    k->arch = d->c->arch->name;
    k->block = s->lanes * s->rows;
    k->rows = *s;
    snprintf(k->name, sizeof k->name, "%s", kernel_name(d));
    give_pointers(d);
}

epi_status epi_rows_design_make(epi_emit_context *c, const epi_step *step, epi_rows_design *out,
                                epi_error *err) {
    *out = (epi_rows_design){.c = c, .g = c->spec->graph, .plan = step->plan};
    EPI_TRY(prepare(out, step, err));
    epi_rows_choose_vector(out);
    EPI_TRY(check_groups(out, err));
    EPI_TRY(check_lines(out, err));
    epi_status status = epi_rows_make_shape(out, err);
    if (status == EPI_OK)
        status = give_partials(out, c, err);
    if (status == EPI_OK)
        status = list_phases(out, err);
    if (status == EPI_OK)
        describe_kernel(out);
    return status;
}

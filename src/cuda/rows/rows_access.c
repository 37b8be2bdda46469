/* rows_access.c: how a kernel over rows reaches its tensors: where their elements lie, and in which vectors.
 */
#include "cuda/rows/design_rows.h"

enum { SOME_ROWS = 3 }; /* in place of one: any number that is more, and odd */

static bool moves(const epi_instr *s) {
    return s->kind == EPI_INSTR_LOAD || epi_rows_stores(s);
}
static bool reads_or_moves(const epi_instr *s) {
    return moves(s) || s->kind == EPI_INSTR_TAKE || s->kind == EPI_INSTR_RANDOM ||
           (s->kind == EPI_INSTR_SHIFT && !epi_rows_is_alias(s));
}

/* May an output be stored over the elements that the instruction loads? */
static bool overwritten(const epi_rows_design *d, const epi_instr *s) {
    int tensor = d->c->steps->homes[s->node].tensor;
    for (int t = d->g->input_count; t < d->g->tensor_count; t++)
        if (epi_rows_is_full(d, s->dst) && epi_steps_in_place(d->c->steps, t, tensor))
            return true;
    return false;
}

/* Do several rows read the same elements? Weights; and tables such as those of a rotation, which all heads of
 * a token read. */
static bool reread(const epi_rows_design *d, const epi_instr *s, const epi_walk *rows) {
    bool again = !epi_rows_is_full(d, s->dst);
    for (int i = 0; i < rows->count; i++)
        again |= rows->stride[i] == 0;
    return again;
}

/* Where an instruction's elements lie, with the sizes of this context. */
static void find_places(const epi_rows_design *d, const epi_emit_context *c, int i, epi_rows_access *a) {
    const epi_instr *s = &d->tile.instrs[i];
    const int64_t *sizes = c->spec->sizes;
    if (s->kind == EPI_INSTR_INDEX || s->kind == EPI_INSTR_RANDOM) {
        a->ref = epi_ref_of_axes(&d->g->nodes[s->node].axes, sizes);
    } else if (s->kind == EPI_INSTR_TAKE) {
        a->ref = epi_emit_ref(c, d->g->nodes[s->node].arg[0], -1);
        a->along = epi_ref_along(&a->ref, &d->g->nodes[s->node].over, sizes);
    } else if (s->kind == EPI_INSTR_SHIFT) {
        a->ref = epi_emit_ref(c, d->g->nodes[s->node].arg[0], -1);
    } else {
        a->ref = epi_emit_ref(c, s->node, s->tensor);
    }
    a->rows = epi_walk_axes(&a->ref, &d->plan->rows, sizes);
    if (d->down) {
        epi_axes batch = d->plan->rows;
        batch.count--;
        a->batch = epi_walk_axes(&a->ref, &batch, sizes);
        a->step = epi_ref_stride(&a->ref, d->along);
    }
    a->cols = epi_columns_of(d->plan, &a->ref, sizes, d->tile.values[epi_rows_value(s)].scale);
}

void epi_rows_find_access(epi_rows_design *d) {
    epi_emit_context many = *d->c;
    epi_spec spec = *d->c->spec;
    many.spec = &spec;
    for (int i = 0; i < d->plan->rows.count; i++) {
        int dim = d->plan->rows.at[i].dim;
        if (spec.is_row[dim] && spec.sizes[dim] == 1)
            spec.sizes[dim] = SOME_ROWS;
    }
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        epi_rows_access *a = &d->access[i], there = {0};
        if (!reads_or_moves(s) && s->kind != EPI_INSTR_INDEX)
            continue;
        find_places(d, d->c, i, a);
        find_places(d, &many, i, &there);
        a->many_rows = there.rows;
        a->many_cols = there.cols;
        if (s->kind == EPI_INSTR_LOAD) {
            a->overwritten = overwritten(d, s);
            a->reread = reread(d, s, &a->rows);
        }
    }
}

/* Do `w` neighbouring columns lie together, at a multiple of w, for every vector of every row? */
static bool lies_in_vectors(const epi_rows_design *d, const epi_rows_access *a, int w) {
    const epi_walk *c = &a->many_cols.walk;
    epi_walk outer = *c;
    outer.count = c->count - 1;
    if ((a->many_cols.part % w && a->many_cols.two) || !epi_walk_aligned(&a->many_rows, w) ||
        !epi_walk_aligned(&outer, w))
        return false;
    if (!c->count)
        return w == 1;
    return c->stride[c->count - 1] == 1 &&
           (c->size[c->count - 1] % w == 0 || (d->plan->flat && c->count == 1));
}

/* Sets which tensors are reached in vectors of this many columns; returns whether all of them are, that could
 * be at all. */
static bool set_vectors(epi_rows_design *d, int vector) {
    bool all = true;
    d->shape.vector = vector;
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        epi_rows_access *a = &d->access[i];
        if (!reads_or_moves(s) || !epi_rows_has_columns(d, epi_rows_value(s)) ||
            (s->kind == EPI_INSTR_LAST && !d->down)) /* one of its row */
            continue;
        int w = epi_rows_width(d, epi_rows_value(s)) / epi_rows_pieces(a);
        a->vectors = w >= 1 && epi_walk_aligned(&a->along, w) && lies_in_vectors(d, a, w);
        all &= a->vectors || s->kind == EPI_INSTR_RANDOM || !lies_in_vectors(d, a, 1);
    }
    return all;
}

/* Is it a store of a square tile whose rows are neighbours in memory, so that a thread's are one vector? */
static bool is_turned(const epi_rows_design *d, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    const epi_rows_access *a = &d->access[i];
    const epi_walk *c = &a->many_cols.walk;
    if (!d->plan->square || s->kind != EPI_INSTR_STORE || a->vectors || epi_rows_is_side(d, s->arg[0]) ||
        epi_dtype_size(a->ref.type) > 2 || c->count != 2 || c->stride[0] != 1)
        return false;
    epi_walk columns = {.count = 1, .size = {c->size[1]}, .stride = {c->stride[1]}};
    return epi_walk_aligned(&columns, d->shape.vector) && epi_walk_aligned(&a->many_rows, d->shape.vector);
}

static void find_turned(epi_rows_design *d) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        d->access[i].turned = is_turned(d, i);
        d->access[i].apart = d->access[i].turned ? d->access[i].cols.walk.stride[1] : 0;
    }
}

void epi_rows_choose_vector(epi_rows_design *d) {
    int smallest = 4;
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        int size = (int)epi_max64(2, (int64_t)epi_dtype_size(d->access[i].ref.type)); /* bytes: 8 at once */
        if (moves(s) && epi_rows_is_full(d, epi_rows_value(s)) && size < smallest)
            smallest = size;
    }
    int vector = d->plan->square ? 8 : 16 / smallest * (d->plan->split != EPI_OP_COUNT ? 2 : 1);
    if (d->walks)
        vector = (int)epi_min64(vector, (d->window ? epi_window_vector : epi_scan_vector)(d));
    while (!d->plan->square && vector > 1 &&
           ((!d->plan->flat && d->tile.n % vector) || !set_vectors(d, vector)))
        vector /= 2;
    set_vectors(d, vector);
    d->tail = d->plan->flat && d->tile.n % vector != 0;
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        bool loads = s->kind == EPI_INSTR_LOAD || (s->kind == EPI_INSTR_SHIFT && d->down && !d->window);
        d->access[i].fetched =
            loads && epi_rows_is_full(d, s->dst) && d->access[i].vectors && !epi_rows_is_side(d, s->dst);
    }
    find_turned(d);
}

bool epi_rows_is_contiguous(const epi_rows_design *d, int i) {
    const epi_rows_access *a = &d->access[i];
    int64_t n = epi_rows_is_coarse(d, epi_rows_value(&d->tile.instrs[i])) ? d->tile.n / 2 : d->tile.n;
    int64_t bytes = (int64_t)epi_dtype_size(a->ref.type);
    const epi_columns *cols = &a->many_cols;
    if (cols->walk.count != 1 || cols->walk.stride[0] != 1 || n * bytes % 16 || epi_emit_grows(d->c, n) ||
        !epi_walk_aligned(&a->many_rows, 16 / bytes))
        return false;
    if (cols->two)
        return 2 * cols->walk.size[0] == n && cols->part == n / 2 && n / 2 * bytes % 16 == 0;
    return cols->walk.size[0] == n;
}

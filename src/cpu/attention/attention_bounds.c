/* attention_bounds.c: which columns of the stream a tile of rows sees, from the bounds and matches of its
 * mask. */
#include <math.h>

#include "cpu/attention/attention.h"

enum { DEEP = 4 }; /* maps that a bound's term may be made of */

static bool has_home(const epi_plan *plan, const epi_graph *g, int node) {
    return g->nodes[node].op == EPI_OP_INPUT || plan->placement[node].before;
}

static bool is_known(const epi_plan *plan, const epi_graph *g, int node, int depth) {
    const epi_node *n = &g->nodes[node];
    if (has_home(plan, g, node) || n->op == EPI_OP_CONST || n->op == EPI_OP_SIZE || n->op == EPI_OP_INDEX)
        return true;
    if (!epi_op_is_map(n->op) || depth == DEEP)
        return false;
    for (int a = 0; a < epi_ops[n->op].arity; a++)
        if (!is_known(plan, g, n->arg[a], depth + 1))
            return false;
    return true;
}

static bool is_linear_known(const epi_plan *plan, const epi_graph *g, const epi_linear *l) {
    for (int i = 0; i < l->count; i++)
        if (!is_known(plan, g, l->term[i], 0))
            return false;
    return true;
}

bool epi_bound_is_known(const epi_plan *plan, const epi_graph *g, const epi_bound *b) {
    return is_linear_known(plan, g, &b->limit) &&
           (b->other_is == EPI_OR_NOTHING || is_linear_known(plan, g, &b->other));
}

/* ---- a tile of rows ---- */

typedef struct rows {
    const epi_attention_loop *l;
    const epi_ref *homes;
    int64_t first;
    int count;
} rows;

/* The value of every row, in f64: positions and lengths are exact. */
static void evaluate(const rows *r, int node, double *out) {
    const epi_graph *g = r->l->spec->graph;
    const epi_node *n = &g->nodes[node];
    const int64_t *sizes = r->l->spec->sizes;
    if (has_home(r->l->plan, g, node)) {
        const epi_ref *ref = &r->homes[node];
        epi_walk walk = epi_walk_axes(ref, &r->l->plan->rows, sizes);
        for (int i = 0; i < r->count; i++) {
            float x;
            r->l->strips->load(
                &x, ref->data + epi_walk_offset(&walk, r->first + i) * (int64_t)epi_dtype_size(ref->type),
                ref->type, 1, 1);
            out[i] = (double)x;
        }
    } else if (n->op == EPI_OP_INDEX) {
        epi_ref ref = epi_ref_of_axes(&n->axes, sizes);
        epi_walk walk = epi_walk_axes(&ref, &r->l->plan->rows, sizes);
        for (int i = 0; i < r->count; i++)
            out[i] = (double)epi_walk_offset(&walk, r->first + i);
    } else if (n->op == EPI_OP_CONST || n->op == EPI_OP_SIZE) {
        for (int i = 0; i < r->count; i++)
            out[i] = n->op == EPI_OP_CONST ? n->value : (double)epi_axis_size(n->over.at[0], sizes);
    } else {
        double x[3][EPI_TILE_M] = {{0}};
        for (int a = 0; a < epi_ops[n->op].arity; a++)
            evaluate(r, n->arg[a], x[a]);
        for (int i = 0; i < r->count; i++)
            out[i] = epi_op_reference(n->op, x[0][i], x[1][i], x[2][i]);
    }
}

/* Is the term a whole number, so that f32 and f64 agree on it? */
static bool is_whole(const epi_attention_loop *l, int node) {
    const epi_node *n = &l->spec->graph->nodes[node];
    return n->op == EPI_OP_INDEX || n->op == EPI_OP_SIZE ||
           (n->op == EPI_OP_INPUT && epi_dtype_is_integer(l->spec->types[n->tensor]));
}

/* The sum of every row; are they whole numbers? */
static bool evaluate_linear(const rows *r, const epi_linear *l, double *sum) {
    double x[EPI_TILE_M];
    bool whole = l->offset == floor(l->offset);
    for (int i = 0; i < r->count; i++)
        sum[i] = l->offset;
    for (int t = 0; t < l->count; t++) {
        evaluate(r, l->term[t], x);
        whole &= is_whole(r->l, l->term[t]);
        for (int i = 0; i < r->count; i++)
            sum[i] += l->factor[t] * x[i];
    }
    return whole;
}

/* Takes in what else lets a row see a column. Positions are whole numbers: the limit is what a position may
 * be equal to. Nobody knows what a number of a row that is not whole rounds to: then the row may see all, and
 * sees what its limit says. */
static void widen(const rows *r, const epi_bound *b, epi_limit *to, double *sum, double *most) {
    double other[EPI_TILE_M];
    bool whole = evaluate_linear(r, &b->other, other), second = b->other_is == EPI_OR_LIMIT;
    to->strict = false;
    to->exact &= whole || !second;
    for (int i = 0; i < r->count; i++) {
        double first = b->limit.strict ? ceil(sum[i]) - 1 : sum[i],
               next = b->other.strict ? ceil(other[i]) - 1 : other[i];
        bool number = first == first && next == next; /* else a max is none either, and an "or" may hold */
        bool free = !second && (!whole || next >= 0);
        most[i] = second ? fmax(first, next) : free ? (double)INFINITY : first;
        sum[i] = !number ? (double)NAN : free && !whole ? first : most[i];
    }
}

void epi_limits_find(const epi_attention_loop *l, const epi_ref *homes, int64_t row, int count,
                     epi_limit *out) {
    const rows r = {l, homes, row, count};
    const int64_t *sizes = l->spec->sizes;
    for (int k = 0; k < l->bound_count; k++) {
        const epi_bound *b = &l->a->bounds[k];
        double sum[EPI_TILE_M], most[EPI_TILE_M];
        epi_limit *to = &out[k];
        *to = (epi_limit){.inner = 1, .sign = b->sign, .strict = b->limit.strict};
        int at = epi_axes_find(&l->a->stream, b->axis);
        to->size = epi_axis_size(b->axis, sizes);
        if (b->flat)
            to->size = epi_axes_size(&l->a->stream, sizes);
        for (int i = at + 1; i < l->a->stream.count; i++) /* none behind that of a flat one, the last */
            to->inner *= epi_axis_size(l->a->stream.at[i], sizes);
        to->exact = evaluate_linear(&r, &b->limit, sum);
        for (int i = 0; i < count; i++)
            most[i] = sum[i];
        if (b->other_is != EPI_OR_NOTHING)
            widen(&r, b, to, sum, most);
        to->least = INFINITY;
        to->most = -INFINITY;
        for (int i = 0; i < count; i++) { /* a limit that is no number hides everything */
            to->least = sum[i] == sum[i] ? fmin(to->least, sum[i]) : -INFINITY;
            to->most = fmax(to->most, most[i]);
        }
    }
}

epi_sight epi_limits_sight(const epi_limit *limits, int count, int64_t first, int64_t columns) {
    epi_sight sight = EPI_SEES_ALL;
    for (int k = 0; k < count; k++) {
        const epi_limit *l = &limits[k];
        int64_t from = first / l->inner, to = (first + columns - 1) / l->inner;
        bool around = to - from >= l->size || from % l->size > to % l->size; /* over the end of the axis */
        double low = around ? 0 : (double)(from % l->size),
               high = (double)(around ? l->size - 1 : to % l->size);
        double least = l->sign > 0 ? low : -high, most = l->sign > 0 ? high : -low, slack = l->exact ? 0 : 1;
        bool strict = l->strict && l->exact;
        if (strict ? least >= l->most : least > l->most + slack)
            return EPI_SEES_NONE;
        if (l->strict ? most >= l->least - slack : most > l->least - slack)
            sight = EPI_SEES_SOME;
    }
    return sight;
}

epi_span epi_limits_span(const epi_limit *limits, int count, int64_t first, int64_t columns) {
    double from = (double)first, to = (double)(first + columns);
    for (int k = 0; k < count; k++) {
        const epi_limit *l = &limits[k];
        double slack = l->exact ? 0 : 1, inner = (double)l->inner;
        if (first / l->inner / l->size != (first + columns - 1) / l->inner / l->size)
            continue; /* over the end of the axis */
        double start = (double)(first / l->inner / l->size * l->size * l->inner);
        if (l->sign > 0)
            to = fmin(to, start + (floor(l->most) + 1 + slack) * inner);
        else
            from = fmax(from, start + (ceil(-l->most) - slack) * inner);
    }
    epi_span s = {0, columns};
    if (from < to) { /* else they see none, and this is not asked */
        s.from = ((int64_t)from - first) / EPI_SPAN_STEP * EPI_SPAN_STEP;
        s.to = epi_min64(columns, epi_round_up((int64_t)to - first, EPI_SPAN_STEP));
    }
    return s;
}

/* ---- matches ---- */

/* Both sides lie in memory, and the columns' has no rows. */
bool epi_match_is_known(const epi_plan *plan, const epi_graph *g, const epi_attention *a,
                        const epi_match *m) {
    epi_axes rest = epi_axes_without(&g->nodes[m->column].axes, &a->stream), batch = epi_plan_batch(plan);
    return has_home(plan, g, m->row) && has_home(plan, g, m->column) && epi_axes_include(&batch, &rest);
}

static void widen_range(epi_range *r, float x) {
    r->least = fminf(r->least, x);
    r->most = fmaxf(r->most, x);
    r->mixed |= x != x;
}

epi_sight epi_matches_sight(const epi_attention_loop *l, const epi_ref *homes, const epi_range *rows,
                            int64_t batch, int64_t first, int64_t columns) {
    float x[EPI_STREAM_TILE];
    epi_sight sight = EPI_SEES_ALL;
    epi_axes batches = epi_plan_batch(l->plan);
    for (int m = 0; m < l->match_count; m++) {
        const epi_ref *ref = &homes[l->a->matches[m].column];
        epi_walk of_batch = epi_walk_axes(ref, &batches, l->spec->sizes),
                 stream = epi_walk_axes(ref, &l->a->stream, l->spec->sizes);
        epi_walk_load(l->strips, x, ref, epi_walk_offset(&of_batch, batch), &stream, first, columns);
        epi_range c = {INFINITY, -INFINITY, false};
        for (int64_t i = 0; i < columns; i++)
            widen_range(&c, x[i]);
        if (c.least > rows[m].most || c.most < rows[m].least)
            return EPI_SEES_NONE; /* what is no number equals nothing */
        if (c.mixed || rows[m].mixed || c.least != c.most || rows[m].least != rows[m].most)
            sight = EPI_SEES_SOME;
    }
    return sight;
}

/* ---- where tiles begin ---- */

int64_t epi_stream_origin(const epi_attention_loop *l, const epi_ref *homes, int64_t batch) {
    const rows first = {l, homes, batch * (l->score[0].tile.m / epi_max64(1, l->batches)), 1};
    epi_axes batches = epi_plan_batch(l->plan);
    double origin = 0, limit;
    for (int k = 0; k < l->bound_count && l->origins; k++) {
        const epi_bound *b = &l->a->bounds[k];
        bool along = b->flat || l->a->stream.count == 1;
        if (along && epi_bound_is_start(l->spec->graph, b, &batches) &&
            evaluate_linear(&first, &b->limit, &limit) && limit == limit)
            origin = fmax(origin, -limit);
    }
    return origin < (double)l->n ? (int64_t)origin : l->n;
}

/* A document: of the columns from an origin on, from the first to behind the last that have the values of a row's
 * matches. One whose columns do not lie together is the whole stream from there on. */
static epi_reach find_document(const epi_attention_loop *l, const epi_ref *homes, int64_t batch,
                               int64_t origin, const float *values) {
    float x[EPI_STREAM_TILE];
    bool same[EPI_STREAM_TILE];
    epi_axes batches = epi_plan_batch(l->plan);
    epi_reach s = {.from = l->n, .to = l->n};
    for (int64_t at = origin; at < l->n; at += EPI_STREAM_TILE) {
        int64_t count = epi_min64(EPI_STREAM_TILE, l->n - at);
        for (int m = 0; m < l->match_count; m++) {
            const epi_ref *ref = &homes[l->a->matches[m].column];
            epi_walk of_batch = epi_walk_axes(ref, &batches, l->spec->sizes),
                     stream = epi_walk_axes(ref, &l->a->stream, l->spec->sizes);
            epi_walk_load(l->strips, x, ref, epi_walk_offset(&of_batch, batch), &stream, at, count);
            for (int64_t i = 0; i < count; i++)
                same[i] = (m == 0 || same[i]) && x[i] == values[m * EPI_TILE_M];
        }
        for (int64_t i = 0; i < count; i++) {
            if (same[i] && s.from < l->n && s.to < at + i)
                return (epi_reach){.from = origin, .to = l->n};
            s.from = same[i] ? epi_min64(s.from, at + i) : s.from;
            s.to = same[i] ? at + i + 1 : s.to;
        }
    }
    return s;
}

/* The last row before it that has the same values of all matches, or -1. What is no number equals nothing. */
static int row_like(const float *values, int matches, int row) {
    for (int i = row - 1, m; i >= 0; i--) { /* most often the first */
        for (m = 0; m < matches && values[m * EPI_TILE_M + i] == values[m * EPI_TILE_M + row]; m++)
            ;
        if (m == matches)
            return i;
    }
    return -1;
}

/* The number of the reach, which is added if it is not there. */
static int add_reach(epi_reach *all, int *count, epi_reach s) {
    for (int k = 0; k < *count; k++)
        if (all[k].from == s.from && all[k].to == s.to)
            return k;
    for (int m = 0; m < EPI_ATTENTION_BOUNDS; m++)
        s.ranges[m] = (epi_range){INFINITY, -INFINITY, false};
    all[*count] = s;
    return (*count)++;
}

int epi_reaches_find(const epi_attention_loop *l, const epi_ref *homes, int64_t batch, int64_t origin,
                     int64_t row, int count, epi_reach *out, unsigned char *of) {
    const epi_reach whole = {.from = origin, .to = l->n};
    float values[EPI_ATTENTION_BOUNDS * EPI_TILE_M];
    int found = 0;
    for (int m = 0; m < l->match_count; m++) {
        const epi_ref *ref = &homes[l->a->matches[m].row];
        epi_walk walk = epi_walk_axes(ref, &l->plan->rows, l->spec->sizes);
        epi_walk_load(l->strips, values + m * EPI_TILE_M, ref, 0, &walk, row, count);
    }
    for (int i = 0; i < count; i++) {
        bool documents = l->origins && l->match_count;
        int like = documents ? row_like(values, l->match_count, i) : i - 1;
        of[i] = like >= 0 ? of[like]
                          : (unsigned char)add_reach(
                                out, &found,
                                documents ? find_document(l, homes, batch, origin, values + i) : whole);
        for (int m = 0; m < l->match_count; m++)
            widen_range(&out[of[i]].ranges[m], values[m * EPI_TILE_M + i]);
    }
    return found;
}

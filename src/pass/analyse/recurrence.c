/* recurrence.c: which scans are scans of products (recurrence.h). */
#include "pass/analyse/recurrence.h"

#include "ir/index.h"
#include "pass/analyse/attention.h"
#include "pass/analyse/direction.h"
#include "pass/analyse/monomial.h"

enum { MOST_INNER = 64 };

typedef struct finder {
    const epi_spec *spec;
    const epi_graph *g;
    epi_arena *arena;
    const bool *forward; /* by node; see direction.h */
    bool sums;           /* a recurrence may have several kinds of them */
    epi_recurrence *r;   /* that is being found */
    struct {
        int at[MOST_INNER], count;
        bool full;
    } list;       /* its inner values, so far */
    int *scratch; /* as many as nodes */
} finder;

bool epi_factor_has(const epi_graph *g, int node, const epi_axes *axes) {
    return epi_axes_meet(&g->nodes[node].axes, axes);
}

static void note(finder *f, int node) {
    for (int i = 0; i < f->list.count; i++)
        if (f->list.at[i] == node)
            return;
    f->list.full |= f->list.count == MOST_INNER;
    if (!f->list.full)
        f->list.at[f->list.count++] = node;
}

/* ---- factors ---- */

static bool add_factor(epi_factors *to, int node) {
    if (to->count == EPI_RECURRENCE_FACTORS)
        return false;
    to->at[to->count++] = node;
    return true;
}

/* Is it a product that is larger than its operands, or one with such an operand? It is not to be in memory. */
static bool is_outer(const epi_graph *g, int node, int depth) {
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_MUL || depth > EPI_RECURRENCE_FACTORS)
        return false;
    const epi_axes *a = &g->nodes[n->arg[0]].axes, *b = &g->nodes[n->arg[1]].axes;
    return (n->axes.count > a->count && n->axes.count > b->count) || is_outer(g, n->arg[0], depth + 1) ||
           is_outer(g, n->arg[1], depth + 1);
}

/* Is it a value times a number, which nothing but larger products take? The number is a factor by itself then. */
static bool is_scaled(const epi_graph *g, int node) {
    const epi_node *n = &g->nodes[node];
    epi_use_list uses = epi_graph_uses(g, node);
    bool scaled = n->op == EPI_OP_MUL && !n->has_stored &&
                  (g->nodes[n->arg[0]].op == EPI_OP_CONST || g->nodes[n->arg[1]].op == EPI_OP_CONST);
    for (int i = 0; i < uses.count && scaled; i++) {
        const epi_node *user = uses.at[i].node == EPI_NO_NODE ? NULL : &g->nodes[uses.at[i].node];
        scaled = user && user->op == EPI_OP_MUL && user->axes.count > n->axes.count;
    }
    return scaled;
}

/* The factors of a value that is not to be in memory; those of the state's shape must be products themselves, or the
 * scan, which is counted and left out. */
static bool take_apart(finder *f, int node, epi_factors *to, int *scans, int depth) {
    const epi_node *n = &f->g->nodes[node];
    bool whole = epi_axes_same_set(&n->axes, &f->g->nodes[f->r->scan].axes);
    if (node == f->r->scan) {
        ++*scans;
        return true;
    }
    if (n->op != EPI_OP_MUL || !(whole || is_outer(f->g, node, 0) || is_scaled(f->g, node)))
        return !whole && add_factor(to, node);
    note(f, node);
    return depth < 2 * EPI_RECURRENCE_FACTORS && take_apart(f, n->arg[0], to, scans, depth + 1) &&
           take_apart(f, n->arg[1], to, scans, depth + 1);
}

/* ---- positions ---- */

/* Is it the number of the step that comes first? */
static bool is_first(const finder *f, int node) {
    return epi_is_end(f->spec, node, f->r->time, !f->r->back);
}

/* Does the condition hold at the first step alone: index(T) == 0? */
static bool is_first_step(const finder *f, int node) {
    const epi_node *n = &f->g->nodes[node];
    for (int side = 0; side < 2 && n->op == EPI_OP_EQ; side++) {
        const epi_node *at = &f->g->nodes[n->arg[side]];
        if (at->op == EPI_OP_INDEX && epi_axis_equal(at->over.at[0], f->r->time))
            return is_first(f, n->arg[!side]);
    }
    return false;
}

static bool lacks_time(const finder *f, int node) {
    return epi_axes_find(&f->g->nodes[node].axes, f->r->time) < 0;
}

/* ---- what is added at each step ---- */

/* a*h: the other operand of a product with the decay. */
static int decayed(const finder *f, int node) {
    const epi_node *n = &f->g->nodes[node];
    int decay = f->g->nodes[f->r->scan].arg[0];
    for (int side = 0; side < 2 && n->op == EPI_OP_MUL; side++)
        if (n->arg[side] == decay && lacks_time(f, n->arg[!side]))
            return n->arg[!side];
    return EPI_NO_NODE;
}

/* A term that is nothing but at the first step: where(index(T) == 0, a*h, 0), where(index(T) == 0, h, 0), or
 * scatter(h, 0, T). */
static bool find_first(finder *f, int node) {
    const epi_node *n = &f->g->nodes[node];
    int what = EPI_NO_NODE, *to = &f->r->added;
    if (n->op == EPI_OP_SCATTER && n->over.count == 1 && epi_axis_equal(n->over.at[0], f->r->time) &&
        is_first(f, n->arg[1])) {
        what = n->arg[0];
    } else if (n->op == EPI_OP_WHERE && is_first_step(f, n->arg[0]) && epi_is_zero(f->g, n->arg[2])) {
        what = decayed(f, n->arg[1]);
        if (what != EPI_NO_NODE) {
            note(f, n->arg[1]);
            to = &f->r->first;
        } else if (lacks_time(f, n->arg[1])) {
            what = n->arg[1];
        }
    }
    if (what == EPI_NO_NODE || *to != EPI_NO_NODE || !lacks_time(f, what))
        return false;
    note(f, node);
    *to = what;
    return true;
}

/* Terms at the first step, and one product. */
static bool find_input(finder *f, int node, int depth) {
    const epi_node *n = &f->g->nodes[node];
    int scans = 0;
    if (find_first(f, node))
        return true;
    if (n->op == EPI_OP_ADD && depth < 3) {
        note(f, node);
        return find_input(f, n->arg[0], depth + 1) && find_input(f, n->arg[1], depth + 1);
    }
    bool one = f->r->of.count == 0;
    return one && (is_outer(f->g, node, 0) ? take_apart(f, node, &f->r->of, &scans, 0) && !scans
                                           : add_factor(&f->r->of, node));
}

/* Do nothing but scans want the value? */
static bool is_scanned(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool scanned = true;
    for (int i = 0; i < uses.count; i++)
        scanned &= epi_op_scans(epi_use_op(g, uses.at[i]));
    return scanned;
}

/* The decay, as it is in memory: of one that is shifted, so that what is outside is the first step's, which has no
 * history, what is shifted. */
static void find_decay(finder *f) {
    int decay = f->g->nodes[f->r->scan].arg[0];
    const epi_node *n = &f->g->nodes[decay];
    f->r->decay = decay;
    if (n->op != EPI_OP_SHIFT || !epi_axis_equal(n->over.at[0], f->r->time) ||
        n->value != (f->r->back ? -1 : 1) || f->r->first != EPI_NO_NODE || !is_scanned(f->g, decay))
        return;
    note(f, decay);
    f->r->decay = n->arg[0];
    f->r->decay_ahead = f->r->back ? 1 : -1;
}

/* ---- what leaves ---- */

static bool is_last(const finder *f, int node) {
    const epi_node *n = &f->g->nodes[node];
    return n->arg[0] == f->r->scan && epi_takes_end(f->spec, node, f->r->back) &&
           epi_axis_equal(n->over.at[0], f->r->time);
}

static bool has_all_or_none(const epi_graph *g, int node, const epi_axes *axes) {
    return !epi_factor_has(g, node, axes) || epi_axes_include(&g->nodes[node].axes, axes);
}

static void keep_out(epi_axes *cols, const epi_graph *g, const epi_factors *of, const epi_axes *rows) {
    for (int i = 0; i < of->count; i++)
        if (epi_factor_has(g, of->at[i], rows))
            *cols = epi_axes_without(cols, &g->nodes[of->at[i]].axes);
}

/* Rows are what the sum removes; columns follow. False: the state has none, or the decay has parts of them. */
static bool find_shape(finder *f, const epi_axes *over, const epi_factors *by) {
    const epi_graph *g = f->g;
    epi_recurrence *r = f->r;
    const epi_axes time = {1, {r->time}}, *decay = &g->nodes[r->decay].axes;
    epi_axes all = epi_axes_without(&g->nodes[r->scan].axes, &time);
    r->rows = *over;
    r->cols = epi_axes_without(&all, over);
    keep_out(&r->cols, g, &r->of, over);
    keep_out(&r->cols, g, by, over);
    epi_axes apart = epi_axes_without(&r->cols, decay);
    r->cols = apart.count ? apart : r->cols;
    r->batch = epi_axes_without(&all, over);
    r->batch = epi_axes_without(&r->batch, &r->cols);
    return r->cols.count && epi_axes_include(&all, over) && has_all_or_none(g, r->decay, &r->rows) &&
           has_all_or_none(g, r->decay, &r->cols) &&
           !(epi_axes_meet(decay, &r->rows) && epi_axes_meet(decay, &r->cols));
}

/* May the sum be one along the rows of the state? */
static bool is_along(const finder *f, const epi_axes *over, const epi_factors *by) {
    bool along = epi_axes_same_set(over, &f->r->cols);
    for (int i = 0; i < by->count; i++)
        along &= !epi_factor_has(f->g, by->at[i], over) || !epi_factor_has(f->g, by->at[i], &f->r->rows);
    return along;
}

/* ---- what comes together ---- */

int epi_recurrence_result(const epi_recurrence *r) {
    for (int t = 0; t < EPI_TAKE_COUNT; t++)
        if (r->out[t] != EPI_NO_NODE)
            return r->out[t];
    return EPI_NO_NODE;
}

/* Can it come with the results that there are: is it of their direction, and is nothing that one reads made of the
 * other? */
static bool comes_with(finder *f, const epi_recurrence *with) {
    int operands[EPI_RECURRENCE_OPERANDS], count = epi_recurrence_operands(with, operands);
    bool may = true;
    for (int t = 0; t < EPI_TAKE_COUNT && may; t++) {
        if (with->out[t] == EPI_NO_NODE)
            continue;
        may = f->forward[with->out[t]] == f->forward[epi_recurrence_result(with)];
        for (int i = 0; i < count && may; i++)
            may = !epi_is_made_of(f->g, operands[i], with->out[t], f->scratch);
    }
    return may;
}

/* Notes a result, or leaves everything as it was before. */
static void settle(finder *f, const epi_recurrence *with, bool may, int before) {
    if (may && !f->list.full && comes_with(f, with))
        *f->r = *with;
    else
        f->list.count = before;
}

/* One more sum: the first one gives the state its shape, one along the other axes comes with it. */
static void add_sum(finder *f, int sum) {
    const epi_node *n = &f->g->nodes[sum];
    epi_recurrence old = *f->r, *r = f->r;
    epi_factors by = {0};
    int scans = 0, before = f->list.count;
    bool whole = epi_axes_same_set(&f->g->nodes[n->arg[0]].axes, &f->g->nodes[f->r->scan].axes);
    bool first = epi_recurrence_result(r) == EPI_NO_NODE;
    epi_take take = first ? EPI_TAKE_DOWN : EPI_TAKE_ALONG;
    bool may = (first || f->sums) && whole && take_apart(f, n->arg[0], &by, &scans, 0) && scans == 1;
    if (may)
        may =
            first ? find_shape(f, &n->over, &by) : r->out[take] == EPI_NO_NODE && is_along(f, &n->over, &by);
    epi_recurrence with = *r;
    *r = old;
    with.out[take] = sum;
    with.by[take] = by;
    settle(f, &with, may, before);
}

/* Is it a sum of a product with the scan, or of the scan itself? */
static bool is_sum_of(const epi_graph *g, int node, int scan) {
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_SUM)
        return false;
    for (int at = n->arg[0], depth = 0; depth < 2 * EPI_RECURRENCE_FACTORS; depth++) {
        if (at == scan)
            return true;
        const epi_node *m = &g->nodes[at];
        if (m->op != EPI_OP_MUL)
            return false;
        bool first = epi_axes_same_set(&g->nodes[m->arg[0]].axes, &g->nodes[scan].axes);
        at = m->arg[!first];
    }
    return false;
}

static epi_recurrence recurrence_of(const epi_graph *g, int scan) {
    return (epi_recurrence){.scan = scan,
                            .back = g->nodes[scan].op == EPI_OP_SCAN_BACK,
                            .time = g->nodes[scan].over.at[0],
                            .first = EPI_NO_NODE,
                            .added = EPI_NO_NODE,
                            .out = {EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE}};
}

/* Finds what a scan takes in. */
static bool find_scan(finder *f) {
    note(f, f->r->scan);
    if (!find_input(f, f->g->nodes[f->r->scan].arg[1], 0))
        return false;
    find_decay(f);
    return !f->list.full;
}

/* Axes of a factor that not all have. */
static epi_axes own_axes(const finder *f, int factor) {
    const epi_axes *all = &f->g->nodes[factor].axes;
    epi_axes own = {0};
    for (int a = 0; a < all->count; a++) {
        int has = 0;
        for (int i = 0; i < f->r->of.count; i++)
            has += epi_axes_find(&f->g->nodes[f->r->of.at[i]].axes, all->at[a]) >= 0;
        if (has < f->r->of.count && !epi_axis_equal(all->at[a], f->r->time))
            own.at[own.count++] = all->at[a];
    }
    return own;
}

/* A shape of the state by one of its factors: rows are what that has and not all have, at best nothing of the decay. */
static bool find_any_shape(finder *f, const epi_factors *more) {
    const epi_axes *decay = &f->g->nodes[f->r->decay].axes;
    bool found = false;
    for (int i = 0; i < 2 * f->r->of.count && !found; i++) {
        epi_axes rows = own_axes(f, f->r->of.at[i % f->r->of.count]), apart = epi_axes_without(&rows, decay);
        rows = i < f->r->of.count ? apart : rows;
        found = rows.count && find_shape(f, &rows, more);
    }
    return found;
}

/* Do the factors of the other scan fall into rows and columns as well? */
static bool has_shape(const finder *f, const epi_recurrence *other, const epi_recurrence *r) {
    bool has =
        has_all_or_none(f->g, other->decay, &r->rows) && has_all_or_none(f->g, other->decay, &r->cols) &&
        !(epi_factor_has(f->g, other->decay, &r->rows) && epi_factor_has(f->g, other->decay, &r->cols));
    for (int i = 0; i < other->of.count; i++)
        has &= !epi_factor_has(f->g, other->of.at[i], &r->rows) ||
               !epi_factor_has(f->g, other->of.at[i], &r->cols);
    return has;
}

/* The scan the other way, shifted by a step, that a sum of its product with this one has; or EPI_NO_NODE. */
static int find_other(const finder *f, int sum) {
    const epi_node *n = &f->g->nodes[sum], *m = &f->g->nodes[n->arg[0]];
    for (int side = 0; side < 2 && n->op == EPI_OP_SUM && m->op == EPI_OP_MUL; side++) {
        const epi_node *shift = &f->g->nodes[m->arg[!side]];
        if (m->arg[side] != f->r->scan || shift->op != EPI_OP_SHIFT ||
            shift->value != (f->r->back ? 1 : -1) || !epi_axis_equal(shift->over.at[0], f->r->time))
            continue;
        const epi_node *other = &f->g->nodes[shift->arg[0]];
        if (other->op == (f->r->back ? EPI_OP_SCAN : EPI_OP_SCAN_BACK) &&
            epi_axis_equal(other->over.at[0], f->r->time) &&
            epi_axes_same_set(&other->axes, &f->g->nodes[f->r->scan].axes))
            return shift->arg[0];
    }
    return EPI_NO_NODE;
}

/* A sum of products with the states of the other scan. */
static bool add_product(finder *f, int sum) {
    const epi_node *n = &f->g->nodes[sum];
    epi_recurrence *r = f->r, with = *r, *other = epi_arena_alloc(f->arena, sizeof *other);
    int before = f->list.count;
    if (!other)
        return false;
    *other = recurrence_of(f->g, find_other(f, sum));
    f->r = other;
    bool may = find_scan(f);
    f->r = &with;
    if (may && epi_recurrence_result(r) == EPI_NO_NODE)
        may = find_any_shape(f, &other->of);
    f->r = r;
    other->rows = with.rows;
    other->cols = with.cols;
    other->batch = with.batch;
    const epi_node *m = &f->g->nodes[n->arg[0]];
    note(f, n->arg[0]);
    note(f, m->arg[m->arg[0] == r->scan]);
    with.over_rows = epi_axes_include(&n->over, &with.rows);
    with.over_cols = epi_axes_include(&n->over, &with.cols);
    int64_t over = with.over_rows * with.rows.count + with.over_cols * with.cols.count;
    with.other = other;
    with.out[EPI_TAKE_PRODUCT] = sum;
    settle(f, &with, may && has_shape(f, other, &with) && over == n->over.count, before);
    return true;
}

/* One recurrence of the scan, with the results that are not taken yet; false: there is none, or no memory. */
static bool find_one(finder *f, const bool *taken) {
    const epi_graph *g = f->g;
    int scan = f->r->scan;
    if (!find_scan(f))
        return false;
    for (int i = scan + 1; i < g->node_count; i++)
        if (g->live[i] && !taken[i] && is_sum_of(g, i, scan))
            add_sum(f, i);
    bool may = f->sums || epi_recurrence_result(f->r) == EPI_NO_NODE;
    for (int i = scan + 1; i < g->node_count && may && f->r->out[EPI_TAKE_PRODUCT] == EPI_NO_NODE; i++)
        if (g->live[i] && !taken[i] && find_other(f, i) != EPI_NO_NODE && !add_product(f, i))
            return false;
    for (int i = scan + 1; i < g->node_count && f->r->out[EPI_TAKE_LAST] == EPI_NO_NODE; i++)
        if (g->live[i] && !taken[i] && (f->sums || !f->r->other) && is_last(f, i)) {
            epi_recurrence old = *f->r, *r = f->r;
            bool may = epi_recurrence_result(r) != EPI_NO_NODE || find_any_shape(f, &(epi_factors){0});
            epi_recurrence with = *r;
            *r = old;
            with.out[EPI_TAKE_LAST] = i;
            settle(f, &with, may, f->list.count);
        }
    return epi_recurrence_result(f->r) != EPI_NO_NODE;
}

static bool add_all(finder *f, int scan, bool *taken, epi_recurrences *all) {
    for (bool more = true; more;) {
        epi_recurrence r = recurrence_of(f->g, scan);
        f->r = &r;
        f->list.count = 0;
        f->list.full = false;
        more = find_one(f, taken);
        for (int t = 0; t < EPI_TAKE_COUNT && more; t++)
            if (r.out[t] != EPI_NO_NODE)
                taken[r.out[t]] = true;
        if (more && !epi_list_copy(f->arena, f->list.at, f->list.count, &r.inner))
            return false;
        if (more)
            all->at[all->count++] = r;
    }
    return !f->arena->failed;
}

bool epi_recurrences_find(epi_arena *arena, const epi_spec *spec, bool sums, epi_recurrences *out) {
    const epi_graph *g = spec->graph;
    size_t nodes = (size_t)g->node_count + 1;
    int most = 1;
    *out = (epi_recurrences){0};
    for (int i = 0; i < g->node_count; i++)
        most += g->live[i] && (g->nodes[i].op == EPI_OP_SUM || g->nodes[i].op == EPI_OP_GATHER);
    finder f = {.spec = spec,
                .g = g,
                .arena = arena,
                .sums = sums,
                .scratch = epi_arena_alloc(arena, nodes * sizeof *f.scratch)};
    bool *taken = epi_arena_alloc(arena, nodes), *forward = epi_arena_alloc(arena, nodes);
    out->at = epi_arena_alloc(arena, (size_t)most * sizeof *out->at);
    if (!f.scratch || !taken || !forward || !out->at)
        return false;
    epi_find_forward(g, forward);
    f.forward = forward;
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_op_scans(g->nodes[i].op) && !add_all(&f, i, taken, out))
            return false;
    return true;
}

/* ---- sums over more than the state ---- */

/* Axes that all factors of a scan have, and its time. */
static epi_axes common_axes(const finder *f) {
    epi_axes common = {1, {f->r->time}};
    const epi_axes *first = &f->g->nodes[f->r->of.at[0]].axes;
    for (int a = 0; a < first->count; a++) {
        bool all = !epi_axis_equal(first->at[a], f->r->time);
        for (int i = 1; i < f->r->of.count; i++)
            all &= epi_axes_find(&f->g->nodes[f->r->of.at[i]].axes, first->at[a]) >= 0;
        if (all && f->r->of.count > 1)
            common.at[common.count++] = first->at[a];
    }
    return common;
}

int epi_recurrence_scan(const epi_graph *g, int sum) {
    const epi_node *n = &g->nodes[sum];
    int at = n->arg[0];
    for (int depth = 0; depth < 2 * EPI_RECURRENCE_FACTORS; depth++) {
        const epi_node *m = &g->nodes[at];
        if (epi_op_scans(m->op))
            return at;
        if (m->op != EPI_OP_MUL)
            return EPI_NO_NODE;
        const epi_node *left = &g->nodes[m->arg[0]];
        bool second = !epi_axes_same_set(&left->axes, &m->axes) || left->op == EPI_OP_SHIFT;
        at = m->arg[second];
    }
    return EPI_NO_NODE;
}

bool epi_recurrence_split(const epi_spec *spec, const epi_graph *g, int sum, epi_axes *inner) {
    const epi_node *n = &g->nodes[sum];
    int scan = n->op == EPI_OP_SUM ? epi_recurrence_scan(g, sum) : EPI_NO_NODE, scans = 0;
    if (scan == EPI_NO_NODE)
        return false;
    finder f = {.spec = spec, .g = g};
    epi_recurrence r = recurrence_of(g, scan);
    epi_factors by = {0};
    f.r = &r;
    if (!find_scan(&f) || !r.of.count)
        return false;
    bool product = find_other(&f, sum) != EPI_NO_NODE;
    if (!product && (!take_apart(&f, n->arg[0], &by, &scans, 0) || scans != 1))
        return false;
    epi_axes common = common_axes(&f), over = epi_axes_without(&n->over, &common);
    *inner = epi_axes_without(&over, &g->nodes[r.decay].axes);
    *inner = inner->count ? *inner : over;
    if (!product && !find_shape(&f, inner, &by))
        for (int i = 0; i < r.of.count; i++) {
            epi_axes out = epi_axes_without(inner, &g->nodes[r.of.at[i]].axes),
                     in = epi_axes_without(inner, &out);
            if (in.count && out.count && find_shape(&f, &in, &by)) {
                *inner = in;
                break;
            }
        }
    return inner->count && inner->count < n->over.count;
}

static int list_operands(const epi_recurrence *r, int *out) {
    int count = 0;
    out[count++] = r->decay;
    if (r->first != EPI_NO_NODE)
        out[count++] = r->first;
    if (r->added != EPI_NO_NODE)
        out[count++] = r->added;
    for (int i = 0; i < r->of.count; i++)
        out[count++] = r->of.at[i];
    for (int t = 0; t < EPI_TAKE_COUNT; t++)
        for (int i = 0; i < r->by[t].count; i++)
            out[count++] = r->by[t].at[i];
    return count;
}

int epi_recurrence_operands(const epi_recurrence *r, int out[EPI_RECURRENCE_OPERANDS]) {
    int count = list_operands(r, out);
    return r->other ? count + list_operands(r->other, out + count) : count;
}

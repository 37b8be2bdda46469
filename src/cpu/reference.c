/* reference.c: evaluates any program as plainly as possible, node by node.
 *
 * In f64, with nothing rounded, it is the reference. In f32, with every value rounded to a storage type, it
 * is the naive unfused computation that the error rule compares with. In f64, with every value moved a
 * little, it shows how much roundings may change the results.
 *
 * Integers are never rounded or moved. Those that f64 cannot hold are also kept in 64 bits. */
#include "cpu/reference.h"

#include "base/parallel.h"
#include "cpu/pass/integers.h"
#include "ir/index.h"
#include "pass/analyse/stored.h"

typedef epi_reference eval;

/* ---- one function per class of operation ---- */

static void eval_input(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    const epi_ref *ref = &e->tensors[n->tensor];
    epi_walk w = epi_walk_axes(ref, &n->axes, e->k->spec.sizes);
    for (int64_t i = 0, count = epi_reference_count(e, &n->axes); i < count; i++) {
        int64_t at = epi_walk_offset(&w, i);
        e->value[node][i] = epi_reference_load(e->k->strips, ref, at);
        if (e->integer[node])
            e->integer[node][i] = epi_whole_load(e->k->strips, ref, at);
    }
}

static void eval_index(const eval *e, int node) {
    for (int64_t i = 0, count = epi_reference_count(e, &e->k->spec.graph->nodes[node].axes); i < count; i++)
        e->value[node][i] = (double)i;
}

static void eval_map(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    epi_walk w[3];
    const double *v[3] = {NULL, NULL, NULL};
    int arity = epi_ops[n->op].arity;
    for (int a = 0; a < arity; a++) {
        epi_ref r = epi_reference_ref(e, n->arg[a]);
        w[a] = epi_walk_axes(&r, &n->axes, e->k->spec.sizes);
        v[a] = e->value[n->arg[a]];
    }
    for (int64_t i = 0, count = epi_reference_count(e, &n->axes); i < count; i++) {
        double x[3] = {0, 0, 0};
        for (int a = 0; a < arity; a++)
            x[a] = v[a][epi_walk_offset(&w[a], i)];
        e->value[node][i] = epi_reference_rounded(e, node, epi_op_reference(n->op, x[0], x[1], x[2]));
    }
}

/* The elements folded in order; of `var` their squared distances from the mean. */
static double folded(const eval *e, int node, epi_op op, const double *from, const epi_walk *over,
                     int64_t length, double mean) {
    double x = epi_op_identity(op);
    for (int64_t j = 0; j < length; j++) {
        double v = from[epi_walk_offset(over, j)];
        x = epi_op_combine(op, x, op == EPI_OP_VAR ? (v - mean) * (v - mean) : v);
        if (epi_reference_rounds_sums(e, node))
            x = (double)(float)x;
    }
    return x;
}

static void eval_reduce(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    epi_ref r = epi_reference_ref(e, n->arg[0]);
    epi_walk kept = epi_walk_axes(&r, &n->axes, e->k->spec.sizes);
    epi_walk over = epi_walk_axes(&r, &n->over, e->k->spec.sizes);
    int64_t length = epi_reference_count(e, &n->over);
    for (int64_t i = 0, count = epi_reference_count(e, &n->axes); i < count; i++) {
        const double *from = e->value[n->arg[0]] + epi_walk_offset(&kept, i);
        bool var = n->op == EPI_OP_VAR, mean = epi_ops[n->op].averages;
        double middle = var ? folded(e, node, EPI_OP_SUM, from, &over, length, 0) / (double)length : 0;
        double x = folded(e, node, n->op, from, &over, length, middle);
        e->value[node][i] = epi_reference_rounded(e, node, mean ? x / (double)length : x);
    }
}

/* ---- the product: row times column, added up in order ---- */

enum { STRIPE = 32, DEPTH = 128 }; /* columns and depth of a slab that stays in cache */

typedef struct product {
    const eval *e;
    epi_walk a_row, a_depth, b_row, b_depth, c_row, c_col;
    const double *a, *b;
    double *c;
    int64_t m, n, k;
    int node;
} product;

/* One stripe of columns: a slab of b at a time is laid out by depth, and every row goes over it.
 * Sums wait in c between slabs; each is added up in order of depth, in f64 or in f32. */
static void product_stripe(void *ctx, int64_t stripe, int thread) {
    (void)thread;
    const product *p = ctx;
    int64_t j0 = stripe * STRIPE, w = epi_min64(STRIPE, p->n - j0);
    int64_t depth_offset[DEPTH], column[STRIPE], b_column[STRIPE];
    double slab[DEPTH][STRIPE] = {{0}};
    for (int64_t j = 0; j < w; j++) {
        column[j] = epi_walk_offset(&p->c_col, j0 + j);
        b_column[j] = epi_walk_offset(&p->b_row, j0 + j);
    }
    for (int64_t k0 = 0; k0 == 0 || k0 < p->k; k0 += DEPTH) {
        int64_t depth = epi_min64(DEPTH, p->k - k0);
        for (int64_t k = 0; k < depth; k++) {
            const double *b = p->b + epi_walk_offset(&p->b_depth, k0 + k);
            depth_offset[k] = epi_walk_offset(&p->a_depth, k0 + k);
            for (int64_t j = 0; j < w; j++)
                slab[k][j] = b[b_column[j]];
        }
        for (int64_t i = 0; i < p->m; i++) {
            const double *a = p->a + epi_walk_offset(&p->a_row, i);
            double *c = p->c + epi_walk_offset(&p->c_row, i), sum[STRIPE] = {0};
            for (int64_t j = 0; j < w && k0; j++)
                sum[j] = c[column[j]];
            for (int64_t k = 0; k < depth; k++) {
                double x = a[depth_offset[k]];
                if (p->e->naive)
                    for (int j = 0; j < STRIPE; j++)
                        sum[j] = (double)((float)sum[j] + (float)(x * slab[k][j]));
                else
                    for (int j = 0; j < STRIPE; j++)
                        sum[j] += x * slab[k][j];
            }
            for (int64_t j = 0; j < w; j++)
                c[column[j]] = k0 + DEPTH < p->k ? sum[j] : epi_reference_rounded(p->e, p->node, sum[j]);
        }
    }
}

static void eval_product(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    epi_ref a = epi_reference_ref(e, n->arg[0]), b = epi_reference_ref(e, n->arg[1]),
            c = epi_reference_ref(e, node);
    epi_axes rows = epi_axes_without(&a.axes, &b.axes), cols = epi_axes_without(&b.axes, &a.axes);
    epi_axes batch = epi_axes_without(&n->axes, &rows);
    batch = epi_axes_without(&batch, &cols);
    product p = {.e = e, .node = node};
    p.a_row = epi_walk_axes(&a, &rows, sizes);
    p.b_row = epi_walk_axes(&b, &cols, sizes);
    p.c_row = epi_walk_axes(&c, &rows, sizes);
    p.c_col = epi_walk_axes(&c, &cols, sizes);
    p.a_depth = epi_walk_axes(&a, &n->over, sizes);
    p.b_depth = epi_walk_axes(&b, &n->over, sizes);
    p.m = epi_axes_size(&rows, sizes);
    p.n = epi_axes_size(&cols, sizes);
    p.k = epi_axes_size(&n->over, sizes);
    epi_walk a_batch = epi_walk_axes(&a, &batch, sizes), b_batch = epi_walk_axes(&b, &batch, sizes),
             c_batch = epi_walk_axes(&c, &batch, sizes);
    for (int64_t i = 0, count = epi_reference_count(e, &batch); i < count; i++) {
        p.a = e->value[n->arg[0]] + epi_walk_offset(&a_batch, i);
        p.b = e->value[n->arg[1]] + epi_walk_offset(&b_batch, i);
        p.c = e->value[node] + epi_walk_offset(&c_batch, i);
        epi_parallel_for(e->k->spec.threads, epi_ceil_div(p.n, STRIPE), product_stripe, &p);
    }
}

/* A product of groups: of each position, in their order, by the group that it is in. */
static void eval_grouped(const eval *e, int node) {
    const epi_graph *g = e->k->spec.graph;
    const epi_node *n = &g->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    bool of_rows = epi_grouped_rows(g, n);
    epi_ref a = epi_reference_ref(e, n->arg[0]), b = epi_reference_ref(e, n->arg[1]),
            c = epi_reference_ref(e, node), s = epi_reference_ref(e, n->arg[2]);
    epi_axes positions = epi_grouped_positions(g, n), group = {1, {epi_grouped_axis(g, n)}},
             cols = epi_product_side(g, n, 1), none = {0}, rows = of_rows ? none : epi_product_side(g, n, 0);
    epi_axes depth = of_rows ? n->over : none;
    epi_walk at[3] = {epi_walk_axes(&a, &positions, sizes), epi_walk_axes(&b, &positions, sizes),
                      epi_walk_axes(&c, &positions, sizes)},
             of[3] = {{0}, epi_walk_axes(&b, &group, sizes), epi_walk_axes(&c, &group, sizes)},
             row[3] = {epi_walk_axes(&a, &rows, sizes), {0}, epi_walk_axes(&c, &rows, sizes)},
             col[3] = {{0}, epi_walk_axes(&b, &cols, sizes), epi_walk_axes(&c, &cols, sizes)},
             deep[2] = {epi_walk_axes(&a, &depth, sizes), epi_walk_axes(&b, &depth, sizes)},
             which = epi_walk_axes(&s, &positions, sizes);
    for (int64_t i = 0, all = epi_reference_count(e, &n->axes); i < all; i++)
        e->value[node][i] = 0;
    for (int64_t p = 0, all = epi_reference_count(e, &positions); p < all; p++) {
        int64_t in = (int64_t)e->value[n->arg[2]][epi_walk_offset(&which, p)];
        const double *x = e->value[n->arg[0]] + epi_walk_offset(&at[0], p),
                     *y = e->value[n->arg[1]] + epi_walk_offset(&at[1], p) + epi_walk_offset(&of[1], in);
        double *z = e->value[node] + epi_walk_offset(&at[2], p) + epi_walk_offset(&of[2], in);
        for (int64_t i = 0; i < epi_reference_count(e, &rows); i++)
            for (int64_t j = 0; j < epi_reference_count(e, &cols); j++) {
                double *sum = z + epi_walk_offset(&row[2], i) + epi_walk_offset(&col[2], j);
                for (int64_t k = 0; k < epi_reference_count(e, &depth); k++) {
                    double more = x[epi_walk_offset(&row[0], i) + epi_walk_offset(&deep[0], k)] *
                                  y[epi_walk_offset(&col[1], j) + epi_walk_offset(&deep[1], k)];
                    *sum = e->naive ? (double)((float)*sum + (float)more) : *sum + more;
                }
            }
    }
    for (int64_t i = 0, all = epi_reference_count(e, &n->axes); i < all; i++)
        e->value[node][i] = epi_reference_rounded(e, node, e->value[node][i]);
}

/* Does f64 not hold the integer? */
static bool is_beyond(const epi_cpu_kernel *k, int node) {
    return epi_integer_is_beyond_f64(&k->integers[node]);
}

/* ---- sums of products, whose terms are no value ----
 *
 * What is added up of a product, as in sum(x*gather(w, i, E), D) and scatter(a*b, i, E), would be as large as all axes
 * together: each term is made, and rounded as a value is, when it is added. */

enum { TERMS = 256 }; /* at a time: they lie where these offsets say */

static bool is_term(const epi_cpu_kernel *k, int node) {
    const epi_graph *g = k->spec.graph;
    epi_use_list uses = epi_graph_uses(g, node);
    if (uses.count == 1 && uses.at[0].node != EPI_NO_NODE &&
        (is_beyond(k, node) || is_beyond(k, uses.at[0].node)))
        return false;
    epi_op user = uses.count == 1 ? epi_use_op(g, uses.at[0]) : EPI_OP_COUNT;
    return g->nodes[node].op == EPI_OP_MUL &&
           (user == EPI_OP_SUM || user == EPI_OP_MEAN || (user == EPI_OP_SCATTER && uses.at[0].operand == 0));
}

/* Is it such a product, or a gather that only those take? */
static bool is_streamed(const epi_cpu_kernel *k, int node) {
    const epi_graph *g = k->spec.graph;
    epi_use_list uses = epi_graph_uses(g, node);
    bool streamed = g->nodes[node].op == EPI_OP_GATHER && uses.count;
    for (int i = 0; i < uses.count && streamed; i++)
        streamed = uses.at[i].node != EPI_NO_NODE && is_term(k, uses.at[i].node);
    return streamed || is_term(k, node);
}

/* An operand of such a product: along rows, and along the terms of a row. */
typedef struct factor {
    const double *v, *index; /* index: it is a gather's, */
    epi_walk row, term, index_row, index_term, along;
    int64_t size;
    bool varies; /* and differs from term to term */
} factor;

static factor factor_of(const eval *e, int node, const epi_axes *rows, const epi_axes *terms) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    const int64_t *sizes = e->k->spec.sizes;
    bool chosen = is_streamed(e->k, node);
    epi_ref v = epi_reference_ref(e, chosen ? n->arg[0] : node);
    factor f = {.v = (const double *)(void *)v.data};
    if (chosen) {
        epi_ref index = epi_reference_ref(e, n->arg[1]);
        f.along = epi_ref_along(&v, &n->over, sizes);
        f.size = epi_axes_size(&n->over, sizes);
        f.index = (const double *)(void *)index.data;
        f.index_row = epi_walk_axes(&index, rows, sizes);
        f.index_term = epi_walk_axes(&index, terms, sizes);
        f.varies = epi_axes_meet(&index.axes, terms);
    }
    f.row = epi_walk_axes(&v, rows, sizes);
    f.term = epi_walk_axes(&v, terms, sizes);
    return f;
}

typedef struct terms {
    const eval *e;
    int node, product; /* the sum, and what it is of */
    factor factor[2];
    int64_t rows, count;   /* of terms in a row */
    const double *index;   /* of a scatter: where rows go, */
    int64_t size;          /* of so many places, */
    epi_walk along, inner; /* and where these and the terms of a row lie in the result */
} terms;

/* Where the terms from `first` on lie in a factor, and its index's elements. */
typedef struct places {
    int64_t at[2][TERMS], index[2][TERMS];
} places;

static void find_places(const terms *t, int64_t first, int64_t count, places *p) {
    for (int a = 0; a < 2; a++)
        for (int64_t j = 0; j < count; j++) {
            p->at[a][j] = epi_walk_offset(&t->factor[a].term, first + j);
            p->index[a][j] = t->factor[a].varies ? epi_walk_offset(&t->factor[a].index_term, first + j) : 0;
        }
}

/* The factor's elements for the terms of a row. */
static void load_terms(const factor *f, int64_t row, const int64_t *at, const int64_t *index, int64_t count,
                       double *x) {
    const double *from = f->v + epi_walk_offset(&f->row, row);
    const double *which = f->index ? f->index + epi_walk_offset(&f->index_row, row) : NULL;
    int64_t place = which && !f->varies ? epi_position(*which, f->size) : 0;
    if (which && !f->varies && place >= 0)
        from += epi_walk_offset(&f->along, place);
    for (int64_t j = 0; j < count && !f->varies; j++)
        x[j] = place < 0 ? 0 : from[at[j]];
    for (int64_t j = 0; j < count && f->varies; j++) {
        place = epi_position(which[index[j]], f->size);
        x[j] = place < 0 ? 0 : from[at[j] + epi_walk_offset(&f->along, place)];
    }
}

/* Values of a node as storing them and reading them back gives them. */
static void round_all(const eval *e, int node, double *x, int64_t count) {
    epi_dtype type = epi_stored_type(e->k->steps.said[node], false, e->k->spec.type);
    float numbers[TERMS];
    unsigned char bytes[TERMS * sizeof(float)];
    if ((e->k->spec.perturb == 0 && !e->naive) || e->k->integers[node].is)
        return;
    if (e->k->spec.perturb != 0 || !epi_dtype_in_f32(type)) {
        for (int64_t j = 0; j < count; j++)
            x[j] = epi_reference_rounded(e, node, x[j]);
        return;
    }
    for (int64_t j = 0; j < count; j++)
        numbers[j] = (float)x[j];
    e->k->strips->store(bytes, type, 1, numbers, count);
    e->k->strips->load(numbers, bytes, type, 1, count);
    for (int64_t j = 0; j < count; j++)
        x[j] = (double)numbers[j];
}

/* Terms of a row: x[0] becomes their products. */
static void make_terms(const terms *t, int64_t row, const places *p, int64_t count, double x[2][TERMS]) {
    for (int a = 0; a < 2; a++)
        load_terms(&t->factor[a], row, p->at[a], p->index[a], count, x[a]);
    for (int64_t j = 0; j < count; j++)
        x[0][j] *= x[1][j];
    round_all(t->e, t->product, x[0], count);
}

/* Of some rows, the sums of their terms, in order. */
static void sum_rows(void *ctx, int64_t item, int thread) {
    (void)thread;
    const terms *t = ctx;
    const epi_node *n = &t->e->k->spec.graph->nodes[t->node];
    int64_t last = epi_min64(t->rows, (item + 1) * TERMS);
    double *sum = t->e->value[t->node], x[2][TERMS];
    places p;
    for (int64_t i = item * TERMS; i < last; i++)
        sum[i] = 0;
    for (int64_t first = 0; first < t->count; first += TERMS) {
        int64_t count = epi_min64(TERMS, t->count - first);
        find_places(t, first, count, &p);
        for (int64_t i = item * TERMS; i < last; i++) {
            make_terms(t, i, &p, count, x);
            for (int64_t j = 0; j < count; j++)
                sum[i] = epi_reference_rounds_sums(t->e, t->node) ? (double)(float)(sum[i] + x[0][j])
                                                                  : sum[i] + x[0][j];
        }
    }
    for (int64_t i = item * TERMS; i < last; i++)
        sum[i] =
            epi_reference_rounded(t->e, t->node, n->op == EPI_OP_MEAN ? sum[i] / (double)t->count : sum[i]);
}

/* Of some terms, those of all rows, in order, to where the rows' index says. */
static void send_terms(void *ctx, int64_t item, int thread) {
    (void)thread;
    const terms *t = ctx;
    int64_t first = item * TERMS, count = epi_min64(TERMS, t->count - first);
    double *sums = t->e->value[t->node], x[2][TERMS];
    places p;
    find_places(t, first, count, &p);
    int64_t to[TERMS];
    for (int64_t j = 0; j < count; j++)
        to[j] = epi_walk_offset(&t->inner, first + j);
    for (int64_t at = 0; at < t->size; at++)
        for (int64_t j = 0; j < count; j++)
            sums[epi_walk_offset(&t->along, at) + to[j]] = 0;
    for (int64_t i = 0; i < t->rows; i++) {
        int64_t at = epi_position(t->index[i], t->size);
        if (at < 0)
            continue;
        make_terms(t, i, &p, count, x);
        double *row = sums + epi_walk_offset(&t->along, at);
        for (int64_t j = 0; j < count; j++) {
            double *sum = row + to[j];
            *sum =
                epi_reference_rounds_sums(t->e, t->node) ? (double)(float)(*sum + x[0][j]) : *sum + x[0][j];
        }
    }
    for (int64_t at = 0; at < t->size; at++)
        for (int64_t j = 0; j < count; j++) {
            double *sum = sums + epi_walk_offset(&t->along, at) + to[j];
            *sum = epi_reference_rounded(t->e, t->node, *sum);
        }
}

/* A sum or a scatter of a product that is no value. */
static void eval_terms(const eval *e, int node) {
    const epi_graph *g = e->k->spec.graph;
    const epi_node *n = &g->nodes[node], *product = &g->nodes[n->arg[0]];
    bool scatters = n->op == EPI_OP_SCATTER;
    epi_axes rows = scatters ? g->nodes[n->arg[1]].axes : n->axes,
             over = scatters ? epi_axes_without(&product->axes, &rows) : n->over;
    terms t = {.e = e,
               .node = node,
               .product = n->arg[0],
               .rows = epi_reference_count(e, &rows),
               .count = epi_reference_count(e, &over)};
    for (int a = 0; a < 2; a++)
        t.factor[a] = factor_of(e, product->arg[a], &rows, &over);
    if (scatters) {
        t.index = e->value[n->arg[1]];
        t.size = epi_reference_count(e, &n->over);
        epi_ref to = epi_reference_ref(e, node);
        t.along = epi_ref_along(&to, &n->over, e->k->spec.sizes);
        t.inner = epi_walk_axes(&to, &over, e->k->spec.sizes);
    }
    epi_parallel_for(e->k->spec.threads, epi_ceil_div(scatters ? t.count : t.rows, TERMS),
                     scatters ? send_terms : sum_rows, &t);
}

/* ---- the whole program ---- */

/* Bytes for what is known by node. */
static int64_t bytes_by_node(const epi_graph *g) {
    return epi_round_up((int64_t)(sizeof(double *) + sizeof(int64_t *) + sizeof(bool)) * g->node_count, 64);
}

/* What the largest scatter of integers sorts its index in. */
static int64_t room_for_index(const epi_cpu_kernel *k) {
    int64_t most = 0;
    for (int i = 0; i < k->spec.graph->node_count; i++)
        if (k->spec.graph->live[i] && epi_op_scatters(k->spec.graph->nodes[i].op) && k->integers[i].is)
            most = epi_max64(most, epi_move_scratch(&k->spec, i));
    return epi_round_up(most, 64);
}

/* Bytes for that and for every live node's values; -1 on overflow. */
int64_t epi_reference_workspace(const epi_cpu_kernel *k) {
    const epi_spec *spec = &k->spec;
    int64_t bytes = bytes_by_node(spec->graph) + room_for_index(k);
    for (int i = 0; i < spec->graph->node_count; i++) {
        bool stored = spec->graph->live[i] && !is_streamed(k, i);
        int64_t count = stored ? epi_axes_size(&spec->graph->nodes[i].axes, spec->sizes) : 0;
        int64_t each = (int64_t)sizeof(double) * (is_beyond(k, i) ? 2 : 1);
        if (count < 0 || !epi_mul_size(count, each, &count) || !epi_add_size(bytes, count, &bytes))
            return -1;
    }
    return bytes;
}

/* Is it to be computed in 64 bits: is it a division, or does f64 not hold an integer that it takes or
 * makes? */
static bool in_integers(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    bool truth = n->op == EPI_OP_AND || n->op == EPI_OP_OR || n->op == EPI_OP_NOT;
    if (!e->k->integers[node].is || truth || n->op == EPI_OP_INPUT || n->op == EPI_OP_RENAME)
        return false;
    bool yes = n->op == EPI_OP_QUOTIENT || n->op == EPI_OP_REMAINDER || e->integer[node];
    for (int a = 0; a < epi_node_operands(n); a++) {
        yes |= e->integer[n->arg[a]] && a != epi_op_index(n->op);
        if (epi_op_compares(n->op) && !e->k->integers[n->arg[a]].is)
            return false;
    }
    return yes;
}

/* What is an integer as it is, also as a number. */
static void note_numbers(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    for (int64_t i = 0, count = epi_reference_count(e, &n->axes); i < count && e->integer[node]; i++)
        e->value[node][i] = (double)e->integer[node][i];
}

static void eval_integers(const eval *e, int node) {
    const epi_node *n = &e->k->spec.graph->nodes[node];
    epi_ref to = epi_reference_integer(e, node), from[3];
    const epi_ref *operands[3] = {NULL, NULL, NULL};
    for (int a = 0; a < epi_node_operands(n); a++) {
        from[a] = epi_reference_integer(e, n->arg[a]);
        operands[a] = &from[a];
    }
    epi_integers_run(&e->k->spec, e->k->strips, node, &to, operands, e->room);
    note_numbers(e, node);
}

/* A value by its operation, of values that are there. */
static void eval_node(const eval *e, int i) {
    const epi_node *n = &e->k->spec.graph->nodes[i];
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_MAP: eval_map(e, i); break;
    case EPI_CLASS_REDUCE: eval_reduce(e, i); break;
    case EPI_CLASS_SPLIT: epi_reference_split(e, i); break;
    case EPI_CLASS_PRODUCT: (n->op == EPI_OP_GROUPED ? eval_grouped : eval_product)(e, i); break;
    case EPI_CLASS_VIEW: epi_reference_view(e, i); break;
    case EPI_CLASS_MOVE:
        (n->op == EPI_OP_GATHER   ? epi_reference_gather
         : epi_op_scatters(n->op) ? epi_reference_scatter
                                  : epi_reference_update)(e, i);
        break;
    case EPI_CLASS_SORT:
        (n->op == EPI_OP_SEGMENTS ? epi_reference_segments
         : n->op == EPI_OP_TOPK   ? epi_reference_largest
                                  : epi_reference_order)(e, i);
        break;
    case EPI_CLASS_SHIFT: epi_reference_shift(e, i); break;
    case EPI_CLASS_SCAN: epi_reference_scan(e, i); break;
    case EPI_CLASS_RANDOM: epi_reference_random(e, i); break;
    case EPI_CLASS_LEAF:
        if (n->op == EPI_OP_INPUT)
            eval_input(e, i);
        else if (n->op == EPI_OP_INDEX)
            eval_index(e, i);
        else
            *e->value[i] =
                n->op == EPI_OP_CONST ? n->value : (double)epi_axis_size(n->over.at[0], e->k->spec.sizes);
        break;
    }
}

/* The outputs, as they are stored. */
static void store_outputs(const eval *e, const epi_ref *tensors) {
    const epi_graph *g = e->k->spec.graph;
    for (int t = g->input_count; t < g->tensor_count; t++) {
        epi_ref r = epi_reference_ref(e, g->tensors[t].node);
        epi_walk from = epi_walk_axes(&r, &tensors[t].axes, e->k->spec.sizes);
        epi_walk to = epi_walk_axes(&tensors[t], &tensors[t].axes, e->k->spec.sizes);
        const int64_t *integer = e->integer[g->tensors[t].node];
        for (int64_t i = 0, count = epi_reference_count(e, &tensors[t].axes); i < count; i++) {
            int64_t put = epi_walk_offset(&to, i), at = epi_walk_offset(&from, i);
            if (integer)
                epi_whole_store(e->k->strips, &tensors[t], put, integer[at]);
            else
                epi_reference_store(e->k->strips, &tensors[t], put, e->value[g->tensors[t].node][at]);
        }
    }
}

void epi_reference_run(const epi_cpu_kernel *k, const epi_ref *tensors, unsigned char *workspace) {
    const epi_graph *g = k->spec.graph;
    eval e = {.k = k,
              .tensors = tensors,
              .value = (double **)(void *)workspace,
              .integer = (int64_t **)(void *)workspace + g->node_count,
              .computed = (bool *)(workspace + 2 * (int64_t)sizeof(double *) * g->node_count),
              .room = (int64_t *)(void *)(workspace + bytes_by_node(g)),
              .naive = k->spec.path == EPI_PATH_NAIVE};
    unsigned char *next = workspace + bytes_by_node(g) + room_for_index(k);
    for (int i = 0; i < g->node_count; i++) {
        if (!k->spec.graph->live[i])
            continue;
        const epi_node *n = &g->nodes[i];
        e.value[i] = (double *)(void *)next;
        e.computed[i] = n->op == EPI_OP_INPUT ? !epi_dtype_is_integer(tensors[n->tensor].type)
                                              : epi_node_takes(n, e.computed);
        e.integer[i] = NULL;
        if (is_streamed(k, i))
            continue;
        next += epi_reference_count(&e, &n->axes) * (int64_t)sizeof(double);
        e.integer[i] = is_beyond(k, i) ? (int64_t *)(void *)next : NULL;
        next += is_beyond(k, i) ? epi_reference_count(&e, &n->axes) * (int64_t)sizeof(int64_t) : 0;
        if (in_integers(&e, i)) {
            eval_integers(&e, i);
            continue;
        }
        if (n->arg[0] != EPI_NO_NODE && is_term(k, n->arg[0])) {
            eval_terms(&e, i);
            continue;
        }
        eval_node(&e, i);
    }
    store_outputs(&e, tensors);
}

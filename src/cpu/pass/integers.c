/* integers.c: operations on integers that f32 cannot hold, each over whole tensors in memory.
 *
 * Elements are computed in 64 bits, whatever their storage type. Sums and products wrap around, so they are
 * the same in any order, and threads can share them in any way. */
#include "cpu/pass/integers.h"

#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/access.h"

enum { STRETCH = 1024, SHARES = 64 };

/* ---- elements ---- */

static int64_t nearest(double x) {
    return x != x ? 0 : x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)nearbyint(x);
}

int64_t epi_whole_load(const epi_strips *s, const epi_ref *ref, int64_t at) {
    const unsigned char *p = ref->data + at * (int64_t)epi_dtype_size(ref->type);
    float f;
    double d;
    if (epi_dtype_is_integer(ref->type))
        return epi_integer_load(p, ref->type);
    if (ref->type == EPI_F64)
        return memcpy(&d, p, sizeof d), nearest(d);
    s->load(&f, p, ref->type, 1, 1);
    return nearest((double)f);
}

/* An f32 that rounds to 16 bits as x does: what is cut off of x is kept in its last bit. */
static float float_of(int64_t x, epi_dtype type) {
    float f = (float)x;
    int32_t bits;
    if (type == EPI_F32 || x == INT64_MIN || (fabsf(f) < 0x1p63f && (int64_t)f == x))
        return f;
    if (fabsf(f) >= 0x1p63f || (x < 0 ? (int64_t)f < x : (int64_t)f > x))
        f = nextafterf(f, 0);
    memcpy(&bits, &f, sizeof bits);
    bits |= 1;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void epi_whole_store(const epi_strips *s, const epi_ref *ref, int64_t at, int64_t x) {
    unsigned char *p = ref->data + at * (int64_t)epi_dtype_size(ref->type);
    if (ref->type == EPI_I64) {
        memcpy(p, &x, sizeof x);
    } else if (ref->type == EPI_I32) {
        int32_t word = x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (int32_t)x;
        memcpy(p, &word, sizeof word);
    } else if (ref->type == EPI_F64) {
        double d = (double)x;
        memcpy(p, &d, sizeof d);
    } else {
        float f = float_of(x, ref->type);
        s->store(p, ref->type, 1, &f, 1);
    }
}

/* ---- operands ---- */

typedef struct operand {
    epi_ref ref;
    epi_walk walk;  /* along the axes of what is made */
    int64_t begin;  /* and where that begins */
    bool is_number; /* a constant or a size; */
    bool counts;    /* or positions, which are where they would be */
    bool is_truth;  /* only whether it is 0 matters */
    int64_t value;
} operand;

static operand operand_of(const epi_spec *spec, int node, const epi_ref *ref, const epi_axes *axes) {
    const epi_node *n = &spec->graph->nodes[node];
    operand o = {0};
    if (n->op == EPI_OP_CONST || n->op == EPI_OP_SIZE) {
        o.is_number = true;
        o.value = n->op == EPI_OP_CONST ? nearest(n->value) : epi_axis_size(n->over.at[0], spec->sizes);
        return o;
    }
    o.counts = n->op == EPI_OP_INDEX;
    o.ref = o.counts ? epi_ref_of_axes(&n->axes, spec->sizes) : *ref;
    o.walk = epi_walk_axes(&o.ref, axes, spec->sizes);
    return o;
}

static int64_t element(const epi_strips *s, const operand *o, int64_t at) {
    if (o->counts)
        return at;
    if (o->is_truth && !epi_dtype_is_integer(o->ref.type)) {
        float f = 0;
        double d = 0;
        const unsigned char *p = o->ref.data + at * (int64_t)epi_dtype_size(o->ref.type);
        if (o->ref.type == EPI_F64)
            memcpy(&d, p, sizeof d);
        else
            s->load(&f, p, o->ref.type, 1, 1);
        return d != 0 || f != 0;
    }
    return epi_whole_load(s, &o->ref, at);
}

/* Elements of a run that lie so far apart, in the types that integers come in. */
static void load_run(const epi_strips *s, const operand *o, int64_t at, int64_t stride, int64_t n,
                     int64_t *to) {
    const unsigned char *p = o->ref.data;
    if (o->counts) {
        for (int64_t i = 0; i < n; i++)
            to[i] = at + i * stride;
    } else if (o->ref.type == EPI_I64) {
        for (int64_t i = 0; i < n; i++)
            memcpy(&to[i], p + (at + i * stride) * 8, 8);
    } else if (o->ref.type == EPI_I32) {
        for (int64_t i = 0; i < n; i++) {
            int32_t x;
            memcpy(&x, p + (at + i * stride) * 4, 4);
            to[i] = x;
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            to[i] = element(s, o, at + i * stride);
    }
}

/* Elements start to start + n of those that a walk comes through. */
static void load_walk(const epi_strips *s, const operand *o, const epi_walk *w, int64_t begin, int64_t start,
                      int64_t n, int64_t *to) {
    int64_t digit = w->count ? w->size[w->count - 1] : INT64_MAX,
            stride = w->count ? w->stride[w->count - 1] : 0;
    for (int64_t i = 0, m; i < n; i += m) {
        m = o->is_number ? n : epi_min64(n - i, digit - (start + i) % digit);
        if (o->is_number)
            for (int64_t j = 0; j < n; j++)
                to[j] = o->value;
        else
            load_run(s, o, begin + epi_walk_offset(w, start + i), stride, m, to + i);
    }
}

/* ---- what is computed of elements ---- */

static int64_t add(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static int64_t multiply(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

static int64_t negate(int64_t a) {
    return (int64_t)(0 - (uint64_t)a);
}

/* Toward minus infinity; 0 where b is 0. */
static int64_t quotient(int64_t a, int64_t b) {
    if (((uint64_t)a | (uint64_t)b) >> 32 == 0 && b) /* half as long to divide */
        return (uint32_t)a / (uint32_t)b;
    return b == 0 ? 0 : b == -1 ? negate(a) : a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t rest(int64_t a, int64_t b) {
    if (((uint64_t)a | (uint64_t)b) >> 32 == 0 && b)
        return (uint32_t)a % (uint32_t)b;
    return b == 0 || b == -1 ? 0 : add(a, negate(multiply(b, quotient(a, b))));
}

static int64_t mapped(epi_op op, int64_t a, int64_t b, int64_t c) {
    switch (op) {
    case EPI_OP_NEG: return negate(a);
    case EPI_OP_ADD: return add(a, b);
    case EPI_OP_SUB: return add(a, negate(b));
    case EPI_OP_MUL: return multiply(a, b);
    case EPI_OP_QUOTIENT: return quotient(a, b);
    case EPI_OP_REMAINDER: return rest(a, b);
    case EPI_OP_MIN: return a < b ? a : b;
    case EPI_OP_MAX: return a > b ? a : b;
    case EPI_OP_RELU: return a > 0 ? a : 0;
    case EPI_OP_ABS: return a < 0 ? negate(a) : a;
    case EPI_OP_SIGN: return (a > 0) - (a < 0);
    case EPI_OP_LT: return a < b;
    case EPI_OP_LE: return a <= b;
    case EPI_OP_GT: return a > b;
    case EPI_OP_GE: return a >= b;
    case EPI_OP_EQ: return a == b;
    case EPI_OP_NE: return a != b;
    case EPI_OP_AND: return a && b;
    case EPI_OP_OR: return a || b;
    case EPI_OP_NOT: return !a;
    case EPI_OP_WHERE: return a ? b : c;
    default: return a; /* floor, round and conversions of an integer */
    }
}

/* ---- bodies ---- */

typedef struct job {
    const epi_spec *spec;
    const epi_strips *s;
    const epi_node *n;
    operand from[3];
    int operands;
    epi_ref to;
    epi_walk put;         /* the result along its axes, or along those that lines have */
    int64_t begin, count; /* where it begins; its elements */
    epi_walk over[2],
        along; /* a reduction's operand, a scan's two, along the axes removed; what an index names */
    int64_t length, size, by, to_step;
    const int64_t *ends, *list; /* a scatter's index by places */
    int64_t share[SHARES];      /* of one result, by those who share it */
} job;

/* Elements of a run to where they lie, so far apart. */
static void store_run(const job *j, int64_t at, int64_t stride, int64_t n, const int64_t *from) {
    unsigned char *p = j->to.data;
    if (j->to.type == EPI_I32) {
        for (int64_t i = 0; i < n; i++) {
            int64_t x = from[i] > INT32_MAX ? INT32_MAX : from[i] < INT32_MIN ? INT32_MIN : from[i];
            int32_t word = (int32_t)x;
            memcpy(p + (at + i * stride) * 4, &word, sizeof word);
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            epi_whole_store(j->s, &j->to, at + i * stride, from[i]);
    }
}

static void store_walk(const job *j, int64_t start, int64_t n, const int64_t *from) {
    const epi_walk *w = &j->put;
    int64_t digit = w->count ? w->size[w->count - 1] : INT64_MAX,
            stride = w->count ? w->stride[w->count - 1] : 0;
    for (int64_t i = 0, m; i < n; i += m) {
        m = epi_min64(n - i, digit - (start + i) % digit);
        store_run(j, j->begin + epi_walk_offset(w, start + i), stride, m, from + i);
    }
}

static void map_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const job *j = ctx;
    int64_t v[3][STRETCH] = {{0}}, start = item * STRETCH, n = epi_min64(STRETCH, j->count - start);
    for (int a = 0; a < j->operands; a++)
        load_walk(j->s, &j->from[a], &j->from[a].walk, j->from[a].begin, start, n, v[a]);
    for (int64_t i = 0; i < n; i++)
        v[0][i] = mapped(j->n->op, v[0][i], v[1][i], v[2][i]);
    store_walk(j, start, n, v[0]);
}

static int64_t identity(epi_op op) {
    return op == EPI_OP_RMAX ? INT64_MIN : op == EPI_OP_RMIN ? INT64_MAX : 0;
}

static int64_t combined(epi_op op, int64_t a, int64_t b) {
    return op == EPI_OP_SUM ? add(a, b) : (op == EPI_OP_RMAX) == (a > b) ? a : b;
}

/* The elements `first` to `last` of those that a result is made of. */
static int64_t folded(const job *j, int64_t begin, int64_t first, int64_t last) {
    int64_t v[STRETCH], x = identity(j->n->op);
    for (int64_t at = first, n; at < last; at += n) {
        n = epi_min64(STRETCH, last - at);
        load_walk(j->s, &j->from[0], &j->over[0], begin, at, n, v);
        for (int64_t i = 0; i < n; i++)
            x = combined(j->n->op, x, v[i]);
    }
    return x;
}

static void share_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    job *j = ctx;
    int64_t each = epi_ceil_div(j->length, SHARES);
    j->share[item] =
        folded(j, j->begin, epi_min64(j->length, item * each), epi_min64(j->length, (item + 1) * each));
}

static void fold_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const job *j = ctx;
    int64_t x = folded(j, epi_walk_offset(&j->from[0].walk, item), 0, j->length);
    epi_whole_store(j->s, &j->to, epi_walk_offset(&j->put, item), x);
}

/* a*h + b, step by step, of one line. */
static void scan_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const job *j = ctx;
    bool back = epi_ops[j->n->op].back;
    int64_t v[2][STRETCH], begin[2], h = 0, to = epi_walk_offset(&j->put, item);
    for (int a = 0; a < 2; a++)
        begin[a] = j->from[a].is_number ? 0 : epi_walk_offset(&j->from[a].walk, item);
    for (int64_t done = 0, n; done < j->length; done += n) {
        n = epi_min64(STRETCH, j->length - done);
        int64_t first = back ? j->length - done - n : done;
        for (int a = 0; a < 2; a++)
            load_walk(j->s, &j->from[a], &j->over[a], begin[a], first, n, v[a]);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = back ? n - 1 - i : i;
            h = done + i ? add(multiply(v[0][at], h), v[1][at]) : v[1][at];
            epi_whole_store(j->s, &j->to, to + (first + at) * j->to_step, h);
        }
    }
}

/* The place that an element of an index names; -1: none. */
static int64_t place_of(const job *j, const operand *index, int64_t i) {
    if (index->is_number)
        return index->value >= 0 && index->value < j->size ? index->value : -1;
    int64_t at = epi_walk_offset(&index->walk, i);
    if (index->counts)
        return at < j->size ? at : -1;
    if (index->ref.type != EPI_F64)
        return epi_position_load(j->s, &index->ref, at, j->size);
    double x;
    memcpy(&x, index->ref.data + at * 8, sizeof x);
    return epi_position(x, j->size);
}

/* Elements that an index names, or that come so many places before; 0 where there is none. */
static void move_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const job *j = ctx;
    const operand *from = &j->from[0];
    int64_t v[STRETCH], start = item * STRETCH, n = epi_min64(STRETCH, j->count - start);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = place_of(j, &j->from[1], start + i) - j->by;
        v[i] = at < 0 || at >= j->size ? 0
               : from->is_number
                   ? from->value
                   : element(j->s, from,
                             epi_walk_offset(&from->walk, start + i) + epi_walk_offset(&j->along, at));
    }
    store_walk(j, start, n, v);
}

static void update_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const job *j = ctx;
    int64_t v[STRETCH], start = item * STRETCH, n = epi_min64(STRETCH, j->count - start);
    load_walk(j->s, &j->from[2], &j->from[2].walk, 0, start, n, v);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = place_of(j, &j->from[1], start + i);
        if (at >= 0)
            epi_whole_store(j->s, &j->to,
                            epi_walk_offset(&j->put, start + i) + epi_walk_offset(&j->along, at), v[i]);
    }
}

/* The places of the largest elements of a line, the largest first, of equal ones the first. */
static void largest_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const job *j = ctx;
    int64_t v[STRETCH], best[64], at[64], begin = epi_walk_offset(&j->from[0].walk, item),
                                          to = epi_walk_offset(&j->put, item), held = 0;
    for (int64_t start = 0, n; start < j->length && j->size; start += n) {
        n = epi_min64(STRETCH, j->length - start);
        load_walk(j->s, &j->from[0], &j->over[0], begin, start, n, v);
        for (int64_t i = 0; i < n; i++) {
            int64_t k = held < j->size ? held++ : j->size;
            for (; k > 0 && v[i] > best[k - 1]; k--)
                if (k < j->size) {
                    best[k] = best[k - 1];
                    at[k] = at[k - 1];
                }
            if (k < j->size) {
                best[k] = v[i];
                at[k] = start + i;
            }
        }
    }
    for (int64_t k = 0; k < j->size; k++)
        epi_whole_store(j->s, &j->to, to + k * j->to_step, at[k]);
}

/* ---- operations ---- */

static void run_stretches(job *j, epi_parallel_body *body) {
    epi_parallel_for(j->spec->threads, epi_ceil_div(j->count, STRETCH), body, j);
}

/* A copy of the operand, as it is seen. */
static void run_copy(job *j, const epi_ref *from, int64_t begin, const epi_axes *axes) {
    const int64_t *sizes = j->spec->sizes;
    j->from[0].ref = *from;
    j->from[0].begin = begin;
    j->from[0].walk = epi_walk_axes(from, axes, sizes);
    j->put = epi_walk_axes(&j->to, axes, sizes);
    j->count = epi_axes_size(axes, sizes);
    j->operands = 1;
    run_stretches(j, map_item);
}

static void run_split(job *j) {
    const int64_t *sizes = j->spec->sizes;
    epi_ref from = j->from[0].ref;
    int64_t begin = epi_ref_half(&from, j->n, epi_ops[j->n->op].second, sizes);
    run_copy(j, &from, begin, &j->n->axes);
}

static void run_join(const job *whole) {
    for (int half = 0; half < 2; half++) {
        job j = *whole;
        j.begin = epi_ref_half(&j.to, j.n, half, j.spec->sizes);
        j.from[0] = whole->from[half];
        epi_axes axes = j.to.axes;
        if (j.from[0].is_number) {
            j.put = epi_walk_axes(&j.to, &axes, j.spec->sizes);
            j.count = epi_axes_size(&axes, j.spec->sizes);
            j.operands = 1;
            run_stretches(&j, map_item);
        } else {
            run_copy(&j, &whole->from[half].ref, 0, &axes);
        }
    }
}

static void run_reduction(job *j) {
    const int64_t *sizes = j->spec->sizes;
    j->over[0] = epi_walk_axes(&j->from[0].ref, &j->n->over, sizes);
    j->length = epi_axes_size(&j->n->over, sizes);
    if (j->count >= SHARES) {
        epi_parallel_for(j->spec->threads, j->count, fold_item, j);
        return;
    }
    for (int64_t i = 0; i < j->count; i++) {
        int64_t x = identity(j->n->op);
        j->begin = epi_walk_offset(&j->from[0].walk, i);
        epi_parallel_for(j->spec->threads, SHARES, share_item, j);
        for (int k = 0; k < SHARES; k++)
            x = combined(j->n->op, x, j->share[k]);
        epi_whole_store(j->s, &j->to, epi_walk_offset(&j->put, i), x);
    }
}

/* By lines: all axes but the one that steps go along. */
static void run_scan(job *j) {
    const int64_t *sizes = j->spec->sizes;
    epi_axes lines = epi_axes_without(&j->n->axes, &j->n->over);
    j->to_step = epi_ref_stride(&j->to, j->n->over.at[0]);
    j->put = epi_walk_axes(&j->to, &lines, sizes);
    for (int a = 0; a < 2; a++) {
        j->over[a] = epi_walk_axes(&j->from[a].ref, &j->n->over, sizes);
        if (!j->from[a].is_number)
            j->from[a].walk = epi_walk_axes(&j->from[a].ref, &lines, sizes);
    }
    j->length = epi_axes_size(&j->n->over, sizes);
    epi_parallel_for(j->spec->threads, epi_axes_size(&lines, sizes), scan_item, j);
}

static void run_gather(job *j) {
    const int64_t *sizes = j->spec->sizes;
    epi_ref from = j->from[0].ref;
    j->along = epi_ref_along(&from, &j->n->over, sizes);
    if (!j->from[0].is_number)
        j->from[0].walk = epi_walk_axes(&from, &j->n->axes, sizes);
    j->size = epi_axes_size(&j->n->over, sizes);
    run_stretches(j, move_item);
}

/* A shift is a gather by positions, so many places before. */
static void run_shift(job *j) {
    const int64_t *sizes = j->spec->sizes;
    epi_ref from = j->from[0].ref, position = epi_ref_of_axes(&j->n->over, sizes);
    j->along = epi_ref_along(&from, &j->n->over, sizes);
    if (!j->from[0].is_number)
        j->from[0].walk = epi_walk_axes(&from, &j->n->axes, sizes);
    j->from[1] =
        (operand){.counts = true, .ref = position, .walk = epi_walk_axes(&position, &j->n->axes, sizes)};
    j->size = epi_axes_size(&j->n->over, sizes);
    j->by = epi_shift_by(j->n);
    run_stretches(j, move_item);
}

/* The sum of what an index sends to a place, for each element of the rest. */
static void scatter_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const job *j = ctx;
    const operand *from = &j->from[0];
    int64_t at = item / j->length, rest = item % j->length, x = 0;
    for (int64_t i = at ? j->ends[at - 1] : 0; i < j->ends[at]; i++)
        x = add(x, from->is_number ? from->value
                                   : element(j->s, from,
                                             epi_walk_offset(&from->walk, j->list[i]) +
                                                 epi_walk_offset(&j->over[0], rest)));
    epi_whole_store(j->s, &j->to, epi_walk_offset(&j->along, at) + epi_walk_offset(&j->put, rest), x);
}

/* Elements of the index by the place that they name, as a sort by counting leaves them. By batch each kept element has
 * places of its own, `size` of them, and comes with `each` elements of the index. */
static void sort_places(job *j, int64_t places, int64_t elements, int64_t each, int64_t *room) {
    int64_t *ends = room, *list = room + places + 1, sum = 0;
    memset(ends, 0, (size_t)(places + 1) * sizeof *ends);
    for (int64_t i = 0; i < elements; i++) {
        int64_t at = place_of(j, &j->from[1], i);
        ends[at < 0 ? 0 : i / each * j->size + at + 1]++; /* the first counts those that name none */
    }
    ends[0] = 0;
    for (int64_t v = 0; v <= places; v++)
        ends[v] = sum += ends[v];
    for (int64_t i = 0; i < elements; i++) {
        int64_t at = place_of(j, &j->from[1], i);
        if (at >= 0)
            list[ends[i / each * j->size + at]++] = i;
    }
    j->ends = ends;
    j->list = list;
}

static void run_scatter(job *j, int64_t *room) {
    const epi_graph *g = j->spec->graph;
    const int64_t *sizes = j->spec->sizes;
    epi_ref to = j->to;
    epi_axes kept = epi_scatter_kept(g, j->n), sent = kept;
    epi_axes_unite(&sent, &g->nodes[j->n->arg[1]].axes);
    j->along = epi_ref_along(&to, &j->n->over, sizes);
    j->put = epi_walk_axes(&to, &to.axes, sizes);
    j->length = epi_axes_size(&to.axes, sizes);
    if (!j->from[0].is_number) {
        j->over[0] = epi_walk_axes(&j->from[0].ref, &to.axes, sizes);
        j->from[0].walk = epi_walk_axes(&j->from[0].ref, &sent, sizes);
    }
    if (!j->from[1].is_number)
        j->from[1].walk = epi_walk_axes(&j->from[1].ref, &sent, sizes);
    int64_t places = epi_axes_size(&j->n->over, sizes), batch = epi_max64(1, epi_axes_size(&kept, sizes)),
            elements = epi_axes_size(&sent, sizes);
    j->size = places / batch;
    sort_places(j, places, elements, epi_max64(1, elements / batch), room);
    epi_parallel_for(j->spec->threads, places * j->length, scatter_item, j);
}

static void run_update(job *j) {
    const int64_t *sizes = j->spec->sizes;
    epi_ref to = j->to;
    if (j->to.data != j->from[0].ref.data) {
        job copy = *j;
        if (copy.from[0].is_number || copy.from[0].counts) {
            copy.operands = 1;
            run_stretches(&copy, map_item);
        } else {
            run_copy(&copy, &j->from[0].ref, 0, &j->n->axes);
        }
    }
    j->along = epi_ref_along(&to, &j->n->over, sizes);
    for (int a = 1; a < 3; a++)
        if (!j->from[a].is_number)
            j->from[a].walk = epi_walk_axes(&j->from[a].ref, &to.axes, sizes);
    j->put = epi_walk_axes(&to, &to.axes, sizes);
    j->size = epi_axes_size(&j->n->over, sizes);
    j->count = epi_axes_size(&to.axes, sizes);
    run_stretches(j, update_item);
}

static void run_topk(job *j) {
    const int64_t *sizes = j->spec->sizes;
    epi_axes of = {1, {j->n->over.at[0]}}, own = {1, {j->n->over.at[1]}},
             lines = epi_axes_without(&j->n->axes, &own);
    j->over[0] = epi_walk_axes(&j->from[0].ref, &of, sizes);
    j->from[0].walk = epi_walk_axes(&j->from[0].ref, &lines, sizes);
    j->put = epi_walk_axes(&j->to, &lines, sizes);
    j->to_step = epi_ref_stride(&j->to, own.at[0]);
    j->length = epi_axes_size(&of, sizes);
    j->size = epi_axes_size(&own, sizes);
    epi_parallel_for(j->spec->threads, epi_axes_size(&lines, sizes), largest_item, j);
}

void epi_integers_run(const epi_spec *spec, const epi_strips *s, int node, const epi_ref *to,
                      const epi_ref *const from[3], int64_t *room) {
    const epi_graph *g = spec->graph;
    const epi_node *n = &g->nodes[node];
    job j = {.spec = spec, .s = s, .n = n, .to = *to, .operands = epi_node_operands(n)};
    j.count = epi_axes_size(&n->axes, spec->sizes);
    j.put = epi_walk_axes(&j.to, &n->axes, spec->sizes);
    for (int a = 0; a < j.operands; a++)
        j.from[a] = operand_of(spec, n->arg[a], from[a], &n->axes);
    j.from[0].is_truth = n->op == EPI_OP_WHERE;
    switch (epi_ops[n->op].cls) {
    case EPI_CLASS_REDUCE: run_reduction(&j); break;
    case EPI_CLASS_SCAN: run_scan(&j); break;
    case EPI_CLASS_SPLIT: epi_ops[n->op].joins ? run_join(&j) : run_split(&j); break;
    case EPI_CLASS_SHIFT: run_shift(&j); break;
    case EPI_CLASS_SORT: run_topk(&j); break;
    case EPI_CLASS_LEAF:
        j.from[0] = operand_of(spec, node, NULL, &n->axes);
        j.operands = 1;
        run_stretches(&j, map_item);
        break;
    case EPI_CLASS_MOVE:
        if (n->op == EPI_OP_GATHER)
            run_gather(&j);
        else if (epi_op_scatters(n->op))
            run_scatter(&j, room);
        else
            run_update(&j);
        break;
    default: run_stretches(&j, map_item); break;
    }
}

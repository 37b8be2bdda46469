/* test_tape.c: tapes of every table of strips, drawn at random, against its maps, moves and stores. */
#include "strips_check.h"

enum { TAPE_ROWS = 3, MOST = 300, WIDTH = 2 * MOST + 7, LONGEST = 14, OUTS = 2 * LONGEST + 1 };
static const int lengths[] = {1, 2, 17, 32, 33, 63, 64, 96, 127, 128, 129, 256, 300};

/* What a tape reads: rows of f32 and bf16 with WIDTH from one to the next, a number for each row, one. */
static float in[4][TAPE_ROWS * WIDTH], each[TAPE_ROWS], one[1];
static uint16_t halves[TAPE_ROWS * WIDTH];

/* What it writes and what it should have written, in bytes as the types have them. */
static _Alignas(64) double got[OUTS][TAPE_ROWS * WIDTH], want[OUTS][TAPE_ROWS * WIDTH];
static epi_dtype out_type[OUTS];
static bool folds[OUTS]; /* of zeros of either sign any is the largest */
static double magnitude[OUTS][TAPE_ROWS];
static float sums[OUTS][TAPE_ROWS], folded[OUTS][TAPE_ROWS], state[OUTS + LONGEST][EPI_STATE_MOST];

static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16, EPI_F64};
enum { TYPES = sizeof types / sizeof types[0] };

typedef struct drawn {
    const epi_strips *s;
    epi_link link[LONGEST + 4];
    int count, n, outs;
    float v[TAPE_ROWS * WIDTH]; /* what the links so far make, by maps */
} drawn;

static uint32_t below(uint32_t n) {
    return random_bits() % n;
}

/* ---- operands ------------------------------------------------------------------------------- */

enum { ROW, PER_ROW, NUMBER, HALVES, FORMS };

static epi_link_operand operand(int form, int which) {
    switch (form) {
    case ROW: return (epi_link_operand){in[which], EPI_F32, 1, WIDTH * sizeof(float), 0, 0};
    case PER_ROW: return (epi_link_operand){each, EPI_F32, 0, sizeof(float), 0, 0};
    case NUMBER: return (epi_link_operand){one, EPI_F32, 0, 0, 0, 0};
    default: return (epi_link_operand){halves, EPI_BF16, 1, WIDTH * sizeof(uint16_t), 0, 0};
    }
}

/* The operand as maps take it; halves are brought to `buf` first. */
static epi_view view(const drawn *d, const epi_link_operand *o, float *buf, int n) {
    if (o->type == EPI_F32)
        return (epi_view){o->p, o->row / (ptrdiff_t)sizeof(float), o->col};
    for (int r = 0; r < TAPE_ROWS; r++)
        d->s->load(buf + r * WIDTH, halves + r * WIDTH, EPI_BF16, 1, n);
    return (epi_view){buf, WIDTH, 1};
}

/* Room for a result of the type, in both memories. */
static epi_link_operand fresh_out(drawn *d, epi_dtype type) {
    int out = d->outs++;
    out_type[out] = type;
    folds[out] = false;
    memset(got[out], 0x5a, sizeof got[out]);
    memset(want[out], 0x5a, sizeof want[out]);
    return (epi_link_operand){got[out], type, 1, WIDTH * (ptrdiff_t)epi_dtype_size(type), 0, 0};
}

static void expect(drawn *d, epi_dtype type, const float *x, int n) {
    unsigned char *to = (unsigned char *)want[d->outs - 1];
    for (int r = 0; r < TAPE_ROWS; r++)
        d->s->store(to + r * WIDTH * (ptrdiff_t)epi_dtype_size(type), type, 1, x + r * WIDTH, n);
}

/* ---- links ---------------------------------------------------------------------------------- */

static void draw_split(drawn *d, epi_link *k) {
    static float buf[TAPE_ROWS * WIDTH], odd[TAPE_ROWS * WIDTH];
    k->kind = EPI_LINK_SPLIT;
    k->a = operand(below(3) ? ROW : HALVES, (int)below(4));
    k->b = fresh_out(d, EPI_F32);
    epi_view a = view(d, &k->a, buf, 2 * d->n);
    d->s->deinterleave(odd, WIDTH, a, 1, TAPE_ROWS, d->n);
    expect(d, EPI_F32, odd, d->n);
    d->s->deinterleave(d->v, WIDTH, a, 0, TAPE_ROWS, d->n);
}

/* Lets the link take v from memory. */
static void draw_from(drawn *d, epi_link *k) {
    static float buf[TAPE_ROWS * WIDTH];
    k->from = operand((int)below(FORMS), (int)below(4));
    epi_view a = view(d, &k->from, buf, d->n);
    for (int r = 0; r < TAPE_ROWS; r++)
        for (int j = 0; j < d->n; j++)
            d->v[r * WIDTH + j] = a.p[r * a.row + j * a.col];
}

static void draw_arithmetic(drawn *d, epi_link *k) {
    static const epi_op ops[] = {
        [EPI_LINK_MUL] = EPI_OP_MUL,      [EPI_LINK_ADD] = EPI_OP_ADD, [EPI_LINK_SUB] = EPI_OP_SUB,
        [EPI_LINK_SUB_FROM] = EPI_OP_SUB, [EPI_LINK_DIV] = EPI_OP_DIV, [EPI_LINK_DIV_FROM] = EPI_OP_DIV};
    static float bufs[2][TAPE_ROWS * WIDTH];
    k->kind = EPI_LINK_MUL + below(EPI_LINK_LESS_PRODUCT - EPI_LINK_MUL + 1);
    k->a = operand((int)below(FORMS), (int)below(4));
    epi_view v = {d->v, WIDTH, 1}, a = view(d, &k->a, bufs[0], d->n);
    if (k->kind >= EPI_LINK_MUL_MUL)
        k->b = operand((int)below(FORMS), (int)below(4));
    if (k->kind == EPI_LINK_MUL_MUL) {
        epi_view arg[3] = {v, a}, second[3] = {v, view(d, &k->b, bufs[1], d->n)};
        d->s->map[EPI_OP_MUL](d->v, WIDTH, arg, TAPE_ROWS, d->n);
        d->s->map[EPI_OP_MUL](d->v, WIDTH, second, TAPE_ROWS, d->n);
    } else if (k->kind > EPI_LINK_MUL_MUL) {
        bool added = k->kind >= EPI_LINK_ADD_PRODUCT,
             less = k->kind == EPI_LINK_MULADD_LESS || k->kind == EPI_LINK_PRODUCT_LESS,
             from = k->kind == EPI_LINK_MULADD_FROM || k->kind == EPI_LINK_LESS_PRODUCT;
        epi_view b = view(d, &k->b, bufs[1], d->n);
        epi_view arg[3] = {added ? a : v, added ? b : a, added ? v : b};
        d->s->muladd(d->v, WIDTH, arg, from ? -1 : 1, less ? -1 : 1, TAPE_ROWS, d->n);
    } else {
        bool from = k->kind == EPI_LINK_SUB_FROM || k->kind == EPI_LINK_DIV_FROM;
        epi_view arg[3] = {from ? a : v, from ? v : a};
        d->s->map[ops[k->kind]](d->v, WIDTH, arg, TAPE_ROWS, d->n);
    }
}

/* A comparison with a, or a choice between v, a and b. */
static void draw_choice(drawn *d, epi_link *k) {
    static float bufs[2][TAPE_ROWS * WIDTH];
    k->kind = below(3) ? EPI_LINK_LT + below(6) : EPI_LINK_IF + below(3);
    k->a = operand((int)below(FORMS), (int)below(4));
    epi_view v = {d->v, WIDTH, 1}, a = view(d, &k->a, bufs[0], d->n);
    if (k->kind >= EPI_LINK_LT) {
        epi_view arg[3] = {v, a};
        d->s->map[EPI_OP_LT + (k->kind - EPI_LINK_LT)](d->v, WIDTH, arg, TAPE_ROWS, d->n);
        return;
    }
    k->b = operand((int)below(FORMS), (int)below(4));
    epi_view b = view(d, &k->b, bufs[1], d->n);
    epi_view arg[3] = {k->kind == EPI_LINK_IF ? v : a,
                       k->kind == EPI_LINK_IF     ? a
                       : k->kind == EPI_LINK_THEN ? v
                                                  : b,
                       k->kind == EPI_LINK_ELSE ? v : b};
    d->s->map[EPI_OP_WHERE](d->v, WIDTH, arg, TAPE_ROWS, d->n);
}

static void draw_function(drawn *d, epi_link *k) {
    static const epi_op ops[] = {EPI_OP_EXP,  EPI_OP_SIGMOID, EPI_OP_SILU, EPI_OP_TANH,
                                 EPI_OP_GELU, EPI_OP_ABS,     EPI_OP_NEG,  EPI_OP_FLOOR};
    epi_view v[2] = {{d->v, WIDTH, 1}, {d->v, WIDTH, 1}};
    epi_op op = ops[below(8)];
    k->kind = below(6) ? EPI_LINK_MAP + op : EPI_LINK_SQUARE;
    d->s->map[k->kind == EPI_LINK_SQUARE ? EPI_OP_MUL : op](d->v, WIDTH, v, TAPE_ROWS, d->n);
}

/* Over a number that has a normal inverse; v times that is expected. */
static void draw_over(drawn *d, epi_link *k) {
    k->kind = EPI_LINK_OVER;
    k->a = operand(below(2) ? PER_ROW : NUMBER, 0);
    k->state = state[OUTS + d->count];
    for (int r = 0; r < TAPE_ROWS; r++)
        for (int j = 0; j < d->n; j++)
            d->v[r * WIDTH + j] *= 1 / (k->a.row ? each[r] : one[0]);
}

static void draw_join(drawn *d, epi_link *k) {
    static float buf[TAPE_ROWS * WIDTH], both[TAPE_ROWS * WIDTH];
    k->kind = EPI_LINK_JOIN;
    k->a = operand((int)below(FORMS), (int)below(4));
    epi_dtype type = types[below(TYPES)];
    k->nontemporal = below(2);
    k->b = fresh_out(d, type);
    d->s->interleave(both, WIDTH, (epi_view){d->v, WIDTH, 1}, view(d, &k->a, buf, d->n), TAPE_ROWS, d->n);
    expect(d, type, both, 2 * d->n);
}

static void draw_store(drawn *d, epi_link *k) {
    k->kind = EPI_LINK_STORE;
    k->nontemporal = below(2);
    k->a = fresh_out(d, types[below(TYPES)]);
    expect(d, k->a.type, d->v, d->n);
}

static int fresh_fold(drawn *d, epi_link *k) {
    static const epi_op ops[] = {EPI_OP_SUM, EPI_OP_MEAN, EPI_OP_RMAX, EPI_OP_RMIN};
    int out = d->outs++;
    out_type[out] = EPI_F32;
    folds[out] = true;
    k->op = ops[below(4)];
    k->identity = epi_reduce_identity(k->op);
    return out;
}

/* Of a sum only that it is near: the order of additions is the tape's own. */
static void draw_fold(drawn *d, epi_link *k) {
    int out = fresh_fold(d, k);
    k->folds = true;
    k->b = (epi_link_operand){sums[out], EPI_F32, 0, sizeof(float), 0, 0};
    k->state = state[out];
    memset(got[out], 0, sizeof got[out]);
    memset(want[out], 0, sizeof want[out]);
    for (int r = 0; r < TAPE_ROWS; r++) {
        magnitude[out][r] = 0;
        for (int j = 0; j < d->n; j++)
            magnitude[out][r] += fabs((double)d->v[r * WIDTH + j]);
        d->s->reduce_rows(k->op, &folded[out][r], NULL, (epi_view){d->v + r * WIDTH, 0, 1}, 1, d->n);
    }
}

static void draw_columns(drawn *d, epi_link *k) {
    int out = fresh_fold(d, k);
    k->kind = EPI_LINK_COLUMNS;
    k->a = (epi_link_operand){got[out], EPI_F32, 1, 0, 0, 0};
    float *const both[] = {(float *)got[out], (float *)want[out]};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < WIDTH; j++)
            both[i][j] = k->identity;
    d->s->reduce_cols(k->op, both[1], NULL, (epi_view){d->v, WIDTH, 1}, TAPE_ROWS, d->n);
}

static void draw_columns_or_get(drawn *d, epi_link *k) {
    if (below(2))
        draw_columns(d, k);
}

/* Links that have one before them, as often as they stand here. */
static void (*const draws[12])(drawn *, epi_link *) = {
    NULL,      draw_arithmetic, draw_arithmetic, draw_arithmetic,     draw_arithmetic, draw_function,
    draw_over, draw_join,       draw_store,      draw_columns_or_get, draw_choice,     draw_choice};

static void draw_link(drawn *d) {
    epi_link *k = &d->link[d->count];
    uint32_t what = d->count == 0 ? 0 : below(12);
    *k = (epi_link){.kind = EPI_LINK_GET};
    if (what > 0 && below(4) == 0)
        draw_from(d, k);
    if (what > 0)
        draws[what](d, k);
    else if (below(3) == 0)
        draw_split(d, k);
    else
        draw_from(d, k);
    bool makes = what <= 6, may_fold = k->kind != EPI_LINK_OVER && !k->b.p;
    if (what == 9 ? k->kind == EPI_LINK_GET : makes && may_fold && below(3) == 0)
        draw_fold(d, k);
    if (makes && below(3) == 0) {
        k->to = fresh_out(d, EPI_F32);
        expect(d, EPI_F32, d->v, d->n);
    }
    d->count++;
}

/* ---- all ------------------------------------------------------------------------------------ */

static float moderate(void) {
    return below(40) ? random_between(-4, 4) : random_float();
}

static void draw_operands(void) {
    for (int i = 0; i < TAPE_ROWS * WIDTH; i++) {
        for (int w = 0; w < 4; w++)
            in[w][i] = moderate();
        halves[i] = (uint16_t)(random_bits() & 0xbfff); /* no NaN, and none that makes sums overflow often */
    }
    for (int r = 0; r < TAPE_ROWS; r++)
        each[r] = random_between(-2, 2);
    one[0] = random_between(-2, 2);
}

/* Two orders of additions differ by no more than each does from the sum: n roundings of all of it. */
static bool is_near(float y, float other, double magnitude, int n) {
    return same(y, other) || !(magnitude < FLT_MAX) || fabs((double)y - other) <= n * 0x1p-23 * magnitude;
}

/* All that was written is as it should be, and nothing else was; NaN is NaN. */
static bool as_wanted(const drawn *d, int out) {
    static float x[2][TAPE_ROWS * WIDTH];
    if (memcmp(got[out], want[out], sizeof got[out]) == 0)
        return true;
    int64_t all = (int64_t)(sizeof got[out] / epi_dtype_size(out_type[out]));
    for (int64_t i = 0; i < all; i += TAPE_ROWS * WIDTH) {
        int64_t n = epi_min64(all - i, TAPE_ROWS * WIDTH), at = i * (int64_t)epi_dtype_size(out_type[out]);
        d->s->load(x[0], (unsigned char *)got[out] + at, out_type[out], 1, n);
        d->s->load(x[1], (unsigned char *)want[out] + at, out_type[out], 1, n);
        for (int64_t j = 0; j < n; j++)
            if (!same(x[0][j], x[1][j]) && !(folds[out] && x[0][j] == x[1][j]))
                return false;
    }
    return true;
}

static void compare(const drawn *d) {
    for (int l = 0; l < d->count; l++) {
        const epi_link *k = &d->link[l];
        if (!k->folds)
            continue;
        int out = (int)((float(*)[TAPE_ROWS])(uintptr_t)k->b.p - sums);
        for (int r = 0; r < TAPE_ROWS; r++) {
            float y = sums[out][r], other = folded[out][r];
            bool adds = k->op == EPI_OP_SUM || k->op == EPI_OP_MEAN;
            if (adds ? !is_near(y, other, magnitude[out][r], d->n) : !same(y, other) && y != other)
                wrong("fold of %d: %a, not %a", d->n, y, other);
        }
    }
    for (int out = 0; out < d->outs; out++)
        if (!as_wanted(d, out))
            wrong("n %d, %d links: result %d", d->n, d->count, out);
}

static void check_tapes(const epi_strips *s, int longest) {
    static drawn d;
    for (int i = 0; i < 3000; i++) {
        d.s = s;
        d.count = d.outs = 0;
        d.n = lengths[below(sizeof lengths / sizeof lengths[0])];
        draw_operands();
        int count = 1 + (int)below((uint32_t)longest);
        while (d.count < count)
            draw_link(&d);
        d.link[d.count] = (epi_link){.kind = EPI_LINK_STORE, .a = fresh_out(&d, EPI_F32)};
        expect(&d, EPI_F32, d.v, d.n);
        d.count++;
        for (int left = (int)below(3); left > 0; left--)
            d.link[d.count++] =
                (epi_link){.kind = EPI_LINK_PREFETCH, .a = operand(ROW, 1), .rate = 1 << 12, .ahead = 256};
        d.link[d.count] = (epi_link){.kind = EPI_LINK_NONE};
        s->ready(d.link);
        s->tape(d.link, TAPE_ROWS, d.n);
        s->settle();
        compare(&d);
    }
    report(s, longest > 2 ? "tapes: many links" : "tapes: few links", "");
}

int main(void) {
    for (int t = 0; epi_strips_at(t); t++) {
        check_tapes(epi_strips_at(t), 2);
        check_tapes(epi_strips_at(t), LONGEST - 1);
    }
    return summary();
}

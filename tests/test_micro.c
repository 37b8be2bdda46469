/* test_micro.c: every micro-kernel this machine can run, and the packing for it, against plain f64.
 *
 * Sources are stored in buffers of exactly their size, so that a sanitizer sees a read too many;
 * panels and results are surrounded by sentinels. */
#include "cpu/micro/micro.h"
#include "harness.h"

enum { MAX_ROWS = EPI_MICRO_MAX_NR + 1, MAX_K = 1100, EDGE = 256 };

/* Where a test puts element (row, k) of an operand. */
typedef enum place { DEPTH_RUNS, ROWS_RUN, STRIDED, SCATTERED, PIECES, PLACE_COUNT } place;
static const epi_dtype types[] = {EPI_BF16, EPI_F32, EPI_F16};
static const char *const place_names[] = {"depth contiguous", "rows contiguous", "strided", "scattered depth",
                                          "depth in pieces"};

typedef struct operand {
    epi_pack_source src;
    int64_t row[MAX_ROWS], koff[MAX_K];
    void *data;
    unsigned char *memory, *panels; /* the guarded block, and the panels in it */
    int r, q;
    int64_t depth;
    size_t bytes;
} operand;

static void operand_place(operand *o, place where, int64_t rows, int64_t k, epi_dtype type) {
    int64_t row_step = 1, k_step = 1, span = 0;
    switch (where) {
    case DEPTH_RUNS: row_step = k + 3; break;
    case ROWS_RUN: k_step = rows; break;
    case STRIDED: row_step = 2, k_step = 2 * rows + 1; break;
    default: row_step = 2 * k; break;
    }
    for (int64_t i = 0; i < rows; i++)
        o->row[i] = (where == SCATTERED ? rows - 1 - i : i) * row_step;
    for (int64_t i = 0; i < k; i++) {
        o->koff[i] = where == SCATTERED ? (k - 1 - i) * 2 : where == PIECES ? i + i / 48 : i * k_step;
        span = epi_max64(span, o->koff[i] + 1);
    }
    span += (rows - 1) * row_step;
    o->data = malloc((size_t)epi_max64(1, k ? span : 0) * epi_dtype_size(type));
    const bool listed = where == SCATTERED || where == PIECES;
    o->src = (epi_pack_source){o->data, type, o->row, rows, k_step, listed ? o->koff : NULL, k};
}

static double operand_get(const operand *o, int64_t row, int64_t k) {
    return get_element(o->data, o->src.type, o->row[row] + o->koff[k]);
}

/* Random elements at a place. */
static void operand_make(operand *o, place where, int64_t rows, int64_t k, epi_dtype type, uint64_t seed) {
    operand_place(o, where, rows, k, type);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < k; d++)
            put_element(o->data, type, o->row[i] + o->koff[d], 2 * random_unit(&seed) - 1);
}

static void operand_pack_panels(operand *o, const epi_micro *u, int r, int q) {
    o->r = r;
    o->q = q;
    o->depth = epi_round_up(o->src.k, u->depth);
    o->bytes = (size_t)(epi_round_up(o->src.rows, o->r) * o->depth) * epi_dtype_size(u->type);
    o->memory = aligned_alloc(64, (o->bytes + 2 * EDGE + 63) / 64 * 64);
    o->panels = o->memory + EDGE;
    memset(o->memory, SENTINEL, o->bytes + 2 * EDGE);
    epi_pack_panels(u, r, q, &o->src, o->panels);
}

static void operand_pack(operand *o, const epi_micro *u, int side) {
    const bool a = side == EPI_SIDE_A;
    operand_pack_panels(o, u, a ? u->mr : u->nr, a ? u->ka : u->kb);
}

static void operand_free(operand *o) {
    free(o->data);
    free(o->memory);
}

/* Element (row i, depth k) as the contract places it; i and k may lie in the padding. */
static double packed_at(const operand *o, const epi_micro *u, int64_t i, int64_t k) {
    const int64_t r = o->r, q = o->q, panel = i / r * r * o->depth;
    return get_element(o->panels, u->type, panel + k / q * r * q + i % r * q + k % q);
}

static bool packed_right(const operand *o, const epi_micro *u) {
    for (int64_t i = 0; i < epi_round_up(o->src.rows, o->r); i++)
        for (int64_t k = 0; k < o->depth; k++) {
            const double x = packed_at(o, u, i, k);
            const double want = i < o->src.rows && k < o->src.k ? operand_get(o, i, k) : 0;
            if (x != want && !(isnan(x) && isnan(want)))
                return false;
        }
    for (int i = 0; i < EDGE; i++)
        if (o->memory[i] != SENTINEL || o->panels[o->bytes + (size_t)i] != SENTINEL)
            return false;
    return true;
}

static epi_prefetch_cursor nothing(void) {
    return (epi_prefetch_cursor){.every = INT64_MAX, .left = INT64_MAX};
}

/* ---- products ---- */

/* The driver's loops: sweeps of kc, within one every panel against every panel. Panels are of full
 * depth here, so a sweep starts k0 * r elements into a panel. */
static void multiply(const epi_micro *u, const operand *a, const operand *b, float *c, int64_t ldc,
                     bool add) {
    const int64_t size = (int64_t)epi_dtype_size(u->type);
    epi_prefetch_cursor cursor = nothing();
    int64_t k0 = 0;
    do {
        const int64_t depth = epi_min64(u->kc, a->depth - k0);
        for (int64_t j = 0; j < b->src.rows; j += u->nr)
            for (int64_t i = 0; i < a->src.rows; i += u->mr)
                u->run(depth, a->panels + (i * a->depth + k0 * u->mr) * size,
                       b->panels + (j * b->depth + k0 * u->nr) * size, c + i * ldc + j, ldc, add || k0 > 0,
                       &cursor);
        k0 += depth;
    } while (k0 < a->depth);
}

/* bf16 instructions may round each sum to odd or towards zero, FMA rounds to nearest; one more
 * rounding per sweep and one for the sum with what was there. */
static bool product_right(const epi_micro *u, const operand *a, const operand *b, const float *c, int64_t ldc,
                          double start) {
    const double unit = u->type == EPI_F32 ? 0x1p-24 : 0x1p-23;
    for (int64_t i = 0; i < a->src.rows; i++)
        for (int64_t j = 0; j < b->src.rows; j++) {
            double sum = start, size = fabs(start);
            for (int64_t k = 0; k < a->src.k; k++) {
                const double x = operand_get(a, i, k) * operand_get(b, j, k);
                sum += x;
                size += fabs(x);
            }
            if (!(fabs(c[i * ldc + j] - sum) <= (double)(a->src.k + 4) * unit * size))
                return false;
        }
    return true;
}

/* C holds `start` and is added to where add is set, else stored. */
static void check_product(const epi_micro *u, const operand *a, const operand *b, bool add) {
    const int64_t rows = epi_round_up(a->src.rows, u->mr), cols = epi_round_up(b->src.rows, u->nr),
                  ldc = cols + 5;
    const size_t count = (size_t)(rows * ldc);
    const float start = 0.75f, untouched = 12345.0f;
    float *memory = malloc((count + 2 * EDGE) * sizeof(float)), *c = memory + EDGE;
    for (size_t i = 0; i < count + 2 * EDGE; i++)
        memory[i] = untouched;
    for (int64_t i = 0; i < rows && add; i++)
        for (int64_t j = 0; j < cols; j++)
            c[i * ldc + j] = start;
    multiply(u, a, b, c, ldc, add);
    check(product_right(u, a, b, c, ldc, add ? start : 0), "%s: %d x %d x %d, add %d: a wrong product",
          u->name, (int)a->src.rows, (int)b->src.rows, (int)a->src.k, add);
    bool intact = true;
    for (int64_t i = -EDGE; i < (int64_t)count + EDGE; i++)
        intact &= (i >= 0 && i < (int64_t)count && i % ldc < cols) || c[i] == untouched;
    check(intact, "%s: wrote outside its block", u->name);
    free(memory);
}

/* A kernel that this machine does not have multiplies nothing, but its packing is plain C. */
static void test_products(const epi_micro *u, bool here) {
    const int64_t ks[] = {0, 1, 2, 3, 31, 33, 257, u->kc + 5};
    static operand a, b;
    for (int where = 0; where < PLACE_COUNT; where++) {
        for (size_t t = 0; t < 3; t++)
            for (size_t n = 0; n < sizeof ks / sizeof ks[0]; n++)
                for (int extra = 0; extra < 4; extra++) {
                    const int64_t more[] = {1, u->mr - 1, u->mr, u->mr + 1}, rows_a = more[extra];
                    const int64_t rows_b = extra ? u->nr + extra - 2 : 1;
                    const bool any = u->type == EPI_F32;
                    const epi_dtype ta = any ? types[t] : EPI_BF16, tb = any ? types[(t + n) % 3] : EPI_BF16;
                    operand_make(&a, (place)where, rows_a, ks[n], ta, 1 + n);
                    operand_make(&b, (place)((where + (int)n) % PLACE_COUNT), rows_b, ks[n], tb, 99 + n);
                    operand_pack(&a, u, EPI_SIDE_A);
                    operand_pack(&b, u, EPI_SIDE_B);
                    check(packed_right(&a, u), "%s: A %d x %d %s, %s", u->name, (int)rows_a, (int)ks[n],
                          epi_dtype_name(ta), place_names[where]);
                    check(packed_right(&b, u), "%s: B %d x %d %s", u->name, (int)rows_b, (int)ks[n],
                          epi_dtype_name(tb));
                    if (here) {
                        check_product(u, &a, &b, false);
                        check_product(u, &a, &b, true);
                    }
                    operand_free(&a);
                    operand_free(&b);
                }
    }
}

/* ---- bits ---- */

/* One row of A and one of B, at every place of their panels among other rows: the same bits. */
static void test_positions(const epi_micro *u) {
    const int64_t k = 101;
    static operand a, b;
    float c[EPI_MICRO_MAX_MR * EPI_MICRO_MAX_NR], first = 0;
    for (int64_t place = 0; place < u->mr * u->nr; place++) {
        const int64_t i = place / u->nr, j = place % u->nr;
        operand_make(&a, DEPTH_RUNS, u->mr, k, u->type, 1000 + (uint64_t)place);
        operand_make(&b, DEPTH_RUNS, u->nr, k, u->type, 5000 + (uint64_t)place);
        uint64_t seed = 7;
        for (int64_t d = 0; d < k; d++) {
            put_element(a.data, u->type, a.row[i] + d, 2 * random_unit(&seed) - 1);
            put_element(b.data, u->type, b.row[j] + d, 2 * random_unit(&seed) - 1);
        }
        operand_pack(&a, u, EPI_SIDE_A);
        operand_pack(&b, u, EPI_SIDE_B);
        for (int again = 0; again < 2; again++)
            multiply(u, &a, &b, c, u->nr, again);
        if (place == 0)
            first = c[0];
        check(memcmp(&first, &c[place], sizeof first) == 0, "%s: other bits at row %d, column %d", u->name,
              (int)i, (int)j);
        operand_free(&a);
        operand_free(&b);
    }
}

enum { WIDE = 64 };
static float want[EPI_MICRO_MAX_MR * WIDE], got[(EPI_MICRO_MAX_MR + 1) * WIDE];

static void start_few(void) {
    for (int i = 0; i < EPI_MICRO_MAX_MR * WIDE; i++)
        want[i] = got[i] = 0.5f + (float)i;
}

/* The rows have the bits that are wanted, and nothing beyond what may be written is. */
static void check_few(const epi_micro *u, const char *how, int rows, int cols, int64_t k, int64_t may_rows,
                      int64_t may_cols) {
    bool same = true, inside = true;
    for (int i = 0; i < rows; i++)
        same &= !memcmp(want + i * WIDE, got + i * WIDE, (size_t)cols * sizeof *got);
    for (int i = 0; i < EPI_MICRO_MAX_MR * WIDE; i++)
        inside &= (i / WIDE < may_rows && i % WIDE < may_cols) || got[i] == 0.5f + (float)i;
    check(same, "%s: %s, %d rows, %d columns, %d deep: other bits", u->name, how, rows, cols, (int)k);
    check(inside, "%s: %s, %d rows, %d columns: wrote outside", u->name, how, rows, cols);
}

/* Few rows by themselves have the bits that they have in a full panel. */
static void test_few(const epi_micro *u) {
    static const int64_t ks[] = {1, 3, 8, 37, 128, 301};
    static operand a, b;
    epi_prefetch_cursor cursor = nothing();
    for (int n = 0; n < 6 * 2 && u->run_rows; n++)
        for (int rows = 1; rows <= epi_min64(EPI_MICRO_FEW, u->mr); rows++) {
            const int64_t k = ks[n % 6], depth = epi_round_up(k, u->depth),
                          size = (int64_t)epi_dtype_size(u->type);
            operand_make(&a, DEPTH_RUNS, rows, k, u->type, 3 + (uint64_t)n);
            operand_make(&b, DEPTH_RUNS, u->nr, k, u->type, 77 + (uint64_t)n);
            operand_pack(&a, u, EPI_SIDE_A);
            operand_pack(&b, u, EPI_SIDE_B);
            start_few();
            u->run(depth, a.panels, b.panels, want, WIDE, false, &cursor);
            const int64_t part = n / 6 ? epi_round_up(depth / 3, u->depth) : 0; /* in one run, or in two */
            u->run_rows(rows, part, a.panels, b.panels, u->nr * u->kb, got, WIDE, false, &cursor);
            u->run_rows(rows, depth - part, a.panels + part * u->mr * size, b.panels + part * u->nr * size,
                        u->nr * u->kb, got, WIDE, part > 0, &cursor);
            check_few(u, "alone", rows, u->nr, k, u->mr, u->nr);
            operand_free(&a);
            operand_free(&b);
        }
}

/* `want` by full panels of so much depth. */
static void by_full_panels(const epi_micro *u, const operand *a, const operand *b, int64_t depth, bool add) {
    const int64_t bytes = depth * (int64_t)epi_dtype_size(u->type);
    epi_prefetch_cursor cursor = nothing();
    for (int64_t i = 0; i < a->src.rows; i += u->mr)
        for (int64_t j = 0; j < b->src.rows; j += u->nr)
            u->run(depth, a->panels + i * bytes, b->panels + j * bytes, want + i * WIDE + j, WIDE, add,
                   &cursor);
}

/* The rows of the panel that so few rows are packed into for B in memory. */
static int panel_of(const epi_micro *u, int rows) {
    int panel = 0;
    for (int i = 0; i < 3 && panel < rows; i++)
        panel = u->direct.rows[i];
    return panel;
}

/* Few rows against B as it lies in memory have the bits that they have in full panels. */
static void check_direct(const epi_micro *u, epi_dtype type, int64_t k, int rows, int cols, bool add) {
    static operand a, b, few;
    const int64_t size = (int64_t)epi_dtype_size(u->type), whole = epi_round_up(k, u->depth);
    const int panel = panel_of(u, rows);
    operand_make(&a, DEPTH_RUNS, rows, k, u->type, 3 + (uint64_t)k);
    operand_make(&few, ROWS_RUN, rows, k, u->type, 3 + (uint64_t)k);
    operand_pack_panels(&few, u, panel, u->direct.ka);
    check(packed_right(&few, u), "%s: %d rows for B in memory", u->name, rows);
    operand_make(&b, DEPTH_RUNS, cols, k, type, 77 + (uint64_t)k);
    start_few();
    epi_pack_source whole_a = a.src, whole_b = b.src;
    for (int64_t k0 = 0; k0 < whole; k0 += u->kc) { /* a sweep at a time */
        const int64_t depth = epi_min64(u->kc, whole - k0);
        a.src = whole_a, b.src = whole_b;
        a.src.k = b.src.k = epi_min64(u->kc, k - k0);
        a.src.data = (const char *)a.data + k0 * size;
        b.src.data = (const char *)b.data + k0 * (int64_t)epi_dtype_size(type);
        operand_pack(&a, u, EPI_SIDE_A);
        operand_pack(&b, u, EPI_SIDE_B);
        by_full_panels(u, &a, &b, depth, add || k0 > 0);
        free(a.memory);
        free(b.memory);
    }
    const void *column[WIDE];
    for (int j = 0; j < cols; j++)
        column[j] = (const char *)b.data + b.row[j] * (int64_t)epi_dtype_size(type);
    u->direct.run(panel, cols, k, few.panels, column, type, got, WIDE, add);
    check_few(u, epi_dtype_name(type), rows, cols, k, panel, epi_round_up(cols, EPI_MICRO_DIRECT));
    free(a.data);
    free(b.data);
    operand_free(&few);
}

static void test_direct(const epi_micro *u) {
    static const int cols[] = {1, 4, 7, 16, 21, 33};
    const int64_t ks[] = {1, 3, 8, 37, 128, 301, u->kc, u->kc + 37};
    for (int t = 0; t < (u->type == EPI_F32 ? 3 : 1); t++)
        for (int n = 0; n < 8; n++)
            for (int rows = 1; rows <= EPI_MICRO_FEW; rows++)
                for (int c = 0; c < 6; c++)
                    check_direct(u, types[t], ks[n], rows, cols[c], (n + c) % 2);
}

/* Few rows against B whose columns are neighbours in memory have the bits that they have in full panels. */
static void check_across(const epi_micro *u, epi_dtype type, int64_t k, int rows, int cols) {
    static operand a, b, few;
    const int64_t size = (int64_t)epi_dtype_size(type), most = EPI_MICRO_ACROSS / size;
    const int panel = panel_of(u, rows);
    operand_make(&a, DEPTH_RUNS, rows, k, EPI_F32, 3 + (uint64_t)k);
    operand_make(&few, DEPTH_RUNS, rows, k, EPI_F32, 3 + (uint64_t)k);
    operand_make(&b, ROWS_RUN, cols, k, type, 77 + (uint64_t)k);
    operand_pack(&a, u, EPI_SIDE_A);
    operand_pack_panels(&few, u, panel, u->direct.ka);
    operand_pack(&b, u, EPI_SIDE_B);
    start_few();
    by_full_panels(u, &a, &b, k, false);
    for (int64_t k0 = 0, depth; k0 < k; k0 += depth) {
        const void *row[EPI_MICRO_ACROSS];
        depth = epi_min64(most, k - k0);
        for (int64_t d = 0; d < 2 * depth; d++)
            row[d] = (const char *)b.data + epi_min64(k0 + d, k - 1) * cols * size;
        u->direct.across(rows, (int)depth, cols, (const float *)(void *)few.panels + k0 * panel, panel, row,
                         type, got, WIDE, k0 > 0);
    }
    check_few(u, epi_dtype_name(type), rows, cols, k, panel, cols);
    operand_free(&a);
    operand_free(&b);
    operand_free(&few);
}

static void test_across(const epi_micro *u) {
    static const int cols[] = {1, 4, 7, 16, 21, 32, 33};
    static const int64_t ks[] = {1, 3, 8, 37, 128};
    for (int t = 0; t < 3; t++)
        for (int n = 0; n < 5; n++)
            for (int rows = 1; rows <= EPI_MICRO_FEW; rows++)
                for (int c = 0; c < 7; c++)
                    check_across(u, types[t], ks[n], rows, cols[c]);
}

/* Every f16 and bf16 there is, NaN and infinities among them. */
static void test_conversions(const epi_micro *u) {
    enum { SIDE_ROWS = 64, SIDE_K = 1024, BLOCK = 32 };
    static operand o;
    for (int t = 0; t < 2; t++)
        for (int64_t at = 0; at < SIDE_ROWS; at += BLOCK) {
            operand_place(&o, t ? ROWS_RUN : DEPTH_RUNS, BLOCK, SIDE_K, t ? EPI_BF16 : EPI_F16);
            for (int64_t i = 0; i < BLOCK; i++)
                for (int64_t k = 0; k < SIDE_K; k++)
                    ((uint16_t *)o.data)[o.row[i] + o.koff[k]] = (uint16_t)((at + i) * SIDE_K + k);
            operand_pack(&o, u, EPI_SIDE_B);
            check(packed_right(&o, u), "%s: a 16-bit value changed", u->name);
            operand_free(&o);
        }
    for (int64_t n = 0; n < 20; n++) { /* runs too short for a vector */
        uint16_t src[20];
        float dst[21];
        for (int64_t i = 0; i < n; i++)
            src[i] = (uint16_t)(0x0001 << i | 0x0203);
        dst[n] = 7;
        u->widen_f16(dst, src, n);
        bool right = dst[n] == 7;
        for (int64_t i = 0; i < n; i++)
            right &= apart(dst[i], get_element(src, EPI_F16, i)) == 0;
        check(right, "%s: %d f16 elements", u->name, (int)n);
    }
}

/* The cursor moves one step per `every` of depth, across runs, and from row to row. */
static void test_requests(const epi_micro *u) {
    _Alignas(64) static float zeros[EPI_MICRO_MAX_NR * 128];
    float c[EPI_MICRO_MAX_MR * EPI_MICRO_MAX_NR];
    const char *start = (const char *)zeros;
    for (int64_t every = 1; every < 200; every += 13) {
        epi_prefetch_cursor run = {.line = start, .stride = 1, .every = every, .left = every};
        epi_prefetch_cursor rows = {
            .line = start, .stride = 1, .every = every, .left = every, .row_left = 3, .row = 3, .skip = 100};
        for (int i = 0; i < 5; i++) {
            u->run(96, zeros, zeros, c, u->nr, false, &run);
            u->run(96, zeros, zeros, c, u->nr, false, &rows);
        }
        const int64_t lines = 5 * 96 / every;
        check(run.line - start == lines, "%s: wants %d lines, not %d", u->name, (int)lines,
              (int)(run.line - start));
        check(rows.line - start == lines + lines / 3 * 100, "%s: %d lines in rows of 3", u->name, (int)lines);
    }
}

static void test_choice(void) {
    const epi_micro *plain = epi_micro_choose(EPI_F32, EPI_F16, "plain");
    const epi_micro *best = epi_micro_choose(EPI_BF16, EPI_BF16, NULL);
    check(plain && strcmp(plain->name, "plain") == 0, "plain is not found by name");
    check(best && best->usable(), "no kernel for bf16");
    check(!epi_micro_choose(EPI_F32, EPI_F32, "nonesuch"), "a kernel of a name that does not exist");
    check(!epi_micro_choose(EPI_I32, EPI_F32, NULL), "a kernel for integers");
    for (int i = 0; epi_micro_at(i); i++) {
        const epi_micro *u = epi_micro_at(i);
        const epi_micro *mixed = epi_micro_choose(EPI_BF16, EPI_F32, u->name);
        check(mixed == (u->usable() && u->type == EPI_F32 ? u : NULL), "%s: chosen wrongly for bf16 x f32",
              u->name);
        check(96 % u->mr == 0 && 256 % u->nr == 0, "%s: blocks do not fill a tile", u->name);
        check(u->mr <= EPI_MICRO_MAX_MR && u->nr <= EPI_MICRO_MAX_NR, "%s: larger than the largest", u->name);
        check(u->kc % u->depth == 0 && u->depth % u->ka == 0 && u->depth % u->kb == 0,
              "%s: depths do not divide", u->name);
    }
    check(!epi_micro_at(-1), "an entry before the first");
}

int main(void) {
    test_choice();
    for (int i = 0; epi_micro_at(i); i++) {
        const epi_micro *u = epi_micro_at(i);
        if (!u->usable()) {
            printf("absent %s\n", u->name);
            if (u->type == EPI_BF16)
                test_products(u, false);
            continue;
        }
        if (u->enter)
            u->enter();
        test_products(u, true);
        test_positions(u);
        test_few(u);
        if (u->direct.run)
            test_direct(u);
        if (u->direct.across)
            test_across(u);
        if (u->type == EPI_F32)
            test_conversions(u);
        test_requests(u);
        if (u->leave)
            u->leave();
    }
    return finish();
}

/* pieces.h: what texts are made of, by itself: folds of partials, tiles that lanes move, looks through indices; and sums of
 * very many terms. */
#ifndef EPI_TESTS_EMULATE_PIECES_H
#define EPI_TESTS_EMULATE_PIECES_H

#include "emulate/kernels.h"

/* Runs a text of its own by one block after the other: with memory, behind what would be a map, and numbers. */
typedef struct piece_memory {
    const void *from;
    size_t bytes, before; /* before: how much there is of it, which may be touched, too */
} piece_memory;

static void run_piece(int at, int memories, const piece_memory *memory, const int64_t numbers[4], int grid,
                      int threads, int shared, const char *what) {
    _Alignas(64) unsigned char params[256] = {0};
    emu_host host = {.range_count = memories};
    for (int i = 0; i < memories; i++) {
        memcpy(params + 128 + 8 * i, &memory[i].from, 8);
        host.ranges[i] = (emu_range){(const char *)memory[i].from - memory[i].before,
                                     memory[i].before + memory[i].bytes, 0};
    }
    memcpy(params + 128 + 8 * memories, numbers, 4 * sizeof *numbers);
    const text *t = &texts[at];
    bool ended = t->run && t->run(&host, params, grid, 1, threads, shared);
    check(ended && !host.wrong, "%s: %s", what, host.first);
}

/* ---- long sums ---- */

/* As in test_sums.c, with as many terms as the emulator can take. Plain sums are off by 4e-6 to 1e-2. */
enum { TERMS = 1 << 20 };
static const double LONG_BOUND = 2e-6;
static struct long_sum {
    const char *name, *text, *dims;
    epi_path path;
    const emulated *e;
} longs[] = {
    {"scattered", "p(x[T,D], i: i32[T]) -> y[V,D] { y = scatter(x, i, V) }", "T=1048576,D=2,V=1", 0, NULL},
    {"by groups", "p(x[T,D], offsets: i32[V]) -> y[V,D] { y = scatter(x, segments(offsets, V, T), V) }",
     "T=1048576,D=2,V=1", 0, NULL},
    {"down columns", "p(x[T,D]) -> y[D] { y = sum(x, T) }", "T=1048576,D=3", 0, NULL},
    {"along a row", "p(x[T,D]) -> y[T] { y = sum(x, D) }", "T=1,D=1048576", 0, NULL},
    {"along a row, by passes", "p(x[T,D]) -> y[T] { y = sum(x, D) }", "T=1,D=1048576", EPI_PATH_UNFUSED,
     NULL},
};
enum { LONGS = sizeof longs / sizeof *longs };

static void add_longs(void) {
    for (int i = 0; i < LONGS; i++)
        if (wanted("sums %s", longs[i].name)) {
            const loaded *l = program_with("sums", longs[i].text, "p", longs[i].dims);
            longs[i].e = add_staying(l, (variant){EPI_F32, longs[i].path, 90, NULL, true, 132});
        }
}

static double run_long(const emulated *e, problem *p, float x) {
    for (int64_t n = 0; n < p->t[0].shape.count; n++)
        put_element(p->t[0].data, EPI_F32, n, (double)x);
    for (int64_t n = 0; p->inputs > 1 && n < p->t[1].shape.count; n++)
        put_element(p->t[1].data, EPI_I32, n, 0);
    memset(p->t[p->inputs].data, POISON, (size_t)p->t[p->inputs].shape.count * sizeof(float));
    run_launches(e, p, false, "a long sum");
    return get_element(p->t[p->inputs].data, EPI_F32, 0);
}

static void run_one_long(int at) {
    const struct long_sum *s = &longs[at];
    problem p;
    begin_case(s->e->name);
    if (!runs(s->e) || !make_problem(s->e, &p))
        return;
    double exact = (double)0.1f * TERMS, error = fabs(run_long(s->e, &p, 0.1f) / exact - 1);
    check(error <= LONG_BOUND, "%s: 0.1 %d times is off by %.2e, %.0e is allowed", s->name, TERMS, error,
          LONG_BOUND);
    check(at || run_long(s->e, &p, INFINITY) == (double)INFINITY, "%s: an infinite sum", s->name);
    problem_free(&p);
}

static void add_long_jobs(void) {
    for (int i = 0; i < LONGS; i++)
        if (longs[i].e)
            add_job(run_one_long, i);
}

/* ---- folds ---- */

/* Partials are folded the same whether their number is known when the text is written or at the launch. */
enum { PARTIALS = 5000, FOLD_SEGMENTS = 32 };
static int fold_text = -1;

static void add_folds(void) {
    epi_kernel_text t = {.name = "folds"};
    if (!wanted("folds"))
        return;
    epi_text_add(
        &t.source,
        "#define EPI_FAST 0\n%s%s%s\nstruct Params {\n  TMap map[1];\n  const void *ptr[3];\n  i64 M, "
        "group, extra[2];\n};\n"
        "extern \"C\" __global__ void folds(const __grid_constant__ Params P) {\n"
        "  const float *p = (const float *)P.ptr[0] + threadIdx.x %% 32;\n"
        "  const int segment = threadIdx.x / 32;\n"
        "  ((float *)P.ptr[1])[threadIdx.x] = fold_segment<Total, %d, %d>(p, segment, 32, 0).v;\n"
        "  ((float *)P.ptr[2])[threadIdx.x] = fold_some<Total>((int)P.group, p, segment, 32, 0).v;\n}\n",
        epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"), PARTIALS, FOLD_SEGMENTS);
    fold_text = add_text(&t);
    epi_text_free(&t.source);
}

static void run_folds(int unused) {
    enum { THREADS = 32 * FOLD_SEGMENTS };
    static _Alignas(64) float from[PARTIALS * 32], known[THREADS], some[THREADS];
    (void)unused;
    begin_case("folds");
    for (size_t i = 0; i < sizeof from / sizeof *from; i++)
        from[i] = 1 + (float)(i * 2654435761u % 1000) / 1000;
    run_piece(fold_text, 3,
              (piece_memory[]){{from, sizeof from, 0}, {known, sizeof known, 0}, {some, sizeof some, 0}},
              (int64_t[]){0, PARTIALS, 0, 0}, 1, THREADS, 0, "folds of partials");
    check(!memcmp(known, some, sizeof known), "partials are folded in one order, known ahead or not");
}

/* ---- tiles that lanes move ---- */

typedef struct panel_case {
    int width, size, count; /* bytes of a panel's row and of an element, and rows at once */
    int turn;               /* rows that a warp stores: all, or its own */
    int rows, columns, stride, start;
    int text; /* and 1; 0: it is not run */
} panel_case;

static panel_case panels[] = {
    {128, 2, 8, 64, 64, 64, 65, 0, 0},   {128, 2, 4, 64, 70, 131, 131, 0, 0},
    {128, 2, 2, 64, 3, 33, 37, 1, 0},    {64, 2, 4, 64, 130, 99, 99, 0, 0},
    {64, 2, 2, 64, 65, 31, 33, 3, 0},    {32, 2, 8, 64, 64, 17, 17, 0, 0},
    {32, 2, 4, 64, 67, 50, 51, 1, 0},    {128, 4, 8, 64, 65, 45, 45, 0, 0},
    {64, 4, 2, 64, 64, 33, 35, 1, 0},    {128, 2, 8, 64, 64, 1, 1, 0, 0},
    {64, 2, 8, 64, 66, 2, 3, 1, 0},      {32, 4, 4, 64, 1, 9, 9, 0, 0},
    {128, 2, 8, 16, 70, 131, 131, 0, 0}, {64, 2, 8, 16, 65, 31, 33, 3, 0},
    {32, 2, 4, 16, 67, 50, 51, 1, 0},    {128, 2, 4, 16, 41, 66, 66, 0, 0},
    {64, 4, 4, 16, 64, 33, 35, 1, 0},    {128, 2, 8, 64, 70, 132, 134, 0, 0},
    {64, 2, 8, 64, 70, 131, 134, 1, 0},
};
enum { PANELS = sizeof panels / sizeof *panels };

/* Panel by panel from one tensor to shared memory, and from there to another. */
static void add_panels(void) {
    for (int i = 0; i < PANELS; i++) {
        panel_case *p = &panels[i];
        epi_kernel_text t = {.name = "panels"};
        if (!wanted("panels %d", i))
            continue;
        epi_text_add(
            &t.source,
            "#define EPI_FAST 0\n%s%s%s%s\nstruct Params {\n  TMap map[1];\n  const void *ptr[2];\n  "
            "i64 M, group, extra[2];\n};\n"
            "extern \"C\" __global__ void panels(const __grid_constant__ Params P) {\n"
            "  extern __shared__ __align__(1024) u8 memory[];\n"
            "  const u32 at = (u32)__cvta_generic_to_shared(memory);\n  const int lane = threadIdx.x;\n"
            "  for (int y = 0; y < %d; y += 64)   // one panel too many, either way\n"
            "    for (int x = 0; x < %d; x += %d) {\n"
            "      panel_load<%d, %d, %d>(at, P.ptr[0], y, x, %d, %d, %d, lane);\n      __syncwarp();\n"
            "      for (int begin = 0; begin < 64; begin += %d)\n"
            "        panel_store<%d, %d, %d, %d>(at, (void *)P.ptr[1], y, x, %d, %d, %d, lane, begin);\n"
            "      __syncwarp();\n    }\n}\n",
            epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"),
            epi_device_text("tiles"), p->rows + 64, p->columns + p->width / p->size, p->width / p->size,
            p->width, p->size, p->count, p->rows, p->columns, p->stride, p->turn, p->width, p->size, p->count,
            p->turn, p->rows, p->columns, p->stride);
        p->text = add_text(&t) + 1;
        epi_text_free(&t.source);
    }
}

/* Everything between the rows stays as it was. */
static void run_panel(int at) {
    enum { ROOM = 1 << 17 };
    static _Alignas(64) unsigned char from[ROOM], to[ROOM], want[ROOM];
    const panel_case *p = &panels[at];
    size_t start = (size_t)p->start * (size_t)p->size, row = (size_t)p->stride * (size_t)p->size;
    size_t wide = (size_t)p->columns * (size_t)p->size, bytes = row * (size_t)(p->rows - 1) + wide;
    char what[100];
    snprintf(what, sizeof what, "panels %d", at);
    begin_case(what);
    snprintf(what, sizeof what, "panels of %d bytes, %d rows of %d", p->width, p->rows, p->columns);
    for (size_t b = 0; b < ROOM; b++)
        from[b] = (unsigned char)(b * 7 + b / 251);
    memset(to, SENTINEL, ROOM);
    memset(want, SENTINEL, ROOM);
    for (int r = 0; r < p->rows; r++)
        memcpy(want + start + (size_t)r * row, from + start + (size_t)r * row, wide);
    run_piece(p->text - 1, 2, (piece_memory[]){{from + start, bytes, start}, {to + start, bytes, start}},
              (int64_t[4]){0}, 1, 32, 64 * 128, what);
    check(!memcmp(to, want, ROOM), "%s arrive, and nothing else", what);
}

/* ---- indices that are looked through ---- */

enum { CHECKED = 700, TABLE = 10, CHECKS = 2 };
static epi_kernel *check_kernel;
static int check_texts[CHECKS];

/* A program of two indices, for which there are two launches before the rest. */
static void add_checks(void) {
    static const char source[] = "p(table[V,D], ids: i32[T], d[T,D], back: i32[T]) -> (y[T,D], g[V,D]) {\n"
                                 "    y = gather(table, ids, V)\n    g = scatter(d, back, V)\n}";
    epi_error err = {0};
    if (!wanted("indices"))
        return;
    const loaded *l = program_with("indices", source, "p", "T=700,D=8,V=10");
    epi_options o =
        EPI_OPTIONS(.dims = l->dims, .dim_count = 3, .device = -90, .type = EPI_BF16, .check_indices = 1);
    if (check(epi_kernel_compile(l->program, &o, &check_kernel, &err) == EPI_OK && check_kernel->checks &&
                  check_kernel->checks->count == CHECKS,
              "two indices are looked through: %s", err.message))
        for (int i = 0; i < CHECKS; i++)
            check_texts[i] = add_text(&check_kernel->checks->launches[i].text);
}

/* Of the elements outside the first is told, with its value; -1 of none. */
static void run_check(int launch, const int32_t *ids, int64_t element, int64_t value) {
    const epi_launch *l = &check_kernel->checks->launches[launch];
    _Alignas(64) int64_t found[2 * CHECKS];
    memset(found, SENTINEL, sizeof found);
    run_piece(
        check_texts[launch], 2, (piece_memory[]){{ids, CHECKED * sizeof *ids, 0}, {found, sizeof found, 0}},
        (int64_t[]){0, 0, l->numbers.count, 0}, (int)l->how.grid, (int)l->how.block, 0, "a check of indices");
    check(found[2 * launch] == element && found[2 * launch + 1] == value,
          "element %ld, %ld instead of %ld, %ld", (long)found[2 * launch], (long)found[2 * launch + 1],
          (long)element, (long)value);
}

static void run_checks(int unused) {
    static const struct {
        int at[2];
        int32_t values[2];
        int64_t element, value;
    } wrong[] = {{{0, 0}, {0, 0}, -1, 0},
                 {{5, 400}, {TABLE, -1}, 5, TABLE},
                 {{400, 5}, {0, -1}, 5, -1},
                 {{CHECKED - 1, 0}, {INT32_MIN, 0}, CHECKED - 1, INT32_MIN},
                 {{699, 256}, {INT32_MAX, 10}, 256, 10}};
    (void)unused;
    begin_case("indices");
    for (int launch = 0; launch < CHECKS; launch++)
        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
            static _Alignas(64) int32_t ids[CHECKED];
            for (int i = 0; i < CHECKED; i++)
                ids[i] = i % TABLE;
            for (int i = 0; i < 2; i++)
                ids[wrong[w].at[i]] = wrong[w].values[i];
            run_check(launch, ids, wrong[w].element, wrong[w].value);
        }
}

static void add_piece_jobs(void) {
    if (fold_text >= 0)
        add_job(run_folds, 0);
    if (check_kernel)
        add_job(run_checks, 0);
    for (int i = 0; i < PANELS; i++)
        if (panels[i].text)
            add_job(run_panel, i);
}

#endif

/* test_integers.c: integers are exact: every operation that has them, on numbers around the ends of f32, of 32 and of 64 bits,
 * beside the same in C; and positions beyond 2^24.
 *
 *     integers [large]
 *
 *     large   axes of 2^24 + 64 elements, too: a GB of memory and ten seconds */
#include "ran.h"

static epi_context *ctx;

/* ---- numbers ---- */

static const int64_t edges[] = {0,
                                1,
                                -1,
                                7,
                                -40,
                                255,
                                0xffffff,
                                0x1000000,
                                0x1000001,
                                -0x1000001,
                                INT32_MAX,
                                INT32_MIN,
                                0x80000000,
                                0x20000000000001,
                                -0x20000000000001,
                                INT64_MAX,
                                INT64_MIN}; /* around 2^24, 2^31, 2^53 and 2^63 */
enum { EDGES = sizeof edges / sizeof *edges, PAIRS = EDGES * EDGES };
_Static_assert(PAIRS == 289, "sizes of texts say so");

static int64_t cut_to(epi_dtype type, int64_t x) {
    return type == EPI_I64 ? x : x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : x;
}

static int64_t add(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}
static int64_t times(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a * (uint64_t)b);
}
static int64_t minus(int64_t a) {
    return (int64_t) - (uint64_t)a;
}
static int64_t over(int64_t a, int64_t b) {
    if (b == 0 || b == -1)
        return b ? minus(a) : 0;
    int64_t left = a % b; /* of the sign of a */
    return a / b - (left != 0 && (left < 0) != (b < 0));
}
static int64_t rest(int64_t a, int64_t b) {
    return b ? add(a, minus(times(b, over(a, b)))) : 0;
}

/* ---- elementwise ---- */

/* An expression in a program, and in C. */
#define MAPS(X) \
    X(sum_of, "x + y", add(x, y)) \
    X(difference, "x - y", add(x, minus(y))) \
    X(product, "x*y", times(x, y)) \
    X(square, "x**2 + 1", add(times(x, x), 1)) \
    X(cube, "x**3 - y", add(times(times(x, x), x), minus(y))) \
    X(negative, "-(x + 1)", minus(add(x, 1))) \
    X(quotient, "x // y", over(x, y)) \
    X(floor_of_quotient, "floor(x/y)", over(x, y)) \
    X(remainder_of, "x % y", rest(x, y)) \
    X(by_seven, "x // 7*1000 + x % 7", add(times(over(x, 7), 1000), rest(x, 7))) \
    X(by_minus_one, "x // -1 + x % -1", add(over(x, -1), rest(x, -1))) \
    X(by_powers, "x // 2**40 + x % 10**9", add(over(x, (int64_t)1 << 40), rest(x, 1000000000))) \
    X(not_negative, "relu(x) + 1", add(x > 0 ? x : 0, 1)) \
    X(least, "min(x, y) + 1", add(x < y ? x : y, 1)) \
    X(most, "max(x, y) + 1", add(x > y ? x : y, 1)) \
    X(clamped, "clamp(x, -5, 16777217) + 1", (x < -5 ? -5 : x > 16777217 ? 16777217 : x) + 1) \
    X(near_zero, "clamp(x*y, 0, 15)", \
      times(x, y) < 0    ? 0 \
      : times(x, y) > 15 ? 15 \
                         : times(x, y)) /* it wraps around to small numbers, too */ \
    X(cube_near_zero, "clamp(x**3, -7, 15)", \
      times(times(x, x), x) < -7   ? -7 \
      : times(times(x, x), x) > 15 ? 15 \
                                   : times(times(x, x), x)) \
    X(size_of, "abs(x) + 1", add(x < 0 ? minus(x) : x, 1)) \
    X(sign_of, "sign(x) + 3", (x > 0) - (x < 0) + 3) \
    X(less, "x < y", x < y) \
    X(not_more, "x <= y", x <= y) \
    X(more, "y > x", x < y) \
    X(not_less, "y >= x", x <= y) \
    X(equal, "x == y", x == y) \
    X(other, "x != y", x != y) \
    X(more_than_next, "x + 1 > y", add(x, 1) > y) \
    X(both, "(x and y) + 2*(x or y) + 4*(not x)", (x && y) + 2 * (x || y) + 4 * !x) \
    X(choice, "where(x < y, x + 1, y + 2)", x < y ? add(x, 1) : add(y, 2)) \
    X(by_truth, "where(x + 1, y, x)", add(x, 1) ? y : x) \
    X(rounded, "floor(round(i64(x)) + i32(y - 1))", add(x, add(y, minus(1))))

#define DEFINE(name, text, in_c) \
    static int64_t name(int64_t x, int64_t y) { \
        (void)x, (void)y; \
        return in_c; \
    }
MAPS(DEFINE)

static const struct {
    const char *text;
    int64_t (*in_c)(int64_t, int64_t);
} maps[] = {
#define ROW(name, text, in_c) {text, name},
    MAPS(ROW)};

/* The only program of a text, compiled; its sizes are those that it has of these. */
static bool begin(ran *r, const char *text, const char *dims, epi_path path, layout how) {
    return made_of(r, ctx, text, dims, (way){.path = path, .layout = how, .narrow = true});
}

static void end(ran *r) {
    for (int i = 0; i < r->p.count; i++)
        check(tensor_intact(&r->p.t[i]), "tensor %d is written inside alone", i);
    discard(r);
}

static void put(const tensor *t, int64_t i, int64_t x) {
    int32_t word = (int32_t)x;
    unsigned char *p = (unsigned char *)t->data + tensor_at(t, i) * (int64_t)epi_dtype_size(t->shape.type);
    memcpy(p, t->shape.type == EPI_I64 ? (void *)&x : (void *)&word, epi_dtype_size(t->shape.type));
}

static int64_t get(const tensor *t, int64_t i) {
    int32_t word;
    int64_t x;
    const unsigned char *p =
        (const unsigned char *)t->data + tensor_at(t, i) * (int64_t)epi_dtype_size(t->shape.type);
    if (t->shape.type == EPI_I64)
        return memcpy(&x, p, sizeof x), x;
    return memcpy(&word, p, sizeof word), word;
}

/* All pairs of edges, in types that the inputs and the output have. */
static void test_map(int map, epi_dtype first, epi_dtype second, epi_dtype result, epi_path path,
                     layout how) {
    char text[300];
    snprintf(text, sizeof text, "f(x: %s[T], y: %s[T]) -> z: %s[T] { z = %s }", epi_dtype_name(first),
             epi_dtype_name(second), epi_dtype_name(result), maps[map].text);
    ran r;
    int64_t wrong = 0, place = -1;
    bool made = begin(&r, text, "T=289", path, how);
    const tensor *x = &r.p.t[0], *y = &r.p.t[1], *z = &r.p.t[2];
    for (int64_t i = 0; i < PAIRS && made; i++) {
        put(x, i, cut_to(first, edges[i / EDGES]));
        put(y, i, cut_to(second, edges[i % EDGES]));
    }
    bool ok = made && run_again(&r);
    for (int64_t i = 0; i < PAIRS && ok; i++)
        if (get(z, i) != cut_to(result, maps[map].in_c(get(x, i), get(y, i)))) {
            wrong++;
            place = i;
        }
    check(ok && !wrong, "%s, path %d: %ld wrong; of %ld and %ld it is %ld", text, (int)path, (long)wrong,
          place < 0 ? 0L : (long)get(x, place), place < 0 ? 0L : (long)get(y, place),
          place < 0 ? 0L : (long)get(z, place));
    end(&r);
}

static void test_maps(void) {
    static const epi_dtype types[][3] = {
        {EPI_I64, EPI_I64, EPI_I64}, {EPI_I32, EPI_I64, EPI_I64}, {EPI_I32, EPI_I32, EPI_I32}};
    static const epi_path paths[] = {EPI_PATH_FUSED, EPI_PATH_UNFUSED, EPI_PATH_REFERENCE, EPI_PATH_NAIVE};
    for (int map = 0; map < (int)(sizeof maps / sizeof *maps); map++)
        for (int t = 0; t < 3; t++)
            for (int p = 0; p < 4; p++)
                test_map(map, types[t][0], types[t][1], types[t][2], paths[p],
                         (layout)((map + t + p) % LAYOUT_COUNT));
}

/* ---- along axes ---- */

enum { ROWS = EDGES, COLS = 21 };

static int64_t given(int64_t row, int64_t col) {
    return add(edges[(row + 3 * col) % EDGES], col);
}

typedef int64_t along(int64_t row, int64_t col);

static int64_t total(int64_t row, int64_t col) {
    int64_t x = 0;
    (void)col;
    for (int64_t u = 0; u < COLS; u++)
        x = add(x, given(row, u));
    return x;
}
static int64_t largest(int64_t row, int64_t col) {
    int64_t x = INT64_MIN;
    (void)col;
    for (int64_t u = 0; u < COLS; u++)
        x = given(row, u) > x ? given(row, u) : x;
    return x;
}
static int64_t smallest_below(int64_t row, int64_t col) {
    int64_t x = INT64_MAX;
    (void)row;
    for (int64_t t = 0; t < ROWS; t++)
        x = given(t, col) < x ? given(t, col) : x;
    return x;
}
static int64_t running(int64_t row, int64_t col) {
    int64_t x = 0;
    for (int64_t u = 0; u <= col; u++)
        x = add(x, given(row, u));
    return x;
}
static int64_t recurring(int64_t row, int64_t col) {
    int64_t h = given(row, COLS - 1);
    for (int64_t u = COLS - 2; u >= col; u--)
        h = add(times(3, h), given(row, u));
    return h;
}
static int64_t first_largest(int64_t row, int64_t col) {
    int64_t at = 0;
    (void)col;
    for (int64_t u = 1; u < COLS; u++)
        at = given(row, u) > given(row, at) ? u : at;
    return at;
}
static int64_t before(int64_t row, int64_t col) {
    return col < 2 ? 0 : times(given(row, col - 2), 3);
}
static int64_t turned(int64_t row, int64_t col) {
    return add(given(row, COLS - 1 - col), 1);
}
static int64_t lessened(int64_t row, int64_t col) {
    return add(given(row, col), -1);
}
static int64_t counted(int64_t row, int64_t col) {
    int64_t x = 0;
    (void)row;
    for (int64_t t = 0; t < ROWS; t++)
        for (int64_t u = 0; u < COLS; u++)
            x = u % 5 == col ? add(x, given(t, u)) : x;
    return x;
}
static int64_t replaced(int64_t row, int64_t col) {
    return col == row % 4 ? add(largest(row, 0), 1) : add(given(row, col), 1);
}
static int64_t ranked(int64_t row, int64_t col) { /* the place of the col-th largest */
    for (int64_t u = 0; u < COLS; u++) {
        int64_t ahead = 0;
        for (int64_t v = 0; v < COLS; v++)
            ahead += given(row, v) > given(row, u) || (given(row, v) == given(row, u) && v < u);
        if (ahead == col)
            return u;
    }
    return -1;
}

static const struct {
    const char *text; /* of x[T,U]; the result is y */
    along *in_c;
} lines[] = {
    {"f(x: i64[T,U]) -> y: i64[T] { y = sum(x, U) }", total},
    {"f(x: i64[T,U]) -> y: i64[T] { y = max(x, U) }", largest},
    {"f(x: i64[T,U]) -> y: i64[U] { y = min(x, T) }", smallest_below},
    {"f(x: i64[T,U]) -> y: i64[T,U] { y = cumsum(x, U) }", running},
    {"f(x: i64[T,U]) -> y: i64[T,U] { y = scan_back(3, x, U) }", recurring},
    {"f(x: i64[T,U]) -> y: i32[T] { y = argmax(x, U) }", first_largest},
    {"f(x: i64[T,U]) -> y: i64[T,U] { y = shift(3*x, U, 2) }", before},
    {"f(x: i64[T,U]) -> y: i64[T,U] { y = gather(x + 1, size(U) - 1 - index(U), U) }", turned},
    {"f(x: i64[T,U]) -> y: i64[K=5] { y = scatter(sum(x, T), index(U) % 5, K) }", counted},
    {"f(x: i64[T,U]) -> y: i64[T,U] { y = update(x + 1, max(x, U) + 1, index(T) % 4, U) }", replaced},
    {"f(x: i64[T,U]) -> y: i32[T,K=6] { y = topk(x, U, K) }", ranked},
    {"f(x: i64[T,U]) -> y: i64[T,U] { y = rename(cumsum(rename(x, U, V), V), V, U) }", running},
    {"f(x: i64[T,U]) -> y: i64[U,T] { y = cumsum(x, U) }", running},
    {"f(x: i64[T,U]) -> y: i64[T,U] { y = x + sign(0 - 1) }", lessened},
};

static void test_line(int line, epi_path path, layout how) {
    ran r;
    int64_t wrong = 0;
    bool made = begin(&r, lines[line].text, "T=17,U=21", path, how);
    for (int64_t i = 0; i < ROWS * COLS && made; i++)
        put(&r.p.t[0], i, given(i / COLS, i % COLS));
    bool ok = made && run_again(&r);
    const tensor *y = &r.p.t[1];
    int rank = ok ? y->shape.rank : 0;
    bool of_rows = strstr(lines[line].text, "[T] {") || rank == 2,
         turns = strstr(lines[line].text, "[U,T] {") != NULL;
    int64_t inner = rank == 2 ? y->shape.sizes[1] : 1;
    for (int64_t i = 0; ok && i < y->shape.count; i++) {
        int64_t row = of_rows ? i / inner : 0, col = rank == 2 ? i % inner : of_rows ? 0 : i;
        wrong += get(y, i) != lines[line].in_c(turns ? col : row, turns ? row : col);
    }
    check(ok && !wrong, "%s, path %d: %ld of %ld are wrong", lines[line].text, (int)path, (long)wrong,
          ok ? (long)y->shape.count : 0);
    end(&r);
}

static void test_lines(void) {
    static const epi_path paths[] = {EPI_PATH_FUSED, EPI_PATH_UNFUSED, EPI_PATH_REFERENCE};
    for (int line = 0; line < (int)(sizeof lines / sizeof *lines); line++)
        for (int p = 0; p < 3; p++)
            for (int how = 0; how < LAYOUT_COUNT; how++)
                test_line(line, paths[p], (layout)how);
}

/* ---- an input that f32 is assumed to hold ---- */

static void test_assumed(void) {
    const char *text = "f(x: i64[T]) -> y: i32[T,U] { y = x == rename(x, T, U) }";
    ran r;
    bool made = begin(&r, text, "T=5,U=5", EPI_PATH_FUSED, LAYOUT_PLAIN);
    for (int64_t i = 0; i < 5 && made; i++)
        put(&r.p.t[0], i, i < 4 ? i % 2 * ((1 << 24) - 1) : -7);
    check(made && run_again(&r) && get(&r.p.t[1], 2) == 1 && get(&r.p.t[1], 1) == 0, "%s runs below 2^24",
          text);
    if (made)
        put(&r.p.t[0], 3, 1 << 24);
    check(made && !problem_run(r.k, &r.p), "from there on, it is refused");
    end(&r);
}

/* ---- positions beyond 2^24 ---- */

enum { FAR = (1 << 24) + 64 };
_Static_assert(FAR == 16777280, "sizes of texts say so");

/* x[i] is 0 but at the place `at`, and 9 there. */
static void test_far(const char *text, int64_t at_place, const int64_t *want, int count) {
    ran r;
    bool ok = begin(&r, text, "T=16777280", EPI_PATH_FUSED, LAYOUT_PLAIN);
    if (ok) {
        memset(r.p.t[0].data, 0, (size_t)r.p.t[0].shape.count * epi_dtype_size(r.p.t[0].shape.type));
        put_at(&r.p.t[0], at_place, 9);
        for (int i = 1; i + 1 < r.p.count; i++)
            put(&r.p.t[i], 0, at_place);
        ok = run_again(&r);
    }
    const tensor *y = &r.p.t[ok ? r.p.count - 1 : 0];
    for (int i = 0; i < count; i++)
        check(ok && get(y, i) == want[i], "%s: element %d is %ld, not %ld", text, i, ok ? (long)get(y, i) : 0,
              (long)want[i]);
    end(&r);
}

static void test_large(void) {
    enum { AT = (1 << 24) + 1, END = FAR - 1 };
    static const struct {
        const char *result, *value;
        int64_t place, want[4];
        int count;
    } cases[] = {
        {"", "argmax(x, T)", AT, {AT}, 1},
        {"", "argmax(x, T)", END, {END}, 1},
        {"[K=2]", "topk(x, T, K)", AT, {AT, 0}, 2},
        {"[K=2]", "gather(x, topk(x, T, K), T)", AT, {9, 0}, 2},
        {"", "gather(x, i + 0, T)", AT, {9}, 1},
        {"", "sum(where(index(T) == i, x, 0), T)", AT, {9}, 1},
        {"[K=4]", "gather(x, index(K) + (i - 1), T)", AT, {0, 9, 0, 0}, 4},
        {"[K=2]", "scatter(1, x == 9, K)", AT, {FAR - 1, 1}, 2},
        {"", "sum(x == 0, T)", AT, {FAR - 1}, 1},
        {"", "max(where(x == 9, index(T) - 40*floor(index(T)/40), -1), T)", AT, {AT % 40}, 1},
        {"",
         "max(where(x == 9, index(T) % 40*1000 + index(T) // 4000000, -1), T)",
         AT,
         {AT % 40 * 1000 + 4},
         1},
        {"", "max(where(x == 9, cumsum(x == 0, T), 0), T)", AT, {AT}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        snprintf(text, sizeof text, "f(x: i8[T], i: i32) -> y: i32%s { y = %s }", cases[i].result,
                 cases[i].value);
        test_far(text, cases[i].place, cases[i].want, cases[i].count);
    }
}

/* An axis of more than 2^31 elements, of a tensor that has none. */
static void test_long_axis(void) {
    const char *text =
        "f(x: i8[T,Z], i: i64[K]) -> (y: i64[K], z: i64, u: i64[K]) { y = gather(index(T), i + 1, T) "
        "z = gather(3*index(T), size(T) - 1, T)  u = gather(index(T), i, T) }";
    static const int64_t i[] = {2147483647, 4000000000, 0}, y[] = {2147483648, 4000000001, 1};
    ran r;
    bool ok = begin(&r, text, "T=5000000000,Z=0,K=3", EPI_PATH_FUSED, LAYOUT_PLAIN);
    for (int k = 0; k < 3 && ok; k++)
        put(&r.p.t[1], k, i[k]);
    ok = ok && run_again(&r);
    for (int k = 0; k < 3; k++)
        check(ok && get(&r.p.t[2], k) == y[k] && get(&r.p.t[4], k) == i[k],
              "element %ld of an axis beyond 2^31", (long)i[k]);
    check(ok && get(&r.p.t[3], 0) == 14999999997, "its last element");
    end(&r);
    epi_module *m = parsed(ctx, "f(x: i8[T,Z]) -> y: i32[Z,K=2] { y = topk(x, T, K) }");
    const epi_dim_binding dims[] = {{"T", 5000000000}, {"Z", 0}};
    epi_kernel *none = NULL;
    epi_error err = {0};
    const epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 2);
    check(m && epi_kernel_compile(epi_module_program(m, 0), &options, &none, &err) != EPI_OK &&
              strstr(err.message, "positions are i32"),
          "topk along it is refused: %s", err.message);
    epi_kernel_free(none);
    epi_module_free(m);
}

/* Two parts that differ in nothing but that one computes in 64 bits are not made one. */
static void test_equal_parts(void) {
    epi_module *m = parsed(ctx, "f(x[T,D], w[F,D]) -> y[T,F] { y = softmax(softmax(x, T) @ w, F) }");
    epi_kernel *k = m ? kernel_of(epi_module_program(m, 0), "T=300,D=40,F=48", (way){0}) : NULL;
    epi_arena arena = {0};
    if (k && check(k->cut.part_count > 1, "there are parts")) {
        epi_part one = k->cut.parts[0], other = one;
        size_t bytes = (size_t)one.graph.node_count * sizeof *one.graph.nodes;
        int to[MAX_TENSORS];
        other.graph.nodes = epi_arena_alloc(&arena, bytes);
        memcpy(other.graph.nodes, one.graph.nodes, bytes);
        check(epi_parts_equal(&arena, &one, &other, k->spec.sizes, to), "a part is equal to its copy");
        other.graph.nodes[other.graph.node_count - 1].integer ^= true;
        check(!epi_parts_equal(&arena, &one, &other, k->spec.sizes, to), "but not if that has an integer");
        check(epi_part_hash(&arena, &one, k->spec.sizes) != epi_part_hash(&arena, &other, k->spec.sizes),
              "nor is its number the same");
    }
    epi_arena_free(&arena);
    epi_kernel_free(k);
    epi_module_free(m);
}

int main(int argc, char **argv) {
    epi_error err;
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "a context: %s", err.message))
        return finish();
    test_maps();
    test_lines();
    test_assumed();
    test_long_axis();
    test_equal_parts();
    if (argc > 1 && !strcmp(argv[1], "large"))
        test_large();
    epi_context_close(ctx);
    return finish();
}

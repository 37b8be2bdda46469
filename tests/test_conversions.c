/* test_conversions.c: every conversion against the definition of its type, which is written out in bytes.h.
 *
 * All 256 bytes back to numbers; forth all numbers of bf16, all numbers of the type, the middles between two of them
 * and their neighbours in f32, random numbers, infinities and NaN: by epi_convert, by the conversion of a program on
 * every path and as it is stored in an output of that type. Then what becomes of a program: nothing is moved through a
 * conversion, and its derivative goes straight through. */
#include "ran.h"

enum { MOST = 1 << 20 };

static epi_context *ctx;
static float numbers[MOST];
static uint8_t asked[MOST]; /* by number: its byte */
static int count;

static void add(float x) {
    if (count < MOST)
        numbers[count++] = x;
}

static void add_around(double x) {
    float f = (float)x;
    add(f);
    add(nextafterf(f, INFINITY));
    add(nextafterf(f, -INFINITY));
}

static void collect(epi_dtype type) {
    uint64_t s = 7;
    count = 0;
    for (uint32_t half = 0; half < 65536; half++) {
        add(from_bits(half << 16));
    }
    for (unsigned a = 0; a < 256; a++) {
        double v = byte_value(type, a), w = byte_value(type, (a + 1) & 255);
        add_around(v);
        add_around((v + w) / 2);
    }
    for (int i = 0; i < 20000; i++) {
        add(from_bits((uint32_t)random_bits(&s)));
        add((float)((random_unit(&s) - 0.5) * (i % 2 ? 600 : 4)));
    }
    for (int i = 0; i < count; i++)
        asked[i] = (uint8_t)value_byte(type, (double)numbers[i]);
}

static bool same_byte(epi_dtype type, unsigned got, unsigned want) {
    return got == want || (isnan(byte_value(type, got)) && isnan(byte_value(type, want)));
}

static bool same_number(float got, float want) {
    return got == want || (isnan(got) && isnan(want));
}

static void check_bytes(epi_dtype type) {
    static uint8_t bytes[MOST];
    uint8_t all[256];
    float back[256];
    int wrong = 0;
    for (int a = 0; a < 256; a++)
        all[a] = (uint8_t)a;
    epi_convert(back, EPI_F32, all, type, 256);
    for (unsigned a = 0; a < 256; a++) {
        double v = byte_value(type, a);
        wrong += isnan(v) ? !isnan(back[a]) : (double)back[a] != v || !signbit(back[a]) != !signbit(v);
    }
    check(wrong == 0, "%s: %d of 256 bytes come back as another number", epi_dtype_name(type), wrong);
    epi_convert(bytes, type, numbers, EPI_F32, count);
    wrong = 0;
    for (int i = 0; i < count; i++)
        wrong += bytes[i] != asked[i];
    check(wrong == 0, "%s: %d of %d numbers become another byte", epi_dtype_name(type), wrong, count);
}

/* The conversion as an operation, on a path: stored as f32 it is the number that its byte means. */
static void check_program(epi_dtype type, epi_path path, epi_dtype storage) {
    static float y[MOST];
    static uint8_t q[MOST];
    char text[200], dims[20];
    snprintf(text, sizeof text, "f(x: f32[N]) -> (y: f32[N], q[N]) { q = %s(x); y = q }",
             epi_dtype_name(type));
    snprintf(dims, sizeof dims, "N=%d", count);
    epi_kernel *k = text_kernel(ctx, text, dims, (way){.type = storage, .path = path, .narrow = true});
    epi_tensor_shape shape = {0};
    epi_kernel_tensor(k, 2, &shape);
    check(shape.type == type, "an output whose type is open has that of its conversion");
    if (run_on(k, (epi_tensor[]){{.data = numbers}, {.data = y}, {.data = q}}, 3)) {
        int wrong = 0;
        for (int i = 0; i < count; i++) {
            wrong += !same_number(y[i], (float)byte_value(type, asked[i]));
            wrong += !same_byte(type, q[i], asked[i]);
        }
        check(wrong == 0, "%s(x) on path %d: %d of %d are wrong", epi_dtype_name(type), (int)path, wrong,
              count);
    }
    epi_kernel_free(k);
}

/* A program of one number, and what it gives. */
static double value_of(const char *body, double x) {
    char text[300];
    float in = (float)x, out = NAN;
    snprintf(text, sizeof text, "f(x: f32[N]) -> y: f32[N] { y = %s }", body);
    epi_kernel *k = text_kernel(ctx, text, "N=1", (way){0});
    run_on(k, (epi_tensor[]){{.data = &in}, {.data = &out}}, 2);
    epi_kernel_free(k);
    return (double)out;
}

static void check_values(void) {
    static const struct {
        const char *body;
        double x, want;
    } values[] = {
        {"bf16(x)", 3.4e38, 0x1.fep127},
        {"bf16(x)", INFINITY, INFINITY},
        {"f16(x)", 1e6, 65504},
        {"f16(x)", -65520, -65504},
        {"f16(x)", -INFINITY, -INFINITY},
        {"e5m2(x)", 1e6, 57344},
        {"e5m2(x)", INFINITY, INFINITY},
        {"e4m3(x)", 465, 448},
        {"e4m3(x)", -INFINITY, -448},
        {"e4m3(x)", 0x1p-10, 0},       /* half of the smallest, to the even one */
        {"e4m3(x)", 0x1.8p-9, 0x1p-8}, /* between the smallest and twice that */
        {"i8(x)", 2.5, 2},
        {"i8(x)", 1e30, 127},
        {"u8(x)", -3, 0},
        {"i32(x)", 1e20, 0x1p31},
        {"i64(x)", 2.5, 2},
        {"f32(x)", 0.1, (double)0.1f},
        {"e4m3(x)*4 - e4m3(x*4)", 0.3, 0},
        {"e4m3(3*x) - 3*e4m3(x)", 0.3, 0.875 - 0.9375}, /* it does not come out of it */
        {"e4m3(x + 0.3) - e4m3(x) - 0.3125", 0.3, 0},
        {"e4m3(e4m3(x))", 0.3, 0.3125},
        {"e4m3(e5m2(x))", 0.3, 0.3125},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double y = value_of(values[i].body, values[i].x);
        check(y == values[i].want, "%s of %g is %.9g, not %.9g", values[i].body, values[i].x, y,
              values[i].want);
    }
    check(isnan(value_of("e4m3(x)", NAN)) && isnan(value_of("e5m2(x)", NAN)) && value_of("i8(x)", NAN) == 0,
          "NaN stays, and is 0 as an integer");
}

/* The derivative is that of what is converted, and gradcheck says so. */
static void check_gradient(const char *text) {
    double x[15], w[20];
    epi_error err = {0};
    epi_module *m = parsed(ctx, text);
    uint64_t s = 3;
    for (int i = 0; i < 15 + 20; i++)
        *(i < 15 ? &x[i] : &w[i - 15]) = random_unit(&s) - 0.5;
    bound b;
    bind_dims(&b, "T=3,D=5,F=4", EPI_F32, 0);
    const char *wrt[] = {"x", "w"};
    epi_tensor inputs[] = {{.data = x}, {.data = w}};
    epi_gradcheck found;
    check(epi_program_gradcheck(epi_module_program(m, 0), wrt, 2, &b.options, inputs, 1, &found, &err) ==
              EPI_OK,
          "%s", err.message);
    check(found.compared > 30 && found.edges == 0 && found.off <= 1, "%s: %d compared, %d at an edge, %g off",
          text, (int)found.compared, (int)found.edges, found.off);
    epi_module_free(m);
}

/* Two elements to a byte: all bytes to elements, of which the first is in the low half, and back. */
static void check_packed(const char *type, int least) {
    char text[200];
    uint8_t bytes[256], back[256];
    float y[512];
    epi_error err = {0};
    int wrong = 0;
    for (int a = 0; a < 256; a++)
        bytes[a] = (uint8_t)a;
    snprintf(text, sizeof text, "f(q: %s[N]) -> (y: f32[N], r: %s[N]) { y = q; r = q + 0.3 }", type, type);
    epi_module *m = parsed(ctx, text);
    epi_kernel *k = kernel_of(epi_module_program(m, 0), "N=512", (way){0});
    epi_tensor_shape shape = {0};
    epi_kernel_tensor(k, 0, &shape);
    check(shape.type == EPI_U8 && shape.count == 256, "%s is a tensor of bytes, half as long", type);
    if (run_on(k, (epi_tensor[]){{.data = bytes}, {.data = y}, {.data = back}}, 3)) {
        for (int a = 0; a < 512; a++) {
            int nibble = bytes[a / 2] >> 4 * (a % 2) & 15;
            wrong += y[a] != (float)(least < 0 && nibble > 7 ? nibble - 16 : nibble);
        }
        check(wrong == 0 && !memcmp(bytes, back, 256), "%s: %d of 512 elements are wrong, or the bytes", type,
              wrong);
    }
    epi_kernel_free(k);
    refused_as(compile_as(epi_module_program(m, 0), "N=511", (way){0}, &k, &err), EPI_ERR_DIMS, &err,
               "N/2 needs N to be divisible by 2");
    epi_module_free(m);
    snprintf(text, sizeof text, "f(q: %s) -> y { y = q }", type);
    check(epi_module_parse(ctx, text, strlen(text), "t", &m, &err) != EPI_OK &&
              strstr(err.message, "it needs an axis"),
          "a number: %s", err.message);
}

/* What is bad among the rows of a quantised tensor: zeros, NaN, infinities, the largest and the smallest numbers; and
 * scales of any size. Rows are quantised by their largest element, each by itself. */
static void check_rows(void) {
    static const char text[] =
        "f(x: f32[T,K], t: f32[T]) -> (q: e4m3[T,K], s: f32[T], i: i8[T,K], y: f32[T,K]) {\n"
        "s = max(max(abs(x), K)/448, 1e-12); q = e4m3(x/s); i = i8(x/t); y = t*q }";
    enum { T = 8, K = 3 };
    static const float x[T][K] = {
        {0, 0, -0.0f},          {1, 2, 448},         {NAN, 1, 2},   {INFINITY, 1, -1},
        {3e38f, -3e38f, 1e30f}, {1e-40f, 0, 1e-44f}, {1, -1, 0.5f}, {5, 5, 5}};
    static const float t[T] = {0, -1, 1, 1, INFINITY, 1e-45f, NAN, 0};
    static const int q[T][3] = {{0, 0, 0x80},    {0x38, 0x40, 0x7e}, {0x7f, 0x7f, 0x7f}, {0x7f, 0, 0x80},
                                {0x7e, 0xfe, 0}, {0, 0, 0},          {0x7e, 0xfe, 0x76}, {0x7e, 0x7e, 0x7e}};
    static const int i[T][3] = {{0, 0, 0}, {-1, -2, -128}, {0, 1, 2}, {127, 1, -1},
                                {0, 0, 0}, {127, 0, 7},    {0, 0, 0}, {127, 127, 127}};
    for (int path = EPI_PATH_FUSED; path <= EPI_PATH_UNFUSED; path++) {
        uint8_t bytes[T][K];
        int8_t whole[T][K];
        float s[T], y[T][K];
        epi_kernel *k = text_kernel(ctx, text, "T=8,K=3", (way){.path = (epi_path)path});
        const epi_tensor tensors[] = {{(void *)(uintptr_t)x, NULL},
                                      {(void *)(uintptr_t)t, NULL},
                                      {bytes, NULL},
                                      {s, NULL},
                                      {whole, NULL},
                                      {y, NULL}};
        bool runs = run_on(k, tensors, 6);
        for (int r = 0; r < T && runs; r++)
            for (int c = 0; c < K; c++) {
                check(same_byte(EPI_E4M3, bytes[r][c], (unsigned)q[r][c]),
                      "row %d of e4m3 has %02x at %d, not %02x", r, bytes[r][c], c, (unsigned)q[r][c]);
                check(whole[r][c] == i[r][c], "row %d of i8 has %d at %d, not %d", r, whole[r][c], c,
                      i[r][c]);
                float want = t[r] * (float)byte_value(EPI_E4M3, (unsigned)q[r][c]);
                check(same_number(y[r][c], want), "row %d scaled is %g at %d, not %g", r, y[r][c], c, want);
            }
        check(runs && s[0] == 1e-12f && isnan(s[2]) && isinf(s[3]) && s[7] == 5.0f / 448, "scales");
        epi_kernel_free(k);
    }
}

/* Groups of a product's columns, of two side by side and of a norm's rows, quantised where they are made, have the bits of
 * groups that were stored in f32: of zeros, NaN, infinities and numbers that overflow, too. */
static void check_groups(void) {
    enum { T = 6, D = 4, G = 3, K = 4, N = G * K };
    static const char *const bodies[] = {"x @ w", "relu(x @ w)*(x @ (2*w))",
                                         "v*rsqrt(mean(v*v, G, K) + 1e-5)"};
    static const float rows[T] = {1, 0, -2, NAN, 1e30f, INFINITY};
    static float x[T][D], w[N][D], v[T][N];
    for (int i = 0; i < T * N; i++) { /* a group of zeros, and one of large numbers */
        int group = i % N / K;
        v[i / N][i % N] = group == 1 ? 0 : rows[i / N] * (float)(i % 7 - 3) * (group == 2 ? 1e12f : 1);
        w[i % N][i / N % D] = group == 1 ? 0 : (float)(i % 5 - 2) * (group == 2 ? 1e12f : 1);
        x[i / N][i % D] = rows[i / N] * (float)(1 + i % D);
    }
    for (int n = 0; n < 3; n++) {
        char text[400];
        uint8_t q[2][T][N] = {0};
        float s[2][T][G] = {0};
        snprintf(text, sizeof text,
                 "f(x: f32[T,D], w: f32[G,K,D], v: f32[T,G,K]) -> (q: e4m3[T,G,K], s: f32[T,G]) {\n"
                 "    y = %s\n    s = max(max(abs(y), K)/448, 1e-12); q = e4m3(y/s) }",
                 bodies[n]);
        for (int path = EPI_PATH_FUSED; path <= EPI_PATH_UNFUSED; path++) {
            epi_kernel *k = text_kernel(ctx, text, "T=6,D=4,G=3,K=4", (way){.path = (epi_path)path});
            const epi_tensor tensors[] = {
                {.data = x}, {.data = w}, {.data = v}, {.data = q[path]}, {.data = s[path]}};
            run_on(k, tensors, 5);
            epi_kernel_free(k);
        }
        for (int i = 0; i < T * N; i++)
            check(same_byte(EPI_E4M3, q[0][i / N][i % N], q[1][i / N][i % N]),
                  "text %d, row %d, column %d: %02x fused, %02x by itself", n, i / N, i % N,
                  q[0][i / N][i % N], q[1][i / N][i % N]);
        for (int i = 0; i < T * G; i++) {
            float a = s[0][i / G][i % G], b = s[1][i / G][i % G];
            check(same_number(a, b), "text %d, row %d, group %d: scale %g fused, %g by itself", n, i / G,
                  i % G, a, b);
        }
        check(s[0][0][1] == 1e-12f && (q[0][0][K] & 0x7f) == 0, "text %d: a group of zeros", n);
    }
}

/* The backward sees the numbers that the forward made: what a product's result is converted to is saved, in its type. */
static void check_saved(void) {
    static const char text[] = "f(x[T,D], w[F,D], v[D,F]) -> y[T,D] { h = e4m3(silu(x @ w)); y = h @ v }";
    char printed[2000] = "";
    epi_module *m = parsed(ctx, text),
               *both = derived(epi_module_program(m, 0), "x w v", epi_program_grad_saved);
    epi_program_print(epi_module_program(both, 0), printed, sizeof printed);
    check(strstr(printed, "h: e4m3[") && strstr(printed, "h = e4m3(silu(saved))"), "it saves h: %s", printed);
    epi_module_free(both);
    epi_module_free(m);
}

/* GPUs divide by a scale by its inverse and one correction, where all that becomes of it is e4m3 or e5m2: that is on the same side of
 * every number between two of these, which has five digits, as the quotient is. Scales of some significands, and of those near few digits;
 * all dividends that make a quotient near such a number. */
static void check_scaled(void) {
    long other = 0;
    for (long s = 1 << 23; s < 1 << 24; s += (s + 64) % (1 << 20) < 128 ? 1 : 331)
        for (int half = 16; half < 32; half++)
            for (long near = s * half / 8 * 8 - 48; near <= s * half + 48; near += 8) {
                volatile float a = (float)near, b = (float)s, inverse = 1 / b, q = a * inverse;
                float quotient = a / b, p = fmaf(-fmaf(q, b, -a), inverse, q), m = (float)half;
                other += (quotient > m) - (quotient < m) != (p > m) - (p < m);
            }
    check(other == 0, "%ld quotients are on another side", other);
}

int main(void) {
    static const epi_dtype types[] = {EPI_E4M3, EPI_E5M2, EPI_I8, EPI_U8};
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    for (int i = 0; i < 4; i++) {
        collect(types[i]);
        check_bytes(types[i]);
        check_program(types[i], EPI_PATH_FUSED, EPI_F32);
        check_program(types[i], EPI_PATH_FUSED, EPI_BF16);
        check_program(types[i], EPI_PATH_UNFUSED, EPI_F32);
        check_program(types[i], EPI_PATH_REFERENCE, EPI_F32);
    }
    check_values();
    check_packed("i4", -8);
    check_packed("u4", 0);
    check_rows();
    check_groups();
    check_gradient("f(x[T,D], w[F,D]) -> y[T,F] { h = e4m3(2*x); y = silu(h @ i8(16*w))*bf16(x @ w) }");
    check_gradient("f(x[T,D], w[F,D]) -> y[T,F] { y = silu(dither(2*x, x*x) @ w) }");
    check_gradient("f(x[T,D], w[F,D]) -> y[D] { y = gather(silu(x), u8(3*abs(sum(w, F))), T)*sum(w, F) }");
    check_saved();
    check_scaled();
    epi_context_close(ctx);
    return finish();
}

/* test_dequant.c: a product that widens its weight as it loads it has the bits of one whose weight another kernel has
 * widened into memory: for every form, micro-kernel, few rows and many, groups of any size, and scales of any. And one
 * whose rows have few bits, too, is right, and has bits that rows, micro-kernels and layouts change nothing of. */
#include "cpu/micro/micro.h"
#include "ran.h"

static epi_context *ctx;

typedef struct form {
    const char *inputs, *weight;
    bool apart; /* another kernel has a part in it: of bytes, or of what only looks like such a weight */
} form;

static const form forms[] = {
    {"q: i8[F,G,K]", "w = q", false},
    {"q: i8[F,G,K], s: f32[F,G]", "w = s*q", false},
    {"q: i8[F,G,K], s: f16[F,G]", "w = s*q", false},
    {"q: u8[F,G,K], s: f32[F,G], z: u8[F,G]", "w = s*(q - z)", false},
    {"q: i4[F,G,K], s: f16[F,G]", "w = s*q", false},
    {"q: u4[F,G,K], s: f32[F,G], z: f32[F,G]", "w = s*(q - z)", false},
    {"q: u4[F,G,K], s: f16[F,G], m: f16[F,G]", "w = s*q + m", false},
    {"q: e4m3[F,G,K], s: bf16[F,G]", "w = s*q", false},
    {"b: u8[F,G,K/2], s: f32[F,G]", "w = s*join(b - 16*floor(b/16), floor(b/16), K)", false},
    {"b: i8[F,G,K/2], s: f32[F,G]", "w = s*join(b - 16*floor(b/16), floor(b/16), K)", true},
    {"b: e4m3[F,G,K/2], s: f32[F,G]", "w = s*join(b - 16*floor(b/16), floor(b/16), K)", true},
    {"q: i8[F,G,E], s: f32[F,G]", "a, b = pairs(q, E)\n w = s*rename(b, E/2, K)", true},
};
static const int64_t shapes[][4] = {
    {1, 300, 9, 64}, {1, 37, 3, 6},   {8, 64, 2, 32},  {9, 50, 4, 34},  {40, 270, 5, 128},
    {3, 17, 1, 2},   {5, 33, 37, 10}, {4, 70, 24, 32}, {1, 97, 3, 512},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static uint64_t seed;

/* Each case has numbers of its own, whatever ran before it. */
static void begin(const form *f, int shape) {
    seed = (uint64_t)(7 + 100 * (f - forms) + shape);
}

/* Sizes of T, F, G, K and, for what is two K long, E. */
static const char *dims_of(int64_t rows, const int64_t shape[4]) {
    static char dims[2][80];
    static int turn;
    char *out = dims[turn++ % 2];
    snprintf(out, sizeof *dims, "T=%ld,F=%ld,G=%ld,K=%ld,E=%ld", rows, shape[1], shape[2], shape[3],
             2 * shape[3]);
    return out;
}

/* Bytes of any kind; scales that are 0, negative, huge and tiny among others. */
static void fill(tensor *t, bool scale) {
    static const double odd[] = {0, -1, 3e4, -6e-8, 0.1, 1, -2.5, 1e-3};
    const epi_dtype type = t->shape.type;
    for (int64_t i = 0; i < t->shape.count; i++) {
        int64_t at = tensor_at(t, i);
        if (epi_dtype_size(type) == 1)
            t->data[at] = (unsigned char)(random_below(&seed, 256) & (type == EPI_E4M3 ? 0xbf : 0xff));
        else
            put_element(t->data, type, at,
                        scale ? odd[random_below(&seed, 8)] * random_unit(&seed) : random_unit(&seed));
    }
}

static void copy(tensor *to, const tensor *from) {
    for (int64_t i = 0; i < to->shape.count; i++)
        memcpy(to->data + tensor_at(to, i) * (int64_t)epi_dtype_size(to->shape.type),
               from->data + tensor_at(from, i) * (int64_t)epi_dtype_size(from->shape.type),
               epi_dtype_size(to->shape.type));
}

/* The product by itself, and of what another kernel made of the same bytes. */
static void check_form(const epi_module *m, const form *f, const int64_t shape[4], epi_dtype type,
                       const char *micro, layout how) {
    enum { ONCE, WIDE, PLAIN, PROGRAMS };
    const char *dims = dims_of(shape[0], shape);
    const way ways[] = {{.type = type, .fill = unfilled, .micro = micro, .layout = how},
                        {.type = type, .fill = unfilled},
                        {.type = type, .fill = unfilled, .micro = micro}};
    ran r[PROGRAMS];
    bool ok = true;
    for (int i = 0; i < PROGRAMS; i++)
        ok &= made(&r[i], epi_module_program(m, i), dims, ways[i]);
    if (!ok)
        return;
    problem *once = &r[ONCE].p, *wide = &r[WIDE].p, *plain = &r[PLAIN].p;
    epi_kernel_info info;
    epi_kernel_get_info(r[ONCE].k, &info);
    check(info.parts <= 1 || f->apart, "%s is one kernel", f->weight);
    for (int t = 0; t < once->inputs; t++)
        fill(&once->t[t], t > 1);
    for (int t = 1; t < once->inputs; t++)
        copy(&wide->t[t - 1], &once->t[t]);
    ok = run_again(&r[ONCE]) && run_again(&r[WIDE]);
    copy(&plain->t[0], &once->t[0]);
    copy(&plain->t[1], &wide->t[wide->count - 1]);
    ok = ok && run_again(&r[PLAIN]);
    const tensor *y = &once->t[once->count - 1], *z = &plain->t[2];
    int64_t wrong = 0;
    for (int64_t i = 0; i < y->shape.count; i++)
        wrong += apart(at(y, i), at(z, i)) > 0;
    check(ok && !wrong, "%s, %s, %s, %s, layout %d: %ld of %ld differ", f->inputs, f->weight, dims, micro,
          (int)how, (long)wrong, (long)y->shape.count);
    for (int i = 0; i < PROGRAMS; i++)
        discard(&r[i]);
}

static bool takes_f32(const epi_micro *micro) {
    return micro->type == EPI_F32 && micro->usable();
}

static void check_forms(const form *f) {
    char text[1000];
    snprintf(text, sizeof text,
             "once(x[T,G,K], %s) -> y: f32[T,F] { %s\n y = x @ w }\n"
             "wide(%s) -> w: f32[F,G,K] { %s }\n"
             "plain(x[T,G,K], w: f32[F,G,K]) -> y: f32[T,F] { y = x @ w }\n",
             f->inputs, f->weight, f->inputs, f->weight);
    epi_module *m = parsed(ctx, text);
    for (int u = 0; epi_micro_at(u); u++)
        for (int i = 0; i < SHAPES && takes_f32(epi_micro_at(u)); i++)
            if (wanted("%s, %s %s %s", f->inputs, f->weight, dims_of(shapes[i][0], shapes[i]),
                       epi_micro_at(u)->name)) {
                begin(f, i);
                check_form(m, f, shapes[i], i % 2 && !f->apart ? EPI_BF16 : EPI_F32, epi_micro_at(u)->name,
                           (layout)((i + u) % LAYOUT_COUNT));
            }
    epi_module_free(m);
}

/* ---- rows of 8 bits, too ---- */

/* Element i of a tensor's packed halves or bytes, as f64. */
static double element_of(const tensor *t, int64_t i, const char *inputs) {
    if (inputs[4] == '8')
        return at(t, i);
    const int byte = t->data[tensor_at(t, i / 2)], half = i % 2 ? byte >> 4 : byte & 15;
    return inputs[3] == 'i' && half > 7 ? half - 16 : half;
}

/* By how many times what f32 may lose of the sum is a result off? Some columns of each row tell. */
static double worst_of(const problem *p, const form *f, const int64_t shape[4]) {
    const int64_t rows = shape[0], cols = shape[1], groups = shape[2], depth = shape[3];
    const tensor *x = &p->t[0], *t = &p->t[1], *q = &p->t[2], *y = &p->t[p->count - 1];
    const tensor *s = p->inputs > 3 ? &p->t[3] : NULL, *z = p->inputs > 4 ? &p->t[4] : NULL;
    const bool added = strchr(f->weight, '+') != NULL;
    double worst = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = r % 7; c < cols; c += 7) {
            double sum = 0, size = 0;
            for (int64_t g = 0; g < groups; g++) {
                const double scale = s ? at(s, c * groups + g) : 1, part = z ? at(z, c * groups + g) : 0,
                             of_row = at(t, r * groups + g);
                for (int64_t k = g * depth; k < (g + 1) * depth; k++) {
                    const double a = at(x, r * groups * depth + k) * of_row,
                                 e = element_of(q, c * groups * depth + k, f->inputs);
                    sum += a * (added ? e * scale + part : (e - part) * scale);
                    size += fabs(a) * (fabs(e * scale) + fabs(added ? part : part * scale));
                }
            }
            const double off = fabs(sum - at(y, r * cols + c));
            worst = fmax(worst, off / (ldexp(size, -24) * (double)(groups * depth + 4) + 1e-37));
        }
    return worst;
}

static bool same_row(const tensor *one, const tensor *all, int64_t row) {
    bool same = true;
    for (int64_t i = 0; i < one->shape.count; i++)
        same &= !memcmp(one->data + 4 * tensor_at(one, i),
                        all->data + 4 * tensor_at(all, row * one->shape.count + i), 4);
    return same;
}

/* Right; and a row has the same bits alone and among others, and with every micro-kernel that takes integers, however
 * its tensors lie in memory: the first one's sum of bits is *first. */
static void check_integer_form(const epi_module *m, const form *f, const int64_t shape[4],
                               const epi_micro *micro, layout how, uint64_t *first) {
    const int64_t row = shape[0] - 1;
    const way by = {.fill = unfilled, .micro = micro->name, .layout = how},
              plainly = {.fill = unfilled, .micro = micro->name};
    ran all, one = {0};
    if (!made(&all, epi_module_program(m, 0), dims_of(shape[0], shape), by) ||
        !made(&one, epi_module_program(m, 0), dims_of(1, shape), plainly))
        return;
    problem *p = &all.p, *alone = &one.p;
    for (int t = 0; t < p->inputs; t++)
        fill(&p->t[t], t == 1 || t > 2);
    for (int t = 2; t < p->inputs; t++)
        copy(&alone->t[t], &p->t[t]);
    for (int t = 0; t < 2; t++)
        for (int64_t i = 0, n = alone->t[t].shape.count; i < n; i++)
            put_at(&alone->t[t], i, at(&p->t[t], row * n + i));
    bool ok = run_again(&all) && run_again(&one);
    const double worst = worst_of(p, f, shape);
    const tensor *y = &p->t[p->count - 1], *z = &alone->t[alone->count - 1];
    check(ok && worst <= 1, "%s, %s, %ld rows, %s, layout %d: %g", f->inputs, f->weight, (long)shape[0],
          micro->name, (int)how, worst);
    check(same_row(z, y, row), "%s, %s: row %ld alone, %s, layout %d", f->inputs, f->weight, (long)row,
          micro->name, (int)how);
    uint64_t bits = 1;
    for (int64_t i = 0; i < y->shape.count; i++) {
        uint32_t x;
        memcpy(&x, y->data + 4 * tensor_at(y, i), 4);
        bits = bits * 31 + x;
    }
    if (micro->direct.integers && micro->direct.has_integers()) {
        check(!*first || *first == bits, "%s, %s: other bits with %s", f->inputs, f->weight, micro->name);
        *first = bits;
    }
    discard(&all);
    discard(&one);
}

static void check_integers(const form *f) {
    char text[1000];
    if (f->apart || !(f->inputs[0] == 'q' && (f->inputs[3] == 'i' || f->inputs[3] == 'u')))
        return;
    snprintf(text, sizeof text, "f(x: i8[T,G,K], t: f32[T,G], %s) -> y: f32[T,F] { %s\n y = (t*x) @ w }\n",
             f->inputs, f->weight);
    epi_module *m = parsed(ctx, text);
    for (int i = 0; i < SHAPES; i++) {
        uint64_t first = 0;
        if (shapes[i][3] % 32 ||
            !wanted("%s, %s %s, integers", f->inputs, f->weight, dims_of(shapes[i][0], shapes[i])))
            continue;
        for (int u = 0; epi_micro_at(u); u++) {
            begin(f, i);
            if (takes_f32(epi_micro_at(u)))
                check_integer_form(m, f, shapes[i], epi_micro_at(u), (layout)((i + u) % LAYOUT_COUNT),
                                   &first);
        }
    }
    epi_module_free(m);
}

/* Two elements share a byte, so there is no odd number of them. */
static void check_odd(void) {
    no_case();
    static const char text[] = "f(x[T,G,K], q: i4[F,G,K], s: f32[F,G]) -> y[T,F] { y = x @ (s*q) }";
    epi_module *m = parsed(ctx, text);
    epi_kernel *k;
    epi_error err;
    check(compile_as(epi_module_program(m, 0), "T=1,G=2,K=33,F=4", (way){0}, &k, &err) != EPI_OK,
          "an odd group of i4 is refused");
    epi_kernel_free(k);
    epi_module_free(m);
}

/* How many parts a program has in bf16 on Hopper; 0: it does not compile. */
static int gpu_parts(const char *text, const char *dims) {
    epi_kernel *k = text_kernel(ctx, text, dims, (way){.type = EPI_BF16, .device = -90});
    epi_kernel_info info = {0};
    epi_kernel_get_info(k, &info);
    epi_kernel_free(k);
    return info.parts;
}

/* The algebra writes the arithmetic of two elements to a byte in its own way, and it is known all the same: on a GPU a
 * norm between two products of few rows is their epilogues', in 8 bits and in 4. */
static void check_rewritten(void) {
    for (int bits = 8; bits >= 4; bits -= 4) {
        char text[400];
        snprintf(text, sizeof text,
                 "f(x[T,F], p: i%d[G,K,F], t: f32[G,K], o[T,G,K], q: i%d[F,G,K], s: f32[F,G]) -> y[T,F] {\n"
                 "    h = o + x @ (t*p)\n    y = (h*rsqrt(mean(h*h, G, K) + 0.001)) @ (s*q)\n}\n",
                 bits, bits);
        int parts = gpu_parts(text, "T=1,G=4,K=128,F=1024");
        check(parts == 2, "%d bits: %d parts", bits, parts);
    }
}

/* A result is loaded as it is stored: elements that were converted to i8, of a result of f32, are no bytes in memory. */
static void check_result(void) {
    static const char text[] =
        "f(x[T,K], v[F,K], s: f32[F]) -> (y[T,F], q: f32[F,K]) {\n    q = i8(9*v)\n    y = x @ (s*q)\n}\n"
        "plain(x[T,K], w[F,K]) -> y[T,F] { y = x @ w }\n";
    enum { ROWS = 3, COLS = 40, DEPTH = 64 };
    epi_module *m = parsed(ctx, text);
    ran of_result, plain = {0};
    if (!made(&of_result, epi_module_program(m, 0), "T=3,F=40,K=64", (way){0}) ||
        !made(&plain, epi_module_program(m, 1), "T=3,F=40,K=64", (way){0}))
        return;
    tensor *t = of_result.p.t;
    for (int i = 0; i < 3; i++) /* of which sums are exact in any order */
        for (int64_t e = 0; e < t[i].shape.count; e++)
            put_at(&t[i], e, i == 2 ? ldexp(1, (int)(e % 5)) : (double)random_below(&seed, 9) - 4);
    bool ok = run_again(&of_result);
    copy(&plain.p.t[0], &t[0]);
    for (int64_t i = 0; i < COLS * DEPTH; i++)
        put_at(&plain.p.t[1], i, (double)((float)at(&t[2], i / DEPTH) * (float)at(&t[4], i)));
    ok = ok && run_again(&plain);
    check(ok && same_bits(&t[3], &plain.p.t[2]), "a result of elements of i8");
    discard(&of_result);
    discard(&plain);
    epi_module_free(m);
}

/* Groups of 24 are none that a GPU's mainloop takes: their weights, of two products that have one kernel, are widened ahead, and those of
 * the other products are not. */
static void check_refused(void) {
    static const char text[] =
        "f(x[T,G,K], q: i8[F,G,K], s: f32[F,G], u[T,N,M], p: i8[F,N,M], r: f32[F,N],\n"
        "    a[T,G,K], b: i8[F,G,K], c: f32[F,G], d[T,N,M], e: i8[F,N,M], g: f32[F,N]) -> (y[T,F], z[T,F], "
        "v[T,F], w[T,F]) {\n"
        "    y = x @ (s*q)\n    z = u @ (r*p)\n    v = a @ (c*b)\n    w = d @ (g*e)\n}\n";
    int parts = gpu_parts(text, "T=4,G=8,K=128,F=512,N=16,M=24");
    check(parts == 5, "two weights of four are widened, by one kernel: %d parts", parts);
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check_forms(&forms[i]);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check_integers(&forms[i]);
    check_odd();
    check_result();
    check_rewritten();
    check_refused();
    epi_context_close(ctx);
    return finish();
}

/* test_dequant.c: a product that widens its weight as it loads it has the bits of one whose weight another kernel has
 * widened into memory: for every form, micro-kernel, few rows and many, groups of any size, and scales of any. And one
 * whose rows have few bits, too, is right, and has bits that rows, micro-kernels and layouts change nothing of. */
#include "cpu/micro.h"
#include "harness.h"

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

static uint64_t seed = 7;

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

static epi_kernel *compile(const epi_program *p, const int64_t shape[4], epi_dtype type, const char *micro) {
    static const char *const names[] = {"T", "F", "G", "K", "E"};
    epi_dim_binding dims[5];
    int count = 0;
    for (int d = 0; d < epi_program_dim_count(p); d++)
        for (int i = 0; i < 5; i++)
            if (!strcmp(names[i], epi_program_dim(p, d)))
                dims[count++] = (epi_dim_binding){names[i], i < 4 ? shape[i] : 2 * shape[3]};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = count, .type = type, .threads = 2, .micro = micro);
    epi_kernel *k = NULL;
    epi_error err;
    check(epi_kernel_compile(p, &o, &k, &err) == EPI_OK, "%s", err.message);
    return k;
}

/* The product by itself, and of what another kernel made of the same bytes. */
static void check_form(const epi_module *m, const form *f, const int64_t shape[4], epi_dtype type,
                       const char *micro, layout how) {
    enum { ONCE, WIDE, PLAIN, PROGRAMS };
    problem p[PROGRAMS];
    epi_kernel *k[PROGRAMS];
    bool ok = true;
    for (int i = 0; i < PROGRAMS; i++) {
        k[i] = compile(epi_module_program(m, i), shape, type, i == WIDE ? NULL : micro);
        ok &= k[i] && problem_make(&p[i], epi_module_program(m, i), k[i], i == ONCE ? how : LAYOUT_PLAIN);
    }
    if (!check(ok, "%s", f->weight))
        return;
    epi_kernel_info info;
    epi_kernel_get_info(k[ONCE], &info);
    check(info.parts <= 1 || f->apart, "%s is one kernel", f->weight);
    for (int t = 0; t < p[ONCE].inputs; t++)
        fill(&p[ONCE].t[t], t > 1);
    for (int t = 1; t < p[ONCE].inputs; t++)
        copy(&p[WIDE].t[t - 1], &p[ONCE].t[t]);
    ok = problem_run(k[ONCE], &p[ONCE]) && problem_run(k[WIDE], &p[WIDE]);
    copy(&p[PLAIN].t[0], &p[ONCE].t[0]);
    copy(&p[PLAIN].t[1], &p[WIDE].t[p[WIDE].count - 1]);
    ok &= problem_run(k[PLAIN], &p[PLAIN]);
    const tensor *y = &p[ONCE].t[p[ONCE].count - 1], *z = &p[PLAIN].t[2];
    int64_t wrong = 0;
    for (int64_t i = 0; i < y->shape.count; i++) {
        double a = get_element(y->data, EPI_F32, tensor_at(y, i)), b = get_element(z->data, EPI_F32, i);
        wrong += !(a == b || (isnan(a) && isnan(b)));
    }
    check(ok && !wrong, "%s, %s, %ld x %ld x %ld x %ld, %s, layout %d: %ld of %ld differ", f->inputs,
          f->weight, (long)shape[0], (long)shape[1], (long)shape[2], (long)shape[3], micro, (int)how,
          (long)wrong, (long)y->shape.count);
    for (int i = 0; i < PROGRAMS; i++) {
        problem_free(&p[i]);
        epi_kernel_free(k[i]);
    }
}

static void check_forms(const form *f) {
    char text[1000];
    epi_module *m;
    epi_error err;
    snprintf(text, sizeof text,
             "once(x[T,G,K], %s) -> y: f32[T,F] { %s\n y = x @ w }\n"
             "wide(%s) -> w: f32[F,G,K] { %s }\n"
             "plain(x[T,G,K], w: f32[F,G,K]) -> y: f32[T,F] { y = x @ w }\n",
             f->inputs, f->weight, f->inputs, f->weight);
    if (!check(epi_module_parse(ctx, text, strlen(text), "t", &m, &err) == EPI_OK, "%s", err.message))
        return;
    for (int u = 0; epi_micro_at(u); u++)
        for (int i = 0; i < SHAPES && epi_micro_at(u)->type == EPI_F32 && epi_micro_at(u)->usable(); i++)
            check_form(m, f, shapes[i], i % 2 && !f->apart ? EPI_BF16 : EPI_F32, epi_micro_at(u)->name,
                       (layout)((i + u) % 3));
    epi_module_free(m);
}

/* ---- rows of 8 bits, too ---- */

/* Element i of a tensor's packed halves or bytes, as f64. */
static double element_of(const tensor *t, int64_t i, const char *inputs) {
    if (inputs[4] == '8')
        return get_element(t->data, t->shape.type, tensor_at(t, i));
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
            for (int64_t k = 0; k < groups * depth; k++) {
                const int64_t g = k / depth;
                const double scale =
                                 s ? get_element(s->data, s->shape.type, tensor_at(s, c * groups + g)) : 1,
                             part = z ? get_element(z->data, z->shape.type, tensor_at(z, c * groups + g)) : 0,
                             a = get_element(x->data, EPI_I8, tensor_at(x, r * groups * depth + k)) *
                                 get_element(t->data, EPI_F32, tensor_at(t, r * groups + g)),
                             e = element_of(q, c * groups * depth + k, f->inputs);
                sum += a * (added ? e * scale + part : (e - part) * scale);
                size += fabs(a) * (fabs(e * scale) + fabs(added ? part : part * scale));
            }
            const double off = fabs(sum - get_element(y->data, EPI_F32, tensor_at(y, r * cols + c)));
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
    const int64_t single[] = {1, shape[1], shape[2], shape[3]}, row = shape[0] - 1;
    const epi_program *program = epi_module_program(m, 0);
    epi_kernel *all = compile(program, shape, EPI_F32, micro->name),
               *one = compile(program, single, EPI_F32, micro->name);
    problem p, alone;
    if (!check(all && one && problem_make(&p, program, all, how) &&
                   problem_make(&alone, program, one, LAYOUT_PLAIN),
               "%s", f->weight))
        return;
    for (int t = 0; t < p.inputs; t++)
        fill(&p.t[t], t == 1 || t > 2);
    for (int t = 2; t < p.inputs; t++)
        copy(&alone.t[t], &p.t[t]);
    for (int t = 0; t < 2; t++)
        for (int64_t i = 0, n = alone.t[t].shape.count; i < n; i++)
            put_element(alone.t[t].data, alone.t[t].shape.type, i,
                        get_element(p.t[t].data, p.t[t].shape.type, tensor_at(&p.t[t], row * n + i)));
    bool ok = problem_run(all, &p) && problem_run(one, &alone);
    const double worst = worst_of(&p, f, shape);
    const tensor *y = &p.t[p.count - 1], *z = &alone.t[alone.count - 1];
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
    problem_free(&p);
    problem_free(&alone);
    epi_kernel_free(all);
    epi_kernel_free(one);
}

static void check_integers(const form *f) {
    char text[1000];
    epi_module *m;
    epi_error err;
    if (f->apart || !(f->inputs[0] == 'q' && (f->inputs[3] == 'i' || f->inputs[3] == 'u')))
        return;
    snprintf(text, sizeof text, "f(x: i8[T,G,K], t: f32[T,G], %s) -> y: f32[T,F] { %s\n y = (t*x) @ w }\n",
             f->inputs, f->weight);
    if (!check(epi_module_parse(ctx, text, strlen(text), "t", &m, &err) == EPI_OK, "%s", err.message))
        return;
    for (int i = 0; i < SHAPES; i++) {
        uint64_t first = 0, begin = seed;
        for (int u = 0; epi_micro_at(u); u++, seed = begin)
            if (epi_micro_at(u)->type == EPI_F32 && epi_micro_at(u)->usable() && shapes[i][3] % 32 == 0)
                check_integer_form(m, f, shapes[i], epi_micro_at(u), (layout)((i + u) % 3), &first);
    }
    epi_module_free(m);
}

/* Two elements share a byte, so there is no odd number of them. */
static void check_odd(void) {
    static const char text[] = "f(x[T,G,K], q: i4[F,G,K], s: f32[F,G]) -> y[T,F] { y = x @ (s*q) }";
    epi_dim_binding dims[] = {{"T", 1}, {"G", 2}, {"K", 33}, {"F", 4}};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 4, .type = EPI_F32);
    epi_module *m;
    epi_kernel *k = NULL;
    epi_error err;
    if (!check(epi_module_parse(ctx, text, strlen(text), "t", &m, &err) == EPI_OK, "%s", err.message))
        return;
    check(epi_kernel_compile(epi_module_program(m, 0), &o, &k, &err) != EPI_OK,
          "an odd group of i4 is refused");
    epi_kernel_free(k);
    epi_module_free(m);
}

/* How many parts a program has in bf16 on Hopper; 0: it does not compile. */
static int gpu_parts(const char *text, const char *dims) {
    bound b;
    epi_module *m;
    epi_kernel *k = NULL;
    epi_error err;
    epi_kernel_info info = {0};
    bind_dims(&b, dims, EPI_BF16, -90);
    if (!check(epi_module_parse(ctx, text, strlen(text), "t", &m, &err) == EPI_OK, "%s", err.message))
        return 0;
    if (check(epi_kernel_compile(epi_module_program(m, 0), &b.options, &k, &err) == EPI_OK, "%s",
              err.message))
        epi_kernel_get_info(k, &info);
    epi_kernel_free(k);
    epi_module_free(m);
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
    static const int64_t shape[] = {3, 40, 1, 64};
    problem p[2];
    epi_kernel *k[2];
    epi_module *m;
    epi_error err;
    bool ok = epi_module_parse(ctx, text, strlen(text), "t", &m, &err) == EPI_OK;
    for (int i = 0; i < 2 && ok; i++) {
        k[i] = compile(epi_module_program(m, i), shape, EPI_F32, NULL);
        ok = k[i] && problem_make(&p[i], epi_module_program(m, i), k[i], LAYOUT_PLAIN);
    }
    if (!check(ok, "a result of elements of i8"))
        return;
    for (int t = 0; t < 3; t++) /* of which sums are exact in any order */
        for (int64_t i = 0; i < p[0].t[t].shape.count; i++)
            put_element(p[0].t[t].data, EPI_F32, i,
                        t == 2 ? ldexp(1, (int)(i % 5)) : (double)random_below(&seed, 9) - 4);
    ok = problem_run(k[0], &p[0]);
    copy(&p[1].t[0], &p[0].t[0]);
    for (int64_t i = 0; i < shape[1] * shape[3]; i++) {
        const float scale = (float)get_element(p[0].t[2].data, EPI_F32, i / shape[3]),
                    element = (float)get_element(p[0].t[4].data, EPI_F32, i);
        put_element(p[1].t[1].data, EPI_F32, i, (double)(scale * element));
    }
    ok &= problem_run(k[1], &p[1]);
    const size_t bytes = (size_t)(shape[0] * shape[1]) * sizeof(float);
    check(ok && !memcmp(p[0].t[3].data, p[1].t[2].data, bytes), "a result of elements of i8");
    for (int i = 0; i < 2; i++) {
        problem_free(&p[i]);
        epi_kernel_free(k[i]);
    }
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

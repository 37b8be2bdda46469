/* test_attention.c: attention as one kernel. Every program of attention.epi and its derived backward, in
 * every storage type, is held against f64 by the error rule and made of the parts that it should be; all
 * spellings of a softmax become the same kernel; bits depend neither on threads, nor on the batch, nor on how
 * many rows there are; rows that see nothing, infinities and NaN; tiles that a mask hides are not read.
 *
 *     attention [programs] */
#include "ran.h"

static epi_context *ctx;

/* ---- a program, compiled and run ---- */

/* More inputs that mean something have values that do, than problem_fill has them for all tests. */
static double meant_here(const char *name, int64_t e, double otherwise) {
    if (!strcmp(name, "rate"))
        return 0.125;
    if (!strcmp(name, "slope"))
        return 0.0625 * (double)(e + 1);
    if (!strcmp(name, "length"))
        return (double)(e == 0 ? 0 : 17 * e);
    if (!strcmp(name, "saved_2")) /* sums of exponentials, of which the largest is 1 */
        return 1 + fabs(otherwise);
    return otherwise;
}

static void fill_meant(problem *p, uint64_t seed) {
    problem_fill(p, seed);
    for (int i = 0; i < p->inputs; i++) {
        tensor *t = &p->t[i];
        const char *name = tensor_name(p->program, i);
        for (int64_t e = 0; e < t->shape.count; e++) {
            double x = at(t, e), y = meant_here(name, e, x);
            if (y != x)
                put_at(t, e, y);
        }
    }
}

/* What the next fillers take numbers from. */
static const problem *from;

/* The values that the other one's inputs have after rounding. */
static void fill_same(problem *p, uint64_t seed) {
    (void)seed;
    for (int i = 0; i < p->inputs; i++)
        for (int64_t e = 0; e < p->t[i].shape.count; e++)
            put_at(&p->t[i], e, at(&from->t[i], e));
}

/* Runs a program in f32, or another type, by two threads. */
static way filled(epi_dtype type, void (*fill)(problem *p, uint64_t seed), uint64_t seed) {
    return (way){.type = type, .fill = fill, .seed = seed};
}

/* Parts of the kernel that are attention. */
static int attention_parts(const epi_kernel *kernel) {
    epi_kernel_info info;
    int count = 0;
    epi_kernel_get_info(kernel, &info);
    for (int i = 0; i < info.parts; i++) {
        epi_part_info part;
        if (epi_kernel_part(kernel, i, &part) == EPI_OK)
            count += !strcmp(part.info.mainloop, "attention");
    }
    return count;
}

/* Whatever is in the workspace and in the outputs before a run, the bits are the same. */
static void hold_filled(const ran *r) {
    ran again = {.program = r->program};
    if (check(problem_make(&again.p, r->program, r->k, LAYOUT_PLAIN), "memory")) {
        from = &r->p;
        fill_same(&again.p, 0);
        for (int i = again.p.inputs; i < again.p.count; i++)
            memset(again.p.t[i].data, HUGE_FILL,
                   (size_t)again.p.t[i].span * epi_dtype_size(again.p.t[i].shape.type));
        workspace_fill = HUGE_FILL;
        check(problem_run(r->k, &again.p) && same_outputs(r, &again),
              "%s: no bit depends on what memory held before", epi_program_name(r->program));
        workspace_fill = POISON;
    }
    problem_free(&again.p);
}

enum { ANY_PARTS = -1 };

/* Runs it and holds it against f64; of its parts so many are attention, or two where it is not worth its
 * while to have one. */
static void hold_parts(const epi_program *program, const char *dims, epi_dtype type, int parts) {
    const way how = filled(type, fill_meant, 5);
    ran got, ref = {0}, naive = {0};
    char what[200];
    if (run_as(&got, program, dims, how)) {
        int found = attention_parts(got.k);
        check(found == parts || (parts == 1 && found == 2) || parts == ANY_PARTS,
              "%s %s %s has %d attention parts, not %d", epi_program_name(program), dims,
              epi_dtype_name(type), found, parts);
        snprintf(what, sizeof what, "%s %s %s", epi_program_name(program), dims, epi_dtype_name(type));
        if (yardsticks(&ref, &naive, program, dims, how))
            hold_against(&got, &ref, &naive, got.k->part_count > 1 ? type : EPI_F32, what);
        hold_filled(&got);
    }
    discard(&got);
    discard(&ref);
    discard(&naive);
}

/* ---- the programs, and what is derived from them ---- */

/* Forward and backward, for the gradients of all inputs that are no integers. */
static epi_module *halves_of(const epi_program *program) {
    return derived(program, NULL, epi_program_grad_saved);
}

static const struct {
    const char *name, *dims, *longer; /* sizes; and some of more than one tile */
    int backward;                     /* parts of the backward that are attention; of the forward it is one */
} table[] = {
    {"full_attention", "B=2,H=2,S=33,R=29,E=8,F=12", "B=1,H=2,S=200,R=300,E=16,F=8", 1},
    {"causal_attention", "B=2,H=2,S=33,R=33,E=8,F=12", "B=1,H=2,S=300,R=300,E=16,F=8", 1},
    {"window_attention", "B=2,S=40,R=40,H=2,E=8", "B=1,S=300,R=300,H=2,E=16", 1},
    {"alibi_attention", "B=2,S=33,R=33,H=2,E=9", "B=1,S=210,R=210,H=3,E=16", 1},
    {"softcap_attention", "B=2,S=33,R=33,H=2,E=8", "B=1,S=210,R=210,H=2,E=16", 1},
    {"bias_attention", "B=2,H=2,S=33,R=29,E=8", "B=1,H=2,S=150,R=260,E=16", 0},
    {"document_attention", "B=2,S=50,R=50,H=2,E=8", "B=1,S=260,R=260,H=2,E=16", 1},
    {"prefix_attention", "B=2,S=33,R=33,H=2,E=8", "B=2,S=210,R=210,H=1,E=16", 1},
    {"sink_attention", "B=2,S=33,R=33,H=2,E=8", "B=1,S=210,R=210,H=2,E=16", 1},
    {"grouped_attention", "B=2,S=33,R=33,G=2,H=3,E=8", "B=1,S=150,R=150,G=2,H=2,E=16", 1},
    {"latent_attention", "B=2,S=33,R=33,H=2,E=8,P=4,F=6", "B=1,S=150,R=150,H=2,E=24,P=8,F=16", 2},
    {"dropout_attention", "B=2,S=33,R=36,H=2,E=8", "B=1,S=210,R=260,H=2,E=16", 1},
    {"decode_attention", "B=3,R=40,G=2,H=3,E=8", "B=3,R=300,G=2,H=2,E=16", 1},
    {"paged_attention", "B=3,P=5,C=8,N=4,G=2,H=2,E=8", "B=2,P=9,C=32,N=6,G=1,H=2,E=16", 1},
};

static const epi_dtype storage[] = {EPI_F32, EPI_BF16, EPI_F16};

/* Some: each program in one type of storage, not in all. */
static void test_programs(const epi_module *module, bool some) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const epi_program *program = epi_module_find(module, table[i].name);
        epi_module *saved = NULL;
        if (!check(program != NULL, "%s is there", table[i].name))
            continue;
        for (size_t t = 0; t <= sizeof storage / sizeof *storage; t++) {
            bool longer = t == sizeof storage / sizeof *storage;
            if ((some && !longer && t != i % (sizeof storage / sizeof *storage)) ||
                !wanted("%s %s", table[i].name, longer ? "backward, longer" : epi_dtype_name(storage[t])) ||
                (!saved && !(saved = halves_of(program))))
                continue;
            if (longer) {
                hold_parts(epi_module_program(saved, 1), table[i].longer, EPI_F32, table[i].backward);
                continue;
            }
            hold_parts(program, table[i].dims, storage[t], 1);
            hold_parts(program, table[i].longer, storage[t], 1);
            hold_parts(epi_module_program(saved, 0), table[i].dims, storage[t], 1);
            hold_parts(epi_module_program(saved, 1), table[i].dims, storage[t], table[i].backward);
        }
        epi_module_free(saved);
    }
}

/* Forward and backward in one program, and gradients alone: the forward is made once, for its statistics too.
 */
static void test_both(void) {
    static const char *const text =
        "f(q[B,S,G,H,E], k[B,R,G,E], v[B,R,G,F]) -> o[B,S,G,H,F] {\n"
        "    s = where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf)\n"
        "    o = sum(softmax(s, R)*v, R)\n"
        "}\n"
        "gradients(q[B,S,G,H,E], k[B,R,G,E], v[B,R,G,F], d: cotangent[B,S,G,H,F])\n"
        "    -> (dq[B,S,G,H,E], dk[B,R,G,E], dv[B,R,G,F]) {\n"
        "    dq, dk, dv = grad(f, q, k, v)(q, k, v, d)\n"
        "}\n"
        "both(q[B,S,G,H,E], k[B,R,G,E], v[B,R,G,F], d: cotangent[B,S,G,H,F])\n"
        "    -> (o[B,S,G,H,F], dq[B,S,G,H,E], dk[B,R,G,E], dv[B,R,G,F]) {\n"
        "    o = f(q, k, v)\n"
        "    dq, dk, dv = grad(f, q, k, v)(q, k, v, d)\n"
        "}\n";
    epi_module *m = parsed(ctx, text);
    for (int i = 1; i < 3 && m; i++)
        for (size_t t = 0; t < sizeof storage / sizeof *storage; t++)
            if (wanted("both %d %s", i, epi_dtype_name(storage[t])))
                hold_parts(epi_module_program(m, i), "B=2,S=140,R=140,G=2,H=2,E=8,F=12", storage[t], 2);
    epi_module_free(m);
}

/* The gradients of some inputs alone, saved and in one program: what is summed for one of them may be what
 * the others' weights wait for, and is then another kernel. */
static void hold_some(const epi_program *program, const char *wrt, const char *dims, epi_dtype type) {
    epi_module *two = derived(program, wrt, epi_program_grad_saved), *one = gradient_of(program, wrt);
    if (two && one) {
        hold_parts(epi_module_program(two, 1), dims, type, ANY_PARTS);
        hold_parts(epi_module_program(one, 0), dims, type, ANY_PARTS);
    }
    epi_module_free(two);
    epi_module_free(one);
}

static void test_subsets(void) {
    static const char *const texts[] = {
        "f(q[S,E], k[R,E], v[R,E], x[S,E]) -> o[S,E] { o = x + sum(softmax(sum(q*k, E), R)*v, R) }",
        "half(q[S,E], k[R,E], v[R,E]) -> o[S,E] { o = 0.5*sum(softmax(sum(q*k, E), R)*v, R) }",
        "less(q[S,E], k[R,E], v[R,E]) -> o[S,E] { o = sum(softmax(sum(q*k, E), R)*v, R) - mean(v, R) }",
        "gated(q[S,E], k[R,E], v[R,E], x[S,E]) -> o[S,E] {\n"
        "    s = where(index(R) <= index(S), q @ k, -inf)  o = x*sum(softmax(s, R)*v, R) }",
        "apart(q[S,E], k[R,E], p[S,E], l[R,E], v[R,E]) -> o[S,E] {\n"
        "    o = sum((softmax(q @ k, R) - 0.3*softmax(p @ l, R))*v, R) }",
        "after(q[S,E], k[R,E], v[R,E]) -> o[S,E] {\n"
        "    a = sum(softmax(q @ k, R)*v, R)  o = sum(softmax(a @ k, R)*v, R) }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        epi_module *m = parsed(ctx, texts[i]);
        const epi_program *program = m ? epi_module_program(m, 0) : NULL;
        int inputs = program ? epi_program_tensor_count(program) - 1 : 0;
        for (int set = 1; set < 1 << inputs; set++) {
            char wrt[100] = "";
            for (int a = 0; a < inputs; a++)
                if (set >> a & 1)
                    ADD(wrt, "%s ", tensor_name(program, a));
            for (int t = 0; t < 3 && strcmp(wrt, "x "); t++) /* of x alone there is nothing */
                if ((i == 0 || t == (set + (int)i) % 3) &&
                    wanted("%s by %s%s", epi_program_name(program), wrt, epi_dtype_name(storage[t])))
                    hold_some(program, wrt, "S=40,R=36,E=16", storage[t]);
        }
        epi_module_free(m);
    }
}

/* ---- other spellings ---- */

static const char *const spellings[] = {
    "o = sum(softmax(s, R)*v, R)",
    "l = logsumexp(s, R)  o = sum(exp(s - l)*v, R)",
    "o = sum(exp(log_softmax(s, R))*v, R)",
    "m = max(s, R)  e = exp(s - m)  z = sum(e, R)  o = sum(e*v, R)/z",
    "m = max(s, R)  e = exp(s - m)  p = e/sum(e, R)  o = sum(p*v, R)",
    "x = sum(softmax(s, R)*v, R)  o = x*rsqrt(mean(x*x, F) + 0.001)",
    "x = sum(softmax(s, R)*v, R)  o = silu(x)*x",
    "a, b = halves(sum(softmax(s, R)*v, R), F)  o = concat(b, -a, F)",
};

/* A text's program, in these first types of storage: its parts that are attention; and, where they are asked for, those of
 * the two that it is derived into. */
enum { NOT_ASKED = -2 };
static void hold_text(const char *name, const char *text, const char *dims, int types, int parts, int forward,
                      int backward) {
    for (int t = 0; t < types; t++) {
        epi_module *m = wanted("%s %s", name, epi_dtype_name(storage[t])) ? parsed(ctx, text) : NULL,
                   *saved = NULL;
        if (!m)
            continue;
        hold_parts(epi_module_program(m, 0), dims, storage[t], parts);
        if (backward != NOT_ASKED && (saved = halves_of(epi_module_program(m, 0)))) {
            if (forward != NOT_ASKED)
                hold_parts(epi_module_program(saved, 0), dims, storage[t], forward);
            hold_parts(epi_module_program(saved, 1), dims, storage[t], backward);
        }
        epi_module_free(saved);
        epi_module_free(m);
    }
}

static void test_spellings(void) {
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        char text[600];
        snprintf(text, sizeof text,
                 "spelling(q[B,S,H,E], k[B,R,H,E], v[B,R,H,F]) -> o[B,S,H,F] {\n"
                 "    s = where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf)\n    %s\n}\n",
                 spellings[i]);
        hold_text(spellings[i], text, "B=2,S=140,R=140,H=2,E=16,F=8", 3, 1, NOT_ASKED, NOT_ASKED);
    }
}

/* Masks of one comparison or another, with numbers that are whole and that are not; forward and backward. */
static void test_masks(void) {
    static const char *const masks[] = {
        "index(R) < prefix or index(R) <= index(S)",
        "index(R) <= index(S) or index(R) < prefix + 0.5",
        "index(S) >= min(index(R), index(R) + 60 - prefix)",
        "max(prefix + 0.25, index(S)) > index(R)",
        "index(R) > min(index(S) - 20, prefix) and index(R) <= index(S) + 100",
        "index(R) <= index(S) or prefix > 20",
        "index(R) <= index(S) or prefix/3 >= 13.5 - index(S)",
        "index(R) <= index(S) or index(R) > 200 - prefix", /* two sides: no interval */
        "(index(R) < prefix or index(R) <= index(S)) and index(R) != 3",
    };
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        char text[600];
        snprintf(text, sizeof text,
                 "masked(q[B,S,H,E], k[B,R,H,E], v[B,R,H,F], prefix: f32[B]) -> o[B,S,H,F] {\n"
                 "    s = where(%s, sum(q*k, E)*rsqrt(size(E)), -inf)\n    o = sum(softmax(s, R)*v, R)\n}\n",
                 masks[i]);
        hold_text(masks[i], text, "B=2,S=260,R=260,H=1,E=16,F=8", 1, 1, NOT_ASKED, 1);
    }
}

/* What weights are multiplied with under a mask, or what is masked once more: on tiles that the mask leaves
 * whole it may be a number, or lie in memory as it is. */
static void test_factors(void) {
    static const char *const weights[] = {
        "where(m, softmax(s, R), 0)",
        "where(m, 1, 0)*softmax(s, R)",
        "where(m, w, 0)*softmax(s, R)",
        "where(m, b, 0)*softmax(s, R)",
        "where(m, softmax(s, R), 0)*where(m, 2, 0)*w",
        "where(index(R) + 3 > index(S), softmax(s, R), 0)",
        "softmax(where(m, 5, s), R)",
        "softmax(where(m, b, s), R)",
    };
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        char text[600];
        snprintf(text, sizeof text,
                 "weighed(q[S,E], k[R,E], v[R,E], w[S,R], b[R]) -> o[S,E] {\n"
                 "    m = index(R) <= index(S)  s = where(m, q @ k, -inf)\n"
                 "    o = (%s) @ v + 0*(sum(w, R) + sum(b, R))\n}\n",
                 weights[i]);
        hold_text(weights[i], text, "S=260,R=300,E=16", 3, ANY_PARTS, NOT_ASKED, ANY_PARTS);
    }
}

/* Weights without a softmax: any map of scores, masks, decays and their sums; heads in groups, axes in several orders, as
 * many rows as columns and not. Forward, and backward of what it saved, whose scores are in memory nowhere. */
static const struct {
    const char *text, *dims;
    int backward; /* parts of it that are attention */
} unnormalised[] = {
    {"linear(q[B,T,H,E], k[B,U,H,E], v[B,U,H,F]) -> o[B,T,H,F] {\n"
     "    o = sum(where(index(U) <= index(T), sum(q*k, E), 0)*v, U) }",
     "B=2,T=140,U=140,H=2,E=16,F=8", 1},
    {"normed(q[B,H,T,E], k[B,H,U,E], v[B,H,U,F]) -> o[B,H,T,F] {\n"
     "    s = where(index(U) <= index(T), exp(0.1*sum(q*k, E)), 0)  o = sum(s*v, U)/(sum(s, U) + 0.5) }",
     "B=2,T=140,U=150,H=2,E=16,F=8", 1},
    {"positive(q[B,T,H,E], k[B,U,H,E], v[B,U,H,F]) -> (o[B,T,H,F], z: f32[B,T,H]) {\n"
     "    s = where(index(U) <= index(T), sum(exp(q)*exp(k), E), 0)\n"
     "    z = 0.01*sum(s, U)  o = sum(s*v, U)/(z*z + 1) }",
     "B=2,T=150,U=140,H=2,E=16,F=8", 1},
    {"sigmoids(q[T,B,H,E], k[U,H,B,E], v[B,U,H,F], bias: f32) -> o[T,B,H,F] {\n"
     "    o = sum(sigmoid(sum(q*k, E)*rsqrt(size(E)) - bias)*v, U) }",
     "B=2,T=140,U=170,H=2,E=16,F=8", 1},
    {"window(q[B,T,G,H,E], k[B,U,G,E], v[B,U,G,F]) -> o[B,T,G,H,F] {\n"
     "    s = sum(q*k, E)\n"
     "    o = sum(where(index(U) <= index(T) and index(U) > index(T) - 30, relu(s)*s, 0)*v, U) }",
     "B=2,T=200,U=200,G=2,H=2,E=8,F=16", 1},
    {"decay(q[B,T,H,E], k[B,U,H,E], v[B,U,H,F], c: f32[B,T,H], d: f32[B,U,H]) -> o[B,T,H,F] {\n"
     "    l = exp(where(index(U) <= index(T), 0.2*(c - d), -inf))  o = sum(sum(q*k, E)*l*v, U) }",
     "B=2,T=140,U=140,H=2,E=16,F=8", 2},
    {"retained(q[B,T,H,E], k[B,U,H,E], v[B,U,H,F], slope: f32[H]) -> o[B,T,H,F] {\n"
     "    l = where(index(U) <= index(T), exp(-slope*(index(T) - index(U))), 0)\n"
     "    o = sum(sum(q*k, E)*l*v, U) }",
     "B=2,T=140,U=140,H=2,E=16,F=8", ANY_PARTS},
    {"outer(q[B,T,H,E], k[B,U,H,E], v[B,U,H,F], a: f32[B,T,H], b: f32[B,U,H]) -> o[B,T,H,F] {\n"
     "    s = sum(q*k, E)  o = sum(where(index(U) < index(T), a*s*s*b, 0)*v, U) }",
     "B=2,T=140,U=140,H=2,E=16,F=8", ANY_PARTS},
    {"shared(q[B,T,E], k[B,U,E], v[B,U,H,F], c: f32[B,T,H], d: f32[B,U,H]) -> o[B,T,H,F] {\n"
     "    l = exp(where(index(U) <= index(T), 0.2*(c - d), -inf))  o = sum(sum(q*k, E)*l*v, U) }",
     "B=2,T=140,U=140,H=3,E=16,F=8", 2},
    {"rows_share(q[B,T,E], k[B,U,E], v[B,U,F], c: f32[B,T,H]) -> o[B,T,H,F] {\n"
     "    o = sum(where(index(U) <= index(T), tanh(c*relu(sum(q*k, E))), 0)*v, U) }",
     "B=2,T=140,U=150,H=3,E=16,F=8", ANY_PARTS},
    {"alone(q[T,E], k[U,E], v[U,F]) -> o[T,F] {\n"
     "    o = sum(where(index(U) <= index(T), tanh(sum(q*k, E)), 0)*v, U) }",
     "T=260,U=260,E=16,F=8", 1},
};

static void test_unnormalised(void) {
    for (size_t i = 0; i < sizeof unnormalised / sizeof *unnormalised; i++) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(unnormalised[i].text, "("), unnormalised[i].text);
        hold_text(name, unnormalised[i].text, unnormalised[i].dims, 3, 1, 1, unnormalised[i].backward);
    }
}

/* What is no attention, whatever its sizes, and what has the form in part: scores that are wanted elsewhere,
 * weights that are more than an exponential, two sums with the same weights, one attention after another. */
static void test_others(void) {
    static const struct {
        const char *text;
        int parts;
    } all[] = {
        {"f(q[T,E], k[R,E], v[F,R]) -> o[T,F] { o = gelu(q @ k) @ v }", 0},
        {"f(q[T,E], k[R,E], v[F,R]) -> o[T,F] { s = q @ k  o = exp(-s*s) @ v }", 0},
        {"f(q[T,E], k[R,E], v[F,R], seed: i32) -> o[T,F] {\n"
         "    o = where(uniform(seed, T, R) < 0.9, gelu(q @ k), 0) @ v }",
         0},
        {"f(q[T,A,E], k: param[A,R,E], v: param[A,F,R]) -> o[T,A,F] { o = sum(gelu(sum(q*k, E))*v, R) }", 0},
        {"f(q[T,A,E], k[A,R,E], v[A,F,R]) -> (o[T,A,F], h[T,A,R]) {\n"
         "    h = gelu(sum(q*k, E))  o = sum(h*v, R) }",
         0},
        {"f(q[T,E], k[R,E], v[F,R]) -> (o[T,F], p[T,R]) { p = softmax(q @ k, R)  o = p @ v }", 0},
        {"f(q[T,E], k[R,E], v[F,R]) -> o[T,F] { p = softmax(q @ k, R)  o = (p*p) @ v }", 0},
        {"f(q[T,E], k[R,E], v[F,R]) -> (o[T,F], h: f32[T]) {\n"
         "    p = softmax(q @ k, R)  o = p @ v  h = -sum(p*log(p + 0.001), R) }",
         0},
        {"f(q[T,E], k[R,E], v[F,R], seed: i32) -> o[T,F] {\n"
         "    p = softmax(q @ k, R)  o = where(uniform(seed, T, R) < 0.9, p/0.9, 0) @ v }",
         1},
        {"f(q[T,E], k[R,E], v[F,R], seed: i32) -> (o[T,F], n: f32[T]) {\n"
         "    p = softmax(q @ k, R)  m = where(uniform(seed, T, R) < 0.9, 1/0.9, 0)\n"
         "    o = (p*m) @ v  n = sum(p*m, R) }",
         0},
        {"f(q[T,E], k[R,E], v[F,R], w[E,R]) -> (o[T,F], y[T,E]) { p = softmax(q @ k, R)  o = p @ v  y = p @ "
         "w }",
         2},
        {"f(q[T,E], k[R,E], v[E,R], w[F,T]) -> y[F,E] {\n"
         "    o = softmax(q @ k, R) @ v  p = softmax(rename(w, T, S) @ rename(o, T, S), E)  y = p }",
         1},
        {"f(q[T,E], k[R,E], v[E,R], a[F,E], b[E,F]) -> y[T,E] {\n"
         "    o = softmax(q @ k, R) @ v  y = q + softmax(sum(o*a, E), F) @ b }",
         2},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        hold_text(all[i].text, all[i].text,
                  strstr(all[i].text, "[T,A") ? "T=140,A=2,E=16,R=150,F=24" : "T=140,E=16,R=150,F=24", 1,
                  all[i].parts, NOT_ASKED, NOT_ASKED);
}

/* ---- bits ---- */

/* Elements of two tensors, `count` of them from these on, have the same bits. */
static bool same_stretch(const tensor *a, int64_t i, const tensor *b, int64_t j, int64_t count) {
    size_t size = epi_dtype_size(a->shape.type);
    return !memcmp(a->data + (size_t)i * size, b->data + (size_t)j * size, (size_t)count * size);
}

/* The outputs of the one are what the other's begin with. */
static bool begin_same(const ran *some, const ran *all) {
    bool same = true;
    for (int t = some->p.inputs; t < some->p.count; t++)
        same &= same_stretch(&some->p.t[t], 0, &all->p.t[t], 0, some->p.t[t].shape.count);
    return same;
}

/* Of a larger problem each input's leading elements along every axis. */
static void fill_smaller(problem *p, uint64_t seed) {
    (void)seed;
    for (int i = 0; i < p->inputs; i++) {
        tensor *t = &p->t[i];
        size_t size = epi_dtype_size(t->shape.type);
        for (int64_t e = 0; e < t->shape.count; e++) {
            int64_t rest = e, there = 0, step = 1;
            for (int a = t->shape.rank - 1; a >= 0; a--) {
                there += rest % t->shape.sizes[a] * step;
                rest /= t->shape.sizes[a];
                step *= from->t[i].shape.sizes[a];
            }
            memcpy(t->data + (size_t)e * size, from->t[i].data + (size_t)there * size, size);
        }
    }
}

static void check_bits(const epi_program *p, epi_dtype type, bool forward) {
    static const char dims[] = "B=3,H=2,S=270,R=270,E=16,F=8";
    const char *name = epi_program_name(p), *of = epi_dtype_name(type);
    way how = {.type = type, .threads = 1, .fill = fill_meant, .seed = 9};
    ran whole, other;
    bool ok = run_as(&whole, p, dims, how);
    for (how.threads = 2; how.threads <= 5; how.threads += 3) {
        if (run_as(&other, p, dims, how) && ok)
            check(same_outputs(&whole, &other), "%s %s with %d threads", name, of, how.threads);
        discard(&other);
    }
    from = &whole.p;
    if (ok && run_as(&other, p, "B=1,H=2,S=270,R=270,E=16,F=8", filled(type, fill_smaller, 0)))
        check(begin_same(&other, &whole), "%s %s: a sequence alone has the bits that it has in a batch", name,
              of);
    if (ok)
        discard(&other);
    /* the first queries, without those that come after them */
    if (ok && forward && run_as(&other, p, "B=3,H=2,S=117,R=270,E=16,F=8", filled(type, fill_smaller, 0)))
        for (int64_t h = 0; h < 6; h++)
            check(same_stretch(&whole.p.t[3], h * 270 * 8, &other.p.t[3], h * 117 * 8, 117 * 8),
                  "%s: a row's bits do not depend on other rows", of);
    if (ok && forward)
        discard(&other);
    discard(&whole);
}

static void test_bits(const epi_module *module) {
    const epi_program *program = epi_module_find(module, "causal_attention");
    for (int back = 0; back < 2; back++)
        for (int t = 0; t < 2; t++) {
            if (!wanted("bits of causal_attention%s %s", back ? ", backward" : "",
                        epi_dtype_name(storage[t])))
                continue;
            epi_module *saved = back ? halves_of(program) : NULL;
            check_bits(back ? epi_module_program(saved, 1) : program, storage[t], !back);
            epi_module_free(saved);
        }
}

/* ---- chunks of the stream ---- */

/* Lengths in and around the borders of tiles and chunks; else as meant. */
static void fill_lengths(problem *p, uint64_t seed) {
    static const int lengths[] = {513, 1500, 0, 512, 1, 1025};
    fill_meant(p, seed);
    for (int i = 0; i < p->inputs; i++)
        if (!strcmp(tensor_name(p->program, i), "length"))
            for (int64_t e = 0; e < p->t[i].shape.count; e++)
                put_at(&p->t[i], e, lengths[e % 6]);
}

/* Few rows over a long stream, whose chunks threads share: the bits are those of one thread, and of a batch
 * in which they do not; and the error rule holds. */
static void check_chunks(const epi_program *program, const char *dims, const char *one_dims, epi_dtype type) {
    static const int threads[] = {2, 3, 7};
    const char *name = epi_program_name(program), *of = epi_dtype_name(type);
    ran one, many, alone;
    hold_parts(program, one_dims, type, 1);
    bool ok = run_as(&one, program, dims, (way){.type = type, .threads = 1, .fill = fill_lengths, .seed = 6});
    for (int n = 0; n < 3 && ok; n++) {
        way how = {.type = type, .threads = threads[n], .fill = fill_lengths, .seed = 6};
        if (run_as(&many, program, dims, how))
            check(same_outputs(&one, &many), "%s %s %s with %d threads", name, dims, of, threads[n]);
        from = &one.p;
        how.fill = fill_smaller;
        if (run_as(&alone, program, one_dims, how))
            check(begin_same(&alone, &one), "%s %s alone, %s, with %d threads", name, one_dims, of,
                  threads[n]);
        discard(&many);
        discard(&alone);
    }
    discard(&one);
}

static void test_chunks(const epi_module *module) {
    static const struct {
        const char *name, *dims, *one;
    } all[] = {
        {"decode_attention", "B=6,R=1500,G=2,H=3,E=16", "B=1,R=1500,G=2,H=3,E=16"},
        {"paged_attention", "B=6,P=9,C=256,N=6,G=1,H=2,E=16", "B=1,P=9,C=256,N=6,G=1,H=2,E=16"},
        {"full_attention", "B=17,H=2,S=5,R=1100,E=16,F=8", "B=1,H=2,S=5,R=1100,E=16,F=8"},
        {"causal_attention", "B=3,H=1,S=90,R=600,E=8,F=8", "B=1,H=1,S=90,R=600,E=8,F=8"},
        {"bias_attention", "B=2,H=2,S=3,R=700,E=16", "B=1,H=2,S=3,R=700,E=16"},
        {"dropout_attention", "B=2,S=96,R=1030,H=1,E=16", "B=1,S=96,R=1030,H=1,E=16"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t t = 0; t < sizeof storage / sizeof *storage; t++)
            if (wanted("chunks of %s %s", all[i].name, epi_dtype_name(storage[t])))
                check_chunks(epi_module_find(module, all[i].name), all[i].dims, all[i].one, storage[t]);
}

/* A token that is decoded alone, over a cache that is longer than the sequence so far, or over one that ends
 * with it, against its row of the whole sequence. */
enum { LONG = 1300, HEADS = 2, WIDTH = 16, VALUES = 8 };

/* The seed is the token's position, from 1 on. */
static void fill_decoded(problem *p, uint64_t seed) {
    int64_t position = (int64_t)seed - 1;
    for (int i = 0; i < 3; i++) {
        int64_t width = i == 2 ? VALUES : WIDTH, rows = i ? p->t[1].shape.sizes[1] : 1,
                first = i ? 0 : position;
        size_t size = epi_dtype_size(p->t[i].shape.type), bytes = (size_t)(rows * width) * size;
        for (int64_t h = 0; h < HEADS; h++)
            memcpy(p->t[i].data + (size_t)h * bytes,
                   from->t[i].data + (size_t)((h * LONG + first) * width) * size, bytes);
    }
    if (p->inputs > 3)
        put_at(&p->t[3], 0, (double)position + 1);
}

/* How far a result may be from the exact one, with `weighed` the sum of weights times |v|. Each weight is
 * rounded to the type of 16 bits, by u relative to itself, and so is what is stored. In f32 both sums have so
 * many terms, and a score, a sum of WIDTH terms whose magnitudes add up to 3 at most, is in an exponent above
 * and below; exponentials and factors of chunks are right but for a few units. */
static double off_by(epi_dtype type, double weighed, double result, int64_t keys) {
    double u = type_unit(type), single = 0x1p-24 * (double)(2 * keys + 2 * 3 * (WIDTH + 3) + 16),
           before = ((type == EPI_F32 ? 0 : u) + single) * weighed;
    return before + u * (fabs(result) + before);
}

static void check_decoded(const epi_module *m, const ran *whole, epi_dtype type, int position) {
    char dims[64];
    ran alone, ends, exact, weighed;
    const way how = {.type = type, .threads = 3, .fill = fill_decoded, .seed = (uint64_t)position + 1},
              yardstick = {
                  .type = type, .path = EPI_PATH_REFERENCE, .threads = 1, .wide = true, .fill = fill_same};
    snprintf(dims, sizeof dims, "H=2,S=1,R=%d,E=16,F=8", position + 1);
    from = &whole->p;
    bool ok = run_as(&alone, epi_module_program(m, 0), "H=2,S=1,R=1300,E=16,F=8", how);
    ok &= run_as(&ends, epi_module_program(m, 1), dims, how);
    from = &ends.p;
    ok &= run_as(&exact, epi_module_program(m, 1), dims, yardstick);
    ok &= run_as(&weighed, epi_module_program(m, 2), dims, yardstick);
    for (int64_t h = 0; h < HEADS && ok; h++) {
        check(same_stretch(&whole->p.t[3], (h * LONG + position) * VALUES, &alone.p.t[4], h * VALUES, VALUES),
              "%s: token %d alone has the bits of its row", epi_dtype_name(type), position);
        for (int64_t e = h * VALUES; e < (h + 1) * VALUES; e++) {
            double want = at(&exact.p.t[3], e),
                   most = off_by(type, at(&weighed.p.t[3], e), want, position + 1),
                   first = fabs(at(&alone.p.t[4], e) - want), second = fabs(at(&ends.p.t[3], e) - want);
            check(first <= most && second <= most, "%s: token %d alone is %g and %g off, %g allowed",
                  epi_dtype_name(type), position, first, second, most);
        }
    }
    discard(&alone);
    discard(&ends);
    discard(&exact);
    discard(&weighed);
}

static void test_decoded(const epi_module *module) {
    static const int positions[] = {0, 1, 127, 128, 511, 512, 513, 700, 1023, 1024, LONG - 1};
    epi_module *m = parsed(ctx, "f(q[H,S,E], k[H,R,E], v[H,R,F], length: i32) -> o[H,S,F] {\n"
                                "    s = where(index(R) < length, sum(q*k, E)*rsqrt(size(E)), -inf)\n"
                                "    o = sum(softmax(s, R)*v, R) }\n"
                                "g(q[H,S,E], k[H,R,E], v[H,R,F]) -> o[H,S,F] {\n"
                                "    o = sum(softmax(sum(q*k, E)*rsqrt(size(E)), R)*v, R) }\n"
                                "weighed(q[H,S,E], k[H,R,E], v[H,R,F]) -> o: f32[H,S,F] {\n"
                                "    o = sum(softmax(sum(q*k, E)*rsqrt(size(E)), R)*abs(v), R) }\n");
    for (size_t t = 0; t < sizeof storage / sizeof *storage && m; t++) {
        ran whole;
        if (!wanted("decoded %s", epi_dtype_name(storage[t])))
            continue;
        if (run_as(&whole, epi_module_find(module, "causal_attention"), "B=1,H=2,S=1300,R=1300,E=16,F=8",
                   filled(storage[t], fill_meant, 12)))
            for (size_t i = 0; i < sizeof positions / sizeof *positions; i++)
                check_decoded(m, &whole, storage[t], positions[i]);
        discard(&whole);
    }
    epi_module_free(m);
}

/* ---- odd rows ---- */

enum { S = 150, R = 150, E = 8 };

static void fill_odd(problem *p, uint64_t seed) {
    fill_meant(p, seed);
    for (int64_t e = 0; e < E; e++) {
        put_at(&p->t[0], 5 * E + e, NAN);      /* a query that is no number */
        put_at(&p->t[0], 7 * E + e, INFINITY); /* and one with infinite scores */
    }
}

/* A key that is no number, of the first sequence. */
enum { ODD_KEY = 60 };
static void fill_odd_key(problem *p, uint64_t seed) {
    fill_meant(p, seed);
    put_at(&p->t[1], ODD_KEY * E + 3, NAN);
}

static bool odd_query(int64_t row) {
    return row == 5 || row == 7;
}

static bool sees_odd_key(int64_t row) {
    return row >= ODD_KEY && row < S;
}

static bool of_first_batch(int64_t row) {
    return row < 3;
}

/* Some rows are no numbers, the others are what they were. An odd key makes those queries that see it no numbers, and
 * leaves the others and other sequences as they were: in a whole sequence, and of a token whose stream threads
 * share. */
static void test_odd(const epi_module *module) {
    static const struct {
        const char *name, *dims;
        void (*fill)(problem *p, uint64_t seed);
        bool (*odd)(int64_t row);
    } all[] = {{"causal_attention", "B=1,H=1,S=150,R=150,E=8,F=8", fill_odd, odd_query},
               {"causal_attention", "B=2,H=1,S=150,R=150,E=8,F=8", fill_odd_key, sees_odd_key},
               {"full_attention", "B=2,H=1,S=3,R=1100,E=8,F=8", fill_odd_key, of_first_batch}};
    for (int i = 0; i < 3; i++) {
        const epi_program *program = epi_module_find(module, all[i].name);
        ran odd, plain = {0};
        if (run_as(&odd, program, all[i].dims, filled(EPI_F32, all[i].fill, 3)) &&
            run_as(&plain, program, all[i].dims, filled(EPI_F32, fill_meant, 3)))
            for (int64_t r = 0; r < odd.p.t[3].shape.count / E; r++) {
                if (!all[i].odd(r)) {
                    check(same_stretch(&odd.p.t[3], r * E, &plain.p.t[3], r * E, E),
                          "%s: row %d is as it was", all[i].name, (int)r);
                    continue;
                }
                for (int64_t e = 0; e < E; e++)
                    check(isnan(at(&odd.p.t[3], r * E + e)), "%s: row %d is no number", all[i].name, (int)r);
            }
        discard(&odd);
        discard(&plain);
    }
}

/* The same of weights that have no softmax: what is hidden is 0 whatever its score is. */
static void test_odd_weights(void) {
    epi_module *m = parsed(ctx, "causal_attention(q[B,H,S,E], k[B,H,R,E], v[B,H,R,F]) -> o[B,H,S,F] {\n"
                                "    o = sum(where(index(R) <= index(S), sum(q*k, E), 0)*v, R)\n}\n"
                                "full_attention(q[B,H,S,E], k[B,H,R,E], v[B,H,R,F]) -> o[B,H,S,F] {\n"
                                "    o = sum(tanh(sum(q*k, E))*v, R)\n}\n");
    if (m)
        test_odd(m);
    epi_module_free(m);
}

/* A window that lies ahead of the last queries' keys, a length of 0: what sees nothing is 0 by the word
 * softmax, and has gradients of 0; by other spellings it is what their arithmetic says. */
static void test_nothing(void) {
    static const struct {
        const char *text;
        bool zero;
    } all[] = {
        {"f(q[S,E], k[R,E], v[F,R]) -> o[S,F] {\n"
         "    s = where(index(R) >= index(S) + 20, q @ k, -inf)  o = softmax(s, R) @ v }",
         true},
        {"f(q[S,E], k[R,E], v[F,R]) -> o[S,F] {\n"
         "    s = where(index(R) >= index(S) + 20, q @ k, -inf)  m = max(s, R)  e = exp(s - m)\n"
         "    o = (e @ v)/sum(e, R) }",
         false},
        {"f(q[S,E], k[R,E], v[F,R]) -> o[S,F] {\n"
         "    s = where(index(R) >= index(S) + 20, q @ k, -inf)  o = exp(s - logsumexp(s, R)) @ v }",
         false},
        {"f(q[S,E], k[R,E], v[F,R], l: f32[S], z: f32[S], d[S,F]) -> o[S,E] {\n"
         "    s = where(index(R) >= index(S) + 20, q @ k, -inf)  p = exp(s - l)\n"
         "    o = sum(p*(sum(d*v, F) - z)*k, R) }",
         true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        epi_module *m = parsed(ctx, all[i].text);
        ran r = {0};
        if (m &&
            run_as(&r, epi_module_program(m, 0), "S=150,R=150,E=8,F=8", filled(EPI_F32, fill_meant, 4))) {
            const tensor *out = find(&r, "o");
            check(attention_parts(r.k) == 1, "%s is attention", all[i].text);
            for (int64_t e = 0; e < S * E; e++) {
                bool sees = e / E + 20 < R;
                double x = at(out, e);
                check(sees          ? isfinite(x)
                      : all[i].zero ? x == 0
                                    : isnan(x),
                      "%s: row %d is %g", all[i].text, (int)(e / E), x);
            }
        }
        discard(&r);
        epi_module_free(m);
    }
}

/* ---- what is not read ---- */

/* What no row of a tile sees is not read: a cache may hold anything behind the tile of its last token. */
static void fill_cache(problem *p, uint64_t seed) {
    fill_meant(p, seed);
    for (int t = 1; t < 3; t++)
        for (int64_t e = 0; e < p->t[t].shape.count; e++)
            if (e / (p->t[t].shape.sizes[2] * p->t[t].shape.sizes[3]) % p->t[t].shape.sizes[1] >= 128)
                put_at(&p->t[t], e, NAN);
}

static void test_hidden(const epi_module *module) {
    ran r;
    if (run_as(&r, epi_module_find(module, "decode_attention"), "B=4,R=500,G=2,H=2,E=16",
               filled(EPI_F32, fill_cache, 8)))
        for (int64_t e = 0; e < r.p.t[4].shape.count; e++) {
            double x = at(&r.p.t[4], e);
            check(e < 2 * 2 * 16 ? x == 0 : isfinite(x), "element %d of a decoded token is %g", (int)e, x);
        }
    discard(&r);
}

/* Two documents, each of three tiles of keys, and nothing but NaN in the first one's keys and values: the
 * rows of tiles that have the second one alone do not read them. Forward and backward. */
static void fill_documents(problem *p, uint64_t seed) {
    fill_meant(p, seed);
    for (int t = 0; t < p->inputs; t++) {
        tensor *x = &p->t[t];
        const char *name = tensor_name(p->program, t);
        bool id = !strcmp(name, "query") || !strcmp(name, "key"),
             first = !strcmp(name, "k") || !strcmp(name, "v");
        int64_t inner = id ? 1 : x->shape.sizes[2] * (x->shape.rank > 3 ? x->shape.sizes[3] : 1);
        for (int64_t e = 0; e < x->shape.count && (id || first); e++) {
            bool second = e / inner % x->shape.sizes[1] >= 384;
            if (id)
                put_at(x, e, second);
            else if (!second)
                put_at(x, e, NAN);
        }
    }
}

/* A prefix of 11 positions in sequences of 768. Forward: nothing but NaN in the keys and values from 512 on,
 * which the first queries do not read; backward: in what belongs to the first 256 queries, which the last
 * keys do not read. */
static void fill_prefix(problem *p, uint64_t seed) {
    fill_meant(p, seed);
    for (int t = 0; t < p->inputs; t++) {
        epi_tensor_info info;
        tensor *x = &p->t[t];
        epi_program_tensor(p->program, t, &info);
        bool back = p->count - p->inputs > 1;
        if (x->shape.rank < 2 || strcmp(info.axes[1].dim, back ? "S" : "R") != 0)
            continue;
        int64_t inner = x->shape.count / x->shape.sizes[0] / x->shape.sizes[1];
        for (int64_t e = 0; e < x->shape.count; e++) {
            int64_t position = e / inner % x->shape.sizes[1];
            if (back ? position < 256 : position >= 512)
                put_at(x, e, NAN);
        }
    }
}

/* Rows of the results, of the forward and of the backward, that have read nothing of the NaN. */
static void test_unread(const epi_module *module) {
    static const struct {
        const char *name;
        void (*fill)(problem *p, uint64_t seed);
        int rows[2][2];
    } all[] = {{"document_attention", fill_documents, {{512, 768}, {512, 768}}},
               {"prefix_attention", fill_prefix, {{0, 192}, {576, 768}}}};
    for (int i = 0; i < 2; i++) {
        const epi_program *program = epi_module_find(module, all[i].name);
        epi_module *saved = halves_of(program);
        for (int back = 0; back < 2 && saved; back++) {
            ran r;
            bool ok = run_as(&r, back ? epi_module_program(saved, 1) : program, "B=1,S=768,R=768,H=1,E=8",
                             filled(EPI_F32, all[i].fill, 9));
            for (int o = r.p.inputs; o < r.p.count && ok; o++)
                for (int64_t e = all[i].rows[back][0] * E; e < all[i].rows[back][1] * E; e++)
                    if (!check(isfinite(at(&r.p.t[o], e)),
                               "%s: element %d of result %d, which no NaN is read for, is %g",
                               epi_program_name(r.program), (int)e, o - r.p.inputs, at(&r.p.t[o], e)))
                        break;
            discard(&r);
        }
        epi_module_free(saved);
    }
}

/* ---- no elements ---- */

/* No rows, no keys, no features of a head. */
static void test_empty(const epi_module *module) {
    static const char *const dims[] = {"B=2,H=2,S=0,R=5,E=8,F=8", "B=0,H=2,S=4,R=5,E=8,F=8",
                                       "B=2,H=2,S=4,R=0,E=8,F=8", "B=1,H=1,S=1,R=1,E=1,F=1"};
    epi_module *m = parsed(ctx, "f(q[S,E], k[R,E], v[R,F]) -> o[S,F] {\n"
                                "    s = sum(q*k, E)  l = logsumexp(s, R)  o = sum(exp(s - l)*v, R) }\n");
    for (int i = 0; i < 5 && m; i++) {
        ran r;
        bool one = i == 4, none = i == 2 || one; /* keys */
        if (run_as(&r, one ? epi_module_program(m, 0) : epi_module_find(module, "full_attention"),
                   dims[one ? 2 : i], filled(EPI_F32, fill_meant, 2)))
            for (int64_t e = 0; e < r.p.t[3].shape.count; e++) {
                double x = at(&r.p.t[3], e);
                check(none ? x == 0 : isfinite(x), "%s: element %d is %g", dims[one ? 2 : i], (int)e, x);
            }
        discard(&r);
    }
    epi_module_free(m);
}

/* The kernel for any number of keys, with so many: the bits of one for that number alone. Over none it is a number or
 * not. */
static void check_open_keys(const epi_kernel *open, const epi_program *program, int64_t keys, bool number) {
    char dims[64];
    ran closed;
    problem p;
    size_t bytes = 0;
    epi_error err = {0};
    snprintf(dims, sizeof dims, "S=4,R=%d,E=8,F=8", (int)keys);
    if (run_as(&closed, program, dims, filled(EPI_F32, fill_meant, 2)) &&
        check(problem_make(&p, program, closed.k, LAYOUT_PLAIN) &&
                  epi_kernel_workspace_at(open, &keys, 1, &bytes, &err) == EPI_OK,
              "%s: %s", dims, err.message)) {
        void *work = aligned_alloc(64, (bytes + 64) / 64 * 64);
        const epi_call call = EPI_CALL(.tensors = p.args, .count = p.count, .workspace = work,
                                       .workspace_bytes = bytes, .sizes = &keys, .size_count = 1);
        from = &closed.p;
        fill_same(&p, 0);
        check(work && epi_kernel_call(open, &call, &err) == EPI_OK, "%s: %s", dims, err.message);
        check(same_bits(&p.t[3], &closed.p.t[3]), "%s has the bits of one size", dims);
        for (int64_t e = 0; e < 4 * E && keys == 0; e++)
            check(number ? at(&p.t[3], e) == 0 : isnan(at(&p.t[3], e)), "over no keys it is %g",
                  at(&p.t[3], e));
        free(work);
        problem_free(&p);
    }
    discard(&closed);
}

/* The number of keys is given at each run, and may be 0: a sum over none is 0, and 0/0 where the text divides
 * by one. Else the bits are those of a kernel for that number alone. */
static void test_open_keys(void) {
    static const struct {
        const char *text;
        bool number;
    } all[] = {
        {"o = sum(softmax(s, R)*v, R)", true},
        {"l = logsumexp(s, R)  o = sum(exp(s - l)*v, R)", true},
        {"m = max(s, R)  e = exp(s - m)  o = sum(e*v, R)/sum(e, R)", false},
    };
    static const int64_t sizes[] = {0, 1, 37, 600};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[400];
        snprintf(text, sizeof text, "f(q[S,E], k[R,E], v[R,F]) -> o[S,F] {\n    s = sum(q*k, E)  %s\n}\n",
                 all[i].text);
        epi_module *m = parsed(ctx, text);
        epi_kernel *open =
            m ? kernel_of(epi_module_program(m, 0), "S=4,R=600,E=8,F=8", (way){.open = "R"}) : NULL;
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes && open; n++)
            check_open_keys(open, epi_module_program(m, 0), sizes[n], all[i].number);
        epi_kernel_free(open);
        epi_module_free(m);
    }
}

int main(int argc, char **argv) {
    char path[512];
    epi_module *module = NULL;
    snprintf(path, sizeof path, "%s/attention.epi", argc > 1 ? argv[1] : "programs");
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens") ||
        !(module = parsed_file(ctx, path)))
        return finish();
    test_programs(module, argc > 2 && !strcmp(argv[2], "some"));
    test_spellings();
    test_masks();
    test_factors();
    test_unnormalised();
    test_both();
    test_subsets();
    test_others();
    test_bits(module);
    test_chunks(module);
    test_decoded(module);
    no_case();
    test_odd(module);
    test_odd_weights();
    test_nothing();
    test_hidden(module);
    test_unread(module);
    test_empty(module);
    test_open_keys();
    epi_module_free(module);
    epi_context_close(ctx);
    return finish();
}

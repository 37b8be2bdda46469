/* test_attention.c: attention as one kernel. Every program of attention.epi and its derived backward, in
 * every storage type, is held against f64 by the error rule and made of the parts that it should be; all
 * spellings of a softmax become the same kernel; bits depend neither on threads, nor on the batch, nor on how
 * many rows there are; rows that see nothing, infinities and NaN; tiles that a mask hides are not read.
 *
 *     attention [programs] */
#include "harness.h"

static epi_context *ctx;
static char *programs;
static size_t programs_length;

/* ---- a program, compiled and run ---- */

typedef struct attempt {
    epi_kernel *kernel;
    problem p;
    epi_kernel_info info;
    bool ok;
} attempt;

typedef struct setting {
    const char *dims;
    epi_path path;
    epi_dtype type;
    int threads;
    bool wide;
} setting;

typedef void filler(problem *p, const epi_program *program, void *arg);

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

static void fill_meant(problem *p, const epi_program *program, void *arg) {
    problem_fill(p, *(uint64_t *)arg);
    for (int i = 0; i < p->inputs; i++) {
        epi_tensor_info info;
        tensor *t = &p->t[i];
        epi_program_tensor(program, i, &info);
        for (int64_t e = 0; e < t->shape.count; e++) {
            int64_t at = tensor_at(t, e);
            double x = get_element(t->data, t->shape.type, at), y = meant_here(info.name, e, x);
            if (y != x)
                put_element(t->data, t->shape.type, at, y);
        }
    }
}

static void attempt_free(attempt *a) {
    problem_free(&a->p);
    epi_kernel_free(a->kernel);
    *a = (attempt){0};
}

/* Compiles, fills and runs. Free it in any case. */
static void attempt_make(attempt *a, const epi_program *program, setting how, filler *fill, void *arg) {
    epi_dim_binding dims[16];
    char store[16][16];
    epi_type_binding types[MAX_TENSORS];
    epi_options o =
        EPI_OPTIONS(.dims = dims, .type = how.type, .types = types, .path = how.path, .threads = how.threads);
    epi_error err = {0};
    *a = (attempt){0};
    o.dim_count = parse_dims(how.dims, dims, store);
    o.type_count = how.wide ? wide_types(program, true, types) : 0;
    if (!check(epi_kernel_compile(program, &o, &a->kernel, &err) == EPI_OK, "%s %s compiles: %s",
               epi_program_name(program), how.dims, err.message) ||
        !check(problem_make(&a->p, program, a->kernel, LAYOUT_PLAIN), "memory"))
        return;
    epi_kernel_get_info(a->kernel, &a->info);
    fill(&a->p, program, arg);
    a->ok = check(problem_run(a->kernel, &a->p), "%s %s runs", epi_program_name(program), how.dims);
}

/* Inputs of the one with the values that the other one's have after rounding. */
static void fill_same(problem *p, const epi_program *program, void *arg) {
    const problem *from = arg;
    (void)program;
    for (int i = 0; i < p->inputs; i++)
        for (int64_t e = 0; e < p->t[i].shape.count; e++)
            put_element(p->t[i].data, p->t[i].shape.type, e,
                        get_element(from->t[i].data, from->t[i].shape.type, e));
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
static void hold_filled(attempt *a) {
    unsigned char *before[MAX_TENSORS] = {NULL};
    for (int i = a->p.inputs; i < a->p.count; i++) {
        size_t bytes = (size_t)a->p.t[i].span * epi_dtype_size(a->p.t[i].shape.type);
        before[i] = malloc(bytes + 1);
        if (before[i])
            memcpy(before[i], a->p.t[i].data, bytes);
        memset(a->p.t[i].data, HUGE_FILL, bytes);
    }
    workspace_fill = HUGE_FILL;
    bool same = problem_run(a->kernel, &a->p);
    workspace_fill = POISON;
    for (int i = a->p.inputs; i < a->p.count; i++) {
        same &= before[i] && !memcmp(before[i], a->p.t[i].data,
                                     (size_t)a->p.t[i].span * epi_dtype_size(a->p.t[i].shape.type));
        free(before[i]);
    }
    check(same, "%s: no bit depends on what memory held before", epi_program_name(a->p.program));
}

enum { ANY_PARTS = -1 };

/* Runs it and holds it against f64; of its parts so many are attention, or two where it is not worth its
 * while to have one. */
static void hold(const epi_program *program, const char *dims, epi_dtype type, int parts) {
    uint64_t seed = 5;
    attempt got, ref, naive;
    attempt_make(&got, program, (setting){dims, EPI_PATH_FUSED, type, 2, false}, fill_meant, &seed);
    attempt_make(&ref, program, (setting){dims, EPI_PATH_REFERENCE, type, 1, true}, fill_same, &got.p);
    attempt_make(&naive, program, (setting){dims, EPI_PATH_NAIVE, type, 1, true}, fill_same, &got.p);
    if (got.ok && ref.ok && naive.ok) {
        int found = attention_parts(got.kernel);
        check(found == parts || (parts == 1 && found == 2) || parts == ANY_PARTS,
              "%s %s %s has %d attention parts, not %d", epi_program_name(program), dims,
              epi_dtype_name(type), found, parts);
        for (int i = got.p.inputs; i < got.p.count; i++) {
            double error = 0, bound = 0;
            epi_tensor_info info;
            epi_program_tensor(program, i, &info);
            check(within_rule(&got.p.t[i], &ref.p.t[i], &naive.p.t[i], got.info.parts > 1 ? type : EPI_F32,
                              got.p.terms, &error, &bound),
                  "%s %s %s: %s is %g off, %g allowed", epi_program_name(program), dims, epi_dtype_name(type),
                  info.name, error, bound);
            check(tensor_intact(&got.p.t[i]), "%s %s: nothing beside %s is written",
                  epi_program_name(program), dims, info.name);
        }
        hold_filled(&got);
    }
    attempt_free(&got);
    attempt_free(&ref);
    attempt_free(&naive);
}

static epi_module *parse(const char *text) {
    epi_module *m = NULL;
    epi_error err = {0};
    check(epi_module_parse(ctx, text, strlen(text), "attention", &m, &err) == EPI_OK, "%s\nparses: %s", text,
          err.message);
    return m;
}

/* ---- the programs, and what is derived from them ---- */

/* Forward and backward, for the gradients of all inputs that are no integers. */
static epi_module *derive(const epi_program *program) {
    const char *wrt[MAX_TENSORS];
    int count = number_inputs(program, true, wrt, MAX_TENSORS);
    epi_module *out = NULL;
    epi_error err = {0};
    check(epi_program_grad_saved(program, wrt, count, &out, &err) == EPI_OK, "%s has gradients: %s",
          epi_program_name(program), err.message);
    return out;
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
                (!saved && !(saved = derive(program))))
                continue;
            if (longer) {
                hold(epi_module_program(saved, 1), table[i].longer, EPI_F32, table[i].backward);
                continue;
            }
            hold(program, table[i].dims, storage[t], 1);
            hold(program, table[i].longer, storage[t], 1);
            hold(epi_module_program(saved, 0), table[i].dims, storage[t], 1);
            hold(epi_module_program(saved, 1), table[i].dims, storage[t], table[i].backward);
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
    epi_module *m = parse(text);
    for (int i = 1; i < 3 && m; i++)
        for (size_t t = 0; t < sizeof storage / sizeof *storage; t++)
            if (wanted("both %d %s", i, epi_dtype_name(storage[t])))
                hold(epi_module_program(m, i), "B=2,S=140,R=140,G=2,H=2,E=8,F=12", storage[t], 2);
    epi_module_free(m);
}

/* The gradients of some inputs alone, saved and in one program: what is summed for one of them may be what
 * the others' weights wait for, and is then another kernel. */
static void hold_some(const epi_program *program, const char *const *wrt, int count, const char *dims,
                      epi_dtype type) {
    epi_module *out[2] = {NULL, NULL};
    epi_error err = {0};
    check(epi_program_grad_saved(program, wrt, count, &out[0], &err) == EPI_OK &&
              epi_program_grad(program, wrt, count, &out[1], &err) == EPI_OK,
          "%s has gradients of %d inputs: %s", epi_program_name(program), count, err.message);
    for (int i = 0; i < 2 && out[0] && out[1]; i++)
        hold(epi_module_program(out[i], !i), dims, type, ANY_PARTS);
    epi_module_free(out[0]);
    epi_module_free(out[1]);
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
        epi_module *m = parse(texts[i]);
        const epi_program *program = m ? epi_module_program(m, 0) : NULL;
        epi_tensor_info info[8];
        int inputs = program ? epi_program_tensor_count(program) - 1 : 0;
        for (int a = 0; a < inputs; a++)
            epi_program_tensor(program, a, &info[a]);
        for (int set = 1; set < 1 << inputs; set++) {
            const char *wrt[8];
            int count = 0;
            for (int a = 0; a < inputs; a++)
                if (set >> a & 1)
                    wrt[count++] = info[a].name;
            for (int t = 0; t < 3 && (count > 1 || strcmp(wrt[0], "x")); t++) /* of x there is nothing */
                if ((i == 0 || t == (set + (int)i) % 3) &&
                    wanted("%s by set %d %s", epi_program_name(program), set, epi_dtype_name(storage[t])))
                    hold_some(program, wrt, count, "S=40,R=36,E=16", storage[t]);
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

static void test_spellings(void) {
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        char text[600];
        snprintf(text, sizeof text,
                 "spelling(q[B,S,H,E], k[B,R,H,E], v[B,R,H,F]) -> o[B,S,H,F] {\n"
                 "    s = where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf)\n    %s\n}\n",
                 spellings[i]);
        epi_module *m = parse(text);
        for (size_t t = 0; m && t < sizeof storage / sizeof *storage; t++)
            if (wanted("spelling %zu %s", i, epi_dtype_name(storage[t])))
                hold(epi_module_program(m, 0), "B=2,S=140,R=140,H=2,E=16,F=8", storage[t], 1);
        epi_module_free(m);
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
        if (!wanted("mask %s", masks[i]))
            continue;
        snprintf(text, sizeof text,
                 "masked(q[B,S,H,E], k[B,R,H,E], v[B,R,H,F], prefix: f32[B]) -> o[B,S,H,F] {\n"
                 "    s = where(%s, sum(q*k, E)*rsqrt(size(E)), -inf)\n    o = sum(softmax(s, R)*v, R)\n}\n",
                 masks[i]);
        epi_module *m = parse(text), *saved = m ? derive(epi_module_program(m, 0)) : NULL;
        if (saved) {
            hold(epi_module_program(m, 0), "B=2,S=260,R=260,H=1,E=16,F=8", EPI_F32, 1);
            hold(epi_module_program(saved, 1), "B=2,S=260,R=260,H=1,E=16,F=8", EPI_F32, 1);
        }
        epi_module_free(saved);
        epi_module_free(m);
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
        epi_module *m = parse(text), *saved = m ? derive(epi_module_program(m, 0)) : NULL;
        for (size_t t = 0; saved && t < sizeof storage / sizeof *storage; t++) {
            if (!wanted("%s %s", weights[i], epi_dtype_name(storage[t])))
                continue;
            hold(epi_module_program(m, 0), "S=260,R=300,E=16", storage[t], ANY_PARTS);
            hold(epi_module_program(saved, 1), "S=260,R=300,E=16", storage[t], ANY_PARTS);
        }
        epi_module_free(saved);
        epi_module_free(m);
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
        epi_module *m = parse(unnormalised[i].text), *saved = m ? derive(epi_module_program(m, 0)) : NULL;
        for (size_t t = 0; saved && t < sizeof storage / sizeof *storage; t++) {
            if (!wanted("%s %s", epi_program_name(epi_module_program(m, 0)), epi_dtype_name(storage[t])))
                continue;
            hold(epi_module_program(m, 0), unnormalised[i].dims, storage[t], 1);
            hold(epi_module_program(saved, 0), unnormalised[i].dims, storage[t], 1);
            hold(epi_module_program(saved, 1), unnormalised[i].dims, storage[t], unnormalised[i].backward);
        }
        epi_module_free(saved);
        epi_module_free(m);
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
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        epi_module *m = parse(all[i].text);
        if (m && wanted("other %zu", i))
            hold(epi_module_program(m, 0),
                 strstr(all[i].text, "[T,A") ? "T=140,A=2,E=16,R=150,F=24" : "T=140,E=16,R=150,F=24", EPI_F32,
                 all[i].parts);
        epi_module_free(m);
    }
}

/* ---- bits ---- */

static bool same_bits(const tensor *a, int64_t from, const tensor *b, int64_t at, int64_t count) {
    size_t size = epi_dtype_size(a->shape.type);
    return !memcmp(a->data + (size_t)from * size, b->data + (size_t)at * size, (size_t)count * size);
}

/* Of a larger problem the part that begins every tensor along its first axis, or along S: what is asked for.
 */
typedef struct smaller {
    const problem *from;
    const epi_program *program;
} smaller;

/* Each input's leading elements along every axis. */
static void fill_smaller(problem *p, const epi_program *program, void *arg) {
    const problem *from = ((smaller *)arg)->from;
    (void)program;
    for (int i = 0; i < p->inputs; i++) {
        tensor *t = &p->t[i];
        for (int64_t e = 0; e < t->shape.count; e++) {
            int64_t rest = e, at = 0, step = 1;
            for (int a = t->shape.rank - 1; a >= 0; a--) {
                at += rest % t->shape.sizes[a] * step;
                rest /= t->shape.sizes[a];
                step *= from->t[i].shape.sizes[a];
            }
            memcpy(t->data + (size_t)e * epi_dtype_size(t->shape.type),
                   from->t[i].data + (size_t)at * epi_dtype_size(t->shape.type),
                   epi_dtype_size(t->shape.type));
        }
    }
}

static void test_bits(const epi_module *module) {
    const epi_program *program = epi_module_find(module, "causal_attention");
    epi_module *saved = derive(program);
    uint64_t seed = 9;
    for (int back = 0; back < 2 && saved; back++)
        for (int t = 0; t < 2; t++) {
            const epi_program *p = back ? epi_module_program(saved, 1) : program;
            if (!wanted("bits of %s %s", epi_program_name(p), epi_dtype_name(storage[t])))
                continue;
            attempt whole, threads, alone, fewer;
            attempt_make(&whole, p,
                         (setting){"B=3,H=2,S=270,R=270,E=16,F=8", EPI_PATH_FUSED, storage[t], 1, false},
                         fill_meant, &seed);
            for (int n = 2; n <= 5; n += 3) {
                attempt_make(&threads, p,
                             (setting){"B=3,H=2,S=270,R=270,E=16,F=8", EPI_PATH_FUSED, storage[t], n, false},
                             fill_meant, &seed);
                for (int i = whole.p.inputs; i < whole.p.count && whole.ok && threads.ok; i++)
                    check(same_bits(&whole.p.t[i], 0, &threads.p.t[i], 0, whole.p.t[i].shape.count),
                          "%s %s with %d threads", epi_program_name(p), epi_dtype_name(storage[t]), n);
                attempt_free(&threads);
            }
            smaller from = {&whole.p, p};
            attempt_make(&alone, p,
                         (setting){"B=1,H=2,S=270,R=270,E=16,F=8", EPI_PATH_FUSED, storage[t], 2, false},
                         fill_smaller, &from);
            for (int i = whole.p.inputs; i < whole.p.count && whole.ok && alone.ok; i++)
                check(same_bits(&whole.p.t[i], 0, &alone.p.t[i], 0, alone.p.t[i].shape.count),
                      "%s %s: a sequence alone has the bits that it has in a batch", epi_program_name(p),
                      epi_dtype_name(storage[t]));
            attempt_free(&alone);
            if (!back) { /* the first queries, without those that come after them */
                attempt_make(&fewer, p,
                             (setting){"B=3,H=2,S=117,R=270,E=16,F=8", EPI_PATH_FUSED, storage[t], 2, false},
                             fill_smaller, &from);
                for (int64_t h = 0; h < 6 && whole.ok && fewer.ok; h++)
                    check(same_bits(&whole.p.t[3], h * 270 * 8, &fewer.p.t[3], h * 117 * 8, 117 * 8),
                          "%s: a row's bits do not depend on other rows", epi_dtype_name(storage[t]));
                attempt_free(&fewer);
            }
            attempt_free(&whole);
        }
    epi_module_free(saved);
}

/* ---- chunks of the stream ---- */

/* Lengths in and around the borders of tiles and chunks; else as meant. */
static void fill_lengths(problem *p, const epi_program *program, void *arg) {
    static const int lengths[] = {513, 1500, 0, 512, 1, 1025};
    fill_meant(p, program, arg);
    for (int i = 0; i < p->inputs; i++) {
        epi_tensor_info info;
        epi_program_tensor(program, i, &info);
        for (int64_t e = 0; e < p->t[i].shape.count && !strcmp(info.name, "length"); e++)
            put_element(p->t[i].data, p->t[i].shape.type, e, lengths[e % 6]);
    }
}

/* Few rows over a long stream, whose chunks threads share: the bits are those of one thread, and of a batch
 * in which they do not; and the error rule holds. */
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
        for (size_t t = 0; t < sizeof storage / sizeof *storage; t++) {
            const epi_program *program = epi_module_find(module, all[i].name);
            uint64_t seed = 6;
            attempt one;
            if (!wanted("chunks of %s %s", all[i].name, epi_dtype_name(storage[t])))
                continue;
            hold(program, all[i].one, storage[t], 1);
            attempt_make(&one, program, (setting){all[i].dims, EPI_PATH_FUSED, storage[t], 1, false},
                         fill_lengths, &seed);
            smaller from = {&one.p, program};
            static const int threads[] = {2, 3, 7};
            for (int n = 0; n < 3; n++) {
                attempt many, alone;
                attempt_make(&many, program,
                             (setting){all[i].dims, EPI_PATH_FUSED, storage[t], threads[n], false},
                             fill_lengths, &seed);
                attempt_make(&alone, program,
                             (setting){all[i].one, EPI_PATH_FUSED, storage[t], threads[n], false},
                             fill_smaller, &from);
                for (int o = one.p.inputs; o < one.p.count && one.ok && many.ok && alone.ok; o++) {
                    check(same_bits(&one.p.t[o], 0, &many.p.t[o], 0, one.p.t[o].shape.count),
                          "%s %s %s with %d threads", all[i].name, all[i].dims, epi_dtype_name(storage[t]),
                          threads[n]);
                    check(same_bits(&one.p.t[o], 0, &alone.p.t[o], 0, alone.p.t[o].shape.count),
                          "%s %s alone, %s, with %d threads", all[i].name, all[i].one,
                          epi_dtype_name(storage[t]), threads[n]);
                }
                attempt_free(&many);
                attempt_free(&alone);
            }
            attempt_free(&one);
        }
}

/* A token that is decoded alone, over a cache that is longer than the sequence so far, or over one that ends
 * with it, against its row of the whole sequence. */
enum { LONG = 1300, HEADS = 2, WIDTH = 16, VALUES = 8 };

typedef struct decoded {
    const problem *whole;
    int64_t position, keys;
} decoded;

static void fill_decoded(problem *p, const epi_program *program, void *arg) {
    const decoded *d = arg;
    (void)program;
    for (int i = 0; i < 3; i++) {
        int64_t width = i == 2 ? VALUES : WIDTH, rows = i ? d->keys : 1, first = i ? 0 : d->position;
        size_t size = epi_dtype_size(p->t[i].shape.type), bytes = (size_t)(rows * width) * size;
        for (int64_t h = 0; h < HEADS; h++)
            memcpy(p->t[i].data + (size_t)h * bytes,
                   d->whole->t[i].data + (size_t)((h * LONG + first) * width) * size, bytes);
    }
    if (p->inputs > 3)
        put_element(p->t[3].data, p->t[3].shape.type, 0, (double)(d->position + 1));
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

static void test_decoded(const epi_module *module) {
    static const int positions[] = {0, 1, 127, 128, 511, 512, 513, 700, 1023, 1024, LONG - 1};
    static const char *const texts[] = {"f(q[H,S,E], k[H,R,E], v[H,R,F], length: i32) -> o[H,S,F] {\n"
                                        "    s = where(index(R) < length, sum(q*k, E)*rsqrt(size(E)), -inf)\n"
                                        "    o = sum(softmax(s, R)*v, R) }\n",
                                        "f(q[H,S,E], k[H,R,E], v[H,R,F]) -> o[H,S,F] {\n"
                                        "    o = sum(softmax(sum(q*k, E)*rsqrt(size(E)), R)*v, R) }\n",
                                        "f(q[H,S,E], k[H,R,E], v[H,R,F]) -> o: f32[H,S,F] {\n"
                                        "    o = sum(softmax(sum(q*k, E)*rsqrt(size(E)), R)*abs(v), R) }\n"};
    epi_module *m[3];
    for (int i = 0; i < 3; i++)
        m[i] = parse(texts[i]);
    for (size_t t = 0; t < sizeof storage / sizeof *storage && m[0] && m[1] && m[2]; t++) {
        uint64_t seed = 12;
        attempt whole;
        if (!wanted("decoded %s", epi_dtype_name(storage[t])))
            continue;
        attempt_make(&whole, epi_module_find(module, "causal_attention"),
                     (setting){"B=1,H=2,S=1300,R=1300,E=16,F=8", EPI_PATH_FUSED, storage[t], 2, false},
                     fill_meant, &seed);
        for (size_t i = 0; i < sizeof positions / sizeof *positions && whole.ok; i++) {
            char dims[64];
            attempt alone, ends, exact, weighed;
            decoded d = {&whole.p, positions[i], LONG};
            attempt_make(&alone, epi_module_program(m[0], 0),
                         (setting){"H=2,S=1,R=1300,E=16,F=8", EPI_PATH_FUSED, storage[t], 3, false},
                         fill_decoded, &d);
            d.keys = positions[i] + 1;
            snprintf(dims, sizeof dims, "H=2,S=1,R=%d,E=16,F=8", (int)d.keys);
            attempt_make(&ends, epi_module_program(m[1], 0),
                         (setting){dims, EPI_PATH_FUSED, storage[t], 3, false}, fill_decoded, &d);
            attempt_make(&exact, epi_module_program(m[1], 0),
                         (setting){dims, EPI_PATH_REFERENCE, storage[t], 1, true}, fill_same, &ends.p);
            attempt_make(&weighed, epi_module_program(m[2], 0),
                         (setting){dims, EPI_PATH_REFERENCE, storage[t], 1, true}, fill_same, &ends.p);
            for (int64_t h = 0; h < HEADS && alone.ok && ends.ok && exact.ok && weighed.ok; h++) {
                int64_t row = (h * LONG + positions[i]) * VALUES;
                check(same_bits(&whole.p.t[3], row, &alone.p.t[4], h * VALUES, VALUES),
                      "%s: token %d alone has the bits of its row", epi_dtype_name(storage[t]), positions[i]);
                for (int64_t e = h * VALUES; e < (h + 1) * VALUES; e++) {
                    double want = get_element(exact.p.t[3].data, EPI_F64, e),
                           most =
                               off_by(storage[t], get_element(weighed.p.t[3].data, EPI_F64, e), want, d.keys),
                           first = fabs(get_element(alone.p.t[4].data, storage[t], e) - want),
                           second = fabs(get_element(ends.p.t[3].data, storage[t], e) - want);
                    check(first <= most && second <= most, "%s: token %d alone is %g and %g off, %g allowed",
                          epi_dtype_name(storage[t]), positions[i], first, second, most);
                }
            }
            attempt_free(&alone);
            attempt_free(&ends);
            attempt_free(&exact);
            attempt_free(&weighed);
        }
        attempt_free(&whole);
    }
    for (int i = 0; i < 3; i++)
        epi_module_free(m[i]);
}

/* ---- odd rows ---- */

enum { S = 150, R = 150, E = 8 };

static void fill_odd(problem *p, const epi_program *program, void *arg) {
    fill_meant(p, program, arg);
    for (int64_t e = 0; e < E; e++) {
        put_element(p->t[0].data, p->t[0].shape.type, 5 * E + e, NAN);      /* a query that is no number */
        put_element(p->t[0].data, p->t[0].shape.type, 7 * E + e, INFINITY); /* and one with infinite scores */
    }
}

/* A key that is no number, of the first sequence. */
enum { ODD_KEY = 60 };
static void fill_odd_key(problem *p, const epi_program *program, void *arg) {
    fill_meant(p, program, arg);
    put_element(p->t[1].data, p->t[1].shape.type, ODD_KEY * E + 3, NAN);
}

/* It makes those queries that see it no numbers, and leaves the others and other sequences as they were: in a
 * whole sequence, and of a token whose stream threads share. */
static void test_odd_key(const epi_module *module) {
    static const struct {
        const char *name, *dims;
        int64_t rows; /* of a sequence */
    } all[] = {{"causal_attention", "B=2,H=1,S=150,R=150,E=8,F=8", 150},
               {"full_attention", "B=2,H=1,S=3,R=1100,E=8,F=8", 3}};
    for (int i = 0; i < 2; i++) {
        uint64_t seed = 3;
        attempt odd, plain;
        const setting how = {all[i].dims, EPI_PATH_FUSED, EPI_F32, 2, false};
        attempt_make(&odd, epi_module_find(module, all[i].name), how, fill_odd_key, &seed);
        attempt_make(&plain, epi_module_find(module, all[i].name), how, fill_meant, &seed);
        for (int64_t r = 0; r < 2 * all[i].rows && odd.ok && plain.ok; r++) {
            if (r >= all[i].rows || (i == 0 && r < ODD_KEY)) {
                check(same_bits(&odd.p.t[3], r * E, &plain.p.t[3], r * E, E), "%s: row %d is as it was",
                      all[i].name, (int)r);
                continue;
            }
            for (int64_t e = 0; e < E; e++)
                check(isnan(get_element(odd.p.t[3].data, EPI_F32, r * E + e)), "%s: row %d is no number",
                      all[i].name, (int)r);
        }
        attempt_free(&odd);
        attempt_free(&plain);
    }
}

static void test_odd(const epi_module *module) {
    uint64_t seed = 3;
    attempt odd, plain;
    const setting how = {"B=1,H=1,S=150,R=150,E=8,F=8", EPI_PATH_FUSED, EPI_F32, 2, false};
    attempt_make(&odd, epi_module_find(module, "causal_attention"), how, fill_odd, &seed);
    attempt_make(&plain, epi_module_find(module, "causal_attention"), how, fill_meant, &seed);
    for (int64_t i = 0; i < S && odd.ok && plain.ok; i++) {
        if (i != 5 && i != 7) {
            check(same_bits(&odd.p.t[3], i * E, &plain.p.t[3], i * E, E), "row %d is as it was", (int)i);
            continue;
        }
        for (int64_t e = 0; e < E; e++)
            check(isnan(get_element(odd.p.t[3].data, EPI_F32, i * E + e)), "row %d is no number", (int)i);
    }
    attempt_free(&odd);
    attempt_free(&plain);
}

/* The same of weights that have no softmax: what is hidden is 0 whatever its score is. */
static void test_odd_weights(void) {
    epi_module *m = parse("causal_attention(q[B,H,S,E], k[B,H,R,E], v[B,H,R,F]) -> o[B,H,S,F] {\n"
                          "    o = sum(where(index(R) <= index(S), sum(q*k, E), 0)*v, R)\n}\n"
                          "full_attention(q[B,H,S,E], k[B,H,R,E], v[B,H,R,F]) -> o[B,H,S,F] {\n"
                          "    o = sum(tanh(sum(q*k, E))*v, R)\n}\n");
    if (m) {
        test_odd(m);
        test_odd_key(m);
    }
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
        epi_module *m = parse(all[i].text);
        uint64_t seed = 4;
        attempt a = {0};
        if (m)
            attempt_make(&a, epi_module_program(m, 0),
                         (setting){"S=150,R=150,E=8,F=8", EPI_PATH_FUSED, EPI_F32, 2, false}, fill_meant,
                         &seed);
        check(a.ok && attention_parts(a.kernel) == 1, "%s is attention", all[i].text);
        const tensor *out = a.ok ? &a.p.t[a.p.count - 1] : NULL;
        for (int64_t r = 0; r < S && out; r++)
            for (int64_t e = 0; e < E; e++) {
                double x = get_element(out->data, EPI_F32, r * E + e);
                bool sees = r + 20 < R;
                check(sees          ? isfinite(x)
                      : all[i].zero ? x == 0
                                    : isnan(x),
                      "%s: row %d is %g", all[i].text, (int)r, x);
            }
        attempt_free(&a);
        epi_module_free(m);
    }
}

/* What no row of a tile sees is not read: a cache may hold anything behind the tile of its last token. */
static void fill_cache(problem *p, const epi_program *program, void *arg) {
    fill_meant(p, program, arg);
    for (int t = 1; t < 3; t++)
        for (int64_t e = 0; e < p->t[t].shape.count; e++)
            if (e / (p->t[t].shape.sizes[2] * p->t[t].shape.sizes[3]) % p->t[t].shape.sizes[1] >= 128)
                put_element(p->t[t].data, p->t[t].shape.type, e, NAN);
}

static void test_hidden(const epi_module *module) {
    uint64_t seed = 8;
    attempt a;
    attempt_make(&a, epi_module_find(module, "decode_attention"),
                 (setting){"B=4,R=500,G=2,H=2,E=16", EPI_PATH_FUSED, EPI_F32, 2, false}, fill_cache, &seed);
    for (int64_t e = 0; e < a.p.t[4].shape.count && a.ok; e++) {
        double x = get_element(a.p.t[4].data, EPI_F32, e);
        check(e < 2 * 2 * 16 ? x == 0 : isfinite(x), "element %d of a decoded token is %g", (int)e, x);
    }
    attempt_free(&a);
}

/* Two documents, each of three tiles of keys, and nothing but NaN in the first one's keys and values: the
 * rows of tiles that have the second one alone do not read them. Forward and backward. */
static void fill_documents(problem *p, const epi_program *program, void *arg) {
    fill_meant(p, program, arg);
    for (int t = 0; t < p->inputs; t++) {
        epi_tensor_info info;
        tensor *at = &p->t[t];
        epi_program_tensor(program, t, &info);
        bool id = !strcmp(info.name, "query") || !strcmp(info.name, "key"),
             first = !strcmp(info.name, "k") || !strcmp(info.name, "v");
        int64_t inner = id ? 1 : at->shape.sizes[2] * (at->shape.rank > 3 ? at->shape.sizes[3] : 1);
        for (int64_t e = 0; e < at->shape.count && (id || first); e++) {
            bool second = e / inner % at->shape.sizes[1] >= 384;
            if (id)
                put_element(at->data, at->shape.type, e, second);
            else if (!second)
                put_element(at->data, at->shape.type, e, NAN);
        }
    }
}

static void test_documents(const epi_module *module) {
    const epi_program *program = epi_module_find(module, "document_attention");
    epi_module *saved = derive(program);
    for (int which = 0; which < 2 && saved; which++) {
        uint64_t seed = 9;
        attempt a;
        const epi_program *of = which ? epi_module_program(saved, 1) : program;
        attempt_make(&a, of, (setting){"B=1,S=768,R=768,H=1,E=8", EPI_PATH_FUSED, EPI_F32, 2, false},
                     fill_documents, &seed);
        for (int o = a.p.inputs; o < a.p.count && a.ok; o++)
            for (int64_t e = 512 * 8; e < a.p.t[o].shape.count; e++) {
                double x = get_element(a.p.t[o].data, EPI_F32, e);
                if (!check(isfinite(x), "%s: element %d of result %d, of the second document, is %g",
                           epi_program_name(of), (int)e, o - a.p.inputs, x))
                    break;
            }
        attempt_free(&a);
    }
    epi_module_free(saved);
}

/* A prefix of 11 positions in sequences of 768. Forward: nothing but NaN in the keys and values from 512 on,
 * which the first queries do not read; backward: in what belongs to the first 256 queries, which the last
 * keys do not read. */
static void fill_prefix(problem *p, const epi_program *program, void *arg) {
    fill_meant(p, program, arg);
    for (int t = 0; t < p->inputs; t++) {
        epi_tensor_info info;
        tensor *at = &p->t[t];
        epi_program_tensor(program, t, &info);
        bool back = p->count - p->inputs > 1;
        if (at->shape.rank < 2 || strcmp(info.axes[1].dim, back ? "S" : "R") != 0)
            continue;
        int64_t inner = at->shape.count / at->shape.sizes[0] / at->shape.sizes[1];
        for (int64_t e = 0; e < at->shape.count; e++) {
            int64_t position = e / inner % at->shape.sizes[1];
            if (back ? position < 256 : position >= 512)
                put_element(at->data, at->shape.type, e, NAN);
        }
    }
}

static void test_prefix(const epi_module *module) {
    const epi_program *program = epi_module_find(module, "prefix_attention");
    epi_module *saved = derive(program);
    for (int which = 0; which < 2 && saved; which++) {
        uint64_t seed = 10;
        attempt a;
        const epi_program *of = which ? epi_module_program(saved, 1) : program;
        attempt_make(&a, of, (setting){"B=1,S=768,R=768,H=1,E=8", EPI_PATH_FUSED, EPI_F32, 2, false},
                     fill_prefix, &seed);
        for (int o = a.p.inputs; o < a.p.count && a.ok; o++)
            for (int64_t e = which ? 576 * 8 : 0; e < (which ? 768 : 192) * 8; e++) {
                double x = get_element(a.p.t[o].data, EPI_F32, e);
                if (!check(isfinite(x),
                           "%s: element %d of result %d, which what is hidden is not read for, is %g",
                           epi_program_name(of), (int)e, o - a.p.inputs, x))
                    break;
            }
        attempt_free(&a);
    }
    epi_module_free(saved);
}

/* No rows, no keys, no features of a head. */
static void test_empty(const epi_module *module) {
    static const char *const dims[] = {"B=2,H=2,S=0,R=5,E=8,F=8", "B=0,H=2,S=4,R=5,E=8,F=8",
                                       "B=2,H=2,S=4,R=0,E=8,F=8", "B=1,H=1,S=1,R=1,E=1,F=1"};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        uint64_t seed = 2;
        attempt a;
        attempt_make(&a, epi_module_find(module, "full_attention"),
                     (setting){dims[i], EPI_PATH_FUSED, EPI_F32, 2, false}, fill_meant, &seed);
        for (int64_t e = 0; e < a.p.t[3].shape.count && a.ok; e++) {
            double x = get_element(a.p.t[3].data, EPI_F32, e);
            check(i == 2 ? x == 0 : isfinite(x), "%s: element %d is %g", dims[i], (int)e, x);
        }
        attempt_free(&a);
    }
    epi_module *m = parse("f(q[S,E], k[R,E], v[R,F]) -> o[S,F] {\n"
                          "    s = sum(q*k, E)  l = logsumexp(s, R)  o = sum(exp(s - l)*v, R) }\n");
    uint64_t seed = 2;
    attempt a;
    if (!m)
        return;
    attempt_make(&a, epi_module_program(m, 0),
                 (setting){"S=4,R=0,E=8,F=8", EPI_PATH_FUSED, EPI_F32, 2, false}, fill_meant, &seed);
    for (int64_t e = 0; e < a.p.t[3].shape.count && a.ok; e++)
        check(get_element(a.p.t[3].data, EPI_F32, e) == 0, "a sum over no keys is 0");
    attempt_free(&a);
    epi_module_free(m);
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
        static const char *const open_axes[] = {"R"};
        epi_dim_binding dims[] = {{"S", 4}, {"R", 600}, {"E", 8}, {"F", 8}};
        epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 4, .threads = 2, .open_axes = open_axes,
                                    .open_axis_count = 1);
        epi_error err = {0};
        epi_kernel *open = NULL;
        snprintf(text, sizeof text, "f(q[S,E], k[R,E], v[R,F]) -> o[S,F] {\n    s = sum(q*k, E)  %s\n}\n",
                 all[i].text);
        epi_module *m = parse(text);
        if (!m || !check(epi_kernel_compile(epi_module_program(m, 0), &o, &open, &err) == EPI_OK,
                         "%s with an open stream: %s", text, err.message)) {
            epi_module_free(m);
            continue;
        }
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            uint64_t seed = 2;
            char at[64];
            attempt closed;
            problem p;
            size_t bytes = 0;
            snprintf(at, sizeof at, "S=4,R=%d,E=8,F=8", (int)sizes[n]);
            attempt_make(&closed, epi_module_program(m, 0), (setting){at, EPI_PATH_FUSED, EPI_F32, 2, false},
                         fill_meant, &seed);
            bool ok =
                closed.ok && check(problem_make(&p, epi_module_program(m, 0), closed.kernel, LAYOUT_PLAIN) &&
                                       epi_kernel_workspace_at(open, &sizes[n], 1, &bytes, &err) == EPI_OK,
                                   "%s at %s: %s", text, at, err.message);
            if (ok) {
                void *work = aligned_alloc(64, (bytes + 64) / 64 * 64);
                const epi_call call = EPI_CALL(.tensors = p.args, .count = p.count, .workspace = work,
                                               .workspace_bytes = bytes, .sizes = &sizes[n], .size_count = 1);
                fill_same(&p, NULL, &closed.p);
                check(work && epi_kernel_call(open, &call, &err) == EPI_OK, "%s at %s: %s", text, at,
                      err.message);
                check(same_bits(&p.t[3], 0, &closed.p.t[3], 0, 4 * E), "%s at %s has the bits of one size",
                      text, at);
                for (int64_t e = 0; e < 4 * E && sizes[n] == 0; e++) {
                    double x = get_element(p.t[3].data, EPI_F32, e);
                    check(all[i].number ? x == 0 : isnan(x), "%s over no keys is %g", text, x);
                }
                free(work);
                problem_free(&p);
            }
            attempt_free(&closed);
        }
        epi_kernel_free(open);
        epi_module_free(m);
    }
}

int main(int argc, char **argv) {
    char path[512];
    epi_error err = {0};
    epi_module *module = NULL;
    snprintf(path, sizeof path, "%s/attention.epi", argc > 1 ? argv[1] : "programs");
    programs = read_whole(path, &programs_length);
    if (!check(programs && epi_context_open(&ctx, &err) == EPI_OK &&
                   epi_module_parse(ctx, programs, programs_length, path, &module, &err) == EPI_OK,
               "%s: %s", path, err.message))
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
    test_odd_key(module);
    test_odd_weights();
    test_nothing();
    test_hidden(module);
    test_documents(module);
    test_prefix(module);
    test_empty(module);
    test_open_keys();
    epi_module_free(module);
    epi_context_close(ctx);
    free(programs);
    return finish();
}

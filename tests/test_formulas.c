/* test_formulas.c: programs of rows are what their names say: gradients against central differences of the
 * forward programs, these against formulas written out here, all in f64; copies bit for bit. And all programs
 * are in the library, and can be called.
 *
 *     formulas [programs]
 */
#include "base/base.h"
#include "lang/bundled.h"
#include "lang/words.h"
#include "rows.h"

/* ---- gradients ---- */

/* A pair of programs. Tensors are matched by name: an input of the gradient is an input or a result of the
 * forward program, or d and the name of a result; a result of the gradient is d and the name of an input. */
typedef struct pair {
    const char *file, *forward, *dims[3];
    const char *gradient; /* NULL: the forward program's name with _grad */
} pair;

typedef struct nudge {
    const char *tensor;
    int64_t element;
    double by;
    uint64_t seed;
} nudge;

static void fill_nudged(ran *r, void *arg) {
    const nudge *n = arg;
    uint64_t seed = n->seed;
    fill_random(r, &seed);
    if (n->tensor)
        put_at(find(r, n->tensor), n->element, of(r, n->tensor, n->element) + n->by);
}

/* The number whose gradient it is: every result times what is given as its gradient. */
static double weighed(const ran *forward, const ran *gradient) {
    double total = 0;
    for (int i = forward->p.inputs; i < forward->p.count; i++) {
        char name[20];
        snprintf(name, sizeof name, "d%s", tensor_name(forward->program, i));
        const tensor *w = find(gradient, name);
        for (int64_t e = 0; w && !w->output && e < forward->p.t[i].shape.count; e++)
            total += at(&forward->p.t[i], e) * at(w, w->shape.rank ? e : 0);
    }
    return total;
}

static double nudged(ran *forward, const ran *gradient, nudge n) {
    return refill(forward, fill_nudged, &n) ? weighed(forward, gradient) : NAN;
}

static void test_gradient(const pair *p, const char *dims, uint64_t seed) {
    char gradient[64];
    snprintf(gradient, sizeof gradient, p->gradient ? "%s" : "%s_grad",
             p->gradient ? p->gradient : p->forward);
    ran f, g;
    nudge none = {NULL, 0, 0, seed};
    run_program(&f, p->file, p->forward, dims, in_f64, fill_nudged, &none);
    own b = {.seed = seed, .from = &f};
    run_program(&g, p->file, gradient, dims, in_f64, fill_own, &b);
    int compared = 0;
    for (int i = g.p.inputs; i < g.p.count && f.ok && g.ok; i++) {
        const char *name = tensor_name(g.program, i);
        const tensor *input = find(&f, name + 1);
        if (!check(input && !input->output && input->shape.count == g.p.t[i].shape.count,
                   "%s: %s is the gradient of an input", gradient, name))
            continue;
        double worst = 0, numeric_there = 0;
        int64_t count = g.p.t[i].shape.count, step = count > 60 ? count / 30 : 1;
        for (int64_t e = 0; e < count; e += step, compared++) {
            double h = 6e-6, exact = at(&g.p.t[i], e);
            double high = nudged(&f, &g, (nudge){name + 1, e, h, seed}),
                   low = nudged(&f, &g, (nudge){name + 1, e, -h, seed});
            double numeric = (high - low) / (2 * h), off = apart(exact, numeric) / (1 + fabs(numeric));
            if (!(off <= worst)) {
                worst = off;
                numeric_there = numeric;
            }
        }
        check(worst <= 1e-6, "%s %s: %s is off by %g beside central differences (%g there)", gradient, dims,
              name, worst, numeric_there);
    }
    check(compared > 0, "%s %s: something was compared", gradient, dims);
    DISCARD(&f, &g);
}

static void test_gradients(void) {
    static const pair pairs[] = {
        {"norms", "rmsnorm_saved", {"T=3,D=7", "T=1,D=1", "T=2,D=13"}, "rmsnorm_grad"},
        {"norms", "layernorm_saved", {"T=3,D=7", "T=1,D=2", "T=2,D=13"}, "layernorm_grad"},
        {"softmax", "softmax", {"T=3,D=7", "T=1,D=1", "T=2,D=13"}, NULL},
        {"softmax", "log_softmax", {"T=3,D=7", "T=1,D=1", "T=2,D=13"}, NULL},
        {"losses", "token_loss", {"T=5,V=7", "T=1,V=1", "T=7,V=13"}, NULL},
        {"losses", "token_loss_smooth", {"T=5,V=7", "T=1,V=1", "T=7,V=13"}, NULL},
        {"losses", "token_loss_capped", {"T=5,V=7", "T=1,V=1", "T=7,V=13"}, NULL},
        {"gated", "swiglu_gate", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"gated", "swiglu_gate_pairs", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"gated", "swiglu_gate_halves", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"gated", "geglu_gate", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"gated", "geglu_gate_pairs", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"gated", "geglu_gate_halves", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"gated", "geglu_tanh_gate", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"gated", "reglu_gate", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"gated", "reglu_gate_pairs", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"gated", "reglu_gate_halves", {"T=3,F=5", "T=1,F=1"}, NULL},
        {"rotary", "rotary_pairs", {"B=2,S=3,H=1,D=2", "B=1,S=2,H=3,D=6"}, NULL},
        {"rotary", "rotary_halves", {"B=2,S=3,H=1,D=2", "B=1,S=2,H=3,D=6"}, NULL},
        {"rotary", "rotary_packed_pairs", {"P=5,T=3,H=1,D=2", "P=3,T=5,H=3,D=6"}, NULL},
        {"rotary", "rotary_packed_halves", {"P=5,T=3,H=1,D=2", "P=3,T=5,H=3,D=6"}, NULL},
        {"embedding", "embedding", {"V=3,D=5,T=7", "V=1,D=1,T=1", "V=13,D=2,T=5"}, NULL},
        {"embedding", "embedding_scaled", {"V=3,D=5,T=7", "V=1,D=1,T=1"}, NULL},
        {"embedding", "embedding_learned", {"V=3,P=7,D=5,B=3,S=5", "V=1,P=1,D=1,B=2,S=1"}, NULL},
        {"embedding", "embedding_packed", {"V=3,P=5,D=5,T=11", "V=1,P=1,D=1,T=1"}, NULL},
        {"embedding", "permute_rows", {"T=5,R=11,D=3", "T=1,R=1,D=1"}, NULL},
        {"embedding", "unpermute_rows", {"T=5,R=11,D=3", "T=1,R=1,D=1"}, NULL},
        {"embedding", "combine_rows", {"T=5,R=11,D=3", "T=1,R=1,D=1"}, NULL},
        {"dropout", "dropout", {"T=5,D=7", "T=1,D=2"}, NULL},
        {"dropout", "dropout_add", {"T=5,D=7", "T=1,D=2"}, "dropout_grad"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int d = 0; d < 3 && pairs[i].dims[d]; d++)
            test_gradient(&pairs[i], pairs[i].dims[d], 40 + i);
}

/* ---- formulas ---- */

static void test_gates(void) {
    static const char *const names[] = {"swiglu", "geglu", "reglu", "geglu_tanh"};
    enum { T = 3, F = 5 };
    for (int n = 0; n < 4; n++)
        for (int form = 0; form < (n < 3 ? 3 : 1); form++) {
            static const char *const forms[] = {"gate", "gate_pairs", "gate_halves"};
            char program[32];
            snprintf(program, sizeof program, "%s_%s", names[n], forms[form]);
            ran r;
            bool ok = run_program(&r, "gated", program, "T=3,F=5", in_f64, fill_random, &(uint64_t){9});
            for (int t = 0; t < T && ok; t++)
                for (int i = 0; i < F; i++) {
                    int z = t * 2 * F;
                    double gate = form == 0   ? of(&r, "gate", t * F + i)
                                  : form == 1 ? of(&r, "z", z + 2 * i)
                                              : of(&r, "z", z + i),
                           up = form == 0   ? of(&r, "up", t * F + i)
                                : form == 1 ? of(&r, "z", z + 2 * i + 1)
                                            : of(&r, "z", z + F + i);
                    double inner = sqrt(2 / acos(-1)) * (gate + 0.044715 * gate * gate * gate);
                    double act = n == 0   ? gate / (1 + exp(-gate))
                                 : n == 1 ? gate * 0.5 * (1 + erf(gate / sqrt(2)))
                                 : n == 2 ? fmax(gate, 0)
                                          : gate * 0.5 * (1 + tanh(inner));
                    ok &= close_to(of(&r, "y", t * F + i), act * up);
                }
            check(ok, "%s is what its name says", program);
            discard(&r);
        }
}

/* Smoothing, z-loss and cap by their definitions: the cross-entropy of a softmax with a smoothed target. */
static void test_loss(void) {
    enum { T = 7, V = 13 };
    ran r;
    run_program(&r, "losses", "token_loss_capped", "T=7,V=13", in_f64, fill_random, &(uint64_t){11});
    double cap = scalar_value("cap"), s = scalar_value("smoothing");
    bool ok = r.ok;
    int counted = 0;
    for (int t = 0; t < T && ok; t++) {
        double sum = 0, loss = 0;
        int y = (int)of(&r, "y", t);
        for (int v = 0; v < V; v++)
            sum += exp(cap * tanh(of(&r, "z", t * V + v) / cap));
        for (int v = 0; v < V; v++)
            loss -= ((1 - s) * (v == y) + s / V) * log(exp(cap * tanh(of(&r, "z", t * V + v) / cap)) / sum);
        loss += scalar_value("zloss") * log(sum) * log(sum);
        bool counts = y >= 0 && y != (int)scalar_value("ignore");
        counted += counts;
        ok &= close_to(of(&r, "lse", t), log(sum)) && close_to(of(&r, "loss", t), counts ? loss : 0);
    }
    check(ok && counted > 0 && counted < T, "the loss with smoothing, z-loss and cap, %d of %d counted",
          counted, T);
    discard(&r);
}

static void fill_adamw(ran *r, void *arg) {
    uint64_t s = *(uint64_t *)arg;
    static const char *const tensors[] = {"w", "grad", "m", "v"};
    for (int i = 0; i < 4; i++)
        for (int e = 0; e < 7; e++) /* v is a mean of squares */
            put(r, tensors[i], e, i == 3 ? 1e-3 * random_unit(&s) : 2 * random_unit(&s) - 1);
    put_adamw_scalars(r, 1e-3, 0.1);
}

static void test_adamw(void) {
    ran r;
    bool ok = run_program(&r, "optim", "adamw", "N=7", in_f64, fill_adamw, &(uint64_t){13});
    for (int i = 0; i < 7 && ok; i++) {
        adamw want = adamw_step(&r, i, 1e-3, 0.1);
        ok &= close_to(of(&r, "m_next", i), want.m) && close_to(of(&r, "v_next", i), want.v) &&
              close_to(of(&r, "w_next", i), want.w) && close_to(of(&r, "w_bf16", i), want.w);
    }
    check(ok, "a step of AdamW");
    discard(&r);
}

static void fill_squares(ran *r, void *arg) {
    for (int i = 0; i < 5; i++)
        put(r, "squares", i, *(double *)arg);
    put(r, "most", 0, 1);
}

static void test_clip(void) {
    static const double squares[] = {0, 0.01, 20};
    for (int i = 0; i < 3; i++) {
        double each = squares[i], norm = sqrt(5 * each);
        ran r;
        run_program(&r, "optim", "clip_factor", "P=5", in_f64, fill_squares, &each);
        check(r.ok && close_to(of(&r, "norm", 0), norm) &&
                  close_to(of(&r, "clip", 0), norm < 1 ? 1 : 1 / (norm + 1e-6)),
              "the factor for a norm of %g", norm);
        discard(&r);
    }
}

/* ---- copies ---- */

/* The element of x that element e of y is, by the axes of y in terms of those of x. */
static int64_t source_of(const ran *r, int64_t e, const int *axes) {
    const epi_tensor_shape *x = &r->p.t[0].shape;
    int64_t step[4] = {0}, from = 0, at = 1;
    for (int a = x->rank - 1; a >= 0; a--) {
        step[a] = at;
        at *= x->sizes[a];
    }
    for (int a = x->rank - 1; a >= 0; a--) {
        from += e % x->sizes[axes[a]] * step[axes[a]];
        e /= x->sizes[axes[a]];
    }
    return from;
}

static void test_copies(void) {
    static const struct {
        const char *program, *dims;
        int axes[4];
    } copies[] = {{"transpose", "M=7,N=13", {1, 0}},
                  {"swap_heads", "B=2,S=5,H=3,D=7", {0, 2, 1, 3}},
                  {"swap_keys", "B=2,S=5,H=3,D=7", {0, 2, 3, 1}},
                  {"reverse_axes", "A=2,B=3,C=5,D=7", {3, 2, 1, 0}}};
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    for (int i = 0; i < 4; i++)
        for (int w = 0; w < 6; w++) {
            way how = {.path = w & 1 ? EPI_PATH_UNFUSED : EPI_PATH_FUSED, .type = types[w / 2]};
            ran r;
            size_t size = epi_dtype_size(how.type);
            bool ok = run_program(&r, "copies", copies[i].program, copies[i].dims, how, fill_random,
                                  &(uint64_t){14});
            for (int64_t e = 0; ok && e < r.p.t[0].shape.count; e++)
                ok = !memcmp(r.p.t[1].data + (size_t)e * size,
                             r.p.t[0].data + (size_t)source_of(&r, e, copies[i].axes) * size, size);
            check(ok, "%s keeps bits and puts them where they belong, %s", copies[i].program,
                  epi_dtype_name(how.type));
            discard(&r);
        }
}

/* ---- the programs of the library ---- */

/* The tensors of a program as they are declared, or their names alone. */
static void add_tensors(epi_text *t, const epi_program *p, bool outputs, bool declared) {
    const char *comma = "";
    for (int i = 0; i < epi_program_tensor_count(p); i++) {
        epi_tensor_info info;
        epi_program_tensor(p, i, &info);
        if (info.is_output != outputs)
            continue;
        epi_text_add(t, "%s%s", comma, info.name);
        comma = ", ";
        if (declared && info.has_type)
            epi_text_add(t, ": %s", epi_dtype_name(info.type));
        for (int a = 0; a < info.rank && declared; a++)
            epi_text_add(t, "%s%s%s%s", a ? "," : "[", info.axes[a].shift > 0 ? "2*" : "", info.axes[a].dim,
                         info.axes[a].shift < 0 ? "/2" : "");
        epi_text_add(t, declared && info.rank ? "]" : "");
    }
}

/* A text that is a call of the program checks, unless the program has an axis that no argument has. */
static void test_called(const epi_program *p) {
    epi_text t = {0};
    epi_text_add(&t, "caller(");
    add_tensors(&t, p, false, true);
    epi_text_add(&t, ") -> (");
    add_tensors(&t, p, true, true);
    epi_text_add(&t, ") { ");
    add_tensors(&t, p, true, false);
    epi_text_add(&t, " = %s(", epi_program_name(p));
    add_tensors(&t, p, false, false);
    /* a word of its name comes first */
    epi_text_add(&t, epi_word_find(epi_program_name(p)) ? ", D) }" : ") }");
    epi_module *m = NULL;
    epi_error err;
    epi_status status = epi_module_parse(ctx, t.data, t.length, "t", &m, &err);
    char printed[4000]; /* a caller says i4, too: here it says what the bytes are */
    epi_program_print(p, printed, sizeof printed);
    check(status == EPI_OK || strstr(err.message, "do not give the size of axis") ||
              strstr(printed, ": i4[") || strstr(printed, ": u4["),
          "%s: %s", t.data, err.message);
    epi_module_free(m);
    epi_text_free(&t);
}

static int files;
static void count_file(const char *path) {
    files += *path != 0;
}

/* What is in the folder is in the library, byte for byte, and each name is there once. */
static void test_bundled(void) {
    int count = 0, names = 0;
    const char *seen[512];
    for_texts(folder, count_file);
    epi_module *modules[64];
    for (const epi_bundled_file *f; count < 64 && (f = epi_bundled_at(count)); count++) {
        char path[600];
        size_t length = 0;
        epi_error err;
        snprintf(path, sizeof path, "%s/%s", folder, f->name);
        char *text = read_whole(path, &length);
        check(text && strlen(f->text) == length && !memcmp(text, f->text, length), "%s is in the library",
              f->name);
        free(text);
        if (!check(epi_module_parse(ctx, f->text, strlen(f->text), f->name, &modules[count], &err) == EPI_OK,
                   "%s parses: %s", f->name, err.message))
            return;
        for (int i = 0; i < epi_module_count(modules[count]) && names < 512; i++) {
            const epi_program *p = epi_module_program(modules[count], i);
            for (int j = 0; j < names; j++)
                check(strcmp(seen[j], epi_program_name(p)) != 0, "%s is there once", seen[j]);
            seen[names++] = epi_program_name(p);
            test_called(p);
        }
    }
    check(count == files, "%d files in the folder, %d in the library", files, count);
    while (count > 0)
        epi_module_free(modules[--count]);
}

int main(int argc, char **argv) {
    folder = argc > 1 ? argv[1] : "programs";
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    test_gradients();
    test_gates();
    test_loss();
    test_adamw();
    test_clip();
    test_copies();
    test_bundled();
    epi_context_close(ctx);
    return finish();
}

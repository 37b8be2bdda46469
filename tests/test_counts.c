/* test_counts.c: how often compiling asks the same question: upper bounds, which may only fall.
 *
 *     counts           compiles a few programs, and compares what was counted with the table below
 *     counts print     prints what was counted, as rows of that table
 *
 * The linker puts the functions below in the place of the library's (--wrap), wherever another file calls those. */
#include "ran.h"

#include "ir/content.h"
#include "pass/place/extract.h"
#include "pass/place/kept.h"
#include "pass/place/placer.h"

enum { PLANS, ATTENTIONS, PLACERS, CUTS, PARTS, COUNTS };
static const char *const names[COUNTS] = {"plans made", "searches for attention", "placements made", "cuts",
                                          "parts written"};
static int counted[COUNTS];
static epi_context *ctx;

epi_status __real_epi_plan_make(epi_arena *, const epi_spec *, epi_plan *, epi_error *);
epi_status __wrap_epi_plan_make(epi_arena *, const epi_spec *, epi_plan *, epi_error *);
epi_status __wrap_epi_plan_make(epi_arena *arena, const epi_spec *spec, epi_plan *out, epi_error *err) {
    counted[PLANS]++;
    return __real_epi_plan_make(arena, spec, out, err);
}

bool __real_epi_attentions_find(epi_arena *, const epi_spec *, const epi_backend_limits *, const unsigned *,
                                epi_attentions *);
bool __wrap_epi_attentions_find(epi_arena *, const epi_spec *, const epi_backend_limits *, const unsigned *,
                                epi_attentions *);
bool __wrap_epi_attentions_find(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                                const unsigned *without, epi_attentions *out) {
    counted[ATTENTIONS]++;
    return __real_epi_attentions_find(arena, spec, limits, without, out);
}

epi_status __real_epi_placer_make(epi_arena *, const epi_spec *, const epi_backend_limits *, const unsigned *,
                                  const int *, epi_placer *, epi_error *);
epi_status __wrap_epi_placer_make(epi_arena *, const epi_spec *, const epi_backend_limits *, const unsigned *,
                                  const int *, epi_placer *, epi_error *);
epi_status __wrap_epi_placer_make(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                                  const unsigned *without, const int *spills, epi_placer *out,
                                  epi_error *err) {
    counted[PLACERS]++;
    return __real_epi_placer_make(arena, spec, limits, without, spills, out, err);
}

epi_status __real_epi_cut_make(epi_arena *, const epi_spec *, const epi_backend_limits *, epi_cut *,
                               epi_error *);
epi_status __wrap_epi_cut_make(epi_arena *, const epi_spec *, const epi_backend_limits *, epi_cut *,
                               epi_error *);
epi_status __wrap_epi_cut_make(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                               epi_cut *out, epi_error *err) {
    counted[CUTS]++;
    return __real_epi_cut_make(arena, spec, limits, out, err);
}

bool __real_epi_extract_begin(epi_extract *, const epi_graph *, epi_graph *, int);
bool __wrap_epi_extract_begin(epi_extract *, const epi_graph *, epi_graph *, int);
bool __wrap_epi_extract_begin(epi_extract *x, const epi_graph *from, epi_graph *to, int tensors) {
    counted[PARTS]++;
    return __real_epi_extract_begin(x, from, to, tensors);
}

/* A verdict that was kept is the one that would be found again. */
epi_verdict __real_epi_verdict_of(const epi_spec *);
epi_verdict __wrap_epi_verdict_of(const epi_spec *);
epi_verdict __wrap_epi_verdict_of(const epi_spec *spec) {
    epi_verdict is = __real_epi_verdict_of(spec);
    int had[COUNTS];
    epi_spec anew = *spec;
    memcpy(had, counted, sizeof had);
    anew.kept = NULL;
    epi_verdict again = __real_epi_verdict_of(&anew);
    memcpy(counted, had, sizeof had);
    check(is.fused == again.fused && is.plain == again.plain && is.granted == again.granted &&
              is.launches == again.launches,
          "a verdict that was kept is another one");
    return is;
}

/* The most that was counted of each, in the order of `names`: lower a bound when a change lowers what is counted. */
static const struct row {
    const char *file, *program, *dims;
    int device;
    bool backward;
    int most[COUNTS];
} rows[] = {
    {"tests/models.epi",
     "attention_layer",
     "B=2,S=4096,D=2048,G=8,H=4,E=64,F=8192",
     -90,
     true,
     {70, 52, 18, 12, 454}},
    {"tests/models.epi",
     "attention_layer",
     "B=2,S=4096,D=2048,G=8,H=4,E=64,F=8192",
     0,
     true,
     {60, 27, 6, 6, 174}},
    {"tests/models.epi",
     "llama_layer",
     "T=8192,D=4096,H=32,G=8,E=128,F=14336",
     -90,
     true,
     {42, 23, 12, 6, 128}},
    {"tests/models.epi", "llama", "T=4096,D=4096,H=32,G=8,E=128,F=14336", -90, false, {38, 20, 9, 4, 84}},
    {"programs/norm_swiglu.epi", "norm_swiglu", "T=4096,D=4096,F=8192", -90, false, {1, 2, 1, 1, 1}},
};

static void count_program(const epi_program *p, const struct row *r, bool print) {
    epi_kernel *k = NULL;
    epi_error err = {0};
    memset(counted, 0, sizeof counted);
    epi_status status = compile_as(
        p, r->dims, (way){.type = EPI_BF16, .device = r->device, .micro = r->device ? NULL : "plain"}, &k,
        &err);
    check(status == EPI_OK, "%s compiles: %s", epi_program_name(p), err.message);
    epi_kernel_free(k);
    for (int c = 0; c < COUNTS; c++)
        if (print)
            printf("%s%d", c ? ", " : "    ", counted[c]);
        else
            check(counted[c] <= r->most[c], "%s for device %d: %s: %d, at most %d before",
                  epi_program_name(p), r->device, names[c], counted[c], r->most[c]);
    if (print)
        printf("   %s %d\n", epi_program_name(p), r->device);
}

/* ---- what tells programs from each other ---- */

static epi_hash content_of(const char *text, const char *dims, epi_dtype type) {
    epi_module *m = parsed(ctx, text);
    epi_kernel *k = NULL;
    epi_error err = {0};
    check(compile_as(last_of(m), dims, (way){.type = type}, &k, &err) == EPI_OK, "%s compiles: %s", text,
          err.message);
    epi_hash content = k ? epi_spec_content(&k->spec) : (epi_hash){0, 0};
    epi_kernel_free(k);
    epi_module_free(m);
    return content;
}

static void check_content(void) {
    static const struct {
        const char *text, *other;
        bool equal;
    } pairs[] = {
        {"f(a[T,D], b[T,D]) -> y[T,D] { y = a - b }", "g(p[T,D], q[T,D]) -> r[T,D] { r = p - q }", true},
        {"f(a[T,D], b[T,D]) -> y[T,D] { y = a - b }", "f(a[T,D], b[T,D]) -> y[T,D] { y = b - a }", false},
        {"f(a[T,D]) -> y[D] { y = sum(a, T) }", "f(a[T,D]) -> y[T] { y = sum(a, D) }", false},
        {"f(a[T,D]) -> y[T] { y = max(a, D) }", "f(a[T,D]) -> y[T] { y = sum(a, D) }", false},
        {"f(a[T,D]) -> y[T,D] { y = 2*a }", "f(a[T,D]) -> y[T,D] { y = 3*a }", false},
        {"f(a[T,D]) -> y[T,D] { y = 2*a }", "f(a[T,D]) -> y: f16[T,D] { y = 2*a }", false},
        {"f(a[T,D]) -> y[T,D] { y = 2*a }", "f(a: i8[T,D]) -> y[T,D] { y = 2*a }", false},
        {"f(a[T,D], b[D,T]) -> y[T,D] { y = a + b }", "f(a[T,D], b[T,D]) -> y[T,D] { y = a + b }", false},
        {"f(a[T,D], b[T/2]) -> y[T,D] { y = a + sum(b, T/2) }",
         "f(a[T,D], b[D/2]) -> y[T,D] { y = a + sum(b, D/2) }", false},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        check(epi_hash_equal(content_of(pairs[i].text, "T=8,D=8", EPI_F32),
                             content_of(pairs[i].other, "T=8,D=8", EPI_F32)) == pairs[i].equal,
              "%s and %s are %s", pairs[i].text, pairs[i].other, pairs[i].equal ? "equal" : "not equal");
    check(!epi_hash_equal(content_of(pairs[0].text, "T=8,D=8", EPI_F32),
                          content_of(pairs[0].text, "T=9,D=8", EPI_F32)),
          "sizes tell programs from each other");
    check(!epi_hash_equal(content_of(pairs[0].text, "T=8,D=8", EPI_F32),
                          content_of(pairs[0].text, "T=8,D=8", EPI_BF16)),
          "and so do types");
}

int main(int argc, char **argv) {
    bool print = argc > 1 && !strcmp(argv[1], "print");
    check(epi_context_open(&ctx, NULL) == EPI_OK, "a context");
    if (wanted("content"))
        check_content();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        if (!wanted("%s %d", r->program, r->device))
            continue;
        epi_module *m = parsed_file(ctx, r->file), *both = NULL;
        const epi_program *p = epi_module_find(m, r->program);
        if (r->backward)
            both = derived(p, NULL, epi_program_grad_saved);
        count_program(both ? last_of(both) : p, r, print);
        epi_module_free(both);
        epi_module_free(m);
    }
    epi_context_close(ctx);
    return finish();
}

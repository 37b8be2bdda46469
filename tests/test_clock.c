/* test_clock.c: the parts of a run, timed.
 *
 * The results have the bits of a run that is not timed. Each part that runs has a time, and as many runs as there are
 * slabs; one that is prepared has none. All together take no longer than the call. */
#include <time.h>

#include "ran.h"

static epi_context *ctx;

enum { MOST = 16 };

static const struct timed {
    const char *dims, *text;
    int parts, prepared;
    const char *slow; /* an output of the part that takes longer than all others; or NULL */
} cases[] = {
    {"T=9,D=8", "one(x[T,D]) -> y[T,D] { y = 2*x }", 1, 0, NULL},
    {"T=64,D=400,F=900",
     "three(x[T,D], w[F,D], u[D,F]) -> (y[T,D], q[T]) {\n"
     "    h = silu(x @ w)\n    y = h @ u\n    q = sum(softmax(y, D)*y, D)\n}",
     3, 0, NULL},
    {"T=300,D=8,F=600,E=2000",
     "unequal(x[T,D], w[F,D], v[E,F]) -> (y[T,E], n[T,D]) { n = softmax(x, D)  y = softmax(n @ w, F) @ v }",
     0, 0, "y"},
    {"T=70,D=48,E=32,F=64",
     "fold(x[T,D], a[T,E], wo: param[D,E], g: param[D], w: param[F,D]) -> (h[T,D], z[T,F]) {\n"
     "    h = x + a @ wo\n    n = h*rsqrt(mean(h*h, D) + 1e-05)*g\n    z = n @ w\n}",
     3, 1, NULL},
};

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A timed run of what was made; *elapsed is what the call took. */
static epi_status time_run(ran *r, double *seconds, int *runs, int *launches, int count, double *elapsed,
                           epi_error *err) {
    void *work = aligned_alloc(64, epi_kernel_workspace(r->k)), *prepared = NULL;
    bool ok = problem_prepare(r->k, &r->p, &prepared);
    const epi_call call =
        EPI_CALL(.tensors = r->p.args, .count = r->p.count, .workspace = work, .prepared = prepared);
    poison_outputs(&r->p);
    double start = now();
    epi_status status =
        ok ? epi_kernel_time_parts(r->k, &call, seconds, runs, launches, count, err) : EPI_ERR_MEMORY;
    *elapsed = now() - start;
    free(work);
    free(prepared);
    return status;
}

/* Does the part store the output? */
static bool stores(const epi_kernel *k, int part, const char *output) {
    char text[4096], name[64];
    epi_kernel_part_print(k, part, text, sizeof text);
    snprintf(name, sizeof name, " %s[", output);
    const char *gives = strstr(text, "->");
    return gives && strstr(gives, name) && strstr(gives, name) < strchr(gives, '{');
}

static void check_case(const struct timed *c, way how) {
    ran plain = {0}, got = {0};
    double seconds[MOST], elapsed, sum = 0, slow = 0;
    int runs[MOST], launches[MOST];
    epi_error err = {0};
    if (made_of(&plain, ctx, c->text, c->dims, how) && run_again(&plain) &&
        made_of(&got, ctx, c->text, c->dims, how)) {
        epi_kernel_info info = info_of(got.k);
        const char *name = epi_program_name(got.program);
        check(!c->parts || info.parts == c->parts, "%s has %d parts", name, info.parts);
        check(info.prepared == c->prepared, "%s prepares %d", name, info.prepared);
        epi_status status = time_run(&got, seconds, runs, launches, info.parts, &elapsed, &err);
        if (check(status == EPI_OK, "%s is timed: %s", name, err.message))
            check(same_outputs(&plain, &got), "%s has its bits where it is timed", name);
        for (int i = 0; i < info.parts && status == EPI_OK; i++) {
            bool ran = i >= info.prepared;
            check(ran ? seconds[i] > 0 : seconds[i] == 0, "part %d of %s takes %g s", i + 1, name,
                  seconds[i]);
            check(ran ? runs[i] >= 1 && runs[i] <= info.slabs : !runs[i], "it runs %d times", runs[i]);
            check(!launches[i], "and launches nothing on a CPU");
            sum += seconds[i];
            slow += c->slow && stores(got.k, i, c->slow) ? seconds[i] : 0;
        }
        check(sum <= elapsed, "the parts of %s take %g s of %g", name, sum, elapsed);
        check(!c->slow || slow > 0.5 * sum, "%s is most of %s: %g s of %g", c->slow, name, slow, sum);
    }
    DISCARD(&plain, &got);
}

/* Under a memory limit parts run once for each slab. */
static void test_slabs(void) {
    static const char text[] = "mlp(x[T,D], w[F,D], u[D,F]) -> y[T,D] { h = silu(x @ w)  n = "
                               "h*rsqrt(mean(h*h, F) + 1e-5)  y = n @ u }";
    ran got = {0};
    double seconds[MOST], elapsed;
    int runs[MOST], most = 0;
    epi_error err = {0};
    if (made_of(&got, ctx, text, "T=512,D=32,F=1024", (way){.memory = 2600000})) {
        epi_kernel_info info = info_of(got.k);
        check(info.slabs > 1, "%d slabs", info.slabs);
        check(time_run(&got, seconds, runs, NULL, info.parts, &elapsed, &err) == EPI_OK, "it is timed: %s",
              err.message);
        for (int i = 0; i < info.parts; i++)
            most = runs[i] > most ? runs[i] : most;
        check(most == info.slabs, "a part runs %d times in %d slabs", most, info.slabs);
    }
    DISCARD(&got);
}

static void test_refused(void) {
    const struct timed *c = &cases[1];
    ran got = {0}, open = {0};
    double seconds[MOST], elapsed;
    int64_t sizes[] = {3};
    epi_error err = {0};
    if (!made_of(&got, ctx, c->text, c->dims, (way){0}))
        return;
    epi_call call = EPI_CALL(.tensors = got.p.args, .count = got.p.count, .workspace = got.p.args[0].data);
    refused_as(time_run(&got, seconds, NULL, NULL, 2, &elapsed, &err), EPI_ERR_ARGUMENT, &err,
               "has 3 parts; room for 2");
    refused_as(epi_kernel_time_parts(got.k, &call, NULL, NULL, NULL, 3, &err), EPI_ERR_ARGUMENT, &err,
               "may not be NULL");
    refused_as(epi_kernel_time_parts(got.k, NULL, seconds, NULL, NULL, 3, &err), EPI_ERR_ARGUMENT, &err,
               "may not be NULL");
    refused_as(epi_kernel_time_parts(NULL, &call, seconds, NULL, NULL, 3, &err), EPI_ERR_ARGUMENT, &err,
               "may not be NULL");
    call.workspace = NULL;
    refused_as(epi_kernel_time_parts(got.k, &call, seconds, NULL, NULL, 3, &err), EPI_ERR_ARGUMENT, &err,
               "may not be NULL");
    if (made_of(&open, ctx, cases[0].text, cases[0].dims, (way){.open = "T"})) {
        call = (epi_call)EPI_CALL(.tensors = open.p.args, .count = open.p.count, .sizes = sizes,
                                  .size_count = 1);
        refused_as(epi_kernel_time_parts(open.k, &call, seconds, NULL, NULL, 1, &err), EPI_ERR_UNSUPPORTED,
                   &err, "compile for the sizes that you want to time");
        check(time_run(&open, seconds, NULL, NULL, 1, &elapsed, &err) == EPI_OK, "the largest: %s",
              err.message);
    }
    epi_kernel *looked =
        text_kernel(ctx, cases[0].text, cases[0].dims, (way){.type = EPI_BF16, .device = -90});
    call = (epi_call)EPI_CALL(.tensors = got.p.args, .count = 2, .workspace = got.p.args[0].data);
    if (looked)
        refused_as(epi_kernel_time_parts(looked, &call, seconds, NULL, NULL, 1, &err), EPI_ERR_ARGUMENT, &err,
                   "without a device");
    epi_kernel_free(looked);
    DISCARD(&got, &open);
}

int main(void) {
    epi_error err;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_case(&cases[i], (way){0});
        check_case(&cases[i], (way){.type = EPI_BF16, .threads = 1});
    }
    test_slabs();
    test_refused();
    epi_context_close(ctx);
    return finish();
}

/* fingerprint.c: what a library makes of programs, as a line of hashes for each.
 *
 *     fingerprint [--every N] [FOLDER | FILE]... [--random COUNT]
 *
 * Of every program of the folders' .epi files, of .epi files, of the blocks of .md files and of COUNT random
 * programs, of its gradients by all inputs of numbers, and of its forward and backward apart: the bits of its
 * results on the CPU in f32 and bf16, its plan, and its plan and CUDA texts for Hopper and Ampere, at small
 * sizes and, of what does not run, at large ones; or of every Nth of these programs. Two builds whose lines are the same do the same with all of
 * them: a change that means to change nothing is held against that (tests/same_plans.sh), and so is a fault
 * that no test finds (tests/mutate.sh). */
#include <dirent.h>

#include "base/hash.h"
#include "harness.h"
#include "random_graph.h"

enum { MAX_DIMS = 64 };

static epi_context *ctx;
static long every = 1, seen;

typedef size_t giving(const epi_kernel *, char *, size_t);

static void hash_text(epi_hash *h, giving *give, const epi_kernel *k) {
    size_t n = give(k, NULL, 0);
    char *text = malloc(n + 1);
    if (text) {
        give(k, text, n + 1);
        epi_hash_add(h, text, n);
    }
    free(text);
}

static void hash_results(epi_hash *h, const epi_program *p, const epi_kernel *k) {
    problem all;
    bool ok = problem_make(&all, p, k, LAYOUT_PLAIN);
    if (ok)
        problem_fill(&all, 5);
    ok = ok && problem_run(k, &all);
    epi_hash_word(h, ok);
    for (int i = all.inputs; i < all.count && ok; i++)
        epi_hash_add(h, all.t[i].data, (size_t)all.t[i].span * epi_dtype_size(all.t[i].shape.type));
    problem_free(&all);
}

/* One way of compiling: its plan and texts, and where it can run, its results. */
static void print_one(const epi_program *p, epi_options o, const char *name) {
    epi_kernel *k;
    epi_error err;
    if (epi_kernel_compile(p, &o, &k, &err) != EPI_OK) {
        printf(" %s: %s", name, err.message);
        return;
    }
    epi_hash plan = {1, 2}, rest = plan;
    hash_text(&plan, epi_kernel_describe, k);
    hash_text(&plan, epi_kernel_print, k);
    if (o.device < 0)
        hash_text(&rest, epi_kernel_source, k);
    else
        hash_results(&rest, p, k);
    printf(" %s %08x %08x", name, (unsigned)plan.b, (unsigned)rest.b);
    epi_kernel_free(k);
}

/* Sizes for a plan: `first` for the axis that is named first, `rest` and up for the others. */
static int set_dims(const epi_program *p, epi_dim_binding *dims, int first, int rest) {
    int count = epi_program_dim_count(p);
    for (int d = 0; d < count && d < MAX_DIMS; d++) {
        int64_t given = epi_program_dim_size(p, d);
        dims[d] = (epi_dim_binding){epi_program_dim(p, d), given ? given : d ? rest << d % 3 : first};
    }
    return count;
}

static void print_program(const epi_program *p) {
    epi_dim_binding dims[MAX_DIMS];
    bool many = epi_program_dim_count(p) > 4;
    if (seen++ % every)
        return;
    int count = set_dims(p, dims, many ? 9 : 37, many ? 4 : 16);
    if (count > MAX_DIMS)
        return;
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = count, .threads = 1);
    printf("%s", epi_program_name(p));
    print_one(p, o, "f32");
    o.type = EPI_BF16;
    print_one(p, o, "bf16");
    o.threads = 0;
    static const int sizes[2][2] = {{37, 16}, {2048, 128}};
    for (int large = 0; large < 2; large++) {
        if (large || !many)
            set_dims(p, dims, sizes[large][0], sizes[large][1]);
        o.device = -90;
        print_one(p, o, large ? "large_90" : "sm_90");
        o.device = -80;
        print_one(p, o, large ? "large_80" : "sm_80");
    }
    printf("\n");
}

typedef epi_status deriving(const epi_program *, const char *const *, int, epi_module **, epi_error *);

static void print_gradients(const epi_program *p, deriving *derive) {
    const char *wrt[MAX_TENSORS];
    int count = number_inputs(p, true, wrt, MAX_TENSORS);
    epi_module *m;
    epi_error err;
    if (!count || derive(p, wrt, count, &m, &err) != EPI_OK)
        return;
    for (int i = 0; i < epi_module_count(m); i++)
        print_program(epi_module_program(m, i));
    epi_module_free(m);
}

static void print_text(const char *text, size_t length, const char *name) {
    epi_error err;
    epi_module *m = NULL;
    if (epi_module_parse(ctx, text, length, name, &m, &err) != EPI_OK)
        printf("%s: %s\n", name, err.message);
    for (int i = 0; m && i < epi_module_count(m); i++) {
        print_program(epi_module_program(m, i));
        print_gradients(epi_module_program(m, i), epi_program_grad);
        print_gradients(epi_module_program(m, i), epi_program_grad_saved);
    }
    epi_module_free(m);
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), e = strlen(end);
    return n > e && !strcmp(name + n - e, end);
}

/* The blocks of a page that are programs. */
static void print_page(const char *page, const char *name) {
    for (const char *at = page; (at = strstr(at, "```epi")); at++) {
        const char *begin = strchr(at, '\n'), *end = begin ? strstr(begin, "```") : NULL;
        if (!end)
            return;
        print_text(begin + 1, (size_t)(end - begin - 1), name);
        at = end;
    }
}

static void print_file(const char *path) {
    size_t length;
    char *text = read_whole(path, &length);
    if (!text)
        printf("%s: cannot be read\n", path);
    else if (ends_with(path, ".md"))
        print_page(text, path);
    else
        print_text(text, length, path);
    free(text);
}

static int is_program(const struct dirent *e) {
    return ends_with(e->d_name, ".epi");
}

/* A folder's programs, or a file's. */
static void print_path(const char *path) {
    struct dirent **files;
    int count = scandir(path, &files, is_program, alphasort);
    if (count < 0) {
        print_file(path);
        return;
    }
    for (int f = 0; f < count; f++) {
        char name[1024];
        snprintf(name, sizeof name, "%s/%s", path, files[f]->d_name);
        print_file(name);
        free(files[f]);
    }
    free(files);
}

static void print_random(long count) {
    random_graph *m = malloc(sizeof *m);
    for (long seed = 1; m && seed <= count; seed++) {
        random_graph_make(m, (uint64_t)seed);
        printf("%ld ", seed);
        print_text(m->text, strlen(m->text), "random");
    }
    free(m);
}

int main(int argc, char **argv) {
    epi_error err;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return 2;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--random") && i + 1 < argc)
            print_random(atol(argv[++i]));
        else if (!strcmp(argv[i], "--every") && i + 1 < argc)
            every = atol(argv[++i]) > 0 ? atol(argv[i]) : 1;
        else
            print_path(argv[i]);
    epi_context_close(ctx);
    return 0;
}

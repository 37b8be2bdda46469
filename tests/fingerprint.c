/* fingerprint.c: what a library makes of programs, as a line of hashes for each.
 *
 *     fingerprint FOLDER...
 *
 * Of every program of the folders' .epi files, and of its gradients by all inputs of numbers: the bits of its
 * results on the CPU in f32 and bf16, its plan, and its plan and CUDA texts for Hopper and Ampere. Two builds
 * whose lines are the same do the same with all of them: a change that means to change nothing is held
 * against that, and so is a fault that no test finds (tests/mutate.sh). */
#include <dirent.h>

#include "base/hash.h"
#include "harness.h"

enum { MAX_DIMS = 64 };

static epi_context *ctx;

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

static void print_program(const epi_program *p) {
    epi_dim_binding dims[MAX_DIMS];
    int count = epi_program_dim_count(p);
    for (int d = 0; d < count && d < MAX_DIMS; d++) {
        int64_t given = epi_program_dim_size(p, d);
        dims[d] = (epi_dim_binding){epi_program_dim(p, d),
                                    given ? given : (d ? 16 << d % 3 : 37) / (count > 4 ? 4 : 1)};
    }
    if (count > MAX_DIMS)
        return;
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = count, .threads = 1);
    printf("%s", epi_program_name(p));
    print_one(p, o, "f32");
    o.type = EPI_BF16;
    print_one(p, o, "bf16");
    o.threads = 0;
    o.device = -90;
    print_one(p, o, "sm_90");
    o.device = -80;
    print_one(p, o, "sm_80");
    printf("\n");
}

static void print_gradient(const epi_program *p) {
    const char *wrt[MAX_TENSORS];
    int count = 0;
    epi_module *m;
    epi_error err;
    for (int i = 0; i < epi_program_tensor_count(p) && count < MAX_TENSORS; i++) {
        epi_tensor_info info;
        epi_program_tensor(p, i, &info);
        if (!info.is_output && !(info.has_type && (info.type == EPI_I32 || info.type == EPI_I64)))
            wrt[count++] = info.name;
    }
    if (!count || epi_program_grad(p, wrt, count, &m, &err) != EPI_OK)
        return;
    print_program(epi_module_program(m, 0));
    epi_module_free(m);
}

static void print_file(const char *path) {
    size_t length;
    epi_error err;
    epi_module *m = NULL;
    char *text = read_whole(path, &length);
    if (!text || epi_module_parse(ctx, text, length, path, &m, &err) != EPI_OK)
        printf("%s: %s\n", path, text ? err.message : "cannot be read");
    for (int i = 0; m && i < epi_module_count(m); i++) {
        print_program(epi_module_program(m, i));
        print_gradient(epi_module_program(m, i));
    }
    epi_module_free(m);
    free(text);
}

static int is_program(const struct dirent *e) {
    size_t n = strlen(e->d_name);
    return n > 4 && !strcmp(e->d_name + n - 4, ".epi");
}

int main(int argc, char **argv) {
    epi_error err;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return 2;
    for (int i = 1; i < argc; i++) {
        struct dirent **files;
        int count = scandir(argv[i], &files, is_program, alphasort);
        for (int f = 0; f < count; f++) {
            char path[1024];
            snprintf(path, sizeof path, "%s/%s", argv[i], files[f]->d_name);
            print_file(path);
            free(files[f]);
        }
        if (count >= 0)
            free(files);
    }
    epi_context_close(ctx);
    return 0;
}

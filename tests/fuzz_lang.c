/* fuzz_lang.c: any bytes as a text: parsed, printed, parsed again, derived, compiled for small sizes, and run.
 * A crash, a leak, or a print that does not parse back to itself is a failure. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "epilog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The canonical form of a program; the caller frees it. */
static char *printed(const epi_program *program) {
    size_t n = epi_program_print(program, NULL, 0);
    char *text = malloc(n + 1);
    if (text)
        epi_program_print(program, text, n + 1);
    return text;
}

/* Prints every program into one text, in order, so that calls still find what they call. */
static char *print_all(const epi_module *m) {
    size_t length = 0;
    char *all = calloc(1, 1);
    for (int i = 0; i < epi_module_count(m) && all; i++) {
        char *one = printed(epi_module_program(m, i)),
             *more = one ? realloc(all, length + strlen(one) + 2) : NULL;
        if (!more) {
            free(one);
            break;
        }
        all = more;
        length += (size_t)sprintf(all + length, "%s\n", one);
        free(one);
    }
    return all;
}

/* The text laid out anew; the caller frees it. */
static char *laid_out(const char *text, size_t length) {
    size_t n;
    if (epi_format(text, length, "fuzz", NULL, 0, &n, NULL) != EPI_OK)
        return NULL;
    char *out = malloc(n + 1);
    if (out && epi_format(text, length, "fuzz", out, n + 1, &n, NULL) != EPI_OK) {
        free(out);
        return NULL;
    }
    return out;
}

/* Laid out anew a text means the same, and stays as it is the second time. `printed` are its programs. */
static void check_layout(epi_context *ctx, const char *text, size_t length, const char *printed) {
    char *first = laid_out(text, length), *second = first ? laid_out(first, strlen(first)) : NULL;
    epi_module *m;
    epi_error err;
    if (!first || !second || strcmp(first, second) != 0)
        abort();
    if (epi_module_parse(ctx, first, strlen(first), "laid out", &m, &err) != EPI_OK)
        abort();
    char *again = print_all(m);
    if (again && strcmp(again, printed) != 0)
        abort();
    free(again);
    epi_module_free(m);
    free(first);
    free(second);
}

/* Runs on zeros where everything is small; what matters here is memory, not values. */
static void run_small(const epi_program *program, epi_path path) {
    enum { MOST = 1 << 20 };
    epi_dim_binding dims[64];
    int count = epi_program_dim_count(program);
    for (int i = 0; i < count; i++)
        dims[i] = (epi_dim_binding){epi_program_dim(program, i), epi_program_dim_size(program, i)
                                                                     ? epi_program_dim_size(program, i)
                                                                     : 2 + 2 * (i % 2)};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = count, .path = path, .threads = 1);
    epi_kernel *k;
    if (epi_kernel_compile(program, &o, &k, NULL) != EPI_OK)
        return;
    epi_tensor tensors[128];
    int n = epi_program_tensor_count(program);
    int ok = epi_kernel_workspace(k) < 64u * MOST;
    for (int i = 0; i < n; i++) {
        epi_tensor_shape shape;
        epi_kernel_tensor(k, i, &shape);
        tensors[i] = (epi_tensor){shape.count < MOST ? calloc((size_t)shape.count + 1, 8) : NULL, NULL};
        ok = ok && tensors[i].data;
    }
    void *work = ok ? aligned_alloc(64, epi_kernel_workspace(k)) : NULL;
    if (work)
        epi_kernel_run(k, tensors, n, work, NULL);
    free(work);
    for (int i = 0; i < n; i++)
        free(tensors[i].data);
    epi_kernel_free(k);
}

/* The gradients by an input, as one program and as two, and once more; what is derived must parse. */
static void derive(const epi_program *program, int times) {
    epi_tensor_info first = {0};
    epi_module *one = NULL, *two = NULL;
    epi_error err = {0};
    if (!program || epi_program_tensor_count(program) > 64 ||
        epi_program_tensor(program, 0, &first) != EPI_OK || first.is_output)
        return;
    epi_status status = epi_program_grad(program, &first.name, 1, &one, &err);
    if (status == EPI_ERR_SYNTAX)
        abort();
    if (status == EPI_OK && epi_program_grad_saved(program, &first.name, 1, &two, &err) == EPI_ERR_SYNTAX)
        abort();
    if (status == EPI_OK && times > 1)
        derive(epi_module_program(one, 0), times - 1);
    epi_module_free(one);
    epi_module_free(two);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    epi_context *ctx;
    epi_module *m, *again;
    epi_error err;
    char shown[2048];
    if (epi_context_open(&ctx, NULL) != EPI_OK)
        return 0;
    if (epi_module_parse(ctx, (const char *)data, size, "fuzz", &m, &err) != EPI_OK) {
        epi_error_format(&err, shown, sizeof shown);
        epi_context_close(ctx);
        return 0;
    }
    char *once = print_all(m);
    if (once && epi_module_parse(ctx, once, strlen(once), "printed", &again, &err) == EPI_OK) {
        char *twice = print_all(again);
        if (twice && strcmp(once, twice) != 0)
            abort();
        free(twice);
        epi_module_free(again);
    } else if (once && err.status != EPI_ERR_MEMORY) {
        abort(); /* what we print, we must read */
    }
    if (once)
        check_layout(ctx, (const char *)data, size, once);
    for (int i = 0; i < epi_module_count(m) && i < 4; i++) {
        derive(epi_module_program(m, i), 2);
        for (int path = 0; path <= EPI_PATH_REFERENCE; path++)
            run_small(epi_module_program(m, i), (epi_path)path);
    }
    free(once);
    epi_module_free(m);
    epi_context_close(ctx);
    return 0;
}

/* linear.c: the smallest use of the library: parse one program, compile it and run it.
 *
 *     cc linear.c $(pkg-config --cflags --libs epilog) -Wl,-rpath,$(pkg-config --variable=libdir epilog) -o linear && ./linear
 */
#include <epilog.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char text[] = "linear(x[T,D], w[F,D], b[F]) -> y[T,F] {\n"
                           "    y = gelu(x @ w + b)\n"
                           "}\n";

static int fail(const epi_error *err) {
    char message[2048];
    epi_error_format(err, message, sizeof message);
    fprintf(stderr, "%s\n", message);
    return 1;
}

/* Returns the exit status: 1 also if standard output failed. */
static int finish(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "standard output could not be written\n");
    return 1;
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "--help")) {
        printf("usage: linear\nCompiles one program, runs it on the CPU and prints the result.\n");
        return finish(0);
    }
    if (count > 1) {
        fprintf(stderr, "linear: it takes no arguments; see linear --help\n");
        return 2;
    }
    enum { T = 4, D = 8, F = 3 };
    epi_error err;
    epi_context *ctx;
    epi_module *module;
    epi_kernel *kernel;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return fail(&err);
    if (epi_module_parse(ctx, text, strlen(text), "linear.c", &module, &err) != EPI_OK)
        return fail(&err);

    /* Compile for these sizes. Every tensor is f32, unless the options say otherwise. */
    epi_dim_binding dims[] = {{"T", T}, {"D", D}, {"F", F}};
    epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 3);
    if (epi_kernel_compile(epi_module_find(module, "linear"), &options, &kernel, &err) != EPI_OK)
        return fail(&err);

    /* You own all memory: the tensors, first inputs, then outputs, and the workspace. */
    float x[T][D], w[F][D], b[F] = {0.5f, 0, -0.5f}, y[T][F];
    for (int t = 0; t < T; t++)
        for (int d = 0; d < D; d++)
            x[t][d] = (float)(t + d) / 8;
    for (int f = 0; f < F; f++)
        for (int d = 0; d < D; d++)
            w[f][d] = (float)((f + 2 * d) % 5 - 2) / 4;
    epi_tensor tensors[] = {{x, NULL}, {w, NULL}, {b, NULL}, {y, NULL}};
    void *workspace = aligned_alloc(64, epi_kernel_workspace(kernel));
    if (!workspace || epi_kernel_run(kernel, tensors, 4, workspace, &err) != EPI_OK)
        return fail(&err);

    for (int t = 0; t < T; t++)
        printf("%8.4f %8.4f %8.4f\n", (double)y[t][0], (double)y[t][1], (double)y[t][2]);
    free(workspace);
    epi_kernel_free(kernel);
    epi_module_free(module);
    epi_context_close(ctx);
    return finish(0);
}

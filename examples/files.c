/* files.c: reads tensors from a file, runs a kernel and writes the result to a file.
 *
 *     cc files.c $(pkg-config --cflags --libs epilog) -Wl,-rpath,$(pkg-config --variable=libdir epilog) -o files && ./files IN.safetensors OUT.safetensors
 *
 * IN has `table` [V,D] and `ids` [T] in any type of Epilog; PyTorch, for example, writes int64 ids. OUT
 * gets the rows that the ids select, each normalised, in the type of the table. Without arguments, the
 * program writes its own files, checks the result and removes the files.
 */
#define _POSIX_C_SOURCE 200809L
#include <epilog_io.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char text[] = "embed(table[V,D], ids: i32[T]) -> x[T,D] {\n"
                           "    y = table[ids]\n"
                           "    x = y*rsqrt(mean(y*y, D) + 1e-6)\n"
                           "}\n";

/* A copy with the alignment that kernels need. */
static void *copy_of(const epi_safetensor *t) {
    void *copy = malloc(t->bytes + 1);
    return copy ? memcpy(copy, t->data, t->bytes) : NULL;
}

static epi_status run(const char *in, const char *out, epi_context *ctx, epi_error *err) {
    epi_safetensors *file = NULL;
    epi_module *module = NULL;
    epi_kernel *kernel = NULL;
    const epi_safetensor *table, *ids;
    void *data[3] = {NULL, NULL, NULL}, *workspace = NULL;
    epi_status status = epi_safetensors_open(in, &file, err);
    if (status == EPI_OK)
        status = epi_safetensors_get(file, "table", &table, err);
    if (status == EPI_OK)
        status = epi_safetensors_get(file, "ids", &ids, err);
    if (status == EPI_OK)
        status = epi_module_parse(ctx, text, strlen(text), "files.c", &module, err);
    if (status == EPI_OK && (table->rank != 2 || ids->rank != 1)) {
        *err = (epi_error){.status = EPI_ERR_DIMS, .message = "table has two axes and ids one"};
        status = EPI_ERR_DIMS;
    }
    if (status == EPI_OK) { /* with the sizes and types of the file */
        epi_dim_binding dims[] = {{"V", table->shape[0]}, {"D", table->shape[1]}, {"T", ids->shape[0]}};
        epi_type_binding types[] = {{"ids", ids->type}};
        epi_options options =
            EPI_OPTIONS(.dims = dims, .dim_count = 3, .type = table->type, .types = types, .type_count = 1);
        status = epi_kernel_compile(epi_module_find(module, "embed"), &options, &kernel, err);
    }
    epi_tensor_shape shape;
    if (status == EPI_OK)
        status = epi_kernel_tensor(kernel, 2, &shape);
    if (status == EPI_OK) {
        data[0] = copy_of(table);
        data[1] = copy_of(ids);
        data[2] = malloc((size_t)shape.count * epi_dtype_size(shape.type) + 1);
        workspace = aligned_alloc(64, epi_kernel_workspace(kernel));
        epi_tensor tensors[] = {{data[0], NULL}, {data[1], NULL}, {data[2], NULL}};
        if (!data[0] || !data[1] || !data[2] || !workspace) {
            *err = (epi_error){.status = EPI_ERR_MEMORY, .message = "out of memory"};
            status = EPI_ERR_MEMORY;
        } else {
            status = epi_kernel_run(kernel, tensors, 3, workspace, err);
        }
    }
    if (status == EPI_OK) {
        epi_safetensor x = {
            .name = "x", .type = shape.type, .rank = shape.rank, .shape = shape.sizes, .data = data[2]};
        status = epi_safetensors_write(out, &x, 1, NULL, 0, err);
    }
    for (int i = 0; i < 3; i++)
        free(data[i]);
    free(workspace);
    epi_kernel_free(kernel);
    epi_module_free(module);
    epi_safetensors_close(file);
    return status;
}

/* Writes a table in bf16 whose row v is all v + 1, and three ids in i64. */
static epi_status write_input(const char *path, epi_error *err) {
    enum { V = 5, D = 8 };
    float rows[V][D];
    uint16_t table[V][D];
    int64_t ids[] = {4, 0, 2}, table_shape[] = {V, D}, ids_shape[] = {3};
    for (int v = 0; v < V; v++)
        for (int d = 0; d < D; d++)
            rows[v][d] = (float)(d % 2 ? -(v + 1) : v + 1);
    epi_convert(table, EPI_BF16, rows, EPI_F32, V * D);
    epi_safetensor tensors[] = {
        {.name = "table", .type = EPI_BF16, .rank = 2, .shape = table_shape, .data = table},
        {.name = "ids", .type = EPI_I64, .rank = 1, .shape = ids_shape, .data = ids}};
    return epi_safetensors_write(path, tensors, 2, NULL, 0, err);
}

/* Checks that the rows in the file are ones with alternating signs. */
static epi_status look_at_output(const char *path, epi_error *err) {
    epi_safetensors *file;
    const epi_safetensor *x;
    epi_status status = epi_safetensors_open(path, &file, err);
    if (status == EPI_OK)
        status = epi_safetensors_get(file, "x", &x, err);
    for (int i = 0; status == EPI_OK && i < 3 * 8; i++) {
        float value = 0;
        if (x->bytes == 3 * 8 * epi_dtype_size(x->type))
            epi_convert(&value, EPI_F32, (const char *)x->data + (size_t)i * epi_dtype_size(x->type), x->type,
                        1);
        printf("%6.3f%s", (double)value, i % 8 == 7 ? "\n" : " ");
        if (fabsf(value - (i % 2 ? -1.0f : 1.0f)) > 0x1p-7f) {
            *err = (epi_error){.status = EPI_ERR_FILE, .message = "the rows are not normed"};
            status = EPI_ERR_FILE;
        }
    }
    epi_safetensors_close(file);
    return status;
}

static epi_status run_own(epi_context *ctx, epi_error *err) {
    char folder[] = "/tmp/epilog-files-XXXXXX", in[64], out[64];
    if (!mkdtemp(folder)) {
        *err = (epi_error){.status = EPI_ERR_FILE, .message = "no folder can be made in /tmp"};
        return EPI_ERR_FILE;
    }
    snprintf(in, sizeof in, "%s/in.safetensors", folder);
    snprintf(out, sizeof out, "%s/out.safetensors", folder);
    epi_status status = write_input(in, err);
    if (status == EPI_OK)
        status = run(in, out, ctx, err);
    if (status == EPI_OK)
        status = look_at_output(out, err);
    unlink(in);
    unlink(out);
    rmdir(folder);
    return status;
}

/* Returns the exit status: 1 also if standard output failed. */
static int finish(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "standard output could not be written\n");
    return 1;
}

int main(int argc, char **argv) {
    epi_error err = {.message = ""};
    epi_context *ctx;
    if (argc == 2 && !strcmp(argv[1], "--help")) {
        printf("usage: files [IN.safetensors OUT.safetensors]\n"
               "Runs a program on the tensors of one file and writes its outputs to another. Without "
               "arguments, it\n"
               "makes both files itself and removes them.\n");
        return finish(0);
    }
    if (argc != 1 && argc != 3) {
        fprintf(stderr, "files: it takes two files or nothing; see files --help\n");
        return 2;
    }
    epi_status status = epi_context_open(&ctx, &err);
    if (status == EPI_OK)
        status = argc == 3 ? run(argv[1], argv[2], ctx, &err) : run_own(ctx, &err);
    if (status != EPI_OK) {
        char message[2048];
        epi_error_format(&err, message, sizeof message);
        fprintf(stderr, "%s\n", message);
    }
    epi_context_close(ctx);
    return finish(status != EPI_OK);
}

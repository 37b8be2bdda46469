/* run.c: compiles and runs programs that come through a pipe, one after the other, in one process: build/test/pairs_run [DEVICE].
 *
 * A request is lines of words, then the bytes that they announce:
 *
 *     text BYTES          the text; its program p is run
 *     type bf16           and path, micro, algebra, threads: as the command's options
 *     perturb 1e-7 3      of the reference: how far each value is moved, and the seed
 *     dim T 5             a size; open T 64: the axis is open, up to 64
 *     input BYTES         a tensor, in the order of the program
 *     output BYTES        how large a result is, in the order of the program
 *     go
 *
 * The answer is a line "STAGE STATUS BYTES BYTES", then a message and all results, of as many bytes. STAGE is where it
 * ended: parse, compile, run, or ok. Results lie between bytes that nobody may write; workspaces are full of what is no number. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "epilog.h"

enum { MOST_DIMS = 64, MOST_TENSORS = 256, APART = 256, WORD = 64 };

typedef struct sized {
    char name[WORD];
    int64_t size;
} sized;

typedef struct request {
    char type[WORD], path[WORD], micro[WORD], algebra[WORD];
    int threads, seed;
    double perturb;
    size_t text_bytes;
    char *text;
    sized dims[MOST_DIMS], open[4];
    int dim_count, open_count;
    struct {
        size_t bytes, at; /* `at`: in the memory of all tensors */
        bool output;
    } tensors[MOST_TENSORS];
    int tensor_count;
    size_t bytes; /* of that memory */
    unsigned char *memory;
} request;

typedef struct answer {
    const char *stage;
    epi_error err;
} answer;

static epi_context *ctx;
static int device;

/* ---- requests ---- */

static void add_size(sized *list, int *count, int most, const char *name, const char *size) {
    if (*count == most)
        exit(3);
    snprintf(list[*count].name, WORD, "%s", name);
    list[(*count)++].size = strtoll(size, NULL, 10);
}

static void add_tensor(request *r, size_t bytes, bool output) {
    if (r->tensor_count == MOST_TENSORS)
        exit(3);
    r->tensors[r->tensor_count].bytes = bytes;
    r->tensors[r->tensor_count].at = r->bytes + APART;
    r->tensors[r->tensor_count++].output = output;
    r->bytes += (bytes + 2 * APART - 1) / APART * APART + APART;
}

static void take_line(request *r, const char *key, const char *a, const char *b) {
    struct {
        const char *key;
        char *to;
    } words[] = {{"type", r->type}, {"path", r->path}, {"micro", r->micro}, {"algebra", r->algebra}};
    for (int i = 0; i < 4; i++)
        if (!strcmp(key, words[i].key))
            snprintf(words[i].to, WORD, "%s", a);
    if (!strcmp(key, "text"))
        r->text_bytes = strtoull(a, NULL, 10);
    else if (!strcmp(key, "threads"))
        r->threads = atoi(a);
    else if (!strcmp(key, "perturb")) {
        r->perturb = atof(a);
        r->seed = atoi(b);
    } else if (!strcmp(key, "dim"))
        add_size(r->dims, &r->dim_count, MOST_DIMS, a, b);
    else if (!strcmp(key, "open"))
        add_size(r->open, &r->open_count, 4, a, b);
    else if (!strcmp(key, "input") || !strcmp(key, "output"))
        add_tensor(r, strtoull(a, NULL, 10), key[0] == 'o');
}

static bool read_bytes(void *to, size_t bytes) {
    return !bytes || fread(to, 1, bytes, stdin) == bytes;
}

/* False at the end of the stream. */
static bool read_request(request *r) {
    char line[4 * WORD], key[WORD], a[WORD], b[WORD];
    *r = (request){.type = "f32", .path = "fused", .threads = 1};
    for (;;) {
        if (!fgets(line, sizeof line, stdin))
            return false;
        *a = *b = 0;
        if (sscanf(line, "%63s %63s %63s", key, a, b) < 1)
            continue;
        if (!strcmp(key, "go"))
            break;
        take_line(r, key, a, b);
    }
    r->text = malloc(r->text_bytes + 1);
    r->memory = aligned_alloc(APART, r->bytes + APART);
    if (!r->text || !r->memory)
        exit(3);
    memset(r->memory, 0x5a, r->bytes + APART);
    bool ok = read_bytes(r->text, r->text_bytes);
    for (int i = 0; i < r->tensor_count && ok; i++)
        ok = r->tensors[i].output || read_bytes(r->memory + r->tensors[i].at, r->tensors[i].bytes);
    return ok;
}

static void free_request(request *r) {
    free(r->text);
    free(r->memory);
}

/* ---- one run ---- */

/* The device's memory of a run: tensors, the workspace, what is prepared. On the CPU tensors stay where they were read. */
typedef struct memory {
    unsigned char *tensors, *workspace, *prepared;
} memory;

static epi_status fail(epi_error *err, const char *message) {
    err->status = EPI_ERR_INTERNAL;
    snprintf(err->message, sizeof err->message, "%s", message);
    return EPI_ERR_INTERNAL;
}

/* Memory of the device, full of ones: not a number in every type. */
static epi_status take_memory(size_t bytes, void **out, epi_error *err) {
    void *ones = NULL;
    epi_status status = epi_device_alloc(ctx, device, bytes, out, err);
    if (status == EPI_OK && !(ones = malloc(bytes)))
        status = fail(err, "no memory");
    if (status == EPI_OK) {
        memset(ones, 0xff, bytes);
        status = epi_device_copy(ctx, device, *out, ones, bytes, err);
    }
    free(ones);
    return status;
}

static epi_status take_all(const request *r, size_t workspace, size_t prepared, memory *m, epi_error *err) {
    void *p[3] = {NULL, NULL, NULL};
    epi_status status = take_memory(r->bytes + APART, &p[0], err);
    if (status == EPI_OK)
        status = epi_device_copy(ctx, device, p[0], r->memory, r->bytes + APART, err);
    if (status == EPI_OK)
        status = take_memory(workspace, &p[1], err);
    if (status == EPI_OK && prepared)
        status = take_memory(prepared, &p[2], err);
    *m = (memory){p[0], p[1], p[2]};
    return status;
}

static void free_all(memory *m) {
    epi_device_free(ctx, device, m->tensors, NULL);
    epi_device_free(ctx, device, m->workspace, NULL);
    epi_device_free(ctx, device, m->prepared, NULL);
}

/* Nothing but results is written, and of these nothing beside them. */
static epi_status check_apart(const request *r, const unsigned char *before, epi_error *err) {
    size_t at = 0;
    for (int i = 0; i <= r->tensor_count; i++) {
        size_t end = i < r->tensor_count ? r->tensors[i].at : r->bytes;
        if (memcmp(r->memory + at, before + at, end - at) != 0)
            return fail(err, "a run writes beside its results");
        if (i < r->tensor_count)
            at = r->tensors[i].output ? r->tensors[i].at + r->tensors[i].bytes : r->tensors[i].at;
    }
    return EPI_OK;
}

static epi_status run_in(const epi_kernel *kernel, request *r, epi_call *call, const memory *m,
                         epi_error *err) {
    epi_tensor tensors[MOST_TENSORS];
    for (int i = 0; i < r->tensor_count; i++)
        tensors[i] = (epi_tensor){.data = m->tensors + r->tensors[i].at};
    call->tensors = tensors;
    call->count = r->tensor_count;
    call->workspace = m->workspace;
    call->prepared = m->prepared;
    epi_status status = m->prepared ? epi_kernel_prepare(kernel, call, m->prepared, err) : EPI_OK;
    if (status == EPI_OK)
        status = epi_kernel_call(kernel, call, err);
    if (status == EPI_OK)
        status = epi_device_wait(ctx, device, err);
    return status;
}

static epi_status run_kernel(const epi_kernel *kernel, request *r, epi_error *err) {
    int64_t sizes[4];
    size_t workspace = epi_kernel_workspace(kernel);
    epi_call call = EPI_CALL(.sizes = r->open_count ? sizes : NULL, .size_count = r->open_count);
    for (int i = 0; i < r->open_count; i++)
        for (int d = 0; d < r->dim_count; d++)
            if (!strcmp(r->open[i].name, r->dims[d].name))
                sizes[i] = r->dims[d].size;
    epi_status status = EPI_OK;
    if (r->open_count)
        status = epi_kernel_workspace_at(kernel, sizes, r->open_count, &workspace, err);
    if (status != EPI_OK)
        return status;
    memory m;
    unsigned char *before = malloc(r->bytes + APART);
    if (!before)
        exit(3);
    memcpy(before, r->memory, r->bytes + APART);
    status = take_all(r, workspace, epi_kernel_prepare_size(kernel), &m, err);
    if (status == EPI_OK)
        status = run_in(kernel, r, &call, &m, err);
    if (status == EPI_OK)
        status = epi_device_copy(ctx, device, r->memory, m.tensors, r->bytes + APART, err);
    if (status == EPI_OK)
        status = check_apart(r, before, err);
    free_all(&m);
    free(before);
    return status;
}

/* Do the tensors have the sizes that the caller believes they have? */
static epi_status check_sizes(const epi_kernel *kernel, const epi_program *program, const request *r,
                              epi_error *err) {
    if (epi_program_tensor_count(program) != r->tensor_count)
        return fail(err, "the program has another number of tensors than the request");
    for (int i = 0; i < r->tensor_count && !r->open_count; i++) {
        epi_tensor_shape shape;
        epi_status status = epi_kernel_tensor(kernel, i, &shape);
        if (status != EPI_OK || (size_t)shape.count * epi_dtype_size(shape.type) != r->tensors[i].bytes)
            return fail(err, "a tensor has another size than the request says");
    }
    return EPI_OK;
}

static epi_path path_of(const char *name) {
    static const char *const names[] = {"fused", "unfused", "naive", "reference"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i]))
            return (epi_path)i;
    exit(3);
}

static epi_status compile(const epi_program *program, const request *r, epi_kernel **kernel, epi_error *err) {
    epi_dim_binding dims[MOST_DIMS];
    const char *open[4];
    for (int i = 0; i < r->dim_count; i++)
        dims[i] = (epi_dim_binding){r->dims[i].name, r->dims[i].size};
    for (int i = 0; i < r->open_count; i++) {
        open[i] = r->open[i].name;
        for (int d = 0; d < r->dim_count; d++)
            if (!strcmp(open[i], dims[d].name))
                dims[d].size = r->open[i].size;
    }
    epi_options options =
        EPI_OPTIONS(.dims = dims, .dim_count = r->dim_count, .type = epi_dtype_find(r->type),
                    .device = device, .threads = r->threads, .path = path_of(r->path),
                    .micro = *r->micro ? r->micro : NULL, .rounding = EPI_ROUND_EXACT, .perturb = r->perturb,
                    .perturb_seed = r->seed, .open_axes = open, .open_axis_count = r->open_count,
                    .algebra = strcmp(r->algebra, "written") ? EPI_ALGEBRA_FREE : EPI_ALGEBRA_WRITTEN);
    return epi_kernel_compile(program, &options, kernel, err);
}

static epi_status answer_to(request *r, answer *a) {
    epi_module *module = NULL;
    epi_kernel *kernel = NULL;
    a->stage = "parse";
    epi_status status = epi_module_parse(ctx, r->text, r->text_bytes, "t.epi", &module, &a->err);
    const epi_program *program = module ? epi_module_find(module, "p") : NULL;
    if (status == EPI_OK) {
        a->stage = "compile";
        status = program ? compile(program, r, &kernel, &a->err) : fail(&a->err, "there is no program p");
    }
    if (status == EPI_OK)
        status = check_sizes(kernel, program, r, &a->err);
    if (status == EPI_OK) {
        a->stage = "run";
        status = run_kernel(kernel, r, &a->err);
    }
    if (status == EPI_OK)
        a->stage = "ok";
    if (kernel)
        epi_kernel_free(kernel);
    if (module)
        epi_module_free(module);
    return status;
}

/* ---- answers ---- */

static void write_answer(const request *r, const answer *a, epi_status status) {
    size_t bytes = 0;
    for (int i = 0; i < r->tensor_count; i++)
        bytes += r->tensors[i].output ? r->tensors[i].bytes : 0;
    bytes = status == EPI_OK ? bytes : 0;
    const char *message = status == EPI_OK ? "" : a->err.message;
    printf("%s %s %zu %zu\n%s", a->stage, epi_status_name(status), strlen(message), bytes, message);
    for (int i = 0; i < r->tensor_count && bytes; i++)
        if (r->tensors[i].output)
            fwrite(r->memory + r->tensors[i].at, 1, r->tensors[i].bytes, stdout);
    fflush(stdout);
}

int main(int argc, char **argv) {
    request r;
    epi_error err;
    if (epi_context_open(&ctx, &err) != EPI_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 2;
    }
    device = argc > 1 ? epi_device_find(ctx, argv[1]) : 0;
    if (device < 0) {
        fprintf(stderr, "there is no device %s: %s\n", argv[1], epi_device_why_no_gpu(ctx));
        return 2;
    }
    while (read_request(&r)) {
        answer a = {0};
        epi_status status = answer_to(&r, &a);
        write_answer(&r, &a, status);
        free_request(&r);
        if (device && epi_device_wait(ctx, device, NULL) != EPI_OK)
            return 1; /* a GPU that failed once does nothing more for this process */
    }
    free_request(&r);
    epi_context_close(ctx);
    return 0;
}

/* request.h: what comes to a runner of pairs through a pipe, and what goes back.
 *
 * A request is lines of words, then the bytes that they announce:
 *
 *     text BYTES          the text; its program p is run
 *     type bf16           and path, micro, algebra, rounding, threads: as the command's options
 *     perturb 1e-7 3      of the reference: how far each value is moved, and the seed
 *     dim T 5             a size; open T 64: the axis is open, up to 64
 *     input BYTES         a tensor, in the order of the program
 *     output BYTES        how large a result is, in the order of the program
 *     go
 *
 * The answer is a line "STAGE STATUS BYTES BYTES", then a message and all results, of as many bytes. STAGE is where it
 * ended: parse, compile, run, or ok. */
#ifndef EPI_TESTS_PAIRS_REQUEST_H
#define EPI_TESTS_PAIRS_REQUEST_H

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
    char type[WORD], path[WORD], micro[WORD], algebra[WORD], rounding[WORD];
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

static epi_status fail(epi_error *err, const char *message) {
    err->status = EPI_ERR_INTERNAL;
    snprintf(err->message, sizeof err->message, "%s", message);
    return EPI_ERR_INTERNAL;
}

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
    } words[] = {{"type", r->type},
                 {"path", r->path},
                 {"micro", r->micro},
                 {"algebra", r->algebra},
                 {"rounding", r->rounding}};
    for (int i = 0; i < 5; i++)
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

/* ---- kernels ---- */

static epi_path path_of(const char *name) {
    static const char *const names[] = {"fused", "unfused", "naive", "reference"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i]))
            return (epi_path)i;
    exit(3);
}

static epi_status compile(const epi_program *program, const request *r, int device, epi_kernel **kernel,
                          epi_error *err) {
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
                    .micro = *r->micro ? r->micro : NULL,
                    .rounding = strcmp(r->rounding, "exact") ? EPI_ROUND_PACKED : EPI_ROUND_EXACT,
                    .perturb = r->perturb, .perturb_seed = r->seed, .open_axes = open,
                    .open_axis_count = r->open_count,
                    .algebra = strcmp(r->algebra, "written") ? EPI_ALGEBRA_FREE : EPI_ALGEBRA_WRITTEN);
    return epi_kernel_compile(program, &options, kernel, err);
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

/* ---- answers ---- */

static void write_answer(FILE *to, const request *r, const answer *a, epi_status status) {
    size_t bytes = 0;
    for (int i = 0; i < r->tensor_count; i++)
        bytes += r->tensors[i].output ? r->tensors[i].bytes : 0;
    bytes = status == EPI_OK ? bytes : 0;
    const char *message = status == EPI_OK ? "" : a->err.message;
    fprintf(to, "%s %s %zu %zu\n%s", a->stage, epi_status_name(status), strlen(message), bytes, message);
    for (int i = 0; i < r->tensor_count && bytes; i++)
        if (r->tensors[i].output)
            fwrite(r->memory + r->tensors[i].at, 1, r->tensors[i].bytes, to);
    fflush(to);
}

#endif

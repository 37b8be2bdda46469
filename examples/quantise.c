/* quantise.c: quantises the matrices of a checkpoint to 8 or 4 bits, with a scale for each group of a row.
 *
 *     cc quantise.c $(pkg-config --cflags --libs epilog) -Wl,-rpath,$(pkg-config --variable=libdir epilog) -o quantise
 *     ./quantise 4 32 model.safetensors small.safetensors
 *
 * This writes 4 bits for each weight and a scale for every 32 weights. A matrix w[F,D] becomes two tensors: w and
 * w_scale, f16[F,D/32]. The original is w_scale*w, up to rounding. In 8 bits, w is i8[F,D/32,32]. In 4 bits, two
 * elements share a byte: w is u8[F,D/32,16]. Token tables always get 8 bits. Other tensors do not change, nor do
 * matrices whose rows are not a multiple of a group. examples/llama.c reads such files. Without arguments, the program
 * checks itself with a small matrix. */
#include <epilog_io.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In 4 bits, the element with the largest magnitude becomes -8, as in GGUF's Q4_0. So the scale may be negative. A
 * group of zeros has the scale 1. */
static const char programs[] = "bits8(w[F,G,K]) -> (q: i8[F,G,K], s: f16[F,G]) {\n"
                               "    s = f16(max(max(abs(w), K)/127, 6e-8))\n"
                               "    q = i8(w/s)\n"
                               "}\n"
                               "bits4(w[F,G,K]) -> (q: i4[F,G,K], s: f16[F,G]) {\n"
                               "    high = max(w, K)\n"
                               "    low = min(w, K)\n"
                               "    most = where(high > -low, high, low)\n"
                               "    s = f16(where(abs(most) < 5e-7, 1, -most/8))\n"
                               "    q = i4(w/s)\n"
                               "}\n";

enum { MAX_TENSORS = 4096 };

static epi_error error;

static void check(epi_status status) {
    char message[2048];
    if (status == EPI_OK)
        return;
    epi_error_format(&error, message, sizeof message);
    fprintf(stderr, "%s\n", message);
    exit(1);
}

static void *room(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

/* If a scale is not a number or is the largest f16, its group has NaN, an infinity or a number that is too large. */
static void check_scales(const epi_safetensor *w, const uint16_t *scales, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if ((scales[i] & 0x7fff) >= 0x7bff) {
            fprintf(stderr, "%s has NaN, an infinity or a number too large for a scale of f16\n", w->name);
            exit(1);
        }
}

/* Returns the exit status: 1 also if standard output failed. */
static int finish(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "standard output could not be written\n");
    return 1;
}

/* Quantises the matrix w to elements q and scales s. */
static void quantise(const epi_module *module, const epi_safetensor *w, int bits, int64_t group,
                     epi_safetensor *q, epi_safetensor *s) {
    const epi_program *program = epi_module_find(module, bits == 8 ? "bits8" : "bits4");
    const int64_t rows = w->shape[0], groups = w->shape[1] / group;
    const epi_dim_binding dims[] = {{"F", rows}, {"G", groups}, {"K", group}};
    const epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 3, .type = w->type);
    epi_kernel *kernel;
    char *name = room(strlen(w->name) + sizeof "_scale");
    sprintf(name, "%s_scale", w->name);
    int64_t *shape = room(3 * sizeof *shape);
    shape[0] = rows;
    shape[1] = groups;
    shape[2] = group * bits / 8;
    *q = (epi_safetensor){.name = w->name, .type = bits == 8 ? EPI_I8 : EPI_U8, .rank = 3, .shape = shape};
    *s = (epi_safetensor){.name = name, .type = EPI_F16, .rank = 2, .shape = shape};
    q->bytes = (size_t)(rows * groups * shape[2]);
    s->bytes = (size_t)(rows * groups) * epi_dtype_size(EPI_F16);
    void *in = room(w->bytes), *bytes = room(q->bytes), *scales = room(s->bytes);
    memcpy(in, w->data, w->bytes);
    q->data = bytes;
    s->data = scales;
    check(epi_kernel_compile(program, &options, &kernel, &error));
    void *workspace = room(epi_kernel_workspace(kernel));
    const epi_tensor tensors[] = {{in, NULL}, {bytes, NULL}, {scales, NULL}};
    check(epi_kernel_start(kernel, tensors, 3, workspace, NULL, &error));
    check_scales(w, scales, rows * groups);
    free(workspace);
    free(in);
    epi_kernel_free(kernel);
}

/* Quantises a small matrix to 8 bits. Returns 0 if no element is off by more than half a scale. */
static int check_small(const epi_module *module) {
    enum { ROWS = 3, GROUPS = 2, GROUP = 8, COUNT = ROWS * GROUPS * GROUP };
    static const int64_t shape[] = {ROWS, GROUPS * GROUP};
    float numbers[COUNT], scales[ROWS * GROUPS], worst = 0;
    for (int i = 0; i < COUNT; i++)
        numbers[i] = (float)(i * 37 % 101 - 50) / 16;
    const epi_safetensor w = {
        .name = "w", .type = EPI_F32, .rank = 2, .shape = shape, .data = numbers, .bytes = sizeof numbers};
    static epi_safetensor q, s;
    quantise(module, &w, 8, GROUP, &q, &s);
    check(epi_convert(scales, EPI_F32, s.data, EPI_F16, ROWS * GROUPS));
    for (int i = 0; i < COUNT; i++) {
        const float scale = scales[i / GROUP], off = numbers[i] / scale - ((const int8_t *)q.data)[i];
        worst = off > worst ? off : -off > worst ? -off : worst;
    }
    printf("a small matrix in 8 bits: off by at most %.3f of a scale\n", (double)worst);
    return worst <= 0.501f ? 0 : 1;
}

/* Returns the number of an argument, or 0. */
static int number_of(const char *word) {
    char *end;
    const long x = strtol(word, &end, 10);
    return *word && !*end && x > 0 && x < 1 << 20 ? (int)x : 0;
}

int main(int count, char **words) {
    const int bits = count == 5 ? number_of(words[1]) : 0;
    const int64_t group = count == 5 ? number_of(words[2]) : 0;
    if (count == 2 && !strcmp(words[1], "--help")) {
        printf("usage: quantise 8|4 GROUP in.safetensors out.safetensors\n"
               "Quantises the matrices of a checkpoint to 8 or 4 bits. GROUP elements of a row share a "
               "scale: an\n"
               "even number such as 32. Without arguments, it checks itself with a small matrix.\n");
        return finish(0);
    }
    if (count > 1 && ((bits != 4 && bits != 8) || group < 2 || group % 2)) {
        fprintf(stderr, "quantise: it takes 8 or 4, an even GROUP and two files; see quantise --help\n");
        return 2;
    }
    epi_context *ctx;
    epi_module *module;
    epi_safetensors *file;
    static epi_safetensor out[MAX_TENSORS];
    size_t made = 0, matrices = 0;
    check(epi_context_open(&ctx, &error));
    check(epi_module_parse(ctx, programs, strlen(programs), "quantise.c", &module, &error));
    if (count == 1) {
        const int status = check_small(module);
        epi_module_free(module);
        epi_context_close(ctx);
        return finish(status);
    }
    check(epi_safetensors_open(words[3], &file, &error));
    if (2 * epi_safetensors_count(file) > MAX_TENSORS) {
        fprintf(stderr, "%s has more than %d tensors\n", words[3], MAX_TENSORS / 2);
        return 1;
    }
    for (size_t i = 0; i < epi_safetensors_count(file); i++) {
        const epi_safetensor *t = epi_safetensors_at(file, i);
        const bool number = t->type == EPI_F32 || t->type == EPI_BF16 || t->type == EPI_F16,
                   table = strstr(t->name, "embed") || strstr(t->name, "lm_head");
        if (number && t->rank == 2 && t->shape[1] % group == 0 && t->bytes) {
            quantise(module, t, table ? 8 : bits, group, &out[made], &out[made + 1]);
            made += 2;
            matrices++;
        } else {
            out[made++] = *t;
        }
    }
    check(epi_safetensors_write(words[4], out, made, NULL, 0, &error));
    printf("%zu matrices in few bits, %zu tensors in all\n", matrices, made);
    epi_safetensors_close(file);
    epi_module_free(module);
    epi_context_close(ctx);
    return finish(0);
}

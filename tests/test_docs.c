/* test_docs.c: the examples of docs/language.md do what it says. Only the public interface is used.
 *
 * What stands behind the three backquotes says what a block is; NAME=SIZE,... after that sets sizes
 * that are not 6, and a last word `gemm` or `passes` is the mainloop that the last program must get.
 *
 *     epi        checks, prints back, and runs fused within the error rule, in f32 and in bf16
 *     plan       lines that the description of the last program of the `epi` block before must have
 *     epi-error  fails; the `text` block after it is the formatted error, byte for byte
 *     epi-value  programs without inputs; the `text` block after it is what they compute
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "epilog.h"

enum { SIZE = 6, MAX_BLOCKS = 1024, MAX_TENSORS = 128, MAX_DIMS = 64, TEXT = 65536 };

typedef struct block {
    char info[80];
    const char *text;
    size_t length;
    int line;
} block;

static epi_context *context;
static int passed, failed;

static bool is(const block *b, const char *kind) {
    size_t n = strcspn(b->info, " ");
    return strlen(kind) == n && memcmp(b->info, kind, n) == 0;
}

/* ---- blocks ---- */

static int find_blocks(const char *text, block *out) {
    int count = 0, line = 1;
    block *open = NULL;
    for (const char *at = text; *at; line++) {
        size_t n = strcspn(at, "\n");
        bool fence = strncmp(at, "```", 3) == 0;
        if (fence && open) {
            open->length = (size_t)(at - open->text);
            open = NULL;
        } else if (fence && count < MAX_BLOCKS) {
            open = &out[count++];
            *open = (block){.text = at + n + (at[n] != 0), .line = line};
            snprintf(open->info, sizeof open->info, "%.*s", (int)(n - 3), at + 3);
        }
        at += n + (at[n] != 0);
    }
    return count;
}

static int64_t size_of(const block *b, const char *dim) {
    size_t n = strlen(dim);
    for (const char *at = b->info; (at = strpbrk(at, " ,")); at++)
        if (!strncmp(at + 1, dim, n) && at[1 + n] == '=')
            return strtol(at + n + 2, NULL, 10);
    return SIZE;
}

/* ---- elements ---- */

static double from_half(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double x = e == 31 ? (m ? (double)NAN : (double)INFINITY) : e ? ldexp(m + 1024, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -x : x;
}

/* Of numbers that it holds exactly. */
static uint16_t to_half(double x) {
    int e;
    double m = frexp(fabs(x), &e);
    return (uint16_t)(x == 0 ? 0 : (e + 14) << 10 | (int)(m * 2048 - 1024) | (x < 0 ? 0x8000 : 0));
}

static double get(const void *data, epi_dtype type, int64_t i) {
    uint32_t bits;
    float x;
    switch (type) {
    case EPI_F32: return (double)((const float *)data)[i];
    case EPI_F64: return ((const double *)data)[i];
    case EPI_I32: return ((const int32_t *)data)[i];
    case EPI_F16: return from_half(((const uint16_t *)data)[i]);
    default: bits = (uint32_t)((const uint16_t *)data)[i] << 16; return memcpy(&x, &bits, sizeof x), (double)x;
    }
}

static void put(void *data, epi_dtype type, int64_t i, double value) {
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    switch (type) {
    case EPI_F32: ((float *)data)[i] = x; break;
    case EPI_F64: ((double *)data)[i] = value; break;
    case EPI_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case EPI_F16: ((uint16_t *)data)[i] = to_half(value); break;
    default: ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    }
}

/* One unit in the last place of the storage type, relative. */
static double unit_of(epi_dtype type) { return type == EPI_BF16 ? 0x1p-8 : type == EPI_F16 ? 0x1p-11 : 0x1p-24; }

/* ---- running ---- */

typedef struct run {
    int count, inputs;
    epi_tensor tensors[MAX_TENSORS];
    epi_tensor_shape shapes[MAX_TENSORS];
} run;

static void run_free(run *r) {
    for (int t = 0; t < r->count; t++)
        free(r->tensors[t].data);
    *r = (run){0};
}

/* Numbers that every type holds exactly and whose products f32 adds exactly: a comparison of them comes
 * out the same on every path. Vectors and scalars are positive; indices lie within an axis. */
static void fill(run *r) {
    for (int t = 0; t < r->inputs; t++) {
        const epi_tensor_shape *s = &r->shapes[t];
        uint32_t state = 12345u + (uint32_t)t;
        for (int64_t i = 0; i < s->count; i++) {
            state = state * 1664525u + 1013904223u;
            int x = (int)(state >> 26); /* 0 to 63 */
            put(r->tensors[t].data, s->type, i, s->type == EPI_I32 ? x % SIZE : s->rank > 1 ? (x - 32) / 32.0 : (x + 16) / 64.0);
        }
    }
}

static epi_status compile(const epi_program *p, const block *b, epi_dtype type, epi_path path, epi_kernel **out,
                          epi_error *err) {
    epi_dim_binding dims[MAX_DIMS];
    epi_type_binding types[MAX_TENSORS];
    epi_options o = {.dims = dims, .dim_count = epi_program_dim_count(p), .types = types, .type = type, .path = path};
    for (int i = 0; i < o.dim_count; i++)
        dims[i] = (epi_dim_binding){epi_program_dim(p, i), size_of(b, epi_program_dim(p, i))};
    for (int t = 0; t < epi_program_tensor_count(p) && path == EPI_PATH_REFERENCE; t++) {
        epi_tensor_info info;
        epi_program_tensor(p, t, &info);
        if (info.is_output)
            types[o.type_count++] = (epi_type_binding){info.name, EPI_F64};
    }
    return epi_kernel_compile(p, &o, out, err);
}

static void *allocate(size_t bytes) { return aligned_alloc(64, (bytes + 64) / 64 * 64); }

static bool execute(const epi_program *p, const block *b, epi_dtype type, epi_path path, run *r, epi_error *err) {
    epi_kernel *k = NULL;
    *r = (run){0};
    if (compile(p, b, type, path, &k, err) != EPI_OK)
        return false;
    bool ok = true;
    for (r->count = 0; r->count < epi_program_tensor_count(p); r->count++) {
        epi_tensor_info info;
        epi_program_tensor(p, r->count, &info);
        epi_tensor_shape *s = &r->shapes[r->count];
        epi_kernel_tensor(k, r->count, s);
        size_t bytes = (size_t)s->count * epi_dtype_size(s->type);
        r->inputs += !info.is_output;
        r->tensors[r->count].data = allocate(bytes);
        if (r->tensors[r->count].data)
            memset(r->tensors[r->count].data, 0xff, bytes); /* an element that nobody writes is no number */
        else
            ok = false;
    }
    void *work = allocate(epi_kernel_workspace(k));
    if (ok && work) {
        fill(r);
        ok = epi_kernel_run(k, r->tensors, r->count, work, err) == EPI_OK;
    }
    free(work);
    epi_kernel_free(k);
    return ok && work;
}

/* ---- what a block claims ---- */

/* Says what is wrong with a block; `what` may be several lines. Answers false. */
static bool wrong(const block *b, const char *why, const char *what) {
    printf("language.md:%d: %s: %s\n", b->line, why, what);
    return false;
}

static bool wrong_error(const block *b, const epi_error *err) {
    char text[2048];
    epi_error_format(err, text, sizeof text);
    return wrong(b, "fails", text);
}

static double distance(double a, double b) {
    if (a == b || (isnan(a) && isnan(b)))
        return 0;
    return isfinite(a) && isfinite(b) ? fabs(a - b) : (double)INFINITY;
}

/* max|out - ref| <= 2*max|naive - ref| + unit*max|ref|, for every output. */
static bool within_rule(const block *b, const epi_program *p, epi_dtype type) {
    run r[3] = {0};
    epi_error err = {0};
    static const epi_path paths[3] = {EPI_PATH_FUSED, EPI_PATH_NAIVE, EPI_PATH_REFERENCE};
    bool ok = true;
    for (int i = 0; i < 3 && ok; i++)
        ok = execute(p, b, type, paths[i], &r[i], &err) || wrong_error(b, &err);
    for (int t = r[0].inputs; t < r[0].count && ok; t++) {
        double error = 0, naive = 0, scale = 0;
        epi_dtype stored = r[0].shapes[t].type;
        for (int64_t i = 0; i < r[0].shapes[t].count; i++) {
            double ref = get(r[2].tensors[t].data, EPI_F64, i);
            error = fmax(error, distance(get(r[0].tensors[t].data, stored, i), ref));
            naive = fmax(naive, distance(get(r[1].tensors[t].data, stored, i), ref));
            scale = fmax(scale, isfinite(ref) ? fabs(ref) : 0);
        }
        ok = error <= 2 * naive + unit_of(stored) * scale || wrong(b, "is too far from the reference", epi_program_name(p));
    }
    for (int i = 0; i < 3; i++)
        run_free(&r[i]);
    return ok;
}

/* The programs of a module, printed one after the other. */
static void print_module(const epi_module *m, char *out) {
    size_t n = 0;
    *out = 0;
    for (int i = 0; i < epi_module_count(m) && n < TEXT; i++)
        n += epi_program_print(epi_module_program(m, i), out + n, TEXT - n);
}

static bool prints_back(const block *b, const epi_module *m) {
    static char first[TEXT], again[TEXT];
    epi_module *back;
    epi_error err;
    print_module(m, first);
    if (epi_module_parse(context, first, strlen(first), "printed", &back, &err) != EPI_OK)
        return wrong_error(b, &err);
    print_module(back, again);
    epi_module_free(back);
    return !strcmp(first, again) || wrong(b, "prints differently the second time", again);
}

static bool has_mainloop(const block *b, const epi_program *p) {
    const char *word = strrchr(b->info, ' ');
    epi_kernel *k;
    epi_error err;
    if (!word || strchr(word, '='))
        return true;
    if (compile(p, b, EPI_F32, EPI_PATH_FUSED, &k, &err) != EPI_OK)
        return wrong_error(b, &err);
    epi_kernel_info info;
    epi_kernel_get_info(k, &info);
    bool ok = !strcmp(info.mainloop, word + 1) || wrong(b, "gets the mainloop", info.mainloop);
    epi_kernel_free(k);
    return ok;
}

static bool check_example(const block *b, const epi_module *m) {
    int count = epi_module_count(m);
    bool ok = count > 0 || wrong(b, "has", "no program");
    epi_error err;
    for (int i = 0; i < count && ok; i++) {
        const epi_program *p = epi_module_program(m, i);
        ok = (epi_program_check(p, &err) == EPI_OK || wrong_error(b, &err)) && within_rule(b, p, EPI_F32) &&
             within_rule(b, p, EPI_BF16);
    }
    return ok && has_mainloop(b, epi_module_program(m, count - 1)) && prints_back(b, m);
}

/* Is `line` one of the lines of `text`? */
static bool has_line(const char *text, const char *line, size_t n) {
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
        if (strcspn(text, "\n") == n && memcmp(text, line, n) == 0)
            return true;
    return false;
}

static bool check_plan(const block *b, const block *example, const epi_module *m) {
    epi_kernel *k;
    epi_error err;
    if (compile(epi_module_program(m, epi_module_count(m) - 1), example, EPI_F32, EPI_PATH_FUSED, &k, &err) != EPI_OK)
        return wrong_error(b, &err);
    char how[4096];
    epi_kernel_describe(k, how, sizeof how);
    epi_kernel_free(k);
    bool ok = true;
    for (const char *at = b->text; at < b->text + b->length && ok; at += strcspn(at, "\n") + 1)
        ok = has_line(how, at, strcspn(at, "\n")) || wrong(b, "is not all in", how);
    return ok;
}

/* The error of a text that does not parse, check or, if sizes are given, compile. */
static bool fails(const block *b, epi_error *err) {
    epi_module *m;
    if (epi_module_parse(context, b->text, b->length, "example.epi", &m, err) != EPI_OK)
        return true;
    bool yes = false;
    for (int i = 0; i < epi_module_count(m) && !yes; i++) {
        const epi_program *p = epi_module_program(m, i);
        epi_kernel *k = NULL;
        yes = epi_program_check(p, err) != EPI_OK ||
              (strchr(b->info, '=') && compile(p, b, EPI_F32, EPI_PATH_FUSED, &k, err) != EPI_OK);
        epi_kernel_free(k);
    }
    epi_module_free(m);
    return yes;
}

static bool same_text(const block *b, const char *got) {
    size_t n = strlen(got);
    bool same = b->length == n + 1 && memcmp(b->text, got, n) == 0 && b->text[n] == '\n';
    return same || wrong(b, "the text is not", got);
}

static bool check_error(const block *b, const block *expected) {
    epi_error err;
    char got[2048];
    if (!fails(b, &err))
        return wrong(b, "does not fail", "");
    epi_error_format(&err, got, sizeof got);
    return same_text(expected, got);
}

/* Prints the outputs of a program on one path, a line each. */
static bool print_values(const block *b, const epi_program *p, epi_path path, char *out) {
    run r;
    epi_error err = {0};
    bool ok = execute(p, b, EPI_F32, path, &r, &err) || wrong_error(b, &err);
    size_t n = 0;
    for (int t = 0; t < r.count && ok; t++) {
        epi_tensor_info info;
        epi_program_tensor(p, t, &info);
        n += (size_t)snprintf(out + n, TEXT - n, "%s%s =", n ? "\n" : "", info.name);
        for (int64_t i = 0; i < r.shapes[t].count && n < TEXT - 256; i++) {
            double x = get(r.tensors[t].data, r.shapes[t].type, i);
            n += (size_t)(isnan(x) ? snprintf(out + n, TEXT - n, " nan") : snprintf(out + n, TEXT - n, " %g", x));
        }
    }
    run_free(&r);
    return ok;
}

static bool check_values(const block *b, const block *expected, const epi_module *m) {
    static char got[TEXT];
    const epi_program *p = epi_module_program(m, epi_module_count(m) - 1);
    return print_values(b, p, EPI_PATH_FUSED, got) && same_text(expected, got) &&
           print_values(b, p, EPI_PATH_REFERENCE, got) && same_text(expected, got);
}

/* ---- every operation has an example ---- */

static const char *const ops[] = {
#define EPI_MAP1(id, text, ...) text,
#define EPI_MAP2(id, text, ...) text,
#define EPI_MAP3(id, text, ...) text,
#define EPI_REDUCE(id, text, ...) text,
#define EPI_PART(id, text, ...) text,
#define EPI_PRODUCT(id, text, ...) text,
#define EPI_LEAF(id, text) text,
#include "ir/ops.def"
};

enum { OPS = sizeof ops / sizeof *ops };

static bool seen[OPS];

static size_t token_length(const char *at) {
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789.";
    size_t n = strspn(at, word);
    return n ? n : strchr("<>=!-", at[0]) && (at[1] == '=' || at[1] == '>') ? 2 : 1;
}

/* Marks the operations that occur between braces, outside comments. */
static void mark_operations(const block *b) {
    bool body = false;
    for (const char *at = b->text; at < b->text + b->length;) {
        size_t n = *at == '#' ? strcspn(at, "\n") : token_length(at);
        body = *at == '{' || (body && *at != '}');
        for (int i = 0; i < OPS && body; i++)
            seen[i] |= strlen(ops[i]) == n && memcmp(ops[i], at, n) == 0;
        at += n;
    }
}

/* ---- the file ---- */

static bool check_block(const block *b, const block *next) {
    epi_module *m;
    epi_error err;
    if (is(b, "epi-error"))
        return is(next, "text") ? check_error(b, next) : wrong(b, "is followed by no", "text");
    if (epi_module_parse(context, b->text, b->length, "example.epi", &m, &err) != EPI_OK)
        return wrong_error(b, &err);
    bool ok;
    if (is(b, "epi-value")) {
        ok = is(next, "text") ? check_values(b, next, m) : wrong(b, "is followed by no", "text");
    } else {
        mark_operations(b);
        ok = check_example(b, m) && (!is(next, "plan") || check_plan(next, b, m));
    }
    epi_module_free(m);
    return ok;
}

/* The whole file as a text, or NULL. */
static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    char *text = f ? calloc(1, 1 << 20) : NULL;
    if (text)
        (void)!fread(text, 1, (1 << 20) - 1, f);
    if (f)
        fclose(f);
    return text;
}

int main(int argc, char **argv) {
    char *text = argc == 2 ? read_file(argv[1]) : NULL;
    if (!text || epi_context_open(&context, NULL) != EPI_OK) {
        printf("usage: test_docs docs/language.md\n");
        return 1;
    }
    static block blocks[MAX_BLOCKS + 1];
    int count = find_blocks(text, blocks);
    for (int i = 0; i < count; i++)
        if (!strncmp(blocks[i].info, "epi", 3))
            *(check_block(&blocks[i], &blocks[i + 1]) ? &passed : &failed) += 1;
    for (int i = 0; i < OPS; i++)
        if (ops[i][0] && !seen[i]) {
            printf("language.md: the operation '%s' has no example\n", ops[i]);
            failed++;
        }
    epi_context_close(context);
    free(text);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

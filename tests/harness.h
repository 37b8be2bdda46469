/* harness.h: what the tests share: counting, random numbers, guarded buffers, the error rule.
 * Header-only on purpose: a test is one C file and the library. */
#ifndef EPI_TESTS_HARNESS_H
#define EPI_TESTS_HARNESS_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/error_rule.h"
#include "bytes.h"
#include "draw.h"
#include "epilog.h"
#include "say.h"

static int passed, failed_count;

static inline bool check(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static inline bool check(bool ok, const char *fmt, ...) {
    if (ok) {
        passed++;
        return true;
    }
    failed_count++;
    va_list args;
    printf("FAILED ");
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    print_again();
    return false;
}

/* A call was refused: with this status, and a message that has these words. */
static inline bool refused_as(epi_status got, epi_status want, const epi_error *err, const char *words) {
    return check(got == want && strstr(err->message, words), "%s, not %s with '%s': %s", epi_status_name(got),
                 epi_status_name(want), words, err->message);
}

static inline int finish(void) {
    draw_one();
    printf("%d passed, %d failed\n", passed, failed_count);
    return failed_count || !passed;
}

/* ---- random numbers ---- */

static inline uint64_t random_bits(uint64_t *s) {
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static inline double random_unit(uint64_t *s) {
    return (double)(random_bits(s) >> 11) * 0x1p-53;
}
static inline int random_below(uint64_t *s, int n) {
    return (int)(random_bits(s) % (uint64_t)n);
}

/* ---- storage types, written out here a second time so that the library's own cannot hide a mistake ---- */

static inline double type_unit(epi_dtype t) {
    return t == EPI_E5M2   ? 0x1p-3
           : t == EPI_E4M3 ? 0x1p-4
           : t == EPI_BF16 ? 0x1p-8
           : t == EPI_F16  ? 0x1p-11
                           : 0x1p-24;
}

static inline void put_element(void *base, epi_dtype type, int64_t at, double value) {
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    switch (type) {
    case EPI_F64: ((double *)base)[at] = value; break;
    case EPI_I32: ((int32_t *)base)[at] = (int32_t)lrint(value); break;
    case EPI_I64: ((int64_t *)base)[at] = llrint(value); break;
    case EPI_F32: ((float *)base)[at] = f; break;
    case EPI_E4M3:
    case EPI_E5M2:
    case EPI_I8:
    case EPI_U8: ((uint8_t *)base)[at] = (uint8_t)value_byte(type, value); break;
    case EPI_BF16: ((uint16_t *)base)[at] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16); break;
    default: { /* f16, by exact scaling: finite inputs of tests are small */
        int e = 0;
        double m = isfinite(value) ? frexp(fabs(value), &e) : 0,
               scaled = e < -13 ? nearbyint(ldexp(fabs(value), 24)) : nearbyint(ldexp(m, 11));
        uint16_t h = (uint16_t)(isnan(value)   ? 0x7e00
                                : isinf(value) ? 0x7c00
                                : e < -13      ? (int)scaled
                                               : ((e + 13) << 10) + (int)scaled);
        ((uint16_t *)base)[at] = (uint16_t)((value < 0 ? 0x8000 : 0) | (value == 0 ? 0 : h));
    }
    }
}

static inline double get_element(const void *base, epi_dtype type, int64_t at) {
    uint32_t bits;
    float f;
    switch (type) {
    case EPI_F64: return ((const double *)base)[at];
    case EPI_I32: return ((const int32_t *)base)[at];
    case EPI_I64: return (double)((const int64_t *)base)[at];
    case EPI_F32: return (double)((const float *)base)[at];
    case EPI_E4M3:
    case EPI_E5M2:
    case EPI_I8:
    case EPI_U8: return byte_value(type, ((const uint8_t *)base)[at]);
    case EPI_BF16:
        bits = (uint32_t)((const uint16_t *)base)[at] << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    default: {
        uint16_t h = ((const uint16_t *)base)[at];
        int e = (h >> 10) & 31, m = h & 1023;
        double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        return h >> 15 ? -v : v;
    }
    }
}

/* ---- a program and its tensors ---- */

enum { MAX_TENSORS = 192, GUARD = 64, POISON = 0xff, SENTINEL = 0xa5 };

/* What workspaces hold before a run: ones are no number in any type; HUGE_FILL is 1e30 in f32 and bf16. */
enum { HUGE_FILL = 0x71 };
static int workspace_fill = POISON;

/* How a test lays a tensor out. */
typedef enum layout { LAYOUT_PLAIN, LAYOUT_PADDED, LAYOUT_REVERSED, LAYOUT_COUNT } layout;

typedef struct tensor {
    epi_tensor_shape shape;
    int64_t strides[EPI_MAX_AXES];
    int64_t span; /* elements from the first to behind the last */
    unsigned char *memory, *data;
    bool output;
    bool plain; /* elements lie in the written order */
} tensor;

typedef struct problem {
    const epi_program *program;
    int count, inputs;
    double terms; /* of the longest sum */
    tensor t[MAX_TENSORS];
    epi_tensor args[MAX_TENSORS];
} problem;

static inline void tensor_lay_out(tensor *t, layout how) {
    int64_t step = how == LAYOUT_PADDED ? 2 : 1;
    t->span = 1;
    t->plain = how == LAYOUT_PLAIN;
    for (int i = 0; i < t->shape.rank; i++) {
        int a = how == LAYOUT_REVERSED ? i : t->shape.rank - 1 - i;
        t->strides[a] = step;
        step = step * (t->shape.sizes[a] > 0 ? t->shape.sizes[a] : 1) + (how == LAYOUT_PADDED ? 3 : 0);
        t->span += t->strides[a] * (t->shape.sizes[a] > 0 ? t->shape.sizes[a] - 1 : 0);
    }
    if (t->shape.count == 0)
        t->span = 0;
}

/* The storage position of element i in the written order. */
static inline int64_t tensor_at(const tensor *t, int64_t i) {
    int64_t at = 0;
    if (t->plain)
        return i;
    for (int a = t->shape.rank - 1; a >= 0; a--) {
        at += i % t->shape.sizes[a] * t->strides[a];
        i /= t->shape.sizes[a];
    }
    return at;
}

static inline bool problem_make(problem *p, const epi_program *program, const epi_kernel *kernel,
                                layout how) {
    epi_kernel_info about;
    memset(p, 0, sizeof *p);
    epi_kernel_get_info(kernel, &about);
    p->terms = about.terms;
    p->program = program;
    p->count = epi_program_tensor_count(program);
    for (int i = 0; i < p->count; i++) {
        tensor *t = &p->t[i];
        epi_tensor_info info;
        if (epi_kernel_tensor(kernel, i, &t->shape) != EPI_OK ||
            epi_program_tensor(program, i, &info) != EPI_OK)
            return false;
        t->output = info.is_output;
        p->inputs += !info.is_output;
        tensor_lay_out(t, how);
        size_t bytes = (size_t)t->span * epi_dtype_size(t->shape.type);
        t->memory = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);
        if (!t->memory)
            return false;
        memset(t->memory, SENTINEL, GUARD);
        memset(t->memory + GUARD, POISON, bytes);
        memset(t->memory + GUARD + bytes, SENTINEL, GUARD);
        t->data = t->memory + GUARD;
        if (t->plain)
            EPI_UNWRITTEN(t->data, bytes);
        p->args[i] = (epi_tensor){t->data, how == LAYOUT_PLAIN ? NULL : t->strides};
    }
    return true;
}

static inline void problem_free(problem *p) {
    for (int i = 0; i < p->count; i++)
        free(p->t[i].memory);
    memset(p, 0, sizeof *p);
}

static inline size_t tensor_bytes(const tensor *t) {
    return (size_t)t->span * epi_dtype_size(t->shape.type);
}

static inline void poison_outputs(problem *p) {
    for (int t = p->inputs; t < p->count; t++)
        memset(p->t[t].data, POISON, tensor_bytes(&p->t[t]));
}

/* No byte of them was written since. */
static inline bool outputs_untouched(const problem *p) {
    bool untouched = true;
    for (int t = p->inputs; t < p->count; t++) {
        EPI_WRITTEN(p->t[t].data, tensor_bytes(&p->t[t]));
        for (size_t b = 0; b < tensor_bytes(&p->t[t]); b++)
            untouched &= p->t[t].data[b] == POISON;
    }
    return untouched;
}

/* Nothing outside the tensor was touched: the guards, and the gaps between strided elements. */
static inline bool tensor_intact(const tensor *t) {
    size_t size = epi_dtype_size(t->shape.type), bytes = (size_t)t->span * size;
    for (int i = 0; i < GUARD; i++)
        if (t->memory[i] != SENTINEL || t->data[bytes + (size_t)i] != SENTINEL)
            return false;
    if (t->plain)
        return true;
    bool *used = calloc((size_t)t->span + 1, 1), ok = used != NULL;
    for (int64_t i = 0; i < t->shape.count && ok; i++)
        used[tensor_at(t, i)] = true;
    for (int64_t i = 0; i < t->span && ok; i++)
        for (size_t b = 0; b < size && !used[i]; b++)
            ok &= t->data[(size_t)i * size + b] == POISON;
    free(used);
    return ok;
}

/* Of attention's masks and scores: values that let through a part; where groups begin. Inputs of other names
 * have any. */
typedef enum meaning {
    MEANS_ANY,
    MEANS_WINDOW,
    MEANS_CAP,
    MEANS_DOCUMENT,
    MEANS_PACKED,
    MEANS_MIXED,
    MEANS_PREFIX,
    MEANS_OFFSETS
} meaning;

static inline meaning meaning_of(const char *name) {
    return !strcmp(name, "window")                          ? MEANS_WINDOW
           : !strcmp(name, "cap")                           ? MEANS_CAP
           : !strcmp(name, "query") || !strcmp(name, "key") ? MEANS_DOCUMENT
           : !strncmp(name, "packed_", 7)                   ? MEANS_PACKED
           : !strncmp(name, "mixed_", 6)                    ? MEANS_MIXED
           : !strcmp(name, "prefix")                        ? MEANS_PREFIX
           : !strcmp(name, "offsets")                       ? MEANS_OFFSETS
                                                            : MEANS_ANY;
}

static inline double meant(meaning what, const tensor *t, int64_t e, double otherwise) {
    static const double ends[] = {0, 0, 1, 64, 128, 193, 320, 449};
    int64_t last = t->shape.rank ? t->shape.sizes[t->shape.rank - 1] : 1;
    switch (what) {
    case MEANS_WINDOW: return 13;
    case MEANS_CAP: return 2.5;
    case MEANS_DOCUMENT: return (double)(e % last / 23);        /* one after another */
    case MEANS_PACKED: return (double)((e % last + 260) / 300); /* whole tiles after one that two share */
    case MEANS_MIXED: /* in no order, and numbers that equal nothing */
        return e % 97 == 5 ? (double)NAN : (double)(e % last / 70 * 5 % 3);
    case MEANS_PREFIX: return (double)(11 + 30 * e);
    case MEANS_OFFSETS:
        return e < 8 ? ends[e] : ends[7]; /* groups of 0, 1, 63, 64 ... rows, and of the rest */
    default: return otherwise;
    }
}

/* Random inputs that depend only on the seed, the tensor and the element, not on the layout; and what is
 * meant. */
static inline void problem_fill(problem *p, uint64_t seed) {
    int64_t largest = 1;
    for (int i = 0; i < p->inputs; i++)
        for (int a = 0; a < p->t[i].shape.rank; a++)
            largest = p->t[i].shape.sizes[a] > largest ? p->t[i].shape.sizes[a] : largest;
    for (int i = 0; i < p->inputs; i++) {
        tensor *t = &p->t[i];
        epi_tensor_info info;
        epi_program_tensor(p->program, i, &info);
        meaning what = meaning_of(info.name);
        uint64_t s = seed * 1000003 + (uint64_t)i;
        int64_t inner = t->shape.rank ? t->shape.sizes[t->shape.rank - 1] : 1, below = t->shape.index_below;
        double scale = t->shape.rank > 1 ? pow((double)(inner ? inner : 1), -0.25) * 1.7 : 1;
        for (int64_t e = 0; e < t->shape.count; e++) {
            bool integer = t->shape.type == EPI_I32 || t->shape.type == EPI_I64;
            double x = integer              ? (double)random_below(&s, (int)(below > 0 ? below : largest))
                       : t->shape.rank == 0 ? 1e-3 * random_unit(&s)
                       : t->shape.rank == 1 ? 0.5 + random_unit(&s)
                                            : scale * (2 * random_unit(&s) - 1);
            put_element(t->data, t->shape.type, tensor_at(t, e), meant(what, t, e, x));
        }
    }
}

/* Makes what runs need of params; NULL, and true, where they need nothing. */
static inline bool problem_prepare(const epi_kernel *kernel, const problem *p, void **prepared) {
    size_t bytes = epi_kernel_prepare_size(kernel);
    void *work = bytes ? aligned_alloc(64, epi_kernel_workspace(kernel)) : NULL;
    const epi_call call = EPI_CALL(.tensors = p->args, .count = p->count, .workspace = work);
    *prepared = bytes ? aligned_alloc(64, bytes) : NULL;
    bool ok = !bytes || (work && *prepared && epi_kernel_prepare(kernel, &call, *prepared, NULL) == EPI_OK);
    free(work);
    return ok;
}

/* Compiles and runs with a workspace that is guarded and poisoned as well. */
static inline bool problem_run(const epi_kernel *kernel, problem *p) {
    size_t bytes = epi_kernel_workspace(kernel);
    unsigned char *memory = aligned_alloc(64, bytes + 2 * GUARD);
    if (!memory)
        return false;
    memset(memory, SENTINEL, bytes + 2 * GUARD);
    memset(memory + GUARD, workspace_fill, bytes < 1 << 24 ? bytes : 1 << 24);
    EPI_UNWRITTEN(memory + GUARD, bytes);
    epi_error err;
    void *prepared;
    bool ok = problem_prepare(kernel, p, &prepared);
    const epi_call call =
        EPI_CALL(.tensors = p->args, .count = p->count, .workspace = memory + GUARD, .prepared = prepared);
    ok = ok && epi_kernel_call(kernel, &call, &err) == EPI_OK;
    free(prepared);
    for (int i = 0; i < GUARD; i++)
        ok &= memory[i] == SENTINEL && memory[GUARD + bytes + (size_t)i] == SENTINEL;
    free(memory);
    return ok;
}

/* ---- the error rule ---- */

static inline double apart(double a, double b) {
    if (a == b || (isnan(a) && isnan(b)))
        return 0;
    return isfinite(a) && isfinite(b) ? fabs(a - b) : INFINITY;
}

/* The rule of base/error_rule.h. The naive result is rounded to the output's type first: it is stored as
 * well. `between` is how the path under test stores what lies between: f32 where it is fused. */
static inline bool within_rule(const tensor *out, const tensor *ref, const tensor *naive, epi_dtype between,
                               double terms, double *error, double *bound) {
    double e = 0, n = 0, scale = 0;
    for (int64_t i = 0; i < out->shape.count; i++) {
        double want = get_element(ref->data, EPI_F64, tensor_at(ref, i)),
               plain = get_element(naive->data, EPI_F64, tensor_at(naive, i));
        double got = get_element(out->data, out->shape.type, tensor_at(out, i));
        unsigned char one[8];
        if (isfinite(plain) && fabs(plain) < 60000) {
            put_element(one, out->shape.type, 0, plain);
            plain = get_element(one, out->shape.type, 0);
        }
        e = fmax(e, apart(got, want));
        n = fmax(n, apart(plain, want));
        scale = fmax(scale, isfinite(want) ? fabs(want) : 0);
    }
    *error = e;
    *bound = epi_error_bound(n, 0, scale,
                             epi_error_floor(fmax(type_unit(out->shape.type), type_unit(between)), terms));
    return e <= *bound;
}

/* ---- texts ---- */

static inline char *read_whole(const char *path, size_t *length) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *text = malloc(1 << 20);
    *length = text ? fread(text, 1, (1 << 20) - 1, f) : 0;
    fclose(f);
    if (text)
        text[*length] = 0;
    return text;
}

/* "M=3,N=4" into bindings that point into `store`. */
static inline int parse_dims(const char *text, epi_dim_binding *out, char (*store)[16]) {
    int n = 0;
    for (const char *c = text; *c; n++) {
        size_t length = strcspn(c, "=");
        snprintf(store[n], sizeof store[n], "%.*s", (int)length, c);
        char *end;
        out[n] = (epi_dim_binding){store[n], strtoll(c + length + 1, &end, 10)};
        c = *end ? end + 1 : end;
    }
    return n;
}

/* What yardsticks compute in: outputs in f64, and where `all` is set inputs of numbers, too. Returns how many types
 * that gives. */
static inline int wide_types(const epi_program *p, bool all, epi_type_binding *types) {
    int count = 0;
    for (int i = 0; i < epi_program_tensor_count(p); i++) {
        epi_tensor_info info;
        epi_program_tensor(p, i, &info);
        bool integer = info.has_type && (info.type == EPI_I32 || info.type == EPI_I64);
        if (all ? !integer : info.is_output)
            types[count++] = (epi_type_binding){info.name, EPI_F64};
    }
    return count;
}

/* What gradients are taken by: inputs of numbers, up to `most`; without `typed` those alone whose type the text
 * leaves open. Returns how many. */
static inline int number_inputs(const epi_program *p, bool typed, const char **names, int most) {
    int count = 0;
    for (int i = 0; i < epi_program_tensor_count(p) && count < most; i++) {
        epi_tensor_info info;
        epi_program_tensor(p, i, &info);
        if (!info.is_output && !(info.has_type && (epi_dtype_is_whole(info.type) || !typed)))
            names[count++] = info.name;
    }
    return count;
}

/* The options of one compile, and what they point at. */
typedef struct bound {
    epi_dim_binding dims[16];
    char store[16][16];
    epi_options options;
} bound;

static inline void bind_dims(bound *b, const char *dims, epi_dtype type, int device) {
    b->options = (epi_options)EPI_OPTIONS(.dims = b->dims, .dim_count = parse_dims(dims, b->dims, b->store),
                                          .type = type, .device = device, .threads = device ? 0 : 2);
}

#endif

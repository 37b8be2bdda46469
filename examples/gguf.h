/* gguf.h: reads GGUF files, the model files of llama.cpp: numbers by key, and tensors in F32, F16, BF16, Q8_0, Q4_0 and
 * Q4_1. In the last three, 32 elements of a row are a block. A block has its scale, in Q4_1 its minimum, then the
 * elements. Programs have elements and scales in separate tensors, so gguf_split separates the blocks on loading. */
#ifndef EPILOG_GGUF_H
#define EPILOG_GGUF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GGUF_F32 = 0,
    GGUF_F16 = 1,
    GGUF_Q4_0 = 2,
    GGUF_Q4_1 = 3,
    GGUF_Q8_0 = 8,
    GGUF_BF16 = 30,
    GGUF_BLOCK = 32
};

typedef struct gguf_tensor {
    char name[64];
    uint32_t type;
    int64_t row, rows; /* elements of a row, and how many rows */
    const unsigned char *data;
} gguf_tensor;

typedef struct gguf {
    unsigned char *bytes;
    size_t size, at;
    bool broken; /* it ends too early, or its contents are impossible */
    size_t keys; /* where the first key is */
    uint64_t key_count, tensor_count;
    gguf_tensor *tensors;
} gguf;

/* Returns the bytes of a block, and gives its elements. 0: the type is unknown. */
static inline size_t gguf_block_bytes(uint32_t type, int64_t *elements) {
    *elements = type == GGUF_Q4_0 || type == GGUF_Q4_1 || type == GGUF_Q8_0 ? GGUF_BLOCK : 1;
    return type == GGUF_F32                        ? 4
           : type == GGUF_F16 || type == GGUF_BF16 ? 2
           : type == GGUF_Q4_0                     ? 18
           : type == GGUF_Q4_1                     ? 20
           : type == GGUF_Q8_0                     ? 34
                                                   : 0;
}

static inline uint64_t gguf_take(gguf *f, size_t bytes) {
    uint64_t x = 0;
    if (f->broken || bytes > f->size - f->at) {
        f->broken = true;
        return 0;
    }
    memcpy(&x, f->bytes + f->at, bytes < sizeof x ? bytes : sizeof x);
    f->at += bytes;
    return x;
}

/* Reads a text and copies its first bytes to `to`. */
static inline void gguf_text(gguf *f, char *to, size_t room) {
    uint64_t length = gguf_take(f, 8);
    if (f->broken || length > f->size - f->at) {
        f->broken = true;
        length = 0;
    }
    size_t kept = length < room ? (size_t)length : room - 1;
    memcpy(to, f->bytes + f->at, kept);
    to[kept] = 0;
    f->at += (size_t)length;
}

/* Skips a value. Returns it if it is a number; copies it to `text` if it is a text. */
static inline double gguf_value(gguf *f, uint32_t type, char *text, size_t room) {
    static const unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    char skipped[2];
    if (type == 8) {
        gguf_text(f, text, room);
    } else if (type == 9) {
        uint32_t of = (uint32_t)gguf_take(f, 4);
        uint64_t count = gguf_take(f, 8);
        for (uint64_t i = 0; i < count && !f->broken && of != 9; i++)
            gguf_value(f, of, skipped, sizeof skipped);
        f->broken |= of == 9;
    } else if (type < sizeof sizes) {
        uint64_t bits = gguf_take(f, sizes[type]);
        float single;
        double both;
        memcpy(&single, &bits, sizeof single);
        memcpy(&both, &bits, sizeof both);
        return type == 6 ? (double)single : type == 12 ? both : (double)bits;
    } else {
        f->broken = true;
    }
    return 0;
}

/* Returns the number of a key, or `otherwise`. A text is copied to `text`. */
static inline double gguf_setting(gguf *f, const char *key, double otherwise, char *text, size_t room) {
    char name[128], skipped[2];
    f->at = f->keys;
    for (uint64_t i = 0; i < f->key_count && !f->broken; i++) {
        gguf_text(f, name, sizeof name);
        uint32_t type = (uint32_t)gguf_take(f, 4);
        if (strcmp(name, key) == 0)
            return gguf_value(f, type, text, room);
        gguf_value(f, type, skipped, sizeof skipped);
    }
    return otherwise;
}

static inline void gguf_read_tensor(gguf *f, gguf_tensor *t, uint64_t *offset) {
    gguf_text(f, t->name, sizeof t->name);
    uint32_t rank = (uint32_t)gguf_take(f, 4);
    t->row = t->rows = 1;
    f->broken |= rank > 4;
    for (uint32_t d = 0; d < rank && !f->broken; d++) {
        int64_t size = (int64_t)gguf_take(f, 8), *to = d ? &t->rows : &t->row;
        f->broken |= size < 1 || size > INT64_MAX / 64 / *to;
        *to *= f->broken ? 1 : size;
    }
    t->type = (uint32_t)gguf_take(f, 4);
    *offset = gguf_take(f, 8);
}

/* Reads the whole file. Returns false if it is not a GGUF file, or broken. */
static inline bool gguf_open(gguf *f, const char *path) {
    FILE *in = fopen(path, "rb");
    char skipped[2];
    *f = (gguf){0};
    if (!in)
        return false;
    bool ok = fseek(in, 0, SEEK_END) == 0;
    long size = ftell(in);
    rewind(in);
    f->bytes = ok && size > 0 ? malloc((size_t)size) : NULL;
    ok = f->bytes && fread(f->bytes, 1, (size_t)size, in) == (size_t)size;
    fclose(in);
    f->size = ok ? (size_t)size : 0;
    ok = ok && gguf_take(f, 4) == 0x46554747 && gguf_take(f, 4) >= 2;
    f->tensor_count = ok ? gguf_take(f, 8) : 0;
    f->key_count = ok ? gguf_take(f, 8) : 0;
    f->keys = f->at;
    double aligned = ok ? gguf_setting(f, "general.alignment", 32, skipped, sizeof skipped) : 1;
    f->at = f->keys;
    for (uint64_t i = 0; i < f->key_count && !f->broken; i++) {
        gguf_text(f, skipped, sizeof skipped);
        gguf_value(f, (uint32_t)gguf_take(f, 4), skipped, sizeof skipped);
    }
    ok = ok && !f->broken && f->tensor_count < 1 << 20 && aligned >= 1 && aligned <= 1 << 20;
    f->tensors = ok ? calloc((size_t)f->tensor_count + 1, sizeof *f->tensors) : NULL;
    uint64_t *offsets = ok ? calloc((size_t)f->tensor_count + 1, sizeof *offsets) : NULL;
    ok = f->tensors && offsets;
    for (uint64_t i = 0; i < f->tensor_count && ok; i++)
        gguf_read_tensor(f, &f->tensors[i], &offsets[i]);
    size_t begin = ok ? (f->at + (size_t)aligned - 1) / (size_t)aligned * (size_t)aligned : 0;
    for (uint64_t i = 0; i < f->tensor_count && ok && !f->broken; i++) {
        gguf_tensor *t = &f->tensors[i];
        int64_t block;
        size_t bytes = gguf_block_bytes(t->type, &block), left = f->size - begin;
        f->broken |= begin > f->size || t->row % block != 0 || offsets[i] > left;
        left -= f->broken ? 0 : (size_t)offsets[i];
        f->broken |= bytes && (size_t)t->row > left / bytes * (size_t)block;
        f->broken |= bytes && !f->broken && (size_t)t->rows > left / ((size_t)(t->row / block) * bytes);
        t->data = f->broken ? NULL : f->bytes + begin + offsets[i];
    }
    free(offsets);
    return ok && !f->broken;
}

static inline void gguf_close(gguf *f) {
    free(f->tensors);
    free(f->bytes);
}

static inline const gguf_tensor *gguf_find(const gguf *f, const char *name) {
    for (uint64_t i = 0; i < f->tensor_count; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    return NULL;
}

/* Separates `blocks` blocks. Q8_0 becomes i8. Q4_0 and Q4_1 become i4 and u4: two neighbours in a byte, the first in the
 * low half. The file has elements 0 to 15 in the low halves of 16 bytes, and the others in the high halves. It stores
 * elements of Q4_0 plus 8. Scales and the minima of Q4_1 are f16. */
static inline void gguf_split(uint32_t type, const unsigned char *from, int64_t blocks,
                              unsigned char *elements, uint16_t *scales, uint16_t *offsets) {
    int64_t block;
    const size_t bytes = gguf_block_bytes(type, &block);
    const unsigned char turned = type == GGUF_Q4_0 ? 0x88 : 0;
    for (int64_t b = 0; b < blocks; b++, from += bytes) {
        const unsigned char *q = from + (type == GGUF_Q4_1 ? 4 : 2);
        memcpy(scales + b, from, 2);
        if (type == GGUF_Q8_0) {
            memcpy(elements + b * GGUF_BLOCK, q, GGUF_BLOCK);
            continue;
        }
        if (type == GGUF_Q4_1)
            memcpy(offsets + b, from + 2, 2);
        for (int i = 0; i < GGUF_BLOCK / 4; i++) {
            const unsigned first = q[2 * i], second = q[2 * i + 1];
            unsigned char *to = elements + b * (GGUF_BLOCK / 2) + i;
            to[0] = (unsigned char)(((first & 15) | (second & 15) << 4) ^ turned);
            to[GGUF_BLOCK / 4] = (unsigned char)((first >> 4 | (second >> 4) << 4) ^ turned);
        }
    }
}

#endif

/* shapes.h: programs of rows, and the shapes that tests force on them by name: one table for the emitted text
 * (test_cuda.c, test_emulate.c) and for GPUs (test_gpu.c). */
#ifndef EPI_TESTS_SHAPES_H
#define EPI_TESTS_SHAPES_H

#include "cases.h"

typedef struct row_program {
    const char *file, *program;
    const char *rows, *columns; /* the axes: one that counts rows, or NULL; and the columns */
    const char *others;         /* what is left of them, with sizes */
    int part, even;             /* columns of a row for one of that axis; a divisor of their number */
} row_program;

static const row_program row_programs[] = {
    {"norms", "rmsnorm", "T", "D", "", 1, 1},
    {"norms", "layernorm", "T", "D", "", 1, 1},
    {"norms", "rmsnorm_grad", "T", "D", "", 1, 1},
    {"norms", "layernorm_grad", "T", "D", "", 1, 1},
    {"softmax", "softmax", "T", "D", "", 1, 1},
    {"losses", "token_loss", "T", "V", "", 1, 1},
    {"gated", "swiglu_gate_halves", "T", "F", "", 2, 2},
    {"gated", "swiglu_gate_pairs_grad", "T", "F", "", 2, 2},
    {"rotary", "rotary_halves", "S", "D", ",B=1,H=2", 1, 2},
    {"rotary", "rotary_pairs", "S", "D", ",B=1,H=2", 1, 2},
    {"copies", "transpose", "N", "M", "", 1, 1},
    {"optim", "adamw", NULL, "N", "", 1, 1},
    {"optim", "global_norm", NULL, "N", "", 1, 1},
    {"../tests/row_sums", "pairs_sum", "T", "F", "", 2, 2},
    {"../tests/row_sums", "halves_sum", "T", "F", "", 2, 2},
    {"../tests/row_sums", "both_halves_sum", "T", "F", "", 2, 2},
    {"norms", "layernorm_saved", "T", "D", "", 1, 1},
    {"../tests/row_sums", "distances", "T", "D", "", 1, 1},
    {"../tests/row_sums", "crossed_rows", "T", "D", "", 1, 1},
};
enum { ROW_PROGRAMS = sizeof row_programs / sizeof *row_programs };

/* For rows of up to 256 vectors: 1024 columns in f32, 2048 in 16 bits. */
static const char *const row_shapes[] = {
    "rows_32x8_b3_m3_w1",      /* few blocks, so the ring goes round */
    "rows_8x32_r8_b2_m2",      /* several rows a warp */
    "rows_64x4_r3_b2_m2_a_w2", /* several teams a block, each with a ring of its own */
    "rows_64x4_r2_b2_a",       /* rows ahead, in registers where there is no copy engine */
    "rows_128x2_s",            /* read again in every phase */
    "rows_4x64_r16_b1",
    "rows_1x256_r32_s",
    "rows_96x3_r5_b2",
    "rows_64x2_c2_b4_m2", /* blocks share a row */
    "rows_32x2_c4_a",
    "rows_32x1_c8_b8_m1",
    "rows_512x1_r2_a_w1",
    "rows_256x1_m4_w2_p3",
    "rows_16x16_r2_b5_a_m8",
};
/* For one long row that is cut anywhere. */
static const char *const flat_shapes[] = {"rows_32x2_b3", "rows_64x1", "rows_256x4_b1", "rows_1024x1_b2",
                                          "rows_96x3_b5"};
enum {
    ROW_SHAPES = sizeof row_shapes / sizeof *row_shapes,
    FLAT_SHAPES = sizeof flat_shapes / sizeof *flat_shapes
};

static inline int shape_count(const row_program *r) {
    return r->rows ? ROW_SHAPES : FLAT_SHAPES;
}
static inline const char *shape_at(const row_program *r, int i) {
    return r->rows ? row_shapes[i] : flat_shapes[i];
}

/* Do the rows of every tensor lie one after the other? */
static inline bool rows_apart(const row_program *r) {
    return r->rows && strcmp(r->file, "copies") != 0;
}

/* Copies the row of a tensor that is the whole of `one`, or compares with it: along the axis that is shorter
 * there. What every row sees has none. */
static inline bool take_row(tensor *one, const tensor *many, int64_t row, bool compares) {
    size_t outer = 1, inner = epi_dtype_size(one->shape.type);
    int axis = 0, rank = one->shape.rank;
    for (; axis < rank && one->shape.sizes[axis] == many->shape.sizes[axis]; axis++)
        outer *= (size_t)one->shape.sizes[axis];
    for (int i = axis + 1; i < rank; i++)
        inner *= (size_t)one->shape.sizes[i];
    size_t step = axis < rank ? inner * (size_t)many->shape.sizes[axis] : inner,
           first = axis < rank ? inner * (size_t)row : 0;
    bool same = true;
    for (size_t i = 0; i < outer && same; i++)
        if (compares)
            same = !memcmp(one->data + i * inner, many->data + i * step + first, inner);
        else
            memcpy(one->data + i * inner, many->data + i * step + first, inner);
    return same;
}

#endif

/* block.h: carries the steps of a tile's list out on a block of it that is in cache.
 *
 * Values come in four shapes: one number, one per row, one per column, one per element. Whoever runs a block
 * says where each value is; the steps are the same for a tile of a product and for rows of a tensor. */
#ifndef EPI_CPU_BLOCK_H
#define EPI_CPU_BLOCK_H

#include "cpu/access.h"
#include "pass/tile_program.h"

/* Where one tensor's elements lie, worked out once per run. */
typedef struct epi_tile_access {
    epi_ref ref;
    epi_walk rows;
    epi_columns cols;
    bool plain;  /* the columns of a row are neighbours */
    bool direct; /* f32 besides, and rows a fixed distance apart: strips can work on it in place */
    bool stream; /* what is stored goes past the caches */
    /* TAKE: the index and where its elements lie for each row; places along the axis, and between them.
       RANDOM: the seed. */
    epi_ref index;
    epi_walk which;
    int64_t size, step;
} epi_tile_access;

/* Are the elements of a row neighbours in the tensor? */
static inline bool epi_access_is_row(const epi_tile_access *a) {
    return a->plain && a->cols.walk.count == 1;
}
/* And rows a fixed distance apart? */
static inline bool epi_access_is_regular(const epi_tile_access *a) {
    return epi_access_is_row(a) && a->rows.count <= 1;
}

/* How many of the step's operands are the value? */
static inline int epi_step_reads(const epi_instr *s, int v) {
    return (s->arg[0] == v) + (s->arg[1] == v) + (s->arg[2] == v);
}

/* Where a value is. */
typedef struct epi_spot {
    float *p;
    ptrdiff_t ld;   /* between rows */
    ptrdiff_t walk; /* between blocks of rows: 0 for slots, which every block uses anew */
} epi_spot;

/* The rows m0 to m0 + rows and some columns, in short vectors; of them the block in hand, in elements. */
typedef struct epi_block {
    const epi_tile_program *tile;
    const epi_strips *strips;
    const epi_tile_access *access; /* by step */
    epi_spot *at;                  /* by value */
    const int *keep;               /* by value: not -1 if it is wanted after the list; NULL: none is */
    float *tmp;                    /* as many floats as there are columns */
    int64_t m0;
    int rows;
    int64_t first[EPI_SCALE_COUNT]; /* columns, by scale: the first, */
    int columns[EPI_SCALE_COUNT];   /* and how many */
    int row, number, block_rows;    /* the block: its first row after m0, its place, how many rows */
    int64_t step[2];                /* to the next rows that are worked on: rows, columns of the fine scale */
} epi_block;

/* Is it a function that takes many instructions? */
bool epi_step_is_dear(const epi_instr *s);

/* Gives values their slots; that of a value of elements is free again after the last step that reads it,
 * which comes as late as step until[i] for step i. Values of elements that are `elsewhere` (NULL: none is)
 * get none. `busy` has a place per value, all false. */
void epi_block_slots(epi_tile_program *t, const int *until, const bool *elsewhere, bool *busy, int *slots,
                     int *shorts);

/* Works out where the tensor of a load, a store or an index lies. `homes` is by node, `tensors` by tensor. */
void epi_tile_access_find(const epi_tile_program *t, int step, const epi_ref *homes, const epi_ref *tensors,
                          epi_tile_access *out);
/* The first element of the rows from m0 on in a tensor, at its columns from `first` on. */
unsigned char *epi_block_address(const epi_block *b, const epi_tile_access *a, epi_scale scale);
static inline ptrdiff_t epi_tile_access_ld(const epi_tile_access *a) {
    return a->rows.count ? (ptrdiff_t)a->rows.stride[a->rows.count - 1] : 0;
}

/* Any step but a reduction. */
void epi_block_step(const epi_block *b, int step);
/* A reduction of the block: a state per row into p and p2, or the block's rows into those per column. */
void epi_block_reduce(const epi_block *b, const epi_instr *s, float *p, float *p2);

/* Folds the partials of a reduction that left, `count` of each of `length` results, in order, and stores the
 * results in their home. */
void epi_partials_fold(const epi_tile_program *t, const epi_strips *strips, const epi_instr *s,
                       const epi_ref *home, const float *partials, int64_t length, int64_t count,
                       int threads);

static inline bool epi_tile_is_full(const epi_tile_value *v) {
    return v->rows && v->scale != EPI_SCALE_NONE;
}

#endif

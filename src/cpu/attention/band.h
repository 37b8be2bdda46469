/* band.h: runs the instructions of a tile's program on a band of the tile, some rows that are in cache.
 *
 * Values come in four shapes: one number, one per row, one per column, one per element. The caller says
 * where each value is. The instructions are the same for a tile of a product and for rows of a tensor.
 */
#ifndef EPI_CPU_BAND_H
#define EPI_CPU_BAND_H

#include "cpu/access.h"
#include "pass/schedule/tile_program.h"

/* Where one tensor's elements lie, worked out once per run. */
typedef struct epi_tile_access {
    epi_ref ref;
    epi_walk rows;
    epi_columns cols;
    bool plain;       /* the columns of a row are neighbours */
    bool direct;      /* f32 besides, and rows a fixed distance apart: strips can work on it in place */
    bool nontemporal; /* STORE: by non-temporal stores */
    /* TAKE: the index and where its elements lie for each row; places along the axes that it counts along, and
       how many there are. RANDOM: the seed. */
    epi_ref index;
    epi_walk which, along;
    int64_t size, number; /* the place itself, where the index is a number */
    /* SHIFT: by how many places, of `size`; in elements; and are these columns? Else `which` has a row's place. */
    int64_t by, back;
    bool across;
} epi_tile_access;

/* Are the elements of a row neighbours in the tensor? */
static inline bool epi_access_is_row(const epi_tile_access *a) {
    return a->plain && a->cols.walk.count == 1;
}
/* And rows a fixed distance apart? */
static inline bool epi_access_is_regular(const epi_tile_access *a) {
    return epi_access_is_row(a) && a->rows.count <= 1;
}
/* Elements from a row to the next, where that is the same for all. */
static inline ptrdiff_t epi_access_ld(const epi_tile_access *a) {
    return a->rows.count ? (ptrdiff_t)a->rows.stride[a->rows.count - 1] : 0;
}

/* How many of the instruction's operands are the value? */
static inline int epi_instr_reads(const epi_instr *s, int v) {
    return (s->arg[0] == v) + (s->arg[1] == v) + (s->arg[2] == v);
}
static inline bool epi_instr_sums(const epi_instr *s) {
    return epi_ops[s->op].adds;
}
static inline bool epi_instr_folds_row(const epi_instr *s) {
    return s->kind == EPI_INSTR_REDUCE_ROW || s->kind == EPI_INSTR_PARTIAL_ROWS;
}

/* Where a value is. */
typedef struct epi_spot {
    float *p;
    ptrdiff_t ld; /* elements from a row to the next */
    bool down;    /* it has all rows of the tile from p on, not those of a band alone, */
    bool along;   /* and all columns of the row */
} epi_spot;

/* The rows m0 to m0 + rows and some columns, which short vectors have all of, and of them the band in hand.
 */
typedef struct epi_band {
    const epi_tile_program *tile;
    const epi_strips *strips;
    const epi_tile_access *access; /* by instruction */
    epi_spot *at;                  /* by value */
    float *tmp;                    /* as many floats as there are columns */
    int64_t m0;
    int rows;
    int64_t first[EPI_SCALE_COUNT]; /* columns, by scale: the first, */
    int columns[EPI_SCALE_COUNT];   /* and how many */
    int64_t group;                  /* of rows, that a product's tile has */
    int row, band_rows;             /* the band: its first row after m0, how many rows */
} epi_band;

/* Works out where the tensor of a load, a store or an index lies. `homes` is by node, `tensors` by tensor. */
void epi_tile_access_find(const epi_tile_program *t, int instr, const epi_ref *homes, const epi_ref *tensors,
                          epi_tile_access *out);
/* By value: the first instruction that stores it, if it is computed and not loaded; else -1. */
void epi_first_stores(const epi_tile_program *t, int *store);
/* The first element of the rows from m0 on in a tensor, at its columns from `first` on. */
unsigned char *epi_band_address(const epi_band *b, const epi_tile_access *a, epi_scale scale);

/* Are all places inside that the shift takes for the rows from m0 on, at the columns in hand? */
bool epi_band_is_inside(const epi_band *b, int instr);

/* Any instruction but a cross-tile reduction. */
void epi_band_run(const epi_band *b, int instr);
/* Such a reduction: a state per row into p and p2, or the band's rows into those per column. */
void epi_band_reduce(const epi_band *b, const epi_instr *s, float *p, float *p2);

/* A recurrence: `state` has a number for each column of the band, or, where the plan's columns are the steps, for each
 * row. */
void epi_band_scan(const epi_band *b, const epi_instr *s, double *state);

/* Where a reduction's states lie: the first words of all, and the second ones, which of partials those alone
 * have that have two. */
typedef struct epi_states {
    int64_t first, second;
} epi_states;

/* Folds the partials of a cross-tile reduction, `count` of each of `length` results, in order, and stores the
 * results in their home; so the mean that a variance's partials give. */
void epi_partials_fold(const epi_tile_program *t, const epi_strips *strips, int instr, const epi_states *at,
                       const epi_ref *homes, const float *partials, int64_t length, int64_t count,
                       int threads);

#endif

/* epilogue.h: what happens to a tile of the product while it is in cache: a list of strips.
 *
 * Values come in four shapes: one number, one per row, one per column, one per element. The first
 * three are computed once per tile; the last in blocks of a few rows, so that a block's values stay
 * in the first-level cache from one strip to the next. */
#ifndef EPI_CPU_EPILOGUE_H
#define EPI_CPU_EPILOGUE_H

#include "cpu/access.h"
#include "pass/steps.h"

enum { EPI_TILE_M = 96, EPI_TILE_N = 256, EPI_TILE_BLOCK = 4 /* rows that strips work on at a time */ };

/* A value the tile computes or loads, at one column scale. */
typedef struct epi_tile_value {
    int node;
    epi_scale scale; /* NONE: no columns */
    bool rows;
    int slot;  /* where it is kept: a full slot for elements, else a short one */
    bool made; /* computed, not loaded or the product itself */
    int store; /* the first step that stores it if it is made, else -1: strips may make it there */
    int last;  /* the last step that reads it */
} epi_tile_value;

typedef enum epi_tile_kind {
    EPI_TILE_LOAD,  /* from the node's home */
    EPI_TILE_INDEX, /* positions along an axis */
    EPI_TILE_CONST,
    EPI_TILE_MAP,
    EPI_TILE_MULADD, /* sign*a*b + other*c: a map whose operand is a product that nothing else needs */
    EPI_TILE_PART,   /* every other element of a */
    EPI_TILE_JOIN,   /* a and b alternating */
    EPI_TILE_GROUP,  /* a reduction inside the tile, repeated over its columns */
    EPI_TILE_STORE,
    EPI_TILE_REDUCE_ROWS, /* partials: one per row */
    EPI_TILE_REDUCE_COLS, /* partials: one per column */
} epi_tile_kind;

typedef struct epi_tile_step {
    epi_tile_kind kind;
    epi_op op;
    int node;              /* what it computes, loads or stores */
    int tensor;            /* STORE: the program's tensor, or -1 for the node's home */
    int dst, arg[3];       /* values */
    bool odd;              /* PART */
    float sign, other;     /* MULADD */
    bool full;             /* works on elements, in blocks of rows */
    int64_t state, state2; /* REDUCE: where the partials lie, in floats from the partials' start */
} epi_tile_step;

typedef struct epi_epilogue {
    const epi_plan *plan;
    const epi_spec *spec;
    const epi_strips *strips;
    epi_scale acc_scale;
    int tile_n;   /* columns of the product in a tile */
    int width[3]; /* columns of a tile, by scale */
    int block;    /* rows of a block */
    int group[3]; /* columns of a local reduction's group, by scale */
    epi_tile_value *values;
    epi_tile_step *steps;
    int value_count, step_count, slot_count, short_count;
    int64_t m, n; /* the product's */
    int64_t row_tiles, col_tiles;
    int64_t partials; /* floats */
} epi_epilogue;

/* Fails with EPI_ERR_UNSUPPORTED where a group is longer than a tile. */
epi_status epi_epilogue_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                              const epi_strips *strips, const epi_root *roots, int root_count,
                              epi_epilogue *out, epi_error *err);

/* Where one tensor's elements lie, worked out once per run. */
typedef struct epi_tile_access {
    epi_ref ref;
    epi_walk rows;
    epi_columns cols;
    bool direct; /* f32, rows a fixed distance apart, columns neighbours: strips can work on it in place */
} epi_tile_access;

/* Bytes: of the table shared by all threads, and of what each thread needs. */
int64_t epi_epilogue_shared(const epi_epilogue *e);
int64_t epi_epilogue_private(const epi_epilogue *e);

/* A run in progress. `homes` is by node, `tensors` by tensor. */
typedef struct epi_tile_run {
    const epi_epilogue *e;
    epi_tile_access *access; /* by step */
    float *partials;
} epi_tile_run;

void epi_epilogue_begin(epi_tile_run *r, const epi_epilogue *e, const epi_ref *homes, const epi_ref *tensors,
                        void *shared, float *partials);
/* A stretch of memory: rows of neighbouring bytes. */
typedef struct epi_region {
    const unsigned char *data;
    int64_t row_bytes, stride, rows;
    bool write;
} epi_region;

/* What the tile at (m0, n0) will read and write, for whoever can fetch it early; at most `most`. */
int epi_epilogue_regions(const epi_tile_run *r, int64_t m0, int64_t n0, epi_region *out, int most);

/* The tile that starts at row m0 and column n0, in acc with rows EPI_TILE_N apart. */
void epi_epilogue_tile(const epi_tile_run *r, float *acc, int64_t m0, int64_t n0, void *private_memory);
/* Folds the partials, in a fixed order, into the homes of the leaving reductions. */
void epi_epilogue_end(const epi_tile_run *r, const epi_ref *homes, int threads);

#endif

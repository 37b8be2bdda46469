/* tile_program.h: what happens to a tile of the product while it is on chip, as a list of instructions on
 * values.
 *
 * A value has rows or not, and columns at a scale or not: it is one number, or one number per row, per
 * column, or per element. A tile of attention is in one batch, so batch axes alone make no rows there. The
 * list says what is computed; each backend decides how. */
#ifndef EPI_PASS_TILE_PROGRAM_H
#define EPI_PASS_TILE_PROGRAM_H

#include "pass/schedule/steps.h"
#include "pass/schedule/walk.h"

/* A value the tile computes or loads, at one column scale. */
typedef struct epi_tile_value {
    int node;
    epi_scale scale; /* NONE: no columns */
    bool rows;
    int made; /* the step that makes it; -1: the product does */
} epi_tile_value;

typedef enum epi_instr_kind {
    EPI_INSTR_LOAD,   /* from the node's home */
    EPI_INSTR_INDEX,  /* positions along an axis */
    EPI_INSTR_RANDOM, /* rows: random numbers, by their place in a tensor of the node's axes */
    EPI_INSTR_TAKE,   /* rows: from a tensor, at a place along an axis that an index has for each row; of a
                         product: at the place of the tile's group */
    EPI_INSTR_SHIFT,  /* rows: from a tensor, so many places before along an axis; 0 where there is none. With an
                         operand: of that, which is in a window */
    EPI_INSTR_CONST,
    EPI_INSTR_MAP,
    EPI_INSTR_MULADD,       /* sign*a*b + other*c: a map whose operand is a product that nothing else needs */
    EPI_INSTR_SPLIT,        /* every other element of a */
    EPI_INSTR_JOIN,         /* a and b alternating */
    EPI_INSTR_REDUCE_GROUP, /* a reduction inside the tile, repeated over its columns */
    EPI_INSTR_REDUCE_ROW,   /* rows: a reduction over the whole row, one result per row */
    EPI_INSTR_REDUCE_DOWN, /* a square tile: an extreme over the first of its axes, a result for each of the last; */
    EPI_INSTR_REDUCE_ALONG, /* over the last, a result for each of the first */
    EPI_INSTR_SCAN,         /* rows: a recurrence, of a and b: the plan says along what */
    EPI_INSTR_STORE,
    EPI_INSTR_LAST,         /* rows of recurrences: stores of a value the last step alone */
    EPI_INSTR_PARTIAL_ROWS, /* partials: one per row */
    EPI_INSTR_PARTIAL_COLS, /* partials: one per column */
} epi_instr_kind;

typedef struct epi_instr {
    epi_instr_kind kind;
    epi_op op;
    int node;          /* what it computes, loads or stores */
    int tensor;        /* STORE: the program's tensor, -1 for the node's home, or EPI_ROOT_KEPT */
    int dst, arg[3];   /* values */
    bool odd;          /* SPLIT: the odd elements; in a tile the second half lies so, too */
    float sign, other; /* MULADD */
    bool full;         /* works on elements, not on rows or columns alone */
    int phase;         /* rows: how many folds of the row come before it */
    bool inverse;      /* MAP: a quotient that may be a product with the inverse */
    int mean;          /* PARTIAL_ROWS of VAR: the mean that its states give as well, or EPI_NO_NODE */
} epi_instr;

typedef struct epi_tile_program {
    const epi_plan *plan;
    const epi_spec *spec;
    epi_scale acc_scale;
    int tile_n;             /* columns of the product in a tile */
    int width[3];           /* columns of a tile, by scale */
    int group[3];           /* columns of a local reduction's group, by scale */
    epi_tile_value *values; /* the first is the product itself, or the sum of products, the second that of its
                               pair if it has one */
    epi_instr *instrs;
    int value_count, instr_count;
    int64_t m, n; /* rows and columns in all */
    int phases;   /* rows: a row is walked over so often */
} epi_tile_program;

/* The reduction by this operation of the same value over the same columns, if both are cross-tile; else
 * EPI_NO_NODE. A mean beside a variance needs no states of its own: the variance's have it. */
int epi_reduced_with(const epi_graph *g, const epi_placement *placement, int node, epi_op op);

/* `most` is the widest tile there may be; groups of local reductions fit into it a whole number of times.
 * Fails with EPI_ERR_UNSUPPORTED where a group is longer. */
epi_status epi_tile_program_gemm(epi_arena *arena, const epi_spec *spec, const epi_plan *plan, int most,
                                 const epi_root *roots, int root_count, epi_tile_program *out,
                                 epi_error *err);

/* Is all that the program loads in memory when the step begins: inputs, what earlier steps left at its home,
 * and of attention the reductions of its own score tile? Else it is an internal error: it would read what
 * nobody wrote. */
epi_status epi_tile_program_check(const epi_tile_program *t, const epi_steps *steps, const epi_step *step,
                                  epi_error *err);

/* A whole row: values from folds are one per row. In phase p of a row the folds of the phases before are
 * complete; elements are stored in the last one. */
epi_status epi_tile_program_rows(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                                 const epi_root *roots, int root_count, epi_tile_program *out,
                                 epi_error *err);
/* Is it a fold of the row, whose result is there in the next phase? */
static inline bool epi_instr_folds(const epi_instr *s) {
    return s->kind == EPI_INSTR_REDUCE_ROW || s->kind == EPI_INSTR_REDUCE_DOWN ||
           s->kind == EPI_INSTR_REDUCE_ALONG;
}
/* Is the step one that others wait for: a fold of the row, a partial or a store? */
static inline bool epi_instr_ends(const epi_instr *s) {
    return s->dst < 0 || epi_instr_folds(s);
}
/* Has the value an element for every row and column? */
static inline bool epi_value_is_full(const epi_tile_value *v) {
    return v->rows && v->scale != EPI_SCALE_NONE;
}
/* Is it a cross-tile reduction, which stores partials? */
static inline bool epi_instr_is_partial(const epi_instr *s) {
    return s->kind == EPI_INSTR_PARTIAL_ROWS || s->kind == EPI_INSTR_PARTIAL_COLS;
}
/* Marks in run[] (by step) the steps on elements that phase p has to take: its folds, partials and stores,
 * and what these come from. */
void epi_tile_program_phase(const epi_tile_program *t, int p, bool *run);

#endif

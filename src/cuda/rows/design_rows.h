/* design_rows.h: the design of a kernel over rows: everything that is decided before its source is written.
 * design_rows.c makes it once; emit_rows*.c only read it.
 *
 *     design_rows.c   the whole: instructions of each phase, pointers, partials
 *     rows_access.c   how tensors are reached
 *     rows_shape.c    threads, vectors, blocks and the ring; the name of a shape
 *     scan_shape.c    the same of scans, which walk along an axis a chunk at a time (device/scan.cuh)
 *     window_shape.c  the same of rows that shift what they load or make: what is kept of it, and for how long
 */
#ifndef EPI_CUDA_DESIGN_ROWS_H
#define EPI_CUDA_DESIGN_ROWS_H

#include "cuda/emit/emit.h"

enum { EPI_ROWS_ON_VECTORS = -2 };

/* How an instruction reaches the elements of its tensor, and when it is written. */
typedef struct epi_rows_access {
    epi_ref ref;
    epi_walk rows;
    epi_columns cols;
    /* The same with more rows than one. One row that lies across a tensor is contiguous; but what decides in
       which order a row is added up must not see it. */
    epi_walk many_rows;
    epi_columns many_cols;
    int pointer;    /* of the launch: to the tensor, a table, a seed or partials; -1: none */
    int index;      /* TAKE: the pointer to the index, or -1 */
    epi_walk along; /* TAKE: where positions are along the axes that the index counts along */
    epi_walk batch; /* steps that are rows: where a batch's lie, and how far apart these are */
    int64_t step;
    int shared; /* SHIFT: the load of the same tensor, whose rows of other teams it reads in the ring; or -1 */
    bool turned;      /* STORE, of a square tile: its rows are neighbours in memory; */
    int64_t apart;    /* its columns lie so far apart */
    bool vectors;     /* the columns of a vector lie together */
    bool fetched;     /* LOAD: a row comes to registers or to the ring when it is taken up */
    bool held;        /* LOAD: all rows read it, and it waits in registers */
    bool reread;      /* LOAD: several rows read the same elements */
    bool overwritten; /* LOAD: an output may be stored over what it reads */
    int64_t staged;   /* fetched: where its columns lie in a stage of the ring, in bytes */
    int64_t
        bytes; /* fetched: of its columns there; of one split, where the two lie apart. Of a scan 0: not there */
    int lag; /* in a window's walk: how many rows behind the walk is the one that it is made for, or stored; */
    int kept;     /* how many rows more of what it makes are kept; */
    int begin;    /* where it is wanted first, as the design's; */
    bool shifted; /* and is it shifted? Then it is zero beyond the axis. */
    int ready;    /* a number or a value per row: the phase at whose start it is ready, -1: before the rows;
                  else EPI_ROWS_ON_VECTORS */
} epi_rows_access;

/* One walk over the vectors of a row. */
typedef struct epi_rows_phase {
    int *instrs; /* what is done to a vector, in this order */
    int count;
    bool named; /* registers are named by the vector's number: the loop has to be unrolled */
} epi_rows_phase;

typedef struct epi_rows_design {
    epi_emit_context *c;
    const epi_graph *g;
    const epi_plan *plan;
    epi_tile_program tile;
    epi_rows_shape shape;
    epi_rows_access *access; /* by instruction */
    int *maker;              /* by value: the instruction that makes it */
    int *pair;               /* by instruction: the fold that is done together with this one, or -1 */
    epi_rows_phase *phases;
    bool tail;       /* the last vector may be cut short: one long row */
    bool ragged;     /* some lane may be without a vector */
    bool fast;       /* every element is stored in 16 bits */
    bool folds;      /* lanes fold with each other */
    bool cross_tile; /* it has cross-tile reductions */
    bool sums;       /* there are sums per column, which are registers named by the vector's number */
    bool downs;      /* there are extremes down a square tile */
    bool random;     /* there are random numbers */
    bool walks;      /* its blocks walk along an axis, a chunk at a time: scans, or shifts down the rows */
    epi_axis along;  /* that axis */
    bool down;       /* which counts rows */
    int64_t ends;    /* bytes of shared memory for what runs of scans end with, or for sums */
    bool window;     /* not for scans, but for shifts along it (plan.h); */
    int begin,
        beyond; /* then a thread goes from so many places after the first of its rows to so many after the last; */
    int at;              /* and how many rows behind the walk is what is being written */
    int64_t most_lines;  /* of sums that blocks leave, with the largest open sizes */
    bool words;          /* what is held waits as it lies in memory: numbers would take too many registers */
    int64_t slice;       /* columns of a row that one block of the cluster has */
    int64_t columns;     /* that the shape is made for: the most that a row can have; flat: that there are */
    int64_t most_blocks; /* with the largest open sizes */
    epi_kernel_text kernel; /* all of it but the text */
} epi_rows_design;

epi_status epi_rows_design_make(epi_emit_context *c, const epi_step *step, epi_rows_design *out,
                                epi_error *err);

/* Has the value an element for every row and column? */
static inline bool epi_rows_is_full(const epi_rows_design *d, int v) {
    return epi_value_is_full(&d->tile.values[v]);
}
static inline bool epi_rows_has_columns(const epi_rows_design *d, int v) {
    return d->tile.values[v].scale != EPI_SCALE_NONE;
}
/* Has it a value of its own for each step of a scan? */
static inline bool epi_rows_steps(const epi_rows_design *d, int v) {
    epi_axes along = {.count = 1, .at = {d->along}};
    return epi_plan_has(d->g, d->tile.values[v].node, &along);
}
/* Is it made anew for every vector? Of a thread that goes down its columns, what is another one at each step. */
static inline bool epi_rows_is_walked(const epi_rows_design *d, int v) {
    return d->down ? epi_rows_steps(d, v) : epi_rows_has_columns(d, v);
}
/* Has it the first (0) or the last (1) axis of a square tile? */
static inline bool epi_rows_has_axis(const epi_rows_design *d, int v, int axis) {
    epi_axes one = {.count = 1, .at = {d->plan->cols.at[axis]}};
    return epi_plan_has(d->g, d->tile.values[v].node, &one);
}
/* Has it an element for each column of a square tile, whatever the tile's row; or for each row? The former is a
 * vector, the latter one number, as each thread has a row of its own. */
static inline bool epi_rows_is_column(const epi_rows_design *d, int v) {
    return d->plan->square && epi_rows_has_columns(d, v) && !epi_rows_has_axis(d, v, 0);
}
static inline bool epi_rows_is_line(const epi_rows_design *d, int v) {
    return d->plan->square && epi_rows_has_columns(d, v) && !epi_rows_has_axis(d, v, 1);
}
static inline bool epi_rows_is_side(const epi_rows_design *d, int v) {
    return epi_rows_is_column(d, v) || epi_rows_is_line(d, v);
}
/* Is it a fold of a square tile's rows or columns, which takes no walk over the tile? */
static inline bool epi_rows_folds_side(const epi_rows_design *d, const epi_instr *s) {
    return s->kind == EPI_INSTR_REDUCE_ROW && epi_rows_is_side(d, s->arg[0]);
}
/* Has it half as many of these as the row? */
static inline bool epi_rows_is_coarse(const epi_rows_design *d, int v) {
    return d->tile.values[v].scale == EPI_SCALE_COARSE;
}
/* Is it another name for what a window has? */
static inline bool epi_rows_is_alias(const epi_instr *s) {
    return s->kind == EPI_INSTR_SHIFT && s->arg[0] >= 0;
}
/* The value that an instruction makes or stores, and its elements in a vector. */
static inline bool epi_rows_stores(const epi_instr *s) {
    return s->kind == EPI_INSTR_STORE || s->kind == EPI_INSTR_LAST;
}
static inline int epi_rows_value(const epi_instr *s) {
    return epi_rows_stores(s) ? s->arg[0] : s->dst;
}
static inline int epi_rows_width(const epi_rows_design *d, int v) {
    return epi_rows_is_coarse(d, v) ? d->shape.vector / 2 : d->shape.vector;
}
/* How many pieces of a tensor a vector comes in: the splits of an axis that lie apart are two. */
static inline int epi_rows_pieces(const epi_rows_access *a) {
    return a->cols.two ? 2 : 1;
}
/* Does it load a value per row? */
static inline bool epi_rows_loads_row(const epi_rows_design *d, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    return s->kind == EPI_INSTR_LOAD && d->tile.values[s->dst].rows && !epi_rows_has_columns(d, s->dst) &&
           d->plan->rows.count;
}
/* Are the elements of its value, or of each piece of the tensor, half as many as the columns? */
static inline bool epi_rows_loads_half(const epi_rows_design *d, int i) {
    return epi_rows_is_coarse(d, epi_rows_value(&d->tile.instrs[i])) || d->access[i].cols.two;
}
/* Is it the sum of exponentials of distances from this largest element, which count as zero where it is -inf
 * if `safe`? */
bool epi_rows_sums_exponentials(const epi_rows_design *d, const epi_instr *sum, const epi_instr *max,
                                bool safe);

/* ---- rows_access.c ---- */

/* Where the elements of every instruction lie. */
void epi_rows_find_access(epi_rows_design *d);
/* The widest vector that all tensors allow that lie in vectors at all; and what is fetched in such vectors.
 */
void epi_rows_choose_vector(epi_rows_design *d);
/* Is a row of the tensor one stretch of memory (or each of its splits one), of a multiple of 16 bytes? */
bool epi_rows_is_contiguous(const epi_rows_design *d, int i);

/* ---- rows_shape.c ---- */

/* The shape, chosen or by the name that was asked for, its blocks, its ring, and which tensors wait in
 * registers. */
epi_status epi_rows_make_shape(epi_rows_design *d, epi_error *err);

/* ---- scan_shape.c ---- */

/* The most columns of a vector: a thread keeps what it scans in registers. */
int epi_scan_vector(const epi_rows_design *d);
/* The shape that is chosen; can a kernel be written in this one; and its blocks and shared memory. */
void epi_scan_choose_shape(epi_rows_design *d);
bool epi_scan_fits(const epi_rows_design *d);
epi_status epi_scan_lay_out(epi_rows_design *d, epi_error *err);
/* Lays out what comes through the ring, as far as there is room for two stages; returns a stage's bytes. */
int64_t epi_walk_stage(epi_rows_design *d, int64_t room);

/* ---- window_shape.c ---- */

/* What is kept of every value, and the walk that it takes. */
void epi_window_find(epi_rows_design *d);
/* The most columns of a vector; the shape, whether a kernel can be written in it, its blocks and shared memory: as for scans. */
int epi_window_vector(const epi_rows_design *d);
void epi_window_choose_shape(epi_rows_design *d);
bool epi_window_fits(const epi_rows_design *d);
epi_status epi_window_lay_out(epi_rows_design *d, epi_error *err);
/* The instruction that makes the value, or of a shift what is shifted, and for how many rows of the walk that has been there;
   -1: it is the same for all rows. */
int epi_window_source(const epi_rows_design *d, int v, int *before);

#endif

/* plan.h: how a program is cut into stages around its product.
 *
 * A fused program has one product. The product's axes fall into rows (M), columns (N) and depth
 * (K); a tile holds a block of rows and columns. Every other value is computed in a stage:
 *
 *     before   passes over memory ahead of the product (its operands, reductions of inputs)
 *     tile     on the tile while it is on chip
 *     after    passes over the short vectors that finished reductions are
 *
 * A reduction of a tile value over all columns or all rows *leaves* the tile as partials; one over
 * inner columns that a tile holds whole stays *local*.
 *
 * A program without a product is walked over by rows: the tile is a whole row, the reductions over its
 * columns are local, those over all rows leave.
 */
#ifndef EPI_PASS_PLAN_H
#define EPI_PASS_PLAN_H

#include "ir/graph.h"

typedef enum epi_leave {
    EPI_LEAVE_NONE = 0,
    EPI_LEAVE_LOCAL, /* a group of neighbouring columns */
    EPI_LEAVE_ROWS,  /* over all columns: one result per row */
    EPI_LEAVE_COLS,  /* over all rows: one result per column */
} epi_leave;

typedef struct epi_placement {
    bool before, tile, after; /* a cheap value may be computed in more than one */
    bool keep;                /* a tile value that a pass after needs in memory */
    epi_leave leave;
} epi_placement;

/* Which mainloop a kernel has. */
typedef enum epi_kind {
    EPI_KIND_GEMM, /* tiles of one product, or of two side by side */
    EPI_KIND_ROWS, /* whole rows; there is no product */
} epi_kind;

typedef struct epi_plan {
    bool fused;
    char reason[240]; /* why it is not fused, in words */
    epi_kind kind;
    int product; /* gemm: its node; else EPI_NO_NODE */
    int pair;  /* gemm: a second product of the same rows and depth, whose tile lies beside the first one's */
    bool flat; /* rows: all tensors are one long row, which may be cut anywhere */
    int row_arg; /* which operand of the product has the rows: 0 or 1 */
    epi_axes rows, cols, depth;
    /* gemm: the first so many of `rows` are batch axes. A tile's rows all lie in one batch: rows that the
       operand with the columns has too, and rows that do not follow each other in memory. */
    int batch_axes;
    /* At most one column axis is taken apart or put together. `fine` is that axis at its longer
       scale, split is EPI_OP_EVEN for pairs or EPI_OP_LOW for halves, EPI_OP_COUNT for none. */
    epi_op split;
    epi_axis fine;
    int local_axes;           /* the last so many of `cols` are what local reductions remove (0: none) */
    epi_placement *placement; /* by node */
} epi_plan;

/* The plan of the program as one kernel; where it cannot be one, fused is false and the reason says why.
 * Fails only without memory. */
epi_status epi_plan_make(epi_arena *arena, const epi_graph *g, epi_plan *out, epi_error *err);

/* Marks a value and what it needs as computed by passes before the mainloop. `pending` is room for
 * EPI_PLAN_PENDING nodes that are still to be looked at: a list, not recursion, as programs are long. */
#define EPI_PLAN_PENDING(g) (3 * (size_t)(g)->node_count + 1)
void epi_plan_mark_before(const epi_graph *g, epi_placement *placement, int *pending, int node);

/* Can one kernel make both products? They share an operand, `shared`, and have the same axes. */
bool epi_products_pair(const epi_graph *g, int first, int second, int *shared);
/* The operand with the rows (side 0), with the columns (1), and with the second product's columns (2). */
int epi_plan_operand(const epi_graph *g, const epi_plan *plan, int side);

/* The plan of one product alone, its result stored as it is. `out->stage` is the caller's, zeroed. */
void epi_plan_product(const epi_graph *g, int node, epi_plan *out);

/* plan_rows.c: cuts a program without a product; false: it is not fusable, for the reason in *out. */
bool epi_plan_rows(epi_arena *arena, const epi_graph *g, epi_plan *out);

/* The rows' axes in two: those of the batches, and those of a batch's rows. */
epi_axes epi_plan_batch(const epi_plan *plan);
epi_axes epi_plan_batch_rows(const epi_plan *plan);

/* Does the value have some axis of the group (at any scale)? */
bool epi_plan_has(const epi_graph *g, int node, const epi_axes *group);

#endif

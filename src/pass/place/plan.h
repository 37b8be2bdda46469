/* plan.h: how a program is cut into stages around its product.
 *
 * A fused program has one product. The product's axes fall into rows (M), columns (N) and depth (K); a tile
 * holds a block of rows and columns. Every other value is computed in one of these stages:
 *
 *     before   maps of numbers and inputs that passes after need in memory
 *     tile     on the tile while it is on chip
 *     after    passes over the short vectors that finished reductions are
 *
 * A reduction of a tile value over all columns or all rows is *cross-tile*: the tile stores partials. One
 * over inner columns that a tile holds is *local*. If elements are computed from a reduction over all
 * columns, as in a softmax, this reduction is local too: the plan is then for tiles that have all columns.
 *
 * A program without a product is computed row by row: the tile is a whole row, reductions over its columns
 * are local, and reductions over all rows are cross-tile.
 *
 * Attention is a product of products: scores, which are never in memory, and sums of values with the scores
 * as weights. Its plan has child plans; see attention.h.
 */
#ifndef EPI_PASS_PLAN_H
#define EPI_PASS_PLAN_H

#include "base/kinds.h"
#include "pass/analyse/attention.h"
#include "pass/analyse/tile.h"

typedef struct epi_placement {
    bool before, tile, after; /* a cheap value may be computed in more than one */
    bool paged; /* a gather that a mainloop reads through its index, or q*s, of which it reads both: it is in
                   memory nowhere, but its first operand is */
    bool on_load; /* a mainloop makes it of what is in memory, as it loads an operand: likewise */
    bool last;    /* rows of recurrences: the last step of a value alone, which is stored as that comes */
    bool moved;   /* gemm: an update whose new elements the tile stores where its index says */
    epi_reduction reduction;
} epi_placement;

/* Whose elements lie in groups of any size, which begin where offsets say: rows, each group of which has
 * columns of its own; or the depth, of which each group has a result of its own. */
typedef enum epi_group { EPI_GROUP_NONE, EPI_GROUP_ROWS, EPI_GROUP_DEPTH } epi_group;

enum { EPI_MAX_TERMS = 4 }; /* products that are added up in one tile, at most */

typedef struct epi_plan {
    bool fused;
    char reason[240]; /* why it is not fused, in words */
    epi_kind kind;
    int product; /* gemm: its node; pass: what it makes; else EPI_NO_NODE */
    int pair; /* gemm: a second product of the same rows and depth, whose tile lies beside the first one's */
    /* gemm: further products of the same rows and columns, which the tile adds up, one depth after the other.
     */
    int added[EPI_MAX_TERMS - 1], added_count;
    int sum;     /* gemm: what the tile accumulates: the product, or the sum of it and those */
    bool square; /* rows: each is a tile of two axes, the columns, with extremes along both (square.h) */
    bool flat;   /* rows: all tensors are one long row, which may be cut anywhere */
    /* rows: recurrences, so many, all along this axis, each step after the one before. It is the last of `rows`, which
       one worker walks through in order, or, `inner`, the one of `cols`: a row is a recurrence. */
    int scan_count;
    epi_axis scan;
    bool scan_back, scan_inner;
    /* rows: nothing but maps, shifts along the last of `rows`, and sums over all rows. Whoever walks along that axis has the
       last few steps of what is shifted in a window, whether that was loaded or made. */
    bool window;
    int row_arg; /* which operand of the product has the rows: 0 or 1 */
    epi_axes rows, cols, depth;
    epi_axes added_depth[EPI_MAX_TERMS - 1];
    /* gemm: the first so many of `rows` are batch axes. A tile's rows all lie in one batch: rows that the
       operand with the columns has too, and rows that do not follow each other in memory. */
    int batch_axes;
    epi_group group;
    epi_axis group_axis; /* what the groups are counted by, */
    int offsets;         /* the value that says where they begin, */
    int row_index; /* and the index, where the row operand is a gather that is read through it; without groups
                            it names a matrix for each batch, of either operand */
    epi_op split;  /* as in epi_tile */
    epi_axis fine;
    /* The last so many of `cols` are what local reductions remove (0: none; all: a tile has all columns; of rows:
       what those remove that are not over all of them). */
    int local_axes;
    bool tried_local;                        /* some tile that was tried had such reductions */
    epi_placement *placement;                /* by node */
    const struct epi_recurrence *recurrence; /* recurrence: what it is made of */
    epi_attention *attention;                /* attention: the rest of its plan; its children have none */
    int known_true; /* a child of attention: a condition that holds all over the tile, or EPI_NO_NODE */
} epi_plan;

/* The plan of the program as one kernel; where it cannot be one, fused is false and the reason says why.
 * Fails only without memory. */
epi_status epi_plan_make(epi_arena *arena, const epi_spec *spec, epi_plan *out, epi_error *err);

/* Has an axis of a live value, or one that it is made over, no elements? */
bool epi_spec_has_empty(const epi_spec *spec);

/* How many operations has it, beside leaves and other names? */
int epi_graph_operations(const epi_graph *g);

/* Marks a value and what it needs as computed by passes before the mainloop. `pending` is room for
 * EPI_PLAN_PENDING nodes that are still to be looked at: a list, not recursion, as programs are long. */
#define EPI_PLAN_PENDING(g) (3 * (size_t)(g)->node_count + 1)
void epi_plan_mark_before(const epi_graph *g, epi_placement *placement, int *pending, int node);
/* Is all that is to be made before the mainloop made by maps of known numbers, or also of inputs? What more
 * there is belongs to other parts. */
bool epi_plan_knows(const epi_graph *g, const epi_placement *placement, bool inputs);

/* Does the shift take what it shifts from the window? A far one loads it from where it is. */
static inline bool epi_plan_in_window(const epi_plan *plan, const epi_spec *spec, const epi_node *shift) {
    return plan->window && epi_is_near(spec, shift);
}

/* Can one kernel make both products? They share an operand, `shared`, and have the same axes. */
bool epi_products_pair(const epi_graph *g, int first, int second, int *shared);
/* How an operand lies in memory: NULL for the order of its axes, which is how the inputs of a part lie. */
typedef epi_axes (*epi_layout)(const epi_spec *spec, int node);
/* Is the innermost axis of a product's operand one that it sums over? */
bool epi_operand_is_deep(const epi_graph *g, const epi_node *product, int operand);

/* Products that are added up, by nothing but their sum, and that one tile can add up: they have the same rows
 * and columns, and their operands lie alike. Found from any of them; `root` is the sum. One product alone is
 * its own. */
typedef struct epi_product_sum {
    int root, products[EPI_MAX_TERMS], count; /* in the order of nodes */
} epi_product_sum;
epi_product_sum epi_products_sum(const epi_graph *g, epi_layout layout, const epi_spec *spec, int product);

/* The operand with the rows (side 0), with the columns (1), with the second product's columns (2); or, where
 * products are added up, with the rows and with the columns of the next one (2, 3), and so on. And how many.
 */
int epi_plan_operand(const epi_graph *g, const epi_plan *plan, int side);
int epi_plan_operands(const epi_plan *plan);
/* What of it is in memory: of a gather that is read through its index what it is taken of; of one that is made on
 * load, of few bits, these. */
int epi_plan_source(const epi_graph *g, const epi_plan *plan, int side);
/* Is an operand made of few bits as it is loaded? */
bool epi_plan_makes(const epi_graph *g, const epi_plan *plan);
enum { EPI_MAX_OPERANDS = 2 * EPI_MAX_TERMS };

/* The plan of one operation, stored once, or of a copy. False: it is more than that. */
bool epi_plan_pass(const epi_graph *g, epi_plan *out);

/* plan_recurrence.c: plans a program that is one scan of products; false: it is not. */
bool epi_plan_recurrence(epi_arena *arena, const epi_spec *spec, epi_plan *out);

/* plan_rows.c: cuts a program without a product; false: it is not fusable, for the reason in *out. */
bool epi_plan_rows(epi_arena *arena, const epi_spec *spec, epi_plan *out);
/* May rows lie across a tensor, along these axes between others? Neighbouring rows are read together then. */
bool epi_plan_crosses(const epi_spec *spec, const epi_axes *over);

/* plan_attention.c: plans a program that is one attention kernel; false: it is not, for the reason in *out.
 */
bool epi_plan_attention(epi_arena *arena, const epi_spec *spec, epi_plan *out);
/* Does the output program of this value product make the node? One that is made of rows alone is made by the
 * program that has `rows`. */
bool epi_attention_stores(const epi_plan *plan, int v, bool rows, int node);
/* The rows' axes in two: those of the batches, and those of a batch's rows. */
epi_axes epi_plan_batch(const epi_plan *plan);
epi_axes epi_plan_batch_rows(const epi_plan *plan);

/* Is the plan for tiles that have all columns of the product? */
static inline bool epi_plan_has_full_rows(const epi_plan *plan) {
    return plan->kind == EPI_KIND_GEMM && plan->local_axes && plan->local_axes == plan->cols.count;
}

/* Does the value have some axis of the group (at any scale)? */
bool epi_plan_has(const epi_graph *g, int node, const epi_axes *group);

#endif

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
 * inner columns that a tile holds whole stays *local*. Where elements are made of a reduction over all
 * columns, as a softmax has it, those stay local too: the plan is then for tiles that have all columns.
 *
 * A program without a product is walked over by rows: the tile is a whole row, the reductions over its
 * columns are local, those over all rows leave.
 *
 * Attention is products of products: scores, which never leave the chip, and sums of values that they weigh.
 * Its plan has child plans, see epi_attention.
 */
#ifndef EPI_PASS_PLAN_H
#define EPI_PASS_PLAN_H

#include "ir/spec.h"

typedef enum epi_reduction {
    EPI_REDUCE_NONE = 0,
    EPI_REDUCE_LOCAL, /* a group of neighbouring columns */
    EPI_REDUCE_ROWS,  /* over all columns: one result per row */
    EPI_REDUCE_COLS,  /* over all rows: one result per column */
} epi_reduction;

typedef struct epi_placement {
    bool before, tile, after; /* a cheap value may be computed in more than one */
    bool keep;                /* a tile value that a pass after needs in memory */
    bool paged;               /* a gather that attention reads through its index: it is in memory nowhere */
    bool moved;               /* gemm: an update whose new elements the tile stores where its index says */
    epi_reduction reduction;
} epi_placement;

/* Which mainloop a kernel has. */
typedef enum epi_kind {
    EPI_KIND_GEMM,      /* tiles of one product, or of two side by side */
    EPI_KIND_ROWS,      /* whole rows; there is no product */
    EPI_KIND_ATTENTION, /* score tiles, and products that sum over what is made of them */
} epi_kind;

struct epi_attention;
enum { EPI_MAX_TERMS = 4 }; /* products that are added up in one tile, at most */

typedef struct epi_plan {
    bool fused;
    char reason[240]; /* why it is not fused, in words */
    epi_kind kind;
    int product; /* gemm: its node; else EPI_NO_NODE */
    int pair; /* gemm: a second product of the same rows and depth, whose tile lies beside the first one's */
    /* gemm: further products of the same rows and columns, which the tile adds up, one depth after the other.
     */
    int added[EPI_MAX_TERMS - 1], added_count;
    int sum;     /* gemm: what the tile accumulates: the product, or the sum of it and those */
    bool flat;   /* rows: all tensors are one long row, which may be cut anywhere */
    int row_arg; /* which operand of the product has the rows: 0 or 1 */
    epi_axes rows, cols, depth;
    epi_axes added_depth[EPI_MAX_TERMS - 1];
    /* gemm: the first so many of `rows` are batch axes. A tile's rows all lie in one batch: rows that the
       operand with the columns has too, and rows that do not follow each other in memory. */
    int batch_axes;
    /* At most one column axis is taken apart or put together. `fine` is that axis at its longer
       scale, split is EPI_OP_EVEN for pairs or EPI_OP_LOW for halves, EPI_OP_COUNT for none. */
    epi_op split;
    epi_axis fine;
    /* The last so many of `cols` are what local reductions remove (0: none; all: a tile has all columns). */
    int local_axes;
    bool tried_local;                /* some tile that was tried had such reductions */
    epi_placement *placement;        /* by node */
    struct epi_attention *attention; /* attention: the rest of its plan; its children have none */
    int passed; /* a child of attention: a condition that holds all over the tile, or EPI_NO_NODE */
} epi_plan;

/* The third mainloop. A *score tile* has some rows, which stay, and some *stream* columns, which are walked
 * over tile by tile, in the order of their positions. What holds of such a program:
 *
 *     - one or two *scores* are score tiles of the same axes. Each is a *score product*, a contraction of a
 *       stationary operand (it has rows, no stream) and a stream operand (the other way round) over a head's
 *       features, or the sum of two of them;
 *     - the *score program* (the child plan `score_plan`) is what is computed on the score tile;
 *     - one to three *value products* sum a *weight*, an element of the score tile, times an operand. One or
 *       two sum over the stream: they have the same rows and stream, each has columns of its own. At most one
 *       more, the last, sums over the rows, and has the stream for its rows. It is stored as it is;
 *     - reductions of score tile values over the stream are one number per row, and leave (`leave` is
 *       EPI_REDUCE_ROWS in the whole plan);
 *     - an *output program* per value product over the stream (its child plan) is its epilogue on a tile of
 *       rows and all of its columns; it may load what left the score tile, and stores values of rows alone as
 *       well.
 *
 * *Online softmax*: the weight is exp(s - shift), where shift is max(s, stream), or 0 where that is -inf; or
 * that times a factor without scores, which its sum does not have (dropout). The maximum is known only behind
 * the last column, so a mainloop walks over the stream once with a running maximum, and scales what it has
 * summed when that grows. There is one value product then. The score program makes s, the mainloop does the
 * rest; `row_max` and `denominator` are what output programs load of it.
 *
 * `rows` are those of the score tile, of which the first `batch_axes` are the batches: axes that some stream
 * operand has. A tile lies in one batch. In the plan of the whole `cols` are the first value product's columns
 * and `depth` is what the first score product sums over. */
enum { EPI_ATTENTION_BOUNDS = 4, EPI_ATTENTION_SUMS = 3 };

/* A value product: what it is of, and what it sums over. */
typedef enum epi_over { EPI_OVER_STREAM, EPI_OVER_ROWS } epi_over;
typedef struct epi_attention_sum {
    int product, weight, operand;
    epi_axes cols;
    epi_over over;
    epi_plan *plan; /* its output program; over the rows it has none */
} epi_attention_sum;

/* offset + sum of factor*term, where the terms are values that lack the stream: positions of rows, lengths,
 * numbers. */
typedef struct epi_linear {
    int count, term[EPI_ATTENTION_BOUNDS], factor[EPI_ATTENTION_BOUNDS];
    double offset;
    bool strict; /* what is compared with it is less, not equal */
} epi_linear;

/* What else lets a row see a column: nothing; a second limit, of which and the first the wider one holds; or
 * a number of the row alone: where that is at least 0 (strict: above) the row sees all. */
typedef enum epi_or { EPI_OR_NOTHING, EPI_OR_LIMIT, EPI_OR_ROW } epi_or;

/* A limit of what a row sees, from a mask: sign*index(axis) <= limit (strict: <), or else what `other` says:
 * a prefix, index(R) <= max(index(S), prefix - 1), has two limits if rows are S, and one and a number of the
 * row, prefix - 1 - index(R), if they are R. */
typedef struct epi_bound {
    epi_axis axis; /* of the stream */
    bool flat;     /* the position is that along all of the stream: index(N)*size(C) + index(C) */
    int sign;      /* 1: the row sees nothing behind the limit; -1: nothing before it */
    epi_linear limit, other;
    epi_or or ;
} epi_bound;

/* Of a mask: two values that must be equal, as documents are, one without the stream and one along it. */
typedef struct epi_match {
    int row, column;
} epi_match;

typedef struct epi_attention {
    int scores[2], score_count; /* each is a product, or the sum of two, its terms: see epi_attention_terms */
    epi_attention_sum sums[EPI_ATTENTION_SUMS];
    int sum_count;
    epi_axes rows, stream; /* the stream in the order of the first value product's operand */
    int batch_axes;
    /* Online softmax, else EPI_NO_NODE: */
    int score;   /* s */
    int row_max; /* max(s, stream) */
    int shift;   /* what is subtracted: row_max, or (guarded) 0 where that is -inf */
    bool guarded;
    int numerator;   /* exp(s - shift): the weight, unless it has a factor */
    int factor;      /* an element that no score is in, as dropout has it; or EPI_NO_NODE */
    int denominator; /* sum(exp(s - shift), stream), or EPI_NO_NODE where nothing needs it */
    /* What is known of a mask, where(condition, x, -inf) or where(condition, x, 0), on the score tile: an
       element outside of some bound, or whose values of a match differ, has no weight, and adds nothing to
       what leaves. Where bounds and matches are all of the condition, `open_plan` is the score program of a
       tile for whose elements all of them hold: the condition is taken as true there. Else it is NULL. No
       mask, or one that says neither: none. */
    int condition, bound_count, match_count;
    epi_bound bounds[EPI_ATTENTION_BOUNDS];
    epi_match matches[EPI_ATTENTION_BOUNDS];
    epi_plan *score_plan, *open_plan;
} epi_attention;

/* The plan of the program as one kernel; where it cannot be one, fused is false and the reason says why.
 * Fails only without memory. */
epi_status epi_plan_make(epi_arena *arena, const epi_spec *spec, epi_plan *out, epi_error *err);

/* Can a tile of these rows and columns store the new elements of an update, each row at a place of its own?
 * The operand and the index are inputs, and the value has the shape of the tile. */
bool epi_update_fits(const epi_graph *g, int node, const epi_axes *rows, const epi_axes *cols);
/* Marks a value and what it needs as computed by passes before the mainloop. `pending` is room for
 * EPI_PLAN_PENDING nodes that are still to be looked at: a list, not recursion, as programs are long. */
#define EPI_PLAN_PENDING(g) (3 * (size_t)(g)->node_count + 1)
void epi_plan_mark_before(const epi_graph *g, epi_placement *placement, int *pending, int node);

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
enum { EPI_MAX_OPERANDS = 2 * EPI_MAX_TERMS };

/* The plan of one product alone, its result stored as it is. `out->placement` is the caller's, zeroed. */
void epi_plan_product(const epi_graph *g, int node, epi_plan *out);

/* plan_rows.c: cuts a program without a product; false: it is not fusable, for the reason in *out. */
bool epi_plan_rows(epi_arena *arena, const epi_spec *spec, epi_plan *out);

/* plan_attention.c: plans a program that is one attention kernel; false: it is not, for the reason in *out.
 */
bool epi_plan_attention(epi_arena *arena, const epi_graph *g, epi_plan *out);
/* The products that scores are: by product, the score that it is a term of. How many there are. */
enum { EPI_ATTENTION_TERMS = 4 };
typedef struct epi_attention_term {
    int product, score;
} epi_attention_term;
int epi_attention_terms(const epi_graph *g, const epi_attention *a,
                        epi_attention_term out[EPI_ATTENTION_TERMS]);
/* The operand of a score product that has the rows (side 0), or the stream (1). */
int epi_attention_operand(const epi_graph *g, const epi_attention *a, int product, int side);
/* Is it a stream operand that is a gather from an input, by an input that has the first axes of the stream: a
 * table of pages? Then keys (or values) of neighbouring positions lie together, page by page. */
bool epi_attention_is_paged(const epi_graph *g, const epi_attention *a, int node);
/* Is it 0 where top is -inf, and top elsewhere? */
bool epi_attention_is_guarded(const epi_graph *g, int node, int top);
/* Is it one of the value products? */
bool epi_attention_is_value(const epi_attention *a, int node);
/* Does it sum over the rows, too? */
static inline bool epi_attention_crosses(const epi_attention *a) {
    return a->sums[a->sum_count - 1].over == EPI_OVER_ROWS;
}
/* Those of the value products that sum over the stream: they come first. */
static inline int epi_attention_outs(const epi_attention *a) {
    return a->sum_count - epi_attention_crosses(a);
}
/* attention.c: looks whether a product is a value product: fills what is known from it alone (all but further
 * value products, the mask and the child plans), and marks in inner[] (by node) the score products and the
 * elements that are made of them for it. */
bool epi_attention_find(const epi_graph *g, int product, epi_attention *out, bool *inner, int *scratch);
/* Can the second, of one value product, be made in the kernel of the first, as one over its stream or its
 * rows? None may be made of another. Then the first takes it in. The scratch is as long as there are nodes. */
bool epi_attention_join(const epi_graph *g, epi_attention *first, const epi_attention *second, epi_over over,
                        int *scratch);
/* attention_mask.c: finds the mask and its bounds; are they all that its condition says (`whole`)? */
void epi_attention_bound(const epi_graph *g, epi_attention *a, const bool *inner, bool *whole,
                         unsigned char *scratch);

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

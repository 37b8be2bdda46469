/* attention.h: which products of a graph are attention, and their properties. Attention is recognised here
 * only: rewritings, the saving of values for a backward, the cut and the plan of one kernel all ask here. */
#ifndef EPI_PASS_ATTENTION_H
#define EPI_PASS_ATTENTION_H

#include "ir/spec.h"
#include "pass/analyse/limits.h"

struct epi_plan;

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
 *     - reductions of score tile values over the stream are cross-tile, one number per row (EPI_REDUCE_ROWS in
 *       the plan of the kernel);
 *     - an *output program* per value product over the stream (its child plan) is its epilogue on a tile of
 *       rows and all of its columns; it may load reductions of the score tile, and stores values of rows alone,
 *       too.
 *
 * *Online softmax*: the weight is exp(s - shift), where shift is max(s, stream), or 0 where that is -inf; or
 * that times a factor without scores, which its sum does not have (dropout). The maximum is known only behind
 * the last column, so a mainloop walks over the stream once with a running maximum, and scales what it has
 * summed when that grows. There is one value product then. The score program makes s, the mainloop does the
 * rest; `row_max` and `denominator` are what output programs load of it.
 *
 * `rows` are those of the score tile, of which the first `batch_axes` are the batches: axes that some stream
 * operand has. A tile lies in one batch. In the plan of the kernel `cols` are the first value product's columns
 * and `depth` is what the first score product sums over. */
enum { EPI_ATTENTION_BOUNDS = 4, EPI_ATTENTION_SUMS = 3, EPI_ATTENTION_TERMS = 4 };

/* A score product: the score that it is, or is a term of, and its operands. */
typedef struct epi_attention_term {
    int product, score, rows, stream;
} epi_attention_term;

/* A value product: what it is of, and what it sums over. */
typedef enum epi_over { EPI_OVER_STREAM, EPI_OVER_ROWS } epi_over;
typedef struct epi_attention_sum {
    int product, weight, operand;
    epi_axes cols;
    epi_over over;
    struct epi_plan *plan; /* its output program; over the rows it has none */
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
    epi_or other_is;
} epi_bound;

/* Is it where a sequence begins: a limit from below that is one value alone, which rows do not have? A
 * difference is none: what a decoded token's position less a window says of one row, a text of many rows says of
 * each. Tiles of the stream are counted from there. */
bool epi_bound_is_start(const epi_graph *g, const epi_bound *b, const epi_axes *batch);

/* Of a mask: two values that must be equal, as documents are, one without the stream and one along it. */
typedef struct epi_match {
    int row, column;
} epi_match;

/* What says that it is attention, the surest last: nothing but that scores have batches; a mask or a decay by positions along the
 * stream; a softmax, online or of statistics that are there. */
typedef enum epi_attention_sign {
    EPI_SIGN_NONE,
    EPI_SIGN_BATCH,
    EPI_SIGN_POSITION,
    EPI_SIGN_SOFTMAX
} epi_attention_sign;

typedef struct epi_attention {
    epi_node_list
        inner; /* the score products and the elements that are made of them, in the order of nodes */
    int scores[2], score_count; /* each is a product, or the sum of two: its terms */
    epi_attention_term terms[EPI_ATTENTION_TERMS];
    int term_count; /* those of the first score come first */
    epi_attention_sum sums[EPI_ATTENTION_SUMS];
    int sum_count;
    epi_axes rows, stream; /* the stream in the order of the first value product's operand */
    int batch_axes;
    epi_attention_sign sign;
    bool
        shared; /* scores may be the same along some batches or rows, as heads share them; not where there is a softmax */
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
    struct epi_plan *score_plan, *open_plan;
} epi_attention;

/* What must lie in memory: the operands of score products, and what weights are multiplied with. How many. */
enum { EPI_ATTENTION_OPERANDS = 2 * EPI_ATTENTION_TERMS + EPI_ATTENTION_SUMS };
int epi_attention_operands(const epi_attention *a, int out[EPI_ATTENTION_OPERANDS]);
/* Have the weights a factor that differs from row to row of a batch? It may lack the batch. */
bool epi_attention_factor_has_rows(const epi_graph *g, const epi_attention *a);
/* What a stream operand is in memory: of a conversion that a mainloop does as it loads it, its 8-bit operand. */
int epi_attention_loaded(const epi_graph *g, int node);
/* Is it a stream operand that is a gather from an input, by an input that has the first axes of the stream: a
 * table of pages? Then keys (or values) of neighbouring positions lie together, page by page. */
bool epi_attention_is_paged(const epi_graph *g, const epi_attention *a, int node);
/* Of an element x*m, x/m or where(m, x, 0), where x is made of scores and m is not: which operand x is, else
 * -1; *factor is m. */
int epi_attention_factor(const epi_graph *g, int node, const bool *inner, int *factor);
/* The maximum along some axes that it is, or is but for 0 instead of -inf (guarded); or EPI_NO_NODE. */
int epi_attention_row_max(const epi_graph *g, int node);
/* Is one of the values made of the other? The scratch is room for one number a node. */
bool epi_is_made_of(const epi_graph *g, int node, int of, int *scratch);
/* Is it a reduction along the stream? EPI_NO_NODE is none. */
bool epi_attention_reduces(const epi_graph *g, const epi_attention *a, int node);
/* Is it one of the value products? */
bool epi_attention_is_value(const epi_attention *a, int node);
/* Has it a value product that sums over the rows? */
static inline bool epi_attention_has_row_sum(const epi_attention *a) {
    return a->sums[a->sum_count - 1].over == EPI_OVER_ROWS;
}
/* Those of the value products that sum over the stream: they come first. */
static inline int epi_attention_outs(const epi_attention *a) {
    return a->sum_count - epi_attention_has_row_sum(a);
}
/* All attentions of a program that these limits allow (NULL: all there are), one for each value product, in
 * the order of nodes: with what is known from it alone, which is all but further value products, the mask and
 * the child plans. Those of products that `without` has refused attention, by node, are left out; it may be
 * NULL. False: no memory. */
typedef struct epi_attentions {
    epi_attention *at;
    int count;
} epi_attentions;
bool epi_attentions_find(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                         const unsigned *without, epi_attentions *out);
/* Marks, by node, the operands of all these; none where there are to be no attentions. False: no memory. */
bool epi_attentions_mark_operands(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                                  bool *operands);
/* Those that one kernel can make become one: over the stream first, then, where that is allowed, over the
 * rows. None of its value products may be made of another. `forward` has the direction by node; NULL: there is
 * one. */
bool epi_attentions_join(epi_arena *arena, const epi_graph *g, const bool *forward, bool over_rows,
                         epi_attentions *all);
/* attention_mask.c: finds the mask and its bounds; are they all that its condition says (`complete`)? */
void epi_attention_bound(const epi_graph *g, epi_attention *a, const bool *inner, bool *complete,
                         unsigned char *scratch);

#endif

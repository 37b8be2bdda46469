/* integers.h: which values are integers, how large they may become, and which of them f32 cannot hold.
 *
 * Integers are positions, sizes, whole numbers in the program, inputs of integer types, and the results of
 * sorting an index. Sums, products, extremes, choices and moves of integers alone are integers too. They are
 * exact.
 *
 * f32 holds integers up to 2^24. A larger one may be in f32 all the same if no reader can tell: an index
 * into an axis of 100 elements, or a comparison with a number below 100, sees no difference between 2^24 and
 * 2^24 + 1. So each integer has a *stretch*, the range of numbers that its readers distinguish. A number
 * outside must only stay outside. An integer whose stretch f32 cannot hold is *large*: it is computed in 64
 * bits. */
#ifndef EPI_PASS_INTEGERS_H
#define EPI_PASS_INTEGERS_H

#include "ir/spec.h"

/* Numbers that are compared in f32 are told apart unless both are beyond it: none is, of two inputs that are compared one
 * may be, or not, as each is compared with all. */
typedef enum epi_assumed { EPI_ASSUMED_NOTHING, EPI_ASSUMED_ONE, EPI_ASSUMED_ALL } epi_assumed;

typedef struct epi_integer {
    bool is;
    bool wraps; /* it may be more than 64 bits have, and wraps around, as no float does */
    bool large; /* its readers tell more of it apart than f32 holds */
    int64_t low,
        high; /* it is from low to high; computed in 64 bits it wraps around, and then these are all there are */
    int64_t from, to;    /* its readers tell these apart; none: from > to */
    bool moved;          /* it has elements of inputs, and nothing else: */
    epi_assumed assumed; /* what comes of these is taken to be held by f32: a run looks at the inputs */
} epi_integer;

/* By node, for the largest sizes that open axes may have; NULL: no memory. */
const epi_integer *epi_integers_find(epi_arena *arena, const epi_spec *spec);
/* Which nodes are integers, by the types of the tensors, or, where these are NULL, by what the text says. */
bool *epi_integers_kinds(epi_arena *arena, const epi_graph *g, const epi_dtype *types);
/* Is the operation one on integers of which f32 does not hold one: its result, or an operand? */
bool epi_integer_is_computed(const epi_graph *g, const epi_integer *at, int node);
/* Does f64 not hold the integer? */
bool epi_integer_is_beyond_f64(const epi_integer *at);
/* Is it floor(a/b) of integers, which is a // b; or floor(c*a), where the algebra has written a power of two as c? */
typedef struct epi_quotient {
    int a, b; /* b: EPI_NO_NODE where it is a number of its own: */
    int64_t by;
} epi_quotient;
bool epi_quotient_find(const epi_graph *g, const epi_integer *at, int node, epi_quotient *out);

#endif

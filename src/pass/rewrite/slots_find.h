/* slots_find.h: what slots.c finds in a program before it rewrites anything. */
#ifndef EPI_PASS_SLOTS_FIND_H
#define EPI_PASS_SLOTS_FIND_H

#include "ir/spec.h"

/* What becomes of a value. */
typedef enum epi_slot_role {
    EPI_SLOT_AS_IT_IS,
    EPI_SLOT_PRODUCT,  /* a grouped product */
    EPI_SLOT_OUTER,    /* a sum of outer products, by choice */
    EPI_SLOT_BY_ROW,   /* each row is made of the same row of its operands: so are slots */
    EPI_SLOT_PARTIAL,  /* a sum over some axes of the rows, and perhaps others */
    EPI_SLOT_ADDED,    /* sums over the same axes of the rows, added up */
    EPI_SLOT_ALL_ROWS, /* over all rows, in whatever order they are */
    EPI_SLOT_CHOSEN,   /* a sum by choice of what is in slot order */
    EPI_SLOT_COMBINED  /* a sum of rows that a table has, over axes of the index */
} epi_slot_role;

/* The values of one index, sorted. */
typedef struct epi_prelude {
    int index;       /* a node of the old graph */
    epi_axis choice; /* E */
    epi_axes rows;   /* of the index */
    int p, q, s;     /* in the new graph; EPI_NO_NODE: not made yet */
    int there;       /* is 0 in slots that choose nothing; EPI_NO_NODE: there are none */
} epi_prelude;

typedef struct epi_slot_place {
    epi_slot_role role;
    int prelude;   /* in whose slot order it is made, or -1 */
    epi_axes sums; /* of the rows: it is the sum over these of what is made in slot order */
    int chosen;    /* the gather that it is made of row by row, and of nothing else that has rows: of
                      gather(w, i, E) it is itself; or EPI_NO_NODE */
    bool wanted;   /* something that is made in slot order wants it so */
    int slots;     /* in the new graph: the value in slot order */
    int table;     /* in the new graph: what is chosen from by `chosen` */
} epi_slot_place;

typedef struct epi_slots {
    const epi_graph *in;
    const epi_spec *spec; /* or NULL */
    epi_prelude *preludes;
    int count;
    epi_slot_place *at; /* by node */
    bool settled;       /* what is wanted is known */
    int old, first;     /* see slots.h */
} epi_slots;

enum { EPI_SLOT_FACTORS = 24 };

/* By what a factor is multiplied with: the rows' operand, the weights', or the product. */
typedef enum epi_slot_side { EPI_SLOT_ROWS, EPI_SLOT_WEIGHTS, EPI_SLOT_RESULT, EPI_SLOT_SIDES } epi_slot_side;

typedef struct epi_slot_factors {
    epi_factor at[EPI_SLOT_FACTORS];
    epi_slot_side side[EPI_SLOT_FACTORS];
    int count;
    bool negative;
    /* Of a grouped product: */
    int chosen;     /* which factor the chosen weight is */
    epi_axes depth; /* what it sums over and the weight has */
    epi_axes rest;  /* and what it sums over of the rows */
} epi_slot_factors;

/* Finds the places of all values; false: nothing is to be done. */
bool epi_slots_find(epi_slots *s);
/* Is it made in slot order, and no sum of what is? */
static inline bool epi_in_slots(const epi_slots *s, int node) {
    return s->at[node].prelude >= 0 && !s->at[node].sums.count;
}
/* The factors of a grouped product, or of a sum by choice of outer products; false: it is none. */
bool epi_slots_product(const epi_slots *s, int node, epi_slot_factors *f);
bool epi_slots_outer(const epi_slots *s, int node, epi_slot_factors *f);
/* The prelude of the index of a gather or a scatter, a new one where it has none yet; and the one in whose order
 * operands are, or -1: none is, or they differ. */
int epi_slots_prelude(epi_slots *s, const epi_node *move);
int epi_slots_order(const epi_slots *s, const epi_node *n);
/* Is a sum over these axes of an index taken term by term? */
bool epi_slots_few(const epi_slots *s, const epi_axes *sums);
/* Does every element of an index name an element along the axis? Integers of an input do, or are an error of
 * the run. */
bool epi_slots_within(const epi_graph *g, int index, epi_axis axis);

#endif

/* placer.h: what the files of the cut share: where each value of the program is made. */
#ifndef EPI_PASS_PLACER_H
#define EPI_PASS_PLACER_H

#include "pass/analyse/cost.h"
#include "pass/analyse/recurrence.h"
#include "pass/analyse/stored.h"
#include "pass/place/cut.h"

typedef enum epi_cut_placement_kind {
    EPI_PLACED_INPUT, /* an input, a constant, a position: there from the beginning */
    EPI_PLACED_TILE,  /* on the part's tile or row */
    EPI_PLACED_AFTER, /* of the part's finished reductions */
    EPI_UNPLACED,     /* after the part, wherever it is used */
    EPI_PLACED_VIEW,  /* a value that the part stores, with another name of an axis */
    EPI_PLACED_SCORE, /* on the score tiles of attention parts, recomputed by each of them; or read by products
                         through an index, by each of them */
    EPI_PLACED_PIECES, /* nowhere: it is an output, or a sum on the way there, of which others store pieces */
} epi_cut_placement_kind;

typedef struct epi_cut_placement {
    epi_cut_placement_kind kind;
    int part;
} epi_cut_placement;

typedef struct epi_placer_part {
    epi_kind kind;
    /* As in epi_plan; of attention its first value product. */
    int product, pair, added[EPI_MAX_TERMS - 1], added_count;
    epi_axes rows, cols;
    const struct epi_placer_attention *attention; /* its own, or NULL */
    const epi_recurrence *recurrence;             /* its own, or NULL */
    bool batched;                                 /* some rows are batch axes of the product */
    bool grouped;                                 /* it is a product of groups */
    bool alone;                                   /* it makes one value, or orders, and nothing else */
    bool shaped;                                  /* rows: something decided which axes are columns */
    bool square;  /* rows: each is a tile of two axes, of which extremes are taken along both (square.h) */
    bool vectors; /* rows: something on them, or that they load, has some of their axes and not all */
    epi_axes taken_by;     /* rows: axes of numbers by which they take rows of tables, */
    epi_axes shifted;      /* and along which they take values from other places, */
    bool window;           /* some of which they make themselves and keep for a few steps */
    bool scans, scan_back; /* rows: they go through recurrences, along this axis and this way */
    epi_axis scan;
    bool folds, crosses; /* rows: they reduce over columns, or over rows */
    unsigned local;      /* dims that a reduction inside the tile removes */
    bool ordered;        /* its columns keep their order: no halves are taken of them */
    epi_op split;        /* as in epi_plan */
    epi_axis fine;
    int tensors;       /* that values which joined it load and store */
    int spilled, next; /* cut_spill.c: the value of its tile, or EPI_NO_NODE, that it spills to this part */
} epi_placer_part;

/* Products that become one attention part, with what is made between them. */
typedef struct epi_placer_attention {
    epi_attention plan;       /* what is known of it from the graph */
    epi_node_list reductions; /* reductions of these that the part makes */
    epi_node_list needs;      /* what they and the value products are made of, which is none of them */
    bool dropped;             /* it cannot be one part */
    bool placed;
} epi_placer_attention;

typedef struct epi_placer {
    const epi_spec *spec;
    const epi_backend_limits *limits;
    const epi_graph *g;
    int64_t sizes[EPI_MAX_DIMS];  /* that costs are counted with */
    const epi_dtype *said;        /* by node; see stored.h */
    epi_cut_placement *placement; /* by node */
    epi_placer_part *parts;
    int part_count;
    bool *forced;     /* by node: it must be in memory */
    bool *placed;     /* by node: it has its placement */
    int *sum;         /* by node: the sum of products that it belongs to, or EPI_NO_NODE */
    bool *forward;    /* by node; see direction.h */
    bool *takes;      /* by node: it is unplaced, and made of rows of a table that rows take as they go */
    bool *apart;      /* by node: it is unplaced, and made of a split that is */
    int *put_by;      /* by node: the scatter by which it is a piece of an output, or EPI_NO_NODE; */
    int *put_into;    /* that output */
    bool *of_product; /* by node: it is made of a product */
    int *folds;       /* by node in a row: reductions of its part that come before it, each for the next */
    bool *view;       /* by node: it is a slice of a value in memory, which needs no memory of its own */
    bool *waiting;    /* by node: such a value of an unplaced one, which is stored when something wants it */
    const unsigned *without; /* by product: what its part may not have (epi_refusal) */
    const int *spills;       /* by product: the value that its part is to spill, or EPI_NO_NODE; or NULL */
    int first;               /* parts before this one are of the direction that is done */
    int until;               /* what is stored now is wanted behind this part, or -1: soon after it is made */
    epi_placer_attention *attentions;
    int attention_count;
    bool stuck; /* some value can be placed nowhere */
    int *attention_of; /* by node: the one whose value product or reduction it is, counted from 1; else 0 */
    bool *inner;       /* by node: some attention makes it on its score tiles */
    epi_recurrences recurrences;
    int *recurrence_of; /* by node: the one whose result it is, counted from 1; else 0 */
    bool *stepped; /* by node: it is of a recurrence's states, or what they are made of: nobody makes it */
    bool *
        reads_loaded_tile; /* by node on an attention part's tile: it is made of a tile that is loaded, too */
    signed char *value;    /* by node on an attention part's tile: which value product it is made of */

    /* What was found last of a value that must exist: the unplaced values it needs, and what those read. */
    epi_node_list cone, read;
    epi_node_list pending; /* unplaced values that have to be stored, each for one before it */
    epi_visits visits;
    int *scratch; /* as many as nodes */
} epi_placer;

/* Reductions in a row that wait for each other, at most: each is a walk over the row, in which all that comes
 * before it is recomputed unless it is kept. */
enum { EPI_MOST_FOLDS = 16 };

/* The type in which a value is stored, and the bytes that it or a view of it takes then. */
epi_dtype epi_placer_type(const epi_placer *s, int node);
double epi_placer_bytes(const epi_placer *s, int node);
/* What a value is a view of, under another name of an axis or a slice; itself where it is none. And how it
 * lies in memory of these axes: slice->memory.count is 0 where it is all of it. Returns its axes there. */
bool epi_placer_is_view(const epi_placer *s, int node);
int epi_placer_root(const epi_placer *s, int node);
epi_axes epi_placer_view(const epi_placer *s, int node, const epi_axes *memory, epi_slice *slice);
/* May what a shift takes from other places be kept by rows that make it? */
bool epi_placer_may_keep(const epi_placer *s, int node);
/* Can the value be made on the part's tile? If so, notes the axis it takes apart. */
bool epi_placer_fits(const epi_graph *g, epi_placer_part *p, int node);
/* The value must be in memory: it is stored where it is made, unless it is an input or a constant. */
void epi_placer_store(epi_placer *s, int node);
epi_status epi_placer_make(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                           const unsigned *without, const int *spills, epi_placer *out, epi_error *err);

/* cut_attention.c: finds the attentions that the program may have; then keeps those that agree, and gives
 * their elements their placements. False: no memory. And places one whose operands are all there. */
bool epi_placer_find_attention(epi_arena *arena, epi_placer *s);
bool epi_placer_agree_attention(epi_arena *arena, epi_placer *s);
bool epi_placer_attention_ready(const epi_placer *s, const epi_placer_attention *a);
void epi_placer_place_attention(epi_placer *s, epi_placer_attention *a, int part);
/* cut_recurrence.c: finds the scans of products (false: no memory); then keeps those that agree, and gives what is of
 * their states its placement; drops one that waits for itself (false: none does); and places one whose operands are all
 * there. */
bool epi_placer_find_recurrences(epi_arena *arena, epi_placer *s);
void epi_placer_agree_recurrences(epi_placer *s);
bool epi_placer_drop_recurrence(epi_placer *s);
bool epi_placer_recurrence_ready(const epi_placer *s, const epi_recurrence *r);
void epi_placer_place_recurrence(epi_placer *s, const epi_recurrence *r, int part);
/* cut_pieces.c: finds the outputs that are put together of pieces; and has those of such a value stored. */
void epi_placer_find_pieces(epi_placer *s);
void epi_placer_store_pieces(epi_placer *s, int node);
/* Where a piece lies in an output of these axes. */
epi_axes epi_placer_piece(const epi_placer *s, int node, const epi_axes *memory, epi_slice *slice);
/* cut_loads.c: by part, in the order of nodes: what it makes on its tile and after it, and what it loads; the
 * rest it makes again. */
typedef struct epi_part_values {
    epi_node_list own, loads;
} epi_part_values;
/* NULL: no memory, or they cannot be had. */
epi_part_values *epi_placer_loads(epi_arena *arena, epi_placer *s);

/* cut_spill.c: where rows follow a product for its statistics, tries to make these there. *s and *values are
 * other ones where that costs less. */
epi_status epi_placer_spill(epi_arena *arena, epi_placer *s, epi_part_values **values, epi_error *err);

#endif

/* placer.h: what the files of the cut share: where each value of the program is computed. */
#ifndef EPI_PASS_PLACER_H
#define EPI_PASS_PLACER_H

#include "pass/analyse/cost.h"
#include "pass/analyse/recurrence.h"
#include "pass/analyse/square.h"
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
    /* As in epi_plan; of attention its first value product; of a pass EPI_NO_NODE. */
    int product, pair, added[EPI_MAX_TERMS - 1], added_count;
    epi_axes rows, cols;
    const struct epi_placer_attention *attention; /* its own, or NULL */
    const epi_recurrence *recurrence;             /* its own, or NULL */
    bool batched;                                 /* some rows are batch axes of the product */
    bool grouped;                                 /* it is a product of groups */
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
    bool stuck;        /* some value can be placed nowhere */
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
/* cut_layout.c: sets of axes as sets of dims, as bits: one for each row axis and each column axis there is,
 * and one for all others. */
unsigned epi_placer_dims(const epi_axes *rows, const epi_axes *cols, const epi_axes *axes);
/* What a value is a view of, under another name of an axis or a slice; itself where it is none. And how it
 * lies in memory of these axes: slice->memory.count is 0 where it is all of it. Returns its axes there. */
bool epi_placer_is_view(const epi_placer *s, int node);
int epi_placer_root(const epi_placer *s, int node);
epi_axes epi_placer_view(const epi_placer *s, int node, const epi_axes *memory, epi_slice *slice);
/* Where a piece lies in an output of these axes. */
epi_axes epi_placer_piece(const epi_placer *s, int node, const epi_axes *memory, epi_slice *slice);
/* Is it a part of its operand that lies there as a tensor may? */
bool epi_placer_is_slice(const epi_placer *s, int node);

/* cut_holds.c: can the value be made on the part's tile? If so, notes the axis it takes apart. */
bool epi_placer_fits(const epi_placer *s, epi_placer_part *p, int node);
epi_tile epi_placer_tile_of(const epi_placer_part *p);
/* Notes the one axis that the part takes apart. */
bool epi_placer_note_split(epi_placer_part *p, const epi_node *n);
/* How a value on the part's tile is reduced; NONE: it cannot be done there. */
epi_reduction epi_placer_reduction_of(const epi_placer *s, epi_placer_part *p, int value,
                                      const epi_axes *over);
/* Shapes rows of these axes for a reduction over some of them, or for none: those are the columns where they
 * come last, the rows where they come first. A statistic of rows has its columns last, however they lie.
 * False: they are somewhere between. */
bool epi_placer_shape_rows(const epi_spec *spec, epi_placer_part *p, const epi_axes *of,
                           const epi_axes *over);

/* cut_stores.c: the value must be in memory: it is stored where it is made, unless it is an input or a
 * constant. */
void epi_placer_store(epi_placer *s, int node);
/* The part at which a value can be used first: its own, or the rows that take all that is made of it. */
int epi_placer_time_of(const epi_placer *s, int node);
/* What is stored now is wanted where this value is there, too. */
void epi_placer_want_after(epi_placer *s, int node);
/* A new part; and one over rows of this value's shape, for a reduction over these axes or for none. */
int epi_placer_add_part(epi_placer *s, epi_kind kind, int product);
int epi_placer_add_rows(epi_placer *s, int node, const epi_axes *over);
/* A view of an unplaced value waits until something wants it: only then is it known how long it is alive.
 * Then what it is a view of is stored. */
void epi_placer_see_view(epi_placer *s, int node);
void epi_placer_settle_view(epi_placer *s, int node);
/* Notes the unplaced values that `node` needs and what those read, both in the order of nodes. */
void epi_placer_find_cone(epi_placer *s, int node);
/* The first value of the cone that the part cannot hold, beside one that is taken apart another way;
 * EPI_NO_NODE: it holds all of them. What is taken apart says at which scales an axis may be. */
int epi_placer_first_misfit(const epi_placer *s, epi_placer_part *p);
/* Notes how many reductions of its part a value in a row waits for, itself among them. */
void epi_placer_count_folds(epi_placer *s, int node);
/* The value's part, after all that has to be stored for it (a list of what waits, not recursion: programs are
 * long); and the part over square tiles that takes the
 * extreme of this value, or -1: none can. */
int epi_placer_find_part(epi_placer *s, int node, const epi_axes *over);
int epi_placer_find_square(epi_placer *s, int from, const epi_square *square);

/* These give a value its placement. cut_product.c: products that are added up have a part when the last of
 * them is placed, and their sums are on its tile. And the products that a tile adds up with this one, all of
 * one direction; else it is alone. */
void epi_placer_place_product(epi_placer *s, int node);
epi_product_sum epi_placer_find_sum(epi_placer *s, int node);
/* cut_rows.c: a recurrence is on rows that go through its steps, which nobody makes again. */
void epi_placer_place_reduction(epi_placer *s, int node);
void epi_placer_place_map(epi_placer *s, int node);
void epi_placer_place_scan(epi_placer *s, int node);
/* A value that is compared with its own extreme: is it on a product's tile, and so are its extremes? Then
 * they are of the very same numbers there, and are stored, if at all, in f32. */
bool epi_placer_stays_on_tile(epi_placer *s, int node);
/* cut_moves.c: a gather, a scatter or an update; and what else is made from operands in memory. Rows of a
 * table, and random numbers, are made by rows; other gathers, scatters, orders and updates are parts by
 * themselves. An update moves next to nothing where its result takes its operand's place; or the part that
 * makes its new elements stores them there. */
void epi_placer_place_indexed(epi_placer *s, int node);
void epi_placer_place_move(epi_placer *s, int node);
/* Rows load what is shifted where they want it, from what is in memory by then, or keep it as they make
 * it. */
void epi_placer_place_shift(epi_placer *s, int node);
void epi_placer_place_random(epi_placer *s, int node);
/* A part that makes one value from operands in memory, and nothing else; or all orders of an index, and what
 * is sorted by them; or the largest elements and their places. */
void epi_placer_place_pass(epi_placer *s, int node);

/* cut.c: where every value of the program is made. */
epi_status epi_placer_make(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                           const unsigned *without, const int *spills, epi_placer *out, epi_error *err);

/* cut_attention.c: finds the attentions that the program may have; then keeps those that agree, and gives
 * their elements their placements. False: no memory. And places one whose operands are all there. */
bool epi_placer_find_attention(epi_arena *arena, epi_placer *s);
bool epi_placer_agree_attention(epi_arena *arena, epi_placer *s);
bool epi_placer_attention_ready(const epi_placer *s, const epi_placer_attention *a);
void epi_placer_place_attention(epi_placer *s, epi_placer_attention *a, int part);
/* cut_recurrence.c: finds the scans of products (false: no memory); then keeps those that agree, and gives
 * what is of their states its placement; drops one that waits for itself (false: none does); and places one
 * whose operands are all there. */
bool epi_placer_find_recurrences(epi_arena *arena, epi_placer *s);
void epi_placer_agree_recurrences(epi_placer *s);
bool epi_placer_drop_recurrence(epi_placer *s);
bool epi_placer_recurrence_ready(const epi_placer *s, const epi_recurrence *r);
void epi_placer_place_recurrence(epi_placer *s, const epi_recurrence *r, int part);
/* cut_pieces.c: finds the outputs that are put together of pieces; and has those of such a value stored. */
void epi_placer_find_pieces(epi_placer *s);
void epi_placer_store_pieces(epi_placer *s, int node);
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

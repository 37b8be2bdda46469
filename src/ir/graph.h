/* graph.h: a program as values and the operations between them, with axes inferred.
 *
 * Nodes are in an order in which operands come first; equal nodes are one node. The builder
 * functions check axes as they go. Errors are sticky: the first one is kept with its place, later
 * calls return EPI_NO_NODE and do nothing, and the caller looks once at the end.
 */
#ifndef EPI_IR_GRAPH_H
#define EPI_IR_GRAPH_H

#include "ir/ops.h"

enum {
    EPI_NO_NODE = -1,
    EPI_MAX_NODES = 65536,
    EPI_MAX_DIMS = 256,
    EPI_MAX_SHIFT = 16,
    EPI_MAX_TENSORS = 1024 /* inputs, and as many outputs */
};

/* An axis has size(dim) * 2^shift elements. Two axes line up when both are equal. */
typedef struct epi_axis {
    int16_t dim, shift;
} epi_axis;

typedef struct epi_axes {
    int count;
    epi_axis at[EPI_MAX_AXES];
} epi_axes;

/* What the text asks of a value that a gradient needs: to save it, or to make it again; or a gradient that the
 * text has written takes it, so it is saved unless memory comes first. */
typedef enum epi_saving { EPI_SAVE_OPEN, EPI_SAVE_KEEP, EPI_SAVE_RECOMPUTE, EPI_SAVE_TAKEN } epi_saving;

/* A call of a program that names its own gradient, the *rule*. No two calls are one. */
typedef struct epi_own {
    int input_count, result_count;
    const bool *gives;               /* by input: the rule has its gradient */
    const bool *takes;               /* by input, then by result: the rule takes it */
    const struct epi_own_call *call; /* what the language knows of it */
} epi_own;

typedef struct epi_node {
    epi_op op;
    int arg[3];
    epi_axes axes;
    epi_axes over; /* reductions: the axes removed; splits, scans, shift, index, size and update: the one axis
                      named; gather and scatter: what the index counts along, the last the fastest, of a scatter by
                      batch behind the axes that it keeps; orders: what the values
                      count along, then what places count along, the last the fastest (offsets have none);
                      topk: what it takes, and its own; rename: from and to; uniform: its own */
    double value;  /* CONST; SHIFT: by how many places, a whole number */
    int tensor;    /* INPUT: which tensor; OWN: which result */
    bool named;    /* MATMUL: the text names the axes that it sums over */
    bool
        scaled; /* MATMUL: operands are of 8 bits, with a scale or without: a mainloop reads both (widen.c) */
    epi_place place;
    const char *name; /* what the text calls it, or NULL */
    bool has_stored;  /* the text says how it is stored if it is: */
    epi_dtype stored;
    bool fixed; /* no gradient goes through it: what uses it does not change with it; of a maximum, all of it
                   goes to the first operand */
    epi_saving saving;
    bool opaque; /* it is stored as it is, so the algebra does not look at what it is made of */
    /* No memory has it: a product makes it of what it reads, as it loads its operand (widen.c, chosen.c). */
    bool on_load;
    bool integer; /* it is computed in 64 bits, by a pass of its own: f32 does not hold what it takes or makes */
    bool exact; /* DIV: a step such as floor looks at it, so it is no product with an inverse: x/x is 1 */
    const epi_own *own; /* OWN: of which call */
    uint64_t loose;     /* while a program is looked at for notes: bits of pairs of its axes, earlier * EPI_MAX_AXES + later,
                           whose order follows from that in which they appear, and from no text */
} epi_node;

typedef struct epi_tensor_decl {
    const char *name;
    bool is_output, has_type;
    bool cotangent; /* an input that is the gradient of a result: what depends on it is backward */
    bool param;     /* an input that is the same from call to call: what depends on such alone is prepared */
    bool made;      /* an input of a part that another part makes: nobody outside can give a wrong index */
    bool infinite; /* an input that may be infinite or NaN, as what a forward saves; others count as finite */
    epi_dtype type;
    epi_axes axes;
    int node; /* the value: an INPUT, or what the output is assigned */
    epi_place place;
} epi_tensor_decl;

/* Who reads a value: an operand of a live node, or an output. */
typedef struct epi_use {
    int node;    /* EPI_NO_NODE for an output */
    int operand; /* which operand of the node, or the output's tensor */
} epi_use;

typedef struct epi_graph {
    epi_arena *arena;
    int dim_count, node_count, node_capacity, tensor_count, input_count;
    const char *dims[EPI_MAX_DIMS];
    int64_t fixed[EPI_MAX_DIMS]; /* the size that the text gives a dim, as in C=3; 0: it gives none */
    int declared_count;          /* dims from here on are new names of axes: */
    epi_axis same[EPI_MAX_DIMS]; /* by such a dim: the axis whose size it has */
    epi_node *nodes;
    epi_tensor_decl *tensors; /* inputs, then outputs */

    /* While it is built: */
    epi_axes carried; /* axes that a call's arguments have beyond the callee's: they stay in front of all
                         others, and nothing sums over them */
    bool notes;       /* nodes get `loose` */
    epi_place place;  /* given to new nodes and to errors */
    epi_error error;  /* the first one; place and message only */
    int *table;       /* nodes by their hash, EPI_NO_NODE where there is none: equal ones are found in it */
    int table_size;   /* a power of two, or 0: it is made when it is next wanted */

    /* Made by epi_graph_finish: */
    bool *live;     /* by node: some output depends on it */
    epi_use *uses;  /* of all live nodes and outputs, sorted by what they use */
    int *first_use; /* by node, and one more */
} epi_graph;

bool epi_axis_equal(epi_axis a, epi_axis b);
int epi_axes_find(const epi_axes *axes, epi_axis axis); /* position or -1 */
int epi_axes_find_dim(const epi_axes *axes, int dim);
static inline bool epi_axes_has_dim(const epi_axes *axes, int dim) {
    return epi_axes_find_dim(axes, dim) >= 0;
}
int epi_axes_count_in(const epi_axes *axes, const epi_axes *group); /* how many have a dim of the group */
void epi_axes_remove(epi_axes *axes, int position);
epi_axes epi_axes_without(const epi_axes *axes, const epi_axes *gone);
bool epi_axes_include(const epi_axes *a, const epi_axes *b); /* has a all of b? */
bool epi_axes_meet(const epi_axes *a, const epi_axes *b);    /* have they one in common? */
bool epi_axes_unite(epi_axes *into,
                    const epi_axes *more); /* appends what it lacks; false: there is no room */
epi_axes epi_axes_shared(const epi_axes *a, const epi_axes *b); /* those that both have, in the order of a */
bool epi_axes_same_set(const epi_axes *a, const epi_axes *b);
bool epi_axes_equal(const epi_axes *a, const epi_axes *b); /* the same ones in the same order */

/* Gives an empty graph the dims of another. */
void epi_graph_take_dims(epi_graph *g, const epi_graph *from);

/* A pass that writes a graph anew begins with an empty one, in the arena that is set in it, with the dims and
 * tensors of the old one (false: no memory), and ends with the tensors' values, where fresh[] has the new
 * node of every old one. Between them a node may be copied as it is: with the operands that fresh[] has for
 * its own. */
bool epi_graph_begin(epi_graph *g, const epi_graph *old);
int epi_graph_copy(epi_graph *g, const epi_node *n, const int *fresh);
void epi_graph_end(epi_graph *g, const epi_graph *old, const int *fresh);
/* What came of it: EPI_OK, or its error, which *err gets. */
epi_status epi_graph_status(const epi_graph *g, epi_error *err);

/* All of that, for a pass that is a rule: *graph is written anew, node by node, what is live and the inputs.
 * The rule returns what a node of the old graph is in the new one, or EPI_NO_NODE: it is copied as it is. Where that is so
 * of all nodes, and none is dead, *graph stays the graph that it is. */
typedef struct epi_rewrite {
    const epi_graph *in;
    epi_graph *g; /* new */
    int *fresh;   /* by old node: its value in the new graph */
    void *ctx;    /* the rule's own */
} epi_rewrite;
typedef int epi_rewrite_rule(epi_rewrite *r, int node);
epi_status epi_graph_rewrite(epi_arena *arena, const epi_graph **graph, epi_rewrite_rule *rule, void *ctx,
                             epi_error *err);

/* Builders. They return the node, or EPI_NO_NODE after an error. */
int epi_graph_const(epi_graph *g, double value);
int epi_graph_input(epi_graph *g, int tensor);
int epi_graph_map(epi_graph *g, epi_op op, int a, int b, int c);
int epi_graph_fixed(epi_graph *g, epi_op op, int a, int b, int c); /* a map that is `fixed` */
int epi_graph_map_like(epi_graph *g, const epi_node *n,
                       const int arg[3]); /* the same map of these operands */
static inline int epi_graph_map1(epi_graph *g, epi_op op, int a) {
    return epi_graph_map(g, op, a, EPI_NO_NODE, EPI_NO_NODE);
}
static inline int epi_graph_map2(epi_graph *g, epi_op op, int a, int b) {
    return epi_graph_map(g, op, a, b, EPI_NO_NODE);
}
int epi_graph_reduce(epi_graph *g, epi_op op, int a, const epi_axes *over);
int epi_graph_shift(epi_graph *g, int a,
                    const epi_axes *over); /* max(a, over), or 0 where that is -inf; `fixed` */
int epi_graph_split(epi_graph *g, epi_op op, int a, epi_axis axis);       /* EVEN ODD LOW HIGH */
int epi_graph_join(epi_graph *g, epi_op op, int a, int b, epi_axis axis); /* JOIN CONCAT */
int epi_graph_product(epi_graph *g, int a, int b);                        /* over all axes that both have */
int epi_graph_leaf(epi_graph *g, epi_op op, epi_axis axis);               /* INDEX SIZE */
/* scatter(a, index, sums -> along): the sum over these axes of the index alone. The others are kept, in front of `along`:
 * SCATTER_BATCH, or SCATTER where there are none. And what of an index is kept. */
int epi_graph_scatter(epi_graph *g, int a, int index, const epi_axes *sums, const epi_axes *along);
epi_axes epi_scatter_kept(const epi_graph *g, const epi_node *n);
/* GATHER SCATTER UPDATE; the value is update's alone, else EPI_NO_NODE. Along several axes the index is flat:
 * it counts through all of them, the last the fastest. */
int epi_graph_move(epi_graph *g, epi_op op, int a, int index, int value, const epi_axes *along);
/* ARGSORT RANK OFFSETS SEGMENTS TOPK; `along` is what the values count along, then what the places do. Of
 * argsort and rank these are the operand's own axes, which need not be given. */
int epi_graph_sort(epi_graph *g, epi_op op, int a, const epi_axes *along);
/* SCAN SCAN_BACK: a*h + b along the axis, which one of both has. */
int epi_graph_scan(epi_graph *g, epi_op op, int a, int b, epi_axis axis);
/* gather(x, 2, C): the slice of a value at a number. */
int epi_graph_slice(epi_graph *g, int value, epi_axis axis, int64_t at);
/* Is it gather(x, 2, C), at a number, or scatter(x, 2, C), or update(x, v, 2, C)? `at` is that number. Along
 * several axes at once it is none. */
bool epi_graph_at_number(const epi_graph *g, int node, int64_t *at);
int epi_graph_random(epi_graph *g, epi_op op, int seed, const epi_axes *axes);
int epi_graph_rename(epi_graph *g, int a, epi_axis from, epi_axis to);
/* SHIFT: at t the element at t - by, 0 outside; by 0 it is the value itself. And of such a node: by how many. */
int epi_graph_shifted(epi_graph *g, int a, epi_axis axis, int64_t by);
int64_t epi_shift_by(const epi_node *n);
int epi_graph_once(epi_graph *g, int a); /* the value as it is in memory */
/* Marks the values of a call's results, in out[], as its own; and the call's arguments by one of these: its second
 * operand, or the only one where a text is written, which has no formula of what is called. */
void epi_graph_own(epi_graph *g, const epi_own *own, const int *arguments, int *out);
void epi_own_arguments(const epi_graph *g, int node, int *out);
/* The graph without such marks, which only derivatives look at: itself, if there are none. */
epi_status epi_own_drop(epi_arena *arena, const epi_graph **graph, epi_error *err);
/* A name for the axis: a dim of its own with the axis's size, the same one whenever it is asked for. */
epi_axis epi_graph_new_name(epi_graph *g, const char *name, epi_axis axis);
/* sum(a*b, over): a product that keeps the other axes that both have, its *batch axes*, where both have all
 * of `over` and each has an axis of its own beside it; else a map and a sum. */
int epi_graph_contract(epi_graph *g, int a, int b, const epi_axes *over);
bool epi_graph_is_contraction(const epi_graph *g, int a, int b, const epi_axes *over);
/* A product of groups (GROUPED in ops.def): a, b and a node of SEGMENTS. Where b has the axis that the segments
 * count along, its matrices are those of groups of rows, and `over` is the depth; else `over` is the segments'
 * own axes. */
int epi_graph_grouped(epi_graph *g, int a, int b, int segments, const epi_axes *over);
/* Of such a product: the axis that counts groups, the axes that positions are counted along, where groups begin
 * (a value of that axis), and are the groups of rows? */
epi_axis epi_grouped_axis(const epi_graph *g, const epi_node *product);
epi_axes epi_grouped_positions(const epi_graph *g, const epi_node *product);
int epi_grouped_offsets(const epi_graph *g, const epi_node *product);
bool epi_grouped_rows(const epi_graph *g, const epi_node *product);
/* The index through which a product's mainloop reads operands that are gathers, and is it this operand's? EPI_NO_NODE:
 * it reads none so. Of groups it names rows, or positions of the depth; else a matrix for each batch (chosen.c). */
int epi_grouped_index(const epi_graph *g, const epi_node *product);
bool epi_grouped_reads(const epi_graph *g, const epi_node *product, int operand);
/* Have two products the same groups, and the same index if they read operands so? True of two MATMULs. */
bool epi_grouped_alike(const epi_graph *g, const epi_node *p, const epi_node *q);
/* Is the value a gather that nothing but such products wants, each of which reads it so? Then no one makes it. */
bool epi_gather_is_read(const epi_graph *g, int node);
/* Of a scaled product's operand q, or q*s: q, and s or EPI_NO_NODE. Of any other: the operand, and EPI_NO_NODE. */
int epi_scaled_bits(const epi_graph *g, const epi_node *product, int operand);
int epi_scaled_factor(const epi_graph *g, const epi_node *product, int operand);
/* Is the value an operand q*s that nothing but scaled products wants? Then no one makes it. */
bool epi_scaled_is_read(const epi_graph *g, int node);
/* What a product's mainloop reads from memory: its operands, or what they are gathered of, or made of on load, or their
 * bits and scales; offsets; the index. */
enum { EPI_LOAD_READS = 4, EPI_PRODUCT_READS = 2 * EPI_LOAD_READS + 2 };
int epi_product_reads(const epi_graph *g, int product, int out[EPI_PRODUCT_READS]);
/* The segments of which such a product, or scatter(v, segments(o, E, …), E), a sum of each group, reads the offsets;
 * EPI_NO_NODE: it has none. */
int epi_node_segments(const epi_graph *g, const epi_node *n);
/* Are these segments that nothing but those wants? Then no one makes them. */
bool epi_segments_are_read(const epi_graph *g, int node);
/* Is the value gather(v, s, E) of what has no positions, where s = segments(o, E, …): the same for all positions of a
 * group? */
bool epi_gather_is_of_group(const epi_graph *g, int node, int segments);
/* The axes of a product's operand beside its depth, and beside the one that counts the groups: rows, or columns.
 */
epi_axes epi_product_side(const epi_graph *g, const epi_node *product, int operand);
/* Does this product sum over all axes that its operands share, as `@` does? */
bool epi_product_sums_all(const epi_graph *g, const epi_node *product);
/* sum(factor*factor/factor, over) as a product of two operands that the factors fall into by their axes,
 * times the factors that lack `over`; EPI_NO_NODE, and no error, where they do not fall into two. */
typedef struct epi_factor {
    int node;
    bool divides;
} epi_factor;
int epi_graph_sum_product(epi_graph *g, const epi_factor *factors, int count, const epi_axes *over);
/* The value with all of these axes: along those it lacked it is the same. */
int epi_graph_complete(epi_graph *g, int value, const epi_axes *axes);
/* Any of these but a constant, an input and a shift, by its operation; of splits and joins one half, or one join. */
int epi_graph_apply(epi_graph *g, epi_op op, const int *arg, const epi_axes *axes);
/* A node of another graph of the same dims once more, with these operands. */
int epi_graph_rebuild(epi_graph *g, const epi_node *n, const int *arg);
/* The type of values that has all numbers of both. */
static inline epi_dtype epi_dtype_wider(epi_dtype a, epi_dtype b) {
    return a == b ? a : EPI_F32;
}
/* A value that takes the place of `n` is stored at least as the text says of that one; of another name of an
 * axis the value itself is. */
void epi_graph_store_as(epi_graph *g, int value, const epi_node *n);
/* The same, and it has that one's name if it has none. Returns the value. */
int epi_graph_stand_for(epi_graph *g, int value, const epi_node *n);

/* The same value with its axes in this order, which a call's result has from what the callee declares. It is
 * a node only as long as the graph is built; epi_graph_value returns the value itself. */
enum { EPI_OP_ORDER = EPI_OP_COUNT };
int epi_graph_ordered(epi_graph *g, int node, const epi_axes *axes);
int epi_graph_value(const epi_graph *g, int node);

/* How many operands it has, and is one of them marked? */
static inline int epi_node_operands(const epi_node *n) {
    return 3 - (n->arg[0] == EPI_NO_NODE) - (n->arg[1] == EPI_NO_NODE) - (n->arg[2] == EPI_NO_NODE);
}
bool epi_node_takes(const epi_node *n, const bool *marked);
/* The tensor of this name, or -1. */
int epi_graph_find_tensor(const epi_graph *g, const char *name);

/* Axes that have one size, pair by pair: what renames take and what they give, then new names and what they
 * are names of. *at begins with 0; false: that were all. */
bool epi_graph_next_pair(const epi_graph *g, int *at, epi_axis *from, epi_axis *to);
/* What a value is under other names of axes: the value itself, through all renames; and these axes of it with
 * those names. */
int epi_graph_renamed(const epi_graph *g, int node);
epi_axes epi_graph_rename_axes(const epi_graph *g, int node, const epi_axes *axes);

/* Holds an assigned value against the axes its output declares. */
void epi_graph_check_output(epi_graph *g, int tensor);

/* Records an error at g->place, unless there is one already, and returns EPI_NO_NODE; is there one, or no
 * more memory? */
int epi_graph_fail(epi_graph *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool epi_graph_failed(epi_graph *g);

/* Once all outputs are assigned: leaves out what only orders axes, and finds which nodes are live, and who
 * uses each of them. */
void epi_graph_finish(epi_graph *g);

/* The uses of a node in the order of its users, outputs last. A node that takes it twice is there twice. */
typedef struct epi_use_list {
    const epi_use *at;
    int count;
} epi_use_list;
epi_use_list epi_graph_uses(const epi_graph *g, int node);
static inline epi_op epi_use_op(const epi_graph *g, epi_use use) { /* none where an output uses it */
    return use.node == EPI_NO_NODE ? EPI_OP_COUNT : g->nodes[use.node].op;
}

/* Some nodes; how they are copied, which fails without memory, and sorted. */
typedef struct epi_node_list {
    int *at, count;
} epi_node_list;
bool epi_list_copy(epi_arena *arena, const int *from, int count, epi_node_list *to);
void epi_list_sort(epi_node_list *list);

/* Nodes that are to be looked at, each once, and in which round each was last met: a list, not recursion, as
 * programs are long. False: no memory. */
typedef struct epi_visits {
    int *seen, *todo, count, round;
} epi_visits;
bool epi_visits_make(epi_arena *arena, int nodes, epi_visits *out);
/* Begins a round with this node; adds one, unless the round has met it; takes the last one that was added. */
void epi_visits_begin(epi_visits *v, int node);
void epi_visit(epi_visits *v, int node);
bool epi_visits_next(epi_visits *v, int *node);

/* "[T,F/2]" and "r[T]", for messages; the buffer is the caller's. */
typedef struct epi_label {
    char text[200];
} epi_label;
epi_label epi_axis_label(const epi_graph *g, epi_axis axis);
epi_label epi_axes_label(const epi_graph *g, const epi_axes *axes);
/* "T", or "[T,K]": what an index counts along. */
epi_label epi_along_label(const epi_graph *g, const epi_axes *along);
epi_label epi_node_label(const epi_graph *g, int node);
/* "silu(x @ w + b)": the operation that makes it, cut short with … where it is long. */
epi_label epi_node_expression(const epi_graph *g, int node);

/* The number that the text says, as 5 - 1, or, with sizes by dim of which some are known, 2*size(T); NaN: it is none. And
 * is an index such a number that names nothing along these axes? Says so. */
double epi_graph_number(const epi_graph *g, int node, const int64_t *sizes);
bool epi_graph_misses(const epi_graph *g, int index, const epi_axes *along, const int64_t *sizes,
                      epi_label *why);

/* The number of elements along an axis or of a shape, for dims of these sizes; -1 on overflow or where a
 * dim cannot be halved so often. */
int64_t epi_axis_size(epi_axis axis, const int64_t *sizes);
int64_t epi_axes_size(const epi_axes *axes, const int64_t *sizes);

#endif

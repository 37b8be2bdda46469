/* ops.h: the operations as an enumeration, with their properties from ops.def. */
#ifndef EPI_IR_OPS_H
#define EPI_IR_OPS_H

#include "base/base.h"

typedef enum epi_op {
#define EPI_MAP1(id, ...) EPI_OP_##id,
#define EPI_MAP2(id, ...) EPI_OP_##id,
#define EPI_MAP3(id, ...) EPI_OP_##id,
#define EPI_REDUCE(id, ...) EPI_OP_##id,
#define EPI_SPLIT(id, ...) EPI_OP_##id,
#define EPI_PRODUCT(id, ...) EPI_OP_##id,
#define EPI_LEAF(id, ...) EPI_OP_##id,
#define EPI_MOVE(id, ...) EPI_OP_##id,
#define EPI_SORT(id, ...) EPI_OP_##id,
#define EPI_SCAN(id, ...) EPI_OP_##id,
#define EPI_VIEW(id, ...) EPI_OP_##id,
#define EPI_RANDOM(id, ...) EPI_OP_##id,
#define EPI_SHIFT(id, ...) EPI_OP_##id,
#include "ir/ops.def"
    EPI_OP_COUNT
} epi_op;

typedef enum epi_op_class {
    EPI_CLASS_MAP,
    EPI_CLASS_REDUCE,
    EPI_CLASS_SPLIT,
    EPI_CLASS_PRODUCT,
    EPI_CLASS_LEAF,
    EPI_CLASS_MOVE,
    EPI_CLASS_SORT,
    EPI_CLASS_SCAN,
    EPI_CLASS_VIEW,
    EPI_CLASS_RANDOM,
    EPI_CLASS_SHIFT,
} epi_op_class;

/* How tightly an operator binds; an operand that binds less stands in parentheses. */
typedef enum epi_level {
    EPI_LEVEL_WORD, /* it is written as a call, not as an operator */
    EPI_LEVEL_OR,
    EPI_LEVEL_AND,
    EPI_LEVEL_NOT,
    EPI_LEVEL_COMPARE,
    EPI_LEVEL_SUM,
    EPI_LEVEL_TERM,
    EPI_LEVEL_UNARY,
    EPI_LEVEL_POWER,
    EPI_LEVEL_ATOM
} epi_level;

/* What becomes of the axes that an operation is said to be over. Along all others every one is elementwise.
 */
typedef enum epi_along {
    EPI_ELEMENTWISE,
    EPI_FOLDS, /* elements along them are taken together */
    EPI_MOVES, /* elements have other places, or the axis another name */
    EPI_WHOLE, /* each element follows from its place among all, or from all */
} epi_along;

/* Which elements of its operands an element follows from. */
typedef enum epi_from {
    EPI_FROM_ANY,  /* those that an index names, or a whole line of them */
    EPI_FROM_ONE,  /* of each operand one, at its own place: whoever has them has it, too */
    EPI_FROM_ALL,  /* all along the axes that the operation is over, which the result lacks */
    EPI_FROM_NONE, /* none: it follows from its place alone */
} epi_from;

typedef struct epi_op_row {
    const char *id;   /* "SILU" */
    const char *text; /* "silu", "+" */
    epi_op_class cls;
    int arity;
    epi_along along;
    epi_from from;
    const char *cuda; /* a map as an expression, a reduction as the name of its fold */
    const char *derivative[3];
    /* traits: what a row does not say is not so */
    bool again;  /* though it reads elements elsewhere: computed once more it is cheap, and the same */
    bool places; /* its elements are positions: integers, whatever its operand is */
    epi_level level;
    bool expensive;     /* a function that takes many instructions */
    bool exact;         /* the same bits wherever it is carried out; but for `converts` it does not round */
    bool converts;      /* to the nearest number of */
    epi_dtype type;     /* this storage type */
    bool signs;         /* its elements are -1, 0 and 1 */
    bool positive;      /* whatever its operands are */
    bool divides;       /* and never so small that it is 0 */
    bool positive_of;   /* positive where all operands are */
    unsigned elements;  /* bits by operand: its elements are elements of these or their negatives */
    bool adds;          /* reductions: a sum, perhaps scaled, */
    bool averages;      /* and one that is divided by the number of elements; */
    bool two;           /* what is folded so far is two numbers */
    bool joins;         /* splits: it puts halves together; */
    bool pairs, second; /* halves are even and odd elements; it is about the second half */
    bool back;          /* scans: from the end to the beginning */
} epi_op_row;

extern const epi_op_row epi_ops[EPI_OP_COUNT + 1]; /* the last is no operation: nothing is true of it */

/* What passes and backends ask. An operation of a new class gets the safe answer: no, and that it reads elements elsewhere. */
static inline bool epi_op_is_map(epi_op op) {
    return epi_ops[op].cls == EPI_CLASS_MAP;
}
static inline bool epi_op_is_leaf(epi_op op) { /* input, constant, size or position? */
    return epi_ops[op].cls == EPI_CLASS_LEAF;
}
static inline bool epi_op_is_view(epi_op op) { /* the same elements under other names? */
    return epi_ops[op].cls == EPI_CLASS_VIEW;
}
static inline bool epi_op_is_product(epi_op op) {
    return epi_ops[op].cls == EPI_CLASS_PRODUCT;
}
static inline bool epi_op_reduces(epi_op op) {
    return epi_ops[op].cls == EPI_CLASS_REDUCE;
}
static inline bool epi_op_scans(epi_op op) { /* is it a linear recurrence? */
    return epi_ops[op].cls == EPI_CLASS_SCAN;
}
static inline bool epi_op_has_halves(epi_op op) { /* does it take an axis apart, or put it together? */
    return epi_ops[op].cls == EPI_CLASS_SPLIT;
}
static inline bool epi_op_by_index(epi_op op) { /* is operand 1 an index? */
    return epi_ops[op].cls == EPI_CLASS_MOVE;
}
static inline bool epi_op_draws(epi_op op) { /* random numbers? */
    return epi_ops[op].cls == EPI_CLASS_RANDOM;
}
static inline bool epi_op_gives_places(epi_op op) {
    return epi_ops[op].places;
}
/* Can whoever has its operands compute it: a tile of a product, a row, whoever loads it? */
static inline bool epi_op_on_tile(epi_op op) {
    return epi_ops[op].from == EPI_FROM_ONE && !epi_op_is_view(op);
}
static inline bool epi_op_folds(epi_op op) {
    return epi_ops[op].from == EPI_FROM_ALL;
}
static inline bool epi_op_reads_elsewhere(epi_op op) {
    return epi_ops[op].from == EPI_FROM_ANY;
}
/* Is it cheap to compute once more, rather than to store? */
static inline bool epi_op_again(epi_op op) {
    return epi_ops[op].again || epi_ops[op].from == EPI_FROM_ONE || epi_ops[op].from == EPI_FROM_NONE;
}

/* Is it a + b or a - b; a*b or a/b; a comparison? */
static inline bool epi_op_has_terms(epi_op op) {
    return epi_ops[op].level == EPI_LEVEL_SUM;
}
static inline bool epi_op_has_factors(epi_op op) {
    return op == EPI_OP_MUL || op == EPI_OP_DIV;
}
static inline bool epi_op_compares(epi_op op) {
    return epi_ops[op].level == EPI_LEVEL_COMPARE;
}

/* How an operator is written: a power is x**2, though the operation is called pow. */
static inline const char *epi_op_symbol(epi_op op) {
    return op == EPI_OP_POW ? "**" : epi_ops[op].text;
}

/* What the second operand of an operator must bind at least. All go from left to right but powers, and those
 * take a minus: 2**-x. */
static inline epi_level epi_level_second(epi_level level) {
    return level == EPI_LEVEL_POWER ? EPI_LEVEL_UNARY : level + 1;
}

/* Is it a constant, a size or a position, which is written wherever it is wanted? */
static inline bool epi_op_is_free(epi_op op) {
    return op == EPI_OP_CONST || op == EPI_OP_SIZE || op == EPI_OP_INDEX;
}

/* Of a split: even elements or the first half, by how it takes the axis apart. */
static inline epi_op epi_op_split(epi_op op) {
    return epi_ops[op].pairs ? EPI_OP_EVEN : EPI_OP_LOW;
}

/* Is it one half of an axis? */
static inline bool epi_op_is_half(epi_op op) {
    return epi_op_has_halves(op) && !epi_ops[op].joins;
}

/* Which operand the value is that a call writes at this place. The index is operand 1 of every operation that
 * has one; update(x, v, i, R) is written with it behind v. */
static inline int epi_op_written(epi_op op, int place) {
    return op == EPI_OP_UPDATE && place ? 3 - place : place;
}

/* Does a store in this type of a byte make the conversion by itself? What has 4 bits is stored in a byte, which has more numbers. */
static inline bool epi_op_is_store(epi_op op, epi_dtype type) {
    bool narrower = op == EPI_OP_I4 || op == EPI_OP_U4;
    return epi_ops[op].converts && epi_ops[op].type == type && epi_dtype_size(type) == 1 && !narrower;
}

/* Does it add up what an index sends to each place? */
static inline bool epi_op_scatters(epi_op op) {
    return op == EPI_OP_SCATTER || op == EPI_OP_SCATTER_BATCH;
}

/* Does it look through all of an index for the order of its elements? */
static inline bool epi_op_orders(epi_op op) {
    return op == EPI_OP_ARGSORT || op == EPI_OP_RANK || op == EPI_OP_OFFSETS;
}

/* Which operand is an index, whose elements count along the axes that the operation names; -1: none. */
static inline int epi_op_index(epi_op op) {
    return epi_op_by_index(op) ? 1 : epi_op_orders(op) ? 0 : -1;
}

/* Must every number of the operand be exact: is it an index, or are its numbers places? */
static inline bool epi_op_wants_exact(epi_op op, int operand) {
    return operand == epi_op_index(op) || op == EPI_OP_SEGMENTS;
}

/* What a map computes, in f64. */
double epi_op_reference(epi_op op, double a, double b, double c);
/* What a reduction starts from, and how it takes in one more element, in f64. */
double epi_op_identity(epi_op op);
double epi_op_combine(epi_op op, double a, double b);

#endif

/* ops.h: the operations as an enumeration and what is true of each, from ops.def. */
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
#define EPI_VIEW(id, ...) EPI_OP_##id,
#define EPI_RANDOM(id, ...) EPI_OP_##id,
#include "ir/ops.def"
#undef EPI_MAP1
#undef EPI_MAP2
#undef EPI_MAP3
#undef EPI_REDUCE
#undef EPI_SPLIT
#undef EPI_PRODUCT
#undef EPI_LEAF
#undef EPI_MOVE
#undef EPI_VIEW
#undef EPI_RANDOM
    EPI_OP_COUNT
} epi_op;

typedef enum epi_op_class {
    EPI_CLASS_MAP,
    EPI_CLASS_REDUCE,
    EPI_CLASS_SPLIT,
    EPI_CLASS_PRODUCT,
    EPI_CLASS_LEAF,
    EPI_CLASS_MOVE,
    EPI_CLASS_VIEW,
    EPI_CLASS_RANDOM,
} epi_op_class;

typedef struct epi_op_row {
    const char *id;   /* "SILU" */
    const char *text; /* "silu", "+" */
    epi_op_class cls;
    int arity;
    const char *cuda;
    const char *derivative[3];
} epi_op_row;

extern const epi_op_row epi_ops[EPI_OP_COUNT];

/* What a map computes, in f64. */
double epi_op_reference(epi_op op, double a, double b, double c);
/* What a reduction starts from, and how it takes in one more element, in f64. */
double epi_op_identity(epi_op op);
double epi_op_combine(epi_op op, double a, double b);

#endif

/* dtype.h: the properties of each storage type, from its row in dtype.def. Arithmetic is f32 for every
 * storage type, so a row describes a type relative to f32. */
#ifndef EPI_BASE_DTYPE_H
#define EPI_BASE_DTYPE_H

#include <stdbool.h>

#include "epilog.h"

typedef struct epi_dtype_row {
    const char *id;   /* "BF16": its name in device texts */
    const char *name; /* "bf16" */
    const char *file; /* its name in a safetensors file */
    int map_type;     /* its number among the types of the driver's tensor maps */
    size_t size;      /* bytes */
    double unit;     /* what rounding a number of f32 to it may cost, relative; 0: it has all digits of f32 */
    bool whole;      /* integers: nothing is derived by a tensor of them, */
    bool integer;    /* and they are indices; what f32 makes of one is not exact */
    bool in_f32;     /* f32 has all its numbers */
    bool operand;    /* products take it, and values are stored in it where the text says so */
    bool full_range; /* it has numbers as large as f32's */
} epi_dtype_row;

/* "f32, bf16, …": all of them, for messages. */
const char *epi_dtype_names(void);
/* The type that others call so, as f16 is half and float16; NULL: nobody does. */
const char *epi_dtype_meant(const char *name);
/* The row of a type; of no type, one of which nothing is true. */
const epi_dtype_row *epi_dtype_at(epi_dtype type);

static inline bool epi_dtype_is_integer(epi_dtype type) {
    return epi_dtype_at(type)->integer;
}
static inline bool epi_dtype_is_whole(epi_dtype type) {
    return epi_dtype_at(type)->whole;
}
/* Has f32 all its numbers? */
static inline bool epi_dtype_in_f32(epi_dtype type) {
    return epi_dtype_at(type)->in_f32;
}
/* Is it a type of a product's operands, and of values? */
static inline bool epi_dtype_is_operand(epi_dtype type) {
    return epi_dtype_at(type)->operand;
}
/* Is it one of these with fewer digits than f32? Tensor cores and their like take such operands. */
static inline bool epi_dtype_is_narrow(epi_dtype type) {
    return epi_dtype_at(type)->operand && epi_dtype_at(type)->unit > 0;
}

/* Is every number of the one type one of the other, too? Those of 8 bits are in all that products take. */
static inline bool epi_dtype_holds(epi_dtype type, epi_dtype other) {
    return type == other || type == EPI_F64 || (type == EPI_F32 && epi_dtype_in_f32(other)) ||
           (epi_dtype_is_operand(type) && epi_dtype_at(other)->size == 1);
}

#endif

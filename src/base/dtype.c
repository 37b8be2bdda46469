/* dtype.c: the table of storage types. */
#include "base/dtype.h"

#include <string.h>

static const epi_dtype_row rows[EPI_DTYPE_COUNT + 1] = {
    [EPI_F32] = {"f32", 4, .in_f32 = true, .full_range = true},
    [EPI_BF16] = {"bf16", 2, .unit = 0x1p-8, .in_f32 = true, .full_range = true},
    [EPI_F16] = {"f16", 2, .unit = 0x1p-11, .in_f32 = true},
    [EPI_I32] = {"i32", 4, .integer = true},
    [EPI_F64] = {"f64", 8, .full_range = true},
    [EPI_I64] = {"i64", 8, .integer = true},
    [EPI_DTYPE_COUNT] = {.name = "unknown"},
};

const epi_dtype_row *epi_dtype_at(epi_dtype type) {
    return &rows[(unsigned)type < EPI_DTYPE_COUNT ? type : EPI_DTYPE_COUNT];
}

const char *epi_dtype_name(epi_dtype type) {
    return epi_dtype_at(type)->name;
}

size_t epi_dtype_size(epi_dtype type) {
    return epi_dtype_at(type)->size;
}

epi_dtype epi_dtype_find(const char *name) {
    int i = 0;
    while (i < EPI_DTYPE_COUNT && (!name || strcmp(rows[i].name, name) != 0))
        i++;
    return (epi_dtype)i;
}

/* dtype.c: the table of storage types, from dtype.def. */
#include "base/dtype.h"

#include <string.h>

static const epi_dtype_row rows[EPI_DTYPE_COUNT + 1] = {
#define IS(...) __VA_ARGS__
#define EPI_TYPE(type, text, bytes, is, in_file, map, ...) \
    [EPI_##type] = {.id = #type, .name = text, .size = bytes, .file = in_file, .map_type = map, is},
#include "base/dtype.def"
    [EPI_DTYPE_COUNT] = {.name = "unknown"},
};

const epi_dtype_row *epi_dtype_at(epi_dtype type) {
    return &rows[(unsigned)type < EPI_DTYPE_COUNT ? type : EPI_DTYPE_COUNT];
}

const char *epi_dtype_name(epi_dtype type) {
    return epi_dtype_at(type)->name;
}

const char *epi_dtype_names(void) {
    static const char names[] = ""
#define EPI_TYPE(type, text, ...) ", " text
#include "base/dtype.def"
        ;
    return names + 2;
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

/* convert.c: elements of one type become elements of another. */
#include <string.h>

#include "cpu/strips.h"

enum { BLOCK = 1024 }; /* elements at a time */

epi_status epi_convert(void *to, epi_dtype to_type, const void *from, epi_dtype from_type, int64_t count) {
    size_t to_size = epi_dtype_size(to_type), from_size = epi_dtype_size(from_type);
    if (!to_size || !from_size || count < 0 || (count && (!to || !from)))
        return EPI_ERR_ARGUMENT;
    if (to_type == from_type) {
        if (count)
            memcpy(to, from, (size_t)count * to_size);
        return EPI_OK;
    }
    const epi_strips *strips = epi_strips_choose();
    _Alignas(8) unsigned char elements[BLOCK * 8]; /* where strips may take them for aligned */
    float values[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = epi_min64(BLOCK, count - at);
        memcpy(elements, (const char *)from + (size_t)at * from_size, (size_t)n * from_size);
        strips->load(values, elements, from_type, 1, n);
        strips->store(elements, to_type, 1, values, n);
        memcpy((char *)to + (size_t)at * to_size, elements, (size_t)n * to_size);
    }
    return EPI_OK;
}

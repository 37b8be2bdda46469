/* convert.c: converts elements from one type to another. */
#include <string.h>

#include "cpu/rows/strips.h"

enum { BLOCK = 1024 }; /* elements at a time */

/* One integer as another: what does not fit becomes the nearest that does. */
static void convert_integers(void *to, epi_dtype to_type, const void *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int32_t word;
        int64_t wide;
        if (to_type == EPI_I64) {
            memcpy(&word, (const char *)from + i * 4, 4);
            wide = word;
            memcpy((char *)to + i * 8, &wide, 8);
        } else {
            memcpy(&wide, (const char *)from + i * 8, 8);
            word = wide > INT32_MAX ? INT32_MAX : wide < INT32_MIN ? INT32_MIN : (int32_t)wide;
            memcpy((char *)to + i * 4, &word, 4);
        }
    }
}

epi_status epi_convert(void *to, epi_dtype to_type, const void *from, epi_dtype from_type, int64_t count) {
    size_t to_size = epi_dtype_size(to_type), from_size = epi_dtype_size(from_type);
    if (!to_size || !from_size || count < 0 || (count && (!to || !from)))
        return EPI_ERR_ARGUMENT;
    if (to_type == from_type) {
        if (count)
            memcpy(to, from, (size_t)count * to_size);
        return EPI_OK;
    }
    if (epi_dtype_is_integer(to_type) && epi_dtype_is_integer(from_type)) {
        convert_integers(to, to_type, from, count);
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

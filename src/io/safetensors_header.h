/* safetensors_header.h: the header of a safetensors file, parsed into lists. */
#ifndef EPI_IO_SAFETENSORS_HEADER_H
#define EPI_IO_SAFETENSORS_HEADER_H

#include "base/base.h"
#include "epilog_io.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors files are little-endian, and so must the host be: bytes are used as they lie"
#endif

enum { EPI_SAFETENSORS_MAX_HEADER = 100000000 }; /* as the official implementation has it */

/* What the header says. Each tensor is right by itself: its bytes are those
 * of its shape and type. Whether names repeat and where the bytes lie is not looked at; `data` is
 * not set. */
typedef struct epi_safetensors_header {
    epi_safetensor *tensors;
    epi_safetensors_pair *pairs;
    int count, capacity, pair_count, pair_capacity;
} epi_safetensors_header;

/* Reads the JSON of a header. Everything in *out lives in the arena. */
epi_status epi_safetensors_header_read(const char *text, size_t size, const char *file, epi_arena *arena,
                                       epi_safetensors_header *out, epi_error *err);

/* What the format calls an Epilog type: "BF16"; NULL for what is none. */
const char *epi_safetensors_type_name(epi_dtype type);

#endif

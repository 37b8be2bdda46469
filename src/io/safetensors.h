/* safetensors.h: files of named tensors in the safetensors format, read and written.
 *
 * A file is an 8-byte little-endian length, a JSON header of that length, and the bytes of the
 * tensors one after the other. A file that breaks a rule of the format is refused whole; what
 * opens can be trusted: every tensor lies within the file, has the bytes its shape asks for and
 * a name of its own. Messages about the header's JSON count bytes from the start of the file.
 */
#ifndef EPI_IO_SAFETENSORS_H
#define EPI_IO_SAFETENSORS_H

#include "base/base.h"

typedef struct epi_safetensor {
    const char *name;
    const char *type_name; /* as in the file: "BF16", "I64" */
    epi_dtype type;        /* EPI_DTYPE_COUNT where Epilog has no such type */
    int rank;              /* as in the file: may exceed EPI_MAX_AXES */
    const int64_t *shape;
    const void *data; /* in the file's own memory: aligned only as its place in the file happens to be */
    size_t bytes;
    size_t begin; /* where its bytes begin in the data part */
} epi_safetensor;

/* An entry of the header's "__metadata__". */
typedef struct epi_safetensors_pair {
    const char *key, *value;
} epi_safetensors_pair;

typedef struct epi_safetensors epi_safetensors;

/* Maps the file at `path`. Whoever cuts the file short while it is open takes the bytes away
 * from under the reader; replacing it by rename, as epi_safetensors_write does, is safe. */
epi_status epi_safetensors_open(const char *path, epi_safetensors **out, epi_error *err);
/* The same for a file that lies in memory, which must outlive the result; `name` is for messages. */
epi_status epi_safetensors_parse(const void *bytes, size_t size, const char *name, epi_safetensors **out,
                                 epi_error *err);
void epi_safetensors_close(epi_safetensors *file); /* NULL is allowed */

/* Tensors in the order of their bytes. */
size_t epi_safetensors_count(const epi_safetensors *file);
const epi_safetensor *epi_safetensors_at(const epi_safetensors *file, size_t index);
/* The tensor called `name`, or NULL. */
const epi_safetensor *epi_safetensors_find(const epi_safetensors *file, const char *name);
/* The same for use: fails where it is missing or of a type that Epilog does not have. */
epi_status epi_safetensors_get(const epi_safetensors *file, const char *name, const epi_safetensor **out,
                               epi_error *err);

/* Metadata in the order of the keys; *count of them. */
const epi_safetensors_pair *epi_safetensors_metadata(const epi_safetensors *file, size_t *count);

/* Writes the tensors in the given order: of each, `name`, `type`, `rank`, `shape` and `data` are
 * read. The file appears under `path` whole or not at all, as base/file.h has it; on any failure what
 * was there stays. */
epi_status epi_safetensors_write(const char *path, const epi_safetensor *tensors, size_t count,
                                 const epi_safetensors_pair *metadata, size_t pair_count, epi_error *err);

#endif

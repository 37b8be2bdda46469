/* safetensors.c: an open safetensors file: its tensors by place and by name, over mapped bytes. */
#define _POSIX_C_SOURCE 200809L
#include "epilog_io.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "io/map.h"
#include "io/safetensors_header.h"

struct epi_safetensors {
    epi_arena arena;  /* everything below but the map */
    const char *name; /* of the file, for messages */
    size_t count, pair_count;
    const epi_safetensor **by_place, **by_name;
    epi_safetensors_pair *pairs; /* by key */
    void *map;                   /* where open mapped the file */
    size_t map_size;
};

/* ---- the tensors together ------------------------------------------------------------------ */

static int compare_places(const void *a, const void *b) {
    const epi_safetensor *x = *(const epi_safetensor *const *)a, *y = *(const epi_safetensor *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const epi_safetensor *const *)a)->name, (*(const epi_safetensor *const *)b)->name);
}

static int compare_keys(const void *a, const void *b) {
    return strcmp(((const epi_safetensors_pair *)a)->key, ((const epi_safetensors_pair *)b)->key);
}

/* Makes the sorted tables, and refuses names that are not unique. */
static epi_status index_names(epi_safetensors *f, const epi_safetensors_header *header, epi_error *err) {
    f->count = (size_t)header->count;
    f->pair_count = (size_t)header->pair_count;
    f->pairs = header->pairs;
    f->by_place = epi_arena_alloc(&f->arena, (f->count + 1) * sizeof *f->by_place);
    f->by_name = epi_arena_alloc(&f->arena, (f->count + 1) * sizeof *f->by_name);
    if (f->arena.failed)
        return epi_fail(err, EPI_ERR_MEMORY, "%.300s: not enough memory for its index", f->name);
    for (size_t i = 0; i < f->count; i++)
        f->by_place[i] = f->by_name[i] = &header->tensors[i];
    qsort(f->by_place, f->count, sizeof *f->by_place, compare_places);
    qsort(f->by_name, f->count, sizeof *f->by_name, compare_names);
    if (f->pair_count)
        qsort(f->pairs, f->pair_count, sizeof *f->pairs, compare_keys);
    for (size_t i = 1; i < f->count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return epi_fail(err, EPI_ERR_FILE, "%.300s: two tensors are called \"%.100s\"", f->name,
                            f->by_name[i]->name);
    for (size_t i = 1; i < f->pair_count; i++)
        if (strcmp(f->pairs[i - 1].key, f->pairs[i].key) == 0)
            return epi_fail(err, EPI_ERR_FILE, "%.300s: the metadata has the key \"%.100s\" twice", f->name,
                            f->pairs[i].key);
    return EPI_OK;
}

/* The tensors must tile the data part: no hole, no overlap, nothing left over. */
static epi_status check_places(const epi_safetensors *f, size_t size, epi_error *err) {
    size_t end = 0;
    for (size_t i = 0; i < f->count; i++) {
        const epi_safetensor *t = f->by_place[i];
        if (t->begin > end)
            return epi_fail(err, EPI_ERR_FILE,
                            "%.300s: data bytes %zu to %zu, before tensor \"%.100s\", belong to no tensor",
                            f->name, end, t->begin, t->name);
        if (t->begin < end)
            return epi_fail(err, EPI_ERR_FILE, "%.300s: tensors \"%.100s\" and \"%.100s\" overlap", f->name,
                            f->by_place[i - 1]->name, t->name);
        end = t->begin + t->bytes;
    }
    if (end > size)
        return epi_fail(err, EPI_ERR_FILE, "%.300s: truncated: the tensors need %zu bytes, the file has %zu",
                        f->name, end, size);
    if (end < size)
        return epi_fail(err, EPI_ERR_FILE,
                        "%.300s: data bytes %zu to %zu, after the last tensor, belong to no tensor", f->name,
                        end, size);
    return EPI_OK;
}

static epi_status parse(epi_safetensors *f, const char *bytes, size_t size, epi_error *err) {
    uint64_t length;
    if (size < sizeof length)
        return epi_fail(err, EPI_ERR_FILE,
                        "%.300s: not a safetensors file: %zu bytes, too few for the header's length", f->name,
                        size);
    memcpy(&length, bytes, sizeof length);
    bytes += sizeof length;
    size -= sizeof length;
    if (length > EPI_SAFETENSORS_MAX_HEADER)
        return epi_fail(err, EPI_ERR_FILE,
                        "%.300s: not a safetensors file: a header of %" PRIu64 " bytes, over the limit of %d",
                        f->name, length, EPI_SAFETENSORS_MAX_HEADER);
    if (length > size)
        return epi_fail(err, EPI_ERR_FILE, "%.300s: truncated: a header of %" PRIu64 " bytes, but %zu follow",
                        f->name, length, size);
    epi_safetensors_header header;
    epi_status status = epi_safetensors_header_read(bytes, (size_t)length, f->name, &f->arena, &header, err);
    if (status == EPI_OK)
        status = index_names(f, &header, err);
    if (status == EPI_OK)
        status = check_places(f, size - (size_t)length, err);
    if (status == EPI_OK)
        for (int i = 0; i < header.count; i++)
            header.tensors[i].data = bytes + length + header.tensors[i].begin;
    return status;
}

epi_status epi_safetensors_parse(const void *bytes, size_t size, const char *name, epi_safetensors **out,
                                 epi_error *err) {
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!out || !name || (size && !bytes))
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_safetensors_parse: bytes, name and out may not be NULL");
    epi_safetensors *file = calloc(1, sizeof *file);
    if (file)
        file->name = epi_arena_text(&file->arena, name, strlen(name));
    epi_status status = file && file->name
                            ? parse(file, bytes, size, err)
                            : epi_fail(err, EPI_ERR_MEMORY, "%.300s: not enough memory to open it", name);
    if (status == EPI_OK)
        *out = file;
    else
        epi_safetensors_close(file);
    return status;
}

/* ---- files --------------------------------------------------------------------------------- */

epi_status epi_safetensors_open(const char *path, epi_safetensors **out, epi_error *err) {
    void *map = NULL;
    size_t size = 0;
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!out || !path)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_safetensors_open: path and out may not be NULL");
    EPI_TRY(epi_map_file(path, &map, &size, err));
    epi_status status = epi_safetensors_parse(map, size, path, out, err);
    if (status == EPI_OK) {
        (*out)->map = map;
        (*out)->map_size = size;
    } else
        epi_unmap_file(map, size);
    return status;
}

void epi_safetensors_close(epi_safetensors *file) {
    if (!file)
        return;
    epi_unmap_file(file->map, file->map_size);
    epi_arena_free(&file->arena);
    free(file);
}

/* ---- what is in it ------------------------------------------------------------------------- */

size_t epi_safetensors_count(const epi_safetensors *file) {
    return file ? file->count : 0;
}

const epi_safetensor *epi_safetensors_at(const epi_safetensors *file, size_t index) {
    return file && index < file->count ? file->by_place[index] : NULL;
}

const epi_safetensor *epi_safetensors_find(const epi_safetensors *file, const char *name) {
    if (!file || !name)
        return NULL;
    epi_safetensor wanted = {.name = name};
    const epi_safetensor *key = &wanted;
    const epi_safetensor **found =
        bsearch(&key, file->by_name, file->count, sizeof *file->by_name, compare_names);
    return found ? *found : NULL;
}

epi_status epi_safetensors_get(const epi_safetensors *file, const char *name, const epi_safetensor **out,
                               epi_error *err) {
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!file || !name || !out)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_safetensors_get: file, name and out may not be NULL");
    static const char types[] = ""
#define EPI_TYPE(type, text, bytes, is, file, ...) ", " file
#include "base/dtype.def"
        ;
    const epi_safetensor *t = epi_safetensors_find(file, name);
    if (!t)
        return epi_fail(err, EPI_ERR_FILE, "%.300s: has no tensor \"%.100s\"", file->name, name);
    if (t->type == EPI_DTYPE_COUNT)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "%.300s: tensor \"%.100s\" is of dtype %s; Epilog reads %s",
                        file->name, name, t->type_name, types + 2);
    *out = t;
    return EPI_OK;
}

const epi_safetensors_pair *epi_safetensors_metadata(const epi_safetensors *file, size_t *count) {
    if (count)
        *count = file ? file->pair_count : 0;
    return file ? file->pairs : NULL;
}

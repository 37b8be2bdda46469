/* safetensors_write.c: writing a safetensors file. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "io/json.h"
#include "io/safetensors_header.h"

/* One write: what goes in, and where it stands. */
typedef struct writer {
    const char *path;
    const epi_safetensor *tensors;
    size_t count;
    const epi_safetensors_pair *pairs;
    size_t pair_count;
    epi_error *err;
} writer;

/* ---- the header ---------------------------------------------------------------------------- */

static bool is_utf8(const char *s) {
    for (size_t left = strlen(s), n; left > 0; s += n, left -= n)
        if ((n = epi_utf8_length(s, left)) == 0)
            return false;
    return true;
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names must be UTF-8 and unique. Sorts them. */
static epi_status check_names(const writer *w, const char **names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!names[i])
            return epi_fail(w->err, EPI_ERR_ARGUMENT, "%.300s: name %zu is NULL", w->path, i);
    for (size_t i = 0; i < count; i++)
        if (!is_utf8(names[i]))
            return epi_fail(w->err, EPI_ERR_ARGUMENT, "%.300s: the name \"%.100s\" is not UTF-8", w->path,
                            names[i]);
    qsort(names, count, sizeof *names, compare_texts);
    for (size_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return epi_fail(w->err, EPI_ERR_ARGUMENT, "%.300s: the name \"%.100s\" is given twice", w->path,
                            names[i]);
    return EPI_OK;
}

static epi_status check_all_names(const writer *w) {
    const char **names = calloc(w->count + w->pair_count + 1, sizeof *names);
    if (!names)
        return epi_fail(w->err, EPI_ERR_MEMORY, "%.300s: not enough memory to write it", w->path);
    for (size_t i = 0; i < w->count; i++)
        names[i] = w->tensors[i].name;
    names[w->count] = "__metadata__"; /* which no tensor can be called */
    epi_status status = check_names(w, names, w->count + 1);
    for (size_t i = 0; i < w->pair_count; i++)
        names[i] = w->pairs[i].key;
    if (status == EPI_OK)
        status = check_names(w, names, w->pair_count);
    free(names);
    for (size_t i = 0; i < w->pair_count && status == EPI_OK; i++)
        if (!w->pairs[i].value || !is_utf8(w->pairs[i].value))
            status = epi_fail(w->err, EPI_ERR_ARGUMENT, "%.300s: the metadata of \"%.100s\" is not UTF-8",
                              w->path, w->pairs[i].key);
    return status;
}

/* The bytes of a tensor by its shape and type. */
static epi_status tensor_bytes(const writer *w, const epi_safetensor *t, int64_t *bytes) {
    if (!epi_safetensors_type_name(t->type))
        return epi_fail(w->err, EPI_ERR_ARGUMENT,
                        "%.300s: tensor \"%.100s\" has a type that cannot be written", w->path, t->name);
    *bytes = (int64_t)epi_dtype_size(t->type);
    if (t->rank < 0 || (t->rank && !t->shape))
        return epi_fail(w->err, EPI_ERR_ARGUMENT, "%.300s: tensor \"%.100s\" has no shape", w->path, t->name);
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 0 || !epi_mul_size(*bytes, t->shape[i], bytes))
            return epi_fail(w->err, EPI_ERR_ARGUMENT, "%.300s: tensor \"%.100s\" has an impossible shape",
                            w->path, t->name);
    if (*bytes > 0 && !t->data)
        return epi_fail(w->err, EPI_ERR_ARGUMENT, "%.300s: tensor \"%.100s\" has no data", w->path, t->name);
    return EPI_OK;
}

static epi_status put_tensor(const writer *w, epi_json_writer *json, const epi_safetensor *t, int64_t *end) {
    int64_t bytes, begin = *end;
    EPI_TRY(tensor_bytes(w, t, &bytes));
    if (!epi_add_size(begin, bytes, end))
        return epi_fail(w->err, EPI_ERR_ARGUMENT, "%.300s: the file would be too large", w->path);
    epi_json_put_key(json, t->name);
    epi_json_put_open(json, '{');
    epi_json_put_key(json, "dtype");
    epi_json_put_text(json, epi_safetensors_type_name(t->type));
    epi_json_put_key(json, "shape");
    epi_json_put_open(json, '[');
    for (int i = 0; i < t->rank; i++)
        epi_json_put_integer(json, t->shape[i]);
    epi_json_put_close(json, ']');
    epi_json_put_key(json, "data_offsets");
    epi_json_put_open(json, '[');
    epi_json_put_integer(json, begin);
    epi_json_put_integer(json, *end);
    epi_json_put_close(json, ']');
    epi_json_put_close(json, '}');
    return EPI_OK;
}

static epi_status put_header(const writer *w, epi_text *header) {
    epi_status status = check_all_names(w);
    epi_json_writer json = {.text = header};
    int64_t end = 0;
    epi_json_put_open(&json, '{');
    if (status == EPI_OK && w->pair_count > 0) {
        epi_json_put_key(&json, "__metadata__");
        epi_json_put_open(&json, '{');
        for (size_t i = 0; i < w->pair_count; i++) {
            epi_json_put_key(&json, w->pairs[i].key);
            epi_json_put_text(&json, w->pairs[i].value);
        }
        epi_json_put_close(&json, '}');
    }
    for (size_t i = 0; i < w->count && status == EPI_OK; i++)
        status = put_tensor(w, &json, &w->tensors[i], &end);
    epi_json_put_close(&json, '}');
    if (status != EPI_OK)
        return status;
    /* Spaces up to a multiple of 8, so that the data part is aligned. */
    epi_text_add(header, "%*s", (int)(-header->length % 8), "");
    if (header->failed)
        return epi_fail(w->err, EPI_ERR_MEMORY, "%.300s: not enough memory for its header", w->path);
    if (header->length > EPI_SAFETENSORS_MAX_HEADER)
        return epi_fail(w->err, EPI_ERR_ARGUMENT,
                        "%.300s: the header would have %zu bytes, over the limit of %d", w->path,
                        header->length, EPI_SAFETENSORS_MAX_HEADER);
    return EPI_OK;
}

/* ---- the file ------------------------------------------------------------------------------ */

static epi_status write_file(const writer *w, const epi_text *header) {
    uint64_t length = header->length;
    epi_file f;
    epi_file_open(&f, w->path);
    epi_file_write(&f, &length, sizeof length);
    epi_file_write(&f, header->data, header->length);
    for (size_t i = 0; i < w->count; i++) {
        int64_t bytes = 0;
        tensor_bytes(w, &w->tensors[i], &bytes);
        epi_file_write(&f, w->tensors[i].data, (size_t)bytes);
    }
    return epi_file_status(w->path, epi_file_close(&f), w->err);
}

epi_status epi_safetensors_write(const char *path, const epi_safetensor *tensors, size_t count,
                                 const epi_safetensors_pair *metadata, size_t pair_count, epi_error *err) {
    epi_error_clear(err);
    if (!path || (count && !tensors) || (pair_count && !metadata))
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_safetensors_write: path, tensors and metadata may not be NULL");
    writer w = {path, tensors, count, metadata, pair_count, err};
    epi_text header = {0};
    epi_status status = put_header(&w, &header);
    if (status == EPI_OK)
        status = write_file(&w, &header);
    epi_text_free(&header);
    return status;
}

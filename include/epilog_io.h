/* epilog_io.h: reads and writes files of tensors in the safetensors format, and runs tokenizers.
 *
 * It is part of the same library as epilog.h and follows the same rules. Nothing in epilog.h depends on it.
 * A tensor that was read has a name, a type, a shape and bytes. epi_convert of epilog.h converts them to
 * another type (bf16 to f32, say). examples/files.c uses all of it.
 *
 *     epi_safetensors *file;       epi_safetensors_open("model.safetensors", &file, &err);
 *     const epi_safetensor *w;     epi_safetensors_get(file, "w", &w, &err);
 *     epi_convert(mine, EPI_F32, w->data, w->type, count);
 *     epi_safetensors_close(file);
 *
 * A file is an 8-byte little-endian length, a JSON header of that length, and the bytes of the tensors one
 * after the other. A file that breaks a rule of the format does not open. You can trust a file that opens:
 * every tensor is inside the file, has as many bytes as its shape needs, and has a unique name. Messages
 * about the JSON of the header count bytes from the start of the file.
 */
#ifndef EPILOG_IO_H
#define EPILOG_IO_H

#include "epilog.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct epi_safetensor {
    const char *name;
    const char *type_name; /* as in the file: "BF16", "I64" */
    epi_dtype type;        /* EPI_DTYPE_COUNT if Epilog has no such type */
    int rank;              /* as in the file: may exceed EPI_MAX_AXES */
    const int64_t *shape;
    const void *data; /* points into the mapped file, so it may be unaligned: copy it before you pass it to
                         a kernel */
    size_t bytes;
    size_t begin; /* where its bytes begin in the data part */
} epi_safetensor;

/* An entry of the header's "__metadata__". */
typedef struct epi_safetensors_pair {
    const char *key, *value;
} epi_safetensors_pair;

typedef struct epi_safetensors epi_safetensors;

/* Maps the file at `path` into memory. Do not truncate the file while it is open: reading the missing bytes
 * raises SIGBUS. It is safe to replace it by rename, as epi_safetensors_write does. */
EPI_API epi_status epi_safetensors_open(const char *path, epi_safetensors **out, epi_error *err);
/* The same for a file in memory. The memory must outlive the result. `name` is for messages. */
EPI_API epi_status epi_safetensors_parse(const void *bytes, size_t size, const char *name,
                                         epi_safetensors **out, epi_error *err);
EPI_API void epi_safetensors_close(epi_safetensors *file); /* NULL is allowed */

/* Tensors, in the order of their bytes in the file; NULL past the last. */
EPI_API size_t epi_safetensors_count(const epi_safetensors *file);
EPI_API const epi_safetensor *epi_safetensors_at(const epi_safetensors *file, size_t index);
/* The tensor called `name`, or NULL. */
EPI_API const epi_safetensor *epi_safetensors_find(const epi_safetensors *file, const char *name);
/* The same, with an error if it is missing or has a type that Epilog does not have. */
EPI_API epi_status epi_safetensors_get(const epi_safetensors *file, const char *name,
                                       const epi_safetensor **out, epi_error *err);

/* The *count entries of the metadata, in the order of their keys. */
EPI_API const epi_safetensors_pair *epi_safetensors_metadata(const epi_safetensors *file, size_t *count);

/* Writes the tensors in the given order. It reads `name`, `type`, `rank`, `shape` and `data` of each. The
 * file appears under `path` whole or not at all: it is written to a temporary file in the same folder, which
 * is then renamed. If that fails, the old file stays. If `path` is a device or a pipe, it writes into it. */
EPI_API epi_status epi_safetensors_write(const char *path, const epi_safetensor *tensors, size_t count,
                                         const epi_safetensors_pair *metadata, size_t pair_count,
                                         epi_error *err);

/* A tokenizer converts text to token ids and back, as the tokenizer.json of a Hugging Face model declares.
 * It is byte-level BPE with the regular expressions of GPT-2, SmolLM2, Llama 3 or Qwen 2. A file with
 * anything else (another model, a normalizer, another regular expression) fails with EPI_ERR_FILE, and the
 * message names it.
 *
 *     epi_tokenizer *t;            epi_tokenizer_open("tokenizer.json", &t, &err);
 *     size_t count;                epi_tokenizer_encode(t, text, strlen(text), ids, room, &count, &err);
 *     size_t size;                 epi_tokenizer_decode(t, ids, count, true, to, room, &size, &err);
 *     epi_tokenizer_close(t);
 *
 * Several threads may use one tokenizer. */
typedef struct epi_tokenizer epi_tokenizer;

EPI_API epi_status epi_tokenizer_open(const char *path, epi_tokenizer **out, epi_error *err);
/* The same for a file in memory. The memory is not needed afterwards. `name` is for messages. */
EPI_API epi_status epi_tokenizer_parse(const char *text, size_t size, const char *name, epi_tokenizer **out,
                                       epi_error *err);
EPI_API void epi_tokenizer_close(epi_tokenizer *tokenizer); /* NULL is allowed */

/* One more than the largest token id. */
EPI_API int32_t epi_tokenizer_count(const epi_tokenizer *tokenizer);
/* The id of a token that was added to the vocabulary, such as "<|im_end|>", or -1. */
EPI_API int32_t epi_tokenizer_added(const epi_tokenizer *tokenizer, const char *text);
/* The token ids of a text, with those that the file adds around every text. *count is their number; at most
 * `room` of them are written. The text must be UTF-8 (EPI_ERR_ARGUMENT). Added tokens in it are recognised.
 */
EPI_API epi_status epi_tokenizer_encode(const epi_tokenizer *tokenizer, const char *text, size_t size,
                                        int32_t *ids, size_t room, size_t *count, epi_error *err);
/* The bytes of the text of these tokens. They may end in the middle of a character. *size is their number;
 * at most `room` of them are written, without a NUL at the end. `skip_special` omits tokens that the file
 * calls special. */
EPI_API epi_status epi_tokenizer_decode(const epi_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                        int skip_special, char *to, size_t room, size_t *size,
                                        epi_error *err);

#ifdef __cplusplus
}
#endif
#endif

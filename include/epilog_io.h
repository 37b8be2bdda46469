/* epilog_io.h: files of tensors, read and written in the safetensors format; and tokenizers, below.
 *
 * It is part of the same library as epilog.h, whose rules hold here too, and nothing of epilog.h needs it. A
 * tensor that was read has a name, a type, a shape and bytes: epi_convert of epilog.h makes another type of
 * them (f32 of bf16 and f16, and back). examples/files.c uses all of it.
 *
 *     epi_safetensors *file;       epi_safetensors_open("model.safetensors", &file, &err);
 *     const epi_safetensor *w;     epi_safetensors_get(file, "w", &w, &err);
 *     epi_convert(mine, EPI_F32, w->data, w->type, count);
 *     epi_safetensors_close(file);
 *
 * A file is an 8-byte little-endian length, a JSON header of that length, and the bytes of the tensors one
 * after the other. A file that breaks a rule of the format is refused whole; what opens can be trusted: every
 * tensor lies within the file, has the bytes its shape asks for and a name of its own. Messages about the
 * header's JSON count bytes from the start of the file.
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
    epi_dtype type;        /* EPI_DTYPE_COUNT where Epilog has no such type */
    int rank;              /* as in the file: may exceed EPI_MAX_AXES */
    const int64_t *shape;
    const void *data; /* in the file's own memory: aligned only as its place in the file happens to be, so
                         copy what a kernel is to take */
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
EPI_API epi_status epi_safetensors_open(const char *path, epi_safetensors **out, epi_error *err);
/* The same for a file that lies in memory, which must outlive the result; `name` is for messages. */
EPI_API epi_status epi_safetensors_parse(const void *bytes, size_t size, const char *name,
                                         epi_safetensors **out, epi_error *err);
EPI_API void epi_safetensors_close(epi_safetensors *file); /* NULL is allowed */

/* Tensors in the order of their bytes; NULL past the last. */
EPI_API size_t epi_safetensors_count(const epi_safetensors *file);
EPI_API const epi_safetensor *epi_safetensors_at(const epi_safetensors *file, size_t index);
/* The tensor called `name`, or NULL. */
EPI_API const epi_safetensor *epi_safetensors_find(const epi_safetensors *file, const char *name);
/* The same for use: fails where it is missing or of a type that Epilog does not have. */
EPI_API epi_status epi_safetensors_get(const epi_safetensors *file, const char *name,
                                       const epi_safetensor **out, epi_error *err);

/* Metadata in the order of the keys; *count of them. */
EPI_API const epi_safetensors_pair *epi_safetensors_metadata(const epi_safetensors *file, size_t *count);

/* Writes the tensors in the given order: of each, `name`, `type`, `rank`, `shape` and `data` are
 * read. The file appears under `path` whole or not at all: it is written beside its place and renamed, and on
 * any failure what was there stays. A device or a pipe is written into. */
EPI_API epi_status epi_safetensors_write(const char *path, const epi_safetensor *tensors, size_t count,
                                         const epi_safetensors_pair *metadata, size_t pair_count,
                                         epi_error *err);

/* A tokenizer: texts become numbers of tokens and back, as tokenizer.json of a Hugging Face model says, which is
 * byte-level BPE with the words of GPT-2, SmolLM2, Llama 3 or Qwen 2. What the file says beyond what is understood
 * here (another model, a normalizer, another regular expression) is refused by its name: EPI_ERR_FILE.
 *
 *     epi_tokenizer *t;            epi_tokenizer_open("tokenizer.json", &t, &err);
 *     size_t count;                epi_tokenizer_encode(t, text, strlen(text), ids, room, &count, &err);
 *     size_t size;                 epi_tokenizer_decode(t, ids, count, true, to, room, &size, &err);
 *     epi_tokenizer_close(t);
 *
 * Several threads may use one. */
typedef struct epi_tokenizer epi_tokenizer;

EPI_API epi_status epi_tokenizer_open(const char *path, epi_tokenizer **out, epi_error *err);
/* The same for a file that lies in memory, which is not needed afterwards; `name` is for messages. */
EPI_API epi_status epi_tokenizer_parse(const char *text, size_t size, const char *name, epi_tokenizer **out,
                                       epi_error *err);
EPI_API void epi_tokenizer_close(epi_tokenizer *tokenizer); /* NULL is allowed */

/* One more than the largest number of a token. */
EPI_API int32_t epi_tokenizer_count(const epi_tokenizer *tokenizer);
/* The number of a token that is added to the vocabulary, such as "<|im_end|>", or -1. */
EPI_API int32_t epi_tokenizer_added(const epi_tokenizer *tokenizer, const char *text);
/* The text's tokens, with those that the file puts around every text. *count: how many there are, of which so
 * many are written as there is room. The text must be UTF-8 (EPI_ERR_ARGUMENT). Added tokens in it are found. */
EPI_API epi_status epi_tokenizer_encode(const epi_tokenizer *tokenizer, const char *text, size_t size,
                                        int32_t *ids, size_t room, size_t *count, epi_error *err);
/* The bytes of tokens, of which the last may be half a character. *size: how many there are, of which so many
 * are written as there is room, with no zero behind them. `skip_special` leaves out what the file calls special. */
EPI_API epi_status epi_tokenizer_decode(const epi_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                        int skip_special, char *to, size_t room, size_t *size,
                                        epi_error *err);

#ifdef __cplusplus
}
#endif
#endif

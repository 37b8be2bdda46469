/* record.h: a result file as records of fields, and what tables and plots are made of. */
#ifndef EPI_BENCH_RECORD_H
#define EPI_BENCH_RECORD_H

#include "base/base.h"

/* A value of the file; objects and arrays are in the paths of what they hold. */
typedef struct field {
    struct field *next;
    const char *path, *text; /* text: of a string, else NULL */
    double number;           /* of a number or a truth value, else NaN */
} field;

typedef struct record {
    struct record *next;
    field *first, *last;
} record;

typedef struct results {
    epi_arena arena;
    record head; /* what is said of the whole */
    record *rows, *last;
} results;

/* The whole file, ended by a zero; NULL, with errno, where it cannot be read. The caller frees it. */
char *read_file(const char *path, size_t *size);
/* False, with a word on stderr, where the text is no JSON. The caller frees the arena either way. */
bool read_results(const char *path, const char *json, size_t size, results *out);

/* A field by its path, as "hot/ratio"; where there is none, one with an empty path, an empty text and NaN. */
const field *find(const record *r, const char *path);
double number(const record *r, const char *path);
const char *text(const record *r, const char *path);
/* Whether a row is of this section, "" in files of `epilog bench`. Rows for a configuration that was forced
 * are in no table. */
bool belongs(const record *r, const char *section);

/* Ratios: their geometric mean, the least and the most of them. NaN counts as nothing. */
typedef struct spread {
    double logs, least, most;
    int count;
} spread;
void spread_add(spread *s, double ratio);
double spread_mean(const spread *s); /* NaN where there was none */

/* Writes the text to the file unless it stands there already; with `only_check`, says whether it does. */
bool settle_file(const char *path, const epi_text *text, bool only_check);

/* A cell and the bar after it. What is not there is left empty. */
void put_cell(epi_text *out, const char *format, double value);
void put_shape(epi_text *out, double m, double n, double k);
void put_rule(epi_text *out, int columns); /* below the titles */

/* table_instead.c: what one would use instead of Epilog, from the result files that it names; `names` is
 * "first" for some of it, "lost" for what Epilog loses, or empty. */
bool put_instead(epi_text *out, const char *names);
/* table_models.c: the tables of files that torch_llama.py, torch_decode.py, torch_moe.py, torch_backend.py and
 * torch_attention.py's section `decode` wrote. */
void put_training(const results *res, const char *path, epi_text *out);
void put_kernels(const results *res, const char *path, epi_text *out);
void put_sides(const results *res, const char *path, epi_text *out);
void put_decoding(const results *res, const char *path, epi_text *out);
void put_cached(const results *res, const char *path, epi_text *out);
/* table_time.c: the tables of files that torch_time.py, torch_recurrence.py and cpu_time.py wrote. */
void put_along(const results *res, const char *path, epi_text *out);
void put_recurrence(const results *res, const char *path, epi_text *out);
void put_cpu_time(const results *res, const char *path, epi_text *out);
/* table_blocks.c: the tables of files that torch_blocks.py, torch_layers.py, torch_attention.py and
 * few_rows.py of bench/ wrote. */
/* The line above a table of a run beside PyTorch: on what, how, when. */
void put_torch_head(const results *res, const char *path, const char *how, epi_text *out);
void put_blocks(const results *res, const char *path, epi_text *out);
void put_layers(const results *res, const char *path, epi_text *out);
void put_attention(const results *res, const char *path, epi_text *out);
void put_mma(const results *res, const char *path, epi_text *out);
void put_few(const results *res, const char *path, epi_text *out);
/* table_gpu.c: the tables of a file that bench/vs_torch.py wrote; `names` of them, or all where it is empty.
 */
bool put_gpu(const results *res, const char *path, const char *names, epi_text *out);

#endif

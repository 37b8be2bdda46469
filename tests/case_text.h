/* case_text.h: cases as text: a row of a table is its name as well. For what looks at kernels of GPUs (test_emulate.c, test_cuda.c).
 *
 *     "tests/groups:down T=300,K=2,F=136,D=261,E=8 bf16 exact sm90_128x128_c1_d x6"
 *
 * is the program `down` of tests/groups.epi (others are in the folder of programs) with these sizes, in this type and
 * contract, by this configuration, for six multiprocessors. */
#ifndef EPI_TESTS_CASE_TEXT_H
#define EPI_TESTS_CASE_TEXT_H

#include "cases.h"
#include "moves.h"
#include "ran.h"
#include "shapes.h"

static const char *programs;
static epi_context *ctx;

/* ---- programs with sizes: they stay until the end ---- */

typedef struct held {
    loaded l;
    test_case from;
    char words[240]; /* file, program and sizes */
    char config[64];
} held;

enum { MOST_HELD = 8192, MOST_MODULES = 512 };
static held *all_held[MOST_HELD];
static epi_module *modules[MOST_MODULES];
static char module_files[MOST_MODULES][64];
static int held_count, module_count;

/* A file that is read once, the text of moves.h, or a text that is given. */
static inline epi_module *module_of(const char *file, const char *text) {
    char path[1024];
    size_t length = 0;
    epi_error err = {0};
    epi_module *m = NULL;
    for (int i = 0; i < module_count && !text; i++)
        if (!strcmp(module_files[i], file))
            return modules[i];
    snprintf(path, sizeof path, "%s/%s.epi", programs, file);
    char *own = text ? strdup(text) : !strcmp(file, "moves") ? strdup(moves_text) : read_whole(path, &length);
    if (!own || module_count == MOST_MODULES ||
        epi_module_parse(ctx, own, strlen(own), path, &m, &err) != EPI_OK)
        check(false, "%s:%d: %s", path, err.line, err.message);
    free(own);
    if (!m)
        return NULL;
    snprintf(module_files[module_count], sizeof module_files[0], "%s", file);
    return modules[module_count++] = m;
}

/* A program with sizes, those of dims that it lacks left out; NULL, and reported, where there is none. Of a text that
 * is given it is the first. */
static inline const loaded *program_with(const char *file, const char *text, const char *program,
                                         const char *dims) {
    held *h = held_count < MOST_HELD ? calloc(1, sizeof *h) : NULL;
    if (!h) {
        check(false, "memory for programs");
        return NULL;
    }
    all_held[held_count++] = h;
    snprintf(h->words, sizeof h->words, "%s%c%s%c%s", file, 0, program, 0, dims);
    h->from.file = h->words;
    h->from.program = h->words + strlen(file) + 1;
    h->from.dims = h->from.program + strlen(program) + 1;
    h->l.from = &h->from;
    h->l.module = module_of(file, text);
    h->l.program = !h->l.module ? NULL
                   : text       ? epi_module_program(h->l.module, 0)
                                : epi_module_find(h->l.module, program);
    if (!h->l.program) {
        check(false, "%s:%s is there", file, program);
        return NULL;
    }
    h->l.dim_count = program_dims(h->l.program, dims, h->l.dims, h->l.names);
    return &h->l;
}

/* The same program with other sizes, `from` in the text of its own put for `to`. */
static inline const loaded *with_size(const loaded *l, const char *from, const char *to) {
    char dims[200] = "";
    for (const char *c = l->from->dims; *c;) {
        bool here = !strncmp(c, from, strlen(from));
        snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%.*s", here ? (int)strlen(to) : 1,
                 here ? to : c);
        c += here ? strlen(from) : 1;
    }
    return program_with(l->from->file, NULL, l->from->program, dims);
}

/* A case of the common table, read once. */
static inline const loaded *case_of(int i) {
    static const loaded *known[CASES];
    if (!known[i] && (known[i] = program_with(cases[i].file, NULL, cases[i].program, cases[i].dims)))
        all_held[held_count - 1]->from.flags = cases[i].flags;
    return known[i];
}

/* A program of rows with so many of so many columns. */
static inline const loaded *rows_of(const row_program *r, int64_t rows, int64_t columns) {
    char dims[80];
    if (r->rows)
        snprintf(dims, sizeof dims, "%s=%ld,%s=%ld%s", r->rows, (long)rows, r->columns,
                 (long)(columns / r->part), r->others);
    else
        snprintf(dims, sizeof dims, "%s=%ld", r->columns, (long)(rows * columns));
    return program_with(r->file, NULL, r->program, dims);
}

static inline int64_t volume(const loaded *l) {
    int64_t v = 1;
    for (int i = 0; l && i < l->dim_count; i++)
        v *= l->dims[i].size;
    return v;
}

static inline void free_programs(void) {
    while (held_count)
        free(all_held[--held_count]);
    while (module_count)
        epi_module_free(modules[--module_count]);
}

/* ---- how it is compiled ---- */

typedef struct variant {
    epi_dtype type;
    epi_path path;
    int capability;
    const char *config; /* NULL: the model's choice */
    bool exact;
    int multiprocessors; /* 0: two, so that a block has more than one tile to make */
} variant;

/* What a configuration is for, unless a row says it. */
static inline int capability_of(const char *config) {
    bool older = strstr(config, "_mma_") || !strncmp(config, "sm80", 4) || !strncmp(config, "any", 3);
    return older ? 80 : 90;
}

/* Reads a row; words that mean nothing here are left in `more`. NULL, and reported, where it is wrong. */
static inline const loaded *read_row(const char *row, variant *v, char more[80]) {
    char file[64], program[64], dims[160], words[200];
    int begin = 0;
    more[0] = 0;
    *v = (variant){EPI_BF16, EPI_PATH_FUSED, 0, NULL, false, 0};
    if (sscanf(row, "%63[^:]:%63s %159s%n", file, program, dims, &begin) != 3) {
        check(false, "a row: %s", row);
        return NULL;
    }
    char where[70];
    snprintf(where, sizeof where, "%s%s", strncmp(file, "tests/", 6) ? "" : "../", file);
    const loaded *l = program_with(where, NULL, program, dims);
    char *config = held_count ? all_held[held_count - 1]->config : NULL;
    snprintf(words, sizeof words, "%s", row + begin);
    for (char *w = strtok(words, " "); w && l; w = strtok(NULL, " ")) {
        if (!strcmp(w, "bf16") || !strcmp(w, "f16") || !strcmp(w, "f32"))
            v->type = *w == 'b' ? EPI_BF16 : w[1] == '1' ? EPI_F16 : EPI_F32;
        else if (!strcmp(w, "exact"))
            v->exact = true;
        else if (*w == 'x')
            v->multiprocessors = atoi(w + 1);
        else if (strchr(w, '_') && !strchr(w, '='))
            v->config = strcpy(config, w);
        else if (!strncmp(w, "sm", 2))
            v->capability = atoi(w + 2);
        else
            snprintf(more + strlen(more), 80 - strlen(more), "%s ", w);
    }
    if (!v->capability)
        v->capability = v->config ? capability_of(v->config) : 90;
    return l;
}

/* Calls a function with each row of a table, as it is read. */
static inline void for_rows(const char *const *rows,
                            void (*add)(const loaded *l, variant v, const char *more)) {
    for (; *rows; rows++) {
        variant v;
        char more[80];
        const loaded *l = read_row(*rows, &v, more);
        if (l)
            add(l, v, more);
    }
}

/* The name of a case: is it drawn? */
static inline bool wants(const char *table, const loaded *l, variant v, const char *how) {
    const char *file = strrchr(l->from->file, '/');
    return wanted("%s %s:%s %s %s %s %s sm%d %s%s", table, file ? file + 1 : l->from->file, l->from->program,
                  l->from->dims, epi_dtype_name(v.type), v.path == EPI_PATH_FUSED ? "fused" : "unfused",
                  v.exact ? "exact" : "packed", v.capability, v.config ? v.config : "chosen", how);
}

#endif

/* forms.h: of many texts, a few that together have everything the many have.
 *
 * The forms of a text are its mainloop; the functions that were written into it for the program: calls, with
 * their types (load<F32>, tma_store, swizzled<128>, f_silu); what its macros choose in a mainloop (HALF is F16,
 * A_MN is 1, FOLDS are more than 3); and whatever else a test names. Texts are chosen one by one, each time the
 * one that adds most forms for what it costs, until none adds any. */
#ifndef EPI_TESTS_FORMS_H
#define EPI_TESTS_FORMS_H

#include <ctype.h>

#include "cuda/cuda.h"
#include "harness.h"

typedef struct forms {
    uint64_t *all; /* hashes, each once */
    int count, room;
} forms;

static inline bool forms_have(const forms *f, uint64_t form) {
    for (int i = 0; i < f->count; i++)
        if (f->all[i] == form)
            return true;
    return false;
}

static inline void forms_add(forms *f, const char *kind, const char *name, size_t length) {
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *c = kind; *c; c++)
        h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    h = (h ^ ' ') * 0x100000001b3u;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)name[i]) * 0x100000001b3u;
    if (forms_have(f, h))
        return;
    if (f->count == f->room) {
        f->room = 2 * f->room + 64;
        f->all = realloc(f->all, (size_t)f->room * sizeof *f->all);
        if (!f->all)
            abort();
    }
    f->all[f->count++] = h;
}

/* A call without the numbers that one program has and another has not: those of tensors (_3), and those in
 * angle brackets but the last (of fold_segment<Total, 25, 4> the 25). */
static inline void forms_add_call(forms *f, const char *kind, const char *call, size_t length) {
    char form[120];
    size_t n = 0;
    for (size_t i = 0; i < length && n < sizeof form; i++) {
        size_t digits = i;
        while (digits < length && isdigit((unsigned char)call[digits]))
            digits++;
        bool number = digits > i && i && (call[i - 1] == '_' || (call[i - 1] == ' ' && call[digits] == ','));
        if (number)
            i = digits - 1;
        else
            form[n++] = call[i];
    }
    forms_add(f, kind, form, n);
}

/* The calls in what was written for the program: a word, perhaps types in angle brackets, and a parenthesis.
 */
static inline void forms_add_calls(forms *f, const char *kind, const char *source) {
    const char *c = strstr(source, "written for this program");
    for (c = c ? c : source; *c;) {
        const char *end = c;
        while (isalnum((unsigned char)*end) || *end == '_')
            end++;
        const char *after = end;
        if (end > c && *end == '<' && end[1] != ' ' && end[1] != '<')
            after += strcspn(end, ">\n;");
        after += *after == '>';
        if (end > c && !isdigit((unsigned char)*c) && *after == '(')
            forms_add_call(f, kind, c, (size_t)(after - c));
        c = end > c ? end : c + 1;
    }
}

/* What the macros of a text are, each by itself: words as they are, small numbers, and that a number is larger. */
static inline void forms_add_macros(forms *f, const char *kind, const char *source) {
    static const char define[] = "#define ";
    for (const char *c = source; (c = strstr(c, define)); c += strcspn(c, "\n")) {
        c += sizeof define - 1;
        size_t name = strcspn(c, " (\n"), whole = strcspn(c, "\n");
        char *end;
        long value = c[name] == ' ' ? strtol(c + name, &end, 10) : 0;
        if (c[name] != ' ')
            continue;
        if (isspace((unsigned char)*end) && value > 3)
            whole = name;
        forms_add(f, kind, c, whole);
    }
}

/* How a product's sizes meet its tile: what is left over of rows, columns and depth, and more tiles than blocks. */
static inline void forms_add_shape(forms *f, const char *kind, const epi_launch *launch) {
    const epi_product_size *s = &launch->product.size;
    int64_t tile_m = launch->text.config.tile_m, tile_n = launch->text.config.tile_n;
    if (!tile_m || !tile_n)
        return;
    int64_t tiles = (s->m + tile_m - 1) / tile_m * ((s->n + tile_n - 1) / tile_n);
    char shape[64];
    int length = snprintf(shape, sizeof shape, "%d rows", s->m % tile_m != 0);
    forms_add(f, kind, shape, (size_t)length);
    length = snprintf(shape, sizeof shape, "%d columns", s->n % tile_n != 0);
    forms_add(f, kind, shape, (size_t)length);
    length = snprintf(shape, sizeof shape, "%d depth, %d", s->k % 64 != 0, s->k > 64);
    forms_add(f, kind, shape, (size_t)length);
    length = snprintf(shape, sizeof shape, "%d tiles, %d", tiles > launch->how.grid, tiles > 1);
    forms_add(f, kind, shape, (size_t)length);
}

/* A launch of its kind, and its calls. Products are told apart by mainloop and schedule (the letter that the
 * last word of a configuration's name begins with), attention by mainloop (its name up to the tile). Of the
 * shapes of rows each letter in a name is a form, and the number of blocks that share a row. */
typedef char launch_kind[64];

static inline const char *launch_name(const epi_launch *launch) {
    return launch->kind == EPI_KIND_GEMM ? epi_config_name(launch->choice) : launch->text.label;
}

static inline void forms_kind(const epi_launch *launch, launch_kind kind) {
    const char *name = launch_name(launch);
    bool attention = launch->kind == EPI_KIND_ATTENTION;
    if (launch->kind == EPI_KIND_GEMM)
        snprintf(kind, sizeof(launch_kind), "%.4s %c", name, strrchr(name, '_')[1]);
    else
        snprintf(kind, sizeof(launch_kind), "%.*s", attention ? (int)strcspn(name, "123456789") : 60,
                 attention ? name : launch->text.name);
}

static inline void forms_add_launch(forms *f, const epi_launch *launch, const char *arch, bool paired) {
    const epi_kernel_text *t = &launch->text;
    bool product = launch->kind == EPI_KIND_GEMM, attention = launch->kind == EPI_KIND_ATTENTION;
    launch_kind kind;
    char here[80];
    const char *name = launch_name(launch);
    forms_kind(launch, kind);
    snprintf(here, sizeof here, "%s %s", kind, arch);
    forms_add(f, here, name, 0);
    for (const char *c = name; !product && !attention && (c = strchr(c, '_')); c++)
        if (isalpha((unsigned char)c[1]))
            forms_add(f, here, c, c[1] == 'c' ? 3 : 2);
    forms_add_calls(f, paired ? kind : "", t->source.data);
}

/* To run: every kind on every architecture, with each of the calls. */
static inline void forms_add_to_run(forms *f, const epi_launch *launch) {
    forms_add_launch(f, launch, launch->text.arch, true);
}

/* A mainloop that a test runs in several configurations: with all that its macros choose, and of the shapes. */
static inline void forms_add_mainloop(forms *f, const epi_launch *launch) {
    launch_kind kind;
    forms_kind(launch, kind);
    forms_add_macros(f, kind, launch->text.source.data);
    forms_add_shape(f, kind, launch);
    forms_add(f, "", launch_name(launch), strlen(launch_name(launch)));
}

/* To compile for a GPU: every kind for Hopper and for another one, every architecture, and each of the calls
 * in some kind: that a kind has all that a call wants, one that runs has shown. */
static inline void forms_add_to_compile(forms *f, const epi_launch *launch) {
    const char *arch = launch->text.arch;
    forms_add(f, arch, "", 0);
    forms_add_launch(f, launch, !strcmp(arch, "sm_90a") ? arch : "another", false);
}

static inline void forms_free(forms *f) {
    free(f->all);
    *f = (forms){0};
}

/* ---- a few that have all ---- */

/* A form of some list, and how many of the chosen ones have it. */
typedef struct form_use {
    uint64_t form;
    int chosen;
} form_use;

static inline int compare_uses(const void *a, const void *b) {
    const form_use *x = a, *y = b;
    return (x->form > y->form) - (x->form < y->form);
}

/* All forms of the lists, each once, in order; `count` gets how many. */
static inline form_use *forms_all(const forms *lists, int lists_count, int *count) {
    size_t all = 0, n = 0;
    for (int i = 0; i < lists_count; i++)
        all += (size_t)lists[i].count;
    form_use *uses = malloc((all + 1) * sizeof *uses);
    if (!uses)
        abort();
    for (int i = 0; i < lists_count; i++)
        for (int k = 0; k < lists[i].count; k++)
            uses[n++] = (form_use){.form = lists[i].all[k]};
    qsort(uses, n, sizeof *uses, compare_uses);
    *count = 0;
    for (size_t i = 0; i < n; i++)
        if (!*count || uses[i].form != uses[*count - 1].form)
            uses[(*count)++] = uses[i];
    return uses;
}

/* Of a list, the forms that fewer than so many of the chosen ones have. */
static inline int forms_missing(const forms *f, form_use *uses, int count, int fewer) {
    int missing = 0;
    for (int k = 0; k < f->count; k++) {
        form_use key = {.form = f->all[k]},
                 *use = bsearch(&key, uses, (size_t)count, sizeof key, compare_uses);
        missing += use->chosen < fewer;
    }
    return missing;
}

static inline void forms_use(const forms *f, form_use *uses, int count, int add) {
    for (int k = 0; k < f->count; k++) {
        form_use key = {.form = f->all[k]},
                 *use = bsearch(&key, uses, (size_t)count, sizeof key, compare_uses);
        use->chosen += add;
    }
}

/* Chooses among those that `may` be taken, beside those that are; what all the others have, too, is given back, the
 * most expensive first. `cost` may be NULL, where all cost the same. */
static inline void forms_choose(const forms *lists, int count, const bool *may, const double *cost,
                                bool *chosen) {
    int forms_count;
    form_use *uses = forms_all(lists, count, &forms_count);
    bool *given = calloc((size_t)count + 1, 1);
    for (int i = 0; i < count; i++) {
        given[i] = chosen[i] || !may[i];
        if (chosen[i])
            forms_use(&lists[i], uses, forms_count, 1);
    }
    for (int best = 0; best >= 0;) {
        double most = 0;
        best = -1;
        for (int i = 0; i < count; i++) {
            double gain = may[i] && !chosen[i] ? forms_missing(&lists[i], uses, forms_count, 1) : 0;
            if (gain > most * (cost ? cost[i] : 1)) {
                best = i;
                most = gain / (cost ? cost[i] : 1);
            }
        }
        if (best >= 0) {
            chosen[best] = true;
            forms_use(&lists[best], uses, forms_count, 1);
        }
    }
    for (int worst = 0; worst >= 0;) {
        worst = -1;
        for (int i = 0; i < count; i++)
            if (!given[i] && chosen[i] && (worst < 0 || (cost && cost[i] > cost[worst])))
                worst = i;
        if (worst < 0)
            break;
        given[worst] = true;
        if (!forms_missing(&lists[worst], uses, forms_count, 2)) {
            chosen[worst] = false;
            forms_use(&lists[worst], uses, forms_count, -1);
        }
    }
    free(given);
    free(uses);
}

#endif

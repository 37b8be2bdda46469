/* forms.h: of many texts, a few that together have everything the many have.
 *
 * The forms of a text are its mainloop and the functions that were written into it for the program: calls,
 * with their types (load<F32>, tma_store, swizzled<128>, f_silu), and whatever else a test names, such as the
 * configuration. Texts are chosen one by one, each time the one that adds most forms, until none adds any. */
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

/* A launch of its kind, and its calls. Products are told apart by mainloop and schedule (the letter that the
 * last word of a configuration's name begins with), attention by mainloop (its name up to the tile). Of the
 * shapes of rows each letter in a name is a form, and the number of blocks that share a row. */
static inline void forms_add_launch(forms *f, const epi_launch *launch, const char *arch, bool paired) {
    const epi_kernel_text *t = &launch->text;
    bool product = launch->kind == EPI_LAUNCH_GEMM, attention = launch->kind == EPI_LAUNCH_ATTENTION;
    char kind[64], here[80];
    const char *name = product ? epi_config_name(launch->choice) : t->label;
    if (product)
        snprintf(kind, sizeof kind, "%.4s %c", name, strrchr(name, '_')[1]);
    else
        snprintf(kind, sizeof kind, "%.*s", attention ? (int)strcspn(name, "123456789") : 60,
                 attention ? name : t->name);
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

static inline void forms_strike(forms *f, const forms *known) {
    int kept = 0;
    for (int i = 0; i < f->count; i++)
        if (!forms_have(known, f->all[i]))
            f->all[kept++] = f->all[i];
    f->count = kept;
}

/* What one has is struck from all lists. */
static inline void forms_take(forms *lists, int count, int at) {
    forms taken = lists[at];
    lists[at] = (forms){0};
    for (int i = 0; i < count; i++)
        forms_strike(&lists[i], &taken);
    forms_free(&taken);
}

/* Chooses among those that `may` be taken. */
static inline void forms_choose(forms *lists, int count, const bool *may, bool *chosen) {
    for (;;) {
        int best = -1;
        for (int i = 0; i < count; i++)
            if (may[i] && lists[i].count > (best < 0 ? 0 : lists[best].count))
                best = i;
        if (best < 0)
            return;
        chosen[best] = true;
        forms_take(lists, count, best);
    }
}

#endif

/* test_plans.c: what plans come to, held against tests/plans.txt.
 *
 *     plans FILE            compares
 *     plans FILE --update   writes the file anew; what changed is for a reader of its diff to judge
 *
 * A line of the file that begins in the first column asks:
 *
 *     SOURCE PROGRAM DIMS [backward] [gradient] [written] [rows=AXES] [f32]
 *
 * SOURCE is a file of programs, or `layers:N`: then PROGRAM is a model of tests/layers.h with so many layers. PROGRAM may be * for all of a file, and DIMS may have axes that a
 * program does not. `backward` adds the two programs that forward and backward become, by all inputs without a
 * type, `gradient` the gradients as one program. `written` is without the algebra; rows=AXES names the rows,
 * as PyTorch does. Below it stand the returns, indented. Behaviour that must never change is no number of
 * this file, but a check of another test. */
#include "ran.h"

#include "layers.h"

enum { TARGETS = 3, LINE = 400 };

static epi_context *ctx;

static const struct target {
    const char *name;
    int device;
} targets[TARGETS] = {{"cpu", 0}, {"sm_80", -80}, {"sm_90", -90}};

/* What is asked for on a line. */
typedef struct question {
    char source[100], program[64], sizes[200], rows[32];
    bool backward, gradient;
    way how;
} question;

/* ---- what a plan comes to ---- */

static const char head[] = "parts kinds lnch  gemm rows attn recu pass  side vals    moved MB  between MB";

static void describe(const epi_kernel *k, char *out) {
    int count[EPI_KIND_COUNT] = {0}, beside = 0;
    epi_kernel_info info;
    epi_kernel_get_info(k, &info);
    for (int i = 0; i < info.parts; i++) {
        epi_part_info part = {.info = info};
        if (info.parts > 1)
            epi_kernel_part(k, i, &part);
        beside += info.parts > 1 && k->parts[i].concurrent;
        for (int c = 0; c < EPI_KIND_COUNT; c++)
            count[c] += !strcmp(part.info.mainloop, epi_kinds[c].name);
    }
    snprintf(out, LINE, "%5d %5d %4d  %4d %4d %4d %4d %4d  %4d %4d  %10.6g  %10.6g", info.parts, info.kernels,
             info.launches, count[0], count[1], count[2], count[3], count[4], beside, info.values,
             info.bytes_fused / 1e6, (double)info.value_bytes / 1e6);
}

static void plan_for(const epi_program *p, const question *q, const struct target *t, char *out) {
    way how = q->how;
    epi_kernel *k;
    epi_error err = {0};
    how.rows = q->rows;
    how.device = t->device;
    how.micro = t->device ? NULL : "plain"; /* the same on every machine */
    if (compile_as(p, q->sizes, how, &k, &err) == EPI_OK)
        describe(k, out);
    else
        snprintf(out, LINE, "%.300s", err.message);
    epi_kernel_free(k);
}

/* A line for each target; one for those that say the same. */
static void add_plans(const epi_program *p, const question *q, epi_text *out) {
    char line[TARGETS][LINE];
    for (int t = 0; t < TARGETS; t++)
        plan_for(p, q, &targets[t], line[t]);
    for (int t = 0; t < TARGETS; t++) {
        epi_text names = {0};
        int first = TARGETS;
        for (int u = TARGETS - 1; u >= 0; u--)
            first = strcmp(line[t], line[u]) ? first : u;
        for (int u = first; u < TARGETS; u++)
            if (!strcmp(line[t], line[u]))
                epi_text_add(&names, "%s%s", u > first ? "," : "", targets[u].name);
        if (first == t)
            epi_text_add(out, "    %-28s %-15s %s\n", epi_program_name(p), names.data, line[t]);
        epi_text_free(&names);
    }
}

static void add_derived(const epi_program *p, const question *q, deriver *how, epi_text *out) {
    static const char *wrt[1024];
    int count = number_inputs(p, false, wrt, 1024);
    epi_module *m = NULL;
    epi_error err = {0};
    if (how(p, wrt, count, &m, &err) != EPI_OK)
        epi_text_add(out, "    %-28s %s\n", epi_program_name(p), err.message);
    for (int i = 0; m && i < epi_module_count(m); i++)
        add_plans(epi_module_program(m, i), q, out);
    epi_module_free(m);
}

static void add_program(const epi_program *p, const question *q, epi_text *out) {
    add_plans(p, q, out);
    if (q->backward)
        add_derived(p, q, epi_program_grad_saved, out);
    if (q->gradient)
        add_derived(p, q, epi_program_grad, out);
}

/* ---- what is asked ---- */

/* A model of so many layers, by its name; the text is empty where there is none. */
static epi_text layers_text(const char *name, int count) {
    if (!strcmp(name, "llama_mlp"))
        return llama_layers(count);
    if (!strcmp(name, "llama_gradients"))
        return llama_gradients(count);
    for (size_t i = 0; i < sizeof model_layers / sizeof *model_layers; i++)
        if (!strcmp(model_layers[i].name, name))
            return stacked_layers(&model_layers[i], count);
    return (epi_text){0};
}

static void answer(const question *q, epi_text *out) {
    epi_module *m = NULL;
    int layers = 0, found = 0;
    if (sscanf(q->source, "layers:%d", &layers) == 1) {
        epi_text text = layers_text(q->program, layers);
        if (text.length)
            m = parsed(ctx, text.data);
        epi_text_free(&text);
    } else {
        m = parsed_file(ctx, q->source);
    }
    int count = m ? epi_module_count(m) : 0;
    for (int i = 0; i < count; i++) {
        const epi_program *p = epi_module_program(m, i);
        if (layers ? i == count - 1 : !strcmp(q->program, "*") || !strcmp(q->program, epi_program_name(p))) {
            add_program(p, q, out);
            found++;
        }
    }
    check(found, "%s %s: no such program", q->source, q->program);
    epi_module_free(m);
}

/* A line in words. */
static bool read_question(const char *line, question *q) {
    int at = 0;
    *q = (question){.how.type = EPI_BF16};
    if (sscanf(line, "%99s %63s %199s%n", q->source, q->program, q->sizes, &at) != 3)
        return false;
    for (char word[32]; sscanf(line + at, "%31s", word) == 1;) {
        at += (int)strspn(line + at, " ") + (int)strlen(word);
        if (!strcmp(word, "backward"))
            q->backward = true;
        else if (!strcmp(word, "gradient"))
            q->gradient = true;
        else if (!strcmp(word, "f32"))
            q->how.type = EPI_F32;
        else if (!strcmp(word, "written"))
            q->how.algebra = EPI_ALGEBRA_WRITTEN;
        else if (!strncmp(word, "rows=", 5))
            snprintf(q->rows, sizeof q->rows, "%s", word + 5);
        else
            return false;
    }
    return true;
}

/* ---- comparing ---- */

static const char *line_of(const char *text, char *out) {
    size_t n = strcspn(text, "\n");
    snprintf(out, LINE, "%.*s", (int)n, text);
    return text + n + (text[n] == '\n');
}

/* What was returned and what is, line by line. */
static void compare(const char *asked, const char *was, const char *is) {
    char old[LINE], new[LINE];
    while (*was || *is) {
        was = line_of(was, old);
        is = line_of(is, new);
        check(!strcmp(old, new), "%s\n       %-37s %s\n     - %s\n     + %s", asked, "", head,
              old + 4 * (*old == ' '), new + 4 * (*new == ' '));
    }
}

/* The file as it should be: its questions and comments as they are, and the returns of today, or where a question is
 * not wanted those of before. */
static void write_all(char *text, bool update, epi_text *out) {
    for (char *line = text, *end, *next; *line; line = next) {
        end = line + strcspn(line, "\n");
        next = end + (*end != 0);
        *end = 0;
        epi_text_add(out, "%s\n", line);
        if (!*line || *line == '#')
            continue;
        question q;
        epi_text now = {0};
        char *was = next, after;
        while (*next == ' ') {
            next += strcspn(next, "\n");
            next += *next != 0;
        }
        after = *next;
        *next = 0;
        if (!update && !wanted("%s", line))
            epi_text_add(out, "%s", was);
        else if (check(read_question(line, &q), "cannot be read: %s", line)) {
            answer(&q, &now);
            if (!update)
                compare(line, was, now.data ? now.data : "");
            epi_text_add(out, "%s", now.data ? now.data : "");
        }
        *next = after;
        epi_text_free(&now);
    }
}

int main(int argc, char **argv) {
    size_t length;
    epi_text out = {0};
    bool update = argc > 2;
    char *text = argc > 1 ? read_whole(argv[1], &length) : NULL;
    if (!check(text != NULL, "plans FILE [--update]") ||
        !check(epi_context_open(&ctx, NULL) == EPI_OK, "a context"))
        return finish();
    write_all(text, update, &out);
    no_case();
    if (update && !failed_count) {
        FILE *f = fopen(argv[1], "w");
        check(f && fwrite(out.data, 1, out.length, f) == out.length && !fclose(f), "%s is written", argv[1]);
    } else if (failed_count) {
        printf("if these plans are meant: make update-plans, and read the diff of %s\n", argv[1]);
    }
    free(text);
    epi_text_free(&out);
    epi_context_close(ctx);
    return finish();
}

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
#include "harness.h"
#include "layers.h"
#include "run/run.h"

enum { MAX_DIMS = 64, TARGETS = 3, LINE = 400 };

static epi_context *ctx;

static const struct target {
    const char *name;
    int device;
} targets[TARGETS] = {{"cpu", 0}, {"sm_80", -80}, {"sm_90", -90}};

/* What is asked for on a line. */
typedef struct question {
    char source[100], program[64], sizes[200], row_text[32];
    const char *rows[2];
    int row_count;
    bool backward, gradient;
    epi_options options;
} question;

/* ---- what a plan comes to ---- */

static const char head[] = "parts kinds lnch  gemm rows attn pass  side vals    moved MB  between MB";

static void describe(const epi_kernel *k, char *out) {
    static const char *const kinds[] = {"gemm", "rows", "attention", "pass"};
    int count[4] = {0}, beside = 0;
    epi_kernel_info info;
    epi_kernel_get_info(k, &info);
    for (int i = 0; i < info.parts; i++) {
        epi_part_info part = {.info = info};
        if (info.parts > 1)
            epi_kernel_part(k, i, &part);
        beside += info.parts > 1 && k->parts[i].concurrent;
        for (int c = 0; c < 4; c++)
            count[c] += !strcmp(part.info.mainloop, kinds[c]);
    }
    snprintf(out, LINE, "%5d %5d %4d  %4d %4d %4d %4d  %4d %4d  %10.6g  %10.6g", info.parts, info.kernels,
             info.launches, count[0], count[1], count[2], count[3], beside, info.values,
             info.bytes_fused / 1e6, (double)info.value_bytes / 1e6);
}

/* Of the sizes those of axes that the program has. */
static void bind_own(const epi_program *p, const question *q, epi_dim_binding *own, epi_options *o) {
    *o = q->options;
    o->dims = own;
    o->dim_count = 0;
    o->row_axis_count = 0;
    for (int d = 0; d < epi_program_dim_count(p); d++) {
        for (int i = 0; i < q->options.dim_count; i++)
            if (!strcmp(epi_program_dim(p, d), q->options.dims[i].name) && !epi_program_dim_size(p, d))
                own[o->dim_count++] = q->options.dims[i];
        for (int r = 0; r < q->row_count; r++)
            o->row_axis_count += !strcmp(epi_program_dim(p, d), q->rows[r]);
    }
    o->row_axes = o->row_axis_count ? q->rows : NULL;
}

static void plan_for(const epi_program *p, const question *q, const struct target *t, char *out) {
    epi_dim_binding own[MAX_DIMS];
    epi_options o;
    epi_kernel *k = NULL;
    epi_error err = {0};
    bind_own(p, q, own, &o);
    o.device = t->device;
    o.threads = t->device ? 0 : 2;
    o.micro = t->device ? NULL : "plain"; /* the same on every machine */
    if (epi_kernel_compile(p, &o, &k, &err) == EPI_OK)
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

typedef epi_status deriving(const epi_program *, const char *const *, int, epi_module **, epi_error *);

static void add_derived(const epi_program *p, const question *q, deriving *derive, epi_text *out) {
    static const char *wrt[1024];
    int count = number_inputs(p, false, wrt, 1024);
    epi_module *m = NULL;
    epi_error err = {0};
    if (derive(p, wrt, count, &m, &err) != EPI_OK)
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
    epi_error err = {0};
    int layers = 0, found = 0;
    if (sscanf(q->source, "layers:%d", &layers) == 1) {
        epi_text text = layers_text(q->program, layers);
        if (text.length)
            (void)epi_module_parse(ctx, text.data, text.length, q->source, &m, &err);
        epi_text_free(&text);
    } else {
        size_t length;
        char *text = read_whole(q->source, &length);
        if (text)
            (void)epi_module_parse(ctx, text, length, q->source, &m, &err);
        free(text);
    }
    int count = m ? epi_module_count(m) : 0;
    for (int i = 0; i < count; i++) {
        const epi_program *p = epi_module_program(m, i);
        if (layers ? i == count - 1 : !strcmp(q->program, "*") || !strcmp(q->program, epi_program_name(p))) {
            add_program(p, q, out);
            found++;
        }
    }
    check(found, "%s %s: no such program. %s", q->source, q->program, err.message);
    epi_module_free(m);
}

/* A line in words; `dims` and `store` are what its options point at. */
static bool read_question(const char *line, question *q, epi_dim_binding *dims, char (*store)[16]) {
    int at = 0;
    *q = (question){.options = EPI_OPTIONS(.dims = dims, .type = EPI_BF16)};
    if (sscanf(line, "%99s %63s %199s%n", q->source, q->program, q->sizes, &at) != 3)
        return false;
    q->options.dim_count = parse_dims(q->sizes, dims, store);
    for (char word[32]; sscanf(line + at, "%31s", word) == 1;) {
        at += (int)strspn(line + at, " ") + (int)strlen(word);
        if (!strcmp(word, "backward"))
            q->backward = true;
        else if (!strcmp(word, "gradient"))
            q->gradient = true;
        else if (!strcmp(word, "f32"))
            q->options.type = EPI_F32;
        else if (!strcmp(word, "written"))
            q->options.algebra = EPI_ALGEBRA_WRITTEN;
        else if (!strncmp(word, "rows=", 5)) {
            snprintf(q->row_text, sizeof q->row_text, "%s", word + 5);
            for (char *c = strtok(q->row_text, ","); c && q->row_count < 2; c = strtok(NULL, ","))
                q->rows[q->row_count++] = c;
        } else
            return false;
    }
    return true;
}

/* The file as it should be: its questions and comments as they are, and the returns of today. */
static void write_all(char *text, epi_text *out) {
    for (char *line = text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = 0;
        if (*line == ' ')
            continue;
        epi_text_add(out, "%s\n", line);
        static epi_dim_binding dims[MAX_DIMS];
        static char store[MAX_DIMS][16];
        question q;
        if (!*line || *line == '#')
            continue;
        if (check(read_question(line, &q, dims, store), "cannot be read: %s", line))
            answer(&q, out);
    }
}

/* ---- comparing ---- */

static const char *line_of(const char *text, char *out) {
    size_t n = strcspn(text, "\n");
    snprintf(out, LINE, "%.*s", (int)n, text);
    return text + n + (text[n] == '\n');
}

/* Line by line, with the question above each one that differs. */
static void compare(const char *was, const char *is) {
    char old[LINE], new[LINE], asked[LINE] = "";
    int shown = 0;
    while (*was || *is) {
        const char *after_old = line_of(was, old), *after_new = line_of(is, new);
        if (!strcmp(old, new)) {
            passed++;
            if (*new != ' ')
                memcpy(asked, new, sizeof asked);
        } else if (!check(false, "%s\n       %-37s %s\n     - %s\n     + %s", asked, "", head,
                          old + 4 * (*old == ' '), new + 4 * (*new == ' ')) &&
                   shown++ > 20)
            return;
        bool only_old = *old == ' ' && *new != ' ', only_new = *new == ' ' && *old != ' ';
        was = only_new ? was : after_old;
        is = only_old ? is : after_new;
    }
}

int main(int argc, char **argv) {
    size_t length;
    epi_text out = {0};
    char *text = argc > 1 ? read_whole(argv[1], &length) : NULL, *was = text ? strdup(text) : NULL;
    if (!check(was != NULL, "plans FILE [--update]") ||
        !check(epi_context_open(&ctx, NULL) == EPI_OK, "a context"))
        return finish();
    write_all(text, &out);
    if (argc > 2 && !failed_count) {
        FILE *f = fopen(argv[1], "w");
        check(f && fwrite(out.data, 1, out.length, f) == out.length && !fclose(f), "%s is written", argv[1]);
    } else {
        compare(was, out.data);
        if (failed_count)
            printf("if these plans are meant: make update-plans, and read the diff of %s\n", argv[1]);
    }
    free(was);
    free(text);
    epi_text_free(&out);
    epi_context_close(ctx);
    return finish();
}

/* test_gpu_batch.c: on a GPU the batch changes nothing. For every program of the folder, in bf16 with packed
 * and with exact roundings, each row of an output has the same bits in a batch of 1, 2, 3, 8, 16, 17, 64, 65,
 * 128 and 8192 rows: by one handle for all sizes, and by kernels that are compiled for 1 and for 17 rows
 * alone.
 *
 *     gpu_batch [programs] [gpu | cpu] [NAME]
 *
 * cpu: the same flow on the CPU, with 256 rows for 8192, which tests this test where there is no GPU. NAME:
 * only programs whose name has it. Without a GPU it says why and passes, unless EPILOG_NEED_GPU is set. */
#include "batch.h"
#include "gpu.h"

enum { MOST_PROGRAMS = 512 };

static int64_t most = 8192;

static const int64_t counts[] = {1, 2, 3, 8, 16, 17, 64, 65, 128};
enum { COUNTS = sizeof counts / sizeof *counts };

static int compared, closed;

/* ---- programs and their kernels ---- */

/* What is compiled of a program in one way of rounding: for all numbers of rows, for 1 and for 17. */
enum { OPEN, ALONE_1, ALONE_17, KERNELS };
static const int64_t alone[KERNELS] = {0, 1, 17};

typedef struct entry {
    const epi_program *program;
    epi_rounding rounding;
    test_case name;
    loaded of[KERNELS];
    const char *axis;
} entry;

/* Sizes for a program: the first axis of its first input has so many elements; of many axes each is short. */
static void bind(entry *e, int which) {
    const epi_program *p = e->program;
    loaded *l = &e->of[which];
    int first = p->graph.tensors[0].axes.at[0].dim, rank = 0;
    for (int t = 0; t < p->graph.tensor_count; t++)
        rank = p->graph.tensors[t].axes.count > rank ? p->graph.tensors[t].axes.count : rank;
    *l = (loaded){.from = &e->name, .program = p, .dim_count = epi_program_dim_count(p)};
    for (int d = 0; d < l->dim_count; d++) {
        int64_t fixed = epi_program_dim_size(p, d), some = rank > 2 ? 8 << d % 2 : 64 << d % 3;
        l->dims[d] =
            (epi_dim_binding){epi_program_dim(p, d), d == first ? (which == OPEN ? most : alone[which])
                                                     : fixed    ? fixed
                                                                : some};
    }
    e->axis = epi_program_dim(p, first);
}

static int kernels_of(const entry *e) {
    return e->rounding == EPI_ROUND_EXACT ? 1 : KERNELS;
}

static task task_of(entry *e, int which) {
    const loaded *l = &e->of[which];
    epi_options o = EPI_OPTIONS(.dims = l->dims, .dim_count = l->dim_count, .type = EPI_BF16,
                                .device = device, .rounding = e->rounding);
    if (which == OPEN) {
        o.open_axes = &e->axis;
        o.open_axis_count = 1;
    }
    return (task){.l = l, .o = o};
}

/* ---- runs ---- */

/* Inputs and results of so many rows on the device; the inputs are the first rows of `many`'s. */
static bool make(on_device *d, const entry *e, int64_t rows, const problem *many) {
    epi_dim_binding dims[EPI_MAX_DIMS];
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = e->of[OPEN].dim_count, .type = EPI_BF16,
                                .path = EPI_PATH_REFERENCE);
    const epi_graph *g = &e->program->graph;
    int dim = g->tensors[0].axes.at[0].dim;
    epi_kernel *shapes = NULL;
    epi_error err = {0};
    memcpy(dims, e->of[OPEN].dims, sizeof *dims * (size_t)o.dim_count);
    dims[dim].size = rows;
    epi_status status = epi_kernel_compile(e->program, &o, &shapes, &err);
    if (status == EPI_ERR_DIMS) /* the program has no such sizes */
        return false;
    bool ok =
        check(status == EPI_OK, "%s has shapes for %ld rows: %s", e->name.program, (long)rows, err.message) &&
        on_device_make(d, e->program, shapes);
    for (int t = 0; ok && many && t < d->host.inputs; t++)
        first_rows(&d->host.t[t], &many->t[t], epi_axes_find_dim(&g->tensors[t].axes, dim), false);
    epi_kernel_free(shapes);
    return ok;
}

/* Holds the outputs of few rows against those of many. */
static void compare(const entry *e, const on_device *few, const on_device *many, const char *what) {
    const epi_graph *g = &e->program->graph;
    int dim = g->tensors[0].axes.at[0].dim;
    for (int t = few->host.inputs; t < few->host.count; t++) {
        int a = epi_axes_find_dim(&g->tensors[t].axes, dim);
        if (a < 0 || mixes_rows(g, g->tensors[t].node, dim))
            continue;
        tensor part = few->host.t[t];
        check(first_rows(&part, &many->host.t[t], a, true), "%s: %s has the bits that it has in %ld rows",
              what, g->tensors[t].name, (long)most);
        compared++;
    }
}

static void run_few(const entry *e, const epi_kernel *k, int64_t rows, bool open, const on_device *many) {
    on_device few = {0};
    char what[200];
    snprintf(what, sizeof what, "%s, %s, %ld rows %s", e->name.program,
             e->rounding == EPI_ROUND_EXACT ? "exact" : "packed", (long)rows, open ? "of any" : "alone");
    if (!k || !make(&few, e, rows, &many->host))
        return;
    if (run_sized(k, &few, open ? &rows : NULL, what))
        compare(e, &few, many, what);
    on_device_free(&few);
}

/* The kernels are in the order of their list. Of a program that cannot be open the many rows are compiled. */
static void check_entry(entry *e, epi_kernel *const *k) {
    on_device many = {0}, one = {0};
    int64_t rows = most;
    char what[200];
    snprintf(what, sizeof what, "%s, %ld rows", e->name.program, (long)most);
    if (!k[OPEN] || broken || !make(&many, e, rows, NULL))
        return;
    if (make(&one, e, 1, NULL))
        hold_indices(&many.host, &one.host);
    on_device_free(&one);
    if (run_sized(k[OPEN], &many, &rows, what)) {
        for (int c = 0; c < COUNTS && !broken; c++)
            run_few(e, k[OPEN], counts[c], true, &many);
        for (int w = ALONE_1; w < KERNELS && !broken; w++)
            run_few(e, k[w], alone[w], false, &many);
    }
    on_device_free(&many);
}

/* ---- the folder ---- */

static entry entries[MOST_PROGRAMS];
static int entry_count;

static epi_module *modules_read[64];
static int read_count;
static const char *only; /* programs whose names have this, or NULL */

static void take_file(const char *path) {
    epi_module *m = read_count < 64 ? parsed_file(ctx, path) : NULL;
    if (m)
        modules_read[read_count++] = m;
    for (int i = 0; m && i < epi_module_count(m); i++) {
        const epi_program *p = epi_module_program(m, i);
        if (!p->graph.input_count || p->graph.tensors[0].axes.count < 2 ||
            (only && !strstr(epi_program_name(p), only)))
            continue;
        for (int exact = 0; exact < 2 && entry_count < MOST_PROGRAMS; exact++) {
            entry *e = &entries[entry_count++];
            *e = (entry){.program = p,
                         .rounding = exact ? EPI_ROUND_EXACT : EPI_ROUND_PACKED,
                         .name = {.file = "programs", .program = epi_program_name(p), .dims = ""}};
            for (int w = 0; w < KERNELS; w++)
                bind(e, w);
        }
    }
}

static void check_all(void) {
    task *tasks = calloc((size_t)entry_count * KERNELS, sizeof *tasks);
    pool p;
    if (!check(tasks != NULL, "memory"))
        return;
    int count = 0;
    for (int i = 0; i < entry_count; i++)
        for (int w = 0; w < kernels_of(&entries[i]); w++)
            tasks[count++] = task_of(&entries[i], w);
    pool_start(&p, tasks, count);
    count = 0;
    for (int i = 0; i < entry_count && !broken; i++) {
        epi_kernel *k[KERNELS] = {NULL};
        for (int w = 0; w < kernels_of(&entries[i]); w++) {
            task *t = &tasks[count++];
            pool_wait(&p, t);
            k[w] = t->kernel;
            t->kernel = NULL;
            bool no = t->status == EPI_ERR_DIMS || (w == OPEN && t->status == EPI_ERR_UNSUPPORTED);
            closed += no;
            check(no || t->status == EPI_OK, "%s compiles: %s", entries[i].name.program,
                  t->status ? t->err.message : "");
        }
        check_entry(&entries[i], k);
        for (int w = 0; w < KERNELS; w++)
            epi_kernel_free(k[w]);
        if (i % 32 == 31)
            printf("%d of %d programs, %d outputs compared\n", (i + 1) / 2, entry_count / 2, compared);
    }
    pool_end(&p);
    free(tasks);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, on_alarm);
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    if (argc > 2 && !strcmp(argv[2], "cpu")) {
        device = 0;
        most = 256;
    }
    if (device >= epi_device_count(ctx)) {
        printf("no GPU: %s\n", epi_device_why_no_gpu(ctx));
        check(!getenv("EPILOG_NEED_GPU"), "there is a GPU");
        epi_context_close(ctx);
        return finish();
    }
    only = argc > 3 ? argv[3] : NULL;
    for_texts(argc > 1 ? argv[1] : "programs", take_file);
    check_all();
    printf("%d outputs of %d programs were compared, in two ways of rounding; %d kernels are not for such "
           "sizes\n",
           compared, entry_count / 2, closed);
    check(compared > 0, "there was something to compare");
    while (read_count)
        epi_module_free(modules_read[--read_count]);
    epi_context_close(ctx);
    return finish();
}

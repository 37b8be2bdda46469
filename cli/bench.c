/* bench.c: times programs fused and unfused, and a raw product next to them, in turn, and checks the
 * results. */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "copy.h"

#ifndef EPI_COMMIT
#define EPI_COMMIT "unknown"
#endif

enum { MAX_REPEAT = 1000, HEAD = 128, GPU_BURSTS = 5, CUT = 512, TIMED = 5 };
static const double burst_seconds = 0.020; /* on a GPU */
static const double CUT_BYTES = 64e6;      /* rows that move more are checked with their axes cut */

/* The standard set: dims in units of the size, but for the heads of rotary embedding. */
static const struct {
    const char *name, *dims; /* every axis listed has the size; "H,D" makes the size as heads of HEAD */
} standard[] = {
    {"matmul:matmul", "M N K"},    {"rope:rope", "S E H,D"},           {"swiglu:swiglu", "T D F"},
    {"cross_entropy", "T D V"},    {"residual_rms", "T K D"},          {"norm_linear", "T D F"},
    {"norm_swiglu", "T D F"},      {"norm_rope:norm_rope", "S E H,D"}, {"norm_cross_entropy", "T D V"},
    {"rmsnorm_backward", "T F D"}, {"swiglu_backward", "T D F"},
};

/* What is timed: two kernels over the same tensors. */
typedef struct pair {
    cli_runner fused, unfused;
    cli_data data;
    cli_place place;
    epi_kernel_info info;
    cli_open open; /* of the fused kernel; the other is for the sizes that are timed alone */
} pair;

/* ---- time ---- */

/* Random operands of the raw product; NULL where there is no memory. */
static float *random_floats(int64_t count) {
    float *x = malloc((size_t)(count > 0 ? count : 1) * sizeof *x);
    uint32_t s = 1;
    for (int64_t i = 0; x && i < count; i++)
        x[i] = (float)((s = s * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
    return x;
}

/* Whether another round of measuring is due. */
static bool go_on(int round, int repeat, bool gpu, double start) {
    if (round >= MAX_REPEAT)
        return false;
    if (repeat || gpu)
        return round < (repeat ? repeat : GPU_BURSTS);
    return round < 9 || (round < 200 && cli_seconds() - start < 3);
}

/* What a kernel is held against: its products alone, one after the other, or a copy of as many bytes. */
typedef struct yardstick {
    const blas *b;
    int64_t (*sizes)[3]; /* of the raw products: rows, columns and depth */
    int count;
    float *x, *y, *c;
    copy_bench copy;
    bool product, copies;
} yardstick;

/* The products of a kernel: one, or those of its parts, two side by side as one of twice the columns. */
static void list_products(yardstick *s, const epi_kernel *k) {
    epi_kernel_info info;
    epi_kernel_get_info(k, &info);
    s->sizes = calloc((size_t)info.parts + 1, sizeof *s->sizes);
    for (int i = 0; i < info.parts && s->sizes; i++) {
        epi_part_info part;
        if (epi_kernel_part(k, i, &part) != EPI_OK || strcmp(part.info.mainloop, "gemm") != 0 ||
            part.info.m * part.info.n * part.info.k == 0)
            continue;
        int64_t *size = s->sizes[s->count++];
        size[0] = part.info.m;
        size[1] = part.info.n * part.info.products;
        size[2] = part.info.k;
    }
}

static void yardstick_open(yardstick *s, const bench_row *row, const pair *p, const blas *b, bool gpu,
                           int threads) {
    int64_t most[3] = {0};
    *s = (yardstick){.b = b};
    if (b->sgemm)
        list_products(s, p->fused.kernel);
    for (int i = 0; i < s->count; i++) {
        const int64_t *n = s->sizes[i];
        most[0] = epi_max64(most[0], n[0] * n[2]);
        most[1] = epi_max64(most[1], n[1] * n[2]);
        most[2] = epi_max64(most[2], n[0] * n[1]);
    }
    if (s->count) {
        s->x = random_floats(most[0]);
        s->y = random_floats(most[1]);
        s->c = random_floats(most[2]);
    }
    s->product = s->x && s->y && s->c;
    if (row->rows && !gpu)
        s->copies = copy_open(&s->copy, row->bytes, threads);
}

static void yardstick_close(yardstick *s) {
    free(s->sizes);
    free(s->x);
    free(s->y);
    free(s->c);
    copy_close(&s->copy);
}

static void yardstick_run(const yardstick *s, double *product, double *copies) {
    double start = cli_seconds();
    for (int i = 0; i < s->count && s->product; i++)
        blas_product(s->b, s->sizes[i][0], s->sizes[i][1], s->sizes[i][2], s->x, s->y, s->c);
    *product = cli_seconds() - start;
    for (int way = 0; way < 2; way++) {
        start = cli_seconds();
        if (s->copies)
            copy_run(&s->copy, way);
        copies[way] = cli_seconds() - start;
    }
}

/* A CPU kernel is timed run by run, a GPU's in bursts that make starting and waiting small. */
static epi_status measure(bench_row *out, const pair *p, const blas *b, int repeat, epi_error *err) {
    double t[TIMED][MAX_REPEAT];
    yardstick stick;
    bool gpu = p->fused.device > 0;
    int n = 0, fused_runs = 1, unfused_runs = 1;
    epi_status status = EPI_OK;
    yardstick_open(&stick, out, p, b, gpu, p->info.threads);
    if (gpu)
        status = cli_burst_size(&p->fused, &p->place, burst_seconds, &fused_runs, err);
    if (gpu && status == EPI_OK)
        status = cli_burst_size(&p->unfused, &p->place, burst_seconds, &unfused_runs, err);
    double start = cli_seconds();
    for (int i = gpu ? 0 : -2; status == EPI_OK && go_on(i, repeat, gpu, start); i++) {
        double f, u, product, copies[2];
        status = cli_burst(&p->fused, &p->place, fused_runs, &f, err);
        if (status == EPI_OK)
            status = cli_burst(&p->unfused, &p->place, unfused_runs, &u, err);
        yardstick_run(&stick, &product, copies);
        if (i < 0 || status != EPI_OK) /* warm-up */
            continue;
        const double now[TIMED] = {f, u, product, copies[0], copies[1]};
        for (int k = 0; k < TIMED; k++)
            t[k][n] = now[k];
        n++;
    }
    if (status == EPI_OK) {
        out->fused = cli_median(t[0], n);
        out->unfused = cli_median(t[1], n);
        out->raw = stick.product ? cli_median(t[2], n) : 0;
        double plain = cli_median(t[3], n), streamed = cli_median(t[4], n);
        out->copy = !stick.copies ? 0 : plain < streamed ? plain : streamed;
    }
    yardstick_close(&stick);
    return status;
}

/* ---- results ---- */

/* One run of a kernel, its outputs brought back. */
static epi_status run_once(const cli_runner *r, const cli_place *p, cli_data *d, epi_error *err) {
    double seconds;
    epi_status status = cli_place_reset(p, d, err);
    if (status == EPI_OK)
        status = cli_burst(r, p, 1, &seconds, err);
    return status == EPI_OK ? cli_place_fetch(p, d, err) : status;
}

/* Runs the fused kernel and fills in its errors against f64. */
static epi_status check(bench_row *out, const cli_source *s, const cli_options *o, pair *p,
                        cli_error_row *errors, epi_error *err) {
    cli_progress("checking %s against f64", out->name);
    epi_status status = run_once(&p->fused, &p->place, &p->data, err);
    if (status == EPI_OK)
        status = cli_errors(s, o, &p->data, &p->info, errors, err);
    out->ok = status == EPI_OK;
    out->checked[0] = p->info.m;
    out->checked[1] = p->info.n;
    out->checked[2] = p->info.k;
    for (int t = p->data.input_count; t < p->data.count && status == EPI_OK; t++) {
        const cli_error_row *e = &errors[t - p->data.input_count];
        out->error = fmax(out->error, cli_relative(e->fused, e));
        out->naive = fmax(out->naive, cli_relative(e->naive, e));
        out->ok &= e->verdict != CLI_TOO_FAR;
        out->nan += e->nan;
    }
    return status;
}

static void free_pair(pair *p) {
    cli_place_free(&p->place);
    cli_data_free(&p->data);
    cli_runner_free(&p->fused);
    cli_runner_free(&p->unfused);
}

/* Without the unfused kernel where only results are wanted. */
static epi_status make_pair(pair *p, const cli_source *s, const cli_options *o, bool both, epi_error *err) {
    epi_options options;
    epi_kernel *closed = NULL; /* for the sizes that are timed alone: its tensors are theirs */
    if (cli_open_options(o, s->program, &p->open, &options) != EXIT_OK)
        return epi_fail(err, EPI_ERR_ARGUMENT, "--open names an axis that has no size");
    if (p->open.count) {
        p->fused.sizes = p->open.sizes;
        p->fused.size_count = p->open.count;
    }
    epi_status status = cli_runner_make(&p->fused, s, &options, err);
    options = cli_compile_options(o);
    if (status == EPI_OK && p->open.count)
        status = epi_kernel_compile(s->program, &options, &closed, err);
    if (status == EPI_OK)
        epi_kernel_get_info(closed ? closed : p->fused.kernel, &p->info);
    options.path = EPI_PATH_UNFUSED;
    options.memory = 0;
    if (status == EPI_OK && !strcmp(p->info.mainloop, "attention"))
        options.config = NULL; /* that is for the fused path */
    if (status == EPI_OK && both)
        status = cli_runner_make(&p->unfused, s, &options, err);
    if (status == EPI_OK)
        status = cli_data_make(&p->data, s->program, closed ? closed : p->fused.kernel, err);
    epi_kernel_free(closed);
    if (status != EPI_OK)
        return status;
    cli_data_random(&p->data, o->seed);
    status = cli_data_set(&p->data, o, err);
    return status == EPI_OK ? cli_place_make(&p->place, s->ctx, o->device, &p->data, err) : status;
}

/* An f64 reference of large sizes takes minutes: the timed configuration is checked with the axes cut,
 * what is left over of eight kept. */
static epi_status check_cut(bench_row *out, const cli_source *s, const cli_options *o, const char *config,
                            cli_error_row *errors, epi_error *err) {
    cli_options small = *o;
    pair p = {0};
    small.config = config;
    for (int i = 0; i < small.dim_count; i++)
        if (small.dims[i].size > CUT + 7)
            small.dims[i].size = CUT + small.dims[i].size % 8;
    epi_status status = make_pair(&p, s, &small, false, err);
    if (status == EPI_OK)
        status = check(out, s, &small, &p, errors, err);
    free_pair(&p);
    return status;
}

/* At full size, where a block works on many tiles: against the unfused path on the plain mainloop, which has
 * nothing in common with the fast ones. */
static epi_status check_plain(bench_row *out, const cli_source *s, const cli_options *o, pair *p,
                              const cli_error_row *errors, epi_error *err) {
    cli_runner plain = {0};
    cli_data d = {0};
    bool near = true;
    epi_options options = cli_compile_options(o);
    options.path = EPI_PATH_UNFUSED;
    options.memory = 0;
    options.config = "any_64x64";
    epi_status status = cli_runner_make(&plain, s, &options, err);
    if (status == EPI_ERR_UNSUPPORTED)
        return EPI_OK; /* and the row says that there is none */
    if (status == EPI_OK)
        status = cli_data_make(&d, s->program, plain.kernel, err);
    if (status == EPI_OK)
        status = run_once(&plain, &p->place, &d, err);
    if (status == EPI_OK)
        status = run_once(&p->fused, &p->place, &p->data, err);
    if (status == EPI_OK) {
        out->plain = cli_compare(&p->data, &d, errors, &near);
        out->has_plain = true;
        out->ok &= near;
    }
    cli_data_free(&d);
    cli_runner_free(&plain);
    return status;
}

static epi_status bench_program(const cli_source *s, const cli_options *o, const blas *b, bench_row *out,
                                epi_error *err) {
    pair p = {0};
    cli_error_row errors[CLI_MAX_TENSORS];
    epi_status status = make_pair(&p, s, o, true, err);
    if (status == EPI_OK) {
        out->m = p.info.m;
        out->n = p.info.n;
        out->k = p.info.k;
        out->kernels = p.info.parts;
        out->flops = p.info.flops;
        out->rows = p.info.k == 0 && !strcmp(p.info.mainloop, "rows");
        out->bytes = p.info.bytes_fused;
        snprintf(out->config, sizeof out->config, "%s", p.info.micro);
        status = measure(out, &p, b, o->repeat, err);
    }
    bool cut = o->device || (out->rows && out->bytes > CUT_BYTES);
    if (status == EPI_OK && !cut)
        status = check(out, s, o, &p, errors, err);
    if (status == EPI_OK && cut)
        status = check_cut(out, s, o, o->device && out->config[0] ? out->config : NULL, errors, err);
    if (status == EPI_OK && o->device)
        status = check_plain(out, s, o, &p, errors, err);
    free_pair(&p);
    return status;
}

/* ---- the command ---- */

/* The dims of a standard entry at a size. */
static void standard_dims(cli_options *o, const char *dims, int64_t size) {
    static const char *const single[] = {"M", "N", "K", "T", "D", "F", "V", "S", "E"};
    o->dim_count = 0;
    bool heads = strstr(dims, "H,D") != NULL;
    if (heads) {
        o->dims[o->dim_count++] = (epi_dim_binding){"B", 1};
        o->dims[o->dim_count++] = (epi_dim_binding){"H", size / HEAD};
        o->dims[o->dim_count++] = (epi_dim_binding){"D", HEAD};
    }
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (strstr(dims, single[i]) && !(heads && single[i][0] == 'D'))
            o->dims[o->dim_count++] = (epi_dim_binding){single[i], size};
}

static bool has_tensor(const epi_program *program, const char *name) {
    return cli_role_of(program, name) != CLI_NONE;
}

/* The lists that several programs share: of an item the first member is a name, which a program may have. */
enum { DIMS, OPEN, TYPES, SCALARS, LISTS };
#define LIST(items, count) \
    offsetof(cli_options, items), offsetof(cli_options, count), sizeof((cli_options *)0)->items[0]
static const struct list {
    size_t at, count, size;
    bool (*has)(const epi_program *, const char *name);
} lists[LISTS] = {[DIMS] = {LIST(dims, dim_count), cli_has_axis},
                  [OPEN] = {LIST(open, open_count), cli_has_axis},
                  [TYPES] = {LIST(types, type_count), has_tensor},
                  [SCALARS] = {LIST(scalars, scalar_count), has_tensor}};

static int *count_of(cli_options *o, const struct list *l) {
    return (int *)(void *)((char *)o + l->count);
}
static void *item_of(cli_options *o, const struct list *l, int i) {
    return (char *)o + l->at + (size_t)i * l->size;
}
static bool has_item(const epi_program *program, cli_options *o, const struct list *l, int i) {
    return l->has(program, *(const char **)item_of(o, l, i));
}

/* By item: one of the named programs at least has it. */
typedef bool known_names[LISTS][CLI_MAX_BINDINGS];

/* Complains of an axis of --open that none of the named programs has, or that has no size. */
static int check_open(const cli_options *o, known_names known) {
    for (int i = 0; i < o->open_count; i++) {
        if (cli_find_dim(o, o->open[i].name) < 0)
            return cli_complain(EXIT_USAGE, "--open names %s: give its size in --dims too", o->open[i].name);
        if (!known[OPEN][i])
            return cli_complain(EXIT_USAGE, "--open names %s: no program has such an axis", o->open[i].name);
    }
    return EXIT_OK;
}

/* Several programs share what is given: each takes the sizes of its axes, and the types and numbers of its
 * tensors. A name that no program has is left to the first of them to complain of. */
static void keep_own(cli_options *o, const epi_program *program, known_names known) {
    for (int k = 0; k < LISTS; k++) {
        const struct list *l = &lists[k];
        int kept = 0;
        for (int i = 0; i < *count_of(o, l); i++)
            if ((k != OPEN && !known[k][i]) || has_item(program, o, l, i))
                memmove(item_of(o, l, kept++), item_of(o, l, i), l->size);
        *count_of(o, l) = kept;
    }
}

/* A program that cannot be opened says so in its turn. */
static void find_known(cli_options *o, known_names known) {
    for (int n = 0; n < o->name_count; n++) {
        cli_source s;
        if (cli_program_open(&s, o->names[n], NULL) != EPI_OK)
            continue;
        for (int k = 0; k < LISTS; k++)
            for (int i = 0; i < *count_of(o, &lists[k]); i++)
                known[k][i] |= has_item(s.program, o, &lists[k], i);
        cli_source_close(&s);
    }
}

/* The result file may be none of the texts that are measured; one that cannot be opened says so in its turn.
 */
static int keep_texts(const cli_options *o) {
    int status = EXIT_OK, standard_count = o->name_count ? 0 : (int)(sizeof standard / sizeof *standard);
    for (int i = 0; i < o->name_count + standard_count && (o->out || o->plot) && status == EXIT_OK; i++) {
        cli_source s;
        if (cli_program_open(&s, standard_count ? standard[i].name : o->names[i], NULL) != EPI_OK)
            continue;
        status = cli_check_distinct(o->out, "the program", s.path);
        if (status == EXIT_OK)
            status = cli_check_distinct(o->plot, "the program", s.path);
        cli_source_close(&s);
    }
    return status;
}

static int bench_one(const char *name, const cli_options *given, known_names known, const blas *b,
                     bench_report *report) {
    cli_options o = *given;
    cli_source s;
    epi_error err;
    bench_row r = {0};
    if (cli_program_open(&s, name, &err) != EPI_OK)
        return cli_fail(&err);
    snprintf(r.name, sizeof r.name, "%s", epi_program_name(s.program));
    snprintf(r.file, sizeof r.file, "%s", s.path);
    keep_own(&o, s.program, known);
    cli_progress("measuring %s, %d of %d", r.name, ++report->begun, report->all);
    int status = bench_program(&s, &o, b, &r, &err) == EPI_OK ? EXIT_OK : cli_fail(&err);
    cli_progress_end();
    cli_source_close(&s);
    if (status != EXIT_OK)
        return status;
    bench_add_row(report, &r);
    return r.ok ? EXIT_OK : EXIT_FAILED;
}

static int bench_all(cli_options *o, const blas *b, bench_report *report) {
    int status = EXIT_OK, one;
    known_names known = {0};
    find_known(o, known);
    for (int i = 0; i < o->scalar_count && o->name_count > 1; i++)
        if (!known[SCALARS][i])
            return cli_complain(EXIT_USAGE, "--set: none of the programs has an input '%s'",
                                o->scalars[i].name);
    if ((status = check_open(o, known)) != EXIT_OK)
        return status;
    if (!o->size_count)
        o->sizes[o->size_count++] = o->device ? 4096 : 1024;
    report->all = o->name_count ? o->name_count : o->size_count * (int)(sizeof standard / sizeof *standard);
    for (int i = 0; i < o->name_count; i++)
        if ((one = bench_one(o->names[i], o, known, b, report)) != EXIT_OK)
            status = one;
    for (int s = 0; s < o->size_count && !o->name_count; s++)
        for (size_t i = 0; i < sizeof standard / sizeof *standard; i++) {
            standard_dims(o, standard[i].dims, o->sizes[s]);
            if ((one = bench_one(standard[i].name, o, known, b, report)) != EXIT_OK)
                status = one;
        }
    if (!report->json)
        bench_end(report);
    return status;
}

/* The result file and the JSON text around the rows. The context stays open throughout, so that a GPU is
 * begun on once. */
static int bench(const epi_context *ctx, cli_options *o) {
    epi_device_info cpu;
    epi_error err;
    blas b = {.maker = ""};
    epi_text out = {0};
    epi_json_writer w = {.text = &out};
    epi_device_get(ctx, 0, &cpu);
    if (!o->device)
        blas_open(&b, o->threads ? o->threads : cpu.threads);
    bench_report report = {.w = &w, .gpu = o->device > 0, .raw = b.sgemm != NULL, .json = o->json};
    epi_json_put_open(&w, '{');
    cli_put_text(&w, "version", epi_version());
    cli_put_text(&w, "commit", EPI_COMMIT);
    bench_put_machine(&w, ctx, o, &b);
    if (!o->json)
        bench_say_machine(ctx, o, &b);
    epi_json_put_key(&w, "rows");
    epi_json_put_open(&w, '[');
    int status = bench_all(o, &b, &report);
    epi_json_put_close(&w, ']');
    epi_json_put_close(&w, '}');
    if (o->json && !out.failed)
        printf("%s\n", out.data);
    if (!o->json && status == EXIT_OK)
        printf("unfused: one operation at a time. Errors: against f64, relative to the largest value. Naive "
               "path: plain loops\n"
               "%s%s%s",
               b.sgemm ? "of raw: the fused time divided by the time of " : "", b.maker,
               b.sgemm ? "'s product of the same shape\n" : "");
    epi_text_add(&out, "\n");
    if (o->out && status == EXIT_OK && cli_write_text(o->out, &out, &err) != EPI_OK)
        status = cli_fail(&err); /* a failed run replaces nothing */
    if (out.failed)
        status = cli_complain(EXIT_FAILED, "out of memory");
    if (status == EXIT_OK)
        status = bench_chart(&report, ctx, o);
    free(report.kept);
    epi_text_free(&out);
    blas_close(&b);
    return status;
}

int cmd_bench(cli_options *given) {
    cli_options o = *given;
    epi_context *ctx;
    epi_error err;
    if (!o.name_count && o.dim_count)
        return cli_complain(EXIT_USAGE, "--dims goes with a program's name; the ten kernels take --size");
    if (cli_print_aside(&o) != EXIT_OK)
        return EXIT_FAILED;
    if (!cli_may_write(o.out, &err) || !cli_may_write(o.plot, &err))
        return cli_fail(&err);
    if (o.name_count && !o.dim_count)
        return cli_complain(EXIT_USAGE, "bench of a named program needs --dims; see 'epilog help bench'");
    if (keep_texts(&o) != EXIT_OK)
        return EXIT_USAGE;
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return cli_fail(&err);
    int status = cli_device_choose(ctx, &o);
    if (status == EXIT_OK)
        status = bench(ctx, &o);
    epi_context_close(ctx);
    return status;
}

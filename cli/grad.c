/* grad.c: derives the gradient program, and checks it against differences. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"

int cli_wrt_read(cli_wrt *a, const epi_program *program, const cli_options *o) {
    *a = (cli_wrt){0};
    for (int t = 0; t < epi_program_tensor_count(program) && !o->wrt; t++) {
        epi_tensor_info info;
        epi_program_tensor(program, t, &info);
        if (!info.is_output && !(info.has_type && epi_dtype_is_whole(info.type)))
            a->names[a->count++] = info.name;
    }
    if (o->wrt && strlen(o->wrt) >= sizeof a->store)
        return cli_complain(EXIT_USAGE, "--wrt is too long");
    snprintf(a->store, sizeof a->store, "%s", o->wrt ? o->wrt : "");
    char *rest = o->wrt ? a->store : NULL;
    for (char *item; a->count < CLI_MAX_TENSORS && (item = cli_next_item(&rest));)
        a->names[a->count++] = item;
    return a->count ? EXIT_OK : cli_complain(EXIT_FAILED, "all inputs are integers, which have no gradient");
}

static int print_programs(const epi_module *m) {
    for (int i = 0; i < epi_module_count(m); i++) {
        char *text = cli_text_of(epi_program_print, epi_module_program(m, i));
        if (!text)
            return cli_complain(EXIT_FAILED, "out of memory");
        printf("%s%s", i ? "\n" : "", text);
        free(text);
    }
    return EXIT_OK;
}

/* The types that were given of tensors that the program has, or of others. */
static int types_given(const epi_program *p, const cli_options *o, bool own, epi_type_binding *out) {
    int count = 0;
    for (int i = 0; i < o->type_count; i++)
        if (own == (cli_role_of(p, o->types[i].tensor) != CLI_NONE))
            out[count++] = o->types[i];
    return count;
}

/* What lies in memory from the forward to the backward: how many bytes, and as comments if `print`. Only dims
 * of the backward's own axes count. */
static int count_kept(const epi_program *program, const epi_program *backward, const cli_options *o,
                      bool print, double *total) {
    epi_dim_binding dims[CLI_MAX_BINDINGS];
    epi_type_binding types[CLI_MAX_BINDINGS];
    epi_options options = cli_own_options(backward, o, dims);
    epi_kernel *kernel;
    epi_error err;
    *total = 0;
    options.path = EPI_PATH_REFERENCE;
    options.memory = 0;
    options.types = types; /* the text says those of the program's own tensors */
    options.type_count = types_given(program, o, false, types);
    if (epi_kernel_compile(backward, &options, &kernel, &err) != EPI_OK)
        return cli_fail(&err);
    printf("%s", print ? "\n" : "");
    for (int t = 0; t < epi_program_tensor_count(backward); t++) {
        epi_tensor_info info;
        epi_tensor_shape shape;
        epi_program_tensor(backward, t, &info);
        epi_kernel_tensor(kernel, t, &shape);
        static const char *const what[] = {"saved", "an input", "a result"}; /* by role */
        cli_role role = cli_role_of(program, info.name);
        if (info.is_output || (info.is_cotangent && role != CLI_INPUT))
            continue;
        double bytes = (double)shape.count * (double)epi_dtype_size(shape.type);
        *total += bytes;
        if (print)
            printf("# %-12s %-5s %14.0f bytes  %s\n", info.name, epi_dtype_name(shape.type), bytes,
                   what[role]);
    }
    if (print)
        printf("# %-18s %14.0f bytes  in memory until the backward\n", "", *total);
    epi_kernel_free(kernel);
    return EXIT_OK;
}

/* Derives; again with less that is saved, where that is more than --memory allows. */
static int derive_within(const epi_program *program, const cli_wrt *a, const cli_options *o,
                         epi_module **derived) {
    epi_error err;
    double kept = 0;
    epi_type_binding types[CLI_MAX_BINDINGS];
    epi_options options = EPI_OPTIONS(.types = types, .type_count = types_given(program, o, true, types));
    if ((o->forward ? epi_program_grad_typed(program, a->names, a->count, &options, derived, &err)
                    : epi_program_grad(program, a->names, a->count, derived, &err)) != EPI_OK)
        return cli_fail(&err);
    int status = o->memory ? count_kept(program, epi_module_program(*derived, 1), o, false, &kept) : EXIT_OK;
    if (status != EXIT_OK || kept <= (double)o->memory)
        return status;
    epi_module_free(*derived);
    options.memory = o->memory;
    return epi_program_grad_typed(program, a->names, a->count, &options, derived, &err) == EPI_OK
               ? EXIT_OK
               : cli_fail(&err);
}

int cmd_grad(cli_options *o) {
    cli_source s;
    cli_wrt a;
    double kept;
    epi_module *derived = NULL;
    if (o->dim_count && !o->forward)
        return cli_complain(EXIT_USAGE, "--dims lists what --forward saves: add --forward");
    if (o->memory && !o->dim_count)
        return cli_complain(EXIT_USAGE, "--memory limits the saved bytes: add --forward and --dims");
    int status = cli_only_program(&s, o);
    if (status != EXIT_OK)
        return status;
    status = cli_wrt_read(&a, s.program, o);
    if (status == EXIT_OK)
        status = derive_within(s.program, &a, o, &derived);
    if (status == EXIT_OK)
        status = print_programs(derived);
    if (status == EXIT_OK && o->dim_count)
        status = count_kept(s.program, epi_module_program(derived, 1), o, true, &kept);
    epi_module_free(derived);
    cli_source_close(&s);
    return status;
}

/* ---- gradcheck ---- */

/* Says how long it will take, where that is long: two runs for each derivative, of plain loops that make about
 * 4 GFLOP/s of products and go through 0.4 GB/s of the rest. */
static void estimate_time(const epi_kernel *kernel, const cli_wrt *a, const cli_data *d) {
    epi_kernel_info info;
    epi_kernel_get_info(kernel, &info);
    int64_t runs = 0;
    for (int i = 0; i < a->count; i++)
        for (int t = 0; t < d->input_count; t++)
            if (!strcmp(d->infos[t].name, a->names[i]))
                runs += 2 * (EPI_GRADCHECK_DIRECTIONS +
                             (d->shapes[t].count <= EPI_GRADCHECK_ELEMENTS ? d->shapes[t].count : 0));
    double seconds = (double)runs * (info.flops / 4e9 + info.bytes_unfused / 4e8);
    if (seconds > 10)
        cli_complain(EXIT_OK,
                     "note: %ld runs in plain loops take about %.2g %s; sizes of 3 to 30 show as much",
                     (long)runs,
                     seconds < 120    ? seconds
                     : seconds < 7200 ? seconds / 60
                                      : seconds / 3600,
                     seconds < 120    ? "seconds"
                     : seconds < 7200 ? "minutes"
                                      : "hours");
}

/* The program's inputs at these sizes, random or set, as the check wants them: f64, and integers. */
static epi_status make_inputs(cli_data *d, const cli_source *s, const cli_wrt *a, const cli_options *o,
                              epi_error *err) {
    epi_type_binding types[CLI_MAX_TENSORS];
    epi_options options =
        EPI_OPTIONS(.dims = o->dims, .dim_count = o->dim_count, .types = types, .path = EPI_PATH_REFERENCE);
    for (int t = 0; t < epi_program_tensor_count(s->program); t++) {
        epi_tensor_info info;
        epi_program_tensor(s->program, t, &info);
        if (!(info.has_type && epi_dtype_is_whole(info.type)))
            types[options.type_count++] = (epi_type_binding){info.name, EPI_F64};
    }
    epi_kernel *kernel;
    EPI_TRY(epi_kernel_compile(s->program, &options, &kernel, err));
    epi_status status = cli_data_make(d, s->program, kernel, err);
    if (status == EPI_OK) {
        estimate_time(kernel, a, d);
        cli_data_random(d, o->seed);
        status = cli_data_set(d, o, err);
    }
    epi_kernel_free(kernel);
    return status;
}

/* "w[3,5]"; along a direction "w". */
static void name_element(const cli_data *d, const epi_gradcheck *c, char *out, size_t size) {
    if (c->input >= 0 && c->element >= 0)
        cli_name_element(d, c->input, c->element, out, size);
    else
        snprintf(out, size, "%s", c->input < 0 ? "" : d->infos[c->input].name);
}

/* Of how many nothing can be said, and why. */
static void print_open(int64_t edges, int64_t infinite, const char *edge) {
    if (edges)
        cli_print("%ld of them cannot be judged: %s\n", (long)edges, edge);
    if (infinite)
        cli_print("%ld of them cannot be judged: results there are infinite or NaN\n", (long)infinite);
}

static void put_open(epi_json_writer *w, int64_t edges, int64_t infinite) {
    cli_put_integer(w, "edges", edges);
    cli_put_integer(w, "infinite", infinite);
}

/* The two ways in which gradients run, as keys and in words. */
static const struct {
    const char *key, *words;
} ways[] = {{"run", "run as one program"}, {"saved", "run as forward and backward"}};
enum { WAYS = sizeof ways / sizeof *ways };

/* Where there is nothing that anything can be said of, nothing was compared. */
static cli_verdict verdict_of(double off, int64_t compared, int64_t nothing) {
    return off > 1 ? CLI_TOO_FAR : compared > nothing ? CLI_OK : CLI_NOT_COMPARED;
}

static cli_verdict verdict_of_check(const epi_gradcheck *c) {
    return verdict_of(c->off, c->compared, c->edges + c->infinite);
}

static cli_verdict verdict_of_run(const epi_gradrun *r) {
    return verdict_of(r->off, r->compared, r->edges + r->infinite);
}

static void put_run(epi_json_writer *w, const char *key, const cli_data *d, const epi_gradrun *r,
                    epi_dtype type) {
    epi_json_put_key(w, key);
    epi_json_put_open(w, '{');
    cli_put_text(w, "type", epi_dtype_name(type));
    cli_put_integer(w, "compared", r->compared);
    cli_put_text(w, "worst", r->input < 0 ? "" : d->infos[r->input].name);
    cli_put_integer(w, "row", r->row);
    cli_put_number(w, "derived", r->derived);
    cli_put_number(w, "exact", r->exact);
    cli_put_number(w, "off", r->off);
    cli_put_text(w, "verdict", cli_verdict_name(verdict_of_run(r)));
    put_open(w, r->edges, r->infinite);
    epi_json_put_close(w, '}');
}

static void put_check(epi_json_writer *w, const cli_data *d, const epi_gradcheck *c, const epi_gradrun *r,
                      epi_dtype type) {
    char where[400];
    name_element(d, c, where, sizeof where);
    cli_put_integer(w, "compared", c->compared);
    cli_put_text(w, "worst", where);
    cli_put_number(w, "derived", c->derived);
    cli_put_number(w, "numeric", c->numeric);
    cli_put_number(w, "off", c->off);
    cli_put_text(w, "verdict", cli_verdict_name(verdict_of_check(c)));
    cli_put_integer(w, "own", c->own);
    cli_put_number(w, "distance", c->distance);
    put_open(w, c->edges, c->infinite);
    for (int i = 0; i < WAYS && r; i++)
        put_run(w, ways[i].key, d, &r[i], type);
}

static void print_check(const cli_data *d, const epi_gradcheck *c) {
    char where[400];
    name_element(d, c, where, sizeof where);
    if (c->input < 0)
        cli_print("%ld derivatives checked, in f64: %s\n", (long)c->compared,
                  cli_verdict_name(verdict_of_check(c)));
    else
        cli_print(
            "%ld derivatives compared; the largest error is for %s%s: %s derived, %s by differences: %s\n",
            (long)c->compared, where, c->element < 0 && d->shapes[c->input].rank ? ", along a direction" : "",
            cli_number_of(c->derived).text, cli_number_of(c->numeric).text,
            c->own && c->off > 1 ? "different" : cli_verdict_name(verdict_of_check(c)));
    if (c->own && c->off > 1)
        cli_print("%d call%s of programs that declare their own gradient: relative distance from the "
                  "differences %.3g\n",
                  c->own, c->own == 1 ? "" : "s", c->distance);
    print_open(c->edges, c->infinite, "a comparison changes sides there");
}

static void print_run(const char *words, const cli_data *d, const epi_gradrun *r, epi_dtype type) {
    if (r->input < 0)
        cli_print("%s in %s: %ld rows of gradients checked: %s\n", words, epi_dtype_name(type),
                  (long)r->compared, cli_verdict_name(verdict_of_run(r)));
    else
        cli_print("%s in %s: %ld rows of gradients compared; the largest error is in row %ld of the gradient "
                  "of %s: %s, but %s in f64: %s\n",
                  words, epi_dtype_name(type), (long)r->compared, (long)r->row, d->infos[r->input].name,
                  cli_number_of(r->derived).text, cli_number_of(r->exact).text,
                  cli_verdict_name(verdict_of_run(r)));
    print_open(r->edges, r->infinite,
               "roundings alone change them by a quarter, as at the edge of a comparison");
}

/* Both checks; the second, of runs in a type, where one was asked for. */
static int report_check(const cli_data *d, const epi_gradcheck *c, const epi_gradrun *r,
                        const cli_options *o) {
    bool ok = verdict_of_check(c) == CLI_OK || (c->own && verdict_of_check(c) == CLI_TOO_FAR);
    for (int i = 0; i < WAYS && r; i++)
        ok &= verdict_of_run(&r[i]) == CLI_OK;
    if (o->json) {
        epi_text out = {0};
        epi_json_writer w = {.text = &out};
        epi_json_put_open(&w, '{');
        cli_put_bool(&w, "ok", ok);
        put_check(&w, d, c, r, o->type);
        epi_json_put_close(&w, '}');
        return cli_print_json(o, &out, ok ? EXIT_OK : EXIT_FAILED);
    }
    if (!c->compared) {
        cli_print("not compared: the inputs have no elements at these sizes\n");
        return EXIT_FAILED;
    }
    print_check(d, c);
    for (int i = 0; i < WAYS && r; i++)
        print_run(ways[i].words, d, &r[i], o->type);
    return ok ? EXIT_OK : EXIT_FAILED;
}

static int check_gradients(const cli_source *s, const cli_wrt *a, const cli_data *d, const cli_options *o) {
    epi_error err;
    epi_gradcheck check;
    epi_gradrun run[WAYS];
    epi_options options = cli_compile_options(o);
    bool runs = cli_is_given(o, "--type") || o->type_count;
    cli_progress("comparing gradients with differences");
    epi_status status =
        epi_program_gradcheck(s->program, a->names, a->count, &options, d->tensors, o->seed, &check, &err);
    if (status == EPI_OK && runs)
        status =
            epi_program_gradrun(s->program, a->names, a->count, &options, d->tensors, o->seed, &run[0], &err);
    if (status == EPI_OK && runs)
        status = epi_program_gradrun_saved(s->program, a->names, a->count, &options, d->tensors, o->seed,
                                           &run[1], &err);
    cli_progress_end();
    return status == EPI_OK ? report_check(d, &check, runs ? run : NULL, o) : cli_fail(&err);
}

int cmd_gradcheck(cli_options *o) {
    cli_source s;
    epi_error err;
    cli_wrt a;
    cli_data d = {0};
    int status = cli_only_program(&s, o);
    if (status != EXIT_OK)
        return status;
    status = cli_wrt_read(&a, s.program, o);
    if (status == EXIT_OK && make_inputs(&d, &s, &a, o, &err) != EPI_OK)
        status = cli_fail(&err);
    if (status == EXIT_OK)
        status = check_gradients(&s, &a, &d, o);
    cli_data_free(&d);
    cli_source_close(&s);
    return status;
}

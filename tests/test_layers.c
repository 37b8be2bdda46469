/* test_layers.c: a model of 32 layers as one program, forward and with its gradients: it compiles at once,
 * its equal parts are compiled once, its workspace is as small as can be, and what it computes is right. A
 * backward by itself has the same parts for every layer, and its workspace does not grow with them. */
#include <time.h>

#include "harness.h"
#include "layers.h"

enum { LAYERS = 32, FEW = 3 };

/* What is known of a program of layers. */
typedef struct model {
    const char *name;
    epi_text (*write)(int count);
    int run; /* layers that are run */
} model;

static const model models[] = {{"forward", llama_layers, LAYERS}, {"gradients", llama_gradients, FEW}};

static epi_context *ctx;

static epi_kernel *compile(const epi_program *p, const int64_t *sizes, epi_dtype type, int device,
                           epi_path path) {
    epi_dim_binding dims[] = {{"T", sizes[0]}, {"D", sizes[1]}, {"F", sizes[2]}};
    epi_type_binding outputs[MAX_TENSORS];
    epi_options o =
        EPI_OPTIONS(.dims = dims, .dim_count = 3, .type = type, .device = device, .path = path, .threads = 2);
    epi_kernel *k;
    epi_error err;
    o.types = outputs;
    o.type_count = path >= EPI_PATH_NAIVE ? wide_types(p, false, outputs) : 0;
    check(epi_kernel_compile(p, &o, &k, &err) == EPI_OK, "layers compile: %s", err.message);
    return k;
}

/* ---- what it computes ---- */

static bool run(const epi_program *p, epi_dtype type, epi_path path, problem *out) {
    static const int64_t sizes[] = {9, 32, 48};
    epi_kernel *k = compile(p, sizes, type, 0, path);
    bool ok = k && problem_make(out, p, k, LAYOUT_PLAIN);
    if (ok) {
        problem_fill(out, 7);
        ok = problem_run(k, out);
    }
    epi_kernel_free(k);
    return check(ok, "layers run");
}

static void check_values(const model *m, const epi_program *p, epi_dtype type) {
    static problem out, ref, naive;
    double error, bound;
    if (run(p, type, EPI_PATH_FUSED, &out) && run(p, type, EPI_PATH_REFERENCE, &ref) &&
        run(p, type, EPI_PATH_NAIVE, &naive))
        for (int t = out.inputs; t < out.count; t++) {
            bool near = within_rule(&out.t[t], &ref.t[t], &naive.t[t], type, 4, &error, &bound);
            check(near, "%s as %s, output %d: error %g, allowed %g", m->name, epi_dtype_name(type),
                  t - out.inputs, error, bound);
        }
    problem_free(&out);
    problem_free(&ref);
    problem_free(&naive);
}

/* ---- how ---- */

/* Lines of the description. */
static int count_lines(const epi_kernel *k) {
    char *how = malloc(1 << 20);
    size_t length = how ? epi_kernel_describe(k, how, 1 << 20) : 0;
    int lines = 0;
    for (size_t i = 0; i < length; i++)
        lines += how[i] == '\n';
    free(how);
    return lines;
}

/* All layers beside a few: equal parts are compiled once, and described once. tests/plans.txt has how many. */
static void check_shape(const model *m, const epi_program *few, const epi_program *all, int device) {
    static const int64_t sizes[] = {1024, 256, 1024};
    epi_kernel *some = compile(few, sizes, EPI_BF16, device, EPI_PATH_FUSED),
               *k = compile(all, sizes, EPI_BF16, device, EPI_PATH_FUSED);
    epi_kernel_info less, info;
    if (!k || !some)
        return;
    epi_kernel_get_info(some, &less);
    epi_kernel_get_info(k, &info);
    printf(
        "%s, %d layers%s: %d parts, %d kernels, %d launches, %ld bytes between parts, %ld of them at once\n",
        m->name, LAYERS, device ? " for Hopper" : "", info.parts, info.kernels, info.launches,
        (long)info.value_bytes, (long)info.value_bytes_least);
    check(info.parts * FEW <= less.parts * LAYERS, "%s: %d parts of %d layers, %d of %d", m->name, less.parts,
          FEW, info.parts, LAYERS);
    /* on Hopper which parts are launched as one follows from what lies beside what, which many layers have in more ways */
    check(info.kernels <= less.kernels + (device ? less.kernels : 0),
          "%s: equal parts are compiled once: %d kernels, of %d layers %d", m->name, info.kernels, FEW,
          less.kernels);
    check((double)info.value_bytes <= 1.05 * (double)info.value_bytes_least,
          "%s: the workspace is within 5 %% of what is alive at once", m->name);
    check(info.bytes_fused < 0.6 * info.bytes_unfused, "%s: %g bytes move, %g unfused", m->name,
          info.bytes_fused, info.bytes_unfused);
    /* a part that is the same as others has none, a value between parts has one */
    int lines = count_lines(k), most = count_lines(some) + info.values - less.values;
    check(lines <= most, "%s: the description is short: %d lines, of %d", m->name, lines, most);
    epi_kernel_free(some);
    epi_kernel_free(k);
}

/* ---- how long ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The target is 50 ms on one core of a server, in time of this thread. */
static void check_time(const model *model) {
    static const int64_t sizes[] = {8192, 4096, 14336};
    double best[2] = {1e9, 1e9};
    epi_text text = model->write(LAYERS);
    for (int i = 0; i < 5; i++) {
        epi_module *m;
        epi_error err;
        double start = now();
        if (!check(epi_module_parse(ctx, text.data, text.length, "layers", &m, &err) == EPI_OK, "parses: %s",
                   err.message))
            break;
        double parsed = now();
        epi_kernel *k = compile(epi_module_program(m, 0), sizes, EPI_F32, 0, EPI_PATH_FUSED);
        double compiled = now();
        best[0] = fmin(best[0], parsed - start);
        best[1] = fmin(best[1], compiled - parsed);
        epi_kernel_free(k);
        epi_module_free(m);
    }
    epi_text_free(&text);
    printf("%s, %d layers: parse in %.1f ms and compile in %.1f ms\n", model->name, LAYERS, 1e3 * best[0],
           1e3 * best[1]);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    check(best[0] + best[1] < 4 * 0.050, "%s: %d layers compile in less than 200 ms", model->name, LAYERS);
#endif
}

static epi_module *parse(const model *model, int count) {
    epi_module *m = NULL;
    epi_error err;
    epi_text text = model->write(count);
    check(epi_module_parse(ctx, text.data, text.length, model->name, &m, &err) == EPI_OK, "parses: %s",
          err.message);
    epi_text_free(&text);
    return m;
}

/* ---- the backward by itself ---- */

static const int devices[] = {0, -90};
enum { DEVICES = sizeof devices / sizeof *devices };

static void compile_backward(const epi_program *back, int device, bool torch, epi_kernel_info *info) {
    static const char *const rows[] = {"B", "S"};
    static const epi_dim_binding all[] = {{"B", 2}, {"S", 512}, {"D", 512}, {"F", 2048},
                                          {"H", 4}, {"E", 64},  {"G", 2},   {"C", 3}};
    epi_dim_binding dims[sizeof all / sizeof *all];
    epi_options o =
        EPI_OPTIONS(.dims = dims, .type = EPI_BF16, .device = device, .threads = 2, .row_axes = rows,
                    .row_axis_count = 2, .open_axes = rows, .open_axis_count = torch ? 2 : 0);
    for (int d = 0; d < epi_program_dim_count(back); d++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (!strcmp(all[i].name, epi_program_dim(back, d)))
                dims[o.dim_count++] = all[i];
    epi_kernel *k = NULL;
    epi_error err = {0};
    if (check(epi_kernel_compile(back, &o, &k, &err) == EPI_OK, "a backward compiles: %s", err.message))
        epi_kernel_get_info(k, info);
    epi_kernel_free(k);
}

/* The backward of so many layers by device, with what the forward saved given. As PyTorch has it derived: by
 * the input as well, and compiled with open rows; else by the weights. */
static void backward_of(const layer_text *layer, int count, bool torch, epi_kernel_info *info) {
    static const char *wrt[1024];
    epi_text text = stacked_layers(layer, count);
    epi_module *m = NULL, *two = NULL;
    epi_error err = {0};
    bool ok = epi_module_parse(ctx, text.data, text.length, "net", &m, &err) == EPI_OK;
    const epi_program *p = ok ? epi_module_find(m, "net") : NULL;
    int inputs = p ? number_inputs(p, false, wrt, 1024) : 0, first = torch ? 0 : 1; /* x is the first */
    ok = p && epi_program_grad_saved(p, wrt + first, inputs - first, &two, &err) == EPI_OK;
    if (check(ok, "the backward of %d layers of %s: %s", count, layer->name, err.message))
        for (int i = 0; i < DEVICES; i++)
            compile_backward(epi_module_program(two, 1), devices[i], torch, &info[i]);
    epi_module_free(two);
    epi_module_free(m);
    epi_text_free(&text);
}

/* Layers come one after the other: what they make is alive no longer than their own parts need it, but for
 * the gradient that goes from one to the next. And no layer has more parts, launches or bytes for there being
 * others: up to 2 %, as the first is cheaper, without a gradient of the input. */
static void check_law(const layer_text *layer, int few, int most, bool torch) {
    const double between = 2.0 * 512 * 512 * 2; /* bytes of that gradient */
    const char *name = layer->name;
    const double times = 1.02 * most / few;
    epi_kernel_info infos[4][DEVICES] = {0};
    int last = most > few ? 3 : 2;
    for (int i = 0; i <= last; i++)
        backward_of(layer, (int[]){1, 2, few, most}[i], torch, infos[i]);
    for (int i = 0; i < DEVICES; i++) {
        epi_kernel_info one = infos[0][i], two = infos[1][i], some = infos[2][i], many = infos[last][i];
        printf("%s%s for device %d, %d layers: %d parts, %d launches, %ld bytes\n", name,
               torch ? " with open rows" : "", devices[i], most, many.parts, many.launches,
               (long)many.value_bytes);
        check((double)many.value_bytes_least <= 1.01 * ((double)one.value_bytes_least + between),
              "%s: %ld bytes are alive in one layer, %ld in %d", name, (long)one.value_bytes_least,
              (long)many.value_bytes_least, most);
        check(many.value_bytes <= two.value_bytes && some.value_bytes <= two.value_bytes,
              "%s: %ld bytes of workspace for 2 layers, %ld for %d, %ld for %d", name, (long)two.value_bytes,
              (long)some.value_bytes, few, (long)many.value_bytes, most);
        check(many.parts <= times * some.parts && many.launches <= times * some.launches &&
                  many.bytes_fused <= times * some.bytes_fused,
              "%s: %d parts, %d launches, %g bytes of %d layers; %d, %d, %g of %d", name, some.parts,
              some.launches, some.bytes_fused, few, many.parts, many.launches, many.bytes_fused, most);
        check(many.kernels <= some.kernels, "%s: %d kernels of %d layers, %d of %d", name, some.kernels, few,
              many.kernels, most);
    }
}

/* No part has more tensors than a GPU's kernel takes, else it would run as passes: sums of the weights of all
 * layers could be made by one. These go ahead, and each is alive until its layer comes: 10 KB of a layer. */
static void check_tensors(void) {
    epi_kernel_info some[DEVICES] = {0}, many[DEVICES] = {0};
    backward_of(&bare_layer, 8, false, some);
    backward_of(&bare_layer, 64, false, many);
    for (int i = 0; i < DEVICES; i++) {
        check(many[i].launches <= 1.05 * 8 * some[i].launches && many[i].parts <= 1.05 * 8 * some[i].parts,
              "%s: %d parts, %d launches of 8 layers; %d, %d of 64", bare_layer.name, some[i].parts,
              some[i].launches, many[i].parts, many[i].launches);
        check((double)many[i].value_bytes <= 1.07 * (double)some[i].value_bytes, "%s: %ld bytes; %ld of 64",
              bare_layer.name, (long)some[i].value_bytes, (long)many[i].value_bytes);
    }
}

static void check_backwards(void) {
    check_tensors();
    for (size_t i = 0; i < sizeof model_layers / sizeof *model_layers; i++) {
        check_law(&model_layers[i], 12, LAYERS, false);
        check_law(&model_layers[i], 12, 12, true);
    }
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    for (int i = 0; i < 2; i++) {
        epi_module *small = parse(&models[i], models[i].run), *few = parse(&models[i], FEW),
                   *whole = parse(&models[i], LAYERS);
        if (small && few && whole) {
            check_values(&models[i], epi_module_program(small, 0), EPI_F32);
            check_values(&models[i], epi_module_program(small, 0), EPI_BF16);
            check_shape(&models[i], epi_module_program(few, 0), epi_module_program(whole, 0), 0);
            check_shape(&models[i], epi_module_program(few, 0), epi_module_program(whole, 0), -90);
        }
        check_time(&models[i]);
        epi_module_free(small);
        epi_module_free(few);
        epi_module_free(whole);
    }
    check_backwards();
    epi_context_close(ctx);
    return finish();
}

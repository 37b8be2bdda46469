/* train.c: a small Transformer learns to foretell the next byte of a text, on a GPU if there is one, else on
 * the CPU.
 *
 *     cc train.c $(pkg-config --cflags --libs epilog) -Wl,-rpath,$(pkg-config --variable=libdir epilog) -lm -o train
 *     ./train [--state STATE.safetensors] [--sample BYTES] [FILE [STEPS [LAYERS [FEATURES]]]]
 *
 * A step of training is one program: the loss, the gradients, which are derived, and Adam. So it is one
 * kernel handle, which keeps activations in its workspace and updates weights where their gradients are made.
 * Without a file it learns from its own text, and fails if it does not. With --state it goes on from what that
 * file has, if it is there, and leaves there what the next one goes on from: to stop and go on gives the same
 * bits as not to stop. With --sample it writes so many bytes at the end.
 */
#include <epilog_io.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 256, BATCH = 8, LENGTH = 64, HEAD = 16, MAX_LAYERS = 32, MAX_WEIGHTS = 8 * MAX_LAYERS + 2 };

static const char layer_text[] =
    "layer(x[B,S,D], cos_t: f32[S,E/2], sin_t: f32[S,E/2],\n"
    "    g1[D], wq[H,E,D], wk[H,E,D], wv[H,E,D], wo[D,H,E], g2[D], w1[F,D], w2[D,F]) -> y[B,S,D] {\n"
    "    n = rmsnorm(x, g1, 1e-5)\n"
    "    a, b = halves(n @ wq, E)\n"
    "    q = concat(a*cos_t - b*sin_t, b*cos_t + a*sin_t, E)\n"
    "    c, d = halves(n @ wk, E)\n"
    "    k = rename(concat(c*cos_t - d*sin_t, d*cos_t + c*sin_t, E), S, R)\n"
    "    v = rename(n @ wv, S, R)\n"
    "    s = where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf)\n"
    "    h = x + sum(softmax(s, R)*v, R) @ wo\n"
    "    y = h + gelu(rmsnorm(h, g2, 1e-5) @ w1) @ w2\n"
    "}\n";

typedef struct weight {
    char name[16];
    const char *axes;
    float spread;                         /* of the first values; 0: all are 1 */
    void *value[2], *mean[2], *square[2]; /* before a step and after it, which may be one place */
} weight;

typedef struct trainer {
    epi_context *ctx;
    epi_module *module;
    epi_kernel *kernel;
    int device, layers, weights;
    int64_t features;
    epi_dtype type;
    weight weight[MAX_WEIGHTS];
    void *ids, *targets, *cosines, *sines, *rate, *loss, *workspace;
    uint32_t random;
    int steps; /* that are done */
} trainer;

/* ---- errors end an example ---- */

static epi_error error;

static void stop(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void check(epi_status status) {
    char message[2048];
    if (status == EPI_OK)
        return;
    epi_error_format(&error, message, sizeof message);
    stop(message);
}

/* ---- the text of a step ---- */

static char *text;
static size_t text_size;

static void say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t more = (size_t)vsnprintf(NULL, 0, format, args) + 1;
    va_end(args);
    text = realloc(text, text_size + more);
    if (!text)
        stop("out of memory");
    va_start(args, format);
    vsnprintf(text + text_size, more, format, args);
    va_end(args);
    text_size += more - 1;
}

static void name_weight(trainer *t, const char *name, int layer, const char *axes, double spread) {
    weight *w = &t->weight[t->weights++];
    *w = (weight){.axes = axes, .spread = (float)spread};
    snprintf(w->name, sizeof w->name, layer < 0 ? "%s" : "%s_%d", name, layer);
}

static void name_weights(trainer *t) {
    double narrow = sqrt(3.0 / (double)t->features), wide = narrow / 2, deep = 1 / sqrt(2.0 * t->layers);
    name_weight(t, "table", -1, "[V,D]", 0.1);
    for (int l = 0; l < t->layers; l++) {
        name_weight(t, "g1", l, "[D]", 0);
        name_weight(t, "wq", l, "[H,E,D]", narrow);
        name_weight(t, "wk", l, "[H,E,D]", narrow);
        name_weight(t, "wv", l, "[H,E,D]", narrow);
        name_weight(t, "wo", l, "[D,H,E]", narrow * deep);
        name_weight(t, "g2", l, "[D]", 0);
        name_weight(t, "w1", l, "[F,D]", narrow);
        name_weight(t, "w2", l, "[D,F]", wide * deep);
    }
    name_weight(t, "g", -1, "[D]", 0);
}

/* The weights one after another, `before` each name: the names alone where `type` is NULL, else with that
 * type and their axes, as a signature has them. */
static void say_weights(const trainer *t, const char *before, const char *type) {
    for (int i = 0; i < t->weights; i++)
        say("%s%s%s%s%s", i ? ", " : "", before, t->weight[i].name, type ? type : "",
            type ? t->weight[i].axes : "");
}

/* The weights and Adam's two means of each, as a signature has them. */
static void say_state(const trainer *t, const char *values, const char *means, const char *squares) {
    say_weights(t, values, "");
    say(", ");
    say_weights(t, means, ": f32");
    say(", ");
    say_weights(t, squares, ": f32");
}

static void write_text(const trainer *t) {
    const char inputs[] = "ids: i32[B,S], next: i32[B,S], cos_t: f32[S,E/2], sin_t: f32[S,E/2], ";
    say("%slogits(ids: i32[B,S], cos_t: f32[S,E/2], sin_t: f32[S,E/2], ", layer_text);
    say_weights(t, "", "");
    say(") -> z[B,S,V] {\n    x_0 = table[ids]\n");
    for (int l = 0; l < t->layers; l++)
        say("    x_%d = layer(x_%d, cos_t, sin_t, g1_%d, wq_%d, wk_%d, wv_%d, wo_%d, g2_%d, w1_%d, w2_%d)\n",
            l + 1, l, l, l, l, l, l, l, l, l);
    say("    z = rmsnorm(x_%d, g, 1e-5) @ table\n}\nmodel(%s", t->layers, inputs);
    say_weights(t, "", "");
    say(") -> loss {\n    z = logits(ids, cos_t, sin_t, ");
    say_weights(t, "", NULL);
    say(")\n    loss = mean(logsumexp(z, V) - gather(z, next, V), B, S)\n}\n");
    say("step(%srate, ", inputs);
    say_state(t, "", "m_", "v_");
    say(") -> (loss, ");
    say_state(t, "new_", "new_m_", "new_v_");
    say(") {\n    loss = model(ids, next, cos_t, sin_t, ");
    say_weights(t, "", NULL);
    say(")\n    ");
    say_weights(t, "d_", NULL);
    say(" = grad(model, ");
    say_weights(t, "", NULL);
    say(")(ids, next, cos_t, sin_t, ");
    say_weights(t, "", NULL);
    say(", 1)\n");
    for (int i = 0; i < t->weights; i++) {
        const char *n = t->weight[i].name;
        say("    new_m_%s = 0.9*m_%s + 0.1*d_%s\n    new_v_%s = 0.99*v_%s + 0.01*d_%s**2\n", n, n, n, n, n,
            n);
        say("    new_%s = %s - rate*new_m_%s/(sqrt(new_v_%s) + 1e-8)\n", n, n, n, n);
    }
    say("}\n");
}

/* ---- memory ---- */

static void *make(const trainer *t, size_t bytes, const void *from) {
    void *memory;
    check(epi_device_alloc(t->ctx, t->device, bytes, &memory, &error));
    if (from)
        check(epi_device_copy(t->ctx, t->device, memory, from, bytes, &error));
    return memory;
}

static double uniform(trainer *t) {
    t->random = t->random * 1664525u + 1013904223u;
    return (double)(t->random >> 8) / (1 << 24);
}

/* First values of a tensor, in its type; kernels take an output's place as an input's where they can. */
static void make_places(trainer *t, void **places, int input, int output, float middle, float spread) {
    epi_tensor_shape shape;
    check(epi_kernel_tensor(t->kernel, input, &shape));
    float *x = malloc((size_t)shape.count * sizeof *x);
    void *typed = malloc((size_t)shape.count * sizeof *x);
    if (!x || !typed)
        stop("out of memory");
    for (int64_t i = 0; i < shape.count; i++)
        x[i] = middle + spread * (float)(2 * uniform(t) - 1);
    check(epi_convert(typed, shape.type, x, EPI_F32, shape.count));
    size_t bytes = (size_t)shape.count * epi_dtype_size(shape.type);
    places[0] = make(t, bytes, typed);
    places[1] = epi_kernel_in_place(t->kernel, output, input) ? places[0] : make(t, bytes, NULL);
    free(x);
    free(typed);
}

static void make_tensors(trainer *t) {
    float turns[2][LENGTH][HEAD / 2];
    for (int s = 0; s < LENGTH; s++)
        for (int e = 0; e < HEAD / 2; e++) {
            double angle = s * pow(10000, -2.0 * e / HEAD);
            turns[0][s][e] = (float)cos(angle);
            turns[1][s][e] = (float)sin(angle);
        }
    t->cosines = make(t, sizeof turns[0], turns[0]);
    t->sines = make(t, sizeof turns[1], turns[1]);
    t->ids = make(t, BATCH * LENGTH * 4, NULL);
    t->targets = make(t, BATCH * LENGTH * 4, NULL);
    t->rate = make(t, 4, NULL);
    t->loss = make(t, 4, NULL);
    t->workspace = make(t, epi_kernel_workspace(t->kernel), NULL);
    int n = t->weights;
    for (int i = 0; i < n;
         i++) { /* inputs: five, then values, means, squares; outputs: the loss, then those */
        weight *w = &t->weight[i];
        int input = 5 + i, output = 5 + 3 * n + 1 + i;
        make_places(t, w->value, input, output, w->spread == 0, w->spread);
        make_places(t, w->mean, input + n, output + n, 0, 0);
        make_places(t, w->square, input + 2 * n, output + 2 * n, 0, 0);
    }
}

/* ---- the state, in a file ---- */

/* Calls with each tensor of the state: its name in the file, and its place and number in a step. */
static void each_state(trainer *t, void (*visit)(trainer *, const char *, void *, int, void *), void *with) {
    static const char *const before[] = {"", "m_", "v_"};
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < t->weights; i++) {
            weight *w = &t->weight[i];
            void **places[] = {w->value, w->mean, w->square};
            char name[32];
            snprintf(name, sizeof name, "%s%s", before[k], w->name);
            visit(t, name, places[k][0], 5 + k * t->weights + i, with);
        }
}

static size_t bytes_of(const epi_tensor_shape *shape) {
    return (size_t)shape->count * epi_dtype_size(shape->type);
}

static void stop_other_model(void) {
    stop("the state is that of a model with other LAYERS or FEATURES, or on a device with another type");
}

static void read_one(trainer *t, const char *name, void *place, int number, void *file) {
    epi_tensor_shape shape;
    const epi_safetensor *saved;
    check(epi_kernel_tensor(t->kernel, number, &shape));
    check(epi_safetensors_get(file, name, &saved, &error));
    if (saved->type != shape.type || saved->bytes != bytes_of(&shape))
        stop_other_model();
    check(epi_device_copy(t->ctx, t->device, place, saved->data, saved->bytes, &error));
}

/* Goes on from what the file has. */
static void read_state(trainer *t, const char *path) {
    epi_safetensors *file;
    const epi_safetensor *progress;
    check(epi_safetensors_open(path, &file, &error));
    check(epi_safetensors_get(file, "progress", &progress, &error));
    int32_t numbers[2];
    if (progress->type != EPI_I32 || progress->bytes != sizeof numbers)
        stop("the state is that of another program");
    memcpy(numbers, progress->data, sizeof numbers);
    if (epi_safetensors_count(file) != 3 * (size_t)t->weights + 1) /* of more layers, too */
        stop_other_model();
    t->steps = numbers[0];
    memcpy(&t->random, &numbers[1], sizeof t->random);
    each_state(t, read_one, file);
    epi_safetensors_close(file);
    printf("goes on from step %d\n", t->steps);
}

typedef struct state_list {
    epi_safetensor at[3 * MAX_WEIGHTS + 1];
    epi_tensor_shape shape[3 * MAX_WEIGHTS];
    char name[3 * MAX_WEIGHTS][32];
    int count;
} state_list;

static void list_one(trainer *t, const char *name, void *place, int number, void *list) {
    state_list *l = list;
    int i = l->count++;
    snprintf(l->name[i], sizeof l->name[i], "%s", name);
    check(epi_kernel_tensor(t->kernel, number, &l->shape[i]));
    void *copy = malloc(bytes_of(&l->shape[i]));
    if (!copy)
        stop("out of memory");
    check(epi_device_copy(t->ctx, t->device, copy, place, bytes_of(&l->shape[i]), &error));
    l->at[i] = (epi_safetensor){.name = l->name[i],
                                .type = l->shape[i].type,
                                .rank = l->shape[i].rank,
                                .shape = l->shape[i].sizes,
                                .data = copy};
}

static void write_state(trainer *t, const char *path) {
    static state_list list;
    const int64_t two = 2;
    int32_t numbers[2] = {t->steps};
    list.count = 0;
    memcpy(&numbers[1], &t->random, sizeof t->random);
    each_state(t, list_one, &list);
    list.at[list.count] =
        (epi_safetensor){.name = "progress", .type = EPI_I32, .rank = 1, .shape = &two, .data = numbers};
    check(epi_safetensors_write(path, list.at, (size_t)list.count + 1, NULL, 0, &error));
    for (int i = 0; i < list.count; i++)
        free((void *)(uintptr_t)list.at[i].data);
}

/* Goes on from the file, or begins anew where there is none: one that cannot be written is told before the
 * training, not after it. */
static void open_state(trainer *t, const char *path) {
    FILE *there = fopen(path, "rb");
    if (there)
        fclose(there);
    there ? read_state(t, path) : write_state(t, path);
}

/* ---- training ---- */

static float step(trainer *t, int number, const int32_t *ids, const int32_t *next) {
    epi_tensor tensors[6 * MAX_WEIGHTS + 6] = {
        {t->ids, NULL}, {t->targets, NULL}, {t->cosines, NULL}, {t->sines, NULL}, {t->rate, NULL}};
    int n = t->weights, after = 5 + 3 * n;
    for (int i = 0; i < n; i++) {
        const weight *w = &t->weight[i];
        tensors[5 + i].data = w->value[0];
        tensors[5 + n + i].data = w->mean[0];
        tensors[5 + 2 * n + i].data = w->square[0];
        tensors[after + 1 + i].data = w->value[1];
        tensors[after + 1 + n + i].data = w->mean[1];
        tensors[after + 1 + 2 * n + i].data = w->square[1];
    }
    tensors[after].data = t->loss;
    /* Adam's means begin at 0, which the rate makes up for; it rises over the first steps */
    double warm = number < 20 ? number / 20.0 : 1;
    float rate = (float)(0.003 * warm * sqrt(1 - pow(0.99, number)) / (1 - pow(0.9, number))), loss;
    check(epi_device_copy(t->ctx, t->device, t->ids, ids, BATCH * LENGTH * 4, &error));
    check(epi_device_copy(t->ctx, t->device, t->targets, next, BATCH * LENGTH * 4, &error));
    check(epi_device_copy(t->ctx, t->device, t->rate, &rate, 4, &error));
    check(epi_kernel_start(t->kernel, tensors, 6 + 6 * n, t->workspace, NULL, &error));
    check(epi_device_wait(t->ctx, t->device, &error));
    check(epi_device_copy(t->ctx, t->device, &loss, t->loss, 4, &error));
    for (int i = 0; i < n; i++) { /* what a step made is what the next one takes */
        void **places[] = {t->weight[i].value, t->weight[i].mean, t->weight[i].square};
        for (int k = 0; k < 3; k++) {
            void *made = places[k][1];
            places[k][1] = places[k][0];
            places[k][0] = made;
        }
    }
    return loss;
}

/* Sequences from random places of the text. */
static void pick(trainer *t, const unsigned char *data, size_t size, int32_t *ids, int32_t *next) {
    for (int b = 0; b < BATCH; b++) {
        size_t at = (size_t)(uniform(t) * (double)(size - LENGTH - 1));
        for (int s = 0; s < LENGTH; s++) {
            ids[b * LENGTH + s] = data[at + (size_t)s];
            next[b * LENGTH + s] = data[at + (size_t)s + 1];
        }
    }
}

/* Writes bytes that the model holds likely, one by one, behind the first of the text. */
static void sample(trainer *t, const unsigned char *data, int bytes) {
    epi_kernel *kernel;
    epi_dim_binding dims[] = {
        {"B", 1},    {"S", LENGTH},          {"D", t->features}, {"H", t->features / HEAD},
        {"E", HEAD}, {"F", 4 * t->features}, {"V", BYTES}};
    epi_type_binding types[] = {{"z", EPI_F32}};
    epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 7, .type = t->type, .types = types,
                                      .type_count = 1, .device = t->device);
    check(epi_kernel_compile(epi_module_find(t->module, "logits"), &options, &kernel, &error));
    static float z[LENGTH][BYTES];
    void *logits = make(t, sizeof z, NULL), *workspace = make(t, epi_kernel_workspace(kernel), NULL);
    epi_tensor tensors[MAX_WEIGHTS + 4] = {{t->ids, NULL}, {t->cosines, NULL}, {t->sines, NULL}};
    int32_t ids[LENGTH];
    for (int i = 0; i < t->weights; i++)
        tensors[3 + i].data = t->weight[i].value[0];
    tensors[3 + t->weights].data = logits;
    for (int s = 0; s < LENGTH; s++)
        ids[s] = data[s];
    fwrite(data, 1, LENGTH, stdout);
    printf("|");
    for (int i = 0; i < bytes; i++) {
        check(epi_device_copy(t->ctx, t->device, t->ids, ids, sizeof ids, &error));
        check(epi_kernel_start(kernel, tensors, 4 + t->weights, workspace, NULL, &error));
        check(epi_device_wait(t->ctx, t->device, &error));
        check(epi_device_copy(t->ctx, t->device, z, logits, sizeof z, &error));
        const float *last = z[LENGTH - 1];
        double sum = 0, at = uniform(t), top = -INFINITY;
        int next = 0;
        for (int v = 0; v < BYTES; v++)
            top = fmax(top, (double)last[v]);
        for (int v = 0; v < BYTES; v++)
            sum += exp((double)last[v] - top);
        for (double passed = exp((double)last[0] - top); passed < at * sum && next < BYTES - 1;)
            passed += exp((double)last[++next] - top);
        putchar(next);
        memmove(ids, ids + 1, sizeof ids - sizeof *ids);
        ids[LENGTH - 1] = next;
    }
    printf("\n");
    check(epi_device_free(t->ctx, t->device, logits, &error));
    check(epi_device_free(t->ctx, t->device, workspace, &error));
    epi_kernel_free(kernel);
}

static void open_trainer(trainer *t) {
    check(epi_context_open(&t->ctx, &error));
    epi_device_info device;
    t->device = epi_device_find(t->ctx, "gpu");
    t->type = t->device < 0 ? EPI_F32 : EPI_BF16; /* of weights and activations; Adam's means are f32 */
    t->device = t->device < 0 ? 0 : t->device;
    check(epi_device_get(t->ctx, t->device, &device));
    name_weights(t);
    write_text(t);
    check(epi_module_parse(t->ctx, text, text_size, "train.c", &t->module, &error));
    epi_dim_binding dims[] = {
        {"B", BATCH}, {"S", LENGTH},          {"D", t->features}, {"H", t->features / HEAD},
        {"E", HEAD},  {"F", 4 * t->features}, {"V", BYTES}};
    epi_type_binding types[] = {{"loss", EPI_F32}};
    epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 7, .type = t->type, .types = types,
                                      .type_count = 1, .device = t->device);
    check(epi_kernel_compile(epi_module_find(t->module, "step"), &options, &t->kernel, &error));
    epi_kernel_info info;
    epi_kernel_get_info(t->kernel, &info);
    printf("on %s: a step is %d kernels, with %zu bytes between them\n", device.name, info.parts,
           epi_kernel_workspace(t->kernel));
    make_tensors(t);
}

static void close_trainer(trainer *t) {
    void *shared[] = {t->ids, t->targets, t->cosines, t->sines, t->rate, t->loss, t->workspace};
    for (int i = 0; i < 7; i++)
        check(epi_device_free(t->ctx, t->device, shared[i], &error));
    for (int i = 0; i < t->weights; i++) {
        void **places[] = {t->weight[i].value, t->weight[i].mean, t->weight[i].square};
        for (int k = 0; k < 3; k++) {
            if (places[k][1] != places[k][0])
                check(epi_device_free(t->ctx, t->device, places[k][1], &error));
            check(epi_device_free(t->ctx, t->device, places[k][0], &error));
        }
    }
    epi_kernel_free(t->kernel);
    epi_module_free(t->module);
    epi_context_close(t->ctx);
    free(text);
}

static unsigned char *read_bytes(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    unsigned char *data = malloc(1 << 26);
    *size = f && data ? fread(data, 1, 1 << 26, f) : 0;
    if (!f || !data || ferror(f)) {
        perror(path);
        exit(1);
    }
    if (*size < LENGTH + 2)
        stop("the file is too short to learn from");
    fclose(f);
    return data;
}

/* 0: it is none. */
static int number_of(const char *word) {
    char *end;
    long x = strtol(word, &end, 10);
    return *word && !*end && x > 0 && x < 1 << 30 ? (int)x : 0;
}

static const char usage[] =
    "train [--state STATE.safetensors] [--sample BYTES] [FILE [STEPS [LAYERS [FEATURES]]]]\n"
    "LAYERS: up to 32; FEATURES: a multiple of 16. Without a FILE it learns its own text.";

/* The exit status: also of what could not be printed. */
static int finish(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "standard output could not be written\n");
    return 1;
}

int main(int count, char **words) {
    static trainer t = {.random = 1};
    const char *state = NULL;
    int bytes = 0;
    while (count > 1 && words[1][0] == '-') { /* options stand first */
        if (count > 2 && !strcmp(words[1], "--state"))
            state = words[2];
        else if (count < 3 || strcmp(words[1], "--sample") != 0 || !(bytes = number_of(words[2])))
            stop(usage);
        count -= 2;
        words += 2;
    }
    int steps = count > 2 ? number_of(words[2]) : count > 1 ? 500 : 60;
    t.layers = count > 3 ? number_of(words[3]) : 2;
    t.features = count > 4 ? number_of(words[4]) : count > 1 ? 64 : 32;
    if (count > 5 || steps < 1 || t.layers < 1 || t.layers > MAX_LAYERS || t.features < HEAD ||
        t.features % HEAD)
        stop(usage);
    size_t size = 0;
    unsigned char *data = count > 1 ? read_bytes(words[1], &size) : NULL;
    open_trainer(&t);
    if (!data) {
        data = (unsigned char *)text;
        size = text_size;
    }
    if (state)
        open_state(&t, state);
    int32_t ids[BATCH * LENGTH], next[BATCH * LENGTH];
    float loss = 0, first = 0;
    struct timespec begin, end;
    timespec_get(&begin, TIME_UTC);
    for (int i = 1; i <= steps; i++) {
        pick(&t, data, size, ids, next);
        loss = step(&t, ++t.steps, ids, next);
        if (!isfinite(loss))
            stop("the loss is NaN or infinite");
        if (i == 1)
            first = loss;
        if (i == 1 || i == steps || i % 20 == 0)
            printf("step %d: loss %.3f\n", t.steps, (double)loss);
    }
    timespec_get(&end, TIME_UTC);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    printf("%.1f ms a step\n", 1e3 * seconds / steps);
    if (state)
        write_state(&t, state);
    if (bytes)
        sample(&t, data, bytes);
    if (count > 1)
        free(data);
    close_trainer(&t);
    return finish(count == 1 && !state && !(loss < first / 2) ? 1 : 0); /* its own text is easy */
}

/* llama.c: generates text with a Llama model, on a GPU if there is one, else on the CPU.
 *
 *     cc llama.c $(pkg-config --cflags --libs epilog) -Wl,-rpath,$(pkg-config --variable=libdir epilog) -lm -o llama
 *     ./llama --tokenizer tokenizer.json config.json model.safetensors [more.safetensors ...] -- TOKENS TEXT [TEXT ...]
 *     ./llama config.json model.safetensors [more.safetensors ...] -- TOKENS ID [ID ...] [, ID ...]
 *     ./llama model.gguf -- TOKENS ID [ID ...]
 *
 * The model is a Hugging Face checkpoint (Llama 2 and 3, Mistral, TinyLlama, SmolLM) or a GGUF file with F32, F16,
 * BF16, Q8_0, Q4_0 or Q4_1. With the model's tokenizer.json, prompts are texts. Otherwise they are token ids, with a
 * comma between prompts.
 *
 * The program prints at most TOKENS new tokens for each prompt, and stops at a token that ends the text. With one
 * prompt, it prints each token as soon as it is known. With several, it prints a line for each prompt at the end.
 * All prompts run as one batch, and the batch does not change their texts.
 *
 * The next token is the most probable one. With --temperature X, it is drawn by its probability instead. --top-k N
 * draws only from the N most probable tokens, --top-p P only from the most probable ones whose probabilities sum to
 * P, and --seed S seeds the draw. If TOKENS is 0, the program prints the negative log-probability of each token of
 * the prompt, in nats, and their mean.
 *
 * Weights keep their type, also in 8 and 4 bits; quantise.c makes such files. If a configuration has an unknown
 * field, or one that asks for other arithmetic, it is an error. Without arguments, the program checks itself with a
 * small random model. It then compares whole prompts with prompts that go in token by token, and in a batch.
 */
#include <epilog_io.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gguf.h"

/* A layer has two programs: attention, and the rest. Attention exists twice. `prompt` takes a whole prompt and gives
 * its keys and values. `step` takes one token of each sequence and writes its key and value into caches of R places.
 * Rotary embedding rotates the first half of a head against the second.
 *
 * Features have two axes, blocks and the elements of a block: [B,C] in the model, [M,N] in the heads, [P,Q] in the MLP.
 * So quantised weights have a scale for each block.
 *
 * Two notations are replaced before the programs are parsed. @wq[G,H,E|B,C] declares a weight, with its reduction axes
 * after the bar, and @wq uses it; `spell_weight` writes both for the form of the weight. %n[C] quantises n to 8 bits
 * with a scale for each block C, and %n uses the result. On a CPU with quantised weights, the product then multiplies
 * integers, as llama.cpp does. Elsewhere %n is n. */
static const char programs[] =
    "embed(@table[V|B,C], ids: i32[T]) -> x[T,B,C] {\n"
    "    x = table[ids]\n"
    "}\n"
    "embedeight(table: i8[V,B,C], table_s: f16[V,B], ids: i32[T]) -> x[T,B,C] {\n"
    "    x = table_s[ids]*table[ids]\n"
    "}\n"
    "embedfour(table: u8[V,B,C/2], table_s: f16[V,B], ids: i32[T]) -> x[T,B,C] {\n"
    "    bytes = table[ids]\n"
    "    high = floor(bytes/16)\n"
    "    low = bytes - 16*high\n"
    "    x = table_s[ids]*join(where(low > 7, low - 16, low), where(high > 7, high - 16, high), C)\n"
    "}\n"
    "embedadded(table: u8[V,B,C/2], table_s: f16[V,B], table_m: f16[V,B], ids: i32[T]) -> x[T,B,C] {\n"
    "    bytes = table[ids]\n"
    "    high = floor(bytes/16)\n"
    "    x = table_s[ids]*join(bytes - 16*high, high, C) + table_m[ids]\n"
    "}\n"
    "angles(position: i32[T], frequency: f32[E/2]) -> (cos_t: f32[T,E/2], sin_t: f32[T,E/2]) {\n"
    "    cos_t = cos(position*frequency)\n"
    "    sin_t = sin(position*frequency)\n"
    "}\n"
    "prompt(x[T,B,C], g[B,C], @wq[G,H,E|B,C], @wk[G,E|B,C], @wv[G,E|B,C], cos_t: f32[T,E/2], sin_t: "
    "f32[T,E/2], eps)\n"
    "    -> (o[T,G,H,E], k[T,G,E], v[T,G,E]) {\n"
    "    n = x*rsqrt(mean(x*x, B, C) + eps)*g\n"
    "    %n[C]\n"
    "    a, b = halves(%n @ @wq, E)\n"
    "    q = concat(a*cos_t - b*sin_t, b*cos_t + a*sin_t, E)\n"
    "    c, d = halves(%n @ @wk, E)\n"
    "    k = concat(c*cos_t - d*sin_t, d*cos_t + c*sin_t, E)\n"
    "    v = %n @ @wv\n"
    "    keys = rename(k, T, R)\n"
    "    values = rename(v, T, R)\n"
    "    s = where(index(R) <= index(T), sum(q*keys, E)*rsqrt(size(E)), -inf)\n"
    "    o = sum(softmax(s, R)*values, R)\n"
    "}\n"
    "step(x[T,B,C], g[B,C], @wq[G,H,E|B,C], @wk[G,E|B,C], @wv[G,E|B,C], cos_t: f32[T,E/2], sin_t: "
    "f32[T,E/2], eps,\n"
    "    position: i32[T], keys[T,R,G,E], values[T,R,G,E])\n"
    "    -> (o[T,G,H,E], keys_new[T,R,G,E], values_new[T,R,G,E]) {\n"
    "    n = x*rsqrt(mean(x*x, B, C) + eps)*g\n"
    "    %n[C]\n"
    "    a, b = halves(%n @ @wq, E)\n"
    "    q = concat(a*cos_t - b*sin_t, b*cos_t + a*sin_t, E)\n"
    "    c, d = halves(%n @ @wk, E)\n"
    "    keys_new = update(keys, concat(c*cos_t - d*sin_t, d*cos_t + c*sin_t, E), position, R)\n"
    "    values_new = update(values, %n @ @wv, position, R)\n"
    "    s = where(index(R) <= position, sum(q*keys_new, E)*rsqrt(size(E)), -inf)\n"
    "    o = sum(softmax(s, R)*values_new, R)\n"
    "}\n"
    "rest(x[T,B,C], o[T,M,N], @wo[B,C|M,N], g[B,C], @wg[P,Q|B,C], @wu[P,Q|B,C], @wd[B,C|P,Q], eps) -> "
    "y[T,B,C] {\n"
    "    %o[N]\n"
    "    h = x + %o @ @wo\n"
    "    n = h*rsqrt(mean(h*h, B, C) + eps)*g\n"
    "    %n[C]\n"
    "    m = silu(%n @ @wg)*(%n @ @wu)\n"
    "    %m[Q]\n"
    "    y = h + %m @ @wd\n"
    "}\n"
    "head(x[T,B,C], g[B,C], @out[V|B,C], eps) -> next: i32[T] {\n"
    "    n = x*rsqrt(mean(x*x, B, C) + eps)*g\n"
    "    %n[C]\n"
    "    z = %n @ @out\n"
    "    top = max(z, V)\n"
    "    next = where(top - top == 0, argmax(z, V), -1)\n" /* -1 if there is NaN or an infinity */
    "}\n"
    "scores(x[T,B,C], g[B,C], @out[V|B,C], eps) -> z: f32[T,V] {\n"
    "    n = x*rsqrt(mean(x*x, B, C) + eps)*g\n"
    "    %n[C]\n"
    "    z = %n @ @out\n"
    "}\n"
    "loss(x[T,B,C], g[B,C], @out[V|B,C], eps, ids: i32[T]) -> nats: f32[T] {\n"
    "    n = x*rsqrt(mean(x*x, B, C) + eps)*g\n"
    "    %n[C]\n"
    "    z = %n @ @out\n"
    "    nats = logsumexp(z, V) - sum(where(index(V) == ids, z, 0), V)\n"
    "}\n";

enum { MAX_SEQUENCES = 256, MAX_LAYERS = 256, MAX_FILES = 64, MAX_ENDS = 8, MAX_PARTS = 3 };

/* The weights of a layer, in the order of its programs' inputs, then those before and after all layers. */
enum { G1, WQ, WK, WV, WO, G2, WG, WU, WD, WEIGHTS, TABLE = WEIGHTS, OUT, MATRICES };
static const char *const spelled[MATRICES] = {"",   "wq", "wk", "wv",    "wo", "",
                                              "wg", "wu", "wd", "table", "out"};
static const char *const weight_names[WEIGHTS] = {
    "input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
static const char *const gguf_names[WEIGHTS] = {"attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
                                                "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down"};

/* How a matrix is stored: as plain numbers; in 8 or 4 bits with an f16 scale for each block; or in 4 bits with an f16
 * scale and an f16 minimum for each block. */
typedef enum form { PLAIN, BITS8, BITS4, BITS4M } form;

typedef struct weight {
    void *part[MAX_PARTS]; /* elements, scales, minima */
} weight;

typedef struct kernel {
    epi_kernel *handle;
    int tensors;
} kernel;

/* How the next token is selected. */
typedef struct choice {
    double temperature, top_p; /* temperature 0: the most probable token */
    int64_t top_k;             /* 0: all tokens */
    uint64_t seed;
} choice;

typedef struct llama {
    epi_context *ctx;
    epi_module *module;
    int device;
    epi_dtype type;            /* of activations and caches */
    form forms[MATRICES];      /* the same in every layer */
    epi_dtype types[MATRICES]; /* of plain matrices */
    bool integers;             /* rows are quantised too: on a CPU, if all matrices are */
    int64_t block;             /* features that share a scale */
    int64_t layers, vocabulary, features, inner, heads, groups, head; /* V, B*C, P*Q, G*H, G, E */
    double eps, theta, window;         /* window: how far back Mistral's attention looks */
    double factor, low, high, trained; /* of Llama 3's frequencies; factor 1: unscaled */
    double ends[MAX_ENDS];             /* tokens that end a text */
    int end_count;
    weight table, norm, out; /* before and after the layers */
    weight weights[MAX_LAYERS][WEIGHTS];
    void *keys[MAX_LAYERS], *values[MAX_LAYERS];
    int64_t sequences, places; /* of the caches */
    int64_t context;           /* the most tokens of a text */
    choice choice;
    uint64_t draws[MAX_SEQUENCES]; /* the state of each sequence's random numbers */
    void *number, *frequency, *workspace;
    size_t workspace_bytes;
    kernel embed, angles, step, rest, head_of_one, head_of_all;
} llama;

/* ---- errors: the example prints them and exits ---- */

static void stop(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

/* Says in one line what is wrong with the arguments, and exits. */
static void misused(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "llama: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "; see llama --help\n");
    va_end(args);
    exit(2);
}

/* Returns the exit status: 1 also if standard output failed. */
static int finish(int status) {
    if (fflush(stdout) != 0 || ferror(stdout))
        stop("standard output could not be written");
    return status;
}

static epi_error error;

static void check(epi_status status) {
    char message[2048];
    if (status == EPI_OK)
        return;
    epi_error_format(&error, message, sizeof message);
    stop("%s", message);
}

/* ---- memory ---- */

static void *make(const llama *m, size_t bytes, const void *from) {
    void *memory;
    check(epi_device_alloc(m->ctx, m->device, bytes, &memory, &error));
    if (from)
        check(epi_device_copy(m->ctx, m->device, memory, from, bytes, &error));
    return memory;
}

static void drop(const llama *m, void *memory) {
    check(epi_device_free(m->ctx, m->device, memory, &error));
}

/* Multiplies sizes. A corrupt file could make the product overflow. */
static int64_t times(int64_t a, int64_t b) {
    if (a < 0 || b < 0 || (b && a > INT64_MAX / b) || a * b > (int64_t)(SIZE_MAX / 16))
        stop("a size of the model is too large");
    return a * b;
}

static size_t size_of(const llama *m, int64_t count) {
    return (size_t)times(count, (int64_t)epi_dtype_size(m->type));
}

/* A setting that must be a positive integer. */
static int64_t count_of(double x, const char *key) {
    enum { MOST = 1 << 24 };
    if (!(x >= 1 && x <= MOST) || x != floor(x))
        stop("\"%s\" is %g, which is no number of anything in a Llama", key, x);
    return (int64_t)x;
}

/* ---- kernels ---- */

/* The size of a block; all features are one block if they are no multiple of it. */
static int64_t block_of(const llama *m, int64_t features) {
    return features % m->block ? features : m->block;
}

/* Compiles a program for the sizes of the model and this many tokens. */
static kernel compile(llama *m, const char *name, int64_t tokens) {
    const epi_program *program = epi_module_find(m->module, name);
    const int64_t wide = m->heads * m->head, c = block_of(m, m->features), n = block_of(m, wide),
                  q = block_of(m, m->inner);
    const epi_dim_binding all[] = {{"T", tokens},    {"B", m->features / c},
                                   {"C", c},         {"M", wide / n},
                                   {"N", n},         {"P", m->inner / q},
                                   {"Q", q},         {"V", m->vocabulary},
                                   {"G", m->groups}, {"H", m->heads / m->groups},
                                   {"E", m->head},   {"R", !strcmp(name, "step") ? m->places : tokens}};
    enum { COUNT = sizeof all / sizeof *all };
    epi_dim_binding dims[COUNT];
    int count = 0;
    for (int i = 0; i < epi_program_dim_count(program); i++)
        for (int j = 0; j < COUNT; j++)
            if (!strcmp(all[j].name, epi_program_dim(program, i)))
                dims[count++] = all[j];
    epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = count, .type = m->type, .device = m->device);
    kernel k = {NULL, epi_program_tensor_count(program)};
    check(epi_kernel_compile(program, &options, &k.handle, &error));
    if (epi_kernel_workspace(k.handle) > m->workspace_bytes) {
        drop(m, m->workspace);
        m->workspace_bytes = epi_kernel_workspace(k.handle);
        m->workspace = make(m, m->workspace_bytes, NULL);
    }
    return k;
}

static void start(const llama *m, kernel k, void *const *data) {
    epi_tensor tensors[32];
    for (int i = 0; i < k.tensors; i++)
        tensors[i] = (epi_tensor){data[i], NULL};
    check(epi_kernel_start(k.handle, tensors, k.tensors, m->workspace, NULL, &error));
}

/* Adds the tensors of a weight to the arguments of a run. */
static void add(void **data, int *count, const weight *w) {
    for (int i = 0; i < MAX_PARTS && w->part[i]; i++)
        data[(*count)++] = w->part[i];
}

/* ---- the source of the programs ---- */

/* Writes a weight for its form: declared as @name[rows|depth], or used as @name. */
static int spell_weight(const llama *m, const char *at, char *to, size_t room, int *used) {
    const int length = (int)strspn(at, "abcdefghijklmnopqrstuvwxyz");
    const char *bar = at[length] == '[' ? strchr(at, '|') : NULL, *end = bar ? strchr(bar, ']') : NULL;
    char name[16], rows[32] = "", depth[32] = "", few[32] = "";
    int w = 0;
    snprintf(name, sizeof name, "%.*s", length, at);
    while (strcmp(spelled[w], name) != 0)
        w++;
    *used = end ? (int)(end + 1 - at) : length;
    if (!end)
        return m->forms[w] == PLAIN    ? snprintf(to, room, "%s", name)
               : m->forms[w] == BITS4M ? snprintf(to, room, "(%s_s*%s + %s_m)", name, name, name)
                                       : snprintf(to, room, "(%s_s*%s)", name, name);
    snprintf(rows, sizeof rows, "%.*s", (int)(bar - at) - length - 1, at + length + 1);
    snprintf(depth, sizeof depth, "%.*s", (int)(end - bar) - 1, bar + 1);
    snprintf(few, sizeof few, "%.*s", (int)(strrchr(depth, ',') - depth), depth);
    if (m->forms[w] == PLAIN)
        return snprintf(to, room, "%s: %s[%s,%s]", name, epi_dtype_name(m->types[w]), rows, depth);
    int made = snprintf(to, room, "%s: %s[%s,%s], %s_s: f16[%s,%s]", name,
                        m->forms[w] == BITS8   ? "i8"
                        : m->forms[w] == BITS4 ? "i4"
                                               : "u4",
                        rows, depth, name, rows, few);
    if (m->forms[w] == BITS4M)
        made += snprintf(to + made, room - (size_t)made, ", %s_m: f16[%s,%s]", name, rows, few);
    return made;
}

/* Writes rows that are quantised, %name[block], or used, %name. */
static int spell_rows(const llama *m, const char *at, char *to, size_t room, int *used) {
    const char name = at[0], block = at[1] == '[' ? at[2] : 0;
    *used = block ? 4 : 1;
    if (!m->integers)
        return snprintf(to, room, "%.*s", !block, &name);
    if (block)
        return snprintf(to, room, "%c_s = max(abs(%c), %c)/127\n    %c_q = i8(%c/max(%c_s, 1e-30))", name,
                        name, block, name, name, name);
    return snprintf(to, room, "(%c_s*%c_q)", name, name);
}

static void parse_programs(llama *m) {
    char text[2 * sizeof programs];
    size_t made = 0;
    m->integers = m->device == 0;
    for (int w = 0; w < MATRICES; w++)
        m->integers &= m->forms[w] != PLAIN || w == G1 || w == G2;
    for (const char *at = programs; *at; at++) {
        int used = 0;
        if (*at == '@' && at[1] != ' ') /* "@ " is the product */
            made += (size_t)spell_weight(m, at + 1, text + made, sizeof text - made, &used);
        else if (*at == '%')
            made += (size_t)spell_rows(m, at + 1, text + made, sizeof text - made, &used);
        else
            text[made++] = *at;
        at += used;
    }
    check(epi_module_parse(m->ctx, text, made, "llama.c", &m->module, &error));
}

/* ---- the model ---- */

static void open_model(llama *m) {
    check(epi_context_open(&m->ctx, &error));
    m->device = epi_device_find(m->ctx, "gpu");
    if (m->device < 0)
        m->device = 0;
    m->workspace = make(m, 1, NULL);
}

/* Computes the rotary frequencies. For longer texts, Llama 3 lowers the low ones. */
static void make_frequencies(llama *m) {
    float *f = malloc((size_t)m->head / 2 * sizeof *f), eps = (float)m->eps;
    if (!f)
        stop("out of memory");
    for (int64_t i = 0; i < m->head / 2; i++) {
        double x = pow(m->theta, -2.0 * (double)i / (double)m->head),
               turns = m->trained * x / 6.283185307179586;
        double share = m->factor == 1 ? 1 : (turns - m->low) / (m->high - m->low);
        share = share < 0 ? 0 : share > 1 ? 1 : share;
        f[i] = (float)(x * (share + (1 - share) / m->factor));
    }
    m->frequency = make(m, (size_t)m->head / 2 * sizeof *f, f);
    m->number = make(m, sizeof eps, &eps);
    free(f);
}

/* The program that selects rows of a table, for each form. */
static const char *const embeds[] = {"embed", "embedeight", "embedfour", "embedadded"};

/* The program that gives the next token, or the scores to draw it from. */
static const char *head_name(const llama *m) {
    return m->choice.temperature > 0 ? "scores" : "head";
}

/* Allocates caches for `places` tokens of each sequence, and compiles the kernels of a step. The caches start as zeros:
 * a masked place has the weight 0, and 0 times garbage might be NaN. */
static void prepare(llama *m, int64_t places, int64_t sequences) {
    size_t bytes = size_of(m, times(times(places, sequences), times(m->groups, m->head)));
    void *zeros = calloc(1, bytes);
    if (!zeros)
        stop("out of memory");
    parse_programs(m);
    make_frequencies(m);
    m->places = places;
    m->sequences = sequences;
    for (int64_t i = 0; i < sequences; i++)
        m->draws[i] = m->choice.seed * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)i;
    for (int64_t l = 0; l < m->layers; l++) {
        m->keys[l] = make(m, bytes, zeros);
        m->values[l] = make(m, bytes, zeros);
    }
    free(zeros);
    m->embed = compile(m, embeds[m->forms[TABLE]], sequences);
    m->angles = compile(m, "angles", sequences);
    m->step = compile(m, "step", sequences);
    m->rest = compile(m, "rest", sequences);
    m->head_of_one = compile(m, head_name(m), 1);
    m->head_of_all = compile(m, head_name(m), sequences);
}

/* Runs tokens through all layers and returns their rows of features; the caller frees them with `drop`. The tokens are
 * the whole prompt of a sequence or, if `sequence` is ALL, the next token of each sequence. */
enum { ALL = -1 };
static void *run_layers(llama *m, const int32_t *tokens, const int32_t *places, int64_t count,
                        int64_t sequence) {
    kernel embed = m->embed, angles = m->angles, attend = m->step, rest = m->rest;
    const bool whole = sequence != ALL;
    const size_t cache = whole ? size_of(m, sequence * m->places * m->groups * m->head) : 0;
    if (whole) {
        embed = compile(m, embeds[m->forms[TABLE]], count);
        angles = compile(m, "angles", count);
        attend = compile(m, "prompt", count);
        rest = compile(m, "rest", count);
    }
    void *ids = make(m, (size_t)count * 4, tokens), *position = make(m, (size_t)count * 4, places);
    void *x = make(m, size_of(m, times(count, m->features)), NULL),
         *y = make(m, size_of(m, times(count, m->features)), NULL),
         *heads = make(m, size_of(m, times(count, m->heads * m->head)), NULL);
    void *cosines = make(m, (size_t)times(count, m->head / 2) * 4, NULL);
    void *sines = make(m, (size_t)times(count, m->head / 2) * 4, NULL), *data[32];
    int n = 0;
    add(data, &n, &m->table);
    data[n++] = ids;
    data[n++] = x;
    start(m, embed, data);
    start(m, angles, (void *[]){position, m->frequency, cosines, sines});
    for (int64_t l = 0; l < m->layers; l++) {
        void *before = x;
        n = 0;
        data[n++] = x;
        for (int w = G1; w <= WV; w++)
            add(data, &n, &m->weights[l][w]);
        data[n++] = cosines;
        data[n++] = sines;
        data[n++] = m->number;
        if (!whole) {
            data[n++] = position;
            data[n++] = m->keys[l];
            data[n++] = m->values[l];
        }
        data[n++] = heads;
        data[n++] =
            (char *)m->keys[l] + cache; /* a prompt writes the first places; a step writes only its own */
        data[n++] = (char *)m->values[l] + cache;
        start(m, attend, data);
        n = 0;
        data[n++] = x;
        data[n++] = heads;
        for (int w = WO; w <= WD; w++)
            add(data, &n, &m->weights[l][w]);
        data[n++] = m->number;
        data[n++] = y;
        start(m, rest, data);
        x = y;
        y = before;
    }
    check(epi_device_wait(m->ctx, m->device, &error));
    void *made[] = {ids, position, y, heads, cosines, sines};
    for (int i = 0; i < 6; i++)
        drop(m, made[i]);
    if (whole) {
        epi_kernel_free(embed.handle);
        epi_kernel_free(angles.handle);
        epi_kernel_free(attend.handle);
        epi_kernel_free(rest.handle);
    }
    return x;
}

/* ---- the next token ---- */

/* A random number between 0 and 1, by splitmix64. */
static double draw(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

typedef struct scored {
    float score;
    int32_t token;
} scored;

/* Sorts by probability, the largest first; equal ones by token. */
static int by_score(const void *a, const void *b) {
    const scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->token < y->token ? -1 : 1;
}

/* Draws a token by its probability among those that the options leave. */
static int32_t sample(const choice *c, const float *scores, int64_t count, uint64_t *state) {
    scored *all = malloc((size_t)count * sizeof *all);
    if (!all)
        stop("out of memory");
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(scores[i]))
            stop("the model gives token %lld no score", (long long)i);
        all[i] = (scored){scores[i], (int32_t)i};
    }
    qsort(all, (size_t)count, sizeof *all, by_score);
    int64_t kept = c->top_k && c->top_k < count ? c->top_k : count, last = 0;
    double sum = 0, within = 0;
    for (int64_t i = 0; i < kept; i++)
        sum += exp((double)(all[i].score - all[0].score) / c->temperature);
    for (; last < kept && (!last || within < c->top_p * sum); last++)
        within += exp((double)(all[last].score - all[0].score) / c->temperature);
    double left = draw(state) * within;
    int64_t i = 0;
    for (; i + 1 < last; i++) {
        left -= exp((double)(all[i].score - all[0].score) / c->temperature);
        if (left < 0)
            break;
    }
    int32_t token = all[i].token;
    free(all);
    return token;
}

/* Gives the next token for each row of features. The rows belong to sequences `first` and following. */
static void choose(llama *m, kernel head, void *rows, int64_t count, int64_t first, int32_t *tokens) {
    const bool drawn = m->choice.temperature > 0;
    const size_t bytes = (size_t)times(times(count, drawn ? m->vocabulary : 1), 4);
    void *result = make(m, bytes, NULL), *data[8];
    int n = 0;
    data[n++] = rows;
    add(data, &n, &m->norm);
    add(data, &n, &m->out);
    data[n++] = m->number;
    data[n++] = result;
    start(m, head, data);
    check(epi_device_wait(m->ctx, m->device, &error));
    float *scores = drawn ? malloc(bytes) : NULL;
    if (drawn && !scores)
        stop("out of memory");
    check(epi_device_copy(m->ctx, m->device, drawn ? (void *)scores : tokens, result, bytes, &error));
    for (int64_t i = 0; i < count && drawn; i++)
        tokens[i] = sample(&m->choice, scores + i * m->vocabulary, m->vocabulary, &m->draws[first + i]);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0)
            stop("the model's scores are NaN or infinite: is there such a number among its weights?");
    free(scores);
    drop(m, result);
}

/* Runs the prompt of a sequence and returns the token after it. */
static int32_t begin(llama *m, int64_t sequence, const int32_t *tokens, int64_t count) {
    int32_t *places = malloc((size_t)count * sizeof *places), next;
    if (!places)
        stop("out of memory");
    for (int64_t i = 0; i < count; i++)
        places[i] = (int32_t)i;
    void *x = run_layers(m, tokens, places, count, sequence);
    choose(m, m->head_of_one, (char *)x + size_of(m, (count - 1) * m->features), 1, sequence, &next);
    drop(m, x);
    free(places);
    return next;
}

/* Runs one more token of each sequence and replaces it with the next one. */
static void go_on(llama *m, int32_t *tokens, const int32_t *places) {
    void *x = run_layers(m, tokens, places, m->sequences, ALL);
    choose(m, m->head_of_all, x, m->sequences, 0, tokens);
    drop(m, x);
}

/* Prints the negative log-probability of each token after those before it, in nats, and returns the mean. */
static double improbability(llama *m, const int32_t *tokens, int64_t count) {
    int32_t *places = malloc((size_t)count * sizeof *places);
    if (!places)
        stop("out of memory");
    for (int64_t i = 0; i < count; i++)
        places[i] = (int32_t)i;
    void *x = run_layers(m, tokens, places, count - 1, 0),
         *ids = make(m, (size_t)(count - 1) * 4, tokens + 1),
         *result = make(m, (size_t)(count - 1) * 4, NULL), *data[8];
    float *nats = malloc((size_t)count * sizeof *nats);
    kernel loss = compile(m, "loss", count - 1);
    double sum = 0;
    int n = 0;
    if (!nats)
        stop("out of memory");
    data[n++] = x;
    add(data, &n, &m->norm);
    add(data, &n, &m->out);
    data[n++] = m->number;
    data[n++] = ids;
    data[n++] = result;
    start(m, loss, data);
    check(epi_device_wait(m->ctx, m->device, &error));
    check(epi_device_copy(m->ctx, m->device, nats, result, (size_t)(count - 1) * sizeof *nats, &error));
    for (int64_t i = 0; i < count - 1; i++) {
        if (!isfinite(nats[i]))
            stop("the model gives token %lld no probability: is there NaN or an infinity among its weights?",
                 (long long)(i + 1));
        printf("%.5f%c", (double)nats[i], i + 2 < count ? ' ' : '\n');
        sum += (double)nats[i];
    }
    void *made[] = {x, ids, result};
    for (int i = 0; i < 3; i++)
        drop(m, made[i]);
    epi_kernel_free(loss.handle);
    free(places);
    free(nats);
    return sum / (double)(count - 1);
}

static void drop_weight(const llama *m, const weight *w) {
    for (int i = 0; i < MAX_PARTS && w->part[i]; i++)
        drop(m, w->part[i]);
}

static void close_model(llama *m) {
    for (int64_t l = 0; l < m->layers; l++) {
        for (int w = 0; w < WEIGHTS; w++)
            drop_weight(m, &m->weights[l][w]);
        drop(m, m->keys[l]);
        drop(m, m->values[l]);
    }
    if (m->out.part[0] != m->table.part[0])
        drop_weight(m, &m->out);
    drop_weight(m, &m->table);
    drop_weight(m, &m->norm);
    drop(m, m->number);
    drop(m, m->frequency);
    drop(m, m->workspace);
    kernel all[] = {m->embed, m->angles, m->step, m->rest, m->head_of_one, m->head_of_all};
    for (int i = 0; i < 6; i++)
        epi_kernel_free(all[i].handle);
    epi_module_free(m->module);
    epi_context_close(m->ctx);
}

/* ---- a checkpoint ---- */

/* The text after "key": in config.json, or "" if there is none. Keys occur once in such files. */
static const char *behind(const char *config, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *at = strstr(config, quoted);
    at = at ? at + strlen(quoted) : "";
    return at + strspn(at, " \t\r\n:");
}

static double setting(const char *config, const char *key, double otherwise) {
    char *end;
    const char *at = behind(config, key);
    double x = strtod(at, &end);
    if (end == at)
        x = otherwise;
    if (isnan(x))
        stop("the configuration has no number \"%s\"", key);
    return x;
}

static int64_t count_setting(const char *config, const char *key, double otherwise) {
    return count_of(setting(config, key, otherwise), key);
}

/* Checks that the value is one of these words, or that there is none. */
static void check_word(const char *config, const char *key, const char *words) {
    const char *at = behind(config, key);
    char word[40] = "", listed[44];
    if (*at == '"')
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at + 1, "\""), at + 1);
    snprintf(listed, sizeof listed, " %s ", word);
    if (*word && !strstr(words, listed))
        stop("the configuration has \"%s\": \"%s\"; this example knows%s", key, word, words);
}

/* Fields that this example uses, and fields that have no effect on generating. */
static const char known_fields[] =
    " model_type hidden_act rms_norm_eps vocab_size hidden_size intermediate_size num_hidden_layers "
    "num_attention_heads num_key_value_heads head_dim max_position_embeddings rope_theta rope_scaling "
    "rope_parameters sliding_window tie_word_embeddings eos_token_id attention_bias mlp_bias "
    "rope_interleaved "
    "residual_multiplier logits_scaling embedding_multiplier partial_rotary_factor rotary_pct "
    "attention_multiplier "
    "architectures dtype torch_dtype transformers_version use_cache bos_token_id pad_token_id "
    "initializer_range attention_dropout pretraining_tp is_llama_config transformers.js_config _name_or_path "
    "tokenizer_class id2label label2id problem_type output_attentions output_hidden_states return_dict "
    "chunk_size_feed_forward is_encoder_decoder torchscript bad_words_ids ";

/* Checks the keys of the object, not those of objects inside it. */
static void check_fields(const char *config) {
    int depth = 0;
    for (const char *at = config; *at; at++) {
        depth += strchr("{[", *at) ? 1 : strchr("}]", *at) ? -1 : 0;
        if (*at != '"')
            continue;
        const char *name = ++at;
        while (*at && *at != '"')
            at += *at == '\\' && at[1] ? 2 : 1;
        char listed[72];
        snprintf(listed, sizeof listed, " %.*s ", (int)(at - name < 64 ? at - name : 64), name);
        const char *behind_it = *at ? at + 1 + strspn(at + 1, " \t\r\n") : at;
        if (depth == 1 && *behind_it == ':' && !strstr(known_fields, listed))
            stop("the configuration has the field \"%.*s\", which this example does not know: it may ask for "
                 "other arithmetic",
                 (int)(at - name), name);
        if (!*at)
            break;
    }
}

/* Refuses arithmetic of similar models that this example does not have. */
static void check_config(const char *config) {
    static const char *const ones[] = {"residual_multiplier", "logits_scaling", "embedding_multiplier",
                                       "partial_rotary_factor", "rotary_pct"};
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        if (setting(config, ones[i], 1) != 1)
            stop("the configuration has a \"%s\" of %g, which this example leaves out", ones[i],
                 setting(config, ones[i], 1));
    if (*behind(config, "attention_multiplier"))
        stop("the configuration has an \"attention_multiplier\", which this example leaves out");
    static const char *const not [] = {"attention_bias", "mlp_bias", "rope_interleaved"};
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        if (!strncmp(behind(config, not [i]), "true", 4))
            stop("the configuration has \"%s\": biases or angles that this example leaves out", not [i]);
    check_word(config, "model_type", " llama mistral ");
    check_word(config, "hidden_act", " silu ");
    check_word(config, "rope_type", " default llama3 ");
}

/* Reads one number or a list of them. */
static void read_ends(llama *m, const char *config) {
    const char *at = behind(config, "eos_token_id");
    bool list = *at == '[';
    char *end;
    for (at += list; m->end_count < MAX_ENDS; at = end + strspn(end, " \t\r\n,")) {
        m->ends[m->end_count] = strtod(at, &end);
        if (end == at)
            break;
        m->end_count++;
        if (!list)
            break;
    }
}

static bool ends_text(const llama *m, int32_t token) {
    for (int i = 0; i < m->end_count; i++)
        if (m->ends[i] == token)
            return true;
    return false;
}

/* Checks that the brackets of the object are balanced. */
static void check_whole(const char *path, const char *text) {
    int depth = 0;
    bool quoted = false, ended = false;
    for (const char *at = text + strspn(text, " \t\r\n"); *at; at++) {
        if (*at == '"')
            quoted = !quoted;
        else if (quoted && *at == '\\' && at[1])
            at++;
        else if (!quoted)
            depth += strchr("{[", *at) ? 1 : strchr("}]", *at) ? -1 : 0;
        ended = !depth && strchr("} \t\r\n", *at);
        if (!depth && !ended)
            break;
    }
    if (depth || !ended)
        stop("%s is no whole JSON object", path);
}

static char *read_text(const char *path) {
    FILE *f = fopen(path, "rb");
    char *text = malloc(1 << 20);
    size_t size = f && text ? fread(text, 1, (1 << 20) - 1, f) : 0;
    if (!size)
        stop("%s cannot be read", path);
    text[size] = 0;
    fclose(f);
    return text;
}

/* Checks the numbers of layers and heads, and the settings. */
static void check_shape(const llama *m, const char *path) {
    if (m->layers > MAX_LAYERS || m->heads % m->groups || m->head % 2)
        stop("%s: this many layers, heads or features of a head are none of a Llama", path);
    count_of((double)times(m->heads, m->head), "features of all heads");
    if (!(m->eps >= 0 && m->eps < 1))
        stop("%s: the epsilon of the norms is %g, which is no small number from 0 on", path, m->eps);
    if (!(m->theta > 0 && isfinite(m->theta)))
        stop("%s: the base of the angles is %g, which is not positive", path, m->theta);
    if (!(m->factor > 0 && m->low > 0 && m->high > 0 && m->trained > 0))
        stop("%s: the angles are scaled by what is not positive", path);
}

static const epi_safetensor *find(epi_safetensors *const *files, int count, const char *name) {
    const epi_safetensor *t = NULL;
    for (int i = 0; i < count && !t; i++)
        t = epi_safetensors_find(files[i], name);
    return t;
}

/* The files of a model. */
typedef struct source {
    epi_safetensors *files[MAX_FILES];
    int count;
    gguf *gguf; /* or NULL */
} source;

/* Converts numbers to the type of the model and copies them to the device. */
static weight load_vector(const llama *m, const void *data, epi_dtype type, int64_t count) {
    void *to = malloc(size_of(m, count));
    if (!to || epi_convert(to, m->type, data, type, count) != EPI_OK)
        stop("out of memory");
    weight w = {{make(m, size_of(m, count), to)}};
    free(to);
    return w;
}

/* Checks that the matrix has the same form and type in all layers. */
static void set_form(llama *m, int w, form f, epi_dtype type, const char *name) {
    if (m->types[w] == EPI_DTYPE_COUNT) {
        m->forms[w] = f;
        m->types[w] = type;
    }
    if (m->forms[w] != f || m->types[w] != type)
        stop("%s is stored in another way than that of the first layer, which this example does not know",
             name);
}

/* Loads a matrix as it is, with its scales if it is quantised. */
static weight load_matrix(llama *m, const source *from, const char *name, int w, int64_t rows,
                          int64_t depth) {
    const epi_safetensor *t = find(from->files, from->count, name), *scale;
    char other[160];
    snprintf(other, sizeof other, "%s_scale", name);
    scale = find(from->files, from->count, other);
    if (!t)
        stop("no file has %s", name);
    if (!scale) {
        set_form(m, w, PLAIN, t->type, name);
        if ((t->type != EPI_F32 && t->type != EPI_BF16 && t->type != EPI_F16) ||
            t->bytes != (size_t)(rows * depth) * epi_dtype_size(t->type))
            stop("%s has %zu bytes of %s, where %lld numbers are wanted", name, t->bytes, t->type_name,
                 (long long)(rows * depth));
        return (weight){{make(m, t->bytes, t->data)}};
    }
    const int64_t scales = (int64_t)scale->bytes / 2, group = scales ? rows * depth / scales : 0;
    const form f = t->type == EPI_I8 ? BITS8 : BITS4;
    if (!m->block)
        m->block = group;
    set_form(m, w, f, t->type, name);
    if ((t->type != EPI_I8 && t->type != EPI_U8) || scale->type != EPI_F16 || group != m->block ||
        group < 1 || group * scales != rows * depth || depth % group ||
        t->bytes != (size_t)(rows * depth) / (f == BITS8 ? 1 : 2))
        stop("%s and its scales, %s and %s, are no %lld numbers of 8 or 4 bits in blocks of %lld", name,
             t->type_name, scale->type_name, (long long)(rows * depth), (long long)m->block);
    return (weight){{make(m, t->bytes, t->data), make(m, scale->bytes, scale->data)}};
}

static weight find_vector(const llama *m, const source *from, const char *name) {
    const epi_safetensor *t = find(from->files, from->count, name);
    if (!t)
        stop("no file has %s", name);
    if ((t->type != EPI_F32 && t->type != EPI_BF16 && t->type != EPI_F16) ||
        t->bytes != (size_t)m->features * epi_dtype_size(t->type))
        stop("%s has %zu bytes of %s, where %lld numbers are wanted", name, t->bytes, t->type_name,
             (long long)m->features);
    return load_vector(m, t->data, t->type, m->features);
}

/* ---- a GGUF file ---- */

/* Reorders the rows of each head: llama.cpp interleaves the two halves. */
static void turn_rows(unsigned char *data, size_t row, int64_t heads, int64_t head) {
    unsigned char *turned = malloc((size_t)head * row);
    if (!turned)
        stop("out of memory");
    for (int64_t h = 0; h < heads; h++, data += (size_t)head * row) {
        for (int64_t i = 0; i < head; i++)
            memcpy(turned + (size_t)(i % 2 * (head / 2) + i / 2) * row, data + (size_t)i * row, row);
        memcpy(data, turned, (size_t)head * row);
    }
    free(turned);
}

static epi_dtype plain_type(uint32_t type) {
    return type == GGUF_F32    ? EPI_F32
           : type == GGUF_F16  ? EPI_F16
           : type == GGUF_BF16 ? EPI_BF16
                               : EPI_DTYPE_COUNT;
}

static const gguf_tensor *gguf_get(const gguf *f, const char *name, int64_t rows, int64_t row) {
    const gguf_tensor *t = gguf_find(f, name);
    int64_t block;
    if (!t)
        stop("the file has no %s", name);
    if (!gguf_block_bytes(t->type, &block))
        stop("%s is of type %u; this example knows F32, F16, BF16, Q8_0, Q4_0 and Q4_1", name,
             (unsigned)t->type);
    if (t->row != row || t->rows != rows)
        stop("%s has %lld x %lld elements, where %lld x %lld are wanted", name, (long long)t->rows,
             (long long)t->row, (long long)rows, (long long)row);
    return t;
}

/* Loads a matrix and separates its blocks. If `heads` is not 0, brings the rows into Hugging Face's order. */
static weight gguf_matrix(llama *m, const source *from, const char *name, int w, int64_t rows, int64_t depth,
                          int64_t heads) {
    const gguf_tensor *t = gguf_get(from->gguf, name, rows, depth);
    const epi_dtype type = plain_type(t->type);
    const form f = type != EPI_DTYPE_COUNT ? PLAIN
                   : t->type == GGUF_Q8_0  ? BITS8
                   : t->type == GGUF_Q4_0  ? BITS4
                                           : BITS4M;
    const size_t blocks = (size_t)(rows * depth) / GGUF_BLOCK,
                 bytes = f == PLAIN ? (size_t)(rows * depth) * epi_dtype_size(type)
                                    : blocks * (f == BITS8 ? GGUF_BLOCK : GGUF_BLOCK / 2);
    const size_t sizes[MAX_PARTS] = {bytes, f == PLAIN ? 0 : 2 * blocks, f == BITS4M ? 2 * blocks : 0};
    unsigned char *parts[MAX_PARTS];
    weight made = {{0}};
    set_form(m, w, f, f == PLAIN ? type : f == BITS8 ? EPI_I8 : EPI_U8, name);
    for (int i = 0; i < MAX_PARTS; i++)
        if (!(parts[i] = malloc(sizes[i] + 1)))
            stop("out of memory");
    if (f == PLAIN)
        memcpy(parts[0], t->data, bytes);
    else
        gguf_split(t->type, t->data, (int64_t)blocks, parts[0], (uint16_t *)(void *)parts[1],
                   (uint16_t *)(void *)parts[2]);
    for (int i = 0; i < MAX_PARTS && sizes[i]; i++) {
        if (heads)
            turn_rows(parts[i], sizes[i] / (size_t)rows, heads, rows / heads);
        made.part[i] = make(m, sizes[i], parts[i]);
    }
    for (int i = 0; i < MAX_PARTS; i++)
        free(parts[i]);
    return made;
}

static double gguf_number(gguf *f, const char *key, double otherwise) {
    char full[64], text[2];
    snprintf(full, sizeof full, "llama.%s", key);
    double x = gguf_setting(f, full, otherwise, text, sizeof text);
    if (isnan(x) || f->broken)
        stop("the file has no number %s", full);
    return x;
}

static int64_t gguf_count(gguf *f, const char *key, double otherwise) {
    return count_of(gguf_number(f, key, otherwise), key);
}

static weight gguf_vector(const llama *m, const gguf *f, const char *name) {
    const gguf_tensor *t = gguf_get(f, name, 1, m->features);
    if (plain_type(t->type) == EPI_DTYPE_COUNT)
        stop("%s is no vector of plain numbers", name);
    return load_vector(m, t->data, plain_type(t->type), m->features);
}

static void load_gguf(llama *m, const char *path) {
    gguf file;
    char name[96], text[32] = "";
    if (!gguf_open(&file, path))
        stop("%s is no whole GGUF file", path);
    source from = {.gguf = &file};
    gguf_setting(&file, "general.architecture", 0, text, sizeof text);
    if (strcmp(text, "llama") != 0)
        stop("%s is a model of the form '%s'; this example knows llama", path, text);
    strcpy(text, "none");
    gguf_setting(&file, "llama.rope.scaling.type", 0, text, sizeof text);
    if (strcmp(text, "none") != 0 || gguf_find(&file, "rope_freqs.weight") ||
        gguf_find(&file, "blk.0.attn_q.bias") || gguf_find(&file, "blk.0.ffn_gate_inp.weight"))
        stop("%s: the model has other angles, biases or experts, which this example leaves out", path);
    m->layers = gguf_count(&file, "block_count", NAN);
    m->features = gguf_count(&file, "embedding_length", NAN);
    m->inner = gguf_count(&file, "feed_forward_length", NAN);
    m->heads = gguf_count(&file, "attention.head_count", NAN);
    m->groups = gguf_count(&file, "attention.head_count_kv", (double)m->heads);
    m->context = gguf_count(&file, "context_length", 1 << 24);
    m->eps = gguf_number(&file, "attention.layer_norm_rms_epsilon", NAN);
    m->theta = gguf_number(&file, "rope.freq_base", 10000);
    m->factor = m->low = m->high = m->trained = 1;
    m->window = gguf_number(&file, "attention.sliding_window", INFINITY);
    m->head = gguf_count(&file, "attention.key_length", (double)(m->features / m->heads));
    check_shape(m, path);
    if (gguf_number(&file, "rope.dimension_count", (double)m->head) != (double)m->head)
        stop("%s: only some features of a head turn, which this example leaves out", path);
    m->ends[0] = gguf_setting(&file, "tokenizer.ggml.eos_token_id", -1, text, sizeof text);
    m->end_count = 1;
    m->block = GGUF_BLOCK;
    const gguf_tensor *table = gguf_find(&file, "token_embd.weight"),
                      *first = gguf_find(&file, "blk.0.attn_q.weight");
    if (!table || !first)
        stop("%s has no token_embd.weight, or no layers", path);
    m->vocabulary = table->rows;
    m->type = plain_type(table->type) == plain_type(first->type) && plain_type(first->type) != EPI_DTYPE_COUNT
                  ? plain_type(first->type)
                  : EPI_F32;
    const int64_t d = m->features, wide = m->heads * m->head, narrow = m->groups * m->head;
    const int64_t rows[WEIGHTS] = {0, wide, narrow, narrow, d, 0, m->inner, m->inner, d},
                  depth[WEIGHTS] = {0, d, d, d, wide, 0, d, d, m->inner},
                  heads[WEIGHTS] = {[WQ] = m->heads, [WK] = m->groups};
    m->table = m->out = gguf_matrix(m, &from, "token_embd.weight", TABLE, m->vocabulary, d, 0);
    m->forms[OUT] = m->forms[TABLE];
    if (gguf_find(&file, "output.weight"))
        m->out = gguf_matrix(m, &from, "output.weight", OUT, m->vocabulary, d, 0);
    else
        m->types[OUT] = m->types[TABLE];
    m->norm = gguf_vector(m, &file, "output_norm.weight");
    for (int64_t l = 0; l < m->layers; l++)
        for (int w = 0; w < WEIGHTS; w++) {
            snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)l, gguf_names[w]);
            m->weights[l][w] = w == G1 || w == G2
                                   ? gguf_vector(m, &file, name)
                                   : gguf_matrix(m, &from, name, w, rows[w], depth[w], heads[w]);
        }
    gguf_close(&file);
}

static void load_model(llama *m, const char *config_path, char **paths, int count) {
    char *config = read_text(config_path), name[128];
    check_whole(config_path, config);
    check_fields(config);
    check_config(config);
    read_ends(m, config);
    source from = {.count = count};
    epi_safetensors **files = from.files;
    for (int i = 0; i < count; i++)
        check(epi_safetensors_open(paths[i], &files[i], &error));
    m->layers = count_setting(config, "num_hidden_layers", NAN);
    m->features = count_setting(config, "hidden_size", NAN);
    m->inner = count_setting(config, "intermediate_size", NAN);
    m->heads = count_setting(config, "num_attention_heads", NAN);
    m->groups = count_setting(config, "num_key_value_heads", (double)m->heads);
    m->vocabulary = count_setting(config, "vocab_size", NAN);
    m->context = count_setting(config, "max_position_embeddings", 1 << 24);
    m->eps = setting(config, "rms_norm_eps", NAN);
    m->theta = setting(config, "rope_theta", 10000);
    m->factor = setting(config, "factor", 1);
    m->low = setting(config, "low_freq_factor", 1);
    m->high = setting(config, "high_freq_factor", 4);
    m->trained = setting(config, "original_max_position_embeddings", 8192);
    if (m->factor != 1 && !strstr(config, "\"llama3\""))
        stop("%s: the model has other angles than a Llama", config_path);
    m->window = setting(config, "sliding_window", INFINITY);
    m->head = count_setting(config, "head_dim", (double)(m->features / m->heads));
    check_shape(m, config_path);
    const char *const others[] = {"self_attn.q_proj.bias", "self_attn.q_norm.weight", "mlp.up_proj.bias"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "model.layers.0.%s", others[i]);
        if (find(files, count, name))
            stop("%s: the model has biases or norms that this example leaves out: %s", config_path, name);
    }
    snprintf(name, sizeof name, "model.layers.%lld.input_layernorm.weight", (long long)m->layers);
    if (find(files, count, name))
        stop("%s: the files have more than %lld layers", config_path, (long long)m->layers);
    const epi_safetensor *table = find(files, count, "model.embed_tokens.weight");
    if (!table || table->type == EPI_DTYPE_COUNT)
        stop("no file has model.embed_tokens.weight, in a type that Epilog has");
    const bool few = find(files, count, "model.layers.0.self_attn.q_proj.weight_scale");
    m->type = few || epi_dtype_size(table->type) == 1 ? EPI_F32 : table->type;
    const int64_t d = m->features, wide = m->heads * m->head, narrow = m->groups * m->head;
    const int64_t rows[WEIGHTS] = {0, wide, narrow, narrow, d, 0, m->inner, m->inner, d},
                  depth[WEIGHTS] = {0, d, d, d, wide, 0, d, d, m->inner};
    m->table = m->out = load_matrix(m, &from, "model.embed_tokens.weight", TABLE, m->vocabulary, d);
    m->forms[OUT] = m->forms[TABLE];
    if (find(files, count, "lm_head.weight") &&
        strncmp(behind(config, "tie_word_embeddings"), "true", 4) != 0)
        m->out = load_matrix(m, &from, "lm_head.weight", OUT, m->vocabulary, d);
    else
        m->types[OUT] = m->types[TABLE];
    m->norm = find_vector(m, &from, "model.norm.weight");
    for (int64_t l = 0; l < m->layers; l++)
        for (int w = 0; w < WEIGHTS; w++) {
            snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)l, weight_names[w]);
            m->weights[l][w] = w == G1 || w == G2 ? find_vector(m, &from, name)
                                                  : load_matrix(m, &from, name, w, rows[w], depth[w]);
        }
    m->block = m->block ? m->block : GGUF_BLOCK;
    for (int i = 0; i < count; i++)
        epi_safetensors_close(files[i]);
    free(config);
}

/* ---- a random model ---- */

static weight random_weight(const llama *m, int64_t elements, float middle, uint32_t *state) {
    float *x = malloc((size_t)elements * sizeof *x);
    if (!x)
        stop("out of memory");
    for (int64_t i = 0; i < elements; i++) {
        *state = *state * 1664525u + 1013904223u;
        x[i] = middle + (float)(*state >> 8) / (1 << 24) - 0.5f;
    }
    weight made = {{make(m, (size_t)elements * sizeof *x, x)}};
    free(x);
    return made;
}

static int check_small(void) {
    llama m = {.type = EPI_F32,
               .layers = 2,
               .vocabulary = 100,
               .features = 32,
               .inner = 48,
               .heads = 4,
               .groups = 2,
               .head = 8,
               .eps = 1e-5,
               .theta = 10000,
               .factor = 1,
               .block = 8};
    uint32_t state = 1;
    open_model(&m);
    const int64_t d = 32, sizes[WEIGHTS] = {d, 32 * d, 16 * d, 16 * d, d * 32, d, 48 * d, 48 * d, d * 48};
    m.table = m.out = random_weight(&m, 100 * d, 0, &state);
    m.norm = random_weight(&m, d, 1, &state);
    for (int l = 0; l < 2; l++)
        for (int w = 0; w < WEIGHTS; w++)
            m.weights[l][w] = random_weight(&m, sizes[w], w == 0 || w == 5 ? 1 : 0, &state);
    prepare(&m, 64, 3);
    int32_t tokens[24] = {3, 14, 15, 92, 65}, next[3], places[3] = {0};
    int wrong = 0;
    for (int i = 5; i < 24; i++) { /* a whole prompt, longer each time */
        tokens[i] = begin(&m, 1, tokens, i);
        printf("%d ", tokens[i]);
    }
    for (int i = 0; i < 23; i++) { /* token by token, in three sequences at different places */
        for (int s = 0; s < 3; s++) {
            places[s] = i < s ? 0 : i - s;
            next[s] = tokens[places[s]];
        }
        go_on(&m, next, places);
        for (int s = 0; s < 3; s++)
            wrong += i >= s && places[s] >= 4 && next[s] != tokens[places[s] + 1];
    }
    printf("\n%d of 54 tokens are others when prompts go in token by token\n", wrong);
    close_model(&m);
    return wrong ? 1 : 0;
}

/* ---- prompts ---- */

typedef struct prompt {
    int32_t *tokens;
    int64_t count;
} prompt;

typedef struct run {
    choice choice;
    const char *tokenizer_path;
    epi_tokenizer *tokenizer; /* NULL: prompts are token ids */
    prompt prompts[MAX_SEQUENCES];
    int64_t prompt_count, wanted;
} run;

/* Returns -1 if the word is not a number. */
static int64_t number_of(const char *word) {
    char *end;
    long long x = strtoll(word, &end, 10);
    return *word && !*end ? x : -1;
}

static double real_of(const char *option, const char *word, double least, double most) {
    char *end;
    double x = strtod(word, &end);
    if (!*word || *end || !(x >= least && x <= most))
        misused("%s is a number from %g to %g, not %s", option, least, most, word);
    return x;
}

/* Reads an option and its value. Returns false if the word is not an option. */
static bool take_option(run *r, const char *option, const char *value) {
    if (!strcmp(option, "--tokenizer"))
        r->tokenizer_path = value;
    else if (!strcmp(option, "--temperature"))
        r->choice.temperature = real_of(option, value, 0, 100);
    else if (!strcmp(option, "--top-p"))
        r->choice.top_p = real_of(option, value, 0, 1);
    else if (!strcmp(option, "--top-k"))
        r->choice.top_k = (int64_t)real_of(option, value, 0, 1 << 24);
    else if (!strcmp(option, "--seed"))
        r->choice.seed = (uint64_t)real_of(option, value, 0, 9007199254740992.0);
    else
        return false;
    return true;
}

static prompt read_text_prompt(const run *r, const char *text) {
    size_t count;
    check(epi_tokenizer_encode(r->tokenizer, text, strlen(text), NULL, 0, &count, &error));
    prompt p = {malloc((count + 1) * sizeof *p.tokens), (int64_t)count};
    if (!p.tokens)
        stop("out of memory");
    check(epi_tokenizer_encode(r->tokenizer, text, strlen(text), p.tokens, count, &count, &error));
    if (!count)
        stop("a prompt is empty: there is nothing to go on with");
    return p;
}

/* Reads token ids up to a comma or the last word. */
static prompt read_ids(const llama *m, char **words, int count) {
    prompt p = {malloc(((size_t)count + 1) * sizeof *p.tokens), 0};
    if (!p.tokens)
        stop("out of memory");
    for (; p.count < count && strcmp(words[p.count], ",") != 0; p.count++) {
        int64_t id = number_of(words[p.count]);
        if (id < 0 || id >= m->vocabulary)
            stop("the model has no token %s", words[p.count]);
        p.tokens[p.count] = (int32_t)id;
    }
    if (!p.count)
        stop("a prompt is empty: there is nothing to go on with");
    return p;
}

/* Reads the prompts, and checks that the model's context has room for them and for TOKENS. */
static void read_prompts(run *r, const llama *m, char **words, int count) {
    int64_t longest = 0;
    for (int at = 0; at < count; at++) {
        if (r->prompt_count == MAX_SEQUENCES)
            stop("more than %d prompts", MAX_SEQUENCES);
        prompt *p = &r->prompts[r->prompt_count++];
        *p = r->tokenizer ? read_text_prompt(r, words[at]) : read_ids(m, words + at, count - at);
        at += r->tokenizer ? 0 : (int)p->count; /* a comma or nothing follows */
        longest = p->count > longest ? p->count : longest;
        for (int64_t i = 0; i < p->count; i++)
            if (p->tokens[i] >= m->vocabulary)
                stop("the tokenizer gives token %d, and the model has %lld: they are of different models",
                     (int)p->tokens[i], (long long)m->vocabulary);
    }
    if (longest + r->wanted > m->context)
        stop("%lld tokens are more than the model's context of %lld", (long long)(longest + r->wanted),
             (long long)m->context);
    if ((double)(longest + r->wanted) > m->window)
        stop("%lld tokens are more than the model's window of %.0f", (long long)(longest + r->wanted),
             m->window);
}

/* ---- generating ---- */

/* Prints tokens as text, or as ids with spaces between them. */
static void print_tokens(const run *r, const int32_t *tokens, int64_t count, bool first) {
    for (int64_t i = 0; i < count && !r->tokenizer; i++)
        printf(first && !i ? "%d" : " %d", tokens[i]);
    for (int64_t i = 0; i < count && r->tokenizer; i++) {
        char bytes[1024];
        size_t size;
        check(epi_tokenizer_decode(r->tokenizer, tokens + i, 1, true, bytes, sizeof bytes, &size, &error));
        fwrite(bytes, 1, size < sizeof bytes ? size : sizeof bytes, stdout);
    }
    fflush(stdout);
}

/* A sequence that is being generated: its tokens so far. */
typedef struct sequence {
    int32_t *made;
    int64_t count;
    bool ended;
} sequence;

static void take_token(const llama *m, const run *r, sequence *s, int32_t token) {
    s->made[s->count++] = token;
    s->ended = s->count == r->wanted || ends_text(m, token);
    if (r->prompt_count == 1)
        print_tokens(r, &token, 1, s->count == 1);
}

static void generate(llama *m, const run *r) {
    sequence all[MAX_SEQUENCES];
    int32_t next[MAX_SEQUENCES], places[MAX_SEQUENCES];
    int64_t left = r->prompt_count, made = 0;
    for (int64_t i = 0; i < r->prompt_count; i++) {
        all[i] = (sequence){malloc((size_t)r->wanted * sizeof *all[i].made), 0, false};
        if (!all[i].made)
            stop("out of memory");
        next[i] = begin(m, i, r->prompts[i].tokens, r->prompts[i].count);
        places[i] = (int32_t)r->prompts[i].count;
        take_token(m, r, &all[i], next[i]);
        left -= all[i].ended;
    }
    struct timespec from, to;
    timespec_get(&from, TIME_UTC);
    for (; left > 0; made++) {
        go_on(m, next, places);
        for (int64_t i = 0; i < r->prompt_count; i++) {
            if (all[i].ended) { /* it stays at its place, and its results are ignored */
                next[i] = all[i].made[all[i].count - 1];
                continue;
            }
            take_token(m, r, &all[i], next[i]);
            places[i] += !all[i].ended;
            left -= all[i].ended;
        }
    }
    timespec_get(&to, TIME_UTC);
    double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    for (int64_t i = 0; i < r->prompt_count; i++) {
        if (r->prompt_count > 1)
            print_tokens(r, all[i].made, all[i].count, true);
        printf("\n");
        free(all[i].made);
    }
    if (made > 0)
        fprintf(stderr, "%.1f ms a token\n", 1e3 * seconds / (double)made);
}

static const char usage[] =
    "usage: llama [OPTIONS] config.json model.safetensors [more.safetensors ...] -- TOKENS ID [ID ...] [, ID "
    "...]\n"
    "       llama [OPTIONS] model.gguf -- TOKENS ID [ID ...]\n"
    "       llama --tokenizer tokenizer.json [OPTIONS] ... -- TOKENS TEXT [TEXT ...]\n"
    "Generates at most TOKENS tokens for each prompt. If TOKENS is 0, it prints how improbable the prompt "
    "is.\n"
    "A prompt is a TEXT, or the IDs of its tokens. A comma stands between two prompts of IDs.\n"
    "OPTIONS: --temperature X, --top-k N, --top-p P and --seed S draw tokens at random.\n"
    "Without arguments, it checks itself with a small random model.\n";

static void check_one(const run *r, bool several, int64_t count) {
    if (!r->wanted && (several || count < 2))
        misused("if TOKENS is 0, there is one prompt, of two tokens or more");
}

int main(int count, char **words) {
    static llama m;
    static run r = {.choice = {.top_p = 1}};
    for (int w = 0; w < MATRICES; w++)
        m.types[w] = EPI_DTYPE_COUNT;
    if (count == 1)
        return finish(check_small());
    if (count == 2 && !strcmp(words[1], "--help")) {
        fputs(usage, stdout);
        return finish(0);
    }
    int model = 1, dashes;
    while (model + 1 < count && take_option(&r, words[model], words[model + 1]))
        model += 2;
    for (dashes = model; dashes < count && strcmp(words[dashes], "--") != 0;)
        dashes++;
    const size_t length = model < count ? strlen(words[model]) : 0;
    const bool is_gguf = length > 5 && !strcmp(words[model] + length - 5, ".gguf");
    const int files = dashes - model - 1;
    if (files < (is_gguf ? 0 : 1) || files > (is_gguf ? 0 : MAX_FILES) || count < dashes + 3)
        misused("it takes config.json model.safetensors, or model.gguf, and then -- TOKENS ID");
    r.wanted = number_of(words[dashes + 1]);
    if (r.wanted < 0 || r.wanted > 1 << 24)
        misused("TOKENS is a whole number, not %s", words[dashes + 1]);
    m.choice = r.choice;
    if (!r.tokenizer_path)
        check_one(&r, false, count - dashes - 2);
    if (r.tokenizer_path)
        check(epi_tokenizer_open(r.tokenizer_path, &r.tokenizer, &error));
    open_model(&m);
    if (is_gguf)
        load_gguf(&m, words[model]);
    else
        load_model(&m, words[model], words + model + 1, files);
    read_prompts(&r, &m, words + dashes + 2, count - dashes - 2);
    check_one(&r, r.prompt_count > 1, r.prompts[0].count);
    int64_t longest = 0;
    for (int64_t i = 0; i < r.prompt_count; i++)
        longest = r.prompts[i].count > longest ? r.prompts[i].count : longest;
    prepare(&m, (longest + r.wanted + 63) / 64 * 64, r.prompt_count);
    if (r.wanted)
        generate(&m, &r);
    else
        printf("%.4f nats a token\n", improbability(&m, r.prompts[0].tokens, r.prompts[0].count));
    for (int64_t i = 0; i < r.prompt_count; i++)
        free(r.prompts[i].tokens);
    epi_tokenizer_close(r.tokenizer);
    close_model(&m);
    return finish(0);
}

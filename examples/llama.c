/* llama.c: a Llama goes on with a text, on a GPU if there is one, else on the CPU.
 *
 *     cc llama.c $(pkg-config --cflags --libs epilog) -Wl,-rpath,$(pkg-config --variable=libdir epilog) -lm -o llama
 *     ./llama config.json model.safetensors [more.safetensors ...] -- TOKENS ID [ID ...]
 *     ./llama model.gguf -- TOKENS ID [ID ...]
 *
 * takes a checkpoint as Hugging Face has it (Llama 2 and 3, Mistral, TinyLlama, SmolLM), or a GGUF file of F32, F16,
 * BF16, Q8_0, Q4_0 or Q4_1, and the prompt's token ids, and prints so many most probable next ones, each as soon as it
 * is known, up to one that ends the text; with 0 for TOKENS, how improbable each of the text is after those before it, in
 * nats, and on the average. Weights are
 * taken as they are, in their type: those of 8 and 4 bits, which quantise.c makes of others, too. A configuration that
 * asks for other arithmetic is refused. Without arguments it makes a small model of random numbers, and checks that the
 * prompt taken whole and taken token by token give the same.
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

/* A layer is written in two programs: attention, once for a whole prompt, whose keys and values are results, and once
 * for one token of a sequence, whose key and value go into caches of R places; and the rest. Features of a head turn
 * against those half a head away. Features have two axes, blocks and what a block has: [B,C] of the model, [M,N] of the
 * heads, [P,Q] of the MLP; so weights of few bits have a scale for each block. @wq[G,H,E|B,C] is a weight with the axes
 * of its depth behind the line: `spell_weight` writes it as its form asks. %n[C] is where n becomes 8 bits with a scale
 * for each block C, and %n what becomes of it: on a CPU that meets weights of few bits in integers, as llama.cpp's do;
 * elsewhere it is n. */
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
    "    next = argmax(%n @ @out, V)\n"
    "}\n"
    "loss(x[T,B,C], g[B,C], @out[V|B,C], eps, ids: i32[T]) -> nats: f32[T] {\n"
    "    n = x*rsqrt(mean(x*x, B, C) + eps)*g\n"
    "    %n[C]\n"
    "    z = %n @ @out\n"
    "    nats = logsumexp(z, V) - sum(where(index(V) == ids, z, 0), V)\n"
    "}\n";

enum { MAX_LAYERS = 256, MAX_FILES = 64, MAX_ENDS = 8, MAX_PARTS = 3 };

/* The weights of a layer, in the order of its programs' parameters, and those before and after all layers. */
enum { G1, WQ, WK, WV, WO, G2, WG, WU, WD, WEIGHTS, TABLE = WEIGHTS, OUT, MATRICES };
static const char *const spelled[MATRICES] = {"",   "wq", "wk", "wv",    "wo", "",
                                              "wg", "wu", "wd", "table", "out"};
static const char *const weight_names[WEIGHTS] = {
    "input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
static const char *const gguf_names[WEIGHTS] = {"attn_norm", "attn_q",   "attn_k", "attn_v",  "attn_output",
                                                "ffn_norm",  "ffn_gate", "ffn_up", "ffn_down"};

/* How a matrix is stored: as numbers of a type; or in few bits with a scale of f16 for each block, and with one more that
 * is added. */
typedef enum form { PLAIN, BITS8, BITS4, BITS4M } form;

typedef struct weight {
    void *part[MAX_PARTS]; /* elements, scales, what is added */
} weight;

typedef struct kernel {
    epi_kernel *handle;
    int tensors;
} kernel;

typedef struct llama {
    epi_context *ctx;
    epi_module *module;
    int device;
    epi_dtype type;            /* of what is computed, and of caches */
    form forms[MATRICES];      /* every layer's are alike */
    epi_dtype types[MATRICES]; /* of plain ones */
    bool integers;             /* rows become 8 bits before each product: all matrices have few, on a CPU */
    int64_t block;             /* features that a scale of few bits is for */
    int64_t layers, vocabulary, features, inner, heads, groups, head; /* V, B*C, P*Q, G*H, G, E */
    double eps, theta, window;         /* window: how far back Mistral's attention goes */
    double factor, low, high, trained; /* of Llama 3's frequencies; factor 1: plain ones */
    double ends[MAX_ENDS];             /* tokens that end a text */
    int end_count;
    weight table, norm, out; /* what stands before and after the layers */
    weight weights[MAX_LAYERS][WEIGHTS];
    void *keys[MAX_LAYERS], *values[MAX_LAYERS];
    int64_t places; /* of a cache */
    void *number, *frequency, *workspace;
    size_t workspace_bytes;
    kernel embed, angles, step, rest, head_of_one;
} llama;

/* ---- errors end an example ---- */

static void stop(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
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

static size_t size_of(const llama *m, int64_t count) {
    return (size_t)count * epi_dtype_size(m->type);
}

/* ---- kernels ---- */

/* Features in blocks: how many, and of how many. */
static int64_t block_of(const llama *m, int64_t features) {
    return features % m->block ? features : m->block;
}

/* The sizes of one of the programs: those of the model, and so many tokens. */
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

/* Adds a weight's tensors to those of a call. */
static void add(void **data, int *count, const weight *w) {
    for (int i = 0; i < MAX_PARTS && w->part[i]; i++)
        data[(*count)++] = w->part[i];
}

/* ---- texts ---- */

/* A weight that is declared, @name[rows|depth], or used, @name, as its form asks. */
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

/* Rows that become 8 bits, %name[block], or are used, %name. */
static int spell_rows(const llama *m, const char *at, char *to, size_t room, int *used) {
    const char name = at[0], block = at[1] == '[' ? at[2] : 0;
    *used = block ? 4 : 1;
    if (!m->integers)
        return snprintf(to, room, block ? "" : "%c", name);
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
        if (*at == '@' && at[1] != ' ') /* else it is a product */
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

/* How fast the features of a head turn. Llama 3 slows the slow ones down, for longer texts. */
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

/* The program that takes rows of a table of each form. */
static const char *const embeds[] = {"embed", "embedeight", "embedfour", "embedadded"};

/* Caches for so many tokens, and the kernels of a step. Caches begin as zeros: places that a mask hides have
 * weights of 0, and 0 times whatever was there before might be NaN. */
static void prepare(llama *m, int64_t places) {
    size_t bytes = size_of(m, places * m->groups * m->head);
    void *zeros = calloc(1, bytes);
    if (!zeros)
        stop("out of memory");
    parse_programs(m);
    make_frequencies(m);
    m->places = places;
    for (int64_t l = 0; l < m->layers; l++) {
        m->keys[l] = make(m, bytes, zeros);
        m->values[l] = make(m, bytes, zeros);
    }
    free(zeros);
    m->embed = compile(m, embeds[m->forms[TABLE]], 1);
    m->angles = compile(m, "angles", 1);
    m->step = compile(m, "step", 1);
    m->rest = compile(m, "rest", 1);
    m->head_of_one = compile(m, "head", 1);
}

/* All that goes in at the positions from `from` on, through all layers: rows of features, which the caller drops. A
 * prompt is taken whole, which is from 0 on; a single token joins those before it. */
static void *run_layers(llama *m, const int32_t *tokens, int64_t count, int64_t from, bool whole) {
    kernel embed = m->embed, angles = m->angles, attend = m->step, rest = m->rest;
    int32_t *places = malloc((size_t)count * sizeof *places);
    if (!places)
        stop("out of memory");
    for (int64_t i = 0; i < count; i++)
        places[i] = (int32_t)(from + i);
    if (whole) {
        embed = compile(m, embeds[m->forms[TABLE]], count);
        angles = compile(m, "angles", count);
        attend = compile(m, "prompt", count);
        rest = compile(m, "rest", count);
    }
    void *ids = make(m, (size_t)count * 4, tokens), *position = make(m, (size_t)count * 4, places);
    void *x = make(m, size_of(m, count * m->features), NULL),
         *y = make(m, size_of(m, count * m->features), NULL),
         *heads = make(m, size_of(m, count * m->heads * m->head), NULL);
    void *cosines = make(m, (size_t)(count * m->head / 2) * 4, NULL);
    void *sines = make(m, (size_t)(count * m->head / 2) * 4, NULL), *data[32];
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
        data[n++] = m->keys[l]; /* a prompt's are the first of the caches; a step writes its own alone */
        data[n++] = m->values[l];
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
    free(places);
    return x;
}

/* The most probable token after these. */
static int32_t go_on(llama *m, const int32_t *tokens, int64_t count, int64_t from, bool whole) {
    void *x = run_layers(m, tokens, count, from, whole), *result = make(m, 4, NULL), *data[8];
    int32_t next;
    int n = 0;
    data[n++] = (char *)x + size_of(m, (count - 1) * m->features);
    add(data, &n, &m->norm);
    add(data, &n, &m->out);
    data[n++] = m->number;
    data[n++] = result;
    start(m, m->head_of_one, data);
    check(epi_device_wait(m->ctx, m->device, &error));
    check(epi_device_copy(m->ctx, m->device, &next, result, sizeof next, &error));
    drop(m, x);
    drop(m, result);
    return next;
}

/* How improbable each token is after those before it, in nats, which are printed, and on the average. */
static double improbability(llama *m, const int32_t *tokens, int64_t count) {
    void *x = run_layers(m, tokens, count - 1, 0, true), *ids = make(m, (size_t)(count - 1) * 4, tokens + 1),
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
        printf("%.5f%c", (double)nats[i], i + 2 < count ? ' ' : '\n');
        sum += (double)nats[i];
    }
    void *made[] = {x, ids, result};
    for (int i = 0; i < 3; i++)
        drop(m, made[i]);
    epi_kernel_free(loss.handle);
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
    kernel all[] = {m->embed, m->angles, m->step, m->rest, m->head_of_one};
    for (int i = 0; i < 5; i++)
        epi_kernel_free(all[i].handle);
    epi_module_free(m->module);
    epi_context_close(m->ctx);
}

/* ---- a checkpoint ---- */

/* What stands behind "key": in config.json, whose keys are all different enough for that; "" where there is none. */
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

/* Is it one of these words, or not said? */
static void check_word(const char *config, const char *key, const char *words) {
    const char *at = behind(config, key);
    char word[40] = "", listed[44];
    if (*at == '"')
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at + 1, "\""), at + 1);
    snprintf(listed, sizeof listed, " %s ", word);
    if (*word && !strstr(words, listed))
        stop("the configuration has \"%s\": \"%s\"; this example knows%s", key, word, words);
}

/* What other models of this form have in their arithmetic, and this example has not. */
static void check_config(const char *config) {
    static const char *const ones[] = {"residual_multiplier", "logits_scaling", "embedding_multiplier",
                                       "partial_rotary_factor", "rotary_pct"};
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        if (setting(config, ones[i], 1) != 1)
            stop("the configuration has a \"%s\" of %g, which this example leaves out", ones[i],
                 setting(config, ones[i], 1));
    if (*behind(config, "attention_multiplier"))
        stop("the configuration has an \"attention_multiplier\", which this example leaves out");
    check_word(config, "model_type", " llama mistral ");
    check_word(config, "hidden_act", " silu ");
    check_word(config, "rope_type", " default llama3 ");
}

/* One number, or a list of them. */
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

/* An object with all of its brackets. */
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

static const epi_safetensor *find(epi_safetensors *const *files, int count, const char *name) {
    const epi_safetensor *t = NULL;
    for (int i = 0; i < count && !t; i++)
        t = epi_safetensors_find(files[i], name);
    return t;
}

/* Where a model's tensors come from. */
typedef struct source {
    epi_safetensors *files[MAX_FILES];
    int count;
    gguf *gguf; /* or NULL */
} source;

/* Numbers of one type, on the device in that of the model. */
static weight load_vector(const llama *m, const void *data, epi_dtype type, int64_t count) {
    void *to = malloc(size_of(m, count));
    if (!to || epi_convert(to, m->type, data, type, count) != EPI_OK)
        stop("out of memory");
    weight w = {{make(m, size_of(m, count), to)}};
    free(to);
    return w;
}

/* Is the matrix as those of other layers are? */
static void set_form(llama *m, int w, form f, epi_dtype type, const char *name) {
    if (m->types[w] == EPI_DTYPE_COUNT) {
        m->forms[w] = f;
        m->types[w] = type;
    }
    if (m->forms[w] != f || m->types[w] != type)
        stop("%s is stored in another way than that of the first layer, which this example does not know",
             name);
}

/* A matrix as it is; one of few bits has its scales beside it. */
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

/* Rows of a head's features: llama.cpp has the two halves in turn. */
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

/* Blocks are taken apart; of `heads` heads rows are brought into Hugging Face's order. */
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
    m->layers = (int64_t)gguf_number(&file, "block_count", NAN);
    m->features = (int64_t)gguf_number(&file, "embedding_length", NAN);
    m->inner = (int64_t)gguf_number(&file, "feed_forward_length", NAN);
    m->heads = (int64_t)gguf_number(&file, "attention.head_count", NAN);
    m->groups = (int64_t)gguf_number(&file, "attention.head_count_kv", (double)m->heads);
    m->eps = gguf_number(&file, "attention.layer_norm_rms_epsilon", NAN);
    m->theta = gguf_number(&file, "rope.freq_base", 10000);
    m->factor = 1;
    m->window = gguf_number(&file, "attention.sliding_window", INFINITY);
    if (m->layers < 1 || m->layers > MAX_LAYERS || m->heads < 1 || m->groups < 1 || m->heads % m->groups)
        stop("%s: this many layers or heads are none of a Llama", path);
    m->head = (int64_t)gguf_number(&file, "attention.key_length", (double)(m->features / m->heads));
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
    check_config(config);
    read_ends(m, config);
    source from = {.count = count};
    epi_safetensors **files = from.files;
    for (int i = 0; i < count; i++)
        check(epi_safetensors_open(paths[i], &files[i], &error));
    m->layers = (int64_t)setting(config, "num_hidden_layers", NAN);
    m->features = (int64_t)setting(config, "hidden_size", NAN);
    m->inner = (int64_t)setting(config, "intermediate_size", NAN);
    m->heads = (int64_t)setting(config, "num_attention_heads", NAN);
    m->groups = (int64_t)setting(config, "num_key_value_heads", (double)m->heads);
    m->vocabulary = (int64_t)setting(config, "vocab_size", NAN);
    m->eps = setting(config, "rms_norm_eps", NAN);
    m->theta = setting(config, "rope_theta", 10000);
    m->factor = setting(config, "factor", 1);
    m->low = setting(config, "low_freq_factor", 1);
    m->high = setting(config, "high_freq_factor", 4);
    m->trained = setting(config, "original_max_position_embeddings", 8192);
    if (m->layers < 1 || m->layers > MAX_LAYERS || m->heads < 1 || m->groups < 1 || m->heads % m->groups)
        stop("%s: this many layers or heads are none of a Llama", config_path);
    if (m->factor != 1 && !strstr(config, "\"llama3\""))
        stop("%s: the model has other angles than a Llama", config_path);
    m->window = setting(config, "sliding_window", INFINITY);
    m->head = (int64_t)setting(config, "head_dim", (double)(m->features / m->heads));
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
    if (find(files, count, "lm_head.weight"))
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

/* ---- a model of random numbers ---- */

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
    prepare(&m, 64);
    int32_t tokens[24] = {3, 14, 15, 92, 65}, again = 0;
    int wrong = 0;
    for (int i = 5; i < 24; i++) { /* the prompt whole, and longer each time */
        tokens[i] = go_on(&m, tokens, i, 0, true);
        printf("%d ", tokens[i]);
    }
    for (int i = 0; i < 23; i++) { /* token by token */
        again = go_on(&m, tokens + i, 1, i, false);
        wrong += i >= 4 && again != tokens[i + 1];
    }
    printf("\n%d of 19 tokens are others when the prompt goes in token by token\n", wrong);
    close_model(&m);
    return wrong ? 1 : 0;
}

/* -1: it is none. */
static int64_t number_of(const char *word) {
    char *end;
    long long x = strtoll(word, &end, 10);
    return *word && !*end ? x : -1;
}

int main(int count, char **words) {
    static llama m;
    for (int w = 0; w < MATRICES; w++)
        m.types[w] = EPI_DTYPE_COUNT;
    if (count == 1)
        return check_small();
    int dashes = 2;
    while (dashes < count && strcmp(words[dashes], "--") != 0)
        dashes++;
    const size_t length = strlen(words[1]);
    const bool is_gguf = length > 5 && !strcmp(words[1] + length - 5, ".gguf");
    if (dashes < (is_gguf ? 2 : 3) || dashes - 2 > (is_gguf ? 0 : MAX_FILES) || count < dashes + 3)
        stop("llama config.json model.safetensors [more.safetensors ...] -- TOKENS ID [ID ...]\n"
             "llama model.gguf -- TOKENS ID [ID ...]\n"
             "TOKENS: how many to make, or 0 to tell how improbable the text is; ID: the prompt, as the "
             "numbers that the model's tokenizer gives it.\n"
             "Without arguments it checks itself with a small model of random numbers.");
    int64_t wanted = number_of(words[dashes + 1]), given = count - dashes - 2;
    int32_t *tokens = malloc((size_t)given * sizeof *tokens);
    if (!tokens || wanted < 0)
        stop("TOKENS is a number");
    if (wanted == 0 && given < 2)
        stop("how improbable a text is, is known from its second token on");
    open_model(&m);
    if (is_gguf)
        load_gguf(&m, words[1]);
    else
        load_model(&m, words[1], words + 2, dashes - 2);
    for (int64_t i = 0; i < given; i++) {
        int64_t id = number_of(words[dashes + 2 + i]);
        if (id < 0 || id >= m.vocabulary)
            stop("the model has no token %s", words[dashes + 2 + i]);
        tokens[i] = (int32_t)id;
    }
    if ((double)(given + wanted) > m.window)
        stop("%lld tokens are more than the model's window of %.0f", (long long)(given + wanted), m.window);
    prepare(&m, (given + wanted + 63) / 64 * 64);
    if (wanted == 0) {
        printf("%.4f nats a token\n", improbability(&m, tokens, given));
        free(tokens);
        close_model(&m);
        return 0;
    }
    int32_t next = go_on(&m, tokens, given, 0, true);
    struct timespec begin, end;
    timespec_get(&begin, TIME_UTC);
    int64_t made = 1;
    for (;; made++) {
        bool last = made == wanted || ends_text(&m, next);
        printf("%d%c", next, last ? '\n' : ' ');
        fflush(stdout);
        if (last)
            break;
        next = go_on(&m, &next, 1, given + made - 1, false);
    }
    timespec_get(&end, TIME_UTC);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    if (made > 1)
        fprintf(stderr, "%.1f ms a token\n", 1e3 * seconds / (double)(made - 1));
    free(tokens);
    close_model(&m);
    return 0;
}

/* llama.c: a Llama goes on with a text, on a GPU if there is one, else on the CPU.
 *
 *     cc llama.c $(pkg-config --cflags --libs epilog) -Wl,-rpath,$(pkg-config --variable=libdir epilog) -lm -o llama
 *     ./llama config.json model.safetensors [more.safetensors ...] -- TOKENS ID [ID ...]
 *
 * takes a checkpoint as Hugging Face has it (Llama 2 and 3, Mistral, TinyLlama, SmolLM) and the prompt's
 * token ids, and prints so many most probable next ones, each as soon as it is known, up to one that ends the
 * text. Weights are taken as they are, in their type. A configuration that asks for other arithmetic is
 * refused. Without arguments it makes a small model of random numbers, and checks that the
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

/* A layer is written twice: for a whole prompt, whose keys and values are results, and for one token of a
 * sequence, whose key and value go into caches of R places. Features of a head turn against those half a
 * head away. */
static const char programs[] =
    "embed(table[V,D], ids: i32[T]) -> x[T,D] {\n"
    "    x = table[ids]\n"
    "}\n"
    "angles(position: i32[T], frequency: f32[E/2]) -> (cos_t: f32[T,E/2], sin_t: f32[T,E/2]) {\n"
    "    cos_t = cos(position*frequency)\n"
    "    sin_t = sin(position*frequency)\n"
    "}\n"
    "prompt(x[T,D], g1[D], wq[G,H,E,D], wk[G,E,D], wv[G,E,D], wo[D,G,H,E], g2[D], wg[F,D], wu[F,D], "
    "wd[D,F],\n"
    "    cos_t: f32[T,E/2], sin_t: f32[T,E/2], eps) -> (y[T,D], k[T,G,E], v[T,G,E]) {\n"
    "    n = rmsnorm(x, g1, eps)\n"
    "    a, b = halves(n @ wq, E)\n"
    "    q = concat(a*cos_t - b*sin_t, b*cos_t + a*sin_t, E)\n"
    "    c, d = halves(n @ wk, E)\n"
    "    k = concat(c*cos_t - d*sin_t, d*cos_t + c*sin_t, E)\n"
    "    v = n @ wv\n"
    "    keys = rename(k, T, R)\n"
    "    values = rename(v, T, R)\n"
    "    s = where(index(R) <= index(T), sum(q*keys, E)*rsqrt(size(E)), -inf)\n"
    "    h = x + sum(softmax(s, R)*values, R) @ wo\n"
    "    m = rmsnorm(h, g2, eps)\n"
    "    y = h + (silu(m @ wg)*(m @ wu)) @ wd\n"
    "}\n"
    "step(x[T,D], g1[D], wq[G,H,E,D], wk[G,E,D], wv[G,E,D], wo[D,G,H,E], g2[D], wg[F,D], wu[F,D], wd[D,F],\n"
    "    cos_t: f32[T,E/2], sin_t: f32[T,E/2], eps, position: i32[T], keys[T,R,G,E], values[T,R,G,E])\n"
    "    -> (y[T,D], keys_new[T,R,G,E], values_new[T,R,G,E]) {\n"
    "    n = rmsnorm(x, g1, eps)\n"
    "    a, b = halves(n @ wq, E)\n"
    "    q = concat(a*cos_t - b*sin_t, b*cos_t + a*sin_t, E)\n"
    "    c, d = halves(n @ wk, E)\n"
    "    keys_new = update(keys, concat(c*cos_t - d*sin_t, d*cos_t + c*sin_t, E), position, R)\n"
    "    values_new = update(values, n @ wv, position, R)\n"
    "    s = where(index(R) <= position, sum(q*keys_new, E)*rsqrt(size(E)), -inf)\n"
    "    h = x + sum(softmax(s, R)*values_new, R) @ wo\n"
    "    m = rmsnorm(h, g2, eps)\n"
    "    y = h + (silu(m @ wg)*(m @ wu)) @ wd\n"
    "}\n"
    "head(x[T,D], g[D], w[V,D], eps) -> next: i32[T] {\n"
    "    next = argmax(rmsnorm(x, g, eps) @ w, V)\n"
    "}\n";

enum { MAX_LAYERS = 256, MAX_FILES = 64, MAX_ENDS = 8, WEIGHTS = 9 };

/* In the order of the layers' parameters. */
static const char *const weight_names[WEIGHTS] = {
    "input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

typedef struct kernel {
    epi_kernel *handle;
    int tensors;
} kernel;

typedef struct llama {
    epi_context *ctx;
    epi_module *module;
    int device;
    epi_dtype type;
    int64_t layers, vocabulary, features, inner, heads, groups, head; /* V, D, F, G*H, G, E */
    double eps, theta, window;         /* window: how far back Mistral's attention goes */
    double factor, low, high, trained; /* of Llama 3's frequencies; factor 1: plain ones */
    double ends[MAX_ENDS];             /* tokens that end a text */
    int end_count;
    void *table, *norm, *out; /* what stands before and after the layers */
    void *weights[MAX_LAYERS][WEIGHTS], *keys[MAX_LAYERS], *values[MAX_LAYERS];
    int64_t places; /* of a cache */
    void *number, *frequency, *workspace;
    size_t workspace_bytes;
    kernel embed, angles, step, head_of_one;
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

/* The sizes of one of the programs: those of the model, and so many tokens. */
static kernel compile(llama *m, const char *name, int64_t tokens) {
    const epi_program *program = epi_module_find(m->module, name);
    const epi_dim_binding all[] = {{"T", tokens},    {"D", m->features},
                                   {"F", m->inner},  {"V", m->vocabulary},
                                   {"G", m->groups}, {"H", m->heads / m->groups},
                                   {"E", m->head},   {"R", !strcmp(name, "step") ? m->places : tokens}};
    epi_dim_binding dims[8];
    int count = 0;
    for (int i = 0; i < epi_program_dim_count(program); i++)
        for (int j = 0; j < 8; j++)
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
    epi_tensor tensors[20];
    for (int i = 0; i < k.tensors; i++)
        tensors[i] = (epi_tensor){data[i], NULL};
    check(epi_kernel_start(k.handle, tensors, k.tensors, m->workspace, NULL, &error));
}

/* ---- the model ---- */

static void open_model(llama *m) {
    check(epi_context_open(&m->ctx, &error));
    m->device = epi_device_find(m->ctx, "gpu");
    if (m->device < 0)
        m->device = 0;
    check(epi_module_parse(m->ctx, programs, strlen(programs), "llama.c", &m->module, &error));
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

/* Caches for so many tokens, and the kernels of a step. Caches begin as zeros: places that a mask hides have
 * weights of 0, and 0 times whatever was there before might be NaN. */
static void prepare(llama *m, int64_t places) {
    size_t bytes = size_of(m, places * m->groups * m->head);
    void *zeros = calloc(1, bytes);
    if (!zeros)
        stop("out of memory");
    make_frequencies(m);
    m->places = places;
    for (int64_t l = 0; l < m->layers; l++) {
        m->keys[l] = make(m, bytes, zeros);
        m->values[l] = make(m, bytes, zeros);
    }
    free(zeros);
    m->embed = compile(m, "embed", 1);
    m->angles = compile(m, "angles", 1);
    m->step = compile(m, "step", 1);
    m->head_of_one = compile(m, "head", 1);
}

/* All that goes in at the positions from `from` on; returns the most probable token after the last. A prompt
 * is taken whole, which is from 0 on; a single token joins those before it. */
static int32_t go_on(llama *m, const int32_t *tokens, int64_t count, int64_t from, bool whole) {
    kernel embed = m->embed, angles = m->angles, layer = m->step;
    int32_t *places = malloc((size_t)count * sizeof *places), next;
    if (!places)
        stop("out of memory");
    for (int64_t i = 0; i < count; i++)
        places[i] = (int32_t)(from + i);
    if (whole) {
        embed = compile(m, "embed", count);
        angles = compile(m, "angles", count);
        layer = compile(m, "prompt", count);
    }
    void *ids = make(m, (size_t)count * 4, tokens), *position = make(m, (size_t)count * 4, places);
    void *x = make(m, size_of(m, count * m->features), NULL),
         *y = make(m, size_of(m, count * m->features), NULL);
    void *cosines = make(m, (size_t)(count * m->head / 2) * 4, NULL);
    void *sines = make(m, (size_t)(count * m->head / 2) * 4, NULL), *result = make(m, 4, NULL);
    start(m, embed, (void *[]){m->table, ids, x});
    start(m, angles, (void *[]){position, m->frequency, cosines, sines});
    for (int64_t l = 0; l < m->layers; l++) {
        void *data[20], *before = x;
        int n = 0;
        data[n++] = x;
        for (int w = 0; w < WEIGHTS; w++)
            data[n++] = m->weights[l][w];
        data[n++] = cosines;
        data[n++] = sines;
        data[n++] = m->number;
        if (!whole) {
            data[n++] = position;
            data[n++] = m->keys[l];
            data[n++] = m->values[l];
        }
        data[n++] = y;
        data[n++] = m->keys[l]; /* a prompt's are the first of the caches; a step writes its own alone */
        data[n++] = m->values[l];
        start(m, layer, data);
        x = y;
        y = before;
    }
    char *last = (char *)x + size_of(m, (count - 1) * m->features);
    start(m, m->head_of_one, (void *[]){last, m->norm, m->out, m->number, result});
    check(epi_device_wait(m->ctx, m->device, &error));
    check(epi_device_copy(m->ctx, m->device, &next, result, sizeof next, &error));
    void *made[] = {ids, position, x, y, cosines, sines, result};
    for (int i = 0; i < 7; i++)
        drop(m, made[i]);
    if (whole) {
        epi_kernel_free(embed.handle);
        epi_kernel_free(angles.handle);
        epi_kernel_free(layer.handle);
    }
    free(places);
    return next;
}

static void close_model(llama *m) {
    for (int64_t l = 0; l < m->layers; l++) {
        for (int w = 0; w < WEIGHTS; w++)
            drop(m, m->weights[l][w]);
        drop(m, m->keys[l]);
        drop(m, m->values[l]);
    }
    if (m->out != m->table)
        drop(m, m->out);
    drop(m, m->table);
    drop(m, m->norm);
    drop(m, m->number);
    drop(m, m->frequency);
    drop(m, m->workspace);
    kernel all[] = {m->embed, m->angles, m->step, m->head_of_one};
    for (int i = 0; i < 4; i++)
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

/* A weight of so many elements, on the device. */
static void *load(const llama *m, epi_safetensors *const *files, int count, const char *name,
                  int64_t elements) {
    const epi_safetensor *t = find(files, count, name);
    if (!t)
        stop("no file has %s", name);
    if (t->type != m->type || t->bytes != size_of(m, elements))
        stop("%s has %zu bytes of %s, where %lld elements of %s are wanted", name, t->bytes, t->type_name,
             (long long)elements, epi_dtype_name(m->type));
    return make(m, t->bytes, t->data);
}

static void load_model(llama *m, const char *config_path, char **paths, int count) {
    char *config = read_text(config_path), name[128];
    check_whole(config_path, config);
    check_config(config);
    read_ends(m, config);
    epi_safetensors *files[MAX_FILES];
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
    m->type = table->type;
    int64_t d = m->features, wide = m->heads * m->head, narrow = m->groups * m->head;
    const int64_t sizes[WEIGHTS] = {d, wide * d,     narrow * d,   narrow * d,  d * wide,
                                    d, m->inner * d, m->inner * d, d * m->inner};
    m->table = load(m, files, count, "model.embed_tokens.weight", m->vocabulary * d);
    m->norm = load(m, files, count, "model.norm.weight", d);
    m->out = find(files, count, "lm_head.weight") ? load(m, files, count, "lm_head.weight", m->vocabulary * d)
                                                  : m->table;
    for (int64_t l = 0; l < m->layers; l++)
        for (int w = 0; w < WEIGHTS; w++) {
            snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)l, weight_names[w]);
            m->weights[l][w] = load(m, files, count, name, sizes[w]);
        }
    for (int i = 0; i < count; i++)
        epi_safetensors_close(files[i]);
    free(config);
}

/* ---- a model of random numbers ---- */

static void *random_weight(const llama *m, int64_t elements, float middle, uint32_t *state) {
    float *x = malloc((size_t)elements * sizeof *x);
    if (!x)
        stop("out of memory");
    for (int64_t i = 0; i < elements; i++) {
        *state = *state * 1664525u + 1013904223u;
        x[i] = middle + (float)(*state >> 8) / (1 << 24) - 0.5f;
    }
    void *made = make(m, (size_t)elements * sizeof *x, x);
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
               .factor = 1};
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
    if (count == 1)
        return check_small();
    int dashes = 2;
    while (dashes < count && strcmp(words[dashes], "--") != 0)
        dashes++;
    if (dashes < 3 || dashes - 2 > MAX_FILES || count < dashes + 3)
        stop("llama config.json model.safetensors [more.safetensors ...] -- TOKENS ID [ID ...]\n"
             "TOKENS: how many to make; ID: the prompt, as the numbers that the model's tokenizer gives it.\n"
             "Without arguments it checks itself with a small model of random numbers.");
    int64_t wanted = number_of(words[dashes + 1]), given = count - dashes - 2;
    int32_t *tokens = malloc((size_t)given * sizeof *tokens);
    if (!tokens || wanted < 1)
        stop("TOKENS is a number of 1 or more");
    open_model(&m);
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

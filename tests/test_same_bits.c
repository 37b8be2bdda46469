/* test_same_bits.c: a model that generates and the same model in training give the same bits.
 *
 * A Llama of eight layers, by the programs of decode.epi, samples tokens after prompts of several lengths: in a batch with
 * padding before them, the prompts taken in parts. The logarithms of the sampled tokens' probabilities are then made
 * again, and every byte of them is the same:
 *   - by the layers of training, for each sequence alone, for a batch with padding on the left and on the right, and for
 *     all of them packed into one as documents;
 *   - token by token, and with the prompt in other parts, over caches of other lengths.
 *
 *     same_bits [few]     16 prompts of 1 to 700 tokens, each with 300 more; or 5 of them with 24
 *     same_bits gpu       there in bf16 alone, and few, as every size is compiled */
#include <dlfcn.h>

#include "ran.h"

enum { LAYERS = 8, G = 2, H = 3, E = 16, F = 56, V = 301 };
static int64_t D; /* of few features a tile has whole rows, so that norms are made in it; of more, not */
enum { SEQUENCES = 16, NEW = 300, PROMPT = 700, LONGEST = PROMPT + NEW, MOST = 40, MOST_KERNELS = 256 };
static const unsigned every = (1u << SEQUENCES) - 1; /* sequences are bits of such a set */
static int sequences = SEQUENCES, new_tokens = NEW;  /* or fewer */
static const int prompt_lengths[SEQUENCES] = {1,  37, 129, 300, PROMPT, 2,   3,   8,
                                              16, 63, 64,  65,  128,    255, 512, 513};

/* Words of the texts and what stands in their place: a step of decoding whose sequences begin somewhere in the cache;
 * and windows, of 50 tokens up to the own one. */
typedef const char *edit[2];
static const edit step_edits[] = {{"decode_layer(", "padded_step("},
                                  {"position: i32[B], keys", "position: i32[B], start: i32[B], keys"},
                                  {"index(R) <= position", "index(R) <= position and index(R) >= start"}};
static const edit window_edits[] = {
    {"index(R) <= index(S) and", "index(R) <= index(S) and index(R) > index(S) - 50 and"},
    {"index(R) <= index(S) + offset", "index(R) <= index(S) + offset and index(R) > index(S) + offset - 50"},
    {"index(R) <= position", "index(R) <= position and index(R) > position - 50"}};

static epi_context *ctx;
static epi_module *module, *padded, *forward; /* the texts, those of steps, and the forward of training */
static int device;

/* A tensor of a call. */
typedef struct named {
    const char *name;
    void *data;
} named;

typedef struct text {
    int ids[SEQUENCES][LONGEST], length[SEQUENCES];
    float logp[SEQUENCES][LONGEST]; /* of token i, after those before it */
} text;

typedef struct model {
    epi_dtype type;
    const char *what;
    void *layer[LAYERS][9], *table, *norm, *head, *eps;
    float *frequency;
    /* what it generated, and that in training, padded on the right: once they are wanted */
    text sampled, batch;
    bool has_sampled, has_batch;
} model;

static const char *const weights[] = {"g1", "wq", "wk", "wv", "wo", "g2", "wg", "wu", "wd"};

/* ---- calls ---- */

/* Zeros, until those made since are dropped. A GPU's are in memory that the host reaches, too. */
static int (*alloc_managed)(void **, size_t, unsigned), (*free_managed)(void *);
static void *rooms[200];
static int room_count;

static void *room(int64_t count, epi_dtype type) {
    size_t bytes = ((size_t)count + 1) * epi_dtype_size(type);
    void *data = device ? NULL : malloc(bytes);
    if (device)
        alloc_managed(&data, bytes, 1);
    if (!data || room_count == 200)
        exit(1);
    rooms[room_count++] = data;
    return memset(data, 0, bytes);
}

static void drop_since(int count) {
    while (room_count > count) {
        void *data = rooms[--room_count];
        if (device)
            free_managed(data);
        else
            free(data);
    }
}

static bool open_gpu(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *some = NULL;
    epi_error err;
    device = epi_device_find(ctx, "gpu");
    *(void **)&alloc_managed = cuda ? dlsym(cuda, "cuMemAllocManaged") : NULL;
    *(void **)&free_managed = cuda ? dlsym(cuda, "cuMemFree_v2") : NULL;
    return device > 0 && alloc_managed && free_managed &&
           epi_device_alloc(ctx, device, 64, &some, &err) == EPI_OK; /* its context is there now */
}

static void *random_numbers(int64_t count, double around, double scale, epi_dtype type, uint64_t *s) {
    void *data = room(count, type);
    for (int64_t i = 0; i < count; i++)
        put_element(data, type, i, around + scale * (2 * random_unit(s) - 1));
    return data;
}

static const epi_program *program_named(const char *name) {
    const epi_program *p = epi_module_find(module, name);
    p = p ? p : epi_module_find(padded, name);
    return p ? p : epi_module_find(forward, name);
}

/* Kernels by what they were asked for: steps have the same ones. */
static struct {
    char what[200];
    epi_kernel *kernel;
} kernels[MOST_KERNELS];
static size_t budget; /* of what is compiled next, or 0 */

static void forget_kernels(void) {
    for (int i = 0; i < MOST_KERNELS; i++)
        epi_kernel_free(kernels[i].kernel);
    memset(kernels, 0, sizeof kernels);
}

static const epi_kernel *compile(const model *m, const char *name, int64_t b, int64_t s, int64_t r) {
    char dims[140], what[200];
    int at = 0;
    snprintf(dims, sizeof dims, "B=%ld,S=%ld,T=%ld,R=%ld,D=%ld,G=%d,H=%d,E=%d,F=%d,V=%d", (long)b, (long)s,
             (long)b, (long)r, (long)D, G, H, E, F, V);
    snprintf(what, sizeof what, "%s %s %zu", name, dims, budget);
    while (kernels[at].kernel && strcmp(kernels[at].what, what) != 0)
        at++;
    if (!kernels[at].kernel) {
        strcpy(kernels[at].what, what);
        kernels[at].kernel =
            kernel_of(program_named(name), dims, (way){.type = m->type, .device = device, .memory = budget});
    }
    if (!kernels[at].kernel)
        exit(finish());
    return kernels[at].kernel;
}

/* The tensors are looked for by name, from the last one given to the first. */
static void call(const epi_kernel *k, const char *name, const named *given, int count) {
    const epi_program *p = program_named(name);
    const int before = room_count;
    void *work = NULL;
    epi_tensor tensors[MOST];
    epi_tensor_info info;
    epi_error err = {0};
    for (int t = 0; t < epi_program_tensor_count(p); t++) {
        int at = count - 1;
        epi_program_tensor(p, t, &info);
        while (at >= 0 && strcmp(given[at].name, info.name) != 0)
            at--;
        epi_tensor_shape shape; /* what is saved for a backward is given by nobody */
        if (!check((at >= 0 || info.is_output) && epi_kernel_tensor(k, t, &shape) == EPI_OK, "%s has its %s",
                   name, info.name))
            exit(1);
        tensors[t] = (epi_tensor){at >= 0 ? given[at].data : room(shape.count, shape.type), NULL};
    }
    check(epi_device_alloc(ctx, device, epi_kernel_workspace(k), &work, &err) == EPI_OK &&
              epi_kernel_start(k, tensors, epi_program_tensor_count(p), work, NULL, &err) == EPI_OK &&
              epi_device_wait(ctx, device, &err) == EPI_OK &&
              epi_device_free(ctx, device, work, &err) == EPI_OK,
          "%s runs: %s", name, err.message);
    drop_since(before);
}

/* A layer's weights, and then what else a call has. */
static int with_weights(const model *m, int layer, named *to, const named *others, int count) {
    int n = 0;
    for (int w = 0; w < 9; w++)
        to[n++] = (named){weights[w], m->layer[layer][w]};
    to[n++] = (named){"eps", m->eps};
    for (int i = 0; i < count; i++)
        to[n++] = others[i];
    return n;
}

/* ---- what is before and after the layers ---- */

static void embed(const model *m, const int32_t *ids, int64_t count, void *x) {
    size_t row = (size_t)D * epi_dtype_size(m->type);
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)x + (size_t)i * row, (const char *)m->table + (size_t)ids[i] * row, row);
}

static void make_angles(const model *m, int32_t *position, int64_t count, float *cos_t, float *sin_t) {
    const epi_kernel *k = compile(m, "decode_angles", count, 0, 0);
    const named t[] = {
        {"position", position}, {"frequency", m->frequency}, {"cos_t", cos_t}, {"sin_t", sin_t}};
    call(k, "decode_angles", t, 4);
}

/* ---- training ---- */

/* Sequences in rows: token i of sequence n is in row at[n] + i. */
typedef struct rows {
    int64_t count, per_batch; /* all rows, and those of one sequence of a batch */
    int64_t at[SEQUENCES];
    unsigned has;
    bool packed, tight, saves;
} rows;

/* The kernel, or one that has to do with two thirds of its workspace. */
static const epi_kernel *compile_rows(const model *m, const char *name, int64_t b, int64_t s, bool tight) {
    const epi_kernel *k = compile(m, name, b, s, s);
    if (tight) {
        budget = epi_kernel_workspace(k) / 3 * 2;
        k = compile(m, name, b, s, s);
        budget = 0;
    }
    return k;
}

static void train(const model *m, const text *t, rows r, float (*logp)[LONGEST]) {
    int64_t batch = r.packed ? 1 : r.count / r.per_batch;
    const int before = room_count;
    int32_t *ids = room(r.count, EPI_I32), *position = room(r.count, EPI_I32),
            *document = room(r.count, EPI_I32), *next = room(r.count, EPI_I32),
            *start = room(SEQUENCES, EPI_I32);
    float *cos_t = room(r.count * E, EPI_F32), *sin_t = room(r.count * E, EPI_F32),
          *out = room(r.count, EPI_F32);
    void *x = room(r.count * D, m->type), *y = room(r.count * D, m->type);
    for (int n = 0; n < sequences; n++)
        for (int i = 0; r.has >> n & 1 && i < t->length[n]; i++) {
            int64_t at = r.at[n] + i;
            ids[at] = t->ids[n][i];
            position[at] = i;
            document[at] = 7 - n; /* any numbers */
            next[at] = i + 1 < t->length[n] ? t->ids[n][i + 1] : 0;
            start[r.packed ? 0 : r.at[n] / r.per_batch] = (int32_t)(r.at[n] % r.per_batch);
        }
    embed(m, ids, r.count, x);
    make_angles(m, position, r.count, cos_t, sin_t);
    const char *name = r.packed ? "packed_layer" : r.saves ? "sequence_layer_forward" : "sequence_layer";
    const epi_kernel *k = compile_rows(m, name, batch, r.per_batch, r.tight),
                     *head = compile_rows(m, "sequence_head", r.count, 0, r.tight);
    for (int l = 0; l < LAYERS; l++) {
        const named others[] = {{"x", l % 2 ? y : x}, {"y", l % 2 ? x : y}, {"cos_t", cos_t},
                                {"sin_t", sin_t},     {"start", start},     {"document", document}};
        named all[MOST];
        call(k, name, all, with_weights(m, l, all, others, 6));
    }
    const named last[] = {{"x", LAYERS % 2 ? y : x}, {"g", m->norm},  {"w", m->head},
                          {"token", next},           {"eps", m->eps}, {"logp", out}};
    call(head, "sequence_head", last, 6);
    for (int n = 0; n < sequences; n++)
        for (int i = 1; r.has >> n & 1 && i < t->length[n]; i++)
            logp[n][i] = out[r.at[n] + i - 1];
    drop_since(before);
}

/* ---- generating ---- */

/* How: which sequences, in which parts the prompt is taken, the caches' length, by which program a token is. */
typedef struct manner {
    const char *step;
    unsigned has;
    bool samples;
    int part, places;
} manner;

typedef struct generator {
    const model *m;
    manner how;
    int64_t batch;
    int which[SEQUENCES];
    int32_t *start; /* where a sequence begins in its cache */
    void *keys[LAYERS], *values[LAYERS];
} generator;

/* S tokens of every sequence, from a place in the caches on: those of padding are token 0 at position 0. */
static void take(generator *g, const text *t, int place, int s, void *x) {
    const model *m = g->m;
    const int before = room_count;
    const size_t row = G * E * epi_dtype_size(m->type);
    int64_t rows = g->batch * s;
    int32_t *ids = room(rows, EPI_I32), *position = room(rows, EPI_I32), *slot = room(rows, EPI_I32),
            *offset = room(1, EPI_I32);
    float *cos_t = room(rows * E, EPI_F32), *sin_t = room(rows * E, EPI_F32);
    void *y = room(rows * D, m->type), *k = room(rows * G * E, m->type), *v = room(rows * G * E, m->type);
    bool steps = s == 1 && strcmp(g->how.step, "prefill_layer") != 0;
    const char *name = steps ? g->how.step : "prefill_layer";
    for (int64_t b = 0; b < g->batch; b++)
        for (int i = 0; i < s; i++) {
            int at = place + i - g->start[b];
            position[b * s + i] = at > 0 ? at : 0;
            slot[b * s + i] = place + i;
            ids[b * s + i] = at >= 0 ? t->ids[g->which[b]][at] : 0;
        }
    *offset = place;
    embed(m, ids, rows, x);
    make_angles(m, position, rows, cos_t, sin_t);
    const epi_kernel *layer = compile(m, name, g->batch, s, g->how.places),
                     *keys = steps ? NULL : compile(m, "prefill_keys", g->batch, s, 0);
    for (int l = 0; l < LAYERS; l++) {
        const named others[] = {{"x", x},
                                {"y", y},
                                {"cos_t", cos_t},
                                {"sin_t", sin_t},
                                {"start", g->start},
                                {"offset", offset},
                                {"position", slot},
                                {"keys", g->keys[l]},
                                {"values", g->values[l]},
                                {"keys_new", g->keys[l]},
                                {"values_new", g->values[l]},
                                {"k", k},
                                {"v", v}};
        named all[MOST];
        int count = with_weights(m, l, all, others, 13);
        if (keys)
            call(keys, "prefill_keys", all, count);
        for (int64_t b = 0; b < g->batch && keys; b++) {
            size_t at = (size_t)(b * g->how.places + place) * row, from = (size_t)(b * s) * row;
            memcpy((char *)g->keys[l] + at, (char *)k + from, (size_t)s * row);
            memcpy((char *)g->values[l] + at, (char *)v + from, (size_t)s * row);
        }
        call(layer, name, all, count);
        memcpy(x, y, (size_t)(rows * D) * epi_dtype_size(m->type));
    }
    drop_since(before);
}

/* A token by its probability: the largest logit with noise as Gumbel has it. */
static int sample(const float *logits, uint64_t *s) {
    int best = 0;
    double most = -INFINITY;
    for (int v = 0; v < V; v++) {
        double x = (double)logits[v] - log(-log(random_unit(s) + 1e-300));
        best = x > most ? v : best;
        most = x > most ? x : most;
    }
    return best;
}

/* The next token of every sequence that is not at its end: its probability, and if asked which one it is. */
static void choose(const generator *g, text *t, int place, int s, const void *x, uint64_t *seed) {
    const model *m = g->m;
    const int before = room_count;
    const size_t row = (size_t)D * epi_dtype_size(m->type);
    float *logits = room(g->batch * V, EPI_F32), *lse = room(g->batch, EPI_F32);
    char *last = room(g->batch * D, m->type);
    const epi_kernel *k = compile(m, "decode_head", g->batch, 0, 0);
    const named all[] = {{"x", last},     {"g", m->norm},     {"w", m->head},
                         {"eps", m->eps}, {"logits", logits}, {"lse", lse}};
    for (int64_t b = 0; b < g->batch; b++)
        memcpy(last + (size_t)b * row, (const char *)x + (size_t)(b * s + s - 1) * row, row);
    call(k, "decode_head", all, 6);
    for (int64_t b = 0; b < g->batch; b++) {
        int n = g->which[b], at = place + s - g->start[b];
        if (g->how.samples)
            t->ids[n][at] = sample(logits + b * V, seed);
        t->logp[n][at] = logits[b * V + t->ids[n][at]] - lse[b];
    }
    drop_since(before);
}

/* Prompts with padding before them, so that all end together, in parts; then new tokens of each. */
static void generate(const model *m, text *t, manner how) {
    const int before = room_count;
    generator g = {.m = m, .how = how, .start = room(SEQUENCES, EPI_I32)};
    uint64_t seed = 3;
    int prompt = 0;
    for (int n = 0; n < sequences; n++)
        if (how.has >> n & 1) {
            g.which[g.batch++] = n;
            prompt = prompt_lengths[n] > prompt ? prompt_lengths[n] : prompt;
        }
    for (int64_t b = 0; b < g.batch; b++)
        g.start[b] = prompt - prompt_lengths[g.which[b]];
    for (int l = 0; l < LAYERS; l++) {
        g.keys[l] = room(g.batch * how.places * G * E, m->type);
        g.values[l] = room(g.batch * how.places * G * E, m->type);
    }
    void *x = room(g.batch * (prompt + 1) * D, m->type);
    for (int place = 0, s; place < prompt + new_tokens - 1; place += s) {
        s = place >= prompt ? 1 : place + how.part < prompt ? how.part : prompt - place;
        take(&g, t, place, s, x);
        if (place + s >= prompt)
            choose(&g, t, place, s, x, &seed);
    }
    drop_since(before);
}

/* ---- laws ---- */

static bool law_wanted(const model *m, const char *what, int n) {
    return wanted("%s %s, %d new, %s %d", m->what, epi_dtype_name(m->type), new_tokens, what, n);
}

/* Of the sequences that there are: their tokens from the prompt's end on, or from the first. */
static void same(const text *t, float (*logp)[LONGEST], unsigned has, bool all, const char *what,
                 const model *m) {
    for (int n = 0; n < sequences; n++) {
        int from = all ? 1 : prompt_lengths[n], differ = 0;
        for (int i = from; has >> n & 1 && i < t->length[n]; i++)
            differ += memcmp(&t->logp[n][i], &logp[n][i], sizeof(float)) != 0;
        check(differ == 0,
              "%s, %s, %s: of a prompt of %d tokens and %d more, the log-probabilities of %d differ", m->what,
              what, epi_dtype_name(m->type), prompt_lengths[n], new_tokens, differ);
    }
}

static const text *sampled_by(model *m) {
    if (!m->has_sampled)
        generate(m, &m->sampled, (manner){"prefill_layer", every, true, 700, LONGEST});
    m->has_sampled = true;
    return &m->sampled;
}

typedef enum padding { RIGHT, LEFT, PACKED } padding;

/* All sequences. */
static rows all_rows(const model *m, padding how) {
    const int longest = PROMPT + new_tokens;
    rows r = {.packed = how == PACKED, .per_batch = longest, .has = every};
    for (int n = 0; n < sequences; n++) {
        r.at[n] = r.count + (how == LEFT ? longest - m->sampled.length[n] : 0);
        r.count += how == PACKED ? m->sampled.length[n] : longest;
    }
    if (how == PACKED)
        r.per_batch = r.count;
    return r;
}

static text *batch_of(model *m) {
    if (!m->has_batch) {
        m->batch = *sampled_by(m);
        train(m, &m->sampled, all_rows(m, RIGHT), m->batch.logp);
    }
    m->has_batch = true;
    return &m->batch;
}

static void check_training(model *m) {
    static const struct {
        const char *what;
        padding how;
        bool saves, tight;
    } ways[] = {
        {"training, with what a backward takes", RIGHT, true, false},
        {"training, in less memory", RIGHT, false, true},
        {"training, padding on the left", LEFT, false, false},
        {"training, packed documents", PACKED, false, false},
    };
    static float logp[SEQUENCES][LONGEST];
    if (law_wanted(m, "training, padding on the right", 0))
        same(sampled_by(m), batch_of(m)->logp, all_rows(m, RIGHT).has, false,
             "training, padding on the right", m);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        if (law_wanted(m, ways[w].what, 0)) {
            rows r = all_rows(m, ways[w].how);
            r.saves = ways[w].saves;
            r.tight = ways[w].tight && !device;
            train(m, sampled_by(m), r, logp);
            same(batch_of(m), logp, r.has, true, ways[w].what, m);
        }
    for (int n = device ? sequences - 1 : 0; n < sequences; n++)
        if (law_wanted(m, "training, alone", n)) {
            rows one = {.count = m->sampled.length[n], .per_batch = m->sampled.length[n], .has = 1u << n};
            train(m, sampled_by(m), one, logp);
            same(batch_of(m), logp, one.has, true, "training, alone", m);
        }
}

static void check_generating(model *m) {
    static const struct {
        const char *what;
        manner how;
    } ways[] = {
        {"all, in parts of 64", {"padded_step", every, false, 64, 1007}},
        {"three of them, in parts of 7", {"prefill_layer", 7, false, 7, 129 + NEW}},
        {"one alone, at once", {"decode_layer", 8, false, 700, 1100}},
        {"the shortest alone", {"decode_layer", 1, false, 1, 1 + NEW}},
        {"one alone, token by token", {"decode_layer", 4, false, 1, 500}},
    };
    const int count = sizeof ways / sizeof *ways;
    for (int w = 0; w < (device ? 1 : count); w++)
        if (law_wanted(m, ways[w].what, 0)) {
            static text again;
            again = *sampled_by(m);
            memset(again.logp, 0, sizeof again.logp);
            generate(m, &again, ways[w].how);
            same(sampled_by(m), again.logp, ways[w].how.has, false, ways[w].what, m);
        }
}

static void check_model(epi_dtype type, const char *what) {
    static model m;
    const int64_t counts[] = {D, G * H * E * D, G * E * D, G * E * D, D * G * H * E, D, F * D, F * D, D * F};
    uint64_t s = 17;
    m = (model){.type = type, .what = what, .eps = room(1, EPI_F32), .frequency = room(E / 2, EPI_F32)};
    put_element(m.eps, EPI_F32, 0, 1e-5);
    for (int l = 0; l < LAYERS; l++)
        for (int w = 0; w < 9; w++)
            m.layer[l][w] = random_numbers(counts[w], counts[w] == D,
                                           counts[w] == D ? 0.3 : 0.3 * sqrt(72. / (double)D), type, &s);
    m.table = random_numbers(V * D, 0, 1, type, &s);
    m.norm = random_numbers(D, 1, 0.3, type, &s);
    m.head = random_numbers(V * D, 0, 0.3, type, &s);
    for (int i = 0; i < E / 2; i++)
        m.frequency[i] = powf(0.1f, (float)i);
    for (int n = 0; n < sequences; n++) {
        m.sampled.length[n] = prompt_lengths[n] + new_tokens;
        for (int i = 0; i < prompt_lengths[n]; i++)
            m.sampled.ids[n][i] = random_below(&s, V);
    }
    check_training(&m);
    check_generating(&m);
    drop_since(0);
    forget_kernels();
}

/* The text with some words in the place of others. */
static char *edited(const char *from, const edit *edits) {
    epi_text t = {0};
    while (*from) {
        int e = 0;
        while (e < 3 && strncmp(from, edits[e][0], strlen(edits[e][0])) != 0)
            e++;
        epi_text_add(&t, "%.*s", e < 3 ? 200 : 1, e < 3 ? edits[e][1] : from);
        from += e < 3 ? strlen(edits[e][0]) : 1;
    }
    return t.data;
}

/* The layers of a text, whatever its mask is. */
static void check_text(const char *text, const char *what) {
    char *other = edited(text, step_edits);
    no_case();
    module = parsed(ctx, text);
    padded = parsed(ctx, other);
    forward = derived(epi_module_find(module, "sequence_layer"), "x g1 wq wk wv wo g2 wg wu wd",
                      epi_program_grad_saved);
    if (padded && forward) {
        if (!device)
            check_model(EPI_F32, what);
        check_model(EPI_BF16, what);
    }
    epi_module_free(module);
    epi_module_free(padded);
    epi_module_free(forward);
    free(other);
}

/* Five sequences instead of sixteen, of 24 new tokens instead of 300. */
static void set_few(bool few) {
    sequences = few ? 5 : SEQUENCES;
    new_tokens = few ? 24 : NEW;
}

int main(int argc, char **argv) {
    bool gpu = argc > 1 && !strcmp(argv[1], "gpu"), few = argc > 1 && !strcmp(argv[1], "few");
    int at = 0;
    read_draw();
    while (epi_bundled_name(at) && strcmp(epi_bundled_name(at), "decode.epi") != 0)
        at++;
    if (check(epi_context_open(&ctx, NULL) == EPI_OK && epi_bundled_name(at) && (!gpu || open_gpu()),
              "there is decode.epi, and a GPU if it is asked for")) {
        char *windows = edited(epi_bundled_text(at), window_edits);
        /* in a draw few, as many take half a minute; a case by its name is of either */
        for (int n = 0; n < 2; n++) {
            set_few(n);
            D = 320;
            if (n ? gpu || few || !all_run() : !gpu && !few && draw.of == 1)
                check_text(epi_bundled_text(at), "causal");
        }
        D = 72;
        if (!device)
            check_text(windows, "windows");
        free(windows);
    }
    epi_context_close(ctx);
    return finish();
}

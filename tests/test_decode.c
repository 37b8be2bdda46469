/* test_decode.c: the layer of decode.epi, token by token with its caches in place, is the same layer over
 * whole sequences; a step writes the new token's places of the caches and no others; and attention reads the
 * caches where they lie. */
#include "ran.h"

static const char whole_text[] =
    "whole(x[B,S,D], g1[D], wq[G,H,E,D], wk[G,E,D], wv[G,E,D], wo[D,G,H,E], g2[D], wg[F,D], wu[F,D],\n"
    "      wd[D,F], frequency: f32[E/2], eps) -> y[B,S,D] {\n"
    "    n = x*rsqrt(mean(x*x, D) + eps)*g1\n"
    "    cos_t = cos(index(S)*frequency)\n"
    "    sin_t = sin(index(S)*frequency)\n"
    "    a, b = pairs(n @ wq, E)\n"
    "    q = join(a*cos_t - b*sin_t, a*sin_t + b*cos_t, E)\n"
    "    c, d = pairs(n @ wk, E)\n"
    "    k = rename(join(c*cos_t - d*sin_t, c*sin_t + d*cos_t, E), S, R)\n"
    "    v = rename(n @ wv, S, R)\n"
    "    s = where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf)\n"
    "    h = x + sum(softmax(s, R)*v, R) @ wo\n"
    "    m = h*rsqrt(mean(h*h, D) + eps)*g2\n"
    "    y = h + (silu(m @ wg)*(m @ wu)) @ wd\n"
    "}\n"
    "turned(x[B,D], wq[G,H,E,D], cos_t: f32[B,E/2], sin_t: f32[B,E/2]) -> q[B,G,H,E] {\n"
    "    a, b = halves(x @ wq, E)\n"
    "    q = concat(a*cos_t - b*sin_t, a*sin_t + b*cos_t, E)\n"
    "}\n";

enum { B = 2, S = 21, D = 24, G = 2, E = 8, R = 32 };
static const char dims[] = "B=2,S=21,D=24,G=2,H=3,E=8,F=40,R=32";
/* tensors of the whole layer, of decode_layer, and of decode_angles */
enum { WHOLE_FREQUENCY = 10, WHOLE_EPS = 11, WHOLE_Y = 12 };
enum {
    STEP_COS = 10,
    STEP_SIN = 11,
    STEP_POSITION = 12,
    STEP_KEYS = 13,
    STEP_VALUES = 14,
    STEP_EPS = 15,
    STEP_Y = 16
};

static epi_context *ctx;
static epi_module *module;

static epi_kernel *compile(const char *name, const char *sizes, way how) {
    return kernel_of(epi_module_find(module, name), sizes, how);
}

/* ---- what it computes ---- */

static void fill_whole(problem *p, uint64_t seed) {
    problem_fill(p, seed);
    for (int i = 0; i < E / 2; i++)
        put_at(&p->t[WHOLE_FREQUENCY], i, pow(0.3, i));
    put_at(&p->t[WHOLE_EPS], 0, 1e-5);
}

/* The second sequence is a token behind the first, where it can be: each has a position of its own. */
static int position_at(int step, int sequence) {
    int at = step - sequence;
    return at < 0 ? 0 : at >= S ? S - 1 : at;
}

/* The bytes of a cache that a step has to leave alone are as they were. */
static bool same_elsewhere(const tensor *cache, const unsigned char *before, int step) {
    size_t row = (size_t)G * E * epi_dtype_size(cache->shape.type);
    bool same = true;
    for (int b = 0; b < B; b++)
        for (int r = 0; r < R; r++)
            if (r != position_at(step, b))
                same &=
                    !memcmp(cache->data + (size_t)(b * R + r) * row, before + (size_t)(b * R + r) * row, row);
    return same;
}

/* Steps over the sequences of `whole`, whose result they write into: a token of each sequence at a time. */
static bool decode(epi_dtype type, epi_path path, problem *whole) {
    const way how = {.type = type, .path = path};
    ran layer, angles = {0};
    if (!made(&layer, epi_module_find(module, "decode_layer"), dims, how) ||
        !made(&angles, epi_module_find(module, "decode_angles"), dims, how))
        return false;
    problem *p = &layer.p, *turn = &angles.p;
    bool ok = true;
    size_t bytes = (size_t)p->t[STEP_KEYS].span * epi_dtype_size(type);
    unsigned char *before[2] = {malloc(bytes), malloc(bytes)};
    for (int cache = 0; cache < 2; cache++) {
        int t = STEP_KEYS + cache;
        for (int64_t i = 0; i < p->t[t].shape.count; i++) /* what no mask lets through */
            put_at(&p->t[t], i, 100);
        check(epi_kernel_in_place(layer.k, STEP_Y + 1 + cache, t), "the cache may be updated in place");
        p->args[STEP_Y + 1 + cache] = p->args[t];
    }
    for (int i = 1; i < STEP_COS; i++) /* weights */
        p->args[i] = whole->args[i];
    p->args[STEP_COS] = turn->args[2];
    p->args[STEP_SIN] = turn->args[3];
    p->args[STEP_EPS] = whole->args[WHOLE_EPS];
    turn->args[0] = p->args[STEP_POSITION];
    turn->args[1] = whole->args[WHOLE_FREQUENCY];
    for (int step = 0; step < S + B - 1 && ok; step++) {
        int at[B] = {position_at(step, 0), position_at(step, 1)};
        int64_t strides[2] = {S * D + (at[1] - at[0]) * D, 1};
        memcpy(p->t[STEP_POSITION].data, at, sizeof at);
        for (int io = 0; io < 2; io++) {
            const tensor *t = &whole->t[io ? WHOLE_Y : 0];
            int64_t first = (int64_t)at[0] * D * (int64_t)epi_dtype_size(t->shape.type);
            p->args[io ? STEP_Y : 0] = (epi_tensor){t->data + first, strides};
        }
        for (int cache = 0; cache < 2; cache++)
            memcpy(before[cache], p->t[STEP_KEYS + cache].data, bytes);
        ok = run_again(&angles) && run_again(&layer);
        for (int cache = 0; cache < 2 && ok; cache++)
            ok = check(same_elsewhere(&p->t[STEP_KEYS + cache], before[cache], step) &&
                           memcmp(before[cache], p->t[STEP_KEYS + cache].data, bytes) != 0,
                       "step %d writes the new token's places of cache %d alone", step, cache);
    }
    free(before[0]);
    free(before[1]);
    discard(&layer);
    discard(&angles);
    return ok;
}

static void check_values(epi_dtype type, epi_path path) {
    const epi_program *layer = epi_module_find(module, "whole");
    const way how = {.type = type, .fill = fill_whole, .seed = 11};
    ran out, ref = {0}, naive = {0};
    double error, bound;
    if (run_as(&out, layer, dims, how) && yardsticks(&ref, &naive, layer, dims, how)) {
        tensor *y = &out.p.t[WHOLE_Y];
        memset(y->data, POISON, (size_t)y->span * epi_dtype_size(type));
        if (decode(type, path, &out.p)) {
            bool near =
                within_rule(y, &ref.p.t[WHOLE_Y], &naive.p.t[WHOLE_Y], type, out.p.terms, &error, &bound);
            check(near, "token by token as over whole sequences, %s, path %d: error %g, allowed %g",
                  epi_dtype_name(type), (int)path, error, bound);
        }
    }
    discard(&out);
    discard(&ref);
    discard(&naive);
}

/* ---- how ---- */

/* At the sizes of Llama 8B: attention is one part and each update another, unless the product that makes keys
 * and values stores them itself; and nothing between parts is as long as a cache. */
static void check_shape(int device) {
    epi_kernel *k = compile("decode_layer", "B=8,D=4096,G=8,H=4,E=128,F=14336,R=4224",
                            (way){.type = EPI_BF16, .device = device});
    epi_kernel_info info;
    int updates = 0, attentions = 0, out;
    if (!k)
        return;
    epi_kernel_get_info(k, &info);
    for (int i = 0; i < info.parts; i++) {
        static char text[1 << 16];
        epi_kernel_part_print(k, i, text, sizeof text);
        if (strstr(text, "update(")) {
            updates++;
            check(!attentions && !strstr(text, "@") == !device,
                  "an update comes before attention, on a GPU with the product");
        }
        attentions += strstr(text, "exp(") != NULL && strstr(text, "(position") != NULL;
    }
    check(updates == (device ? 1 : 2) && attentions == 1, "two updates and one attention: %d, %d", updates,
          attentions);
    epi_value_info v;
    for (int i = 0; i < info.values && epi_kernel_value(k, i, &v) == EPI_OK; i++)
        check(v.bytes < INT64_C(2) * 8 * 4224 * 8 * 128, "%s is shorter than a cache", v.name);
    out = epi_program_tensor_count(epi_module_find(module, "decode_layer")) - 2;
    check(epi_kernel_in_place(k, out, STEP_KEYS) && epi_kernel_in_place(k, out + 1, STEP_VALUES) &&
              !epi_kernel_in_place(k, out, STEP_VALUES),
          "the caches take their inputs' place");
    epi_kernel_free(k);
}

/* Where halves are turned against each other the weight is read as it lies: there is no copy of it, whatever
 * the batch. */
static void check_halves(void) {
    for (int rows = 1; rows <= 4096; rows *= 64) {
        char sizes[60];
        snprintf(sizes, sizeof sizes, "B=%d,D=4096,G=8,H=4,E=128", rows);
        epi_kernel *k = compile("turned", sizes, (way){.type = EPI_BF16, .device = -90});
        epi_kernel_info info = {0};
        epi_kernel_get_info(k, &info);
        check(info.launches == 1, "halves of %d rows: %d launches, not 1", rows, info.launches);
        epi_kernel_free(k);
    }
}

int main(void) {
    epi_error err = {0};
    epi_text text = {0};
    int at = 0;
    while (epi_bundled_name(at) && strcmp(epi_bundled_name(at), "decode.epi") != 0)
        at++;
    epi_text_add(&text, "%s%s", whole_text, epi_bundled_name(at) ? epi_bundled_text(at) : "");
    if (check(epi_context_open(&ctx, NULL) == EPI_OK &&
                  epi_module_parse(ctx, text.data, text.length, "decode", &module, &err) == EPI_OK,
              "the texts parse: %s", err.message)) {
        for (int type = EPI_F32; type <= EPI_F16; type++) {
            check_values((epi_dtype)type, EPI_PATH_FUSED);
            check_values((epi_dtype)type, EPI_PATH_UNFUSED);
        }
        check_shape(0);
        check_shape(-90);
        check_halves();
        epi_module_free(module);
    }
    epi_context_close(ctx);
    epi_text_free(&text);
    return finish();
}

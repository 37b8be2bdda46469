/* test_cuda.c: the CUDA text of the programs, without a GPU: every case is emitted for every configuration,
 * and a choice of the texts is compiled by NVRTC, which must find nothing to complain about.
 *
 *     cuda [programs] [cache folder] [some | texts | forms | attention | all]
 *
 *     some     emits a twelfth, and compiles nothing: for the sanitizers, under which emitting is slow
 *     texts    emits everything, and compiles nothing
 *     forms    compiles as many texts as have every form: mainloop and schedule, each function, every kind of
 *              shape of rows, every capability
 *     attention  attention's texts alone, all of them compiled
 *     all      compiles the whole choice, which takes several minutes
 *
 * What the cost model chooses must compile; where the compiler finds it slow the next best follows, as in the
 * library, and one of Hopper's must be good. A configuration that was forced may be refused, and is named. */
#include <dirent.h>

#include "base/hash.h"
#include "case_text.h"
#include "cuda/cuda.h"
#include "cuda/jit.h"
#include "forms.h"
#include "ir/index.h"
#include "pass/rewrite/attention_form.h"
#include "random_program.h"
#include "spec.h"

static bool sparing;   /* of a case's texts one is emitted */
static bool compiling; /* else the texts are looked at and forgotten */
static bool choosing;  /* of those to compile, a few that have every form */
static int refused, slow;

/* ---- texts to compile ---- */

/* What is made of a text: nothing, or it is compiled; then it was forced, or chosen, and must be good. */
typedef enum use { LOOKED_AT, FORCED, CHOSEN } use;

typedef struct asked {
    char label[400];
    const loaded *l;
    variant v;
    bool must;  /* it was chosen, not forced */
    int choice; /* the configuration of a product, or -1 */
    epi_product_size size;
} asked;

enum { MOST = 4096 };
static epi_jit_item items[MOST];
static epi_hash hashes[MOST]; /* of their texts and architectures */
static asked asks[MOST];
static forms text_forms[MOST];
static int item_count, compiled; /* the first so many were given to the compiler */

/* Is the case that is at work compiled, too? Of a draw few are; what replaces one that is slow always. */
static bool compiles(void) {
    return compiling && (compiled || wanted_of(12));
}

/* The launches of a kernel, each text once. Returns where the product is, or -1. */
static int add_launches(const epi_cuda_kernel *k, const loaded *l, variant v, bool must) {
    int product = -1;
    for (int i = 0; i < k->count; i++) {
        const epi_kernel_text *t = &k->launches[i].text;
        int at = 0;
        if (k->launches[i].empty || k->launches[i].joined) /* of these emit_joints has whole texts */
            continue;
        const char *key[] = {t->source.data, t->arch};
        epi_hash hash = epi_hash_texts(key, 2);
        while (at < item_count && (hashes[at].a != hash.a || hashes[at].b != hash.b))
            at++;
        if (!check(at < MOST, "more texts than expected"))
            return -1;
        hashes[at] = hash;
        product = k->launches[i].kind == EPI_KIND_GEMM ? at : product;
        if (at < item_count) {
            asks[at].must |= must;
            continue;
        }
        items[at] = (epi_jit_item){.source = strdup(t->source.data),
                                   .name = strdup(t->name),
                                   .arch = t->arch,
                                   .keep_slow = !k->launches[i].alike};
        asks[at] = (asked){.l = l, .v = v, .must = must, .choice = -1};
        if (k->launches[i].kind == EPI_KIND_GEMM) {
            asks[at].choice = k->launches[i].choice;
            asks[at].size = k->launches[i].product.size;
        }
        snprintf(asks[at].label, sizeof asks[at].label, "%s", draw.name);
        if (choosing)
            forms_add_to_compile(&text_forms[at], &k->launches[i]);
        item_count++;
    }
    return product;
}

/* Whether a text has the name as a value: behind a blank or a dot, and before what may follow one. */
static bool has_value(const epi_text *source, const char *name) {
    const char *end = source->data + source->length, *p = source->data + 1;
    size_t length = strlen(name);
    for (; (p = memmem(p, (size_t)(end - p), name, length)); p++)
        if ((p[-1] == ' ' || p[-1] == '.') && strchr("_ ,;\n", p[length]))
            return true;
    return false;
}

/* Names that the text must keep: everything that the program calls by name and computes. */
static bool keeps_names(const epi_cuda_kernel *k, char *missing, size_t size) {
    const epi_graph *g = k->spec.graph;
    for (int i = 0; i < g->node_count; i++) {
        bool found = !g->live[i] || !g->nodes[i].name || g->nodes[i].op == EPI_OP_INPUT ||
                     g->nodes[i].op == EPI_OP_UPDATE; /* what is moved goes by the name of its tensor */
        for (int j = 0; j < k->count && !found; j++)
            found = has_value(&k->launches[j].text.source, g->nodes[i].name);
        if (!found) {
            snprintf(missing, size, "%s", g->nodes[i].name);
            return false;
        }
    }
    return true;
}

/* Returns where the product is, where texts are collected. */
static int look_at_part(const epi_cuda_kernel *k, const loaded *l, variant v, use what) {
    char arch[16], missing[64];
    bool right = true;
    snprintf(arch, sizeof arch, "sm_%d", v.capability);
    for (int i = 0; i < k->count; i++) {
        const char *a = k->launches[i].text.arch, *source = k->launches[i].text.source.data;
        size_t n = strlen(arch);
        right &= !strncmp(a, arch, n) && (!a[n] || a[n] == 'a') && source;
        check(source && !strstr(source, "= ;"), "%s: every value of launch %d has an expression", draw.name,
              i);
        check(source && !strstr(source, "__ldg(") && !strstr(source, "ld.global.nc"),
              "%s: launch %d loads nothing as a constant, which could come ahead of its wait", draw.name, i);
    }
    check(right, "%s is written for %s", draw.name, arch);
    if (!v.config && strcmp(l->from->file, "random") != 0 && /* there a product may vanish in a sum */
        !strstr(l->from->dims, "=0"))                        /* and here nothing is computed */
        check(keeps_names(k, missing, sizeof missing), "%s: the text does not speak of '%s'", draw.name,
              missing);
    return what != LOOKED_AT && compiles() ? add_launches(k, l, v, what == CHOSEN) : -1;
}

/* A configuration may be refused; the model's choice may not. */
static int emit_drawn(const loaded *l, variant v, const char *open, use what) {
    int product = -1;
    epi_error err = {0};
    epi_kernel *k = NULL;
    way how = {.type = v.type,
               .device = -v.capability,
               .path = v.path,
               .config = v.config,
               .open = open,
               .rounding = v.exact ? EPI_ROUND_EXACT : EPI_ROUND_PACKED};
    epi_status status = compile_as(l->program, l->from->dims, how, &k, &err);
    if (status == EPI_ERR_UNSUPPORTED && v.config) {
        refused++;
        check(err.message[0], "%s is refused with a reason", draw.name);
    } else if (check(status == EPI_OK, "%s: %s", draw.name, err.message)) {
        for (int i = 0; i < k->part_count; i++) {
            int at = k->parts[i].full.cuda ? look_at_part(k->parts[i].full.cuda, l, v, what) : -1;
            product = at >= 0 ? at : product;
        }
    }
    epi_kernel_free(k);
    return product;
}

/* A case, where it is drawn; of a table that many are of. Of `sparing` one of twelve is. */
static int emit(const char *table, const loaded *l, variant v, use what) {
    return l && wants(table, l, v, "") ? emit_drawn(l, v, NULL, what) : -1;
}

/* ---- compiling ---- */

static bool is_slow(const epi_jit_item *t) {
    return t->status == EPI_ERR_UNSUPPORTED && strstr(t->error.message, "would be slow");
}

/* As the library does where the compiler finds a chosen product slow: the next best by the model. It must be
 * one of Hopper's own. */
static void take_next_best(int item) {
    const asked w = asks[item];
    int order[64], count = epi_config_rank(&w.size, w.v.exact, epi_arch_of(90), 132, order), i = 0;
    printf("slow, so the next: %s: %s\n", w.label, items[item].error.message);
    while (i < count && order[i] != w.choice)
        i++;
    for (i++; i < count && epi_config_at(order[i])->mainloop == EPI_GEMM_SM90; i++) {
        variant next = w.v;
        next.config = epi_config_name(order[i]);
        the_case(w.label);
        int at = emit_drawn(w.l, next, NULL, CHOSEN);
        if (at >= compiled || (at >= 0 && !is_slow(&items[at])))
            return; /* its turn comes, or it was found good */
    }
    check(false, "%s: no configuration of Hopper's takes it: %s", w.label, items[item].error.message);
}

static void check_item(int i) {
    const epi_jit_item *t = &items[i];
    the_case(asks[i].label);
    if (is_slow(t) && asks[i].must && asks[i].choice >= 0) {
        take_next_best(i);
    } else if (is_slow(t) && !asks[i].must) {
        slow++;
        printf("skipped %s: %s\n", asks[i].label, t->error.message);
    } else if (check(t->status == EPI_OK, "%s for %s: %s", asks[i].label, t->arch, t->error.message)) {
        char section[80];
        snprintf(section, sizeof section, ".text.%s", t->name);
        check(memmem(t->cubin.data, t->cubin.size, section, strlen(section) + 1) != NULL,
              "%s for %s: the cubin has no kernel of that name", asks[i].label, t->arch);
    }
}

static void free_item(epi_jit_item *t) {
    epi_cubin_free(&t->cubin);
    free((void *)(uintptr_t)t->source);
    free((void *)(uintptr_t)t->name);
}

/* Leaves a few that have every form; what is forced and might be slow comes after what must be good. */
static void choose_texts(void) {
    static bool chosen[MOST], must[MOST], any[MOST];
    int kept = 0, count = item_count;
    for (int i = 0; i < count; i++) {
        must[i] = asks[i].must;
        any[i] = true;
    }
    forms_choose(text_forms, count, must, NULL, chosen);
    forms_choose(text_forms, count, any, NULL, chosen);
    for (int i = 0; i < count; i++) {
        forms_free(&text_forms[i]);
        if (chosen[i]) {
            hashes[kept] = hashes[i];
            items[kept] = items[i];
            asks[kept++] = asks[i];
        } else {
            free_item(&items[i]);
        }
    }
    item_count = kept;
    printf("%d of %d texts have every form\n", kept, count);
}

static void compile_texts(void) {
    double seconds = 0;
    int cached = 0;
    if (choosing)
        choose_texts();
    choosing = false; /* what is added from now on replaces one that is slow */
    for (int from = 0; from < item_count; from = compiled) {
        compiled = item_count;
        epi_jit_compile_all(items + from, compiled - from);
        for (int i = from; i < compiled; i++) /* may ask for more */
            check_item(i);
    }
    for (int i = 0; i < item_count; i++) {
        seconds += items[i].cubin.seconds;
        cached += items[i].cubin.cached;
        free_item(&items[i]);
    }
    printf("%d texts compiled in %.0f s of threads' time, %d of them from the cache; %d forced ones would be "
           "slow\n",
           item_count, seconds, cached, slow);
}

/* ---- which ---- */

/* The largest case of a program with aligned sizes, or with ragged ones. */
static const loaded *largest(const char *program, bool aligned) {
    const loaded *best = NULL;
    for (int i = 0; i < CASES; i++)
        if (!strcmp(cases[i].program, program) && !(cases[i].flags & LARGE) == !aligned &&
            (!best || volume(case_of(i)) > volume(best)))
            best = case_of(i);
    return best;
}

/* A case at sizes that fill a GPU: every axis eight times as long, but for a head's. */
static const loaded *grown(const loaded *l) {
    char dims[200] = "";
    bool heads = false;
    for (int i = 0; i < l->dim_count; i++)
        heads |= !strcmp(l->dims[i].name, "H");
    for (int i = 0; i < l->dim_count; i++) {
        int64_t by = heads && !strcmp(l->dims[i].name, "D") ? 1 : 8;
        snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%s=%ld", i ? "," : "", l->dims[i].name,
                 (long)(by * l->dims[i].size));
    }
    return program_with(l->from->file, NULL, l->from->program, dims);
}

static bool in_list(const char *const *list, const char *name) {
    for (; *list; list++)
        if (!strcmp(*list, name))
            return true;
    return false;
}

static const variant CHOSEN_90 = {EPI_BF16, EPI_PATH_FUSED, 90, NULL, false, 0};

/* Of the many programs without a product one text each is compiled, and of some a second one and the passes;
 * their shapes are compiled below. */
static void emit_row_program(const loaded *aligned, const loaded *ragged, int turn) {
    variant v = CHOSEN_90;
    emit("programs", aligned, v, CHOSEN);
    emit("programs", ragged, v, turn % 3 ? LOOKED_AT : CHOSEN);
    v.path = EPI_PATH_UNFUSED;
    emit("programs", aligned, v, turn % 12 ? LOOKED_AT : CHOSEN);
    v = (variant){turn % 2 ? EPI_F32 : EPI_F16, EPI_PATH_FUSED, 80, NULL, false, 0};
    emit("programs", aligned, v, turn % 4 ? LOOKED_AT : CHOSEN);
}

static void emit_program(const char *name) {
    static const char *const thorough[] = {"matmul_nn",        "residual_rms",    "norm_swiglu",
                                           "rmsnorm_backward", "swiglu_backward", NULL};
    static const char *const everywhere[] = {"matmul", "residual_rms", "swiglu_backward", NULL};
    static const int capabilities[] = {80, 86, 89, 120};
    static int turn;
    const loaded *aligned = largest(name, true), *ragged = largest(name, false);
    variant v = CHOSEN_90;
    if (!check(aligned && ragged, "%s has cases with aligned and with ragged sizes", name))
        return;
    if (!has_product(aligned)) {
        emit_row_program(aligned, ragged, turn++);
        return;
    }
    bool many = in_list(everywhere, name);
    for (int exact = 0; exact < 2; exact++) {
        v.exact = exact;
        v.config = NULL;
        emit("programs", aligned, v, CHOSEN);
        emit("programs", grown(aligned), v, CHOSEN);
        emit("programs", ragged, v, CHOSEN);
        for (int c = 0; c < epi_config_count() && in_list(thorough, name); c++) {
            v.config = epi_config_name(c);
            emit("programs", aligned, v, FORCED);
        }
    }
    v = CHOSEN_90;
    for (int c = 0; c < 4 && many; c++) {
        v.capability = capabilities[c];
        emit("programs", aligned, v, CHOSEN);
    }
    emit("programs", aligned, (variant){EPI_BF16, EPI_PATH_UNFUSED, 90, NULL, false, 0}, CHOSEN);
    emit("programs", aligned, (variant){EPI_F16, EPI_PATH_FUSED, 90, NULL, false, 0},
         many ? CHOSEN : LOOKED_AT);
    emit("programs", aligned, (variant){EPI_F32, EPI_PATH_FUSED, 90, NULL, false, 0},
         many ? CHOSEN : LOOKED_AT);
}

/* Every program of every file: none may be without cases. */
static void emit_file(const char *path) {
    char file[100];
    snprintf(file, sizeof file, "%s", strrchr(path, '/') + 1);
    file[strlen(file) - 4] = 0;
    epi_module *m = strcmp(file, "attention") ? module_of(file, NULL) : NULL; /* that is below */
    for (int i = 0; m && i < epi_module_count(m); i++)
        emit_program(epi_program_name(epi_module_program(m, i)));
}

static void emit_programs(void) {
    for_texts(programs, emit_file);
}

/* Texts are cheap: every case in every type, on both paths, in both contracts; every configuration
 * for some. */
static void emit_cases(void) {
    static const epi_dtype types[] = {EPI_BF16, EPI_F16, EPI_F32};
    for (int i = 0; i < CASES; i++)
        for (int n = 0; n < 12; n++) {
            if (sparing && (i + n) % 12)
                continue;
            variant v = {types[n >> 2], n & 2 ? EPI_PATH_UNFUSED : EPI_PATH_FUSED, 90, NULL, n & 1, 0};
            emit("cases", case_of(i), v, LOOKED_AT);
            bool sweep = cases[i].flags & (SWEEP | TINY) && v.type == EPI_BF16 && v.path == EPI_PATH_FUSED;
            for (int c = 0; c < epi_config_count() && sweep; c++) {
                v.config = epi_config_name(c);
                emit("cases", case_of(i), v, LOOKED_AT);
            }
        }
}

/* Operands whose rows TMA cannot take are copied ahead of the product, in either contract: two texts at
 * least. */
static void emit_odd_depth(const loaded *l, variant v, const char *more) {
    (void)more;
    for (int exact = 0; exact < 2; exact++) {
        int before = item_count;
        v.exact = exact;
        if (!wants("odd", l, v, ""))
            continue;
        int at = emit_drawn(l, v, NULL, CHOSEN);
        if (compiles() && !exact)
            check(at > before && !strcmp(items[before].name, "repack"), "%s has its operands copied ahead",
                  draw.name);
    }
}

static void emit_odd_depths(void) {
    static const char *const odd[] = {"matmul:matmul M=4096,N=4096,K=4095",
                                      "matmul:matmul M=300,N=16384,K=2571",
                                      "norm_swiglu:norm_swiglu T=4096,D=4097,F=4096",
                                      "residual_rms:residual_rms T=4000,D=4096,K=1023",
                                      "rmsnorm_backward:rmsnorm_backward T=4096,F=4095,D=4096",
                                      "matmul:matmul M=4001,N=4099,K=4095",
                                      "norm_swiglu:norm_swiglu T=4001,D=4095,F=4098",
                                      NULL};
    for_rows(odd, emit_odd_depth);
}

static const way ON_90 = {.type = EPI_BF16, .device = -90};

/* ---- the cost model ---- */

/* A column of tiles beyond the full ones is narrow where it has few columns, and clusters are left for it. */
static void narrow_tiles(void) {
    static const struct {
        const char *config;
        int64_t m, n;
        int narrow;
        int64_t cols, at_once;
        double time;
    } tilings[] = {
        {"sm90_128x256_c2_d", 4096, 4096, 0, 16, 64, 4},  {"sm90_128x256_c2_d", 4096, 4097, 64, 16, 66, 4},
        {"sm90_128x256_c2_e", 4096, 4160, 64, 16, 66, 4}, {"sm90_128x256_c2_d", 4096, 4161, 128, 16, 66, 4.4},
        {"sm90_128x256_c2_d", 4096, 4225, 0, 17, 55, 5},  {"sm90_128x256_c2_d", 200, 255, 0, 1, 1, 1},
        {"sm90_128x256_c2_d", 200, 300, 64, 1, 2, 1},     {"sm90_128x256_c1_d", 200, 300, 64, 1, 3, 1},
        {"sm90_128x192_c2_d", 4096, 4096, 0, 22, 59, 6},  {"sm90_128x128_c2_d", 4096, 4097, 0, 33, 66, 8},
    };
    for (size_t i = 0; i < sizeof tilings / sizeof *tilings; i++) {
        const epi_config *c = epi_config_at(epi_config_named(tilings[i].config));
        epi_product_size size = {.m = tilings[i].m, .n = tilings[i].n, .batches = 1, .products = 1};
        epi_tiling t = epi_tiling_of(c, &size, 132);
        check(t.narrow == tilings[i].narrow && t.cols == tilings[i].cols && t.at_once == tilings[i].at_once &&
                  fabs(t.time - tilings[i].time) < 0.01,
              "%s, %ld columns: %d narrow beside %ld, %ld clusters, time %g", tilings[i].config,
              (long)tilings[i].n, t.narrow, (long)t.cols, (long)t.at_once, t.time);
    }
}

/* Tensor cores for wide products, however small the depth and heavy the epilogue. */
static void model(void) {
    static const int64_t rows[] = {128, 500, 1024, 4096, 8192}, depths[] = {1, 8, 64, 4096};
    for (int i = 0; i < 5 * 4 * 9 * 2 * 2; i++) {
        epi_product_size size = {.m = rows[i % 5],
                                 .n = 8192,
                                 .k = depths[i / 5 % 4],
                                 .side_tiles = i / 20 % 9,
                                 .batches = 1,
                                 .products = 1};
        bool exact = i / 180 % 2;
        int order[64], capability = i / 360 ? 90 : 80;
        epi_config_rank(&size, exact, epi_arch_of(capability), capability == 90 ? 132 : 108, order);
        check(epi_config_at(order[0])->mainloop != EPI_GEMM_ANY, "sm_%d, %ld rows, %ld deep, %g streams: %s",
              capability, (long)size.m, (long)size.k, size.side_tiles, epi_config_name(order[0]));
    }
    /* Few rows, and no others, have the ring that is shared out at the start; every multiprocessor has work.
     */
    static const int64_t some[] = {1, 8, 64, 65, 128, 129, 4096}, wide[] = {4096, 6144, 28672, 128256};
    for (int i = 0; i < 7 * 4; i++) {
        epi_product_size size = {.m = some[i % 7], .n = wide[i / 7], .k = 4096, .batches = 1, .products = 1};
        int order[64], count = epi_config_rank(&size, false, epi_arch_of(90), 132, order);
        const epi_config *c = epi_config_at(order[0]);
        epi_tiling t = epi_tiling_of(c, &size, 132);
        check(count > 0 && c->few == (size.m <= 128), "%ld rows of %ld columns: %s", (long)size.m,
              (long)size.n, epi_config_name(order[0]));
        check(!c->few || t.at_once * c->cluster >= 120, "%ld rows of %ld columns: %ld blocks", (long)size.m,
              (long)size.n, (long)t.at_once * c->cluster);
        check(!c->few || c->cluster == 1 || size.m > 64, "%ld rows: no block is without any", (long)size.m);
    }
}

static void offline(void) {
    if (!wanted("offline"))
        return;
    const loaded *l = largest("norm_swiglu", true);
    epi_options o = case_options(l, EPI_BF16, EPI_PATH_FUSED);
    epi_kernel *k = NULL;
    epi_error err = {0};
    problem p = {0};
    _Alignas(64) char work[64];
    o.device = -90;
    if (check(epi_kernel_compile(l->program, &o, &k, &err) == EPI_OK, "the text alone: %s", err.message)) {
        epi_kernel_info info;
        char part[64], whole[4096];
        size_t length = epi_kernel_source(k, part, sizeof part);
        check(length > 1000 && strlen(part) == sizeof part - 1, "a source of %zu bytes, cut to fit", length);
        char *text = malloc(length + 1);
        if (check(text != NULL, "memory"))
            check(epi_kernel_source(k, text, length + 1) == length && strlen(text) == length &&
                      strstr(text, "gate") && strstr(text, "__global__"),
                  "the source is whole");
        free(text);
        epi_kernel_get_info(k, &info);
        check(info.micro[0] && !strcmp(info.mainloop, "gemm"), "info: %s %s", info.mainloop, info.micro);
        epi_kernel_describe(k, whole, sizeof whole);
        check(strstr(whole, info.micro) != NULL, "the description names the configuration: %s", whole);
        check(problem_make(&p, l->program, k, LAYOUT_PLAIN), "memory");
        epi_status status = epi_kernel_run(k, p.args, p.count, work, &err);
        check(status == EPI_ERR_ARGUMENT && strstr(err.message, "without a device"), "it does not run: %s",
              err.message);
        problem_free(&p);
        epi_kernel_free(k);
    }
    o.config = "sm90_1x1";
    check(epi_kernel_compile(l->program, &o, &k, &err) == EPI_ERR_ARGUMENT && !k &&
              strstr(err.message, "'sm90_1x1'"),
          "an unknown configuration: %s", err.message);
    o.config = NULL;
    o.device = -70;
    check(epi_kernel_compile(l->program, &o, &k, &err) == EPI_ERR_UNSUPPORTED && !k &&
              strstr(err.message, "7.0"),
          "a GPU that is too old: %s", err.message);
    o.device = epi_device_count(ctx);
    check(epi_kernel_compile(l->program, &o, &k, &err) == EPI_ERR_UNSUPPORTED && !k &&
              strstr(err.message, epi_device_why_no_gpu(ctx)),
          "a device too many: %s", err.message);
    check((epi_device_count(ctx) > 1) == !epi_device_why_no_gpu(ctx)[0], "no GPU for a reason: '%s'",
          epi_device_why_no_gpu(ctx));
    o.device = 0;
    if (check(epi_kernel_compile(l->program, &o, &k, &err) == EPI_OK, "%s", err.message)) {
        char none[8] = "x";
        check(epi_kernel_source(k, none, sizeof none) == 0 && !none[0], "a CPU kernel has no CUDA text");
        epi_kernel_free(k);
    }
    o.device = -90;
    o.path = EPI_PATH_REFERENCE;
    check(epi_kernel_compile(l->program, &o, &k, &err) == EPI_ERR_UNSUPPORTED && !k, "the reference: %s",
          err.message);
}

/* ---- limits ---- */

/* A product whose result meets `n` tiles and leaves as many. */
static epi_status compile_many(int n, int64_t rows, char *how, size_t size, epi_error *err) {
    static char text[16384];
    size_t at = (size_t)snprintf(text, sizeof text, "f(a[M,K], b[N,K]");
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, ", r%d[M,N]", i);
    at += (size_t)snprintf(text + at, sizeof text - at, ") -> (");
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%so%d[M,N]", i ? ", " : "", i);
    at += (size_t)snprintf(text + at, sizeof text - at, ") {\n    c = a @ b\n");
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "    o%d = c + r%d\n", i, i);
    at += (size_t)snprintf(text + at, sizeof text - at, "}\n");
    char dims[80];
    epi_kernel *k = NULL;
    epi_module *module = parsed(ctx, text);
    snprintf(dims, sizeof dims, "M=%ld,N=512,K=512", (long)rows);
    epi_status status = compile_as(epi_module_program(module, 0), dims, ON_90, &k, err);
    how[0] = 0;
    if (k)
        epi_kernel_describe(k, how, size);
    epi_kernel_free(k);
    epi_module_free(module);
    return status;
}

static void limits(void) {
    char how[16384];
    epi_error err;
    if (!wanted("limits"))
        return;
    check(compile_many(3, 512, how, sizeof how, &err) == EPI_OK && strstr(how, "sm90"), "three tiles: %s",
          how);
    check(compile_many(14, 512, how, sizeof how, &err) == EPI_OK && strstr(how, "sm80"),
          "more maps than a launch takes, but not more pointers: %s", how);
    check(compile_many(40, 512, how, sizeof how, &err) == EPI_OK && strstr(how, ", gemm") &&
              strstr(how, ", rows"),
          "more pointers than a launch takes are several kernels: %s", how);
    check(compile_many(1, INT64_C(1) << 32, how, sizeof how, &err) == EPI_ERR_UNSUPPORTED &&
              strstr(err.message, "too large"),
          "more rows than a mainloop counts: %s", err.message);
}

/* ---- gathers, scatters and random numbers ---- */

static void emit_moves(void) {
    static const epi_dtype types[] = {EPI_BF16, EPI_F16, EPI_F32};
    for (int i = 0; i < MOVES; i++) {
        const loaded *l = program_with("moves", NULL, moves[i].program, moves[i].dims);
        for (int t = 0; t < 3; t++) {
            variant v = {types[t], t == 1 ? EPI_PATH_UNFUSED : EPI_PATH_FUSED, 90, NULL, false, 0};
            emit("moves", l, v, t == i % 3 ? CHOSEN : LOOKED_AT);
        }
    }
}

/* ---- rows ---- */

enum { MOST_ROWS = 256 };
static const loaded *row_cases[MOST_ROWS];
static int row_case_count;

static const loaded *add_rows(const row_program *r, int64_t rows, int64_t columns) {
    const loaded *l = rows_of(r, rows, columns);
    if (l && row_case_count < MOST_ROWS)
        row_cases[row_case_count++] = l;
    return l;
}

/* What is chosen for rows of usual lengths spills no registers: there the reason is an error. */
static void emit_usual_rows(void) {
    static const int64_t lengths[] = {2048, 4096, 8192};
    static const int capabilities[] = {80, 90, 120};
    for (int p = 0; p < ROW_PROGRAMS; p++)
        for (int n = 0; n < 3; n++) {
            const loaded *l = add_rows(&row_programs[p], 4096, lengths[n]);
            for (int c = 0; c < 3; c++) { /* Hopper's all, of the others one length each */
                int from = item_count;
                variant v = {EPI_BF16, EPI_PATH_FUSED, capabilities[c], NULL, false, 0};
                emit("usual", l, v, c == 1 || (p + c) % 3 == n ? CHOSEN : LOOKED_AT);
                for (int i = from; i < item_count; i++)
                    items[i].keep_slow = false;
            }
        }
}

/* Shapes by name: all are emitted, and each compiled for one kind of GPU. */
static void emit_row_shapes(void) {
    static const int capabilities[] = {90, 80, 120};
    for (int p = 0; p < ROW_PROGRAMS; p++)
        for (int n = 0; n < 2; n++) {
            const row_program *r = &row_programs[p];
            const loaded *l = add_rows(r, 37, n ? 1000 : 1024);
            for (int i = 0; i < 3 * shape_count(r); i++) {
                const char *shape = shape_at(r, i / 3);
                int turn = strchr(shape, 'm') ? 0 : (p + i / 3) % (strchr(shape, 'c') ? 2 : 3);
                if (strchr(shape, 'c') && turn)
                    turn = 2;
                variant v = {
                    (p + n) % 2 ? EPI_F32 : EPI_BF16, EPI_PATH_FUSED, capabilities[i % 3], shape, false, 0};
                emit("shapes", l, v, i % 3 == turn && (i / 3 + p) % 4 == n ? FORCED : LOOKED_AT);
            }
        }
}

/* A kernel's text and the name of its shape; NULL where it is refused. */
static char *text_of(const loaded *l, int capability, const char *config, char *micro, epi_status *status,
                     epi_error *err) {
    epi_kernel *k = NULL;
    *err = (epi_error){0};
    *status = compile_as(l->program, l->from->dims,
                         (way){.type = EPI_BF16, .device = -capability, .config = config}, &k, err);
    if (*status != EPI_OK)
        return NULL;
    epi_kernel_info info;
    epi_kernel_get_info(k, &info);
    snprintf(micro, 64, "%s", info.micro);
    size_t length = epi_kernel_source(k, NULL, 0);
    char *text = malloc(length + 1);
    if (text)
        epi_kernel_source(k, text, length + 1);
    epi_kernel_free(k);
    return text;
}

/* The name of what is chosen names it. */
static void names_of_shapes(void) {
    for (int i = 0; i < row_case_count; i++)
        for (int capability = 80; capability <= 90; capability += 10) {
            const loaded *l = row_cases[i];
            epi_error err;
            epi_status status;
            char name[64], again[64];
            if (!wants("names", l, (variant){EPI_BF16, EPI_PATH_FUSED, capability, NULL, false, 0}, ""))
                continue;
            char *chosen = text_of(l, capability, NULL, name, &status, &err);
            char *named = chosen ? text_of(l, capability, name, again, &status, &err) : NULL;
            check(chosen && named && !strcmp(chosen, named) && !strcmp(name, again),
                  "%s %s: what is chosen is '%s' by name: %s", l->from->program, l->from->dims,
                  chosen ? name : "", err.message);
            free(chosen);
            free(named);
        }
}

/* The name of what is chosen on Hopper, where that is drawn. */
static bool shape_of(const char *table, const loaded *l, char name[64]) {
    epi_error err;
    epi_status status;
    name[0] = 0;
    if (!l || !wants(table, l, CHOSEN_90, ""))
        return false;
    free(text_of(l, 90, NULL, name, &status, &err));
    return true;
}

/* Sums of rows with many tensors have as many stages as fit, down to one, and stay fused. */
static const row_program four_inputs = {"../tests/row_sums", "four_inputs", "T", "D", "", 1, 1};

static void large_rows_fit(void) {
    char name[64];
    for (int64_t columns = 1024; columns <= 4096; columns *= 2)
        if (shape_of("fit", add_rows(&four_inputs, 4096, columns), name))
            check(!strncmp(name, "rows_", 5), "four tensors of %ld columns and a sum are fused: '%s'",
                  (long)columns, name);
}

/* However many rows there are, a thread adds up few of them: a long sum would drift. */
static void sums_are_short(void) {
    static const int64_t columns[] = {3, 64, 1000, 2048, 4096}, rows[] = {8192, 300000, 1 << 22};
    for (int i = 0; i < 15; i++) {
        char name[64];
        int of_block = 0, cluster = 0;
        long blocks = 0;
        if (shape_of("short", add_rows(&four_inputs, rows[i % 3], columns[i / 3]), name))
            check(sscanf(name, "rows_%*dx%*d_r%d_c%d_b%ld", &of_block, &cluster, &blocks) == 3 &&
                      epi_ceil_div(epi_ceil_div(rows[i % 3], of_block), blocks / cluster) <= 64,
                  "a thread sums %ld rows of %ld columns in short runs: '%s'", (long)rows[i % 3],
                  (long)columns[i / 3], name);
    }
}

/* Sums down the rows stay with their product or their rows, whatever axis of the columns is split, and how.
 */
static void sums_of_parts_fuse(void) {
    for (int i = 0; i < ROW_PROGRAMS; i++) {
        char name[64];
        if (!strcmp(row_programs[i].file, "../tests/row_sums") &&
            shape_of("fuse", add_rows(&row_programs[i], 300, 128), name))
            check(!strncmp(name, "rows_", 5), "%s is one kernel: '%s'", row_programs[i].program, name);
    }
    for (int i = 0; i < CASES; i++)
        for (int capability = 80; capability <= 90 && !strcmp(cases[i].file, "../tests/down_rows");
             capability += 10) {
            const loaded *l = case_of(i);
            epi_kernel_info info = {0};
            if (!wants("fuse", l, (variant){EPI_BF16, EPI_PATH_FUSED, capability, NULL, false, 0}, ""))
                continue;
            epi_kernel *k =
                kernel_of(l->program, l->from->dims, (way){.type = EPI_BF16, .device = -capability});
            if (k)
                epi_kernel_get_info(k, &info);
            check(info.mainloop && !strcmp(info.mainloop, "gemm"), "%s is one kernel on sm_%d",
                  cases[i].program, capability);
            epi_kernel_free(k);
        }
}

/* A program of a text for Hopper. Free both. */
static epi_kernel *kernel_of_text(const char *text, int program, const char *dims, epi_module **m) {
    *m = parsed(ctx, text);
    return *m ? kernel_of(epi_module_program(*m, program), dims, ON_90) : NULL;
}

/* An output that may lie over an input is stored after the loads of it, also where these are one by one. */
static void loads_before_stores(void) {
    epi_module *m;
    if (!wanted("loads before stores"))
        return;
    epi_kernel *k =
        kernel_of_text("f(x[D,T], w[T,D]) -> (a[T,D], y[D,T], z[D,T]) { a = w + 1; y = w*2; z = x + 1 }", 0,
                       "T=64,D=96", &m);
    char *text = malloc(1 << 20), *load = NULL, *store = NULL;
    if (k && text && check(epi_kernel_in_place(k, 3, 0), "y may lie over x")) {
        epi_kernel_source(k, text, 1 << 20);
        char *written = strstr(text, "written for this program");
        load = written ? strstr(written, "float x_") : NULL;
        store = written ? strstr(written, "store<BF16>") : NULL;
        check(load && store && load < store, "x is loaded before y is stored");
    }
    free(text);
    epi_kernel_free(k);
    epi_module_free(m);
}

/* Of what rows shift that they make, a thread makes some that another one stores: of none of its inputs an output takes the place. */
static void windows_lie_apart(void) {
    static const char source[] =
        "f(x[B,T,C], d[B,T,C], e[B,T,C]) -> y[B,T,C] { v = x*exp(d); y = v - shift(v, T, 1) + e }"
        "g(x[B,T,C], e[B,T,C]) -> y[B,T,C] { y = x - shift(x, T, 1) + e }";
    epi_module *f, *g;
    if (!wanted("windows lie apart"))
        return;
    epi_kernel *made = kernel_of_text(source, 0, "B=2,T=300,C=64", &f),
               *read = kernel_of_text(source, 1, "B=2,T=300,C=64", &g);
    check(made && !epi_kernel_in_place(made, 3, 0) && !epi_kernel_in_place(made, 3, 1),
          "a result lies over nothing that is asked for other rows");
    check(read && !epi_kernel_in_place(read, 2, 0) && epi_kernel_in_place(read, 2, 1),
          "nor over what is shifted");
    epi_kernel_free(made);
    epi_kernel_free(read);
    epi_module_free(f);
    epi_module_free(g);
}

/* Parts that need nothing of those before start beside them, in workspaces of their own; others wait. */
static void parts_are_concurrent(void) {
    static const struct {
        const char *text;
        bool concurrent[4];
        int regrouped; /* which part is a product of the groups of the one before, or 0 */
        int leader[4]; /* the first part that each is launched with */
    } some[] = {
        {"f(x[T,D], a[F,D], b[G,D], c[H,D]) -> (q[T,F], k[T,G], v[T,H]) { q = x @ a; k = x @ b; v = x @ c }",
         {false, true, true},
         0,
         {0, 0, 0}},
        {"f(x[T,D], a[F,D], b[G,F], c[H,D]) -> (k[T,G], v[T,H]) { k = silu(x @ a) @ b; v = x @ c }",
         {false, false, true},
         0,
         {0, 1, 2}}, /* of another depth */
        {"f(x[T,D], a[F,D], b[G,D], c[H,D]) -> (q[T,F], s: f32[T], k[T,G], v[T,H]) {"
         " q = x @ a; s = sum(q, F); k = x @ b; v = x @ c }",
         {false, false, true},
         0,
         {0, 1, 1}}, /* what comes behind a sum's last kernel waits for it */
        {"f(x[T,D], a[F,D], b[D,G], c[T,G]) -> (q[T,F], y[T,D]) { q = x @ a; y = x + c @ b }",
         {false, false},
         0,
         {0, 1}}, /* y may lie over x */
        {"f(x[T,D], a[G,F,D], b[G,D,F], e: i32[T]) -> y[T,D] {"
         " y = sum(silu(sum(x*gather(a, e, G), D))*gather(b, e, G), F) }",
         {false, false, false, false},
         2,
         {0, 1, 2, 3}},
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        epi_module *m;
        if (!wanted("concurrent %zu", i))
            continue;
        epi_kernel *k = kernel_of_text(some[i].text, 0, "T=256,D=64,F=128,G=192,H=320", &m);
        for (int p = 0; k && p < k->part_count; p++) {
            const epi_part_kernel *part = &k->parts[p];
            check(p < 4 && part->concurrent == some[i].concurrent[p], "%s: part %d starts %s", some[i].text,
                  p + 1, part->concurrent ? "beside the one before" : "after the one before");
            check(part->leader == some[i].leader[p] &&
                      (part->joint != NULL) ==
                          (p < 3 && p == part->leader && some[i].leader[p + 1] == p && p + 1 < k->part_count),
                  "%s: part %d is launched with part %d", some[i].text, p + 1, part->leader + 1);
            check(part->regrouped == (p && p == some[i].regrouped), "%s: part %d and its groups",
                  some[i].text, p + 1);
            check(!part->concurrent || part->own >= part[-1].own + part[-1].full.cuda->workspace,
                  "%s: part %d has a workspace of its own", some[i].text, p + 1);
            check(part->own + part->full.cuda->workspace <= k->values, "%s: room for part %d", some[i].text,
                  p + 1);
        }
        epi_kernel_free(k);
        epi_module_free(m);
    }
}

/* Products in one launch, at sizes of models: none may be slow. */
static void emit_joint(const loaded *l, variant v, const char *more) {
    int joined = 0;
    (void)more;
    if (!wants("joints", l, v, ""))
        return;
    epi_kernel *k = kernel_of(l->program, l->from->dims, ON_90);
    for (int p = 0; k && p < k->part_count; p++)
        if (k->parts[p].joint) {
            const epi_kernel_text *t = &k->parts[p].joint->launch.text;
            epi_jit_item item = {.source = t->source.data, .name = t->name, .arch = t->arch};
            if (compiles())
                check(epi_jit_compile(&item) == EPI_OK, "%s in one launch: %s", draw.name,
                      item.error.message);
            epi_cubin_free(&item.cubin);
            joined++;
        }
    check(joined > 0, "%s has a launch of several parts", draw.name);
    epi_kernel_free(k);
}

static void emit_joints(void) {
    static const char *const some[] = {"tests/joint:projections T=16384,D=2048,H=32,G=8,E=64",
                                       "tests/joint:paired T=8192,D=4096,A=4096,B=1024,C=1024",
                                       "tests/joint:weights T=16384,D=2048,A=2048,B=512,C=512", NULL};
    for_rows(some, emit_joint);
}

/* A product of few bits loads its weights before what comes before it has ended, unless something in the program
 * makes them or may store over them. */
static void weights_are_there(void) {
    static const struct {
        const char *text;
        int there; /* parts whose weights are */
    } some[] = {
        {"f(x[T,D], a[F,D], q: i8[D,G,K], s[D,G], c[G,K,F]) -> y[T,D] { y = silu(silu(x @ a) @ c) @ (s*q) }",
         1},
        {"f(x[T,D], a[F,D], q: i8[D,G,K], s[D,G], c[G,K,F]) -> y[T,D] { y = silu(silu(x @ a) @ c) @ "
         "(exp(s)*q) }",
         0},
        {"f(x[T,D], a[F,D], q: i8[D,G,K], s[D,G], c[G,K,F]) -> (y[T,D], r[D,G]) {"
         " y = silu(silu(x @ a) @ c) @ (s*q); r = 2*s }",
         0},
        {"f(x[T,D], a[F,D], b[D,F]) -> y[T,D] { y = silu(x @ a) @ b }", 0}, /* by wgmma */
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        epi_module *m;
        int there = 0;
        if (!wanted("weights there %zu", i))
            continue;
        epi_kernel *k = kernel_of_text(some[i].text, 0, "T=8,D=64,F=128,G=2,K=64", &m);
        for (int p = 0; k && p < k->part_count; p++)
            there += k->parts[p].weights_there;
        check(k && there == some[i].there && k->alone == (there > 0), "%s: the weights of %d parts are there",
              some[i].text, there);
        epi_kernel_free(k);
        epi_module_free(m);
    }
}

/* Indices are looked through at every size by one text, which counts open axes by its parameter; what it
 * found lies at the same place of every workspace. */
static void checks_of_open_axes(void) {
    static const char source[] = "f(x[V,D], i: i32[B,T], j: i32[S]) -> (y[B,T,D], z[S,B,D]) "
                                 "{ y = x[i]; z = gather(y, j, T) }";
    static const char *const open[] = {"B", "T"};
    epi_dim_binding dims[] = {{"V", 977}, {"D", 64}, {"B", 8}, {"T", 512}, {"S", 31}};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 5, .type = EPI_BF16, .device = -90,
                                .check_indices = 1, .open_axes = open, .open_axis_count = 2);
    epi_kernel *k = NULL;
    epi_error err;
    epi_module *module = wanted("checks of open axes") ? parsed(ctx, source) : NULL;
    if (module && check(epi_kernel_compile(epi_module_program(module, 0), &o, &k, &err) == EPI_OK &&
                            k->checks && k->checks->count == 2,
                        "%s", err.message)) {
        const char *first = k->checks->launches[0].text.source.data,
                   *second = k->checks->launches[1].text.source.data;
        check(strstr(first, ", 977LL)") && !strstr(strstr(first, "void __launch_bounds__"), "P.open"),
              "an axis of one size is a number");
        check(strstr(second, "P.open[") && !strstr(second, ", 512LL)"), "an open axis is none");
        check(k->form_count > 0, "there is a form for fewer rows");
        for (int f = 0; f < k->form_count; f++) {
            const epi_kernel *form = k->forms[f];
            check(form->checks && form->checks->like == k->checks &&
                      form->checks->launches[0].numbers.count < k->checks->launches[0].numbers.count &&
                      epi_kernel_parts_at(form) == epi_kernel_parts_at(k),
                  "its checks are the same, of fewer elements");
        }
        epi_index_fail(&k->spec, k->checked[0], 700, 977, &err);
        check(!strcmp(err.message, "i, element 700, is 977: outside axis V of 977"), "%s", err.message);
        epi_index_fail(&k->spec, k->checked[1], 7, 600, &err);
        check(!strcmp(err.message, "j[7] is 600: outside axis T"), "%s", err.message);
    }
    epi_kernel_free(k);
    epi_module_free(module);
}

static void wrong_shapes(void) {
    static const char *const malformed[] = {"rows_",          "rows_32",         "rows_32x",
                                            "rows_x8",        "rows_32x8_",      "rows_32x8_q3",
                                            "rows_32x8_r",    "rows_32x8r3",     "rows_32x8_a3",
                                            "rows_32x8_m2x",  "rows_32x8__b2",   "rows_32x8_s1",
                                            "rows_32x8_b3 ",  "rows_32x8_b3_zz", "rows_32x8_m",
                                            "rows_32x8_w",    "rows_32x8_m1_p",  "rows_32x8_c_b2",
                                            "rows_32x8_r2.5", "rows_thirtyx8",   NULL};
    static const char *const unfit[] = {"rows_0x8",
                                        "rows_-32x8",
                                        "rows_32x0",
                                        "rows_3x64",
                                        "rows_33x8",
                                        "rows_48x8",
                                        "rows_32x3",
                                        "rows_32x8_r0",
                                        "rows_32x8_r-1",
                                        "rows_32x8_c0",
                                        "rows_32x8_w-1",
                                        "rows_32x8_m1_p-1",
                                        "rows_32x8_p3",
                                        "rows_32x8_w1_s",
                                        "rows_32x8_c9",
                                        "rows_64x8_r16",
                                        "rows_512x1_r3",
                                        "rows_2048x1",
                                        "rows_32x8_r2_c2",
                                        "rows_4x64_c8",
                                        "rows_32x8_m9",
                                        "rows_32x8_m-1",
                                        "rows_4x32_m1",
                                        "rows_32x8_b-1",
                                        "rows_32x8_a_s",
                                        "rows_32x8_r15_m8",
                                        "rows_32x8_r4294967297",
                                        "rows_512x99999999",
                                        NULL};
    static const char *const flat[] = {"rows_32x8_r2", "rows_32x8_c2", "rows_32x8_m2",
                                       "rows_32x8_a",  "rows_32x8_s",  NULL};
    const loaded *rows = add_rows(&row_programs[0], 37, 1024), *one = add_rows(&row_programs[11], 37, 1024);
    const struct {
        const loaded *l;
        int capability;
        const char *const *names;
        epi_status status;
    } lists[] = {
        {rows, 90, malformed, EPI_ERR_ARGUMENT},
        {rows, 90, unfit, EPI_ERR_UNSUPPORTED},
        {one, 90, malformed, EPI_ERR_ARGUMENT},
        {one, 90, flat, EPI_ERR_UNSUPPORTED},
        {rows, 80, (const char *const[]){"rows_32x8_m1", "rows_32x4_c2", NULL}, EPI_ERR_UNSUPPORTED},
        {rows, 120, (const char *const[]){"rows_32x8_m1", NULL}, EPI_ERR_UNSUPPORTED},
        {rows, 90, (const char *const[]){"sm90_128x128_c1_d", "any_64x64", NULL}, EPI_ERR_UNSUPPORTED},
        {largest("matmul", true), 90, row_shapes, EPI_ERR_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists && rows && one; i++)
        for (int n = 0; !(lists[i].names == row_shapes && n >= ROW_SHAPES) && lists[i].names[n]; n++) {
            epi_error err;
            epi_status status;
            char micro[64];
            if (!wanted("wrong %s %d %s", lists[i].l->from->program, lists[i].capability, lists[i].names[n]))
                continue;
            free(text_of(lists[i].l, lists[i].capability, lists[i].names[n], micro, &status, &err));
            check(status == lists[i].status && err.message[0] &&
                      (status != EPI_ERR_ARGUMENT || strstr(err.message, lists[i].names[n])),
                  "the shape '%s' of %s is refused: %d, '%s'", lists[i].names[n], lists[i].l->from->program,
                  (int)status, err.message);
        }
}

/* ---- attention ---- */

/* Every configuration, with the programs that ask the most of it: what is listed must not be slow. */
static const char *const attention[] = {
    "tests/attention:causal B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_192x128_d64",
    "tests/attention:window B=2,H=4,G=4,S=1000,R=1000,E=40,F=64 f16 attention_192x128_d64",
    "tests/attention:biased B=2,H=8,S=1024,R=1024,E=64,F=64 bf16 attention_128x128_d64",
    "tests/attention:causal B=2,H=16,S=2048,R=2048,E=128,F=128 f16 attention_128x128_d128",
    "tests/attention:causal B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_128x128_held_d128",
    "tests/attention:full B=2,H=16,S=2047,R=1777,E=96,F=128 bf16 attention_128x128_d128",
    "tests/attention:biased B=2,H=8,S=1024,R=1024,E=128,F=128 bf16 attention_128x128_d128",
    "tests/attention:documents B=2,H=8,S=1024,R=1024,E=128,F=128 bf16 attention_128x128_d128",
    "tests/attention:lengths B=2,H=8,S=1024,R=1024,E=128,F=128 bf16 attention_128x64_d128",
    "tests/attention:latent B=2,S=2048,R=2048,H=16,E=128,P=64,F=128 bf16 attention_128x96_d192",
    "tests/attention:latent_queries B=2,S=2048,R=2048,H=16,E=128,P=64,F=128 bf16 attention_rows_128x64_d192",
    "tests/attention:latent_keys B=2,S=2048,R=2048,H=16,E=128,P=64,F=128 bf16 attention_rows_128x48_d192",
    "tests/attention:latent_pair B=2,S=2048,R=2048,H=16,E=128,P=64,F=128 bf16 attention_pair_128x64_d192",
    "tests/attention:prefix B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_128x128_d128",
    "tests/attention:prefix_keys B=2,H=4,G=4,S=2048,R=2048,E=128,F=128 bf16 attention_pair_128x48_d128",
    "tests/attention:packed B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_128x128_d64",
    "tests/attention:packed B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_128x128_d128",
    "tests/attention:packed_queries B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_rows_128x128_d64",
    "tests/attention:packed_queries B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_rows_128x96_d128",
    "tests/attention:packed_keys B=2,H=4,G=4,S=2048,R=2048,E=64,F=64 bf16 attention_pair_128x64_d64",
    "tests/attention:packed_keys B=2,H=4,G=4,S=2048,R=2048,E=128,F=128 bf16 attention_pair_128x64_d128",
    "tests/attention:window B=2,H=4,G=4,S=1000,R=1000,E=192,F=128 bf16 attention_128x96_d192",
    "tests/attention:causal B=2,H=16,S=2048,R=2048,E=192,F=192 bf16 attention_128x64_d192",
    "tests/attention:causal B=2,H=16,S=2048,R=2048,E=256,F=256 bf16 attention_128x64_d256",
    "tests/attention:queries B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_rows_128x128_d64",
    "tests/attention:queries B=2,H=16,S=2048,R=2048,E=128,F=128 f16 attention_rows_128x96_d128",
    "tests/attention:queries B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_rows_128x80_d128",
    "tests/attention:queries B=2,H=16,S=2048,R=2048,E=192,F=128 bf16 attention_rows_128x64_d192",
    "tests/attention:queries B=2,H=16,S=2048,R=2048,E=256,F=256 bf16 attention_rows_128x16_d256",
    "tests/attention:keys B=2,H=4,G=4,S=2048,R=2048,E=64,F=64 f16 attention_pair_128x64_d64",
    "tests/attention:keys B=2,H=4,G=4,S=2048,R=2048,E=96,F=96 bf16 attention_pair_128x64_d128",
    "tests/attention:keys B=2,H=4,G=4,S=2048,R=2048,E=128,F=128 bf16 attention_pair_128x64_d128",
    "tests/attention:keys B=2,H=4,G=4,S=2048,R=2048,E=128,F=128 bf16 attention_pair_128x48_d128",
    "tests/attention:keys B=2,H=4,G=4,S=2048,R=2048,E=192,F=128 bf16 attention_pair_128x16_d192",
    "tests/attention:layer_queries B=4,H=8,G=4,S=4096,R=4096,E=64,F=64 bf16 attention_rows_128x128_d64",
    "tests/attention:layer_queries B=4,H=8,G=4,S=4096,R=4096,E=128,F=128 bf16 attention_rows_128x96_d128",
    "tests/attention:layer_keys B=4,H=8,G=4,S=4096,R=4096,E=64,F=64 bf16 attention_pair_128x64_d64",
    "tests/attention:layer_keys B=4,H=8,G=4,S=4096,R=4096,E=128,F=128 bf16 attention_pair_128x64_d128",
    "tests/attention:dropout B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_128x128_d64",
    "tests/attention:dropout B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_128x128_d128",
    "tests/attention:dropout_apart B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_128x128_d64",
    "tests/attention:dropout_queries B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_rows_128x64_d128",
    "tests/attention:dropout_keys B=2,H=4,G=4,S=2048,R=2048,E=64,F=64 bf16 attention_pair_128x64_d64",
    "tests/attention:dropout_keys B=2,H=4,G=4,S=2048,R=2048,E=128,F=128 bf16 attention_pair_128x32_d128",
    "tests/attention:causal B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_mma_128x64_d64",
    "tests/attention:biased B=2,H=8,S=1024,R=1024,E=40,F=64 f16 attention_mma_128x64_d64",
    "tests/attention:dropout_apart B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_mma_64x64_d64",
    "tests/attention:window B=2,H=4,G=4,S=1000,R=1000,E=128,F=128 bf16 attention_mma_128x32_d128",
    "tests/attention:documents B=2,H=8,S=1024,R=1024,E=128,F=96 bf16 attention_mma_128x32_d128",
    "tests/attention:dropout B=2,H=8,S=1024,R=1024,E=128,F=128 bf16 attention_mma_64x32_d128",
    "tests/attention:causal B=2,H=16,S=2048,R=2048,E=192,F=128 f16 attention_mma_64x64_d192",
    "tests/attention:biased B=2,H=16,S=2048,R=2048,E=256,F=256 bf16 attention_mma_64x16_d256",
    "tests/attention:causal B=2,H=16,S=2048,R=2048,E=256,F=256 bf16 attention_mma_64x32_d256",
    "tests/attention:packed B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_mma_128x64_d64",
    "tests/attention:packed B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_mma_64x32_d128",
    "tests/attention:packed_queries B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_mma_rows_128x32_d128",
    "tests/attention:packed_keys B=2,H=4,G=4,S=2048,R=2048,E=64,F=64 bf16 attention_mma_pair_64x32_d64",
    "tests/attention:packed_keys B=2,H=4,G=4,S=2048,R=2048,E=128,F=128 bf16 attention_mma_pair_128x32_d128",
    "tests/attention:queries B=2,H=16,S=2048,R=2048,E=64,F=64 bf16 attention_mma_rows_128x32_d64",
    "tests/attention:dropout_queries B=2,H=16,S=2048,R=2048,E=64,F=40 bf16 attention_mma_rows_64x32_d64",
    "tests/attention:queries B=2,H=16,S=2048,R=2048,E=128,F=128 f16 attention_mma_rows_128x32_d128",
    "tests/attention:dropout_queries B=2,H=16,S=2048,R=2048,E=128,F=128 bf16 attention_mma_rows_64x32_d128",
    "tests/attention:queries B=2,H=16,S=2048,R=2048,E=192,F=128 bf16 attention_mma_rows_64x32_d192",
    "tests/attention:queries B=2,H=16,S=2048,R=2048,E=256,F=256 bf16 attention_mma_rows_64x16_d256",
    "tests/attention:keys B=2,H=4,G=4,S=2048,R=2048,E=64,F=64 f16 attention_mma_pair_64x32_d64",
    "tests/attention:dropout_keys B=2,H=4,G=4,S=2048,R=2048,E=64,F=64 bf16 attention_mma_pair_64x32_d64",
    "tests/attention:keys B=2,H=4,G=4,S=2048,R=2048,E=128,F=128 bf16 attention_mma_pair_128x32_d128",
    "tests/attention:keys B=2,H=4,G=4,S=2048,R=2048,E=128,F=96 bf16 attention_mma_pair_64x32_d128",
    "tests/attention:keys B=2,H=4,G=4,S=2048,R=2048,E=192,F=128 bf16 attention_mma_pair_64x16_d192",
    NULL,
};

static void emit_attention_row(const loaded *l, variant v, const char *more) {
    static const int all_from_ampere[] = {80, 86, 89, 90, 100, 120};
    static int row;
    int before = refused;
    (void)more;
    v.exact = true;
    v.capability = v.capability == 80 ? all_from_ampere[row % 6] : 90;
    row++;
    emit("attention", l, v, CHOSEN);
    if (!strncmp(l->from->program, "layer_", 6) && wants("attention", l, v, " open"))
        emit_drawn(l, v, "B S R", CHOSEN); /* a layer's sequences and their lengths are open */
    check(refused == before, "%s: no configuration of attention that is listed is refused", draw.name);
    v.config = NULL;
    v.type = EPI_F32; /* no tensor cores take it: passes */
    emit("attention", l, v, LOOKED_AT);
}

static void emit_attention(void) {
    for_rows(attention, emit_attention_row);
}

/* ---- random programs: emitted, and some of them compiled ---- */

static void emit_random(void) {
    enum { RANDOMS = 200, RANDOMS_COMPILED = 16 };
    static const int heads[] = {2, 8, 16, 64, 128};
    for (int i = 0; i < RANDOMS; i++) {
        maker m;
        char dims[80], name[24];
        make_program(&m, (uint64_t)i + 1);
        snprintf(dims, sizeof dims, "B=%d,S=%d,K=%d,H=%d,D=%d", 1 + random_below(&m.s, 3),
                 8 + random_below(&m.s, 700), 8 * (1 + random_below(&m.s, 40)) + (random_below(&m.s, 3) == 0),
                 1 + random_below(&m.s, 6), heads[random_below(&m.s, 5)]);
        snprintf(name, sizeof name, "seed%d", i + 1);
        const loaded *l = program_with("random", m.text, name, dims);
        variant v = {i % 3 ? EPI_BF16 : EPI_F32, EPI_PATH_FUSED, 90, NULL, i & 1, 0};
        emit("random", l, v, i < RANDOMS_COMPILED ? CHOSEN : LOOKED_AT);
        v.capability = 80;
        emit("random", l, v, LOOKED_AT);
    }
}

int main(int argc, char **argv) {
    char why[300] = "asked for texts alone";
    const char *mode = argc > 3 ? argv[3] : "all";
    sparing = !strcmp(mode, "some");
    compiling = !sparing && strcmp(mode, "texts") != 0 && epi_jit_available(why, sizeof why);
    choosing = compiling && !strcmp(mode, "forms");
    programs = argc > 1 ? argv[1] : "programs";
    if (argc > 2)
        setenv("EPILOG_CACHE", argv[2], 1);
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    if (!strcmp(mode, "attention")) {
        emit_attention();
    } else {
        offline();
        limits();
        narrow_tiles();
        model();
        emit_cases();
        emit_programs();
        emit_odd_depths();
        emit_moves();
        emit_usual_rows();
        emit_row_shapes();
        names_of_shapes();
        large_rows_fit();
        sums_are_short();
        sums_of_parts_fuse();
        wrong_shapes();
        loads_before_stores();
        windows_lie_apart();
        parts_are_concurrent();
        emit_joints();
        weights_are_there();
        checks_of_open_axes();
        emit_attention();
        emit_random();
    }
    printf("%d forced configurations were refused\n", refused);
    if (compiling)
        compile_texts();
    else
        printf("nothing is compiled: %s\n", why);
    free_programs();
    epi_context_close(ctx);
    return finish();
}

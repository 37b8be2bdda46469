/* choose.c: the configurations of the gemm mainloops, and a cost model that ranks them for a shape. */
#include <string.h>

#include "cuda/cuda.h"

/* The name says tile, cluster and schedule: d for deferred (with the columns of a subtile, where they are
 * not left to the design), e for the tile's end; q where clusters queue for tiles. */
static const struct {
    const char *name;
    epi_config config;
    double efficiency; /* of the tensor cores, in the steady state */
} configs[] = {
    {"sm90_128x256_c2_dq", {EPI_GEMM_SM90, 128, 256, 4, 2, 0, 0, EPI_DEFERRED, true, true}, 0.955},
    {"sm90_128x256_c2_d", {EPI_GEMM_SM90, 128, 256, 4, 2, 0, 0, EPI_DEFERRED, true, false}, 0.95},
    {"sm90_128x256_c2_d32q", {EPI_GEMM_SM90, 128, 256, 4, 2, 32, 0, EPI_DEFERRED, true, true}, 0.95},
    {"sm90_128x256_c2_d32", {EPI_GEMM_SM90, 128, 256, 4, 2, 32, 0, EPI_DEFERRED, true, false}, 0.945},
    {"sm90_128x256_c2_d16", {EPI_GEMM_SM90, 128, 256, 4, 2, 16, 0, EPI_DEFERRED, true, false}, 0.94},
    {"sm90_128x256_c1_d", {EPI_GEMM_SM90, 128, 256, 4, 1, 0, 0, EPI_DEFERRED, true, false}, 0.93},
    {"sm90_128x256_c2_eq", {EPI_GEMM_SM90, 128, 256, 4, 2, 0, 0, EPI_AT_END, true, true}, 0.905},
    {"sm90_128x256_c2_e", {EPI_GEMM_SM90, 128, 256, 4, 2, 0, 0, EPI_AT_END, true, false}, 0.90},
    {"sm90_128x192_c2_dq", {EPI_GEMM_SM90, 128, 192, 4, 2, 0, 0, EPI_DEFERRED, true, true}, 0.925},
    {"sm90_128x192_c2_d", {EPI_GEMM_SM90, 128, 192, 4, 2, 0, 0, EPI_DEFERRED, true, false}, 0.92},
    {"sm90_128x192_c1_d", {EPI_GEMM_SM90, 128, 192, 4, 1, 0, 0, EPI_DEFERRED, true, false}, 0.90},
    {"sm90_128x128_c2_d", {EPI_GEMM_SM90, 128, 128, 6, 2, 0, 0, EPI_DEFERRED, true, false}, 0.86},
    {"sm90_128x128_c1_d", {EPI_GEMM_SM90, 128, 128, 6, 1, 0, 0, EPI_DEFERRED, true, false}, 0.84},
    {"sm90_128x64_c1_d", {EPI_GEMM_SM90, 128, 64, 7, 1, 0, 0, EPI_DEFERRED, true, false}, 0.60},
    {"sm80_128x128", {EPI_GEMM_SM80, 128, 128, 4, 1, 64, 1, EPI_AT_END, true, false}, 0.55},
    {"any_64x64", {EPI_GEMM_ANY, 64, 64, 1, 1, 64, 1, EPI_AT_END, true, false}, 0.02},
};
enum { CONFIGS = sizeof configs / sizeof *configs };

int epi_config_count(void) {
    return CONFIGS;
}

const epi_config *epi_config_at(int index) {
    return &configs[index].config;
}

const char *epi_config_name(int index) {
    return configs[index].name;
}

int epi_config_named(const char *name) {
    for (int i = 0; i < CONFIGS; i++)
        if (!strcmp(configs[i].name, name))
            return i;
    return -1;
}

uint64_t epi_config_same_text(int index) {
    uint64_t same = 0;
    for (int i = 0; i < CONFIGS; i++) {
        const epi_config *a = &configs[i].config, *b = &configs[index].config;
        if (a->mainloop == b->mainloop && a->tile_m == b->tile_m && a->tile_n == b->tile_n &&
            a->cluster == b->cluster && a->subtile == b->subtile && a->schedule == b->schedule)
            same |= UINT64_C(1) << i;
    }
    return same;
}

/* The width of a last column of tiles that has few columns: what wgmma can take, and for operands whose rows
 * lie across the depth what TMA brings at once. For tiles of less than 256 columns it
 * does not pay: the epilogue of the tile before takes longer than a narrow main loop. */
static int narrow_width(const epi_config *c, int64_t n) {
    enum { BOX = 64 };
    int64_t width = epi_round_up(n % c->tile_n, BOX);
    bool can = c->mainloop == EPI_GEMM_SM90 && c->tile_n >= 256 && n > c->tile_n;
    return can && width <= c->tile_n / 2 ? (int)width : 0;
}

/* The time that narrow tiles take beside full ones, of which `more` clusters have one more than the others;
 * those others share the narrow ones. */
static double last_time(int64_t tiles, double each, int64_t clusters, int64_t more) {
    double shared = each * (double)epi_ceil_div(tiles, clusters - more);
    return more && shared < 1 ? 1 : shared;
}

epi_tiling epi_tiling_of(const epi_config *c, int64_t m, int64_t batches, int64_t n, int products, bool open,
                         int multiprocessors) {
    int64_t resident = c->mainloop == EPI_GEMM_SM90 ? 1 : c->mainloop == EPI_GEMM_SM80 ? 2 : 8;
    int64_t most = epi_max64(1, multiprocessors / c->cluster) * resident;
    epi_tiling t = {.rows = batches * epi_ceil_div(m / batches, c->tile_m * c->cluster),
                    .narrow = products > 1 || open ? 0 : narrow_width(c, n)};
    /* a stage of a narrow tile takes as long to come as a full one: it is twice as deep, where that fits */
    t.narrow_deep = 2 * (c->tile_m + t.narrow) <= c->tile_m + c->tile_n ? 2 : 1;
    double each = t.narrow_deep > 1 ? 0.4 : 0.7; /* of a full tile's time */
    t.cols = t.narrow ? n / c->tile_n : epi_ceil_div(n, c->tile_n / products);
    int64_t tiles = t.rows * t.cols;
    /* the fewest that take the least time: less contention */
    for (int64_t at_once = epi_max64(1, epi_min64(tiles + t.rows, most)); at_once > 0; at_once--) {
        int64_t more = tiles % at_once;
        double last = t.narrow ? last_time(t.rows, each, at_once, more) : more > 0;
        double time = (double)(tiles / at_once) + last;
        if (!t.at_once || time <= t.time) {
            t.at_once = at_once;
            t.time = time;
        }
    }
    /* across columns where their operand is the smaller one: stay with it */
    t.raster_group = c->mainloop == EPI_GEMM_SM90 && n <= m ? -8 : 8;
    return t;
}

/* What an epilogue adds to the depth of a tile, for every tile of 16 bits that it loads or stores beyond the
 * one that every product stores. */
static double per_stream(const epi_config *c, bool exact) {
    return c->schedule == EPI_AT_END ? 330 : exact ? 208 : 100;
}

/* Modelled time in units of one multiprocessor's full rate: whole waves of tiles at the configuration's
 * efficiency with their epilogues, the last tile's, which nothing hides, and what a queue was measured to
 * cost; in short tiles clusters would wait for its answers, too. */
double epi_config_cost(int index, const epi_product_size *size, bool exact, int multiprocessors) {
    const epi_config *c = &configs[index].config;
    const epi_tiling t =
        epi_tiling_of(c, size->m, epi_max64(1, size->batches), size->n,
                      size->products > 1 ? size->products : 1, size->open_columns, multiprocessors);
    int64_t resident = c->mainloop == EPI_GEMM_SM90 ? 1 : 2,
            at_once = epi_max64(1, multiprocessors / c->cluster) * resident;
    /* two to a multiprocessor, of whichever are not alone there: more of them are no faster */
    double waves = t.narrow ? t.time : (double)epi_ceil_div(t.rows * t.cols, at_once);
    double deep = (double)(size->k + 64) / configs[index].efficiency + size->streams * per_stream(c, exact);
    if (size->products > 1 && c->tile_n >= 256) /* what both products keep leaves few registers to the rest */
        deep += 150;
    /* so shallow that storing takes longest: then nothing is gained by storing under the next tile */
    bool shallow = size->k <= 256;
    if (shallow && c->schedule == EPI_AT_END)
        deep *= 0.88;
    double work = (double)(resident * c->tile_m * c->tile_n) * deep;
    double exposed = (double)c->tile_m * c->tile_n * 200;
    if (c->queue && !(shallow && c->schedule == EPI_AT_END)) {
        exposed += 128 * 256 * 320.0;
        work *= size->k < 2048 ? 1.02 : 1;
    }
    return waves * work + exposed;
}

/* Exact keeps the accumulators as they are, so a deferred tile may have 192 columns at most. */
bool epi_config_suits(int index, bool exact, int capability) {
    const epi_config *c = &configs[index].config;
    if (c->mainloop == EPI_GEMM_SM90 && capability != 90)
        return false;
    if (c->mainloop == EPI_GEMM_SM80 && capability < 80)
        return false;
    return !(exact && c->schedule == EPI_DEFERRED && c->tile_n > 192);
}

int epi_config_rank(const epi_product_size *size, bool exact, int capability, int multiprocessors,
                    int *order) {
    int count = 0;
    double times[CONFIGS];
    for (int i = 0; i < CONFIGS; i++) {
        if (!epi_config_suits(i, exact, capability))
            continue;
        double t = epi_config_cost(i, size, exact, multiprocessors);
        int at = count++;
        for (; at > 0 && times[at - 1] > t; at--) {
            times[at] = times[at - 1];
            order[at] = order[at - 1];
        }
        times[at] = t;
        order[at] = i;
    }
    return count;
}

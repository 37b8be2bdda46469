/* choose.c: the configurations of the gemm mainloops, and a cost model that ranks them for a shape. */
#include "cuda/cuda.h"

/* The configurations, with the part of the tensor cores' rate that they reach in the steady state; those for
 * few rows have a model of their own.
 *
 * A name says tile, cluster and schedule: d for deferred (with the columns of a subtile, where they are not
 * left to the design), e for the tile's end; q where clusters queue for tiles. f is for few rows, at the
 * tile's end: the fewest columns that give every multiprocessor a tile are best there. p is for operands of 8 bits, whose
 * sums are promoted to f32 stage by stage, at the tile's end, too. */
/* clang-format off */
static const struct {
    const char *name;
    epi_config config;
    double efficiency;
} configs[] = {
    {"sm90_128x256_c2_dq", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 4, .cluster = 2, .schedule = EPI_DEFERRED, .queue = true}, 0.955},
    {"sm90_128x256_c2_d", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 4, .cluster = 2, .schedule = EPI_DEFERRED}, 0.95},
    {"sm90_128x256_c2_d32q", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 4, .cluster = 2, .subtile = 32, .schedule = EPI_DEFERRED, .queue = true}, 0.95},
    {"sm90_128x256_c2_d32", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 4, .cluster = 2, .subtile = 32, .schedule = EPI_DEFERRED}, 0.945},
    {"sm90_128x256_c2_d16", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 4, .cluster = 2, .subtile = 16, .schedule = EPI_DEFERRED}, 0.94},
    {"sm90_128x256_c1_d", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 4, .cluster = 1, .schedule = EPI_DEFERRED}, 0.93},
    {"sm90_128x256_c2_eq", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 4, .cluster = 2, .queue = true}, 0.905},
    {"sm90_128x256_c2_e", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 4, .cluster = 2}, 0.90},
    {"sm90_128x192_c2_dq", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 192, .stages = 4, .cluster = 2, .schedule = EPI_DEFERRED, .queue = true}, 0.925},
    {"sm90_128x192_c2_d", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 192, .stages = 4, .cluster = 2, .schedule = EPI_DEFERRED}, 0.92},
    {"sm90_128x192_c1_d", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 192, .stages = 4, .cluster = 1, .schedule = EPI_DEFERRED}, 0.90},
    {"sm90_128x128_c2_d", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 128, .stages = 6, .cluster = 2, .schedule = EPI_DEFERRED}, 0.86},
    {"sm90_128x128_c1_d", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 128, .stages = 6, .cluster = 1, .schedule = EPI_DEFERRED}, 0.84},
    {"sm90_128x64_c1_d", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 64, .stages = 7, .cluster = 1, .schedule = EPI_DEFERRED}, 0.60},
    {"sm90_64x16_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 16, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_64x32_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 32, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_64x48_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 48, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_64x64_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 64, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_64x96_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 96, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_64x112_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 112, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_64x128_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 128, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_64x192_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 192, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_64x256_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 256, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_64x32_c2_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 32, .stages = 16, .cluster = 2, .few = true}, 0},
    {"sm90_64x64_c2_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 64, .stages = 16, .cluster = 2, .few = true}, 0},
    {"sm90_64x96_c2_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 96, .stages = 16, .cluster = 2, .few = true}, 0},
    {"sm90_64x128_c2_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 64, .tile_n = 128, .stages = 16, .cluster = 2, .few = true}, 0},
    {"sm90_128x64_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 64, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_128x112_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 112, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_128x128_c1_f", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 128, .stages = 16, .cluster = 1, .few = true}, 0},
    {"sm90_128x256_c2_p", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 3, .cluster = 2, .scaled = true}, 0.95},
    {"sm90_128x256_c1_p", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 256, .stages = 3, .cluster = 1, .scaled = true}, 0.93},
    {"sm90_128x128_c1_p", {.mainloop = EPI_GEMM_SM90, .tile_m = 128, .tile_n = 128, .stages = 5, .cluster = 1, .scaled = true}, 0.55},
    {"sm80_128x128", {.mainloop = EPI_GEMM_SM80, .tile_m = 128, .tile_n = 128, .stages = 4, .cluster = 1}, 0.55},
    {"few_8x16", {.mainloop = EPI_GEMM_FEW, .tile_m = 8, .tile_n = 16, .stages = 8, .cluster = 1, .few = true}, 0},
    {"few_8x32", {.mainloop = EPI_GEMM_FEW, .tile_m = 8, .tile_n = 32, .stages = 8, .cluster = 1, .few = true}, 0},
    {"few_8x64", {.mainloop = EPI_GEMM_FEW, .tile_m = 8, .tile_n = 64, .stages = 8, .cluster = 1, .few = true}, 0},
    {"few_8x128", {.mainloop = EPI_GEMM_FEW, .tile_m = 8, .tile_n = 128, .stages = 8, .cluster = 1, .few = true}, 0},
    {"few_16x32", {.mainloop = EPI_GEMM_FEW, .tile_m = 16, .tile_n = 32, .stages = 8, .cluster = 1, .few = true}, 0},
    {"few_16x64", {.mainloop = EPI_GEMM_FEW, .tile_m = 16, .tile_n = 64, .stages = 8, .cluster = 1, .few = true}, 0},
    {"any_64x64", {.mainloop = EPI_GEMM_ANY, .tile_m = 64, .tile_n = 64, .stages = 1, .cluster = 1}, 0.02},
};
/* clang-format on */
enum { CONFIGS = sizeof configs / sizeof *configs };
_Static_assert(CONFIGS <= (int)EPI_MOST_CONFIGS, "sets of configurations are bits of 64");

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
    return epi_find_named(epi_config_name, CONFIGS, name);
}

uint64_t epi_config_same_text(int index) {
    uint64_t same = 0;
    for (int i = 0; i < CONFIGS; i++) {
        const epi_config *a = &configs[i].config, *b = &configs[index].config;
        if (a->mainloop == b->mainloop && a->tile_m == b->tile_m && a->tile_n == b->tile_n &&
            a->cluster == b->cluster && a->subtile == b->subtile && a->schedule == b->schedule &&
            a->few == b->few && a->scaled == b->scaled)
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
    bool can = c->mainloop == EPI_GEMM_SM90 && !c->few && !c->scaled && c->tile_n >= 256 && n > c->tile_n;
    return can && width <= c->tile_n / 2 ? (int)width : 0;
}

/* The time that narrow tiles take beside full ones, of which `more` clusters have one more than the others;
 * those others share the narrow ones. */
static double last_time(int64_t tiles, double each, int64_t clusters, int64_t more) {
    double shared = each * (double)epi_ceil_div(tiles, clusters - more);
    return more && shared < 1 ? 1 : shared;
}

/* Column operands: of batches one each, of groups each that has rows. */
static int64_t weights_of(const epi_product_size *size) {
    return size->group == EPI_GROUP_ROWS ? epi_max64(1, epi_min64(size->m, size->groups)) : size->batches;
}

/* Clusters of tiles, one above the other. A group with rows has a tile at least, and half of its last one, on
 * the average, is behind its end. */
static int64_t rows_of_tiles(const epi_config *c, const epi_product_size *size) {
    if (size->group != EPI_GROUP_ROWS)
        return size->batches * epi_ceil_div(size->m / size->batches, c->tile_m * c->cluster);
    int64_t tiles = epi_max64(weights_of(size), size->m / c->tile_m + size->groups / 2);
    return epi_min64(size->m, epi_ceil_div(tiles, c->cluster));
}

int epi_config_resident(const epi_config *c) {
    switch (c->mainloop) {
    case EPI_GEMM_SM90: return 1;
    case EPI_GEMM_ANY: return 8;
    case EPI_GEMM_FEW: return c->tile_m * c->tile_n > 256 || c->warps * c->teams > 8 ? 1 : 2;
    default: return 2;
    }
}

epi_tiling epi_tiling_of(const epi_config *c, const epi_product_size *size, int multiprocessors) {
    int64_t n = size->n;
    int64_t most = epi_max64(1, multiprocessors / c->cluster) * epi_config_resident(c);
    int64_t tall = c->tile_m * c->cluster;
    epi_tiling t = {.rows = rows_of_tiles(c, size),
                    .narrow = size->products > 1 || size->open_columns || size->group || size->joined
                                  ? 0
                                  : narrow_width(c, n)};
    /* a stage of a narrow tile takes as long to come as a full one: it is twice as deep, where that fits */
    t.narrow_deep = 2 * (c->tile_m + t.narrow) <= c->tile_m + c->tile_n ? 2 : 1;
    double each = t.narrow_deep > 1 ? 0.4 : 0.7; /* of a full tile's time */
    t.cols = t.narrow ? n / c->tile_n : epi_ceil_div(n, c->tile_n / size->products);
    int64_t tiles = t.rows * t.cols;
    if (c->few) /* all of them: memory is what they wait for */
        t.at_once = epi_max64(1, epi_min64(tiles, most));
    if (size->group == EPI_GROUP_ROWS) { /* nobody knows how many there are */
        t.at_once = epi_max64(1, epi_min64(epi_min64(size->m, size->m / tall + size->groups) * t.cols, most));
        t.time = (double)tiles / (double)t.at_once;
    }
    bool known = t.at_once > 0;
    /* the fewest that take the least time: less contention */
    for (int64_t at_once = epi_max64(1, epi_min64(tiles + t.rows, most)); at_once > 0 && !known; at_once--) {
        int64_t more = tiles % at_once;
        double last = t.narrow ? last_time(t.rows, each, at_once, more) : more > 0;
        double time = (double)(tiles / at_once) + last;
        if (!t.at_once || time <= t.time) {
            t.at_once = at_once;
            t.time = time;
        }
    }
    /* across columns where their operand is the smaller one: stay with it */
    t.raster_group = c->mainloop == EPI_GEMM_SM90 && n <= size->m ? -8 : 8;
    return t;
}

/* What an epilogue adds to the depth of a tile, for every tile of 16 bits that it loads or stores beyond the
 * one that every product stores. */
static double per_side_tile(const epi_config *c, bool exact) {
    return c->schedule == EPI_AT_END ? 330 : exact ? 208 : 100;
}

/* So many rows of a batch have configurations of their own; so many of a group on the average, as groups
 * are uneven. */
enum { FEW_ROWS = 128, FEW_GROUPED = 32 };

static bool has_few_rows(const epi_product_size *size) {
    return size->group == EPI_GROUP_ROWS ? size->m <= FEW_GROUPED * size->groups
                                         : size->m / size->batches <= FEW_ROWS;
}

/* What bounds a product of few rows, in cycles as measured on an H200: bytes that come from memory, and from
 * the L2 cache, in one; bytes that a multiprocessor can take in; and how long a wgmma takes that waits for
 * the one before. */
static const double MEMORY_RATE = 2300, L2_RATE = 7000, INTAKE = 64;

static double memory_time(const epi_product_size *size) {
    int64_t columns = size->n * weights_of(size) * size->products;
    return 2.0 * (double)size->k * (double)(columns + size->m) / MEMORY_RATE;
}

/* Modelled time of a configuration for few rows, in the units of the others: 2048 of them are a cycle. Waves
 * of tiles, each as long as its wgmma or what it takes in; or the weights' way from memory, once for every
 * row of tiles, or both operands' from the L2 cache; and what is left when the first multiprocessors have no
 * tile any more. The factors are fitted to measurements (bench/notes/hopper.md). */
static double few_cost(const epi_config *c, const epi_tiling *t, const epi_product_size *size,
                       int multiprocessors) {
    int64_t clusters = epi_max64(1, multiprocessors / c->cluster), rows = size->m / weights_of(size);
    double tiles = (double)epi_max64(1, t->rows * t->cols),
           waves = (double)epi_ceil_div(t->rows * t->cols, clusters);
    double a = (double)epi_min64(c->tile_m, epi_round_up(rows, 8)), n = c->tile_n, depth = (double)size->k;
    double wait = 25 + n / 4, issue = 8 + n / 2 * c->tile_m / 64, intake = (a + n) * 32 / INTAKE;
    double each = wait > issue ? wait : issue;
    double whole = waves * depth / 16 * (each > intake ? each : intake);
    double l2 = 2 * depth * tiles * (a * c->cluster + n) / L2_RATE,
           memory = memory_time(size) * (double)(t->rows / weights_of(size));
    double longest = whole > l2 ? whole : l2;
    longest = longest > memory ? longest : memory;
    double uneven = waves * (double)clusters / tiles - 1; /* 0 where all have as much to do */
    double tail = 0.4 * memory * (uneven < 0.5 ? uneven : 0.5) / waves + 15 * n + 300 * waves;
    double idle = rows <= c->tile_m * (c->cluster - 1) ? 2 : 1; /* a block without rows */
    return 2048 * idle * (longest + 0.1 * l2 + tail);
}

/* Few rows whose weights are made on load: a multiprocessor's columns, and as much as some more for a tile's
 * beginning and end; of wide tiles less is on its way ahead. Rows beyond a tile's ask for the weights again. */
static double load_cost(const epi_config *c, const epi_tiling *t, int multiprocessors) {
    enum { BEGIN_AND_END = 4 };
    double wide = c->tile_n > 64 ? 1.3 : c->tile_n > 32 ? 1.1 : 1;
    return wide * (double)(epi_ceil_div(t->rows * t->cols, multiprocessors) * (c->tile_n + BEGIN_AND_END));
}

/* So shallow that storing takes longest: then nothing is gained by storing under the next tile. */
static bool is_shallow(const epi_product_size *size) {
    return size->k <= 256;
}

/* The modelled time of a multiprocessor's tile, or of two, in units of its full rate: at the configuration's efficiency, with its
 * epilogue. */
static double tile_cost(int index, const epi_product_size *size, bool exact) {
    const epi_config *c = &configs[index].config;
    int64_t resident = c->mainloop == EPI_GEMM_SM90 ? 1 : 2;
    double deep =
        (double)(size->k + 64) / configs[index].efficiency + size->side_tiles * per_side_tile(c, exact);
    if (size->products > 1 && c->tile_n >= 256) /* what both products keep leaves few registers to the rest */
        deep += 150;
    bool quick = is_shallow(size) && c->schedule == EPI_AT_END;
    if (quick)
        deep *= 0.88;
    double work = (double)(resident * c->tile_m * c->tile_n) * deep;
    if (c->queue && !quick) /* in short tiles clusters would wait for its answers */
        work *= size->k < 2048 ? 1.02 : 1;
    if (size->group && !c->queue) /* whose tiles are uneven */
        work *= 1.03;
    if (size->gathered && c->mainloop == EPI_GEMM_SM90 &&
        c->tile_n < 256) /* a stage takes as long to gather */
        work *= 0.9 * 256 / c->tile_n;
    return work;
}

/* What nothing hides: the last tile's epilogue, and what a queue was measured to cost. */
static double exposed_cost(const epi_config *c, bool shallow) {
    double exposed = (double)c->tile_m * c->tile_n * 200;
    return c->queue && !(shallow && c->schedule == EPI_AT_END) ? exposed + 128 * 256 * 320.0 : exposed;
}

/* Whole waves of tiles, and what is left. */
double epi_config_cost(int index, const epi_product_size *size, bool exact, int multiprocessors) {
    const epi_config *c = &configs[index].config;
    const epi_tiling t = epi_tiling_of(c, size, multiprocessors);
    bool few = has_few_rows(size);
    if (c->mainloop == EPI_GEMM_FEW)
        return load_cost(c, &t, multiprocessors);
    if (c->few) /* of more rows each tile reads the weights again */
        return few_cost(c, &t, size, multiprocessors) * (few ? 1 : 8);
    int64_t resident = c->mainloop == EPI_GEMM_SM90 ? 1 : 2,
            at_once = epi_max64(1, multiprocessors / c->cluster) * resident;
    /* two to a multiprocessor, of whichever are not alone there: more of them are no faster */
    double waves = t.narrow ? t.time : (double)epi_ceil_div(t.rows * t.cols, at_once);
    /* with stages for many rows weights come more slowly */
    double least = few ? 2048 * 1.15 * memory_time(size) : 0, time = waves * tile_cost(index, size, exact);
    return (time > least ? time : least) + exposed_cost(c, is_shallow(size));
}

/* ---- several products in one launch ---- */

static int64_t tiles_of(const epi_config *c, const epi_product_size *size) {
    return rows_of_tiles(c, size) * epi_ceil_div(size->n, c->tile_n / size->products);
}

int64_t epi_joint_clusters(const epi_config *c, const epi_product_size *sizes, int count,
                           int multiprocessors) {
    int64_t tiles = 0, most = epi_max64(1, multiprocessors / c->cluster);
    for (int i = 0; i < count; i++)
        tiles += tiles_of(c, &sizes[i]);
    int64_t waves = epi_max64(1, epi_ceil_div(tiles, most)); /* the fewest that take no longer */
    return epi_max64(1, c->few ? epi_min64(tiles, most) : epi_ceil_div(tiles, waves));
}

/* The waves are those of all tiles together. Few rows of several weights are those of one that is as wide. */
double epi_joint_cost(int index, const epi_product_size *sizes, int count, bool exact, int multiprocessors) {
    const epi_config *c = &configs[index].config;
    epi_product_size all = sizes[0];
    double work = 0;
    int64_t tiles = 0;
    all.n = 0;
    all.products = 1;
    for (int i = 0; i < count; i++) {
        all.n += epi_round_up(sizes[i].n * sizes[i].products, c->tile_n);
        work += (double)tiles_of(c, &sizes[i]) * tile_cost(index, &sizes[i], exact);
        tiles += tiles_of(c, &sizes[i]);
    }
    if (c->few)
        return epi_config_cost(index, &all, exact, multiprocessors);
    int64_t waves = epi_ceil_div(tiles, epi_max64(1, multiprocessors / c->cluster));
    double least = has_few_rows(&all) ? 2048 * 1.15 * memory_time(&all) : 0,
           time = tiles ? (double)waves * work / (double)tiles : 0;
    return (time > least ? time : least) + exposed_cost(c, is_shallow(&all));
}

/* Exact keeps the accumulators as they are, so a deferred tile may have 192 columns at most. */
bool epi_config_suits(int index, bool exact, const epi_arch *arch) {
    const epi_config *c = &configs[index].config;
    return arch && epi_arch_has(arch, c->mainloop) &&
           !(exact && c->schedule == EPI_DEFERRED && c->tile_n > 192);
}

/* Mainloops in their own order, configurations of one by their time: which mainloop it is must not depend on
 * the number of rows, as bits do on it. */
static bool comes_after(int index, double time, int other, double time_of_other) {
    epi_mainloop a = configs[index].config.mainloop, b = configs[other].config.mainloop;
    return a != b ? a > b : time > time_of_other;
}

int epi_config_rank(const epi_product_size *size, bool exact, const epi_arch *arch, int multiprocessors,
                    int *order) {
    int count = 0;
    double times[CONFIGS];
    for (int i = 0; i < CONFIGS; i++) {
        if (!epi_config_suits(i, exact, arch) || configs[i].config.scaled != size->scaled ||
            (configs[i].config.mainloop == EPI_GEMM_FEW) != size->on_load)
            continue;
        double t = epi_config_cost(i, size, exact, multiprocessors);
        int at = count++;
        for (; at > 0 && comes_after(order[at - 1], times[at - 1], i, t); at--) {
            times[at] = times[at - 1];
            order[at] = order[at - 1];
        }
        times[at] = t;
        order[at] = i;
    }
    return count;
}

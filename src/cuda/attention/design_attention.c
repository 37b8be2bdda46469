/* design_attention.c: the design of an attention kernel: which variant it has, what its tiles compute,
 * what fits in shared memory, and what the launch needs. */
#include "cuda/attention/design_attention.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cuda/cuda.h"

enum { SECTION_BYTES = 32 << 20, SUMS = 3, STAGES = 4 /* as attention_turned.cuh has it */ };

/* In the order in which they are tried. Hopper has those with mma for who names them. */
/* clang-format off */
static const epi_attention_config configs[] = {
    {.variant = EPI_ATTENTION_SPLIT, .depth = 64, .width = 64, .groups = 1, .turned = 8, .stream = 128, .slots = 12, .buffers = 1, .lazy = 8},
    {.variant = EPI_ATTENTION_SPLIT, .depth = 64, .width = 64, .groups = 1, .turned = 16, .stream = 128, .slots = 12, .buffers = 1, .lazy = 8},
    {.variant = EPI_ATTENTION_SPLIT, .depth = 128, .width = 128, .groups = 1, .turned = 8, .stream = 128, .slots = 6, .buffers = 1, .lazy = 8},
    {.variant = EPI_ATTENTION_SPLIT, .depth = 128, .width = 128, .groups = 1, .turned = 16, .stream = 128, .slots = 6, .buffers = 1, .lazy = 8},
    {.variant = EPI_ATTENTION_SPLIT, .depth = 64, .width = 64, .groups = 1, .stream = 128, .slots = 13, .buffers = 1, .lazy = 8},
    {.variant = EPI_ATTENTION_SPLIT, .depth = 128, .width = 128, .groups = 1, .stream = 128, .slots = 6, .buffers = 1, .lazy = 8},
    {.variant = EPI_ATTENTION_SPLIT, .depth = 256, .width = 256, .groups = 1, .stream = 64, .slots = 6, .buffers = 1, .lazy = 8},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 64, .width = 64, .groups = 3, .stream = 128, .slots = 8, .buffers = 2, .lazy = 8, .ping_pong = true, .load_registers = 32, .math_registers = 160},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 64, .width = 64, .groups = 2, .stream = 128, .slots = 8, .buffers = 2, .lazy = 8, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 128, .width = 128, .groups = 2, .stream = 128, .slots = 5, .buffers = 2, .lazy = 8, .held = 32, .load_registers = 24, .math_registers = 240},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 128, .width = 128, .groups = 2, .stream = 128, .slots = 5, .buffers = 2, .lazy = 8, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 128, .width = 128, .groups = 2, .stream = 128, .slots = 5, .buffers = 2, .lazy = 8, .early = true, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 128, .width = 128, .groups = 2, .stream = 64, .slots = 8, .buffers = 2, .lazy = 8, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 192, .width = 192, .groups = 2, .stream = 96, .slots = 4, .buffers = 1, .lazy = 8, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 192, .width = 192, .groups = 2, .stream = 64, .slots = 6, .buffers = 1, .lazy = 8, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 256, .width = 256, .groups = 2, .stream = 64, .slots = 5, .buffers = 1, .lazy = 8, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_ROWS, .depth = 64, .width = 64, .groups = 2, .stream = 128, .slots = 4, .buffers = 1, .ping_pong = true, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_ROWS, .depth = 128, .width = 128, .groups = 2, .stream = 96, .slots = 3, .buffers = 1, .ping_pong = true, .load_registers = 24, .math_registers = 240},
    {.variant = EPI_ATTENTION_ROWS, .depth = 128, .width = 128, .groups = 2, .stream = 80, .slots = 3, .buffers = 1, .ping_pong = true, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_ROWS, .depth = 128, .width = 128, .groups = 2, .stream = 64, .slots = 4, .buffers = 1, .ping_pong = true, .load_registers = 24, .math_registers = 240},
    {.variant = EPI_ATTENTION_ROWS, .depth = 192, .width = 192, .groups = 2, .stream = 64, .slots = 2, .buffers = 1, .ping_pong = true, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_ROWS, .depth = 192, .width = 192, .groups = 2, .stream = 48, .slots = 3, .buffers = 1, .ping_pong = true, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_ROWS, .depth = 256, .width = 256, .groups = 2, .stream = 16, .slots = 4, .buffers = 1, .ping_pong = true, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_PAIR, .depth = 64, .width = 64, .groups = 2, .stream = 64, .slots = 8, .buffers = 1, .ping_pong = true, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_PAIR, .depth = 128, .width = 128, .groups = 2, .stream = 64, .slots = 4, .buffers = 1, .ping_pong = true, .load_registers = 24, .math_registers = 240},
    {.variant = EPI_ATTENTION_PAIR, .depth = 128, .width = 128, .groups = 2, .stream = 48, .slots = 4, .buffers = 1, .ping_pong = true, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_PAIR, .depth = 128, .width = 128, .groups = 2, .stream = 32, .slots = 4, .buffers = 1, .ping_pong = true, .load_registers = 40, .math_registers = 232},
    {.variant = EPI_ATTENTION_PAIR, .depth = 192, .width = 96, .groups = 2, .stream = 64, .slots = 3, .buffers = 1, .ping_pong = true, .load_registers = 24, .math_registers = 240},
    {.variant = EPI_ATTENTION_PAIR, .depth = 192, .width = 160, .groups = 2, .stream = 16, .slots = 4, .buffers = 1, .ping_pong = true, .load_registers = 24, .math_registers = 240},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 64, .width = 64, .groups = 2, .stream = 64, .slots = 4, .buffers = 1, .lazy = 8, .bands = 2, .resident = 2},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 64, .width = 64, .groups = 1, .stream = 64, .slots = 4, .buffers = 1, .lazy = 8, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 128, .width = 128, .groups = 2, .stream = 32, .slots = 4, .buffers = 1, .lazy = 8, .bands = 2, .resident = 2},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 128, .width = 128, .groups = 1, .stream = 32, .slots = 4, .buffers = 1, .lazy = 8, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 192, .width = 192, .groups = 1, .stream = 64, .slots = 4, .buffers = 1, .lazy = 8, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 256, .width = 256, .groups = 1, .stream = 32, .slots = 4, .buffers = 1, .lazy = 8, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_FORWARD, .depth = 256, .width = 256, .groups = 1, .stream = 16, .slots = 4, .buffers = 1, .lazy = 8, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_ROWS, .depth = 64, .width = 64, .groups = 2, .stream = 32, .slots = 4, .buffers = 1, .bands = 2, .resident = 2},
    {.variant = EPI_ATTENTION_ROWS, .depth = 64, .width = 64, .groups = 1, .stream = 32, .slots = 4, .buffers = 1, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_ROWS, .depth = 128, .width = 128, .groups = 2, .stream = 32, .slots = 4, .buffers = 1, .bands = 1, .resident = 1},
    {.variant = EPI_ATTENTION_ROWS, .depth = 128, .width = 128, .groups = 1, .stream = 32, .slots = 4, .buffers = 1, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_ROWS, .depth = 192, .width = 192, .groups = 1, .stream = 32, .slots = 4, .buffers = 1, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_ROWS, .depth = 256, .width = 256, .groups = 1, .stream = 16, .slots = 4, .buffers = 1, .bands = 1, .resident = 1},
    {.variant = EPI_ATTENTION_PAIR, .depth = 64, .width = 64, .groups = 1, .stream = 32, .slots = 4, .buffers = 1, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_PAIR, .depth = 128, .width = 128, .groups = 2, .stream = 32, .slots = 4, .buffers = 1, .bands = 1, .resident = 1},
    {.variant = EPI_ATTENTION_PAIR, .depth = 128, .width = 128, .groups = 1, .stream = 32, .slots = 4, .buffers = 1, .bands = 1, .resident = 2},
    {.variant = EPI_ATTENTION_PAIR, .depth = 192, .width = 160, .groups = 1, .stream = 32, .slots = 4, .buffers = 1, .bands = 1, .resident = 1},
    {.variant = EPI_ATTENTION_PAIR, .depth = 192, .width = 160, .groups = 1, .stream = 16, .slots = 4, .buffers = 1, .bands = 1, .resident = 1},
};

/* clang-format on */
enum { CONFIGS = sizeof configs / sizeof *configs };

_Static_assert(CONFIGS <= (int)EPI_MOST_CONFIGS, "sets of configurations are bits of 64");

int epi_attention_config_count(void) {
    return CONFIGS;
}

const epi_attention_config *epi_attention_config_at(int index) {
    return &configs[index];
}

/* The name says variant, rows and columns of a tile, and features. */
static void write_name(const epi_attention_config *c, char *out, size_t size) {
    static const char *const forms[] = {[EPI_ATTENTION_FORWARD] = "",
                                        [EPI_ATTENTION_SPLIT] = "split_",
                                        [EPI_ATTENTION_ROWS] = "rows_",
                                        [EPI_ATTENTION_PAIR] = "pair_"};
    snprintf(out, size, "attention_%s%s%dx%d%s_d%d", c->bands ? "mma_" : "", forms[c->variant],
             c->turned ? c->turned : 64 * c->groups, c->stream,
             c->early  ? "_early"
             : c->held ? "_held"
                       : "",
             c->depth);
}

/* Written once in a process. */
static struct {
    pthread_once_t once;
    char at[CONFIGS][40];
} names = {.once = PTHREAD_ONCE_INIT};

static void write_names(void) {
    for (int i = 0; i < CONFIGS; i++)
        write_name(&configs[i], names.at[i], sizeof names.at[i]);
}

const char *epi_attention_config_name(int index) {
    pthread_once(&names.once, write_names);
    return names.at[index];
}

int epi_attention_config_named(const char *name) {
    return epi_find_named(epi_attention_config_name, CONFIGS, name);
}

bool epi_attention_config_suits(int index, const epi_arch *arch) {
    return arch && (configs[index].bands || arch->wgmma);
}

/* ---- the variant ---- */

/* The score that sums over the features of this stream operand, and its term; or -1. */
static int score_of(const epi_attention_design *d, int operand, int *term) {
    const epi_attention_term *first;
    for (int s = 0; s < d->a->score_count; s++)
        for (*term = epi_attention_terms(d, s, &first) - 1; *term >= 0; --*term)
            if (first[*term].stream == operand)
                return s;
    return -1;
}

static bool find_variant(epi_attention_design *d) {
    const epi_attention *a = d->a;
    int *scratch = epi_arena_alloc(d->c->arena, ((size_t)d->g->node_count + 1) * sizeof *scratch);
    const epi_attention_term *first;
    bool two = a->sum_count == 2;
    d->sum[1] = d->sum[EPI_ATTENTION_MORE] = -1;
    if (!scratch)
        return false;
    if (a->row_max != EPI_NO_NODE) {
        d->variant = d->config.variant == EPI_ATTENTION_SPLIT ? EPI_ATTENTION_SPLIT : EPI_ATTENTION_FORWARD;
        if (d->variant == EPI_ATTENTION_SPLIT && epi_attention_terms(d, 0, &first) > 1)
            return epi_refuse(d, "scores that are a sum of products");
        return a->score_count == 1 && a->sum_count == 1;
    }
    if (a->score_count == 1) {
        d->variant = EPI_ATTENTION_FORWARD;
        if (a->sign == EPI_SIGN_SOFTMAX &&
            !a->batch_axes) /* as of a vocabulary: there may be few rows, and few blocks */
            return epi_refuse(d, "weights of one product without batches");
        return a->sum_count == 1 || epi_refuse(d, "two sums of the weights of one product");
    }
    int term[2] = {0, 0}, of[2] = {-1, -1};
    for (int v = 0; v <= two; v++)
        of[v] = score_of(d, a->sums[v].operand, &term[v]);
    bool both = two && of[0] == of[1]; /* terms of one score */
    if (of[0] < 0 || (two && of[1] < 0) ||
        (both && (term[0] == term[1] || a->sums[0].weight != a->sums[1].weight)))
        return epi_refuse(d, "the summed operand is not an operand of the scores");
    d->variant = two && !both ? EPI_ATTENTION_PAIR : EPI_ATTENTION_ROWS;
    d->first = of[0];
    if (both) {
        d->sum[0] = term[0];
        d->sum[EPI_ATTENTION_MORE] = !term[0];
    } else if (two) { /* the second sum's weights should not wait for the second product */
        bool waits = epi_is_made_of(d->g, a->sums[1].weight, a->scores[of[1]], scratch),
             other = epi_is_made_of(d->g, a->sums[0].weight, a->scores[of[0]], scratch);
        if (waits && !other) {
            d->sum[0] = 1;
            d->first = of[1];
        }
        d->sum[1] = !d->sum[0];
    }
    d->sum_term = both ? 0 : term[d->sum[0]];
    return epi_attention_terms(d, !d->first, &first) == 1 ||
           epi_refuse(d, "two scores that are sums of products");
}

/* The sums along the stream that leave the scores, beside those of an online softmax. */
static bool find_totals(epi_attention_design *d) {
    for (int i = 0; i < d->g->node_count && !epi_attention_is_online(d); i++) {
        if (d->plan->placement[i].reduction != EPI_REDUCE_ROWS)
            continue;
        if (d->g->nodes[i].op != EPI_OP_SUM || d->total_count == EPI_ATTENTION_TOTALS)
            return epi_refuse(d, "a reduction in addition to attention's own");
        d->totals[d->total_count++] = i;
    }
    return true;
}

/* Have the weights a factor with an element for each, or random numbers, which come four at a time? */
static bool has_elements(const epi_attention_design *d) {
    const epi_attention *a = d->a;
    bool has = epi_attention_factor_has_rows(d->g, a);
    for (int i = 0; i < d->g->node_count && a->factor != EPI_NO_NODE; i++)
        has |= d->g->live[i] && epi_op_draws(d->g->nodes[i].op);
    return has;
}

/* Has a row the same bits among many rows as among few? Then the forward folds chunks as well, and their length
 * follows from head sizes alone. */
static bool folds(const epi_attention_design *d) {
    enum { FEATURES = 128 };
    return d->depth[0] <= FEATURES && d->width[0] <= FEATURES && !d->more;
}

/* Columns of a chunk: half a megabyte of keys and values, and no more than 2048 columns. Of wider heads a
 * quarter, or as many columns as make 64 chunks of the longest stream. Neither rows nor batches count, so a
 * row's bits depend on neither. */
static int chunk_of(const epi_attention_design *d) {
    enum { BYTES = 256 << 10, LEAST = 256, MOST = 1024, COUNT = 64 };
    int64_t chunk = LEAST, columns = epi_open_most(d->c->spec->open, d->columns);
    while (chunk < MOST && 2 * chunk * 2 * (d->depth[0] + d->width[0]) <= BYTES)
        chunk *= 2;
    if (folds(d))
        return 2 * (int)chunk;
    return (int)epi_max64(chunk, epi_round_up(epi_ceil_div(columns, COUNT), 128));
}

/* Is the stream to be taken in chunks? There are few rows and, unless they are so few that one chunk is taken in
 * the same way or who asks names the configuration, at least two chunks. */
static bool takes_split(epi_attention_design *d) {
    int64_t columns = epi_open_most(d->c->spec->open, d->columns);
    int rows = d->config.turned ? d->config.turned : 64;
    if (epi_open_most(d->c->spec->open, d->batch_rows) > rows)
        return epi_refuse(d, "more than %d rows of a batch", rows);
    if (has_elements(d))
        return epi_refuse(d, "the weights have a factor that their sum does not have");
    if (epi_matches_design(d))
        return epi_refuse(d, "documents have their own tiles");
    d->chunk = chunk_of(d);
    d->most_chunks = (int)epi_ceil_div(columns, d->chunk);
    d->alone = d->most_chunks == 1 && d->config.turned;
    return d->most_chunks > 1 || d->alone || d->c->config || epi_refuse(d, "the stream is short");
}

/* Are many rows' columns to be taken in the chunks of few rows', and folded in shared memory? That takes the
 * room of the second buffer of rows, and of wide heads that of a slot. */
static void take_chunks(epi_attention_design *d) {
    int chunk = chunk_of(d);
    if (!epi_attention_is_online(d) || !folds(d) || has_elements(d) || d->config.stream != 128 ||
        epi_open_most(d->c->spec->open, d->columns) <= chunk)
        return;
    d->chunk = chunk;
    d->chunk_tiles = chunk / d->config.stream;
    d->config.buffers = 1;
    if ((d->depth[0] > EPI_ATTENTION_PANEL || d->width[0] > EPI_ATTENTION_PANEL) && !d->config.held)
        d->config.slots = 4;
}

/* Pages begin where they do, and random numbers come four at a time. */
static void find_starts(epi_attention_design *d) {
    epi_axes batch = epi_plan_batch(d->plan);
    for (int b = 0; b < d->a->bound_count; b++) {
        const epi_bound *bound = &d->a->bounds[b];
        d->starts[b] = epi_attention_is_online(d) && !d->page && !has_elements(d) &&
                       epi_attention_counts(d, bound) && epi_bound_is_start(d->g, bound, &batch) &&
                       epi_emit_lies(d->c, bound->limit.term[0]);
    }
}

/* Are there tiles that may begin at any column? */
static bool begins_anywhere(const epi_attention_design *d) {
    bool starts = d->stretched;
    for (int b = 0; b < d->a->bound_count; b++)
        starts |= d->starts[b];
    return starts;
}

/* Three warpgroups are worth it where there are many tiles, and more than 64 rows of a block where there are
 * more; which ones compute a row does not change its bits. */
static bool takes(epi_attention_design *d) {
    enum { SHORT = 1536 };
    const epi_attention_config *f = &d->config;
    int least = f->groups > 2 ? SHORT : epi_attention_is_mma(d) && f->groups > 1 ? 64 : 0;
    if (!d->c->config && epi_axis_size(d->rows.at[d->batch_axes], d->c->chosen) <= least)
        return epi_refuse(d, "the sequences are short");
    if (f->variant != d->variant)
        return epi_refuse(d, "it is for another form");
    d->reached = 1;
    int64_t width =
        d->variant == EPI_ATTENTION_PAIR ? epi_ceil_div(d->width[0] + d->width[1], 2) : d->width[0];
    if (d->depth[0] > f->depth || d->depth[1] > f->depth || width > f->width)
        return epi_refuse(d, "heads of %ld and %ld features are too wide", (long)d->depth[0],
                          (long)d->width[0]);
    if (d->variant == EPI_ATTENTION_FORWARD && !epi_attention_is_mma(d))
        take_chunks(d);
    if ((f->early || f->held) && !d->chunk_tiles)
        return epi_refuse(d, "there is one chunk of columns");
    if (f->held && !d->c->config && (begins_anywhere(d) || d->a->match_count))
        return epi_refuse(d, "the starts of tiles take the registers");
    return d->variant != EPI_ATTENTION_SPLIT || takes_split(d);
}

static epi_plan view(const epi_attention_design *d, const epi_plan *child, const epi_axes *cols) {
    epi_plan p = *child;
    p.rows = d->rows;
    p.batch_axes = d->batch_axes;
    if (cols)
        p.cols = *cols;
    return p;
}

/* ---- what is written as text ---- */

static bool is_store(const epi_instr *s) {
    return s->kind == EPI_INSTR_STORE;
}

/* How a tile program is written: no tile of it is staged. */
static bool design_piece(epi_attention_design *d, const epi_plan *plan, const epi_tile_program *tile,
                         epi_gemm_design *p, epi_kernel_text *k) {
    *p = (epi_gemm_design){
        .c = d->c,
        .g = d->g,
        .plan = plan,
        .tile = tile,
        .config = {.mainloop = EPI_GEMM_SM90, .tile_m = 64 * d->config.groups, .cluster = 1},
        .batch_rows = d->batch_rows,
        .products = plan->pair == EPI_NO_NODE ? 1 : 2,
        .kept = {0, 1},
        .split = {-1, -1},
        .half = d->half,
        .fast = true,
        .quick = true};
    p->instrs = epi_arena_alloc(d->c->arena, ((size_t)tile->instr_count + 1) * sizeof *p->instrs);
    if (!p->instrs)
        return false;
    if (plan->split == EPI_OP_LOW) /* the operand's columns lie in their own order */
        return epi_refuse(d, "halves of attention's columns");
    for (int i = 0; i < tile->instr_count; i++) {
        epi_instr_kind kind = tile->instrs[i].kind;
        if (kind == EPI_INSTR_PARTIAL_COLS || kind == EPI_INSTR_PARTIAL_ROWS)
            return epi_refuse(d, "a reduction in addition to attention's own");
        p->fast &= !is_store(&tile->instrs[i]) || !tile->instrs[i].full ||
                   epi_dtype_size(epi_emit_ref(d->c, tile->instrs[i].node, tile->instrs[i].tensor).type) == 2;
    }
    if (!epi_side_tiles_make(p))
        return epi_refuse(d, "more than %d tiles are loaded and stored", EPI_MAX_SIDE_TILES);
    epi_side_tiles_address(p, k);
    return epi_gemm_design_instrs(d->c, p, k) || epi_refuse(d, "%s", p->reason);
}

/* ---- bounds ---- */

/* The score program of tiles whose bounds and equalities all hold, where these are all of the mask and known
 * of a tile. */
static const epi_plan *open_plan(const epi_attention_design *d) {
    return d->a->match_count && !d->matched ? NULL : d->a->open_plan;
}

static void find_cuts(epi_attention_design *d) {
    const epi_attention *a = d->a;
    d->cut_end = d->matched && open_plan(d);
    d->cut_begin = d->cut_end && !d->stretched;
    for (int b = 0; b < a->bound_count; b++) {
        const epi_bound *bound = &a->bounds[b];
        d->cut_end |= open_plan(d) && bound->sign > 0;
        d->cut_begin |= open_plan(d) && bound->sign < 0 && !d->starts[b];
        for (int t = 0; t < bound->limit.count; t++) {
            const epi_node *n = &d->g->nodes[bound->limit.term[t]];
            if (n->op == EPI_OP_INDEX && d->variant != EPI_ATTENTION_SPLIT &&
                epi_axis_equal(n->over.at[0], d->rows.at[d->batch_axes]))
                d->last_first |= bound->sign > 0 && bound->limit.factor[t] > 0;
        }
    }
}

/* ---- the results ---- */

/* Is the result stored as 16 bits behind nothing but multiplications and divisions by what a row has one of?
 */
static bool is_plain(epi_attention_design *d, int v) {
    const epi_tile_program *t = &d->out_tile[v];
    const epi_gemm_design *p = &d->out_design[v];
    int value = 0, stores = 0;
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        if (!s->full)
            continue;
        if (is_store(s)) {
            if (s->arg[0] != value || stores++ || p->side_tiles[p->instrs[i].side_tile].ref.type != d->half ||
                !epi_attention_take(d, s->node, s->tensor, &d->out[v].cols, false, &d->result_of[v]))
                return false;
            continue;
        }
        bool by = s->kind == EPI_INSTR_MAP && s->op == EPI_OP_DIV && s->inverse && s->arg[0] == value;
        bool times =
            s->kind == EPI_INSTR_MAP && s->op == EPI_OP_MUL && (s->arg[0] == value || s->arg[1] == value);
        if ((!by && !times) || stores || t->values[s->arg[s->arg[0] == value]].scale != EPI_SCALE_NONE)
            return false;
        value = s->dst;
    }
    return stores == 1;
}

/* ---- the whole ---- */

static int panels(int64_t features, int rows) {
    return (int)epi_ceil_div(features, EPI_ATTENTION_PANEL) * rows * 128;
}

/* Of what was folded, a warpgroup's, in shared memory: sums of values in fours for each thread, and statistics. */
static int folded_bytes(const epi_attention_design *d) {
    int sums = (int)epi_round_up(d->width[0], 16) / 2, held = d->config.held < sums ? d->config.held : 0;
    return (int)epi_max64(epi_ceil_div(sums - held, 16) * 8192, panels(d->width[0], 64)) + 1024;
}

/* Of columns that are bytes a panel has twice as many elements. */
static int column_panels(const epi_attention_design *d, int which, int64_t features, int rows) {
    return panels(epi_attention_is_narrow(d, which) ? epi_ceil_div(features, 2) : features, rows);
}

/* As the device texts lay it out: rows, the ring, and Hopper's mbarriers and numbers of tiles. */
static int shared_bytes(const epi_attention_design *d) {
    enum { NUMBERS = 40 };
    const epi_attention_config *f = &d->config;
    bool mma = epi_attention_is_mma(d);
    int wide = panels(epi_max64(d->depth[0], d->width[0]), f->stream),
        both = panels(d->depth[0], f->stream) + panels(d->depth[1], f->stream),
        rows = f->groups * (panels(d->depth[0], 64) + panels(d->depth[1], 64)),
        staged = 4 * f->stream * d->staged_count;
    if (epi_attention_is_single(d))
        wide = (int)epi_max64(column_panels(d, 0, d->depth[0], f->stream),
                              column_panels(d, 1, d->width[0], f->stream));
    if (f->turned) /* weights of two tiles as an operand, scores of them, the warps' largest, and factors */
        return panels(d->depth[0], f->turned) + f->slots * (wide + 16) + 2 * panels(f->stream, f->turned) +
               2 * 4 * f->turned * (f->stream + 4) + 5 * 4 * f->turned + STAGES * (16 + staged);
    if (d->variant == EPI_ATTENTION_SPLIT)
        return rows + f->slots * (wide + 16);
    if (d->variant == EPI_ATTENTION_FORWARD && mma)
        return rows + f->slots * wide;
    int folded = d->chunk_tiles ? f->groups * folded_bytes(d) : 0;
    if (d->variant == EPI_ATTENTION_FORWARD)
        return folded + f->buffers * f->groups * (panels(epi_max64(d->depth[0], d->width[0]), 64) + 16) +
               f->slots * (wide + 16) + NUMBERS;
    if (mma)
        return rows + f->slots * (both + staged);
    return rows + 16 * f->groups + f->slots * (both + staged + 32) + NUMBERS;
}

/* Turned: as many slots as there is room for, up to as many as the configuration has, of bytes twice as many. */
static void fit_turned(epi_attention_design *d) {
    enum { LEAST = 4 };
    int most = epi_arch_block_shared(d->c->arch);
    if (epi_attention_is_narrow(d, 0) && epi_attention_is_narrow(d, 1))
        d->config.slots *= d->depth[0] > EPI_ATTENTION_PANEL || d->width[0] > EPI_ATTENTION_PANEL ? 2 : 1;
    while (d->config.slots > LEAST && shared_bytes(d) > most)
        d->config.slots--;
}

/* By mma.sync: as many slots as leave room for the blocks that are to share a multiprocessor, or for as many
 * of them as two slots leave room for. */
static void fit_slots(epi_attention_design *d, epi_kernel_text *k) {
    int *slots = &d->config.slots, most = *slots, all = d->c->arch->shared_bytes;
    *slots = 2;
    int blocks = all / (shared_bytes(d) + EPI_BLOCK_OWN);
    blocks = blocks < d->config.resident ? blocks : d->config.resident;
    for (*slots = most; *slots > 2 && blocks * (shared_bytes(d) + EPI_BLOCK_OWN) > all;)
        --*slots;
    k->shared = shared_bytes(d);
}

/* The roots that belong to a sum: what is made of it, and with the first what is made of rows alone. */
static epi_status make_out(epi_attention_design *d, const epi_step *step, int v, epi_error *err) {
    const epi_graph *g = d->g;
    size_t most = (size_t)(step->root_count + g->tensor_count) + 1;
    epi_root *roots = epi_arena_alloc(d->c->arena, most * sizeof *roots);
    int count = 0;
    if (!roots)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int r = 0; r < step->root_count; r++) {
        /* nobody reads a reduction of scores but this kernel, unless it is an output: below */
        if (epi_attention_stores(d->plan, d->sum[v], v == 0, step->roots[r].node))
            roots[count++] = step->roots[r];
    }
    for (int t = g->input_count; t < g->tensor_count && v == 0; t++)
        if (d->plan->placement[g->tensors[t].node].reduction == EPI_REDUCE_ROWS)
            roots[count++] = (epi_root){g->tensors[t].node, t};
    d->out[v] = view(d, d->a->sums[d->sum[v]].plan, NULL);
    EPI_TRY(
        epi_tile_program_gemm(d->c->arena, d->c->spec, &d->out[v], 256, roots, count, &d->out_tile[v], err));
    return epi_tile_program_check(&d->out_tile[v], d->c->steps, step, err);
}

/* Are all limits numbers and positions, or integers of a batch? Those are whole numbers: which columns a row
 * sees is an interval between them, less those that an equality hides, and what lies outside has no weight.
 */
static bool is_exact(const epi_attention_design *d, const epi_linear *l) {
    epi_axes batch = epi_attention_batch(d);
    for (int t = 0; t < l->count; t++) {
        const epi_node *n = &d->g->nodes[l->term[t]];
        bool integers = epi_emit_lies(d->c, l->term[t]) && epi_axes_include(&batch, &n->axes) &&
                        epi_dtype_is_integer(d->c->steps->homes[l->term[t]].type);
        if (n->op != EPI_OP_INDEX && !epi_emit_is_number(d->c, l->term[t]) && !integers)
            return false;
    }
    return true;
}

static bool are_exact(const epi_attention_design *d) {
    const epi_attention *a = d->a;
    for (int b = 0; b < a->bound_count; b++) /* where there is nothing else, that has no terms */
        if (!epi_attention_counts(d, &a->bounds[b]) || !is_exact(d, &a->bounds[b].limit) ||
            !is_exact(d, &a->bounds[b].other))
            return false;
    return open_plan(d) || a->condition == EPI_NO_NODE;
}

static epi_status make_tiles(epi_attention_design *d, const epi_step *step, epi_error *err) {
    const epi_attention *a = d->a;
    epi_root roots[2 + EPI_ATTENTION_TOTALS];
    int count = 0;
    for (int i = 0; i < 2 + EPI_ATTENTION_TOTALS; i++)
        roots[i] = (epi_root){.tensor = -1};
    if (epi_attention_is_online(d))
        roots[count++].node = a->score;
    if (epi_attention_is_online(d) && a->factor != EPI_NO_NODE)
        roots[count++].node = a->factor;
    for (int v = 0; v < 2 && d->sum[v] >= 0 && !epi_attention_is_online(d); v++)
        roots[count++].node = a->sums[d->sum[v]].weight;
    for (int i = 0; i < d->total_count; i++) {
        int of = 0;
        while (of < count && roots[of].node != d->g->nodes[d->totals[i]].arg[0])
            of++;
        d->total_of[i] = of;
        roots[of].node = d->g->nodes[d->totals[i]].arg[0];
        count += of == count;
    }
    /* of scores equalities leave -INF, which is no weight, and of what is summed beside the products nothing is hidden behind it */
    d->matched = d->variant != EPI_ATTENTION_SPLIT &&
                 (!epi_attention_is_single(d) || epi_attention_is_online(d)) && !d->total_count &&
                 epi_matches_design(d);
    const epi_plan *open = open_plan(d) ? open_plan(d) : a->score_plan;
    /* sums are taken where elements are made: what a row does not see is hidden there, not behind it */
    d->exact = are_exact(d) && (epi_attention_is_single(d) || !d->total_count);
    d->stretched = d->matched && d->exact && d->variant == EPI_ATTENTION_FORWARD &&
                   !epi_attention_is_mma(d) && a->factor == EPI_NO_NODE;
    d->score = view(d, d->exact ? open : a->score_plan, &d->stream);
    d->open = view(d, open, &d->stream);
    for (int which = 0; which < 2; which++) {
        epi_tile_program *t = &d->tile[which];
        int stores = 0, kept = 0;
        EPI_TRY(epi_tile_program_gemm(d->c->arena, d->c->spec, which ? &d->open : &d->score, 256, roots,
                                      count, t, err));
        for (int i = 0; i < t->instr_count; i++) /* their stores are this mainloop's business */
            if (is_store(&t->instrs[i]))
                d->weights[which][stores++] = t->instrs[i].arg[0];
            else
                t->instrs[kept++] = t->instrs[i];
        t->instr_count = kept;
        EPI_TRY(epi_has_memory(epi_attention_is_online(d) || epi_scores_fold(d, t), err));
        EPI_TRY(epi_tile_program_check(t, d->c->steps, step, err));
    }
    for (int v = 0; v < SUMS; v++)
        if (d->sum[v] >= 0)
            EPI_TRY(make_out(d, step, v, err));
    return EPI_OK;
}

/* Where the partials are: first in both texts, as attention_split.cuh and attention_fold.cuh have it. */
static void place_partials(epi_attention_design *d, epi_kernel_text *k, epi_kernel_text *fold) {
    if (d->alone) {
        epi_emit_pointer(k, d->rows_of[0].node, -1);
        return;
    }
    int64_t batches = epi_open_now(d->c->spec->open, d->batches),
            chunks = epi_ceil_div(epi_open_now(d->c->spec->open, d->columns), d->chunk),
            rows = batches * chunks * epi_open_now(d->c->spec->open, d->batch_rows);
    d->sum_bytes = rows * d->width[0] * 4;
    d->partial_bytes = d->sum_bytes + rows * 16;
    d->partials = epi_round_up(d->c->workspace, 256);
    d->c->workspace = d->partials + epi_round_up(d->partial_bytes, 256);
    for (int i = 0; i < 2; i++) {
        epi_emit_place(i ? fold : k, d->partials);
        epi_emit_place(i ? fold : k, d->partials + d->sum_bytes);
    }
    epi_emit_pointer(k, d->rows_of[0].node, -1);
}

static bool design(epi_attention_design *d, epi_kernel_text *k, epi_kernel_text *fold) {
    const epi_attention_config *f = &d->config;
    bool split = d->variant == EPI_ATTENTION_SPLIT;
    if (split)
        place_partials(d, k, fold);
    if (d->matched)
        epi_matches_place(d, k);
    if (!design_piece(d, &d->score, &d->tile[0], &d->cut, k) ||
        !design_piece(d, &d->open, &d->tile[1], &d->whole, k))
        return false;
    d->cut.positions = d->whole.positions = !split || d->stream.count == 1;
    d->cut.anywhere = d->whole.anywhere = begins_anywhere(d);
    for (int v = 0; v < SUMS; v++)
        if (d->sum[v] >= 0 &&
            !design_piece(d, &d->out[v], &d->out_tile[v], &d->out_design[v], split && !d->alone ? fold : k))
            return false;
    if (!epi_scores_design(d))
        return epi_refuse(d, "more values per column than can come with a tile");
    bool mma = epi_attention_is_mma(d);
    if (mma && d->more)
        return epi_refuse(d, "scores that are a sum of two products are for wgmma");
    d->plain = !split && !mma;
    for (int v = 0; v < SUMS; v++)
        d->plain = d->plain && (d->sum[v] < 0 || is_plain(d, v));
    d->reason[0] = 0;
    find_cuts(d);
    bool groups = d->variant == EPI_ATTENTION_PAIR;
    int high = d->page && d->page < f->stream ? d->page : f->stream; /* a box of columns */
    if (d->page && !(d->columns_of[0].paged && d->columns_of[1].paged))
        return epi_refuse(d, "only one of keys and values is in pages");
    bool single = epi_attention_is_single(d);
    if (!mma && ((!split && !epi_attention_add_map(d, &d->rows_of[0], 64, false, k)) ||
                 !epi_attention_add_map(d, &d->columns_of[0], high, groups || d->page, k) ||
                 (!single && !epi_attention_add_map(d, &d->rows_of[1], 64, false, k)) ||
                 !epi_attention_add_map(d, &d->columns_of[1], high, groups || d->page, k)))
        return false;
    for (int v = 0; v < 2 && d->plain && d->sum[v] >= 0; v++)
        if (!epi_attention_add_map(d, &d->result_of[v], 64, false, k))
            return false;
    d->more_map = k->map_count;
    if (d->more && (!epi_attention_add_map(d, &d->rows_of[EPI_ATTENTION_MORE], 64, false, k) ||
                    !epi_attention_add_map(d, &d->columns_of[EPI_ATTENTION_MORE], high, groups, k)))
        return false;
    if (d->plain && d->sum[EPI_ATTENTION_MORE] >= 0 &&
        !epi_attention_add_map(d, &d->result_of[EPI_ATTENTION_MORE], 64, false, k))
        return false;
    k->block = mma ? 128 * f->groups / f->bands : 128 * f->groups + 128;
    if (f->turned)
        fit_turned(d);
    k->shared = shared_bytes(d);
    if (mma)
        fit_slots(d, k);
    fold->block = 256 * epi_attention_parts(d);
    if (split && !d->alone)
        fold->shared = 4 * (int)epi_open_most(d->c->spec->open, d->batch_rows) *
                       ((int)d->width[0] + 2 * EPI_ATTENTION_PART * epi_attention_parts(d) + 3);
    int most = epi_arch_block_shared(d->c->arch);
    if (k->shared > most || fold->shared > most)
        return epi_refuse(d, "its tiles do not fit in shared memory");
    return (!k->full && !fold->full) || epi_refuse(d, "it needs more tensors than one launch can have");
}

/* As many batches as have their columns in the L2 cache together, where those before them are done. Batches
 * that differ in nothing that columns have follow each other and share them. */
static int64_t section_of(const epi_attention_design *d) {
    const epi_open *open = d->c->spec->open;
    const epi_attention_tensor *t = &d->columns_of[0];
    int64_t shared = t->place.count ? t->place.below[0] : d->batches;
    double bytes = (double)epi_open_now(open, d->columns) * 2 *
                   (double)(d->depth[0] + epi_max64(d->depth[1], d->width[0]));
    int64_t fit = epi_max64(1, (int64_t)(SECTION_BYTES / bytes)) * epi_open_now(open, shared);
    return d->variant == EPI_ATTENTION_PAIR ? epi_open_now(open, d->batches)
                                            : epi_min64(fit, epi_open_now(open, d->batches));
}

/* Few rows have the tiles of many where they have the same kernel (mma.sync, dropout), or fold the same chunks. Turned,
 * keys of bytes have their features in another order. */
epi_attention_bits epi_attention_bits_of(const epi_attention_design *d) {
    enum { TILE = 128 };
    epi_attention_bits bits = {EPI_KNOWN_NOTHING, EPI_KNOWN_NOTHING, EPI_KNOWN_NOTHING};
    epi_axes batch = epi_plan_batch(d->plan);
    if (!epi_attention_is_online(d))
        return bits;
    bool alike = folds(d) && d->config.stream == TILE && !epi_attention_is_narrow(d, 0);
    bits.rows = epi_attention_is_mma(d) || alike ? EPI_KNOWN_YES : EPI_KNOWN_NO;
    for (int b = 0; b < d->a->bound_count && bits.starts != EPI_KNOWN_NO; b++)
        if (epi_bound_is_start(d->g, &d->a->bounds[b], &batch))
            bits.starts = d->starts[b] ? EPI_KNOWN_YES : EPI_KNOWN_NO;
    if (d->a->match_count)
        bits.documents = d->stretched ? EPI_KNOWN_YES : EPI_KNOWN_NO;
    return bits;
}

/* Is the configuration for this GPU? */
static bool suits(epi_attention_design *d) {
    bool wgmma = d->c->arch->wgmma;
    if (!epi_attention_is_mma(d))
        return wgmma || epi_refuse(d, "it is for Hopper only");
    return !wgmma || d->c->config || epi_refuse(d, "Hopper has configurations of its own");
}

epi_status epi_attention_design_make(epi_emit_context *c, const epi_step *step,
                                     const epi_attention_config *config, epi_attention_design *d,
                                     epi_kernel_text *out, epi_kernel_text *fold, epi_error *err) {
    *out = (epi_kernel_text){.name = "attention", .arch = c->arch->name};
    *fold = (epi_kernel_text){.name = "attention_fold", .arch = c->arch->name};
    *d = (epi_attention_design){.c = c,
                                .g = c->spec->graph,
                                .plan = step->plan,
                                .a = step->plan->attention,
                                .config = *config,
                                .scale = 1,
                                .scaled = {-1, -1}};
    write_name(config, out->label, sizeof out->label);
    bool ok = suits(d) && find_variant(d) && find_totals(d) && epi_attention_shape(d) &&
              epi_attention_take_operands(d);
    if (ok)
        find_starts(d);
    ok = ok && takes(d);
    epi_status status = EPI_OK;
    d->reached += ok;
    if (ok)
        status = make_tiles(d, step, err);
    if (status != EPI_OK)
        return status;
    ok = ok && design(d, out, fold);
    if (c->arena->failed)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    if (!ok)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "%s", d->reason);
    d->section = section_of(d);
    return EPI_OK;
}

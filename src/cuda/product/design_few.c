/* design_few.c: products of few rows, whose column operand is converted from few bits as it is loaded. */
#include <stdio.h>

#include "cuda/product/design_gemm.h"

enum { STAGES_MOST = 8, ROWS_MOST = 32 << 10 };
enum { WIDE = 132 * 32 }; /* columns of which a multiprocessor of a large GPU has no more than one tile */
enum { SHORT = 64 };      /* steps of a depth that eight warps pass over quickly */
enum { LOADED_MOST = 16, LOADED_LEAST = 4, LANES = 4 /* of a column, in device/gemm_few.cuh */ };

static bool is_run(const epi_walk *w) {
    return w->count == 1 && w->stride[0] == 1;
}

/* How many neighbours of the depth have a part in common. */
static int64_t span_of(const epi_operand *o, int64_t depth) {
    int64_t span = depth;
    for (int i = 0; i < EPI_LOAD_PARTS; i++) {
        const epi_walk *w = &o->parts[i].depth;
        if (o->parts[i].node != EPI_NO_NODE && w->count)
            span = epi_min64(span, w->stride[w->count - 1] == 0 ? w->size[w->count - 1] : 1);
    }
    return span;
}

/* As many bytes as make a step of one group, or of a few whole ones, and a whole number of steps of the depth. */
static int choose_loaded(const epi_operand *o, int64_t depth) {
    int64_t span = span_of(o, depth);
    for (int bytes = LOADED_MOST; bytes >= LOADED_LEAST; bytes /= 2) {
        int64_t step = LANES * bytes * 8 / o->bits;
        bool aligned = epi_walk_aligned(&o->cols.walk, bytes * 8 / o->bits) &&
                       (!o->cols.two || o->cols.part % (bytes * 8 / o->bits) == 0);
        bool grouped = span % step == 0 || (step % span == 0 && bytes % (step / span * LOADED_LEAST) == 0);
        if (grouped && depth % step == 0 && aligned)
            return bytes;
    }
    return 0;
}

/* Stretches of a step that have their parts in common, whichever product's. */
static int groups_of(const epi_gemm_design *d) {
    int64_t groups = 1;
    for (int p = 1; p <= d->products; p++) {
        const epi_operand *o = &d->operands[p];
        groups = epi_max64(groups, LANES * o->loaded * 8 / o->bits / span_of(o, d->depth));
    }
    return (int)groups;
}

/* Are both products' weights of one kind? */
static bool are_alike(const epi_operand *a, const epi_operand *b) {
    bool alike = a->on_load == b->on_load && a->ref.type == b->ref.type && a->bits == b->bits &&
                 a->is_signed == b->is_signed;
    for (int i = 0; i < EPI_LOAD_PARTS; i++)
        alike &= (a->parts[i].node == EPI_NO_NODE) == (b->parts[i].node == EPI_NO_NODE) &&
                 a->parts[i].type == b->parts[i].type && epi_dtype_size(a->parts[i].type) <= 4;
    return alike;
}

static bool has_instr(const epi_tile_program *t, epi_instr_kind kind) {
    bool has = false;
    for (int i = 0; i < t->instr_count; i++)
        has |= t->instrs[i].kind == kind;
    return has;
}

static bool can_load(epi_gemm_design *d) {
    const epi_operand *a = &d->operands[0];
    if (d->tile->m < 1 || d->tile->n < 1 || d->depth < 1)
        return epi_refuse(d, "a size is zero");
    if (epi_open_most(d->c->spec->open, d->tile->m) > EPI_FEW_MOST)
        return epi_refuse(d, "few-bit operands are converted on load for at most %d rows", EPI_FEW_MOST);
    if (d->groups || d->batch_rows || d->terms > 1 || epi_emit_grows(d->c, d->depth))
        return epi_refuse(d, "a product with few-bit operands has no batches, groups, sums or open depth");
    if (d->config.tile_m % 16 && epi_open_most(d->c->spec->open, d->tile->m) > d->config.tile_m)
        return epi_refuse(
            d,
            "an epilogue has 16 rows, so only a single tile may have fewer"); /* it would store the next's */
    if (d->config.tile_n / d->products % 16)
        return epi_refuse(d, "a tile has too few columns for two products");
    if (has_instr(d->tile, EPI_INSTR_PARTIAL_COLS))
        return epi_refuse(d, "few rows are not reduced in a tile");
    if (!is_run(&a->depth) || !epi_walk_aligned(&a->out, 8))
        return epi_refuse(d, "the depth of the rows is not contiguous");
    return true;
}

/* As many stages as all blocks of a multiprocessor have room for, beside what warps leave of their sums and, where they are
 * few, the rows. */
static bool fit_ring(epi_gemm_design *d, epi_kernel_text *k) {
    epi_config *f = &d->config;
    const epi_operand *o = &d->operands[1];
    int columns = f->tile_n / 16 * 2 * 32, step = columns * o->loaded, tall = f->tile_m + 1;
    for (int i = 0; i < EPI_LOAD_PARTS; i++)
        step += o->parts[i].node != EPI_NO_NODE ? columns * d->step_groups : 0;
    int warps = f->warps * f->teams;
    int sums = (int)epi_round_up(4 * (f->tile_m * f->tile_n * warps + f->tile_n * tall * f->teams), 1024);
    int room = d->c->arch->shared_bytes / epi_config_resident(f) - EPI_BLOCK_OWN - sums;
    int64_t rows = epi_open_most(d->c->spec->open, d->tile->m) * d->depth * 2;
    d->rows_bytes = rows <= ROWS_MOST ? (int)rows : 0;
    f->stages = (room - d->rows_bytes) / (warps * step);
    f->stages = f->stages < STAGES_MOST ? f->stages : STAGES_MOST;
    k->shared = f->stages * warps * step + d->rows_bytes;
    return f->stages >= 2 || epi_refuse(d, "two steps of %d columns do not fit in shared memory", f->tile_n);
}

bool epi_design_few(epi_gemm_design *d, epi_kernel_text *k) {
    epi_config *f = &d->config;
    if (!can_load(d))
        return false;
    int loaded = LOADED_MOST;
    for (int p = 1; p <= d->products; p++) {
        const epi_operand *o = &d->operands[p];
        if (!are_alike(&d->operands[1], o))
            return epi_refuse(d, "the weights of two products are of different kinds");
        int own = is_run(&o->depth) ? choose_loaded(o, d->depth) : 0;
        loaded = own < loaded ? own : loaded;
    }
    if (!loaded)
        return epi_refuse(d, "few-bit weights are not in steps of one scale");
    for (int p = 1; p <= d->products; p++)
        d->operands[p].loaded = loaded;
    d->step_groups = groups_of(d);
    /* Two blocks beside each other, of the next launch, too; two teams of a block, where there are more tiles than
     * multiprocessors; or all warps in one team, where the depth is long. Warps of a team by columns, depth and program
     * alone, as sums follow from it. Partials cover 64 columns, for which sixteen warps have too few registers. */
    int64_t steps = d->depth * d->operands[1].bits / 8 / (LANES * loaded);
    bool wide = d->tile->n > WIDE;
    f->teams = wide && f->tile_m * f->tile_n <= 256 ? 2 : 1;
    f->warps = wide || steps <= SHORT || has_instr(d->tile, EPI_INSTR_PARTIAL_ROWS) ? 8 : 16;
    f->subtile = f->tile_n / d->products;
    f->staging_slots = 1;
    f->schedule = EPI_AT_END;
    epi_side_tiles_place(d);
    k->block = 32 * f->warps * f->teams;
    return fit_ring(d, k);
}

void epi_design_few_address(epi_gemm_design *d, epi_kernel_text *k) {
    for (int side = 0; side <= d->products; side++) {
        epi_operand *o = &d->operands[side];
        o->pointer = epi_emit_pointer(k, o->node, -1);
        for (int i = 0; i < EPI_LOAD_PARTS && o->on_load; i++)
            if (o->parts[i].node != EPI_NO_NODE)
                o->parts[i].pointer = epi_emit_pointer(k, o->parts[i].node, -1);
    }
}

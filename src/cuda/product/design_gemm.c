/* design_gemm.c: the design of a product's kernel: where the result is packed, what fits in shared memory,
 * and what the launch needs. */
#include "cuda/product/design_gemm.h"

#include <stdio.h>

/* For few rows: stages that a ring has room for with whole tiles at least, and bytes of a stage at most. */
enum { EPI_SORTED_GROUPS = 256 }; /* at most: a thread of a block has one, and compares it with all */
enum { FEW_STAGES = 2, FEW_STAGE_MOST = 32 * 1024 };

/* The columns that a tile has of each product. */
static int tile_columns(const epi_gemm_design *d) {
    return d->config.tile_n / d->products;
}

/* ---- the packing point ---- */

/* One number, or one per row. */
static bool short_value(const epi_gemm_design *d, int v) {
    return v >= 0 && d->tile->values[v].scale == EPI_SCALE_NONE;
}

/* Every tile that is stored takes 16 bits or fewer, and the text does not say that a product is f32: only then
 * may the result be rounded on the way. What has no columns, or one number for a group of them, is no tile. */
static bool may_pack(const epi_gemm_design *d) {
    const int products[] = {d->plan->product, d->plan->pair};
    for (int p = 0; p < 2; p++) {
        const epi_node *n = products[p] == EPI_NO_NODE ? NULL : &d->g->nodes[products[p]];
        if (n && n->has_stored && n->stored == EPI_F32)
            return false;
    }
    for (int i = 0; i < d->side_tile_count; i++) {
        const epi_side_tile *t = &d->side_tiles[i];
        if (t->store && !t->per_row && !t->per_group && !(epi_dtype_at(t->ref.type)->unit > 0))
            return false;
    }
    return true;
}

/* The value that is packed: the product, with the row scales that nothing else waits for. A pure function of
 * the program, so every configuration rounds at the same place. */
static void find_packing_point(epi_gemm_design *d, int product) {
    const epi_tile_program *t = d->tile;
    int kept = product;
    d->split[product] = -1;
    for (bool more = d->config.packed; more;) {
        int uses = 0, only = -1;
        more = false;
        for (int i = 0; i < t->instr_count; i++)
            for (int a = 0; a < 3; a++)
                if (t->instrs[i].arg[a] == kept) {
                    uses++;
                    only = i;
                }
        if (uses != 1)
            break;
        const epi_instr *s = &t->instrs[only];
        if (s->kind == EPI_INSTR_MULADD && s->arg[2] != kept &&
            short_value(d, s->arg[0] == kept ? s->arg[1] : s->arg[0]))
            d->split[product] = only;
        bool scales = s->kind == EPI_INSTR_MAP && (s->op == EPI_OP_MUL || s->op == EPI_OP_NEG ||
                                                   (s->op == EPI_OP_DIV && s->arg[0] == kept));
        for (int a = 0; a < 2 && scales; a++)
            scales = s->arg[a] < 0 || s->arg[a] == kept || short_value(d, s->arg[a]);
        if (!scales)
            break;
        d->instrs[only].before = true;
        d->instrs[only].product = product;
        kept = s->dst;
        more = true;
    }
    d->kept[product] = kept;
}

/* ---- shared memory ---- */

static bool is_heavy(const epi_gemm_design *d) {
    bool heavy = d->side_tile_count > 3;
    for (int i = 0; i < d->tile->instr_count; i++) {
        const epi_instr *s = &d->tile->instrs[i];
        heavy |= s->kind == EPI_INSTR_REDUCE_GROUP && epi_plan_has_full_rows(d->plan);
        heavy |= (s->kind == EPI_INSTR_REDUCE_GROUP || epi_instr_is_partial(s)) &&
                 d->config.schedule != EPI_AT_END;
    }
    return heavy;
}

/* The ring takes all that is left. Behind its end there are as many bytes as wgmma reads beyond 8 rows of the
 * last panel. */
static void fill_shared(epi_gemm_design *d, epi_kernel_text *k) {
    const epi_config *f = &d->config;
    int others = k->shared - d->ring_bytes, beyond = (f->tile_m - 8 - f->panels * f->tile_n) * 64 * 2;
    k->shared = epi_arch_block_shared(d->c->arch);
    d->ring_bytes = (k->shared - (others > beyond ? others : beyond)) / 1024 * 1024;
}

/* Panels of a stage for few rows: as many as divide the depth and are not too large together. Memory likes
 * long stretches, and small products many stages. */
static int choose_panels(const epi_gemm_design *d) {
    const epi_config *f = &d->config;
    const int64_t *sizes = d->c->chosen;
    epi_axes batch = epi_plan_batch(d->plan);
    int64_t rows = epi_axes_size(&d->plan->rows, sizes) / epi_max64(1, epi_axes_size(&batch, sizes));
    int64_t panel = (epi_min64(f->tile_m, epi_round_up(rows, 8)) + f->tile_n) * 64 * 2;
    int best = 1;
    for (int p = 2; p * panel <= FEW_STAGE_MOST && f->few && d->terms == 1 && !epi_emit_grows(d->c, d->depth);
         p++)
        if (epi_ceil_div(d->depth, 64) % p == 0)
            best = p;
    return best;
}

/* The queue's two mbarriers and what is sent for each of its two places, or of four (device/order.cuh); and a
 * word for each group. */
static int queue_bytes(const epi_gemm_design *d) {
    int places = d->groups ? 4 : 2, words = d->plan->group == EPI_GROUP_ROWS ? 3 : 1;
    return places * (16 + 4 * words) + (d->longest_first ? 4 * (int)d->groups : 0);
}

/* Staging for two subtiles of a warpgroup, or one, beside the ring and the mbarriers: two for a stage of the
 * ring; for either warpgroup three for a slot of the staging and two for a subtile of the last tile; one for
 * the last tile; and what the queue has. */
static bool fit_staging(epi_gemm_design *d, epi_kernel_text *k) {
    epi_config *f = &d->config;
    int groups = f->tile_m / 64, stage = f->panels * (f->tile_m + f->tile_n) * 64 * 2;
    int scales =
        f->scaled ? f->stages * 4 * (f->tile_m + 4) : 0; /* of a stage: rows', and a few of columns */
    int ring = (f->few ? FEW_STAGES : f->stages) * stage, subtiles = tile_columns(d) / f->subtile;
    for (int slots = f->scaled ? 4 : 2; slots >= 1;
         slots--) { /* beside three stages there is room for a tile */
        int staging = groups * slots * d->subtile_bytes;
        d->fixed_bytes = scales + 16 * f->stages + 8 + queue_bytes(d);
        int bytes =
            ring + staging + EPI_SLOT_BARRIERS * slots + EPI_SUBTILE_BARRIERS * subtiles + d->fixed_bytes;
        if (bytes > epi_arch_block_shared(d->c->arch))
            continue;
        f->staging_slots = slots;
        d->staging_bytes = staging;
        d->ring_bytes = ring;
        k->shared = bytes;
        if (f->few)
            fill_shared(d, k);
        return true;
    }
    return false;
}

/* Is one tile stored, and nothing else loaded or reduced, by a mainloop with room for all of it? Then a subtile is all
 * columns: warps meet their mover once. */
static bool stores_one(const epi_gemm_design *d) {
    bool one = d->config.scaled && d->side_tile_count == 1 && d->side_tiles[0].store;
    for (int i = 0; i < d->tile->instr_count; i++)
        one &=
            d->tile->instrs[i].kind != EPI_INSTR_REDUCE_GROUP && !epi_instr_is_partial(&d->tile->instrs[i]);
    return one;
}

/* Chooses the widest subtile whose staging fits beside the ring. */
static bool fit_shared(epi_gemm_design *d, epi_kernel_text *k) {
    epi_config *f = &d->config;
    static const int widths[] = {256, 128, 64, 32, 16};
    int wanted = f->subtile, first = stores_one(d) ? 0 : d->heavy && !wanted ? 3 : 2;
    for (int i = first; i < 5; i++) {
        if ((wanted && widths[i] != wanted) || tile_columns(d) % widths[i])
            continue;
        bool few = f->few && tile_columns(d) > 32; /* else boxes of weights would be small */
        if (widths[i] < 32 && d->operands[0].gather != EPI_NO_NODE && !few) /* who computes waits for each */
            continue;
        f->subtile = widths[i];
        epi_side_tiles_place(d);
        if (f->schedule == EPI_DEFERRED && f->tile_n >= 256 && d->lanes && d->loads && d->heavy)
            return epi_refuse(d,
                              "with a tile of %d columns there are too few registers for loads and for rows "
                              "that lanes move",
                              f->tile_n);
        if (f->schedule == EPI_AT_END && f->tile_n >= 256 && d->operands[0].gathers_depth)
            return epi_refuse(
                d,
                "at the end of a tile of %d columns there are too few registers with a gather of its depth",
                f->tile_n);
        if (epi_side_tiles_are_whole(d) && fit_staging(d, k))
            return true;
    }
    return epi_refuse(d, "the epilogue's tiles do not fit into shared memory with %d stages", f->stages);
}

/* ---- the mainloops ---- */

/* With TMA: operands and tiles by maps, staging beside the ring. */
static bool design_sm90(epi_emit_context *c, epi_gemm_design *d, epi_kernel_text *k) {
    const epi_config *f = &d->config;
    const epi_operand *a = &d->operands[0], *b = &d->operands[1];
    int columns = tile_columns(d);
    bool alike = true, some = d->tile->m >= 1 && d->tile->n >= 1;
    for (int side = 0; side < epi_plan_operands(d->plan); side++)
        some &= d->operands[side].deep >= 1;
    if (!some)
        return epi_refuse(d, "a size is zero");
    if (d->plan->group && f->few &&
        (d->plan->group != EPI_GROUP_ROWS || f->cluster > 1 || f->tile_m > EPI_STAGED_ROWS))
        return epi_refuse(d, "its rows or its depth are in groups");
    for (int side = 0; side < epi_plan_operands(d->plan); side++) {
        epi_operand *o = &d->operands[side];
        bool rows = side == 0 || (d->terms > 1 && side % 2 == 0);
        if (!epi_operand_map(c, d, o, rows ? f->tile_m : columns / f->cluster, rows ? 64 : 64 / f->cluster,
                             k))
            return epi_refuse(d, "TMA cannot load an operand as it is in memory");
        alike &= o->mn == (rows ? a : b)->mn && o->many_mn == (rows ? a : b)->many_mn;
    }
    if (!alike)
        return epi_refuse(d, d->terms > 1 ? "operands of products that are added up have different layouts"
                                          : "the columns of two products have different layouts");
    if (f->scaled && (a->mn || b->mn))
        return epi_refuse(d, "the depth of an 8-bit operand is not contiguous");
    if (d->plan->group && f->few && a->mn)
        return epi_refuse(d, "rows of groups lie across the depth");
    if (b->mn && columns % 64)
        return epi_refuse(d, "boxes of 64 columns do not fill a stage");
    for (int term = 0; term < d->terms && d->tiling.narrow && !b->mn; term++) { /* its columns alone */
        epi_map_need *m = &k->maps[k->map_count++];
        *m = k->maps[2 * term + 1];
        if (!epi_operand_box(b, d->tiling.narrow, m))
            return epi_refuse(d, "a narrow tile splits the halves of an operand");
    }
    epi_operands_join_groups(d, columns, k);
    epi_operands_clip(d, k);
    d->operands[0].last = k->map_count;
    for (int term = 0; term < d->terms && !a->mn; term++)
        epi_map_last(k, 2 * term, f->few && d->groups ? 8 : epi_open_now(c->spec->open, a->count), f->tile_m);
    k->block = (f->tile_m / 64 + 1) * 128;
    d->config.panels = choose_panels(d);
    d->longest_first =
        d->plan->group == EPI_GROUP_DEPTH && d->groups <= EPI_SORTED_GROUPS && !epi_emit_grows(c, d->groups);
    return epi_side_tiles_split(d)
               ? fit_shared(d, k)
               : epi_refuse(d, "more than %d tiles are loaded and stored", EPI_MAX_SIDE_TILES);
}

/* Without it: everything by offsets, one subtile after another at the tile's end. */
static bool design_other(const epi_emit_context *c, epi_gemm_design *d, epi_kernel_text *k) {
    epi_config *f = &d->config;
    bool sm80 = f->mainloop == EPI_GEMM_SM80;
    if (d->products > 1)
        return epi_refuse(d, "only Hopper's mainloop supports two products on a tile");
    if (d->terms > 1)
        return epi_refuse(d, "only Hopper's mainloop adds up products on a tile");
    if (sm80 && d->depth < 1)
        return epi_refuse(d, "a size is zero");
    f->subtile = 64;
    f->staging_slots = 1;
    f->schedule = EPI_AT_END;
    epi_side_tiles_place(d);
    epi_operand_measure(d, &d->operands[0]);
    epi_operand_measure(d, &d->operands[1]);
    k->block = sm80 ? 256 : 128;
    k->shared = d->subtile_bytes; /* warps leave reductions there */
    if (sm80) {
        int slot = (f->tile_m + f->tile_n) * EPI_SM80_DEPTH * 2, folds = 4 * d->subtile_bytes;
        while (2 * (f->stages * slot + EPI_BLOCK_OWN) > c->arch->shared_bytes)
            f->stages--;                                           /* two blocks share a multiprocessor */
        k->shared = f->stages * slot + (folds > slot ? folds : 0); /* else they fit in a slot that is idle */
        if (k->shared > epi_arch_block_shared(c->arch))
            return epi_refuse(d, "more reductions down the rows than fit in shared memory");
    }
    return true;
}

/* ---- reductions ---- */

/* Partials cover the same rows or columns whatever the tile, so that bits do not depend on the configuration.
 */
static bool design_partials(epi_emit_context *c, epi_gemm_design *d, int at, epi_kernel_text *k) {
    const epi_instr *s = &d->tile->instrs[at];
    int elements = epi_cell_elements(d->tile, d->tile->values[s->arg[0]].scale);
    bool rows = s->kind == EPI_INSTR_PARTIAL_ROWS;
    int words = epi_partial_words(s->op);
    if (!rows && words > 1)
        return epi_refuse(d, "%s down the rows cannot leave a tile", epi_ops[s->op].text);
    if (rows && tile_columns(d) % EPI_PARTIAL_COLS)
        return epi_refuse(d, "a partial covers %d columns, but a tile has %d", EPI_PARTIAL_COLS,
                          tile_columns(d));
    const epi_open *open = c->spec->open;
    int64_t m = epi_open_now(open, d->tile->m), n = epi_open_now(open, d->tile->n),
            columns = epi_open_now(open, epi_cell_columns(d->tile, elements));
    int64_t count =
        rows ? epi_ceil_div(n, EPI_PARTIAL_COLS) * m * words : epi_ceil_div(m, EPI_PARTIAL_ROWS) * columns;
    d->folds |= !rows;
    d->instrs[at].pointer = epi_emit_place(k, c->workspace);
    c->partials[s->node] = c->workspace;
    if (s->mean != EPI_NO_NODE)
        c->partials[s->mean] = c->workspace;
    c->workspace += epi_round_up(count * 4, 64);
    return true;
}

/* Marks the instructions that make what the instruction reduces; false where a tile is loaded on the way: it
 * is staged for one subtile at a time, and the group is wider. */
static bool mark_makers(const epi_gemm_design *d, int at, bool *needed, bool *makers) {
    const epi_tile_program *t = d->tile;
    needed[t->instrs[at].arg[0]] = true;
    for (int i = at - 1; i >= 0; i--) { /* a value is made before it is used */
        const epi_instr *s = &t->instrs[i];
        int v = s->dst;
        if (v < 0 || !needed[v] || d->instrs[i].before || epi_kept_product(d, v) >= 0)
            continue;
        if (s->kind == EPI_INSTR_LOAD && epi_value_is_full(&t->values[v]))
            return false;
        makers[i] = t->values[v].scale != EPI_SCALE_NONE;
        for (int a = 0; a < 3 && s->kind != EPI_INSTR_REDUCE_GROUP; a++)
            if (s->arg[a] >= 0)
                needed[s->arg[a]] = true;
    }
    return true;
}

/* Are halves put together behind it, with tiles that are loaded, as a rotation does? Behind a reduction over a
 * whole tile of 256 columns that was measured to spill with every configuration, which takes the compiler half a
 * minute to find out. */
static bool is_rotated(const epi_tile_program *t) {
    int joins = 0, loads = 0;
    for (int i = 0; i < t->instr_count; i++) {
        joins += t->instrs[i].kind == EPI_INSTR_JOIN;
        loads += t->instrs[i].kind == EPI_INSTR_LOAD && t->instrs[i].full;
    }
    return joins > 0 && loads > 1;
}

/* Does each thread load elements of a tile for itself? With open rows the tables of a rotation begin anew anywhere. */
static bool loads_directly(const epi_gemm_design *d) {
    bool direct = false;
    for (int i = 0; i < d->side_tile_count; i++)
        direct |= !d->side_tiles[i].store && !d->side_tiles[i].staged;
    return direct;
}

static bool design_group(const epi_emit_context *c, epi_gemm_design *d, int at) {
    const epi_tile_program *t = d->tile;
    int columns = t->group[t->acc_scale];
    bool *makers = d->instrs[at].makers = epi_arena_alloc(c->arena, (size_t)t->instr_count + 1);
    bool *needed = epi_arena_alloc(c->arena, (size_t)t->value_count + 1);
    if (t->instrs[at].op == EPI_OP_VAR)
        return epi_refuse(d, "a variance inside the tile");
    bool sm90 = d->config.mainloop == EPI_GEMM_SM90; /* others have a subtile at hand */
    if (epi_plan_has_full_rows(d->plan) ? !sm90 && columns > EPI_PARTIAL_COLS
                                        : columns % 16 || (!sm90 && EPI_PARTIAL_COLS % columns))
        return epi_refuse(d, "a reduction over %d neighbouring columns does not fit this mainloop", columns);
    if (columns == EPI_TILE_MOST && is_rotated(t))
        return epi_refuse(
            d, "a rotation after a reduction over %d columns needs more registers than there are", columns);
    if (d->config.tile_n >= EPI_TILE_MOST && is_rotated(t) &&
        loads_directly(d)) /* measured: 1.5 times its time */
        return epi_refuse(d,
                          "with a tile of %d columns there are too few registers for loads before a rotation "
                          "after a reduction",
                          d->config.tile_n);
    if (makers && needed && !mark_makers(d, at, needed, makers))
        return epi_refuse(d, "a reduction inside the tile of a value that is loaded");
    return true;
}

/* Is it made of such reductions, of rows and of numbers alone? Then it is made when they are, not for every element. */
static bool is_of_group(const epi_gemm_design *d, int at) {
    const epi_instr *s = &d->tile->instrs[at];
    bool may = d->plan->kind == EPI_KIND_GEMM && !epi_plan_has_full_rows(d->plan) && s->dst >= 0 && s->full;
    if (s->kind == EPI_INSTR_REDUCE_GROUP)
        return may;
    may &= s->kind == EPI_INSTR_MAP || s->kind == EPI_INSTR_MULADD;
    for (int a = 0; a < 3 && s->arg[a] >= 0 && may; a++)
        may = short_value(d, s->arg[a]) || epi_value_of_group(d, s->arg[a]);
    return may;
}

/* The value whose largest element, or whose sum, is taken: what is made of it alone, beside, is made again. */
static int reduced_value(const epi_tile_program *t, int group) {
    int v = t->instrs[group].arg[0];
    for (int made = t->values[v].made; made >= 0 && t->instrs[made].kind == EPI_INSTR_MAP &&
                                       (t->instrs[made].op == EPI_OP_ABS || t->instrs[made].op == EPI_OP_NEG);
         made = t->values[v].made)
        v = t->instrs[made].arg[0];
    return v;
}

/* Where accumulators are f32, the first pass over a group leaves the value that it reduces in their place: it is not made
 * again for the elements. Nothing else may need what it is made of. */
static void find_left(epi_gemm_design *d) {
    const epi_tile_program *t = d->tile;
    int group = 0;
    while (group < t->instr_count && !d->instrs[group].of_group)
        group++;
    if (group == t->instr_count || d->config.packed || d->config.mainloop != EPI_GEMM_SM90 ||
        d->plan->split != EPI_OP_COUNT)
        return;
    int left = reduced_value(t, group);
    if (t->values[left].made < 0 || !epi_value_is_full(&t->values[left]))
        return;
    bool alone = true;
    d->instrs[t->values[left].made].replaced = true;
    for (int i = t->instr_count - 1; i >= 0; i--) { /* those that need it come later */
        const epi_instr *s = &t->instrs[i];
        for (int a = 0; a < 3; a++) {
            bool inner = s->arg[a] >= 0 && s->arg[a] != left && epi_value_is_full(&t->values[s->arg[a]]);
            int made = inner ? t->values[s->arg[a]].made : -1;
            if (inner && d->instrs[i].replaced && made >= 0)
                d->instrs[made].replaced = true;
        }
    }
    for (int i = 0; i < t->instr_count && alone; i++) {
        const epi_instr *s = &t->instrs[i];
        for (int a = 0; a < 3 && !d->instrs[i].replaced && s->arg[a] >= 0; a++) {
            int made = t->values[s->arg[a]].made;
            bool product = epi_kept_product(d, s->arg[a]) >= 0;
            alone &= !product && (made < 0 || s->arg[a] == left || !d->instrs[made].replaced);
        }
    }
    for (int i = 0; i < t->instr_count; i++) {
        alone &= !(d->instrs[i].replaced &&
                   (d->instrs[i].side_tile >= 0 || d->instrs[i].before || d->instrs[i].of_group));
        d->instrs[i].replaced &= epi_value_is_full(&t->values[t->instrs[i].dst >= 0 ? t->instrs[i].dst : 0]);
    }
    d->leaves = alone;
    d->left = left;
    for (int i = 0; i < t->instr_count && !alone; i++)
        d->instrs[i].replaced = false;
}

bool epi_gemm_design_instrs(epi_emit_context *c, epi_gemm_design *d, epi_kernel_text *k) {
    for (int i = 0; i < d->tile->instr_count; i++) {
        const epi_instr *s = &d->tile->instrs[i];
        bool ok = true;
        d->instrs[i].of_group = is_of_group(d, i);
        if (s->kind == EPI_INSTR_REDUCE_GROUP)
            ok = design_group(c, d, i);
        else if (epi_instr_is_partial(s))
            ok = design_partials(c, d, i, k);
        else if (s->kind == EPI_INSTR_LOAD && d->instrs[i].side_tile < 0)
            d->instrs[i].pointer = epi_emit_pointer(k, s->node, -1);
        else if (s->kind == EPI_INSTR_RANDOM || s->kind == EPI_INSTR_TAKE)
            d->instrs[i].pointer = epi_emit_pointer(k, d->g->nodes[s->node].arg[0], -1);
        if (!ok)
            return false;
    }
    return true;
}

/* ---- the whole ---- */

/* Operands of 8 bits: nothing is packed. */
static bool take_scaled(epi_gemm_design *d) {
    if (!d->config.scaled || d->batch_rows || d->groups || d->plan->row_index != EPI_NO_NODE)
        return epi_refuse(d, "only Hopper's mainloop supports 8-bit operands, and only in plain products");
    if (d->products > 1 && tile_columns(d) % EPI_SCALED_SAME)
        return epi_refuse(d, "with two products a tile has %d columns each, fewer than share a scale",
                          tile_columns(d));
    for (int side = 0; side < epi_plan_operands(d->plan); side++)
        if (!epi_operand_fits_scale(d, &d->operands[side]))
            return epi_refuse(d, "the scales of an operand change within %d of the depth, or of the columns",
                              EPI_SCALED_SAME);
    for (int side = 2; side < epi_plan_operands(d->plan); side++)
        if (d->operands[side].ref.type != d->operands[d->terms > 1 ? side % 2 : 1].ref.type)
            return epi_refuse(d, "operands of two products have different types");
    d->half = d->c->spec->type == EPI_F16 ? EPI_F16 : EPI_BF16;
    d->fast = may_pack(d);
    d->config.packed = false;
    return true;
}

/* The operands' type is the packed one where they have one of 16 bits. */
static bool take_operands(epi_gemm_design *d) {
    epi_config *f = &d->config;
    for (int side = 0; side < epi_plan_operands(d->plan); side++)
        d->operands[side] = epi_operand_of(d, side);
    if (d->g->nodes[d->plan->product].scaled)
        return take_scaled(d);
    if (f->scaled)
        return epi_refuse(d, "its operands do not have 8 bits");
    epi_dtype type = d->operands[0].ref.type;
    bool halves = epi_dtype_is_narrow(type);
    for (int side = 1; side < epi_plan_operands(d->plan); side++)
        halves &= type == d->operands[side].ref.type || d->operands[side].on_load;
    for (int side = 0; side < epi_plan_operands(d->plan); side++)
        if (d->operands[side].on_load && (side == 0 || f->mainloop != EPI_GEMM_FEW))
            return epi_refuse(
                d,
                "a few-bit operand is converted on load only for few rows, and only as the column operand");
    d->half = halves ? type : d->c->spec->type == EPI_F16 ? EPI_F16 : EPI_BF16;
    d->fast = may_pack(d);
    if (!d->fast || !halves)
        f->packed = false;
    return f->mainloop == EPI_GEMM_ANY || halves ||
           epi_refuse(d, "tensor cores need two operands of one 16-bit type");
}

/* Tiles of grouped rows count them in one number with their group (device/groups.cuh). All are ints there,
 * 1 << group_bits too, whatever the number of groups; and so is a tile's name, of its first row and its
 * column of tiles (device/order.cuh). */
static bool fit_groups(epi_gemm_design *d) {
    const epi_open *open = d->c->spec->open;
    int64_t rows = epi_open_most(open, d->tile->m), tall = d->config.tile_m * d->config.cluster;
    bool grouped_rows = d->plan->group == EPI_GROUP_ROWS;
    if (!d->groups)
        return true;
    if (grouped_rows && epi_emit_grows(d->c, d->groups))
        return epi_refuse(d, "the number of groups is open");
    int bits = 31;
    d->name_columns = tall;
    for (; d->name_columns < epi_ceil_div(epi_open_most(open, d->tile->n), tile_columns(d)); bits--)
        d->name_columns *= 2;
    d->group_bits = bits - 1;
    while (grouped_rows && d->groups > INT64_C(1) << (bits - d->group_bits))
        d->group_bits--;
    int64_t behind = 2 * EPI_GROUP_TALLEST * (grouped_rows ? 1 : d->groups); /* what tiles have beyond ends */
    return rows + behind < INT64_C(1) << d->group_bits ||
           epi_refuse(d, "%ld rows in %ld groups are more than tiles can count", (long)rows, (long)d->groups);
}

static bool design(epi_emit_context *c, epi_gemm_design *d, epi_kernel_text *k) {
    const epi_tile_program *t = d->tile;
    int group = t->group[t->acc_scale];
    bool full_rows = epi_plan_has_full_rows(d->plan);
    if (full_rows && tile_columns(d) < group)
        return epi_refuse(d, "a row of %d columns is longer than a tile of %d", group, tile_columns(d));
    if (!full_rows && tile_columns(d) % group)
        return epi_refuse(d, "groups of %d columns do not fill a tile of %d", group, tile_columns(d));
    if (!epi_side_tiles_make(d))
        return epi_refuse(d, "more than %d tiles are loaded and stored", EPI_MAX_SIDE_TILES);
    d->heavy = is_heavy(d);
    if (!fit_groups(d))
        return false;
    bool sm90 = d->config.mainloop == EPI_GEMM_SM90;
    bool few = d->config.mainloop == EPI_GEMM_FEW;
    if (!take_operands(d) || !(sm90  ? design_sm90(c, d, k)
                               : few ? epi_design_few(d, k)
                                     : design_other(c, d, k)))
        return false;
    epi_side_tiles_address(d, k);
    for (int p = 0; p < d->products; p++)
        find_packing_point(d, p);
    if (!epi_gemm_design_instrs(c, d, k))
        return false;
    find_left(d);
    for (int side = 0; side < 2; side++) {
        epi_operand *o = &d->operands[side];
        bool gathered = o->gather != EPI_NO_NODE;
        if ((!sm90 && !few) || gathered)
            o->pointer = epi_emit_pointer(k, o->node, -1);
        if (gathered || o->chosen != EPI_NO_NODE)
            o->index = epi_emit_index_pointer(c, k, gathered ? o->gather : o->chosen);
    }
    for (int side = 0; side < epi_plan_operands(d->plan); side++)
        if (d->operands[side].scale.node != EPI_NO_NODE)
            d->operands[side].scale.pointer = epi_emit_pointer(k, d->operands[side].scale.node, -1);
    if (few)
        epi_design_few_address(d, k);
    if (d->groups)
        d->offsets = epi_emit_pointer(k, d->plan->offsets, -1);
    return !k->full || epi_refuse(d, "it needs more tensors than one launch can have");
}

epi_status epi_gemm_design_make(epi_emit_context *c, const epi_plan *plan, const epi_tile_program *tile,
                                const epi_product_size *size, const epi_config *config, epi_gemm_design *d,
                                epi_kernel_text *out, epi_error *err) {
    *out = (epi_kernel_text){.name = "gemm", .arch = c->arch->name};
    *d = (epi_gemm_design){.c = c,
                           .g = c->spec->graph,
                           .plan = plan,
                           .tile = tile,
                           .config = *config,
                           .tiling = epi_tiling_of(config, size, c->multiprocessors),
                           .depth = epi_axes_size(&plan->depth, c->spec->sizes),
                           .products = size->products,
                           .terms = 1 + plan->added_count,
                           .groups = plan->group ? epi_axis_size(plan->group_axis, c->spec->sizes) : 0,
                           .batch_rows = epi_plan_batch(plan).count ? size->m / size->batches : 0};
    d->instrs = epi_arena_alloc(c->arena, ((size_t)tile->instr_count + 1) * sizeof *d->instrs);
    EPI_TRY(epi_has_memory(d->instrs, err));
    bool ok = design(c, d, out);
    EPI_TRY(epi_has_memory(!c->arena->failed, err));
    if (!ok)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "%s", d->reason);
    out->config = d->config;
    return EPI_OK;
}

/* design_side_tiles.c: the tiles that an epilogue loads and stores: which there are, which are staged in
 * shared memory and where, and who moves them. */
#include "cuda/product/design_gemm.h"

/* ---- which there are ---- */

/* Is the value the same for all columns of a local reduction's group? */
static bool lacks_group(const epi_gemm_design *d, int node) {
    const epi_plan *plan = d->plan;
    epi_axes group = {0};
    for (int i = plan->cols.count - plan->local_axes; i < plan->cols.count; i++)
        group.at[group.count++] = plan->cols.at[i];
    return group.count && group.count < plan->cols.count && !epi_plan_has(d->g, node, &group);
}

static void add_side_tile(epi_gemm_design *d, int instr) {
    const epi_instr *s = &d->tile->instrs[instr];
    bool store = s->kind == EPI_INSTR_STORE;
    epi_scale scale = d->tile->values[store ? s->arg[0] : s->dst].scale;
    d->instrs[instr].side_tile = d->side_tile_count;
    epi_side_tile *t = &d->side_tiles[d->side_tile_count++];
    *t = (epi_side_tile){
        .instr = instr, .number = instr, .halves = 1, .node = s->node, .tensor = s->tensor, .store = store};
    t->per_row = epi_plan_has_full_rows(d->plan) && !epi_plan_has(d->g, s->node, &d->plan->cols);
    t->per_group = store && lacks_group(d, s->node);
    t->ref = epi_emit_ref(d->c, s->node, s->tensor);
    t->moved = store && d->g->nodes[s->node].op == EPI_OP_UPDATE;
    if (t->moved)
        t->split_stride = epi_ref_drop(&t->ref, d->g->nodes[s->node].over.at[0]);
    t->rows = epi_walk_axes(&t->ref, &d->plan->rows, d->c->spec->sizes);
    t->cols = epi_columns_of(d->plan, &t->ref, d->c->spec->sizes, scale);
    epi_axes of_batch = epi_plan_batch_rows(d->plan);
    t->of_batch = epi_walk_axes(&t->ref, &of_batch, d->c->spec->sizes);
    t->elements = epi_cell_elements(d->tile, scale);
    t->bytes = t->elements * (int)epi_dtype_size(t->ref.type);
}

bool epi_side_tiles_make(epi_gemm_design *d) {
    for (int i = 0; i < d->tile->instr_count; i++) {
        const epi_instr *s = &d->tile->instrs[i];
        bool load = s->kind == EPI_INSTR_LOAD && epi_value_is_full(&d->tile->values[s->dst]);
        d->instrs[i].side_tile = -1;
        if (!load && s->kind != EPI_INSTR_STORE)
            continue;
        if (d->side_tile_count == EPI_MAX_SIDE_TILES)
            return false;
        add_side_tile(d, i);
    }
    return true;
}

/* Are columns neighbours in blocks of a multiple of so many, at places that TMA takes, as heads have them whose halves lie apart? */
static bool lies_in_blocks(const epi_side_tile *t, int64_t columns) {
    const epi_walk *c = &t->cols.walk;
    int64_t size = (int64_t)epi_dtype_size(t->ref.type);
    return c->count == 2 && c->stride[1] == 1 && c->stride[0] > 0 && c->stride[0] * size % 16 == 0 &&
           c->size[1] % columns == 0;
}

/* Do both parts of its columns lie as TMA takes them? */
static bool has_halves(const epi_side_tile *t) {
    enum { LEAST = 16 }; /* columns of a half that a subtile has */
    const epi_walk *r = &t->of_batch, *c = &t->cols.walk;
    int64_t size = (int64_t)epi_dtype_size(t->ref.type);
    bool lies = (c->count == 1 && c->stride[0] == 1) || lies_in_blocks(t, LEAST);
    return t->cols.two && epi_dtype_is_narrow(t->ref.type) && !t->moved && !t->per_group && lies &&
           r->count == 1 && r->stride[0] * size % 16 == 0 && t->cols.part * size % 16 == 0;
}

bool epi_side_tiles_split(epi_gemm_design *d) {
    for (int i = 0; i < d->side_tile_count; i++) {
        epi_side_tile *t = &d->side_tiles[i];
        if (!has_halves(t))
            continue;
        if (d->side_tile_count == EPI_MAX_SIDE_TILES)
            return false;
        for (int other = d->side_tile_count++; other > i; other--)
            d->side_tiles[other] = d->side_tiles[other - 1];
        for (int half = 0; half < 2; half++) {
            t[half].half = half;
            t[half].halves = 2;
            t[half].number += half * d->tile->instr_count;
            t[half].elements /= 2;
            t[half].bytes /= 2;
            t[half].cols.two = false;
        }
        for (int k = 0; k < d->tile->instr_count; k++)
            d->instrs[k].side_tile += d->instrs[k].side_tile > i;
        i++;
    }
    return true;
}

bool epi_side_tiles_are_whole(const epi_gemm_design *d) {
    bool staged = true;
    for (int i = 0; i < d->side_tile_count; i++)
        staged &= d->side_tiles[i].halves == 1 || d->side_tiles[i].staged;
    return staged;
}

/* ---- where they are staged ---- */

/* Can TMA find the batches of this tile? */
static bool can_place(const epi_gemm_design *d, epi_side_tile *t) {
    epi_axes axes = epi_plan_batch(d->plan);
    epi_walk batch = epi_walk_axes(&t->ref, &axes, d->c->spec->sizes);
    return epi_batch_place_of(&batch, t->ref.type, &t->place);
}

/* Is it stored through panels with a line for each column? That is how the gradient of a group's weight lies
 * whose rows are gathered, and how that of a scaled product may, whose columns are those with blocks. */
static bool can_turn(const epi_gemm_design *d, epi_side_tile *t) {
    const epi_walk *r = &t->of_batch, *c = &t->cols.walk;
    return d->config.mainloop == EPI_GEMM_SM90 && (d->plan->group == EPI_GROUP_DEPTH || d->config.scaled) &&
           t->store && !t->moved && !t->cols.two && epi_dtype_is_narrow(t->ref.type) && t->elements == 2 &&
           r->count == 1 && r->stride[0] == 1 && c->count == 1 && c->stride[0] % 8 == 0 && can_place(d, t);
}

/* Is it moved through staging? Its rows lie a fixed distance apart and its columns are neighbours, or it is a
 * table that repeats. TMA takes rows of a multiple of 16 bytes; lanes move others. */
static bool can_stage(const epi_gemm_design *d, epi_side_tile *t) {
    const epi_walk *r = &t->of_batch, *c = &t->cols.walk;
    int64_t size = (int64_t)epi_dtype_size(t->ref.type),
            columns = (int64_t)d->config.subtile * t->elements / 2;
    bool bytes = t->store && t->bytes == 2 && size == 1; /* lanes swap bytes, so that each stores a word */
    if (d->config.mainloop != EPI_GEMM_SM90 || t->moved || t->per_group || t->cols.two ||
        !(epi_dtype_is_operand(t->ref.type) || bytes) || !c->count || !r->count ||
        c->stride[c->count - 1] != 1)
        return false;
    if (d->config.subtile / 2 * t->bytes < 32)
        return false;
    if (c->count == 2 && c->stride[0] == 0 && c->size[1] % columns == 0)
        t->col_mod = c->size[1];
    else if (lies_in_blocks(t, columns))
        t->block = c->size[1];
    else if (c->count != 1)
        return false;
    if (r->count == 2 && r->stride[0] == 0 && r->size[1] % EPI_STAGED_ROWS == 0)
        t->row_mod = r->size[1];
    else if (r->count != 1)
        return false;
    t->lanes = r->stride[r->count - 1] * size % 16 != 0;
    if (t->lanes &&
        (bytes || t->block || d->operands[0].gather != EPI_NO_NODE)) /* nobody moves it: its warps gather */
        return false;
    if (d->batch_rows && (t->lanes || t->row_mod || !can_place(d, t)))
        return false;
    if (d->groups && t->row_mod)
        return false;
    return r->stride[r->count - 1] > 0;
}

/* A loaded tile that has the form of this stored one and is not taken over yet, or -1. */
static int find_takeover(const epi_gemm_design *d, int at, const bool *taken) {
    for (int i = 0; i < at && d->side_tiles[at].store; i++) { /* later ones have no place yet */
        const epi_side_tile *t = &d->side_tiles[i];
        if (!t->store && t->staged && !taken[i] && t->bytes == d->side_tiles[at].bytes)
            return i;
    }
    return -1;
}

/* Reductions down the rows: a float for each of the four warps of 64 rows, and each column of a subtile. */
static void place_folds(epi_gemm_design *d) {
    for (int i = 0; i < d->tile->instr_count; i++) {
        const epi_instr *s = &d->tile->instrs[i];
        if (s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        d->instrs[i].staged_at = d->subtile_bytes;
        d->subtile_bytes +=
            4 * 4 * d->config.subtile * epi_cell_elements(d->tile, d->tile->values[s->arg[0]].scale) / 2;
    }
}

/* A stored tile takes over the panels of a loaded one: a thread writes a cell where it has read one. Panels
 * are as wide as TMA's swizzle: 128 bytes at most. */
void epi_side_tiles_place(epi_gemm_design *d) {
    bool taken[EPI_MAX_SIDE_TILES] = {false};
    int widest = 0;
    d->subtile_bytes = d->load_bytes = 0;
    d->loads = d->lanes = d->own = false;
    for (int i = 0; i < d->side_tile_count; i++) {
        epi_side_tile *t = &d->side_tiles[i];
        t->col_mod = t->row_mod = t->block = 0;
        t->turned = can_turn(d, t);
        t->staged = t->turned || can_stage(d, t);
        t->lanes &= t->staged && !t->turned;
        if (!t->staged)
            continue;
        int row = d->config.subtile / 2 * t->bytes, bytes = row * EPI_STAGED_ROWS,
            from = t->turned ? -1 : find_takeover(d, i, taken);
        t->panel_width = t->turned || row > 128 ? 128 : row;
        t->panels = t->turned ? 1 : row / t->panel_width;
        if (from >= 0) {
            taken[from] = true;
            t->offset = d->side_tiles[from].offset;
        } else {
            t->offset = d->subtile_bytes;
            d->subtile_bytes += bytes;
        }
        d->loads |= !t->store;
        d->lanes |= t->lanes;
        d->own |= t->lanes && t->store;
        if (!t->store && !t->lanes)
            d->load_bytes += bytes;
        if (t->panel_width > widest)
            widest = t->panel_width;
    }
    place_folds(d);
    if (widest) /* the swizzle follows from the address: it repeats after eight rows of a panel */
        d->subtile_bytes = (int)epi_round_up(d->subtile_bytes, 8 * widest);
}

/* ---- maps and pointers ---- */

/* A box is a panel of a subtile's rows; a table that repeats is mapped once. */
static int add_map(const epi_gemm_design *d, const epi_side_tile *t, epi_kernel_text *k) {
    if (k->map_count == EPI_MAX_MAPS) {
        k->full = true;
        return 0;
    }
    uint64_t size = epi_dtype_size(t->ref.type);
    const epi_walk *r = &t->of_batch, *c = &t->cols.walk;
    epi_map_need *m = &k->maps[k->map_count];
    *m = (epi_map_need){.node = t->node, .tensor = t->tensor, .type = t->ref.type, .rank = 2};
    const epi_open *open = d->c->spec->open;
    int64_t rows = t->row_mod ? t->row_mod : d->batch_rows ? d->batch_rows : d->tile->m;
    int64_t before = t->block ? (c->size[0] - 1) * c->stride[0] : 0; /* of the last block */
    m->sizes[0] = (uint64_t)(epi_open_now(open, c->size[c->count - 1]) + epi_open_now(open, before));
    m->sizes[1] = (uint64_t)epi_open_now(open, rows);
    m->strides[1] = (uint64_t)epi_open_now(open, r->stride[r->count - 1]) * size;
    m->offset = t->half ? (int64_t)size * epi_open_now(open, t->cols.part) : 0;
    m->swizzle = t->panel_width;
    m->box[0] = (uint32_t)((uint64_t)m->swizzle / size);
    m->box[1] = EPI_STAGED_ROWS;
    if (t->turned) {
        m->sizes[1] = m->sizes[0];
        m->sizes[0] = (uint64_t)epi_open_now(open, rows);
        m->strides[1] = (uint64_t)epi_open_now(open, c->stride[0]) * size;
        m->box[1] = (uint32_t)d->config.subtile;
    }
    if (d->batch_rows)
        epi_batch_map(open, &t->place, t->ref.type, m);
    if (t->store && d->plan->group == EPI_GROUP_ROWS)
        epi_map_clip(m);
    return k->map_count++;
}

/* Rows that lanes read before they write the first: shared memory answers late beside tensor cores, but
 * beside wide tiles and kept results registers are few. */
static void choose_rows(const epi_gemm_design *d, epi_side_tile *t) {
    bool wide = d->config.tile_n >= 256, fewer = wide && d->heavy;
    bool few = fewer || d->loads || (wide && d->side_tile_count > 1);
    bool kept = d->config.schedule == EPI_DEFERRED || d->config.packed;
    t->rows_moved = fewer ? 2 : few ? 4 : 8;
    t->rows_own = t->panel_width < 64 || kept ? 4 : 8;
}

static bool has_last(const epi_side_tile *t) {
    return t->staged && !t->lanes && !t->turned;
}

/* The last rows of all tiles have maps of their own, if a launch has room for so many. */
static void add_last_maps(epi_gemm_design *d, epi_kernel_text *k) {
    int count = 0;
    for (int i = 0; i < d->side_tile_count; i++)
        count += has_last(&d->side_tiles[i]);
    d->clamped = k->map_count + count <= EPI_MAX_MAPS && d->plan->group != EPI_GROUP_ROWS;
    int64_t rows = epi_open_now(d->c->spec->open, d->batch_rows ? d->batch_rows : d->tile->m);
    for (int i = 0; i < d->side_tile_count && d->clamped; i++)
        if (has_last(&d->side_tiles[i]))
            d->side_tiles[i].last = epi_map_last(k, d->side_tiles[i].map, rows, EPI_STAGED_ROWS);
}

void epi_side_tiles_address(epi_gemm_design *d, epi_kernel_text *k) {
    for (int i = 0; i < d->side_tile_count; i++) {
        epi_side_tile *t = &d->side_tiles[i];
        if (t->staged && !t->lanes)
            t->map = add_map(d, t, k);
        else
            t->pointer = epi_emit_pointer(k, t->node, t->tensor);
        if (t->moved)
            t->index = epi_emit_pointer(k, d->g->nodes[t->node].arg[1], -1);
        if (t->lanes)
            choose_rows(d, t);
    }
    add_last_maps(d, k);
}

/* design_operands.c: how a product reads its operands: through tensor maps of TMA, from copies that TMA can
 * read, or by offsets. */
#include "cuda/product/design_gemm.h"
#include "pass/analyse/dequant.h"

/* Is it read through its index? It is in memory nowhere then. */
static bool is_gathered(const epi_gemm_design *d, int node) {
    return d->plan->row_index != EPI_NO_NODE && d->g->nodes[node].op == EPI_OP_GATHER &&
           d->g->nodes[node].arg[1] == d->plan->row_index;
}

/* What the operands' batches are counted by: a group of rows is one, too. */
static epi_axes batch_of(const epi_plan *plan) {
    epi_axes group = {.count = 1, .at = {plan->group_axis}};
    return plan->group == EPI_GROUP_ROWS ? group : epi_plan_batch(plan);
}

static bool has_rows(const epi_gemm_design *d, const epi_operand *o) {
    return o->side == 0 || (d->terms > 1 && o->side % 2 == 0);
}

/* ---- of few bits ---- */

/* Bytes with two elements each, as a tensor of elements: its last axis is twice as long. */
static void count_halves(epi_ref *bytes) {
    int last = bytes->axes.count - 1;
    bytes->axes.at[last].shift++;
    for (int i = 0; i < last; i++)
        bytes->strides[i] *= 2;
}

/* How an operand is loaded: as it is, or made of few bits. Then o->node is the operand, and becomes its bits. */
static void find_bits(const epi_gemm_design *d, const epi_emit_context *c, epi_operand *o) {
    epi_dequant q = {o->node, EPI_NO_NODE, EPI_NO_NODE, EPI_NO_NODE, 16, false};
    o->on_load = d->g->nodes[o->node].on_load;
    if (o->on_load)
        epi_dequant_find(d->g, o->node, &q); /* it is one: else nobody would have marked it */
    const int nodes[EPI_LOAD_PARTS] = {q.scale, q.zero, q.offset};
    o->node = q.bytes;
    o->bits = q.bits;
    o->is_signed = q.is_signed;
    o->ref = epi_emit_ref(c, o->node, -1);
    if (o->bits == 4)
        count_halves(&o->ref);
    for (int i = 0; i < EPI_LOAD_PARTS; i++) {
        epi_load_part *p = &o->parts[i];
        *p = (epi_load_part){.node = nodes[i]};
        if (p->node == EPI_NO_NODE)
            continue;
        epi_ref ref = epi_emit_ref(c, p->node, -1);
        p->type = ref.type;
        p->cols = epi_columns_of(d->plan, &ref, c->spec->sizes, d->tile->acc_scale);
        p->depth = epi_walk_axes(&ref, &d->plan->depth, c->spec->sizes);
    }
}

/* With the sizes of this context. */
static epi_operand operand_at(const epi_gemm_design *d, const epi_emit_context *c, int side) {
    epi_operand o = {.node = epi_plan_operand(d->g, d->plan, side),
                     .side = side,
                     .gather = EPI_NO_NODE,
                     .chosen = EPI_NO_NODE};
    const int64_t *sizes = c->spec->sizes;
    o.scale.node = EPI_NO_NODE;
    if (d->g->nodes[d->plan->product].scaled && d->plan->placement[o.node].paged) {
        o.scale.node = d->g->nodes[o.node].arg[1];
        o.node = d->g->nodes[o.node].arg[0];
    }
    if (is_gathered(d, o.node)) {
        *(d->plan->group ? &o.gather : &o.chosen) = o.node;
        o.node = d->g->nodes[o.node].arg[0];
    }
    find_bits(d, c, &o);
    int term = d->terms > 1 ? side / 2 : 0;
    const epi_axes *depth = term ? &d->plan->added_depth[term - 1] : &d->plan->depth;
    const epi_axes *over = o.gather == EPI_NO_NODE ? NULL : &d->g->nodes[o.gather].over;
    o.deep = epi_axes_size(depth, sizes);
    o.gathers_depth = over && d->plan->group == EPI_GROUP_DEPTH;
    if (over)
        o.along = o.gathers_depth ? *depth : d->plan->rows;
    if (o.gathers_depth)
        depth = over;
    o.depth = epi_walk_axes(&o.ref, depth, sizes);
    epi_axes batch = batch_of(d->plan), rows = epi_plan_batch_rows(d->plan);
    o.batch = epi_walk_axes(&o.ref, &batch, sizes);
    if (o.chosen != EPI_NO_NODE) {
        o.along = batch;
        o.apart = epi_ref_stride(&o.ref, d->g->nodes[o.chosen].over.at[0]);
    }
    if (has_rows(d, &o)) {
        o.out = epi_walk_axes(&o.ref, over && !o.gathers_depth ? over : &rows, sizes);
        o.count = d->batch_rows ? d->batch_rows : d->tile->m;
    } else {
        o.cols = epi_columns_of(d->plan, &o.ref, sizes, d->tile->acc_scale);
        o.out = o.cols.walk;
        o.count = d->tile->n;
    }
    if (o.scale.node != EPI_NO_NODE) {
        o.scale.ref = epi_emit_ref(c, o.scale.node, -1);
        o.scale.depth = epi_walk_axes(&o.scale.ref, depth, sizes);
        epi_columns cols = epi_columns_of(d->plan, &o.scale.ref, sizes, d->tile->acc_scale);
        o.scale.out = has_rows(d, &o) ? epi_walk_axes(&o.scale.ref, &rows, sizes) : cols.walk;
        o.scale.two = !has_rows(d, &o) && cols.two;
    }
    return o;
}

/* Is the walk's element the same for so many steps? */
static bool is_same_for(const epi_walk *w, int count) {
    int last = w->count - 1;
    return last < 0 || (w->stride[last] == 0 && w->size[last] % count == 0);
}

bool epi_operand_fits_scale(const epi_gemm_design *d, const epi_operand *o) {
    const epi_operand_scale *s = &o->scale;
    if ((o->ref.type != EPI_E4M3 && o->ref.type != EPI_E5M2) || o->cols.two || o->deep % EPI_SCALED_SAME)
        return false;
    if (s->node == EPI_NO_NODE)
        return true;
    int64_t elements = epi_axes_size(&s->ref.axes, d->c->spec->sizes);
    return !s->two && epi_open_most(d->c->spec->open, elements) < INT32_MAX &&
           is_same_for(&s->depth, EPI_SCALED_SAME) &&
           (has_rows(d, o) || is_same_for(&s->out, EPI_SCALED_SAME));
}

epi_operand epi_operand_of(const epi_gemm_design *d, int side) {
    return operand_at(d, d->c, side);
}

/* ---- batches ---- */

bool epi_batch_place_of(const epi_walk *batch, epi_dtype type, epi_batch_place *out) {
    int64_t below = 1;
    *out = (epi_batch_place){0};
    for (int i = batch->count - 1; i >= 0; i--) {
        if (batch->stride[i]) {
            if (out->count == EPI_BATCH_PLACES || batch->stride[i] * (int64_t)epi_dtype_size(type) % 16)
                return false;
            out->outermost = i == 0;
            out->below[out->count] = below;
            out->size[out->count] = batch->size[i];
            out->stride[out->count++] = batch->stride[i];
        }
        below *= batch->size[i];
    }
    return true;
}

/* The same of an operand, whose batches may choose their matrix. */
static bool place_operand(const epi_gemm_design *d, const epi_operand *o, epi_batch_place *out) {
    if (!epi_batch_place_of(&o->batch, o->ref.type, out))
        return false;
    if (o->chosen == EPI_NO_NODE)
        return true;
    if (out->count == EPI_BATCH_PLACES || o->apart * (int64_t)epi_dtype_size(o->ref.type) % 16)
        return false;
    out->size[out->count] = epi_axis_size(d->g->nodes[o->chosen].over.at[0], d->c->spec->sizes);
    out->stride[out->count++] = o->apart;
    return true;
}

void epi_batch_map(const epi_open *open, const epi_batch_place *place, epi_dtype type, epi_map_need *map) {
    map->rank = 2 + EPI_BATCH_PLACES;
    for (int i = 0; i < EPI_BATCH_PLACES; i++) {
        bool there = i < place->count;
        map->sizes[2 + i] = there ? (uint64_t)epi_open_now(open, place->size[i]) : 1;
        map->strides[2 + i] =
            there ? (uint64_t)epi_open_now(open, place->stride[i]) * epi_dtype_size(type) : map->strides[1];
        map->box[2 + i] = 1;
    }
}

/* ---- by TMA ---- */

/* Does its map say where a batch lies, or the columns of a group? */
static bool is_placed(const epi_gemm_design *d, const epi_operand *o) {
    return d->batch_rows || (d->plan->group == EPI_GROUP_ROWS && !has_rows(d, o));
}

/* Are the operand's columns two and two of halves that lie apart, in an order that boxes of four axes have:
 * the depth, the two halves, the columns of a half, and groups of these (heads)? Their sizes are numbers.
 * Groups have a power of two columns, so that tiles for any number of rows can take them: which mainloop it
 * is, and with it a row's bits, must not depend on the batch. */
static bool has_halves(const epi_gemm_design *d, const epi_operand *o) {
    const epi_walk *w = &o->cols.walk;
    int64_t size = (int64_t)epi_dtype_size(o->ref.type);
    bool grouped = d->plan->group == EPI_GROUP_ROWS && w->count == 1 && epi_walk_aligned(&o->batch, 8);
    bool has = o->cols.two && (grouped || !is_placed(d, o)) && d->products == 1 && d->terms == 1 &&
               o->depth.count == 1 && o->depth.stride[0] == 1 && w->count >= 1 && w->count <= 2 &&
               o->cols.part > 0 && o->cols.part * size % 16 == 0 && !epi_emit_grows(d->c, o->cols.part);
    for (int i = 0; i < w->count && has; i++)
        has = w->stride[i] > 0 && w->stride[i] * size % 16 == 0 && !epi_emit_grows(d->c, w->size[i]) &&
              !epi_emit_grows(d->c, w->stride[i]);
    int64_t inner = has ? w->size[w->count - 1] : 0;
    return has && (w->count == 1 || (inner >= 8 && (inner & (inner - 1)) == 0));
}

bool epi_operand_box(const epi_operand *o, int columns, epi_map_need *m) {
    if (!o->halves) {
        m->box[1] = (uint32_t)columns;
        return true;
    }
    int64_t inner = o->out.size[o->out.count - 1], half = columns / 2;
    bool groups = o->out.count > 1 && half > inner;
    m->box[1] = 2;
    m->box[2] = (uint32_t)(groups ? inner : half);
    m->box[3] = (uint32_t)(groups ? half / inner : 1);
    return o->out.count == 1 || (groups ? half % inner : inner % half) == 0;
}

static bool map_halves(const epi_emit_context *c, const epi_operand *o, int columns, epi_map_need *m) {
    const epi_walk *w = &o->out;
    uint64_t size = epi_dtype_size(o->ref.type);
    *m = (epi_map_need){.node = o->node, .tensor = -1, .type = o->ref.type, .rank = 4, .swizzle = 128};
    m->sizes[0] = (uint64_t)epi_open_now(c->spec->open, o->deep);
    m->sizes[1] = 2;
    m->strides[1] = (uint64_t)o->cols.part * size;
    m->sizes[2] = (uint64_t)w->size[w->count - 1];
    m->strides[2] = (uint64_t)w->stride[w->count - 1] * size;
    const epi_walk *groups = w->count > 1 ? w : &o->batch; /* of columns, or of rows */
    m->sizes[3] = groups->count ? (uint64_t)groups->size[0] : 1;
    m->strides[3] = groups->count ? (uint64_t)groups->stride[0] * size : m->strides[2];
    m->box[0] = 64;
    return epi_operand_box(o, columns, m);
}

/* The elements of the side that does not count rows: which mainloop it is, and with it a row's bits, must not
 * depend on the batch. That is the columns, unless these are rows that lie across the result. */
static double count_others(const epi_gemm_design *d) {
    const epi_spec *spec = d->c->spec;
    double count[2] = {1, 1};
    bool both = false;
    for (int side = 0; side < 2; side++) {
        const epi_axes *axes = side ? &d->plan->cols : &d->plan->rows;
        for (int i = 0; i < axes->count; i++) {
            bool counts = spec->is_row[axes->at[i].dim];
            both |= side && counts;
            count[side] *= counts ? 1 : (double)epi_axis_size(axes->at[i], spec->sizes);
        }
    }
    return both ? count[0] * count[1] : (double)d->tile->n;
}

/* Can the operand be copied to where TMA takes it, and is that worth it? Small products are left to other
 * mainloops. */
static bool can_repack(const epi_gemm_design *d) {
    return !d->batch_rows && !d->groups && !d->config.scaled && d->products == 1 && d->terms == 1 &&
           count_others(d) * (double)d->depth >= 0x1p18;
}

static const epi_repack *repack_operand(epi_emit_context *c, const epi_gemm_design *d, const epi_operand *o,
                                        epi_kernel_text *k) {
    epi_repack *r = &k->repacks[k->repack_count++];
    *r = (epi_repack){
        .node = o->node, .out = o->cols, .depth = o->depth, .out_count = o->count, .depth_count = d->depth};
    if (!o->cols.two)
        r->out.walk = o->out;
    r->mn = !o->cols.two && o->out.count && o->out.stride[o->out.count - 1] == 1 &&
            !(o->depth.count && o->depth.stride[o->depth.count - 1] == 1);
    r->inner = r->mn ? r->out_count : d->depth;
    r->outer = r->mn ? d->depth : r->out_count;
    r->pitch = epi_round_up(epi_open_now(c->spec->open, r->inner), EPI_REPACK_ROUND);
    r->bytes = epi_round_up(epi_open_now(c->spec->open, r->outer) * r->pitch * 2, 256);
    r->offset = epi_round_up(c->workspace, 256);
    c->workspace = r->offset + r->bytes;
    return r;
}

/* How TMA would see an operand as it lies. */
typedef struct lie {
    bool mn, fits; /* fits: it can take it so */
    int64_t pitch, out_size, depth_size;
} lie;

static lie lie_of(const epi_operand *o) {
    int64_t size = (int64_t)epi_dtype_size(o->ref.type);
    int64_t out_stride = o->out.count ? o->out.stride[0] : 0,
            depth_stride = o->depth.count ? o->depth.stride[0] : 0;
    lie l = {.out_size = o->out.count ? o->out.size[0] : 1,
             .depth_size = o->depth.count ? o->depth.size[0] : 1};
    if (!o->depth.count) /* one deep: rows of one element */
        depth_stride = o->out.count && out_stride == 1 ? epi_round_up(l.out_size, 8) : 1;
    if (!o->out.count)
        out_stride = depth_stride == 1 ? epi_round_up(l.depth_size, 8) : 1;
    l.mn = depth_stride != 1;
    l.pitch = l.mn ? depth_stride : out_stride;
    l.fits = !o->cols.two && o->out.count <= 1 && o->depth.count <= 1 && !(l.mn && out_stride != 1) &&
             l.pitch * size % 16 == 0 && l.pitch >= (l.mn ? l.out_size : l.depth_size);
    return l;
}

static bool sums_over(const epi_plan *plan, int dim) {
    bool sums = epi_axes_find_dim(&plan->depth, dim) >= 0;
    for (int i = 0; i < plan->added_count; i++)
        sums |= epi_axes_find_dim(&plan->added_depth[i], dim) >= 0;
    return sums;
}

/* Can TMA take the operand as it lies whatever the number of rows? An odd one stands for all, as stand-ins do
 * for open sizes. Of rows that are summed over the number is what it is: no row's bits are at stake. */
static bool always_fits(const epi_gemm_design *d, epi_operand *o) {
    enum { SOME_ROWS = 101 };
    epi_emit_context c = *d->c;
    epi_spec spec = *d->c->spec;
    epi_batch_place place;
    c.spec = &spec;
    for (int dim = 0; dim < d->g->dim_count; dim++)
        if (spec.is_row[dim] && !sums_over(d->plan, dim))
            spec.sizes[dim] = SOME_ROWS;
    epi_operand there = operand_at(d, &c, o->side);
    lie l = lie_of(&there);
    o->many_mn = l.mn;
    return l.fits && (!is_placed(d, o) || place_operand(d, &there, &place));
}

/* Can a warp gather what an index names of it? That is copied 16 bytes at a time. The map is one that nobody
 * uses. */
static bool map_gathered(const epi_gemm_design *d, epi_operand *o, epi_map_need *m) {
    uint64_t size = epi_dtype_size(o->ref.type);
    *m = (epi_map_need){.node = o->node, .tensor = -1, .type = o->ref.type, .rank = 2, .swizzle = 128};
    m->sizes[0] = m->box[0] = 64;
    m->sizes[1] = m->box[1] = 8;
    m->strides[1] = 64 * size;
    const epi_walk *along = o->gathers_depth ? &o->out : &o->depth,
                   *across = o->gathers_depth ? &o->depth : &o->out;
    o->mn = o->gathers_depth;
    return o->side == 0 && d->terms == 1 && along->count == 1 && along->stride[0] == 1 &&
           along->size[0] % 8 == 0 && !epi_emit_grows(d->c, along->size[0]) && epi_walk_aligned(across, 8);
}

bool epi_operand_map(epi_emit_context *c, const epi_gemm_design *d, epi_operand *o, int rows, int deep,
                     epi_kernel_text *k) {
    if (o->gather != EPI_NO_NODE)
        return map_gathered(d, o, &k->maps[k->map_count++]);
    o->halves = has_halves(d, o);
    if (o->halves)
        return map_halves(c, o, rows, &k->maps[k->map_count++]);
    lie l = lie_of(o);
    o->mn = l.mn;
    const epi_open *open = c->spec->open;
    int64_t size = (int64_t)epi_dtype_size(o->ref.type), pitch = epi_open_now(open, l.pitch);
    int64_t out_size = l.out_size, depth_size = l.depth_size;
    if (o->mn ? !o->depth.count : !o->out.count) /* there is one such row: any pitch will do */
        pitch = epi_round_up(epi_open_now(open, o->mn ? out_size : depth_size), 8);
    bool always = always_fits(d, o);
    if (!(l.fits && always) && !can_repack(d))
        return false;
    const epi_repack *copy = l.fits ? NULL : repack_operand(c, d, o, k);
    if (copy) {
        o->mn = copy->mn;
        pitch = copy->pitch;
        out_size = copy->out_count;
        depth_size = copy->depth_count;
    }
    epi_map_need *m = &k->maps[k->map_count++];
    *m = (epi_map_need){.node = o->node, .tensor = -1, .type = o->ref.type, .rank = 2, .swizzle = 128};
    if (copy) {
        m->tensor = EPI_POINTER_WORKSPACE;
        m->offset = copy->offset;
    }
    m->sizes[0] = (uint64_t)epi_open_now(open, o->mn ? out_size : depth_size);
    m->sizes[1] = (uint64_t)epi_open_now(open, o->mn ? depth_size : out_size);
    m->strides[1] = (uint64_t)(pitch * size);
    m->box[0] = (uint32_t)(128 / size); /* as far as the swizzle goes */
    m->box[1] = (uint32_t)(o->mn ? deep : rows);
    if (is_placed(d, o) && !place_operand(d, o, &o->place))
        return false;
    if (is_placed(d, o))
        epi_batch_map(open, &o->place, o->ref.type, m);
    return d->plan->group != EPI_GROUP_DEPTH || (o->mn && !o->place.count);
}

void epi_operands_clip(epi_gemm_design *d, epi_kernel_text *k) {
    int count = k->map_count;
    d->whole_maps = count;
    for (int i = 0; i < count && d->plan->group == EPI_GROUP_DEPTH; i++) {
        epi_map_need *whole = &k->maps[k->map_count++];
        *whole = k->maps[i];
        whole->rank = 2; /* a batch's map has more axes, of one element each */
        if (i || d->operands[0].gather == EPI_NO_NODE)
            epi_map_clip(&k->maps[i]);
    }
}

/* How far it is from one group's columns to the next one's, in lines of the map, or 0. */
static int64_t step_of(const epi_gemm_design *d, const epi_operand *o, const epi_map_need *m, int columns) {
    bool fits = !o->halves && m->tensor == -1 && o->place.count == 1 && m->sizes[2] == (uint64_t)d->groups &&
                !epi_emit_grows(d->c, o->place.stride[0]) && m->strides[2] % m->strides[1] == 0 &&
                m->sizes[1] % (o->mn ? 64 : (uint64_t)columns) == 0;
    return fits ? (int64_t)(m->strides[2] / m->strides[1]) : 0;
}

void epi_operands_join_groups(epi_gemm_design *d, int columns, epi_kernel_text *k) {
    int64_t step = 0;
    bool alike = d->plan->group == EPI_GROUP_ROWS;
    for (int pass = 0; pass < 2 && alike; pass++)
        for (int side = 1; side<epi_plan_operands(d->plan); side += d->terms> 1 ? 2 : 1) {
            epi_map_need *m = &k->maps[side];
            int64_t own = pass ? step : step_of(d, &d->operands[side], m, columns);
            alike &= own && (side == 1 || own == step);
            step = own;
            if (!pass)
                continue;
            m->rank = 2;
            m->sizes[1] += (uint64_t)(step * (d->groups - 1));
        }
    d->group_step = alike ? step : 0;
}

void epi_map_clip(epi_map_need *m) {
    const uint64_t clip = 1 << 30;
    m->rank = 4;
    m->sizes[2] = m->sizes[1] + 1;
    m->sizes[1] = clip;
    m->sizes[3] = clip + 1;
    m->strides[2] = m->strides[1];
    m->strides[3] = ((uint64_t)1 << 34) - m->strides[1];
    m->box[2] = m->box[3] = 1;
}

int epi_map_last(epi_kernel_text *k, int map, int64_t rows, int most) {
    epi_map_need *m = &k->maps[k->map_count];
    *m = k->maps[map];
    if (rows % most)
        m->box[1] = (uint32_t)epi_round_up(rows % most, 8);
    return k->map_count++;
}

/* ---- by offsets ---- */

/* Do elements that follow each other lie side by side? */
static bool ends_in_neighbours(const epi_walk *w) {
    return w->count && w->stride[w->count - 1] == 1;
}

/* Neighbours are copied together where they always start at a multiple of their number; one by one, where
 * they are not found in eights. A group begins anywhere, and what an index names is wherever that says: no run
 * of neighbours. */
void epi_operand_measure(const epi_gemm_design *design, epi_operand *o) {
    const epi_walk *d = &o->depth, *r = &o->out;
    bool out = design->plan->group != EPI_GROUP_ROWS || o->side != 0,
         deep = design->plan->group != EPI_GROUP_DEPTH;
    bool by_out = out && !o->cols.two && (!r->count || ends_in_neighbours(r));
    bool by_depth = deep && (ends_in_neighbours(d) || (!d->count && !by_out));
    o->mn = !by_depth && (by_out || (out && ends_in_neighbours(r)));
    const epi_walk *along = o->mn ? r : d, *across = o->mn ? d : r;
    epi_walk outer = *along;
    int run = outer.count -= along->count > 0;
    o->vec = (by_out || by_depth) && (run < 1 || along->size[run] % 8 == 0) ? 8 : 1;
    while (!epi_walk_aligned(&outer, o->vec) || !epi_walk_aligned(across, o->vec) ||
           !epi_walk_aligned(&o->batch, o->vec) || (o->cols.two && o->cols.part % o->vec) ||
           (o->chosen != EPI_NO_NODE && o->apart % o->vec))
        o->vec /= 2;
}

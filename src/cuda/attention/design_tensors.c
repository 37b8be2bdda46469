/* design_tensors.c: the rows and columns of an attention kernel, and how its tensors move in tiles. */
#include <stdio.h>

#include "cuda/attention/design_attention.h"

int epi_attention_terms(const epi_attention_design *d, int score, const epi_attention_term **first) {
    int count = 0;
    *first = d->a->terms;
    for (int t = d->a->term_count - 1; t >= 0; t--)
        if (d->a->terms[t].score == score) {
            *first = &d->a->terms[t];
            count++;
        }
    return count;
}

/* ---- rows and columns ---- */

/* The axis whose positions a tile's rows (columns) are: one that bounds or equalities are about, or the
 * longest. */
static int choose_axis(const epi_attention_design *d, const epi_axes *axes, bool stream) {
    const epi_attention *a = d->a;
    int best = 0;
    for (int i = 1; i < axes->count; i++)
        if (epi_axis_size(axes->at[i], d->c->spec->sizes) > epi_axis_size(axes->at[best], d->c->spec->sizes))
            best = i;
    for (int b = 0; b < a->bound_count; b++) {
        if (stream)
            return epi_axes_find(axes, a->bounds[b].axis);
        const epi_linear *const of[2] = {&a->bounds[b].limit, &a->bounds[b].other};
        for (int l = 0; l < 2; l++)
            for (int t = 0; t < of[l]->count; t++) {
                const epi_node *n = &d->g->nodes[of[l]->term[t]];
                int at = n->op == EPI_OP_INDEX ? epi_axes_find(axes, n->over.at[0]) : -1;
                if (at >= 0)
                    return at;
            }
    }
    for (int m = 0; m < a->match_count; m++)
        for (int i = 0; i < axes->count; i++)
            if (epi_axes_find(&d->g->nodes[stream ? a->matches[m].column : a->matches[m].row].axes,
                              axes->at[i]) >= 0)
                return i;
    return best;
}

bool epi_attention_shape(epi_attention_design *d) {
    epi_axes batch = epi_plan_batch(d->plan), rows = epi_plan_batch_rows(d->plan), stream = d->a->stream;
    const int64_t *sizes = d->c->spec->sizes;
    bool split = d->variant == EPI_ATTENTION_SPLIT;
    if (!rows.count || !stream.count)
        return epi_refuse(d, "attention of one row");
    epi_axis row = rows.at[choose_axis(d, &rows, false)], column = stream.at[choose_axis(d, &stream, true)];
    for (int i = 0; i < rows.count && !split; i++)
        if (!epi_axis_equal(rows.at[i], row))
            batch.at[batch.count++] = rows.at[i];
    d->batch_axes = batch.count;
    d->rows = split ? d->plan->rows : batch;
    if (!split)
        d->rows.at[d->rows.count++] = row;
    for (int i = 0; i < stream.count && !split; i++)
        if (!epi_axis_equal(stream.at[i], column))
            d->stream.at[d->stream.count++] = stream.at[i];
    epi_axes groups = d->stream;
    d->stream.at[d->stream.count++] = column;
    if (split)
        d->stream = stream;
    d->batches = epi_axes_size(&batch, sizes);
    d->batch_rows = epi_axes_size(&d->rows, sizes) / epi_max64(1, d->batches);
    d->columns = split ? epi_axes_size(&stream, sizes) : epi_axis_size(column, sizes);
    d->column_groups = epi_axes_size(&groups, sizes);
    if (d->batches < 1 || d->batch_rows < 1 || d->columns < 1)
        return epi_refuse(d, "a size is zero");
    if (d->column_groups > 1 && d->variant != EPI_ATTENTION_PAIR)
        return epi_refuse(d, "columns along more than one axis");
    return true;
}

/* ---- tensors ---- */

/* Can tiles of the operand be moved? Tensor cores need 16 bits, and some mainloops make these of bytes. */
static bool takes_type(epi_attention_design *d, epi_dtype type, bool stream) {
    bool converts = epi_attention_is_single(d) && (d->config.turned || epi_attention_is_mma(d));
    return type == d->half || (stream && converts && epi_dtype_size(type) == 1) ||
           epi_refuse(d, "tensor cores need operands of one 16-bit type");
}

/* The same of a tensor in pages, which an index names. */
static bool take_pages(epi_attention_design *d, int node, const epi_axes *features, epi_attention_tensor *t) {
    const int64_t *sizes = d->c->spec->sizes;
    const epi_node *n = &d->g->nodes[node];
    const epi_axes *index = &d->g->nodes[n->arg[1]].axes;
    epi_axes batch = epi_attention_batch(d), slots = {0}, page = {0},
             table = {.at = {n->over.at[0]}, .count = 1};
    for (int i = 0; i < d->stream.count; i++) {
        epi_axes *to = epi_axes_find(index, d->stream.at[i]) >= 0 ? &slots : &page;
        to->at[to->count++] = d->stream.at[i];
    }
    *t = (epi_attention_tensor){.node = n->arg[0],
                                .tensor = -1,
                                .ref = epi_emit_ref(d->c, n->arg[0], -1),
                                .paged = true,
                                .index = epi_emit_ref(d->c, n->arg[1], -1)};
    t->features = epi_walk_axes(&t->ref, features, sizes);
    t->rows = epi_walk_axes(&t->ref, &page, sizes);
    t->groups = epi_walk_axes(&t->ref, &table, sizes);
    t->row_count = epi_axes_size(&page, sizes);
    t->group_count = epi_axes_size(&table, sizes);
    t->index_batch = epi_walk_axes(&t->index, &batch, sizes);
    t->index_slots = epi_walk_axes(&t->index, &slots, sizes);
    t->slots = epi_axes_size(&slots, sizes);
    epi_walk places = epi_walk_axes(&t->ref, &batch, sizes);
    int64_t run = 16 / (int64_t)epi_dtype_size(t->ref.type); /* elements */
    bool there = t->features.count == 1 && t->features.stride[0] == 1 && t->rows.count == 1 &&
                 epi_walk_aligned(&t->rows, run) && t->groups.count == 1 &&
                 epi_walk_aligned(&t->groups, run) && epi_batch_place_of(&places, t->ref.type, &t->place);
    if (!there)
        return epi_refuse(d, "TMA cannot load '%s' as it is in memory", epi_emit_name(d->c, t->node));
    if (!takes_type(d, t->ref.type, true))
        return false;
    int tile = d->config.stream;
    if (epi_emit_grows(d->c, t->row_count) || t->row_count % 8 || t->row_count > 1 << 20 ||
        (tile % t->row_count && t->row_count % tile))
        return epi_refuse(d, "a tile of %d columns is not a whole number of pages of %ld", tile,
                          (long)t->row_count);
    if (d->page && d->page != (int)t->row_count)
        return epi_refuse(d, "keys and values have pages of different sizes");
    d->page = (int)t->row_count;
    return true;
}

bool epi_attention_take(epi_attention_design *d, int node, int tensor, const epi_axes *features, bool stream,
                        epi_attention_tensor *t) {
    const int64_t *sizes = d->c->spec->sizes;
    epi_axes batch = epi_attention_batch(d), groups = d->stream, along = {0};
    groups.count--;
    if (stream && d->plan->placement[node].paged)
        return d->variant == EPI_ATTENTION_SPLIT ? take_pages(d, node, features, t)
                                                 : epi_refuse(d, "only attention of few rows supports pages");
    if (stream && d->variant == EPI_ATTENTION_SPLIT) {
        along = d->stream;
        groups.count = 0;
    } else if (stream) {
        along.at[along.count++] = d->stream.at[groups.count];
    }
    for (int i = d->batch_axes; i < d->rows.count && !stream; i++)
        along.at[along.count++] = d->rows.at[i];
    *t = (epi_attention_tensor){.node = node, .tensor = tensor, .ref = epi_emit_ref(d->c, node, tensor)};
    t->features = epi_walk_axes(&t->ref, features, sizes);
    t->rows = epi_walk_axes(&t->ref, &along, sizes);
    t->row_count = stream ? d->columns : d->batch_rows;
    t->group_count = stream ? d->column_groups : 1;
    if (stream)
        t->groups = epi_walk_axes(&t->ref, &groups, sizes);
    t->batch = epi_walk_axes(&t->ref, &batch, sizes);
    int64_t run = 16 / (int64_t)epi_dtype_size(t->ref.type); /* elements */
    bool there = t->features.count == 1 && t->features.stride[0] == 1 && t->rows.count <= 1 &&
                 epi_walk_aligned(&t->rows, run) && epi_walk_aligned(&t->groups, run) &&
                 epi_walk_aligned(&t->batch, run);
    if (!there)
        return epi_refuse(d, "each row of '%s' must be contiguous and start at a multiple of 16 bytes",
                          epi_emit_name(d->c, node));
    if (!epi_batch_place_of(&t->batch, t->ref.type, &t->place) || t->groups.count > 1)
        if (!epi_attention_is_mma(d))
            return epi_refuse(d, "TMA cannot load '%s' as it is in memory", epi_emit_name(d->c, node));
    return takes_type(d, t->ref.type, stream);
}

/* The rows' operand of a split variant, which threads load: 16 bytes at a time. */
static bool take_rows(epi_attention_design *d, int node, const epi_axes *features, epi_attention_tensor *t) {
    const int64_t *sizes = d->c->spec->sizes;
    *t = (epi_attention_tensor){.node = node, .tensor = -1, .ref = epi_emit_ref(d->c, node, -1)};
    t->features = epi_walk_axes(&t->ref, features, sizes);
    t->rows = epi_walk_axes(&t->ref, &d->rows, sizes);
    if (t->features.count != 1 || t->features.stride[0] != 1 || !epi_walk_aligned(&t->rows, 8))
        return epi_refuse(d, "rows of '%s' do not start at multiples of 16 bytes", epi_emit_name(d->c, node));
    return t->ref.type == d->half || epi_refuse(d, "tensor cores need operands of one 16-bit type");
}

bool epi_attention_add_map(epi_attention_design *d, const epi_attention_tensor *t, int rows, bool groups,
                           epi_kernel_text *k) {
    const epi_open *open = d->c->spec->open;
    uint64_t size = epi_dtype_size(t->ref.type);
    if (k->map_count == EPI_MAX_MAPS)
        return epi_refuse(d, "it needs more tensors than one launch can have");
    epi_map_need *m = &k->maps[k->map_count++], places = {0};
    *m = (epi_map_need){.node = t->node, .tensor = t->tensor, .type = t->ref.type, .swizzle = 128};
    m->sizes[0] = (uint64_t)t->features.size[0];
    m->sizes[1] = (uint64_t)epi_open_now(open, t->row_count);
    int64_t pitch = t->rows.count ? epi_open_now(open, t->rows.stride[0])
                                  : epi_round_up(t->features.size[0], 16 / (int64_t)size);
    m->strides[1] = (uint64_t)pitch * size;
    m->box[0] = 2 * EPI_ATTENTION_PANEL / (uint32_t)size; /* 128 bytes */
    m->box[1] = (uint32_t)rows;
    places.strides[1] = m->strides[1];
    epi_batch_map(open, &t->place, t->ref.type, &places);
    m->rank = 2;
    if (groups) {
        m->sizes[2] = (uint64_t)epi_open_now(open, t->group_count);
        m->strides[2] =
            t->groups.count ? (uint64_t)epi_open_now(open, t->groups.stride[0]) * size : m->strides[1];
        m->box[m->rank++] = 1;
    }
    for (int i = 0; i < EPI_BATCH_PLACES; i++, m->rank++) {
        m->sizes[m->rank] = places.sizes[2 + i];
        m->strides[m->rank] = places.strides[2 + i];
        m->box[m->rank] = 1;
    }
    return true;
}

bool epi_attention_take_operands(epi_attention_design *d) {
    const epi_attention *a = d->a;
    bool two = !epi_attention_is_single(d);
    const epi_attention_term *term;
    epi_attention_terms(d, d->first, &term);
    d->half = epi_emit_ref(d->c, term->rows, -1).type;
    if (!epi_dtype_is_narrow(d->half))
        return epi_refuse(d, "tensor cores need operands of one 16-bit type");
    if (!epi_dtype_is_narrow(d->c->spec->type))
        return epi_refuse(d, "tensor cores would round weights that are f32 to %s", epi_dtype_name(d->half));
    for (int s = 0; s < (two ? 2 : 1); s++) {
        int count = epi_attention_terms(d, s ? !d->first : d->first, &term);
        for (int t = 0; t < count; t++, term++) {
            int to = t ? EPI_ATTENTION_MORE : s;
            const epi_axes *over = &d->g->nodes[term->product].over;
            if (!(d->variant == EPI_ATTENTION_SPLIT
                      ? take_rows(d, term->rows, over, &d->rows_of[to])
                      : epi_attention_take(d, term->rows, -1, over, false, &d->rows_of[to])) ||
                !epi_attention_take(d, term->stream, -1, over, true, &d->columns_of[to]))
                return false;
        }
        d->depth[s] = d->rows_of[s].features.size[0];
        if (count > 1) {
            d->more = d->rows_of[EPI_ATTENTION_MORE].features.size[0];
            d->sum_at = d->sum_term ? epi_round_up(d->depth[s], EPI_ATTENTION_PANEL) : 0;
            d->depth[s] = epi_round_up(d->depth[s], EPI_ATTENTION_PANEL) + d->more;
        }
    }
    for (int v = 0; v < 2 && d->sum[v] >= 0; v++) {
        const epi_attention_sum *sum = &a->sums[d->sum[v]];
        epi_attention_tensor t;
        if (!epi_attention_take(d, sum->operand, -1, &sum->cols, true, two ? &t : &d->columns_of[1]))
            return false;
        d->width[v] = (two ? &t : &d->columns_of[1])->features.size[0];
    }
    if (d->sum[EPI_ATTENTION_MORE] >= 0)
        d->width[0] = d->depth[0];
    return true;
}

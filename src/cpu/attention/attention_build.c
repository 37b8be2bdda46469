/* attention_build.c: prepares what the attention mainloop works on, and its memory. */
#include "cpu/attention/attention.h"

enum {
    PACK_LIMIT = 64 << 20, /* bytes that are packed for all rows at a time */
    TILE_ROWS =
        EPI_TILE_M + EPI_MICRO_MAX_MR, /* a tile's rows and those that fill a micro-kernel's last panel */
    TILE_BYTES = TILE_ROWS * EPI_TILE_N * sizeof(float),
    SUMS_BYTES = TILE_BYTES + 2 * EPI_TILE_M * sizeof(float), /* of a value product's tile, see epi_sums */
    VECTORS = 4,                                              /* of rows, see attention_run.c */
    FEW_TILES = 4, /* of rows for each thread: where there are fewer, threads share the stream as well */
};

static epi_status build_programs(epi_arena *arena, epi_attention_loop *l, int panel, const epi_root *roots,
                                 int root_count, epi_error *err) {
    const epi_attention *a = l->a;
    epi_root *some = epi_arena_alloc(arena, ((size_t)root_count + 4) * sizeof *some);
    int count = 0;
    EPI_TRY(epi_has_memory(some, err));
    if (a->row_max != EPI_NO_NODE) {
        some[count++] = (epi_root){a->score, EPI_ROOT_KEPT};
        if (a->factor != EPI_NO_NODE)
            some[count++] = (epi_root){a->factor, EPI_ROOT_KEPT};
        some[count++] = (epi_root){a->row_max, -1};
    } else {
        for (int v = 0; v < a->sum_count; v++) {
            bool kept = false;
            for (int i = 0; i < v; i++)
                kept |= a->sums[i].weight == a->sums[v].weight;
            if (!kept)
                some[count++] = (epi_root){a->sums[v].weight, EPI_ROOT_KEPT};
        }
        for (int i = 0; i < root_count; i++)
            if (l->plan->placement[roots[i].node].reduction > EPI_REDUCE_LOCAL)
                some[count++] = roots[i];
    }
    bool all = l->bound_count == a->bound_count && l->match_count == a->match_count;
    l->programs = a->open_plan && all ? 2 : 1;
    epi_status status = EPI_OK;
    for (int i = 0; i < l->programs && status == EPI_OK; i++)
        status = epi_epilogue_build(arena, l->spec, i ? a->open_plan : a->score_plan, l->strips, panel, false,
                                    EPI_STREAM_TILE, some, count, &l->score[i], err);
    for (int v = 0; v < epi_attention_outs(a) && status == EPI_OK; v++) {
        some = epi_arena_alloc(arena, ((size_t)root_count + 1) * sizeof *some);
        count = 0;
        for (int i = 0; i < root_count && some; i++)
            if (epi_attention_stores(l->plan, v, v == 0, roots[i].node))
                some[count++] = roots[i];
        status = !some ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                       : epi_epilogue_build(arena, l->spec, a->sums[v].plan, l->strips, panel, false,
                                            EPI_TILE_N, some, count, &l->out[v], err);
    }
    return status;
}

/* The cross-tile reductions, by their instructions in each score program. */
static bool find_reductions(epi_arena *arena, epi_attention_loop *l) {
    const epi_tile_program *t = &l->score[0].tile;
    l->reductions = epi_arena_alloc(arena, ((size_t)t->instr_count + 1) * sizeof *l->reductions);
    for (int i = 0; i < t->instr_count && l->reductions; i++) {
        if (t->instrs[i].kind != EPI_INSTR_PARTIAL_ROWS)
            continue;
        epi_score_reduction *to = &l->reductions[l->reduction_count++];
        *to = (epi_score_reduction){t->instrs[i].node, {i, i}};
        for (int k = 0; l->programs == 2 && k < l->score[1].tile.instr_count; k++) {
            const epi_instr *s = &l->score[1].tile.instrs[k];
            if (s->kind == EPI_INSTR_PARTIAL_ROWS && s->node == to->node)
                to->instr[1] = k;
        }
    }
    return l->reductions != NULL;
}

static void add_streamed(epi_attention_loop *l, int node, const epi_micro *micro, bool by_value,
                         const epi_axes *features) {
    epi_streamed *s = &l->streams[l->stream_count++];
    *s = (epi_streamed){.node = node, .micro = micro, .by_value = by_value, .features = *features};
    s->feature_count = epi_axes_size(features, l->spec->sizes);
    int64_t rows = by_value ? s->feature_count : EPI_STREAM_TILE,
            depth = by_value ? EPI_STREAM_TILE : s->feature_count;
    s->tile_bytes = epi_round_up(epi_round_up(rows, micro->nr) * epi_round_up(depth, micro->depth) *
                                     (int64_t)epi_dtype_size(micro->type),
                                 64);
}

/* The type in which operands are multiplied: the one that all have, or f32. Numbers of 8 bits are numbers of each. */
static void join_type(epi_dtype *type, epi_dtype operand) {
    if (epi_dtype_size(operand) == 1 || operand == *type)
        return;
    *type = *type == EPI_DTYPE_COUNT ? operand : EPI_F32;
}

/* bf16 operands are multiplied as bf16 where the CPU can; the weights are rounded for that, so it is done
 * where that is the type that the program's values are stored in. */
static epi_status choose_micro(epi_attention_loop *l, const epi_home *homes, const epi_micro *micro[2],
                               epi_error *err) {
    const epi_attention *a = l->a;
    for (int side = 0; side < 2; side++) {
        epi_dtype type = side ? l->spec->type : EPI_DTYPE_COUNT;
        for (int i = 0; i < 2 * a->term_count && !side; i++)
            join_type(&type, homes[i % 2 ? a->terms[i / 2].stream : a->terms[i / 2].rows].type);
        for (int v = 0; v < a->sum_count && side; v++)
            join_type(&type, homes[a->sums[v].operand].type);
        micro[side] = epi_micro_choose(type, type, l->spec->micro);
        if (!micro[side])
            return epi_micro_none(type, type, l->spec->micro, err);
    }
    return EPI_OK;
}

/* Sums over the rows: a fixed number of chunks of them. */
static bool build_row_sum(epi_arena *arena, epi_attention_loop *l, const epi_micro *micro,
                          const epi_root *roots, int root_count) {
    const epi_attention *a = l->a;
    epi_row_sum *c = &l->row_sum;
    epi_root *own = epi_arena_alloc(arena, ((size_t)root_count + 1) * sizeof *own);
    if (!own || !epi_attention_has_row_sum(a))
        return own != NULL;
    c->sum = &a->sums[a->sum_count - 1];
    for (int i = 0; i < root_count; i++)
        if (roots[i].node == c->sum->product)
            own[c->root_count++] = roots[i];
    c->roots = own;
    c->micro = micro;
    c->features = epi_axes_size(&c->sum->cols, l->spec->sizes);
    c->ld = epi_round_up(c->features, micro->nr);
    c->tile_floats =
        (EPI_STREAM_TILE + EPI_MICRO_MAX_MR) * c->ld; /* a span's last panel may reach beyond its tile */
    c->chunks = epi_max64(1, epi_min64(EPI_ROW_SUM_CHUNKS, l->row_tiles / epi_max64(1, l->batches)));
    return true;
}

static void lay_out(epi_attention_loop *l) {
    const epi_attention *a = l->a;
    int64_t total = 0, mine = 0, batch = 0, most = 0;
    for (int i = 0; i < l->stream_count; i++)
        batch += l->stream_tiles * l->streams[i].tile_bytes;
    l->shared = l->row_tiles > l->batches && batch <= PACK_LIMIT;
    if (l->row_sum.chunks)
        l->shared = batch <= PACK_LIMIT;
    l->batch_group = l->shared ? epi_max64(1, epi_min64(l->batches, PACK_LIMIT / epi_max64(1, batch)))
                               : epi_max64(1, l->batches);
    if (l->split) {
        int64_t rows = epi_round_up(l->score[0].tile.m / l->batches, l->streams[a->term_count].micro->mr);
        l->split_floats = 2 * EPI_TILE_M + rows * EPI_TILE_N;
        int64_t bytes = l->chunks * l->split_floats * (int64_t)sizeof(float);
        l->batch_group = epi_max64(1, epi_min64(l->batches, PACK_LIMIT / bytes));
        l->split_sums = epi_reserve(&total, l->batch_group, bytes);
    }
    epi_row_sum *c = &l->row_sum;
    if (c->chunks) {
        int64_t bytes = c->chunks * l->stream_tiles * c->tile_floats * (int64_t)sizeof(float);
        l->batch_group = epi_max64(1, epi_min64(l->batch_group, PACK_LIMIT / epi_max64(1, bytes)));
        c->sums = epi_reserve(&total, l->batch_group, bytes);
        c->seen = epi_reserve(&total, l->batch_group * c->chunks, l->stream_tiles);
        c->rows = epi_reserve(&mine, EPI_ATTENTION_FEATURES + EPI_MICRO_MAX_NR, TILE_ROWS * sizeof(float));
    }
    for (int i = 0; i < l->stream_count; i++) {
        l->streams[i].packed =
            epi_reserve(&total, l->shared ? l->batch_group * l->stream_tiles : 0, l->streams[i].tile_bytes);
        l->streams[i].own =
            epi_reserve(&mine, !l->shared || (l->origins && l->match_count), l->streams[i].tile_bytes);
    }
    for (int i = 0; i < 4; i++) {
        const epi_epilogue *e = i < 2 ? &l->score[i] : &l->out[i - 2];
        bool there = i < 2 ? i < l->programs : i - 2 < epi_attention_outs(a);
        l->access[i] = epi_reserve(&total, 1, there ? e->shared_bytes : 0);
        most = epi_max64(most, there ? e->private_bytes : 0);
    }
    l->acc = epi_reserve(&mine, 1, TILE_BYTES);
    for (int i = 0; i < a->term_count; i++)
        l->rows[i] = epi_reserve(&mine, TILE_ROWS, EPI_ATTENTION_FEATURES * sizeof(float));
    for (int i = 0; i < 2; i++) {
        l->kept[i] =
            epi_reserve(&mine, i == 0 || epi_attention_outs(a) == 2 || a->factor != EPI_NO_NODE, TILE_BYTES);
        l->outs[i] = epi_reserve(&mine, i < epi_attention_outs(a) || l->chunks > 1, SUMS_BYTES);
    }
    l->kept[2] = epi_reserve(&mine, l->row_sum.chunks > 0, TILE_BYTES);
    l->rounded = epi_reserve(&mine, 1, TILE_BYTES / 2);
    l->weights = epi_reserve(&mine, TILE_ROWS, EPI_STREAM_TILE * sizeof(float));
    l->vectors = epi_reserve(&mine, VECTORS * EPI_TILE_M, sizeof(float));
    l->states = epi_reserve(&mine, (int64_t)(2 * l->reduction_count + 1) * EPI_TILE_M, sizeof(float));
    int64_t partials = l->score[0].partials;
    if (l->programs == 2)
        partials = epi_max64(partials, l->score[1].partials);
    l->partials = epi_reserve(&mine, partials + 1, sizeof(float));
    l->private_memory = epi_reserve(&mine, 1, most);
    l->thread_bytes = mine;
    l->per_thread = mine < 0 ? mine : epi_reserve(&total, l->threads, mine);
    l->scratch = l->per_thread < 0 ? -1 : total;
}

epi_status epi_attention_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                               const epi_strips *strips, const epi_home *homes, const epi_root *roots,
                               int root_count, epi_attention_loop *l, epi_error *err) {
    const epi_attention *a = plan->attention;
    const epi_graph *g = spec->graph;
    const epi_micro *micro[2];
    *l = (epi_attention_loop){.spec = spec, .plan = plan, .a = a, .strips = strips, .threads = spec->threads};
    l->bound_count = a->bound_count;
    for (int i = 0; i < a->bound_count; i++)
        if (!epi_bound_is_known(plan, g, &a->bounds[i]))
            l->bound_count = 0;
    l->match_count = a->match_count;
    for (int i = 0; i < a->match_count; i++)
        if (!epi_match_is_known(plan, g, a, &a->matches[i]))
            l->match_count = 0;
    for (int i = 0; i < a->term_count + a->sum_count; i++) {
        const epi_axes *features =
            i < a->term_count ? &g->nodes[a->terms[i].product].over : &a->sums[i - a->term_count].cols;
        if (epi_axes_size(features, spec->sizes) > EPI_ATTENTION_FEATURES)
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "a head of attention has more than %d features",
                            EPI_ATTENTION_FEATURES);
    }
    EPI_TRY(choose_micro(l, homes, micro, err));
    EPI_TRY(build_programs(arena, l, micro[0]->mr, roots, root_count, err));
    EPI_TRY(epi_has_memory(find_reductions(arena, l), err));
    l->n = epi_axes_size(&a->stream, spec->sizes);
    l->stream_tiles = epi_ceil_div(l->n, EPI_STREAM_TILE);
    l->batches = l->score[0].batches;
    l->row_tiles = l->score[0].row_tiles;
    for (int i = 0; i < a->term_count; i++)
        add_streamed(l, a->terms[i].stream, micro[0], false, &g->nodes[a->terms[i].product].over);
    for (int v = 0; v < epi_attention_outs(a); v++) {
        add_streamed(l, a->sums[v].operand, micro[1], true, &a->sums[v].cols);
        l->features[v] = epi_axes_size(&a->sums[v].cols, spec->sizes);
    }
    EPI_TRY(epi_has_memory(build_row_sum(arena, l, micro[1], roots, root_count), err));
    l->origins = a->row_max != EPI_NO_NODE;
    l->factor_has_rows = epi_attention_factor_has_rows(g, a);
    l->chunks = a->row_max == EPI_NO_NODE ? 1 : epi_ceil_div(l->n, EPI_STREAM_CHUNK);
    l->split = l->chunks > 1 && l->batches > 0 && l->row_tiles == l->batches && l->threads > 1 &&
               l->batches < FEW_TILES * (int64_t)l->threads;
    lay_out(l);
    return l->scratch < 0 ? epi_fail(err, EPI_ERR_MEMORY, "the workspace of this attention overflows 64 bits")
                          : EPI_OK;
}

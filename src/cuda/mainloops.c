/* mainloops.c: the table of the GPU's mainloops: how each kind turns a step into launches with their CUDA sources, what these
 * are given when they run, and how a kernel is described. */
#include <stdio.h>
#include <string.h>

#include "cuda/attention/design_attention.h"
#include "cuda/cuda.h"
#include "cuda/product/emit_gemm.h"
#include "ir/index.h"

/* ---- what all have ---- */

/* A launch before the mainloop, after it or without it. */
static epi_launch *add_launch(epi_cuda_kernel *k) {
    epi_launch *l = &k->launches[k->count++];
    *l = (epi_launch){.kind = EPI_KIND_PASS};
    return l;
}

/* The launch of the mainloop itself. */
static epi_launch *add_main(epi_cuda_kernel *k, const epi_launch *l) {
    k->main = add_launch(k);
    *k->main = *l;
    k->main->kind = k->steps.plan.kind;
    return k->main;
}

/* Blocks of 256 threads for so many elements, which go on to further ones where that is not enough. */
static unsigned pass_grid(int64_t elements, const epi_cuda_target *target) {
    return (unsigned)epi_max64(1, epi_min64(epi_ceil_div(elements, 256), 16L * target->multiprocessors));
}

/* A launch that spreads so many elements over threads. */
static void spread(epi_launch *l, int64_t elements, const epi_cuda_target *target) {
    l->numbers.count = elements;
    l->how.grid = pass_grid(elements, target);
}

/* The end of the word for so many. */
static const char *s_of(unsigned count) {
    return count == 1 ? "" : "s";
}

/* ---- products ---- */

static epi_product_size size_of(const epi_emit_context *c, const epi_plan *plan, const epi_tile_program *t) {
    epi_axes batch = epi_plan_batch(plan);
    epi_product_size s = {.m = t->m,
                          .n = t->n,
                          .k = epi_axes_size(&plan->depth, c->spec->sizes),
                          .batches = epi_max64(1, epi_axes_size(&batch, c->spec->sizes)),
                          .group = plan->group,
                          .groups = plan->group ? epi_axis_size(plan->group_axis, c->spec->sizes) : 0,
                          .gathered = plan->group && plan->row_index != EPI_NO_NODE,
                          .products = plan->pair == EPI_NO_NODE ? 1 : 2,
                          .on_load = epi_plan_makes(c->spec->graph, plan),
                          .open_columns = epi_emit_grows(c, t->n),
                          .scaled = c->spec->graph->nodes[plan->product].scaled};
    for (int i = 0; i < plan->added_count; i++) /* none of which is open */
        s.k += epi_axes_size(&plan->added_depth[i], c->spec->sizes);
    double bytes = 0; /* of a row, by columns of the product */
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *at = &t->instrs[i];
        int v = at->kind == EPI_INSTR_LOAD ? at->dst : at->kind == EPI_INSTR_STORE ? at->arg[0] : -1;
        if (v >= 0 && at->full)
            bytes += (double)t->width[t->values[v].scale] / t->tile_n *
                     (double)epi_dtype_size(epi_emit_ref(c, at->node, v == at->dst ? -1 : at->tensor).type);
    }
    s.side_tiles = bytes > 2 ? (bytes < 18 ? bytes / 2 - 1 : 8) : 0; /* the model knows no more than a few */
    return s;
}

epi_product_size epi_size_now(const epi_product_size *s, const epi_open *open) {
    epi_product_size now = *s;
    now.m = epi_open_now(open, s->m);
    now.n = epi_open_now(open, s->n);
    now.k = epi_open_now(open, s->k);
    now.batches = epi_max64(1, epi_open_now(open, s->batches));
    if (s->group == EPI_GROUP_DEPTH)
        now.k = epi_ceil_div(now.k, now.batches);
    return now;
}

/* A configuration that was asked for by name, and is none of those for this. */
static epi_status wrong_config(const char *name, const char *this, epi_error *err) {
    const char *of = !strncmp(name, "rows_", 5)              ? "rows"
                     : epi_attention_config_named(name) >= 0 ? "attention"
                     : epi_config_named(name) >= 0           ? "products"
                                                             : NULL;
    return of ? epi_fail(err, EPI_ERR_UNSUPPORTED, "the configuration '%s' is for %s, but this is %s", name,
                         of, this)
              : epi_fail(err, EPI_ERR_ARGUMENT, "there is no configuration '%s'", name);
}

/* The configuration that was asked for by name. */
static epi_status find_config(const epi_cuda_target *target, int *out, epi_error *err) {
    const char *name = target->config;
    *out = epi_config_named(name);
    if (*out < 0)
        return wrong_config(name, "a product", err);
    if (!epi_config_suits(*out, false, target->arch))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the configuration '%s' is not for GPUs of %s", name,
                        target->arch->name);
    if (!epi_config_suits(*out, target->exact, target->arch))
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the configuration '%s' is for packed rounding only", name);
    return EPI_OK;
}

/* The candidates for a product, the best first. */
static epi_status list_candidates(const epi_cuda_target *target, const epi_launch *l, const epi_open *open,
                                  int *order, int *count, epi_error *err) {
    const int64_t most = INT32_MAX - 512; /* mainloops count in 32 bits; tensors may be larger than that */
    const epi_product_size *standing = &l->product.standing;
    int64_t m = epi_open_most(open, standing->m), n = epi_open_most(open, standing->n),
            k = epi_open_most(open, standing->k);
    if (m > most || n > most || k > most || epi_ceil_div(m, 64) * epi_ceil_div(n, 64) > most)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "a product of %ld x %ld x %ld is too large for one GPU kernel", (long)m, (long)n,
                        (long)k);
    *count = 1;
    if (target->config)
        return find_config(target, order, err);
    *count = epi_config_rank(&l->product.size, target->exact, target->arch, target->multiprocessors, order);
    return EPI_OK;
}

/* A counter in the workspace, for who queues for tiles. */
static void add_counter(epi_cuda_kernel *k, epi_emit_context *c, epi_launch *l) {
    l->numbers.counter = epi_round_up(c->workspace, EPI_COUNTER_BYTES);
    k->counted += l->numbers.counter + EPI_COUNTER_BYTES - c->workspace;
    c->workspace = l->numbers.counter + EPI_COUNTER_BYTES;
}

static bool has_reduction(const epi_cuda_kernel *k, const epi_plan *plan, epi_reduction reduction) {
    for (int i = 0; i < k->spec.graph->node_count; i++)
        if (k->spec.graph->live[i] && plan->placement[i].reduction == reduction)
            return true;
    return false;
}

static epi_status emit_finish(epi_cuda_kernel *k, epi_emit_context *c, const epi_step *step,
                              epi_reduction reduction, epi_error *err) {
    if (!has_reduction(k, step->plan, reduction))
        return EPI_OK;
    epi_launch *l = add_launch(k);
    l->numbers.rows = epi_axes_size(&step->plan->rows, k->spec.sizes);
    int64_t results = 0, partials = 0;
    epi_status status = epi_emit_finish(c, step, reduction, &l->text, &results, &partials, err);
    l->numbers.order = epi_min64(partials, INT32_MAX);
    l->numbers.count = results;
    l->how.grid = (unsigned)epi_max64(1, epi_ceil_div(results, EPI_FINISH_RESULTS));
    l->empty = results == 0;
    return status;
}

/* What folds the partials that products and rows leave. */
static epi_status emit_finishes(epi_cuda_kernel *k, epi_emit_context *c, const epi_step *step,
                                epi_error *err) {
    EPI_TRY(emit_finish(k, c, step, EPI_REDUCE_ROWS, err));
    return emit_finish(k, c, step, EPI_REDUCE_COLS, err);
}

/* A product of which an index names the depth of the columns' operand, with rows and columns exchanged: it is
 * rows that a warp gathers (device/gather.cuh). The epilogue must not care which is which. */
static const epi_plan *turn_product(const epi_cuda_kernel *k, const epi_cuda_target *target,
                                    const epi_plan *plan) {
    const epi_graph *g = k->spec.graph;
    bool named[2];
    for (int side = 0; side < 2; side++) {
        const epi_node *n = &g->nodes[epi_plan_operand(g, plan, side)];
        named[side] = n->op == EPI_OP_GATHER && n->arg[1] == plan->row_index;
    }
    if (plan->group != EPI_GROUP_DEPTH || !epi_arch_has(target->arch, EPI_GEMM_SM90) || named[0] ||
        !named[1] || plan->pair != EPI_NO_NODE || plan->split != EPI_OP_COUNT || plan->local_axes ||
        has_reduction(k, plan, EPI_REDUCE_ROWS) || has_reduction(k, plan, EPI_REDUCE_COLS))
        return plan;
    epi_plan *turned = epi_arena_alloc(k->arena, sizeof *turned);
    if (!turned)
        return plan;
    *turned = *plan;
    turned->row_arg = !plan->row_arg;
    turned->rows = epi_plan_batch(plan);
    epi_axes_unite(&turned->rows, &plan->cols);
    turned->cols = epi_plan_batch_rows(plan);
    return turned;
}

/* The first candidate that takes the program; the last, gemm_any, takes everything that a tile can hold.
 * Where none does, the reason is that of the first: it is the one that one would have. */
static epi_status design_product(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                                 const epi_step *step, epi_gemm_design *d, epi_launch *out, epi_error *err) {
    epi_tile_program *tile = epi_arena_alloc(k->arena, sizeof *tile);
    const epi_plan *plan = turn_product(k, target, step->plan);
    int order[EPI_MOST_CONFIGS], count = 0;
    EPI_TRY(epi_has_memory(tile, err));
    int most = plan->pair == EPI_NO_NODE ? EPI_TILE_MOST : EPI_TILE_MOST / 2;
    EPI_TRY(
        epi_tile_program_gemm(k->arena, &k->text_spec, plan, most, step->roots, step->root_count, tile, err));
    EPI_TRY(epi_tile_program_check(tile, c->steps, step, err));
    epi_product_size *standing = &out->product.standing;
    *standing = size_of(c, plan, tile);
    standing->joined = k->join.on;
    out->product.size = epi_size_now(standing, k->spec.open);
    epi_status status = list_candidates(target, out, k->spec.open, order, &count, err);
    if (status != EPI_OK)
        return status;
    if (k->like || k->join.on) {
        order[0] = k->join.on ? k->join.choice : k->like->main->choice;
        count = 1;
    }
    status = epi_fail(err, EPI_ERR_UNSUPPORTED, "every configuration would be slow");
    for (int i = 0, tried = 0; i < count && status == EPI_ERR_UNSUPPORTED; i++) {
        if (k->refused >> order[i] & 1 && !k->join.on)
            continue;
        epi_config config = *epi_config_at(order[i]);
        config.packed = !target->exact;
        config.subtile = k->join.subtile ? k->join.subtile : config.subtile;
        c->workspace = k->workspace;
        out->choice = order[i];
        status = epi_gemm_design_make(c, plan, tile, standing, &config, d, &out->text, tried++ ? NULL : err);
    }
    return status == EPI_ERR_MEMORY ? epi_fail(err, status, "out of memory") : status;
}

/* What a product's weights are loaded from. */
static void list_weights(const epi_gemm_design *d, bool copied, epi_product_launch *l) {
    for (int side = 1; side<epi_plan_operands(d->plan); side += d->terms> 1 ? 2 : 1) {
        const epi_operand *o = &d->operands[side];
        l->weights[l->weight_count++] = o->node;
        for (int i = 0; i < EPI_LOAD_PARTS && o->on_load; i++)
            if (o->parts[i].node != EPI_NO_NODE)
                l->weights[l->weight_count++] = o->parts[i].node;
        copied |= o->gather != EPI_NO_NODE || o->chosen != EPI_NO_NODE;
    }
    if (copied)
        l->weight_count = 0;
}

/* Bytes that may be loaded of spilled registers. Beside a gather these are few, and an epilogue may spill one or
 * two. The main loop has none of them: of it a deferred text has a copy for each subtile, and one more. */
static int spills_of(const epi_config *f, const epi_product_size *size) {
    if (!size->gathered || f->schedule != EPI_DEFERRED)
        return 0;
    return f->tile_n / size->products > f->subtile ? 8 : 4;
}

/* Of Hopper's product and of that of few rows there are others, if the compiler says that one would be slow; and they begin
 * before the launch ahead has ended. */
static void shape_product(epi_launch *l, const epi_config *config, int multiprocessors) {
    const epi_product_size *size = &l->product.size;
    epi_tiling tiling = epi_tiling_of(config, size, multiprocessors);
    l->overlaps = config->mainloop == EPI_GEMM_SM90 || config->mainloop == EPI_GEMM_FEW;
    l->alike = l->overlaps ? epi_config_same_text(l->choice) : 0;
    l->spills = spills_of(&l->text.config, size);
    l->numbers.rows = size->m;
    l->numbers.count = l->text.config.queue;
    l->how.grid = (unsigned)(tiling.at_once * config->cluster);
    l->how.cluster = (unsigned)l->text.config.cluster;
    l->numbers.order = tiling.raster_group;
    l->empty = size->m == 0 || size->n == 0;
}

/* Copies of operands ahead, where the design has some, and the product. */
static epi_status emit_product(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                               const epi_step *step, epi_error *err) {
    epi_gemm_design *d = epi_arena_alloc(k->arena, sizeof *d);
    epi_launch *l = epi_arena_alloc(k->arena, sizeof *l);
    EPI_TRY(epi_has_memory(d && l, err));
    epi_status status = design_product(k, c, target, step, d, l, err);
    if (status == EPI_OK && l->text.repack_count) {
        epi_launch *before = add_launch(k);
        int64_t elements = 0;
        status = epi_emit_repack(c, &l->text, &before->text, &elements, err);
        spread(before, elements, target);
    }
    if (status == EPI_OK)
        status = epi_emit_gemm(d, k->join.on, &l->text, err);
    if (status != EPI_OK)
        return status;
    for (int r = 0; r < l->text.repack_count; r++)
        k->repacked += l->text.repacks[r].bytes;
    list_weights(d, l->text.repack_count > 0, &l->product);
    if (d->config.queue)
        add_counter(k, c, l);
    k->workspace = c->workspace;
    l->joined = k->join.on;
    shape_product(l, &d->config, target->multiprocessors);
    add_main(k, l);
    k->info = (epi_kernel_info){.micro = epi_config_name(l->choice),
                                .m = l->product.size.m,
                                .n = l->product.size.n,
                                .k = l->product.size.k,
                                .products = l->product.size.products,
                                .tile_m = l->text.config.tile_m,
                                .tile_n = l->text.config.tile_n};
    return emit_finishes(k, c, step, err);
}

static double product_cost(const epi_launch *l, const epi_open *open, const epi_cuda_target *target) {
    epi_product_size size = epi_size_now(&l->product.standing, open);
    return epi_config_cost(l->choice, &size, target->exact, target->multiprocessors);
}

static void describe_product(const epi_cuda_kernel *k, epi_text *out) {
    static const char *const epilogue[] = {
        [EPI_AT_END] = "the epilogue runs at the tile's end",
        [EPI_DEFERRED] = "the epilogue runs during the next tile's mainloop",
    };
    const epi_launch *l = k->main;
    const epi_config *c = &l->text.config;
    epi_text_add(out, "tile %d x %d, %s: %u block%s of %u threads, %d stages, %d bytes of shared memory\n",
                 c->tile_m, c->tile_n, epi_config_name(l->choice), l->how.grid, s_of(l->how.grid),
                 l->how.block, c->stages, l->text.shared);
    epi_text_add(out, "%s, rounded %s\n", epilogue[c->schedule],
                 c->packed ? "once after the product and where stored (packed)" : "where stored (exact)");
    if (c->queue)
        epi_text_add(out, "clusters take tiles from a queue\n");
    epi_steps_describe_stages(&k->steps, epi_ceil_div(l->product.size.n, EPI_PARTIAL_COLS),
                              epi_ceil_div(l->product.size.m, EPI_PARTIAL_ROWS), out);
}

/* ---- attention ---- */

/* The first candidate that takes the program. Where none does, the reason is that of the first that came the
 * furthest: one of this form whose tiles are wide enough, if there is one. */
static epi_status design_attention(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                                   const epi_step *step, epi_attention_design *d, epi_launch *l,
                                   epi_kernel_text *fold, epi_error *err) {
    if (target->config && epi_attention_config_named(target->config) < 0)
        return wrong_config(target->config, "attention", err);
    epi_status status = epi_fail(err, EPI_ERR_UNSUPPORTED, "every configuration of attention would be slow");
    int furthest = -1;
    for (int i = 0; i < epi_attention_config_count() && status == EPI_ERR_UNSUPPORTED; i++) {
        const epi_attention_config *config = epi_attention_config_at(i);
        if (k->refused >> i & 1 || (k->like && i != k->like->main->choice) ||
            (target->config && strcmp(target->config, epi_attention_config_name(i)) != 0))
            continue;
        l->choice = i;
        c->workspace = k->workspace;
        epi_error why = {0};
        status = epi_attention_design_make(c, step, config, d, &l->text, fold, &why);
        if (err && (d->reached > furthest || status != EPI_ERR_UNSUPPORTED))
            *err = why;
        furthest = d->reached > furthest ? d->reached : furthest;
    }
    if (status == EPI_ERR_UNSUPPORTED && target->config && d->reason[0])
        return epi_fail(err, status, "the configuration '%s' does not fit this attention: %s", target->config,
                        d->reason);
    return status;
}

static epi_status emit_attention(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                                 const epi_step *step, epi_error *err) {
    epi_attention_design *d = epi_arena_alloc(k->arena, sizeof *d);
    epi_launch *l = epi_arena_alloc(k->arena, sizeof *l);
    epi_kernel_text *fold = epi_arena_alloc(k->arena, sizeof *fold);
    EPI_TRY(epi_has_memory(d && l && fold, err));
    epi_status status = design_attention(k, c, target, step, d, l, fold, err);
    if (status != EPI_OK)
        return status;
    const epi_open *open = k->spec.open;
    int64_t batches = epi_open_now(open, d->batches), rows = epi_open_now(open, d->batch_rows);
    int64_t tiles = batches * epi_ceil_div(rows, 64 * d->config.groups);
    if (batches * epi_round_up(rows, 64 * d->config.groups) > INT32_MAX - 512)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "attention with %ld rows is too large for one GPU kernel",
                        (long)(batches * rows));
    bool mma = epi_attention_is_mma(d), /* a block has one tile, by its number */
        split = d->variant == EPI_ATTENTION_SPLIT, folded = split && !d->alone;
    l->alike = UINT64_C(1) << l->choice;
    l->numbers.rows = batches * rows;
    l->numbers.order = (int)d->section;
    l->attention.bits = epi_attention_bits_of(d);
    if (folded) {
        l->attention.chunk = d->chunk;
        l->attention.chunks = epi_ceil_div(epi_open_now(open, d->columns), d->chunk);
        l->attention.partial_bytes = d->partial_bytes;
        tiles = batches * l->attention.chunks;
    } else if (!mma && !split) {
        add_counter(k, c, l);
    }
    l->how.grid = (unsigned)(mma && !folded ? tiles : epi_min64(tiles, target->multiprocessors));
    k->workspace = c->workspace;
    if (d->matched) {
        epi_launch *matches = add_launch(k);
        int64_t blocks = 0;
        status = epi_emit_matches(d, &matches->text, &blocks, err);
        matches->how.grid = (unsigned)blocks;
        l->attention.matched = true;
    }
    epi_launch *own = add_main(k, l);
    k->info = (epi_kernel_info){.micro = own->text.label,
                                .m = l->numbers.rows,
                                .n = epi_open_now(open, d->columns * d->column_groups),
                                .k = d->depth[0]};
    if (status == EPI_OK)
        status = epi_emit_attention(d, &own->text, err);
    if (status == EPI_OK && folded) {
        epi_launch *last = add_launch(k);
        last->text = *fold;
        last->numbers.rows = l->numbers.rows;
        last->how.grid = (unsigned)batches;
        status = epi_emit_attention_fold(d, &last->text, err);
    }
    const epi_graph *g = k->spec.graph;
    for (int t = g->input_count; t < g->tensor_count; t++) /* it stores them there itself */
        c->stored[t] |= step->plan->placement[g->tensors[t].node].reduction == EPI_REDUCE_ROWS;
    return status;
}

/* What a row of attention has the same bits in. */
static void describe_bits(const epi_attention_bits *b, epi_text *out) {
    static const char *const rows[] = {"", "a row's result is bitwise the same among many rows and among few",
                                       "a row's last bits may depend on the number of rows"},
                             *const starts[] = {"", "; keys before its first one do not change it",
                                                "; keys before its first one may change them"},
                             *const documents[] = {"", "; nor does the place of its document",
                                                   "; so may the place of its document"};
    if (b->rows)
        epi_text_add(out, "%s%s%s\n", rows[b->rows], starts[b->starts], documents[b->documents]);
}

static void describe_attention(const epi_cuda_kernel *k, epi_text *out) {
    const epi_launch *l = k->main;
    const epi_attention_launch *a = &l->attention;
    epi_text_add(out, "%s: %u block%s of %u threads, %d bytes of shared memory\n", l->text.label, l->how.grid,
                 s_of(l->how.grid), l->how.block, l->text.shared);
    describe_bits(&a->bits, out);
    if (a->matched)
        epi_text_add(out, "a kernel before this one finds the tiles that the mask's equalities allow\n");
    if (a->chunks)
        epi_text_add(out,
                     "the stream is split into %ld chunks of %ld, %ld in all; %ld bytes of partials are "
                     "combined by %u block%s\n",
                     (long)a->chunks, (long)a->chunk, (long)a->chunks * l[1].how.grid, (long)a->partial_bytes,
                     l[1].how.grid, s_of(l[1].how.grid));
}

/* ---- rows ---- */

static epi_status emit_rows(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                            const epi_step *step, epi_error *err) {
    (void)target;
    if (c->config && strncmp(c->config, "rows_", 5))
        return wrong_config(c->config, "rows", err);
    epi_launch *l = add_main(k, &(epi_launch){0});
    c->workspace = k->workspace;
    epi_status status = epi_emit_rows(c, step, &l->text, err);
    k->workspace = c->workspace;
    l->numbers.rows = epi_axes_size(&step->plan->rows, k->spec.sizes);
    l->standing_rows = epi_axes_size(&step->plan->rows, k->text_spec.sizes);
    l->how.grid = (unsigned)epi_min64(l->text.rows.blocks, INT32_MAX / 16 * 16);
    l->how.cluster = (unsigned)l->text.rows.cluster;
    k->info = (epi_kernel_info){
        .micro = l->text.label, .m = l->numbers.rows, .n = epi_axes_size(&step->plan->cols, k->spec.sizes)};
    return status == EPI_OK ? emit_finishes(k, c, step, err) : status;
}

/* Rows are in the wrong form or in the right one. */
static double rows_cost(const epi_launch *l, const epi_open *open, const epi_cuda_target *target) {
    (void)target;
    return epi_rows_are_few(epi_open_now(open, l->standing_rows)) != epi_rows_are_few(l->numbers.rows);
}

/* A block walks along its recurrences to their end: few of these leave multiprocessors idle, however long they are. */
static void describe_scans(const epi_launch *l, bool inner, epi_text *out) {
    const epi_rows_shape *s = &l->text.rows;
    epi_text_add(out, "%s: %d recurrences a block, %d steps at a time, %ld blocks%s\n", l->text.label,
                 inner ? s->rows : s->lanes * s->vector,
                 inner ? s->lanes * s->count * s->vector : s->rows * s->count, (long)s->blocks,
                 2 * s->blocks < EPI_USUAL_MULTIPROCESSORS ? ": so few that most of a GPU is idle" : "");
}

static void describe_rows(const epi_cuda_kernel *k, epi_text *out) {
    const epi_launch *l = k->main;
    const epi_rows_shape *s = &l->text.rows;
    if (k->steps.plan.scan_count)
        describe_scans(l, k->steps.plan.scan_inner, out);
    else if (s->span)
        epi_text_add(out, "%s: %d threads with %d columns and %d rows each, %d times a block, %ld blocks\n",
                     l->text.label, s->lanes, s->vector, s->span, s->rows, (long)s->blocks);
    else
        epi_text_add(out,
                     "%s: %d threads a row, %d vectors of %d columns each, %d row%s a block, %ld blocks\n",
                     l->text.label, s->lanes * s->cluster, s->count, s->vector, s->rows,
                     s_of((unsigned)s->rows), (long)s->blocks);
    epi_steps_describe_stages(&k->steps, s->blocks / s->cluster, s->lines, out);
}

/* ---- scans of products, and passes ---- */

static epi_status emit_recurrence(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                                  const epi_step *step, epi_error *err) {
    epi_launch *l = add_main(k, &(epi_launch){0});
    c->workspace = k->workspace;
    int64_t items = 0;
    epi_status status = epi_emit_recurrence(c, step->plan->recurrence, &l->text, &items, err);
    k->workspace = c->workspace;
    spread(l, 256 * items, target); /* a block for each */
    l->empty = items == 0;
    return status;
}

/* What a finishing kernel has made needs no pass, and neither do numbers, unless one is an output. */
static bool needs_pass(const epi_cuda_kernel *k, const epi_emit_context *c, const epi_step *step) {
    const epi_graph *g = k->spec.graph;
    if (step->tensor >= 0)
        return !c->stored[step->tensor];
    if (!epi_emit_is_number(c, step->node))
        return !c->finished[step->node];
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (g->tensors[t].node == step->node)
            return true;
    return false;
}

static epi_status emit_pass(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                            const epi_step *step, epi_error *err) {
    const epi_graph *g = k->spec.graph;
    if (!needs_pass(k, c, step))
        return EPI_OK;
    epi_launch *l = add_launch(k);
    spread(l, epi_pass_elements(c, step->node, step->tensor), target);
    l->pass.fewer = epi_pass_fewer(c, step->node, step->tensor);
    l->pass.blocks = pass_grid(l->pass.fewer, target);
    l->updates = l->pass.fewer > 0;
    l->empty = l->numbers.count == 0;
    l->copies = step->tensor >= 0 && k->steps.plan.placement[g->tensors[step->tensor].node].moved &&
                g->nodes[step->node].op == EPI_OP_INPUT;
    return epi_emit_pass(c, step->node, step->tensor, &l->text, err);
}

static void describe_recurrence(const epi_cuda_kernel *k, epi_text *out) {
    const epi_launch *l = k->main;
    epi_text_add(out, "it runs as %s: %u block%s\n", l->text.label, l->how.grid, s_of(l->how.grid));
}

/* ---- all of them ---- */

const epi_cuda_mainloop epi_cuda_mainloops[EPI_KIND_COUNT] = {
    [EPI_KIND_GEMM] = {emit_product, describe_product, .cost = product_cost, .hears = true},
    [EPI_KIND_ROWS] = {emit_rows, describe_rows, .cost = rows_cost, .lets = true},
    [EPI_KIND_ATTENTION] = {emit_attention, describe_attention},
    [EPI_KIND_RECURRENCE] = {emit_recurrence, describe_recurrence},
    [EPI_KIND_PASS] = {emit_pass},
};

static epi_status emit_all(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                           epi_error *err) {
    epi_status status = EPI_OK;
    for (int i = 0; i < k->steps.count && status == EPI_OK; i++) {
        const epi_step *step = &k->steps.at[i];
        status = epi_cuda_mainloops[epi_step_kind(step)].emit(k, c, target, step, err);
    }
    return status;
}

void epi_cuda_drop_launches(epi_cuda_kernel *k) {
    for (int i = 0; i < k->count; i++)
        epi_text_free(&k->launches[i].text.source);
    k->count = 0;
    k->main = NULL;
    k->info = (epi_kernel_info){.micro = ""};
}

/* What writes the texts of a kernel's launches. */
typedef epi_status emit_launches(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                                 epi_error *err);

static epi_status make_texts(epi_cuda_kernel *k, const epi_cuda_target *target, emit_launches *emit,
                             epi_error *err) {
    const epi_graph *g = k->spec.graph;
    epi_arena words = {0};
    epi_emit_context c = {.arena = k->arena,
                          .words = &words,
                          .spec = &k->text_spec,
                          .sizes = k->spec.sizes,
                          .chosen = k->like ? k->like->spec.sizes : k->spec.sizes,
                          .steps = &k->steps,
                          .config = target->config,
                          .arch = target->arch,
                          .multiprocessors = target->multiprocessors,
                          .exact = target->exact};
    c.partials = epi_arena_alloc(k->arena, ((size_t)g->node_count + 1) * sizeof *c.partials);
    c.finished = epi_arena_alloc(k->arena, (size_t)g->node_count + 1);
    c.stored = epi_arena_alloc(k->arena, (size_t)g->tensor_count + 1);
    EPI_TRY(epi_has_memory(c.partials && c.finished && c.stored, err));
    for (int i = 0; i < g->node_count; i++)
        c.partials[i] = -1;
    k->workspace = epi_round_up(k->steps.workspace, 64);
    k->repacked = k->counted = 0;
    epi_status status = emit(k, &c, target, err);
    if (status == EPI_OK && words.failed)
        status = epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    epi_arena_free(&words);
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        l->how.block = (unsigned)l->text.block;
        l->how.shared = (unsigned)l->text.shared;
        l->how.overlap = target->arch->overlap; /* every kernel waits by itself before it touches memory */
    }
    return status;
}

/* A launch for each index that is an input. */
static epi_status emit_checks(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                              epi_error *err) {
    const epi_graph *g = k->spec.graph;
    epi_status status = EPI_OK;
    for (int i = 0; i < g->node_count && status == EPI_OK; i++)
        if (epi_index_is_input(&k->spec, i)) {
            epi_launch *l = add_launch(k);
            spread(l, epi_axes_size(&epi_index_of(g, &g->nodes[i])->axes, k->spec.sizes), target);
            l->how.grid = 1;
            status = epi_emit_check(c, i, k->count - 1, &l->text, err);
        }
    k->workspace = k->count * (int64_t)sizeof(int64_t[2]);
    return status;
}

epi_status epi_cuda_emit(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err) {
    return make_texts(k, target, emit_all, err);
}

epi_status epi_cuda_emit_checks(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err) {
    return make_texts(k, target, emit_checks, err);
}

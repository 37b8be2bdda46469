/* cuda.c: the steps of a program as launches on a GPU. */
#include "cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "cuda/attention/design_attention.h"
#include "cuda/product/emit_gemm.h"
#include "cuda/jit.h"
#include "ir/index.h"

/* ---- texts ---- */

static epi_launch *add_launch(epi_cuda_kernel *k, epi_launch_kind kind) {
    epi_launch *l = &k->launches[k->count++];
    *l = (epi_launch){.kind = kind};
    return l;
}

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
    int64_t m = epi_open_most(open, l->standing.m), n = epi_open_most(open, l->standing.n),
            k = epi_open_most(open, l->standing.k);
    if (m > most || n > most || k > most || epi_ceil_div(m, 64) * epi_ceil_div(n, 64) > most)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "a product of %ld x %ld x %ld is too large for one GPU kernel", (long)m, (long)n,
                        (long)k);
    *count = 1;
    if (target->config)
        return find_config(target, order, err);
    *count = epi_config_rank(&l->size, target->exact, target->arch, target->multiprocessors, order);
    return EPI_OK;
}

/* The product, or attention, of the form that the next launches will be like. A copy of operands, or a mask's
 * records, may come before it. */
static const epi_launch *like_next(const epi_cuda_kernel *k, epi_launch_kind kind) {
    int at = k->count;
    while (k->like->launches[at].kind != kind)
        at++;
    return &k->like->launches[at];
}

/* A counter in the workspace, for who queues for tiles. */
static void add_counter(epi_cuda_kernel *k, epi_emit_context *c, epi_launch *l) {
    l->counter = epi_round_up(c->workspace, EPI_COUNTER_BYTES);
    k->counted += l->counter + EPI_COUNTER_BYTES - c->workspace;
    c->workspace = l->counter + EPI_COUNTER_BYTES;
}

static bool has_reduction(const epi_cuda_kernel *k, const epi_plan *plan, epi_reduction reduction) {
    for (int i = 0; i < k->spec.graph->node_count; i++)
        if (k->spec.graph->live[i] && plan->placement[i].reduction == reduction)
            return true;
    return false;
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
    out->standing = size_of(c, plan, tile);
    out->standing.joined = k->join.on;
    out->size = epi_size_now(&out->standing, k->spec.open);
    epi_status status = list_candidates(target, out, k->spec.open, order, &count, err);
    if (status != EPI_OK)
        return status;
    if (k->like || k->join.on) {
        order[0] = k->join.on ? k->join.choice : like_next(k, EPI_LAUNCH_GEMM)->choice;
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
        status =
            epi_gemm_design_make(c, plan, tile, &out->standing, &config, d, &out->text, tried++ ? NULL : err);
    }
    return status == EPI_ERR_MEMORY ? epi_fail(err, status, "out of memory") : status;
}

/* What a product's weights are loaded from. */
static void list_weights(const epi_gemm_design *d, epi_launch *l) {
    bool copied = l->text.repack_count > 0;
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

/* Copies of operands ahead, where the design has some, and the product. */
static epi_status emit_product(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                               const epi_step *step, epi_error *err) {
    epi_gemm_design *d = epi_arena_alloc(k->arena, sizeof *d);
    epi_launch *l = epi_arena_alloc(k->arena, sizeof *l);
    EPI_TRY(epi_has_memory(d && l, err));
    epi_status status = design_product(k, c, target, step, d, l, err);
    if (status == EPI_OK && l->text.repack_count) {
        epi_launch *before = add_launch(k, EPI_LAUNCH_REPACK);
        status = epi_emit_repack(c, &l->text, &before->text, &before->elements, err);
    }
    if (status == EPI_OK)
        status = epi_emit_gemm(d, k->join.on, &l->text, err);
    if (status != EPI_OK)
        return status;
    for (int r = 0; r < l->text.repack_count; r++)
        k->repacked += l->text.repacks[r].bytes;
    list_weights(d, l);
    if (d->config.queue)
        add_counter(k, c, l);
    k->workspace = c->workspace;
    l->kind = EPI_LAUNCH_GEMM;
    l->rows = l->size.m;
    epi_tiling tiling = epi_tiling_of(&d->config, &l->size, target->multiprocessors);
    l->blocks = tiling.at_once * d->config.cluster;
    l->raster_group = tiling.raster_group;
    l->empty = l->size.m == 0 || l->size.n == 0;
    l->joined = k->join.on;
    *add_launch(k, EPI_LAUNCH_GEMM) = *l;
    return EPI_OK;
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
        if (k->refused_attention >> i & 1 || (k->like && i != like_next(k, EPI_LAUNCH_ATTENTION)->choice) ||
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
    l->kind = EPI_LAUNCH_ATTENTION;
    l->rows = batches * rows;
    bool mma = epi_attention_is_mma(d), /* a block has one tile, by its number */
        split = d->variant == EPI_ATTENTION_SPLIT;
    l->blocks = mma ? tiles : epi_min64(tiles, target->multiprocessors);
    l->bits = epi_attention_bits_of(d);
    l->raster_group = (int)d->section;
    l->size = (epi_product_size){.m = l->rows,
                                 .n = epi_open_now(open, d->columns * d->column_groups),
                                 .k = d->depth[0],
                                 .batches = batches};
    if (split && !d->alone) {
        l->chunk = d->chunk;
        l->chunks = epi_ceil_div(epi_open_now(open, d->columns), d->chunk);
        l->partial_bytes = d->partial_bytes;
        l->blocks = epi_min64(batches * l->chunks, target->multiprocessors);
    } else if (!mma && !split) {
        add_counter(k, c, l);
    }
    k->workspace = c->workspace;
    if (d->matched) {
        epi_launch *matches = add_launch(k, EPI_LAUNCH_MATCHES);
        status = epi_emit_matches(d, &matches->text, &matches->blocks, err);
    }
    epi_launch *own = add_launch(k, EPI_LAUNCH_ATTENTION);
    *own = *l;
    if (status == EPI_OK)
        status = epi_emit_attention(d, &own->text, err);
    if (status == EPI_OK && split && !d->alone) {
        epi_launch *last = add_launch(k, EPI_LAUNCH_FOLD);
        last->text = *fold;
        last->rows = l->rows;
        last->blocks = batches;
        status = epi_emit_attention_fold(d, &last->text, err);
    }
    const epi_graph *g = k->spec.graph;
    for (int t = g->input_count; t < g->tensor_count; t++) /* it stores them there itself */
        c->stored[t] |= step->plan->placement[g->tensors[t].node].reduction == EPI_REDUCE_ROWS;
    return status;
}

/* ---- all of them ---- */

static epi_status emit_rows(epi_cuda_kernel *k, epi_emit_context *c, const epi_step *step, epi_error *err) {
    if (c->config && strncmp(c->config, "rows_", 5))
        return wrong_config(c->config, "rows", err);
    epi_launch *l = add_launch(k, EPI_LAUNCH_ROWS);
    c->workspace = k->workspace;
    epi_status status = epi_emit_rows(c, step, &l->text, err);
    k->workspace = c->workspace;
    l->rows = epi_axes_size(&step->plan->rows, k->spec.sizes);
    l->standing.m = epi_axes_size(&step->plan->rows, k->text_spec.sizes);
    return status;
}

static epi_status emit_finish(epi_cuda_kernel *k, epi_emit_context *c, const epi_step *step,
                              epi_reduction reduction, epi_error *err) {
    if (!has_reduction(k, step->plan, reduction))
        return EPI_OK;
    epi_launch *l = add_launch(k, EPI_LAUNCH_FINISH);
    l->rows = epi_axes_size(&step->plan->rows, k->spec.sizes);
    int64_t partials = 0;
    epi_status status = epi_emit_finish(c, step, reduction, &l->text, &l->elements, &partials, err);
    l->raster_group = (int)epi_min64(partials, INT32_MAX);
    l->empty = l->elements == 0;
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

static epi_status emit_all(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                           epi_error *err) {
    for (int i = 0; i < k->steps.count; i++) {
        const epi_step *step = &k->steps.at[i];
        epi_status status = EPI_OK;
        if (step->plan && step->plan->kind == EPI_KIND_RECURRENCE) {
            epi_launch *l = add_launch(k, EPI_LAUNCH_PASS);
            c->workspace = k->workspace;
            status = epi_emit_recurrence(c, step->plan->recurrence, &l->text, &l->elements, err);
            k->workspace = c->workspace;
            l->elements *= 256;
            l->empty = l->elements == 0;
        } else if (step->plan) {
            bool attention = step->plan->kind == EPI_KIND_ATTENTION;
            status = step->plan->kind == EPI_KIND_ROWS ? emit_rows(k, c, step, err)
                     : attention                       ? emit_attention(k, c, target, step, err)
                                                       : emit_product(k, c, target, step, err);
            if (status == EPI_OK && !attention)
                status = emit_finish(k, c, step, EPI_REDUCE_ROWS, err);
            if (status == EPI_OK && !attention)
                status = emit_finish(k, c, step, EPI_REDUCE_COLS, err);
        } else if (needs_pass(k, c, step)) {
            epi_launch *l = add_launch(k, EPI_LAUNCH_PASS);
            l->elements = epi_pass_elements(c, step->node, step->tensor);
            l->fewer = epi_pass_fewer(c, step->node, step->tensor);
            l->empty = l->elements == 0;
            l->copies = step->tensor >= 0 &&
                        k->steps.plan.placement[k->spec.graph->tensors[step->tensor].node].moved &&
                        k->spec.graph->nodes[step->node].op == EPI_OP_INPUT;
            status = epi_emit_pass(c, step->node, step->tensor, &l->text, err);
        }
        if (status != EPI_OK)
            return status;
    }
    return EPI_OK;
}

static void drop_launches(epi_cuda_kernel *k) {
    for (int i = 0; i < k->count; i++)
        epi_text_free(&k->launches[i].text.source);
    k->count = 0;
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
    return status;
}

/* ---- cubins ---- */

/* For Hopper's product, that of few rows and attention there are others, if the compiler says that this one would be slow. */
bool epi_launch_may_be_slow(const epi_launch *l) {
    epi_mainloop mainloop = l->text.config.mainloop;
    return l->kind != EPI_LAUNCH_ATTENTION &&
           !(l->kind == EPI_LAUNCH_GEMM && (mainloop == EPI_GEMM_SM90 || mainloop == EPI_GEMM_FEW));
}

/* Bytes that may be loaded of spilled registers. Beside a gather these are few, and an epilogue may spill one or
 * two. The main loop has none of them: of it a deferred text has a copy for each subtile, and one more. */
static int spills_of(const epi_launch *l) {
    const epi_config *f = &l->text.config;
    if (l->kind != EPI_LAUNCH_GEMM || !l->size.gathered || f->schedule != EPI_DEFERRED)
        return 0;
    return f->tile_n / l->size.products > f->subtile ? 8 : 4;
}

static epi_jit_item item_of(const epi_launch *l) {
    return (epi_jit_item){.source = l->text.source.data,
                          .name = l->text.name,
                          .arch = l->text.arch,
                          .keep_slow = epi_launch_may_be_slow(l),
                          .spills = spills_of(l)};
}

static void refuse(epi_cuda_kernel *k, const epi_launch *slow) {
    if (slow->kind == EPI_LAUNCH_ATTENTION)
        k->refused_attention |= UINT64_C(1) << slow->choice;
    else
        k->refused |= epi_config_same_text(slow->choice);
}

/* Texts that are compiled before it is known whether they are wanted: a part's next configurations, side by
 * side. One after the other, each would wait for seconds until the compiler finds the one before slow. */
enum { MOST_AHEAD = 8 };
typedef struct ahead {
    epi_launch launches[MOST_AHEAD];
    epi_jit_item items[MOST_AHEAD];
    int count, refused; /* so many of them were refused */
} ahead;

static void free_ahead(ahead *a) {
    for (int i = 0; i < a->count; i++) {
        epi_text_free(&a->launches[i].text.source);
        epi_cubin_free(&a->items[i].cubin);
    }
    memset(a, 0, sizeof *a);
}

/* What became of a text ahead; NULL: it is none of them. */
static epi_jit_item *find_ahead(ahead *a, const char *source) {
    for (int i = 0; i < a->count && source; i++)
        if (a->items[i].source && !strcmp(a->items[i].source, source))
            return &a->items[i];
    return NULL;
}

/* Moves the part's text that may be refused there, unless another configuration has the same; false: there is
 * none. */
static bool move_ahead(epi_cuda_kernel *k, ahead *a) {
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        if (l->empty || epi_launch_may_be_slow(l))
            continue;
        refuse(k, l);
        if (!find_ahead(a, l->text.source.data)) {
            a->launches[a->count] = *l;
            a->items[a->count] = item_of(&a->launches[a->count]);
            l->text.source = (epi_text){0};
        }
        a->count++;
        return true;
    }
    return false;
}

/* As many of the next configurations as there are processors. */
static void look_ahead(epi_cuda_kernel *k, const epi_cuda_target *target, ahead *a) {
    uint64_t refused = k->refused, refused_attention = k->refused_attention;
    int most = epi_parallel_processors();
    epi_error why = {0};
    free_ahead(a);
    for (bool more = true; more && a->count < most && a->count < MOST_AHEAD;) {
        more = make_texts(k, target, emit_all, &why) == EPI_OK && move_ahead(k, a);
        drop_launches(k);
    }
    k->refused = refused;
    k->refused_attention = refused_attention;
    epi_jit_compile_all(a->items, a->count);
}

/* Where the text was compiled ahead, the item has what became of it, and no source any more. */
static void take_ahead(ahead *a, epi_jit_item *item) {
    epi_jit_item *found = find_ahead(a, item->source);
    if (!found)
        return;
    *item = *found;
    item->source = NULL;
    if (found->cubin.data) /* it is the item's now */
        found->source = found->cubin.data = NULL;
}

/* Where the compiler says that a product or attention would be slow, *slow is it. */
static epi_status build(epi_cuda_kernel *k, ahead *a, const epi_launch **slow, epi_error *err) {
    epi_jit_item *items = calloc((size_t)k->count + 1, sizeof *items);
    EPI_TRY(epi_has_memory(items, err));
    for (int i = 0; i < k->count; i++)
        if (!k->launches[i].empty && !k->launches[i].joined) {
            items[i] = item_of(&k->launches[i]);
            take_ahead(a, &items[i]);
        }
    epi_jit_compile_all(items, k->count);
    epi_status status = EPI_OK;
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        if (l->empty || l->joined)
            continue;
        if (status == EPI_OK && items[i].status != EPI_OK) {
            status = items[i].status;
            if (err)
                *err = items[i].error;
            if (items[i].cubin.slow && !epi_launch_may_be_slow(l))
                *slow = l;
        }
        if (status == EPI_OK && items[i].cubin.note[0])
            snprintf(k->note, sizeof k->note, "%s", items[i].cubin.note);
        l->registers = items[i].cubin.registers;
        l->compile_seconds = items[i].cubin.seconds;
        l->cached = items[i].cubin.cached;
        if (status == EPI_OK)
            status = epi_cuda_load(k->cuda, items[i].cubin.data, l->text.name, l->text.shared, &l->library,
                                   &l->how.function, err);
        epi_cubin_free(&items[i].cubin);
    }
    free(items);
    return status;
}

/* ---- launches ---- */

/* Blocks of 256 threads for so many elements, which go on to further ones where that is not enough. */
static int64_t pass_grid(int64_t elements, int multiprocessors) {
    return epi_max64(1, epi_min64(epi_ceil_div(elements, 256), 16L * multiprocessors));
}

/* Blocks of the grid, by what they share. */
static int64_t grid_of(const epi_launch *l, int multiprocessors) {
    switch (l->kind) {
    case EPI_LAUNCH_GEMM:
    case EPI_LAUNCH_MATCHES:
    case EPI_LAUNCH_ATTENTION:
    case EPI_LAUNCH_FOLD: return l->blocks;
    case EPI_LAUNCH_ROWS: return epi_min64(l->text.rows.blocks, INT32_MAX / 16 * 16);
    case EPI_LAUNCH_CHECK: return 1;
    case EPI_LAUNCH_FINISH: return epi_max64(1, epi_ceil_div(l->elements, EPI_FINISH_RESULTS));
    default: return pass_grid(l->elements, multiprocessors);
    }
}

static void shape_launches(epi_cuda_kernel *k, const epi_cuda_target *target) {
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        l->how.grid = (unsigned)grid_of(l, target->multiprocessors);
        l->fewer_blocks = (unsigned)pass_grid(l->fewer, target->multiprocessors);
        l->how.block = (unsigned)l->text.block;
        l->how.shared = (unsigned)l->text.shared;
        l->how.overlap = target->arch->overlap; /* every kernel waits by itself before it touches memory */
        if (l->kind == EPI_LAUNCH_GEMM)
            l->how.cluster = (unsigned)l->text.config.cluster;
        if (l->kind == EPI_LAUNCH_ROWS)
            l->how.cluster = (unsigned)l->text.rows.cluster;
    }
}

/* The tensor maps, for now of a tensor that lies nowhere in particular. */
static epi_status encode_maps(epi_cuda_kernel *k, epi_error *err) {
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        const epi_kernel_text *t = &l->text;
        void *room = epi_arena_alloc(k->arena, ((size_t)t->map_count + 1) * sizeof *l->maps);
        EPI_TRY(epi_has_memory(room, err));
        l->maps = (epi_tensor_map *)(((uintptr_t)room + 63) & ~(uintptr_t)63);
        for (int m = 0; m < t->map_count && !l->empty; m++) {
            const epi_map_need *n = &t->maps[m];
            EPI_TRY(epi_cuda_map(k->cuda, &l->maps[m], n->type, n->rank, (void *)(uintptr_t)4096, n->sizes,
                                 n->strides + 1, n->box, n->swizzle, err));
        }
    }
    return EPI_OK;
}

static epi_status check_types(const epi_cuda_kernel *k, epi_error *err) {
    const epi_graph *g = k->spec.graph;
    for (int t = 0; t < g->tensor_count; t++)
        if (k->spec.types[t] == EPI_F64)
            return epi_fail(err, EPI_ERR_UNSUPPORTED,
                            "the tensor '%s' is stored as f64, which GPU kernels do not support",
                            g->tensors[t].name);
    return EPI_OK;
}

/* The texts of the part, and the shapes of their launches; none where no tile can hold it. */
static epi_status make_launches(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err) {
    epi_error why = {0};
    epi_status status = make_texts(k, target, emit_all, &why);
    if (status == EPI_ERR_UNSUPPORTED && !target->config && !k->join.on) {
        drop_launches(k);
        status = epi_steps_refuse(k->arena, &k->steps, why.message, &why);
        if (status == EPI_OK && !k->steps.refused)
            status = make_texts(k, target, emit_all, &why);
    }
    if (status != EPI_OK) {
        if (err)
            *err = why;
        return status;
    }
    shape_launches(k, target);
    return EPI_OK;
}

/* ---- forms ---- */

/* What the launches of a form would take with the sizes of this spec: products by the model; rows are in the
 * wrong form or in the right one. */
double epi_cuda_form_cost(const epi_cuda_kernel *form, const epi_spec *spec, const epi_cuda_target *target) {
    double cost = 0;
    for (int i = 0; i < form->count; i++) {
        const epi_launch *l = &form->launches[i];
        if (l->kind == EPI_LAUNCH_GEMM) {
            epi_product_size size = epi_size_now(&l->standing, spec->open);
            cost += epi_config_cost(l->choice, &size, target->exact, target->multiprocessors);
        } else if (l->kind == EPI_LAUNCH_ROWS) {
            int64_t rows = epi_open_now(spec->open, l->standing.m);
            cost += epi_rows_are_few(rows) != epi_rows_are_few(l->rows);
        }
    }
    return cost;
}

static const epi_cuda_kernel *choose_form(const epi_spec *spec, const epi_cuda_target *target) {
    const epi_cuda_kernel *best = target->forms[0];
    for (int i = 1; i < target->form_count; i++)
        if (epi_cuda_form_cost(target->forms[i], spec, target) < epi_cuda_form_cost(best, spec, target))
            best = target->forms[i];
    return best->like ? best->like : best;
}

bool epi_cuda_same_text(const epi_cuda_kernel *a, const epi_cuda_kernel *b) {
    bool same = a->count == b->count;
    for (int i = 0; i < a->count && same; i++) {
        const epi_kernel_text *x = &a->launches[i].text, *y = &b->launches[i].text;
        same = x->source.length == y->source.length &&
               !memcmp(x->source.data, y->source.data, x->source.length) && x->block == y->block &&
               x->shared == y->shared && a->launches[i].choice == b->launches[i].choice;
    }
    return same;
}

/* The launches with this kernel's sizes take the form's cubins. */
static epi_status take_form(epi_cuda_kernel *k, epi_error *err) {
    if (!epi_cuda_same_text(k, k->like)) /* texts are written from stand-ins alone */
        return EPI_INTERNAL(err, (epi_place){0}, "a kernel's text depends on a size that is open");
    for (int i = 0; i < k->count; i++) {
        epi_launch *l = &k->launches[i];
        const epi_launch *from = &k->like->launches[i];
        l->how.function = from->how.function;
        l->registers = from->registers;
        if (k->cuda) /* what is asked about texts is asked of the form */
            epi_text_free(&l->text.source);
    }
    return EPI_OK;
}

/* The form that this one, of another size, is the same as; NULL where it is one of its own. */
static const epi_cuda_kernel *find_form(const epi_cuda_kernel *k) {
    for (int i = 0; i < k->form_count; i++)
        if (epi_cuda_same_text(k, k->forms[i]))
            return k->forms[i];
    return NULL;
}

static void unload(epi_cuda_kernel *k) {
    for (int i = 0; i < k->count; i++)
        if (k->launches[i].library)
            epi_cuda_unload(k->cuda, k->launches[i].library);
}

/* Without launches yet; NULL: there is no memory. */
static epi_cuda_kernel *begin_kernel(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target) {
    epi_cuda_kernel *k = epi_arena_alloc(arena, sizeof *k);
    if (!k)
        return NULL;
    *k = (epi_cuda_kernel){
        .arena = arena, .spec = *spec, .text_spec = *spec, .cuda = target->cuda, .device = target->device};
    if (spec->open)
        memcpy(k->text_spec.sizes, spec->open->sizes, sizeof k->text_spec.sizes);
    for (int i = 0; i < target->form_count && i < EPI_MOST_FORMS; i++)
        k->forms[k->form_count++] = target->forms[i];
    return k;
}

/* What texts become on a GPU: maps, and the cubins of the form that it is like, or its own. */
static epi_status load(epi_cuda_kernel *k, ahead *a, const epi_launch **slow, epi_error *err) {
    epi_status status = k->cuda ? epi_cuda_use(k->cuda, k->device, err) : EPI_OK;
    if (status == EPI_OK && k->cuda)
        status = encode_maps(k, err);
    if (status == EPI_OK && k->like)
        return take_form(k, err);
    return status == EPI_OK && k->cuda ? build(k, a, slow, err) : status;
}

/* The texts, and the form that has the same. */
static epi_status plan_launches(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err) {
    epi_status status = make_launches(k, target, err);
    if (status == EPI_OK && !k->steps.refused && !k->like)
        k->like = find_form(k);
    return status;
}

/* With the first configuration that the compiler does not find slow. */
static epi_status build_first(epi_cuda_kernel *k, const epi_cuda_target *target, ahead *a, epi_error *err) {
    bool choice = k->cuda && !k->like && !target->config && !k->join.on;
    /* a reduction inside the tile takes registers; of another form it is known how many are too many */
    bool likely = k->steps.plan.local_axes > 0 && !k->form_count;
    for (;;) {
        bool looks = choice && likely && a->refused == a->count;
        if (looks) {
            drop_launches(k);
            look_ahead(k, target, a);
        }
        epi_status status = k->count ? EPI_OK : plan_launches(k, target, err);
        if (status != EPI_OK || k->steps.refused)
            return status;
        const epi_launch *slow = NULL;
        status = load(k, a, &slow, err);
        if (status == EPI_OK || !slow || target->config)
            return status;
        refuse(k, slow); /* so the next best */
        a->refused += a->count > 0;
        likely = true;
        epi_error_clear(err);
        unload(k);
        drop_launches(k);
    }
}

epi_status epi_cuda_plan(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target,
                         epi_cuda_kernel **out, epi_error *err) {
    epi_cuda_kernel *k = *out = begin_kernel(arena, spec, target);
    EPI_TRY(epi_has_memory(k, err));
    if (target->form_count && !target->is_form)
        k->like = choose_form(&k->spec, target);
    if (k->like)
        k->join = k->like->join;
    epi_status status = epi_steps_begin(arena, &k->spec, &k->steps, err);
    if (status == EPI_OK)
        status = check_types(k, err);
    k->steps.pages = target->arch->wgmma;
    k->steps.updates = true;
    if (status == EPI_OK)
        status = epi_steps_make(arena, &k->steps, err);
    k->workspace = epi_round_up(k->steps.workspace, 64);
    if (status != EPI_OK || !k->steps.count) /* nothing is stored, so nothing is launched */
        return status;
    k->launches = epi_arena_alloc(arena, ((size_t)k->steps.count * 4 + 4) * sizeof *k->launches);
    EPI_TRY(epi_has_memory(k->launches, err));
    return plan_launches(k, target, err);
}

epi_status epi_cuda_build(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err) {
    if (!k->steps.count || k->steps.refused)
        return EPI_OK;
    ahead *a = calloc(1, sizeof *a);
    EPI_TRY(epi_has_memory(a, err));
    epi_status status = build_first(k, target, a, err);
    free_ahead(a);
    free(a);
    return status;
}

epi_status epi_cuda_compile(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target,
                            epi_cuda_kernel **out, epi_error *err) {
    EPI_TRY(epi_cuda_plan(arena, spec, target, out, err));
    return epi_cuda_build(*out, target, err);
}

epi_status epi_cuda_plan_again(epi_cuda_kernel *k, const epi_cuda_target *target, epi_join join,
                               epi_error *err) {
    drop_launches(k);
    k->join = join;
    k->like = NULL;
    return plan_launches(k, target, err);
}

/* A launch for each index that is an input. */
static epi_status emit_checks(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                              epi_error *err) {
    const epi_graph *g = k->spec.graph;
    (void)target;
    epi_status status = EPI_OK;
    for (int i = 0; i < g->node_count && status == EPI_OK; i++)
        if (epi_index_is_input(&k->spec, i)) {
            epi_launch *l = add_launch(k, EPI_LAUNCH_CHECK);
            l->elements = epi_axes_size(&epi_index_of(g, &g->nodes[i])->axes, k->spec.sizes);
            status = epi_emit_check(c, i, k->count - 1, &l->text, err);
        }
    k->workspace = k->count * (int64_t)sizeof(int64_t[2]);
    return status;
}

epi_status epi_cuda_compile_checks(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target,
                                   const epi_cuda_kernel *like, epi_cuda_kernel **out, int **nodes,
                                   epi_error *err) {
    int count = 0;
    for (int i = 0; i < spec->graph->node_count; i++)
        count += epi_index_is_input(spec, i);
    if (!count)
        return EPI_OK;
    epi_cuda_kernel *k = *out = begin_kernel(arena, spec, target);
    epi_launch *launches = epi_arena_alloc(arena, (size_t)count * sizeof *launches);
    *nodes = epi_arena_alloc(arena, (size_t)count * sizeof **nodes);
    EPI_TRY(epi_has_memory(k && launches && *nodes, err));
    for (int i = spec->graph->node_count - 1; i >= 0; i--)
        if (epi_index_is_input(spec, i))
            (*nodes)[--count] = i;
    k->launches = launches;
    k->like = like;
    const epi_launch *slow = NULL;
    ahead none = {.count = 0};
    epi_status status = make_texts(k, target, emit_checks, err);
    shape_launches(k, target);
    return status == EPI_OK ? load(k, &none, &slow, err) : status;
}

void epi_cuda_kernel_free(epi_cuda_kernel *k) {
    if (!k || !k->launches)
        return;
    unload(k);
    drop_launches(k);
}

/* ---- run ---- */

typedef struct block_of_arguments {
    _Alignas(64) unsigned char bytes[EPI_MAX_MAPS * sizeof(epi_tensor_map) + EPI_MAX_POINTERS * 8 + 64];
} block_of_arguments;

static void *address(const epi_cuda_kernel *k, int node, int tensor, const epi_tensor *tensors,
                     unsigned char *workspace) {
    if (tensor == EPI_POINTER_WORKSPACE)
        return workspace;
    if (tensor < 0)
        tensor = k->steps.homes[node].tensor;
    return tensor >= 0 ? tensors[tensor].data : workspace + k->steps.homes[node].offset;
}

/* Where the pointer that a launch needs leads. */
static const void *pointer_at(const epi_cuda_kernel *k, const epi_launch *l, int i, const epi_tensor *tensors,
                              unsigned char *workspace) {
    const epi_pointer_need *need = &l->text.pointers[i];
    return (unsigned char *)address(k, need->node, need->tensor, tensors, workspace) + need->offset;
}

epi_status epi_launch_write(const epi_cuda_kernel *k, const epi_launch *l, const epi_tensor *tensors,
                            unsigned char *workspace, const epi_parameter *how, unsigned char *to,
                            epi_error *err) {
    const epi_kernel_text *t = &l->text;
    for (int i = 0; i < t->map_count && !l->empty; i++) {
        const epi_map_need *m = &t->maps[i];
        unsigned char *map = to + (size_t)i * sizeof(epi_tensor_map);
        memcpy(map, &l->maps[i], sizeof l->maps[i]);
        const unsigned char *data = address(k, m->node, m->tensor, tensors, workspace);
        EPI_TRY(epi_cuda_map_move(k->cuda, (epi_tensor_map *)(void *)map, data + m->offset, err));
    }
    unsigned char *p = to + (size_t)(how->maps ? how->maps : 1) * sizeof(epi_tensor_map);
    for (int i = 0; i < t->pointer_count; i++) {
        const void *at = pointer_at(k, l, i, tensors, workspace);
        memcpy(p + 8 * i, &at, 8);
    }
    p += (size_t)(how->pointers ? how->pointers : 1) * 8;
    memcpy(p, how->numbers, sizeof how->numbers);
    p += sizeof how->numbers;
    for (int i = 0; k->spec.open && i < k->spec.open->count; i++)
        memcpy(p + 8 * i, &k->spec.open->units[i], 8);
    return EPI_OK;
}

static epi_status start(const epi_cuda_kernel *k, const epi_launch *l, const epi_tensor *tensors,
                        unsigned char *workspace, void *stream, int beside, bool alone, epi_error *err) {
    const epi_kernel_text *t = &l->text;
    block_of_arguments args;
    epi_cuda_launch how = l->how;
    bool late = alone && (l->kind == EPI_LAUNCH_ROWS || epi_launch_can_overlap(l)); /* it starts others */
    how.overlap &= !alone || late;
    beside |= late ? EPI_OVERLAP_NEXT : 0;
    bool in_place = l->fewer && pointer_at(k, l, 0, tensors, workspace) ==
                                    pointer_at(k, l, t->pointer_count - 1, tensors, workspace);
    if (in_place)
        how.grid = l->fewer_blocks;
    int64_t elements = in_place ? l->fewer : l->elements;
    epi_parameter parameter = {.maps = t->map_count,
                               .pointers = t->pointer_count,
                               .numbers = {l->rows, l->raster_group,
                                           l->kind == EPI_LAUNCH_GEMM   ? t->config.queue | beside
                                           : l->kind == EPI_LAUNCH_ROWS ? late
                                                                        : elements,
                                           (int64_t)(uintptr_t)workspace + l->counter}};
    EPI_TRY(epi_launch_write(k, l, tensors, workspace, &parameter, args.bytes, err));
    return epi_cuda_start(k->cuda, &how, args.bytes, stream, err);
}

bool epi_launch_can_overlap(const epi_launch *l) {
    epi_mainloop mainloop = l->text.config.mainloop;
    return l->kind == EPI_LAUNCH_GEMM && (mainloop == EPI_GEMM_SM90 || mainloop == EPI_GEMM_FEW) &&
           !l->empty && l->how.overlap;
}

/* Is there nothing to do, for these tensors? */
static bool is_idle(const epi_cuda_kernel *k, const epi_launch *l, const epi_tensor *tensors,
                    unsigned char *workspace) {
    if (l->empty || !l->copies)
        return l->empty;
    const epi_pointer_need *from = &l->text.pointers[0], *to = &l->text.pointers[l->text.pointer_count - 1];
    return l->text.pointer_count == 2 && address(k, from->node, from->tensor, tensors, workspace) ==
                                             address(k, to->node, to->tensor, tensors, workspace);
}

/* A copy ahead of a product waits as every launch does, and then the product waits for it. */
epi_status epi_cuda_run(const epi_cuda_kernel *k, const epi_tensor *tensors, void *workspace, void *stream,
                        int beside, bool *alone, epi_error *err) {
    epi_status status = epi_cuda_use(k->cuda, k->device, err);
    int last = k->count - 1;
    while (last > 0 && is_idle(k, &k->launches[last], tensors, workspace))
        last--;
    for (int i = 0, first = 1; i < k->count && status == EPI_OK; i++) {
        if (is_idle(k, &k->launches[i], tensors, workspace))
            continue;
        status =
            start(k, &k->launches[i], tensors, workspace, stream,
                  (first ? beside & (EPI_OVERLAP_LAST | EPI_GROUPS_KNOWN) : 0) |
                      (i == last ? beside & EPI_OVERLAP_NEXT : 0) | (*alone ? 0 : beside & EPI_WEIGHTS_THERE),
                  *alone, err);
        first = *alone = 0;
    }
    return status;
}

int epi_cuda_launches(const epi_cuda_kernel *k, const epi_tensor *tensors, void *workspace) {
    int launches = 0;
    for (int i = 0; i < k->count; i++)
        launches += !is_idle(k, &k->launches[i], tensors, workspace);
    return launches;
}

const epi_launch *epi_cuda_joined(const epi_cuda_kernel *k) {
    for (int i = 0; i < k->count; i++)
        if (k->launches[i].joined)
            return &k->launches[i];
    return NULL;
}

epi_status epi_cuda_run_around(const epi_cuda_kernel *k, const epi_tensor *tensors, void *workspace,
                               void *stream, bool behind, bool *first, bool *alone, epi_error *err) {
    const epi_launch *product = epi_cuda_joined(k);
    EPI_TRY(epi_cuda_use(k->cuda, k->device, err));
    for (int i = 0; i < k->count; i++) {
        const epi_launch *l = &k->launches[i];
        if (l == product || (l > product) != behind || is_idle(k, l, tensors, workspace))
            continue;
        EPI_TRY(start(k, l, tensors, workspace, stream, 0, *alone, err));
        *first = *alone = false;
    }
    return EPI_OK;
}

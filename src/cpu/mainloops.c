/* mainloops.c: the table of the CPU's mainloops: how each is built, run and described. */
#include "cpu/attention/attention.h"
#include "cpu/cpu.h"
#include "cpu/product/gemm.h"
#include "cpu/rows/rows.h"

/* A step needs so many bytes beside its operands and results. */
static void take_scratch(epi_cpu_kernel *k, int64_t bytes) {
    k->scratch_bytes = epi_max64(k->scratch_bytes, bytes);
}

/* ---- products ---- */

static epi_status build_gemm(epi_cpu_kernel *k, const epi_step *s, epi_error *err) {
    epi_dtype types[EPI_MAX_OPERANDS];
    epi_gemm *gemm = k->loop = epi_arena_alloc(k->arena, sizeof *gemm);
    EPI_TRY(epi_has_memory(gemm, err));
    for (int side = 0; side < epi_plan_operands(s->plan); side++)
        types[side] = k->steps.homes[epi_plan_source(k->spec.graph, s->plan, side)].type;
    EPI_TRY(
        epi_gemm_build(k->arena, &k->spec, s->plan, k->strips, types, s->roots, s->root_count, gemm, err));
    take_scratch(k, gemm->scratch);
    k->partials = gemm->epilogue.partials;
    k->info = (epi_kernel_info){.micro = gemm->micro->name,
                                .m = gemm->m,
                                .n = gemm->n,
                                .products = gemm->products,
                                .tile_m = EPI_TILE_M,
                                .tile_n = gemm->epilogue.tile.tile_n};
    for (int t = 0; t < gemm->terms; t++)
        k->info.k += gemm->k[t];
    return epi_tile_program_check(&gemm->epilogue.tile, &k->steps, s, err);
}

static void run_gemm(const epi_cpu_kernel *k, const epi_step *s, const epi_ref *homes, const epi_ref *tensors,
                     unsigned char *scratch) {
    (void)s;
    epi_gemm_run(k->loop, homes, tensors, scratch);
}

static void describe_gemm(const epi_cpu_kernel *k, epi_text *out) {
    const epi_gemm *gemm = k->loop;
    const epi_epilogue *e = &gemm->epilogue;
    long tiles = (long)(e->row_tiles * e->col_tiles);
    epi_text_add(out, "tile %d x %d, %ld tile%s, micro-kernel %s (%d x %d)\n", EPI_TILE_M, e->tile.tile_n,
                 tiles, tiles == 1 ? "" : "s", gemm->micro->name, gemm->micro->mr, gemm->micro->nr);
    epi_steps_describe_stages(&k->steps, e->col_tiles, e->row_tiles, out);
}

/* ---- rows ---- */

static epi_status build_rows(epi_cpu_kernel *k, const epi_step *s, epi_error *err) {
    epi_rows *rows = k->loop = epi_arena_alloc(k->arena, sizeof *rows);
    EPI_TRY(epi_has_memory(rows, err));
    EPI_TRY(epi_rows_build(k->arena, &k->spec, s->plan, k->strips, s->roots, s->root_count, rows, err));
    take_scratch(k, rows->scratch);
    k->partials = rows->partial_count;
    k->info = (epi_kernel_info){
        .micro = "", .m = rows->tile.m, .n = rows->tile.n, .tile_m = rows->band, .tile_n = rows->stretch};
    return epi_tile_program_check(&rows->tile, &k->steps, s, err);
}

static void run_rows(const epi_cpu_kernel *k, const epi_step *s, const epi_ref *homes, const epi_ref *tensors,
                     unsigned char *scratch) {
    (void)s;
    epi_rows_run(k->loop, homes, tensors, scratch);
}

static void describe_rows(const epi_cpu_kernel *k, epi_text *out) {
    const epi_rows *r = k->loop;
    if (r->tile.plan->flat)
        epi_text_add(out, "one long row, %ld elements at a time", (long)r->stretch);
    else
        epi_text_add(out, "%d row%s at a time, %ld column%s of each", r->band, r->band == 1 ? "" : "s",
                     (long)epi_min64(r->stretch, r->tile.n), r->stretch == 1 ? "" : "s");
    if (r->tile.phases > 1)
        epi_text_add(out, ", %d passes over a row", r->tile.phases);
    if (r->keep_count)
        epi_text_add(out, ", %d value%s kept between passes", r->keep_count, r->keep_count == 1 ? "" : "s");
    epi_text_add(out, "\n");
    epi_steps_describe_stages(&k->steps, r->col_pieces, r->row_pieces, out);
}

/* ---- attention ---- */

static epi_status build_attention(epi_cpu_kernel *k, const epi_step *s, epi_error *err) {
    epi_attention_loop *a = k->loop = epi_arena_alloc(k->arena, sizeof *a);
    EPI_TRY(epi_has_memory(a, err));
    EPI_TRY(epi_attention_build(k->arena, &k->spec, s->plan, k->strips, k->steps.homes, s->roots,
                                s->root_count, a, err));
    take_scratch(k, a->scratch);
    k->info = (epi_kernel_info){.micro = a->streams[0].micro->name,
                                .m = a->score[0].tile.m,
                                .n = a->n,
                                .k = a->streams[0].feature_count,
                                .tile_m = EPI_TILE_M,
                                .tile_n = EPI_STREAM_TILE};
    for (int i = 0; i < a->programs; i++)
        EPI_TRY(epi_tile_program_check(&a->score[i].tile, &k->steps, s, err));
    for (int v = 0; v < epi_attention_outs(a->a); v++)
        EPI_TRY(epi_tile_program_check(&a->out[v].tile, &k->steps, s, err));
    return EPI_OK;
}

static void run_attention(const epi_cpu_kernel *k, const epi_step *s, const epi_ref *homes,
                          const epi_ref *tensors, unsigned char *scratch) {
    (void)s;
    epi_attention_run(k->loop, homes, tensors, scratch);
}

static void describe_attention(const epi_cpu_kernel *k, epi_text *out) {
    const epi_attention_loop *a = k->loop;
    const epi_micro *u = a->streams[0].micro;
    epi_text_add(out, "score tile %d x %d, %ld tile%s of rows, micro-kernel %s (%d x %d)\n", EPI_TILE_M,
                 EPI_STREAM_TILE, (long)a->row_tiles, a->row_tiles == 1 ? "" : "s", u->name, u->mr, u->nr);
    if (a->split)
        epi_text_add(out, "threads also split the stream, into %ld chunks of %d columns\n", (long)a->chunks,
                     EPI_STREAM_CHUNK);
    epi_steps_describe_stages(&k->steps, 1, 1, out);
}

/* ---- scans of products, which are made as they run ---- */

static epi_status build_recurrence(epi_cpu_kernel *k, const epi_step *s, epi_error *err) {
    (void)err;
    take_scratch(k, epi_recurrence_scratch(&k->spec, s->plan->recurrence));
    return EPI_OK;
}

static void run_recurrence(const epi_cpu_kernel *k, const epi_step *s, const epi_ref *homes,
                           const epi_ref *tensors, unsigned char *scratch) {
    (void)tensors;
    epi_recurrence_run(k, s->plan->recurrence, homes, scratch);
}

/* ---- passes ---- */

/* Products are mainloops, and another name of a value needs no step. */
static epi_status build_pass(epi_cpu_kernel *k, const epi_step *s, epi_error *err) {
    const epi_node *n = &k->spec.graph->nodes[s->node];
    take_scratch(k, epi_pass_scratch(k->spec.threads) + epi_move_scratch(&k->spec, s->node));
    return s->tensor < 0 && (epi_op_is_product(n->op) || epi_op_is_view(n->op))
               ? EPI_INTERNAL(err, n->place, "no pass makes it")
               : EPI_OK;
}

static void run_pass(const epi_cpu_kernel *k, const epi_step *s, const epi_ref *homes, const epi_ref *tensors,
                     unsigned char *scratch) {
    if (s->tensor >= 0)
        epi_pass_copy(k, &tensors[s->tensor], &homes[s->node], &tensors[s->tensor].axes);
    else
        epi_pass_run(k, s->node, homes, scratch);
}

/* ---- all of them ---- */

const epi_cpu_mainloop epi_cpu_mainloops[EPI_KIND_COUNT] = {
    [EPI_KIND_GEMM] = {build_gemm, run_gemm, describe_gemm},
    [EPI_KIND_ROWS] = {build_rows, run_rows, describe_rows},
    [EPI_KIND_ATTENTION] = {build_attention, run_attention, describe_attention},
    [EPI_KIND_RECURRENCE] = {build_recurrence, run_recurrence, NULL},
    [EPI_KIND_PASS] = {build_pass, run_pass, NULL},
};

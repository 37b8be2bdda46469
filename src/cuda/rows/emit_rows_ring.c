/* emit_rows_ring.c: the ring in shared memory that rows come through, on Hopper.
 *
 * Every team has stages of its own, and its first thread requests its rows from TMA, tensor by tensor. What
 * holds in the loop over rows, for every stage:
 *
 * - The mbarrier `full` completes when all bytes of a request have come. A thread reads the stage only after
 *   it has waited for that itself.
 * - The mbarrier `empty` completes when all warps of the team have arrived, each with one lane and after a
 *   __syncwarp: the reads of all its lanes come before. The first thread waits for it before it requests the
 *   next row to that stage.
 *
 * So a stage belongs to TMA from a request until `full`, and to the team's threads from there until `empty`.
 * Use u of a stage is phase u of both barriers. All rows that are requested are waited for. */
#include "cuda/rows/emit_rows.h"

void epi_rows_put_barriers(epi_text *t) {
    PUT("  __shared__ u64 bars[2 * STAGES * TEAMS];\n"
        "  const u32 full = smem_u32(bars + 2 * STAGES * team), empty = full + 8 * STAGES;\n"
        "  if (threadIdx.x %% TEAM == 0) {\n    for (int s = 0; s < STAGES; s++) { mbar_init(full + 8 * s, "
        "1); mbar_init(empty "
        "+ 8 * s, TEAM / 32); }\n    mbar_fence();\n  }\n  __syncthreads();\n");
}

/* One bulk copy for every stretch of a row: a load to a stage, or a prefetch to the L2 cache. */
static void put_copies(const epi_rows_design *d, epi_text *t, bool load) {
    const char *rank = d->shape.cluster > 1 ? "rank" : "0";
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_rows_access *a = &d->access[i];
        long size = (long)epi_dtype_size(a->ref.type);
        const char *half = a->fetched && epi_rows_loads_half(d, i) ? " / 2" : "";
        for (int split = 0; split < epi_rows_pieces(a) && a->fetched; split++) {
            const char *to =
                epi_emit_text(d->c, "bulk_load(to + %ld, ", (long)(a->staged + split * a->bytes));
            PUT("      %s(const char *)P.ptr[%d] + %ld * (%s + %s + %s * (SLICE%s)), columns * %ld%s%s);   "
                "// %s\n",
                load ? to : "bulk_prefetch(", a->pointer, size, epi_rows_row(d, i),
                epi_emit_count(d->c, split * a->cols.part, "LL"), rank, half, size, half,
                load ? ", full + 8 * s" : "", epi_emit_name(d->c, d->tile.instrs[i].node));
        }
    }
}

void epi_rows_put_ring(const epi_rows_design *d, epi_text *t) {
    const char *rank = d->shape.cluster > 1 ? "rank" : "0";
    bool none = d->shape.cluster > 1; /* the last blocks of a cluster may have no columns */
    PUT("  const int columns = (int)%smin((i64)SLICE, N - %s * SLICE)%s;\n"
        "  const auto request = [&](i64 row0, int s) {\n    const int rows = (int)min((i64)(TEAM / LANES), M "
        "- "
        "row0);\n    int bytes = 0;\n",
        none ? "max((i64)0, " : "", rank, none ? ")" : "");
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->access[i].fetched)
            PUT("    bytes += columns * %ld%s;\n", (long)epi_dtype_size(d->access[i].ref.type),
                epi_rows_is_coarse(d, d->tile.instrs[i].dst) ? " / 2" : "");
    PUT("    mbar_expect(full + 8 * s, rows * bytes);\n    for (int r = 0; r < rows%s; r++) {\n"
        "      const i64 row = row0 + r;\n      const u32 to = smem_u32(ring) + ((team * STAGES + s) * (TEAM "
        "/ LANES) + r) * ROW_BYTES;\n",
        none ? " && columns" : "");
    put_copies(d, t, true);
    PUT("    }\n  };\n"
        "  if (threadIdx.x %% TEAM == 0)\n    for (int s = 0; s < STAGES; s++)\n"
        "      if (first + s * stride < M) request(first + s * stride, s);\n  u32 turns = 0;\n");
}

/* A row that a later block will take is prefetched to the L2 cache while this one is worked on. */
static void put_prefetch(const epi_rows_design *d, epi_text *t) {
    PUT("    if (threadIdx.x %% TEAM == 0 && row0 + %d < M%s) {\n      const i64 row = row0 + %d;\n",
        d->shape.prefetch, d->shape.cluster > 1 ? " && columns" : "", d->shape.prefetch);
    put_copies(d, t, false);
    PUT("    }\n");
}

/* Asks for the row that the stage of the turn before has room for, once all warps have read that stage; then
 * waits for this turn's row. */
void epi_rows_put_take(const epi_rows_design *d, epi_text *t) {
    PUT("    const int stage = turns %% STAGES;\n"
        "    if (turns && threadIdx.x %% TEAM == 0 && row0 + (STAGES - 1) * stride < M) {\n"
        "      const u32 last = turns - 1;\n      mbar_wait(empty + 8 * (last %% STAGES), last / STAGES & "
        "1);\n"
        "      request(row0 + (STAGES - 1) * stride, last %% STAGES);\n    }\n"
        "    mbar_wait(full + 8 * stage, turns / STAGES & 1);\n"
        "    const u32 from = smem_u32(ring) + ((team * STAGES + stage) * (TEAM / LANES) + sub) * "
        "ROW_BYTES;\n");
    if (d->shape.prefetch)
        put_prefetch(d, t);
}

void epi_rows_put_release(epi_text *t) {
    PUT("    __syncwarp();\n    if (threadIdx.x %% 32 == 0) mbar_arrive(empty + 8 * stage);\n    turns++;\n");
}

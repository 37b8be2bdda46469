/* emit_window.c: writes the source of a kernel of rows that shift values they load or compute, from its
 * design (window_shape.c).
 *
 *     what is the same for every row
 *     for each chunk of rows {
 *         it has come to the ring
 *         for each of them { elements, sums, stores, each of a row so far behind as its lag; windows move on }
 *         a later chunk is asked for
 *     }
 *     sums */
#include "cuda/rows/emit_rows.h"

static bool is_walked(const epi_rows_design *d, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    return !epi_rows_is_alias(s) && (s->dst < 0 || epi_rows_is_walked(d, s->dst));
}

/* Does its row come to the ring? */
static bool is_staged(const epi_rows_design *d, int i) {
    return d->access[i].fetched && d->access[i].bytes;
}

/* The row `lag` behind the walk: its place among all rows and along its axis, that or the nearest which there is; is there
 * such a one; and is it this thread's own? */
static void put_places(const epi_rows_design *d, epi_text *t) {
    int most = 0;
    for (int i = 0; i < d->tile.instr_count; i++)
        most = (int)epi_max64(most, is_walked(d, i) ? d->access[i].lag : 0);
    for (int lag = 0; lag <= most; lag++)
        PUT("      const i64 time%d = min(max((i64)p - %d, 0ll), T - 1), row%d = batch * T + time%d;\n"
            "      const bool there%d = (u32)(p - %d) < (u32)T, own%d = (u32)(p - %d - first) < own;\n"
            "      (void)row%d; (void)there%d; (void)own%d;\n",
            lag, lag, lag, lag, lag, lag, lag, lag, lag, lag, lag);
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        if (s->kind == EPI_INSTR_SHIFT && is_walked(d, i)) /* a far one */
            PUT("      const i64 t%d = min(max((i64)p - %d - (%ldLL), 0ll), T - 1);\n", i, d->access[i].lag,
                (long)epi_shift_by(&d->g->nodes[s->node]));
    }
}

/* ---- the ring ---- */

/* Where the next chunk of each tensor begins, which is kept: working it out would take more than the copies do. */
static void put_pointers(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_rows_access *a = &d->access[i];
        if (is_staged(d, i))
            PUT("  const u8 *next%d = held((const u8 *)P.ptr[%d] + %ld * (at%d + (i64)(begin - %d) * %s + "
                "%s));\n",
                i, a->pointer, (long)epi_dtype_size(a->ref.type), i, a->lag,
                epi_emit_count(d->c, a->step, "LL"), epi_rows_vector(d, i, 0));
    }
}

/* Rows of one tensor that come to a stage. */
static void put_copies(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_rows_access *a = &d->access[i];
        long size = (long)epi_dtype_size(a->ref.type), vector = size * d->shape.vector;
        if (!is_staged(d, i))
            continue;
        const char *step = epi_emit_text(d->c, "%ld * %s", size, epi_emit_count(d->c, a->step, "LL"));
        PUT("    UNROLL for (int i = 0; i < NV; i++)\n"
            "      copy<%ld>(to + %ld * (int)threadIdx.x + %ld + %ld * i * THREADS, next%d + i * (%s), "
            "(u32)(ahead + i - "
            "%d) < end);   // %s\n"
            "    next%d += NV * (%s);\n",
            vector, vector, (long)a->staged, vector, i, step, a->lag,
            epi_emit_name(d->c, d->tile.instrs[i].node), i, step);
    }
}

/* Of rows that nobody is to have, before the first and behind the last that is wanted, there come zeros. */
static void put_ring(const epi_rows_design *d, epi_text *t) {
    put_pointers(d, t);
    PUT("  const u32 end = last > first ? (u32)min(T, (i64)last + %d) : 0;\n  int ahead = begin;\n"
        "  const auto request = [&](int chunk) {\n"
        "    const u32 to = smem_u32(ring) + chunk %% STAGES * STAGE_BYTES;\n",
        d->beyond);
    put_copies(d, t);
    PUT("    ahead += NV;\n  };\n"
        "  for (int s = 0; s < STAGES; s++) {\n    if (s < chunks) request(s);\n    cp_commit();\n  }\n");
}

/* ---- a row ---- */

static void put_store(const epi_rows_design *d, epi_text *t, int i) {
    bool columns = epi_rows_has_columns(d, d->tile.instrs[i].arg[0]);
    PUT(columns ? "        if (own%d) {\n" : "        if (own%d && stripe == 0) {\n", d->at);
    if (columns)
        epi_rows_put_store(d, t, i);
    else
        epi_rows_put_short(d, t, i, "        ");
    PUT("        }\n");
}

/* What is made for each row. What is shifted is zero where there is none. */
static void put_value(const epi_rows_design *d, epi_text *t, int i) {
    int v = d->tile.instrs[i].dst;
    const char *name = epi_rows_name(d, v);
    epi_scan_put_value(d, t, i, "        ");
    if (!d->access[i].shifted || is_staged(d, i))
        return;
    if (epi_rows_has_columns(d, v))
        PUT("        EACH(VEC) %s[e] = there%d ? %s[e] : 0.f;\n", name, d->at, name);
    else
        PUT("        %s = there%d ? %s : 0.f;\n", name, d->at, name);
}

/* The product of elements that a sum takes, and nothing else: it is added unrounded. Or NULL. */
static const epi_instr *summed_product(const epi_rows_design *d, int sum) {
    const epi_instr *s = &d->tile.instrs[sum];
    const epi_instr *m = s->kind == EPI_INSTR_PARTIAL_COLS && epi_ops[s->op].adds
                             ? &d->tile.instrs[d->maker[s->arg[0]]]
                             : NULL;
    int uses = 0;
    for (int i = 0; m && i < d->tile.instr_count; i++)
        for (int a = 0; a < 3; a++)
            uses += d->tile.instrs[i].arg[a] == m->dst;
    return uses == 1 && m->kind == EPI_INSTR_MAP && m->op == EPI_OP_MUL ? m : NULL;
}

/* Is it such a product? */
static bool is_summed(const epi_rows_design *d, int i) {
    bool summed = false;
    for (int j = i + 1; j < d->tile.instr_count && d->tile.instrs[i].op == EPI_OP_MUL; j++)
        summed |= summed_product(d, j) == &d->tile.instrs[i];
    return summed;
}

static void put_sum(const epi_rows_design *d, epi_text *t, int i) {
    const epi_instr *m = summed_product(d, i);
    if (m)
        PUT("        if (own%d) EACH(VEC) sum%d[e].v = __fmaf_rn(%s, %s, sum%d[e].v);", d->at, i,
            epi_rows_operand(d, m->arg[0], true), epi_rows_operand(d, m->arg[1], true), i);
    else
        PUT("        if (own%d) EACH(VEC) sum%d[e].take(%s);", d->at, i,
            epi_rows_operand(d, d->tile.instrs[i].arg[0], true));
    epi_rows_put_comment(d, t, d->tile.instrs[i].node);
}

static void put_instr(const epi_rows_design *d, epi_text *t, int i) {
    epi_rows_design here = *d; /* as it is for this row */
    here.at = d->access[i].lag;
    if (epi_rows_stores(&d->tile.instrs[i]))
        put_store(&here, t, i);
    else if (d->tile.instrs[i].kind == EPI_INSTR_PARTIAL_COLS)
        put_sum(&here, t, i);
    else if (!is_summed(d, i))
        put_value(&here, t, i);
}

/* What is made for the row in hand, or each of those before it that are kept. */
static void put_windows(const epi_rows_design *d, epi_text *t, bool begin) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        if (!is_walked(d, i) || d->tile.instrs[i].dst < 0)
            continue;
        epi_rows_design here = *d;
        int v = d->tile.instrs[i].dst;
        bool columns = epi_rows_has_columns(d, v);
        for (int k = d->access[i].kept; k > 0; k--) {
            here.at = d->access[i].lag + k;
            const char *to = epi_rows_name(&here, v);
            here.at--;
            if (begin)
                PUT(columns ? "  float %s[VEC]; EACH(VEC) %s[e] = 0.f;\n" : "  float %s; %s = 0.f;\n", to,
                    to);
            else if (columns)
                PUT("        EACH(VEC) %s[e] = %s[e];\n", to, epi_rows_name(&here, v));
            else
                PUT("        %s = %s;\n", to, epi_rows_name(&here, v));
        }
    }
}

static void put_row(const epi_rows_design *d, epi_text *t) {
    const epi_rows_phase *p = &d->phases[0];
    PUT("    UNROLL for (int i = 0; i < NV; i++) {\n"
        "      const int p = begin + chunk * NV + i, l = (i * THREADS + threadIdx.x) * VEC;\n      "
        "(void)l;\n");
    put_places(d, t);
    for (int n = 0; n < p->count; n++)
        if (is_walked(d, p->instrs[n]))
            put_instr(d, t, p->instrs[n]);
    put_windows(d, t, false);
    PUT("    }\n");
}

static void put_chunks(const epi_rows_design *d, epi_text *t) {
    bool ring = d->shape.row_bytes > 0;
    PUT("  const int begin = first + (%d), chunks = (last - first + %d + NV - 1) / NV;\n"
        "  const u32 own = in ? last - first : 0;\n",
        d->begin, d->beyond - d->begin);
    if (ring)
        put_ring(d, t);
    put_windows(d, t, true);
    PUT("  for (int chunk = 0; chunk < chunks; chunk++) {\n");
    if (ring)
        PUT("    cp_wait<STAGES - 1>();\n    const u32 from = smem_u32(ring) + chunk %% STAGES * "
            "STAGE_BYTES;\n");
    put_row(d, t);
    if (ring)
        PUT("    if (chunk + STAGES < chunks) request(chunk + STAGES);\n    cp_commit();\n");
    PUT("  }\n");
}

/* ---- the kernel ---- */

/* The rows and columns of this thread; beyond the last it has none, and the last. */
static void put_piece(epi_text *t) {
    PUT("  const int lane = threadIdx.x %% LANES, team = threadIdx.x / LANES;\n"
        "  const i64 stripes = (N + LINES - 1) / LINES, stripe = blockIdx.x %% stripes, line = blockIdx.x / "
        "stripes;\n"
        "  const i64 piece = line * TEAMS + team, pieces = (T + SPAN - 1) / SPAN, batches = M / T;\n"
        "  const i64 batch = min(piece / pieces, batches - 1);\n"
        "  const int first = (int)(piece %% pieces) * SPAN, last = piece / pieces < batches ? "
        "(int)min((i64)first + "
        "SPAN, T) : first;\n"
        "  const i64 column = (stripe * LANES + lane) * VEC; const int c = (int)min(column, N - VEC); const "
        "bool in = "
        "column < N, on = true;\n"
        "  (void)line; (void)c; (void)on;\n");
}

static void put_kernel(const epi_rows_design *d, epi_text *t) {
    const epi_rows_shape *s = &d->shape;
    PUT("extern \"C\" __global__ void __launch_bounds__(THREADS, %d) %s(const __grid_constant__ Params P) "
        "{\n",
        (int)epi_max64(1, s->threads / (s->lanes * s->rows)), d->kernel.name);
    PUT("  const i64 M = %s, N = %s, T = %s;\n", epi_emit_count(d->c, d->tile.m, "LL"),
        epi_emit_count(d->c, d->tile.n, "LL"),
        epi_emit_count(d->c, epi_axis_size(d->along, d->c->spec->sizes), "LL"));
    PUT("  extern __shared__ __align__(128) u8 ring[];\n  (void)ring;\n");
    put_piece(t);
    epi_scan_put_batches(d, t);
    PUT("  if (!P.late) dependency_start();\n  dependency_wait();\n  if (P.late) dependency_start();\n");
    epi_rows_put_seeds(d, t);
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->access[i].ready != EPI_ROWS_ON_VECTORS)
            epi_scan_put_value(d, t, i, "  ");
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->tile.instrs[i].kind == EPI_INSTR_PARTIAL_COLS)
            PUT("  %s sum%d[VEC]; EACH(VEC) sum%d[e].clear();\n", epi_ops[d->tile.instrs[i].op].cuda, i, i);
    put_chunks(d, t);
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->tile.instrs[i].kind == EPI_INSTR_PARTIAL_COLS)
            PUT("  leave_sums(sum%d, (float *)P.ptr[%d] + line * N, stripe * LINES, N, (float *)(ring + "
                "STAGES * "
                "STAGE_BYTES));\n",
                i, d->access[i].pointer);
    PUT("}\n");
}

void epi_window_put(const epi_rows_design *d, epi_kernel_text *k) {
    epi_scan_put_head(d, k, epi_emit_text(d->c, "#define DOWN 1\n#define SPAN %d\n", d->shape.span), "");
    put_kernel(d, &k->source);
}

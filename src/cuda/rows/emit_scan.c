/* emit_scan.c: writes the source of a kernel of scans from its design (device/scan.cuh).
 *
 *     what is the same at every step
 *     for each chunk {
 *         it has come to the ring
 *         for each phase {
 *             for each vector { elements, operands of scans, stores }
 *             the scans
 *         }
 *         a later chunk is asked for
 *     } */
#include "cuda/rows/emit_rows.h"

/* Beyond the last step a thread makes what is at the last one again, and stores nothing. */
static void begin_vectors(const epi_rows_design *d, epi_text *t) {
    PUT("    UNROLL for (int i = 0; i < NV; i++) {\n");
    if (d->down)
        PUT("      const int step = chunk * CHUNK + team * RUN + i; const bool on = in && step < T;\n"
            "      const i64 t = BACK ? max(T - 1 - step, 0ll) : min((i64)step, T - 1), row = batch * T + "
            "t;\n");
    else
        PUT("      const int step = ((chunk * PIECES + i * VEC / RUN) * LANES + lane) * RUN + i * VEC %% "
            "RUN;\n"
            "      const bool on = in && step < T;\n"
            "      const int c = (int)(BACK ? max(T - step - VEC, 0ll) : min((i64)step, T - VEC));\n");
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->down && d->tile.instrs[i].kind == EPI_INSTR_SHIFT)
            PUT("      const i64 t%d = min(max(t - (%ldLL), 0ll), T - 1);\n      (void)t%d;\n", i,
                (long)epi_shift_by(&d->g->nodes[d->tile.instrs[i].node]), i);
}

/* ---- the ring ---- */

static void put_copies(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_rows_access *a = &d->access[i];
        long size = (long)epi_dtype_size(a->ref.type);
        if (!a->fetched || !a->bytes)
            continue;
        long vector = size * epi_rows_width(d, d->tile.instrs[i].dst) / epi_rows_pieces(a);
        for (int split = 0; split < epi_rows_pieces(a); split++)
            PUT("      copy<%ld>(to + %ld + %ld * (i * THREADS + threadIdx.x), (const char *)P.ptr[%d] + %ld "
                "* (%s + %s));   // %s\n",
                vector, (long)(a->staged + split * a->bytes), vector, a->pointer, size, epi_rows_row(d, i),
                epi_rows_vector(d, i, split), epi_emit_name(d->c, d->tile.instrs[i].node));
    }
}

static void put_ring(const epi_rows_design *d, epi_text *t) {
    PUT("  const auto request = [&](int chunk) {\n    const u32 to = smem_u32(ring) + chunk %% STAGES * "
        "STAGE_BYTES;\n");
    begin_vectors(d, t);
    PUT("      (void)on;%s\n", d->down ? " (void)row;" : "");
    put_copies(d, t);
    PUT("    }\n  };\n"
        "  for (int s = 0; s < STAGES; s++) {\n    if (s < chunks) request(s);\n    cp_commit();\n  "
        "}\n");
}

/* ---- a chunk ---- */

/* The operands of a scan, at a vector. What comes before the first step is zero, whatever a is there. */
static void put_operands(const epi_rows_design *d, epi_text *t, const epi_instr *s) {
    const char *a = epi_rows_operand(d, s->arg[0], true), *b = epi_rows_operand(d, s->arg[1], true);
    if (d->tile.instrs[d->maker[s->arg[0]]].kind == EPI_INSTR_CONST)
        PUT("        EACH(VEC) scan%d_a[i][e] = %s;\n", s->dst, a);
    else
        PUT("        EACH(VEC) scan%d_a[i][e] = step%s ? %s : 0.f;\n", s->dst,
            d->down ? "" : " || e != (BACK ? VEC - 1 : 0)", a);
    PUT("        EACH(VEC) scan%d_b[i][e] = %s;", s->dst, b);
    epi_rows_put_comment(d, t, s->node);
}

/* Stores are of steps and columns that there are; of what has no columns one lane of the first stripe has them,
 * of the last step alone who has that. */
static void put_store(const epi_rows_design *d, epi_text *t, int i) {
    bool last = d->tile.instrs[i].kind == EPI_INSTR_LAST;
    if (last && !d->down) {
        PUT("        if (on && step + VEC >= T) store<%s>((void *)P.ptr[%d], %s, %s[BACK ? 0 : VEC - 1]);\n",
            epi_emit_type(d->access[i].ref.type), d->access[i].pointer, epi_rows_row(d, i),
            epi_rows_name(d, d->tile.instrs[i].arg[0]));
        return;
    }
    if (!epi_rows_has_columns(d, d->tile.instrs[i].arg[0])) {
        PUT("        if (on && lane == 0 && stripe == 0)");
        epi_rows_put_short(d, t, i, " ");
        return;
    }
    PUT("        if (on%s) {\n", last ? " && step == T - 1" : "");
    epi_rows_put_store(d, t, i);
    PUT("        }\n");
}

/* The running value of a sum over all steps: of many it keeps what rounding loses. */
static const char *sum_of(const epi_instr *s) {
    return epi_ops[s->op].adds ? "Long" : epi_ops[s->op].cuda;
}

/* What an instruction makes: elements, or one number. */
void epi_scan_put_value(const epi_rows_design *d, epi_text *t, int i, const char *indent) {
    const epi_instr *s = &d->tile.instrs[i];
    bool across = !d->down && d->access[i].ready == EPI_ROWS_ON_VECTORS; /* its row's position is there */
    if (s->kind == EPI_INSTR_TAKE && !across)
        epi_rows_put_position(d, t, i);
    if (s->dst >= 0 && epi_rows_has_columns(d, s->dst))
        epi_rows_put_elements(d, t, i);
    else
        epi_rows_put_short(d, t, i, indent);
}

/* What scans of the phases before have left, at a vector. */
static void put_scanned(const epi_rows_design *d, epi_text *t, int phase) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        const char *name = epi_rows_name(d, s->dst);
        if (s->kind == EPI_INSTR_SCAN && s->phase < phase)
            PUT("        float %s[VEC]; EACH(VEC) %s[e] = scan%d_b[i][e];\n        (void)%s;\n", name, name,
                s->dst, name);
    }
}

static void put_vectors(const epi_rows_design *d, epi_text *t, int phase) {
    const epi_rows_phase *p = &d->phases[phase];
    begin_vectors(d, t);
    PUT("      const int l = (i * THREADS + threadIdx.x) * VEC;\n      (void)on; (void)l;%s\n",
        d->down ? " (void)t; (void)row;" : "");
    put_scanned(d, t, phase);
    for (int n = 0; n < p->count; n++) {
        int i = p->instrs[n];
        const epi_instr *s = &d->tile.instrs[i];
        if (s->kind == EPI_INSTR_SCAN)
            put_operands(d, t, s);
        else if (epi_rows_stores(s))
            put_store(d, t, i);
        else if (s->kind == EPI_INSTR_PARTIAL_COLS)
            PUT("        if (on) EACH(VEC) sum%d[e].take(%s[e]);\n", i, epi_rows_name(d, s->arg[0]));
        else
            epi_scan_put_value(d, t, i, "        ");
    }
    PUT("    }\n");
}

/* One function for all scans of the phase. Before the next one all threads meet. */
static void put_for_scans(const epi_rows_design *d, epi_text *t, int phase, const char *function,
                          const char *more, bool meet) {
    int room = 0;
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        if (s->kind == EPI_INSTR_SCAN && s->phase == phase)
            PUT("    %s(ends + %d%s);\n", function, room++, epi_emit_text(d->c, more, s->dst, s->dst));
    }
    if (room && meet)
        PUT("    __syncthreads();\n");
}

static void put_phase(const epi_rows_design *d, epi_text *t, int phase) {
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->tile.instrs[i].kind == EPI_INSTR_SCAN && d->tile.instrs[i].phase == phase)
            PUT("    float scan%d_a[NV][VEC], scan%d_b[NV][VEC];\n", d->tile.instrs[i].dst,
                d->tile.instrs[i].dst);
    put_vectors(d, t, phase);
    put_for_scans(d, t, phase, "leave_ends", ", scan%d_a, scan%d_b", true);
    put_for_scans(d, t, phase, "fold_states", ", state%d", true);
    put_for_scans(d, t, phase, "take_steps", ", scan%d_a, scan%d_b", false);
}

/* Do threads read what others have asked for? */
static bool shares(const epi_rows_design *d) {
    bool shares = false;
    for (int i = 0; i < d->tile.instr_count; i++)
        shares |= d->tile.instrs[i].kind == EPI_INSTR_SHIFT && d->access[i].shared >= 0;
    return shares;
}

static void put_chunks(const epi_rows_design *d, epi_text *t) {
    bool ring = d->shape.row_bytes > 0;
    const char *meet = ring && shares(d) ? "    __syncthreads();\n" : "";
    PUT("  const int chunks = (int)((T + CHUNK - 1) / CHUNK);\n");
    if (ring)
        put_ring(d, t);
    PUT("  for (int chunk = 0; chunk < chunks; chunk++) {\n");
    if (ring)
        PUT("    cp_wait<STAGES - 1>();\n%s    const u32 from = smem_u32(ring) + chunk %% STAGES * "
            "STAGE_BYTES;\n",
            meet);
    for (int p = 0; p < d->tile.phases; p++)
        put_phase(d, t, p);
    if (ring)
        PUT("%s    if (chunk + STAGES < chunks) request(chunk + STAGES);\n    cp_commit();\n", meet);
    PUT("  }\n");
}

/* ---- the kernel ---- */

void epi_scan_put_batches(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->access[i].ref.axes.count || d->tile.instrs[i].kind == EPI_INSTR_LOAD ||
            epi_rows_stores(&d->tile.instrs[i]))
            PUT("  const i64 at%d = %s;\n  (void)at%d;\n", i,
                epi_emit_walk(d->c, &d->access[i].batch, "batch"), i);
}

/* The lines of this thread; beyond the last it has that one, too, and stores nothing. */
static void put_lines(const epi_rows_design *d, epi_text *t) {
    PUT("  const int lane = threadIdx.x %% LANES, team = threadIdx.x / LANES;\n");
    if (!d->down) {
        PUT("  const i64 line = (i64)blockIdx.x * TEAMS + team, row = min(line, M - 1); const bool in = line "
            "< M, on = true;\n  (void)on;\n");
        return;
    }
    PUT("  const i64 stripes = (N + LINES - 1) / LINES, stripe = blockIdx.x %% stripes, line = blockIdx.x / "
        "stripes, batch = line;\n"
        "  const i64 column = (stripe * LANES + lane) * VEC; const int c = (int)min(column, N - VEC); const "
        "bool in = column < N, on = true;\n"
        "  (void)c; (void)on; (void)stripe;\n");
    epi_scan_put_batches(d, t);
}

/* What is the same at every step: down the rows all that lacks them; else numbers and a row's. */
static void put_constants(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        if (d->access[i].ready != EPI_ROWS_ON_VECTORS)
            epi_scan_put_value(d, t, i, "  ");
        else if (!d->down && d->tile.instrs[i].kind == EPI_INSTR_TAKE)
            epi_rows_put_position(d, t, i);
    }
}

static void put_kernel(const epi_rows_design *d, epi_text *t) {
    const epi_rows_shape *s = &d->shape;
    PUT("extern \"C\" __global__ void __launch_bounds__(THREADS, %d) %s(const __grid_constant__ Params P) "
        "{\n",
        (int)epi_max64(1, s->threads / (s->lanes * s->rows)), d->kernel.name);
    PUT("  const i64 M = %s, N = %s, T = %s;\n  (void)M; (void)N;\n", epi_emit_count(d->c, d->tile.m, "LL"),
        epi_emit_count(d->c, d->tile.n, "LL"),
        epi_emit_count(d->c, epi_axis_size(d->along, d->c->spec->sizes), "LL"));
    PUT("  extern __shared__ __align__(128) u8 ring[];\n  Ends *const ends = (Ends *)(ring + STAGES * "
        "STAGE_BYTES);\n");
    put_lines(d, t);
    PUT("  if (!P.late) dependency_start();\n  dependency_wait();\n  if (P.late) dependency_start();\n");
    epi_rows_put_seeds(d, t);
    put_constants(d, t);
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *r = &d->tile.instrs[i];
        if (r->kind == EPI_INSTR_SCAN)
            PUT("  double state%d = 0.;\n", r->dst);
        if (r->kind == EPI_INSTR_PARTIAL_COLS)
            PUT("  %s sum%d[VEC]; EACH(VEC) sum%d[e].clear();\n", sum_of(r), i, i);
    }
    put_chunks(d, t);
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->tile.instrs[i].kind == EPI_INSTR_PARTIAL_COLS)
            PUT("  leave_sums(sum%d, (float *)P.ptr[%d] + line * N, stripe * LINES, N, ends->a);\n", i,
                d->access[i].pointer);
    PUT("}\n");
}

void epi_scan_put_head(const epi_rows_design *d, epi_kernel_text *k, const char *own, const char *mainloop) {
    const epi_rows_shape *s = &d->shape;
    epi_text *t = &k->source;
    PUT("#define EPI_FAST %d\n#define VEC %d\n#define LANES %d\n#define NV %d\n#define ROWS 1\n#define "
        "CLUSTER 1\n"
        "#define TEAMS %d\n%s#define STAGES %d\n#define STAGE_BYTES %ld\n%s%s%s%s%s%s%s\n"
        "// ---- written for this program\n\n",
        d->fast, s->vector, s->lanes, s->count, s->rows, own, s->stages, (long)s->row_bytes,
        epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"),
        d->random ? epi_device_text("random") : "", epi_device_text("rows"), epi_device_text("walk"),
        mainloop);
    epi_emit_params(d->c->spec->open, k, "M, group, late, extra");
}

void epi_scan_put(const epi_rows_design *d, epi_kernel_text *k) {
    epi_scan_put_head(d, k,
                      epi_emit_text(d->c, "#define DOWN %d\n#define BACK %d\n", d->down, d->plan->scan_back),
                      epi_device_text("scan"));
    put_kernel(d, &k->source);
}

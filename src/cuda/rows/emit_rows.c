/* emit_rows.c: writes the source of a kernel over rows from its design.
 *
 *     numbers
 *     for each row {
 *         the row comes to registers or to the ring
 *         for each phase {
 *             values per row
 *             for each vector { elements, folds, stores }
 *             folds over lanes and blocks
 *         }
 *     }
 *     partials */
#include "cuda/rows/emit_rows.h"

/* ---- vectors and phases ---- */

/* How far the loop over a row's vectors is unrolled: as far as registers have to be named; else so that what
 * the compiler loads early does not take the registers of other blocks. */
static const char *unrolling(const epi_rows_design *d, bool named) {
    int shared = 0; /* tensors that all rows read */
    for (int i = 0; i < d->tile.instr_count; i++)
        shared += d->tile.instrs[i].kind == EPI_INSTR_LOAD && !epi_rows_is_full(d, d->tile.instrs[i].dst) &&
                  epi_rows_has_columns(d, d->tile.instrs[i].dst);
    if (named || d->plan->square)
        return "UNROLL";
    return shared > 1 && d->shape.count <= 4 ? "UNROLL_TWO" : "UNROLL_FOUR";
}

/* What is put between the two is done for every vector of the row. */
static void begin_vectors(const epi_rows_design *d, epi_text *t, bool named) {
    bool flat = d->plan->flat;
    PUT("    %s for (int i = 0; i < NV; i++) {\n      const %s c = COLUMN(i);%s\n      if (%s%s) {\n",
        unrolling(d, named), flat ? "i64" : "int",
        d->shape.stages ? " const int l = (i * LANES + lane) * VEC;" : "", flat ? "" : "on",
        d->ragged ? (flat ? "c < N" : " && c < N") : "");
}
static void end_vectors(epi_text *t) {
    PUT("      }\n    }\n");
}

/* Numbers and values per row that are ready for a phase: those of phase -1 come once, before the rows. */
static void put_shorts(const epi_rows_design *d, epi_text *t, int phase) {
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->access[i].ready == phase)
            epi_rows_put_short(d, t, i, phase < 0 ? "  " : "    ");
}

/* The fold down a square tile, or along it. */
static void put_side_fold(const epi_rows_design *d, epi_text *t, const epi_instr *s) {
    const char *name = epi_rows_name(d, s->dst);
    if (s->kind == EPI_INSTR_REDUCE_DOWN)
        PUT("    fold_down(f%d, room);\n    float %s[VEC]; EACH(VEC) %s[e] = f%d[e].v;", s->dst, name, name,
            s->dst);
    else
        PUT("    const float %s = fold_along(f%d).v;", name, s->dst);
    epi_rows_put_comment(d, t, s->node);
    epi_rows_put_scale(d, t, s->dst);
}

/* The fold over all lanes, and what it ends with. */
static void put_fold(const epi_rows_design *d, epi_text *t, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    const char *fold = epi_emit_text(d->c, "f%d", s->dst);
    int64_t count = epi_axes_size(&d->g->nodes[s->node].over, d->c->spec->sizes);
    PUT("    %s = fold_row(%s, &rooms, turn);\n    const float %s = ", fold, fold, epi_rows_name(d, s->dst));
    if (d->pair[i] < 0) {
        PUT("%s;", epi_emit_fold_end(d->c, s->op, fold, count));
    } else {
        const epi_instr *second = &d->tile.instrs[d->pair[i]];
        PUT("%s.m, %s = %s.%s();", fold, epi_rows_name(d, second->dst), fold,
            epi_rows_sums_exponentials(d, second, s, true) ? "safe_sum" : "sum");
    }
    epi_rows_put_comment(d, t, s->node);
}

/* A vector enters a cross-tile sum. */
static void put_partial(const epi_rows_design *d, epi_text *t, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    const char *name = epi_rows_name(d, s->arg[0]);
    bool coarse = epi_rows_is_coarse(d, s->arg[0]);
    if (s->kind == EPI_INSTR_PARTIAL_COLS)
        PUT("        EACH(%d) sum%d[i][e].take(%s[e]);\n", epi_rows_width(d, s->arg[0]), i, name);
    else if (d->tail)
        PUT("        if (N - c < VEC) take_some(sum%d, %s, %s); else take_all(sum%d, %s);\n", i, name,
            coarse ? "(N - c) / 2" : "N - c", i, name);
    else
        PUT("        take_all(sum%d, %s);\n", i, name);
}

/* The running value of a reduction along the row. Rows that no block holds are as long as they like: there
 * sums keep what rounding loses. */
static const char *row_fold(const epi_rows_design *d, int i) {
    epi_op op = d->tile.instrs[i].op;
    if (d->pair[i] >= 0)
        return "LogSumExp";
    return !d->shape.resident && epi_ops[op].adds ? "Long" : epi_ops[op].cuda;
}

/* What is declared before a phase walks over the row. */
static void begin_instr(const epi_rows_design *d, epi_text *t, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    if (s->kind == EPI_INSTR_REDUCE_ROW)
        PUT("    %s f%d; f%d.clear();\n", row_fold(d, i), s->dst, s->dst);
    if (s->kind == EPI_INSTR_REDUCE_DOWN)
        PUT("    %s f%d[VEC]; EACH(VEC) f%d[e].clear();\n", epi_ops[s->op].cuda, s->dst, s->dst);
    if (s->kind == EPI_INSTR_REDUCE_ALONG)
        PUT("    %s f%d[NV]; UNROLL for (int i = 0; i < NV; i++) f%d[i].clear();\n", epi_ops[s->op].cuda,
            s->dst, s->dst);
    if (epi_rows_folds_side(d, s))
        PUT(epi_rows_is_line(d, s->arg[0]) ? "    f%d.take(%s);\n" : "    take_all(f%d, %s);\n", s->dst,
            epi_rows_name(d, s->arg[0]));
    if (d->access[i].turned)
        PUT("    Turned<%s> turned%d;\n", epi_emit_type(d->access[i].ref.type), i);
}

/* What is done to each vector. */
static void put_instr(const epi_rows_design *d, epi_text *t, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    if (epi_rows_folds_side(d, s))
        return;
    if (s->kind == EPI_INSTR_REDUCE_ROW)
        PUT("        take_all(f%d, %s);\n", s->dst, epi_rows_name(d, s->arg[0]));
    else if (s->kind == EPI_INSTR_REDUCE_DOWN)
        PUT("        EACH(VEC) f%d[e].take(%s[e]);\n", s->dst, epi_rows_name(d, s->arg[0]));
    else if (s->kind == EPI_INSTR_REDUCE_ALONG)
        PUT("        take_all(f%d[i], %s);\n", s->dst, epi_rows_name(d, s->arg[0]));
    else if (epi_instr_is_partial(s))
        put_partial(d, t, i);
    else if (s->kind == EPI_INSTR_STORE)
        epi_rows_put_store(d, t, i);
    else
        epi_rows_put_elements(d, t, i);
}

/* What comes of it when the row has been walked over. */
static void end_instr(const epi_rows_design *d, epi_text *t, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    if (s->kind == EPI_INSTR_REDUCE_ROW)
        put_fold(d, t, i);
    else if (epi_instr_folds(s))
        put_side_fold(d, t, s);
    if (d->access[i].turned)
        PUT("    turned%d.leave((void *)P.ptr[%d], %s, %s, room);\n", i, d->access[i].pointer,
            epi_rows_row(d, i), epi_emit_count(d->c, d->access[i].apart, "LL"));
}

static void put_phase(const epi_rows_design *d, epi_text *t, int phase) {
    const epi_rows_phase *p = &d->phases[phase];
    bool walks = false;
    put_shorts(d, t, phase);
    for (int n = 0; n < p->count; n++) {
        begin_instr(d, t, p->instrs[n]);
        walks |= !epi_rows_folds_side(d, &d->tile.instrs[p->instrs[n]]);
    }
    if (walks) {
        begin_vectors(d, t, p->named);
        epi_rows_put_lines(d, t, p);
    }
    for (int n = 0; n < p->count; n++)
        put_instr(d, t, p->instrs[n]);
    if (walks)
        end_vectors(t);
    for (int n = 0; n < p->count; n++)
        end_instr(d, t, p->instrs[n]);
}

/* ---- a row in registers ---- */

/* The registers that hold a row as it lies in memory. */
static void put_registers(const epi_rows_design *d, epi_text *t, const char *suffix) {
    for (int i = 0; i < d->tile.instr_count && !d->shape.stages; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        const epi_rows_access *a = &d->access[i];
        for (int split = 0; split < epi_rows_pieces(a) && a->fetched; split++)
            PUT("    Raw<%s, %d> %s_raw%d%s[NV];\n", epi_emit_type(a->ref.type),
                epi_rows_width(d, s->dst) / epi_rows_pieces(a), epi_rows_name(d, s->dst), split, suffix);
    }
    for (int i = 0; i < d->tile.instr_count && d->shape.ahead && suffix[0]; i++)
        if (epi_rows_loads_row(d, i))
            PUT("    float %s%s;\n", epi_rows_name(d, d->tile.instrs[i].dst), suffix);
}

static void put_fill(const epi_rows_design *d, epi_text *t, const char *suffix) {
    bool any = false;
    for (int i = 0; i < d->tile.instr_count; i++)
        any |= d->access[i].fetched;
    if (!any || d->shape.stages)
        return;
    begin_vectors(d, t, true);
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        const epi_rows_access *a = &d->access[i];
        for (int split = 0; split < epi_rows_pieces(a) && a->fetched; split++) {
            const char *name = epi_rows_name(d, s->dst);
            bool coarse = epi_rows_is_coarse(d, s->dst);
            PUT("        ");
            if (d->tail)
                PUT("if (N - c < VEC) %s_raw%d%s[i].some(P.ptr[%d], %s, %s); else ", name, split, suffix,
                    a->pointer, coarse ? "c / 2" : "c", coarse ? "(N - c) / 2" : "N - c");
            PUT("%s_raw%d%s[i].%s(P.ptr[%d], %s + %s);\n", name, split, suffix, epi_rows_reader(a),
                a->pointer, epi_rows_row(d, i), epi_rows_vector(d, i, split));
        }
    }
    end_vectors(t);
}

static void put_row_values(const epi_rows_design *d, epi_text *t, const char *suffix) {
    for (int i = 0; i < d->tile.instr_count; i++)
        if (epi_rows_loads_row(d, i)) {
            const epi_rows_access *a = &d->access[i];
            PUT("    %s%s = on ? %s : 0.f;\n", epi_rows_name(d, d->tile.instrs[i].dst), suffix,
                epi_emit_load(d->c, a->ref.type, a->pointer, epi_rows_row(d, i)));
        }
}

/* The row that was loaded while the one before was worked on is now the row in hand. */
static void put_take_over(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        const epi_rows_access *a = &d->access[i];
        for (int split = 0; split < epi_rows_pieces(a) && a->fetched && !d->shape.stages; split++)
            PUT("    UNROLL for (int i = 0; i < NV; i++) %s_raw%d[i] = %s_raw%d_next[i];\n",
                epi_rows_name(d, s->dst), split, epi_rows_name(d, s->dst), split);
        if (epi_rows_loads_row(d, i))
            PUT("    const float %s_now = %s_next;\n", epi_rows_name(d, s->dst), epi_rows_name(d, s->dst));
    }
}

/* What all rows read is loaded while the first row is on its way. */
static void put_weights(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_rows_access *a = &d->access[i];
        for (int split = 0; split < epi_rows_pieces(a) && a->held; split++) {
            int v = d->tile.instrs[i].dst;
            const char *name = epi_rows_name(d, v);
            PUT("  Raw<%s, %d> %s_raw%d[NV];\n  UNROLL for (int i = 0; i < NV; i++) { const int c = "
                "COLUMN(i); "
                "if (c < N) %s_raw%d[i].cached(P.ptr[%d], %s); }\n",
                epi_emit_type(a->ref.type), epi_rows_width(d, v) / epi_rows_pieces(a), name, split, name,
                split, a->pointer, epi_rows_vector(d, i, split));
        }
    }
}

/* ---- the rows ---- */

/* The positions that this row gathers from, once a row. */
static void put_positions(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->tile.instrs[i].kind == EPI_INSTR_TAKE)
            epi_rows_put_position(d, t, i);
}

static void put_rows(const epi_rows_design *d, epi_text *t) {
    static const char *const set_row = "const i64 row = row0 + sub; const bool on = row < M;";
    bool ahead = d->shape.ahead, ring = d->shape.stages > 0;
    if (ring)
        epi_rows_put_ring(d, t);
    put_weights(d, t);
    if (d->shape.cluster > 1 && d->folds)
        PUT("  cluster_wait();   // all blocks are there before one writes to another\n");
    if (ahead) {
        put_registers(d, t, "_next");
        PUT("  {\n    const i64 row0 = first; %s\n    (void)row; (void)on;\n", set_row);
        put_row_values(d, t, "_next");
        put_fill(d, t, "_next");
        PUT("  }\n");
    }
    PUT("  for (i64 row0 = first; row0 < M; row0 += stride) {\n");
    if (d->shape.resident)
        put_registers(d, t, "");
    if (ahead) {
        put_take_over(d, t);
        PUT("    {\n    const i64 row = row0 + stride + sub; const bool on = row < M;\n    (void)row; "
            "(void)on;\n");
        put_row_values(d, t, "_next");
        put_fill(d, t, "_next");
        PUT("    }\n");
    }
    PUT("    %s\n    (void)row; (void)on;\n", set_row);
    if (d->plan->square)
        PUT("    const int c = lane %% 16 * VEC, line = (lane / 16 * NV + lane %% NV) * SIDE;   // a column, "
            "and a row, of "
            "the tile\n    (void)c; (void)line; (void)room;\n");
    put_positions(d, t);
    if (ring)
        epi_rows_put_take(d, t);
    else if (d->shape.resident && !ahead)
        put_fill(d, t, "");
    for (int p = 0; p < d->tile.phases; p++)
        put_phase(d, t, p);
    put_shorts(d, t, d->tile.phases);
    if (ring)
        epi_rows_put_release(t);
    PUT("  }\n");
}

/* One long row, a piece at a time. */
static void put_flat(const epi_rows_design *d, epi_text *t) {
    PUT("  const i64 row = 0; const bool on = true; (void)row; (void)on;\n"
        "  for (i64 piece = (i64)blockIdx.x * PIECE; piece < N; piece += (i64)gridDim.x * PIECE) {\n");
    put_registers(d, t, "");
    put_fill(d, t, "");
    for (int p = 0; p < d->tile.phases; p++)
        put_phase(d, t, p);
    PUT("  }\n");
}

/* ---- cross-tile reductions ---- */

/* Running values of the cross-tile reductions. */
static void put_sums(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        if (s->kind == EPI_INSTR_PARTIAL_ROWS)
            PUT("  %s sum%d; sum%d.clear();\n", epi_ops[s->op].cuda, i, i);
        if (s->kind == EPI_INSTR_PARTIAL_COLS) {
            int w = epi_rows_width(d, s->arg[0]);
            PUT("  %s sum%d[NV][%d]; UNROLL for (int i = 0; i < NV; i++) EACH(%d) sum%d[i][e].clear();\n",
                epi_ops[s->op].cuda, i, w, w, i);
        }
    }
}

/* What a block has of a cross-tile reduction is stored: folded over its rows, in order. */
static void put_partials(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++) {
        const epi_instr *s = &d->tile.instrs[i];
        int to = d->access[i].pointer;
        if (s->kind == EPI_INSTR_PARTIAL_ROWS)
            PUT("  sum%d = fold_row(sum%d, &rooms, turn);\n"
                "  if (threadIdx.x == 0) sum%d.leave((float *)P.ptr[%d], blockIdx.x, gridDim.x);\n",
                i, i, i, to);
        if (s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        bool coarse = epi_rows_is_coarse(d, s->arg[0]);
        PUT("  %s<%d>(sum%d, (float *)P.ptr[%d] + (i64)(blockIdx.x / CLUSTER) * %s, "
            "N, %s, room);\n",
            d->shape.stages && d->shape.rows > 1 ? "leave_together" : "leave_columns",
            epi_rows_width(d, s->arg[0]), i, to,
            epi_emit_count(d->c, coarse ? d->tile.n / 2 : d->tile.n, "LL"), coarse ? "2" : "1");
    }
}

/* ---- the kernel ---- */

/* Are the rows' number or length known at the launch alone? */
static bool is_open(const epi_rows_design *d) {
    return epi_emit_grows(d->c, d->tile.m) || epi_emit_grows(d->c, d->tile.n);
}

/* Bytes of shared memory through which a square tile is turned, and its extremes exchanged. */
static int square_room(const epi_rows_design *d) {
    int64_t room = d->downs ? 4 * d->shape.lanes / 32 * EPI_ROWS_TILE : 16;
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->access[i].turned)
            room = epi_max64(room, d->tile.n * (int64_t)epi_dtype_size(d->access[i].ref.type));
    return (int)room;
}

static void put_kernel(const epi_rows_design *d, epi_text *t) {
    const epi_rows_shape *s = &d->shape;
    const char *bound = ""; /* registers such that so many threads are there at once */
    if (s->threads > s->lanes * s->rows)
        bound = epi_emit_text(d->c, ", %d", s->threads / (s->lanes * s->rows));
    PUT("extern \"C\" __global__ void __launch_bounds__(%d%s) %s(const __grid_constant__ Params P) {\n",
        s->lanes * s->rows, bound, d->kernel.name);
    if (is_open(d))
        PUT("  const i64 M = P.M, N = %s;\n  (void)M;\n", epi_emit_count(d->c, d->tile.n, "LL"));
    if (s->stages)
        PUT("  extern __shared__ __align__(128) u8 ring[];\n");
    if (d->folds)
        PUT("  __shared__ Rooms rooms;\n  int turn = 0;\n%s",
            s->cluster > 1 ? "  begin_rooms(&rooms);\n" : "");
    if (d->plan->square)
        PUT("  __shared__ __align__(16) u8 room[%d];\n", square_room(d));
    if (d->sums)
        PUT(s->stages ? "  float *const room = (float *)ring;\n"
                      : "  __shared__ float room[ROWS > 1 ? (ROWS - 1) * LANES * VEC : 1];\n");
    PUT("  const int lane = threadIdx.x %% LANES, team = threadIdx.x / TEAM, sub = threadIdx.x %% TEAM / "
        "LANES;\n"
        "  (void)lane; (void)team; (void)sub;\n");
    if (s->cluster > 1)
        PUT("  const int rank = cluster_rank();\n");
    PUT("  const i64 first = (i64)(blockIdx.x / CLUSTER) * ROWS + team * (TEAM / LANES);\n"
        "  const i64 stride = (i64)(gridDim.x / CLUSTER) * ROWS;\n  (void)first; (void)stride;\n");
    if (s->stages)
        epi_rows_put_barriers(t);
    PUT("  if (!P.late) dependency_start();\n  dependency_wait();\n  if (P.late) dependency_start();\n");
    epi_rows_put_seeds(d, t);
    put_shorts(d, t, -1);
    put_sums(d, t);
    d->plan->flat ? put_flat(d, t) : put_rows(d, t);
    put_partials(d, t);
    PUT("}\n"); /* blocks of a cluster leave as they like: none writes to another after the last fold */
}

/* What stands before the kernel: the shape as macros, and the device texts. */
static void put_head(const epi_rows_design *d, epi_kernel_text *k) {
    const epi_rows_shape *s = &d->shape;
    epi_text *t = &k->source;
    const char *sizes = "",
               *side = d->plan->square ? epi_emit_text(d->c, "#define SIDE %d\n", EPI_ROWS_TILE) : "";
    if (!is_open(d))
        sizes =
            epi_emit_text(d->c, "static const i64 M = %ldLL, N = %ldLL;\n", (long)d->tile.m, (long)d->tile.n);
    PUT("#define EPI_FAST %d\n#define VEC %d\n#define LANES %d\n#define NV %d\n#define ROWS %d\n"
        "#define CLUSTER %d\n%s#define TEAM (LANES < 32 ? 32 : LANES)\n#define TEAMS (ROWS * LANES / "
        "TEAM)\n%s%s%s%s%s%s%s\n// ---- written for "
        "this program\n\n",
        d->fast, s->vector, s->lanes, s->count, s->rows, s->cluster, side, epi_device_text("base"), sizes,
        epi_device_text("ptx"), epi_device_text("folds"), d->random ? epi_device_text("random") : "",
        epi_device_text("rows"), d->plan->square ? epi_device_text("square") : "");
    epi_emit_params(d->c->spec->open, k, "M, group, late, extra");
    if (s->stages)
        PUT("#define STAGES %d\n#define ROW_BYTES %ld\n#define SLICE %ld\n", s->stages, (long)s->row_bytes,
            (long)d->slice);
    PUT("%s", d->plan->square  ? "#define COLUMN(i) ((lane / 16 * NV + (i)) * SIDE + lane % 16 * VEC)\n"
              : d->plan->flat  ? "#define PIECE ((i64)LANES * NV * VEC)\n"
                                 "#define COLUMN(i) (piece + ((i)*LANES + lane) * VEC)\n"
              : s->cluster > 1 ? "#define COLUMN(i) (((rank * NV + (i)) * LANES + lane) * VEC)\n"
                               : "#define COLUMN(i) (((i)*LANES + lane) * VEC)\n");
}

epi_status epi_emit_rows(epi_emit_context *c, const epi_step *step, epi_kernel_text *k, epi_error *err) {
    epi_rows_design d;
    epi_status status = epi_rows_design_make(c, step, &d, err);
    *k = d.kernel;
    if (status != EPI_OK)
        return status;
    if (d.walks) {
        (d.window ? epi_window_put : epi_scan_put)(&d, k);
    } else {
        put_head(&d, k);
        put_kernel(&d, &k->source);
    }
    return epi_emit_end(k, err);
}

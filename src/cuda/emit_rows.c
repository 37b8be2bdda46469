/* emit_rows.c: the kernel that walks over rows, with the steps of the program written out.
 *
 * A value with columns is an array of a vector's elements, at its scale; any other is one number. Tensors
 * that lie in vectors are brought to registers or to shared memory as a row is taken up, or read again in
 * every phase where a row is too long for that. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/emit_rows.h"

static bool of_row(const epi_rows_emit *e, const epi_instr *s) {
    return e->tile.values[epi_rows_value(s)].rows;
}

/* Those of a phase: numbers come once, before the rows, as phase -1. */
static void put_shorts(epi_rows_emit *e, int phase) {
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        if (s->full || s->kind == EPI_INSTR_REDUCE_ROW || (s->dst >= 0 && epi_rows_has_columns(e, s->dst)) ||
            (s->dst < 0 && s->kind != EPI_INSTR_STORE))
            continue;
        int own = of_row(e, s) ? s->phase : -1;
        if (own == phase)
            epi_rows_put_short(e, i, phase < 0 ? "  " : "    ");
    }
}

/* Is some lane without a vector? */
static bool ragged(const epi_rows_emit *e) {
    const epi_rows_shape *s = &e->shape;
    return e->plan->flat || (int64_t)s->vector * s->lanes * s->count * s->cluster != e->tile.n;
}

/* How far the loop over a row's vectors is unrolled: as far as registers have to be named; else so that what
 * the compiler fetches early does not take the registers of other blocks. */
static const char *unrolling(const epi_rows_emit *e) {
    int shared = 0; /* tensors that all rows read */
    for (int i = 0; i < e->tile.instr_count; i++)
        shared += e->tile.instrs[i].kind == EPI_INSTR_LOAD && !epi_rows_is_full(e, e->tile.instrs[i].dst) &&
                  epi_rows_has_columns(e, e->tile.instrs[i].dst);
    if (e->named)
        return "UNROLL";
    return shared > 1 && e->shape.count <= 4 ? "UNROLL_TWO" : "UNROLL_FOUR";
}

/* What is put between the two is done for every vector of the row. */
static epi_text begin_vectors(epi_rows_emit *e) {
    epi_text before = e->body;
    e->body = (epi_text){0};
    e->named = false;
    return before;
}
static void end_vectors(epi_rows_emit *e, epi_text before) {
    epi_text inner = e->body;
    e->body = before;
    PUT("    %s for (int i = 0; i < NV; i++) {\n      const %s c = COLUMN(i);%s\n      if (%s%s) {\n%s      "
        "}\n    "
        "}\n",
        unrolling(e), e->plan->flat ? "i64" : "int",
        e->shape.stages ? " const int l = (i * LANES + lane) * VEC;" : "", e->plan->flat ? "" : "on",
        ragged(e) ? (e->plan->flat ? "c < N" : " && c < N") : "", inner.data ? inner.data : "");
    e->body.failed |= inner.failed;
    epi_text_free(&inner);
}

/* ---- folds in pairs ---- */

/* The map that makes the value, if it is this one. */
static const epi_instr *made_by(const epi_rows_emit *e, int v, epi_op op) {
    const epi_instr *s = v >= 0 ? &e->tile.instrs[e->maker[v]] : NULL;
    return s && s->kind == EPI_INSTR_MAP && s->dst == v && s->op == op ? s : NULL;
}

static bool is_number(const epi_rows_emit *e, int v, double value) {
    const epi_node *n = &e->g->nodes[e->tile.values[v].node];
    if (n->op == EPI_OP_NEG && e->g->nodes[n->arg[0]].op == EPI_OP_CONST)
        return -e->g->nodes[n->arg[0]].value == value;
    return n->op == EPI_OP_CONST && n->value == value;
}

/* Is it where(v == -inf, 0, v)? */
static bool is_safe(const epi_rows_emit *e, int safe, int v) {
    const epi_instr *s = made_by(e, safe, EPI_OP_WHERE), *same = s ? made_by(e, s->arg[0], EPI_OP_EQ) : NULL;
    return same && same->arg[0] == v && is_number(e, same->arg[1], -INFINITY) && is_number(e, s->arg[1], 0) &&
           s->arg[2] == v;
}

/* Is the value x less the result of this fold of x? */
static bool is_distance(const epi_rows_emit *e, int v, const epi_instr *fold, bool safe) {
    const epi_instr *s = made_by(e, v, EPI_OP_SUB);
    return s && s->arg[0] == fold->arg[0] &&
           (safe ? is_safe(e, s->arg[1], fold->dst) : s->arg[1] == fold->dst);
}

/* Is it the sum of exponentials less the largest element? */
static bool sums_exponentials(const epi_rows_emit *e, const epi_instr *sum, const epi_instr *max, bool safe) {
    const epi_instr *s = made_by(e, sum->arg[0], EPI_OP_EXP);
    return s && is_distance(e, s->arg[0], max, safe);
}

/* Does one walk over the row do both? The sum of exponentials less the largest element goes along with the
 * search for it. */
static bool go_together(const epi_rows_emit *e, const epi_instr *first, const epi_instr *second) {
    return e->tile.n > 0 && first->kind == EPI_INSTR_REDUCE_ROW && first->op == EPI_OP_RMAX &&
           second->kind == EPI_INSTR_REDUCE_ROW && second->op == EPI_OP_SUM &&
           second->phase == first->phase + 1 && e->fast &&
           (sums_exponentials(e, second, first, false) || sums_exponentials(e, second, first, true));
}

static void find_pairs(epi_rows_emit *e) {
    for (int i = 0; i < e->tile.instr_count; i++)
        e->pair[i] = -1;
    for (int i = 0; i < e->tile.instr_count; i++)
        for (int j = 0; j < e->tile.instr_count && e->pair[i] < 0; j++)
            if (e->pair[j] < 0 && go_together(e, &e->tile.instrs[i], &e->tile.instrs[j])) {
                e->pair[i] = j;
                e->pair[j] = i;
            }
}

/* Is its result there already? */
static bool comes_second(const epi_rows_emit *e, int step) {
    return e->pair[step] >= 0 && e->tile.instrs[e->pair[step]].phase < e->tile.instrs[step].phase;
}

static const char *fold_of(const epi_rows_emit *e, int step) {
    return e->pair[step] < 0 ? epi_emit_fold(e->tile.instrs[step].op) : "LogSumExp";
}

/* The fold over all lanes, and what it ends with. */
static void put_fold(epi_rows_emit *e, int step) {
    const epi_instr *s = &e->tile.instrs[step];
    char fold[16];
    snprintf(fold, sizeof fold, "f%d", s->dst);
    int64_t count = epi_axes_size(&e->g->nodes[s->node].over, e->c->spec->sizes);
    PUT("    %s = fold_row(%s, &rooms, turn);\n    const float %s = ", fold, fold,
        epi_rows_name(e, s->dst).text);
    if (e->pair[step] < 0) {
        PUT("%s;", epi_emit_fold_end(s->op, fold, count).text);
    } else {
        const epi_instr *second = &e->tile.instrs[e->pair[step]];
        PUT("%s.m, %s = %s.%s();", fold, epi_rows_name(e, second->dst).text, fold,
            sums_exponentials(e, second, s, true) ? "safe_sum" : "sum");
    }
    epi_rows_put_comment(e, s->node);
}

/* ---- phases ---- */

/* What a phase is for: folds, partials and stores of elements. */
static bool ends_in(const epi_rows_emit *e, int step, int phase) {
    const epi_instr *s = &e->tile.instrs[step];
    return s->full && s->phase == phase && (s->dst < 0 || s->kind == EPI_INSTR_REDUCE_ROW) &&
           !comes_second(e, step);
}

static void put_phase(epi_rows_emit *e, int phase) {
    bool any = false;
    e->scope = phase + 1;
    put_shorts(e, phase);
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        if (!ends_in(e, i, phase))
            continue;
        any = true;
        if (s->kind == EPI_INSTR_REDUCE_ROW)
            PUT("    %s f%d; f%d.clear();\n", fold_of(e, i), s->dst, s->dst);
    }
    if (!any)
        return;
    epi_text before = begin_vectors(e);
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        if (!ends_in(e, i, phase))
            continue;
        e->named |= s->kind == EPI_INSTR_PARTIAL_COLS;
        epi_rows_need(e, s->arg[0]);
        for (int j = i + 1; j < e->tile.instr_count && s->kind == EPI_INSTR_STORE; j++)
            if (ends_in(e, j, phase))
                epi_rows_need_early(e, e->tile.instrs[j].arg[0]);
        epi_name name = epi_rows_name(e, s->arg[0]);
        bool coarse = e->tile.values[s->arg[0]].scale == EPI_SCALE_COARSE;
        if (s->kind == EPI_INSTR_REDUCE_ROW)
            PUT("        take_all(f%d, %s);\n", s->dst, name.text);
        else if (s->kind == EPI_INSTR_PARTIAL_COLS)
            PUT("        EACH(%d) sum%d[i][e].take(%s[e]);\n",
                epi_rows_width(e, e->tile.values[s->arg[0]].scale), i, name.text);
        else if (s->kind == EPI_INSTR_PARTIAL_ROWS && e->tail)
            PUT("        if (N - c < VEC) take_some(sum%d, %s, %s); else take_all(sum%d, %s);\n", i,
                name.text, coarse ? "(N - c) / 2" : "N - c", i, name.text);
        else if (s->kind == EPI_INSTR_PARTIAL_ROWS)
            PUT("        take_all(sum%d, %s);\n", i, name.text);
        else
            epi_rows_put_store(e, i);
    }
    end_vectors(e, before);
    for (int i = 0; i < e->tile.instr_count; i++)
        if (e->tile.instrs[i].kind == EPI_INSTR_REDUCE_ROW && ends_in(e, i, phase))
            put_fold(e, i);
}

/* The registers that hold a row as it lies in memory, and the function that fills them. */
static void put_fetch(epi_rows_emit *e, const char *suffix) {
    for (int i = 0; i < e->tile.instr_count && !(suffix[0] && e->shape.stages); i++) {
        const epi_instr *s = &e->tile.instrs[i];
        const epi_rows_access *a = &e->access[i];
        if (!epi_rows_fetched(e, i))
            continue;
        int w = epi_rows_width(e, e->tile.values[s->dst].scale) / (a->cols.two ? 2 : 1);
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++)
            PUT("    Raw<%s, %d> %s_raw%d%s[NV];\n", epi_emit_type(a->ref.type), w,
                epi_rows_name(e, s->dst).text, part, suffix);
    }
    for (int i = 0; i < e->tile.instr_count && e->shape.ahead && suffix[0]; i++)
        if (epi_rows_loads_row(e, i))
            PUT("    float %s%s;\n", epi_rows_name(e, e->tile.instrs[i].dst).text, suffix);
}

static void put_fill(epi_rows_emit *e, const char *suffix) {
    bool any = false;
    for (int i = 0; i < e->tile.instr_count; i++)
        any |= epi_rows_fetched(e, i);
    if (!any)
        return;
    epi_text before = begin_vectors(e);
    e->named = true;
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        const epi_rows_access *a = &e->access[i];
        if (!epi_rows_fetched(e, i))
            continue;
        epi_scale scale = e->tile.values[s->dst].scale;
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++) {
            PUT("        ");
            epi_name name = epi_rows_name(e, s->dst);
            if (e->tail)
                PUT("if (N - c < VEC) %s_raw%d%s[i].some(P.ptr[%d], %s, %s); else ", name.text, part, suffix,
                    a->pointer, scale == EPI_SCALE_COARSE ? "c / 2" : "c",
                    scale == EPI_SCALE_COARSE ? "(N - c) / 2" : "N - c");
            PUT("%s_raw%d%s[i].%s(P.ptr[%d], ", name.text, part, suffix, epi_rows_reader(e, i), a->pointer);
            epi_rows_put_row(e, a, "row");
            PUT(" + ");
            epi_rows_put_vector(e, a, scale, part);
            PUT(");\n");
        }
    }
    end_vectors(e, before);
}

static void put_take_over(epi_rows_emit *e) {
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        const epi_rows_access *a = &e->access[i];
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++)
            if (epi_rows_fetched(e, i) && !e->shape.stages)
                PUT("    UNROLL for (int i = 0; i < NV; i++) %s_raw%d[i] = %s_raw%d_next[i];\n",
                    epi_rows_name(e, s->dst).text, part, epi_rows_name(e, s->dst).text, part);
        if (epi_rows_loads_row(e, i))
            PUT("    const float %s_now = %s_next;\n", epi_rows_name(e, s->dst).text,
                epi_rows_name(e, s->dst).text);
    }
}

/* The ring: every team has stages of its own, and one thread that asks for its rows, tensor by tensor. */
static void put_barriers(epi_rows_emit *e) {
    PUT("  __shared__ u64 bars[2 * STAGES * TEAMS];\n"
        "  const u32 full = smem_u32(bars + 2 * STAGES * team), empty = full + 8 * STAGES;\n"
        "  if (threadIdx.x %% TEAM == 0) {\n    for (int s = 0; s < STAGES; s++) { mbar_init(full + 8 * s, "
        "1); mbar_init(empty "
        "+ 8 * s, TEAM / 32); }\n    mbar_fence();\n  }\n  __syncthreads();\n");
}

/* One order to the copy engine for every stretch of a row: to a stage, or to the L2 cache. */
static void put_orders(epi_rows_emit *e, bool load) {
    const char *rank = e->shape.cluster > 1 ? "rank" : "0";
    for (int i = 0; i < e->tile.instr_count; i++) {
        if (!epi_rows_fetched(e, i))
            continue;
        const epi_rows_access *a = &e->access[i];
        long size = (long)epi_dtype_size(a->ref.type);
        bool half = e->tile.values[e->tile.instrs[i].dst].scale == EPI_SCALE_COARSE || a->cols.two;
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++) {
            if (load)
                PUT("      bulk_load(to + %ld, ", (long)(a->staged + part * epi_rows_part_bytes(e, i)));
            else
                PUT("      bulk_prefetch(");
            PUT("(const char *)P.ptr[%d] + %ld * (", a->pointer, size);
            epi_rows_put_row(e, a, "row");
            PUT(" + %ldLL + %s * (SLICE%s)), columns * %ld%s%s);   // %s\n", (long)(part * a->cols.part),
                rank, half ? " / 2" : "", size, half ? " / 2" : "", load ? ", full + 8 * s" : "",
                epi_emit_name(e->g, e->tile.instrs[i].node).text);
        }
    }
}

static void put_ring(epi_rows_emit *e) {
    const char *rank = e->shape.cluster > 1 ? "rank" : "0";
    bool none = e->shape.cluster > 1; /* the last blocks of a cluster may have no columns */
    PUT("  const int columns = (int)%smin((i64)SLICE, N - %s * SLICE)%s;\n"
        "  const auto ask = [&](i64 row0, int s) {\n    const int rows = (int)min((i64)(TEAM / LANES), M - "
        "row0);\n    int bytes = 0;\n",
        none ? "max((i64)0, " : "", rank, none ? ")" : "");
    for (int i = 0; i < e->tile.instr_count; i++)
        if (epi_rows_fetched(e, i))
            PUT("    bytes += columns * %ld%s;\n", (long)epi_dtype_size(e->access[i].ref.type),
                e->tile.values[e->tile.instrs[i].dst].scale == EPI_SCALE_COARSE ? " / 2" : "");
    PUT("    mbar_expect(full + 8 * s, rows * bytes);\n    for (int r = 0; r < rows%s; r++) {\n"
        "      const i64 row = row0 + r;\n      const u32 to = smem_u32(ring) + ((team * STAGES + s) * (TEAM "
        "/ LANES) + r) * ROW_BYTES;\n",
        none ? " && columns" : "");
    put_orders(e, true);
    PUT("    }\n  };\n"
        "  if (threadIdx.x %% TEAM == 0)\n    for (int s = 0; s < STAGES; s++)\n"
        "      if (first + s * step < M) ask(first + s * step, s);\n  u32 turns = 0;\n");
}

/* A row that a later block will take is on its way to the L2 cache while this one is worked on. */
static void put_hint(epi_rows_emit *e) {
    PUT("    if (threadIdx.x %% TEAM == 0 && row0 + %d < M%s) {\n      const i64 row = row0 + %d;\n",
        e->shape.hint, e->shape.cluster > 1 ? " && columns" : "", e->shape.hint);
    put_orders(e, false);
    PUT("    }\n");
}

/* Waits for the row; asks for the rows that the stage of the turn before is now free for. */
static void put_take(epi_rows_emit *e) {
    PUT("    const int stage = turns %% STAGES;\n"
        "    if (turns && threadIdx.x %% TEAM == 0 && row0 + (STAGES - 1) * step < M) {\n"
        "      const u32 last = turns - 1;\n      mbar_wait(empty + 8 * (last %% STAGES), last / STAGES & "
        "1);\n"
        "      ask(row0 + (STAGES - 1) * step, last %% STAGES);\n    }\n"
        "    mbar_wait(full + 8 * stage, turns / STAGES & 1);\n"
        "    const u32 from = smem_u32(ring) + ((team * STAGES + stage) * (TEAM / LANES) + sub) * "
        "ROW_BYTES;\n");
}

static void put_release(epi_rows_emit *e) {
    PUT("    __syncwarp();\n    if (threadIdx.x %% 32 == 0) mbar_arrive(empty + 8 * stage);\n    turns++;\n");
}

/* The seeds of random numbers, once; the places that this row takes from, once a row. */
static void put_seeds(epi_rows_emit *e) {
    for (int i = 0; i < e->tile.instr_count; i++) {
        if (e->tile.instrs[i].kind != EPI_INSTR_RANDOM)
            continue;
        PUT("  const u32 seed%d = ", i);
        epi_emit_seed(e->c, e->tile.instrs[i].node, e->k, &e->body);
        PUT(";\n");
    }
}

static void put_places(epi_rows_emit *e) {
    for (int i = 0; i < e->tile.instr_count; i++) {
        if (e->tile.instrs[i].kind != EPI_INSTR_TAKE)
            continue;
        const epi_node *n = &e->g->nodes[e->tile.instrs[i].node];
        PUT("    const i64 take%d = on ? ", i);
        epi_emit_position(e->c, e->k, &e->body, n, &e->plan->rows, NULL, "row");
        PUT(" : -1;   // %s\n", epi_emit_name(e->g, n->arg[1]).text);
    }
}

static void put_row_values(epi_rows_emit *e, const char *suffix) {
    for (int i = 0; i < e->tile.instr_count; i++)
        if (epi_rows_loads_row(e, i)) {
            const epi_rows_access *a = &e->access[i];
            PUT("    %s%s = on ? load<%s>(P.ptr[%d], ", epi_rows_name(e, e->tile.instrs[i].dst).text, suffix,
                epi_emit_type(a->ref.type), a->pointer);
            epi_rows_put_row(e, a, "row");
            PUT(") : 0.f;\n");
        }
}

/* What all rows read is on its way while the first row is. */
static void put_weights(epi_rows_emit *e) {
    for (int i = 0; i < e->tile.instr_count; i++) {
        if (!epi_rows_holds(e, i))
            continue;
        const epi_rows_access *a = &e->access[i];
        epi_scale scale = e->tile.values[e->tile.instrs[i].dst].scale;
        epi_name name = epi_rows_name(e, e->tile.instrs[i].dst);
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++) {
            PUT("  Raw<%s, %d> %s_raw%d[NV];\n  UNROLL for (int i = 0; i < NV; i++) { const int c = "
                "COLUMN(i); "
                "if (c < N) %s_raw%d[i].cached(P.ptr[%d], ",
                epi_emit_type(a->ref.type), epi_rows_width(e, scale) / (a->cols.two ? 2 : 1), name.text, part,
                name.text, part, a->pointer);
            epi_rows_put_vector(e, a, scale, part);
            PUT("); }\n");
        }
    }
}

static bool has_folds(const epi_rows_emit *e) {
    for (int i = 0; i < e->tile.instr_count; i++)
        if (e->tile.instrs[i].kind == EPI_INSTR_REDUCE_ROW ||
            e->tile.instrs[i].kind == EPI_INSTR_PARTIAL_ROWS)
            return true;
    return false;
}

static void put_rows(epi_rows_emit *e) {
    static const char *const set_row = "const i64 row = row0 + sub; const bool on = row < M;";
    bool ahead = e->shape.ahead, ring = e->shape.stages > 0;
    if (ring)
        put_ring(e);
    put_weights(e);
    if (e->shape.cluster > 1 && has_folds(e))
        PUT("  cluster_wait();   // all blocks are there before one writes to another\n");
    if (ahead) {
        put_fetch(e, "_next");
        PUT("  {\n    const i64 row0 = first; %s\n    (void)row; (void)on;\n", set_row);
        put_row_values(e, "_next");
        if (!ring)
            put_fill(e, "_next");
        PUT("  }\n");
    }
    PUT("  for (i64 row0 = first; row0 < M; row0 += step) {\n");
    if (e->shape.resident && !ring)
        put_fetch(e, "");
    if (ahead) {
        put_take_over(e);
        PUT("    {\n    const i64 row = row0 + step + sub; const bool on = row < M;\n    (void)row; "
            "(void)on;\n");
        put_row_values(e, "_next");
        if (!ring)
            put_fill(e, "_next");
        PUT("    }\n");
    }
    PUT("    %s\n    (void)row; (void)on;\n", set_row);
    put_places(e);
    if (ring)
        put_take(e);
    else if (e->shape.resident && !ahead)
        put_fill(e, "");
    if (ring && e->shape.hint)
        put_hint(e);
    for (int p = 0; p < e->tile.phases; p++)
        put_phase(e, p);
    put_shorts(e, e->tile.phases);
    if (ring)
        put_release(e);
    PUT("  }\n");
}

/* One long row, a piece at a time. */
static void put_flat(epi_rows_emit *e) {
    PUT("  const i64 row = 0; const bool on = true; (void)row; (void)on;\n"
        "  for (i64 piece = (i64)blockIdx.x * PIECE; piece < N; piece += (i64)gridDim.x * PIECE) {\n");
    put_fetch(e, "");
    put_fill(e, "");
    for (int p = 0; p < e->tile.phases; p++)
        put_phase(e, p);
    PUT("  }\n");
}

/* Running values of the reductions that leave. */
static void put_sums(epi_rows_emit *e) {
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        if (s->kind == EPI_INSTR_PARTIAL_ROWS)
            PUT("  %s sum%d; sum%d.clear();\n", epi_emit_fold(s->op), i, i);
        if (s->kind == EPI_INSTR_PARTIAL_COLS) {
            int w = epi_rows_width(e, e->tile.values[s->arg[0]].scale);
            PUT("  %s sum%d[NV][%d]; UNROLL for (int i = 0; i < NV; i++) EACH(%d) sum%d[i][e].clear();\n",
                epi_emit_fold(s->op), i, w, w, i);
        }
    }
}

/* What a block has of a reduction leaves: folded over its rows, in order. */
static void put_partials(epi_rows_emit *e) {
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        if (s->kind != EPI_INSTR_PARTIAL_ROWS && s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        int workspace = epi_emit_pointer(e->k, 0, EPI_POINTER_WORKSPACE);
        if (s->kind == EPI_INSTR_PARTIAL_ROWS)
            PUT("  sum%d = fold_row(sum%d, &rooms, turn);\n"
                "  if (threadIdx.x == 0) sum%d.leave((float *)P.ptr[%d] + %ldLL, blockIdx.x, %ldLL);\n",
                i, i, i, workspace, (long)(e->c->partials[s->node] / 4), (long)e->shape.blocks);
        if (s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        bool coarse = e->tile.values[s->arg[0]].scale == EPI_SCALE_COARSE;
        int w = epi_rows_width(e, e->tile.values[s->arg[0]].scale);
        PUT("  %s<%d>(sum%d, (float *)P.ptr[%d] + %ldLL + (i64)(blockIdx.x / CLUSTER) * %ldLL, "
            "%s, room);\n",
            e->shape.stages && e->shape.rows > 1 ? "leave_together" : "leave_columns", w, i, workspace,
            (long)(e->c->partials[s->node] / 4), (long)(coarse ? e->tile.n / 2 : e->tile.n),
            coarse ? "2" : "1");
    }
}

static void put_kernel(epi_rows_emit *e) {
    const epi_rows_shape *s = &e->shape;
    bool folds = has_folds(e);
    char bound[16] = ""; /* registers such that so many threads are there at once */
    if (s->threads > s->lanes * s->rows)
        snprintf(bound, sizeof bound, ", %d", s->threads / (s->lanes * s->rows));
    PUT("extern \"C\" __global__ void __launch_bounds__(%d%s) %s(const __grid_constant__ Params P) {\n",
        s->lanes * s->rows, bound, e->k->name);
    if (s->stages)
        PUT("  extern __shared__ __align__(128) u8 ring[];\n");
    if (folds)
        PUT("  __shared__ Rooms rooms;\n  int turn = 0;\n%s",
            s->cluster > 1 ? "  begin_rooms(&rooms);\n" : "");
    if (epi_rows_sums(e))
        PUT(s->stages ? "  float *const room = (float *)ring;\n"
                      : "  __shared__ float room[ROWS > 1 ? (ROWS - 1) * LANES * VEC : 1];\n");
    PUT("  const int lane = threadIdx.x %% LANES, team = threadIdx.x / TEAM, sub = threadIdx.x %% TEAM / "
        "LANES;\n"
        "  (void)lane; (void)team; (void)sub;\n");
    if (s->cluster > 1)
        PUT("  const int rank = cluster_rank();\n");
    PUT("  const i64 first = (i64)(blockIdx.x / CLUSTER) * ROWS + team * (TEAM / LANES);\n"
        "  const i64 step = (i64)(gridDim.x / CLUSTER) * ROWS;\n  (void)first; (void)step;\n");
    if (s->stages)
        put_barriers(e);
    PUT("  dependency_start();\n  dependency_wait();\n");
    put_seeds(e);
    put_shorts(e, -1);
    put_sums(e);
    e->plan->flat ? put_flat(e) : put_rows(e);
    put_partials(e);
    PUT("}\n"); /* blocks of a cluster leave as they like: none writes to another after the last fold */
}

/* Room for what leaves, and how many partials a result has. */
static epi_status give_partials(epi_rows_emit *e, epi_error *err) {
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        bool rows = s->kind == EPI_INSTR_PARTIAL_ROWS;
        if (!rows && s->kind != EPI_INSTR_PARTIAL_COLS)
            continue;
        if (!rows && s->op == EPI_OP_LOGSUMEXP)
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "a log-sum-exp down the rows");
        const epi_rows_shape *shape =
            &e->shape; /* a thread's sums are registers, a block's are shared memory */
        int64_t room = shape->stages ? 0 : (int64_t)4 * (shape->rows - 1) * shape->lanes * shape->vector;
        if (!rows && (shape->count > 32 || room > 40 << 10))
            return epi_fail(err, EPI_ERR_UNSUPPORTED, "the sums of these rows do not fit on chip");
        int64_t blocks = e->shape.blocks / e->shape.cluster;
        e->c->partials[s->node] = e->c->workspace;
        e->c->workspace +=
            epi_round_up(blocks * (rows ? 1 : e->tile.n) * (s->op == EPI_OP_LOGSUMEXP ? 8 : 4), 64);
        e->c->partial_blocks = blocks;
    }
    return EPI_OK;
}

static epi_status prepare(epi_rows_emit *e, const epi_step *step, epi_error *err) {
    epi_arena *arena = e->c->arena;
    epi_status status =
        epi_tile_program_rows(arena, e->c->spec, step->plan, step->roots, step->root_count, &e->tile, err);
    if (status != EPI_OK)
        return status;
    e->access = epi_arena_alloc(arena, ((size_t)e->tile.instr_count + 1) * sizeof *e->access);
    e->maker = epi_arena_alloc(arena, ((size_t)e->tile.value_count + 1) * sizeof *e->maker);
    e->written = epi_arena_alloc(arena, ((size_t)e->tile.value_count + 1) * sizeof *e->written);
    e->pair = epi_arena_alloc(arena, ((size_t)e->tile.instr_count + 1) * sizeof *e->pair);
    if (!e->access || !e->maker || !e->written || !e->pair)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    e->fast = true;
    for (int i = 0; i < e->tile.instr_count; i++)
        if (e->tile.instrs[i].dst >= 0)
            e->maker[e->tile.instrs[i].dst] = i;
    status = epi_rows_choose(e, err);
    for (int i = 0; i < e->tile.instr_count; i++) {
        const epi_instr *s = &e->tile.instrs[i];
        if (s->kind == EPI_INSTR_STORE)
            e->fast &= epi_dtype_size(e->access[i].ref.type) == 2;
        e->fast &= s->kind != EPI_INSTR_PARTIAL_COLS && s->kind != EPI_INSTR_PARTIAL_ROWS;
    }
    find_pairs(e);
    return status == EPI_OK ? give_partials(e, err) : status;
}

epi_status epi_emit_rows(epi_emit_context *c, const epi_step *step, epi_kernel_text *k, epi_error *err) {
    *k = (epi_kernel_text){.arch = epi_emit_arch(c)};
    epi_rows_emit em = {.c = c, .g = c->spec->graph, .plan = step->plan, .k = k}, *e = &em;
    epi_status status = prepare(e, step, err);
    if (status != EPI_OK)
        return status;
    const epi_rows_shape *s = &e->shape;
    k->block = s->lanes * s->rows;
    k->rows = *s;
    bool teams = s->rows > 1 && s->lanes > 32; /* of several warps: racecheck does not follow their sums */
    snprintf(k->name, sizeof k->name, epi_rows_sums(e) && teams ? "row_sums" : "rows");
    put_kernel(e);
    bool uses_random = false;
    for (int i = 0; i < e->tile.instr_count; i++)
        uses_random |= e->tile.instrs[i].kind == EPI_INSTR_RANDOM;
    epi_text_add(&k->source,
                 "#define EPI_FAST %d\n#define VEC %d\n#define LANES %d\n#define NV %d\n#define ROWS %d\n"
                 "#define CLUSTER %d\n#define TEAM (LANES < 32 ? 32 : LANES)\n#define TEAMS (ROWS * LANES / "
                 "TEAM)\n%sstatic const i64 M = %ldLL, N = %ldLL;\n%s%s%s%s\n// ---- written for "
                 "this program\n\n",
                 e->fast, s->vector, s->lanes, s->count, s->rows, s->cluster, epi_device_text("base"),
                 (long)e->tile.m, (long)e->tile.n, epi_device_text("ptx"), epi_device_text("folds"),
                 uses_random ? epi_device_text("random") : "", epi_device_text("rows"));
    epi_emit_params(k);
    if (s->stages)
        epi_text_add(&k->source, "#define STAGES %d\n#define ROW_BYTES %ld\n#define SLICE %ld\n", s->stages,
                     (long)s->row_bytes, (long)epi_rows_slice(e));
    epi_text_add(&k->source, e->plan->flat ? "#define PIECE ((i64)LANES * NV * VEC)\n"
                                             "#define COLUMN(i) (piece + ((i)*LANES + lane) * VEC)\n"
                             : s->cluster > 1
                                 ? "#define COLUMN(i) (((rank * NV + (i)) * LANES + lane) * VEC)\n"
                                 : "#define COLUMN(i) (((i)*LANES + lane) * VEC)\n");
    epi_text_add(&k->source, "%s", e->body.data ? e->body.data : "");
    k->source.failed |= e->body.failed;
    epi_text_free(&e->body);
    return epi_emit_end(k, err);
}

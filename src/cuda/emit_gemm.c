/* emit_gemm.c: the kernel of a product with its epilogue: where the result is packed, what fits in shared
 * memory, and the pieces put together. */
#include "cuda/emit_gemm.h"

#include <stdarg.h>
#include <stdio.h>

enum { SHARED_MOST = 232448, SM80_SHARED_MOST = 101376, SM80_DEPTH = 32 };

bool epi_emitter_refuse(epi_emitter *e, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->reason, sizeof e->reason, fmt, args);
    va_end(args);
    return false;
}

/* ---- the packing point ---- */

/* One number, or one per row. */
static bool short_value(const epi_emitter *e, int v) {
    return v >= 0 && e->tile->values[v].scale == EPI_SCALE_NONE;
}

/* Every tile that is stored takes 16 bits: only then may the result be rounded on the way. */
static bool may_pack(const epi_emitter *e) {
    for (int i = 0; i < e->stream_count; i++)
        if (e->streams[i].store && e->streams[i].ref.type != EPI_BF16 && e->streams[i].ref.type != EPI_F16)
            return false;
    return true;
}

/* The value that is packed: the product, with the row scales that nothing else waits for. A pure function of
 * the program, so every configuration rounds at the same place. */
static void find_packing_point(epi_emitter *e) {
    const epi_tile_program *t = e->tile;
    e->kept = 0;
    e->split = -1;
    if (!e->config.packed)
        return;
    for (bool more = true; more;) {
        int uses = 0, only = -1;
        more = false;
        for (int i = 0; i < t->instr_count; i++)
            for (int a = 0; a < 3; a++)
                if (t->instrs[i].arg[a] == e->kept) {
                    uses++;
                    only = i;
                }
        if (uses != 1)
            break;
        const epi_instr *s = &t->instrs[only];
        if (s->kind == EPI_INSTR_MULADD && s->arg[2] != e->kept &&
            short_value(e, s->arg[0] == e->kept ? s->arg[1] : s->arg[0]))
            e->split = only;
        if (s->kind != EPI_INSTR_MAP ||
            !(s->op == EPI_OP_MUL || s->op == EPI_OP_DIV || s->op == EPI_OP_NEG) ||
            (s->op == EPI_OP_DIV && s->arg[0] != e->kept))
            break;
        for (int a = 0; a < 2; a++)
            if (s->arg[a] >= 0 && s->arg[a] != e->kept && !short_value(e, s->arg[a]))
                return;
        e->before[only] = true;
        e->kept = s->dst;
        more = true;
    }
}

/* before_packing() and keep(): the steps before the packing point on a pair of accumulators. */
static void emit_keep(const epi_emitter *e, epi_text *out) {
    epi_name acc = epi_value_name(e, 0);
    epi_text_add(out,
                 "// The result up to the point where it is rounded to 16 bits.\n"
                 "DEV void before_packing(const Rows &R, int i, float &v0, float &v1) {\n"
                 "  const float %s_0 = v0, %s_1 = v1;\n",
                 acc.text, acc.text);
    for (int i = 0; i < e->tile->instr_count; i++)
        if (e->before[i])
            epi_value_emit(e, &e->tile->instrs[i], out, "  ");
    char scale[160] = "";
    if (e->split >= 0) {
        const epi_instr *s = &e->tile->instrs[e->split];
        snprintf(scale, sizeof scale, " * %s%s", s->sign < 0 ? "-" : "",
                 epi_value_use(e, s->arg[0] == e->kept ? s->arg[1] : s->arg[0], 0).text);
    }
    epi_text_add(out, "  v0 = %s%s;\n  v1 = %s%s;\n}\n", epi_value_use(e, e->kept, 0).text, scale,
                 epi_value_use(e, e->kept, 1).text, scale);
    epi_text_add(out, "DEV u32 keep(const Rows &R, int i, float v0, float v1) {\n  before_packing(R, i, v0, "
                      "v1);\n  return pack<HALF>(v0, v1);\n}\n");
}

/* ---- steps ---- */

/* Says in the text which line of the program comes next. */
static void emit_comment(epi_emitter *e, const epi_instr *s) {
    const epi_node *n = &e->g->nodes[s->node];
    if (n->name)
        epi_text_add(&e->cell, "      // %s, line %d\n", n->name, n->place.line);
}

bool epi_emitter_step(epi_emitter *e, int step) {
    const epi_instr *s = &e->tile->instrs[step];
    const epi_stream *t = epi_stream_of(e, step);
    if (e->before[step])
        return true;
    if (s->kind == EPI_INSTR_REDUCE_GROUP)
        return epi_fold_group(e, step);
    if (s->kind == EPI_INSTR_PARTIAL_COLS)
        return epi_fold_cols(e, step);
    if (s->kind == EPI_INSTR_PARTIAL_ROWS) {
        epi_fold_rows(e, step);
    } else if (t) {
        epi_stream_emit(e, t);
    } else if (epi_value_is_full(&e->tile->values[s->dst])) {
        emit_comment(e, s);
        epi_value_emit(e, s, &e->cell, "      ");
    } else if (e->tile->values[s->dst].scale != EPI_SCALE_NONE) {
        if (!epi_emit_is_number(e->c, s->node))
            epi_value_emit_column(e, s);
    } else {
        epi_value_emit_row(e, s);
    }
    return true;
}

static bool emit_steps(epi_emitter *e) {
    for (int i = 0; i < e->tile->instr_count; i++)
        if (!epi_emitter_step(e, i))
            return false;
    return true;
}

/* ---- what the mainloop needs ---- */

/* Does the epilogue hold so much at once that wide steps would run out of registers, or take so long that the
 * other warpgroup runs out of slots meanwhile? */
bool epi_emitter_heavy(const epi_emitter *e) {
    bool heavy = e->stream_count > 3;
    for (int i = 0; i < e->tile->instr_count; i++) {
        epi_instr_kind kind = e->tile->instrs[i].kind;
        bool folds = kind == EPI_INSTR_PARTIAL_ROWS || kind == EPI_INSTR_PARTIAL_COLS;
        heavy |= kind == EPI_INSTR_REDUCE_GROUP || (folds && e->config.schedule != EPI_AT_END);
    }
    return heavy;
}

/* Staging for two steps of a warpgroup, or one, beside the ring. */
static bool fit_staging(epi_emitter *e) {
    epi_config *f = &e->config;
    int ring = f->stages * (128 + f->tile_n) * 64 * 2, steps = f->tile_n / f->step;
    for (int slots = 2; slots >= 1; slots--) {
        if (f->stage_slots && slots != f->stage_slots)
            continue;
        int staging = 2 * slots * e->stage_bytes;
        int bytes = ring + staging + 16 * f->stages + 48 * slots + 32 * steps + 96;
        if (bytes > SHARED_MOST)
            continue;
        f->stage_slots = slots;
        e->staging_bytes = staging;
        e->k->shared = bytes;
        return true;
    }
    return false;
}

/* Chooses the step's width and the staging so that all fits beside the ring. */
static bool fit_shared(epi_emitter *e) {
    epi_config *f = &e->config;
    static const int widths[] = {64, 32, 16};
    int wanted = f->step, first = epi_emitter_heavy(e) && !wanted ? 1 : 0;
    for (int i = first; i < 3; i++) {
        if ((wanted && widths[i] != wanted) || f->tile_n % widths[i])
            continue;
        f->step = widths[i];
        epi_streams_place(e);
        if (f->schedule == EPI_DEFERRED && f->tile_n >= 256 && e->lanes && e->loads && epi_emitter_heavy(e))
            return epi_emitter_refuse(
                e, "beside a tile of %d columns registers are too few for loads and rows that lanes move",
                f->tile_n);
        if (fit_staging(e))
            return true;
    }
    return epi_emitter_refuse(e, "the epilogue's tiles do not fit beside %d stages", f->stages);
}

static int64_t depth_of(const epi_emitter *e) {
    return epi_axes_size(&e->plan->depth, e->c->spec->sizes);
}

/* With the copy engine: operands and tiles by maps, staging beside the ring. */
static bool prepare_sm90(epi_emitter *e, epi_operand op[2]) {
    const epi_config *f = &e->config;
    if (e->tile->m < 1 || e->tile->n < 1 || depth_of(e) < 1)
        return epi_emitter_refuse(e, "a size is zero");
    if (!epi_operand_map(e, &op[0], 128, 64) ||
        !epi_operand_map(e, &op[1], f->tile_n / f->cluster, 64 / f->cluster))
        return epi_emitter_refuse(e, "the copy engine cannot take an operand as it lies in memory");
    int narrow = epi_emitter_tiling(e).narrow;
    if (narrow && !op[1].mn) { /* its columns alone */
        epi_map_need *m = &e->k->maps[e->k->map_count++];
        *m = m[-1];
        m->box[1] = (uint32_t)narrow;
    }
    e->k->block = 384;
    return fit_shared(e);
}

/* Without it: everything by offsets, one step after another at the tile's end. */
static bool prepare_other(epi_emitter *e, epi_operand op[2]) {
    epi_config *f = &e->config;
    bool sm80 = f->mainloop == EPI_GEMM_SM80;
    if (sm80 && depth_of(e) < 1)
        return epi_emitter_refuse(e, "a size is zero");
    f->step = 64;
    f->stage_slots = 1;
    f->schedule = EPI_AT_END;
    epi_streams_place(e);
    epi_operand_measure(&op[0]);
    epi_operand_measure(&op[1]);
    e->k->block = sm80 ? 256 : 128;
    e->k->shared = e->stage_bytes; /* warps leave reductions there */
    if (sm80) {
        if (e->c->capability == 86 || e->c->capability == 89 || e->c->capability >= 120)
            f->stages = 3; /* two blocks share 100 KB */
        int slot = (f->tile_m + f->tile_n) * SM80_DEPTH * 2, folds = 4 * e->stage_bytes;
        e->k->shared =
            f->stages * slot + (folds > slot ? folds : 0); /* else they fit in a slot that is idle */
        if (e->k->shared > SM80_SHARED_MOST)
            return epi_emitter_refuse(e, "more reductions down the rows than fit in shared memory");
    }
    return true;
}

/* Everything that must be known before the first line is written. */
static bool prepare(epi_emitter *e, epi_operand op[2]) {
    epi_config *f = &e->config;
    op[0] = epi_operand_of(e, 0);
    op[1] = epi_operand_of(e, 1);
    epi_dtype type = op[0].ref.type;
    bool halves = type == op[1].ref.type && (type == EPI_BF16 || type == EPI_F16);
    e->half = halves ? type : e->c->spec->type == EPI_F16 ? EPI_F16 : EPI_BF16;
    if (!epi_streams_make(e))
        return false;
    e->fast = may_pack(e);
    if (!e->fast || !halves)
        f->packed = false;
    if (f->mainloop != EPI_GEMM_ANY && !halves)
        return epi_emitter_refuse(e, "tensor cores take two operands of one 16-bit type");
    if (!(f->mainloop == EPI_GEMM_SM90 ? prepare_sm90(e, op) : prepare_other(e, op)))
        return false;
    epi_streams_move(e);
    return true;
}

/* ---- the whole ---- */

static const char *or_none(const epi_text *t) {
    return t->data ? t->data : "";
}

/* What the device texts are told by macros. */
static void write_macros(const epi_emitter *e, epi_text *out, const epi_operand op[2]) {
    const epi_config *f = &e->config;
    epi_tiling t = epi_emitter_tiling(e);
    epi_text_add(out,
                 "#define NAME %s\n#define EPI_FAST %d\n#define N_SIZE %ld\n#define K_SIZE %ld\n#define "
                 "TILE_M %d\n#define TILE_N %d\n#define STAGES %d\n"
                 "#define CLUSTER %d\n#define STEP %d\n#define STAGE_SLOTS %d\n#define DEFERRED %d\n#define "
                 "KEEP_F32 %d\n#define A_MN %d\n#define B_MN %d\n"
                 "#define HALF %s\n#define STAGE_BYTES %d\n#define STAGING_BYTES %d\n#define LOAD_BYTES %d\n"
                 "#define LOADS %d\n#define LANES %d\n#define FOLDS %d\n",
                 e->k->name, e->fast, (long)e->tile->n, (long)depth_of(e), f->tile_m, f->tile_n, f->stages,
                 f->cluster, f->step, f->stage_slots, f->schedule == EPI_DEFERRED, !f->packed, op[0].mn,
                 op[1].mn, epi_emit_type(e->half), e->stage_bytes, e->staging_bytes, e->load_bytes, e->loads,
                 e->lanes, e->leave.data != NULL);
    epi_text_add(out,
                 "#define PACKED %d\n#define NARROW %d\n#define NARROW_DEEP %d\n#define STEPS "
                 "(TILE_N / STEP)\n"
                 "#define OWN %d\n#define HEAVY %d\n",
                 f->packed, t.narrow, t.narrow_deep, e->own_out.data != NULL, epi_emitter_heavy(e));
}

/* The structs and functions that a mainloop calls at a tile's start and for each of its steps. */
static void write_epilogue(const epi_emitter *e, epi_text *out) {
    epi_name kept = epi_value_name(e, e->kept);
    epi_text_add(out,
                 "struct Rows {\n%s};\nDEV void rows_load(Rows &R, const Params &P, int row) {\n#pragma "
                 "unroll\n  for (int h = 0; h < 2; h++) {\n"
                 "    const int r = min(row + 8 * h, (int)P.M - 1);\n    (void)r;\n%s  }\n}\n",
                 or_none(&e->members), or_none(&e->rows));
    emit_keep(e, out);
    epi_text_add(out, "struct Sums {\n%s};\n", or_none(&e->sums));
    epi_text_add(out,
                 "template <int C, class Acc> DEV void epilogue_step(const Acc &acc, const Rows &R, Sums &S, "
                 "const Params &P, u32 stage, int row, int col, int thread) {\n"
                 "  const int lane = thread & 31, q = lane & 3, warp = thread >> 5 & 3;\n"
                 "  const u32 srow = warp * 16 + (lane >> 2), mrow = warp * 16 + (lane & 15), munit = lane "
                 ">> 4 << 4;\n"
                 "  (void)q; (void)srow; (void)mrow; (void)munit;\n"
                 "%s#pragma unroll\n  for (int j = 0; j < STEP / 16; j++) {\n"
                 "%s#pragma unroll\n    for (int i = 0; i < 4; i++) {\n"
                 "      const int n = col + 16 * j + 8 * (i >> 1) + 2 * q;\n      (void)n;\n"
                 "      const float %s_0 = acc(j, i, 0), %s_1 = acc(j, i, 1);\n%s    }\n%s  }\n%s}\n",
                 or_none(&e->begin), or_none(&e->group), kept.text, kept.text, or_none(&e->cell),
                 or_none(&e->after), or_none(&e->end));
    if (e->leave.data)
        epi_text_add(
            out,
            "// What the warps of %d rows have left of a step; T threads share it.\n"
            "template <int T> DEV void step_fold(const Params &P, u32 stage, int m, int n, int t) {\n"
            "  if (m >= P.M) return;\n%s}\n",
            EPI_PARTIAL_ROWS, e->leave.data);
}

/* How the mainloop reaches its operands, and the copy engine the tiles. */
static void write_access(const epi_emitter *e, epi_text *out, const epi_operand op[2],
                         const int pointers[2]) {
    if (e->config.mainloop == EPI_GEMM_SM90) {
        epi_text_add(
            out, "DEV void step_load(const Params &P, u32 stage, u32 bar, int m, int n, int lane) {\n%s}\n",
            or_none(&e->moves));
        epi_text_add(
            out,
            "DEV void step_store(const Params &P, u32 stage, int m, int n, int lane, bool lanes) {\n%s}\n"
            "DEV void step_store_own(const Params &P, u32 stage, int m, int n, int lane, int warp) {\n%s}\n",
            or_none(&e->moves_out), or_none(&e->own_out));
        epi_text_add(out, "DEV void step_prefetch(const Params &P, int m, int n, int lane) {\n%s}\n",
                     or_none(&e->prefetch));
        int narrow = epi_emitter_tiling(e).narrow;
        epi_operand_emit_wgmma(e, out, "wgmma", e->config.tile_n, &op[0], &op[1]);
        if (narrow)
            epi_operand_emit_wgmma(e, out, "wgmma_narrow", narrow, &op[0], &op[1]);
    } else {
        epi_operand_emit(out, 'A', &op[0], pointers[0]);
        epi_operand_emit(out, 'B', &op[1], pointers[1]);
    }
    if (e->config.mainloop == EPI_GEMM_SM80)
        epi_text_add(out, "#define BK %d\n#define A_VEC %d\n#define B_VEC %d\n", SM80_DEPTH, op[0].vec,
                     op[1].vec);
}

static void write_source(epi_emitter *e, const epi_operand op[2]) {
    static const char *const files[] = {"gemm_sm90", "gemm_sm80", "gemm_any"};
    epi_kernel_text *k = e->k;
    epi_text *out = &k->source;
    int pointers[2]; /* asked for before their number is written down */
    for (int i = 0; i < 2; i++)
        pointers[i] = epi_emit_pointer(k, op[i].node, -1);
    write_macros(e, out, op);
    epi_text_add(out, "%s%s%s%s", epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"),
                 e->lanes ? epi_device_text("tiles") : "");
    epi_text_add(out,
                 "\n// ---- written for this program\n\nstruct Params {\n  TMap map[%d];\n  const void "
                 "*ptr[%d];\n  i64 M, group, queue, counter;\n};\n",
                 k->map_count ? k->map_count : 1, k->pointer_count ? k->pointer_count : 1);
    write_epilogue(e, out);
    write_access(e, out, op, pointers);
    epi_text_add(out, "\n// ---- the mainloop\n\n%s%s",
                 e->config.mainloop == EPI_GEMM_SM90 ? epi_device_text("order") : "",
                 epi_device_text(files[e->config.mainloop]));
}

/* Frees the pieces; answers whether one of them ran out of memory. */
static bool free_pieces(epi_emitter *e) {
    epi_text *all[] = {&e->members, &e->rows,  &e->sums,  &e->begin,     &e->group,    &e->cell,   &e->after,
                       &e->end,     &e->leave, &e->moves, &e->moves_out, &e->prefetch, &e->own_out};
    bool failed = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        failed |= all[i]->failed;
        epi_text_free(all[i]);
    }
    return failed;
}

/* Every piece in turn; false with a reason. */
static bool emit_kernel(epi_emitter *e) {
    epi_operand op[2];
    if (e->tile->tile_n != e->config.tile_n)
        return epi_emitter_refuse(e, "groups of %d columns do not fill a tile of %d",
                                  e->tile->group[e->tile->acc_scale], e->config.tile_n);
    if (!prepare(e, op))
        return false;
    find_packing_point(e);
    if (!emit_steps(e))
        return false;
    write_source(e, op);
    return true;
}

epi_status epi_emit_gemm(epi_emit_context *c, const epi_step *step, const epi_config *config,
                         epi_kernel_text *k, epi_error *err) {
    *k = (epi_kernel_text){.arch = epi_emit_arch(c)};
    epi_tile_program tile;
    epi_status status = epi_tile_program_gemm(c->arena, c->spec, step->plan, config->tile_n, step->roots,
                                              step->root_count, &tile, err);
    if (status != EPI_OK)
        return status;
    epi_emitter *e = epi_arena_alloc(c->arena, sizeof *e);
    bool *before = epi_arena_alloc(c->arena, (size_t)tile.instr_count + 1);
    bool *grouped = epi_arena_alloc(c->arena, (size_t)tile.instr_count + 1);
    if (!e || !before || !grouped)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    *e = (epi_emitter){.c = c,
                       .g = c->spec->graph,
                       .plan = step->plan,
                       .tile = &tile,
                       .config = *config,
                       .k = k,
                       .before = before,
                       .grouped = grouped};
    snprintf(k->name, sizeof k->name, "gemm");
    bool ok = emit_kernel(e);
    bool failed = free_pieces(e) || k->source.failed;
    k->config = e->config;
    if (ok && k->full)
        ok = epi_emitter_refuse(e, "it needs more tensors than one launch takes");
    if (!ok || failed) {
        epi_text_free(&k->source);
        return ok ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                  : epi_fail(err, EPI_ERR_UNSUPPORTED, "%s", e->reason);
    }
    return EPI_OK;
}

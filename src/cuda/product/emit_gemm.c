/* emit_gemm.c: writes the source of a product's kernel: each instruction of the design in the pieces where
 * it belongs, and the pieces put together. */
#include "cuda/product/emit_gemm.h"

/* ---- instructions ---- */

void epi_instr_emit(epi_emitter *e, int i) {
    const epi_instr_design *at = &e->d->instrs[i];
    const epi_side_tile *t = at->side_tile >= 0 ? &e->d->side_tiles[at->side_tile] : NULL;
    if (at->before)
        return;
    for (int half = 0; t && half < t->halves; half++)
        (t->staged ? epi_side_tile_emit_staged : epi_side_tile_emit_direct)(e, t + half);
    if (t)
        return;
    switch (e->d->tile->instrs[i].kind) {
    case EPI_INSTR_REDUCE_GROUP: epi_fold_emit_group(e, i); break;
    case EPI_INSTR_PARTIAL_COLS: epi_fold_emit_cols(e, i); break;
    case EPI_INSTR_PARTIAL_ROWS: epi_fold_emit_rows(e, i); break;
    default: epi_value_emit(e, i);
    }
}

/* before_packing() and keep(), and the same of a pair's second product: the instructions before the packing
 * point on a pair of accumulators. */
static void emit_keep(const epi_emitter *e, int product, epi_text *out) {
    const char *acc = epi_value_name(e, product);
    const char *which = product ? "_pair" : "";
    int kept = e->d->kept[product], split = e->d->split[product];
    epi_text_add(out,
                 "// The result up to the point where it is rounded to 16 bits.\n"
                 "DEV void before_packing%s(const Rows &R, int i, float &v0, float &v1) {\n"
                 "  const float %s_0 = v0, %s_1 = v1;\n",
                 which, acc, acc);
    for (int i = 0; i < e->d->tile->instr_count; i++)
        if (e->d->instrs[i].before && e->d->instrs[i].product == product)
            epi_value_emit_elements(e, i, out, "  ");
    const char *scale = "";
    if (split >= 0) {
        const epi_instr *s = &e->d->tile->instrs[split];
        scale = epi_emit_text(e->d->c, " * %s%s", s->sign < 0 ? "-" : "",
                              epi_value_use(e, s->arg[0] == kept ? s->arg[1] : s->arg[0], 0));
    }
    epi_text_add(out, "  v0 = %s%s;\n  v1 = %s%s;\n}\n", epi_value_use(e, kept, 0), scale,
                 epi_value_use(e, kept, 1), scale);
    epi_text_add(out,
                 "DEV u32 keep%s(const Rows &R, int i, float v0, float v1) {\n  before_packing%s(R, i, v0, "
                 "v1);\n  return pack<HALF>(v0, v1);\n}\n",
                 which, which);
}

/* ---- the whole ---- */

/* How deep a stage of the ring is, and how many of them an operand's depth takes. */
static int deep_of(const epi_gemm_design *d) {
    return d->config.scaled ? 128 : 64;
}

static int64_t stages_of(const epi_gemm_design *d, const epi_operand *o) {
    return epi_ceil_div(o->deep, deep_of(d));
}

/* Of products that are added up: which one a stage of the depth belongs to, and the first stage of each. */
static void write_terms(const epi_gemm_design *d, epi_text *out) {
    const char *of = "0", *begins = "";
    int64_t stages = 0;
    for (int t = 0; t < d->terms - 1; t++) {
        stages += stages_of(d, &d->operands[2 * t]);
        of = epi_emit_text(d->c, "%s + ((k) >= %ld)", of, (long)stages);
        begins = epi_emit_text(d->c, "%s(t) == %d ? %ld : ", begins, t + 1, (long)stages);
    }
    epi_text_add(out, "#define TERMS %d\n#define TERM_OF(k) (%s)\n#define TERM_BEGIN(t) (%s0)\n", d->terms,
                 of, begins);
}

/* What the device texts are told by macros, but for what follows from the epilogue. Depths that come one after the other
 * begin with a stage each. */
static void write_macros(const epi_gemm_design *d, epi_text *out) {
    const epi_config *f = &d->config;
    int64_t depth = d->terms > 1 ? 0 : d->depth;
    /* the launch before may write an index: which weights are wanted is not known ahead */
    const int ahead = d->operands[1].chosen == EPI_NO_NODE ? EPI_AHEAD_BYTES : 0;
    for (int t = 0; t < d->terms && d->terms > 1; t++)
        depth += deep_of(d) * stages_of(d, &d->operands[2 * t]);
    write_terms(d, out);
    epi_text_add(
        out,
        "#define NAME gemm\n#define EPI_FAST %d\n#define K_SIZE %s\n#define TILE_M %d\n#define TILE_N "
        "%d\n#define STAGES %d\n#define CLUSTER %d\n#define SUBTILE %d\n#define DEFERRED %d\n#define "
        "KEEP_F32 %d\n#define A_MN %d\n#define B_MN %d\n#define HALF %s\n",
        d->fast, epi_emit_int(d->c, depth), f->tile_m, f->tile_n, f->stages, f->cluster, f->subtile,
        f->schedule == EPI_DEFERRED, !f->packed, d->operands[0].mn, d->operands[1].mn,
        epi_emit_type(d->half));
    epi_text_add(out,
                 "#define PACKED %d\n#define NARROW %d\n#define NARROW_DEEP %d\n"
                 "#define TILE_COLS (TILE_N / PRODUCTS)\n#define SUBTILES (TILE_COLS / SUBTILE)\n"
                 "#define PAIR (TILE_COLS / 16)   // fragments before those of a second product\n"
                 "#define BATCHED %d\n#define BATCH_ROWS %s\n#define FEW %d\n#define PANELS "
                 "%d\n#define AHEAD %d\n#define SCALED %d\n",
                 f->packed, d->tiling.narrow, d->tiling.narrow_deep, d->batch_rows > 0,
                 epi_emit_int(d->c, d->batch_rows), f->few, f->panels, ahead, f->scaled);
}

void epi_emit_piece_macros(const epi_gemm_piece *p, int slots, int staging, epi_text *out) {
    epi_text_add(
        out,
        "#define JOINED %d\n#define SUBTILE_BYTES %d\n#define STAGING_SLOTS %d\n#define STAGING_BYTES "
        "%d\n#define RING_BYTES %d\n#define LOADS %d\n#define LANES %d\n#define FOLDS %d\n#define OWN "
        "%d\n#define HEAVY %d\n",
        p->joined, p->subtile_bytes, slots, staging, p->ring_bytes, p->loads, p->lanes, p->folds, p->own,
        p->heavy);
}

/* Where the groups of rows or of the depth begin, and how a row is counted in its group. */
static void write_groups(const epi_gemm_design *d, epi_text *out) {
    epi_group group = d->plan->group;
    epi_text_add(out,
                 "#define ROW_GROUPS %d\n#define DEPTH_GROUPS %d\n#define GROUPED (ROW_GROUPS || "
                 "DEPTH_GROUPS)\n#define GATHERED %d\n#define GATHERERS (2 * GATHERED)   // warps\n#define "
                 "LONGEST_FIRST %d\n",
                 group == EPI_GROUP_ROWS, group == EPI_GROUP_DEPTH, d->operands[0].gather != EPI_NO_NODE,
                 d->longest_first);
    if (!group)
        return;
    epi_dtype type = epi_emit_ref(d->c, d->plan->offsets, -1).type;
    epi_text_add(out,
                 "#define GROUP_COUNT %s\n#define GROUP_BITS %d\n#define NAME_COLUMNS %ld\n#define "
                 "GROUPED_SIZE %s\n"
                 "#define OFFSET(P, e) %s<%s>(P.ptr[%d], e)\n",
                 epi_emit_int(d->c, d->groups), d->group_bits, (long)d->name_columns,
                 group == EPI_GROUP_ROWS ? "(int)P.M" : "K_SIZE",
                 epi_dtype_is_integer(type) ? "integer" : "load", epi_emit_type(type), d->offsets);
    if (group == EPI_GROUP_DEPTH)
        epi_text_add(out, "#define WHOLE_MAPS %d\n", d->whole_maps);
}

/* What a function is told of a row: on Hopper, of a group's, where that lies in memory, too. */
static const char *row_type(const epi_emitter *e) {
    bool told = e->d->plan->group == EPI_GROUP_ROWS && e->d->config.mainloop == EPI_GEMM_SM90;
    return told ? "TileRow" : "int";
}

void epi_emitter_put_rows(const epi_emitter *e, const char *parameters, epi_text *out) {
    epi_text_add(out,
                 "struct Rows {\n%s};\nDEV void rows_load(Rows &R, const Params &P, %s row%s) {\n#pragma "
                 "unroll\n  for (int h = 0; h < 2; h++) {\n"
                 "    const int r = row_near(P, row + 8 * h);\n    (void)r;\n%s  }\n}\n",
                 epi_piece(&e->members), row_type(e), parameters, epi_piece(&e->rows));
}

void epi_emitter_put_loops(const epi_emitter *e, const char *columns, const char *first, const char *last,
                           epi_text *out) {
    epi_text_add(out,
                 "%s#pragma unroll\n  for (int j = 0; j < %s / 16; j++) {\n"
                 "%s#pragma unroll\n    for (int i = 0; i < 4; i++) {\n"
                 "      const int n = col + 16 * j + 8 * (i >> 1) + 2 * q;\n      (void)n;\n"
                 "%s%s%s    }\n%s  }\n%s",
                 epi_piece(&e->begin), columns, epi_piece(&e->fragment), first, epi_piece(&e->cell), last,
                 epi_piece(&e->after), epi_piece(&e->end));
}

/* The structs and functions that a mainloop calls at a tile's start and for each of its subtiles. */
static void write_epilogue(const epi_emitter *e, epi_text *out) {
    epi_emitter_put_rows(e, "", out);
    for (int p = 0; p < e->d->products; p++)
        emit_keep(e, p, out);
    epi_text_add(out, "struct Sums {\n%s};\n", epi_piece(&e->sums));
    epi_text_add(
        out,
        "template <int C, class Acc> DEV void epilogue_subtile(const Acc &acc, const Rows &R, Sums &S, "
        "const Params &P, u32 staging, %s row, int col, int thread) {\n"
        "  const int lane = thread & 31, q = lane & 3, warp = thread >> 5 & 3;\n"
        "  const u32 srow = warp * 16 + (lane >> 2), mrow = warp * 16 + (lane & 15), munit = lane "
        ">> 4 << 4;\n"
        "  (void)q; (void)srow; (void)mrow; (void)munit;\n",
        row_type(e));
    epi_emitter_put_loops(e, "SUBTILE", epi_value_results(e), "", out);
    epi_text_add(out, "}\n");
    if (e->fold_warps.data)
        epi_text_add(
            out,
            "// What the warps of %d rows have left of a subtile; T threads share it.\n"
            "template <int T> DEV void subtile_fold(const Params &P, u32 staging, int m, int n, int t) {\n"
            "  if (m >= P.M) return;\n%s}\n",
            EPI_PARTIAL_ROWS, e->fold_warps.data);
}

/* How warps that move tiles reach them. */
static void write_moves(const epi_emitter *e, epi_text *out) {
    const char *row = row_type(e);
    epi_text_add(
        out, "DEV void subtile_load(const Params &P, u32 staging, u32 bar, %s m, int n, int lane) {\n%s}\n",
        row, epi_piece(&e->moves));
    epi_text_add(out,
                 "DEV void subtile_store(const Params &P, u32 staging, %s m, int n, int lane, bool "
                 "lanes) {\n%s}\n"
                 "DEV void subtile_store_own(const Params &P, u32 staging, %s m, int n, int lane, int "
                 "warp) {\n%s}\n",
                 row, epi_piece(&e->moves_out), row, epi_piece(&e->own_out));
    epi_text_add(out, "DEV void subtile_prefetch(const Params &P, %s m, int n, int lane) {\n%s}\n", row,
                 epi_piece(&e->prefetch));
}

/* Products of a stage on Hopper's tensor cores. */
static void write_wgmma(const epi_gemm_design *d, epi_text *out) {
    int wide = d->config.tile_n, narrow = d->tiling.narrow;
    const char *last = epi_emit_text(d->c, "%d, %d", d->operands[0].mn, d->operands[1].mn);
    if (d->config.scaled)
        epi_operand_emit_scaled(out, d);
    else
        epi_emit_wgmma(out, d->half, d->half, "wgmma", wide / 2, wide, false, last);
    if (narrow)
        epi_emit_wgmma(out, d->half, d->half, "wgmma_narrow", wide / 2, narrow, false, last);
}

/* How the mainloop reaches its operands, and warps that move tiles theirs. */
static void write_access(const epi_emitter *e, epi_text *out) {
    const epi_gemm_design *d = e->d;
    if (d->config.mainloop == EPI_GEMM_SM90) {
        write_moves(e, out);
        write_wgmma(d, out);
        if (d->operands[0].gather != EPI_NO_NODE) {
            epi_operand_emit_gathered(out, d->c, &d->operands[0]);
            epi_text_add(out, "%s", epi_device_text("gather"));
        }
    } else if (d->config.mainloop == EPI_GEMM_FEW) {
        epi_few_emit(out, d);
    } else {
        epi_operand_emit(out, d->c, 'A', &d->operands[0]);
        epi_operand_emit(out, d->c, 'B', &d->operands[1]);
    }
    if (d->config.mainloop == EPI_GEMM_SM80)
        epi_text_add(out, "#define BK %d\n#define A_VEC %d\n#define B_VEC %d\n", EPI_SM80_DEPTH,
                     d->operands[0].vec, d->operands[1].vec);
}

/* TMA's coordinates of column n: one, or three where two halves of the columns meet. */
static const char *column_at(const epi_gemm_design *d) {
    const epi_operand *b = &d->operands[1];
    long inner = b->halves && b->out.count > 1 ? (long)b->out.size[1] : 0;
    if (inner)
        return epi_emit_text(d->c, "0, (n) / 2 %% %ld, (n) / %ld", inner, 2 * inner);
    return !b->halves ? "n" : d->plan->group == EPI_GROUP_ROWS ? "0, (n) / 2" : "0, (n) / 2, 0";
}

/* TMA's coordinates of column n, and those of a batch for each tensor that it moves. */
static void write_batches(const epi_gemm_design *d, epi_text *out) {
    const epi_operand *b = &d->operands[1];
    bool grouped = d->plan->group == EPI_GROUP_ROWS;
    epi_text_add(out, "#define B_AT(n) %s\n", column_at(d));
    if (d->config.mainloop != EPI_GEMM_SM90)
        return;
    if (grouped)
        epi_text_add(out, "#define GROUP_AT_B(row) %s\n",
                     d->group_step ? epi_emit_text(d->c, "+ batch_of(P, row) * %ld", (long)d->group_step)
                     : b->halves   ? ", batch_of(P, row)"
                                   : ", B_batch0(P, batch_of(P, row)), B_batch1(P, batch_of(P, row))");
    for (int side = d->batch_rows ? 0 : 1; side < 2 && (d->batch_rows || grouped); side++) {
        epi_batch_place place = d->operands[side].place;
        place.named = epi_operand_choice(d->c, &d->operands[side]);
        epi_batch_emit(out, d->c, side ? "B" : "A", &place);
    }
    for (int i = 0; i < d->side_tile_count && d->batch_rows; i++)
        if (d->side_tiles[i].staged)
            epi_batch_emit(out, d->c, epi_emit_text(d->c, "tile%d", d->side_tiles[i].number),
                           &d->side_tiles[i].place);
}

static void write_source(const epi_emitter *e, epi_kernel_text *k) {
    const epi_gemm_design *d = e->d;
    epi_mainloop mainloop = d->config.mainloop;
    epi_text *out = &k->source;
    write_macros(d, out);
    write_groups(d, out);
    epi_emit_piece_macros(&k->piece, d->config.staging_slots, d->staging_bytes, out);
    epi_text_add(out,
                 "#define N_SIZE %s\n#define PRODUCTS %d\n#define A_LAST %d\n#define LOAD_BYTES %d\n"
                 "#define CLAMPED %d\n",
                 epi_emit_int(d->c, d->tile->n), d->products, d->operands[0].last, d->load_bytes, d->clamped);
    epi_emit_head(d->c->spec->open, k, d->lanes ? epi_device_text("tiles") : "", "M, raster, queue, counter");
    epi_text_add(out, "%s%s", d->groups ? epi_device_text("groups") : "", epi_device_text("batch"));
    write_batches(d, out);
    write_epilogue(e, out);
    write_access(e, out);
    bool sm90 = mainloop == EPI_GEMM_SM90;
    epi_text_add(out, "\n// ---- the mainloop\n\n%s%s%s%s%s",
                 mainloop == EPI_GEMM_FEW ? epi_device_text("few_bits") : "",
                 sm90                       ? epi_device_text("counter")
                 : mainloop == EPI_GEMM_ANY ? ""
                                            : epi_device_text("mma"),
                 sm90 ? epi_device_text("order") : "", sm90 ? epi_device_text("gemm_sm90_tile") : "",
                 epi_device_text(epi_mainloop_name(mainloop)));
}

/* A text that lasts as long as the kernel. */
static const char *keep_text(const epi_gemm_design *d, epi_text *t, epi_kernel_text *k) {
    const char *kept = t->data ? epi_arena_text(d->c->arena, t->data, t->length) : "";
    k->source.failed |= t->failed || !kept;
    epi_text_free(t);
    return kept;
}

/* Its epilogue, which is part of a text of several products. */
static void write_piece(const epi_emitter *e, epi_kernel_text *k) {
    const epi_gemm_design *d = e->d;
    epi_text alike = {0}, wgmma = {0}, columns = {0};
    write_macros(d, &alike);
    write_groups(d, &alike);
    write_wgmma(d, &wgmma);
    epi_text_add(&columns, "%s", epi_emit_int(d->c, d->tile->n));
    k->piece.alike = keep_text(d, &alike, k);
    k->piece.wgmma = keep_text(d, &wgmma, k);
    k->piece.columns = keep_text(d, &columns, k);
    write_epilogue(e, &k->source);
    write_moves(e, &k->source);
    epi_text_add(&k->source,
                 "const int subtiles = SUBTILES;\n"
                 "DEV u32 loaded_bytes(const Params &P, int m) { return %s; }\n"
                 "template <class F> DEV void with_columns(int n, const F &f) { f(%s); }\n",
                 d->clamped ? epi_emit_text(d->c, "%d * rows_left(P, m, 64)", d->load_bytes / EPI_STAGED_ROWS)
                            : epi_emit_text(d->c, "%d", d->load_bytes),
                 column_at(d));
}

bool epi_emitter_free(epi_emitter *e) {
    epi_text *all[] = {&e->members,   &e->rows,     &e->sums,   &e->begin,      &e->fragment,
                       &e->cell,      &e->after,    &e->end,    &e->fold_warps, &e->moves,
                       &e->moves_out, &e->prefetch, &e->own_out};
    bool failed = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        failed |= all[i]->failed;
        epi_text_free(all[i]);
    }
    return failed;
}

epi_status epi_emit_gemm(const epi_gemm_design *d, bool joined, epi_kernel_text *k, epi_error *err) {
    epi_emitter e = {.d = d};
    epi_side_tiles_emit_moves(&e);
    if (d->plan->group == EPI_GROUP_ROWS) {
        epi_text_add(&e.members, "  bool there[2];\n");
        epi_text_add(&e.rows, "    R.there[h] = row_there(P, row + 8 * h);\n");
    }
    for (int i = 0; i < d->tile->instr_count; i++)
        epi_instr_emit(&e, i);
    k->piece = (epi_gemm_piece){.joined = joined,
                                .products = d->products,
                                .subtile_bytes = d->subtile_bytes,
                                .ring_bytes = d->ring_bytes,
                                .fixed_bytes = d->fixed_bytes,
                                .loads = d->loads,
                                .lanes = d->lanes,
                                .folds = d->folds,
                                .own = d->own,
                                .heavy = d->heavy,
                                .layout = d->operands[0].mn + 2 * d->operands[1].mn + 4 * d->config.packed +
                                          8 * d->fast + 16 * (int)d->half};
    (joined ? write_piece : write_source)(&e, k);
    k->source.failed |= epi_emitter_free(&e);
    return epi_emit_end(k, err);
}

/* emit_side_tiles.c: writes staged tiles: how they move between memory and shared memory, and how cells read
 * and write them there. */
#include "cuda/product/emit_gemm.h"

/* ---- how they get there ---- */

/* A panel that lanes move: where it stands, and how far its tensor goes. */
static void emit_lanes(epi_emitter *e, const epi_side_tile *t, int at, const char *x, const char *y,
                       const char *name) {
    const epi_emit_context *c = e->d->c;
    const epi_walk *rows = &t->rows, *cols = &t->cols.walk;
    int width = t->panel_width, size = (int)epi_dtype_size(t->ref.type);
    const char *height = t->row_mod ? epi_emit_text(c, "%s + %d", y, EPI_STAGED_ROWS)
                         : e->d->plan->group == EPI_GROUP_ROWS ? "operand_rows(P, m)"
                                                               : "(int)P.M";
    const char *place = epi_emit_text(c, "%s, %s, %s, %s, %s, lane", y, x, height,
                                      epi_emit_int(c, cols->size[cols->count - 1]),
                                      epi_emit_count(c, rows->stride[rows->count - 1], ""));
    if (t->store) {
        epi_text_add(
            &e->moves_out,
            "  if (lanes) panel_store<%d, %d, %d, 64>(staging + %d, (void *)P.ptr[%d], %s, 0);   // %s\n",
            width, size, t->rows_moved, at, t->pointer, place, name);
        epi_text_add(
            &e->own_out,
            "  panel_store<%d, %d, %d, 16>(staging + %d, (void *)P.ptr[%d], %s, 16 * warp);   // %s\n", width,
            size, t->rows_own, at, t->pointer, place, name);
    } else {
        epi_text_add(&e->moves, "  panel_load<%d, %d, %d>(staging + %d, P.ptr[%d], %s);   // %s\n", width,
                     size, t->rows_moved, at, t->pointer, place, name);
        epi_text_add(&e->prefetch, "  panel_prefetch<%d, %d>(P.ptr[%d], %s);\n", width, size, t->pointer,
                     place);
    }
}

/* The copies of one subtile: loads and their prefetches, or stores, panel by panel. */
static void emit_moves(epi_emitter *e, const epi_side_tile *t) {
    const epi_emit_context *c = e->d->c;
    int width = t->panel_width, inner = width / (int)epi_dtype_size(t->ref.type);
    bool grouped = e->d->plan->group == EPI_GROUP_ROWS;
    const char *name = e->d->g->nodes[t->node].name ? e->d->g->nodes[t->node].name : "",
               *one = e->d->clamped ? "lane == 0 && rows > 0" : "lane == 0",
               *map = e->d->clamped
                          ? epi_emit_text(c, "rows < %d ? %d : %d", EPI_STAGED_ROWS, t->last, t->map)
                          : epi_emit_text(c, "%d", t->map),
               *y = grouped            ? "first"
                    : t->row_mod       ? epi_emit_text(c, "m %% %s", epi_emit_int(c, t->row_mod))
                    : e->d->batch_rows ? epi_emit_text(c, "row_in_batch(P, m) BATCH_AT(tile%d, m)", t->number)
                                       : "m";
    for (int p = 0; p < t->panels; p++) {
        const char *x = epi_cell_index(t->elements);
        if (t->col_mod)
            x = epi_emit_text(c, "%s %% %s", x, epi_emit_int(c, t->col_mod));
        if (t->block)
            x = epi_emit_text(c, "%s / %s * %s + %s %% %s", x, epi_emit_int(c, t->block),
                              epi_emit_int(c, t->cols.walk.stride[0]), x, epi_emit_int(c, t->block));
        if (p)
            x = epi_emit_text(c, "%s + %d", x, p * inner);
        int at = t->offset + p * width * EPI_STAGED_ROWS;
        if (t->lanes) {
            emit_lanes(e, t, at, x, y, name);
        } else if (t->turned) {
            epi_text_add(&e->moves_out,
                         "  if (%s) tma_store(&P.map[%d], staging + %d, row_in_batch(P, m), %s "
                         "BATCH_AT(tile%d, m));   // %s\n",
                         one, t->map, at, x, t->number, name);
        } else if (t->store && grouped) {
            epi_text_add(&e->moves_out,
                         "  if (lane == 0 && left > 0) tma_store(&P.map[%s], staging + %d, %s, CLIP - left, "
                         "%s + left, CLIP);   // %s\n",
                         map, at, x, y, name);
        } else if (t->store) {
            epi_text_add(&e->moves_out, "  if (%s) tma_store(&P.map[%s], staging + %d, %s, %s);   // %s\n",
                         one, map, at, x, y, name);
        } else {
            epi_text_add(&e->moves, "  if (%s) tma_load(staging + %d, &P.map[%s], bar, %s, %s);   // %s\n",
                         one, at, map, x, y, name);
            epi_text_add(&e->prefetch, "  if (%s) tma_prefetch(&P.map[%s], %s, %s);\n", one, map, x, y);
        }
    }
}

void epi_side_tiles_emit_moves(epi_emitter *e) {
    static const char rows[] = "  const int rows = rows_left(P, m, 64);\n  (void)rows;\n";
    static const char grouped[] =
        "  const int first = row_number(P, m), left = min(64, operand_rows(P, m) - first);\n"
        "  (void)first; (void)left;\n";
    epi_text *all[] = {&e->moves, &e->moves_out, &e->prefetch, &e->own_out};
    for (int i = 0; i < 3 && e->d->clamped; i++)
        epi_text_add(all[i], "%s", rows);
    for (int i = 0; i < 4 && e->d->plan->group == EPI_GROUP_ROWS; i++)
        epi_text_add(all[i], "%s", grouped);
    for (int i = 0; i < e->d->side_tile_count; i++)
        if (e->d->side_tiles[i].staged)
            emit_moves(e, &e->d->side_tiles[i]);
}

/* ---- how cells read and write the staging ---- */

/* The address of bytes of a fragment's row in the staging. Where there are several panels, fragments fill
 * them in turn. */
static const char *address(const epi_emitter *e, const epi_side_tile *t, const char *row, const char *byte) {
    int width = t->panel_width, fragment = 8 * t->bytes;
    return t->panels > 1
               ? epi_emit_text(
                     e->d->c, "staging + %d + j * %d / %d * %d + swizzled<%d>(%s, j * %d %% %d + %s)",
                     t->offset, fragment, width, width * EPI_STAGED_ROWS, width, row, fragment, width, byte)
               : epi_emit_text(e->d->c, "staging + %d + swizzled<%d>(%s, j * %d + %s)", t->offset, width, row,
                               fragment, byte);
}

/* The same of a cell's. */
static const char *cell_address(const epi_emitter *e, const epi_side_tile *t) {
    return address(e, t, "srow + 8 * (i & 1)", epi_emit_text(e->d->c, "(4 * (i >> 1) + q) * %d", t->bytes));
}

/* Which of a value's elements is element el of the tile. */
static int element(const epi_side_tile *t, int el) {
    return el * t->halves + t->half;
}

/* Cells of two 16-bit elements are what ldmatrix and stmatrix move, four at a time. */
static bool by_matrix(const epi_side_tile *t) {
    return t->elements == 2 && t->bytes == 4;
}

/* Loads of a fragment come before its cells and stores after them, so that the cells' chains overlap. */
static void emit_staged_load(epi_emitter *e, const epi_side_tile *t) {
    const char *name = epi_value_name(e, e->d->tile->instrs[t->instr].dst),
               *type = epi_emit_type(t->ref.type),
               *all = epi_emit_text(e->d->c, "%s%s", name, t->half ? "_second" : "");
    static const char *const words[] = {"", "u32", "u32", "uint2", "uint4"};
    static const char field[] = "xyzw";
    if (by_matrix(t)) {
        epi_text_add(&e->fragment, "    u32 %s_w[4];\n    ldm4(%s, %s_w);\n", all,
                     address(e, t, "mrow", "munit"), all);
        epi_text_add(&e->cell, "      const float %s_%d = low<%s>(%s_w[i]), %s_%d = high<%s>(%s_w[i]);\n",
                     name, element(t, 0), type, all, name, element(t, 1), type, all);
        return;
    }
    int size = t->bytes == 16 ? 4 : t->bytes == 8 ? 3 : t->bytes == 4 ? 2 : 1;
    epi_text_add(&e->fragment,
                 "    %s %s_w[4];\n#pragma unroll\n    for (int i = 0; i < 4; i++) %s_w[i] = lds%d(%s);\n",
                 words[size], all, all, 8 * t->bytes, cell_address(e, t));
    for (int el = 0; el < t->elements; el++) {
        epi_text_add(&e->cell, "      const float %s_%d = ", name, element(t, el));
        if (t->ref.type == EPI_F32 && t->elements == 1)
            epi_text_add(&e->cell, "__uint_as_float(%s_w[i]);\n", all);
        else if (t->ref.type == EPI_F32)
            epi_text_add(&e->cell, "__uint_as_float(%s_w[i].%c);\n", all, field[el]);
        else if (t->elements == 1)
            epi_text_add(&e->cell, "low<%s>(%s_w[i]);\n", type, all);
        else
            epi_text_add(&e->cell, "%s<%s>(%s_w[i].%c);\n", el & 1 ? "high" : "low", type, all,
                         field[el / 2]);
    }
}

/* What its element el is. */
static const char *stored(const epi_emitter *e, const epi_side_tile *t, int el) {
    return epi_value_use(e, epi_value_stored(e, e->d->tile->instrs[t->instr].arg[0], t->ref.type),
                         element(t, el));
}

/* Cells collect what a fragment stores; each form leaves by the widest store it fills. */
static void emit_staged_store(epi_emitter *e, const epi_side_tile *t) {
    int v = epi_value_stored(e, e->d->tile->instrs[t->instr].arg[0], t->ref.type), number = t->number;
    const char *type = epi_emit_type(t->ref.type);
    if (by_matrix(t)) {
        epi_text_add(&e->fragment, "    u32 out%d_words[4];\n", number);
        int product = epi_kept_product(e->d, v);
        if (product >= 0 && e->d->split[product] < 0 && e->d->config.packed && t->ref.type == e->d->half &&
            t->halves == 1)
            epi_text_add(&e->cell, "      out%d_words[i] = acc.word(j%s, i);\n", number,
                         product ? " + PAIR" : ""); /* it is there already */
        else
            epi_text_add(&e->cell, "      out%d_words[i] = pack<%s>(%s, %s);\n", number, type,
                         stored(e, t, 0), stored(e, t, 1));
        if (t->turned)
            epi_text_add(
                &e->after,
                "    stm4_turned(staging + %d + swizzled<128>(16 * j + 8 * (lane >> 4) + (lane & 7), "
                "32 * warp + 16 * (lane >> 3 & 1)), out%d_words);\n",
                t->offset, number);
        else
            epi_text_add(&e->after, "    stm4(%s, out%d_words);\n", address(e, t, "mrow", "munit"), number);
        return;
    }
    if (t->bytes == 2) { /* neighbouring lanes swap halves, so that each stores a word */
        bool bytes = t->elements == 2;
        const char *first = stored(e, t, 0),
                   *own = bytes ? epi_emit_text(e->d->c, "out%d_cells[h] | out%d_cells[h + 2] << 16", number,
                                                number)
                                : epi_emit_text(e->d->c, "pack<%s>(out%d_cells[h], out%d_cells[h + 2])", type,
                                                number, number);
        epi_text_add(&e->fragment, "    %s out%d_cells[4];\n", bytes ? "u32" : "float", number);
        epi_text_add(&e->cell, "      out%d_cells[i] = %s;\n", number,
                     bytes ? epi_emit_text(e->d->c, "byte_pair<%s>(%s, %s)", type, first, stored(e, t, 1))
                           : first);
        epi_text_add(&e->after,
                     "#pragma unroll\n    for (int h = 0; h < 2; h++) {\n"
                     "      const u32 own = %s, other = __shfl_xor_sync(~0u, own, 1);\n"
                     "      sts32(%s, __byte_perm(own, other, q & 1 ? 0x3276 : 0x5410));\n    }\n",
                     own, address(e, t, "srow + 8 * h", "8 * (q & 1) + 4 * (q >> 1)"));
        return;
    }
    int words = t->bytes / 4;
    epi_text_add(&e->fragment, "    u32 out%d_words[4][%d];\n", number, words);
    for (int w = 0; w < words; w++)
        if (t->ref.type == EPI_F32)
            epi_text_add(&e->cell, "      out%d_words[i][%d] = __float_as_uint(%s);\n", number, w,
                         stored(e, t, w));
        else
            epi_text_add(&e->cell, "      out%d_words[i][%d] = pack<%s>(%s, %s);\n", number, w, type,
                         stored(e, t, 2 * w), stored(e, t, 2 * w + 1));
    epi_text_add(&e->after, "#pragma unroll\n    for (int i = 0; i < 4; i++) sts%d(%s", 8 * t->bytes,
                 cell_address(e, t));
    for (int w = 0; w < words; w++)
        epi_text_add(&e->after, ", out%d_words[i][%d]", number, w);
    epi_text_add(&e->after, ");\n");
}

void epi_side_tile_emit_staged(epi_emitter *e, const epi_side_tile *t) {
    (t->store ? emit_staged_store : emit_staged_load)(e, t);
}

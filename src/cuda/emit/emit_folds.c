/* emit_folds.c: writes the reductions of a tile: cross-tile ones as partials, and local ones. */
#include "cuda/product/emit_gemm.h"

/* ---- cross-tile reductions ---- */

/* Is there a column for this element? */
static const char *is_there(const epi_emitter *e, int v, int el) {
    int elements = epi_cell_elements(e->d->tile, e->d->tile->values[v].scale);
    return epi_emit_text(e->d->c, "%s + %d < %s", epi_cell_index(elements), el,
                         epi_emit_int(e->d->c, epi_cell_columns(e->d->tile, elements)));
}

/* An element that is not there counts as the reduction's identity: a column behind the last one, where a fold
 * takes `every` columns; or, where that is 0, a row behind the last. */
static const char *masked(const epi_emitter *e, epi_op op, int v, int el, int every) {
    const epi_emit_context *c = e->d->c;
    bool ragged = every ? e->d->tile->n % every != 0 : e->d->tile->m % EPI_PARTIAL_ROWS != 0;
    const char *use = epi_value_use(e, v, el);
    if (!ragged)
        return use;
    if (every)
        return epi_emit_text(c, "(%s ? %s : %s::none())", is_there(e, v, el), use, epi_ops[op].cuda);
    return epi_emit_text(c, "(%s ? %s : %s::none())", epi_row_there(e, "(i & 1)"), use, epi_ops[op].cuda);
}

/* What a row's fold takes of a fragment. Folds that work something out of several elements at once get those
 * of two cells. A variance counts its elements, so it takes only those that are there. */
static void emit_takes(epi_emitter *e, int number) {
    const epi_instr *s = &e->d->tile->instrs[number];
    int v = s->arg[0], elements = epi_cell_elements(e->d->tile, e->d->tile->values[v].scale);
    bool var = s->op == EPI_OP_VAR, ragged = e->d->tile->n % EPI_PARTIAL_COLS;
    if (var && ragged) {
        for (int el = 0; el < elements; el++)
            epi_text_add(&e->cell, "      if (%s) S.s%d[i & 1].take(%s);\n", is_there(e, v, el), number,
                         epi_value_use(e, v, el));
    } else if (var || s->op == EPI_OP_LOGSUMEXP) {
        epi_text_add(&e->fragment, "    float x%d[4][%d];\n", number, elements);
        for (int el = 0; el < elements; el++)
            epi_text_add(&e->cell, "      x%d[i][%d] = %s;\n", number, el,
                         masked(e, s->op, v, el, EPI_PARTIAL_COLS));
        epi_text_add(&e->after, "    S.s%d[0].take(x%d[0], x%d[2]);\n    S.s%d[1].take(x%d[1], x%d[3]);\n",
                     number, number, number, number, number, number);
    } else {
        for (int el = 0; el < elements; el++)
            epi_text_add(&e->cell, "      S.s%d[i & 1].take(%s);\n", number,
                         masked(e, s->op, v, el, EPI_PARTIAL_COLS));
    }
}

/* One partial per row, which covers so many columns whatever the tile. */
void epi_fold_emit_rows(epi_emitter *e, int number) {
    const epi_instr *s = &e->d->tile->instrs[number];
    const epi_instr_design *at = &e->d->instrs[number];
    bool var = s->op == EPI_OP_VAR;
    const char *fold = var ? "RunningMoments" : epi_ops[s->op].cuda;
    const char *blocks = epi_emit_ceil(e->d->c, e->d->tile->n, EPI_PARTIAL_COLS, "");
    const char *settle = var ? epi_emit_text(e->d->c, "      S.s%d[h].settle();\n", number) : "";
    epi_text_add(&e->sums, "  %s s%d[2];\n", fold, number);
    epi_text_add(&e->begin, "  if (C * SUBTILE %% %d == 0) S.s%d[0].clear(), S.s%d[1].clear();\n",
                 EPI_PARTIAL_COLS, number, number);
    emit_takes(e, number);
    epi_text_add(
        &e->end,
        "  if ((C + 1) * SUBTILE %% %d == 0 || C == SUBTILES - 1) {   // %s over %d columns leaves\n"
        "    const int block = (col + SUBTILE - 1) / %d;\n"
        "#pragma unroll\n    for (int h = 0; h < 2; h++) {\n%s"
        "      S.s%d[h].across_columns();\n"
        "      if (q == 0 && row_there(P, row + 8 * h) && block < %s) S.s%d[h].leave((float *)P.ptr[%d], "
        "(i64)block * P.M + row_number(P, row + 8 * h), %s * P.M);\n"
        "    }\n  }\n",
        EPI_PARTIAL_COLS, epi_ops[s->op].text, EPI_PARTIAL_COLS, EPI_PARTIAL_COLS, settle, number, blocks,
        number, at->pointer, blocks);
}

/* One partial per column. A warp's 16 rows are folded in its registers, fragment by fragment, and wait in the
 * subtile's staging; subtile_fold() folds the four warps of 64 rows when all have been there. */
void epi_fold_emit_cols(epi_emitter *e, int number) {
    const epi_instr *s = &e->d->tile->instrs[number];
    const epi_instr_design *at = &e->d->instrs[number];
    const char *fold = epi_ops[s->op].cuda;
    int elements = epi_cell_elements(e->d->tile, e->d->tile->values[s->arg[0]].scale);
    int wide = e->d->config.subtile * elements / 2; /* columns of a subtile */
    const char *columns = epi_emit_int(e->d->c, epi_cell_columns(e->d->tile, elements));
    epi_text_add(&e->fragment, "    %s c%d[%d];\n", fold, number, 2 * elements);
    for (int el = 0; el < elements; el++)
        epi_text_add(&e->cell, "      c%d[(i >> 1) * %d + %d].fold_row(i & 1, %s);\n", number, elements, el,
                     masked(e, s->op, s->arg[0], el, 0));
    epi_text_add(
        &e->after,
        "    {   // %s over 16 rows\n      int at;\n      const float x = down_rows(c%d, lane, at);\n"
        "      if (at >= 0) sts32(staging + %d + 4 * (warp * %d + j * %d + at), __float_as_uint(x));\n"
        "    }\n",
        epi_ops[s->op].text, number, at->staged_at, wide, 8 * elements);
    epi_text_add(&e->fold_warps,
                 "#pragma unroll\n  for (int x = t; x < %d; x += T) {   // %s over %d rows leaves\n"
                 "    const int at = n * %d / 2 + x;\n"
                 "    const float v = down_warps<%s>(staging + %d + 4 * x, %d);\n"
                 "    if (at < %s) ((float *)P.ptr[%d])[(i64)(m / %d) * %s + at] = v;\n  }\n",
                 wide, epi_ops[s->op].text, EPI_PARTIAL_ROWS, elements, fold, at->staged_at, 4 * wide,
                 columns, at->pointer, EPI_PARTIAL_ROWS, columns);
}

/* ---- reductions inside the tile ---- */

/* The result of a reduction inside the tile, as values of the cells. */
static void emit_result(epi_emitter *e, int number) {
    const epi_instr *s = &e->d->tile->instrs[number];
    if (e->d->instrs[number].of_group)
        return; /* it is used where it is kept */
    for (int el = 0; el < epi_cell_elements(e->d->tile, e->d->tile->values[s->dst].scale); el++)
        epi_text_add(&e->cell, "      const float %s_%d = S.g%d[i & 1];\n", epi_value_name(e, s->dst), el,
                     number);
}

/* The instructions marked, as a fragment's and a cell's text of their own. Another reduction inside the tile
 * among them comes earlier in the program, so its result is there. */
static void emit_makers(epi_emitter *e, const bool *makers, epi_text *fragment, epi_text *cell) {
    epi_text outer_fragment = e->fragment, outer_cell = e->cell;
    e->fragment = e->cell = (epi_text){0};
    for (int i = 0; i < e->d->tile->instr_count; i++)
        if (makers[i] && !e->d->instrs[i].of_group)
            (e->d->tile->instrs[i].kind == EPI_INSTR_REDUCE_GROUP ? emit_result : epi_value_emit)(e, i);
    *fragment = e->fragment;
    *cell = e->cell;
    e->fragment = outer_fragment;
    e->cell = outer_cell;
}

/* The pass: every fragment of the group, or of the whole row, with the loops that the subtile itself has. */
static void emit_group_pass(epi_emitter *e, int number, const epi_text *fragment, const epi_text *cell) {
    const epi_tile_program *t = e->d->tile;
    const epi_instr *s = &t->instrs[number];
    int columns = t->group[t->acc_scale],
        elements = epi_cell_elements(e->d->tile, t->values[s->arg[0]].scale);
    bool full_rows = epi_plan_has_full_rows(e->d->plan);
    bool of_group = e->d->instrs[number].of_group;
    if (!of_group)
        epi_text_add(&e->sums, "  float g%d[2];\n", number);
    epi_text_add(
        &e->fragment,
        "    if ((C * SUBTILE + 16 * j) %% %s == 0) {   // %s over %d columns, line %d\n      %s f[2];\n"
        "      f[0].clear();\n      f[1].clear();\n#pragma unroll\n      for (int u = 0; u < %d; u++) {\n"
        "        const int first = j + u;\n        {\n    const int j = first;\n%s#pragma unroll\n"
        "    for (int i = 0; i < 4; i++) {\n"
        "      const int n = col + 16 * j + 8 * (i >> 1) + 2 * q;\n      (void)n;\n%s%s",
        full_rows ? "TILE_COLS" : epi_emit_int(e->d->c, columns), epi_ops[s->op].text, columns,
        e->d->g->nodes[s->node].place.line, epi_ops[s->op].cuda, (columns + 15) / 16, epi_piece(fragment),
        epi_value_results(e), epi_piece(cell));
    for (int el = 0; el < elements; el++)
        epi_text_add(&e->fragment, "      f[i & 1].take(%s);\n", masked(e, s->op, s->arg[0], el, 16));
    epi_text_add(&e->fragment,
                 "    }\n        }\n      }\n#pragma unroll\n      for (int h = 0; h < 2; h++) {\n"
                 "        f[h].across_columns();\n");
    const char *result = "f[h].end(1.f)";
    if (s->op == EPI_OP_MEAN)
        result = epi_emit_text(e->d->c, "%s * %s", result,
                               epi_emit_number(e->d->c, 1.0 / (double)(columns * elements / 2)));
    if (of_group)
        epi_value_emit_group(e, number, result);
    else
        epi_text_add(&e->fragment, "        S.g%d[h] = %s;\n", number, result);
    epi_text_add(&e->fragment, "      }\n    }\n");
    e->fragment.failed |= fragment->failed || cell->failed;
}

/* A reduction over neighbouring columns that the tile holds whole, or over all columns: at the group's first
 * columns, one pass over its accumulators works out the result, which stays until the next group. */
void epi_fold_emit_group(epi_emitter *e, int number) {
    epi_text fragment, cell;
    e->first_pass = e->d->leaves && !e->passed;
    emit_result(e, number);
    emit_makers(e, e->d->instrs[number].makers, &fragment, &cell);
    if (e->first_pass) {
        const char *name = epi_value_name(e, e->d->left);
        epi_text_add(&cell, "      acc.leave(j, i, %s_0, %s_1);\n", name, name);
    }
    emit_group_pass(e, number, &fragment, &cell);
    e->passed = true;
    e->first_pass = false;
    epi_text_free(&fragment);
    epi_text_free(&cell);
}

/* emit_folds.c: reductions of a tile as text: those that leave as partials, and those that stay inside it. */
#include "cuda/emit_gemm.h"

/* ---- reductions that leave ---- */

/* An element that is not there counts as the reduction's identity. */
static void emit_masked(epi_emitter *e, epi_text *out, epi_op op, int v, int el, bool rows) {
    int elements = epi_cell_elements(e, e->tile->values[v].scale);
    bool ragged = rows ? e->tile->n % EPI_PARTIAL_COLS != 0 : e->tile->m % EPI_PARTIAL_ROWS != 0;
    if (!ragged) {
        epi_text_add(out, "%s", epi_value_use(e, v, el).text);
        return;
    }
    if (rows)
        epi_text_add(out, "(%s + %d < %ld ? %s : %s::none())", epi_cell_index(elements), el,
                     (long)epi_cell_columns(e, elements), epi_value_use(e, v, el).text, epi_emit_fold(op));
    else
        epi_text_add(out, "(row + 8 * (i & 1) < P.M ? %s : %s::none())", epi_value_use(e, v, el).text,
                     epi_emit_fold(op));
}

/* A partial covers the same columns whatever the tile, so that a row's bits do not depend on the
 * configuration. */
void epi_fold_rows(epi_emitter *e, int number) {
    const epi_instr *s = &e->tile->instrs[number];
    const char *fold = epi_emit_fold(s->op);
    int elements = epi_cell_elements(e, e->tile->values[s->arg[0]].scale),
        pointer = epi_emit_pointer(e->k, s->node, EPI_POINTER_WORKSPACE);
    int64_t blocks = epi_ceil_div(e->tile->n, EPI_PARTIAL_COLS);
    bool two = s->op == EPI_OP_LOGSUMEXP;
    e->c->partials[s->node] = e->c->workspace;
    e->c->workspace += epi_round_up(blocks * e->tile->m * (two ? 2 : 1) * 4, 64);
    epi_text_add(&e->sums, "  %s s%d[2];\n", fold, number);
    epi_text_add(&e->begin, "  if (C * STEP %% %d == 0) S.s%d[0].clear(), S.s%d[1].clear();\n",
                 EPI_PARTIAL_COLS, number, number);
    if (two) {
        epi_text_add(&e->group, "    float x%d[4][%d];\n", number, elements);
        for (int el = 0; el < elements; el++) {
            epi_text_add(&e->cell, "      x%d[i][%d] = ", number, el);
            emit_masked(e, &e->cell, s->op, s->arg[0], el, true);
            epi_text_add(&e->cell, ";\n");
        }
        epi_text_add(&e->after, "    S.s%d[0].take(x%d[0], x%d[2]);\n    S.s%d[1].take(x%d[1], x%d[3]);\n",
                     number, number, number, number, number, number);
    } else {
        for (int el = 0; el < elements; el++) {
            epi_text_add(&e->cell, "      S.s%d[i & 1].take(", number);
            emit_masked(e, &e->cell, s->op, s->arg[0], el, true);
            epi_text_add(&e->cell, ");\n");
        }
    }
    epi_text_add(&e->end,
                 "  if ((C + 1) * STEP %% %d == 0 || C == STEPS - 1) {   // %s over %d columns leaves\n"
                 "    const int block = (col + STEP - 1) / %d;\n"
                 "#pragma unroll\n    for (int h = 0; h < 2; h++) {\n"
                 "      S.s%d[h].across_columns();\n"
                 "      if (q == 0 && row + 8 * h < P.M && block < %ld) S.s%d[h].leave((float *)P.ptr[%d] + "
                 "%ldLL, (i64)block * P.M + row + 8 * h, %ldLL * P.M);\n"
                 "    }\n  }\n",
                 EPI_PARTIAL_COLS, epi_ops[s->op].text, EPI_PARTIAL_COLS, EPI_PARTIAL_COLS, number,
                 (long)blocks, number, pointer, (long)(e->c->partials[s->node] / 4), (long)blocks);
}

/* Columns of a step that a reduction down the rows has a result for. */
static int fold_columns(const epi_emitter *e, int number) {
    return e->config.step * epi_cell_elements(e, e->tile->values[e->tile->instrs[number].arg[0]].scale) / 2;
}

/* A float for each of the four warps of 64 rows, and each column. */
int epi_fold_bytes(const epi_emitter *e, int before) {
    int bytes = 0;
    for (int i = 0; i < before; i++)
        if (e->tile->instrs[i].kind == EPI_INSTR_PARTIAL_COLS)
            bytes += 4 * 4 * fold_columns(e, i);
    return bytes;
}

/* A warp's 16 rows are folded in its registers, group by group, and wait in the step's staging; step_fold()
 * folds the four warps of 64 rows when all have been there. */
bool epi_fold_cols(epi_emitter *e, int number) {
    const epi_instr *s = &e->tile->instrs[number];
    const char *fold = epi_emit_fold(s->op);
    int elements = epi_cell_elements(e, e->tile->values[s->arg[0]].scale),
        pointer = epi_emit_pointer(e->k, s->node, EPI_POINTER_WORKSPACE);
    if (s->op == EPI_OP_LOGSUMEXP)
        return epi_emitter_refuse(e, "a logsumexp down the rows does not leave a tile");
    long columns = (long)epi_cell_columns(e, elements);
    e->c->partials[s->node] = e->c->workspace;
    e->c->workspace += epi_round_up(epi_ceil_div(e->tile->m, EPI_PARTIAL_ROWS) * columns * 4, 64);
    epi_text_add(&e->group, "    %s c%d[%d];\n", fold, number, 2 * elements);
    for (int el = 0; el < elements; el++) {
        epi_text_add(&e->cell, "      c%d[(i >> 1) * %d + %d].fold_row(i & 1, ", number, elements, el);
        emit_masked(e, &e->cell, s->op, s->arg[0], el, false);
        epi_text_add(&e->cell, ");\n");
    }
    int wide = fold_columns(e, number), offset = e->folds_at + epi_fold_bytes(e, number);
    epi_text_add(
        &e->after,
        "    {   // %s over 16 rows\n      int at;\n      const float x = down_rows(c%d, lane, at);\n"
        "      if (at >= 0) sts32(stage + %d + 4 * (warp * %d + j * %d + at), __float_as_uint(x));\n"
        "    }\n",
        epi_ops[s->op].text, number, offset, wide, 8 * elements);
    epi_text_add(&e->leave,
                 "#pragma unroll\n  for (int x = t; x < %d; x += T) {   // %s over %d rows leaves\n"
                 "    const int at = n * %d / 2 + x;\n"
                 "    const float v = down_warps<%s>(stage + %d + 4 * x, %d);\n"
                 "    if (at < %ld) ((float *)P.ptr[%d])[%ldLL + (i64)(m / %d) * %ldLL + at] = v;\n  }\n",
                 wide, epi_ops[s->op].text, EPI_PARTIAL_ROWS, elements, fold, offset, 4 * wide, columns,
                 pointer, (long)(e->c->partials[s->node] / 4), EPI_PARTIAL_ROWS, columns);
    return true;
}

/* ---- reductions inside the tile ---- */

/* Marks the steps that make a value of the tile; false where a tile is loaded on the way: it is staged for
 * one step at a time, and the group is wider. */
static bool mark_makers(const epi_emitter *e, int v, bool *makers) {
    const epi_tile_program *t = e->tile;
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        if (s->dst != v || e->before[i] || makers[i] || v == e->kept)
            continue;
        if (s->kind == EPI_INSTR_LOAD && epi_value_is_full(&t->values[v]))
            return false;
        makers[i] = t->values[v].scale != EPI_SCALE_NONE;
        for (int a = 0; a < 3 && s->kind != EPI_INSTR_REDUCE_GROUP; a++)
            if (s->arg[a] >= 0 && !mark_makers(e, s->arg[a], makers))
                return false;
    }
    return true;
}

/* The steps marked, as a group's and a cell's text of their own. */
static bool emit_makers(epi_emitter *e, const bool *makers, epi_text *group, epi_text *cell) {
    epi_text outer_group = e->group, outer_cell = e->cell;
    bool ok = true;
    e->group = e->cell = (epi_text){0};
    for (int i = 0; i < e->tile->instr_count && ok; i++)
        if (makers[i])
            ok = epi_emitter_step(e, i);
    *group = e->group;
    *cell = e->cell;
    e->group = outer_group;
    e->cell = outer_cell;
    return ok;
}

/* The pass: every group of 16 columns of the reduction, with the loops that the step itself has. */
static void emit_group_pass(epi_emitter *e, int number, const epi_text *group, const epi_text *cell) {
    const epi_tile_program *t = e->tile;
    const epi_instr *s = &t->instrs[number];
    int columns = t->group[t->acc_scale], elements = epi_cell_elements(e, t->values[s->arg[0]].scale);
    epi_name kept = epi_value_name(e, e->kept);
    epi_text_add(&e->sums, "  float g%d[2];\n", number);
    epi_text_add(
        &e->group,
        "    if ((C * STEP + 16 * j) %% %d == 0) {   // %s over %d columns, line %d\n      %s f[2];\n"
        "      f[0].clear();\n      f[1].clear();\n#pragma unroll\n      for (int u = 0; u < %d; u++) {\n"
        "        const int first = j + u;\n        {\n    const int j = first;\n%s#pragma unroll\n"
        "    for (int i = 0; i < 4; i++) {\n"
        "      const int n = col + 16 * j + 8 * (i >> 1) + 2 * q;\n      (void)n;\n"
        "      const float %s_0 = acc(j, i, 0), %s_1 = acc(j, i, 1);\n%s",
        columns, epi_ops[s->op].text, columns, e->g->nodes[s->node].place.line, epi_emit_fold(s->op),
        columns / 16, group->data ? group->data : "", kept.text, kept.text, cell->data ? cell->data : "");
    for (int el = 0; el < elements; el++)
        epi_text_add(&e->group, "      f[i & 1].take(%s);\n", epi_value_use(e, s->arg[0], el).text);
    epi_text_add(&e->group, "    }\n        }\n      }\n#pragma unroll\n      for (int h = 0; h < 2; h++) {\n"
                            "        f[h].across_columns();\n");
    if (s->op == EPI_OP_MEAN)
        epi_text_add(&e->group, "        S.g%d[h] = f[h].end(1.f) * %s;\n", number,
                     epi_emit_number(1.0 / (double)(columns * elements / 2)).text);
    else
        epi_text_add(&e->group, "        S.g%d[h] = f[h].end(1.f);\n", number);
    epi_text_add(&e->group, "      }\n    }\n");
    e->group.failed |= group->failed || cell->failed;
}

/* A reduction over neighbouring columns that the tile holds whole: at the group's first columns, one pass
 * over its accumulators works out the result, which stays until the next group. */
bool epi_fold_group(epi_emitter *e, int number) {
    const epi_tile_program *t = e->tile;
    const epi_instr *s = &t->instrs[number];
    int columns = t->group[t->acc_scale];
    for (int el = 0; el < epi_cell_elements(e, t->values[s->dst].scale); el++)
        epi_text_add(&e->cell, "      const float %s_%d = S.g%d[i & 1];\n", epi_value_name(e, s->dst).text,
                     el, number);
    if (e->grouped[number]) /* another reduction needs it */
        return true;
    e->grouped[number] = true;
    bool *makers = epi_arena_alloc(e->c->arena, (size_t)t->instr_count + 1);
    if (!makers || columns % 16 || (e->config.mainloop != EPI_GEMM_SM90 && EPI_PARTIAL_COLS % columns))
        return epi_emitter_refuse(e, "a reduction over %d neighbouring columns does not fit this mainloop",
                                  columns);
    if (!mark_makers(e, s->arg[0], makers))
        return epi_emitter_refuse(e, "a reduction inside the tile of a value that is loaded");
    epi_text group, cell;
    bool ok = emit_makers(e, makers, &group, &cell);
    if (ok)
        emit_group_pass(e, number, &group, &cell);
    epi_text_free(&group);
    epi_text_free(&cell);
    return ok;
}

/* emit_direct.c: tiles that are loaded and stored element by element, not through staging. */
#include <stdio.h>

#include "cuda/emit_gemm.h"

/* Are a cell's elements neighbours in memory that start at a multiple of their number? */
static bool is_vector(const epi_emitter *e, const epi_stream *t) {
    for (int d = 0; d < t->rows.count; d++)
        if (t->rows.stride[d] % t->elements)
            return false;
    return t->apart % t->elements == 0 && epi_cell_is_vector(e, &t->ref, &t->cols, t->elements);
}

/* Where the cells' two rows start is worked out once a tile. A row whose place is outside of the axis starts
 * nowhere, at -1. */
static void emit_row_offset(epi_emitter *e, const epi_stream *t) {
    epi_text_add(&e->members, "  i64 at%d[2];\n", t->instr);
    if (t->moved) {
        char pointer[32];
        snprintf(pointer, sizeof pointer, "P.ptr[%d]", t->index);
        epi_text_add(&e->rows, "    const i64 place%d = ", t->instr);
        epi_emit_position(e->d->c, &e->d->g->nodes[t->node], &e->d->plan->rows, pointer, "r", &e->rows);
        epi_text_add(&e->rows, ";\n");
    }
    epi_text_add(&e->rows, "    R.at%d[h] = ", t->instr);
    if (t->moved)
        epi_text_add(&e->rows, "place%d < 0 ? -1 : place%d * %s + ", t->instr, t->instr,
                     epi_emit_count(e->d->c, t->apart, "LL").text);
    epi_emit_walk(&e->rows, e->d->c, &t->rows, "r");
    epi_text_add(&e->rows, ";\n");
}

/* "row_there(P, row + 8 * (i & 1))": whether the cell's row is stored. */
static epi_name emit_row_there(const epi_stream *t) {
    epi_name n = {"row_there(P, row + 8 * (i & 1))"};
    if (t->moved)
        snprintf(n.text, sizeof n.text, "row_there(P, row + 8 * (i & 1)) && R.at%d[i & 1] >= 0", t->instr);
    return n;
}

/* May an output be stored over what the stream loads? */
static bool is_replaced(const epi_emitter *e, const epi_stream *t) {
    const epi_steps *steps = e->d->c->steps;
    for (int o = e->d->g->input_count; o < e->d->g->tensor_count; o++)
        if (epi_steps_in_place(steps, o, steps->homes[t->node].tensor))
            return true;
    return false;
}

/* Elements past the last column are read from one that is there; nothing comes of them. */
static void load_direct(epi_emitter *e, const epi_stream *t) {
    epi_name name = epi_value_name(e, e->d->tile->instrs[t->instr].dst);
    const char *first = epi_cell_index(t->elements);
    epi_name columns = epi_emit_int(e->d->c, epi_cell_columns(e->d->tile, t->elements));
    char type[24];
    snprintf(type, sizeof type, "%s%s", epi_emit_type(t->ref.type), is_replaced(e, t) ? ", true" : "");
    emit_row_offset(e, t);
    if (is_vector(e, t)) {
        epi_text_add(&e->cell,
                     "      float %s_v[%d];\n      load_n<%s>(%s_v, P.ptr[%d], R.at%d[i & 1] + (%s < %s ? "
                     "%s : 0));\n",
                     name.text, t->elements, type, name.text, t->pointer, t->instr, first, columns.text,
                     first);
        for (int el = 0; el < t->elements; el++)
            epi_text_add(&e->cell, "      const float %s_%d = %s_v[%d];\n", name.text, el, name.text, el);
        return;
    }
    for (int el = 0; el < t->elements; el++) {
        char index[240];
        snprintf(index, sizeof index, "min(%s + %d, %s - 1)", first, el, columns.text);
        epi_text_add(&e->cell, "      const float %s_%d = load<%s>(P.ptr[%d], R.at%d[i & 1] + ", name.text,
                     el, type, t->pointer, t->instr);
        epi_cell_emit_column(&e->cell, e->d->c, &t->cols, index);
        epi_text_add(&e->cell, ");\n");
    }
}

static void store_direct(epi_emitter *e, const epi_stream *t) {
    int v = e->d->tile->instrs[t->instr].arg[0];
    const char *type = epi_emit_type(t->ref.type), *first = epi_cell_index(t->elements);
    epi_name columns = epi_emit_int(e->d->c, t->per_row ? 1 : epi_cell_columns(e->d->tile, t->elements));
    emit_row_offset(e, t);
    if (is_vector(e, t)) {
        epi_text_add(&e->cell, "      if (%s && %s < %s) {\n        const float v[%d] = {",
                     emit_row_there(t).text, first, columns.text, t->elements);
        for (int el = 0; el < t->elements; el++)
            epi_text_add(&e->cell, "%s%s", el ? ", " : "", epi_value_use(e, v, el).text);
        epi_text_add(&e->cell,
                     "};\n        store_n<%s>((void *)P.ptr[%d], R.at%d[i & 1] + %s, v);\n      }\n", type,
                     t->pointer, t->instr, first);
        return;
    }
    for (int el = 0; el < (t->per_row ? 1 : t->elements); el++) {
        char index[120];
        snprintf(index, sizeof index, "(%s + %d)", first, el);
        epi_text_add(&e->cell, "      if (%s && %s < %s) store<%s>((void *)P.ptr[%d], R.at%d[i & 1] + ",
                     emit_row_there(t).text, index, columns.text, type, t->pointer, t->instr);
        epi_cell_emit_column(&e->cell, e->d->c, &t->cols, index);
        epi_text_add(&e->cell, ", %s);\n", epi_value_use(e, v, el).text);
    }
}

void epi_stream_emit_direct(epi_emitter *e, const epi_stream *t) {
    (t->store ? store_direct : load_direct)(e, t);
}

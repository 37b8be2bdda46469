/* emit_direct.c: tiles that are loaded and stored element by element, not through staging. */
#include <stdio.h>

#include "cuda/emit_gemm.h"

void epi_stream_emit_column(epi_text *out, const epi_stream *t, const char *index) {
    if (!t->cols.two) {
        epi_emit_walk(out, &t->cols.walk, index);
        return;
    }
    char half[160];
    snprintf(half, sizeof half, "((%s) >> 1)", index);
    epi_emit_walk(out, &t->cols.walk, half);
    epi_text_add(out, " + ((%s) & 1) * %ldLL", index, (long)t->cols.part);
}

bool epi_stream_is_vector(const epi_emitter *e, const epi_stream *t) {
    const epi_walk *c = &t->cols.walk;
    if (t->elements == 1 || t->cols.two || c->count != 1 || c->stride[0] != 1 || t->ref.type == EPI_I32 ||
        epi_cell_columns(e, t->elements) % t->elements)
        return false;
    for (int d = 0; d < t->rows.count; d++)
        if (t->rows.stride[d] % t->elements)
            return false;
    return true;
}

/* Where the cells' two rows start is worked out once a tile. */
static void emit_row_offset(epi_emitter *e, const epi_stream *t) {
    epi_text_add(&e->members, "  i64 at%d[2];\n", t->step);
    epi_text_add(&e->rows, "    R.at%d[h] = ", t->step);
    epi_emit_walk(&e->rows, &t->rows, "r");
    epi_text_add(&e->rows, ";\n");
}

/* Elements past the last column are read from one that is there; nothing comes of them. */
void epi_stream_load_direct(epi_emitter *e, const epi_stream *t) {
    epi_name name = epi_value_name(e, e->tile->instrs[t->step].dst);
    const char *type = epi_emit_type(t->ref.type), *first = epi_cell_index(t->elements);
    long columns = (long)epi_cell_columns(e, t->elements);
    emit_row_offset(e, t);
    if (epi_stream_is_vector(e, t)) {
        epi_text_add(&e->cell,
                     "      float %s_v[%d];\n      load_n<%s>(%s_v, P.ptr[%d], R.at%d[i & 1] + (%s < %ld ? "
                     "%s : 0));\n",
                     name.text, t->elements, type, name.text, t->pointer, t->step, first, columns, first);
        for (int el = 0; el < t->elements; el++)
            epi_text_add(&e->cell, "      const float %s_%d = %s_v[%d];\n", name.text, el, name.text, el);
        return;
    }
    for (int el = 0; el < t->elements; el++) {
        char index[120];
        snprintf(index, sizeof index, "min(%s + %d, %ld)", first, el, columns - 1);
        epi_text_add(&e->cell, "      const float %s_%d = load<%s>(P.ptr[%d], R.at%d[i & 1] + ", name.text,
                     el, type, t->pointer, t->step);
        epi_stream_emit_column(&e->cell, t, index);
        epi_text_add(&e->cell, ");\n");
    }
}

void epi_stream_store_direct(epi_emitter *e, const epi_stream *t) {
    int v = e->tile->instrs[t->step].arg[0];
    const char *type = epi_emit_type(t->ref.type), *first = epi_cell_index(t->elements);
    long columns = (long)epi_cell_columns(e, t->elements);
    emit_row_offset(e, t);
    if (epi_stream_is_vector(e, t)) {
        epi_text_add(&e->cell,
                     "      if (row + 8 * (i & 1) < P.M && %s < %ld) {\n        const float v[%d] = {", first,
                     columns, t->elements);
        for (int el = 0; el < t->elements; el++)
            epi_text_add(&e->cell, "%s%s", el ? ", " : "", epi_value_use(e, v, el).text);
        epi_text_add(&e->cell,
                     "};\n        store_n<%s>((void *)P.ptr[%d], R.at%d[i & 1] + %s, v);\n      }\n", type,
                     t->pointer, t->step, first);
        return;
    }
    for (int el = 0; el < t->elements; el++) {
        char index[120];
        snprintf(index, sizeof index, "(%s + %d)", first, el);
        epi_text_add(
            &e->cell,
            "      if (row + 8 * (i & 1) < P.M && %s < %ld) store<%s>((void *)P.ptr[%d], R.at%d[i & 1] + ",
            index, columns, type, t->pointer, t->step);
        epi_stream_emit_column(&e->cell, t, index);
        epi_text_add(&e->cell, ", %s);\n", epi_value_use(e, v, el).text);
    }
}

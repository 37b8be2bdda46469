/* emit_direct.c: writes tiles that are loaded and stored element by element, without staging. */
#include <string.h>

#include "cuda/product/emit_gemm.h"

/* Are a cell's elements neighbours in memory that start at a multiple of their number? */
static bool is_vector(const epi_emitter *e, const epi_side_tile *t) {
    return epi_walk_aligned(&t->rows, t->elements) && t->split_stride % t->elements == 0 &&
           epi_cell_is_vector(e, &t->ref, &t->cols, t->elements);
}

/* The first of the tiles whose rows start where those of this one do, in their own tensors. */
static int offset_of(const epi_emitter *e, const epi_side_tile *t) {
    const epi_emit_context *c = e->d->c;
    for (const epi_side_tile *first = e->d->side_tiles; first < t && !t->moved; first++)
        if (!first->staged && !first->moved && !first->per_group && e->d->tile->instrs[first->instr].full &&
            !strcmp(epi_emit_walk(c, &first->rows, "r"), epi_emit_walk(c, &t->rows, "r")))
            return first->instr;
    return t->instr;
}

/* Do all rows start within 32 bits? Where they do takes half of the registers then. */
static bool start_near(const epi_emitter *e, const epi_walk *rows) {
    int64_t end = 0;
    for (int d = 0; d < rows->count; d++) {
        int64_t size = epi_open_most(e->d->c->spec->open, rows->size[d]),
                stride = epi_open_most(e->d->c->spec->open, rows->stride[d]);
        if (size > INT32_MAX || stride > INT32_MAX || (end += size * stride) > INT32_MAX)
            return false;
    }
    return true;
}

/* Where the cells' two rows start is worked out once a tile. A row whose place is outside of the axis starts
 * nowhere, at -1. */
static void emit_row_offset(epi_emitter *e, const epi_side_tile *t) {
    if (offset_of(e, t) != t->instr)
        return;
    const epi_emit_context *c = e->d->c;
    const char *place = "", *type = !t->moved && start_near(e, &t->rows) ? "int" : "i64";
    epi_text_add(&e->members, "  %s at%d[2];\n", type, t->instr);
    if (t->moved) {
        const char *pointer = epi_emit_text(c, "P.ptr[%d]", t->index);
        epi_text_add(&e->rows, "    const i64 place%d = %s;\n", t->instr,
                     epi_emit_position(c, &e->d->g->nodes[t->node], &e->d->plan->rows, pointer, "r"));
        place = epi_emit_text(c, "place%d < 0 ? -1 : place%d * %s + ", t->instr, t->instr,
                              epi_emit_count(c, t->split_stride, "LL"));
    }
    epi_text_add(&e->rows, "    R.at%d[h] = (%s)(%s%s);\n", t->instr, type, place,
                 epi_emit_walk(c, &t->rows, "r"));
}

/* Where the cell's row starts. What is stored once a group of columns works it out there: registers over the
 * tile are dearer. */
static const char *emit_start(epi_emitter *e, const epi_side_tile *t) {
    if (t->per_group && !t->moved)
        return epi_emit_text(e->d->c, "(%s)",
                             epi_emit_walk(e->d->c, &t->rows, "row_near(P, row + 8 * (i & 1))"));
    emit_row_offset(e, t);
    return epi_emit_text(e->d->c, "R.at%d[i & 1]", offset_of(e, t));
}

/* Whether the cell's row is stored. */
static const char *emit_stored(const epi_emitter *e, const epi_side_tile *t) {
    const char *there = epi_row_there(e, "(i & 1)");
    return t->moved ? epi_emit_text(e->d->c, "%s && R.at%d[i & 1] >= 0", there, t->instr) : there;
}

/* Elements past the last column are read from one that is there; nothing comes of them. */
static void load_direct(epi_emitter *e, const epi_side_tile *t) {
    const epi_emit_context *c = e->d->c;
    const char *name = epi_value_name(e, e->d->tile->instrs[t->instr].dst),
               *first = epi_cell_index(t->elements),
               *columns = epi_emit_int(c, epi_cell_columns(e->d->tile, t->elements)),
               *type = epi_emit_type(t->ref.type), *start = emit_start(e, t);
    if (is_vector(e, t)) {
        epi_text_add(&e->cell,
                     "      float %s_v[%d];\n      load_n<%s>(%s_v, P.ptr[%d], %s + (%s < %s ? "
                     "%s : 0));\n",
                     name, t->elements, type, name, t->pointer, start, first, columns, first);
        for (int el = 0; el < t->elements; el++)
            epi_text_add(&e->cell, "      const float %s_%d = %s_v[%d];\n", name, el, name, el);
        return;
    }
    for (int el = 0; el < t->elements; el++) {
        const char *index = epi_emit_text(c, "min(%s + %d, %s - 1)", first, el, columns);
        epi_text_add(&e->cell, "      const float %s_%d = load<%s>(P.ptr[%d], %s + %s);\n", name, el, type,
                     t->pointer, start, epi_emit_columns(c, &t->cols, index));
    }
}

/* Is the cell the first of its group's? */
static const char *put_once(const epi_emitter *e) {
    const epi_tile_program *t = e->d->tile;
    return epi_emit_text(e->d->c, "(C * SUBTILE + 16 * j) %% %d == 0 && i < 2 && q == 0 && ",
                         t->group[t->acc_scale]);
}

static void store_direct(epi_emitter *e, const epi_side_tile *t) {
    const epi_emit_context *c = e->d->c;
    int v = epi_value_stored(e, e->d->tile->instrs[t->instr].arg[0], t->ref.type);
    const char *type = epi_emit_type(t->ref.type), *first = epi_cell_index(t->elements),
               *columns = epi_emit_int(c, t->per_row ? 1 : epi_cell_columns(e->d->tile, t->elements)),
               *start = emit_start(e, t);
    if (is_vector(e, t)) {
        epi_text_add(&e->cell, "      if (%s && %s < %s) {\n        const float v[%d] = {", emit_stored(e, t),
                     first, columns, t->elements);
        for (int el = 0; el < t->elements; el++)
            epi_text_add(&e->cell, "%s%s", el ? ", " : "", epi_value_use(e, v, el));
        epi_text_add(&e->cell, "};\n        store_n<%s>((void *)P.ptr[%d], %s + %s, v);\n      }\n", type,
                     t->pointer, start, first);
        return;
    }
    const char *once = t->per_group ? put_once(e) : "";
    for (int el = 0; el < (t->per_row || t->per_group ? 1 : t->elements); el++) {
        const char *index = epi_emit_text(c, "(%s + %d)", first, el);
        epi_text_add(&e->cell, "      if (%s%s && %s < %s) store<%s>((void *)P.ptr[%d], %s + %s, %s);\n",
                     once, emit_stored(e, t), index, columns, type, t->pointer, start,
                     epi_emit_columns(c, &t->cols, index), epi_value_use(e, v, el));
    }
}

void epi_side_tile_emit_direct(epi_emitter *e, const epi_side_tile *t) {
    (t->store ? store_direct : load_direct)(e, t);
}

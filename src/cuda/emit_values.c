/* emit_values.c: the values of a tile as text: what they are called, and how rows, columns and elements are
 * computed. */
#include <stdio.h>
#include <string.h>

#include "cuda/emit_gemm.h"

/* ---- cells ---- */

int epi_cell_elements(const epi_emitter *e, epi_scale scale) {
    if (e->tile->acc_scale == EPI_SCALE_COARSE)
        return scale == EPI_SCALE_FINE ? 4 : 2;
    return scale == EPI_SCALE_FINE ? 2 : 1;
}

const char *epi_cell_index(int elements) {
    return elements == 1 ? "n / 2" : elements == 2 ? "n" : "n * 2";
}

int64_t epi_cell_columns(const epi_emitter *e, int elements) {
    return e->tile->n * elements / 2;
}

/* ---- names ---- */

bool epi_value_is_full(const epi_tile_value *v) {
    return v->rows && v->scale != EPI_SCALE_NONE;
}

/* A node may have a value at each scale, and two nodes may have one name: the later one gets a number. */
epi_name epi_value_name(const epi_emitter *e, int v) {
    const epi_tile_value *value = &e->tile->values[v];
    epi_name n = epi_emit_name(e->g, value->node), out;
    int twins = 0;
    for (int i = 0; i < v; i++)
        twins += !strcmp(epi_emit_name(e->g, e->tile->values[i].node).text, n.text);
    if (twins)
        snprintf(out.text, sizeof out.text, "%.60s_twin%d", n.text, v);
    else
        snprintf(out.text, sizeof out.text, "%.60s", n.text);
    return out;
}

epi_name epi_value_use(const epi_emitter *e, int v, int el) {
    const epi_tile_value *value = &e->tile->values[v];
    epi_name out, name = epi_value_name(e, v);
    if (epi_emit_is_number(e->c, value->node))
        return epi_emit_node_number(e->c, value->node);
    if (epi_value_is_full(value))
        snprintf(out.text, sizeof out.text, "%.60s_%d", name.text, el);
    else if (value->scale != EPI_SCALE_NONE)
        snprintf(out.text, sizeof out.text, "%.60s_c[(i >> 1) * %d + %d]", name.text,
                 epi_cell_elements(e, value->scale), el);
    else if (value->rows)
        snprintf(out.text, sizeof out.text, "R.%.60s_r[i & 1]", name.text);
    else
        snprintf(out.text, sizeof out.text, "R.%.60s_u", name.text);
    return out;
}

/* ---- expressions ---- */

/* One operation on operands that are written out already. */
static void put_operation(epi_text *out, const epi_instr *s, const char *a, const char *b, const char *c) {
    if (s->kind == EPI_INSTR_MULADD)
        epi_text_add(out, "__fmaf_rn(%s%s, %s, %s%s)", s->sign < 0 ? "-" : "", a, b, s->other < 0 ? "-" : "",
                     c);
    else
        epi_emit_op(out, s->op, a, b, c);
}

/* Element `el` of what a step computes. */
static void put_element(const epi_emitter *e, epi_text *out, const epi_instr *s, int el) {
    if (s->kind == EPI_INSTR_SPLIT)
        epi_text_add(out, "%s", epi_value_use(e, s->arg[0], 2 * el + s->odd).text);
    else if (s->kind == EPI_INSTR_JOIN)
        epi_text_add(out, "%s", epi_value_use(e, s->arg[el & 1], el / 2).text);
    else
        put_operation(out, s, epi_value_use(e, s->arg[0], el).text,
                      s->arg[1] >= 0 ? epi_value_use(e, s->arg[1], el).text : "",
                      s->arg[2] >= 0 ? epi_value_use(e, s->arg[2], el).text : "");
}

/* ---- per row ---- */

/* An operand of a value per row: the loop over rows counts h, where cells have i & 1. */
static epi_name use_in_row(const epi_emitter *e, int v) {
    epi_name name = {""};
    if (v >= 0)
        name = epi_value_use(e, v, 0);
    char *at = strstr(name.text, "[i & 1]");
    if (at)
        memcpy(at, "[h]", sizeof "[h]");
    return name;
}

/* Computed once a tile and kept in Rows. */
void epi_value_emit_row(epi_emitter *e, const epi_instr *s) {
    bool rows = e->tile->values[s->dst].rows;
    epi_name name = epi_value_name(e, s->dst);
    if (s->kind == EPI_INSTR_CONST)
        return;
    epi_text_add(&e->members, rows ? "  float %s_r[2];\n" : "  float %s_u;\n", name.text);
    epi_text_add(&e->rows, rows ? "    R.%s_r[h] = " : "    R.%s_u = ", name.text);
    if (s->kind == EPI_INSTR_LOAD) {
        epi_ref ref = epi_emit_ref(e->c, s->node, -1);
        epi_walk w = epi_walk_axes(&ref, &e->plan->rows, e->c->spec->sizes);
        epi_text_add(&e->rows, "load<%s>(P.ptr[%d], ", epi_emit_type(ref.type),
                     epi_emit_pointer(e->k, s->node, -1));
        epi_emit_walk(&e->rows, &w, "r");
        epi_text_add(&e->rows, ");\n");
    } else if (s->kind == EPI_INSTR_INDEX) {
        epi_text_add(&e->rows, "(float)(");
        epi_emit_digit(&e->rows, &e->plan->rows,
                       epi_axes_find(&e->plan->rows, e->g->nodes[s->node].over.at[0]), e->c->spec->sizes,
                       "r");
        epi_text_add(&e->rows, ");\n");
    } else {
        put_operation(&e->rows, s, use_in_row(e, s->arg[0]).text, use_in_row(e, s->arg[1]).text,
                      use_in_row(e, s->arg[2]).text);
        epi_text_add(&e->rows, ";   // line %d\n", e->g->nodes[s->node].place.line);
    }
}

/* ---- per column ---- */

/* The position along an axis of the column whose number at its scale is `index`. */
static void emit_column_index(epi_emitter *e, epi_axis axis, epi_scale scale, const char *index) {
    const epi_plan *p = e->plan;
    const int64_t *sizes = e->c->spec->sizes;
    epi_axes axes = p->cols;
    if (p->split == EPI_OP_COUNT) {
        epi_emit_digit(&e->group, &axes, epi_axes_find(&axes, axis), sizes, index);
        return;
    }
    epi_axis coarse = {p->fine.dim, (int16_t)(p->fine.shift - 1)};
    int at = epi_axes_find_dim(&axes, p->fine.dim), wanted = epi_axes_find_dim(&axes, axis.dim);
    axes.at[at] = coarse;
    char half[160];
    snprintf(half, sizeof half, scale == EPI_SCALE_FINE ? "((%s) >> 1)" : "(%s)", index);
    if (wanted == at && axis.shift == p->fine.shift) { /* the parted axis itself, at its longer scale */
        bool pairs = p->split == EPI_OP_EVEN;
        epi_text_add(&e->group, pairs ? "2 * (" : "(");
        epi_emit_digit(&e->group, &axes, at, sizes, half);
        epi_text_add(&e->group, ") + ((%s) & 1) * %ld", index,
                     pairs ? 1L : (long)epi_axis_size(coarse, sizes));
        return;
    }
    epi_emit_digit(&e->group, &axes, wanted, sizes, half);
}

/* Computed once a group of 16 columns, for the two cells of a row. */
void epi_value_emit_column(epi_emitter *e, const epi_instr *s) {
    const epi_tile_value *v = &e->tile->values[s->dst];
    epi_name name = epi_value_name(e, s->dst);
    bool load = s->kind == EPI_INSTR_LOAD;
    epi_stream t = {.ref = epi_emit_ref(e->c, s->node, -1), .elements = epi_cell_elements(e, v->scale)};
    t.cols = epi_columns_of(e->plan, &t.ref, e->c->spec->sizes, v->scale);
    t.pointer = load ? epi_emit_pointer(e->k, s->node, -1) : 0;
    const char *type = epi_emit_type(t.ref.type), *first = epi_cell_index(t.elements);
    long columns = (long)epi_cell_columns(e, t.elements);
    bool vector = load && epi_stream_is_vector(e, &t);
    epi_text_add(&e->group,
                 "    float %s_c[%d];\n#pragma unroll\n    for (int i = 0; i < 4; i += 2) {\n      const int "
                 "n = col + 16 * j + 4 * i + 2 * q;\n",
                 name.text, 2 * t.elements);
    if (vector)
        epi_text_add(&e->group, "      float v[%d];\n      load_n<%s>(v, P.ptr[%d], %s < %ld ? %s : 0);\n",
                     t.elements, type, t.pointer, first, columns, first);
    for (int el = 0; el < t.elements; el++) {
        char index[120]; /* past the last column the last one is read again */
        epi_text_add(&e->group, "      %s_c[(i >> 1) * %d + %d] = ", name.text, t.elements, el);
        snprintf(index, sizeof index, "min(%s + %d, %ld)", first, el, columns - 1);
        if (vector) {
            epi_text_add(&e->group, "v[%d]", el);
        } else if (load) {
            epi_text_add(&e->group, "load<%s>(P.ptr[%d], ", type, t.pointer);
            epi_stream_emit_column(&e->group, &t, index);
            epi_text_add(&e->group, ")");
        } else if (s->kind == EPI_INSTR_INDEX) {
            epi_text_add(&e->group, "(float)(");
            emit_column_index(e, e->g->nodes[s->node].over.at[0], v->scale, index);
            epi_text_add(&e->group, ")");
        } else {
            put_element(e, &e->group, s, el);
        }
        epi_text_add(&e->group, ";\n");
    }
    epi_text_add(&e->group, "    }\n");
}

/* ---- per element ---- */

/* Of a multiply-add that the packing point splits, the sum is left: the product is what was packed. */
void epi_value_emit(const epi_emitter *e, const epi_instr *s, epi_text *out, const char *indent) {
    epi_name name = epi_value_name(e, s->dst);
    int elements = epi_cell_elements(e, e->tile->values[s->dst].scale);
    bool split = e->split >= 0 && s == &e->tile->instrs[e->split];
    for (int el = 0; el < elements; el++) {
        epi_text_add(out, "%sconst float %s_%d = ", indent, name.text, el);
        if (split)
            epi_text_add(out, "%s %c %s", epi_value_use(e, e->kept, el).text, s->other < 0 ? '-' : '+',
                         epi_value_use(e, s->arg[2], el).text);
        else
            put_element(e, out, s, el);
        epi_text_add(out, ";\n");
    }
}

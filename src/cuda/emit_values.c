/* emit_values.c: the values of a tile as text: what they are called, and how rows, columns and elements are
 * computed. */
#include <stdio.h>
#include <string.h>

#include "cuda/emit_gemm.h"

/* ---- cells ---- */

const char *epi_cell_index(int elements) {
    return elements == 1 ? "n / 2" : elements == 2 ? "n" : "n * 2";
}

void epi_cell_emit_column(epi_text *out, const epi_emit_context *c, const epi_columns *cols,
                          const char *index) {
    if (!cols->two) {
        epi_emit_walk(out, c, &cols->walk, index);
        return;
    }
    char half[280];
    snprintf(half, sizeof half, "((%s) >> 1)", index);
    epi_emit_walk(out, c, &cols->walk, half);
    epi_text_add(out, " + ((%s) & 1) * %s", index, epi_emit_count(c, cols->part, "LL").text);
}

bool epi_cell_is_vector(const epi_emitter *e, const epi_ref *ref, const epi_columns *c, int elements) {
    const epi_axes *cols = &e->d->plan->cols;
    if (e->d->positions && epi_axis_size(cols->at[cols->count - 1], e->d->c->spec->sizes) % elements)
        return false; /* columns in groups: each starts anew */
    return elements > 1 && !c->two && c->walk.count == 1 && c->walk.stride[0] == 1 && ref->type <= EPI_F16 &&
           epi_cell_columns(e->d->tile, elements) % elements == 0;
}

/* ---- names ---- */

epi_name epi_value_name(const epi_emitter *e, int v) {
    return epi_emit_value(e->d->g, e->d->tile->values[v].node, v);
}

epi_name epi_value_use(const epi_emitter *e, int v, int el) {
    const epi_tile_value *value = &e->d->tile->values[v];
    epi_name out, name = epi_value_name(e, v);
    if (epi_emit_is_number(e->d->c, value->node) && !epi_emit_is_open_number(e->d->c, value->node))
        return epi_emit_node_number(e->d->c, value->node);
    if (epi_value_is_full(value))
        snprintf(out.text, sizeof out.text, "%.60s_%d", name.text, el);
    else if (value->scale != EPI_SCALE_NONE)
        snprintf(out.text, sizeof out.text, "%.60s_c[(i >> 1) * %d + %d]", name.text,
                 epi_cell_elements(e->d->tile, value->scale), el);
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

/* The instruction that makes a value which nothing else uses, or NULL. */
static const epi_instr *only_maker(const epi_emitter *e, int v) {
    const epi_tile_program *t = e->d->tile;
    const epi_instr *maker = NULL;
    int uses = 0;
    for (int i = 0; i < t->instr_count; i++) {
        if (t->instrs[i].dst == v)
            maker = &t->instrs[i];
        for (int a = 0; a < 3; a++)
            uses += t->instrs[i].arg[a] == v;
    }
    return uses == 1 ? maker : NULL;
}

/* Is it the same for all rows, or all columns, of a tile? */
static bool is_short(const epi_emitter *e, int v) {
    return !epi_value_is_full(&e->d->tile->values[v]);
}

/* An exponential as a power of two: its change of base goes into the multiply-add or the difference below it.
 * False: neither is there. */
static bool put_power(const epi_emitter *e, epi_text *out, const epi_instr *s, int el) {
    const epi_instr *below = only_maker(e, s->arg[0]), *scaled = NULL;
    epi_name x, factor = {""}, less;
    const char *sign = "-";
    if (below && below->kind == EPI_INSTR_MULADD && below->sign > 0) {
        bool swap = is_short(e, below->arg[0]);
        x = epi_value_use(e, below->arg[swap], el);
        factor = epi_value_use(e, below->arg[!swap], el);
        less = epi_value_use(e, below->arg[2], el);
        sign = below->other < 0 ? "-" : "";
    } else if (below && below->kind == EPI_INSTR_MAP && below->op == EPI_OP_SUB) {
        scaled = only_maker(e, below->arg[0]);
        x = epi_value_use(e, below->arg[0], el);
        for (int a = 0; a < 2 && scaled && scaled->kind == EPI_INSTR_MAP && scaled->op == EPI_OP_MUL; a++)
            if (is_short(e, scaled->arg[a])) {
                x = epi_value_use(e, scaled->arg[!a], el);
                factor = epi_value_use(e, scaled->arg[a], el);
            }
        less = epi_value_use(e, below->arg[1], el);
    } else {
        return false;
    }
    epi_text_add(out, "ex2(__fmaf_rn(%s, %s%sLOG2E, %s%s * LOG2E))", x.text, factor.text,
                 factor.text[0] ? " * " : "", sign, less.text);
    return true;
}

/* Short forms: an exponential, and a division by a short value, which is a multiplication whose factor is
 * worked out once. False: there is none. */
static bool put_quick(const epi_emitter *e, epi_text *out, const epi_instr *s, int el) {
    if (!e->d->quick || s->kind != EPI_INSTR_MAP)
        return false;
    if (s->op == EPI_OP_EXP)
        return e->d->fast && put_power(e, out, s, el);
    if (s->op != EPI_OP_DIV || !is_short(e, s->arg[1]))
        return false;
    epi_text_add(out, "%s * rcp(%s)", epi_value_use(e, s->arg[0], el).text,
                 epi_value_use(e, s->arg[1], el).text);
    return true;
}

/* Element `el` of what an instruction computes. */
static void put_element(const epi_emitter *e, epi_text *out, const epi_instr *s, int el) {
    if (put_quick(e, out, s, el))
        return;
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

epi_name epi_value_use_in_row(const epi_emitter *e, int v) {
    epi_name name = {""};
    if (v >= 0)
        name = epi_value_use(e, v, 0);
    char *at = strstr(name.text, "[i & 1]");
    if (at)
        memcpy(at, "[h]", sizeof "[h]");
    return name;
}

/* Computed once a tile and kept in Rows. */
static void emit_row(epi_emitter *e, int instr) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    const epi_plan *plan = e->d->plan;
    const epi_emit_context *c = e->d->c;
    bool rows = e->d->tile->values[s->dst].rows;
    epi_name name = epi_value_name(e, s->dst);
    if (s->kind == EPI_INSTR_CONST && !epi_emit_is_open_number(c, s->node))
        return;
    epi_text_add(&e->members, rows ? "  float %s_r[2];\n" : "  float %s_u;\n", name.text);
    epi_text_add(&e->rows, rows ? "    R.%s_r[h] = " : "    R.%s_u = ", name.text);
    if (s->kind == EPI_INSTR_CONST) {
        epi_text_add(&e->rows, "%s;\n", epi_emit_node_number(c, s->node).text);
    } else if (s->kind == EPI_INSTR_LOAD) {
        epi_ref ref = epi_emit_ref(c, s->node, -1);
        epi_walk w = epi_walk_axes(&ref, &plan->rows, c->spec->sizes);
        epi_text_add(&e->rows, "load<%s>(P.ptr[%d], ", epi_emit_type(ref.type), e->d->instrs[instr].pointer);
        epi_emit_walk(&e->rows, c, &w, "r");
        epi_text_add(&e->rows, ");\n");
    } else if (s->kind == EPI_INSTR_INDEX) {
        epi_text_add(&e->rows, "(float)(");
        epi_emit_digit(&e->rows, c, &plan->rows,
                       epi_axes_find(&plan->rows, e->d->g->nodes[s->node].over.at[0]), "r");
        epi_text_add(&e->rows, ");\n");
    } else {
        put_operation(&e->rows, s, epi_value_use_in_row(e, s->arg[0]).text,
                      epi_value_use_in_row(e, s->arg[1]).text, epi_value_use_in_row(e, s->arg[2]).text);
        epi_text_add(&e->rows, ";   // line %d\n", e->d->g->nodes[s->node].place.line);
    }
}

/* ---- per column ---- */

/* The position along an axis of the column whose number at its scale is `index`. */
static void emit_column_index(epi_emitter *e, epi_axis axis, epi_scale scale, const char *index) {
    const epi_plan *p = e->d->plan;
    const epi_emit_context *c = e->d->c;
    epi_axes axes = p->cols;
    if (p->split == EPI_OP_COUNT) {
        epi_emit_digit(&e->fragment, c, &axes, epi_axes_find(&axes, axis), index);
        return;
    }
    epi_axis coarse = {p->fine.dim, (int16_t)(p->fine.shift - 1)};
    int at = epi_axes_find_dim(&axes, p->fine.dim), wanted = epi_axes_find_dim(&axes, axis.dim);
    axes.at[at] = coarse;
    char half[280];
    snprintf(half, sizeof half, scale == EPI_SCALE_FINE ? "((%s) >> 1)" : "(%s)", index);
    if (wanted == at && axis.shift == p->fine.shift) { /* the parted axis itself, at its longer scale */
        bool pairs = p->split == EPI_OP_EVEN;
        epi_text_add(&e->fragment, pairs ? "2 * (" : "(");
        epi_emit_digit(&e->fragment, c, &axes, at, half);
        epi_text_add(&e->fragment, ") + ((%s) & 1) * %s", index,
                     epi_emit_int(c, pairs ? 1 : epi_axis_size(coarse, c->spec->sizes)).text);
        return;
    }
    epi_emit_digit(&e->fragment, c, &axes, wanted, half);
}

/* Attention's scores: a position along the last axis of the columns, which counts on from the tile's first
 * one. */
static bool is_position(const epi_emitter *e, const epi_instr *s) {
    const epi_axes *cols = &e->d->plan->cols;
    return e->d->positions && epi_axis_equal(e->d->g->nodes[s->node].over.at[0], cols->at[cols->count - 1]);
}

/* Computed once a fragment, for the two cells of a row. */
static void emit_column(epi_emitter *e, int instr) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    const epi_tile_value *v = &e->d->tile->values[s->dst];
    const epi_emit_context *c = e->d->c;
    epi_name name = epi_value_name(e, s->dst);
    bool load = s->kind == EPI_INSTR_LOAD;
    epi_ref ref = epi_emit_ref(c, s->node, -1);
    epi_columns cols = epi_columns_of(e->d->plan, &ref, c->spec->sizes, v->scale);
    int elements = epi_cell_elements(e->d->tile, v->scale), pointer = e->d->instrs[instr].pointer;
    const char *type = epi_emit_type(ref.type), *first = epi_cell_index(elements);
    epi_name columns = epi_emit_int(c, epi_cell_columns(e->d->tile, elements));
    bool vector = load && epi_cell_is_vector(e, &ref, &cols, elements);
    epi_walk rows = epi_walk_axes(&ref, &e->d->plan->rows, c->spec->sizes);
    char of_batch[40] = "";
    bool staged = e->d->instrs[instr].column_at;
    for (int d = 0; d < rows.count && load && !staged; d++)
        if (rows.stride[d]) {
            snprintf(of_batch, sizeof of_batch, "R.at%d + ", instr);
            vector &= rows.stride[d] % elements == 0;
        }
    if (of_batch[0]) {
        epi_text_add(&e->members, "  i64 at%d;\n", instr);
        epi_text_add(&e->rows, "    R.at%d = ", instr);
        epi_emit_walk(&e->rows, c, &rows, "r");
        epi_text_add(&e->rows, ";\n");
    }
    epi_text_add(&e->fragment,
                 "    float %s_c[%d];\n#pragma unroll\n    for (int i = 0; i < 4; i += 2) {\n      const int "
                 "n = col + 16 * j + 4 * i + 2 * q;\n      (void)n;\n",
                 name.text, 2 * elements);
    if (staged)
        epi_text_add(&e->fragment,
                     "      const uint2 v = lds64(staged + 4 * (%d * STREAM + 16 * j + 4 * i + 2 * q));\n",
                     e->d->instrs[instr].column_at - 1);
    else if (vector)
        epi_text_add(&e->fragment,
                     "      float v[%d];\n      load_n<%s>(v, P.ptr[%d], %s(%s < %s ? %s : 0));\n", elements,
                     type, pointer, of_batch, first, columns.text, first);
    for (int el = 0; el < elements; el++) {
        char index[240]; /* past the last column the last one is read again */
        epi_text_add(&e->fragment, "      %s_c[(i >> 1) * %d + %d] = ", name.text, elements, el);
        snprintf(index, sizeof index, "min(%s + %d, %s - 1)", first, el, columns.text);
        if (staged) {
            epi_text_add(&e->fragment, "__uint_as_float(v.%c)", "xy"[el]);
        } else if (vector) {
            epi_text_add(&e->fragment, "v[%d]", el);
        } else if (load) {
            epi_text_add(&e->fragment, "load<%s>(P.ptr[%d], %s", type, pointer, of_batch);
            epi_cell_emit_column(&e->fragment, c, &cols, index);
            epi_text_add(&e->fragment, ")");
        } else if (s->kind == EPI_INSTR_INDEX && is_position(e, s)) {
            epi_text_add(&e->fragment, "position + (float)(16 * j + 4 * i + %d)", el);
        } else if (s->kind == EPI_INSTR_INDEX) {
            epi_text_add(&e->fragment, "(float)(");
            emit_column_index(e, e->d->g->nodes[s->node].over.at[0], v->scale, index);
            epi_text_add(&e->fragment, ")");
        } else {
            put_element(e, &e->fragment, s, el);
        }
        epi_text_add(&e->fragment, ";\n");
    }
    epi_text_add(&e->fragment, "    }\n");
}

/* ---- per element ---- */

/* Of a multiply-add that the packing point splits, the sum is left: the product is what was packed. */
void epi_value_emit_elements(const epi_emitter *e, int instr, epi_text *out, const char *indent) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    epi_name name = epi_value_name(e, s->dst);
    int elements = epi_cell_elements(e->d->tile, e->d->tile->values[s->dst].scale);
    for (int el = 0; el < elements; el++) {
        epi_text_add(out, "%sconst float %s_%d = ", indent, name.text, el);
        int product = instr == e->d->split[0] ? 0 : e->d->products > 1 && instr == e->d->split[1] ? 1 : -1;
        if (product >= 0)
            epi_text_add(out, "%s %c %s", epi_value_use(e, e->d->kept[product], el).text,
                         s->other < 0 ? '-' : '+', epi_value_use(e, s->arg[2], el).text);
        else
            put_element(e, out, s, el);
        epi_text_add(out, ";\n");
    }
}

/* Are all of a walk's distances multiples of four, but for the last one where that may be 1? */
static bool in_fours(const epi_emitter *e, const epi_walk *w, bool next) {
    bool fours = true;
    for (int i = 0; i < w->count; i++)
        fours &= next && i == w->count - 1 ? w->stride[i] == 1 : w->stride[i] % 4 == 0;
    return fours && (!next || (w->count && !epi_emit_grows(e->d->c, w->size[w->count - 1]) &&
                               w->size[w->count - 1] % 4 == 0));
}

/* Random numbers, a fragment at a time: lanes share what one counter gives where they can. Registers are few:
 * where a row begins is worked out anew for every tile. */
static void emit_random(epi_emitter *e, int instr) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    const epi_emit_context *c = e->d->c;
    epi_name name = epi_value_name(e, s->dst);
    epi_ref ref = epi_ref_of_axes(&e->d->g->nodes[s->node].axes, c->spec->sizes);
    epi_columns cols = epi_columns_of(e->d->plan, &ref, c->spec->sizes, EPI_SCALE_FINE);
    epi_walk rows = epi_walk_axes(&ref, &e->d->plan->rows, c->spec->sizes);
    bool plain = e->d->positions && !cols.two,
         along = plain && in_fours(e, &rows, false) && in_fours(e, &cols.walk, true),
         down = plain && in_fours(e, &cols.walk, false) && in_fours(e, &rows, true);
    epi_text_add(&e->begin,
                 "  i64 at%d[2];\n#pragma unroll\n  for (int h = 0; h < 2; h++) {\n"
                 "    const int r = row_near(P, row + 8 * h);\n    at%d[h] = ",
                 instr, instr);
    epi_emit_walk(&e->begin, c, &rows, "r");
    epi_text_add(&e->begin, ";\n  }\n  const u32 seed%d = ", instr);
    epi_emit_seed(c, s->node, e->d->instrs[instr].pointer, &e->begin);
    epi_text_add(&e->begin, ";\n");
    epi_text_add(&e->fragment,
                 "    float %s_f[8];\n    uniform_%s(%s_f, seed%d, [&](int i, int e) {\n"
                 "      const int n = col + 16 * j + 8 * (i >> 1) + 2 * q + e;\n"
                 "      return (u64)((i & 1 ? at%d[1] : at%d[0]) + ",
                 name.text,
                 along  ? "along"
                 : down ? "down"
                        : "any",
                 name.text, instr, instr, instr);
    epi_cell_emit_column(&e->fragment, c, &cols, "n");
    epi_text_add(&e->fragment, ");\n    }%s);\n", along || down ? ", (u32)t & 31" : "");
    for (int el = 0; el < 2; el++)
        epi_text_add(&e->cell, "      const float %s_%d = %s_f[2 * i + %d];\n", name.text, el, name.text, el);
}

/* Says in the text which line of the program comes next. */
static void emit_comment(epi_emitter *e, const epi_instr *s) {
    const epi_node *n = &e->d->g->nodes[s->node];
    if (n->name)
        epi_text_add(&e->cell, "      // %s, line %d\n", n->name, n->place.line);
}

void epi_value_emit(epi_emitter *e, int instr) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    const epi_tile_value *v = &e->d->tile->values[s->dst];
    if (s->kind == EPI_INSTR_RANDOM) {
        emit_random(e, instr);
    } else if (epi_value_is_full(v)) {
        emit_comment(e, s);
        epi_value_emit_elements(e, instr, &e->cell, "      ");
    } else if (v->scale == EPI_SCALE_NONE) {
        emit_row(e, instr);
    } else if (!epi_emit_is_number(e->d->c, s->node)) {
        emit_column(e, instr);
    }
}

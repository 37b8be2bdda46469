/* emit_values.c: writes the values of a tile: their names, and the computation of rows, columns and
 * elements. */
#include <string.h>

#include "cuda/product/emit_gemm.h"
#include "pass/analyse/range.h"

/* ---- cells ---- */

const char *epi_cell_index(int elements) {
    return elements == 1 ? "n / 2" : elements == 2 ? "n" : "n * 2";
}

bool epi_cell_is_vector(const epi_emitter *e, const epi_ref *ref, const epi_columns *c, int elements) {
    const epi_axes *cols = &e->d->plan->cols;
    if (e->d->positions && epi_axis_size(cols->at[cols->count - 1], e->d->c->spec->sizes) % elements)
        return false; /* columns in groups: each starts anew */
    return elements > 1 && !e->d->anywhere && !c->two && c->walk.count == 1 && c->walk.stride[0] == 1 &&
           epi_dtype_in_f32(ref->type) && epi_cell_columns(e->d->tile, elements) % elements == 0;
}

/* ---- names ---- */

const char *epi_row_there(const epi_emitter *e, const char *h) {
    bool grouped = e->d->plan->group == EPI_GROUP_ROWS;
    return epi_emit_text(e->d->c, grouped ? "R.there[%s]" : "row_there(P, row + 8 * %s)", h);
}

const char *epi_value_name(const epi_emitter *e, int v) {
    return epi_emit_value(e->d->c, e->d->tile->values[v].node, v);
}

const char *epi_value_use(const epi_emitter *e, int v, int el) {
    const epi_emit_context *c = e->d->c;
    const epi_tile_value *value = &e->d->tile->values[v];
    const char *name = epi_value_name(e, v);
    if (epi_emit_is_number(c, value->node) && !epi_emit_is_open_number(c, value->node))
        return epi_emit_node_number(c, value->node);
    if (epi_value_of_group(e->d, v))
        return epi_emit_text(c, "S.%s_g[i & 1]", name);
    if (epi_value_is_full(value))
        return epi_emit_text(c, "%s_%d", name, el);
    if (value->scale != EPI_SCALE_NONE)
        return epi_emit_text(c, "%s_c[(i >> 1) * %d + %d]", name, epi_cell_elements(e->d->tile, value->scale),
                             el);
    return epi_emit_text(c, value->rows ? "R.%s_r[i & 1]" : "R.%s_u", name);
}

const char *epi_value_results(const epi_emitter *e) {
    const char *results = "";
    if (e->d->leaves && !e->first_pass) {
        const char *name = epi_value_name(e, e->d->left);
        return epi_emit_text(e->d->c, "      const float %s_0 = acc(j, i, 0), %s_1 = acc(j, i, 1);\n", name,
                             name);
    }
    for (int p = 0; p < e->d->products; p++) {
        const char *name = epi_value_name(e, e->d->kept[p]), *first = p ? "j + PAIR" : "j";
        results = epi_emit_text(e->d->c, "%s      const float %s_0 = acc(%s, i, 0), %s_1 = acc(%s, i, 1);\n",
                                results, name, first, name, first);
    }
    return results;
}

/* The value that is stored in a type of a byte: what is converted to that type is so by the store itself. */
int epi_value_stored(const epi_emitter *e, int v, epi_dtype type) {
    int at = epi_tile_maker(e->d->tile, v);
    const epi_instr *s = at >= 0 ? &e->d->tile->instrs[at] : NULL;
    bool converts = s && s->kind == EPI_INSTR_MAP && epi_op_is_store(s->op, type);
    return converts && !e->d->instrs[at].before ? s->arg[0] : v;
}

/* ---- expressions ---- */

/* The instruction that makes a value which nothing else uses, or NULL. */
static const epi_instr *only_maker(const epi_emitter *e, int v) {
    int at = epi_tile_maker(e->d->tile, v);
    return at >= 0 && epi_tile_uses(e->d->tile, v) == 1 ? &e->d->tile->instrs[at] : NULL;
}

/* Is it the same for all rows, or all columns, of a tile? */
static bool is_short(const epi_emitter *e, int v) {
    return !epi_value_is_full(&e->d->tile->values[v]);
}

/* An exponential as a power of two: its change of base goes into the multiply-add or the difference below it.
 * NULL: neither is there. */
static const char *put_power(const epi_emitter *e, const epi_instr *s, int el) {
    const epi_instr *below = only_maker(e, s->arg[0]), *scaled = NULL;
    const char *x, *factor = "", *sign = "-";
    int by; /* the exponent is less (or more) by this */
    if (below && below->kind == EPI_INSTR_MULADD && below->sign > 0) {
        bool swap = is_short(e, below->arg[0]);
        x = epi_value_use(e, below->arg[swap], el);
        factor = epi_value_use(e, below->arg[!swap], el);
        by = below->arg[2];
        sign = below->other < 0 ? "-" : "";
    } else if (below && below->kind == EPI_INSTR_MAP && below->op == EPI_OP_SUB) {
        scaled = only_maker(e, below->arg[0]);
        x = epi_value_use(e, below->arg[0], el);
        for (int a = 0; a < 2 && scaled && scaled->kind == EPI_INSTR_MAP && scaled->op == EPI_OP_MUL; a++)
            if (is_short(e, scaled->arg[a])) {
                x = epi_value_use(e, scaled->arg[!a], el);
                factor = epi_value_use(e, scaled->arg[a], el);
            }
        by = below->arg[1];
    } else {
        return NULL;
    }
    int at = epi_tile_maker(e->d->tile, by);
    bool in_twos = at >= 0 && e->d->instrs[at].in_twos;
    return epi_emit_text(e->d->c, "ex2(__fmaf_rn(%s, %s%sLOG2E, %s%s%s))", x, factor, *factor ? " * " : "",
                         sign, epi_value_use(e, by, el), in_twos ? "" : " * LOG2E");
}

/* Short forms: an exponential, and a division by a short value, which is a multiplication whose factor is
 * worked out once, or here: that of a power of two is exact. NULL: there is none. */
static const char *put_quick(const epi_emitter *e, const epi_instr *s, int el) {
    if (!e->d->quick || s->kind != EPI_INSTR_MAP)
        return NULL;
    if (s->op == EPI_OP_EXP)
        return e->d->fast ? put_power(e, s, el) : NULL;
    if (s->op != EPI_OP_DIV || !s->inverse || !is_short(e, s->arg[1]))
        return NULL;
    const char *a = epi_value_use(e, s->arg[0], el);
    const epi_node *by = &e->d->g->nodes[e->d->tile->values[s->arg[1]].node];
    return by->op == EPI_OP_CONST
               ? epi_emit_text(e->d->c, "%s * %s", a, epi_emit_number(e->d->c, 1 / by->value))
               : epi_emit_text(e->d->c, "%s * rcp(%s)", a, epi_value_use(e, s->arg[1], el));
}

/* Element `el` of what an instruction computes. */
static const char *put_element(const epi_emitter *e, const epi_instr *s, int el) {
    const char *quick = put_quick(e, s, el), *a[3] = {"", "", ""};
    if (quick)
        return quick;
    if (s->kind == EPI_INSTR_SPLIT)
        return epi_value_use(e, s->arg[0], 2 * el + s->odd);
    if (s->kind == EPI_INSTR_JOIN)
        return epi_value_use(e, s->arg[el & 1], el / 2);
    if (s->kind == EPI_INSTR_MAP && epi_is_scaled(e->d->g, s->node) && epi_value_of_group(e->d, s->arg[1]))
        return epi_emit_text(e->d->c, "%s(%s, S.%s_s[i & 1])", epi_emit_scaled(e->d->c, s->node),
                             epi_value_use(e, s->arg[0], el), epi_value_name(e, s->arg[1]));
    for (int i = 0; i < 3 && s->arg[i] >= 0; i++)
        a[i] = epi_value_use(e, s->arg[i], el);
    return epi_emit_instr(e->d->c, s, a);
}

/* ---- per row ---- */

const char *epi_value_use_in_row(const epi_emitter *e, int v) {
    const char *use = v >= 0 ? epi_value_use(e, v, 0) : "", *at = strstr(use, "[i & 1]");
    return at ? epi_emit_text(e->d->c, "%.*s[h]", (int)(at - use), use) : use;
}

/* Where the rows of the tile's group begin in a table that has some for each group. */
static const char *put_group(const epi_emitter *e, int64_t stride) {
    return epi_emit_text(e->d->c, "batch_of(P, row) * %s", epi_emit_count(e->d->c, stride, "LL"));
}

/* Computed once a tile and kept in Rows. */
static void emit_row(epi_emitter *e, int instr) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    const epi_plan *plan = e->d->plan;
    const epi_emit_context *c = e->d->c;
    bool rows = e->d->tile->values[s->dst].rows;
    const char *name = epi_value_name(e, s->dst);
    epi_text_add(&e->members, rows ? "  float %s_r[2];\n" : "  float %s_u;\n", name);
    epi_text_add(&e->rows, rows ? "    R.%s_r[h] = " : "    R.%s_u = ", name);
    if (s->kind == EPI_INSTR_CONST) {
        epi_text_add(&e->rows, "%s;\n", epi_emit_node_number(c, s->node));
    } else if (s->kind == EPI_INSTR_LOAD) {
        epi_ref ref = epi_emit_ref(c, s->node, -1);
        epi_walk w = epi_walk_axes(&ref, &plan->rows, c->spec->sizes);
        epi_text_add(&e->rows, "%s;\n",
                     epi_emit_load(c, ref.type, e->d->instrs[instr].pointer, epi_emit_walk(c, &w, "r")));
    } else if (s->kind == EPI_INSTR_TAKE) {
        epi_ref ref = epi_emit_ref(c, e->d->g->nodes[s->node].arg[0], -1);
        epi_text_add(&e->rows, "%s;\n",
                     epi_emit_load(c, ref.type, e->d->instrs[instr].pointer,
                                   put_group(e, epi_ref_stride(&ref, plan->group_axis))));
    } else if (s->kind == EPI_INSTR_INDEX) {
        int at = epi_axes_find(&plan->rows, e->d->g->nodes[s->node].over.at[0]);
        epi_text_add(&e->rows, "(float)(%s);\n", epi_emit_digit(c, &plan->rows, at, "r"));
    } else {
        const char *a[3];
        for (int i = 0; i < 3; i++)
            a[i] = epi_value_use_in_row(e, s->arg[i]);
        epi_text_add(&e->rows, "%s;   // line %d\n", epi_emit_instr(e->d->c, s, a),
                     e->d->g->nodes[s->node].place.line);
    }
}

/* ---- per column ---- */

/* The position along an axis of the column whose number at its scale is `index`. */
static const char *emit_column_index(const epi_emitter *e, epi_axis axis, epi_scale scale,
                                     const char *index) {
    const epi_plan *p = e->d->plan;
    const epi_emit_context *c = e->d->c;
    epi_axes axes = p->cols;
    if (p->split == EPI_OP_COUNT)
        return epi_emit_digit(c, &axes, epi_axes_find(&axes, axis), index);
    epi_axis coarse = {p->fine.dim, (int16_t)(p->fine.shift - 1)};
    int at = epi_axes_find_dim(&axes, p->fine.dim), wanted = epi_axes_find_dim(&axes, axis.dim);
    axes.at[at] = coarse;
    const char *half = epi_emit_text(c, scale == EPI_SCALE_FINE ? "((%s) >> 1)" : "(%s)", index),
               *digit = epi_emit_digit(c, &axes, wanted, half);
    if (wanted != at || axis.shift != p->fine.shift)
        return digit;
    bool pairs = p->split == EPI_OP_EVEN; /* the parted axis itself, at its longer scale */
    return epi_emit_text(c, "%s(%s) + ((%s) & 1) * %s", pairs ? "2 * " : "", digit, index,
                         epi_emit_int(c, pairs ? 1 : epi_axis_size(coarse, c->spec->sizes)));
}

/* Attention's scores: a position along the last axis of the columns, which counts on from the tile's first
 * one. */
static bool is_position(const epi_emitter *e, const epi_instr *s) {
    const epi_axes *cols = &e->d->plan->cols;
    return e->d->positions && epi_axis_equal(e->d->g->nodes[s->node].over.at[0], cols->at[cols->count - 1]);
}

/* Where in what a column is loaded from the batch of a row begins; "" where it has none. A vector has to begin there. */
static const char *put_batch(epi_emitter *e, int instr, const epi_walk *rows, int elements, bool *vector) {
    bool moves = false;
    for (int d = 0; d < rows->count; d++) {
        moves |= rows->stride[d] != 0;
        *vector &= rows->stride[d] % elements == 0;
    }
    if (!moves)
        return "";
    epi_text_add(&e->members, "  i64 at%d;\n", instr);
    epi_text_add(&e->rows, "    R.at%d = %s;\n", instr, epi_emit_walk(e->d->c, rows, "r"));
    return epi_emit_text(e->d->c, "R.at%d + ", instr);
}

/* Computed once a fragment, for the two cells of a row. */
static void emit_column(epi_emitter *e, int instr) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    const epi_tile_value *v = &e->d->tile->values[s->dst];
    const epi_emit_context *c = e->d->c;
    bool take = s->kind == EPI_INSTR_TAKE, load = s->kind == EPI_INSTR_LOAD || take;
    epi_ref ref = epi_emit_ref(c, take ? e->d->g->nodes[s->node].arg[0] : s->node, -1);
    int64_t apart = take ? epi_ref_drop(&ref, e->d->plan->group_axis) : 0;
    epi_columns cols = epi_columns_of(e->d->plan, &ref, c->spec->sizes, v->scale);
    int elements = epi_cell_elements(e->d->tile, v->scale), pointer = e->d->instrs[instr].pointer;
    const char *name = epi_value_name(e, s->dst), *type = epi_emit_type(ref.type), *of_batch = "",
               *first = epi_cell_index(elements),
               *columns = epi_emit_int(c, epi_cell_columns(e->d->tile, elements));
    bool vector = load && epi_cell_is_vector(e, &ref, &cols, elements);
    epi_walk rows = epi_walk_axes(&ref, &e->d->plan->rows, c->spec->sizes);
    bool staged = e->d->instrs[instr].column_at;
    if (load && !staged)
        of_batch = put_batch(e, instr, &rows, elements, &vector);
    if (take) {
        of_batch = epi_emit_text(c, "%s + ", put_group(e, apart));
        vector &= apart % elements == 0;
    }
    epi_text_add(&e->fragment,
                 "    float %s_c[%d];\n#pragma unroll\n    for (int i = 0; i < 4; i += 2) {\n      const int "
                 "n = col + 16 * j + 4 * i + 2 * q;\n      (void)n;\n",
                 name, 2 * elements);
    if (staged)
        epi_text_add(&e->fragment,
                     "      const uint2 v = lds64(staged + 4 * (%d * STREAM + 16 * j + 4 * i + 2 * q));\n",
                     e->d->instrs[instr].column_at - 1);
    else if (vector)
        epi_text_add(&e->fragment,
                     "      float v[%d];\n      load_n<%s>(v, P.ptr[%d], %s(%s < %s ? %s : 0));\n", elements,
                     type, pointer, of_batch, first, columns, first);
    for (int el = 0; el < elements; el++) {
        /* past the last column the last one is read again */
        const char *index = epi_emit_text(c, "min(%s + %d, %s - 1)", first, el, columns), *value;
        if (staged)
            value = epi_emit_text(c, "__uint_as_float(v.%c)", "xy"[el]);
        else if (vector)
            value = epi_emit_text(c, "v[%d]", el);
        else if (load)
            value = epi_emit_text(c, "load<%s>(P.ptr[%d], %s%s)", type, pointer, of_batch,
                                  epi_emit_columns(c, &cols, index));
        else if (s->kind == EPI_INSTR_INDEX && is_position(e, s))
            value = epi_emit_text(c, "position + (float)(16 * j + 4 * i + %d)", el);
        else if (s->kind == EPI_INSTR_INDEX)
            value = epi_emit_text(c, "(float)(%s)",
                                  emit_column_index(e, e->d->g->nodes[s->node].over.at[0], v->scale, index));
        else
            value = put_element(e, s, el);
        epi_text_add(&e->fragment, "      %s_c[(i >> 1) * %d + %d] = %s;\n", name, elements, el, value);
    }
    epi_text_add(&e->fragment, "    }\n");
}

/* ---- per element ---- */

/* Of a multiply-add that the packing point splits, the sum is left: the product is what was packed. */
void epi_value_emit_elements(const epi_emitter *e, int instr, epi_text *out, const char *indent) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    int elements = epi_cell_elements(e->d->tile, e->d->tile->values[s->dst].scale);
    int product = instr == e->d->split[0] ? 0 : e->d->products > 1 && instr == e->d->split[1] ? 1 : -1;
    for (int el = 0; el < elements; el++) {
        epi_text_add(out, "%sconst float %s_%d = ", indent, epi_value_name(e, s->dst), el);
        if (product >= 0)
            epi_text_add(out, "%s %c %s;\n", epi_value_use(e, e->d->kept[product], el),
                         s->other < 0 ? '-' : '+', epi_value_use(e, s->arg[2], el));
        else
            epi_text_add(out, "%s;\n", put_element(e, s, el));
    }
}

/* Are all of a walk's distances multiples of four, but for the last one where that may be 1? */
static bool in_fours(const epi_emitter *e, const epi_walk *w, bool next) {
    int last = w->count - 1;
    epi_walk outer = *w;
    outer.count -= next && w->count;
    return epi_walk_aligned(&outer, 4) &&
           (!next || (w->count && w->stride[last] == 1 && !epi_emit_grows(e->d->c, w->size[last]) &&
                      w->size[last] % 4 == 0));
}

/* Random numbers, a fragment at a time: lanes share what one counter gives where they can. Registers are few:
 * where a row begins is worked out anew for every tile. */
static void emit_random(epi_emitter *e, int instr) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    const epi_emit_context *c = e->d->c;
    const char *name = epi_value_name(e, s->dst);
    epi_ref ref = epi_ref_of_axes(&e->d->g->nodes[s->node].axes, c->spec->sizes);
    epi_columns cols = epi_columns_of(e->d->plan, &ref, c->spec->sizes, EPI_SCALE_FINE);
    epi_walk rows = epi_walk_axes(&ref, &e->d->plan->rows, c->spec->sizes);
    bool plain = e->d->positions && !e->d->anywhere && !cols.two,
         along = plain && in_fours(e, &rows, false) && in_fours(e, &cols.walk, true),
         down = plain && in_fours(e, &cols.walk, false) && in_fours(e, &rows, true);
    epi_text_add(&e->begin,
                 "  i64 at%d[2];\n#pragma unroll\n  for (int h = 0; h < 2; h++) {\n"
                 "    const int r = row_near(P, row + 8 * h);\n    at%d[h] = %s;\n  }\n"
                 "  const u32 seed%d = %s;\n",
                 instr, instr, epi_emit_walk(c, &rows, "r"), instr,
                 epi_emit_seed(c, s->node, e->d->instrs[instr].pointer));
    epi_text_add(&e->fragment,
                 "    float %s_f[8];\n    uniform_%s(%s_f, seed%d, [&](int i, int e) {\n"
                 "      const int n = col + 16 * j + 8 * (i >> 1) + 2 * q + e;\n"
                 "      return (u64)((i & 1 ? at%d[1] : at%d[0]) + %s);\n    }%s);\n",
                 name,
                 along  ? "along"
                 : down ? "down"
                        : "any",
                 name, instr, instr, instr, epi_emit_columns(c, &cols, "n"),
                 along || down ? ", (u32)t & 31" : "");
    for (int el = 0; el < 2; el++)
        epi_text_add(&e->cell, "      const float %s_%d = %s_f[2 * i + %d];\n", name, el, name, el);
}

/* Says in the text which line of the program comes next. */
static void emit_comment(epi_emitter *e, const epi_instr *s) {
    const epi_node *n = &e->d->g->nodes[s->node];
    if (n->name)
        epi_text_add(&e->cell, "      // %s, line %d\n", n->name, n->place.line);
}

/* Is something divided by the value that is a scale of it? Then its inverse is made with it. */
static bool is_scale(const epi_emitter *e, int v) {
    bool scale = false;
    for (int i = 0; i < e->d->tile->instr_count; i++) {
        const epi_instr *s = &e->d->tile->instrs[i];
        scale |= s->kind == EPI_INSTR_MAP && s->arg[1] == v && epi_is_scaled(e->d->g, s->node);
    }
    return scale;
}

void epi_value_emit_group(epi_emitter *e, int instr, const char *value) {
    const epi_tile_program *t = e->d->tile;
    int v = t->instrs[instr].dst;
    const char *name = epi_value_name(e, v);
    epi_text_add(&e->sums, "  float %s_g[2];\n", name);
    epi_text_add(&e->fragment, "        S.%s_g[h] = %s;   // line %d\n", name, value,
                 e->d->g->nodes[t->instrs[instr].node].place.line);
    if (!is_scale(e, v))
        return;
    epi_text_add(&e->sums, "  Scale %s_s[2];\n", name);
    epi_text_add(&e->fragment, "        S.%s_s[h] = scale_of(S.%s_g[h]);\n", name, name);
}

/* A map of such values, at the first columns of a group. */
static void emit_of_group(epi_emitter *e, int instr) {
    const epi_tile_program *t = e->d->tile;
    const char *a[3];
    for (int i = 0; i < 3; i++)
        a[i] = epi_value_use_in_row(e, t->instrs[instr].arg[i]);
    epi_text_add(
        &e->fragment,
        "    if ((C * SUBTILE + 16 * j) %% %d == 0) {\n#pragma unroll\n      for (int h = 0; h < 2; h++) {\n",
        t->group[t->acc_scale]);
    epi_value_emit_group(e, instr, epi_emit_instr(e->d->c, &t->instrs[instr], a));
    epi_text_add(&e->fragment, "      }\n    }\n");
}

void epi_value_emit(epi_emitter *e, int instr) {
    const epi_instr *s = &e->d->tile->instrs[instr];
    const epi_tile_value *v = &e->d->tile->values[s->dst];
    if (e->d->instrs[instr].of_group) {
        emit_of_group(e, instr);
        return;
    }
    if (e->d->leaves && e->d->instrs[instr].replaced && !e->first_pass)
        return; /* the pass over the group has left what comes of it */
    if (s->kind == EPI_INSTR_CONST && !epi_emit_is_open_number(e->d->c, s->node))
        return; /* a number is written where it is used */
    if (s->kind == EPI_INSTR_RANDOM) {
        emit_random(e, instr);
    } else if (epi_value_is_full(v)) {
        emit_comment(e, s);
        epi_value_emit_elements(e, instr, &e->cell, "      ");
    } else if (v->scale == EPI_SCALE_NONE) {
        emit_row(e, instr);
    } else {
        emit_column(e, instr);
    }
}

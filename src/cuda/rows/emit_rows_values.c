/* emit_rows_values.c: writes the values of a row: a vector of elements, or one number. */
#include "cuda/rows/emit_rows.h"
#include "pass/analyse/range.h"

/* Of what is kept for some rows, what was made so many rows before. */
const char *epi_rows_name(const epi_rows_design *d, int v) {
    int before = 0, from = d->window ? epi_window_source(d, v, &before) : -1;
    v = from < 0 ? v : d->tile.instrs[from].dst;
    const char *name = epi_emit_value(d->c, d->tile.values[v].node, v);
    return before ? epi_emit_text(d->c, "%s_%d", name, before) : name;
}

const char *epi_rows_reader(const epi_rows_access *a) {
    return a->reread ? "cached" : "stream";
}

static bool is_coarse(const epi_rows_design *d, int i) {
    return epi_rows_is_coarse(d, epi_rows_value(&d->tile.instrs[i]));
}

const char *epi_rows_row(const epi_rows_design *d, int i) {
    if (d->down && !d->access[i].step)
        return epi_emit_text(d->c, "at%d", i);
    if (d->window && d->tile.instrs[i].kind != EPI_INSTR_SHIFT) /* a store is of a row that there is */
        return epi_emit_text(d->c,
                             epi_rows_stores(&d->tile.instrs[i]) ? "(at%d + (i64)(p - %d) * %s)"
                                                                 : "(at%d + time%d * %s)",
                             i, d->at, epi_emit_count(d->c, d->access[i].step, "LL"));
    if (d->down) {
        const char *t = d->tile.instrs[i].kind == EPI_INSTR_SHIFT ? epi_emit_text(d->c, "t%d", i) : "t";
        return epi_emit_text(d->c, "(at%d + %s * %s)", i, t, epi_emit_count(d->c, d->access[i].step, "LL"));
    }
    return epi_emit_walk(d->c, &d->access[i].rows, "row");
}

const char *epi_rows_vector(const epi_rows_design *d, int i, int split) {
    const epi_columns *cols = &d->access[i].cols;
    const char *at = epi_emit_walk(d->c, &cols->walk, epi_rows_loads_half(d, i) ? "(c / 2)" : "c");
    return split ? epi_emit_text(d->c, "%s + %s", at, epi_emit_count(d->c, cols->part, "LL")) : at;
}

/* The offset of element e of the vector in hand, beyond the row's. */
static const char *element(const epi_rows_design *d, int i) {
    return epi_emit_columns(d->c, &d->access[i].cols, is_coarse(d, i) ? "(c / 2 + e)" : "(c + e)");
}

/* The same with the row's, where there is `row`. */
static const char *in_row(const epi_rows_design *d, int i, bool row, const char *beyond) {
    return row ? epi_emit_text(d->c, "%s + %s", epi_rows_row(d, i), beyond) : beyond;
}

void epi_rows_put_comment(const epi_rows_design *d, epi_text *t, int node) {
    const epi_node *n = &d->g->nodes[node];
    PUT("   // %s, line %d\n", epi_ops[n->op].text[0] ? epi_ops[n->op].text : "input", n->place.line);
}

/* An operand in an expression on element e, or on one number; of a square tile's rows, the vector's. */
const char *epi_rows_operand(const epi_rows_design *d, int v, bool element) {
    bool line = epi_rows_is_line(d, v), many = epi_rows_has_columns(d, v) && !line;
    return epi_emit_text(d->c, many ? "%s[e]" : line && element ? "%s_row" : "%s", epi_rows_name(d, v));
}

/* Is the value the same for all columns of a group? It is worked out once for a vector, and the first column stores it. */
static bool lacks_group(const epi_rows_design *d, int node) {
    epi_axes group = {0};
    for (int i = d->plan->cols.count - d->plan->local_axes; i < d->plan->cols.count; i++)
        group.at[group.count++] = d->plan->cols.at[i];
    return group.count && !epi_plan_has(d->g, node, &group);
}

/* Is it a division of many elements by one number? That is a multiplication where 16 bits are stored. */
static bool divides_often(const epi_rows_design *d, const epi_instr *s) {
    return d->fast && !d->plan->square && s->kind == EPI_INSTR_MAP && s->inverse &&
           !epi_rows_has_columns(d, s->arg[1]) && epi_rows_has_columns(d, s->dst);
}

/* Is it a division of many elements by a scale of theirs, which is one number for the row, the group, or the row
 * or column of a square tile? */
static bool scales_often(const epi_rows_design *d, const epi_instr *s) {
    return s->kind == EPI_INSTR_MAP && epi_is_scaled(d->g, s->node) && epi_rows_has_columns(d, s->dst) &&
           (!epi_rows_has_columns(d, s->arg[1]) || lacks_group(d, d->tile.values[s->arg[1]].node) ||
            epi_rows_is_column(d, s->arg[1]));
}

static void put_map(const epi_rows_design *d, epi_text *t, const epi_instr *s, const char *to, bool element) {
    const char *a[3] = {"", "", ""};
    for (int i = 0; i < 3 && s->arg[i] >= 0; i++)
        a[i] = epi_rows_operand(d, s->arg[i], element);
    if (scales_often(d, s) && epi_rows_is_side(d, s->arg[1]))
        PUT(epi_rows_is_line(d, s->arg[1]) ? "%s = %s(%s, scale_row_%d);" : "%s = %s(%s, scales_%d[e]);", to,
            epi_emit_scaled(d->c, s->node), a[0], s->arg[1]);
    else if (scales_often(d, s))
        PUT("%s = %s(%s, scale_%d);", to, epi_emit_scaled(d->c, s->node), a[0], s->dst);
    else if (divides_often(d, s))
        PUT("%s = over_%d.of(%s);", to, s->dst, a[0]);
    else
        PUT("%s = %s;", to, epi_emit_instr(d->c, s, a));
}

/* ---- elements ---- */

/* A load of elements that do not lie in vectors. What an output may be stored over is read in order with the
 * stores. */
static void put_load_one_by_one(const epi_rows_design *d, epi_text *t, int i, const char *name) {
    const epi_rows_access *a = &d->access[i];
    int v = d->tile.instrs[i].dst, w = epi_rows_width(d, v);
    const char *at = in_row(d, i, epi_rows_is_full(d, v), element(d, i));
    if (a->overwritten)
        PUT("EACH(%d) { Raw<%s, 1> r; r.stream(P.ptr[%d], %s); %s[e] = r.one(0); }", w,
            epi_emit_type(a->ref.type), a->pointer, at, name);
    else
        PUT("EACH(%d) %s[e] = %s;", w, name, epi_emit_load(d->c, a->ref.type, a->pointer, at));
}

/* A load of a vector: from the ring, from registers, or from memory. */
static void put_load_vector(const epi_rows_design *d, epi_text *t, int i, const char *name) {
    const epi_instr *s = &d->tile.instrs[i];
    const epi_rows_access *a = &d->access[i];
    int w = epi_rows_width(d, s->dst) / epi_rows_pieces(a);
    const char *type = epi_emit_type(a->ref.type);
    for (int split = 0; split < epi_rows_pieces(a); split++) {
        const char *get = a->cols.two ? epi_emit_text(d->c, "get_split(%s, %d)", name, split)
                                      : epi_emit_text(d->c, "get(%s)", name);
        if (a->fetched && d->shape.stages && a->bytes)
            PUT("{ Raw<%s, %d> r; r.staged(from + %ld + %ld * (u32)(l%s)); r.%s; } ", type, w,
                (long)(a->staged + split * a->bytes), (long)epi_dtype_size(a->ref.type),
                epi_rows_loads_half(d, i) ? " / 2" : "", get);
        else if ((a->fetched && d->shape.resident) || a->held)
            PUT("%s_raw%d[i].%s%s; ", name, split, (a->held && d->words) || d->plan->square ? "held()." : "",
                get);
        else
            PUT("{ Raw<%s, %d> r; r.%s(P.ptr[%d], %s); r.%s; } ", type, w, epi_rows_reader(a), a->pointer,
                in_row(d, i, a->fetched || s->kind == EPI_INSTR_SHIFT, epi_rows_vector(d, i, split)), get);
    }
}

/* Is an index along the columns just the column's number, and small enough to be exact in f32? */
static bool counts_columns(const epi_rows_design *d, const epi_rows_access *a) {
    const epi_walk *c = &a->cols.walk;
    return !a->rows.count && !a->cols.two && c->count == 1 && c->stride[0] == 1 &&
           epi_open_most(d->c->spec->open, c->size[0]) < 1 << 24;
}

static void put_index(const epi_rows_design *d, epi_text *t, int i, const char *name) {
    const epi_rows_access *a = &d->access[i];
    int v = d->tile.instrs[i].dst, w = epi_rows_width(d, v);
    if (counts_columns(d, a)) /* exact: one conversion serves a vector */
        PUT("{ const float first = (float)(%s); EACH(%d) %s[e] = first + (float)e; }",
            is_coarse(d, i) ? "c / 2" : "c", w, name);
    else
        PUT("EACH(%d) %s[e] = (float)(%s);", w, name,
            in_row(d, i, epi_rows_is_full(d, v) && a->rows.count, element(d, i)));
}

static void put_random(const epi_rows_design *d, epi_text *t, int i, const char *name) {
    const epi_rows_access *a = &d->access[i];
    int w = epi_rows_width(d, d->tile.instrs[i].dst);
    if (a->vectors && !a->cols.two)
        PUT("uniform_n<%d, %s>(%s, seed%d, %s);", w, w % 4 == 0 && !d->tail ? "true" : "false", name, i,
            in_row(d, i, true, epi_rows_vector(d, i, 0)));
    else
        PUT("EACH(%d) { float u[1]; uniform_n<1, false>(u, seed%d, %s); %s[e] = u[0]; }", w, i,
            in_row(d, i, true, element(d, i)), name);
}

/* Elements of the table's row that this row's index names; zeros where it names none. */
static void put_taken(const epi_rows_design *d, epi_text *t, int i, const char *name) {
    const epi_rows_access *a = &d->access[i];
    int w = epi_rows_width(d, d->tile.instrs[i].dst);
    const char *type = epi_emit_type(a->ref.type),
               *place = epi_emit_along(d->c, &a->along, epi_emit_text(d->c, "take%d", i));
    if (!a->vectors)
        PUT("EACH(%d) %s[e] = take%d < 0 ? 0.f : load<%s>(P.ptr[%d], %s + %s);", w, name, i, type, a->pointer,
            place, in_row(d, i, true, element(d, i)));
    for (int split = 0; split < epi_rows_pieces(a) && a->vectors; split++) {
        PUT("{ Raw<%s, %d> r; r.clear(); if (take%d >= 0) r.cached(P.ptr[%d], %s + %s); r.", type,
            w / epi_rows_pieces(a), i, a->pointer, place, in_row(d, i, true, epi_rows_vector(d, i, split)));
        PUT(a->cols.two ? "get_split(%s, %d); } " : "get(%s); } ", name, split);
    }
}

/* A reduction over a group of columns, which neighbouring lanes of a warp have: all of them have columns. */
static void put_group(const epi_rows_design *d, epi_text *t, const epi_instr *s, const char *to) {
    int columns = d->tile.group[EPI_SCALE_FINE];
    const char *fold = epi_emit_text(d->c, "f%d", s->dst);
    PUT("%s %s; %s.clear(); take_all(%s, %s);\n        UNROLL for (int m = 1; m < %d / VEC; m <<= 1) "
        "%s.across(m);\n        EACH(VEC) %s = %s;",
        epi_ops[s->op].cuda, fold, fold, fold, epi_rows_name(d, s->arg[0]), columns, fold, to,
        epi_emit_fold_end(d->c, s->op, fold, columns));
}

/* How many places before a shifted value's own its elements are, as a number that may be below zero. */
static const char *shifted_by(const epi_rows_design *d, int i) {
    return epi_emit_text(d->c, "(%ldLL)", (long)epi_shift_by(&d->g->nodes[d->tile.instrs[i].node]));
}

/* Of a shift along an axis of rows: is there a row so many places before this one? */
static const char *is_row_there(const epi_rows_design *d, int i) {
    epi_axis axis = d->g->nodes[d->tile.instrs[i].node].over.at[0];
    if (d->window)
        return epi_emit_text(d->c, "t%d == p - %d - %s", i, d->at, shifted_by(d, i));
    if (d->down)
        return epi_emit_text(d->c, "t%d == t - %s", i, shifted_by(d, i));
    const char *at = epi_emit_digit(d->c, &d->plan->rows, epi_axes_find(&d->plan->rows, axis), "row");
    return epi_emit_text(d->c, "(u64)(%s - %s) < (u64)%s", at, shifted_by(d, i),
                         epi_emit_count(d->c, epi_axis_size(axis, d->c->spec->sizes), "LL"));
}

/* Where that row is. Of a scan down the rows it is t<i>, or the nearest that there is. */
static const char *other_row(const epi_rows_design *d, int i) {
    int64_t apart = epi_ref_stride(&d->access[i].ref, d->g->nodes[d->tile.instrs[i].node].over.at[0]);
    return d->down ? epi_rows_row(d, i)
                   : epi_emit_text(d->c, "%s - %s * %s", epi_rows_row(d, i), shifted_by(d, i),
                                   epi_emit_count(d->c, apart, "LL"));
}

/* From other places along an axis, zero where there is none: of a row axis a vector from another row; of the columns one
 * vector or two, or each element from where it is. */
static void put_shifted(const epi_rows_design *d, epi_text *t, int i, const char *name) {
    const epi_rows_access *a = &d->access[i];
    epi_axis axis = d->g->nodes[d->tile.instrs[i].node].over.at[0];
    int w = epi_rows_width(d, d->tile.instrs[i].dst);
    bool rows = epi_axes_find(&d->plan->rows, axis) >= 0, row = epi_rows_is_full(d, d->tile.instrs[i].dst);
    if (!rows && a->vectors && !d->plan->scan_count) {
        PUT("beside<%s, %d, %ld>(%s, P.ptr[%d], %s, c, N);", epi_emit_type(a->ref.type), w,
            (long)epi_shift_by(&d->g->nodes[d->tile.instrs[i].node]), name, a->pointer,
            row ? epi_rows_row(d, i) : "0LL");
    } else if (!rows) {
        const char *at = in_row(d, i, row, epi_emit_columns(d->c, &a->cols, "s"));
        PUT("EACH(%d) { const i64 s = c + e - %s; %s[e] = s >= 0 && s < N ? %s : 0.f; }", w, shifted_by(d, i),
            name, epi_emit_load(d->c, a->ref.type, a->pointer, at));
    } else if (d->down && a->vectors && a->shared >= 0 && d->access[a->shared].bytes) {
        const char *type = epi_emit_type(a->ref.type);
        int64_t bytes = w * (int64_t)epi_dtype_size(a->ref.type);
        PUT("{ Raw<%s, %d> r; r.clear(); const int s = (int)(team * RUN + i - BACKWARD(%s)); if (%s) { if "
            "((u32)s < CHUNK) "
            "r.staged(from + %ld + %ld * RING(s)); else r.cached(P.ptr[%d], %s + %s); } r.get(%s); }",
            type, w, shifted_by(d, i), is_row_there(d, i), (long)d->access[a->shared].staged, (long)bytes,
            a->pointer, other_row(d, i), epi_rows_vector(d, i, 0), name);
    } else if (d->down && a->vectors) {
        put_load_vector(d, t, i, name);
        PUT(" if (!(%s)) EACH(%d) %s[e] = 0.f;", is_row_there(d, i), w, name);
    } else if (!a->vectors) {
        PUT("EACH(%d) %s[e] = %s ? %s : 0.f;", w, name, is_row_there(d, i),
            epi_emit_load(d->c, a->ref.type, a->pointer,
                          epi_emit_text(d->c, "%s + %s", other_row(d, i), element(d, i))));
    } else {
        for (int split = 0; split < epi_rows_pieces(a); split++) {
            PUT("{ Raw<%s, %d> r; r.clear(); if (%s) r.cached(P.ptr[%d], %s + %s); r.",
                epi_emit_type(a->ref.type), w / epi_rows_pieces(a), is_row_there(d, i), a->pointer,
                other_row(d, i), epi_rows_vector(d, i, split));
            PUT(a->cols.two ? "get_split(%s, %d); } " : "get(%s); } ", name, split);
        }
    }
}

void epi_rows_put_elements(const epi_rows_design *d, epi_text *t, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    const char *name = epi_rows_name(d, s->dst), *to = epi_emit_text(d->c, "%s[e]", name);
    int w = epi_rows_width(d, s->dst);
    PUT("        float %s[%d]; ", name, w);
    if (scales_often(d, s) && !epi_rows_is_side(d, s->arg[1]))
        PUT("const Scale scale_%d = scale_of(%s%s); ", s->dst, epi_rows_name(d, s->arg[1]),
            epi_rows_has_columns(d, s->arg[1]) ? "[0]" : "");
    else if (divides_often(d, s))
        PUT("const Over over_%d(%s); ", s->dst, epi_rows_name(d, s->arg[1]));
    switch (s->kind) {
    case EPI_INSTR_LOAD: (d->access[i].vectors ? put_load_vector : put_load_one_by_one)(d, t, i, name); break;
    case EPI_INSTR_INDEX: put_index(d, t, i, name); break;
    case EPI_INSTR_RANDOM: put_random(d, t, i, name); break;
    case EPI_INSTR_TAKE: put_taken(d, t, i, name); break;
    case EPI_INSTR_SHIFT: put_shifted(d, t, i, name); break;
    case EPI_INSTR_CONST: PUT("EACH(%d) %s = %s;", w, to, epi_emit_node_number(d->c, s->node)); break;
    case EPI_INSTR_SPLIT:
        PUT("EACH(%d) %s = %s[2 * e + %d];", w, to, epi_rows_name(d, s->arg[0]), s->odd);
        break;
    case EPI_INSTR_REDUCE_GROUP: put_group(d, t, s, to); break;
    case EPI_INSTR_JOIN:
        PUT("EACH(%d) { %s[2 * e] = %s; %s[2 * e + 1] = %s; }", w / 2, name,
            epi_rows_operand(d, s->arg[0], true), name, epi_rows_operand(d, s->arg[1], true));
        break;
    default:
        if (s->kind == EPI_INSTR_MAP && lacks_group(d, s->node)) {
            PUT("{ const int e = 0; ");
            put_map(d, t, s, to, true);
            PUT(" } EACH(%d) %s = %s[0];", w, to, name);
        } else {
            PUT("EACH(%d) ", w);
            put_map(d, t, s, to, true);
        }
    }
    epi_rows_put_comment(d, t, s->node);
}

/* Does a division of elements take it as their scale? */
static bool is_scale(const epi_rows_design *d, int v) {
    bool scales = false;
    for (int k = 0; k < d->tile.instr_count; k++)
        scales |= scales_often(d, &d->tile.instrs[k]) && d->tile.instrs[k].arg[1] == v;
    return scales;
}

void epi_rows_put_scale(const epi_rows_design *d, epi_text *t, int v) {
    const char *name = epi_rows_name(d, v);
    if (!epi_rows_is_side(d, v) || !is_scale(d, v))
        return;
    if (epi_rows_is_line(d, v))
        PUT("    const Scale scale_line_%d = scale_of(%s);\n", v, name);
    else
        PUT("    Scale scales_%d[VEC]; EACH(VEC) scales_%d[e] = scale_of(%s[e]);\n", v, v, name);
}

void epi_rows_put_lines(const epi_rows_design *d, epi_text *t, const epi_rows_phase *p) {
    for (int v = 0; v < d->tile.value_count; v++) {
        bool plain = false, scales = false;
        for (int n = 0; n < p->count && epi_rows_is_line(d, v); n++) {
            const epi_instr *s = &d->tile.instrs[p->instrs[n]];
            bool divides = scales_often(d, s) && s->arg[1] == v;
            scales |= divides;
            plain |= s->dst >= 0 && (s->arg[0] == v || (s->arg[1] == v && !divides) || s->arg[2] == v) &&
                     !epi_rows_folds_side(d, s);
        }
        if (plain)
            PUT("        const float %s_row = of_line(%s, i);\n", epi_rows_name(d, v), epi_rows_name(d, v));
        if (scales)
            PUT("        const Scale scale_row_%d = of_line(scale_line_%d, i);\n", v, v);
    }
}

/* What is converted to a type of a byte is so by the store itself. */
static int stored(const epi_rows_design *d, const epi_instr *store, epi_dtype type) {
    const epi_instr *s = &d->tile.instrs[d->maker[store->arg[0]]];
    bool converts = s->kind == EPI_INSTR_MAP && epi_op_is_store(s->op, type);
    return converts && epi_rows_is_full(d, s->arg[0]) ? s->arg[0] : store->arg[0];
}

void epi_rows_put_store(const epi_rows_design *d, epi_text *t, int i) {
    const epi_instr *s = &d->tile.instrs[i];
    const epi_rows_access *a = &d->access[i];
    const char *name = epi_rows_name(d, stored(d, s, a->ref.type)), *type = epi_emit_type(a->ref.type);
    int w = epi_rows_width(d, s->arg[0]);
    bool coarse = is_coarse(d, i);
    if (a->turned) {
        PUT("        turned%d.take(i, %s);   // %s\n", i, name,
            d->g->tensors[s->tensor >= 0 ? s->tensor : 0].name);
        return;
    }
    if (epi_rows_is_column(d, s->arg[0]))
        PUT("        if (lane < SIDE / VEC) {\n");
    if (!a->vectors && lacks_group(d, s->node))
        PUT("        if (c %% %d == 0) { const int e = 0; store<%s>((void *)P.ptr[%d], %s, %s[0]); }",
            d->tile.group[EPI_SCALE_FINE], type, a->pointer, in_row(d, i, true, element(d, i)), name);
    else if (!a->vectors)
        PUT("        EACH(%d) store<%s>((void *)P.ptr[%d], %s, %s[e]);", w, type, a->pointer,
            in_row(d, i, true, element(d, i)), name);
    for (int split = 0; split < epi_rows_pieces(a) && a->vectors; split++) {
        PUT("        { Raw<%s, %d> r; r.put_split(%s, %d, %d); ", type, w / epi_rows_pieces(a), name, split,
            epi_rows_pieces(a));
        if (d->tail)
            PUT("if (N - c < VEC) r.write_some((void *)P.ptr[%d], %s, %s); else ", a->pointer,
                coarse ? "c / 2" : "c", coarse ? "(N - c) / 2" : "N - c");
        PUT("r.write((void *)P.ptr[%d], %s); }", a->pointer,
            in_row(d, i, true, epi_rows_vector(d, i, split)));
    }
    PUT("   // %s\n", d->g->tensors[s->tensor >= 0 ? s->tensor : 0].name);
    if (epi_rows_is_column(d, s->arg[0]))
        PUT("        }\n");
}

void epi_rows_put_seeds(const epi_rows_design *d, epi_text *t) {
    for (int i = 0; i < d->tile.instr_count; i++)
        if (d->tile.instrs[i].kind == EPI_INSTR_RANDOM)
            PUT("  const u32 seed%d = %s;\n", i,
                epi_emit_seed(d->c, d->tile.instrs[i].node, d->access[i].pointer));
}

void epi_rows_put_position(const epi_rows_design *d, epi_text *t, int i) {
    const epi_node *n = &d->g->nodes[d->tile.instrs[i].node];
    const char *pointer = epi_emit_text(d->c, "P.ptr[%d]", d->access[i].index);
    PUT("    const i64 take%d = on ? %s : -1;   // %s\n", i,
        epi_emit_position(d->c, n, &d->plan->rows, pointer,
                          d->window ? epi_emit_text(d->c, "row%d", d->at) : "row"),
        epi_emit_name(d->c, n->arg[1]));
}

/* ---- numbers, and values per row ---- */

/* Where a row's number lies; of a square tile's rows, this thread's own. */
static const char *number_at(const epi_rows_design *d, int i) {
    if (!epi_rows_is_line(d, epi_rows_value(&d->tile.instrs[i])))
        return epi_rows_row(d, i);
    return in_row(d, i, true, epi_emit_columns(d->c, &d->access[i].cols, "line"));
}

/* Which thread stores it. */
static const char *who_stores(const epi_rows_design *d, int v) {
    return epi_rows_is_line(d, v) ? "lane % 16 < NV"
           : d->shape.cluster > 1 ? "on && lane == 0 && rank == 0"
                                  : "on && lane == 0";
}

void epi_rows_put_short(const epi_rows_design *d, epi_text *t, int i, const char *indent) {
    const epi_instr *s = &d->tile.instrs[i];
    const epi_rows_access *a = &d->access[i];
    const char *name = epi_rows_name(d, epi_rows_value(s)),
               *to = epi_emit_text(d->c, d->window ? "float %s" : "const float %s", name),
               *type = epi_emit_type(a->ref.type), *row = number_at(d, i);
    if (epi_rows_is_column(d, epi_rows_value(s))) {
        (s->kind == EPI_INSTR_STORE ? epi_rows_put_store : epi_rows_put_elements)(d, t, i);
        if (s->dst >= 0)
            epi_rows_put_scale(d, t, s->dst);
        return;
    }
    PUT("%s", indent);
    switch (s->kind) {
    case EPI_INSTR_LOAD:
        if (d->shape.ahead && epi_rows_loads_row(d, i))
            PUT("%s = %s_now;", to, name);
        else
            PUT(epi_rows_loads_row(d, i) ? "%s = on ? %s : 0.f;" : "%s = %s;", to,
                epi_emit_load(d->c, a->ref.type, a->pointer, row));
        break;
    case EPI_INSTR_INDEX: PUT("%s = (float)(%s);", to, row); break;
    case EPI_INSTR_RANDOM:
        PUT("float u%d[1]; uniform_n<1, false>(u%d, seed%d, %s); %s = u%d[0];", i, i, i, row, to, i);
        break;
    case EPI_INSTR_TAKE:
        PUT("%s = take%d < 0 ? 0.f : load<%s>(P.ptr[%d], %s + %s);", to, i, type, a->pointer,
            epi_emit_along(d->c, &a->along, epi_emit_text(d->c, "take%d", i)), row);
        break;
    case EPI_INSTR_SHIFT:
        PUT("%s = on && %s ? %s : 0.f;", to, is_row_there(d, i),
            epi_emit_load(d->c, a->ref.type, a->pointer, other_row(d, i)));
        break;
    case EPI_INSTR_CONST: PUT("%s = %s;", to, epi_emit_node_number(d->c, s->node)); break;
    case EPI_INSTR_STORE:
        PUT("if (%s) store<%s>((void *)P.ptr[%d], %s, %s);", who_stores(d, s->arg[0]), type, a->pointer, row,
            name);
        break;
    default: put_map(d, t, s, to, false);
    }
    epi_rows_put_comment(d, t, s->node);
    if (s->dst >= 0)
        epi_rows_put_scale(d, t, s->dst);
}

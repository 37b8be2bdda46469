/* emit_rows_values.c: the values of a row as text: a vector of elements, or one number. What a phase needs is
 * written where it is first needed. */
#include <stdio.h>
#include <string.h>

#include "cuda/emit_rows.h"

epi_name epi_rows_name(const epi_rows_emit *e, int v) {
    epi_name n = epi_emit_name(e->g, e->tile.values[v].node);
    size_t at = strlen(n.text);
    snprintf(n.text + at, sizeof n.text - at, "_%d", v);
    return n;
}

/* The offset of element e of the vector in hand, beyond the row's. */
static void put_element(epi_rows_emit *e, const epi_rows_access *a, epi_scale scale) {
    epi_emit_columns(&e->body, &a->cols, scale == EPI_SCALE_COARSE ? "c / 2 + e" : "c + e");
}

/* The offset of the first column of the vector in hand, beyond the row's; `part` for columns in two parts. */
void epi_rows_put_vector(epi_rows_emit *e, const epi_rows_access *a, epi_scale scale, int part) {
    char index[32];
    snprintf(index, sizeof index, scale == EPI_SCALE_COARSE || a->cols.two ? "(c / 2)" : "c");
    epi_emit_walk(&e->body, &a->cols.walk, index);
    if (part)
        PUT(" + %ldLL", (long)a->cols.part);
}

void epi_rows_put_row(epi_rows_emit *e, const epi_rows_access *a, const char *row) {
    epi_emit_walk(&e->body, &a->rows, row);
}

void epi_rows_put_comment(epi_rows_emit *e, int node) {
    const epi_node *n = &e->g->nodes[node];
    PUT("   // %s, line %d\n", epi_ops[n->op].text[0] ? epi_ops[n->op].text : "input", n->place.line);
}

/* An operand in an expression on element e, or on one number. */
static epi_name operand(const epi_rows_emit *e, int v) {
    epi_name n = epi_rows_name(e, v);
    size_t at = strlen(n.text);
    if (epi_rows_has_columns(e, v))
        snprintf(n.text + at, sizeof n.text - at, "[e]");
    return n;
}

/* A division of elements by one number is a multiplication where 16 bits are stored. */
static bool divides_often(const epi_rows_emit *e, const epi_instr *s) {
    return e->fast && s->kind == EPI_INSTR_MAP && s->op == EPI_OP_DIV &&
           !epi_rows_has_columns(e, s->arg[1]) && epi_rows_has_columns(e, s->dst);
}

static void put_map(epi_rows_emit *e, const epi_instr *s, const char *to) {
    epi_name a[3] = {{{0}}};
    for (int i = 0; i < 3 && s->arg[i] >= 0; i++)
        a[i] = operand(e, s->arg[i]);
    PUT("%s = ", to);
    if (divides_often(e, s))
        PUT("over_%d.of(%s)", s->dst, a[0].text);
    else if (s->kind == EPI_INSTR_MULADD)
        PUT("__fmaf_rn(%s%s, %s, %s%s)", s->sign < 0 ? "-" : "", a[0].text, a[1].text,
            s->other < 0 ? "-" : "", a[2].text);
    else
        epi_emit_op(&e->body, s->op, a[0].text, a[1].text, a[2].text);
    PUT(";");
}

/* May an output be stored over the elements that the step loads? */
static bool overwritten(const epi_rows_emit *e, int step) {
    int tensor = e->c->steps->homes[e->tile.instrs[step].node].tensor;
    for (int t = e->g->input_count; t < e->g->tensor_count; t++)
        if (epi_rows_is_full(e, e->tile.instrs[step].dst) && epi_steps_in_place(e->c->steps, t, tensor))
            return true;
    return false;
}

/* What is read once has no place in the first-level cache; what several rows read has: weights, and tables
 * such as those of a rotation, which all heads of a token read. */
const char *epi_rows_reader(const epi_rows_emit *e, int step) {
    const epi_walk *rows = &e->access[step].rows;
    bool again = !epi_rows_is_full(e, e->tile.instrs[step].dst);
    for (int i = 0; i < rows->count; i++)
        again |= rows->stride[i] == 0;
    return again ? "cached" : "stream";
}

/* A load of elements that are in registers already, or that are fetched here. */
static void put_load(epi_rows_emit *e, int step, const char *name) {
    const epi_instr *s = &e->tile.instrs[step];
    const epi_rows_access *a = &e->access[step];
    epi_scale scale = e->tile.values[s->dst].scale;
    int w = epi_rows_width(e, scale);
    const char *type = epi_emit_type(a->ref.type);
    bool full = epi_rows_is_full(e, s->dst);
    PUT("        float %s[%d]; ", name, w);
    if (!a->vectors) {
        bool ordered = overwritten(e, step); /* in order with the stores, then */
        if (ordered)
            PUT("EACH(%d) { Raw<%s, 1> r; r.stream(P.ptr[%d], ", w, type, a->pointer);
        else
            PUT("EACH(%d) %s[e] = load<%s>(P.ptr[%d], ", w, name, type, a->pointer);
        if (full) {
            epi_rows_put_row(e, a, "row");
            PUT(" + ");
        }
        put_element(e, a, scale);
        PUT(");");
        if (ordered)
            PUT(" %s[e] = r.one(0); }", name);
    } else {
        for (int part = 0; part < (a->cols.two ? 2 : 1); part++) {
            char get[48] = "";
            snprintf(get, sizeof get, a->cols.two ? "get_part(%s, %d)" : "get(%s)", name, part);
            if (full && e->shape.stages) {
                PUT("{ Raw<%s, %d> r; r.staged(from + %ld + %ld * (u32)(l%s)); r.%s; } ", type,
                    a->cols.two ? w / 2 : w, (long)(a->staged + part * epi_rows_part_bytes(e, step)),
                    (long)epi_dtype_size(a->ref.type), scale == EPI_SCALE_COARSE || a->cols.two ? " / 2" : "",
                    get);
                continue;
            }
            if ((full && e->shape.resident) || epi_rows_holds(e, step)) {
                e->named = true;
                PUT("%s_raw%d[i].%s%s; ", name, part, full || !epi_rows_holds_words(e) ? "" : "held().", get);
                continue;
            }
            PUT("{ Raw<%s, %d> r; r.%s(P.ptr[%d], ", type, a->cols.two ? w / 2 : w, epi_rows_reader(e, step),
                a->pointer);
            if (full) {
                epi_rows_put_row(e, a, "row");
                PUT(" + ");
            }
            epi_rows_put_vector(e, a, scale, part);
            PUT("); r.%s; } ", get);
        }
    }
    epi_rows_put_comment(e, s->node);
}

/* Is an index along the columns just the column's number, and small enough to be exact in f32? */
static bool counts_columns(const epi_rows_access *a) {
    const epi_walk *c = &a->cols.walk;
    return !a->rows.count && !a->cols.two && c->count == 1 && c->stride[0] == 1 && c->size[0] < 1 << 24;
}

static void put_random(epi_rows_emit *e, int step, const char *name) {
    const epi_instr *s = &e->tile.instrs[step];
    const epi_rows_access *a = &e->access[step];
    epi_scale scale = e->tile.values[s->dst].scale;
    int w = epi_rows_width(e, scale);
    if (a->vectors && !a->cols.two) {
        PUT("uniform_n<%d, %s>(%s, seed%d, ", w, w % 4 == 0 && !e->tail ? "true" : "false", name, step);
        epi_rows_put_row(e, a, "row");
        PUT(" + ");
        epi_rows_put_vector(e, a, scale, 0);
        PUT(");");
        return;
    }
    PUT("EACH(%d) { float u[1]; uniform_n<1, false>(u, seed%d, ", w, step);
    epi_rows_put_row(e, a, "row");
    PUT(" + ");
    put_element(e, a, scale);
    PUT("); %s[e] = u[0]; }", name);
}

/* Elements of the table's row that this row's index names; zeros where it names none. */
static void put_taken(epi_rows_emit *e, int step, const char *name) {
    const epi_instr *s = &e->tile.instrs[step];
    const epi_rows_access *a = &e->access[step];
    epi_scale scale = e->tile.values[s->dst].scale;
    int w = epi_rows_width(e, scale);
    const char *type = epi_emit_type(a->ref.type);
    if (!a->vectors) {
        PUT("EACH(%d) %s[e] = take%d < 0 ? 0.f : load<%s>(P.ptr[%d], take%d * %ldLL + ", w, name, step, type,
            a->pointer, step, (long)a->step);
        epi_rows_put_row(e, a, "row");
        PUT(" + ");
        put_element(e, a, scale);
        PUT(");");
        return;
    }
    for (int part = 0; part < (a->cols.two ? 2 : 1); part++) {
        PUT("{ Raw<%s, %d> r; r.clear(); if (take%d >= 0) r.cached(P.ptr[%d], take%d * %ldLL + ", type,
            a->cols.two ? w / 2 : w, step, a->pointer, step, (long)a->step);
        epi_rows_put_row(e, a, "row");
        PUT(" + ");
        epi_rows_put_vector(e, a, scale, part);
        PUT("); r.");
        PUT(a->cols.two ? "get_part(%s, %d); } " : "get(%s); } ", name, part);
    }
}

/* Writes the step that makes a value of a vector. */
static void put_elements(epi_rows_emit *e, int step) {
    const epi_instr *s = &e->tile.instrs[step];
    epi_name name = epi_rows_name(e, s->dst);
    int w = epi_rows_width(e, e->tile.values[s->dst].scale);
    char to[160];
    snprintf(to, sizeof to, "%s[e]", name.text);
    if (s->kind == EPI_INSTR_LOAD) {
        put_load(e, step, name.text);
        return;
    }
    PUT("        float %s[%d]; ", name.text, w);
    if (divides_often(e, s))
        PUT("const Over over_%d(%s); ", s->dst, epi_rows_name(e, s->arg[1]).text);
    switch (s->kind) {
    case EPI_INSTR_INDEX: {
        const epi_rows_access *a = &e->access[step];
        if (counts_columns(a)) { /* exact: one conversion serves a vector */
            PUT("{ const float first = (float)(%s); EACH(%d) %s = first + (float)e; }",
                e->tile.values[s->dst].scale == EPI_SCALE_COARSE ? "c / 2" : "c", w, to);
            break;
        }
        PUT("EACH(%d) %s = (float)(", w, to);
        if (epi_rows_is_full(e, s->dst) && a->rows.count) {
            epi_rows_put_row(e, a, "row");
            PUT(" + ");
        }
        put_element(e, a, e->tile.values[s->dst].scale);
        PUT(");");
        break;
    }
    case EPI_INSTR_RANDOM: put_random(e, step, name.text); break;
    case EPI_INSTR_TAKE: put_taken(e, step, name.text); break;
    case EPI_INSTR_CONST: PUT("EACH(%d) %s = %s;", w, to, epi_emit_node_number(e->c, s->node).text); break;
    case EPI_INSTR_SPLIT:
        PUT("EACH(%d) %s = %s[2 * e + %d];", w, to, epi_rows_name(e, s->arg[0]).text, s->odd);
        break;
    case EPI_INSTR_JOIN:
        PUT("EACH(%d) { %s[2 * e] = %s; %s[2 * e + 1] = %s; }", w / 2, name.text, operand(e, s->arg[0]).text,
            name.text, operand(e, s->arg[1]).text);
        break;
    default: PUT("EACH(%d) ", w); put_map(e, s, to);
    }
    epi_rows_put_comment(e, s->node);
}

/* The value of a vector, written in this scope if it is not yet. */
void epi_rows_need(epi_rows_emit *e, int v) {
    if (!epi_rows_has_columns(e, v) || e->written[v] == e->scope)
        return;
    e->written[v] = e->scope;
    const epi_instr *s = &e->tile.instrs[e->maker[v]];
    for (int a = 0; a < 3; a++)
        if (s->arg[a] >= 0)
            epi_rows_need(e, s->arg[a]);
    put_elements(e, e->maker[v]);
}

/* What the value needs from memory that an output may take the place of: before anything is stored. */
void epi_rows_need_early(epi_rows_emit *e, int v) {
    if (!epi_rows_has_columns(e, v) || e->written[v] == e->scope)
        return;
    int step = e->maker[v];
    const epi_instr *s = &e->tile.instrs[step];
    bool held = e->access[step].vectors && (e->shape.resident || e->shape.stages);
    if (s->kind == EPI_INSTR_LOAD && !held && overwritten(e, step))
        epi_rows_need(e, v);
    for (int a = 0; a < 3; a++)
        if (s->arg[a] >= 0)
            epi_rows_need_early(e, s->arg[a]);
}

/* A value per row that comes from memory. */
bool epi_rows_loads_row(const epi_rows_emit *e, int step) {
    const epi_instr *s = &e->tile.instrs[step];
    return s->kind == EPI_INSTR_LOAD && e->tile.values[s->dst].rows && !epi_rows_has_columns(e, s->dst) &&
           e->plan->rows.count;
}

/* Numbers, and values per row: those that are ready at the start of a phase. */
void epi_rows_put_short(epi_rows_emit *e, int step, const char *indent) {
    const epi_instr *s = &e->tile.instrs[step];
    const epi_rows_access *a = &e->access[step];
    epi_name name = epi_rows_name(e, epi_rows_value(s));
    char to[160];
    snprintf(to, sizeof to, "const float %s", name.text);
    PUT("%s", indent);
    switch (s->kind) {
    case EPI_INSTR_LOAD:
        if (e->shape.ahead && epi_rows_loads_row(e, step)) {
            PUT("%s = %s_now;", to, name.text);
            break;
        }
        PUT("%s = %sload<%s>(P.ptr[%d], ", to, epi_rows_loads_row(e, step) ? "on ? " : "",
            epi_emit_type(a->ref.type), a->pointer);
        epi_rows_put_row(e, a, "row");
        PUT(")%s;", epi_rows_loads_row(e, step) ? " : 0.f" : "");
        break;
    case EPI_INSTR_INDEX:
        PUT("%s = (float)(", to);
        epi_rows_put_row(e, a, "row");
        PUT(");");
        break;
    case EPI_INSTR_RANDOM:
        PUT("float u%d[1]; uniform_n<1, false>(u%d, seed%d, ", step, step, step);
        epi_rows_put_row(e, a, "row");
        PUT("); %s = u%d[0];", to, step);
        break;
    case EPI_INSTR_TAKE:
        PUT("%s = take%d < 0 ? 0.f : load<%s>(P.ptr[%d], take%d * %ldLL + ", to, step,
            epi_emit_type(a->ref.type), a->pointer, step, (long)a->step);
        epi_rows_put_row(e, a, "row");
        PUT(");");
        break;
    case EPI_INSTR_CONST: PUT("%s = %s;", to, epi_emit_node_number(e->c, s->node).text); break;
    case EPI_INSTR_STORE:
        PUT("if (on && lane == 0%s) store<%s>((void *)P.ptr[%d], ",
            e->shape.cluster > 1 ? " && rank == 0" : "", epi_emit_type(a->ref.type), a->pointer);
        epi_rows_put_row(e, a, "row");
        PUT(", %s);", name.text);
        break;
    default: put_map(e, s, to);
    }
    epi_rows_put_comment(e, s->node);
}

void epi_rows_put_store(epi_rows_emit *e, int step) {
    const epi_instr *s = &e->tile.instrs[step];
    const epi_rows_access *a = &e->access[step];
    epi_scale scale = e->tile.values[s->arg[0]].scale;
    epi_name name = epi_rows_name(e, s->arg[0]);
    int w = epi_rows_width(e, scale);
    const char *type = epi_emit_type(a->ref.type);
    if (!a->vectors) {
        PUT("        EACH(%d) store<%s>((void *)P.ptr[%d], ", w, type, a->pointer);
        epi_rows_put_row(e, a, "row");
        PUT(" + ");
        put_element(e, a, scale);
        PUT(", %s[e]);", name.text);
    }
    for (int part = 0; part < (a->cols.two ? 2 : 1) && a->vectors; part++) {
        PUT("        { Raw<%s, %d> r; r.put_part(%s, %d, %d); ", type, a->cols.two ? w / 2 : w, name.text,
            part, a->cols.two ? 2 : 1);
        if (e->tail)
            PUT("if (N - c < VEC) r.write_some((void *)P.ptr[%d], %s, %s); else ", a->pointer,
                scale == EPI_SCALE_COARSE ? "c / 2" : "c",
                scale == EPI_SCALE_COARSE ? "(N - c) / 2" : "N - c");
        PUT("r.write((void *)P.ptr[%d], ", a->pointer);
        epi_rows_put_row(e, a, "row");
        PUT(" + ");
        epi_rows_put_vector(e, a, scale, part);
        PUT("); }");
    }
    PUT("   // %s\n", e->g->tensors[s->tensor >= 0 ? s->tensor : 0].name);
}

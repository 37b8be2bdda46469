/* emit_operands.c: writes how a mainloop reaches its operands: wgmma, or the offsets of elements. */
#include "cuda/product/emit_gemm.h"

/* The instruction's name carries the width, and every accumulator is an operand of its own. */
void epi_emit_wgmma(epi_text *out, epi_dtype a, epi_dtype b, const char *name, int accumulators, int n,
                    bool registers, const char *last) {
    int r = n / 2, words = registers ? 4 : 1;
    epi_text_add(out,
                 "DEV void %s(float (&d)[%d], %s, u64 b, int add) {\n"
                 "  asm volatile(\"{.reg .pred p; setp.ne.b32 p, %%%d, 0;\\n\"\n"
                 "    \"wgmma.mma_async.sync.aligned.m64n%dk%d.f32.%s.%s {",
                 name, accumulators, registers ? "u32 a0, u32 a1, u32 a2, u32 a3" : "u64 a", r + words + 1, n,
                 32 / (int)epi_dtype_size(a), epi_dtype_name(a), epi_dtype_name(b));
    for (int i = 0; i < r; i++)
        epi_text_add(out, "%s%%%d", i ? ", " : "", i);
    epi_text_add(out, registers ? "}, {%%%d, %%%d, %%%d, %%%d}, " : "}, %%%d, ", r, r + 1, r + 2, r + 3);
    epi_text_add(out, "%%%d, p, 1, 1%s%s;}\"\n    : ", r + words, *last ? ", " : "", last);
    for (int i = 0; i < r; i++)
        epi_text_add(out, "%s\"+f\"(d[%d])", i ? ", " : "", i);
    epi_text_add(out, " : %s, \"l\"(b), \"r\"(add));\n}\n",
                 registers ? "\"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3)" : "\"l\"(a)");
}

const char *epi_operand_choice(const epi_emit_context *c, const epi_operand *o) {
    return o->chosen == EPI_NO_NODE ? NULL
                                    : epi_emit_position(c, &c->spec->graph->nodes[o->chosen], &o->along,
                                                        epi_emit_text(c, "P.ptr[%d]", o->index), "b");
}

void epi_batch_emit(epi_text *out, const epi_emit_context *c, const char *which,
                    const epi_batch_place *place) {
    for (int i = 0; i < EPI_BATCH_PLACES; i++) {
        epi_text_add(out, "DEV int %s_batch%d(const Params &P, int b) { return ", which, i);
        if (place->named &&
            i == place->count - 1) /* where it names none the box is outside, and brings zeros */
            epi_text_add(out, "(int)%s; }\n", place->named);
        else if (place->outermost && i == place->count - 1)
            epi_text_add(out, "b / %s; }\n", epi_emit_int(c, place->below[i]));
        else if (i < place->count)
            epi_text_add(out, "b / %s %% %s; }\n", epi_emit_int(c, place->below[i]),
                         epi_emit_int(c, place->size[i]));
        else
            epi_text_add(out, "b * 0; }\n");
    }
}

/* Where an operand's rows (by r) or its depth (by k) lie, as a function. What an index leads nowhere is at -1. */
static void emit_offset(epi_text *out, const epi_emit_context *c, const char *name, const char *number,
                        const epi_operand *o, bool depth) {
    bool gathered = o->gather != EPI_NO_NODE && o->gathers_depth == depth;
    const char *at = gathered ? "at" : number;
    epi_text_add(out, "DEV i64 %s(const Params &P, int %s) { ", name, number);
    if (gathered)
        epi_text_add(out, "const i64 at = %s; return at < 0 ? -1 : ",
                     epi_emit_position(c, &c->spec->graph->nodes[o->gather], &o->along,
                                       epi_emit_text(c, "P.ptr[%d]", o->index), number));
    else
        epi_text_add(out, "return ");
    epi_text_add(out, "%s; }\n",
                 !depth && o->cols.two ? epi_emit_columns(c, &o->cols, at)
                                       : epi_emit_walk(c, depth ? &o->depth : &o->out, at));
}

void epi_operand_emit_gathered(epi_text *out, const epi_emit_context *c, const epi_operand *o) {
    epi_emit_names(out, c, &c->spec->graph->nodes[o->gather], &o->along,
                   epi_emit_text(c, "P.ptr[%d]", o->index));
    epi_text_add(out,
                 "#define NOWHERE 0xffffffffu\n// Where what is named begins, in 16 bytes.\n"
                 "DEV u32 A_place(const Params &P, A_Name name) {\n"
                 "  const i64 at = A_position(P, name);\n"
                 "  return at < 0 ? NOWHERE : (u32)((%s) >> 3);\n}\n",
                 epi_emit_walk(c, o->gathers_depth ? &o->depth : &o->out, "(u32)at"));
    if (o->gathers_depth)
        emit_offset(out, c, "A_row", "r", o, false);
    epi_text_add(out, "#define A_PTR %d\n", o->pointer);
}

void epi_operand_emit(epi_text *out, const epi_emit_context *c, char which, const epi_operand *o) {
    epi_text_add(out, "#define %c_TYPE %s\n", which, epi_emit_type(o->ref.type));
    emit_offset(out, c, epi_emit_text(c, "%c_row", which), "r", o, false);
    emit_offset(out, c, epi_emit_text(c, "%c_depth", which), "k", o, true);
    const char *choice = epi_operand_choice(c, o), *walk = epi_emit_walk(c, &o->batch, "b"),
               *at = choice ? epi_emit_text(c, "max((i64)0, %s) * %s + ", choice,
                                            epi_emit_count(c, o->apart, "LL"))
                            : "";
    epi_text_add(out,
                 "DEV i64 %c_batch(const Params &P, int b) { return %s%s; }\n"
                 "DEV bool %c_there(const Params &P, int b) { return %s%s; }\n#define %c_PTR %d\n#define "
                 "%c_GATHERED %d\n",
                 which, at, walk, which, choice ? choice : "true", choice ? " >= 0" : "", which, o->pointer,
                 which, o->gather != EPI_NO_NODE);
}

typedef const char *scale_text(const epi_emit_context *c, const epi_operand_scale *s);

/* One expression for each of the products that are added up, by `term`. */
static const char *by_term(const epi_gemm_design *d, int first, scale_text *text) {
    const char *all = text(d->c, &d->operands[first].scale);
    for (int t = 1; t < d->terms; t++)
        all = epi_emit_text(d->c, "term == %d ? %s : %s", t, text(d->c, &d->operands[first + 2 * t].scale),
                            all);
    return all;
}

static const char *row_text(const epi_emit_context *c, const epi_operand_scale *s) {
    return s->node == EPI_NO_NODE ? "0" : epi_emit_text(c, "(int)(%s)", epi_emit_walk(c, &s->out, "r"));
}

static const char *depth_text(const epi_emit_context *c, const epi_operand_scale *s) {
    return s->node == EPI_NO_NODE ? "0" : epi_emit_text(c, "(int)(%s)", epi_emit_walk(c, &s->depth, "k"));
}

static const char *load_text(const epi_emit_context *c, const epi_operand_scale *s) {
    return s->node == EPI_NO_NODE ? "1.f" : epi_emit_load(c, s->ref.type, s->pointer, "at");
}

/* Offsets of an operand's scales along its rows (by r, columns) and along the depth (by k), and a scale. */
static void emit_scale(epi_text *out, const epi_gemm_design *d, const char *which, int first) {
    epi_text_add(out, "DEV int %s_scale_row(const Params &P, int term, int r) { return %s; }\n", which,
                 by_term(d, first, row_text));
    epi_text_add(out, "DEV int %s_scale_depth(const Params &P, int term, int k) { return %s; }\n", which,
                 by_term(d, first, depth_text));
    epi_text_add(out, "DEV float %s_scale(const Params &P, int term, int at) { return %s; }\n", which,
                 by_term(d, first, load_text));
}

void epi_operand_emit_scaled(epi_text *out, const epi_gemm_design *d) {
    epi_dtype a = d->operands[0].ref.type, b = d->operands[1].ref.type;
    epi_text_add(out, "#define A_BITS %s\n#define B_BITS %s\n", epi_emit_type(a), epi_emit_type(b));
    epi_emit_wgmma(out, a, b, "wgmma", EPI_SCALED_SAME / 2, EPI_SCALED_SAME, false, "");
    emit_scale(out, d, "A", 0);
    emit_scale(out, d, "B", 1);
    if (d->products > 1)
        emit_scale(out, d, "C", 2);
}

/* emit_few.c: what device/gemm_few.cuh asks of the rows and of weights that are made as they are loaded, as text. */
#include "cuda/emit_gemm.h"

/* Where the element of a part at column n and depth k is. */
static const char *part_at(const epi_emit_context *c, const epi_load_part *p) {
    return epi_emit_text(c, "(const u8 *)P.ptr[%d] + (i64)(%s + %s) * %zu", p->pointer,
                         epi_emit_columns(c, &p->cols, "n"), epi_emit_walk(c, &p->depth, "k"),
                         epi_dtype_size(p->type));
}

static void emit_part(epi_text *out, const epi_gemm_design *d, int part) {
    static const struct {
        const char *macro, *name;
    } words[] = {{"SCALE", "scale"}, {"ZERO", "zero"}, {"OFFSET", "offset"}};
    const epi_load_part *first = &d->operands[1].parts[part], *second = &d->operands[2].parts[part];
    bool there = first->node != EPI_NO_NODE;
    epi_text_add(out, "#define %sS %d\n", words[part].macro, there);
    if (!there)
        return;
    const char *at = part_at(d->c, first);
    if (d->products > 1)
        at = epi_emit_text(d->c, "product ? %s : %s", part_at(d->c, second), at);
    epi_text_add(
        out,
        "#define %s_TYPE %s\nDEV const u8 *%s_at(const Params &P, int product, int n, int k) { return "
        "%s; }\n",
        words[part].macro, epi_emit_type(first->type), words[part].name, at);
}

/* Where the weights of column n begin. */
static const char *weights_at(const epi_gemm_design *d, int product) {
    const epi_operand *o = &d->operands[1 + product];
    return epi_emit_text(d->c, "(const u8 *)P.ptr[%d] + (i64)(%s) * %d / 8", o->pointer,
                         epi_emit_columns(d->c, &o->cols, "n"), o->bits);
}

void epi_few_emit(epi_text *out, const epi_gemm_design *d) {
    const epi_operand *a = &d->operands[0], *b = &d->operands[1];
    const char *at = weights_at(d, 0);
    int64_t line = d->depth * b->bits / 8 / 128, most = EPI_AHEAD_BYTES / 128 / d->config.tile_n;
    if (d->products > 1)
        at = epi_emit_text(d->c, "product ? %s : %s", weights_at(d, 1), at);
    epi_text_add(out,
                 "#define RESIDENT %d\n#define A_PTR %d\n#define B_BITS %d\n#define B_LOADED %d\n#define "
                 "B_TYPE %s\n#define "
                 "AHEAD_LINES %ld   // of a column\n",
                 epi_config_resident(&d->config), a->pointer, b->bits, b->loaded,
                 b->bits >= 8   ? epi_emit_type(b->ref.type)
                 : b->is_signed ? "I4"
                                : "U4",
                 (long)epi_min64(line, most));
    epi_text_add(out,
                 "DEV i64 A_row(const Params &P, int r) { return %s; }\n"
                 "DEV const u8 *weights_at(const Params &P, int product, int n) { return %s; }\n",
                 epi_emit_walk(d->c, &a->out, "r"), at);
    for (int part = 0; part < EPI_LOAD_PARTS; part++)
        emit_part(out, d, part);
}

/* emit_few.c: writes what device/gemm_few.cuh needs to know about the rows, and about weights that are
 * converted as they are loaded. */
#include "cuda/product/emit_gemm.h"

/* An expression of either product's. */
static const char *either(const epi_gemm_design *d, const char *first, const char *second) {
    return d->products > 1 ? epi_emit_text(d->c, "product ? %s : %s", second, first) : first;
}

/* Bytes from a part's first element to that of column n, and on to that at depth k. */
static const char *column_bytes(const epi_gemm_design *d, const epi_load_part *p) {
    return epi_emit_text(d->c, "(i64)(%s) * %zu", epi_emit_columns(d->c, &p->cols, "n"),
                         epi_dtype_size(p->type));
}
static const char *depth_bytes(const epi_gemm_design *d, const epi_load_part *p) {
    return epi_emit_text(d->c, "(i64)(%s) * %zu", epi_emit_walk(d->c, &p->depth, "k"),
                         epi_dtype_size(p->type));
}

/* Do all columns begin with a word? Tensors do. */
static bool in_words(const epi_load_part *p) {
    int each = 4 / (int)epi_dtype_size(p->type);
    return epi_walk_aligned(&p->cols.walk, each) && (!p->cols.two || p->cols.part % each == 0);
}

static void emit_part(epi_text *out, const epi_gemm_design *d, int part) {
    static const struct {
        const char *macro, *name;
    } words[] = {{"SCALE", "scale"}, {"ZERO", "zero"}, {"OFFSET", "offset"}};
    const epi_load_part *p = &d->operands[1].parts[part], *q = &d->operands[2].parts[part];
    const char *name = words[part].name, *of[2][2] = {{""}};
    bool there = p->node != EPI_NO_NODE;
    epi_text_add(out, "#define %sS %d\n", words[part].macro, there);
    if (!there)
        return;
    for (int i = 0; i < d->products; i++) {
        of[i][0] = column_bytes(d, i ? q : p);
        of[i][1] = depth_bytes(d, i ? q : p);
    }
    const char *column = either(d, of[0][0], of[1][0]), *deep = either(d, of[0][1], of[1][1]);
    const char *pointer =
        either(d, epi_emit_text(d->c, "%d", p->pointer), epi_emit_text(d->c, "%d", q->pointer));
    epi_text_add(
        out,
        "#define %s_TYPE %s\nDEV const u8 *%s_at(const Params &P, int product, int n) { return (const u8 "
        "*)P.ptr[%s] + (%s); }\n",
        words[part].macro, epi_emit_type(p->type), name, pointer, column);
    bool aligned = in_words(p) && (d->products == 1 || in_words(q));
    epi_text_add(out,
                 "DEV u32 %s_byte(const Params &P, int product, int n) { return %s; }\n"
                 "DEV i64 %s_deep(const Params &P, int product, int k) { return %s; }\n",
                 name, aligned ? "0" : epi_emit_text(d->c, "(u32)(%s)", column), name, deep);
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
                 "#define WARPS %d\n#define TEAMS %d\n#define RESIDENT %d\n#define ROWS_SHARED %d\n#define "
                 "A_PTR %d\n#define "
                 "B_BITS %d\n#define "
                 "B_LOADED %d\n#define STEP_GROUPS %d\n#define "
                 "B_TYPE %s\n#define "
                 "AHEAD_LINES %ld   // of a column\n",
                 d->config.warps, d->config.teams, epi_config_resident(&d->config), d->rows_bytes > 0,
                 a->pointer, b->bits, b->loaded, d->step_groups,
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

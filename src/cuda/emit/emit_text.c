/* emit_text.c: the small pieces of generated source. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cuda/emit/emit.h"
#include "pass/analyse/range.h"

epi_ref epi_emit_ref(const epi_emit_context *c, int node, int tensor) {
    const epi_graph *g = c->spec->graph;
    const epi_home *home = &c->steps->homes[node];
    bool at_home = tensor < 0;
    if (at_home)
        tensor = home->tensor;
    epi_ref r = {.type = tensor >= 0 ? c->spec->types[tensor] : home->type,
                 .axes = tensor >= 0 ? g->tensors[tensor].axes : g->nodes[node].axes};
    epi_ref_lay_out(&r, tensor >= 0 && c->spec->slices ? &c->spec->slices[tensor] : NULL, NULL,
                    c->spec->sizes);
    if (at_home && tensor >= 0)
        r.axes = epi_graph_rename_axes(g, node, &r.axes);
    return r;
}

const char *epi_emit_type(epi_dtype type) {
    return epi_dtype_at(type)->id;
}

const char *epi_emit_text(const epi_emit_context *c, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *text = epi_arena_alloc(c->words, (size_t)length + 1);
    if (!text)
        return "";
    va_start(args, fmt);
    vsnprintf(text, (size_t)length + 1, fmt, args);
    va_end(args);
    return text;
}

const char *epi_emit_name(const epi_emit_context *c, int node) {
    const char *name = c->spec->graph->nodes[node].name;
    return name && strlen(name) < 40 ? name : epi_emit_text(c, "t%d", node);
}

const char *epi_emit_value(const epi_emit_context *c, int node, int number) {
    return epi_emit_text(c, "%s_v%d", epi_emit_name(c, node), number);
}

bool epi_emit_grows(const epi_emit_context *c, int64_t number) {
    return epi_open_grows(c->spec->open, number);
}

const char *epi_emit_count(const epi_emit_context *c, int64_t number, const char *suffix) {
    const epi_open *open = c->spec->open;
    const char *factors = "";
    if (!epi_open_grows(open, number))
        return epi_emit_text(c, "%ld%s", (long)number, suffix);
    for (int i = 0; i < open->count; i++)
        for (int power = epi_open_power(open, i, number, &number); power > 0; power--)
            factors = epi_emit_text(c, "%s%sP.open[%d]", factors, *factors ? " * " : "", i);
    return number == 1 ? epi_emit_text(c, "(%s)", factors)
                       : epi_emit_text(c, "(%ldLL * %s)", (long)number, factors);
}

const char *epi_emit_int(const epi_emit_context *c, int64_t number) {
    return epi_emit_text(c, epi_emit_grows(c, number) ? "(int)%s" : "%s", epi_emit_count(c, number, ""));
}

const char *epi_emit_ceil(const epi_emit_context *c, int64_t number, int by, const char *suffix) {
    if (!epi_emit_grows(c, number))
        return epi_emit_count(c, epi_ceil_div(number, by), suffix);
    return epi_emit_text(c, "((%s + %d) / %d)", epi_emit_count(c, number, ""), by - 1, by);
}

/* A digit of an index: it counts `each` elements, and there are `all` of it, or any number (-1). */
static const char *digit_of(const epi_emit_context *c, const char *index, int64_t each, int64_t all) {
    if (each > 1)
        index = epi_emit_text(c, epi_emit_grows(c, each) ? "quotient(%s, %s)" : "%s / %s", index,
                              epi_emit_count(c, each, ""));
    if (all >= 0)
        index = epi_emit_text(c, epi_emit_grows(c, all) ? "remainder(%s, %s)" : "%s %% %s", index,
                              epi_emit_count(c, all, ""));
    return index;
}

const char *epi_emit_walk(const epi_emit_context *c, const epi_walk *w, const char *index) {
    const char *sum = w->count ? "" : "0";
    int64_t inner = 1;
    for (int d = w->count - 1; d >= 0; inner *= w->size[d--]) {
        const char *digit = digit_of(c, index, inner, d > 0 ? w->size[d] : -1), *plus = *sum ? " + " : "";
        sum = w->stride[d] ? epi_emit_text(c, "%s%s(i64)(%s) * %s", sum, plus, digit,
                                           epi_emit_count(c, w->stride[d], "LL"))
                           : epi_emit_text(c, "%s%s0", sum, plus);
    }
    return sum;
}

const char *epi_emit_columns(const epi_emit_context *c, const epi_columns *cols, const char *index) {
    if (!cols->two)
        return epi_emit_walk(c, &cols->walk, index);
    return epi_emit_text(c, "%s + (%s & 1) * %s",
                         epi_emit_walk(c, &cols->walk, epi_emit_text(c, "(%s >> 1)", index)), index,
                         epi_emit_count(c, cols->part, "LL"));
}

const char *epi_emit_load(const epi_emit_context *c, epi_dtype type, int pointer, const char *offset) {
    return epi_emit_text(c, "load<%s>(P.ptr[%d], %s)", epi_emit_type(type), pointer, offset);
}

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

const char *epi_emit_op(const epi_emit_context *c, epi_op op, const char *const operands[3]) {
    const char *all = "";
    for (const char *p = epi_ops[op].cuda; *p;) {
        size_t n = 0;
        while (is_word(p[n]))
            n++;
        bool operand = n == 1 && *p >= 'a' && *p <= 'c';
        n = n ? n : 1;
        all = operand ? epi_emit_text(c, "%s%s", all, operands[*p - 'a'])
                      : epi_emit_text(c, "%s%.*s", all, (int)n, p);
        p += n;
    }
    return all;
}

const char *epi_emit_instr(const epi_emit_context *c, const epi_instr *s, const char *const operands[3]) {
    return s->kind == EPI_INSTR_MULADD
               ? epi_emit_text(c, "__fmaf_rn(%s%s, %s, %s%s)", s->sign < 0 ? "-" : "", operands[0],
                               operands[1], s->other < 0 ? "-" : "", operands[2])
               : epi_emit_op(c, s->op, operands);
}

const char *epi_emit_number(const epi_emit_context *c, double value) {
    float f = (float)value;
    if (isinf(f))
        return f > 0 ? "INF" : "(-INF)";
    if (isnan(f))
        return "__int_as_float(0x7fffffff)";
    epi_number_text w = epi_number_write((double)f);
    return epi_emit_text(c, signbit(f) ? "(%s%s)" : "%s%s", w.text, strpbrk(w.text, ".eE") ? "f" : ".f");
}

bool epi_emit_is_number(const epi_emit_context *c, int node) {
    epi_op op = c->spec->graph->nodes[node].op;
    return op == EPI_OP_CONST || op == EPI_OP_SIZE;
}

bool epi_emit_is_open_number(const epi_emit_context *c, int node) {
    const epi_node *n = &c->spec->graph->nodes[node];
    return n->op == EPI_OP_SIZE && epi_emit_grows(c, epi_axis_size(n->over.at[0], c->spec->sizes));
}

/* The f32 nearest to a count: a literal, or converted by the kernel. */
static const char *emit_count_as_number(const epi_emit_context *c, int64_t count) {
    return epi_emit_grows(c, count) ? epi_emit_text(c, "(float)%s", epi_emit_count(c, count, ""))
                                    : epi_emit_number(c, (double)count);
}

const char *epi_emit_node_number(const epi_emit_context *c, int node) {
    const epi_node *n = &c->spec->graph->nodes[node];
    return n->op == EPI_OP_CONST ? epi_emit_number(c, n->value)
                                 : emit_count_as_number(c, epi_axis_size(n->over.at[0], c->spec->sizes));
}

const char *epi_emit_digit(const epi_emit_context *c, const epi_axes *axes, int at, const char *index) {
    const int64_t *sizes = c->spec->sizes;
    int64_t inner = 1;
    for (int i = axes->count - 1; i > at; i--)
        inner *= epi_max64(1, epi_axis_size(axes->at[i], sizes));
    return digit_of(c, epi_emit_text(c, "(%s)", index), inner,
                    at > 0 ? epi_max64(1, epi_axis_size(axes->at[at], sizes)) : -1);
}

static int add_pointer(epi_kernel_text *k, epi_pointer_need need) {
    if (k->pointer_count == EPI_MAX_POINTERS) {
        k->full = true;
        return 0;
    }
    k->pointers[k->pointer_count] = need;
    return k->pointer_count++;
}

int epi_emit_pointer(epi_kernel_text *k, int node, int tensor) {
    for (int i = 0; i < k->pointer_count; i++)
        if (k->pointers[i].tensor == tensor && (tensor != -1 || k->pointers[i].node == node))
            return i;
    return add_pointer(k, (epi_pointer_need){node, tensor, 0});
}

int epi_emit_place(epi_kernel_text *k, int64_t offset) {
    return add_pointer(k, (epi_pointer_need){EPI_NO_NODE, EPI_POINTER_WORKSPACE, offset});
}

const char *epi_emit_scaled(const epi_emit_context *c, int node) {
    return epi_is_scaled_byte(c->spec->graph, node) ? "f_scaled_byte" : "f_scaled";
}

const char *epi_emit_fold_end(const epi_emit_context *c, epi_op op, const char *fold, int64_t count) {
    return epi_ops[op].averages
               ? epi_emit_text(c, "__fdiv_rn(%s.end(1.f), %s)", fold, emit_count_as_number(c, count))
               : epi_emit_text(c, "%s.end(1.f)", fold);
}

void epi_emit_begin(const epi_emit_context *c, epi_kernel_text *k, const char *more) {
    k->arch = c->arch->name;
    epi_text_add(&k->source, "#define EPI_FAST 0\n");
    epi_emit_head(c->spec->open, k, more, "M, group, extra[2]");
}

void epi_emit_head(const epi_open *open, epi_kernel_text *k, const char *more, const char *integers) {
    epi_text_add(&k->source, "%s%s%s%s\n// ---- written for this program\n\n", epi_device_text("base"),
                 epi_device_text("ptx"), epi_device_text("folds"), more);
    epi_emit_params(open, k, integers);
}

void epi_emit_params(const epi_open *open, epi_kernel_text *k, const char *integers) {
    epi_text_add(&k->source, "struct Params {\n  TMap map[%d];\n  const void *ptr[%d];\n  i64 %s;\n",
                 k->map_count ? k->map_count : 1, k->pointer_count ? k->pointer_count : 1, integers);
    if (open)
        epi_text_add(&k->source, "  i64 open[%d];\n", open->count);
    epi_text_add(&k->source, "};\n");
}

epi_status epi_emit_end(epi_kernel_text *k, epi_error *err) {
    if (!k->source.failed && !k->full)
        return EPI_OK;
    epi_text_free(&k->source);
    if (k->full)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "it needs more tensors than one launch can have");
    return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
}

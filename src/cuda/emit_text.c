/* emit_text.c: the small pieces that generated texts are made of. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/emit.h"

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

const char *epi_emit_arch(const epi_emit_context *c) {
    return c->capability >= 120   ? "sm_120"
           : c->capability >= 110 ? "sm_110"
           : c->capability >= 100 ? "sm_100"
           : c->capability == 90  ? "sm_90a"
           : c->capability == 89  ? "sm_89"
           : c->capability == 86  ? "sm_86"
                                  : "sm_80";
}

const char *epi_emit_type(epi_dtype type) {
    static const char *const names[EPI_DTYPE_COUNT] = {"F32", "BF16", "F16", "I32", "F64", "I64"};
    return names[type];
}

epi_name epi_emit_name(const epi_graph *g, int node) {
    epi_name n;
    const char *name = g->nodes[node].name;
    if (name && strlen(name) < 40)
        snprintf(n.text, sizeof n.text, "%s", name);
    else
        snprintf(n.text, sizeof n.text, "t%d", node);
    return n;
}

epi_name epi_emit_value(const epi_graph *g, int node, int number) {
    epi_name n = epi_emit_name(g, node), out;
    snprintf(out.text, sizeof out.text, "%.40s_v%d", n.text, number);
    return out;
}

epi_name epi_emit_open(const epi_emit_context *c) {
    epi_name n = {""};
    if (c->spec->open)
        snprintf(n.text, sizeof n.text, "  i64 open[%d];\n", c->spec->open->count);
    return n;
}

bool epi_emit_grows(const epi_emit_context *c, int64_t number) {
    return epi_open_grows(c->spec->open, number);
}

epi_name epi_emit_count(const epi_emit_context *c, int64_t number, const char *suffix) {
    const epi_open *open = c->spec->open;
    epi_name n, factors = {""};
    size_t at = 0;
    if (!epi_open_grows(open, number)) {
        snprintf(n.text, sizeof n.text, "%ld%s", (long)number, suffix);
        return n;
    }
    for (int i = 0; i < open->count; i++)
        for (int power = epi_open_power(open, i, number, &number); power > 0 && at < 80; power--)
            at += (size_t)snprintf(factors.text + at, sizeof factors.text - at, " * P.open[%d]", i);
    if (number == 1)
        snprintf(n.text, sizeof n.text, "(%.90s)", factors.text + 3);
    else
        snprintf(n.text, sizeof n.text, "(%ldLL%.90s)", (long)number, factors.text);
    return n;
}

epi_name epi_emit_int(const epi_emit_context *c, int64_t number) {
    epi_name n = epi_emit_count(c, number, ""), cast;
    if (!epi_emit_grows(c, number))
        return n;
    snprintf(cast.text, sizeof cast.text, "(int)%.110s", n.text);
    return cast;
}

epi_name epi_emit_ceil(const epi_emit_context *c, int64_t number, int by, const char *suffix) {
    epi_name n = epi_emit_count(c, number, ""), up;
    if (!epi_emit_grows(c, number))
        return epi_emit_count(c, epi_ceil_div(number, by), suffix);
    snprintf(up.text, sizeof up.text, "((%.90s + %d) / %d)", n.text, by - 1, by);
    return up;
}

void epi_emit_walk(epi_text *t, const epi_emit_context *c, const epi_walk *w, const char *index) {
    int64_t inner = 1;
    if (!w->count)
        epi_text_add(t, "0");
    for (int d = w->count - 1; d >= 0; d--) {
        const char *plus = d < w->count - 1 ? " + " : "";
        if (w->stride[d] == 0) {
            epi_text_add(t, "%s0", plus);
        } else {
            epi_text_add(t, "%s(i64)(", plus);
            epi_text_add(t, inner > 1 ? "%s / %s" : "%s", index, epi_emit_count(c, inner, "").text);
            if (d > 0)
                epi_text_add(t, " %% %s", epi_emit_count(c, w->size[d], "").text);
            epi_text_add(t, ") * %s", epi_emit_count(c, w->stride[d], "LL").text);
        }
        inner *= w->size[d];
    }
}

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

void epi_emit_op(epi_text *t, epi_op op, const char *a, const char *b, const char *c) {
    const char *operand[3] = {a, b, c};
    for (const char *p = epi_ops[op].cuda; *p;) {
        size_t n = 0;
        while (is_word(p[n]))
            n++;
        if (n == 1 && *p >= 'a' && *p <= 'c')
            epi_text_add(t, "%s", operand[*p - 'a']);
        else
            epi_text_add(t, "%.*s", (int)(n ? n : 1), p);
        p += n ? n : 1;
    }
}

epi_name epi_emit_number(double value) {
    epi_name n;
    float f = (float)value;
    if (isinf(f))
        snprintf(n.text, sizeof n.text, f > 0 ? "INF" : "(-INF)");
    else if (isnan(f))
        snprintf(n.text, sizeof n.text, "__int_as_float(0x7fffffff)");
    else {
        epi_number_text w = epi_number_write((double)f);
        bool whole = !strpbrk(w.text, ".eE");
        snprintf(n.text, sizeof n.text, signbit(f) ? "(%s%s)" : "%s%s", w.text, whole ? ".f" : "f");
    }
    return n;
}

const char *epi_emit_fold(epi_op op) {
    return op == EPI_OP_RMAX        ? "Most"
           : op == EPI_OP_RMIN      ? "Least"
           : op == EPI_OP_LOGSUMEXP ? "LogSumExp"
                                    : "Total";
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
static epi_name emit_count_as_number(const epi_emit_context *c, int64_t count) {
    epi_name n;
    if (!epi_emit_grows(c, count))
        return epi_emit_number((double)count);
    snprintf(n.text, sizeof n.text, "(float)%.100s", epi_emit_count(c, count, "").text);
    return n;
}

epi_name epi_emit_node_number(const epi_emit_context *c, int node) {
    const epi_node *n = &c->spec->graph->nodes[node];
    if (epi_emit_is_open_number(c, node))
        return emit_count_as_number(c, epi_axis_size(n->over.at[0], c->spec->sizes));
    return epi_emit_number(n->op == EPI_OP_CONST ? n->value
                                                 : (double)epi_axis_size(n->over.at[0], c->spec->sizes));
}

void epi_emit_digit(epi_text *t, const epi_emit_context *c, const epi_axes *axes, int at, const char *index) {
    const int64_t *sizes = c->spec->sizes;
    int64_t inner = 1;
    for (int i = axes->count - 1; i > at; i--)
        inner *= epi_max64(1, epi_axis_size(axes->at[i], sizes));
    epi_text_add(t, inner > 1 ? "(%s) / %s" : "(%s)", index, epi_emit_count(c, inner, "").text);
    if (at > 0)
        epi_text_add(t, " %% %s",
                     epi_emit_count(c, epi_max64(1, epi_axis_size(axes->at[at], sizes)), "").text);
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

void epi_emit_columns(epi_text *t, const epi_emit_context *c, const epi_columns *cols, const char *index) {
    char half[64];
    snprintf(half, sizeof half, cols->two ? "((%s) >> 1)" : "(%s)", index);
    epi_emit_walk(t, c, &cols->walk, half);
    if (cols->two)
        epi_text_add(t, " + ((%s) & 1) * %s", index, epi_emit_count(c, cols->part, "LL").text);
}

epi_name epi_emit_fold_end(const epi_emit_context *c, epi_op op, const char *fold, int64_t count) {
    epi_name n;
    if (op == EPI_OP_MEAN)
        snprintf(n.text, sizeof n.text, "__fdiv_rn(%s.end(1.f), %.90s)", fold,
                 emit_count_as_number(c, count).text);
    else
        snprintf(n.text, sizeof n.text, "%s.end(1.f)", fold);
    return n;
}

void epi_emit_begin(const epi_emit_context *c, epi_kernel_text *k, const char *more) {
    k->arch = epi_emit_arch(c);
    epi_text_add(&k->source, "#define EPI_FAST 0\n%s%s%s%s\n// ---- written for this program\n\n",
                 epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"), more);
    epi_emit_params(c, k);
}

void epi_emit_params(const epi_emit_context *c, epi_kernel_text *k) {
    epi_text_add(&k->source,
                 "struct Params {\n  TMap map[1];\n  const void *ptr[%d];\n  i64 M, group, extra[2];\n%s};\n",
                 k->pointer_count ? k->pointer_count : 1, epi_emit_open(c).text);
}

epi_status epi_emit_end(epi_kernel_text *k, epi_error *err) {
    if (!k->source.failed && !k->full)
        return EPI_OK;
    epi_text_free(&k->source);
    if (k->full)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "it needs more tensors than one launch takes");
    return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
}

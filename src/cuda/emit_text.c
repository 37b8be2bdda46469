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
    if (at_home && tensor >= 0)
        r.axes = epi_graph_rename_axes(g, node, &r.axes);
    epi_ref_contiguous(&r, c->spec->sizes);
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
    static const char *const names[EPI_DTYPE_COUNT] = {"F32", "BF16", "F16", "I32", "F64"};
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

void epi_emit_walk(epi_text *t, const epi_walk *w, const char *index) {
    int64_t inner = 1;
    if (!w->count)
        epi_text_add(t, "0");
    for (int d = w->count - 1; d >= 0; d--) {
        const char *plus = d < w->count - 1 ? " + " : "";
        if (w->stride[d] == 0) {
            epi_text_add(t, "%s0", plus);
        } else {
            epi_text_add(t, "%s(i64)(", plus);
            epi_text_add(t, inner > 1 ? "%s / %ld" : "%s", index, (long)inner);
            if (d > 0)
                epi_text_add(t, " %% %ld", (long)w->size[d]);
            epi_text_add(t, ") * %ldLL", (long)w->stride[d]);
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

epi_name epi_emit_node_number(const epi_emit_context *c, int node) {
    const epi_node *n = &c->spec->graph->nodes[node];
    return epi_emit_number(n->op == EPI_OP_CONST ? n->value
                                                 : (double)epi_axis_size(n->over.at[0], c->spec->sizes));
}

void epi_emit_digit(epi_text *t, const epi_axes *axes, int at, const int64_t *sizes, const char *index) {
    int64_t inner = 1;
    for (int i = axes->count - 1; i > at; i--)
        inner *= epi_max64(1, epi_axis_size(axes->at[i], sizes));
    epi_text_add(t, inner > 1 ? "(%s) / %ld" : "(%s)", index, (long)inner);
    if (at > 0)
        epi_text_add(t, " %% %ld", (long)epi_max64(1, epi_axis_size(axes->at[at], sizes)));
}

int epi_emit_pointer(epi_kernel_text *k, int node, int tensor) {
    for (int i = 0; i < k->pointer_count; i++)
        if (k->pointers[i].tensor == tensor && (tensor != -1 || k->pointers[i].node == node))
            return i;
    if (k->pointer_count == EPI_MAX_POINTERS) {
        k->full = true;
        return 0;
    }
    k->pointers[k->pointer_count] = (epi_pointer_need){node, tensor};
    return k->pointer_count++;
}

void epi_emit_columns(epi_text *t, const epi_columns *c, const char *index) {
    char half[64];
    snprintf(half, sizeof half, c->two ? "((%s) >> 1)" : "(%s)", index);
    epi_emit_walk(t, &c->walk, half);
    if (c->two)
        epi_text_add(t, " + ((%s) & 1) * %ldLL", index, (long)c->part);
}

epi_name epi_emit_fold_end(epi_op op, const char *fold, int64_t count) {
    epi_name n;
    if (op == EPI_OP_MEAN)
        snprintf(n.text, sizeof n.text, "__fdiv_rn(%s.end(1.f), %.60s)", fold,
                 epi_emit_number((double)count).text);
    else
        snprintf(n.text, sizeof n.text, "%s.end(1.f)", fold);
    return n;
}

void epi_emit_begin(const epi_emit_context *c, epi_kernel_text *k, const char *more) {
    k->arch = epi_emit_arch(c);
    epi_text_add(&k->source, "#define EPI_FAST 0\n%s%s%s%s\n// ---- written for this program\n\n",
                 epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"), more);
    epi_emit_params(k);
}

void epi_emit_params(epi_kernel_text *k) {
    epi_text_add(&k->source,
                 "struct Params {\n  TMap map[1];\n  const void *ptr[%d];\n  i64 M, group, extra[2];\n};\n",
                 k->pointer_count ? k->pointer_count : 1);
}

epi_status epi_emit_end(epi_kernel_text *k, epi_error *err) {
    if (!k->source.failed && !k->full)
        return EPI_OK;
    epi_text_free(&k->source);
    if (k->full)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "it needs more tensors than one launch takes");
    return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
}

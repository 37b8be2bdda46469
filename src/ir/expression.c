/* expression.c: writes a value as an expression, for descriptions. An operand appears by its name or, down
 * to a few levels, as an expression itself. */
#include <math.h>
#include <string.h>

#include "ir/graph.h"

enum { MOST_NESTED = 6 };

static void write_operation(const epi_graph *g, int node, epi_level least, int depth, epi_text *out);

static void write_value(const epi_graph *g, int node, epi_level least, int depth, epi_text *out) {
    const epi_node *n = &g->nodes[node];
    if (n->name)
        epi_text_add(out, "%.60s", n->name);
    else if (n->op == EPI_OP_CONST)
        epi_text_add(out, "%s", isinf(n->value) ? "inf" : epi_number_write(n->value).text);
    else if (depth == MOST_NESTED)
        epi_text_add(out, "…");
    else
        write_operation(g, node, least, depth + 1, out);
}

static void write_call(const epi_graph *g, const epi_node *n, int depth, epi_text *out) {
    int count = 0;
    epi_text_add(out, "%s(", epi_ops[n->op].text);
    for (int a = 0; a < 3 && n->arg[a] != EPI_NO_NODE; a++) {
        epi_text_add(out, "%s", count++ ? ", " : "");
        write_value(g, n->arg[epi_op_written(n->op, a)], EPI_LEVEL_OR, depth, out);
    }
    epi_axes kept = epi_scatter_kept(g, n), along = epi_axes_without(&n->over, &kept), sums = {0};
    if (kept.count)
        sums = epi_axes_without(&g->nodes[n->arg[1]].axes, &kept);
    for (int i = 0; i < sums.count; i++)
        epi_text_add(out, ", %s", epi_axis_label(g, sums.at[i]).text);
    for (int i = 0; i < along.count && !epi_op_is_map(n->op); i++)
        epi_text_add(out, "%s%s",
                     sums.count && !i ? " -> "
                     : count++        ? ", "
                                      : "",
                     epi_axis_label(g, along.at[i]).text);
    if (n->op == EPI_OP_SHIFT)
        epi_text_add(out, ", %ld", (long)epi_shift_by(n));
    epi_text_add(out, ")");
}

/* A product of groups, as it was before it became one. */
static void write_grouped(const epi_graph *g, const epi_node *n, int depth, epi_text *out) {
    bool rows = epi_grouped_rows(g, n);
    epi_text_add(out, rows ? "sum(" : "scatter(");
    write_value(g, n->arg[0], EPI_LEVEL_TERM, depth, out);
    epi_text_add(out, rows ? "*gather(" : "*");
    write_value(g, n->arg[1], rows ? EPI_LEVEL_OR : epi_level_second(EPI_LEVEL_TERM), depth, out);
    epi_text_add(out, ", ");
    write_value(g, n->arg[2], EPI_LEVEL_OR, depth, out);
    epi_text_add(out, ", %s)", epi_axis_label(g, epi_grouped_axis(g, n)).text);
    for (int i = 0; i < n->over.count && rows; i++)
        epi_text_add(out, ", %s", epi_axis_label(g, n->over.at[i]).text);
    epi_text_add(out, rows ? ")" : "");
}

static void write_operation(const epi_graph *g, int node, epi_level least, int depth, epi_text *out) {
    const epi_node *n = &g->nodes[node];
    if (n->op == EPI_OP_ONCE) {
        write_value(g, n->arg[0], least, depth, out);
        return;
    }
    if (n->op == EPI_OP_GROUPED) {
        write_grouped(g, n, depth, out);
        return;
    }
    epi_level level = epi_ops[n->op].level;
    bool word = level == EPI_LEVEL_WORD, apart = !word && level < least;
    epi_text_add(out, "%s", apart ? "(" : "");
    if (word) {
        write_call(g, n, depth, out);
    } else if (n->arg[1] == EPI_NO_NODE) {
        epi_text_add(out, "%s%s", epi_ops[n->op].text, n->op == EPI_OP_NOT ? " " : "");
        write_value(g, n->arg[0], level, depth, out);
    } else {
        bool tight = level == EPI_LEVEL_POWER || epi_op_has_factors(n->op),
             left = level != EPI_LEVEL_COMPARE && level != EPI_LEVEL_POWER;
        const epi_node *first = &g->nodes[n->arg[0]];
        bool mixed = !first->name && level == EPI_LEVEL_TERM && epi_ops[first->op].level == level &&
                     (n->op == EPI_OP_MATMUL) != (first->op == EPI_OP_MATMUL);
        write_value(g, n->arg[0], left && !mixed ? level : level + 1, depth, out);
        epi_text_add(out, tight ? "%s" : " %s ", epi_op_symbol(n->op));
        write_value(g, n->arg[1], epi_level_second(level), depth, out);
    }
    epi_text_add(out, "%s", apart ? ")" : "");
}

epi_label epi_node_expression(const epi_graph *g, int node) {
    epi_label l;
    epi_text t = {0};
    if (epi_op_is_leaf(g->nodes[node].op))
        write_value(g, node, EPI_LEVEL_OR, 0, &t);
    else
        write_operation(g, node, EPI_LEVEL_OR, 0, &t);
    bool whole = t.length < sizeof l.text;
    size_t n = whole ? t.length : sizeof l.text - 4;
    while (!whole && n && ((unsigned char)t.data[n] & 0xc0) == 0x80) /* not in the middle of a character */
        n--;
    memcpy(l.text, t.data ? t.data : "", n);
    memcpy(l.text + n, whole ? "" : "…", whole ? 1 : 4);
    epi_text_free(&t);
    return l;
}

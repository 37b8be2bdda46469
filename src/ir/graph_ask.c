/* graph_ask.c: answers questions about values: how products read operands, what numbers and axes are. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/graph.h"

bool epi_product_sums_all(const epi_graph *g, const epi_node *n) {
    epi_axes shared = epi_axes_shared(&g->nodes[n->arg[0]].axes, &g->nodes[n->arg[1]].axes);
    return epi_axes_equal(&shared, &n->over); /* in that order: it is the order of sums */
}

/* Has a an axis that neither b nor `over` has? */
static bool has_own_axis(const epi_graph *g, int a, int b, const epi_axes *over) {
    epi_axes own = epi_axes_without(&g->nodes[a].axes, &g->nodes[b].axes);
    return epi_axes_without(&own, over).count > 0;
}

bool epi_graph_is_contraction(const epi_graph *g, int a, int b, const epi_axes *over) {
    return epi_axes_include(&g->nodes[a].axes, over) && epi_axes_include(&g->nodes[b].axes, over) &&
           has_own_axis(g, a, b, over) && has_own_axis(g, b, a, over);
}

epi_axis epi_grouped_axis(const epi_graph *g, const epi_node *product) {
    return g->nodes[product->arg[2]].over.at[0];
}

epi_axes epi_grouped_positions(const epi_graph *g, const epi_node *product) {
    epi_axes axes = g->nodes[product->arg[2]].over;
    epi_axes_remove(&axes, 0);
    return axes;
}

int epi_grouped_offsets(const epi_graph *g, const epi_node *product) {
    return g->nodes[product->arg[2]].arg[0];
}

bool epi_grouped_rows(const epi_graph *g, const epi_node *product) {
    return epi_axes_find(&g->nodes[product->arg[1]].axes, epi_grouped_axis(g, product)) >= 0;
}

int epi_node_segments(const epi_graph *g, const epi_node *n) {
    if (n->op == EPI_OP_GROUPED)
        return n->arg[2];
    const epi_node *index = n->op == EPI_OP_SCATTER ? &g->nodes[n->arg[1]] : NULL;
    bool sums = index && index->op == EPI_OP_SEGMENTS && n->over.count == 1 &&
                epi_axis_equal(n->over.at[0], index->over.at[0]);
    return sums ? n->arg[1] : EPI_NO_NODE;
}

bool epi_segments_are_read(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool read = g->nodes[node].op == EPI_OP_SEGMENTS;
    for (int i = 0; i < uses.count && read; i++)
        read = uses.at[i].node != EPI_NO_NODE && uses.at[i].operand > 0 &&
               epi_node_segments(g, &g->nodes[uses.at[i].node]) == node;
    return read;
}

bool epi_gather_is_of_group(const epi_graph *g, int node, int segments) {
    const epi_node *n = &g->nodes[node], *s = &g->nodes[segments];
    return n->op == EPI_OP_GATHER && n->arg[1] == segments && s->op == EPI_OP_SEGMENTS && !n->has_stored &&
           n->over.count == 1 && epi_axis_equal(n->over.at[0], s->over.at[0]) &&
           !epi_axes_meet(&g->nodes[n->arg[0]].axes, &s->axes);
}

epi_axes epi_product_side(const epi_graph *g, const epi_node *product, int operand) {
    epi_axes side = epi_axes_without(&g->nodes[product->arg[operand]].axes, &product->over);
    if (product->op != EPI_OP_GROUPED)
        return side;
    return epi_axes_without(&side, &(epi_axes){1, {epi_grouped_axis(g, product)}});
}

/* Is the operand a gather whose index has a number for each position, and names all of a row by it? Of a table
 * with an axis of groups it is not: by that axis a mainloop finds the group's weight. */
static bool is_row_gather(const epi_graph *g, const epi_node *product, int operand) {
    const epi_node *n = &g->nodes[product->arg[operand]];
    if (product->op != EPI_OP_GROUPED || n->op != EPI_OP_GATHER || n->has_stored)
        return false;
    epi_axes positions = epi_grouped_positions(g, product),
             rest = epi_axes_without(&g->nodes[n->arg[0]].axes, &n->over);
    return epi_axes_same_set(&g->nodes[n->arg[1]].axes, &positions) && !epi_axes_meet(&rest, &positions) &&
           !epi_axes_has_dim(&g->nodes[n->arg[0]].axes, epi_grouped_axis(g, product).dim);
}

/* Do the two gathers have one index, along the same axes? */
static bool have_same_index(const epi_node *a, const epi_node *b) {
    return a->arg[1] == b->arg[1] && epi_axes_equal(&a->over, &b->over);
}

/* Could a mainloop read the operand through its index? It has one for both. */
static bool may_be_read(const epi_graph *g, const epi_node *product, int operand) {
    return is_row_gather(g, product, operand) &&
           (!is_row_gather(g, product, !operand) ||
            have_same_index(&g->nodes[product->arg[0]], &g->nodes[product->arg[1]]));
}

/* Does nothing but such products want the gather, or maps, which rows make as they take it? */
static bool is_read(const epi_graph *g, int node, bool maps) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool read = g->nodes[node].op == EPI_OP_GATHER && uses.count;
    for (int i = 0; i < uses.count && read; i++) {
        const epi_node *user = uses.at[i].node == EPI_NO_NODE ? NULL : &g->nodes[uses.at[i].node];
        read = user && ((maps && epi_op_is_map(user->op)) ||
                        (uses.at[i].operand < 2 && may_be_read(g, user, uses.at[i].operand)));
    }
    return read;
}

bool epi_gather_is_read(const epi_graph *g, int node) {
    return is_read(g, node, false);
}

/* Does each batch of the product read a matrix of its own choice (chosen.c)? */
static bool is_chosen(const epi_graph *g, int operand) {
    return g->nodes[operand].on_load && g->nodes[operand].op == EPI_OP_GATHER;
}

bool epi_grouped_reads(const epi_graph *g, const epi_node *product, int operand) {
    return is_chosen(g, product->arg[operand]) ||
           (may_be_read(g, product, operand) && is_read(g, product->arg[operand], true));
}

int epi_grouped_index(const epi_graph *g, const epi_node *product) {
    for (int a = 0; a < 2; a++)
        if (epi_grouped_reads(g, product, a))
            return g->nodes[product->arg[a]].arg[1];
    return EPI_NO_NODE;
}

bool epi_grouped_alike(const epi_graph *g, const epi_node *p, const epi_node *q) {
    const epi_node *read[2] = {NULL, NULL};
    for (int i = 0; i < 4; i++)
        if (epi_grouped_reads(g, i / 2 ? q : p, i % 2))
            read[i / 2] = &g->nodes[(i / 2 ? q : p)->arg[i % 2]];
    return p->op == q->op && p->arg[2] == q->arg[2] && !read[0] == !read[1] &&
           (!read[0] || have_same_index(read[0], read[1]));
}

/* What an operand that is made on load is made of: each once. */
static int add_reads(const epi_graph *g, int node, int *out, int count) {
    const epi_node *n = &g->nodes[node];
    bool there = n->op == EPI_OP_CONST;
    for (int i = 0; i < count; i++)
        there |= out[i] == node;
    if (!n->on_load && !there)
        out[count++] = node;
    for (int a = 0; a < epi_node_operands(n) && n->on_load; a++)
        count = add_reads(g, n->arg[a], out, count);
    return count;
}

static bool is_scaled(const epi_graph *g, const epi_node *product, int operand) {
    const epi_node *n = &g->nodes[product->arg[operand]];
    return product->scaled && n->op == EPI_OP_MUL && !n->has_stored;
}

int epi_scaled_bits(const epi_graph *g, const epi_node *product, int operand) {
    int value = product->arg[operand];
    return is_scaled(g, product, operand) ? g->nodes[value].arg[0] : value;
}

int epi_scaled_factor(const epi_graph *g, const epi_node *product, int operand) {
    return is_scaled(g, product, operand) ? g->nodes[product->arg[operand]].arg[1] : EPI_NO_NODE;
}

bool epi_scaled_is_read(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool read = uses.count > 0;
    for (int i = 0; i < uses.count && read; i++)
        read = uses.at[i].node != EPI_NO_NODE && uses.at[i].operand < 2 &&
               is_scaled(g, &g->nodes[uses.at[i].node], uses.at[i].operand);
    return read;
}

int epi_product_reads(const epi_graph *g, int product, int out[EPI_PRODUCT_READS]) {
    const epi_node *n = &g->nodes[product];
    int count = 0;
    for (int a = 0; a < 2; a++)
        if (g->nodes[n->arg[a]].on_load && !is_chosen(g, n->arg[a]))
            count += add_reads(g, n->arg[a], out + count, 0);
        else
            out[count++] = epi_grouped_reads(g, n, a) ? g->nodes[n->arg[a]].arg[0] : epi_scaled_bits(g, n, a);
    for (int a = 0; a < 2; a++)
        if (epi_scaled_factor(g, n, a) != EPI_NO_NODE)
            out[count++] = epi_scaled_factor(g, n, a);
    if (n->op == EPI_OP_GROUPED)
        out[count++] = epi_grouped_offsets(g, n);
    int index = epi_grouped_index(g, n);
    if (index != EPI_NO_NODE)
        out[count++] = index;
    return count;
}

bool epi_graph_at_number(const epi_graph *g, int node, int64_t *at) {
    const epi_node *n = &g->nodes[node];
    if (!epi_op_by_index(n->op) || n->over.count > 1 || g->nodes[n->arg[1]].op != EPI_OP_CONST)
        return false;
    double value = nearbyint(g->nodes[n->arg[1]].value);
    *at = value >= 0 && value < 0x1p62 ? (int64_t)value : -1;
    return *at >= 0;
}

static double number_of(const epi_graph *g, int node, const int64_t *sizes, int depth) {
    enum { DEEPEST = 8 };
    const epi_node *n = &g->nodes[epi_graph_value(g, node)];
    double x[3] = {0, 0, 0};
    if (n->op == EPI_OP_CONST)
        return n->value;
    if (n->op == EPI_OP_SIZE && sizes && sizes[n->over.at[0].dim] > 0)
        return (double)epi_axis_size(n->over.at[0], sizes);
    if (!epi_op_is_map(n->op) || n->axes.count || depth == DEEPEST)
        return (double)NAN;
    for (int a = 0; a < epi_node_operands(n); a++)
        if (isnan(x[a] = number_of(g, n->arg[a], sizes, depth + 1)))
            return (double)NAN;
    return epi_op_reference(n->op, x[0], x[1], x[2]);
}

double epi_graph_number(const epi_graph *g, int node, const int64_t *sizes) {
    return number_of(g, node, sizes, 0);
}

bool epi_graph_misses(const epi_graph *g, int index, const epi_axes *along, const int64_t *sizes,
                      epi_label *why) {
    double at = nearbyint(epi_graph_number(g, index, sizes));
    int64_t size = epi_axes_size(along, sizes);
    if (at < 0)
        snprintf(why->text, sizeof why->text,
                 "the number %.15g is outside every axis: positions count from 0", at);
    else if (size > 0 && at >= (double)size)
        snprintf(why->text, sizeof why->text,
                 "the number %.15g is outside the axis %.100s, which has %ld elements", at,
                 epi_along_label(g, along).text, (long)size);
    return at < 0 || (size > 0 && at >= (double)size);
}

epi_axes epi_scatter_kept(const epi_graph *g, const epi_node *n) {
    if (n->op != EPI_OP_SCATTER_BATCH)
        return (epi_axes){0};
    epi_axes along = epi_axes_without(&n->over, &g->nodes[n->arg[1]].axes);
    return epi_axes_without(&n->over,
                            &along); /* in this order, not the index's, which may be laid out anew */
}

int64_t epi_shift_by(const epi_node *n) {
    return (int64_t)n->value;
}

void epi_own_arguments(const epi_graph *g, int node, int *out) {
    const epi_node *n = &g->nodes[node];
    int at = n->arg[1] == EPI_NO_NODE ? n->arg[0] : n->arg[1], count = n->own->input_count;
    for (int i = 0; i < count - 1; i++, at = g->nodes[at].arg[1])
        out[i] = g->nodes[at].arg[0];
    out[count - 1] = at;
}

bool epi_graph_next_pair(const epi_graph *g, int *at, epi_axis *from, epi_axis *to) {
    while (*at < g->node_count) {
        const epi_node *n = &g->nodes[(*at)++];
        *from = n->over.at[0];
        *to = n->over.at[1];
        if (n->op == EPI_OP_RENAME)
            return true;
    }
    int dim = g->declared_count + (*at)++ - g->node_count;
    *from = dim < g->dim_count ? g->same[dim] : (epi_axis){0, 0};
    *to = (epi_axis){(int16_t)dim, 0};
    return dim < g->dim_count;
}

int epi_graph_renamed(const epi_graph *g, int node) {
    while (g->nodes[node].op == EPI_OP_RENAME)
        node = g->nodes[node].arg[0];
    return node;
}

epi_axes epi_graph_rename_axes(const epi_graph *g, int node, const epi_axes *axes) {
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_RENAME)
        return *axes;
    epi_axes out = epi_graph_rename_axes(g, n->arg[0], axes);
    out.at[epi_axes_find(&out, n->over.at[0])] = n->over.at[1];
    return out;
}

bool epi_node_takes(const epi_node *n, const bool *marked) {
    for (int a = 0; a < epi_node_operands(n); a++)
        if (marked[n->arg[a]])
            return true;
    return false;
}

int epi_graph_find_tensor(const epi_graph *g, const char *name) {
    for (int t = 0; t < g->tensor_count; t++)
        if (!strcmp(g->tensors[t].name, name))
            return t;
    return -1;
}

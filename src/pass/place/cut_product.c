/* cut_product.c: places products: on a tile of their own, on a tile that several share, or on one where they
 * are summed. */
#include "pass/place/placer.h"

/* Do the columns of two products that share an operand lie alike? A GPU's tile wants that of both. */
static bool have_same_layout(const epi_graph *g, int first, int second, int shared) {
    const epi_node *p = &g->nodes[first], *q = &g->nodes[second];
    return epi_operand_is_deep(g, p, p->arg[0] == shared) == epi_operand_is_deep(g, q, q->arg[0] == shared);
}

/* Are halves of the value taken, or of what maps make of it? A GPU reorders the columns of a product for
 * that, which a tile that is shared has no room for. */
static bool is_halved(const epi_graph *g, int node, int depth) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count && depth < 8; i++) {
        epi_op op = epi_use_op(g, uses.at[i]);
        if (op == EPI_OP_LOW || op == EPI_OP_HIGH ||
            (epi_op_is_map(op) && is_halved(g, uses.at[i].node, depth + 1)))
            return true;
    }
    return false;
}

/* The part of a product that this one can share its tile with, or -1: it has the same rows' operand, and all
 * that it reads is there when that part runs. */
static int find_pair(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int reads[EPI_PRODUCT_READS], count = epi_product_reads(s->g, node, reads), time = -1;
    while (count--)
        time = (int)epi_max64(time, epi_placer_time_of(s, reads[count]));
    for (int q = s->part_count - 1, shared; q >= s->first && s->limits->pairs; q--) {
        const epi_placer_part *p = &s->parts[q];
        if (p->kind != EPI_KIND_GEMM || p->pair != EPI_NO_NODE || p->added_count || p->local ||
            (s->without[p->product] | s->without[node]) & EPI_REFUSED_PAIR ||
            !epi_products_pair(s->g, p->product, node, &shared) ||
            (s->limits->same_layout && (!have_same_layout(s->g, p->product, node, shared) ||
                                        is_halved(s->g, p->product, 0) || is_halved(s->g, node, 0))))
            continue;
        const epi_axes *with_rows = &s->g->nodes[shared].axes;
        if (time < q && epi_axes_find(with_rows, n->axes.at[n->axes.count - 1]) < 0)
            return q;
    }
    return -1;
}

/* Notes of all that belongs to a sum of products which sum that is. */
static void mark_sum(epi_placer *s, int node, int root) {
    s->sum[node] = root;
    for (int a = 0; a < 2 && s->g->nodes[node].op == EPI_OP_ADD; a++)
        mark_sum(s, s->g->nodes[node].arg[a], root);
}

/* How an operand will lie: an input, and what is a view of one, as it does. */
static epi_axes operand_layout(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    epi_op op = g->nodes[epi_graph_renamed(g, node)].op;
    return op == EPI_OP_INPUT || op == EPI_OP_GATHER ? g->nodes[node].axes : epi_cut_layout(spec, node);
}

epi_product_sum epi_placer_find_sum(epi_placer *s, int node) {
    epi_product_sum sum = epi_products_sum(s->g, operand_layout, s->spec, node);
    bool may = s->limits->pairs;
    for (int i = 0; i < sum.count; i++) /* depths are constants of a GPU's text, and rows may be open */
        may &= s->forward[sum.products[i]] == s->forward[sum.root] && !s->attention_of[sum.products[i]] &&
               !s->inner[sum.products[i]] && !(s->without[sum.products[i]] & EPI_REFUSED_PAIR) &&
               !epi_spec_has_rows(s->spec, &s->g->nodes[sum.products[i]].over);
    if (may && sum.count > 1)
        mark_sum(s, sum.root, sum.root);
    return may ? sum : (epi_product_sum){node, {node}, 1};
}

void epi_placer_place_product(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_product_sum sum = epi_placer_find_sum(s, node);
    for (int i = 0; i < sum.count; i++)
        if (sum.products[i] != node && !s->placed[sum.products[i]])
            return;
    int operands[EPI_MAX_TERMS * EPI_PRODUCT_READS], count = 0;
    for (int i = 0; i < sum.count; i++)
        count += epi_product_reads(s->g, sum.products[i], operands + count);
    for (int i = 0; i < count; i++)
        epi_placer_want_after(s, operands[i]);
    for (int i = 0; i < count; i++) {
        epi_placer_settle_view(s, operands[i]);
        epi_placer_store(s, operands[i]);
    }
    s->until = -1;
    int other = n->axes.count && sum.count == 1 ? find_pair(s, node) : -1;
    if (other >= 0) {
        s->parts[other].pair = node;
        s->placement[node] = (epi_cut_placement){EPI_PLACED_TILE, other};
        return;
    }
    int q = epi_placer_add_part(s, EPI_KIND_GEMM, sum.products[0]);
    epi_placer_part *p = &s->parts[q];
    for (int i = 1; i < sum.count; i++)
        p->added[p->added_count++] = sum.products[i];
    const epi_axes *first = &s->g->nodes[n->arg[0]].axes, *second = &s->g->nodes[n->arg[1]].axes;
    p->grouped = n->op == EPI_OP_GROUPED;
    for (int i = 0; i < n->axes.count; i++) {
        bool group =
            p->grouped && epi_axis_equal(n->axes.at[i], epi_grouped_axis(s->g, n)); /* of the depth */
        bool in_rows = group || epi_axes_find(first, n->axes.at[i]) >= 0;
        epi_axes *side = in_rows ? &p->rows : &p->cols;
        side->at[side->count++] = n->axes.at[i];
        p->batched |= group || (in_rows && epi_axes_find(second, n->axes.at[i]) >= 0);
    }
    s->placement[node] = (epi_cut_placement){EPI_PLACED_TILE, q};
    for (int i = sum.products[0]; i <= sum.root && sum.count > 1; i++)
        if (s->sum[i] == sum.root)
            s->placement[i] = s->placement[node];
    int spilled = s->spills ? s->spills[p->product] : EPI_NO_NODE;
    if (spilled != EPI_NO_NODE) {
        p->spilled = spilled;
        p->next = epi_placer_add_part(s, EPI_KIND_ROWS, EPI_NO_NODE);
        s->parts[p->next].rows = p->rows;
        s->parts[p->next].cols = p->cols;
        s->parts[p->next].shaped = true;
        s->forced[spilled] = true;
    }
}

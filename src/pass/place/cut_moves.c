/* cut_moves.c: places gathers, scatters, sorts, shifts and random numbers: on rows, or in parts of their
 * own. */
#include "ir/index.h"
#include "pass/place/placer.h"

/* The part that makes an order like this one already, or that by which it is sorted, or the places of these
 * largest elements; or -1. What is sorted is there by then. */
static int find_order(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    bool sorted = epi_is_sorted(s->g, node), largest = epi_is_largest(s->g, node);
    int by = sorted || largest ? n->arg[1] : node, made = s->placement[by].part;
    if (sorted || largest)
        return s->placed[by] && made >= s->first && s->placement[n->arg[0]].kind != EPI_UNPLACED &&
                       epi_placer_time_of(s, n->arg[0]) < made
                   ? made
                   : -1;
    epi_use_list uses = epi_graph_uses(s->g, s->g->nodes[by].arg[0]);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (user != EPI_NO_NODE && s->placed[user] && s->placement[user].part >= s->first &&
            epi_orders_alike(s->g, user, by))
            return s->placement[user].part;
    }
    return -1;
}

void epi_placer_place_pass(epi_placer *s, int node) {
    int order = find_order(s, node);
    if (order >= 0) {
        for (int a = 0; a < epi_node_operands(&s->g->nodes[node]); a++)
            epi_placer_store(s, s->g->nodes[node].arg[a]);
        s->placement[node] = (epi_cut_placement){EPI_PLACED_AFTER, order};
        return;
    }
    int segments = epi_node_segments(s->g, &s->g->nodes[node]);
    for (int a = 0; a < epi_node_operands(&s->g->nodes[node]); a++)
        epi_placer_store(s, a == 1 && segments != EPI_NO_NODE ? s->g->nodes[segments].arg[0]
                                                              : s->g->nodes[node].arg[a]);
    bool reduces = epi_op_reduces(s->g->nodes[node].op);
    int q = epi_placer_add_rows(s, reduces ? s->g->nodes[node].arg[0] : node, NULL);
    s->parts[q].kind = EPI_KIND_PASS;
    s->placement[node] = (epi_cut_placement){EPI_PLACED_AFTER, q};
}

/* Can the part that makes the new elements of an update store them where its index says? The result is one
 * output, so that it may take its operand's place, and has the type in which the new elements would be kept.
 */
static bool updates_on_tile(const epi_placer *s, int node) {
    const epi_graph *g = s->g;
    const epi_node *n = &g->nodes[node];
    if (!s->limits->updates || n->op != EPI_OP_UPDATE || s->placement[n->arg[2]].kind != EPI_PLACED_TILE ||
        s->placement[n->arg[2]].part < s->first)
        return false;
    const epi_placer_part *p = &s->parts[s->placement[n->arg[2]].part];
    int outputs = 0;
    bool alike = true;
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (g->tensors[t].node == node) {
            outputs++;
            alike &= s->spec->types[t] == s->spec->type;
        }
    return outputs == 1 && alike && p->kind == EPI_KIND_GEMM && epi_update_fits(g, node, &p->rows, &p->cols);
}

/* Are rows taken, each by a number of its own? */
static bool has_number_by_row(const epi_graph *g, const epi_node *n) {
    if (n->op != EPI_OP_GATHER)
        return false;
    const epi_axes *by = &g->nodes[n->arg[1]].axes;
    return by->count && epi_axes_find(by, n->axes.at[n->axes.count - 1]) < 0;
}

/* Is the value a row of an input, which rows take as they go, by a number that each row has or by its own
 * place? Then it is made wherever it is used, unless that may be a product's tile, by maps. Or is it one of a
 * value that is stored for it, along several axes, as experts' slots are? A product's tile would want the sum
 * of some of them in memory, and rows want the tile's value: that is the same. */
static bool is_taken(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node], *index = &s->g->nodes[n->arg[1]];
    bool input = n->op == EPI_OP_GATHER && s->g->nodes[n->arg[0]].op == EPI_OP_INPUT &&
                 (index->op == EPI_OP_INPUT || index->op == EPI_OP_INDEX);
    bool taken = (input || n->over.count > 1) && has_number_by_row(s->g, n);
    epi_visits_begin(&s->visits, node);
    for (int i; taken && epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        taken = !s->inner[i] && (!s->of_product[i] || n->over.count > 1);
        for (int u = 0; u < uses.count; u++)
            if (epi_op_on_tile(epi_use_op(s->g, uses.at[u])))
                epi_visit(&s->visits, uses.at[u].node);
    }
    return taken;
}

/* Is it a slice of an index, by which alone rows along several axes are taken? */
static bool is_taken_by(epi_placer *s, int node) {
    int64_t at;
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool taken = s->g->nodes[node].op == EPI_OP_GATHER && epi_graph_at_number(s->g, node, &at) && uses.count;
    for (int i = 0; i < uses.count && taken; i++) {
        int user = uses.at[i].node;
        taken = user != EPI_NO_NODE && uses.at[i].operand == 1 && s->g->nodes[user].over.count > 1 &&
                is_taken(s, user);
    }
    return taken;
}

/* Is it one of several numbers of a row, by which alone elements along an axis are chosen: where(index(E) ==
 * i, x, 0)? */
static bool is_chosen_by(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int64_t at;
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool chosen =
        n->op == EPI_OP_GATHER && epi_graph_at_number(s->g, node, &at) && uses.count && n->axes.count;
    for (int i = 0; i < n->axes.count; i++)
        chosen &= s->spec->is_row[n->axes.at[i].dim];
    for (int i = 0; i < uses.count && chosen; i++) {
        const epi_node *user = uses.at[i].node == EPI_NO_NODE ? n : &s->g->nodes[uses.at[i].node];
        const epi_node *is =
            user->op == EPI_OP_WHERE && uses.at[i].operand ? &s->g->nodes[user->arg[0]] : user;
        chosen = is->op == EPI_OP_EQ &&
                 (s->g->nodes[is->arg[0]].op == EPI_OP_INDEX || s->g->nodes[is->arg[1]].op == EPI_OP_INDEX);
    }
    return chosen;
}

/* Is it one of several numbers of a row, or of a column, in an input, which nothing but maps of the row's
 * elements wants, and none on a product's tile? Rows read it where it lies. */
static bool is_number_of_row(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    int64_t at;
    bool number = n->op == EPI_OP_GATHER && epi_graph_at_number(s->g, node, &at) && n->axes.count &&
                  s->g->nodes[n->arg[0]].op == EPI_OP_INPUT;
    int rows = 0;
    for (int i = 0; i < n->axes.count; i++)
        rows += s->spec->is_row[n->axes.at[i].dim];
    number &= !rows || rows == n->axes.count;
    epi_visits_begin(&s->visits, node);
    for (int i; number && epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        number = !s->inner[i] && !s->of_product[i];
        for (int u = 0; u < uses.count && number; u++) {
            int user = uses.at[u].node;
            bool map = epi_op_is_map(epi_use_op(s->g, uses.at[u]));
            number = i != node || (map && s->g->nodes[user].axes.count > n->axes.count &&
                                   (rows || epi_spec_has_rows(s->spec, &s->g->nodes[user].axes)));
            if (map)
                epi_visit(&s->visits, user);
        }
    }
    return number;
}

/* Is it what the groups of a product have each, which may be the one that makes the tiles on which it is
 * wanted? A number of each is if nothing but products' tiles wants it. */
static bool is_of_group(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    if (n->op != EPI_OP_GATHER || !epi_gather_is_of_group(s->g, node, n->arg[1]))
        return false;
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool tiles = true;
    for (int i = 0; i < uses.count; i++)
        tiles &= epi_op_is_map(epi_use_op(s->g, uses.at[i])) && s->of_product[uses.at[i].node];
    return tiles || has_number_by_row(s->g, n);
}

/* What rows take, or by what, as they go: its operands are in memory by then, but for segments, which a tile
 * does not want. */
static void place_taken(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_cut_placement at = {EPI_UNPLACED, -1};
    for (int a = 0; a < 2; a++) {
        epi_placer_settle_view(s, n->arg[a]);
        if (!epi_op_is_free(s->g->nodes[n->arg[a]].op) && !s->takes[n->arg[a]] &&
            s->g->nodes[n->arg[a]].op != EPI_OP_SEGMENTS)
            epi_placer_store(s, n->arg[a]);
        at.part = (int)epi_max64(at.part, epi_placer_time_of(s, n->arg[a]));
    }
    s->placement[node] = at;
    s->takes[node] = true;
}

/* Can rows make what is shifted and keep it: those that make it already, or new ones? */
static bool can_be_kept(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_cut_placement at = s->placement[n->arg[0]];
    bool unplaced = at.kind == EPI_UNPLACED, tile = at.kind == EPI_PLACED_TILE && at.part >= s->first;
    if (!epi_may_keep(s->spec, n) || (!unplaced && !tile))
        return false;
    epi_placer_part trial = {.kind = EPI_KIND_ROWS, .split = EPI_OP_COUNT};
    if (tile)
        trial = s->parts[at.part];
    else
        epi_placer_shape_rows(s->spec, &trial, &n->axes, NULL);
    trial.window = true;
    s->cone.count = 0;
    if (unplaced)
        epi_placer_find_cone(s, n->arg[0]);
    return epi_placer_fits(s, &trial, node) && epi_placer_first_misfit(s, &trial) == EPI_NO_NODE;
}

void epi_placer_place_shift(epi_placer *s, int node) {
    int from = s->g->nodes[node].arg[0];
    if (!s->limits->shifts) {
        epi_placer_place_pass(s, node);
        return;
    }
    epi_placer_settle_view(s, from);
    if (!can_be_kept(s, node))
        epi_placer_store(s, from);
    s->placement[node] = (epi_cut_placement){EPI_UNPLACED, epi_placer_time_of(s, from)};
    s->takes[node] = true;
}

void epi_placer_place_move(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE)
            epi_placer_settle_view(s, n->arg[a]);
    if (is_taken(s, node)) {
        place_taken(s, node);
        return;
    }
    if (updates_on_tile(s, node)) {
        s->placement[node] = (epi_cut_placement){EPI_PLACED_AFTER, s->placement[n->arg[2]].part};
        return;
    }
    if (n->op != EPI_OP_UNIFORM && !has_number_by_row(s->g, n)) {
        epi_placer_place_pass(s, node);
        return;
    }
    for (int a = 0; a < 3 && n->op != EPI_OP_UNIFORM; a++)
        if (n->arg[a] != EPI_NO_NODE)
            epi_placer_store(s, n->arg[a]);
    int q = epi_placer_add_rows(s, node, NULL);
    s->parts[q].shaped = n->op != EPI_OP_UNIFORM;
    s->placement[node] = (epi_cut_placement){EPI_PLACED_TILE, q};
}

/* Is it the last step of a value on the rows of recurrences? They store it as it comes. */
static bool is_last_step(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_cut_placement at = s->placement[n->arg[0]];
    const epi_placer_part *p = at.kind == EPI_PLACED_TILE && at.part >= s->first ? &s->parts[at.part] : NULL;
    return p && p->scans && epi_is_last_step(s->spec, node, p->scan, p->scan_back) &&
           s->g->nodes[n->arg[0]].axes.count == p->rows.count + p->cols.count;
}

/* Is the value a random number of which nothing but elements of attention's scores are made, by maps? Then
 * every attention recomputes it, as it does them. */
static bool is_of_scores(epi_placer *s, int node) {
    epi_visits_begin(&s->visits, node);
    for (int i; epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            if (!epi_op_is_map(epi_use_op(s->g, uses.at[u])) ||
                !epi_axes_same_set(&s->g->nodes[user].axes, &s->g->nodes[node].axes))
                return false;
            if (!s->inner[user])
                epi_visit(&s->visits, user);
        }
    }
    return true;
}

void epi_placer_place_random(epi_placer *s, int node) {
    if (is_of_scores(s, node))
        s->placement[node] = (epi_cut_placement){EPI_UNPLACED, -1};
    else
        epi_placer_place_move(s, node);
}

void epi_placer_place_indexed(epi_placer *s, int node) {
    if (is_last_step(s, node)) {
        s->placement[node] =
            (epi_cut_placement){EPI_PLACED_AFTER, s->placement[s->g->nodes[node].arg[0]].part};
        return;
    }
    if (is_taken_by(s, node) || is_chosen_by(s, node) || is_of_group(s, node)) {
        place_taken(s, node);
        return;
    }
    s->view[node] = epi_placer_is_slice(s, node);
    if (s->view[node])
        epi_placer_see_view(s, node);
    else
        (is_number_of_row(s, node) ? place_taken : epi_placer_place_move)(s, node);
}

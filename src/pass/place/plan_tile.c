/* plan_tile.c: the tile of a product: which products share it, its rows and columns, what it can hold. */
#include "pass/analyse/dequant.h"
#include "pass/place/plan_internal.h"

typedef epi_planner planner;

/* ---- the shape of the tile ---- */

epi_axes epi_plan_batch(const epi_plan *plan) {
    epi_axes batch = plan->rows;
    batch.count = plan->batch_axes;
    return batch;
}

epi_axes epi_plan_batch_rows(const epi_plan *plan) {
    epi_axes batch = epi_plan_batch(plan);
    return epi_axes_without(&plan->rows, &batch);
}

/* Of the rows of a product with batch axes, moves those to the batch that do not follow on from the first in
 * the operand's memory: a tile's rows lie a fixed step apart. */
static void part_rows(epi_axes *rows, epi_axes *batch, const epi_axes *operand) {
    epi_axes run = {0};
    int next = rows->count ? epi_axes_find(operand, rows->at[0]) : 0;
    for (int i = 0; i < rows->count; i++) {
        bool follows = epi_axes_find(operand, rows->at[i]) == next;
        epi_axes *to = follows ? &run : batch;
        to->at[to->count++] = rows->at[i];
        next += follows;
    }
    *rows = run;
}

bool epi_products_pair(const epi_graph *g, int first, int second, int *shared) {
    const epi_node *a = &g->nodes[first], *b = &g->nodes[second];
    epi_axes both = epi_axes_shared(&g->nodes[a->arg[0]].axes, &g->nodes[a->arg[1]].axes);
    bool same = !epi_axes_meet(&both, &a->axes) && /* of batches a tile has one product */
                a->scaled == b->scaled && epi_axes_equal(&a->over, &b->over) &&
                epi_axes_same_set(&a->axes, &b->axes) && epi_grouped_alike(g, a, b);
    bool grouped = a->op == EPI_OP_GROUPED; /* which have their rows in the first operand */
    same &= !grouped || epi_grouped_rows(g, a);
    for (int i = 0; i < (grouped ? 1 : 4) && same; i++)
        if (a->arg[i / 2] == b->arg[i % 2] &&
            epi_axes_same_set(&g->nodes[a->arg[!(i / 2)]].axes, &g->nodes[b->arg[!(i % 2)]].axes)) {
            *shared = a->arg[i / 2];
            return true;
        }
    return false;
}

/* ---- sums of products ---- */

/* The only one that uses the value, if that is a sum; else EPI_NO_NODE. */
static int summed_by(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    int user = uses.count == 1 ? uses.at[0].node : EPI_NO_NODE;
    return user != EPI_NO_NODE && g->nodes[user].op == EPI_OP_ADD ? user : EPI_NO_NODE;
}

/* Adds a product to the list, which is in the order of the graph. */
static void add_term(epi_product_sum *s, int product) {
    int at = s->count++;
    for (; at && s->products[at - 1] > product; at--)
        s->products[at] = s->products[at - 1];
    s->products[at] = product;
}

/* Lists the products that s->root is a sum of; false where it is something else, or there are too many. What
 * is inside the sum is used by nothing else. */
static bool list_terms(const epi_graph *g, epi_product_sum *s) {
    int todo[EPI_MAX_TERMS] = {s->root};
    for (int count = 1; count;) {
        int node = todo[--count];
        const epi_node *n = &g->nodes[node];
        if (node != s->root && epi_graph_uses(g, node).count != 1)
            return false;
        if (epi_op_is_product(n->op)) {
            add_term(s, node);
        } else {
            if (n->op != EPI_OP_ADD || s->count + count + 2 > EPI_MAX_TERMS)
                return false;
            todo[count++] = n->arg[1];
            todo[count++] = n->arg[0];
        }
    }
    return true;
}

/* Which operand of the product has these axes beside those it sums over; -1: neither. */
static int operand_of(const epi_graph *g, const epi_node *n, const epi_axes *axes) {
    for (int a = 0; a < 2; a++) {
        epi_axes own = epi_product_side(g, n, a);
        if (epi_axes_same_set(&own, axes))
            return a;
    }
    return -1;
}

static bool lies_deep(const epi_graph *g, epi_layout layout, const epi_spec *spec, const epi_node *product,
                      int a) {
    int operand = epi_scaled_bits(g, product, a);
    epi_axes axes = layout ? layout(spec, operand) : g->nodes[operand].axes;
    return epi_axes_find(&product->over, axes.at[axes.count - 1]) >= 0;
}

bool epi_operand_is_deep(const epi_graph *g, const epi_node *product, int a) {
    return lies_deep(g, NULL, NULL, product, a);
}

/* Have the two products the same rows and columns, and operands that lie alike? */
static bool add_up(const epi_graph *g, epi_layout layout, const epi_spec *spec, int first, int second) {
    const epi_node *p = &g->nodes[first], *q = &g->nodes[second];
    bool may = p->axes.count > 0 && p->scaled == q->scaled && epi_grouped_alike(g, p, q) &&
               (p->op != EPI_OP_GROUPED || (epi_grouped_rows(g, p) && epi_grouped_rows(g, q)));
    for (int a = 0; a < 2 && may; a++) {
        epi_axes own = epi_product_side(g, p, a);
        int other = operand_of(g, q, &own);
        may = own.count && own.count < p->axes.count && other >= 0 &&
              lies_deep(g, layout, spec, p, a) == lies_deep(g, layout, spec, q, other);
    }
    return may && epi_axes_same_set(&p->axes, &q->axes) &&
           epi_axes_count_in(&g->nodes[p->arg[0]].axes, &g->nodes[p->arg[1]].axes) == p->over.count &&
           epi_axes_count_in(&g->nodes[q->arg[0]].axes, &g->nodes[q->arg[1]].axes) == q->over.count;
}

epi_product_sum epi_products_sum(const epi_graph *g, epi_layout layout, const epi_spec *spec, int product) {
    epi_product_sum sum = {product, {product}, 1};
    for (int root; (root = summed_by(g, sum.root)) != EPI_NO_NODE;) {
        epi_product_sum more = {.root = root};
        bool may = list_terms(g, &more);
        for (int i = 1; i < more.count && may; i++)
            may = add_up(g, layout, spec, more.products[0], more.products[i]);
        if (!may)
            break;
        sum = more;
    }
    return sum;
}

bool epi_plan_is_summed(const planner *p, int node) {
    epi_op op = p->g->nodes[node].op;
    int at = op == EPI_OP_ADD || epi_op_is_product(op) ? node : EPI_NO_NODE;
    for (int i = 0; i < EPI_MAX_TERMS && at != EPI_NO_NODE && at != p->plan->sum; i++)
        at = summed_by(p->g, at);
    return at != EPI_NO_NODE && at == p->plan->sum;
}

int epi_plan_operands(const epi_plan *plan) {
    if (plan->kind != EPI_KIND_GEMM || plan->product == EPI_NO_NODE) /* a plan that was given up has none */
        return 0;
    return plan->pair != EPI_NO_NODE ? 3 : 2 + 2 * plan->added_count;
}

int epi_plan_operand(const epi_graph *g, const epi_plan *plan, int side) {
    if (side >= 2 && plan->added_count) {
        const epi_node *added = &g->nodes[plan->added[side / 2 - 1]];
        epi_axes group = side % 2 ? plan->cols : plan->rows;
        return added->arg[operand_of(g, added, &group) > 0]; /* a plan that was given up may have neither */
    }
    const epi_node *n = &g->nodes[side < 2 ? plan->product : plan->pair];
    int rows = g->nodes[plan->product].arg[plan->row_arg];
    return side == 0 ? rows : side == 1 ? n->arg[!plan->row_arg] : n->arg[n->arg[0] == rows];
}

int epi_plan_source(const epi_graph *g, const epi_plan *plan, int side) {
    int node = epi_plan_operand(g, plan, side);
    epi_dequant d;
    if (plan->placement[node].on_load && epi_dequant_find(g, node, &d))
        return d.bytes;
    return plan->placement[node].paged ? g->nodes[node].arg[0] : node;
}

bool epi_plan_makes(const epi_graph *g, const epi_plan *plan) {
    bool makes = false;
    for (int side = 0; side < epi_plan_operands(plan); side++)
        makes |= plan->placement[epi_plan_operand(g, plan, side)].on_load;
    return makes;
}

void epi_plan_note_groups(epi_plan *plan, const epi_graph *g) {
    const epi_node *n = &g->nodes[plan->product];
    plan->row_index = epi_grouped_index(g, n);
    if (n->op != EPI_OP_GROUPED)
        return;
    plan->group = epi_grouped_rows(g, n) ? EPI_GROUP_ROWS : EPI_GROUP_DEPTH;
    plan->offsets = epi_grouped_offsets(g, n);
    plan->group_axis = epi_grouped_axis(g, n);
}

/* The tile of a product of groups: positions keep their order, whatever lies in memory how. */
static void shape_groups(planner *p, int row_arg) {
    const epi_node *n = &p->g->nodes[p->plan->product];
    epi_plan *plan = p->plan;
    bool of_rows = plan->group == EPI_GROUP_ROWS;
    const epi_axes *order = epi_main_output(p->g, &n->axes);
    epi_axes rows = epi_product_side(p->g, n, row_arg);
    epi_axes_sort(&rows, order);
    plan->rows = of_rows ? epi_grouped_positions(p->g, n) : (epi_axes){1, {plan->group_axis}};
    if (!of_rows)
        epi_axes_unite(&plan->rows, &rows);
    plan->batch_axes = !of_rows;
    plan->cols = epi_product_side(p->g, n, !row_arg);
    epi_axes_sort(&plan->cols, order);
    plan->depth = n->over;
    if (of_rows)
        epi_axes_sort(&plan->depth, &p->g->nodes[n->arg[!row_arg]].axes);
}

/* The tile of any other product. */
static void shape_product(planner *p, int row_arg) {
    const epi_node *n = &p->g->nodes[p->plan->product];
    const epi_axes *with_rows = &p->g->nodes[epi_scaled_bits(p->g, n, row_arg)].axes,
                   *with_cols = &p->g->nodes[epi_scaled_bits(p->g, n, !row_arg)].axes;
    epi_plan *plan = p->plan;
    epi_axes batch = {0}, rows = {0};
    plan->cols.count = 0;
    plan->depth = n->over;
    for (int i = 0; i < n->axes.count; i++) {
        bool in_rows = epi_axes_has_dim(with_rows, n->axes.at[i].dim),
             in_cols = epi_axes_has_dim(with_cols, n->axes.at[i].dim);
        epi_axes *group = in_rows && in_cols ? &batch : in_rows ? &rows : &plan->cols;
        group->at[group->count++] = n->axes.at[i];
    }
    const epi_axes *order = epi_main_output(p->g, &n->axes);
    epi_axes_sort(&rows, batch.count ? with_rows : order);
    if (batch.count)
        part_rows(&rows, &batch, with_rows);
    epi_axes_sort(&batch, order);
    plan->batch_axes = batch.count;
    plan->rows = batch;
    epi_axes_unite(&plan->rows, &rows);
    epi_axes_sort(&plan->cols, order);
    epi_axes_sort(&plan->depth, with_cols);
}

void epi_plan_shape_tile(planner *p, int row_arg) {
    epi_plan *plan = p->plan;
    plan->row_arg = row_arg;
    (plan->group == EPI_GROUP_NONE ? shape_product : shape_groups)(p, row_arg);
    for (int i = 0; i < plan->added_count; i++) {
        plan->added_depth[i] = p->g->nodes[plan->added[i]].over;
        epi_axes_sort(&plan->added_depth[i], &p->g->nodes[epi_plan_operand(p->g, plan, 3 + 2 * i)].axes);
    }
}

/* ---- what the tile can hold ---- */

/* What a plan's tile is. */
static epi_tile tile_of(const epi_plan *plan) {
    return (epi_tile){plan->rows, plan->cols, plan->split, plan->fine};
}

bool epi_plan_fits(const epi_plan *plan, const epi_axes *axes) {
    epi_tile tile = tile_of(plan);
    return epi_tile_fits(&tile, axes);
}

bool epi_plan_note_split(planner *p, const epi_node *n) {
    epi_tile tile = tile_of(p->plan);
    if (!epi_tile_split(&tile, n))
        return epi_plan_refuse(p, "a tile splits one axis of its columns, in one way; %s splits in another",
                               epi_ops[n->op].text);
    p->plan->split = tile.split;
    p->plan->fine = tile.fine;
    return true;
}

bool epi_plan_make_local(planner *p, const epi_axes *over) {
    epi_axes *cols = &p->plan->cols;
    if (p->plan->local_axes && p->plan->local_axes != over->count)
        return epi_plan_refuse(p, "two reductions inside the tile remove different axes");
    epi_axes last = {0}, first = {0};
    for (int i = 0; i < cols->count; i++) {
        epi_axes *side = epi_axes_has_dim(over, cols->at[i].dim) ? &last : &first;
        side->at[side->count++] = cols->at[i];
    }
    if (p->plan->local_axes)
        for (int i = 0; i < cols->count; i++)
            if (!epi_axis_equal(cols->at[i], i < first.count ? first.at[i] : last.at[i - first.count]))
                return epi_plan_refuse(p, "two reductions inside the tile remove different axes");
    *cols = first;
    epi_axes_unite(cols, &last);
    p->plan->local_axes = over->count;
    return true;
}

bool epi_plan_sort_reduction(planner *p, const epi_node *n, epi_placement *stage) {
    epi_tile tile = tile_of(p->plan);
    stage->reduction = epi_tile_reduction(&tile, &p->g->nodes[n->arg[0]].axes, &n->over);
    bool down = stage->reduction == EPI_REDUCE_COLS;
    if (stage->reduction == EPI_REDUCE_NONE ||
        (down && (p->plan->batch_axes || p->plan->group != EPI_GROUP_NONE || n->op == EPI_OP_VAR)))
        return epi_plan_refuse(p, "%s at line %d reduces over more than a tile has", epi_ops[n->op].text,
                               n->place.line);
    if (stage->reduction == EPI_REDUCE_ROWS && p->full_row)
        stage->reduction = EPI_REDUCE_LOCAL;
    return stage->reduction != EPI_REDUCE_LOCAL || epi_plan_make_local(p, &n->over);
}

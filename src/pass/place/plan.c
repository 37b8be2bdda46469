/* plan.c: finds the product, determines what its tile may contain, and sorts every value into a stage. */
#include "pass/place/plan_internal.h"

#include <stdio.h>
#include <string.h>

#include "ir/index.h"
#include "pass/analyse/dequant.h"
#include "pass/analyse/limits.h"
#include "pass/analyse/scaled.h"

typedef epi_planner planner;

bool epi_plan_has(const epi_graph *g, int node, const epi_axes *group) {
    return epi_axes_count_in(&g->nodes[node].axes, group) > 0;
}

bool epi_plan_refuse(planner *p, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(p->plan->reason, sizeof p->plan->reason, fmt, args);
    va_end(args);
    return false;
}

/* ---- the shape of the tile ---- */

static bool axis_before(const epi_axes *order, epi_axis a, epi_axis b) {
    int i = epi_axes_find_dim(order, a.dim), j = epi_axes_find_dim(order, b.dim);
    return i >= 0 && j >= 0 && i < j;
}

void epi_plan_sort(epi_axes *group, const epi_axes *order) {
    for (int i = 1; i < group->count; i++)
        for (int j = i; j > 0 && axis_before(order, group->at[j], group->at[j - 1]); j--) {
            epi_axis t = group->at[j];
            group->at[j] = group->at[j - 1];
            group->at[j - 1] = t;
        }
}

const epi_axes *epi_plan_main_output(const epi_graph *g, const epi_axes *product) {
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (epi_axes_count_in(product, &g->tensors[t].axes) == product->count)
            return &g->tensors[t].axes;
    return product;
}

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
    bool same = a->scaled == b->scaled && a->over.count == b->over.count &&
                epi_axes_same_set(&a->axes, &b->axes) && epi_grouped_alike(g, a, b);
    for (int i = 0; i < a->over.count && same; i++)
        same = epi_axis_equal(a->over.at[i], b->over.at[i]);
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

/* Is the value one of the products that the tile adds up, or a part of their sum? */
static bool is_summed(const planner *p, int node) {
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
        return added->arg[operand_of(g, added, &group)];
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

/* Notes what falls into groups. */
static void note_groups(epi_plan *plan, const epi_graph *g) {
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
    const epi_axes *order = epi_plan_main_output(p->g, &n->axes);
    epi_axes rows = epi_product_side(p->g, n, row_arg);
    epi_plan_sort(&rows, order);
    plan->rows = of_rows ? epi_grouped_positions(p->g, n) : (epi_axes){1, {plan->group_axis}};
    if (!of_rows)
        epi_axes_unite(&plan->rows, &rows);
    plan->batch_axes = !of_rows;
    plan->cols = epi_product_side(p->g, n, !row_arg);
    epi_plan_sort(&plan->cols, order);
    plan->depth = n->over;
    if (of_rows)
        epi_plan_sort(&plan->depth, &p->g->nodes[n->arg[!row_arg]].axes);
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
    const epi_axes *order = epi_plan_main_output(p->g, &n->axes);
    epi_plan_sort(&rows, batch.count ? with_rows : order);
    if (batch.count)
        part_rows(&rows, &batch, with_rows);
    epi_plan_sort(&batch, order);
    plan->batch_axes = batch.count;
    plan->rows = batch;
    epi_axes_unite(&plan->rows, &rows);
    epi_plan_sort(&plan->cols, order);
    epi_plan_sort(&plan->depth, with_cols);
}

static void shape_tile(planner *p, int row_arg) {
    epi_plan *plan = p->plan;
    plan->row_arg = row_arg;
    (plan->group == EPI_GROUP_NONE ? shape_product : shape_groups)(p, row_arg);
    for (int i = 0; i < plan->added_count; i++) {
        plan->added_depth[i] = p->g->nodes[plan->added[i]].over;
        epi_plan_sort(&plan->added_depth[i], &p->g->nodes[epi_plan_operand(p->g, plan, 3 + 2 * i)].axes);
    }
}

/* ---- what the tile can hold ---- */

bool epi_tile_fits(const epi_tile *tile, const epi_axes *axes) {
    for (int i = 0; i < axes->count; i++) {
        epi_axis a = axes->at[i];
        if (tile->split != EPI_OP_COUNT && a.dim == tile->fine.dim) {
            if (a.shift != tile->fine.shift && a.shift != tile->fine.shift - 1)
                return false;
        } else if (epi_axes_find(&tile->rows, a) < 0 && epi_axes_find(&tile->cols, a) < 0) {
            return false;
        }
    }
    return true;
}

bool epi_tile_split(epi_tile *tile, const epi_node *n) {
    epi_op split = epi_op_split(n->op);
    epi_axis fine = n->over.at[0];
    if (tile->split != EPI_OP_COUNT)
        return tile->split == split && epi_axis_equal(tile->fine, fine);
    int at = epi_axes_find_dim(&tile->cols, fine.dim);
    if (at < 0 || (tile->cols.at[at].shift != fine.shift && tile->cols.at[at].shift != fine.shift - 1))
        return false;
    tile->split = split;
    tile->fine = fine;
    return true;
}

epi_reduction epi_tile_reduction(const epi_tile *tile, const epi_axes *from, const epi_axes *over) {
    const epi_axes *rows = &tile->rows, *cols = &tile->cols;
    int over_rows = epi_axes_count_in(over, rows), over_cols = epi_axes_count_in(over, cols);
    if (over_rows + over_cols < over->count || (over_rows && over_cols) ||
        epi_axes_count_in(from, rows) + epi_axes_count_in(from, cols) < from->count ||
        epi_axes_count_in(from, cols) < cols->count || (over_rows && over_rows < rows->count))
        return EPI_REDUCE_NONE;
    return over_rows ? EPI_REDUCE_COLS : over_cols < cols->count ? EPI_REDUCE_LOCAL : EPI_REDUCE_ROWS;
}

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

/* A reduction of a tile value: over all rows, all columns, or inner columns. */
static bool sort_reduction(planner *p, const epi_node *n, epi_placement *stage) {
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

/* ---- stages ---- */

/* A value that comes from a finished reduction is made after the tile; one that also has rows and columns
 * would have to be in it. This is the one thing a gemm kernel cannot do. */
static bool check_complete(planner *p, int node) {
    const epi_graph *g = p->g;
    const epi_node *n = &g->nodes[node];
    bool both = epi_plan_has(g, node, &p->plan->rows) && epi_plan_has(g, node, &p->plan->cols);
    for (int a = 0; a < epi_node_operands(n); a++)
        both |=
            p->plan->placement[n->arg[a]].tile && p->plan->placement[n->arg[a]].reduction <= EPI_REDUCE_LOCAL;
    return !both || epi_plan_refuse(p, "%s needs a tile, and a value that is complete only after all tiles",
                                    epi_node_label(g, node).text);
}

bool epi_update_fits(const epi_graph *g, int node, const epi_axes *rows, const epi_axes *cols) {
    const epi_node *n = &g->nodes[node];
    if (n->op != EPI_OP_UPDATE || g->nodes[n->arg[0]].op != EPI_OP_INPUT ||
        g->nodes[n->arg[1]].op != EPI_OP_INPUT)
        return false;
    const epi_axes *index = &g->nodes[n->arg[1]].axes, *value = &g->nodes[n->arg[2]].axes;
    bool along = epi_axes_has_dim(rows, n->over.at[0].dim) || epi_axes_has_dim(cols, n->over.at[0].dim);
    return !along && epi_axes_count_in(index, rows) == index->count &&
           value->count == rows->count + cols->count && epi_axes_count_in(value, rows) == rows->count;
}

/* The same of a value of this tile; and nothing but one output needs the result. */
static bool can_move(const planner *p, int node) {
    const epi_graph *g = p->g;
    epi_use_list uses = epi_graph_uses(g, node);
    return epi_update_fits(g, node, &p->plan->rows, &p->plan->cols) &&
           p->plan->placement[g->nodes[node].arg[2]].tile && uses.count == 1 &&
           uses.at[0].node == EPI_NO_NODE;
}

/* Sorts the values that depend on the product. */
static bool sort_dependents(planner *p) {
    const epi_graph *g = p->g;
    epi_plan *plan = p->plan;
    for (int i = plan->product; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        epi_placement *s = &plan->placement[i];
        if (!p->g->live[i])
            continue;
        if (i == plan->pair || is_summed(p, i)) {
            s->tile = true;
            continue;
        }
        for (int a = 0; a < epi_node_operands(n); a++) {
            const epi_placement *from = &plan->placement[n->arg[a]];
            s->after |= from->after || from->reduction > EPI_REDUCE_LOCAL;
            s->tile |= from->tile && from->reduction <= EPI_REDUCE_LOCAL;
        }
        if (s->tile && !s->after && can_move(p, i)) {
            s->tile = false;
            s->moved = true;
            continue;
        }
        epi_op_class cls = epi_ops[n->op].cls;
        bool moves =
            cls == EPI_CLASS_MOVE || cls == EPI_CLASS_SORT || cls == EPI_CLASS_SHIFT || cls == EPI_CLASS_SCAN;
        if ((s->tile || s->after) && moves)
            return epi_plan_refuse(p, "%s at line %d needs the whole product, but a tile holds a part of it",
                                   epi_ops[n->op].text, n->place.line);
        if (s->after) {
            s->tile = false;
            if (!check_complete(p, i))
                return false;
        } else if (s->tile) {
            if (epi_ops[n->op].cls == EPI_CLASS_SPLIT && !epi_plan_note_split(p, n))
                return false;
            if (epi_ops[n->op].cls == EPI_CLASS_REDUCE && !sort_reduction(p, n, s))
                return false;
        }
    }
    return true;
}

/* Is it a row of an input that the tile's group has, for all rows of the tile? */
static bool is_of_group(const planner *p, int node) {
    const epi_graph *g = p->g;
    return p->plan->group == EPI_GROUP_ROWS &&
           epi_gather_is_of_group(g, node, g->nodes[p->plan->product].arg[2]) &&
           g->nodes[g->nodes[node].arg[0]].op == EPI_OP_INPUT;
}

/* Can this value, which does not depend on the product, be computed on the tile? Notes parts. */
static bool tile_can_compute(planner *p, int node) {
    const epi_node *n = &p->g->nodes[node];
    epi_op_class cls = epi_ops[n->op].cls;
    if (cls == EPI_CLASS_MOVE)
        return is_of_group(p, node) && epi_plan_fits(p->plan, &n->axes);
    if (cls == EPI_CLASS_REDUCE || cls == EPI_CLASS_PRODUCT || cls == EPI_CLASS_SORT ||
        cls == EPI_CLASS_SHIFT || cls == EPI_CLASS_SCAN)
        return false;
    if (cls == EPI_CLASS_RANDOM) /* attention's tiles make those that have their shape */
        return p->plan->kind == EPI_KIND_ATTENTION && epi_plan_fits(p->plan, &n->axes) &&
               n->axes.count == p->plan->rows.count + p->plan->cols.count;
    if (cls == EPI_CLASS_SPLIT && !epi_plan_note_split(p, n))
        return false;
    if (cls == EPI_CLASS_LEAF)
        return true;
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE && !epi_plan_fits(p->plan, &p->g->nodes[n->arg[a]].axes))
            return false;
    return epi_plan_fits(p->plan, &n->axes);
}

void epi_plan_mark_before(const epi_graph *g, epi_placement *placement, int *pending, int root) {
    int count = 0;
    pending[count++] = root;
    while (count) {
        int node = pending[--count];
        if (placement[node].before || g->nodes[node].op == EPI_OP_INPUT)
            continue;
        placement[node].before = true;
        for (int a = 0; a < epi_node_operands(&g->nodes[node]); a++)
            pending[count++] = g->nodes[node].arg[a];
    }
}

static void mark_before(planner *p, int node) {
    epi_plan_mark_before(p->g, p->plan->placement, p->pending, node);
}

void epi_plan_mark_tile(planner *p, int root) {
    int count = 0;
    p->pending[count++] = root;
    while (count) {
        int node = p->pending[--count];
        const epi_node *n = &p->g->nodes[node];
        if (p->plan->placement[node].tile || epi_ops[n->op].cls == EPI_CLASS_LEAF)
            continue;
        if (!tile_can_compute(p, node)) {
            epi_plan_mark_before(p->g, p->plan->placement, p->pending + count, node);
            continue;
        }
        p->plan->placement[node].tile = true;
        for (int a = 2; a >= 0 && epi_ops[n->op].cls != EPI_CLASS_MOVE; a--)
            if (n->arg[a] != EPI_NO_NODE)
                p->pending[count++] = n->arg[a];
    }
}

bool epi_plan_knows(const epi_graph *g, const epi_placement *placement, bool inputs) {
    bool known = true;
    for (int i = 0; i < g->node_count && known; i++) {
        epi_op_class cls = epi_ops[g->nodes[i].op].cls;
        known = !placement[i].before || cls == EPI_CLASS_LEAF || cls == EPI_CLASS_MAP;
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && placement[i].before; a++)
            known &= inputs || g->nodes[g->nodes[i].arg[a]].op != EPI_OP_INPUT;
    }
    return known;
}

/* What the mainloop reads is in memory; what it reads through an index is nowhere. */
static bool read_operands(planner *p, int product) {
    int reads[EPI_PRODUCT_READS], count = epi_product_reads(p->g, product, reads);
    const epi_node *n = &p->g->nodes[product];
    for (int i = 0; i < count; i++)
        if (p->g->nodes[reads[i]].op != EPI_OP_INPUT)
            return epi_plan_refuse(p, "%s is an operand of a product: it must be in memory",
                                   epi_node_label(p->g, reads[i]).text);
    for (int a = 0; a < 2; a++)
        p->plan->placement[n->arg[a]].paged |=
            epi_grouped_reads(p->g, n, a) || epi_scaled_factor(p->g, n, a) != EPI_NO_NODE;
    for (int i = 0; i < product; i++)
        p->plan->placement[i].on_load |=
            p->g->live[i] && p->g->nodes[i].on_load && !p->plan->placement[i].paged;
    return true;
}

/* Places the values that do not depend on the product, from those that need them. */
static bool sort_others(planner *p) {
    const epi_graph *g = p->g;
    epi_plan *plan = p->plan;
    bool *depends = epi_arena_alloc(p->arena, (size_t)g->node_count * sizeof *depends);
    p->pending = epi_arena_alloc(p->arena, 2 * EPI_PLAN_PENDING(g) * sizeof *p->pending);
    if (!depends || !p->pending)
        return epi_plan_refuse(p, "out of memory");
    for (int i = 0; i < g->node_count; i++)
        depends[i] = plan->placement[i].tile || plan->placement[i].after;
    for (int i = 0; i < g->node_count; i++) {
        if (!depends[i])
            continue;
        bool product = epi_op_is_product(g->nodes[i].op);
        if (product && !read_operands(p, i))
            return false;
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && !product; a++) {
            int arg = g->nodes[i].arg[a];
            if (depends[arg])
                continue;
            if (plan->placement[i].after)
                mark_before(p, arg);
            else
                epi_plan_mark_tile(p, arg);
        }
    }
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int node = g->tensors[t].node;
        if (depends[node] || plan->placement[node].moved)
            continue;
        const epi_axes *axes = &g->nodes[node].axes;
        bool both = epi_axes_count_in(axes, &plan->rows) == plan->rows.count &&
                    epi_axes_count_in(axes, &plan->cols) == plan->cols.count;
        if (both && epi_ops[g->nodes[node].op].cls != EPI_CLASS_LEAF && !is_of_group(p, node))
            epi_plan_mark_tile(p, node);
        else
            mark_before(p, node);
    }
    for (int i = 0; i < g->node_count; i++) { /* whatever the tile touches must have its shape */
        const epi_placement *s = &plan->placement[i];
        if (!s->tile || s->reduction > EPI_REDUCE_LOCAL)
            continue;
        if (!epi_plan_fits(plan, &g->nodes[i].axes))
            return epi_plan_refuse(p, "%s does not have the shape of the product's tile",
                                   epi_node_label(g, i).text);
        for (int a = 0; a < 3 && !epi_op_is_product(g->nodes[i].op) && !is_of_group(p, i); a++) {
            int arg = g->nodes[i].arg[a];
            if (arg != EPI_NO_NODE && !epi_plan_fits(plan, &g->nodes[arg].axes))
                return epi_plan_refuse(p, "%s does not have the shape of the product's tile",
                                       epi_node_label(g, arg).text);
        }
    }
    return epi_plan_knows(g, plan->placement, true) ||
           epi_plan_refuse(p, "a value that the tile cannot compute must be in memory");
}

/* The part is the fastest digit of a column's number, so a group of columns can be whole only with it. */
bool epi_plan_check_local(planner *p) {
    const epi_plan *plan = p->plan;
    if (!plan->local_axes || plan->split == EPI_OP_COUNT)
        return true;
    int at = epi_axes_find_dim(&plan->cols, plan->fine.dim);
    return at >= plan->cols.count - plan->local_axes ||
           epi_plan_refuse(p, "a reduction inside the tile does not work with the halves of %s",
                           p->g->dims[plan->fine.dim]);
}

/* One operation on leaves, or a copy? */
static bool makes_one(const epi_graph *g) {
    const epi_node *n = &g->nodes[g->tensors[g->input_count].node];
    bool one = g->tensor_count == g->input_count + 1 && epi_ops[n->op].cls != EPI_CLASS_VIEW;
    for (int a = 0; a < epi_node_operands(n) && one; a++) {
        int from = a == 1 && epi_node_segments(g, n) == n->arg[1] ? g->nodes[n->arg[1]].arg[0] : n->arg[a];
        one = epi_ops[g->nodes[from].op].cls == EPI_CLASS_LEAF;
    }
    return one;
}

/* Is it made together with this order, or with the places of the largest elements, of a leaf? */
static bool comes_with(const epi_graph *g, int first, int node) {
    bool leaf = epi_ops[g->nodes[g->nodes[node].arg[0]].op].cls == EPI_CLASS_LEAF;
    if (node == first || g->nodes[first].op == EPI_OP_TOPK)
        return leaf && (node == first || (epi_is_largest(g, node) && g->nodes[node].arg[1] == first));
    return leaf && (epi_orders_alike(g, first, node) || epi_is_sorted(g, node));
}

/* Orders of an index that is a leaf, alike, and what is sorted by them; or places of the largest elements, and these:
 * each of them one output, or none? */
static bool makes_orders(const epi_graph *g) {
    int first = EPI_NO_NODE, made = 0;
    for (int i = 0; i < g->node_count; i++) {
        int outputs = 0;
        if (!g->live[i] || epi_ops[g->nodes[i].op].cls == EPI_CLASS_LEAF)
            continue;
        for (int t = g->input_count; t < g->tensor_count; t++)
            outputs += g->tensors[t].node == i;
        if (first == EPI_NO_NODE && (epi_op_orders(g->nodes[i].op) || g->nodes[i].op == EPI_OP_TOPK))
            first = i;
        if (first == EPI_NO_NODE || outputs > 1 || !comes_with(g, first, i))
            return false;
        made += outputs;
    }
    return made && made == g->tensor_count - g->input_count;
}

bool epi_plan_pass(const epi_graph *g, epi_plan *out) {
    int node = g->tensors[g->input_count].node;
    if (!makes_one(g) && !makes_orders(g))
        return false;
    out->fused = true;
    out->kind = EPI_KIND_PASS;
    out->product = node;
    out->flat = false;
    out->scan_count = 0;
    out->split = EPI_OP_COUNT;
    out->rows.count = out->cols.count = out->depth.count = 0;
    memset(out->placement, 0, (size_t)g->node_count * sizeof *out->placement);
    return true;
}

static bool try_side(planner *p, int row_arg, bool full_row) {
    p->full_row = full_row;
    p->plan->split = EPI_OP_COUNT;
    p->plan->local_axes = 0;
    memset(p->plan->placement, 0, (size_t)p->g->node_count * sizeof *p->plan->placement);
    shape_tile(p, row_arg);
    bool ok = sort_dependents(p) && sort_others(p) && epi_plan_check_local(p);
    p->plan->tried_local |= p->plan->local_axes > 0;
    return ok;
}

/* Are the two products a pair, neither made of the other? */
static bool find_pair(planner *p) {
    const epi_graph *g = p->g;
    int first = p->plan->product, shared;
    if (!epi_products_pair(g, first, p->plan->pair, &shared))
        return false;
    const epi_node *n = &g->nodes[first];
    for (int i = 0; i < n->axes.count; i++) /* of batches a tile has one product */
        if (epi_axes_find(&g->nodes[n->arg[0]].axes, n->axes.at[i]) >= 0 &&
            epi_axes_find(&g->nodes[n->arg[1]].axes, n->axes.at[i]) >= 0)
            return false;
    bool *behind = epi_arena_alloc(p->arena, (size_t)g->node_count + 1);
    if (!behind)
        return false; /* the arena tells */
    behind[p->plan->pair] = true;
    for (int i = p->plan->pair; i >= first; i--)
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && behind[i]; a++)
            behind[g->nodes[i].arg[a]] = true;
    return !behind[first];
}

bool epi_spec_has_empty(const epi_spec *spec) {
    const epi_graph *g = spec->graph;
    bool empty = false;
    for (int i = 0; i < g->node_count && !empty; i++)
        empty = g->live[i] && (epi_axes_size(&g->nodes[i].axes, spec->sizes) == 0 ||
                               epi_axes_size(&g->nodes[i].over, spec->sizes) == 0);
    return empty;
}

int epi_graph_operations(const epi_graph *g) {
    int count = 0;
    for (int i = 0; i < g->node_count; i++) {
        epi_op_class cls = epi_ops[g->nodes[i].op].cls;
        count += g->live[i] && cls != EPI_CLASS_LEAF && cls != EPI_CLASS_VIEW && !epi_segments_are_read(g, i);
    }
    return count;
}

/* Has it integers to compute, or positions to store, that f32 does not hold? */
static bool has_integers(const epi_graph *g) {
    bool has = false;
    for (int i = 0; i < g->node_count && !has; i++)
        has = g->live[i] && g->nodes[i].integer && epi_ops[g->nodes[i].op].cls != EPI_CLASS_LEAF;
    for (int t = g->input_count; t < g->tensor_count && !has; t++)
        has = g->nodes[g->tensors[t].node].integer;
    return has;
}

epi_status epi_plan_make(epi_arena *arena, const epi_spec *spec, epi_plan *out, epi_error *err) {
    const epi_graph *g = spec->graph;
    *out = (epi_plan){.product = EPI_NO_NODE,
                      .pair = EPI_NO_NODE,
                      .sum = EPI_NO_NODE,
                      .offsets = EPI_NO_NODE,
                      .row_index = EPI_NO_NODE,
                      .split = EPI_OP_COUNT,
                      .known_true = EPI_NO_NODE};
    out->placement = epi_arena_alloc(arena, ((size_t)g->node_count + 1) * sizeof *out->placement);
    EPI_TRY(epi_has_memory(out->placement, err));
    planner p = {.arena = arena, .g = g, .plan = out};
    int products = 0;
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_ops[g->nodes[i].op].cls == EPI_CLASS_VIEW) {
            epi_plan_refuse(&p,
                            g->nodes[i].op == EPI_OP_ONCE
                                ? "%s is compared with its own maximum or minimum: it must be in memory"
                                : "%s is used under two names of an axis: it must be in memory",
                            epi_node_label(g, g->nodes[i].arg[0]).text);
            return EPI_OK;
        }
    if (has_integers(g)) {
        epi_plan_refuse(&p, "an integer that f32 cannot hold is computed by a pass of its own");
        out->fused = epi_plan_pass(g, out);
        return EPI_OK;
    }
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_op_is_product(g->nodes[i].op) && products++ == 0)
            out->product = i;
        else if (g->live[i] && epi_op_is_product(g->nodes[i].op))
            out->pair = i;
    if (products > 1 && products <= EPI_ATTENTION_TERMS + 3 && epi_plan_attention(arena, spec, out))
        return EPI_OK;
    epi_product_sum sum = {out->product, {0}, 1};
    if (products > 1)
        sum = epi_products_sum(g, NULL, NULL, out->product);
    out->sum = sum.root;
    if (products > 1 && sum.count == products) { /* one tile adds them up */
        out->pair = EPI_NO_NODE;
        for (int i = 1; i < sum.count; i++)
            out->added[out->added_count++] = sum.products[i];
    } else if (products == 2 && find_pair(&p)) {
        out->sum = out->product;
    } else if (products > 1) {
        epi_plan_refuse(&p,
                        products == 2
                            ? "it has %d products; one kernel has one, or several that are added up, or two "
                              "with the same row operand"
                            : "it has %d products; one kernel has one, two, or several that are added up",
                        products);
        return EPI_OK;
    }
    /* Tiles and rows without an element store nothing, also of what has fewer axes than they have. */
    bool empty = !spec->open && epi_spec_has_empty(spec);
    if (empty)
        epi_plan_refuse(&p, "an axis has no elements");
    if (products == 0 && epi_plan_recurrence(arena, spec, out))
        return EPI_OK;
    if (products == 0) {
        out->kind = EPI_KIND_ROWS;
        out->fused = (!empty && epi_plan_rows(arena, spec, out)) || epi_plan_pass(g, out);
        return EPI_OK;
    }
    if (empty && epi_graph_operations(g) > 1)
        return EPI_OK;
    /* The columns are the side that the main output stores innermost; the other way round if the tile
       cannot hold that; and tiles that have all columns, if no others can. */
    const epi_node *n = &g->nodes[out->product];
    const epi_axes *order = epi_plan_main_output(g, &n->axes);
    int row_arg = 0;
    note_groups(out, g);
    bool of_rows = out->group == EPI_GROUP_ROWS; /* which are those of the first operand */
    for (int i = 0; i < order->count && !of_rows; i++) {
        bool in[2];
        for (int a = 0; a < 2; a++)
            in[a] = epi_axes_has_dim(&g->nodes[n->arg[a]].axes, order->at[i].dim);
        if (in[0] != in[1])
            row_arg = in[0];
    }
    if (n->scaled && !epi_scaled_has_blocks(spec, n, !row_arg, EPI_SCALED_SAME) &&
        epi_scaled_has_blocks(spec, n, row_arg, EPI_SCALED_SAME))
        row_arg = !row_arg;         /* the tile is turned */
    if (out->pair != EPI_NO_NODE) { /* the operand that both have is the one with the rows */
        int shared = EPI_NO_NODE;
        epi_products_pair(g, out->product, out->pair, &shared);
        out->fused = try_side(&p, n->arg[1] == shared, false);
        return EPI_OK;
    }
    out->fused = try_side(&p, row_arg, false);
    char reason[sizeof out->reason]; /* that of what was tried first */
    memcpy(reason, out->reason, sizeof reason);
    for (int i = 1; i < 4 && !out->fused; i++) /* the other side, then both with full rows */
        out->fused = (!of_rows || !(i & 1)) && try_side(&p, i & 1 ? !row_arg : row_arg, i >= 2);
    if (!out->fused)
        memcpy(out->reason, reason, sizeof reason);
    return EPI_OK;
}

/* plan.c: finds the product, and sorts every value into a stage: before the tile, on it, or after it. */
#include "pass/place/plan_internal.h"

#include <stdio.h>
#include <string.h>

#include "ir/index.h"
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

/* May the tile store the new elements of an update, of which nothing but one output needs the result? */
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
        if (i == plan->pair || epi_plan_is_summed(p, i)) {
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
        if ((s->tile || s->after) && epi_op_reads_elsewhere(n->op))
            return epi_plan_refuse(p, "%s at line %d needs the whole product, but a tile holds a part of it",
                                   epi_ops[n->op].text, n->place.line);
        if (s->after) {
            s->tile = false;
            if (!check_complete(p, i))
                return false;
        } else if (s->tile) {
            if (epi_op_has_halves(n->op) && !epi_plan_note_split(p, n))
                return false;
            if (epi_op_reduces(n->op) && !epi_plan_sort_reduction(p, n, s))
                return false;
        }
    }
    return true;
}

/* Is it a row of an input that the tile's group has, for all rows of the tile? */
static bool is_of_group(const planner *p, int node) {
    return p->plan->product != EPI_NO_NODE && epi_takes_of_group(p->g, p->plan->product, node) &&
           p->g->nodes[p->g->nodes[node].arg[0]].op == EPI_OP_INPUT;
}

/* Can this value, which does not depend on the product, be computed on the tile? Notes parts. */
static bool tile_can_compute(planner *p, int node) {
    const epi_node *n = &p->g->nodes[node];
    if (epi_op_by_index(n->op))
        return is_of_group(p, node) && epi_plan_fits(p->plan, &n->axes);
    if (epi_op_folds(n->op) || epi_op_reads_elsewhere(n->op))
        return false;
    if (epi_op_draws(n->op)) /* attention's tiles make those that have their shape */
        return p->plan->kind == EPI_KIND_ATTENTION && epi_plan_fits(p->plan, &n->axes) &&
               n->axes.count == p->plan->rows.count + p->plan->cols.count;
    if (epi_op_has_halves(n->op) && !epi_plan_note_split(p, n))
        return false;
    if (epi_op_is_leaf(n->op))
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
        if (p->plan->placement[node].tile || epi_op_is_leaf(n->op))
            continue;
        if (!tile_can_compute(p, node)) {
            epi_plan_mark_before(p->g, p->plan->placement, p->pending + count, node);
            continue;
        }
        p->plan->placement[node].tile = true;
        for (int a = 2; a >= 0 && !epi_op_by_index(n->op); a--)
            if (n->arg[a] != EPI_NO_NODE)
                p->pending[count++] = n->arg[a];
    }
}

bool epi_plan_knows(const epi_graph *g, const epi_placement *placement, bool inputs) {
    bool known = true;
    for (int i = 0; i < g->node_count && known; i++) {
        known = !placement[i].before || epi_op_is_leaf(g->nodes[i].op) || epi_op_is_map(g->nodes[i].op);
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
        if (both && !epi_op_is_leaf(g->nodes[node].op) && !is_of_group(p, node))
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
    bool one = g->tensor_count == g->input_count + 1 && !epi_op_is_view(n->op);
    for (int a = 0; a < epi_node_operands(n) && one; a++) {
        int from = a == 1 && epi_node_segments(g, n) == n->arg[1] ? g->nodes[n->arg[1]].arg[0] : n->arg[a];
        one = epi_op_is_leaf(g->nodes[from].op);
    }
    return one;
}

/* Is it made together with this order, or with the places of the largest elements, of a leaf? */
static bool comes_with(const epi_graph *g, int first, int node) {
    bool leaf = epi_op_is_leaf(g->nodes[g->nodes[node].arg[0]].op);
    if (node == first || g->nodes[first].op == EPI_OP_TOPK)
        return leaf && (node == first || (epi_is_largest(g, node) && g->nodes[node].arg[1] == first));
    return leaf && (epi_orders_alike(g, first, node) || epi_is_sorted(g, node));
}

/* Orders of an index that is a leaf, alike, and what is sorted by them; or places of the largest elements,
 * and these: each of them one output, or none? */
static bool makes_orders(const epi_graph *g) {
    int first = EPI_NO_NODE, made = 0;
    for (int i = 0; i < g->node_count; i++) {
        int outputs = 0;
        if (!g->live[i] || epi_op_is_leaf(g->nodes[i].op))
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
    epi_plan_shape_tile(p, row_arg);
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
        epi_op op = g->nodes[i].op;
        count += g->live[i] && !epi_op_is_leaf(op) && !epi_op_is_view(op) && !epi_segments_are_read(g, i);
    }
    return count;
}

/* Has it integers to compute, or positions to store, that f32 does not hold? */
static bool has_integers(const epi_graph *g) {
    bool has = false;
    for (int i = 0; i < g->node_count && !has; i++)
        has = g->live[i] && g->nodes[i].integer && !epi_op_is_leaf(g->nodes[i].op);
    for (int t = g->input_count; t < g->tensor_count && !has; t++)
        has = g->nodes[g->tensors[t].node].integer;
    return has;
}

/* A value that is used under two names must be in memory. */
static bool has_view(planner *p) {
    const epi_graph *g = p->g;
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_op_is_view(g->nodes[i].op)) {
            epi_plan_refuse(p,
                            g->nodes[i].op == EPI_OP_ONCE
                                ? "%s is compared with its own maximum or minimum: it must be in memory"
                                : "%s is used under two names of an axis: it must be in memory",
                            epi_node_label(g, g->nodes[i].arg[0]).text);
            return true;
        }
    return false;
}

/* Notes the first product and the last one; returns how many there are. */
static int find_products(const epi_graph *g, epi_plan *out) {
    int products = 0;
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_op_is_product(g->nodes[i].op) && products++ == 0)
            out->product = i;
        else if (g->live[i] && epi_op_is_product(g->nodes[i].op))
            out->pair = i;
    return products;
}

/* Products that one tile adds up, or two that share it; false: there are others. */
static bool take_products(planner *p, int products) {
    epi_plan *out = p->plan;
    epi_product_sum sum = {out->product, {0}, 1};
    if (products > 1)
        sum = epi_products_sum(p->g, NULL, NULL, out->product);
    out->sum = sum.root;
    if (products > 1 && sum.count == products) { /* one tile adds them up */
        out->pair = EPI_NO_NODE;
        for (int i = 1; i < sum.count; i++)
            out->added[out->added_count++] = sum.products[i];
    } else if (products == 2 && find_pair(p)) {
        out->sum = out->product;
    } else if (products > 1) {
        return epi_plan_refuse(
            p,
            products == 2 ? "it has %d products; one kernel has one, or several that are added up, or two "
                            "with the same row operand"
                          : "it has %d products; one kernel has one, two, or several that are added up",
            products);
    }
    return true;
}

/* The operand whose axes are rows. The columns are the side that the main output stores innermost. */
static int choose_rows(const epi_graph *g, const epi_spec *spec, const epi_plan *plan) {
    const epi_node *n = &g->nodes[plan->product];
    const epi_axes *order = epi_main_output(g, &n->axes);
    int row_arg = 0;
    for (int i = 0; i < order->count && plan->group != EPI_GROUP_ROWS; i++) { /* else the first operand's */
        bool in[2];
        for (int a = 0; a < 2; a++)
            in[a] = epi_axes_has_dim(&g->nodes[n->arg[a]].axes, order->at[i].dim);
        if (in[0] != in[1])
            row_arg = in[0];
    }
    bool turned = n->scaled && !epi_scaled_has_blocks(spec, n, !row_arg, EPI_SCALED_SAME) &&
                  epi_scaled_has_blocks(spec, n, row_arg, EPI_SCALED_SAME);
    return turned ? !row_arg : row_arg;
}

/* With these rows; the other way round if the tile cannot hold that; and tiles that have all columns, if no
 * others can. */
static void try_sides(planner *p, int row_arg) {
    const epi_graph *g = p->g;
    epi_plan *out = p->plan;
    if (out->pair != EPI_NO_NODE) { /* the operand that both have is the one with the rows */
        int shared = EPI_NO_NODE;
        epi_products_pair(g, out->product, out->pair, &shared);
        out->fused = try_side(p, g->nodes[out->product].arg[1] == shared, false);
        return;
    }
    bool of_rows = out->group == EPI_GROUP_ROWS;
    out->fused = try_side(p, row_arg, false);
    char reason[sizeof out->reason]; /* that of what was tried first */
    memcpy(reason, out->reason, sizeof reason);
    for (int i = 1; i < 4 && !out->fused; i++) /* the other side, then both with full rows */
        out->fused = (!of_rows || !(i & 1)) && try_side(p, i & 1 ? !row_arg : row_arg, i >= 2);
    if (!out->fused)
        memcpy(out->reason, reason, sizeof reason);
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
    if (has_view(&p))
        return EPI_OK;
    if (has_integers(g)) {
        epi_plan_refuse(&p, "an integer that f32 cannot hold is computed by a pass of its own");
        out->fused = epi_plan_pass(g, out);
        return EPI_OK;
    }
    int products = find_products(g, out);
    if (products > 1 && products <= EPI_ATTENTION_TERMS + 3 && epi_plan_attention(arena, spec, out))
        return EPI_OK;
    if (!take_products(&p, products))
        return EPI_OK;
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
    epi_plan_note_groups(out, g);
    try_sides(&p, choose_rows(g, spec, out));
    return EPI_OK;
}

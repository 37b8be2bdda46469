/* plan_attention.c: the plan of a program that is one attention kernel.
 *
 * Its products are score products and value products (attention.c). The operands of every other value decide
 * its place:
 *     score products alone          an element of the score tile
 *     a reduction of such elements  cross-tile: one number per row
 *     a value product               on that product's tile of rows and columns
 *     what these alone make         rows: on the tile of whatever takes it, the first by itself
 *     none of these                 wherever it is used */
#include <string.h>

#include "pass/place/plan_internal.h"

enum { SCORE, OUT }; /* the first of the children */

typedef struct attention_planner {
    epi_planner kernel, child[1 + 2]; /* of the score tile, then of the value products */
    int child_count;
    epi_attention *a;
    bool *inner;        /* by node: an element of the score tile that is made of score products */
    bool *reduced;      /* by node: made of reductions of the score tile */
    signed char *value; /* by node: which value product it is made of, or -1 */
} attention_planner;

static bool refuse(attention_planner *p, const char *why, int node) {
    return epi_plan_refuse(&p->kernel, why, epi_node_label(p->kernel.g, node).text);
}

static epi_plan *add_child(attention_planner *p, int product, const epi_axes *cols) {
    const epi_graph *g = p->kernel.g;
    epi_plan *plan = epi_arena_alloc(p->kernel.arena, sizeof *plan);
    if (!plan)
        return NULL;
    *plan = (epi_plan){.fused = true,
                       .kind = p->kernel.plan->kind,
                       .product = product,
                       .sum = product,
                       .pair = EPI_NO_NODE,
                       .rows = p->kernel.plan->rows,
                       .batch_axes = p->kernel.plan->batch_axes,
                       .cols = *cols,
                       .depth = g->nodes[product].over,
                       .split = EPI_OP_COUNT,
                       .known_true = EPI_NO_NODE};
    plan->placement = epi_arena_alloc(p->kernel.arena, ((size_t)g->node_count + 1) * sizeof *plan->placement);
    p->child[p->child_count] = p->kernel;
    p->child[p->child_count++].plan = plan;
    return plan->placement ? plan : NULL;
}

/* ---- which products ---- */

/* Sorts the products into scores and values; false: some are neither. */
static bool find_products(attention_planner *p, const epi_spec *spec) {
    const epi_graph *g = p->kernel.g;
    epi_attentions found;
    int products = 0;
    if (!epi_attentions_find(p->kernel.arena, spec, NULL, NULL, &found) ||
        !epi_attentions_join(p->kernel.arena, g, NULL, true, &found) || found.count != 1)
        return false;
    *p->a = found.at[0];
    for (int i = 0; i < g->node_count; i++)
        products += g->live[i] && g->nodes[i].op == EPI_OP_MATMUL;
    if (products != p->a->sum_count + p->a->term_count)
        return false;
    for (int i = 0; i < p->a->inner.count; i++)
        p->inner[p->a->inner.at[i]] = true;
    p->kernel.plan->rows = p->a->rows;
    p->kernel.plan->batch_axes = p->a->batch_axes;
    return true;
}

/* ---- dependents ---- */

/* A value that is made of a value product, or of a reduction of the score tile. */
static bool place_output(attention_planner *p, int node) {
    const epi_graph *g = p->kernel.g;
    const epi_node *n = &g->nodes[node];
    int v = p->value[node] < 0 ? 0 : p->value[node];
    epi_planner *out = &p->child[OUT + v];
    epi_placement *s = &out->plan->placement[node];
    if (epi_op_reduces(n->op)) {
        if (epi_axes_count_in(&n->over, &out->plan->cols) < n->over.count ||
            epi_axes_count_in(&g->nodes[n->arg[0]].axes, &out->plan->cols) != out->plan->cols.count)
            return refuse(p, "%s is a reduction over more than a head", node);
        s->reduction = EPI_REDUCE_LOCAL;
        if (!epi_plan_make_local(out, &n->over))
            return refuse(p, "%s and another reduction over a head remove different axes", node);
    } else if (epi_op_has_halves(n->op)) {
        if (!epi_plan_note_split(out, n))
            return refuse(p, "%s splits an axis that a head cannot split", node);
    } else if (!epi_op_is_map(n->op)) {
        return refuse(p, "%s is not elementwise in the values of attention", node);
    }
    s->tile = true;
    for (int other = 1; other < epi_attention_outs(p->a) && p->value[node] < 0; other++)
        p->child[OUT + other].plan->placement[node].tile = true;
    return true;
}

/* A value that an element of the score tile is an operand of. */
static bool place_reduction(attention_planner *p, int node) {
    const epi_attention *a = p->a;
    if (!epi_attention_reduces(p->kernel.g, a, node) || p->kernel.g->nodes[node].op == EPI_OP_VAR)
        return refuse(p, "%s needs scores, which are on chip one tile at a time", node);
    if (a->row_max != EPI_NO_NODE && node != a->row_max && node != a->denominator)
        return refuse(p, "%s is a reduction besides an online softmax", node);
    p->child[SCORE].plan->placement[node].reduction = EPI_REDUCE_ROWS;
    p->reduced[node] = true;
    return true;
}

static bool place_dependent(attention_planner *p, int node) {
    const epi_node *n = &p->kernel.g->nodes[node];
    bool of_scores = false;
    for (int k = 0; k < epi_node_operands(n); k++) {
        int arg = n->arg[k];
        of_scores |= p->inner[arg];
        p->reduced[node] |= p->reduced[arg];
        if (p->value[arg] >= 0 && p->value[node] >= 0 && p->value[arg] != p->value[node])
            return refuse(p, "%s is computed from both value products", node);
        if (p->value[arg] >= 0)
            p->value[node] = p->value[arg];
    }
    if (of_scores)
        return place_reduction(p, node);
    if (p->value[node] >= 0 && p->a->sums[p->value[node]].over == EPI_OVER_ROWS)
        return refuse(p, "%s is computed from a sum over the rows", node);
    return (p->value[node] < 0 && !p->reduced[node]) || place_output(p, node);
}

/* Is it complete only after the stream: reductions of the score tile, or what a value product's tile makes? */
static bool is_after(const attention_planner *p, int node) {
    return node != EPI_NO_NODE && (p->reduced[node] || p->value[node] >= 0);
}

/* Online, the exponential alone waits for what left; else no element does, and no operand of a product. */
static bool check_elements(attention_planner *p) {
    const epi_graph *g = p->kernel.g;
    const epi_attention *a = p->a;
    int exp = a->numerator, below = a->row_max == EPI_NO_NODE ? EPI_NO_NODE : g->nodes[exp].arg[0];
    for (int i = 0; i < g->node_count; i++) {
        for (int k = 0; k < 3 && g->live[i] && (p->inner[i] || epi_attention_is_value(a, i)) && i != below;
             k++)
            if (is_after(p, g->nodes[i].arg[k]))
                return refuse(p, "%s needs a whole row of scores", i);
        epi_use_list uses = epi_graph_uses(g, i);
        for (int u = 0; u < uses.count && p->inner[i]; u++) {
            int user = uses.at[u].node;
            if (user == EPI_NO_NODE)
                return refuse(p, "%s is an output computed from scores, which are on chip one tile at a time",
                              i);
            if (below == EPI_NO_NODE || epi_attention_is_value(a, user) || !p->inner[i])
                continue;
            if ((i == exp && user != a->denominator && user != a->sums[0].weight) ||
                (i == below && user != exp))
                return refuse(p, "%s is needed outside its sums", i);
        }
    }
    return true;
}

static void place_value(attention_planner *p, int node) {
    int v = 0;
    while (p->a->sums[v].product != node)
        v++;
    bool rows = p->a->sums[v].over == EPI_OVER_ROWS;
    epi_placement *placement = (rows ? &p->kernel : &p->child[OUT + v])->plan->placement;
    p->value[node] = (signed char)v;
    placement[node].tile = true;
    if (rows)
        epi_plan_mark_before(p->kernel.g, placement, p->kernel.pending, p->a->sums[v].operand);
}

static bool place_dependents(attention_planner *p) {
    const epi_graph *g = p->kernel.g;
    for (int i = 0; i < g->node_count; i++) {
        if (!g->live[i])
            continue;
        if (epi_attention_is_value(p->a, i))
            place_value(p, i);
        else if (p->inner[i])
            p->child[SCORE].plan->placement[i].tile = true;
        else if (!place_dependent(p, i))
            return false;
    }
    return check_elements(p);
}

/* ---- all others, from those that need them ---- */

/* What the products and the values on a tile are made of, which is made of none of them. */
static void place_operands(attention_planner *p, epi_planner *on, int node) {
    const epi_graph *g = p->kernel.g;
    for (int k = 0; k < epi_node_operands(&g->nodes[node]); k++) {
        int arg = g->nodes[node].arg[k];
        if (p->inner[arg] || is_after(p, arg))
            continue;
        if (g->nodes[node].op == EPI_OP_MATMUL) {
            int loaded = epi_attention_loaded(g, arg);
            p->kernel.plan->placement[arg].on_load = loaded != arg;
            epi_plan_mark_before(g, on->plan->placement, p->kernel.pending, loaded);
        } else
            epi_plan_mark_tile(on, arg);
    }
}

static void place_others(attention_planner *p) {
    const epi_graph *g = p->kernel.g;
    for (int i = 0; i < g->node_count; i++)
        for (int c = 0; c < p->child_count; c++)
            if (p->inner[i] ? c == SCORE : p->child[c].plan->placement[i].tile && is_after(p, i))
                place_operands(p, &p->child[c], i);
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (!p->inner[g->tensors[t].node] && !is_after(p, g->tensors[t].node))
            epi_plan_mark_before(g, p->kernel.plan->placement, p->kernel.pending, g->tensors[t].node);
}

/* Whatever a tile touches must have its shape. */
static bool check_shapes(attention_planner *p, const epi_plan *plan) {
    const epi_graph *g = p->kernel.g;
    for (int i = 0; i < g->node_count; i++)
        for (int k = -1; k < 3 && plan->placement[i].tile; k++) {
            int node = k < 0 ? i : g->nodes[i].arg[k];
            if (node == EPI_NO_NODE || (k >= 0 && g->nodes[i].op == EPI_OP_MATMUL))
                continue;
            if (!epi_plan_fits(plan, &g->nodes[node].axes))
                return refuse(p, "%s does not have the shape of an attention's tile", node);
        }
    return true;
}

/* The placement of the kernel, of all children's. What is read through its index is in memory nowhere. */
static bool gather(attention_planner *p) {
    const epi_graph *g = p->kernel.g;
    for (int i = 0; i < g->node_count; i++) {
        epi_placement *s = &p->kernel.plan->placement[i];
        for (int c = 0; c < p->child_count; c++) {
            const epi_placement *of = &p->child[c].plan->placement[i];
            s->tile |= of->tile;
            s->before |= of->before;
            s->reduction = s->reduction ? s->reduction : of->reduction;
        }
        s->paged = s->before && epi_attention_is_paged(g, p->a, i);
        s->before &= !s->paged;
        for (int c = 0; c < p->child_count && (s->before || s->paged); c++)
            p->child[c].plan->placement[i].tile = false;
    }
    return epi_plan_knows(g, p->kernel.plan->placement, false);
}

static bool find_mask(attention_planner *p) {
    const epi_graph *g = p->kernel.g;
    epi_attention *a = p->a;
    unsigned char *scratch = epi_arena_alloc(p->kernel.arena, (size_t)g->node_count + 1);
    bool complete = false;
    if (!scratch)
        return false;
    epi_attention_bound(g, a, p->inner, &complete, scratch);
    if (!complete)
        return true;
    a->open_plan = epi_arena_alloc(p->kernel.arena, sizeof *a->open_plan);
    if (a->open_plan) {
        *a->open_plan = *a->score_plan;
        a->open_plan->known_true = a->condition;
    }
    return a->open_plan != NULL;
}

static bool make_children(attention_planner *p) {
    epi_attention *a = p->a;
    a->score_plan = add_child(p, a->scores[0], &a->stream);
    if (!a->score_plan)
        return false;
    if (a->score_count == 2)
        a->score_plan->pair = a->scores[1];
    const epi_node *n = &p->kernel.g->nodes[a->terms[0].product];
    a->score_plan->depth = n->over;
    a->score_plan->row_arg = n->arg[1] == a->terms[0].rows;
    for (int v = 0; v < epi_attention_outs(a); v++) {
        epi_attention_sum *sum = &a->sums[v];
        n = &p->kernel.g->nodes[sum->product];
        sum->plan = add_child(p, sum->product, &sum->cols);
        if (!sum->plan)
            return false;
        epi_axes_sort(&sum->plan->cols, epi_main_output(p->kernel.g, &n->axes));
        sum->plan->row_arg = n->arg[1] == sum->weight;
    }
    return true;
}

bool epi_plan_attention(epi_arena *arena, const epi_spec *spec, epi_plan *out) {
    const epi_graph *g = spec->graph;
    size_t nodes = (size_t)g->node_count + 1;
    attention_planner p = {.kernel = {.arena = arena, .g = g, .plan = out},
                           .a = epi_arena_alloc(arena, sizeof *p.a),
                           .inner = epi_arena_alloc(arena, nodes),
                           .reduced = epi_arena_alloc(arena, nodes),
                           .value = epi_arena_alloc(arena, nodes)};
    p.kernel.pending = epi_arena_alloc(arena, 2 * EPI_PLAN_PENDING(g) * sizeof *p.kernel.pending);
    if (!p.a || !p.inner || !p.reduced || !p.value || !p.kernel.pending || !find_products(&p, spec))
        return false;
    memset(p.value, -1, nodes);
    epi_kind other = out->kind;
    out->kind = EPI_KIND_ATTENTION;
    bool fused = make_children(&p) && place_dependents(&p);
    if (fused) {
        place_others(&p);
        if (p.a->score_plan->split != EPI_OP_COUNT)
            fused = refuse(&p, "%s is split along the scores", p.a->sums[0].weight);
        fused = fused && check_shapes(&p, p.a->score_plan) && find_mask(&p);
    }
    for (int v = 0; v < epi_attention_outs(p.a) && fused; v++)
        fused = check_shapes(&p, p.a->sums[v].plan) && epi_plan_check_local(&p.child[OUT + v]);
    fused = fused && (gather(&p) || refuse(&p, "not all operands of %s are in memory", p.a->sums[0].product));
    if (!fused) {
        memset(out->placement, 0, nodes * sizeof *out->placement);
        out->rows = (epi_axes){0};
        out->batch_axes = 0;
        out->kind = other;
        return false;
    }
    out->fused = true;
    out->attention = p.a;
    out->product = p.a->sums[0].product;
    out->pair = EPI_NO_NODE;
    out->row_arg = p.a->sums[0].plan->row_arg;
    out->cols = p.a->sums[0].plan->cols;
    out->depth = p.a->score_plan->depth;
    for (int v = 0; v < epi_attention_outs(p.a); v++)
        p.a->sums[v].cols = p.a->sums[v].plan->cols;
    return true;
}

bool epi_attention_stores(const epi_plan *plan, int v, bool rows, int node) {
    const epi_attention *a = plan->attention;
    bool own = a->sums[v].plan->placement[node].tile, others = false;
    for (int i = 0; i < epi_attention_outs(a); i++)
        others |= i != v && a->sums[i].plan->placement[node].tile;
    return own && (rows || !others) && plan->placement[node].reduction <= EPI_REDUCE_LOCAL;
}

/* cut_spill.c: a product spills its tile to the rows after it.
 *
 * If a value of a product's tile needs a statistic of whole rows, as the gradient of a norm does, rows
 * follow the product and load what it stored. Then the statistic need not be stored as partials, which
 * another launch would fold. The rows have whole rows at hand, so they can also compute what else needs the
 * tile and the tensors that both would load: sums down the rows, and the normalised rows. So the product's
 * part stores one value of its tile, it *spills* it, and the rows compute everything that follows from that
 * value.
 *
 * The value is the last one of the tile that every path from the product to its outputs goes through. Each
 * such product is tried: the program is placed again with the value spilled, and that stays if it costs
 * less. In long programs all are tried at once, so that the time grows only with the program. */
#include "pass/place/placer.h"

/* Rows walk over a row once for the statistics and once more with them: it must stay near the core. */
enum { LONGEST_ROW = 16384, TRIED_ALONE = 8 };

/* Is it a reduction of part q's tile that is folded after it? Then it is one along the rows, or down them. */
static bool is_folded(const epi_placer *s, int q, int node, bool *along) {
    const epi_node *n = &s->g->nodes[node];
    *along = epi_axes_count_in(&n->over, &s->parts[q].cols) > 0;
    return s->placement[node].kind == EPI_PLACED_AFTER && epi_op_reduces(n->op);
}

/* Bytes of partials, stored and loaded, for each element that a product's tile reduces: an f32 of 64. */
static const double PARTIAL_BYTES = 2 * 4.0 / 64;

/* What a load is of: a value that is made once is loaded beside the value as it was made, or instead. */
static int loaded_value(const epi_graph *g, int node) {
    return g->nodes[node].op == EPI_OP_ONCE ? g->nodes[node].arg[0] : node;
}

/* Is it loaded for another of these, which are in the order of nodes? */
static bool is_loaded_before(const epi_graph *g, const epi_node_list *loads, int at) {
    int value = loaded_value(g, loads->at[at]), i = at;
    while (i && loads->at[i] > value)
        i--;
    return i < at && loads->at[i] == value;
}

/* What the parts cost: what they load and store, partials among it, and a launch for each of them. What
 * launches of partials cost counts for nothing here: at the nominal number of rows it would be worth a tile
 * more. */
static double cost_of(const epi_placer *s, const epi_part_values *values) {
    epi_cost cost = {0};
    for (int q = 0; q < s->part_count; q++) {
        const epi_placer_part *p = &s->parts[q];
        double tile = (double)epi_axes_size(&p->rows, s->sizes) * (double)epi_axes_size(&p->cols, s->sizes);
        bool stores = false, along;
        for (int i = 0; i < values[q].loads.count; i++)
            if (!is_loaded_before(s->g, &values[q].loads, i))
                cost.bytes += epi_placer_bytes(s, values[q].loads.at[i]);
        for (int i = 0; i < values[q].own.count; i++) {
            int node = values[q].own.at[i];
            if (p->kind == EPI_KIND_GEMM && is_folded(s, q, node, &along))
                cost.bytes += tile * PARTIAL_BYTES;
            stores |= s->forced[node];
            cost.bytes += s->forced[node] ? epi_placer_bytes(s, node) : 0;
        }
        cost.launches += stores;
    }
    return epi_cost_sum(cost);
}

static bool is_on_tile(const epi_placer *s, int q, int node) {
    return node != EPI_NO_NODE && s->placement[node].kind == EPI_PLACED_TILE && s->placement[node].part == q;
}

/* The last value that all ways to a and to b go through. */
static int common(const int *through, int a, int b) {
    while (a != b)
        *(a > b ? &a : &b) = through[a > b ? a : b];
    return a;
}

/* The value that product part q could spill, or EPI_NO_NODE. through[] by node: the last value that all
 * ways from the product to it go through. */
static int find_spill(const epi_placer *s, const epi_part_values *values, int q, int *through) {
    const epi_graph *g = s->g;
    const epi_placer_part *p = &s->parts[q];
    const epi_node_list *own = &values[q].own;
    bool statistic = false, rows = false;
    int root = p->product, spilled = EPI_NO_NODE;
    if (p->kind != EPI_KIND_GEMM || p->pair != EPI_NO_NODE || epi_axes_size(&p->cols, s->sizes) > LONGEST_ROW)
        return EPI_NO_NODE;
    if (s->sum[root] != EPI_NO_NODE)
        root = s->sum[root];
    for (int i = 0; i < own->count; i++) {
        int node = own->at[i], at = node == root ? root : EPI_NO_NODE;
        for (int a = 0; a < 3 && node > root; a++) {
            int arg = g->nodes[node].arg[a];
            if (is_on_tile(s, q, arg) && arg >= root && through[arg] != EPI_NO_NODE)
                at = at == EPI_NO_NODE ? arg : common(through, at, arg);
        }
        through[node] = at;
        bool along;
        if (at == EPI_NO_NODE || !is_folded(s, q, node, &along))
            continue;
        statistic |= along;
        spilled = spilled == EPI_NO_NODE ? at : common(through, spilled, at);
    }
    for (int r = q + 1; r < s->part_count && statistic && spilled != EPI_NO_NODE; r++) {
        const epi_placer_part *later = &s->parts[r];
        if (later->kind != EPI_KIND_ROWS || !epi_axes_same_set(&later->rows, &p->rows) ||
            !epi_axes_same_set(&later->cols, &p->cols))
            continue;
        for (int i = 0; i < values[r].loads.count; i++) {
            int node = loaded_value(g, values[r].loads.at[i]);
            if (!is_on_tile(s, q, node) || node < root || through[node] == EPI_NO_NODE)
                continue;
            spilled = common(through, spilled, node);
            rows = true;
        }
    }
    while (rows && spilled != root && !epi_axes_same_set(&g->nodes[spilled].axes, &g->nodes[root].axes))
        spilled = through[spilled];
    return rows ? spilled : EPI_NO_NODE;
}

/* Places the program with these values spilled; *cost is what it was, and becomes less where that is taken.
 */
static epi_status try_spill(epi_arena *arena, epi_placer *s, epi_part_values **values, const int *spills,
                            double *cost, bool *taken, epi_error *err) {
    epi_placer trial;
    epi_status status = epi_placer_make(arena, s->spec, s->limits, s->without, spills, &trial, err);
    epi_part_values *found = status == EPI_OK ? epi_placer_loads(arena, &trial) : NULL;
    if (status == EPI_OK && arena->failed)
        status = epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    double less = found && status == EPI_OK ? cost_of(&trial, found) : *cost;
    *taken = less < *cost;
    if (!*taken)
        return status;
    *s = trial;
    *values = found;
    *cost = less;
    return EPI_OK;
}

epi_status epi_placer_spill(epi_arena *arena, epi_placer *s, epi_part_values **values, epi_error *err) {
    const epi_graph *g = s->g;
    size_t nodes = (size_t)g->node_count + 1;
    int *found = epi_arena_alloc(arena, nodes * sizeof *found), count = 0;
    int *spills = epi_arena_alloc(arena, nodes * sizeof *spills);
    int *through = epi_arena_alloc(arena, nodes * sizeof *through);
    EPI_TRY(epi_has_memory(found && spills && through, err));
    for (int i = 0; i < g->node_count; i++)
        found[i] = spills[i] = EPI_NO_NODE;
    for (int q = 0; q < s->part_count; q++) {
        int spilled = find_spill(s, *values, q, through);
        if (spilled != EPI_NO_NODE) {
            found[s->parts[q].product] = spilled;
            count++;
        }
    }
    double cost = count ? cost_of(s, *values) : 0;
    bool taken;
    epi_status status = EPI_OK;
    if (count > TRIED_ALONE)
        return try_spill(arena, s, values, found, &cost, &taken, err);
    for (int i = 0; i < g->node_count && status == EPI_OK; i++) {
        if (found[i] == EPI_NO_NODE)
            continue;
        spills[i] = found[i];
        status = try_spill(arena, s, values, spills, &cost, &taken, err);
        if (!taken)
            spills[i] = EPI_NO_NODE;
    }
    return status;
}

/* cost.c: the cost of a cut, and the sizes that it is computed with. */
#include "pass/analyse/cost.h"

#include "pass/place/cut.h"

void epi_nominal_sizes(const epi_spec *spec, int64_t *sizes) {
    for (int d = 0; d < spec->graph->dim_count; d++)
        sizes[d] = spec->is_row[d] ? EPI_NOMINAL_SIZE : spec->sizes[d];
}

double epi_cost_bytes(const epi_axes *axes, const int64_t *sizes, epi_dtype type) {
    return (double)epi_max64(0, epi_axes_size(axes, sizes)) * (double)epi_dtype_size(type);
}

bool epi_cost_is_less(double cost, double than) {
    return cost < 0.999 * than || cost < than - EPI_LAUNCH_BYTES;
}

static double count_of(const epi_axes *axes, const int64_t *sizes) {
    return (double)epi_max64(0, epi_axes_size(axes, sizes));
}

double epi_cost_flops(const epi_graph *g, const epi_node *product, const int64_t *sizes) {
    epi_axes made = product->axes;
    if (product->op == EPI_OP_GROUPED) /* a position is in one group */
        made = epi_axes_without(&made, &(epi_axes){1, {epi_grouped_axis(g, product)}});
    return 2 * count_of(&made, sizes) * count_of(&product->over, sizes);
}

static double kernel_cost(const epi_graph *g, const epi_dtype *types, const int64_t *sizes) {
    epi_cost cost = {.launches = 1};
    for (int t = 0; t < g->tensor_count; t++)
        cost.bytes += epi_cost_bytes(&g->tensors[t].axes, sizes, types[t]);
    for (int i = 0; i < g->node_count; i++)
        if (g->live[i] && epi_op_is_product(g->nodes[i].op))
            cost.flops += epi_cost_flops(g, &g->nodes[i], sizes);
    return epi_cost_sum(cost);
}

double epi_cut_cost(const epi_spec *spec, const epi_cut *cut) {
    int64_t sizes[EPI_MAX_DIMS];
    double cost = 0;
    epi_nominal_sizes(spec, sizes);
    for (int i = cut->prepared_parts; i < cut->part_count; i++)
        cost += kernel_cost(&cut->parts[i].graph, cut->parts[i].types, sizes);
    return cost;
}

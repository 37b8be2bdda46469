/* cost.c: the cost of a cut, and the sizes that it is computed with. */
#include "pass/analyse/cost.h"

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

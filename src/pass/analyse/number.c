/* number.c: computes numbers that depend only on constants and sizes. */
#include "pass/analyse/number.h"

enum { DEEPEST = 16 }; /* maps one after the other: recursion ends, however long a program is */

static bool is_known(const epi_spec *spec, int node, bool of_rows, int depth, double *value) {
    const epi_node *n = &spec->graph->nodes[node];
    double of[3] = {0};
    if (n->op == EPI_OP_CONST) {
        *value = n->value;
        return true;
    }
    if (n->op == EPI_OP_SIZE) {
        int dim = n->over.at[0].dim;
        *value = (double)epi_axis_size(n->over.at[0], spec->sizes);
        return !spec->is_open[dim] && (of_rows || !spec->is_row[dim]);
    }
    bool known = depth < DEEPEST && epi_ops[n->op].cls == EPI_CLASS_MAP && !n->axes.count && !n->has_stored;
    for (int a = 0; a < epi_node_operands(n) && known; a++)
        known = is_known(spec, n->arg[a], of_rows, depth + 1, &of[a]);
    if (known)
        *value = epi_op_reference(n->op, of[0], of[1], of[2]);
    return known;
}

bool epi_number_known(const epi_spec *spec, int node, bool of_rows, double *value) {
    return is_known(spec, node, of_rows, 0, value);
}

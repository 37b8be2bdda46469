/* number.c: computes numbers that depend only on constants and sizes. */
#include "pass/analyse/number.h"

#include <math.h>

enum { DEEPEST = 16 }; /* maps one after the other: recursion ends, however long a program is */

/* What is asked of a number. */
typedef struct question {
    const epi_spec *spec;
    bool of_rows; /* may it be the size of rows? */
    bool exact;   /* must a kernel make this very number? */
} question;

static bool is_whole(double x) {
    return fabs(x) <= 0x1p53 && x == rint(x);
}

/* Does a kernel have this very number? f32 has it, or it is an integer made of integers. */
static bool is_held(double x, bool of_integers) {
    return (double)(float)x == x || (of_integers && is_whole(x));
}

static bool find_size(const question *q, epi_axis axis, double *value) {
    *value = (double)epi_axis_size(axis, q->spec->sizes);
    return !q->spec->is_open[axis.dim] && (q->of_rows || !q->spec->is_row[axis.dim]);
}

static bool find_number(const question *q, int node, int depth, double *value) {
    const epi_node *n = &q->spec->graph->nodes[node];
    double of[3] = {0};
    *value = n->value;
    if (n->op == EPI_OP_CONST)
        return !q->exact || is_held(*value, true);
    if (n->op == EPI_OP_SIZE)
        return find_size(q, n->over.at[0], value);
    bool known = depth < DEEPEST && epi_op_is_map(n->op) && !n->axes.count && !n->has_stored;
    bool integers = n->op != EPI_OP_DIV;
    for (int a = 0; a < epi_node_operands(n) && known; a++) {
        known = find_number(q, n->arg[a], depth + 1, &of[a]);
        integers &= is_whole(of[a]);
    }
    if (known)
        *value = epi_op_reference(n->op, of[0], of[1], of[2]);
    if (integers && fabs(*value) > 0x1p53) /* an integer has more digits than this, and may wrap around */
        return false;
    return known && (!q->exact || (!epi_ops[n->op].expensive && is_held(*value, integers)));
}

bool epi_number_known(const epi_spec *spec, int node, bool of_rows, double *value) {
    return find_number(&(question){spec, of_rows, false}, node, 0, value);
}

bool epi_index_known(const epi_spec *spec, int node, bool of_rows, double *value) {
    return find_number(&(question){spec, of_rows, true}, node, 0, value);
}

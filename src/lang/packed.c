/* packed.c: a tensor of i4 or u4 is stored as bytes. Each byte has two neighbours along the last axis: the
 * first in its low half, the second in its high half. i4 is in two's complement. Operations of the language,
 * which are exact, compute the elements from the bytes, so no later pass knows about 4-bit types. */
#include "lang/packed.h"

epi_axes epi_packed_axes(epi_graph *g, const epi_ast_tensor *t, epi_axes axes) {
    if (!axes.count)
        epi_graph_fail(g, "'%s' is %s, with two elements in a byte: it needs an axis", t->name, t->packed);
    else if (--axes.at[axes.count - 1].shift < -EPI_MAX_SHIFT)
        epi_graph_fail(g, "the last axis of '%s' is divided too often for two elements to a byte", t->name);
    return axes;
}

static int constant_map(epi_graph *g, epi_op op, int a, double number) {
    return epi_graph_map2(g, op, a, epi_graph_const(g, number));
}

/* where(a < number, a + more, a), or with > */
static int moved(epi_graph *g, int a, epi_op compare, double number, double more) {
    return epi_graph_map(g, EPI_OP_WHERE, constant_map(g, compare, a, number),
                         constant_map(g, EPI_OP_ADD, a, more), a);
}

static bool is_signed(const epi_ast_tensor *t) {
    return t->packed[0] == 'i';
}

int epi_packed_read(epi_graph *g, const epi_ast_tensor *t, int bytes, const epi_axes *axes) {
    int high = epi_graph_map1(g, EPI_OP_FLOOR, constant_map(g, EPI_OP_DIV, bytes, 16));
    int low = epi_graph_map2(g, EPI_OP_SUB, bytes, constant_map(g, EPI_OP_MUL, high, 16));
    if (is_signed(t)) {
        low = moved(g, low, EPI_OP_GT, 7, -16);
        high = moved(g, high, EPI_OP_GT, 7, -16);
    }
    return epi_graph_join(g, EPI_OP_JOIN, low, high, axes->at[axes->count - 1]);
}

int epi_packed_write(epi_graph *g, const epi_ast_tensor *t, int value, const epi_axes *axes) {
    value = epi_graph_map1(g, is_signed(t) ? EPI_OP_I4 : EPI_OP_U4, value);
    int half[2];
    for (int i = 0; i < 2; i++) {
        half[i] = epi_graph_split(g, i ? EPI_OP_ODD : EPI_OP_EVEN, value, axes->at[axes->count - 1]);
        if (is_signed(t))
            half[i] = moved(g, half[i], EPI_OP_LT, 0, 16);
    }
    return epi_graph_map2(g, EPI_OP_ADD, half[0], constant_map(g, EPI_OP_MUL, half[1], 16));
}

/* random_graph.h: whole random programs: of some size, with some kinds of values, of which some are stored,
 * in any type and order of axes. */
#ifndef EPI_TESTS_RANDOM_GRAPH_H
#define EPI_TESTS_RANDOM_GRAPH_H

#include "random_kinds.h"

static void draw_sizes(random_graph *m) {
    static const int small[AX_COUNT][6] = {{1, 2, 3, 5, 17, 33}, {1, 2, 5, 7, 16, 40}, {2, 4, 6, 8, 16, 16},
                                           {1, 3, 4, 8, 16, 20}, {3, 3, 3, 3, 3, 3},   {1, 2, 2, 3, 4, 2}};
    m->sizes.count = AX_COUNT;
    for (int a = 0; a < AX_COUNT; a++) {
        snprintf(m->sizes.name[a], sizeof m->sizes.name[a], "%c", graph_axes[a]);
        m->sizes.size[a] = (1 << a) != AX_C && one_in(m, 60) ? 0 : small[a][random_below(&m->s, 6)];
    }
    if (one_in(m, 8))
        m->sizes.size[0] = m->sizes.size[1] = 64;
}

static void store(random_graph *m, const graph_value *v) {
    char list[64];
    const char *type = some_type(m, 3);
    join_axes(m, v->axes, v->half, one_in(m, 3), list, sizeof list);
    ADD(m->body, "    y%d = %s\n", m->output_count, v->name);
    ADD(m->outputs, "%sy%d%s%s%s", m->output_count ? ", " : "", m->output_count, type ? ": " : "",
        type ? type : "", list);
    m->output_count++;
}

/* The last value is stored, and one or two others. */
static void store_some(random_graph *m) {
    int wanted = 1 + random_below(&m->s, 3), at = m->count - 1;
    for (; at >= 0 && m->output_count < wanted; at -= 1 + random_below(&m->s, 3))
        if (m->v[at].name[0] == 'v')
            store(m, &m->v[at]);
}

static void random_graph_make(random_graph *m, uint64_t seed) {
    memset(m, 0, sizeof *m);
    m->s = seed * 0xd1342543de82ef95u + 0x2545f4914f6cdd1du;
    draw_sizes(m);
    new_input(m, AX_T | AX_D);
    for (int i = 0, n = 1 + random_below(&m->s, 7); i < n && m->input_count < 9; i++)
        grow_one(m);
    while (m->v[m->count - 1].name[0] != 'v')
        grow_unary(m);
    store_some(m);
    snprintf(m->text, sizeof m->text, "%sf(%s) -> (%s) {\n%s}\n",
             m->calls ? "mixed(a[M], b[M]) -> c[M] {\n    t = a*b\n    c = t*sigmoid(t) + a\n}\n\n" : "",
             m->inputs, m->outputs, m->body);
}

#endif

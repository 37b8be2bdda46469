/* vanish.c: a gradient that is 0 for whole rows stays 0 whatever else these rows contain.
 *
 * For a token that does not count, where(c, loss, 0) propagates a gradient of 0. A later factor may be
 * infinite or NaN there, and 0 times that is NaN. If all terms of a gradient have such a factor where(c, x,
 * 0), and one c serves many elements, the choice is made last:
 *     a*where(c, x, 0) - where(d, where(c, x, 0), 0)   becomes   where(c, a*x - where(d, x, 0), 0) */
#include "pass/analyse/monomial.h"
#include "pass/derive/simplify.h"
#include "pass/derive/taken.h"

/* Values that are looked at for one gradient and condition, at most. */
enum { MOST_LOOKED_AT = 64 };

/* Is the value 0 where the condition does not hold, because each of its terms has it for a factor? */
static bool vanishes(const epi_graph *g, int node, int condition, int *looks) {
    const epi_node *n = &g->nodes[node];
    if (--*looks < 0)
        return false;
    switch (n->op) {
    case EPI_OP_WHERE:
        return epi_choice_of(g, node) == 1 &&
               (n->arg[0] == condition || vanishes(g, n->arg[1], condition, looks));
    case EPI_OP_MUL:
        return vanishes(g, n->arg[0], condition, looks) || vanishes(g, n->arg[1], condition, looks);
    case EPI_OP_DIV:
    case EPI_OP_NEG: return vanishes(g, n->arg[0], condition, looks);
    case EPI_OP_ADD:
    case EPI_OP_SUB:
        return vanishes(g, n->arg[0], condition, looks) && vanishes(g, n->arg[1], condition, looks);
    default: return false;
    }
}

int epi_vanish_last(epi_graph *g, int first, int node) {
    for (int i = first; i < node && !epi_graph_failed(g); i++) {
        int condition = g->nodes[i].arg[0], looks = MOST_LOOKED_AT;
        if (epi_choice_of(g, i) != 1 || !g->nodes[condition].axes.count ||
            !epi_axes_without(&g->nodes[node].axes, &g->nodes[condition].axes).count ||
            (epi_choice_of(g, node) == 1 && g->nodes[node].arg[0] == condition) ||
            !vanishes(g, node, condition, &looks))
            continue;
        int value = epi_taken_inside(g, &(epi_taken){1, {{condition, false}}}, node, true);
        if (epi_graph_failed(g))
            return node;
        return epi_graph_map(g, EPI_OP_WHERE, condition, value, epi_graph_const(g, 0));
    }
    return node;
}

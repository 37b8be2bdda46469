/* flow.h: a minimum vertex cut among values, found as a maximum flow.
 *
 * Every value is two vertices with an edge between them, whose capacity is the value's cost. Flow goes from
 * the source to values that must be used as they are, then along operands to their users, and from the
 * values that are needed to the sink. */
#ifndef EPI_PASS_FLOW_H
#define EPI_PASS_FLOW_H

#include <stdbool.h>

typedef struct epi_flow_edge {
    int to, next; /* the next edge of the same vertex; edges e and e ^ 1 are the two directions of one */
    double capacity;
} epi_flow_edge;

typedef struct epi_flow {
    epi_flow_edge *edges;
    int *first, *seen, *queue; /* by vertex; `first` is -1 where there is no edge */
    int edge_count;
} epi_flow;

enum { EPI_FLOW_SOURCE, EPI_FLOW_SINK, EPI_FLOW_FIRST };

static inline int epi_flow_enters(int value) { /* the vertex where a value is wanted, */
    return EPI_FLOW_FIRST + 2 * value;
}
static inline int epi_flow_leaves(int value) { /* and where it is given on */
    return EPI_FLOW_FIRST + 2 * value + 1;
}

void epi_flow_add(epi_flow *f, int from, int to, double capacity);
/* The largest flow; false where it is without bound. */
bool epi_flow_fill(epi_flow *f, int vertices);
/* Marks in seen[] the vertices from which the sink can still be reached: beyond them lies the cut nearest to
 * the use. */
void epi_flow_mark_near(epi_flow *f, int vertices);

#endif

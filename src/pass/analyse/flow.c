/* flow.c: a maximum flow by shortest paths, and the cut that it gives. */
#include "pass/analyse/flow.h"

#include <math.h>

void epi_flow_add(epi_flow *f, int from, int to, double capacity) {
    f->edges[f->edge_count] = (epi_flow_edge){to, f->first[from], capacity};
    f->first[from] = f->edge_count++;
    f->edges[f->edge_count] = (epi_flow_edge){from, f->first[to], 0};
    f->first[to] = f->edge_count++;
}

/* Looks for a way from the source with capacity left; notes in seen[] the edge by which each vertex was reached.
 */
static bool find_way(epi_flow *f, int vertices) {
    for (int i = 0; i < vertices; i++)
        f->seen[i] = -1;
    int head = 0, tail = 0;
    f->queue[tail++] = EPI_FLOW_SOURCE;
    while (head < tail && f->seen[EPI_FLOW_SINK] < 0) {
        int v = f->queue[head++];
        for (int e = f->first[v]; e >= 0; e = f->edges[e].next) {
            int to = f->edges[e].to;
            if (to != EPI_FLOW_SOURCE && f->edges[e].capacity > 0 && f->seen[to] < 0) {
                f->seen[to] = e;
                f->queue[tail++] = to;
            }
        }
    }
    return f->seen[EPI_FLOW_SINK] >= 0;
}

bool epi_flow_fill(epi_flow *f, int vertices) {
    while (find_way(f, vertices)) {
        double most = INFINITY;
        for (int v = EPI_FLOW_SINK; v != EPI_FLOW_SOURCE; v = f->edges[f->seen[v] ^ 1].to)
            most = fmin(most, f->edges[f->seen[v]].capacity);
        if (isinf(most))
            return false;
        for (int v = EPI_FLOW_SINK; v != EPI_FLOW_SOURCE; v = f->edges[f->seen[v] ^ 1].to) {
            f->edges[f->seen[v]].capacity -= most;
            f->edges[f->seen[v] ^ 1].capacity += most;
        }
    }
    return true;
}

void epi_flow_mark_near(epi_flow *f, int vertices) {
    for (int i = 0; i < vertices; i++)
        f->seen[i] = 0;
    int head = 0, tail = 0;
    f->queue[tail++] = EPI_FLOW_SINK;
    f->seen[EPI_FLOW_SINK] = 1;
    while (head < tail) {
        int v = f->queue[head++];
        for (int e = f->first[v]; e >= 0; e = f->edges[e].next) {
            int from = f->edges[e].to;
            if (!f->seen[from] && f->edges[e ^ 1].capacity > 0) {
                f->seen[from] = 1;
                f->queue[tail++] = from;
            }
        }
    }
}

/* cut_loads.c: what each part loads, as a smallest vertex cut.
 *
 * A part needs some values that are made elsewhere. Each of them can be loaded, or made again from what it is
 * made of, as long as that is a map and has the shape of the part's tile. Of all ways the one that moves the
 * fewest bytes is a smallest vertex cut between what lies in memory and what the part needs: a value that is
 * stored already, or is an input, costs its bytes; one that would have to be stored for it costs them twice;
 * one that is in no memory in time cannot be loaded. It is found as a largest flow. */
#include <math.h>
#include <string.h>

#include "pass/cut_sites.h"

typedef struct edge {
    int to, next; /* the next edge of the same vertex; edges e and e ^ 1 are the two directions of one */
    double room;
} edge;

typedef struct flow {
    epi_arena *arena;
    edge *edges;
    int *first, *seen, *queue; /* by vertex */
    int edge_count;
} flow;

enum { SOURCE, SINK, FIRST_VERTEX };

static int enters(int node) { /* the vertex where a value is wanted, and where it is given on */
    return FIRST_VERTEX + 2 * node;
}
static int leaves(int node) {
    return FIRST_VERTEX + 2 * node + 1;
}

static void add_edge(flow *f, int from, int to, double room) {
    f->edges[f->edge_count] = (edge){to, f->first[from], room};
    f->first[from] = f->edge_count++;
    f->edges[f->edge_count] = (edge){from, f->first[to], 0};
    f->first[to] = f->edge_count++;
}

/* Looks for a way from the source with room left; notes in seen[] the edge by which each vertex was reached.
 */
static bool find_way(flow *f, int vertices) {
    for (int i = 0; i < vertices; i++)
        f->seen[i] = -1;
    int head = 0, tail = 0;
    f->queue[tail++] = SOURCE;
    while (head < tail && f->seen[SINK] < 0) {
        int v = f->queue[head++];
        for (int e = f->first[v]; e >= 0; e = f->edges[e].next) {
            int to = f->edges[e].to;
            if (to != SOURCE && f->edges[e].room > 0 && f->seen[to] < 0) {
                f->seen[to] = e;
                f->queue[tail++] = to;
            }
        }
    }
    return f->seen[SINK] >= 0;
}

/* The largest flow; false where it is without bound. */
static bool fill(flow *f, int vertices) {
    while (find_way(f, vertices)) {
        double most = INFINITY;
        for (int v = SINK; v != SOURCE; v = f->edges[f->seen[v] ^ 1].to)
            most = fmin(most, f->edges[f->seen[v]].room);
        if (isinf(most))
            return false;
        for (int v = SINK; v != SOURCE; v = f->edges[f->seen[v] ^ 1].to) {
            f->edges[f->seen[v]].room -= most;
            f->edges[f->seen[v] ^ 1].room += most;
        }
    }
    return true;
}

/* Marks the vertices from which the sink can still be reached: beyond them lies the cut nearest to the use.
 */
static void mark_near(flow *f, int vertices) {
    for (int i = 0; i < vertices; i++)
        f->seen[i] = 0;
    int head = 0, tail = 0;
    f->queue[tail++] = SINK;
    f->seen[SINK] = 1;
    while (head < tail) {
        int v = f->queue[head++];
        for (int e = f->first[v]; e >= 0; e = f->edges[e].next) {
            int from = f->edges[e].to;
            if (!f->seen[from] && f->edges[e ^ 1].room > 0) {
                f->seen[from] = 1;
                f->queue[tail++] = from;
            }
        }
    }
}

static bool is_own(const epi_sites *s, int q, int node) {
    epi_site_kind kind = s->site[node].kind;
    return (kind == EPI_SITE_TILE || kind == EPI_SITE_AFTER) && s->site[node].part == q;
}

/* Constants, sizes and positions are written into a part wherever they are wanted. */
static bool is_free(const epi_graph *g, int node) {
    return epi_ops[g->nodes[node].op].cls == EPI_CLASS_LEAF && g->nodes[node].op != EPI_OP_INPUT;
}

/* Can the part make the value again? It takes one axis apart in one way: what it noted first counts. */
static bool can_remake(const epi_sites *s, epi_site_part *p, int node) {
    epi_op_class cls = epi_ops[s->g->nodes[node].op].cls;
    return (cls == EPI_CLASS_MAP || cls == EPI_CLASS_SPLIT) && epi_site_fits(s->g, p, node);
}

/* What loading the value costs the part. */
static double price(const epi_sites *s, int q, int node) {
    epi_site site = s->site[node];
    if (site.kind == EPI_SITE_LATE || (site.kind != EPI_SITE_INPUT && site.part > q))
        return INFINITY;
    double bytes = epi_sites_bytes(s, node) + 1;
    return site.kind == EPI_SITE_INPUT || s->forced[node] ? bytes : 2 * bytes;
}

/* The values that the part may load, marked in `in`, or make again, in `remade`; `wanted` are those it uses
 * itself. */
static void find_values(const epi_sites *s, int q, bool *wanted, bool *in, bool *remade) {
    const epi_graph *g = s->g;
    epi_site_part part = s->parts[q];
    for (int i = g->node_count - 1; i >= 0; i--) {
        bool own = g->live[i] && is_own(s, q, i), opens = in[i] && can_remake(s, &part, i);
        remade[i] = opens;
        for (int a = 0; a < 3; a++) {
            int arg = g->nodes[i].arg[a];
            if (arg == EPI_NO_NODE || is_free(g, arg) || is_own(s, q, arg))
                continue;
            if (own && i != s->parts[q].product)
                wanted[arg] = in[arg] = true;
            else if (opens)
                in[arg] = true;
        }
    }
}

/* What part q loads; false: it cannot be had. */
static bool choose(epi_arena *arena, epi_sites *s, int q, bool *loads) {
    const epi_graph *g = s->g;
    int vertices = FIRST_VERTEX + 2 * g->node_count;
    size_t nodes = (size_t)g->node_count + 1;
    bool *wanted = epi_arena_alloc(arena, nodes), *in = epi_arena_alloc(arena, nodes),
         *remade = epi_arena_alloc(arena, nodes);
    flow f = {.arena = arena};
    f.edges = epi_arena_alloc(arena, 2 * 6 * nodes * sizeof *f.edges);
    f.first = epi_arena_alloc(arena, (size_t)vertices * sizeof *f.first);
    f.seen = epi_arena_alloc(arena, (size_t)vertices * sizeof *f.seen);
    f.queue = epi_arena_alloc(arena, (size_t)vertices * sizeof *f.queue);
    if (!wanted || !in || !remade || !f.edges || !f.first || !f.seen || !f.queue)
        return false;
    for (int i = 0; i < vertices; i++)
        f.first[i] = -1;
    find_values(s, q, wanted, in, remade);
    for (int i = 0; i < g->node_count; i++) {
        if (!in[i])
            continue;
        add_edge(&f, enters(i), leaves(i), price(s, q, i));
        if (wanted[i])
            add_edge(&f, leaves(i), SINK, INFINITY);
        if (!remade[i]) {
            add_edge(&f, SOURCE, enters(i), INFINITY);
            continue;
        }
        for (int a = 0; a < 3; a++)
            if (g->nodes[i].arg[a] != EPI_NO_NODE && in[g->nodes[i].arg[a]])
                add_edge(&f, leaves(g->nodes[i].arg[a]), enters(i), INFINITY);
    }
    if (!fill(&f, vertices))
        return false;
    mark_near(&f, vertices);
    for (int i = 0; i < g->node_count; i++)
        loads[i] = in[i] && f.seen[leaves(i)] && !f.seen[enters(i)];
    return true;
}

bool **epi_sites_loads(epi_arena *arena, epi_sites *s) {
    bool **loads = epi_arena_alloc(arena, ((size_t)s->part_count + 1) * sizeof *loads);
    for (int q = 0; q < s->part_count && loads; q++) {
        loads[q] = epi_arena_alloc(arena, (size_t)s->g->node_count + 1);
        epi_arena scratch = {0};
        bool ok = loads[q] && choose(&scratch, s, q, loads[q]);
        epi_arena_free(&scratch);
        if (!ok)
            return NULL;
        for (int a = 0; a < 2 && s->parts[q].product != EPI_NO_NODE; a++) {
            int operand = s->g->nodes[s->parts[q].product].arg[a];
            loads[q][operand] = !is_free(s->g, operand);
        }
        for (int i = 0; i < s->g->node_count; i++)
            s->forced[i] |= loads[q][i] && s->site[i].kind != EPI_SITE_INPUT;
    }
    return loads;
}

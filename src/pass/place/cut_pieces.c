/* cut_pieces.c: outputs that are composed of pieces.
 *
 * A sum of scatters by positions, scatter(a, index(F), C) + scatter(b, index(G) + size(F), C), in which each
 * position of C occurs once, is not added up: a and b are stored at their places in it. So if a weight is
 * used in slices, the gradient of each slice is the result of its own product. This is done for outputs,
 * along their first axis: there a piece is a tensor like any other. */
#include <stdlib.h>

#include "ir/stretch.h"
#include "pass/place/placer.h"

enum { MOST_PIECES = 64 };

typedef struct put {
    int scatter;
    int64_t begin, count;
} put;

typedef struct pieces {
    const epi_placer *s;
    int tensor;
    put at[MOST_PIECES];
    int count;
} pieces;

static bool has_one_use(const epi_graph *g, int node) {
    return epi_graph_uses(g, node).count == 1;
}

/* Does the value have all axes of the stretch, and lie there without gaps and from where a tensor may begin, whatever
 * the number of rows? It counts as one. */
static bool lies_well(const pieces *p, int value, const epi_stretch *part, int64_t *count) {
    const epi_placer *s = p->s;
    const epi_axes *memory = &s->g->tensors[p->tensor].axes;
    *count = 1;
    for (int i = part->axes.count - 1; i >= 0; i--) {
        if (part->step[i] != *count || epi_axes_find(&s->g->nodes[value].axes, part->axes.at[i]) < 0)
            return false;
        *count *= epi_axis_size(part->axes.at[i], s->spec->sizes);
    }
    int64_t bytes = (int64_t)epi_dtype_size(s->spec->types[p->tensor]) * part->begin;
    for (int i = 1; i < memory->count; i++)
        if (!s->spec->is_row[memory->at[i].dim])
            bytes = bytes * epi_axis_size(memory->at[i], s->spec->sizes) % s->limits->aligned;
    return part->axes.count && epi_axis_equal(memory->at[0], part->of) && bytes % s->limits->aligned == 0;
}

/* Is the scatter's value made by a part, and nothing else made of it than this? */
static bool is_made(const epi_placer *s, int value) {
    epi_op op = s->g->nodes[value].op;
    return (epi_op_is_map(op) || epi_op_folds(op)) && has_one_use(s->g, value) && !s->inner[value];
}

/* Lists what the sum is put together of; false: of something else, too. */
static bool collect(pieces *p, int node, int depth) {
    const epi_graph *g = p->s->g;
    const epi_node *n = &g->nodes[node];
    epi_stretch part;
    if (!has_one_use(g, node) || p->count == MOST_PIECES || depth > MOST_PIECES)
        return false;
    if (n->op == EPI_OP_ADD)
        return collect(p, n->arg[0], depth + 1) && collect(p, n->arg[1], depth + 1);
    put *to = &p->at[p->count];
    if (n->op != EPI_OP_SCATTER || !is_made(p->s, n->arg[0]) || !epi_stretch_find(p->s->spec, node, &part) ||
        !lies_well(p, n->arg[0], &part, &to->count))
        return false;
    to->scatter = node;
    to->begin = part.begin;
    p->count++;
    return true;
}

static int compare(const void *a, const void *b) {
    int64_t x = ((const put *)a)->begin, y = ((const put *)b)->begin;
    return (x > y) - (x < y);
}

/* Does each place come once? */
static bool is_whole(pieces *p) {
    int64_t end = 0;
    qsort(p->at, (size_t)p->count, sizeof *p->at, compare);
    for (int i = 0; i < p->count; i++) {
        if (p->at[i].begin != end)
            return false;
        end += p->at[i].count;
    }
    const epi_tensor_decl *t = &p->s->g->tensors[p->tensor];
    return end == epi_axis_size(t->axes.at[0], p->s->spec->sizes);
}

/* Nobody makes the sum. */
static void leave_out(epi_placer *s, int node) {
    s->placed[node] = true;
    s->placement[node] = (epi_cut_placement){EPI_PLACED_PIECES, -1};
    for (int a = 0; a < 2 && s->g->nodes[node].op == EPI_OP_ADD; a++)
        leave_out(s, s->g->nodes[node].arg[a]);
}

void epi_placer_find_pieces(epi_placer *s) {
    const epi_graph *g = s->g;
    for (int i = 0; i < g->node_count; i++)
        s->put_by[i] = EPI_NO_NODE;
    for (int t = g->input_count; t < g->tensor_count && s->limits->pieces; t++) {
        pieces p = {.s = s, .tensor = t};
        int node = g->tensors[t].node;
        if (!epi_dtype_in_f32(s->spec->types[t]) || !collect(&p, node, 0) || !is_whole(&p))
            continue;
        leave_out(s, node);
        for (int i = 0; i < p.count; i++) {
            int value = g->nodes[p.at[i].scatter].arg[0];
            s->put_by[value] = p.at[i].scatter;
            s->put_into[value] = t;
        }
    }
}

void epi_placer_store_pieces(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    if (n->op == EPI_OP_SCATTER)
        epi_placer_store(s, n->arg[0]);
    for (int a = 0; a < 2 && n->op == EPI_OP_ADD; a++)
        epi_placer_store_pieces(s, n->arg[a]);
}

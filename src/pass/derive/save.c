/* save.c: what a backward program gets from the forward, and what it recomputes.
 *
 * Both are put into one graph, in which equal values are one node. Each forward value that the backward
 * needs can be read, or recomputed from its operands. The choice that moves the fewest bytes is a minimum
 * vertex cut. The graph is split there. */
#include "pass/derive/save.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pass/analyse/attention.h"
#include "pass/analyse/cost.h"
#include "pass/analyse/flow.h"
#include "pass/analyse/recurrence.h"
#include "pass/analyse/stored.h"
#include "pass/derive/grad.h"
#include "pass/derive/simplify.h"
#include "pass/place/extract.h"
#include "pass/rewrite/algebra.h"
#include "pass/rewrite/groups.h"
#include "pass/rewrite/once.h"
#include "pass/rewrite/slots.h"

typedef struct split {
    epi_graph g;     /* both: the program's inputs, the cotangents; its results, the gradients */
    int own;         /* how many of the inputs are the program's: the others are cotangents */
    int own_nodes;   /* how many nodes are the program's: the others only its gradient has */
    int results;     /* how many of the outputs are the program's */
    bool *backward;  /* by node: it depends on a cotangent */
    epi_dtype *said; /* by node; see stored.h */
    bool *wide;      /* by node: made, one by one, of the elements of an input that may have more digits than
                        the storage type: of a type that the text says, but for bf16 */
    bool *statistic; /* by node: what reductions give, and what is made of that alone */
    bool *
        scores; /* by node: attention makes it on its score tiles, or it is of a stepped state: it is recomputed */
    bool *by_pass; /* by node: a pass over memory makes it for a product, in the forward and again in the
                        backward */
    bool *
        compares; /* by node: it compares a value with its own extreme, is the places of the largest or few bits:
                        of a value that is made again a near tie may come out otherwise, so it is saved */
    bool *far;    /* by node: to recompute it would load more than to save it moves */
    int longest;  /* how many axes a value of the program has at most */
    bool lean;    /* memory comes first: what can be recomputed is */
    bool *looked; /* by node: the backward may read it, or recompute it */
    bool *saved;  /* by node: the backward reads it: an input, a result or a saved value */
} split;

/* ---- both in one ---- */

static void copy_nodes(epi_graph *to, const epi_graph *from, int *copy) {
    for (int i = 0; i < from->node_count && !epi_graph_failed(to); i++)
        copy[i] = epi_graph_copy(to, &from->nodes[i], copy);
}

static void unite(split *s, const epi_graph *program, const epi_graph *gradient) {
    epi_graph *g = &s->g;
    epi_arena *arena = g->arena;
    size_t nodes = (size_t)(program->node_count + gradient->node_count) + 1;
    int *first = epi_arena_alloc(arena, nodes * sizeof *first), *second = first;
    epi_graph_take_dims(g, gradient);
    g->input_count = gradient->input_count;
    s->own = program->input_count;
    s->results = program->tensor_count - program->input_count;
    g->tensor_count = gradient->tensor_count + s->results;
    g->tensors = epi_arena_alloc(arena, (size_t)(g->tensor_count + 1) * sizeof *g->tensors);
    if (epi_graph_failed(g))
        return;
    second = first + program->node_count;
    copy_nodes(g, program, first);
    s->own_nodes = g->node_count;
    copy_nodes(g, gradient, second);
    for (int t = 0; t < g->tensor_count && !epi_graph_failed(g); t++) {
        bool input = t < g->input_count, result = !input && t < g->input_count + s->results;
        int from = result ? t - g->input_count + program->input_count : input ? t : t - s->results;
        g->tensors[t] = result ? program->tensors[from] : gradient->tensors[from];
        g->tensors[t].node = result ? first[g->tensors[t].node] : second[g->tensors[t].node];
    }
    epi_graph_finish(g);
}

/* What a gradient takes that the text has written is kept, unless memory comes first or it is scores. */
static void keep_taken(split *s) {
    for (int i = 0; i < s->g.node_count; i++)
        if (s->g.nodes[i].saving == EPI_SAVE_TAKEN)
            s->g.nodes[i].saving = s->lean || s->scores[i] ? EPI_SAVE_OPEN : EPI_SAVE_KEEP;
}

/* What the gradient can be made of now that the program's results are there, too: the exponential of a
 * log-softmax. */
static void take_results(split *s) {
    epi_graph simple = {.arena = s->g.arena};
    s->own_nodes = epi_simplify_with_results(&s->g, s->own_nodes, &simple);
    s->g = simple;
}

static void find_backward(split *s) {
    const epi_graph *g = &s->g;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        s->longest = n->axes.count > s->longest ? n->axes.count : s->longest;
        s->backward[i] = n->op == EPI_OP_INPUT ? n->tensor >= s->own : epi_node_takes(n, s->backward);
    }
}

static void find_statistics(split *s) {
    const epi_graph *g = &s->g;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        bool map = epi_op_is_map(n->op), any = epi_op_reduces(n->op) && !epi_is_grouped(g, i),
             all = any || map;
        for (int a = 0; a < 3 && map; a++)
            if (n->arg[a] != EPI_NO_NODE && g->nodes[n->arg[a]].axes.count) {
                any = true;
                all &= s->statistic[n->arg[a]];
            }
        s->statistic[i] = any && all;
    }
}

/* A step, such as a comparison, has no derivative, and its elements say nothing of those that it takes. */
static bool is_wide(const split *s, const epi_node *n) {
    const epi_graph *g = &s->g;
    if (n->op == EPI_OP_INPUT)
        return n->axes.count && g->tensors[n->tensor].has_type &&
               !epi_dtype_holds(EPI_BF16, g->tensors[n->tensor].type);
    for (int a = 0; a < epi_node_operands(n) && epi_ops[n->op].from == EPI_FROM_ONE; a++)
        if (s->wide[n->arg[a]] && g->nodes[n->arg[a]].axes.count == n->axes.count &&
            *epi_ops[n->op].derivative[a])
            return true;
    return false;
}

/* What is wide is saved as f32, unless a product takes it: x - m of numbers near 100 has what they have
 * beyond the storage type, and the forward has made the others of it so. */
static void find_wide(split *s) {
    for (int i = 0; i < s->g.node_count; i++) {
        s->wide[i] = is_wide(s, &s->g.nodes[i]);
        if (s->wide[i] && s->said[i] == EPI_DTYPE_COUNT && !epi_feeds_product(&s->g, i))
            s->said[i] = EPI_F32;
    }
}

/* Places of the largest, and conversions to few bits of what a product made, would be others if they were made
 * again of what was rounded when it was saved. */
static void find_compares(split *s) {
    bool *multiplied = epi_arena_alloc(s->g.arena, (size_t)s->g.node_count + 1);
    epi_once_find(s->g.arena, &s->g, s->compares);
    for (int i = 0; i < s->g.node_count && multiplied; i++) {
        const epi_node *n = &s->g.nodes[i];
        const epi_op_row *row = &epi_ops[n->op];
        multiplied[i] = epi_op_is_product(n->op) || epi_node_takes(n, multiplied);
        s->compares[i] |=
            n->op == EPI_OP_TOPK || (multiplied[i] && row->converts && n->saving != EPI_SAVE_RECOMPUTE &&
                                     epi_dtype_size(row->type) == 1);
    }
}

static bool allocate(split *s) {
    size_t nodes = (size_t)s->g.node_count + 1;
    s->backward = epi_arena_alloc(s->g.arena, nodes);
    s->said = epi_stored_find(s->g.arena, &s->g, NULL, EPI_DTYPE_COUNT);
    s->wide = epi_arena_alloc(s->g.arena, nodes);
    s->statistic = epi_arena_alloc(s->g.arena, nodes);
    s->scores = epi_arena_alloc(s->g.arena, nodes);
    s->by_pass = epi_arena_alloc(s->g.arena, nodes);
    s->looked = epi_arena_alloc(s->g.arena, nodes);
    s->saved = epi_arena_alloc(s->g.arena, nodes);
    s->compares = epi_arena_alloc(s->g.arena, nodes);
    s->far = epi_arena_alloc(s->g.arena, nodes);
    if (s->compares)
        find_compares(s);
    if (s->said && s->wide)
        find_wide(s);
    return !epi_graph_failed(&s->g);
}

/* ---- the choice ---- */

/* Is it a vector, or a statistic? */
static bool is_short(const split *s, int node) {
    return s->g.nodes[node].axes.count == 1 || s->statistic[node];
}

/* The type in which a value is saved; EPI_DTYPE_COUNT: the storage type, which is open. */
static epi_dtype saved_type(const split *s, int node) {
    return epi_stored_type(s->said[node], is_short(s, node), EPI_DTYPE_COUNT);
}

/* Has this output the digits that the value would be saved with? Places are saved as integers, and nothing of
 * 16 bits has them. What is wide or short beside other values, and would be saved as f32, is there in f32
 * alone: the forward has made the others of it before it was rounded, and exp(s - l) of a rounded l is another
 * value. */
static bool suffices(const split *s, int node, const epi_tensor_decl *d) {
    epi_dtype type = saved_type(s, node);
    bool beside = is_short(s, node) && s->g.nodes[node].axes.count < s->longest;
    bool exact = type == EPI_F32 && (beside || s->wide[node]);
    if (type == EPI_I32)
        return d->has_type && (d->type == EPI_F32 || epi_dtype_is_integer(d->type));
    if (!d->has_type)
        return !exact || !d->axes.count;
    return d->type == EPI_F32 || (!exact && d->type == type);
}

/* The output that stands for this value, or -1. */
static int result_of(const split *s, int node) {
    for (int t = s->g.input_count; t < s->g.input_count + s->results; t++)
        if (s->g.tensors[t].node == node && suffices(s, node, &s->g.tensors[t]))
            return t;
    return -1;
}

static bool is_result(const split *s, int node) {
    return result_of(s, node) >= 0;
}

/* Does an index take one element for each of its own? That is a pass by itself, and no more bytes than the index. */
static bool takes_elements(const split *s, const epi_node *n) {
    if (n->op != EPI_OP_GATHER)
        return false;
    const epi_node *index = &s->g.nodes[n->arg[1]];
    return epi_op_gives_places(index->op) && epi_axes_include(&index->axes, &n->axes);
}

/* Is it cheap to make again? Products, reductions, sums by number and orders are not, but for scores; what is
 * kept need not be. */
static bool can_remake(const split *s, int node) {
    const epi_node *n = &s->g.nodes[node];
    /* the largest elements of what is made again might be others */
    bool folds = !epi_op_again(n->op) || takes_elements(s, n);
    return n->op != EPI_OP_INPUT && n->saving != EPI_SAVE_KEEP && !s->compares[node] && !s->far[node] &&
           (!folds || s->scores[node] || n->saving == EPI_SAVE_RECOMPUTE);
}

/* Sizes are not known yet: every axis counts at the nominal size, and a type that is open as 16 bits. */
static double bytes_of(const split *s, int node) {
    const epi_node *n = &s->g.nodes[node];
    bool typed = n->op == EPI_OP_INPUT && s->g.tensors[n->tensor].has_type;
    epi_dtype type = typed ? s->g.tensors[n->tensor].type : saved_type(s, node);
    double bytes = (double)epi_dtype_size(type == EPI_DTYPE_COUNT ? EPI_BF16 : type);
    for (int i = 0; i < n->axes.count; i++)
        bytes *= ldexp(EPI_NOMINAL_SIZE, n->axes.at[i].shift);
    return bytes;
}

/* What it costs to have the value in the backward: its bytes, and again if they are stored for it alone. */
static double price(const split *s, int node) {
    const epi_node *n = &s->g.nodes[node];
    double bytes = bytes_of(s, node);
    if (n->op == EPI_OP_INPUT || is_result(s, node))
        return bytes;
    if (s->compares[node]) /* it cannot be recomputed */
        return 2 * bytes;
    if (n->saving != EPI_SAVE_OPEN)
        return n->saving == EPI_SAVE_KEEP ? 0 : INFINITY;
    if (s->scores[node] || n->op == EPI_OP_SEGMENTS) /* products know groups by where they begin */
        return INFINITY;
    if (s->by_pass[node])
        return bytes;
    if (n->op == EPI_OP_GATHER && s->g.nodes[n->arg[0]].op == EPI_OP_INPUT &&
        s->g.nodes[n->arg[1]].op == EPI_OP_CONST)
        return INFINITY; /* a slice of an input is a view of it: a copy would save nothing */
    /* of ways that cost the same, the program's own values, with axes whole rather than in two and called as
     * in the inputs */
    bool other = epi_op_has_halves(n->op) || n->op == EPI_OP_RENAME;
    return node < s->own_nodes ? (2 + other * EPI_TIE / 10) * bytes : epi_cost_stored(bytes);
}

/* ---- what is far from what it is made of ---- */

/* Values in memory that one is recomputed from, one for each depth; those that are less than half as large
 * are nothing beside it. The depth counts products and reductions that a value is made by, one after the
 * other. */
enum { MOST_SOURCES = 2 };
typedef struct sources {
    int at[MOST_SOURCES + 1], count;
    int depth;
} sources;

static void add_source(const split *s, const sources *all, int node, int source, sources *of) {
    bool skip = 2 * bytes_of(s, source) < bytes_of(s, node);
    for (int i = 0; i < of->count; i++)
        skip |= all[of->at[i]].depth == all[source].depth;
    if (!skip && of->count <= MOST_SOURCES)
        of->at[of->count++] = source;
}

/* What would be recomputed from values of more than two depths is saved, unless it is short. To store and to
 * load it moves no more than to load them, and each part of the backward that wants it would: values of one
 * depth meet in a gradient anyway, others do not. Else a sum that every layer adds a norm to would be made
 * again from all layers before it, and the bytes that a backward moves would grow with the square of its
 * layers. */
static void find_far(split *s) {
    const epi_graph *g = &s->g;
    sources *all = epi_arena_alloc(g->arena, ((size_t)g->node_count + 1) * sizeof *all);
    for (int i = 0; i < g->node_count && all; i++) {
        const epi_node *n = &g->nodes[i];
        for (int a = 0; a < epi_node_operands(n); a++) {
            const sources *from = &all[n->arg[a]];
            int depth = from->depth + epi_op_folds(n->op);
            all[i].depth = depth > all[i].depth ? depth : all[i].depth;
            for (int k = 0; k < from->count && can_remake(s, i); k++)
                add_source(s, all, i, from->at[k], &all[i]);
        }
        s->far[i] = all[i].count > MOST_SOURCES && n->axes.count > 1 && !is_short(s, i) && !s->backward[i] &&
                    !s->scores[i] && n->saving == EPI_SAVE_OPEN;
        if (!can_remake(s, i))
            all[i] = (sources){{i}, 1, all[i].depth};
    }
}

/* Marks what the backward reads of the forward, and what that can be recomputed from. */
static void find_wanted(split *s, bool *wanted) {
    const epi_graph *g = &s->g;
    for (int t = g->input_count + s->results; t < g->tensor_count; t++)
        wanted[g->tensors[t].node] = true;
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < 3 && s->backward[i] && g->live[i]; a++)
            if (g->nodes[i].arg[a] != EPI_NO_NODE)
                wanted[g->nodes[i].arg[a]] = true;
    for (int i = g->node_count - 1; i >= 0; i--) {
        wanted[i] = wanted[i] && !s->backward[i] && !epi_op_is_free(g->nodes[i].op);
        s->looked[i] |= wanted[i];
        for (int a = 0; a < 3 && s->looked[i] && can_remake(s, i); a++)
            if (g->nodes[i].arg[a] != EPI_NO_NODE)
                s->looked[g->nodes[i].arg[a]] |= !epi_op_is_free(g->nodes[g->nodes[i].arg[a]].op);
    }
}

/* Is all that the forward makes of a scan's states made by recurrences, of which these are all? `result` is by node. */
static bool is_stepped(const split *s, const epi_recurrence *r, const bool *inner, const bool *result) {
    bool all = true;
    for (int i = 0; i < r->inner.count && all; i++) {
        epi_use_list uses = epi_graph_uses(&s->g, r->inner.at[i]);
        for (int u = 0; u < uses.count && all; u++) {
            int user = uses.at[u].node;
            all = user != EPI_NO_NODE && (s->backward[user] || inner[user] || result[user]);
        }
    }
    return all;
}

/* The states of scans of products are never in memory either. */
static bool find_states(split *s) {
    size_t nodes = (size_t)s->g.node_count + 1;
    epi_recurrences found;
    bool *inner = epi_arena_alloc(s->g.arena, nodes), *result = epi_arena_alloc(s->g.arena, nodes);
    if (!inner || !result || !epi_recurrences_find(s->g.arena, &(epi_spec){.graph = &s->g}, true, &found))
        return false;
    for (int k = 0; k < found.count; k++) {
        for (int i = 0; i < found.at[k].inner.count; i++)
            inner[found.at[k].inner.at[i]] = true;
        for (int t = 0; t < EPI_TAKE_COUNT; t++)
            if (found.at[k].out[t] != EPI_NO_NODE)
                result[found.at[k].out[t]] = true;
    }
    for (int k = 0; k < found.count; k++)
        for (int i = 0; i < found.at[k].inner.count && is_stepped(s, &found.at[k], inner, result); i++)
            s->scores[found.at[k].inner.at[i]] |= !s->backward[found.at[k].inner.at[i]];
    return true;
}

/* What attention makes on its score tiles: as large as it is, it is recomputed from what is much smaller. */
static bool find_scores(split *s) {
    epi_attentions found;
    if (!epi_attentions_find(s->g.arena, &(epi_spec){.graph = &s->g}, NULL, NULL, &found))
        return false;
    for (int k = 0; k < found.count; k++)
        for (int i = 0; i < found.at[k].inner.count && !s->backward[found.at[k].sums[0].product]; i++)
            s->scores[found.at[k].inner.at[i]] = true;
    return find_states(s);
}

/* ---- what takes a pass over memory ---- */

/* How a value depends on a statistic of its own rows, such as the mean of a norm: not; as one that is
 * multiplied by it, which the algebra takes past a product; or in another way, so that rows are made as a
 * whole. */
enum { NEEDS_NOTHING, NEEDS_SCALE, NEEDS_ROWS };

/* The first statistic that it is made of, or EPI_NO_NODE: `of` has those of its operands. */
static int statistic_of(const split *s, int node, const int *of) {
    const epi_node *n = &s->g.nodes[node];
    if (epi_op_reduces(n->op))
        return node;
    for (int a = 0; a < 3 && s->statistic[node]; a++)
        if (n->arg[a] != EPI_NO_NODE && of[n->arg[a]] != EPI_NO_NODE)
            return of[n->arg[a]];
    return EPI_NO_NODE;
}

/* What a map needs, by what its operands need. An operand that is in memory needs nothing. */
static int need_of(const split *s, int node, const int *need, const int *of) {
    const epi_node *n = &s->g.nodes[node];
    bool scales = epi_op_has_factors(n->op);
    int most = NEEDS_NOTHING;
    for (int a = 0; a < 3 && epi_op_is_map(n->op); a++) {
        int arg = n->arg[a];
        if (arg == EPI_NO_NODE)
            continue;
        int own = is_result(s, arg) ? NEEDS_NOTHING : need[arg];
        if (of[arg] != EPI_NO_NODE && epi_axes_count_in(&n->axes, &s->g.nodes[of[arg]].over))
            own = NEEDS_SCALE;
        if (own != NEEDS_NOTHING && !scales)
            own = NEEDS_ROWS;
        most = own > most ? own : most;
    }
    return most;
}

static bool has_product(const split *s, int node, bool backward) {
    epi_use_list uses = epi_graph_uses(&s->g, node);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (epi_op_is_product(epi_use_op(&s->g, uses.at[i])) && s->g.live[user] &&
            s->backward[user] == backward)
            return true;
    }
    return false;
}

/* Rows that are made as a whole for a product: the forward stores them by a pass over memory and reads them,
 * and so would the backward for a product of its own, as for a weight's gradient. To save them moves nothing
 * more. What is made of scores is in no memory. `of` is scratch. */
static void find_by_pass(split *s, int *of) {
    int count = s->g.node_count, *need = epi_arena_alloc(s->g.arena, ((size_t)count + 1) * sizeof *need);
    for (int i = 0; i < count && need && !s->lean; i++) {
        of[i] = statistic_of(s, i, of);
        need[i] = need_of(s, i, need, of);
        s->by_pass[i] = need[i] == NEEDS_ROWS && !s->backward[i] && has_product(s, i, false) &&
                        has_product(s, i, true) && !s->scores[i];
    }
}

/* Statistics of the backward that can be had from a result of the forward, or from what it reads anyway, are
 * taken from it (relocate.c). */
static void relocate(split *s) {
    epi_graph *g = &s->g, out = {.arena = g->arena};
    int count = g->node_count;
    bool *wanted = epi_arena_alloc(g->arena, (size_t)count + 1);
    int *found = epi_arena_alloc(g->arena, ((size_t)count + 1) * sizeof *found);
    epi_facts facts = {.g = g, .finished = count};
    if (!wanted || !found || !allocate(s))
        return;
    find_backward(s);
    find_statistics(s);
    find_wanted(s, wanted);
    for (int i = 0; i < count; i++)
        s->looked[i] = !s->backward[i] && (s->looked[i] || is_result(s, i));
    bool relocates = epi_relocate(&facts, s->backward, s->looked, found);
    if (epi_graph_failed(g))
        return;
    if (!relocates) {
        epi_graph_finish(g); /* what was tried stays behind the others, and nothing uses it */
        return;
    }
    epi_replace(g, count, found, true, &out);
    *g = out;
}

/* Rows that choose their weight are brought into slot order for both, so that what is saved lies in it, and
 * the order itself is made once. */
static void take_slots(split *s) {
    const epi_graph *g = &s->g;
    epi_error error = {0};
    if (epi_slots_write(g->arena, &g, NULL, &s->own_nodes, &error) != EPI_OK)
        s->g.error = error;
    else
        s->g = *g;
}

/* The cheapest way to have what is wanted: a smallest vertex cut. False where that fails. */
static bool choose(split *s) {
    const epi_graph *g = &s->g;
    int vertices = EPI_FLOW_FIRST + 2 * g->node_count;
    size_t nodes = (size_t)g->node_count + 1, places = (size_t)vertices;
    epi_flow f = {.edges = epi_arena_alloc(g->arena, 2 * 6 * nodes * sizeof *f.edges),
                  .first = epi_arena_alloc(g->arena, places * sizeof *f.first),
                  .seen = epi_arena_alloc(g->arena, places * sizeof *f.seen),
                  .queue = epi_arena_alloc(g->arena, places * sizeof *f.queue)};
    bool *wanted = epi_arena_alloc(g->arena, nodes);
    int *scratch = epi_arena_alloc(g->arena, nodes * sizeof *scratch);
    if (!f.edges || !f.first || !f.seen || !f.queue || !wanted || !scratch)
        return false;
    for (int i = 0; i < vertices; i++)
        f.first[i] = -1;
    find_backward(s);
    if (!find_scores(s))
        return false;
    keep_taken(s);
    find_statistics(s);
    find_by_pass(s, scratch);
    find_far(s);
    find_wanted(s, wanted);
    for (int i = 0; i < g->node_count; i++) {
        if (!s->looked[i])
            continue;
        epi_flow_add(&f, epi_flow_enters(i), epi_flow_leaves(i), price(s, i));
        if (wanted[i])
            epi_flow_add(&f, epi_flow_leaves(i), EPI_FLOW_SINK, INFINITY);
        if (!can_remake(s, i))
            epi_flow_add(&f, EPI_FLOW_SOURCE, epi_flow_enters(i), INFINITY);
        else if (s->by_pass[i]) /* recomputed, it is written and read */
            epi_flow_add(&f, EPI_FLOW_SOURCE, epi_flow_enters(i), 2 * bytes_of(s, i));
        for (int a = 0; a < 3 && can_remake(s, i); a++)
            if (g->nodes[i].arg[a] != EPI_NO_NODE && s->looked[g->nodes[i].arg[a]])
                epi_flow_add(&f, epi_flow_leaves(g->nodes[i].arg[a]), epi_flow_enters(i), INFINITY);
    }
    if (!epi_flow_fill(&f, vertices)) { /* inputs can always be had */
        EPI_INTERNAL(&s->g.error, (epi_place){0}, "a value that the backward needs cannot be saved");
        return false;
    }
    epi_flow_mark_near(&f, vertices);
    for (int i = 0; i < g->node_count; i++)
        s->saved[i] = s->looked[i] && f.seen[epi_flow_leaves(i)] && !f.seen[epi_flow_enters(i)];
    return true;
}

/* ---- two programs ---- */

/* Tensors that have names: those of both programs, and values that are saved already. */
typedef struct named {
    const epi_graph *g;
    const epi_tensor_decl *saved;
    int count;
} named;

static bool is_taken(const void *context, const char *name) {
    const named *n = context;
    for (int t = 0; t < n->count; t++)
        if (!strcmp(n->saved[t].name, name))
            return true;
    return epi_graph_has_tensor(n->g, name);
}

/* A name for a saved value: its own, unless a tensor of either program has it. */
static const char *name_of(const split *s, int node, const epi_tensor_decl *saved, int count) {
    const char *own = s->g.nodes[node].name;
    return epi_free_name(s->g.arena, own ? own : "saved", is_taken, &(named){&s->g, saved, count});
}

/* The axes by which a value is saved: those that the program declares, not what they are renamed to, unless
 * the value has both. */
static epi_axes declared_axes(const epi_graph *g, int node) {
    epi_axes axes = g->nodes[node].axes;
    for (int i = 0; i < axes.count; i++) {
        epi_axis axis = axes.at[i];
        while (axis.dim >= g->declared_count) {
            epi_axis of = g->same[axis.dim];
            axis = (epi_axis){of.dim, (int16_t)(of.shift + axis.shift)};
        }
        if (epi_axes_find_dim(&axes, axis.dim) < 0)
            axes.at[i] = axis;
    }
    return axes;
}

/* A value by other names of its axes, which are in the same order; what has the axes in another order has
 * them by their names. */
static int renamed_to(epi_graph *g, int value, const epi_axes *from, const epi_axes *to) {
    for (int i = 0; i < from->count && !epi_axes_same_set(from, to) && !epi_graph_failed(g); i++)
        value = epi_graph_rename(g, value, from->at[i], to->at[i]);
    return epi_graph_failed(g) ? EPI_NO_NODE : epi_graph_value(g, value);
}

/* The product of the backward that takes the value, by itself or times a scale; NULL if there is none. */
static const epi_node *product_of(const split *s, int node, bool scaled) {
    epi_use_list uses = epi_graph_uses(&s->g, node);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (user == EPI_NO_NODE || !s->g.live[user])
            continue;
        const epi_node *n = &s->g.nodes[user];
        if (n->op == EPI_OP_MATMUL && s->backward[user])
            return n;
        const epi_node *behind = n->op == EPI_OP_MUL && !scaled ? product_of(s, user, true) : NULL;
        if (behind)
            return behind;
    }
    return NULL;
}

/* Few bits lie as the product that takes them reads them: its depth innermost. */
static void order(const split *s, epi_tensor_decl *t) {
    const epi_node *product =
        t->has_type && epi_dtype_size(t->type) == 1 ? product_of(s, t->node, false) : NULL;
    if (!product || !epi_axes_same_set(&t->axes, &s->g.nodes[t->node].axes) ||
        epi_axes_count_in(&t->axes, &product->over) != product->over.count)
        return;
    t->axes = epi_axes_without(&t->axes, &product->over);
    epi_axes_unite(&t->axes, &product->over);
}

static epi_tensor_decl declare(const split *s, int node, const char *name, bool output) {
    const epi_node *n = &s->g.nodes[node];
    epi_dtype type = saved_type(s, node);
    return (epi_tensor_decl){.name = name,
                             .is_output = output,
                             .has_type = type != EPI_DTYPE_COUNT,
                             .type = type != EPI_DTYPE_COUNT ? type : EPI_F32,
                             .axes = declared_axes(&s->g, node),
                             .node = node,
                             .place = n->place};
}

/* ---- axes that the backward lacks ---- */

static void note_axes(bool *known, const epi_axes *axes) {
    for (int i = 0; i < axes->count; i++)
        known[axes->at[i].dim] = true;
}

/* Marks what the backward makes, and what it makes that of. */
static void find_made(const split *s, bool *made) {
    const epi_graph *g = &s->g;
    for (int t = g->input_count + s->results; t < g->tensor_count; t++)
        made[g->tensors[t].node] = true;
    for (int i = g->node_count - 1; i >= 0; i--)
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && made[i] && !s->saved[i]; a++)
            made[g->nodes[i].arg[a]] = true;
}

/* An axis is known by what it is a rename of, too. */
static bool is_known(const epi_graph *g, const bool *known, int dim) {
    while (!known[dim] && dim >= g->declared_count)
        dim = g->same[dim].dim;
    return known[dim];
}

/* Does the forward make it along an axis whose size its operands do not tell, and nothing that is known? */
static bool lacks_size(const split *s, int node, const bool *known) {
    const epi_node *n = &s->g.nodes[node];
    bool tells = n->op != EPI_OP_SIZE && n->op != EPI_OP_INDEX && !epi_op_scatters(n->op) &&
                 !epi_op_gives_places(n->op) && !epi_op_draws(n->op);
    bool lacks = false;
    for (int i = 0; i < n->over.count && !tells && !s->backward[node]; i++)
        lacks |= !is_known(&s->g, known, n->over.at[i].dim);
    return lacks;
}

/* The size of an axis, positions and random numbers along it are in the backward only if a tensor of it has
 * the axis: else they are saved, too. */
static void save_sizes(split *s) {
    const epi_graph *g = &s->g;
    bool *made = epi_arena_alloc(g->arena, (size_t)g->node_count + 1);
    bool *known = epi_arena_alloc(g->arena, (size_t)g->dim_count + 1);
    if (!made || !known)
        return;
    find_made(s, made);
    for (int t = s->own; t < g->tensor_count; t++) /* cotangents and gradients */
        if (t < g->input_count || t >= g->input_count + s->results)
            note_axes(known, &g->tensors[t].axes);
    for (int i = 0; i < g->node_count; i++) {
        epi_axes declared = declared_axes(g, i);
        if (made[i] && s->saved[i])
            note_axes(known, &declared);
    }
    for (int i = 0; i < g->node_count; i++) {
        s->saved[i] |= made[i] && lacks_size(s, i, known);
        if (made[i])
            note_axes(known, &g->nodes[i].axes);
    }
}

/* A program of these tensors, whose nodes are those of the whole. */
static void extract(const split *s, const epi_tensor_decl *tensors, int inputs, int count, epi_graph *out) {
    const epi_graph *g = &s->g;
    epi_extract x = {0};
    if (!epi_extract_begin(&x, g, out, count))
        return;
    for (int t = 0; t < inputs; t++) {
        int input = epi_extract_input(&x, &tensors[t], EPI_NO_NODE), node = tensors[t].node;
        x.fresh[node] = renamed_to(out, input, &tensors[t].axes, &g->nodes[node].axes);
    }
    for (int t = inputs; t < count; t++)
        x.needed[tensors[t].node] = true;
    epi_extract_copy(&x);
    for (int t = inputs; t < count && !epi_graph_failed(out); t++) {
        int node = tensors[t].node;
        epi_extract_output(&x, &tensors[t],
                           renamed_to(out, x.fresh[node], &g->nodes[node].axes, &tensors[t].axes));
    }
    epi_graph_finish(out);
}

/* Room for all tensors of either program. */
static epi_tensor_decl *new_list(const split *s, int saved_count) {
    return epi_arena_alloc(s->g.arena,
                           (size_t)(s->g.tensor_count + saved_count + 1) * sizeof(epi_tensor_decl));
}

/* Appends tensors to a list, and returns how many it has then. */
static int append(epi_tensor_decl *list, int count, const epi_tensor_decl *more, int more_count) {
    memcpy(list + count, more, (size_t)more_count * sizeof *list);
    return count + more_count;
}

static void write_forward(const split *s, const epi_tensor_decl *saved, int saved_count, epi_graph *out) {
    const epi_graph *g = &s->g;
    epi_tensor_decl *tensors = new_list(s, saved_count);
    if (!tensors)
        return;
    int inputs = append(tensors, 0, g->tensors, s->own);
    int count = append(tensors, inputs, g->tensors + g->input_count, s->results);
    count = append(tensors, count, saved, saved_count);
    extract(s, tensors, inputs, count, out);
}

static void write_backward(split *s, const epi_tensor_decl *saved, int saved_count, epi_graph *out) {
    epi_graph *g = &s->g;
    epi_tensor_decl *tensors = new_list(s, saved_count);
    int count = 0, gradients = g->input_count + s->results;
    if (!tensors)
        return;
    for (int t = 0; t < s->own; t++)
        if (s->saved[g->tensors[t].node])
            tensors[count++] = g->tensors[t];
    for (int t = g->input_count; t < gradients; t++)
        if (s->saved[g->tensors[t].node] && g->nodes[g->tensors[t].node].op != EPI_OP_INPUT &&
            result_of(s, g->tensors[t].node) == t)
            tensors[count++] = g->tensors[t];
    count = append(tensors, count, saved, saved_count);
    int inputs = append(tensors, count, g->tensors + s->own, g->input_count - s->own);
    count = append(tensors, inputs, g->tensors + gradients, g->tensor_count - gradients);
    epi_ranges ranges = {0};
    for (int t = 0; t < inputs; t++) {
        const epi_range *range = epi_range_of(&ranges, g, tensors[t].node);
        tensors[t].is_output = false;
        tensors[t].infinite = !tensors[t].cotangent && !tensors[t].param && range && !epi_is_finite(range);
    }
    if (inputs > EPI_MAX_TENSORS)
        epi_graph_fail(out, "the backward would have more than %d inputs", EPI_MAX_TENSORS);
    else
        extract(s, tensors, inputs, count, out);
}

void epi_save(const epi_graph *program, const epi_graph *gradient, epi_save_way way, epi_graph *forward,
              epi_graph *backward) {
    split s = {.g = {.arena = forward->arena}, .lean = way != EPI_SAVE_FOR_TIME};
    unite(&s, program, gradient);
    if (!epi_graph_failed(&s.g))
        take_results(&s);
    if (!epi_graph_failed(&s.g))
        relocate(&s);
    if (!epi_graph_failed(&s.g) && way != EPI_SAVE_AS_RESULTS)
        take_slots(&s);
    epi_tensor_decl *saved = epi_arena_alloc(s.g.arena, ((size_t)s.g.node_count + 1) * sizeof *saved);
    if (!epi_graph_failed(&s.g) && allocate(&s) && choose(&s)) {
        int count = 0;
        save_sizes(&s);
        for (int i = 0; i < s.g.node_count; i++)
            if (s.saved[i] && s.g.nodes[i].op != EPI_OP_INPUT && result_of(&s, i) < 0) {
                if (s.results + count == EPI_MAX_TENSORS) {
                    epi_graph_fail(&s.g, "more than %d values would have to be saved",
                                   EPI_MAX_TENSORS - s.results);
                    break;
                }
                const char *name = name_of(&s, i, saved, count);
                saved[count] = declare(&s, i, name, true);
                order(&s, &saved[count++]);
            }
        if (!epi_graph_failed(&s.g)) {
            write_forward(&s, saved, count, forward);
            write_backward(&s, saved, count, backward);
        }
    }
    if (epi_graph_failed(&s.g))
        forward->error = s.g.error;
    else if (epi_graph_failed(backward) && forward->error.status == EPI_OK)
        forward->error = backward->error;
}

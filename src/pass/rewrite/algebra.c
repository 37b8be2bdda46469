/* algebra.c: applies each rule of the algebra once to the whole program, in an order in which none undoes
 * another.
 *
 *     normal form (with the delayed scales), relocate, reorder, reuse, unify
 *
 * A rule looks at the whole program and notes what it finds at each node. Then one walk, which is the normal
 * form again, applies all of it. So the time grows with the program, and nothing is tried twice. */
#include "pass/rewrite/algebra.h"

#include <string.h>

#include "pass/analyse/cost.h"

typedef struct passes {
    const epi_spec *spec;
    const epi_algebra_choice *choice;
    bool *is_weight, *is_foreign;
    int64_t sizes[EPI_MAX_DIMS]; /* by dim, rows at their nominal number */
    epi_graph g;                 /* what the last walk made */
    epi_facts facts;
    epi_algebra_log *log;
} passes;

const char *epi_rule_name(epi_algebra_rule rule) {
    static const char *const names[EPI_RULE_COUNT] = {"delay", "relocate", "reorder", "reuse", "unify"};
    return names[rule];
}

/* An input that has no row axis; cotangents and integers are none. */
static void find_weights(const epi_spec *spec, bool *is_weight, bool *is_foreign) {
    const epi_graph *g = spec->graph;
    for (int t = 0; t < g->input_count; t++) {
        const epi_tensor_decl *d = &g->tensors[t];
        is_foreign[t] = !epi_dtype_in_f32(spec->types[t]);
        is_weight[t] = !d->cotangent && !epi_dtype_is_integer(spec->types[t]);
        for (int i = 0; i < d->axes.count; i++)
            is_weight[t] &= !spec->is_row[d->axes.at[i].dim];
    }
}

static void walk_with(passes *p, int count, const int *found, const epi_stand_in *operand,
                      const bool *cancels) {
    epi_graph *in = epi_arena_alloc(p->g.arena, sizeof *in);
    if (!in)
        return;
    *in = p->g;
    epi_normal_request request = {.in = in,
                                  .count = count,
                                  .found = found,
                                  .operand = operand,
                                  .known = {.is_weight = p->is_weight,
                                            .is_foreign = p->is_foreign,
                                            .sizes = p->sizes,
                                            .pinned = p->choice->pinned,
                                            .folds = p->choice->folds,
                                            .cancels = cancels,
                                            .near = p->choice->near,
                                            .no_delay = p->choice->without >> EPI_RULE_DELAY & 1}};
    epi_normal(&request, &p->g, &p->facts);
}

/* Statistics of the whole program may be replaced, and all its products are at hand. */
static int relocate(epi_facts *facts, int *found) {
    return epi_relocate(facts, facts->g->live, facts->g->live, found);
}

/* Room for what stands for each node; nothing does yet. NULL after an error. */
static int *nothing_found(passes *p) {
    int count = p->facts.finished;
    int *found = epi_arena_alloc(p->g.arena, ((size_t)count + 1) * sizeof *found);
    for (int i = 0; i < count && found; i++)
        found[i] = EPI_NO_NODE;
    return epi_graph_failed(&p->g) ? NULL : found;
}

static void apply(passes *p, epi_algebra_rule rule, int (*find)(epi_facts *facts, int *found)) {
    int count = p->facts.finished, *found = nothing_found(p);
    if (!found || (p->choice->without >> rule & 1))
        return;
    p->log->applied[rule] = find(&p->facts, found);
    if (p->log->applied[rule] && !epi_graph_failed(&p->g))
        walk_with(p, count, found, NULL, NULL);
}

/* Marks the inputs that something is divided by. */
static void find_divisors(epi_facts *facts, bool *divisor) {
    const epi_graph *g = facts->g;
    memset(divisor, 0, (size_t)g->input_count);
    for (int i = 0; i < facts->finished; i++) {
        if (!g->live[i] || g->nodes[i].op != EPI_OP_DIV)
            continue;
        epi_monomial f = epi_flat_monomial(facts, g->nodes[i].arg[1]);
        for (int k = 0; k < f.count; k++)
            if (g->nodes[f.at[k].node].op == EPI_OP_INPUT)
                divisor[g->nodes[f.at[k].node].tensor] = true;
    }
}

/* An input of which nothing is known, such as a norm's scale that the forward has saved, may be 0, and no
 * value may be divided by it. But where all that is made of a product is multiplied by the input, the one
 * over it cancels, and no division is left. So it is tried with all inputs that nothing is divided by
 * (weights go past their products instead), and again without those that something is divided by then. */
static void unify(passes *p) {
    int count = p->facts.finished, inputs = p->g.input_count;
    epi_stand_in *operand = epi_arena_alloc(p->g.arena, ((size_t)count + 1) * sizeof *operand);
    bool *cancels = epi_arena_alloc(p->g.arena, (size_t)inputs + 1);
    bool *divisor = epi_arena_alloc(p->g.arena, (size_t)inputs + 1);
    if (epi_graph_failed(&p->g) || (p->choice->without >> EPI_RULE_UNIFY & 1))
        return;
    find_divisors(&p->facts, divisor);
    for (int t = 0; t < inputs; t++)
        cancels[t] = !divisor[t] && !p->is_weight[t];
    for (bool again = true; again && !epi_graph_failed(&p->g);) {
        again = false;
        p->log->applied[EPI_RULE_UNIFY] = epi_unify(&p->facts, cancels, operand);
        if (!p->log->applied[EPI_RULE_UNIFY] || epi_graph_failed(&p->g))
            return;
        const passes before = *p;
        walk_with(p, count, NULL, operand, cancels);
        if (!epi_graph_failed(&p->g))
            find_divisors(&p->facts, divisor);
        for (int t = 0; t < inputs; t++) {
            again |= cancels[t] && divisor[t];
            cancels[t] &= !divisor[t];
        }
        if (again)
            *p = before;
    }
    p->facts.cancels = NULL;
}

/* Puts what is found in its place, with nothing else written anew. The graph was finished. */
static void replace(passes *p, bool (*find)(epi_graph *g, int count, int *found)) {
    int count = p->facts.finished, *found = nothing_found(p);
    if (!found || !find(&p->g, count, found) || epi_graph_failed(&p->g))
        return;
    epi_graph out = {.arena = p->g.arena};
    epi_replace(&p->g, count, found, false, &out);
    p->g = out;
    p->facts = (epi_facts){.g = &p->g, .finished = out.node_count};
}

/* Marks what is kept itself, and what a value that a gradient takes, or that is converted to 8 bits, is made of: saved, it
 * is the forward's. */
static bool *find_fixed(const epi_graph *g, int count) {
    bool *fixed = epi_arena_alloc(g->arena, (size_t)count + 1);
    for (int i = count - 1; i >= 0 && fixed; i--) {
        const epi_op_row *row = &epi_ops[g->nodes[i].op];
        fixed[i] |= g->nodes[i].saving == EPI_SAVE_TAKEN || (row->converts && epi_dtype_size(row->type) == 1);
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && fixed[i]; a++)
            fixed[g->nodes[i].arg[a]] = true;
    }
    for (int i = 0; i < count && fixed; i++)
        fixed[i] |= g->nodes[i].saving == EPI_SAVE_KEEP;
    return fixed;
}

bool epi_find_silu(epi_graph *g, int count, int *found) {
    const bool *fixed = find_fixed(g, count);
    int *sigmoid = epi_arena_alloc(g->arena, ((size_t)count + 1) * sizeof *sigmoid); /* of each; 0: none */
    bool any = false;
    for (int i = 0; i < count && sigmoid && fixed; i++)
        if (g->live[i] && g->nodes[i].op == EPI_OP_SIGMOID)
            sigmoid[g->nodes[i].arg[0]] = i;
    for (int i = 0; i < count && !epi_graph_failed(g); i++) {
        const epi_node n = g->nodes[i];
        if (!g->live[i] || n.op != EPI_OP_SILU || fixed[i] || !sigmoid[n.arg[0]])
            continue;
        found[i] = epi_graph_value(g, epi_graph_map2(g, EPI_OP_MUL, n.arg[0], sigmoid[n.arg[0]]));
        any = true;
    }
    return any;
}

/* What a factor of a renamed product is before it is renamed: the operand of the same rename, or itself where
 * it has neither name of the axis; else EPI_NO_NODE. */
static int before_rename(const epi_graph *g, int node, const epi_axes *names) {
    const epi_node *n = &g->nodes[node];
    if (n->op == EPI_OP_RENAME && epi_axis_equal(n->over.at[0], names->at[0]) &&
        epi_axis_equal(n->over.at[1], names->at[1])) /* one with a type is stored itself */
        return g->nodes[n->arg[0]].has_stored ? EPI_NO_NODE : n->arg[0];
    return epi_axes_count_in(&n->axes, names) ? EPI_NO_NODE : node;
}

/* rename(a)*rename(b) is rename(a*b): a part that makes a can then make the product, and what is renamed is
 * what it stores. */
static bool find_renamed(epi_graph *g, int count, int *found) {
    bool any = false;
    for (int i = 0; i < count && !epi_graph_failed(g); i++) {
        const epi_node n = g->nodes[i];
        if (!g->live[i] || !epi_op_has_factors(n.op))
            continue;
        int arg[2], inner[2] = {EPI_NO_NODE, EPI_NO_NODE};
        epi_axes names = {0};
        for (int a = 0; a < 2; a++) {
            arg[a] = found[n.arg[a]] == EPI_NO_NODE ? n.arg[a] : found[n.arg[a]];
            if (g->nodes[arg[a]].op == EPI_OP_RENAME)
                names = g->nodes[arg[a]].over;
        }
        for (int a = 0; a < 2 && names.count; a++)
            inner[a] = before_rename(g, arg[a], &names);
        if (inner[0] == EPI_NO_NODE || inner[1] == EPI_NO_NODE)
            continue;
        g->place = n.place;
        int product = epi_graph_map2(g, n.op, inner[0], inner[1]);
        found[i] = epi_graph_value(g, epi_graph_rename(g, product, names.at[0], names.at[1]));
        any = true;
    }
    return any;
}

void epi_algebra_rewrite(const epi_spec *spec, const epi_algebra_choice *choice, epi_graph *out,
                         epi_algebra_log *log) {
    epi_arena *arena = out->arena;
    passes p = {.spec = spec, .choice = choice, .g = *spec->graph, .log = log};
    *log = (epi_algebra_log){{0}};
    p.is_weight = epi_arena_alloc(arena, (size_t)spec->graph->input_count + 1);
    p.is_foreign = epi_arena_alloc(arena, (size_t)spec->graph->input_count + 1);
    if (!p.is_weight || !p.is_foreign)
        return;
    find_weights(spec, p.is_weight, p.is_foreign);
    epi_nominal_sizes(spec, p.sizes);
    p.g.arena = arena;
    walk_with(&p, spec->graph->node_count, NULL, NULL, NULL);
    log->applied[EPI_RULE_DELAY] = p.facts.delayed;
    apply(&p, EPI_RULE_RELOCATE, relocate);
    apply(&p, EPI_RULE_REORDER, epi_reorder);
    apply(&p, EPI_RULE_REUSE, epi_reuse);
    unify(&p);
    replace(&p, epi_find_silu);
    replace(&p, find_renamed);
    if (epi_graph_failed(&p.g))
        *out = p.g;
    else
        epi_order(&p.g, p.facts.finished, out);
}

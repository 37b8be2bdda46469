/* grad.c: reverse mode. It writes the forward values first. Then it goes from the last value to the first,
 * and writes what each adds to the gradients of its operands.
 *
 * A gradient may lack axes of its value, along which it is constant. So a sum's gradient is a broadcast that
 * costs nothing, and a sum over an axis that a gradient lacks is a multiplication by its size. */
#include "pass/derive/grad.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/index.h"
#include "pass/analyse/monomial.h"
#include "pass/analyse/range.h"
#include "pass/analyse/sent.h"
#include "pass/analyse/stored.h"
#include "pass/derive/taken.h"
#include "pass/rewrite/once.h"

typedef struct reverse {
    const epi_grad_request *request;
    const epi_graph *f; /* forward */
    epi_graph *g;       /* derived */
    int *copy;          /* by forward node: the same value in g */
    int *gradient;      /* by forward node: what came together so far, or EPI_NO_NODE */
    bool *wanted;       /* by forward node: an input that is asked for depends on its gradient */
    epi_taken *taken;   /* by forward node: where its gradient is not 0 */
    bool *chooses;      /* by tensor of g: a choice of the program depends on it */
    epi_ranges ranges;  /* of g */
} reverse;

bool epi_has_gradient(const epi_tensor_decl *tensor) {
    return !tensor->has_type || !epi_dtype_is_whole(tensor->type);
}

/* Is something told to depend on this result? */
static bool has_cotangent(const reverse *r, int tensor) {
    return epi_has_gradient(&r->f->tensors[tensor]) &&
           !(r->request->none && r->request->none[tensor - r->f->input_count]);
}

/* ---- small values ---- */

/* How many elements lie along these axes. */
static int count_along(epi_graph *g, const epi_axes *axes) {
    int n = EPI_NO_NODE;
    for (int i = 0; i < axes->count; i++) {
        int size = epi_graph_leaf(g, EPI_OP_SIZE, axes->at[i]);
        n = i ? epi_graph_map2(g, EPI_OP_MUL, n, size) : size;
    }
    return n;
}

/* The sum over these axes; along those it lacks the value is the same. */
static int sum_over(epi_graph *g, int value, const epi_axes *axes) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    epi_axes lacks = epi_axes_without(axes, &g->nodes[value].axes), has = epi_axes_without(axes, &lacks);
    if (has.count)
        value = epi_graph_reduce(g, EPI_OP_SUM, value, &has);
    return lacks.count ? epi_graph_map2(g, EPI_OP_MUL, value, count_along(g, &lacks)) : value;
}

/* ---- what an operation adds to the gradients of its operands ---- */

/* A product's gradient by one operand: that of the result times the other operand, summed over the axes that
 * the operand lacks, all of which the other has. */
static int product_gradient(epi_graph *g, int d, int other, const epi_axes *want) {
    if (epi_graph_failed(g))
        return EPI_NO_NODE;
    epi_axes gone = epi_axes_without(&g->nodes[other].axes, want);
    epi_axes only = epi_axes_without(&gone, &g->nodes[d].axes),
             kept = epi_axes_without(&g->nodes[d].axes, &gone);
    epi_axes both = epi_axes_without(&g->nodes[d].axes, &kept); /* in the order of d's */
    other = only.count ? sum_over(g, other, &only) : other;
    return both.count ? epi_graph_contract(g, d, other, &both) : epi_graph_map2(g, EPI_OP_MUL, d, other);
}

/* The axes of what the rule for an operand says, before it is summed to the operand's own. */
static epi_axes rule_axes(const epi_graph *f, const epi_node *n, int operand) {
    epi_axes axes = n->axes;
    if (n->op == EPI_OP_UPDATE && operand == 2)
        return epi_axes_without(&n->axes, &n->over);
    if (epi_ops[n->op].joins)
        axes.at[epi_axes_find(&axes, n->over.at[0])].shift--;
    if (epi_op_scatters(n->op)) { /* what gather takes back */
        epi_axes rest = epi_axes_without(&n->axes, &n->over);
        axes = f->nodes[n->arg[1]].axes;
        epi_axes_unite(&axes, &rest);
    }
    return axes;
}

/* Does the index have an axis of what it takes from? */
static bool gathers_by_batch(const epi_graph *f, const epi_node *n) {
    epi_axes rest = epi_axes_without(&f->nodes[n->arg[0]].axes, &n->over);
    return epi_axes_meet(&rest, &f->nodes[n->arg[1]].axes);
}

/* What such a gather's result sends back: the sum over the axes of the index that what it takes from lacks. Where there
 * are none, each element goes to a place of its own. */
static int send_back(const reverse *r, const epi_node *n, int d) {
    epi_axes rest = epi_axes_without(&r->f->nodes[n->arg[0]].axes, &n->over);
    epi_axes sums = epi_axes_without(&r->f->nodes[n->arg[1]].axes, &rest);
    int index = r->copy[n->arg[1]];
    return sums.count ? epi_graph_scatter(r->g, d, index, &sums, &n->over)
                      : epi_sent_alone(r->g, d, index, &n->over);
}

/* What a scan has as factor at the step that follows, in its own order. */
static int of_next_step(epi_graph *g, const epi_node *n, int a) {
    epi_axis axis = n->over.at[0];
    if (epi_graph_failed(g) || epi_axes_find(&g->nodes[a].axes, axis) < 0)
        return a;
    return epi_graph_shifted(g, a, axis, epi_ops[n->op].back ? 1 : -1);
}

/* What a rule says of a gradient. Where a factor in it may be infinite or NaN, it says so only of what was
 * taken: elsewhere it is 0. */
static int say_rule(reverse *r, epi_rule *rule, epi_taken *taken) {
    epi_graph *g = r->g;
    int value = epi_graph_failed(g) ? EPI_NO_NODE : r->request->apply(r->request->language, g, rule);
    const epi_range *range = taken->count ? epi_range_of(&r->ranges, g, value) : NULL;
    if (range && !epi_is_finite(range)) {
        rule->d = epi_taken_inside(g, taken, rule->d, false);
        value = epi_graph_failed(g) ? EPI_NO_NODE : r->request->apply(r->request->language, g, rule);
        epi_taken outer = *taken;
        epi_taken_note(g, taken, value);
        return epi_taken_only(g, &outer, value);
    }
    epi_taken_note(g, taken, value);
    return value;
}

static int operand_gradient(reverse *r, const epi_node *n, int node, int operand, int d, epi_taken *taken) {
    epi_graph *g = r->g;
    const epi_axes *want = &r->f->nodes[n->arg[operand]].axes;
    bool views = epi_op_is_view(n->op), reduces = epi_op_reduces(n->op);
    if (epi_op_is_product(n->op))
        return product_gradient(g, d, r->copy[n->arg[1 - operand]], want);
    if (views && epi_axes_find(&g->nodes[d].axes, n->over.at[1]) < 0)
        return d;
    if (epi_op_has_halves(n->op) || epi_op_by_index(n->op) || n->op == EPI_OP_SHIFT)
        d = epi_graph_complete(g, d, &n->axes);
    if (epi_op_scans(n->op))
        d = epi_graph_complete(g, d, &n->over);
    epi_rule rule = {.text = n->fixed ? "d" : epi_ops[n->op].derivative[operand],
                     .d = d,
                     .y = r->copy[node],
                     .n = reduces ? count_along(g, &n->over) : EPI_NO_NODE,
                     .over = n->over,
                     .operand = operand};
    if (views) {
        rule.over = (epi_axes){1, {n->over.at[0]}};
        rule.renames = true;
        rule.to = n->over.at[1];
    }
    int *value[] = {&rule.a, &rule.b, &rule.c};
    for (int a = 0; a < 3; a++)
        *value[a] = n->arg[a] == EPI_NO_NODE ? EPI_NO_NODE : r->copy[n->arg[a]];
    if (n->op == EPI_OP_SHIFT)
        rule.c = epi_graph_const(g, n->value);
    if (n->op == EPI_OP_SCATTER_BATCH)
        rule.over = epi_index_along(r->f, n);
    if (epi_op_scans(n->op))
        rule.c = of_next_step(g, n, rule.a);
    epi_taken none = {0}; /* only elements of the same place are followed */
    int value_of_rule = n->op == EPI_OP_GATHER && gathers_by_batch(r->f, n)
                            ? send_back(r, n, d)
                            : say_rule(r, &rule, epi_op_is_map(n->op) || reduces ? taken : &none);
    bool kept = reduces || views || n->op == EPI_OP_SHIFT || epi_op_is_half(n->op);
    if (epi_graph_failed(g) || kept) /* it has the operand's axes */
        return value_of_rule;
    epi_axes have = n->op == EPI_OP_GATHER ? g->nodes[value_of_rule].axes : rule_axes(r->f, n, operand);
    epi_axes gone = epi_axes_without(&have, want);
    return gone.count ? sum_over(g, value_of_rule, &gone) : value_of_rule;
}

/* ---- the walk ---- */

static bool has_rule(const epi_node *n, int operand) {
    const char *text = epi_ops[n->op].derivative[operand];
    bool fixed = n->fixed && !(n->op == EPI_OP_MAX && operand == 0);
    return !fixed && n->arg[operand] != EPI_NO_NODE && text && *text;
}

/* Is the gradient by an argument of the call wanted? */
static bool wants_own(const reverse *r, int node) {
    const epi_own *own = r->f->nodes[node].own;
    int arguments[EPI_MAX_TENSORS];
    bool any = false;
    epi_own_arguments(r->f, node, arguments);
    for (int i = 0; i < own->input_count; i++)
        any |= own->gives[i] && r->wanted[arguments[i]];
    return any;
}

static void find_wanted(reverse *r) {
    for (int i = 0; i < r->request->wrt_count; i++)
        r->wanted[r->f->tensors[r->request->wrt[i]].node] = true;
    for (int i = 0; i < r->f->node_count; i++) {
        for (int a = 0; a < 3; a++)
            if (has_rule(&r->f->nodes[i], a))
                r->wanted[i] |= r->wanted[r->f->nodes[i].arg[a]];
        if (r->f->nodes[i].op == EPI_OP_OWN)
            r->wanted[i] = wants_own(r, i);
    }
}

/* Is it a choice of 0 where an extreme is -inf, as in a softmax? */
static bool is_of_extreme(const epi_graph *f, const epi_node *n) {
    const epi_node *when = &f->nodes[n->arg[0]];
    return when->op == EPI_OP_EQ && epi_is_constant(f, when->arg[1], -INFINITY);
}

/* What the conditions of choices are made of. */
static void find_choosing(reverse *r) {
    const epi_graph *f = r->f;
    bool *above = epi_arena_alloc(r->g->arena, (size_t)f->node_count + 1);
    for (int i = f->node_count - 1; i >= 0 && above; i--) {
        const epi_node *n = &f->nodes[i];
        if (n->op == EPI_OP_WHERE && !is_of_extreme(f, n))
            above[n->arg[0]] = true;
        for (int a = 0; a < epi_node_operands(n); a++)
            above[n->arg[a]] |= above[i];
        if (n->op == EPI_OP_INPUT)
            r->chooses[n->tensor] = above[i];
    }
}

/* "d_" and the name, in the arena. */
static const char *gradient_name(epi_arena *arena, const char *of) {
    char text[160];
    snprintf(text, sizeof text, "d_%.150s", of);
    return epi_arena_text(arena, text, strlen(text));
}

/* x*x: both operands have the same gradient. */
static bool is_square(const epi_node *n) {
    return n->op == EPI_OP_MUL && n->arg[0] == n->arg[1];
}

/* What is known of an operand's gradient, from that of the result: along axes that both have, and that no
 * elements move along. */
static void keep_taken(const reverse *r, const epi_node *n, int operand, epi_taken *taken) {
    epi_axes axes = r->f->nodes[n->arg[operand]].axes;
    if (epi_op_reads_elsewhere(n->op))
        axes = epi_axes_without(&axes, &n->over);
    epi_taken_keep(r->g, taken, &axes);
}

/* What comes together for a value: one more gradient, and where it is not 0. */
static void add_gradient(reverse *r, int node, int more, const epi_taken *taken) {
    epi_taken *known = &r->taken[node];
    int *sum = &r->gradient[node];
    *known = *sum == EPI_NO_NODE ? *taken : epi_taken_either(r->g, known, taken);
    if (*sum != EPI_NO_NODE && !epi_graph_failed(r->g))
        more = epi_graph_map2(r->g, EPI_OP_ADD, *sum, more);
    *sum = epi_graph_value(r->g, more);
}

/* The gradient has the name of its value, if it has none. */
static void name_gradient(reverse *r, int node, int d) {
    epi_node *to = &r->g->nodes[d];
    const char *name = r->f->nodes[node].name;
    if (name && !to->name && to->op != EPI_OP_CONST)
        to->name = gradient_name(r->g->arena, name);
}

/* ---- calls that have their own gradient ---- */

/* What such a gradient takes is saved, but for what is a view of an input. */
static void save_taken(epi_graph *g, int node) {
    node = epi_graph_renamed(g, node);
    epi_node *n = &g->nodes[node], *of = n;
    int64_t at;
    while (of->op == EPI_OP_RENAME || epi_op_is_half(of->op) ||
           (of->op == EPI_OP_GATHER && epi_graph_at_number(g, (int)(of - g->nodes), &at)))
        of = &g->nodes[of->arg[0]];
    if (!epi_op_is_leaf(of->op) && n->saving == EPI_SAVE_OPEN)
        n->saving = EPI_SAVE_TAKEN;
}

/* The cotangents of the call's results, whose first is this node, behind the arguments and the results; false:
 * no one has a gradient, and so none of the arguments gets one. */
static bool gather_own(reverse *r, int first, const int *arguments, int *given) {
    epi_graph *g = r->g;
    const epi_own *own = r->f->nodes[first].own;
    int *results = given + own->input_count, *cotangents = results + own->result_count;
    bool any = false;
    for (int i = 0; i < own->input_count; i++)
        given[i] = r->copy[arguments[i]];
    for (int i = 0; i < own->result_count && !epi_graph_failed(g); i++) {
        int d = r->gradient[first + i];
        results[i] = r->copy[first + i];
        any |= d != EPI_NO_NODE;
        if (d != EPI_NO_NODE)
            name_gradient(r, first + i, d);
        cotangents[i] =
            epi_graph_complete(g, d == EPI_NO_NODE ? epi_graph_const(g, 0) : d, &r->f->nodes[first + i].axes);
    }
    return any && !epi_graph_failed(g);
}

/* What the call's own gradient adds to those of its arguments. */
static void derive_own(reverse *r, int first) {
    epi_graph *g = r->g;
    const epi_own *own = r->f->nodes[first].own;
    int count = own->input_count,
        *given = epi_arena_alloc(g->arena, (size_t)(3 * count + 2 * own->result_count + 1) * sizeof *given);
    if (!given)
        return;
    int *arguments = given + count + 2 * own->result_count, *out = arguments + count;
    epi_own_arguments(r->f, first, arguments);
    if (!gather_own(r, first, arguments, given))
        return;
    for (int i = 0; i < count + own->result_count; i++)
        if (own->takes[i])
            save_taken(g, given[i]);
    g->place = r->f->nodes[first].place;
    r->request->apply_own(g, own, given, out);
    for (int i = 0; i < count && !epi_graph_failed(g); i++) {
        if (!own->gives[i] || !r->wanted[arguments[i]])
            continue;
        epi_axes gone = epi_axes_without(&g->nodes[out[i]].axes, &r->f->nodes[arguments[i]].axes);
        int d = gone.count ? sum_over(g, out[i], &gone) : out[i];
        add_gradient(r, arguments[i], d, &(epi_taken){0});
    }
}

/* ---- all of them ---- */

static void walk_back(reverse *r) {
    epi_graph *g = r->g;
    for (int i = r->f->node_count - 1; i >= 0 && !epi_graph_failed(g); i--) {
        const epi_node *n = &r->f->nodes[i];
        int d = r->gradient[i];
        if (n->op == EPI_OP_OWN && n->tensor == 0 && r->wanted[i]) /* the others come behind it */
            derive_own(r, i);
        if (!r->wanted[i] || d == EPI_NO_NODE || n->op == EPI_OP_OWN)
            continue;
        if (r->taken[i].count && epi_range_of(&r->ranges, g, d)) /* what comes in counts as finite */
            r->ranges.at[d] = epi_range_finite();
        name_gradient(r, i, d);
        g->place = n->place;
        for (int a = 0; a < 3; a++) {
            if (!has_rule(n, a) || !r->wanted[n->arg[a]] || (a == 1 && is_square(n)))
                continue;
            epi_taken taken = r->taken[i];
            int more = operand_gradient(r, n, i, a, d, &taken);
            keep_taken(r, n, a, &taken);
            if (is_square(n) && !epi_graph_failed(g))
                more = epi_graph_map2(g, EPI_OP_MUL, epi_graph_const(g, 2), more);
            add_gradient(r, n->arg[a], more, &taken);
        }
    }
}

/* ---- the derived program ---- */

/* A name that no tensor of either program has yet. */
static const char *free_name(const reverse *r, const char *wanted) {
    char text[180];
    snprintf(text, sizeof text, "%.160s", wanted);
    for (int number = 2; epi_graph_find_tensor(r->g, text) >= 0 || epi_graph_find_tensor(r->f, text) >= 0;
         number++)
        snprintf(text, sizeof text, "%.160s_%d", wanted, number);
    return epi_arena_text(r->g->arena, text, strlen(text));
}

static int add_tensor(const reverse *r, const epi_tensor_decl *of, bool output) {
    epi_graph *g = r->g;
    const char *name = gradient_name(g->arena, of->name);
    bool few_bits = epi_dtype_at(of->type)->size == 1; /* the gradient has more digits */
    name = name ? free_name(r, name) : NULL;
    if (!name)
        return -1; /* the arena tells */
    g->tensors[g->tensor_count] = (epi_tensor_decl){.name = name,
                                                    .is_output = output,
                                                    .cotangent = !output,
                                                    .has_type = of->has_type && !few_bits,
                                                    .type = of->type,
                                                    .axes = of->axes,
                                                    .place = of->place};
    /* what is summed up for a short vector is kept in f32 */
    if (output && !g->tensors[g->tensor_count].has_type && of->axes.count && epi_is_vector(&of->axes)) {
        g->tensors[g->tensor_count].has_type = true;
        g->tensors[g->tensor_count].type = EPI_F32;
    }
    return g->tensor_count++;
}

/* The inputs of the program, and a cotangent for each of its results. */
static void declare_inputs(reverse *r) {
    const epi_graph *f = r->f;
    epi_graph *g = r->g;
    for (int t = 0; t < f->input_count; t++)
        g->tensors[g->tensor_count++] = f->tensors[t];
    for (int t = f->input_count; t < f->tensor_count; t++)
        if (has_cotangent(r, t) && add_tensor(r, &f->tensors[t], false) < 0)
            return;
    g->input_count = g->tensor_count;
    if (g->input_count > EPI_MAX_TENSORS)
        epi_graph_fail(g, "its gradient would have more than %d inputs", EPI_MAX_TENSORS);
    if (g->input_count == f->input_count)
        epi_graph_fail(g, r->request->none ? "all cotangents are 0, and so are the gradients"
                                           : "all its results are integers, which have no gradient");
    for (int t = 0; t < g->input_count && !epi_graph_failed(g); t++)
        g->tensors[t].node = epi_graph_input(g, t);
}

static void copy_forward(reverse *r) {
    for (int i = 0; i < r->f->node_count; i++) {
        r->copy[i] = epi_graph_copy(r->g, &r->f->nodes[i], r->copy);
        r->gradient[i] = EPI_NO_NODE;
    }
}

/* The gradient of a result is what comes in, and where one value is two results, the sum of both. */
static void start(reverse *r) {
    const epi_graph *f = r->f;
    for (int t = f->input_count, d = f->input_count; t < f->tensor_count; t++) {
        if (!has_cotangent(r, t))
            continue;
        int *sum = &r->gradient[f->tensors[t].node], in = r->g->tensors[d++].node;
        *sum = *sum == EPI_NO_NODE ? in : epi_graph_map2(r->g, EPI_OP_ADD, *sum, in);
    }
}

static void declare_outputs(reverse *r) {
    epi_graph *g = r->g;
    for (int i = 0; i < r->request->wrt_count && !epi_graph_failed(g); i++) {
        const epi_tensor_decl *in = &r->f->tensors[r->request->wrt[i]];
        int d = r->gradient[in->node], t = add_tensor(r, in, true);
        if (t < 0)
            return;
        d = epi_graph_complete(g, d == EPI_NO_NODE ? epi_graph_const(g, 0) : d, &in->axes);
        g->tensors[t].node = epi_graph_value(g, d);
    }
}

static bool check_asked(reverse *r) {
    epi_graph *g = r->g;
    for (int i = 0; i < r->request->wrt_count; i++) {
        const epi_tensor_decl *t = &r->f->tensors[r->request->wrt[i]];
        g->place = t->place;
        if (!epi_has_gradient(t))
            epi_graph_fail(g, "'%s' is declared %s: integers have no gradient", t->name,
                           epi_dtype_name(t->type));
    }
    return !epi_graph_failed(g);
}

int epi_grad(const epi_grad_request *request, epi_graph *out) {
    const epi_graph *f = request->forward;
    epi_arena *arena = out->arena;
    size_t nodes = (size_t)f->node_count + 1;
    *out = (epi_graph){.arena = arena};
    epi_graph_take_dims(out, f);
    reverse r = {.request = request, .f = f, .g = out};
    r.copy = epi_arena_alloc(arena, nodes * sizeof *r.copy);
    r.gradient = epi_arena_alloc(arena, nodes * sizeof *r.gradient);
    r.wanted = epi_arena_alloc(arena, nodes * sizeof *r.wanted);
    r.taken = epi_arena_alloc(arena, nodes * sizeof *r.taken);
    r.chooses = epi_arena_alloc(arena, (size_t)(f->tensor_count + 1) * 2);
    r.ranges = (epi_ranges){.chooses = r.chooses, .makes = true};
    out->tensors =
        epi_arena_alloc(arena, (size_t)(f->tensor_count + request->wrt_count + 1) * sizeof *out->tensors);
    if (epi_graph_failed(out) || !check_asked(&r))
        return 0;
    declare_inputs(&r);
    if (epi_graph_failed(out))
        return 0;
    copy_forward(&r);
    int copied = 0;
    for (int i = 0; i < out->node_count; i++)
        copied += out->nodes[i].op != (epi_op)EPI_OP_ORDER;
    find_wanted(&r);
    find_choosing(&r);
    if (!epi_graph_failed(out))
        start(&r);
    walk_back(&r);
    declare_outputs(&r);
    epi_graph_finish(out);
    if (!epi_graph_failed(out))
        epi_once_store(out);
    return copied;
}

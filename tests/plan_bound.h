/* plan_bound.h: the bound of a whole program, in two ways.
 *
 * By its plan: part by part as the kernel carries it out, with a rounding wherever something is stored, in
 * the type that it is stored in. By its contract: along the program as it is written, with a rounding
 * wherever the language lets a value be stored, in the type that it promises, counted from absolute values.
 * The plan's is the tighter one; the contract's knows nothing of what the passes did, so a type that they
 * drop, or a choice that they make twice, is no excuse. */
#ifndef EPI_TESTS_PLAN_BOUND_H
#define EPI_TESTS_PLAN_BOUND_H

#include "bound_graph.h"
#include "cpu/cpu.h"
#include "pass/analyse/stored.h"
#include "run/run.h"

/* ---- by the contract ---- */

/* An update is: it may bring elements of two types together. */
static inline bool is_computed(const epi_graph *g, int node) {
    epi_op op = g->nodes[node].op;
    return op == EPI_OP_UPDATE || (op != EPI_OP_INPUT && !epi_op_is_free(op));
}

/* May the user be in another part than its operand is made in? Where it is no map, or has axes more. */
static inline bool goes_to_memory(const epi_graph *g, int user, int operand) {
    return epi_ops[g->nodes[user].op].cls != EPI_CLASS_MAP ||
           g->nodes[user].axes.count > g->nodes[operand].axes.count;
}

/* Is it one of these, or made of one by maps? What is made of a reduction is complete late; what is made of a
 * product is a value of its tile, whatever its axes. */
static inline bool is_made_of(const epi_graph *g, int node, epi_op_class cls) {
    const epi_node *n = &g->nodes[node];
    if (epi_ops[n->op].cls == cls)
        return true;
    for (int a = 0; a < epi_node_operands(n) && epi_ops[n->op].cls == EPI_CLASS_MAP; a++)
        if (is_made_of(g, n->arg[a], cls))
            return true;
    return false;
}

/* Is it a tile, or a tensor as large, that a part of its own makes, and not what maps make of others? */
static inline bool is_tile(const epi_graph *g, int node) {
    epi_op_class cls = epi_ops[g->nodes[node].op].cls;
    return is_computed(g, node) && cls != EPI_CLASS_MAP && cls != EPI_CLASS_RANDOM &&
           g->nodes[node].axes.count > 1;
}

/* Do maps bring the node, which maps make of a tile, together with another tile? Both are in one part where it
 * has one of them in memory: that is the tile, or what is made of it on the way. */
static inline bool meets_tile(const epi_graph *g, int node) {
    /* What the node is made of; what is made of it; what is made of a tile that the node is not made of. */
    enum { ABOVE = 1, BELOW = 2, OTHER = 4 };
    unsigned char *is = calloc((size_t)g->node_count, 1);
    bool of_tile = false, meets = false;
    if (!is)
        return true;
    is[node] = ABOVE | BELOW;
    for (int i = node; i >= 0; i--) {
        of_tile |= is[i] & ABOVE && is_tile(g, i);
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && is[i] & ABOVE && !is_tile(g, i); a++)
            is[g->nodes[i].arg[a]] |= ABOVE;
    }
    for (int i = 0; i < g->node_count && of_tile; i++) {
        if (is_tile(g, i))
            is[i] |= is[i] & ABOVE ? 0 : OTHER;
        else if (epi_ops[g->nodes[i].op].cls == EPI_CLASS_MAP && g->live[i])
            for (int a = 0; a < epi_node_operands(&g->nodes[i]); a++)
                is[i] |= is[g->nodes[i].arg[a]] & (BELOW | OTHER);
        meets |= (is[i] & (BELOW | OTHER)) == (BELOW | OTHER);
    }
    free(is);
    return meets;
}

/* What products and reductions give, what is made of these late or meets another's tile, what something else
 * than a map takes, what is repeated along an axis and what has several users may be in memory on its way. A
 * number per row or column is f32 there, unless a product takes it; what the text gives a type has that. */
static inline double contract_unit(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    epi_use_list uses = epi_graph_uses(b->g, node);
    bool may = epi_ops[n->op].cls != EPI_CLASS_MAP || uses.count > 1 || n->has_stored ||
               is_made_of(b->g, node, EPI_CLASS_REDUCE) || meets_tile(b->g, node);
    bool is_vector = n->axes.count <= 1 && !is_made_of(b->g, node, EPI_CLASS_PRODUCT);
    double coarsest = n->has_stored ? storage_unit(n->stored) : is_vector ? 0 : storage_unit(b->type);
    for (int i = 0; i < uses.count; i++) {
        if (uses.at[i].node == EPI_NO_NODE) /* an output that others read may be read where it is */
            coarsest = fmax(coarsest, uses.count > 1 ? storage_unit(b->types[uses.at[i].operand]) : 0);
        else if (goes_to_memory(b->g, uses.at[i].node, node)) {
            may = true;
            if (epi_is_operand(b->g, uses.at[i]))
                coarsest = n->has_stored ? coarsest : fmax(coarsest, storage_unit(b->type));
        }
    }
    return may && is_computed(b->g, node) && n->op != EPI_OP_RENAME ? coarsest : 0;
}

/* Unfused, every value is. */
static inline double every_unit(const bounding *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    double declared = n->has_stored ? storage_unit(n->stored) : 0;
    return is_computed(b->g, node) ? fmax(contract_unit(b, node), fmax(declared, storage_unit(b->type))) : 0;
}

/* Bounds of a program's outputs, which take their places in `tensors` beside the inputs. */
static inline bool bound_contract(const epi_program *p, const epi_kernel *k, bounded *tensors) {
    int of[2 * EPI_MAX_TENSORS];
    for (int t = 0; t < p->graph.tensor_count; t++)
        of[t] = t;
    bounding b = {.g = &p->graph,
                  .sizes = k->spec.sizes,
                  .tensors = tensors,
                  .of = of,
                  .unit = k->spec.path == EPI_PATH_UNFUSED ? every_unit : contract_unit,
                  .absolute = true,
                  .type = k->spec.type,
                  .types = k->spec.types};
    bool ok = bound_graph(&b);
    for (int t = p->graph.input_count; t < p->graph.tensor_count && ok; t++)
        ok = bound_output(&b, t, k->spec.types[t], &tensors[t]);
    bound_graph_free(&b);
    return ok;
}

/* ---- by the plan ---- */

/* What lies in memory inside of a part has the type of its place there; of what a mainloop takes up on chip a
 * product's operand is rounded to the storage type. */
static inline double plan_unit(const bounding *b, int node) {
    const epi_home *home = &b->steps->homes[node];
    epi_use_list uses = epi_graph_uses(b->g, node);
    if (!is_computed(b->g, node))
        return 0;
    if (home->offset >= 0 || home->tensor >= 0)
        return storage_unit(home->type);
    for (int i = 0; i < uses.count; i++)
        if (uses.at[i].node != EPI_NO_NODE && epi_is_operand(b->g, uses.at[i]))
            return storage_unit(b->type);
    return 0;
}

static inline bool bound_part(const epi_kernel *k, const epi_part_kernel *p, bounded *tensors) {
    const epi_steps *steps = epi_compiled_steps(&p->full);
    const epi_spec *spec = steps->spec;
    int of[2 * EPI_MAX_TENSORS];
    for (int t = 0; t < spec->graph->tensor_count; t++) {
        epi_part_tensor at = p->part ? p->part->tensors[p->to ? p->to[t] : t] : (epi_part_tensor){t, 0};
        of[t] = at.tensor >= 0 ? at.tensor : k->program->graph.tensor_count + at.value;
    }
    epi_slice slices[2 * EPI_MAX_TENSORS];
    for (int t = 0; p->part && t < spec->graph->tensor_count; t++)
        slices[t] = p->part->slices[p->to ? p->to[t] : t];
    bounding b = {.g = spec->graph,
                  .sizes = spec->sizes,
                  .tensors = tensors,
                  .of = of,
                  .unit = plan_unit,
                  .slices = p->part ? slices : NULL,
                  .steps = steps,
                  .type = k->spec.type};
    bool ok = bound_graph(&b);
    for (int t = spec->graph->input_count; t < spec->graph->tensor_count && ok; t++)
        ok = bound_output(&b, t, spec->types[t], &tensors[of[t]]);
    bound_graph_free(&b);
    return ok;
}

/* The same by the plan of a kernel of the CPU. */
static inline bool bound_plan(const epi_kernel *k, bounded *tensors) {
    int count = k->program->graph.tensor_count, values = k->cut.value_count;
    bounded *all = calloc((size_t)(count + values) + 1, sizeof *all);
    bool ok = all != NULL;
    for (int t = 0; t < count && ok; t++)
        all[t] = tensors[t];
    for (int i = 0; i < k->part_count && ok; i++)
        ok = bound_part(k, &k->parts[i], all);
    for (int t = 0; t < count && all; t++)
        tensors[t] = all[t];
    for (int v = 0; v < values && all; v++)
        bounded_free(&all[count + v]);
    free(all);
    return ok;
}

#endif

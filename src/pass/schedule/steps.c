/* steps.c: turns a spec into a list of steps, and finds the home of each value. */
#include "pass/schedule/steps.h"

#include <stdio.h>
#include <string.h>

#include "pass/analyse/stored.h"
#include "pass/place/kept.h"

static const epi_node *node_at(const epi_steps *k, int i) {
    return &k->spec->graph->nodes[i];
}

static epi_step *add_step(epi_steps *k, int node) {
    epi_step *s = &k->at[k->count++];
    *s = (epi_step){.node = node, .tensor = -1};
    return s;
}

/* ---- homes: where values live between steps ---- */

/* Bytes of a value's buffer. Sizes were held against overflow before. */
static int64_t buffer_bytes(const epi_steps *k, int node, epi_dtype type) {
    int64_t count = epi_axes_size(&node_at(k, node)->axes, k->spec->sizes);
    return epi_round_up(count * (int64_t)epi_dtype_size(type), 64);
}

static void give_buffer(epi_steps *k, int node, epi_dtype type) {
    k->homes[node] = (epi_home){-1, k->workspace, type};
    k->workspace += buffer_bytes(k, node, type);
}

static void give_tensor(epi_steps *k, int node, int tensor) {
    k->homes[node] = (epi_home){tensor, -1, k->spec->types[tensor]};
}

static bool has_home(const epi_steps *k, int node) {
    return k->homes[node].tensor >= 0 || k->homes[node].offset >= 0;
}

/* A value without an element is made by nobody. */
static bool is_empty(const epi_steps *k, int node) {
    return epi_axes_size(&node_at(k, node)->axes, k->spec->sizes) == 0;
}

/* Copies into every output whose value was made somewhere else. */
static void add_copies(epi_steps *k, const bool *stored) {
    const epi_graph *g = k->spec->graph;
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (!stored[t] && k->homes[g->tensors[t].node].tensor != t && !is_empty(k, g->tensors[t].node))
            add_step(k, g->tensors[t].node)->tensor = t;
}

/* Products take operands of these types, and attention, which converts keys and values as it loads them, 8 bits. */
static epi_status check_operand(const epi_steps *k, int operand, bool attends, epi_error *err) {
    epi_dtype type = k->homes[operand].type;
    if (!has_home(k, operand) && !(k->plan.fused && k->plan.placement[operand].paged))
        return EPI_INTERNAL(err, node_at(k, operand)->place, "an operand of a product is not in memory");
    if (epi_dtype_is_operand(type) || (attends && epi_dtype_size(type) == 1) ||
        (k->plan.fused && node_at(k, k->plan.product)->scaled))
        return EPI_OK; /* only inputs are stored otherwise, and they have names */
    return epi_fail(err, EPI_ERR_UNSUPPORTED,
                    "%s is an operand of a product and stored as %s, but products take f32, bf16 and f16: "
                    "write (%s + 0) to convert it first",
                    epi_node_label(k->spec->graph, operand).text, epi_dtype_name(type),
                    node_at(k, epi_graph_renamed(k->spec->graph, operand))->name);
}

static epi_status add_kernel(epi_steps *k, epi_plan *plan, epi_root *roots, int count, epi_error *err) {
    epi_status status = EPI_OK;
    for (int side = 0; side < epi_plan_operands(plan) && status == EPI_OK; side++)
        if (!plan->placement[epi_plan_operand(k->spec->graph, plan, side)].on_load)
            status = check_operand(k, epi_plan_source(k->spec->graph, plan, side), false, err);
    const epi_attention *a = plan->attention;
    int operands[EPI_ATTENTION_OPERANDS], operand_count = a ? epi_attention_operands(a, operands) : 0;
    for (int i = 0; i < operand_count && status == EPI_OK; i++)
        status = check_operand(k, operands[i], true, err);
    if (status != EPI_OK)
        return status;
    epi_step *s = add_step(k, plan->product);
    s->plan = plan;
    s->roots = roots;
    s->root_count = count;
    return EPI_OK;
}

/* ---- lists ---- */

/* Known numbers, one mainloop with everything its tile can do, passes after. */
static epi_status list_fused(epi_arena *arena, epi_steps *k, epi_error *err) {
    const epi_graph *g = k->spec->graph;
    epi_root *roots = epi_arena_alloc(arena, (size_t)(g->node_count + g->tensor_count) * sizeof *roots);
    bool *stored = epi_arena_alloc(arena, (size_t)g->tensor_count);
    EPI_TRY(epi_has_memory(roots && stored, err));
    int count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const epi_placement *s = &k->plan.placement[i];
        if (s->reduction > EPI_REDUCE_LOCAL)
            roots[count++] = (epi_root){i, -1};
        if (s->before || s->after || s->reduction > EPI_REDUCE_LOCAL)
            give_buffer(k, i, EPI_F32);
        if (s->before)
            add_step(k, i);
    }
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int node = g->tensors[t].node;
        if (!k->plan.placement[node].moved || has_home(k, node))
            continue;
        add_step(k, g->nodes[node].arg[0])->tensor = t; /* what stays; in its operand's place it is there */
        give_tensor(k, node, t);
        roots[count++] = (epi_root){node, t};
    }
    for (int t = g->input_count; t < g->tensor_count; t++) {
        const epi_placement *s = &k->plan.placement[g->tensors[t].node];
        epi_dtype from = k->homes[g->tensors[t].node].type, to = k->spec->types[t];
        bool exact =
            !epi_dtype_in_f32(to) && (from == to || (epi_dtype_is_integer(from) && epi_dtype_is_integer(to)));
        stored[t] = (s->tile || s->last) && s->reduction <= EPI_REDUCE_LOCAL &&
                    !s->before; /* what passes made is copied, */
        stored[t] &=
            !exact || g->nodes[g->tensors[t].node].op != EPI_OP_INPUT; /* and so are integers and f64 */
        if (stored[t])
            roots[count++] = (epi_root){g->tensors[t].node, t};
    }
    EPI_TRY(add_kernel(k, &k->plan, roots, count, err));
    for (int i = 0; i < g->node_count; i++)
        if (k->plan.placement[i].after)
            add_step(k, i);
    add_copies(k, stored);
    return EPI_OK;
}

/* Positions by which elements are moved, and nothing else: whoever moves them counts. */
static bool is_counted(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool counted = g->nodes[node].op == EPI_OP_INDEX;
    for (int i = 0; i < uses.count && counted; i++)
        counted = uses.at[i].operand == 1 && epi_op_by_index(epi_use_op(g, uses.at[i]));
    return counted;
}

/* A number or positions that an operation on integers takes: it makes them itself. */
static bool is_operand_of_integers(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    bool is = epi_op_is_free(g->nodes[node].op);
    for (int i = 0; i < uses.count && is; i++)
        is = uses.at[i].node != EPI_NO_NODE && g->nodes[uses.at[i].node].integer;
    return is;
}

/* One operation into its output, or orders into theirs, with the leaves that it takes in memory; or a copy. */
static epi_status list_pass(epi_arena *arena, epi_steps *k, epi_error *err) {
    (void)arena, (void)err;
    const epi_graph *g = k->spec->graph;
    for (int i = 0; i < g->node_count; i++) {
        int t = g->input_count;
        while (t < g->tensor_count && g->tensors[t].node != i)
            t++;
        bool output = t < g->tensor_count, input = g->nodes[i].op == EPI_OP_INPUT;
        if (!g->live[i] || (input && !output) || epi_segments_are_read(g, i) || is_counted(g, i) ||
            is_operand_of_integers(g, i))
            continue;
        if (output && !input)
            give_tensor(k, i, t);
        else if (!output) /* positions are integers: f32 does not hold all of them */
            give_buffer(k, i, epi_op_gives_places(g->nodes[i].op) ? EPI_I32 : EPI_F32);
        if (!is_empty(k, i))
            add_step(k, i)->tensor = input ? t : -1;
    }
    return EPI_OK;
}

/* A scan of products into its outputs. */
static epi_status list_recurrence(epi_arena *arena, epi_steps *k, epi_error *err) {
    const epi_graph *g = k->spec->graph;
    epi_root *roots = epi_arena_alloc(arena, (size_t)g->tensor_count * sizeof *roots);
    int count = 0;
    EPI_TRY(epi_has_memory(roots, err));
    for (int t = g->input_count; t < g->tensor_count; t++) {
        give_tensor(k, g->tensors[t].node, t);
        roots[count++] = (epi_root){g->tensors[t].node, t};
    }
    epi_step *s = add_step(k, EPI_NO_NODE);
    s->plan = &k->plan;
    s->roots = roots;
    s->root_count = count;
    return EPI_OK;
}

/* Everything that will be held in memory must be countable. */
static epi_status check_sizes(const epi_steps *k, epi_error *err) {
    const epi_graph *g = k->spec->graph;
    const int64_t most = (int64_t)1 << 48;
    for (int i = 0; i < g->node_count; i++) {
        int64_t count = epi_axes_size(&g->nodes[i].axes, k->spec->sizes);
        int64_t depth = epi_axes_size(&g->nodes[i].over, k->spec->sizes);
        if ((g->live[i] || g->nodes[i].op == EPI_OP_INPUT) &&
            (count < 0 || count > most || depth < 0 || depth > most))
            return epi_fail(err, EPI_ERR_MEMORY, "%s would have more than 2^48 elements",
                            epi_node_label(g, i).text);
    }
    return EPI_OK;
}

static void start_over(epi_steps *k) {
    const epi_graph *g = k->spec->graph;
    k->count = 0;
    k->workspace = 64;
    for (int i = 0; i < g->node_count; i++)
        k->homes[i] = (epi_home){-1, -1, EPI_F32};
    for (int t = 0; t < g->input_count; t++)
        give_tensor(k, g->tensors[t].node, t);
}

epi_status epi_steps_begin(epi_arena *arena, const epi_spec *spec, epi_steps *out, epi_error *err) {
    const epi_graph *g = spec->graph;
    size_t nodes = (size_t)g->node_count + 1;
    *out = (epi_steps){.spec = spec};
    out->said = epi_stored_find(arena, g, spec->types, spec->type);
    out->homes = epi_arena_alloc(arena, nodes * sizeof *out->homes);
    out->at = epi_arena_alloc(arena, (nodes + (size_t)g->tensor_count) * 2 * sizeof *out->at);
    EPI_TRY(epi_has_memory(out->said && out->homes && out->at, err));
    return check_sizes(out, err);
}

/* Has an output an element? */
static bool stores_any(const epi_spec *spec) {
    const epi_graph *g = spec->graph;
    bool any = false;
    for (int t = g->input_count; t < g->tensor_count && !any; t++)
        any = epi_axes_size(&g->tensors[t].axes, spec->sizes) > 0;
    return any;
}

static epi_status list(epi_arena *arena, epi_steps *k, epi_error *err) {
    static epi_status (*const lists[EPI_KIND_COUNT])(epi_arena *, epi_steps *, epi_error *) = {
        [EPI_KIND_GEMM] = list_fused,      [EPI_KIND_ROWS] = list_fused,
        [EPI_KIND_ATTENTION] = list_fused, [EPI_KIND_RECURRENCE] = list_recurrence,
        [EPI_KIND_PASS] = list_pass,
    };
    start_over(k);
    return lists[k->plan.kind](arena, k, err);
}

/* The plan of the part: the one that was kept of it, with placements that may change. */
static epi_status take_plan(epi_arena *arena, epi_steps *steps, epi_error *err) {
    const epi_plan *kept = epi_kept_plan(steps->spec);
    if (!kept)
        return epi_plan_make(arena, steps->spec, &steps->plan, err);
    size_t bytes = ((size_t)steps->spec->graph->node_count + 1) * sizeof *kept->placement;
    steps->plan = *kept;
    steps->plan.placement = epi_arena_alloc(arena, bytes);
    EPI_TRY(epi_has_memory(steps->plan.placement, err));
    memcpy(steps->plan.placement, kept->placement, bytes);
    return EPI_OK;
}

epi_status epi_steps_make(epi_arena *arena, epi_steps *steps, epi_error *err) {
    bool empty = epi_spec_has_empty(steps->spec);
    start_over(steps);
    if (empty && !stores_any(steps->spec))
        return EPI_OK;
    if (empty && steps->spec->open) /* a GPU's texts for open axes are one for all sizes */
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "an axis has no elements, but not all results are empty: on a GPU an open axis needs "
                        "at least one");
    EPI_TRY(take_plan(arena, steps, err));
    for (int i = 0; i < steps->spec->graph->node_count && steps->plan.fused; i++) {
        const epi_placement *at = &steps->plan.placement[i];
        const char *why = at->moved && !steps->updates ? "an update is a pass by itself"
                          : steps->plan.attention && at->paged && !steps->pages
                              ? "its keys or values are read through an index"
                              : NULL;
        if (why)
            snprintf(steps->plan.reason, sizeof steps->plan.reason, "%s", why);
        steps->plan.fused = !why;
    }
    steps->refused = !steps->plan.fused;
    if (steps->refused)
        return EPI_OK;
    return list(arena, steps, err);
}

epi_status epi_steps_refuse(epi_arena *arena, epi_steps *steps, const char *reason, epi_error *err) {
    snprintf(steps->plan.reason, sizeof steps->plan.reason, "%s", reason);
    steps->refused = steps->plan.kind != EPI_KIND_ROWS || !epi_plan_pass(steps->spec->graph, &steps->plan);
    steps->plan.fused = !steps->refused;
    start_over(steps);
    return steps->refused ? EPI_OK : list(arena, steps, err);
}

/* ---- in place ---- */

/* Every axis of the rows' long tensors? */
static bool is_long(const epi_plan *plan, const epi_axes *axes) {
    return epi_axes_count_in(axes, &plan->rows) + epi_axes_count_in(axes, &plan->cols) ==
           plan->rows.count + plan->cols.count;
}

static bool depends_on(const epi_graph *g, int node, int on) {
    epi_arena scratch = {0};
    bool *yes = epi_arena_alloc(&scratch, (size_t)g->node_count + 1);
    for (int i = on; i <= node && yes; i++)
        yes[i] = i == on || epi_node_takes(&g->nodes[i], yes);
    bool depends = yes && node >= on && yes[node];
    epi_arena_free(&scratch);
    return depends;
}

/* On a tile of a product, or of attention's result: is the input read once, by a map that the output is made
 * of? Then an element of it is read before the one that takes its place is there. */
static bool is_added(const epi_graph *g, int output, int input) {
    epi_use_list uses = epi_graph_uses(g, g->tensors[input].node);
    return uses.count == 1 && epi_op_is_map(epi_use_op(g, uses.at[0])) &&
           depends_on(g, g->tensors[output].node, uses.at[0].node);
}

/* Is something shifted that the kernel makes? Then elements of all inputs are wanted for other rows than their own. */
static bool shifts_made(const epi_graph *g) {
    bool made = false;
    for (int i = 0; i < g->node_count; i++)
        made |=
            g->live[i] && g->nodes[i].op == EPI_OP_SHIFT && g->nodes[g->nodes[i].arg[0]].op != EPI_OP_INPUT;
    return made;
}

/* Is the output made of the input by an update that a pass or a tile stores there, or of which it is a copy
 * that is made last; and the input used by nothing else? */
static bool is_updated(const epi_steps *k, int output, int input) {
    const epi_graph *g = k->spec->graph;
    int node = g->tensors[output].node, from = g->tensors[input].node;
    epi_covers covers = epi_kinds[k->plan.kind].covers;
    return k->count && (covers == EPI_COVERS_UPDATED || k->plan.placement[node].moved) &&
           g->nodes[node].op == EPI_OP_UPDATE && g->nodes[node].arg[0] == from &&
           epi_graph_uses(g, from).count == 1 && k->homes[node].tensor == output;
}

bool epi_steps_in_place(const epi_steps *k, int output, int input) {
    const epi_graph *g = k->spec->graph;
    if (input < 0 || input >= g->input_count || output < g->input_count || output >= g->tensor_count ||
        k->spec->types[output] != k->spec->types[input])
        return false;
    const epi_axes *axes = &g->tensors[output].axes, *from = &g->tensors[input].axes;
    bool may = epi_axes_equal(axes, from), stored = false;
    if (may && is_updated(k, output, input))
        return true;
    epi_covers covers = epi_kinds[k->plan.kind].covers;
    if (!may || !k->plan.fused || covers <= EPI_COVERS_UPDATED || !is_long(&k->plan, axes) ||
        (covers == EPI_COVERS_ONE && !is_added(g, output, input)) || (k->plan.window && shifts_made(g)))
        return false;
    for (int i = 0; i < k->count && may; i++) {
        const epi_step *s = &k->at[i];
        int node = g->tensors[input].node;
        for (int r = 0; r < s->root_count; r++)
            stored |= s->roots[r].tensor == output;
        if (s->tensor >= 0)
            may &= s->node != node;
        for (int a = 0; a < 3 && !s->plan && s->tensor < 0; a++)
            may &= g->nodes[s->node].arg[a] != node;
    }
    epi_use_list uses = epi_graph_uses(g, g->tensors[input].node);
    for (int i = 0; i < uses.count && may; i++) { /* is it read at other places than a row's own? */
        epi_op op = epi_use_op(g, uses.at[i]);
        may = !epi_op_by_index(op) && op != EPI_OP_SHIFT;
    }
    return may && stored;
}

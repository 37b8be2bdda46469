/* tile_program.c: turns the plan into the list of instructions of a tile. */
#include "pass/schedule/tile_program.h"

#include <stdlib.h>

#include "ir/index.h"

/* A value that is needed, with the step that will make it once its operands are there. */
typedef struct task {
    int node, value; /* the value is -1 until it is added */
    epi_scale scale;
    bool rows;
    epi_instr step;
    int operand[3], count, next;
    int first;       /* the operand that is made before the others */
    epi_scale at[3]; /* the scale at which each operand is needed */
} task;

/* An operand that so many values of the tile are behind is made before the others, so that these do not wait
 * for it: of a long chain of choices no condition is kept until the end. */
enum { DEEP = 64 };

typedef struct builder {
    epi_arena *arena;
    const epi_graph *g;
    epi_tile_program *e;
    /* That make a value one of rows: of attention not the batches, as a tile lies in one of them. */
    epi_axes rows;
    bool whole_rows, scores; /* it is not of tiles, but of these; or of attention's tiles */
    bool *repeated; /* by node: made of a reduction over all columns inside the tile, and there for each of
                       them */
    int (*value)[EPI_SCALE_COUNT]; /* by node and scale: the value, counted from 1, or 0 */
    int *depth; /* by node: so many values of the tile are behind it, one after the other */
    int value_capacity, step_capacity;
    epi_instr sink; /* what steps are written to after an allocation failed */
    task *tasks;    /* each is needed by the one before it. A list, not recursion: programs are long */
    int task_count, task_capacity;
    epi_error *err;
    epi_status status; /* the first failure that is not the arena's */
    int kept; /* what is needed now, where it is made as it is written: see need_elements; or EPI_NO_NODE */
} builder;

static int add_value(builder *b, int node, epi_scale scale, bool rows) {
    epi_tile_program *e = b->e;
    void *values = epi_arena_grow(b->arena, e->values, e->value_count, &b->value_capacity, sizeof *e->values);
    if (!values)
        return 0;
    e->values = values;
    e->values[e->value_count] = (epi_tile_value){.node = node, .scale = scale, .rows = rows, .made = -1};
    b->value[node][scale] = e->value_count + 1;
    return e->value_count++;
}

static epi_instr *add_step(builder *b, epi_instr_kind kind, int node) {
    epi_tile_program *e = b->e;
    void *steps = epi_arena_grow(b->arena, e->instrs, e->instr_count, &b->step_capacity, sizeof *e->instrs);
    if (!steps)
        return &b->sink;
    e->instrs = steps;
    e->instrs[e->instr_count] = (epi_instr){.kind = kind,
                                            .op = b->g->nodes[node].op,
                                            .node = node,
                                            .tensor = -1,
                                            .dst = -1,
                                            .arg = {-1, -1, -1},
                                            .mean = EPI_NO_NODE};
    return &e->instrs[e->instr_count++];
}

/* The scale at which a node has its columns: given by the parted axis if it has that, else free.
 * A product without columns still has one, and without rows one row: then every value has them. */
static epi_scale own_scale(const builder *b, int node) {
    const epi_plan *p = b->e->plan;
    const epi_axes *axes = &b->g->nodes[node].axes;
    if (!epi_plan_has(b->g, node, &p->cols) && p->cols.count)
        return b->repeated && b->repeated[node] ? EPI_SCALE_COUNT : EPI_SCALE_NONE;
    if (p->split == EPI_OP_COUNT)
        return EPI_SCALE_FINE;
    int at = epi_axes_find_dim(axes, p->fine.dim);
    if (at < 0)
        return EPI_SCALE_COUNT;
    return axes->at[at].shift == p->fine.shift ? EPI_SCALE_FINE : EPI_SCALE_COARSE;
}

static int find_value(const builder *b, int node, epi_scale scale) {
    return b->value[node][scale] - 1;
}

/* The scale at which an operation's operands meet. */
static epi_scale meeting_scale(const builder *b, const epi_node *n, epi_scale wanted) {
    for (int a = 0; a < epi_ops[n->op].arity; a++) {
        epi_scale s = own_scale(b, n->arg[a]);
        if (s == EPI_SCALE_COARSE || s == EPI_SCALE_FINE)
            return s;
    }
    return wanted;
}

static void add_operand(task *t, int node, epi_scale scale) {
    t->operand[t->count] = node;
    t->at[t->count++] = scale;
}

static void plan_leaf(const builder *b, task *t) {
    epi_op op = b->g->nodes[t->node].op;
    t->step.kind = op == EPI_OP_INDEX                        ? EPI_INSTR_INDEX
                   : op == EPI_OP_CONST || op == EPI_OP_SIZE ? EPI_INSTR_CONST
                                                             : EPI_INSTR_LOAD;
}

/* The scale of a reduction's operand. */
static epi_scale reduced_scale(const builder *b, const epi_node *n) {
    epi_scale own = own_scale(b, n->arg[0]);
    return own == EPI_SCALE_COUNT ? EPI_SCALE_FINE : own;
}

/* A local reduction works at its operand's scale; other scales take every other, or repeat. */
static void plan_group(builder *b, task *t, const epi_node *n) {
    epi_scale from = reduced_scale(b, n);
    t->value = add_value(b, t->node, t->scale, t->rows);
    if (from == t->scale) {
        t->step.kind = EPI_INSTR_REDUCE_GROUP;
        add_operand(t, n->arg[0], from);
        return;
    }
    t->step.kind = t->scale == EPI_SCALE_COARSE ? EPI_INSTR_SPLIT : EPI_INSTR_JOIN;
    add_operand(t, t->node, from);
    if (t->scale != EPI_SCALE_COARSE)
        add_operand(t, t->node, from);
}

/* Has the value rows and columns? Else it is made once for all that has. */
static bool is_of_elements(const builder *b, int node) {
    return own_scale(b, node) != EPI_SCALE_NONE && (epi_plan_has(b->g, node, &b->rows) || !b->rows.count);
}

/* Is it exp(x - top)? There a product x is rounded, as it was where top was found among its elements, perhaps
 * in another part: else the largest would not be 0, and weights that one part sums up another would not make
 * again. */
static bool is_below_exponential(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int u = 0; u < uses.count; u++)
        if (epi_use_op(g, uses.at[u]) == EPI_OP_EXP)
            return g->nodes[node].op == EPI_OP_SUB;
    return false;
}

/* A sum or difference with a product of elements that nothing else needs becomes one step. False: it is none.
 */
static bool plan_muladd(const builder *b, task *t, const epi_node *n) {
    if (!epi_op_has_terms(n->op) || !t->rows || t->scale == EPI_SCALE_NONE)
        return false;
    for (int a = is_below_exponential(b->g, t->node); a < 2; a++) {
        const epi_node *m = &b->g->nodes[n->arg[a]];
        if (m->op != EPI_OP_MUL || epi_graph_uses(b->g, n->arg[a]).count != 1 ||
            !is_of_elements(b, n->arg[a]) || !b->e->plan->placement[n->arg[a]].tile ||
            find_value(b, n->arg[a], t->scale) >= 0)
            continue;
        t->step.kind = EPI_INSTR_MULADD;
        t->step.sign = n->op == EPI_OP_SUB && a == 1 ? -1 : 1;
        t->step.other = n->op == EPI_OP_SUB && a == 0 ? -1 : 1;
        add_operand(t, m->arg[0], t->scale);
        add_operand(t, m->arg[1], t->scale);
        add_operand(t, n->arg[!a], t->scale);
        return true;
    }
    return false;
}

static void plan_map(const builder *b, task *t, const epi_node *n) {
    bool map = epi_op_is_map(n->op), join = epi_ops[n->op].joins;
    epi_scale inner = map ? meeting_scale(b, n, t->scale) : join ? EPI_SCALE_COARSE : EPI_SCALE_FINE;
    t->step.inverse = n->op == EPI_OP_DIV && !n->exact;
    t->step.kind = map ? EPI_INSTR_MAP : join ? EPI_INSTR_JOIN : EPI_INSTR_SPLIT;
    t->step.odd = epi_ops[n->op].second;
    for (int a = 0; a < epi_ops[n->op].arity; a++)
        add_operand(t, n->arg[a], inner);
}

/* A reduction in a row: over all of it, over its last columns, or down or along a square tile. What has no columns
 * left is one number: of a tile's values that lack an axis, extremes are those of all elements. */
static epi_instr_kind row_reduction(const builder *b, int node) {
    const epi_plan *p = b->e->plan;
    const epi_node *n = &b->g->nodes[node];
    if (epi_axes_count_in(&n->over, &p->cols) == p->cols.count ||
        (p->square && !epi_plan_has(b->g, node, &p->cols)))
        return EPI_INSTR_REDUCE_ROW;
    return !p->square                                    ? EPI_INSTR_REDUCE_GROUP
           : epi_axes_find(&n->over, p->cols.at[0]) >= 0 ? EPI_INSTR_REDUCE_DOWN
                                                         : EPI_INSTR_REDUCE_ALONG;
}

/* How the value of a node at a scale is made, and of what. */
static void plan_step(builder *b, task *t) {
    const epi_plan *p = b->e->plan;
    const epi_node *n = &b->g->nodes[t->node];
    bool random = epi_op_draws(n->op);
    t->rows = epi_plan_has(b->g, t->node, &b->rows) || !b->rows.count;
    if (!p->placement[t->node].tile || epi_op_is_leaf(n->op)) {
        plan_leaf(b, t);
    } else if (epi_op_reduces(n->op) && b->whole_rows &&
               row_reduction(b, t->node) != EPI_INSTR_REDUCE_GROUP) {
        t->step.kind = row_reduction(b, t->node);
        add_operand(t, n->arg[0], reduced_scale(b, n));
    } else if (epi_op_reduces(n->op)) {
        plan_group(b, t, n);
    } else if (n->op == EPI_OP_SHIFT) {
        t->step.kind = EPI_INSTR_SHIFT;
        if (epi_plan_in_window(p, b->e->spec, n))
            add_operand(t, n->arg[0], t->scale);
    } else if (epi_op_scans(n->op)) {
        t->step.kind = EPI_INSTR_SCAN;
        add_operand(t, n->arg[0], t->scale);
        add_operand(t, n->arg[1], t->scale);
    } else if (random || epi_op_by_index(n->op)) {
        t->step.kind = random ? EPI_INSTR_RANDOM : EPI_INSTR_TAKE;
        t->rows &= p->group == EPI_GROUP_NONE || random;
    } else if (!plan_muladd(b, t, n)) {
        plan_map(b, t, n);
    }
}

/* What a node is on this tile: where a condition is known to hold, the value that it lets through. */
static int without_known(const builder *b, int node) {
    const epi_node *n = &b->g->nodes[node];
    for (; node != b->kept && b->e->plan->known_true != EPI_NO_NODE && n->op == EPI_OP_WHERE &&
           n->arg[0] == b->e->plan->known_true;
         n = &b->g->nodes[node])
        node = n->arg[1];
    return node;
}

/* The value of a node at a scale if there is one; else it becomes the last task, and -1. */
static int find_or_begin(builder *b, int node, epi_scale wanted) {
    node = without_known(b, node);
    epi_scale scale = own_scale(b, node);
    if (scale == EPI_SCALE_COUNT)
        scale = wanted == EPI_SCALE_NONE ? EPI_SCALE_FINE : wanted;
    int v = find_value(b, node, scale);
    if (v >= 0)
        return v;
    task *tasks = epi_arena_grow(b->arena, b->tasks, b->task_count, &b->task_capacity, sizeof *tasks);
    if (!tasks)
        return -1;
    b->tasks = tasks;
    task *t = &tasks[b->task_count++];
    *t = (task){.node = node, .value = -1, .scale = scale};
    plan_step(b, t);
    for (int a = 1; a < t->count; a++)
        if (b->depth[t->operand[a]] >= DEEP && b->depth[t->operand[a]] > b->depth[t->operand[t->first]])
            t->first = a;
    return -1;
}

/* Which operand is the next to be made. */
static int next_operand(const task *t) {
    return t->next == 0 ? t->first : t->next <= t->first ? t->next - 1 : t->next;
}

static int finish_task(builder *b, const task *t) {
    int v = t->value >= 0 ? t->value : add_value(b, t->node, t->scale, t->rows);
    epi_instr *s = add_step(b, t->step.kind, t->node);
    if (b->arena->failed)
        return v;
    b->e->values[v].made = b->e->instr_count - 1;
    s->dst = v;
    s->odd = t->step.odd;
    s->inverse = t->step.inverse;
    s->sign = t->step.sign;
    s->other = t->step.other;
    for (int a = 0; a < t->count; a++)
        s->arg[a] = t->step.arg[a];
    return v;
}

/* The value of a node at a scale, with the steps that make it. */
static int need(builder *b, int node, epi_scale wanted) {
    int v = find_or_begin(b, node, wanted);
    while (b->task_count && !b->arena->failed) {
        task *t = &b->tasks[b->task_count - 1];
        if (t->next == t->count) {
            v = finish_task(b, t);
            b->task_count--;
        } else {
            int a = next_operand(t);
            if ((v = find_or_begin(b, t->operand[a], t->at[a])) >= 0) {
                t->step.arg[a] = v; /* nothing was begun: the task is where it was */
                t->next++;
            }
        }
    }
    return b->arena->failed ? 0 : v;
}

/* ---- roots ---- */

/* The same of what is kept, stored or reduced. Where that has elements a condition may let through what is
 * none, as a number is: then it is made as it is written. */
static int need_elements(builder *b, int node, epi_scale wanted) {
    bool lost = is_of_elements(b, node) && !is_of_elements(b, without_known(b, node));
    b->kept = lost ? node : EPI_NO_NODE;
    int v = need(b, node, wanted);
    b->kept = EPI_NO_NODE;
    return v;
}

int epi_reduced_with(const epi_graph *g, const epi_placement *placement, int node, epi_op op) {
    const epi_node *n = &g->nodes[node];
    epi_use_list uses = epi_graph_uses(g, n->arg[0]);
    for (int i = 0; i < uses.count && placement[node].reduction == EPI_REDUCE_ROWS; i++) {
        int other = uses.at[i].node;
        if (other != EPI_NO_NODE && g->nodes[other].op == op &&
            placement[other].reduction == EPI_REDUCE_ROWS &&
            epi_axes_same_set(&g->nodes[other].over, &n->over))
            return other;
    }
    return EPI_NO_NODE;
}

static void add_partials(builder *b, int node, const epi_placement *stage) {
    const epi_node *n = &b->g->nodes[node];
    const epi_placement *placement = b->e->plan->placement;
    if (n->op == EPI_OP_MEAN && epi_reduced_with(b->g, placement, node, EPI_OP_VAR) != EPI_NO_NODE)
        return; /* it comes of the variance's states */
    int v = need_elements(b, n->arg[0], reduced_scale(b, n));
    if (b->arena->failed)
        return;
    bool rows = stage->reduction == EPI_REDUCE_ROWS;
    epi_instr *s = add_step(b, rows ? EPI_INSTR_PARTIAL_ROWS : EPI_INSTR_PARTIAL_COLS, node);
    s->arg[0] = v;
    if (n->op == EPI_OP_VAR)
        s->mean = epi_reduced_with(b->g, placement, node, EPI_OP_MEAN);
}

static void add_store(builder *b, const epi_root *root) {
    const epi_node *n = &b->g->nodes[root->node];
    bool moved = b->e->plan->placement[root->node].moved, /* the tile stores what is new, at its own place */
        last = b->e->plan->placement[root->node].last;
    int v = need_elements(b, moved ? n->arg[2] : last ? n->arg[0] : root->node, EPI_SCALE_FINE);
    if (!b->arena->failed && !(b->e->values[v].scale != EPI_SCALE_NONE
                                   ? b->e->values[v].rows || b->scores /* a factor of weights may lack rows */
                                   : b->e->values[v].rows && (b->scores || b->whole_rows))) {
        b->status = EPI_INTERNAL(b->err, n->place, "what a tile stores is no element of it");
        return;
    }
    epi_instr *s = add_step(b, last ? EPI_INSTR_LAST : EPI_INSTR_STORE, root->node);
    s->arg[0] = v;
    s->tensor = root->tensor;
}

/* ---- the whole ---- */

/* Sizes of a tile at both scales, and of a local reduction's group. */
static epi_status measure(epi_tile_program *e, int most, epi_error *err) {
    const epi_plan *p = e->plan;
    const int64_t *sizes = e->spec->sizes;
    e->acc_scale = EPI_SCALE_FINE;
    int at = p->split == EPI_OP_COUNT ? -1 : epi_axes_find_dim(&p->cols, p->fine.dim);
    if (at >= 0 && p->cols.at[at].shift != p->fine.shift)
        e->acc_scale = EPI_SCALE_COARSE;
    int64_t group = 1;
    for (int i = p->cols.count - p->local_axes; i < p->cols.count; i++)
        group *= epi_axis_size(p->cols.at[i], sizes);
    if (p->local_axes && group > most)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "a reduction over %ld neighbouring columns does not fit in a tile of %d", (long)group,
                        most);
    if (p->local_axes && group == 0)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "a reduction over no columns has no tile to stay in");
    e->tile_n = (int)(most / group * group);
    bool coarse_acc = e->acc_scale == EPI_SCALE_COARSE;
    e->width[EPI_SCALE_NONE] = 1;
    e->width[EPI_SCALE_COARSE] = coarse_acc ? e->tile_n : e->tile_n / 2;
    e->width[EPI_SCALE_FINE] = coarse_acc ? 2 * e->tile_n : e->tile_n;
    e->group[EPI_SCALE_NONE] = 1;
    e->group[EPI_SCALE_COARSE] = (int)(coarse_acc ? group : group / 2);
    e->group[EPI_SCALE_FINE] = (int)(coarse_acc ? 2 * group : group);
    e->m = epi_axes_size(&p->rows, sizes);
    e->n = epi_axes_size(&p->cols, sizes);
    return EPI_OK;
}

/* Of tiles that have all columns, as attention's: a reduction over them stays inside, repeated like that over
 * a group. */
static void find_repeated(builder *b) {
    const epi_plan *p = b->e->plan;
    b->repeated = epi_arena_alloc(b->arena, (size_t)b->g->node_count + 1);
    for (int i = 0; i < b->g->node_count && b->repeated; i++) {
        if (!p->placement[i].tile || epi_plan_has(b->g, i, &p->cols))
            continue;
        b->repeated[i] =
            p->placement[i].reduction == EPI_REDUCE_LOCAL || epi_node_takes(&b->g->nodes[i], b->repeated);
    }
}

static void add_roots(builder *b, const epi_root *roots, int count) {
    for (int i = 0; i < count && b->status == EPI_OK; i++)
        if (b->e->plan->placement[roots[i].node].reduction > EPI_REDUCE_LOCAL)
            add_partials(b, roots[i].node, &b->e->plan->placement[roots[i].node]);
        else
            add_store(b, &roots[i]);
}

static epi_status allocate(builder *b, epi_error *err) {
    const epi_graph *g = b->g;
    b->value = epi_arena_alloc(b->arena, ((size_t)g->node_count + 1) * sizeof *b->value);
    b->depth = epi_arena_alloc(b->arena, ((size_t)g->node_count + 1) * sizeof *b->depth);
    EPI_TRY(epi_has_memory(b->value && b->depth, err));
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && b->e->plan->placement[i].tile; a++)
            b->depth[i] = (int)epi_max64(b->depth[i], b->depth[g->nodes[i].arg[a]] + 1);
    return EPI_OK;
}

/* A reduction has the shape of what it reduces, every other step that of what it makes. */
static void mark_full(epi_tile_program *t) {
    for (int i = 0; i < t->instr_count; i++) {
        epi_instr *s = &t->instrs[i];
        const epi_tile_value *v = &t->values[s->dst >= 0 && !epi_instr_folds(s) ? s->dst : s->arg[0]];
        s->full = epi_value_is_full(v);
    }
}

epi_status epi_tile_program_gemm(epi_arena *arena, const epi_spec *spec, const epi_plan *plan, int most,
                                 const epi_root *roots, int root_count, epi_tile_program *out,
                                 epi_error *err) {
    *out = (epi_tile_program){.plan = plan, .spec = spec};
    builder b = {
        .arena = arena, .g = spec->graph, .e = out, .rows = plan->rows, .err = err, .kept = EPI_NO_NODE};
    b.scores = plan->kind == EPI_KIND_ATTENTION;
    if (b.scores)
        b.rows = epi_plan_batch_rows(plan);
    if (b.scores || epi_plan_has_full_rows(plan))
        find_repeated(&b);
    epi_status status = measure(out, most, err);
    if (status == EPI_OK)
        status = allocate(&b, err);
    if (status != EPI_OK)
        return status;
    add_value(&b, plan->sum, out->acc_scale, true);
    if (plan->pair != EPI_NO_NODE)
        add_value(&b, plan->pair, out->acc_scale, true);
    add_roots(&b, roots, root_count);
    if (b.status != EPI_OK)
        return b.status;
    mark_full(out);
    return epi_has_memory(!arena->failed, err);
}

/* ---- what it loads ---- */

/* Does the step store the value at its home? */
static bool stores(const epi_steps *steps, const epi_step *s, int node) {
    const epi_home *home = &steps->homes[node];
    for (int i = 0; i < s->root_count; i++)
        if (s->roots[i].node == node && (s->roots[i].tensor == -1 || s->roots[i].tensor == home->tensor))
            return true;
    return s->node == node && s->tensor < 0 && (!s->plan || !s->root_count);
}

static bool is_there(const epi_steps *steps, const epi_step *step, int node) {
    const epi_graph *g = steps->spec->graph;
    node = epi_graph_renamed(g, node);
    if (g->nodes[node].op == EPI_OP_INPUT)
        return true;
    bool there = step->plan->attention && step->plan->placement[node].reduction > EPI_REDUCE_LOCAL &&
                 stores(steps, step, node);
    for (const epi_step *s = steps->at; s < step && !there; s++)
        there = stores(steps, s, node);
    return there && (steps->homes[node].tensor >= 0 || steps->homes[node].offset >= 0);
}

epi_status epi_tile_program_check(const epi_tile_program *t, const epi_steps *steps, const epi_step *step,
                                  epi_error *err) {
    const epi_graph *g = steps->spec->graph;
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        const epi_node *n = &g->nodes[s->node];
        bool there = s->kind != EPI_INSTR_LOAD || is_there(steps, step, s->node);
        bool indexed = s->kind == EPI_INSTR_TAKE && t->plan->group == EPI_GROUP_NONE;
        int from = indexed ? epi_index_find(g, n).node : EPI_NO_NODE;
        there &= from == EPI_NO_NODE || epi_op_is_free(g->nodes[from].op) || is_there(steps, step, from);
        if (s->kind == EPI_INSTR_TAKE || (s->kind == EPI_INSTR_SHIFT && s->arg[0] < 0) ||
            s->kind == EPI_INSTR_RANDOM)
            there &= is_there(steps, step, n->arg[0]);
        if (!there)
            return EPI_INTERNAL(err, n->place, "a tile would load what is not in memory yet");
    }
    return EPI_OK;
}

/* ---- whole rows ---- */

/* Numbers the phases: a fold's result is there in the next one. */
static bool number_phases(epi_arena *arena, epi_tile_program *t) {
    int *phase = epi_arena_alloc(arena, ((size_t)t->value_count + 1) * sizeof *phase);
    if (!phase)
        return false;
    mark_full(t);
    t->phases = 1;
    for (int i = 0; i < t->instr_count; i++) {
        epi_instr *s = &t->instrs[i];
        for (int a = 0; a < 3; a++)
            if (s->arg[a] >= 0 && phase[s->arg[a]] > s->phase)
                s->phase = phase[s->arg[a]];
        if (s->dst >= 0)
            phase[s->dst] = s->phase + epi_instr_folds(s);
        if (s->full && s->phase >= t->phases)
            t->phases = s->phase + 1;
    }
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].full &&
            (t->instrs[i].kind == EPI_INSTR_STORE || t->instrs[i].kind == EPI_INSTR_LAST))
            t->instrs[i].phase = t->phases - 1;
    return true;
}

epi_status epi_tile_program_rows(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                                 const epi_root *roots, int root_count, epi_tile_program *out,
                                 epi_error *err) {
    *out = (epi_tile_program){.plan = plan, .spec = spec, .acc_scale = EPI_SCALE_FINE};
    builder b = {
        .arena = arena, .g = spec->graph, .e = out, .rows = plan->rows, .err = err, .kept = EPI_NO_NODE};
    b.whole_rows = true;
    out->m = epi_axes_size(&plan->rows, spec->sizes);
    out->n = epi_axes_size(&plan->cols, spec->sizes);
    out->group[EPI_SCALE_FINE] = 1; /* columns at the other scale have none */
    for (int i = plan->cols.count - plan->local_axes; i < plan->cols.count; i++)
        out->group[EPI_SCALE_FINE] *= (int)epi_axis_size(plan->cols.at[i], spec->sizes);
    epi_status status = allocate(&b, err);
    if (status != EPI_OK)
        return status;
    add_roots(&b, roots, root_count);
    if (b.status != EPI_OK)
        return b.status;
    if (arena->failed || !number_phases(arena, out))
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    return EPI_OK;
}

void epi_tile_program_phase(const epi_tile_program *t, int p, bool *run) {
    for (int i = 0; i < t->instr_count; i++)
        run[i] = t->instrs[i].full && epi_instr_ends(&t->instrs[i]) && t->instrs[i].phase == p;
    for (int i = t->instr_count - 1; i >= 0; i--)
        for (int a = 0; a < 3 && run[i]; a++) {
            int made = t->instrs[i].arg[a] < 0 ? -1 : t->values[t->instrs[i].arg[a]].made;
            if (made >= 0 && t->instrs[made].full && !epi_instr_ends(&t->instrs[made]))
                run[made] = true;
        }
}

/* integers.c: warnings and checks for integers: where f32 cannot hold one, and which inputs a run checks. */
#include "pass/analyse/integers.h"

#include <math.h>

#include "cpu/cpu.h"
#include "cpu/pass/integers.h"
#include "run/run.h"

/* ---- inputs ---- */

epi_status epi_assumed_find(epi_kernel *k, epi_error *err) {
    epi_arena scratch = {0};
    epi_spec written = epi_kernel_written(k);
    const epi_graph *g = written.graph;
    const epi_integer *at = epi_integers_find(&scratch, &written);
    epi_assumed *assumed = epi_arena_alloc(&k->arena, ((size_t)g->tensor_count + 1) * sizeof *assumed);
    bool computes = k->spec.path == EPI_PATH_FUSED || k->spec.path == EPI_PATH_UNFUSED;
    epi_status status = epi_has_memory(at && assumed, err);
    for (int t = 0; t < g->input_count && status == EPI_OK && computes; t++) {
        assumed[t] = at[g->tensors[t].node].assumed;
        if (assumed[t])
            k->assumed = assumed;
    }
    epi_arena_free(&scratch);
    return status;
}

/* An element of the input that f32 may not hold, and where it is; false: there is none. */
static bool find_far(const epi_kernel *k, const epi_tensor *tensors, int t, int64_t *at, int64_t *value) {
    const int64_t most = ((int64_t)1 << 24) - 1;
    epi_ref ref = epi_cpu_tensor(&k->spec, t, &tensors[t]);
    ref.axes = k->program->graph.tensors[t].axes;
    epi_walk w = epi_walk_axes(&ref, &ref.axes, k->spec.sizes);
    for (*at = 0; tensors[t].data && *at < k->counts[t] && epi_dtype_is_integer(ref.type); ++*at) {
        *value = epi_whole_load(NULL, &ref, epi_walk_offset(&w, *at));
        if (*value < -most || *value > most)
            return true;
    }
    return false;
}

epi_status epi_assumed_check(const epi_kernel *k, const epi_tensor *tensors, epi_error *err) {
    const epi_graph *g = &k->program->graph;
    int64_t at, value;
    int far = 0;
    for (int t = 0; t < g->input_count && k->assumed; t++) {
        if (!k->assumed[t] || !find_far(k, tensors, t, &at, &value))
            continue;
        far++;
        if (far > 1 || k->assumed[t] == EPI_ASSUMED_ALL)
            return epi_fail(err, EPI_ERR_INDEX,
                            "%s, element %ld, is %ld: this program compares each element with each in f32, "
                            "which is exact only for integers below 16777216",
                            g->tensors[t].name, (long)at, (long)value);
    }
    return EPI_OK;
}

/* ---- warnings ---- */

/* Is the range of it what sizes and numbers make it, and not what an input of 32 or 64 bits may have? */
static bool *find_bounded(epi_arena *arena, const epi_spec *spec) {
    const epi_graph *g = spec->graph;
    bool *bounded = epi_arena_alloc(arena, (size_t)g->node_count + 1);
    for (int i = 0; i < g->node_count && bounded; i++) {
        const epi_node *n = &g->nodes[i];
        bounded[i] = n->op != EPI_OP_INPUT || !epi_dtype_is_integer(spec->types[n->tensor]);
        for (int a = 0; a < epi_node_operands(n); a++)
            bounded[i] &= bounded[n->arg[a]] || a == epi_op_index(n->op) || epi_op_gives_places(n->op) ||
                          (n->op == EPI_OP_WHERE && !a);
    }
    return bounded;
}

/* The largest integer up to which the type has all of them. */
static int64_t held_by(epi_dtype type) {
    switch (type) {
    case EPI_F64: return (int64_t)1 << 53;
    case EPI_F32: return (int64_t)1 << 24;
    case EPI_F16: return 1 << 11;
    case EPI_BF16: return 1 << 8;
    case EPI_E4M3: return 1 << 4;
    case EPI_E5M2: return 1 << 3;
    case EPI_I8: return INT8_MAX;
    case EPI_U8: return UINT8_MAX;
    case EPI_I32: return INT32_MAX;
    default: return INT64_MAX;
    }
}

static int64_t magnitude(const epi_integer *at) {
    return at->low == INT64_MIN ? INT64_MAX : -at->low > at->high ? -at->low : at->high;
}

static void warn_of_output(const epi_spec *spec, const epi_integer *at, int t, epi_text *out) {
    const epi_tensor_decl *output = &spec->graph->tensors[t];
    const epi_integer *y = &at[output->node];
    bool below = spec->types[t] == EPI_U8 ? y->low < 0 : spec->types[t] == EPI_I8 && y->low < INT8_MIN;
    if (magnitude(y) > held_by(spec->types[t]) || below)
        epi_text_add(out, "%s: %s has integers up to %ld, but %s may be %ld: declare it i32 or i64\n",
                     output->name, epi_dtype_name(spec->types[t]), (long)held_by(spec->types[t]),
                     epi_node_expression(spec->graph, output->node).text,
                     (long)(below ? y->low : magnitude(y)));
}

/* An operation makes a float of an integer that f32 does not hold. */
static void warn_of_float(const epi_graph *g, const epi_integer *at, int node, int operand, epi_text *out) {
    const epi_node *n = &g->nodes[node];
    int with = EPI_NO_NODE; /* an infinity, which makes floats of all */
    for (int a = 0; a < epi_node_operands(n); a++) {
        const epi_node *b = &g->nodes[n->arg[a]];
        b = b->op == EPI_OP_NEG ? &g->nodes[b->arg[0]] : b;
        if (b->op == EPI_OP_CONST && isinf(b->value))
            with = n->arg[a];
    }
    epi_text_add(out,
                 "%s, which may be %ld, becomes a float in %s, but f32 has integers only up to %ld%s%s\n",
                 epi_node_expression(g, operand).text, (long)magnitude(&at[operand]),
                 epi_node_expression(g, node).text, (long)held_by(EPI_F32),
                 with == EPI_NO_NODE ? "" : ": write a whole number, such as -1, instead of ",
                 with == EPI_NO_NODE ? "" : epi_node_expression(g, with).text);
}

void epi_integers_warn(const epi_kernel *k, epi_text *out) {
    epi_arena scratch = {0};
    epi_spec spec = epi_kernel_written(k);
    const epi_graph *g = spec.graph;
    const epi_integer *at = epi_integers_find(&scratch, &spec);
    const bool *bounded = at ? find_bounded(&scratch, &spec) : NULL;
    for (int i = 0; i < g->node_count && bounded; i++)
        for (int a = 0; a < epi_node_operands(&g->nodes[i]) && g->live[i] && !at[i].is; a++) {
            int operand = g->nodes[i].arg[a];
            bool divided =
                g->nodes[i].op == EPI_OP_DIV && at[g->nodes[i].arg[0]].is && at[g->nodes[i].arg[1]].is;
            if (at[operand].is && bounded[operand] && magnitude(&at[operand]) > held_by(EPI_F32) &&
                !divided && a != epi_op_index(g->nodes[i].op) && g->nodes[operand].op != EPI_OP_CONST)
                warn_of_float(g, at, i, operand, out);
        }
    for (int t = g->input_count; t < g->tensor_count && bounded; t++)
        if (at[g->tensors[t].node].is && bounded[g->tensors[t].node])
            warn_of_output(&spec, at, t, out);
    epi_arena_free(&scratch);
}

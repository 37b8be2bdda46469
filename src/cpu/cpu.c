/* cpu.c: from a spec to a list of steps, and carrying them out. */
#include "cpu/cpu.h"

#include <string.h>

#include "cpu/gemm.h"

static const epi_node *node_at(const epi_cpu_kernel *k, int i) {
    return &k->spec.graph->nodes[i];
}

static epi_cpu_step *add_step(epi_cpu_kernel *k, int node) {
    epi_cpu_step *s = &k->steps[k->step_count++];
    *s = (epi_cpu_step){.node = node, .tensor = -1};
    return s;
}

/* ---- homes: where values live between steps ---- */

/* Bytes of a value's buffer. Sizes were held against overflow before. */
static int64_t buffer_bytes(const epi_cpu_kernel *k, int node, epi_dtype type) {
    int64_t count = epi_axes_size(&node_at(k, node)->axes, k->spec.sizes);
    return epi_round_up(count * (int64_t)epi_dtype_size(type), 64);
}

static void give_buffer(epi_cpu_kernel *k, int node, epi_dtype type) {
    k->homes[node] = (struct epi_cpu_home){-1, k->workspace, type};
    k->workspace += buffer_bytes(k, node, type);
}

static void give_tensor(epi_cpu_kernel *k, int node, int tensor) {
    k->homes[node] = (struct epi_cpu_home){tensor, -1, k->spec.types[tensor]};
}

static bool has_home(const epi_cpu_kernel *k, int node) {
    return k->homes[node].tensor >= 0 || k->homes[node].offset >= 0;
}

/* Copies into every output whose value was made somewhere else. */
static void add_copies(epi_cpu_kernel *k, const bool *stored) {
    const epi_graph *g = k->spec.graph;
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (!stored[t] && k->homes[g->tensors[t].node].tensor != t)
            add_step(k, g->tensors[t].node)->tensor = t;
}

static epi_status add_gemm(epi_cpu_kernel *k, const epi_plan *plan, const epi_tile_root *roots, int count,
                           epi_error *err) {
    const epi_node *n = node_at(k, plan->product);
    epi_gemm *g = epi_arena_alloc(k->arena, sizeof *g);
    if (!g)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    int operand[2] = {n->arg[plan->row_arg], n->arg[!plan->row_arg]};
    epi_dtype types[2] = {k->homes[operand[0]].type, k->homes[operand[1]].type};
    for (int side = 0; side < 2; side++)
        if (types[side] == EPI_I32 ||
            types[side] == EPI_F64) /* only inputs are stored so, and they have names */
            return epi_fail(err, EPI_ERR_UNSUPPORTED,
                            "%s is an operand of a product and stored as %s; products take f32, bf16 and "
                            "f16: write (%s + 0) to convert it first",
                            epi_node_label(k->spec.graph, operand[side]).text, epi_dtype_name(types[side]),
                            node_at(k, operand[side])->name);
    epi_status status = epi_gemm_build(k->arena, &k->spec, plan, k->strips, types, roots, count, g, err);
    add_step(k, plan->product)->gemm = g;
    return status;
}

/* ---- the two ways ---- */

/* Passes before, one product with everything its tile can do, passes after. */
static epi_status compile_fused(epi_cpu_kernel *k, epi_error *err) {
    const epi_graph *g = k->spec.graph;
    epi_tile_root *roots =
        epi_arena_alloc(k->arena, (size_t)(g->node_count + g->tensor_count) * sizeof *roots);
    bool *stored = epi_arena_alloc(k->arena, (size_t)g->tensor_count);
    if (!roots || !stored)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    int count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const epi_stage *s = &k->plan.stage[i];
        if (s->leave > EPI_LEAVE_LOCAL)
            roots[count++] = (epi_tile_root){i, -1};
        if (s->before || s->after || s->leave > EPI_LEAVE_LOCAL)
            give_buffer(k, i, EPI_F32);
        if (s->before)
            add_step(k, i);
    }
    for (int t = g->input_count; t < g->tensor_count; t++) {
        const epi_stage *s = &k->plan.stage[g->tensors[t].node];
        stored[t] = s->tile && s->leave <= EPI_LEAVE_LOCAL && !s->before; /* what passes made is copied */
        if (stored[t])
            roots[count++] = (epi_tile_root){g->tensors[t].node, t};
    }
    epi_status status = add_gemm(k, &k->plan, roots, count, err);
    if (status != EPI_OK)
        return status;
    for (int i = 0; i < g->node_count; i++)
        if (k->plan.stage[i].after)
            add_step(k, i);
    add_copies(k, stored);
    return EPI_OK;
}

/* A freed stretch of the workspace, to be used again by a value of the same size. */
typedef struct spare {
    int64_t offset, bytes;
} spare;

static void give_spare(epi_cpu_kernel *k, int node, epi_dtype type, spare *spares, int *count) {
    int64_t bytes = buffer_bytes(k, node, type);
    for (int i = *count - 1; i >= 0; i--)
        if (spares[i].bytes == bytes) {
            k->homes[node] = (struct epi_cpu_home){-1, spares[i].offset, type};
            spares[i] = spares[--*count];
            return;
        }
    give_buffer(k, node, type);
}

/* Every product by itself, every other operation a pass over memory. */
static epi_status compile_unfused(epi_cpu_kernel *k, epi_error *err) {
    const epi_graph *g = k->spec.graph;
    bool *stored = epi_arena_alloc(k->arena, (size_t)g->tensor_count);
    int *last = epi_arena_alloc(k->arena, ((size_t)g->node_count + 1) * sizeof *last);
    spare *spares = epi_arena_alloc(k->arena, ((size_t)g->node_count + 1) * sizeof *spares);
    epi_stage *stages = epi_arena_alloc(k->arena, ((size_t)g->node_count + 1) * sizeof *stages);
    if (!stored || !last || !spares || !stages)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < 3; a++)
            if (k->live[i] && g->nodes[i].arg[a] != EPI_NO_NODE)
                last[g->nodes[i].arg[a]] = i;
    epi_dtype between = k->spec.path == EPI_PATH_UNFUSED ? k->spec.type : EPI_F32;
    for (int t = g->input_count; t < g->tensor_count; t++) {
        int node = g->tensors[t].node;
        last[node] = g->node_count; /* outputs stay to the end */
        bool rounds =
            k->spec.path == EPI_PATH_UNFUSED && k->spec.types[t] <= EPI_F16; /* as a chain of passes would */
        if (!has_home(k, node) && (rounds || k->spec.types[t] == between))
            give_tensor(k, node, t);
    }
    int spare_count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (!k->live[i] || n->op == EPI_OP_INPUT)
            continue;
        if (!has_home(k, i)) /* positions and sizes are exact in f32, not in 16 bits */
            give_spare(k, i, epi_ops[n->op].cls == EPI_CLASS_LEAF ? EPI_F32 : between, spares, &spare_count);
        if (n->op == EPI_OP_MATMUL) {
            epi_plan plan = {.stage = stages};
            epi_plan_product(g, i, &plan);
            epi_tile_root root = {i, k->homes[i].tensor};
            epi_status status = add_gemm(k, &plan, &root, 1, err);
            if (status != EPI_OK)
                return status;
        } else {
            add_step(k, i);
        }
        for (int a = 0; a < 3; a++) {
            int arg = n->arg[a];
            bool twice = (a > 0 && arg == n->arg[0]) || (a > 1 && arg == n->arg[1]);
            if (arg != EPI_NO_NODE && !twice && last[arg] == i && k->homes[arg].offset >= 0)
                spares[spare_count++] =
                    (spare){k->homes[arg].offset, buffer_bytes(k, arg, k->homes[arg].type)};
        }
    }
    add_copies(k, stored);
    return EPI_OK;
}

/* ---- compile ---- */

/* Everything that will be held in memory must be countable. */
static epi_status check_sizes(const epi_cpu_kernel *k, epi_error *err) {
    const epi_graph *g = k->spec.graph;
    const int64_t most = (int64_t)1 << 48;
    for (int i = 0; i < g->node_count; i++) {
        int64_t count = epi_axes_size(&g->nodes[i].axes, k->spec.sizes);
        int64_t depth = epi_axes_size(&g->nodes[i].over, k->spec.sizes);
        if ((k->live[i] || g->nodes[i].op == EPI_OP_INPUT) &&
            (count < 0 || count > most || depth < 0 || depth > most))
            return epi_fail(err, EPI_ERR_MEMORY, "%s would have more than 2^48 elements",
                            epi_node_label(g, i).text);
    }
    return EPI_OK;
}

static void start_over(epi_cpu_kernel *k) {
    const epi_graph *g = k->spec.graph;
    k->step_count = 0;
    k->workspace = 64;
    for (int i = 0; i < g->node_count; i++)
        k->homes[i] = (struct epi_cpu_home){-1, -1, EPI_F32};
    for (int t = 0; t < g->input_count; t++)
        give_tensor(k, g->tensors[t].node, t);
}

epi_status epi_cpu_compile(epi_arena *arena, const epi_spec *spec, epi_cpu_kernel **out, epi_error *err) {
    const epi_graph *g = spec->graph;
    epi_cpu_kernel *k = epi_arena_alloc(arena, sizeof *k);
    size_t nodes = (size_t)g->node_count + 1;
    if (!k)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    *k = (epi_cpu_kernel){.arena = arena, .spec = *spec, .strips = epi_strips_choose()};
    k->live = epi_arena_alloc(arena, nodes);
    k->homes = epi_arena_alloc(arena, nodes * sizeof *k->homes);
    k->steps = epi_arena_alloc(arena, (nodes + (size_t)g->tensor_count) * 2 * sizeof *k->steps);
    if (!k->live || !k->homes || !k->steps)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    epi_graph_live(g, k->live);
    epi_status status = check_sizes(k, err);
    if (status != EPI_OK)
        return status;
    *out = k;
    if (spec->path == EPI_PATH_REFERENCE || spec->path == EPI_PATH_NAIVE) {
        k->workspace = epi_reference_workspace(spec, k->live);
        return k->workspace < 0 ? epi_fail(err, EPI_ERR_MEMORY, "the workspace overflows 64 bits") : EPI_OK;
    }
    start_over(k);
    if (spec->path == EPI_PATH_FUSED) {
        status = epi_plan_make(arena, g, &k->plan, err);
        if (status == EPI_OK && k->plan.fused) {
            epi_error why = {0};
            status = compile_fused(k, &why);
            if (status == EPI_ERR_UNSUPPORTED) { /* right, but not for a tile: unfused, which says so if that
                                                    fails too */
                k->plan.fused = false;
                memcpy(k->plan.reason, why.message, sizeof k->plan.reason - 1);
                status = EPI_OK;
                start_over(k);
            } else if (err) {
                *err = why;
            }
        }
    }
    if (status == EPI_OK && !k->plan.fused)
        status = compile_unfused(k, err);
    if (status != EPI_OK)
        return status;
    k->scratch = k->workspace + (int64_t)(nodes + (size_t)g->tensor_count) * (int64_t)sizeof(epi_ref);
    k->scratch = epi_round_up(k->scratch, 64);
    int64_t most = epi_pass_scratch(spec->threads);
    for (int i = 0; i < k->step_count; i++)
        if (k->steps[i].gemm)
            most = epi_max64(most, k->steps[i].gemm->scratch);
    k->workspace = k->scratch + most;
    return EPI_OK;
}

/* ---- run ---- */

static epi_ref tensor_ref(const epi_cpu_kernel *k, int t, const epi_tensor *given) {
    epi_ref r = {.data = given->data, .type = k->spec.types[t], .axes = k->spec.graph->tensors[t].axes};
    if (given->strides)
        memcpy(r.strides, given->strides, (size_t)r.axes.count * sizeof *r.strides);
    else
        epi_ref_contiguous(&r, k->spec.sizes);
    return r;
}

void epi_cpu_run(const epi_cpu_kernel *k, const epi_tensor *given, void *workspace) {
    const epi_graph *g = k->spec.graph;
    unsigned char *base = workspace;
    if (k->spec.path == EPI_PATH_REFERENCE || k->spec.path == EPI_PATH_NAIVE) {
        epi_ref tensors[2 * EPI_MAX_TENSORS];
        for (int t = 0; t < g->tensor_count; t++)
            tensors[t] = tensor_ref(k, t, &given[t]);
        epi_reference_run(k, tensors, base);
        return;
    }
    epi_ref *homes = (epi_ref *)(void *)(base + k->scratch) - (g->node_count + 1 + g->tensor_count);
    epi_ref *tensors = homes + g->node_count + 1;
    for (int t = 0; t < g->tensor_count; t++)
        tensors[t] = tensor_ref(k, t, &given[t]);
    for (int i = 0; i < g->node_count; i++) {
        if (k->homes[i].tensor >= 0) {
            homes[i] = tensors[k->homes[i].tensor];
        } else {
            homes[i] = (epi_ref){.data = base + epi_max64(0, k->homes[i].offset),
                                 .type = k->homes[i].type,
                                 .axes = g->nodes[i].axes};
            epi_ref_contiguous(&homes[i], k->spec.sizes);
        }
    }
    for (int i = 0; i < k->step_count; i++) {
        const epi_cpu_step *s = &k->steps[i];
        if (s->gemm)
            epi_gemm_run(s->gemm, homes, tensors, base + k->scratch);
        else if (s->tensor >= 0)
            epi_pass_copy(k, &tensors[s->tensor], &homes[s->node], &tensors[s->tensor].axes);
        else
            epi_pass_run(k, s->node, homes, base + k->scratch);
    }
}

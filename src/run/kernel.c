/* kernel.c: binds sizes and types to a program, has a backend compile it, and runs it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "run/overlap.h"
#include "run/run.h"

struct epi_kernel {
    epi_arena arena;
    const epi_program *program;
    const epi_spec *spec; /* the backend's own */
    int64_t *counts;      /* by tensor: its elements */
    epi_cpu_kernel *cpu;  /* one of the two */
    epi_cuda_kernel *cuda;
};

/* ---- binding ---- */

static epi_status no_axis(const epi_graph *g, const char *name, epi_error *err) {
    char all[256] = "";
    for (int i = 0, n = 0; i < g->dim_count && n < (int)sizeof all - 40; i++)
        n += snprintf(all + n, sizeof all - (size_t)n, "%s%.32s", i ? ", " : "", g->dims[i]);
    return epi_fail(err, EPI_ERR_DIMS, "the program has no axis '%s'; it has %s", name, *all ? all : "none");
}

static epi_status bind_dims(const epi_graph *g, const epi_options *o, int64_t *sizes, epi_error *err) {
    for (int i = 0; i < o->dim_count; i++) {
        int dim = 0;
        const char *name = o->dims[i].name;
        if (!name)
            return epi_fail(err, EPI_ERR_ARGUMENT, "dim %d has no name", i);
        while (dim < g->dim_count && strcmp(g->dims[dim], name) != 0)
            dim++;
        if (dim == g->dim_count)
            return no_axis(g, name, err);
        if (o->dims[i].size < 0)
            return epi_fail(err, EPI_ERR_DIMS, "the size of axis '%s' is negative", name);
        if (sizes[dim] >= 0 && sizes[dim] != o->dims[i].size)
            return epi_fail(err, EPI_ERR_DIMS, "axis '%s' is bound to %ld and to %ld", name, (long)sizes[dim],
                            (long)o->dims[i].size);
        sizes[dim] = o->dims[i].size;
    }
    for (int dim = 0; dim < g->dim_count; dim++)
        if (sizes[dim] < 0)
            return epi_fail(err, EPI_ERR_DIMS, "the size of axis '%s' was not given", g->dims[dim]);
    return EPI_OK;
}

/* Points the error at the operation whose axis does not come out. */
static epi_status fail_node(const epi_program *p, int node, epi_status status, epi_error *err) {
    if (err) {
        err->line = p->graph.nodes[node].place.line;
        err->column = p->graph.nodes[node].place.column;
        epi_ast_locate(&p->module->text, err);
    }
    return status;
}

/* Positions along an axis that name places on a shorter one: some of them name nothing. */
static epi_status check_positions(const epi_program *p, const int64_t *sizes, epi_error *err) {
    const epi_graph *g = &p->graph;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (epi_ops[n->op].cls != EPI_CLASS_MOVE || g->nodes[n->arg[1]].op != EPI_OP_INDEX)
            continue;
        epi_axis from = g->nodes[n->arg[1]].over.at[0], to = n->over.at[0];
        int64_t have = epi_axis_size(to, sizes), want = epi_axis_size(from, sizes);
        if (want > have)
            return fail_node(p, i,
                             epi_fail(err, EPI_ERR_DIMS, "index(%s) counts to %ld, but %s has %ld elements",
                                      epi_axis_label(g, from).text, (long)want - 1,
                                      epi_axis_label(g, to).text, (long)have),
                             err);
    }
    return EPI_OK;
}

/* Every axis must have a whole number of elements, and every value a countable one. */
static epi_status check_axes(const epi_program *p, const int64_t *sizes, epi_error *err) {
    const epi_graph *g = &p->graph;
    for (int i = 0; i < g->node_count; i++) {
        const epi_axes *lists[2] = {&g->nodes[i].axes, &g->nodes[i].over};
        for (int l = 0; l < 2; l++)
            for (int j = 0; j < lists[l]->count; j++) {
                epi_axis a = lists[l]->at[j];
                if (epi_axis_size(a, sizes) >= 0)
                    continue;
                if (a.shift < 0)
                    return fail_node(p, i,
                                     epi_fail(err, EPI_ERR_DIMS,
                                              "%s needs %s to be divisible by %ld: it is %ld",
                                              epi_axis_label(g, a).text, g->dims[a.dim], 1L << -a.shift,
                                              (long)sizes[a.dim]),
                                     err);
                return fail_node(p, i,
                                 epi_fail(err, EPI_ERR_DIMS, "the size of %s overflows 64 bits",
                                          epi_axis_label(g, a).text),
                                 err);
            }
        if (epi_axes_size(&g->nodes[i].axes, sizes) < 0)
            return fail_node(
                p, i,
                epi_fail(err, EPI_ERR_DIMS, "the size of %s overflows 64 bits", epi_node_label(g, i).text),
                err);
    }
    return EPI_OK;
}

static epi_status bind_types(const epi_graph *g, const epi_options *o, epi_dtype *types, epi_error *err) {
    if ((unsigned)o->type >= EPI_DTYPE_COUNT || o->type == EPI_I32)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the storage type must be f32, bf16, f16 or f64");
    for (int t = 0; t < g->tensor_count; t++) {
        const epi_tensor_decl *d = &g->tensors[t];
        types[t] = d->has_type ? d->type : d->axes.count ? o->type : EPI_F32;
    }
    for (int i = 0; i < o->type_count; i++) {
        int t = 0;
        while (t < g->tensor_count &&
               (!o->types[i].tensor || strcmp(g->tensors[t].name, o->types[i].tensor) != 0))
            t++;
        if (t == g->tensor_count)
            return epi_fail(err, EPI_ERR_ARGUMENT, "the program has no tensor '%s'",
                            o->types[i].tensor ? o->types[i].tensor : "");
        if ((unsigned)o->types[i].type >= EPI_DTYPE_COUNT)
            return epi_fail(err, EPI_ERR_ARGUMENT, "the type of '%s' is unknown", o->types[i].tensor);
        types[t] = o->types[i].type;
    }
    return EPI_OK;
}

/* ---- compile ---- */

enum { MAX_THREADS = 256 };

/* For a GPU of this machine, or for a compute capability alone: the texts without a device. */
static epi_status compile_cuda(epi_kernel *k, epi_context *ctx, const epi_spec *spec, const epi_options *o,
                               epi_error *err) {
    epi_cuda_target target = {.capability = epi_device_capability(ctx, o->device),
                              .multiprocessors = 132,
                              .config = o->config,
                              .exact = o->rounding == EPI_ROUND_EXACT};
    if (o->device > 0) {
        target.cuda = &ctx->cuda;
        target.device = o->device - 1;
        target.multiprocessors = ctx->cuda.devices[o->device - 1].multiprocessors;
    }
    if (target.capability < 80)
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "GPU kernels need compute capability 8.0 or newer; this is %d.%d",
                        target.capability / 10, target.capability % 10);
    epi_status status = epi_cuda_compile(&k->arena, spec, &target, &k->cuda, err);
    if (k->cuda)
        k->spec = &k->cuda->spec;
    return status;
}

static epi_status compile(epi_kernel *k, const epi_program *p, const epi_options *o, epi_error *err) {
    const epi_graph *g = &p->graph;
    epi_spec spec = {.graph = g, .path = o->path};
    spec.types = epi_arena_alloc(&k->arena, (size_t)(g->tensor_count + 1) * sizeof *spec.types);
    if (!spec.types)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int i = 0; i < EPI_MAX_DIMS; i++)
        spec.sizes[i] = -1;
    epi_status status = bind_dims(g, o, spec.sizes, err);
    if (status == EPI_OK)
        status = check_axes(p, spec.sizes, err);
    if (status == EPI_OK)
        status = check_positions(p, spec.sizes, err);
    if (status == EPI_OK)
        status = bind_types(g, o, spec.types, err);
    if (status != EPI_OK)
        return status;
    epi_context *ctx = p->module->context;
    if (o->device >= epi_device_count(ctx) || (o->device < 0 && o->device > -70) || o->device < -999)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "there is no device %d%s%s", o->device,
                        ctx->cuda.why[0] ? ": " : "", ctx->cuda.why);
    if (o->threads < 0 || o->threads > MAX_THREADS)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the number of threads must be between 1 and %d", MAX_THREADS);
    if ((unsigned)o->path > EPI_PATH_REFERENCE)
        return epi_fail(err, EPI_ERR_ARGUMENT, "unknown path %d", (int)o->path);
    if ((unsigned)o->rounding > EPI_ROUND_EXACT)
        return epi_fail(err, EPI_ERR_ARGUMENT, "unknown rounding %d", (int)o->rounding);
    if (o->device && o->path > EPI_PATH_UNFUSED)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "the naive and reference paths run on the CPU");
    spec.type = o->type == EPI_F64 ? EPI_F32 : o->type;
    spec.threads = o->threads ? o->threads : p->module->context->cpu_threads;
    if (o->micro)
        spec.micro = epi_arena_text(&k->arena, o->micro, strlen(o->micro));
    if (o->device) {
        status = compile_cuda(k, ctx, &spec, o, err);
    } else {
        status = epi_cpu_compile(&k->arena, &spec, &k->cpu, err);
        if (k->cpu)
            k->spec = &k->cpu->spec;
    }
    if (status == EPI_ERR_CHECK && err)
        epi_ast_locate(&p->module->text, err);
    return status;
}

/* Counted once, so that a run does not. */
static epi_status count_elements(epi_kernel *k, epi_error *err) {
    const epi_graph *g = &k->program->graph;
    k->counts = epi_arena_alloc(&k->arena, ((size_t)g->tensor_count + 1) * sizeof *k->counts);
    if (!k->counts)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    for (int t = 0; t < g->tensor_count; t++)
        k->counts[t] = epi_axes_size(&g->tensors[t].axes, k->spec->sizes);
    return EPI_OK;
}

epi_status epi_kernel_compile(const epi_program *program, const epi_options *options, epi_kernel **out,
                              epi_error *err) {
    epi_error_clear(err);
    if (out)
        *out = NULL;
    if (!program || !options || !out)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_kernel_compile: program, options and out may not be NULL");
    if ((options->dim_count > 0 && !options->dims) || (options->type_count > 0 && !options->types))
        return epi_fail(err, EPI_ERR_ARGUMENT, "a list is NULL though its count is not zero");
    epi_kernel *k = calloc(1, sizeof *k);
    if (!k)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    k->program = program;
    epi_status status = compile(k, program, options, err);
    if (status == EPI_OK)
        status = count_elements(k, err);
    if (status != EPI_OK) {
        epi_kernel_free(k);
        return status;
    }
    *out = k;
    return EPI_OK;
}

void epi_kernel_free(epi_kernel *kernel) {
    if (!kernel)
        return;
    epi_cuda_kernel_free(kernel->cuda);
    epi_arena_free(&kernel->arena);
    free(kernel);
}

size_t epi_kernel_workspace(const epi_kernel *kernel) {
    if (!kernel)
        return 0;
    return (size_t)epi_round_up(epi_max64(64, kernel->cpu ? kernel->cpu->workspace : kernel->cuda->workspace),
                                64);
}

/* ---- run ---- */

/* A tensor of a GPU kernel: where the copy engine can take it. */
static epi_status check_gpu_tensor(const epi_kernel *kernel, int t, const epi_tensor *tensor,
                                   epi_error *err) {
    const epi_tensor_decl *d = &kernel->program->graph.tensors[t];
    int64_t step = 1;
    if ((uintptr_t)tensor->data % 16 != 0)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the tensor '%s' is not 16-byte aligned", d->name);
    for (int i = d->axes.count - 1; i >= 0 && tensor->strides; i--) {
        int64_t size = epi_axis_size(d->axes.at[i], kernel->spec->sizes);
        if (size > 1 && tensor->strides[i] != step)
            return epi_fail(err, EPI_ERR_UNSUPPORTED,
                            "the tensor '%s' is not contiguous: GPU kernels take contiguous tensors",
                            d->name);
        step *= epi_max64(1, size);
    }
    return EPI_OK;
}

static epi_extent extent_of(const epi_kernel *kernel, int t, const epi_tensor *tensor) {
    const epi_axes *axes = &kernel->program->graph.tensors[t].axes;
    epi_extent e = {.data = (uintptr_t)tensor->data,
                    .size = (int64_t)epi_dtype_size(kernel->spec->types[t]),
                    .rank = axes->count};
    int64_t step = 1;
    for (int i = axes->count - 1; i >= 0; i--) {
        e.counts[i] = epi_axis_size(axes->at[i], kernel->spec->sizes);
        e.steps[i] = (int64_t)((uint64_t)e.size * (uint64_t)(tensor->strides ? tensor->strides[i] : step));
        step *= epi_max64(1, e.counts[i]);
    }
    return e;
}

/* Outputs lie apart from everything else, but for those that may take an input's place. */
/* The usual case, told by addresses alone: both are contiguous, and one ends before the other begins. */
static bool lie_apart(const epi_kernel *kernel, const epi_tensor *tensors, int a, int b) {
    uintptr_t from[2] = {(uintptr_t)tensors[a].data, (uintptr_t)tensors[b].data};
    uint64_t bytes[2] = {(uint64_t)kernel->counts[a] * epi_dtype_size(kernel->spec->types[a]),
                         (uint64_t)kernel->counts[b] * epi_dtype_size(kernel->spec->types[b])};
    return !tensors[a].strides && !tensors[b].strides &&
           (from[0] + bytes[0] <= from[1] || from[1] + bytes[1] <= from[0]);
}

static epi_status check_overlap(const epi_kernel *kernel, const epi_tensor *tensors, epi_error *err) {
    const epi_graph *g = &kernel->program->graph;
    for (int o = g->input_count; o < g->tensor_count; o++) {
        for (int t = 0; t < o; t++) {
            if (lie_apart(kernel, tensors, o, t))
                continue;
            epi_extent out = extent_of(kernel, o, &tensors[o]), other = extent_of(kernel, t, &tensors[t]);
            if (!epi_extents_overlap(&out, &other))
                continue;
            bool input = t < g->input_count, may = epi_kernel_in_place(kernel, o, t);
            if (may && epi_extents_same(&out, &other))
                continue;
            return epi_fail(err, EPI_ERR_ARGUMENT, "the output '%s' overlaps the %s '%s'%s",
                            g->tensors[o].name, input ? "input" : "output", g->tensors[t].name,
                            may     ? ": it may take its place, but with the same address and strides"
                            : input ? ": this kernel cannot store it there"
                                    : "");
        }
    }
    return EPI_OK;
}

epi_status epi_kernel_start(const epi_kernel *kernel, const epi_tensor *tensors, int count, void *workspace,
                            void *stream, epi_error *err) {
    epi_error_clear(err);
    if (!kernel || !tensors || !workspace)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_kernel_run: kernel, tensors and workspace may not be NULL");
    const epi_graph *g = &kernel->program->graph;
    if (count != g->tensor_count)
        return epi_fail(err, EPI_ERR_ARGUMENT, "%s has %d tensors, %d were given", kernel->program->ast->name,
                        g->tensor_count, count);
    if ((uintptr_t)workspace % 64 != 0)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the workspace must be 64-byte aligned");
    for (int t = 0; t < count; t++) {
        if (!tensors[t].data && kernel->counts[t] > 0)
            return epi_fail(err, EPI_ERR_ARGUMENT, "the tensor '%s' is NULL", g->tensors[t].name);
        if ((uintptr_t)tensors[t].data % epi_dtype_size(kernel->spec->types[t]) != 0)
            return epi_fail(err, EPI_ERR_ARGUMENT, "the tensor '%s' is not aligned to its elements",
                            g->tensors[t].name);
        epi_status status = kernel->cuda ? check_gpu_tensor(kernel, t, &tensors[t], err) : EPI_OK;
        if (status != EPI_OK)
            return status;
    }
    epi_status apart = check_overlap(kernel, tensors, err);
    if (apart != EPI_OK)
        return apart;
    if (kernel->cuda && !kernel->cuda->cuda)
        return epi_fail(err, EPI_ERR_ARGUMENT, "this kernel was made to be looked at: it has no device");
    if (kernel->cuda)
        return epi_cuda_run(kernel->cuda, tensors, workspace, stream, err);
    if (stream)
        return epi_fail(err, EPI_ERR_ARGUMENT, "a CPU kernel takes no stream");
    return epi_cpu_run(kernel->cpu, tensors, workspace, err);
}

epi_status epi_kernel_run(const epi_kernel *kernel, const epi_tensor *tensors, int count, void *workspace,
                          epi_error *err) {
    return epi_kernel_start(kernel, tensors, count, workspace, NULL, err);
}

/* ---- looking ---- */

/* The shortest axis that an input counts along, or -1. */
static int64_t index_below(const epi_kernel *kernel, int tensor) {
    const epi_graph *g = &kernel->program->graph;
    int64_t below = -1;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (epi_ops[n->op].cls != EPI_CLASS_MOVE || n->arg[1] != g->tensors[tensor].node ||
            tensor >= g->input_count)
            continue;
        int64_t size = epi_axis_size(n->over.at[0], kernel->spec->sizes);
        below = below < 0 ? size : epi_min64(below, size);
    }
    return below;
}

epi_status epi_kernel_tensor(const epi_kernel *kernel, int index, epi_tensor_shape *out) {
    if (!kernel || !out || index < 0 || index >= kernel->program->graph.tensor_count)
        return EPI_ERR_ARGUMENT;
    const epi_axes *axes = &kernel->program->graph.tensors[index].axes;
    *out = (epi_tensor_shape){
        .type = kernel->spec->types[index], .rank = axes->count, .count = kernel->counts[index]};
    for (int i = 0; i < axes->count; i++)
        out->sizes[i] = epi_axis_size(axes->at[i], kernel->spec->sizes);
    out->index_below = index_below(kernel, index);
    return EPI_OK;
}

int epi_kernel_in_place(const epi_kernel *kernel, int output, int input) {
    return kernel &&
           epi_steps_in_place(kernel->cpu ? &kernel->cpu->steps : &kernel->cuda->steps, output, input);
}

void epi_kernel_get_info(const epi_kernel *kernel, epi_kernel_info *out) {
    if (kernel && out)
        (kernel->cpu ? epi_cpu_info(kernel->cpu, out) : epi_cuda_info(kernel->cuda, out));
}

size_t epi_kernel_describe(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    if (kernel)
        (kernel->cpu ? epi_cpu_describe(kernel->cpu, &t) : epi_cuda_describe(kernel->cuda, &t));
    return epi_text_give(&t, buf, size);
}

size_t epi_kernel_source(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    for (int i = 0; kernel && kernel->cuda && i < kernel->cuda->count; i++)
        epi_text_add(&t, "%s%s", i ? "\n" : "", kernel->cuda->launches[i].text.source.data);
    return epi_text_give(&t, buf, size);
}

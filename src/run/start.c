/* start.c: checks the tensors of a call against the kernel, and starts it. */
#include <string.h>

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "ir/index.h"
#include "pass/schedule/walk.h"
#include "run/run.h"

static bool is_contiguous(const epi_kernel *kernel, int t, const int64_t *strides) {
    const epi_axes *axes = &kernel->program->graph.tensors[t].axes;
    int64_t stride = 1;
    for (int i = axes->count - 1; i >= 0 && strides; i--) {
        int64_t size = epi_axis_size(axes->at[i], kernel->spec.sizes);
        if (size > 1 && strides[i] != stride)
            return false;
        stride *= epi_max64(1, size);
    }
    return true;
}

/* A tensor of a GPU kernel: contiguous, and aligned for TMA. */
static epi_status check_gpu_tensor(const epi_kernel *kernel, int t, const epi_tensor *tensor,
                                   epi_error *err) {
    const char *name = kernel->program->graph.tensors[t].name;
    if ((uintptr_t)tensor->data % 16 != 0)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the tensor '%s' is not 16-byte aligned", name);
    if (!is_contiguous(kernel, t, tensor->strides))
        return epi_fail(err, EPI_ERR_UNSUPPORTED,
                        "the tensor '%s' is not contiguous: GPU kernels take contiguous tensors", name);
    return EPI_OK;
}

/* Do the strides of a tensor lead to addresses that a process can have? Then offsets are counted in 64 bits.
 */
static epi_status check_reach(const epi_kernel *kernel, int t, const epi_tensor *tensor, epi_error *err) {
    const epi_graph *g = &kernel->program->graph;
    const epi_axes *axes = &g->tensors[t].axes;
    const int64_t most = (int64_t)1 << 57;
    int64_t all = 0, reach;
    for (int i = 0; i < axes->count && tensor->strides && kernel->counts[t] > 0; i++) {
        int64_t last = epi_axis_size(axes->at[i], kernel->spec.sizes) - 1, stride = tensor->strides[i];
        bool counts = epi_mul_size(last, stride, &reach) && reach > -most && reach < most;
        all += !counts ? most : (reach < 0 ? -reach : reach) * (int64_t)epi_dtype_size(kernel->spec.types[t]);
        if (all >= most)
            return epi_fail(err, EPI_ERR_ARGUMENT,
                            "the tensor '%s' has a stride of %ld along %s, which is too large for an address",
                            g->tensors[t].name, (long)stride, epi_axis_label(g, axes->at[i]).text);
    }
    return EPI_OK;
}

/* Inputs whose place a value takes lie one element behind the other. */
static epi_status check_spent(const epi_kernel *kernel, const epi_tensor *tensors, epi_error *err) {
    for (int v = 0; v < kernel->cut.value_count; v++) {
        int spent = kernel->cut.values[v].over - 1;
        if (spent >= 0 && !is_contiguous(kernel, spent, tensors[spent].strides))
            return epi_fail(err, EPI_ERR_ARGUMENT, "the input '%s', which is spent, must be contiguous",
                            kernel->program->graph.tensors[spent].name);
    }
    return EPI_OK;
}

/* Elements of an output may not be stored over each other. */
static epi_status check_output(const epi_kernel *kernel, int t, const epi_tensor *tensor, epi_error *err) {
    const epi_graph *g = &kernel->program->graph;
    const epi_axes *axes = &g->tensors[t].axes;
    for (int i = 0; i < axes->count && tensor->strides && kernel->counts[t] > 0; i++)
        if (tensor->strides[i] == 0 && epi_axis_size(axes->at[i], kernel->spec.sizes) > 1)
            return epi_fail(err, EPI_ERR_ARGUMENT,
                            "the stride of the output '%s' along %s is 0: its elements would share memory",
                            g->tensors[t].name, epi_axis_label(g, axes->at[i]).text);
    return EPI_OK;
}

/* The tensors of a part, and the strides of those that are slices. */
typedef struct part_room {
    epi_tensor tensors[2 * EPI_MAX_TENSORS];
    int64_t strides[EPI_PART_SLICES][EPI_MAX_AXES];
} part_room;

/* A place so many bytes further on; of a tensor that is not there, none. */
static void *further(void *data, int64_t bytes) {
    return data ? (unsigned char *)data + bytes : NULL;
}

/* A slice of a tensor whose strides the caller may give. */
static epi_tensor slice_of(const epi_kernel *kernel, const epi_part *part, int t, const epi_tensor *whole,
                           int64_t *strides) {
    epi_ref own = {.axes = part->graph.tensors[t].axes};
    int64_t begin = epi_ref_lay_out(&own, &part->slices[t], whole->strides, kernel->spec.sizes);
    memcpy(strides, own.strides, (size_t)own.axes.count * sizeof *strides);
    return (epi_tensor){further(whole->data, begin * (int64_t)epi_dtype_size(part->types[t])), strides};
}

/* How many bytes into a tensor the slab begins whose first row is that. */
static int64_t slab_begin(const epi_kernel *kernel, const epi_part *part, int t, const int64_t *strides,
                          int64_t row) {
    const epi_axes *axes =
        part->slices[t].memory.count ? &part->slices[t].memory : &part->graph.tensors[t].axes;
    epi_part_tensor at = part->tensors[t];
    int place = epi_axes_find_dim(axes, kernel->cut.slab_dim);
    if (place < 0 || (at.tensor < 0 && kernel->cut.values[at.value].slab))
        return 0;
    int64_t stride = 1;
    for (int i = axes->count - 1; i > place; i--)
        stride *= epi_axis_size(axes->at[i], kernel->spec.sizes);
    return row * (strides ? strides[place] : stride) * (int64_t)epi_dtype_size(part->types[t]);
}

/* Where a value of the cut lies. */
static void *value_at(const epi_kernel *kernel, int value, const epi_tensor *tensors,
                      unsigned char *workspace, unsigned char *prepared) {
    const epi_cut_value *v = &kernel->cut.values[value];
    if (v->over)
        return tensors[v->over - 1].data;
    return (v->prepared ? prepared : workspace + kernel->values) + v->offset;
}

/* The tensors of a part: the caller's, or values in the workspace, or prepared ones. Those of a part in a
 * loop are of the slab whose first row is `row`. */
static const epi_tensor *part_tensors(const epi_kernel *kernel, int index, int64_t row,
                                      const epi_tensor *tensors, unsigned char *workspace,
                                      unsigned char *prepared, part_room *room) {
    const epi_part *part = kernel->parts[index].part;
    const int *to = kernel->parts[index].to;
    for (int t = 0, slices = 0; part && t < part->graph.tensor_count; t++) {
        int of = to ? to[t] : t;
        epi_part_tensor at = part->tensors[of];
        epi_tensor *out = &room->tensors[t];
        if (at.tensor >= 0)
            *out = tensors[at.tensor];
        else
            *out = (epi_tensor){value_at(kernel, at.value, tensors, workspace, prepared), NULL};
        if (row)
            out->data = further(out->data, slab_begin(kernel, part, of, out->strides, row));
        if (part->slices[of].memory.count)
            *out = slice_of(kernel, part, of, out, room->strides[slices++]);
    }
    return part ? room->tensors : tensors;
}

/* What a start has in hand. */
typedef struct running {
    const epi_kernel *kernel;
    const epi_tensor *tensors;
    unsigned char *memory; /* where the parts' share of the workspace begins */
    unsigned char *prepared;
    bool prepares; /* it is no run, but makes what runs read from there */
    bool alone;    /* nothing is launched yet: what is lets others begin when all before it has ended */
    void *stream;
    epi_part_clock *clock; /* or NULL */
    union {
        epi_lying lying; /* before anything runs */
        part_room room;
    };
} running;

/* What a part, and those behind it, are told of their neighbours in the stream. */
static int beside_of(const running *r, const epi_part_kernel *first, const epi_part_kernel *last) {
    const epi_kernel *k = r->kernel;
    bool more = last + 1 < k->parts + k->part_count;
    if (r->clock) /* between its parts are events */
        return first->regrouped ? EPI_GROUPS_KNOWN : 0;
    return (first->concurrent ? EPI_OVERLAP_LAST : 0) | (first->regrouped ? EPI_GROUPS_KNOWN : 0) |
           (more && last[1].concurrent ? EPI_OVERLAP_NEXT : 0) |
           (first->weights_there && k->alone ? EPI_WEIGHTS_THERE : 0);
}

/* What is before the products of parts, or behind them. */
static epi_status run_around(running *r, int leader, bool behind, bool *first, epi_error *err) {
    const epi_kernel *k = r->kernel;
    const epi_joint *j = k->parts[leader].joint;
    for (int i = 0; i < j->count; i++) {
        const epi_tensor *given =
            part_tensors(k, leader + i, 0, r->tensors, r->memory, r->prepared, &r->room);
        EPI_TRY(epi_cuda_run_around(j->parts[i], given, r->memory + k->parts[leader + i].own, r->stream,
                                    behind, first, &r->alone, err));
    }
    return EPI_OK;
}

/* Parts whose products are launched as one. */
static epi_status run_joint(running *r, int leader, int *ran, epi_error *err) {
    const epi_kernel *k = r->kernel;
    const epi_part_kernel *part = &k->parts[leader];
    const epi_joint *j = part->joint;
    int beside = beside_of(r, part, part + j->count - 1), launches = 1;
    bool first = true, none = false;
    epi_joint_args args;
    EPI_TRY(run_around(r, leader, false, &first, err));
    for (int i = 0; i < j->count; i++) {
        const epi_tensor *given =
            part_tensors(k, leader + i, 0, r->tensors, r->memory, r->prepared, &r->room);
        EPI_TRY(epi_joint_put(j, i, given, r->memory + part[i].own, &args, err));
        if (r->clock)
            launches += epi_cuda_launches(j->parts[i], given, r->memory + part[i].own) - 1;
    }
    EPI_TRY(epi_joint_start(j, r->memory + part->own, &args, r->stream,
                            first ? beside : beside & ~EPI_OVERLAP_LAST, &r->alone, err));
    *ran = launches;
    return run_around(r, leader, true, &none, err);
}

/* How many launches it took is told in *launches, for the clock. */
static epi_status run_single(running *r, int index, int64_t row, int *launches, epi_error *err) {
    const epi_part_kernel *part = &r->kernel->parts[index];
    const epi_tensor *given =
        part_tensors(r->kernel, index, row, r->tensors, r->memory, r->prepared, &r->room);
    bool tail = (part->tail.cpu || part->tail.cuda) &&
                row + r->kernel->cut.slab_rows > r->kernel->spec.sizes[r->kernel->cut.slab_dim];
    const epi_compiled *compiled = tail ? &part->tail : &part->full;
    if (r->kernel->gpu && r->clock)
        *launches = epi_cuda_launches(compiled->cuda, given, r->memory + part->own);
    if (r->kernel->gpu)
        return epi_cuda_run(compiled->cuda, given, r->memory + part->own, r->stream, beside_of(r, part, part),
                            &r->alone, err);
    epi_cpu_run(compiled->cpu, given, r->memory);
    return EPI_OK;
}

static epi_status run_part(running *r, int index, int64_t row, epi_error *err) {
    const epi_part_kernel *part = &r->kernel->parts[index];
    bool joined = r->kernel->parts[part->leader].joint;
    int launches = 0;
    if (joined && !part->joint)
        return EPI_OK; /* the first of them has launched it */
    if (r->clock)
        EPI_TRY(epi_part_clock_begin(r->clock, index, err));
    EPI_TRY(joined ? run_joint(r, index, &launches, err) : run_single(r, index, row, &launches, err));
    return r->clock ? epi_part_clock_end(r->clock, index, launches, err) : EPI_OK;
}

/* The parts that it goes through. */
static int first_part(const running *r) {
    return r->prepares ? 0 : r->kernel->cut.prepared_parts;
}

static int past_part(const running *r) {
    return r->prepares ? r->kernel->cut.prepared_parts : r->kernel->part_count;
}

/* Does it read this tensor? */
static bool reads(const running *r, int tensor) {
    for (int i = first_part(r); i < past_part(r); i++) {
        const epi_part *part = r->kernel->parts[i].part;
        for (int t = 0; part && t < part->graph.input_count; t++)
            if (part->tensors[t].tensor == tensor)
                return true;
    }
    return false;
}

/* Need the tensor not be there? It may be left out where it is only read when preparing, and preparing needs
 * no others. */
static bool is_left_out(const running *r, int tensor) {
    const epi_tensor_decl *d = &r->kernel->program->graph.tensors[tensor];
    return r->kernel->cut.prepared_parts && (d->param || r->prepares) && !reads(r, tensor);
}

/* Zeros in a tensor of f32 that lies anyhow. */
static void clear(float *to, const epi_axes *axes, int axis, const int64_t *strides, const int64_t *sizes) {
    if (axis == axes->count) {
        *to = 0;
        return;
    }
    for (int64_t i = 0; i < epi_axis_size(axes->at[axis], sizes); i++)
        clear(to + i * strides[axis], axes, axis + 1, strides, sizes);
}

/* Before a loop: its sums over slabs are 0. */
static epi_status clear_sums(const running *r, int loop, epi_error *err) {
    const epi_kernel *k = r->kernel;
    for (int i = 0; i < k->cut.sum_count; i++) {
        const epi_cut_sum *s = &k->cut.sums[i];
        if (s->loop != loop)
            continue;
        const int64_t *strides = s->at.tensor >= 0 ? r->tensors[s->at.tensor].strides : NULL;
        void *to = s->at.tensor >= 0 ? r->tensors[s->at.tensor].data
                                     : r->memory + k->values + k->cut.values[s->at.value].offset;
        size_t bytes = (size_t)epi_axes_size(&s->axes, k->spec.sizes) * sizeof(float);
        if (k->gpu)
            EPI_TRY(epi_cuda_clear(k->parts[0].full.cuda->cuda, to, bytes, r->stream, err));
        else if (strides)
            clear(to, &s->axes, 0, strides, k->spec.sizes);
        else
            memset(to, 0, bytes);
    }
    return EPI_OK;
}

static epi_status run_parts(running *r, epi_error *err) {
    const epi_kernel *k = r->kernel;
    for (int i = first_part(r), past = past_part(r); i < past;) {
        int loop = k->parts[i].part ? k->parts[i].part->loop : -1;
        if (loop < 0) {
            EPI_TRY(run_part(r, i++, 0, err));
            continue;
        }
        const epi_loop *l = &k->cut.loops[loop];
        EPI_TRY(clear_sums(r, loop, err));
        for (int64_t row = 0; row < k->spec.sizes[k->cut.slab_dim]; row += k->cut.slab_rows)
            for (i = l->first; i <= l->last; i++)
                EPI_TRY(run_part(r, i, row, err));
    }
    return EPI_OK;
}

/* What a start takes. */
typedef struct start_args {
    const epi_tensor *tensors;
    const epi_tensor *given; /* by the caller, where numbers have been put among them; or NULL */
    int count;
    void *workspace, *stream, *prepared;
    bool prepares;
    epi_part_clock *clock;
} start_args;

/* Tensors lie apart from what else is written to. A number that is one of them has been put into the workspace. */
static epi_status check_memory(const running *r, const start_args *args, epi_error *err) {
    const epi_kernel *k = r->kernel;
    const epi_memory work = {"the workspace", args->workspace, epi_kernel_workspace(k)},
                     prepared = {"the prepared buffer", args->prepared, (size_t)k->cut.prepared_bytes};
    for (int t = 0; t < args->count; t++) {
        bool number = args->given && !args->given[t].data;
        if (number || is_left_out(r, t))
            continue;
        EPI_TRY(epi_check_beside(k, t, &r->tensors[t], &work, err));
        if (r->prepares || t >= k->program->graph.input_count)
            EPI_TRY(epi_check_beside(k, t, &r->tensors[t], &prepared, err));
    }
    return epi_memory_meets(&work, &prepared)
               ? epi_fail(err, EPI_ERR_ARGUMENT, "the prepared buffer overlaps the workspace")
               : EPI_OK;
}

static epi_status check_tensors(running *r, const start_args *args, epi_error *err) {
    const epi_kernel *kernel = r->kernel;
    const epi_graph *g = &kernel->program->graph;
    for (int t = 0; t < args->count; t++) {
        const epi_tensor *tensor = &r->tensors[t];
        if ((!tensor->data || r->prepares) && is_left_out(r, t))
            continue;
        if (!tensor->data && kernel->counts[t] > 0)
            return epi_fail(err, EPI_ERR_ARGUMENT, "the tensor '%s' is NULL", g->tensors[t].name);
        if ((uintptr_t)tensor->data % epi_dtype_size(kernel->spec.types[t]) != 0)
            return epi_fail(err, EPI_ERR_ARGUMENT, "the tensor '%s' is not aligned to its elements",
                            g->tensors[t].name);
        EPI_TRY(kernel->gpu           ? check_gpu_tensor(kernel, t, tensor, err)
                : t >= g->input_count ? check_output(kernel, t, tensor, err)
                                      : EPI_OK);
        EPI_TRY(check_reach(kernel, t, tensor, err));
    }
    EPI_TRY(check_memory(r, args, err));
    EPI_TRY(r->prepares ? EPI_OK : epi_check_apart(&r->lying, kernel, r->tensors, err));
    return r->prepares ? EPI_OK : check_spent(kernel, r->tensors, err);
}

static epi_status start(const epi_kernel *kernel, const start_args *args, epi_error *err) {
    if (!kernel || !args->tensors || !args->workspace)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "epi_kernel_run: kernel, tensors and workspace may not be NULL");
    const epi_graph *g = &kernel->program->graph;
    if (args->count != g->tensor_count)
        return epi_fail(err, EPI_ERR_ARGUMENT, "%s has %d tensors, %d were given", kernel->program->ast->name,
                        g->tensor_count, args->count);
    if ((uintptr_t)args->workspace % 64 != 0)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the workspace must be 64-byte aligned");
    if (kernel->cut.prepared_bytes && !args->prepared)
        return epi_fail(
            err, EPI_ERR_ARGUMENT,
            "%s has params: call epi_kernel_prepare, and pass its buffer to epi_kernel_call as `prepared`",
            kernel->program->ast->name);
    if (kernel->cut.prepared_bytes && (uintptr_t)args->prepared % 64 != 0)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the prepared buffer must be 64-byte aligned");
    running r; /* its room is large, and filled part by part */
    r.kernel = kernel;
    r.tensors = args->tensors;
    r.memory = (unsigned char *)args->workspace + epi_kernel_parts_at(kernel);
    r.prepared = args->prepared;
    r.prepares = args->prepares;
    r.alone = kernel->alone && !args->clock;
    r.stream = args->stream;
    r.clock = args->clock;
    EPI_TRY(check_tensors(&r, args, err));
    if (kernel->gpu && !kernel->parts[0].full.cuda->cuda)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "this kernel was compiled without a device: it can be read, but not run");
    if (!kernel->gpu && args->stream)
        return epi_fail(err, EPI_ERR_ARGUMENT, "a CPU kernel takes no stream");
    if (!kernel->gpu && !r.prepares) {
        epi_spec written = epi_kernel_written(kernel);
        EPI_TRY(epi_indices_check(&written, r.tensors, err));
        EPI_TRY(epi_assumed_check(kernel, r.tensors, err));
    }
    if (kernel->checks && !r.prepares)
        EPI_TRY(epi_cuda_run(kernel->checks, r.tensors, args->workspace, r.stream, 0, &r.alone, err));
    return run_parts(&r, err);
}

/* A number as an element of that type: an integer as it is, others as they are stored. */
static void store_number(double value, epi_dtype type, void *to) {
    int32_t word = value >= INT32_MIN && value <= INT32_MAX ? (int32_t)value : 0;
    int64_t wide = value >= -0x1p63 && value < 0x1p63 ? (int64_t)value : 0;
    if (type == EPI_I32)
        memcpy(to, &word, sizeof word);
    else if (type == EPI_I64)
        memcpy(to, &wide, sizeof wide);
    else
        epi_convert(to, type, &value, EPI_F64, 1);
}

/* Puts the numbers of a call where tensors of one element may lie: behind everything else in the workspace.
 */
static epi_status place_numbers(const epi_kernel *kernel, const epi_call *call, epi_tensor *tensors,
                                epi_error *err) {
    const epi_graph *g = &kernel->program->graph;
    unsigned char *at = (unsigned char *)call->workspace + epi_kernel_numbers_at(kernel);
    for (int t = 0; t < call->count; t++) {
        tensors[t] = call->tensors[t];
        if (t >= g->input_count || g->tensors[t].axes.count || tensors[t].data)
            continue;
        unsigned char bytes[8] = {0};
        store_number(call->numbers[t], kernel->spec.types[t], bytes);
        size_t size = epi_dtype_size(kernel->spec.types[t]);
        if (kernel->gpu)
            EPI_TRY(epi_cuda_put(kernel->parts[0].full.cuda->cuda, at, bytes, size, call->stream, err));
        else
            memcpy(at, bytes, size);
        tensors[t] = (epi_tensor){at, NULL};
        at += EPI_NUMBER_BYTES;
    }
    return EPI_OK;
}

static epi_status start_with_numbers(const epi_kernel *kernel, const epi_call *call, start_args args,
                                     epi_error *err) {
    epi_tensor tensors[2 * EPI_MAX_TENSORS];
    EPI_TRY(place_numbers(kernel, call, tensors, err));
    args.tensors = tensors;
    args.given = call->tensors;
    return start(kernel, &args, err);
}

/* A run, or, into the buffer, what runs need. */
static epi_status carry_out(const epi_kernel *kernel, const epi_call *call, void *buffer,
                            epi_part_clock *clock, epi_error *err) {
    size_t needed = epi_kernel_workspace(kernel);
    if (call->workspace_bytes && call->workspace_bytes < needed)
        return epi_fail(err, EPI_ERR_ARGUMENT, "the workspace has %zu bytes; this run needs %zu",
                        call->workspace_bytes, needed);
    if (!kernel->gpu && (call->wait || call->signal))
        return epi_fail(err, EPI_ERR_ARGUMENT, "a CPU kernel takes no events");
    epi_cuda_kernel *k = kernel->gpu ? kernel->parts[0].full.cuda : NULL;
    if (k && !k->cuda)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "this kernel was compiled without a device: it can be read, but not run");
    if (k)
        EPI_TRY(epi_cuda_use(k->cuda, k->device, err));
    if (call->wait)
        EPI_TRY(epi_cuda_event_wait(k->cuda, call->wait, call->stream, err));
    bool numbers = call->numbers && call->tensors && call->workspace &&
                   call->count == kernel->program->graph.tensor_count;
    const start_args args = {.tensors = call->tensors,
                             .count = call->count,
                             .workspace = call->workspace,
                             .stream = call->stream,
                             .prepared = buffer ? buffer : (void *)call->prepared,
                             .prepares = buffer,
                             .clock = clock};
    EPI_TRY(numbers ? start_with_numbers(kernel, call, args, err) : start(kernel, &args, err));
    return call->signal ? epi_cuda_event_record(k->cuda, call->signal, call->stream, err) : EPI_OK;
}

epi_status epi_kernel_carry_out(const epi_kernel *kernel, const epi_call *call, epi_part_clock *clock,
                                epi_error *err) {
    return carry_out(kernel, call, NULL, clock, err);
}

size_t epi_kernel_prepare_size(const epi_kernel *kernel) {
    return kernel ? (size_t)kernel->cut.prepared_bytes : 0;
}

epi_status epi_kernel_prepare(const epi_kernel *kernel, const epi_call *given, void *buffer, epi_error *err) {
    epi_call call;
    epi_error_clear(err);
    if (!kernel || !given)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_kernel_prepare: kernel and call may not be NULL");
    EPI_TRY(epi_struct_take(&call, sizeof call, given, "call", "EPI_CALL", err));
    if (!kernel->cut.prepared_bytes)
        return EPI_OK;
    if (!buffer)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_kernel_prepare: the buffer is NULL, and takes %zu bytes",
                        epi_kernel_prepare_size(kernel));
    return carry_out(kernel, &call, buffer, NULL, err);
}

epi_status epi_kernel_call(const epi_kernel *kernel, const epi_call *given, epi_error *err) {
    epi_call call;
    epi_error_clear(err);
    if (!kernel || !given)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_kernel_call: kernel and call may not be NULL");
    EPI_TRY(epi_struct_take(&call, sizeof call, given, "call", "EPI_CALL", err));
    return call.sizes || call.size_count ? epi_sizes_call(kernel, &call, err)
                                         : epi_kernel_carry_out(kernel, &call, NULL, err);
}

epi_status epi_kernel_start(const epi_kernel *kernel, const epi_tensor *tensors, int count, void *workspace,
                            void *stream, epi_error *err) {
    const start_args args = {.tensors = tensors, .count = count, .workspace = workspace, .stream = stream};
    epi_error_clear(err);
    return start(kernel, &args, err);
}

epi_status epi_kernel_run(const epi_kernel *kernel, const epi_tensor *tensors, int count, void *workspace,
                          epi_error *err) {
    return epi_kernel_start(kernel, tensors, count, workspace, NULL, err);
}

epi_status epi_kernel_check(const epi_kernel *kernel, const void *workspace, void *stream, epi_error *err) {
    epi_error_clear(err);
    if (!kernel || !workspace)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_kernel_check: kernel and workspace may not be NULL");
    if (!kernel->gpu || !kernel->checks)
        return EPI_OK;
    epi_cuda_kernel *k = kernel->checks;
    if (!k->cuda)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "this kernel was compiled without a device: it can be read, but not run");
    epi_spec written = epi_kernel_written(kernel);
    EPI_TRY(epi_cuda_use(k->cuda, k->device, err));
    EPI_TRY(epi_cuda_stream_wait(k->cuda, stream, err));
    for (int i = 0; i < k->count; i++) {
        int64_t found[2];
        const unsigned char *at = workspace;
        EPI_TRY(epi_cuda_copy(k->cuda, found, at + (size_t)i * sizeof found, sizeof found, err));
        if (found[0] >= 0)
            return epi_index_fail(&written, kernel->checked[i], found[0], found[1], err);
    }
    return EPI_OK;
}

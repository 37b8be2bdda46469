/* run.c: compiles and runs programs that come through a pipe (request.h), one after the other, in one process: build/test/pairs_run
 * [DEVICE]. Results lie between bytes that nobody may write; workspaces are full of what is no number. */
#include "request.h"

static epi_context *ctx;
static int device;

/* ---- one run ---- */

/* The device's memory of a run: tensors, the workspace, what is prepared. On the CPU tensors stay where they were read. */
typedef struct memory {
    unsigned char *tensors, *workspace, *prepared;
} memory;

/* Memory of the device, full of ones: not a number in every type. */
static epi_status take_memory(size_t bytes, void **out, epi_error *err) {
    void *ones = NULL;
    epi_status status = epi_device_alloc(ctx, device, bytes, out, err);
    if (status == EPI_OK && !(ones = malloc(bytes)))
        status = fail(err, "no memory");
    if (status == EPI_OK) {
        memset(ones, 0xff, bytes);
        status = epi_device_copy(ctx, device, *out, ones, bytes, err);
    }
    free(ones);
    return status;
}

static epi_status take_all(const request *r, size_t workspace, size_t prepared, memory *m, epi_error *err) {
    void *p[3] = {NULL, NULL, NULL};
    epi_status status = take_memory(r->bytes + APART, &p[0], err);
    if (status == EPI_OK)
        status = epi_device_copy(ctx, device, p[0], r->memory, r->bytes + APART, err);
    if (status == EPI_OK)
        status = take_memory(workspace, &p[1], err);
    if (status == EPI_OK && prepared)
        status = take_memory(prepared, &p[2], err);
    *m = (memory){p[0], p[1], p[2]};
    return status;
}

static void free_all(memory *m) {
    epi_device_free(ctx, device, m->tensors, NULL);
    epi_device_free(ctx, device, m->workspace, NULL);
    epi_device_free(ctx, device, m->prepared, NULL);
}

/* Nothing but results is written, and of these nothing beside them. */
static epi_status check_apart(const request *r, const unsigned char *before, epi_error *err) {
    size_t at = 0;
    for (int i = 0; i <= r->tensor_count; i++) {
        size_t end = i < r->tensor_count ? r->tensors[i].at : r->bytes;
        if (memcmp(r->memory + at, before + at, end - at) != 0)
            return fail(err, "a run writes beside its results");
        if (i < r->tensor_count)
            at = r->tensors[i].output ? r->tensors[i].at + r->tensors[i].bytes : r->tensors[i].at;
    }
    return EPI_OK;
}

static epi_status run_in(const epi_kernel *kernel, request *r, epi_call *call, const memory *m,
                         epi_error *err) {
    epi_tensor tensors[MOST_TENSORS];
    for (int i = 0; i < r->tensor_count; i++)
        tensors[i] = (epi_tensor){.data = m->tensors + r->tensors[i].at};
    call->tensors = tensors;
    call->count = r->tensor_count;
    call->workspace = m->workspace;
    call->prepared = m->prepared;
    epi_status status = m->prepared ? epi_kernel_prepare(kernel, call, m->prepared, err) : EPI_OK;
    if (status == EPI_OK)
        status = epi_kernel_call(kernel, call, err);
    if (status == EPI_OK)
        status = epi_device_wait(ctx, device, err);
    return status;
}

static epi_status run_kernel(const epi_kernel *kernel, request *r, epi_error *err) {
    int64_t sizes[4];
    size_t workspace = epi_kernel_workspace(kernel);
    epi_call call = EPI_CALL(.sizes = r->open_count ? sizes : NULL, .size_count = r->open_count);
    for (int i = 0; i < r->open_count; i++)
        for (int d = 0; d < r->dim_count; d++)
            if (!strcmp(r->open[i].name, r->dims[d].name))
                sizes[i] = r->dims[d].size;
    epi_status status = EPI_OK;
    if (r->open_count)
        status = epi_kernel_workspace_at(kernel, sizes, r->open_count, &workspace, err);
    if (status != EPI_OK)
        return status;
    memory m;
    unsigned char *before = malloc(r->bytes + APART);
    if (!before)
        exit(3);
    memcpy(before, r->memory, r->bytes + APART);
    status = take_all(r, workspace, epi_kernel_prepare_size(kernel), &m, err);
    if (status == EPI_OK)
        status = run_in(kernel, r, &call, &m, err);
    if (status == EPI_OK)
        status = epi_device_copy(ctx, device, r->memory, m.tensors, r->bytes + APART, err);
    if (status == EPI_OK)
        status = check_apart(r, before, err);
    free_all(&m);
    free(before);
    return status;
}

static epi_status answer_to(request *r, answer *a) {
    epi_module *module = NULL;
    epi_kernel *kernel = NULL;
    a->stage = "parse";
    epi_status status = epi_module_parse(ctx, r->text, r->text_bytes, "t.epi", &module, &a->err);
    const epi_program *program = module ? epi_module_find(module, "p") : NULL;
    if (status == EPI_OK) {
        a->stage = "compile";
        status =
            program ? compile(program, r, device, &kernel, &a->err) : fail(&a->err, "there is no program p");
    }
    if (status == EPI_OK)
        status = check_sizes(kernel, program, r, &a->err);
    if (status == EPI_OK) {
        a->stage = "run";
        status = run_kernel(kernel, r, &a->err);
    }
    if (status == EPI_OK)
        a->stage = "ok";
    if (kernel)
        epi_kernel_free(kernel);
    if (module)
        epi_module_free(module);
    return status;
}

int main(int argc, char **argv) {
    request r;
    epi_error err;
    if (epi_context_open(&ctx, &err) != EPI_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 2;
    }
    device = argc > 1 ? epi_device_find(ctx, argv[1]) : 0;
    if (device < 0) {
        fprintf(stderr, "there is no device %s: %s\n", argv[1], epi_device_why_no_gpu(ctx));
        return 2;
    }
    while (read_request(&r)) {
        answer a = {0};
        epi_status status = answer_to(&r, &a);
        write_answer(stdout, &r, &a, status);
        free_request(&r);
        if (device && epi_device_wait(ctx, device, NULL) != EPI_OK)
            return 1; /* a GPU that failed once does nothing more for this process */
    }
    free_request(&r);
    epi_context_close(ctx);
    return 0;
}

/* run.c: runs a kernel on a GPU: fills in addresses, and starts the launches that have something to do. */
#include <string.h>

#include "cuda/cuda.h"

typedef struct block_of_arguments {
    _Alignas(64) unsigned char bytes[EPI_MAX_MAPS * sizeof(epi_tensor_map) + EPI_MAX_POINTERS * 8 + 64];
} block_of_arguments;

static void *address(const epi_cuda_kernel *k, int node, int tensor, const epi_tensor *tensors,
                     unsigned char *workspace) {
    if (tensor == EPI_POINTER_WORKSPACE)
        return workspace;
    if (tensor < 0)
        tensor = k->steps.homes[node].tensor;
    return tensor >= 0 ? tensors[tensor].data : workspace + k->steps.homes[node].offset;
}

/* Where the pointer that a launch needs leads. */
static const void *pointer_at(const epi_cuda_kernel *k, const epi_launch *l, int i, const epi_tensor *tensors,
                              unsigned char *workspace) {
    const epi_pointer_need *need = &l->text.pointers[i];
    return (unsigned char *)address(k, need->node, need->tensor, tensors, workspace) + need->offset;
}

epi_status epi_launch_write(const epi_cuda_kernel *k, const epi_launch *l, const epi_tensor *tensors,
                            unsigned char *workspace, const epi_parameter *how, unsigned char *to,
                            epi_error *err) {
    const epi_kernel_text *t = &l->text;
    for (int i = 0; i < t->map_count && !l->empty; i++) {
        const epi_map_need *m = &t->maps[i];
        unsigned char *map = to + (size_t)i * sizeof(epi_tensor_map);
        memcpy(map, &l->maps[i], sizeof l->maps[i]);
        const unsigned char *data = address(k, m->node, m->tensor, tensors, workspace);
        EPI_TRY(epi_cuda_map_move(k->cuda, (epi_tensor_map *)(void *)map, data + m->offset, err));
    }
    unsigned char *p = to + (size_t)(how->maps ? how->maps : 1) * sizeof(epi_tensor_map);
    for (int i = 0; i < t->pointer_count; i++) {
        const void *at = pointer_at(k, l, i, tensors, workspace);
        memcpy(p + 8 * i, &at, 8);
    }
    p += (size_t)(how->pointers ? how->pointers : 1) * 8;
    memcpy(p, &how->numbers, sizeof how->numbers);
    p += sizeof how->numbers;
    for (int i = 0; k->spec.open && i < k->spec.open->count; i++)
        memcpy(p + 8 * i, &k->spec.open->units[i], 8);
    return EPI_OK;
}

epi_numbers epi_launch_numbers(const epi_launch *l, int beside, bool late, bool in_place) {
    const epi_cuda_mainloop *row = &epi_cuda_mainloops[l->kind];
    epi_numbers n = l->numbers;
    n.count = in_place ? l->pass.fewer : n.count | (row->hears ? beside : row->lets && late);
    return n;
}

static epi_status start(const epi_cuda_kernel *k, const epi_launch *l, const epi_tensor *tensors,
                        unsigned char *workspace, void *stream, int beside, bool alone, epi_error *err) {
    const epi_kernel_text *t = &l->text;
    block_of_arguments args;
    epi_cuda_launch how = l->how;
    bool late =
        alone && (epi_cuda_mainloops[l->kind].lets || epi_launch_can_overlap(l)); /* it starts others */
    how.overlap &= !alone || late;
    beside |= late ? EPI_OVERLAP_NEXT : 0;
    bool in_place = l->updates && pointer_at(k, l, 0, tensors, workspace) ==
                                      pointer_at(k, l, t->pointer_count - 1, tensors, workspace);
    if (in_place)
        how.grid = l->pass.blocks;
    epi_parameter parameter = {.maps = t->map_count,
                               .pointers = t->pointer_count,
                               .numbers = epi_launch_numbers(l, beside, late, in_place)};
    parameter.numbers.counter += (int64_t)(uintptr_t)workspace;
    EPI_TRY(epi_launch_write(k, l, tensors, workspace, &parameter, args.bytes, err));
    return epi_cuda_start(k->cuda, &how, args.bytes, stream, err);
}

bool epi_launch_can_overlap(const epi_launch *l) {
    return l->overlaps && !l->empty && l->how.overlap;
}

/* Is there nothing to do, for these tensors? */
static bool is_idle(const epi_cuda_kernel *k, const epi_launch *l, const epi_tensor *tensors,
                    unsigned char *workspace) {
    if (l->empty || !l->copies)
        return l->empty;
    const epi_pointer_need *from = &l->text.pointers[0], *to = &l->text.pointers[l->text.pointer_count - 1];
    return l->text.pointer_count == 2 && address(k, from->node, from->tensor, tensors, workspace) ==
                                             address(k, to->node, to->tensor, tensors, workspace);
}

/* A copy ahead of a product waits as every launch does, and then the product waits for it. */
epi_status epi_cuda_run(const epi_cuda_kernel *k, const epi_tensor *tensors, void *workspace, void *stream,
                        int beside, bool *alone, epi_error *err) {
    epi_status status = epi_cuda_use(k->cuda, k->device, err);
    int last = k->count - 1;
    while (last > 0 && is_idle(k, &k->launches[last], tensors, workspace))
        last--;
    for (int i = 0, first = 1; i < k->count && status == EPI_OK; i++) {
        if (is_idle(k, &k->launches[i], tensors, workspace))
            continue;
        status =
            start(k, &k->launches[i], tensors, workspace, stream,
                  (first ? beside & (EPI_OVERLAP_LAST | EPI_GROUPS_KNOWN) : 0) |
                      (i == last ? beside & EPI_OVERLAP_NEXT : 0) | (*alone ? 0 : beside & EPI_WEIGHTS_THERE),
                  *alone, err);
        first = *alone = 0;
    }
    return status;
}

int epi_cuda_launches(const epi_cuda_kernel *k, const epi_tensor *tensors, void *workspace) {
    int launches = 0;
    for (int i = 0; i < k->count; i++)
        launches += !is_idle(k, &k->launches[i], tensors, workspace);
    return launches;
}

const epi_launch *epi_cuda_joined(const epi_cuda_kernel *k) {
    const epi_launch *l = epi_cuda_product(k);
    return l && l->joined ? l : NULL;
}

epi_status epi_cuda_run_around(const epi_cuda_kernel *k, const epi_tensor *tensors, void *workspace,
                               void *stream, bool behind, bool *first, bool *alone, epi_error *err) {
    const epi_launch *product = epi_cuda_joined(k);
    EPI_TRY(epi_cuda_use(k->cuda, k->device, err));
    for (int i = 0; i < k->count; i++) {
        const epi_launch *l = &k->launches[i];
        if (l == product || (l > product) != behind || is_idle(k, l, tensors, workspace))
            continue;
        EPI_TRY(start(k, l, tensors, workspace, stream, 0, *alone, err));
        *first = *alone = false;
    }
    return EPI_OK;
}

/* fake_cuda.c: a stand-in for NVIDIA's driver with one GPU, for tests of what surrounds kernels.
 *
 * Its memory is the host's, and there is little of it. A launch computes nothing and takes a millisecond by the events
 * around it, so that times can be foretold. Numbers are those of cuda.h. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, OUT_OF_MEMORY = 2, MOST_BYTES = 40 << 20 };

static int launches; /* so far */

int cuInit(unsigned flags) {
    return (void)flags, OK;
}
int cuDriverGetVersion(int *version) {
    return *version = 13000, OK;
}
int cuGetErrorName(int code, const char **name) {
    return (void)code, *name = "CUDA_ERROR", OK;
}
int cuGetErrorString(int code, const char **text) {
    return (void)code, *text = "of the stand-in", OK;
}
int cuDeviceGetCount(int *count) {
    return *count = 1, OK;
}
int cuDeviceGet(int *device, int ordinal) {
    return *device = ordinal, OK;
}
int cuDeviceGetUuid(unsigned char *uuid, int device) {
    return (void)device, memset(uuid, 7, 16), OK;
}
int cuDeviceGetName(char *name, int size, int device) {
    return (void)device, snprintf(name, (size_t)size, "stand-in"), OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 13   ? 1000000
             : attribute == 16 ? 132
             : attribute == 75 ? 9
                               : 0; /* clock, units, 9.0 */
    return OK;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    return (void)device, *bytes = (size_t)1 << 30, OK;
}

int cuDevicePrimaryCtxRetain(void **out, int device) {
    return (void)device, *out = &launches, OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    return (void)device, OK;
}
int cuCtxGetCurrent(void **out) {
    return *out = &launches, OK;
}
int cuCtxSetCurrent(void *context) {
    return (void)context, OK;
}
int cuCtxSynchronize(void) {
    return OK;
}
int cuStreamSynchronize(void *stream) {
    return (void)stream, OK;
}

int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    void *p = bytes <= MOST_BYTES ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
    *out = (uint64_t)(uintptr_t)p;
    return p ? OK : OUT_OF_MEMORY;
}
int cuMemFree_v2(uint64_t p) {
    return free((void *)(uintptr_t)p), OK;
}
int cuMemcpy(uint64_t to, uint64_t from, size_t bytes) {
    return memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes), OK;
}
int cuMemsetD8_v2(uint64_t to, unsigned char byte, size_t bytes) {
    return memset((void *)(uintptr_t)to, byte, bytes), OK;
}
int cuMemsetD16Async(uint64_t to, unsigned short value, size_t count, void *stream) {
    (void)stream;
    for (size_t i = 0; i < count; i++)
        memcpy((char *)(uintptr_t)to + 2 * i, &value, 2);
    return OK;
}
int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *stream) {
    (void)stream;
    for (size_t i = 0; i < count; i++)
        memcpy((char *)(uintptr_t)to + 4 * i, &value, 4);
    return OK;
}

int cuLibraryLoadData(void **out, const void *code, int *jit, void **jit_values, unsigned jit_count,
                      int *options, void **values, unsigned count) {
    (void)code, (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return *out = &launches, OK;
}
int cuLibraryUnload(void *library) {
    return (void)library, OK;
}
int cuLibraryGetKernel(void **out, void *library, const char *name) {
    return (void)library, (void)name, *out = &launches, OK;
}
int cuKernelGetFunction(void **out, void *kernel) {
    return *out = kernel, OK;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    return (void)function, (void)attribute, (void)value, OK;
}
int cuLaunchKernelEx(const void *config, void *function, void **parameters, void **extra) {
    return (void)config, (void)function, (void)parameters, (void)extra, launches++, OK;
}
int cuTensorMapEncodeTiled(void *out, int type, uint32_t rank, void *data, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                           int interleave, int swizzle, int promotion, int fill) {
    (void)type, (void)rank, (void)data, (void)sizes, (void)strides, (void)box, (void)element_strides;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    return memset(out, 0, 128), OK;
}
int cuTensorMapReplaceAddress(void *map, void *data) {
    return (void)map, (void)data, OK;
}

/* An event holds how many launches were before it. */
int cuEventCreate(void **out, unsigned flags) {
    (void)flags;
    return (*out = calloc(1, sizeof(int))) ? OK : OUT_OF_MEMORY;
}
int cuEventDestroy_v2(void *event) {
    return free(event), OK;
}
int cuEventRecord(void *event, void *stream) {
    return (void)stream, *(int *)event = launches, OK;
}
int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    return *milliseconds = (float)(*(int *)to - *(int *)from), OK;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return (void)stream, (void)event, (void)flags, OK;
}

/* driver.c: libcuda, its devices, and the dozen functions that Epilog calls.
 *
 * Types and numbers of the driver are declared here by their binary layout, as in cuda.h. The driver keeps
 * that layout for ever: a function that changed its meaning got a new suffix (_v2). */
#define _POSIX_C_SOURCE 200809L
#include "cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/arch.h"

enum { OLDEST_DRIVER = 12000, MAX_RANK = 5 };

/* The numbers of cuda.h that are used here. */
enum {
    CU_SUCCESS = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_STUB_LIBRARY = 34,
    CU_NO_DEVICE = 100,
    CU_DEVICE_CLOCK_RATE = 13,
    CU_DEVICE_MULTIPROCESSORS = 16,
    CU_DEVICE_MAJOR = 75,
    CU_DEVICE_MINOR = 76,
    CU_FUNCTION_MAX_DYNAMIC_SHARED = 8,
    CU_LAUNCH_CLUSTER = 4,
    CU_LAUNCH_PROGRAMMATIC_SERIALIZATION = 6,
    CU_MAP_INTERLEAVE_NONE = 0,
    CU_MAP_PROMOTE_128 = 2, /* not 256: rows that start off a line would take twice the time */
    CU_MAP_FILL_ZERO = 0,
};

typedef struct cu_launch_attribute {
    int id;
    char pad[4];
    union {
        char pad[64];
        unsigned cluster[3];
        int allowed;
        uint64_t align;
    } value;
} cu_launch_attribute;

typedef struct cu_launch_config {
    unsigned grid[3], block[3], shared;
    epi_cu_stream stream;
    cu_launch_attribute *attributes;
    unsigned count;
} cu_launch_config;

_Static_assert(sizeof(cu_launch_attribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(cu_launch_config) == 56, "CUlaunchConfig");
_Static_assert(sizeof(epi_tensor_map) == 128, "CUtensorMap");

typedef struct cu_kernel *cu_kernel;

/* One row per function: its name in libcuda and its parameters. All answer with a CUresult. */
#define CALLS(X) \
    X(cuInit, (unsigned flags)) \
    X(cuDriverGetVersion, (int *version)) \
    X(cuGetErrorName, (int code, const char **name)) \
    X(cuGetErrorString, (int code, const char **text)) \
    X(cuDeviceGetCount, (int *count)) \
    X(cuDeviceGet, (int *device, int ordinal)) \
    X(cuDeviceGetUuid, (unsigned char *uuid, int device)) \
    X(cuDeviceGetName, (char *name, int size, int device)) \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
    X(cuDeviceTotalMem_v2, (size_t * bytes, int device)) \
    X(cuDevicePrimaryCtxRetain, (epi_cu_context_handle * out, int device)) \
    X(cuDevicePrimaryCtxRelease_v2, (int device)) \
    X(cuCtxGetCurrent, (epi_cu_context_handle * out)) \
    X(cuCtxSetCurrent, (epi_cu_context_handle context)) \
    X(cuCtxSynchronize, (void)) \
    X(cuMemAlloc_v2, (epi_cu_ptr * out, size_t bytes)) \
    X(cuMemFree_v2, (epi_cu_ptr p)) \
    X(cuMemcpy, (epi_cu_ptr to, epi_cu_ptr from, size_t bytes)) \
    X(cuMemsetD8_v2, (epi_cu_ptr to, unsigned char byte, size_t bytes)) \
    X(cuLibraryLoadData, (epi_cu_library_handle * out, const void *code, int *jit, void **jit_values, \
                          unsigned jit_count, int *options, void **values, unsigned count)) \
    X(cuLibraryUnload, (epi_cu_library_handle library)) \
    X(cuLibraryGetKernel, (cu_kernel * out, epi_cu_library_handle library, const char *name)) \
    X(cuKernelGetFunction, (epi_cu_function_handle * out, cu_kernel kernel)) \
    X(cuFuncSetAttribute, (epi_cu_function_handle function, int attribute, int value)) \
    X(cuLaunchKernelEx, \
      (const cu_launch_config *config, epi_cu_function_handle function, void **parameters, void **extra)) \
    X(cuTensorMapEncodeTiled, \
      (epi_tensor_map * out, int type, uint32_t rank, void *data, const uint64_t *sizes, \
       const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides, int interleave, \
       int swizzle, int promotion, int fill)) \
    X(cuTensorMapReplaceAddress, (epi_tensor_map * map, void *data)) \
    X(cuMemsetD16Async, (epi_cu_ptr to, unsigned short value, size_t count, epi_cu_stream stream)) \
    X(cuMemsetD32Async, (epi_cu_ptr to, unsigned value, size_t count, epi_cu_stream stream)) \
    X(cuStreamWaitEvent, (epi_cu_stream stream, epi_cu_event event, unsigned flags)) \
    X(cuStreamSynchronize, (epi_cu_stream stream)) \
    X(cuEventRecord, (epi_cu_event event, epi_cu_stream stream)) \
    X(cuEventCreate, (epi_cu_event * out, unsigned flags)) \
    X(cuEventDestroy_v2, (epi_cu_event event)) \
    X(cuEventElapsedTime, (float *milliseconds, epi_cu_event from, epi_cu_event to))

#define DECLARE(name, parameters) int(*name) parameters;
#define PLACE(name, parameters) {#name, offsetof(struct epi_cuda_calls, name)},

struct epi_cuda_calls {
    CALLS(DECLARE)
    pthread_mutex_t retaining; /* held while a device's context is made */
};

static const struct {
    const char *name;
    size_t offset;
} functions[] = {CALLS(PLACE)};
enum { FUNCTION_COUNT = sizeof functions / sizeof *functions };

/* ---- errors ---- */

/* "CUDA_ERROR_INVALID_VALUE (invalid argument)". */
static void describe(const struct epi_cuda_calls *calls, int code, char *to, size_t size) {
    const char *name = NULL, *text = NULL;
    if (calls->cuGetErrorName(code, &name) != CU_SUCCESS || !name)
        snprintf(to, size, "error %d", code);
    else if (calls->cuGetErrorString(code, &text) != CU_SUCCESS || !text)
        snprintf(to, size, "%s", name);
    else
        snprintf(to, size, "%s (%s)", name, text);
}

/* EPI_OK, or the driver's word on `what` it would not do. */
static epi_status answer(const epi_cuda *cuda, int code, const char *what, epi_error *err) {
    if (code == CU_SUCCESS)
        return EPI_OK;
    char reason[256];
    describe(cuda->calls, code, reason, sizeof reason);
    return epi_fail(err, code == CU_OUT_OF_MEMORY ? EPI_ERR_MEMORY : EPI_ERR_UNSUPPORTED,
                    "the GPU driver refused %s: %s", what, reason);
}

/* Without devices there is nothing to call. */
static bool missing(const epi_cuda *cuda, epi_error *err) {
    if (cuda->count == 0)
        epi_fail(err, EPI_ERR_UNSUPPORTED, "there is no GPU: %s", cuda->why);
    return cuda->count == 0;
}

/* Calls a function of the driver, if there is a device, for a caller who has `cuda` and `err`. */
#define ASK(what, function, ...) \
    (missing(cuda, err) ? EPI_ERR_UNSUPPORTED : answer(cuda, cuda->calls->function(__VA_ARGS__), what, err))

/* ---- opening ---- */

/* Keeps why there are no devices; returns false. */
#define REFUSE(cuda, ...) (snprintf((cuda)->why, sizeof(cuda)->why, __VA_ARGS__), false)

/* Returns the name of the first function that is not there, or NULL. */
static const char *look_up_all(epi_cuda *cuda) {
    const char *absent = NULL;
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        void *function = dlsym(cuda->library, functions[i].name);
        if (!function && !absent)
            absent = functions[i].name;
        memcpy((char *)cuda->calls + functions[i].offset, &function, sizeof function);
    }
    return absent;
}

/* Opens the library and finds it new enough. */
static bool open_library(epi_cuda *cuda) {
    cuda->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda->library)
        cuda->library = dlopen("libcuda.so", RTLD_NOW | RTLD_LOCAL);
    if (!cuda->library)
        return REFUSE(cuda, "no NVIDIA driver is installed (libcuda.so.1 was not found)");
    const char *absent = look_up_all(cuda);
    int *version = &cuda->driver_version;
    if (!cuda->calls->cuDriverGetVersion || cuda->calls->cuDriverGetVersion(version) != CU_SUCCESS)
        *version = 0;
    if (!absent && (*version == 0 || *version >= OLDEST_DRIVER)) /* unknown: starting it will tell why */
        return true;
    return REFUSE(cuda,
                  "the NVIDIA driver is too old: it is for CUDA %d.%d%s%s; CUDA %d.0 or newer is needed",
                  *version / 1000, *version % 1000 / 10, absent ? " and has no " : "", absent ? absent : "",
                  OLDEST_DRIVER / 1000);
}

/* Starts the driver and counts its devices. */
static bool start_driver(epi_cuda *cuda, int *count) {
    char reason[160];
    int code = cuda->calls->cuInit(0);
    if (code == CU_SUCCESS)
        code = cuda->calls->cuDeviceGetCount(count);
    if (code == CU_NO_DEVICE || (code == CU_SUCCESS && *count == 0))
        return REFUSE(cuda, "the NVIDIA driver is installed but finds no GPU");
    if (code == CU_STUB_LIBRARY)
        return REFUSE(
            cuda, "the libcuda found is the CUDA toolkit's stub, which is only for linking, not the driver");
    if (code != CU_SUCCESS) {
        describe(cuda->calls, code, reason, sizeof reason);
        return REFUSE(cuda, "the NVIDIA driver does not start: %s", reason);
    }
    return true;
}

static void write_features(const epi_cuda *cuda, epi_cuda_device *d) {
    int64_t gib = 1 << 30;
    const epi_arch *arch = epi_arch_of(10 * d->major + d->minor);
    size_t size = sizeof d->features;
    snprintf(d->features, size, "sm_%d%d, %d multiprocessors, %lld GiB, %d MHz, driver %d.%d, mainloops:%s",
             d->major, d->minor, d->multiprocessors, (long long)((d->memory + gib / 2) / gib), d->clock_mhz,
             cuda->driver_version / 1000, cuda->driver_version % 1000 / 10, arch ? "" : " none");
    for (int i = 0; i < EPI_MAINLOOP_COUNT && arch; i++)
        if (epi_arch_has(arch, (epi_mainloop)i))
            snprintf(d->features + strlen(d->features), size - strlen(d->features), " %s",
                     epi_mainloop_name((epi_mainloop)i));
}

static int read_attribute(const epi_cuda *cuda, int device, int attribute) {
    int value = 0;
    return cuda->calls->cuDeviceGetAttribute(&value, attribute, device) == CU_SUCCESS ? value : 0;
}

static bool read_device(const epi_cuda *cuda, int ordinal, epi_cuda_device *d) {
    int device = 0;
    size_t memory = 0;
    *d = (epi_cuda_device){.ordinal = ordinal};
    if (cuda->calls->cuDeviceGet(&device, ordinal) != CU_SUCCESS ||
        cuda->calls->cuDeviceGetUuid(d->uuid, device) != CU_SUCCESS ||
        cuda->calls->cuDeviceGetName(d->model, sizeof d->model, device) != CU_SUCCESS ||
        cuda->calls->cuDeviceTotalMem_v2(&memory, device) != CU_SUCCESS)
        return false;
    d->memory = (int64_t)memory;
    d->major = read_attribute(cuda, device, CU_DEVICE_MAJOR);
    d->minor = read_attribute(cuda, device, CU_DEVICE_MINOR);
    d->multiprocessors = read_attribute(cuda, device, CU_DEVICE_MULTIPROCESSORS);
    d->clock_mhz = read_attribute(cuda, device, CU_DEVICE_CLOCK_RATE) / 1000;
    write_features(cuda, d);
    return true;
}

void epi_cuda_open(epi_cuda *cuda) {
    *cuda = (epi_cuda){0};
    cuda->calls = calloc(1, sizeof *cuda->calls);
    if (!cuda->calls) {
        (void)REFUSE(cuda, "not enough memory to open the NVIDIA driver");
        return;
    }
    pthread_mutex_init(&cuda->calls->retaining, NULL);
    int count = 0;
    if (!open_library(cuda) || !start_driver(cuda, &count))
        return;
    for (int i = 0; i < count && cuda->count < EPI_CUDA_MAX_DEVICES; i++) {
        epi_cuda_device *d = &cuda->devices[cuda->count];
        if (!read_device(cuda, i, d))
            continue;
        snprintf(d->name, sizeof d->name, "gpu%d", cuda->count++);
    }
    if (cuda->count == 0)
        (void)REFUSE(cuda, "the NVIDIA driver finds %d GPUs but gives no information about them", count);
}

/* The driver's own number of a device, which need not be its place in the list. */
static int device_handle(const epi_cuda *cuda, const epi_cuda_device *d) {
    int device = d->ordinal;
    cuda->calls->cuDeviceGet(&device, d->ordinal);
    return device;
}

/* The library itself stays loaded: it has threads and exit handlers of its own. */
void epi_cuda_close(epi_cuda *cuda) {
    for (int i = 0; i < cuda->count; i++)
        if (cuda->devices[i].context)
            cuda->calls->cuDevicePrimaryCtxRelease_v2(device_handle(cuda, &cuda->devices[i]));
    if (cuda->calls)
        pthread_mutex_destroy(&cuda->calls->retaining);
    free(cuda->calls);
    *cuda = (epi_cuda){.why = "it was closed"};
}

/* ---- the current device ---- */

/* Makes the context on first use. Threads that come at once wait for the first. */
static epi_status retain(epi_cuda *cuda, epi_cuda_device *d, epi_error *err) {
    epi_status status = EPI_OK;
    pthread_mutex_lock(&cuda->calls->retaining);
    if (!d->context) {
        epi_cu_context_handle context = NULL;
        status = answer(cuda, cuda->calls->cuDevicePrimaryCtxRetain(&context, device_handle(cuda, d)),
                        "to begin on the device", err);
        __atomic_store_n(&d->context, context, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&cuda->calls->retaining);
    return status;
}

epi_status epi_cuda_use(epi_cuda *cuda, int device, epi_error *err) {
    if (missing(cuda, err))
        return EPI_ERR_UNSUPPORTED;
    if (device < 0 || device >= cuda->count)
        return epi_fail(err, EPI_ERR_ARGUMENT, "there is no GPU %d: there are %d, counted from 0", device,
                        cuda->count);
    epi_cuda_device *d = &cuda->devices[device];
    if (!__atomic_load_n(&d->context, __ATOMIC_ACQUIRE)) {
        EPI_TRY(retain(cuda, d, err));
    }
    epi_cu_context_handle current = NULL;
    if (cuda->calls->cuCtxGetCurrent(&current) == CU_SUCCESS && current == d->context)
        return EPI_OK;
    return answer(cuda, cuda->calls->cuCtxSetCurrent(d->context), "to switch to the device", err);
}

/* ---- memory ---- */

static epi_cu_ptr address(const void *p) {
    return (epi_cu_ptr)(uintptr_t)p;
}

epi_status epi_cuda_alloc(epi_cuda *cuda, size_t bytes, void **out, epi_error *err) {
    *out = NULL;
    epi_cu_ptr p = 0;
    char what[64];
    snprintf(what, sizeof what, "%zu bytes of memory", bytes);
    /* the driver knows no empty allocation */
    epi_status status = ASK(what, cuMemAlloc_v2, &p, bytes ? bytes : 1);
    if (status == EPI_OK)
        *out = (void *)(uintptr_t)p;
    return status;
}

epi_status epi_cuda_free(epi_cuda *cuda, void *p, epi_error *err) {
    return p ? ASK("to free memory", cuMemFree_v2, address(p)) : EPI_OK;
}

epi_status epi_cuda_copy(epi_cuda *cuda, void *to, const void *from, size_t bytes, epi_error *err) {
    epi_status status = ASK("a copy", cuMemcpy, address(to), address(from), bytes);
    /* a copy from pageable memory may still be on its way */
    return status == EPI_OK ? ASK("a copy", cuCtxSynchronize) : status;
}

epi_status epi_cuda_fill(epi_cuda *cuda, void *to, int byte, size_t bytes, epi_error *err) {
    return ASK("to fill memory", cuMemsetD8_v2, address(to), (unsigned char)byte, bytes);
}

epi_status epi_cuda_wait(epi_cuda *cuda, epi_error *err) {
    return ASK("to wait, or work before it failed", cuCtxSynchronize);
}

epi_status epi_cuda_put(const epi_cuda *cuda, void *to, const void *element, size_t bytes,
                        epi_cu_stream stream, epi_error *err) {
    uint16_t half = 0;
    uint32_t word = 0;
    memcpy(bytes == 2 ? (void *)&half : (void *)&word, element, bytes == 2 ? 2 : 4);
    return bytes == 2 ? ASK("to store a number", cuMemsetD16Async, address(to), half, 1, stream)
                      : ASK("to store a number", cuMemsetD32Async, address(to), word, 1, stream);
}

epi_status epi_cuda_clear(const epi_cuda *cuda, void *to, size_t bytes, epi_cu_stream stream,
                          epi_error *err) {
    return ASK("to fill memory", cuMemsetD32Async, address(to), 0, bytes / 4, stream);
}

epi_status epi_cuda_event_record(const epi_cuda *cuda, epi_cu_event event, epi_cu_stream stream,
                                 epi_error *err) {
    return ASK("to record an event", cuEventRecord, event, stream);
}

epi_status epi_cuda_event_wait(const epi_cuda *cuda, epi_cu_event event, epi_cu_stream stream,
                               epi_error *err) {
    return ASK("to wait for an event", cuStreamWaitEvent, stream, event, 0);
}

epi_status epi_cuda_event_make(const epi_cuda *cuda, epi_cu_event *out, epi_error *err) {
    *out = NULL;
    return ASK("an event", cuEventCreate, out, 0);
}

void epi_cuda_event_free(const epi_cuda *cuda, epi_cu_event event) {
    if (event && cuda->count > 0)
        cuda->calls->cuEventDestroy_v2(event);
}

epi_status epi_cuda_event_seconds(const epi_cuda *cuda, epi_cu_event from, epi_cu_event to, double *out,
                                  epi_error *err) {
    float milliseconds = 0;
    epi_status status = ASK("the time between events", cuEventElapsedTime, &milliseconds, from, to);
    *out = 1e-3 * (double)milliseconds;
    return status;
}

epi_status epi_cuda_stream_wait(const epi_cuda *cuda, epi_cu_stream stream, epi_error *err) {
    return ASK("to wait, or work before it failed", cuStreamSynchronize, stream);
}

/* ---- kernels ---- */

static epi_status find_function(const epi_cuda *cuda, epi_cu_library_handle library, const char *name,
                                int shared, epi_cu_function_handle *function, epi_error *err) {
    char what[160];
    cu_kernel kernel = NULL;
    snprintf(what, sizeof what, "to find the kernel %.100s in its cubin", name);
    epi_status status = ASK(what, cuLibraryGetKernel, &kernel, library, name);
    if (status == EPI_OK)
        status = ASK(what, cuKernelGetFunction, function, kernel);
    if (status != EPI_OK || shared <= 0)
        return status;
    snprintf(what, sizeof what, "%d bytes of shared memory to the kernel %.100s", shared, name);
    return ASK(what, cuFuncSetAttribute, *function, CU_FUNCTION_MAX_DYNAMIC_SHARED, shared);
}

epi_status epi_cuda_load(epi_cuda *cuda, const void *cubin, const char *name, int shared,
                         epi_cu_library_handle *library, epi_cu_function_handle *function, epi_error *err) {
    *library = NULL;
    *function = NULL;
    epi_status status =
        ASK("to load a cubin", cuLibraryLoadData, library, cubin, NULL, NULL, 0, NULL, NULL, 0);
    if (status == EPI_OK)
        status = find_function(cuda, *library, name, shared, function, err);
    if (status != EPI_OK) {
        epi_cuda_unload(cuda, *library);
        *library = NULL;
        *function = NULL;
    }
    return status;
}

void epi_cuda_unload(epi_cuda *cuda, epi_cu_library_handle library) {
    if (library && cuda->count > 0)
        cuda->calls->cuLibraryUnload(library);
}

/* The driver knows from the cubin how many bytes to take from `arguments`: they are copied in the call. */
epi_status epi_cuda_start(const epi_cuda *cuda, const epi_cuda_launch *launch, const void *arguments,
                          epi_cu_stream stream, epi_error *err) {
    cu_launch_attribute attributes[2];
    cu_launch_config config = {.grid = {launch->grid, 1, 1},
                               .block = {launch->block, 1, 1},
                               .shared = launch->shared,
                               .stream = stream,
                               .attributes = attributes};
    if (launch->cluster > 1)
        attributes[config.count++] =
            (cu_launch_attribute){.id = CU_LAUNCH_CLUSTER, .value.cluster = {launch->cluster, 1, 1}};
    if (launch->overlap)
        attributes[config.count++] =
            (cu_launch_attribute){.id = CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.allowed = 1};
    void *parameters[] = {(void *)(uintptr_t)arguments};
    return ASK("a launch", cuLaunchKernelEx, &config, launch->function, parameters, NULL);
}

/* ---- tensor maps ---- */

epi_status epi_cuda_map(const epi_cuda *cuda, epi_tensor_map *out, epi_dtype type, int rank, const void *data,
                        const uint64_t *sizes, const uint64_t *strides, const uint32_t *box, int swizzle,
                        epi_error *err) {
    static const uint32_t element_strides[MAX_RANK] = {1, 1, 1, 1, 1};
    static const uint64_t no_strides[1] = {0};
    int pattern = swizzle == 0 ? 0 : swizzle == 32 ? 1 : swizzle == 64 ? 2 : swizzle == 128 ? 3 : -1;
    if ((unsigned)type >= EPI_DTYPE_COUNT || rank < 1 || rank > MAX_RANK || pattern < 0)
        return epi_fail(err, EPI_ERR_ARGUMENT, "no tensor map has type %d, rank %d and a swizzle of %d bytes",
                        (int)type, rank, swizzle);
    return ASK("a tensor map", cuTensorMapEncodeTiled, out, epi_dtype_at(type)->map_type, (uint32_t)rank,
               (void *)(uintptr_t)data, sizes, rank > 1 ? strides : no_strides, box, element_strides,
               CU_MAP_INTERLEAVE_NONE, pattern, CU_MAP_PROMOTE_128, CU_MAP_FILL_ZERO);
}

epi_status epi_cuda_map_move(const epi_cuda *cuda, epi_tensor_map *map, const void *data, epi_error *err) {
    return ASK("a tensor map's address", cuTensorMapReplaceAddress, map, (void *)(uintptr_t)data);
}

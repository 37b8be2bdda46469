/* driver.h: the CUDA driver and its devices, opened at run time.
 *
 * The build needs nothing of CUDA: dlopen finds the driver's functions in libcuda, and the few types that
 * they need are declared here by their binary layout. A machine without a driver or without a GPU has zero
 * devices and a sentence that says why. */
#ifndef EPI_CUDA_DRIVER_H
#define EPI_CUDA_DRIVER_H

#include "base/base.h"

typedef struct epi_cu_context *epi_cu_context_handle;
typedef struct epi_cu_library *epi_cu_library_handle;
typedef struct epi_cu_function *epi_cu_function_handle;
typedef struct epi_cu_stream *epi_cu_stream;
typedef struct epi_cu_event *epi_cu_event;
typedef uint64_t epi_cu_ptr;

/* A tensor map as TMA reads it: 128 opaque bytes. */
typedef struct epi_tensor_map {
    _Alignas(64) uint64_t opaque[16];
} epi_tensor_map;

enum { EPI_CUDA_MAX_DEVICES = 16 };

typedef struct epi_cuda_device {
    int ordinal;
    unsigned char uuid[16];
    char name[8];       /* "gpu0" */
    char model[128];    /* "NVIDIA H200" */
    char features[256]; /* "sm_90, 132 multiprocessors, 140 GiB, 1980 MHz, driver 13.0, mainloops: gemm_sm90
                           gemm_sm80 gemm_any" */
    int major, minor, multiprocessors, clock_mhz;
    int64_t memory;
    epi_cu_context_handle context; /* the primary one, retained at first use */
} epi_cuda_device;

typedef struct epi_cuda {
    void *library;      /* libcuda, or NULL */
    int driver_version; /* 13000 for 13.0 */
    char why[256];      /* why there are no devices, in words; "" where there are */
    int count;
    epi_cuda_device devices[EPI_CUDA_MAX_DEVICES];
    struct epi_cuda_calls *calls; /* the functions: driver.c */
} epi_cuda;

/* Looks for the driver and its devices. Never fails: without them count is 0 and `why` says so. */
void epi_cuda_open(epi_cuda *cuda);
void epi_cuda_close(epi_cuda *cuda);

/* Makes the device's primary context the calling thread's. Cheap where it already is. */
epi_status epi_cuda_use(epi_cuda *cuda, int device, epi_error *err);

/* Memory, copies (in any direction) and waiting. All work on the current device. */
epi_status epi_cuda_alloc(epi_cuda *cuda, size_t bytes, void **out, epi_error *err);
epi_status epi_cuda_free(epi_cuda *cuda, void *p, epi_error *err);
epi_status epi_cuda_copy(epi_cuda *cuda, void *to, const void *from, size_t bytes, epi_error *err);
epi_status epi_cuda_fill(epi_cuda *cuda, void *to, int byte, size_t bytes, epi_error *err);
epi_status epi_cuda_wait(epi_cuda *cuda, epi_error *err); /* for the whole device */
/* Puts an element of 2 or 4 bytes into the device's memory, in the stream's order and without reading host
 * memory later: a graph that captures it keeps the value. */
epi_status epi_cuda_put(const epi_cuda *cuda, void *to, const void *element, size_t bytes,
                        epi_cu_stream stream, epi_error *err);
/* Zeros, in the stream's order: `bytes` is a multiple of 4. */
epi_status epi_cuda_clear(const epi_cuda *cuda, void *to, size_t bytes, epi_cu_stream stream, epi_error *err);
epi_status epi_cuda_stream_wait(const epi_cuda *cuda, epi_cu_stream stream, epi_error *err);

/* Loads a cubin and looks up one function in it; `shared` bytes of dynamic shared memory are allowed. */
epi_status epi_cuda_load(epi_cuda *cuda, const void *cubin, const char *name, int shared,
                         epi_cu_library_handle *library, epi_cu_function_handle *function, epi_error *err);
void epi_cuda_unload(epi_cuda *cuda, epi_cu_library_handle library);

/* One launch. `arguments` is one block of memory handed on as the kernel's only parameter. */
typedef struct epi_cuda_launch {
    epi_cu_function_handle function;
    unsigned grid, block, cluster; /* cluster: 0 or 1 for none */
    unsigned shared;               /* dynamic bytes */
    bool overlap;                  /* may begin before the kernel ahead has ended (it waits by itself) */
} epi_cuda_launch;

epi_status epi_cuda_start(const epi_cuda *cuda, const epi_cuda_launch *launch, const void *arguments,
                          epi_cu_stream stream, epi_error *err);

/* A tiled tensor map. `type` is a storage type; `sizes` in elements and `strides` in bytes (stride 0 is the
 * element itself and not given), the fastest dimension first; `box` in elements. `swizzle` is the row of a
 * box in bytes: 128, 64, 32, or 0 for none. Fails where the driver refuses. */
epi_status epi_cuda_map(const epi_cuda *cuda, epi_tensor_map *out, epi_dtype type, int rank, const void *data,
                        const uint64_t *sizes, const uint64_t *strides, const uint32_t *box, int swizzle,
                        epi_error *err);

/* The same map for a tensor that lies somewhere else: cheap, for every launch. */
epi_status epi_cuda_map_move(const epi_cuda *cuda, epi_tensor_map *map, const void *data, epi_error *err);

/* Events: the caller's, or made here. */
epi_status epi_cuda_event_make(const epi_cuda *cuda, epi_cu_event *out, epi_error *err);
void epi_cuda_event_free(const epi_cuda *cuda, epi_cu_event event);
/* Between two that have been recorded, and that the stream has passed. */
epi_status epi_cuda_event_seconds(const epi_cuda *cuda, epi_cu_event from, epi_cu_event to, double *out,
                                  epi_error *err);
epi_status epi_cuda_event_record(const epi_cuda *cuda, epi_cu_event event, epi_cu_stream stream,
                                 epi_error *err);
/* What comes next on the stream waits for the event; the caller does not. */
epi_status epi_cuda_event_wait(const epi_cuda *cuda, epi_cu_event event, epi_cu_stream stream,
                               epi_error *err);

#endif

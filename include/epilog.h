/* epilog.h: the public interface of Epilog. epilog_io.h has files of tensors and tokenizers.
 *
 * You write a Transformer computation once, as a program in plain mathematical notation. Epilog checks it,
 * compiles it for concrete sizes and types, and runs it as fused kernels.
 *
 *     epi_context *ctx;   epi_context_open(&ctx, &err);
 *     epi_module *mod;    epi_module_parse(ctx, text, len, "file.epi", &mod, &err);
 *     epi_kernel *k;      epi_kernel_compile(epi_module_find(mod, "matmul"), &options, &k, &err);
 *     void *work = aligned_alloc(64, epi_kernel_workspace(k));
 *     epi_kernel_run(k, tensors, count, work, &err);
 *
 * Rules that hold everywhere:
 *   - Every call that can fail returns a status and fills the epi_error that it is given (NULL is allowed).
 *     The library never prints, exits or aborts. A call that makes an object sets *out to NULL if it fails.
 *   - The library has no global state except threads that wait for work. A child of fork starts its own. If
 *     the system refuses to start threads, the caller's thread does all the work.
 *   - Compiling may fail, allocate and take time; it reports every error that can be found before a run.
 *     Running allocates nothing except the worker threads. (The first run of a kernel with open axes at new
 *     sizes is an exception: it allocates and plans, as compiling does.)
 *   - Contexts are independent. Modules and kernels never change once they are made. Any number of threads
 *     may run the same kernel or different kernels of one context at the same time. Each of these runs needs
 *     its own workspace, even on two streams of the same GPU. Close a context after everything made from it.
 *   - Sizes are 64-bit. Strides count elements, not bytes.
 */
#ifndef EPILOG_H
#define EPILOG_H

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC system_header /* stops C++ warnings about the fields that EPI_OPTIONS leaves zero */
#endif

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPI_VERSION_MAJOR 0
#define EPI_VERSION_MINOR 2
#define EPI_VERSION_PATCH 0

#if defined(__GNUC__)
#define EPI_API __attribute__((visibility("default")))
#else
#define EPI_API
#endif

enum { EPI_MAX_AXES = 8 }; /* axes of one tensor */

typedef enum epi_status {
    EPI_OK = 0,
    EPI_ERR_ARGUMENT,    /* the call is wrong: a null pointer, a wrong count */
    EPI_ERR_MEMORY,      /* an allocation failed, or a size overflows 64 bits */
    EPI_ERR_SYNTAX,      /* the source text does not parse */
    EPI_ERR_CHECK,       /* the text parses, but its names, axes or reductions are wrong */
    EPI_ERR_DIMS,        /* the sizes given at compile time do not fit the program */
    EPI_ERR_UNSUPPORTED, /* valid, but not supported on this device or path */
    EPI_ERR_FILE,        /* a file is missing, malformed or not writable */
    EPI_ERR_INDEX,       /* an element of an index tensor is outside the axis that it indexes */
    EPI_ERR_INTERNAL,    /* a bug in the library; the message names the place in its sources */
} epi_status;

/* What went wrong, and where. `line` and `column` count from 1; both are 0 if the error has no place in a
 * source text. `message` says what is wrong and what to write instead. `source` is the offending line. */
typedef struct epi_error {
    epi_status status;
    int line, column;
    char file[256];
    char message[768];
    char source[256];
} epi_error;

/* How an element is stored. Arithmetic is f32 for every storage type (f64 in the reference). */
typedef enum epi_dtype {
    EPI_F32 = 0,
    EPI_BF16,
    EPI_F16,
    EPI_I32,  /* exact integers, also for indices (language.md, section 15) */
    EPI_F64,  /* for results of the reference */
    EPI_I64,  /* as EPI_I32, in 64 bits */
    EPI_E4M3, /* 8-bit float: up to 448, no infinities (PyTorch's float8_e4m3fn) */
    EPI_E5M2, /* 8-bit float: up to 57344, the upper half of an f16 */
    EPI_I8,   /* 8-bit integers, for quantised tensors */
    EPI_U8,
    EPI_DTYPE_COUNT
} epi_dtype;

EPI_API const char *epi_version(void);
EPI_API const char *epi_status_name(epi_status status);
EPI_API const char *epi_dtype_name(epi_dtype type);
EPI_API size_t epi_dtype_size(epi_dtype type);
/* The type with this name ("bf16"), or EPI_DTYPE_COUNT if there is none. */
EPI_API epi_dtype epi_dtype_find(const char *name);
/* Converts `count` contiguous elements, as a kernel does when it loads and stores them: through f32, rounded
 * to nearest even. Out-of-range values saturate in 8-bit and integer types, and become infinity in bf16 and
 * f16. NaN becomes 0 in integer types. e4m3 has no infinity; the other float types do. Conversions between
 * i32 and i64 are exact for values that fit. No alignment is needed. The two buffers must not overlap. */
EPI_API epi_status epi_convert(void *to, epi_dtype to_type, const void *from, epi_dtype from_type,
                               int64_t count);
/* Writes "file:line:column: message", the source line and a caret into buf, as the epilog command prints
 * them. */
EPI_API size_t epi_error_format(const epi_error *err, char *buf, size_t size);

/* ---- context ------------------------------------------------------------------------------ */

typedef struct epi_context epi_context;

EPI_API epi_status epi_context_open(epi_context **out, epi_error *err);
EPI_API void epi_context_close(epi_context *ctx);

/* One device of a context. Device 0 is the CPU; all others are GPUs. */
typedef struct epi_device_info {
    const char *name;     /* "cpu", "gpu0" */
    const char *model;    /* "Intel(R) Xeon(R) ...", "NVIDIA H200" */
    const char *features; /* instruction sets; GPU: multiprocessors, memory, clock, driver, mainloops */
    int threads;          /* threads that a kernel uses by default; 0 on a GPU */
    int is_gpu;
    int ordinal;            /* GPU: CUDA's device number in this process; -1 for the CPU */
    unsigned char uuid[16]; /* GPU: the same in every process, as nvidia-smi -L prints it */
} epi_device_info;

EPI_API int epi_device_count(const epi_context *ctx);
/* Info structs may gain fields at the end. The `_sized` functions take the size of your struct: the library
 * writes no more than that, and zeroes fields that it does not know. In C and C++, call the functions
 * without `_sized`: they pass the size for you. */
EPI_API epi_status epi_device_get_sized(const epi_context *ctx, int index, epi_device_info *out, size_t size);
static inline epi_status epi_device_get(const epi_context *ctx, int index, epi_device_info *out) {
    return epi_device_get_sized(ctx, index, out, sizeof *out);
}
/* The index of the device with this name ("cpu", "gpu" for the first GPU, "gpu1"), or -1. */
EPI_API int epi_device_find(const epi_context *ctx, const char *name);
/* Why the context has no GPU, in words; "" if it has one. */
EPI_API const char *epi_device_why_no_gpu(const epi_context *ctx);

/* Memory of a device, for callers that do not use the CUDA runtime. A copy can go to the device, from the
 * device, or from one place of the device to another. It is complete when the call returns. On the CPU these
 * functions are malloc, free and memcpy. */
EPI_API epi_status epi_device_alloc(epi_context *ctx, int device, size_t bytes, void **out, epi_error *err);
EPI_API epi_status epi_device_free(epi_context *ctx, int device, void *memory, epi_error *err);
EPI_API epi_status epi_device_copy(epi_context *ctx, int device, void *to, const void *from, size_t bytes,
                                   epi_error *err);
/* Waits until all work that was started on the device is done. */
EPI_API epi_status epi_device_wait(epi_context *ctx, int device, epi_error *err);

/* ---- programs ------------------------------------------------------------------------------ */

typedef struct epi_module epi_module;   /* the programs of one source text */
typedef struct epi_program epi_program; /* one of these programs; its module owns it */

/* Parses a source text, and checks names, axes and types. Messages call the text `file`. */
EPI_API epi_status epi_module_parse(epi_context *ctx, const char *text, size_t length, const char *file,
                                    epi_module **out, epi_error *err);
/* Frees the module and its programs. Kernels compiled from them stay valid. */
EPI_API void epi_module_free(epi_module *module);
EPI_API int epi_module_count(const epi_module *module);
EPI_API const epi_program *epi_module_program(const epi_module *module, int index);
/* The program with this name, or NULL. */
EPI_API const epi_program *epi_module_find(const epi_module *module, const char *name);

/* Formats a source text: one assignment a line. Comments, numbers and parentheses stay as they are. Line
 * breaks of the text are dropped, except single blank lines. The text must parse, but its names and axes may
 * be wrong. Writes at most `size` bytes, always NUL-terminated; *needed is the length of the whole result.
 */
EPI_API epi_status epi_format(const char *text, size_t length, const char *file, char *buf, size_t size,
                              size_t *needed, epi_error *err);

/* The program files that come with Epilog: the name and the text of each; NULL past the last. Every source
 * text may call their programs. */
EPI_API const char *epi_bundled_name(int index);
EPI_API const char *epi_bundled_text(int index);

EPI_API const char *epi_program_name(const epi_program *program);
/* The name of the program that `program` declares as its gradient with `by`, or NULL. */
EPI_API const char *epi_program_gradient(const epi_program *program);
/* The comment directly above the program, without the # marks; "" if there is none. */
EPI_API const char *epi_program_comment(const epi_program *program);
/* The program in canonical form. Writes at most `size` bytes, always NUL-terminated. Returns the length of
 * the whole result. */
EPI_API size_t epi_program_print(const epi_program *program, char *buf, size_t size);
/* Warnings about the source text, one a line, as in "file.epi:3:5: the value 'h' is not used"; "" if there
 * are none. There are three kinds: an unused value or input; a call whose argument has its axes in an order
 * that the text does not show; a scatter that sums over a batch. The last two may not mean what you intended.
 * There is no warning for an unused input that is the only one with some axis, because it gives the size of
 * that axis. Writes and returns as epi_program_print does. */
EPI_API size_t epi_program_warnings(const epi_program *program, char *buf, size_t size);

/* The named sizes of a program, in order of first appearance. */
EPI_API int epi_program_dim_count(const epi_program *program);
EPI_API const char *epi_program_dim(const epi_program *program, int index);
/* The size that the program declares for this dim, as in C=3; 0 if you give the size when you compile. */
EPI_API int64_t epi_program_dim_size(const epi_program *program, int index);
/* A rename of the program, by its number, from 0. It turns axis *from into axis *to, which has size(*from) *
 * 2^*shift elements. Each of the two axes may also be one that only a rename creates. Returns 0 and writes
 * nothing if there is no rename with this number. */
EPI_API int epi_program_renamed(const epi_program *program, int index, const char **from, const char **to,
                                int *shift);

/* The tensors of a program: its inputs in order, then its outputs in order. */
typedef struct epi_tensor_info {
    const char *name;
    int is_output;
    int is_cotangent; /* an input that holds the gradient of a result */
    int has_type;     /* the program declares the type */
    epi_dtype type;   /* the declared type, if has_type */
    int rank;
    struct {
        const char *dim; /* the axis has size(dim) * 2^shift elements */
        int shift;
    } axes[EPI_MAX_AXES];
} epi_tensor_info;

EPI_API int epi_program_tensor_count(const epi_program *program);
EPI_API epi_status epi_program_tensor(const epi_program *program, int index, epi_tensor_info *out);

/* Derives the gradient of a program, in reverse mode, as a new program NAME_grad in a module of its own. A
 * scalar L depends on the results of the program.
 *   - Inputs: all inputs of the program in their order. Then d_y, the gradient of L with respect to y (the
 *     cotangent), for each result y that is no integer.
 *   - Outputs: d_x, the gradient of L with respect to x, for each input x named in `wrt`, in that order.
 *   - Types: a gradient has the declared type of its input. If none is declared, the gradient of a vector
 *     (such as a bias) is f32 whatever the options say, because it is a long sum; epi_kernel_tensor tells.
 * You can print, compile and differentiate the new program like any other. docs/derivatives.md has the
 * rules. */
EPI_API epi_status epi_program_grad(const epi_program *program, const char *const *wrt, int wrt_count,
                                    epi_module **out, epi_error *err);

/* The same as two programs, NAME_forward and NAME_backward. The forward saves values, so that the backward
 * does not compute them again.
 *   - The forward has the inputs and results of the program. It also returns the saved values: products,
 *     reductions, rows that both programs would compute in a pass over memory, and every keep(x).
 *   - The backward takes the inputs and results that it needs, the saved values, and the cotangents. It
 *     recomputes everything else, and every again(x). */
EPI_API epi_status epi_program_grad_saved(const epi_program *program, const char *const *wrt, int wrt_count,
                                          epi_module **out, epi_error *err);
/* The same, but it saves memory at the cost of time. The backward recomputes rows that the forward stores as
 * an operand of a product, such as the normalised rows of a LayerNorm. */
EPI_API epi_status epi_program_grad_lean(const epi_program *program, const char *const *wrt, int wrt_count,
                                         epi_module **out, epi_error *err);

/* ---- kernels ------------------------------------------------------------------------------- */

/* How a program is executed. */
typedef enum epi_path {
    EPI_PATH_FUSED = 0, /* mainloops with fused operations around them; the default */
    EPI_PATH_UNFUSED,   /* each product by itself, then one pass over memory per operation */
    EPI_PATH_NAIVE,     /* plain loops, every value rounded to `type`; a baseline for errors */
    EPI_PATH_REFERENCE, /* plain loops in f64; the exact result to compare with */
} epi_path;

typedef struct epi_dim_binding {
    const char *name;
    int64_t size;
} epi_dim_binding;

typedef struct epi_type_binding {
    const char *tensor;
    epi_dtype type;
} epi_type_binding;

/* Where a GPU kernel rounds.
 *   - `packed` rounds a tile to 16 bits once, after the product and its row scales. The rest of the epilogue
 *     uses the rounded values, as a chain of separate kernels would. This lets the epilogue run during the
 *     next tile's product.
 *   - `exact` keeps every value in f32 until it is stored. The CPU is always exact, and so is a program that
 *     stores a tile as f32.
 * For either choice, results are bitwise the same for every configuration of a mainloop, every run, and any
 * other rows in the batch. */
typedef enum epi_rounding { EPI_ROUND_PACKED = 0, EPI_ROUND_EXACT } epi_rounding;

/* How far Epilog may rewrite the arithmetic. `free`: in a program of several kernels it may reorder sums of
 * products if that moves fewer bytes (docs/algebra.md). Errors stay within the rule of docs/numbers.md.
 * `written`: it computes every value as the program is written. A program that becomes one kernel is always
 * computed as written. */
typedef enum epi_algebra { EPI_ALGEBRA_FREE = 0, EPI_ALGEBRA_WRITTEN } epi_algebra;

/* `size` tells the library which fields the caller knows, so that later versions can add fields at the end.
 * A library accepts shorter options: missing fields are zero. It accepts longer ones if all fields that it
 * does not know are zero. EPI_OPTIONS sets the size, and every field that you do not name to zero:
 *
 *     epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 3);
 *
 * In C++ this needs C++20. Before C++20: `epi_options options = {}; options.size = sizeof options;` and then
 * field by field. */
#define EPI_OPTIONS(...) \
    { .size = sizeof(epi_options), __VA_ARGS__ }
typedef struct epi_options {
    size_t size;                 /* sizeof(epi_options) */
    const epi_dim_binding *dims; /* every named size of the program, once */
    int dim_count;
    epi_dtype type;                /* storage of tensors without a declared type; scalars stay f32 */
    const epi_type_binding *types; /* exceptions to `type`, by tensor name */
    int type_count;
    int device;  /* index of a device of the context. Or a generation of GPUs, with no GPU needed: -90 is
                    compute capability 9.0 (epi_gpu_arch_device). Such a kernel can be read, but not run */
    int threads; /* 0: as many as epi_device_info has */
    epi_path path;
    const char *micro; /* a CPU micro-kernel, by name ("plain", "avx2"); NULL: the best. NULL on a GPU */
    epi_rounding rounding;
    const char *config; /* a GPU configuration, by name ("sm90_128x256_c2_d"); NULL: the cost model
                           chooses. NULL on the CPU */
    /* Axes that count rows (tokens, batch), by name. How a program is split into kernels does not depend on
     * their sizes, so a row's result is bitwise the same in every batch. NULL: Epilog chooses them.
     *   - It takes the first input. All its axes are row axes except the last, which is one if the input
     *     holds integers.
     *   - In a program with cotangents it looks at the first cotangent that has axes. It takes the first
     *     input that has the first axis of this cotangent, and skips vectors of floats. Of the axes chosen
     *     as above, those that the cotangent has are row axes. */
    const char *const *row_axes;
    int row_axis_count;
    int check_indices; /* 1: a GPU kernel checks its index inputs before each run, with one launch for each
                          input; epi_kernel_check returns the result. The CPU always checks them */
    /* Open (dynamic) axes, by name: row axes whose size you give at each run (epi_kernel_call). Four at
     * most. `dims` has the largest size of each. CUDA source does not depend on their sizes. On a GPU each
     * part (one kernel of a split program) has up to three compiled forms, for different numbers of rows.
     * The forms for fewer rows are compiled by the first call, or the first epi_kernel_workspace_at, with
     * sizes other than the largest. */
    const char *const *open_axes;
    int open_axis_count;
    epi_algebra algebra; /* how far Epilog may rewrite the arithmetic of a program of several kernels */
    /* 0, or a memory budget: the most bytes that epi_kernel_workspace may be. If a program of several
     * kernels needs more, its kernels run on one chunk of rows (a slab) after the other. Rows are bitwise
     * the same. Sums over rows, such as gradients of weights, are added up in f32, chunk by chunk, in an
     * order that depends only on the sizes and this budget. If the budget is too small, compiling fails and
     * the message names the least that works. */
    size_t memory;
    /* For EPI_PATH_REFERENCE only: 0, or a relative error that is added to every value computed from inputs.
     * The seed decides at random whether it is added or subtracted. The change in the results shows how much
     * an arithmetic with such rounding errors may lose, also where large terms cancel. */
    double perturb;
    int perturb_seed;
    /* Inputs, by name, that you do not need after a run, so that it may overwrite them. A value between
     * kernels is stored over such an input, and takes no workspace, if the last kernel that reads the input
     * computes the value from it element by element. These inputs must be contiguous, and overlap no other
     * tensor. Not with `memory`. */
    const char *const *spent;
    int spent_count;
} epi_options;

/* The same as epi_program_grad_saved, for tensors with types of their own: the types that the options give
 * in `types` are declared in both programs. An input may be more precise than the storage type, as f32 among
 * bf16. Values computed element by element from such an input are then saved as f32, or recomputed; in 16
 * bits the backward would be far off. With `memory` it saves less, as epi_program_grad_lean does. It ignores
 * all other options. */
EPI_API epi_status epi_program_grad_typed(const epi_program *program, const char *const *wrt, int wrt_count,
                                          const epi_options *options, epi_module **out, epi_error *err);

/* The GPU configurations for products and attention. A name says mainloop, tile, cluster and schedule.
 * Compiling considers those that suit the device and the rounding, that the program fits, and whose machine
 * code is good. It takes the one that a cost model rates best; `config` in the options forces one. To tune a
 * kernel, compile and time it with each that suits. Results are bitwise the same, except for attention whose
 * tiles have another number of keys. (The shapes of rows kernels have names too, which epi_kernel_get_info
 * tells, but no list.) */
EPI_API int epi_gpu_config_count(void);
EPI_API const char *epi_gpu_config_name(int index); /* NULL past the last */
EPI_API int epi_gpu_config_find(const char *name);  /* its index, or -1 */
/* 1 if the configuration is for such a GPU (`device` as in the options) and this rounding; else 0. */
EPI_API int epi_gpu_config_suits(const epi_context *ctx, int index, int device, epi_rounding rounding);
/* The GPU generations that Epilog writes CUDA source for, the oldest first: the name ("sm_90a"), and the
 * value that stands for it as `device` in the options (-90). */
EPI_API const char *epi_gpu_arch_name(int index);  /* NULL past the last */
EPI_API int epi_gpu_arch_device(const char *name); /* 0 if there is none with this name */

typedef struct epi_kernel epi_kernel;

EPI_API epi_status epi_kernel_compile(const epi_program *program, const epi_options *options,
                                      epi_kernel **out, epi_error *err);
/* Before you free a GPU kernel, wait for its stream, and destroy the CUDA graphs that contain it. */
EPI_API void epi_kernel_free(epi_kernel *kernel);

/* Bytes of scratch memory that a run needs, 64-byte aligned: a multiple of 64, never zero. For a kernel with
 * open axes, it is the number for the largest sizes. Smaller sizes may need more: ask
 * epi_kernel_workspace_at. */
EPI_API size_t epi_kernel_workspace(const epi_kernel *kernel);

/* One tensor of a call. A scalar is a tensor of one element. */
typedef struct epi_tensor {
    void *data;
    const int64_t *strides; /* one per axis, in elements; NULL: contiguous in the declared order. Strides of
                               an input may be zero or negative. No two elements of an output may share
                               memory */
} epi_tensor;

/* Runs the kernel with the tensors in the program's order: inputs, then outputs. An output must not overlap
 * an input, except as epi_kernel_in_place allows, nor another output, nor the workspace. On a GPU the
 * pointers are device pointers to contiguous, 16-byte aligned memory. The call returns once the work is on
 * the default stream.
 *
 * The elements of an integer input that gather, scatter or update use as an index must be inside the axis.
 *   - The CPU checks them first. If one is outside, the run fails with EPI_ERR_INDEX and writes nothing.
 *   - A GPU checks them only if check_indices is set. Otherwise, without an error, gather gives 0 for an
 *     element outside, scatter and update skip it, and a product whose rows choose their weight by it uses
 *     the last weight.
 * For a computed index outside the axis, gather, scatter and update do the same on every device. */
EPI_API epi_status epi_kernel_run(const epi_kernel *kernel, const epi_tensor *tensors, int count,
                                  void *workspace, epi_error *err);
/* The same on a stream: a CUstream or cudaStream_t. The call neither allocates nor waits, so you can capture
 * it in a CUDA graph. It leaves the device's primary context current in the calling thread. For a CPU
 * kernel, `stream` must be NULL. */
EPI_API epi_status epi_kernel_start(const epi_kernel *kernel, const epi_tensor *tensors, int count,
                                    void *workspace, void *stream, epi_error *err);

/* A run with all its arguments. EPI_CALL initialises it, and sets its size, as EPI_OPTIONS does. */
#define EPI_CALL(...) \
    { .size = sizeof(epi_call), __VA_ARGS__ }
typedef struct epi_call {
    size_t size;               /* sizeof(epi_call) */
    const epi_tensor *tensors; /* as epi_kernel_run takes them */
    int count;
    void *workspace;
    void *stream;          /* as epi_kernel_start takes it */
    const double *numbers; /* NULL, or one for each tensor: the value of an input without axes whose data is
                              NULL, so that a scalar needs no device memory. Other entries are ignored */
    void *wait, *signal;   /* CUevents, or NULL. The work starts after `wait`; `signal` is recorded after all
                              of the work. NULL on the CPU */
    const int64_t *sizes;  /* the sizes of this run, one for each open axis in the order of the
                              options. NULL: the largest */
    int size_count;
    size_t workspace_bytes; /* the size of the workspace, which the call checks; 0: not checked */
    const void *prepared;   /* the buffer of epi_kernel_prepare, if epi_kernel_prepare_size is not 0 */
} epi_call;
EPI_API epi_status epi_kernel_call(const epi_kernel *kernel, const epi_call *call, epi_error *err);

/* Runs as epi_kernel_call does, and times each part (epi_kernel_part). `count` is the number of parts, and
 * each array has as many elements:
 *   - `seconds`: the time of the part, by the clock on the CPU and between events on a GPU;
 *   - `runs`: how often it ran: once, or once for each slab of a memory budget. It is 0 for a part of
 *     epi_kernel_prepare, and for a part that an earlier one launched together with its own. May be NULL;
 *   - `launches`: its launches on a GPU, 0 on the CPU. May be NULL.
 * The call allocates, and returns when all work is done. On a GPU the parts do not overlap in this run. With
 * open axes it times the largest sizes. */
EPI_API epi_status epi_kernel_time_parts(const epi_kernel *kernel, const epi_call *call, double *seconds,
                                         int *runs, int *launches, int count, epi_error *err);

/* Values that depend only on inputs declared `param` can be computed once, instead of in every run. This is
 * the size of the buffer for them in bytes, a multiple of 256. 0: there are none, and runs need no buffer.
 * It is always 0 if the path is not fused, or with a memory budget. */
EPI_API size_t epi_kernel_prepare_size(const epi_kernel *kernel);
/* Computes them into `buffer`: your memory on the kernel's device, 64-byte aligned. `call` is as for
 * epi_kernel_call, but only the tensors of params are read, and it needs no sizes: the buffer serves all
 * sizes. Only the buffer and the workspace are written. Runs only read the buffer, so several may share it.
 * In those runs a param may be NULL if nothing else reads it. Prepare again when a param changes: a run
 * cannot tell, and would use the old values. On a GPU the call returns once the work is on the stream. */
EPI_API epi_status epi_kernel_prepare(const epi_kernel *kernel, const epi_call *call, void *buffer,
                                      epi_error *err);

/* Bytes of scratch memory that a run with these sizes of the open axes needs.
 *
 * For this call and for epi_kernel_call:
 *   - A size is an error if it is above the largest, or if the program cannot have it. Nothing is written.
 *     On a GPU an open axis of size 0 is an error too, unless no output has an element either.
 *   - The first call with new sizes plans for them. That allocates, and takes as long as compiling without
 *     NVRTC. The plans of the last 64 combinations of sizes are cached; with those, a run works as it does
 *     at the largest sizes.
 *   - CPU results are bitwise those of a kernel that was compiled for these sizes alone, with the open axes
 *     among its row_axes. So are GPU results, if the open axes are rows and not summed over. */
EPI_API epi_status epi_kernel_workspace_at(const epi_kernel *kernel, const int64_t *sizes, int size_count,
                                           size_t *bytes, epi_error *err);

/* For a GPU kernel with check_indices: waits for the stream of its last run with this workspace. If an index
 * was outside its axis, it returns EPI_ERR_INDEX, and the message names the element; the outputs are then
 * the same as without check_indices. For every other kernel it returns EPI_OK: on the CPU the run itself
 * reports it. */
EPI_API epi_status epi_kernel_check(const epi_kernel *kernel, const void *workspace, void *stream,
                                    epi_error *err);

/* 1 if the output may have the same address and strides as the input (both by their index among the
 * tensors); else 0. Both must have the same axes and type, and one of these must hold:
 *   - a rows kernel reads the input element by element;
 *   - the epilogue of a product reads the input, for that output alone, as in dw = dw0 + dy @ x;
 *   - the output is an update of the input: then only the new elements are written.
 * In a split program this holds for the part that stores the output, and no later part may read the input.
 */
EPI_API int epi_kernel_in_place(const epi_kernel *kernel, int output, int input);

/* A tensor of a compiled kernel: its type, sizes and number of elements. */
typedef struct epi_tensor_shape {
    epi_dtype type;
    int rank;
    int64_t sizes[EPI_MAX_AXES];
    int64_t count;
    int64_t index_below; /* for an input that gather, scatter or update use as an index: its elements must be
                            at least 0 and below this; -1 for other tensors */
} epi_tensor_shape;

EPI_API epi_status epi_kernel_tensor(const epi_kernel *kernel, int index, epi_tensor_shape *out);

/* Compares derived gradients with central differences of the program, both in the f64 reference. Inputs of
 * up to EPI_GRADCHECK_ELEMENTS elements are checked by every element. Every input is also checked along
 * EPI_GRADCHECK_DIRECTIONS random directions. */
enum { EPI_GRADCHECK_ELEMENTS = 256, EPI_GRADCHECK_DIRECTIONS = 4 };
typedef struct epi_gradcheck {
    int input;       /* the input with the largest error; -1 if nothing was compared */
    int64_t element; /* its element with that error; -1: a random direction */
    double derived, numeric;
    double off; /* their difference, relative to what rounding and curvature explain: 1 or less is right */
    int64_t compared; /* derivatives that were looked at, with those of the next two fields */
    int64_t edges;    /* not judged: the program jumps there, or its derivatives from the two sides
                         differ, as at a comparison */
    int64_t infinite; /* not judged: results are infinite or NaN, as log(0) is */
    int own; /* calls of programs that declare their own gradients (`by`). If there are any, `off` says how
                far these are from the derived ones, not that they are wrong */
    double distance; /* over all that was compared: the square root of the sum of squared errors over the sum
                        of squared differences */
} epi_gradcheck;

/* Uses only `dims` of the options. `inputs` are the program's inputs, contiguous: in the declared type where
 * that is an integer type, else f64. The seed gives the random cotangents and directions. */
EPI_API epi_status epi_program_gradcheck_sized(const epi_program *program, const char *const *wrt,
                                               int wrt_count, const epi_options *options,
                                               const epi_tensor *inputs, uint64_t seed, epi_gradcheck *out,
                                               size_t size, epi_error *err);
static inline epi_status epi_program_gradcheck(const epi_program *program, const char *const *wrt,
                                               int wrt_count, const epi_options *options,
                                               const epi_tensor *inputs, uint64_t seed, epi_gradcheck *out,
                                               epi_error *err) {
    return epi_program_gradcheck_sized(program, wrt, wrt_count, options, inputs, seed, out, sizeof *out, err);
}

/* Runs derived gradients, with the types and the plan that the options give, and compares them with the f64
 * reference of the same rounded inputs. It compares along one random direction in each row of each gradient.
 * A row is the elements that differ only along the last axis; a vector is one row. */
typedef struct epi_gradrun {
    int input;   /* the input whose gradient has the largest error; -1 if nothing was compared */
    int64_t row; /* the row of that gradient */
    double derived, exact;
    double off; /* their difference, relative to what rounding explains: 1 or less is right. For that, each
                   value of the reference is moved up or down at random, by a rounding */
    int64_t compared; /* rows that were looked at, with those of the next two fields */
    int64_t edges;    /* not judged: rounding alone moves the reference by a quarter, as at the edge of a
                         comparison or where large terms cancel */
    int64_t infinite; /* not judged: the reference itself is infinite or NaN */
} epi_gradrun;

/* Runs on the CPU. Uses `dims`, `type`, `types`, `threads`, `micro`, `path`, `algebra` and `memory` of the
 * options. The other arguments are as above. */
EPI_API epi_status epi_program_gradrun_sized(const epi_program *program, const char *const *wrt,
                                             int wrt_count, const epi_options *options,
                                             const epi_tensor *inputs, uint64_t seed, epi_gradrun *out,
                                             size_t size, epi_error *err);
static inline epi_status epi_program_gradrun(const epi_program *program, const char *const *wrt,
                                             int wrt_count, const epi_options *options,
                                             const epi_tensor *inputs, uint64_t seed, epi_gradrun *out,
                                             epi_error *err) {
    return epi_program_gradrun_sized(program, wrt, wrt_count, options, inputs, seed, out, sizeof *out, err);
}

/* The same for a separate forward and backward, as epi_program_grad_typed derives them: the backward reads
 * values that the forward has stored. */
EPI_API epi_status epi_program_gradrun_saved_sized(const epi_program *program, const char *const *wrt,
                                                   int wrt_count, const epi_options *options,
                                                   const epi_tensor *inputs, uint64_t seed, epi_gradrun *out,
                                                   size_t size, epi_error *err);
static inline epi_status epi_program_gradrun_saved(const epi_program *program, const char *const *wrt,
                                                   int wrt_count, const epi_options *options,
                                                   const epi_tensor *inputs, uint64_t seed, epi_gradrun *out,
                                                   epi_error *err) {
    return epi_program_gradrun_saved_sized(program, wrt, wrt_count, options, inputs, seed, out, sizeof *out,
                                           err);
}

typedef struct epi_kernel_info {
    /* "gemm", "rows", "attention", "recurrence", "pass", "parts", "naive", "reference" */
    const char *mainloop;
    const char *micro; /* the CPU micro-kernel or the GPU configuration, or "" */
    int threads;
    int64_t m, n, k;           /* gemm: the sizes of the product. rows: rows and columns */
    int64_t tile_m, tile_n;    /* the tile that is on chip at once */
    double flops;              /* a multiply-add of a product counts as two, any other operation as one */
    double bytes_fused;        /* memory traffic: each kernel loads and stores each tensor once */
    double bytes_unfused;      /* the same with one pass over memory per operation */
    int parts;                 /* kernels that a run executes one after the other: 1 if nothing was split */
    int kernels;               /* the number of different ones: equal parts are compiled once */
    int launches;              /* of a run: kernel launches on a GPU, parallel loops on the CPU */
    int values;                /* values that one part stores in the workspace and another part loads */
    int64_t value_bytes;       /* bytes of the workspace that these values take */
    int64_t value_bytes_least; /* bytes of those that are alive at once, at the worst point: no layout takes
                                  less */
    double terms; /* terms of the longest sum, plus those of the sums that it adds up; rounding errors grow
                     with it */
    int forms;    /* compiled forms, by now, of the part that has the most: 1 if no axis is open */
    int products; /* gemm: products of m x n x k that a tile computes together, 1 or 2 */
    int slabs;    /* chunks of rows that parts run through because of a memory budget; 1 without one */
    int64_t workspace_whole; /* the workspace without that budget; 0 if the options have none */
    int prepared;            /* the first parts, which epi_kernel_prepare runs and a run skips */
} epi_kernel_info;

EPI_API void epi_kernel_get_info_sized(const epi_kernel *kernel, epi_kernel_info *out, size_t size);
static inline void epi_kernel_get_info(const epi_kernel *kernel, epi_kernel_info *out) {
    epi_kernel_get_info_sized(kernel, out, sizeof *out);
}
/* Describes how the kernel works, one fact a line: what runs before the product, what runs on the tile,
 * which reductions leave as partial sums, and what finishes them. For a split program it describes each part
 * as a program, equal parts once, and where the values between them are stored. Returns the length. */
EPI_API size_t epi_kernel_describe(const epi_kernel *kernel, char *buf, size_t size);
/* Warnings about the kernel, one a line: what is slow, or may not be what you want. Each names a remedy if
 * one is known. Examples: an integer that f32 or an output cannot hold; an operation that no mainloop
 * supports; a product without tensor cores on a GPU that has them; a value between kernels that is larger
 * than all inputs and outputs; more bytes than one pass per operation would move. docs/speed.md has more.
 * Returns the length, 0 if there are no warnings. */
EPI_API size_t epi_kernel_warnings(const epi_kernel *kernel, char *buf, size_t size);
/* The program that is executed: rewritten by the algebra, or as you wrote it. Returns the length. */
EPI_API size_t epi_kernel_print(const epi_kernel *kernel, char *buf, size_t size);
/* epi_kernel_describe_passes gives a table of the compiler passes: what each does, how many values the
 * program had before and after it, what it changed, and which limits it hit. epi_kernel_print_after gives
 * the program after the pass with this name, as source text that you can parse and run; after "cut" it gives
 * the parts. It is empty, with length 0, if there is no such pass. Both return the length. */
EPI_API size_t epi_kernel_describe_passes(const epi_kernel *kernel, char *buf, size_t size);
EPI_API size_t epi_kernel_print_after(const epi_kernel *kernel, const char *pass, char *buf, size_t size);
/* Information about one part. `index` counts from 0 in the order of a run. */
typedef struct epi_part_info {
    int first; /* the first part that is equal except for names and tensors: this one or an earlier one */
    epi_kernel_info info; /* as epi_kernel_get_info gives it for the whole kernel */
} epi_part_info;

EPI_API epi_status epi_kernel_part_sized(const epi_kernel *kernel, int index, epi_part_info *out,
                                         size_t size);
static inline epi_status epi_kernel_part(const epi_kernel *kernel, int index, epi_part_info *out) {
    return epi_kernel_part_sized(kernel, index, out, sizeof *out);
}
/* epi_kernel_part_print gives the part as a program that you can parse and compile by itself;
 * epi_kernel_part_describe describes it. Both return the length. */
EPI_API size_t epi_kernel_part_print(const epi_kernel *kernel, int index, char *buf, size_t size);
EPI_API size_t epi_kernel_part_describe(const epi_kernel *kernel, int index, char *buf, size_t size);

/* A value that one part stores in the workspace and another part loads. */
typedef struct epi_value_info {
    char name[64];        /* its name in the parts; "" if it has no elements and is not stored */
    char expression[200]; /* the expression in the part that stores it; a long one ends in … */
    epi_dtype type;
    int64_t bytes, offset; /* the offset is relative to the start of these values */
    int first, last;       /* the part that stores it, and the last part that loads it */
} epi_value_info;

EPI_API epi_status epi_kernel_value(const epi_kernel *kernel, int index, epi_value_info *out);
/* Says why such a value is stored: what reads it from memory, and what cannot be computed together. Returns
 * the length; 0 for a value that is not stored. */
EPI_API size_t epi_kernel_value_why(const epi_kernel *kernel, int index, char *buf, size_t size);
/* The CUDA source of a GPU kernel, one launch after the other; "" for a CPU kernel. Returns the length. */
EPI_API size_t epi_kernel_source(const epi_kernel *kernel, char *buf, size_t size);

/* ---- other languages ----------------------------------------------------------------------- */

/* The structs of this header, and the numbers of the storage types, as JSON. It has the size of each struct,
 * which the `_sized` functions take. For each field it has the name, the kind, the offset and the size.
 * Kinds are "int", "i64", "size", "f64", "text" (a string), "enum", "pointer", "chars", "bytes", "i64s" and
 * "axes". Returns the length. */
EPI_API size_t epi_describe_abi(char *buf, size_t size);

/* What this library is, in lines for people: its version, its compiler, its CPU kernels; with a context also
 * which of them this CPU runs, the GPUs, and NVRTC, or why they are not there. Returns the length. */
EPI_API size_t epi_describe_build(const epi_context *ctx, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif

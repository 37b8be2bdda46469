/* epilog.h: the public interface of Epilog; files of tensors are in epilog_io.h.
 *
 * A Transformer computation is written once as a text in plain mathematical form. Epilog checks
 * it, compiles it for concrete sizes and types, and runs it as fused kernels.
 *
 *     epi_context *ctx;   epi_context_open(&ctx, &err);
 *     epi_module *mod;    epi_module_parse(ctx, text, len, "file.epi", &mod, &err);
 *     epi_kernel *k;      epi_kernel_compile(epi_module_find(mod, "matmul"), &options, &k, &err);
 *     void *work = aligned_alloc(64, epi_kernel_workspace(k));
 *     epi_kernel_run(k, tensors, count, work, &err);
 *
 * Rules that hold everywhere:
 *   - Every fallible call answers with a status, and fills the epi_error it was given (NULL is
 *     allowed). The library never prints, exits or aborts, and has no global state
 *     but threads that wait for work: a child of fork makes its own, and where the system gives none the
 *     caller works alone. A call that makes something sets *out to NULL where it fails.
 *   - Compiling may fail, allocate and take time. Running allocates nothing but threads, which
 *     stay; whatever could be found wrong beforehand was found by compiling. (Of a kernel with open axes
 *     the first run at some size does some of that.)
 *   - Contexts are independent. Modules and kernels are immutable once made: any number of
 *     threads may run the same or different kernels of one context at once, each with its own
 *     workspace, as have runs at once on two streams of a GPU. Close the context after everything
 *     made from it.
 *   - Sizes are 64-bit. Strides count elements, not bytes.
 */
#ifndef EPILOG_H
#define EPILOG_H

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC system_header /* so that C++ does not warn of what EPI_OPTIONS leaves out, which is zero */
#endif

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPI_VERSION_MAJOR 0
#define EPI_VERSION_MINOR 1
#define EPI_VERSION_PATCH 0

#if defined(__GNUC__)
#define EPI_API __attribute__((visibility("default")))
#else
#define EPI_API
#endif

enum { EPI_MAX_AXES = 8 }; /* axes of one tensor */

typedef enum epi_status {
    EPI_OK = 0,
    EPI_ERR_ARGUMENT,    /* a call was made wrongly: a null pointer, a wrong count */
    EPI_ERR_MEMORY,      /* an allocation failed, or a size overflows 64 bits */
    EPI_ERR_SYNTAX,      /* the text does not parse */
    EPI_ERR_CHECK,       /* the text parses but does not check: names, axes, reductions */
    EPI_ERR_DIMS,        /* sizes given at compile time do not fit the program */
    EPI_ERR_UNSUPPORTED, /* valid, but not on this device or by this path */
    EPI_ERR_FILE,        /* a file is missing, malformed or not writable */
    EPI_ERR_INDEX,       /* an element of an index lies outside the axis it counts along */
    EPI_ERR_INTERNAL, /* a mistake of the library's own, which is never an abort: the message has its place */
} epi_status;

/* What went wrong and where. line and column count from 1, and are 0 where there is no place.
 * `message` says what is wrong and what to do instead; `source` is the offending line. */
typedef struct epi_error {
    epi_status status;
    int line, column;
    char file[256];
    char message[768];
    char source[256];
} epi_error;

/* How an element is stored. Arithmetic is f32 whatever the storage (f64 in the reference). */
typedef enum epi_dtype {
    EPI_F32 = 0,
    EPI_BF16,
    EPI_F16,
    EPI_I32,  /* integers, which are exact (language.md, section 15) */
    EPI_F64,  /* for the reference's results */
    EPI_I64,  /* indices as well, exact in the same way */
    EPI_E4M3, /* 8-bit floats: up to 448, without infinities (PyTorch's float8_e4m3fn), */
    EPI_E5M2, /* and up to 57344, the upper half of an f16 */
    EPI_I8,   /* 8-bit integers, for quantised tensors */
    EPI_U8,
    EPI_DTYPE_COUNT
} epi_dtype;

EPI_API const char *epi_version(void);
EPI_API const char *epi_status_name(epi_status status);
EPI_API const char *epi_dtype_name(epi_dtype type);
EPI_API size_t epi_dtype_size(epi_dtype type);
/* The type called `name` ("bf16"), or EPI_DTYPE_COUNT. */
EPI_API epi_dtype epi_dtype_find(const char *name);
/* Converts `count` elements that lie side by side, as a kernel does where it loads and stores them: by way of
 * f32, rounded to nearest even. What is beyond a type of 8 bits or an integer becomes its largest number or its
 * smallest, and NaN an integer's 0; beyond bf16 and f16 lies infinity, which e4m3 alone has not. From i32 to
 * i64 and back nothing is lost that fits. Neither side need be aligned; they may not overlap. */
EPI_API epi_status epi_convert(void *to, epi_dtype to_type, const void *from, epi_dtype from_type,
                               int64_t count);
/* Writes "file:line:column: message", the line and a caret into buf, as the command prints it. */
EPI_API size_t epi_error_format(const epi_error *err, char *buf, size_t size);

/* ---- context ------------------------------------------------------------------------------ */

typedef struct epi_context epi_context;

EPI_API epi_status epi_context_open(epi_context **out, epi_error *err);
EPI_API void epi_context_close(epi_context *ctx);

/* The devices a context sees. Device 0 is always the CPU; the others are GPUs. */
typedef struct epi_device_info {
    const char *name;     /* "cpu", "gpu0" */
    const char *model;    /* "Intel(R) Xeon(R) ...", "NVIDIA H200" */
    const char *features; /* instruction sets in use; or multiprocessors, memory, clock, driver, mainloops */
    int threads;          /* threads a kernel uses unless told otherwise; 0 on a GPU */
    int is_gpu;
    int ordinal;            /* of a GPU: CUDA's number of it in this process; -1 of the CPU */
    unsigned char uuid[16]; /* of a GPU: the same in every process and order, as nvidia-smi -L prints it */
} epi_device_info;

EPI_API int epi_device_count(const epi_context *ctx);
/* A struct that tells about something may grow at its end. So who fills it is told its size: no more is
 * written, and what this library does not know of a longer one is zero. In C and C++ the functions without
 * `_sized` say it by themselves. */
EPI_API epi_status epi_device_get_sized(const epi_context *ctx, int index, epi_device_info *out, size_t size);
static inline epi_status epi_device_get(const epi_context *ctx, int index, epi_device_info *out) {
    return epi_device_get_sized(ctx, index, out, sizeof *out);
}
/* The device called `name` ("cpu", "gpu" for the first GPU, "gpu1"), or -1. */
EPI_API int epi_device_find(const epi_context *ctx, const char *name);
/* Why there is no GPU, in words; "" where there is one. */
EPI_API const char *epi_device_why_no_gpu(const epi_context *ctx);

/* Memory of a device, for callers without a CUDA library of their own. A copy goes in either direction or
 * stays on the device, and is complete when the call returns. On the CPU they are what malloc and memcpy are.
 */
EPI_API epi_status epi_device_alloc(epi_context *ctx, int device, size_t bytes, void **out, epi_error *err);
EPI_API epi_status epi_device_free(epi_context *ctx, int device, void *memory, epi_error *err);
EPI_API epi_status epi_device_copy(epi_context *ctx, int device, void *to, const void *from, size_t bytes,
                                   epi_error *err);
/* Waits until everything started on the device is done. */
EPI_API epi_status epi_device_wait(epi_context *ctx, int device, epi_error *err);

/* ---- text ---------------------------------------------------------------------------------- */

typedef struct epi_module epi_module;   /* the programs of one text */
typedef struct epi_program epi_program; /* one of them; owned by its module */

/* Parses a text and checks names, axes and types. `file` names it in messages. */
EPI_API epi_status epi_module_parse(epi_context *ctx, const char *text, size_t length, const char *file,
                                    epi_module **out, epi_error *err);
/* Its programs are gone then. Kernels that were compiled from them are not: they keep what they need. */
EPI_API void epi_module_free(epi_module *module);
EPI_API int epi_module_count(const epi_module *module);
EPI_API const epi_program *epi_module_program(const epi_module *module, int index);
/* The program of that name, or NULL. */
EPI_API const epi_program *epi_module_find(const epi_module *module, const char *name);

/* A text laid out anew: an assignment a line, with all of its comments, numbers and parentheses as they were.
 * Of its own lines only single blank ones stay. It must parse, but need not check. Writes at most size bytes,
 * always ended; *needed is the length. */
EPI_API epi_status epi_format(const char *text, size_t length, const char *file, char *buf, size_t size,
                              size_t *needed, epi_error *err);

/* The files of programs that come with Epilog, whose programs any text may call: names and texts; NULL past
 * the last. */
EPI_API const char *epi_bundled_name(int index);
EPI_API const char *epi_bundled_text(int index);

EPI_API const char *epi_program_name(const epi_program *program);
/* The program that the text names as its gradient (`by`), or NULL. */
EPI_API const char *epi_program_gradient(const epi_program *program);
/* The comment that stands directly before the program, without its marks; "" where none does. */
EPI_API const char *epi_program_comment(const epi_program *program);
/* The program in canonical form. Returns the length; writes at most size bytes, always ended. */
EPI_API size_t epi_program_print(const epi_program *program, char *buf, size_t size);
/* What its text has for nothing, a line each as in "file.epi:3:5: the value 'h' is not used"; and where it may not mean
 * what was meant: calls that bind axes in an order that no text shows, scatters that sum over a batch. "" where there
 * is none. An input that brings an axis of its own has a use. Returns and writes as epi_program_print. */
EPI_API size_t epi_program_warnings(const epi_program *program, char *buf, size_t size);

/* The named sizes of a program, in order of first appearance. */
EPI_API int epi_program_dim_count(const epi_program *program);
EPI_API const char *epi_program_dim(const epi_program *program, int index);
/* The size that the text gives it, as in C=3; 0: it is given when the program is compiled. */
EPI_API int64_t epi_program_dim_size(const epi_program *program, int index);
/* What the program renames, one by one: *to has size(*from) * 2^*shift elements. The names may be new ones that the
 * text makes, too. 0: there are no more, and nothing is written. */
EPI_API int epi_program_renamed(const epi_program *program, int index, const char **from, const char **to,
                                int *shift);

/* Its tensors: the inputs in order, then the outputs in order. */
typedef struct epi_tensor_info {
    const char *name;
    int is_output;
    int is_cotangent; /* an input that is the gradient of a result */
    int has_type;     /* the text fixes the type */
    epi_dtype type;   /* if so, which */
    int rank;
    struct {
        const char *dim; /* the axis has size(dim) * 2^shift elements */
        int shift;
    } axes[EPI_MAX_AXES];
} epi_tensor_info;

EPI_API int epi_program_tensor_count(const epi_program *program);
EPI_API epi_status epi_program_tensor(const epi_program *program, int index, epi_tensor_info *out);

/* The program of a program's gradients, as a module of its own with that one program in it, NAME_grad:
 * reverse mode. It takes all inputs of the program in their order and then, for each result y that is no
 * integer, the gradient of some number by it, the cotangent d_y; it gives the gradient of that number by each
 * of the inputs that `wrt` names, d_x for x, in that order. A gradient has the type that the text gives its
 * input; where it gives none, that of a vector, as of a bias, is f32 whatever the options say: it is a long
 * sum. epi_kernel_tensor tells. It is a program like any other: it can be printed, compiled and derived again.
 * docs/derivatives.md has the rules. */
EPI_API epi_status epi_program_grad(const epi_program *program, const char *const *wrt, int wrt_count,
                                    epi_module **out, epi_error *err);

/* The same as two programs, NAME_forward and NAME_backward, so that nothing is computed twice that is worth
 * saving. The first has the program's inputs and results, and gives as well what the second needs of its
 * values: products and reductions, rows that both would make by a pass over memory, and what the text says
 * keep(x) of. The second takes those of the program's inputs and results that it needs, what was saved, and
 * the cotangents; everything else, and what the text says again(x) of, it makes again. */
EPI_API epi_status epi_program_grad_saved(const epi_program *program, const char *const *wrt, int wrt_count,
                                          epi_module **out, epi_error *err);
/* The same where memory counts for more than time: rows that the forward stores for a product, as those of a
 * LayerNorm, are not saved, but made again. */
EPI_API epi_status epi_program_grad_lean(const epi_program *program, const char *const *wrt, int wrt_count,
                                         epi_module **out, epi_error *err);

/* ---- kernels ------------------------------------------------------------------------------- */

/* How a program is carried out. */
typedef enum epi_path {
    EPI_PATH_FUSED = 0, /* a mainloop with the rest as its epilogue; what users want */
    EPI_PATH_UNFUSED,   /* the product, then one pass over memory per operation */
    EPI_PATH_NAIVE,     /* plain loops, every value rounded to `type`: a yardstick for errors */
    EPI_PATH_REFERENCE, /* plain loops in f64: the oracle */
} epi_path;

typedef struct epi_dim_binding {
    const char *name;
    int64_t size;
} epi_dim_binding;

typedef struct epi_type_binding {
    const char *tensor;
    epi_dtype type;
} epi_type_binding;

/* Where a GPU kernel rounds. `packed`: once after the product and its row scales the tile is rounded to 16
 * bits, and the rest goes on from that, as a chain of separate kernels would; it is what lets the epilogue
 * run under the next tile's product. `exact`: every value stays f32 until it is stored. The CPU is always
 * exact, and so is a program that stores a tile as f32. Within a contract the bits do not depend on the
 * configuration of a mainloop, nor on the run or the other rows of a batch. */
typedef enum epi_rounding { EPI_ROUND_PACKED = 0, EPI_ROUND_EXACT } epi_rounding;

/* How far arithmetic may be rewritten. `free`: in a program of several kernels sums of products are taken in
 * another order where fewer bytes move (docs/algebra.md); errors stay within the rule. `written`: every value
 * is computed as the text says. A program that is one kernel is always computed as written. */
typedef enum epi_algebra { EPI_ALGEBRA_FREE = 0, EPI_ALGEBRA_WRITTEN } epi_algebra;

/* Options carry their size, so that fields can be added at the end: a library takes shorter ones, whose
 * missing fields are zero, and longer ones if it knows all that is set in them. EPI_OPTIONS initialises; what
 * it is not given is zero:
 *
 *     epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 3);
 *
 * In C++ that is C++20; before it, `epi_options options = {}; options.size = sizeof options;` and field by field.
 */
#define EPI_OPTIONS(...) \
    { .size = sizeof(epi_options), __VA_ARGS__ }
typedef struct epi_options {
    size_t size;                 /* sizeof(epi_options) */
    const epi_dim_binding *dims; /* every dim of the program, once */
    int dim_count;
    epi_dtype type;                /* storage of tensors whose type the text leaves open; */
    const epi_type_binding *types; /* scalars stay f32. Exceptions to it, by tensor name */
    int type_count;
    int device;  /* index into the context's devices; -90 makes the CUDA text for compute capability 9.0
                    without a GPU: such a kernel can be looked at, not run (epi_gpu_arch_device) */
    int threads; /* 0: as many as the device reports */
    epi_path path;
    const char *micro; /* force a CPU micro-kernel by name ("plain", "avx2"); NULL: the best. NULL on a GPU */
    epi_rounding rounding;
    const char *config; /* force a GPU configuration by name ("sm90_128x256_c2_d"); NULL: the cost model's
                           choice. NULL on the CPU */
    /* Axes that count rows (tokens, batch), by name; NULL: every axis of the first input but its last, all of
     * them where it is of integers; in a program with cotangents it is the first input, but for vectors of
     * numbers, that has the first axis of the first cotangent with axes, and of its axes those that the
     * cotangent has. How a program is cut into kernels does not depend on their sizes, so neither do the bits
     * of a row. */
    const char *const *row_axes;
    int row_axis_count;
    int check_indices; /* 1: a GPU kernel looks through the indices that are inputs before each run, which
                          takes a launch for each; epi_kernel_check tells what it found. The CPU always looks
                        */
    /* Row axes whose size is given at each run (epi_kernel_call), by name; four at most. `dims` has the
     * largest size of each. No text depends on their sizes: on a GPU a part has three compiled forms at most,
     * of which those for fewer rows are compiled by the first call, or question for the workspace, that has
     * other sizes than the largest. */
    const char *const *open_axes;
    int open_axis_count;
    epi_algebra algebra; /* how far the arithmetic of a program of several kernels may be rewritten */
    /* 0, or the most bytes that epi_kernel_workspace may be. Where a program of several kernels needs more,
     * its parts go through the rows slab by slab: bits of rows are the same, sums over rows (gradients of
     * weights) are added up in f32, slab after slab, in an order that follows from the sizes and this number.
     * An error where it cannot be: it tells the least that can. */
    size_t memory;
    /* Of the reference alone: 0, or how far each value that is made of inputs is moved from where it should
     * be, relative to it; up or down at random, by the seed. How far results come apart then tells what an
     * arithmetic that rounds so may lose, also where large terms cancel. */
    double perturb;
    int perturb_seed;
    /* Inputs, by name, that are of no use behind a run, which may write over them: a value between kernels that
     * is made of such a one element by element, by the last kernel that reads it, lies in its place, and takes no
     * workspace. They are contiguous then, and apart from all other tensors. Not with `memory`. */
    const char *const *spent;
    int spent_count;
} epi_options;

/* Forward and backward (epi_program_grad_saved) for tensors of which some have types of their own: those that
 * the options name in `types` are declared so, as if the text said it. What is made, one by one, of the
 * elements of an input that is more exact than the storage type is saved as f32 then, or made again; a
 * backward that reads it in 16 bits would be far off. With `memory` less is saved, as by
 * epi_program_grad_lean. Nothing else of the options counts. */
EPI_API epi_status epi_program_grad_typed(const epi_program *program, const char *const *wrt, int wrt_count,
                                          const epi_options *options, epi_module **out, epi_error *err);

/* The configurations there are for products and for attention on GPUs: mainloop, tile, cluster and schedule,
 * by name. Compiling takes the one that a cost model rates best among those that suit the device and the
 * rounding, that the program fits and whose machine code is good; `config` in the options forces one. To tune
 * a kernel, compile and time it with each that suits: the bits are the same, but for attention with tiles of
 * another number of keys. (The shapes of rows kernels have names, too, which epi_kernel_get_info tells, but
 * no list.) */
EPI_API int epi_gpu_config_count(void);
EPI_API const char *epi_gpu_config_name(int index); /* NULL where there is none of that number */
EPI_API int epi_gpu_config_find(const char *name);  /* its number, or -1 */
/* Whether it is for GPUs like this one (`device` as in the options) and for that rounding; 0 or 1. */
EPI_API int epi_gpu_config_suits(const epi_context *ctx, int index, int device, epi_rounding rounding);
/* The generations of GPUs that texts are made for, as in "sm_90a", the oldest first; and what stands for one as
 * `device` in the options: -90. */
EPI_API const char *epi_gpu_arch_name(int index);  /* NULL where there is none of that number */
EPI_API int epi_gpu_arch_device(const char *name); /* 0: there is none of that name */

typedef struct epi_kernel epi_kernel;

EPI_API epi_status epi_kernel_compile(const epi_program *program, const epi_options *options,
                                      epi_kernel **out, epi_error *err);
/* A GPU kernel is freed once its work is done: wait for the stream, and drop graphs that hold it, first. */
EPI_API void epi_kernel_free(epi_kernel *kernel);

/* Bytes of scratch memory, 64-byte aligned, that a run needs: a multiple of 64, never zero. Of a kernel with
 * open axes: at the largest sizes; smaller ones may take more, so ask epi_kernel_workspace_at. */
EPI_API size_t epi_kernel_workspace(const epi_kernel *kernel);

/* One tensor of a call. A scalar is a tensor of one element. */
typedef struct epi_tensor {
    void *data;
    const int64_t *strides; /* one per axis, in elements; NULL: contiguous in the written order. Of an
                               input they may be zero or negative; of an output no two elements may
                               be one */
} epi_tensor;

/* Runs with the tensors in the program's order: inputs, then outputs. Outputs may not overlap
 * inputs or each other, but for what epi_kernel_in_place allows; and none of them the workspace. On a GPU the pointers are the device's
 * (16-byte aligned, contiguous), and the call returns once the work is on the default stream.
 *
 * An integer input that gather, scatter or update take as an index has to lie inside the axis. On the CPU it
 * is looked through first: an element outside is EPI_ERR_INDEX, and nothing is written. On a GPU nobody looks
 * unless check_indices was set: gather then gives 0 for such an element, scatter and update leave it out, in
 * silence. (So does a computed index outside, everywhere and by definition.) A row of a product that chooses
 * its weight by such an element takes the last one. */
EPI_API epi_status epi_kernel_run(const epi_kernel *kernel, const epi_tensor *tensors, int count,
                                  void *workspace, epi_error *err);
/* The same on a stream: a CUstream or cudaStream_t. Nothing is allocated and nothing waits, so it can be
 * captured in a CUDA graph. The device's primary context is left current in the calling thread. A CPU kernel
 * takes no stream: it must be NULL. */
EPI_API epi_status epi_kernel_start(const epi_kernel *kernel, const epi_tensor *tensors, int count,
                                    void *workspace, void *stream, epi_error *err);

/* A run with all there is to say about it; like options it carries its size, and EPI_CALL initialises it. */
#define EPI_CALL(...) \
    { .size = sizeof(epi_call), __VA_ARGS__ }
typedef struct epi_call {
    size_t size;               /* sizeof(epi_call) */
    const epi_tensor *tensors; /* as epi_kernel_run takes them */
    int count;
    void *workspace;
    void *stream;          /* as epi_kernel_start takes it */
    const double *numbers; /* NULL, or one for each tensor: the value of an input without axes whose data is
                              NULL; the others are not looked at. So a scalar needs no memory of the device */
    void *wait, *signal;   /* CUevents, or NULL: nothing starts before the first, and the second is recorded
                              behind all of the work. NULL on the CPU */
    const int64_t *sizes;  /* NULL, or one for each open axis in the order of the options: the sizes of this
                              run.  NULL: the largest */
    int size_count;
    size_t workspace_bytes; /* that the workspace has, to be held against what the run needs; 0: not told */
    const void *prepared;   /* what epi_kernel_prepare filled, where epi_kernel_prepare_size is not 0 */
} epi_call;
EPI_API epi_status epi_kernel_call(const epi_kernel *kernel, const epi_call *call, epi_error *err);

/* What depends on inputs alone that the text marks as `param` is made once and not at every run. It takes so
 * many bytes, a multiple of 256; 0: there is nothing to prepare, and runs need none of this. Always 0 of
 * paths that are not fused, and with a memory budget. */
EPI_API size_t epi_kernel_prepare_size(const epi_kernel *kernel);
/* Makes it, in a buffer of the kernel's device that is the caller's and 64-byte aligned. The call is one that
 * epi_kernel_call takes, but that of its tensors only params are looked at and that it needs no sizes: what
 * is prepared is the same for all of them. Nothing is written but the buffer and the workspace. Runs only
 * read the buffer, so they may share it; a param that nothing but this reads may be NULL in them. When a
 * param changes, the buffer has to be made again: a run cannot tell, and gives the results of the params as
 * they were. On a GPU this returns once the work is on the stream. */
EPI_API epi_status epi_kernel_prepare(const epi_kernel *kernel, const epi_call *call, void *buffer,
                                      epi_error *err);

/* Bytes of scratch memory that a run with these sizes of the open axes needs.
 *
 * Of both calls: sizes above the largest, or that the program cannot have, are an error, and nothing is
 * written. So is, on a GPU, an open axis of no elements, unless no output has an element either. What a
 * kernel needs to know about sizes that are new to it is worked out at the first call that names them: that
 * allocates, and takes as long as compiling does without the texts. The last 64 combinations of sizes are
 * kept; with those a run is what it is at the largest. Results are, bit by bit, those of a CPU kernel
 * compiled for these sizes alone, with the open axes among its row_axes; and of such a GPU kernel, where open
 * axes are rows and not summed over. */
EPI_API epi_status epi_kernel_workspace_at(const epi_kernel *kernel, const int64_t *sizes, int size_count,
                                           size_t *bytes, epi_error *err);

/* Of a GPU kernel with check_indices: waits for the stream of its last run with this workspace, and answers
 * EPI_ERR_INDEX, with the element, where an index was outside its axis. Its outputs are then what they are
 * without check_indices. EPI_OK of every other kernel: on the CPU the run itself has answered. */
EPI_API epi_status epi_kernel_check(const epi_kernel *kernel, const void *workspace, void *stream,
                                    epi_error *err);

/* 1: the output may be stored over the input (both by their place among the tensors), with the same address
 * and strides. So it is where both have the same axes and type and a rows kernel reads the input element by
 * element; where a product's epilogue reads it for that output alone, as in dw = dw0 + dy @ x; and where the
 * output is an update of the input: then only what is new is written. Of a program of parts it is the part
 * that stores the output that counts, and no later one may read the input. */
EPI_API int epi_kernel_in_place(const epi_kernel *kernel, int output, int input);

/* A tensor of a compiled kernel: its type, sizes and number of elements. */
typedef struct epi_tensor_shape {
    epi_dtype type;
    int rank;
    int64_t sizes[EPI_MAX_AXES];
    int64_t count;
    int64_t index_below; /* of an input that gather, scatter or update takes as an index: its elements are
                            from 0 up to, not including, this; -1 of other tensors */
} epi_tensor_shape;

EPI_API epi_status epi_kernel_tensor(const epi_kernel *kernel, int index, epi_tensor_shape *out);

/* Derived gradients beside central differences of the program, both in the f64 reference: by every element of
 * inputs of up to so many, and along so many random directions of each input. */
enum { EPI_GRADCHECK_ELEMENTS = 256, EPI_GRADCHECK_DIRECTIONS = 4 };
typedef struct epi_gradcheck {
    int input;       /* the worst: which input of the program, or -1 where nothing was compared */
    int64_t element; /* and which element of it; -1: along a direction */
    double derived, numeric;
    double off; /* how far they are apart, over what rounding and curvature explain: 1 or less is right */
    int64_t compared; /* derivatives that were looked at; of these nothing is said */
    int64_t edges;    /* of so many: the program has one derivative on one side and another one on the other,
                         or jumps, as a comparison changes sides there */
    int64_t infinite; /* nor of so many: results are infinite or NaN, as log(0) is */
    int own; /* calls of programs that name their own gradients (`by`): where there are any, `off` says
                         how far these are from the formulas', not that they are wrong */
    double distance; /* of all that was compared: the root of the sum of squared distances over that of the
                         squared differences */
} epi_gradcheck;

/* Of the options only dims count. `inputs` are the program's inputs, side by side: f64, and integers where
 * the text says so. Cotangents and directions are random by the seed. */
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

/* Derived gradients as they run, in the types of the options and by the plan that these give, beside the f64
 * reference of the same rounded inputs: along a random direction in each row of each gradient (elements that
 * differ along its last axis alone; a vector is one row). */
typedef struct epi_gradrun {
    int input;   /* the worst: by which input of the program, or -1 where nothing was compared */
    int64_t row; /* and which row of that gradient */
    double derived, exact;
    double off; /* how far they are apart, over what roundings explain: where each value on the way is moved
                   by a rounding, up or down at random, the reference moves too. 1 or less is right */
    int64_t compared; /* rows that were looked at; of these nothing is said */
    int64_t edges;    /* of so many: roundings alone move the reference by a quarter, as at the edge of a
                         comparison or where large terms cancel */
    int64_t infinite; /* nor of so many: the reference itself is infinite or NaN */
} epi_gradrun;

/* Of the options dims, type, types, threads, micro, path, algebra and memory count, on the CPU; the rest as
 * above. */
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

/* The same of forward and backward apart, as epi_program_grad_typed derives them: what the backward reads of
 * the forward has been stored. */
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
    int64_t m, n, k; /* of the product, where the mainloop is gemm; rows and columns where it is rows */
    int64_t tile_m, tile_n;    /* what is on chip at once */
    double flops;              /* multiply-adds of products count two, other operations one */
    double bytes_fused;        /* moved through memory: by each kernel what it loads and stores, each once */
    double bytes_unfused;      /* the same with every operation a pass of its own */
    int parts;                 /* kernels that a run goes through: 1 where the program is not cut */
    int kernels;               /* of these, different ones: equal parts are compiled once */
    int launches;              /* of a run: on a GPU its launches, on the CPU its loops over the threads */
    int values;                /* that go from part to part through the workspace */
    int64_t value_bytes;       /* of the workspace, that these take; and the most that are alive at once, */
    int64_t value_bytes_least; /* below which no order of them can go */
    double terms; /* that the longest sum adds up, with those of the sums it is made of: what its rounding
                     errors grow with */
    int forms;    /* that the part with the most has been compiled in by now: 1 where no axis is open */
    int products; /* of m x n x k that a tile has side by side, where the mainloop is gemm: 1 or 2 */
    int slabs;    /* that parts go through one after the other for a memory budget: 1 where there is none */
    int64_t workspace_whole; /* that it would take without that budget; 0: the options have none */
    int prepared; /* of the parts, the first ones, which epi_kernel_prepare goes through and a run does not */
} epi_kernel_info;

EPI_API void epi_kernel_get_info_sized(const epi_kernel *kernel, epi_kernel_info *out, size_t size);
static inline void epi_kernel_get_info(const epi_kernel *kernel, epi_kernel_info *out) {
    epi_kernel_get_info_sized(kernel, out, sizeof *out);
}
/* How the kernel goes about it, in words, a line each: what runs before the product, on the
 * tile, which reductions leave as partials, what finishes them. Of a program in parts each part as a program,
 * equal ones once, and where the values between them lie. Returns the length. */
EPI_API size_t epi_kernel_describe(const epi_kernel *kernel, char *buf, size_t size);
/* What is slow about it, or may not be what is wanted, a line each: an integer that f32 or an output does not
 * hold, an operation that no mainloop takes, a product without tensor cores on a
 * GPU that has them, a value between kernels that is larger than all inputs and outputs, more bytes than an
 * operation at a time would move; with the text that avoids it where one is known. docs/speed.md has more.
 * Returns the length, 0 where there is nothing. */
EPI_API size_t epi_kernel_warnings(const epi_kernel *kernel, char *buf, size_t size);
/* The program as it is carried out: as the algebra rewrote it, or as it is written. Returns the length. */
EPI_API size_t epi_kernel_print(const epi_kernel *kernel, char *buf, size_t size);
/* The passes that the program went through on its way, as a table: what each does, how many values it found
 * and left, what it changed, and which limits were hit. And the program after the pass of that name, as a
 * text that can be parsed and run; after "cut" its parts. Nothing, 0, where there is no such pass. Both
 * return the length. */
EPI_API size_t epi_kernel_describe_passes(const epi_kernel *kernel, char *buf, size_t size);
EPI_API size_t epi_kernel_print_after(const epi_kernel *kernel, const char *pass, char *buf, size_t size);
/* A part, numbered from 0 in the order of a run: whether another one before it is the same but for names and
 * tensors, and what epi_kernel_get_info tells of the whole. */
typedef struct epi_part_info {
    int first; /* the first part that is equal to it: itself, or one before it */
    epi_kernel_info info;
} epi_part_info;

EPI_API epi_status epi_kernel_part_sized(const epi_kernel *kernel, int index, epi_part_info *out,
                                         size_t size);
static inline epi_status epi_kernel_part(const epi_kernel *kernel, int index, epi_part_info *out) {
    return epi_kernel_part_sized(kernel, index, out, sizeof *out);
}
/* The part as a program that can be parsed and compiled by itself, and how it goes. Both return the length.
 */
EPI_API size_t epi_kernel_part_print(const epi_kernel *kernel, int index, char *buf, size_t size);
EPI_API size_t epi_kernel_part_describe(const epi_kernel *kernel, int index, char *buf, size_t size);

/* A value that goes from part to part through the workspace. */
typedef struct epi_value_info {
    char name[64];        /* as the parts call it; "" of one without elements, which nobody stores */
    char expression[200]; /* what makes it, in the part that stores it; cut short with … where it is long */
    epi_dtype type;
    int64_t bytes, offset; /* the offset counts from where such values begin */
    int first, last;       /* the part that stores it, and the last one that loads it */
} epi_value_info;

EPI_API epi_status epi_kernel_value(const epi_kernel *kernel, int index, epi_value_info *out);
/* The CUDA text of a GPU kernel, launch after launch; "" of a CPU kernel. Returns the length. */
EPI_API size_t epi_kernel_source(const epi_kernel *kernel, char *buf, size_t size);

/* ---- other languages ----------------------------------------------------------------------- */

/* The structs of this header as JSON: the size of each, and of each field the name, the kind ("int", "i64",
 * "size", "f64", "text" for a string, "enum", "pointer", "chars", "bytes", "i64s", "axes"), the offset and
 * the size; and the numbers of the storage types. The size is what `_sized` functions take. Returns the
 * length. */
EPI_API size_t epi_describe_abi(char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif

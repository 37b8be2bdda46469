/* run.h: the structs behind the public handles. */
#ifndef EPI_RUN_RUN_H
#define EPI_RUN_RUN_H

#include <stdatomic.h>

#include "cuda/driver.h"
#include "ir/spec.h"
#include "lang/ast.h"
#include "pass/analyse/integers.h"
#include "pass/compile.h"

struct epi_context {
    char cpu_model[128], cpu_features[128];
    int cpu_threads;
    epi_cuda cuda;
};

struct epi_program {
    epi_module *module;
    const epi_ast_program *ast;
    epi_graph graph;
};

struct epi_module {
    atomic_int owners; /* the caller, and every kernel: the last one frees it */
    epi_context *context;
    epi_arena arena;
    epi_ast_text text;
    epi_program *programs;
    int count;
};

/* A spec as its backend compiled it: one of the two, or neither. */
typedef struct epi_compiled {
    struct epi_cpu_kernel *cpu;
    struct epi_cuda_kernel *cuda;
} epi_compiled;

/* A part as its backend compiled it. Equal parts have one kernel, that of the first of them. */
typedef struct epi_part_kernel {
    epi_arena arena;      /* what its kernel is made of, so that parts can be compiled side by side */
    const epi_part *part; /* NULL: the program as a whole */
    uint64_t hash;
    int first;         /* the first part that is equal to it: itself, or one before it */
    int *to;           /* by tensor of that part: which tensor of this one it is; NULL: the same */
    epi_compiled full; /* of all rows, or of the rows of a slab */
    epi_compiled tail; /* of a loop over slabs whose last one has fewer rows: for that one */
    int leader; /* the first of the parts that it is launched with (joints.c): itself where there are none */
    struct epi_joint *joint; /* of a leader: how; NULL: each by itself */
    bool parted;             /* it shares no kernel with an equal part, as that one is launched otherwise */
    bool concurrent;         /* it starts beside the part before it (concurrent.c) */
    bool regrouped;          /* it is a product of the same groups as the part before it */
    bool weights_there;      /* it is a product of few bits whose weights nothing in the program stores */
    int64_t own;             /* where in the workspace that begins which it uses for itself */
} epi_part_kernel;

enum { EPI_MAX_FORMS = 3 };

struct epi_kernel {
    epi_arena arena;
    const epi_program *program;
    epi_spec spec;
    int64_t *counts; /* by tensor: its elements */
    double terms;    /* as in epi_kernel_info */
    epi_rewriting rewriting;
    epi_cut cut; /* where the program is more than one part */
    epi_part_kernel *parts;
    int part_count;
    bool gpu;
    bool alone; /* its first launch lets others begin when all before the call has ended: they load weights */
    struct epi_cuda_kernel *checks; /* looks through the indices first, where that was asked for */
    const epi_assumed *assumed;     /* by input: what is taken of its integers; NULL: of none anything */
    int *checked;                   /* by launch of it: the gather or scatter */
    int64_t values; /* where in the workspace the cut's values begin: behind what the parts use one by one */
    epi_backend_limits limits;   /* that the program was cut with, */
    epi_backend backend;         /* which accepts its parts: itself, */
    epi_kept *kept;              /* and what that said */
    const struct epi_arch *arch; /* of a GPU kernel */
    bool exact;                  /* nothing is rounded before it is stored */
    bool draft;                  /* GPU: texts are made, but not compiled yet */
    size_t workspace_whole;      /* that it would need without a budget; 0: it has none */
    /* Where axes are open this is the kernel of the largest sizes. Kernels of other sizes are made like it,
       and belong to it: */
    const epi_kernel *owner;              /* NULL: itself */
    bool is_form;                         /* its parts are compiled; else it takes what the owner has */
    epi_kernel *forms[EPI_MAX_FORMS - 1]; /* of a GPU kernel, beside its own, once a call needed them */
    _Atomic int form_count;
    struct epi_sizes *sizes; /* open.c: the kernels of other sizes; NULL: no axis is open */
};

/* Where in the workspace that begins which the parts use: behind what the checks of indices write, which is
 * at the same place whatever the sizes. */
int64_t epi_kernel_parts_at(const epi_kernel *kernel);
/* And where scalars lie that a call gives as numbers, each in so many bytes. */
enum { EPI_NUMBER_BYTES = 16 };
int64_t epi_kernel_numbers_at(const epi_kernel *kernel);

/* kernel.c: a caller's struct that begins with its size, in the size of ours: what is missing is zero, and
 * what we do not know must be. */
epi_status epi_struct_take(void *out, size_t size, const void *given, const char *what, const char *macro,
                           epi_error *err);
/* Options so, with lists that are there. */
epi_status epi_options_take(epi_options *out, const epi_options *given, epi_error *err);
/* clock.c: times the parts of a run. */
typedef struct epi_part_clock epi_part_clock;
epi_status epi_part_clock_begin(epi_part_clock *clock, int part, epi_error *err);
epi_status epi_part_clock_end(epi_part_clock *clock, int part, int launches, epi_error *err);

/* start.c: a run of a kernel's own sizes. `clock`: times its parts, which then run one after the other; or NULL. */
epi_status epi_kernel_carry_out(const epi_kernel *kernel, const epi_call *call, epi_part_clock *clock,
                                epi_error *err);

/* apart.c: does what a call writes to lie apart from all else? Room to find out, which runs do not allocate. */
typedef struct epi_lying {
    uintptr_t low[2 * EPI_MAX_TENSORS];                      /* by tensor: where it begins */
    int order[2 * EPI_MAX_TENSORS];                          /* tensors by that */
    int read[EPI_MAX_TENSORS], written[2 * EPI_MAX_TENSORS]; /* those that have not ended */
    bool spent[2 * EPI_MAX_TENSORS];                         /* by tensor: a value takes its place */
} epi_lying;
epi_status epi_check_apart(epi_lying *l, const epi_kernel *kernel, const epi_tensor *tensors, epi_error *err);
/* Other memory of a call. */
typedef struct epi_memory {
    const char *name;
    const void *data;
    size_t bytes;
} epi_memory;
bool epi_memory_meets(const epi_memory *a, const epi_memory *b);
epi_status epi_check_beside(const epi_kernel *kernel, int t, const epi_tensor *tensor, const epi_memory *m,
                            epi_error *err);

/* And a struct of ours for a caller who knows `size` bytes of it: what we do not know of a longer one is
 * zero. */
void epi_struct_give(void *out, size_t size, const void *ours, size_t own);

/* kernel.c: a kernel of the same program for these options, which differ from the owner's in open sizes. */
epi_status epi_kernel_make(const epi_program *program, const epi_options *options, const epi_kernel *owner,
                           bool is_form, epi_kernel **out, epi_error *err);

/* parts.c: compiles the parts of the cut; what they use of the workspace is known then. And their end. */
epi_status epi_parts_compile(epi_kernel *kernel, const epi_options *options, epi_error *err);
void epi_parts_free(epi_kernel *kernel);
/* Can the kernel's backend compile such a part as one kernel, by any configuration? An error is told when it does. */
bool epi_part_accept(const void *kernel, const epi_spec *part);
/* The spec of the program as it is written: passes may take an index for something else, and it is looked through
 * nonetheless. */
epi_spec epi_kernel_written(const epi_kernel *kernel);
/* What looks through indices before a run on a GPU, where that was asked for. */
epi_status epi_checks_compile(epi_kernel *kernel, const epi_options *options, epi_error *err);
/* The steps of one that there is. */
const struct epi_steps *epi_compiled_steps(const epi_compiled *c);
/* look.c: all parts as programs; and by which rules the program was rewritten, and what that saves. */
void epi_kernel_print_parts(const epi_kernel *kernel, epi_text *out);
void epi_rewriting_describe(const epi_kernel *kernel, epi_text *out);
/* look.c: may the part store the output over the input, both by their place among its tensors? */
/* why.c: why a value between parts is stored, in a clause. */
void epi_why_stored(const epi_kernel *kernel, int value, epi_text *out);
bool epi_part_in_place(const epi_part_kernel *part, int output, int input);
/* memory.c: brings a kernel whose parts are compiled, or drafts, within the budget of the options. */
epi_status epi_memory_fit(epi_kernel *kernel, const epi_options *options, epi_error *err);
/* Slabs that loops go through, 1 where there are none; and rows of the last one. */
int64_t epi_slab_count(const epi_kernel *kernel);
int64_t epi_slab_tail(const epi_kernel *kernel);

/* integers.c: which inputs f32 is assumed to hold; an error where one has more; and what f32 does not hold, a line each. */
epi_status epi_assumed_find(epi_kernel *kernel, epi_error *err);
epi_status epi_assumed_check(const epi_kernel *kernel, const epi_tensor *tensors, epi_error *err);
void epi_integers_warn(const epi_kernel *kernel, epi_text *out);

/* spent.c: gives values of the cut the places of inputs that a run may write over. */
epi_status epi_spent_take(epi_kernel *kernel, const epi_options *options, epi_error *err);

/* concurrent.c: finds the parts that need nothing of those before them, and start beside them. */
void epi_parts_set_concurrent(epi_kernel *kernel);

/* joints.c: finds the parts that are launched as one, and says which share kernels; or takes that over from the owner. */
struct epi_cuda_target;
epi_status epi_joints_find(epi_kernel *kernel, const struct epi_cuda_target *target, epi_error *err);
epi_status epi_joints_like(epi_kernel *kernel, const epi_kernel *owner, epi_error *err);
/* How many parts that one leads. */
int epi_joint_count(const epi_kernel *kernel, int leader);
/* The form that the parts of a group take together, for a kernel's sizes. */
const epi_kernel *epi_joint_form(const epi_kernel *kernel, int leader, const struct epi_cuda_target *target);
/* Cubins of a part and of those that it leads. */
epi_status epi_joint_build(epi_kernel *kernel, int leader, const struct epi_cuda_target *target,
                           epi_error *err);
/* parts.c: the part has the kernel of that one, which is equal to it, or of itself. */
void epi_part_share(epi_kernel *kernel, int part, int with);

/* open.c: what a kernel with open axes needs beside itself, and its end. */
epi_status epi_sizes_make(epi_kernel *kernel, const epi_options *options, epi_error *err);
void epi_sizes_free(epi_kernel *kernel);
/* A run with the sizes that the call names. */
epi_status epi_sizes_call(const epi_kernel *kernel, const epi_call *call, epi_error *err);
/* A line that says which axes are open; nothing where none is. */
void epi_sizes_describe(const epi_kernel *kernel, epi_text *out);

/* bind.c: options become a spec, with its lists in the arena; fails where they do not fit the program. The
 * largest sizes of open axes are those of the options, or those of `largest` if it is not NULL. */
epi_status epi_spec_bind(epi_arena *arena, const epi_program *program, const epi_options *options,
                         const epi_spec *largest, epi_spec *spec, epi_error *err);

/* bind.c: do the sizes that the text gives fit? Those that it leaves open are not looked at. */
epi_status epi_sizes_check(const epi_program *program, epi_error *err);

/* bind.c: the type of each tensor: what the options say of it, the text, or the storage type. */
epi_status epi_types_bind(const epi_graph *g, const epi_options *options, epi_dtype *types, epi_error *err);

/* bind.c: the axes that count rows where the options name none: all of the first input but the last, which
 * counts features; integers have none. Where there are cotangents: those of the first input, vectors aside, that
 * has the first axis of the first cotangent, as far as the cotangent has them. So a backward which begins with
 * a weight, or with a value in heads, has the rows of its forward. */
epi_axes epi_rows_of(const epi_graph *g);

/* 90 for compute capability 9.0: of a GPU of the context, or of what a negative number stands for (as in
 * epi_options). */
int epi_device_capability(const epi_context *ctx, int device);

/* How many calls of programs that name their own gradients a program has. */
epi_status epi_own_count(const epi_program *program, int *out, epi_error *err);

/* Random numbers of both checks of gradients: splitmix64, between -1 and 1. */
static inline double epi_next_number(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)(int64_t)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1;
}

#endif

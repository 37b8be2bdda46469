/* cuda.h: the GPU backend: a spec becomes a list of launches, and a run starts them on a stream. */
#ifndef EPI_CUDA_CUDA_H
#define EPI_CUDA_CUDA_H

#include <string.h>

#include "cuda/driver.h"
#include "cuda/emit/emit.h"

/* The integers that a launch's parameter ends with. */
typedef struct epi_numbers {
    int64_t rows;    /* M of the product, or rows of all batches */
    int64_t order;   /* of tiles; attention: batches that share the L2 cache; finish: partials of a result */
    int64_t count;   /* elements of a pass, or results; what a product, or rows, is told */
    int64_t counter; /* of its queue, in the workspace */
} epi_numbers;

enum { EPI_MAX_WEIGHTS = 2 * EPI_MAX_OPERANDS };
typedef struct epi_product_launch {
    epi_product_size size, standing; /* standing: with stand-ins for open sizes */
    int weights[EPI_MAX_WEIGHTS],
        weight_count; /* nodes that the columns' operands are loaded from; 0: from copies */
} epi_product_launch;

typedef struct epi_attention_launch {
    bool matched;                         /* a launch before it records its mask's equalities */
    int64_t chunk, chunks, partial_bytes; /* in chunks: columns of one, how many, and their partials */
    epi_attention_bits bits;
} epi_attention_launch;

typedef struct epi_pass_launch {
    int64_t fewer;   /* an update: the elements that are new, all it has to do in its operand's place, */
    unsigned blocks; /* and the grid for these */
} epi_pass_launch;

/* One launch of the list that a run starts: what all have, and what those of its kind have. */
typedef struct epi_launch {
    epi_kind kind; /* of the mainloop that it is; PASS: whatever comes before one, after it or without it */
    epi_kernel_text text;
    epi_numbers numbers;
    int choice;     /* its configuration */
    uint64_t alike; /* those with the same text, as bits: one that is slow is refused; 0: there is no other */
    int spills;     /* bytes that may be loaded of spilled registers */
    bool empty;     /* nothing to do for these sizes */
    bool joined;    /* a product that is launched with those of other parts (joint.c) */
    bool overlaps;  /* a product that need not wait for the launch before */
    /* Its first pointer leads to the operand of an update, its last to the result. Where they are one place: */
    bool updates; /* only what is new is to be done; */
    bool copies;  /* nothing is: it copies the operand, and a product stores what is new */
    union {
        epi_pass_launch pass;
        epi_product_launch product;
        epi_attention_launch attention;
        int64_t standing_rows; /* ROWS: with stand-ins for open sizes */
    };
    epi_cuda_launch how;  /* grid, block and, once it is compiled, function; and the rest then, too: */
    epi_tensor_map *maps; /* encoded; a run only puts in where its tensors lie */
    epi_cu_library_handle library;
    int registers;
    double compile_seconds;
    bool cached;
} epi_launch;

enum { EPI_MOST_FORMS = 3 };

/* How a product is made that is launched with others: by this configuration, with subtiles of so many columns
 * (0: as the design likes). */
typedef struct epi_join {
    bool on;
    int choice, subtile;
} epi_join;

typedef struct epi_cuda_kernel {
    epi_arena *arena;
    epi_spec spec;
    epi_spec text_spec; /* the same with stand-ins for open sizes: what texts are written from */
    epi_steps steps;
    epi_launch *launches;
    int count;
    epi_kernel_info info; /* what the mainloop says of its sizes and tiles */
    epi_launch *main;     /* that of the mainloop itself; NULL: all are passes */
    int64_t workspace;
    int64_t repacked; /* bytes of it that are copies of operands */
    int64_t counted;  /* and that blocks count in */
    epi_cuda *cuda;   /* NULL: texts only */
    int device;
    uint64_t refused; /* configurations that the compiler found slow, as bits */
    epi_join join;
    /* The form that this one has the texts and cubins of; NULL: its own. */
    const struct epi_cuda_kernel *like;
    const struct epi_cuda_kernel *forms[EPI_MOST_FORMS]; /* those that it may be the same as */
    int form_count;
    char note[256]; /* what the cache had to say */
} epi_cuda_kernel;

/* What to compile for. */
typedef struct epi_cuda_target {
    epi_cuda *cuda; /* NULL: make the texts only */
    int device;
    const epi_arch *arch;
    int multiprocessors; /* 132 */
    const char *config;  /* a configuration by name, or NULL for the model's choice */
    bool exact;          /* the contract: nothing is rounded before it is stored */
    /* Forms of the same spec that are compiled already, for other sizes of its open axes. The kernel takes
       the best of them for its sizes; or, to be a form itself, the one that it turns out to be the same as.
       Else it is compiled. */
    const struct epi_cuda_kernel *const *forms;
    int form_count;
    bool is_form;
} epi_cuda_target;

/* mainloops.c: what is done for a step, and asked of a launch and a kernel, by kind; NULL: nothing. */
typedef struct epi_cuda_mainloop {
    /* Adds the launches, with their texts. */
    epi_status (*emit)(epi_cuda_kernel *k, epi_emit_context *c, const epi_cuda_target *target,
                       const epi_step *step, epi_error *err);
    void (*describe)(const epi_cuda_kernel *k, epi_text *out);
    /* What it takes with the sizes of now, to choose a form by. */
    double (*cost)(const epi_launch *l, const epi_open *open, const epi_cuda_target *target);
    bool hears; /* it is told all that a run has to tell, */
    bool lets;  /* or that the next launch may begin before its own work is done */
} epi_cuda_mainloop;
extern const epi_cuda_mainloop epi_cuda_mainloops[EPI_KIND_COUNT];

/* The launches of a kernel's steps, or one for each index that is an input, with their texts; and none again. */
epi_status epi_cuda_emit(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err);
epi_status epi_cuda_emit_checks(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err);
void epi_cuda_drop_launches(epi_cuda_kernel *k);

/* cuda.c: the texts and their launches; then the cubins. A kernel that takes a form's cubins does not outlive
 * it. */
epi_status epi_cuda_plan(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target,
                         epi_cuda_kernel **out, epi_error *err);
epi_status epi_cuda_build(epi_cuda_kernel *k, const epi_cuda_target *target, epi_error *err);
/* The texts again, with the product made so. */
epi_status epi_cuda_plan_again(epi_cuda_kernel *k, const epi_cuda_target *target, epi_join join,
                               epi_error *err);
/* All of it. */
epi_status epi_cuda_compile(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target,
                            epi_cuda_kernel **out, epi_error *err);
void epi_cuda_kernel_free(epi_cuda_kernel *k);
/* run.c. `beside`: its first launch, Hopper's product, does not wait for the launch before, but that has
 * waited; or its last one lets the next, which does not wait for it, begin at once. Or its first launch is of
 * the same groups as the launch before; or what its products have for weights was there before the call, of
 * which it is not the first launch. */
enum { EPI_OVERLAP_LAST = 2, EPI_OVERLAP_NEXT = 4, EPI_GROUPS_KNOWN = 8, EPI_WEIGHTS_THERE = 16 };
/* `alone`: its first launch lets no other begin before all before it has ended; false from then on. */
epi_status epi_cuda_run(const epi_cuda_kernel *k, const epi_tensor *tensors, void *workspace, void *stream,
                        int beside, bool *alone, epi_error *err);
/* May it be told so? */
bool epi_launch_can_overlap(const epi_launch *l);
/* What a run does before and behind a product that is launched with others; `first`: nothing was launched
 * yet. */
epi_status epi_cuda_run_around(const epi_cuda_kernel *k, const epi_tensor *tensors, void *workspace,
                               void *stream, bool behind, bool *first, bool *alone, epi_error *err);
/* Its numbers when it is told that. `late`: it lets the next one begin; `in_place`: an update's result lies where its operand
 * does. */
epi_numbers epi_launch_numbers(const epi_launch *l, int beside, bool late, bool in_place);
/* Writes the parameter of a launch, with room for so many maps and pointers, and returns where it ends. */
typedef struct epi_parameter {
    int maps, pointers;
    epi_numbers numbers;
} epi_parameter;
epi_status epi_launch_write(const epi_cuda_kernel *k, const epi_launch *l, const epi_tensor *tensors,
                            unsigned char *workspace, const epi_parameter *how, unsigned char *to,
                            epi_error *err);
/* How many launches a run with these tensors takes. */
int epi_cuda_launches(const epi_cuda_kernel *k, const epi_tensor *tensors, void *workspace);
/* The product among its launches; NULL: there is none. */
static inline const epi_launch *epi_cuda_product(const epi_cuda_kernel *k) {
    return k->main && k->main->kind == EPI_KIND_GEMM ? k->main : NULL;
}
/* The same; NULL: it is by itself. */
const epi_launch *epi_cuda_joined(const epi_cuda_kernel *k);
/* What a form would take with the sizes of this spec. */
double epi_cuda_form_cost(const epi_cuda_kernel *form, const epi_spec *spec, const epi_cuda_target *target);
epi_product_size epi_size_now(const epi_product_size *s, const epi_open *open);
/* The time by the model of several products in one launch, and the clusters that it has. */
double epi_joint_cost(int index, const epi_product_size *sizes, int count, bool exact, int multiprocessors);
int64_t epi_joint_clusters(const epi_config *c, const epi_product_size *sizes, int count,
                           int multiprocessors);

/* ---- joint.c ---- */

/* Products of several parts that are launched as one. */
enum { EPI_MOST_JOINED = EPI_MOST_PARTS };
typedef struct epi_joint {
    int count;
    epi_cuda_kernel *parts[EPI_MOST_JOINED]; /* two of them may be one kernel, for different tensors */
    epi_launch launch;                       /* its text, and how it is launched */
    const struct epi_joint *like; /* the form that it has the text and the cubin of; NULL: its own */
} epi_joint;

/* May products of these be launched as one, if their designs agree? */
bool epi_joint_may(const epi_cuda_kernel *a, const epi_cuda_kernel *b);
/* The modelled time of a product by itself, or of several in one launch. */
double epi_joint_time(epi_cuda_kernel *const *parts, int count, const epi_cuda_target *target);
/* Makes their products one launch, and the texts of the rest of each. *out is NULL, and they are as they
 * were, where that would be slower, or no configuration takes all of them. `form`: the same for other sizes,
 * whose cubin it takes if it has the same text; or NULL. */
epi_status epi_joint_make(epi_arena *arena, epi_cuda_kernel *const *parts, int count,
                          const epi_cuda_target *target, const epi_joint *form, epi_joint **out,
                          epi_error *err);
/* The same with other sizes, by the cubin of `like`: each is made as its part there. */
epi_status epi_joint_make_like(epi_arena *arena, epi_cuda_kernel *const *parts, const epi_joint *like,
                               const epi_cuda_target *target, epi_joint **out, epi_error *err);
void epi_joint_free(epi_joint *j);
/* What it would take with the sizes of this spec. */
double epi_joint_form_cost(const epi_joint *j, const epi_spec *spec, const epi_cuda_target *target);
/* The parameter of a launch, part by part, and the launch. */
typedef struct epi_joint_args {
    _Alignas(64) unsigned char bytes[EPI_JOINT_BYTES];
} epi_joint_args;
epi_status epi_joint_put(const epi_joint *j, int part, const epi_tensor *tensors, unsigned char *workspace,
                         epi_joint_args *args, epi_error *err);
/* `workspace`: the first part's. */
epi_status epi_joint_start(const epi_joint *j, unsigned char *workspace, epi_joint_args *args, void *stream,
                           int beside, bool *alone, epi_error *err);
/* A kernel that looks through the indices that are inputs, one launch each: its workspace is a pair of
 * numbers for each, as epi_emit_check writes them. NULL: there are none. `nodes` tells whose each is; `like`
 * is the same for other sizes of open axes, or NULL: it takes that one's cubins. */
epi_status epi_cuda_compile_checks(epi_arena *arena, const epi_spec *spec, const epi_cuda_target *target,
                                   const epi_cuda_kernel *like, epi_cuda_kernel **out, int **nodes,
                                   epi_error *err);
void epi_cuda_info(const epi_cuda_kernel *k, epi_kernel_info *out);
void epi_cuda_describe(const epi_cuda_kernel *k, epi_text *out);
/* Do both have the same texts, launch by launch? */
bool epi_cuda_same_text(const epi_cuda_kernel *a, const epi_cuda_kernel *b);

/* The number of what has this name, of so many; or -1. */
static inline int epi_find_named(const char *(*name_of)(int), int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (!strcmp(name_of(i), name))
            return i;
    return -1;
}
/* choose.c: the configurations there are, by name, and the one that the cost model likes best. */
enum { EPI_MOST_CONFIGS = 64 }; /* what is known of all of them is bits of 64 */
int epi_config_count(void);
const epi_config *epi_config_at(int index);
const char *epi_config_name(int index);
int epi_config_named(const char *name); /* or -1 */
/* And those of attention: design_attention.c. */
int epi_attention_config_count(void);
const char *epi_attention_config_name(int index);
int epi_attention_config_named(const char *name); /* or -1 */
bool epi_attention_config_suits(int index, const epi_arch *arch);
/* The configurations that differ from it in their launches alone, and itself, as bits. */
uint64_t epi_config_same_text(int index);
/* Is it for such GPUs, and for this rounding? Some of these are for scaled products alone, all others for
 * none. */
bool epi_config_suits(int index, bool exact, const epi_arch *arch);
/* The time that it takes by the model, in units of its own. */
double epi_config_cost(int index, const epi_product_size *size, bool exact, int multiprocessors);
/* Candidates for a product, mainloop by mainloop, in the order of their modelled time; returns how many.
 * `order` has room for all. */
int epi_config_rank(const epi_product_size *size, bool exact, const epi_arch *arch, int multiprocessors,
                    int *order);

#endif

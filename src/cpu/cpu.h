/* cpu.h: the CPU backend: it compiles a spec into a list of steps, and a run executes them. */
#ifndef EPI_CPU_CPU_H
#define EPI_CPU_CPU_H

#include "cpu/access.h"
#include "cpu/micro/micro.h"
#include "cpu/rows/strips.h"
#include "pass/analyse/integers.h"
#include "pass/analyse/limits.h"
#include "pass/analyse/recurrence.h"
#include "pass/schedule/steps.h"

typedef struct epi_cpu_kernel {
    epi_arena *arena;
    epi_spec spec;
    epi_steps steps;
    void *loop;           /* what the mainloop of its kind has built (gemm.h, rows.h, attention.h), or NULL */
    epi_kernel_info info; /* what that says of its sizes and tiles, */
    int64_t partials;     /* and how many it leaves */
    const epi_strips *strips;
    const epi_integer *integers; /* by node, of a reference */
    int64_t workspace;           /* bytes in all */
    int64_t scratch;             /* where the steps' own scratch starts, or the reference's list of tensors */
    int64_t scratch_bytes;       /* of the step that needs most */
} epi_cpu_kernel;

/* mainloops.c: what is done with a step, and said of a kernel, by kind. */
typedef struct epi_cpu_mainloop {
    /* Fails with EPI_ERR_UNSUPPORTED where a tile cannot hold what is asked of it. */
    epi_status (*build)(epi_cpu_kernel *k, const epi_step *s, epi_error *err);
    void (*run)(const epi_cpu_kernel *k, const epi_step *s, const epi_ref *homes, const epi_ref *tensors,
                unsigned char *scratch);
    void (*describe)(const epi_cpu_kernel *k, epi_text *out);
} epi_cpu_mainloop;
extern const epi_cpu_mainloop epi_cpu_mainloops[EPI_KIND_COUNT];

/* What a tile can hold. */
epi_backend_limits epi_cpu_limits(void);
epi_status epi_cpu_compile(epi_arena *arena, const epi_spec *spec, epi_cpu_kernel **out, epi_error *err);
void epi_cpu_run(const epi_cpu_kernel *k, const epi_tensor *tensors, void *workspace);
/* A tensor of the caller's, as passes walk over it. */
epi_ref epi_cpu_tensor(const epi_spec *spec, int t, const epi_tensor *given);
void epi_cpu_info(const epi_cpu_kernel *k, epi_kernel_info *out);
void epi_cpu_describe(const epi_cpu_kernel *k, epi_text *out);

/* reference.c */
int64_t epi_reference_workspace(const epi_cpu_kernel *k);
void epi_reference_run(const epi_cpu_kernel *k, const epi_ref *tensors, unsigned char *workspace);

/* passes.c: computes one node from its operands, all of them in memory. `refs` is by node. */
void epi_pass_run(const epi_cpu_kernel *k, int node, const epi_ref *refs, unsigned char *scratch);
void epi_pass_copy(const epi_cpu_kernel *k, const epi_ref *to, const epi_ref *from, const epi_axes *axes);
int64_t epi_pass_scratch(int threads);

/* recurrence.c: a scan of products. */
void epi_recurrence_run(const epi_cpu_kernel *k, const epi_recurrence *r, const epi_ref *refs,
                        unsigned char *scratch);
int64_t epi_recurrence_scratch(const epi_spec *spec, const epi_recurrence *r);

/* moves.c: the same for what an index moves. */
void epi_gather_run(const epi_cpu_kernel *k, int node, const epi_ref *refs, unsigned char *scratch);
void epi_shift_run(const epi_cpu_kernel *k, int node, const epi_ref *refs);
void epi_scatter_run(const epi_cpu_kernel *k, int node, const epi_ref *refs, unsigned char *scratch);
void epi_order_run(const epi_cpu_kernel *k, int node, const epi_ref *refs, unsigned char *scratch);
void epi_largest_run(const epi_cpu_kernel *k, int node, const epi_ref *refs);
void epi_segments_run(const epi_cpu_kernel *k, int node, const epi_ref *refs);
/* What a scatter and an order need beside a pass's own scratch. */
int64_t epi_move_scratch(const epi_spec *spec, int node);
void epi_update_run(const epi_cpu_kernel *k, int node, const epi_ref *refs);
/* scan.c: a recurrence along an axis, step by step. */
void epi_scan_run(const epi_cpu_kernel *k, int node, const epi_ref *refs);
/* Holds every index that is an integer input of the program against the axis it counts along: the one thing
 * that can be wrong with a run. */
epi_status epi_indices_check(const epi_spec *spec, const epi_tensor *tensors, epi_error *err);

#endif

/* arch.h: the capabilities of a GPU generation: one table row each. Nothing else asks which generation a GPU
 * is.
 */
#ifndef EPI_CUDA_ARCH_H
#define EPI_CUDA_ARCH_H

#include "pass/analyse/limits.h"

/* The mainloops of products, the best first; the last is for operands of few bits alone. */
typedef enum epi_mainloop {
    EPI_GEMM_SM90,
    EPI_GEMM_SM80,
    EPI_GEMM_ANY,
    EPI_GEMM_FEW,
    EPI_MAINLOOP_COUNT
} epi_mainloop;
/* Its file in cuda/device, and what a user reads. */
const char *epi_mainloop_name(epi_mainloop mainloop);

typedef struct epi_arch {
    int capability;     /* 90: of its first GPU; those below the next row's run the same texts */
    const char *name;   /* "sm_90a": what texts are compiled for */
    int shared_bytes;   /* of a multiprocessor */
    unsigned mainloops; /* of products, as bits */
    bool wgmma;         /* it has attention by wgmma and TMA, which takes pages; else by mma.sync */
    bool row_ring;      /* rows may come through a ring in shared memory that TMA fills */
    bool clusters;      /* blocks may share a row */
    bool overlap;       /* a launch may begin before the one before it has ended */
} epi_arch;

/* The row of a GPU of this capability; NULL: it is older than any. */
const epi_arch *epi_arch_of(int capability);

/* The row of this number, the oldest first; NULL: there is none. */
const epi_arch *epi_arch_at(int index);

/* Multiprocessors that texts are written for where no GPU is there. */
enum { EPI_USUAL_MULTIPROCESSORS = 132 };

/* Shared memory that each block takes for the system; and what a block may have for itself. */
enum { EPI_BLOCK_OWN = 1024 };
static inline int epi_arch_block_shared(const epi_arch *arch) {
    return arch->shared_bytes - EPI_BLOCK_OWN;
}
static inline bool epi_arch_has(const epi_arch *arch, epi_mainloop mainloop) {
    return arch->mainloops >> mainloop & 1;
}

/* What its tiles can hold. */
epi_backend_limits epi_arch_limits(const epi_arch *arch);

#endif

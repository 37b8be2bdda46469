/* gemm.h: the gemm mainloop: both operands packed, then tiles of the product, each with its epilogue. */
#ifndef EPI_CPU_GEMM_H
#define EPI_CPU_GEMM_H

#include "cpu/product/epilogue.h"
#include "cpu/micro/micro.h"
#include "pass/analyse/dequant.h"

typedef struct epi_gemm {
    const epi_micro *micro;
    epi_plan plan;
    epi_epilogue epilogue;
    int products; /* one, or a pair: their tiles lie side by side in the accumulator */
    int terms;    /* one, or so many products that are added up in the accumulator */
    int operand[EPI_MAX_OPERANDS], operands; /* nodes in memory, in the order of epi_plan_operand */
    bool on_load[EPI_MAX_OPERANDS];          /* it is of few bits, and widened as it is loaded: */
    epi_dequant dequant[EPI_MAX_OPERANDS];   /* these are its nodes */
    bool
        integers; /* A and B are of few bits, and taken as integers: B is read as it lies for any number of rows */
    epi_axes
        taken[EPI_MAX_OPERANDS]; /* of one that is read through an index the axes that this counts along */
    int64_t m, n, k[EPI_MAX_TERMS], packed_k[EPI_MAX_TERMS];
    int64_t row_batch, col_batch; /* tiles of A and of B that are packed at a time */
    int threads;
    /* Of each batch there are so few rows that B is read once: a thread packs what it needs next. */
    bool few;
    /* Or it packs nothing, and reads B as it lies: the panel of A has so many rows then. 0: the micro-kernel
       cannot. */
    int direct_rows;
    /* Groups of rows: A is packed for all, as many rows as row_batch says, and every thread packs the tiles of B
       that it works on for itself; tiles of few rows are as if all had few. */
    int64_t groups;   /* offset in the scratch: where the groups begin (groups.h), */
    int64_t index;    /* and the index through which operands are read */
    int64_t dequants; /* and what operands of few bits are made of beside these (gemm_dequant.c) */
    bool own_a;       /* every thread packs the tiles of A that it works on, for itself */
    /* offsets in the scratch, in bytes */
    int64_t packed[2], depth[EPI_MAX_OPERANDS], shared, partials, ranges, per_thread, thread_bytes, scratch;
    int64_t sweep_sums; /* in a thread's memory: of few rows the tile of one sweep */
    int64_t sums; /* in a thread's memory: of deep products the tile so far, and what rounding lost of it */
} epi_gemm;

/* `types` are the storage types of the operands, in the order of epi_plan_operand; of those that are widened on load
 * they become f32. */
epi_status epi_gemm_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                          const epi_strips *strips, epi_dtype *types, const epi_root *roots, int root_count,
                          epi_gemm *out, epi_error *err);

/* Runs; `homes` is by node, `tensors` by tensor, `scratch` has out->scratch bytes. */
void epi_gemm_run(const epi_gemm *g, const epi_ref *homes, const epi_ref *tensors, unsigned char *scratch);

#endif

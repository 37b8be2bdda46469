/* micro_pair.h: the loop of the micro-kernels that have two vectors of sums for each row of A: an iteration
 * broadcasts its elements of the row to all lanes and multiplies two vectors of B. The files of these
 * kernels include it, and define
 *     MR, NR, VECTOR       rows, columns, and lanes of a vector
 *     STEP                 depth of an iteration
 *     AHEAD                iterations that A, which comes from the second-level cache, is prefetched early
 *     sums, lane, lanes    a vector of sums; of A or B what one lane takes in an iteration, and all do
 *     multiply_add         sums with the products of a lane of A and all lanes of B */
#ifndef EPI_CPU_MICRO_PAIR_H
#define EPI_CPU_MICRO_PAIR_H

typedef sums sums_at __attribute__((aligned(4), may_alias)); /* in C, */
typedef lanes lanes_at __attribute__((may_alias));           /* and in B's panel */

static inline __attribute__((always_inline)) sums load(const float *p) {
    return *(const sums_at *)p;
}

static inline __attribute__((always_inline)) void run_some(const int rows, int64_t k, const void *pa,
                                                           const void *pb, int64_t ldb, float *c, int64_t ldc,
                                                           bool add, bool go_on,
                                                           epi_prefetch_cursor *cursor) {
    const lane *a = pa, *b = pb;
    epi_prefetch_cursor next = *cursor;
    sums sum[MR][2];
    epi_prefetch_c(c, ldc, rows, NR);
    EPI_UNROLL for (int i = 0; i < rows; i++) {
        sum[i][0] = go_on ? load(c + i * ldc) : (sums){0};
        sum[i][1] = go_on ? load(c + i * ldc + VECTOR) : (sums){0};
    }
    for (; k > 0; k -= STEP, a += MR, b += ldb / STEP) {
        const lanes b0 = *(const lanes_at *)b, b1 = *(const lanes_at *)(b + VECTOR);
        __builtin_prefetch(a + MR * AHEAD);
        epi_prefetch_step(&next, STEP);
        EPI_UNROLL for (int i = 0; i < rows; i++) {
            sum[i][0] = multiply_add(sum[i][0], a[i], b0);
            sum[i][1] = multiply_add(sum[i][1], a[i], b1);
        }
    }
    EPI_UNROLL for (int i = 0; i < rows; i++, c += ldc) {
        if (add) {
            sum[i][0] += load(c);
            sum[i][1] += load(c + VECTOR);
        }
        *(sums_at *)c = sum[i][0];
        *(sums_at *)(c + VECTOR) = sum[i][1];
    }
    *cursor = next;
}

#endif

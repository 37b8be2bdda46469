/* philox.h: the random numbers of `uniform`: Philox4x32-10 (Salmon et al., 2011), a function from a counter
 * and a key to four words that look random. Each element can be computed by itself, so the numbers depend
 * only on the seed and the element. src/cuda/device/random.cuh gives the same bits. */
#ifndef EPI_BASE_PHILOX_H
#define EPI_BASE_PHILOX_H

#include "base/base.h"

enum { EPI_PHILOX_LANES = 64, EPI_PHILOX_BATCH = 4 * EPI_PHILOX_LANES };

/* Ten rounds over many counters at once, word by word: loops that compilers turn into vector code. */
static inline void epi_philox(uint32_t c[4][EPI_PHILOX_LANES], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++, key0 += 0x9e3779b9u, key1 += 0xbb67ae85u)
        for (int l = 0; l < EPI_PHILOX_LANES; l++) {
            uint64_t a = (uint64_t)0xd2511f53u * c[0][l], b = (uint64_t)0xcd9e8d57u * c[2][l];
            c[0][l] = (uint32_t)(b >> 32) ^ c[1][l] ^ key0;
            c[2][l] = (uint32_t)(a >> 32) ^ c[3][l] ^ key1;
            c[1][l] = (uint32_t)b;
            c[3][l] = (uint32_t)a;
        }
}

/* Elements [first, first + n) of the uniform numbers of a seed: multiples of 2^-24 in [0,1). Element e is
 * word e % 4 of counter e / 4. */
static inline void epi_philox_uniform(float *dst, int32_t seed, int64_t first, int n) {
    uint32_t c[4][EPI_PHILOX_LANES];
    float x[EPI_PHILOX_BATCH];
    for (int done = 0; done < n;) {
        uint64_t block = (uint64_t)(first + done) / 4;
        int skip = (int)((first + done) % 4), most = EPI_PHILOX_BATCH - skip;
        for (int l = 0; l < EPI_PHILOX_LANES; l++) {
            c[0][l] = (uint32_t)(block + (uint64_t)l);
            c[1][l] = (uint32_t)((block + (uint64_t)l) >> 32);
            c[2][l] = c[3][l] = 0;
        }
        epi_philox(c, (uint32_t)seed, 0);
        for (int l = 0; l < EPI_PHILOX_LANES; l++)
            for (int w = 0; w < 4; w++)
                x[4 * l + w] = (float)(int32_t)(c[w][l] >> 8) * 0x1p-24f;
        for (int i = 0; i < most && done < n; i++)
            dst[done++] = x[skip + i];
    }
}

#endif

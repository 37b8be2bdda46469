/* entry.h: comes after each text: what needs its types. NAME_OF_KERNEL is its entry, NAME_OF_RUN that of the
 * host. */

static_assert(BF16 == 1, "pack() knows it by number");

/* mma.sync of 16 rows and 8 columns, 16 deep. */
#ifdef HALF
static void mma(float *d, const u32 (&a)[4], u32 b0, u32 b1) {
    u32 in[10] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(in + 6, d, 16);
    const u32 *out = together(in, 10, [](Warp &w) {
        static float x[16][16], y[16][8], z[16][8];
        for (int l = 0; l < 32; l++)
            for (int e = 0; e < 2; e++) {
                const int r = l / 4, c = l % 4 * 2 + e;
                for (int i = 0; i < 6; i++) {
                    const float v = e ? high<HALF>(w.in[l][i]) : low<HALF>(w.in[l][i]);
                    if (i < 4)
                        x[r + i % 2 * 8][c + i / 2 * 8] = v;
                    else
                        y[c + (i - 4) * 8][r] = v;
                }
                z[r][c] = __uint_as_float(w.in[l][6 + e]);
                z[r + 8][c] = __uint_as_float(w.in[l][8 + e]);
            }
        for (int r = 0; r < 16; r++)
            for (int c = 0; c < 8; c++) {
                double sum = z[r][c];
                for (int k = 0; k < 16; k++)
                    sum += (double)x[r][k] * y[k][c];
                z[r][c] = (float)sum;
            }
        for (int l = 0; l < 32; l++)
            for (int i = 0; i < 4; i++)
                w.out[l][i] = __float_as_uint(z[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2]);
    });
    memcpy(d, out, 16);
}
#endif

/* wgmma of 64 rows, 16 deep, by a warpgroup. */
#ifdef NARROW
template <int R> static void wgmma(float (&d)[R], u64 a, u64 b, int add) {
#if SCALED
    product(Product{d, a, b, false, false, add != 0, 2 * R, false, true, {A_BITS == E5M2, B_BITS == E5M2}});
#else
    product(Product{d, a, b, A_MN, B_MN, add != 0, 2 * R, HALF == BF16});
#endif
}
template <int R> static void wgmma_narrow(float (&d)[R], u64 a, u64 b, int add) {
    product(Product{d, a, b, A_MN, B_MN, add != 0, NARROW, HALF == BF16});
}
#endif

#ifdef HALF
template <int R> static void wgmma_score(float (&d)[R], u64 a, u64 b, int add) {
    product(Product{d, a, b, false, false, add != 0, 2 * R, HALF == BF16});
}
template <int R> static void wgmma_value(float (&d)[R], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
    const u32 words[4] = {a0, a1, a2, a3};
    product_of_words(Product{d, 0, b, false, true, add != 0, 2 * R, HALF == BF16}, words);
}
template <int R> static void wgmma_keys(float (&d)[R], u64 a, u64 b, int add) {
    wgmma_score(d, a, b, add);
}
template <int R> static void wgmma_values(float (&d)[R], u64 a, u64 b, int add) {
    product(Product{d, a, b, true, false, add != 0, 2 * R, HALF == BF16});
}
template <int R> static void wgmma_keys(float (&d)[R], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
    const u32 words[4] = {a0, a1, a2, a3};
    product_of_words(Product{d, 0, b, false, false, add != 0, 2 * R, HALF == BF16}, words);
}
template <int R> static void wgmma_values(float (&d)[R], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
    wgmma_keys(d, a0, a1, a2, a3, b, add);
}
template <int R> static void wgmma_value2(float (&d)[R], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
    wgmma_value(d, a0, a1, a2, a3, b, add);
}
template <int R> static void wgmma_rows(float (&d)[R], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int add) {
    wgmma_value(d, a0, a1, a2, a3, b, add);
}
template <int R> static void wgmma_state(float (&d)[R], u64 a, u64 b, int add) {
    product(Product{d, a, b, false, true, add != 0, 2 * R, HALF == BF16});
}
#endif

#if JOINED
alignas(64) static Launch params;
#else
alignas(64) static Params params;
#endif
static void enter() {
    NAME_OF_KERNEL(params);
}

extern "C" __attribute__((visibility("default"))) int NAME_OF_RUN(emu_host *h, const void *bytes, int grid,
                                                                  int blocks, int threads, int shared) {
    memcpy((void *)&params, bytes, sizeof params);
    return run_grid(h, enter, grid, blocks, threads, shared);
}
#undef NAME_OF_KERNEL
#undef NAME_OF_RUN

/* ptx.h: the functions that a text writes in PTX, as C++: the test leaves those out of the text. What a
 * function here is not for (the copy engine, barriers in memory, wgmma) does not compile, and so is seen. */

static void mma(float *d, const u32 (&a)[4], u32 b0, u32 b1);

/* ---- base.cuh ---- */

static float f16_f32(u16 x) {
    const int e = x >> 10 & 31, m = x & 1023;
    const float v = e == 31 ? (m ? NAN : INFINITY)
                    : e     ? ldexpf((float)(1024 + m), e - 25)
                            : ldexpf((float)m, -24);
    return x >> 15 ? -v : v;
}
static u16 f32_f16(float x) {
    const float a = fabsf(x);
    const u32 sign = __float_as_uint(x) >> 16 & 0x8000, bits = __float_as_uint(a);
    return (u16)(x != x         ? 0x7fff
                 : a >= 65520.f ? sign | 0x7c00
                 : a < 0x1p-14f ? sign | (u32)lrintf(a * 0x1p24f)
                                : sign | (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13);
}
static u16 f32_bf16(float x) {
    const u32 bits = __float_as_uint(x);
    return (u16)(x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
template <int T> static u32 pack(float lo, float hi) { /* 1 is BF16 */
    return T == 1 ? f32_bf16(lo) | (u32)f32_bf16(hi) << 16 : f32_f16(lo) | (u32)f32_f16(hi) << 16;
}
static float ex2(float x) {
    return exp2f(x);
}
static float rcp(float x) {
    return 1 / x;
}
static float lg2(float x) {
    return log2f(x);
}
static float f_min(float a, float b) {
    return a < b || a != a ? a : b;
}
static float f_max(float a, float b) {
    return a > b || a != a ? a : b;
}

/* ---- ptx.cuh ---- */

static void sts32(u32 at, u32 x) {
    memcpy(shared_at(at, 4), &x, 4);
}
static u32 lds32(u32 at) {
    u32 x;
    memcpy(&x, shared_at(at, 4), 4);
    return x;
}
static void sts128(u32 at, u32 x, u32 y, u32 z, u32 w) {
    const u32 words[4] = {x, y, z, w};
    memcpy(shared_at(at, 16), words, 16);
}

/* ldmatrix: four matrices of 8 x 8; lane 8m + r says where row r of matrix m lies. */
template <bool TURNED> static void ldm(u32 at, u32 (&words)[4]) {
    shared_at(at, 16);
    const u32 *out = together(&at, 1, [](Warp &w) {
        for (int l = 0; l < 32; l++)
            for (int m = 0; m < 4; m++) {
                u16 x[2];
                for (int e = 0; e < 2; e++) {
                    const int r = TURNED ? l % 4 * 2 + e : l / 4, c = TURNED ? l / 4 : l % 4 * 2 + e;
                    memcpy(&x[e], shared_at(w.in[8 * m + r][0], 16) + 2 * c, 2);
                }
                w.out[l][m] = x[0] | (u32)x[1] << 16;
            }
    });
    memcpy(words, out, 16);
}
static void ldm4(u32 at, u32 (&words)[4]) {
    ldm<false>(at, words);
}

/* ---- gemm_sm80.cuh ---- */

static void land(const Copy &c) {
    check_read(c.from, (size_t)c.bytes, (size_t)c.size);
    u8 *to = shared_at(c.to, (u32)c.size);
    memcpy(to, c.from, (size_t)c.bytes);
    memset(to + c.bytes, 0, (size_t)(c.size - c.bytes));
}
template <int BYTES> static void cp_async(u32 to, const void *from, int bytes) {
    Thread &t = *current;
    const Copy copy = {to, from, bytes, BYTES};
    if (bytes < 0 || bytes > BYTES)
        wrong("an asynchronous copy of bytes", bytes);
    else if (!host->late)
        land(copy);
    else if (t.copy_count < MOST_COPIES)
        t.copies[t.copy_count++] = copy;
    else
        wrong("more copies on their way than", MOST_COPIES);
}
static void cp_commit() {
    Thread &t = *current;
    if (t.group_count < 16)
        t.ends[t.group_count++] = t.copy_count;
    else
        wrong("more groups of copies than", 16);
}
template <int LEFT> static void cp_wait() {
    Thread &t = *current;
    const int groups = t.group_count - LEFT, count = groups > 0 ? t.ends[groups - 1] : 0;
    if (groups <= 0)
        return;
    for (int i = 0; i < count; i++)
        land(t.copies[i]);
    t.copy_count -= count;
    t.group_count = LEFT;
    memmove(t.copies, t.copies + count, (size_t)t.copy_count * sizeof *t.copies);
    for (int i = 0; i < LEFT; i++)
        t.ends[i] = t.ends[i + groups] - count;
}

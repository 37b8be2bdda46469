/* run.h: comes after a text: what needs its types, and all blocks of a launch. NAME_OF_KERNEL is its entry.
 */

alignas(1024) thread_local u8 memory[256 << 10];

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

static const Params *params;

static void thread_main() {
    NAME_OF_KERNEL(*params);
    current->done = true;
    progress++;
    for (;;)
        change_over();
}

static void begin(Thread *t, unsigned index) {
    t->done = false;
    t->index.x = index;
    t->copy_count = t->group_count = 0;
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = t->stack;
    t->context.uc_stack.ss_size = STACK_BYTES;
    t->context.uc_link = 0;
    makecontext(&t->context, thread_main, 0);
}

/* In turns, each in another order. False where a whole turn brings nobody on. */
static bool run_block(Thread *threads, int count) {
    for (int left = count; left;) {
        const i64 before = progress;
        host->seed = host->seed * 1664525 + 1013904223;
        const unsigned first = host->seed >> 16, step = host->seed >> 8 & 1 ? 1 : 97; /* coprime to count */
        left = 0;
        for (unsigned i = 0; i < (unsigned)count; i++) {
            current = &threads[(first + i * step) % (unsigned)count];
            if (!current->done)
                swapcontext(&scheduler, &current->context);
            left += !current->done;
        }
        if (left && progress == before)
            return false;
    }
    return true;
}

extern "C" __attribute__((visibility("default"))) int emu_run(emu_host *h, const void *bytes, int grid,
                                                              int block, int shared) {
    alignas(64) static Params copy;
    static Thread threads[1024];
    bool ok = true;
    memcpy((void *)&copy, bytes, sizeof copy);
    params = &copy;
    host = h;
    memory_bytes = (u32)shared;
    gridDim.x = (unsigned)grid;
    for (int i = 0; i < block; i++)
        ok &= (threads[i].stack = (char *)malloc(STACK_BYTES)) != 0;
    for (int b = 0; b < grid && ok; b++) {
        blockIdx.x = (unsigned)b;
        barrier_waiting = 0;
        barrier_threads = block;
        memset(warps, 0, sizeof warps);
        memset(memory, 0xff, sizeof memory);
        for (int i = 0; i < block; i++)
            begin(&threads[i], (unsigned)i);
        ok = run_block(threads, block);
    }
    for (int i = 0; i < block; i++)
        free(threads[i].stack);
    return ok;
}

/* run.h: comes before the texts, after ptx.h: all blocks of a launch. */

static void (*enter_kernel)();

/* A thread's context serves one block after the other: making one asks the kernel three times. */
static void thread_main() {
    for (;;) {
        enter_kernel();
        current->done = true;
        block->left--;
        progress++;
        change_over();
    }
}

static void go_on(Thread *t) {
    static ucontext_t here; /* never returned to */
    current = t;
    if (_setjmp(scheduler))
        return;
    if (t->started)
        _longjmp(t->at, 1);
    t->started = true;
    getcontext(&t->start);
    t->start.uc_stack.ss_sp = t->stack;
    t->start.uc_stack.ss_size = STACK_BYTES;
    t->start.uc_link = 0;
    makecontext(&t->start, thread_main, 0);
    swapcontext(&here, &t->start);
}

static void begin_thread(Thread *t, unsigned index) {
    t->done = false;
    t->index.x = index;
    t->copies.count = t->copies.groups = t->stores.count = t->stores.groups = 0;
    t->products.count = t->products.groups = 0;
}

static void begin_block(Block *b, unsigned index) {
    b->index.x = index;
    b->left = block_threads;
    b->arriving_count = 0;
    memset(b->barriers, 0, sizeof b->barriers);
    memset(b->groups, 0, sizeof b->groups);
    memset(b->warps, 0, (size_t)(block_threads + 31) / 32 * sizeof *b->warps);
    memset(b->memory, host->fill, memory_bytes);
    memset(b->rest, host->fill, declared_bytes);
    for (int i = 0; i < block_threads; i++) {
        b->warps[i / 32].lanes++;
        begin_thread(&b->threads[i], (unsigned)i);
    }
}

static u32 next_random() {
    host->seed = host->seed * 1664525 + 1013904223;
    return host->seed;
}

/* A block whose turn it is has its shared memory where the text declares it, until it is another's turn. */
static Block *in_place;
static void put_in_place(Block *b) {
    if (b == in_place)
        return;
    if (in_place)
        memcpy(in_place->rest, declared, declared_bytes);
    memcpy(declared, b->rest, declared_bytes);
    in_place = b;
}

/* All threads in some order, but for those of the warps that are held back. */
static void take_turn(Block *b, u32 held) {
    const unsigned count = (unsigned)block_threads, random = next_random();
    const unsigned first = random >> 16, step = random >> 8 & 1 || count % 97 == 0 ? 1 : 97;
    block = b;
    put_in_place(b);
    for (unsigned i = 0; i < count; i++) {
        const unsigned at = (first + i * step) % count;
        if (!b->threads[at].done && !(held >> at / 32 & 1))
            go_on(&b->threads[at]);
    }
}

/* In turns. Where all is late some warps wait until the others come no further, or long enough, then others
 * do. False where a turn of all brings nobody on. */
static bool run_blocks() {
    u32 held = 0;
    int turns = 0;
    for (int left = 1; left;) {
        const i64 before = progress;
        const int first = (int)(next_random() >> 20);
        left = 0;
        for (int i = 0; i < running_count; i++) {
            const int at = (first + i) % running_count;
            take_turn(running[at], held && at ? held * 2654435761u * (u32)at : held);
            left += running[at]->left;
        }
        if (left && progress == before && !held)
            return false;
        if (progress == before || ++turns > 1000)
            held = 0, turns = 0;
        else if (!held && host->late)
            held = next_random() ^ next_random() >> 16;
    }
    for (int i = 0; i < running_count; i++)
        if (running[i]->arriving_count)
            wrong("TMA was not waited for, copies", running[i]->arriving_count);
    return true;
}

/* Where what is declared as shared lies: the thread's part of this library. dl_iterate_phdr() does not find
 * it on every processor, so the loader is asked as a compiler would. */
extern "C" void *__tls_get_addr(size_t *module_and_offset);
static int find_declared(dl_phdr_info *info, size_t, void *) {
    const u64 here = (u64)(const void *)&host;
    bool mine = false;
    u32 bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto &h = info->dlpi_phdr[i];
        mine |= h.p_type == PT_LOAD && here >= info->dlpi_addr + h.p_vaddr &&
                here < info->dlpi_addr + h.p_vaddr + h.p_memsz;
        if (h.p_type == PT_TLS)
            bytes = (u32)h.p_memsz;
    }
    if (mine) {
        size_t start[2] = {info->dlpi_tls_modid, 0};
        declared = (u8 *)__tls_get_addr(start);
        declared_bytes = bytes;
    }
    return mine;
}

static bool make_blocks() {
    for (int c = 0; c < running_count; c++) {
        Block *b = running[c];
        if (!b) {
            b = running[c] = (Block *)calloc(1, sizeof(Block));
            if (!b || !(b->memory = (u8 *)aligned_alloc(1024, MOST_MEMORY)) ||
                !(b->rest = (u8 *)malloc(declared_bytes)))
                return false;
            memset(b->memory, host->fill, MOST_MEMORY);
        }
        for (int i = 0; i < block_threads; i++)
            if (!b->threads[i].stack && !(b->threads[i].stack = (char *)malloc(STACK_BYTES)))
                return false;
    }
    return true;
}

static void free_blocks() {
    for (int c = 0; c < MOST_BLOCKS && running[c]; c++) {
        for (int i = 0; i < 1024; i++)
            free(running[c]->threads[i].stack);
        free(running[c]->memory);
        free(running[c]->rest);
        free(running[c]);
        running[c] = 0;
    }
}

static int run_grid(emu_host *h, void (*enter)(), int grid, int blocks, int threads, int shared) {
    host = h;
    enter_kernel = enter;
    cluster_blocks = blocks;
    running_count = h->at_once ? grid : blocks;
    block_threads = threads;
    memory_bytes = (u32)shared;
    gridDim.x = (unsigned)grid;
    memset(cluster_barriers, 0, sizeof cluster_barriers);
    *(volatile u64 *)&first_declared = 0; /* so that it is there */
    dl_iterate_phdr(find_declared, 0);
    if (grid % blocks || running_count > MOST_BLOCKS) {
        wrong("no whole number of clusters, or too many, in blocks", grid);
        return true;
    }
    bool ok = make_blocks();
    /* Every other one first: what a block stores over its neighbour's on either side is then there at the end. */
    for (int other = 0; other < 2; other++)
        for (int b = other * running_count; b < grid && ok; b += 2 * running_count) {
            for (int i = 0; i < running_count; i++)
                begin_block(running[i], (unsigned)(b + i));
            in_place = 0;
            ok = run_blocks();
        }
    free_blocks();
    return ok;
}

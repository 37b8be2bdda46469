/* launch.h: one launch on the emulator, with the memory and the parameters that a run gives it. */
#ifndef EPI_TESTS_EMULATE_LAUNCH_H
#define EPI_TESTS_EMULATE_LAUNCH_H

#include "emulate/texts.h"

enum { MOST_LAUNCHES = 64, MOST_AT_ONCE = 8 };

typedef struct place {
    const epi_cuda_kernel *k;
    problem *p;
    unsigned char *workspace;
} place;

static void *address(const place *at, epi_pointer_need need) {
    int tensor = need.tensor == -1 ? at->k->steps.homes[need.node].tensor : need.tensor;
    if (need.tensor == EPI_POINTER_WORKSPACE)
        return at->workspace + need.offset;
    return tensor >= 0 ? at->p->t[tensor].data : at->workspace + at->k->steps.homes[need.node].offset;
}

/* A tensor map, by TMA's rules. */
static void put_map(const place *at, const epi_map_need *m, unsigned char *to, const char *what) {
    emu_box box = {.base =
                       (unsigned char *)address(at, (epi_pointer_need){m->node, m->tensor, 0}) + m->offset,
                   .sizes = {m->sizes[0], m->sizes[1], 1, 1, 1},
                   .strides = {0, m->strides[1]},
                   .box = {m->box[0], m->box[1], 1, 1},
                   .swizzle = m->swizzle,
                   .rank = m->rank,
                   .size = (int)epi_dtype_size(m->type)};
    bool fits = m->rank == 2 || m->rank == 4 || m->rank == 5;
    for (int i = 1; i < m->rank && fits; i++) {
        box.sizes[i] = m->sizes[i];
        box.strides[i] = m->strides[i];
        if (i < 4)
            box.box[i] = m->box[i];
        fits =
            box.strides[i] % 16 == 0 && box.strides[i] > 0 && m->box[i] <= 256 && (i < 4 || m->box[i] == 1);
    }
    check(fits && box.box[0] <= 256 && box.box[1] <= 256 &&
              box.box[0] * (unsigned)box.size == (unsigned)box.swizzle && (uintptr_t)box.base % 16 == 0,
          "%s: a map that TMA takes", what);
    memcpy(to, &box, sizeof box);
}

/* Maps, of so many, and pointers behind them, whose place it returns. */
static unsigned char *put_needs(const place *at, const epi_kernel_text *t, int maps, unsigned char *params,
                                const char *what) {
    unsigned char *to = params + (size_t)(maps ? maps : 1) * 128;
    for (int i = 0; i < t->map_count; i++)
        put_map(at, &t->maps[i], params + 128 * i, what);
    for (int i = 0; i < t->pointer_count; i++) {
        void *p = address(at, t->pointers[i]);
        memcpy(to + 8 * i, &p, 8);
    }
    return to;
}

/* The memory that a kernel may touch. */
static void add_ranges(const place *at, bool hopper, emu_host *host) {
    for (int i = 0; i < at->p->count; i++) {
        const tensor *x = &at->p->t[i];
        bool over = false; /* in an input's place */
        for (int j = 0; j < at->p->inputs && i >= at->p->inputs; j++)
            over |= at->p->t[j].data == x->data;
        host->ranges[host->range_count++] =
            (emu_range){(const char *)x->data, (size_t)x->span * epi_dtype_size(x->shape.type),
                        hopper && i >= at->p->inputs && !over};
    }
    host->ranges[host->range_count++] = (emu_range){(const char *)at->workspace, (size_t)at->k->workspace, 0};
}

/* One launch, with the parameters that epi_cuda_run would give it. */
static void run_launch(const place *at, const epi_launch *s, const text *t, bool late, const char *what) {
    _Alignas(64) unsigned char params[EPI_MAX_MAPS * 128 + EPI_MAX_POINTERS * 8 + 64] = {0};
    int pointers = s->text.pointer_count;
    unsigned char *to = put_needs(at, &s->text, s->text.map_count, params, what);
    if (s->copies && !memcmp(to, to + 8 * (pointers - 1), 8))
        return;
    bool attention = s->kind == EPI_KIND_ATTENTION;
    bool hopper = attention || (s->kind == EPI_KIND_GEMM && s->text.config.mainloop == EPI_GEMM_SM90);
    const epi_open *open = at->k->spec.open;
    bool in_place = s->updates && !memcmp(to, to + 8 * (pointers - 1), 8);
    int beside = hopper && s->text.config.few ? EPI_GROUPS_KNOWN : 0;
    if (s->kind == EPI_KIND_GEMM && s->text.config.few && late)
        beside |= EPI_WEIGHTS_THERE;
    epi_numbers numbers = epi_launch_numbers(s, beside, false, in_place);
    numbers.counter = hopper ? (int64_t)(uintptr_t)at->workspace + numbers.counter : 0;
    to += 8 * (pointers ? pointers : 1);
    memcpy(to, &numbers, sizeof numbers);
    if (open)
        memcpy(to + sizeof numbers, open->units, (size_t)open->count * sizeof *open->units);
    /* blocks that queue for tiles wait for each other, and others should meet, if they are not too many */
    bool together = hopper && (s->text.config.queue || s->how.grid <= MOST_AT_ONCE);
    emu_host host = {.seed = late, .fill = late ? HUGE_FILL : POISON, .late = late, .at_once = together};
    add_ranges(at, hopper, &host);
    int ended = t->run(&host, params, (int)(in_place ? s->pass.blocks : s->how.grid),
                       s->how.cluster ? (int)s->how.cluster : 1, (int)s->how.block, (int)s->how.shared);
    check(ended, "%s, %s: threads wait for each other", what, t->name);
    check(!host.wrong, "%s, %s: %ld times %s", what, t->name, host.wrong, host.first);
}

#endif

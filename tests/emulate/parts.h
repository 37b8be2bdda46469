/* parts.h: a whole program on the emulator, part by part as a run starts them. */
#ifndef EPI_TESTS_EMULATE_PARTS_H
#define EPI_TESTS_EMULATE_PARTS_H

#include "emulate/launch.h"
#include "run/run.h"

enum { MOST_PARTS = 32 };

typedef struct in_parts {
    epi_kernel *k;
    const char *name;
    int texts[MOST_PARTS][MOST_LAUNCHES];
    int joints[MOST_PARTS];
} in_parts;

/* The texts of all launches. */
static inline void add_parts(in_parts *w) {
    for (int q = 0; q < w->k->part_count; q++) {
        const epi_part_kernel *part = &w->k->parts[q];
        for (int n = 0; n < part->full.cuda->count; n++)
            if (!part->full.cuda->launches[n].joined)
                w->texts[q][n] = add_text(&part->full.cuda->launches[n].text);
        if (part->joint)
            w->joints[q] = add_text(&(part->joint->like ? part->joint->like : part->joint)->launch.text);
    }
}

/* Where a value lies: between the parts, or behind all of those, where it is prepared. */
static inline int64_t value_offset(const epi_cut *cut, int value) {
    const epi_cut_value *v = &cut->values[value];
    return v->offset + (v->prepared ? epi_round_up(cut->bytes, 256) : 0);
}

static inline size_t value_bytes(const epi_cut *cut) {
    return (size_t)(epi_round_up(cut->bytes, 256) + cut->prepared_bytes);
}

/* The tensors of a part: the program's, slices of them, or values between the parts. */
static void part_problem(const in_parts *w, int q, const problem *p, unsigned char *values, problem *out) {
    const epi_part_kernel *k = &w->k->parts[q];
    *out = (problem){.count = k->part->graph.tensor_count, .inputs = k->part->graph.input_count};
    for (int t = 0; t < out->count; t++) {
        int of = k->to ? k->to[t] : t;
        epi_part_tensor at = k->part->tensors[of];
        epi_ref own = {.axes = k->part->graph.tensors[of].axes};
        const epi_slice *slice = &k->part->slices[of];
        int64_t begin = epi_ref_lay_out(&own, slice, NULL, w->k->spec.sizes);
        if (at.tensor >= 0)
            out->t[t] = p->t[at.tensor];
        else
            out->t[t] = (tensor){
                .shape.type = k->part->types[of],
                .span = epi_axes_size(slice->memory.count ? &slice->memory : &own.axes, w->k->spec.sizes),
                .data = values + value_offset(&w->k->cut, at.value)};
        out->t[t].data += begin * (int64_t)epi_dtype_size(k->part->types[of]);
        out->t[t].span -= begin;
    }
}

/* What a part stores between the parts is not what another value left there. */
static void poison_values(const in_parts *w, int q, const problem *part) {
    const epi_part_kernel *k = &w->k->parts[q];
    for (int t = part->inputs; t < part->count; t++)
        if (k->part->tensors[k->to ? k->to[t] : t].tensor < 0)
            memset(part->t[t].data, POISON, (size_t)part->t[t].span * epi_dtype_size(part->t[t].shape.type));
}

/* The launches of a part that come before its product, or behind it; all where that is not launched with others. */
static void run_around(const in_parts *w, int q, const place *at, bool behind) {
    const epi_launch *product = epi_cuda_joined(at->k);
    for (int n = 0; n < at->k->count; n++) {
        const epi_launch *l = &at->k->launches[n];
        if (l != product && (!product || (l > product) == behind) && !l->empty && texts[w->texts[q][n]].run)
            run_launch(at, l, &texts[w->texts[q][n]], q % 2, w->name);
    }
}

/* Products that are launched as one, by one cluster, or by two. */
static void run_product_of(const in_parts *w, int leader, const place *places, bool late) {
    _Alignas(64) unsigned char params[EPI_JOINT_BYTES] = {0};
    const epi_joint *j = w->k->parts[leader].joint;
    const epi_launch *l = &j->launch;
    const epi_open *open = w->k->spec.open;
    int maps = l->text.map_count, pointers = l->text.pointer_count;
    size_t each = (size_t)epi_round_up(128 * maps + 8 * (pointers + 4 + (open ? open->count : 0)), 64);
    emu_host host = {.seed = late, .fill = late ? HUGE_FILL : POISON, .late = late, .at_once = true};
    int64_t numbers[4 + EPI_MAX_OPEN] = {0};
    for (int i = 0; open && i < open->count; i++)
        numbers[4 + i] = open->units[i];
    for (int i = 0; i < j->count; i++) {
        const epi_launch *own = epi_cuda_joined(places[i].k);
        unsigned char *to = put_needs(&places[i], &own->text, maps, params + (size_t)i * each, w->name);
        numbers[0] = own->numbers.rows;
        numbers[1] = own->numbers.order;
        memcpy(to + 8 * pointers, numbers, sizeof numbers);
        add_ranges(&places[i], true, &host);
    }
    _Alignas(
        128) unsigned char counter[128]; /* clusters may queue for tiles, whatever the configuration says */
    memset(counter, POISON, sizeof counter);
    host.ranges[host.range_count++] = (emu_range){(const char *)counter, sizeof counter, 0};
    numbers[0] = numbers[1] = 0;
    numbers[2] = late;
    numbers[3] = (int64_t)(uintptr_t)counter;
    memcpy(params + (size_t)j->count * each, numbers, sizeof numbers);
    int clusters = (int)(l->how.grid / l->how.cluster), most = late ? 2 : 1;
    const text *t = &texts[w->joints[leader]];
    if (!t->run)
        return;
    int ended = t->run(&host, params, (int)l->how.cluster * (clusters < most ? clusters : most),
                       (int)l->how.cluster, (int)l->how.block, (int)l->how.shared);
    check(ended, "%s: threads wait for each other", w->name);
    check(!host.wrong, "%s: %ld times %s", w->name, host.wrong, host.first);
}

static void run_parts(const in_parts *w, const problem *p) {
    unsigned char *workspace =
        aligned_alloc(256, (size_t)epi_round_up(w->k->values + (int64_t)value_bytes(&w->k->cut) + 256, 256));
    unsigned char *values = workspace + w->k->values;
    static problem parts[EPI_MOST_JOINED];
    place at[EPI_MOST_JOINED];
    if (check(workspace != NULL, "memory"))
        memset(values, POISON, value_bytes(&w->k->cut));
    for (int q = 0, count = 1; workspace && q < w->k->part_count; q += count) {
        const epi_joint *j = w->k->parts[q].joint;
        count = j ? j->count : 1;
        memset(workspace, q % 2 ? HUGE_FILL : POISON, (size_t)w->k->values);
        for (int i = 0; i < count; i++) {
            if (w->k->parts[q + i].own >= w->k->values) /* it lies among the values */
                memset(workspace + w->k->parts[q + i].own, HUGE_FILL,
                       (size_t)w->k->parts[q + i].full.cuda->workspace);
            part_problem(w, q + i, p, values, &parts[i]);
            poison_values(w, q + i, &parts[i]);
            at[i] = (place){w->k->parts[q + i].full.cuda, &parts[i], workspace + w->k->parts[q + i].own};
            run_around(w, q + i, &at[i], false);
        }
        if (j)
            run_product_of(w, q, at, q % 2);
        for (int i = 0; i < count && j; i++)
            run_around(w, q + i, &at[i], true);
    }
    free(workspace);
}

#endif

/* random_value.h: values of a random program, and how one more is written.
 *
 * A program grows value by value from inputs that are declared when they are first wanted. Each value knows
 * its axes and about how large its elements are, and is scaled down where they would leave a sane range.
 * Everything follows from the seed. */
#ifndef EPI_TESTS_RANDOM_VALUE_H
#define EPI_TESTS_RANDOM_VALUE_H

#include "law_sizes.h"

enum {
    AX_T = 1,
    AX_R = 2,
    AX_D = 4,
    AX_F = 8,
    AX_C = 16,
    AX_H = 32,
    AX_COUNT = 6,
    GRAPH_VALUES = 96,
    GRAPH_TEXT = 16384
};

typedef struct graph_value {
    char name[12];
    unsigned axes;
    bool half;   /* D is D/2 */
    double size; /* about how large its elements are at most */
} graph_value;

typedef struct random_graph {
    uint64_t s;
    char body[GRAPH_TEXT / 2], inputs[2048], outputs[1024], text[GRAPH_TEXT];
    graph_value v[GRAPH_VALUES];
    int count, fresh, input_count, output_count;
    bool calls;
    unsigned declared; /* axes that inputs have */
    law_sizes sizes;
} random_graph;

static const char graph_axes[] = "TRDFCH";

static bool one_in(random_graph *m, int n) {
    return random_below(&m->s, n) == 0;
}

static void join_axes(random_graph *m, unsigned axes, bool half, bool shuffled, char *out, size_t size) {
    int order[AX_COUNT];
    for (int i = 0; i < AX_COUNT; i++)
        order[i] = i;
    for (int i = AX_COUNT - 1; i > 0 && shuffled; i--) {
        int j = random_below(&m->s, i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    out[0] = 0;
    for (int i = 0; i < AX_COUNT; i++) {
        int a = order[i];
        if (!(axes >> a & 1))
            continue;
        append(out, size, "%s%c%s", out[0] ? "," : "[", graph_axes[a], (1 << a) == AX_D && half ? "/2" : "");
    }
    if (out[0])
        append(out, size, "]");
}

static graph_value *new_value(random_graph *m, unsigned axes, bool half, double size, const char *prefix) {
    if (m->count == GRAPH_VALUES)
        m->count--; /* the last one is forgotten: programs are not that long */
    graph_value *v = &m->v[m->count++];
    *v = (graph_value){.axes = axes, .half = half, .size = size};
    snprintf(v->name, sizeof v->name, "%s%d", prefix, m->fresh++);
    return v;
}

static const char *some_type(random_graph *m, int one_of) {
    static const char *const types[] = {"f32", "f32", "bf16", "f16"};
    return one_in(m, one_of) ? types[random_below(&m->s, 4)] : NULL;
}

static graph_value new_input(random_graph *m, unsigned axes) {
    char list[64];
    join_axes(m, axes, false, false, list, sizeof list);
    graph_value *v = new_value(m, axes, false, 1.5, "x");
    m->declared |= axes;
    static const char *const bytes[] = {"e4m3", "e5m2", "i8", "u8"};
    const char *type = one_in(m, 16)   ? bytes[random_below(&m->s, 4)]
                       : one_in(m, 16) ? "param"
                                       : some_type(m, 8);
    ADD(m->inputs, "%s%s%s%s%s", m->input_count++ ? ", " : "", v->name, type ? ": " : "", type ? type : "",
        list);
    return *v;
}

/* A new index: integers, one for each element of these axes. */
static graph_value new_index(random_graph *m, unsigned axes) {
    char list[64];
    graph_value v = {.axes = axes, .size = 1};
    join_axes(m, axes, false, false, list, sizeof list);
    snprintf(v.name, sizeof v.name, "i%d", m->fresh++);
    ADD(m->inputs, "%s%s: i32%s", m->input_count++ ? ", " : "", v.name, list);
    return v;
}

/* Assigns an expression to a new value. */
static graph_value let(random_graph *m, unsigned axes, bool half, double size, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static graph_value let(random_graph *m, unsigned axes, bool half, double size, const char *fmt, ...) {
    const char *type = some_type(m, 7);
    graph_value *v = new_value(m, axes, half, size, "v");
    char value[1000];
    va_list args;
    va_start(args, fmt);
    vsnprintf(value, sizeof value, fmt, args);
    va_end(args);
    ADD(m->body, "    %s%s%s = %s\n", v->name, type ? ": " : "", type ? type : "", value);
    return *v;
}

/* The same, brought back to a sane range. */
static graph_value tamed(random_graph *m, graph_value v) {
    if (v.size <= 8)
        return v;
    if (one_in(m, 3))
        return let(m, v.axes, v.half, 1, "tanh(%s)", v.name);
    double scale = v.size > 64 ? 0.03125 : 0.125;
    return tamed(m, let(m, v.axes, v.half, v.size * scale, "%s*%g", v.name, scale));
}

/* A value that there is, of which the axes have all of `has`; a new input where there is none. */
static graph_value some(random_graph *m, unsigned has) {
    for (int i = 0; i < 12; i++) {
        int back = random_below(&m->s, one_in(m, 2) ? m->count : m->count < 5 ? m->count : 5);
        const graph_value *v = &m->v[m->count - 1 - back];
        if ((v->axes & has) == has && !v->half)
            return *v;
    }
    return new_input(m, has ? has : AX_T | AX_D);
}

/* A value of exactly these axes. */
static graph_value exactly(random_graph *m, unsigned axes) {
    for (int i = 0; i < 8 && !one_in(m, 4); i++) {
        const graph_value *v = &m->v[random_below(&m->s, m->count)];
        if (v->axes == axes && !v->half)
            return *v;
    }
    return new_input(m, axes);
}

/* An input of exactly these axes, which then come in their order. */
static graph_value input_of(random_graph *m, unsigned axes) {
    for (int i = 0; i < m->count; i++)
        if (m->v[i].axes == axes && m->v[i].name[0] == 'x' && !one_in(m, 3))
            return m->v[i];
    return new_input(m, axes);
}

static int axes_in(unsigned axes) {
    return __builtin_popcount(axes);
}

static unsigned one_axis(random_graph *m, unsigned of) {
    int n = random_below(&m->s, axes_in(of));
    for (int a = 0; a < AX_COUNT; a++)
        if (of >> a & 1 && n-- == 0)
            return 1u << a;
    return 0;
}

static char letter(unsigned axis) {
    return graph_axes[__builtin_ctz(axis)];
}

static double length_of(const random_graph *m, unsigned axis) {
    char name[2] = {letter(axis), 0};
    return (double)law_size(&m->sizes, name);
}

#endif

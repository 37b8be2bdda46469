/* cut_order.c: the order of the parts of a cut, by the memory of values between them.
 *
 * By default parts come in the order of the program's values, because neighbours that do not need each other
 * run at the same time. A part that frees memory moves ahead if that lowers the peak of memory: gradients of
 * weights go before what needs room next. Products that no part waits for become neighbours if they have the
 * same depth and the peak does not grow.
 *
 * Rows count at their nominal number, so that the order is the same for every batch. */
#include <string.h>

#include "pass/analyse/cost.h"
#include "pass/place/cut.h"

typedef struct ordering {
    const epi_cut *cut;
    int64_t *bytes;  /* by value, at nominal sizes */
    int *users;      /* by value: parts that load it and have not been taken */
    int *maker;      /* by tensor of the program: the part that stores it, or -1 */
    int *loads;      /* values that parts load, each once; */
    int *begin;      /* by part: where its own begin there, up to where the next one's do */
    int64_t *stores; /* by part: bytes that it stores for others */
    bool *taken;     /* by part */
    double *depth;   /* by part: that of its one product, or 0 */
    int64_t alive, most;
} ordering;

/* Of what the part loads, those bytes that nobody else has still to load. */
static int64_t freed_by(const ordering *o, int part) {
    int64_t bytes = 0;
    for (int i = o->begin[part]; i < o->begin[part + 1]; i++)
        bytes += o->users[o->loads[i]] == 1 ? o->bytes[o->loads[i]] : 0;
    return bytes;
}

/* May the part store an output over this input? Then it stays behind all that read the input. */
static bool may_replace(const ordering *o, const epi_part *p, int in) {
    bool may = false;
    for (int t = p->graph.input_count; t < p->graph.tensor_count; t++)
        may |= p->tensors[in].tensor >= 0 && p->tensors[t].tensor >= 0 && p->types[t] == p->types[in] &&
               epi_axes_same_set(&p->graph.tensors[t].axes, &p->graph.tensors[in].axes);
    return may && o->maker[p->tensors[in].tensor] < 0;
}

static bool reads(const epi_part *p, int tensor) {
    for (int t = 0; t < p->graph.input_count; t++)
        if (p->tensors[t].tensor == tensor)
            return true;
    return false;
}

/* Is all there that the part loads, and was all read that it may replace? */
static bool is_ready(const ordering *o, int part) {
    const epi_part *p = &o->cut->parts[part];
    for (int t = 0; t < p->graph.input_count; t++) {
        epi_part_tensor at = p->tensors[t];
        int maker = at.tensor >= 0 ? o->maker[at.tensor] : o->cut->values[at.value].part;
        if (maker >= 0 && !o->taken[maker])
            return false;
        bool replaces = may_replace(o, p, t);
        for (int r = 0; r < part && replaces; r++)
            if (!o->taken[r] && reads(&o->cut->parts[r], at.tensor))
                return false;
    }
    return true;
}

static void take(ordering *o, int part) {
    o->alive += o->stores[part];
    o->most = epi_max64(o->most, o->alive);
    o->alive -= freed_by(o, part);
    for (int i = o->begin[part]; i < o->begin[part + 1]; i++)
        o->users[o->loads[i]]--;
    o->taken[part] = true;
}

static void begin(ordering *o) {
    memset(o->taken, 0, (size_t)o->cut->part_count);
    memset(o->users, 0, ((size_t)o->cut->value_count + 1) * sizeof *o->users);
    for (int i = 0; i < o->begin[o->cut->part_count]; i++)
        o->users[o->loads[i]]++;
    o->alive = o->most = 0;
}

/* Makes an order, and returns the most that is alive at once in it: parts come as they are, but before one
 * with which more than `limit` would be alive the first that frees what it takes goes ahead. Those from
 * `backward` on do not go before that one. */
static int64_t make(ordering *o, int64_t limit, int backward, int *order) {
    int next = 0, count = o->cut->part_count;
    begin(o);
    for (int i = 0; i < count; i++) {
        while (o->taken[next])
            next++;
        int best = next, end = next < backward ? backward : count;
        bool ahead = o->alive + o->stores[next] > limit;
        for (int q = next + 1; ahead && q < end; q++)
            if (!o->taken[q] && o->begin[q] < o->begin[q + 1] && o->stores[q] <= freed_by(o, q) &&
                is_ready(o, q)) {
                best = q;
                break;
            }
        take(o, best);
        order[i] = best;
    }
    return o->most;
}

/* Is all there, up to the last of these places, when it is wanted? Then `most` is what is alive at once between them. */
static bool follow(ordering *o, const int *order, int first, int last) {
    bool ready = true;
    begin(o);
    for (int i = 0; i <= last && ready; i++) {
        ready = is_ready(o, order[i]);
        o->most = i == first ? 0 : o->most;
        take(o, order[i]);
    }
    return ready;
}

/* Moves a part to another place. */
static void move(int *order, int from, int to) {
    int part = order[from];
    if (from < to)
        memmove(order + from, order + from + 1, (size_t)(to - from) * sizeof *order);
    else
        memmove(order + to + 1, order + to, (size_t)(from - to) * sizeof *order);
    order[to] = part;
}

/* Can two parts be launched as one, by what their depths tell? */
static bool is_like(const ordering *o, int a, int b) {
    return o->depth[a] > 0 && o->depth[a] == o->depth[b];
}

/* May a part move to others of its depth? Not if others wait for it, or for one that it stands beside and can be launched with. */
static bool is_loose(const ordering *o, const int *order, int at) {
    bool loose = o->depth[order[at]] > 0 && o->stores[order[at]] == 0;
    for (int i = at > 0 ? at - 1 : 0; i <= at + 1 && i < o->cut->part_count && loose; i++)
        loose = i == at || o->stores[order[i]] == 0 || !is_like(o, order[i], order[at]);
    return loose;
}

/* Brings products that nobody waits for next to each other, the last first: both go to the last place between them where that
 * can be, and where no more is alive there. */
static void gather(ordering *o, int backward, int *order) {
    enum { FAR = 16 }; /* gradients of one layer's weights lie nearer */
    for (int i = o->cut->part_count - 1; i > 0; i--) {
        int j = i - 1, with = order[i];
        while (j > 0 && j > i - FAR && !(is_like(o, order[j], with) && is_loose(o, order, j)))
            j--;
        bool may = j < i - 1 && is_like(o, order[j], with) && is_loose(o, order, j) &&
                   is_loose(o, order, i) && (order[j] < backward) == (with < backward) &&
                   follow(o, order, j, i);
        int64_t limit = o->most;
        for (int at = i - 1; may && at >= j; at--) {
            move(order, j, at);
            move(order, i, at + 1);
            if (follow(o, order, j, i) && o->most <= limit)
                break;
            move(order, at + 1, i);
            move(order, at, j);
        }
    }
}

static double depth_of(const ordering *o, int part, const int64_t *sizes) {
    const epi_graph *g = &o->cut->parts[part].graph;
    double depth = 0;
    int products = 0;
    for (int n = 0; n < g->node_count; n++)
        if (epi_op_is_product(g->nodes[n].op)) {
            products++;
            depth = epi_cost_flops(g, &g->nodes[n], sizes) /
                    (double)epi_max64(1, epi_axes_size(&g->nodes[n].axes, sizes));
        }
    return products == 1 ? depth : 0;
}

/* What parts load and store between them. A part may load several slices of a value. */
static void list_values(ordering *o) {
    const epi_cut *cut = o->cut;
    int count = 0;
    for (int q = 0; q < cut->part_count; q++) {
        const epi_part *p = &cut->parts[q];
        o->begin[q] = count;
        for (int t = 0; t < p->graph.tensor_count; t++) {
            int value = p->tensors[t].value, i = o->begin[q];
            if (p->tensors[t].tensor >= 0) {
                if (t >= p->graph.input_count)
                    o->maker[p->tensors[t].tensor] = q;
                continue;
            }
            if (t >= p->graph.input_count) {
                o->stores[q] += o->bytes[value];
                continue;
            }
            while (i < count && o->loads[i] != value)
                i++;
            o->loads[i] = value;
            count = i == count ? count + 1 : count;
        }
    }
    o->begin[cut->part_count] = count;
}

/* Brings the parts into the order. */
static bool bring(epi_arena *arena, epi_cut *cut, const int *order) {
    epi_part *parts = epi_arena_alloc(arena, ((size_t)cut->part_count + 1) * sizeof *parts);
    if (!parts)
        return false;
    for (int i = 0; i < cut->part_count; i++)
        parts[i] = cut->parts[order[i]];
    cut->parts = parts;
    epi_cut_lives(cut);
    return true;
}

bool epi_cut_order(epi_arena *arena, const epi_spec *spec, epi_cut *cut, int backward) {
    size_t parts = (size_t)cut->part_count + 1, values = (size_t)cut->value_count + 1, inputs = 1;
    ordering o = {.cut = cut};
    int64_t sizes[EPI_MAX_DIMS];
    for (int q = 0; q < cut->part_count; q++)
        inputs += (size_t)cut->parts[q].graph.input_count;
    o.bytes = epi_arena_alloc(arena, values * sizeof *o.bytes);
    o.users = epi_arena_alloc(arena, values * sizeof *o.users);
    o.maker = epi_arena_alloc(arena, ((size_t)spec->graph->tensor_count + 1) * sizeof *o.maker);
    o.loads = epi_arena_alloc(arena, inputs * sizeof *o.loads);
    o.begin = epi_arena_alloc(arena, (parts + 1) * sizeof *o.begin);
    o.stores = epi_arena_alloc(arena, parts * sizeof *o.stores);
    o.taken = epi_arena_alloc(arena, parts);
    o.depth = epi_arena_alloc(arena, parts * sizeof *o.depth);
    int *eager = epi_arena_alloc(arena, parts * sizeof *eager),
        *order = epi_arena_alloc(arena, parts * sizeof *order);
    if (arena->failed)
        return false;
    epi_nominal_sizes(spec, sizes);
    for (int i = 0; i < cut->value_count; i++)
        o.bytes[i] = epi_max64(0, epi_axes_size(&spec->graph->nodes[cut->values[i].node].axes, sizes)) *
                     (int64_t)epi_dtype_size(cut->values[i].type);
    for (int t = 0; t < spec->graph->tensor_count; t++)
        o.maker[t] = -1;
    list_values(&o);
    for (int q = 0; q < cut->part_count; q++)
        o.depth[q] = depth_of(&o, q, sizes);
    int64_t now = make(&o, INT64_MAX, backward, order), least = make(&o, -1, backward, eager);
    if (least < now && make(&o, least, backward, order) > least) /* no more go ahead than have to */
        memcpy(order, eager, parts * sizeof *order);
    else if (least >= now)
        (void)make(&o, INT64_MAX, backward, order);
    gather(&o, backward, order);
    return bring(arena, cut, order);
}

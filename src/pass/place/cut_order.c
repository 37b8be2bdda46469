/* cut_order.c: the order of the parts of a cut, by the memory of values between them.
 *
 * By default parts come in the order of the program's values, because neighbours that do not need each other
 * run at the same time. A part that frees memory moves ahead if that lowers the peak of memory: gradients of
 * weights go before what needs room next. Products that no part waits for become neighbours if they have the
 * same depth and the peak does not grow.
 *
 * A part that updates an input goes behind all others that read it, so that the update can be done in place,
 * wherever its formula stands in the text.
 *
 * Rows count at their nominal number, so that the order is the same for every batch. */
#include <limits.h>
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
    size_t tensors;  /* of the program */
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
    memset(o->maker, -1, o->tensors * sizeof *o->maker);
    for (int q = 0; q < cut->part_count; q++) {
        const epi_part *p = &cut->parts[q];
        o->begin[q] = count;
        o->stores[q] = 0;
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

/* ---- updates ---- */

/* May an output lie where this input of the part does, by its shape and its type? */
static bool is_alike(const epi_part *p, int t, int in) {
    const epi_tensor_decl *tensors = p->graph.tensors;
    return p->tensors[t].tensor >= 0 && p->types[t] == p->types[in] &&
           epi_axes_equal(&tensors[t].axes, &tensors[in].axes);
}

/* The first output that the part makes of this input element by element, or by an update of it; or INT_MAX. */
static int updated_from(epi_arena *arena, const epi_part *p, int in) {
    const epi_graph *g = &p->graph;
    const epi_axes *axes = &g->tensors[in].axes;
    int first = INT_MAX, alike = 0;
    for (int t = g->input_count; t < g->tensor_count; t++)
        alike += is_alike(p, t, in);
    if (!alike || !axes->count || p->tensors[in].tensor < 0 || p->slices[in].memory.count)
        return first;
    bool *of = epi_arena_alloc(arena, (size_t)g->node_count + 1);
    for (int i = g->tensors[in].node; i < g->node_count && of; i++) {
        const epi_node *n = &g->nodes[i];
        of[i] = i == g->tensors[in].node ||
                (epi_axes_same_set(&n->axes, axes) &&
                 (n->op == EPI_OP_UPDATE ? of[n->arg[0]] : epi_op_is_map(n->op) && epi_node_takes(n, of)));
    }
    for (int t = g->input_count; t < g->tensor_count && of; t++)
        if (of[g->tensors[t].node] && is_alike(p, t, in) && p->tensors[t].tensor < first)
            first = p->tensors[t].tensor;
    return first;
}

/* The same of a tensor of the program. */
static int updated_tensor(epi_arena *arena, const epi_part *p, int tensor) {
    int first = INT_MAX;
    for (int t = 0; t < p->graph.input_count && first == INT_MAX; t++)
        first = p->tensors[t].tensor == tensor ? updated_from(arena, p, t) : first;
    return first;
}

static int maker_of(const ordering *o, epi_part_tensor at) {
    return at.tensor >= 0 ? o->maker[at.tensor] : o->cut->values[at.value].part;
}

/* Is a part made of what another stores, perhaps by way of others? */
static bool is_made_of(const ordering *o, int part, int other) {
    memset(o->taken, 0, (size_t)o->cut->part_count);
    o->taken[other] = true;
    for (int q = other + 1; q <= part; q++)
        for (int t = 0; t < o->cut->parts[q].graph.input_count; t++) {
            int maker = maker_of(o, o->cut->parts[q].tensors[t]);
            o->taken[q] |= maker >= 0 && o->taken[maker];
        }
    return o->taken[part];
}

/* A part that updates an input, and one that reads it. */
typedef struct behind {
    int part, reader;
} behind;

/* What updates an input stands behind all that read it, unless they need what it makes. Of two that update it
 * the one whose output is declared first. Returns how many there are; `out` may be NULL. */
static int find_behind(epi_arena *arena, const ordering *o, int backward, behind *out) {
    const epi_cut *cut = o->cut;
    int count = 0;
    for (int q = 0; q < cut->part_count; q++)
        for (int t = 0; t < cut->parts[q].graph.input_count; t++) {
            int tensor = cut->parts[q].tensors[t].tensor, own = updated_from(arena, &cut->parts[q], t);
            for (int r = 0; r < cut->part_count && own < INT_MAX; r++) {
                bool behind_it = r != q && (r < backward) == (q < backward) &&
                                 reads(&cut->parts[r], tensor) &&
                                 updated_tensor(arena, &cut->parts[r], tensor) > own && !is_made_of(o, r, q);
                if (behind_it && out)
                    out[count] = (behind){q, r};
                count += behind_it;
            }
        }
    return count;
}

/* Is all there that the part loads, and have those gone that it stays behind? */
static bool may_go(const ordering *o, int part, const behind *all, int count) {
    const epi_part *p = &o->cut->parts[part];
    bool may = true;
    for (int t = 0; t < p->graph.input_count && may; t++) {
        int maker = maker_of(o, p->tensors[t]);
        may = maker < 0 || o->taken[maker];
    }
    for (int i = 0; i < count && may; i++)
        may = all[i].part != part || o->taken[all[i].reader];
    return may;
}

/* An order in which updates come last, and otherwise the parts as they are. */
static void put_updates_last(ordering *o, const behind *all, int count, int backward, int *order) {
    int first = 0, parts = o->cut->part_count;
    memset(o->taken, 0, (size_t)parts);
    for (int i = 0; i < parts; i++) {
        while (o->taken[first])
            first++;
        int next = first, end = i < backward && backward < parts ? backward : parts;
        while (next < end && (o->taken[next] || !may_go(o, next, all, count)))
            next++;
        order[i] = next < end ? next : first; /* two that wait for each other */
        o->taken[order[i]] = true;
    }
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

static bool move_updates(epi_arena *arena, const epi_graph *g, ordering *o, epi_cut *cut, int backward,
                         int *order) {
    bool derived = false; /* nobody keeps a gradient in the place of what it is made of */
    for (int t = 0; t < g->input_count; t++)
        derived |= g->tensors[t].cotangent;
    int count = derived ? 0 : find_behind(arena, o, backward, NULL);
    behind *all = count ? epi_arena_alloc(arena, (size_t)count * sizeof *all) : NULL;
    if (arena->failed || !count)
        return !arena->failed;
    (void)find_behind(arena, o, backward, all);
    put_updates_last(o, all, count, backward, order);
    bool brought = bring(arena, cut, order);
    list_values(o);
    return brought;
}

bool epi_cut_order(epi_arena *arena, const epi_spec *spec, epi_cut *cut, int backward) {
    size_t parts = (size_t)cut->part_count + 1, values = (size_t)cut->value_count + 1, inputs = 1;
    ordering o = {.cut = cut, .tensors = (size_t)spec->graph->tensor_count};
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
    list_values(&o);
    if (!move_updates(arena, spec->graph, &o, cut, backward, order))
        return false;
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

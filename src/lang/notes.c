/* notes.c: warnings of `check` about programs that may not mean what was intended.
 *
 * A call binds axes by position. If no text shows the order of an argument's axes, as for a*b with a[T] and
 * b[F], the call is lowered again with another order. If that fits too, and gives other values, `check`
 * warns. */
#include <string.h>

#include "lang/lower.h"
#include "lang/words.h"

typedef struct epi_noted_scatter {
    int node;
    epi_place place;
    epi_axes batch; /* of what is added up and of the index, summed over */
    struct epi_noted_scatter *next;
} epi_noted_scatter;

static void say(epi_lowering *lo, epi_place place) {
    epi_text_add(lo->notes->out, "%s:%d:%d: ", lo->text->file, place.line, place.column);
}

static bool calls_any(const epi_ast *e) {
    for (; e; e = e->arg_count ? e->args[0] : NULL) { /* chains are long to the left */
        bool scatter = e->kind == EPI_AST_CALL && !strcmp(e->name, epi_ops[EPI_OP_SCATTER].text) && !e->arrow;
        if (e->kind == EPI_AST_CALL && (scatter || e->callee || !epi_is_word(e->name)))
            return true;
        for (int i = 1; i < e->arg_count; i++)
            if (calls_any(e->args[i]))
                return true;
    }
    return false;
}

bool epi_notes_may(const epi_ast_program *program) {
    bool may = false;
    for (int i = 0; i < program->body_count && !may; i++)
        may = calls_any(program->body[i].value);
    return may;
}

/* ---- orders ---- */

/* The axes with one of them moved to an earlier place, over others beside which no text shows it; a count of 0: it is
 * shown beside one of these. */
static epi_axes moved(const epi_node *n, int from, int to) {
    epi_axes out = n->axes;
    for (int i = from; i > to; i--) {
        if (!(n->loose >> (EPI_MAX_AXES * (i - 1) + from) & 1))
            return (epi_axes){0};
        out.at[i] = out.at[i - 1];
    }
    out.at[to] = n->axes.at[from];
    return out;
}

/* A result that is the same, but has axes in another order, has them in an order that no text shows either. */
static void mark_loose(epi_graph *g, int node, const epi_axes *other) {
    epi_node *n = &g->nodes[node];
    for (int q = 1; q < n->axes.count; q++)
        for (int p = 0; p < q; p++)
            if (epi_axes_find(other, n->axes.at[p]) > epi_axes_find(other, n->axes.at[q]))
                n->loose |= (uint64_t)1 << (EPI_MAX_AXES * p + q);
}

/* Does the call give other values where an argument has its axes in this order? */
static bool means_more(epi_lowering *lo, epi_frame *f, const epi_ast *e, const epi_ast_program *p,
                       bool bundled, const int *given, int argument, const epi_axes *order,
                       const epi_values *out) {
    epi_graph *g = lo->g;
    epi_lowering before = *lo;
    int64_t fixed[EPI_MAX_DIMS];
    epi_place place = g->place;
    int *other = epi_lower_values(lo, e->arg_count).node;
    if (!other)
        return false;
    memcpy(fixed, g->fixed, sizeof fixed);
    memcpy(other, given, (size_t)e->arg_count * sizeof *other);
    other[argument] = epi_graph_ordered(g, given[argument], order);
    lo->notes = NULL;
    epi_values v = epi_lower_inline(lo, f, e, p, bundled, other);
    bool differs = false;
    for (int i = 0; i < v.count && epi_lower_ok(lo); i++)
        differs |= epi_graph_value(g, v.node[i]) != epi_graph_value(g, out->node[i]);
    for (int i = 0; i < v.count && epi_lower_ok(lo) && !differs; i++)
        mark_loose(g, out->node[i], &g->nodes[v.node[i]].axes);
    g->error = (epi_error){.status = EPI_OK};
    g->place = place;
    memcpy(g->fixed, fixed, sizeof fixed);
    before.spare = lo->spare;
    *lo = before;
    return differs;
}

static void say_order(epi_lowering *lo, const epi_ast *e, const epi_ast_program *p, int argument,
                      const epi_axes *have, const epi_axes *other) {
    const epi_ast *a = e->args[argument];
    epi_label order = epi_axes_label(lo->g, have);
    say(lo, a->place);
    epi_text_add(lo->notes->out,
                 "%s binds the axes of this value by position, in the order in which they appear, %s; the "
                 "order %s would mean something else: declare it, %s%s = …\n",
                 p->name, order.text, epi_axes_label(lo->g, other).text,
                 a->kind == EPI_AST_NAME ? a->name : "v", order.text);
}

void epi_note_orders(epi_lowering *lo, epi_frame *f, const epi_ast *e, const epi_ast_program *p, bool bundled,
                     const int *given, const epi_values *out) {
    for (int i = 0; i < e->arg_count && f->depth == 0 && epi_lower_ok(lo); i++) {
        bool said = false;
        for (int from = 1; from < lo->g->nodes[given[i]].axes.count && !said; from++)
            for (int to = 0; to < from && !said; to++) {
                epi_axes have = lo->g->nodes[given[i]].axes, other = moved(&lo->g->nodes[given[i]], from, to);
                said = other.count && means_more(lo, f, e, p, bundled, given, i, &other, out);
                if (said)
                    say_order(lo, e, p, i, &have, &other);
            }
    }
}

/* ---- batches ---- */

void epi_note_scatter(epi_lowering *lo, const epi_frame *f, const epi_ast *e, int node) {
    const epi_graph *g = lo->g;
    const epi_node *n = &g->nodes[epi_graph_value(g, node)];
    if (f->depth || n->op != EPI_OP_SCATTER)
        return;
    const epi_axes *d = &g->nodes[n->arg[0]].axes, *index = &g->nodes[n->arg[1]].axes;
    epi_axes alone = epi_axes_without(index, d), batch = epi_axes_without(index, &alone);
    batch = epi_axes_without(&batch, &n->over);
    epi_noted_scatter *s = index->count > 1 && batch.count ? epi_arena_alloc(g->arena, sizeof *s) : NULL;
    if (!s)
        return;
    *s = (epi_noted_scatter){(int)(n - g->nodes), e->place, batch, lo->notes->scatters};
    lo->notes->scatters = s;
}

/* The first of these axes along which maps repeat what comes of the scatter; a count of 0: none. */
static epi_axes repeated_along(const epi_graph *g, const epi_noted_scatter *s, bool *from) {
    memset(from, 0, (size_t)g->node_count * sizeof *from);
    from[s->node] = true;
    for (int i = s->node + 1; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        bool order = n->op == (epi_op)EPI_OP_ORDER, map = !order && epi_op_is_map(n->op);
        bool goes_on = order || map || epi_op_reduces(n->op) || epi_op_has_halves(n->op) ||
                       n->op == EPI_OP_SHIFT || n->op == EPI_OP_RENAME;
        from[i] = goes_on && epi_node_takes(n, from);
        for (int k = 0; k < s->batch.count && from[i] && map; k++)
            if (epi_axes_find(&n->axes, s->batch.at[k]) >= 0)
                return (epi_axes){1, {s->batch.at[k]}};
    }
    return (epi_axes){0};
}

void epi_note_batches(epi_lowering *lo) {
    const epi_graph *g = lo->g;
    bool *from = lo->notes->scatters ? epi_arena_alloc(g->arena, (size_t)g->node_count * sizeof *from) : NULL;
    for (const epi_noted_scatter *s = lo->notes->scatters; s && from; s = s->next) {
        epi_axes along = repeated_along(g, s, from);
        if (!along.count)
            continue;
        const epi_node *n = &g->nodes[s->node];
        epi_axes rest = epi_axes_without(&g->nodes[n->arg[1]].axes, &along);
        say(lo, s->place);
        epi_text_add(
            lo->notes->out,
            "this also sums over %s, and the sum is then repeated along it; to keep %s, write scatter(d, i, ",
            epi_axis_label(g, along.at[0]).text, epi_axis_label(g, along.at[0]).text);
        for (int i = 0; i < rest.count; i++)
            epi_text_add(lo->notes->out, "%s%s", i ? ", " : "", epi_axis_label(g, rest.at[i]).text);
        for (int i = 0; i < n->over.count; i++)
            epi_text_add(lo->notes->out, "%s%s", i ? ", " : " -> ", epi_axis_label(g, n->over.at[i]).text);
        epi_text_add(lo->notes->out, ")\n");
    }
}

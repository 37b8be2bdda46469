/* lower_repeat.c: repeat(f, L)(x, w): f for each element of the axis L in turn, or a number of times.
 *
 * The results of a call are the first arguments of the next one. Other arguments are sliced along L if they
 * have that axis. The calls are written out here: no later pass knows about repeat, and a slice of an input
 * is a view. */
#include <string.h>

#include "lang/lower.h"

/* How often, and along which axis; 0 after an error. */
static int64_t repeat_count(epi_lowering *lo, const epi_frame *f, const epi_ast *names, bool *stacked,
                            epi_axis *axis) {
    epi_ast_axis named;
    epi_graph *g = lo->g;
    const epi_ast *times = names->arg_count == 2 ? names->args[1] : NULL;
    *stacked = times && epi_ast_as_axis(times, &named);
    double number = times && times->kind == EPI_AST_NUMBER ? times->number : 0;
    epi_lower_at(lo, times ? times->place : names->place);
    if (!*stacked && !(number >= 1 && number <= 65536 && number == (double)(int64_t)number))
        epi_graph_fail(g,
                       "repeat needs a program, and an axis or a number: repeat(f, L)(…), repeat(f, 5)(…)");
    if (!*stacked || !epi_lower_ok(lo))
        return (int64_t)number;
    *axis = epi_frame_axis(lo, f, &named);
    int64_t size = epi_lower_ok(lo) && axis->dim < g->declared_count ? g->fixed[axis->dim] : 0;
    size = axis->shift < 0 ? size >> -axis->shift : size << axis->shift;
    if (!size)
        epi_graph_fail(g, "repeat needs the size of %s in the program: declare it with a number, as in %s=4",
                       named.name, named.name);
    return size;
}

/* Looks at what a repetition is of. */
static void check_repeat(epi_lowering *lo, const epi_ast *e, const epi_ast_program *p, const int *given,
                         const epi_axis *axis) {
    epi_lower_at(lo, e->callee->place);
    if (p->output_count > p->input_count)
        epi_graph_fail(lo->g,
                       "repeat: the results of a call are the first inputs of the next one, but %s gives %d "
                       "values and takes %d",
                       p->name, p->output_count, p->input_count);
    bool any = !axis;
    for (int i = 0; i < p->input_count && axis && epi_lower_ok(lo); i++) {
        bool has = epi_axes_find(&lo->g->nodes[given[i]].axes, *axis) >= 0;
        any |= has;
        if (has && i < p->output_count)
            epi_graph_fail(
                lo->g, "repeat: '%s' of %s goes from call to call, so its argument must not have the axis %s",
                p->inputs[i].name, p->name, epi_axis_label(lo->g, *axis).text);
    }
    if (!any)
        epi_graph_fail(
            lo->g, "repeat: no argument has the axis %s; for a fixed number of times write repeat(%s, 4)(…)",
            epi_axis_label(lo->g, *axis).text, p->name);
}

epi_values epi_lower_repeat(epi_lowering *lo, epi_frame *f, const epi_ast *e) {
    epi_values out = {0};
    epi_ast call = *e;
    epi_axis axis = {0};
    bool stacked, bundled;
    int64_t times = repeat_count(lo, f, e->callee, &stacked, &axis);
    const epi_ast_program *p = epi_lower_ok(lo) ? epi_lower_program(lo, f, e->callee, &bundled) : NULL;
    call.callee = NULL;
    const int *given = p ? epi_lower_arguments(lo, f, &call, p) : NULL;
    int *now = epi_lower_values(lo, e->arg_count).node;
    if (!given || !now)
        return out;
    check_repeat(lo, e, p, given, stacked ? &axis : NULL);
    for (int64_t l = 0; l < times && epi_lower_ok(lo); l++) {
        for (int i = 0; i < e->arg_count; i++) {
            bool slice = stacked && epi_axes_find(&lo->g->nodes[given[i]].axes, axis) >= 0;
            now[i] = l && i < out.count ? out.node[i] : given[i];
            if (slice)
                now[i] = epi_graph_slice(lo->g, given[i], axis, l);
        }
        out = epi_lower_inline(lo, f, &call, p, bundled, now);
        if (lo->notes && !l && epi_lower_ok(lo))
            epi_note_orders(lo, f, &call, p, bundled, now, &out);
    }
    return out;
}

/* spent.c: stores values between parts over inputs that are not needed any more.
 *
 * A backward reads saved values mostly element by element, and computes something of the same size: from the
 * logits of a loss, their gradient. If the caller no longer needs such an input, one memory serves both. */
#include <string.h>

#include "run/run.h"

/* The input of this name, or -1. */
static int find_input(const epi_graph *g, const char *name) {
    for (int t = 0; name && t < g->input_count; t++)
        if (!strcmp(g->tensors[t].name, name))
            return t;
    return -1;
}

/* Does a part from `first` on read this tensor of the program? */
static bool is_read(const epi_kernel *k, int tensor, int first) {
    for (int q = first; q < k->cut.part_count; q++) {
        const epi_part *p = &k->cut.parts[q];
        for (int t = 0; t < p->graph.input_count; t++)
            if (p->tensors[t].tensor == tensor)
                return true;
    }
    return false;
}

/* The value that the part may store over its input `in`, or NULL. */
static epi_cut_value *find_value(epi_kernel *k, int part, int in) {
    const epi_part *p = &k->cut.parts[part];
    for (int t = p->graph.input_count; t < p->graph.tensor_count; t++) {
        epi_cut_value *v = p->tensors[t].tensor < 0 ? &k->cut.values[p->tensors[t].value] : NULL;
        if (v && v->part == part && !v->over && !v->prepared && !v->slab && !p->slices[t].memory.count &&
            epi_part_in_place(&k->parts[part], t, in))
            return v;
    }
    return NULL;
}

/* By the last part that reads it, once and as a whole. */
static void take(epi_kernel *k, int tensor) {
    for (int q = k->cut.prepared_parts; q < k->cut.part_count; q++) {
        const epi_part *p = &k->cut.parts[q];
        int in = -1, times = 0;
        for (int t = 0; t < p->graph.input_count; t++)
            if (p->tensors[t].tensor == tensor) {
                in = t;
                times++;
            }
        if (times != 1 || p->slices[in].memory.count || is_read(k, tensor, q + 1))
            continue;
        epi_cut_value *v = find_value(k, q, in);
        if (v)
            v->over = tensor + 1;
        return;
    }
}

epi_status epi_spent_take(epi_kernel *k, const epi_options *o, epi_error *err) {
    const epi_graph *g = &k->program->graph;
    if (o->spent_count && o->memory)
        return epi_fail(
            err, EPI_ERR_UNSUPPORTED,
            "`spent` does not work with a memory budget: other chunks of rows may read the input again");
    for (int v = 0; v < k->cut.value_count; v++)
        k->cut.values[v].over = 0;
    for (int i = 0; i < o->spent_count; i++) {
        int tensor = find_input(g, o->spent[i]);
        if (tensor < 0)
            return epi_fail(err, EPI_ERR_ARGUMENT, "%s has no input '%s' that could be spent",
                            k->program->ast->name, o->spent[i] ? o->spent[i] : "");
        take(k, tensor);
    }
    return o->spent_count && k->cut.part_count ? epi_cut_lay_out(&k->arena, &k->cut, err) : EPI_OK;
}

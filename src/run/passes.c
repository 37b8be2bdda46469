/* passes.c: the way of a program through the passes (pass/compile.c): as a table to read, and after each of
 * them as a program to run. */
#include <stdio.h>
#include <string.h>

#include "run/run.h"

enum { INDENT = 24 };

static int count_live(const epi_graph *g) {
    int count = 0;
    for (int i = 0; i < g->node_count; i++)
        count += g->live[i];
    return count;
}

/* A line below that of the pass. */
static void begin_note(epi_text *out) {
    epi_text_add(out, "%*s", INDENT, "");
}

/* What an operation is called here: some have no name in a text. */
static const char *name_of(int op) {
    return op == EPI_OP_INPUT   ? "input"
           : op == EPI_OP_CONST ? "number"
           : op == EPI_OP_ONCE  ? "value computed once"
                                : epi_ops[op].text;
}

/* Operations that there are fewer of than before, or more. */
static bool add_difference(const int *less, const int *more, const char *word, epi_text *out) {
    const char *before = word;
    for (int op = 0; op < EPI_OP_COUNT; op++)
        if (more[op] > less[op]) {
            epi_text_add(out, "%s%d %s", before, more[op] - less[op], name_of(op));
            before = ", ";
        }
    return before != word;
}

/* "fewer: 2 mean; more: 1 var" */
static void note_change(const epi_graph *before, const epi_graph *after, epi_text *out) {
    int was[EPI_OP_COUNT] = {0}, is[EPI_OP_COUNT] = {0};
    if (before == after)
        return;
    for (int i = 0; i < before->node_count; i++)
        was[before->nodes[i].op] += before->live[i];
    for (int i = 0; i < after->node_count; i++)
        is[after->nodes[i].op] += after->live[i];
    begin_note(out);
    bool fewer = add_difference(is, was, "fewer: ", out);
    bool more = add_difference(was, is, fewer ? "; more: " : "more: ", out);
    epi_text_add(out, fewer || more ? "\n" : "the same operations, on other values or in another order\n");
}

static void note_algebra(const epi_kernel *k, epi_text *out) {
    const epi_rewriting *r = &k->rewriting;
    begin_note(out);
    if (r->left)
        epi_text_add(out, "not tried: %s\n", r->left);
    else if (r->refused.status != EPI_OK)
        epi_text_add(out, "given up: %s\n", r->refused.message);
    else if (!r->applies)
        epi_text_add(out, "tried, but not used: %.4g MB instead of %.4g MB of traffic at 1024 rows\n",
                     r->after / 1e6, r->before / 1e6);
    else
        epi_rewriting_describe(k, out);
    if (r->hasty) {
        begin_note(out);
        epi_text_add(out, "the program is too long to try vectors one by one: all were moved\n");
    }
}

static void note_prepared(const epi_kernel *k, epi_text *out) {
    const epi_cut *cut = &k->cut;
    if (!cut->prepared_parts)
        return;
    begin_note(out);
    epi_text_add(out, "%d value%s of %.4g MB, computed once by %d part%s\n", cut->prepared_values,
                 cut->prepared_values == 1 ? "" : "s", (double)cut->prepared_bytes / 1e6, cut->prepared_parts,
                 cut->prepared_parts == 1 ? "" : "s");
}

static void note_cut(const epi_kernel *k, epi_text *out) {
    const epi_cut *cut = &k->cut;
    int parts = cut->part_count - cut->prepared_parts, values = cut->value_count - cut->prepared_values;
    begin_note(out);
    if (cut->refused.status != EPI_OK)
        epi_text_add(out, "it cannot be split at its products: %s\n", cut->refused.message);
    else if (cut->part_count == 1)
        epi_text_add(out, "one kernel is enough\n");
    else
        epi_text_add(out, "%d part%s, and %d value%s between them, in %.4g MB\n", parts,
                     parts == 1 ? "" : "s", values, values == 1 ? "" : "s", (double)cut->bytes / 1e6);
}

/* What was taken for granted at first, and some part does without, as the backend refused it. */
static void note_given_up(const epi_kernel *k, epi_text *out) {
    static const struct {
        epi_refusal what;
        const char *words;
    } all[] = {{EPI_REFUSED_PAGES, "keys and values read through pages"},
               {EPI_REFUSED_ATTENTION, "attention as one kernel"},
               {EPI_REFUSED_PAIR, "two products on a tile"},
               {EPI_REFUSED_FULL_ROW, "reductions over all columns of a tile"},
               {EPI_REFUSED_LOCAL, "reductions over some columns of a tile"},
               {EPI_REFUSED_SCALED, "8-bit operands with scales, unconverted"},
               {EPI_REFUSED_LOAD, "operands of few bits, converted as they are loaded"},
               {EPI_REFUSED_KERNEL, "one kernel for all of a part"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (k->cut.without & all[i].what)
            epi_text_add(out, "not used everywhere, because no kernel has room for it: %s\n", all[i].words);
}

static void describe(const epi_kernel *k, epi_text *out) {
    const epi_rewriting *r = &k->rewriting;
    const epi_graph *before = &k->program->graph;
    if (!r->trace[0]) {
        epi_text_add(out, "no passes: only the fused path has them\n");
        return;
    }
    epi_text_add(out, "%-10s %-*s %s\n", "pass", INDENT - 12, "values", "what it does, and what it did here");
    for (int i = 0; i < EPI_PASS_COUNT; i++) {
        const epi_graph *after = r->trace[i];
        char values[40];
        int count = snprintf(values, sizeof values, "%d", count_live(before));
        if (after != before)
            snprintf(values + count, sizeof values - (size_t)count, " -> %d", count_live(after));
        epi_text_add(out, "%-10s %-*s %s\n", epi_passes[i].name, INDENT - 12, values, epi_passes[i].what);
        note_change(before, after, out);
        if (i == EPI_PASS_ALGEBRA)
            note_algebra(k, out);
        if (i == EPI_PASS_PREPARE)
            note_prepared(k, out);
        if (i == EPI_PASS_CUT)
            note_cut(k, out);
        before = after;
    }
    note_given_up(k, out);
}

size_t epi_kernel_describe_passes(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    if (kernel)
        describe(kernel, &t);
    return epi_text_give(&t, buf, size);
}

/* The program that a pass left; behind the cut, its parts. */
static void print_after(const epi_kernel *k, int pass, epi_text *out) {
    const char *name = k->program->ast->name;
    if (pass == EPI_PASS_CUT && k->cut.part_count)
        epi_kernel_print_parts(k, out);
    else
        epi_graph_print(k->rewriting.trace[pass], name, out);
}

size_t epi_kernel_print_after(const epi_kernel *kernel, const char *pass, char *buf, size_t size) {
    epi_text t = {0};
    for (int i = 0; kernel && pass && i < EPI_PASS_COUNT; i++)
        if (!strcmp(epi_passes[i].name, pass) && kernel->rewriting.trace[i])
            print_after(kernel, i, &t);
    return epi_text_give(&t, buf, size);
}

/* words.c: what softmax, log_softmax, argmax, cumsum, clamp, keep and again stand for. Written out in a
 * program they would be the same values, so no later pass knows these words. */
#include "lang/words.h"

#include <string.h>

/* x - where(top == -inf, 0, top) with top = max(x, X): nothing above 0, and no NaN where all of a row is
 * -inf. A softmax does not change when all of a row does, so no gradient goes through what is subtracted. */
static int below_top(epi_graph *g, int x, const epi_axes *axes) {
    return epi_graph_map2(g, EPI_OP_SUB, x, epi_graph_shift(g, x, axes));
}

/* max(sum(e, X), 0.5): the sum is at least the largest element's, unless all of the row is -inf. That is 1,
 * or nearly: where x*y - top is made by one instruction, the product is not rounded. Of a row of -inf all e
 * are 0, and so is the gradient by their sum: it is that of the maximum in either case. */
static int sum_of_row(epi_graph *g, int e, const epi_axes *axes) {
    return epi_graph_fixed(g, EPI_OP_MAX, epi_graph_reduce(g, EPI_OP_SUM, e, axes), epi_graph_const(g, 0.5),
                           EPI_NO_NODE);
}

static int softmax(epi_graph *g, const int *x, const epi_axes *axes) {
    int e = epi_graph_map1(g, EPI_OP_EXP, below_top(g, *x, axes));
    return epi_graph_map2(g, EPI_OP_DIV, e, sum_of_row(g, e, axes));
}

static int log_softmax(epi_graph *g, const int *x, const epi_axes *axes) {
    int c = below_top(g, *x, axes);
    int sum = sum_of_row(g, epi_graph_map1(g, EPI_OP_EXP, c), axes);
    return epi_graph_map2(g, EPI_OP_SUB, c, epi_graph_map1(g, EPI_OP_LOG, sum));
}

/* The first position whose element is the largest, or is NaN. */
static int argmax(epi_graph *g, const int *x, const epi_axes *axes) {
    int top = epi_graph_reduce(g, EPI_OP_RMAX, *x, axes);
    int is_top = epi_graph_map2(g, EPI_OP_OR, epi_graph_map2(g, EPI_OP_EQ, *x, top),
                                epi_graph_map2(g, EPI_OP_NE, *x, *x));
    int position = epi_graph_leaf(g, EPI_OP_INDEX, axes->at[0]);
    int past = epi_graph_leaf(g, EPI_OP_SIZE, axes->at[0]);
    return epi_graph_reduce(g, EPI_OP_RMIN, epi_graph_map(g, EPI_OP_WHERE, is_top, position, past), axes);
}

/* A running sum: the recurrence whose factor is 1. */
static int cumsum(epi_graph *g, const int *x, const epi_axes *axes) {
    return epi_graph_scan(g, EPI_OP_SCAN, epi_graph_const(g, 1), *x, axes->at[0]);
}

static int clamp(epi_graph *g, const int *x, const epi_axes *axes) {
    (void)axes;
    return epi_graph_map2(g, EPI_OP_MIN, epi_graph_map2(g, EPI_OP_MAX, x[0], x[1]), x[2]);
}

/* The value itself, marked for a gradient: to save it or to make it again. */
static int mark_saving(epi_graph *g, int x, epi_saving how) {
    epi_node *n = &g->nodes[epi_graph_value(g, x)];
    if (n->saving != EPI_SAVE_OPEN && n->saving != how)
        epi_graph_fail(g, "a value is either saved (keep) or recomputed (again), not both");
    n->saving = how;
    return x;
}

static int keep(epi_graph *g, const int *x, const epi_axes *axes) {
    (void)axes;
    return mark_saving(g, *x, EPI_SAVE_KEEP);
}

static int again(epi_graph *g, const int *x, const epi_axes *axes) {
    (void)axes;
    return mark_saving(g, *x, EPI_SAVE_RECOMPUTE);
}

static const epi_word words[] = {
    {"softmax", {1, 1, EPI_MAX_AXES}, softmax},
    {"log_softmax", {1, 1, EPI_MAX_AXES}, log_softmax},
    {"argmax", {1, 1, 1}, argmax},
    {"cumsum", {1, 1, 1}, cumsum},
    {"clamp", {3, 0, 0}, clamp},
    {"keep", {1, 0, 0}, keep},
    {"again", {1, 0, 0}, again},
};

const epi_word *epi_word_at(int index) {
    return index < (int)(sizeof words / sizeof *words) ? &words[index] : NULL;
}

const epi_word *epi_word_find(const char *name) {
    for (int i = 0; epi_word_at(i); i++)
        if (!strcmp(words[i].name, name))
            return &words[i];
    return NULL;
}

const char *epi_maker_at(int index) {
    static const char *const makers[] = {"grad", "backward", "repeat"};
    return index < (int)(sizeof makers / sizeof *makers) ? makers[index] : NULL;
}

bool epi_is_maker(const char *name) {
    for (int i = 0; epi_maker_at(i); i++)
        if (!strcmp(epi_maker_at(i), name))
            return true;
    return false;
}

bool epi_is_word(const char *name) {
    for (int op = 0; op < EPI_OP_COUNT; op++)
        if (!strcmp(epi_ops[op].text, name))
            return true;
    return epi_word_find(name) != NULL;
}

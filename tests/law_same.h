/* law_same.h: laws of a program by itself: against f64 in each type, and the same whatever must not matter.
 * Each returns 1 where it holds, 0 where it says nothing of this program and -1 where it is broken; then the
 * case has a message. */
#ifndef EPI_TESTS_LAW_SAME_H
#define EPI_TESTS_LAW_SAME_H

#include "law_text.h"

static const epi_dtype law_types[] = {EPI_F32, EPI_BF16, EPI_F16};

/* Another type for each seed, where one is enough. */
static epi_dtype drawn_type(const law_case *c) {
    return law_types[(c->seed + name_hash(c->program)) % 3];
}

/* ---- against f64 ---- */

static int keeps_f32(law_case *c, const epi_program *p) {
    return way_holds(c, p, (law_way){.type = EPI_F32}, NULL);
}

static int keeps_bf16(law_case *c, const epi_program *p) {
    return way_holds(c, p, (law_way){.type = EPI_BF16}, NULL);
}

static int keeps_f16(law_case *c, const epi_program *p) {
    return way_holds(c, p, (law_way){.type = EPI_F16}, NULL);
}

static int keeps_written(law_case *c, const epi_program *p) {
    return way_holds(c, p, (law_way){.type = drawn_type(c), .algebra = EPI_ALGEBRA_WRITTEN}, NULL);
}

static int keeps_unfused(law_case *c, const epi_program *p) {
    return way_holds(c, p, (law_way){.type = drawn_type(c), .path = EPI_PATH_UNFUSED}, NULL);
}

/* ---- the same bits ---- */

/* Runs both, the second over what is large where that is asked for, and compares. */
static int same_runs(law_case *c, law_side *a, law_case *there, law_side *b, bool large, const char *what) {
    int result = side_run(c, a, false);
    if (result > 0)
        result = side_run(there, b, large);
    return result > 0 && !same_bits(c, a, b, what) ? -1 : result;
}

/* Whatever the workspace and the outputs held before, at the second run, and with two threads. */
static int keeps_poison(law_case *c, const epi_program *p) {
    law_side s, other = {0};
    law_way way = {.type = drawn_type(c)}, two = {.type = way.type, .threads = 2};
    int result = side_open(c, p, way, &s);
    if (result > 0)
        result = side_open(c, p, two, &other);
    if (result > 0)
        result = same_runs(c, &s, c, &other, true, "with two threads and 1e30 in the workspace");
    side_close(&other);
    side_close(&s);
    return result;
}

/* The program of another text; 0 where there is none. */
static const epi_program *program_of(law_case *c, const char *text, epi_module **module) {
    epi_error err;
    *module = NULL;
    if (epi_module_parse(c->ctx, text, strlen(text), "law", module, &err) != EPI_OK)
        return NULL;
    return epi_module_find(*module, c->program);
}

/* Runs another text's program of the same tensors and compares bits. */
static int same_elsewhere(law_case *c, const epi_program *p, law_case *there, const char *what) {
    epi_module *module;
    law_side a = {0}, b = {0};
    law_way way = {.type = drawn_type(c)};
    const epi_program *q = program_of(c, there->text, &module);
    int result = q ? side_open(c, p, way, &a) : 0;
    if (result > 0 && (result = side_open(there, q, way, &b)) < 0)
        law_broken(c, "%.500s %s", there->message, what);
    if (result > 0)
        result = same_runs(c, &a, there, &b, false, what);
    side_close(&a);
    side_close(&b);
    epi_module_free(module);
    return result;
}

static int keeps_names(law_case *c, const epi_program *p) {
    char *text = malloc(LAW_TEXT);
    law_case there = *c;
    int result = 0;
    there.text = text;
    if (text && rename_axes(c->text, &c->sizes, text, LAW_TEXT, &there.sizes))
        result = same_elsewhere(c, p, &there, "with other names of axes");
    free(text);
    return result;
}

/* Is it a row axis in the strict sense, along which no element knows of another? */
static bool is_independent(const epi_graph *g, int dim) {
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        for (int a = 0; g->live[i] && a < epi_node_operands(n); a++)
            if (epi_axes_find_dim(&g->nodes[n->arg[a]].axes, dim) >= 0 &&
                epi_axes_find_dim(&n->axes, dim) < 0)
                return false;
        if (g->live[i] && epi_axes_find_dim(&n->over, dim) >= 0)
            return false;
    }
    for (int t = 0; t < g->tensor_count; t++) {
        int at = epi_axes_find_dim(&g->tensors[t].axes, dim);
        if (at >= 0 && g->tensors[t].axes.at[at].shift)
            return false;
    }
    return true;
}

/* Element e of a tensor, with positions along an axis in reverse. */
static int64_t turned(const tensor *t, int axis, int64_t e) {
    int64_t inner = 1, size = axis < 0 ? 1 : t->shape.sizes[axis];
    for (int a = axis + 1; a < t->shape.rank && axis >= 0; a++)
        inner *= t->shape.sizes[a];
    int64_t at = e / inner % size;
    return axis < 0 ? e : e + (size - 1 - 2 * at) * inner;
}

static void turn_tensor(tensor *t, int axis) {
    size_t size = epi_dtype_size(t->shape.type);
    for (int64_t e = 0; e < t->shape.count; e++) {
        int64_t f = turned(t, axis, e);
        unsigned char x[8];
        if (f <= e)
            continue;
        memcpy(x, t->data + (size_t)e * size, size);
        memcpy(t->data + (size_t)e * size, t->data + (size_t)f * size, size);
        memcpy(t->data + (size_t)f * size, x, size);
    }
}

/* Rows in reverse give results in reverse, to the bit. */
static int keeps_order(law_case *c, const epi_program *p) {
    const epi_graph *g = &p->graph;
    int dim = -1;
    for (int d = 0; d < g->dim_count && dim < 0; d++)
        dim = is_independent(g, d) ? d : -1;
    if (dim < 0)
        return 0;
    law_side a, b = {0};
    law_way way = {.type = drawn_type(c)};
    int result = side_open(c, p, way, &a);
    if (result > 0)
        result = side_open(c, p, way, &b);
    for (int t = 0; result > 0 && t < b.p.inputs; t++)
        turn_tensor(&b.p.t[t], epi_axes_find_dim(&g->tensors[t].axes, dim));
    if (result > 0)
        result = side_run(c, &a, false);
    if (result > 0)
        result = side_run(c, &b, false);
    for (int t = b.p.inputs; result > 0 && t < b.p.count; t++)
        turn_tensor(&b.p.t[t], epi_axes_find_dim(&g->tensors[t].axes, dim));
    if (result > 0 && !same_bits(c, &a, &b, "with rows in reverse"))
        result = -1;
    side_close(&a);
    side_close(&b);
    return result;
}

typedef bool rewriter(const char *text, const char *program, char *out, size_t size);

/* The program of the text as it is after that keeps near to its own f64. */
static int holds_rewritten(law_case *c, rewriter *rewrite, epi_dtype type) {
    char *text = malloc(LAW_TEXT);
    epi_module *module = NULL;
    const epi_program *q =
        text && rewrite(c->text, c->program, text, LAW_TEXT) ? program_of(c, text, &module) : NULL;
    int result = q ? way_holds(c, q, (law_way){.type = type}, NULL) : 0;
    epi_module_free(module);
    free(text);
    return result;
}

/* Inputs in another order: another choice of row axes, so perhaps another cut, but the same numbers. */
static int keeps_inputs(law_case *c, const epi_program *p) {
    (void)p;
    return holds_rewritten(c, reverse_inputs, drawn_type(c));
}

/* With all values declared f32 nothing is rounded to 16 bits that has a name. */
static int keeps_declared(law_case *c, const epi_program *p) {
    (void)p;
    return holds_rewritten(c, declare_all, c->seed % 2 ? EPI_BF16 : EPI_F16);
}

#endif

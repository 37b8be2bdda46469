/* law_grad.h: laws of gradients: by any of the inputs they are the same, as one program and as forward and
 * backward. */
#ifndef EPI_TESTS_LAW_GRAD_H
#define EPI_TESTS_LAW_GRAD_H

#include "law_same.h"

enum { MAX_WANTED = 24 };

static int wanted_inputs(const epi_program *p, const char **names) {
    int count = 0;
    for (int t = 0; t < epi_program_tensor_count(p) && count < MAX_WANTED; t++) {
        epi_tensor_info info;
        epi_program_tensor(p, t, &info);
        bool integer = info.has_type && epi_dtype_is_whole(info.type);
        if (!info.is_output && !integer && p->graph.live[p->graph.tensors[t].node])
            names[count++] = p->graph.tensors[t].name;
    }
    return count;
}

static bool has_gradient(const epi_program *p) {
    for (int t = p->graph.input_count; t < p->graph.tensor_count; t++)
        if (!p->graph.tensors[t].has_type || p->graph.tensors[t].type <= EPI_F16)
            return true;
    return false;
}

/* The gradients by some inputs, as one program. */
static int subset_holds(law_case *c, const epi_program *p, const char *const *names, int count,
                        epi_dtype type) {
    epi_module *module;
    epi_error err;
    epi_status status = epi_program_grad(p, names, count, &module, &err);
    if (status == EPI_ERR_UNSUPPORTED || status == EPI_ERR_CHECK)
        return 0;
    if (status != EPI_OK)
        return law_broken(c, "no gradient: %s", err.message), -1;
    counts.gradients++;
    int result = way_holds(c, epi_module_program(module, 0), (law_way){.type = type}, NULL);
    if (result < 0) {
        char said[LAW_MESSAGE], list[200] = "";
        snprintf(said, sizeof said, "%s", c->message);
        for (int i = 0; i < count; i++)
            ADD(list, "%s%s", i ? "," : "", names[i]);
        law_broken(c, "--wrt %s --type %s: %.370s", list, epi_dtype_name(type), said);
    }
    epi_module_free(module);
    return result;
}

/* Is the set of inputs, by its bits, among those that are asked for? Every one of up to five; else single
 * ones, pairs and all but one. */
static bool is_asked(const law_case *c, unsigned set, int count) {
    int in = __builtin_popcount(set);
    if (!c->thorough && in > 1 && in < count) /* two of the others */
        return (set + c->seed) % ((1u << count) / 2) == 0;
    return count <= 5 || in <= 2 || in >= count - 1;
}

static int keeps_subsets(law_case *c, const epi_program *p) {
    const char *names[MAX_WANTED], *some[MAX_WANTED];
    int count = wanted_inputs(p, names), held = 0;
    if (!has_gradient(p) || count > 12)
        return 0;
    for (unsigned set = 1; set < 1u << count; set++) {
        int n = 0;
        for (int i = 0; i < count; i++)
            if (set >> i & 1)
                some[n++] = names[i];
        if (!is_asked(c, set, count))
            continue;
        int result = subset_holds(c, p, some, n, law_types[(set + c->seed) % 3]);
        if (result < 0)
            return result;
        held |= result;
    }
    return held;
}

/* ---- forward and backward as two programs ---- */

/* A tensor of one side as another one takes it, with its bounds. */
static bool hand_over(const law_side *from, const bounded *have, const char *name, law_side *to, int t,
                      bounded *get) {
    for (int i = 0; i < from->p.count; i++) {
        epi_tensor_info info;
        epi_program_tensor(from->p.program, i, &info);
        if (strcmp(info.name, name) || from->p.t[i].shape.type != to->p.t[t].shape.type ||
            from->p.t[i].shape.count != to->p.t[t].shape.count)
            continue;
        memcpy(to->p.t[t].data, from->p.t[i].data,
               (size_t)to->p.t[t].shape.count * epi_dtype_size(to->p.t[t].shape.type));
        bounded *x = &get[t];
        for (int64_t e = 0; e < x->count && have[i].v; e++)
            bound_take(x, e, &have[i], e);
        return true;
    }
    return false;
}

static int backward_holds(law_case *c, law_side *forward, const epi_program *back, const epi_program *whole,
                          law_way way) {
    law_side b, ref = {0};
    law_way oracle = way;
    oracle.path = EPI_PATH_REFERENCE;
    bounded *had[2] = {bounds_of_inputs(&forward->p), bounds_of_inputs(&forward->p)}, *get[2] = {NULL, NULL};
    int result =
        bound_plan(forward->kernel, had[0]) && bound_contract(forward->p.program, forward->kernel, had[1])
            ? side_open(c, back, way, &b)
            : -1;
    if (result <= 0)
        b = (law_side){0};
    for (int w = 0; w < 2 && result > 0; w++) {
        get[w] = bounds_of_inputs(&b.p);
        for (int t = 0; t < b.p.inputs; t++) {
            epi_tensor_info info;
            epi_program_tensor(back, t, &info);
            if (!hand_over(forward, had[w], info.name, &b, t, get[w]) && !info.is_cotangent)
                result = (law_broken(c, "the forward does not give %s", info.name), -1);
        }
    }
    if (result > 0)
        result = side_run(c, &b, false);
    if (result > 0)
        result = side_open(c, whole, oracle, &ref);
    if (result > 0)
        result = side_run(c, &ref, false);
    if (result > 0) { /* both give the same gradients, behind inputs of different number */
        bool ok = bound_plan(b.kernel, get[0]) && bound_contract(back, b.kernel, get[1]);
        result = ok && outputs_hold(c, &b, &ref, get[0], get[1]) ? 1 : -1;
    }
    for (int w = 0; w < 2; w++) {
        bounds_free(had[w], forward->p.count);
        bounds_free(get[w], b.p.count);
    }
    side_close(&b);
    side_close(&ref);
    return result;
}

/* The gradients by some inputs, as forward and backward. */
static int saved_holds(law_case *c, const epi_program *p, const char *const *names, int count) {
    int result = 0;
    epi_module *two = NULL, *one = NULL;
    law_way way = {.type = drawn_type(c)};
    law_side forward;
    if ((c->seed % 2 ? epi_program_grad_saved : epi_program_grad_lean)(p, names, count, &two, NULL) != EPI_OK)
        return 0;
    if (epi_program_grad(p, names, count, &one, NULL) == EPI_OK)
        result = way_holds(c, epi_module_program(two, 0), way, &forward);
    if (result > 0) {
        result = backward_holds(c, &forward, epi_module_program(two, 1), epi_module_program(one, 0), way);
        side_close(&forward);
    }
    epi_module_free(two);
    epi_module_free(one);
    return result;
}

/* Saved values make no difference beyond their roundings: by all inputs, and by each alone, or by one that is
 * drawn. */
static int keeps_saved(law_case *c, const epi_program *p) {
    const char *names[MAX_WANTED];
    int count = wanted_inputs(p, names);
    if (!count || !has_gradient(p))
        return 0;
    int result = saved_holds(c, p, names, count), drawn = (int)(c->seed % (uint64_t)count);
    for (int i = 0; i < count && count > 1 && result > 0; i++)
        if (c->thorough || i == drawn) {
            result = saved_holds(c, p, &names[i], 1);
            if (result < 0) {
                char said[LAW_MESSAGE];
                snprintf(said, sizeof said, "%s", c->message);
                law_broken(c, "--wrt %s --forward: %.400s", names[i], said);
            }
        }
    return result;
}

#endif

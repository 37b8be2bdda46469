/* kernels.h: one program, one kernel: compiled, run with what it waits for at once or late, and held against the f64
 * reference, against itself in place, and against kernels of other sizes that give the same bits. */
#ifndef EPI_TESTS_EMULATE_KERNELS_H
#define EPI_TESTS_EMULATE_KERNELS_H

#include "case_text.h"
#include "emulate/jobs.h"
#include "emulate/launch.h"
#include "forms.h"
#include "pass/rewrite/attention_form.h"
#include "pass/rewrite/groups.h"
#include "pass/rewrite/widen.h"
#include "pass/schedule/walk.h"
#include "spec.h"

typedef struct emulated {
    char name[400], config[64]; /* of its case */
    const loaded *l;
    variant v;
    epi_arena arena;
    epi_cuda_kernel *k;
    int texts[MOST_LAUNCHES];
    bool partner; /* others are compared with it, and it is not run by itself */
    bool stays;   /* it is run whatever forms others have */
    bool copies;  /* the copies ahead of the product alone */
    bool left_out;
    const loaded *up;           /* not NULL: the row axes are open, up to its sizes */
    const struct emulated *one; /* the kernel that does the same with one row, or NULL */
    const struct emulated
        *closed; /* one that gives the same bits: for its sizes alone, or by another configuration */
    const struct emulated *alone; /* one of a document that is among others here */
} emulated;

enum { MOST_KERNELS = 4096 };
static emulated kernels[MOST_KERNELS];
static bool half; /* every kernel runs once, with what it waits for at once or late */
static int kernel_count, refused;

/* ---- compiling ---- */

/* The kernel of a case, or what one is compared with; NULL where it is refused. Of a kernel that is open up to other
 * sizes than its own, the kernel before is the same with those: it takes its texts. */
static emulated *add_kernel_open(const loaded *l, const loaded *up, variant v) {
    if (!check(kernel_count < MOST_KERNELS, "more kernels than expected"))
        return NULL;
    emulated *e = &kernels[kernel_count];
    epi_spec spec;
    epi_error err = {0};
    *e = (emulated){.l = l, .v = v, .up = up};
    snprintf(e->name, sizeof e->name, "%s", draw.name);
    if (v.config) {
        snprintf(e->config, sizeof e->config, "%s", v.config);
        e->v.config = e->config;
    }
    epi_cuda_target target = {.arch = epi_arch_of(v.capability),
                              .multiprocessors = v.multiprocessors ? v.multiprocessors : 2,
                              .config = v.config,
                              .exact = v.exact};
    const epi_cuda_kernel *form = up && up != l ? kernels[kernel_count - 1].k : NULL;
    target.forms = &form;
    target.form_count = form != NULL;
    epi_backend_limits limits = {.attention_most = 256, .attention_multiple = 8, .narrow_stream = true};
    epi_status status = (up ? bind_open_spec(l, up, v.type, v.path, &e->arena, &spec)
                            : bind_spec(l, v.type, v.path, &e->arena, &spec))
                            ? EPI_OK
                            : EPI_ERR_MEMORY;
    if (status == EPI_OK && v.path == EPI_PATH_FUSED)
        status = epi_attention_form(&e->arena, &spec, &limits, &err);
    if (status == EPI_OK && v.path == EPI_PATH_FUSED)
        status = epi_groups_write(&e->arena, &spec.graph, &err);
    if (status == EPI_OK)
        status = epi_widen_operands(&e->arena, &spec, epi_arch_limits(target.arch).scaled, &err);
    if (status == EPI_OK && v.path == EPI_PATH_FUSED && v.config && !strncmp(v.config, "attention", 9))
        status = epi_widen_on_load(&e->arena, &spec, &limits, NULL, &err);
    spec.scans = epi_arch_limits(target.arch).scans;
    if (status == EPI_OK)
        status = epi_cuda_compile(&e->arena, &spec, &target, &e->k, &err);
    bool ok = status == EPI_OK && !e->k->steps.refused; /* which is split, and this is one kernel */
    if (status == EPI_OK ? !ok : status == EPI_ERR_UNSUPPORTED && v.config)
        refused++;
    else
        ok = check(ok && e->k->count <= MOST_LAUNCHES, "%s %s: %s", l->from->program, l->from->dims,
                   err.message);
    if (!ok) {
        epi_cuda_kernel_free(e->k);
        epi_arena_free(&e->arena);
        return NULL;
    }
    kernel_count++;
    return e;
}

static emulated *add_kernel(const loaded *l, variant v) {
    return add_kernel_open(l, NULL, v);
}

/* A configuration may be refused; what the model takes instead may not. */
static emulated *add_either(const loaded *l, const loaded *up, variant *v) {
    emulated *e = add_kernel_open(l, up, *v);
    if (!e && v->config) {
        v->config = NULL;
        e = add_kernel_open(l, up, *v);
    }
    return e;
}

static emulated *add_case(const char *table, const loaded *l, variant v) {
    return l && wants(table, l, v, "") ? add_either(l, NULL, &v) : NULL;
}

/* By the configuration that a row names, which may not refuse it; NULL where it is not drawn. */
static emulated *add_named(const char *table, const loaded *l, variant v) {
    if (!l || !wants(table, l, v, ""))
        return NULL;
    emulated *e = add_kernel(l, v);
    check(e != NULL, "%s: the configuration takes it", draw.name);
    return e;
}

/* What a kernel is compared with, which the row asks for: it may not be refused. */
static emulated *add_partner(const loaded *l, variant v) {
    emulated *e = l ? add_kernel(l, v) : NULL;
    if (check(e != NULL, "%s is compared with %s", draw.name, v.config ? v.config : "what is chosen"))
        e->partner = true;
    return e;
}

/* What another table runs, whatever forms others have. */
static emulated *add_staying(const loaded *l, variant v) {
    emulated *e = add_partner(l, v);
    if (e)
        e->stays = true;
    return e;
}

static bool has_rows(const loaded *l) {
    epi_tensor_info first;
    return epi_program_tensor(l->program, 0, &first) == EPI_OK && first.rank > 1;
}

/* The same case with fewer rows; NULL where its first input has none. */
static const loaded *fewer_of(const loaded *l) {
    epi_tensor_info first;
    char dims[200] = "";
    if (!has_rows(l) || epi_program_tensor(l->program, 0, &first) != EPI_OK)
        return NULL;
    for (int d = 0; d < l->dim_count; d++) {
        bool row = false;
        int64_t size = l->dims[d].size;
        for (int a = 0; a + 1 < first.rank; a++)
            row |= !strcmp(first.axes[a].dim, l->dims[d].name);
        snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%s=%ld", d ? "," : "", l->dims[d].name,
                 (long)(row ? size - size / 3 : size));
    }
    return program_with(l->from->file, NULL, l->from->program, dims);
}

static bool can_open(const loaded *l, const loaded *few, variant v) {
    epi_arena arena = {0};
    epi_spec spec;
    bool can = bind_open_spec(l, l, v.type, v.path, &arena, &spec) &&
               bind_open_spec(few, l, v.type, v.path, &arena, &spec);
    epi_arena_free(&arena);
    return can;
}

/* One text for all numbers of rows, a case of two kernels: of these rows, and of fewer. One of them is held against a
 * kernel that is for its rows alone: `own`, which is for these, or one that is made for the fewer. */
static void add_open_case(const char *table, const loaded *l, variant v, const emulated *own) {
    const loaded *few = wants(table, l, v, " open") ? fewer_of(l) : NULL;
    emulated *e = few && can_open(l, few, v) ? add_either(l, l, &v) : NULL,
             *less = e ? add_kernel_open(few, l, v) : NULL;
    if (own && e)
        e->closed = own;
    else if (less)
        less->closed = add_partner(few, v);
}

static bool emulates(const emulated *e, int launch) {
    const epi_launch *s = &e->k->launches[launch];
    return !e->left_out && !s->empty && !(e->copies && s->kind == EPI_KIND_GEMM);
}

/* Seconds that a kernel takes here, about: to compile its texts, and to run. */
static double cost_of(const emulated *e) {
    epi_kernel_info info;
    epi_cuda_info(e->k, &info);
    return 0.07 * (e->k->count + 1) + 3e-9 * info.flops + 4e-7 * info.bytes_fused;
}

/* What a kernel is run for where a table names its program for a mainloop: what the mainloop has a choice of,
 * the contract, the type, open sizes, the bits of another kernel, and the program. */
static void add_reasons(forms *f, const emulated *e, const epi_launch *launch) {
    launch_kind kind;
    const char *program = e->l->from->program;
    if (launch->kind != EPI_KIND_GEMM && launch->kind != EPI_KIND_ATTENTION)
        return;
    forms_kind(launch, kind);
    forms_add_mainloop(f, launch);
    forms_add(f, kind, e->v.exact ? "exact " : "packed", 6);
    forms_add(f, kind, epi_dtype_name(e->v.type), 3);
    if (e->up)
        forms_add(f, kind, e->up == e->l ? "open" : "less", 4);
    if (e->closed)
        forms_add(f, kind, "bits", 4);
    forms_add(f, "program", program, strlen(program));
}

/* Leaves as many kernels as have every form, and those that they are compared with. The first are `named` for a
 * mainloop. */
static void choose_kernels(int named) {
    static forms made_of[MOST_KERNELS];
    static bool may[MOST_KERNELS], chosen[MOST_KERNELS];
    static double cost[MOST_KERNELS];
    for (int i = 0; i < kernel_count; i++) {
        for (int n = 0; n < kernels[i].k->count; n++)
            if (emulates(&kernels[i], n)) {
                forms_add_to_run(&made_of[i], &kernels[i].k->launches[n]);
                if (i < named)
                    add_reasons(&made_of[i], &kernels[i], &kernels[i].k->launches[n]);
            }
        may[i] = !kernels[i].partner;
        cost[i] = cost_of(&kernels[i]);
    }
    forms_choose(made_of, kernel_count, may, cost, chosen);
    for (int i = 0; i < kernel_count; i++) {
        forms_free(&made_of[i]);
        if (chosen[i] && !kernels[i].partner) {
            const emulated *const with[] = {kernels[i].one, kernels[i].closed, kernels[i].alone};
            for (int w = 0; w < 3; w++)
                if (with[w])
                    chosen[with[w] - kernels] = true;
        }
    }
    for (int i = 0; i < kernel_count; i++)
        kernels[i].left_out = !chosen[i] && !kernels[i].stays;
}

static void add_kernel_texts(void) {
    for (int i = 0; i < kernel_count; i++)
        for (int n = 0; n < kernels[i].k->count; n++)
            if (emulates(&kernels[i], n))
                kernels[i].texts[n] = add_text(&kernels[i].k->launches[n].text);
}

/* ---- running ---- */

/* The copy of an operand with two axes, ahead of a product: its rows at the new pitch, and zeros behind. */
static void check_copy(const place *at, const epi_repack *r, const char *what) {
    const tensor *from = &at->p->t[at->k->steps.homes[r->node].tensor];
    int64_t rows = from->shape.sizes[0], length = from->shape.sizes[1];
    const uint16_t *x = (const void *)from->data, *y = (const void *)(at->workspace + r->offset);
    bool same = true;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < epi_round_up(length, 8); j++)
            same &= y[i * r->pitch + j] == (j < length ? x[i * length + j] : 0);
    check(same, "%s: the copy of an operand is the operand", what);
}

/* All launches of a kernel, with a workspace that is poisoned and guarded. */
static void run_launches(const emulated *e, problem *p, bool late, const char *what) {
    size_t bytes = (size_t)epi_round_up(e->k->workspace, 64);
    unsigned char *memory = aligned_alloc(64, bytes + 2 * GUARD);
    bool intact = true;
    if (!check(memory != NULL, "memory"))
        return;
    place at = {e->k, p, memory + GUARD};
    memset(memory, SENTINEL, bytes + 2 * GUARD);
    memset(at.workspace, late ? HUGE_FILL : POISON, (size_t)e->k->workspace);
    for (int i = 0; i < e->k->count; i++) {
        const epi_launch *s = &e->k->launches[i];
        if (e->copies && s->kind == EPI_KIND_GEMM)
            for (int r = 0; r < s->text.repack_count; r++)
                check_copy(&at, &s->text.repacks[r], what);
        else if (!s->empty)
            run_launch(&at, s, &texts[e->texts[i]], late, what);
    }
    for (int i = 0; i < p->count; i++)
        intact &= tensor_intact(&p->t[i]);
    for (size_t i = 0; i < GUARD; i++)
        intact &= memory[i] == SENTINEL && memory[GUARD + bytes + i] == SENTINEL;
    check(intact, "%s: nothing outside the tensors is touched", what);
    free(memory);
}

static bool runs(const emulated *e) {
    bool ok = !e->left_out;
    for (int i = 0; i < e->k->count; i++)
        ok &= !emulates(e, i) || texts[e->texts[i]].run;
    return ok; /* else it was reported */
}

/* Tensors of the shapes that a kernel has, filled. */
static bool make_for(const loaded *l, variant v, problem *p) {
    epi_options o = case_options(l, v.type, v.path);
    epi_kernel *shapes = NULL;
    *p = (problem){0};
    bool ok = epi_kernel_compile(l->program, &o, &shapes, NULL) == EPI_OK &&
              problem_make(p, l->program, shapes, LAYOUT_PLAIN);
    epi_kernel_free(shapes);
    if (check(ok, "%s %s has shapes, and memory", l->from->program, l->from->dims))
        problem_fill(p, CASE_SEED);
    else
        problem_free(p);
    return ok;
}

static bool make_problem(const emulated *e, problem *p) {
    return make_for(e->l, e->v, p);
}

/* A batch of one gives the bits of that row in a larger batch. */
static void compare_row(const emulated *e, const problem *many, int64_t row, const char *what) {
    const emulated *o = e->one;
    problem one;
    if (!runs(o) || !make_problem(o, &one))
        return;
    for (int i = 0; i < one.inputs; i++)
        take_row(&one.t[i], &many->t[i], row, false);
    run_launches(o, &one, row & 1, what);
    for (int i = one.inputs; i < one.count; i++)
        check(many->t[i].shape.count == one.t[i].shape.count || /* a sum down the rows */
                  take_row(&one.t[i], &many->t[i], row, true),
              "%s: tensor %d, a batch of one is row %ld of a larger one, bit for bit", what, i, (long)row);
    problem_free(&one);
}

/* What a kernel for one size alone gives. */
static void compare_closed(const emulated *e, const problem *open, const char *what) {
    const emulated *c = e->closed;
    problem p;
    if (!runs(c) || !make_problem(c, &p))
        return;
    run_launches(c, &p, false, what);
    for (int i = p.inputs; i < p.count; i++)
        check(same_bits(&p.t[i], &open->t[i]),
              "%s: tensor %d, as of a kernel for these sizes alone, bit for bit", what, i);
    problem_free(&p);
}

/* An output that may take an input's place has the same bits there. */
static void compare_in_place(const emulated *e, const problem *apart, bool late, const char *what) {
    for (int o = apart->inputs; o < apart->count; o++)
        for (int i = 0; i < apart->inputs; i++) {
            problem p;
            bool gemm = e->k->steps.plan.kind == EPI_KIND_GEMM,
                 update = e->k->steps.plan.kind == EPI_KIND_PASS;
            if ((!gemm && !update) || !epi_steps_in_place(&e->k->steps, o, i) || !make_problem(e, &p))
                continue;
            unsigned char *own = p.t[o].data;
            p.t[o].data = p.t[i].data;
            run_launches(e, &p, late, what);
            check(same_bits(&p.t[o], &apart->t[o]), "%s: tensor %d in the place of %d, bit for bit", what, o,
                  i);
            p.t[o].data = own;
            problem_free(&p);
        }
}

/* ---- two runs that must agree ---- */

/* The axis of so many positions in a tensor; and the elements before and behind it. */
static bool along(const tensor *t, int64_t size, int64_t *outer, int64_t *inner) {
    *outer = *inner = 1;
    bool found = false;
    for (int a = 0; a < t->shape.rank; a++) {
        *(found ? inner : outer) *= found || t->shape.sizes[a] != size ? t->shape.sizes[a] : 1;
        found |= t->shape.sizes[a] == size;
    }
    return found;
}

/* Positions of a tensor: `count` of the axis of `size`, from `first` on. */
typedef struct positions {
    const tensor *t;
    int64_t size, first;
} positions;

/* Copies some to others, or compares them. */
static bool take_positions(positions to, positions from, int64_t count, bool compares) {
    int64_t outer, inner;
    size_t each = epi_dtype_size(to.t->shape.type);
    bool same = along(from.t, from.size, &outer, &inner);
    for (int64_t n = 0; n < outer && same; n++) {
        unsigned char *a = to.t->data + (size_t)((n * to.size + to.first) * inner) * each,
                      *b = from.t->data + (size_t)((n * from.size + from.first) * inner) * each;
        if (compares)
            same = !memcmp(a, b, (size_t)(count * inner) * each);
        else
            memcpy(a, b, (size_t)(count * inner) * each);
    }
    return same;
}

/* The tensors of two kernels. Free them where it is true. */
static bool make_two(const emulated *a, const emulated *b, problem p[2]) {
    if (!runs(b) || !make_problem(a, &p[0]))
        return false;
    if (make_problem(b, &p[1]))
        return true;
    problem_free(&p[0]);
    return false;
}

static void free_two(problem p[2]) {
    problem_free(&p[0]);
    problem_free(&p[1]);
}

/* What some programs are compared with besides. */
static void compare_more(const emulated *e, const char *what);

static void run_kernel(const emulated *e, const oracles *oracle) {
    const loaded *l = e->l;
    bool fused = e->k->steps.plan.kind != EPI_KIND_PASS;
    char what[300], how[96];
    snprintf(how, sizeof how, "%s %s%s %s %s, %d", epi_dtype_name(e->v.type), e->up ? "open " : "",
             e->v.path == EPI_PATH_FUSED ? "fused" : "unfused", e->v.exact ? "exact" : "packed",
             e->v.config ? e->v.config : "chosen", e->v.capability);
    snprintf(what, sizeof what, "%s:%s %s %s", l->from->file, l->from->program, l->from->dims, how);
    /* where each runs once, some have at once what comes late to others */
    const char *name = e->name;
    int first = half && !e->closed ? (int)(epi_hash_texts(&name, 1).a % 2) : 0;
    for (int late = first; late < (half ? first + 1 : 2) && runs(e); late++) {
        problem p;
        if (!make_problem(e, &p))
            return;
        run_launches(e, &p, late, what);
        if (!e->copies)
            check_rule(&p, l, oracle, fused && e->v.exact ? EPI_F32 : e->v.type, how);
        if (e->closed && !late)
            compare_closed(e, &p, what);
        compare_more(e, what);
        if (!e->copies && !(half && e->up))
            compare_in_place(e, &p, late, what);
        for (int64_t row = late; e->one && row < l->dims[0].size; row += 18)
            compare_row(e, &p, row, what);
        problem_free(&p);
    }
}

/* From the first of some that have one reference on. */
static void run_group(int first) {
    const loaded *l = kernels[first].l;
    epi_dtype type = kernels[first].v.type;
    oracles oracle = {0};
    oracles_make(l, type, &oracle);
    for (int i = first; i < kernel_count; i++) {
        if (kernels[i].partner || kernels[i].left_out)
            continue;
        if (kernels[i].l != l || kernels[i].v.type != type)
            break;
        begin_case(kernels[i].name);
        if (check(oracle.ok, "%s %s has a reference", l->from->program, l->from->dims))
            run_kernel(&kernels[i], &oracle);
    }
    oracles_free(&oracle);
}

static void add_kernel_jobs(void) {
    const emulated *last = NULL;
    for (int i = 0; i < kernel_count; i++) {
        const emulated *e = &kernels[i];
        if (e->partner || e->left_out)
            continue;
        if (!last || e->l != last->l || e->v.type != last->v.type)
            add_job(run_group, i);
        last = e;
    }
}

static void free_kernels(void) {
    for (int i = 0; i < kernel_count; i++) {
        epi_cuda_kernel_free(kernels[i].k);
        epi_arena_free(&kernels[i].arena);
    }
}

#endif

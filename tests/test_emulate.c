/* test_emulate.c: the arithmetic of the emitted CUDA text, without a GPU: texts are compiled for the host
 * behind the headers of tests/emulate, and all launches of a kernel run there as they would on a device.
 *
 *     emulate [programs] [folder for what is compiled]
 *             [texts | forms | all | rows | scans | moves | hopper | few | scaled | groups | attention | parts | open | sweep | file]
 *
 *     texts      it is skipped
 *     forms      Hopper's product, attention, rows of all lengths, and as many others as have every form at
 *                least once; each runs once, with what it waits for at once or late, in turn
 *     all        everything but the sweep
 *     rows       the mainloop over rows alone
 *     scans      recurrences alone; behind it the program of tests/scans.epi that is wanted
 *     moves      gathers, scatters and long sums alone
 *     hopper     Hopper's product and attention alone
 *     few        Hopper's product for few rows alone
 *     scaled     Hopper's product of operands of 8 bits alone
 *     groups     products of groups alone; behind it the program of tests/groups.epi that is wanted
 *     attention  attention alone
 *     parts      programs of several parts alone; behind it the program that is wanted
 *     open       open rows alone: every program, at two sizes with one text
 *     sweep      Hopper's product for all products of the table
 *     file       all programs of a text, in bf16 on Hopper; behind it the text's path without its ending, as seen from
 *                the folder of programs, and sizes: emulate programs build/emulate file ../tests/scans B=2,T=9,D=16
 *
 * Covered: the three mainloops of products with their epilogues, those of attention, the mainloop over rows
 * in many shapes, the finishing kernels, the passes of the unfused path, and copies of operands. What fences
 * and the order of memory would have to see to, no emulator shows. Results are held against the f64 reference
 * by the rule of all the other tests. */
#include <sys/stat.h>

#include "cases.h"
#include "emulate/parts.h"
#include "forms.h"
#include "moves.h"
#include "pass/rewrite/attention_form.h"
#include "pass/rewrite/groups.h"
#include "pass/rewrite/widen.h"
#include "pass/schedule/walk.h"
#include "random_program.h"
#include "shapes.h"
#include "spec.h"

static const char *programs;
static epi_context *ctx;

/* ---- kernels ---- */

typedef struct variant {
    epi_dtype type;
    epi_path path;
    int capability;
    const char *config; /* NULL: the model's choice */
    bool exact;
} variant;

enum { MOST_KERNELS = 4096 };

typedef struct emulated {
    const loaded *l;
    variant v;
    epi_arena arena;
    epi_cuda_kernel *k;
    int texts[MOST_LAUNCHES];
    int one;      /* the kernel that does the same with one row, or 0 */
    bool partner; /* it is such a kernel, and not run by itself */
    bool stays;   /* it is run whatever forms others have */
    bool copies;  /* the copies ahead of the product alone */
    bool left_out;
    const loaded *up; /* not NULL: the row axes are open, up to its sizes */
    int closed;       /* then the kernel that was compiled for its sizes alone, or 0 */
} emulated;

static emulated kernels[MOST_KERNELS];
static bool half; /* every kernel runs once, with what it waits for at once or late */
static int kernel_count, refused;

/* `copies` takes the copies ahead of a product alone. Of a kernel that is open up to other sizes than its
 * own, the kernel before is the same with those: it takes its texts. */
static bool add_kernel_open(const loaded *l, const loaded *up, variant v, bool copies, int multiprocessors) {
    if (!check(kernel_count < MOST_KERNELS, "more kernels than expected"))
        return false;
    emulated *e = &kernels[kernel_count];
    epi_spec spec;
    epi_error err = {0};
    *e = (emulated){.l = l, .v = v, .copies = copies, .up = up};
    epi_cuda_target target = {.arch = epi_arch_of(v.capability),
                              .multiprocessors = multiprocessors,
                              .config = v.config,
                              .exact = v.exact};
    const epi_cuda_kernel *form = up && up != l ? kernels[kernel_count - 1].k : NULL;
    target.forms = &form;
    target.form_count = form != NULL;
    epi_backend_limits limits = {.attention_most = 256, .attention_multiple = 8};
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
        return false;
    }
    kernel_count++;
    return true;
}

static bool add_kernel_for(const loaded *l, variant v, bool copies, int multiprocessors) {
    return add_kernel_open(l, NULL, v, copies, multiprocessors);
}

static bool emulates(const emulated *e, int launch) {
    const epi_launch *s = &e->k->launches[launch];
    return !e->left_out && !s->empty && !(e->copies && s->kind == EPI_LAUNCH_GEMM);
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
    if (launch->kind != EPI_LAUNCH_GEMM && launch->kind != EPI_LAUNCH_ATTENTION)
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
            chosen[kernels[i].one] |= kernels[i].one > 0;
            chosen[kernels[i].closed] |= kernels[i].closed > 0;
        }
    }
    for (int i = 0; i < kernel_count; i++)
        kernels[i].left_out = !chosen[i] && !kernels[i].stays;
}

static void add_texts(void) {
    for (int i = 0; i < kernel_count; i++)
        for (int n = 0; n < kernels[i].k->count; n++)
            if (emulates(&kernels[i], n))
                kernels[i].texts[n] = add_text(&kernels[i].k->launches[n].text);
}

/* Two multiprocessors: a block has more than one tile to make. */
static bool add_kernel(const loaded *l, variant v, bool copies) {
    return add_kernel_for(l, v, copies, 2);
}

/* A configuration may be refused; what the model takes instead may not. */
static void add_case(const loaded *l, variant v) {
    if (!add_kernel(l, v, false)) {
        v.config = NULL;
        add_kernel(l, v, false);
    }
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
        if (e->copies && s->kind == EPI_LAUNCH_GEMM)
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

/* Tensors of the shapes that a kernel has. */
static bool make_problem(const emulated *e, problem *p) {
    epi_options o = case_options(e->l, e->v.type, e->v.path);
    epi_kernel *shapes = NULL;
    *p = (problem){0};
    bool ok = epi_kernel_compile(e->l->program, &o, &shapes, NULL) == EPI_OK &&
              problem_make(p, e->l->program, shapes, LAYOUT_PLAIN);
    epi_kernel_free(shapes);
    if (!check(ok, "%s %s has shapes, and memory", e->l->from->program, e->l->from->dims)) {
        problem_free(p);
        return false;
    }
    problem_fill(p, CASE_SEED);
    return true;
}

/* A batch of one gives the bits of that row in a larger batch. */
static void compare_row(const emulated *e, const problem *many, int64_t row, const char *what) {
    const emulated *o = &kernels[e->one];
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
    const emulated *c = &kernels[e->closed];
    problem p;
    if (!runs(c) || !make_problem(c, &p))
        return;
    run_launches(c, &p, false, what);
    for (int i = p.inputs; i < p.count; i++)
        check(!memcmp(p.t[i].data, open->t[i].data,
                      (size_t)p.t[i].shape.count * epi_dtype_size(p.t[i].shape.type)),
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
            check(!memcmp(p.t[o].data, apart->t[o].data,
                          (size_t)p.t[o].shape.count * epi_dtype_size(p.t[o].shape.type)),
                  "%s: tensor %d in the place of %d, bit for bit", what, o, i);
            p.t[o].data = own;
            problem_free(&p);
        }
}

/* A page outside of the table counts as one of zeros. All tokens are seen. */
static void compare_outside(const emulated *e, const char *what) {
    problem p[2];
    enum { K = 1, V, PAGE, LENGTH };
    if (strcmp(e->l->from->program, "paged_attention") || !make_problem(e, &p[0]))
        return;
    bool made = make_problem(e, &p[1]);
    for (int n = 0; n < 2 && made; n++) {
        tensor *table = &p[n].t[PAGE], *length = &p[n].t[LENGTH];
        int64_t pages = p[n].t[K].shape.sizes[0], last = table->shape.count - 1;
        for (int i = K; i <= V; i++) /* the first page of keys and of values is 0 */
            memset(p[n].t[i].data, 0,
                   (size_t)(p[n].t[i].shape.count / pages) * epi_dtype_size(p[n].t[i].shape.type));
        put_element(table->data, table->shape.type, 1, n ? -1 : 0);
        put_element(table->data, table->shape.type, last, n ? (double)pages : 0);
        for (int64_t i = 0; i < length->shape.count; i++)
            put_element(length->data, length->shape.type, i,
                        (double)(table->shape.sizes[1] * p[n].t[K].shape.sizes[1]));
        run_launches(e, &p[n], false, what);
    }
    for (int i = p[0].inputs; i < p[0].count && made; i++)
        check(!memcmp(p[0].t[i].data, p[1].t[i].data,
                      (size_t)p[0].t[i].shape.count * epi_dtype_size(p[0].t[i].shape.type)),
              "%s: a page outside of the table is one of zeros", what);
    problem_free(&p[0]);
    problem_free(&p[1]);
}

/* The axis of 384 positions, or of 128, in a tensor; and the elements before and behind it. */
static bool along(const tensor *t, int64_t size, int64_t *outer, int64_t *inner) {
    *outer = *inner = 1;
    bool found = false;
    for (int a = 0; a < t->shape.rank; a++) {
        *(found ? inner : outer) *= found || t->shape.sizes[a] != size ? t->shape.sizes[a] : 1;
        found |= t->shape.sizes[a] == size;
    }
    return found;
}

/* A document among others, from a multiple of a tile of keys on, has the bits that it has alone. That the
 * others are no numbers does not matter: no tile of theirs is read. The next kernel has it alone. */
static void compare_alone(const emulated *e, const char *what) {
    enum { PACKED = 384, ALONE = 128, FIRST = PACKED - ALONE };
    const emulated *o = e + 1;
    problem p, q;
    if (e->up || !strstr(e->l->from->file, "attention") || strncmp(e->l->from->program, "packed", 6) ||
        o >= kernels + kernel_count || o->up || strcmp(e->l->from->program, o->l->from->program) ||
        !runs(o) || !make_problem(e, &p))
        return;
    bool made = make_problem(o, &q);
    for (int i = 0; i < p.inputs && made; i++) {
        int64_t outer, inner;
        epi_dtype type = p.t[i].shape.type;
        size_t size = epi_dtype_size(type);
        if (!check(along(&p.t[i], PACKED, &outer, &inner), "%s: input %d has positions", what, i))
            continue;
        for (int64_t n = 0; n < outer * PACKED * inner; n++)
            if (type == EPI_I32)
                put_element(p.t[i].data, type, n, n / inner % PACKED < FIRST ? 7 : 8);
            else if (n / inner % PACKED < FIRST)
                put_element(p.t[i].data, type, n, (double)NAN);
        for (int64_t n = 0; n < outer; n++)
            memcpy(q.t[i].data + (size_t)(n * ALONE * inner) * size,
                   p.t[i].data + (size_t)((n * PACKED + FIRST) * inner) * size,
                   (size_t)(ALONE * inner) * size);
    }
    if (made) {
        run_launches(e, &p, false, what);
        run_launches(o, &q, false, what);
    }
    for (int i = p.inputs; i < p.count && made; i++) {
        int64_t outer, inner;
        size_t size = epi_dtype_size(p.t[i].shape.type);
        bool same = along(&p.t[i], PACKED, &outer, &inner);
        for (int64_t n = 0; n < outer && same; n++)
            same = !memcmp(q.t[i].data + (size_t)(n * ALONE * inner) * size,
                           p.t[i].data + (size_t)((n * PACKED + FIRST) * inner) * size,
                           (size_t)(ALONE * inner) * size);
        check(same, "%s: tensor %d, a document among others has the bits that it has alone", what, i);
    }
    problem_free(&p);
    if (made)
        problem_free(&q);
}

/* What a prefix and the positions after it hide is not read: of the first 128 queries the last 128 keys, of
 * the last keys the first queries. No numbers there change nothing. Prefixes are 11 and 41. */
static void compare_hidden(const emulated *e, const char *what) {
    enum { ALL = 384, PART = 128 };
    bool keys = strstr(e->l->from->program, "_keys");
    problem p[2];
    if (e->up || strncmp(e->l->from->program, "prefix", 6) || !make_problem(e, &p[0]))
        return;
    bool made = make_problem(e, &p[1]);
    for (int i = 0; i < p[1].inputs && made; i++) {
        int64_t outer, inner;
        epi_tensor_info info;
        epi_program_tensor(e->l->program, i, &info);
        bool streams = false;
        for (int a = 0; a < info.rank; a++)
            streams |= !strcmp(info.axes[a].dim, keys ? "S" : "R");
        if (streams && check(along(&p[1].t[i], ALL, &outer, &inner), "%s: input %d", what, i))
            for (int64_t n = 0; n < outer * ALL * inner; n++)
                if (keys ? n / inner % ALL < PART : n / inner % ALL >= ALL - PART)
                    put_element(p[1].t[i].data, p[1].t[i].shape.type, n, (double)NAN);
    }
    for (int n = 0; n < 2 && made; n++)
        run_launches(e, &p[n], false, what);
    for (int i = p[0].inputs; i < p[0].count && made; i++) {
        int64_t outer, inner, first = keys ? ALL - PART : 0;
        size_t size = epi_dtype_size(p[0].t[i].shape.type);
        bool same = along(&p[0].t[i], ALL, &outer, &inner);
        for (int64_t n = 0; n < outer && same; n++)
            same = !memcmp(p[0].t[i].data + (size_t)((n * ALL + first) * inner) * size,
                           p[1].t[i].data + (size_t)((n * ALL + first) * inner) * size,
                           (size_t)(PART * inner) * size);
        check(same, "%s: tensor %d, what is hidden is not read", what, i);
    }
    problem_free(&p[0]);
    if (made)
        problem_free(&p[1]);
}

/* What a recurrence has as its factor at the first of its 40 steps is not looked at. */
static void compare_first(const emulated *e, const char *what) {
    enum { STEPS = 40 };
    bool back = !strcmp(e->l->from->program, "first_back");
    problem p[2];
    int64_t outer, inner;
    if (e->up || strncmp(e->l->from->program, "first", 5) || !make_problem(e, &p[0]))
        return;
    if (!make_problem(e, &p[1])) {
        problem_free(&p[0]);
        return;
    }
    tensor *a = &p[1].t[0];
    for (int64_t n = 0; along(a, STEPS, &outer, &inner) && n < a->shape.count; n++)
        if (n / inner % STEPS == (back ? STEPS - 1 : 0))
            put_element(a->data, a->shape.type, n, n % 2 ? INFINITY : (double)NAN);
    for (int n = 0; n < 2; n++)
        run_launches(e, &p[n], false, what);
    check(!memcmp(p[0].t[2].data, p[1].t[2].data,
                  (size_t)p[0].t[2].shape.count * epi_dtype_size(p[0].t[2].shape.type)),
          "%s: nothing is before the first step", what);
    /* large factors of nothing are nothing; an infinite one, the first of a run, makes it no number from there on */
    for (int infinite = 0; infinite < 2; infinite++) {
        tensor *y = &p[1].t[2];
        for (int64_t n = 0; along(a, STEPS, &outer, &inner) && n < a->shape.count; n++) {
            int64_t step = n / inner % STEPS;
            bool here = infinite && (back ? STEPS - 1 - step : step) == 8;
            put_element(a->data, a->shape.type, n, here ? INFINITY : infinite ? 0.5 : 1e30);
            put_element(p[1].t[1].data, p[1].t[1].shape.type, n, 0);
        }
        run_launches(e, &p[1], false, what);
        int wrong = 0;
        for (int64_t n = 0; n < y->shape.count; n++) {
            int64_t step = n / inner % STEPS;
            double got = get_element(y->data, y->shape.type, n);
            bool none = infinite && (back ? STEPS - 1 - step : step) >= 8;
            wrong += none ? got == got : got != 0;
        }
        check(!wrong, "%s: %s factors of a state of nothing", what, infinite ? "infinite" : "large");
    }
    problem_free(&p[0]);
    problem_free(&p[1]);
}

static void run_kernel(const emulated *e, const oracles *oracle) {
    const loaded *l = e->l;
    bool fused = e->k->steps.plan.kind != EPI_KIND_PASS;
    char what[300], how[96];
    snprintf(how, sizeof how, "%s %s%s %s %s, %d", epi_dtype_name(e->v.type), e->up ? "open " : "",
             e->v.path == EPI_PATH_FUSED ? "fused" : "unfused", e->v.exact ? "exact" : "packed",
             e->v.config ? e->v.config : "chosen", e->v.capability);
    snprintf(what, sizeof what, "%s:%s %s %s", l->from->file, l->from->program, l->from->dims, how);
    /* where each runs once, what came at once in one kernel comes late in the next */
    int first = half && !e->closed ? (int)(e - kernels) % 2 : 0;
    for (int late = first; late < (half ? first + 1 : 2) && runs(e); late++) {
        problem p;
        if (!make_problem(e, &p))
            return;
        run_launches(e, &p, late, what);
        if (!e->copies)
            check_rule(&p, l, oracle, fused && e->v.exact ? EPI_F32 : e->v.type, how);
        if (e->closed && !late)
            compare_closed(e, &p, what);
        compare_outside(e, what);
        compare_alone(e, what);
        compare_hidden(e, what);
        compare_first(e, what);
        if (!e->copies && !(half && e->up))
            compare_in_place(e, &p, late, what);
        for (int64_t row = late; e->one && row < l->dims[0].size; row += 18)
            compare_row(e, &p, row, what);
        problem_free(&p);
    }
}

static void run_kernels(void) {
    oracles oracle = {0};
    const emulated *last = NULL;
    for (int i = 0; i < kernel_count; i++) { /* kernels of one program and type follow each other */
        const emulated *e = &kernels[i];
        if (e->partner || e->left_out)
            continue;
        if (!last || e->l != last->l || e->v.type != last->v.type) {
            oracles_free(&oracle);
            oracles_make(e->l, e->v.type, &oracle);
        }
        if (check(oracle.ok, "%s %s has a reference", e->l->from->program, e->l->from->dims))
            run_kernel(e, &oracle);
        last = e;
    }
    oracles_free(&oracle);
}

static void free_kernels(void) {
    for (int i = 0; i < kernel_count; i++) {
        epi_cuda_kernel_free(kernels[i].k);
        epi_arena_free(&kernels[i].arena);
    }
}

/* ---- programs of several parts ---- */

/* Whole programs, on Hopper unless another GPU is named, part by part as a run starts them: slices of inputs,
 * values between the parts. */
static struct whole {
    test_case from;
    int capability; /* 0: 90 */
    int attentions; /* kernels of attention there are then */
    loaded l;
    in_parts run;
    int joined; /* launches of several parts there are, at least; a GPU has so few multiprocessors then that blocks have tiles of
                        several parts */
    bool f16;
    bool among;     /* a part has what it uses for itself among the values */
    const char *up; /* rows are open, up to these sizes */
    epi_kernel *largest;
    struct whole *apart; /* the same with each part launched by itself */
} wholes[] = {
    {.from = {"../tests/joint", "projections", "T=300,D=72,H=6,G=2,E=64", 0}, .joined = 1},
    {.from = {"../tests/joint", "projections", "T=140,D=72,H=3,G=1,E=32", 0}, .joined = 1, .f16 = true},
    {.from = {"../tests/joint", "projections", "T=530,D=72,H=4,G=2,E=128", 0}, .joined = 1},
    {.from = {"../tests/joint", "projections", "T=300,D=72,H=6,G=2,E=64", 0}, .joined = 1, .up = "T=2000"},
    {.from = {"../tests/joint", "projections", "T=5,D=72,H=6,G=2,E=64", 0}, .joined = 1},
    {.from = {"../tests/joint", "head_norms", "B=2,T=150,D=72,G=2,H=2,E=128", 0}, .joined = 1},
    {.from = {"../tests/joint", "head_norms", "B=2,T=90,D=72,G=1,H=3,E=64", 0}, .joined = 1, .f16 = true},
    {.from = {"../tests/joint", "head_norms", "B=2,T=150,D=72,G=2,H=2,E=128", 0}, .joined = 1, .up = "T=700"},
    {.from = {"../tests/row_sums", "head_norm_back", "T=150,H=3,P=128", 0}},
    {.from = {"../tests/row_sums", "head_norm_back", "T=150,H=3,P=64", 0}, .up = "T=900"},
    {.from = {"../tests/joint", "biased", "T=300,D=72,A=264,B=72,C=40", 0}, .joined = 1},
    {.from = {"../tests/joint", "biased", "T=20,D=72,A=264,B=72,C=40", 0}, .joined = 1, .f16 = true},
    {.from = {"../tests/joint", "biased", "T=20,D=72,A=264,B=72,C=40", 0}, .joined = 1, .up = "T=3000"},
    {.from = {"../tests/joint", "folded", "T=300,D=72,A=136,B=72,C=40,E=24", 0}, .joined = 1},
    {.from = {"../tests/joint", "folded", "T=200,D=72,A=131,B=67,C=35,E=21", 0}, .joined = 1},
    {.from = {"../tests/joint", "paired", "T=300,D=72,A=264,B=136,C=72", 0}, .joined = 1},
    {.from = {"../tests/joint", "paired", "T=20,D=72,A=264,B=136,C=72", 0}, .joined = 1, .f16 = true},
    {.from = {"../tests/joint", "pair_first", "T=140,D=72,A=136,B=40", 0}, .joined = 1},
    {.from = {"../tests/joint", "pairs", "T=140,D=72,A=136,B=40", 0}, .joined = 1},
    {.from = {"../tests/joint", "weights", "T=304,D=72,A=264,B=72,C=136", 0}, .joined = 1},
    {.from = {"../tests/joint", "weights", "T=304,D=72,A=264,B=72,C=136", 0},
     .joined = 1,
     .f16 = true,
     .up = "T=1024"},
    {.from = {"../tests/joint", "layers", "T=300,D=72,A=136,B=72", 0}, .joined = 2},
    {.from = {"blocks", "packed_qkv", "T=70,D=72,H=2,E=32", 0}},
    {.from = {"blocks", "packed_qkv", "T=70,D=72,H=2,E=33", 0}}, /* slices that begin where TMA takes none */
    {.from = {"blocks", "packed_swiglu", "T=60,D=72,F=40", 0}},
    {.from = {"decode", "decode_layer", "B=3,D=64,G=2,H=2,E=32,F=128,R=150", 0}},
    {.from = {"decode", "decode_layer", "B=3,D=64,G=2,H=2,E=32,F=128,R=150", 0},
     .capability = 80,
     .attentions = 1},
    {.from = {"../tests/attention", "trained", "B=2,H=2,S=80,R=100,E=32,F=16", 0},
     .capability = 86,
     .attentions = 3},
    {.from = {"../tests/attention", "trained_linear", "B=2,H=2,S=150,R=140,E=32,F=16", 0},
     .capability = 90,
     .attentions = 3},
    {.from = {"../tests/attention", "trained_linear", "B=2,H=2,S=150,R=140,E=32,F=16", 0},
     .capability = 80,
     .attentions = 3},
    {.from = {"../tests/attention", "trained_decay", "B=2,H=2,S=150,R=140,E=32,F=16", 0},
     .capability = 90,
     .attentions = 2},
    {.from = {"../tests/attention", "trained_decay", "B=2,H=2,S=150,R=140,E=32,F=16", 0},
     .capability = 80,
     .attentions = 2},
    {.from = {"../tests/attention", "trained_sigmoids", "B=1,G=2,H=2,S=70,R=140,E=32,F=16", 0},
     .capability = 90,
     .attentions = 2},
    {.from = {"../tests/attention", "trained_sigmoids", "B=1,G=2,H=2,S=70,R=140,E=32,F=16", 0},
     .capability = 80,
     .attentions = 2},
    {.from = {"../tests/attention", "trained_slope", "B=1,H=2,S=150,R=140,E=32,F=16", 0},
     .capability = 90,
     .attentions = 3},
    {.from = {"../tests/attention", "trained_slope", "B=1,H=2,S=150,R=140,E=32,F=16", 0},
     .capability = 80,
     .attentions = 3},
    {.from = {"../tests/attention", "shared_scores", "B=2,H=3,S=150,R=140,E=32,F=16", 0},
     .capability = 90,
     .attentions = 1},
    {.from = {"../tests/attention", "shared_scores", "B=2,H=3,S=150,R=140,E=32,F=16", 0},
     .capability = 80,
     .attentions = 1},
    {.from = {"../tests/attention", "trained_shared", "B=2,H=3,S=150,R=140,E=32,F=16", 0},
     .capability = 90,
     .attentions = 2},
    {.from = {"../tests/attention", "trained_shared", "B=2,H=3,S=150,R=140,E=32,F=16", 0},
     .capability = 80,
     .attentions = 2},
    {.from = {"../tests/attention", "gated_row", "B=1,S=1,R=9,H=1,E=16,F=8", 0},
     .capability = 90,
     .attentions = 1},
    {.from = {"../tests/attention", "gated_row", "B=1,S=1,R=9,H=1,E=16,F=8", 0},
     .capability = 80,
     .attentions = 1},
    {.from = {"../tests/attention", "halves_after", "S=80,R=100,E=32", 0}, .capability = 90, .attentions = 1},
    {.from = {"../tests/attention", "halves_after", "S=80,R=100,E=32", 0}, .capability = 80, .attentions = 1},
    {.from = {"../tests/attention", "masked_again", "S=200,R=220,E=32", 0},
     .capability = 90,
     .attentions = 1},
    {.from = {"../tests/attention", "masked_again", "S=200,R=220,E=32", 0},
     .capability = 80,
     .attentions = 1},
    {.from = {"../tests/attention", "masked_factor", "S=200,R=220,E=32", 0},
     .capability = 90,
     .attentions = 1},
    {.from = {"../tests/attention", "masked_factor", "S=200,R=220,E=32", 0},
     .capability = 80,
     .attentions = 1},
    {.from = {"../tests/wide", "wide_heads", "B=2,S=40,F=2,G=2,E=264,H=16", 0}},
    {.from = {"../tests/wide", "wide_heads", "B=2,S=40,F=2,G=2,E=264,H=16", 0}, .capability = 80},
    {.from = {"../tests/spills", "norm_linear_back", "T=70,D=1024,F=72", 0}}, /* rows come by TMA */
    {.from = {"../tests/spills", "norm_linear_back", "T=70,D=300,F=40", 0}},
    {.from = {"../tests/spills", "add_norm", "T=70,D=300,K=40", 0}},
    {.from = {"../tests/choice", "largest", "T=70,D=40,N=300", 0}},
    {.from = {"../tests/choice", "largest", "T=70,D=40,N=300", 0}, .capability = 80},
    {.from = {"../tests/choice", "routed", "T=70,D=40,N=64", 0}},
    {.from = {"../tests/choice", "scaled", "T=70,D=300", 0}},
    {.from = {"../tests/choice", "pooled", "T=70,D=40", 0}},
    {.from = {"../tests/groups", "experts", "T=150,K=3,D=72,F=136,E=5", 0}},
    {.from = {"../tests/groups", "biased", "T=300,K=2,D=72,F=136,E=8", 0}},
    {.from = {"../tests/orders", "order", "T=1700,K=3,E=40", 0}}, /* two blocks */
    {.from = {"../tests/orders", "order", "T=5,K=3,E=300", 0}},
    {.from = {"../tests/orders", "order", "T=300,K=3,E=5000", 0}}, /* by comparisons */
    {.from = {"../tests/orders", "turned", "T=50,K=3,E=7", 0}},
    {.from = {"../tests/orders", "outside", "T=20,E=7,K=3", 0}},
    {.from = {"../tests/groups", "experts", "T=150,K=3,D=72,F=136,E=5", 0}, .capability = 80},
    {.from = {"../tests/groups", "summed", "T=300,K=2,D=72,F=136,E=8", 0}},
    {.from = {"../tests/groups", "summed_across", "T=40,K=20,F=67,E=9", 0}},
    {.from = {"../tests/groups", "counted", "T=300,K=2,E=8", 0}},
    {.from = {"../tests/experts", "paired", "T=100,K=2,E=5,D=40,F=144", 0}},
    {.from = {"../tests/experts", "bias_times", "T=100,K=3,E=5,D=40,F=72", 0}},
    {.from = {"../tests/chosen", "heads", "B=3,T=140,D=72,F=136,E=5", 0}},
    {.from = {"../tests/chosen", "between", "B=3,T=70,D=72,F=72,E=5", 0}},
    {.from = {"../tests/chosen", "between", "B=8,T=6,D=4,F=12,E=10", 0}}, /* matrices that no 16 bytes begin */
    {.from = {"../tests/chosen", "turned", "B=5,T=3,D=72,F=72,E=4", 0}},
    {.from = {"../tests/chosen", "of_two", "B=3,H=2,T=70,D=72,F=72,E=5", 0}, .capability = 80},
    {.from = {"../tests/chosen", "heads", "B=3,T=70,D=7,F=9,E=5", 0}},
    {.from = {"../tests/chosen", "unchecked", "B=3,T=20,D=24,F=40,E=5", 0}, .up = "T=300"},
    {.from = {"../tests/orders", "largest_sorted", "T=300,D=72,E=19", 0}},
    {.from = {"../tests/orders", "largest_only", "T=300,E=19,J=3", 0}},
    {.from = {"../tests/groups", "shared_rows", "T=300,K=2,D=72,F=136,E=8", 0}},
    {.from = {"quantise", "linear_i8", "T=70,D=72,F=136", 0}},
    {.from = {"quantise", "linear_e4m3", "T=70,G=3,K=24,F=72", 0}},
    {.from = {"quantise", "linear_u8", "T=70,G=3,K=23,F=71", 0}, .capability = 80},
    {.from = {"quantise", "swiglu_e4m3", "T=70,D=72,F=136", 0}},
    {.from = {"quantise", "swiglu8_quantised", "T=200,G=3,K=128,F=3,M=128", 0}},
    {.from = {"quantise", "quantise_both", "N=2,R=128,G=3,K=128", 0}}, /* square tiles */
    {.from = {"quantise", "quantise_both", "N=2,R=128,G=1,K=128", 0}, .capability = 80},
    {.from = {"fp8", "weight8", "P=3,M=128,G=2,K=128", 0}},
    {.from = {"quantise", "quantise_both", "N=2,R=128,G=3,K=32", 0}},
    {.from = {"quantise", "quantise_both", "N=3,R=24,G=2,K=20", 0}, .capability = 80},
    {.from = {"quantise", "norm_quantised", "T=9,G=16,K=64", 0}},
    {.from = {"quantise", "norm_quantised", "T=5,G=300,K=128", 0}}, /* blocks of a cluster share a row */
    {.from = {"quantise", "norm_quantised", "T=70,G=2,K=128", 0}, .capability = 80},
    {.from = {"quantise", "norm_quantised", "T=9,G=5,K=24", 0}}, /* a warp has no such groups */
    {.from = {"quantise", "linear_quantised", "T=200,D=72,G=3,K=128", 0}},
    {.from = {"quantise", "linear_quantised", "T=70,D=72,G=5,K=24", 0}}, /* no mainloop holds such groups */
    {.from = {"quantise", "linear_quantised", "T=70,D=72,G=5,K=32", 0}, .capability = 80},
    {.from = {"quantise", "swiglu_quantised", "T=200,D=72,G=3,K=128", 0}},
    {.from = {"quantise", "swiglu_quantised_kept", "T=200,D=72,G=5,K=64", 0}},
    {.from = {"../tests/fp8_saved", "projections8_forward", "N=2,R=128,G=1,K=128,P=2,M=128,L=1,Z=1", 0}},
    {.from = {"../tests/fp8_saved", "projections8_backward", "N=2,R=128,G=1,K=128,P=2,M=128,L=1,Z=1", 0}},
    {.from = {"../tests/fp8_saved", "rest8_forward", "N=2,R=128,G=1,K=128,P=1,M=128,F=2,Z=1", 0}},
    {.from = {"../tests/fp8_saved", "rest8_backward", "N=2,R=128,G=1,K=128,P=1,M=128,F=2,Z=1", 0}},
    {.from = {"../tests/scaled", "both_orders", "T=70,G=1,K=128,P=2,M=128", 0}},
    {.from = {"../tests/scaled", "copied", "T=70,G=2,K=128,N=1,J=128", 0}},
    {.from = {"../tests/scaled", "gated_made", "T=140,G=2,K=128,N=2,J=128", 0}},
    {.from = {"../tests/few_bits", "half_scale", "T=3,G=3,D=32,F=72", 0}},
    {.from = {"../tests/few_bits", "half_scale", "T=60,G=9,D=32,F=24", 0}},  /* rows that stay in memory */
    {.from = {"../tests/few_bits", "half_scale", "T=2,G=9,D=64,F=8600", 0}}, /* more tiles than blocks */
    {.from = {"../tests/few_bits", "byte_zero", "T=3,G=2,D=32,F=72", 0}},
    {.from = {"../tests/few_bits", "offset", "T=3,G=2,D=64,F=72", 0}},
    {.from = {"../tests/few_bits", "only_zero", "T=3,G=2,D=32,F=72", 0}},
    {.from = {"../tests/few_bits", "gated", "T=3,G=2,D=64,F=72", 0}},
    {.from = {"../tests/few_bits", "gated_made", "T=3,G=2,D=64,F=72", 0}},
    {.from = {"../tests/few_bits", "added", "T=3,G=2,D=64,F=72", 0}},
    {.from = {"../tests/few_bits", "turned", "T=3,G=2,D=64,F=72", 0}},
    {.from = {"../tests/few_bits", "both", "T=3,G=2,D=64,F=72", 0}},
    {.from = {"../tests/few_bits", "other_order", "T=3,G=2,D=64,F=72", 0}},
    {.from = {"../tests/few_bits", "large_group", "T=3,G=2,C=4,D=32,F=40", 0}},
    {.from = {"../tests/few_bits", "few_scales", "T=3,G=2,D=64,F=20,E=3", 0}},
    {.from = {"../tests/few_bits", "batched", "B=2,T=3,G=2,D=64,F=24", 0}},
    {.from = {"../tests/few_bits", "halved", "T=3,D=64,F=40", 0}},
    {.from = {"../tests/few_bits", "neighbours", "T=3,G=2,D=64,F=40", 0}},
    {.from = {"../tests/few_bits", "stacked", "T=3,G=2,D=64,F=40", 0}},
    {.from = {"../tests/few_bits", "cached", "T=3,H=2,D=64,R=40", 0}},
    {.from = {"../tests/few_bits", "experts_i8", "T=3,D=64,E=5,F=72,K=2", 0}},
    {.from = {"../tests/few_bits", "experts_i4", "T=3,G=2,D=32,E=5,F=72,K=2", 0}},
    {.from = {"../tests/few_bits", "layer_i8", "T=1,M=2,J=64,G=2,K=64", 0}},
    {.from = {"../tests/few_bits", "layer_i8", "T=11,M=9,J=64,G=5,K=64", 0}},
    {.from = {"../tests/few_bits", "layer_i8", "T=70,M=2,J=64,G=2,K=64", 0}}, /* made ahead */
    {.from = {"../tests/few_bits", "layer_i4", "T=3,M=3,J=32,G=9,K=128", 0}},
    {.from = {"../tests/few_bits", "layer_i4", "T=20,M=2,J=64,G=3,K=64", 0}},
    {.from = {"../tests/few_bits", "layer_i4", "T=2,M=2,J=64,G=2,K=64", 0}, .capability = 80},
    {.from = {"../tests/few_bits", "layer_u4", "T=5,F=136,G=9,K=32", 0}},
    {.from = {"../tests/few_bits", "layer_u4", "T=9,F=128,G=9,K=64", 0}},
    {.from = {"../tests/few_bits", "layer_u8", "T=4,F=128,G=9,K=32", 0}},
    {.from = {"../tests/few_bits", "layer_e4m3", "T=4,F=128,G=2,K=64", 0}},
    {.from = {"../tests/few_bits", "layer_e4m3", "T=4,F=128,G=2,K=64", 0}, .capability = 80},
    {.from = {"../tests/recurrences", "heads", "B=2,T=21,H=3,N=128,P=40", 0}},
    {.from = {"../tests/recurrences", "heads", "B=2,T=300,H=3,N=128,P=64", 0}}, /* by chunks, from here on */
    {.from = {"../tests/recurrences", "heads", "B=1,T=64,H=2,N=64,P=136", 0}},
    {.from = {"../tests/recurrences", "heads", "B=1,T=17,H=1,N=256,P=24", 0}},
    {.from = {"../tests/recurrences", "heads", "B=1,T=100,H=1,N=128,P=24", 0}, .capability = 80},
    {.from = {"../tests/recurrences", "heads", "B=2,T=70,H=3,N=48,P=40", 0}, .up = "T=1000"},
    {.from = {"../tests/recurrences", "heads", "B=2,T=1,H=3,N=48,P=40", 0}, .up = "T=1000"},
    {.from = {"../tests/recurrences", "heads", "B=2,T=150,H=3,N=128,P=64", 0}, .capability = 80},
    {.from = {"../tests/recurrences", "heads", "B=2,T=150,H=2,N=64,P=72", 0}, .up = "T=1000"},
    {.from = {"../tests/recurrences", "heads_back", "B=1,T=150,H=2,N=64,P=200", 0}},
    {.from = {"../tests/recurrences", "heads_back", "B=1,T=100,H=2,N=128,P=40", 0}},
    {.from = {"../tests/recurrences", "odd", "B=2,T=150,H=2,N=64,P=72", 0}},
    {.from = {"../tests/recurrences", "infinite", "B=2,T=130,H=2,N=128,P=72", 0}},
    {.from = {"../tests/recurrences", "infinite", "B=2,T=130,H=2,N=64,P=72", 0}},
    {.from = {"../tests/recurrences", "last_back", "B=2,T=150,N=64,P=64", 0}},
    {.from = {"../tests/recurrences", "heads_back", "B=1,T=100,H=2,N=32,P=16", 0}},
    {.from = {"../tests/recurrences", "odd", "B=2,T=150,H=2,N=32,P=72", 0}},
    {.from = {"../tests/recurrences", "infinite", "B=2,T=130,H=2,N=32,P=40", 0}},
    {.from = {"../tests/recurrences", "near", "B=2,T=200,H=2,N=64,P=64", 0}},
    {.from = {"../tests/recurrences", "near_back", "B=2,T=150,H=2,N=64,P=32", 0}},
    {.from = {"../tests/recurrences", "near_back", "B=1,T=70,H=2,N=32,P=48", 0}, .up = "T=500"},
    {.from = {"../tests/recurrences", "near_by_decay", "B=2,T=130,H=1,N=128,P=128", 0}}, /* eight warps */
    {.from = {"../tests/recurrences", "near_by_decay", "B=1,T=64,H=2,N=32,P=16", 0}, .capability = 80},
    {.from = {"../tests/recurrences", "near_by_decay_back", "B=1,T=150,H=2,N=64,P=64", 0}},
    {.from = {"../tests/recurrences", "odd_by_decay", "B=2,T=130,H=3,N=48,P=32", 0}},
    {.from = {"../tests/recurrences", "odd_by_decay", "B=2,T=130,H=3,N=128,P=64", 0}},
    {.from = {"../tests/recurrences", "near_by_decay", "B=2,T=130,H=1,N=128,P=128", 0}, .capability = 80},
    {.from = {"../tests/recurrences", "near_back", "B=2,T=150,H=2,N=64,P=128", 0}, .up = "T=1000"},
    {.from = {"../tests/recurrences", "beside_states", "B=2,T=600,H=2,N=128,P=64,F=64", 0}, .among = true},
    {.from = {"../tests/recurrences", "stepped", "B=2,T=100,H=2,N=64,P=64", 0}},
    {.from = {"../tests/recurrences", "gated", "B=2,T=9,H=2,N=20,P=37", 0}}, /* rows that no lane has */
    {.from = {"../tests/recurrences", "heads_back", "B=1,T=17,H=2,N=300,P=6", 0}},
    {.from = {"../tests/recurrences", "inside", "B=3,T=1,N=64,P=9", 0}},
    {.from = {"../tests/recurrences", "heads_by_decay", "B=2,T=150,H=2,N=24,P=12", 0}},
    {.from = {"../tests/recurrences", "gated_by_decay", "B=2,T=70,N=20,P=37", 0}},
    {.from = {"../tests/recurrences", "both", "B=2,T=30,N=16,P=70", 0}, .capability = 80},
    {.from = {"../tests/recurrences", "last_back", "B=2,T=150,N=32,P=40", 0}},
    {.from = {"../tests/stretches", "packed", "T=70,A=72,D=16", 0}},
    {.from = {"../tests/stretches", "packed", "T=70,A=70,D=3", 0}}, /* where TMA takes none */
    {.from = {"../tests/stretches", "put_together", "T=70,A=72,D=16", 0}},
    {.from = {"../tests/stretches", "packed_back", "T=70,A=72", 0}},
    {.from = {"../tests/stretches", "bytes_stretch", "T=600", 0}},
    {.from = {"../tests/stretches", "between", "T=70,D=72,E=24", 0}},
    {.from = {"../tests/stretches", "lone_half", "T=70,D=72,F=64", 0}},
    {.from = {"../tests/stretches", "half_operand", "T=70,D=80,F=72", 0}},
    {.from = {"../tests/stretches", "half_attention", "S=70,R=70,H=2,E=64,F=32", 0},
     .capability = 90,
     .attentions = 1},
    {.from = {"../tests/stretches", "packed_back", "T=70,A=72", 0}, .capability = 80, .attentions = 3},
    {.from = {"../tests/scans", "last", "B=2,T=300,D=24", 0}},
    {.from = {"../tests/scans", "average_back", "B=2,T=300,D=24", 0}},
    {.from = {"../tests/scans", "average_back", "B=3,T=37,D=5", 0}, .capability = 80},
    {.from = {"../tests/scans", "gated_back", "B=2,T=140,D=24", 0}},
    {.from = {"../tests/scans", "last", "B=2,T=37,D=5", 0}, .capability = 80},
    {.from = {"../tests/scans", "from_state", "B=2,T=140,D=24", 0}},
    {.from = {"../tests/scans", "last_inside", "B=2,D=5,T=304", 0}},
    {.from = {"../tests/scans", "last_inside", "B=2,D=5,T=31", 0}},
    {.from = {"../tests/shifts", "convolution", "B=2,T=40,C=24", 0}},
    {.from = {"../tests/shifts", "convolution", "B=3,T=7,C=5", 0}},
    {.from = {"../tests/shifts", "convolution", "B=2,T=2100,C=16", 0}}, /* several blocks along the rows */
    {.from = {"../tests/shifts", "convolution_back", "B=2,T=1100,C=16", 0}},
    {.from = {"../tests/shifts", "convolution_back", "B=2,T=45,C=7", 0}},
    {.from = {"../tests/shifts", "convolution_back", "B=1,T=300,C=40", 0}, .capability = 80},
    {.from = {"../tests/shifts", "convolution_inside", "B=2,C=5,T=40", 0}},
    {.from = {"../tests/shifts", "convolution_inside", "B=2,C=3,T=2", 0}, .capability = 80},
    {.from = {"../tests/shifts", "all_ways", "B=3,T=20,C=16", 0}},
    {.from = {"../tests/shifts", "mixed", "T=40,C=72", 0}},
    {.from = {"../tests/shifts", "around", "T=70,D=40,F=72", 0}},
    {.from = {"../tests/shifts", "thin", "B=5,T=40,C=24", 0}},
    {.from = {"../tests/shifts", "normed", "B=2,T=20,C=48", 0}},
    {.from = {"../tests/shifts", "convolution_inside", "B=2,C=5,T=1024", 0}},
    {.from = {"../tests/shifts", "convolution_inside", "B=2,C=6,T=37", 0}}, /* one by one */
    {.from = {"../tests/shifts", "taken", "B=2,T=6,C=2048", 0}},
    {.from = {"../tests/shifts", "windowed", "B=2,T=30,C=40", 0}},
    {.from = {"../tests/shifts", "kept", "B=2,T=30,C=40", 0}},
    {.from = {"../tests/shifts", "pushed", "T=30,C=40", 0}},
    {.from = {"../tests/shifts", "convolution_back", "B=2,T=70,C=72", 0}},
    {.from = {"../tests/shifts", "convolution_back", "B=2,T=9,C=33", 0}, .capability = 80},
    {.from = {"../tests/shifts", "convolution_inside_back", "B=3,T=72,C=10", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=3,T=1,C=24", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=3,T=2,C=24", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=3,T=3,C=24", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=3,T=4,C=24", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=3,T=5,C=24", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=2,T=63,C=40", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=2,T=64,C=40", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=2,T=65,C=40", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=2,T=129,C=40", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=1,T=1100,C=9", 0}},
    {.from = {"../tests/shifts", "both_sides", "B=9,T=70,C=300", 0}, .f16 = true},
    {.from = {"../tests/shifts", "both_sides", "B=2,T=65,C=33", 0}, .capability = 80},
    {.from = {"../tests/shifts", "both_sides", "B=2,T=70,C=24", 0}, .up = "T=1000"},
    {.from = {"../tests/shifts", "convolution_back", "B=2,T=3,C=24", 0}, .up = "T=300"},
    {.from = {"../tests/shifts", "convolution", "B=2,T=70,C=24", 0}, .up = "B=9,T=300"},
    {.from = {"../tests/shifts", "convolution_back", "B=2,T=1,C=24", 0}},
    {.from = {"../tests/shifts", "convolution_back", "B=2,T=3,C=24", 0}},
    {.from = {"../tests/shifts", "convolution_back", "B=2,T=64,C=24", 0}},
    {.from = {"../tests/shifts", "convolution_back", "B=2,T=129,C=24", 0}},
    {.from = {"../tests/shifts", "nested", "B=2,T=129,C=40", 0}},
    {.from = {"../tests/shifts", "nested", "B=2,T=2,C=7", 0}, .capability = 80},
    {.from = {"../tests/shifts", "nested", "B=3,T=66,C=17", 0}},
    {.from = {"../tests/shifts", "ends", "B=2,T=66,C=24", 0}},
    {.from = {"../tests/shifts", "ends", "B=3,T=1,C=5", 0}},
    {.from = {"../tests/shifts", "ends", "B=2,T=64,C=264", 0}, .capability = 80},
    {.from = {"../tests/shifts", "near_and_far", "B=2,T=70,C=24", 0}},
    {.from = {"../tests/shifts", "near_and_far", "B=2,T=7,C=5", 0}},
    {.from = {"../tests/shifts", "by_steps", "B=2,T=70,C=24", 0}},
    {.from = {"../tests/shifts", "by_steps", "B=3,T=5,C=9", 0}},
    {.from = {"../tests/shifts", "folded", "B=2,T=30,C=40", 0}},
    {.from = {"../tests/shifts", "moved", "B=2,T=65,C=24", 0}},
    {.from = {"../tests/shifts", "moved", "B=2,T=1,C=24", 0}},
    {.from = {"../tests/passes", "clamped", "T=5,D=8", 0}},
    {.from = {"../tests/passes", "heads", "B=3,T=7,H=32,N=72", 0}},
    {.from = {"../tests/passes", "heads", "B=2,T=5,H=65,N=17", 0}, .capability = 80},
    {.from = {"../tests/passes", "heads", "B=2,T=150,H=200,N=40", 0}, .f16 = true},
    {.from = {"../tests/passes", "heads", "B=2,T=5,H=65,N=15", 0}},
    {.from = {"../tests/passes", "heads", "B=2,T=5,H=40,N=136", 0}, .up = "T=300"},
    {.from = {"../tests/passes", "several", "A=70,H=3,N=40", 0}},
    {.from = {"../tests/passes", "steps", "B=3,H=12,T=9", 0}, .up = "T=300"},
    {.from = {"../tests/passes", "over_steps", "B=70,T=9,N=20", 0}, .up = "T=300"},
};
enum { WHOLES = sizeof wholes / sizeof *wholes };
static bool any_text; /* they are of a text that was asked for */

static epi_dtype type_of(const struct whole *w) {
    return w->f16 ? EPI_F16 : EPI_BF16;
}

/* The kernel of a program; where its rows are open, one of its sizes by the texts of one for the largest. */
static epi_status make_whole(struct whole *w, epi_error *err) {
    epi_options o = case_options(&w->l, type_of(w), EPI_PATH_FUSED);
    epi_dim_binding dims[16];
    const char *open = "T";
    o.device = w->capability ? -w->capability : -90;
    if (!w->up)
        return epi_kernel_compile(w->l.program, &o, &w->run.k, err);
    memcpy(dims, o.dims, (size_t)o.dim_count * sizeof *dims);
    for (int i = 0; i < o.dim_count; i++)
        if (!strcmp(dims[i].name, open))
            dims[i].size = atoll(w->up + 2);
    epi_options largest = o;
    largest.dims = dims;
    o.open_axes = largest.open_axes = &open;
    o.open_axis_count = largest.open_axis_count = 1;
    epi_status status = epi_kernel_compile(w->l.program, &largest, &w->largest, err);
    return status == EPI_OK ? epi_kernel_make(w->l.program, &o, w->largest, false, &w->run.k, err) : status;
}

/* The texts of all launches. */
static void add_whole(struct whole *w) {
    int attentions = 0, joined = 0;
    add_parts(&w->run);
    for (int q = 0; q < w->run.k->part_count; q++) {
        const epi_part_kernel *part = &w->run.k->parts[q];
        for (int n = 0; n < part->full.cuda->count; n++)
            attentions += part->full.cuda->launches[n].kind == EPI_LAUNCH_ATTENTION;
        joined += part->joint != NULL;
    }
    check(!w->capability || attentions == w->attentions, "%s on sm_%d has %d kernels of attention",
          w->from.program, w->capability, attentions);
    check(joined >= w->joined, "%s %s has %d launches of several parts", w->from.program, w->from.dims,
          joined);
}

/* The same with each part launched by itself: where there is a budget, none are joined. */
static void add_apart(struct whole *w) {
    epi_options o = case_options(&w->l, type_of(w), EPI_PATH_FUSED);
    struct whole *apart = w->apart = calloc(1, sizeof *apart);
    epi_error err = {0};
    o.device = -90;
    o.memory = (size_t)1 << 40;
    if (!check(apart != NULL, "memory"))
        return;
    *apart = (struct whole){.from = w->from, .l = w->l, .f16 = w->f16};
    apart->run.name = w->from.program;
    if (check(epi_kernel_compile(w->l.program, &o, &apart->run.k, &err) == EPI_OK, "%s apart: %s",
              w->from.program, err.message))
        add_whole(apart);
    for (int q = 0; apart->run.k && q < apart->run.k->part_count; q++)
        check(!apart->run.k->parts[q].joint, "%s is launched apart", w->from.program);
}

/* Programs of any text take the place of the table's: as many as that has. */
static void take_file(const char *file, const char *dims) {
    char path[1024];
    size_t length;
    epi_module *m = NULL;
    epi_error err = {0};
    snprintf(path, sizeof path, "%s/%s.epi", programs, file);
    char *text = read_whole(path, &length);
    memset(wholes, 0, sizeof wholes);
    if (check(text && epi_module_parse(ctx, text, length, path, &m, &err) == EPI_OK, "%s: %s", path,
              err.message))
        for (int i = 0; i < WHOLES && i < epi_module_count(m); i++) /* the module stays: it has the names */
            wholes[i].from = (test_case){file, epi_program_name(epi_module_program(m, i)), dims, 0};
    free(text);
}

/* Of sizes that are given for all programs of a text, those of axes that this one has. */
static void keep_own_dims(loaded *l) {
    int count = 0;
    for (int i = 0; i < l->dim_count; i++)
        for (int d = 0; d < epi_program_dim_count(l->program); d++)
            if (!strcmp(l->dims[i].name, epi_program_dim(l->program, d)))
                l->dims[count++] = l->dims[i];
    l->dim_count = count;
}

/* All of them, or those of one program. */
static void add_wholes(const char *program) {
    for (int i = 0; i < WHOLES && wholes[i].from.file; i++) {
        struct whole *w = &wholes[i];
        epi_error err = {0};
        w->run.name = w->from.program;
        if (program && strcmp(program, w->from.program) != 0)
            continue;
        if (!load_case(ctx, programs, &w->from, &w->l))
            continue;
        if (any_text)
            keep_own_dims(&w->l);
        if (check(make_whole(w, &err) == EPI_OK && w->run.k->part_count <= MOST_PARTS &&
                      w->run.k->parts[0].part,
                  "%s %s in parts: %s", w->from.program, w->from.dims, err.message))
            add_whole(w);
        if (w->joined && w->run.k)
            add_apart(w);
    }
}

/* Caches that are updated in place have the same bits, and so has what is made of them. */
static void compare_updated(const struct whole *w, const problem *apart) {
    emulated like = {.l = &w->l, .v = {EPI_BF16, EPI_PATH_FUSED, 90, NULL, false}};
    const epi_graph *g = &w->l.program->graph;
    unsigned char *own[MAX_TENSORS] = {0};
    problem p;
    if (!make_problem(&like, &p))
        return;
    for (int o = p.inputs; o < p.count; o++)
        for (int i = 0; i < p.inputs && g->nodes[g->tensors[o].node].op == EPI_OP_UPDATE; i++)
            if (epi_kernel_in_place(w->run.k, o, i)) {
                own[o] = p.t[o].data;
                p.t[o].data = p.t[i].data;
            }
    run_parts(&w->run, &p);
    for (int o = p.inputs; o < p.count; o++) {
        check(!memcmp(p.t[o].data, apart->t[o].data,
                      (size_t)p.t[o].shape.count * epi_dtype_size(p.t[o].shape.type)),
              "%s: tensor %d with updates in place, bit for bit", w->from.program, o);
        p.t[o].data = own[o] ? own[o] : p.t[o].data;
    }
    problem_free(&p);
}

/* Has the program nothing but extremes, quotients and conversions, which are the same numbers everywhere? */
static bool is_same_everywhere(const epi_graph *g) {
    bool same = true, converts = false;
    for (int i = 0; i < g->node_count; i++) {
        epi_op op = g->nodes[i].op;
        converts |= op == EPI_OP_E4M3;
        same &= op == EPI_OP_INPUT || op == EPI_OP_CONST || op == EPI_OP_ABS || op == EPI_OP_MAX ||
                op == EPI_OP_RMAX || op == EPI_OP_DIV || op == EPI_OP_E4M3;
    }
    return same && converts;
}

/* What a GPU quantises has the bits that the CPU's has. */
static void compare_cpu(const struct whole *w, const problem *gpu) {
    emulated like = {.l = &w->l, .v = {EPI_BF16, EPI_PATH_FUSED, 90, NULL, false}};
    epi_options o = case_options(&w->l, EPI_BF16, EPI_PATH_FUSED);
    epi_kernel *k = NULL;
    problem p;
    if (!make_problem(&like, &p))
        return;
    check(epi_kernel_compile(w->l.program, &o, &k, NULL) == EPI_OK && problem_run(k, &p),
          "%s runs on the CPU", w->from.program);
    for (int i = p.inputs; i < p.count; i++)
        check(!memcmp(p.t[i].data, gpu->t[i].data,
                      (size_t)p.t[i].shape.count * epi_dtype_size(p.t[i].shape.type)),
              "%s %s: tensor %d has the CPU's bits", w->from.program, w->from.dims, i);
    epi_kernel_free(k);
    problem_free(&p);
}

/* Parts that are launched as one have the bits of launches apart. */
static void compare_apart(const struct whole *w, const problem *joined) {
    emulated like = {.l = &w->l, .v = {type_of(w), EPI_PATH_FUSED, 90, NULL, false}};
    problem p;
    if (!w->apart->run.k || !make_problem(&like, &p))
        return;
    run_parts(&w->apart->run, &p);
    for (int i = p.inputs; i < p.count; i++)
        check(!memcmp(p.t[i].data, joined->t[i].data,
                      (size_t)p.t[i].shape.count * epi_dtype_size(p.t[i].shape.type)),
              "%s %s: tensor %d in one launch, bit for bit", w->from.program, w->from.dims, i);
    problem_free(&p);
}

/* Has a part what it uses for itself among the values? */
static bool has_among(const epi_kernel *k) {
    bool among = false;
    for (int q = 0; q < k->part_count; q++)
        among |= k->parts[q].own >= k->values;
    return among;
}

static void run_whole(const struct whole *w, const oracles *oracle) {
    emulated like = {.l = &w->l, .v = {type_of(w), EPI_PATH_FUSED, 90, NULL, false}};
    problem p;
    if (!make_problem(&like, &p))
        return;
    check(has_among(w->run.k) || !w->among, "%s: no part uses memory among the values", w->from.program);
    run_parts(&w->run, &p);
    check_rule(&p, &w->l, oracle, type_of(w), "part by part");
    if (w->apart)
        compare_apart(w, &p);
    if (!strcmp(w->from.program, "decode_layer"))
        compare_updated(w, &p);
    if (is_same_everywhere(&w->l.program->graph))
        compare_cpu(w, &p);
    problem_free(&p);
}

static void run_wholes(void) {
    for (int i = 0; i < WHOLES; i++) {
        oracles oracle = {0};
        if (!wholes[i].run.k)
            continue;
        oracles_make(&wholes[i].l, type_of(&wholes[i]), &oracle);
        if (check(oracle.ok, "%s has a reference", wholes[i].from.program))
            run_whole(&wholes[i], &oracle);
        oracles_free(&oracle);
        epi_kernel_free(wholes[i].run.k);
        epi_kernel_free(wholes[i].largest);
        epi_kernel_free(wholes[i].apart ? wholes[i].apart->run.k : NULL);
        free(wholes[i].apart);
        epi_module_free(wholes[i].l.module);
    }
}

/* ---- rows of large numbers ---- */

/* The softmax of equal elements is the same whatever they are: masks of finite numbers are common. */
static void run_large(void) {
    static const float equal[] = {-0x1p30f, 0x1p127f, -0x1.fep127f, 1e6f, -65536, 0x1p100f, 3, -INFINITY};
    for (int i = 0; i < kernel_count; i++) {
        const emulated *e = &kernels[i];
        int64_t rows = e->l->dims[0].size, columns = e->l->dims[1].size;
        problem p;
        if (strcmp(e->l->from->program, "softmax") != 0 || e->v.type != EPI_BF16 || rows < 8 || !runs(e) ||
            !make_problem(e, &p))
            continue;
        for (int64_t j = 0; j < 8 * columns; j++)
            put_element(p.t[0].data, EPI_BF16, j, equal[j / columns]);
        run_launches(e, &p, false, "softmax of large numbers");
        for (int row = 0; row < 8; row++) {
            double share = row == 7 ? 0 : 1 / (double)columns;
            bool right = true;
            for (int64_t j = row * columns; j < (row + 1) * columns; j++)
                right &= fabs(get_element(p.t[1].data, EPI_BF16, j) - share) <= share / 128;
            check(right, "softmax of %ld elements %g, %s", (long)columns, equal[row],
                  e->v.config ? e->v.config : "chosen");
        }
        problem_free(&p);
    }
}

/* ---- long sums ---- */

/* As in test_sums.c, with as many terms as the emulator can take. Plain sums are off by 4e-6 to 1e-2. */
enum { TERMS = 1 << 20 };
static const double LONG_BOUND = 2e-6;
static struct long_sum {
    const char *name, *text;
    epi_path path;
    test_case from;
    loaded l;
    epi_kernel *k;
    int texts[MOST_LAUNCHES];
} longs[] = {
    {.name = "scattered",
     .text = "p(x[T,D], i: i32[T]) -> y[V,D] { y = scatter(x, i, V) }",
     .from = {"sums", "p", "T=1048576,D=2,V=1", 0}},
    {.name = "by groups",
     .text = "p(x[T,D], offsets: i32[V]) -> y[V,D] { y = scatter(x, segments(offsets, V, T), V) }",
     .from = {"sums", "p", "T=1048576,D=2,V=1", 0}},
    {.name = "down columns",
     .text = "p(x[T,D]) -> y[D] { y = sum(x, T) }",
     .from = {"sums", "p", "T=1048576,D=3", 0}},
    {.name = "along a row",
     .text = "p(x[T,D]) -> y[T] { y = sum(x, D) }",
     .from = {"sums", "p", "T=1,D=1048576", 0}},
    {.name = "along a row, by passes",
     .text = "p(x[T,D]) -> y[T] { y = sum(x, D) }",
     .path = EPI_PATH_UNFUSED,
     .from = {"sums", "p", "T=1,D=1048576", 0}},
};
enum { LONGS = sizeof longs / sizeof *longs };

static void add_longs(void) {
    for (int i = 0; i < LONGS; i++) {
        struct long_sum *s = &longs[i];
        epi_error err = {0};
        s->l.from = &s->from;
        s->l.dim_count = parse_dims(s->from.dims, s->l.dims, s->l.names);
        if (!check(epi_module_parse(ctx, s->text, strlen(s->text), "sums", &s->l.module, &err) == EPI_OK,
                   "%s", err.message))
            continue;
        s->l.program = epi_module_program(s->l.module, 0);
        epi_options o = case_options(&s->l, EPI_F32, s->path);
        o.device = -90;
        if (!check(epi_kernel_compile(s->l.program, &o, &s->k, &err) == EPI_OK && s->k->part_count == 1,
                   "%s: %s", s->name, err.message))
            continue;
        for (int n = 0; n < s->k->parts[0].full.cuda->count; n++)
            s->texts[n] = add_text(&s->k->parts[0].full.cuda->launches[n].text);
    }
}

static double run_long(const struct long_sum *s, problem *p, float x) {
    place at = {s->k->parts[0].full.cuda, p,
                aligned_alloc(256, (size_t)epi_round_up(s->k->parts[0].full.cuda->workspace + 1, 256))};
    for (int64_t e = 0; e < p->t[0].shape.count; e++)
        put_element(p->t[0].data, EPI_F32, e, (double)x);
    for (int64_t e = 0; p->inputs > 1 && e < p->t[1].shape.count; e++)
        put_element(p->t[1].data, EPI_I32, e, 0);
    for (int n = 0; n < at.k->count && check(at.workspace != NULL, "memory"); n++)
        if (!at.k->launches[n].empty && texts[s->texts[n]].run)
            run_launch(&at, &at.k->launches[n], &texts[s->texts[n]], false, s->name);
    free(at.workspace);
    return get_element(p->t[p->inputs].data, EPI_F32, 0);
}

static void run_longs(void) {
    for (int i = 0; i < LONGS; i++) {
        struct long_sum *s = &longs[i];
        emulated like = {.l = &s->l, .v = {EPI_F32, s->path, 90, NULL, true}};
        problem p;
        if (s->k && make_problem(&like, &p)) {
            double exact = (double)0.1f * TERMS, error = fabs(run_long(s, &p, 0.1f) / exact - 1);
            check(error <= LONG_BOUND, "%s: 0.1 %d times is off by %.2e, %.0e is allowed", s->name, TERMS,
                  error, LONG_BOUND);
            check(i || run_long(s, &p, INFINITY) == (double)INFINITY, "%s: an infinite sum", s->name);
            problem_free(&p);
        }
        epi_kernel_free(s->k);
        epi_module_free(s->l.module);
    }
}

/* Partials are folded the same whether their number is known when the text is written or at the launch. */
enum { PARTIALS = 5000, FOLD_SEGMENTS = 32 };
static int fold_text;

static void add_folds(void) {
    epi_kernel_text t = {.name = "folds"};
    epi_text_add(
        &t.source,
        "#define EPI_FAST 0\n%s%s%s\nstruct Params {\n  TMap map[1];\n  const void *ptr[3];\n  i64 M, "
        "group, extra[2];\n};\n"
        "extern \"C\" __global__ void folds(const __grid_constant__ Params P) {\n"
        "  const float *p = (const float *)P.ptr[0] + threadIdx.x %% 32;\n"
        "  const int segment = threadIdx.x / 32;\n"
        "  ((float *)P.ptr[1])[threadIdx.x] = fold_segment<Total, %d, %d>(p, segment, 32, 0).v;\n"
        "  ((float *)P.ptr[2])[threadIdx.x] = fold_some<Total>((int)P.group, p, segment, 32, 0).v;\n}\n",
        epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"), PARTIALS, FOLD_SEGMENTS);
    fold_text = add_text(&t);
    epi_text_free(&t.source);
}

static void run_folds(void) {
    enum { THREADS = 32 * FOLD_SEGMENTS };
    static _Alignas(64) float from[PARTIALS * 32], known[THREADS], some[THREADS];
    _Alignas(64) unsigned char params[256] = {0};
    void *pointers[3] = {from, known, some};
    int64_t numbers[4] = {0, PARTIALS, 0, 0};
    emu_host host = {.ranges = {{(const char *)from, sizeof from},
                                {(const char *)known, sizeof known},
                                {(const char *)some, sizeof some}},
                     .range_count = 3};
    for (size_t i = 0; i < sizeof from / sizeof *from; i++)
        from[i] = 1 + (float)(i * 2654435761u % 1000) / 1000;
    memcpy(params + 128, pointers, sizeof pointers);
    memcpy(params + 128 + sizeof pointers, numbers, sizeof numbers);
    const text *t = &texts[fold_text];
    bool ended = t->run && t->run(&host, params, 1, 1, THREADS, 0);
    check(ended && !host.wrong, "folds of partials: %s", host.first);
    check(!memcmp(known, some, sizeof known), "partials are folded in one order, known ahead or not");
}

/* ---- tiles that lanes move ---- */

typedef struct panel_case {
    int width, size, count; /* bytes of a panel's row and of an element, and rows at once */
    int turn;               /* rows that a warp stores: all, or its own */
    int rows, columns, stride, start;
    int text;
} panel_case;

static panel_case panels[] = {
    {128, 2, 8, 64, 64, 64, 65, 0, 0},   {128, 2, 4, 64, 70, 131, 131, 0, 0},
    {128, 2, 2, 64, 3, 33, 37, 1, 0},    {64, 2, 4, 64, 130, 99, 99, 0, 0},
    {64, 2, 2, 64, 65, 31, 33, 3, 0},    {32, 2, 8, 64, 64, 17, 17, 0, 0},
    {32, 2, 4, 64, 67, 50, 51, 1, 0},    {128, 4, 8, 64, 65, 45, 45, 0, 0},
    {64, 4, 2, 64, 64, 33, 35, 1, 0},    {128, 2, 8, 64, 64, 1, 1, 0, 0},
    {64, 2, 8, 64, 66, 2, 3, 1, 0},      {32, 4, 4, 64, 1, 9, 9, 0, 0},
    {128, 2, 8, 16, 70, 131, 131, 0, 0}, {64, 2, 8, 16, 65, 31, 33, 3, 0},
    {32, 2, 4, 16, 67, 50, 51, 1, 0},    {128, 2, 4, 16, 41, 66, 66, 0, 0},
    {64, 4, 4, 16, 64, 33, 35, 1, 0},    {128, 2, 8, 64, 70, 132, 134, 0, 0},
    {64, 2, 8, 64, 70, 131, 134, 1, 0},
};
enum { PANELS = sizeof panels / sizeof *panels };

/* Panel by panel from one tensor to shared memory, and from there to another. */
static void add_panels(void) {
    for (int i = 0; i < PANELS; i++) {
        panel_case *p = &panels[i];
        epi_kernel_text t = {.name = "panels"};
        epi_text_add(
            &t.source,
            "#define EPI_FAST 0\n%s%s%s%s\nstruct Params {\n  TMap map[1];\n  const void *ptr[2];\n  "
            "i64 M, group, extra[2];\n};\n"
            "extern \"C\" __global__ void panels(const __grid_constant__ Params P) {\n"
            "  extern __shared__ __align__(1024) u8 memory[];\n"
            "  const u32 at = (u32)__cvta_generic_to_shared(memory);\n  const int lane = threadIdx.x;\n"
            "  for (int y = 0; y < %d; y += 64)   // one panel too many, either way\n"
            "    for (int x = 0; x < %d; x += %d) {\n"
            "      panel_load<%d, %d, %d>(at, P.ptr[0], y, x, %d, %d, %d, lane);\n      __syncwarp();\n"
            "      for (int begin = 0; begin < 64; begin += %d)\n"
            "        panel_store<%d, %d, %d, %d>(at, (void *)P.ptr[1], y, x, %d, %d, %d, lane, begin);\n"
            "      __syncwarp();\n    }\n}\n",
            epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"),
            epi_device_text("tiles"), p->rows + 64, p->columns + p->width / p->size, p->width / p->size,
            p->width, p->size, p->count, p->rows, p->columns, p->stride, p->turn, p->width, p->size, p->count,
            p->turn, p->rows, p->columns, p->stride);
        p->text = add_text(&t);
        epi_text_free(&t.source);
    }
}

/* Everything between the rows stays as it was. */
static void run_panels(void) {
    enum { ROOM = 1 << 17 };
    static _Alignas(64) unsigned char from[ROOM], to[ROOM], want[ROOM];
    for (int i = 0; i < PANELS; i++) {
        const panel_case *p = &panels[i];
        size_t start = (size_t)p->start * (size_t)p->size, row = (size_t)p->stride * (size_t)p->size;
        size_t wide = (size_t)p->columns * (size_t)p->size, bytes = row * (size_t)(p->rows - 1) + wide;
        _Alignas(64) unsigned char params[256] = {0};
        void *pointers[2] = {from + start, to + start};
        emu_host host = {.ranges = {{(const char *)from, start + bytes}, {(const char *)to, start + bytes}},
                         .range_count = 2};
        for (size_t b = 0; b < ROOM; b++)
            from[b] = (unsigned char)(b * 7 + b / 251);
        memset(to, SENTINEL, ROOM);
        memset(want, SENTINEL, ROOM);
        for (int r = 0; r < p->rows; r++)
            memcpy(want + start + (size_t)r * row, from + start + (size_t)r * row, wide);
        memcpy(params + 128, pointers, sizeof pointers);
        const text *t = &texts[p->text];
        bool ended = t->run && t->run(&host, params, 1, 1, 32, 64 * 128);
        check(ended && !host.wrong, "panels of %d bytes, %d rows of %d: %s", p->width, p->rows, p->columns,
              host.first);
        check(!memcmp(to, want, ROOM), "panels of %d bytes, %d rows of %d arrive, and nothing else", p->width,
              p->rows, p->columns);
    }
}

/* ---- indices that are looked through ---- */

enum { CHECKED = 700, TABLE = 10, CHECKS = 2 };
static epi_module *check_module;
static epi_kernel *check_kernel;
static int check_texts[CHECKS];

/* A program of two indices, for which there are two launches before the rest. */
static void add_checks(void) {
    static const char source[] = "p(table[V,D], ids: i32[T], d[T,D], back: i32[T]) -> (y[T,D], g[V,D]) {\n"
                                 "    y = gather(table, ids, V)\n    g = scatter(d, back, V)\n}";
    epi_dim_binding dims[] = {{"T", CHECKED}, {"D", 8}, {"V", TABLE}};
    epi_options o =
        EPI_OPTIONS(.dims = dims, .dim_count = 3, .device = -90, .type = EPI_BF16, .check_indices = 1);
    epi_error err;
    if (!check(epi_module_parse(ctx, source, strlen(source), "t", &check_module, &err) == EPI_OK &&
                   epi_kernel_compile(epi_module_program(check_module, 0), &o, &check_kernel, &err) == EPI_OK,
               "%s", err.message) ||
        !check(check_kernel->checks && check_kernel->checks->count == CHECKS,
               "two indices are looked through"))
        return;
    for (int i = 0; i < CHECKS; i++)
        check_texts[i] = add_text(&check_kernel->checks->launches[i].text);
}

/* Of the elements outside the first is told, with its value; -1 of none. */
static void run_check(int launch, const int32_t *ids, int64_t element, int64_t value) {
    const epi_launch *l = &check_kernel->checks->launches[launch];
    const text *t = &texts[check_texts[launch]];
    _Alignas(64) unsigned char params[256] = {0};
    _Alignas(64) int64_t found[2 * CHECKS];
    const void *pointers[2] = {ids, found};
    int64_t numbers[4] = {0, 0, l->elements, 0};
    emu_host host = {
        .ranges = {{(const char *)ids, CHECKED * sizeof *ids}, {(const char *)found, sizeof found}},
        .range_count = 2};
    memset(found, SENTINEL, sizeof found);
    memcpy(params + 128, pointers, sizeof pointers);
    memcpy(params + 128 + sizeof pointers, numbers, sizeof numbers);
    bool ended = t->run && t->run(&host, params, (int)l->how.grid, 1, (int)l->how.block, 0);
    check(ended && !host.wrong, "a check of indices: %s", host.first);
    check(found[2 * launch] == element && found[2 * launch + 1] == value,
          "element %ld, %ld instead of %ld, %ld", (long)found[2 * launch], (long)found[2 * launch + 1],
          (long)element, (long)value);
}

static void run_checks(void) {
    static const struct {
        int at[2];
        int32_t values[2];
        int64_t element, value;
    } wrong[] = {{{0, 0}, {0, 0}, -1, 0},
                 {{5, 400}, {TABLE, -1}, 5, TABLE},
                 {{400, 5}, {0, -1}, 5, -1},
                 {{CHECKED - 1, 0}, {INT32_MIN, 0}, CHECKED - 1, INT32_MIN},
                 {{699, 256}, {INT32_MAX, 10}, 256, 10}};
    for (int launch = 0; launch < CHECKS && check_kernel; launch++)
        for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
            static _Alignas(64) int32_t ids[CHECKED];
            for (int i = 0; i < CHECKED; i++)
                ids[i] = i % TABLE;
            for (int i = 0; i < 2; i++)
                ids[wrong[w].at[i]] = wrong[w].values[i];
            run_check(launch, ids, wrong[w].element, wrong[w].value);
        }
    epi_kernel_free(check_kernel);
    epi_module_free(check_module);
}

/* ---- which ---- */

static const variant F32_FUSED = {EPI_F32, EPI_PATH_FUSED, 80, "any_64x64", true},
                     F32_UNFUSED = {EPI_F32, EPI_PATH_UNFUSED, 80, "any_64x64", true},
                     BF16_FUSED = {EPI_BF16, EPI_PATH_FUSED, 90, "any_64x64", false},
                     BF16_SM80 = {EPI_BF16, EPI_PATH_FUSED, 80, "sm80_128x128", false},
                     BF16_SM80_EXACT = {EPI_BF16, EPI_PATH_FUSED, 80, "sm80_128x128", true},
                     BF16_UNFUSED = {EPI_BF16, EPI_PATH_UNFUSED, 80, "sm80_128x128", false};

static loaded all[CASES], odd_cases[2];

static int64_t volume(const loaded *l) {
    int64_t v = 1;
    for (int i = 0; i < l->dim_count; i++)
        v *= l->dims[i].size;
    return v;
}

/* Of every program the largest case that the plain loops can take: fused in both types and on both mainloops,
 * and unfused in one type. Its other cases run in one way each. */
static void add_cases(void) {
    const variant ways[] = {F32_FUSED, BF16_SM80, BF16_FUSED, BF16_SM80_EXACT};
    for (int i = 0, program = 0; i < CASES; i++) {
        bool largest = true;
        for (int j = 0; j < CASES; j++)
            largest &= cases[j].flags & LARGE || strcmp(cases[i].program, cases[j].program) != 0 ||
                       volume(&all[j]) <= volume(&all[i]);
        if (cases[i].flags & LARGE || !all[i].program)
            continue;
        bool rows = !has_product(&all[i]); /* there are many of them, and their shapes are below */
        if (!largest) {
            if (!rows || i % 2)
                add_case(&all[i], ways[rows ? i / 2 % 4 : i % 4]);
            continue;
        }
        bool odd = program++ & 1;
        if (rows) {
            add_case(&all[i], odd ? F32_FUSED : BF16_FUSED);
            if (program % 8 < 2)
                add_case(&all[i], odd ? BF16_UNFUSED : F32_UNFUSED);
            continue;
        }
        add_case(&all[i], F32_FUSED);
        if (odd)
            add_case(&all[i], F32_UNFUSED);
        add_case(&all[i], BF16_FUSED);
        add_case(&all[i], odd ? BF16_SM80_EXACT : BF16_SM80);
        if (!odd)
            add_case(&all[i], BF16_UNFUSED);
    }
}

/* ---- open sizes: one text for all sizes of the row axes ---- */

/* The same case with fewer rows; false where its first input has none. */
static bool make_fewer(const loaded *l, loaded *out) {
    epi_tensor_info first;
    if (!l->program || epi_program_tensor(l->program, 0, &first) != EPI_OK || first.rank < 2)
        return false;
    *out = *l;
    for (int d = 0; d < out->dim_count; d++) {
        bool row = false;
        for (int a = 0; a + 1 < first.rank; a++)
            row |= !strcmp(first.axes[a].dim, out->dims[d].name);
        out->dims[d].size -= row ? out->dims[d].size / 3 : 0;
    }
    return true;
}

/* A kernel of the case's sizes, and one of fewer rows that takes its texts. */
static loaded fewer[CASES];

static void add_open(void) {
    const variant ways[] = {F32_FUSED, BF16_SM80, BF16_FUSED, BF16_UNFUSED};
    for (int i = 0, n = 0; i < CASES; i++) {
        bool largest = true;
        for (int j = 0; j < CASES; j++)
            largest &= cases[j].flags & LARGE || strcmp(cases[i].program, cases[j].program) != 0 ||
                       volume(&all[j]) <= volume(&all[i]);
        if (!largest || cases[i].flags & LARGE || !make_fewer(&all[i], &fewer[i]))
            continue;
        for (int w = 0; w < 4; w++) {
            variant v = ways[w];
            if ((w + n) % 2 && !has_product(&all[i]))
                continue;
            epi_arena arena = {0};
            epi_spec spec;
            bool can = bind_open_spec(&all[i], &all[i], v.type, v.path, &arena, &spec) &&
                       bind_open_spec(&fewer[i], &all[i], v.type, v.path, &arena, &spec);
            epi_arena_free(&arena);
            if (!can)
                continue;
            bool ok = add_kernel_open(&all[i], &all[i], v, false, 2);
            if (!ok) {
                v.config = NULL;
                ok = add_kernel_open(&all[i], &all[i], v, false, 2);
            }
            if (ok && add_kernel_open(&fewer[i], &all[i], v, false, 2) && add_kernel(&fewer[i], v, false)) {
                kernels[kernel_count - 2].closed = kernel_count - 1;
                kernels[kernel_count - 1].partner = true;
            }
        }
        n++;
    }
}

/* Operands that TMA cannot take: rows of odd lengths, the depth innermost and not. */
static void add_copies(void) {
    static const test_case odd[] = {{"matmul", "matmul", "M=3,N=513,K=521", 0},
                                    {"matmul", "matmul_tn", "M=3,N=515,K=520", 0}};
    for (int i = 0; i < 2; i++)
        if (load_case(ctx, programs, &odd[i], &odd_cases[i]))
            check(add_kernel(&odd_cases[i],
                             (variant){EPI_BF16, EPI_PATH_FUSED, 90, "sm90_128x128_c1_d", false}, true) &&
                      kernels[kernel_count - 1].k->count > 1,
                  "%s %s copies an operand", odd[i].program, odd[i].dims);
}

/* Hopper's product: its schedules, every order of the operands, narrow last tiles, odd rows and depths, what
 * an epilogue loads, folds and stores. */
static const struct product_case {
    test_case from;
    epi_dtype type;
    const char *config;
    bool exact;
    int multiprocessors;
} hopper[] = {
    {{"matmul", "matmul", "M=300,N=517,K=136", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 2},
    {{"matmul", "matmul", "M=300,N=601,K=72", 0}, EPI_BF16, "sm90_128x256_c2_e", true, 2},
    {{"matmul", "matmul", "M=140,N=72,K=200", 0}, EPI_F16, "sm90_128x64_c1_d", false, 2},
    {{"matmul", "matmul_nn", "M=300,N=568,K=200", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"matmul", "matmul_tn", "M=304,N=568,K=136", 0}, EPI_F16, "sm90_128x256_c1_d", false, 2},
    {{"matmul", "matmul_tt", "M=304,N=565,K=72", 0}, EPI_BF16, "sm90_128x256_c2_e", false, 2},
    {{"linear", "linear_gelu", "T=300,D=72,F=549", 0}, EPI_BF16, "sm90_128x256_c2_d16", false, 4},
    {{"cross_entropy", "cross_entropy", "T=300,V=549,D=72", 0}, EPI_BF16, "sm90_128x256_c2_eq", true, 4},
    {{"norm_swiglu", "norm_swiglu", "T=300,F=518,D=200", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 2},
    {{"norm_swiglu", "norm_swiglu", "T=300,F=390,D=200", 0}, EPI_BF16, "sm90_128x128_c2_d", true, 2},
    {{"swiglu_backward", "swiglu_backward", "T=300,D=136,F=552", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"rmsnorm_backward", "rmsnorm_backward", "T=300,D=552,F=72", 0}, EPI_BF16, "sm90_128x256_c2_e", true, 4},
    {{"residual_rms", "residual_rms", "T=300,D=549,K=72", 0}, EPI_BF16, "sm90_128x192_c2_dq", true, 4},
    {{"layernorm_linear", "layernorm_residual", "T=300,D=549,K=72", 0},
     EPI_BF16,
     "sm90_128x192_c2_dq",
     true,
     4},
    {{"layernorm_linear", "layernorm_residual", "T=140,D=576,K=72", 0},
     EPI_BF16,
     "sm90_128x256_c2_d",
     false,
     2},
    {{"matmul", "matmul", "M=520,N=549,K=521", 0}, EPI_BF16, "sm90_128x256_c2_dq", false, 8},
    {{"matmul", "matmul", "M=300,N=549,K=521", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 8},
    {{"norm_swiglu", "norm_swiglu", "T=520,F=550,D=521", 0}, EPI_BF16, "sm90_128x256_c2_e", true, 8},
    {{"blocks", "gate_up", "T=300,D=136,F=344", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"swiglu", "swiglu_two_weights", "T=140,D=72,F=200", 0}, EPI_BF16, "sm90_128x192_c2_d", true, 4},
    {{"quantise", "linear_quantised", "T=300,D=200,G=3,K=128", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 2},
    {{"quantise", "swiglu_quantised_kept", "T=300,D=200,G=3,K=128", 0},
     EPI_BF16,
     "sm90_128x256_c2_d",
     false,
     2},
    {{"quantise", "swiglu_quantised", "T=140,D=72,G=3,K=64", 0}, EPI_F16, "sm90_128x256_c2_e", true, 4},
    {{"blocks", "gate_up", "T=140,D=200,F=136", 0}, EPI_F16, "sm90_128x256_c1_d", false, 2},
    {{"blocks", "gate_up", "T=300,D=72,F=152", 0}, EPI_BF16, "sm90_128x256_c2_e", true, 4},
    {{"blocks", "gate_up", "T=300,D=72,F=264", 0}, EPI_BF16, "sm90_128x128_c2_d", false, 4},
    {{"blocks", "two_depths", "T=300,D=136,K=72,F=344", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"blocks", "two_depths", "T=300,D=72,K=520,F=520", 0}, EPI_BF16, "sm90_128x256_c2_e", true, 4},
    {{"blocks", "two_depths", "T=140,D=200,K=64,F=136", 0}, EPI_F16, "sm90_128x128_c1_d", false, 2},
    {{"blocks", "three_depths", "T=264,D=544,F=72,K=136", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"blocks", "matmul_batch", "B=3,M=150,N=136,K=72", 0}, EPI_BF16, "sm90_128x128_c2_d", false, 4},
    {{"blocks", "matmul_batch", "B=2,M=256,N=549,K=72", 0}, EPI_F16, "sm90_128x256_c2_e", true, 4},
    {{"blocks", "attention_scores", "B=2,S=140,R=168,G=2,H=2,E=64", 0},
     EPI_BF16,
     "sm90_128x128_c1_d",
     false,
     4},
    {{"blocks", "attention_values", "B=2,S=140,R=168,G=2,H=2,E=64", 0},
     EPI_BF16,
     "sm90_128x64_c1_d",
     false,
     4},
    {{"blocks", "attention_values", "B=2,S=140,R=136,G=1,H=2,E=136", 0},
     EPI_BF16,
     "sm90_128x128_c2_d",
     true,
     4},
    {{"blocks", "router", "T=300,D=136,E=8", 0}, EPI_BF16, "sm90_128x64_c1_d", false, 2},
    {{"blocks", "router", "T=300,D=72,E=200", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"blocks", "router", "T=300,D=72,E=100", 0}, EPI_F16, "sm90_128x256_c2_e", true, 2},
    {{"../tests/whole_rows", "statistics", "T=300,D=72,E=60", 0}, EPI_BF16, "sm90_128x64_c1_d", false, 2},
    {{"../tests/whole_rows", "statistics", "T=140,D=72,E=120", 0}, EPI_BF16, "sm90_128x192_c2_d", true, 4},
    {{"../tests/whole_rows", "norm_rotary", "T=140,D=72,E=128", 0}, EPI_BF16, "sm90_128x128_c2_d", false, 4},
    {{"../tests/whole_rows", "norm_rotary", "T=140,D=72,E=90", 0}, EPI_F16, "sm90_128x128_c1_d", true, 2},
    {{"../tests/whole_rows", "softmax_of_two", "T=140,D=72,E=50,K=136", 0},
     EPI_BF16,
     "sm90_128x128_c1_d",
     false,
     2},
    {{"../tests/whole_rows", "softmax_batch", "B=3,M=150,N=61,K=72", 0},
     EPI_BF16,
     "sm90_128x64_c1_d",
     false,
     2},
    {{"rope", "rope_halves", "B=2,S=70,E=72,H=5,D=32", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"swiglu", "swiglu_halves", "T=140,D=72,F=328", 0}, EPI_F16, "sm90_128x128_c2_d", true, 4},
    {{"swiglu", "swiglu_halves", "T=300,D=72,F=584", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"../tests/updates", "places", "T=140,D=72,H=3,E=40,R=5", 0}, EPI_BF16, "sm90_128x128_c2_d", false, 4},
    {{"../tests/scaled", "blocks", "T=300,G=4,K=128,N=3,J=128", 0}, EPI_BF16, "sm90_128x256_c2_p", false, 4},
    {{"../tests/scaled", "blocks", "T=140,G=2,K=256,N=2,J=128", 0}, EPI_F16, "sm90_128x128_c1_p", true, 2},
    {{"../tests/scaled", "gated", "T=140,G=3,K=128,N=2,J=128", 0}, EPI_BF16, "sm90_128x256_c2_p", true, 4},
    {{"../tests/scaled", "epilogue", "T=140,G=2,K=128,N=2,J=256", 0},
     EPI_BF16,
     "sm90_128x256_c1_p",
     false,
     2},
    {{"../tests/scaled", "turned", "P=2,M=128,N=2,R=128,G=1,K=128", 0},
     EPI_BF16,
     "sm90_128x256_c1_p",
     false,
     2},
    {{"../tests/scaled", "added", "T=140,F=2,M=128,H=1,G=2,K=128", 0},
     EPI_BF16,
     "sm90_128x256_c2_p",
     false,
     2},
    {{"../tests/scaled", "wide_range", "T=70,G=1,K=128,N=1,J=128", 0},
     EPI_BF16,
     "sm90_128x128_c1_p",
     false,
     2},
    {{"../tests/scaled", "gates_back", "T=140,G=1,K=128,N=2,J=128", 0},
     EPI_BF16,
     "sm90_128x256_c2_p",
     false,
     2},
    {{"../tests/scaled", "weight", "P=1,M=128,N=2,R=128,G=3,K=128", 0},
     EPI_BF16,
     "sm90_128x256_c2_p",
     false,
     2},
    {{"matmul", "matmul", "M=5,N=100,K=136", 0}, EPI_BF16, "sm90_64x16_c1_f", false, 3},
    {{"blocks", "router", "T=5,D=136,E=8", 0}, EPI_BF16, "sm90_64x16_c1_f", false, 3},
    {{"../tests/whole_rows", "statistics", "T=70,D=72,E=60", 0}, EPI_BF16, "sm90_64x64_c1_f", true, 2},
    {{"../tests/whole_rows", "norm_rotary", "T=7,D=128,E=100", 0}, EPI_BF16, "sm90_64x112_c1_f", false, 2},
    {{"../tests/whole_rows", "softmax_batch", "B=3,M=10,N=24,K=128", 0},
     EPI_BF16,
     "sm90_64x32_c1_f",
     false,
     2},
    {{"matmul", "matmul", "M=64,N=200,K=256", 0}, EPI_BF16, "sm90_64x48_c1_f", false, 2},
    {{"matmul", "matmul", "M=8,N=600,K=72", 0}, EPI_F16, "sm90_64x256_c1_f", true, 2},
    {{"matmul", "matmul", "M=130,N=100,K=128", 0}, EPI_BF16, "sm90_64x32_c2_f", false, 4},
    {{"matmul", "matmul", "M=150,N=200,K=192", 0}, EPI_BF16, "sm90_128x64_c1_f", false, 3},
    {{"matmul", "matmul_nn", "M=9,N=192,K=256", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 2},
    {{"matmul", "matmul_tn", "M=40,N=72,K=200", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 2},
    {{"matmul", "matmul_tt", "M=72,N=130,K=128", 0}, EPI_BF16, "sm90_64x64_c2_f", false, 2},
    {{"linear", "linear_gelu", "T=3,D=256,F=101", 0}, EPI_F16, "sm90_64x32_c1_f", false, 2},
    {{"residual_rms", "residual_rms", "T=20,D=136,K=256", 0}, EPI_BF16, "sm90_64x64_c1_f", true, 2},
    {{"layernorm_linear", "layernorm_residual", "T=20,D=136,K=256", 0}, EPI_BF16, "sm90_64x64_c1_f", true, 2},
    {{"norm_swiglu", "norm_swiglu", "T=33,F=230,D=128", 0}, EPI_BF16, "sm90_64x112_c1_f", false, 2},
    {{"swiglu_backward", "swiglu_backward", "T=70,D=136,F=264", 0}, EPI_BF16, "sm90_64x128_c2_f", false, 4},
    {{"rmsnorm_backward", "rmsnorm_backward", "T=100,D=264,F=72", 0}, EPI_BF16, "sm90_128x128_c1_f", true, 4},
    {{"cross_entropy", "cross_entropy", "T=70,V=300,D=72", 0}, EPI_BF16, "sm90_64x128_c2_f", true, 4},
    {{"blocks", "gate_up", "T=7,D=128,F=72", 0}, EPI_BF16, "sm90_64x128_c1_f", false, 2},
    {{"swiglu", "swiglu_two_weights", "T=50,D=200,F=136", 0}, EPI_BF16, "sm90_64x96_c1_f", true, 2},
    {{"blocks", "two_depths", "T=20,D=136,K=72,F=130", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 2},
    {{"blocks", "matmul_batch", "B=3,M=10,N=72,K=128", 0}, EPI_BF16, "sm90_64x32_c1_f", false, 2},
    {{"blocks", "attention_scores", "B=2,S=12,R=168,G=2,H=2,E=64", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 4},
    {{"rope", "rope_halves", "B=1,S=9,E=136,H=3,D=64", 0}, EPI_BF16, "sm90_64x32_c1_f", false, 2},
    {{"swiglu", "swiglu_halves", "T=20,D=136,F=200", 0}, EPI_BF16, "sm90_64x48_c1_f", false, 2},
    {{"../tests/updates", "places", "T=20,D=72,H=2,E=33,R=9", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 2},
    {{"matmul", "matmul", "M=5,N=72,K=96", 0},
     EPI_BF16,
     "few_8x16",
     false,
     2}, /* few rows, as those of few bits */
    {{"swiglu", "swiglu_halves", "T=11,D=64,F=72", 0}, EPI_F16, "few_16x32", true, 2},
    {{"../tests/updates", "one_place", "T=20,D=72,E=40,R=9", 0}, EPI_F16, "sm90_64x16_c1_f", true, 2},
    {{"../tests/updates", "both", "B=3,S=10,D=72,E=40,R=9", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 2},
};
enum { HOPPER = sizeof hopper / sizeof *hopper };
static loaded hopper_cases[HOPPER];

/* What its configuration is for: f, few rows; p, operands of 8 bits. */
static bool is_for(int i, char what) {
    return strrchr(hopper[i].config, '_')[1] == what;
}

static bool is_few(int i) {
    return is_for(i, 'f');
}

/* Those for this, or all. */
static void add_hopper(char what) {
    for (int i = 0; i < HOPPER; i++)
        if ((!what || is_for(i, what)) && load_case(ctx, programs, &hopper[i].from, &hopper_cases[i]))
            check(add_kernel_for(
                      &hopper_cases[i],
                      (variant){hopper[i].type, EPI_PATH_FUSED, 90, hopper[i].config, hopper[i].exact}, false,
                      hopper[i].multiprocessors),
                  "%s %s is for %s", hopper[i].from.program, hopper[i].from.dims, hopper[i].config);
}

/* Products of groups of 0, 1, 63, 64, 65, 127, 129 rows and of the rest, by every mainloop. */
static const struct product_case grouped[] = {
    {{"../tests/groups", "down", "T=300,K=2,F=72,D=520,E=8", 0}, EPI_BF16, "sm90_128x256_c2_dq", false, 4},
    {{"../tests/groups", "down", "T=300,K=2,F=136,D=261,E=8", 0}, EPI_BF16, "sm90_128x128_c2_d", true, 6},
    {{"../tests/groups", "across", "T=300,K=2,F=72,D=264,E=8", 0}, EPI_F16, "sm90_128x192_c2_dq", true, 4},
    {{"../tests/groups", "gated", "T=300,K=2,D=72,F=256,E=8", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"../tests/groups", "added", "T=300,K=2,F=128,D=264,E=8", 0}, EPI_BF16, "sm90_128x256_c2_eq", false, 4},
    {{"../tests/groups", "back", "T=300,K=2,D=128,F=264,E=8", 0}, EPI_BF16, "sm90_128x256_c2_dq", false, 4},
    {{"../tests/groups", "back", "T=300,K=2,D=72,F=104,E=8", 0}, EPI_BF16, "sm90_128x128_c1_d", true, 2},
    {{"../tests/groups", "back_of", "T=300,K=2,D=136,F=264,E=8", 0},
     EPI_BF16,
     "sm90_128x256_c2_dq",
     false,
     4},
    {{"../tests/groups", "back_of", "T=300,K=2,D=72,F=104,E=8", 0}, EPI_BF16, "sm90_128x128_c1_d", true, 2},
    {{"../tests/groups", "back_of", "T=300,K=2,D=72,F=264,E=8", 0}, EPI_F16, "sm90_128x256_c2_eq", false, 3},
    {{"../tests/groups", "up", "T=300,K=2,D=136,F=512,E=8", 0}, EPI_BF16, "sm90_128x256_c2_dq", false, 4},
    {{"../tests/groups", "up", "T=300,K=2,D=64,F=136,E=8", 0}, EPI_F16, "sm90_128x128_c1_d", true, 3},
    {{"../tests/groups", "packed", "T=300,K=2,D=72,F=264,E=8", 0}, EPI_BF16, "sm90_128x256_c2_d", false, 4},
    {{"../tests/groups", "packed_kept", "T=300,K=2,D=72,F=264,E=8", 0},
     EPI_BF16,
     "sm90_128x256_c2_dq",
     false,
     4},
    {{"../tests/groups", "packed_kept", "T=300,K=2,D=72,F=104,E=8", 0},
     EPI_F16,
     "sm90_128x128_c2_d",
     true,
     4},
    {{"../tests/groups", "packed_kept", "T=20,K=2,D=72,F=104,E=8", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 3},
    {{"../tests/groups", "packed_back", "T=300,K=2,D=72,F=264,E=8", 0},
     EPI_BF16,
     "sm90_128x256_c2_dq",
     false,
     4},
    {{"../tests/groups", "packed_back", "T=300,K=2,D=72,F=104,E=8", 0},
     EPI_F16,
     "sm90_128x128_c2_d",
     true,
     4},
    {{"../tests/groups", "of_group", "T=300,K=2,D=72,F=132,E=8", 0},
     EPI_BF16,
     "sm90_128x256_c2_dq",
     false,
     4},
    {{"../tests/groups", "of_group", "T=300,K=2,D=72,F=68,E=8", 0}, EPI_F16, "sm80_128x128", false, 2},
    {{"../tests/groups", "of_group", "T=300,K=2,D=72,F=67,E=8", 0}, EPI_F32, "any_64x64", false, 2},
    {{"../tests/groups", "group_softmax", "T=300,K=2,D=72,F=104,E=8", 0},
     EPI_BF16,
     "sm90_128x128_c2_d",
     false,
     4},
    {{"../tests/groups", "weight", "T=300,K=2,F=264,D=520,E=8", 0}, EPI_BF16, "sm90_128x256_c2_dq", false, 4},
    {{"../tests/groups", "weight", "T=300,K=2,F=72,D=136,E=8", 0}, EPI_F16, "sm90_128x128_c1_d", true, 3},
    {{"../tests/groups", "weight_by", "T=300,K=2,D=264,F=520,E=8", 0},
     EPI_BF16,
     "sm90_128x256_c2_dq",
     false,
     4},
    {{"../tests/groups", "weight_by", "T=300,K=2,D=72,F=136,E=8", 0}, EPI_F16, "sm90_128x128_c1_d", true, 3},
    {{"../tests/groups", "weight_of", "T=300,K=2,D=264,F=520,E=8", 0},
     EPI_BF16,
     "sm90_128x256_c2_dq",
     false,
     4},
    {{"../tests/groups", "weight_of", "T=300,K=2,D=72,F=136,E=8", 0}, EPI_F16, "sm90_128x128_c1_d", true, 3},
    {{"../tests/groups", "down", "T=5,K=2,F=72,D=136,E=40", 0}, EPI_BF16, "sm90_128x128_c2_d", false, 4},
    {{"../tests/groups", "down", "T=300,K=2,F=136,D=264,E=8", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 4},
    {{"../tests/groups", "down", "T=5,K=2,F=72,D=1096,E=40", 0}, EPI_BF16, "sm90_64x16_c1_f", true, 3},
    {{"../tests/groups", "gated", "T=300,K=2,D=136,F=264,E=8", 0}, EPI_BF16, "sm90_64x128_c1_f", false, 4},
    {{"../tests/groups", "up", "T=300,K=2,D=264,F=192,E=8", 0}, EPI_F16, "sm90_64x64_c1_f", false, 3},
    {{"../tests/groups", "up", "T=3,K=2,D=256,F=136,E=8", 0}, EPI_BF16, "sm90_64x32_c1_f", false, 3},
    {{"../tests/groups", "up", "T=20,K=2,D=136,F=200,E=8", 0}, EPI_F16, "sm90_64x48_c1_f", false, 3},
    {{"../tests/groups", "back", "T=300,K=2,D=136,F=264,E=8", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 4},
    {{"../tests/groups", "packed", "T=300,K=2,D=72,F=264,E=8", 0}, EPI_BF16, "sm90_64x128_c1_f", false, 4},
    {{"../tests/groups", "added", "T=300,K=2,F=72,D=264,E=8", 0}, EPI_BF16, "sm90_64x128_c1_f", false, 4},
    {{"../tests/groups", "across", "T=300,K=2,F=72,D=264,E=8", 0}, EPI_BF16, "sm90_64x64_c1_f", false, 4},
    {{"../tests/groups", "down", "T=300,K=2,F=71,D=261,E=8", 0}, EPI_BF16, "sm80_128x128", false, 3},
    {{"../tests/groups", "across", "T=300,K=2,F=72,D=136,E=8", 0}, EPI_F16, "sm80_128x128", true, 2},
    {{"../tests/groups", "back", "T=300,K=2,D=72,F=136,E=8", 0}, EPI_BF16, "sm80_128x128", false, 3},
    {{"../tests/groups", "weight", "T=300,K=2,F=133,D=72,E=8", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "down", "T=5,K=2,F=72,D=136,E=40", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "up", "T=300,K=2,D=72,F=136,E=8", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "up", "T=300,K=2,D=35,F=136,E=8", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "weight_of", "T=300,K=2,F=136,D=72,E=8", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "weight_of", "T=300,K=2,F=133,D=35,E=8", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "inner", "T=304,K=2,D=40,F=72,E=8", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "inner_depth", "T=304,K=2,F=72,D=40,E=8", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "up_inner", "T=304,K=2,D=40,F=72,E=8", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "weight_inner", "T=304,K=2,F=72,D=40,E=8", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "up", "T=300,K=2,D=72,F=136,E=8", 0}, EPI_F32, "any_64x64", false, 2},
    {{"../tests/groups", "weight_of", "T=300,K=2,F=136,D=72,E=8", 0}, EPI_F32, "any_64x64", false, 2},
    {{"../tests/groups", "down", "T=300,K=2,F=72,D=136,E=8", 0}, EPI_F32, "any_64x64", false, 2},
    {{"../tests/groups", "down", "T=257,K=1,F=72,D=136,E=1", 0}, EPI_F32, "any_64x64", false, 2},
    {{"../tests/groups", "down", "T=257,K=1,F=72,D=136,E=1", 0}, EPI_BF16, "sm80_128x128", false, 2},
    {{"../tests/groups", "down", "T=257,K=1,F=72,D=136,E=1", 0}, EPI_BF16, "sm90_128x128_c2_d", false, 4},
    {{"../tests/groups", "weight", "T=300,K=2,F=136,D=72,E=8", 0}, EPI_F32, "any_64x64", false, 2},
};
enum { GROUPED = sizeof grouped / sizeof *grouped };
static loaded grouped_cases[GROUPED];

/* All of them, or those of one program. */
static void add_grouped(const char *program) {
    for (int i = 0; i < GROUPED; i++) {
        const struct product_case *c = &grouped[i];
        if (program && strcmp(program, c->from.program) != 0)
            continue;
        variant v = {c->type, EPI_PATH_FUSED, strncmp(c->config, "sm90", 4) ? 80 : 90, c->config, c->exact};
        if (load_case(ctx, programs, &c->from, &grouped_cases[i]))
            check(add_kernel_for(&grouped_cases[i], v, false, c->multiprocessors), "%s %s is for %s",
                  c->from.program, c->from.dims, c->config);
    }
}

/* Scans: both forms and directions, fewer steps than a chunk, more than one, and a last one that is not full; columns that are no
 * multiple of a vector. Two configurations of the same program have the same bits. */
static const struct scan_case {
    test_case from;
    epi_dtype type;
    const char *other; /* another configuration, or NULL */
} scans[] = {
    {{"../tests/scans", "running", "B=2,T=300,D=72", 0}, EPI_BF16, "rows_4x4_r32_m2"},
    {{"../tests/scans", "running", "B=1,T=1,D=1", 0}, EPI_F32, NULL},
    {{"../tests/scans", "running", "B=2,T=37,D=5", 0}, EPI_F16, "rows_4x4_r8_m1"},
    {{"../tests/scans", "running", "B=1,T=600,D=12", 0}, EPI_F32, "rows_2x4_r16_m3"},
    {{"../tests/scans", "running_inside", "B=2,D=5,T=600", 0}, EPI_BF16, "rows_4x4_r8_m2"},
    {{"../tests/scans", "running_inside", "B=1,D=3,T=37", 0}, EPI_BF16, "rows_2x32_r16_m2"},
    {{"../tests/scans", "running_inside", "B=1,D=40,T=100", 0}, EPI_F32, "rows_16x8_r2_m2"},
    {{"../tests/scans", "running_inside", "B=1,D=1,T=1", 0}, EPI_F32, NULL},
    {{"../tests/scans", "average", "B=3,T=150,D=40", 0}, EPI_BF16, "rows_1x4_r32_m2"},
    {{"../tests/scans", "average", "B=3,T=33,D=7", 0}, EPI_F32, NULL},
    {{"../tests/scans", "gated", "B=2,T=200,D=24", 0}, EPI_BF16, "rows_2x4_r32_m2"},
    {{"../tests/scans", "gated", "B=2,T=70,D=9", 0}, EPI_F32, NULL},
    {{"../tests/scans", "returns", "B=70,T=333", 0}, EPI_F32, "rows_4x32_r64_m1"},
    {{"../tests/scans", "returns", "B=7,T=64", 0}, EPI_F32, NULL},
    {{"../tests/scans", "returns", "B=1,T=20000", 0}, EPI_F32, "rows_8x8_r4_m1"},
    {{"../tests/scans", "running", "B=1,T=3000,D=1", 0}, EPI_BF16, "rows_4x4_r8_m1"},
    {{"../tests/scans", "backward", "B=2,T=300,D=72", 0}, EPI_BF16, "rows_8x4_r8_m2"},
    {{"../tests/scans", "backward", "B=2,T=35,D=3", 0}, EPI_F16, NULL},
    {{"../tests/scans", "backward_inside", "B=2,D=5,T=600", 0}, EPI_BF16, "rows_4x4_r8_m2"},
    {{"../tests/scans", "backward_inside", "B=2,D=5,T=61", 0}, EPI_F32, NULL},
    {{"../tests/scans", "first", "B=2,T=40,D=24", 0}, EPI_BF16, NULL},
    {{"../tests/scans", "first_inside", "B=2,D=3,T=40", 0}, EPI_BF16, NULL},
    {{"../tests/scans", "first_back", "B=2,D=3,T=40", 0}, EPI_F32, NULL},
    {{"../tests/scans", "time_first", "T=140,B=3,D=16", 0}, EPI_BF16, "rows_2x4_r16_m2"},
    {{"../tests/scans", "heads", "B=2,T=140,H=3,D=16", 0}, EPI_BF16, "rows_2x4_r16_m2"},
    {{"../tests/scans", "steps", "B=2,T=140,D=24", 0}, EPI_BF16, "rows_2x4_r16_m2"},
    {{"../tests/scans", "beside", "B=2,T=140,D=24", 0}, EPI_BF16, "rows_2x4_r16_m2"},
    {{"../tests/scans", "behind", "B=2,T=140,D=24", 0}, EPI_BF16, "rows_2x4_r16_m2"},
    {{"../tests/scans", "shifted", "B=2,T=140,D=24", 0}, EPI_BF16, "rows_2x4_r16_m2"},
    {{"../tests/scans", "shifted", "B=3,T=39,D=5", 0}, EPI_F32, NULL},
    {{"../tests/scans", "shifted_inside", "B=2,D=5,T=304", 0}, EPI_BF16, "rows_4x4_r8_m2"},
    {{"../tests/scans", "shifted_inside", "B=2,D=5,T=31", 0}, EPI_F32, NULL},
    {{"../tests/scans", "behind", "B=2,T=290,D=3", 0}, EPI_F32, "rows_4x4_r16_m2"},
};
enum { SCANS = sizeof scans / sizeof *scans };
static loaded scan_cases[SCANS], fewer_scans[SCANS];

/* One text for all numbers of rows, steps among them: that of fewer, beside the kernel for those alone. */
static void add_open_scan(int i, variant v) {
    const loaded *l = &scan_cases[i], *few = &fewer_scans[i];
    if (make_fewer(l, &fewer_scans[i]) && add_kernel_open(l, l, v, false, 2) &&
        add_kernel_open(few, l, v, false, 2) &&
        check(add_kernel(few, v, false), "%s of fewer rows", l->from->program)) {
        kernels[kernel_count - 2].closed = kernel_count - 1;
        kernels[kernel_count - 1].partner = true;
    }
}

/* All of them, or those of one program. */
static void add_scans(const char *program) {
    for (int i = 0; i < SCANS; i++) {
        const struct scan_case *c = &scans[i];
        if ((program && strcmp(program, c->from.program) != 0) ||
            !load_case(ctx, programs, &c->from, &scan_cases[i]))
            continue;
        variant v = {c->type, EPI_PATH_FUSED, i % 4 == 3 ? 80 : 90, NULL, false};
        bool added = add_kernel(&scan_cases[i], v, false);
        const epi_cuda_kernel *k = added ? kernels[kernel_count - 1].k : NULL;
        if (!check(k && k->count == 1 && !strcmp(k->launches[0].text.name, "scan"), "%s %s is one scan",
                   c->from.program, c->from.dims))
            continue;
        v.config = c->other;
        if (c->other && check(add_kernel(&scan_cases[i], v, false), "%s %s is for %s", c->from.program,
                              c->from.dims, c->other)) {
            kernels[kernel_count - 2].closed = kernel_count - 1;
            kernels[kernel_count - 1].partner = true;
        }
        if (i % 2 == 0)
            add_open_scan(i, (variant){c->type, EPI_PATH_FUSED, 90, NULL, false});
    }
}

/* Those for few rows give the bits of a configuration for many. */
static void add_many(int first) {
    for (int i = 0, at = first; at < kernel_count && i < HOPPER; i++) {
        if (kernels[at].l != &hopper_cases[i])
            continue;
        variant v = kernels[at].v;
        v.config = "sm90_128x128_c1_d";
        if (is_few(i) && check(add_kernel_for(&hopper_cases[i], v, false, hopper[i].multiprocessors),
                               "%s is for %s, too", hopper[i].from.program, v.config)) {
            kernels[at].closed = kernel_count - 1;
            kernels[kernel_count - 1].partner = true;
        }
        at++;
    }
}

/* Some of them with open rows: what their epilogues stage and fold, two products, batches, columns and depths
 * that are rows renamed. The kernels before are Hopper's, in the order of the table. */
static void add_open_hopper(int first) {
    static const char *const some[] = {"swiglu_backward", "rmsnorm_backward", "residual_rms",
                                       "gate_up",         "two_depths",       "matmul_batch",
                                       "cross_entropy",   "attention_scores", "layernorm_residual"};
    static loaded less[HOPPER];
    for (size_t s = 0; s < 2 * (sizeof some / sizeof *some); s++) {
        bool few = s % 2;
        int i = 0;
        while (strcmp(hopper[i].from.program, some[s / 2]) != 0 || is_few(i) != few)
            i++;
        const loaded *l = &hopper_cases[i];
        variant v = {hopper[i].type, EPI_PATH_FUSED, 90, hopper[i].config, hopper[i].exact};
        int multiprocessors = hopper[i].multiprocessors;
        if (!make_fewer(l, &less[i]) || !add_kernel_open(l, l, v, false, multiprocessors))
            continue;
        kernels[kernel_count - 1].closed = first + i;
        add_kernel_open(&less[i], l, v, false, multiprocessors);
    }
}

/* Attention: its four forms, masks, layouts, sizes off the tile, and more tiles than blocks. */
static const struct {
    test_case from;
    epi_dtype type;
    const char *config;
} attention[] = {
    {{"../tests/attention", "full", "B=1,H=3,S=200,R=150,E=32,F=48", 0}, EPI_BF16, "attention_192x128_d64"},
    {{"../tests/attention", "causal", "B=2,H=2,S=300,R=300,E=16,F=16", 0}, EPI_F16, "attention_192x128_d64"},
    {{"../tests/attention", "causal", "B=1,H=3,S=300,R=300,E=72,F=72", 0},
     EPI_BF16,
     "attention_128x128_d128"},
    {{"../tests/attention", "causal", "B=1,H=1,S=130,R=260,E=136,F=40", 0},
     EPI_BF16,
     "attention_128x96_d192"},
    {{"../tests/attention", "window", "B=1,H=2,G=2,S=200,R=200,E=24,F=24", 0},
     EPI_BF16,
     "attention_128x128_d64"},
    {{"../tests/attention", "biased", "B=1,H=2,S=130,R=150,E=16,F=16", 0}, EPI_BF16, "attention_128x128_d64"},
    {{"../tests/attention", "lengths", "B=3,H=1,S=70,R=140,E=16,F=16", 0}, EPI_BF16, "attention_192x128_d64"},
    {{"../tests/attention", "documents", "B=1,H=1,S=200,R=200,E=16,F=16", 0},
     EPI_BF16,
     "attention_128x128_d64"},
    {{"../tests/attention", "queries", "B=1,H=3,S=200,R=290,E=32,F=16", 0},
     EPI_BF16,
     "attention_rows_128x128_d64"},
    {{"../tests/attention", "queries", "B=1,H=1,S=140,R=140,E=72,F=72", 0},
     EPI_F16,
     "attention_rows_128x96_d128"},
    {{"../tests/attention", "turned_queries", "B=2,H=1,G=2,S=130,R=150,E=32,F=16", 0},
     EPI_BF16,
     "attention_rows_128x128_d64"},
    {{"../tests/attention", "keys", "B=1,H=3,G=2,S=152,R=140,E=16,F=32", 0},
     EPI_BF16,
     "attention_pair_128x64_d64"},
    {{"../tests/attention", "keys", "B=1,H=1,G=3,S=90,R=70,E=72,F=104", 0},
     EPI_BF16,
     "attention_pair_128x48_d128"},
    {{"../tests/attention", "queries", "B=1,H=1,S=70,R=90,E=192,F=128", 0},
     EPI_BF16,
     "attention_rows_128x64_d192"},
    {{"../tests/attention", "keys", "B=1,H=1,G=1,S=50,R=70,E=192,F=128", 0},
     EPI_BF16,
     "attention_pair_128x16_d192"},
    {{"../tests/attention", "dropout", "B=1,H=2,S=200,R=300,E=16,F=16", 0},
     EPI_BF16,
     "attention_128x128_d64"},
    {{"../tests/attention", "dropout", "B=1,H=2,S=130,R=135,E=16,F=16", 0},
     EPI_BF16,
     "attention_192x128_d64"},
    {{"../tests/attention", "dropout_apart", "B=1,H=3,S=130,R=140,E=16,F=16", 0},
     EPI_BF16,
     "attention_128x128_d64"},
    {{"../tests/attention", "dropout_queries", "B=1,H=2,S=150,R=148,E=16,F=16", 0},
     EPI_BF16,
     "attention_rows_128x128_d64"},
    {{"../tests/attention", "dropout_keys", "B=1,H=1,G=2,S=90,R=140,E=16,F=32", 0},
     EPI_BF16,
     "attention_pair_128x64_d64"},
    {{"../tests/attention", "dropout_keys", "B=1,H=1,G=2,S=90,R=70,E=16,F=16", 0},
     EPI_BF16,
     "attention_pair_128x64_d64"},
    {{"attention", "decode_attention", "B=3,R=2300,G=2,H=3,E=24", 0}, EPI_BF16, "attention_split_64x128_d64"},
    {{"attention", "decode_attention", "B=2,R=1100,G=1,H=4,E=72", 0}, EPI_F16, "attention_split_64x128_d128"},
    {{"attention", "decode_attention", "B=1,R=600,G=2,H=2,E=136", 0}, EPI_BF16, "attention_split_64x64_d256"},
    {{"../tests/attention", "tokens", "B=3,S=5,R=2500,H=2,G=3,E=72,F=48", 0},
     EPI_BF16,
     "attention_split_64x128_d128"},
    {{"../tests/attention", "cached", "B=5,H=9,R=2100,E=16,F=32", 0}, EPI_BF16, "attention_split_64x128_d64"},
    {{"attention", "paged_attention", "B=3,P=40,C=32,N=40,G=2,H=3,E=72", 0},
     EPI_BF16,
     "attention_split_64x128_d128"},
    {{"attention", "paged_attention", "B=2,P=9,C=256,N=9,G=1,H=2,E=24", 0},
     EPI_F16,
     "attention_split_64x128_d64"},
    {{"../tests/attention", "full", "B=1,H=3,S=1,R=1040,E=128,F=64", 0},
     EPI_BF16,
     "attention_split_64x128_d128"},
    {{"../tests/attention", "latent", "B=2,S=150,R=200,H=2,E=72,P=24,F=40", 0},
     EPI_BF16,
     "attention_128x96_d192"},
    {{"../tests/attention", "latent_queries", "B=2,S=140,R=150,H=2,E=40,P=16,F=24", 0},
     EPI_BF16,
     "attention_rows_128x96_d128"},
    {{"../tests/attention", "latent_queries_f32", "B=1,S=140,R=90,H=2,E=64,P=24,F=24", 0},
     EPI_F16,
     "attention_rows_128x64_d128"},
    {{"../tests/attention", "latent_keys", "B=2,S=150,R=140,H=2,E=72,P=16,F=32", 0},
     EPI_BF16,
     "attention_rows_128x48_d192"},
    {{"../tests/attention", "latent_pair", "B=2,S=150,R=140,H=2,E=72,P=40,F=128", 0},
     EPI_BF16,
     "attention_pair_128x64_d192"},
    {{"../tests/attention", "prefix", "B=2,H=1,S=384,R=384,E=16,F=16", 0}, EPI_BF16, "attention_128x128_d64"},
    {{"../tests/attention", "prefix_keys", "B=2,H=1,G=2,S=384,R=384,E=16,F=16", 0},
     EPI_BF16,
     "attention_pair_128x64_d64"},
    {{"../tests/attention", "prefix_or", "B=2,H=1,S=384,R=384,E=16,F=16", 0},
     EPI_BF16,
     "attention_128x128_d64"},
    {{"../tests/attention", "prefix_or_queries", "B=2,H=1,S=384,R=384,E=16,F=16", 0},
     EPI_BF16,
     "attention_rows_128x128_d64"},
    {{"../tests/attention", "prefix_or_keys", "B=2,H=1,G=1,S=384,R=384,E=16,F=16", 0},
     EPI_BF16,
     "attention_pair_128x64_d64"},
    {{"../tests/attention", "mixed", "B=2,H=1,S=330,R=530,E=16,F=16", 0}, EPI_BF16, "attention_192x128_d64"},
    {{"../tests/attention", "packed", "B=1,H=2,S=384,R=384,E=16,F=32", 0}, EPI_BF16, "attention_128x128_d64"},
    {{"../tests/attention", "packed", "B=1,H=2,S=128,R=128,E=16,F=32", 0}, EPI_BF16, "attention_128x128_d64"},
    {{"../tests/attention", "packed_queries", "B=1,H=2,S=384,R=384,E=16,F=16", 0},
     EPI_BF16,
     "attention_rows_128x128_d64"},
    {{"../tests/attention", "packed_queries", "B=1,H=2,S=128,R=128,E=16,F=16", 0},
     EPI_BF16,
     "attention_rows_128x128_d64"},
    {{"../tests/attention", "packed_keys", "B=1,H=1,G=2,S=384,R=384,E=16,F=32", 0},
     EPI_BF16,
     "attention_pair_128x64_d64"},
    {{"../tests/attention", "packed_keys", "B=1,H=1,G=2,S=128,R=128,E=16,F=32", 0},
     EPI_BF16,
     "attention_pair_128x64_d64"},
    {{"../tests/attention", "full", "B=1,H=3,S=200,R=150,E=32,F=48", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "causal", "B=2,H=2,S=150,R=150,E=16,F=16", 0},
     EPI_F16,
     "attention_mma_64x64_d64"},
    {{"../tests/attention", "causal", "B=1,H=2,S=200,R=200,E=72,F=72", 0},
     EPI_BF16,
     "attention_mma_128x32_d128"},
    {{"../tests/attention", "causal", "B=1,H=1,S=130,R=260,E=136,F=40", 0},
     EPI_F16,
     "attention_mma_64x64_d192"},
    {{"../tests/attention", "full", "B=1,H=1,S=70,R=90,E=256,F=200", 0},
     EPI_BF16,
     "attention_mma_64x32_d256"},
    {{"../tests/attention", "window", "B=1,H=2,G=2,S=200,R=200,E=24,F=24", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "biased", "B=1,H=2,S=130,R=150,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_64x32_d128"},
    {{"../tests/attention", "lengths", "B=3,H=1,S=70,R=140,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "documents", "B=1,H=1,S=200,R=200,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "dropout", "B=1,H=2,S=130,R=135,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_64x64_d64"},
    {{"../tests/attention", "tokens", "B=3,S=5,R=2500,H=2,G=3,E=72,F=48", 0},
     EPI_BF16,
     "attention_mma_64x32_d128"},
    {{"attention", "decode_attention", "B=3,R=700,G=2,H=3,E=24", 0}, EPI_BF16, "attention_mma_64x64_d64"},
    {{"../tests/attention", "steep", "B=1,H=2,S=130,R=260,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "steep", "B=1,H=1,S=130,R=390,E=16,F=16", 0}, EPI_BF16, "attention_128x128_d64"},
    {{"../tests/attention", "queries", "B=1,H=3,S=200,R=140,E=32,F=16", 0},
     EPI_BF16,
     "attention_mma_rows_128x32_d64"},
    {{"../tests/attention", "queries", "B=1,H=1,S=140,R=140,E=72,F=72", 0},
     EPI_F16,
     "attention_mma_rows_128x32_d128"},
    {{"../tests/attention", "queries", "B=1,H=1,S=70,R=90,E=192,F=128", 0},
     EPI_BF16,
     "attention_mma_rows_64x32_d192"},
    {{"../tests/attention", "queries", "B=1,H=1,S=70,R=50,E=200,F=256", 0},
     EPI_BF16,
     "attention_mma_rows_64x16_d256"},
    {{"../tests/attention", "dropout_queries", "B=1,H=2,S=150,R=148,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_rows_64x32_d64"},
    {{"../tests/attention", "keys", "B=1,H=3,G=2,S=152,R=140,E=16,F=32", 0},
     EPI_BF16,
     "attention_mma_pair_64x32_d64"},
    {{"../tests/attention", "keys", "B=1,H=1,G=3,S=90,R=140,E=72,F=104", 0},
     EPI_F16,
     "attention_mma_pair_128x32_d128"},
    {{"../tests/attention", "keys", "B=1,H=1,G=1,S=50,R=70,E=192,F=128", 0},
     EPI_BF16,
     "attention_mma_pair_64x16_d192"},
    {{"../tests/attention", "dropout_keys", "B=1,H=1,G=2,S=90,R=70,E=16,F=32", 0},
     EPI_BF16,
     "attention_mma_pair_64x32_d128"},
    {{"../tests/attention", "mixed", "B=2,H=1,S=130,R=330,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_128x32_d128"},
    {{"../tests/attention", "packed", "B=1,H=2,S=384,R=384,E=16,F=32", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "packed", "B=1,H=2,S=128,R=128,E=16,F=32", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "packed_queries", "B=1,H=2,S=384,R=384,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_rows_128x32_d64"},
    {{"../tests/attention", "packed_queries", "B=1,H=2,S=128,R=128,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_rows_128x32_d64"},
    {{"../tests/attention", "packed_keys", "B=1,H=1,G=2,S=384,R=384,E=16,F=32", 0},
     EPI_BF16,
     "attention_mma_pair_64x32_d64"},
    {{"../tests/attention", "packed_keys", "B=1,H=1,G=2,S=128,R=128,E=16,F=32", 0},
     EPI_BF16,
     "attention_mma_pair_64x32_d64"},
    {{"../tests/attention", "packed", "B=3,H=1,S=40,R=50,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "prefix_or", "B=2,H=1,S=384,R=384,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "prefix_keys", "B=2,H=1,G=2,S=384,R=384,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_pair_64x32_d64"},
    {{"../tests/attention", "quotient", "B=1,H=1,S=130,R=150,E=16,F=16", 0},
     EPI_BF16,
     "attention_128x128_d64"},
    {{"../tests/attention", "steep", "B=1,H=1,S=200,R=2300,E=16,F=24", 0}, EPI_BF16, "attention_192x128_d64"},
    {{"../tests/attention", "full", "B=1,H=1,S=130,R=2300,E=16,F=48", 0}, EPI_F16, "attention_128x128_d64"},
    {{"../tests/attention", "steep", "B=1,H=1,S=130,R=2100,E=72,F=72", 0},
     EPI_BF16,
     "attention_128x128_d128"},
    {{"../tests/attention", "full", "B=1,H=1,S=70,R=2100,E=128,F=40", 0},
     EPI_BF16,
     "attention_128x128_early_d128"},
    {{"../tests/attention", "steep", "B=1,H=1,S=140,R=2100,E=128,F=128", 0},
     EPI_BF16,
     "attention_128x128_held_d128"},
    {{"attention", "decode_attention", "B=3,R=2300,G=2,H=3,E=24", 0}, EPI_BF16, "attention_split_8x128_d64"},
    {{"attention", "decode_attention", "B=2,R=1100,G=1,H=4,E=72", 0}, EPI_F16, "attention_split_8x128_d128"},
    {{"../tests/attention", "tokens", "B=3,S=5,R=2500,H=2,G=3,E=72,F=48", 0},
     EPI_BF16,
     "attention_split_16x128_d128"},
    {{"../tests/attention", "cached", "B=5,H=9,R=2100,E=16,F=32", 0}, EPI_BF16, "attention_split_16x128_d64"},
    {{"attention", "paged_attention", "B=3,P=40,C=32,N=40,G=2,H=3,E=72", 0},
     EPI_BF16,
     "attention_split_8x128_d128"},
    {{"attention", "paged_attention", "B=2,P=9,C=256,N=9,G=1,H=9,E=24", 0},
     EPI_F16,
     "attention_split_16x128_d64"},
    {{"../tests/attention", "lengths", "B=3,H=1,S=7,R=140,E=16,F=16", 0},
     EPI_BF16,
     "attention_split_8x128_d64"},
    {{"../tests/attention", "full", "B=1,H=3,S=5,R=150,E=32,F=48", 0}, EPI_F16, "attention_split_8x128_d64"},
    {{"../tests/attention", "biased", "B=1,H=2,S=9,R=150,E=80,F=120", 0},
     EPI_BF16,
     "attention_split_16x128_d128"},
    {{"../tests/attention", "steep", "B=1,H=2,S=12,R=390,E=16,F=16", 0},
     EPI_BF16,
     "attention_split_16x128_d64"},
    {{"../tests/attention", "linear", "B=2,H=2,S=300,R=300,E=16,F=24", 0}, EPI_F16, "attention_192x128_d64"},
    {{"../tests/attention", "linear", "B=1,H=2,S=140,R=270,E=72,F=72", 0},
     EPI_BF16,
     "attention_128x128_d128"},
    {{"../tests/attention", "decayed", "B=1,H=2,S=300,R=280,E=16,F=16", 0},
     EPI_BF16,
     "attention_128x128_d64"},
    {{"../tests/attention", "sigmoids", "B=1,H=2,G=2,S=130,R=150,E=200,F=40", 0},
     EPI_BF16,
     "attention_128x64_d256"},
    {{"../tests/attention", "linear", "B=2,H=2,S=150,R=150,E=16,F=24", 0},
     EPI_F16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "decayed", "B=1,H=2,S=300,R=280,E=16,F=16", 0},
     EPI_BF16,
     "attention_mma_128x64_d64"},
    {{"../tests/attention", "sigmoids", "B=1,H=2,G=2,S=130,R=150,E=72,F=40", 0},
     EPI_BF16,
     "attention_mma_64x32_d128"},
    {{"../tests/attention", "shared_scores", "B=2,H=3,S=150,R=140,E=72,F=40", 0},
     EPI_BF16,
     "attention_128x128_d128"},
    {{"../tests/attention", "shared_scores", "B=2,H=3,S=150,R=140,E=72,F=40", 0},
     EPI_BF16,
     "attention_mma_64x32_d128"},
    {{"../tests/attention", "layer_queries", "B=2,H=2,G=2,S=200,R=200,E=128,F=128", 0},
     EPI_BF16,
     "attention_rows_128x96_d128"},
    {{"../tests/attention", "layer_keys", "B=2,H=2,G=2,S=200,R=200,E=128,F=128", 0},
     EPI_F16,
     "attention_pair_128x64_d128"},
};
enum { ATTENTION = sizeof attention / sizeof *attention };
static loaded attention_cases[ATTENTION];

/* In the configuration that is listed, for a GPU that has it. */
static variant attention_variant(int at) {
    const char *config = attention[at].config;
    return (variant){attention[at].type, EPI_PATH_FUSED, strstr(config, "_mma_") ? 80 : 90, config, true};
}

/* Some of them with open rows, each beside the kernel for its sizes alone. */
static void add_open_attention(int first) {
    static const int some[] = {2,  4,  8,  10, 12, 16, 28, 29, 32, 34,  39,  43,
                               47, 50, 52, 59, 64, 85, 87, 91, 95, 100, 104, 105};
    static loaded less[sizeof some / sizeof *some];
    for (size_t s = 0; s < sizeof some / sizeof *some; s++) {
        const loaded *l = &attention_cases[some[s]];
        variant v = attention_variant(some[s]);
        if (!check(make_fewer(l, &less[s]) && add_kernel_open(l, l, v, false, 2),
                   "%s with open rows is for %s", attention[some[s]].from.program, attention[some[s]].config))
            continue;
        kernels[kernel_count - 1].closed = first + some[s];
        add_kernel_open(&less[s], l, v, false, 2);
    }
}

static void add_attention(void) {
    int first = kernel_count;
    for (int i = 0; i < ATTENTION; i++)
        if (load_case(ctx, programs, &attention[i].from, &attention_cases[i]))
            check(add_kernel(&attention_cases[i], attention_variant(i), false), "%s %s is for %s",
                  attention[i].from.program, attention[i].from.dims, attention[i].config);
    if (kernel_count == first + ATTENTION)
        add_open_attention(first);
}

/* ---- the same bits in every form ---- */

/* One sequence of attention, in forms that have to give the bits of its rows: all tokens at once, a few, one over
 * a cache of another length or in pages, behind padding, and as a document among others. Of each sequence of a
 * batch: where its first key is, and the token that the first query is. */
typedef struct bits_form {
    const char *program, *dims, *config;
    int start[3], first[3];
} bits_form;

enum { BIT_FORMS = 16, BIT_SIZES = 3 };
static const struct {
    int tokens;
    epi_dtype type;
    bits_form whole, forms[BIT_FORMS];
} same_bits[BIT_SIZES] = {
    {2200,
     EPI_BF16,
     {"bits_rows", "B=1,S=2200,R=2200,H=1,G=2,E=16,F=24", "attention_192x128_d64", {0}, {0}},
     {{"bits_rows", "B=1,S=2200,R=2200,H=1,G=2,E=16,F=24", "attention_128x128_d64", {0}, {0}},
      {"bits_rows", "B=1,S=300,R=300,H=1,G=2,E=16,F=24", "attention_128x128_d64", {0}, {0}},
      {"bits_token", "B=2,R=1000,H=1,G=2,E=16,F=24", "attention_split_8x128_d64", {0, 50}, {999, 300}},
      {"bits_rows", "B=1,S=2237,R=2237,H=1,G=2,E=16,F=24", "attention_192x128_d64", {37}, {-37}},
      {"bits_rows", "B=2,S=200,R=2700,H=1,G=2,E=16,F=24", "attention_128x128_d64", {0, 131}, {1990, 700}},
      {"bits_rows",
       "B=3,S=8,R=2600,H=1,G=2,E=16,F=24",
       "attention_split_64x128_d64",
       {0, 1, 64},
       {2192, 2045, 0}},
      {"bits_rows",
       "B=3,S=8,R=2600,H=1,G=2,E=16,F=24",
       "attention_split_16x128_d64",
       {0, 1, 64},
       {2192, 2045, 0}},
      {"bits_token",
       "B=3,R=2300,H=1,G=2,E=16,F=24",
       "attention_split_64x128_d64",
       {0, 0, 77},
       {2199, 2047, 2100}},
      {"bits_token",
       "B=3,R=2300,H=1,G=2,E=16,F=24",
       "attention_split_8x128_d64",
       {0, 0, 77},
       {2199, 2047, 2100}},
      {"bits_token",
       "B=3,R=5000,H=1,G=2,E=16,F=24",
       "attention_split_8x128_d64",
       {0, 2500, 999},
       {2048, 2199, 5}},
      {"bits_packed", "B=1,S=2391,R=2391,H=1,G=2,E=16,F=24", "attention_192x128_d64", {133}, {-133}},
      {"bits_packed", "B=1,S=2391,R=2391,H=1,G=2,E=16,F=24", "attention_128x128_d64", {7}, {-7}},
      {"bits_pages",
       "B=3,P=130,C=64,N=40,H=1,G=2,E=16,F=24",
       "attention_split_8x128_d64",
       {0},
       {2199, 2048, 64}}}},
    {1400,
     EPI_BF16,
     {"bits_rows", "B=1,S=1400,R=1400,H=1,G=1,E=72,F=72", "attention_128x128_d128", {0}, {0}},
     {{"bits_rows", "B=1,S=1400,R=1400,H=1,G=1,E=72,F=72", "attention_128x128_early_d128", {0}, {0}},
      {"bits_rows", "B=1,S=1533,R=1533,H=1,G=1,E=72,F=72", "attention_128x128_held_d128", {133}, {-133}},
      {"bits_rows", "B=2,S=130,R=2100,H=1,G=1,E=72,F=72", "attention_128x128_d128", {0, 131}, {1000, 1270}},
      {"bits_rows",
       "B=3,S=8,R=1500,H=1,G=1,E=72,F=72",
       "attention_split_64x128_d128",
       {0, 1, 64},
       {1392, 1020, 0}},
      {"bits_rows",
       "B=3,S=8,R=1500,H=1,G=1,E=72,F=72",
       "attention_split_8x128_d128",
       {0, 1, 64},
       {1392, 1020, 0}},
      {"bits_rows", "B=2,S=8,R=900,H=1,G=1,E=72,F=72", "attention_split_8x128_d128", {0, 20}, {892, 300}},
      {"bits_rows", "B=2,S=12,R=900,H=1,G=1,E=72,F=72", "attention_split_16x128_d128", {0, 20}, {880, 0}},
      {"bits_rows",
       "B=3,S=11,R=1500,H=1,G=1,E=72,F=72",
       "attention_split_16x128_d128",
       {0, 1, 64},
       {1389, 1020, 0}},
      {"bits_token",
       "B=3,R=3333,H=1,G=1,E=72,F=72",
       "attention_split_8x128_d128",
       {0, 1900, 77},
       {1023, 1399, 1200}},
      {"bits_packed", "B=1,S=1650,R=1650,H=1,G=1,E=72,F=72", "attention_128x128_d128", {101}, {-101}},
      {"bits_packed",
       "B=2,S=1500,R=1500,H=1,G=1,E=72,F=72",
       "attention_128x128_early_d128",
       {0, 61},
       {0, -61}},
      {"bits_pages",
       "B=3,P=200,C=32,N=60,H=1,G=1,E=72,F=72",
       "attention_split_64x128_d128",
       {0},
       {1399, 1024, 1}}}},
    {200,
     EPI_F16,
     {"bits_rows", "B=1,S=200,R=200,H=1,G=2,E=40,F=40", "attention_mma_128x64_d64", {0}, {0}},
     {{"bits_rows", "B=1,S=211,R=211,H=1,G=2,E=40,F=40", "attention_mma_128x64_d64", {11}, {-11}},
      {"bits_token",
       "B=3,R=500,H=1,G=2,E=40,F=40",
       "attention_mma_64x64_d64",
       {0, 99, 300},
       {199, 128, 65}}}},
};
static loaded bit_cases[BIT_SIZES][BIT_FORMS + 1];
static test_case bit_froms[BIT_SIZES][BIT_FORMS + 1];
static int bit_kernels[BIT_SIZES][BIT_FORMS + 1]; /* numbers of kernels, and 1; the first is the whole's */

static const bits_form *form_of(int size, int f) {
    return f ? &same_bits[size].forms[f - 1] : &same_bits[size].whole;
}

static void add_same_bits(void) {
    for (int size = 0; size < BIT_SIZES; size++)
        for (int f = 0; f <= BIT_FORMS && form_of(size, f)->program; f++) {
            const bits_form *form = form_of(size, f);
            variant v = {same_bits[size].type, EPI_PATH_FUSED, strstr(form->config, "_mma_") ? 80 : 90,
                         form->config, true};
            bit_froms[size][f] = (test_case){"../tests/attention", form->program, form->dims, 0};
            if (!load_case(ctx, programs, &bit_froms[size][f], &bit_cases[size][f]) ||
                !check(add_kernel(&bit_cases[size][f], v, false), "%s %s is for %s", form->program,
                       form->dims, form->config))
                continue;
            kernels[kernel_count - 1].partner = kernels[kernel_count - 1].stays = true;
            bit_kernels[size][f] = kernel_count;
        }
}

static tensor *named(const problem *p, const char *name) {
    epi_tensor_info info;
    for (int i = 0; i < p->count; i++)
        if (epi_program_tensor(p->program, i, &info) == EPI_OK && !strcmp(info.name, name))
            return (tensor *)&p->t[i];
    return NULL;
}

static int64_t size_of(const loaded *l, const char *dim) {
    for (int i = 0; i < l->dim_count; i++)
        if (!strcmp(l->dims[i].name, dim))
            return l->dims[i].size;
    return 1;
}

/* Copies what a token has: of the sequence's first tensor to place `at` of the form's. */
static void put_token(const problem *form, const problem *whole, const char *name, int64_t at, int tokens,
                      int64_t token) {
    const tensor *to = named(form, name), *from = named(whole, name);
    size_t each = (size_t)(from->shape.count / tokens) * epi_dtype_size(from->shape.type);
    if (token >= 0 && token < tokens)
        memcpy(to->data + (size_t)at * each, from->data + (size_t)token * each, each);
}

/* The sequence as the form has it: what is before and behind is something else. */
static void put_sequence(const bits_form *form, const loaded *l, int tokens, const problem *whole,
                         problem *p) {
    int64_t batches = size_of(l, "B"), rows = size_of(l, "S"), pages = size_of(l, "P"),
            slots = size_of(l, "N"), columns = slots > 1 ? slots * size_of(l, "C") : size_of(l, "R"),
            page = size_of(l, "C");
    const tensor *start = named(p, "start"), *offset = named(p, "offset"), *query = named(p, "query"),
                 *key = named(p, "key"), *table = named(p, "page");
    for (int64_t b = 0; b < batches; b++) {
        for (int64_t s = 0; s < rows; s++)
            put_token(p, whole, "q", b * rows + s, tokens, s + form->first[b]);
        for (int64_t r = 0; r < columns; r++) {
            int64_t token = r - form->start[b], at = b * columns + r;
            if (table) { /* pages lie in another order */
                at = (7 * (b * slots + r / page) + 3) % pages;
                put_element(table->data, EPI_I32, b * slots + r / page, (double)at);
                at = at * page + r % page;
            }
            put_token(p, whole, "k", at, tokens, token);
            put_token(p, whole, "v", at, tokens, token);
            if (key)
                put_element(key->data, EPI_I32, b * columns + r,
                            token < 0        ? (double)(r / 50)
                            : token < tokens ? 99
                                             : 100);
        }
        for (int64_t s = 0; s < rows && query; s++)
            put_element(query->data, EPI_I32, b * rows + s,
                        s + form->first[b] < 0        ? (double)(s / 50)
                        : s + form->first[b] < tokens ? 99
                                                      : 100);
        if (start)
            put_element(start->data, EPI_I32, b, form->start[b]);
        if (offset)
            put_element(offset->data, EPI_I32, b, form->start[b] + form->first[b]);
    }
}

static void compare_form(int size, int f, const problem *whole) {
    const bits_form *form = form_of(size, f);
    const emulated *e = &kernels[bit_kernels[size][f] - 1];
    const loaded *l = &bit_cases[size][f];
    int tokens = same_bits[size].tokens;
    char what[200];
    problem p;
    snprintf(what, sizeof what, "%s %s, %s", form->program, form->dims, form->config);
    if (!runs(e) || !make_problem(e, &p))
        return;
    put_sequence(form, l, tokens, whole, &p);
    run_launches(e, &p, f % 2, what);
    for (int o = 0; o < 2; o++) {
        const char *name = o ? "l" : "o";
        int64_t batches = size_of(l, "B"), rows = size_of(l, "S"), differ = 0;
        const tensor *mine = named(&p, name), *theirs = named(whole, name);
        size_t each = (size_t)(theirs->shape.count / tokens) * epi_dtype_size(theirs->shape.type);
        for (int64_t at = 0; at < batches * rows; at++) {
            int64_t token = at % rows + form->first[at / rows];
            differ += token >= 0 && token < tokens &&
                      memcmp(mine->data + (size_t)at * each, theirs->data + (size_t)token * each, each) != 0;
        }
        check(!differ, "%s: %ld of %ld rows of '%s' have other bits than in the whole sequence", what,
              (long)differ, (long)(batches * rows), name);
    }
    problem_free(&p);
}

static void run_same_bits(void) {
    for (int size = 0; size < BIT_SIZES; size++) {
        problem whole;
        const emulated *e = bit_kernels[size][0] ? &kernels[bit_kernels[size][0] - 1] : NULL;
        if (!e || !runs(e) || !make_problem(e, &whole))
            continue;
        put_sequence(form_of(size, 0), e->l, same_bits[size].tokens, &whole, &whole);
        run_launches(e, &whole, false, "the whole sequence");
        for (int f = 1; f <= BIT_FORMS; f++)
            if (bit_kernels[size][f])
                compare_form(size, f, &whole);
        problem_free(&whole);
    }
}

/* All products of the table, in all of Hopper's configurations that take them. */
static void add_sweep(void) {
    for (int i = 0; i < CASES; i++)
        for (int n = 0; all[i].program && !(cases[i].flags & LARGE) && has_product(&all[i]); n++) {
            const char *config = epi_config_name(n);
            if (strncmp(config, "sm90", 4) != 0)
                break;
            epi_dtype type = (i + n) % 3 ? EPI_BF16 : EPI_F16;
            for (int exact = 0; exact < 2; exact++)
                add_kernel_for(&all[i], (variant){type, EPI_PATH_FUSED, 90, config, exact}, false, 8);
        }
}

/* Gathers, scatters and random numbers, by passes and ahead of products. */
static loaded moved[MOVES];

static void add_moves(void) {
    for (int i = 0; i < MOVES; i++)
        if (load_move(ctx, &moves[i], &moved[i])) {
            add_case(&moved[i], i % 2 ? BF16_FUSED : F32_FUSED);
            add_case(&moved[i], i % 2 ? F32_UNFUSED : BF16_UNFUSED);
            if (!strcmp(moves[i].program, "combined_rows")) /* rows through a ring, beside rows of a table */
                add_case(&moved[i], (variant){EPI_BF16, EPI_PATH_FUSED, 90,
                                              "rows_64x4_r1_c1_b16_m1_t1024_w1_p16", true});
        }
}

/* ---- rows ---- */

/* Programs of rows at sizes of their own. */
enum { MOST_ROWS = 512, BATCH = 37 };
static row_case row_cases[MOST_ROWS];
static int row_case_count;

static const loaded *add_rows(const row_program *r, int64_t rows, int64_t columns) {
    if (!check(row_case_count < MOST_ROWS, "more programs of rows than expected"))
        return NULL;
    return load_rows(ctx, programs, r, rows, columns, &row_cases[row_case_count++]);
}

/* A kernel, and the one that does its rows one by one. Shapes may be refused. */
static void add_both(const loaded *many, const loaded *one, variant v) {
    if (!add_kernel(many, v, false))
        return;
    int at = kernel_count - 1;
    if (one && add_kernel(one, v, false)) {
        kernels[at].one = kernel_count - 1;
        kernels[kernel_count - 1].partner = true;
    }
}

/* The large cases of the table, which have rows that TMA takes, with fewer rows. */
static void add_aligned_rows(void) {
    static const epi_dtype types[] = {EPI_BF16, EPI_F32, EPI_F16};
    for (int i = 0, n = 0; i < CASES; i++) {
        if (!(cases[i].flags & LARGE) || !all[i].program || has_product(&all[i]) ||
            !check(row_case_count < MOST_ROWS, "more programs of rows than expected"))
            continue;
        int at = row_case_count++;
        const char *rest = strchr(cases[i].dims, ',');
        bool rows = !strncmp(cases[i].dims, "T=", 2) && rest;
        snprintf(row_cases[at].dims, sizeof row_cases[at].dims, "%s%s", rows ? "T=19" : cases[i].dims,
                 rows ? rest : "");
        row_cases[at].from = (test_case){cases[i].file, cases[i].program, row_cases[at].dims, 0};
        if (!load_case(ctx, programs, &row_cases[at].from, &row_cases[at].l))
            continue;
        add_kernel(&row_cases[at].l, (variant){types[n % 3], EPI_PATH_FUSED, 90, NULL, true}, false);
        if (n++ % 3 == 0)
            add_kernel(&row_cases[at].l, (variant){types[n % 3], EPI_PATH_FUSED, 80, NULL, true}, false);
    }
}

/* What is chosen, and shapes by name, with whole and with ragged rows. Every other of them in each type. */
static void add_shapes(void) {
    for (int p = 0; p < ROW_PROGRAMS; p++) {
        const row_program *r = &row_programs[p];
        for (int t = 0; t < 2; t++) {
            const loaded *many = add_rows(r, BATCH, t ? 1000 : 1024);
            const loaded *one = rows_apart(r) ? add_rows(r, 1, t ? 1000 : 1024) : NULL;
            variant v = {t ? EPI_F32 : EPI_BF16, EPI_PATH_FUSED, 90, NULL, true};
            add_both(many, one, v);
            v.capability = 80;
            add_both(many, one, v);
            for (int i = 0; i < shape_count(r); i++) {
                v.config = shape_at(r, i);
                v.capability = strpbrk(v.config + 5, "cm") ? 90 : 80;
                if ((i + p + t) % 2 == 0)
                    add_both(many, (i + p) % 4 ? NULL : one, v);
            }
        }
    }
}

/* Rows as they are chosen at lengths where the choice changes, and where vectors do not fit. */
static void add_lengths(void) {
    static const struct {
        int program, rows, columns;
        epi_dtype type;
        int capability;
        const char *config;
    } lengths[] = {
        {0, 67, 1, EPI_BF16, 90, NULL},
        {0, 67, 3, EPI_BF16, 80, NULL},
        {0, 67, 8, EPI_F32, 90, NULL},
        {0, 67, 17, EPI_BF16, 90, NULL},
        {2, 67, 16, EPI_BF16, 90, NULL},
        {4, 67, 127, EPI_F32, 80, NULL},
        {5, 67, 129, EPI_BF16, 90, NULL},
        {0, 2, 65600, EPI_BF16, 90, NULL},
        {4, 2, 100003, EPI_BF16, 90, NULL},
        {4, 2, 100003, EPI_BF16, 80, NULL},
        {5, 3, 40000, EPI_F32, 90, NULL},
        {1, 2, 33000, EPI_F16, 80, NULL},
        {3, 9, 16384, EPI_BF16, 90, NULL},
        {2, 5, 10000, EPI_F32, 80, NULL},
        {2, 5, 16001, EPI_BF16, 90, NULL},
        {6, 3, 1032, EPI_BF16, 90, NULL},
        {7, 3, 1032, EPI_BF16, 90, NULL},
        {8, 5, 1032, EPI_BF16, 90, NULL},
        {6, 5, 4104, EPI_F32, 90, NULL},
        {8, 5, 6, EPI_BF16, 90, NULL},
        {0, 5, 1024, EPI_BF16, 90, "rows_64x2_c4_m1"},
        {0, 5, 1024, EPI_BF16, 90, "rows_8x2_c8"},
        {4, 5, 1024, EPI_BF16, 90, "rows_8x8_c2_b4"},
        {5, 5, 1024, EPI_BF16, 90, "rows_16x4_c2_b2"},
        {12, 37, 1024, EPI_F32, 90, "rows_64x2_c2"},
        {2, 5, 24, EPI_BF16, 90, "rows_4x1_r5"},
    };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const loaded *l = add_rows(&row_programs[lengths[i].program], lengths[i].rows, lengths[i].columns);
        if (l)
            add_kernel(
                l, (variant){lengths[i].type, EPI_PATH_FUSED, lengths[i].capability, lengths[i].config, true},
                false);
    }
}

/* Quotients that a step looks at are divisions, also where 16 bits are stored. */
static void add_quotients(void) {
    static const row_program quotients = {"../tests/choice", "quotients", "T", "D", "", 1, 1};
    const loaded *l = add_rows(&quotients, 300, 300);
    for (int capability = 80; l && capability <= 90; capability += 10)
        add_kernel(l, (variant){EPI_BF16, EPI_PATH_FUSED, capability, NULL, true}, false);
}

enum { RANDOMS = 10 };
static loaded random_programs[RANDOMS];
static test_case random_cases[RANDOMS];
static char random_dims[RANDOMS][80], random_names[RANDOMS][16];

static void add_random(void) {
    static const int heads[] = {2, 8, 16, 64};
    uint64_t seed = 0;
    for (int i = 0; i < RANDOMS;) {
        maker m;
        epi_error err;
        loaded *l = &random_programs[i];
        make_program(&m, ++seed);
        if (has_steps(m.text)) /* a rounded value may land on the other side */
            continue;
        if (!check(epi_module_parse(ctx, m.text, strlen(m.text), "random", &l->module, &err) == EPI_OK,
                   "seed %d: %s", (int)seed, err.message))
            return;
        snprintf(random_dims[i], sizeof random_dims[i], "B=%d,S=%d,K=%d,H=%d,D=%d", 1 + random_below(&m.s, 3),
                 1 + random_below(&m.s, 60), 1 + random_below(&m.s, 40), 1 + random_below(&m.s, 5),
                 heads[random_below(&m.s, 4)]);
        snprintf(random_names[i], sizeof random_names[i], "seed %d", (int)seed);
        random_cases[i] = (test_case){"random", random_names[i], random_dims[i], 0};
        l->from = &random_cases[i];
        l->program = epi_module_program(l->module, 0);
        l->dim_count = parse_dims(random_dims[i], l->dims, l->names);
        add_case(l, F32_FUSED);
        i++;
    }
}

/* Scaled products at random: which scales there are, by which axes, in which order, and what is made of the result. Rows
 * are T or A and T, columns N and J or N, I and J, the depth G and K or G, H and K. */
enum { RANDOM_SCALED = 8 };
static loaded scaled_programs[RANDOM_SCALED];
static test_case scaled_cases[RANDOM_SCALED];
static char scaled_texts[RANDOM_SCALED][600], scaled_dims[RANDOM_SCALED][80], scaled_names[RANDOM_SCALED][24];

/* Some of these axes, in some order. */
static void write_axes(uint64_t *s, const char *from, char *out) {
    char left[8], *to = out;
    int count = (int)strlen(from);
    memcpy(left, from, (size_t)count + 1);
    while (count) {
        int i = random_below(s, count);
        if (random_below(s, 4))
            to += sprintf(to, "%s%c", to == out ? "[" : ",", left[i]);
        left[i] = left[--count];
    }
    sprintf(to, to == out ? "" : "]");
}

static void write_scaled(uint64_t *s, int i) {
    static const char *const results[] = {"z", "silu(z)", "z + x", "x*z", "max(z, x)", "exp(0.01*z)"};
    bool two_rows = random_below(s, 2), three_cols = random_below(s, 2), three_deep = random_below(s, 2);
    const char *rows = two_rows ? "A,T" : "T", *cols = three_cols ? "N,I,J" : "N,J",
               *deep = three_deep ? "G,H,K" : "G,K";
    bool left = random_below(s, 5), right = random_below(s, 5);
    char of_rows[16], of_cols[16], first[40] = "", second[40] = "";
    write_axes(s, two_rows ? "ATG" : "TG", of_rows);
    write_axes(s, "NG", of_cols);
    if (left)
        sprintf(first, ", s: f32%s", of_rows);
    if (right)
        sprintf(second, ", t: bf16%s", of_cols);
    sprintf(scaled_texts[i],
            "f(x[%s,%s], q: %s[%s,%s], r: e4m3[%s,%s]%s%s) -> y[%s,%s] {\n    z = %s @ %s\n    y = %s\n}\n",
            rows, cols, random_below(s, 3) ? "e4m3" : "e5m2", rows, deep, cols, deep, first, second, rows,
            cols, left ? "(s*q)" : "q", right ? "(r*t)" : "r", results[random_below(s, 6)]);
    sprintf(scaled_dims[i], "%sT=%d,N=%d,%sJ=%d,G=%d,%sK=%d", two_rows ? "A=2," : "", 1 + random_below(s, 90),
            1 + random_below(s, 2), three_cols ? "I=2," : "", three_cols ? 64 : 128, 1 + random_below(s, 2),
            three_deep ? "H=4," : "", three_deep ? 32 : 128);
    sprintf(scaled_names[i], "scaled %d", i);
}

static void add_random_scaled(void) {
    uint64_t seed = 38;
    for (int i = 0; i < RANDOM_SCALED; i++) {
        loaded *l = &scaled_programs[i];
        epi_error err;
        write_scaled(&seed, i);
        if (!check(epi_module_parse(ctx, scaled_texts[i], strlen(scaled_texts[i]), "scaled", &l->module,
                                    &err) == EPI_OK,
                   "%s: %s", scaled_texts[i], err.message))
            return;
        scaled_cases[i] = (test_case){"random", scaled_names[i], scaled_dims[i], 0};
        l->from = &scaled_cases[i];
        l->program = epi_module_program(l->module, 0);
        l->dim_count = parse_dims(scaled_dims[i], l->dims, l->names);
        bool added = add_kernel(l, (variant){EPI_BF16, EPI_PATH_FUSED, 90, NULL, i % 2 > 0}, false);
        const epi_cuda_kernel *k = added ? kernels[kernel_count - 1].k : NULL;
        check(k && k->launches[k->count - 1].text.config.scaled, "%s is a scaled product", scaled_texts[i]);
    }
}

int main(int argc, char **argv) {
    programs = argc > 1 ? argv[1] : "programs";
    folder = argc > 2 ? argv[2] : "build/emulate";
    const char *why = argc > 3 && !strcmp(argv[3], "texts")                  ? "asked for texts alone"
                      : system("${CXX:-c++} --version >/dev/null 2>&1") != 0 ? "no C++ compiler"
                                                                             : NULL;
    if (why) {
        printf("%s: skipped\n0 passed, 0 failed\n", why);
        return 0;
    }
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    mkdir(folder, 0777);
    for (int i = 0; i < CASES; i++)
        load_case(ctx, programs, &cases[i], &all[i]);
    const char *mode = argc > 3 ? argv[3] : "all";
    half = !strcmp(mode, "forms");
    bool sweep = !strcmp(mode, "sweep"), rows = !strcmp(mode, "rows"), parts = !strcmp(mode, "parts"),
         few = !strcmp(mode, "few"), scaled = !strcmp(mode, "scaled"), moving = !strcmp(mode, "moves"),
         groups = !strcmp(mode, "groups"), bits = !strcmp(mode, "bits"), scanned = !strcmp(mode, "scans"),
         alone = sweep || bits || moving || parts || few || scaled || groups || scanned ||
                 !strcmp(mode, "file") || !strcmp(mode, "hopper") || !strcmp(mode, "open") ||
                 !strcmp(mode, "attention");
    any_text = !strcmp(mode, "file") && argc > 5;
    if (any_text)
        take_file(argv[4], argv[5]);
    if (parts || any_text)
        add_wholes(argc > 4 && !any_text ? argv[4] : NULL);
    else if (groups)
        add_grouped(argc > 4 ? argv[4] : NULL);
    else if (!strcmp(mode, "open"))
        add_open();
    else if (sweep)
        add_sweep();
    else if (scanned)
        add_scans(argc > 4 ? argv[4] : NULL);
    else if (moving)
        add_moves();
    else if (!rows && !bits && strcmp(mode, "attention") != 0) {
        add_copies(); /* so that Hopper's are not the first, whose number says that there is none */
        int first = kernel_count;
        add_hopper(few ? 'f' : scaled ? 'p' : 0);
        if (!few && !scaled)
            add_open_hopper(first);
        add_many(first);
        if (!few)
            add_random_scaled();
        if (!few && !scaled) {
            add_grouped(NULL);
            add_wholes(NULL);
            add_scans(NULL);
        }
    }
    if (!rows && !sweep && !parts && !few && !scaled && !groups && !moving && !bits && !scanned &&
        !any_text && strcmp(mode, "open") != 0)
        add_attention();
    if (bits || !strcmp(mode, "attention") || !alone)
        add_same_bits();
    if (!alone) {
        add_lengths();
        add_quotients();
    }
    int named = kernel_count;
    if (!rows && !alone) {
        add_cases();
        add_open();
        add_moves();
        add_random();
    }
    if (!alone) {
        add_panels();
        add_checks();
        add_aligned_rows();
        add_shapes();
    }
    if (!alone || moving) {
        add_longs();
        add_folds();
    }
    if (!strcmp(mode, "forms"))
        choose_kernels(named);
    add_texts();
    compile_texts();
    run_kernels();
    run_same_bits();
    run_wholes();
    if (!alone) {
        run_large();
        run_panels();
        run_checks();
    }
    if (!alone || moving) {
        run_longs();
        run_folds();
    }
    int left_out = 0;
    for (int i = 0; i < kernel_count; i++)
        left_out += kernels[i].left_out;
    printf("%d kernels of %d texts, %d left out; %d were refused\n", kernel_count - left_out, text_count,
           left_out, refused);
    free_kernels();
    free_texts();
    for (int i = 0; i < CASES; i++)
        epi_module_free(all[i].module);
    for (int i = 0; i < 2; i++)
        epi_module_free(odd_cases[i].module);
    for (int i = 0; i < HOPPER; i++)
        epi_module_free(hopper_cases[i].module);
    for (int i = 0; i < GROUPED; i++)
        epi_module_free(grouped_cases[i].module);
    for (int i = 0; i < ATTENTION; i++)
        epi_module_free(attention_cases[i].module);
    for (int i = 0; i < SCANS; i++)
        epi_module_free(scan_cases[i].module);
    for (int i = 0; i < BIT_SIZES; i++)
        for (int f = 0; f <= BIT_FORMS; f++)
            epi_module_free(bit_cases[i][f].module);
    for (int i = 0; i < MOVES; i++)
        epi_module_free(moved[i].module);
    for (int i = 0; i < row_case_count; i++)
        epi_module_free(row_cases[i].l.module);
    for (int i = 0; i < RANDOMS; i++)
        epi_module_free(random_programs[i].module);
    epi_context_close(ctx);
    return finish();
}

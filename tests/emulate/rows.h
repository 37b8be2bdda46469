/* rows.h: the mainloop over rows: lengths where the choice changes, shapes by name, and a row of a batch alone. */
#ifndef EPI_TESTS_EMULATE_ROWS_H
#define EPI_TESTS_EMULATE_ROWS_H

#include "emulate/kernels.h"

enum { BATCH = 37 };

/* A kernel, and the one that does its rows one by one. Shapes may be refused. */
static void add_both(const loaded *many, const loaded *one, variant v) {
    emulated *e = many && wants("shapes", many, v, one ? " row by row" : "") ? add_kernel(many, v) : NULL;
    emulated *o = e && one ? add_kernel(one, v) : NULL;
    if (o) {
        o->partner = true;
        e->one = o;
    }
}

/* The large cases of the table, which have rows that TMA takes, with fewer rows. */
static void add_aligned_rows(void) {
    static const epi_dtype types[] = {EPI_BF16, EPI_F32, EPI_F16};
    for (int i = 0, n = 0; i < CASES; i++) {
        if (!(cases[i].flags & LARGE) || !case_of(i) || has_product(case_of(i)))
            continue;
        char dims[160];
        const char *rest = strncmp(cases[i].dims, "T=", 2) ? NULL : strchr(cases[i].dims, ',');
        snprintf(dims, sizeof dims, "%s%s", rest ? "T=19" : cases[i].dims, rest ? rest : "");
        const loaded *l = program_with(cases[i].file, NULL, cases[i].program, dims);
        variant v = {types[n % 3], EPI_PATH_FUSED, 90, NULL, true, 0};
        add_case("rows", l, v);
        v.capability = 80;
        if (n++ % 3 == 0)
            add_case("rows", l, v);
    }
}

/* What is chosen, and shapes by name, with whole and with ragged rows. Every other of them in each type. */
static void add_shapes(void) {
    for (int p = 0; p < ROW_PROGRAMS; p++)
        for (int t = 0; t < 2; t++) {
            const row_program *r = &row_programs[p];
            const loaded *many = rows_of(r, BATCH, t ? 1000 : 1024),
                         *one = rows_apart(r) ? rows_of(r, 1, t ? 1000 : 1024) : NULL;
            variant v = {t ? EPI_F32 : EPI_BF16, EPI_PATH_FUSED, 90, NULL, true, 0};
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

/* Rows as they are chosen at lengths where the choice changes, and where vectors do not fit. Quotients that a step looks
 * at are divisions, also where 16 bits are stored. */
static const char *const lengths[] = {
    "norms:rmsnorm T=67,D=1 bf16 sm90",
    "norms:rmsnorm T=67,D=3 bf16 sm80",
    "norms:rmsnorm T=67,D=8 f32 sm90",
    "norms:rmsnorm T=67,D=17 bf16 sm90",
    "norms:rmsnorm_grad T=67,D=16 bf16 sm90",
    "softmax:softmax T=67,D=127 f32 sm80",
    "losses:token_loss T=67,V=129 bf16 sm90",
    "norms:rmsnorm T=2,D=65600 bf16 sm90",
    "softmax:softmax T=2,D=100003 bf16 sm90",
    "softmax:softmax T=2,D=100003 bf16 sm80",
    "losses:token_loss T=3,V=40000 f32 sm90",
    "norms:layernorm T=2,D=33000 f16 sm80",
    "norms:layernorm_grad T=9,D=16384 bf16 sm90",
    "norms:rmsnorm_grad T=5,D=10000 f32 sm80",
    "norms:rmsnorm_grad T=5,D=16001 bf16 sm90",
    "gated:swiglu_gate_halves T=3,F=516 bf16 sm90",
    "gated:swiglu_gate_pairs_grad T=3,F=516 bf16 sm90",
    "rotary:rotary_halves S=5,D=1032,B=1,H=2 bf16 sm90",
    "gated:swiglu_gate_halves T=5,F=2052 f32 sm90",
    "rotary:rotary_halves S=5,D=6,B=1,H=2 bf16 sm90",
    "norms:rmsnorm T=5,D=1024 bf16 sm90 rows_64x2_c4_m1",
    "norms:rmsnorm T=5,D=1024 bf16 sm90 rows_8x2_c8",
    "softmax:softmax T=5,D=1024 bf16 sm90 rows_8x8_c2_b4",
    "losses:token_loss T=5,V=1024 bf16 sm90 rows_16x4_c2_b2",
    "optim:global_norm N=37888 f32 sm90 rows_64x2_c2",
    "norms:rmsnorm_grad T=5,D=24 bf16 sm90 rows_4x1_r5",
    "tests/choice:quotients T=300,D=300 bf16 sm80",
    "tests/choice:quotients T=300,D=300 bf16 sm90",
    "tests/cliffs:delta_step B=2,H=2,N=40,P=24 bf16 sm90",
    "tests/cliffs:delta_step B=1,H=2,N=128,P=17 bf16 sm80",
    "tests/cliffs:softmax_middle B=3,N=200,P=33 f32 sm90",
    NULL,
};

static void add_length(const loaded *l, variant v, const char *more) {
    (void)more;
    v.exact = true;
    if (wants("lengths", l, v, ""))
        add_kernel(l, v);
}

static void add_lengths(void) {
    for_rows(lengths, add_length);
}

/* The softmax of equal elements is the same whatever they are: masks of finite numbers are common. */
static void run_large(int at) {
    static const float equal[] = {-0x1p30f, 0x1p127f, -0x1.fep127f, 1e6f, -65536, 0x1p100f, 3, -INFINITY};
    const emulated *e = &kernels[at];
    int64_t columns = e->l->dims[1].size;
    problem p;
    begin_case(e->name);
    if (!runs(e) || !make_problem(e, &p))
        return;
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

static void add_large_jobs(void) {
    for (int i = 0; i < kernel_count; i++)
        if (!strcmp(kernels[i].l->from->program, "softmax") && kernels[i].v.type == EPI_BF16 &&
            kernels[i].l->dims[0].size >= 8 && !kernels[i].left_out)
            add_job(run_large, i);
}

#endif

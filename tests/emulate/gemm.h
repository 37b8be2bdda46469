/* gemm.h: products: Hopper's, in groups, of few rows, of operands of 8 bits, and copies of operands ahead of them. */
#ifndef EPI_TESTS_EMULATE_GEMM_H
#define EPI_TESTS_EMULATE_GEMM_H

#include "emulate/kernels.h"

/* Hopper's product: its schedules, every order of the operands, narrow last tiles, odd rows and depths, what
 * an epilogue loads, folds and stores. Some with open rows, too: what epilogues stage and fold, two products, batches,
 * columns and depths that are rows renamed. */
static const char *const hopper[] = {
    "matmul:matmul M=300,N=517,K=136 bf16 sm90_128x256_c2_d x2",
    "matmul:matmul M=300,N=601,K=72 bf16 exact sm90_128x256_c2_e x2",
    "matmul:matmul M=140,N=72,K=200 f16 sm90_128x64_c1_d x2",
    "matmul:matmul_nn M=300,N=568,K=200 bf16 sm90_128x256_c2_d x4",
    "matmul:matmul_tn M=304,N=568,K=136 f16 sm90_128x256_c1_d x2",
    "matmul:matmul_tt M=304,N=565,K=72 bf16 sm90_128x256_c2_e x2",
    "linear:linear_gelu T=300,D=72,F=549 bf16 sm90_128x256_c2_d16 x4",
    "cross_entropy:cross_entropy T=300,V=549,D=72 bf16 exact sm90_128x256_c2_eq x4 open",
    "norm_swiglu:norm_swiglu T=300,F=518,D=200 bf16 sm90_128x256_c2_d x2",
    "norm_swiglu:norm_swiglu T=300,F=390,D=200 bf16 exact sm90_128x128_c2_d x2",
    "swiglu_backward:swiglu_backward T=300,D=136,F=552 bf16 sm90_128x256_c2_d x4 open",
    "rmsnorm_backward:rmsnorm_backward T=300,D=552,F=72 bf16 exact sm90_128x256_c2_e x4 open",
    "residual_rms:residual_rms T=300,D=549,K=72 bf16 exact sm90_128x192_c2_dq x4 open",
    "layernorm_linear:layernorm_residual T=300,D=549,K=72 bf16 exact sm90_128x192_c2_dq x4 open",
    "layernorm_linear:layernorm_residual T=140,D=576,K=72 bf16 sm90_128x256_c2_d x2",
    "matmul:matmul M=520,N=549,K=521 bf16 sm90_128x256_c2_dq x8",
    "matmul:matmul M=300,N=549,K=521 bf16 sm90_128x256_c2_d x8",
    "norm_swiglu:norm_swiglu T=520,F=550,D=521 bf16 exact sm90_128x256_c2_e x8",
    "blocks:gate_up T=300,D=136,F=344 bf16 sm90_128x256_c2_d x4 open",
    "swiglu:swiglu_two_weights T=140,D=72,F=200 bf16 exact sm90_128x192_c2_d x4",
    "quantise:linear_quantised T=300,D=200,G=3,K=128 bf16 sm90_128x256_c2_d x2",
    "quantise:swiglu_quantised_kept T=300,D=200,G=3,K=128 bf16 sm90_128x256_c2_d x2",
    "quantise:swiglu_quantised T=140,D=72,G=3,K=64 f16 exact sm90_128x256_c2_e x4",
    "blocks:gate_up T=140,D=200,F=136 f16 sm90_128x256_c1_d x2",
    "blocks:gate_up T=300,D=72,F=152 bf16 exact sm90_128x256_c2_e x4",
    "blocks:gate_up T=300,D=72,F=264 bf16 sm90_128x128_c2_d x4",
    "blocks:two_depths T=300,D=136,K=72,F=344 bf16 sm90_128x256_c2_d x4 open",
    "blocks:two_depths T=300,D=72,K=520,F=520 bf16 exact sm90_128x256_c2_e x4",
    "blocks:two_depths T=140,D=200,K=64,F=136 f16 sm90_128x128_c1_d x2",
    "blocks:three_depths T=264,D=544,F=72,K=136 bf16 sm90_128x256_c2_d x4",
    "blocks:matmul_batch B=3,M=150,N=136,K=72 bf16 sm90_128x128_c2_d x4 open",
    "blocks:matmul_batch B=2,M=256,N=549,K=72 f16 exact sm90_128x256_c2_e x4",
    "blocks:attention_scores B=2,S=140,R=168,G=2,H=2,E=64 bf16 sm90_128x128_c1_d x4 open",
    "blocks:attention_values B=2,S=140,R=168,G=2,H=2,E=64 bf16 sm90_128x64_c1_d x4",
    "blocks:attention_values B=2,S=140,R=136,G=1,H=2,E=136 bf16 exact sm90_128x128_c2_d x4",
    "blocks:router T=300,D=136,E=8 bf16 sm90_128x64_c1_d x2",
    "blocks:router T=300,D=72,E=200 bf16 sm90_128x256_c2_d x4",
    "blocks:router T=300,D=72,E=100 f16 exact sm90_128x256_c2_e x2",
    "tests/whole_rows:statistics T=300,D=72,E=60 bf16 sm90_128x64_c1_d x2",
    "tests/whole_rows:statistics T=140,D=72,E=120 bf16 exact sm90_128x192_c2_d x4",
    "tests/whole_rows:norm_rotary T=140,D=72,E=128 bf16 sm90_128x128_c2_d x4",
    "tests/whole_rows:norm_rotary T=140,D=72,E=90 f16 exact sm90_128x128_c1_d x2",
    "tests/whole_rows:softmax_of_two T=140,D=72,E=50,K=136 bf16 sm90_128x128_c1_d x2",
    "tests/whole_rows:softmax_batch B=3,M=150,N=61,K=72 bf16 sm90_128x64_c1_d x2",
    "rope:rope_halves B=2,S=70,E=72,H=5,D=32 bf16 sm90_128x256_c2_d x4",
    "swiglu:swiglu_halves T=140,D=72,F=328 f16 exact sm90_128x128_c2_d x4",
    "swiglu:swiglu_halves T=300,D=72,F=584 bf16 sm90_128x256_c2_d x4",
    "tests/updates:places T=140,D=72,H=3,E=40,R=5 bf16 sm90_128x128_c2_d x4",
    "tests/scaled:blocks T=300,G=4,K=128,N=3,J=128 bf16 sm90_128x256_c2_p x4",
    "tests/scaled:blocks T=140,G=2,K=256,N=2,J=128 f16 exact sm90_128x128_c1_p x2",
    "tests/scaled:gated T=140,G=3,K=128,N=2,J=128 bf16 exact sm90_128x256_c2_p x4",
    "tests/scaled:epilogue T=140,G=2,K=128,N=2,J=256 bf16 sm90_128x256_c1_p x2",
    "tests/scaled:turned P=2,M=128,N=2,R=128,G=1,K=128 bf16 sm90_128x256_c1_p x2",
    "tests/scaled:added T=140,F=2,M=128,H=1,G=2,K=128 bf16 sm90_128x256_c2_p x2",
    "tests/scaled:wide_range T=70,G=1,K=128,N=1,J=128 bf16 sm90_128x128_c1_p x2",
    "tests/scaled:gates_back T=140,G=1,K=128,N=2,J=128 bf16 sm90_128x256_c2_p x2",
    "tests/scaled:weight P=1,M=128,N=2,R=128,G=3,K=128 bf16 sm90_128x256_c2_p x2",
    "matmul:matmul M=5,N=100,K=136 bf16 sm90_64x16_c1_f x3",
    "blocks:router T=5,D=136,E=8 bf16 sm90_64x16_c1_f x3",
    "tests/whole_rows:statistics T=70,D=72,E=60 bf16 exact sm90_64x64_c1_f x2",
    "tests/whole_rows:norm_rotary T=7,D=128,E=100 bf16 sm90_64x112_c1_f x2",
    "tests/whole_rows:softmax_batch B=3,M=10,N=24,K=128 bf16 sm90_64x32_c1_f x2",
    "matmul:matmul M=64,N=200,K=256 bf16 sm90_64x48_c1_f x2",
    "matmul:matmul M=8,N=600,K=72 f16 exact sm90_64x256_c1_f x2",
    "matmul:matmul M=130,N=100,K=128 bf16 sm90_64x32_c2_f x4",
    "matmul:matmul M=150,N=200,K=192 bf16 sm90_128x64_c1_f x3",
    "matmul:matmul_nn M=9,N=192,K=256 bf16 sm90_64x64_c1_f x2",
    "matmul:matmul_tn M=40,N=72,K=200 bf16 sm90_64x64_c1_f x2",
    "matmul:matmul_tt M=72,N=130,K=128 bf16 sm90_64x64_c2_f x2",
    "linear:linear_gelu T=3,D=256,F=101 f16 sm90_64x32_c1_f x2",
    "residual_rms:residual_rms T=20,D=136,K=256 bf16 exact sm90_64x64_c1_f x2 open",
    "layernorm_linear:layernorm_residual T=20,D=136,K=256 bf16 exact sm90_64x64_c1_f x2 open",
    "norm_swiglu:norm_swiglu T=33,F=230,D=128 bf16 sm90_64x112_c1_f x2",
    "swiglu_backward:swiglu_backward T=70,D=136,F=264 bf16 sm90_64x128_c2_f x4 open",
    "rmsnorm_backward:rmsnorm_backward T=100,D=264,F=72 bf16 exact sm90_128x128_c1_f x4 open",
    "cross_entropy:cross_entropy T=70,V=300,D=72 bf16 exact sm90_64x128_c2_f x4 open",
    "blocks:gate_up T=7,D=128,F=72 bf16 sm90_64x128_c1_f x2 open",
    "swiglu:swiglu_two_weights T=50,D=200,F=136 bf16 exact sm90_64x96_c1_f x2",
    "blocks:two_depths T=20,D=136,K=72,F=130 bf16 sm90_64x64_c1_f x2 open",
    "blocks:matmul_batch B=3,M=10,N=72,K=128 bf16 sm90_64x32_c1_f x2 open",
    "blocks:attention_scores B=2,S=12,R=168,G=2,H=2,E=64 bf16 sm90_64x64_c1_f x4 open",
    "rope:rope_halves B=1,S=9,E=136,H=3,D=64 bf16 sm90_64x32_c1_f x2",
    "swiglu:swiglu_halves T=20,D=136,F=200 bf16 sm90_64x48_c1_f x2",
    "tests/updates:places T=20,D=72,H=2,E=33,R=9 bf16 sm90_64x64_c1_f x2",
    "matmul:matmul M=5,N=72,K=96 bf16 few_8x16 x2", /* few rows, as those of few bits */
    "swiglu:swiglu_halves T=11,D=64,F=72 f16 exact few_16x32 x2",
    "tests/updates:one_place T=20,D=72,E=40,R=9 f16 exact sm90_64x16_c1_f x2",
    "tests/updates:both B=3,S=10,D=72,E=40,R=9 bf16 sm90_64x64_c1_f x2",
    NULL,
};

/* Products of groups of 0, 1, 63, 64, 65, 127, 129 rows and of the rest, by every mainloop. */
static const char *const grouped[] = {
    "tests/groups:down T=300,K=2,F=72,D=520,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:down T=300,K=2,F=136,D=261,E=8 bf16 exact sm90_128x128_c2_d x6",
    "tests/groups:across T=300,K=2,F=72,D=264,E=8 f16 exact sm90_128x192_c2_dq x4",
    "tests/groups:gated T=300,K=2,D=72,F=256,E=8 bf16 sm90_128x256_c2_d x4",
    "tests/groups:added T=300,K=2,F=128,D=264,E=8 bf16 sm90_128x256_c2_eq x4",
    "tests/groups:back T=300,K=2,D=128,F=264,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:back T=300,K=2,D=72,F=104,E=8 bf16 exact sm90_128x128_c1_d x2",
    "tests/groups:back_of T=300,K=2,D=136,F=264,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:back_of T=300,K=2,D=72,F=104,E=8 bf16 exact sm90_128x128_c1_d x2",
    "tests/groups:back_of T=300,K=2,D=72,F=264,E=8 f16 sm90_128x256_c2_eq x3",
    "tests/groups:up T=300,K=2,D=136,F=512,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:up T=300,K=2,D=64,F=136,E=8 f16 exact sm90_128x128_c1_d x3",
    "tests/groups:packed T=300,K=2,D=72,F=264,E=8 bf16 sm90_128x256_c2_d x4",
    "tests/groups:packed_kept T=300,K=2,D=72,F=264,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:packed_kept T=300,K=2,D=72,F=104,E=8 f16 exact sm90_128x128_c2_d x4",
    "tests/groups:packed_kept T=20,K=2,D=72,F=104,E=8 bf16 sm90_64x64_c1_f x3",
    "tests/groups:packed_back T=300,K=2,D=72,F=264,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:packed_back T=300,K=2,D=72,F=104,E=8 f16 exact sm90_128x128_c2_d x4",
    "tests/groups:of_group T=300,K=2,D=72,F=132,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:of_group T=300,K=2,D=72,F=68,E=8 f16 sm80_128x128 x2",
    "tests/groups:of_group T=300,K=2,D=72,F=67,E=8 f32 any_64x64 x2",
    "tests/groups:group_softmax T=300,K=2,D=72,F=104,E=8 bf16 sm90_128x128_c2_d x4",
    "tests/groups:weight T=300,K=2,F=264,D=520,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:weight T=300,K=2,F=72,D=136,E=8 f16 exact sm90_128x128_c1_d x3",
    "tests/groups:weight_by T=300,K=2,D=264,F=520,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:weight_by T=300,K=2,D=72,F=136,E=8 f16 exact sm90_128x128_c1_d x3",
    "tests/groups:weight_of T=300,K=2,D=264,F=520,E=8 bf16 sm90_128x256_c2_dq x4",
    "tests/groups:weight_of T=300,K=2,D=72,F=136,E=8 f16 exact sm90_128x128_c1_d x3",
    "tests/groups:down T=5,K=2,F=72,D=136,E=40 bf16 sm90_128x128_c2_d x4",
    "tests/groups:down T=300,K=2,F=136,D=264,E=8 bf16 sm90_64x64_c1_f x4",
    "tests/groups:down T=5,K=2,F=72,D=1096,E=40 bf16 exact sm90_64x16_c1_f x3",
    "tests/groups:gated T=300,K=2,D=136,F=264,E=8 bf16 sm90_64x128_c1_f x4",
    "tests/groups:up T=300,K=2,D=264,F=192,E=8 f16 sm90_64x64_c1_f x3",
    "tests/groups:up T=3,K=2,D=256,F=136,E=8 bf16 sm90_64x32_c1_f x3",
    "tests/groups:up T=20,K=2,D=136,F=200,E=8 f16 sm90_64x48_c1_f x3",
    "tests/groups:back T=300,K=2,D=136,F=264,E=8 bf16 sm90_64x64_c1_f x4",
    "tests/groups:packed T=300,K=2,D=72,F=264,E=8 bf16 sm90_64x128_c1_f x4",
    "tests/groups:added T=300,K=2,F=72,D=264,E=8 bf16 sm90_64x128_c1_f x4",
    "tests/groups:across T=300,K=2,F=72,D=264,E=8 bf16 sm90_64x64_c1_f x4",
    "tests/groups:down T=300,K=2,F=71,D=261,E=8 bf16 sm80_128x128 x3",
    "tests/groups:across T=300,K=2,F=72,D=136,E=8 f16 exact sm80_128x128 x2",
    "tests/groups:back T=300,K=2,D=72,F=136,E=8 bf16 sm80_128x128 x3",
    "tests/groups:weight T=300,K=2,F=133,D=72,E=8 bf16 sm80_128x128 x2",
    "tests/groups:down T=5,K=2,F=72,D=136,E=40 bf16 sm80_128x128 x2",
    "tests/groups:up T=300,K=2,D=72,F=136,E=8 bf16 sm80_128x128 x2",
    "tests/groups:up T=300,K=2,D=35,F=136,E=8 bf16 sm80_128x128 x2",
    "tests/groups:weight_of T=300,K=2,F=136,D=72,E=8 bf16 sm80_128x128 x2",
    "tests/groups:weight_of T=300,K=2,F=133,D=35,E=8 bf16 sm80_128x128 x2",
    "tests/groups:inner T=304,K=2,D=40,F=72,E=8 bf16 sm80_128x128 x2",
    "tests/groups:inner_depth T=304,K=2,F=72,D=40,E=8 bf16 sm80_128x128 x2",
    "tests/groups:up_inner T=304,K=2,D=40,F=72,E=8 bf16 sm80_128x128 x2",
    "tests/groups:weight_inner T=304,K=2,F=72,D=40,E=8 bf16 sm80_128x128 x2",
    "tests/groups:up T=300,K=2,D=72,F=136,E=8 f32 any_64x64 x2",
    "tests/groups:weight_of T=300,K=2,F=136,D=72,E=8 f32 any_64x64 x2",
    "tests/groups:down T=300,K=2,F=72,D=136,E=8 f32 any_64x64 x2",
    "tests/groups:down T=257,K=1,F=72,D=136,E=1 f32 any_64x64 x2",
    "tests/groups:down T=257,K=1,F=72,D=136,E=1 bf16 sm80_128x128 x2",
    "tests/groups:down T=257,K=1,F=72,D=136,E=1 bf16 sm90_128x128_c2_d x4",
    "tests/groups:weight T=300,K=2,F=136,D=72,E=8 f32 any_64x64 x2",
    NULL,
};

/* What a configuration is for: f, few rows; p, operands of 8 bits. */
static char hopper_kind; /* these alone; 0: all */

static void add_hopper_row(const loaded *l, variant v, const char *more) {
    char kind = strrchr(v.config, '_')[1];
    if (hopper_kind && kind != hopper_kind)
        return;
    emulated *e = add_named("hopper", l, v);
    if (strstr(more, "open"))
        add_open_case("hopper", l, v, e);
    if (e && kind == 'f') { /* those for few rows give the bits of one for many */
        v.config = "sm90_128x128_c1_d";
        e->closed = add_partner(l, v);
    }
}

static void add_hopper(void) {
    for_rows(hopper, add_hopper_row);
}

static void add_group_row(const loaded *l, variant v, const char *more) {
    (void)more;
    add_named("groups", l, v);
}

static void add_groups(void) {
    for_rows(grouped, add_group_row);
}

/* Operands that TMA cannot take: rows of odd lengths, the depth innermost and not. */
static void add_copy_row(const loaded *l, variant v, const char *more) {
    (void)more;
    emulated *e = add_named("copies", l, v);
    if (e)
        e->copies = check(e->k->count > 1, "%s copies an operand", draw.name);
}

static void add_copies(void) {
    static const char *const odd[] = {"matmul:matmul M=3,N=513,K=521 sm90_128x128_c1_d",
                                      "matmul:matmul_tn M=3,N=515,K=520 sm90_128x128_c1_d", NULL};
    for_rows(odd, add_copy_row);
}

/* All products of the table, in all of Hopper's configurations that take them. */
static void add_sweep(void) {
    for (int i = 0; i < CASES; i++) {
        const loaded *l = case_of(i);
        for (int n = 0; l && !(cases[i].flags & LARGE) && has_product(l); n++) {
            const char *config = epi_config_name(n);
            if (strncmp(config, "sm90", 4) != 0)
                break;
            for (int exact = 0; exact < 2; exact++) {
                variant v = {(i + n) % 3 ? EPI_BF16 : EPI_F16, EPI_PATH_FUSED, 90, config, exact, 8};
                if (wants("sweep", l, v, ""))
                    add_kernel(l, v);
            }
        }
    }
}

/* Scaled products at random: which scales there are, by which axes, in which order, and what is made of the result. Rows
 * are T or A and T, columns N and J or N, I and J, the depth G and K or G, H and K. */
enum { RANDOM_SCALED = 8 };

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

static void write_scaled(uint64_t *s, char text[600], char sizes[80]) {
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
    sprintf(text,
            "f(x[%s,%s], q: %s[%s,%s], r: e4m3[%s,%s]%s%s) -> y[%s,%s] {\n    z = %s @ %s\n    y = %s\n}\n",
            rows, cols, random_below(s, 3) ? "e4m3" : "e5m2", rows, deep, cols, deep, first, second, rows,
            cols, left ? "(s*q)" : "q", right ? "(r*t)" : "r", results[random_below(s, 6)]);
    sprintf(sizes, "%sT=%d,N=%d,%sJ=%d,G=%d,%sK=%d", two_rows ? "A=2," : "", 1 + random_below(s, 90),
            1 + random_below(s, 2), three_cols ? "I=2," : "", three_cols ? 64 : 128, 1 + random_below(s, 2),
            three_deep ? "H=4," : "", three_deep ? 32 : 128);
}

static void add_random_scaled(void) {
    uint64_t seed = 38;
    for (int i = 0; i < RANDOM_SCALED; i++) {
        char text[600], sizes[80], name[24];
        write_scaled(&seed, text, sizes);
        snprintf(name, sizeof name, "scaled%d", i);
        const loaded *l = program_with("random", text, name, sizes);
        const emulated *e =
            add_named("random", l, (variant){EPI_BF16, EPI_PATH_FUSED, 90, NULL, i % 2 > 0, 0});
        if (e)
            check(e->k->launches[e->k->count - 1].text.config.scaled, "%s is a scaled product", text);
    }
}

#endif

/* programs.h: the programs of the common table and of moves.h, and random ones, in each way that the plain loops can take. */
#ifndef EPI_TESTS_EMULATE_PROGRAMS_H
#define EPI_TESTS_EMULATE_PROGRAMS_H

#include "emulate/kernels.h"
#include "random_program.h"

static const variant F32_FUSED = {EPI_F32, EPI_PATH_FUSED, 80, "any_64x64", true, 0},
                     F32_UNFUSED = {EPI_F32, EPI_PATH_UNFUSED, 80, "any_64x64", true, 0},
                     BF16_FUSED = {EPI_BF16, EPI_PATH_FUSED, 90, "any_64x64", false, 0},
                     BF16_SM80 = {EPI_BF16, EPI_PATH_FUSED, 80, "sm80_128x128", false, 0},
                     BF16_SM80_EXACT = {EPI_BF16, EPI_PATH_FUSED, 80, "sm80_128x128", true, 0},
                     BF16_UNFUSED = {EPI_BF16, EPI_PATH_UNFUSED, 80, "sm80_128x128", false, 0};

/* Has the case the largest sizes of its program that the plain loops can take? */
static bool is_largest(int i) {
    int64_t own = volume(case_of(i));
    for (int j = 0; j < CASES; j++)
        if (!(cases[j].flags & LARGE) && !strcmp(cases[i].program, cases[j].program) &&
            volume(case_of(j)) > own)
            return false;
    return true;
}

/* Of every program the largest case that the plain loops can take: fused in both types and on both mainloops,
 * and unfused in one type. Its other cases run in one way each. */
static void add_cases(void) {
    const variant ways[] = {F32_FUSED, BF16_SM80, BF16_FUSED, BF16_SM80_EXACT};
    for (int i = 0, program = 0; i < CASES; i++) {
        const loaded *l = cases[i].flags & LARGE ? NULL : case_of(i);
        if (!l)
            continue;
        bool rows = !has_product(l); /* there are many of them, and their shapes are in rows.h */
        if (!is_largest(i)) {
            if (!rows || i % 2)
                add_case("cases", l, ways[rows ? i / 2 % 4 : i % 4]);
            continue;
        }
        bool odd = program++ & 1;
        if (rows) {
            add_case("cases", l, odd ? F32_FUSED : BF16_FUSED);
            if (program % 8 < 2)
                add_case("cases", l, odd ? BF16_UNFUSED : F32_UNFUSED);
            continue;
        }
        add_case("cases", l, F32_FUSED);
        if (odd)
            add_case("cases", l, F32_UNFUSED);
        add_case("cases", l, BF16_FUSED);
        add_case("cases", l, odd ? BF16_SM80_EXACT : BF16_SM80);
        if (!odd)
            add_case("cases", l, BF16_UNFUSED);
    }
}

/* One text for all sizes of the row axes. */
static void add_open(void) {
    const variant ways[] = {F32_FUSED, BF16_SM80, BF16_FUSED, BF16_UNFUSED};
    for (int i = 0, n = 0; i < CASES; i++) {
        const loaded *l = cases[i].flags & LARGE || !is_largest(i) ? NULL : case_of(i);
        if (!l || !has_rows(l))
            continue;
        for (int w = 0; w < 4; w++)
            if ((w + n) % 2 == 0 || has_product(l))
                add_open_case("open", l, ways[w], NULL);
        n++;
    }
}

/* Gathers, scatters and random numbers, by passes and ahead of products. */
static void add_moves(void) {
    for (int i = 0; i < MOVES; i++) {
        const loaded *l = program_with("moves", NULL, moves[i].program, moves[i].dims);
        add_case("moves", l, i % 2 ? BF16_FUSED : F32_FUSED);
        add_case("moves", l, i % 2 ? F32_UNFUSED : BF16_UNFUSED);
        if (i % 2 &&
            !strcmp(moves[i].program, "combined_rows")) /* rows through a ring, beside rows of a table */
            add_case("moves", l,
                     (variant){EPI_BF16, EPI_PATH_FUSED, 90, "rows_64x4_r1_c1_b16_m1_t1024_w1_p16", true, 0});
    }
}

static void add_random(void) {
    enum { RANDOMS = 10 };
    static const int heads[] = {2, 8, 16, 64};
    uint64_t seed = 0;
    for (int i = 0; i < RANDOMS;) {
        maker m;
        char dims[80], name[24];
        make_program(&m, ++seed);
        if (has_steps(m.text)) /* a rounded value may land on the other side */
            continue;
        snprintf(dims, sizeof dims, "B=%d,S=%d,K=%d,H=%d,D=%d", 1 + random_below(&m.s, 3),
                 1 + random_below(&m.s, 60), 1 + random_below(&m.s, 40), 1 + random_below(&m.s, 5),
                 heads[random_below(&m.s, 4)]);
        snprintf(name, sizeof name, "seed%d", (int)seed);
        add_case("random", program_with("random", m.text, name, dims), F32_FUSED);
        i++;
    }
}

#endif

/* scan.h: recurrences: both forms and directions, fewer steps than a chunk, more than one, and a last one that is not full; columns that are no
 * multiple of a vector. Two configurations of the same program have the same bits. */
#ifndef EPI_TESTS_EMULATE_SCAN_H
#define EPI_TESTS_EMULATE_SCAN_H

#include "emulate/kernels.h"

static const char *const scans[] = {
    "tests/scans:running B=2,T=300,D=72 bf16 sm90 open other=rows_4x4_r32_m2",
    "tests/scans:running B=1,T=1,D=1 f32 sm90",
    "tests/scans:running B=2,T=37,D=5 f16 sm90 open other=rows_4x4_r8_m1",
    "tests/scans:running B=1,T=600,D=12 f32 sm80 other=rows_2x4_r16_m3",
    "tests/scans:running_inside B=2,D=5,T=600 bf16 sm90 open other=rows_4x4_r8_m2",
    "tests/scans:running_inside B=1,D=3,T=37 bf16 sm90 other=rows_2x32_r16_m2",
    "tests/scans:running_inside B=1,D=40,T=100 f32 sm90 open other=rows_16x8_r2_m2",
    "tests/scans:running_inside B=1,D=1,T=1 f32 sm80",
    "tests/scans:average B=3,T=150,D=40 bf16 sm90 open other=rows_1x4_r32_m2",
    "tests/scans:average B=3,T=33,D=7 f32 sm90",
    "tests/scans:gated B=2,T=200,D=24 bf16 sm90 open other=rows_2x4_r32_m2",
    "tests/scans:gated B=2,T=70,D=9 f32 sm80",
    "tests/scans:returns B=70,T=333 f32 sm90 open other=rows_4x32_r64_m1",
    "tests/scans:returns B=7,T=64 f32 sm90",
    "tests/scans:returns B=1,T=20000 f32 sm90 open other=rows_8x8_r4_m1",
    "tests/scans:running B=1,T=3000,D=1 bf16 sm80 other=rows_4x4_r8_m1",
    "tests/scans:backward B=2,T=300,D=72 bf16 sm90 open other=rows_8x4_r8_m2",
    "tests/scans:backward B=2,T=35,D=3 f16 sm90",
    "tests/scans:backward_inside B=2,D=5,T=600 bf16 sm90 open other=rows_4x4_r8_m2",
    "tests/scans:backward_inside B=2,D=5,T=61 f32 sm80",
    "tests/scans:first B=2,T=40,D=24 bf16 sm90 open",
    "tests/scans:first_inside B=2,D=3,T=40 bf16 sm90",
    "tests/scans:first_back B=2,D=3,T=40 f32 sm90 open",
    "tests/scans:time_first T=140,B=3,D=16 bf16 sm80 other=rows_2x4_r16_m2",
    "tests/scans:heads B=2,T=140,H=3,D=16 bf16 sm90 open other=rows_2x4_r16_m2",
    "tests/scans:steps B=2,T=140,D=24 bf16 sm90 other=rows_2x4_r16_m2",
    "tests/scans:beside B=2,T=140,D=24 bf16 sm90 open other=rows_2x4_r16_m2",
    "tests/scans:behind B=2,T=140,D=24 bf16 sm80 other=rows_2x4_r16_m2",
    "tests/scans:shifted B=2,T=140,D=24 bf16 sm90 open other=rows_2x4_r16_m2",
    "tests/scans:shifted B=3,T=39,D=5 f32 sm90",
    "tests/scans:shifted_inside B=2,D=5,T=304 bf16 sm90 open other=rows_4x4_r8_m2",
    "tests/scans:shifted_inside B=2,D=5,T=31 f32 sm80",
    "tests/scans:behind B=2,T=290,D=3 f32 sm90 open other=rows_4x4_r16_m2",
    NULL,
};

/* What a recurrence has as its factor at the first of its 40 steps is not looked at. */
static void compare_first(const emulated *e, const char *what) {
    enum { STEPS = 40 };
    bool back = !strcmp(e->l->from->program, "first_back");
    problem p[2];
    int64_t outer, inner;
    if (!make_two(e, e, p))
        return;
    tensor *a = &p[1].t[0];
    for (int64_t n = 0; along(a, STEPS, &outer, &inner) && n < a->shape.count; n++)
        if (n / inner % STEPS == (back ? STEPS - 1 : 0))
            put_element(a->data, a->shape.type, n, n % 2 ? INFINITY : (double)NAN);
    for (int n = 0; n < 2; n++)
        run_launches(e, &p[n], false, what);
    check(same_bits(&p[0].t[2], &p[1].t[2]), "%s: nothing is before the first step", what);
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
    free_two(p);
}

static void add_scan_row(const loaded *l, variant v, const char *more) {
    const char *other = strstr(more, "other=");
    emulated *e = add_named("scans", l, v);
    if (e && check(e->k->count == 1 && !strcmp(e->k->launches[0].text.name, "scan"), "%s is one scan",
                   draw.name)) {
        char config[64] = "";
        variant second = v;
        second.config = config;
        if (other && sscanf(other + 6, "%63s", config) == 1)
            e->closed = add_partner(l, second);
    }
    if (strstr(more, "open")) {
        v.capability = 90;
        add_open_case("scans", l, v, NULL);
    }
}

static void add_scans(void) {
    for_rows(scans, add_scan_row);
}

#endif

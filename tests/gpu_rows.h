/* gpu_rows.h: the mainloop over rows on a GPU, for test_gpu.c: shapes by name, rows of all lengths, and rows
 * that do not see their batch. */
#ifndef EPI_TESTS_GPU_ROWS_H
#define EPI_TESTS_GPU_ROWS_H

#include "gpu.h"

typedef struct shaped {
    const row_program *r;
    int64_t rows, columns;
    epi_dtype type;
    const char *config; /* NULL: as it is chosen */
    const loaded *l[2]; /* all rows; one of them, where rows lie apart */
} shaped;

enum { MOST_SHAPED = 2048 };

typedef struct shaped_list {
    shaped *at;
    int count;
} shaped_list;

static void add_shaped(shaped_list *s, int program, int64_t rows, int64_t columns, epi_dtype type,
                       const char *config) {
    const row_program *r = &row_programs[program];
    if (columns % r->even || !check(s->count < MOST_SHAPED, "more programs of rows than expected"))
        return;
    s->at[s->count++] = (shaped){.r = r, .rows = rows, .columns = columns, .type = type, .config = config};
}

/* ---- which ---- */

static void add_forced(shaped_list *s) {
    static const char *const wide[] = {"rows_256x4_c2",       "rows_256x2_c4_m1", "rows_128x2_c8_m2_b16",
                                       "rows_512x1_c4_b8_m4", "rows_256x1_c8_s",  "rows_256x4_c2_b2_a",
                                       "rows_256x8_b7_m2",    "rows_1024x2_m1"};
    for (int p = 0; p < ROW_PROGRAMS; p++) /* 37 rows: no block has a whole number of them */
        for (int i = 0; i < shape_count(&row_programs[p]); i++)
            for (int n = 0; n < 2; n++) {
                bool small = mode == SANITIZE && (p == 0 || p == 3 || p == 6 || p == 12) && n == i % 2;
                if (small || mode == FULL || (mode <= SAMPLE && (p + i) % 4 == 2 * n))
                    add_shaped(s, p, small ? 5 : 37, n ? 1000 : 1024, (p + i + n) % 2 ? EPI_F32 : EPI_BF16,
                               shape_at(&row_programs[p], i));
            }
    for (int p = 0; p < ROW_PROGRAMS && mode != SANITIZE; p++)
        for (int i = 0; i < (int)(sizeof wide / sizeof *wide); i++)
            if (row_programs[p].rows && (mode == FULL || (p + i) % 4 == 0))
                add_shaped(s, p, 11, (p + i) % 3 ? 16384 : 15008, EPI_BF16, wide[i]);
}

static void add_lengths(shaped_list *s) {
    static const int64_t lengths[] = {1,    2,    3,    4,    5,    6,     7,     8,      9,      10,
                                      11,   12,   13,   14,   15,   16,    17,    127,    128,    129,
                                      1032, 2048, 5003, 8192, 8200, 32768, 65600, 100003, 131072, 262144};
    static const epi_dtype types[] = {EPI_BF16, EPI_F32, EPI_F16};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int p = 0; p < ROW_PROGRAMS; p++) {
            bool some = mode == FULL || (lengths[i] > 16 && p % 5 == (int)i % 5) || (int)i % 10 == p;
            if (!row_programs[p].rows)
                continue;
            if (mode != SANITIZE ? some : p == 0 && lengths[i] < 130 && i % 4 == 0)
                add_shaped(s, p, lengths[i] < 200 ? 67 : 3, lengths[i], types[(p + (int)i) % 3], NULL);
        }
}

/* One long row that is cut anywhere: tails of all lengths, and more pieces than blocks. */
static void add_flat(shaped_list *s) {
    static const int64_t lengths[] = {1,  2,    3,    5,    7,      8,       9,      15,
                                      17, 1023, 1025, 4099, 100003, 1048576, 3000001};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int p = 0; p < ROW_PROGRAMS; p++)
            for (int t = 0; t < 2 && !row_programs[p].rows; t++)
                if (mode != SANITIZE || (lengths[i] < 2000 && i % 3 == 0))
                    add_shaped(s, p, 1, lengths[i], t ? EPI_F32 : EPI_BF16, NULL);
}

/* ---- running ---- */

/* A batch of one gives the bits of that row in a larger batch. */
static void compare_with_one(int64_t all, const task *one, const on_device *many, const char *what) {
    const int64_t rows[] = {0, all / 2, all - 1};
    on_device o;
    if (!on_device_make(&o, one->l->program, one->kernel))
        return;
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < o.host.inputs; i++)
            take_row(&o.host.t[i], &many->host.t[i], rows[r], false);
        bool ok = run_once(one->kernel, &o, what);
        for (int i = o.host.inputs; i < o.host.count && ok; i++) {
            bool summed = all > 1 && many->host.t[i].shape.count == o.host.t[i].shape.count;
            check(summed || take_row(&o.host.t[i], &many->host.t[i], rows[r], true),
                  "%s: tensor %d, a batch of one is row %ld of a larger one, bit for bit", what, i,
                  (long)rows[r]);
        }
    }
    on_device_free(&o);
}

static void run_shaped(const shaped *s, const task *many, const task *one, const oracles *oracle) {
    char variant[128], what[256];
    describe_task(many, variant, sizeof variant);
    snprintf(what, sizeof what, "%s:%s %s %s", s->r->file, s->r->program, s->l[0]->from->dims, variant);
    if (!task_compiled(many, variant))
        return;
    epi_kernel_info info;
    epi_kernel_get_info(many->kernel, &info);
    bits first = {0};
    on_device d;
    if (!on_device_make(&d, many->l->program, many->kernel))
        return;
    bool ok = true;
    for (int run = 0; run < (mode == SANITIZE ? 1 : 3) && ok; run++) {
        ok = run_once(many->kernel, &d, what);
        if (!run && ok)
            check_rule(&d.host, many->l, oracle, strcmp(info.mainloop, "rows") != 0 ? s->type : EPI_F32,
                       variant);
        check(!ok || bits_agree(&first, &d.host), "%s: run %d gives other bits than the first", what,
              run + 1);
    }
    if (ok && one && task_compiled(one, variant))
        compare_with_one(s->rows, one, &d, what);
    bits_free(&first);
    on_device_free(&d);
}

static void run_list(shaped_list *s) {
    task *tasks = calloc(3 * MOST_SHAPED, sizeof *tasks);
    bool ok = check(tasks != NULL, "memory");
    pool p;
    int count = 0;
    for (int i = 0; i < s->count && ok; i++) { /* oracles, all rows, one row */
        shaped *at = &s->at[i];
        task *t = &tasks[count];
        for (int n = 0; n < 2 && ok; n++)
            ok = (at->l[n] = rows_of(at->r, n ? 1 : at->rows, at->columns)) != NULL;
        if (!ok)
            break;
        t[0] = (task){.l = at->l[0], .o = {.type = at->type}, .oracle = calloc(1, sizeof(oracles))};
        ok = ok && check(t[0].oracle != NULL, "memory");
        for (int n = 0; n < 2; n++)
            t[1 + n] = compile_task(at->l[n], at->type, EPI_PATH_FUSED, EPI_ROUND_PACKED, at->config);
        count += 3;
    }
    pool_start(&p, tasks, ok ? count : 0);
    for (int i = 0; i < p.count && !broken; i += 3) {
        const shaped *at = &s->at[i / 3];
        for (int n = 0; n < 3; n++)
            pool_wait(&p, &tasks[i + n]);
        if (check(tasks[i].oracle->ok, "%s %s has a reference", at->r->program, at->l[0]->from->dims))
            run_shaped(at, &tasks[i + 1], rows_apart(at->r) ? &tasks[i + 2] : NULL, tasks[i].oracle);
        oracles_free(tasks[i].oracle);
        for (int n = 1; n < 3; n++) {
            epi_kernel_free(tasks[i + n].kernel);
            tasks[i + n].kernel = NULL;
        }
    }
    pool_end(&p);
    free(tasks);
}

static void test_row_shapes(void) {
    shaped_list s = {calloc(MOST_SHAPED, sizeof *s.at), 0};
    if (!check(s.at != NULL, "memory"))
        return;
    if (mode != ON_CPU)
        add_forced(&s);
    add_lengths(&s);
    add_flat(&s);
    run_list(&s);
    free(s.at);
}

#endif

/* test_groups.c: products of groups against the f64 reference, for groups of many sizes; a row's bits depend on
 * nothing but the row and its group's matrix; a NaN stays in its row, or in its group. */
#include "ran.h"

enum { T = 150, K = 4, ROWS = T * K, GROUPS = 8 };

/* Where groups begin: of 0, 1, 63, 64, 65, 127 and 129 rows; all rows in one, the first or the last; few rows each; no
 * order, which says where groups begin all the same; from behind the first row on. */
static const int offsets[][GROUPS] = {{0, 0, 1, 64, 128, 193, 320, 449},
                                      {0, 600, 600, 600, 600, 600, 600, 600},
                                      {0, 0, 0, 0, 0, 0, 0, 0},
                                      {0, 8, 15, 16, 22, 30, 38, 39},
                                      {0, 96, 192, 289, 385, 480, 481, 600},
                                      {300, 7, 500, 40, 2000, 90, 33, 599},
                                      {9, 20, 33, 60, 160, 300, 400, 500}};
enum { SETS = sizeof offsets / sizeof *offsets };

/* Tiles of several columns, and depths of more than a sweep: bits are compared of the large ones. */
static const char small[] = "T=150,K=4,E=8,D=12,F=40", large[] = "T=150,K=4,E=8,D=300,F=290";
enum { COLUMNS = 40 };

static epi_context *ctx;
static epi_module *module;
static int set;     /* of offsets, that the next run has */
static int64_t bad; /* not negative: this element of its first input is no number */

static int group_of(const int *o, int row) {
    int first = 0, last = GROUPS - 1;
    while (first < last) {
        int middle = (first + last + 1) / 2;
        if (o[middle] <= row)
            first = middle;
        else
            last = middle - 1;
    }
    return first;
}

static void fill(problem *p, uint64_t seed) {
    problem_fill(p, seed);
    for (int t = 0; t < p->inputs; t++)
        for (int e = 0; e < GROUPS && !strcmp(tensor_name(p->program, t), "offsets"); e++)
            put_at(&p->t[t], e, offsets[set][e]);
    if (bad >= 0)
        put_at(&p->t[0], bad, (double)NAN);
}

/* The program with these offsets. */
static bool run(ran *r, const char *name, const char *dims, way how, int offset_set, int64_t bad_element) {
    how.fill = fill;
    how.seed = 7;
    set = offset_set;
    bad = bad_element;
    return run_as(r, epi_module_find(module, name), dims, how);
}

static void check_values(const char *name, epi_dtype type, int offset_set, layout how) {
    way in = {.type = type, .threads = 3, .layout = how, .fill = fill, .seed = 7};
    char what[100];
    ran got, want, naive;
    snprintf(what, sizeof what, "%s, groups %d", name, offset_set);
    if (!wanted("%s", what))
        return;
    if (run(&got, name, small, in, offset_set, -1) && yardsticks(&want, &naive, got.program, small, in))
        hold_against(&got, &want, &naive, EPI_F32, what);
    discard(&got);
    discard(&want);
    discard(&naive);
}

/* Rows that have the same group's matrix have the same bits, whichever rows are beside them, whatever the threads. */
static void check_bits(const char *name, epi_dtype type, int a, int b) {
    ran p, q = {0};
    if (!wanted("%s, bits of groups %d and %d", name, a, b))
        return;
    if (run(&p, name, large, (way){.type = type, .threads = 3}, a, -1) &&
        run(&q, name, large, (way){.type = type, .threads = 1}, b, -1)) {
        const tensor *y = &p.p.t[p.p.inputs], *z = &q.p.t[q.p.inputs];
        size_t row = (size_t)(y->shape.count / ROWS) * epi_dtype_size(y->shape.type);
        int same = 0, differ = 0;
        for (int r = 0; r < ROWS; r++)
            if (group_of(offsets[a], r) == group_of(offsets[b], r)) {
                same++;
                differ += memcmp(y->data + (size_t)r * row, z->data + (size_t)r * row, row) != 0;
            }
        check(same && !differ, "%s, %s: of %d rows with groups %d and %d, %d differ", name,
              epi_dtype_name(type), same, a, b, differ);
    }
    discard(&p);
    discard(&q);
}

/* Of `parts` equal parts of the first result the one that has the bad element is not a number, and no other is. */
static void check_nan(const char *name, int64_t bad_element, int parts, int where) {
    ran p;
    if (run(&p, name, small, (way){0}, 0, bad_element)) {
        const tensor *y = &p.p.t[p.p.inputs];
        int64_t count = y->shape.count / parts;
        for (int i = 0; i < parts; i++) {
            bool has = false;
            for (int64_t e = i * count; e < (i + 1) * count; e++)
                has |= isnan(at(y, e));
            check(has == (i == where), "%s: NaN in part %d, and not in %d", name, where, i);
        }
    }
    discard(&p);
}

/* A number outside the axis is an error, and nothing is written. */
static void check_index(void) {
    ran r;
    epi_error err = {0};
    if (made(&r, epi_module_find(module, "up"), small, (way){0})) {
        put_at(find(&r, "p"), 77, ROWS);
        check(run_with(r.k, r.p.args, r.p.count, &err) == EPI_ERR_INDEX &&
                  strstr(err.message, "p[19,1] is 600"),
              "an index outside: %s", err.message);
        const tensor *y = &r.p.t[r.p.inputs];
        check(y->data[0] == POISON && y->data[y->span * 4 - 1] == POISON, "nothing is written");
    }
    discard(&r);
}

/* A sum of two experts that has a type of 16 bits is rounded to it once: 257 - 256 is 1, and 257 in bf16 256. */
static void check_terms(epi_dtype type) {
    static const char text[] = "f(x[T=1,D=1], w[E=2,F=1,D], e: i32[T,K=2]) -> y: f32[T,F] {\n"
                               "    s: bf16 = sum(x*gather(w, e, E), D, K)\n"
                               "    y = 3*s\n"
                               "}\n";
    ran r;
    if (made_of(&r, ctx, text, "", (way){.type = type, .threads = 1})) {
        put_at(&r.p.t[0], 0, 1);
        for (int i = 0; i < 2; i++) {
            put_at(&r.p.t[1], i, i ? -256 : 257);
            put_at(&r.p.t[2], i, i);
        }
        check(run_again(&r) && at(&r.p.t[3], 0) == 3, "a sum of two experts is %g, not 3", at(&r.p.t[3], 0));
    }
    discard(&r);
}

int main(int argc, char **argv) {
    static const char *const rows[] = {"down", "across", "gated", "added", "back", "up"};
    static const int pairs[][2] = {{0, 2}, {0, 3}, {1, 3}, {2, 3}, {4, 6}};
    static const epi_dtype types[] = {EPI_F32, EPI_BF16, EPI_F16};
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    module = parsed_file(ctx, argc > 1 ? argv[1] : "tests/groups.epi");
    if (module) {
        check_nan("down", 150 * COLUMNS + 5, ROWS, 150);
        check_nan("weight", 150 * COLUMNS + 5, GROUPS, group_of(offsets[0], 150));
        check_index();
        check_terms(EPI_F32);
        check_terms(EPI_F16);
        for (int i = 0; i < epi_module_count(module); i++)
            for (int s = 0; s < SETS; s++)
                check_values(epi_program_name(epi_module_program(module, i)), types[(s + i) % 3], s,
                             s == 0 ? LAYOUT_PADDED : LAYOUT_PLAIN);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
                check_bits(rows[i], types[(i + k) % 3], pairs[k][0], pairs[k][1]);
    }
    epi_module_free(module);
    epi_context_close(ctx);
    return finish();
}

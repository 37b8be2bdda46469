/* test_agree.c: what the placer puts together is held against what the planner makes of it.
 *
 *     agree FILE            compares with the numbers in FILE (tests/agree.txt), which may only fall
 *     agree FILE --update   writes today's numbers
 *
 * The placer decides which values come to a part; the part is written as a program, and the planner finds its mainloop. Of all
 * programs, their gradients and some random ones, each part of each cut is planned, and its plan is compared with what the placer knows of
 * it. A line of the file is a program, or a file of them, and how often they differ and how:
 *
 *     NAME parts=N DIFFERENCE=N ...
 *
 * `refused:` is a part that the planner cannot have as one kernel; it is split. Each is a rule that one of both lacks. */
#include "ran.h"
#include "random_graph.h"

#include "pass/place/placer.h"

enum { MOST = 40, BLOCK = 25, BLOCKS = 12 };

static epi_context *ctx;
static struct {
    char name[120];
    long count;
} found[MOST]; /* how the parts of a case differ */
static int found_count;
static const char *last; /* that was noted */
static long part_count;

static void note(const char *name) {
    int i = 0;
    while (i < found_count && strcmp(found[i].name, name))
        i++;
    if (i == found_count && check(i < MOST, "no more than %d ways to differ", MOST))
        snprintf(found[found_count++].name, sizeof found[i].name, "%s", name);
    if (i < MOST) {
        found[i].count++;
        last = found[i].name;
    }
}

/* ---- one part ---- */

/* A reason without the names and numbers of its program: what begins it there, and one word for it here. */
static const struct {
    const char *says, *word;
} reasons[] = {
    {"no division of its axes into rows and columns suits it", "division"},
    {"no division of its axes into rows and columns suits its recurrences", "scan-division"},
    {"a reduction inside the tile does not work with the halves", "local-beside-split"},
    {"reduces over more than a tile has", "reduction"},
    {"two reductions inside the tile", "two-local"},
    {"it stores nothing", "stores-nothing"},
    {"a value has an axis that the largest tensor lacks", "axis-lacking"},
    {"no tensor has all axes", "no-tensor-has-all"},
    {"a row splits one axis in one way", "two-splits"},
    {"splits in another", "two-splits"},
    {"it must be in memory", "in-memory"},
    {"a value that the tile cannot compute must be in memory", "in-memory"},
    {"products; one kernel has", "products"},
    {"complete only after all tiles", "tile-and-after"},
    {"needs the whole product", "whole-product"},
    {"does not have the shape of the product's tile", "shape"},
    {"an axis has no elements", "empty"},
    {"an integer that f32 cannot hold", "integer"},
    {"a variance is several reductions", "variance"},
    {"an update is a pass by itself", "update"},
    {"a recurrence is a pass by itself", "scan"},
    {"it has recurrences along two axes", "two-scans"},
};

static void note_refused(const epi_plan *plan) {
    char name[120];
    size_t i = 0, count = sizeof reasons / sizeof *reasons, best = count;
    for (; i < count; i++)
        if (strstr(plan->reason, reasons[i].says) &&
            (best == count || strlen(reasons[i].says) > strlen(reasons[best].says)))
            best = i;
    snprintf(name, sizeof name, "refused:%s", best < count ? reasons[best].word : "other");
    note(name);
    check(best < count, "a reason that this test does not know: %s", plan->reason);
}

/* The number that a value of the whole has in the part is not known: what it is made of is compared instead. */
static bool same_product(const epi_graph *whole, int a, const epi_graph *part, int b) {
    if ((a == EPI_NO_NODE) != (b == EPI_NO_NODE))
        return false;
    return a == EPI_NO_NODE || (whole->nodes[a].op == part->nodes[b].op &&
                                epi_axes_same_set(&whole->nodes[a].axes, &part->nodes[b].axes) &&
                                epi_axes_same_set(&whole->nodes[a].over, &part->nodes[b].over));
}

static bool same_tile(const epi_placer_part *p, const epi_plan *plan) {
    bool straight = epi_axes_same_set(&p->rows, &plan->rows) && epi_axes_same_set(&p->cols, &plan->cols);
    bool swapped = epi_axes_same_set(&p->rows, &plan->cols) && epi_axes_same_set(&p->cols, &plan->rows);
    return straight || (swapped && p->kind == EPI_KIND_GEMM);
}

static bool compare_part(const epi_graph *whole, const epi_placer_part *p, const epi_graph *g,
                         const epi_plan *plan) {
    int before = found_count;
    long notes = 0;
    for (int i = 0; i < before; i++)
        notes -= found[i].count;
    if (!plan->fused)
        note_refused(plan);
    else if (p->kind != plan->kind)
        note(p->kind == EPI_KIND_ROWS && plan->kind == EPI_KIND_PASS   ? "kind:rows-pass"
             : p->kind == EPI_KIND_PASS && plan->kind == EPI_KIND_ROWS ? "kind:pass-rows"
                                                                       : "kind");
    else if (p->kind == EPI_KIND_GEMM) {
        if (!same_product(whole, p->product, g, plan->product) || p->added_count != plan->added_count ||
            (p->pair == EPI_NO_NODE) != (plan->pair == EPI_NO_NODE))
            note("product");
        if (!same_tile(p, plan))
            note("tile");
    } else if (p->kind == EPI_KIND_ROWS) {
        if (p->shaped && !same_tile(p, plan))
            note("rows");
        if (p->square != plan->square)
            note("square");
        if (p->window != plan->window)
            note("window");
        if (p->scans != (plan->scan_count > 0) || p->scan_back != plan->scan_back ||
            (p->scans && !epi_axis_equal(p->scan, plan->scan)))
            note("scan");
    }
    if (plan->fused && p->kind == plan->kind && (p->kind == EPI_KIND_ROWS || p->kind == EPI_KIND_GEMM)) {
        if (p->split != plan->split || (p->split != EPI_OP_COUNT && !epi_axis_equal(p->fine, plan->fine)))
            note("split");
        if ((p->local != 0) != (plan->local_axes != 0))
            note("local");
    }
    for (int i = 0; i < found_count; i++)
        notes += found[i].count;
    return notes == 0;
}

/* Every cut is brought into order once it is written: the linker puts this function into the place of that one (--wrap). */
bool __real_epi_cut_order(epi_arena *, const epi_spec *, epi_cut *, int);
bool __wrap_epi_cut_order(epi_arena *, const epi_spec *, epi_cut *, int);
bool __wrap_epi_cut_order(epi_arena *arena, const epi_spec *spec, epi_cut *cut, int backward) {
    bool show = getenv("EPILOG_SHOW") != NULL;
    for (int q = 0; q < cut->part_count; q++) {
        const epi_part *part = &cut->parts[q];
        epi_spec own = epi_part_spec(spec, part);
        epi_arena scratch = {0};
        epi_plan plan;
        if (part->placed && check(epi_plan_make(&scratch, &own, &plan, NULL) == EPI_OK, "memory")) {
            part_count++;
            if (!compare_part(spec->graph, part->placed, &part->graph, &plan) && show) {
                epi_text text = {0};
                const epi_placer_part *p = part->placed;
                epi_graph_print(&part->graph, "part", &text);
                epi_text_add(&text, "rows %s, columns %s%s%s%s%s%s\n",
                             epi_axes_label(spec->graph, &p->rows).text,
                             epi_axes_label(spec->graph, &p->cols).text, p->shaped ? "" : ", any others",
                             p->local ? ", local" : "", p->split != EPI_OP_COUNT ? ", split" : "",
                             p->scans ? ", scans" : "", p->window ? ", window" : "");
                printf("-- %s: %s\n%s", last, plan.fused ? "" : plan.reason, text.data);
                epi_text_free(&text);
            }
        }
        epi_arena_free(&scratch);
    }
    return __real_epi_cut_order(arena, spec, cut, backward);
}

/* ---- programs ---- */

static void compile_one(const epi_program *p, int first, int rest, int device) {
    epi_dim_binding dims[64];
    epi_error err;
    epi_kernel *k = NULL;
    int count = epi_program_dim_count(p);
    for (int d = 0; d < count && d < 64; d++) {
        int64_t given = epi_program_dim_size(p, d);
        dims[d] = (epi_dim_binding){epi_program_dim(p, d), given ? given : d ? rest << d % 3 : first};
    }
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = count, .type = EPI_BF16, .device = device,
                                .micro = device ? NULL : "plain", .threads = device ? 0 : 1);
    if (count <= 64 && epi_kernel_compile(p, &o, &k, &err) == EPI_OK) /* what fails is another test's */
        epi_kernel_free(k);
}

static void compile_all(const epi_module *m) {
    for (int i = 0; m && i < epi_module_count(m); i++) {
        const epi_program *p = epi_module_program(m, i);
        bool many = epi_program_dim_count(p) > 4;
        compile_one(p, many ? 9 : 37, many ? 4 : 16, 0);
        compile_one(p, many ? 9 : 37, many ? 4 : 16, -90);
        compile_one(p, 2048, 128, -90);
        compile_one(p, 2048, 128, -80);
    }
}

static void compile_text(const char *text, size_t length, const char *name) {
    epi_error err;
    epi_module *m = NULL, *both[2];
    if (epi_module_parse(ctx, text, length, name, &m, &err) != EPI_OK) { /* a random program may be none */
        check(!strncmp(name, "random", 6), "%s: %s", name, err.message);
        return;
    }
    compile_all(m);
    for (int i = 0; i < epi_module_count(m); i++)
        for (int how = 0; how < 2; how++) {
            const epi_program *p = epi_module_program(m, i);
            const char *wrt[MAX_TENSORS];
            int count = number_inputs(p, true, wrt, MAX_TENSORS);
            if (count && (how ? epi_program_grad_saved : epi_program_grad)(p, wrt, count, &both[how], &err) ==
                             EPI_OK) {
                compile_all(both[how]);
                epi_module_free(both[how]);
            }
        }
    epi_module_free(m);
}

/* The blocks of a page that are programs. */
static void compile_page(const char *page, const char *name) {
    for (const char *at = page; (at = strstr(at, "```epi\n"));) {
        const char *begin = at + 7, *end = strstr(begin, "```");
        if (!end)
            return;
        compile_text(begin, (size_t)(end - begin), name);
        at = end;
    }
}

/* ---- the file ---- */

static char *file;  /* as it was */
static epi_text is; /* as it would be */

/* The number that the file has for this difference of a case. */
static long number_before(const char *name, const char *difference) {
    size_t n = strlen(name), d = strlen(difference);
    for (const char *line = file; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, name, n) || line[n] != ' ')
            continue;
        const char *end = line + strcspn(line, "\n");
        for (const char *at = line + n; at && at < end; at = strchr(at + 1, ' '))
            if (!strncmp(at + 1, difference, d) && at[1 + d] == '=')
                return strtol(at + d + 2, NULL, 10);
    }
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

static void end_case(const char *name, bool update) {
    qsort(found, (size_t)found_count, sizeof *found, by_name);
    epi_text_add(&is, "%s parts=%ld", name, part_count);
    for (int i = 0; i < found_count; i++) {
        long before = number_before(name, found[i].name);
        epi_text_add(&is, " %s=%ld", found[i].name, found[i].count);
        if (!update)
            check(found[i].count <= before,
                  "%s: of %ld parts placer and planner differ over %ld (%s), %ld before", name, part_count,
                  found[i].count, found[i].name, before);
    }
    epi_text_add(&is, "\n");
    memset(found, 0, sizeof found);
    found_count = 0;
    part_count = 0;
}

static bool updating;

static void check_path(const char *path) {
    size_t length = 0;
    if (!wanted("%s", path))
        return;
    char *text = read_whole(path, &length);
    if (!check(text != NULL, "%s can be read", path))
        return;
    if (strstr(path, ".md"))
        compile_page(text, path);
    else
        compile_text(text, length, path);
    free(text);
    end_case(path, updating);
}

static void check_folder(const char *folder) {
    struct dirent **files;
    int count = scandir(folder, &files, NULL, alphasort);
    check(count > 0, "%s can be read", folder);
    for (int f = 0; f < count; f++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", folder, files[f]->d_name);
        if (strstr(path, ".epi"))
            check_path(path);
        free(files[f]);
    }
    free(files);
}

static void check_random(int block) {
    random_graph *m = malloc(sizeof *m);
    char name[40];
    snprintf(name, sizeof name, "random:%d", block);
    for (int i = 0; i < BLOCK && check(m != NULL, "memory"); i++) {
        random_graph_make(m, (uint64_t)(block * BLOCK + i + 1));
        compile_text(m->text, strlen(m->text), name);
    }
    free(m);
    end_case(name, updating);
}

int main(int argc, char **argv) {
    size_t length = 0;
    updating = argc > 2 && !strcmp(argv[2], "--update");
    file = argc > 1 ? read_whole(argv[1], &length) : NULL;
    if (!check(file || updating, "agree FILE [--update]") ||
        !check(epi_context_open(&ctx, NULL) == EPI_OK, "a context"))
        return finish();
    check_folder("programs");
    check_folder("tests");
    check_path("docs/cookbook.md");
    check_path("tests/seams.md");
    for (int b = 0; b < BLOCKS; b++)
        if (wanted("random:%d", b))
            check_random(b);
    no_case();
    if (updating && !failed_count) {
        FILE *f = fopen(argv[1], "w");
        check(f && fwrite(is.data, 1, is.length, f) == is.length && !fclose(f), "%s is written", argv[1]);
    }
    free(file);
    epi_text_free(&is);
    epi_context_close(ctx);
    return finish();
}

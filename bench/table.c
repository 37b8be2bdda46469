/* table.c: makes the tables of a Markdown file from result files.
 *
 *     table FILE.md           rewrites what stands between <!-- table: RESULT.json --> and <!-- end -->
 *     table --check FILE.md   only says whether that would change anything
 *
 * A result file was written by `epilog bench --out` or by bench/vs_torch.py. Of the latter a marker may name
 * the tables it wants, as in <!-- table: bench/results/h200.json product kernels -->; it gets all without.
 * <!-- table: FILE blocks --> is of a file that bench/torch_blocks.py wrote; `layers`, `attention` and `few`
 * are of torch_layers.py, torch_attention.py and few_rows.py, `read` of few_rows.c.
 * <!-- table: FILE derived --> is of a run of `epilog bench` over pairs of a gradient by hand and a derived
 * one.
 * <!-- table: instead --> takes its rows from several files, which bench/table_instead.c names; `instead first` takes a
 * few of them, `instead lost` those that Epilog loses. Lines above a table are wrapped.
 * Where there is no such file yet the place is left as it is, as long as no table stands in it. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record.h"

/* ---- derived gradients ---- */

/* Of each gradient two rows: the text by hand, then the derived one. */
static void put_derived(const results *res, const char *path, epi_text *out) {
    const record *h = &res->head;
    epi_text_add(out, "%s; %s at commit %s (`%s`)\n\n", text(h, *text(h, "gpu") ? "gpu" : "cpu"),
                 text(h, "date"), text(h, "commit"), path);
    epi_text_add(out,
                 "| gradient | by hand, ms | derived, ms | derived / by hand | error by hand | derived |\n");
    put_rule(out, 6);
    for (const record *hand = res->rows; hand && hand->next; hand = hand->next->next) {
        const record *derived = hand->next;
        double ms[2] = {number(hand, "fused_ms"), number(derived, "fused_ms")};
        epi_text_add(out, "| %s |", text(hand, "kernel"));
        put_cell(out, "%.4f", ms[0]);
        put_cell(out, "%.4f", ms[1]);
        put_cell(out, "**%.3f**", ms[1] / ms[0]);
        put_cell(out, "%.1e", number(hand, "error"));
        put_cell(out, "%.1e", number(derived, "error"));
        epi_text_add(out, "\n");
    }
}

/* ---- the CPU's table ---- */

static bool moves_memory(const record *r) {
    return !isnan(number(r, "gb_per_s"));
}

/* Kernels with a product, or those without, which are held against a copy. */
static void put_cpu_rows(const results *res, bool memory, epi_text *out) {
    int count = 0;
    for (const record *r = res->rows; r; r = r->next) {
        if (moves_memory(r) != memory)
            continue;
        if (!count++) {
            epi_text_add(
                out, memory
                         ? "| kernel | rows×cols | fused ms | unfused ms | speed-up | GB/s | copy GB/s | "
                           "of copy | error |\n"
                         : "| kernel | rows×cols×depth | fused ms | unfused ms | speed-up | GFLOP/s | sgemm "
                           "ms | fused / sgemm | error |\n");
            put_rule(out, 9);
        }
        epi_text_add(out, "| %s |", text(r, "kernel"));
        if (memory)
            epi_text_add(out, " %.0f×%.0f |", number(r, "m"), number(r, "n"));
        else
            put_shape(out, number(r, "m"), number(r, "n"), number(r, "k"));
        put_cell(out, "%.2f", number(r, "fused_ms"));
        put_cell(out, "%.2f", number(r, "unfused_ms"));
        put_cell(out, "%.2f×", number(r, "unfused_ms") / number(r, "fused_ms"));
        put_cell(out, memory ? "%.1f" : "%.0f", number(r, memory ? "gb_per_s" : "gflops"));
        put_cell(out, memory ? "%.1f" : "%.2f", number(r, memory ? "copy_gb_per_s" : "sgemm_ms"));
        put_cell(out, "%.3f", number(r, memory ? "of_copy" : "of_raw"));
        put_cell(out, "%.1e", number(r, "error"));
        epi_text_add(out, "\n");
    }
}

static void put_cpu(const results *res, const char *path, epi_text *out) {
    const record *h = &res->head;
    epi_text_add(out, "%s operands, %.0f threads, %s; %s at commit %s (`%s`)\n\n", text(h, "type"),
                 number(h, "threads"), text(h, "cpu"), text(h, "date"), text(h, "commit"), path);
    put_cpu_rows(res, false, out);
    put_cpu_rows(res, true, out);
}

/* Of a file that bench/few_rows.c wrote. */
static void put_read_loop(const results *res, const char *path, epi_text *out) {
    const record *h = &res->head;
    epi_text_add(out, "%.0f threads, %s (%s), medians of %.0f rounds; %s at commit %s (`%s`)\n\n",
                 number(h, "threads"), text(h, "cpu"), text(h, "micro_kernels"), number(h, "rounds"),
                 text(h, "date"), text(h, "commit"), path);
    epi_text_add(out,
                 "| weights | rows | columns × depth | the loop, GB/s | the product, GB/s | of the loop |\n");
    put_rule(out, 6);
    for (const record *r = res->rows; r; r = r->next) {
        epi_text_add(out, "| %s, b%s | %.0f | %.0f × %.0f |", text(r, "type"), text(r, "layout"),
                     number(r, "m"), number(r, "n"), number(r, "k"));
        put_cell(out, "%.1f", number(r, "loop_gb_per_s"));
        put_cell(out, "%.1f", number(r, "gb_per_s"));
        put_cell(out, "**%.2f**", number(r, "gb_per_s") / number(r, "loop_gb_per_s"));
        epi_text_add(out, "\n");
    }
}

/* Of a file that bench/cpu_torch.py wrote. */
static void put_beside(const results *res, const char *path, epi_text *out) {
    static const char *const others[] = {"compile", "eager"};
    const record *h = &res->head;
    epi_text_add(out, "%s, %.0f thread, %s, PyTorch %s, %s; %s at commit %s (`%s`)\n\n", text(h, "type"),
                 number(h, "threads"), text(h, "cpu"), text(h, "torch"), text(h, "time"), text(h, "date"),
                 text(h, "commit"), path);
    epi_text_add(
        out, "| kernel | rows×cols×depth | Epilog ms | torch.compile ms | over Epilog's | eager ms | over "
             "Epilog's |\n");
    put_rule(out, 7);
    for (const record *r = res->rows; r; r = r->next) {
        double own = number(r, "times/epilog/least_ms");
        epi_text_add(out, "| %s |", text(r, "kernel"));
        if (isnan(number(r, "k")))
            epi_text_add(out, " %.0f×%.0f |", number(r, "m"), number(r, "n"));
        else
            put_shape(out, number(r, "m"), number(r, "n"), number(r, "k"));
        put_cell(out, "%.2f", own);
        for (int i = 0; i < 2; i++) {
            char name[40];
            snprintf(name, sizeof name, "times/%s/least_ms", others[i]);
            put_cell(out, "%.2f", number(r, name));
            put_cell(out, "%.2f", number(r, name) / own);
        }
        epi_text_add(out, "\n");
    }
}

/* ---- the Markdown file ---- */

/* Adds lines, and breaks those of prose at the last space before column 101. */
static void put_wrapped(const char *lines, epi_text *out) {
    for (int length; *lines; lines += length) {
        int end = length = (int)strcspn(lines, "\n");
        if (*lines != '|' && length > 100)
            for (end = 100; end && lines[end] != ' ';)
                end--;
        end = end ? end : length;
        epi_text_add(out, "%.*s\n", end, lines);
        length = end + (lines[end] != 0);
    }
}

/* What belongs between the markers; `old` is what stands there. */
static bool put_block(const char *path, const char *names, const char *old, int old_length, epi_text *out) {
    if (!strcmp(path, "instead")) {
        epi_text_add(out, "\n");
        return put_instead(out, names);
    }
    size_t size;
    char *json = read_file(path, &size);
    if (!json) {
        bool waits = errno == ENOENT && !memmem(old, (size_t)old_length, "\n|", 2);
        epi_text_add(out, "%.*s", old_length, old);
        if (!waits)
            fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return waits;
    }
    results res = {0};
    epi_text lines = {0};
    bool ok = read_results(path, json, size, &res);
    epi_text_add(out, "\n");
    static const struct {
        const char *name;
        void (*put)(const results *res, const char *path, epi_text *out);
    } tables[] = {
        {"derived", put_derived},     {"blocks", put_blocks},     {"layers", put_layers},
        {"attention", put_attention}, {"mma", put_mma},           {"few", put_few},
        {"read", put_read_loop},      {"training", put_training}, {"decoding", put_decoding},
        {"sides", put_sides},         {"cached", put_cached},     {"beside", put_beside},
        {"kernels", put_kernels},     {"along", put_along},       {"recurrence", put_recurrence},
        {"cpu-time", put_cpu_time},
    };
    bool found = false;
    for (size_t i = 0; i < sizeof tables / sizeof *tables && ok && !found; i++)
        if ((found = !strcmp(names, tables[i].name)))
            tables[i].put(&res, path, &lines);
    if (found)
        ok = true;
    else if (ok && *find(&res.head, "torch")->path)
        ok = put_gpu(&res, path, names, &lines);
    else if (ok)
        put_cpu(&res, path, &lines);
    put_wrapped(lines.data ? lines.data : "", out);
    epi_text_free(&lines);
    epi_arena_free(&res.arena);
    free(json);
    return ok;
}

int main(int argc, char **argv) {
    bool only_check = argc > 2 && !strcmp(argv[1], "--check"), ok = true;
    const char *path = argv[argc - 1];
    size_t size;
    char *md = argc > 1 ? read_file(path, &size) : NULL;
    if (!md) {
        fprintf(stderr, "usage: table [--check] FILE.md\n");
        return 2;
    }
    static const char open[] = "<!-- table: ", name_close[] = " -->", close[] = "<!-- end -->";
    epi_text out = {0};
    int count = 0;
    for (char *at = md; *at;) {
        char *start = strstr(at, open), *end = start ? strstr(start, close) : NULL,
             *name_end = start ? strstr(start, name_close) : NULL;
        if (!end || !name_end || name_end > end) {
            epi_text_add(&out, "%s", at);
            break;
        }
        char result[512];
        const char *old = name_end + strlen(name_close);
        snprintf(result, sizeof result, "%.*s", (int)(name_end - start - (long)strlen(open)),
                 start + strlen(open));
        epi_text_add(&out, "%.*s", (int)(old - at), at);
        char *names = result + strcspn(result, " ");
        if (*names)
            *names++ = 0;
        ok &= put_block(result, names, old, (int)(end - old), &out);
        epi_text_add(&out, "%s", close);
        at = end + strlen(close);
        count++;
    }
    if (ok || only_check)
        ok &= settle_file(path, &out, only_check);
    if (only_check)
        printf("%d passed, %d failed\n", ok ? count + 1 : count, !ok);
    epi_text_free(&out);
    free(md);
    return ok ? 0 : 1;
}

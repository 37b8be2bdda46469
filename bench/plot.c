/* plot.c: draws a result file as an SVG picture.
 *
 *     plot KIND RESULT.json SIZE OUT.svg           draws the problems of that size
 *     plot --check KIND RESULT.json SIZE OUT.svg   only says whether that would change anything
 *
 * Kinds are `kernels` (of bench/vs_torch.py, over cuBLAS's product alone), `rows` (of bench/rows_torch.py,
 * over a copy; SIZE rows, of each kernel those that move most), `blocks` (of bench/torch_blocks.py, over
 * their products alone; SIZE tokens), `attention` (of bench/torch_attention.py, over cuDNN; heads of SIZE
 * features) and `cpu` (of `epilog bench`, over OpenBLAS's product alone). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cli/chart.h"
#include "record.h"

#define SAY(to, ...) snprintf(to, sizeof to, __VA_ARGS__)

/* ---- the kinds: each adds the rows of a result file, and what is said around them ---- */

static void fill_kernels(const results *res, double size, epi_chart *c) {
    static const char *const paths[] = {"flushed/ours_ratio", "flushed/compile_ratio", "flushed/eager_ratio"};
    const record *h = &res->head;
    SAY(c->title, "Fused Transformer kernels on an %s", text(h, "device"));
    SAY(c->subtitle,
        "Each is a matrix product and the operations around it. 1 is cuBLAS's time for the product "
        "alone.");
    SAY(c->axis, "time over cuBLAS's product alone (logarithmic); left is faster");
    SAY(c->notes[0],
        "Size %.0f, %s; single calls from Python with nothing in the L2 cache; PyTorch %s, driver %s", size,
        text(h, "type"), text(h, "torch"), text(h, "driver"));
    for (const record *r = res->rows; r; r = r->next) {
        bool whole =
            belongs(r, "kernels") && number(r, "size") == size && !strcmp(text(r, "rounding"), "packed");
        for (int s = 0; s < EPI_CHART_SERIES; s++)
            whole &= number(r, paths[s]) > 0;
        epi_chart_row *row = whole ? epi_chart_add(c) : NULL;
        for (int s = 0; s < EPI_CHART_SERIES && row; s++)
            row->values[s] = number(r, paths[s]);
        if (row)
            SAY(row->name, "%s", text(r, "kernel"));
    }
}

/* Is there another row of the same kernel and size that moves more? */
static bool is_outdone(const results *res, const record *r) {
    for (const record *q = res->rows; q; q = q->next)
        if (belongs(q, "rows") && !strcmp(text(q, "kernel"), text(r, "kernel")) &&
            number(q, "m") == number(r, "m") && number(q, "bytes") > number(r, "bytes"))
            return true;
    return false;
}

static void fill_rows(const results *res, double size, epi_chart *c) {
    static const char *const paths[] = {"ours_us", "compile_us", "eager_us"};
    const record *h = &res->head;
    SAY(c->title, "Programs without a product on an %s", text(h, "device"));
    SAY(c->subtitle, "Each reads and writes rows once. 1 is the time of a copy of as many bytes.");
    SAY(c->axis, "time over a copy's (logarithmic); left is faster");
    SAY(c->notes[0], "%.0f rows, %s; PyTorch %s where it was measured, driver %s", size, text(h, "type"),
        text(h, "torch"), text(h, "driver"));
    for (const record *r = res->rows; r; r = r->next) {
        double copy = number(r, "copy_us");
        if (!belongs(r, "rows") || number(r, "m") != size || !(copy > 0) || is_outdone(res, r))
            continue;
        epi_chart_row *row = epi_chart_add(c);
        for (int s = 0; s < EPI_CHART_SERIES && row; s++)
            row->values[s] = number(r, paths[s]) / copy;
        if (row)
            SAY(row->name, "%s, %.0f wide", text(r, "kernel"), number(r, "n"));
    }
}

/* The sum of the medians of all fields DIRECTION/product .../median_ms; 0 where there is none. */
static double products_of(const record *r, const char *direction) {
    char prefix[64];
    double sum = 0;
    SAY(prefix, "%s/product ", direction);
    for (const field *f = r->first; f; f = f->next)
        if (!strncmp(f->path, prefix, strlen(prefix)) && strstr(f->path, "/median_ms"))
            sum += f->number;
    return sum;
}

static void fill_blocks(const results *res, double size, epi_chart *c) {
    static const char *const sides[] = {"epilog", "torch.compile", "eager"};
    static const char *const directions[] = {"forward", "backward"};
    const record *h = &res->head;
    SAY(c->title, "The MLP half of a Llama block on an %s", text(h, "device"));
    SAY(c->subtitle,
        "Norm, gate and up, SwiGLU, down, residual; and their gradients. 1 is cuBLAS's time for the "
        "products alone.");
    SAY(c->axis, "time over that of its products alone (logarithmic); left is faster");
    SAY(c->notes[0],
        "%.0f tokens, bf16; medians of %.0f rounds in turn, L2 overwritten before each; PyTorch %s", size,
        number(h, "rounds"), text(h, "torch"));
    for (const record *r = res->rows; r; r = r->next)
        for (int d = 0; d < 2 && belongs(r, "mlp") && number(r, "T") == size; d++) {
            double products = products_of(r, directions[d]);
            epi_chart_row *row = products > 0 ? epi_chart_add(c) : NULL;
            for (int s = 0; s < EPI_CHART_SERIES && row; s++) {
                char path[96];
                SAY(path, "%s/%s/median_ms", directions[d], sides[s]);
                row->values[s] = number(r, path) / products;
            }
            if (row)
                SAY(row->name, "d %.0f, ff %.0f, %s", number(r, "D"), number(r, "F"), directions[d]);
        }
}

static void fill_cpu(const results *res, double size, epi_chart *c) {
    const record *h = &res->head;
    c->series[1] = "unfused";
    c->series_count = 2;
    SAY(c->title, "Fused Transformer kernels on a CPU");
    SAY(c->subtitle,
        "Each is a matrix product and the operations around it. 1 is OpenBLAS's time for the product "
        "alone.");
    SAY(c->axis, "time over OpenBLAS's product alone (logarithmic); left is faster");
    SAY(c->notes[0], "Size %.0f, %s, %.0f threads; %s; %.40s", size, text(h, "type"), number(h, "threads"),
        text(h, "cpu"), text(h, "blas"));
    for (const record *r = res->rows; r; r = r->next) {
        double product = number(r, "sgemm_ms");
        epi_chart_row *row = number(r, "m") == size && product > 0 ? epi_chart_add(c) : NULL;
        if (!row)
            continue;
        row->values[0] = number(r, "fused_ms") / product;
        row->values[1] = number(r, "unfused_ms") / product;
        SAY(row->name, "%s", text(r, "kernel"));
    }
}

/* The size is that of a head. */
static void fill_attention(const results *res, double size, epi_chart *c) {
    const record *h = &res->head;
    c->series_count = 1;
    SAY(c->title, "Attention on an %s", text(h, "device"));
    SAY(c->subtitle, "Heads of %.0f features, forward and backward. 1 is cuDNN's time.", size);
    SAY(c->axis, "time over cuDNN's (logarithmic); left is faster");
    SAY(c->notes[0], "bf16; medians of bursts of 2 ms after a pause, in turn; PyTorch %s", text(h, "torch"));
    for (const record *r = res->rows; r; r = r->next) {
        double over = number(r, "over/cudnn");
        epi_chart_row *row = number(r, "D") == size && over > 0 ? epi_chart_add(c) : NULL;
        if (!row)
            continue;
        row->values[0] = 1 / over;
        SAY(row->name, "%s, %s, %.0f tokens", text(r, "section"), text(r, "kind"), number(r, "S"));
    }
}

/* The size is the length of a sequence. */
static void fill_training(const results *res, double size, epi_chart *c) {
    static const char *const sides[][2] = {{"eager", "transformers"},
                                           {"compile", "torch.compile"},
                                           {"plain, compiled", "rewritten by hand"},
                                           {"apply", "epilog.apply"},
                                           {"apply, fp8", "apply, 8 bits"}};
    const record *h = &res->head;
    double least = 0;
    c->series[0] = "time";
    c->series_count = 1;
    c->of_one = true;
    for (const record *r = res->rows; r; r = r->next)
        if (!strcmp(text(r, "side"), "plain, compiled") && number(h, "length") == size)
            least = number(r, "step_ms");
    SAY(c->title, "A training step of a Llama with 1.5 billion weights on an %s", text(h, "device"));
    SAY(c->subtitle, "Forward, backward and AdamW; time, and the most memory. 1 is the model rewritten by "
                     "hand for torch.compile.");
    SAY(c->axis, "time over that model's (logarithmic); left is faster");
    SAY(c->notes[0], "%.0f sequences of %.0f tokens, bf16; steps in turn; PyTorch %s", number(h, "batch"),
        size, text(h, "torch"));
    for (size_t i = 0; i < sizeof sides / sizeof *sides && least > 0; i++)
        for (const record *r = res->rows; r; r = r->next) {
            epi_chart_row *row = strcmp(text(r, "side"), sides[i][0]) ? NULL : epi_chart_add(c);
            if (!row)
                continue;
            row->values[0] = number(r, "step_ms") / least;
            SAY(row->name, "%s, %.1f GiB", sides[i][1], number(r, "peak_gib"));
        }
}

static const struct {
    const char *name;
    void (*fill)(const results *, double, epi_chart *);
} kinds[] = {{"kernels", fill_kernels},     {"rows", fill_rows},         {"blocks", fill_blocks},
             {"attention", fill_attention}, {"training", fill_training}, {"cpu", fill_cpu}};

int main(int argc, char **argv) {
    bool only_check = argc == 6 && !strcmp(argv[1], "--check");
    size_t kind = 0, bytes;
    while (argc >= 5 && kind < sizeof kinds / sizeof *kinds && strcmp(argv[argc - 4], kinds[kind].name) != 0)
        kind++;
    if ((argc != 5 && !only_check) || kind == sizeof kinds / sizeof *kinds) {
        fprintf(
            stderr,
            "usage: plot [--check] kernels|rows|blocks|attention|training|cpu RESULT.json SIZE OUT.svg\n");
        return 2;
    }
    const char *path = argv[argc - 3];
    static epi_chart c = {.series = {"Epilog", "torch.compile", "eager PyTorch"}, .series_count = 3};
    char *json = read_file(path, &bytes);
    results res = {0};
    epi_text out = {0};
    bool ok = json && read_results(path, json, bytes, &res);
    if (ok) {
        kinds[kind].fill(&res, strtod(argv[argc - 2], NULL), &c);
        SAY(c.notes[1], "%s, %.10s at commit %s", path, text(&res.head, "date"), text(&res.head, "commit"));
    }
    if (ok && c.count) {
        epi_chart_svg(&c, &out);
        ok = settle_file(argv[argc - 1], &out, only_check);
    } else {
        fprintf(stderr, "%s: has nothing of kind %s and size %s\n", path, kinds[kind].name, argv[argc - 2]);
        ok = false;
    }
    if (only_check)
        printf("%d passed, %d failed\n", ok, !ok);
    epi_text_free(&out);
    epi_arena_free(&res.arena);
    free(json);
    return ok ? 0 : 1;
}

/* table_blocks.c: the tables of files that bench/torch_blocks.py, torch_layers.py, torch_attention.py and
 * few_rows.py wrote: work of several kernels beside PyTorch and beside its products alone, batches of
 * products beside torch.bmm, attention beside cuDNN, products of few rows beside cuBLAS. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "record.h"

/* The sum of the medians of all fields DIRECTION/product .../median_ms; NaN where there is none. */
static double products_of(const record *r, const char *direction) {
    char prefix[64];
    double sum = 0;
    snprintf(prefix, sizeof prefix, "%s/product ", direction);
    for (const field *f = r->first; f; f = f->next)
        if (!strncmp(f->path, prefix, strlen(prefix)) && strstr(f->path, "/median_ms"))
            sum += f->number;
    return sum > 0 ? sum : (double)NAN;
}

static double median(const record *r, const char *direction, const char *side) {
    char path[96];
    snprintf(path, sizeof path, "%s/%s/median_ms", direction, side);
    return number(r, path);
}

static void put_mlp(const results *res, epi_text *out) {
    static const char *const directions[] = {"forward", "backward"};
    epi_text_add(out,
                 "| MLP half of a Llama block | ms | torch.compile | eager | its products, cuBLAS | of the "
                 "products | torch.compile's |\n");
    put_rule(out, 7);
    for (const record *r = res->rows; r; r = r->next)
        for (int i = 0; i < 2 && belongs(r, "mlp"); i++) {
            double products = products_of(r, directions[i]), ours = median(r, directions[i], "epilog"),
                   compiled = median(r, directions[i], "torch.compile");
            epi_text_add(out, "| T %.0f, d %.0f, ff %.0f, %s |", number(r, "T"), number(r, "D"),
                         number(r, "F"), directions[i]);
            put_cell(out, "%.3f", ours);
            put_cell(out, "%.3f", compiled);
            put_cell(out, "%.3f", median(r, directions[i], "eager"));
            put_cell(out, "%.3f", products);
            put_cell(out, "**%.3f**", ours / products);
            put_cell(out, "%.3f", compiled / products);
            epi_text_add(out, "\n");
        }
}

static void put_batched(const results *res, epi_text *out) {
    epi_text_add(out, "\n| batches of products | ms | torch.bmm | of it |\n");
    put_rule(out, 4);
    for (const record *r = res->rows; r; r = r->next) {
        if (!belongs(r, "batched"))
            continue;
        epi_text_add(out, "| %.0f of %.0f×%.0f×%.0f |", number(r, "B"), number(r, "M"), number(r, "N"),
                     number(r, "K"));
        put_cell(out, "%.4f", number(r, "times/epilog/median_ms"));
        put_cell(out, "%.4f", number(r, "times/torch.bmm/median_ms"));
        put_cell(out, "**%.3f**", number(r, "over_bmm"));
        epi_text_add(out, "\n");
    }
}

void put_torch_head(const results *res, const char *path, const char *how, epi_text *out) {
    const record *h = &res->head;
    epi_text_add(out, "%s, PyTorch %s, bf16, %s; %.10s at commit %s (`%s`)\n\n", text(h, "device"),
                 text(h, "torch"), how, text(h, "date"), text(h, "commit"), path);
}

void put_blocks(const results *res, const char *path, epi_text *out) {
    char how[128];
    snprintf(how, sizeof how, "medians of %.0f rounds in turn, L2 overwritten before each",
             number(&res->head, "rounds"));
    put_torch_head(res, path, how, out);
    put_mlp(res, out);
    put_batched(res, out);
}

/* ---- layers ---- */

/* The sum of the medians of all products of a direction. */
static double raw_of(const record *r, const char *direction) {
    char path[64];
    snprintf(path, sizeof path, "%s_products_ms", direction);
    return number(r, path);
}

/* What a row of torch_layers.py is about. */
static void put_layer_name(const record *r, epi_text *out) {
    bool loss = belongs(r, "loss");
    const char *what = belongs(r, "layer")  ? "layer"
                       : belongs(r, "norm") ? "LayerNorm and linear"
                       : loss               ? "linear and cross-entropy"
                                            : "layer without attention";
    epi_text_add(out, "| %s, d %.0f, %s %.0f, ", what, number(r, "D"), loss ? "vocabulary" : "ff",
                 number(r, loss ? "V" : "F"));
}

/* A line for what `side` took beside torch.compile; the memory of a step is what it takes beyond its inputs.
 */
static void put_layer_line(const record *r, const char *direction, const char *side, epi_text *out) {
    char peak[96], theirs[96];
    bool step = !strcmp(direction, "step");
    double ours = median(r, direction, side), compiled = median(r, direction, "torch.compile"),
           raw = raw_of(r, direction), gib = 1.0 / (1 << 30);
    put_layer_name(r, out);
    epi_text_add(out, "%s%s |", direction, strcmp(side, "epilog") ? ", within a budget" : "");
    put_cell(out, "%.3f", ours);
    put_cell(out, "%.3f", compiled);
    put_cell(out, "**%.3f**", compiled / ours);
    put_cell(out, "%.3f", raw);
    put_cell(out, "%.3f", ours / raw);
    put_cell(out, "%.3f", compiled / raw);
    snprintf(peak, sizeof peak, "step_peak_bytes/%s", step ? side : "none");
    snprintf(theirs, sizeof theirs, "step_peak_bytes/%s", step ? "torch.compile" : "none");
    put_cell(out, "%.2f", number(r, peak) * gib);
    put_cell(out, "%.2f", number(r, theirs) * gib);
    epi_text_add(out, "\n");
}

void put_layers(const results *res, const char *path, epi_text *out) {
    static const char *const directions[] = {"forward", "backward", "step"};
    static const char *const sides[] = {"epilog", "epilog, memory"};
    char how[128];
    snprintf(how, sizeof how, "medians of %.0f rounds in turn, L2 overwritten before each",
             number(&res->head, "rounds"));
    put_torch_head(res, path, how, out);
    epi_text_add(out,
                 "| | ms | torch.compile | its time over ours | products alone, cuBLAS | of the products | "
                 "torch.compile's | GiB | torch.compile's |\n");
    put_rule(out, 9);
    for (const record *r = res->rows; r; r = r->next)
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < 3; i++)
                if (median(r, directions[i], sides[s]) > 0)
                    put_layer_line(r, directions[i], sides[s], out);
}

/* ---- attention ---- */

/* What was measured, and Epilog's figures. */
static void put_own_cells(const record *r, epi_text *out) {
    bool back = strstr(text(r, "section"), "backward") != NULL;
    epi_text_add(out, "| %s, %s, B%.0f H%.0f/%.0f S%.0f, %.0f features |", back ? "backward" : "forward",
                 text(r, "kind"), number(r, "B"), number(r, "H"), number(r, "KV"), number(r, "S"),
                 number(r, "D"));
    put_cell(out, "%.3f", number(r, "times/epilog/median_ms"));
    put_cell(out, "%.0f", number(r, "tflops/epilog"));
}

void put_attention(const results *res, const char *path, epi_text *out) {
    put_torch_head(res, path, "bursts of 2 ms after a pause, in turn", out);
    epi_text_add(out, "| attention | ms | TFLOP/s | cuDNN's | FlexAttention's | its time over ours |\n");
    put_rule(out, 6);
    for (const record *r = res->rows; r; r = r->next) {
        put_own_cells(r, out);
        put_cell(out, "%.0f", number(r, "tflops/cudnn"));
        put_cell(out, "%.0f", number(r, "tflops/flex"));
        double over = number(r, "over/flex");
        put_cell(out, "**%.2f**", isnan(over) ? number(r, "over/cudnn") : over);
        epi_text_add(out, "\n");
    }
}

/* The configurations by mma.sync, beside PyTorch's flash attention. */
void put_mma(const results *res, const char *path, epi_text *out) {
    put_torch_head(res, path, "bursts of 2 ms after a pause, in turn", out);
    epi_text_add(out, "| attention by mma.sync | ms | TFLOP/s | flash's | its time over ours |\n");
    put_rule(out, 5);
    for (const record *r = res->rows; r; r = r->next) {
        put_own_cells(r, out);
        put_cell(out, "%.0f", number(r, "tflops/flash"));
        put_cell(out, "**%.2f**", number(r, "over/flash"));
        epi_text_add(out, "\n");
    }
}

/* ---- few rows ---- */

void put_few(const results *res, const char *path, epi_text *out) {
    static const double rows[] = {1, 2, 4, 8, 16, 32, 64, 128};
    static const char *const kernels[] = {"matmul", "residual_rms", "norm_swiglu"};
    put_torch_head(res, path, "weights in turn, so that none is in L2; time over cuBLAS's product", out);
    epi_text_add(
        out,
        "| kernel, geometric mean and worst of seven shapes | 1 row | 2 | 4 | 8 | 16 | 32 | 64 | 128 |\n");
    put_rule(out, 9);
    for (int k = 0; k < 3; k++) {
        epi_text_add(out, "| %s |", kernels[k]);
        for (int i = 0; i < 8; i++) {
            spread s = {0};
            for (const record *r = res->rows; r; r = r->next)
                if (!strcmp(text(r, "kernel"), kernels[k]) && number(r, "m") == rows[i])
                    spread_add(&s, number(r, "ratio"));
            epi_text_add(out, " **%.2f**, %.2f |", spread_mean(&s), s.most);
        }
        epi_text_add(out, "\n");
    }
}

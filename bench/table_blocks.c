/* table_blocks.c: the tables of a file that bench/torch_blocks.py wrote: blocks of several products beside
 * PyTorch and beside their products alone, and batches of products beside torch.bmm. */
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

void put_blocks(const results *res, const char *path, epi_text *out) {
    const record *h = &res->head;
    epi_text_add(out,
                 "%s, PyTorch %s, bf16, medians of %.0f rounds in turn, L2 overwritten before each; %.10s at "
                 "commit %s (`%s`)\n\n",
                 text(h, "device"), text(h, "torch"), number(h, "rounds"), text(h, "date"), text(h, "commit"),
                 path);
    put_mlp(res, out);
    put_batched(res, out);
}

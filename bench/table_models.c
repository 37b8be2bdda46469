/* table_models.c: the tables of files that bench/torch_llama.py, torch_decode.py, torch_moe.py, torch_backend.py and
 * the decode section of torch_attention.py wrote: a training step, a step of decoding, parts of models by several
 * sides, and attention over a cache. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "record.h"

void put_training(const results *res, const char *path, epi_text *out) {
    char how[160];
    const char *model = text(&res->head, "model");
    snprintf(how, sizeof how, "%s%s%.0f sequences of %.0f, %.0f layers, vocabulary %.0f, sides in turn",
             model, *model ? ", " : "", number(&res->head, "batch"), number(&res->head, "length"),
             number(&res->head, *find(&res->head, "config/n_layer")->path ? "config/n_layer"
                                                                          : "config/num_hidden_layers"),
             number(&res->head, "config/vocab_size"));
    put_torch_head(res, path, how, out);
    epi_text_add(out, "| | ms a step | tokens/s | GiB at most | first loss after, s |\n");
    put_rule(out, 5);
    for (const record *r = res->rows; r; r = r->next) {
        epi_text_add(out, "| %s |", text(r, "side"));
        put_cell(out, "%.1f", number(r, "step_ms"));
        put_cell(out, "%.0f", number(r, "tokens_s"));
        put_cell(out, "%.1f", number(r, "peak_gib"));
        put_cell(out, "%.0f", number(r, "start_s"));
        epi_text_add(out, "\n");
    }
}

void put_kernels(const results *res, const char *path, epi_text *out) {
    static const char *const kinds[][2] = {{"products", "products"},
                                           {"attention", "attention, and what cuDNN's needs around it"},
                                           {"optimizer", "optimizer"},
                                           {"others", "all others"},
                                           {"all", "from the first one's start to the last one's end"}};
    put_torch_head(res, path, "kernels of one step, by the profiler", out);
    epi_text_add(out, "| ms |");
    int columns = 2;
    for (const record *r = res->rows; r; r = r->next, columns++)
        epi_text_add(out, " %s |", text(r, "side"));
    epi_text_add(out, " floor |\n");
    put_rule(out, columns);
    for (int k = 0; k < 5; k++) {
        epi_text_add(out, "| %s |", kinds[k][1]);
        for (const record *r = res->rows; r; r = r->next) {
            char name[40];
            snprintf(name, sizeof name, "kernels_ms/%s", kinds[k][0]);
            put_cell(out, "%.1f", number(r, name));
        }
        put_cell(out, "%.1f", k == 0 ? number(&res->head, "product_floor_ms") : NAN);
        epi_text_add(out, "\n");
    }
    epi_text_add(out, "| launches |");
    for (const record *r = res->rows; r; r = r->next)
        put_cell(out, "%.0f", number(r, "launches"));
    epi_text_add(out, " |\n");
}

void put_decoding(const results *res, const char *path, epi_text *out) {
    char how[160];
    snprintf(how, sizeof how, "caches and weights that are not in L2; a copy moves %.0f GB/s",
             number(&res->head, "copy_gb_s"));
    put_torch_head(res, path, how, out);
    epi_text_add(out,
                 "| a Llama layer, %.0f cached tokens | µs | torch.compile | torch.compile, one length | "
                 "floor of its bytes | of the floor's speed |\n",
                 res->rows ? number(res->rows, "cached") : 0);
    put_rule(out, 6);
    for (const record *r = res->rows; r; r = r->next) {
        double ours = number(r, "us/epilog"), least = number(r, "floor_us");
        epi_text_add(out, "| batch %.0f |", number(r, "batch"));
        put_cell(out, "%.1f", ours);
        put_cell(out, "%.1f", number(r, "us/compile"));
        put_cell(out, "%.1f", number(r, "us/compile, fixed"));
        put_cell(out, "%.1f", least);
        put_cell(out, "**%.2f**", least / ours);
        epi_text_add(out, "\n");
    }
}

void put_cached(const results *res, const char *path, epi_text *out) {
    put_torch_head(res, path, "one query, caches in turn so that none is in L2", out);
    epi_text_add(out, "| attention | µs | GB/s | cuDNN's | FlashAttention's | a copy's | of the copy's |\n");
    put_rule(out, 7);
    for (const record *r = res->rows; r; r = r->next) {
        epi_text_add(out, "| %s, B%.0f H%.0f/%.0f, %.0f keys, %.0f features |", text(r, "kind"),
                     number(r, "B"), number(r, "H"), number(r, "KV"), number(r, "S"), number(r, "D"));
        put_cell(out, "%.1f", 1e3 * number(r, "times/epilog/median_ms"));
        put_cell(out, "%.0f", number(r, "gbs/epilog"));
        put_cell(out, "%.0f", number(r, "gbs/cudnn"));
        put_cell(out, "%.0f", number(r, "gbs/flash"));
        put_cell(out, "%.0f", number(r, "gbs/copy"));
        put_cell(out, "**%.2f**", number(r, "gbs/epilog") / number(r, "gbs/copy"));
        epi_text_add(out, "\n");
    }
}

/* ---- parts of models, by sides of which the first is ours ---- */

enum { MOST_SIDES = 8 };

/* The sides of a row, in the order of the file: their names, and how many. */
static int find_sides(const record *r, char names[MOST_SIDES][32]) {
    int count = 0;
    for (const field *f = r ? r->first : NULL; f && count < MOST_SIDES; f = f->next) {
        const char *end = strstr(f->path, "/median_ms");
        if (end && !strncmp(f->path, "step/", 5) && (size_t)(end - f->path) < 5 + sizeof names[0])
            snprintf(names[count++], sizeof names[0], "%.*s", (int)(end - f->path - 5), f->path + 5);
    }
    return count;
}

/* What each side has of something, and what that is of ours. */
static void put_side_cells(const record *r, const char *format, double scale, char names[MOST_SIDES][32],
                           int count, epi_text *out) {
    double ours = NAN;
    for (int i = 0; i < count; i++) {
        char path[64];
        snprintf(path, sizeof path, format, names[i]);
        double value = number(r, path) * scale;
        ours = i ? ours : value;
        if (isnan(value) || i == 0)
            put_cell(out, "%.3f", value);
        else
            epi_text_add(out, " %.3f, **%.2f** |", value, value / ours);
    }
    epi_text_add(out, "\n");
}

void put_sides(const results *res, const char *path, epi_text *out) {
    char how[128], names[MOST_SIDES][32];
    snprintf(how, sizeof how, "medians of %.0f rounds in turn, L2 overwritten before each",
             number(&res->head, "rounds"));
    put_torch_head(res, path, how, out);
    int count = find_sides(res->rows, names);
    epi_text_add(out, "| ms, and of ours |");
    for (int i = 0; i < count; i++)
        epi_text_add(out, " %s |", names[i]);
    epi_text_add(out, "\n");
    put_rule(out, count + 1);
    for (const record *r = res->rows; r; r = r->next) {
        if (isnan(number(r, "forward/eager/median_ms")) && isnan(number(r, "forward/transformers/median_ms")))
            continue; /* a row of another kind */
        const char *name = *text(r, "model") ? text(r, "model") : text(r, "sizes"),
                   *routing = text(r, "routing");
        epi_text_add(out, "| %s%s%s, forward |", name, *routing ? ", " : "", routing);
        put_side_cells(r, "forward/%s/median_ms", 1, names, count, out);
        epi_text_add(out, "| %s%s%s, step |", name, *routing ? ", " : "", routing);
        put_side_cells(r, "step/%s/median_ms", 1, names, count, out);
        epi_text_add(out, "| %s%s%s, GB of a step |", name, *routing ? ", " : "", routing);
        put_side_cells(r, "step_peak_bytes/%s", 1e-9, names, count, out);
    }
}

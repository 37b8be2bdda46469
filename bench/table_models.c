/* table_models.c: the tables of files that bench/torch_llama.py, torch_decode.py and the decode section of
 * torch_attention.py wrote: a training step, a step of decoding, and attention over a cache. */
#include <stdio.h>

#include "record.h"

void put_training(const results *res, const char *path, epi_text *out) {
    char how[160];
    snprintf(how, sizeof how, "%.0f sequences of %.0f, %.0f layers, vocabulary %.0f, sides in turn",
             number(&res->head, "batch"), number(&res->head, "length"),
             number(&res->head, "config/num_hidden_layers"), number(&res->head, "config/vocab_size"));
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

/* describe.c: describes a compiled CPU kernel, in numbers and in words. */
#include "cpu/attention/attention.h"
#include "cpu/cpu.h"
#include "cpu/product/gemm.h"
#include "cpu/rows/rows.h"

static const epi_gemm *main_gemm(const epi_cpu_kernel *k) {
    for (int i = 0; i < k->steps.count; i++)
        if (k->gemms[i])
            return k->gemms[i];
    return NULL;
}

void epi_cpu_info(const epi_cpu_kernel *k, epi_kernel_info *out) {
    static const char *const names[] = {[EPI_PATH_NAIVE] = "naive", [EPI_PATH_REFERENCE] = "reference"};
    bool plain = k->spec.path >= EPI_PATH_NAIVE;
    *out = (epi_kernel_info){.mainloop = plain ? names[k->spec.path] : epi_steps_kind(&k->steps)->name,
                             .micro = "",
                             .threads = k->spec.threads};
    const epi_gemm *gemm = main_gemm(k);
    if (gemm) {
        out->micro = gemm->micro->name;
        out->m = gemm->m;
        out->n = gemm->n;
        for (int t = 0; t < gemm->terms; t++)
            out->k += gemm->k[t];
        out->products = gemm->products;
        out->tile_m = EPI_TILE_M;
        out->tile_n = gemm->epilogue.tile.tile_n;
    }
    out->launches = plain ? 1 : k->steps.count;
    double partials = gemm ? (double)gemm->epilogue.partials : 0;
    if (k->rows) {
        out->m = k->rows->tile.m;
        out->n = k->rows->tile.n;
        out->tile_m = k->rows->band;
        out->tile_n = k->rows->stretch;
        partials = (double)k->rows->partial_count;
    }
    if (k->attention) {
        const epi_attention_loop *a = k->attention;
        out->micro = a->streams[0].micro->name;
        out->m = a->score[0].tile.m;
        out->n = a->n;
        out->k = a->streams[0].feature_count;
        out->tile_m = EPI_TILE_M;
        out->tile_n = EPI_STREAM_TILE;
    }
    epi_steps_describe_recurrence(&k->steps, out);
    epi_steps_count(&k->steps, partials * sizeof(float), out);
}

static void describe_rows(const epi_cpu_kernel *k, epi_text *out) {
    const epi_rows *r = k->rows;
    if (r->tile.plan->flat)
        epi_text_add(out, "one long row, %ld elements at a time", (long)r->stretch);
    else
        epi_text_add(out, "%d row%s at a time, %ld column%s of each", r->band, r->band == 1 ? "" : "s",
                     (long)epi_min64(r->stretch, r->tile.n), r->stretch == 1 ? "" : "s");
    if (r->tile.phases > 1)
        epi_text_add(out, ", %d passes over a row", r->tile.phases);
    if (r->keep_count)
        epi_text_add(out, ", %d value%s kept between passes", r->keep_count, r->keep_count == 1 ? "" : "s");
    epi_text_add(out, "\n");
    epi_steps_describe_stages(&k->steps, r->col_pieces, r->row_pieces, out);
}

void epi_cpu_describe(const epi_cpu_kernel *k, epi_text *out) {
    if (k->spec.path >= EPI_PATH_NAIVE) {
        epi_text_add(out, "plain loops, one value after the other\n");
        return;
    }
    if (epi_steps_describe_pass(&k->steps, out))
        return;
    epi_steps_describe_shape(&k->steps, out);
    if (k->rows) {
        describe_rows(k, out);
        return;
    }
    if (k->attention) {
        const epi_micro *u = k->attention->streams[0].micro;
        epi_text_add(out, "score tile %d x %d, %ld tile%s of rows, micro-kernel %s (%d x %d)\n", EPI_TILE_M,
                     EPI_STREAM_TILE, (long)k->attention->row_tiles, k->attention->row_tiles == 1 ? "" : "s",
                     u->name, u->mr, u->nr);
        if (k->attention->split)
            epi_text_add(out, "threads also split the stream, into %ld chunks of %d columns\n",
                         (long)k->attention->chunks, EPI_STREAM_CHUNK);
        epi_steps_describe_stages(&k->steps, 1, 1, out);
        return;
    }
    const epi_gemm *gemm = main_gemm(k);
    long tiles = (long)(gemm->epilogue.row_tiles * gemm->epilogue.col_tiles);
    epi_text_add(out, "tile %d x %d, %ld tile%s, micro-kernel %s (%d x %d)\n", EPI_TILE_M,
                 gemm->epilogue.tile.tile_n, tiles, tiles == 1 ? "" : "s", gemm->micro->name, gemm->micro->mr,
                 gemm->micro->nr);
    epi_steps_describe_stages(&k->steps, gemm->epilogue.col_tiles, gemm->epilogue.row_tiles, out);
}

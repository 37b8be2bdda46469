/* attention_row_sum.c: the product of attention that sums over the rows.
 *
 * The weights of a score tile, transposed, times the operand's rows are added to the sums of the tile's
 * chunk of rows. Each chunk has sums for every stream tile, which count only once the tile has been seen.
 * When all rows of the current batches are done, the sums of the chunks are added up in order and stored. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/attention/attention_internal.h"

static float *row_sum_at(const epi_attention_state *r, int64_t batch, int64_t chunk, int64_t tile) {
    const epi_row_sum *c = &r->l->row_sum;
    return (float *)(void *)(r->scratch + c->sums) +
           (((batch - r->first_batch) * c->chunks + chunk) * r->l->stream_tiles + tile) * c->tile_floats;
}

static unsigned char *seen_at(const epi_attention_state *r, int64_t batch, int64_t chunk, int64_t tile) {
    const epi_row_sum *c = &r->l->row_sum;
    return r->scratch + c->seen + ((batch - r->first_batch) * c->chunks + chunk) * r->l->stream_tiles + tile;
}

void epi_row_sum_begin(const epi_row_tile *t) {
    const epi_attention_loop *l = t->r->l;
    const int64_t *sizes = l->spec->sizes;
    epi_packing p = {.ref = &t->r->homes[l->row_sum.sum->operand],
                     .row_count = l->row_sum.features,
                     .k = t->m0,
                     .k_count = t->rows};
    p.rows.walk = epi_walk_axes(p.ref, &l->row_sum.sum->cols, sizes);
    p.depth = epi_walk_axes(p.ref, &l->plan->rows, sizes);
    epi_attention_pack(l->strips, l->row_sum.micro, EPI_SIDE_B, &p, t->memory + l->row_sum.rows);
}

void epi_row_sum_add(const epi_row_tile *t, const float *weight, epi_stream_tile tile, epi_span span) {
    const epi_attention_loop *l = t->r->l;
    const epi_row_sum *c = &l->row_sum;
    float *sums = row_sum_at(t->r, t->batch, t->chunk, tile.number);
    unsigned char *seen = seen_at(t->r, t->batch, t->chunk, tile.number);
    int64_t columns = span.to - span.from;
    epi_ref ref = epi_attention_weights(t, c->micro, weight, span.from, columns);
    epi_packing p = {.ref = &ref, .row_count = columns, .k_count = t->rows};
    epi_walk_add(&p.rows.walk, EPI_STREAM_TILE, 1);
    epi_walk_add(&p.depth, EPI_TILE_M, EPI_TILE_N);
    if (!*seen)
        memset(sums, 0, (size_t)c->tile_floats * sizeof *sums);
    *seen = 1;
    epi_attention_pack(l->strips, c->micro, EPI_SIDE_A, &p, t->memory + l->weights);
    epi_attention_multiply(c->micro, (epi_panels){t->memory + l->weights, columns, t->rows},
                           (epi_panels){t->memory + c->rows, c->features, t->rows}, 0, t->rows,
                           sums + span.from * c->ld, c->ld, true);
}

/* ---- folding ---- */

/* Item: a batch and a stream tile. */
static void fold_item(void *ctx, int64_t item, int thread) {
    (void)thread;
    const epi_attention_state *r = ctx;
    const epi_attention_loop *l = r->l;
    const epi_row_sum *c = &l->row_sum;
    const int64_t *sizes = l->spec->sizes, tile = item % l->stream_tiles,
                  batch = r->first_batch + item / l->stream_tiles, rows = stream_tile(0, l->n, tile).columns;
    float *all = row_sum_at(r, batch, 0, tile);
    if (!*seen_at(r, batch, 0, tile))
        memset(all, 0, (size_t)c->tile_floats * sizeof *all);
    for (int64_t k = 1; k < c->chunks; k++) {
        if (!*seen_at(r, batch, k, tile))
            continue;
        epi_view both[] = {{all, c->ld, 1}, {row_sum_at(r, batch, k, tile), c->ld, 1}};
        l->strips->map[EPI_OP_ADD](all, c->ld, both, (int)rows, (int)c->features);
    }
    epi_axes batches = epi_plan_batch(l->plan);
    for (int i = 0; i < c->root_count; i++) {
        const epi_ref *to =
            c->roots[i].tensor >= 0 ? &r->tensors[c->roots[i].tensor] : &r->homes[c->roots[i].node];
        epi_walk of_batch = epi_walk_axes(to, &batches, sizes),
                 stream = epi_walk_axes(to, &l->a->stream, sizes),
                 columns = epi_walk_axes(to, &l->row_sum.sum->cols, sizes);
        for (int64_t j = 0; j < rows; j++)
            epi_walk_store(l->strips, to,
                           epi_walk_offset(&of_batch, batch) +
                               epi_walk_offset(&stream, tile * EPI_STREAM_TILE + j),
                           &columns, 0, all + j * c->ld, c->features);
    }
}

void epi_row_sum_finish(const epi_attention_state *r, int64_t batches) {
    epi_parallel_for(r->l->threads, batches * r->l->stream_tiles, fold_item, (void *)(uintptr_t)r);
}

/* gemm_pack.c: packs a tile's share of an operand into panels, from its place in memory or through an index.
 */
#include "cpu/product/gemm_internal.h"

#include <string.h>

/* Zeros in the place of rows, or of depths, that the index names nothing for: `first` is the first position. */
static void clear_gaps(const gemm_run *r, const epi_pack_source *src, int64_t first, bool rows, int panel,
                       int q, unsigned char *to) {
    const int64_t depth = epi_round_up(src->k, r->g->micro->depth),
                  size = (int64_t)epi_dtype_size(r->g->micro->type);
    for (int64_t i = 0; i < src->rows; i++)
        for (int64_t k = 0; k < src->k; k++) {
            if (r->index[first + (rows ? i : k)] >= 0)
                continue;
            int64_t at = i / panel * panel * depth + k / q * panel * q + i % panel * q + k % q;
            memset(to + at * size, 0, (size_t)size);
        }
}

/* Of an operand of few bits a panel at a time, by way of f32. */
static void pack_on_load(const gemm_run *r, int side, int from, int64_t first, int64_t k0, int panel,
                         int together, const epi_pack_source *src, unsigned char *to) {
    enum { MOST = EPI_MICRO_MAX_MR > EPI_MICRO_MAX_NR ? EPI_MICRO_MAX_MR : EPI_MICRO_MAX_NR, DEPTH = 128 };
    const epi_micro *u = r->g->micro;
    const int64_t size = (int64_t)epi_dtype_size(u->type), depth = epi_round_up(src->k, u->depth);
    float wide[MOST * DEPTH];
    int64_t row[MOST];
    for (int64_t i = 0; i < src->rows; i += panel)
        for (int64_t k = 0; k < src->k; k += DEPTH) {
            epi_pack_source part = {.data = wide,
                                    .type = EPI_F32,
                                    .row = row,
                                    .rows = epi_min64(panel, src->rows - i),
                                    .kstride = 1,
                                    .k = epi_min64(DEPTH, src->k - k)};
            for (int64_t j = 0; j < part.rows; j++) {
                row[j] = j * DEPTH;
                epi_gemm_dequantise(r, side, from, first + i + j, k0 + k, part.k, wide + row[j]);
            }
            epi_pack_panels(u, panel, together, &part, to + (i * depth + k * panel) * size);
        }
}

/* Packs what operand `from` has of a tile, from depth k0 on, `depth_most` of it or what there is. */
void epi_gemm_pack_rows(const gemm_run *r, int side, int from, int64_t tile, int64_t k0, int64_t depth_most,
                        unsigned char *to) {
    const epi_gemm *g = r->g;
    const int64_t first = first_row(r, side, tile), rows = tile_rows(r, side, tile);
    int64_t row[EPI_TILE_N];
    const epi_walk *depth = &r->depth[from];
    int64_t stride = depth->count ? depth->stride[depth->count - 1] : 1;
    const bool taken = g->taken[from].count && has_row_groups(g);
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = taken ? epi_max64(0, r->index[first + i]) : first + i;
        row[i] =
            side == EPI_SIDE_A ? epi_walk_offset(&r->rows[from], at) : epi_columns_offset(&r->cols[from], at);
        row[i] += r->koff[from] ? 0 : k0 * stride;
    }
    epi_pack_source src = {.data = side == EPI_SIDE_A ? r->ref[from].data : matrix_of(r, from, tile),
                           .type = r->ref[from].type,
                           .row = row,
                           .rows = rows,
                           .kstride = stride,
                           .koff = r->koff[from] ? r->koff[from] + k0 : NULL,
                           .k = epi_min64(depth_most, g->k[term_of(g, from)] - k0)};
    const bool direct = side == EPI_SIDE_A && is_direct(r, tile);
    const int panel = direct ? g->direct_rows : (int)panel_size(g, side),
              together = direct               ? g->micro->direct.ka
                         : side == EPI_SIDE_A ? g->micro->ka
                                              : g->micro->kb;
    if (g->on_load[from])
        pack_on_load(r, side, from, first, k0, panel, together, &src, to);
    else
        epi_pack_panels(g->micro, panel, together, &src, to);
    if (r->gaps && g->taken[from].count)
        clear_gaps(r, &src, taken ? first : k0, taken, panel, together, to);
}

/* The columns of a pair are packed one product after the other. */
void epi_gemm_pack_sweep(const gemm_run *r, int side, int64_t tile, int64_t sweep, packed_sweep to) {
    sweep_place at = place_of(r->g, sweep);
    if (side == EPI_SIDE_A && r->g->integers)
        epi_gemm_pack_integers(r, tile, at.k0, to.depth, to.data);
    else if (side == EPI_SIDE_A)
        epi_gemm_pack_rows(r, side, 2 * at.term, tile, at.k0, r->g->micro->kc, to.data);
    for (int p = 0; p < r->g->products && side == EPI_SIDE_B; p++)
        epi_gemm_pack_rows(r, side, 2 * at.term + 1 + p, tile, at.k0, r->g->micro->kc,
                           to.data + p * (to.bytes / r->g->products));
}

/* attention_products.c: the products of attention: packed panels, and the loops around the micro-kernel. */
#include "cpu/attention/attention_internal.h"

enum {
    MOST = 256, /* rows and depth: features, or a stream tile */
    STRETCH = 128,
    PANEL = EPI_MICRO_MAX_NR > EPI_MICRO_MAX_MR ? EPI_MICRO_MAX_NR : EPI_MICRO_MAX_MR
};

/* 8-bit elements of some rows and a stretch of depth from k on, as f32: depth by depth where rows are neighbours in
 * memory, else row by row. */
static void widen(const epi_strips *strips, const epi_packing *p, const int64_t *row, int64_t k,
                  epi_pack_source *out, float *wide) {
    out->k = epi_min64(STRETCH, p->k_count - k);
    out->kstride = out->rows;
    for (int64_t i = 1; i < out->rows; i++)
        if (row[i] != row[0] + i)
            out->kstride = 1;
    const bool touch = out->kstride == out->rows;
    for (int64_t i = 0; i < (touch ? out->k : out->rows); i++)
        if (touch)
            strips->load(wide + i * out->rows,
                         p->ref->data + row[0] + epi_walk_offset(&p->depth, p->k + k + i), p->ref->type, 1,
                         out->rows);
        else
            epi_walk_load(strips, wide + i * out->k, p->ref, row[i], &p->depth, p->k + k, out->k);
}

/* The panels of an 8-bit operand, each a stretch of depth at a time, by way of f32. */
static void pack_bytes(const epi_strips *strips, const epi_micro *micro, int side, const epi_packing *p,
                       const int64_t *row, void *to) {
    const int panel = side == EPI_SIDE_A ? micro->mr : micro->nr,
              q = side == EPI_SIDE_A ? micro->ka : micro->kb;
    const int64_t size = (int64_t)epi_dtype_size(micro->type), depth = epi_round_up(p->k_count, micro->depth);
    float wide[PANEL * STRETCH];
    uint16_t halves[PANEL * STRETCH];
    int64_t at[PANEL];
    for (int64_t i = 0; i < p->row_count; i += panel)
        for (int64_t k = 0; k < p->k_count; k += STRETCH) {
            epi_pack_source some = {
                .data = wide, .type = EPI_F32, .row = at, .rows = epi_min64(panel, p->row_count - i)};
            widen(strips, p, row + i, k, &some, wide);
            for (int64_t j = 0; j < some.rows; j++)
                at[j] = some.kstride == 1 ? j * some.k : j;
            if (micro->type == EPI_BF16) {
                strips->store(halves, EPI_BF16, 1, wide, some.rows * some.k);
                some.data = (unsigned char *)halves;
                some.type = EPI_BF16;
            }
            epi_pack_panels(micro, panel, q, &some, (char *)to + (i * depth + k * panel) * size);
        }
}

void epi_attention_pack(const epi_strips *strips, const epi_micro *micro, int side, const epi_packing *p,
                        void *to) {
    int64_t row[MOST], koff[MOST], stride = p->depth.count ? p->depth.stride[p->depth.count - 1] : 1;
    bool runs = p->depth.count <= 1;
    for (int64_t i = 0; i < p->row_count; i++)
        row[i] = p->base + epi_columns_offset(&p->rows, p->row + i);
    if (epi_dtype_size(p->ref->type) == 1) {
        pack_bytes(strips, micro, side, p, row, to);
        return;
    }
    for (int64_t i = 0; i < p->row_count && runs; i++)
        row[i] += p->k * stride;
    for (int64_t k = 0; k < p->k_count && !runs; k++)
        koff[k] = epi_walk_offset(&p->depth, p->k + k);
    epi_pack_source src = {.data = p->ref->data,
                           .type = p->ref->type,
                           .row = row,
                           .rows = p->row_count,
                           .kstride = stride,
                           .koff = runs ? NULL : koff,
                           .k = p->k_count};
    epi_pack(micro, side, &src, to);
}

void epi_attention_multiply(const epi_micro *u, epi_panels a, epi_panels b, int64_t k0, int64_t k, float *c,
                            int64_t ld, bool add) {
    const int64_t size = (int64_t)epi_dtype_size(u->type), da = epi_round_up(a.depth, u->depth),
                  db = epi_round_up(b.depth, u->depth);
    k = epi_round_up(k, u->depth);
    if (u->enter)
        u->enter();
    for (int64_t j = 0; j < b.rows; j += u->nr)
        for (int64_t i = 0; i < a.rows; i += u->mr) {
            epi_prefetch_cursor nothing = {.every = k + 1, .left = k + 1};
            u->run(k, (const char *)a.data + i * da * size,
                   (const char *)b.data + (j * db + k0 * u->nr) * size, c + i * ld + j, ld, add, &nothing);
        }
    if (u->leave)
        u->leave();
}

epi_ref epi_attention_weights(const epi_row_tile *t, const epi_micro *micro, const float *weight,
                              int64_t from, int64_t columns) {
    if (micro->type != EPI_BF16)
        return (epi_ref){.data = (unsigned char *)(uintptr_t)(weight + from), .type = EPI_F32};
    uint16_t *rounded = (uint16_t *)(void *)(t->memory + t->r->l->rounded);
    for (int i = t->low; i < t->high; i++)
        t->r->l->strips->store(rounded + i * EPI_TILE_N, EPI_BF16, 1, weight + i * EPI_TILE_N + from,
                               columns);
    return (epi_ref){.data = (unsigned char *)rounded, .type = EPI_BF16};
}

/* attention_products.c: the products of attention: packed panels, and the loops around the micro-kernel. */
#include "cpu/attention/attention_internal.h"

void epi_attention_pack(const epi_micro *micro, int side, const epi_packing *p, void *to) {
    enum { MOST = 256 }; /* rows and depth: features, or a stream tile */
    int64_t row[MOST], koff[MOST], stride = p->depth.count ? p->depth.stride[p->depth.count - 1] : 1;
    bool runs = p->depth.count <= 1;
    for (int64_t i = 0; i < p->row_count; i++)
        row[i] = p->base + epi_columns_offset(&p->rows, p->row + i) + (runs ? p->k * stride : 0);
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

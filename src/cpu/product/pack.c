/* pack.c: copying an operand into the panels that a micro-kernel reads.
 *
 * A panel is its rows, split into units of q elements and transposed: unit 0 of every row, then unit 1 of
 * every row, and so on. The work is done in pieces of the depth, in one of three ways:
 *   - across: the panel's rows are neighbours in memory, so an element of depth is one run;
 *   - straight: a row's depth is one run of the panel's type, and units are copied directly;
 *   - staged: everything else (conversions, strides, ragged ends) is first gathered into a small buffer of
 *     zeros, and copied from there.
 */
#include <string.h>

#include "cpu/micro/micro.h"
#include "cpu/product/pack_move.h"

enum {
    STRETCH = 64, /* depth of one stretch; a multiple of every interleave */
    ACROSS = 16,  /* of one that all panels take in turn: in so many rows the hardware reads ahead */
    MAX_ROWS = EPI_MICRO_MAX_NR > EPI_MICRO_MAX_MR ? EPI_MICRO_MAX_NR : EPI_MICRO_MAX_MR,
    MAX_SIZE = sizeof(float),
};

typedef void widen_fn(float *dst, const uint16_t *src, int64_t n);

/* What stays the same while one operand is packed. */
typedef struct job {
    const epi_pack_source *src;
    int r, q;            /* rows of a panel, interleave */
    int64_t source_size; /* bytes of an element there, */
    int64_t size;        /* and in the panel */
    widen_fn *widen;     /* from one to the other; NULL: they are the same */
} job;

/* One stretch of one panel. */
typedef struct stretch {
    int64_t row, rows; /* of the source; rows may be short of a panel's */
    int64_t k;         /* where its depth starts */
    int64_t depth;     /* how much of it the panel has, */
    int64_t valid;     /* and how much of that the source has */
    void *dst;
} stretch;

static int64_t depth_offset(const epi_pack_source *src, int64_t k) {
    return src->koff ? src->koff[k] : k * src->kstride;
}

static const void *element(const job *j, int64_t row, int64_t k) {
    const int64_t at = j->src->row[row] + depth_offset(j->src, k);
    return (const char *)j->src->data + at * j->source_size;
}

static bool rows_touch(const epi_pack_source *src, int64_t first, int64_t count) {
    for (int64_t i = 1; i < count; i++)
        if (src->row[first + i] != src->row[first] + i)
            return false;
    return true;
}

static bool depth_touches(const epi_pack_source *src, int64_t first, int64_t count) {
    if (!src->koff)
        return src->kstride == 1;
    for (int64_t k = 1; k < count; k++)
        if (src->koff[first + k] != src->koff[first] + k)
            return false;
    return true;
}

static void copy_run(const job *j, void *dst, const void *src, int64_t n) {
    if (j->widen)
        j->widen(dst, src, n);
    else
        memcpy(dst, src, (size_t)(n * j->size));
}

static void pack_across(const job *j, const stretch *c) {
    const void *column[STRETCH];
    for (int64_t k = 0; k < c->depth; k++)
        column[k] = element(j, c->row, c->k + k);
    if (j->q > 1)
        for (int64_t k = 0; k < c->depth; k += j->q)
            epi_pack_zip((char *)c->dst + k * j->r * j->size, column + k, j->r, j->q);
    else if (j->widen)
        for (int64_t k = 0; k < c->depth; k++)
            j->widen((float *)c->dst + k * j->r, column[k], j->r);
    else
        epi_pack_copy(c->dst, column, j->r, (int)c->depth);
}

/* The valid depth of one row, to dst. */
static void gather(const job *j, const stretch *c, int64_t row, bool touches, void *dst) {
    if (touches) {
        copy_run(j, dst, element(j, row, c->k), c->valid);
        return;
    }
    uint32_t words[STRETCH];
    uint16_t *halves = (uint16_t *)(void *)words;
    for (int64_t k = 0; k < c->valid; k++)
        if (j->source_size == sizeof *words)
            memcpy(words + k, element(j, row, c->k + k), sizeof *words);
        else
            memcpy(halves + k, element(j, row, c->k + k), sizeof *halves);
    copy_run(j, dst, words, c->valid);
}

static void pack_rows(const job *j, const stretch *c) {
    _Alignas(64) char stage[MAX_ROWS][STRETCH * MAX_SIZE];
    const void *row[MAX_ROWS];
    const bool touches = depth_touches(j->src, c->k, c->valid);
    const bool straight = touches && !j->widen && c->valid == c->depth;
    for (int64_t i = 0; i < j->r; i++) {
        row[i] = stage[i];
        if (i < c->rows && straight) {
            row[i] = element(j, c->row + i, c->k);
            continue;
        }
        const int64_t valid = i < c->rows ? c->valid : 0;
        memset(stage[i] + valid * j->size, 0, (size_t)((c->depth - valid) * j->size));
        if (valid > 0)
            gather(j, c, c->row + i, touches, stage[i]);
    }
    epi_pack_transpose(c->dst, row, j->r, (int)(c->depth / j->q), (size_t)(j->q * j->size));
}

/* The panel that starts at `row`, from depth k to `end`. */
static void pack_panel(const job *j, int64_t row, int64_t k, int64_t end, char *panel) {
    const int64_t rows = epi_min64(j->r, j->src->rows - row);
    const bool across = rows == j->r && (j->q == 1 || rows >= EPI_PACK_ZIP) && rows_touch(j->src, row, rows);
    for (; k < end; k += STRETCH) {
        const int64_t depth = epi_min64(STRETCH, end - k);
        const int64_t valid = epi_max64(0, epi_min64(depth, j->src->k - k));
        const stretch c = {row, rows, k, depth, valid, panel + k * j->r * j->size};
        if (j->r == 1) {
            memset((char *)c.dst + valid * j->size, 0, (size_t)((depth - valid) * j->size));
            gather(j, &c, row, depth_touches(j->src, k, valid), c.dst);
        } else if (across && valid == depth)
            pack_across(j, &c);
        else
            pack_rows(j, &c);
    }
}

void epi_pack_panels(const epi_micro *micro, int r, int q, const epi_pack_source *src, void *dst) {
    const bool same = src->type == micro->type;
    const job j = {
        .src = src,
        .r = r,
        .q = q,
        .source_size = (int64_t)epi_dtype_size(src->type),
        .size = (int64_t)epi_dtype_size(micro->type),
        .widen = same                    ? NULL
                 : src->type == EPI_BF16 ? epi_widen_bf16
                                         : micro->widen_f16,
    };
    const int64_t depth = epi_round_up(src->k, micro->depth);
    /* Rows that touch share cache lines and pages across panels, so all panels take one stretch of
       them before any takes the next. */
    const int64_t span = rows_touch(src, 0, src->rows) ? epi_round_up(ACROSS, j.q) : epi_max64(depth, 1);
    for (int64_t k = 0; k < depth; k += span)
        for (int64_t row = 0; row < src->rows; row += j.r)
            pack_panel(&j, row, k, epi_min64(k + span, depth), (char *)dst + row * depth * j.size);
}

void epi_pack(const epi_micro *micro, int side, const epi_pack_source *src, void *dst) {
    if (side == EPI_SIDE_A)
        epi_pack_panels(micro, micro->mr, micro->ka, src, dst);
    else
        epi_pack_panels(micro, micro->nr, micro->kb, src, dst);
}

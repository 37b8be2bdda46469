/* gemm_dequant.c: few-bit operands as f32: (q - z)*s + m. The elements q are in bytes, one or two in each.
 * The parts s, z and m are constant along a piece of the depth. */
#include "cpu/product/gemm_internal.h"

#include <math.h>

static const int *nodes_of(const epi_dequant *d, int nodes[PARTS]) {
    nodes[PART_SCALE] = d->scale;
    nodes[PART_ZERO] = d->zero;
    nodes[PART_OFFSET] = d->offset;
    return nodes;
}

int64_t epi_gemm_parts(const epi_gemm *g) {
    int64_t count = 0;
    for (int side = 0; side < g->operands; side++)
        count += g->on_load[side] ? PARTS : 0;
    return count;
}

void epi_gemm_count_halves(epi_ref *ref) {
    const int last = ref->axes.count - 1;
    ref->axes.at[last].shift++;
    for (int i = 0; i < last; i++)
        ref->strides[i] *= 2;
}

/* Along the last axis, whose bytes may lie apart, each byte is a digit of its own. */
epi_walk epi_gemm_depth_of_halves(const epi_ref *ref, const epi_axes *depth, const int64_t *sizes) {
    const epi_axis last = ref->axes.at[ref->axes.count - 1];
    epi_walk walk = {0};
    for (int i = 0; i < depth->count; i++) {
        const int64_t size = epi_axis_size(depth->at[i], sizes), stride = epi_ref_stride(ref, depth->at[i]);
        const bool halves = epi_axis_equal(depth->at[i], last);
        epi_walk_add(&walk, halves ? size / 2 : size, halves ? 2 * stride : stride);
        if (halves)
            epi_walk_add(&walk, 2, 1);
    }
    return walk;
}

/* Depth that has a part in common, where groups of the depth follow each other in memory: 0: they do not. */
static int64_t group_of(const lowbit_part *part, int64_t kc) {
    const epi_walk *w = &part->depth;
    const epi_dtype type = part->ref.type;
    if (type != EPI_F32 && type != EPI_F16 && type != EPI_BF16 && type != EPI_I8 && type != EPI_U8)
        return 0;
    if (w->count == 0 || (w->count == 1 && w->stride[0] == 0))
        return kc * INT32_MAX; /* all of it */
    return w->count == 2 && w->stride[0] == 1 && w->stride[1] == 0 ? w->size[1] : 0;
}

/* Can the micro-kernel take the operand as it lies? Its depth is one run, and all parts have the same groups. */
static epi_micro_bits find_bits(const gemm_run *r, int side) {
    const epi_gemm *g = r->g;
    const epi_dequant *d = &g->dequant[side];
    const epi_walk *depth = &r->depth[side];
    const int64_t kc = g->micro->kc;
    int64_t group = 0;
    bool fits = g->micro->direct.bits && depth->count == 1 && depth->stride[0] == 1 &&
                g->k[term_of(g, side)] % EPI_MICRO_GROUP == 0 &&
                (r->ref[side].type == EPI_I8 || r->ref[side].type == EPI_U8);
    epi_micro_bits bits = {.bits = d->bits,
                           .is_signed = d->bits == 4 ? d->is_signed : r->ref[side].type == EPI_I8};
    for (int i = 0; i < PARTS; i++) {
        const lowbit_part *part = &r->parts[side][i];
        const int64_t own = part->ref.data ? group_of(part, kc) : group;
        fits &= !part->ref.data || (own && (!group || own == group));
        group = own;
        bits.type[i] = part->ref.type;
    }
    group = group ? group : kc * INT32_MAX;
    fits &= group % EPI_MICRO_GROUP == 0 && (kc % group == 0 || group % kc == 0);
    bits.group = fits ? group : 0;
    return bits;
}

epi_micro_bits epi_gemm_bits(const gemm_run *r, int from, int64_t tile, int64_t k,
                             const void *parts[][EPI_TILE_N]) {
    const int64_t first = first_row(r, EPI_SIDE_B, tile), cols = tile_rows(r, EPI_SIDE_B, tile);
    epi_micro_bits bits = r->bits[from];
    int64_t offset[EPI_TILE_N];
    bits.first = k;
    for (int i = 0; i < PARTS; i++) {
        const lowbit_part *part = &r->parts[from][i];
        const int64_t size = (int64_t)epi_dtype_size(part->ref.type);
        if (part->ref.data)
            epi_gemm_offsets(&part->cols, first, cols, offset);
        for (int64_t j = 0; j < cols && part->ref.data; j++)
            parts[i][j] = part->ref.data + offset[j] * size;
        bits.part[i] = part->ref.data ? parts[i] : NULL;
    }
    return bits;
}

void epi_gemm_find_parts(gemm_run *r, const epi_ref *homes) {
    const epi_gemm *g = r->g;
    const int64_t *sizes = g->epilogue.tile.spec->sizes;
    lowbit_part *part = (lowbit_part *)(void *)(r->scratch + g->dequants);
    for (int side = 0; side < g->operands; side++) {
        int nodes[PARTS];
        if (!g->on_load[side])
            continue;
        r->parts[side] = part;
        nodes_of(&g->dequant[side], nodes);
        for (int i = 0; i < PARTS; i++, part++) {
            *part = (lowbit_part){0};
            if (nodes[i] == EPI_NO_NODE)
                continue;
            part->ref = homes[nodes[i]];
            part->rows = epi_walk_axes(&part->ref, &g->plan.rows, sizes);
            part->depth = epi_walk_axes(&part->ref, depth_of(g, side), sizes);
            part->cols = epi_columns_of(&g->plan, &part->ref, sizes, g->epilogue.tile.acc_scale);
        }
        r->bits[side] = find_bits(r, side);
    }
}

void epi_gemm_move_parts(gemm_run *r, const epi_ref *homes, const epi_axes *batch, int64_t number) {
    int nodes[PARTS];
    for (int i = 0; i < PARTS && r->parts[EPI_SIDE_B]; i++) {
        lowbit_part *part = &r->parts[EPI_SIDE_B][i];
        if (!part->ref.data)
            continue;
        epi_walk walk = epi_walk_axes(&part->ref, batch, r->g->epilogue.tile.spec->sizes);
        part->ref.data = homes[nodes_of(&r->g->dequant[EPI_SIDE_B], nodes)[i]].data +
                         epi_walk_offset(&walk, number) * (int64_t)epi_dtype_size(part->ref.type);
    }
}

/* A part's number at a depth of a row or column; *run becomes no more than the depth from there on that has it. */
static float part_at(const gemm_run *r, const lowbit_part *part, int side, int64_t row, int64_t k,
                     int64_t *run) {
    const epi_walk *depth = &part->depth;
    const int last = depth->count - 1;
    const int64_t group = last < 0 ? INT64_MAX : depth->stride[last] == 0 ? depth->size[last] : 1;
    const int64_t at =
        (side == EPI_SIDE_A ? epi_walk_offset(&part->rows, row) : epi_columns_offset(&part->cols, row)) +
        epi_walk_offset(depth, k);
    float x;
    *run = epi_min64(*run, group - k % group);
    r->g->epilogue.strips->load(&x, part->ref.data + at * (int64_t)epi_dtype_size(part->ref.type),
                                part->ref.type, 1, 1);
    return x;
}

/* Of 4 bits: `sign` is 8 for two's complement, else 0. */
static float half_of(int x, int sign) {
    return (float)((x ^ sign) - sign);
}

/* Elements of a run of the depth, as they are. */
static void load_elements(const gemm_run *r, int from, int64_t at, int64_t n, float *to) {
    const epi_ref *ref = &r->ref[from];
    const unsigned char *bytes = ref->data + at / 2;
    const int sign = r->g->dequant[from].is_signed ? 8 : 0;
    if (r->g->dequant[from].bits == 8) {
        r->g->epilogue.strips->load(to, ref->data + at, ref->type, 1, n);
        return;
    }
    if (at % 2 && n > 0) {
        *to++ = half_of(*bytes++ >> 4, sign);
        n--;
    }
    for (int64_t i = 0; i < n / 2; i++) {
        to[2 * i] = half_of(bytes[i] & 15, sign);
        to[2 * i + 1] = half_of(bytes[i] >> 4, sign);
    }
    if (n % 2)
        to[n - 1] = half_of(bytes[n / 2] & 15, sign);
}

/* Where a row or column has depth k of an operand, in elements; *run becomes no more than those that follow there. */
static int64_t place_at(const gemm_run *r, int side, int from, int64_t row, int64_t k, int64_t *run) {
    const epi_walk *depth = &r->depth[from];
    const int last = depth->count - 1;
    const bool touches = last < 0 || depth->stride[last] == 1;
    const int64_t stretch = !touches ? 1 : last < 0 ? INT64_MAX : depth->size[last];
    *run = epi_min64(*run, stretch - k % stretch);
    return (side == EPI_SIDE_A ? epi_walk_offset(&r->rows[from], row)
                               : epi_columns_offset(&r->cols[from], row)) +
           epi_walk_offset(depth, k);
}

void epi_gemm_dequantise(const gemm_run *r, int side, int from, int64_t row, int64_t k, int64_t n,
                         float *to) {
    const lowbit_part *parts = r->parts[from];
    for (int64_t run; n > 0; n -= run, k += run, to += run) {
        float number[PARTS];
        run = n;
        const int64_t at = place_at(r, side, from, row, k, &run);
        for (int i = 0; i < PARTS; i++)
            number[i] = parts[i].ref.data ? part_at(r, &parts[i], side, row, k, &run) : 0;
        load_elements(r, from, at, run, to);
        for (int64_t i = 0; i < run && parts[PART_ZERO].ref.data; i++)
            to[i] -= number[PART_ZERO];
        for (int64_t i = 0; i < run && parts[PART_SCALE].ref.data; i++)
            to[i] *= number[PART_SCALE];
        for (int64_t i = 0; i < run && parts[PART_OFFSET].ref.data; i++)
            to[i] += number[PART_OFFSET];
    }
}

/* ---- both sides in integers ---- */

/* Is a part the same for EPI_MICRO_GROUP neighbours of the depth, from every multiple of it on? */
static bool is_alike(const epi_spec *spec, int part, const epi_axes *depth) {
    int64_t same = 1;
    for (int i = depth->count - 1; i >= 0 && part != EPI_NO_NODE; i--) {
        if (epi_axes_has_dim(&spec->graph->nodes[part].axes, depth->at[i].dim))
            return same % EPI_MICRO_GROUP == 0;
        same *= epi_axis_size(depth->at[i], spec->sizes);
    }
    return true;
}

bool epi_gemm_takes_integers(const epi_gemm *g, const epi_spec *spec, const epi_dtype *types) {
    const epi_axes *depth = &g->plan.depth;
    bool takes = g->plan.group == EPI_GROUP_NONE && g->terms == 1 && g->on_load[EPI_SIDE_A] &&
                 types[EPI_SIDE_A] == EPI_I8 && g->dequant[EPI_SIDE_A].bits == 8 &&
                 g->dequant[EPI_SIDE_A].zero == EPI_NO_NODE && g->dequant[EPI_SIDE_A].offset == EPI_NO_NODE &&
                 epi_axes_size(depth, spec->sizes) % EPI_MICRO_GROUP == 0;
    for (int side = 0; side < g->operands && takes; side++) {
        const epi_dequant *d = &g->dequant[side];
        takes = g->on_load[side] && (types[side] == EPI_I8 || types[side] == EPI_U8) &&
                (side == EPI_SIDE_A || d->bits == g->dequant[EPI_SIDE_B].bits);
        int nodes[PARTS];
        nodes_of(d, nodes);
        for (int i = 0; i < PARTS; i++)
            takes &= is_alike(spec, nodes[i], depth);
    }
    return takes;
}

/* A group of the depth of a row or column, as it is, and its parts. */
static void load_group(const gemm_run *r, int side, int from, int64_t row, int64_t k,
                       int32_t q[EPI_MICRO_GROUP], float number[PARTS]) {
    const lowbit_part *parts = r->parts[from];
    float wide[EPI_MICRO_GROUP];
    for (int64_t i = 0, run; i < EPI_MICRO_GROUP; i += run) {
        run = EPI_MICRO_GROUP - i;
        const int64_t at = place_at(r, side, from, row, k + i, &run);
        load_elements(r, from, at, run, wide + i);
    }
    for (int i = 0; i < EPI_MICRO_GROUP; i++)
        q[i] = (int32_t)wide[i];
    for (int i = 0; i < PARTS; i++) {
        int64_t any = EPI_MICRO_GROUP;
        number[i] = parts[i].ref.data ? part_at(r, &parts[i], side, row, k, &any) : i == PART_SCALE ? 1 : 0;
    }
}

/* Of every eight elements those at even depths come first where B has 4 bits. */
static int place_of_element(const epi_gemm *g, int i) {
    return g->dequant[EPI_SIDE_B].bits == 4 ? i / 8 * 8 + i % 2 * 4 + i % 8 / 2 : i;
}

void epi_gemm_pack_integers(const gemm_run *r, int64_t tile, int64_t k0, int64_t depth, unsigned char *to) {
    const int64_t first = first_row(r, EPI_SIDE_A, tile), rows = tile_rows(r, EPI_SIDE_A, tile);
    epi_micro_integers *out = (epi_micro_integers *)(void *)to;
    for (int64_t k = 0; k < depth; k += EPI_MICRO_GROUP)
        for (int64_t i = 0; i < r->g->direct_rows; i++, out++) {
            int32_t q[EPI_MICRO_GROUP];
            float number[PARTS];
            *out = (epi_micro_integers){0};
            if (i >= rows)
                continue;
            load_group(r, EPI_SIDE_A, EPI_SIDE_A, first + i, k0 + k, q, number);
            out->scale = number[PART_SCALE];
            for (int e = 0; e < EPI_MICRO_GROUP; e++) {
                out->q[place_of_element(r->g, e)] = (int8_t)q[e];
                out->sum += q[e];
            }
        }
}

void epi_gemm_multiply_integers(const gemm_run *r, int from, const int64_t tile[2], int64_t k0, int64_t depth,
                                const void *a, float *acc, bool add) {
    const int64_t first = first_row(r, EPI_SIDE_B, tile[1]), cols = tile_rows(r, EPI_SIDE_B, tile[1]),
                  rows = tile_rows(r, EPI_SIDE_A, tile[0]);
    for (int64_t j = 0; j < cols; j++) {
        float sum[EPI_TILE_M] = {0};
        const epi_micro_integers *x = a;
        for (int64_t k = 0; k < depth; k += EPI_MICRO_GROUP, x += r->g->direct_rows) {
            int32_t q[EPI_MICRO_GROUP];
            float number[PARTS];
            load_group(r, EPI_SIDE_B, from, first + j, k0 + k, q, number);
            for (int64_t i = 0; i < rows; i++) {
                int32_t exact = 0;
                for (int e = 0; e < EPI_MICRO_GROUP; e++)
                    exact += q[e] * x[i].q[place_of_element(r->g, e)];
                const float zero = number[PART_ZERO] * (float)x[i].sum,
                            offset = number[PART_OFFSET] * (float)x[i].sum;
                float y = (float)exact;
                y = y - zero;
                y = y * number[PART_SCALE];
                y = y + offset;
                sum[i] = fmaf(x[i].scale, y, sum[i]);
            }
        }
        for (int64_t i = 0; i < rows; i++)
            acc[i * EPI_TILE_N + j] = add ? sum[i] + acc[i * EPI_TILE_N + j] : sum[i];
    }
}

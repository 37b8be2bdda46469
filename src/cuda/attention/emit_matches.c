/* emit_matches.c: writes the equalities of attention's mask (documents) by tile: the kernel that computes
 * records of them before, and how attention reads these. */
#include "cuda/attention/design_attention.h"
#include "cuda/product/emit_gemm.h"

enum { ROWS = 64, WARPS = 8 }; /* of a record, and of a block of the kernel that makes them */

static epi_axes one(epi_axis axis) {
    return (epi_axes){.at = {axis}, .count = 1};
}

bool epi_matches_design(epi_attention_design *d) {
    const epi_attention *a = d->a;
    const epi_axes batch = epi_attention_batch(d), columns = one(d->stream.at[d->stream.count - 1]);
    d->match_batch = (epi_axes){0};
    for (int m = 0; m < a->match_count; m++) {
        epi_axes rest = epi_axes_without(&d->g->nodes[a->matches[m].column].axes, &columns);
        if (!epi_emit_lies(d->c, a->matches[m].row) || !epi_emit_lies(d->c, a->matches[m].column) ||
            !epi_axes_include(&batch, &rest))
            return false;
    }
    for (int i = 0; i < batch.count; i++) {
        bool has = false;
        for (int m = 0; m < a->match_count; m++)
            has |= epi_axes_find(&d->g->nodes[a->matches[m].row].axes, batch.at[i]) >= 0 ||
                   epi_axes_find(&d->g->nodes[a->matches[m].column].axes, batch.at[i]) >= 0;
        for (int b = 0; b < a->bound_count; b++)
            has |= d->starts[b] &&
                   epi_axes_find(&d->g->nodes[a->bounds[b].limit.term[0]].axes, batch.at[i]) >= 0;
        if (has)
            d->match_batch.at[d->match_batch.count++] = batch.at[i];
    }
    return a->match_count > 0;
}

/* Records of a batch, and batches, in this kernel's launches. */
static int64_t records_now(const epi_attention_design *d) {
    return epi_ceil_div(epi_open_now(d->c->spec->open, d->batch_rows), ROWS);
}

static int64_t batches_now(const epi_attention_design *d) {
    return epi_open_now(d->c->spec->open, epi_axes_size(&d->match_batch, d->c->spec->sizes));
}

/* Rows of all batches, as tiles count them. */
static int64_t padded_now(const epi_attention_design *d) {
    int tile = 64 * d->config.groups;
    return batches_now(d) * epi_round_up(epi_open_now(d->c->spec->open, d->batch_rows), tile);
}

/* Where what is stretched lies: the lists of 16 bytes a row, the runs of 8 bytes for 64, the origins. */
static int64_t stretched_at(const epi_attention_design *d, int which) {
    int64_t rows = padded_now(d);
    return d->match_records + (which > 0 ? 16 * rows : 0) + (which > 1 ? rows / 8 : 0);
}
enum { LISTS, RUNS, ORIGINS };
#define LAST_STRETCH "(1u << 31)" /* a bit of a list's last */

/* Behind the last record is room for those that rows would have which fill up the last tile: they are read,
 * and nothing comes of it. */
void epi_matches_place(epi_attention_design *d, epi_kernel_text *k) {
    d->match_records = epi_round_up(d->c->workspace, 256);
    for (int i = LISTS; i <= ORIGINS && d->stretched; i++) {
        int pointer = epi_emit_place(k, stretched_at(d, i));
        d->match_pointer = i == LISTS ? pointer : d->match_pointer;
        d->c->workspace = stretched_at(d, ORIGINS) + 4 * padded_now(d);
    }
    if (d->stretched)
        return;
    d->c->workspace = d->match_records + (batches_now(d) * records_now(d) + d->config.groups) * 16;
    d->match_pointer = epi_emit_place(k, d->match_records);
}

/* ---- what attention reads ---- */

static const char *put_records(const epi_attention_design *d) {
    return epi_emit_text(d->c, "((%s + %d) / %d)", epi_emit_int(d->c, d->batch_rows), ROWS - 1, ROWS);
}

void epi_matches_emit_record(const epi_attention_design *d, epi_text *out) {
    const epi_axes batch = epi_attention_batch(d);
    epi_ref ref = epi_ref_of_axes(&d->match_batch, d->c->spec->sizes);
    epi_walk walk = epi_walk_axes(&ref, &batch, d->c->spec->sizes);
    if (d->stretched) {
        epi_text_add(
            out,
            "// What the equalities of the mask leave to rows: see attention_stretches.cuh.\n"
            "#define LAST_STRETCH " LAST_STRETCH "\n"
            "DEV i64 match_row(const Params &P, int batch, int row) { return (%s) * BATCH_PAD + row; }\n"
            "DEV uint4 stretch_record(const Params &P, int batch, int row) { return fetch((const uint4 "
            "*)P.ptr[%d] + match_row(P, batch, row)); }\n"
            "DEV uint2 run_record(const Params &P, int batch, int row) { return fetch((const uint2 "
            "*)P.ptr[%d] + match_row(P, batch, row) / 64); }\n"
            "DEV int row_origin(const Params &P, int batch, int row) { return fetch((const int *)P.ptr[%d] "
            "+ match_row(P, batch, row)); }\n",
            epi_emit_walk(d->c, &walk, "batch"), d->match_pointer + LISTS, d->match_pointer + RUNS,
            d->match_pointer + ORIGINS);
        return;
    }
    epi_text_add(out,
                 "// What the equalities of the mask leave to 64 rows: see attention_matches.cuh.\n"
                 "DEV uint4 match_record(const Params &P, int batch, int n) {\n  return fetch((const uint4 "
                 "*)P.ptr[%d] + (%s) * %s + n);\n}\n",
                 d->match_pointer, epi_emit_walk(d->c, &walk, "batch"), put_records(d));
}

/* Of what some rows see, the least that holds all of their intervals; of what all see, what is in all. */
void epi_matches_emit_bound(bool whole, epi_text *out) {
    if (whole)
        epi_text_add(out, "#pragma unroll 1\n  for (int n = first / 64; n <= last / 64; n++) {\n"
                          "    const uint4 record = match_record(P, batch, n);\n"
                          "    from = max(from, (int)record.z);\n    to = min(to, (int)record.w);\n  }\n");
    else
        epi_text_add(out,
                     "  int least = COLUMNS, most = 0;\n"
                     "#pragma unroll 1\n  for (int n = first / 64; n <= last / 64; n++) {\n"
                     "    const uint4 record = match_record(P, batch, n);\n"
                     "    least = min(least, (int)record.x);\n    most = max(most, (int)record.y);\n  }\n"
                     "  from = max(from, least);\n  to = min(to, most);\n");
}

/* One side of all equalities, by number, of batches along these axes. */
static void put_values(const epi_attention_design *d, epi_kernel_text *k, const epi_axes *batch, bool rows,
                       epi_text *out) {
    const epi_emit_context *c = d->c;
    epi_axes along = one(rows ? d->rows.at[d->batch_axes] : d->stream.at[d->stream.count - 1]);
    epi_text_add(out, "template <int M> DEV float %s(const Params &P, int batch, int n) {\n",
                 rows ? "row_value" : "column_value");
    for (int m = 0; m < d->a->match_count; m++) {
        int node = rows ? d->a->matches[m].row : d->a->matches[m].column;
        epi_ref ref = epi_emit_ref(c, node, -1);
        epi_walk batches = epi_walk_axes(&ref, batch, c->spec->sizes),
                 values = epi_walk_axes(&ref, &along, c->spec->sizes);
        const char *at =
            epi_emit_text(c, "%s + %s", epi_emit_walk(c, &batches, "batch"), epi_emit_walk(c, &values, "n"));
        epi_text_add(out, "  if (M == %d) return %s;\n", m,
                     epi_emit_load(c, ref.type, epi_emit_pointer(k, node, -1), at));
    }
    epi_text_add(out, "  return 0.f;\n}\n");
}

/* Four columns of eight at a time: their loads are on their way together. */
void epi_matches_emit_bits(const epi_attention_design *d, epi_kernel_text *k, epi_text *out) {
    const epi_axes batch = epi_attention_batch(d);
    put_values(d, k, &batch, true, out);
    put_values(d, k, &batch, false, out);
    epi_text_add(out, "// Of a thread's elements of 64 columns, those whose values are equal.\n"
                      "DEV u32 matching(const Params &P, int batch, int row, int col, int t) {\n"
                      "  u32 bits = ~0u;\n");
    for (int m = 0; m < d->a->match_count; m++)
        epi_text_add(out,
                     "  {\n    const float r0 = row_value<%d>(P, batch, min(row, BATCH_ROWS - 1)), r1 = "
                     "row_value<%d>(P, batch, min(row + 8, BATCH_ROWS - 1));\n    u32 same = 0;\n"
                     "#pragma unroll 4\n    for (int u = 0; u < (STREAM < 64 ? STREAM : 64) / 8; u++) {\n"
                     "      const int n = col + 8 * u + 2 * (t & 3);\n"
                     "      const float x = column_value<%d>(P, batch, min(n, COLUMNS - 1)), y = "
                     "column_value<%d>(P, batch, min(n + 1, COLUMNS - 1));\n"
                     "      same |= (u32)((x == r0) | (y == r0) << 1 | (x == r1) << 2 | (y == r1) << 3) << 4 "
                     "* u;\n    }\n    bits &= same;\n  }\n",
                     m, m, m, m);
    epi_text_add(out, "  return bits;\n}\n");
}

/* ---- the kernel ahead ---- */

/* The same design with the batches of the records. */
static epi_attention_design ahead_of(const epi_attention_design *d) {
    epi_attention_design ahead = *d;
    ahead.rows = d->match_batch;
    ahead.rows.at[ahead.rows.count++] = d->rows.at[d->batch_axes];
    ahead.batch_axes = d->match_batch.count;
    return ahead;
}

epi_status epi_emit_matches(const epi_attention_design *d, epi_kernel_text *k, int64_t *blocks,
                            epi_error *err) {
    *k = (epi_kernel_text){.name = "attention_matches", .block = 32 * WARPS};
    const epi_attention_design ahead = ahead_of(d);
    int tile = d->stretched ? 64 * d->config.groups : ROWS;
    int to = epi_emit_place(k, d->match_records);
    epi_text own = {0}; /* pointers are asked for before their number is written down */
    if (d->stretched) {
        epi_emit_place(k, stretched_at(d, RUNS));
        epi_emit_place(k, stretched_at(d, ORIGINS));
        epi_bounds_emit_origin(&ahead, k, &own);
    }
    put_values(d, k, &d->match_batch, true, &own);
    put_values(d, k, &d->match_batch, false, &own);
    epi_emit_begin(d->c, k, "");
    epi_text_add(&k->source,
                 "#define STREAM %d\n#define COLUMNS %s\n#define BATCH_ROWS %s\n#define TILE_M %d\n"
                 "#define RECORDS ((BATCH_ROWS + TILE_M - 1) / TILE_M)\n#define PAD (RECORDS * TILE_M)\n"
                 "#define BLOCKS ((RECORDS + %d) / %d)\n#define MATCHES %d\n#define RECORDS_PTR %d\n"
                 "#define STRETCHES_PTR RECORDS_PTR\n#define LAST_STRETCH " LAST_STRETCH
                 "\n#define RUNS_PTR %d\n#define ORIGINS_PTR %d\n",
                 d->config.stream, epi_emit_int(d->c, d->columns), epi_emit_int(d->c, d->batch_rows), tile,
                 WARPS - 1, WARPS, d->a->match_count, to, to + RUNS, to + ORIGINS);
    epi_text_add(&k->source, "%s\n// ---- the records\n\n%s%s", epi_piece(&own),
                 epi_device_text("attention_ranges"),
                 epi_device_text(d->stretched ? "attention_stretches" : "attention_matches"));
    k->source.failed |= own.failed;
    epi_text_free(&own);
    *blocks = batches_now(d) *
              epi_ceil_div(epi_ceil_div(epi_open_now(d->c->spec->open, d->batch_rows), tile), WARPS);
    return epi_emit_end(k, err);
}

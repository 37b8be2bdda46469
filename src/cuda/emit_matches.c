/* emit_matches.c: the equalities of an attention's mask (documents), by tile: the kernel that makes records
 * of them ahead, and how attention reads these. */
#include "cuda/design_attention.h"

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

/* Behind the last record is room for those that rows would have which fill up the last tile: they are read,
 * and nothing comes of it. */
void epi_matches_place(epi_attention_design *d, epi_kernel_text *k) {
    d->match_records = epi_round_up(d->c->workspace, 256);
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

epi_status epi_emit_matches(const epi_attention_design *d, epi_kernel_text *k, int64_t *blocks,
                            epi_error *err) {
    *k = (epi_kernel_text){.name = "attention_matches", .block = 32 * WARPS};
    int to = epi_emit_place(k, d->match_records);
    for (int m = 0; m < d->a->match_count; m++) { /* asked for before their number is written down */
        epi_emit_pointer(k, d->a->matches[m].row, -1);
        epi_emit_pointer(k, d->a->matches[m].column, -1);
    }
    epi_emit_begin(d->c, k, "");
    epi_text_add(&k->source,
                 "#define STREAM %d\n#define COLUMNS %s\n#define BATCH_ROWS %s\n#define RECORDS %s\n"
                 "#define BLOCKS ((RECORDS + %d) / %d)\n#define MATCHES %d\n#define RECORDS_PTR %d\n",
                 d->config.stream, epi_emit_int(d->c, d->columns), epi_emit_int(d->c, d->batch_rows),
                 put_records(d), WARPS - 1, WARPS, d->a->match_count, to);
    put_values(d, k, &d->match_batch, true, &k->source);
    put_values(d, k, &d->match_batch, false, &k->source);
    epi_text_add(&k->source, "\n// ---- the records\n\n%s", epi_device_text("attention_matches"));
    *blocks = batches_now(d) * epi_ceil_div(records_now(d), WARPS);
    return epi_emit_end(k, err);
}

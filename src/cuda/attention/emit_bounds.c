/* emit_bounds.c: writes the bounds of attention's mask as source: which columns a range of rows sees, and
 * where a sequence begins. */
#include "cuda/attention/design_attention.h"

/* The position along an axis of the rows, as it is for the rows `first` to `last`: at its most, or at its
 * least. NULL: it is none of theirs. Rows count through several axes where they are those of a split variant:
 * the first grows with them, others are known of one row alone. */
static const char *put_position(const epi_attention_design *d, epi_axis axis, bool most) {
    const char *row = most ? "last" : "first", *alone = "";
    epi_axes rows = {0};
    for (int i = d->batch_axes; i < d->rows.count; i++)
        rows.at[rows.count++] = d->rows.at[i];
    int at = epi_axes_find(&rows, axis);
    if (at < 0)
        return NULL;
    if (at > 0)
        alone = epi_emit_text(d->c, "first < last ? %s : ",
                              most ? epi_emit_int(d->c, epi_axis_size(axis, d->c->spec->sizes) - 1) : "0");
    return epi_emit_text(d->c, "(float)(%s%s)", alone,
                         rows.count == 1 ? row : epi_emit_digit(d->c, &rows, at, row));
}

/* A term of a limit, as it is for the rows `first` to `last` of a batch: at its most or at its least; NULL
 * where that is not known. */
static const char *put_term(const epi_attention_design *d, epi_kernel_text *k, int node, bool most) {
    const epi_node *n = &d->g->nodes[node];
    epi_axes batch = epi_attention_batch(d);
    if (epi_emit_is_number(d->c, node))
        return epi_emit_node_number(d->c, node);
    const char *position = n->op == EPI_OP_INDEX ? put_position(d, n->over.at[0], most) : NULL;
    if (position)
        return position;
    if (!epi_axes_include(&batch, &n->axes))
        return NULL;
    if (n->op == EPI_OP_INDEX)
        return epi_emit_text(d->c, "(float)(%s)",
                             epi_emit_digit(d->c, &batch, epi_axes_find(&batch, n->over.at[0]), "batch"));
    if (!epi_emit_lies(d->c, node))
        return NULL;
    epi_ref ref = epi_emit_ref(d->c, node, -1);
    epi_walk w = epi_walk_axes(&ref, &batch, d->c->spec->sizes);
    return epi_emit_load(d->c, ref.type, epi_emit_pointer(k, node, -1), epi_emit_walk(d->c, &w, "batch"));
}

/* The whole limit; NULL where that is not known. */
static const char *put_linear(const epi_attention_design *d, epi_kernel_text *k, const epi_linear *l,
                              int most) {
    const char *sum = epi_emit_number(d->c, l->offset);
    for (int t = 0; t < l->count; t++) {
        const char *term = put_term(d, k, l->term[t], l->factor[t] * most > 0);
        if (!term)
            return NULL;
        sum = epi_emit_text(d->c, "%s %s %s", sum, l->factor[t] < 0 ? "-" : "+", term);
    }
    return sum;
}

/* The column behind the last that a limit lets through, or the first one. */
static const char *put_column(const epi_attention_design *d, const epi_linear *l, int sign, const char *sum) {
    bool up = (sign > 0) == l->strict, more = (sign > 0) != l->strict;
    return epi_emit_text(d->c, sign > 0 ? "__float2int_%s(%s)%s" : "__float2int_%s(-(%s))%s",
                         up ? "ru" : "rd", sum, more ? " + 1" : "");
}

void epi_bound_emit(const epi_attention_design *d, epi_kernel_text *k, const epi_bound *b, int most,
                    epi_text *out) {
    const char *limit = epi_attention_counts(d, b) ? put_linear(d, k, &b->limit, most) : NULL,
               *other = limit && b->other_is != EPI_OR_NOTHING ? put_linear(d, k, &b->other, most) : "0.f";
    if (!limit || !other) {
        epi_text_add(out, most > 0 ? "" : "  to = from;\n");
        return;
    }
    if (most < 0 && !d->exact) /* a limit that is no number hides everything */
        epi_text_add(out, "  if (!(fabsf(%s + (%s)) <= INF)) to = from;\n", limit, other);
    epi_text_add(out, "  ");
    if (b->other_is == EPI_OR_ROW)
        epi_text_add(out, "if (!(%s %s 0.f)) ", other, b->other.strict ? ">" : ">=");
    const char *column = put_column(d, &b->limit, b->sign, limit);
    if (b->other_is == EPI_OR_LIMIT)
        column = epi_emit_text(d->c, b->sign > 0 ? "max(%s, %s)" : "min(%s, %s)", column,
                               put_column(d, &b->other, b->sign, other));
    epi_text_add(out, b->sign > 0 ? "to = min(to, %s);\n" : "from = max(from, %s);\n", column);
}

/* Of the starts of a sequence the last. */
void epi_bounds_emit_origin(const epi_attention_design *d, epi_kernel_text *k, epi_text *out) {
    epi_text_add(out, "DEV int stream_origin(const Params &P, int batch) {\n  int from = 0;\n");
    for (int b = 0; b < d->a->bound_count; b++)
        if (d->starts[b])
            epi_bound_emit(d, k, &d->a->bounds[b], 1, out);
    epi_text_add(out, "  return min(from, COLUMNS);\n}\n");
}

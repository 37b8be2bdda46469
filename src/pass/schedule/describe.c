/* describe.c: describes a list of steps, in numbers and in words. */
#include "pass/analyse/cost.h"
#include "pass/analyse/recurrence.h"
#include "pass/schedule/tile_program.h"

static double count_of(const epi_steps *k, const epi_axes *axes) {
    return (double)epi_axes_size(axes, k->spec->sizes);
}

static double tensor_bytes(const epi_steps *k, int t) {
    return count_of(k, &k->spec->graph->tensors[t].axes) * (double)epi_dtype_size(k->spec->types[t]);
}

/* Bytes of a value when it is a tensor of its own. */
static double value_bytes(const epi_steps *k, int node) {
    const epi_node *n = &k->spec->graph->nodes[node];
    if (n->op == EPI_OP_INPUT)
        return tensor_bytes(k, n->tensor);
    if (epi_op_is_leaf(n->op))
        return 0;
    return count_of(k, &n->axes) * (double)epi_dtype_size(k->spec->type);
}

/* What an operation reads of an operand of so many bytes: all of it, but gather takes only some elements. */
static double read_of(const epi_steps *k, int node, int operand, double all) {
    const epi_node *n = &k->spec->graph->nodes[node];
    double taken = count_of(k, &n->axes), count = count_of(k, &k->spec->graph->nodes[n->arg[operand]].axes);
    return n->op == EPI_OP_GATHER && operand == 0 && taken < count ? all * (taken / count) : all;
}

/* Bytes of a value where it lies. */
static double home_bytes(const epi_steps *k, int node) {
    const epi_home *h = &k->homes[node];
    if (h->tensor >= 0)
        return tensor_bytes(k, h->tensor);
    return h->offset < 0 ? 0
                         : count_of(k, &k->spec->graph->nodes[node].axes) * (double)epi_dtype_size(h->type);
}

/* Of an operand where that lies. */
static double taken_bytes(const epi_steps *k, int node, int operand) {
    return read_of(k, node, operand, home_bytes(k, k->spec->graph->nodes[node].arg[operand]));
}

/* May the update take its operand's place? */
static bool is_in_place(const epi_steps *k, const epi_node *n, int node) {
    const epi_node *from = n->op == EPI_OP_UPDATE ? &k->spec->graph->nodes[n->arg[0]] : NULL;
    return from && from->op == EPI_OP_INPUT && epi_steps_in_place(k, k->homes[node].tensor, from->tensor);
}

/* A pass reads its operands, each once, and stores its value; an update in place stores what is new of it. */
static double pass_bytes(const epi_steps *k, const epi_step *s) {
    const epi_node *n = &k->spec->graph->nodes[s->node];
    double bytes = home_bytes(k, s->node);
    if (s->tensor < 0 && is_in_place(k, n, s->node)) {
        double along = (double)epi_max64(1, epi_axis_size(n->over.at[0], k->spec->sizes));
        return bytes / along + home_bytes(k, n->arg[1]) + home_bytes(k, n->arg[2]);
    }
    int output = s->tensor >= 0 ? k->spec->graph->tensors[s->tensor].node : s->node;
    if (s->tensor >= 0 && is_in_place(k, &k->spec->graph->nodes[output], output))
        return 0; /* the tile stores what is new */
    if (s->tensor >= 0)
        return bytes + tensor_bytes(k, s->tensor);
    for (int a = 0; a < 3; a++)
        if (n->arg[a] != EPI_NO_NODE && (a < 1 || n->arg[a] != n->arg[0]) &&
            (a < 2 || n->arg[a] != n->arg[1]))
            bytes += taken_bytes(k, s->node, a);
    return bytes;
}

/* What the kernel of a fused program loads of a value: as an operand of its product, because something on its
 * tile takes it, or because an output is a copy of it. */
static double loaded_bytes(const epi_steps *k, int node) {
    const epi_graph *g = k->spec->graph;
    const epi_placement *s = &k->plan.placement[node];
    double all = home_bytes(k, node), bytes = 0;
    if (!g->live[node] || g->nodes[node].op != EPI_OP_INPUT)
        return 0;
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (user == EPI_NO_NODE)
            bytes += s->tile ? all : 0;
        else if (epi_op_is_product(g->nodes[user].op) || node == k->plan.offsets ||
                 k->plan.placement[user].paged || k->plan.placement[user].on_load ||
                 k->plan.placement[user].tile)
            bytes += taken_bytes(k, user, uses.at[i].operand);
    }
    return bytes < all ? bytes : all;
}

/* A kernel loads each of its values once and stores its roots. */
static double kernel_bytes(const epi_steps *k, const epi_step *s) {
    const epi_graph *g = k->spec->graph;
    double bytes = 0;
    for (int r = 0; r < s->root_count; r++) {
        const epi_node *n = &g->nodes[s->roots[r].node];
        double all =
            s->roots[r].tensor >= 0 ? tensor_bytes(k, s->roots[r].tensor) : home_bytes(k, s->roots[r].node);
        bytes += n->op == EPI_OP_UPDATE
                     ? all / (double)epi_max64(1, epi_axis_size(n->over.at[0], k->spec->sizes))
                     : all;
    }
    for (int i = 0; i < g->node_count; i++)
        bytes += loaded_bytes(k, i);
    return bytes;
}

void epi_steps_count(const epi_steps *k, double partial_bytes, epi_kernel_info *out) {
    epi_spec_count(k->spec, out);
    out->bytes_fused = 2 * partial_bytes;
    for (int i = 0; i < k->count; i++)
        out->bytes_fused += k->at[i].plan ? kernel_bytes(k, &k->at[i]) : pass_bytes(k, &k->at[i]);
    if (k->spec->path == EPI_PATH_NAIVE || k->spec->path == EPI_PATH_REFERENCE)
        out->bytes_fused = out->bytes_unfused; /* plain loops, a value at a time */
}

void epi_spec_count(const epi_spec *spec, epi_kernel_info *out) {
    const epi_graph *g = spec->graph;
    const epi_steps only = {.spec = spec}, *k = &only;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (!g->live[i] || epi_op_is_leaf(n->op) || n->op == EPI_OP_ONCE)
            continue;
        if (epi_op_is_product(n->op))
            out->flops += epi_cost_flops(g, n, spec->sizes);
        else if (epi_ops[n->op].along == EPI_FOLDS)
            out->flops += count_of(k, &g->nodes[n->arg[0]].axes);
        else if (epi_op_is_map(n->op) || epi_op_draws(n->op) || epi_op_scans(n->op))
            out->flops += count_of(k, &n->axes);
        out->bytes_unfused += value_bytes(k, i);
        for (int a = 0; a < epi_ops[n->op].arity; a++)
            out->bytes_unfused += read_of(k, i, a, value_bytes(k, n->arg[a]));
    }
    for (int t = g->input_count; t < g->tensor_count; t++) /* plain copies */
        if (g->nodes[g->tensors[t].node].op == EPI_OP_INPUT)
            out->bytes_unfused += 2 * tensor_bytes(k, t);
}

/* What is made in a stage: before and after the mainloop everything, as each is a pass over memory; on the
 * tile what has a name. */
static void list_stage(const epi_steps *k, epi_text *out, const char *title, int which) {
    const epi_graph *g = k->spec->graph;
    int count = 0;
    for (int i = 0; i < g->node_count; i++) {
        const epi_placement *s = &k->plan.placement[i];
        const epi_node *n = &g->nodes[i];
        bool in = which == 0   ? s->before
                  : which == 1 ? s->tile && s->reduction <= EPI_REDUCE_LOCAL
                               : s->after;
        if (!in || (!n->name && which == 1) || epi_op_is_leaf(n->op))
            continue;
        epi_text_add(out, "%s%s", count++ ? ", " : title,
                     n->name ? epi_node_label(g, i).text : epi_node_expression(g, i).text);
    }
    if (count)
        epi_text_add(out, "\n");
}

static void describe_recurrence(const epi_steps *k, const epi_recurrence *r, epi_text *out) {
    const epi_graph *g = k->spec->graph;
    const epi_axes time = {1, {r->time}};
    epi_text_add(
        out, "a scan of products along %s = %ld%s, a state of %s = %ld by %s = %ld for each of %s = %ld\n",
        epi_axis_label(g, r->time).text, (long)count_of(k, &time), r->back ? " from its end" : "",
        epi_axes_label(g, &r->rows).text, (long)count_of(k, &r->rows), epi_axes_label(g, &r->cols).text,
        (long)count_of(k, &r->cols), epi_axes_label(g, &r->batch).text, (long)count_of(k, &r->batch));
    for (int t = 0; t < EPI_TAKE_COUNT; t++)
        if (r->out[t] != EPI_NO_NODE)
            epi_text_add(out, "%s leaves %s\n", epi_node_expression(g, r->out[t]).text,
                         t == EPI_TAKE_LAST ? "at the end" : "at each step");
}

void epi_steps_describe_recurrence(const epi_steps *k, epi_kernel_info *out) {
    const epi_recurrence *r = k->count ? k->plan.recurrence : NULL;
    if (!r)
        return;
    out->m = epi_axes_size(&r->batch, k->spec->sizes) * epi_axis_size(r->time, k->spec->sizes);
    out->n = epi_axes_size(&r->cols, k->spec->sizes);
    out->k = epi_axes_size(&r->rows, k->spec->sizes);
}

bool epi_steps_describe_pass(const epi_steps *k, epi_text *out) {
    const epi_graph *g = k->spec->graph;
    int node = k->plan.product;
    if (!k->count)
        epi_text_add(out, "nothing to do: no result has elements\n");
    if (k->count && k->plan.recurrence) {
        describe_recurrence(k, k->plan.recurrence, out);
        return true;
    }
    if (!k->count || k->plan.kind != EPI_KIND_PASS)
        return !k->count;
    if (g->nodes[node].op == EPI_OP_INPUT)
        epi_text_add(out, "a pass over memory: a copy into %.60s", g->tensors[g->input_count].name);
    else
        epi_text_add(out, "a pass over memory: %s%s", epi_node_expression(g, node).text,
                     is_in_place(k, &g->nodes[node], node) ? ", in place or into a copy" : "");
    for (int t = g->input_count + 1; t < g->tensor_count; t++)
        epi_text_add(out, ", %s", epi_node_expression(g, g->tensors[t].node).text);
    epi_text_add(out, "\n");
    return true;
}

/* "<= index(S) - 3" */
static void describe_limit(const epi_graph *g, const epi_linear *l, int sign, epi_text *out) {
    epi_text_add(out, "%s", sign > 0 ? (l->strict ? "<" : "<=") : (l->strict ? ">" : ">="));
    for (int i = 0; i < l->count; i++) {
        bool minus = l->factor[i] * sign < 0;
        epi_text_add(out, "%s%s", i ? (minus ? " - " : " + ") : (minus ? " -" : " "),
                     epi_node_expression(g, l->term[i]).text);
    }
    double offset = sign * l->offset;
    if (offset != 0 || !l->count)
        epi_text_add(out, l->count ? (offset < 0 ? " - %g" : " + %g") : " %g",
                     l->count && offset < 0 ? -offset : offset);
}

/* "index(R) <= prefix - 1", of a number of a row that is to be 0 at least. */
static void describe_row(const epi_graph *g, const epi_linear *l, epi_text *out) {
    epi_linear more = {.offset = l->offset, .strict = l->strict};
    int less = 0;
    for (int i = 0; i < l->count; i++)
        if (l->factor[i] < 0) {
            epi_text_add(out, "%s%s", less++ ? " + " : "", epi_node_expression(g, l->term[i]).text);
        } else {
            more.term[more.count] = l->term[i];
            more.factor[more.count++] = 1;
        }
    epi_text_add(out, less ? " " : "0 ");
    describe_limit(g, &more, 1, out);
}

/* "index(R) <= index(S) - 3" */
static void describe_bound(const epi_steps *k, const epi_bound *b, epi_text *out) {
    const epi_graph *g = k->spec->graph;
    const epi_axes *stream = &k->plan.attention->stream;
    if (b->flat)
        epi_text_add(out, "index(%s)*size(%s) + ", epi_axis_label(g, stream->at[0]).text,
                     epi_axis_label(g, b->axis).text);
    epi_text_add(out, "index(%s) ", epi_axis_label(g, b->axis).text);
    describe_limit(g, &b->limit, b->sign, out);
    if (b->other_is != EPI_OR_NOTHING)
        epi_text_add(out, " or ");
    if (b->other_is == EPI_OR_LIMIT)
        describe_limit(g, &b->other, b->sign, out);
    if (b->other_is == EPI_OR_ROW)
        describe_row(g, &b->other, out);
}

static void describe_attention(const epi_steps *k, epi_text *out) {
    const epi_attention *a = k->plan.attention;
    int products = a->term_count, outs = epi_attention_outs(a);
    epi_text_add(out, "attention over the stream %s = %ld%s, %d score product%s and %d value product%s\n",
                 epi_axes_label(k->spec->graph, &a->stream).text, (long)count_of(k, &a->stream),
                 a->row_max != EPI_NO_NODE ? " by online softmax" : "", products, products == 1 ? "" : "s",
                 outs, outs == 1 ? "" : "s");
    if (epi_attention_has_row_sum(a))
        epi_text_add(out, "and one value product that sums over the rows: %s\n",
                     epi_node_label(k->spec->graph, a->sums[outs].product).text);
    for (int i = 0; i < k->spec->graph->node_count; i++)
        if (k->plan.placement[i].paged)
            epi_text_add(out, "%s is read page by page\n", epi_node_expression(k->spec->graph, i).text);
    for (int i = 0; i < a->bound_count; i++) {
        epi_text_add(out, i ? " and " : "a row sees ");
        describe_bound(k, &a->bounds[i], out);
    }
    for (int i = 0; i < a->match_count; i++)
        epi_text_add(out, "%s%s == %s", i + a->bound_count ? " and " : "a row sees ",
                     epi_node_label(k->spec->graph, a->matches[i].row).text,
                     epi_node_label(k->spec->graph, a->matches[i].column).text);
    if (a->bound_count + a->match_count)
        epi_text_add(out, a->open_plan ? "\n" : ", as far as its mask allows\n");
}

void epi_steps_describe_shape(const epi_steps *k, epi_text *out) {
    const epi_graph *g = k->spec->graph;
    epi_axes batch = epi_plan_batch(&k->plan), of_batch = epi_plan_batch_rows(&k->plan);
    const epi_axes *groups[4] = {&batch, &of_batch, &k->plan.cols, &k->plan.depth};
    int count = 0;
    bool deep = epi_kinds[k->plan.kind].multiplies;
    static const char *const names[4] = {"batches", "rows", "columns", "depth"};
    for (int i = batch.count ? 0 : k->plan.rows.count || deep ? 1 : 2; i < (deep ? 4 : 3); i++)
        epi_text_add(out, "%s%s %s = %ld", count++ ? ", " : "", names[i], epi_axes_label(g, groups[i]).text,
                     (long)count_of(k, groups[i]));
    for (int i = 0; i < k->plan.added_count; i++)
        epi_text_add(out, " and %s = %ld", epi_axes_label(g, &k->plan.added_depth[i]).text,
                     (long)count_of(k, &k->plan.added_depth[i]));
    if (k->plan.group != EPI_GROUP_NONE)
        epi_text_add(out, ", %s in groups by %s", k->plan.group == EPI_GROUP_ROWS ? "rows" : "depth",
                     epi_node_label(g, k->plan.offsets).text);
    epi_text_add(out, k->plan.added_count           ? ", added up\n"
                      : k->plan.pair != EPI_NO_NODE ? ", two products side by side\n"
                                                    : "\n");
    for (int i = 0; i < g->node_count && k->plan.row_index != EPI_NO_NODE; i++)
        if (k->plan.placement[i].paged)
            epi_text_add(out, "%s is read through its index\n", epi_node_expression(g, i).text);
    for (int side = 0; side < epi_plan_operands(&k->plan); side++)
        if (k->plan.placement[epi_plan_operand(g, &k->plan, side)].on_load)
            epi_text_add(out, "an operand is computed from %s as it is loaded\n",
                         epi_node_label(g, epi_plan_source(g, &k->plan, side)).text);
    if (k->plan.attention)
        describe_attention(k, out);
}

/* "recurrences along T, 64 side by side, row after row from the last on; stored of the last step alone: s[B,D]" */
static void describe_scans(const epi_steps *k, epi_text *out) {
    const epi_graph *g = k->spec->graph;
    const epi_plan *plan = &k->plan;
    epi_axes rows = plan->rows;
    if (!plan->scan_inner)
        rows.count--;
    int64_t abreast = (int64_t)(count_of(k, &rows) * (plan->scan_inner ? 1 : count_of(k, &plan->cols)));
    epi_text_add(out, "recurrences along %s, %ld side by side, %s%s", epi_axis_label(g, plan->scan).text,
                 (long)abreast, plan->scan_inner ? "each along its row" : "row after row",
                 plan->scan_back ? ", from the end" : "");
    for (int i = 0, count = 0; i < g->node_count; i++)
        if (plan->placement[i].last)
            epi_text_add(out, "%s%s",
                         count++ ? ", " : "; only the last step is stored of: ", epi_node_label(g, i).text);
    epi_text_add(out, "\n");
}

void epi_steps_describe_stages(const epi_steps *k, int64_t row_partials, int64_t col_partials,
                               epi_text *out) {
    const epi_graph *g = k->spec->graph;
    const epi_kind_row *kind = &epi_kinds[k->plan.kind];
    if (k->plan.split != EPI_OP_COUNT)
        epi_text_add(out, "%s of %s are together in the %s\n", epi_ops[k->plan.split].text,
                     epi_axis_label(g, k->plan.fine).text, kind->unit);
    if (k->plan.scan_count)
        describe_scans(k, out);
    list_stage(k, out, kind->before, 0);
    list_stage(k, out, kind->on, 1);
    for (int i = 0; i < g->node_count; i++)
        if (k->plan.placement[i].moved)
            epi_text_add(out, "the tile stores %s, in place or into a copy\n",
                         epi_node_expression(g, i).text);
    for (int i = 0; i < g->node_count; i++) {
        epi_reduction reduction = k->plan.placement[i].reduction;
        if (k->plan.attention && reduction == EPI_REDUCE_ROWS)
            epi_text_add(out, "%s leaves the scores\n", epi_node_expression(g, i).text);
        else if (reduction == EPI_REDUCE_LOCAL)
            epi_text_add(out, "%s stays in the %s\n", epi_node_expression(g, i).text, kind->unit);
        else if (g->nodes[i].op == EPI_OP_MEAN && epi_reduced_with(g, k->plan.placement, i, EPI_OP_VAR) >= 0)
            epi_text_add(out, "%s leaves with its variance\n", epi_node_expression(g, i).text);
        else if (reduction != EPI_REDUCE_NONE)
            epi_text_add(out, "%s leaves as partials, %ld per result\n", epi_node_expression(g, i).text,
                         (long)(reduction == EPI_REDUCE_ROWS ? row_partials : col_partials));
    }
    list_stage(k, out, kind->after, 2);
}

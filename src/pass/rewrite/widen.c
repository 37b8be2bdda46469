/* widen.c: converts 8-bit operands before a product reads them.
 *
 * Few mainloops support 8-bit operands. A product for which one does (scaled.c) is marked, with operands of
 * the form q*s. For all other products the operands are converted. Every 8-bit number is also a number of
 * bf16, f16 and f32, so nothing is rounded. The target is the type of the other operand, or else the storage
 * type. A value computed from it before the product, such as its scale times it, is a value like any other,
 * and rounded where it is stored. If the backend supports it (`dequants`), the mainloop computes that value
 * while it loads the operand, and it is never in memory. */
#include "pass/rewrite/widen.h"

#include "pass/analyse/attention.h"
#include "pass/analyse/dequant.h"
#include "pass/analyse/scaled.h"
#include "pass/analyse/stored.h"

typedef struct widening {
    const epi_spec *spec;
    int scaled;      /* as in epi_widen_operands */
    epi_axes *depth; /* by node: of the first scaled product whose bits it is; that is how it will lie */
} widening;

/* The type in which an operand's elements are; of what is computed, the storage type. */
static epi_dtype type_of(const epi_spec *spec, int operand) {
    const epi_graph *g = spec->graph;
    const int source = epi_elements_source(g, operand);
    epi_dtype known = epi_stored_known(&g->nodes[source], spec->types);
    if (known == EPI_DTYPE_COUNT)
        known = epi_stored_bytes(g, source, spec->types);
    return known == EPI_DTYPE_COUNT ? spec->type : known;
}

bool epi_is_widened(const epi_spec *spec, int operand) {
    epi_dtype type = type_of(spec, operand);
    return !epi_dtype_is_operand(type) && epi_dtype_holds(EPI_BF16, type);
}

/* The conversion of an operand that meets another. Two of 8 bits meet in 16. */
static epi_op conversion(const epi_spec *spec, int other) {
    epi_dtype type = epi_is_widened(spec, other) ? EPI_BF16 : type_of(spec, other);
    if (epi_dtype_is_narrow(spec->type) || !epi_dtype_is_narrow(type))
        type = spec->type;
    return type == EPI_BF16 ? EPI_OP_BF16 : type == EPI_F16 ? EPI_OP_F16 : EPI_OP_F32;
}

/* The bits of a product of this depth: as they are, or a copy of them, which is the same conversion again. */
static int write_bits(epi_rewrite *r, const epi_scaled_operand *o, const epi_axes *depth) {
    epi_axes *first = &((widening *)r->ctx)->depth[o->bits];
    if (!first->count && !o->turned)
        *first = *depth;
    bool same = !o->turned && epi_axes_equal(first, depth);
    int bits = r->fresh[o->bits];
    if (same || epi_graph_failed(r->g))
        return bits;
    epi_node copy = {.op = o->type == EPI_E4M3 ? EPI_OP_E4M3 : EPI_OP_E5M2,
                     .arg = {bits, EPI_NO_NODE, EPI_NO_NODE},
                     .axes = r->g->nodes[bits].axes,
                     .place = r->g->nodes[bits].place};
    return epi_graph_rebuild(r->g, &copy, copy.arg); /* a builder would leave it out */
}

/* The product with its mark, of operands q*s. */
static int write_scaled(epi_rewrite *r, const epi_node *n, const epi_scaled_operand o[2]) {
    epi_node product = *n;
    product.scaled = true;
    for (int a = 0; a < 2; a++) {
        int scale = EPI_NO_NODE;
        for (int f = 0; f < o[a].factor_count; f++) {
            int factor = r->fresh[o[a].factors[f]];
            scale = f ? epi_graph_map2(r->g, EPI_OP_MUL, scale, factor) : factor;
        }
        int bits = write_bits(r, &o[a], &n->over);
        product.arg[a] = scale == EPI_NO_NODE ? bits : epi_graph_map2(r->g, EPI_OP_MUL, bits, scale);
    }
    return epi_graph_failed(r->g) ? EPI_NO_NODE : epi_graph_rebuild(r->g, &product, product.arg);
}

static int write_node(epi_rewrite *r, int node) {
    const widening *w = r->ctx;
    const epi_spec *spec = w->spec;
    const epi_node *n = &r->in->nodes[node];
    epi_scaled_operand operands[2];
    int kept[2];
    if (!epi_op_is_product(n->op))
        return EPI_NO_NODE;
    if (epi_scaled_find(spec, n, w->scaled, operands))
        return write_scaled(r, n, operands);
    if (!epi_is_widened(spec, n->arg[0]) && !epi_is_widened(spec, n->arg[1]))
        return EPI_NO_NODE;
    for (int a = 0; a < 2; a++)
        kept[a] = r->fresh[n->arg[a]];
    for (int a = 0; a < 2; a++)
        if (epi_is_widened(spec, n->arg[a]))
            r->fresh[n->arg[a]] = epi_graph_map1(r->g, conversion(spec, n->arg[1 - a]), kept[a]);
    int product = epi_graph_failed(r->g) ? EPI_NO_NODE : epi_graph_copy(r->g, n, r->fresh);
    for (int a = 0; a < 2; a++)
        r->fresh[n->arg[a]] = kept[a];
    return product;
}

static bool is_rewritten(const widening *w, int node) {
    const epi_node *n = &w->spec->graph->nodes[node];
    epi_scaled_operand operands[2];
    return epi_op_is_product(n->op) &&
           (epi_is_widened(w->spec, n->arg[0]) || epi_is_widened(w->spec, n->arg[1]) ||
            epi_scaled_find(w->spec, n, w->scaled, operands));
}

epi_status epi_widen_operands(epi_arena *arena, epi_spec *spec, int scaled, epi_error *err) {
    epi_spec before = *spec;
    widening w = {&before, scaled,
                  epi_arena_alloc(arena, ((size_t)spec->graph->node_count + 1) * sizeof *w.depth)};
    bool any = false;
    EPI_TRY(epi_has_memory(w.depth, err));
    for (int i = 0; i < spec->graph->node_count && !any; i++)
        any = spec->graph->live[i] && is_rewritten(&w, i);
    return any ? epi_graph_rewrite(arena, &spec->graph, write_node, &w, err) : EPI_OK;
}

/* ---- on load ---- */

enum { MOST_CHAIN = 24 }; /* operations of such an operand */

typedef struct marker {
    const epi_spec *spec;
    bool *kept;    /* by node: a product of attention takes it; */
    bool *attends; /* it is such a product, or a key or value, of a mainloop that converts these */
    bool *on_load; /* by node */
    bool *bytes;   /* by node: such a product reads its elements as they are */
    const epi_backend_limits *limits;
    const bool *ahead; /* by input; see widen.h */
} marker;

/* Elements of the product for each column of this operand, at most. */
static int64_t rows_beside(const marker *m, const epi_node *product, int operand) {
    epi_axes rows = epi_axes_without(&product->axes, &m->spec->graph->nodes[operand].axes);
    return epi_axes_size(&rows, m->spec->open ? m->spec->open->largest : m->spec->sizes);
}

/* Can the mainloop of this product load such an operand? Along its depth elements are neighbours in memory, and have a
 * scale in common. */
static bool may_load(const marker *m, int product, int operand, const epi_dequant *d) {
    const epi_graph *g = m->spec->graph;
    const epi_node *n = &g->nodes[product], *bytes = &g->nodes[d->bytes];
    const int parts[] = {d->scale, d->zero, d->offset};
    if (n->op != EPI_OP_MATMUL || n->scaled || !bytes->axes.count)
        return false;
    if (m->kept[operand])
        return m->attends[product] && m->attends[operand] && d->bits == 8 && d->scale == EPI_NO_NODE &&
               d->zero == EPI_NO_NODE && d->offset == EPI_NO_NODE;
    if (m->limits->dequant_rows && rows_beside(m, n, operand) > m->limits->dequant_rows)
        return false;
    const int last = bytes->axes.at[bytes->axes.count - 1].dim;
    for (int i = 0; i < 3; i++)
        if (parts[i] != EPI_NO_NODE && epi_axes_has_dim(&g->nodes[parts[i]].axes, last))
            return false;
    return epi_axes_has_dim(&n->over, last);
}

/* What lies between the operand and what is read, each once. False: more than such a form has. */
static bool list_chain(const epi_graph *g, int node, const epi_dequant *d, epi_node_list *chain) {
    const epi_node *n = &g->nodes[node];
    bool there =
        n->op == EPI_OP_CONST || node == d->bytes || node == d->scale || node == d->zero || node == d->offset;
    for (int i = 0; i < chain->count; i++)
        there |= chain->at[i] == node;
    if (there)
        return true;
    if (chain->count == MOST_CHAIN)
        return false;
    chain->at[chain->count++] = node;
    for (int a = 0; a < epi_node_operands(n); a++)
        if (!list_chain(g, n->arg[a], d, chain))
            return false;
    return true;
}

/* Does nothing want it but the chain, or of the operand itself products that can load it? */
static bool is_wanted_here(const marker *m, int node, const epi_node_list *chain, const epi_dequant *d) {
    epi_use_list uses = epi_graph_uses(m->spec->graph, node);
    for (int i = 0; i < uses.count; i++) {
        bool here = false;
        for (int c = 0; c < chain->count; c++)
            here |= uses.at[i].node == chain->at[c];
        here |=
            node == chain->at[0] && uses.at[i].node != EPI_NO_NODE && may_load(m, uses.at[i].node, node, d);
        if (!here)
            return false;
    }
    return true;
}

/* Is the value a result that is stored in another type? Whoever loads it loads that. */
static bool is_result_of_other(const epi_spec *spec, int node, epi_dtype type) {
    bool other = false;
    for (int t = spec->graph->input_count; t < spec->graph->tensor_count; t++)
        other |= spec->graph->tensors[t].node == node && spec->types[t] != type;
    return other;
}

/* Does the mainloop find these bytes in memory as they are? What an index chose of them is a value, in a type of
 * its own; attention may read it through the index. Two elements share a byte of u8: the quotient by 16 of any
 * other type is no half of its bits. */
static bool lies_in_bytes(const epi_spec *spec, const epi_dequant *d, bool attends) {
    const epi_graph *g = spec->graph;
    const epi_dtype type = type_of(spec, d->bytes);
    const int source = epi_elements_source(g, d->bytes);
    for (int from = d->bytes; from != source; from = g->nodes[from].arg[0])
        if ((g->nodes[from].op == EPI_OP_GATHER && !attends) || is_result_of_other(spec, from, type))
            return false;
    return epi_is_widened(spec, d->bytes) && (d->bits == 8 || type == EPI_U8) &&
           (g->nodes[source].op == EPI_OP_INPUT || !is_result_of_other(spec, source, type));
}

/* Would a product that made the operand of these bytes take more than the backend has? */
static bool is_ahead(const marker *m, int bytes) {
    const epi_graph *g = m->spec->graph;
    const epi_node *source = &g->nodes[epi_elements_source(g, bytes)];
    return m->ahead && (m->ahead[g->input_count] || (source->op == EPI_OP_INPUT && m->ahead[source->tensor]));
}

/* Is the operand made of few bits in memory? */
static bool is_of_bytes(const marker *m, int operand, bool attends, epi_dequant *d) {
    return epi_dequant_find(m->spec->graph, operand, d) && lies_in_bytes(m->spec, d, attends) &&
           d->bytes != operand && !is_ahead(m, d->bytes);
}

static bool mark_operand(marker *m, int operand) {
    const epi_graph *g = m->spec->graph;
    int room[MOST_CHAIN];
    epi_node_list chain = {room, 0};
    epi_dequant d;
    if (!is_of_bytes(m, operand, m->attends[operand], &d) || !list_chain(g, operand, &d, &chain))
        return false;
    for (int i = 0; i < chain.count; i++)
        if (!is_wanted_here(m, chain.at[i], &chain, &d))
            return false;
    for (int i = 0; i < chain.count; i++)
        m->on_load[chain.at[i]] = true;
    for (int from = d.bytes;; from = g->nodes[from].arg[0]) { /* what it is another name of lies so, too */
        m->bytes[from] = g->nodes[from].op != EPI_OP_INPUT;
        if (from == epi_elements_source(g, from))
            break;
    }
    return true;
}

/* Halves and rows of bytes that no view is found for are stored as bytes, too. */
static int write_marked(epi_rewrite *r, int node) {
    const marker *m = r->ctx;
    if (!m->on_load[node] && !m->bytes[node])
        return EPI_NO_NODE;
    int fresh = epi_graph_copy(r->g, &r->in->nodes[node], r->fresh);
    if (fresh == EPI_NO_NODE)
        return fresh;
    epi_node *n = &r->g->nodes[fresh];
    n->on_load = m->on_load[node];
    if (m->bytes[node] && !epi_ops[n->op].converts) {
        n->has_stored = true;
        n->stored = type_of(m->spec, node);
    }
    return fresh;
}

/* Marks the operands of attentions, and products, keys and values of those with an online softmax. */
static bool mark_attentions(epi_arena *arena, marker *m) {
    epi_attentions found = {0};
    if (m->limits->attention_most && !epi_attentions_find(arena, m->spec, m->limits, NULL, &found))
        return false;
    for (int i = 0; i < found.count; i++) {
        const epi_attention *a = &found.at[i];
        bool attends = m->limits->narrow_stream && a->row_max != EPI_NO_NODE;
        for (int t = 0; t < a->term_count; t++) {
            m->kept[a->terms[t].rows] = m->kept[a->terms[t].stream] = true;
            m->attends[a->terms[t].product] = m->attends[a->terms[t].stream] = attends;
        }
        for (int v = 0; v < a->sum_count; v++) {
            m->kept[a->sums[v].operand] = true;
            m->attends[a->sums[v].product] = m->attends[a->sums[v].operand] = attends;
        }
    }
    return true;
}

epi_status epi_widen_on_load(epi_arena *arena, epi_spec *spec, const epi_backend_limits *limits,
                             const bool *ahead, epi_error *err) {
    const epi_graph *g = spec->graph;
    size_t nodes = (size_t)g->node_count + 1;
    marker m = {spec,
                epi_arena_alloc(arena, nodes),
                epi_arena_alloc(arena, nodes),
                epi_arena_alloc(arena, nodes),
                epi_arena_alloc(arena, nodes),
                limits,
                ahead};
    bool any = false;
    EPI_TRY(epi_has_memory(m.kept && m.attends && m.on_load && m.bytes, err));
    epi_dequant d;
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < 2 && g->live[i] && g->nodes[i].op == EPI_OP_MATMUL; a++)
            any |= is_of_bytes(&m, g->nodes[i].arg[a], true, &d);
    if (!any)
        return EPI_OK;
    EPI_TRY(epi_has_memory(mark_attentions(arena, &m), err));
    any = false;
    for (int i = 0; i < g->node_count; i++)
        for (int a = 0; a < 2 && g->live[i] && g->nodes[i].op == EPI_OP_MATMUL; a++)
            any |= mark_operand(&m, g->nodes[i].arg[a]);
    return any ? epi_graph_rewrite(arena, &spec->graph, write_marked, &m, err) : EPI_OK;
}

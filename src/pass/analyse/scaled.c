/* scaled.c: finds products whose operands are e4m3 or e5m2 times a scale, in the form that a mainloop
 * supports.
 *
 *     (s*q) @ (t*r)     q, r    8 bits in memory, both with the depth innermost, in one order; else they are copied
 *                       s, t    the same for 128 neighbours of the depth; one of them, the columns', for 128
 *                               of its columns, too. Either may be missing
 *
 * Sums of 128 products are multiplied by both scales and added up in f32 (device/gemm_sm90.cuh). */
#include "pass/analyse/scaled.h"

#include "ir/stretch.h"
#include "pass/analyse/stored.h"

/* What q is another name, or a slice, of: a mainloop reads that as it lies. */
static int source_of(const epi_spec *spec, int node) {
    const epi_graph *g = spec->graph;
    epi_stretch part;
    while (g->nodes[node].op == EPI_OP_RENAME ||
           (g->nodes[node].op == EPI_OP_GATHER && epi_stretch_find(spec, node, &part)))
        node = g->nodes[node].arg[0];
    return node;
}

/* The type of 8 bits in which the value is in memory, or EPI_DTYPE_COUNT. */
static epi_dtype bits_of(const epi_spec *spec, int node) {
    epi_dtype type = epi_stored_known(&spec->graph->nodes[source_of(spec, node)], spec->types);
    return type == EPI_E4M3 || type == EPI_E5M2 ? type : EPI_DTYPE_COUNT;
}

/* The operand as bits and factors: what it is a product of, a few levels deep. */
static bool find_factors(const epi_spec *spec, int operand, epi_scaled_operand *out) {
    enum { MOST = 2 * EPI_SCALED_FACTORS };
    const epi_graph *g = spec->graph;
    int todo[MOST] = {operand}, count = 1;
    *out = (epi_scaled_operand){.bits = EPI_NO_NODE};
    while (count) {
        int node = todo[--count];
        const epi_node *n = &g->nodes[node];
        if (bits_of(spec, node) != EPI_DTYPE_COUNT && out->bits == EPI_NO_NODE) {
            out->bits = node;
            out->type = bits_of(spec, node);
        } else if (n->op == EPI_OP_MUL && !n->has_stored && count + 2 <= MOST) {
            todo[count++] = n->arg[1];
            todo[count++] = n->arg[0];
        } else {
            if (out->factor_count == EPI_SCALED_FACTORS)
                return false;
            out->factors[out->factor_count++] = node;
        }
    }
    return out->bits != EPI_NO_NODE && epi_axes_same_set(&g->nodes[out->bits].axes, &g->nodes[operand].axes);
}

/* Do these axes end with those of the depth, in their order? */
static bool ends_with(const epi_axes *lies, const epi_axes *depth) {
    bool ends = lies->count > depth->count;
    for (int i = 0; i < depth->count && ends; i++)
        ends = epi_axis_equal(lies->at[lies->count - depth->count + i], depth->at[i]);
    return ends;
}

/* Do the bits lie in another order than the product wants, as the tensor that they are? A value is stored as the first
 * product wants it, but views of one lie as they do. */
static bool lies_otherwise(const epi_spec *spec, int bits, const epi_axes *depth) {
    const epi_graph *g = spec->graph;
    int source = source_of(spec, bits);
    if (g->nodes[source].op == EPI_OP_INPUT)
        return !ends_with(&g->nodes[bits].axes, depth);
    for (int t = g->input_count; t < g->tensor_count; t++)
        if (g->tensors[t].node == bits)
            return !ends_with(&g->tensors[t].axes, depth);
    return source != bits;
}

/* The size of an axis as far as it is known to every kernel of the program. */
static int64_t known_size(const epi_spec *spec, epi_axis axis) {
    return epi_open_has(spec->open, axis.dim) ? 1 : epi_axis_size(axis, spec->sizes);
}

/* Are all factors the same for so many neighbours along these axes, the last of which is the fastest? */
static bool are_alike(const epi_spec *spec, const epi_scaled_operand *o, const epi_axes *along, int count) {
    int64_t same = 1;
    for (int i = along->count - 1; i >= 0; i--) {
        for (int f = 0; f < o->factor_count; f++)
            if (epi_axes_find(&spec->graph->nodes[o->factors[f]].axes, along->at[i]) >= 0)
                return same % count == 0;
        same *= known_size(spec, along->at[i]);
    }
    return true;
}

static bool share_axes(const epi_axes *a, const epi_axes *b) {
    bool share = false;
    for (int i = 0; i < a->count; i++)
        share |= epi_axes_has_dim(b, a->at[i].dim);
    return share;
}

bool epi_scaled_has_blocks(const epi_spec *spec, const epi_node *product, int operand, int same) {
    int scale = epi_scaled_factor(spec->graph, product, operand);
    epi_scaled_operand o = {.factors = {scale}, .factor_count = scale != EPI_NO_NODE};
    epi_axes own = spec->graph->nodes[epi_scaled_bits(spec->graph, product, operand)].axes;
    own = epi_axes_without(&own, &product->over);
    return are_alike(spec, &o, &own, same);
}

/* Is nothing asked for that has more digits than such sums: is no output as large as the product f32? */
static bool rounds_results(const epi_spec *spec, const epi_node *product) {
    const epi_graph *g = spec->graph;
    bool rounds = true;
    for (int t = g->input_count; t < g->tensor_count; t++)
        rounds &=
            epi_dtype_at(spec->types[t])->unit > 0 || !epi_axes_include(&g->tensors[t].axes, &product->axes);
    return rounds || epi_dtype_is_narrow(spec->type);
}

bool epi_scaled_find(const epi_spec *spec, const epi_node *product, int same, epi_scaled_operand out[2]) {
    const epi_graph *g = spec->graph;
    if (!same || product->op != EPI_OP_MATMUL || !rounds_results(spec, product))
        return false;
    epi_axes side[2];
    for (int a = 0; a < 2; a++) {
        side[a] = epi_product_side(g, product, a);
        if (!side[a].count || !find_factors(spec, product->arg[a], &out[a]))
            return false;
    }
    const epi_axes *depth = &product->over;
    int64_t deep = 1;
    for (int i = 0; i < depth->count; i++)
        deep *= known_size(spec, depth->at[i]);
    bool found = !share_axes(&side[0], &side[1]) && deep % same == 0, blocks = false;
    for (int a = 0; a < 2 && found; a++) {
        epi_axes own = epi_axes_without(&g->nodes[out[a].bits].axes, depth);
        out[a].turned = lies_otherwise(spec, out[a].bits, depth);
        found = are_alike(spec, &out[a], depth, same);
        blocks |= are_alike(spec, &out[a], &own, same);
    }
    return found && blocks;
}

/* relocate.c: computes a statistic of a product before the product.
 *
 *     sum(u*(p @ q), X) = sum(p*sum(u*q, X), K)        with X an axis of q alone, and K what p @ q sums over
 *
 * The left side needs the product, and is used along X again, so it costs a pass over the whole product. The
 * right side does not, if the inner sum is computed anyway. With a softmax p, o = sum(p*v, R) and d_p =
 * sum(d_o*v, E) it turns sum(p*d_p, R) into sum(d_o*o, E): FlashAttention's delta. With z = r*((h*g) @ w) it
 * turns sum(h*g*(dz @ w), D) into sum(dz*z, F)/r: the statistic of RMSNorm's backward.
 *
 * Neither u nor the other factors there have K, because the product is summed over K already.
 *
 * The inner sum is found by its factors. So it does not matter in which order they are written, nor where
 * vectors without X are multiplied in. */
#include "pass/rewrite/algebra.h"

/* A product that is at hand: sum(inside, over) times outside. */
typedef struct hand {
    int product, next; /* the next one in its bucket, or -1 */
    epi_monomial inside, outside;
} hand;

typedef struct search {
    epi_facts *facts;
    epi_graph *g;
    int *found, count; /* nodes that were there before */
    hand *hands;
    int hand_count, *bucket, bucket_count; /* a power of two */
    epi_visits visits;
} search;

/* ---- products at hand ---- */

/* The same for the same factors in any order. */
static int bucket_of(const search *s, const epi_monomial *inside) {
    uint64_t sum = 0;
    for (int i = 0; i < inside->count; i++)
        sum += epi_factor_hash(inside->at[i]);
    return (int)(sum & (uint64_t)(s->bucket_count - 1));
}

static epi_monomial product_form(search *s, const epi_node *n, bool *ok) {
    epi_monomial f = epi_flat_monomial(s->facts, n->arg[0]), by = epi_flat_monomial(s->facts, n->arg[1]);
    *ok = epi_flat_multiply(s->facts, &f, &by, 1);
    return f;
}

static void add_hand(search *s, int product) {
    const epi_node n = s->g->nodes[product];
    bool ok;
    epi_monomial all = product_form(s, &n, &ok);
    if (!ok || all.number == 0)
        return;
    hand *h = &s->hands[s->hand_count];
    *h = (hand){.product = product};
    h->inside = epi_monomial_having(s->g, &all, &n.over, &h->outside);
    int *bucket = &s->bucket[bucket_of(s, &h->inside)];
    h->next = *bucket;
    *bucket = s->hand_count++;
}

static const hand *find_hand(const search *s, const epi_monomial *inside, const epi_axes *over) {
    for (int i = s->bucket[bucket_of(s, inside)]; i >= 0; i = s->hands[i].next)
        if (epi_axes_same_set(&s->g->nodes[s->hands[i].product].over, over) &&
            epi_monomials_match(&s->hands[i].inside, inside))
            return &s->hands[i];
    return NULL;
}

/* ---- is the statistic one that its product's tile waits for? ---- */

/* Is it used along the axes that it was summed over, before another product? */
static bool feeds_back(search *s, int node, const epi_axes *over) {
    epi_visits_begin(&s->visits, node);
    for (int i; epi_visits_next(&s->visits, &i);) {
        epi_use_list uses = epi_graph_uses(s->g, i);
        for (int u = 0; u < uses.count; u++) {
            int user = uses.at[u].node;
            if (user == EPI_NO_NODE || s->g->nodes[user].op == EPI_OP_MATMUL)
                continue;
            if (epi_axes_meet(over, &s->g->nodes[user].axes))
                return true;
            epi_visit(&s->visits, user);
        }
    }
    return false;
}

/* ---- one statistic ---- */

static bool has_all(const epi_graph *g, int node, const epi_axes *axes) {
    return epi_axes_include(&g->nodes[node].axes, axes);
}

/* The only product among the factors that has all of these axes, with X in one operand alone: which factor,
 * or -1. *side is that operand. */
static int only_product(const epi_graph *g, const epi_monomial *f, const epi_axes *over, int *side) {
    int found = -1;
    for (int i = 0; i < f->count; i++)
        if (g->nodes[f->at[i].node].op == EPI_OP_MATMUL && !g->nodes[f->at[i].node].has_stored &&
            f->at[i].power == 1 && has_all(g, f->at[i].node, over)) {
            if (found >= 0)
                return -1;
            found = i;
        }
    if (found < 0)
        return -1;
    const epi_node *n = &g->nodes[f->at[found].node];
    *side = has_all(g, n->arg[0], over) ? 0 : 1;
    return has_all(g, n->arg[*side], over) && !epi_axes_meet(over, &g->nodes[n->arg[1 - *side]].axes) ? found
                                                                                                      : -1;
}

static epi_monomial without_factor(const epi_monomial *f, int at) {
    epi_monomial out = *f;
    epi_monomial_drop(&out, at);
    return out;
}

/* The operand of the product that lacks X: as it is, but for vectors that go out of its sum. */
static epi_monomial outer_operand(search *s, int node, const epi_axes *summed) {
    epi_monomial f = epi_flat_monomial(s->facts, node), others;
    epi_monomial_having(s->g, &f, summed, &others);
    return others.count || others.number != 1 ? f : epi_monomial_of(s->g, node, 1);
}

static bool of_weights(search *s, const epi_monomial *f) {
    bool all = true;
    for (int i = 0; i < f->count && all; i++) {
        const epi_fact *fact = epi_fact_of(s->facts, f->at[i].node);
        all = fact && fact->weights;
    }
    return all;
}

/* Has a factor one of these axes? */
static bool has_any(const epi_graph *g, const epi_monomial *f, const epi_axes *axes) {
    epi_monomial others;
    return epi_monomial_having(g, f, axes, &others).count > 0;
}

/* rest*term summed over X, as a sum over what the term's product sums over; false: the inner sum is neither
 * at hand nor of weights alone. */
static bool relocate_term(search *s, const epi_monomial *rest, const epi_monomial *term, const epi_axes *over,
                          epi_monomial *out) {
    epi_facts *facts = s->facts;
    epi_graph *g = s->g;
    int side, at = only_product(g, term, over, &side);
    if (at < 0)
        return false;
    const epi_node product = g->nodes[term->at[at].node];
    epi_monomial whole = *rest, others = without_factor(term, at), outer;
    if (has_any(g, rest, &product.over) || has_any(g, &others, &product.over))
        return false; /* what the product sums over is another axis there than around it */
    epi_monomial q = epi_flat_monomial(facts, product.arg[side]);
    epi_monomial p = outer_operand(s, product.arg[1 - side], &product.over);
    if (!epi_flat_multiply(facts, &whole, &others, 1) || !epi_flat_multiply(facts, &whole, &q, 1))
        return false;
    epi_monomial inner = epi_monomial_having(g, &whole, over, &outer);
    const hand *h = find_hand(s, &inner, over);
    if (!h && !of_weights(s, &inner))
        return false;
    for (int i = 0; h && i < h->outside.count;
         i++) { /* what the product at hand has more than the inner sum */
        const epi_fact *f = epi_fact_of(facts, h->outside.at[i].node);
        bool cancels = f && f->positive && epi_monomial_find(&outer, h->outside.at[i].node, 1) >= 0;
        if (h->outside.at[i].power > 0 && !cancels && !(f && f->divides))
            return false; /* it may be 0 */
    }
    epi_monomial core = h ? epi_monomial_of(g, h->product, 1) : epi_normal_sum(facts, &inner, over, NULL);
    if (!epi_flat_multiply(facts, &outer, &core, 1) ||
        (h && !epi_flat_multiply(facts, &outer, &h->outside, -1)) || !epi_flat_multiply(facts, &outer, &p, 1))
        return false;
    *out = epi_normal_sum(facts, &outer, &product.over, NULL);
    return !epi_graph_failed(g);
}

/* The statistic with the sum inside one of its factors taken apart, or EPI_NO_NODE. */
static int relocate_by(search *s, const epi_monomial *f, int factor, const epi_axes *over) {
    epi_monomial rest = without_factor(f, factor), terms[EPI_MOST_TERMS];
    int count = epi_flat_terms(s->facts, f->at[factor].node, terms);
    for (int i = 0; i < count; i++) {
        epi_monomial term = terms[i];
        if (!relocate_term(s, &rest, &term, over, &terms[i]))
            return EPI_NO_NODE;
    }
    if (!count)
        return EPI_NO_NODE;
    epi_monomial sum = epi_flat_add(s->facts, terms, count);
    return epi_graph_failed(s->g) ? EPI_NO_NODE : epi_graph_value(s->g, epi_monomial_build(s->g, &sum));
}

static int relocate(search *s, int node) {
    const epi_node n = s->g->nodes[node];
    epi_monomial f = epi_flat_monomial(s->facts, n.arg[0]);
    if (n.op == EPI_OP_MEAN && !epi_flat_over_sizes(s->facts, &f, &n.over))
        return EPI_NO_NODE;
    bool tried[EPI_MOST_FACTORS] = {false};
    for (int round = 0; round < f.count && !epi_graph_failed(s->g); round++) {
        int factor = -1, deepest = -1;
        for (int i = 0; i < f.count; i++) {
            const epi_fact *fact = epi_fact_of(s->facts, f.at[i].node);
            if (fact && !tried[i] && fact->depth > deepest)
                factor = i, deepest = fact->depth;
        }
        if (factor < 0)
            break;
        tried[factor] = true;
        if (f.at[factor].power != 1 || !has_all(s->g, f.at[factor].node, &n.over))
            continue;
        int value = relocate_by(s, &f, factor, &n.over);
        if (value != EPI_NO_NODE && !epi_reaches(s->facts, value, node, s->found, s->count))
            return value;
    }
    return EPI_NO_NODE;
}

int epi_relocate(epi_facts *facts, const bool *may, const bool *at_hand, int *found) {
    epi_graph *g = facts->g;
    int count = facts->finished, replaced = 0;
    search s = {.facts = facts, .g = g, .found = found, .count = count};
    for (s.bucket_count = 64; s.bucket_count < count; s.bucket_count *= 2)
        ;
    int products = 0;
    for (int i = 0; i < count; i++) {
        found[i] = EPI_NO_NODE;
        products += at_hand[i] && g->nodes[i].op == EPI_OP_MATMUL;
    }
    s.hands = epi_arena_alloc(g->arena, ((size_t)products + 1) * sizeof *s.hands);
    s.bucket = epi_arena_alloc(g->arena, (size_t)s.bucket_count * sizeof *s.bucket);
    if (!epi_visits_make(g->arena, count, &s.visits) || epi_graph_failed(g))
        return 0;
    for (int i = 0; i < s.bucket_count; i++)
        s.bucket[i] = -1;
    for (int i = count - 1; i >= 0; i--) /* of equal products the first */
        if (at_hand[i] && g->nodes[i].op == EPI_OP_MATMUL)
            add_hand(&s, i);
    for (int i = 0; i < count && !epi_graph_failed(g); i++) {
        const epi_node *n = &g->nodes[i];
        if (!may[i] || !epi_ops[n->op].adds)
            continue;
        epi_axes over = n->over;
        if (!feeds_back(&s, i, &over))
            continue;
        found[i] = relocate(&s, i);
        if (found[i] != EPI_NO_NODE && !g->nodes[found[i]].name && found[i] >= count)
            g->nodes[found[i]].name = g->nodes[i].name;
        replaced += found[i] != EPI_NO_NODE;
    }
    return replaced;
}

/* ---- a graph with values replaced ---- */

typedef struct copying {
    const epi_graph *in;
    int count;        /* nodes that were there before, and what stands for each */
    const int *found; /* or EPI_NO_NODE */
    bool cancels;
    epi_facts facts;          /* of the new graph */
    int *copy;                /* by node */
    epi_monomial **monomials; /* by node: a product with a replaced factor, so that it cancels; or NULL */
} copying;

static int instead_of(const copying *c, int node) {
    return node < c->count ? c->found[node] : EPI_NO_NODE;
}

static void keep_monomial(copying *c, int node, epi_monomial f) {
    epi_monomial *kept = epi_arena_alloc(c->facts.g->arena, sizeof *kept);
    if (kept)
        *(c->monomials[node] = kept) = f;
}

static epi_monomial operand_monomial(copying *c, int node) {
    return c->monomials[node] ? *c->monomials[node] : epi_monomial_of(c->facts.g, c->copy[node], 1);
}

/* A product with a factor that was replaced; false: it is none, or there is no room. */
static bool copy_product(copying *c, int node) {
    const epi_node *n = &c->in->nodes[node];
    bool two = epi_op_has_factors(n->op);
    if (n->has_stored || (!two && n->op != EPI_OP_NEG) ||
        (!c->monomials[n->arg[0]] && !(two && c->monomials[n->arg[1]])))
        return false;
    epi_monomial f = operand_monomial(c, n->arg[0]), by = {.number = -1};
    if (two)
        by = operand_monomial(c, n->arg[1]);
    if (!epi_flat_multiply(&c->facts, &f, &by, n->op == EPI_OP_DIV ? -1 : 1))
        return false;
    epi_graph *out = c->facts.g;
    c->copy[node] = epi_graph_stand_for(out, epi_monomial_build(out, &f), n);
    keep_monomial(c, node, f);
    return true;
}

static void copy_node(copying *c, int node) {
    epi_graph *out = c->facts.g;
    int instead = instead_of(c, node);
    out->place = c->in->nodes[node].place;
    if (instead != EPI_NO_NODE) {
        c->copy[node] = c->copy[instead];
        epi_graph_store_as(out, c->copy[node], &c->in->nodes[node]);
        if (c->cancels)
            keep_monomial(c, node, epi_flat_monomial(&c->facts, c->copy[instead]));
    } else if (!copy_product(c, node)) {
        c->copy[node] = epi_graph_copy(out, &c->in->nodes[node], c->copy);
    }
}

/* Its operands, the last one first, or what stands for it. */
static int list_needed(const void *ctx, int node, int *out) {
    const copying *c = ctx;
    int instead = instead_of(c, node),
        count = instead == EPI_NO_NODE ? epi_node_operands(&c->in->nodes[node]) : 1;
    for (int a = 0; a < count; a++)
        out[a] = instead == EPI_NO_NODE ? c->in->nodes[node].arg[count - 1 - a] : instead;
    return count;
}

void epi_replace(const epi_graph *in, int count, const int *found, bool cancels, epi_graph *out) {
    epi_arena *arena = out->arena;
    size_t nodes = (size_t)in->node_count + 1;
    copying c = {.in = in, .count = count, .found = found, .cancels = cancels, .facts = {.g = out}};
    c.copy = epi_arena_alloc(arena, nodes * sizeof *c.copy);
    c.monomials = epi_arena_alloc(arena, nodes * sizeof *c.monomials);
    int listed, *list = epi_list_needed(arena, in, count, list_needed, &c, &listed);
    if (!epi_graph_begin(out, in))
        return;
    if (!list)
        epi_graph_fail(out, "values stand for each other");
    for (int i = 0; i < listed && !epi_graph_failed(out); i++)
        copy_node(&c, list[i]);
    epi_graph_end(out, in, c.copy);
}

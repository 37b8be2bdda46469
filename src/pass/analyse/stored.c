/* stored.c: which values are stored in a type of their own, whatever their shape.
 *
 *   - The program gives it a type, converts it, or declares an output with the storage type: it has that
 *     type (f32 for i32, i64 and f64).
 *   - It may be stored in place of such a value: f32, unless the storage type holds all numbers of that
 *     type. Otherwise that value would be rounded. This holds if that value is computed from it by
 *     elementwise operations, splits or renames, or if it is that value moved, selected or negated.
 *   - An index or a random number: f32, because it must be exact.
 *   - An integer of more than 8 bits: f32, unless only a product uses it; i32 or i64 if f32 cannot hold it
 *     (has_stored, from pass/rewrite/integers.c).
 *   - A value computed from f32, integers, numbers and positions alone: f32, unless a product uses it, or it
 *     is such a value in 16 bits too. Nothing on the way was rounded, and a position or an angle must not
 *     be. */
#include "pass/analyse/stored.h"

#include <math.h>

#include "pass/analyse/integers.h"

typedef struct search {
    const epi_graph *g;
    const epi_dtype *types; /* by tensor, or NULL */
    bool *exact;            /* by node: an index, or a random number */
    bool *pure;             /* by node: nothing that it is made of is rounded to 16 bits */
    bool *few;              /* by node: its elements are among a few numbers that both 16-bit types have */
    bool *operand;          /* by node: a product takes it */
    bool *integer;          /* by node: it is an integer, and 16 bits may not hold it */
    epi_dtype *least;       /* by node: what the text says of it, or of values that are made of it, */
    epi_dtype *moved;       /* and of it, or of values whose elements it has */
} search;

/* Has the input 16 bits, or may it have? */
static bool is_rounded(const search *s, int tensor) {
    const epi_tensor_decl *t = &s->g->tensors[tensor];
    epi_dtype type = s->types ? s->types[tensor] : t->has_type ? t->type : t->axes.count ? EPI_BF16 : EPI_F32;
    return epi_dtype_is_narrow(type);
}

bool epi_is_few(const epi_node *n) {
    return epi_ops[n->op].signs ||
           (n->op == EPI_OP_CONST &&
            (isinf(n->value) || (fabs(n->value) <= 256 && n->value == rint(n->value))));
}

/* Is it one of these, or a choice among them? */
static bool is_few(const search *s, const epi_node *n) {
    return epi_is_few(n) || (n->op == EPI_OP_NEG && s->few[n->arg[0]]) ||
           (n->op == EPI_OP_WHERE && s->few[n->arg[1]] && s->few[n->arg[2]]);
}

/* What the text says of it; EPI_DTYPE_COUNT: nothing. Arithmetic is f32, which has all numbers that it makes
 * of types with more. */
static epi_dtype said_of(const epi_node *n) {
    const epi_op_row *row = &epi_ops[n->op];
    if (n->has_stored || !row->converts)
        return n->has_stored ? n->stored : EPI_DTYPE_COUNT;
    return epi_dtype_in_f32(row->type) ? row->type : EPI_F32;
}

epi_dtype epi_stored_known(const epi_node *n, const epi_dtype *types) {
    return n->op == EPI_OP_INPUT ? types[n->tensor] : said_of(n);
}

epi_dtype epi_stored_bytes(const epi_graph *g, int node, const epi_dtype *types) {
    epi_dtype type = EPI_DTYPE_COUNT;
    for (const epi_node *n = &g->nodes[node];; n = &g->nodes[n->arg[0]]) {
        bool updates = n->op == EPI_OP_UPDATE && !n->has_stored;
        epi_dtype known = epi_stored_known(updates ? &g->nodes[n->arg[2]] : n, types);
        if (known == EPI_DTYPE_COUNT || epi_dtype_size(known) > 1 ||
            (type != EPI_DTYPE_COUNT && known != type))
            return EPI_DTYPE_COUNT;
        type = known;
        if (!updates)
            return type;
    }
}

/* Does the storage type lose nothing of a value that the text says this of? If it is not known, it has at least
 * 16 bits. */
static bool keeps(epi_dtype storage, epi_dtype said) {
    return said == EPI_DTYPE_COUNT || epi_dtype_at(said)->size == 1 || epi_dtype_holds(storage, said);
}

/* The wider of what is said of two values; EPI_DTYPE_COUNT: nothing. */
static epi_dtype both_of(epi_dtype a, epi_dtype b) {
    return a == EPI_DTYPE_COUNT ? b : b == EPI_DTYPE_COUNT ? a : epi_dtype_wider(a, b);
}

static epi_dtype moved_type(const search *s, const epi_node *n) {
    epi_dtype said = said_of(n), type = said;
    for (int a = 0; a < epi_node_operands(n) && said == EPI_DTYPE_COUNT; a++)
        if (epi_ops[n->op].elements >> a & 1)
            type = both_of(type, s->moved[n->arg[a]]);
    return type;
}

/* Is nothing that its elements are, or are made of, rounded? What only chooses among them, as argmax does
 * among positions, may be. */
static bool is_pure(const search *s, const epi_node *n) {
    bool pure = n->op != EPI_OP_INPUT || !is_rounded(s, n->tensor), chosen = false;
    for (int a = 0; a < epi_node_operands(n); a++)
        chosen |= n->op == EPI_OP_WHERE && a && s->g->nodes[n->arg[a]].op != EPI_OP_CONST;
    for (int a = chosen; a < epi_node_operands(n); a++)
        pure &= s->pure[n->arg[a]];
    return pure;
}

/* Has it no more than 8 bits: is it a byte, or does it have elements of such alone? Both 16-bit types hold these. */
static bool is_byte(const search *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    if (n->op == EPI_OP_INPUT)
        return s->types
                   ? epi_dtype_size(s->types[n->tensor]) == 1
                   : s->g->tensors[n->tensor].has_type && epi_dtype_size(s->g->tensors[n->tensor].type) == 1;
    bool elements = epi_ops[n->op].elements != 0;
    for (int a = 0; a < epi_node_operands(n); a++)
        if (epi_ops[n->op].elements >> a & 1)
            elements &= !s->integer[n->arg[a]];
    return elements;
}

/* From what its operands are. */
static void find_made(search *s) {
    for (int i = 0; i < s->g->node_count; i++) {
        const epi_node *n = &s->g->nodes[i];
        s->moved[i] = moved_type(s, n);
        s->few[i] = is_few(s, n);
        s->pure[i] = is_pure(s, n);
        s->integer[i] &= !s->few[i] && !is_byte(s, i);
    }
}

/* Are elements of this operand elements of the result, or made into such one by one? */
static bool is_elementwise(const epi_node *user, int operand) {
    const epi_op_row *row = &epi_ops[user->op];
    return (row->along == EPI_ELEMENTWISE || row->along == EPI_MOVES) && operand != epi_op_index(user->op);
}

bool epi_is_operand(const epi_graph *g, epi_use use) {
    return epi_op_is_product(g->nodes[use.node].op) && use.operand < 2;
}

bool epi_feeds_product(const epi_graph *g, int node) {
    epi_use_list uses = epi_graph_uses(g, node);
    for (int i = 0; i < uses.count; i++)
        if (uses.at[i].node != EPI_NO_NODE && epi_is_operand(g, uses.at[i]))
            return true;
    return false;
}

/* Does the text say its type, or that of an output that it is, in the type of storage? */
static bool is_said(const search *s, int node, epi_dtype storage) {
    epi_use_list uses = epi_graph_uses(s->g, node);
    bool said = said_of(&s->g->nodes[node]) != EPI_DTYPE_COUNT;
    for (int i = 0; i < uses.count; i++) {
        const epi_tensor_decl *t = uses.at[i].node == EPI_NO_NODE ? &s->g->tensors[uses.at[i].operand] : NULL;
        said |= t && t->has_type && t->type == storage;
    }
    return said;
}

/* Does a state decay by it, step by step? Digits that it lacks are lost of all steps. */
static bool is_decay(const epi_node *user, int operand) {
    return epi_op_scans(user->op) && operand == 0;
}

/* Is it a number of two states, as the gradient to a decay is? There are few of these, and each is a long sum. */
static bool is_of_states(const epi_graph *g, const epi_node *n) {
    const epi_node *m = n->op == EPI_OP_SUM ? &g->nodes[n->arg[0]] : NULL;
    int scans = 0;
    for (int a = 0; a < 2 && m && m->op == EPI_OP_MUL; a++) {
        const epi_node *of = &g->nodes[m->arg[a]];
        of = of->op == EPI_OP_SHIFT ? &g->nodes[of->arg[0]] : of;
        scans += epi_op_scans(of->op);
    }
    return scans == 2;
}

/* From what its users are. */
static void learn(search *s, int node, epi_dtype storage) {
    const epi_node *n = &s->g->nodes[node];
    epi_use_list uses = epi_graph_uses(s->g, node);
    s->exact[node] = epi_op_draws(n->op) || epi_op_gives_places(n->op) || is_of_states(s->g, n);
    bool taken = false, said = is_said(s, node, storage);
    s->least[node] = said_of(n);
    for (int i = 0; i < uses.count; i++) {
        int at = uses.at[i].node;
        if (at == EPI_NO_NODE)
            continue; /* an output has its own type */
        const epi_node *user = &s->g->nodes[at];
        bool view = epi_op_is_view(user->op);
        s->exact[node] |= epi_op_wants_exact(user->op, uses.at[i].operand);
        s->exact[node] |= (view || user->op == EPI_OP_SHIFT) && s->exact[at];
        s->exact[node] |= is_decay(user, uses.at[i].operand);
        taken |= epi_is_operand(s->g, uses.at[i]) || (view && s->operand[at]);
        if (!said && is_elementwise(user, uses.at[i].operand))
            s->least[node] = both_of(s->least[node], s->least[at]);
    }
    s->operand[node] = taken;
}

epi_dtype *epi_stored_find(epi_arena *arena, const epi_graph *g, const epi_dtype *types, epi_dtype storage) {
    size_t nodes = (size_t)g->node_count + 1;
    search s = {.g = g, .types = types};
    epi_dtype *said = epi_arena_alloc(arena, nodes * sizeof *said);
    s.exact = epi_arena_alloc(arena, nodes);
    s.pure = epi_arena_alloc(arena, nodes);
    s.few = epi_arena_alloc(arena, nodes);
    s.operand = epi_arena_alloc(arena, nodes);
    s.integer = epi_integers_kinds(arena, g, types);
    s.least = epi_arena_alloc(arena, nodes * sizeof *s.least);
    s.moved = epi_arena_alloc(arena, nodes * sizeof *s.moved);
    if (!said || !s.exact || !s.pure || !s.few || !s.operand || !s.integer || !s.least || !s.moved)
        return NULL;
    find_made(&s);
    for (int i = g->node_count - 1; i >= 0; i--) { /* users come first */
        const epi_node *n = &g->nodes[i];
        learn(&s, i, storage);
        epi_dtype least = both_of(s.least[i], s.moved[i]);
        /* on the tile that it is compared on, what is made once is f32: whoever loads it sees the same */
        bool f32 = s.exact[i] || n->op == EPI_OP_ONCE ||
                   ((s.pure[i] || s.integer[i]) && !s.operand[i] && !s.few[i]) || !keeps(storage, least);
        bool place = epi_op_gives_places(n->op);
        said[i] = n->op == EPI_OP_UPDATE && types ? epi_stored_bytes(g, i, types) : said_of(n);
        if (said[i] == EPI_DTYPE_COUNT)
            said[i] = said_of(n);
        if (s.integer[i] && epi_dtype_is_narrow(said[i]))
            said[i] = EPI_F32; /* whoever said it */
        if (said[i] == EPI_DTYPE_COUNT)
            said[i] = place ? EPI_I32 : f32 ? EPI_F32 : EPI_DTYPE_COUNT;
    }
    return said;
}

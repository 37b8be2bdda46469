/* design_scores.c: what an attention kernel computes from its scores: which functions there are, their
 * arguments and results, which factors are left to others, and which columns come with a tile. */
#include <math.h>
#include <string.h>

#include "cuda/attention/design_attention.h"

/* Does this value, made of what is given, need the other value? Not past `stop`. */
static bool needs(const epi_tile_program *t, int value, int other, int stop, bool *needed) {
    memset(needed, 0, (size_t)t->value_count);
    needed[value] = true;
    for (int i = t->instr_count - 1; i >= 0; i--)
        for (int a = 0; a < 3; a++)
            if (t->instrs[i].dst >= 0 && needed[t->instrs[i].dst] && t->instrs[i].dst != stop &&
                t->instrs[i].arg[a] >= 0)
                needed[t->instrs[i].arg[a]] = true;
    return needed[other];
}

/* How many values are looked at, at most: each as often as it is used. */
enum { MOST_LOOKED_AT = 64 };

/* A number that is known before the launch. */
static bool find_constant(const epi_emit_context *c, int node, int *looks, double *out) {
    const epi_node *n = &c->spec->graph->nodes[node];
    double v[3] = {0};
    if (epi_emit_is_number(c, node)) {
        *out = n->op == EPI_OP_CONST ? n->value : (double)epi_axis_size(n->over.at[0], c->spec->sizes);
        return !epi_emit_is_open_number(c, node);
    }
    if (!epi_op_is_map(n->op) || n->axes.count || --*looks < 0)
        return false;
    for (int a = 0; a < epi_ops[n->op].arity; a++)
        if (!find_constant(c, n->arg[a], looks, &v[a]))
            return false;
    *out = epi_op_reference(n->op, v[0], v[1], v[2]);
    return true;
}

static bool constant_of(const epi_emit_context *c, int node, double *out) {
    int looks = MOST_LOOKED_AT;
    return find_constant(c, node, &looks, out);
}

/* A last multiplication of a value by a number above zero, behind conditions with `hidden` for what they
 * hide: the exponent can do it to scores, the result to weights. The instruction, or -1. */
static int find_scale(const epi_attention_design *d, const epi_tile_program *t, int value, double hidden,
                      double *scale) {
    for (;;) {
        int i = epi_tile_maker(t, value);
        const epi_instr *s = i >= 0 ? &t->instrs[i] : NULL;
        double other;
        if (!s || s->kind != EPI_INSTR_MAP || epi_tile_uses(t, value) > (s->dst == value ? 1 : 0))
            return -1;
        if (s->op == EPI_OP_WHERE && constant_of(d->c, t->values[s->arg[2]].node, &other) &&
            other == hidden) {
            value = s->arg[1];
            continue;
        }
        bool times = s->op == EPI_OP_MUL, by = s->op == EPI_OP_DIV && s->inverse;
        int number = by ? 1 : times && constant_of(d->c, t->values[s->arg[0]].node, &other) ? 0 : 1;
        if ((!times && !by) || !constant_of(d->c, t->values[s->arg[number]].node, &other) || !(other > 0))
            return -1;
        *scale = by ? 1 / other : other;
        return i;
    }
}

/* What is left out of scores or of the first sum's weights: the same in both tile programs. */
static void find_scales(epi_attention_design *d) {
    double scale[2] = {1, 1}, hidden = epi_attention_is_online(d) ? (double)-INFINITY : 0;
    bool may = epi_attention_is_online(d) || (!epi_attention_is_single(d) && !d->total_count);
    for (int which = 0; which < 2 && may; which++)
        d->scaled[which] = find_scale(d, &d->tile[which], d->weights[which][0], hidden, &scale[which]);
    if (d->scaled[0] < 0 || d->scaled[1] < 0 || scale[0] != scale[1])
        d->scaled[0] = d->scaled[1] = -1;
    d->scale = d->scaled[0] < 0 ? 1 : scale[0];
}

/* What crosses from a function of the first product alone to one of both, so that the first can run before
 * the second product is there: the second sum's weights, if nothing else is needed of the first product; for
 * one sum, the last value that everything else follows from. -1: there is none. */
static int find_boundary(const epi_attention_design *d, int which, bool *needed) {
    const epi_tile_program *t = &d->tile[which];
    int first = d->first, second = !d->first, end = d->weights[which][0], best = -1;
    for (int v = 0; v < t->value_count; v++) {
        if (v == first || v == second || !epi_value_is_full(&t->values[v]) ||
            (d->variant == EPI_ATTENTION_PAIR && v != d->weights[which][1]))
            continue;
        bool early = !needs(t, v, second, -1, needed), wanted = needs(t, end, v, v, needed);
        if (early && (wanted || d->variant == EPI_ATTENTION_PAIR) && !needed[first])
            best = v;
    }
    return best;
}

/* Is everything that is summed along the stream made of the first product alone, or of what crosses and of the second? */
static bool totals_cross(const epi_attention_design *d, int which, int boundary, bool *needed) {
    const epi_tile_program *t = &d->tile[which];
    for (int i = 0; i < d->total_count; i++) {
        int value = d->weights[which][d->total_of[i]];
        if (needs(t, value, !d->first, -1, needed) && needs(t, value, d->first, boundary, needed))
            return false;
    }
    return true;
}

/* Which function makes what is summed along the stream. */
static void share_totals(const epi_attention_design *d, int which, epi_attention_function *one,
                         epi_attention_function *two, bool *needed) {
    for (int i = 0; i < d->total_count; i++) {
        int value = d->weights[which][d->total_of[i]];
        bool early =
            epi_attention_is_single(d) || (d->split && !needs(&d->tile[which], value, !d->first, -1, needed));
        (early ? one : two)->totals[i] = value;
    }
}

/* The functions that make weights of scores, of cut tiles and of whole ones. */
static bool design_functions(epi_attention_design *d) {
    int boundary[2] = {-1, -1};
    bool *needed[2];
    d->split = true;
    for (int which = 0; which < 2; which++) {
        needed[which] = epi_arena_alloc(d->c->arena, (size_t)d->tile[which].value_count + 1);
        if (!needed[which])
            return false;
        if (!epi_attention_is_single(d))
            boundary[which] = find_boundary(d, which, needed[which]);
        d->split = d->split && boundary[which] >= 0 && totals_cross(d, which, boundary[which], needed[which]);
    }
    for (int which = 0; which < 2; which++) {
        const epi_gemm_design *p = which ? &d->whole : &d->cut;
        epi_attention_function *one = &d->first_part[which], *two = &d->second_part[which];
        *one = *two = (epi_attention_function){p, {d->first, -1}, {-1, -1}, false, {-1, -1, -1, -1}};
        share_totals(d, which, one, two, needed[which]);
        if (epi_attention_is_single(d)) {
            one->made[0] = d->weights[which][0];
            two->factor = d->a->factor != EPI_NO_NODE;
            two->made[0] = two->factor ? d->weights[which][1] : -1;
            continue;
        }
        two->given[1] = !d->first;
        two->made[1] = d->weights[which][0];
        if (d->split)
            one->made[0] = two->given[0] = boundary[which];
        else if (d->variant == EPI_ATTENTION_PAIR)
            two->made[0] = d->weights[which][1];
    }
    return true;
}

/* ---- divisions ---- */

/* exp(x - l)/z, where l and z are both one a row or both one a column: the exponential of x - (l + log(z)).
 * The instructions of the exponential, of the difference below it and of the division become one after
 * another where the division was. */
static bool fold_division(epi_arena *arena, epi_tile_program *t, int at, bool *folded) {
    const epi_instr *by = &t->instrs[at];
    if (by->kind != EPI_INSTR_MAP || by->op != EPI_OP_DIV || !by->inverse)
        return true;
    int power = epi_tile_maker(t, by->arg[0]),
        below = power < 0 ? -1 : epi_tile_maker(t, t->instrs[power].arg[0]);
    if (below < 0 || t->instrs[power].kind != EPI_INSTR_MAP || t->instrs[power].op != EPI_OP_EXP ||
        epi_tile_uses(t, by->arg[0]) != 1 || epi_tile_uses(t, t->instrs[power].arg[0]) != 1)
        return true;
    epi_instr less = t->instrs[below];
    bool muladd = less.kind == EPI_INSTR_MULADD && less.other < 0;
    if (!muladd && (less.kind != EPI_INSTR_MAP || less.op != EPI_OP_SUB))
        return true;
    int place = muladd ? 2 : 1;
    epi_tile_value l = t->values[less.arg[place]], z = t->values[by->arg[1]];
    if (epi_value_is_full(&l) || l.scale != z.scale || l.rows != z.rows)
        return true;
    epi_instr *instrs = epi_arena_alloc(arena, ((size_t)t->instr_count + 1) * sizeof *instrs);
    epi_tile_value *values = epi_arena_alloc(arena, ((size_t)t->value_count + 2) * sizeof *values);
    if (!instrs || !values)
        return false;
    memcpy(values, t->values, (size_t)t->value_count * sizeof *values);
    int log = t->value_count, both = log + 1, count = 0;
    values[log] = z;
    values[both] = l;
    for (int i = 0; i < t->instr_count; i++) {
        if (i != power && i != below && i != at)
            instrs[count++] = t->instrs[i];
        if (i != at)
            continue;
        epi_instr none = {.kind = EPI_INSTR_MAP, .tensor = -1, .arg = {-1, -1, -1}}, *s = &instrs[count];
        s[0] = s[1] = none;
        s[0].op = EPI_OP_LOG;
        s[0].node = z.node;
        s[0].dst = log;
        s[0].arg[0] = by->arg[1];
        s[1].op = EPI_OP_ADD;
        s[1].node = l.node;
        s[1].dst = both;
        s[1].arg[0] = less.arg[place];
        s[1].arg[1] = log;
        less.arg[place] = both;
        s[2] = less;
        s[3] = t->instrs[power];
        s[3].dst = by->dst;
        count += 4;
    }
    t->instrs = instrs;
    t->instr_count = count;
    t->values = values;
    t->value_count += 2;
    *folded = true;
    return true;
}

bool epi_scores_fold(epi_attention_design *d, epi_tile_program *t) {
    for (int i = 0; i < t->instr_count; i++) {
        bool folded = false;
        if (!fold_division(d->c->arena, t, i, &folded))
            return false;
        i = folded ? -1 : i;
    }
    return true;
}

/* ---- columns that come with a tile ---- */

/* The value of a column as text: of the column n of a group of a batch. NULL: it needs more than that. */
static const char *put_column(const epi_attention_design *d, const epi_gemm_design *p, int value,
                              int *looks) {
    const epi_emit_context *c = d->c;
    const epi_tile_value *v = &p->tile->values[value];
    int at = epi_tile_maker(p->tile, value);
    if (epi_emit_is_number(c, v->node) && !epi_emit_is_open_number(c, v->node))
        return epi_emit_node_number(c, v->node);
    if (at < 0 || v->rows || v->scale == EPI_SCALE_NONE)
        return NULL;
    const epi_instr *s = &p->tile->instrs[at];
    if (s->kind == EPI_INSTR_LOAD) {
        epi_ref ref = epi_emit_ref(c, s->node, -1);
        epi_axes batch = epi_attention_batch(d), groups = d->stream, column = {0};
        column.at[column.count++] = groups.at[--groups.count]; /* its axis: see design_attention.c */
        if (d->variant == EPI_ATTENTION_SPLIT) {
            column = d->stream;
            groups.count = 0;
        }
        if (epi_axes_size(&column, c->spec->sizes) != d->columns)
            return NULL;
        epi_walk batches = epi_walk_axes(&ref, &batch, c->spec->sizes),
                 of_group = epi_walk_axes(&ref, &groups, c->spec->sizes),
                 columns = epi_walk_axes(&ref, &column, c->spec->sizes);
        return epi_emit_load(c, ref.type, p->instrs[at].pointer,
                             epi_emit_text(c, "%s + %s + %s", epi_emit_walk(c, &batches, "batch"),
                                           epi_emit_walk(c, &of_group, "group"),
                                           epi_emit_walk(c, &columns, "n")));
    }
    if (s->kind != EPI_INSTR_MAP || --*looks < 0)
        return NULL;
    const char *arg[3] = {"", "", ""};
    for (int a = 0; a < epi_ops[s->op].arity; a++) {
        const char *operand = put_column(d, p, s->arg[a], looks);
        if (!operand)
            return NULL;
        arg[a] = epi_emit_text(c, "(%s)", operand);
    }
    return epi_emit_op(c, s->op, arg);
}

/* The number of the staged column of this text; -1 where there is no room for more. */
static int add_column(epi_attention_design *d, const char *text) {
    for (int i = 0; i < d->staged_count; i++)
        if (!strcmp(d->staged[i], text))
            return i;
    if (d->staged_count == EPI_ATTENTION_COLUMNS)
        return -1;
    d->staged[d->staged_count] = text;
    return d->staged_count++;
}

static bool used_by_elements(const epi_tile_program *t, int value) {
    for (int i = 0; i < t->instr_count; i++)
        for (int a = 0; a < 3; a++)
            if (t->instrs[i].arg[a] == value && t->instrs[i].dst >= 0 &&
                epi_value_is_full(&t->values[t->instrs[i].dst]))
                return true;
    return false;
}

/* Is the value in nothing but the exponent of an exponential, as put_power() of emit_values.c has it? */
static bool in_exponent(const epi_attention_design *d, const epi_gemm_design *p, int value) {
    const epi_tile_program *t = p->tile;
    const int *roots = d->weights[p == &d->whole];
    int sum = -1;
    bool power = false;
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        if ((s->kind == EPI_INSTR_MULADD && s->sign > 0 && s->arg[2] == value) ||
            (s->kind == EPI_INSTR_MAP && s->op == EPI_OP_SUB && s->arg[1] == value))
            sum = s->dst;
        power |= s->kind == EPI_INSTR_MAP && s->op == EPI_OP_EXP && s->arg[0] == sum;
    }
    for (int i = 0; i < 2 + EPI_ATTENTION_TOTALS; i++)
        power &= roots[i] != sum;
    return p->fast && power && epi_tile_uses(t, value) == 1 && epi_tile_uses(t, sum) == 1;
}

/* Columns that elements are made with are made once for all rows of a block, by a warp of its own: all but
 * positions, which cost nothing. False: there are too many. */
static bool stage_columns(epi_attention_design *d, epi_gemm_design *p) {
    const epi_tile_program *t = p->tile;
    const int factor =
        d->variant == EPI_ATTENTION_SPLIT && d->a->factor != EPI_NO_NODE ? d->weights[p == &d->whole][1] : -1;
    for (int i = 0; i < t->instr_count; i++) {
        int v = t->instrs[i].dst;
        if (v < 0 || t->values[v].rows || t->values[v].scale == EPI_SCALE_NONE ||
            (v != factor && !used_by_elements(t, v)) || t->instrs[i].kind == EPI_INSTR_INDEX ||
            epi_emit_is_number(d->c, t->values[v].node))
            continue;
        int looks = MOST_LOOKED_AT;
        const char *text = put_column(d, p, v, &looks);
        p->instrs[i].in_twos = text && in_exponent(d, p, v);
        if (p->instrs[i].in_twos)
            text = epi_emit_text(d->c, "(%s) * LOG2E", text);
        p->instrs[i].column_at = text ? 1 + add_column(d, text) : 0;
        if (text && !p->instrs[i].column_at)
            return false;
    }
    return true;
}

bool epi_scores_design(epi_attention_design *d) {
    bool stages = d->variant == EPI_ATTENTION_PAIR || d->config.turned;
    if (stages && (!stage_columns(d, &d->cut) || !stage_columns(d, &d->whole)))
        return false;
    if (!design_functions(d))
        return false;
    find_scales(d);
    return true;
}

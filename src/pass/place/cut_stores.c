/* cut_stores.c: which values are stored, which parts compute them, and from when on they are in memory. */
#include "pass/place/placer.h"

/* ---- parts, and when a value is there ---- */

int epi_placer_time_of(const epi_placer *s, int node) {
    epi_cut_placement at = s->placement[node];
    if (at.kind == EPI_PLACED_TILE && s->parts[at.part].spilled == node)
        return s->parts[at.part].next;
    return at.kind == EPI_PLACED_INPUT ? -1 : at.part;
}

void epi_placer_want_after(epi_placer *s, int node) {
    s->until = (int)epi_max64(s->until, epi_placer_time_of(s, node));
}

int epi_placer_add_part(epi_placer *s, epi_kind kind, int product) {
    s->parts[s->part_count] = (epi_placer_part){.kind = kind,
                                                .product = product,
                                                .pair = EPI_NO_NODE,
                                                .ordered = kind == EPI_KIND_ATTENTION && !s->limits->halves,
                                                .split = EPI_OP_COUNT,
                                                .spilled = EPI_NO_NODE};
    return s->part_count++;
}

/* The value is in memory, and whoever uses it under another name, or a slice of it, loads it from there. */
static void place_view(epi_placer *s, int node) {
    int from = s->g->nodes[node].arg[0];
    epi_placer_store(s, from);
    bool there = s->placement[from].kind == EPI_PLACED_INPUT;
    s->placement[node] =
        there ? s->placement[from] : (epi_cut_placement){EPI_PLACED_VIEW, s->placement[from].part};
}

void epi_placer_settle_view(epi_placer *s, int node) {
    while (s->waiting[node]) {
        int first = node;
        while (s->waiting[s->g->nodes[first].arg[0]])
            first = s->g->nodes[first].arg[0];
        s->waiting[first] = false;
        place_view(s, first);
    }
}

int epi_placer_add_rows(epi_placer *s, int node, const epi_axes *over) {
    int q = epi_placer_add_part(s, EPI_KIND_ROWS, EPI_NO_NODE);
    epi_placer_shape_rows(s->spec, &s->parts[q], &s->g->nodes[node].axes, over);
    return q;
}

/* ---- unplaced values that must exist ---- */

void epi_placer_find_cone(epi_placer *s, int node) {
    s->cone.count = s->read.count = 0;
    epi_visits_begin(&s->visits, node);
    for (int i; epi_visits_next(&s->visits, &i);) {
        if (s->placement[i].kind != EPI_UNPLACED) {
            if (!epi_op_is_free(s->g->nodes[i].op))
                s->read.at[s->read.count++] = i;
            continue;
        }
        s->cone.at[s->cone.count++] = i;
        for (int a = 0; a < epi_node_operands(&s->g->nodes[i]); a++)
            epi_visit(&s->visits, s->g->nodes[i].arg[a]);
    }
    epi_list_sort(&s->cone);
    epi_list_sort(&s->read);
}

/* Does the part read the value already? */
static bool reads(const epi_placer *s, int q, int value) {
    epi_use_list uses = epi_graph_uses(s->g, value);
    for (int i = 0; i < uses.count; i++) {
        int user = uses.at[i].node;
        if (user == EPI_NO_NODE || !s->placed[user])
            continue;
        if (s->placement[user].kind != EPI_UNPLACED && s->placement[user].kind != EPI_PLACED_INPUT &&
            s->placement[user].part == q && s->placement[value].part != q)
            return true;
    }
    return false;
}

/* Is something of the cone shifted that whoever makes the cone makes: another value of it, or one on part
 * q? */
static bool shifts_made(const epi_placer *s, int q) {
    bool made = false;
    for (int i = 0; i < s->cone.count; i++) {
        const epi_node *n = &s->g->nodes[s->cone.at[i]];
        if (n->op != EPI_OP_SHIFT)
            continue;
        epi_cut_placement at = s->placement[n->arg[0]];
        made |= at.kind == EPI_UNPLACED || (at.kind == EPI_PLACED_TILE && at.part == q);
    }
    return made;
}

int epi_placer_first_misfit(const epi_placer *s, epi_placer_part *p) {
    p->window |= shifts_made(s, -1);
    for (int i = 0; i < s->cone.count; i++)
        if (epi_op_has_halves(s->g->nodes[s->cone.at[i]].op))
            epi_placer_note_split(p, &s->g->nodes[s->cone.at[i]]);
    for (int i = 0; i < s->cone.count; i++)
        if (!epi_placer_fits(s, p, s->cone.at[i]))
            return s->cone.at[i];
    return EPI_NO_NODE;
}

/* Can all of the cone be on the part's tile, and be reduced there if that is wanted? */
static bool cone_fits(const epi_placer *s, epi_placer_part *p, int node, const epi_axes *over) {
    bool of_group = p->kind == EPI_KIND_GEMM && s->g->nodes[node].op == EPI_OP_GATHER; /* one for all rows */
    if (of_group || epi_placer_first_misfit(s, p) != EPI_NO_NODE)
        return false;
    unsigned dims = epi_placer_dims(&p->rows, &p->cols, &s->g->nodes[node].axes),
             rows = epi_placer_dims(&p->rows, &p->cols, &p->rows),
             cols = epi_placer_dims(&p->rows, &p->cols, &p->cols);
    if (!over && p->shaped && p->kind == EPI_KIND_ROWS && rows && dims == rows)
        return true; /* each row stores a number */
    return dims == (rows | cols) && (!over || epi_placer_reduction_of(s, p, node, over) != EPI_REDUCE_NONE);
}

/* Is everything that the cone reads of this part on its tile, not made of its finished reductions, nor a
 * table that rows are taken from, nor read at other places, but where it may be kept for that? */
static bool reads_tile(const epi_placer *s, int q) {
    for (int i = 0; i < s->cone.count; i++) {
        const epi_node *n = &s->g->nodes[s->cone.at[i]];
        int moved = n->op == EPI_OP_GATHER ? 2 : n->op == EPI_OP_SHIFT && !epi_may_keep(s->spec, n);
        for (int a = 0; a < moved; a++)
            if (s->placement[n->arg[a]].part == q && s->placement[n->arg[a]].kind != EPI_UNPLACED &&
                s->placement[n->arg[a]].kind != EPI_PLACED_INPUT)
                return false;
    }
    for (int i = 0; i < s->read.count; i++) {
        epi_cut_placement at = s->placement[s->read.at[i]];
        if (at.part == q && at.kind != EPI_PLACED_TILE && at.kind != EPI_PLACED_INPUT)
            return false;
    }
    return true;
}

/* Lists the unplaced operands of a value, the first of them last. */
static void list_operands(epi_placer *s, int node) {
    for (int a = 2; a >= 0; a--) {
        int arg = s->g->nodes[node].arg[a];
        if (arg != EPI_NO_NODE && s->placement[arg].kind == EPI_UNPLACED)
            s->pending.at[s->pending.count++] = arg;
    }
}

/* Lists what has to be stored so that a part for the node can hold the rest: the value that is taken apart
 * another way, if rows can make that by themselves; else its operands. Where the part is to reduce the node
 * and cannot take a row of a table, or is one row, the node; where it cannot keep what is shifted, that. */
static void list_misfit(epi_placer *s, int node, int misfit, const epi_axes *over) {
    if (s->g->nodes[misfit].op == EPI_OP_SHIFT &&
        s->placement[s->g->nodes[misfit].arg[0]].kind == EPI_UNPLACED) {
        list_operands(s, misfit);
        return;
    }
    bool whole =
        over && (s->g->nodes[misfit].op == EPI_OP_GATHER || over->count == s->g->nodes[node].axes.count);
    bool apart = whole || misfit != node;
    int stored = whole ? node : misfit;
    if (apart) {
        epi_placer_find_cone(s, stored);
        apart = epi_placer_first_misfit(s, &s->parts[epi_placer_add_rows(s, stored, NULL)]) == EPI_NO_NODE;
        s->part_count--;
        epi_placer_find_cone(s, node);
    }
    if (apart)
        s->pending.at[s->pending.count++] = stored;
    else
        list_operands(s, misfit);
}

/* Does whoever uses the value recompute it, so that nobody waits for the part that was the first to? A row of
 * a table; and a number for each row, which maps make of inputs. Its operands were asked before. */
static bool stays_unplaced(const epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    if (s->takes[node] && (n->op == EPI_OP_GATHER || n->op == EPI_OP_SHIFT))
        return true;
    bool unplaced = epi_op_is_map(n->op);
    for (int i = 0; i < n->axes.count; i++)
        unplaced &= s->spec->is_row[n->axes.at[i].dim];
    for (int a = 0; a < 3; a++)
        unplaced &= n->arg[a] == EPI_NO_NODE || epi_placer_time_of(s, n->arg[a]) < 0;
    return unplaced;
}

void epi_placer_count_folds(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    bool reduces = epi_op_reduces(n->op);
    s->folds[node] = reduces;
    for (int a = 0; a < epi_node_operands(n); a++) {
        epi_cut_placement at = s->placement[n->arg[a]];
        if (at.kind == EPI_PLACED_TILE && at.part == s->placement[node].part &&
            s->folds[n->arg[a]] + reduces > s->folds[node])
            s->folds[node] = s->folds[n->arg[a]] + reduces;
    }
}

/* What it costs if part q makes the value of the cone: what it has to load for it and does not yet, and to
 * keep it until it is wanted. Of parts that load the same the one that is nearest to its use makes it: else
 * the rows that a backward makes again would, of all layers, be made by the first part that has their shape,
 * and be alive at once. */
static double cost_at(const epi_placer *s, int q, int node, bool kept) {
    epi_cost cost = {0};
    for (int i = 0; i < s->read.count; i++)
        cost.bytes += reads(s, q, s->read.at[i]) ? 0 : epi_placer_bytes(s, s->read.at[i]);
    if (kept)
        cost.alive = epi_placer_bytes(s, node) * (double)epi_max64(0, s->until - q);
    return epi_cost_sum(cost);
}

/* Does the part read something that the cone does, or make it? */
static bool shares_reads(const epi_placer *s, int q) {
    bool shares = false;
    for (int i = 0; i < s->read.count; i++) {
        epi_cut_placement at = s->placement[s->read.at[i]];
        shares |= (at.kind == EPI_PLACED_TILE && at.part == q) || reads(s, q, s->read.at[i]);
    }
    return shares;
}

/* The part makes the node, and of it, where it is unplaced, all of the cone. */
static void join_part(epi_placer *s, int q, int node, bool unplaced) {
    for (int i = 0; i < s->read.count; i++)
        s->parts[q].tensors += !reads(s, q, s->read.at[i]);
    s->parts[q].tensors++;
    s->parts[q].window |= unplaced && shifts_made(s, q);
    for (int i = 0; i < s->cone.count && unplaced; i++) {
        int at = s->cone.at[i];
        epi_placer_fits(s, &s->parts[q], at); /* notes what it takes apart */
        if (at == node || !stays_unplaced(s, at)) {
            s->placement[at] = (epi_cut_placement){EPI_PLACED_TILE, q};
            epi_placer_count_folds(s, at);
        }
    }
}

/* The last part that makes what the cone reads; and how many bytes that is. */
static int time_of_reads(const epi_placer *s, double *bytes) {
    int time = -1;
    *bytes = 0;
    for (int i = 0; i < s->read.count; i++) {
        time = (int)epi_max64(time, epi_placer_time_of(s, s->read.at[i]));
        *bytes += epi_placer_bytes(s, s->read.at[i]);
    }
    return time;
}

/* Gives a value that is not on a fitting tile a part: one after its time that has its shape, or one over
 * rows. -1: a new part cannot hold all that it is made of, and the values that were listed have to be stored
 * first. */
static int try_part(epi_placer *s, int node, const epi_axes *over) {
    bool unplaced = s->placement[node].kind == EPI_UNPLACED;
    epi_placer_find_cone(s, node);
    double least = 0;
    epi_cost rows = {.launches = 1};
    int best = -1, time = time_of_reads(s, &rows.bytes);
    for (int q = time < s->first ? s->first : time; q < s->part_count; q++) { /* all that it reads is there */
        epi_placer_part trial = s->parts[q];
        if (trial.kind != EPI_KIND_ROWS && trial.kind != EPI_KIND_GEMM) /* those hold nothing more */
            continue;
        if (trial.square && !shares_reads(s, q)) /* all that it reads is in registers */
            continue;
        if (trial.spilled != EPI_NO_NODE) /* the rows behind it take what it could */
            continue;
        if (over && q > time && trial.kind == EPI_KIND_GEMM) /* a tile reduces what comes of its product */
            continue;
        trial.window |= unplaced && shifts_made(s, q);
        if ((q == time && !(unplaced && reads_tile(s, q))) || !cone_fits(s, &trial, node, over))
            continue;
        if (trial.tensors + s->read.count + 1 > s->limits->tensors) /* it would be refused */
            continue;
        double cost = cost_at(s, q, node, !over);
        if (cost <= epi_cost_sum(rows) && (best < 0 || cost < least)) {
            best = q;
            least = cost;
        }
    }
    if (best < 0) {
        int before = s->pending.count;
        best = epi_placer_add_rows(s, node, over);
        epi_placer_part trial = s->parts[best];
        epi_tile tile = epi_placer_tile_of(&trial);
        trial.folds = over && epi_tile_reduction(&tile, &s->g->nodes[node].axes, over) != EPI_REDUCE_COLS;
        int misfit = unplaced ? epi_placer_first_misfit(s, &trial) : EPI_NO_NODE;
        if (misfit != EPI_NO_NODE)
            list_misfit(s, node, misfit, over);
        if (s->pending.count > before) {
            s->part_count--;
            return -1;
        }
    }
    join_part(s, best, node, unplaced);
    return best;
}

int epi_placer_find_part(epi_placer *s, int node, const epi_axes *over) {
    int part;
    while ((part = try_part(s, node, over)) < 0)
        while (s->pending.count) {
            int at = s->pending.at[s->pending.count - 1];
            bool unplaced = s->placement[at].kind == EPI_UNPLACED; /* else it came to a part with another */
            if (unplaced && try_part(s, at, NULL) < 0)
                continue;
            s->forced[at] |= unplaced;
            s->pending.count--;
        }
    return part;
}

/* A map on rows that share it, which none of them can store, is made where it can be. */
static void leave_rows(epi_placer *s, int node) {
    const epi_node *n = &s->g->nodes[node];
    epi_cut_placement at = s->placement[node];
    if (at.kind != EPI_PLACED_TILE || s->forced[node] || !epi_op_is_map(n->op))
        return;
    const epi_placer_part *p = &s->parts[at.part];
    if (p->kind != EPI_KIND_ROWS || !p->rows.count || epi_axes_count_in(&n->axes, &p->rows))
        return;
    s->placement[node] = (epi_cut_placement){EPI_UNPLACED, -1};
    for (int a = 0; a < epi_node_operands(n); a++)
        s->placement[node].part = (int)epi_max64(s->placement[node].part, epi_placer_time_of(s, n->arg[a]));
}

void epi_placer_store(epi_placer *s, int node) {
    if (s->placement[node].kind == EPI_PLACED_PIECES) {
        epi_placer_store_pieces(s, node);
        return;
    }
    if (s->placement[node].kind == EPI_PLACED_INPUT || s->placement[node].kind == EPI_PLACED_VIEW)
        return; /* it is in memory, or needs no memory */
    leave_rows(s, node);
    if (s->placement[node].kind == EPI_UNPLACED)
        epi_placer_find_part(s, node, NULL);
    s->forced[node] = true;
}

/* ---- square tiles ---- */

/* A part over square tiles. */
static int add_square(epi_placer *s, const epi_square *square) {
    int q = epi_placer_add_part(s, EPI_KIND_ROWS, EPI_NO_NODE);
    epi_placer_part *p = &s->parts[q];
    p->square = p->shaped = true;
    p->rows = square->rows;
    p->cols = square->cols;
    p->local = epi_placer_dims(&p->rows, &p->cols, &p->cols);
    return q;
}

/* Can the part over square tiles make what the extreme is of, which it shares something with? */
static bool can_share_square(const epi_placer *s, int q, int time, const epi_square *square, int from) {
    epi_placer_part trial = s->parts[q];
    epi_cut_placement at = s->placement[from];
    bool there = q > time || (at.kind == EPI_UNPLACED ? reads_tile(s, q) : at.kind == EPI_PLACED_TILE);
    return trial.square && there && epi_axes_same_set(&trial.rows, &square->rows) &&
           epi_axes_same_set(&trial.cols, &square->cols) && shares_reads(s, q) &&
           trial.tensors + s->read.count + 1 <= s->limits->tensors &&
           epi_placer_first_misfit(s, &trial) == EPI_NO_NODE;
}

int epi_placer_find_square(epi_placer *s, int from, const epi_square *square) {
    bool unplaced = s->placement[from].kind == EPI_UNPLACED;
    double bytes;
    epi_placer_find_cone(s, from);
    int time = time_of_reads(s, &bytes), q = (int)epi_max64(time, s->first);
    while (q < s->part_count && !can_share_square(s, q, time, square, from))
        q++;
    if (q == s->part_count) {
        add_square(s, square);
        epi_placer_part trial = s->parts[q];
        if (epi_placer_first_misfit(s, &trial) != EPI_NO_NODE) {
            s->part_count--;
            return -1;
        }
    }
    join_part(s, q, from, unplaced);
    return q;
}

void epi_placer_see_view(epi_placer *s, int node) {
    int from = s->g->nodes[node].arg[0];
    s->waiting[node] = s->waiting[from] || (s->placement[from].kind == EPI_UNPLACED && !s->forced[from]);
    if (s->waiting[node])
        s->placement[node] = (epi_cut_placement){EPI_UNPLACED, s->placement[from].part};
    else
        place_view(s, node);
}

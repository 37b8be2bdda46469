/* emit_attention.c: writes the source of an attention kernel: the program's scores, weights, bounds and
 * epilogues as functions that the mainloop calls. It decides nothing: the design has done that. */
#include "cuda/attention/design_attention.h"
#include "cuda/product/emit_gemm.h"

/* ---- functions of a score tile ---- */

static const char *const arrays[2] = {"s", "dp"};
#define ELEMENT "[8 * j + 4 * (i >> 1) + 2 * (i & 1) + %d]"

/* How many columns such a function sees at a time, as the texts name it. */
static const char *share_of(const epi_attention_design *d) {
    return d->config.turned ? "SHARE" : "STREAM";
}

/* Marks the instructions that what is made needs, back to what is given. */
static void mark(const epi_attention_function *f, bool *marked, bool *needed) {
    const epi_tile_program *t = f->d->tile;
    for (int i = 0; i < 2; i++)
        if (f->made[i] >= 0)
            needed[f->made[i]] = true;
    for (int i = 0; i < EPI_ATTENTION_TOTALS; i++)
        if (f->totals[i] >= 0)
            needed[f->totals[i]] = true;
    for (int i = t->instr_count - 1; i >= 0; i--) {
        const epi_instr *s = &t->instrs[i];
        if (s->dst < 0 || !needed[s->dst] || s->dst == f->given[0] || s->dst == f->given[1])
            continue;
        marked[i] = true;
        for (int a = 0; a < 3 && !f->d->instrs[i].column_at; a++)
            if (s->arg[a] >= 0)
                needed[s->arg[a]] = true;
    }
    for (int i = 0; i < t->instr_count; i++) /* what such a column is taken from is in the power alone */
        for (int a = 0; a < 3; a++) {
            int at = epi_tile_maker(t, t->instrs[i].arg[a]);
            marked[i] &= at < 0 || !f->d->instrs[at].in_twos;
        }
}

/* The columns that a thread's rows see: an interval each, counted from the thread's first column. */
static void put_limits(epi_emitter *e) {
    epi_text_add(&e->members, "  int from[2], to[2];\n");
    epi_text_add(
        &e->rows,
        "    R.from[h] = 0;\n    R.to[h] = COLUMNS;\n"
        "    columns_seen(P, batch_of(P, row), row_in_batch(P, row + 8 * h), row_in_batch(P, row + 8 * h), "
        "R.from[h], R.to[h]);\n");
    epi_text_add(&e->begin, "  const int from[2] = {R.from[0] - first - 2 * q, R.from[1] - first - 2 * q};\n"
                            "  const int to[2] = {R.to[0] - first - 2 * q, R.to[1] - first - 2 * q};\n"
                            "  (void)from;\n");
}

static const char *put_seen(const epi_attention_design *d, int el) {
    const char *column = epi_emit_text(d->c, "16 * j + 8 * (i >> 1) + %d", el);
    if (d->exact && d->cut_begin)
        return epi_emit_text(d->c, "%s < to[i & 1] && %s >= from[i & 1]", column, column);
    return epi_emit_text(d->c, "%s < %s", column, d->exact ? "to[i & 1]" : "left");
}

/* What is made goes to its array; in tiles that are cut, columns that a row does not see, or that are not
 * there, have no weight. */
static const char *put_made(const epi_attention_design *d, const epi_emitter *e,
                            const epi_attention_function *f, bool cut) {
    const char *all = "", *none = epi_attention_is_online(d) ? "-INF" : "0.f";
    for (int i = 0; i < 2; i++)
        for (int el = 0; el < 2 && f->made[i] >= 0; el++) {
            const char *value = epi_value_use(e, f->made[i], el);
            if (cut)
                value = epi_emit_text(d->c, "%s ? %s : %s", put_seen(d, el), value, none);
            all = epi_emit_text(d->c, "%s      %s" ELEMENT " %s= %s;\n", all, arrays[i], el,
                                f->factor ? "*" : "", value);
        }
    for (int i = 0; i < d->total_count; i++)
        for (int el = 0; el < 2 && f->totals[i] >= 0; el++) {
            const char *value = epi_value_use(e, f->totals[i], el);
            if (cut)
                value = epi_emit_text(d->c, "%s ? %s : 0.f", put_seen(d, el), value);
            all = epi_emit_text(d->c, "%s      total[%d][i & 1] += %s;\n", all, i, value);
        }
    return all;
}

/* A multiplication that the exponent does. */
static void put_unscaled(epi_emitter *e, const epi_instr *s) {
    int scores = e->d->tile->values[s->arg[0]].scale == EPI_SCALE_NONE;
    for (int el = 0; el < 2; el++)
        epi_text_add(&e->cell, "      const float %s_%d = %s;\n", epi_value_name(e, s->dst), el,
                     epi_value_use(e, s->arg[scores], el));
}

/* One namespace: what a thread keeps of its rows for the function, and the function. */
static bool write_function(const epi_attention_design *d, const epi_attention_function *f, const char *name,
                           bool cut, int scaled, epi_text *out) {
    const epi_tile_program *t = f->d->tile;
    epi_emitter e = {.d = f->d};
    const char *given = "";
    bool *marked = epi_arena_alloc(d->c->arena, (size_t)t->instr_count + 1),
         *needed = epi_arena_alloc(d->c->arena, (size_t)t->value_count + 1);
    if (!marked || !needed)
        return false;
    mark(f, marked, needed);
    for (int i = 0; i < t->instr_count; i++)
        if (marked[i] && i == scaled)
            put_unscaled(&e, &t->instrs[i]);
        else if (marked[i])
            epi_instr_emit(&e, i);
    for (int i = 0; i < 2; i++)
        for (int el = 0; el < 2 && f->given[i] >= 0 && needed[f->given[i]]; el++)
            given = epi_emit_text(d->c, "%s      const float %s_%d = %s" ELEMENT ";\n", given,
                                  epi_value_name(&e, f->given[i]), el, arrays[i], el);
    if (cut && d->exact)
        put_limits(&e);
    const char *made = put_made(d, &e, f, cut);
    epi_text_add(out, "namespace %s {\n", name);
    epi_emitter_put_rows(&e, "", out);
    epi_text_add(
        out,
        "DEV void tile(float (&s)[%s / 2], float (&dp)[%s / 2], const Rows &R, const Params &P, int row, "
        "int group, int first, int t, u32 staged%s) {\n"
        "  const int q = t & 3, col = group * COLUMNS + first;\n"
        "  const float position = (float)(first + 2 * q);\n  const int left = COLUMNS - first - 2 * q;\n"
        "  (void)q; (void)col; (void)position; (void)left;\n",
        share_of(d), share_of(d), d->total_count ? ", float (&total)[TOTAL_COUNT][2]" : "");
    if (*made)
        epi_emitter_put_loops(&e, share_of(d), given, made, out);
    else
        epi_text_add(out, "%s", epi_piece(&e.begin));
    epi_text_add(out, "}\n}\n");
    return !epi_emitter_free(&e);
}

/* A function of tiles that are cut or whole. What a cut one needs of its rows is loaded there: it is not
 * worth registers over all the others. */
static void write_choice(const epi_attention_design *d, const char *name, const char *more,
                         const char *second, epi_text *out) {
    const char *totals = d->total_count ? ", R.total" : "";
    epi_text_add(out,
                 "template <int CUT> DEV void %s(float (&s)[%s / 2]%s, const Rows &R, const Params &P, "
                 "int row, int group, int col, int t, u32 staged) {\n"
                 "  if (CUT) {\n    cut_%s::Rows C;\n    cut_%s::rows_load(C, P, row);\n"
                 "    cut_%s::tile(s, %s, C, P, row, group, col, t, staged%s);\n"
                 "  } else whole_%s::tile(s, %s, R.%s, P, row, group, col, t, staged%s);\n}\n",
                 name, share_of(d), more, name, name, name, second, totals, name, second, name, totals);
}

/* What the mainloop calls. */
static bool write_scores(const epi_attention_design *d, epi_text *out) {
    static const char *const names[2][2] = {{"cut_first", "cut_second"}, {"whole_first", "whole_second"}};
    bool factor = d->second_part[0].factor, two = !epi_attention_is_single(d) || factor, ok = true;
    for (int which = 0; which < 2; which++) {
        ok = ok && write_function(d, &d->first_part[which], names[which][0], !which, d->scaled[which], out);
        ok = ok && (!two || write_function(d, &d->second_part[which], names[which][1], !which && !factor,
                                           d->scaled[which], out));
    }
    epi_text_add(
        out,
        "namespace score {\nstruct Rows {\n  whole_first::Rows first;\n%s%s};\n"
        "DEV void rows_load(Rows &R, const Params &P, int row) {\n"
        "  whole_first::rows_load(R.first, P, row);\n%s%s}\n",
        two ? "  whole_second::Rows second;\n" : "",
        d->total_count ? "  mutable float total[TOTAL_COUNT][2];\n" : "",
        two ? "  whole_second::rows_load(R.second, P, row);\n" : "",
        d->total_count
            ? "#pragma unroll\n  for (int i = 0; i < TOTAL_COUNT; i++) R.total[i][0] = R.total[i][1] = 0.f;\n"
            : "");
    write_choice(d, "first", "", "s", out);
    if (two)
        write_choice(d, "second", factor ? "" : ", float (&dp)[STREAM / 2]", factor ? "s" : "dp", out);
    epi_text_add(out, "}\n");
    return ok;
}

/* What comes with a tile of columns: the values of its column n. */
static void write_staged(const epi_attention_design *d, epi_text *out) {
    epi_text_add(out, "#define STAGED %d\n", d->staged_count);
    if (!d->staged_count)
        return;
    epi_text_add(
        out, "DEV void staged_make(const Params &P, float (&v)[STAGED], int batch, int group, int n) {\n");
    for (int i = 0; i < d->staged_count; i++)
        epi_text_add(out, "  v[%d] = %s;\n", i, d->staged[i]);
    epi_text_add(out, "}\n");
}

/* ---- bounds ---- */

static void write_bounds(const epi_attention_design *d, epi_kernel_text *k, epi_text *out) {
    static const char *const names[2] = {"columns_seen", "columns_whole"};
    if (d->matched)
        epi_matches_emit_record(d, out);
    epi_bounds_emit_origin(d, k, out);
    for (int i = 0; i < 2; i++) {
        epi_text_add(out,
                     "DEV void %s(const Params &P, int batch, int first, int last, int &from, int &to) {\n",
                     names[i]);
        for (int b = 0; b < d->a->bound_count; b++)
            epi_bound_emit(d, k, &d->a->bounds[b], i ? -1 : 1, out);
        if (d->matched && !d->stretched)
            epi_matches_emit_bound(i, out);
        epi_text_add(out, "}\n");
    }
}

/* ---- epilogues ---- */

/* A result of which there is one a row, or what is given of the scores; false: neither. */
static bool put_row(const epi_attention_design *d, epi_emitter *e, int i) {
    const epi_instr *s = &e->d->tile->instrs[i];
    if (s->kind == EPI_INSTR_STORE && !s->full) {
        const epi_side_tile *t = &e->d->side_tiles[e->d->instrs[i].side_tile];
        epi_text_add(&e->rows,
                     "    if (q == 0 && row_there(P, row + 8 * h)) store<%s>((void *)P.ptr[%d], %s, %s);\n",
                     epi_emit_type(t->ref.type), t->pointer, epi_emit_walk(d->c, &t->rows, "r"),
                     epi_value_use_in_row(e, s->arg[0]));
        return true;
    }
    bool top = s->kind == EPI_INSTR_LOAD && s->node == d->a->row_max,
         sum = s->kind == EPI_INSTR_LOAD && s->node == d->a->denominator && !top;
    int total = 0;
    while (total < d->total_count && (s->kind != EPI_INSTR_LOAD || s->node != d->totals[total]))
        total++;
    if (!top && !sum && total == d->total_count)
        return false;
    const char *name = epi_value_name(e, s->dst);
    epi_text_add(&e->members, "  float %s_r[2];\n", name);
    if (top || sum)
        epi_text_add(&e->rows, "    R.%s_r[h] = %s[h];\n", name, top ? "top" : "sum");
    else
        epi_text_add(&e->rows,
                     "    R.%s_r[h] = S.total[%d][h];\n"
                     "    R.%s_r[h] += __shfl_xor_sync(~0u, R.%s_r[h], 1);\n"
                     "    R.%s_r[h] += __shfl_xor_sync(~0u, R.%s_r[h], 2);\n",
                     name, total, name, name, name, name);
    return true;
}

/* plain(): what the epilogue does to an element, where that is all it does. */
static void write_plain(const epi_emitter *e, epi_text *out) {
    const epi_tile_program *t = e->d->tile;
    epi_text_add(out, "DEV float plain(const Rows &R, int i, float x) {\n  const float %s_0 = x;\n",
                 epi_value_name(e, 0));
    int last = 0;
    for (int i = 0; i < t->instr_count; i++) {
        const epi_instr *s = &t->instrs[i];
        if (!s->full || s->kind != EPI_INSTR_MAP)
            continue;
        bool by = s->op == EPI_OP_DIV;
        int other = s->arg[s->arg[0] == last];
        epi_text_add(out, "  const float %s_0 = %s * %s%s%s;\n", epi_value_name(e, s->dst),
                     epi_value_use(e, last, 0), by ? "rcp(" : "", epi_value_use(e, other, 0), by ? ")" : "");
        last = s->dst;
    }
    epi_text_add(out, "  return %s;\n}\n", epi_value_use(e, last, 0));
}

static bool write_epilogue(const epi_attention_design *d, int v, const char *name, epi_text *out) {
    const epi_gemm_design *p = &d->out_design[v];
    epi_emitter e = {.d = p};
    const char *acc = epi_value_name(&e, 0);
    for (int i = 0; i < p->tile->instr_count; i++)
        if (!put_row(d, &e, i) && !(d->plain && p->tile->instrs[i].full))
            epi_instr_emit(&e, i);
    epi_text_add(out, "namespace %s {\n#define SUBTILE %d\n", name, (int)epi_round_up(p->tile->n, 16));
    epi_emitter_put_rows(
        &e,
        epi_emit_text(d->c, "%s%s, int q",
                      epi_attention_is_single(d) ? ", const float (&top)[2], const float (&sum)[2]" : "",
                      d->total_count ? ", const score::Rows &S" : ""),
        out);
    if (d->plain) {
        write_plain(&e, out);
    } else {
        epi_text_add(
            out,
            "struct Sums {\n%s};\n"
            "template <int C, class Acc> DEV void epilogue_subtile(const Acc &acc, const Rows &R, Sums &S, "
            "const Params &P, u32 staging, int row, int col, int thread) {\n"
            "  const int lane = thread & 31, q = lane & 3;\n  (void)q;\n",
            epi_piece(&e.sums));
        epi_emitter_put_loops(
            &e, "SUBTILE",
            epi_emit_text(d->c, "      const float %s_0 = acc(j, i, 0), %s_1 = acc(j, i, 1);\n", acc, acc),
            "", out);
        epi_text_add(out, "}\n");
    }
    epi_text_add(out, "#undef SUBTILE\n}\n");
    return !epi_emitter_free(&e);
}

/* ---- the whole ---- */

static void write_macros(const epi_attention_design *d, const char *name, epi_text *out) {
    const epi_attention_config *f = &d->config;
    bool fast = true;
    for (int v = 0; v <= EPI_ATTENTION_MORE; v++)
        fast &= d->sum[v] < 0 || d->out_design[v].fast;
    epi_text_add(out,
                 "#define NAME %s\n#define EPI_FAST %d\n#define HALF %s\n#define SCORE_DEPTH %ld\n"
                 "#define SECOND_DEPTH %ld\n#define VALUE_WIDTH %ld\n#define STREAM %d\n#define GROUPS %d\n"
                 "#define SLOTS %d\n#define QUERIES %d\n#define LAZY %d\n#define PING_PONG %d\n"
                 "#define FEW_REGISTERS %d\n#define MANY_REGISTERS %d\n#define TILE_M (64 * GROUPS)\n#define "
                 "CLUSTER 1\n",
                 name, fast, epi_emit_type(d->half), (long)d->depth[0], (long)d->depth[1], (long)d->width[0],
                 f->stream, f->groups, f->slots, f->buffers, f->lazy, f->ping_pong, f->load_registers,
                 f->math_registers);
    if (epi_attention_is_mma(d))
        epi_text_add(out, "#define BANDS %d\n#define RESIDENT %d\n#define SUMS %d\n", f->bands, f->resident,
                     d->a->sum_count);
    epi_text_add(out,
                 "#define COLUMNS %s\n#define COLUMN_GROUPS %s\n#define BATCHED 1\n#define BATCH_ROWS %s\n"
                 "#define EXACT %d\n#define POST %s\n#define SCALE %s\n#define GUARDED %d\n#define PLAIN "
                 "%d\n#define SPLIT %d\n#define FACTOR %d\n#define MATCHES %d\n"
                 "#define CUT_BEGIN %d\n#define CUT_END %d\n#define LAST_FIRST %d\n#define SUBTILES 1\n",
                 epi_emit_int(d->c, d->columns), epi_emit_int(d->c, d->column_groups),
                 epi_emit_int(d->c, d->batch_rows), d->exact,
                 epi_emit_number(d->c, d->scale * 1.4426950408889634), epi_emit_number(d->c, d->scale),
                 d->a->guarded, d->plain, d->split, d->second_part[0].factor,
                 d->exact && d->matched ? d->a->match_count : 0, d->cut_begin, d->cut_end, d->last_first);
    epi_text_add(
        out, "#define MORE_DEPTH %ld\n#define MORE_MAP %d\n#define SUM_AT %ld\n#define OUT_MORE %ld\n",
        (long)d->more, d->more_map, (long)d->sum_at, (long)(d->sum[EPI_ATTENTION_MORE] >= 0 ? d->more : 0));
    epi_text_add(out,
                 d->total_count ? "#define TOTAL_COUNT %d\n#define TOTALS(R) R,\n" : "#define TOTALS(R)\n",
                 d->total_count);
    if (d->variant == EPI_ATTENTION_SPLIT)
        epi_text_add(out,
                     "#define CHUNK %d\n#define PARTS %d\n#define SUMS_PTR 0\n#define STATS_PTR 1\n"
                     "#define ROWS_PTR %d\n#define PAGE %d\n#define TURNED %d\n#define SHARE 16\n"
                     "#define ALONE %d\n",
                     d->chunk, epi_attention_parts(d), d->alone ? 0 : 2, d->page, f->turned, d->alone);
    for (int i = 0; i < 2; i++) {
        static const char *const names[2] = {"KEYS", "VALUES"};
        bool narrow = epi_attention_is_single(d) && epi_attention_is_narrow(d, i);
        epi_text_add(out, "#define NARROW_%s %d\n", names[i], narrow);
        if (narrow)
            epi_text_add(out, "#define %s_TYPE %s\n", names[i], epi_emit_type(d->columns_of[i].ref.type));
    }
    if (epi_attention_is_single(d) && !epi_attention_is_mma(d))
        epi_text_add(out,
                     "#define FEW %d\n#define CHUNK_TILES %d\n#define LATE %d\n#define STRETCHED %d\n#define "
                     "HELD_SUMS %d\n",
                     d->variant == EPI_ATTENTION_SPLIT, d->chunk_tiles, !f->early && !f->ping_pong,
                     d->stretched, f->held);
}

/* The page that a slot of a batch names, or -1. */
static void write_pages(const epi_attention_design *d, epi_kernel_text *k, epi_text *out) {
    static const char *const names[2] = {"keys", "values"};
    for (int i = 0; i < 2 && d->page; i++) {
        const epi_attention_tensor *t = &d->columns_of[i];
        int gather = i ? d->a->sums[0].operand : d->a->terms[0].stream;
        epi_text_add(out,
                     "DEV int %s_page(const Params &P, int batch, int n) {\n  return n < %s ? "
                     "(int)position<%s>(P.ptr[%d], %s + %s, %s) : -1;\n}\n",
                     names[i], epi_emit_int(d->c, t->slots), epi_emit_type(t->index.type),
                     epi_emit_pointer(k, d->g->nodes[gather].arg[1], -1),
                     epi_emit_walk(d->c, &t->index_batch, "batch"), epi_emit_walk(d->c, &t->index_slots, "n"),
                     epi_emit_count(d->c, t->group_count, "LL"));
    }
}

/* Where an operand lies that threads load, as functions whose names start with `which`. */
static void write_operand(const epi_attention_design *d, epi_kernel_text *k, const char *which,
                          const epi_attention_tensor *t, epi_text *out) {
    const char *type = epi_dtype_size(t->ref.type) == 1 ? "u8" : "u16";
    epi_text_add(out,
                 "DEV const %s *%s_from(const Params &P, int batch, int group) { return (const %s "
                 "*)P.ptr[%d] + %s + %s; }\nDEV i64 %s_apart(const Params &P) { return %s; }\n",
                 type, which, type, epi_emit_pointer(k, t->node, t->tensor),
                 epi_emit_walk(d->c, &t->batch, "batch"), epi_emit_walk(d->c, &t->groups, "group"), which,
                 epi_emit_count(d->c, t->rows.count ? t->rows.stride[0] : 0, "LL"));
}

static void write_operands(const epi_attention_design *d, epi_kernel_text *k, epi_text *out) {
    write_operand(d, k, "rows", &d->rows_of[0], out);
    write_operand(d, k, "keys", &d->columns_of[0], out);
    write_operand(d, k, "values", &d->columns_of[1], out);
    if (!epi_attention_is_single(d))
        write_operand(d, k, "rows2", &d->rows_of[1], out);
}

static const char *const out_names[] = {"out", "out2", "out_more"}; /* by sum, and MORE */

static void write_batches(const epi_attention_design *d, epi_text *out) {
    bool two = !epi_attention_is_single(d);
    if (d->variant == EPI_ATTENTION_SPLIT)
        epi_text_add(out, "DEV i64 row_at(const Params &P, int r) { return %s; }\n",
                     epi_emit_walk(d->c, &d->rows_of[0].rows, "r"));
    else
        epi_batch_emit(out, d->c, "rows", &d->rows_of[0].place);
    epi_batch_emit(out, d->c, "keys", &d->columns_of[0].place);
    epi_batch_emit(out, d->c, "values", &d->columns_of[1].place);
    if (two)
        epi_batch_emit(out, d->c, "rows2", &d->rows_of[1].place);
    if (d->more) {
        epi_batch_emit(out, d->c, "more_rows", &d->rows_of[EPI_ATTENTION_MORE].place);
        epi_batch_emit(out, d->c, "more_keys", &d->columns_of[EPI_ATTENTION_MORE].place);
    }
    for (int v = 0; v <= EPI_ATTENTION_MORE && d->plain; v++)
        if (d->sum[v] >= 0)
            epi_batch_emit(out, d->c, out_names[v], &d->result_of[v].place);
}

/* Has it random numbers? */
static bool draws(const epi_attention_design *d) {
    const epi_tile_program *const all[] = {&d->tile[0], &d->tile[1], &d->out_tile[0], &d->out_tile[1],
                                           &d->out_tile[EPI_ATTENTION_MORE]};
    for (int p = 0; p < 5; p++)
        for (int i = 0; i < all[p]->instr_count; i++)
            if (all[p]->instrs[i].kind == EPI_INSTR_RANDOM)
                return true;
    return false;
}

/* What both texts begin with: up to what is written for the program, and the texts that all of that needs. */
static void write_begin(const epi_attention_design *d, epi_kernel_text *k, const char *name) {
    write_macros(d, name, &k->source);
    epi_emit_head(d->c->spec->open, k, draws(d) ? epi_device_text("random") : "",
                  "M, raster, queue, counter");
    epi_text_add(&k->source, "%s", epi_device_text("batch"));
}

epi_status epi_emit_attention_fold(const epi_attention_design *d, epi_kernel_text *k, epi_error *err) {
    epi_text own = {0};
    write_bounds(d, k, &own);
    bool ok = write_epilogue(d, 0, "out", &own);
    write_begin(d, k, "attention_fold");
    epi_text_add(&k->source, "%s\n// ---- the fold\n\n%s%s%s", epi_piece(&own),
                 epi_device_text("attention_chunks"), epi_device_text("attention_folded"),
                 epi_device_text("attention_fold"));
    k->source.failed |= !ok || own.failed;
    epi_text_free(&own);
    return epi_emit_end(k, err);
}

epi_status epi_emit_attention(const epi_attention_design *d, epi_kernel_text *k, epi_error *err) {
    static const char *const files[2][4] = {
        {"attention_forward", "attention_split", "attention_rows", "attention_pair"},
        {"attention_mma_forward", NULL, "attention_mma_sums", "attention_mma_sums"}};
    bool split = d->variant == EPI_ATTENTION_SPLIT, mma = epi_attention_is_mma(d),
         single = epi_attention_is_single(d);
    epi_text own = {0};
    if (mma)
        write_operands(d, k, &own);
    else
        write_batches(d, &own);
    write_pages(d, k, &own);
    write_bounds(d, k, &own);
    if (d->exact && d->matched)
        epi_matches_emit_bits(d, k, &own);
    int turned = d->config.turned;
    bool narrow[2] = {single && epi_attention_is_narrow(d, 0), single && epi_attention_is_narrow(d, 1)};
    if (d->variant == EPI_ATTENTION_PAIR || mma || turned)
        write_staged(d, &own);
    bool ok = write_scores(d, &own);
    for (int v = 0; v <= EPI_ATTENTION_MORE && (!split || d->alone); v++)
        ok = ok && (d->sum[v] < 0 || write_epilogue(d, v, out_names[v], &own));
    int columns = d->config.stream, width = (int)epi_round_up(d->width[0], 16),
        width2 = (int)epi_round_up(d->width[1], 16);
    if (turned) { /* bytes are converted in registers */
        epi_emit_wgmma(&own, d->half, d->half, "wgmma_keys", turned / 2, turned, narrow[0],
                       narrow[0] ? "0" : "0, 0");
        epi_emit_wgmma(&own, d->half, d->half, "wgmma_values", turned / 2, turned, narrow[1],
                       narrow[1] ? "0" : "1, 0");
    } else if (!mma) {
        epi_emit_wgmma(&own, d->half, d->half, "wgmma_score", columns / 2, columns, false, "0, 0");
        epi_emit_wgmma(&own, d->half, d->half, "wgmma_value", width / 2, width, true, "1");
    }
    if (!mma && d->variant == EPI_ATTENTION_PAIR)
        epi_emit_wgmma(&own, d->half, d->half, "wgmma_value2", width2 / 2, width2, true, "1");
    write_begin(d, k, "attention");
    epi_text_add(
        &k->source, "%s\n// ---- the mainloop\n\n%s%s%s%s%s%s%s%s%s%s", epi_piece(&own),
        mma ? "" : epi_device_text("counter"), mma || narrow[0] || narrow[1] ? epi_device_text("mma") : "",
        narrow[0] || narrow[1] ? epi_device_text("few_bits") : "", epi_device_text("attention_tiles"),
        epi_device_text(mma ? "attention_mma" : "attention"),
        !single || turned
            ? ""
            : epi_device_text(epi_attention_is_online(d) ? "attention_softmax" : "attention_weights"),
        single && !mma ? epi_device_text("attention_chunks") : "",
        mma ? ""
            : epi_device_text(turned   ? "attention_turned"
                              : single ? "attention_online"
                                       : "attention_sums"),
        d->alone ? epi_device_text("attention_folded") : "", epi_device_text(files[mma][d->variant]));
    k->source.failed |= !ok || own.failed;
    epi_text_free(&own);
    return epi_emit_end(k, err);
}

/* emit_gemm.c: the epilogue of a product as text, and the kernel around it. */
#include <stdio.h>
#include <string.h>

#include "cuda/emit.h"

/* A tile that is loaded or stored, element by element or through staging by the copy engine. */
typedef struct stream {
    int step; /* of the tile's list */
    int node, tensor;
    bool store, staged;
    epi_scale scale;
    epi_ref ref;
    epi_walk rows;
    epi_columns cols;
    int elements, bytes; /* of a cell */
    int map, pointer;
    int offset;               /* in a step's staging */
    int takes;                /* the stream whose panel a stored one takes over, or -1 */
    int64_t row_mod, col_mod; /* staged: coordinates are taken modulo these; 0: as they are */
} stream;

enum { MAX_STREAMS = 2 * EPI_MAX_TENSORS, STAGE_ROWS = 64, SHARED_MOST = 232448, SM80_DEPTH = 32 };

typedef struct emitter {
    epi_emit_context *c;
    const epi_graph *g;
    const epi_plan *plan;
    const epi_tile *tile;
    epi_config config;
    epi_kernel_text *k;
    epi_text members, rows, group, cell, after, end, sums, begin, moves, moves_out, prefetch, consts;
    stream streams[MAX_STREAMS];
    int stream_count;
    int kept;  /* the value that is packed (or, exact, the product itself) */
    int split; /* a multiply-add whose row scale is before the packing point and whose sum is after it, or -1
                */
    bool *before; /* by step: it is done before the packing point */
    bool *grouped; /* by step: a reduction inside the tile that is worked out already */
    epi_dtype half;
    bool fast;
    int stage_bytes, load_bytes;
    char reason[240];
} emitter;

static int per_cell(const emitter *e, epi_scale scale) {
    if (e->tile->acc_scale == EPI_SCALE_COARSE)
        return scale == EPI_SCALE_FINE ? 4 : 2;
    return scale == EPI_SCALE_FINE ? 2 : 1;
}

static bool is_full(const epi_tile_value *v) {
    return v->rows && v->scale != EPI_SCALE_NONE;
}

/* ---- names of values ---- */

static epi_name value_name(const emitter *e, int v) {
    const epi_tile_value *value = &e->tile->values[v];
    epi_name n = epi_emit_name(e->g, value->node), out;
    int twins = 0;
    for (int i = 0; i < v; i++)
        twins += !strcmp(epi_emit_name(e->g, e->tile->values[i].node).text, n.text);
    if (twins)
        snprintf(out.text, sizeof out.text, "%.60s_%d", n.text, v);
    else
        snprintf(out.text, sizeof out.text, "%.60s", n.text);
    return out;
}

/* How element `el` of a value is written inside the cell loop. */
static epi_name use(const emitter *e, int v, int el) {
    const epi_tile_value *value = &e->tile->values[v];
    const epi_node *n = &e->g->nodes[value->node];
    epi_name out, name = value_name(e, v);
    if (n->op == EPI_OP_CONST)
        return epi_emit_number(n->value);
    if (n->op == EPI_OP_SIZE)
        return epi_emit_number((double)epi_axis_size(n->over.at[0], e->c->spec->sizes));
    if (is_full(value))
        snprintf(out.text, sizeof out.text, "%.60s_%d", name.text, el);
    else if (value->scale != EPI_SCALE_NONE)
        snprintf(out.text, sizeof out.text, "%.60s_c[(i >> 1) * %d + %d]", name.text,
                 per_cell(e, value->scale), el);
    else if (value->rows)
        snprintf(out.text, sizeof out.text, "R.%.60s_r[i & 1]", name.text);
    else
        snprintf(out.text, sizeof out.text, "R.%.60s_u", name.text);
    return out;
}

/* ---- streams ---- */

static void make_stream(emitter *e, int step) {
    const epi_tile_step *s = &e->tile->steps[step];
    const epi_tile_value *v = &e->tile->values[s->kind == EPI_TILE_STORE ? s->arg[0] : s->dst];
    if (e->stream_count == MAX_STREAMS)
        return;
    stream *t = &e->streams[e->stream_count++];
    *t = (stream){.step = step,
                  .node = s->node,
                  .tensor = s->tensor,
                  .store = s->kind == EPI_TILE_STORE,
                  .scale = v->scale,
                  .takes = -1,
                  .map = -1};
    t->ref = epi_emit_ref(e->c, s->node, s->tensor);
    t->rows = epi_walk_axes(&t->ref, &e->plan->rows, e->c->spec->sizes);
    t->cols = epi_columns_of(e->plan, &t->ref, e->c->spec->sizes, v->scale);
    t->elements = per_cell(e, v->scale);
    t->bytes = t->elements * (int)epi_dtype_size(t->ref.type);
}

/* Can the copy engine move it? Rows a fixed distance apart and columns neighbours, or a table that repeats.
 */
static bool can_stage(const emitter *e, stream *t) {
    const epi_walk *r = &t->rows, *c = &t->cols.walk;
    int64_t size = (int64_t)epi_dtype_size(t->ref.type),
            step_cols = (int64_t)e->config.step * t->elements / 2;
    if (e->config.mainloop != EPI_GEMM_SM90 || t->cols.two || t->ref.type > EPI_F16 || !c->count ||
        !r->count || c->step[c->count - 1] != 1)
        return false;
    if (e->config.step / 2 * t->bytes < 32)
        return false;
    if (c->count == 2 && c->step[0] == 0 && c->size[1] % step_cols == 0)
        t->col_mod = c->size[1];
    else if (c->count != 1)
        return false;
    if (r->count == 2 && r->step[0] == 0 && r->size[1] % STAGE_ROWS == 0)
        t->row_mod = r->size[1];
    else if (r->count != 1)
        return false;
    return r->step[r->count - 1] > 0 && r->step[r->count - 1] * size % 16 == 0;
}

static int panel_width(const emitter *e, const stream *t) {
    int bytes = e->config.step / 2 * t->bytes;
    return bytes < 128 ? bytes : 128;
}

static int panel_count(const emitter *e, const stream *t) {
    return e->config.step / 2 * t->bytes / panel_width(e, t);
}

/* Places the streams in a step's staging; a stored tile takes over the panels of a loaded one of the same
 * form. */
static void place_streams(emitter *e) {
    bool taken[MAX_STREAMS] = {false};
    e->stage_bytes = e->load_bytes = 0;
    for (int i = 0; i < e->stream_count; i++) {
        stream *t = &e->streams[i];
        t->takes = -1;
        t->col_mod = t->row_mod = 0;
        t->staged = can_stage(e, t);
        if (!t->staged)
            continue;
        int bytes = panel_width(e, t) * panel_count(e, t) * STAGE_ROWS;
        for (int j = 0; j < e->stream_count && t->store && t->takes < 0; j++)
            if (!e->streams[j].store && e->streams[j].staged && !taken[j] &&
                e->streams[j].bytes == t->bytes) {
                taken[j] = true;
                t->takes = j;
                t->offset = e->streams[j].offset;
            }
        if (t->takes < 0) {
            t->offset = e->stage_bytes;
            e->stage_bytes += bytes;
        }
        if (!t->store)
            e->load_bytes += bytes;
    }
}

static int add_map(emitter *e, const stream *t) {
    epi_kernel_text *k = e->k;
    if (k->map_count == EPI_MAX_MAPS) {
        k->source.failed = true;
        return 0;
    }
    uint64_t size = epi_dtype_size(t->ref.type);
    const epi_walk *r = &t->rows, *c = &t->cols.walk;
    epi_map_need *m = &k->maps[k->map_count];
    *m = (epi_map_need){.node = t->node, .tensor = t->tensor, .type = t->ref.type, .rank = 2};
    m->sizes[0] = (uint64_t)c->size[c->count - 1];
    m->sizes[1] = (uint64_t)(t->row_mod ? t->row_mod : e->tile->m);
    m->strides[1] = (uint64_t)r->step[r->count - 1] * size;
    m->swizzle = panel_width(e, t);
    m->box[0] = (uint32_t)((uint64_t)m->swizzle / size);
    m->box[1] = STAGE_ROWS;
    return k->map_count++;
}

/* The copies of one step, as text: loads, stores or prefetches of the panels. */
static void emit_moves(emitter *e, const stream *t) {
    int width = panel_width(e, t), inner = width / (int)epi_dtype_size(t->ref.type);
    for (int p = 0; p < panel_count(e, t); p++) {
        char x[120], y[80];
        snprintf(x, sizeof x, t->elements == 2 ? "n" : t->elements == 1 ? "n / 2" : "n * 2");
        if (t->col_mod)
            snprintf(x + strlen(x), sizeof x - strlen(x), " %% %ld", (long)t->col_mod);
        if (p)
            snprintf(x + strlen(x), sizeof x - strlen(x), " + %d", p * inner);
        snprintf(y, sizeof y, "m");
        if (t->row_mod)
            snprintf(y, sizeof y, "m %% %ld", (long)t->row_mod);
        int at = t->offset + p * width * STAGE_ROWS;
        const char *name = e->g->nodes[t->node].name ? e->g->nodes[t->node].name : "";
        if (t->store) {
            epi_text_add(&e->moves_out, "  tma_store(&P.map[%d], stage + %d, %s, %s);   // %s\n", t->map, at,
                         x, y, name);
        } else {
            epi_text_add(&e->moves, "  tma_load(stage + %d, &P.map[%d], bar, %s, %s);   // %s\n", at, t->map,
                         x, y, name);
            epi_text_add(&e->prefetch, "  tma_prefetch(&P.map[%d], %s, %s);\n", t->map, x, y);
        }
    }
}

/* The address of bytes of a group's row in the staging. Where there are several panels, groups fill them in turn. */
static void emit_address(emitter *e, epi_text *out, const stream *t, const char *row, const char *byte) {
    int width = panel_width(e, t), group = 8 * t->bytes;
    if (panel_count(e, t) > 1)
        epi_text_add(out, "stage + %d + j * %d / %d * %d + swizzled<%d>(%s, j * %d %% %d + %s)", t->offset, group, width,
                     width * STAGE_ROWS, width, row, group, width, byte);
    else
        epi_text_add(out, "stage + %d + swizzled<%d>(%s, j * %d + %s)", t->offset, width, row, group, byte);
}

static bool by_matrix(const stream *t) {
    return t->elements == 2 && t->bytes == 4;
}

/* Loads of a group come before its cells and stores after them, so that the cells' chains overlap. */
static void emit_staged_load(emitter *e, const stream *t, const char *name) {
    const char *type = epi_emit_type(t->ref.type);
    static const char *const words[] = {"", "u32", "u32", "uint2", "uint4"};
    static const char field[] = "xyzw";
    if (by_matrix(t)) {
        epi_text_add(&e->group, "    u32 %s_w[4];\n    ldm4(", name);
        emit_address(e, &e->group, t, "mrow", "munit");
        epi_text_add(&e->group, ", %s_w);\n", name);
        epi_text_add(&e->cell, "      const float %s_0 = low<%s>(%s_w[i]), %s_1 = high<%s>(%s_w[i]);\n", name,
                     type, name, name, type, name);
        return;
    }
    char byte[64];
    int size = t->bytes == 16 ? 4 : t->bytes == 8 ? 3 : t->bytes == 4 ? 2 : 1;
    snprintf(byte, sizeof byte, "(4 * (i >> 1) + q) * %d", t->bytes);
    epi_text_add(&e->group, "    %s %s_w[4];\n#pragma unroll\n    for (int i = 0; i < 4; i++) %s_w[i] = lds%d(", words[size], name,
                 name, 8 * t->bytes);
    emit_address(e, &e->group, t, "srow + 8 * (i & 1)", byte);
    epi_text_add(&e->group, ");\n");
    for (int el = 0; el < t->elements; el++) {
        epi_text_add(&e->cell, "      const float %s_%d = ", name, el);
        if (t->ref.type == EPI_F32 && t->elements == 1)
            epi_text_add(&e->cell, "__uint_as_float(%s_w[i]);\n", name);
        else if (t->ref.type == EPI_F32)
            epi_text_add(&e->cell, "__uint_as_float(%s_w[i].%c);\n", name, field[el]);
        else if (t->elements == 1)
            epi_text_add(&e->cell, "low<%s>(%s_w[i]);\n", type, name);
        else
            epi_text_add(&e->cell, "%s<%s>(%s_w[i].%c);\n", el & 1 ? "high" : "low", type, name, field[el / 2]);
    }
}

static void emit_staged_store(emitter *e, const stream *t, int v, int number) {
    const char *type = epi_emit_type(t->ref.type);
    if (by_matrix(t)) {
        epi_text_add(&e->group, "    u32 out%d_w[4];\n", number);
        if (v == e->kept && e->split < 0 && e->config.packed && t->ref.type == e->half)
            epi_text_add(&e->cell, "      out%d_w[i] = acc.word(j, i);\n", number); /* it is there already */
        else
            epi_text_add(&e->cell, "      out%d_w[i] = pack<%s>(%s, %s);\n", number, type, use(e, v, 0).text,
                         use(e, v, 1).text);
        epi_text_add(&e->after, "    stm4(");
        emit_address(e, &e->after, t, "mrow", "munit");
        epi_text_add(&e->after, ", out%d_w);\n", number);
        return;
    }
    if (t->elements == 1 && t->bytes == 2) { /* neighbouring lanes swap halves, so that each stores a word */
        epi_text_add(&e->group, "    float out%d_x[4];\n", number);
        epi_text_add(&e->cell, "      out%d_x[i] = %s;\n", number, use(e, v, 0).text);
        epi_text_add(&e->after,
                     "#pragma unroll\n    for (int h = 0; h < 2; h++) {\n"
                     "      const u32 own = pack<%s>(out%d_x[h], out%d_x[h + 2]), other = "
                     "__shfl_xor_sync(~0u, own, 1);\n"
                     "      sts32(",
                     type, number, number);
        emit_address(e, &e->after, t, "srow + 8 * h", "8 * (q & 1) + 4 * (q >> 1)");
        epi_text_add(&e->after, ", __byte_perm(own, other, q & 1 ? 0x3276 : 0x5410));\n    }\n");
        return;
    }
    char byte[64];
    int words = t->bytes / 4;
    snprintf(byte, sizeof byte, "(4 * (i >> 1) + q) * %d", t->bytes);
    epi_text_add(&e->group, "    u32 out%d_w[4][%d];\n", number, words);
    for (int w = 0; w < words; w++)
        if (t->ref.type == EPI_F32)
            epi_text_add(&e->cell, "      out%d_w[i][%d] = __float_as_uint(%s);\n", number, w, use(e, v, w).text);
        else
            epi_text_add(&e->cell, "      out%d_w[i][%d] = pack<%s>(%s, %s);\n", number, w, type,
                         use(e, v, 2 * w).text, use(e, v, 2 * w + 1).text);
    epi_text_add(&e->after, "#pragma unroll\n    for (int i = 0; i < 4; i++) sts%d(", 8 * t->bytes);
    emit_address(e, &e->after, t, "srow + 8 * (i & 1)", byte);
    for (int w = 0; w < words; w++)
        epi_text_add(&e->after, ", out%d_w[i][%d]", number, w);
    epi_text_add(&e->after, ");\n");
}

/* The number of a cell's first element at a scale, inside the loops. */
static const char *index_at(int elements) {
    return elements == 1 ? "n / 2" : elements == 2 ? "n" : "n * 2";
}

static int64_t columns_at(const emitter *e, int elements) {
    return e->tile->n * elements / 2;
}

/* The offset of element `index` along the columns. */
static void emit_column(epi_text *out, const stream *t, const char *index) {
    if (!t->cols.two) {
        epi_emit_walk(out, &t->cols.walk, index);
        return;
    }
    char half[160];
    snprintf(half, sizeof half, "((%s) >> 1)", index);
    epi_emit_walk(out, &t->cols.walk, half);
    epi_text_add(out, " + ((%s) & 1) * %ldLL", index, (long)t->cols.part);
}

/* Neighbours in memory that start at a multiple of their number. */
static bool is_vector(const emitter *e, const stream *t) {
    const epi_walk *c = &t->cols.walk;
    if (t->elements == 1 || t->cols.two || c->count != 1 || c->step[0] != 1 || t->ref.type == EPI_I32 ||
        columns_at(e, t->elements) % t->elements)
        return false;
    for (int d = 0; d < t->rows.count; d++)
        if (t->rows.step[d] % t->elements)
            return false;
    return true;
}

static void emit_row_offset(emitter *e, const stream *t, int number) {
    epi_text_add(&e->members, "  i64 at%d[2];\n", number);
    epi_text_add(&e->rows, "    R.at%d[h] = ", number);
    epi_emit_walk(&e->rows, &t->rows, "r");
    epi_text_add(&e->rows, ";\n");
}

static void emit_direct_load(emitter *e, const stream *t, const char *name, int number) {
    const char *type = epi_emit_type(t->ref.type);
    emit_row_offset(e, t, number);
    long columns = (long)columns_at(e, t->elements);
    if (is_vector(e, t)) {
        epi_text_add(&e->cell,
                     "      float %s_v[%d];\n      load_n<%s>(%s_v, P.ptr[%d], R.at%d[i & 1] + (%s < %ld ? "
                     "%s : 0));\n",
                     name, t->elements, type, name, t->pointer, number, index_at(t->elements), columns,
                     index_at(t->elements));
        for (int el = 0; el < t->elements; el++)
            epi_text_add(&e->cell, "      const float %s_%d = %s_v[%d];\n", name, el, name, el);
        return;
    }
    for (int el = 0; el < t->elements; el++) {
        char index[120];
        snprintf(index, sizeof index, "min(%s + %d, %ld)", index_at(t->elements), el, columns - 1);
        epi_text_add(&e->cell, "      const float %s_%d = load<%s>(P.ptr[%d], R.at%d[i & 1] + ", name, el,
                     type, t->pointer, number);
        emit_column(&e->cell, t, index);
        epi_text_add(&e->cell, ");\n");
    }
}

static void emit_direct_store(emitter *e, const stream *t, int v, int number) {
    const char *type = epi_emit_type(t->ref.type);
    emit_row_offset(e, t, number);
    long columns = (long)columns_at(e, t->elements);
    if (is_vector(e, t)) {
        epi_text_add(&e->cell,
                     "      if (row + 8 * (i & 1) < P.M && %s < %ld) {\n        const float v[%d] = {",
                     index_at(t->elements), columns, t->elements);
        for (int el = 0; el < t->elements; el++)
            epi_text_add(&e->cell, "%s%s", el ? ", " : "", use(e, v, el).text);
        epi_text_add(&e->cell,
                     "};\n        store_n<%s>((void *)P.ptr[%d], R.at%d[i & 1] + %s, v);\n      }\n", type,
                     t->pointer, number, index_at(t->elements));
        return;
    }
    for (int el = 0; el < t->elements; el++) {
        char index[120];
        snprintf(index, sizeof index, "(%s + %d)", index_at(t->elements), el);
        epi_text_add(
            &e->cell,
            "      if (row + 8 * (i & 1) < P.M && %s < %ld) store<%s>((void *)P.ptr[%d], R.at%d[i & 1] + ",
            index, columns, type, t->pointer, number);
        emit_column(&e->cell, t, index);
        epi_text_add(&e->cell, ", %s);\n", use(e, v, el).text);
    }
}

static int stream_of(const emitter *e, int step) {
    for (int i = 0; i < e->stream_count; i++)
        if (e->streams[i].step == step)
            return i;
    return -1;
}

/* ---- values that are not elements: rows and columns ---- */

/* A value per row or for the whole tile: computed once a tile, kept in Rows. */
static void emit_row_value(emitter *e, const epi_tile_step *s) {
    const epi_tile_value *v = &e->tile->values[s->dst];
    epi_name name = value_name(e, s->dst);
    if (s->kind == EPI_TILE_CONST)
        return;
    epi_text_add(&e->members, v->rows ? "  float %s_r[2];\n" : "  float %s_u;\n", name.text);
    epi_text_add(&e->rows, v->rows ? "    R.%s_r[h] = " : "    R.%s_u = ", name.text);
    if (s->kind == EPI_TILE_LOAD) {
        epi_ref ref = epi_emit_ref(e->c, s->node, -1);
        epi_walk w = epi_walk_axes(&ref, &e->plan->rows, e->c->spec->sizes);
        epi_text_add(&e->rows, "load<%s>(P.ptr[%d], ", epi_emit_type(ref.type),
                     epi_emit_pointer(e->k, s->node, -1));
        epi_emit_walk(&e->rows, &w, "r");
        epi_text_add(&e->rows, ");\n");
    } else if (s->kind == EPI_TILE_INDEX) {
        epi_text_add(&e->rows, "(float)(");
        epi_emit_digit(&e->rows, &e->plan->rows,
                       epi_axes_find(&e->plan->rows, e->g->nodes[s->node].over.at[0]), e->c->spec->sizes,
                       "r");
        epi_text_add(&e->rows, ");\n");
    } else {
        char arg[3][100];
        for (int a = 0; a < 3; a++) { /* the cell loop's i & 1 is h here */
            arg[a][0] = 0;
            if (s->arg[a] < 0)
                continue;
            snprintf(arg[a], sizeof arg[a], "%.99s", use(e, s->arg[a], 0).text);
            char *at = strstr(arg[a], "[i & 1]");
            if (at)
                memcpy(at, "[h]\0", 4);
        }
        if (s->kind == EPI_TILE_MULADD)
            epi_text_add(&e->rows, "__fmaf_rn(%s%s, %s, %s%s)", s->sign < 0 ? "-" : "", arg[0], arg[1],
                         s->other < 0 ? "-" : "", arg[2]);
        else
            epi_emit_op(&e->rows, s->op, arg[0], arg[1], arg[2]);
        epi_text_add(&e->rows, ";   // line %d\n", e->g->nodes[s->node].place.line);
    }
}

/* The position along an axis of the column whose number at its scale is `index`. */
static void emit_column_index(emitter *e, epi_axis axis, epi_scale scale, const char *index) {
    const epi_plan *p = e->plan;
    const int64_t *sizes = e->c->spec->sizes;
    epi_axes axes = p->cols;
    if (p->part == EPI_OP_COUNT) {
        epi_emit_digit(&e->group, &axes, epi_axes_find(&axes, axis), sizes, index);
        return;
    }
    epi_axis coarse = {p->fine.dim, (int16_t)(p->fine.shift - 1)};
    int at = epi_axes_find_dim(&axes, p->fine.dim), wanted = epi_axes_find_dim(&axes, axis.dim);
    axes.at[at] = coarse;
    char half[160];
    snprintf(half, sizeof half, scale == EPI_SCALE_FINE ? "((%s) >> 1)" : "(%s)", index);
    if (wanted == at && axis.shift == p->fine.shift) { /* the parted axis itself, at its longer scale */
        bool pairs = p->part == EPI_OP_EVEN;
        epi_text_add(&e->group, pairs ? "2 * (" : "(");
        epi_emit_digit(&e->group, &axes, at, sizes, half);
        epi_text_add(&e->group, ") + ((%s) & 1) * %ld", index,
                     pairs ? 1L : (long)epi_axis_size(coarse, sizes));
        return;
    }
    epi_emit_digit(&e->group, &axes, wanted, sizes, half);
}

/* A value per column: computed once a group of 16 columns. */
static void emit_column_value(emitter *e, const epi_tile_step *s) {
    const epi_tile_value *v = &e->tile->values[s->dst];
    epi_name name = value_name(e, s->dst);
    int elements = per_cell(e, v->scale);
    epi_text_add(&e->group,
                 "    float %s_c[%d];\n#pragma unroll\n    for (int i = 0; i < 4; i += 2) {\n      const int "
                 "n = col + 16 * j + 4 * i + 2 * q;\n",
                 name.text, 2 * elements);
    epi_ref ref = epi_emit_ref(e->c, s->node, -1);
    stream t = {.ref = ref, .elements = elements};
    t.cols = epi_columns_of(e->plan, &ref, e->c->spec->sizes, v->scale);
    int pointer = s->kind == EPI_TILE_LOAD ? epi_emit_pointer(e->k, s->node, -1) : 0;
    bool vector = s->kind == EPI_TILE_LOAD && is_vector(e, &t);
    long columns = (long)columns_at(e, elements);
    if (vector)
        epi_text_add(&e->group, "      float v[%d];\n      load_n<%s>(v, P.ptr[%d], %s < %ld ? %s : 0);\n",
                     elements, epi_emit_type(ref.type), pointer, index_at(elements), columns,
                     index_at(elements));
    for (int el = 0; el < elements; el++) {
        char index[120];
        epi_text_add(&e->group, "      %s_c[(i >> 1) * %d + %d] = ", name.text, elements, el);
        snprintf(index, sizeof index, "min(%s + %d, %ld)", index_at(elements), el, columns - 1);
        if (vector) {
            epi_text_add(&e->group, "v[%d]", el);
        } else if (s->kind == EPI_TILE_LOAD) {
            epi_text_add(&e->group, "load<%s>(P.ptr[%d], ", epi_emit_type(ref.type), pointer);
            emit_column(&e->group, &t, index);
            epi_text_add(&e->group, ")");
        } else if (s->kind == EPI_TILE_INDEX) {
            epi_text_add(&e->group, "(float)(");
            emit_column_index(e, e->g->nodes[s->node].over.at[0], v->scale, index);
            epi_text_add(&e->group, ")");
        } else if (s->kind == EPI_TILE_MULADD) {
            epi_text_add(&e->group, "__fmaf_rn(%s%s, %s, %s%s)", s->sign < 0 ? "-" : "",
                         use(e, s->arg[0], el).text, use(e, s->arg[1], el).text, s->other < 0 ? "-" : "",
                         use(e, s->arg[2], el).text);
        } else if (s->kind == EPI_TILE_PART) {
            epi_text_add(&e->group, "%s", use(e, s->arg[0], 2 * el + s->odd).text);
        } else if (s->kind == EPI_TILE_JOIN) {
            epi_text_add(&e->group, "%s", use(e, s->arg[el & 1], el / 2).text);
        } else {
            epi_emit_op(&e->group, s->op, use(e, s->arg[0], el).text,
                        s->arg[1] >= 0 ? use(e, s->arg[1], el).text : "",
                        s->arg[2] >= 0 ? use(e, s->arg[2], el).text : "");
        }
        epi_text_add(&e->group, ";\n");
    }
    epi_text_add(&e->group, "    }\n");
}

/* ---- elements ---- */

static void comment(emitter *e, epi_text *out, const epi_tile_step *s) {
    const epi_node *n = &e->g->nodes[s->node];
    if (n->name)
        epi_text_add(out, "      // %s, line %d\n", n->name, n->place.line);
}

static void emit_value(emitter *e, const epi_tile_step *s, epi_text *out, const char *indent) {
    epi_name name = value_name(e, s->dst);
    int elements = per_cell(e, e->tile->values[s->dst].scale);
    bool split = e->split >= 0 && s == &e->tile->steps[e->split];
    for (int el = 0; el < elements; el++) {
        epi_text_add(out, "%sconst float %s_%d = ", indent, name.text, el);
        if (s->kind == EPI_TILE_PART)
            epi_text_add(out, "%s", use(e, s->arg[0], 2 * el + s->odd).text);
        else if (s->kind == EPI_TILE_JOIN)
            epi_text_add(out, "%s", use(e, s->arg[el & 1], el / 2).text);
        else if (split)
            epi_text_add(out, "%s %c %s", use(e, e->kept, el).text, s->other < 0 ? '-' : '+',
                         use(e, s->arg[2], el).text);
        else if (s->kind == EPI_TILE_MULADD)
            epi_text_add(out, "__fmaf_rn(%s%s, %s, %s%s)", s->sign < 0 ? "-" : "", use(e, s->arg[0], el).text,
                         use(e, s->arg[1], el).text, s->other < 0 ? "-" : "", use(e, s->arg[2], el).text);
        else
            epi_emit_op(out, s->op, use(e, s->arg[0], el).text,
                        s->arg[1] >= 0 ? use(e, s->arg[1], el).text : "",
                        s->arg[2] >= 0 ? use(e, s->arg[2], el).text : "");
        epi_text_add(out, ";\n");
    }
}

/* ---- reductions that leave ---- */

static const char *fold_of(epi_op op) {
    return op == EPI_OP_RMAX        ? "Most"
           : op == EPI_OP_RMIN      ? "Least"
           : op == EPI_OP_LOGSUMEXP ? "LogSumExp"
                                    : "Total";
}

/* An element that is not there counts as the reduction's identity. */
static void emit_masked(emitter *e, epi_text *out, epi_op op, int v, int el, bool rows) {
    int elements = per_cell(e, e->tile->values[v].scale);
    bool ragged = rows ? e->tile->n % EPI_PARTIAL_COLS != 0 : e->tile->m % EPI_PARTIAL_ROWS != 0;
    if (!ragged) {
        epi_text_add(out, "%s", use(e, v, el).text);
        return;
    }
    if (rows)
        epi_text_add(out, "(%s + %d < %ld ? %s : %s::none())", index_at(elements), el,
                     (long)columns_at(e, elements), use(e, v, el).text, fold_of(op));
    else
        epi_text_add(out, "(row + 8 * (i & 1) < P.M ? %s : %s::none())", use(e, v, el).text, fold_of(op));
}

static void emit_reduce_rows(emitter *e, const epi_tile_step *s, int number) {
    const char *fold = fold_of(s->op);
    int elements = per_cell(e, e->tile->values[s->arg[0]].scale),
        pointer = epi_emit_pointer(e->k, s->node, EPI_POINTER_WORKSPACE);
    int64_t blocks = epi_ceil_div(e->tile->n, EPI_PARTIAL_COLS);
    bool two = s->op == EPI_OP_LOGSUMEXP;
    e->c->partials[s->node] = e->c->workspace;
    e->c->workspace += epi_round_up(blocks * e->tile->m * (two ? 2 : 1) * 4, 64);
    epi_text_add(&e->sums, "  %s s%d[2];\n", fold, number);
    epi_text_add(&e->begin, "  if (C * STEP %% %d == 0) S.s%d[0].clear(), S.s%d[1].clear();\n",
                 EPI_PARTIAL_COLS, number, number);
    if (two) {
        epi_text_add(&e->group, "    float x%d[4][%d];\n", number, elements);
        for (int el = 0; el < elements; el++) {
            epi_text_add(&e->cell, "      x%d[i][%d] = ", number, el);
            emit_masked(e, &e->cell, s->op, s->arg[0], el, true);
            epi_text_add(&e->cell, ";\n");
        }
        epi_text_add(&e->after, "    S.s%d[0].take(x%d[0], x%d[2]);\n    S.s%d[1].take(x%d[1], x%d[3]);\n",
                     number, number, number, number, number, number);
    } else {
        for (int el = 0; el < elements; el++) {
            epi_text_add(&e->cell, "      S.s%d[i & 1].take(", number);
            emit_masked(e, &e->cell, s->op, s->arg[0], el, true);
            epi_text_add(&e->cell, ");\n");
        }
    }
    epi_text_add(&e->end,
                 "  if ((C + 1) * STEP %% %d == 0 || C == STEPS - 1) {   // %s over %d columns leaves\n"
                 "    const int block = (col + STEP - 1) / %d;\n"
                 "#pragma unroll\n    for (int h = 0; h < 2; h++) {\n"
                 "      S.s%d[h].across_columns();\n"
                 "      if (q == 0 && row + 8 * h < P.M && block < %ld) S.s%d[h].leave((float *)P.ptr[%d] + "
                 "%ldLL, (i64)block * P.M + row + 8 * h, %ldLL * P.M);\n"
                 "    }\n  }\n",
                 EPI_PARTIAL_COLS, epi_ops[s->op].text, EPI_PARTIAL_COLS, EPI_PARTIAL_COLS, number,
                 (long)blocks, number, pointer, (long)(e->c->partials[s->node] / 4), (long)blocks);
}

static bool emit_reduce_cols(emitter *e, const epi_tile_step *s, int number) {
    const char *fold = fold_of(s->op);
    int elements = per_cell(e, e->tile->values[s->arg[0]].scale),
        pointer = epi_emit_pointer(e->k, s->node, EPI_POINTER_WORKSPACE);
    if (s->op == EPI_OP_LOGSUMEXP) {
        snprintf(e->reason, sizeof e->reason, "a logsumexp down the rows does not leave a tile");
        return false;
    }
    long columns = (long)columns_at(e, elements);
    e->c->partials[s->node] = e->c->workspace;
    e->c->workspace += epi_round_up(epi_ceil_div(e->tile->m, EPI_PARTIAL_ROWS) * columns * 4, 64);
    epi_text_add(&e->group, "    %s c%d[%d];\n", fold, number, 2 * elements);
    for (int el = 0; el < elements; el++) {
        epi_text_add(&e->cell, "      c%d[(i >> 1) * %d + %d].fold_row(i & 1, ", number, elements, el);
        emit_masked(e, &e->cell, s->op, s->arg[0], el, false);
        epi_text_add(&e->cell, ");\n");
    }
    epi_text_add(
        &e->after,
        "    {   // %s over %d rows leaves\n      int at;\n      const float x = down_rows(c%d, lane, at);\n"
        "      const int n = (col + 16 * j) * %d / 2 + at;\n"
        "      if (at >= 0 && n < %ld && (row & ~15) < P.M) ((float *)P.ptr[%d])[%ldLL + (i64)(row >> 4) * "
        "%ldLL + n] = x;\n    }\n",
        epi_ops[s->op].text, EPI_PARTIAL_ROWS, number, elements, columns, pointer,
        (long)(e->c->partials[s->node] / 4), columns);
    return true;
}

/* ---- reductions inside the tile ---- */

static bool emit_step(emitter *e, int i);

/* Marks the steps that make a value of the tile; false where a tile is loaded on the way: it is staged for one step at
 * a time, and the group is wider. */
static bool mark_makers(const emitter *e, int v, bool *makers) {
    const epi_tile *t = e->tile;
    for (int i = 0; i < t->step_count; i++) {
        const epi_tile_step *s = &t->steps[i];
        if (s->dst != v || e->before[i] || makers[i] || v == e->kept)
            continue;
        if (s->kind == EPI_TILE_LOAD && is_full(&t->values[v]))
            return false;
        makers[i] = is_full(&t->values[v]) || t->values[v].scale != EPI_SCALE_NONE;
        for (int a = 0; a < 3 && s->kind != EPI_TILE_GROUP; a++)
            if (s->arg[a] >= 0 && !mark_makers(e, s->arg[a], makers))
                return false;
    }
    return true;
}

/* A reduction over neighbouring columns that the tile holds whole: at the group's first columns, one pass over its
 * accumulators works out the result, which stays until the next group. */
static bool emit_group_reduction(emitter *e, const epi_tile_step *s, int number) {
    const epi_tile *t = e->tile;
    for (int el = 0; el < per_cell(e, t->values[s->dst].scale); el++)
        epi_text_add(&e->cell, "      const float %s_%d = S.g%d[i & 1];\n", value_name(e, s->dst).text, el, number);
    if (e->grouped[number])
        return true;
    e->grouped[number] = true;
    const char *fold = fold_of(s->op);
    int columns = t->group[t->acc_scale], elements = per_cell(e, t->values[s->arg[0]].scale);
    bool *makers = epi_arena_alloc(e->c->arena, (size_t)t->step_count + 1);
    if (!makers || columns % 16 || (e->config.mainloop != EPI_GEMM_SM90 && EPI_PARTIAL_COLS % columns)) {
        snprintf(e->reason, sizeof e->reason, "a reduction over %d neighbouring columns does not fit this mainloop", columns);
        return false;
    }
    if (!mark_makers(e, s->arg[0], makers)) {
        snprintf(e->reason, sizeof e->reason, "a reduction inside the tile of a value that is loaded");
        return false;
    }
    epi_text group = e->group, cell = e->cell;
    e->group = e->cell = (epi_text){0};
    for (int i = 0; i < t->step_count; i++)
        if (makers[i] && !emit_step(e, i))
            return false;
    epi_text inner_group = e->group, inner = e->cell;
    e->group = group;
    e->cell = cell;
    epi_text_add(&e->sums, "  float g%d[2];\n", number);
    epi_text_add(&e->group,
                 "    if ((C * STEP + 16 * j) %% %d == 0) {   // %s over %d columns, line %d\n      %s f[2];\n"
                 "      f[0].clear();\n      f[1].clear();\n#pragma unroll\n      for (int u = 0; u < %d; u++) {\n"
                 "        const int first = j + u;\n        {\n    const int j = first;\n%s#pragma unroll\n"
                 "    for (int i = 0; i < 4; i++) {\n      const int n = col + 16 * j + 8 * (i >> 1) + 2 * q;\n      (void)n;\n"
                 "      const float %s_0 = acc(j, i, 0), %s_1 = acc(j, i, 1);\n%s",
                 columns, epi_ops[s->op].text, columns, e->g->nodes[s->node].place.line, fold, columns / 16,
                 inner_group.data ? inner_group.data : "", value_name(e, e->kept).text, value_name(e, e->kept).text,
                 inner.data ? inner.data : "");
    for (int el = 0; el < elements; el++)
        epi_text_add(&e->group, "      f[i & 1].take(%s);\n", use(e, s->arg[0], el).text);
    epi_text_add(&e->group, "    }\n        }\n      }\n#pragma unroll\n      for (int h = 0; h < 2; h++) {\n        f[h].across_columns();\n");
    if (s->op == EPI_OP_MEAN)
        epi_text_add(&e->group, "        S.g%d[h] = f[h].end(1.f) * %s;\n", number,
                     epi_emit_number(1.0 / (double)(columns * elements / 2)).text);
    else
        epi_text_add(&e->group, "        S.g%d[h] = f[h].end(1.f);\n", number);
    epi_text_add(&e->group, "      }\n    }\n");
    e->group.failed |= inner_group.failed || inner.failed;
    epi_text_free(&inner_group);
    epi_text_free(&inner);
    return true;
}

/* ---- the packing point ---- */

static bool short_value(const emitter *e, int v) {
    return v >= 0 && e->tile->values[v].scale == EPI_SCALE_NONE;
}

/* Every tile that is stored takes 16 bits: only then may the result be rounded on the way. */
static bool may_pack(const emitter *e) {
    for (int i = 0; i < e->stream_count; i++)
        if (e->streams[i].store && e->streams[i].ref.type != EPI_BF16 && e->streams[i].ref.type != EPI_F16)
            return false;
    return true;
}

/* The value that is packed: the product, with the row scales that nothing else waits for. A pure function of
 * the program, so every configuration rounds at the same place. */
static void find_packing_point(emitter *e) {
    const epi_tile *t = e->tile;
    e->kept = 0;
    e->split = -1;
    if (!e->config.packed)
        return;
    for (bool more = true; more;) {
        int uses = 0, only = -1;
        more = false;
        for (int i = 0; i < t->step_count; i++)
            for (int a = 0; a < 3; a++)
                if (t->steps[i].arg[a] == e->kept) {
                    uses++;
                    only = i;
                }
        if (uses != 1)
            break;
        const epi_tile_step *s = &t->steps[only];
        if (s->kind == EPI_TILE_MULADD && s->arg[2] != e->kept &&
            short_value(e, s->arg[0] == e->kept ? s->arg[1] : s->arg[0]))
            e->split = only;
        if (s->kind != EPI_TILE_MAP || !(s->op == EPI_OP_MUL || s->op == EPI_OP_DIV || s->op == EPI_OP_NEG) ||
            (s->op == EPI_OP_DIV && s->arg[0] != e->kept))
            break;
        for (int a = 0; a < 2; a++)
            if (s->arg[a] >= 0 && s->arg[a] != e->kept && !short_value(e, s->arg[a]))
                return;
        e->before[only] = true;
        e->kept = s->dst;
        more = true;
    }
}

/* keep(): the steps before the packing point on a pair of accumulators. */
static void emit_keep(emitter *e, epi_text *out) {
    epi_name acc = value_name(e, 0);
    epi_text_add(out,
                 "// The result up to the point where it is rounded to 16 bits.\n"
                 "DEV void before_packing(const Rows &R, int i, float &v0, float &v1) {\n"
                 "  const float %s_0 = v0, %s_1 = v1;\n",
                 acc.text, acc.text);
    for (int i = 0; i < e->tile->step_count; i++)
        if (e->before[i])
            emit_value(e, &e->tile->steps[i], out, "  ");
    char scale[160] = "";
    if (e->split >= 0) {
        const epi_tile_step *s = &e->tile->steps[e->split];
        snprintf(scale, sizeof scale, " * %s%s", s->sign < 0 ? "-" : "",
                 use(e, s->arg[0] == e->kept ? s->arg[1] : s->arg[0], 0).text);
    }
    epi_text_add(out, "  v0 = %s%s;\n  v1 = %s%s;\n}\n", use(e, e->kept, 0).text, scale,
                 use(e, e->kept, 1).text, scale);
    epi_text_add(out, "DEV u32 keep(const Rows &R, int i, float v0, float v1) {\n  before_packing(R, i, v0, "
                      "v1);\n  return pack<HALF>(v0, v1);\n}\n");
}

/* ---- the whole ---- */

/* One step of the tile's list, into the text where it belongs. */
static bool emit_step(emitter *e, int i) {
    const epi_tile *t = e->tile;
    const epi_tile_step *s = &t->steps[i];
    int at = stream_of(e, i);
    if (e->before[i])
        return true;
    if (s->kind == EPI_TILE_GROUP)
        return emit_group_reduction(e, s, i);
    if (s->kind == EPI_TILE_REDUCE_COLS)
        return emit_reduce_cols(e, s, i);
    if (s->kind == EPI_TILE_REDUCE_ROWS) {
        emit_reduce_rows(e, s, i);
    } else if (at >= 0 && e->streams[at].store) {
        const stream *st = &e->streams[at];
        (st->staged ? emit_staged_store(e, st, s->arg[0], i) : emit_direct_store(e, st, s->arg[0], i));
    } else if (at >= 0) {
        const stream *st = &e->streams[at];
        (st->staged ? emit_staged_load(e, st, value_name(e, s->dst).text)
                    : emit_direct_load(e, st, value_name(e, s->dst).text, i));
    } else if (is_full(&t->values[s->dst])) {
        comment(e, &e->cell, s);
        emit_value(e, s, &e->cell, "      ");
    } else if (t->values[s->dst].scale != EPI_SCALE_NONE) {
        if (e->g->nodes[s->node].op != EPI_OP_CONST && e->g->nodes[s->node].op != EPI_OP_SIZE)
            emit_column_value(e, s);
    } else {
        emit_row_value(e, s);
    }
    return true;
}

static bool emit_steps(emitter *e) {
    for (int i = 0; i < e->tile->step_count; i++)
        if (!emit_step(e, i))
            return false;
    return true;
}

/* How a product reads its operand: depth innermost, or rows (columns) innermost. */
typedef struct operand {
    int node;
    epi_ref ref;
    epi_walk out, depth; /* along rows or columns, and along the depth */
    epi_columns cols;
    bool mn;
    int vec; /* sm80: elements that can be copied at once */
} operand;

static operand operand_of(const emitter *e, int side) {
    const epi_node *n = &e->g->nodes[e->plan->product];
    operand o = {.node = n->arg[side == 0 ? e->plan->row_arg : !e->plan->row_arg]};
    const int64_t *sizes = e->c->spec->sizes;
    o.ref = epi_emit_ref(e->c, o.node, -1);
    o.depth = epi_walk_axes(&o.ref, &e->plan->depth, sizes);
    if (side == 0) {
        o.out = epi_walk_axes(&o.ref, &e->plan->rows, sizes);
    } else {
        o.cols = epi_columns_of(e->plan, &o.ref, sizes, e->tile->acc_scale);
        o.out = o.cols.walk;
    }
    return o;
}

/* Has the operand copied; answers what the copy looks like. Small products are left to other mainloops, by a rule that
 * does not look at the rows: a row's bits must not depend on the batch. */
static bool repack_operand(emitter *e, const operand *o, epi_repack **out) {
    int64_t depth = epi_axes_size(&e->plan->depth, e->c->spec->sizes);
    if ((double)e->tile->n * (double)depth < 0x1p18 || e->k->repack_count == 2)
        return false;
    epi_repack *r = *out = &e->k->repacks[e->k->repack_count++];
    *r = (epi_repack){.node = o->node, .out = o->cols, .depth = o->depth, .depth_count = depth};
    if (!o->cols.two)
        r->out.walk = o->out;
    r->out_count = e->plan->row_arg == (o->node == e->g->nodes[e->plan->product].arg[0] ? 0 : 1) ? e->tile->m : e->tile->n;
    r->mn = !o->cols.two && o->out.count && o->out.step[o->out.count - 1] == 1 &&
            !(o->depth.count && o->depth.step[o->depth.count - 1] == 1);
    r->pitch = epi_round_up(r->mn ? r->out_count : depth, 8);
    r->offset = epi_round_up(e->c->workspace, 256);
    e->c->workspace = r->offset + epi_round_up((r->mn ? depth : r->out_count) * r->pitch * 2, 256);
    return true;
}

/* A map of the operand: boxes of 64 deep by `rows` where the depth is innermost, of 64 by `deep` where it is not. False
 * where the copy engine cannot take it. */
static bool map_operand(emitter *e, operand *o, int rows, int deep) {
    int64_t size = (int64_t)epi_dtype_size(o->ref.type);
    int64_t out_step = o->out.count ? o->out.step[0] : 0, depth_step = o->depth.count ? o->depth.step[0] : 0;
    int64_t out_size = o->out.count ? o->out.size[0] : 1, depth_size = o->depth.count ? o->depth.size[0] : 1;
    if (!o->depth.count) /* one deep: rows of one element */
        depth_step = o->out.count && out_step == 1 ? epi_round_up(out_size, 8) : 1;
    if (!o->out.count)
        out_step = depth_step == 1 ? epi_round_up(depth_size, 8) : 1;
    o->mn = depth_step != 1;
    int64_t pitch = o->mn ? depth_step : out_step;
    epi_repack *copy = NULL;
    if (o->cols.two || o->out.count > 1 || o->depth.count > 1 || (o->mn && out_step != 1) || pitch * size % 16 ||
        pitch < (o->mn ? out_size : depth_size)) {
        if (!repack_operand(e, o, &copy))
            return false;
        o->mn = copy->mn;
        pitch = copy->pitch;
        out_size = copy->out_count;
        depth_size = copy->depth_count;
    }
    if (e->k->map_count == EPI_MAX_MAPS)
        return false;
    epi_map_need *m = &e->k->maps[e->k->map_count++];
    *m = (epi_map_need){.node = o->node, .tensor = -1, .type = o->ref.type, .rank = 2, .swizzle = 128};
    if (copy) {
        m->tensor = EPI_POINTER_WORKSPACE;
        m->offset = copy->offset;
    }
    m->sizes[0] = (uint64_t)(o->mn ? out_size : depth_size);
    m->sizes[1] = (uint64_t)(o->mn ? depth_size : out_size);
    m->strides[1] = (uint64_t)(pitch * size);
    m->box[0] = 64;
    m->box[1] = (uint32_t)(o->mn ? deep : rows);
    return true;
}

static bool ends_in_neighbours(const epi_walk *w) {
    return w->count && w->step[w->count - 1] == 1;
}

/* Without the copy engine: along which side neighbours lie, and how many of them always start at a multiple
 * of their number; one, where they are not found in eights. */
static void measure_operand(operand *o) {
    const epi_walk *d = &o->depth, *r = &o->out;
    bool by_out = !o->cols.two && (!r->count || ends_in_neighbours(r));
    bool by_depth = ends_in_neighbours(d) || (!d->count && !by_out);
    o->mn = !by_depth && (by_out || ends_in_neighbours(r));
    const epi_walk *along = o->mn ? r : d, *across = o->mn ? d : r;
    int run = along->count - 1;
    o->vec = (by_out || by_depth) && (run < 1 || along->size[run] % 8 == 0) ? 8 : 1;
    for (int i = 0; i < run; i++)
        while (along->step[i] % o->vec)
            o->vec /= 2;
    for (int i = 0; i < across->count; i++)
        while (across->step[i] % o->vec)
            o->vec /= 2;
    while (o->cols.two && o->cols.part % o->vec)
        o->vec /= 2;
}

/* wgmma of a tile's width, by name: operands by descriptor, accumulators in place. */
static void emit_wgmma(emitter *e, epi_text *out, const operand *a, const operand *b) {
    int n = e->config.tile_n, r = n / 2;
    const char *type = e->half == EPI_BF16 ? "bf16" : "f16";
    epi_text_add(out,
                 "DEV void wgmma(float (&d)[%d], u64 a, u64 b, int add) {\n  asm volatile(\"{.reg .pred p; "
                 "setp.ne.b32 p, %%%d, 0;\\n\"\n"
                 "    \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {",
                 r, r + 2, n, type, type);
    for (int i = 0; i < r; i++)
        epi_text_add(out, "%s%%%d", i ? ", " : "", i);
    epi_text_add(out, "}, %%%d, %%%d, p, 1, 1, %d, %d;}\"\n    : ", r, r + 1, a->mn, b->mn);
    for (int i = 0; i < r; i++)
        epi_text_add(out, "%s\"+f\"(d[%d])", i ? ", " : "", i);
    epi_text_add(out, " : \"l\"(a), \"l\"(b), \"r\"(add));\n}\n");
}

/* Does the epilogue hold so much at once that wide steps would run out of registers? */
static bool is_heavy(const emitter *e) {
    bool heavy = e->stream_count > 3;
    for (int i = 0; i < e->tile->step_count; i++)
        heavy |= e->tile->steps[i].kind == EPI_TILE_GROUP;
    return heavy;
}

/* Chooses the step's width and the staging so that all fits beside the ring. */
static bool fit_shared(emitter *e) {
    epi_config *f = &e->config;
    int slot = (128 + f->tile_n) * 64 * 2, wanted = f->step;
    static const int widths[] = {64, 32, 16};
    for (int i = is_heavy(e) && !wanted ? 1 : 0; i < 3; i++) {
        if ((wanted && widths[i] != wanted) || f->tile_n % widths[i])
            continue;
        f->step = widths[i];
        place_streams(e);
        int steps = f->tile_n / f->step;
        for (int slots = f->stage_slots ? f->stage_slots : 2; slots >= 1; slots--) {
            int bytes =
                f->stages * slot + 2 * slots * e->stage_bytes + 16 * f->stages + 48 * slots + 32 * steps + 64;
            if (bytes <= SHARED_MOST) {
                f->stage_slots = slots;
                e->k->shared = bytes;
                return true;
            }
            if (f->stage_slots)
                break;
        }
    }
    snprintf(e->reason, sizeof e->reason, "the epilogue's tiles do not fit beside %d stages", f->stages);
    return false;
}

static void put_operand(epi_text *out, char which, const operand *o, int pointer) {
    epi_text_add(out, "#define %c_TYPE %s\nDEV i64 %c_row(int r) { return ", which,
                 epi_emit_type(o->ref.type), which);
    if (o->cols.two) {
        epi_emit_walk(out, &o->cols.walk, "(r >> 1)");
        epi_text_add(out, " + (r & 1) * %ldLL", (long)o->cols.part);
    } else {
        epi_emit_walk(out, &o->out, "r");
    }
    epi_text_add(out, "; }\nDEV i64 %c_depth(int k) { return ", which);
    epi_emit_walk(out, &o->depth, "k");
    epi_text_add(out, "; }\n#define %c_PTR %d\n", which, pointer);
}

static bool prepare(emitter *e, operand op[2]) {
    epi_kernel_text *k = e->k;
    epi_config *f = &e->config;
    op[0] = operand_of(e, 0);
    op[1] = operand_of(e, 1);
    bool halves =
        op[0].ref.type == op[1].ref.type && (op[0].ref.type == EPI_BF16 || op[0].ref.type == EPI_F16);
    e->half = halves ? op[0].ref.type : e->c->spec->type == EPI_F16 ? EPI_F16 : EPI_BF16;
    for (int i = 0; i < e->tile->step_count; i++) {
        const epi_tile_step *s = &e->tile->steps[i];
        bool full = s->dst >= 0 ? is_full(&e->tile->values[s->dst]) : true;
        if (s->kind == EPI_TILE_STORE || (s->kind == EPI_TILE_LOAD && full))
            make_stream(e, i);
    }
    e->fast = may_pack(e);
    if (!e->fast || !halves)
        f->packed = false;
    if (f->mainloop != EPI_GEMM_ANY && !halves) {
        snprintf(e->reason, sizeof e->reason, "tensor cores take two operands of one 16-bit type");
        return false;
    }
    if (f->mainloop == EPI_GEMM_SM90) {
        if (!fit_shared(e))
            return false;
        if (e->tile->m < 1 || e->tile->n < 1 || epi_axes_size(&e->plan->depth, e->c->spec->sizes) < 1) {
            snprintf(e->reason, sizeof e->reason, "a size is zero");
            return false;
        }
        if (!map_operand(e, &op[0], 128, 64) || !map_operand(e, &op[1], f->tile_n / f->cluster, 64 / f->cluster)) {
            snprintf(e->reason, sizeof e->reason,
                     "the copy engine cannot take an operand as it lies in memory");
            return false;
        }
        k->block = 384;
    } else {
        if (f->mainloop == EPI_GEMM_SM80 && epi_axes_size(&e->plan->depth, e->c->spec->sizes) < 1) {
            snprintf(e->reason, sizeof e->reason, "a size is zero");
            return false;
        }
        f->step = 64;
        f->stage_slots = 1;
        f->deferred = false;
        place_streams(e);
        measure_operand(&op[0]);
        measure_operand(&op[1]);
        k->block = 128;
        if (f->mainloop == EPI_GEMM_SM80) {
            k->block = 256;
            if (e->c->capability == 86 || e->c->capability == 89 || e->c->capability >= 120)
                f->stages = 3; /* two blocks share 100 KB */
            k->shared = f->stages * (f->tile_m + f->tile_n) * SM80_DEPTH * 2;
        }
    }
    for (int i = 0; i < e->stream_count; i++) {
        stream *t = &e->streams[i];
        if (t->staged) {
            t->map = add_map(e, t);
            emit_moves(e, t);
        } else {
            t->pointer = epi_emit_pointer(k, t->node, t->tensor);
        }
    }
    return true;
}

static const char *or_none(const epi_text *t) {
    return t->data ? t->data : "";
}

static void write_source(emitter *e, const operand op[2]) {
    epi_kernel_text *k = e->k;
    const epi_config *f = &e->config;
    epi_text *out = &k->source;
    static const char *const files[] = {"gemm_sm90", "gemm_sm80", "gemm_any"};
    int a_ptr = epi_emit_pointer(k, op[0].node, -1), b_ptr = epi_emit_pointer(k, op[1].node, -1);
    int64_t depth = epi_axes_size(&e->plan->depth, e->c->spec->sizes);
    epi_text_add(out,
                 "#define NAME %s\n#define EPI_FAST %d\n#define N_SIZE %ld\n#define K_SIZE %ld\n#define "
                 "TILE_N %d\n#define STAGES %d\n"
                 "#define CLUSTER %d\n#define STEP %d\n#define STAGE_SLOTS %d\n#define DEFERRED %d\n#define "
                 "KEEP_F32 %d\n#define A_MN %d\n#define B_MN %d\n"
                 "#define HALF %s\n#define STAGE_BYTES %d\n#define LOAD_BYTES %d\n",
                 k->name, e->fast, (long)e->tile->n, (long)depth, f->tile_n, f->stages, f->cluster, f->step,
                 f->stage_slots, f->deferred, !f->packed, op[0].mn, op[1].mn, epi_emit_type(e->half),
                 e->stage_bytes, e->load_bytes);
    epi_text_add(out, "#define PACKED %d\n#define STEPS (TILE_N / STEP)\n", f->packed);
    epi_text_add(out, "%s%s%s", epi_device_text("base"), epi_device_text("ptx"), epi_device_text("folds"));
    epi_text_add(out,
                 "\n// ---- written for this program\n\nstruct Params {\n  TMap map[%d];\n  const void "
                 "*ptr[%d];\n  i64 M, group, extra[2];\n};\n",
                 k->map_count ? k->map_count : 1, k->pointer_count ? k->pointer_count : 1);
    epi_text_add(out,
                 "struct Rows {\n%s};\nDEV void rows_load(Rows &R, const Params &P, int row) {\n#pragma "
                 "unroll\n  for (int h = 0; h < 2; h++) {\n"
                 "    const int r = min(row + 8 * h, (int)P.M - 1);\n    (void)r;\n%s  }\n}\n",
                 or_none(&e->members), or_none(&e->rows));
    emit_keep(e, out);
    epi_text_add(out, "struct Sums {\n%s};\n", or_none(&e->sums));
    epi_name kept = value_name(e, e->kept);
    epi_text_add(out,
                 "template <int C, class Acc> DEV void epilogue_step(const Acc &acc, const Rows &R, Sums &S, "
                 "const Params &P, u32 stage, int row, int col, int thread) {\n"
                 "  const int lane = thread & 31, q = lane & 3, warp = thread >> 5 & 3;\n"
                 "  const u32 srow = warp * 16 + (lane >> 2), mrow = warp * 16 + (lane & 15), munit = lane "
                 ">> 4 << 4;\n"
                 "  (void)q; (void)srow; (void)mrow; (void)munit;\n"
                 "%s#pragma unroll\n  for (int j = 0; j < STEP / 16; j++) {\n"
                 "%s#pragma unroll\n    for (int i = 0; i < 4; i++) {\n"
                 "      const int n = col + 16 * j + 8 * (i >> 1) + 2 * q;\n      (void)n;\n"
                 "      const float %s_0 = acc(j, i, 0), %s_1 = acc(j, i, 1);\n%s    }\n%s  }\n%s}\n",
                 or_none(&e->begin), or_none(&e->group), kept.text, kept.text,
                 or_none(&e->cell), or_none(&e->after), or_none(&e->end));
    if (f->mainloop == EPI_GEMM_SM90) {
        epi_text_add(out, "DEV void step_load(const Params &P, u32 stage, u32 bar, int m, int n) {\n%s}\n",
                     or_none(&e->moves));
        epi_text_add(out, "DEV void step_store(const Params &P, u32 stage, int m, int n) {\n%s}\n",
                     or_none(&e->moves_out));
        epi_text_add(out, "DEV void step_prefetch(const Params &P, int m, int n) {\n%s}\n",
                     or_none(&e->prefetch));
        emit_wgmma(e, out, &op[0], &op[1]);
    } else {
        put_operand(out, 'A', &op[0], a_ptr);
        put_operand(out, 'B', &op[1], b_ptr);
    }
    if (f->mainloop == EPI_GEMM_SM80)
        epi_text_add(out, "#define BK %d\n#define A_VEC %d\n#define B_VEC %d\n", SM80_DEPTH, op[0].vec,
                     op[1].vec);
    epi_text_add(out, "\n// ---- the mainloop\n\n%s", epi_device_text(files[f->mainloop]));
}

epi_status epi_emit_gemm(epi_emit_context *c, const epi_step *step, const epi_config *config,
                         epi_kernel_text *k, epi_error *err) {
    *k = (epi_kernel_text){.arch = epi_emit_arch(c)};
    epi_tile tile;
    epi_status status = epi_tile_build(c->arena, c->spec, step->plan, config->tile_n, step->roots,
                                       step->root_count, &tile, err);
    if (status != EPI_OK)
        return status;
    emitter *e = epi_arena_alloc(c->arena, sizeof *e);
    bool *before = epi_arena_alloc(c->arena, (size_t)tile.step_count + 1);
    bool *grouped = epi_arena_alloc(c->arena, (size_t)tile.step_count + 1);
    if (!e || !before || !grouped)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    *e = (emitter){.c = c,
                   .g = c->spec->graph,
                   .plan = step->plan,
                   .tile = &tile,
                   .config = *config,
                   .k = k,
                   .before = before, .grouped = grouped};
    snprintf(k->name, sizeof k->name, "gemm");
    operand op[2];
    bool ok = tile.tile_n == config->tile_n;
    if (!ok)
        snprintf(e->reason, sizeof e->reason, "groups of %d columns do not fill a tile of %d", tile.group[tile.acc_scale],
                 config->tile_n);
    ok = ok && prepare(e, op);
    if (ok) {
        find_packing_point(e);
        ok = emit_steps(e);
    }
    if (ok)
        write_source(e, op);
    k->config = e->config;
    epi_text *all[] = {&e->members, &e->rows,  &e->group, &e->cell,      &e->after,    &e->end,
                       &e->sums,    &e->begin, &e->moves, &e->moves_out, &e->prefetch, &e->consts};
    bool failed = k->source.failed;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        failed |= all[i]->failed;
        epi_text_free(all[i]);
    }
    if (!ok || failed) {
        epi_text_free(&k->source);
        return ok ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                  : epi_fail(err, EPI_ERR_UNSUPPORTED, "%s", e->reason);
    }
    return EPI_OK;
}

/* emit_streams.c: the tiles that are loaded and stored: which are staged and where, who moves them, and how
 * cells read and write the staging. */
#include <stdio.h>
#include <string.h>

#include "cuda/emit_gemm.h"

enum { STAGE_ROWS = 64 }; /* a warpgroup's */

/* ---- which there are ---- */

static bool add_stream(epi_emitter *e, int step) {
    const epi_instr *s = &e->tile->instrs[step];
    bool store = s->kind == EPI_INSTR_STORE;
    epi_scale scale = e->tile->values[store ? s->arg[0] : s->dst].scale;
    if (e->stream_count == EPI_MAX_STREAMS)
        return epi_emitter_refuse(e, "more than %d tiles are loaded and stored", EPI_MAX_STREAMS);
    epi_stream *t = &e->streams[e->stream_count++];
    *t = (epi_stream){.step = step, .node = s->node, .tensor = s->tensor, .store = store, .map = -1};
    t->ref = epi_emit_ref(e->c, s->node, s->tensor);
    t->rows = epi_walk_axes(&t->ref, &e->plan->rows, e->c->spec->sizes);
    t->cols = epi_columns_of(e->plan, &t->ref, e->c->spec->sizes, scale);
    t->elements = epi_cell_elements(e, scale);
    t->bytes = t->elements * (int)epi_dtype_size(t->ref.type);
    return true;
}

bool epi_streams_make(epi_emitter *e) {
    for (int i = 0; i < e->tile->instr_count; i++) {
        const epi_instr *s = &e->tile->instrs[i];
        bool load = s->kind == EPI_INSTR_LOAD && epi_value_is_full(&e->tile->values[s->dst]);
        if ((load || s->kind == EPI_INSTR_STORE) && !add_stream(e, i))
            return false;
    }
    return true;
}

const epi_stream *epi_stream_of(const epi_emitter *e, int step) {
    for (int i = 0; i < e->stream_count; i++)
        if (e->streams[i].step == step)
            return &e->streams[i];
    return NULL;
}

/* ---- where they are staged ---- */

/* Is it moved through staging? Rows a fixed distance apart, columns neighbours; or a table that repeats. The
 * copy engine takes rows of a multiple of 16 bytes. */
static bool can_stage(const epi_emitter *e, epi_stream *t) {
    const epi_walk *r = &t->rows, *c = &t->cols.walk;
    int64_t size = (int64_t)epi_dtype_size(t->ref.type),
            step_cols = (int64_t)e->config.step * t->elements / 2;
    if (e->config.mainloop != EPI_GEMM_SM90 || t->cols.two || t->ref.type > EPI_F16 || !c->count ||
        !r->count || c->stride[c->count - 1] != 1)
        return false;
    if (e->config.step / 2 * t->bytes < 32)
        return false;
    if (c->count == 2 && c->stride[0] == 0 && c->size[1] % step_cols == 0)
        t->col_mod = c->size[1];
    else if (c->count != 1)
        return false;
    if (r->count == 2 && r->stride[0] == 0 && r->size[1] % STAGE_ROWS == 0)
        t->row_mod = r->size[1];
    else if (r->count != 1)
        return false;
    t->lanes = r->stride[r->count - 1] * size % 16 != 0;
    return r->stride[r->count - 1] > 0;
}

/* Panels are as wide as the engine's swizzle: 128 bytes at most. */
static int panel_width(const epi_emitter *e, const epi_stream *t) {
    int bytes = e->config.step / 2 * t->bytes;
    return bytes < 128 ? bytes : 128;
}

static int panel_count(const epi_emitter *e, const epi_stream *t) {
    return e->config.step / 2 * t->bytes / panel_width(e, t);
}

/* A loaded tile that has the form of this stored one and is not taken over yet, or -1. */
static int find_takeover(const epi_emitter *e, int at, const bool *taken) {
    for (int i = 0; i < at && e->streams[at].store; i++) { /* later ones have no place yet */
        const epi_stream *t = &e->streams[i];
        if (!t->store && t->staged && !taken[i] && t->bytes == e->streams[at].bytes)
            return i;
    }
    return -1;
}

/* A stored tile takes over the panels of a loaded one: a thread writes a cell where it has read one. */
void epi_streams_place(epi_emitter *e) {
    bool taken[EPI_MAX_STREAMS] = {false};
    int widest = 0;
    e->stage_bytes = e->load_bytes = 0;
    e->loads = e->lanes = false;
    for (int i = 0; i < e->stream_count; i++) {
        epi_stream *t = &e->streams[i];
        t->col_mod = t->row_mod = 0;
        t->staged = can_stage(e, t);
        t->lanes &= t->staged;
        if (!t->staged)
            continue;
        int bytes = panel_width(e, t) * panel_count(e, t) * STAGE_ROWS, from = find_takeover(e, i, taken);
        if (from >= 0) {
            taken[from] = true;
            t->offset = e->streams[from].offset;
        } else {
            t->offset = e->stage_bytes;
            e->stage_bytes += bytes;
        }
        e->loads |= !t->store;
        e->lanes |= t->lanes;
        if (!t->store && !t->lanes)
            e->load_bytes += bytes;
        if (panel_width(e, t) > widest)
            widest = panel_width(e, t);
    }
    e->folds_at = e->stage_bytes;
    e->stage_bytes += epi_fold_bytes(e, e->tile->instr_count);
    if (widest) /* eight rows of a panel are turned by their address */
        e->stage_bytes = (int)epi_round_up(e->stage_bytes, 8 * widest);
}

/* ---- how they get there ---- */

/* A box is a panel of a step's rows; a table that repeats is mapped once. */
static int add_map(epi_emitter *e, const epi_stream *t) {
    epi_kernel_text *k = e->k;
    if (k->map_count == EPI_MAX_MAPS) {
        k->full = true;
        return 0;
    }
    uint64_t size = epi_dtype_size(t->ref.type);
    const epi_walk *r = &t->rows, *c = &t->cols.walk;
    epi_map_need *m = &k->maps[k->map_count];
    *m = (epi_map_need){.node = t->node, .tensor = t->tensor, .type = t->ref.type, .rank = 2};
    m->sizes[0] = (uint64_t)c->size[c->count - 1];
    m->sizes[1] = (uint64_t)(t->row_mod ? t->row_mod : e->tile->m);
    m->strides[1] = (uint64_t)r->stride[r->count - 1] * size;
    m->swizzle = panel_width(e, t);
    m->box[0] = (uint32_t)((uint64_t)m->swizzle / size);
    m->box[1] = STAGE_ROWS;
    return k->map_count++;
}

/* A panel that lanes move: where it stands, and how far its tensor goes. */
static void emit_lanes(epi_emitter *e, const epi_stream *t, int at, const char *x, const char *y,
                       const char *name) {
    const epi_walk *r = &t->rows, *c = &t->cols.walk;
    char place[400], height[100] = "(int)P.M";
    int width = panel_width(e, t), size = (int)epi_dtype_size(t->ref.type);
    /* rows at once: beside wide tiles registers are few */
    bool wide = e->config.tile_n >= 256, fewer = wide && epi_emitter_heavy(e);
    bool few = fewer || e->loads || (wide && e->stream_count > 1);
    int stored = fewer ? 2 : few ? 4 : 8, loaded = fewer ? 2 : 4;
    bool kept = e->config.schedule == EPI_DEFERRED || e->config.packed;
    int own = width < 64 || kept ? 4 : 8;
    if (t->row_mod)
        snprintf(height, sizeof height, "%s + %d", y, STAGE_ROWS);
    snprintf(place, sizeof place, "%s, %s, %s, %ld, %ld, lane", y, x, height, (long)c->size[c->count - 1],
             (long)r->stride[r->count - 1]);
    if (t->store) {
        epi_text_add(
            &e->moves_out,
            "  if (lanes) panel_store<%d, %d, %d, 64>(stage + %d, (void *)P.ptr[%d], %s, 0);   // %s\n",
            width, size, stored, at, t->pointer, place, name);
        epi_text_add(&e->own_out,
                     "  panel_store<%d, %d, %d, 16>(stage + %d, (void *)P.ptr[%d], %s, 16 * warp);   // %s\n",
                     width, size, own, at, t->pointer, place, name);
    } else {
        epi_text_add(&e->moves, "  panel_load<%d, %d, %d>(stage + %d, P.ptr[%d], %s);   // %s\n", width, size,
                     loaded, at, t->pointer, place, name);
        epi_text_add(&e->prefetch, "  panel_prefetch<%d, %d>(P.ptr[%d], %s);\n", width, size, t->pointer,
                     place);
    }
}

/* The copies of one step: loads and their prefetches, or stores, panel by panel. */
static void emit_moves(epi_emitter *e, const epi_stream *t) {
    int width = panel_width(e, t), inner = width / (int)epi_dtype_size(t->ref.type);
    const char *name = e->g->nodes[t->node].name ? e->g->nodes[t->node].name : "";
    for (int p = 0; p < panel_count(e, t); p++) {
        char x[120], y[80] = "m";
        snprintf(x, sizeof x, "%s", epi_cell_index(t->elements));
        if (t->col_mod)
            snprintf(x + strlen(x), sizeof x - strlen(x), " %% %ld", (long)t->col_mod);
        if (p)
            snprintf(x + strlen(x), sizeof x - strlen(x), " + %d", p * inner);
        if (t->row_mod)
            snprintf(y, sizeof y, "m %% %ld", (long)t->row_mod);
        int at = t->offset + p * width * STAGE_ROWS;
        if (t->lanes) {
            emit_lanes(e, t, at, x, y, name);
        } else if (t->store) {
            epi_text_add(&e->moves_out,
                         "  if (lane == 0) tma_store(&P.map[%d], stage + %d, %s, %s);   // %s\n", t->map, at,
                         x, y, name);
        } else {
            epi_text_add(&e->moves,
                         "  if (lane == 0) tma_load(stage + %d, &P.map[%d], bar, %s, %s);   // %s\n", at,
                         t->map, x, y, name);
            epi_text_add(&e->prefetch, "  if (lane == 0) tma_prefetch(&P.map[%d], %s, %s);\n", t->map, x, y);
        }
    }
}

void epi_streams_move(epi_emitter *e) {
    for (int i = 0; i < e->stream_count; i++) {
        epi_stream *t = &e->streams[i];
        if (t->staged && !t->lanes)
            t->map = add_map(e, t);
        else
            t->pointer = epi_emit_pointer(e->k, t->node, t->tensor);
        if (t->staged)
            emit_moves(e, t);
    }
}

/* ---- how cells read and write the staging ---- */

/* The address of bytes of a group's row in the staging. Where there are several panels, groups fill them in
 * turn. */
static void emit_address(epi_emitter *e, epi_text *out, const epi_stream *t, const char *row,
                         const char *byte) {
    int width = panel_width(e, t), group = 8 * t->bytes;
    if (panel_count(e, t) > 1)
        epi_text_add(out, "stage + %d + j * %d / %d * %d + swizzled<%d>(%s, j * %d %% %d + %s)", t->offset,
                     group, width, width * STAGE_ROWS, width, row, group, width, byte);
    else
        epi_text_add(out, "stage + %d + swizzled<%d>(%s, j * %d + %s)", t->offset, width, row, group, byte);
}

/* Cells of two 16-bit elements are what ldmatrix and stmatrix move, four at a time. */
static bool by_matrix(const epi_stream *t) {
    return t->elements == 2 && t->bytes == 4;
}

/* Loads of a group come before its cells and stores after them, so that the cells' chains overlap. */
static void emit_staged_load(epi_emitter *e, const epi_stream *t) {
    epi_name value = epi_value_name(e, e->tile->instrs[t->step].dst);
    const char *type = epi_emit_type(t->ref.type), *name = value.text;
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
    epi_text_add(&e->group,
                 "    %s %s_w[4];\n#pragma unroll\n    for (int i = 0; i < 4; i++) %s_w[i] = lds%d(",
                 words[size], name, name, 8 * t->bytes);
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
            epi_text_add(&e->cell, "%s<%s>(%s_w[i].%c);\n", el & 1 ? "high" : "low", type, name,
                         field[el / 2]);
    }
}

/* Cells collect what a group stores; each form leaves by the widest store it fills. */
static void emit_staged_store(epi_emitter *e, const epi_stream *t) {
    int v = e->tile->instrs[t->step].arg[0], number = t->step;
    const char *type = epi_emit_type(t->ref.type);
    if (by_matrix(t)) {
        epi_text_add(&e->group, "    u32 out%d_words[4];\n", number);
        if (v == e->kept && e->split < 0 && e->config.packed && t->ref.type == e->half)
            epi_text_add(&e->cell, "      out%d_words[i] = acc.word(j, i);\n",
                         number); /* it is there already */
        else
            epi_text_add(&e->cell, "      out%d_words[i] = pack<%s>(%s, %s);\n", number, type,
                         epi_value_use(e, v, 0).text, epi_value_use(e, v, 1).text);
        epi_text_add(&e->after, "    stm4(");
        emit_address(e, &e->after, t, "mrow", "munit");
        epi_text_add(&e->after, ", out%d_words);\n", number);
        return;
    }
    if (t->elements == 1 && t->bytes == 2) { /* neighbouring lanes swap halves, so that each stores a word */
        epi_text_add(&e->group, "    float out%d_floats[4];\n", number);
        epi_text_add(&e->cell, "      out%d_floats[i] = %s;\n", number, epi_value_use(e, v, 0).text);
        epi_text_add(&e->after,
                     "#pragma unroll\n    for (int h = 0; h < 2; h++) {\n"
                     "      const u32 own = pack<%s>(out%d_floats[h], out%d_floats[h + 2]), other = "
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
    epi_text_add(&e->group, "    u32 out%d_words[4][%d];\n", number, words);
    for (int w = 0; w < words; w++)
        if (t->ref.type == EPI_F32)
            epi_text_add(&e->cell, "      out%d_words[i][%d] = __float_as_uint(%s);\n", number, w,
                         epi_value_use(e, v, w).text);
        else
            epi_text_add(&e->cell, "      out%d_words[i][%d] = pack<%s>(%s, %s);\n", number, w, type,
                         epi_value_use(e, v, 2 * w).text, epi_value_use(e, v, 2 * w + 1).text);
    epi_text_add(&e->after, "#pragma unroll\n    for (int i = 0; i < 4; i++) sts%d(", 8 * t->bytes);
    emit_address(e, &e->after, t, "srow + 8 * (i & 1)", byte);
    for (int w = 0; w < words; w++)
        epi_text_add(&e->after, ", out%d_words[i][%d]", number, w);
    epi_text_add(&e->after, ");\n");
}

void epi_stream_emit(epi_emitter *e, const epi_stream *t) {
    if (t->store)
        (t->staged ? emit_staged_store : epi_stream_store_direct)(e, t);
    else
        (t->staged ? emit_staged_load : epi_stream_load_direct)(e, t);
}

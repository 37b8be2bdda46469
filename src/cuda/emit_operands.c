/* emit_operands.c: how a product reads its operands: through maps of the copy engine, from copies that it can
 * take, or by offsets. */
#include "cuda/emit_gemm.h"

epi_operand epi_operand_of(const epi_emitter *e, int side) {
    const epi_node *n = &e->g->nodes[e->plan->product];
    epi_operand o = {.node = n->arg[side == 0 ? e->plan->row_arg : !e->plan->row_arg]};
    const int64_t *sizes = e->c->spec->sizes;
    o.ref = epi_emit_ref(e->c, o.node, -1);
    o.depth = epi_walk_axes(&o.ref, &e->plan->depth, sizes);
    if (side == 0) {
        o.out = epi_walk_axes(&o.ref, &e->plan->rows, sizes);
        o.count = e->tile->m;
    } else {
        o.cols = epi_columns_of(e->plan, &o.ref, sizes, e->tile->acc_scale);
        o.out = o.cols.walk;
        o.count = e->tile->n;
    }
    return o;
}

/* ---- by the copy engine ---- */

epi_tiling epi_emitter_tiling(const epi_emitter *e) {
    return epi_tiling_of(&e->config, e->tile->m, e->tile->n, e->c->multiprocessors);
}

/* Has the operand copied; answers what the copy looks like. Small products are left to other mainloops, by a
 * rule that does not look at the rows: a row's bits must not depend on the batch. */
static bool repack_operand(epi_emitter *e, const epi_operand *o, epi_repack **out) {
    int64_t depth = epi_axes_size(&e->plan->depth, e->c->spec->sizes);
    if ((double)e->tile->n * (double)depth < 0x1p18 || e->k->repack_count == 2)
        return false;
    epi_repack *r = *out = &e->k->repacks[e->k->repack_count++];
    *r = (epi_repack){
        .node = o->node, .out = o->cols, .depth = o->depth, .out_count = o->count, .depth_count = depth};
    if (!o->cols.two)
        r->out.walk = o->out;
    r->mn = !o->cols.two && o->out.count && o->out.stride[o->out.count - 1] == 1 &&
            !(o->depth.count && o->depth.stride[o->depth.count - 1] == 1);
    r->pitch = epi_round_up(r->mn ? r->out_count : depth, 64); /* lines of 128 bytes: the engine's best */
    r->offset = epi_round_up(e->c->workspace, 256);
    e->c->workspace = r->offset + epi_round_up((r->mn ? depth : r->out_count) * r->pitch * 2, 256);
    return true;
}

bool epi_operand_map(epi_emitter *e, epi_operand *o, int rows, int deep) {
    int64_t size = (int64_t)epi_dtype_size(o->ref.type);
    int64_t out_step = o->out.count ? o->out.stride[0] : 0,
            depth_step = o->depth.count ? o->depth.stride[0] : 0;
    int64_t out_size = o->out.count ? o->out.size[0] : 1, depth_size = o->depth.count ? o->depth.size[0] : 1;
    if (!o->depth.count) /* one deep: rows of one element */
        depth_step = o->out.count && out_step == 1 ? epi_round_up(out_size, 8) : 1;
    if (!o->out.count)
        out_step = depth_step == 1 ? epi_round_up(depth_size, 8) : 1;
    o->mn = depth_step != 1;
    int64_t pitch = o->mn ? depth_step : out_step;
    epi_repack *copy = NULL;
    if (o->cols.two || o->out.count > 1 || o->depth.count > 1 || (o->mn && out_step != 1) ||
        pitch * size % 16 || pitch < (o->mn ? out_size : depth_size)) {
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

/* The instruction's name carries the width, and every accumulator is an operand of its own. */
void epi_operand_emit_wgmma(const epi_emitter *e, epi_text *out, const char *name, int n,
                            const epi_operand *a, const epi_operand *b) {
    int r = n / 2;
    const char *type = e->half == EPI_BF16 ? "bf16" : "f16";
    epi_text_add(out,
                 "DEV void %s(float (&d)[%d], u64 a, u64 b, int add) {\n  asm volatile(\"{.reg .pred p; "
                 "setp.ne.b32 p, %%%d, 0;\\n\"\n"
                 "    \"wgmma.mma_async.sync.aligned.m64n%dk16.f32.%s.%s {",
                 name, e->config.tile_n / 2, r + 2, n, type, type);
    for (int i = 0; i < r; i++)
        epi_text_add(out, "%s%%%d", i ? ", " : "", i);
    epi_text_add(out, "}, %%%d, %%%d, p, 1, 1, %d, %d;}\"\n    : ", r, r + 1, a->mn, b->mn);
    for (int i = 0; i < r; i++)
        epi_text_add(out, "%s\"+f\"(d[%d])", i ? ", " : "", i);
    epi_text_add(out, " : \"l\"(a), \"l\"(b), \"r\"(add));\n}\n");
}

/* ---- by offsets ---- */

/* Do elements that follow each other lie side by side? */
static bool ends_in_neighbours(const epi_walk *w) {
    return w->count && w->stride[w->count - 1] == 1;
}

/* Neighbours are copied together where they always start at a multiple of their number; one by one, where
 * they are not found in eights. */
void epi_operand_measure(epi_operand *o) {
    const epi_walk *d = &o->depth, *r = &o->out;
    bool by_out = !o->cols.two && (!r->count || ends_in_neighbours(r));
    bool by_depth = ends_in_neighbours(d) || (!d->count && !by_out);
    o->mn = !by_depth && (by_out || ends_in_neighbours(r));
    const epi_walk *along = o->mn ? r : d, *across = o->mn ? d : r;
    int run = along->count - 1;
    o->vec = (by_out || by_depth) && (run < 1 || along->size[run] % 8 == 0) ? 8 : 1;
    for (int i = 0; i < run; i++)
        while (along->stride[i] % o->vec)
            o->vec /= 2;
    for (int i = 0; i < across->count; i++)
        while (across->stride[i] % o->vec)
            o->vec /= 2;
    while (o->cols.two && o->cols.part % o->vec)
        o->vec /= 2;
}

void epi_operand_emit(epi_text *out, char which, const epi_operand *o, int pointer) {
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

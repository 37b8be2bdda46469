/* emit_repack.c: writes the kernel that copies a product's operands to rows of a multiple of 16 bytes, which
 * TMA can load. */
#include "cuda/emit/emit.h"

/* Eight neighbours of a row of the copy. They are neighbours in the operand too, or come one by one. */
static void emit_eight(const epi_emit_context *c, epi_kernel_text *k, const epi_repack *r, int number) {
    const char *inner = epi_emit_count(c, r->inner, "");
    const epi_walk *along = r->mn ? &r->out.walk : &r->depth, *across = r->mn ? &r->depth : &r->out.walk;
    bool simple = !r->out.two && along->count == 1 && along->stride[0] == 1 && across->count == 1;
    if (simple) {
        const char *apart = epi_emit_count(c, across->stride[0], "LL");
        epi_text_add(&k->source,
                     "  const uint4 v = eight_from(from, row * %s + first, (%s - 1) * %s + %s, (int)min(%s - "
                     "first, (i64)8));\n",
                     apart, epi_emit_count(c, r->outer, ""), apart, inner, inner);
        return;
    }
    epi_text_add(
        &k->source,
        "  u32 e[8];\n#pragma unroll\n  for (int i = 0; i < 8; i++) {\n"
        "    const i64 at = first + i;\n    e[i] = at < %s ? from[out_at_%d(P, %s) + depth_at_%d(P, %s)] "
        ": 0u;\n  }\n"
        "  const uint4 v = make_uint4(e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] "
        "| e[7] << 16);\n",
        inner, number, r->mn ? "at" : "row", number, r->mn ? "row" : "at");
}

/* copy_N(P, x): number x of the eights of a copy; returns how many there are. */
static int64_t emit_copy(epi_emit_context *c, epi_kernel_text *k, const epi_repack *r, int number, int to) {
    int from = epi_emit_pointer(k, r->node, -1);
    const char *eights = epi_emit_ceil(c, r->inner, 8, "");
    epi_text_add(
        &k->source,
        "// %s, copied to rows of a multiple of 16 bytes\nDEV i64 out_at_%d(const Params &P, i64 x) { return "
        "%s; }\nDEV i64 depth_at_%d(const Params &P, i64 x) { return %s; }\n"
        "DEV void copy_%d(const Params &P, i64 x) {\n  const u16 *from = (const u16 *)P.ptr[%d];\n"
        "  u16 *to = (u16 *)P.ptr[%d];\n  const i64 row = x / %s, first = x %% %s * 8;\n",
        epi_emit_name(c, r->node), number, epi_emit_columns(c, &r->out, "(x)"), number,
        epi_emit_walk(c, &r->depth, "x"), number, from, to, eights, eights);
    emit_eight(c, k, r, number);
    epi_text_add(&k->source, "  *(uint4 *)(to + row * %s * %d + first) = v;\n}\n",
                 epi_emit_ceil(c, r->inner, EPI_REPACK_ROUND, "LL"), EPI_REPACK_ROUND);
    const epi_open *open = c->spec->open;
    return epi_open_now(open, r->outer) * epi_ceil_div(epi_open_now(open, r->inner), 8);
}

epi_status epi_emit_repack(epi_emit_context *c, const epi_kernel_text *product, epi_kernel_text *k,
                           int64_t *elements, epi_error *err) {
    *k = (epi_kernel_text){.name = "repack", .block = 256};
    const epi_repack *all = product->repacks;
    int count = product->repack_count;
    for (int i = 0; i < count; i++) /* asked for before their number is written down */
        epi_emit_pointer(k, all[i].node, -1);
    int to[2] = {0};
    for (int i = 0; i < count; i++)
        to[i] = epi_emit_place(k, all[i].offset);
    epi_emit_begin(c, k, epi_device_text("repack"));
    int64_t first = emit_copy(c, k, &all[0], 0, to[0]),
            second = count == 2 ? emit_copy(c, k, &all[1], 1, to[1]) : 0;
    *elements = first + second;
    epi_text_add(
        &k->source,
        "extern \"C\" __global__ void __launch_bounds__(256) %s(const __grid_constant__ Params P) {\n"
        "  dependency_start();\n  dependency_wait();\n"
        "  for (i64 x = (i64)blockIdx.x * 256 + threadIdx.x; x < P.extra[0]; x += (i64)gridDim.x * "
        "256)\n    ",
        k->name);
    if (count == 2) {
        const char *outer = epi_emit_count(c, all[0].outer, "LL"),
                   *eights = epi_emit_ceil(c, all[0].inner, 8, "LL");
        epi_text_add(&k->source, "if (x >= %s * %s) copy_1(P, x - %s * %s); else ", outer, eights, outer,
                     eights);
    }
    epi_text_add(&k->source, "copy_0(P, x);\n}\n");
    return epi_emit_end(k, err);
}

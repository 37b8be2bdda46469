/* emit_repack.c: the kernel that copies a product's operands to where TMA can load them: to rows of a
 * multiple of 16 bytes. */
#include "cuda/emit.h"

/* Eight neighbours of a row of the copy. They are neighbours in the operand too, or come one by one. */
static void emit_eight(epi_kernel_text *k, const epi_repack *r, int number, long inner, long outer) {
    const epi_walk *along = r->mn ? &r->out.walk : &r->depth, *across = r->mn ? &r->depth : &r->out.walk;
    bool simple = !r->out.two && along->count == 1 && along->stride[0] == 1 && across->count == 1;
    if (simple) {
        long apart = (long)across->stride[0];
        epi_text_add(&k->source,
                     "  const uint4 v = eight_from(from, row * %ldLL + first, %ldLL, (int)min(%ld - first, "
                     "(i64)8));\n",
                     apart, (outer - 1) * apart + inner, inner);
        return;
    }
    epi_text_add(&k->source,
                 "  u32 e[8];\n#pragma unroll\n  for (int i = 0; i < 8; i++) {\n"
                 "    const i64 at = first + i;\n    e[i] = at < %ld ? from[out_at_%d(%s) + depth_at_%d(%s)] "
                 ": 0u;\n  }\n"
                 "  const uint4 v = make_uint4(e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] "
                 "| e[7] << 16);\n",
                 inner, number, r->mn ? "at" : "row", number, r->mn ? "row" : "at");
}

/* copy_N(P, x): number x of the eights of a copy; answers how many there are. */
static int64_t emit_copy(epi_emit_context *c, epi_kernel_text *k, const epi_repack *r, int number) {
    int from = epi_emit_pointer(k, r->node, -1), to = epi_emit_pointer(k, r->node, EPI_POINTER_WORKSPACE);
    long inner = (long)(r->mn ? r->out_count : r->depth_count),
         outer = (long)(r->mn ? r->depth_count : r->out_count), eights = (inner + 7) / 8;
    epi_text_add(&k->source,
                 "// %s, copied to rows of a multiple of 16 bytes\nDEV i64 out_at_%d(i64 x) { return ",
                 epi_emit_name(c->spec->graph, r->node).text, number);
    epi_emit_columns(&k->source, &r->out, "x");
    epi_text_add(&k->source, "; }\nDEV i64 depth_at_%d(i64 x) { return ", number);
    epi_emit_walk(&k->source, &r->depth, "x");
    epi_text_add(
        &k->source,
        "; }\nDEV void copy_%d(const Params &P, i64 x) {\n  const u16 *from = (const u16 *)P.ptr[%d];\n"
        "  u16 *to = (u16 *)P.ptr[%d] + %ldLL;\n  const i64 row = x / %ld, first = x %% %ld * 8;\n",
        number, from, to, (long)(r->offset / 2), eights, eights);
    emit_eight(k, r, number, inner, outer);
    epi_text_add(&k->source, "  *(uint4 *)(to + row * %ldLL + first) = v;\n}\n", (long)r->pitch);
    return outer * eights;
}

epi_status epi_emit_repack(epi_emit_context *c, const epi_kernel_text *product, epi_kernel_text *k,
                           int64_t *elements, epi_error *err) {
    *k = (epi_kernel_text){.name = "repack", .block = 256};
    const epi_repack *all = product->repacks;
    int count = product->repack_count;
    for (int i = 0; i < count; i++) /* asked for before their number is written down */
        epi_emit_pointer(k, all[i].node, -1);
    epi_emit_pointer(k, EPI_NO_NODE, EPI_POINTER_WORKSPACE);
    epi_emit_begin(c, k, epi_device_text("repack"));
    int64_t first = emit_copy(c, k, &all[0], 0), second = count == 2 ? emit_copy(c, k, &all[1], 1) : 0;
    *elements = first + second;
    epi_text_add(
        &k->source,
        "extern \"C\" __global__ void __launch_bounds__(256) %s(const __grid_constant__ Params P) {\n"
        "  dependency_start();\n  dependency_wait();\n"
        "  for (i64 x = (i64)blockIdx.x * 256 + threadIdx.x; x < P.extra[0]; x += (i64)gridDim.x * "
        "256)\n    ",
        k->name);
    if (second)
        epi_text_add(&k->source, "if (x >= %ldLL) copy_1(P, x - %ldLL); else ", (long)first, (long)first);
    epi_text_add(&k->source, "copy_0(P, x);\n}\n");
    return epi_emit_end(k, err);
}

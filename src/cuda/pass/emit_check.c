/* emit_check.c: checks an index input before anything uses it.
 *
 * One block finds the first element outside the axis and writes its number and its value, or -1. With a
 * single block there is no counter that would have to be cleared before. */
#include "cuda/emit/emit.h"

#include "ir/index.h"

epi_status epi_emit_check(const epi_emit_context *c, int node, int slot, epi_kernel_text *k, epi_error *err) {
    const epi_graph *g = c->spec->graph;
    const epi_node *n = &g->nodes[node], *index = epi_index_of(g, n);
    epi_axes along = epi_index_along(g, n);
    *k = (epi_kernel_text){.name = "check", .block = EPI_CHECK_THREADS};
    int of = (int)(index - g->nodes), from = epi_emit_pointer(k, of, index->tensor),
        to = epi_emit_pointer(k, of, EPI_POINTER_WORKSPACE);
    epi_emit_begin(c, k, "");
    epi_text_add(
        &k->source,
        "// the index of %s, line %d\nextern \"C\" __global__ void __launch_bounds__(%d) check(const "
        "__grid_constant__ Params P) {\n  __shared__ i64 found[%d];\n  const int t = threadIdx.x;\n"
        "  dependency_start();\n  dependency_wait();\n  i64 first = P.extra[0];\n"
        "  for (i64 x = t; x < P.extra[0] && first == P.extra[0]; x += %d)\n"
        "    if (position<%s>(P.ptr[%d], x, %s) < 0) first = x;\n  found[t] = first;\n"
        "  for (int m = %d; m > 0; m >>= 1) {\n    __syncthreads();\n"
        "    if (t < m && found[t + m] < found[t]) found[t] = found[t + m];\n  }\n"
        "  if (t == 0) {\n    i64 *out = (i64 *)P.ptr[%d] + %d;\n    const bool inside = found[0] == "
        "P.extra[0];\n    out[0] = inside ? -1 : found[0];\n    out[1] = inside ? 0 : integer<%s>(P.ptr[%d], "
        "found[0]);\n  }\n}\n",
        epi_emit_name(c, node), n->place.line, EPI_CHECK_THREADS, EPI_CHECK_THREADS, EPI_CHECK_THREADS,
        epi_emit_type(c->spec->types[index->tensor]), from,
        epi_emit_count(c, epi_axes_size(&along, c->spec->sizes), "LL"), EPI_CHECK_THREADS / 2, to, 2 * slot,
        epi_emit_type(c->spec->types[index->tensor]), from);
    return epi_emit_end(k, err);
}

/* packed.h: tensors of i4 and u4, two elements to a byte. */
#ifndef EPI_LANG_PACKED_H
#define EPI_LANG_PACKED_H

#include "ir/graph.h"
#include "lang/ast.h"

/* The axes of the bytes of a tensor with these: the last is half as long. */
epi_axes epi_packed_axes(epi_graph *g, const epi_ast_tensor *t, epi_axes axes);
/* The elements of such bytes, along the last axis of the tensor, and the bytes of such elements. */
int epi_packed_read(epi_graph *g, const epi_ast_tensor *t, int bytes, const epi_axes *axes);
int epi_packed_write(epi_graph *g, const epi_ast_tensor *t, int value, const epi_axes *axes);

#endif

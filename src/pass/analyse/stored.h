/* stored.h: the type in which a value is stored, if it is stored. Everything that stores values, or counts
 * their bytes, uses this rule. */
#ifndef EPI_PASS_STORED_H
#define EPI_PASS_STORED_H

#include "ir/graph.h"

/* Has it one axis at most? */
static inline bool epi_is_vector(const epi_axes *axes) {
    return axes->count < 2;
}

/* Is this use, of a node, that of an operand which a product multiplies? */
bool epi_is_operand(const epi_graph *g, epi_use use);
/* Does a product take the value? Its operands are of the storage type. */
bool epi_feeds_product(const epi_graph *g, int node);

/* Are its elements among a few numbers that both 16-bit types have: truth and signs, integers up to 256,
 * infinity? */
bool epi_is_few(const epi_node *n);

/* The type in which an input, or what the text gives a type, is in memory, `types` being those of the tensors;
 * EPI_DTYPE_COUNT: of any other value it is not known from this alone. */
epi_dtype epi_stored_known(const epi_node *n, const epi_dtype *types);

/* The same of an update of bytes by bytes of their type, which has no other elements. */
epi_dtype epi_stored_bytes(const epi_graph *g, int node, const epi_dtype *types);

/* By node: the type in which it is stored whatever its shape, or EPI_DTYPE_COUNT where its shape decides.
 * `types` has those of the tensors, and `storage` the storage type; NULL and EPI_DTYPE_COUNT: only what the
 * text says is known. NULL: no memory. The graph is finished. */
epi_dtype *epi_stored_find(epi_arena *arena, const epi_graph *g, const epi_dtype *types, epi_dtype storage);

/* The type of a value of which that says `said`: f32 for one that is short beside the tile that makes it,
 * else the storage type. */
static inline epi_dtype epi_stored_type(epi_dtype said, bool is_short, epi_dtype storage) {
    return said != EPI_DTYPE_COUNT ? said : is_short ? EPI_F32 : storage;
}

#endif

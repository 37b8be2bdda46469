/* square.h: values that are quantised both ways: along their last axis, and down another axis, along which
 * they are stored for a product over that axis. A tile of both axes contains everything that is reduced. It
 * is read once and stored in both orders (plan_rows.c). */
#ifndef EPI_PASS_SQUARE_H
#define EPI_PASS_SQUARE_H

#include "ir/spec.h"

/* The two axes of such a tile, each of spec->tile elements, and those that count tiles. */
typedef struct epi_square {
    epi_axes rows, cols;
} epi_square;

/* The depth of a scaled product whose bits the value is; else none. */
epi_axes epi_scaled_depth(const epi_graph *g, int node);

/* Is the node an extreme over axes of a tile of which something is made, by maps and such extremes, that is stored with
 * the tile's first axis innermost? Or has it the operand of one? Of extremes no order changes a bit. */
bool epi_square_find(const epi_spec *spec, epi_visits *visits, int node, epi_square *out);
/* Is it an extreme that each such tile has for itself? */
bool epi_square_reduces(const epi_graph *g, const epi_square *square, int node);

#endif

/* tile.h: what a product's tile, or rows, can hold, as the graph says it.
 *
 * Who puts a part together asks this of what the part has so far, and who plans the written part asks it again:
 * these are the answers that both share. */
#ifndef EPI_PASS_TILE_H
#define EPI_PASS_TILE_H

#include "ir/index.h"
#include "ir/spec.h"

typedef enum epi_reduction {
    EPI_REDUCE_NONE = 0,
    EPI_REDUCE_LOCAL, /* a group of neighbouring columns */
    EPI_REDUCE_ROWS,  /* over all columns: one result per row */
    EPI_REDUCE_COLS,  /* over all rows: one result per column */
} epi_reduction;

typedef struct epi_tile {
    epi_axes rows, cols;
    /* At most one column axis is taken apart or put together. `fine` is that axis at its longer
       scale, split is EPI_OP_EVEN for pairs or EPI_OP_LOW for halves, EPI_OP_COUNT for none. */
    epi_op split;
    epi_axis fine;
} epi_tile;

/* Can it hold a value of these axes? The axis that is taken apart also at its other scale. */
bool epi_tile_fits(const epi_tile *tile, const epi_axes *axes);
/* Notes the one axis that is taken apart or put together; false: that is another one, or no column. */
bool epi_tile_split(epi_tile *tile, const epi_node *n);
/* What a reduction of a value of a tile is: over all columns (ROWS), over some (LOCAL), or over all rows
 * (COLS); NONE: it has not all that is reduced. */
epi_reduction epi_tile_reduction(const epi_tile *tile, const epi_axes *from, const epi_axes *over);
/* The same of whole rows, which reduce over some of their columns where these come last. */
epi_reduction epi_row_reduction(const epi_tile *rows, const epi_axes *from, const epi_axes *over);

/* Are these, in any order, the last of the axes? */
bool epi_axes_end_with(const epi_axes *axes, const epi_axes *last);
/* Sorts the axes as they come in `order`. */
void epi_axes_sort(epi_axes *axes, const epi_axes *order);
/* The name that the program's tensors have for an axis; and is it another name of one that is there as well, as the
 * keys of scores are of queries? */
epi_axis epi_axis_first_name(const epi_graph *g, epi_axis axis);
bool epi_axis_is_again(const epi_graph *g, const epi_axes *axes, epi_axis axis);
/* The axes, those that count rows first; but such as count the same once more last: scores are made and read
 * along them. */
epi_axes epi_rows_first(const epi_spec *spec, const epi_axes *axes);

/* The output that a tile is shaped after: the first that has the product's axes. */
const epi_axes *epi_main_output(const epi_graph *g, const epi_axes *product);
/* Is it a row of a table that the group of this product's tile has, for all rows of the tile? */
bool epi_takes_of_group(const epi_graph *g, int product, int node);
/* Can a tile of these rows and columns store the new elements of an update, each row at a place of its own?
 * The operand and the index are inputs, and the value has the shape of the tile. */
bool epi_update_fits(const epi_graph *g, int node, const epi_axes *rows, const epi_axes *cols);

/* Can rows that go through recurrences along this axis reduce so besides? */
bool epi_scan_reduces(const epi_spec *spec, const epi_axes *rows, epi_axis scan, epi_reduction reduction);
/* Is it the last step alone of a value of such rows? */
bool epi_is_last_step(const epi_spec *spec, int node, epi_axis scan, bool back);

/* Is a shift by no more places than a window has? */
static inline bool epi_is_near(const epi_spec *spec, const epi_node *shift) {
    int64_t by = epi_shift_by(shift);
    return by <= spec->window && by >= -spec->window;
}
/* May rows that make what is shifted keep it in their window? */
bool epi_may_keep(const epi_spec *spec, const epi_node *shift);
/* Can rows have a window for shifts along this axis: is it the last of theirs, and is nothing taken apart? */
bool epi_has_window(const epi_tile *rows, epi_axis along);

#endif

/* groups.h: where the groups of a product begin, read from memory, and the tiles of all groups of rows. */
#ifndef EPI_CPU_GROUPS_H
#define EPI_CPU_GROUPS_H

#include "cpu/product/epilogue.h"

/* Group e has the positions from first[e] to first[e + 1]. Where these are rows, its tiles are those from
 * first_tile[e] on; tile t begins at row starts[t], and its panels, packed one tile after the other, at row
 * packed[t]. Behind the last of each there is one more. */
typedef struct epi_groups {
    int64_t count, *first;
    int64_t tiles, *first_tile, *starts, *packed, *of; /* `of`: by tile its group */
} epi_groups;

/* The bytes that these tables take of a product with this plan, whose tiles have panels of so many rows. */
int64_t epi_groups_bytes(const epi_spec *spec, const epi_plan *plan, int panel);
/* Reads the offsets, and finds the groups. */
void epi_groups_find(const epi_spec *spec, const epi_plan *plan, const epi_strips *strips,
                     const epi_ref *offsets, int panel, void *memory, epi_groups *out);
/* Cuts groups of rows into tiles, none with rows of two: their panels are dealt out as those of other rows are. A
 * tile of up to `few` rows is packed as one panel of `few_panel` rows. */
void epi_groups_tile(epi_groups *groups, int panel, int few, int few_panel);

#endif

/* plan_internal.h: what the files that plan a tile share. */
#ifndef EPI_PASS_PLAN_INTERNAL_H
#define EPI_PASS_PLAN_INTERNAL_H

#include "pass/place/plan.h"

typedef struct epi_planner {
    epi_arena *arena;
    const epi_graph *g;
    epi_plan *plan;
    int *pending;  /* nodes that are still to be looked at: room for twice EPI_PLAN_PENDING */
    bool full_row; /* a tile is to have all columns: reductions over them stay inside */
} epi_planner;

/* Notes why it is not fused; false. */
bool epi_plan_refuse(epi_planner *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* plan_tile.c: the rows and columns of a product's tile, with this operand's axes for rows; and what falls into groups. */
void epi_plan_shape_tile(epi_planner *p, int row_arg);
void epi_plan_note_groups(epi_plan *plan, const epi_graph *g);
/* Is the value one of the products that the tile adds up, or a part of their sum? */
bool epi_plan_is_summed(const epi_planner *p, int node);
/* A reduction of a tile value: over all rows, all columns, or inner columns. */
bool epi_plan_sort_reduction(epi_planner *p, const epi_node *n, epi_placement *stage);

/* Can a tile hold a value of these axes? Rows and columns as the product has them; the axis that is
 * taken apart also at its other scale. */
bool epi_plan_fits(const epi_plan *plan, const epi_axes *axes);
/* Notes the axis that a part or join works on; one per kernel. */
bool epi_plan_note_split(epi_planner *p, const epi_node *n);
/* Is `over` the innermost few of the columns? Moves them there if no other reduction minds. */
bool epi_plan_make_local(epi_planner *p, const epi_axes *over);

/* plan.c: may what is reduced inside the tile be, with the axis that it takes apart? */
bool epi_plan_check_local(epi_planner *p);
/* Marks a value and what it needs as computed on the tile, as far as the tile can, from operand to operand as
 * they are written; the rest by passes before. */
void epi_plan_mark_tile(epi_planner *p, int root);

#endif

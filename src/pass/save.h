/* save.h: forward and backward as two programs, and what goes from one to the other. */
#ifndef EPI_PASS_SAVE_H
#define EPI_PASS_SAVE_H

#include "ir/graph.h"

/* From a program and its derived gradients two programs are made. The first has the program's inputs and
 * results, and gives what the second needs of its values. The second takes those of the program's inputs and
 * results that it needs, what was saved, and the cotangents, and gives the gradients.
 *
 * Products, reductions and short vectors made of them are saved; everything else is made again from those,
 * but for what the text keeps or makes again by its own words. A result of the program is there in any case.
 * The arenas of both are set; an error is in forward->error. */
void epi_save(const epi_graph *program, const epi_graph *gradient, epi_graph *forward, epi_graph *backward);

#endif

/* save.h: forward and backward as two programs, and the values that go from one to the other. */
#ifndef EPI_PASS_SAVE_H
#define EPI_PASS_SAVE_H

#include "ir/graph.h"

/* From a program and its derived gradients two programs are made. The first has the program's inputs and
 * results, and gives what the second needs of its values. The second takes those of the program's inputs and
 * results that it needs, what was saved, and the cotangents, and gives the gradients.
 *
 * Products and reductions are not recomputed, but for scores, unless the text says again(x) of them; of all
 * ways to have what is wanted the one that moves the fewest bytes is taken. What the text says keep(x) of
 * costs nothing. The arenas of both are set; an error is in forward->error. */
typedef enum epi_save_way {
    EPI_SAVE_FOR_TIME,
    EPI_SAVE_FOR_MEMORY, /* what the forward stores for itself alone is recomputed, too */
    EPI_SAVE_AS_RESULTS  /* and so it is where what is saved are results, in the order that the text has */
} epi_save_way;
void epi_save(const epi_graph *program, const epi_graph *gradient, epi_save_way way, epi_graph *forward,
              epi_graph *backward);

#endif

/* spec.h: a program with its sizes and types bound: what a backend is asked to compile. */
#ifndef EPI_IR_SPEC_H
#define EPI_IR_SPEC_H

#include "ir/open.h"

typedef struct epi_spec {
    const epi_graph *graph;
    int64_t sizes[EPI_MAX_DIMS]; /* by dim */
    bool
        is_row[EPI_MAX_DIMS]; /* by dim: it counts rows (tokens, batch), so choices do not look at its size */
    epi_dtype *types;         /* by tensor */
    epi_dtype type;           /* storage of intermediate values where a path stores them */
    epi_path path;
    int threads;
    const char *micro; /* a CPU micro-kernel by name, or NULL */
    const epi_open
        *open; /* axes whose size may be another one at each start, for a GPU's texts; NULL: none */
} epi_spec;

#endif

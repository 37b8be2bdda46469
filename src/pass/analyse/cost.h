/* cost.h: the cost of a way to execute a program.
 *
 * All choices between ways count the same four things and compare their sum. The unit is bytes: what memory
 * could move in the time that each thing takes. Row axes count at a nominal size, so that the choice is the
 * same for every batch. */
#ifndef EPI_PASS_COST_H
#define EPI_PASS_COST_H

#include "ir/spec.h"

typedef struct epi_cost {
    double bytes; /* loaded and stored */
    double launches;
    double flops; /* of products; the rest hides behind loads */
    double alive; /* bytes in the workspace, once for each part that goes by while they are kept */
} epi_cost;

/* Memory moves 4 TB a second: a launch takes 3 microseconds, and products do 800 TFLOP a second beside it. To
 * keep a value for 32 parts, about two layers, costs as much as to move it once: plans are the same with 8
 * and with 128. */
#define EPI_LAUNCH_BYTES (3e-6 * 4e12)
enum { EPI_FLOPS_PER_BYTE = 200, EPI_ALIVE_PARTS = 32 };
static inline double epi_cost_sum(epi_cost c) {
    return c.bytes + c.launches * EPI_LAUNCH_BYTES + c.flops / EPI_FLOPS_PER_BYTE + c.alive / EPI_ALIVE_PARTS;
}

/* A share of a value's bytes that decides between ways which move the same. */
#define EPI_TIE 0.01
/* What a value costs that is stored to be loaded once. Of two ways that move the same the one that stores
 * less is taken: it rounds less, and takes less workspace. */
static inline double epi_cost_stored(double bytes) {
    return (2 + EPI_TIE) * bytes;
}

/* Is it less by more than a thousandth, or by more than a launch? Nothing is given up for less. A launch is
 * next to nothing beside the caches of a step of decoding, which are counted whole. */
bool epi_cost_is_less(double cost, double than);

/* The size at which a row axis counts, and any axis where sizes are not known yet. */
enum { EPI_NOMINAL_SIZE = 1024 };
/* The sizes that costs are counted with, by dim. */
void epi_nominal_sizes(const epi_spec *spec, int64_t *sizes);
/* What a product takes: two for each element of its result and its depth. */
double epi_cost_flops(const epi_graph *g, const epi_node *product, const int64_t *sizes);
/* The bytes of a value of these axes. */
double epi_cost_bytes(const epi_axes *axes, const int64_t *sizes, epi_dtype type);

#endif

/* kinds.c: the table of the kinds of kernels. */
#include "base/kinds.h"

#include <stddef.h>
#include <string.h>

#define TILE "tile", "before the product: ", "on the tile: ", "after the product: "
#define ROW "row", "before the rows: ", "in the row: ", "after the rows: "

const epi_kind_row epi_kinds[EPI_KIND_COUNT] = {
    [EPI_KIND_GEMM] = {"gemm", EPI_COVERS_ONE, true, TILE,
                       "a matrix product; the operations after it run on each tile before it is stored"},
    [EPI_KIND_ROWS] =
        {"rows", EPI_COVERS_ANY, false, ROW,
         "no matrix product: it reads each row from memory once and computes in cache or on chip"},
    [EPI_KIND_ATTENTION] = {"attention", EPI_COVERS_ONE, true, TILE,
                            "scores, softmax and values in one kernel: the scores never reach memory"},
    [EPI_KIND_RECURRENCE] = {"recurrence", EPI_COVERS_NOTHING, true, TILE,
                             "a scan of products: its state stays on chip and is updated step by step"},
    [EPI_KIND_PASS] = {"pass", EPI_COVERS_UPDATED, false, TILE,
                       "one operation over whole tensors in memory, which no other mainloop supports"},
};

const epi_kind_row *epi_kind_named(const char *name) {
    for (int i = 0; i < EPI_KIND_COUNT; i++)
        if (!strcmp(epi_kinds[i].name, name))
            return &epi_kinds[i];
    return NULL;
}

/* kinds.c: the table of the kinds of kernels. */
#include "base/kinds.h"

#include <stddef.h>
#include <string.h>

const epi_kind_row epi_kinds[EPI_KIND_COUNT] = {
    [EPI_KIND_GEMM] = {"gemm",
                       "a matrix product; the operations after it run on each tile before it is stored",
                       true,
                       "tile",
                       {"before the product: ", "on the tile: ", "after the product: "}},
    [EPI_KIND_ROWS] =
        {"rows",
         "no matrix product: it reads each row from memory once and computes in cache or on chip",
         false,
         "row",
         {"before the rows: ", "in the row: ", "after the rows: "}},
    [EPI_KIND_ATTENTION] = {"attention",
                            "scores, softmax and values in one kernel: the scores never reach memory",
                            true,
                            "tile",
                            {"before the product: ", "on the tile: ", "after the product: "}},
    [EPI_KIND_RECURRENCE] = {"recurrence",
                             "a scan of products: its state stays on chip and is updated step by step",
                             true,
                             "tile",
                             {"before the product: ", "on the tile: ", "after the product: "}},
    [EPI_KIND_PASS] = {"pass",
                       "one operation over whole tensors in memory, which no other mainloop supports",
                       false,
                       "",
                       {0}},
};

const epi_kind_row *epi_kind_named(const char *name) {
    for (int i = 0; i < EPI_KIND_COUNT; i++)
        if (!strcmp(epi_kinds[i].name, name))
            return &epi_kinds[i];
    return NULL;
}

/* number.h: which values are numbers that are known when a kernel is compiled. */
#ifndef EPI_PASS_NUMBER_H
#define EPI_PASS_NUMBER_H

#include "ir/spec.h"

/* Is the value made of constants and of sizes that are not open alone? Then it is this. Without `of_rows` sizes of rows are
 * no such numbers: what follows from them would depend on the batch. */
bool epi_number_known(const epi_spec *spec, int node, bool of_rows, double *value);

/* The same, of what names elements: a kernel makes this very number, too. floor(0.29*size(T)) is no such number: of 100
 * elements it is 28 in f64, and 29 in f32. */
bool epi_index_known(const epi_spec *spec, int node, bool of_rows, double *value);

#endif

/* emit_rows.h: shared by the files that write the source of a kernel over rows from its design: the kernel
 * (emit_rows.c), or the kernel of scans (emit_scan.c) or of shifts (emit_window.c), its ring
 * (emit_rows_ring.c) and the values of a row (emit_rows_values.c). */
#ifndef EPI_CUDA_EMIT_ROWS_H
#define EPI_CUDA_EMIT_ROWS_H

#include "cuda/rows/design_rows.h"

#define PUT(...) epi_text_add(t, __VA_ARGS__)

/* ---- emit_rows_values.c ---- */

/* The name of a value: what the program calls it, and its number. */
const char *epi_rows_name(const epi_rows_design *d, int v);
/* An instruction that makes or stores a number or a value per row. */
void epi_rows_put_short(const epi_rows_design *d, epi_text *t, int i, const char *indent);
/* One that makes the elements of a vector. */
void epi_rows_put_elements(const epi_rows_design *d, epi_text *t, int i);
/* One that stores them. */
void epi_rows_put_store(const epi_rows_design *d, epi_text *t, int i);
/* The inverse of what a square tile has for each row or column, where elements are divided by it; and, in the walk
 * of a phase, the rows' numbers of the row in hand. */
void epi_rows_put_scale(const epi_rows_design *d, epi_text *t, int v);
void epi_rows_put_lines(const epi_rows_design *d, epi_text *t, const epi_rows_phase *p);
/* The function of Raw that reads elements of the instruction's tensor from memory. */
const char *epi_rows_reader(const epi_rows_access *a);
/* The offset of a row, and of the vector in hand beyond it: of one split, where the two lie apart. */
const char *epi_rows_row(const epi_rows_design *d, int i);
const char *epi_rows_vector(const epi_rows_design *d, int i, int split);
/* Where a line comes from. */
void epi_rows_put_comment(const epi_rows_design *d, epi_text *t, int node);

/* An operand in an expression on element e of a vector, or on one number. */
const char *epi_rows_operand(const epi_rows_design *d, int v, bool element);

/* Seeds of random numbers, once; the position that the row gathers from. */
void epi_rows_put_seeds(const epi_rows_design *d, epi_text *t);
void epi_rows_put_position(const epi_rows_design *d, epi_text *t, int i);

/* ---- emit_scan.c ---- */

/* A kernel of scans. */
void epi_scan_put(const epi_rows_design *d, epi_kernel_text *k);
/* What a text of such lines begins with: defines, of which some are its own, and the device's texts. */
void epi_scan_put_head(const epi_rows_design *d, epi_kernel_text *k, const char *own, const char *mainloop);
/* What an instruction makes: elements, or one number; and where a batch lies in every tensor. */
void epi_scan_put_value(const epi_rows_design *d, epi_text *t, int i, const char *indent);
void epi_scan_put_batches(const epi_rows_design *d, epi_text *t);

/* ---- emit_window.c ---- */

/* A kernel of shifts down the rows. */
void epi_window_put(const epi_rows_design *d, epi_kernel_text *k);

/* ---- emit_rows_ring.c ---- */

/* The ring's barriers; the function that requests a row, and the first rows; a row that is taken up; a stage
 * that is given back. */
void epi_rows_put_barriers(epi_text *t);
void epi_rows_put_ring(const epi_rows_design *d, epi_text *t);
void epi_rows_put_take(const epi_rows_design *d, epi_text *t);
void epi_rows_put_release(epi_text *t);

#endif

/* pack_move.h: the data movements that packing consists of, on a few rows that fit the first-level cache. */
#ifndef EPI_CPU_PACK_MOVE_H
#define EPI_CPU_PACK_MOVE_H

#include <stddef.h>
#include <stdint.h>

/* Row i of `rows` is `units` units of `unit` bytes at row[i]; unit u of row i goes to place
 * u * rows + i of dst. unit is 4, 8 or 64; rows is at least 4. */
void epi_pack_transpose(void *dst, const void *const row[], int rows, int units, size_t unit);

/* Column k of `columns` is `rows` elements at column[k]; element i of column k goes to place
 * i * columns + k of dst. columns is 2, 4 or a multiple of 8; rows is at least EPI_PACK_ZIP. */
enum { EPI_PACK_ZIP = 8 };
void epi_pack_zip(void *dst, const void *const column[], int rows, int columns);

/* Column k goes to place k * rows of dst, unchanged. */
void epi_pack_copy(void *dst, const void *const column[], int rows, int columns);

/* n elements to f32, exactly; NaN stays NaN. */
void epi_widen_bf16(float *dst, const uint16_t *src, int64_t n);
void epi_widen_f16(float *dst, const uint16_t *src, int64_t n);

#endif

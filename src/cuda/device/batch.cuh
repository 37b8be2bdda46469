// batch.cuh: how the tiles of a product count its rows. groups.cuh does the same for groups of any size.
//
// If there are batches, all rows of a tile are of one batch. Every batch counts as BATCH_PAD rows, a
// multiple of the rows of a cluster of tiles, of which the first BATCH_ROWS exist. Otherwise tiles count
// rows as they are in memory.
#if BATCHED && !ROW_GROUPS
#define BATCH_PAD ((BATCH_ROWS + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER) * (TILE_M * CLUSTER))
DEV int rows_in_all(const Params &P) { return (int)P.M / BATCH_ROWS * BATCH_PAD; }
DEV int batch_of(const Params &P, int row) { return row / BATCH_PAD; }
DEV int row_in_batch(const Params &P, int row) { return row % BATCH_PAD; }
DEV int rows_of_batch(const Params &P, int) { return BATCH_ROWS; }
DEV bool row_there(const Params &P, int row) { return row_in_batch(P, row) < BATCH_ROWS; }
DEV int row_number(const Params &P, int row) { return batch_of(P, row) * BATCH_ROWS + row_in_batch(P, row); }                                        // in memory
DEV int row_near(const Params &P, int row) { return batch_of(P, row) * BATCH_ROWS + min(row_in_batch(P, row), BATCH_ROWS - 1); }   // or the last before it
#define BATCH_AT(which, row) , which##_batch0(P, batch_of(P, row)), which##_batch1(P, batch_of(P, row))   // TMA's coordinates of the batch
#elif !ROW_GROUPS
DEV int rows_in_all(const Params &P) { return (int)P.M; }
DEV int batch_of(const Params &, int) { return 0; }
DEV int row_in_batch(const Params &, int row) { return row; }
DEV int rows_of_batch(const Params &P, int) { return (int)P.M; }
DEV bool row_there(const Params &P, int row) { return row < P.M; }
DEV int row_number(const Params &, int row) { return row; }
DEV int row_near(const Params &P, int row) { return min(row, (int)P.M - 1); }
#define BATCH_AT(which, row)
#endif
#if !ROW_GROUPS
DEV int tiles_down(const Params &P) { return (rows_in_all(P) + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER); }   // rows of clusters of tiles
DEV int tile_row(const Params &, int number) { return number * (TILE_M * CLUSTER); }                           // and where each begins
DEV int operand_row(const Params &P, int row) { return row_in_batch(P, row); }     // where a row is in the rows' operand
DEV int operand_rows(const Params &P, int row) { return rows_of_batch(P, row); }   // and where its batch's end there
// Of `most` rows from `row` on, those that are there, rounded up to the 8 after which TMA's swizzle repeats: so high are the boxes that
// TMA moves, as a row that is not there takes it longer than one that is. Those of fewer rows than `most` have a map of their own.
DEV int rows_left(const Params &P, int row, int most) { return max(0, min(most, (rows_of_batch(P, row) - row_in_batch(P, row) + 7) / 8 * 8)); }
DEV int operand_left(const Params &P, int row, int most) { return rows_left(P, row, most); }   // of the rows' operand
#endif

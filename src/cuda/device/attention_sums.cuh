// attention_sums.cuh: what Hopper's mainloops without a softmax share (attention_rows.cuh,
// attention_pair.cuh): the layout of shared memory, and the loading of rows.
//
// Shared memory: rows, both rings, mbarriers. Slots belong to TMA from `empty` to `full`, as do a warpgroup's rows, in whose place
// it puts its results.
#define FIRST_BYTES PANELS_BYTES(SCORE_DEPTH, 64)   // a warpgroup's rows
#define SECOND_BYTES PANELS_BYTES(SECOND_DEPTH, 64)
#define BUFFER (FIRST_BYTES + SECOND_BYTES)
#define VALUES_BYTES PANELS_BYTES(SECOND_DEPTH, STREAM)
#define KEYS (GROUPS * BUFFER)
#define VALUES (KEYS + SLOTS * KEYS_BYTES)
#define SUMMED (KEYS + SUM_AT / 64 * STREAM * 128)   // the columns that the first sum is over

// The rows of tile j, for each warpgroup when it has given back those before.
DEV void feed_rows(const Params &P, u32 base, u32 row_full, u32 row_empty, const Place &at, u32 j) {
#pragma unroll 1
  for (int i = 0; i < GROUPS; i++) {
    mbar_wait(row_empty + 8 * i, (j & 1) ^ 1);
    mbar_expect(row_full + 8 * i, FIRST_BYTES + SECOND_BYTES);
    load_rows(P, base + i * BUFFER, row_full + 8 * i, at.row + 64 * i, at.batch);
    load_panels<SECOND_DEPTH, 64>(base + i * BUFFER + FIRST_BYTES, &P.map[2], row_full + 8 * i, at.row + 64 * i, rows2_batch0(P, at.batch), rows2_batch1(P, at.batch));
  }
}

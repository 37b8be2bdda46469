// groups.cuh: products whose rows, or whose depth, are in groups of any size. Group e begins at offsets[e],
// in device memory, and ends where the next one begins; the first begins at 0.
//
// ROW_GROUPS: each group of rows has its own columns, so all rows of a tile are of one group. The number of
// a row has the group in its upper bits, and the place in the group in the lower GROUP_BITS. Places from the
// group's size on do not exist.
//
// DEPTH_GROUPS: groups are batches (batch.cuh), each with a depth of its own. LONGEST_FIRST: groups with the
// most work come first, so that none of them is left at the end. A table in shared memory has their order.
#define TALL (TILE_M * CLUSTER)   // rows of a cluster of tiles
#define CLIP (1 << 30)            // where what is moved of a group ends, in maps that end with it (epi_map_clip)
DEV int group_begin(const Params &P, int e) {   // or, of the one behind the last, where that ends
  return e == 0 ? 0 : e < GROUP_COUNT ? max(0, min((int)OFFSET(P, e), GROUPED_SIZE)) : GROUPED_SIZE;
}
DEV int group_size(const Params &P, int e) { return max(0, group_begin(P, e + 1) - group_begin(P, e)); }

#if LONGEST_FIRST   // by all threads of a block
DEV void sort_groups(const Params &P, u32 table) {
  const int e = threadIdx.x, own = e < GROUP_COUNT ? group_size(P, e) : 0;
  int place = 0;
  if (e < GROUP_COUNT) sts32(table + 4 * e, own);
  __syncthreads();
#pragma unroll 8
  for (int i = 0; i < GROUP_COUNT; i++) {
    const int other = (int)lds32(table + 4 * i);
    place += other > own || (other == own && i < e);
  }
  __syncthreads();
  if (e < GROUP_COUNT) sts32(table + 4 * place, e);
  __syncthreads();
}
#endif

#if ROW_GROUPS   // what batch.cuh has of others
// A row of a tile to whom it was told where its group begins and ends (order.cuh): it need not ask memory.
struct TileRow {
  int row, number, end;   // as tiles count it; in memory, and where its group ends there
  DEV TileRow operator+(int n) const { return TileRow{row + n, number + n, end}; }
};
DEV int counted(int row) { return row; }
DEV int counted(TileRow row) { return row.row; }
template <class Row> DEV int batch_of(const Params &, Row row) { return counted(row) >> GROUP_BITS; }
template <class Row> DEV int row_in_batch(const Params &, Row row) { return counted(row) & ((1 << GROUP_BITS) - 1); }
DEV int row_number(const Params &P, int row) { return group_begin(P, batch_of(P, row)) + row_in_batch(P, row); }
DEV int row_number(const Params &, TileRow row) { return row.number; }
DEV int operand_rows(const Params &P, int row) { return group_begin(P, batch_of(P, row) + 1); }
DEV int operand_rows(const Params &, TileRow row) { return row.end; }
template <class Row> DEV int operand_row(const Params &P, Row row) { return row_number(P, row); }
template <class Row> DEV bool row_there(const Params &P, Row row) { return row_number(P, row) < operand_rows(P, row); }
template <class Row> DEV int rows_of_batch(const Params &P, Row row) { return operand_rows(P, row) - row_number(P, row) + row_in_batch(P, row); }
template <class Row> DEV int row_near(const Params &P, Row row) { return min(row_number(P, row), (int)P.M - 1); }   // or another that is there
// Boxes of TMA go over the group's end, and nobody wants what becomes of the rows there; where all rows are fewer, they end with these.
template <class Row> DEV int rows_left(const Params &P, Row row, int most) { return row_there(P, row) ? min(most, ((int)P.M + 7) / 8 * 8) : 0; }
// Of the rows' operand: where rows are few, those of the group alone come, by eights.
template <class Row> DEV int operand_left(const Params &P, Row row, int most) {
  return FEW ? min(most, (operand_rows(P, row) - row_number(P, row) + 7) / 8 * 8) : rows_left(P, row, most);
}
#define BATCH_AT(which, row) GROUP_AT_##which(row)   // of the columns' operand alone: GROUP_AT_B is emitted
#define GROUP_AT_A(row)

// Rows of tiles are numbered so that no table is needed: those of group e from offsets[e] / TALL + e on. That is enough for every group,
// and some are empty. Where rows are so few that there would be more numbers than rows, a tile has the number of its first row.
DEV int tiles_down(const Params &P) { return min((int)P.M, (int)P.M / TALL + GROUP_COUNT); }
DEV int tile_row(const Params &P, int number) {   // the first row of that tile, or one that is not there
  const bool few = (int)P.M < (int)P.M / TALL + GROUP_COUNT;
  auto first = [&](int e) { return few ? group_begin(P, e) : group_begin(P, e) / TALL + e; };
  int group = 0, behind = GROUP_COUNT;
#pragma unroll 1
  while (behind - group > 1) {   // the last group whose tiles do not begin behind this number
    const int e = (group + behind) / 2;
    if (first(e) <= number) group = e;
    else behind = e;
  }
  const int i = number - first(group), row = few ? i : min(i, (1 << GROUP_BITS) / TALL - 1) * TALL;
  return group << GROUP_BITS | (few && i % TALL ? (1 << GROUP_BITS) - TALL : row);
}
#endif

// joint.cuh: products of several parts in one launch (emit_joint.c): the tiles of the first part, then those of the second, and so on.
//
// Each part has its own parameter, maps and epilogue. The number of a row has its part in the upper bits, as
// with groups (groups.cuh). So the functions below find its place, and nothing else needs to know about
// parts.
#define PART_SHIFT 28
DEV int part_of(int row) { return row >> PART_SHIFT; }
DEV int part_of_warp(int row) { return __shfl_sync(~0u, part_of(row), 0); }   // which all its lanes have: so it is in a uniform register
DEV int row_in_part(int row) { return row & ((1 << PART_SHIFT) - 1); }
#define MAPS(row) P.part[part_of(row)].map
#define PRODUCTS_OF(row) PRODUCTS_AT(part_of(row))
#define LAST_OF(row) (PRODUCTS_OF(row) > 1 ? 3 : 2 * TERMS)   // behind the operands'
DEV int operand_row(const Launch &, int row) { return row_in_part(row); }
DEV int rows_left(const Launch &P, int row, int most) { return rows_left(P.part[part_of(row)], row_in_part(row), most); }
DEV int operand_left(const Launch &P, int row, int most) { return rows_left(P, row, most); }
DEV int rows_of_batch(const Launch &P, int row) { return (int)P.part[part_of(row)].M; }

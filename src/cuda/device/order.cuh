// order.cuh: which tiles a cluster of Hopper's product computes, and in which order: by number, or from a
// queue.

// P.queue as bits. QUEUES: clusters queue for tiles. BESIDE_LAST: this launch needs nothing of the one before, which may still run: it
// waits for that one's end only when it has done its own work, so that what comes after it need not know of that one. BESIDE_NEXT: so
// does the next launch, which may begin as soon as this one knows that all before it is there. GROUPS_KNOWN: the launch before is one
// of the same groups, and has seen where they begin before it let this one start.
#define QUEUES 1
#define BESIDE_LAST 2
#define BESIDE_NEXT 4
#define GROUPS_KNOWN 8

#define GROUPS (TILE_M / 64)   // warpgroups that compute
// Subtiles from here on are left out of a narrow tile: NARROW is a multiple of what a partial covers, so they leave nothing.
#define NARROW_SUBTILES (NARROW / SUBTILE)

// The order of tiles: raster groups of `raster` rows of clusters, in a group down the rows first, so that a wave of blocks shares
// both operands in the L2 cache; or, where it is negative, groups of so many columns, and across them first. Narrow tiles come last:
// they are shared by those clusters that have one full tile less than the others, or, where there is a queue, taken as they come.
//
// GROUPED: a tile is named by its first row, in rows of tiles, and its column of tiles, of NAME_COLUMNS. Who queues for tiles
// finds out which number that is, and passes over those that are empty. Where a group's last rows are no more than one block's, all
// blocks of a cluster take them, each with columns of its own (OWN_COLUMNS): that is a column of clusters for CLUSTER of tiles.
//
// JOINED: tiles of one part come after those of another, each in an order of its own.
#if !JOINED
typedef Params Launch;   // what the kernel is given
#endif
#define NO_TILE 0x7fffffff
#define OWN_COLUMNS 0x80000000u
DEV void find_in_raster(int t, int tm, int tn, int raster, int &m, int &n) {   // tile t, of so many down and across
  const bool across = raster < 0;
  const int wide = across ? -raster : raster, size = across ? tn : tm;
  const int per = wide * (across ? tm : tn), g = t / per, r = t - g * per, first = g * wide;
  const int h = size - first < wide ? size - first : wide, far = r / h, near = first + (r - far * h);
  m = across ? far : near;
  n = across ? near : far;
}
#if JOINED
struct Order {
  const Launch &P;
  int total;
  DEV Order(const Launch &P, int) : P(P), total(0) {
    for (int p = 0; p < PARTS; p++) total += down(p) * across(p);
  }
  DEV int down(int p) const { return tiles_down(P.part[p]); }
  DEV int across(int p) const { return (COLUMNS_OF(p) + TILE_N / PRODUCTS_AT(p) - 1) / (TILE_N / PRODUCTS_AT(p)); }
  DEV static bool narrow(int) { return false; }
  DEV static int subtiles(int row, int) { return SUBTILES / PRODUCTS_OF(row); }
  DEV static bool is_idle(const Launch &, int, int) { return false; }
  DEV static bool own(int) { return false; }
  DEV static int first(const Launch &, int cid) { return cid; }
  DEV bool reads_once(int row) const { return down(part_of(row)) == 1; }   // its weights: there are no tiles below
  DEV void at(int t, u32 rank, int &m, int &n) const {
    int p = 0;
    for (; p < PARTS - 1 && t >= down(p) * across(p); p++) t -= down(p) * across(p);
    find_in_raster(t, down(p), across(p), (int)P.part[p].raster, m, n);
    m = p << PART_SHIFT | (m * CLUSTER + rank) * TILE_M;
  }
};
#else
struct Order {
  int tm, tn, raster, total;
  bool queue;
  DEV Order(const Launch &P, int cid) {
    tm = tiles_down(P);
#if DEPTH_GROUPS
    tm /= GROUP_COUNT;   // of each of them
#endif
    tn = NARROW ? N_SIZE / TILE_N : (N_SIZE + TILE_COLS - 1) / TILE_COLS;
    raster = P.raster;
    total = tm * tn;
    queue = P.queue & QUEUES;
    if (GROUPED) total = NO_TILE;
    else if (NARROW && queue) total += tm;
    else if (NARROW) {
      const int all = gridDim.x / CLUSTER, more = total % all, first = cid - more;
      if (first >= 0 && first < tm) total += first + (tm - 1 - first) / (all - more) * all + 1;
    }
  }
  DEV bool narrow(int n) const { return NARROW && n == tn; }
  DEV int subtiles(int, int n) const { return narrow(n) ? NARROW_SUBTILES : SUBTILES; }
  // Has a warpgroup nothing to do for a tile whose rows from m on it would have?
#if ROW_GROUPS
  DEV bool is_idle(const Launch &P, TileRow m, int n) const { return !row_there(P, m) || n >= tn; }
#else
  DEV bool is_idle(const Launch &, int, int) const { return false; }
#endif
  // The first row of a block's tile, and the tile's column; whether all blocks of the cluster have the same rows.
  DEV static bool own(int t) { return GROUPED && CLUSTER > 1 && t < 0; }
  DEV void at(int t, u32 rank, int &m, int &n) const {
#if GROUPED
    const int row = t & NO_TILE;
    m = row / NAME_COLUMNS * TALL + (own(t) ? 0 : rank * TILE_M);
    n = own(t) ? row % NAME_COLUMNS * CLUSTER + rank : row % NAME_COLUMNS;
#else
    find(t, m, n);
    m = (m * CLUSTER + rank) * TILE_M;
#endif
  }
#if GROUPED
  DEV int numbers() const { return (DEPTH_GROUPS ? GROUP_COUNT : 1) * tm * tn; }
  DEV int name(const Launch &P, int t, u32 table) const {   // or NO_TILE
    int m, n;
#if DEPTH_GROUPS
    const int e = t / (tm * tn);
    find(t - e * (tm * tn), m, n);
    return ((LONGEST_FIRST ? (int)lds32(table + 4 * e) : e) * tm + m) * NAME_COLUMNS + n;
#else
    find(t, m, n);
    const int row = tile_row(P, m), name = row / TALL * NAME_COLUMNS + n;
    if (CLUSTER > 1 && !row_there(P, row + TILE_M)) {
      return row_there(P, row) && n * CLUSTER < tn ? (int)(OWN_COLUMNS | name) : NO_TILE;
    }
    return row_there(P, row) ? name : NO_TILE;
#endif
  }
#endif
  // A cluster's first tile, of groups by its name. It is asked for of few rows alone: no table says which groups are longest.
#if ROW_GROUPS
  DEV int first(const Launch &P, int cid) const { return name(P, cid, 0); }
#else
  DEV int first(const Launch &, int cid) const { return cid; }
#endif
  DEV void find(int t, int &m, int &n) const {   // by its number
    if (NARROW && t >= tm * tn) {
      const int all = gridDim.x / CLUSTER, more = tm * tn % all;
      t -= tm * tn;
      m = queue ? t : t / all * (all - more) + t % all;
      n = tn;
      return;
    }
    find_in_raster(t, tm, tn, raster, m, n);
  }
};
#endif

// The tiles of a cluster: the first has the cluster's number; those after it by number, too, or, where there is a queue, as
// they come: then fast clusters take more of them, and those that share an operand stay close to each other in time. A number
// is drawn while the tile before it is worked on. Numbers j have place j % PLACES in every block, with two mbarriers: `given`, with the
// bytes of the number that is sent, whose phase j has the parity j / PLACES & 1; and in the first block `taken`, with an arrival of every
// taker of the cluster, after which the place may be written again. Names of groups' tiles are sent, the first one's too: tile j of the
// cluster has number SENT(j). With those of groups of rows goes where the group begins and ends in memory: then whoever works on the tile
// has no need to ask for it, as each subtile would.
#if ROW_GROUPS
typedef TileRow RowAt;                // what a block knows of its tile's first row
struct Group { int begin, end; };     // in memory
DEV bool is_read(Group of) { return of.begin >= 0 && of.end >= 0; }
DEV RowAt row_of_group(const Launch &P, int m, Group of) { return RowAt{m, of.begin + row_in_batch(P, m), of.end}; }
#else
typedef int RowAt;
struct Group {};
DEV bool is_read(Group) { return true; }
DEV RowAt row_of_group(const Launch &, int m, Group) { return m; }
#endif
#define PLACES (GROUPED ? 4 : 2)
#define WORDS (ROW_GROUPS ? 3 : 1)   // that are sent
#define QUEUE_BYTES ((16 + 4 * WORDS) * PLACES)
#define FIRST_SENT (GROUPED ? 0 : 1)
#define SENT(j) ((j) - FIRST_SENT)
#define TAKERS (CLUSTER * (1 + 4 * GROUPS + (GATHERED ? GATHERERS : SUBTILE_BYTES ? GROUPS : 0)))   // the warps that compute, feed the ring, move tiles and gather
struct Queue;
#if GROUPED
struct Names {   // of the cluster's tiles, one after the other, found by one thread
  Order order;
  int w;
  bool ended;
  DEV Names(const Launch &P, const Queue &queue);
  DEV int next(const Launch &P, const Queue &queue);
};
#endif
struct Queue {
  bool counts;
  Counter counter;
  int first, stride, total;
  u32 given, taken, number;   // mbarriers and words for PLACES, in QUEUE_BYTES
  DEV Queue(const Launch &P, int cid, u32 room) : counts(GROUPED || P.queue & QUEUES), counter{(u64 *)P.counter}, first(cid), stride(gridDim.x / CLUSTER), total(Order(P, cid).total) {
    given = room;
    taken = given + 8 * PLACES;
    number = taken + 8 * PLACES;
  }
  DEV void begin() const {
    for (int i = 0; i < PLACES; i++) { mbar_init(given + 8 * i, 1); mbar_init(taken + 8 * i, TAKERS); expect(i); }
  }
  DEV void expect(u32 j) const { mbar_expect(given + 8 * (j % PLACES), 4 * WORDS); }
  // Number j, of what the cluster is sent; what lies beyond the total is none.
  DEV int at(u32 j) const {
    if (counts) mbar_wait(given + 8 * (j % PLACES), j / PLACES & 1);
    return again(j);
  }
  DEV int again(u32 j) const { return counts ? (int)word(0, j) : first + (int)(j + 1) * stride; }
  DEV u32 word(int i, u32 j) const { return lds32(number + 4 * (PLACES * i + j % PLACES)); }
#if ROW_GROUPS
  DEV Group group(u32 j) const { return Group{(int)word(1, j), (int)word(2, j)}; }   // of that tile, until it is given back
#else
  DEV Group group(u32) const { return Group{}; }
#endif
  // Number j, which was w, and its group are in registers: an arrival in another block does not wait for a load that was issued before
  // it, so whether there is one depends on what was loaded. No tile's number is -1, and no group begins or ends there.
  DEV void give_back(u32 j, int w, Group group) const {
    if (counts && w != -1 && is_read(group)) mbar_arrive_at(taken + 8 * (j % PLACES), 0);
  }
  DEV void wait_for_place(u32 j) const { if (j >= PLACES) mbar_wait(taken + 8 * (j % PLACES), (j / PLACES & 1) ^ 1); }
  DEV void put(u32 j, int w, int i = 0) const {
    for (u32 r = 0; r < CLUSTER; r++) send_word(number + 4 * (PLACES * i + j % PLACES), given + 8 * (j % PLACES), r, w);
  }
  DEV void send(const Launch &P, u32 j, int w) const {
    wait_for_place(j);
#if ROW_GROUPS
    const int group = batch_of(P, (w & NO_TILE) / NAME_COLUMNS * TALL);
    put(j, group_begin(P, group), 1);
    put(j, group_begin(P, group + 1), 2);
#endif
    put(j, w);
  }
  // All numbers of the cluster, by one of its threads.
#if GROUPED
  DEV void draw(const Launch &P) const {
    Names names(P, *this);
    for (u32 j = 0; !names.ended; j++) send(P, j, names.next(P, *this));
  }
#else
  DEV void draw(const Launch &) const {
    int w = 0;
    counter.begin(total);
    for (u32 j = 0; w < total; j++) {
      wait_for_place(j);
      const int n = (int)counter.take();
      if (n == total - 1) counter.end();   // all tiles have taken a number, those of the start at the end of their clusters
      w = stride + n;
      put(j, w);
    }
  }
#endif
};

#if GROUPED
DEV Names::Names(const Launch &P, const Queue &queue) : order(P, queue.first), w(queue.first), ended(false) {
#if ROW_GROUPS   // a bisection would wait for one line of offsets after the other: all are asked for at once
  int lines = 0;
#pragma unroll 8
  for (int e = 0; e < min(GROUP_COUNT, 1024); e += 32) lines |= (int)OFFSET(P, e);
  asm volatile("" ::"r"(lines));
#endif
  if (P.queue & QUEUES) queue.counter.begin(order.numbers());
}
DEV int Names::next(const Launch &P, const Queue &queue) {
  int name = NO_TILE;
  while (w < order.numbers() && name == NO_TILE) {
    name = order.name(P, w, queue.number + 4 * PLACES);
    if (P.queue & QUEUES) {
      const int n = (int)queue.counter.take();
      if (n == order.numbers() - 1) queue.counter.end();
      w = n;
    }
    w += queue.stride;
  }
  ended = name == NO_TILE;
  return name;
}
#endif

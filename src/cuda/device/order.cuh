// order.cuh: which tiles a cluster of Hopper's product computes, and in which order: by number, or as they come from a queue.

// P.queue as bits. QUEUES: clusters queue for tiles. BESIDE_LAST: this launch needs nothing of the one before, which may still run: it
// waits for that one's end only when it has done its own work, so that what comes after it need not know of that one. BESIDE_NEXT: so
// does the next launch, which may begin as soon as this one knows that all before it is there.
#define QUEUES 1
#define BESIDE_LAST 2
#define BESIDE_NEXT 4

#define GROUPS (TILE_M / 64)   // warpgroups that compute
// Subtiles from here on are left out of a narrow tile: NARROW is a multiple of what a partial covers, so they leave nothing.
#define NARROW_SUBTILES (NARROW / SUBTILE)

// The order of tiles: raster groups of `raster` rows of clusters, in a group down the rows first, so that a wave of blocks shares
// both operands in the L2 cache; or, where it is negative, groups of so many columns, and across them first. Narrow tiles come last:
// they are shared by those clusters that have one full tile less than the others, or, where there is a queue, taken as they come.
struct Order {
  int tm, tn, raster, total;
  bool queue;
  DEV Order(const Params &P, int cid) {
    tm = (rows_in_all(P) + TILE_M * CLUSTER - 1) / (TILE_M * CLUSTER);
    tn = NARROW ? N_SIZE / TILE_N : (N_SIZE + TILE_COLS - 1) / TILE_COLS;
    raster = P.raster;
    total = tm * tn;
    queue = P.queue & QUEUES;
    if (NARROW && queue) total += tm;
    else if (NARROW) {
      const int all = gridDim.x / CLUSTER, more = total % all, first = cid - more;
      if (first >= 0 && first < tm) total += first + (tm - 1 - first) / (all - more) * all + 1;
    }
  }
  DEV bool narrow(int n) const { return NARROW && n == tn; }
  DEV int subtiles(int n) const { return narrow(n) ? NARROW_SUBTILES : SUBTILES; }
  DEV void at(int t, int &m, int &n) const {
    if (NARROW && t >= tm * tn) {
      const int all = gridDim.x / CLUSTER, more = tm * tn % all;
      t -= tm * tn;
      m = queue ? t : t / all * (all - more) + t % all;
      n = tn;
      return;
    }
    const bool across = raster < 0;
    const int wide = across ? -raster : raster, size = across ? tn : tm;
    const int per = wide * (across ? tm : tn), g = t / per, r = t - g * per, first = g * wide;
    const int h = size - first < wide ? size - first : wide, far = r / h, near = first + (r - far * h);
    m = across ? far : near;
    n = across ? near : far;
  }
};

// The tiles of a cluster: the first has the cluster's number; those after it by number, too, or, where there is a queue, as
// they come: then fast clusters take more of them, and those that share an operand stay close to each other in time. A number
// is drawn while the tile before it is worked on. Numbers j have place j % 2 in every block, with two mbarriers: `given`, with the
// bytes of the number that is sent, whose phase j has the parity j / 2 & 1; and in the first block `taken`, with an arrival of every
// taker of the cluster, after which the place may be written again.
#define TAKERS (CLUSTER * (1 + 4 * GROUPS + (SUBTILE_BYTES ? GROUPS : 0)))   // the warps that compute, that feed the ring and that move tiles
struct Queue {
  bool counts;
  Counter counter;
  int first, stride, total;
  u32 given, taken, number;   // mbarriers and words for two, in 40 bytes
  DEV Queue(const Params &P, int cid, u32 room) : counts(P.queue & QUEUES), counter{(u64 *)P.counter}, first(cid), stride(gridDim.x / CLUSTER), total(Order(P, cid).total) {
    given = room;
    taken = given + 16;
    number = taken + 16;
  }
  DEV void begin() const {
    for (int i = 0; i < 2; i++) { mbar_init(given + 8 * i, 1); mbar_init(taken + 8 * i, TAKERS); expect(i); }
  }
  DEV void expect(u32 j) const { mbar_expect(given + 8 * (j % 2), 4); }
  // Tile j + 1 of the cluster; what lies beyond the total is none.
  DEV int at(u32 j) const {
    if (counts) mbar_wait(given + 8 * (j % 2), j / 2 & 1);
    return again(j);
  }
  DEV int again(u32 j) const { return counts ? (int)lds32(number + 4 * (j % 2)) : first + (int)(j + 1) * stride; }
  DEV void give_back(u32 j) const { if (counts) mbar_arrive_at(taken + 8 * (j % 2), 0); }
  // All numbers of the cluster, by one of its threads.
  DEV void draw() const {
    int w = 0;
    counter.begin(total);
    for (u32 j = 0; w < total; j++) {
      if (j >= 2) mbar_wait(taken + 8 * (j % 2), (j / 2 & 1) ^ 1);
      const int n = (int)counter.take();
      if (n == total - 1) counter.end();   // all tiles have taken a number, those of the start at the end of their clusters
      w = stride + n;
      for (u32 r = 0; r < CLUSTER; r++) send_word(number + 4 * (j % 2), given + 8 * (j % 2), r, w);
    }
  }
};

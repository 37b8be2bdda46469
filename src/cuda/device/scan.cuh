// scan.cuh: the mainloop of scans h(t) = a(t)*h(t-1) + b(t). A block has some lines, columns or rows, and walks along them a chunk of
// CHUNK steps at a time. Its threads have *runs* of RUN neighbouring steps each, as many at a time as there are RUNS in a chunk.
// - DOWN: steps are rows. A thread has one run, of NV = RUN rows, of VEC neighbouring columns; LANES threads have neighbouring columns.
// - else: steps are columns. A thread has PIECES runs, of RUN columns, of one row; LANES threads have neighbouring runs.
// With BACK step s is the one s before the last, and h(t) = a(t)*h(t+1) + b(t).
//
// In a chunk, every run is first computed from zero: the product of its a, and its last h (`leave_ends`).
// The same two numbers of GROUP neighbouring runs are combined into those of the group. The first state of a
// group follows from the last state of the group before, in order, and so do the states of its runs
// (`fold_states`). Each run is then computed again from its state (`take_steps`). All this depends only on
// the positions of the steps. So the bits are the same for any chunks, lanes and other lines. A state goes
// from group to group in f64, so that it does not drift.
#if DOWN
#define RUN NV
#define RUNS TEAMS
#define PITCH LINES
#else
#define RUN 8
#define PIECES (NV * VEC / RUN)
#define RUNS (LANES * PIECES)
#define PITCH (LINES < 32 ? LINES + 1 : LINES + 4)   // so that the ends of neighbouring runs are in different banks
#endif
#define GROUP (32 / RUN)
#define GROUPS (RUNS / GROUP)
#define CHUNK (RUN * RUNS)

// Where the vector of a chunk's step lies in a stage of the ring; and a distance in time as one in steps.
#define RING(s) ((u32)((s) % RUN * THREADS + (s) / RUN * LANES + lane))
#define BACKWARD(by) (BACK ? -(by) : (by))

struct Ends { float a[RUNS * PITCH], h[RUNS * PITCH]; };

// A product of numbers that is beyond f32 stays a number: times a state of zero it is zero. One with an infinity is infinite.
DEV float bounded(float x, bool infinite) { const float most = __uint_as_float(0x7f7fffffu); return infinite ? x : f_min(f_max(x, -most), most); }

#if DOWN
// Where a thread's lines begin among those of a run: sixteen bytes a thread, side by side.
DEV int line_at(int lane, int e) { return VEC < 4 ? e * LANES + lane : (e / 4 * LANES + lane) * 4 + e % 4; }

DEV void put_lines(float *run, int lane, const float (&v)[VEC]) {
  if (VEC < 4) EACH(VEC) run[line_at(lane, e)] = v[e];
  else
#pragma unroll
    for (int e = 0; e < VEC; e += 4) *(float4 *)(run + line_at(lane, e)) = make_float4(v[e], v[(e + 1) % VEC], v[(e + 2) % VEC], v[(e + 3) % VEC]);
}
DEV void get_lines(const float *run, int lane, float (&v)[VEC]) {
  if (VEC < 4) EACH(VEC) v[e] = run[line_at(lane, e)];
  else
#pragma unroll
    for (int e = 0; e < VEC; e += 4) {
      const float4 w = *(const float4 *)(run + line_at(lane, e));
      v[e] = w.x; v[(e + 1) % VEC] = w.y; v[(e + 2) % VEC] = w.z; v[(e + 3) % VEC] = w.w;
    }
}
DEV void leave_ends(Ends *ends, const float (&a)[NV][VEC], const float (&b)[NV][VEC]) {
  const int lane = threadIdx.x % LANES, run = threadIdx.x / LANES;
  float p[VEC], h[VEC];
  EACH(VEC) { p[e] = a[0][e]; h[e] = b[0][e]; }
#pragma unroll
  for (int i = 1; i < NV; i++)
    EACH(VEC) { p[e] *= a[i][e]; h[e] = __fmaf_rn(a[i][e], h[e], b[i][e]); }
  bool beyond = false;
  EACH(VEC) beyond |= fabsf(p[e]) == INF;
  if (beyond)
    EACH(VEC) {
      bool infinite = false;
#pragma unroll
      for (int i = 0; i < NV; i++) infinite |= fabsf(a[i][e]) == INF;
      p[e] = bounded(p[e], infinite);
    }
  put_lines(ends->a + run * PITCH, lane, p);
  put_lines(ends->h + run * PITCH, lane, h);
}
// What was b becomes h.
DEV void take_steps(const Ends *ends, const float (&a)[NV][VEC], float (&b)[NV][VEC]) {
  float h[VEC];
  get_lines(ends->h + threadIdx.x / LANES * PITCH, threadIdx.x % LANES, h);
#pragma unroll
  for (int i = 0; i < NV; i++)
    EACH(VEC) b[i][e] = h[e] = __fmaf_rn(a[i][e], h[e], b[i][e]);
}
#else
// Step s of a run among the elements of its vectors.
#define STEP(v, k, s) (v)[(k) * (RUN / VEC) + (s) / VEC][BACK ? VEC - 1 - (s) % VEC : (s) % VEC]

DEV void leave_ends(Ends *ends, const float (&a)[NV][VEC], const float (&b)[NV][VEC]) {
  const int lane = threadIdx.x % LANES, line = threadIdx.x / LANES;
#pragma unroll
  for (int k = 0; k < PIECES; k++) {
    float p = STEP(a, k, 0), h = STEP(b, k, 0);
#pragma unroll
    for (int s = 1; s < RUN; s++) { p *= STEP(a, k, s); h = __fmaf_rn(STEP(a, k, s), h, STEP(b, k, s)); }
    if (fabsf(p) == INF) {
      bool infinite = false;
#pragma unroll
      for (int s = 0; s < RUN; s++) infinite |= fabsf(STEP(a, k, s)) == INF;
      p = bounded(p, infinite);
    }
    ends->a[(k * LANES + lane) * PITCH + line] = p;
    ends->h[(k * LANES + lane) * PITCH + line] = h;
  }
}
DEV void take_steps(const Ends *ends, const float (&a)[NV][VEC], float (&b)[NV][VEC]) {
  const int lane = threadIdx.x % LANES, line = threadIdx.x / LANES;
#pragma unroll
  for (int k = 0; k < PIECES; k++) {
    float h = ends->h[(k * LANES + lane) * PITCH + line];
#pragma unroll
    for (int s = 0; s < RUN; s++) STEP(b, k, s) = h = __fmaf_rn(STEP(a, k, s), h, STEP(b, k, s));
  }
}
#endif

// By a thread of each line and group: the state that each run begins with comes to the place of its last h. `state` is the line's at the
// chunk's end then, in all threads of the line. Before and behind it all threads meet; who leaves the ends of the next chunk has read its states
// of this one by itself.
DEV void fold_states(Ends *ends, double &state) {
  const int line = threadIdx.x % LINES, group = threadIdx.x / LINES;
  const bool folds = group < GROUPS;
  float *const a = ends->a + group * GROUP * PITCH + line, *const h = ends->h + group * GROUP * PITCH + line;
  float of_a[GROUP], of_h[GROUP], p = 1.f, last = 0.f;
  bool infinite = false;
#pragma unroll
  for (int r = 0; r < GROUP && folds; r++) {
    of_a[r] = a[r * PITCH];
    of_h[r] = h[r * PITCH];
    p *= of_a[r];
    infinite |= fabsf(of_a[r]) == INF;
    last = r ? __fmaf_rn(of_a[r], last, of_h[r]) : of_h[r];
  }
  if (folds) {   // the group's, where nobody else reads any more
    a[0] = bounded(p, infinite);
    a[PITCH] = last;
  }
  __syncthreads();
  if (!folds) return;
  float first = 0.f;
#pragma unroll 4
  for (int g = 0; g < GROUPS; g++) {
    const float *const end = ends->a + g * GROUP * PITCH + line;
    if (g == group) first = (float)state;
    state = __fma_rn((double)end[0], state, (double)end[PITCH]);
  }
#pragma unroll
  for (int r = 0; r < GROUP; r++) {
    h[r * PITCH] = first;
    first = __fmaf_rn(of_a[r], first, of_h[r]);
  }
}

// ptx.cuh: mbarriers, TMA, cp.async and tensor cores as functions, and memory by words.
struct alignas(64) TMap { u64 opaque[16]; };

DEV u32 smem_u32(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEV void mbar_init(u32 b, u32 n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(n)); }
DEV void mbar_expect(u32 b, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory"); }
DEV void mbar_arrive(u32 b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
// The same mbarrier of another block of the cluster. Plain, not .release.cluster: that would put a fence of the
// whole GPU before every arrival, and nothing written by threads is published here.
DEV void mbar_arrive_at(u32 b, u32 cta) {
  asm volatile("{.reg .b32 r; mapa.shared::cluster.u32 r, %0, %1;\n mbarrier.arrive.shared::cluster.b64 _, [r];}" ::"r"(b), "r"(cta) : "memory");
}
// The same in two steps: where it is in the cluster's memory, and the arrival.
DEV u32 cluster_at(u32 b, u32 cta) { u32 r; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(b), "r"(cta)); return r; }
DEV void mbar_arrive_there(u32 at) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory"); }
DEV void mbar_wait(u32 b, u32 parity) {
  asm volatile("{.reg .pred p;\nW_%=:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @!p bra W_%=;}" ::"r"(b), "r"(parity) : "memory");
}
// Not an addition: for those the compiler asks the other lanes first, and waits for the number at once.
DEV u32 take_number(u32 *counter) { u32 n; asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0x7fffffff;" : "=r"(n) : "l"(counter) : "memory"); return n; }
DEV void mbar_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Neighbouring bytes, a multiple of 16.
DEV void bulk_load(u32 dst, const void *src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
DEV void bulk_prefetch(const void *src, u32 bytes) { asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory"); }
DEV void tma_load(u32 dst, const TMap *m, u32 bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
    ::"r"(dst), "l"(m), "r"(bar), "r"(x), "r"(y) : "memory");
}
// With a word on how long it is to stay in the L2 cache: usually, or until anything else wants its place.
#define USUALLY 0x1000000000000000ull
#define READ_ONCE 0x12f0000000000000ull
DEV void tma_load_for(u32 dst, const TMap *m, u32 bar, int x, int y, u64 stay) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;"
    ::"r"(dst), "l"(m), "r"(bar), "r"(x), "r"(y), "l"(stay) : "memory");
}
DEV void tma_load_all(u32 dst, const TMap *m, u32 bar, int x, int y, u16 mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
    ::"r"(dst), "l"(m), "r"(bar), "r"(x), "r"(y), "h"(mask) : "memory");
}
DEV void tma_prefetch(const TMap *m, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(m), "r"(x), "r"(y) : "memory");
}
DEV void tma_store(const TMap *m, u32 src, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(m), "r"(src), "r"(x), "r"(y) : "memory");
}
// The same of tensors of four axes.
DEV void tma_load(u32 dst, const TMap *m, u32 bar, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
    ::"r"(dst), "l"(m), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
DEV void tma_load_for(u32 dst, const TMap *m, u32 bar, int x, int y, int z, int w, u64 stay) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
    ::"r"(dst), "l"(m), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "l"(stay) : "memory");
}
DEV void tma_load_all(u32 dst, const TMap *m, u32 bar, int x, int y, int z, int w, u16 mask) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
    ::"r"(dst), "l"(m), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "h"(mask) : "memory");
}
DEV void tma_prefetch(const TMap *m, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(m), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
DEV void tma_store(const TMap *m, u32 src, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(m), "r"(src), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
// And of five axes.
DEV void tma_load(u32 dst, const TMap *m, u32 bar, int x, int y, int g, int z, int w) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
    ::"r"(dst), "l"(m), "r"(bar), "r"(x), "r"(y), "r"(g), "r"(z), "r"(w) : "memory");
}
DEV void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEV void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
template <int N> DEV void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
template <int BYTES> DEV void cp_async(u32 to, const void *from, int bytes) {   // the rest becomes zero
  if (BYTES == 16) asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  else asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(bytes), "n"(BYTES) : "memory");
}
DEV void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void cp_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
// An arrival at an mbarrier that counts on it, when all copies that this thread has begun are there.
DEV void copies_arrive(u32 bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }
// So many times 16 bytes further on, in one instruction; and an address that is kept, not worked out anew for every use.
DEV const u8 *row_at(const u8 *from, u32 place) { const u8 *at; asm volatile("mad.wide.u32 %0, %1, 16, %2;" : "=l"(at) : "r"(place), "l"(from)); return at; }
DEV const u8 *held(const u8 *p) { const u8 *q; asm volatile("mov.b64 %0, %1;" : "=l"(q) : "l"(p)); return q; }
DEV int held(int x) { int y; asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x)); return y; }
DEV void bar_sync(u32 id, u32 n) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory"); }
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <int N> DEV void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEV void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
DEV void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEV void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Values may not be read before, or written after, this point.
template <int N> DEV void hold(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("// held" : "+f"(x[i])::"memory");
}
template <int N> DEV void hold(u32 (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("// held" : "+r"(x[i])::"memory");
}
template <class T, int A, int N> DEV void hold_all(T (&x)[A][N]) {
#pragma unroll
  for (int i = 0; i < A; i++) hold(x[i]);
}
DEV u32 cluster_id() { u32 r; asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(r)); return r; }
DEV u32 cluster_rank() { u32 r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
// Writes to the same place in the shared memory of another block of the cluster; its bytes count on the same barrier there.
DEV void send_word(u32 at, u32 bar, u32 cta, u32 x) {
  u32 to, there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(at), "r"(cta));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(bar), "r"(cta));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(x), "r"(there) : "memory");
}
template <class F> DEV void send(void *room, u32 bar, u32 cta, const F &f) {
#pragma unroll
  for (int i = 0; i < (int)(sizeof(F) / 4); i++) send_word(smem_u32(room) + 4 * i, bar, cta, ((const u32 *)&f)[i]);
}
// The blocks of a cluster meet. Relaxed: nothing that threads write is published by it, and a release would put a fence of
// the whole GPU before it. Before a block leaves to whose barriers others arrive, with the release: they have arrived.
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }
DEV void cluster_leave() { asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory"); }
// What the kernel ahead in the stream wrote may be read from here on. Before Hopper it always may.
#if __CUDA_ARCH__ >= 900
DEV void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEV void dependency_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEV void dependency_wait() {}
DEV void dependency_start() {}
#endif

// ---- a word in memory that blocks count in

DEV u64 word_seen(const u64 *p) { u64 x; asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory"); return x; }
DEV void word_swap(u64 *p, u64 from, u64 to) { asm volatile("{.reg .b64 x; atom.relaxed.gpu.global.cas.b64 x, [%0], %1, %2;}" ::"l"(p), "l"(from), "l"(to) : "memory"); }

// ---- memory that is passed over once, in the order of the text

DEV void stream16(u32 *w, const void *a) {
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(a) : "memory");
}
// Read by two neighbours and not again: it leaves the L2 cache first, and what is written meanwhile stays there.
DEV void once16(u32 *w, const void *a) {
  asm volatile("{.reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0;\n"
    " ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], p;}" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(a) : "memory");
}
DEV void stream8(u32 *w, const void *a) {
  asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(a) : "memory");
}
DEV void prefetch(const void *a) { asm volatile("prefetch.global.L2 [%0];" ::"l"(a) : "memory"); }
DEV void stream4(u32 *w, const void *a) { asm volatile("ld.global.b32 %0, [%1];" : "=r"(w[0]) : "l"(a) : "memory"); }
DEV void stream2(u32 *w, const void *a) {
  u16 x;
  asm volatile("ld.global.b16 %0, [%1];" : "=h"(x) : "l"(a) : "memory");
  w[0] = x;
}
DEV void write16(void *a, const u32 *w) { asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(a), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory"); }
DEV void write8(void *a, const u32 *w) { asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(a), "r"(w[0]), "r"(w[1]) : "memory"); }
DEV void write4(void *a, const u32 *w) { asm volatile("st.global.b32 [%0], %1;" ::"l"(a), "r"(w[0]) : "memory"); }
DEV void write2(void *a, const u32 *w) { asm volatile("st.global.b16 [%0], %1;" ::"l"(a), "h"((u16)w[0]) : "memory"); }
DEV void write4_if(bool yes, void *a, u32 w) { asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0;\n @p st.global.b32 [%0], %1;}" ::"l"(a), "r"(w), "r"((int)yes) : "memory"); }
DEV void write2_if(bool yes, void *a, u32 w) { asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0;\n @p st.global.b16 [%0], %1;}" ::"l"(a), "h"((u16)w), "r"((int)yes) : "memory"); }

// ---- staged tiles: rows of 32, 64 or 128 bytes, swizzled as TMA does it

// Where byte x of row r lies in a panel of rows of `width` bytes.
template <int WIDTH> DEV u32 swizzled(u32 r, u32 x) {
  const u32 turn = WIDTH == 128 ? r & 7 : WIDTH == 64 ? (r >> 1) & 3 : WIDTH == 32 ? (r >> 2) & 1 : 0;
  return r * WIDTH + (x ^ (turn << 4));
}
DEV void stm4(u32 a, const u32 (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}
DEV void stm4_turned(u32 a, const u32 (&w)[4]) {   // lines are columns
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}
DEV void ldm4(u32 a, u32 (&w)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(a) : "memory");
}
DEV u32 lds16(u32 a) { u16 r; asm volatile("ld.shared.u16 %0, [%1];" : "=h"(r) : "r"(a) : "memory"); return r; }
DEV u32 lds32(u32 a) { u32 r; asm volatile("ld.shared.b32 %0, [%1];" : "=r"(r) : "r"(a) : "memory"); return r; }
DEV uint2 lds64(u32 a) { uint2 r; asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "r"(a) : "memory"); return r; }
DEV uint4 lds128(u32 a) { uint4 r; asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(a) : "memory"); return r; }
DEV void sts32(u32 a, u32 x) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(a), "r"(x) : "memory"); }
DEV void sts64(u32 a, u32 x, u32 y) { asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(a), "r"(x), "r"(y) : "memory"); }
DEV void sts128(u32 a, u32 x, u32 y, u32 z, u32 w) { asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(a), "r"(x), "r"(y), "r"(z), "r"(w) : "memory"); }

// ---- operands of wgmma in shared memory, 128-byte swizzle

// Depth innermost: 8 rows are 1024 bytes; 16 deeper is 32 bytes further on.
DEV u64 operand_k(u32 a) { return (u64)((a & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
// Rows (or columns) innermost: slabs of 64 of them, DEPTH*128 bytes each; 16 deeper is 2048 bytes further on.
template <int DEPTH> DEV u64 operand_mn(u32 a) { return (u64)((a & 0x3ffff) >> 4) | (u64)(DEPTH * 128 >> 4) << 16 | 64ull << 32 | 1ull << 62; }

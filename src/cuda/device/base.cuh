// base.cuh: the start of every device text: short types, PTX, storage types, and the functions that the
// `cuda` cells of ops.def call. It includes no header, for NVRTC.
//
// EPI_FAST: 1 if every tile is stored in 16 bits or fewer; functions then need a precision of only about
// 2^-20.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
#define DEV __device__ __forceinline__
#define INF __int_as_float(0x7f800000)
// Of wgmma's accumulators, which the first one of a sum does not read: before CUDA 13 the assembler wants them set nonetheless (C7515).
#if __CUDACC_VER_MAJOR__ < 13
#define UNREAD = {}
#else
#define UNREAD
#endif

// Digits of a flat index, by a number of elements that is known at the launch alone. A division of 64 bits is a call of a hundred
// instructions: it is for numbers that need it. An index of 32 bits counts no more than it can hold, so neither does what divides it.
DEV bool is_short(i64 x, i64 by) { return (x | by) >> 32 == 0; }
DEV i64 quotient(i64 x, i64 by) { return is_short(x, by) ? (i64)((u32)x / (u32)by) : x / by; }
DEV i64 remainder(i64 x, i64 by) { return is_short(x, by) ? (i64)((u32)x % (u32)by) : x % by; }
DEV int quotient(int x, i64 by) { return x / (int)by; }
DEV int remainder(int x, i64 by) { return x % (int)by; }
DEV u32 quotient(u32 x, i64 by) { return x / (u32)by; }
DEV u32 remainder(u32 x, i64 by) { return x % (u32)by; }

// ---- storage types: what an element is in memory, and as f32

enum { F32, BF16, F16, I32, I64, E4M3, E5M2, I8, U8 };   // from E4M3 on, a byte each

DEV float bf16_f32(u16 x) { return __uint_as_float((u32)x << 16); }
DEV float f16_f32(u16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }
DEV u16 f32_bf16(float x) { u16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
DEV u16 f32_f16(float x) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
// Two neighbours in one word, the first in the low half.
template <int T> DEV u32 pack(float lo, float hi) {
  u32 r;
  if (T == BF16) asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(lo), "f"(hi));
  else asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(r) : "f"(lo), "f"(hi));
  return r;
}
template <int T> DEV float low(u32 w) { return T == BF16 ? __uint_as_float(w << 16) : f16_f32((u16)w); }
template <int T> DEV float high(u32 w) { return T == BF16 ? __uint_as_float(w & 0xffff0000u) : f16_f32((u16)(w >> 16)); }
template <int T> DEV float rounded(float x) { return T == BF16 ? bf16_f32(f32_bf16(x)) : f16_f32(f32_f16(x)); }

// Bytes. e5m2 is the upper half of an f16; e4m3 has the digits of one of 2^-8 times its value, and no infinity: that is its largest
// number, as is all that is beyond a byte. NaN is all ones, and 0 as an integer.
DEV float f_whole(float x, float least, float most) { return x == x ? rintf(fminf(fmaxf(x, least), most)) + 0.f : 0.f; }
#if __CUDA_ARCH__ >= 890
DEV u32 e4m3_pair(float lo, float hi) { u16 r; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(r) : "f"(lo), "f"(hi)); return r; }
DEV u32 e5m2_finite(float lo, float hi) { u16 r; asm("cvt.rn.satfinite.e5m2x2.f32 %0, %2, %1;" : "=h"(r) : "f"(lo), "f"(hi)); return r; }
DEV u32 e5m2_pair(float lo, float hi) {
  const u32 w = e5m2_finite(lo, hi);
  return w + (fabsf(lo) == INF) + ((fabsf(hi) == INF) << 8);   // 57344 has the number before infinity's
}
DEV u32 e4m3_halves(u32 w) { u32 r; asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((u16)w)); return r; }
DEV float e4m3_low(u32 w) { return f16_f32((u16)e4m3_halves(w)); }
DEV float e4m3_high(u32 w) { return f16_f32((u16)(e4m3_halves(w) >> 16)); }
#else
// The nearest with CUT digits fewer than f32 has, of two the even one; below NORMAL digits end where those of SMALL do.
template <int CUT, u32 NORMAL, u32 SMALL, u32 MOST, u32 OFFSET, u32 INFINITE> DEV u32 near_byte(float x) {
  const u32 bits = __float_as_uint(x), a = bits & 0x7fffffffu, sign = bits >> 24 & 0x80;
  const u32 rounded = (a + (1 << (CUT - 1)) - 1 + (a >> CUT & 1)) >> CUT;
  const u32 normal = (rounded < MOST >> CUT ? rounded : MOST >> CUT) - (OFFSET << (23 - CUT));
  const u32 small = __float_as_uint(__uint_as_float(a) + __uint_as_float(SMALL)) - SMALL;
  const u32 byte = a < NORMAL ? small : normal;
  return sign | (a < 0x7f800000u ? byte : a > 0x7f800000u ? 0x7f : INFINITE);
}
DEV u32 e4m3_one(float x) { return near_byte<20, 121u << 23, 0x46800000u, 0x43e00000u, 120, 0x7e>(x); }
DEV u32 e5m2_one(float x) { return near_byte<21, 113u << 23, 0x43000000u, 0x47600000u, 112, 0x7c>(x); }
DEV u32 e4m3_pair(float lo, float hi) { return e4m3_one(lo) | e4m3_one(hi) << 8; }
DEV u32 e5m2_pair(float lo, float hi) { return e5m2_one(lo) | e5m2_one(hi) << 8; }
DEV float e4m3_low(u32 w) {
  const float x = f16_f32((u16)((w & 0x80) << 8 | (w & 0x7f) << 7)) * 256.f;
  return (w & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : x;
}
DEV float e4m3_high(u32 w) { return e4m3_low(w >> 8); }
#endif
// Two neighbours in two bytes of a word, the first in the lowest.
template <int T> DEV u32 byte_pair(float lo, float hi) {
  if (T == E4M3) return e4m3_pair(lo, hi);
  if (T == E5M2) return e5m2_pair(lo, hi);
  const float least = T == I8 ? -128.f : 0.f, most = T == I8 ? 127.f : 255.f;
  return ((int)f_whole(lo, least, most) & 0xff) | ((int)f_whole(hi, least, most) & 0xff) << 8;
}
template <int T> DEV float byte_low(u32 w) {
  if (T == E4M3) return e4m3_low(w);
  if (T == E5M2) return f16_f32((u16)(w << 8));
  return T == I8 ? (float)(int)(signed char)w : (float)(w & 0xff);
}
template <int T> DEV float byte_high(u32 w) { return T == E4M3 ? e4m3_high(w) : T == E5M2 ? f16_f32((u16)(w & 0xff00)) : byte_low<T>(w >> 8); }
// The nearest number of a type, and the largest for what is beyond it; an infinity stays one where the type has such.
template <int T> DEV float converted(float x) {
  if (T >= E4M3) return byte_low<T>(byte_pair<T>(x, 0.f));
  const float most = T == BF16 ? __uint_as_float(0x7f7f0000u) : 65504.f, near = rounded<T>(x);
  return fabsf(near) == INF && fabsf(x) < INF ? copysignf(most, x) : near;
}

// To the nearest, the largest where there is none so large, and 0 for NaN.
DEV i64 f32_i64(float x) { return x == x ? __float2ll_rn(x) : 0; }

// From memory, by a plain load. Not by __ldg: what comes through the read-only cache counts as constant, and ptxas moves
// such a load ahead of griddepcontrol.wait, where the launch before may not have written it yet.
#ifndef FETCH   // the emulator has one that looks at the address
template <class V> DEV V fetch(const V *p) { return *p; }
#endif
template <int T> DEV float load(const void *p, i64 at) {
  if (T == F32) return fetch((const float *)p + at);
  if (T == I32) return (float)fetch((const int *)p + at);
  if (T == I64) return (float)fetch((const i64 *)p + at);
  if (T >= E4M3) return byte_low<T>(fetch((const u8 *)p + at));
  const u16 x = fetch((const u16 *)p + at);
  return T == BF16 ? bf16_f32(x) : f16_f32(x);
}
template <int T> DEV void store(void *p, i64 at, float x) {
  if (T == F32) ((float *)p)[at] = x;
  else if (T == I32) ((int *)p)[at] = __float2int_rn(x);
  else if (T == I64) ((i64 *)p)[at] = f32_i64(x);
  else if (T >= E4M3) ((u8 *)p)[at] = (u8)byte_pair<T>(x, 0.f);
  else ((u16 *)p)[at] = T == BF16 ? f32_bf16(x) : f32_f16(x);
}
// N neighbours that start at a multiple of N.
template <int T, int N> DEV void load_n(float (&v)[N], const void *p, i64 at) {
  if (T == F32 && N == 2) {
    const float2 w = fetch((const float2 *)((const float *)p + at));
    v[0] = w.x; v[1] = w.y;
  } else if (T == F32 && N == 4) {
    const float4 w = fetch((const float4 *)((const float *)p + at));
    v[0] = w.x; v[1] = w.y; v[2 % N] = w.z; v[3 % N] = w.w;
  } else if ((T == BF16 || T == F16) && N == 2) {
    const u32 w = fetch((const u32 *)((const u16 *)p + at));
    v[0] = low<T>(w); v[1] = high<T>(w);
  } else if ((T == BF16 || T == F16) && N == 4) {
    const uint2 w = fetch((const uint2 *)((const u16 *)p + at));
    v[0] = low<T>(w.x); v[1] = high<T>(w.x); v[2 % N] = low<T>(w.y); v[3 % N] = high<T>(w.y);
  } else if (T >= E4M3 && (N == 2 || N == 4)) {
    const u32 w = N == 2 ? fetch((const u16 *)((const u8 *)p + at)) : fetch((const u32 *)((const u8 *)p + at));
    v[0] = byte_low<T>(w); v[1] = byte_high<T>(w); v[2 % N] = byte_low<T>(w >> (N == 4 ? 16 : 0)); v[3 % N] = byte_high<T>(w >> (N == 4 ? 16 : 0));
  } else {
#pragma unroll
    for (int e = 0; e < N; e++) v[e] = load<T>(p, at + e);
  }
}
template <int T, int N> DEV void store_n(void *p, i64 at, const float (&v)[N]) {
  if (T == F32 && N == 2) *(float2 *)((float *)p + at) = make_float2(v[0], v[1]);
  else if (T == F32 && N == 4) *(float4 *)((float *)p + at) = make_float4(v[0], v[1], v[2 % N], v[3 % N]);
  else if ((T == BF16 || T == F16) && N == 2) *(u32 *)((u16 *)p + at) = pack<T>(v[0], v[1]);
  else if ((T == BF16 || T == F16) && N == 4) *(uint2 *)((u16 *)p + at) = make_uint2(pack<T>(v[0], v[1]), pack<T>(v[2 % N], v[3 % N]));
  else if (T >= E4M3 && N == 2) *(u16 *)((u8 *)p + at) = (u16)byte_pair<T>(v[0], v[1]);
  else if (T >= E4M3 && N == 4) *(u32 *)((u8 *)p + at) = byte_pair<T>(v[0], v[1]) | byte_pair<T>(v[2 % N], v[3 % N]) << 16;
  else {
#pragma unroll
    for (int e = 0; e < N; e++) store<T>(p, at + e, v[e]);
  }
}

// ---- elements by their number

// The position that an index means: an integer as it is, another number rounded to the nearest; -1 outside the axis.
DEV i64 position_of(float x, i64 size) {
  const i64 at = x >= -0.5f && x < 4611686018427387904.f ? __float2ll_rn(x) : -1;
  return at < size ? at : -1;
}
template <int T> DEV i64 integer(const void *p, i64 i) { return T == I64 ? fetch((const i64 *)p + i) : fetch((const int *)p + i); }
DEV i64 position_of(i64 at, i64 size) { return at >= 0 && at < size ? at : -1; }
DEV i64 position_of(int at, i64 size) { return (u32)at < (u32)(size < 0x80000000ll ? size : 0x80000000ll) ? at : -1; }   // in 32 bits
template <int T> DEV i64 position(const void *p, i64 i, i64 size) {
  return T == I32 || T == I64 ? position_of(integer<T>(p, i), size) : position_of(load<T>(p, i), size);
}

// ---- functions of the language

DEV float ex2(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float rcp(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float lg2(float x) { float r; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
#define LOG2E 1.4426950408889634f
DEV float f_min(float a, float b) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DEV float f_max(float a, float b) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
#if EPI_FAST
DEV float f_exp(float a) { return ex2(a * LOG2E); }
DEV float f_exp2(float a) { return ex2(a); }
DEV float f_sigmoid(float a) { return rcp(1.f + ex2(-LOG2E * a)); }
DEV float f_rsqrt(float a) { return rsqrtf(a); }
DEV float f_tanh(float a) {   // near zero the difference from one would be all rounding
  const float s = a * a, near = __fmaf_rn(a * s, __fmaf_rn(s, 0.13333333f, -0.33333333f), a);
  return fabsf(a) < 0.1f ? near : __fmaf_rn(-2.f, rcp(1.f + ex2(2.f * LOG2E * a)), 1.f);
}
#else
DEV float f_exp(float a) { return expf(a); }
DEV float f_exp2(float a) { return exp2f(a); }
DEV float f_sigmoid(float a) {   // of 1 to 2 the inverse needs no branch for what is beyond f32
  const float t = expf(-fabsf(a)), b = 1.f + t, r = rcp(b), near = __fmaf_rn(r, __fmaf_rn(-b, r, 1.f), r);
  return a >= 0.f ? near : t * near;
}
DEV float f_rsqrt(float a) { return __fdiv_rn(1.f, __fsqrt_rn(a)); }
DEV float f_tanh(float a) { return tanhf(a); }
#endif
DEV float f_log(float a) { return logf(a); }   // lg2.approx is coarse near one
DEV float f_div(float a, float b) { return __fdiv_rn(a, b); }
// The quotient by a scale of it: one of 2^-100 to 2^126, or infinite, and no less than |a| over 2^20. The inverse is worked out once for all
// that share it, and what is left of `a` twice corrects a product with it: that gives the number of a division.
// Once corrected it is on the same side as that of every number halfway between two of e4m3, or of e5m2, and so are its bytes: there are
// 2^23 such scales but for powers of two, and all quotients near such a number were tried (tests/test_conversions.c tries some).
struct Scale { float by, inverse; };
DEV Scale scale_of(float b) { return {f_min(b, __uint_as_float(0x7f7fffffu)), __fdiv_rn(1.f, b)}; }
DEV float f_scaled_byte(float a, const Scale &s) {
  const float q = a * s.inverse;
  return __fmaf_rn(-__fmaf_rn(q, s.by, -a), s.inverse, q);
}
DEV float f_scaled(float a, const Scale &s) {
  const float p = f_scaled_byte(a, s);
  return __fmaf_rn(-__fmaf_rn(p, s.by, -a), s.inverse, p);
}
DEV float f_silu(float a) { return a == -INF ? 0.f * a : a * f_sigmoid(a); }
DEV float f_gelu_tanh(float a) {
  // in the order of its derivative (ir/ops.def), which then has this sigmoid, too
  return a * f_sigmoid(1.5957691216057308f * a * __fmaf_rn(0.044715f * a, a, 1.f));
}
DEV float f_softplus(float a) { return f_max(a, 0.f) + log1pf(expf(-fabsf(a))); }
// To one of the two bf16 neighbours: away from zero where the bits that are cut off and the first 16 of u carry.
DEV float f_dither(float x, float u) {
  const float t = fminf(fmaxf(u * 65536.f, 0.f), 65535.f);
  return x == x ? __uint_as_float((__float_as_uint(x) + (u32)t) & 0xffff0000u) : x;
}
// The log of a sum of exponentials as (largest, sum of exp relative to it).
DEV void lse_add(float &m, float &s, float m2, float s2) {
  const float top = f_max(m, m2), ref = top == -INF || top == INF ? 0.f : top;
  s = s * ex2((m - ref) * LOG2E) + s2 * ex2((m2 - ref) * LOG2E);
  m = top;
}
DEV float lse_end(float m, float s) { return m == -INF || m == INF ? m : m + logf(s); }

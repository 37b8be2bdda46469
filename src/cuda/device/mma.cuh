// mma.cuh: the tensor cores of every GPU from Ampere on, for operands of the 16-bit type HALF: ldmatrix and mma.sync.

template <bool MN> DEV void ldm(u32 a, u32 (&w)[4]) {
  if (!MN) ldm4(a, w);
  else asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(a) : "memory");
}
// 16 rows and 8 columns, 16 deep.
DEV void mma(float *d, const u32 (&a)[4], u32 b0, u32 b1) {
#define MMA(T) asm("mma.sync.aligned.m16n8k16.row.col.f32." T "." T ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if (HALF == BF16) MMA("bf16");
  else MMA("f16");
}

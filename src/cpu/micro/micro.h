/* micro.h: the innermost product of a few rows and columns, behind one pointer type.
 *
 * A micro-kernel adds (or stores) mr x nr elements of C, computed from one packed panel of each
 * operand. Everything about an instruction set is one epi_micro, at the end of its file.
 *
 * Invariants of every micro-kernel's loop: all mr x nr sums are in registers and start at zero; an iteration
 * covers `depth` elements of the depth and adds their products to every sum, in order; both panels are read
 * once, from front to back; C is read and written only after the loop.
 *
 * Packed panels. A panel of side A holds mr rows, one of side B holds nr rows ("row" meaning an
 * index of M or of N). With interleave q (ka or kb) the element (row i, depth k) of a panel of
 * r rows lies at  (k / q) * r * q + i * q + k % q.  Depth is padded with zeros to a multiple of
 * `depth`, missing rows are zeros.
 */
#ifndef EPI_CPU_MICRO_H
#define EPI_CPU_MICRO_H

#include "base/base.h"

enum { EPI_SIDE_A, EPI_SIDE_B };
enum { EPI_MICRO_MAX_MR = 32, EPI_MICRO_MAX_NR = 32 };
enum {
    EPI_MICRO_FEW = 8,     /* rows at most of direct.run and direct.across */
    EPI_MICRO_DIRECT = 32, /* columns of direct.run and direct.bits come in so many, */
    EPI_MICRO_ACROSS = 16, /* and so many bytes of a column's depth does direct.across take at most */
};

/* Memory that will be wanted soon after a run. A kernel leaves the memory system idle; it asks for
 * one line for every `every` of depth on the way, and leaves the cursor where the next run may go
 * on. The lines go to the second-level cache. */
typedef struct epi_prefetch_cursor {
    const char *line; /* need not be valid memory: a request cannot fault */
    int64_t stride;   /* bytes from a line to the next */
    int64_t every;    /* at least 1 */
    int64_t left;     /* depth until the next request; start with `every` */
    /* A matrix is rows of lines: after `row` lines `skip` more bytes are added. All 0 otherwise. */
    int64_t row_left; /* lines until that happens; start with `row` */
    int64_t row, skip;
    bool write; /* wanted for writing: prefetched for this core alone */
} epi_prefetch_cursor;

/* B's columns in few bits: an element is (q - zero)*scale + offset. */
enum {
    EPI_MICRO_PARTS = 3,
    EPI_MICRO_GROUP = 32
}; /* scale, zero, offset; the least depth that shares them */
typedef struct epi_micro_bits {
    int bits; /* 8; or 4, two to a byte, the first of the depth in the low half */
    bool is_signed;
    /* By part: elements of f32, f16, bf16, i8 or u8, and by column where the first group's is; NULL: there is none. */
    epi_dtype type[EPI_MICRO_PARTS];
    const void *const *part[EPI_MICRO_PARTS];
    int64_t group; /* depth of a group: a multiple of EPI_MICRO_GROUP, and kc of it or it of kc */
    int64_t first; /* depth before B's elements */
} epi_micro_bits;

/* EPI_MICRO_GROUP of the depth of a row of A in 8 bits: an element is q*scale. Where B has 4 bits, of every eight
 * elements those at even depths come first. */
typedef struct epi_micro_integers {
    int8_t q[EPI_MICRO_GROUP];
    float scale;
    int32_t sum; /* of q */
} epi_micro_integers;

typedef struct epi_micro {
    const char *name; /* "avx512" */
    epi_dtype type;   /* what packed panels hold: EPI_F32 or EPI_BF16 */
    int mr, nr;       /* rows of a panel of A and of B */
    int ka, kb;       /* interleave of a panel of A and of B */
    int depth;        /* packed depth is a multiple of this (and so of ka and kb) */
    int kc;           /* depth of one sweep, a multiple of `depth`. The order of additions, and
                         so the result's bits, follow from kc alone. */
    int64_t own; /* bytes: so large a tile of A, packed, does every thread pack for itself and keep in its
                    second-level cache; 0: A is packed once for all */
    bool (*usable)(void); /* does this CPU, and the system, have it? */
    bool (*worth)(void);  /* and is it faster here than those after it? NULL: yes */
    void (*enter)(void);  /* once per thread before run, may be NULL (tile configuration) */
    void (*leave)(void);  /* once per thread after, may be NULL */
    /* c[i*ldc + j] (+)= sum over k of a(i,k)*b(j,k); k is a multiple of `depth`; b is 64-byte
       aligned, a and c need not be. The bits of a result depend on its row, its column and k. */
    void (*run)(int64_t k, const void *a, const void *b, float *c, int64_t ldc, bool add,
                epi_prefetch_cursor *cursor);
    /* the same of the panel's first rows alone, from one to mr of them, with the same bits, and of C perhaps
       more of its mr rows. From kb of B's depth to the next are ldb elements, nr * kb in a panel. C is
       stored; with go_on the sums begin with what it holds, so runs over parts of the depth, one after the
       other, have the bits of one over all of it. NULL: run is as good, and adds so that this holds of it */
    void (*run_rows)(int rows, int64_t k, const void *a, const void *b, int64_t ldb, float *c, int64_t ldc,
                     bool go_on, epi_prefetch_cursor *cursor);
    /* Few rows against B's rows as they lie in memory, with the same bits; without run, B is packed. */
    struct {
        int rows[3]; /* such panels of A it takes, of one term's whole depth, in ascending order; 0: no more
                      */
        int ka;      /* their interleave */
        /* `rows` is one of these; column j's depth, k elements of any type that the kernel takes, is a run
           from b[j] on, and k may be of several sweeps. Of C all these rows are written, and as many columns
           as make a multiple of EPI_MICRO_DIRECT. A line behind A may be read, too. */
        void (*run)(int rows, int cols, int64_t k, const void *a, const void *const b[], epi_dtype type,
                    float *c, int64_t ldc, bool add);
        /* The same of few bits; k is a multiple of EPI_MICRO_GROUP. NULL: B is widened. */
        void (*bits)(int rows, int cols, int64_t k, const void *a, const void *const b[],
                     const epi_micro_bits *f, float *c, int64_t ldc, bool add);
        /* The same where A has 8 bits, too: products of EPI_MICRO_GROUP of the depth are added up as integers, which
           is exact, then x = (sum - zero*sum of q)*scale + offset*sum of q, and x times A's scale is added, so all
           kernels have the same bits. `rows` is one of these or a multiple of EPI_MICRO_FEW; a sweep of A, which begins
           where one of f32 would, has groups of `rows` epi_micro_integers. NULL, or not usable: both are widened. */
        void (*integers)(int rows, int cols, int64_t k, const void *a, const void *const b[],
                         const epi_micro_bits *f, float *c, int64_t ldc, bool add);
        bool (*has_integers)(void);
        /* The same where the columns are neighbours in memory: `cols` of them from b[d] on at depth d, up to
           EPI_MICRO_ACROSS bytes of the depth. As many more of b are what comes next, and are asked for. A is
           such a panel, of lda rows, from that depth on, of which the first `rows` are wanted. C is stored;
           with go_on the sums begin with what it holds. Of C all the panel's rows may be written. NULL: B is
           packed. */
        void (*across)(int rows, int depth, int64_t cols, const float *a, int64_t lda, const void *const b[],
                       epi_dtype type, float *c, int64_t ldc, bool go_on);
    } direct;
    /* f16 to f32 for packing, the fastest way this CPU has; NULL in bf16 kernels */
    void (*widen_f16)(float *dst, const uint16_t *src, int64_t n);
} epi_micro;

/* The fastest kernel here for operands stored as `a` and `b`, or the one called `name` if not NULL
 * (NULL if there is none of that name that is usable here and can take these types). bf16 kernels
 * serve only bf16 x bf16; f32 kernels serve every mix of f32, bf16 and f16. */
const epi_micro *epi_micro_choose(epi_dtype a, epi_dtype b, const char *name);
/* The error where that is NULL: it names those that there are. */
epi_status epi_micro_none(epi_dtype a, epi_dtype b, const char *name, epi_error *err);
/* The table, for tests: entry i, or NULL past the end (usable or not). */
const epi_micro *epi_micro_at(int i);

/* Rows of one operand as the packer sees them: element (row i, depth k) is
 * data[row[i] + k * kstride], or data[row[i] + koff[k]] where koff is given. */
typedef struct epi_pack_source {
    const void *data;
    epi_dtype type;     /* EPI_F32, EPI_BF16, EPI_F16 */
    const int64_t *row; /* element offsets of the rows */
    int64_t rows;
    int64_t kstride;
    const int64_t *koff; /* NULL: use kstride */
    int64_t k;           /* valid depth */
} epi_pack_source;

/* Packs all rows, as ceil(rows / r) consecutive panels, each of r * round_up(k, depth) elements.
 * Fast where kstride is 1 and where consecutive row offsets differ by 1; right everywhere. */
void epi_pack(const epi_micro *micro, int side, const epi_pack_source *src, void *dst);
/* The same as panels of r rows with interleave q. */
void epi_pack_panels(const epi_micro *micro, int r, int q, const epi_pack_source *src, void *dst);

#endif

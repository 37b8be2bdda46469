/* strips.h: short vector loops, one per operation; the epilogue of a tile is a list of them.
 *
 * A strip covers `rows` rows of `n` consecutive elements that are in cache. Every function exists
 * once per instruction set (strips.c is compiled several times); epi_strips_choose returns
 * the table for this CPU. No function calls libm, branches on data or allocates. The result for
 * an element depends on its operands alone, not on its position, on n or on rows.
 */
#ifndef EPI_CPU_STRIPS_H
#define EPI_CPU_STRIPS_H

#include "base/base.h"
#include "ir/ops.h"

/* An operand: element (i, j) is p[i*row + j*col], with col 0 or 1. */
typedef struct epi_view {
    const float *p;
    ptrdiff_t row;
    int col;
} epi_view;

/* dst[i*ld + j] = op(v[0], v[1], v[2]) for i < rows, j < n; as many operands are read as the operation
 * has. dst may be the very same storage as an operand, never a shifted one. Views go by pointer: a
 * struct of three words copied onto the stack would wait for all stores before it. */
typedef void epi_strip_map(float *dst, ptrdiff_t ld, const epi_view *v, int rows, int n);

/* ---- tapes ---- */

/* A tape is a list of operations that is carried out on a few elements of a row, which stay in registers,
 * then on the next few. A link is one operation of it: it makes a new value v of the one before.
 *
 * Most links are a formula of v and of what they read, a and b: */
#define EPI_LINKS_OF_ONE(LINK) \
    LINK(MUL, (v * a)) \
    LINK(ADD, v + a) \
    LINK(SUB, v - a) \
    LINK(SUB_FROM, a - v) \
    LINK(DIV, v / a) \
    LINK(DIV_FROM, a / v)
#define EPI_LINKS_OF_TWO(LINK) \
    LINK(MUL_MUL, (v * a * b)) \
    LINK(MULADD, muladd_of(v, a, b)) \
    LINK(MULADD_LESS, muladd_of(v, a, -b)) \
    LINK(MULADD_FROM, muladd_of(v, -a, b)) \
    LINK(ADD_PRODUCT, muladd_of(a, b, v)) \
    LINK(PRODUCT_LESS, muladd_of(a, b, -v)) \
    LINK(LESS_PRODUCT, muladd_of(-a, b, v)) \
    LINK(IF, chosen(v, a, b)) \
    LINK(THEN, chosen(a, v, b)) \
    LINK(ELSE, chosen(a, b, v))
#define EPI_LINKS_OF_COMPARISON(LINK) /* 1 where it holds, else 0; in the order of the operations */ \
    LINK(LT, v < a) \
    LINK(LE, v <= a) \
    LINK(GT, v > a) \
    LINK(GE, v >= a) \
    LINK(EQ, v == a) \
    LINK(NE, v != a)

/* clang-format off */
#define EPI_LINK_KIND(id, formula) EPI_LINK_##id,
typedef enum epi_link_kind {
    EPI_LINK_NONE,       /* the end of a tape */
    EPI_LINK_GET,        /* v stays as it came in, see `from` */
    EPI_LINKS_OF_ONE(EPI_LINK_KIND)
    EPI_LINKS_OF_TWO(EPI_LINK_KIND)
    EPI_LINKS_OF_COMPARISON(EPI_LINK_KIND)
    EPI_LINK_SQUARE,     /* v*v */
    EPI_LINK_OVER,       /* v/a, where a is one number for a row: two factors that are kept in `state` */
    EPI_LINK_SPLIT,      /* a's elements with even places; those with odd ones go to b */
    EPI_LINK_JOIN,       /* v stays; v and a alternating go to b */
    EPI_LINK_KEEP,       /* v stays, and goes to a; only before a tape is set up: then it is a store */
    EPI_LINK_STORE,      /* v stays, and goes to a */
    EPI_LINK_FOLD,       /* v stays, and is folded; only before a tape is set up: then a link `folds` */
    EPI_LINK_COLUMNS,    /* v stays, and is folded into the running values at a */
    EPI_LINK_PREFETCH,   /* lines from a on come into the first-level cache; after all other links */
    EPI_LINK_MAP,        /* and all after: the operation of v alone whose number it is more than this */
} epi_link_kind;
/* clang-format on */

/* Where a link finds elements or puts them: neighbours from p on, or (col 0) one f32 for all of a row. */
typedef struct epi_link_operand {
    const void *p;
    epi_dtype type;
    int col;
    ptrdiff_t row;         /* bytes from a row to the next */
    ptrdiff_t down, along; /* bytes that p moves by, for every row and every column that the tape moves on */
} epi_link_operand;

typedef struct epi_link {
    epi_link_operand from; /* where v comes from; p NULL: from the link before, in registers */
    epi_link_operand a, b;
    epi_link_operand to; /* where v goes besides, as f32; p NULL: nowhere */
    bool folds;          /* v of all the row folded goes to b, which the link does not use otherwise */
    float identity;      /* of what is folded */
    float *state;        /* for running values, and of OVER: EPI_STATE_MOST floats */
    epi_link_kind kind;
    epi_op op;         /* if it folds, and of COLUMNS: SUM, MEAN (which sums), RMAX or RMIN */
    bool nontemporal;  /* STORE: non-temporal where the elements lie at whole lines */
    uint32_t rate;     /* PREFETCH: 2^16 times the lines for every column, at each of EPI_WAYS places */
    ptrdiff_t ahead;   /* PREFETCH: bytes from one of these places to the next */
    void (*run)(void); /* what carries it out, see `ready` */
} epi_link;

/* Lines are prefetched at four places in turn: where these are in four pages, the hardware goes ahead in all
 * of them. An octet, the eight vectors that a tape works on, has at most EPI_OCTET_MOST elements. */
enum { EPI_WAYS = 4, EPI_LINE = 64, EPI_OCTET_MOST = 128, EPI_STATE_MOST = 2 * EPI_OCTET_MOST / 8 };

/* A sum of many terms drifts: each addition rounds, and where terms are alike all of them the same way. So a
 * running sum takes EPI_SUM_TERMS terms; then it goes, by `combine`, to a sum that keeps what rounding lost.
 */
enum { EPI_SUM_TERMS = 64 };

/* Some steps of a scan of products. At each, every element of a state of `rows` by `n` becomes d*s + k*v, then the
 * state is summed down the rows, by factors of a row each, and along the rows, by factors of a column each. What is given
 * of a step, or is wanted of it, is a vector by row or by column; the next step's is `step` elements on. */
typedef enum epi_decay { EPI_DECAY_NUMBER, EPI_DECAY_ROW, EPI_DECAY_COLUMN } epi_decay;
enum { EPI_RECUR_STEPS = 16, EPI_RECUR_ROWS = 4 }; /* at most so many steps; rows that are summed at a time */
typedef struct epi_recur {
    int rows, n, steps;
    const float *before; /* the state before these steps, or NULL: there was none, and it becomes k*v; */
    float *after;        /* takes the one after them, or NULL. Columns behind n may hold anything */
    ptrdiff_t ld, step;
    epi_decay decay_of; /* is d one number, one of each row, or one of each column? */
    const float *decay;
    const float *k, *v;     /* by row; by column */
    const float *added;     /* comes to the state at the first of the steps, or NULL */
    const float *by_row;    /* factors of the sums down the rows, or NULL: none is taken, */
    float *down;            /* and these, by column; */
    const float *by_column; /* of those along the rows, or NULL, */
    float *along;           /* and these, by row */
    /* The same steps of a scan the other way, or NULL: the last of them here is the first one there. Each state is
     * multiplied by the one before the step there, which is 0 where the other scan `begins`; sums of these products,
     * by column or by row, or one for every EPI_RECUR_ROWS rows and each of those behind them */
    const struct epi_recur *other;
    bool begins;
    bool over_rows, over_cols;
    float *product;
} epi_recur;

typedef struct epi_strips {
    const char *name;                 /* "avx512" */
    epi_strip_map *map[EPI_OP_COUNT]; /* NULL where the operation is not a map */

    /* A product and a sum in one: dst = sign*(v[0]*v[1]) + other*v[2], both signs 1 or -1. */
    void (*muladd)(float *dst, ptrdiff_t ld, const epi_view *v, float sign, float other, int rows, int n);

    /* dst = v[0]/v[1] where v[1] is one number for a row: by the two factors of a tape's link OVER. */
    epi_strip_map *over;

    /* Reductions. Running state is one float per result, two for LOGSUMEXP: (max, sum of exp(x-max)), and
       for VAR: (mean, sum of squared distances from it), the second in out2. MEAN sums. All of n elements are
       valid. States that are combined have a second float for sums, too, which starts with 0 and takes what
       rounding loses. */
    /* fold each row of a into out[i] (overwriting): a fixed order of additions for given n */
    void (*reduce_rows)(epi_op op, float *out, float *out2, epi_view a, int rows, int n);
    /* fold rows into per-column state acc[j] (accumulating, in row order; the caller initialises); not VAR */
    void (*reduce_cols)(epi_op op, float *acc, float *acc2, epi_view a, int rows, int n);
    /* combine two states elementwise: acc[j] = combine(acc[j], x[j]); x2 for LOGSUMEXP alone; not VAR, */
    void (*combine)(epi_op op, float *acc, float *acc2, const float *x, const float *x2, int64_t n);
    /* whose states say nothing of how many elements are behind them: so many, and so many more */
    void (*combine_var)(float *mean, float *squares, const float *mean2, const float *squares2, int64_t n,
                        double have, double more);
    /* state to value: sums get back what was lost, mean and var divide by count, logsumexp gives
       max + log(sum) */
    void (*finish)(epi_op op, float *acc, const float *acc2, int64_t n, double count);
    /* every element of each group of g columns becomes the finished reduction of its group; n is a multiple
     * of g */
    void (*reduce_groups)(epi_op op, float *dst, ptrdiff_t ld, epi_view a, int rows, int n, int g);

    /* A recurrence: state = a*state + b, where v is a and b; at the first step it is b. The state has more digits
       than what is stored, so that many steps do not drift. One step of n of them side by side; or n steps along each
       row, from the first element to the last or back. */
    void (*scan_step)(double *state, float *dst, const epi_view *v, bool first, int n);
    void (*scan_rows)(double *state, float *dst, ptrdiff_t ld, const epi_view *v, bool first, bool back,
                      int rows, int n);

    /* A tape over `rows` rows of n elements: links up to one of kind NONE, one after the other on an octet of
       a row, then on the next. Before the first time `ready` chooses what carries the links out; then only
       where operands lie may change. */
    void (*tape)(const epi_link *link, int rows, int n);
    void (*ready)(epi_link *link);
    bool prefetches;          /* does it gain by links that prefetch? Else it takes none */
    bool nontemporal;         /* has the CPU non-temporal stores? Else `store_nontemporal` is `store` */
    bool (*takes)(epi_op op); /* of the functions that take many instructions those that links have, too */

    void (*recur)(const epi_recur *steps);

    /* dst[2j] = a[j], dst[2j+1] = b[j] for j < n; and its inverse: dst[j] = a[2j + odd] */
    void (*interleave)(float *dst, ptrdiff_t ld, epi_view a, epi_view b, int rows, int n);
    void (*deinterleave)(float *dst, ptrdiff_t ld, epi_view a, int odd, int rows, int n);

    /* n elements between storage and f32, at an element stride on the storage side (fast at 1).
       To storage rounds to nearest even (bf16, f16: overflow gives infinity, NaN stays NaN);
       integers saturate after rounding to nearest even, NaN gives 0. */
    void (*load)(float *dst, const void *src, epi_dtype type, ptrdiff_t stride, int64_t n);
    void (*store)(void *dst, epi_dtype type, ptrdiff_t stride, const float *src, int64_t n);
    /* The same at stride 1 by non-temporal stores where the CPU has them: for what nobody reads soon. A
       thread that stored so calls `settle` before another one may look. */
    void (*store_nontemporal)(void *dst, epi_dtype type, const float *src, int64_t n);
    void (*settle)(void);
} epi_strips;

const epi_strips *epi_strips_choose(void);
/* The table, for tests: entry i, or NULL past the end; only those usable on this CPU. */
const epi_strips *epi_strips_at(int i);

/* The identity of a reduction's first state word (the second is 0). */
float epi_reduce_identity(epi_op op);

#endif

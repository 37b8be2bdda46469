/* design_attention.h: the design of an attention kernel: everything that is decided before its text is
 * written.
 *
 * There are four variants of the plan (pass/analyse/attention.h). Hopper's mainloops, which move tiles by
 * TMA and multiply by wgmma, support all of them. The mainloops for every GPU from Ampere on, with cp.async
 * and mma.sync, support all except the second.
 *
 *     forward   one score product, an online softmax or any other weights, one value product
 *     split     the same of up to 64 rows over a long stream, which is taken in chunks; a second kernel folds
 *               their partials; with an online softmax alone. Of up to 16 rows columns are wgmma's rows, and one
 *               chunk needs no second kernel
 *     rows      two score products, one value product of the first one's columns: gradients of queries
 *     pair      two score products, two value products, of the columns of either: gradients of keys and
 *               values
 *
 * The first score may be the sum of two products. Their features follow each other in the mainloop: those of
 * the second, the *more* rows and columns, begin at a multiple of 64. The first sum is then over the columns
 * of either product or, in `rows`, of both: two value products with the same weights.
 *
 * Everything else is refused, and the program is split into products and rows. */
#ifndef EPI_CUDA_DESIGN_ATTENTION_H
#define EPI_CUDA_DESIGN_ATTENTION_H

#include "cuda/product/design_gemm.h"

typedef enum epi_attention_variant {
    EPI_ATTENTION_FORWARD,
    EPI_ATTENTION_SPLIT,
    EPI_ATTENTION_ROWS,
    EPI_ATTENTION_PAIR
} epi_attention_variant;

/* How: one row of the candidates. */
typedef struct epi_attention_config {
    epi_attention_variant variant;
    int depth, width; /* the most features of a score product, and of a sum (pair: of two on average) */
    int groups;       /* warpgroups that compute, 64 rows each */
    int turned;       /* split: rows at most, 8 or 16, which are wgmma's columns; 0: 64, its rows */
    int stream;       /* columns of a tile */
    int slots;        /* of the ring; of each of two; mma.sync: at most */
    int buffers;      /* forward: of a warpgroup's rows */
    int lazy; /* forward: a row's reference is replaced when its scores have grown by more than 2^lazy; 0:
                 always */
    bool
        early; /* forward: a chunk is folded before the next scores are asked for, which takes fewer registers */
    int held;                           /* forward: of a thread's folded sums so many stay in registers */
    bool ping_pong;                     /* forward: the warpgroups issue their products in turn */
    int load_registers, math_registers; /* a thread's, of those that load and that compute; split: 0 */
    int bands;                          /* of 16 rows that a warp has, by mma.sync; 0: by wgmma */
    int resident;                       /* mma.sync: blocks that share a multiprocessor */
} epi_attention_config;

/* The candidates there are, as many as cuda.h has names for; the first that takes a program is the best for
 * it. */
const epi_attention_config *epi_attention_config_at(int index);

/* A tensor as tiles of it are moved: rows (of a batch, or of the stream) and features. */
typedef struct epi_attention_tensor {
    int node, tensor;
    epi_ref ref;
    epi_walk features, rows, groups; /* groups: of the stream */
    epi_walk batch;
    epi_batch_place place; /* the same as TMA counts it */
    int64_t row_count, group_count;
    /* split: rows are those of a page, groups are pages, and the page of a slot of a batch is a number that
       is read: of these axes, at this pointer. */
    bool paged;
    epi_ref index;
    epi_walk index_batch, index_slots;
    int64_t slots;
} epi_attention_tensor;

enum { EPI_ATTENTION_COLUMNS = 4 }; /* values of columns that come with a tile */
enum { EPI_ATTENTION_TOTALS = 4 };  /* sums along the stream beside the products */

/* The values of a tile program that a function of the kernel is given, and those that it makes, by the array
 * that has them: the scores, or those of the second product. */
typedef struct epi_attention_function {
    const epi_gemm_design *d;
    int given[2], made[2];            /* values, or -1 */
    bool factor;                      /* what is made multiplies what is there: weights */
    int totals[EPI_ATTENTION_TOTALS]; /* values that are summed along the stream, or -1 */
} epi_attention_function;

typedef struct epi_attention_design {
    epi_emit_context *c;
    const epi_graph *g;
    const epi_plan *plan;
    const epi_attention *a;
    epi_attention_config config;
    epi_attention_variant variant;
    int first;                    /* the score product that counts as the first: 0 or 1 */
    int sum[3];                   /* by sum of the mainloop, and MORE: the value product, or -1 */
    epi_plan score, open, out[3]; /* the children's plans, with rows and columns as the kernel counts them */
    epi_axes rows, stream;
    int batch_axes;
    int64_t batches, batch_rows, columns, column_groups;
    int64_t depth[2], width[2];   /* features of the first and second product, and of the sums */
    int64_t more;                 /* of the first product's, those of its second term; 0: there is none */
    int sum_term;                 /* the first sum is over the columns of this term, */
    int64_t sum_at;               /* which begin at this feature */
    int more_map;                 /* the first of the maps of what is MORE */
    epi_tile_program tile[2];     /* of the scores: of tiles that are cut, and of whole ones */
    epi_tile_program out_tile[3]; /* by sum, and MORE */
    epi_gemm_design cut, whole;   /* how each is written as text */
    epi_gemm_design out_design[3];
    int weights
        [2][2 +
            EPI_ATTENTION_TOTALS]; /* by tile program: the scores, or the sums' weights, as values of it; then
                                                 what else is summed along the stream */
    epi_attention_function first_part[2], second_part[2]; /* of cut tiles, and of whole ones; forward: the
                                                               second makes the weights' factor */
    int totals[EPI_ATTENTION_TOTALS],
        total_count;                    /* sums of elements along the stream, one for each row: nodes, */
    int total_of[EPI_ATTENTION_TOTALS]; /* and which of the weights is summed */
    const char *staged[EPI_ATTENTION_COLUMNS]; /* pair: columns that come with a tile, as expressions */
    int staged_count;
    bool split;    /* pair: the second sum's weights follow from the first product alone */
    int scaled[2]; /* by tile program: a multiplication by a number that is left to the exponent, or to the
                      first sum's result; or -1 */
    double scale;  /* that number */
    bool plain;    /* results are stored by TMA */
    epi_attention_tensor rows_of[3], columns_of[3], result_of[3]; /* of both products, and MORE */
    /* Bounds and equalities say of every row which columns it sees: cut tiles need no condition. */
    bool exact;
    /* By bound: it is where a sequence begins, and tiles and chunks are counted from there. */
    bool starts[EPI_ATTENTION_BOUNDS];
    bool cut_begin, cut_end; /* are there tiles before, or behind, that a row sees in part? */
    bool last_first;         /* later rows see more */
    /* The equalities of the mask are decided by tile: by records of 64 rows each, which a kernel ahead leaves
       in the workspace, of these batch axes; and the pointer to them. */
    bool matched;
    bool
        stretched; /* forward: and tiles of columns are counted from each document's first (attention_stretches.cuh) */
    epi_axes match_batch;
    int64_t match_records;
    int match_pointer; /* stretched: the first of three */
    epi_dtype half;
    int64_t section; /* batches whose columns are in the L2 cache together */
    /* split: columns of a chunk, chunks at most, bytes of the partials' sums and of all of them, and where
       the partials are in the workspace. */
    int chunk, most_chunks;
    bool alone;      /* split: there is one chunk at most, and no second kernel */
    int chunk_tiles; /* forward: tiles of a chunk, where the stream may have several; else 0 */
    int page;        /* columns of a page; 0: there are none */
    int64_t sum_bytes, partial_bytes, partials;
    int reached; /* 0: the configuration is not for this; 1: it is, but too narrow; 2: it was tried */
    char reason[240];
} epi_attention_design;

/* Is it by mma.sync? */
static inline bool epi_attention_is_mma(const epi_attention_design *d) {
    return d->config.bands > 0;
}

/* The kernel that folds takes so many times EPI_ATTENTION_PART chunks at once, with as many times 256 threads. */
enum { EPI_ATTENTION_PART = 16 };
static inline int epi_attention_parts(const epi_attention_design *d) {
    enum { MOST = 4 };
    return (int)epi_min64(epi_max64(1, epi_ceil_div(d->most_chunks, EPI_ATTENTION_PART)), MOST);
}

/* Beside the first and the second of products and sums: the second term's, which lies behind the first's. */
enum { EPI_ATTENTION_MORE = 2 };

/* Has it one score product, and values of their own? Then there is one function of scores. */
static inline bool epi_attention_is_single(const epi_attention_design *d) {
    return d->variant == EPI_ATTENTION_FORWARD || d->variant == EPI_ATTENTION_SPLIT;
}

/* Are the elements of the first (second) columns bytes, which the mainloop converts? */
static inline bool epi_attention_is_narrow(const epi_attention_design *d, int which) {
    return epi_dtype_size(d->columns_of[which].ref.type) == 1;
}

/* Has it an online softmax? Then that function makes scores, else weights. */
static inline bool epi_attention_is_online(const epi_attention_design *d) {
    return d->a->row_max != EPI_NO_NODE;
}

/* The axes of the batches. */
static inline epi_axes epi_attention_batch(const epi_attention_design *d) {
    epi_axes batch = d->rows;
    batch.count = d->batch_axes;
    return batch;
}

/* Is the bound about the positions that the kernel counts columns by? */
static inline bool epi_attention_counts(const epi_attention_design *d, const epi_bound *b) {
    return d->variant == EPI_ATTENTION_SPLIT && d->stream.count > 1
               ? b->flat
               : !b->flat && epi_axis_equal(b->axis, d->stream.at[d->stream.count - 1]);
}

/* What is known of a row's bits (docs/attention.md). */
epi_attention_bits epi_attention_bits_of(const epi_attention_design *d);

/* Takes one candidate. Fills the design and, of `out` and for the split variant of `fold`, everything but the
 * source. Fails with EPI_ERR_UNSUPPORTED, and says why, where the configuration cannot take the program. */
epi_status epi_attention_design_make(epi_emit_context *c, const epi_step *step,
                                     const epi_attention_config *config, epi_attention_design *d,
                                     epi_kernel_text *out, epi_kernel_text *fold, epi_error *err);

/* ---- design_tensors.c ---- */

enum { EPI_ATTENTION_PANEL = 64 }; /* features of a box that TMA moves */

/* The products that a score is the sum of: how many there are. */
int epi_attention_terms(const epi_attention_design *d, int score, const epi_attention_term **first);
/* Rows are those of one axis, columns too: others count as batches, and as groups of columns. A split variant
 * has all rows of a batch in one tile. */
bool epi_attention_shape(epi_attention_design *d);
/* The operands of both products, in the order in which the mainloop counts them; the sums' are among them,
 * or, forward, the second columns. And one tensor: of rows, or of the stream. */
bool epi_attention_take_operands(epi_attention_design *d);
bool epi_attention_take(epi_attention_design *d, int node, int tensor, const epi_axes *features, bool stream,
                        epi_attention_tensor *t);
/* A map of boxes of so many rows and a panel of features. */
bool epi_attention_add_map(epi_attention_design *d, const epi_attention_tensor *t, int rows, bool groups,
                           epi_kernel_text *k);

/* ---- design_scores.c ---- */

/* Divisions of exponentials that can go into the exponent do. False: no memory. */
bool epi_scores_fold(epi_attention_design *d, epi_tile_program *t);
/* The functions that make scores or weights, what is left out of them, and the columns that come with a tile.
 * False: there are too many of those, or no memory. */
bool epi_scores_design(epi_attention_design *d);

/* ---- emit_bounds.c ---- */

/* One bound's share of a range of columns: those that some row sees (most 1), or that all rows see (-1). A
 * limit that is not known leaves all columns in the first, and none in the second. */
void epi_bound_emit(const epi_attention_design *d, epi_kernel_text *k, const epi_bound *b, int most,
                    epi_text *out);
/* stream_origin(): the column that tiles of a batch are counted from. */
void epi_bounds_emit_origin(const epi_attention_design *d, epi_kernel_text *k, epi_text *out);

/* ---- emit_matches.c ---- */

/* Can equalities be decided by tile, as all their values lie in memory, one for each row and each column of a
 * batch? Notes the batches' axes. */
bool epi_matches_design(epi_attention_design *d);
/* Room for the records, which the text of attention has a pointer to. */
void epi_matches_place(epi_attention_design *d, epi_kernel_text *k);
/* In the text of attention: match_record(), or what is stretched; and its part in the columns that rows see, or
 * that all of them see. */
void epi_matches_emit_record(const epi_attention_design *d, epi_text *out);
void epi_matches_emit_bound(bool whole, epi_text *out);
/* And matching(), where it takes the place of conditions. */
void epi_matches_emit_bits(const epi_attention_design *d, epi_kernel_text *k, epi_text *out);
/* The kernel ahead, of so many blocks. */
epi_status epi_emit_matches(const epi_attention_design *d, epi_kernel_text *k, int64_t *blocks,
                            epi_error *err);

/* The source of the kernel whose other needs are in the text already; fails where memory does. */
epi_status epi_emit_attention(const epi_attention_design *d, epi_kernel_text *out, epi_error *err);
/* And of the kernel that folds a split one's partials. */
epi_status epi_emit_attention_fold(const epi_attention_design *d, epi_kernel_text *out, epi_error *err);

#endif

/* attention.h: the attention mainloop: score tiles, and products that sum values computed from them.
 *
 * A thread takes a tile of rows and walks over the stream, EPI_STREAM_TILE columns at a time. It computes
 * the score products, runs the score program on them, and adds the weights times the other operand to the
 * tiles of the value products. Scores are never in memory beyond the second-level cache. */
#ifndef EPI_CPU_ATTENTION_H
#define EPI_CPU_ATTENTION_H

#include "cpu/micro/micro.h"
#include "cpu/product/epilogue.h"

/* Columns of a score tile. Tiles are counted from a row's origin, so the order of all sums follows from how
 * far a column is from that. */
enum { EPI_STREAM_TILE = EPI_TILE_PAIR, EPI_ATTENTION_FEATURES = 256 };

/* Columns that an online softmax takes by themselves: a multiple of a tile's. */
enum { EPI_STREAM_CHUNK = 4 * EPI_STREAM_TILE };

/* An operand that is walked over with the stream: of a score product, or of a value product. */
typedef struct epi_streamed {
    int node;
    const epi_micro *micro;
    bool by_value;         /* the stream is its depth; else it is its rows */
    epi_axes features;     /* its other axes, but for batches */
    int64_t feature_count; /* how many elements these are */
    int64_t tile_bytes;    /* of a stream tile, packed */
    int64_t packed, own;   /* where its tiles lie: in the scratch, and one in a thread's memory */
} epi_streamed;

/* A product that sums over the rows: rows are taken in chunks of neighbouring tiles, which are a fixed
 * number, so that threads can share them. Each has sums of its own, by stream tile, and these are folded in
 * order. */
enum { EPI_ROW_SUM_CHUNKS = 8 };
typedef struct epi_row_sum {
    const epi_attention_sum *sum;
    const epi_micro *micro;
    const epi_root *roots; /* where it is stored */
    int root_count;
    int64_t features, ld, tile_floats, chunks;
    int64_t sums, seen; /* in the scratch: the sums of all chunks; by chunk and stream tile, is there one? */
    int64_t rows;       /* in a thread's memory: the operand's rows, packed */
} epi_row_sum;

/* A cross-tile reduction of scores, as plain attention has them. */
typedef struct epi_score_reduction {
    int node;
    int instr[2]; /* in the score program, and in that of open tiles */
} epi_score_reduction;

typedef struct epi_attention_loop {
    const epi_spec *spec;
    const epi_plan *plan;
    const epi_attention *a;
    const epi_strips *strips;
    epi_epilogue score[2], out[2]; /* the score program, and that of open tiles; the output programs */
    int programs;                  /* one score program, or two */
    epi_streamed streams[EPI_ATTENTION_TERMS + 2]; /* their operands, then those of the value products */
    int stream_count;
    epi_row_sum row_sum; /* chunks 0: there is none */
    epi_score_reduction *reductions;
    int reduction_count;
    int bound_count; /* of the mask's bounds as many as can be looked at while it runs: all or none */
    int match_count; /* and of its matches */
    bool origins;    /* tiles begin at what these say of a row's first column (epi_reach), not at 0 */
    int64_t n, stream_tiles, batches, row_tiles, features[2];
    int64_t chunks;                   /* of the stream, online */
    bool split;                       /* and threads share these, not rows alone */
    bool factor_has_rows;             /* the weights' factor has elements, not one number a column */
    int64_t split_sums, split_floats; /* where their sums lie in the scratch, and how far apart */
    int threads;
    bool
        shared; /* what is streamed is packed once for all rows, in tiles from the batch's origin on; else, and
                    where tiles of a document begin elsewhere, by each thread on its way */
    int64_t batch_group; /* batches that are packed at a time */
    /* Bytes: in the scratch, and in a thread's memory. */
    int64_t access[4], per_thread, thread_bytes, scratch;
    int64_t acc, kept[3], rounded, weights, rows[EPI_ATTENTION_TERMS], outs[2], vectors, partials, states,
        private_memory;
} epi_attention_loop;

/* Fails with EPI_ERR_UNSUPPORTED where a tile cannot hold what is asked of it. */
epi_status epi_attention_build(epi_arena *arena, const epi_spec *spec, const epi_plan *plan,
                               const epi_strips *strips, const epi_home *homes, const epi_root *roots,
                               int root_count, epi_attention_loop *out, epi_error *err);
void epi_attention_run(const epi_attention_loop *l, const epi_ref *homes, const epi_ref *tensors,
                       unsigned char *scratch);

/* attention_bounds.c: can the bound be looked at while the kernel runs? */
bool epi_bound_is_known(const epi_plan *plan, const epi_graph *g, const epi_bound *b);

/* What a bound says of a tile of rows. */
typedef struct epi_limit {
    int64_t inner, size; /* the stream's position along its axis is (column / inner) % size */
    int sign;
    bool strict, exact;
    double least, most; /* of all rows */
} epi_limit;
/* The least and the most of some values; `mixed`: one of them is no number. */
typedef struct epi_range {
    float least, most;
    bool mixed;
} epi_range;
bool epi_match_is_known(const epi_plan *plan, const epi_graph *g, const epi_attention *a, const epi_match *m);
void epi_limits_find(const epi_attention_loop *l, const epi_ref *homes, int64_t row, int rows,
                     epi_limit *out);

/* What some rows of a tile can see of the stream, and nothing outside of it: tiles of columns are counted
 * from its first column, the rows' origin. That is the first one which a bound that says where a sequence
 * begins lets through (a sequence's first token behind its padding); of rows with matches, whose columns lie
 * together, the first one of these (a document's first token), and it ends behind the last one. */
typedef struct epi_reach {
    int64_t from, to;
    epi_range ranges[EPI_ATTENTION_BOUNDS]; /* by match: of its rows */
} epi_reach;
int64_t epi_stream_origin(const epi_attention_loop *l, const epi_ref *homes, int64_t batch);
/* Those of a tile of rows of a batch that has this origin, at most as many as rows; `of` by row. Returns how many. */
int epi_reaches_find(const epi_attention_loop *l, const epi_ref *homes, int64_t batch, int64_t origin,
                     int64_t row, int rows, epi_reach *out, unsigned char *of);
/* How much of the columns from `first` on the rows see. */
typedef enum epi_sight { EPI_SEES_NONE, EPI_SEES_SOME, EPI_SEES_ALL } epi_sight;
epi_sight epi_limits_sight(const epi_limit *limits, int count, int64_t first, int64_t columns);
/* What the matches of rows let these see of columns of their batch. */
epi_sight epi_matches_sight(const epi_attention_loop *l, const epi_ref *homes, const epi_range *rows,
                            int64_t batch, int64_t first, int64_t columns);
/* Of these columns those, from the first to behind the last, outside of which the rows see none: both are
 * multiples of EPI_SPAN_STEP, which is one of every micro-kernel's columns and depths, or the ends. */
enum { EPI_SPAN_STEP = 32 };
typedef struct epi_span {
    int64_t from, to; /* counted from `first` */
} epi_span;
epi_span epi_limits_span(const epi_limit *limits, int count, int64_t first, int64_t columns);

#endif

/* emit.h: the source of a kernel: a fixed mainloop, with the program's epilogue written as CUDA C.
 *
 * A thread holds accumulators in *cells*: two neighbouring columns of one row. A fragment is 16 columns of 16
 * rows of a warp: four cells a thread, i & 1 for the row + 8 and i >> 1 for the columns + 8. Values at the
 * product's own scale have two elements a cell, at the coarser scale one, at the finer four. */
#ifndef EPI_CUDA_EMIT_H
#define EPI_CUDA_EMIT_H

#include "cuda/arch.h"
#include "pass/schedule/tile_program.h"

/* When a tile's epilogue runs: at its end, or under the main loop of the same warpgroup's next tile. */
typedef enum epi_schedule { EPI_AT_END, EPI_DEFERRED } epi_schedule;

/* How: one row of the candidates that a chooser picks from. */
typedef struct epi_config {
    epi_mainloop mainloop;
    int tile_m, tile_n;
    int stages;        /* of the operand ring */
    int cluster;       /* blocks that share the columns' operand */
    int subtile;       /* columns that an epilogue works on at a time; 0: chosen by the design */
    int staging_slots; /* subtiles that are staged at once, a warpgroup: chosen by the design */
    epi_schedule schedule;
    bool packed; /* the contract: the result is rounded to 16 bits before the rest of the epilogue */
    bool queue;  /* clusters take tiles as they come, by a counter; else each has its own, by number */
    bool few; /* for few rows: at most so many stages, and all of the ring that shared memory has room for */
    int warps,
        teams; /* gemm_few: warps that share a tile, and how many such teams a block has; chosen by the design */
    int panels;  /* few: stages are so many times 64 deep; chosen by the design */
    bool scaled; /* for operands of e4m3 with scales: stages are 128 deep */
} epi_config;

/* How large a product is: what its tiling and the cost model follow from. */
typedef struct epi_product_size {
    int64_t m, n, k;
    double side_tiles; /* tiles of 16 bits that its epilogue loads and stores, less one */
    int64_t batches;   /* that the rows are of, at least one */
    epi_group group;   /* what lies in groups */
    int64_t groups;    /* and in how many */
    bool gathered;     /* its rows are named by an index */
    int products;      /* that share a tile: one or two */
    bool on_load;      /* its columns' operand is made of few bits as it is loaded */
    bool open_columns; /* n may be another one at each start */
    bool scaled;       /* operands of 8 bits with scales (pass/analyse/scaled.h) */
    bool joined;       /* it is launched with others: no tile of it is narrow */
} epi_product_size;

/* How a product's tiles lie and are taken. */
typedef struct epi_tiling {
    int64_t rows, cols; /* of clusters */
    int64_t at_once;    /* clusters */
    int narrow; /* the width to which a last column of tiles beyond those is computed; 0: there is none */
    int narrow_deep;  /* how many times as deep its stages are */
    int raster_group; /* rows of clusters that are taken together; negative: columns (device/order.cuh) */
    double time;      /* that all this takes, in that of a tile */
} epi_tiling;
/* choose.c; where the columns are open no last column of tiles is narrow. */
int epi_config_resident(const epi_config *c); /* blocks on a multiprocessor */
epi_tiling epi_tiling_of(const epi_config *c, const epi_product_size *size, int multiprocessors);

/* Bytes of the mbarriers that a slot of the staging has, and a subtile of the last tile. */
enum { EPI_SLOT_BARRIERS = 48, EPI_SUBTILE_BARRIERS = 32 };

/* Bytes of the workspace that clusters count in which queue for tiles: one word, in a line of its own. */
enum { EPI_COUNTER_BYTES = 128 };

/* A tensor map that a launch needs: an operand, or a tile that TMA moves. */
typedef struct epi_map_need {
    int node, tensor; /* the program's tensor, the node's home if -1, or the workspace */
    int64_t offset;   /* in bytes from there */
    epi_dtype type;
    int rank;
    uint64_t sizes[5], strides[5]; /* as epi_cuda_map wants them */
    uint32_t box[5];
    int swizzle;
} epi_map_need;

/* An operand that TMA cannot take as it lies: copied to where it can, ahead of the product. */
typedef struct epi_repack {
    int node;
    epi_columns out; /* the operand along the product's rows or columns, and along the depth */
    epi_walk depth;
    int64_t out_count, depth_count;
    bool mn;              /* the copy has rows (columns) innermost */
    int64_t inner, outer; /* of the copy: elements of a row that come from the operand, and rows */
    int64_t pitch;        /* elements from row to row, */
    int64_t bytes;        /* and all of it, in this kernel's launches */
    int64_t offset;       /* bytes into the workspace */
} epi_repack;
enum { EPI_REPACK_ROUND = 64 }; /* elements that a row is rounded up to: lines of 128 bytes, TMA's best */

/* A pointer that a launch needs. */
typedef struct epi_pointer_need {
    int node, tensor;
    int64_t offset; /* in bytes from there */
} epi_pointer_need;

/* How rows are walked over: `lanes` threads of each of `cluster` blocks share a row, `vector` columns at a
 * time, `count` times; a block has `rows` of them in hand. */
typedef struct epi_rows_shape {
    int vector, lanes, count, rows, cluster;
    bool resident;     /* a row stays in registers between its phases */
    bool ahead;        /* the next row is loaded while one is worked on */
    int weights;       /* so many of the tensors that all rows read wait in registers */
    int prefetch;      /* the row so far ahead is prefetched to the L2 cache; 0: none */
    int stages;        /* of the ring in shared memory that rows come through; 0: they come to registers */
    int64_t row_bytes; /* of a row in a stage */
    int threads; /* at once on a multiprocessor, at least: bounds the registers; 0: as the compiler likes */
    int64_t blocks;
    int span;      /* of a window: rows of a thread; else 0 */
    int64_t lines; /* of partials that sums down the rows leave */
} epi_rows_shape;

enum { EPI_MAX_MAPS = 24, EPI_MAX_POINTERS = 64 };
/* Bytes of the parameter of several products, at most. More than 4096 need CUDA 12.1 or newer: an older compiler refuses the text,
 * and they are launched apart. */
enum { EPI_JOINT_BYTES = 8192, EPI_MOST_PARTS = 4 };

/* What follows from the epilogue of Hopper's product. Where several are launched as one (emit_joint.c), all else is the same,
 * and the text of each is its epilogue alone. */
typedef struct epi_gemm_piece {
    bool joined;
    const char *alike, *wgmma; /* joined: the macros and the products of a stage, which all of them have, */
    const char *columns;       /* and how many columns this one has, */
    int products;              /* of one product or of each of two */
    int subtile_bytes;         /* of staging */
    int ring_bytes,
        fixed_bytes; /* of shared memory: the ring, and mbarriers, but for those of slots and subtiles */
    bool loads, lanes, folds, own, heavy;
    int layout; /* how its operands lie, of which type they are, and how a result is kept: all of them have the same */
} epi_gemm_piece;

/* A kernel's text and what its only parameter holds: maps, then pointers, then four integers
 * (M, the raster group of tiles, whether clusters queue for tiles and launches wait, or the elements of a
 * pass, and where the queue's counter is). */
typedef struct epi_kernel_text {
    epi_text source;
    char name[64];
    const char *arch; /* "sm_90a" */
    int block, shared;
    epi_map_need maps[EPI_MAX_MAPS];
    int map_count;
    epi_pointer_need pointers[EPI_MAX_POINTERS];
    int pointer_count;
    bool full; /* it needs more maps or pointers than a launch takes */
    epi_repack repacks[2];
    int repack_count;
    epi_config config; /* of a product, with what its design chose */
    epi_gemm_piece piece;
    epi_rows_shape rows; /* of a kernel over rows */
    char label[64];      /* its name */
} epi_kernel_text;

/* What an emitter is told of its surroundings. Numbers that depend on an open size are written as expressions
 * of the launch's parameter (epi_emit_count), and worked out for the launch by epi_open_now. */
/* What is known of the bits of attention's rows. */
typedef enum epi_known { EPI_KNOWN_NOTHING, EPI_KNOWN_YES, EPI_KNOWN_NO } epi_known;
typedef struct epi_attention_bits {
    epi_known rows;   /* are they the same among many rows and among few? NOTHING: it is no online softmax */
    epi_known starts; /* are tiles counted from where a sequence begins? NOTHING: the mask does not tell */
    epi_known documents; /* and from where a document does? */
} epi_attention_bits;

typedef struct epi_emit_context {
    epi_arena *arena;
    epi_arena *words;      /* what epi_emit_text and those after it answer, until all texts are made */
    const epi_spec *spec;  /* its open axes have stand-ins for their sizes */
    const int64_t *sizes;  /* by dim: the sizes of this kernel's launches */
    const int64_t *chosen; /* by dim: the sizes that the form was chosen for */
    const epi_steps *steps;
    int64_t *partials;      /* by node: where its partials start in the workspace, one state after another */
    int64_t workspace;      /* grows by the partials */
    int64_t partial_blocks; /* of a kernel over rows: partials of a result in its launches, */
    int64_t partial_blocks_most; /* and at most, where their number depends on open sizes: */
    bool partials_open;
    bool *finished;     /* by node: a finishing kernel has made it */
    bool *stored;       /* by tensor: and stored it there */
    const char *config; /* a shape of rows by name, or NULL */
    const epi_arch *arch;
    int multiprocessors; /* 132 */
    bool exact;          /* nothing is rounded before it is stored */
} epi_emit_context;

enum { EPI_PARTIAL_COLS = 64, EPI_PARTIAL_ROWS = 64 }; /* what one partial covers, whatever the tile */
/* Words of the state that a partial of this reduction is. */
static inline int epi_partial_words(epi_op op) {
    return op == EPI_OP_LOGSUMEXP ? 2 : op == EPI_OP_VAR ? 3 : 1;
}
enum { EPI_FINISH_RESULTS = 32 }; /* that a block of a finishing kernel makes */
enum { EPI_TILE_MOST = 256 };     /* columns of the widest tile */
/* Rows whose weights of few bits are made on load, at most: of more, what is made once and stored is read faster. */
enum { EPI_FEW_MOST = 64 };
enum { EPI_AHEAD_BYTES = 64 << 10 }; /* of weights that a block asks for ahead */
enum { EPI_ROWS_TILE = 128 };        /* rows and columns of a square tile that is walked over as a row */
enum { EPI_ROWS_WINDOW = 8 };        /* places that they shift by what a thread has in its registers */
enum { EPI_ROWS_GROUPED = 256 };     /* columns of rows that reduce over groups: a warp's vectors */
enum { EPI_SM80_DEPTH = 32 };        /* of a stage of gemm_sm80 */

/* Pointers with these tensor numbers are not tensors: the workspace, further on by the need's offset. */
enum { EPI_POINTER_WORKSPACE = -2 };

/* So few rows that they have a form of their own: rows_shape.c. */
bool epi_rows_are_few(int64_t rows);
/* The kernel of a program without a product. */
epi_status epi_emit_rows(epi_emit_context *c, const epi_step *step, epi_kernel_text *out, epi_error *err);

/* The copies of operands that are made ahead of the product, one or two. */
epi_status epi_emit_repack(epi_emit_context *c, const epi_kernel_text *product, epi_kernel_text *out,
                           int64_t *elements, epi_error *err);

/* One pass over memory; `copy_to` >= 0 copies the node into that tensor. */
epi_status epi_emit_pass(epi_emit_context *c, int node, int copy_to, epi_kernel_text *out, epi_error *err);
/* emit_integers.c: the same of one that is computed in 64 bits; and so many elements are counted. */
epi_status epi_emit_integers(epi_emit_context *c, int node, epi_kernel_text *out, epi_error *err);
int64_t epi_integers_elements(const epi_emit_context *c, int node);
/* Finishes the cross-tile reductions along rows (or columns), with every later value of the same shape.
 */
epi_status epi_emit_finish(epi_emit_context *c, const epi_step *gemm, epi_reduction reduction,
                           epi_kernel_text *out, int64_t *results, int64_t *partials, epi_error *err);
/* emit_move.c: what a pass does for each element x, or each four of random numbers; and all of a scatter,
 * which divides its work into so many items of one block each. */
typedef struct epi_pass_pointers {
    int from[3], to; /* its operands, -1 for those that are not in memory; its result */
} epi_pass_pointers;
/* How far on the elements are that `at` names along axes: their walk. */
const char *epi_emit_along(const epi_emit_context *c, const epi_walk *w, const char *at);
void epi_emit_gather(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out);
void epi_emit_shift(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out);
void epi_emit_update(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out);
void epi_emit_random(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out);
void epi_emit_scatter(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out);
int64_t epi_scatter_items(const epi_emit_context *c, int node);
/* The seed of a node's random numbers, which that pointer leads to. */
const char *epi_emit_seed(const epi_emit_context *c, int node, int pointer);
/* The place that an index means, walked along these axes; the pointer to the index is a C expression. */
const char *epi_emit_position(const epi_emit_context *c, const epi_node *n, const epi_axes *axes,
                              const char *pointer, const char *index);
/* The same in two steps, as functions: A_name(P, k) reads what the index has, A_position(P, name) says where that is. */
void epi_emit_names(epi_text *out, const epi_emit_context *c, const epi_node *n, const epi_axes *axes,
                    const char *pointer);
/* The pointer to what a gather is indexed by, or to what that is a slice of; -1 where it is not in memory. */
int epi_emit_index_pointer(const epi_emit_context *c, epi_kernel_text *k, int node);

/* emit_sort.c: all of an order, in so many items of one block each; of segments what is done for each place. */
void epi_emit_sort(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_kernel_text *k);
int64_t epi_sort_items(const epi_emit_context *c, int node);
void epi_sort_pointers(const epi_emit_context *c, epi_kernel_text *k);
void epi_emit_segments(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_text *out);

/* The largest elements of rows, each of which is a warp's or a block's. */
void epi_emit_topk(const epi_emit_context *c, int node, const epi_pass_pointers *p, epi_kernel_text *k);
int64_t epi_topk_rows(const epi_emit_context *c, int node);
bool epi_topk_by_block(const epi_emit_context *c, int node);

/* emit_recurrence.c: a scan of products, in so many items of one block each. */
epi_status epi_emit_recurrence(epi_emit_context *c, const struct epi_recurrence *r, epi_kernel_text *k,
                               int64_t *items, epi_error *err);

/* emit_check.c: looks through the index of a gather, scatter or update that is an input. Two i64 of the
 * workspace, the `slot`th pair, get the number of the first element outside the axis, or -1, and its value.
 */
enum { EPI_CHECK_THREADS = 256 };
epi_status epi_emit_check(const epi_emit_context *c, int node, int slot, epi_kernel_text *out,
                          epi_error *err);

/* Elements a pass has to make, which its launch spreads over threads; and those of an update in place. */
int64_t epi_pass_elements(const epi_emit_context *c, int node, int copy_to);
int64_t epi_pass_fewer(const epi_emit_context *c, int node, int copy_to);

/* ---- shared between the emitters: emit_text.c ---- */

/* A tensor as the kernel sees it at compile time: contiguous, at its home. */
epi_ref epi_emit_ref(const epi_emit_context *c, int node, int tensor);
/* Is the node in memory? */
static inline bool epi_emit_lies(const epi_emit_context *c, int node) {
    return c->steps->homes[node].tensor >= 0 || c->steps->homes[node].offset >= 0;
}
/* Are all of a walk's distances multiples of this? */
static inline bool epi_walk_aligned(const epi_walk *w, int64_t by) {
    for (int i = 0; i < w->count; i++)
        if (w->stride[i] % by)
            return false;
    return true;
}
/* A map or a multiply-add of operands that are written out already. */
const char *epi_emit_instr(const epi_emit_context *c, const epi_instr *s, const char *const operands[3]);
const char *epi_emit_type(epi_dtype type); /* "BF16" */
/* What printf would write, in the context's words; "" where memory is short, which they remember. All below
 * are made by it. */
const char *epi_emit_text(const epi_emit_context *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* What the program calls a node, or t<number>: for comments. */
const char *epi_emit_name(const epi_emit_context *c, int node);
/* The same as an identifier, of the value that has this number in its kernel: over_v2. Nothing else in a text
 * is called _v<digits>: whatever a program calls its values, they clash with no identifier, macro or keyword.
 */
const char *epi_emit_value(const epi_emit_context *c, int node, int number);
/* A number made of sizes: "4096LL" (that is, with the suffix), or "(4LL * P.open[0])". The second where an
 * int is wanted: "4096", or "(int)(4LL * P.open[0])". */
const char *epi_emit_count(const epi_emit_context *c, int64_t number, const char *suffix);
const char *epi_emit_int(const epi_emit_context *c, int64_t number);
/* The same divided by a constant, rounded up. */
const char *epi_emit_ceil(const epi_emit_context *c, int64_t number, int by, const char *suffix);
/* Does it depend on an open size? */
bool epi_emit_grows(const epi_emit_context *c, int64_t number);
/* The offset of element `index` (a C expression) of a walk. */
const char *epi_emit_walk(const epi_emit_context *c, const epi_walk *w, const char *index);
/* The same of a column of a tile, whose two parts may lie apart. The index is a name, or in brackets. */
const char *epi_emit_columns(const epi_emit_context *c, const epi_columns *cols, const char *index);
/* An element of the tensor that a pointer leads to, as a float: "load<BF16>(P.ptr[2], …)". */
const char *epi_emit_load(const epi_emit_context *c, epi_dtype type, int pointer, const char *offset);
/* The function that divides by a scale, of a node that epi_is_scaled. */
const char *epi_emit_scaled(const epi_emit_context *c, int node);
/* An operation's CUDA expression with its operands put in. */
const char *epi_emit_op(const epi_emit_context *c, epi_op op, const char *const operands[3]);
/* A literal that reads back as the same f32. */
const char *epi_emit_number(const epi_emit_context *c, double value);
/* What a fold of that name ends with, of so many elements. */
const char *epi_emit_fold_end(const epi_emit_context *c, epi_op op, const char *fold, int64_t count);
/* What the text of a pass starts with: the texts that all have, `more`, and the parameter. */
void epi_emit_begin(const epi_emit_context *c, epi_kernel_text *k, const char *more);
/* The same behind macros: the device texts that all have, `more`, and the parameter. */
void epi_emit_head(const epi_open *open, epi_kernel_text *k, const char *more, const char *integers);
/* The only parameter of a kernel, with these names for its four integers; and whether its text is whole. */
void epi_emit_params(const epi_open *open, epi_kernel_text *k, const char *integers);
epi_status epi_emit_end(epi_kernel_text *k, epi_error *err);
/* Is the node a number known before the launch: a constant or a size? Texts hold those; they are never stored
 * to be loaded. */
bool epi_emit_is_number(const epi_emit_context *c, int node);
/* A number that is the size of an open axis: its text needs the launch's parameter. */
bool epi_emit_is_open_number(const epi_emit_context *c, int node);
const char *epi_emit_node_number(const epi_emit_context *c, int node);
/* The number of a digit of `index` when it counts through these axes, the last fastest. */
const char *epi_emit_digit(const epi_emit_context *c, const epi_axes *axes, int at, const char *index);
int epi_emit_pointer(epi_kernel_text *k, int node, int tensor);
/* A pointer of its own into the workspace, so that the text does not depend on where that is. */
int epi_emit_place(epi_kernel_text *k, int64_t offset);
/* The texts of src/cuda/device, by file name without ending. */
const char *epi_device_text(const char *name);

#endif

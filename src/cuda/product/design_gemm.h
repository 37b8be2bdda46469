/* design_gemm.h: the design of a product's kernel: everything that is decided before its source is written.
 *
 * A design is made once for a configuration, or refused with a reason. Writing the source of a design cannot
 * fail. design_gemm.c makes it, with the streams of design_side_tiles.c and the operands of
 * design_operands.c; emit_gemm.c and the files that it calls only read it. */
#ifndef EPI_CUDA_DESIGN_GEMM_H
#define EPI_CUDA_DESIGN_GEMM_H

#include "cuda/emit/emit.h"

/* Where a batch lies in a map: along up to two axes beyond the first two, the innermost first. A batch's
 * number is divided by `below`, and the rest of that by `size` counts. */
enum { EPI_BATCH_PLACES = 2 };
typedef struct epi_batch_place {
    int count;
    const char *named; /* the last coordinate, where an index says it; or NULL */
    bool
        outermost; /* the last coordinate is that of the batches' first axis: there is no remainder to take */
    int64_t below[EPI_BATCH_PLACES], size[EPI_BATCH_PLACES], stride[EPI_BATCH_PLACES];
} epi_batch_place;

/* A tile of another tensor that the epilogue loads or stores. */
typedef struct epi_side_tile {
    int instr;        /* of the tile program */
    int number;       /* that the names of its variables carry */
    int half, halves; /* of fine columns, whose parts lie apart: which part it is, of two; else 0 and 1 */
    int node, tensor;
    bool store;
    bool per_row; /* stored: one number a row, made of whole rows; the thread of the first column stores it */
    bool
        per_group; /* stored: one number for the columns of a local reduction; that of the first of them does */
    bool moved;    /* an update: each row is stored at a place of its own along an axis, which an index has */
    int64_t split_stride; /* and places there are so far from each other */
    int index;            /* and this is the pointer to the index */
    bool staged;          /* it passes through shared memory; else each thread moves its own cells */
    bool lanes;           /* staged: moved by the lanes of a warp, not by TMA */
    bool turned;          /* staged: rows are neighbours in memory, so panels have a line for each column */
    epi_ref ref;
    epi_walk rows;
    epi_columns cols;
    epi_walk of_batch;        /* staged: the rows of a batch */
    epi_batch_place place;    /* and where it lies */
    int elements, bytes;      /* of a cell */
    int map, pointer;         /* which one of the launch: a map for TMA, else a pointer */
    int last;                 /* the map of the last rows, which are fewer than a panel's */
    int offset;               /* in a subtile's staging */
    int panel_width, panels;  /* staged: bytes of a panel's row, and panels of a subtile */
    int rows_moved, rows_own; /* lanes: rows that a mover has in hand at once, and a warp that computes */
    int64_t row_mod, col_mod; /* staged: coordinates are taken modulo these; 0: as they are */
    int64_t block; /* staged: so many columns are neighbours, and then others further on; 0: all are */
} epi_side_tile;

enum { EPI_GROUP_TALLEST = 256 }; /* rows of a cluster of tiles, at most */
enum { EPI_MAX_SIDE_TILES = 128, EPI_STAGED_ROWS = 64 /* of a panel: a warpgroup's */ };

/* Where the scales of an operand lie that has some: by row or column, and by the depth. */
typedef struct epi_operand_scale {
    int node; /* or EPI_NO_NODE */
    epi_ref ref;
    epi_walk out, depth;
    bool two; /* columns that are neighbours in a tile have different ones */
    int pointer;
} epi_operand_scale;
/* What an operand of few bits is made with: its scale, zero point and offset, by column and depth. */
enum { EPI_LOAD_SCALE, EPI_LOAD_ZERO, EPI_LOAD_OFFSET, EPI_LOAD_PARTS };
typedef struct epi_load_part {
    int node; /* EPI_NO_NODE: there is none */
    epi_dtype type;
    epi_columns cols;
    epi_walk depth;
    int pointer; /* the launch's */
} epi_load_part;

/* How a product reads its operand: depth innermost, or rows (columns) innermost. */
typedef struct epi_operand {
    int node, side; /* of epi_plan_operand */
    epi_ref ref;
    epi_walk out, depth; /* along rows (of a batch) or columns, and along the depth */
    epi_walk batch;
    epi_batch_place place;
    epi_columns cols;
    int64_t count; /* of rows or columns */
    int64_t deep;  /* how many the depth has */
    bool mn;       /* rows (columns) innermost */
    bool many_mn;  /* the same with more rows than one: what decides about the mainloop */
    bool halves;   /* TMA brings its columns two and two, of halves that lie apart: by a map of four axes */
    int vec;       /* gemm_sm80: elements that can be copied at once */
    int last;      /* of the rows: the map of the last ones, which are fewer than a tile's */
    int pointer;   /* the launch's, for mainloops without TMA */
    int gather;    /* the gather through whose index it is read, or EPI_NO_NODE, */
    bool gathers_depth; /* which says where the depth lies, not the rows, */
    epi_axes along;     /* counted along these, */
    int index;          /* and the pointer to that index */
    int chosen; /* the gather whose index, at that pointer, says which matrix a batch has, or EPI_NO_NODE: */
    int64_t apart; /* they lie so far from each other */
    epi_operand_scale scale;
    bool on_load;   /* it is made as it is loaded: the node and the walks are those of its bits, */
    int bits;       /* of which an element has so many (16 where it is not), */
    bool is_signed; /* those of 4 bits in two's complement, */
    int loaded;     /* and a lane loads so many bytes at once, */
    epi_load_part parts[EPI_LOAD_PARTS]; /* with these */
} epi_operand;

/* What was decided about one instruction of the tile program. */
typedef struct epi_instr_design {
    bool before;   /* done on the accumulators, before the packing point */
    int product;   /* and of which product these are */
    int side_tile; /* it loads or stores this one; -1: none */
    int pointer;   /* the launch's: the tensor it loads from, or its partials */
    int staged_at; /* PARTIAL_COLS: where in a subtile's staging warps leave what they folded */
    int column_at; /* a value of columns in attention's scores: which staged one it is, from 1 on; 0: none */
    bool in_twos;  /* and it is staged times LOG2E: a power of two has it in its exponent */
    bool replaced; /* it makes elements on the way to d->left */
    bool of_group; /* it makes one number for a row and the columns of a local reduction's group */
    bool *makers;  /* REDUCE_GROUP, by instruction: what makes the values it reduces */
} epi_instr_design;

typedef struct epi_gemm_design {
    const epi_emit_context *c;
    const epi_graph *g;
    const epi_plan *plan;
    const epi_tile_program *tile;
    epi_config config; /* its subtile and staging slots are chosen */
    epi_tiling tiling;
    int64_t depth;        /* of the product */
    int64_t batch_rows;   /* of each batch; 0: there are none */
    int64_t groups;       /* of rows or of the depth; 0: there are none */
    int group_bits;       /* of a row's number in its group, of rows */
    int64_t name_columns; /* columns of tiles that a grouped tile's name counts */
    bool longest_first;   /* the longest groups of the depth come first */
    int whole_maps;       /* the first of the maps of groups of the depth that do not end with a group */
    int64_t group_step;   /* from one group's columns to the next one's in maps of them all; 0: by an axis */
    int offsets;          /* the pointer to where they begin */
    int products;         /* that share a tile: one or two */
    int terms;            /* products that a tile adds up: one, or more */
    epi_operand operands[EPI_MAX_OPERANDS]; /* in the order of epi_plan_operand */
    epi_side_tile side_tiles[EPI_MAX_SIDE_TILES];
    int side_tile_count;
    epi_instr_design *instrs;      /* by instruction of the tile program */
    int subtile_bytes, load_bytes; /* of a subtile: its staging, and what TMA loads into it */
    int staging_bytes;             /* of all */
    int ring_bytes;                /* of the stages of operands */
    int fixed_bytes;               /* of shared memory, however many subtiles there are */
    int rows_bytes;                /* gemm_few: of all rows, where they are in shared memory, */
    int step_groups;               /* and groups of a step */
    bool clamped;                  /* tiles have a map for their last rows each */
    bool loads, lanes;             /* staged: is anything loaded, do lanes move anything */
    bool own;   /* do lanes store anything: then computing warps may store their own rows */
    bool folds; /* is anything reduced down the rows */
    bool heavy; /* so much is held at once that wide subtiles would run out of registers, or take so long that
                   the other warpgroup runs out of stages meanwhile */
    int kept[2];  /* by product: the value that is packed (or, exact, the product itself) */
    int split[2]; /* a multiply-add with its row scale before the packing point and its sum after, or -1 */
    bool leaves; /* the first reduction's pass over its group leaves this value in the place of the product */
    int left;
    epi_dtype half;
    /* Scores of attention: texts have the position of a thread's first column as `position`. */
    bool positions;
    bool
        anywhere; /* attention: a tile's columns may begin at any one, so that no two of them are loaded at once */
    bool quick; /* attention: divisions by a row's value and exponentials have short forms */
    bool
        fast; /* every tile that is stored has 16 bits or fewer, so short forms of functions are exact enough */
    char reason[240];
} epi_gemm_design;

/* Keeps why a design does not take the program; returns false. */
#define epi_refuse(d, ...) (snprintf((d)->reason, sizeof(d)->reason, __VA_ARGS__), false)

/* Takes one candidate. Fills the design and, of `out`, everything but the source: what the launch needs. The
 * workspace of the context grows by copies of operands and by partials. Fails with EPI_ERR_UNSUPPORTED, and
 * says why, where the configuration cannot take the program. */
epi_status epi_gemm_design_make(epi_emit_context *c, const epi_plan *plan, const epi_tile_program *tile,
                                const epi_product_size *size, const epi_config *config, epi_gemm_design *d,
                                epi_kernel_text *out, epi_error *err);

/* Is the value one number for a row and the columns of a local reduction's group, which the tile makes? */
static inline bool epi_value_of_group(const epi_gemm_design *d, int v) {
    int made = d->tile->values[v].made;
    return made >= 0 && d->instrs[made].of_group;
}
/* Pointers of what is loaded by rows and columns, places of partials, and what reductions inside the tile
 * need. */
bool epi_gemm_design_instrs(epi_emit_context *c, epi_gemm_design *d, epi_kernel_text *k);

/* ---- design_side_tiles.c ---- */

/* Makes streams of the instructions that load and store tiles; false where there are too many. */
bool epi_side_tiles_make(epi_gemm_design *d);
/* Makes two of those whose columns lie in memory as two parts, where both can be staged; false where there are too
 * many. Are they, at the width that was placed? Else it is another's: nothing moves a part otherwise. */
bool epi_side_tiles_split(epi_gemm_design *d);
bool epi_side_tiles_are_whole(const epi_gemm_design *d);
/* Decides what is staged at the configuration's width of a subtile, and where; may be called again. */
void epi_side_tiles_place(epi_gemm_design *d);
/* Gives every stream its map or pointer, and lanes that move one their rows. */
void epi_side_tiles_address(epi_gemm_design *d, epi_kernel_text *k);

/* ---- design_operands.c ---- */

/* Where the batches of a tensor lie, whose walk over batches this is; false where a map has no room for it.
 */
bool epi_batch_place_of(const epi_walk *batch, epi_dtype type, epi_batch_place *out);
/* Adds them to a map. */
void epi_batch_map(const epi_open *open, const epi_batch_place *place, epi_dtype type, epi_map_need *map);
/* By side, as epi_plan_operand. */
epi_operand epi_operand_of(const epi_gemm_design *d, int side);
/* A map of the operand, or of a copy of it: boxes of 64 deep by `rows` where the depth is innermost, of 64 by
 * `deep` where it is not. False where TMA cannot take it, and it is too small to be copied. */
bool epi_operand_map(epi_emit_context *c, const epi_gemm_design *d, epi_operand *o, int rows, int deep,
                     epi_kernel_text *k);
/* Can a scaled product take it, with its scale? That is the same for a stage of the depth, and for as many columns. */
bool epi_operand_fits_scale(const epi_gemm_design *d, const epi_operand *o);
/* Has maps of groups of the depth end with a group, and adds them again as they were. */
void epi_operands_clip(epi_gemm_design *d, epi_kernel_text *k);
/* Makes one matrix of the columns of all groups, where boxes of `columns` do not go over a group's end: TMA finds a box of
 * two axes sooner than one of four. */
void epi_operands_join_groups(epi_gemm_design *d, int columns, epi_kernel_text *k);
/* Gives boxes of a map of it, where the depth is innermost, so many columns; false where they have no such
 * form. */
bool epi_operand_box(const epi_operand *o, int columns, epi_map_need *m);
/* Adds the same map again with boxes as high as the last of these rows are, rounded up to 8: of those that
 * are left where every box has `most`. Returns which it is. */
int epi_map_last(epi_kernel_text *k, int map, int64_t rows, int most);
/* What is moved of a group ends with it: its rows (or, of an operand, its depth) have two axes, of which the
 * first ends at CLIP (groups.cuh). A box that begins so near to that end that just those which are left are inside
 * says by the second where these end. A third axis, always at CLIP, takes away what the first is too far: addresses
 * are numbers of 64 bits, so CLIP of its strides, 2^34 less a row, are CLIP rows back. The map begins with the
 * tensor: TMA faults where one begins in memory that is not mapped. */
void epi_map_clip(epi_map_need *m);
/* Without TMA: along which side neighbours lie, and how many of them are copied at once. */
void epi_operand_measure(const epi_gemm_design *d, epi_operand *o);

/* ---- design_few.c ---- */

/* For few rows: everything by offsets, of one subtile. */
bool epi_design_few(epi_gemm_design *d, epi_kernel_text *k);
/* Gives what operands are loaded from its pointers. */
void epi_design_few_address(epi_gemm_design *d, epi_kernel_text *k);

/* ---- cells: two neighbouring columns of the product in one row ---- */

/* Elements of a cell at a scale, and columns of all cells of a row with so many. */
static inline int epi_cell_elements(const epi_tile_program *t, epi_scale scale) {
    if (t->acc_scale == EPI_SCALE_COARSE)
        return scale == EPI_SCALE_FINE ? 4 : 2;
    return scale == EPI_SCALE_FINE ? 2 : 1;
}
static inline int64_t epi_cell_columns(const epi_tile_program *t, int elements) {
    return t->n * elements / 2;
}
/* The product that this value is kept of, or -1. */
static inline int epi_kept_product(const epi_gemm_design *d, int value) {
    for (int p = 0; p < d->products; p++)
        if (d->kept[p] == value)
            return p;
    return -1;
}
/* The instruction that makes a value, or -1; and how often others use it. */
static inline int epi_tile_maker(const epi_tile_program *t, int value) {
    for (int i = 0; i < t->instr_count; i++)
        if (t->instrs[i].dst == value)
            return i;
    return -1;
}
static inline int epi_tile_uses(const epi_tile_program *t, int value) {
    int uses = 0;
    for (int i = 0; i < t->instr_count; i++)
        for (int a = 0; a < 3; a++)
            uses += t->instrs[i].arg[a] == value;
    return uses;
}

#endif

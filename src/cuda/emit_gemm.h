/* emit_gemm.h: what the emitters of a product's epilogue share.
 *
 * The epilogue is a function of one step of columns. Its text grows in pieces that are put together at the
 * end:
 *
 *     begin                        once a step
 *     for j (groups of 16 columns) {
 *         group
 *         for i (cells) { cell }
 *         after
 *     }
 *     end
 *
 * A function of its own (leave) runs when all warps of 64 rows are through with the step.
 *
 * Each step of the tile's list adds to the pieces where it belongs. */
#ifndef EPI_CUDA_EMIT_GEMM_H
#define EPI_CUDA_EMIT_GEMM_H

#include "cuda/emit.h"

/* A tile that is loaded or stored, element by element or through staging. */
typedef struct epi_stream {
    int step; /* of the tile's list; the names of its variables carry the number */
    int node, tensor;
    bool store, staged;
    bool lanes; /* staged: moved by the lanes of a warp, not by the copy engine */
    epi_ref ref;
    epi_walk rows;
    epi_columns cols;
    int elements, bytes;      /* of a cell */
    int map, pointer;         /* the one a launch gives it: a map for the copy engine, else a pointer */
    int offset;               /* in a step's staging */
    int64_t row_mod, col_mod; /* staged: coordinates are taken modulo these; 0: as they are */
} epi_stream;

enum { EPI_MAX_STREAMS = 2 * EPI_MAX_TENSORS };

/* How a product reads its operand: depth innermost, or rows (columns) innermost. */
typedef struct epi_operand {
    int node;
    epi_ref ref;
    epi_walk out, depth; /* along rows or columns, and along the depth */
    epi_columns cols;
    int64_t count; /* of rows or columns */
    bool mn;       /* rows (columns) innermost */
    int vec;       /* sm80: elements that can be copied at once */
} epi_operand;

typedef struct epi_emitter {
    epi_emit_context *c;
    const epi_graph *g;
    const epi_plan *plan;
    const epi_tile_program *tile;
    epi_config config;
    epi_kernel_text *k;
    epi_text members, rows;                  /* values per row: their declarations, and what loads them */
    epi_text sums;                           /* declarations of what lasts from step to step */
    epi_text begin, group, cell, after, end; /* the step */
    epi_text leave;                          /* what folds its reductions down the rows over warps */
    epi_text moves, moves_out, prefetch;     /* what the copy engine does for it */
    epi_text own_out;                        /* and a warp that computes, for its rows */
    epi_stream streams[EPI_MAX_STREAMS];
    int stream_count;
    int stage_bytes, load_bytes; /* of a step: its staging, and what the copy engine loads into it */
    int staging_bytes;           /* of all */
    bool loads, lanes;           /* is anything loaded into it; do lanes move anything */
    int folds_at;                /* in a step's staging: where warps leave reductions down the rows */
    int kept;                    /* the value that is packed (or, exact, the product itself) */
    int split;     /* a multiply-add with its row scale before the packing point and its sum after, or -1 */
    bool *before;  /* by step: it is done before the packing point */
    bool *grouped; /* by step: a reduction inside the tile that is worked out already */
    epi_dtype half;
    bool fast; /* every tile that is stored has 16 bits, so short forms of functions are exact enough */
    char reason[240];
} epi_emitter;

/* Keeps why the program is not taken; answers false. */
bool epi_emitter_refuse(epi_emitter *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* One step of the tile's list, into the pieces where it belongs. */
bool epi_emitter_step(epi_emitter *e, int step);

/* ---- emit_values.c ---- */

/* Elements of a cell at a scale. */
int epi_cell_elements(const epi_emitter *e, epi_scale scale);
/* The number of a cell's first element among its row's, inside the loops; and how many a row has. */
const char *epi_cell_index(int elements);
int64_t epi_cell_columns(const epi_emitter *e, int elements);
/* Has it rows and columns? */
bool epi_value_is_full(const epi_tile_value *v);
epi_name epi_value_name(const epi_emitter *e, int v);
/* How element `el` of a value is written inside the cell loop. */
epi_name epi_value_use(const epi_emitter *e, int v, int el);
/* A step that computes a value: per element, per column, and per row or for the whole tile. */
void epi_value_emit(const epi_emitter *e, const epi_instr *s, epi_text *out, const char *indent);
void epi_value_emit_column(epi_emitter *e, const epi_instr *s);
void epi_value_emit_row(epi_emitter *e, const epi_instr *s);

/* ---- emit_streams.c ---- */

/* Makes streams of the steps that load and store tiles. */
bool epi_streams_make(epi_emitter *e);
/* Decides what is staged at the configuration's width of a step, and where; may be called again. */
void epi_streams_place(epi_emitter *e);
/* Gives every stream its map or pointer, and writes the copies. */
void epi_streams_move(epi_emitter *e);
/* The stream of a step, or NULL. */
const epi_stream *epi_stream_of(const epi_emitter *e, int step);
void epi_stream_emit(epi_emitter *e, const epi_stream *t);

/* ---- emit_direct.c ---- */

/* Are a cell's elements neighbours in memory that start at a multiple of their number? */
bool epi_stream_is_vector(const epi_emitter *e, const epi_stream *t);
/* The offset of element `index` along the columns. */
void epi_stream_emit_column(epi_text *out, const epi_stream *t, const char *index);
void epi_stream_load_direct(epi_emitter *e, const epi_stream *t);
void epi_stream_store_direct(epi_emitter *e, const epi_stream *t);

/* ---- emit_folds.c ---- */

/* Reductions that leave as partials: one per row, one per column; and one that stays inside the tile. */
void epi_fold_rows(epi_emitter *e, int step);
bool epi_fold_cols(epi_emitter *e, int step);
/* Bytes of a step's staging that the reductions down the rows take which come before this step of the list.
 */
int epi_fold_bytes(const epi_emitter *e, int before);
bool epi_fold_group(epi_emitter *e, int step);

/* ---- emit_operands.c ---- */

/* Side 0 has the product's rows, side 1 its columns. */
epi_operand epi_operand_of(const epi_emitter *e, int side);
/* A map of the operand, or of a copy of it: boxes of 64 deep by `rows` where the depth is innermost, of 64 by
 * `deep` where it is not. False where the copy engine cannot take it. */
bool epi_operand_map(epi_emitter *e, epi_operand *o, int rows, int deep);
/* Without the copy engine: along which side neighbours lie, and how many of them are copied at once. */
void epi_operand_measure(epi_operand *o);
/* Where the operand's elements lie, as functions whose names start with `which`. */
void epi_operand_emit(epi_text *out, char which, const epi_operand *o, int pointer);
epi_tiling epi_emitter_tiling(const epi_emitter *e);
bool epi_emitter_heavy(const epi_emitter *e); /* emit_gemm.c */
/* wgmma for so many columns of a tile, and these operands. */
void epi_operand_emit_wgmma(const epi_emitter *e, epi_text *out, const char *name, int n,
                            const epi_operand *a, const epi_operand *b);

#endif

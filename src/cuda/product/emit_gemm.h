/* emit_gemm.h: what the emitters of a product's epilogue share.
 *
 * The epilogue is a function of one subtile. Its text grows in pieces that are put together at the end:
 *
 *     begin                        once a subtile
 *     for j (fragments) {
 *         fragment
 *         for i (cells) { cell }
 *         after
 *     }
 *     end
 *
 * A separate function (fold_warps) runs when all warps of 64 rows have finished the subtile.
 *
 * Each instruction of the tile program adds to the pieces where it belongs. It decides nothing: the design
 * has done that. */
#ifndef EPI_CUDA_EMIT_GEMM_H
#define EPI_CUDA_EMIT_GEMM_H

#include "cuda/product/design_gemm.h"

typedef struct epi_emitter {
    const epi_gemm_design *d;
    epi_text members, rows;                     /* values per row: their declarations, and what loads them */
    epi_text sums;                              /* declarations of what lasts from subtile to subtile */
    epi_text begin, fragment, cell, after, end; /* the subtile */
    epi_text fold_warps;                        /* what folds its reductions down the rows over warps */
    epi_text moves, moves_out, prefetch;        /* what the warp that moves tiles does for it */
    epi_text own_out;                           /* and a warp that computes, for its rows */
    bool first_pass, passed;                    /* the first pass over a group is being written, or was */
} epi_emitter;

/* The source of the kernel whose other needs are in the text already, or, joined, its piece of one; fails where memory does. */
epi_status epi_emit_gemm(const epi_gemm_design *d, bool joined, epi_kernel_text *out, epi_error *err);
/* The macros that follow from an epilogue. */
void epi_emit_piece_macros(const epi_gemm_piece *p, int slots, int staging, epi_text *out);

/* ---- emit_joint.c ---- */

/* Products whose pieces are written as one kernel, each with its own part of the parameter. False where they differ in more than their epilogues, the parameter would be too long, or more than so many bytes of
 * shared memory are needed. */
bool epi_emit_joint(const epi_kernel_text *const *parts, int count, const epi_open *open, int shared,
                    epi_kernel_text *out);
/* Bytes of a part's parameter, and of the whole. */
size_t epi_joint_part_bytes(const epi_kernel_text *joint, const epi_open *open);
size_t epi_joint_bytes(const epi_kernel_text *joint, int count, const epi_open *open);

/* An instruction, in the pieces where it belongs. */
void epi_instr_emit(epi_emitter *e, int instr);
/* What is in a piece; "" where there is nothing. */
static inline const char *epi_piece(const epi_text *t) {
    return t->data ? t->data : "";
}
/* struct Rows and rows_load(), which has these parameters, too: the values per row. */
void epi_emitter_put_rows(const epi_emitter *e, const char *parameters, epi_text *out);
/* The loops over fragments and cells of so many columns, a macro; what each cell has first and last besides.
 */
void epi_emitter_put_loops(const epi_emitter *e, const char *columns, const char *first, const char *last,
                           epi_text *out);
/* Frees the pieces; returns whether one of them ran out of memory. */
bool epi_emitter_free(epi_emitter *e);

/* ---- emit_values.c ---- */

/* Where what is one number for a row and a group is worked out: keeps it, and its inverse where that is wanted. */
void epi_value_emit_group(epi_emitter *e, int instr, const char *value);
int epi_value_stored(const epi_emitter *e, int v, epi_dtype type);
/* What the cells of a fragment begin with: the results of the products. */
const char *epi_value_results(const epi_emitter *e);
/* The number of a cell's first element among its row's, inside the loops. */
const char *epi_cell_index(int elements);
/* Are a cell's elements neighbours along the columns that start at a multiple of their number? */
bool epi_cell_is_vector(const epi_emitter *e, const epi_ref *ref, const epi_columns *c, int elements);
/* Whether a thread's row, its first or its second by `h`, is there. Of groups this is found out once a tile. */
const char *epi_row_there(const epi_emitter *e, const char *h);
const char *epi_value_name(const epi_emitter *e, int v);
/* How element `el` of a value is written inside the cell loop. */
const char *epi_value_use(const epi_emitter *e, int v, int el);
/* The same of a value per row, inside the loop over rows, which counts h. */
const char *epi_value_use_in_row(const epi_emitter *e, int v);
/* An instruction that computes a value: per element, per column, per row or for the whole tile. */
void epi_value_emit(epi_emitter *e, int instr);
/* The same of elements alone, into a text of its own. */
void epi_value_emit_elements(const epi_emitter *e, int instr, epi_text *out, const char *indent);

/* ---- emit_direct.c ---- */

/* A stream that each thread loads or stores cell by cell. */
void epi_side_tile_emit_direct(epi_emitter *e, const epi_side_tile *t);

/* ---- emit_side_tiles.c ---- */

/* The functions that move all staged tiles of a subtile. */
void epi_side_tiles_emit_moves(epi_emitter *e);
/* What cells do with a staged tile. */
void epi_side_tile_emit_staged(epi_emitter *e, const epi_side_tile *t);

/* ---- emit_folds.c ---- */

/* Cross-tile reductions: partials, one per row or one per column; and one that stays inside the tile. */
void epi_fold_emit_rows(epi_emitter *e, int instr);
void epi_fold_emit_cols(epi_emitter *e, int instr);
void epi_fold_emit_group(epi_emitter *e, int instr);

/* ---- emit_few.c ---- */

void epi_few_emit(epi_text *out, const epi_gemm_design *d);

/* ---- emit_operands.c ---- */

/* Where the operand's elements lie, as functions whose names start with `which`. */
void epi_operand_emit(epi_text *out, const epi_emit_context *c, char which, const epi_operand *o);
/* What device/gather.cuh asks of the row operand that it gathers. */
void epi_operand_emit_gathered(epi_text *out, const epi_emit_context *c, const epi_operand *o);
/* The coordinates of a batch in a map, as functions whose names start with `which`. */
void epi_batch_emit(epi_text *out, const epi_emit_context *c, const char *which,
                    const epi_batch_place *place);
/* What an index says of batch b: its matrix's number, or less than 0. NULL: there is none. */
const char *epi_operand_choice(const epi_emit_context *c, const epi_operand *o);
/* wgmma of n columns, as a function with so many accumulators. Its first operand is in shared memory, or four
 * words in registers; `last` says of each in shared memory whether its depth is not innermost. */
/* What a scaled product has instead: wgmma for the columns that have one scale, and where scales lie. */
void epi_operand_emit_scaled(epi_text *out, const epi_gemm_design *d);
void epi_emit_wgmma(epi_text *out, epi_dtype a, epi_dtype b, const char *name, int accumulators, int n,
                    bool registers, const char *last);

#endif

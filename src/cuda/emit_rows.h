/* emit_rows.h: between the files that write the kernel over rows: its shape, its values, the kernel itself.
 */
#ifndef EPI_CUDA_EMIT_ROWS_H
#define EPI_CUDA_EMIT_ROWS_H

#include "cuda/emit.h"

/* How a tensor's elements are reached. */
typedef struct epi_rows_access {
    epi_ref ref;
    epi_walk rows;
    epi_columns cols;
    int pointer;
    bool vectors;   /* whole vectors lie together */
    int64_t step;   /* TAKE: between places along the axis */
    int64_t staged; /* where its part of a row lies in a stage of the ring, in bytes */
} epi_rows_access;

typedef struct epi_rows_emit {
    epi_emit_context *c;
    const epi_graph *g;
    const epi_plan *plan;
    epi_kernel_text *k;
    epi_tile_program tile;
    epi_rows_shape shape;
    epi_rows_access *access; /* by step */
    int *maker;              /* by value: the step that makes it */
    int *pair;               /* by step: the fold that is done together with this one, or -1 */
    int *written;            /* by value: the scope it was last written in */
    int scope;               /* the phase being written */
    bool tail;               /* the last vector may be cut: one long row */
    bool fast;               /* every result is stored in 16 bits */
    bool named;              /* the loop being written names registers by its counter */
    epi_text body;
} epi_rows_emit;

#define PUT(...) epi_text_add(&e->body, __VA_ARGS__)

static inline bool epi_rows_is_full(const epi_rows_emit *e, int v) {
    return e->tile.values[v].rows && e->tile.values[v].scale != EPI_SCALE_NONE;
}
static inline bool epi_rows_has_columns(const epi_rows_emit *e, int v) {
    return e->tile.values[v].scale != EPI_SCALE_NONE;
}
/* Elements of a vector at a scale. */
static inline int epi_rows_width(const epi_rows_emit *e, epi_scale scale) {
    return scale == EPI_SCALE_COARSE ? e->shape.vector / 2 : e->shape.vector;
}
/* The value that a step makes or stores. */
static inline int epi_rows_value(const epi_instr *s) {
    return s->kind == EPI_INSTR_STORE ? s->arg[0] : s->dst;
}

/* ---- rows_shape.c ---- */

/* Works out how tensors are reached and how the rows are walked over, or takes the shape that is named. */
epi_status epi_rows_choose(epi_rows_emit *e, epi_error *err);
/* Is the step a load of elements that are brought, to registers or the ring, before they are needed? */
bool epi_rows_fetched(const epi_rows_emit *e, int step);
/* Is it a load of elements that all rows read, and that wait in registers? */
bool epi_rows_holds(const epi_rows_emit *e, int step);
/* Do these wait as they lie in memory, because as numbers they would take too many registers? */
bool epi_rows_holds_words(const epi_rows_emit *e);
/* Columns of a row that one block of the cluster has. */
int64_t epi_rows_slice(const epi_rows_emit *e);
/* Bytes of a tensor's slice of a row in the ring: of one part, where its columns are in two. */
int64_t epi_rows_part_bytes(const epi_rows_emit *e, int step);
/* Are there sums per column? They are in registers, which only unrolled loops can name. */
bool epi_rows_sums(const epi_rows_emit *e);

/* ---- emit_rows_values.c ---- */

/* The name of a value: what the program calls it, and its number. */
epi_name epi_rows_name(const epi_rows_emit *e, int v);
/* The value of a vector, written in this scope if it is not yet. */
void epi_rows_need(epi_rows_emit *e, int v);
void epi_rows_need_early(epi_rows_emit *e, int v);
/* A step that makes or stores a number or a value per row. */
void epi_rows_put_short(epi_rows_emit *e, int step, const char *indent);
/* A step that stores a vector. */
void epi_rows_put_store(epi_rows_emit *e, int step);
/* Is it a value per row that comes from memory? */
bool epi_rows_loads_row(const epi_rows_emit *e, int step);
/* The function that reads elements of the step's tensor from memory. */
const char *epi_rows_reader(const epi_rows_emit *e, int step);
/* The offset of a row, and of the vector in hand beyond it; `part` for columns in two parts. */
void epi_rows_put_row(epi_rows_emit *e, const epi_rows_access *a, const char *row);
void epi_rows_put_vector(epi_rows_emit *e, const epi_rows_access *a, epi_scale scale, int part);
/* Where a line comes from. */
void epi_rows_put_comment(epi_rows_emit *e, int node);

#endif

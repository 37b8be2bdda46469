/* spec.h: a program with its sizes and types bound: what a backend is asked to compile. */
#ifndef EPI_IR_SPEC_H
#define EPI_IR_SPEC_H

#include "ir/open.h"

/* How a tensor lies in memory that is a part of another: where it begins, and along what each of its axes goes. */
typedef struct epi_slice {
    epi_axes memory; /* the other's axes, by the names that the part has for them; none: it is no part */
    int64_t begin[EPI_MAX_AXES]; /* by axis of the memory */
    int along[EPI_MAX_AXES];     /* by axis of its own: which of the memory's */
    int64_t step[EPI_MAX_AXES];  /* likewise: by so many places */
} epi_slice;

typedef struct epi_kept epi_kept; /* what was found out of parts (pass/place/kept.h) */
struct epi_spec;
/* What compiles parts, and says of each whether it can be one kernel. */
typedef struct epi_backend {
    bool (*accept)(const void *state, const struct epi_spec *part);
    const void *state;
} epi_backend;

typedef struct epi_spec {
    const epi_graph *graph;
    const epi_slice *slices;     /* by tensor; NULL: all are whole */
    int64_t sizes[EPI_MAX_DIMS]; /* by dim */
    bool is_row[EPI_MAX_DIMS];   /* by dim: it counts rows (tokens, batch), whose number decides nothing */
    bool is_open
        [EPI_MAX_DIMS]; /* by dim: its size may be another one at each start, so no number follows from it */
    epi_dtype *types;   /* by tensor */
    epi_dtype type;     /* storage of intermediate values where a path stores them */
    epi_path path;
    double perturb; /* of the reference: how far values are moved, up or down by the seed */
    int perturb_seed;
    int threads;
    const char *micro; /* a CPU micro-kernel by name, or NULL */
    /* Axes whose size may be another one at each start, for a GPU's texts; NULL: none. */
    const epi_open *open;
    bool scans, scan_folds, scan_last,
        scan_sums; /* what rows that go through recurrences may do (limits.h) */
    int window;    /* and by how many places rows may shift what they make */
    int tile;      /* rows may be worked on in square tiles of so many (square.h); 0: they are not */
    /* While a kernel is compiled: */
    epi_kept *kept;             /* NULL: nothing is kept */
    const epi_backend *backend; /* that accepts parts; NULL: nobody is asked */
} epi_spec;

/* Does one of the axes count rows? */
static inline bool epi_spec_has_rows(const epi_spec *spec, const epi_axes *axes) {
    bool rows = false;
    for (int i = 0; i < axes->count; i++)
        rows |= spec->is_row[axes->at[i].dim];
    return rows;
}

/* Have both axes as many elements, whatever the sizes of open ones are? */
static inline bool epi_spec_alike(const epi_spec *spec, epi_axis a, epi_axis b) {
    const epi_graph *g = spec->graph;
    bool open = spec->is_open[a.dim] || spec->is_open[b.dim];
    bool name = (a.dim >= g->declared_count && !a.shift && epi_axis_equal(g->same[a.dim], b)) ||
                (b.dim >= g->declared_count && !b.shift && epi_axis_equal(g->same[b.dim], a));
    return name || (!open && epi_axis_size(a, spec->sizes) == epi_axis_size(b, spec->sizes));
}

#endif

/* limits.h: the capabilities of a backend, which the cut reads while it places values. Each backend exports
 * one such table. Nothing in the cut knows which backend it is for. */
#ifndef EPI_PASS_LIMITS_H
#define EPI_PASS_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

/* What a backend may refuse of a part that fits the limits: to be one kernel, in the order in which things
 * are given up. Attention reads keys and values through a table of pages, or is one kernel; a tile has two
 * products, or several that are added up; it holds reductions over all columns, or over some. */
typedef enum epi_refusal {
    EPI_REFUSED_PAGES = 1 << 0,
    EPI_REFUSED_ATTENTION = 1 << 1,
    EPI_REFUSED_PAIR = 1 << 2,
    EPI_REFUSED_FULL_ROW = 1 << 3,
    EPI_REFUSED_LOCAL = 1 << 4,
    EPI_REFUSED_SCALED = 1 << 5, /* operands of 8 bits, of all parts: they are widened (widen.c) */
    EPI_REFUSED_LOAD = 1 << 6, /* operands of few bits that are made on load: of the inputs that these are */
    EPI_REFUSED_KERNEL = 1 << 7,     /* when nothing of these is left: to be one kernel */
    EPI_REFUSED_ATTENTIONS = 1 << 8, /* attention of all parts that a cut had it in */
} epi_refusal;

/* What one part can do without while others have it; and what the whole program does without then. */
enum {
    EPI_REFUSED_OF_PART = EPI_REFUSED_SCALED - 1,
    EPI_REFUSED_OF_ALL = EPI_REFUSED_SCALED | EPI_REFUSED_LOAD
};

enum { EPI_SCALED_SAME = 128 }; /* neighbours that a scale of a product's operands is the same for */

/* What a backend's tile can hold: reductions over so many neighbouring columns at most (0: none stay in a
 * tile), and over a multiple of so many; and over all columns, where they are so many at most. */
typedef struct epi_backend_limits {
    int local_most, local_multiple, full_row_most;
    int row_columns;  /* rows of a multiple of so many columns reduce over groups of these, too; 0: none */
    int tile;         /* square tiles of so many are reduced along both axes (square.h); 0: none */
    bool prepares;    /* what depends on params alone may be made once (prepare.h) */
    bool pieces;      /* an output may be stored piece by piece, by several parts (cut_pieces.c) */
    bool pairs;       /* two products of the same rows may share a tile, and products be added up in one */
    bool same_layout; /* these only where their columns lie alike */
    bool merges_sums; /* what is added up may go into one sum (terms.h) */
    bool groups;      /* rows, or the depth, fall into groups; batches choose matrices (groups.h, chosen.h) */
    bool dequants;    /* a product may make an operand of few bits and scales as it loads it (dequant.h), */
    int dequant_rows; /* where it has so many rows at most; 0: however many */
    int scaled; /* and of e4m3, with scales that are the same for so many of the depth, and of the columns; 0: no
                         such product (scaled.h) */
    bool shifts; /* rows may load a value from other places along an axis, */
    int window;  /* and shift what they make themselves along the last of theirs, by so many places at most */
    bool updates;    /* a tile may store the new elements of an update where its index says */
    bool scans;      /* rows may go through the steps of recurrences, all along one axis and one way, */
    bool scan_folds; /* and reduce over columns besides, */
    bool scan_last;  /* and store of a value the last step alone, */
    bool scan_sums;  /* and, where their steps are rows, reduce over all rows */
    int aligned;     /* tensors begin at a multiple of so many bytes */
    int tensors;     /* values that could be made elsewhere bring no more than so many to a part */
    /* attention may be one kernel where heads have so many features at most (0: never), and a multiple of so
       many */
    int attention_most, attention_multiple;
    /* scans of products may be one kernel where a sum is over so many (0: never); products of two scans' states are
       summed up where a state has so many elements at most, its rows rounded up to a power of two, 32 at least; and one
       kernel has sums of several kinds */
    int recurrence_most, recurrence_product;
    bool recurrence_sums;
    bool pages;             /* and read its stream through an index, */
    bool narrow_stream;     /* and convert 8-bit keys and values as it loads them, */
    bool rounds_weights;    /* and rounds its weights to 16 bits: f16 has no room for a scale of values beside them, */
    bool row_sums;          /* and have a product that sums over its rows, */
    bool reads_loaded_tile; /* and reduce, over a head, what is made of its result and of a loaded tile, */
    bool halves; /* and take its result apart in halves, which reorders the columns of the operand */
} epi_backend_limits;

#endif

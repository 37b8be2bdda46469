/* host.h: what test_emulate.c hands to an emulated kernel: C and C++ alike. */
#ifndef EPI_TESTS_EMULATE_HOST_H
#define EPI_TESTS_EMULATE_HOST_H

#include <stddef.h>

enum { EMU_RANGES = 256 };

typedef struct emu_range {
    const char *from;
    size_t bytes;
    int once; /* each byte is stored once, over ones */
} emu_range;

typedef struct emu_box { /* a tensor map: boxes of a tensor's first four axes are moved */
    unsigned char *base;
    unsigned long long sizes[5], strides[5]; /* in bytes, from the second on */

    unsigned box[4];
    int swizzle, size; /* bytes of a row in shared memory, and of an element */
    int rank;
} emu_box;

typedef struct emu_host {
    emu_range ranges[EMU_RANGES]; /* memory that may be touched */
    int range_count;
    int at_once;   /* all blocks run at once, not one cluster after the other */
    unsigned seed; /* of the order in which threads run */
    int fill;      /* the byte that shared memory is full of when a block begins */
    int late;      /* asynchronous copies land as late as they may, else at once */
    long wrong;    /* accesses that a GPU would not forgive, and the first of them in words */
    char first[120];
} emu_host;

/* Runs all blocks of a launch; false where its threads wait for each other. */
typedef int emu_run_function(emu_host *host, const void *params, int grid, int cluster, int block,
                             int shared);

#endif

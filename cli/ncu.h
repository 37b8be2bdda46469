/* ncu.h: the hit rates of a GPU's L2 cache, as NVIDIA's profiler ncu counts them. */
#ifndef EPI_CLI_NCU_H
#define EPI_CLI_NCU_H

#include "cli.h"

/* What ncu says of a launch; below 0: nothing. */
typedef struct ncu_launch {
    double hit_percent, sectors; /* requests of 32 bytes that L2 answered by itself, and all of them */
} ncu_launch;

typedef struct ncu_report {
    ncu_launch *launches; /* in the order of the run */
    int count;
    char why[300]; /* why there are none, in words; or "" */
} ncu_report;

/* Runs this command again under ncu, as 'run' of the same program, and reads what it prints. `why` says what is
 * missing where that fails. */
void ncu_run(const cli_options *o, ncu_report *out);
/* Reads the CSV that ncu prints, among other lines. */
void ncu_parse(const char *text, ncu_report *out);
void ncu_free(ncu_report *r);
/* Adds up the requests of so many launches, from the one of that number on, and those that L2 answered by itself. False,
 * and nothing is added, where they are not known. */
bool ncu_add(const ncu_report *r, int first, int count, double *sectors, double *hits);

#endif

/* profile.h: what 'epilog profile' measures, and how it is reported. */
#ifndef EPI_CLI_PROFILE_H
#define EPI_CLI_PROFILE_H

#include "cli.h"
#include "ncu.h"

enum { PROFILE_ROUNDS = 500, PROFILE_EQUAL = 3 };

/* A kernel: a part, the parts that are equal to it, and those that are launched together with one of these. Its
 * figures are of a run: of all these parts together. */
typedef struct profile_row {
    int part, last; /* the first of its parts, from 0, and the last that is launched with that one */
    int equal[PROFILE_EQUAL]; /* the next parts that are equal to it, */
    int count;                /* of so many, with itself */
    int first;                /* as epi_part_info has it */
    epi_kernel_info info;     /* of the first part */
    bool product;             /* its mainloop multiplies */
    char gives[160];          /* what it computes: "(y[T,F], s[T])" */
    int runs, launches;
    double seconds, flops, bytes;
    double copy;          /* seconds of a copy of as many bytes; 0: not known */
    double sectors, hits; /* requests to L2, and those that it answered by itself; 0: not known */
} profile_row;

typedef struct profile {
    epi_device_info device;
    epi_kernel_info info;
    int rounds;          /* that the times are medians of */
    double whole, parts; /* seconds of a run, and of its parts one by one */
    profile_row *rows;
    int row_count;
    int *row_of, *launches; /* by part */
    double copy_rate;       /* bytes a second of a large copy on a GPU; 0: each row has a copy of its own */
    double rate;   /* operations a second of multiply-adds; on a GPU of a plain product; 0: not known */
    int rate_size; /* rows, columns and depth of that product */
    char l2[400];  /* why L2's hit rates are not known; "" where they are, or nobody asked */
} profile;

/* profile_rates.c: what kernels are held against: copies and multiply-adds on this machine. */
epi_status profile_rates(profile *p, epi_context *ctx, const cli_options *o, epi_error *err);

/* profile_report.c: to people, and as members of an object. */
void profile_print(const profile *p);
void profile_put(const profile *p, epi_json_writer *w);

#endif

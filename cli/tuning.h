/* tuning.h: measured choices on disk, a text that people can read:
 *
 *     epilog tuning 1
 *     device "NVIDIA H200" driver "sm_90, 132 multiprocessors, ..., driver 12.8, ..." library 0.1.0
 *     program matmul 0123456789abcdef dims M=64,N=64,K=64 type bf16 rounding packed config sm90_128x128_c1_d
 * ms 0.0123 model_ms 0.0140                                                        (all of it on one line)
 *
 * A file is taken whole or refused with the reason. */
#ifndef EPI_CLI_TUNING_H
#define EPI_CLI_TUNING_H

#include "cli.h"

/* A choice, and for what. The hash is of the program's text and of the types that --types set. */
typedef struct tuning_entry {
    char program[128], hash[17], dims[1024], type[8], rounding[8], config[64];
    double ms, model_ms;
} tuning_entry;

typedef struct tuning_section {
    char model[128], driver[256], library[32];
    tuning_entry *entries;
    int count;
} tuning_section;

typedef struct tuning {
    tuning_section *sections;
    int count;
} tuning;

/* The file to write: `given`, $EPILOG_TUNING, or the one in the user's cache folder. */
epi_status tuning_path(const char *given, char *out, size_t size, epi_error *err);
/* tuning_file.c. A file that does not exist is an empty tuning where `may_lack` says so. */
epi_status tuning_read(tuning *t, const char *path, bool may_lack, epi_error *err);
/* Makes the folders above the file. */
epi_status tuning_write(const tuning *t, const char *path, epi_error *err);
void tuning_free(tuning *t);
/* An empty one more, or NULL where there is no memory. */
tuning_section *tuning_add_section(tuning *t);
tuning_entry *tuning_add_entry(tuning_section *s);

/* The entry of a program without its choice. */
epi_status tuning_entry_of(const epi_program *program, const cli_options *o, tuning_entry *out,
                           epi_error *err);
/* The section that was measured on this device with this library; fails with the reason where none was. */
epi_status tuning_section_find(const tuning *t, const epi_device_info *d, const tuning_section **out,
                               epi_error *err);
const tuning_entry *tuning_entry_find(const tuning_section *s, const tuning_entry *key);
/* Puts an entry in place of an older one. What an older driver or library measured on the device goes. */
epi_status tuning_put(tuning *t, const epi_device_info *d, const tuning_entry *e, epi_error *err);

/* For commands that use a tuning file: reads the one that --tuning, $EPILOG_TUNING or the user's cache folder
 * has. On the CPU only --tuning is looked at. Answers the exit status. */
int tuning_open(tuning *t, const epi_context *ctx, const cli_options *o);
/* Sets the configuration that the file has for the program, if any. */
int tuning_apply(const tuning *t, const cli_source *s, cli_options *o);

#endif

/* file.h: how Epilog writes files.
 *
 *     epi_file f;
 *     epi_file_open(&f, path);
 *     epi_file_write(&f, data, size);                  as often as it takes; errors stick
 *     status = epi_file_status(path, epi_file_close(&f), &err);
 *
 * A regular file appears whole or not at all. It is written into the same folder under a random name,
 * synced, and renamed. If it replaces a file, it gets that file's mode and, if the system allows it, its
 * owner. Symbolic links are followed. Everything else (a device, a FIFO, a file descriptor such as
 * /dev/stdout) is written directly and never replaced.
 */
#ifndef EPI_BASE_FILE_H
#define EPI_BASE_FILE_H

#include "base/base.h"

typedef struct epi_file {
    int fd;
    int reason;      /* errno of the first failure; after it nothing is written */
    char *target;    /* where the file is to appear; NULL: it is written through */
    char *temporary; /* what is renamed to it */
    int unfinished;  /* its entry in the list of temporary files, or -1 */
} epi_file;

void epi_file_open(epi_file *f, const char *path);
void epi_file_write(epi_file *f, const void *data, size_t size);
/* Returns 0, or errno of the first failure: then the temporary file is gone, and what was there stays. */
int epi_file_close(epi_file *f);

/* What opening would fail for, as far as can be told without doing it: 0 or an errno. */
int epi_file_check(const char *path);
/* EPI_OK for a reason of 0, else the words for it. */
epi_status epi_file_status(const char *path, int reason, epi_error *err);

/* For the handler of a signal that ends the process: removes temporary files that are being written (up to
 * four at a time are known). */
void epi_file_remove_unfinished(void);

#endif

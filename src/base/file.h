/* file.h: what the standard's write leaves to its caller. */
#ifndef EPI_BASE_FILE_H
#define EPI_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* All of it, through short writes and interruptions; false with errno set where the system refuses. */
bool epi_file_write(int fd, const void *data, size_t size);

#endif

/* map.c: files as memory. */
#define _POSIX_C_SOURCE 200809L
#include "io/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

epi_status epi_map_file(const char *path, void **map, size_t *size, epi_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not to wait for the writer of a pipe */
    if (fd < 0)
        return epi_fail(err, EPI_ERR_FILE, "%.300s: cannot open: %s", path, strerror(errno));
    struct stat info;
    epi_status status = EPI_OK;
    if (fstat(fd, &info) != 0)
        status = epi_fail(err, EPI_ERR_FILE, "%.300s: cannot read: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        status = epi_fail(err, EPI_ERR_FILE, "%.300s: %s", path,
                          S_ISDIR(info.st_mode) ? "is a directory" : "is not a regular file");
    else if (info.st_size > 0) {
        *size = (size_t)info.st_size;
        *map = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (*map == MAP_FAILED)
            status = epi_fail(err, EPI_ERR_FILE, "%.300s: cannot map: %s", path, strerror(errno));
    }
    close(fd);
    return status;
}

void epi_unmap_file(void *map, size_t size) {
    if (size > 0)
        munmap(map, size);
}

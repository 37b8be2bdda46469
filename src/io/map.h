/* map.h: files as memory. */
#ifndef EPI_IO_MAP_H
#define EPI_IO_MAP_H

#include "base/base.h"

/* Maps a file. An empty one, which cannot be mapped, leaves *map and *size as they are: zero. */
epi_status epi_map_file(const char *path, void **map, size_t *size, epi_error *err);
void epi_unmap_file(void *map, size_t size);

#endif

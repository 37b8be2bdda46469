/* split.h: makes every part of a cut one kernel. */
#ifndef EPI_PASS_SPLIT_H
#define EPI_PASS_SPLIT_H

#include "pass/place/cut.h"

/* The program as one part that is split: where it cannot be cut otherwise, and for the path that fuses
 * nothing. */
epi_status epi_cut_apart(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                         epi_cut *out, epi_error *err);

/* Puts several parts in the place of each that is no kernel, or that the backend refused to be one. Where
 * they lie in the workspace is still to be said. */
epi_status epi_cut_split(epi_arena *arena, const epi_spec *spec, const epi_backend_limits *limits,
                         epi_cut *cut, epi_error *err);

#endif

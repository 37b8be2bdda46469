/* groups.c: computes the groups of a product from offsets in memory, and the tiles of all groups. */
#include "cpu/product/groups.h"

#include "cpu/access.h"

static int64_t group_count(const epi_spec *spec, const epi_plan *plan) {
    return epi_axis_size(plan->group_axis, spec->sizes);
}

static int64_t position_count(const epi_spec *spec, const epi_plan *plan) {
    return epi_axes_size(plan->group == EPI_GROUP_ROWS ? &plan->rows : &plan->depth, spec->sizes);
}

/* Tiles have EPI_TILE_M rows, rounded down to panels, but for one of each group. */
static int64_t most_tiles(const epi_spec *spec, const epi_plan *plan, int panel) {
    if (plan->group != EPI_GROUP_ROWS)
        return 0;
    return position_count(spec, plan) / (EPI_TILE_M / panel * panel) + group_count(spec, plan);
}

int64_t epi_groups_bytes(const epi_spec *spec, const epi_plan *plan, int panel) {
    return (2 * (group_count(spec, plan) + 1) + 3 * (most_tiles(spec, plan, panel) + 1)) *
           (int64_t)sizeof(int64_t);
}

static int64_t offset_at(const epi_strips *strips, const epi_ref *offsets, const epi_walk *walk, int64_t e) {
    const int64_t at = epi_walk_offset(walk, e);
    const unsigned char *p = offsets->data + at * (int64_t)epi_dtype_size(offsets->type);
    if (epi_dtype_is_integer(offsets->type))
        return epi_integer_load(p, offsets->type);
    float x;
    strips->load(&x, p, offsets->type, 1, 1);
    return x < 0x1p62f ? (int64_t)x : INT64_MAX;
}

/* The group of a position, as `segments` finds it: by halves. */
static int64_t group_at(const int64_t *offsets, int64_t count, int64_t position) {
    int64_t first = 0, last = count - 1;
    while (first < last) {
        int64_t middle = (first + last + 1) / 2;
        bool begun = offsets[middle] <= position;
        first = begun ? middle : first;
        last = begun ? last : middle - 1;
    }
    return first;
}

/* The first position that is not before the group: groups never fall, whatever the offsets are. */
static int64_t begin_of(const int64_t *offsets, int64_t count, int64_t group, int64_t positions) {
    int64_t first = 0, last = positions;
    while (first < last) {
        int64_t middle = (first + last) / 2;
        bool there = group_at(offsets, count, middle) >= group;
        last = there ? middle : last;
        first = there ? first : middle + 1;
    }
    return first;
}

void epi_groups_find(const epi_spec *spec, const epi_plan *plan, const epi_strips *strips,
                     const epi_ref *offsets, int panel, void *memory, epi_groups *out) {
    const int64_t positions = position_count(spec, plan), tiles = most_tiles(spec, plan, panel);
    epi_axes along = {1, {plan->group_axis}};
    epi_walk walk = epi_walk_axes(offsets, &along, spec->sizes);
    *out = (epi_groups){.count = group_count(spec, plan), .first = memory};
    out->first_tile = out->first + out->count + 1;
    out->starts = out->first_tile + out->count + 1;
    out->packed = out->starts + tiles + 1;
    out->of = out->packed + tiles + 1;
    for (int64_t e = 0; e < out->count; e++)
        out->first_tile[e] = offset_at(strips, offsets, &walk, e);
    for (int64_t e = 0; e < out->count; e++)
        out->first[e] = begin_of(out->first_tile, out->count, e, positions);
    out->first[out->count] = positions;
}

void epi_groups_tile(epi_groups *groups, int panel, int few, int few_panel) {
    int64_t packed = 0;
    for (int64_t e = 0; e < groups->count; e++) {
        int64_t rows = groups->first[e + 1] - groups->first[e], panels = epi_ceil_div(rows, panel),
                tiles = epi_ceil_div(panels, EPI_TILE_M / panel);
        groups->first_tile[e] = groups->tiles;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t at = groups->tiles++;
            int64_t begin = t * panels / tiles * panel,
                    end = epi_min64(rows, (t + 1) * panels / tiles * panel);
            groups->of[at] = e;
            groups->starts[at] = groups->first[e] + begin;
            groups->packed[at] = packed;
            packed += end - begin <= few ? few_panel : epi_round_up(end - begin, panel);
        }
    }
    groups->first_tile[groups->count] = groups->tiles;
    groups->starts[groups->tiles] = groups->first[groups->count];
    groups->packed[groups->tiles] = packed;
}

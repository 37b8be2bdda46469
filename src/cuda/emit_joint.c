/* emit_joint.c: products of several parts as the text of one kernel: the mainloop once, and each part's epilogue in a namespace of
 * its own, which the number of a row leads to (device/joint.cuh). */
#include <string.h>

#include "cuda/emit_gemm.h"

enum { MAP_BYTES = 128, INTEGERS = 4 };

static int open_count(const epi_open *open) {
    return open ? open->count : 0;
}

size_t epi_joint_part_bytes(const epi_kernel_text *joint, const epi_open *open) {
    size_t maps = (size_t)joint->map_count * MAP_BYTES, pointers = (size_t)joint->pointer_count * 8;
    return (size_t)epi_round_up((int64_t)(maps + pointers) + 8 * (INTEGERS + open_count(open)), 64);
}

size_t epi_joint_bytes(const epi_kernel_text *joint, int count, const epi_open *open) {
    return (size_t)count * epi_joint_part_bytes(joint, open) + 8 * (size_t)(INTEGERS + open_count(open));
}

static bool are_alike(const epi_kernel_text *a, const epi_kernel_text *b) {
    return !strcmp(a->piece.alike, b->piece.alike) && !strcmp(a->piece.wgmma, b->piece.wgmma) &&
           a->config.mainloop == b->config.mainloop && a->block == b->block;
}

/* Staging of a slot, of all warpgroups that compute. */
static int staged_at_once(const epi_kernel_text *t) {
    return t->config.tile_m / 64 * t->piece.subtile_bytes;
}

/* The slots and bytes of shared memory that are enough for each; false where a block has no room for them. What is staged lies as
 * the widest swizzle wants it. */
static bool share_memory(const epi_kernel_text *const *parts, int count, int most, epi_kernel_text *out) {
    epi_gemm_piece *all = &out->piece;
    for (int i = 0; i < count; i++) {
        const epi_gemm_piece *p = &parts[i]->piece;
        all->subtile_bytes = p->subtile_bytes > all->subtile_bytes ? p->subtile_bytes : all->subtile_bytes;
        all->ring_bytes = p->ring_bytes < all->ring_bytes ? p->ring_bytes : all->ring_bytes;
        all->loads |= p->loads;
        all->lanes |= p->lanes;
        all->folds |= p->folds;
        all->own |= p->own;
        all->heavy |= p->heavy;
        if (parts[i]->config.staging_slots < out->config.staging_slots)
            out->config.staging_slots = parts[i]->config.staging_slots;
    }
    all->subtile_bytes = (int)epi_round_up(all->subtile_bytes, 8 * 128);
    int bytes = all->ring_bytes + all->fixed_bytes +
                out->config.staging_slots * (staged_at_once(out) + EPI_SLOT_BARRIERS);
    if (!out->config.few) /* else it has all there is */
        out->shared = bytes;
    return bytes <= most;
}

/* A function that does `call`, in which @ stands for the part's number, in the namespace of the row's part. */
static void write_choice(const char *head, const char *row, const char *call, int count, epi_text *out) {
    epi_text_add(out, "%s {\n  const int part = part_of(%s), at = row_in_part(%s);\n", head, row, row);
    for (int i = 0; i < count; i++) {
        epi_text_add(out, "  %s", i ? "else " : "");
        if (i + 1 < count)
            epi_text_add(out, "if (part == %d) ", i);
        for (const char *c = call; *c; c++)
            epi_text_add(out, *c == '@' ? "%d" : "%c", *c == '@' ? i : *c);
        epi_text_add(out, "\n");
    }
    epi_text_add(out, "  (void)at;\n}\n");
}

static void write_union(const char *name, int count, epi_text *out) {
    epi_text_add(out, "union %s {\n", name);
    for (int i = 0; i < count; i++)
        epi_text_add(out, "  part%d::%s of%d;\n", i, name, i);
    epi_text_add(out, "};\n");
}

/* What the mainloop calls. */
static void write_choices(const epi_gemm_piece *p, int count, epi_text *out) {
    static const struct {
        const char *head, *row, *call;
    } all[] = {
        {"DEV void rows_load(Rows &R, const Launch &P, int row)", "row",
         "part@::rows_load(R.of@, P.part[@], at);"},
        {"DEV void keep_tile(const Rows &R, int row, u32 (&kept)[TILE_N / 4], const float (&d)[TILE_N / 2], "
         "bool = true)",
         "row",
         "{\n#pragma unroll\n    for (int i = 0; i < TILE_N / 4; i++) kept[i] = part@::keep(R.of@, i, d[2 * "
         "i], "
         "d[2 * i + 1]);\n  }"},
        {"template <int C, class Acc> DEV void epilogue_subtile(const Acc &acc, const Rows &R, Sums &S, "
         "const "
         "Launch &P, u32 staging, int row, int col, int thread)",
         "row", "part@::epilogue_subtile<C>(acc, R.of@, S.of@, P.part[@], staging, at, col, thread);"},
        {"DEV void subtile_load(const Launch &P, u32 staging, u32 bar, int m, int n, int lane)", "m",
         "part@::subtile_load(P.part[@], staging, bar, at, n, lane);"},
        {"DEV void subtile_store(const Launch &P, u32 staging, int m, int n, int lane, bool lanes)", "m",
         "part@::subtile_store(P.part[@], staging, at, n, lane, lanes);"},
        {"DEV void subtile_store_own(const Launch &P, u32 staging, int m, int n, int lane, int warp)", "m",
         "part@::subtile_store_own(P.part[@], staging, at, n, lane, warp);"},
        {"DEV void subtile_prefetch(const Launch &P, int m, int n, int lane)", "m",
         "part@::subtile_prefetch(P.part[@], at, n, lane);"},
        {"DEV u32 LOADED_BYTES(const Launch &P, int m)", "m", "return part@::loaded_bytes(P.part[@], at);"},
        {"template <class F> DEV void with_columns(int m, int n, const F &f)", "m",
         "part@::with_columns(n, f);"},
    };
    write_union("Rows", count, out);
    write_union("Sums", count, out);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        write_choice(all[i].head, all[i].row, all[i].call, count, out);
    if (p->folds)
        write_choice(
            "template <int T> DEV void subtile_fold(const Launch &P, u32 staging, int m, int n, int t)", "m",
            "part@::subtile_fold<T>(P.part[@], staging, at, n, t);", count, out);
}

static void write_parts(const epi_kernel_text *const *parts, int count, const epi_gemm_piece *p,
                        epi_text *out) {
    static const char no_fold[] =
        "template <int T> DEV void subtile_fold(const Params &, u32, int, int, int) {}\n";
    for (int i = 0; i < count; i++)
        epi_text_add(out, "namespace part%d {\n%s%s}\n", i, parts[i]->source.data,
                     p->folds && !parts[i]->piece.folds ? no_fold : "");
    epi_text_add(out, "#define COLUMNS_OF(p) (");
    for (int i = 0; i < count - 1; i++)
        epi_text_add(out, "(p) == %d ? %s : ", i, parts[i]->piece.columns);
    epi_text_add(out, "%s)\n", parts[count - 1]->piece.columns);
}

bool epi_emit_joint(const epi_kernel_text *const *parts, int count, const epi_open *open, int shared,
                    epi_kernel_text *out) {
    *out = *parts[0];
    out->source = (epi_text){0};
    out->repack_count = 0;
    for (int i = 0; i < count; i++) {
        if (!are_alike(parts[0], parts[i]))
            return false;
        out->map_count = parts[i]->map_count > out->map_count ? parts[i]->map_count : out->map_count;
        out->pointer_count =
            parts[i]->pointer_count > out->pointer_count ? parts[i]->pointer_count : out->pointer_count;
    }
    out->pointer_count = out->pointer_count ? out->pointer_count : 1;
    if (epi_joint_bytes(out, count, open) > EPI_JOINT_BYTES || !share_memory(parts, count, shared, out))
        return false;
    epi_text *text = &out->source;
    epi_text_add(text, "%s#define PARTS %d\n", out->piece.alike, count);
    epi_emit_piece_macros(&out->piece, out->config.staging_slots,
                          out->config.staging_slots * staged_at_once(out), text);
    epi_emit_head(open, out, out->piece.lanes ? epi_device_text("tiles") : "", "M, raster, queue, counter");
    epi_text_add(text, "%s", epi_device_text("batch"));
    epi_text_add(text, "struct Launch {\n  Params part[PARTS];\n  i64 M, raster, queue, counter;\n");
    if (open)
        epi_text_add(text, "  i64 open[%d];\n", open->count);
    epi_text_add(text, "};\n");
    write_parts(parts, count, &out->piece, text);
    epi_text_add(text, "%s", epi_device_text("joint"));
    write_choices(&out->piece, count, text);
    epi_text_add(text, "%s\n// ---- the mainloop\n\n%s%s%s", out->piece.wgmma, epi_device_text("counter"),
                 epi_device_text("order"), epi_device_text("gemm_sm90"));
    return !text->failed;
}

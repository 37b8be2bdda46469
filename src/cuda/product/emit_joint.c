/* emit_joint.c: writes the products of several parts as one kernel: the mainloop once, and the epilogue of
 * each part in its own namespace. The number of a row leads to its part (device/joint.cuh). */
#include <string.h>

#include "cuda/product/emit_gemm.h"

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
 * the widest swizzle wants it. The text has the subtiles of one product, also where parts are pairs, which have half as many. */
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
                EPI_SUBTILE_BARRIERS * (out->config.tile_n / out->config.subtile) +
                out->config.staging_slots * (staged_at_once(out) + EPI_SLOT_BARRIERS);
    if (!out->config.few) /* else it has all there is */
        out->shared = bytes;
    return bytes <= most;
}

/* A function that does `call`, in which @ stands for the part's number, in the namespace of the row's part. */
typedef struct choice {
    const char *head, *row, *call;
    bool warps; /* all lanes of a warp call it, with rows of one part */
} choice;

static void write_choice(const choice *f, int count, epi_text *out) {
    epi_text_add(out, "%s {\n  const int part = %s(%s), at = row_in_part(%s);\n", f->head,
                 f->warps ? "part_of_warp" : "part_of", f->row, f->row);
    for (int i = 0; i < count; i++) {
        epi_text_add(out, "  %s", i ? "else " : "");
        if (i + 1 < count)
            epi_text_add(out, "if (part == %d) ", i);
        for (const char *c = f->call; *c; c++)
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
    static const choice all[] = {
        {"DEV void rows_load(Rows &R, const Launch &P, int row)", "row",
         "part@::rows_load(R.of@, P.part[@], at);", true},
        {"DEV void keep_tile(const Rows &R, int row, u32 (&kept)[TILE_N / 4], const float (&d)[TILE_N / 2], "
         "bool = true)",
         "row",
         "{\n#pragma unroll\n    for (int i = 0; i < TILE_N / 4; i++) "
         "kept[i] = part@::keep_of(R.of@, i, d[2 * i], d[2 * i + 1]);\n  }",
         true},
        {"template <int C, class Acc> DEV void epilogue_subtile(const Acc &acc, const Rows &R, Sums &S, "
         "const Launch &P, u32 staging, int row, int col, int thread)",
         "row",
         "{\n    if constexpr (C < part@::subtiles) part@::epilogue_subtile<C>(acc, R.of@, S.of@, P.part[@], "
         "staging, at, col, thread);\n  }",
         true},
        {"DEV void subtile_load(const Launch &P, u32 staging, u32 bar, int m, int n, int lane)", "m",
         "part@::subtile_load(P.part[@], staging, bar, at, n, lane);", false},
        {"DEV void subtile_store(const Launch &P, u32 staging, int m, int n, int lane, bool lanes)", "m",
         "part@::subtile_store(P.part[@], staging, at, n, lane, lanes);", false},
        {"DEV void subtile_store_own(const Launch &P, u32 staging, int m, int n, int lane, int warp)", "m",
         "part@::subtile_store_own(P.part[@], staging, at, n, lane, warp);", false},
        {"DEV void subtile_prefetch(const Launch &P, int m, int n, int lane)", "m",
         "part@::subtile_prefetch(P.part[@], at, n, lane);", false},
        {"DEV u32 LOADED_BYTES(const Launch &P, int m)", "m", "return part@::loaded_bytes(P.part[@], at);",
         false},
        {"template <class F> DEV void with_columns(int m, int n, const F &f)", "m",
         "part@::with_columns(n, f);", false},
    };
    write_union("Rows", count, out);
    write_union("Sums", count, out);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        write_choice(&all[i], count, out);
    static const choice fold = {
        "template <int T> DEV void subtile_fold(const Launch &P, u32 staging, int m, int n, int t)", "m",
        "part@::subtile_fold<T>(P.part[@], staging, at, n, t);", false};
    if (p->folds)
        write_choice(&fold, count, out);
}

/* A number of each part. */
static void write_table(const char *name, const char *const *values, int count, epi_text *out) {
    bool same = true;
    for (int i = 1; i < count; i++)
        same &= !strcmp(values[i], values[0]);
    epi_text_add(out, "#define %s(p) (", name);
    for (int i = 0; i < count - 1 && !same; i++)
        epi_text_add(out, "(p) == %d ? %s : ", i, values[i]);
    epi_text_add(out, "%s)\n", values[count - 1]);
}

static void write_parts(const epi_kernel_text *const *parts, int count, const epi_gemm_piece *p,
                        epi_text *out) {
    static const char keep_one[] =
        "DEV u32 keep_of(const Rows &R, int i, float a0, float a1) { return keep(R, i, a0, a1); }\n";
    static const char keep_two[] =
        "DEV u32 keep_of(const Rows &R, int i, float a0, float a1) { return i >= TILE_N "
        "/ 8 ? keep_pair(R, i, a0, a1) : keep(R, i, a0, a1); }\n";
    static const char no_fold[] =
        "template <int T> DEV void subtile_fold(const Params &, u32, int, int, int) {}\n";
    for (int i = 0; i < count; i++)
        epi_text_add(out, "#define PRODUCTS %d\nnamespace part%d {\n%s%s%s}\n#undef PRODUCTS\n",
                     parts[i]->piece.products, i, parts[i]->source.data,
                     p->folds && !parts[i]->piece.folds ? no_fold : "",
                     parts[i]->piece.products > 1 ? keep_two : keep_one);
    const char *columns[EPI_MOST_PARTS] = {NULL}, *products[EPI_MOST_PARTS] = {NULL};
    for (int i = 0; i < count; i++) {
        columns[i] = parts[i]->piece.columns;
        products[i] = parts[i]->piece.products > 1 ? "2" : "1";
    }
    write_table("COLUMNS_OF", columns, count, out);
    write_table("PRODUCTS_AT", products, count, out);
    epi_text_add(out, "#define PRODUCTS 1   // that any part has\n");
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
    epi_text_add(text, "%s\n// ---- the mainloop\n\n%s%s%s%s", out->piece.wgmma, epi_device_text("counter"),
                 epi_device_text("order"), epi_device_text("gemm_sm90_tile"), epi_device_text("gemm_sm90"));
    return !text->failed;
}

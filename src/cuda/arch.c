/* arch.c: the table of GPU generations that have mainloops. */
#include "cuda/arch.h"

#include <stddef.h>

#include "cuda/emit/emit.h"

enum { MMA = 1 << EPI_GEMM_SM80 | 1 << EPI_GEMM_ANY | 1 << EPI_GEMM_FEW, WGMMA = 1 << EPI_GEMM_SM90 | MMA };

/* clang-format off */
static const epi_arch archs[] = {
    {.capability = 80, .name = "sm_80", .shared_bytes = 164 << 10, .mainloops = MMA},
    {.capability = 86, .name = "sm_86", .shared_bytes = 100 << 10, .mainloops = MMA},
    {.capability = 87, .name = "sm_80", .shared_bytes = 164 << 10, .mainloops = MMA},
    {.capability = 89, .name = "sm_89", .shared_bytes = 100 << 10, .mainloops = MMA},
    {.capability = 90, .name = "sm_90a", .shared_bytes = 228 << 10, .mainloops = WGMMA, .wgmma = true, .row_ring = true, .clusters = true, .overlap = true},
    {.capability = 100, .name = "sm_100", .shared_bytes = 228 << 10, .mainloops = MMA, .clusters = true, .overlap = true},
    {.capability = 110, .name = "sm_110", .shared_bytes = 228 << 10, .mainloops = MMA, .clusters = true, .overlap = true},
    {.capability = 120, .name = "sm_120", .shared_bytes = 100 << 10, .mainloops = MMA, .clusters = true, .overlap = true},
};
/* clang-format on */

const epi_arch *epi_arch_at(int index) {
    return index >= 0 && index < (int)(sizeof archs / sizeof *archs) ? &archs[index] : NULL;
}

const epi_arch *epi_arch_of(int capability) {
    const epi_arch *found = NULL, *at;
    for (int i = 0; (at = epi_arch_at(i)) && at->capability <= capability; i++)
        found = at;
    return found;
}

const char *epi_mainloop_name(epi_mainloop mainloop) {
    static const char *const names[] = {"gemm_sm90", "gemm_sm80", "gemm_any", "gemm_few"};
    return names[mainloop];
}

epi_backend_limits epi_arch_limits(const epi_arch *arch) {
    bool sm90 = epi_arch_has(arch, EPI_GEMM_SM90); /* the one mainloop with tiles of several products */
    return (epi_backend_limits){.local_most = 256,
                                .local_multiple = 16,
                                .full_row_most = 256,
                                .row_columns = EPI_ROWS_GROUPED,
                                .tile = EPI_ROWS_TILE,
                                .pairs = sm90,
                                .same_layout = true,
                                .groups = true,
                                .scaled = sm90 ? EPI_SCALED_SAME : 0,
                                .dequants = true,
                                .dequant_rows = EPI_FEW_MOST,
                                .updates = true,
                                .scans = true,
                                .scan_last = true,
                                .scan_sums = true,
                                .shifts = true,
                                .window = EPI_ROWS_WINDOW,
                                .pieces = true,
                                .aligned = 16,
                                .tensors = EPI_MAX_MAPS, /* and fewer than EPI_MAX_POINTERS */
                                .attention_most = 256,
                                .attention_multiple = 8,
                                .recurrence_most = 512,
                                .recurrence_product = 1 << 14, /* 512 threads have 32 each */
                                .pages = arch->wgmma,
                                .narrow_stream = true,
                                .rounds_weights = true};
}

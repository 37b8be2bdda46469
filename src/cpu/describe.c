/* describe.c: what a compiled CPU kernel will do, in numbers and in words. */
#include "cpu/cpu.h"
#include "cpu/gemm.h"

static const epi_gemm *main_gemm(const epi_cpu_kernel *k) {
    for (int i = 0; i < k->steps.count; i++)
        if (k->steps.at[i].plan)
            return k->gemms[i];
    return NULL;
}

void epi_cpu_info(const epi_cpu_kernel *k, epi_kernel_info *out) {
    static const char *const names[] = {"gemm", "passes", "naive", "reference"};
    *out = (epi_kernel_info){.mainloop = names[k->spec.path], .micro = "", .threads = k->spec.threads};
    const epi_gemm *gemm = main_gemm(k);
    if (k->spec.path == EPI_PATH_FUSED && !k->steps.plan.fused)
        out->mainloop = "passes";
    if (gemm) {
        out->micro = gemm->micro->name;
        out->m = gemm->m;
        out->n = gemm->n;
        out->k = gemm->k;
        out->tile_m = EPI_TILE_M;
        out->tile_n = gemm->epilogue.tile.tile_n;
    }
    epi_steps_count(&k->steps, gemm ? (double)gemm->epilogue.partials * sizeof(float) : 0, out);
}

void epi_cpu_describe(const epi_cpu_kernel *k, epi_text *out) {
    if (k->spec.path >= EPI_PATH_NAIVE) {
        epi_text_add(out, "plain loops, one value after another\n");
        return;
    }
    if (epi_steps_describe_unfused(&k->steps, out))
        return;
    const epi_gemm *gemm = main_gemm(k);
    epi_steps_describe_shape(&k->steps, out);
    long tiles = (long)(gemm->epilogue.row_tiles * gemm->epilogue.col_tiles);
    epi_text_add(out, "tile %d x %d, %ld tile%s, micro-kernel %s (%d x %d)\n", EPI_TILE_M,
                 gemm->epilogue.tile.tile_n, tiles, tiles == 1 ? "" : "s", gemm->micro->name, gemm->micro->mr,
                 gemm->micro->nr);
    epi_steps_describe_stages(&k->steps, gemm->epilogue.col_tiles, gemm->epilogue.row_tiles, out);
}

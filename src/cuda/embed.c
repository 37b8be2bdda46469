/* embed.c: the device texts as bytes in the library. */
#include <string.h>

#include "cuda/emit/emit.h"

/* clang-format off */
#define TEXTS(X) \
    X(base) X(ptx) X(folds) X(tiles) X(order) X(joint) X(counter) X(mma) X(batch) X(groups) X(gather) X(repack) X(index) X(integers) X(sort) X(topk) X(recurrence) X(chunks) X(chunks_sm90) X(chunks_sums) X(chunks_sums_mma) X(chunks_sums_sm90) X(chunks_product) X(chunks_product_mma) X(chunks_product_sm90) X(random) X(rows) X(walk) X(scan) X(square) \
    X(gemm_sm90_tile) X(gemm_sm90) X(gemm_sm80) X(gemm_any) X(few_bits) X(gemm_few) X(attention) X(attention_tiles) X(attention_softmax) X(attention_weights) X(attention_online) \
    X(attention_forward) X(attention_sums) X(attention_rows) X(attention_pair) X(attention_split) X(attention_turned) X(attention_chunks) \
    X(attention_fold) X(attention_folded) X(attention_ranges) X(attention_matches) X(attention_stretches) X(attention_mma) X(attention_mma_forward) X(attention_mma_sums)
/* clang-format on */

#define EMBED(name) \
    __asm__(".section .rodata\n.global epi_text_" #name "\n.hidden epi_text_" #name "\nepi_text_" #name \
            ":\n.incbin \"src/cuda/device/" #name ".cuh\"\n.byte 0\n.previous\n"); \
    extern const char epi_text_##name[];
#define ROW(name) {#name, epi_text_##name},

TEXTS(EMBED)

const char *epi_device_text(const char *name) {
    static const struct { const char *name, *text; } all[] = {TEXTS(ROW)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name))
            return all[i].text;
    return "#error no such device text\n";
}

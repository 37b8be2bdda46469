/* embed.c: the device texts, as bytes of the library. */
#include <string.h>

#include "cuda/emit.h"

#define EMBED(name) \
    __asm__(".section .rodata\n.global epi_text_" #name "\n.hidden epi_text_" #name "\nepi_text_" #name \
            ":\n.incbin \"src/cuda/device/" #name ".cuh\"\n.byte 0\n.previous\n"); \
    extern const char epi_text_##name[];

EMBED(base)
EMBED(ptx)
EMBED(folds)
EMBED(tiles)
EMBED(order)
EMBED(counter)
EMBED(mma)
EMBED(attention)
EMBED(attention_tiles)
EMBED(attention_mma)
EMBED(attention_mma_forward)
EMBED(attention_mma_sums)
EMBED(attention_forward)
EMBED(attention_softmax)
EMBED(attention_chunks)
EMBED(attention_split)
EMBED(attention_fold)
EMBED(attention_rows)
EMBED(attention_pair)
EMBED(attention_matches)
EMBED(batch)
EMBED(repack)
EMBED(index)
EMBED(random)
EMBED(gemm_sm90)
EMBED(gemm_sm80)
EMBED(gemm_any)
EMBED(rows)

const char *epi_device_text(const char *name) {
    static const struct {
        const char *name, *text;
    } all[] = {{"base", epi_text_base},
               {"ptx", epi_text_ptx},
               {"folds", epi_text_folds},
               {"tiles", epi_text_tiles},
               {"order", epi_text_order},
               {"counter", epi_text_counter},
               {"mma", epi_text_mma},
               {"attention", epi_text_attention},
               {"attention_tiles", epi_text_attention_tiles},
               {"attention_mma", epi_text_attention_mma},
               {"attention_mma_forward", epi_text_attention_mma_forward},
               {"attention_mma_sums", epi_text_attention_mma_sums},
               {"attention_forward", epi_text_attention_forward},
               {"attention_softmax", epi_text_attention_softmax},
               {"attention_chunks", epi_text_attention_chunks},
               {"attention_split", epi_text_attention_split},
               {"attention_fold", epi_text_attention_fold},
               {"attention_rows", epi_text_attention_rows},
               {"attention_pair", epi_text_attention_pair},
               {"attention_matches", epi_text_attention_matches},
               {"batch", epi_text_batch},
               {"repack", epi_text_repack},
               {"gemm_sm90", epi_text_gemm_sm90},
               {"gemm_sm80", epi_text_gemm_sm80},
               {"gemm_any", epi_text_gemm_any},
               {"index", epi_text_index},
               {"random", epi_text_random},
               {"rows", epi_text_rows}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i].name, name))
            return all[i].text;
    EPI_NEVER("no such device text");
}

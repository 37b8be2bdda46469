/* bundled.c: the programs that come with Epilog, as bytes of the library. A text may call all of them. */
#include "lang/bundled.h"

#include <string.h>

#define FILES(X) \
    X(attention) \
    X(blocks) \
    X(copies) \
    X(cross_entropy) \
    X(decode) \
    X(dropout) \
    X(embedding) \
    X(experts) \
    X(fp8) \
    X(gated) \
    X(layernorm_linear) \
    X(linear) \
    X(losses) \
    X(matmul) \
    X(norm_cross_entropy) \
    X(norm_linear) \
    X(norm_rope) \
    X(norm_swiglu) \
    X(norms) \
    X(optim) \
    X(quantise) \
    X(recurrence) \
    X(residual_rms) \
    X(rmsnorm_backward) \
    X(rope) \
    X(rotary) \
    X(softmax) \
    X(swiglu) \
    X(swiglu_backward)

#define EMBED(name) \
    __asm__(".section .rodata\n.global epi_programs_" #name "\n.hidden epi_programs_" #name \
            "\nepi_programs_" #name ":\n.incbin \"programs/" #name ".epi\"\n.byte 0\n.previous\n"); \
    extern const char epi_programs_##name[];
FILES(EMBED)

#define ROW(name) {#name ".epi", epi_programs_##name},
static const epi_bundled_file files[] = {FILES(ROW)};

enum { COUNT = sizeof files / sizeof *files };

const epi_bundled_file *epi_bundled_at(int index) {
    return index >= 0 && index < COUNT ? &files[index] : NULL;
}

const epi_ast_program *epi_bundled_programs(epi_arena *arena, epi_ast_text *text) {
    epi_ast_program **end = &text->bundled;
    for (int i = 0; i < COUNT && !text->bundled_whole; i++) {
        epi_ast_text file;
        epi_status status =
            epi_ast_parse(arena, files[i].text, strlen(files[i].text), files[i].name, &file, NULL);
        if (status != EPI_OK) /* without memory; that they parse is tested */
            break;
        *end = file.programs;
        while (*end)
            end = &(*end)->next;
    }
    text->bundled_whole = true;
    return text->bundled;
}

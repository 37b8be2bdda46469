/* test_emulate.c: the arithmetic of the emitted CUDA text, without a GPU: texts are compiled for the host
 * behind the headers of tests/emulate, and all launches of a kernel run there as they would on a device.
 *
 *     emulate [programs] [folder for what is compiled] [mode]
 *
 *     texts      it is skipped
 *     forms      Hopper's product, attention, rows of all lengths, and as many others as have every form at
 *                least once; each runs once, with what it waits for at once or late. Of a draw (draw.h) those that are
 *                drawn of all
 *     all        everything but the sweep
 *     rows, scans, moves, hopper, few, scaled, groups, attention, bits, parts, open
 *                a mainloop, or what has a table of its own; few and scaled are of Hopper's product
 *     sweep      Hopper's product for all products of the table
 *     file       all programs of a text, in bf16 on Hopper; behind it the text's path without its ending, as seen from
 *                the folder of programs, and sizes: emulate programs build/emulate file ../tests/scans B=2,T=9,D=16
 *
 * EPILOG_LIST=1 prints the names of a mode's cases, EPILOG_CASE runs those that match. Texts that were compiled are kept
 * in the folder (kept.h). JOBS says how many run at once.
 *
 * Covered: the three mainloops of products with their epilogues, those of attention, the mainloop over rows
 * in many shapes, the finishing kernels, the passes of the unfused path, and copies of operands. What fences
 * and the order of memory would have to see to, no emulator shows. Results are held against the f64 reference
 * by the rule of all the other tests. */
#include <sys/stat.h>

#include "emulate/attention.h"
#include "emulate/bits.h"
#include "emulate/gemm.h"
#include "emulate/pieces.h"
#include "emulate/programs.h"
#include "emulate/rows.h"
#include "emulate/scan.h"
#include "emulate/wholes.h"

static void compare_more(const emulated *e, const char *what) {
    const char *program = e->l->from->program;
    if (!strcmp(program, "paged_attention"))
        compare_outside(e, what);
    if (e->alone)
        compare_alone(e, what);
    if (!e->up && !strncmp(program, "prefix", 6))
        compare_hidden(e, what);
    if (!e->up && !strncmp(program, "first", 5))
        compare_first(e, what);
}

static void add_few(void) {
    hopper_kind = 'f';
    add_hopper();
}

static void add_scaled(void) {
    hopper_kind = 'p';
    add_hopper();
}

/* What there is, in the order in which `forms` chooses kernels: whether it leaves some out, and what a program is in a
 * table for is a form; what a draw of it takes so many times fewer of, so that each takes as long as the others; and the modes
 * that have it, beside all and forms (-: without those). */
static const struct {
    void (*add)(void);
    enum { WHOLE, LEAVES, NAMED } of_forms;
    unsigned fewer;
    const char *modes;
} tables[] = {
    {add_copies, NAMED, 5, "hopper few"},
    {add_hopper, NAMED, 5, "hopper"},
    {add_few, NAMED, 5, "- few"},
    {add_scaled, NAMED, 5, "- scaled"},
    {add_random_scaled, NAMED, 5, "hopper scaled"},
    {add_groups, NAMED, 5, "groups"},
    {add_wholes, WHOLE, 2, "parts"},
    {add_scans, NAMED, 5, "scans"},
    {add_attention, NAMED, 5, "hopper attention"},
    {add_bits, WHOLE, 4, "attention bits"},
    {add_lengths, NAMED, 5, "rows"},
    {add_cases, LEAVES, 5, ""},
    {add_open, LEAVES, 5, "open"},
    {add_moves, LEAVES, 5, "moves"},
    {add_random, LEAVES, 5, ""},
    {add_panels, WHOLE, 1, "rows"},
    {add_checks, WHOLE, 1, "rows"},
    {add_aligned_rows, LEAVES, 5, "rows"},
    {add_shapes, LEAVES, 5, "rows"},
    {add_longs, WHOLE, 4, "rows moves"},
    {add_folds, WHOLE, 1, "rows moves"},
    {add_sweep, WHOLE, 1, "- sweep"},
};

/* Has a list of words this one? */
static bool has_word(const char *words, const char *word) {
    size_t length = strlen(word);
    for (const char *p = words; (p = strstr(p, word)); p++)
        if ((p == words || p[-1] == ' ') && (!p[length] || p[length] == ' '))
            return true;
    return false;
}

/* Adds what a mode has. Returns how many kernels are named. */
static int add_tables(const char *mode) {
    bool forms = !strcmp(mode, "forms"), whole = forms || !strcmp(mode, "all");
    uint64_t of = draw.of;
    int named_count = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        bool both = tables[i].modes[0] != '-';
        if (whole ? !both : !has_word(tables[i].modes, mode))
            continue;
        draw.of = of > 1 && forms ? of * tables[i].fewer : of;
        tables[i].add();
        if (tables[i].of_forms != LEAVES)
            named_count = kernel_count;
    }
    draw.of = of;
    return named_count;
}

int main(int argc, char **argv) {
    const char *mode = argc > 3 ? argv[3] : "all";
    programs = argc > 1 ? argv[1] : "programs";
    folder = argc > 2 ? argv[2] : "build/emulate";
    const char *why = !strcmp(mode, "texts") ? "asked for texts alone"
                      : !find_compiler()     ? "no C++ compiler"
                                             : NULL;
    if (why) {
        printf("%s: skipped\n0 passed, 0 failed\n", why);
        return 0;
    }
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    mkdir(folder, 0777);
    read_draw();
    half = !strcmp(mode, "forms");
    int named_count = add_tables(mode);
    if (!strcmp(mode, "file") && argc > 5)
        add_file(argv[4], argv[5]);
    no_case();
    if (half && draw.run == draw.seen) /* no draw */
        choose_kernels(named_count);
    add_kernel_texts();
    compile_texts();
    add_kernel_jobs();
    add_bits_jobs();
    add_whole_jobs();
    add_large_jobs();
    add_piece_jobs();
    add_long_jobs();
    run_jobs();
    int left_out = 0;
    for (int i = 0; i < kernel_count; i++)
        left_out += kernels[i].left_out;
    printf("%d kernels of %d texts, %d left out; %d were refused\n", kernel_count - left_out, text_count,
           left_out, refused);
    free_kernels();
    free_wholes();
    epi_kernel_free(check_kernel);
    free_texts();
    free_programs();
    epi_context_close(ctx);
    return finish();
}

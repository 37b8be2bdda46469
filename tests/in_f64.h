/* in_f64.h: programs by the reference, with all numbers in f64, filled with numbers for which derivatives and rewritten
 * forms can be told apart; and small sizes for the axes of any program. */
#ifndef EPI_TESTS_IN_F64_H
#define EPI_TESTS_IN_F64_H

#include "ran.h"

/* Between -1 and 1 for matrices, 0.5 and 1.5 for vectors, 0.2 and 0.8 for scalars; indices in their axis, other
 * integers from -1 to 2. */
static inline void fill_small(problem *p, uint64_t seed) {
    for (int i = 0; i < p->inputs; i++) {
        tensor *t = &p->t[i];
        uint64_t s = seed * 1000003 + (uint64_t)i;
        int below = (int)t->shape.index_below;
        for (int64_t e = 0; e < t->shape.count; e++) {
            double u = random_unit(&s);
            put_at(t, e,
                   epi_dtype_is_integer(t->shape.type)
                       ? (below > 0 ? random_below(&s, below) : random_below(&s, 4) - 1)
                   : t->shape.rank == 0 ? 0.2 + 0.6 * u
                   : t->shape.rank == 1 ? 0.5 + u
                                        : 2 * u - 1);
        }
    }
}

static inline way in_f64(uint64_t seed) {
    return (way){.path = EPI_PATH_REFERENCE, .threads = 1, .wide = true, .fill = fill_small, .seed = seed};
}

/* The elements of the one; where it has fewer, from its first again. */
static inline void copy_elements(const tensor *from, tensor *to) {
    for (int64_t e = 0; e < to->shape.count; e++)
        put_at(to, e, at(from, e % from->shape.count));
}

/* Are they as near as roundings of f64 make them? */
static inline double off_in_f64(const tensor *got, const tensor *want) {
    double most = 0, worst = 0;
    for (int64_t e = 0; e < want->shape.count; e++) {
        most = isfinite(at(want, e)) ? fmax(most, fabs(at(want, e))) : most;
        worst = fmax(worst, apart(at(want, e), at(got, e)));
    }
    return worst / (1 + most);
}

/* Forward and backward of a text's last program, as they are printed, have the one and lack the other. */
static inline void check_saved_text(epi_context *ctx, const char *text, const char *wrt, const char *has,
                                    const char *lacks) {
    epi_module *m = parsed(ctx, text), *two = m ? derived(last_of(m), wrt, epi_program_grad_saved) : NULL;
    epi_text out = {0};
    for (int i = 0; i < 2 && two; i++)
        epi_graph_print(&epi_module_program(two, i)->graph, i ? "backward" : "forward", &out);
    check(out.data && strstr(out.data, has) && !(*lacks && strstr(out.data, lacks)),
          "%s\nhas %s and lacks %s:\n%s", text, has, lacks, out.data ? out.data : "");
    epi_text_free(&out);
    epi_module_free(two);
    epi_module_free(m);
}

/* Sizes for all axes of a program: those that it gives, and small ones that differ. */
static inline void small_sizes(const epi_program *p, char *out, size_t size) {
    static const struct {
        const char *name;
        int size;
    } sizes[] = {{"D", 4}, {"K", 4}, {"F", 4}, {"E", 6}, {"T", 5},
                 {"V", 6}, {"P", 7}, {"N", 6}, {"R", 6}, {"R2", 8}};
    out[0] = 0;
    for (int d = 0; d < epi_program_dim_count(p); d++) {
        int64_t n = epi_program_dim_size(p, d) ? epi_program_dim_size(p, d) : 3;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !epi_program_dim_size(p, d); i++)
            n = strcmp(epi_program_dim(p, d), sizes[i].name) ? n : sizes[i].size;
        append(out, size, "%s%s=%ld", d ? "," : "", epi_program_dim(p, d), n);
    }
}

#endif

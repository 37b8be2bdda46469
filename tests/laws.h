/* laws.h: the laws that every program keeps, whatever it computes. */
#ifndef EPI_TESTS_LAWS_H
#define EPI_TESTS_LAWS_H

#include "law_grad.h"

typedef struct law {
    const char *name;
    int (*keeps)(law_case *c, const epi_program *p);
    bool gpu; /* on a GPU, too */
} law;

static const law laws[] = {
    {"f32", keeps_f32, false},           {"bf16", keeps_bf16, true},       {"f16", keeps_f16, false},
    {"written", keeps_written, false},   {"unfused", keeps_unfused, true}, {"poison", keeps_poison, true},
    {"names", keeps_names, false},       {"order", keeps_order, false},    {"inputs", keeps_inputs, false},
    {"declared", keeps_declared, false}, {"saved", keeps_saved, true},     {"subsets", keeps_subsets, true},
};
enum { LAWS = sizeof laws / sizeof *laws };

#endif

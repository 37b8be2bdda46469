/* laws.h: the laws that every program keeps, whatever it computes. */
#ifndef EPI_TESTS_LAWS_H
#define EPI_TESTS_LAWS_H

#include "law_grad.h"

typedef struct law {
    const char *name;
    int (*keeps)(law_case *c, const epi_program *p);
} law;

static const law laws[] = {
    {"f32", keeps_f32},           {"bf16", keeps_bf16},       {"f16", keeps_f16},
    {"written", keeps_written},   {"unfused", keeps_unfused}, {"poison", keeps_poison},
    {"names", keeps_names},       {"order", keeps_order},     {"inputs", keeps_inputs},
    {"declared", keeps_declared}, {"saved", keeps_saved},     {"subsets", keeps_subsets},
};
enum { LAWS = sizeof laws / sizeof *laws };

#endif

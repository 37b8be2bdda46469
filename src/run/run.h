/* run.h: what stands behind the public handles. */
#ifndef EPI_RUN_RUN_H
#define EPI_RUN_RUN_H

#include "cuda/driver.h"
#include "ir/spec.h"
#include "lang/ast.h"

struct epi_context {
    char cpu_model[128], cpu_features[128];
    int cpu_threads;
    epi_cuda cuda;
};

struct epi_program {
    const epi_module *module;
    const epi_ast_program *ast;
    epi_graph graph;
};

struct epi_module {
    epi_context *context;
    epi_arena arena;
    epi_ast_text text;
    epi_program *programs;
    int count;
};

/* 90 for compute capability 9.0: of a GPU of the context, or of what a negative number stands for (as in
 * epi_options). */
int epi_device_capability(const epi_context *ctx, int device);

#endif

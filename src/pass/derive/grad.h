/* grad.h: from a program to the program of its vector-Jacobian product: reverse mode, graph in, graph out.
 *
 * The derived program takes all inputs of the program and one cotangent per result: d_y, the gradient of
 * some scalar with respect to y. It gives the gradient of that scalar with respect to each requested input.
 */
#ifndef EPI_PASS_GRAD_H
#define EPI_PASS_GRAD_H

#include "ir/graph.h"

/* A cell of ops.def's column of derivatives, and what its names stand for. */
typedef struct epi_rule {
    const char *text;
    int a, b, c, d, y, n; /* nodes of the graph that is being built; EPI_NO_NODE: there is none */
    epi_axes over;        /* X */
    bool renames;         /* from X to Y */
    epi_axis to;          /* Y */
    int operand;          /* of a text with two values: which */
} epi_rule;

typedef struct epi_grad_request {
    const epi_graph *forward;
    const int *wrt; /* tensors: inputs of the program */
    int wrt_count;
    const bool *none; /* by result: it has no cotangent, nothing depends on it; NULL: all have one */
    /* Writes a rule into the graph and returns its value: the language is above the passes. */
    int (*apply)(void *language, epi_graph *g, const epi_rule *rule);
    /* Writes the gradient of a call that has its own: given[] has its arguments, its results and their
     * cotangents, out[] gets the gradient by each argument, EPI_NO_NODE where there is none. */
    void (*apply_own)(epi_graph *g, const epi_own *own, const int *given, int *out);
    void *language;
} epi_grad_request;

/* Derives into *out, whose arena is set; names of the forward graph are not copied. An error is in out->error
 * with its place. Returns how many nodes are those of the forward graph: they come first. */
int epi_grad(const epi_grad_request *request, epi_graph *out);

/* Has an input of the program, or a result, a gradient? Integers have none. */
bool epi_has_gradient(const epi_tensor_decl *tensor);

#endif

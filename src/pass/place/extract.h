/* extract.h: a piece of a program as a program of its own. Inputs stand for values of the whole, the values
 * computed from them are copied, and outputs store the results. */
#ifndef EPI_PASS_EXTRACT_H
#define EPI_PASS_EXTRACT_H

#include "ir/graph.h"

typedef struct epi_extract {
    const epi_graph *from;
    epi_graph *to;
    int *fresh;   /* by node of the whole: its node here; EPI_NO_NODE: it is not here. Who writes many parts
                     gives one list for all */
    bool *needed; /* by node of the whole: epi_extract_copy copies it, unless it is here already */
    bool names;   /* a value that has no name is called by the output that stores it */
    /* Writes a node that is not copied as it is, or returns EPI_NO_NODE; NULL: all are copied. */
    int (*write)(struct epi_extract *x, const epi_node *n);
    const void *context; /* for who writes */
} epi_extract;

/* Begins with the dims of the whole, and room for so many tensors; the arena of `to` is set. False: no
 * memory. */
bool epi_extract_begin(epi_extract *x, const epi_graph *from, epi_graph *to, int tensors);
/* Adds an input, which stands for this node of the whole (EPI_NO_NODE: for none), and returns its node.
 * Inputs come before everything else. */
int epi_extract_input(epi_extract *x, const epi_tensor_decl *decl, int node);
/* Copies a node whose operands are here. */
void epi_extract_node(epi_extract *x, int node);
/* Copies what is needed, and what that is made of, down to what is here. */
void epi_extract_copy(epi_extract *x);
/* Adds an output that stores a node of `to`. */
void epi_extract_output(epi_extract *x, const epi_tensor_decl *decl, int value);

/* The wanted name, or that with a number behind it which is not taken; "": no memory. */
typedef bool epi_name_taken(const void *context, const char *name);
const char *epi_free_name(epi_arena *arena, const char *wanted, epi_name_taken *taken, const void *context);
/* For a context that is a graph: one of its tensors has the name. */
bool epi_graph_has_tensor(const void *graph, const char *name);

#endif

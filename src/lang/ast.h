/* ast.h: the syntax tree of a source text: the parser builds it, the printer prints it, and lowering reads
 * it. */
#ifndef EPI_LANG_AST_H
#define EPI_LANG_AST_H

#include "ir/graph.h"

/* Expressions inside each other, as written and once calls are inlined: parsing and lowering recurse so deep,
 * and must fit in the stack of a small thread. */
enum { EPI_MAX_NESTING = 200 };

typedef enum epi_ast_kind {
    EPI_AST_NUMBER,
    EPI_AST_NAME,
    EPI_AST_UNARY,
    EPI_AST_BINARY,
    EPI_AST_CALL,
    EPI_AST_TAKE /* x[i] */
} epi_ast_kind;

typedef struct epi_ast {
    epi_ast_kind kind;
    epi_place place;
    epi_op op;        /* UNARY, BINARY */
    double number;    /* NUMBER; NAME: the size that a call gives an axis, as in topk(p, E, K=8), or 0 */
    const char *name; /* NAME, CALL; NUMBER: as it was written, NULL where it was not */
    bool parentheses; /* it stood in some */
    struct epi_ast **args;
    int arg_count;
    int arrow; /* CALL: how many arguments stand in front of the arrow of scatter(d, i, P -> T); 0: it has none */
    struct epi_ast *callee;          /* CALL: grad(f, x), where its result is what is called; else NULL */
    struct epi_ast_program *program; /* CALL: what is called, where that was made from a graph; else NULL */
    struct epi_ast *outer;           /* the operation whose first operand this is, or NULL */
} epi_ast;

/* The first of the operands in `a + b - c[i]`, whose operators all lean to the left. Such chains may be long:
 * they are walked from here along `outer`, not by recursion. */
static inline const epi_ast *epi_ast_leftmost(const epi_ast *e) {
    while (e->kind == EPI_AST_BINARY || e->kind == EPI_AST_TAKE)
        e = e->args[0];
    return e;
}

/* An axis as written: a name and a power-of-two factor, or its size. */
typedef struct epi_ast_axis {
    const char *name;
    int shift;
    int64_t size; /* as in C=3; 0: it is given when the program is compiled */
    epi_place place;
} epi_ast_axis;

typedef struct epi_ast_tensor {
    const char *name;
    epi_place place;
    bool has_type, cotangent, param, infinite;
    epi_dtype type;
    const char *packed; /* "i4" or "u4": two to a byte, which `type` is of; or NULL */
    int axis_count;
    epi_ast_axis axes[EPI_MAX_AXES];
} epi_ast_tensor;

/* What is assigned to. */
typedef struct epi_ast_name {
    const char *text;
    epi_place place;
    epi_dtype type; /* how it is stored, EPI_DTYPE_COUNT where the text leaves it open */
    epi_ast_axis *axes; /* that the text states, in this order */
    int axis_count;     /* 0: it states none */
} epi_ast_name;

typedef struct epi_ast_assign {
    epi_ast_name *names;
    int name_count;
    epi_ast *value;
} epi_ast_assign;

typedef struct epi_ast_program {
    const char *name;
    const char *comment; /* the lines before it, without the marks; "" if none */
    epi_place place;
    epi_ast_tensor *inputs, *outputs;
    int input_count, output_count;
    epi_ast_assign *body;
    int body_count;
    const char *by; /* the program that is its gradient, or NULL, */
    epi_place by_place;
    const struct epi_ast_program *rule; /* and that program itself */
    struct epi_ast_program *next;
} epi_ast_program;

typedef struct epi_ast_text {
    const char *file, *source;
    size_t length;
    epi_ast_program *programs;
    int program_count;
    epi_ast_program *bundled; /* those that come with Epilog, once one of them was looked for */
    bool bundled_whole;
} epi_ast_text;

/* Parses `source` (kept by pointer) into the arena. */
epi_status epi_ast_parse(epi_arena *arena, const char *source, size_t length, const char *file,
                         epi_ast_text *out, epi_error *err);

/* Prints a program so that parsing the print and printing again gives the same text. */
void epi_ast_print(const epi_ast_program *program, epi_text *out);
void epi_ast_print_tensor(const epi_ast_tensor *tensor, epi_text *out);
void epi_ast_print_tensors(const epi_ast_tensor *tensors, int count, epi_text *out); /* with commas */
/* " by f_grad", if it names its gradient. */
void epi_ast_print_by(const epi_ast_program *program, epi_text *out);
/* `written`: with the parentheses and the numbers that the text has. */
void epi_ast_print_assign(const epi_ast_assign *assign, bool written, epi_text *out);

/* Inputs and values of a program of the text that nothing in it uses, a line each. */
void epi_ast_unused(const epi_ast_text *text, const epi_ast_program *program, epi_text *out);

/* What a program of the text says that may not be what was meant, a line each: a call whose meaning follows from axes in the
 * order in which they appear; a scatter that sums over a batch. */
void epi_ast_notes(const epi_ast_text *text, const epi_ast_program *program, epi_text *out);

/* The whole text that was parsed, laid out anew, with all of its comments. */
epi_status epi_ast_format(epi_arena *arena, const epi_ast_text *text, epi_text *out, epi_error *err);

/* Prints a graph as a program of this name; and behind it the programs with their own gradients that it calls,
 * which only a graph that was derived can have marks of. */
void epi_graph_print(const epi_graph *g, const char *name, epi_text *out);
epi_status epi_graph_print_derived(const epi_graph *g, const char *name, epi_text *out, epi_error *err);

/* Infers the axes of a program, inlining what it calls. On failure the error carries its place. `own`: it is to
 * be derived, so calls that have their own gradient are marked (OWN in ops.def). */
epi_status epi_ast_lower(epi_arena *arena, epi_ast_text *text, const epi_ast_program *program, bool own,
                         epi_graph *out, epi_error *err);

/* The program of the gradients of another by these inputs, from its graph; see pass/derive/grad.h, for `none`,
 * too. */
void epi_derive(const epi_graph *forward, const int *wrt, int wrt_count, const bool *none, epi_graph *out);

/* Reads an expression as an axis: NAME, 2*NAME or NAME/2. False where it is none. */
bool epi_ast_as_axis(const epi_ast *expr, epi_ast_axis *out);

/* Completes *err with the file and the line of text at its place. */
void epi_ast_locate(const epi_ast_text *text, epi_error *err);

#endif

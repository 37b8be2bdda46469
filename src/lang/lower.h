/* lower.h: what the files of lowering share: frames, and the values that expressions yield. */
#ifndef EPI_LANG_LOWER_H
#define EPI_LANG_LOWER_H

#include "lang/ast.h"

typedef struct epi_own_call epi_own_call; /* own.c */

/* What recursion passes through but does not repeat stays out of the frames that it does repeat. */
#define EPI_NOINLINE __attribute__((noinline))

typedef struct epi_binding {
    const char *name;
    int node;
    struct epi_binding *next; /* the one assigned before */
    struct epi_binding *same; /* the next in its bucket */
} epi_binding;

enum { EPI_NAME_BUCKETS = 128 };

/* A program in the middle of being lowered. The outermost frame is the program itself, and its caller what
 * derives it, if that is a program; a call makes a frame whose inputs are the caller's values and whose axes are
 * the caller's. */
typedef struct epi_frame {
    const epi_ast_program *program;
    const struct epi_frame *caller;
    bool bundled; /* it comes with Epilog: it does not see the programs of the text */
    int depth;
    epi_binding *values;                    /* all of them, the last one first */
    epi_binding *buckets[EPI_NAME_BUCKETS]; /* the same by what their names hash to */
    /* the dims of this program by name, and the axis each stands for in the outermost one */
    const char *dims[EPI_MAX_DIMS];
    epi_axis axes[EPI_MAX_DIMS];
    bool bound[EPI_MAX_DIMS];
    int64_t sizes[EPI_MAX_DIMS]; /* that the declarations give; 0: none */
    int dim_count;
    epi_axes carried; /* what its arguments have in front of the declared axes */
    struct epi_frame *next_spare;
} epi_frame;

/* What `check` is to be told of beside errors. */
typedef struct epi_notes {
    epi_text *out;
    struct epi_noted_scatter *scatters; /* those that sum over a batch, as notes.c lists them */
} epi_notes;

typedef struct epi_lowering {
    epi_ast_text *text;
    epi_graph *g;
    epi_place site;         /* inside a bundled program: where the text calls it */
    epi_frame *spare;       /* frames of calls that are done */
    int expressions, depth; /* lowered so far, and how many are in the middle of it */
    bool own;               /* calls that have their own gradient are marked: the program will be derived */
    struct epi_made *made;  /* where programs go that bring arguments into order, or NULL */
    epi_notes *notes;       /* or NULL */
} epi_lowering;

/* What a call yields: several nodes for pairs, halves and programs of many outputs. */
typedef struct epi_values {
    int *node, count; /* in the arena */
} epi_values;

bool epi_lower_ok(const epi_lowering *lo);
epi_values epi_lower_values(epi_lowering *lo, int count); /* none of them known yet */
epi_values epi_lower_value(epi_lowering *lo, int node);

/* New nodes and errors are at this place of the text. */
static inline void epi_lower_at(epi_lowering *lo, epi_place place) {
    lo->g->place = lo->site.line ? lo->site : place;
}

/* lower.c */
int epi_lower_one(epi_lowering *lo, epi_frame *f, const epi_ast *e);
void epi_lower_body(epi_lowering *lo, epi_frame *f);
/* Lowers a program by itself, in the middle of another: that of the frame around it. Its error is in out->error. */
void epi_lower_whole(epi_lowering *lo, const epi_frame *around, const epi_ast_program *program, bool bundled,
                     bool own, epi_arena *arena, epi_graph *out);
void epi_frame_collect_dims(epi_lowering *lo, epi_frame *f);
void epi_frame_bind(epi_lowering *lo, epi_frame *f, const char *name, int node, epi_place place);
int epi_frame_dim(const epi_frame *f, const char *name);   /* or -1 */
int epi_frame_value(const epi_frame *f, const char *name); /* or EPI_NO_NODE */
epi_axis epi_frame_axis(epi_lowering *lo, const epi_frame *f, const epi_ast_axis *axis);

/* lower_call.c */
epi_values epi_lower_call(epi_lowering *lo, epi_frame *f, const epi_ast *e);
/* The program that a call of this name in f is of; NULL: an operation, or there is none. */
const epi_ast_program *epi_lower_callee(epi_lowering *lo, const epi_frame *f, const char *name);
/* The program that grad(p, x), backward(p, x) or repeat(p, L) is of; NULL after an error. */
const epi_ast_program *epi_lower_program(epi_lowering *lo, const epi_frame *f, const epi_ast *names,
                                         bool *bundled);

/* The values of a call's arguments, NULL after an error; and the program with these values for its inputs. */
int *epi_lower_arguments(epi_lowering *lo, epi_frame *f, const epi_ast *e, const epi_ast_program *p);
epi_values epi_lower_inline(epi_lowering *lo, epi_frame *f, const epi_ast *e, const epi_ast_program *p,
                            bool bundled, const int *given);

/* Refuses a call in f of a program that is being lowered. */
void epi_lower_check_recursion(epi_lowering *lo, const epi_frame *f, const epi_ast_program *p);

/* own.c: holds what a program names as its gradient against its signature; f is the program's frame. */
void epi_own_check(epi_lowering *lo, const epi_frame *f);
/* Marks the results of a call, out[], or of the program itself, as what has its own gradient. */
void epi_own_mark(epi_lowering *lo, const epi_frame *callee, int *out);
/* Writes that gradient; see pass/derive/grad.h. */
void epi_own_apply(epi_graph *g, const epi_own *own, const int *given, int *out);

/* Programs that are called by one that was made from a graph: those with their own gradients, for the axes that
 * they are called with, and what brings arguments into order. */
typedef struct epi_made {
    epi_arena *arena;
    struct epi_made_program {
        const epi_own_call *call; /* NULL: it brings an argument into order */
        const epi_graph *g;       /* that has the axes of the call */
        epi_ast_program *program, *rule;
    } * at;
    int count, capacity;
    epi_error error; /* why one of them cannot be written */
} epi_made;
bool epi_made_add(epi_made *made, const epi_own_call *call, const epi_graph *g, epi_ast_program *program);
/* The program that a marked value is a result of; NULL after an error, which is in made->error. */
epi_ast_program *epi_own_program(epi_made *made, const epi_graph *g, const epi_own *own);
/* Axes are bound by their places: where in the program, or in those that it calls, an argument has its axes in
 * another order than the program declares, it is brought into order. False after an error. */
bool epi_own_settle(epi_made *made, const epi_ast_program *program);

/* The argument in the order that the input declares: a call of a program that does nothing else. */
epi_ast *epi_own_order(epi_made *made, const epi_ast_tensor *input, const epi_axes *have,
                       const epi_axes *want, epi_ast *argument);

/* from_graph.c: a graph as a program of this name: lowering it gives the same values in the same order of
 * operations. What it calls is added to made; `called`: another program calls it. NULL: no memory, or made->error.
 */
epi_ast_program *epi_graph_write(epi_made *made, const epi_graph *g, const char *name, bool called);

/* lower_repeat.c: what a call of repeat(f, L) gives. */
epi_values epi_lower_repeat(epi_lowering *lo, epi_frame *f, const epi_ast *e);

/* lower_grad.c: the program that a call of grad(f, x) or backward(f, x) calls; NULL after an error. Arguments
 * that stand for no cotangent are taken out of the call. */
const epi_ast_program *epi_lower_derived(epi_lowering *lo, epi_frame *f, epi_ast *call);

/* notes.c: might there be something to say of the program? Of a call in f whose result is `out`: would it mean something
 * else if an argument had its axes in another order, which no text shows? Of a scatter without an arrow; and in the end,
 * which of those are repeated along an axis that they were summed over. */
bool epi_notes_may(const epi_ast_program *program);
void epi_note_orders(epi_lowering *lo, epi_frame *f, const epi_ast *e, const epi_ast_program *p, bool bundled,
                     const int *given, const epi_values *out);
void epi_note_scatter(epi_lowering *lo, const epi_frame *f, const epi_ast *e, int node);
void epi_note_batches(epi_lowering *lo);

/* lower_op.c: a call of an operation; false where there is none of this name. */
bool epi_lower_op(epi_lowering *lo, epi_frame *f, const epi_ast *e, epi_values *out);

#endif

/* test_verify.c: the verifier takes every graph that lowering makes, and refuses each that is broken
 * somewhere. */
#include "ir/verify.h"
#include "ran.h"

static const char text[] =
    "whole(x[T,D], w[F,D], i: i32[T], seed: i32, p: param[F]) -> (o[T,F], s: f32[T]) {\n"
    "    z = x @ w\n"
    "    a, b = pairs(z, F)\n"
    "    o = gather(join(b, a, F), i, T)*p*uniform(seed, T, F)\n"
    "    s = sum(exp(rename(z, F, E)), E)\n"
    "}\n";

/* A graph whose lists are its own. */
static epi_graph copy_of(const epi_graph *from, epi_arena *arena) {
    epi_graph g = *from;
    size_t nodes = (size_t)g.node_count, tensors = (size_t)g.tensor_count;
    size_t uses = (size_t)g.first_use[g.node_count];
    g.nodes = memcpy(epi_arena_alloc(arena, nodes * sizeof *g.nodes), g.nodes, nodes * sizeof *g.nodes);
    g.tensors =
        memcpy(epi_arena_alloc(arena, tensors * sizeof *g.tensors), g.tensors, tensors * sizeof *g.tensors);
    g.live = memcpy(epi_arena_alloc(arena, nodes), g.live, nodes);
    g.uses = memcpy(epi_arena_alloc(arena, uses * sizeof *g.uses), g.uses, uses * sizeof *g.uses);
    g.first_use = memcpy(epi_arena_alloc(arena, (nodes + 1) * sizeof *g.first_use), g.first_use,
                         (nodes + 1) * sizeof *g.first_use);
    return g;
}

static epi_node *node_of(epi_graph *g, epi_op op) {
    for (int i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == op)
            return &g->nodes[i];
    printf("the program has no %s\n", epi_ops[op].text);
    exit(1);
}

/* ---- ways to break it ---- */

#define WAYS(X) \
    X(cut_operand, node_of(g, EPI_OP_MATMUL)->arg[1] = EPI_NO_NODE) \
    X(add_operand, node_of(g, EPI_OP_EXP)->arg[1] = 0) \
    X(look_ahead, node_of(g, EPI_OP_EXP)->arg[0] = g->node_count - 1) \
    X(look_past, node_of(g, EPI_OP_EXP)->arg[0] = g->node_count + 7) \
    X(unknown_op, node_of(g, EPI_OP_EXP)->op = EPI_OP_COUNT) \
    X(unknown_input, node_of(g, EPI_OP_INPUT)->tensor = g->tensor_count) \
    X(lose_axis, node_of(g, EPI_OP_EXP)->axes.count--) \
    X(twice_axis, node_of(g, EPI_OP_EXP)->axes.at[1] = node_of(g, EPI_OP_EXP)->axes.at[0]) \
    X(unknown_axis, node_of(g, EPI_OP_EXP)->axes.at[0].dim = (int16_t)g->dim_count) \
    X(sum_too_little, node_of(g, EPI_OP_SUM)->over.count = 0) \
    X(sum_the_other, node_of(g, EPI_OP_MATMUL)->over = g->tensors[2].axes) \
    X(split_nothing, node_of(g, EPI_OP_EVEN)->over.count = 0) \
    X(split_the_other, node_of(g, EPI_OP_EVEN)->over.at[0].shift++) \
    X(gather_the_other, node_of(g, EPI_OP_GATHER)->over.at[0].dim = 1) \
    X(rename_nothing, node_of(g, EPI_OP_RENAME)->over.at[0] = node_of(g, EPI_OP_RENAME)->over.at[1]) \
    X(random_axes, node_of(g, EPI_OP_UNIFORM)->over.count--) \
    X(no_type, node_of(g, EPI_OP_EXP)->has_stored = true, node_of(g, EPI_OP_EXP)->stored = EPI_DTYPE_COUNT) \
    X(no_tensor_type, g->tensors[2].type = EPI_DTYPE_COUNT) \
    X(same_name, g->tensors[1].name = g->tensors[0].name) \
    X(no_value, g->tensors[g->input_count].node = EPI_NO_NODE) \
    X(other_value, g->tensors[0].node = g->tensors[1].node) \
    X(other_axes, g->tensors[g->input_count].axes.count--) \
    X(output_first, g->tensors[0].is_output = true) \
    X(param_output, g->tensors[g->input_count].param = true) \
    X(dead, g->live[g->tensors[g->input_count].node] = false) \
    X(lost_use, g->first_use[g->node_count]--) \
    X(wrong_use, g->uses[0].operand ^= 1) \
    X(no_uses, g->uses = NULL) \
    X(no_dim_name, g->dims[0] = NULL) \
    X(endless_dim, g->declared_count = 0, g->same[0].dim = 0)

#define DEFINE(name, ...) \
    static void name(epi_graph *g) { \
        __VA_ARGS__; \
    }
WAYS(DEFINE)

static const struct {
    const char *name;
    void (*apply)(epi_graph *g);
} ways[] = {
#define ROW(name, ...) {#name, name},
    WAYS(ROW)};

int main(void) {
    epi_context *ctx;
    epi_error err;
    epi_arena arena = {0};
    if (epi_context_open(&ctx, &err) != EPI_OK)
        return printf("%s\n", err.message), 1;
    epi_module *m = parsed(ctx, text);
    const epi_graph *whole = &epi_module_program(m, 0)->graph;
    epi_graph same = copy_of(whole, &arena);
    check(epi_graph_verify(&same, &err) == EPI_OK, "a graph as it was made: %s", err.message);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        epi_graph g = copy_of(whole, &arena);
        ways[i].apply(&g);
        check(epi_graph_verify(&g, &err) == EPI_ERR_INTERNAL && strstr(err.message, "internal error"),
              "a graph that is broken is refused: %s", ways[i].name);
    }
    epi_arena_free(&arena);
    epi_module_free(m);
    epi_context_close(ctx);
    return finish();
}

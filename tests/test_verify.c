/* test_verify.c: the verifier takes every graph that lowering makes, and refuses each that is broken
 * somewhere. */
#include "harness.h"
#include "ir/verify.h"
#include "run/run.h"

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

static epi_node *find(epi_graph *g, epi_op op) {
    for (int i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == op)
            return &g->nodes[i];
    printf("the program has no %s\n", epi_ops[op].text);
    exit(1);
}

/* ---- ways to break it ---- */

static void cut_operand(epi_graph *g) {
    find(g, EPI_OP_MATMUL)->arg[1] = EPI_NO_NODE;
}
static void add_operand(epi_graph *g) {
    find(g, EPI_OP_EXP)->arg[1] = 0;
}
static void look_ahead(epi_graph *g) {
    find(g, EPI_OP_EXP)->arg[0] = g->node_count - 1;
}
static void look_past(epi_graph *g) {
    find(g, EPI_OP_EXP)->arg[0] = g->node_count + 7;
}
static void unknown_op(epi_graph *g) {
    find(g, EPI_OP_EXP)->op = EPI_OP_COUNT;
}
static void unknown_input(epi_graph *g) {
    find(g, EPI_OP_INPUT)->tensor = g->tensor_count;
}
static void lose_axis(epi_graph *g) {
    find(g, EPI_OP_EXP)->axes.count--;
}
static void twice_axis(epi_graph *g) {
    find(g, EPI_OP_EXP)->axes.at[1] = find(g, EPI_OP_EXP)->axes.at[0];
}
static void unknown_axis(epi_graph *g) {
    find(g, EPI_OP_EXP)->axes.at[0].dim = (int16_t)g->dim_count;
}
static void sum_too_little(epi_graph *g) {
    find(g, EPI_OP_SUM)->over.count = 0;
}
static void sum_the_other(epi_graph *g) {
    find(g, EPI_OP_MATMUL)->over = g->tensors[2].axes;
}
static void split_nothing(epi_graph *g) {
    find(g, EPI_OP_EVEN)->over.count = 0;
}
static void split_the_other(epi_graph *g) {
    find(g, EPI_OP_EVEN)->over.at[0].shift++;
}
static void gather_the_other(epi_graph *g) {
    find(g, EPI_OP_GATHER)->over.at[0].dim = 1;
}
static void rename_nothing(epi_graph *g) {
    find(g, EPI_OP_RENAME)->over.at[0] = find(g, EPI_OP_RENAME)->over.at[1];
}
static void random_axes(epi_graph *g) {
    find(g, EPI_OP_UNIFORM)->over.count--;
}
static void no_type(epi_graph *g) {
    find(g, EPI_OP_EXP)->has_stored = true;
    find(g, EPI_OP_EXP)->stored = EPI_DTYPE_COUNT;
}
static void no_tensor_type(epi_graph *g) {
    g->tensors[2].type = EPI_DTYPE_COUNT;
}
static void same_name(epi_graph *g) {
    g->tensors[1].name = g->tensors[0].name;
}
static void no_value(epi_graph *g) {
    g->tensors[g->input_count].node = EPI_NO_NODE;
}
static void other_value(epi_graph *g) {
    g->tensors[0].node = g->tensors[1].node;
}
static void other_axes(epi_graph *g) {
    g->tensors[g->input_count].axes.count--;
}
static void output_first(epi_graph *g) {
    g->tensors[0].is_output = true;
}
static void param_output(epi_graph *g) {
    g->tensors[g->input_count].param = true;
}
static void dead(epi_graph *g) {
    g->live[g->tensors[g->input_count].node] = false;
}
static void lost_use(epi_graph *g) {
    g->first_use[g->node_count]--;
}
static void wrong_use(epi_graph *g) {
    g->uses[0].operand ^= 1;
}
static void no_uses(epi_graph *g) {
    g->uses = NULL;
}
static void no_dim_name(epi_graph *g) {
    g->dims[0] = NULL;
}
static void endless_dim(epi_graph *g) {
    g->declared_count = 0;
    g->same[0].dim = 0;
}

static const struct {
    const char *name;
    void (*apply)(epi_graph *g);
} ways[] = {{"cut operand", cut_operand},
            {"add operand", add_operand},
            {"look ahead", look_ahead},
            {"look past", look_past},
            {"unknown op", unknown_op},
            {"unknown input", unknown_input},
            {"lose axis", lose_axis},
            {"twice axis", twice_axis},
            {"unknown axis", unknown_axis},
            {"sum too little", sum_too_little},
            {"sum the other", sum_the_other},
            {"split nothing", split_nothing},
            {"split the other", split_the_other},
            {"gather the other", gather_the_other},
            {"rename nothing", rename_nothing},
            {"random axes", random_axes},
            {"no type", no_type},
            {"no tensor type", no_tensor_type},
            {"same name", same_name},
            {"no value", no_value},
            {"other value", other_value},
            {"other axes", other_axes},
            {"output first", output_first},
            {"param output", param_output},
            {"dead", dead},
            {"lost use", lost_use},
            {"wrong use", wrong_use},
            {"no uses", no_uses},
            {"no dim name", no_dim_name},
            {"endless dim", endless_dim}};

int main(void) {
    epi_context *ctx;
    epi_module *m;
    epi_error err;
    epi_arena arena = {0};
    if (epi_context_open(&ctx, &err) != EPI_OK ||
        epi_module_parse(ctx, text, strlen(text), "whole.epi", &m, &err) != EPI_OK)
        return printf("%s\n", err.message), 1;
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

/* test_orders.c: the order of the formulas in a text does not change what is stored over an input. */
#include "ran.h"

static epi_context *ctx;

enum { FORMULAS = 4 };

static const struct shuffled {
    const char *head, *formulas[FORMULAS], *dims;
    const char *over; /* the pairs that must be among those that can be stored in place */
} texts[] = {
    {"step(w[F,D], x[T,D], dy[T,F], m[F,D]) -> (wn[F,D], mn[F,D], dx[T,D])",
     {"g = dy @ x", "mn = 0.9*m + g", "wn = w - 0.1*mn", "dx = dy @ w"},
     "T=256,D=64,F=96",
     " wn/w mn/m"},
    {"clipped(w[F,D], x[T,D], dy[T,F], m[F,D]) -> (wn[F,D], mn[F,D], dx[T,D])",
     {"mn = 0.9*m + dy @ x", "s = sum(sum(mn*mn, D), F)", "wn = w - 0.1*mn*rsqrt(s + 1)", "dx = dy @ w"},
     "T=256,D=64,F=96",
     " wn/w mn/m"},
    {"both(w[F,D], v[D,F], x[T,D], dy[T,F]) -> (wn[F,D], vn[D,F], a[T,F], b[T,F])",
     {"a = x @ w", "b = x @ v", "wn = w - 0.1*(dy @ x)", "vn = v - 0.1*(x @ dy)"},
     "T=256,D=64,F=96",
     " wn/w vn/v"},
    {"cache(k[R,E], new[E], w[F,E], j) -> (kn[R,E], o[R,F], e[E])",
     {"kn = update(k, new, 3, R)", "o = k @ w", "e = gather(k, j, R)"},
     "R=256,E=64,F=96",
     " kn/k"},
    {"averaged(p[N,M], g[N,M], e[N,M], w[F,M]) -> (q[N,M], en[N,M], y[N,F])",
     {"q = p - 0.1*g", "en = 0.99*e + 0.01*q", "y = p @ w"},
     "N=256,M=64,F=96",
     " q/p en/e"},
};

/* The outputs and inputs of the same place, as " y/x", of which there may be many. */
static void list_in_place(const epi_kernel *k, char *out, size_t size) {
    const epi_graph *g = &k->program->graph;
    int at = snprintf(out, size, " ");
    for (int o = g->input_count; o < g->tensor_count; o++)
        for (int i = 0; i < g->input_count; i++)
            if (epi_kernel_in_place(k, o, i))
                at += snprintf(out + at, size - (size_t)at, "%s/%s ", g->tensors[o].name, g->tensors[i].name);
}

static bool has_pairs(const char *list, const char *pairs) {
    char words[100], pair[40];
    const char *at[8];
    bool has = true;
    for (int i = 0, n = words_of(pairs, words, sizeof words, at, 8); i < n; i++) {
        snprintf(pair, sizeof pair, " %s ", at[i]);
        has &= strstr(list, pair) != NULL;
    }
    return has;
}

/* The text with its formulas in an order; true where a formula uses only what stands before it. */
static bool write_text(const struct shuffled *s, const int *order, char *out, size_t size) {
    epi_module *m = NULL;
    epi_error err;
    int at = snprintf(out, size, "%s {", s->head);
    for (int i = 0; i < FORMULAS; i++)
        if (s->formulas[order[i]])
            at += snprintf(out + at, size - (size_t)at, " %s;", s->formulas[order[i]]);
    snprintf(out + at, size - (size_t)at, " }");
    bool reads = epi_module_parse(ctx, out, strlen(out), "text", &m, &err) == EPI_OK;
    epi_module_free(m);
    return reads;
}

static void check_orders(const struct shuffled *s, int device) {
    char text[600], list[400], first[400] = "";
    int orders = 0;
    for (int code = 0; code < FORMULAS * FORMULAS * FORMULAS * FORMULAS; code++) {
        int order[FORMULAS], seen = 0;
        for (int i = 0, rest = code; i < FORMULAS; i++, rest /= FORMULAS) {
            order[i] = rest % FORMULAS;
            seen |= 1 << order[i];
        }
        bool all = seen == (1 << FORMULAS) - 1;
        if (!all || !write_text(s, order, text, sizeof text))
            continue;
        epi_kernel *k = text_kernel(ctx, text, s->dims, (way){.type = EPI_BF16, .device = device});
        if (!k)
            continue;
        list_in_place(k, list, sizeof list);
        check(has_pairs(list, s->over), "%s\nin place:%s, without some of%s", text, list, s->over);
        check(!orders++ || !strcmp(list, first), "%s\nin place:%s, in another order%s", text, list, first);
        snprintf(first, sizeof first, "%s", list);
        epi_kernel_free(k);
    }
    check(orders > 1, "%s has several orders", s->head);
}

int main(void) {
    epi_context_open(&ctx, NULL);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int gpu = 0; gpu < 2; gpu++)
            if (wanted("orders %.20s %s", texts[i].head, gpu ? "sm_90a" : "cpu"))
                check_orders(&texts[i], gpu ? epi_gpu_arch_device("sm_90a") : 0);
    epi_context_close(ctx);
    return finish();
}

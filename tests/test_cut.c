/* test_cut.c: programs of several mainloops. Each is cut into parts; the parts, printed and parsed again, are
 * run in order by hand and must give the same bits as the whole, which is held against the f64 reference by
 * the error rule.
 *
 *     cut [programs] [rounds]     the programs of the folder, then so many random ones */
#include "ran.h"
#include "random_program.h"

#include "cuda/cuda.h"
#include "layers.h"
#include "pass/schedule/tile_program.h"

static epi_context *ctx;
static int cut_count, part_count, prepared_count, pass_count;

/* ---- running by hand ---- */

typedef struct by_hand {
    const epi_kernel *whole;
    unsigned char **values; /* by value of the cut */
} by_hand;

/* The types of a part's tensors, as options want them. */
static void bind_types(const epi_part *part, epi_type_binding *types) {
    for (int t = 0; t < part->graph.tensor_count; t++)
        types[t] = (epi_type_binding){part->graph.tensors[t].name, part->types[t]};
}

/* Has it integers that f32 does not hold? A part by itself may: it does not know what its inputs are, nor who reads it. */
static bool has_large(const epi_kernel *k) {
    bool has = false;
    for (int q = 0; q < k->cut.part_count; q++)
        for (int i = 0; i < k->cut.parts[q].graph.node_count; i++)
            has |= k->cut.parts[q].graph.nodes[i].integer;
    return has;
}

/* The part of an own text as it is compiled: its types, sizes and rows are those of the whole. */
static epi_kernel *compile_part(const by_hand *h, const epi_part *part, const epi_program *program, way how) {
    epi_type_binding types[2 * EPI_MAX_TENSORS];
    epi_dim_binding dims[EPI_MAX_DIMS];
    const char *rows[EPI_MAX_DIMS];
    epi_options o =
        EPI_OPTIONS(.dims = dims, .dim_count = epi_program_dim_count(program), .type = how.type,
                    .types = types, .type_count = part->graph.tensor_count, .threads = how.threads,
                    .algebra = how.algebra, .row_axes = rows); /* a weight may come first in a part */
    epi_kernel *k = NULL;
    epi_error err = {0};
    bind_types(part, types);
    for (int i = 0; i < o.dim_count; i++)
        for (int d = 0; d < part->graph.dim_count; d++)
            if (!strcmp(epi_program_dim(program, i), part->graph.dims[d])) {
                dims[i] = (epi_dim_binding){epi_program_dim(program, i), h->whole->spec.sizes[d]};
                if (h->whole->spec.is_row[d])
                    rows[o.row_axis_count++] = dims[i].name;
            }
    check(epi_kernel_compile(program, &o, &k, &err) == EPI_OK, "a part compiles: %s", err.message);
    return k;
}

/* Prints a part, parses the print and runs that. */
static bool run_part(const by_hand *h, int index, way how, const problem *p) {
    const epi_part *part = h->whole->parts[index].part;
    epi_text text = {0}, again = {0};
    epi_tensor args[2 * EPI_MAX_TENSORS];
    int64_t strides[EPI_PART_SLICES][EPI_MAX_AXES];
    epi_graph_print(&part->graph, "part", &text);
    epi_module *m = parsed(ctx, text.data);
    const epi_program *program = m ? epi_module_program(m, 0) : NULL;
    epi_kernel *k = m ? compile_part(h, part, program, how) : NULL;
    if (m) {
        epi_graph_print(&program->graph, "part", &again);
        check(!strcmp(text.data, again.data), "a part prints as it was:\n%s\n%s", text.data, again.data);
    }
    for (int t = 0, slices = 0; t < part->graph.tensor_count; t++) {
        args[t] = part->tensors[t].tensor >= 0 ? p->args[part->tensors[t].tensor]
                                               : (epi_tensor){h->values[part->tensors[t].value], NULL};
        if (!part->slices[t].memory.count)
            continue;
        epi_ref own = {.axes = part->graph.tensors[t].axes};
        int64_t begin = epi_ref_lay_out(&own, &part->slices[t], args[t].strides, h->whole->spec.sizes);
        memcpy(strides[slices], own.strides, sizeof own.strides);
        args[t].data = (char *)args[t].data + begin * (int64_t)epi_dtype_size(part->types[t]);
        args[t].strides = strides[slices++];
    }
    if (k) {
        epi_kernel_info info;
        epi_kernel_get_info(k, &info);
        check(strcmp(info.mainloop, "parts") != 0 || has_large(k), "a part is not cut again:\n%s", text.data);
    }
    bool ok = run_on(k, args, part->graph.tensor_count);
    epi_kernel_free(k);
    epi_module_free(m);
    epi_text_free(&text);
    epi_text_free(&again);
    return ok;
}

static void compare_by_hand(const ran *whole, way how, const char *label) {
    const epi_kernel *k = whole->k;
    problem p;
    by_hand h = {.whole = k, .values = calloc((size_t)k->cut.value_count + 1, sizeof(unsigned char *))};
    bool ok = problem_make(&p, whole->program, k, LAYOUT_PLAIN);
    problem_fill(&p, how.seed);
    for (int i = 0; i < k->cut.value_count; i++)
        h.values[i] = aligned_alloc(64, (size_t)epi_round_up(k->cut.values[i].bytes + 64, 64));
    for (int i = 0; i < k->part_count && ok; i++)
        ok = run_part(&h, i, how, &p);
    for (int t = p.inputs; t < p.count && ok; t++)
        check(same_bits(&p.t[t], &whole->p.t[t]), "%s: output %d has the same bits from its parts", label,
              t - p.inputs);
    for (int i = 0; i < k->cut.value_count; i++)
        free(h.values[i]);
    free(h.values);
    problem_free(&p);
}

/* ---- one program ---- */

/* Values that are alive at once do not share memory. */
static void check_memory(const epi_cut *cut, const char *label) {
    for (int i = 0; i < cut->value_count; i++)
        for (int j = 0; j < i; j++) {
            const epi_cut_value *a = &cut->values[i], *b = &cut->values[j];
            bool at_once = a->first <= b->last && b->first <= a->last && a->prepared == b->prepared;
            check(!at_once || a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset,
                  "%s: values %d and %d are alive at once and lie apart", label, i, j);
        }
    check(cut->bytes >= cut->lowest, "%s: no less memory than is alive at once", label);
}

/* Parts come after those that store what they load. */
static void check_order(const epi_cut *cut, const char *label) {
    for (int q = 0; q < cut->part_count; q++)
        for (int t = 0; t < cut->parts[q].graph.input_count; t++) {
            epi_part_tensor at = cut->parts[q].tensors[t];
            const epi_cut_value *v = at.tensor < 0 ? &cut->values[at.value] : NULL;
            check(!v || (v->part < q && v->first <= v->part && q <= v->last),
                  "%s: part %d loads what is there", label, q + 1);
            for (int r = q; r < cut->part_count && at.tensor >= 0; r++)
                for (int u = cut->parts[r].graph.input_count; u < cut->parts[r].graph.tensor_count; u++)
                    check(cut->parts[r].tensors[u].tensor != at.tensor,
                          "%s: part %d loads what part %d stores", label, q + 1, r + 1);
        }
}

/* What a pass leaves is a program: its print parses, and gives the same results within the rule. */
static void check_passes(const ran *whole, const ran *ref, const ran *naive, const char *dims, way how,
                         const char *label) {
    char *last = calloc(1, 1), what[200];
    for (int pass = 0; pass < EPI_PASS_CUT; pass++) {
        const char *name = epi_passes[pass].name;
        size_t length = epi_kernel_print_after(whole->k, name, NULL, 0);
        char *text = malloc(length + 1);
        epi_kernel_print_after(whole->k, name, text, length + 1);
        bool same = !strcmp(text, last);
        free(last);
        last = text;
        snprintf(what, sizeof what, "%.100s after %s", label, name);
        epi_module *m = same ? NULL : parsed(ctx, text);
        ran got;
        if (!m)
            continue;
        if (run_as(&got, epi_module_program(m, 0), dims, how))
            hold_against(&got, ref, naive, how.type, what);
        discard(&got);
        epi_module_free(m);
        pass_count++;
    }
    free(last);
}

/* Two laws of placing. One kernel is a cut of one part: there is no other way to it. And the cut of a part is
 * that part, whatever it was cut from. */
static void check_laws(const epi_kernel *k, const char *label) {
    check(k->cut.part_count > 0 || k->cut.refused.status != EPI_OK, "%s: one kernel is a cut", label);
    for (int q = 0; q < k->cut.part_count; q++) {
        const epi_part *part = &k->cut.parts[q];
        epi_arena arena = {0};
        epi_spec spec = k->spec;
        epi_cut again;
        epi_error err = {0};
        spec.graph = &part->graph;
        spec.types = part->types;
        spec.slices = part->slices;
        spec.kept = k->kept;
        epi_status status = epi_cut_make(&arena, &spec, &k->limits, &again, &err);
        if (check(status == EPI_OK && again.part_count == 1, "%s: part %d is %d parts: %s", label, q + 1,
                  again.part_count, err.message))
            check(epi_part_hash(&arena, part, spec.sizes) ==
                      epi_part_hash(&arena, &again.parts[0], spec.sizes),
                  "%s: the cut of part %d is that part", label, q + 1);
        epi_arena_free(&arena);
    }
}

/* The same of what GPUs can hold. */
static void check_laws_on(const epi_program *program, const char *dims, way how, int device,
                          const char *label) {
    how.device = device;
    how.type = EPI_BF16;
    epi_kernel *k = kernel_of(program, dims, how);
    if (k)
        check_laws(k, label);
    epi_kernel_free(k);
}

static void check_program(const epi_program *program, const char *dims, way how, const char *label) {
    ran got, ref = {0}, naive = {0};
    how.seed = 3;
    if (run_as(&got, program, dims, how) && yardsticks(&ref, &naive, program, dims, how)) {
        hold_against(&got, &ref, &naive, how.type, label);
        check_passes(&got, &ref, &naive, dims, how, label);
        check_laws(got.k, label);
        check_laws_on(program, dims, how, -80, label);
        check_laws_on(program, dims, how, -90, label);
        if (got.k->part_count > 1) {
            cut_count++;
            part_count += got.k->part_count;
            check_memory(&got.k->cut, label);
            check_order(&got.k->cut, label);
            compare_by_hand(&got, how, label);
        }
    }
    discard(&got);
    discard(&ref);
    discard(&naive);
}

/* The same with every input marked as one that does not change from call to call. */
static void check_marked(epi_program *program, const char *dims, way how, const char *label) {
    char marked[128];
    snprintf(marked, sizeof marked, "%.100s of params", label);
    for (int t = 0; t < program->graph.input_count; t++)
        program->graph.tensors[t].param = !program->graph.tensors[t].cotangent;
    epi_kernel *k = kernel_of(program, dims, how);
    if (k && epi_kernel_prepare_size(k)) {
        prepared_count++;
        check_program(program, dims, how, marked);
    }
    epi_kernel_free(k);
    for (int t = 0; t < program->graph.input_count; t++)
        program->graph.tensors[t].param = false;
}

static void check_both(epi_program *program, const char *dims, way how, const char *label) {
    check_program(program, dims, how, label);
    check_marked(program, dims, how, label);
}

/* On Hopper no product of 16-bit tensors runs on the plain mainloop, also where its operands are computed. */
static void check_mainloop(const epi_program *program, const char *dims) {
    char how[16384];
    epi_kernel *k = kernel_of(program, dims, (way){.type = EPI_BF16, .device = -90});
    if (k) {
        epi_kernel_describe(k, how, sizeof how);
        check(!strstr(how, "any_64x64"), "%s: no plain mainloop:\n%s", epi_program_name(program), how);
    }
    epi_kernel_free(k);
}

/* Nodes of some kind: in parts with a product, in others; and parts. */
typedef struct node_counts {
    int on_tiles, elsewhere, parts;
} node_counts;

static bool is_reduction(epi_op op) {
    return epi_ops[op].cls == EPI_CLASS_REDUCE;
}

static bool is_variance(epi_op op) {
    return op == EPI_OP_VAR;
}

static bool is_sum(epi_op op) {
    return op == EPI_OP_SUM;
}

static node_counts count_nodes(const epi_program *program, const char *dims, way how,
                               bool (*counts)(epi_op)) {
    epi_kernel *k = kernel_of(program, dims, how);
    node_counts all = {0};
    if (!k)
        return (node_counts){-1, -1, -1};
    for (int p = 0; p < k->part_count; p++) {
        const epi_graph *g = k->parts[p].part ? &k->parts[p].part->graph : k->spec.graph;
        int found = 0, products = 0;
        for (int n = 0; n < g->node_count; n++) {
            found += g->live[n] && counts(g->nodes[n].op);
            products += g->live[n] && g->nodes[n].op == EPI_OP_MATMUL;
        }
        *(products ? &all.on_tiles : &all.elsewhere) += found;
    }
    all.parts = k->part_count;
    epi_kernel_free(k);
    return all;
}

/* A variance leaves a product's tile as one reduction; rows make the others, by two. */
static void check_variances(const epi_program *p, const char *dims) {
    for (int device = 0; device >= -90; device -= 90) {
        node_counts c =
            count_nodes(p, dims, (way){.device = device, .algebra = EPI_ALGEBRA_WRITTEN}, is_variance);
        check(!c.elsewhere, "%s: %d variances are not on a product's tile", epi_program_name(p), c.elsewhere);
    }
}

/* ---- the folder ---- */

/* Each program in two types, as it is and with its inputs as params. */
static void check_file(const char *path) {
    epi_module *m = parsed_file(ctx, path);
    bool bundled = !strstr(path, "cuts.epi");
    for (int i = 0; m && i < epi_module_count(m); i++) {
        epi_program *p = &m->programs[i];
        char dims[400] = "";
        bool many = epi_program_dim_count(p) > 4; /* axes: attention's scores have five */
        for (int d = 0; d < epi_program_dim_count(p); d++) {
            int64_t given = epi_program_dim_size(p, d);
            ADD(dims, "%s%s=%d", d ? "," : "", epi_program_dim(p, d),
                given ? (int)given : (d ? 16 << d % 3 : 37) / (many ? 4 : 1));
        }
        if (wanted("%s:%s, its plans", path, epi_program_name(p))) {
            if (bundled)
                check_mainloop(p, dims);
            check_variances(p, dims);
        }
        for (int type = EPI_F32; type <= EPI_BF16; type++)
            if (wanted("%s:%s %s", path, epi_program_name(p), epi_dtype_name((epi_dtype)type)))
                check_both(p, dims, (way){.type = (epi_dtype)type}, epi_program_name(p));
    }
    epi_module_free(m);
}

/* ---- random programs ---- */

static void check_random(int count) {
    for (rounds r = rounds_of(count); next_round(&r);) {
        maker g;
        char label[32], dims[100];
        int before = failed_count;
        make_chain(&g, r.seed);
        snprintf(label, sizeof label, "seed %lu", r.seed);
        epi_module *m = parsed(ctx, g.text);
        int t = 1 + random_below(&g.s, 40), d = 2 + 2 * random_below(&g.s, 20),
            f = 2 + 2 * random_below(&g.s, 20), b = 1 + random_below(&g.s, 4);
        snprintf(dims, sizeof dims, "T=%d,D=%d,F=%d,B=%d", t, d, f, b);
        if (m)
            check_both(&m->programs[r.seed % 4 == 3], dims,
                       (way){.threads = 1 + (int)(r.seed % 2), .type = r.seed % 3 ? EPI_F32 : EPI_BF16},
                       label);
        if (failed_count > before)
            printf("%s", g.text);
        epi_module_free(m);
    }
}

/* ---- programs for one thing each ---- */

/* Equal parts share a kernel: each still gets its own tensors. */
static void check_layers(void) {
    epi_text text = llama_layers(4);
    epi_module *m = parsed(ctx, text.data);
    for (int type = EPI_F32; m && type <= EPI_BF16; type++)
        check_program(epi_module_program(m, 0), "T=13,D=24,F=40", (way){.type = (epi_dtype)type}, "layers");
    epi_module_free(m);
    epi_text_free(&text);
}

/* Of a kernel's values between parts: how many have this type, and one of these expressions where there are any. */
static int count_values(const epi_kernel *k, epi_dtype type, const char *expression, const char *other) {
    epi_value_info v;
    int count = 0;
    for (int i = 0; k && epi_kernel_value(k, i, &v) == EPI_OK; i++)
        count += v.type == type &&
                 (!expression || !strcmp(v.expression, expression) || !strcmp(v.expression, other));
    return count;
}

/* The softmax wants 2*h of the first product, which nobody stores yet, and the last product wants h: it is
 * fewer bytes to store h alone. */
static void check_stored_once(const epi_program *p, const char *dims) {
    epi_kernel *k = kernel_of(p, dims, (way){0});
    int products = count_values(k, EPI_F32, "x @ w", "x @ w"),
        scaled = count_values(k, EPI_F32, "2*h", "2*(x @ w)");
    check(products == 1 && scaled == 0, "h is stored (%d) and 2*h is not (%d)", products, scaled);
    epi_kernel_free(k);
}

/* Is one value of the program kept as f32, and others as bf16? */
static void check_kept(const epi_program *p, const char *dims, way how) {
    epi_kernel *k = kernel_of(p, dims, how);
    int kept = count_values(k, EPI_F32, "x @ w", "x @ w"), others = count_values(k, EPI_BF16, NULL, NULL);
    check(kept == 1 && others > 0, "h is kept as f32 (%d), others as bf16 (%d)", kept, others);
    epi_kernel_free(k);
}

/* A type on an assignment says how the value is stored if it is; on chip it changes nothing. A text that is made of
 * the graph says so, too, also of a value that is an output. */
static void check_stored_types(void) {
    static const char dims[] = "T=50,D=32,F=264"; /* rows that no tile holds */
    epi_module *m = parsed(ctx, "kept(x[T,D], w[F,D], v[D,F]) -> (y[T,D], z[T,F]) {\n"
                                "    h: f32 = x @ w\n"
                                "    a: f32, b = pairs(h, F)\n"
                                "    n = join(a*b, a, F)*rsqrt(mean(h*h, F) + 1)\n"
                                "    y = n @ v + sum(h, F)\n"
                                "    z = h\n"
                                "}\n"
                                "typed(x[T,D], w[F,D]) -> y[T,F] { h: bf16 = x @ w  y = silu(h) }\n"
                                "plain(x[T,D], w[F,D]) -> y[T,F] { h = x @ w  y = silu(h) }\n"
                                "output(x[T,D], w[F,D], v[D,F]) -> (z[T,F], y[T,D]) {\n"
                                "    h: f32 = x @ w\n"
                                "    z = h\n"
                                "    y = tanh(h - mean(h, F)) @ v\n"
                                "}\n");
    way how = {.type = EPI_BF16,
               .algebra = EPI_ALGEBRA_WRITTEN}; /* with the scale past the product h is not stored */
    epi_text text = {0};
    ran typed, plain = {0};
    check_program(epi_module_program(m, 0), dims, how, "kept");
    check_kept(epi_module_program(m, 0), dims, how);
    epi_graph_print(&epi_module_program(m, 3)->graph, "output", &text);
    epi_module *printed = parsed(ctx, text.data);
    if (printed)
        check_kept(epi_module_program(printed, 0), dims, how);
    how.type = EPI_F32;
    if (run_as(&typed, epi_module_program(m, 1), dims, how) &&
        run_as(&plain, epi_module_program(m, 2), dims, how))
        check(same_outputs(&typed, &plain), "a type of what is not stored changes no bit");
    discard(&typed);
    discard(&plain);
    epi_module_free(printed);
    epi_text_free(&text);
    epi_module_free(m);
}

/* Nor is it lost where the value is replaced by another: what is added up without its rename, or without a
 * number that scales an operand instead. */
static void check_types_replaced(void) {
    epi_module *m = parsed(ctx, "renamed(x[T,F], y[T,F], wa[F,D], wb[F,D]) -> z[T,D] {\n"
                                "    p = rename(y, T, P) @ wb\n"
                                "    q: f32 = rename(p, P, T)\n"
                                "    z = x @ wa + q\n"
                                "}\n"
                                "named(x[T,F], y[T,F], wa[F,D], wb[F,D]) -> z[T,D] {\n"
                                "    p: f32 = rename(y, T, P) @ wb\n"
                                "    z = rename(p, P, T) + x @ wa\n"
                                "}\n"
                                "scaled(x[T,F], w[D,F], a[R,F], b[R,D], s) -> y[T,D] {\n"
                                "    h: f32 = s*((x @ a) @ b)\n"
                                "    y = x @ w + h\n"
                                "}\n");
    for (int i = 0; m && i < epi_module_count(m); i++) {
        const epi_program *p = epi_module_program(m, i);
        /* for a GPU whose tiles do not add products up: then it is stored between two parts */
        epi_kernel *k =
            kernel_of(p, "T=64,F=64,D=64,R=16", (way){.type = EPI_BF16, .device = i == 2 ? 0 : -80});
        int kept = count_values(k, EPI_F32, NULL, NULL);
        check(kept == 1, "%s: the value that is declared as f32 is stored so (%d)", epi_program_name(p),
              kept);
        epi_kernel_free(k);
    }
    epi_module_free(m);
}

/* A log-sum-exp down the rows is no kernel of rows on a GPU, also where it is stored in two types: it is a
 * pass, and what has 16 bits is a copy of what others load. */
static void check_refused_copies(const epi_program *p, const char *dims) {
    for (int device = -80; device >= -90; device -= 10)
        check_laws_on(p, dims, (way){0}, device, "refused copies");
}

/* An index that a part stores for another is exact: 16 bits would hold no more than 256 of them. */
static void check_stored_index(const epi_program *p, const char *dims) {
    epi_kernel *k = kernel_of(p, dims, (way){.type = EPI_BF16});
    epi_kernel_info info = {0};
    check(count_values(k, EPI_F32, "max(ids - 1, 0)", "") == 1, "the index is stored as f32");
    if (k)
        epi_kernel_get_info(k, &info);
    check(info.bytes_fused < 9 * 33 * (4 + 2 * 4 + 3 * 2 * 16 + 2 * 8) + 2 * 8 * 16 + 1,
          "gather moves what it takes: %g bytes", info.bytes_fused);
    epi_kernel_free(k);
}

/* A step of training from token ids: rows are all axes of the ids, so that what is made of tokens lies token
 * by token; and of the logits, which a norm's scale leaves and a loss picks some of, one form is stored. */
static void check_step(void) {
    epi_module *m =
        parsed(ctx, "model(ids: i32[B,S], next: i32[B,S], table[V,D], g[D], w[H,E,D], u[D,H,E]) -> loss {\n"
                    "    x = table[ids]\n"
                    "    k = rmsnorm(x, g, 1e-5) @ w\n"
                    "    r = rename(k, S, R)\n"
                    "    s = softmax(where(index(R) <= index(S), sum(k*r, E), -inf), R)\n"
                    "    z = rmsnorm(x + sum(s*r, R) @ u, g, 1e-5) @ table\n"
                    "    loss = mean(logsumexp(z, V) - gather(z, next, V), B, S)\n"
                    "}\n"
                    "step(ids: i32[B,S], next: i32[B,S], table[V,D], g[D], w[H,E,D], u[D,H,E])\n"
                    "    -> (loss, d_table[V,D], d_g[D], d_w[H,E,D], d_u[D,H,E]) {\n"
                    "    loss = model(ids, next, table, g, w, u)\n"
                    "    d_table, d_g, d_w, d_u = grad(model, table, g, w, u)(ids, next, table, g, w, u, 1)\n"
                    "}\n");
    const epi_program *p = m ? epi_module_program(m, 1) : NULL;
    check_program(p, "B=2,S=40,V=320,D=16,H=3,E=8", (way){0}, "a step");
    epi_kernel *k = kernel_of(p, "B=2,S=40,V=32768,D=1024,H=3,E=8", (way){.type = EPI_BF16, .device = -90});
    epi_value_info v;
    int logits = 0;
    char text[1 << 12];
    for (int i = 0; k && epi_kernel_value(k, i, &v) == EPI_OK; i++)
        logits += v.bytes == 2 * 40 * 32768 * 2;
    check(logits == 2, "logits and their gradient are stored, each once: %d", logits);
    for (int i = 0; k && epi_kernel_part_print(k, i, text, sizeof text); i++)
        check(!strstr(text, "E,R]") && !strstr(text, "H,R,") && !strstr(text, "E,S]") &&
                  !strstr(text, "H,S,"),
              "tokens come before heads: %s", text);
    epi_kernel_free(k);
    epi_module_free(m);
}

/* A value between parts lies as what is read beside it: a mask of columns that is written first turns nothing
 * over. */
static void check_stored_order(const epi_program *p, const char *dims) {
    epi_kernel *k = kernel_of(p, dims, (way){0});
    int turned = 0, seen = 0;
    for (int q = 0; k && q < k->cut.part_count; q++) {
        const epi_graph *g = &k->cut.parts[q].graph;
        for (int t = 0; t < g->tensor_count; t++) {
            const epi_axes *axes = &g->tensors[t].axes;
            bool both =
                axes->count == 2 && epi_axes_find_dim(axes, 0) >= 0 && epi_axes_find_dim(axes, 2) >= 0;
            seen += both;
            turned += both && axes->at[0].dim != 0;
        }
    }
    check(seen >= 3 && !turned, "%d of %d tensors of tokens and words are turned over", turned, seen);
    epi_kernel_free(k);
}

/* Programs that are cut in a way of their own, and what else is looked at in each. */
static const struct {
    const char *name, *text, *dims;
    way how;
    void (*also)(const epi_program *p, const char *dims);
} singles[] = {
    {"stored once",
     "f(x[T,D], w[F,D]) -> y[T,F] { h = x @ w  d = softmax(2*h, F) @ w  y = d @ w + h }",
     "T=50,D=32,F=64",
     {0},
     check_stored_once},
    {"refused copies",
     "f(x[T,D], w[F,D]) -> (l[F], p[T,F]) { z = x @ w  l = logsumexp(z, T)  p = exp(z - l) }",
     "T=37,D=32,F=64",
     {0},
     check_refused_copies},
    {"a stored index",
     "f(ids: i32[B,S], w[V,D], u[F,D]) -> y[B,S,F] { y = w[max(ids - 1, 0)] @ u }",
     "B=9,S=33,V=3001,D=16,F=8",
     {.type = EPI_BF16},
     check_stored_index},
    /* values between parts are named by number, but not as a tensor of the program is */
    {"named as an input",
     "f(x[T,D], w[F,D], v4[F]) -> (y[T,D], v5[T]) { h = softmax((x @ w)*v4, F)  y = h @ w  v5 = sum(h*h, F) "
     "}",
     "T=50,D=32,F=64",
     {0},
     NULL},
    /* a part that stores a slice of an input as it is has two names for it */
    {"slices",
     "f(w[D,C=3,H]) -> (q[D,H], k[D,H]) { q = gather(w, 0, C)  k = 2*gather(w, 2, C) }",
     "D=5,H=8",
     {0},
     NULL},
    {"stored in order",
     "f(x[T,D], z[T,V], w[V,D], label: i32[T]) -> (y[T,D], u[V,D]) {\n"
     "    d = where(index(V) == label, -1, 0) + exp(z)  y = d @ w  u = d @ x }",
     "T=50,D=32,V=64",
     {0},
     check_stored_order},
    {"stored in order, of a product",
     "g(x[T,D], w[V,D], v[V,D], label: i32[T]) -> (y[T,D], u[V,D]) {\n"
     "    d = where(index(V) == label, -1, 0) + softmax(x @ w, V)  y = d @ v  u = d @ x }",
     "T=50,D=32,V=64",
     {0},
     check_stored_order},
    /* a number that scales two products with an operand in common scales each of them once */
    {"scaled",
     "scaled(x[T,D], a[K,D], c[T,K], b[F,K], w[F,D]) -> y[T,F] {\n"
     "    u = x @ a  v = silu(b)  y = x @ w + 3*(u @ v) + 3*(c @ v) }",
     "T=37,D=48,K=40,F=24",
     {0},
     NULL},
    /* what later parts load comes from an output only where that is wide enough */
    {"narrow",
     "narrow(x[T,D], w[F,D], v[K,F]) -> (m: bf16[T], u[T,K]) {\n"
     "    h = x @ w  m = rsqrt(mean(h*h, F) + 1e-6)  u = (h*m) @ v }",
     "T=37,D=48,K=40,F=24",
     {0},
     NULL},
    {"renamed",
     "renamed(x[T,D], w[F,D], v[K,F]) -> (m: bf16[P], u[T,K]) {\n"
     "    h = x @ w  r = rsqrt(mean(h*h, F) + 1e-6)  m = rename(r, T, P)  u = (h*r) @ v }",
     "T=37,D=48,K=40,F=24,P=37",
     {0},
     NULL},
};

static void check_singles(void) {
    for (size_t i = 0; i < sizeof singles / sizeof *singles; i++) {
        epi_module *m = wanted("%s", singles[i].name) ? parsed(ctx, singles[i].text) : NULL;
        if (!m)
            continue;
        check_program(epi_module_program(m, 0), singles[i].dims, singles[i].how, singles[i].name);
        if (singles[i].also)
            singles[i].also(epi_module_program(m, 0), singles[i].dims);
        epi_module_free(m);
    }
}

/* Sums that are added up are one, but not if what they sum is made by different products, nor where sums are
 * taken as they are written. */
static void check_gathered(void) {
    static const char dims[] = "T=50,D=32,F=64";
    static const int sums[2][2] = {{1, 3}, {2, 2}};
    epi_module *m = parsed(ctx, "one(x[T,D], w[F,D], a[T,F], b[T,F]) -> (y[T,F], s[T]) {\n"
                                "    y = x @ w\n"
                                "    s = sum(y*a, F) - sum(y*y*b, F) + sum(a*y*b, F)\n"
                                "}\n"
                                "two(x[T,D], w[F,D], v[F,D], a[T,F]) -> (y[T,F], z[T,F], s[T]) {\n"
                                "    y = silu(x @ w)*a\n"
                                "    z = y @ v @ w\n"
                                "    s = sum(y*a, F) + sum(z*a, F)\n"
                                "}\n");
    for (int i = 0; m && i < 4; i++) {
        const epi_program *p = epi_module_program(m, i / 2);
        const way how = {.algebra = i % 2 ? EPI_ALGEBRA_WRITTEN : EPI_ALGEBRA_FREE};
        check_program(p, dims, how, "gathered");
        node_counts c = count_nodes(p, dims, how, is_sum);
        check(c.on_tiles + c.elsewhere == sums[i / 2][i % 2], "%d sums, not %d", c.on_tiles + c.elsewhere,
              sums[i / 2][i % 2]);
    }
    epi_module_free(m);
}

/* Where rows follow a product for its statistics, as no tile has all of its columns, they make these, and
 * sums down the rows beside them; not where rows are so long that they would be read from memory twice, and
 * not where a tile more would be stored. */
static void check_spills(void) {
    static const struct {
        const char *text, *dims;
        int reductions;
    } some[] = {
        {"f(x[T,D], g[D], b[D], w[K,D], mu: f32[T], r: f32[T], dy[T,K]) "
         "-> (dx[T,D], dg: f32[D], db: f32[D], dw[K,D]) {\n"
         "    n = (x - mu)*r\n"
         "    dw = dy @ (n*g + b)\n"
         "    d = dy @ w\n"
         "    dg = sum(d*n, T)\n"
         "    db = sum(d, T)\n"
         "    dx = r*(d*g - mean(d*g, D) - n*mean(d*g*n, D))\n"
         "}\n",
         "T=37,D=320,K=40", 0},
        {"f(x[T,D], a[T,K], w[D,K]) -> (h[T,D], y[T,D]) { h = x + a @ w; y = h*rsqrt(mean(h*h, D) + 1) }",
         "T=37,D=320,K=40", 0},
        {"f(x[T,D], a[T,K], w[D,K]) -> (h[T,D], y[T,D]) { h = x + a @ w; y = h*rsqrt(mean(h*h, D) + 1) }",
         "T=37,D=17000,K=40", 1},
        /* the product itself would have to be stored beside s */
        {"f(x[T,D], a[T,K], w[D,K]) -> (s[T,D], y[T,D], m[T]) "
         "{ p = a @ w; s = tanh(p); m = max(p*x, D); y = s*m }",
         "T=37,D=2048,K=40", 1},
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        epi_module *m = wanted("spills %zu", i) ? parsed(ctx, some[i].text) : NULL;
        way how = {.type = EPI_BF16, .algebra = EPI_ALGEBRA_WRITTEN};
        if (!m)
            continue;
        for (how.device = -90; how.device <= 0; how.device += 90) {
            node_counts c = count_nodes(epi_module_program(m, 0), some[i].dims, how, is_reduction);
            check(c.on_tiles == some[i].reductions, "%s: %d reductions on tiles of products, not %d",
                  some[i].text, c.on_tiles, some[i].reductions);
        }
        how.device = 0;
        check_program(epi_module_program(m, 0), some[i].dims, how, "handed on");
        epi_module_free(m);
    }
}

/* In a long program all products hand on, or none. */
static void check_many_spills(void) {
    enum { LAYERS = 12 };
    static const char dims[] = "T=13,D=264,D2=264";
    const way how = {.algebra = EPI_ALGEBRA_WRITTEN};
    epi_text t = {0};
    epi_text_add(&t, "f(x0[T,D], w[D,D2]) -> x%d[T,D] {\n", LAYERS);
    for (int i = 0; i < LAYERS; i++)
        epi_text_add(&t,
                     "    h%d = x%d + rename(x%d, D, D2) @ w\n"
                     "    x%d = h%d*rsqrt(mean(h%d*h%d, D) + 1)\n",
                     i, i, i, i + 1, i, i, i);
    epi_text_add(&t, "}\n");
    epi_module *m = parsed(ctx, t.data);
    if (m) {
        node_counts c = count_nodes(epi_module_program(m, 0), dims, how, is_reduction);
        check(c.on_tiles == 0 && c.parts == 2 * LAYERS, "%d reductions on tiles of %d parts", c.on_tiles,
              c.parts);
        check_program(epi_module_program(m, 0), dims, how, "handed on often");
    }
    epi_module_free(m);
    epi_text_free(&t);
}

/* A sum over several axes of an input alone has them for its columns: no pass reads it, and one kernel does
 * all. */
static void check_columns(void) {
    static const char dims[] = "T=40,H=4,E=16";
    epi_module *m = parsed(ctx, "f(v[T,H,E], s: f32[T]) -> y: f32[T] { y = s*s*(sum(v, H, E)*3 + s) }\n");
    check_program(epi_module_program(m, 0), dims, (way){.type = EPI_BF16}, "columns");
    for (int device = 0; device >= -90; device -= 90) {
        char how[4096];
        epi_kernel *k = kernel_of(epi_module_program(m, 0), dims, (way){.type = EPI_BF16, .device = device});
        if (!k)
            continue;
        epi_kernel_describe(k, how, sizeof how);
        check(strstr(how, "columns [H,E]") && !strstr(how, "pass"), "%s", how);
        epi_kernel_free(k);
    }
    epi_module_free(m);
}

/* A mistake of our own is a status, with its place in the program and in the sources: a tile loads what nobody
 * has stored; and it stores what it does not have. */
static void check_internal(void) {
    static const char text[] = "f(x[T,D], w[F,D], b[F]) -> y[T,F] {\n    z = x @ w\n    y = z + b\n}\n";
    epi_module *m = parsed(ctx, text);
    epi_error err = {0};
    epi_arena arena = {0};
    bound b;
    epi_spec spec;
    epi_steps steps;
    epi_tile_program tile;
    bind_dims(&b, "T=5,D=4,F=6", EPI_F32, 0);
    if (check(m && epi_spec_bind(&arena, epi_module_program(m, 0), &b.options, NULL, &spec, &err) == EPI_OK &&
                  epi_steps_begin(&arena, &spec, &steps, &err) == EPI_OK &&
                  epi_steps_make(&arena, &steps, &err) == EPI_OK && steps.plan.fused,
              "the program has steps: %s", err.message)) {
        epi_step *last = &steps.at[steps.count - 1];
        epi_root wrong = {steps.plan.product, -1};
        check(last->plan && steps.count == 1, "the product is its only step");
        check(epi_tile_program_gemm(&arena, &spec, last->plan, 256, last->roots, last->root_count, &tile,
                                    &err) == EPI_OK &&
                  epi_tile_program_check(&tile, &steps, last, &err) == EPI_OK,
              "all that the tile loads is there");
        for (int i = 0; i < tile.instr_count; i++)
            if (tile.instrs[i].kind == EPI_INSTR_LOAD)
                tile.instrs[i].node = steps.plan.product;
        check(epi_tile_program_check(&tile, &steps, last, &err) == EPI_ERR_INTERNAL && err.line == 2 &&
                  strstr(err.message, "tile_program.c:"),
              "a tile that would load what nobody stored is refused: %d, %s", err.line, err.message);
        for (int i = 0; i < spec.graph->node_count; i++)
            if (spec.graph->nodes[i].axes.count == 1)
                wrong.node = i;
        check(epi_tile_program_gemm(&arena, &spec, last->plan, 256, &wrong, 1, &tile, &err) ==
                      EPI_ERR_INTERNAL &&
                  strstr(err.message, "tile_program.c:"),
              "a vector is no tile: %s", err.message);
        check(!strcmp(epi_status_name(EPI_ERR_INTERNAL), "internal"), "the status has a name");
    }
    epi_arena_free(&arena);
    epi_module_free(m);
}

static int parts_of(const epi_program *p, int device) {
    epi_kernel *k =
        kernel_of(p, "T=256,D=128,H=4,E=64,F=512,S=256,U=256", (way){.type = EPI_BF16, .device = device});
    int count = k ? k->part_count : 0;
    epi_kernel_free(k);
    return count;
}

/* What a backend refuses of one part it refuses of no other: two programs in one are as many parts as they
 * are apart. Of the first of each two nothing is refused; the second reduces a tile that is loaded, has two
 * products of f32 on a tile, or attention of f32. */
static void check_refused(void) {
    epi_module *m = parsed(ctx, "norm(x[T,D], w[H,E,D]) -> q[T,H,E] {\n"
                                "    z = x @ w\n    q = z*rsqrt(mean(z*z, E) + 1e-5)\n}\n"
                                "delta(y[T,D], u[H,E,D], o[T,H,E]) -> (v[T,H,E], d: f32[T,H]) {\n"
                                "    v = y @ u\n    d = sum(o*v, E)\n}\n"
                                "both(x[T,D], w[H,E,D], y[T,D], u[H,E,D], o[T,H,E])\n"
                                "        -> (q[T,H,E], v[T,H,E], d: f32[T,H]) {\n"
                                "    z = x @ w\n    q = z*rsqrt(mean(z*z, E) + 1e-5)\n"
                                "    v = y @ u\n    d = sum(o*v, E)\n}\n"
                                "gate(x[T,D], a[D,F], b[D,F]) -> h[T,F] { h = silu(x @ a)*(x @ b) }\n"
                                "gate_f32(y: f32[T,D], c: f32[D,F], d: f32[D,F]) -> g[T,F] {\n"
                                "    g = silu(y @ c)*(y @ d)\n}\n"
                                "gates(x[T,D], a[D,F], b[D,F], y: f32[T,D], c: f32[D,F], d: f32[D,F])\n"
                                "        -> (h[T,F], g[T,F]) {\n"
                                "    h = silu(x @ a)*(x @ b)\n    g = silu(y @ c)*(y @ d)\n}\n"
                                "attend(q[H,S,E], k[H,U,E], v[H,U,E]) -> o[H,S,E] {\n"
                                "    o = sum(softmax(sum(q*k, E), U)*v, U)\n}\n"
                                "attend_f32(q: f32[H,S,E], k: f32[H,U,E], v: f32[H,U,E]) -> o[H,S,E] {\n"
                                "    o = sum(softmax(sum(q*k, E), U)*v, U)\n}\n"
                                "attends(q[H,S,E], k[H,U,E], v[H,U,E], x: f32[H,S,E], y: f32[H,U,E],\n"
                                "        z: f32[H,U,E]) -> (o[H,S,E], p[H,S,E]) {\n"
                                "    o = attend(q, k, v)\n    p = attend_f32(x, y, z)\n}\n");
    for (int i = 0; i < 3 * 3; i++) {
        int device = i % 3 == 0 ? 0 : i % 3 == 1 ? -80 : -90, at = i / 3 * 3;
        int apart[2] = {parts_of(epi_module_program(m, at), device),
                        parts_of(epi_module_program(m, at + 1), device)},
            together = parts_of(epi_module_program(m, at + 2), device);
        check(together == apart[0] + apart[1], "%s on device %d: %d parts, apart %d and %d",
              epi_program_name(epi_module_program(m, at + 2)), device, together, apart[0], apart[1]);
    }
    epi_cuda_kernel *gpu = NULL;
    epi_arena arena = {0};
    epi_error err = {0};
    epi_cuda_target target = {.arch = epi_arch_of(90), .multiprocessors = 132};
    epi_kernel *k = kernel_of(epi_module_program(m, 1), "T=256,D=128,H=4,E=64", (way){.type = EPI_BF16});
    if (k && check(epi_cuda_compile(&arena, &k->spec, &target, &gpu, &err) == EPI_OK, "%s", err.message))
        check(strstr(gpu->steps.plan.reason, "of a value that is loaded") != NULL,
              "the reason is the best tile's: %s", gpu->steps.plan.reason);
    epi_cuda_kernel_free(gpu);
    epi_kernel_free(k);
    epi_arena_free(&arena);
    epi_module_free(m);
}

int main(int argc, char **argv) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    static const struct {
        const char *name;
        void (*check)(void);
    } others[] = {{"layers", check_layers},
                  {"stored types", check_stored_types},
                  {"types replaced", check_types_replaced},
                  {"a step", check_step},
                  {"gathered", check_gathered},
                  {"handed on often", check_many_spills},
                  {"columns", check_columns},
                  {"refused", check_refused},
                  {"internal", check_internal}};
    for_texts(argc > 1 ? argv[1] : "programs", check_file);
    check_file("tests/cuts.epi");
    check_random(argc > 2 ? atoi(argv[2]) : 300);
    check_singles();
    check_spills();
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (wanted("%s", others[i].name))
            others[i].check();
    printf("%d programs that passes left were parsed and run\n", pass_count);
    printf("%d programs were cut, into %d parts; %d of params have something to prepare\n", cut_count,
           part_count, prepared_count);
    epi_context_close(ctx);
    return finish();
}

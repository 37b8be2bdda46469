/* test_recurrence.c: scans of products: what the docs say of their bits, and inputs that are unlike others.
 *
 *     a sequence in pieces, from last state to first state, has the bits of the whole, also token by token;
 *     batches, threads and other heads have none to do with it;
 *     decays of 0 and above 1, an infinity, axes of no and of one element, a million steps. */
#include "ran.h"

static epi_context *ctx;
static epi_module *module;

/* Is there a part that keeps the state on chip, and no value of its size for each step? */
static void expect_recurrence(const ran *r, const char *what) {
    epi_kernel_info info;
    epi_kernel_get_info(r->k, &info);
    bool found = !strcmp(info.mainloop, "recurrence");
    for (int i = 0; i < info.parts && info.parts > 1; i++) {
        epi_part_info part;
        found |= epi_kernel_part(r->k, i, &part) == EPI_OK && !strcmp(part.info.mainloop, "recurrence");
    }
    check(found, "%s is a recurrence, not %s", what, info.mainloop);
}

/* ---- in pieces ---- */

enum { B = 2, T = 23, H = 3, N = 10, P = 37, STATE = H * N * P };

/* Copies steps [from, from + count) of a tensor of all steps, to or from one of so many. */
static void copy_steps(tensor *part, tensor *all, int64_t from, int64_t count, bool back) {
    int64_t inner = all->shape.count / (B * T);
    for (int64_t b = 0; b < B; b++)
        for (int64_t e = 0; e < count * inner; e++) {
            int64_t there = (b * T + from) * inner + e, here = b * count * inner + e;
            if (back)
                put_at(all, there, at(part, here));
            else
                put_at(part, here, at(all, there));
        }
}

/* One piece of so many steps from `from` on, which takes the state and leaves it. */
static void run_piece(ran *whole, int64_t from, int64_t count, epi_dtype type, double *state, tensor *y) {
    char dims[80];
    ran piece;
    snprintf(dims, sizeof dims, "B=%d,T=%d,H=%d,N=%d,P=%d", B, (int)count, H, N, P);
    if (made(&piece, whole->program, dims, (way){.type = type, .threads = 1})) {
        expect_recurrence(&piece, dims);
        for (int t = 0; t < piece.p.inputs; t++) {
            tensor *part = &piece.p.t[t], *all = &whole->p.t[t];
            bool steps = part->shape.rank >= 3;
            if (!strcmp(piece.program->graph.tensors[t].name, "h"))
                for (int64_t e = 0; e < B * STATE; e++)
                    put_at(part, e, state[e]);
            else if (steps)
                copy_steps(part, all, from, count, false);
            else
                for (int64_t e = 0; e < all->shape.count; e++)
                    put_at(part, e, at(all, e));
        }
        run_again(&piece);
        copy_steps(find(&piece, "y"), y, from, count, true);
        for (int64_t e = 0; e < B * STATE; e++)
            state[e] = at(find(&piece, "l"), e);
    }
    discard(&piece);
}

static void test_pieces(const char *name, epi_dtype type) {
    static const int lengths[][5] = {{T}, {1, 22}, {10, 13}, {7, 1, 15}, {5, 6, 7, 5}};
    static double state[B * STATE];
    ran whole;
    if (!run_as(&whole, epi_module_find(module, name), "B=2,T=23,H=3,N=10,P=37",
                (way){.type = type, .seed = 7})) {
        discard(&whole);
        return;
    }
    tensor *y = find(&whole, "y"), *l = find(&whole, "l"), *h = find(&whole, "h");
    tensor copy = *y;
    copy.data = calloc((size_t)y->shape.count, sizeof(double));
    for (size_t i = 0; i <= sizeof lengths / sizeof *lengths; i++) {
        bool tokens = i == sizeof lengths / sizeof *lengths;
        for (int64_t e = 0; e < B * STATE; e++)
            state[e] = at(h, e);
        for (int64_t from = 0, p = 0; from < T; p++) {
            int64_t count = tokens ? 1 : lengths[i][p];
            run_piece(&whole, from, count, type, state, &copy);
            from += count;
        }
        int wrong = 0;
        for (int64_t e = 0; e < y->shape.count; e++)
            wrong += at(&copy, e) != at(y, e);
        for (int64_t e = 0; e < B * STATE; e++)
            wrong += state[e] != at(l, e);
        check(!wrong, "%s in %s, way %d of pieces: %d elements differ", name, epi_dtype_name(type), (int)i,
              wrong);
    }
    free(copy.data);
    discard(&whole);
}

/* ---- unlike others ---- */

/* A result against f64, element by element: within so many roundings of its largest. */
static void expect_near(ran *r, ran *ref, double roundings, const char *what) {
    for (int t = r->p.inputs; t < r->p.count; t++) {
        double most = 0, off = 0;
        for (int64_t e = 0; e < r->p.t[t].shape.count; e++) {
            double x = at(&r->p.t[t], e), y = at(&ref->p.t[t], e);
            most = fmax(most, fabs(y));
            off = isnan(x) != isnan(y) ? INFINITY : isnan(y) || x == y ? off : fmax(off, fabs(x - y));
        }
        check(off <= roundings * 0x1p-24 * most || off == 0, "%s: %s is off by %g of %g", what,
              r->program->graph.tensors[t].name, off, most);
    }
}

typedef void change(ran *r);

/* Decays of 0, of 1 and above 1, in turn. */
static void change_decays(ran *r) {
    tensor *a = find(r, "a");
    for (int64_t e = 0; e < a->shape.count; e++)
        put_at(a, e, e % 5 == 0 ? 0 : e % 5 == 1 ? 1.25 : e % 5 == 2 ? 1 : e % 5 == 3 ? -0.5 : 0.9);
}

/* The first step has no history: its decay may be anything. */
static void change_first(ran *r) {
    tensor *a = find(r, "a");
    change_decays(r);
    for (int64_t e = 0; e < 3; e++)
        put_at(a, e, e ? NAN : INFINITY);
}

static void test_against(const char *name, const char *dims, double roundings, change *f) {
    const epi_program *p = epi_module_find(module, name);
    ran r, ref = {0};
    if (made(&r, p, dims, (way){.seed = 11}) &&
        made(&ref, p, dims, (way){.type = EPI_F64, .path = EPI_PATH_REFERENCE, .wide = true})) {
        if (f)
            f(&r);
        for (int t = 0; t < r.p.inputs; t++)
            for (int64_t e = 0; e < r.p.t[t].shape.count; e++)
                put_at(&ref.p.t[t], e, at(&r.p.t[t], e));
        run_again(&r);
        run_again(&ref);
        expect_near(&r, &ref, roundings, dims);
    }
    discard(&r);
    discard(&ref);
}

/* An infinity in one row of one batch: later rows of that batch have it, nobody else. */
static void test_infinity(void) {
    ran r;
    enum { STEPS = 9, WHERE = 4 };
    if (!made(&r, epi_module_find(module, "heads"), "B=3,T=9,H=2,N=8,P=40", (way){0})) {
        discard(&r);
        return;
    }
    tensor *v = find(&r, "v"), *y = find(&r, "y");
    int64_t row = y->shape.count / (3 * STEPS);
    put_at(v, (1 * STEPS + WHERE) * row + 3, INFINITY);
    run_again(&r);
    int wrong = 0;
    for (int64_t e = 0; e < y->shape.count; e++) {
        int64_t b = e / (STEPS * row), t = e / row % STEPS, column = e % row;
        bool hit = b == 1 && t >= WHERE && column == 3;
        wrong += isfinite(at(y, e)) == hit;
    }
    check(!wrong, "an infinity is where it belongs: %d elements are not", wrong);
    discard(&r);
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    module = parsed_file(ctx, "tests/recurrences.epi");
    for (int type = 0; type < 2 && module; type++) {
        test_pieces("gated", type ? EPI_BF16 : EPI_F32);
        test_pieces("stepped", type ? EPI_BF16 : EPI_F32);
    }
    if (module) {
        test_infinity();
        test_against("heads", "B=2,T=40,H=3,N=16,P=20", 64, change_decays);
        test_against("heads", "B=2,T=40,H=3,N=16,P=20", 64, change_first);
        test_against("heads_by_decay", "B=2,T=40,H=3,N=16,P=20", 64, change_decays);
        test_against("gated_by_decay", "B=2,T=41,N=16,P=20", 64, change_decays);
        static const char *const sizes[] = {"B=1,T=1,H=1,N=1,P=1", "B=2,T=0,H=1,N=3,P=2",
                                            "B=0,T=3,H=1,N=3,P=2", "B=2,T=3,H=1,N=0,P=2",
                                            "B=2,T=3,H=1,N=3,P=0"};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            test_against("heads", sizes[i], 64, NULL);
        test_against("first_step", "T=5,N=3,P=2", 64, NULL);
        test_against("first_step", "T=0,N=3,P=2", 64, NULL);
        test_against("picked", "T=5,N=3,P=2", 64, NULL);
        /* each step rounds twice, as often up as down: the root of their number, four times over */
        test_against("long", "T=1048576,N=2,P=3", 4 * 1448, NULL);
    }
    epi_module_free(module);
    epi_context_close(ctx);
    return finish();
}

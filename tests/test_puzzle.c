/* test_puzzle.c: LayerNorm and the linear layer after it, forward and all five gradients, as puzzle 22 of the
 * Mojo GPU puzzles sets the task: its shapes and its tolerance, then what those cannot see: random weights
 * and incoming gradients, prime shapes, inputs far from zero. On every device, as a chain of separate
 * programs and as the delayed form, against a plain implementation that is written here.
 *
 *     puzzle [programs]
 */
#include "ran.h"

static const char *folder;
static epi_context *ctx;

/* ---- the task ---- */

typedef enum inputs { AS_IN_THE_PUZZLE, RANDOM } inputs;

typedef struct task {
    int rows, d, f;
    inputs inputs;
    double offset;
} task;

enum { X, G, BETA, W, B, DY, INPUTS };
enum { Y, DX, DG, DBETA, DW, DB, RESULTS };
static const char *const input_names[INPUTS] = {"x", "g", "beta", "w", "b", "dy"},
                         *const result_names[RESULTS] = {"y", "dx", "dg", "dbeta", "dw", "db"};

static const float eps = 1e-5f;

typedef struct numbers {
    double *in[INPUTS], *out[RESULTS];
    int in_count[INPUTS], out_count[RESULTS];
} numbers;

static double normal(uint64_t *s) { /* Box and Muller */
    double u = 1 - random_unit(s), v = random_unit(s);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Every input is an f32. */
static bool numbers_make(numbers *n, const task *t, uint64_t seed) {
    const int in[INPUTS] = {t->rows * t->d, t->d, t->d, t->f * t->d, t->f, t->rows * t->f};
    const int out[RESULTS] = {t->rows * t->f, t->rows * t->d, t->d, t->d, t->f * t->d, t->f};
    static const double constants[INPUTS] = {[G] = 1, [DY] = 1};
    bool ok = true;
    for (int i = 0; i < INPUTS; i++) {
        n->in_count[i] = in[i];
        ok &= (n->in[i] = malloc((size_t)in[i] * sizeof(double))) != NULL;
        for (int e = 0; e < in[i] && ok; e++) {
            double scale = i == W ? 0.02 : 1, value = scale * normal(&seed);
            if (t->inputs == AS_IN_THE_PUZZLE && i != X && i != W)
                value = constants[i];
            n->in[i][e] = (double)(float)(value + (i == X ? t->offset : 0));
        }
    }
    for (int i = 0; i < RESULTS; i++) {
        n->out_count[i] = out[i];
        ok &= (n->out[i] = calloc((size_t)out[i], sizeof(double))) != NULL;
    }
    return ok;
}

static void numbers_free(numbers *n) {
    for (int i = 0; i < INPUTS; i++)
        free(n->in[i]);
    for (int i = 0; i < RESULTS; i++)
        free(n->out[i]);
}

/* ---- the plain implementation ---- */

typedef double rounding(double);

static double whole(double x) {
    return x;
}
static double to_f32(double x) {
    return (double)(float)x;
}

typedef struct row {
    double *n, *ln, *d; /* normalised; with weight and bias; the gradient of the latter */
    double mu, rstd;
} row;

static void normalise(const task *t, const numbers *v, int r, rounding *round, row *out) {
    const double *x = v->in[X] + r * t->d;
    double sum = 0, squares = 0;
    for (int i = 0; i < t->d; i++)
        sum = round(sum + x[i]);
    out->mu = round(sum / t->d);
    for (int i = 0; i < t->d; i++) {
        double c = round(x[i] - out->mu);
        squares = round(squares + round(c * c));
    }
    out->rstd = round(1 / round(sqrt(round(round(squares / t->d) + (double)eps))));
    for (int i = 0; i < t->d; i++) {
        out->n[i] = round(round(x[i] - out->mu) * out->rstd);
        out->ln[i] = round(round(out->n[i] * v->in[G][i]) + v->in[BETA][i]);
    }
}

static void forward_row(const task *t, numbers *v, int r, rounding *round, const row *at) {
    for (int j = 0; j < t->f; j++) {
        double sum = 0;
        for (int i = 0; i < t->d; i++)
            sum = round(sum + round(at->ln[i] * v->in[W][j * t->d + i]));
        v->out[Y][r * t->f + j] = round(sum + v->in[B][j]);
    }
}

static void backward_row(const task *t, numbers *v, int r, rounding *round, const row *at) {
    const double *dy = v->in[DY] + r * t->f;
    double first = 0, second = 0;
    for (int i = 0; i < t->d; i++) {
        double sum = 0;
        for (int j = 0; j < t->f; j++) {
            sum = round(sum + round(dy[j] * v->in[W][j * t->d + i]));
            double *dw = &v->out[DW][j * t->d + i];
            *dw = round(*dw + round(dy[j] * at->ln[i]));
        }
        at->d[i] = sum;
        v->out[DG][i] = round(v->out[DG][i] + round(sum * at->n[i]));
        v->out[DBETA][i] = round(v->out[DBETA][i] + sum);
        double dn = round(sum * v->in[G][i]);
        first = round(first + dn);
        second = round(second + round(dn * at->n[i]));
    }
    for (int j = 0; j < t->f; j++)
        v->out[DB][j] = round(v->out[DB][j] + dy[j]);
    for (int i = 0; i < t->d; i++) {
        double dn = round(at->d[i] * v->in[G][i]), less = round(dn - round(first / t->d));
        v->out[DX][r * t->d + i] = round(round(less - round(at->n[i] * round(second / t->d))) * at->rstd);
    }
}

/* What the delayed form may lose, by the comments in programs/layernorm_linear.epi. y is the difference of
 * two numbers of the size |mu|*rstd*sum|g*w|, each kept to 24 bits; two roundings of each, as in
 * test_properties.c. dx sees that, and the rounding of y as it is stored, through s2/D. */
typedef struct losses {
    double y, dx;
} losses;

static losses plainly(const task *t, numbers *v, rounding *round) {
    size_t bytes = (size_t)t->d * sizeof(double);
    row at = {malloc(bytes), malloc(bytes), malloc(bytes), 0, 0};
    losses most = {0};
    double sums = 0;
    for (int j = 0; j < t->f; j++) {
        double sum = 0;
        for (int i = 0; i < t->d; i++)
            sum += fabs(v->in[W][j * t->d + i] * v->in[G][i]);
        sums = fmax(sums, sum);
    }
    for (int r = 0; r < t->rows && check(at.n && at.ln && at.d, "memory"); r++) {
        double dy = 0, n = 0, stored = 0;
        normalise(t, v, r, round, &at);
        forward_row(t, v, r, round, &at);
        backward_row(t, v, r, round, &at);
        for (int j = 0; j < t->f; j++) {
            dy += fabs(v->in[DY][r * t->f + j]);
            stored = fmax(stored, 0x1p-24 * fabs(v->out[Y][r * t->f + j]));
        }
        for (int i = 0; i < t->d; i++)
            n = fmax(n, fabs(at.n[i]));
        double y = 4 * 0x1p-24 * fabs(at.mu) * at.rstd * sums;
        most.y = fmax(most.y, y);
        most.dx = fmax(most.dx, at.rstd * n * dy * (y + stored) / t->d);
    }
    free(at.n);
    free(at.ln);
    free(at.d);
    return most;
}

/* ---- chains of programs on a device ---- */

typedef struct value {
    char name[16];
    void *memory;
    int64_t count;
} value;

enum { MOST_VALUES = 32 };

typedef struct chain {
    int device;
    epi_path path;
    value v[MOST_VALUES];
    int count;
    bool ok;
    epi_error err;
} chain;

static value *chain_value(chain *c, const char *name, size_t length, int64_t count) {
    for (int i = 0; i < c->count; i++)
        if (strlen(c->v[i].name) == length && !strncmp(c->v[i].name, name, length))
            return &c->v[i];
    c->ok = c->ok && check(c->count < MOST_VALUES, "room for values");
    if (!c->ok)
        return NULL;
    value *v = &c->v[c->count++];
    snprintf(v->name, sizeof v->name, "%.*s", (int)length, name);
    v->count = count;
    c->ok = epi_device_alloc(ctx, c->device, (size_t)count * sizeof(float), &v->memory, &c->err) == EPI_OK;
    return v;
}

static void chain_put(chain *c, const char *name, const double *from, int count) {
    float *copy = malloc((size_t)count * sizeof *copy);
    value *v = chain_value(c, name, strlen(name), count);
    for (int i = 0; copy && i < count; i++)
        copy[i] = (float)from[i];
    c->ok = c->ok && copy &&
            epi_device_copy(ctx, c->device, v->memory, copy, (size_t)count * sizeof *copy, &c->err) == EPI_OK;
    free(copy);
}

static float *chain_get(chain *c, const char *name, int count) {
    float *copy = malloc((size_t)count * sizeof *copy);
    value *v = chain_value(c, name, strlen(name), count);
    c->ok = c->ok && copy && check(v->count == count, "%s has %d elements", name, count) &&
            epi_device_copy(ctx, c->device, copy, v->memory, (size_t)count * sizeof *copy, &c->err) == EPI_OK;
    return copy;
}

/* A program of a folder's file, and the values in the order of its tensors. */
typedef struct step {
    const char *file, *program, *names;
} step;

static void chain_step(chain *c, const step *s, const char *dims) {
    char path[600];
    epi_kernel *k = NULL;
    epi_tensor args[MAX_TENSORS] = {0};
    void *work = NULL;
    int n = 0;
    snprintf(path, sizeof path, "%s/%s.epi", folder, s->file);
    epi_module *m = parsed_file(ctx, path);
    const way how = {.path = c->path, .device = c->device};
    c->ok = c->ok && compile_as(epi_module_find(m, s->program), dims, how, &k, &c->err) == EPI_OK;
    for (const char *name = s->names; *name && c->ok; n++) {
        size_t length = strcspn(name, " ");
        epi_tensor_shape shape;
        c->ok = epi_kernel_tensor(k, n, &shape) == EPI_OK && shape.type == EPI_F32;
        value *v = c->ok ? chain_value(c, name, length, shape.count) : NULL;
        c->ok = c->ok && check(v->count == shape.count, "%s: %s has the size wanted", s->program, v->name);
        args[n].data = v ? v->memory : NULL;
        name += length + (name[length] == ' ');
    }
    c->ok = c->ok && epi_device_alloc(ctx, c->device, epi_kernel_workspace(k), &work, &c->err) == EPI_OK &&
            epi_kernel_start(k, args, n, work, NULL, &c->err) == EPI_OK &&
            epi_device_wait(ctx, c->device, &c->err) == EPI_OK;
    check(c->ok, "%s %s runs: %s", s->program, dims, c->err.message);
    epi_device_free(ctx, c->device, work, NULL);
    epi_kernel_free(k);
    epi_module_free(m);
}

static void chain_free(chain *c) {
    for (int i = 0; i < c->count; i++)
        epi_device_free(ctx, c->device, c->v[i].memory, NULL);
}

/* The norm, then the layer; each gradient in its turn. Or the row statistics delayed past the product, forward and
 * backward. */
static const step steps[2][7] = {
    {{"norms", "layernorm_saved", "x g beta eps ln mu rstd"},
     {"linear", "linear", "ln w b y"},
     {"matmul", "matmul_nn", "dy w dln"},
     {"norms", "layernorm_grad", "dln x g mu rstd dx dg dbeta"},
     {"linear", "linear_grad_w", "dy ln dw db"}},
    {{"layernorm_linear", "layernorm_fold", "w g beta b gw wg c"},
     {"layernorm_linear", "layernorm_stats", "x eps mu rstd"},
     {"layernorm_linear", "layernorm_linear", "x gw mu rstd wg c y"},
     {"layernorm_linear", "layernorm_linear_sums", "dy y wg c s1 s2"},
     {"layernorm_linear", "layernorm_linear_grad", "dy w x g mu rstd s1 s2 dx dg dbeta"},
     {"layernorm_linear", "layernorm_linear_grad_w", "dy x g beta mu rstd dw db"}}};

/* ---- comparing ---- */

static double largest_gap(const double *a, const double *b, int count) {
    double gap = 0;
    for (int i = 0; i < count; i++)
        gap = fmax(gap, apart(a[i], b[i]));
    return gap;
}

static void test_chain(const task *t, const numbers *ref, const numbers *naive, losses lost, int device,
                       epi_path path, bool is_delayed) {
    static const double puzzle_tolerance = 1e-4;
    epi_device_info info;
    char what[128], dims[80];
    double one = (double)eps;
    chain c = {.device = device, .path = path, .ok = true};
    epi_device_get(ctx, device, &info);
    snprintf(what, sizeof what, "%dx%d to %d at %g, %s, %s, %s", t->rows, t->d, t->f, t->offset,
             is_delayed ? "delayed" : "separate", path == EPI_PATH_FUSED ? "fused" : "unfused", info.name);
    for (int i = 0; i < INPUTS; i++)
        chain_put(&c, input_names[i], ref->in[i], ref->in_count[i]);
    chain_put(&c, "eps", &one, 1);
    snprintf(dims, sizeof dims, "T=%d,D=%d,F=%d,M=%d,N=%d,K=%d", t->rows, t->d, t->f, t->rows, t->d, t->f);
    for (const step *each = steps[is_delayed]; each->file; each++)
        chain_step(&c, each, dims);
    for (int i = 0; i < RESULTS; i++) {
        float *got = chain_get(&c, result_names[i], ref->out_count[i]);
        double error = 0, scale = 0;
        for (int e = 0; e < ref->out_count[i] && c.ok; e++) {
            error = fmax(error, apart((double)got[e], ref->out[i][e]));
            scale = fmax(scale, fabs(ref->out[i][e]));
        }
        double bound = 2 * largest_gap(naive->out[i], ref->out[i], ref->out_count[i]) + 0x1p-24 * scale;
        if (is_delayed)
            bound += i == Y ? lost.y : i == DX ? lost.dx : 0;
        check(c.ok && error <= bound, "%s: %s is off by %g, allowed %g", what, result_names[i], error, bound);
        if (t->inputs == AS_IN_THE_PUZZLE)
            check(c.ok && error < puzzle_tolerance, "%s: %s is off by %g, the puzzle allows %g", what,
                  result_names[i], error, puzzle_tolerance);
        free(got);
    }
    chain_free(&c);
}

static void test_task(const task *t, uint64_t seed) {
    numbers ref = {0}, naive = {0};
    if (check(numbers_make(&ref, t, seed) && numbers_make(&naive, t, seed), "memory")) {
        losses lost = plainly(t, &ref, whole);
        plainly(t, &naive, to_f32);
        for (int device = 0; device < epi_device_count(ctx) && device < 2; device++)
            for (int way = 0; way < 4; way++)
                test_chain(t, &ref, &naive, lost, device, way & 1 ? EPI_PATH_UNFUSED : EPI_PATH_FUSED,
                           way >= 2);
    }
    numbers_free(&ref);
    numbers_free(&naive);
}

int main(int argc, char **argv) {
    /* the puzzle's batch of 4 and sequence of 4 are 16 rows */
    static const task tasks[] = {
        {16, 8, 16, AS_IN_THE_PUZZLE, 0},
        {16, 8, 16, RANDOM, 0},
        {16, 8, 16, RANDOM, 1000},
        {37, 41, 43, RANDOM, 0},
        {37, 41, 43, RANDOM, 1000},
        {13, 257, 31, RANDOM, 0},
        {13, 257, 31, RANDOM, 1000},
        {211, 131, 67, RANDOM, 0},
        {211, 131, 67, RANDOM, 1000},
        {2, 3, 1, RANDOM, 0},
        {1, 5, 2, RANDOM, 0},
    };
    folder = argc > 1 ? argv[1] : "programs";
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
        test_task(&tasks[i], 42 + i);
    epi_context_close(ctx);
    return finish();
}

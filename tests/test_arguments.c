/* test_arguments.c: the public functions given nothing, numbers out of range and strides beyond all memory:
 * each returns a status or an empty result, and touches nothing. */
#include <limits.h>

#include "ran.h"

static epi_context *ctx;
static epi_module *module;
static const epi_program *program;
static epi_error err;
static char buf[4000];

static const epi_dim_binding dims[] = {{"T", 4}, {"D", 8}, {"F", 6}};

/* Each of these calls says that its arguments are wrong. */
static void refused(const char *what, const epi_status *status, size_t count) {
    for (size_t i = 0; i < count; i++)
        check(status[i] == EPI_ERR_ARGUMENT, "%s: call %zu is %s", what, i, epi_status_name(status[i]));
}

#define REFUSED(what, ...) \
    refused(what, (const epi_status[]){__VA_ARGS__}, sizeof(epi_status[]){__VA_ARGS__} / sizeof(epi_status))

static void test_names(void) {
    check(epi_dtype_find(NULL) == EPI_DTYPE_COUNT && epi_dtype_find("") == EPI_DTYPE_COUNT, "no type");
    check(!epi_dtype_size((epi_dtype)-1) && !epi_dtype_size((epi_dtype)99), "a type that there is not");
    check(epi_dtype_name((epi_dtype)-1) && epi_status_name((epi_status)-1), "they have names");
    check(epi_error_format(NULL, buf, sizeof buf) == 0 && !buf[0], "no error");
    check(epi_error_format(NULL, NULL, 9) == 0, "no error, no room");
    err = (epi_error){.line = -1, .column = -1, .source = "x"};
    check(epi_error_format(&err, NULL, 9) > 0, "an error, no room");
    check(epi_convert(NULL, EPI_F32, NULL, EPI_BF16, 0) == EPI_OK, "nothing is converted");
    REFUSED("from nowhere, less than nothing, to no type", epi_convert(NULL, EPI_F32, NULL, EPI_BF16, 1),
            epi_convert(buf, EPI_F32, buf, EPI_BF16, INT64_MIN),
            epi_convert(buf, (epi_dtype)-1, buf, EPI_BF16, 1));
    check(!epi_bundled_name(-1) && !epi_bundled_text(INT_MAX), "no bundled program");
    check(!epi_gpu_config_name(-1) && epi_gpu_config_find(NULL) == -1, "no configuration");
    check(!epi_gpu_arch_name(-1) && !epi_gpu_arch_name(INT_MAX) && !epi_gpu_arch_device(NULL) &&
              !epi_gpu_arch_device("sm_1"),
          "no generation");
    check(!epi_gpu_config_suits(NULL, 0, 1, EPI_ROUND_PACKED) &&
              !epi_gpu_config_suits(ctx, 0, INT_MIN, EPI_ROUND_PACKED) &&
              !epi_gpu_config_suits(ctx, INT_MAX, -90, EPI_ROUND_PACKED),
          "no configuration suits");
    check(epi_describe_abi(NULL, 9) > 0, "a description, no room");
}

static void test_devices(void) {
    epi_device_info info;
    void *memory = buf;
    check(epi_context_open(NULL, NULL) == EPI_ERR_ARGUMENT, "no context");
    epi_context_close(NULL);
    check(epi_device_count(NULL) == 0 && epi_device_find(NULL, NULL) == -1 && epi_device_why_no_gpu(NULL),
          "no devices");
    REFUSED("no device", epi_device_get_sized(ctx, 0, NULL, 0),
            epi_device_get_sized(ctx, INT_MIN, &info, sizeof info),
            epi_device_get_sized(NULL, 0, &info, sizeof info));
    check(epi_device_alloc(NULL, 0, 1, &memory, NULL) == EPI_ERR_ARGUMENT && !memory, "memory of none");
    check(epi_device_alloc(ctx, 0, SIZE_MAX, &memory, NULL) == EPI_ERR_MEMORY, "all memory");
    check(epi_device_free(ctx, 0, NULL, NULL) == EPI_OK, "NULL is freed");
    REFUSED("memory for none, a copy of nothing, nobody waits", epi_device_alloc(ctx, 0, 1, NULL, NULL),
            epi_device_copy(ctx, 0, NULL, NULL, 1, NULL), epi_device_wait(NULL, 0, NULL));
}

static void test_programs(void) {
    epi_module *m = NULL;
    epi_tensor_info info;
    size_t needed;
    REFUSED("no text", epi_module_parse(NULL, "", 0, NULL, &m, NULL),
            epi_module_parse(ctx, NULL, 0, NULL, &m, NULL), epi_module_parse(ctx, "", 0, NULL, NULL, NULL));
    check(epi_format(NULL, 0, NULL, NULL, 0, &needed, NULL) == EPI_ERR_ARGUMENT &&
              epi_format("", 0, NULL, NULL, 9, NULL, NULL) == EPI_ERR_ARGUMENT &&
              epi_format("f() -> y { y = 1 }", 18, NULL, NULL, 9, &needed, NULL) == EPI_OK,
          "formatted nowhere");
    epi_module_free(NULL);
    check(!epi_module_count(NULL) && !epi_module_program(NULL, 0) && !epi_module_find(NULL, "f") &&
              !epi_module_program(module, INT_MIN) && !epi_module_find(module, NULL),
          "no module");
    check(!*epi_program_name(NULL) && !*epi_program_comment(NULL) && !epi_program_dim_count(NULL) &&
              !epi_program_dim(NULL, 0) && !epi_program_dim(program, -1) &&
              !epi_program_dim_size(program, INT_MAX) && !epi_program_tensor_count(NULL) &&
              !epi_program_renamed(NULL, 0, NULL, NULL, NULL) &&
              !epi_program_renamed(program, INT_MIN, NULL, NULL, NULL),
          "no program");
    check(epi_program_print(NULL, buf, sizeof buf) == 0 && !buf[0] && epi_program_print(NULL, NULL, 9) == 0,
          "none is printed");
    check(epi_program_print(program, NULL, 9) > 9, "it is printed nowhere");
    REFUSED("no tensor", epi_program_tensor(NULL, 0, &info), epi_program_tensor(program, -1, &info),
            epi_program_tensor(program, 0, NULL));
}

static void test_gradients(void) {
    static deriver *const all[] = {epi_program_grad, epi_program_grad_saved, epi_program_grad_lean};
    const char *const wrt[] = {"x", NULL};
    epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 3);
    epi_module *m;
    epi_gradcheck found;
    const epi_tensor none[2] = {{NULL, NULL}, {NULL, NULL}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        REFUSED("gradients by nothing", all[i](NULL, wrt, 1, &m, NULL), all[i](program, NULL, 1, &m, NULL),
                all[i](program, wrt, 2, &m, NULL), all[i](program, wrt, INT_MIN, &m, NULL),
                all[i](program, wrt, 1, NULL, NULL));
    static const epi_type_binding types[] = {{"none", EPI_F32}, {NULL, EPI_F32}, {"x", (epi_dtype)-1}};
    check(epi_program_grad_typed(program, wrt, 1, NULL, &m, NULL) == EPI_ERR_ARGUMENT && !m &&
              epi_program_grad_typed(NULL, wrt, 1, &o, &m, NULL) == EPI_ERR_ARGUMENT &&
              epi_program_grad_typed(program, wrt, 1, &o, NULL, NULL) == EPI_ERR_ARGUMENT,
          "gradients for no types");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        epi_options typed = EPI_OPTIONS(.types = &types[i], .type_count = 1);
        check(epi_program_grad_typed(program, wrt, 1, &typed, &m, NULL) == EPI_ERR_ARGUMENT && !m,
              "gradients for a type that is none, %zu", i);
        typed.types = NULL;
        check(epi_program_grad_typed(program, wrt, 1, &typed, &m, NULL) == EPI_ERR_ARGUMENT, "no list");
    }
    for (int i = 0; i < 4; i++) { /* a type of a tensor that nobody has, and of one without a name */
        epi_type_binding named = {i % 2 ? NULL : "nobody", EPI_F32};
        epi_options typed = EPI_OPTIONS(.types = &named, .type_count = 1);
        epi_gradrun run;
        epi_status status = i < 2 ? epi_program_gradrun(program, wrt, 1, &typed, none, 1, &run, &err)
                                  : epi_program_gradrun_saved(program, wrt, 1, &typed, none, 1, &run, &err);
        check(status == EPI_ERR_ARGUMENT && strstr(err.message, "has a tensor"),
              "a run of gradients with a type of '%s'", i % 2 ? "" : "nobody");
    }
    check(epi_program_gradcheck(program, wrt, 1, &o, none, 1, &found, &err) == EPI_ERR_ARGUMENT &&
              strstr(err.message, "is NULL"),
          "inputs that are NULL");
    REFUSED("nothing to check", epi_program_gradcheck(program, wrt, 1, &o, NULL, 1, &found, NULL),
            epi_program_gradcheck(program, wrt, -1, &o, none, 1, &found, NULL));
}

static void refuse(epi_options o, epi_status want, const char *what) {
    epi_kernel *k = (epi_kernel *)(void *)buf;
    epi_status status = epi_kernel_compile(program, &o, &k, &err);
    check(status == want && !k, "%s: %d, %s", what, status, err.message);
    if (status == EPI_OK)
        epi_kernel_free(k);
}

static void test_options(void) {
    static const char *const names[] = {"T", NULL};
    static const epi_type_binding types[] = {{NULL, EPI_F32}, {"x", (epi_dtype)-1}};
    static const epi_dim_binding nameless[] = {{NULL, 4}, {"D", 8}, {"F", 6}},
                                 negative[] = {{"T", -4}, {"D", 8}, {"F", 6}},
                                 huge[] = {{"T", INT64_MAX}, {"D", 0}, {"F", INT64_MAX}};
    const epi_options o = EPI_OPTIONS(.dims = dims, .dim_count = 3);
    epi_options q;
    REFUSED("nothing is compiled", epi_kernel_compile(NULL, &o, NULL, NULL),
            epi_kernel_compile(program, NULL, NULL, NULL), epi_kernel_compile(program, &o, NULL, NULL));
#define REFUSE(want, ...) (q = o, __VA_ARGS__, refuse(q, want, #__VA_ARGS__))
    REFUSE(EPI_ERR_ARGUMENT, q.size = 0);
    REFUSE(EPI_ERR_ARGUMENT, q.dims = NULL);
    REFUSE(EPI_ERR_ARGUMENT, q.dim_count = -1);
    REFUSE(EPI_ERR_ARGUMENT, q.dims = nameless);
    REFUSE(EPI_ERR_DIMS, q.dims = negative);
    REFUSE(EPI_ERR_DIMS, q.dims = huge);
    REFUSE(EPI_ERR_ARGUMENT, q.type = (epi_dtype)-1);
    REFUSE(EPI_ERR_ARGUMENT, q.type_count = 1);
    REFUSE(EPI_ERR_ARGUMENT, q.types = types, q.type_count = -1);
    REFUSE(EPI_ERR_ARGUMENT, q.types = types, q.type_count = 1);
    REFUSE(EPI_ERR_ARGUMENT, q.types = types + 1, q.type_count = 1);
    REFUSE(EPI_ERR_UNSUPPORTED, q.device = INT_MIN);
    REFUSE(EPI_ERR_UNSUPPORTED, q.device = INT_MAX);
    REFUSE(EPI_ERR_ARGUMENT, q.threads = -1);
    REFUSE(EPI_ERR_ARGUMENT, q.path = (epi_path)-1);
    REFUSE(EPI_ERR_ARGUMENT, q.rounding = (epi_rounding)-1);
    REFUSE(EPI_ERR_ARGUMENT, q.algebra = (epi_algebra)-1);
    REFUSE(EPI_ERR_ARGUMENT, q.row_axes = names, q.row_axis_count = 2);
    REFUSE(EPI_ERR_ARGUMENT, q.row_axes = names, q.row_axis_count = -1);
    REFUSE(EPI_ERR_ARGUMENT, q.open_axes = names, q.open_axis_count = 2);
    REFUSE(EPI_ERR_ARGUMENT, q.open_axes = names, q.open_axis_count = INT_MIN);
    REFUSE(EPI_ERR_ARGUMENT, q.perturb = -1);
#undef REFUSE
}

/* What tells of a kernel, of none, and of parts that there are not. */
static void test_telling(const epi_kernel *k) {
    epi_kernel_info info;
    epi_part_info part;
    epi_value_info value;
    epi_tensor_shape shape;
    epi_kernel_get_info_sized(NULL, NULL, 0);
    epi_kernel_get_info_sized(k, NULL, 9);
    epi_kernel_get_info_sized(NULL, &info, sizeof info);
    epi_kernel_get_info_sized(k, &info, 1);
    check(!epi_kernel_workspace(NULL) && !epi_kernel_prepare_size(NULL), "the memory of none");
    check(!epi_kernel_in_place(NULL, 0, 0) && !epi_kernel_in_place(k, INT_MIN, INT_MAX), "in no place");
    REFUSED("no tensor", epi_kernel_tensor(NULL, 0, &shape), epi_kernel_tensor(k, -1, &shape),
            epi_kernel_tensor(k, 0, NULL));
    check(!epi_kernel_describe(NULL, NULL, 9) && epi_kernel_describe(k, NULL, 9) > 9, "described nowhere");
    check(!epi_kernel_print(NULL, NULL, 9) && epi_kernel_print(k, NULL, 9) > 9, "printed nowhere");
    check(!epi_kernel_source(NULL, NULL, 9) && !epi_kernel_source(k, NULL, 9), "no CUDA text");
    REFUSED("no part", epi_kernel_part_sized(NULL, 0, &part, sizeof part),
            epi_kernel_part_sized(k, -1, &part, sizeof part), epi_kernel_part_sized(k, 0, NULL, 9));
    check(!epi_kernel_part_print(NULL, 0, NULL, 9) && !epi_kernel_part_print(k, INT_MAX, buf, 9) &&
              !epi_kernel_part_describe(NULL, 0, NULL, 9) && !epi_kernel_part_describe(k, -1, NULL, 9),
          "no part is printed");
    REFUSED("no value", epi_kernel_value(NULL, 0, &value), epi_kernel_value(k, -1, &value),
            epi_kernel_value(k, 0, NULL));
}

/* Strides whose elements would lie beyond all addresses, of each tensor in turn. */
static void test_strides(const epi_kernel *k, const epi_tensor *plain, void *work) {
    static const int64_t far[][2] = {{(int64_t)1 << 61, 1},    {1, (int64_t)1 << 61},
                                     {-((int64_t)1 << 61), 1}, {INT64_MAX, 1},
                                     {INT64_MIN, 1},           {INT64_MAX / 16, INT64_MIN / 16},
                                     {(int64_t)1 << 59, 1},    {1, INT64_MIN}};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        for (int t = 0; t < 3; t++) {
            epi_tensor tensors[3] = {plain[0], plain[1], plain[2]};
            tensors[t].strides = far[i];
            epi_status status = epi_kernel_run(k, tensors, 3, work, &err);
            check(status == EPI_ERR_ARGUMENT && strstr(err.message, "stride"),
                  "strides %ld, %ld of tensor %d: %s", (long)far[i][0], (long)far[i][1], t, err.message);
        }
}

static void test_runs(const epi_kernel *k) {
    static float x[32], w[48], y[24];
    const epi_tensor tensors[] = {{x, NULL}, {w, NULL}, {y, NULL}},
                     lacks[] = {{NULL, NULL}, {w, NULL}, {y, NULL}},
                     odd[] = {{buf + 1, NULL}, {w, NULL}, {y, NULL}};
    const double numbers[3] = {0};
    const int64_t sizes[] = {-1};
    size_t bytes = epi_kernel_workspace(k);
    void *work = aligned_alloc(64, bytes);
    REFUSED("nothing runs", epi_kernel_run(NULL, tensors, 3, work, NULL),
            epi_kernel_run(k, NULL, 3, work, NULL), epi_kernel_run(k, tensors, 3, NULL, NULL),
            epi_kernel_run(k, tensors, -3, work, NULL), epi_kernel_run(k, tensors, INT_MIN, work, NULL),
            epi_kernel_run(k, lacks, 3, work, NULL), epi_kernel_run(k, odd, 3, work, NULL),
            epi_kernel_start(k, tensors, 3, work, work, NULL));
    const epi_call calls[] = {
        EPI_CALL(.count = 3, .workspace = work, .numbers = numbers),
        EPI_CALL(.tensors = tensors, .count = -3, .workspace = work, .numbers = numbers),
        EPI_CALL(.tensors = tensors, .count = 3, .numbers = numbers),
        EPI_CALL(.tensors = tensors, .count = 3, .workspace = work, .size_count = -1),
        EPI_CALL(.tensors = tensors, .count = 3, .workspace = work, .sizes = sizes),
        EPI_CALL(.tensors = tensors, .count = 3, .workspace = work, .workspace_bytes = 1),
        EPI_CALL(.tensors = tensors, .count = 3, .workspace = work, .wait = work),
        {0}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        check(epi_kernel_call(k, &calls[i], NULL) == EPI_ERR_ARGUMENT, "call %zu", i);
    REFUSED("no call", epi_kernel_call(NULL, NULL, NULL), epi_kernel_prepare(k, NULL, NULL, NULL),
            epi_kernel_workspace_at(k, sizes, -1, &bytes, NULL),
            epi_kernel_workspace_at(NULL, NULL, 0, NULL, NULL), epi_kernel_check(NULL, NULL, NULL, NULL));
    test_strides(k, tensors, work);
    free(work);
}

/* ---- memory that a call writes to ---- */

/* No tensor may lie in the workspace, though it may begin where that ends. */
static void test_workspace(void) {
    static const char *const names[] = {"input 'x'", "input 'w'", "output 'y'", "input 'a'"};
    epi_kernel *k =
        text_kernel(ctx, "f(x[T,D], w[F,D], a) -> y[T,D] { h = tanh(a*(x @ w))  y = tanh(sum(h*w, F)) }",
                    "T=4,D=8,F=8", (way){0});
    if (!k)
        return;
    static float room[4][64];
    size_t bytes = epi_kernel_workspace(k);
    char *work = aligned_alloc(64, bytes + 64 + sizeof room[0]);
    const double numbers[4] = {0, 0, 2, 0};
    for (int t = 0; t < 4; t++)
        for (int where = 0; where < 4; where++) {
            epi_tensor tensors[] = {{room[0], NULL}, {room[1], NULL}, {room[2], NULL}, {room[3], NULL}};
            float *at = (float *)(void *)(where == 0   ? work
                                          : where == 1 ? work + bytes - sizeof(float)
                                          : where == 2 ? work + bytes
                                                       : work + bytes / 2);
            tensors[t].data = at;
            bool refused = epi_kernel_run(k, tensors, 4, work, &err) == EPI_ERR_ARGUMENT &&
                           strstr(err.message, "overlaps the workspace") &&
                           strstr(err.message, names[t == 2   ? 3
                                                     : t == 3 ? 2
                                                              : t]);
            check(refused == (where != 2), "tensor %d at place %d of the workspace: %s", t, where,
                  err.message);
        }
    epi_tensor tensors[] = {{room[0], NULL}, {room[1], NULL}, {NULL, NULL}, {room[3], NULL}};
    epi_call call = EPI_CALL(.tensors = tensors, .count = 4, .workspace = work, .numbers = numbers);
    check(epi_kernel_call(k, &call, &err) == EPI_OK, "a number is put there by the call: %s", err.message);
    free(work);
    epi_kernel_free(k);
}

/* Does what is written meet anything else, but for an output in its input's place? */
static bool meet(const epi_kernel *k, const epi_tensor *tensors, int inputs, int count, size_t bytes) {
    for (int o = inputs; o < count; o++)
        for (int t = 0; t < o; t++) {
            const char *a = tensors[o].data, *b = tensors[t].data;
            if (a < b + bytes && b < a + bytes && !(a == b && epi_kernel_in_place(k, o, t)))
                return true;
        }
    return false;
}

/* Tensors anywhere in a piece of memory: a run is refused exactly where two of them meet that may not. */
static void test_apart(void) {
    enum { PAIRS = 20, SIZE = 4 };
    epi_text inputs = {0}, outputs = {0}, body = {0};
    for (int i = 0; i < PAIRS; i++) {
        epi_text_add(&inputs, "%sx%d[T]", i ? ", " : "f(", i);
        epi_text_add(&outputs, "%sy%d[T]", i ? ", " : ") -> (", i);
        epi_text_add(&body, "%sy%d = 2*x%d", i ? "  " : ") { ", i, i);
    }
    epi_text_add(&inputs, "%s%s }", outputs.data, body.data);
    epi_kernel *k = text_kernel(ctx, inputs.data, "T=4", (way){0});
    epi_text_free(&inputs);
    epi_text_free(&outputs);
    epi_text_free(&body);
    if (!k)
        return;
    static float memory[40000];
    void *work = aligned_alloc(64, epi_kernel_workspace(k));
    uint64_t state = 7;
    int refused = 0, places = 600, wrong = 0;
    for (int i = 0; i < 2000; i++, places = i % 2 ? 600 : 9000) {
        epi_tensor tensors[2 * PAIRS];
        for (int t = 0; t < 2 * PAIRS; t++) {
            bool same = t >= PAIRS && random_below(&state, 4) == 0;
            tensors[t] = (epi_tensor){
                same ? tensors[t - PAIRS].data : memory + 4 * random_below(&state, places), NULL};
        }
        bool was = epi_kernel_run(k, tensors, 2 * PAIRS, work, &err) == EPI_ERR_ARGUMENT;
        wrong += was != meet(k, tensors, PAIRS, 2 * PAIRS, SIZE * sizeof(float));
        refused += was;
    }
    check(!wrong && refused > 200 && refused < 1800, "%d of 2000 wrong, %d refused", wrong, refused);
    free(work);
    epi_kernel_free(k);
}

/* Where an axis has no elements, pointers may be NULL, and nothing is counted from them. */
static void test_empty(void) {
    static const char *const all[] = {"T=0,D=8,F=6", "T=4,D=0,F=6", "T=4,D=8,F=0", "T=0,D=0,F=0"};
    for (size_t i = 0; i < 4 * sizeof all / sizeof *all; i++) {
        epi_kernel *k = kernel_of(program, all[i / 4], (way){.path = (epi_path)(i % 4), .narrow = true});
        float x[48] = {0}, y[24] = {1};
        epi_tensor tensors[3] = {{NULL, NULL}, {NULL, NULL}, {NULL, NULL}};
        for (int t = 0; t < 3; t++) {
            epi_tensor_shape shape;
            epi_kernel_tensor(k, t, &shape);
            if (shape.count)
                tensors[t].data = t == 2 ? y : x;
        }
        check(k && run_with(k, tensors, 3, &err) == EPI_OK && y[0] == (tensors[2].data ? 0 : 1),
              "%s, path %zu: %s", all[i / 4], i % 4, err.message);
        epi_kernel_free(k);
    }
}

int main(void) {
    static const char text[] = "f(x[T,D], w[F,D]) -> y[T,F] { y = x @ w }";
    if (!check(epi_context_open(&ctx, &err) == EPI_OK, "a context"))
        return finish();
    module = parsed(ctx, text);
    program = epi_module_program(module, 0);
    epi_kernel *k = kernel_of(program, "T=4,D=8,F=6", (way){0});
    test_names();
    test_devices();
    test_programs();
    test_gradients();
    test_options();
    test_telling(k);
    test_runs(k);
    epi_kernel_free(k);
    test_workspace();
    test_apart();
    test_empty();
    epi_module_free(module);
    epi_context_close(ctx);
    return finish();
}

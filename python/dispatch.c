/* dispatch.c: programs as functions of Python and as operations of PyTorch's dispatcher, so that a call of
 * one costs what a call of PyTorch's own does.
 *
 * Nothing here is compiled or linked against PyTorch or Python. Their functions are looked up in what the
 * process has already loaded: PyTorch's stable C interface, the shim; its table for the exchange of tensors
 * (DLPack, from 2.10 on); and Python's stable interface. So one file does for all versions. What a PyTorch
 * does not have is left out, and Python goes its long way.
 *
 * An entry is a program with inputs of which some are numbers. It has plans: a kernel each, with the types,
 * the device and the sizes that it is for. Python makes entries and plans. An entry is called in two ways,
 * which differ in how they take their arguments and give their results:
 *   - called() is what a function of Python that epi_torch_function makes does;
 *   - run() is what an operation of the dispatcher does. There is one operation for each form of arguments,
 * say (entry, tensor, tensor, number) -> one result; its first argument names the entry. Where no plan fits,
 * or a kernel reports an error, the result is None, of an operation an undefined tensor, and nothing was
 * written. Then Python goes its long way, which makes the plan or tells what is wrong.
 *
 * All plans are in one table, by the sizes that they are for; a lock is held while one is looked for, and not
 * while it runs. Python owns the kernels, and frees one after it has taken its plan out: of a plan that runs,
 * or that ran since Python last asked, it is told to leave it. Entries live as long as the process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "epilog.h"

enum { MOST_TENSORS = 64, MOST_DIMS = 32, MOST_ENTRIES = 1 << 16, SMALL_WORKSPACE = 1 << 15 };
enum { SLOTS = 1 << 12, MOST_FORMS = 8 }; /* of the table of plans; ways in which dims of an entry are open */
enum {
    BUILT_FOR_MAJOR = 2,
    BUILT_FOR_MINOR = 10
}; /* the version of the shim that this file was written for */

typedef void *handle;
typedef struct object object; /* Python's */
typedef void operation(uint64_t *stack, uint64_t arguments, uint64_t results);

static struct {
    int (*library_fragment)(const char *, const char *, uint32_t, handle *);
    int (*library_implement)(const char *, const char *, const char *, uint32_t, handle *);
    int (*define)(handle, const char *);
    int (*implement)(handle, const char *, operation *);                     /* 2.9 */
    int (*implement_versioned)(handle, const char *, operation *, uint64_t); /* from 2.10 on */
    int (*data)(handle, void **), (*dim)(handle, int64_t *);
    int (*sizes)(handle, int64_t **), (*strides)(handle, int64_t **);
    int (*dtype)(handle, int32_t *), (*device_type)(handle, int32_t *), (*device_index)(handle, int32_t *);
    int (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, handle *);
    int (*undefined)(handle *), (*drop)(handle);
    int32_t (*cuda)(void), (*byte)(void), codes[EPI_DTYPE_COUNT]; /* codes: of its types */
    _Bool (*grad_enabled)(void);
    int (*threads)(void);            /* of the CPU: torch.get_num_threads() */
    int (*stream)(int32_t, void **); /* in libtorch_cuda.so: NULL without it */
    int (*guard)(int32_t, handle *), (*unguard)(handle);
} torch;

/* DLPack's description of a tensor, and the table of functions that PyTorch keeps for others; dlpack.h has
 * both. */
typedef struct {
    void *data;
    int32_t device, index;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *sizes, *strides;
    uint64_t offset;
} dl_tensor;

typedef struct {
    uint32_t major, minor;
    void *previous, *allocate, *from_object, *to_object;
    int (*borrow)(void *object, dl_tensor *out);
    int (*stream)(int device, int32_t index, void **out);
} dl_exchange;

enum { DL_MAJOR = 1, DL_CPU = 1, DL_CUDA = 2, DL_PINNED = 3 };

static struct {
    const dl_exchange *exchange;
    object *(*wrap)(handle); /* the Python object of a tensor */
    object *none, *no, *tensor, *parameter, *requires_grad, *is_neg;
    void (*hold)(object *), (*drop)(object *), (*clear)(void);
    object *(*type)(object *), *(*get)(object *, object *), *(*method)(object *, object *, ...);
    object *(*intern)(const char *), *(*tuple)(intptr_t), *(*function)(const void *, object *, object *);
    int (*truth)(object *), (*set)(object *, intptr_t, object *);
    long long (*integer)(object *);
    double (*number)(object *);
    object *(*failed)(void);
    void *(*release)(void), (*reacquire)(void *);
} python;

static epi_status (*kernel_call)(const epi_kernel *, const epi_call *, epi_error *);
static epi_status (*workspace_at)(const epi_kernel *, const int64_t *, int, size_t *, epi_error *);

typedef struct {
    int input_count, output_count, dim_count;
    struct {
        int rank;
        bool number;    /* it may be given as one */
        epi_dtype type; /* which a kernel has for it then */
        signed char dim[EPI_MAX_AXES], shift[EPI_MAX_AXES];
    } tensors[MOST_TENSORS];    /* the inputs, then the outputs */
    uint32_t forms[MOST_FORMS]; /* which dims plans of it leave open: each once */
    int form_count;
} entry;

typedef struct plan {
    struct plan *next; /* of the same slot */
    const entry *entry;
    const epi_kernel *kernel;
    const epi_kernel *beside; /* NULL, or what is to be there for all sizes that this one runs with */
    size_t workspace;         /* of a kernel without open axes */
    int32_t index;            /* of the GPU */
    int threads;              /* that a kernel of the CPU was made for */
    bool cuda, guarded;       /* guarded: it may not be the current device */
    bool recent;              /* it ran since Python last asked */
    atomic_int running;       /* how many calls of it go on; grows under the lock alone */
    int open[4], open_count;  /* dims that each run gives the size of, in the kernel's order */
    int64_t sizes[MOST_DIMS]; /* of an open dim the largest, a power of two */
    epi_dtype types[MOST_TENSORS];
} plan;

static entry *entries[MOST_ENTRIES];
static const entry no_entry;
static atomic_uint entry_count; /* changed under Python's lock alone */
static plan *slots[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the slots, and of the forms of entries */

typedef struct {
    void *data;
    int64_t rank, *sizes, *strides;
    epi_dtype type;    /* EPI_DTYPE_COUNT: none that a kernel takes */
    bool cuda, number; /* number: there is no tensor */
    int32_t index;
} argument;

static int64_t scaled(int64_t size, int shift) {
    return shift >= 0 ? size << shift : size >> -shift;
}

static int64_t unscaled(int64_t size, int shift) {
    return shift >= 0 ? size >> shift : size << -shift;
}

/* The size of each dim, as the first axis with it has it. False where arguments do not fit together. */
static bool measure(const entry *e, const argument *a, int64_t *sizes) {
    uint32_t known = 0;
    for (int i = 0; i < e->input_count; i++) {
        if (a[i].rank != e->tensors[i].rank)
            return false;
        for (int x = 0; x < e->tensors[i].rank; x++) {
            int d = e->tensors[i].dim[x], shift = e->tensors[i].shift[x];
            if (!(known >> d & 1))
                sizes[d] = unscaled(a[i].sizes[x], shift);
            known |= (uint32_t)1 << d;
            if (a[i].sizes[x] != scaled(sizes[d], shift))
                return false;
        }
    }
    return known == ((uint64_t)1 << e->dim_count) - 1;
}

/* The size that a plan has where the dim is open: each power of two has a kernel of its own. */
static int64_t largest(int64_t size) {
    int64_t power = size > 0;
    while (power < size)
        power *= 2;
    return power;
}

static size_t slot_of(const entry *e, uint32_t open, const int64_t *sizes) {
    uint64_t h = (uintptr_t)e;
    for (int d = 0; d < e->dim_count; d++) {
        h ^= (uint64_t)(open >> d & 1 ? largest(sizes[d]) : sizes[d]);
        h *= UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 32;
    }
    return h % SLOTS;
}

/* Whether a plan is for arguments of these sizes that are open in the dims of `open`. */
static bool fits(const entry *e, const plan *p, uint32_t open, const argument *a, const int64_t *sizes,
                 int threads) {
    if (p->entry != e || (!p->cuda && p->threads != threads))
        return false;
    for (int d = 0; d < e->dim_count; d++)
        if (p->sizes[d] != (open >> d & 1 ? largest(sizes[d]) : sizes[d]))
            return false;
    for (int i = 0; i < e->input_count; i++) {
        bool there = a[i].number || (a[i].cuda == p->cuda && (!p->cuda || a[i].index == p->index));
        if (a[i].type != p->types[i] || !there)
            return false;
    }
    return true;
}

static uint32_t open_dims(const plan *p) {
    uint32_t open = 0;
    for (int k = 0; k < p->open_count; k++)
        open |= (uint32_t)1 << p->open[k];
    return open;
}

/* The plan for the arguments, marked as running; or NULL. */
static plan *take_plan(const entry *e, const argument *a, const int64_t *sizes) {
    plan *found = NULL;
    int threads = torch.threads();
    pthread_mutex_lock(&lock);
    for (int f = 0; f < e->form_count && !found; f++)
        for (found = slots[slot_of(e, e->forms[f], sizes)]; found; found = found->next)
            if (open_dims(found) == e->forms[f] && fits(e, found, e->forms[f], a, sizes, threads))
                break;
    if (found) {
        found->recent = true;
        atomic_fetch_add(&found->running, 1);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static bool contiguous(const argument *a) {
    int64_t expected = 1;
    for (int64_t x = a->rank - 1; x >= 0; x--) {
        if (a->sizes[x] != 1 && a->strides[x] != expected)
            return false;
        expected *= a->sizes[x];
    }
    return true;
}

/* The results in memory of PyTorch's. False where there is none left, or one has no elements: both are for
 * Python to see to. */
static bool make_outputs(const entry *e, const plan *p, const int64_t *sizes, epi_tensor *tensors,
                         handle *made) {
    for (int o = 0; o < e->output_count; o++) {
        int at = e->input_count + o, rank = e->tensors[at].rank;
        int64_t shape[EPI_MAX_AXES], strides[EPI_MAX_AXES], count = 1;
        for (int x = rank - 1; x >= 0; x--) {
            shape[x] = scaled(sizes[(int)e->tensors[at].dim[x]], e->tensors[at].shift[x]);
            strides[x] = count;
            count *= shape[x];
        }
        if (!count || torch.empty(rank, shape, strides, torch.codes[p->types[at]], p->cuda ? torch.cuda() : 0,
                                  p->index, &made[o]) != 0)
            return false;
        if (torch.data(made[o], &tensors[at].data) != 0)
            return false;
        tensors[at].strides = NULL;
    }
    return true;
}

/* One run of a plan's kernel, into new tensors. */
static bool carry_out(const entry *e, const plan *p, const argument *a, const double *numbers,
                      const int64_t *sizes, handle *made, bool in_python) {
    epi_tensor tensors[MOST_TENSORS];
    for (int i = 0; i < e->input_count; i++) {
        tensors[i].data = NULL, tensors[i].strides = NULL;
        if (a[i].number)
            continue;
        if (!a[i].data)
            return false;
        tensors[i].data = a[i].data;
        if (!contiguous(&a[i]))
            tensors[i].strides = a[i].strides;
        if (p->cuda && (tensors[i].strides || (uintptr_t)tensors[i].data % 16))
            return false; /* Python copies it first */
    }
    int64_t open[4];
    for (int k = 0; k < p->open_count; k++)
        open[k] = sizes[p->open[k]];
    size_t bytes = p->workspace;
    if (p->open_count && p->beside && workspace_at(p->beside, open, p->open_count, &bytes, NULL) != EPI_OK)
        return false;
    if (p->open_count && workspace_at(p->kernel, open, p->open_count, &bytes, NULL) != EPI_OK)
        return false;
    if (!make_outputs(e, p, sizes, tensors, made))
        return false;
    _Alignas(64) char small[SMALL_WORKSPACE];
    handle space = NULL;
    void *workspace = small, *stream = NULL;
    int64_t length = (int64_t)bytes, one = 1;
    bool done = true;
    if (p->cuda || bytes > sizeof small)
        done =
            torch.empty(1, &length, &one, torch.byte(), p->cuda ? torch.cuda() : 0, p->index, &space) == 0 &&
            torch.data(space, &workspace) == 0;
    if (done && p->cuda)
        done = torch.stream(p->index, &stream) == 0;
    if (done) {
        epi_call call =
            EPI_CALL(.tensors = tensors, .count = e->input_count + e->output_count, .workspace = workspace,
                     .stream = stream, .numbers = numbers, .sizes = p->open_count ? open : NULL,
                     .size_count = p->open_count, .workspace_bytes = bytes);
        /* a kernel of the CPU may take long: other threads of Python go on meanwhile */
        void *state = in_python && !p->cuda ? python.release() : NULL;
        done = kernel_call(p->kernel, &call, NULL) == EPI_OK;
        if (state)
            python.reacquire(state);
    }
    if (space)
        torch.drop(space); /* PyTorch gives it to later work of this stream alone */
    return done;
}

/* Finds the plan for the arguments and runs it. False: nothing was written, and `made` is empty. */
static bool run_entry(const entry *e, const argument *a, const double *numbers, handle *made,
                      bool in_python) {
    int64_t sizes[MOST_DIMS];
    plan *p = measure(e, a, sizes) ? take_plan(e, a, sizes) : NULL;
    if (!p)
        return false;
    handle guard = NULL;
    bool done = !p->guarded || torch.guard(p->index, &guard) == 0;
    done = done && carry_out(e, p, a, numbers, sizes, made, in_python);
    if (guard)
        torch.unguard(guard);
    atomic_fetch_sub(&p->running, 1);
    for (int o = 0; o < e->output_count && !done; o++)
        if (made[o])
            torch.drop(made[o]);
    return done;
}

/* ---- operations of the dispatcher ---------------------------------------------------------------- */

static bool read_stacked(handle h, argument *a) {
    int32_t code, device;
    if (torch.dim(h, &a->rank) || torch.sizes(h, &a->sizes) || torch.strides(h, &a->strides) ||
        torch.dtype(h, &code) || torch.device_type(h, &device) || torch.device_index(h, &a->index) ||
        torch.data(h, &a->data))
        return false;
    a->type = 0;
    while (a->type < EPI_DTYPE_COUNT && torch.codes[a->type] != code)
        a->type++;
    a->cuda = device == torch.cuda(), a->number = false;
    return a->cuda || device == 0;
}

/* The operation of every form. The stack has the entry and the arguments, and then the results. */
static void run(uint64_t *stack, uint64_t arguments, uint64_t results) {
    argument a[MOST_TENSORS];
    double numbers[MOST_TENSORS];
    handle given[MOST_TENSORS], made[MOST_TENSORS] = {0};
    const entry *e = stack[0] < entry_count ? entries[stack[0]] : &no_entry;
    if (arguments != 1 + (uint64_t)e->input_count || results != (uint64_t)e->output_count)
        e = &no_entry;
    bool done = e != &no_entry;
    for (int i = 0; i < e->input_count; i++)
        if (e->tensors[i].number) {
            memcpy(&numbers[i], &stack[1 + i], sizeof numbers[i]);
            a[i] = (argument){.type = e->tensors[i].type, .number = true};
        } else {
            memcpy(&given[i], &stack[1 + i], sizeof given[i]);
            done = done && read_stacked(given[i], &a[i]);
        }
    done = done && run_entry(e, a, numbers, made, false);
    for (int i = 0; i < e->input_count; i++)
        if (!e->tensors[i].number)
            torch.drop(given[i]);
    for (uint64_t o = 0; o < results; o++) {
        if (!done)
            torch.undefined(&made[o]);
        memcpy(&stack[o], &made[o], sizeof made[o]);
    }
}

/* ---- functions of Python -------------------------------------------------------------------------- */

static bool is_true(object *o) {
    bool true_one = o && python.truth(o) > 0;
    if (o)
        python.drop(o);
    else
        python.clear();
    return true_one;
}

enum { NOT_FOR_US, NO_TENSOR, OURS, WANTS_GRADIENT };

/* A tensor of PyTorch's own classes as its table for the exchange tells of it. */
static int read_object(object *o, bool grad, argument *a) {
    dl_tensor t;
    object *type = python.type(o);
    python.drop(type); /* the object holds it */
    if (type != python.tensor && type != python.parameter)
        return NO_TENSOR;
    if (grad && is_true(python.get(o, python.requires_grad)))
        return WANTS_GRADIENT;
    if (python.exchange->borrow(o, &t) != 0) {
        python.clear();
        return NOT_FOR_US;
    }
    static const struct {
        uint8_t code, bits;
    } types[EPI_DTYPE_COUNT] = {
        [EPI_F32] = {2, 32}, [EPI_BF16] = {4, 16}, [EPI_F16] = {2, 16},  [EPI_I32] = {0, 32},
        [EPI_F64] = {2, 64}, [EPI_I64] = {0, 64},  [EPI_E4M3] = {10, 8}, [EPI_E5M2] = {12, 8},
        [EPI_I8] = {0, 8},   [EPI_U8] = {1, 8}};
    a->type = 0;
    while (a->type < EPI_DTYPE_COUNT && (types[a->type].code != t.code || types[a->type].bits != t.bits))
        a->type++;
    a->data = (char *)t.data + t.offset;
    a->rank = t.rank, a->sizes = t.sizes, a->strides = t.strides;
    a->cuda = t.device == DL_CUDA, a->index = t.index, a->number = false;
    if (!t.data || !t.strides || t.lanes != 1 || (!a->cuda && t.device != DL_CPU && t.device != DL_PINNED))
        return NOT_FOR_US;
    /* a tensor with the negative bit has its sign elsewhere than in its elements */
    if (is_true(python.method(o, python.is_neg, NULL)))
        return NOT_FOR_US;
    return OURS;
}

/* Where an input may be a number: whatever Python can make one of, but for tensors. */
static int read_number(object *o, epi_dtype type, argument *a, double *number) {
    *number = python.number(o);
    if (*number == -1 && python.failed()) {
        python.clear();
        return NOT_FOR_US;
    }
    *a = (argument){.type = type, .number = true};
    return OURS;
}

static object *answer(object *o) {
    python.hold(o);
    return o;
}

/* What a function does with its arguments; `self` is the number of the entry. The result, or a tuple of
 * several; None where Python has to go its long way, False where a tensor wants a gradient. */
static object *called(object *self, object *const *given, intptr_t count) {
    const entry *e = entries[python.integer(self)];
    argument a[MOST_TENSORS];
    double numbers[MOST_TENSORS];
    handle made[MOST_TENSORS] = {0};
    if (count != e->input_count)
        return answer(python.none);
    bool grad = torch.grad_enabled(), wanted = false;
    for (int i = 0; i < e->input_count; i++) {
        int kind = read_object(given[i], grad, &a[i]);
        if (kind == NO_TENSOR && e->tensors[i].number)
            kind = read_number(given[i], e->tensors[i].type, &a[i], &numbers[i]);
        if (kind == NOT_FOR_US || kind == NO_TENSOR)
            return answer(python.none);
        wanted = wanted || kind == WANTS_GRADIENT;
    }
    if (wanted)
        return answer(python.no);
    if (!run_entry(e, a, numbers, made, true))
        return answer(python.none);
    object *all = e->output_count > 1 ? python.tuple(e->output_count) : NULL;
    object *one = NULL;
    for (int o = 0; o < e->output_count; o++) {
        one = python.wrap(made[o]);
        torch.drop(made[o]);
        if (all)
            python.set(all, o, one);
    }
    return all ? all : one;
}

/* Of Python's stable interface: how a function is described. */
static const struct {
    const char *name;
    object *(*function)(object *, object *const *, intptr_t);
    int flags;
    const char *doc;
} definition = {"epilog", called, 0x80 /* METH_FASTCALL */, NULL};

/* ---- what Python calls --------------------------------------------------------------------------- */

static void *find(void *library, const char *name, const char **missing) {
    void *found =
        dlsym(library, name); /* of RTLD_DEFAULT, which is NULL, in everything that is loaded for all */
    if (!found && missing && !*missing)
        *missing = name;
    return found;
}

static void find_code(void *library, epi_dtype type, const char *name, const char **missing) {
    int32_t (*code)(void);
    *(void **)&code = find(library, name, missing);
    torch.codes[type] = code ? code() : -1;
}

static void take_lock(void) {
    pthread_mutex_lock(&lock);
}

static void leave_lock(void) {
    pthread_mutex_unlock(&lock);
}

/* Looks the shim up. NULL, or the name of what this PyTorch lacks. */
EPI_API const char *epi_torch_open(void *call, void *workspace) {
    void *cpu = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY),
         *cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    const char *missing = NULL;
    if (!cpu)
        return "libtorch_cpu.so";
#define FIND(field, name) *(void **)&torch.field = find(cpu, name, &missing)
    FIND(library_fragment, "aoti_torch_library_init_fragment");
    FIND(library_implement, "aoti_torch_library_init_impl");
    FIND(define, "aoti_torch_library_def");
    FIND(implement, "aoti_torch_library_impl");
    FIND(data, "aoti_torch_get_data_ptr");
    FIND(dim, "aoti_torch_get_dim");
    FIND(sizes, "aoti_torch_get_sizes");
    FIND(strides, "aoti_torch_get_strides");
    FIND(dtype, "aoti_torch_get_dtype");
    FIND(device_type, "aoti_torch_get_device_type");
    FIND(device_index, "aoti_torch_get_device_index");
    FIND(empty, "aoti_torch_empty_strided");
    FIND(undefined, "aoti_torch_new_uninitialized_tensor");
    FIND(drop, "aoti_torch_delete_tensor_object");
    FIND(cuda, "aoti_torch_device_type_cuda");
    FIND(grad_enabled, "aoti_torch_grad_mode_is_enabled");
    FIND(byte, "aoti_torch_dtype_uint8");
    FIND(threads, "_ZN2at15get_num_threadsEv"); /* at::get_num_threads(): the shim has none */
    find_code(cpu, EPI_F32, "aoti_torch_dtype_float32", &missing);
    find_code(cpu, EPI_BF16, "aoti_torch_dtype_bfloat16", &missing);
    find_code(cpu, EPI_F16, "aoti_torch_dtype_float16", &missing);
    find_code(cpu, EPI_I32, "aoti_torch_dtype_int32", &missing);
    find_code(cpu, EPI_F64, "aoti_torch_dtype_float64", &missing);
    find_code(cpu, EPI_I64, "aoti_torch_dtype_int64", &missing);
    find_code(cpu, EPI_E4M3, "aoti_torch_dtype_float8_e4m3fn", NULL); /* not in old ones */
    find_code(cpu, EPI_E5M2, "aoti_torch_dtype_float8_e5m2", NULL);
    find_code(cpu, EPI_I8, "aoti_torch_dtype_int8", &missing);
    find_code(cpu, EPI_U8, "aoti_torch_dtype_uint8", &missing);
#undef FIND
    *(void **)&torch.implement_versioned = find(cpu, "torch_library_impl", NULL);
    if (cuda) {
        *(void **)&torch.stream = find(cuda, "aoti_torch_get_current_cuda_stream", NULL);
        *(void **)&torch.guard = find(cuda, "aoti_torch_create_cuda_guard", NULL);
        *(void **)&torch.unguard = find(cuda, "aoti_torch_delete_cuda_guard", NULL);
    }
    pthread_atfork(take_lock, leave_lock, leave_lock); /* another thread may hold it */
    *(void **)&kernel_call = call;
    *(void **)&workspace_at = workspace;
    return missing;
}

/* An operation of the form that the schema has. 0, or an error of PyTorch's. */
EPI_API int epi_torch_define(const char *schema, const char *name) {
    const char *keys[] = {"CPU", "CUDA"};
    handle library;
    int failed =
        torch.library_fragment("epilog", __FILE__, __LINE__, &library) || torch.define(library, schema);
    for (int i = 0; i < 2 && !failed; i++) {
        failed = torch.library_implement("epilog", keys[i], __FILE__, __LINE__, &library);
        if (!failed)
            failed = torch.implement_versioned
                         ? torch.implement_versioned(library, name, run,
                                                     (uint64_t)BUILT_FOR_MAJOR << 56 |
                                                         (uint64_t)BUILT_FOR_MINOR << 48)
                         : torch.implement(library, name, run);
    }
    return failed; /* the libraries live as long as the process, like the operations in them */
}

/* An entry: `told` has for each tensor its rank, the type of a number or -1 where it must be a tensor, and a dim
 * and a shift for each axis.
 * Its number, or -1 where there is no room for it. */
EPI_API int64_t epi_torch_entry(int inputs, int outputs, int dims, const int64_t *told) {
    if (entry_count == MOST_ENTRIES || inputs + outputs > MOST_TENSORS || dims > MOST_DIMS)
        return -1;
    entry *e = calloc(1, sizeof *e);
    if (!e)
        return -1;
    e->input_count = inputs, e->output_count = outputs, e->dim_count = dims;
    for (int i = 0; i < inputs + outputs; i++) {
        e->tensors[i].rank = (int)*told++;
        int64_t type = *told++;
        e->tensors[i].number = type >= 0;
        e->tensors[i].type = e->tensors[i].number ? (epi_dtype)type : EPI_F32;
        for (int x = 0; x < e->tensors[i].rank; x++) {
            e->tensors[i].dim[x] = (signed char)*told++;
            e->tensors[i].shift[x] = (signed char)*told++;
        }
    }
    entries[entry_count] = e;
    return (int64_t)atomic_fetch_add(&entry_count, 1);
}

/* Puts a plan into the table; false where its entry is open in too many ways. */
static bool put(entry *e, plan *p) {
    uint32_t open = open_dims(p);
    int f = 0;
    while (f < e->form_count && e->forms[f] != open)
        f++;
    if (f == MOST_FORMS)
        return false;
    plan **slot = &slots[slot_of(e, open, p->sizes)];
    e->forms[f] = open;
    e->form_count = f == e->form_count ? f + 1 : e->form_count;
    p->next = *slot;
    *slot = p;
    return true;
}

/* A plan for an entry; sizes by dim, types of all tensors (epi_dtype). NULL where there is no room for it. */
EPI_API plan *epi_torch_plan(int64_t number, const epi_kernel *kernel, const epi_kernel *beside,
                             size_t workspace, int cuda, int index, int threads, int guarded,
                             const int64_t *sizes, const int32_t *types, const int32_t *open,
                             int open_count) {
    entry *e = entries[number];
    plan *p = calloc(1, sizeof *p);
    if (!p || (cuda && (!torch.stream || !torch.guard || !torch.unguard))) {
        free(p);
        return NULL;
    }
    p->entry = e, p->kernel = kernel, p->beside = beside, p->workspace = workspace, p->cuda = cuda != 0,
    p->guarded = guarded != 0;
    p->index = index, p->threads = threads, p->open_count = open_count;
    memcpy(p->sizes, sizes, (size_t)e->dim_count * sizeof *sizes);
    for (int i = 0; i < e->input_count + e->output_count; i++)
        p->types[i] = (epi_dtype)types[i];
    for (int k = 0; k < open_count; k++)
        p->open[k] = open[k];
    pthread_mutex_lock(&lock);
    bool is_put = put(e, p);
    pthread_mutex_unlock(&lock);
    if (is_put)
        return p;
    free(p);
    return NULL;
}

/* Takes a plan out for good. 0: it runs, or ran since this was last asked, and stays. */
EPI_API int epi_torch_forget(plan *p) {
    pthread_mutex_lock(&lock);
    bool stays = p->recent || atomic_load(&p->running) > 0;
    p->recent = false;
    plan **at = &slots[slot_of(p->entry, open_dims(p), p->sizes)];
    while (!stays && *at != p)
        at = &(*at)->next;
    if (!stays)
        *at = p->next;
    pthread_mutex_unlock(&lock);
    if (!stays)
        free(p);
    return !stays;
}

/* Looks Python's interface up, and takes what PyTorch has to tell: its table for the exchange of tensors,
 * None, False, the classes of its tensors. NULL, or what is missing. */
EPI_API const char *epi_torch_python(const void *exchange, object *none, object *no, object *tensor,
                                     object *parameter) {
    void *torch_python = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
    const char *missing = NULL;
    python.exchange = exchange;
    if (!torch_python)
        return "libtorch_python.so";
    if (!python.exchange || python.exchange->major != DL_MAJOR || !python.exchange->borrow)
        return "__dlpack_c_exchange_api__";
    *(void **)&python.wrap = find(torch_python, "_Z16THPVariable_WrapRKN2at10TensorBaseE", &missing);
#define FIND(field, name) *(void **)&python.field = find(RTLD_DEFAULT, name, &missing)
    FIND(hold, "Py_IncRef");
    FIND(drop, "Py_DecRef");
    FIND(clear, "PyErr_Clear");
    FIND(failed, "PyErr_Occurred");
    FIND(type, "PyObject_Type");
    FIND(get, "PyObject_GetAttr");
    FIND(method, "PyObject_CallMethodObjArgs");
    FIND(intern, "PyUnicode_InternFromString");
    FIND(tuple, "PyTuple_New");
    FIND(set, "PyTuple_SetItem");
    FIND(function, "PyCFunction_NewEx");
    FIND(truth, "PyObject_IsTrue");
    FIND(integer, "PyLong_AsLongLong");
    FIND(number, "PyFloat_AsDouble");
    FIND(release, "PyEval_SaveThread");
    FIND(reacquire, "PyEval_RestoreThread");
#undef FIND
    if (missing)
        return missing;
    python.none = none, python.no = no, python.tensor = tensor, python.parameter = parameter;
    python.requires_grad = python.intern("requires_grad"), python.is_neg = python.intern("is_neg");
    return python.requires_grad && python.is_neg ? NULL : "memory";
}

/* The function of Python that calls an entry. */
EPI_API object *epi_torch_function(object *number) {
    return python.function(&definition, number, NULL);
}

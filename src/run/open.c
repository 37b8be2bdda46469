/* open.c: one handle for many sizes: it keeps the kernels of the sizes that were used last.
 *
 * The caller's kernel is the one of the largest sizes. Every other combination of sizes has a kernel of its
 * own, made at the first call: the same parts, planned for these sizes. That takes planning alone. On a GPU
 * it uses the cubins of a form. A part has up to three forms: for few rows, for some, and for the largest
 * sizes. Their source does not depend on open sizes (ir/open.h). The forms for fewer rows are compiled when
 * a call has sizes other than the largest, which training steps mostly never have. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/parallel.h"
#include "run/run.h"

enum { KEPT = 64 };

/* The kernel of some sizes. Those that calls are using are never freed. */
typedef struct sized {
    int64_t sizes[EPI_MAX_OPEN];
    epi_kernel *kernel; /* NULL: none yet */
    int users;
    uint64_t used; /* when it was, by the clock of the list */
} sized;

typedef struct epi_sizes {
    pthread_mutex_t lock; /* of what follows but for the options, which do not change */
    sized kept[KEPT];
    uint64_t clock;
    epi_options options; /* the caller's, copied */
    int64_t most[EPI_MAX_OPEN];
    pthread_mutex_t making; /* held while forms are made */
    epi_kernel *owner;
    bool has_forms;
} epi_sizes;

/* ---- the options, copied ---- */

static const char *copy_name(epi_arena *arena, const char *name) {
    return name ? epi_arena_text(arena, name, strlen(name)) : NULL;
}

static const char *const *copy_names(epi_arena *arena, const char *const *names, int count) {
    const char **copy = epi_arena_alloc(arena, ((size_t)count + 1) * sizeof *copy);
    for (int i = 0; copy && i < count; i++)
        copy[i] = copy_name(arena, names[i]);
    return names ? copy : NULL;
}

/* The sizes of all dims, those of open axes replaced. */
static const epi_dim_binding *copy_dims(epi_arena *arena, const epi_options *o, const int64_t *sizes) {
    epi_dim_binding *copy = epi_arena_alloc(arena, ((size_t)o->dim_count + 1) * sizeof *copy);
    for (int i = 0; copy && i < o->dim_count; i++) {
        copy[i] = (epi_dim_binding){copy_name(arena, o->dims[i].name), o->dims[i].size};
        for (int a = 0; sizes && a < o->open_axis_count; a++)
            if (!strcmp(o->open_axes[a], o->dims[i].name))
                copy[i].size = sizes[a];
    }
    return copy;
}

static void copy_options(epi_arena *arena, const epi_options *o, epi_options *to) {
    epi_type_binding *types = epi_arena_alloc(arena, ((size_t)o->type_count + 1) * sizeof *types);
    for (int i = 0; types && i < o->type_count; i++)
        types[i] = (epi_type_binding){copy_name(arena, o->types[i].tensor), o->types[i].type};
    *to = *o;
    to->dims = copy_dims(arena, o, NULL);
    to->types = types;
    to->micro = copy_name(arena, o->micro);
    to->config = copy_name(arena, o->config);
    to->row_axes = copy_names(arena, o->row_axes, o->row_axis_count);
    to->open_axes = copy_names(arena, o->open_axes, o->open_axis_count);
    to->spent = copy_names(arena, o->spent, o->spent_count);
}

/* A kernel of the owner's program for these sizes. */
static epi_status make_sized(const epi_kernel *owner, const int64_t *sizes, bool is_form, epi_kernel **out,
                             epi_error *err) {
    epi_arena scratch = {0};
    epi_options o = owner->sizes->options;
    *out = NULL;
    o.dims = copy_dims(&scratch, &o, sizes);
    epi_status status = scratch.failed ? epi_fail(err, EPI_ERR_MEMORY, "out of memory")
                                       : epi_kernel_make(owner->program, &o, owner, is_form, out, err);
    epi_arena_free(&scratch);
    return status;
}

/* ---- forms ---- */

/* Open sizes that come to about so many rows in all, the last axis first. */
static bool sizes_of_rows(const epi_kernel *owner, int64_t rows, int64_t *sizes) {
    const epi_sizes *s = owner->sizes;
    bool fewer = false;
    for (int a = s->options.open_axis_count - 1; a >= 0; a--) {
        int64_t step = 1; /* what the program halves is a multiple of that */
        for (int i = 0; i < owner->spec.open->count; i++)
            if (!strcmp(owner->program->graph.dims[owner->spec.open->dim[i]], s->options.open_axes[a]))
                step = (int64_t)1 << owner->spec.open->halved[i];
        sizes[a] = epi_min64(s->most[a], epi_round_up(epi_max64(1, rows), step));
        rows = epi_max64(1, rows / epi_max64(1, sizes[a]));
        fewer |= sizes[a] < s->most[a];
    }
    return fewer;
}

/* Forms that are compiled side by side, and how each one ended. */
typedef struct making {
    const epi_kernel *owner;
    epi_kernel *made[EPI_MAX_FORMS - 1];
    epi_error ends[EPI_MAX_FORMS - 1];
} making;

static void make_form(void *ctx, int64_t i, int thread) {
    static const int64_t rows[EPI_MAX_FORMS - 1] = {64, 1024};
    making *m = ctx;
    int64_t sizes[EPI_MAX_OPEN];
    (void)thread;
    if (sizes_of_rows(m->owner, rows[i], sizes))
        m->ends[i].status = make_sized(m->owner, sizes, true, &m->made[i], &m->ends[i]);
}

/* Compiles the parts for few rows and for some: the owner has those for the largest sizes. A size that the
 * program cannot have has no form. */
static epi_status make_forms(epi_kernel *owner, epi_error *err) {
    making m = {.owner = owner};
    epi_status status = EPI_OK;
    epi_parallel_for(EPI_MAX_FORMS - 1, EPI_MAX_FORMS - 1, make_form, &m);
    for (int i = 0; i < EPI_MAX_FORMS - 1; i++) {
        if (m.ends[i].status == EPI_OK || m.ends[i].status == EPI_ERR_DIMS || status != EPI_OK)
            continue;
        status = m.ends[i].status;
        if (err)
            *err = m.ends[i];
    }
    int count = 0;
    for (int i = 0; i < EPI_MAX_FORMS - 1; i++)
        if (status == EPI_OK && m.made[i])
            owner->forms[count++] = m.made[i];
        else
            epi_kernel_free(m.made[i]);
    owner->form_count = count; /* from here on others read them */
    return status;
}

/* The forms, made by who needs them first. */
static epi_status need_forms(epi_sizes *s, epi_error *err) {
    pthread_mutex_lock(&s->making);
    epi_status status = s->has_forms ? EPI_OK : make_forms(s->owner, err);
    s->has_forms = status == EPI_OK;
    pthread_mutex_unlock(&s->making);
    return status;
}

epi_status epi_sizes_make(epi_kernel *kernel, const epi_options *options, epi_error *err) {
    if (options->open_axis_count > EPI_MAX_OPEN)
        return epi_fail(err, EPI_ERR_UNSUPPORTED, "at most %d axes may be open", EPI_MAX_OPEN);
    epi_sizes *s = kernel->sizes = calloc(1, sizeof *s);
    EPI_TRY(epi_has_memory(s, err));
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->making, NULL);
    s->owner = kernel;
    s->has_forms = !kernel->gpu;
    copy_options(&kernel->arena, options, &s->options);
    EPI_TRY(epi_has_memory(!kernel->arena.failed, err));
    for (int a = 0; a < options->open_axis_count; a++)
        for (int i = 0; i < kernel->program->graph.declared_count; i++)
            if (!strcmp(kernel->program->graph.dims[i], options->open_axes[a]))
                s->most[a] = kernel->spec.sizes[i];
    return options->device < 0 ? need_forms(s, err) : EPI_OK; /* texts alone are all looked at */
}

void epi_sizes_free(epi_kernel *kernel) {
    epi_sizes *s = kernel->sizes;
    if (!s)
        return;
    for (int i = 0; i < KEPT; i++)
        epi_kernel_free(s->kept[i].kernel);
    for (int i = 0; i < kernel->form_count; i++)
        epi_kernel_free(kernel->forms[i]);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->making);
    free(s);
}

void epi_sizes_describe(const epi_kernel *kernel, epi_text *out) {
    const epi_sizes *s = kernel->sizes;
    for (int a = 0; s && a < s->options.open_axis_count; a++)
        epi_text_add(out, "%s%s up to %ld", a ? ", " : "open, given at each run: ", s->options.open_axes[a],
                     (long)s->most[a]);
    if (s)
        epi_text_add(out, "\n");
}

/* ---- kernels by size ---- */

/* The kept kernel of these sizes, or NULL; under the lock. */
static sized *find(epi_sizes *s, const int64_t *sizes) {
    size_t bytes = (size_t)s->options.open_axis_count * sizeof *sizes;
    for (int i = 0; i < KEPT && s->kept[i].kernel; i++)
        if (!memcmp(s->kept[i].sizes, sizes, bytes))
            return &s->kept[i];
    return NULL;
}

/* A place that is free, or else the one that was used longest ago, of those that nobody uses; NULL: all are
 * used. */
static sized *find_place(epi_sizes *s) {
    sized *oldest = NULL;
    for (int i = 0; i < KEPT; i++) {
        if (!s->kept[i].kernel)
            return &s->kept[i];
        if (!s->kept[i].users && (!oldest || s->kept[i].used < oldest->used))
            oldest = &s->kept[i];
    }
    return oldest;
}

static const epi_kernel *use(epi_sizes *s, sized *at) {
    at->users++;
    at->used = ++s->clock;
    return at->kernel;
}

/* Puts a kernel that was just made where calls find it. Returns the one to use, and leaves in *spare one that
 * is to be freed: what gave way to it, or itself, where another thread was faster. Where all places are in
 * use, it is the one to use and to be freed after. */
static const epi_kernel *keep(epi_sizes *s, const int64_t *sizes, epi_kernel *made, epi_kernel **spare,
                              sized **at) {
    *spare = made;
    *at = find(s, sizes);
    if (*at)
        return use(s, *at);
    *at = find_place(s);
    if (!*at)
        return made;
    *spare = (*at)->kernel;
    **at = (sized){.kernel = made};
    memcpy((*at)->sizes, sizes, (size_t)s->options.open_axis_count * sizeof *sizes);
    return use(s, *at);
}

static epi_status check_sizes(const epi_kernel *kernel, const int64_t *sizes, int count, epi_error *err) {
    if (!kernel->sizes)
        return epi_fail(err, EPI_ERR_ARGUMENT,
                        "this kernel has no open axis: name open axes in the options when you compile");
    const epi_options *o = &kernel->sizes->options;
    if (count != o->open_axis_count || !sizes)
        return epi_fail(err, EPI_ERR_ARGUMENT, "%s has %d open ax%s, %d sizes were given",
                        kernel->program->ast->name, o->open_axis_count, o->open_axis_count == 1 ? "is" : "es",
                        sizes ? count : 0);
    for (int a = 0; a < count; a++)
        if (sizes[a] < 0 || sizes[a] > kernel->sizes->most[a])
            return epi_fail(err, EPI_ERR_DIMS,
                            sizes[a] < 0
                                ? "the size of axis '%s' is negative: %ld, of at most %ld"
                                : "the size of axis '%s' is %ld, more than the %ld that it was compiled for",
                            o->open_axes[a], (long)sizes[a], (long)kernel->sizes->most[a]);
    return EPI_OK;
}

/* What a call has in hand. */
typedef struct hold {
    const epi_kernel *kernel;
    sized *at;         /* where it is kept; NULL: it is the owner, or `spare` */
    epi_kernel *spare; /* to be freed at the end */
} hold;

/* The kernel of these sizes, made if it is not there yet. */
static epi_status take(const epi_kernel *owner, const int64_t *sizes, int count, hold *h, epi_error *err) {
    *h = (hold){0};
    EPI_TRY(check_sizes(owner, sizes, count, err));
    epi_sizes *s = owner->sizes;
    if (!memcmp(sizes, s->most, (size_t)count * sizeof *sizes)) {
        h->kernel = owner;
        return EPI_OK;
    }
    pthread_mutex_lock(&s->lock);
    h->at = find(s, sizes);
    h->kernel = h->at ? use(s, h->at) : NULL;
    pthread_mutex_unlock(&s->lock);
    if (h->kernel)
        return EPI_OK;
    epi_kernel *made;
    EPI_TRY(need_forms(s, err));
    EPI_TRY(make_sized(owner, sizes, false, &made, err));
    pthread_mutex_lock(&s->lock);
    h->kernel = keep(s, sizes, made, &h->spare, &h->at);
    pthread_mutex_unlock(&s->lock);
    return EPI_OK;
}

static void give_back(const epi_kernel *owner, const hold *h) {
    if (h->at) {
        pthread_mutex_lock(&owner->sizes->lock);
        h->at->users--;
        pthread_mutex_unlock(&owner->sizes->lock);
    }
    epi_kernel_free(h->spare);
}

epi_status epi_kernel_workspace_at(const epi_kernel *kernel, const int64_t *sizes, int size_count,
                                   size_t *bytes, epi_error *err) {
    hold h;
    epi_error_clear(err);
    if (!kernel || !bytes)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_kernel_workspace_at: kernel and bytes may not be NULL");
    *bytes = 0;
    EPI_TRY(take(kernel, sizes, size_count, &h, err));
    *bytes = epi_kernel_workspace(h.kernel);
    give_back(kernel, &h);
    return EPI_OK;
}

epi_status epi_sizes_call(const epi_kernel *kernel, const epi_call *call, epi_error *err) {
    hold h;
    EPI_TRY(take(kernel, call->sizes, call->size_count, &h, err));
    epi_status status = epi_kernel_carry_out(h.kernel, call, NULL, err);
    give_back(kernel, &h);
    return status;
}

/* scan.c: a recurrence along an axis as a pass over memory.
 *
 * If its axis is the fastest of the result, each row is computed along it by itself. Otherwise a stretch of
 * neighbours goes through all steps together. Stretches do not depend on the number of threads, and the bits
 * depend on neither. */
#include "base/parallel.h"
#include "cpu/cpu.h"

enum { STRETCH = 512, RESULT = 2 };

typedef struct scan {
    const epi_cpu_kernel *k;
    epi_ref ref[3];             /* a, b, and the result */
    epi_walk outer[3];          /* along what a stretch does not have */
    int64_t along[3], inner[3]; /* strides of a step, and of a stretch */
    int64_t steps, width, stretches;
    bool back;
} scan;

static unsigned char *element(const epi_ref *ref, int64_t offset) {
    return ref->data + offset * (int64_t)epi_dtype_size(ref->type);
}

/* An operand's elements as a view: in place, as one for all, or converted into tmp. */
static epi_view operand(const scan *s, int a, int64_t at, int64_t stride, int n, float *tmp) {
    if (stride == 1 && s->ref[a].type == EPI_F32)
        return (epi_view){(const float *)(const void *)element(&s->ref[a], at), 0, 1};
    s->k->strips->load(tmp, element(&s->ref[a], at), s->ref[a].type, stride ? stride : 1, stride ? n : 1);
    return (epi_view){tmp, 0, stride ? 1 : 0};
}

static void put(const scan *s, int64_t at, int64_t stride, const float *from, int n) {
    s->k->strips->store(element(&s->ref[RESULT], at), s->ref[RESULT].type, n == 1 ? 1 : stride, from, n);
}

/* All steps of neighbours, side by side. */
static void scan_columns(void *ctx, int64_t item, int thread) {
    (void)thread;
    const scan *s = ctx;
    double state[STRETCH];
    float tmp[3][STRETCH];
    int64_t row = item / s->stretches, start = item % s->stretches * STRETCH;
    int n = (int)epi_min64(STRETCH, s->width - start);
    for (int64_t k = 0; k < s->steps; k++) {
        int64_t t = s->back ? s->steps - 1 - k : k, at[3];
        epi_view v[2];
        for (int a = 0; a < 3; a++)
            at[a] = epi_walk_offset(&s->outer[a], row) + t * s->along[a] + start * s->inner[a];
        for (int a = 0; a < 2; a++)
            v[a] = operand(s, a, at[a], s->inner[a], n, tmp[a]);
        s->k->strips->scan_step(state, tmp[RESULT], v, !k, n);
        put(s, at[RESULT], s->inner[RESULT], tmp[RESULT], n);
    }
}

/* One recurrence after the other, along the row. */
static void scan_row(void *ctx, int64_t row, int thread) {
    (void)thread;
    const scan *s = ctx;
    double state = 0;
    float tmp[3][STRETCH];
    for (int64_t done = 0; done < s->steps; done += STRETCH) {
        int n = (int)epi_min64(STRETCH, s->steps - done);
        int64_t t = s->back ? s->steps - done - n : done;
        epi_view v[2];
        for (int a = 0; a < 2; a++)
            v[a] =
                operand(s, a, epi_walk_offset(&s->outer[a], row) + t * s->along[a], s->along[a], n, tmp[a]);
        s->k->strips->scan_rows(&state, tmp[RESULT], 0, v, !done, s->back, 1, n);
        put(s, epi_walk_offset(&s->outer[RESULT], row) + t * s->along[RESULT], s->along[RESULT], tmp[RESULT],
            n);
    }
}

void epi_scan_run(const epi_cpu_kernel *k, int node, const epi_ref *refs) {
    const epi_node *n = &k->spec.graph->nodes[node];
    const int64_t *sizes = k->spec.sizes;
    epi_axes rest = epi_axes_without(&n->axes, &n->over);
    scan s = {.k = k,
              .ref = {refs[n->arg[0]], refs[n->arg[1]], refs[node]},
              .steps = epi_axes_size(&n->over, sizes),
              .width = 1,
              .back = epi_ops[n->op].back};
    bool row = !rest.count || epi_ref_stride(&s.ref[RESULT], n->over.at[0]) == 1;
    epi_axis last = rest.count ? rest.at[rest.count - 1] : n->over.at[0];
    if (!row) {
        s.width = epi_axis_size(last, sizes);
        epi_axes_remove(&rest, rest.count - 1);
    }
    s.stretches = epi_ceil_div(s.width, STRETCH);
    for (int a = 0; a < 3; a++) {
        s.outer[a] = epi_walk_axes(&s.ref[a], &rest, sizes);
        s.along[a] = epi_ref_stride(&s.ref[a], n->over.at[0]);
        s.inner[a] = row ? 0 : epi_ref_stride(&s.ref[a], last);
    }
    epi_parallel_for(k->spec.threads, epi_axes_size(&rest, sizes) * s.stretches,
                     row ? scan_row : scan_columns, &s);
}

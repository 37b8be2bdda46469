/* reference_values.c: how the reference loads, stores and rounds a value. */
#include <math.h>
#include <string.h>

#include "cpu/reference.h"
#include "pass/analyse/stored.h"

typedef epi_reference eval;

double epi_reference_load(const epi_strips *s, const epi_ref *ref, int64_t offset) {
    const unsigned char *p = ref->data + offset * (int64_t)epi_dtype_size(ref->type);
    if (ref->type == EPI_F64) {
        double x;
        memcpy(&x, p, sizeof x);
        return x;
    }
    if (epi_dtype_is_integer(ref->type))
        return (double)epi_integer_load(p, ref->type);
    float x;
    s->load(&x, p, ref->type, 1, 1);
    return (double)x;
}

void epi_reference_store(const epi_strips *s, const epi_ref *ref, int64_t offset, double x) {
    unsigned char *p = ref->data + offset * (int64_t)epi_dtype_size(ref->type);
    if (ref->type == EPI_I32 && fabs(x) < 0x1p31) { /* exact where f32 is not */
        int32_t i = (int32_t)lrint(x);
        memcpy(p, &i, sizeof i);
        return;
    }
    if (ref->type == EPI_I64 && fabs(x) < 0x1p63) {
        int64_t i = llrint(x);
        memcpy(p, &i, sizeof i);
        return;
    }
    float f = (float)x;
    if (ref->type == EPI_F64)
        memcpy(p, &x, sizeof x);
    else
        s->store(p, ref->type, 1, &f, 1);
}

/* Does the operation round? Others choose, compare or cut off, or make integers: their result is exact. */
static bool rounds(epi_op op) {
    return !epi_ops[op].exact || (epi_ops[op].converts && !epi_dtype_is_whole(epi_ops[op].type));
}

/* A value of a node, perturbed. Whether up or down follows from its bits and the seed, so that threads make
 * no difference. */
static double perturbed(const eval *e, int node, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits ^ (uint64_t)e->k->spec.perturb_seed) * 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 32) * 0xd6e8feb86659fd93u;
    return e->computed[node] && rounds(e->k->spec.graph->nodes[node].op)
               ? x * (1 + (bits >> 63 ? e->k->spec.perturb : -e->k->spec.perturb))
               : x;
}

double epi_reference_rounded(const eval *e, int node, double x) {
    if (e->k->integers[node].is)
        return x;
    if (e->k->spec.perturb != 0)
        return perturbed(e, node, x);
    if (!e->naive)
        return x;
    unsigned char bytes[8];
    epi_ref one = {.data = bytes, .type = epi_stored_type(e->k->steps.said[node], false, e->k->spec.type)};
    epi_reference_store(e->k->strips, &one, 0, x);
    return epi_reference_load(e->k->strips, &one, 0);
}

epi_ref epi_reference_ref(const eval *e, int node) {
    epi_ref r = {.axes = e->k->spec.graph->nodes[node].axes, .type = EPI_F64};
    r.data = (unsigned char *)e->value[node];
    epi_ref_contiguous(&r, e->k->spec.sizes);
    return r;
}

epi_ref epi_reference_integer(const eval *e, int node) {
    epi_ref r = epi_reference_ref(e, node);
    if (e->integer[node]) {
        r.type = EPI_I64;
        r.data = (unsigned char *)e->integer[node];
    }
    return r;
}

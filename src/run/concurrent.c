/* concurrent.c: parts of a GPU kernel that run at the same time as the part before.
 *
 * By default each launch waits for the end of the one before. Products that do not need each other (queries,
 * keys and values of the same rows; gradients of weights) need not: the second starts as soon as
 * multiprocessors are free. So a short one costs no wave of its own, and nothing is idle at the end of a
 * long one.
 *
 * A *row* of parts is a run of parts of which none touches what another stores. The first waits as every
 * launch does, and only then lets the second begin. The second does not wait. It lets the third begin, and
 * waits for the end of the first when its own work is done. So everything that the row needs is there when
 * any of them begins, and a launch after the last one waits for all of them. Their own areas of the
 * workspace are disjoint. */
#include "cuda/cuda.h"
#include "run/run.h"

/* The first launch of a part, behind copies that it has nothing of where an update takes its operand's place;
 * and its last one. NULL: it has none. */
static const epi_launch *find_end(const epi_cuda_kernel *k, bool last) {
    for (int i = 0; i < k->count; i++) {
        const epi_launch *l = &k->launches[last ? k->count - 1 - i : i];
        if (!l->copies)
            return l;
    }
    return NULL;
}

/* The tensor of the program in whose memory it lies, or -1. */
static int memory_of(const epi_kernel *k, epi_part_tensor at) {
    return at.tensor >= 0 ? at.tensor : k->cut.values[at.value].over - 1;
}

/* Do the two tensors of parts share memory? */
static bool meet(const epi_kernel *k, epi_part_tensor a, epi_part_tensor b) {
    if (memory_of(k, a) >= 0 || memory_of(k, b) >= 0)
        return memory_of(k, a) == memory_of(k, b);
    const epi_cut_value *x = &k->cut.values[a.value], *y = &k->cut.values[b.value];
    return x->prepared == y->prepared && x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

/* Does the later part touch what the earlier one stores, or store what that one reads? An output may lie over
 * an input, too. */
static bool depends(const epi_kernel *k, int earlier, int later) {
    const epi_part *a = k->parts[earlier].part, *b = k->parts[later].part;
    for (int i = 0; i < a->graph.tensor_count; i++)
        for (int j = 0; j < b->graph.tensor_count; j++) {
            bool stores = i >= a->graph.input_count, stored = j >= b->graph.input_count;
            if (stores && stored && a->slices[i].memory.count && b->slices[j].memory.count)
                continue; /* pieces of outputs lie apart */
            if ((stores || stored) && meet(k, a->tensors[i], b->tensors[j]))
                return true;
            if (stored && !stores && a->tensors[i].tensor >= 0 && b->tensors[j].tensor >= 0 &&
                epi_kernel_in_place(k, b->tensors[j].tensor, a->tensors[i].tensor))
                return true;
        }
    return false;
}

/* The tensor that says where the groups of the part's product begin; NULL: it has none. */
static const epi_part_tensor *offsets_of(const epi_part_kernel *p) {
    const epi_graph *g = p->full.cuda->spec.graph; /* that of an equal part, maybe */
    const epi_plan *plan = &p->full.cuda->steps.plan;
    for (int t = 0; t < g->input_count && plan->group; t++)
        if (g->tensors[t].node == plan->offsets)
            return &p->part->tensors[p->to ? p->to[t] : t];
    return NULL;
}

static bool have_same_groups(const epi_part_kernel *a, const epi_part_kernel *b) {
    const epi_part_tensor *x = offsets_of(a), *y = offsets_of(b);
    return x && y && x->tensor == y->tensor && (x->tensor >= 0 || x->value == y->value);
}

/* Is the tensor of a part the program's input, and may no output lie over it? */
static bool is_input_alone(const epi_kernel *k, int tensor) {
    const epi_graph *g = &k->program->graph;
    bool alone = tensor >= 0 && tensor < g->input_count;
    for (int o = g->input_count; o < g->tensor_count && alone; o++)
        alone = !epi_kernel_in_place(k, o, tensor);
    return alone;
}

/* Is it a product of few bits whose weights nothing in the program makes or stores over? By wgmma a product of few
 * rows takes longer than its weights, which would only delay the one before. */
static bool has_weights(const epi_kernel *k, const epi_part_kernel *p) {
    const epi_cuda_kernel *cuda = p->full.cuda;
    const epi_launch *l = epi_cuda_product(cuda);
    bool there = l && l->text.config.mainloop == EPI_GEMM_FEW && l->product.weight_count;
    for (int w = 0; there && w < l->product.weight_count; w++) {
        int home = cuda->steps.homes[l->product.weights[w]].tensor;
        there = home >= 0 && is_input_alone(k, p->part->tensors[p->to ? p->to[home] : home].tensor);
    }
    return there;
}

void epi_parts_set_concurrent(epi_kernel *k) {
    k->alone = false;
    for (int i = 1; k->gpu && i < k->part_count; i++) {
        k->parts[i].weights_there = has_weights(k, &k->parts[i]);
        k->alone |= k->parts[i].weights_there && i > k->cut.prepared_parts;
    }
    for (int i = 1, first = 0; k->gpu && i < k->part_count; i++) {
        epi_part_kernel *p = &k->parts[i], *before = &k->parts[i - 1];
        const epi_launch *last = find_end(before->full.cuda, true), *next = find_end(p->full.cuda, false);
        bool can = last && next && i != k->cut.prepared_parts && p->part->loop == before->part->loop &&
                   !p->tail.cuda && epi_launch_can_overlap(last) && epi_launch_can_overlap(next);
        p->regrouped = can && have_same_groups(before, p);
        p->concurrent = can;
        for (int j = first; j < i && p->concurrent; j++)
            p->concurrent = !depends(k, j, i);
        if (p->concurrent)
            p->own = epi_round_up(before->own + before->full.cuda->workspace, 256);
        else
            first = i;
    }
}

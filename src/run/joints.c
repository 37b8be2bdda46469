/* joints.c: parts of a GPU kernel whose products are one launch (cuda/product/joint.c). They belong to a row
 * of independent parts (concurrent.c), and the first of them leads them.
 *
 * Equal parts share a compiled kernel, and so do equal groups of parts. A part that is launched alone shares
 * no kernel with a part that is launched with others. */
#include "cuda/cuda.h"
#include "run/run.h"

int epi_joint_count(const epi_kernel *k, int leader) {
    int count = 0;
    while (leader + count < k->part_count && k->parts[leader + count].leader == leader)
        count++;
    return count;
}

/* The group's kernels; returns how many. */
static int list(const epi_kernel *k, int leader, epi_cuda_kernel **out) {
    int count = epi_joint_count(k, leader);
    for (int i = 0; i < count; i++)
        out[i] = k->parts[leader + i].full.cuda;
    return count;
}

/* May the part be launched with the one before? */
static bool may_follow(const epi_kernel *k, int i) {
    const epi_part_kernel *p = &k->parts[i];
    return i > 0 && i < k->part_count && p->concurrent && p->part->loop < 0 &&
           epi_joint_may(p[-1].full.cuda, p->full.cuda);
}

/* So many parts behind the first `from`, in one launch: the time of the products, where any may be launched with others. */
static double time_of(const epi_kernel *k, int from, int count, const epi_cuda_target *target) {
    epi_cuda_kernel *parts[EPI_MOST_JOINED];
    for (int i = 0; i < count; i++)
        parts[i] = k->parts[from + i].full.cuda;
    return may_follow(k, from) || may_follow(k, from + 1) ? epi_joint_time(parts, count, target) : 0;
}

/* Puts neighbours that may be launched together into the groups that take the least time; of such the longest. Three may fill
 * the multiprocessors that no two of them do. */
static epi_status find_groups(epi_kernel *k, const epi_cuda_target *target, epi_error *err) {
    size_t room = (size_t)k->part_count + 1;
    double *least = epi_arena_alloc(&k->arena, room * sizeof *least); /* of so many first parts */
    int *last = epi_arena_alloc(&k->arena, room * sizeof *last); /* and how many the last group of them has */
    EPI_TRY(epi_has_memory(least && last, err));
    least[0] = 0;
    for (int end = 1; end <= k->part_count; end++)
        for (int count = 1; count == 1 || (count <= EPI_MOST_JOINED && may_follow(k, end - count + 1));
             count++) {
            double time = least[end - count] + time_of(k, end - count, count, target);
            if (count > 1 && time > least[end])
                continue;
            least[end] = time;
            last[end] = count;
        }
    for (int end = k->part_count; end > 0; end -= last[end])
        for (int i = end - last[end]; i < end; i++)
            k->parts[i].leader = end - last[end];
    return EPI_OK;
}

/* The leader of an earlier group of parts that are equal to these, one by one, as find_equal left `firsts`; or -1. */
static int find_group(const epi_kernel *k, const int *firsts, int leader) {
    int count = epi_joint_count(k, leader);
    for (int other = 0; other < leader; other++) {
        bool equal = k->parts[other].leader == other && firsts[other] == firsts[leader] &&
                     epi_joint_count(k, other) == count;
        for (int i = 1; i < count && equal; i++)
            equal = firsts[other + i] == firsts[leader + i];
        if (equal)
            return other;
    }
    return -1;
}

/* Gives each part of the group the kernel of an equal part in an equal group, or of one in its own, or else one of its own. */
static void share_kernels(epi_kernel *k, const int *firsts, int leader) {
    int equal = find_group(k, firsts, leader);
    for (int i = leader; i < leader + epi_joint_count(k, leader); i++) {
        epi_part_kernel *p = &k->parts[i];
        int with = equal >= 0 ? k->parts[equal + i - leader].first : p->first >= leader ? p->first : i;
        p->parted = with == i && p->first != i;
        epi_part_share(k, i, with);
    }
}

epi_status epi_joints_find(epi_kernel *k, const epi_cuda_target *target, epi_error *err) {
    int *firsts = epi_arena_alloc(&k->arena, ((size_t)k->part_count + 1) * sizeof *firsts);
    EPI_TRY(epi_has_memory(firsts, err));
    for (int i = 0; i < k->part_count; i++)
        firsts[i] = k->parts[i].first;
    EPI_TRY(find_groups(k, target, err));
    for (int i = 0; i < k->part_count; i++)
        if (k->parts[i].leader == i)
            share_kernels(k, firsts, i);
    return EPI_OK;
}

/* Which values share memory differs with the sizes. So that no two of a group do, of which one touches this value last and
 * another that one first, values live as long as the groups that touch them. */
static epi_status lay_out_groups(epi_kernel *k, epi_error *err) {
    for (int i = 0; i < k->cut.value_count; i++) {
        epi_cut_value *v = &k->cut.values[i];
        if (v->first < 0)
            continue;
        v->first = k->parts[v->first].leader;
        while (v->last + 1 < k->part_count && k->parts[v->last + 1].leader != v->last + 1)
            v->last++;
    }
    return epi_cut_lay_out(&k->arena, &k->cut, err);
}

epi_status epi_joints_like(epi_kernel *k, const epi_kernel *owner, epi_error *err) {
    bool any = false;
    for (int i = 0; i < k->part_count; i++) {
        k->parts[i].leader = owner->parts[i].leader;
        epi_part_share(k, i, owner->parts[i].first);
        any |= k->parts[i].leader != i;
    }
    return any ? lay_out_groups(k, err) : EPI_OK;
}

const epi_kernel *epi_joint_form(const epi_kernel *k, int leader, const epi_cuda_target *target) {
    const epi_kernel *best = NULL;
    double least = 0;
    for (int f = 0; f <= k->owner->form_count; f++) {
        const epi_kernel *form = f ? k->owner->forms[f - 1] : k->owner;
        const epi_joint *joint = form->parts[leader].joint;
        double cost = joint ? epi_joint_form_cost(joint, &k->spec, target) : 0;
        for (int i = 0; !joint && i < epi_joint_count(k->owner, leader); i++)
            cost += epi_cuda_form_cost(form->parts[leader + i].full.cuda, &k->spec, target);
        if (!best || cost < least) {
            best = form;
            least = cost;
        }
    }
    return best;
}

epi_status epi_joint_build(epi_kernel *k, int leader, const epi_cuda_target *target, epi_error *err) {
    epi_cuda_kernel *parts[EPI_MOST_JOINED];
    epi_part_kernel *first = &k->parts[leader];
    int count = list(k, leader, parts);
    bool sized = k->owner && !k->is_form; /* it has what its form has */
    const epi_joint *like = sized ? epi_joint_form(k, leader, target)->parts[leader].joint : NULL;
    if (like)
        EPI_TRY(epi_joint_make_like(&first->arena, parts, like, target, &first->joint, err));
    else if (!sized && count > 1)
        EPI_TRY(epi_joint_make(&first->arena, parts, count, target,
                               k->owner ? k->owner->parts[leader].joint : NULL, &first->joint, err));
    for (int i = 0; i < count; i++)
        if (k->parts[leader + i].first == leader + i)
            EPI_TRY(epi_cuda_build(parts[i], target, err));
    return EPI_OK;
}

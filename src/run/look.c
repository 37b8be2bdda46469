/* look.c: answers questions about a compiled kernel: its tensors, figures, description and CUDA source. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cuda/cuda.h"
#include "ir/index.h"
#include "pass/place/kept.h"
#include "run/run.h"

/* The shortest axis that an input, or a slice of it, counts along, or -1. */
static int64_t index_below(const epi_kernel *kernel, int tensor) {
    const epi_graph *g = &kernel->program->graph;
    int64_t below = -1;
    for (int i = 0; i < g->node_count; i++) {
        const epi_node *n = &g->nodes[i];
        if (epi_op_index(n->op) < 0 || epi_index_find(g, n).node != g->tensors[tensor].node ||
            tensor >= g->input_count)
            continue;
        epi_axes along = epi_index_along(g, n);
        int64_t size = epi_axes_size(&along, kernel->spec.sizes);
        below = below < 0 ? size : epi_min64(below, size);
    }
    return below;
}

epi_status epi_kernel_tensor(const epi_kernel *kernel, int index, epi_tensor_shape *out) {
    if (!kernel || !out || index < 0 || index >= kernel->program->graph.tensor_count)
        return EPI_ERR_ARGUMENT;
    const epi_axes *axes = &kernel->program->graph.tensors[index].axes;
    *out = (epi_tensor_shape){
        .type = kernel->spec.types[index], .rank = axes->count, .count = kernel->counts[index]};
    for (int i = 0; i < axes->count; i++)
        out->sizes[i] = epi_axis_size(axes->at[i], kernel->spec.sizes);
    out->index_below = index_below(kernel, index);
    return EPI_OK;
}

bool epi_part_in_place(const epi_part_kernel *p, int output, int input) {
    bool tail = p->tail.cpu || p->tail.cuda;
    if (p->to) { /* the kernel is an equal part's: as that one counts its inputs */
        int t = 0;
        while (p->to[t] != input)
            t++;
        input = t;
    }
    return epi_steps_in_place(epi_compiled_steps(&p->full), output, input) &&
           (!tail || epi_steps_in_place(epi_compiled_steps(&p->tail), output, input));
}

/* Where a tensor of the program is among those of a part: from `first` on and before `past`, or -1. */
static int find_tensor(const epi_part *part, int tensor, int first, int past) {
    while (first < past && part->tensors[first].tensor != tensor)
        first++;
    return first < past ? first : -1;
}

int epi_kernel_in_place(const epi_kernel *kernel, int output, int input) {
    if (!kernel || output < 0 || input < 0 || input >= kernel->program->graph.input_count)
        return 0;
    if (kernel->cut.loop_count)
        return 0; /* the next slab may read what was there */
    if (!kernel->parts[0].part)
        return epi_part_in_place(&kernel->parts[0], output, input);
    int may = 0; /* it is stored by the last part that reads the input */
    for (int i = 0; i < kernel->part_count; i++) {
        const epi_part *part = kernel->parts[i].part;
        int in = find_tensor(part, input, 0, part->graph.input_count),
            out = find_tensor(part, output, part->graph.input_count, part->graph.tensor_count);
        if (out >= 0 && part->slices[out].memory.count)
            return 0; /* it is a piece, which others may read the input for */
        if (out >= 0)
            may = in >= 0 && !part->slices[in].memory.count && /* nor does it read a piece */
                  find_tensor(part, input, in + 1, part->graph.input_count) < 0 &&
                  epi_part_in_place(&kernel->parts[i], out, in);
        else if (in >= 0)
            may = 0;
    }
    return may;
}

/* ---- parts ---- */

static void part_info(const epi_compiled *c, epi_kernel_info *out) {
    c->cpu ? epi_cpu_info(c->cpu, out) : epi_cuda_info(c->cuda, out);
    out->parts = out->kernels = out->forms = out->slabs = 1;
}

/* How many forms of a part have been compiled. */
static int count_forms(const epi_kernel *kernel, int part) {
    int forms = 1;
    for (int i = 0; i < kernel->form_count; i++)
        forms += !kernel->forms[i]->parts[part].full.cuda->like;
    return forms;
}

static bool has_part(const epi_kernel *kernel, int index) {
    return kernel && index >= 0 && index < kernel->part_count;
}

static void add_info(epi_kernel_info *out, const epi_kernel_info *part, int64_t times) {
    out->launches += part->launches * (int)times;
    out->flops += part->flops * (double)times;
    out->bytes_fused += part->bytes_fused * (double)times;
}

static void kernel_info(const epi_kernel *kernel, epi_kernel_info *out) {
    int forms = 1;
    for (int i = 0; i < kernel->part_count; i++)
        forms = count_forms(kernel, i) > forms ? count_forms(kernel, i) : forms;
    part_info(&kernel->parts[0].full, out);
    out->terms = kernel->terms;
    out->forms = forms;
    out->slabs = 1;
    out->workspace_whole = (int64_t)kernel->workspace_whole;
    out->prepared = kernel->cut.prepared_parts;
    if (kernel->part_count == 1)
        return;
    *out = (epi_kernel_info){.mainloop = "parts",
                             .micro = "",
                             .threads = out->threads,
                             .terms = kernel->terms,
                             .parts = kernel->part_count,
                             .forms = forms,
                             .prepared = kernel->cut.prepared_parts,
                             .values = kernel->cut.value_count - kernel->cut.prepared_values,
                             .value_bytes = kernel->cut.bytes,
                             .value_bytes_least = kernel->cut.lowest,
                             .workspace_whole = (int64_t)kernel->workspace_whole};
    epi_spec_count(&kernel->spec, out);
    out->flops = 0; /* some values are made in more than one part */
    out->slabs = (int)epi_slab_count(kernel);
    int64_t whole = out->slabs; /* that have all of their rows */
    if (kernel->cut.loop_count && epi_slab_tail(kernel) != kernel->cut.slab_rows)
        whole--;
    for (int i = 0; i < kernel->part_count; i++) {
        epi_kernel_info part;
        part_info(&kernel->parts[i].full, &part);
        part.launches += kernel->parts[i].joint != NULL;
        out->kernels += kernel->parts[i].first == i;
        if (i < kernel->cut.prepared_parts)
            continue;
        add_info(out, &part, kernel->parts[i].part->loop < 0 ? 1 : whole);
        if (kernel->parts[i].tail.cpu || kernel->parts[i].tail.cuda) {
            part_info(&kernel->parts[i].tail, &part);
            add_info(out, &part, 1);
        }
    }
}

void epi_kernel_get_info_sized(const epi_kernel *kernel, epi_kernel_info *out, size_t size) {
    epi_kernel_info info;
    if (!kernel || !out)
        return;
    kernel_info(kernel, &info);
    epi_struct_give(out, size, &info, sizeof info);
}

epi_status epi_kernel_part_sized(const epi_kernel *kernel, int index, epi_part_info *out, size_t size) {
    if (!has_part(kernel, index) || !out)
        return EPI_ERR_ARGUMENT;
    epi_part_info info = {.first = kernel->parts[index].first};
    part_info(&kernel->parts[index].full, &info.info);
    info.info.launches += kernel->parts[index].joint != NULL;
    info.info.forms = count_forms(kernel, index);
    epi_struct_give(out, size, &info, sizeof info);
    return EPI_OK;
}

static void print_program(const epi_kernel *kernel, epi_text *out) {
    if (kernel->rewriting.applies)
        epi_graph_print(kernel->rewriting.graph, kernel->program->ast->name, out);
    else
        epi_ast_print(kernel->program->ast, out);
}

static void print_part(const epi_kernel *kernel, int index, epi_text *out) {
    char name[160];
    snprintf(name, sizeof name, "%.120s_%d", kernel->program->ast->name, index + 1);
    if (kernel->parts[index].part)
        epi_graph_print(&kernel->parts[index].part->graph, name, out);
    else
        print_program(kernel, out);
}

void epi_kernel_print_parts(const epi_kernel *kernel, epi_text *out) {
    for (int i = 0; i < kernel->part_count; i++) {
        epi_text_add(out, i ? "\n" : "");
        print_part(kernel, i, out);
    }
}

/* "other forms, for fewer rows: sm90_128x64_c1_d" */
static void describe_forms(const epi_kernel *kernel, int index, epi_text *out) {
    const char *before = "another form, for fewer rows: ";
    for (int i = 0; i < kernel->form_count; i++) {
        const epi_compiled *c = &kernel->forms[i]->parts[index].full;
        epi_kernel_info info;
        if (c->cuda->like)
            continue;
        part_info(c, &info);
        epi_text_add(out, "%s%s", before, info.micro);
        before = "; for more: ";
    }
    if (count_forms(kernel, index) > 1)
        epi_text_add(out, "\n");
}

static void describe_part(const epi_kernel *kernel, int index, epi_text *out) {
    const epi_compiled *c = &kernel->parts[index].full;
    c->cpu ? epi_cpu_describe(c->cpu, out) : epi_cuda_describe(c->cuda, out);
    describe_forms(kernel, index, out);
}

size_t epi_kernel_part_print(const epi_kernel *kernel, int index, char *buf, size_t size) {
    epi_text t = {0};
    if (has_part(kernel, index))
        print_part(kernel, index, &t);
    return epi_text_give(&t, buf, size);
}

size_t epi_kernel_part_describe(const epi_kernel *kernel, int index, char *buf, size_t size) {
    epi_text t = {0};
    if (has_part(kernel, index))
        describe_part(kernel, index, &t);
    return epi_text_give(&t, buf, size);
}

/* ---- values between parts ---- */

/* Nobody stores a value that is empty: it has no name. */
static void value_info(const epi_kernel *kernel, int index, epi_value_info *out) {
    const epi_cut_value *v = &kernel->cut.values[index];
    const epi_part *part = v->part >= 0 ? &kernel->cut.parts[v->part] : NULL;
    *out = (epi_value_info){
        .type = v->type, .bytes = v->bytes, .offset = v->offset, .first = v->first, .last = v->last};
    for (int t = part ? part->graph.input_count : 0; part && t < part->graph.tensor_count; t++)
        if (part->tensors[t].tensor < 0 && part->tensors[t].value == index) {
            epi_label says = epi_node_expression(&part->graph, part->graph.tensors[t].node);
            snprintf(out->name, sizeof out->name, "%.60s", part->graph.tensors[t].name);
            memcpy(out->expression, says.text, sizeof says.text);
        }
}

epi_status epi_kernel_value(const epi_kernel *kernel, int index, epi_value_info *out) {
    if (!kernel || !out || index < 0 || index >= kernel->cut.value_count - kernel->cut.prepared_values)
        return EPI_ERR_ARGUMENT;
    value_info(kernel, index, out);
    return EPI_OK;
}

/* The output of its part that a value is. */
static int slot_of(const epi_kernel *kernel, int index) {
    const epi_part *part = &kernel->cut.parts[kernel->cut.values[index].part];
    int t = part->graph.input_count;
    while (t < part->graph.tensor_count - 1 &&
           (part->tensors[t].tensor >= 0 || part->tensors[t].value != index))
        t++;
    return t;
}

/* Do equal parts store the values, as the same output? */
static bool is_alike(const epi_kernel *kernel, int a, int b) {
    const epi_cut_value *v = kernel->cut.values;
    return kernel->parts[v[a].part].first == kernel->parts[v[b].part].first &&
           slot_of(kernel, a) == slot_of(kernel, b);
}

/* A value, and where those lie that equal parts store: a line. `shown` are values of earlier lines. */
static void describe_value(const epi_kernel *kernel, int index, bool *shown, epi_text *out) {
    enum { MOST = 3 };
    int64_t places[MOST] = {0};
    int more = 0, count = 0;
    epi_value_info v;
    epi_kernel_value(kernel, index, &v);
    int over = kernel->cut.values[index].over;
    epi_text_add(out, "%s = %s: %s, %ld bytes ", v.name, v.expression, epi_dtype_name(v.type), (long)v.bytes);
    if (over)
        epi_text_add(out, "stored over %s", kernel->program->graph.tensors[over - 1].name);
    else
        epi_text_add(out, "at %ld", (long)v.offset);
    epi_text_add(out, ", parts %d to %d", v.first + 1, v.last + 1);
    for (int i = index + 1; i < kernel->cut.value_count - kernel->cut.prepared_values; i++) {
        if (shown[i] || !is_alike(kernel, index, i))
            continue;
        shown[i] = true;
        more++;
        bool known = false;
        for (int j = 0; j < count && j < MOST; j++)
            known |= places[j] == kernel->cut.values[i].offset;
        if (!known && count++ < MOST)
            places[count - 1] = kernel->cut.values[i].offset;
    }
    if (more)
        epi_text_add(out, "; %d more like it", more);
    for (int j = 0; j < count && j < MOST; j++)
        epi_text_add(out, "%s%ld", j ? ", " : ", at ", (long)places[j]);
    epi_text_add(out, count > MOST ? ", …\n" : "\n");
}

/* Where the values between parts lie, and how close that is to the least that could be. */
static void describe_values(const epi_kernel *kernel, epi_text *out) {
    const epi_cut *cut = &kernel->cut;
    int values = cut->value_count - cut->prepared_values;
    bool *shown = calloc((size_t)values + 1, 1);
    if (!shown || !values) {
        out->failed |= !shown;
        epi_text_add(out,
                     "\nonly outputs pass between the parts; each part uses up to %ld bytes of workspace\n",
                     (long)kernel->values);
        free(shown);
        return;
    }
    epi_text_add(out, "\nbetween the parts, in the workspace:\n");
    for (int i = 0; i < values; i++)
        shown[i] = cut->values[i].part < 0;
    for (int i = 0; i < values; i++)
        if (!shown[i])
            describe_value(kernel, i, shown, out);
    for (int i = 0; i < kernel->part_count; i++)
        if (kernel->parts[i].own >= kernel->values)
            epi_text_add(out, "the workspace of part %d: at %ld\n", i + 1,
                         (long)(kernel->parts[i].own - kernel->values));
    free(shown);
    epi_text_add(out, "%ld bytes in total; at most %ld are alive at once", (long)cut->bytes,
                 (long)cut->lowest);
    if (cut->lowest)
        epi_text_add(out, " (%.1f %% more)", 100 * (double)(cut->bytes - cut->lowest) / (double)cut->lowest);
    epi_text_add(out, "; and %ld bytes of workspace for each part\n", (long)kernel->values);
}

/* What is prepared: its memory, what it is and of which inputs. */
static void describe_prepared(const epi_kernel *kernel, epi_text *out) {
    enum { MOST = 8 };
    const epi_cut *cut = &kernel->cut;
    const char *before = "prepare again when one of these changes: ";
    if (!cut->prepared_parts)
        return;
    epi_text_add(out, "computed once, not in every run: %.4g MB, by part%s 1",
                 (double)cut->prepared_bytes / 1e6, cut->prepared_parts > 1 ? "s" : "");
    if (cut->prepared_parts > 1)
        epi_text_add(out, " to %d", cut->prepared_parts);
    for (int i = cut->value_count - cut->prepared_values, shown = 0; i < cut->value_count; i++, shown++) {
        epi_value_info v;
        value_info(kernel, i, &v);
        if (shown < MOST)
            epi_text_add(out, "\n    %s = %s: %s, %ld bytes", v.name, v.expression, epi_dtype_name(v.type),
                         (long)v.bytes);
    }
    if (cut->prepared_values > MOST)
        epi_text_add(out, "\n    and %d more", cut->prepared_values - MOST);
    epi_text_add(out, "\n    ");
    for (int t = 0; t < kernel->program->graph.input_count; t++) {
        bool read = false;
        for (int i = 0; i < cut->prepared_parts; i++)
            read |= find_tensor(&cut->parts[i], t, 0, cut->parts[i].graph.input_count) >= 0;
        if (read) {
            epi_text_add(out, "%s%s", before, kernel->program->graph.tensors[t].name);
            before = ", ";
        }
    }
    epi_text_add(out, "\n");
}

/* "; it starts beside the one before", "; columns of 3 weights in one launch of 132 blocks, parts 2 to 4" */
static void describe_start(const epi_kernel *kernel, int index, epi_text *out) {
    const epi_part_kernel *p = &kernel->parts[index];
    const epi_joint *j = kernel->parts[p->leader].joint;
    if (p->concurrent && (!j || p->joint))
        epi_text_add(out, "; it runs at the same time as the part before");
    if (p->joint)
        epi_text_add(out, "; columns of %d weights in one launch of %u blocks, parts %d to %d", j->count,
                     j->launch.how.grid, index + 1, index + j->count);
    else if (j)
        epi_text_add(out, "; launched with part %d", p->leader + 1);
    epi_text_add(out, "\n");
}

/* "part 2 of 96, gemm; the same: parts 5, 8, 11 and 28 more" */
static void head_part(const epi_kernel *kernel, int index, const epi_kernel_info *info, epi_text *out) {
    enum { MOST = 3 };
    int count = 0;
    epi_text_add(out, "\npart %d of %d, %s", index + 1, kernel->part_count, info->mainloop);
    for (int i = index + 1; i < kernel->part_count; i++)
        if (kernel->parts[i].first == index && count++ < MOST)
            epi_text_add(out, "%s%d", count > 1 ? ", " : "; the same except for names: ", i + 1);
    if (count > MOST)
        epi_text_add(out, " and %d more", count - MOST);
    if (kernel->parts[index].part->loop >= 0)
        epi_text_add(out, "; for each slab");
    if (index < kernel->cut.prepared_parts)
        epi_text_add(out, "; prepared");
    describe_start(kernel, index, out);
}

void epi_rewriting_describe(const epi_kernel *kernel, epi_text *out) {
    const epi_rewriting *r = &kernel->rewriting;
    const char *before = "rewritten: ";
    epi_spec spec = kernel->spec;
    spec.kept = epi_kept_make(kernel->kept);
    for (int i = 0; i < EPI_RULE_COUNT; i++)
        if (r->log.applied[i]) {
            double without = 0; /* of a long program it is not worked out */
            if (kernel->program->graph.node_count < 2000)
                without = epi_rewriting_cost(&spec, &kernel->limits, r, (epi_algebra_rule)i);
            epi_text_add(out, "%s%s %d", before, epi_rule_name((epi_algebra_rule)i), r->log.applied[i]);
            if (without - r->after >= 1e5)
                epi_text_add(out, " (%.4g MB)", (without - r->after) / 1e6);
            before = ", ";
        }
    epi_kept_free(spec.kept);
    if (*before == 'r') /* no rule: the normal form alone */
        epi_text_add(out, "rewritten: equal values, and terms that cancel");
    int parts = kernel->cut.part_count ? kernel->cut.part_count - kernel->cut.prepared_parts : 1;
    epi_text_add(out, "; %d part%s instead of %d, which saves %.4g MB of traffic at 1024 rows\n", parts,
                 parts == 1 ? "" : "s", r->parts_before, (r->before - r->after) / 1e6);
}

/* "memory: 43.2 MB of workspace, 172 MB without a budget; parts 1 to 3 go through 4 slabs of 1024 of T" */
static void describe_memory(const epi_kernel *kernel, epi_text *out) {
    const epi_cut *cut = &kernel->cut;
    if (!kernel->workspace_whole)
        return;
    epi_text_add(out, "memory: %.4g MB of workspace, %.4g MB without a budget",
                 (double)epi_kernel_workspace(kernel) / 1e6, (double)kernel->workspace_whole / 1e6);
    for (int i = 0; i < cut->loop_count; i++)
        epi_text_add(out, "%s%d to %d", i ? ", then " : "; parts ", cut->loops[i].first + 1,
                     cut->loops[i].last + 1);
    if (cut->loop_count)
        epi_text_add(out, " go through %ld slabs of %ld of %s", (long)epi_slab_count(kernel),
                     (long)cut->slab_rows, kernel->spec.graph->dims[cut->slab_dim]);
    epi_text_add(out, "\n");
}

size_t epi_kernel_print(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    if (kernel)
        print_program(kernel, &t);
    return epi_text_give(&t, buf, size);
}

size_t epi_kernel_describe(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    if (kernel && kernel->rewriting.refused.status != EPI_OK)
        epi_text_add(&t, "not rewritten: %s\n", kernel->rewriting.refused.message);
    if (kernel && kernel->cut.refused.status != EPI_OK)
        epi_text_add(&t, "not split into kernels: %s\n", kernel->cut.refused.message);
    if (kernel && kernel->rewriting.applies)
        epi_rewriting_describe(kernel, &t);
    if (kernel)
        describe_memory(kernel, &t);
    if (kernel)
        describe_prepared(kernel, &t);
    if (kernel && kernel->checks)
        epi_text_add(&t, "%d ind%s checked before the run\n", kernel->checks->count,
                     kernel->checks->count == 1 ? "ex is" : "ices are");
    if (kernel && kernel->part_count == 1)
        describe_part(kernel, 0, &t);
    for (int i = 0; kernel && kernel->part_count > 1 && i < kernel->part_count; i++) {
        epi_kernel_info info;
        if (kernel->parts[i].first != i)
            continue;
        part_info(&kernel->parts[i].full, &info);
        info.launches += kernel->parts[i].joint != NULL;
        head_part(kernel, i, &info, &t);
        print_part(kernel, i, &t);
        describe_part(kernel, i, &t);
        epi_text_add(&t, "%.4g GFLOP, %.4g MB moved, %d launch%s\n", info.flops / 1e9, info.bytes_fused / 1e6,
                     info.launches, info.launches == 1 ? "" : "es");
    }
    if (kernel && kernel->part_count > 1)
        describe_values(kernel, &t);
    if (kernel)
        epi_sizes_describe(kernel, &t);
    return epi_text_give(&t, buf, size);
}

/* The text of each launch of a part. */
static void print_texts(const epi_part_kernel *p, epi_text *out) {
    for (int i = 0; i < p->full.cuda->count; i++) {
        const epi_launch *l = &p->full.cuda->launches[i];
        const char *text = !l->joined ? l->text.source.data
                           : p->joint ? p->joint->launch.text.source.data
                                      : "";
        epi_text_add(out, "%s%s", out->length && *text ? "\n" : "", text);
    }
}

size_t epi_kernel_source(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    for (int i = 0; kernel && kernel->checks && i < kernel->checks->count; i++)
        epi_text_add(&t, "%s%s", t.length ? "\n" : "", kernel->checks->launches[i].text.source.data);
    for (int p = 0; kernel && kernel->gpu && p < kernel->part_count; p++)
        if (kernel->parts[p].first == p)
            print_texts(&kernel->parts[p], &t);
    return epi_text_give(&t, buf, size);
}

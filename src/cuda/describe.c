/* describe.c: describes a compiled GPU kernel, in numbers and in words. */
#include "cuda/cuda.h"

void epi_cuda_info(const epi_cuda_kernel *k, epi_kernel_info *out) {
    *out = k->info;
    out->mainloop = epi_steps_kind(&k->steps)->name;
    epi_steps_describe_recurrence(&k->steps, out);
    for (int i = 0; i < k->count; i++)
        out->launches += !k->launches[i].empty && !k->launches[i].copies && !k->launches[i].joined;
    double copies = (double)k->repacked;
    epi_steps_count(&k->steps, (double)(k->workspace - k->steps.workspace - k->counted) - copies, out);
    out->bytes_fused += 2 * copies;
    out->bytes_unfused += 2 * copies;
}

void epi_cuda_describe(const epi_cuda_kernel *k, epi_text *out) {
    if (!epi_steps_describe_pass(&k->steps, out))
        epi_steps_describe_shape(&k->steps, out);
    if (k->main)
        epi_cuda_mainloops[k->steps.plan.kind].describe(k, out);
    for (int i = 0; i < k->count; i++) {
        const epi_launch *s = &k->launches[i];
        epi_text_add(out, "launch %d: %s", i + 1, s->text.name);
        if (s->registers)
            epi_text_add(out, ", %d registers, %s %.0f ms", s->registers,
                         s->cached ? "loaded from the cache in" : "compiled in", 1e3 * s->compile_seconds);
        epi_text_add(out, s->empty    ? ", nothing to do\n"
                          : s->copies ? ", a copy, unless it is in place\n"
                          : s->joined ? ", together with launches of other parts\n"
                                      : "\n");
    }
    if (k->note[0])
        epi_text_add(out, "%s\n", k->note);
}

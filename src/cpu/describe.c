/* describe.c: describes a compiled CPU kernel, in numbers and in words. */
#include "cpu/cpu.h"

void epi_cpu_info(const epi_cpu_kernel *k, epi_kernel_info *out) {
    static const char *const names[] = {[EPI_PATH_NAIVE] = "naive", [EPI_PATH_REFERENCE] = "reference"};
    bool plain = k->spec.path >= EPI_PATH_NAIVE;
    *out = k->info;
    out->mainloop = plain ? names[k->spec.path] : epi_steps_kind(&k->steps)->name;
    out->threads = k->spec.threads;
    epi_steps_describe_recurrence(&k->steps, out);
    out->launches = plain ? 1 : k->steps.count;
    epi_steps_count(&k->steps, (double)k->partials * sizeof(float), out);
}

void epi_cpu_describe(const epi_cpu_kernel *k, epi_text *out) {
    if (k->spec.path >= EPI_PATH_NAIVE)
        epi_text_add(out, "plain loops, one value after the other\n");
    else if (!epi_steps_describe_pass(&k->steps, out)) {
        epi_steps_describe_shape(&k->steps, out);
        epi_cpu_mainloops[k->steps.plan.kind].describe(k, out);
    }
}

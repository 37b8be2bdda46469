/* context.c: opening a context looks at the machine once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/micro.h"
#include "cpu/parallel.h"
#include "cpu/strips.h"
#include "run/run.h"

/* The CPU's name as the system tells it. */
static void read_model(char *out, size_t size) {
    snprintf(out, size, "unknown CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || (strncmp(line, "model name", 10) != 0 && strncmp(line, "CPU part", 8) != 0))
            continue;
        const char *name = colon + 1 + strspn(colon + 1, " \t");
        if (line[0] == 'C')
            snprintf(out, size, "AArch64, CPU part %.*s", (int)strcspn(name, "\n"), name);
        else
            snprintf(out, size, "%.*s", (int)strcspn(name, "\n"), name);
        break;
    }
    if (f)
        fclose(f);
}

epi_status epi_context_open(epi_context **out, epi_error *err) {
    epi_error_clear(err);
    if (!out)
        return epi_fail(err, EPI_ERR_ARGUMENT, "epi_context_open: out is NULL");
    *out = NULL;
    epi_context *c = calloc(1, sizeof *c);
    if (!c)
        return epi_fail(err, EPI_ERR_MEMORY, "out of memory");
    read_model(c->cpu_model, sizeof c->cpu_model);
    for (int i = 0; epi_micro_at(i); i++)
        if (epi_micro_at(i)->usable()) {
            size_t n = strlen(c->cpu_features);
            snprintf(c->cpu_features + n, sizeof c->cpu_features - n, "%s%s", n ? " " : "",
                     epi_micro_at(i)->name);
        }
    c->cpu_threads = epi_parallel_default();
    *out = c;
    return EPI_OK;
}

void epi_context_close(epi_context *ctx) {
    free(ctx);
}

int epi_device_count(const epi_context *ctx) {
    return ctx ? 1 : 0;
}

epi_status epi_device_get(const epi_context *ctx, int index, epi_device_info *out) {
    if (!ctx || !out || index != 0)
        return EPI_ERR_ARGUMENT;
    *out = (epi_device_info){"cpu", ctx->cpu_model, ctx->cpu_features, ctx->cpu_threads};
    return EPI_OK;
}

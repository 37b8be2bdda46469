/* table_time.c: the tables of files that bench/torch_time.py, torch_recurrence.py and cpu_time.py wrote: what runs along
 * time, on a GPU beside a copy and beside Triton kernels, on a CPU beside PyTorch. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "record.h"

static const char *const directions[] = {"forward", "backward"};

static double time_of(const record *r, const char *side, const char *direction) {
    char path[96];
    snprintf(path, sizeof path, "times/%s%s%s/cool_ms", side, *side ? " " : "", direction);
    return number(r, path);
}

void put_along(const results *res, const char *path, epi_text *out) {
    put_torch_head(res, path, "cool, in CUDA graphs, sides in turn", out);
    epi_text_add(out, "| along T | | ms | of a copy's speed | PyTorch's | its time over ours |\n");
    put_rule(out, 6);
    for (const record *r = res->rows; r; r = r->next)
        for (int i = 0; i < 2; i++) {
            char share[32];
            snprintf(share, sizeof share, "of_copy/%s", directions[i]);
            double ours = time_of(r, "", directions[i]), theirs = time_of(r, "torch", directions[i]);
            epi_text_add(out, "| %s %s, %.0f×%.0f×%.0f | %s |", text(r, "section"), text(r, "axes"),
                         number(r, "B"), number(r, "T"), number(r, "D"), directions[i]);
            put_cell(out, "%.3f", ours);
            put_cell(out, "%.2f", number(r, share));
            put_cell(out, "%.3f", theirs);
            put_cell(out, "**%.1f**", theirs / ours);
            epi_text_add(out, "\n");
        }
}

void put_recurrence(const results *res, const char *path, epi_text *out) {
    static const char *const sides[] = {"fla", "fla, expanded", "mamba_ssm", "torch chunked"};
    put_torch_head(res, path, "cool, in CUDA graphs, sides in turn", out);
    epi_text_add(
        out,
        "| | | ms | fla's over ours | keys expanded ahead | mamba_ssm's | PyTorch's chunked form | chunks' "
        "products, cuBLAS |\n");
    put_rule(out, 8);
    for (const record *r = res->rows; r; r = r->next)
        for (int i = 0; i < 2; i++) {
            double ours = time_of(r, "epilog", directions[i]);
            epi_text_add(out, "| %s, B%.0f T%.0f H%.0f, state %.0f×%.0f | %s |", text(r, "section"),
                         number(r, "B"), number(r, "T"), number(r, "H"), number(r, "N"), number(r, "P"),
                         directions[i]);
            put_cell(out, "%.3f", ours);
            for (size_t s = 0; s < sizeof sides / sizeof *sides; s++)
                put_cell(out, "**%.2f**", time_of(r, sides[s], directions[i]) / ours);
            put_cell(out, "%.2f", time_of(r, "cublas", directions[i]) / ours);
            epi_text_add(out, "\n");
        }
    epi_text_add(out, "\n| MB beside the inputs | Epilog | fla | mamba_ssm | PyTorch's chunked form |\n");
    put_rule(out, 5);
    static const char *const peaks[] = {"epilog", "fla", "mamba_ssm", "torch chunked"}, *const ways[] = {
                                                                                            "forward",
                                                                                            "training"};
    for (const record *r = res->rows; r; r = r->next)
        for (int i = 0; i < 2; i++) {
            epi_text_add(out, "| %s, %s |", text(r, "section"), ways[i]);
            for (size_t s = 0; s < sizeof peaks / sizeof *peaks; s++) {
                char name[64];
                snprintf(name, sizeof name, "peak_bytes/%s/%s", peaks[s], ways[i]);
                put_cell(out, "%.0f", number(r, name) / 1e6);
            }
            epi_text_add(out, "\n");
        }
}

void put_cpu_time(const results *res, const char *path, epi_text *out) {
    const record *h = &res->head;
    epi_text_add(out, "%s, PyTorch %s, the least of %.0f rounds in turn; %.10s at commit %s (`%s`)\n\n",
                 text(h, "cpu"), text(h, "torch"), number(h, "rounds"), text(h, "date"), text(h, "commit"),
                 path);
    epi_text_add(out, "| | threads | | ms | eager PyTorch | its time over ours | torch.compile's |\n");
    put_rule(out, 7);
    for (const record *r = res->rows; r; r = r->next)
        for (int i = 0; i < 2; i++) {
            double ms[3];
            static const char *const sides[] = {"epilog", "eager", "compile"};
            for (int s = 0; s < 3; s++) {
                char name[64];
                snprintf(name, sizeof name, "%s/%s/least_ms", directions[i], sides[s]);
                ms[s] = number(r, name);
            }
            epi_text_add(out, "| %s, %s | %.0f | %s |", text(r, "name"), text(r, "type"),
                         number(r, "threads"), directions[i]);
            put_cell(out, "%.3f", ms[0]);
            put_cell(out, "%.3f", ms[1]);
            put_cell(out, "**%.2f**", ms[1] / ms[0]);
            put_cell(out, "**%.2f**", ms[2] / ms[0]);
            epi_text_add(out, "\n");
        }
}

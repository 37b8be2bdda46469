/* table_instead.c: what one would use instead of Epilog, and how long it takes beside Epilog: one row for
 * each, from the result files that the rows name. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "record.h"

typedef struct alternative {
    const char *name, *work, *machine;
    const char *file, *section; /* NULL: all that have these times */
    const char *kernel;         /* this one alone; NULL: all but the plain product */
    double rows;                /* of so many rows alone; 0: any */
    const char *its_time;       /* the paths of both times, + between several; where the first is NULL, */
    const char *epilog_is;      /* the second is Epilog's time over the alternative's */
} alternative;

#define FOLDER "bench/results/"
#define TORCH FOLDER "h200-torch.json", "kernels", NULL, 0
#define RMSNORM FOLDER "h200-rows.json", "rows", "rmsnorm", 8192
#define ATTENTION(file, section, other) \
    FOLDER file ".json", section, NULL, 0, "times/" other "/median_ms", "times/epilog/median_ms"

#define RECURRENCE(other) \
    FOLDER "h200-recurrence.json", NULL, NULL, 0, \
        "times/" other " forward/cool_ms+times/" other " backward/cool_ms", \
        "times/epilog forward/cool_ms+times/epilog backward/cool_ms"

#define CPU_TORCH(type, section, kernel, other) \
    FOLDER "xeon-gnr-1core-torch-" type ".json", section, kernel, 0, "times/" other "/least_ms", \
        "times/epilog/least_ms"

/* The first ones are those of the README. */
enum { FIRST = 8 };
static const alternative alternatives[] = {
    {"torch.compile", "ten kernels at 4096, bf16", "H200", TORCH, "flushed/compile_ms", "flushed/ours_ms"},
    {"torch.compile, cuDNN", "a Llama layer, forward and backward, two sizes, bf16", "H200",
     FOLDER "h200-layers.json", "layer", NULL, 0, "step/torch.compile/median_ms", "step/epilog/median_ms"},
    {"cuDNN", "attention forward, 11 shapes, bf16", "H200", ATTENTION("h200-attention", "forward", "cudnn")},
    {"cuDNN", "attention backward, 11 shapes, bf16", "H200",
     ATTENTION("h200-attention", "backward", "cudnn")},
    {"FlexAttention", "forward of packed documents, 3 shapes, bf16", "H200",
     ATTENTION("h200-documents", "documents", "flex")},
    {"torch.compile, grouped_mm", "a block of experts, a step, three models, two routings, bf16", "H200",
     FOLDER "h200-moe.json", "block", NULL, 0, "step/torch.compile/median_ms", "step/apply/median_ms"},
    {"flash-linear-attention", "gated linear attention and Mamba-2's recurrence, with gradients, bf16",
     "H200", RECURRENCE("fla")},
    {"PyTorch, oneDNN", "plain product, bf16", "Xeon, 1 core",
     CPU_TORCH("bf16", "product", "matmul", "eager")},
    {"eager PyTorch", "ten kernels at 4096, bf16", "H200", TORCH, "flushed/eager_ms", "flushed/ours_ms"},
    {"torch.compile", "a Llama layer without attention, forward and backward, three sizes, bf16", "H200",
     FOLDER "h200-layers.json", "block", NULL, 0, "step/torch.compile/median_ms", "step/epilog/median_ms"},
    {"FlexAttention", "forward with ALiBi, soft cap or window, bf16", "H200",
     ATTENTION("h200-attention", "score", "flex")},
    {"cuBLAS", "plain product of 1 to 128 rows, 7 shapes, bf16", "H200", FOLDER "h200-few-rows.json",
     "few rows", "matmul", 0, "cublas_us", "ours_us"},
    {"torch.compile", "RMSNorm of 8192 rows, bf16", "H200", RMSNORM, "compile_us", "ours_us"},
    {"mamba_ssm", "Mamba-2's layer, with gradients, bf16", "H200", RECURRENCE("mamba_ssm")},
    {"cuBLAS", "plain product, 9 shapes, bf16", "H200", FOLDER "h200.json", "product", "matmul", 0, NULL,
     "hot/ratio"},
    {"cuBLAS, product alone", "ten kernels at 4096 and 8192, bf16", "H200", FOLDER "h200.json", "kernels",
     NULL, 0, NULL, "hot/ratio"},
    {"OpenBLAS", "plain product, f32", "Xeon, 2 cores", FOLDER "xeon-emr-2of16-f32.json", "", "matmul", 0,
     NULL, "of_raw"},
    {"OpenBLAS, product alone", "ten kernels at 1024 and 2048, f32", "Xeon, 2 cores",
     FOLDER "xeon-emr-2of16-f32.json", "", NULL, 0, NULL, "of_raw"},
    {"torch.compile", "ten kernels at 1024, f32", "Xeon, 1 core",
     CPU_TORCH("f32", "kernels", NULL, "compile")},
    {"torch.compile", "ten kernels at 1024, bf16", "Xeon, 1 core",
     CPU_TORCH("bf16", "kernels", NULL, "compile")},
    {"torch.compile", "RMSNorm, LayerNorm and softmax of 1024 rows, f32", "Xeon, 1 core",
     CPU_TORCH("f32", "rows", NULL, "compile")},
    {"PyTorch, MKL", "plain product, f32", "Xeon, 1 core", CPU_TORCH("f32", "product", "matmul", "eager")},
};

/* What Epilog loses, beside the rows above that are below 1. */
static const alternative losses[] = {
    {"flash attention of PyTorch", "attention backward by mma.sync, 2 shapes, bf16", "H200",
     ATTENTION("h200-attention-mma", "mma backward", "flash")},
    {"cuDNN", "attention of one query to a cache, 4 shapes, bf16", "H200",
     FOLDER "h200-decode-attention.json", NULL, NULL, 0, "times/cudnn/median_ms", "times/epilog/median_ms"},
    {"torch.compile", "a linear and its cross-entropy, a step within 2 GB, bf16", "H200",
     FOLDER "h200-loss.json", "loss", NULL, 0, "step/torch.compile/median_ms",
     "step/epilog, memory/median_ms"},
    {"torch.compile", "Mamba-2's layer, backward, f32 and bf16, 1 and 2 threads", "Xeon",
     FOLDER "xeon-2core-time.json", NULL, "layer", 0, "backward/compile/least_ms",
     "backward/epilog/least_ms"},
};

/* The sum of the numbers at paths with + between them; NaN: the row lacks one. */
static double sum_of(const record *r, const char *paths) {
    double sum = 0;
    for (const char *at = paths, *end; *at; at = end + (*end == '+')) {
        char path[120];
        end = at + strcspn(at, "+");
        snprintf(path, sizeof path, "%.*s", (int)(end - at), at);
        sum += number(r, path);
    }
    return sum;
}

/* Of a GPU the rows of the default rounding count; a CPU's rows have none. */
static bool counts(const alternative *a, const record *r) {
    const char *rounding = text(r, "rounding"), *kernel = text(r, *text(r, "kernel") ? "kernel" : "name");
    return (a->section ? belongs(r, a->section) : isfinite(sum_of(r, a->its_time))) &&
           (!*rounding || !strcmp(rounding, "packed")) &&
           (a->kernel ? !strcmp(kernel, a->kernel) : strcmp(kernel, "matmul") != 0) &&
           (a->rows == 0 || number(r, "m") == a->rows);
}

static bool put_alternative(const alternative *a, const char *up, epi_text *out) {
    size_t size;
    char *json = read_file(a->file, &size);
    results res = {0};
    spread all = {0};
    bool ok = json && read_results(a->file, json, size, &res);
    for (const record *r = ok ? res.rows : NULL; r; r = r->next)
        if (counts(a, r))
            spread_add(&all, (a->its_time ? sum_of(r, a->its_time) : 1) / sum_of(r, a->epilog_is));
    if (!all.count)
        fprintf(stderr, "%s: nothing on %s\n", a->file, a->name);
    else
        epi_text_add(out, "| %s | %s | %s | **%.2f** | %.2f to %.2f | [%s](%s%s) at %s |\n", a->name, a->work,
                     a->machine, spread_mean(&all), all.least, all.most, a->file + strlen(FOLDER), up,
                     a->file, text(&res.head, "commit"));
    epi_arena_free(&res.arena);
    free(json);
    return all.count > 0;
}

bool put_instead(epi_text *out, const char *names) {
    bool first = !strcmp(names, "first"), lost = !strcmp(names, "lost"), ok = true;
    const alternative *rows = lost ? losses : alternatives;
    size_t count = first  ? FIRST
                   : lost ? sizeof losses / sizeof *losses
                          : sizeof alternatives / sizeof *alternatives;
    epi_text_add(out,
                 "| instead of Epilog | work | machine | its time over Epilog's | range | measured in |\n");
    put_rule(out, 6);
    for (size_t i = 0; i < count; i++)
        ok &= put_alternative(&rows[i], first ? "" : "../", out);
    return ok;
}

/* emulate.c: as run.c, on the emulator of a GPU: all requests of the pipe are read, their texts compiled for the host by few compilers,
 * and then each is run and answered: build/test/pairs_emulate FOLDER [CAPABILITY]. What the emulator finds beside wrong numbers, as an
 * access that a GPU would not forgive, goes to stderr and is an answer of the stage "run". */
#include <sys/stat.h>
#include <unistd.h>

#include "emulate/parts.h"
#include "request.h"

enum { MOST_REQUESTS = 2048 };

typedef struct asked {
    request r;
    answer a;
    epi_status status;
    epi_module *module;
    in_parts run;
} asked;

static epi_context *ctx;
static int device = -90;

static epi_status compile_asked(asked *q) {
    q->a.stage = "parse";
    epi_status status = epi_module_parse(ctx, q->r.text, q->r.text_bytes, "t.epi", &q->module, &q->a.err);
    if (status != EPI_OK)
        return status;
    const epi_program *program = epi_module_find(q->module, "p");
    q->a.stage = "compile";
    status = program ? compile(program, &q->r, device, &q->run.k, &q->a.err)
                     : fail(&q->a.err, "there is no program p");
    if (status == EPI_OK)
        status = check_sizes(q->run.k, program, &q->r, &q->a.err);
    if (status == EPI_OK && q->run.k->part_count > MOST_PARTS) {
        fail(&q->a.err, "too many parts for the emulator");
        status = EPI_ERR_UNSUPPORTED;
    }
    if (status == EPI_OK && q->run.k->parts[0].part) { /* no part: no result has elements */
        q->run.name = "p";
        add_parts(&q->run);
    }
    return status;
}

static bool has_texts(const in_parts *w) {
    bool ok = true;
    for (int p = 0; p < w->k->part_count; p++)
        for (int n = 0; n < w->k->parts[p].full.cuda->count; n++)
            if (!w->k->parts[p].full.cuda->launches[n].joined)
                ok &= texts[w->texts[p][n]].run != NULL;
    return ok;
}

static epi_status run_asked(asked *q) {
    problem p = {.count = q->r.tensor_count};
    int failed = failed_count;
    q->a.stage = "run";
    if (!q->run.k->parts[0].part) {
        q->a.stage = "ok";
        return EPI_OK;
    }
    if (!has_texts(&q->run))
        return fail(&q->a.err, "a text does not compile for the host");
    for (int i = 0; i < p.count; i++) {
        p.inputs += !q->r.tensors[i].output;
        epi_kernel_tensor(q->run.k, i, &p.t[i].shape);
        p.t[i].span = p.t[i].shape.count;
        p.t[i].data = q->r.memory + q->r.tensors[i].at;
        if (q->r.tensors[i].output)
            memset(p.t[i].data, POISON, q->r.tensors[i].bytes); /* each byte is stored once, over these */
    }
    run_parts(&q->run, &p);
    if (failed_count > failed)
        return fail(&q->a.err, "the emulator found a mistake, which it has written to stderr");
    q->a.stage = "ok";
    return EPI_OK;
}

int main(int argc, char **argv) {
    static asked all[MOST_REQUESTS];
    int count = 0;
    FILE *answers = fdopen(dup(1), "w");
    dup2(2, 1); /* what checks say */
    folder = argc > 1 ? argv[1] : "build/emulate";
    mkdir(folder, 0777);
    if (argc > 2)
        device = -atoi(argv[2]);
    if (!answers || !find_compiler() || epi_context_open(&ctx, NULL) != EPI_OK)
        return 2;
    while (count < MOST_REQUESTS && read_request(&all[count].r))
        count++;
    for (int i = 0; i < count; i++)
        all[i].status = compile_asked(&all[i]);
    compile_texts();
    for (int i = 0; i < count; i++) {
        if (all[i].status == EPI_OK)
            all[i].status = run_asked(&all[i]);
        write_answer(answers, &all[i].r, &all[i].a, all[i].status);
        epi_kernel_free(all[i].run.k);
        epi_module_free(all[i].module);
        free_request(&all[i].r);
    }
    fprintf(stderr, "%d programs, %d texts\n", count, text_count);
    free_texts();
    epi_context_close(ctx);
    return 0;
}

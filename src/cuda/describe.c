/* describe.c: describes a compiled GPU kernel, in numbers and in words. */
#include "cuda/cuda.h"

/* The first launch of a kind, or NULL. */
static const epi_launch *find_launch(const epi_cuda_kernel *k, epi_launch_kind kind) {
    for (int i = 0; i < k->count; i++)
        if (k->launches[i].kind == kind)
            return &k->launches[i];
    return NULL;
}

void epi_cuda_info(const epi_cuda_kernel *k, epi_kernel_info *out) {
    *out = (epi_kernel_info){.mainloop = epi_steps_kind(&k->steps)->name, .micro = ""};
    const epi_launch *p = find_launch(k, EPI_LAUNCH_GEMM);
    if (p) {
        out->micro = epi_config_name(p->choice);
        out->m = p->size.m;
        out->n = p->size.n;
        out->k = p->size.k;
        out->products = p->size.products;
        out->tile_m = p->text.config.tile_m;
        out->tile_n = p->text.config.tile_n;
    }
    const epi_launch *r = find_launch(k, EPI_LAUNCH_ROWS);
    if (r) {
        out->micro = r->text.label;
        out->m = epi_axes_size(&k->steps.plan.rows, k->spec.sizes);
        out->n = epi_axes_size(&k->steps.plan.cols, k->spec.sizes);
    }
    const epi_launch *a = find_launch(k, EPI_LAUNCH_ATTENTION);
    if (a) {
        out->micro = a->text.label;
        out->m = a->size.m;
        out->n = a->size.n;
        out->k = a->size.k;
    }
    epi_steps_describe_recurrence(&k->steps, out);
    for (int i = 0; i < k->count; i++)
        out->launches += !k->launches[i].empty && !k->launches[i].copies && !k->launches[i].joined;
    double copies = (double)k->repacked;
    epi_steps_count(&k->steps, (double)(k->workspace - k->steps.workspace - k->counted) - copies, out);
    out->bytes_fused += 2 * copies;
    out->bytes_unfused += 2 * copies;
}

/* What a row of attention has the same bits in. */
static void describe_bits(const epi_attention_bits *b, epi_text *out) {
    static const char *const rows[] = {"", "a row's result is bitwise the same among many rows and among few",
                                       "a row's last bits may depend on the number of rows"},
                             *const starts[] = {"", "; keys before its first one do not change it",
                                                "; keys before its first one may change them"},
                             *const documents[] = {"", "; nor does the place of its document",
                                                   "; so may the place of its document"};
    if (b->rows)
        epi_text_add(out, "%s%s%s\n", rows[b->rows], starts[b->starts], documents[b->documents]);
}

/* A block walks along its recurrences to their end: few of these leave multiprocessors idle, however long they are. */
static void describe_scans(const epi_launch *l, bool inner, epi_text *out) {
    const epi_rows_shape *s = &l->text.rows;
    epi_text_add(out, "%s: %d recurrences a block, %d steps at a time, %ld blocks%s\n", l->text.label,
                 inner ? s->rows : s->lanes * s->vector,
                 inner ? s->lanes * s->count * s->vector : s->rows * s->count, (long)s->blocks,
                 2 * s->blocks < EPI_USUAL_MULTIPROCESSORS ? ": so few that most of a GPU is idle" : "");
}

void epi_cuda_describe(const epi_cuda_kernel *k, epi_text *out) {
    const epi_launch *p = find_launch(k, EPI_LAUNCH_GEMM);
    if (!epi_steps_describe_pass(&k->steps, out) && p) {
        const epi_config *c = &p->text.config;
        static const char *const epilogue[] = {
            [EPI_AT_END] = "the epilogue runs at the tile's end",
            [EPI_DEFERRED] = "the epilogue runs during the next tile's mainloop",
        };
        epi_steps_describe_shape(&k->steps, out);
        epi_text_add(out,
                     "tile %d x %d, %s: %u block%s of %u threads, %d stages, %d bytes of shared memory\n",
                     c->tile_m, c->tile_n, epi_config_name(p->choice), p->how.grid,
                     p->how.grid == 1 ? "" : "s", p->how.block, c->stages, p->text.shared);
        epi_text_add(out, "%s, rounded %s\n", epilogue[c->schedule],
                     c->packed ? "once after the product and where stored (packed)" : "where stored (exact)");
        if (c->queue)
            epi_text_add(out, "clusters take tiles from a queue\n");
        epi_steps_describe_stages(&k->steps, epi_ceil_div(p->size.n, EPI_PARTIAL_COLS),
                                  epi_ceil_div(p->size.m, EPI_PARTIAL_ROWS), out);
    }
    const epi_launch *r = find_launch(k, EPI_LAUNCH_ROWS);
    if (r) {
        const epi_rows_shape *s = &r->text.rows;
        epi_steps_describe_shape(&k->steps, out);
        if (k->steps.plan.scan_count)
            describe_scans(r, k->steps.plan.scan_inner, out);
        else if (s->span)
            epi_text_add(out,
                         "%s: %d threads with %d columns and %d rows each, %d times a block, %ld blocks\n",
                         r->text.label, s->lanes, s->vector, s->span, s->rows, (long)s->blocks);
        else
            epi_text_add(
                out, "%s: %d threads a row, %d vectors of %d columns each, %d row%s a block, %ld blocks\n",
                r->text.label, s->lanes * s->cluster, s->count, s->vector, s->rows, s->rows == 1 ? "" : "s",
                (long)s->blocks);
        epi_steps_describe_stages(&k->steps, s->blocks / s->cluster, s->lines, out);
    }
    const epi_launch *a = find_launch(k, EPI_LAUNCH_ATTENTION);
    if (a) {
        epi_steps_describe_shape(&k->steps, out);
        epi_text_add(out, "%s: %u block%s of %u threads, %d bytes of shared memory\n", a->text.label,
                     a->how.grid, a->how.grid == 1 ? "" : "s", a->how.block, a->text.shared);
        describe_bits(&a->bits, out);
        if (find_launch(k, EPI_LAUNCH_MATCHES))
            epi_text_add(out, "a kernel before this one finds the tiles that the mask's equalities allow\n");
        if (a->chunks)
            epi_text_add(out,
                         "the stream is split into %ld chunks of %ld, %ld in all; %ld bytes of partials are "
                         "combined by %u block%s\n",
                         (long)a->chunks, (long)a->chunk, (long)(a->chunks * a->size.batches),
                         (long)a->partial_bytes, a[1].how.grid, a[1].how.grid == 1 ? "" : "s");
    }
    if (k->count && k->steps.plan.kind == EPI_KIND_RECURRENCE)
        epi_text_add(out, "it runs as %s: %u block%s\n", k->launches[0].text.label, k->launches[0].how.grid,
                     k->launches[0].how.grid == 1 ? "" : "s");
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

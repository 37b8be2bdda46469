/* profile_rates.c: the speeds that the kernels of a profile are compared with: how fast this machine copies
 * and multiplies.
 *
 * On the CPU each kernel is compared with a copy of as many bytes as it moves, with the same number of
 * threads, and products with multiply-adds on registers. On a GPU the speeds are those of one large copy and
 * one large plain product. */
#include "copy.h"
#include "fma.h"
#include "profile.h"

#include "base/base.h"

enum { COPIES = 9, GPU_COPIES = 10, PRODUCT = 8192, LEAST_PRODUCT = 1024 };
static const size_t COPY_BYTES = (size_t)1 << 30, LEAST_BYTES = (size_t)1 << 24;

/* Seconds of a copy of so many bytes, half of them read and half written: the faster of two ways. */
static double time_copy(double bytes, int threads) {
    copy_bench c;
    double best = 0;
    if (bytes <= 0)
        return 0;
    bool room = copy_open(&c, bytes, threads);
    for (int way = 0; way < 2 && room; way++) {
        double t[COPIES];
        copy_run(&c, way);
        for (int i = 0; i < COPIES; i++) {
            double start = cli_seconds();
            copy_run(&c, way);
            t[i] = cli_seconds() - start;
        }
        double seconds = cli_median(t, COPIES);
        best = best == 0 || seconds < best ? seconds : best;
    }
    copy_close(&c);
    return best;
}

static void cpu_rates(profile *p) {
    for (int i = 0; i < p->row_count; i++) {
        profile_row *r = &p->rows[i];
        r->copy = r->runs ? r->runs * time_copy(r->bytes / r->runs, p->info.threads) : 0;
    }
    p->rate = fma_rate(p->info.threads);
}

/* Bytes a second of a large copy on the GPU, read and written. */
static epi_status gpu_copy(profile *p, epi_context *ctx, int device, epi_error *err) {
    void *from = NULL, *to = NULL;
    size_t bytes = 2 * COPY_BYTES;
    double best = 0;
    epi_status status;
    do { /* as much as there is room for */
        bytes /= 2;
        epi_device_free(ctx, device, from, NULL);
        from = NULL;
        status = epi_device_alloc(ctx, device, bytes, &from, err);
        if (status == EPI_OK)
            status = epi_device_alloc(ctx, device, bytes, &to, err);
    } while (status == EPI_ERR_MEMORY && bytes > LEAST_BYTES);
    for (int i = -1; i < GPU_COPIES && status == EPI_OK; i++) {
        double start = cli_seconds();
        status = epi_device_copy(ctx, device, to, from, bytes, err);
        double seconds = cli_seconds() - start;
        best = i >= 0 && (best == 0 || seconds < best) ? seconds : best;
    }
    p->copy_rate = best > 0 ? 2 * (double)bytes / best : 0;
    epi_device_free(ctx, device, from, NULL);
    epi_device_free(ctx, device, to, NULL);
    return status;
}

/* Random numbers in a tensor of the GPU: one block of them, again and again. */
static epi_status fill(const cli_place *p, int t, epi_dtype type, epi_error *err) {
    enum { BLOCK = 1 << 16 };
    static float numbers[BLOCK];
    static unsigned char stored[BLOCK * 4];
    uint32_t bits = 1;
    for (int i = 0; i < BLOCK; i++)
        numbers[i] = (float)((bits = bits * 1664525u + 1013904223u) >> 8) * 0x1p-24F - 0.5F;
    size_t block = BLOCK * epi_dtype_size(type);
    epi_status status = epi_convert(stored, type, numbers, EPI_F32, BLOCK);
    for (size_t at = 0; at < p->bytes[t] && status == EPI_OK; at += block)
        status = epi_device_copy(p->ctx, p->device, (char *)p->tensors[t].data + at, stored, block, err);
    return status;
}

/* The tensors of a product of that size: two operands and the result. */
static epi_status place_product(cli_place *p, const cli_source *s, const cli_options *o, int size,
                                epi_error *err) {
    epi_status status = EPI_OK;
    *p = (cli_place){.ctx = s->ctx, .device = o->device, .count = 3, .input_count = 2};
    for (int t = 0; t < 3 && status == EPI_OK; t++) {
        p->bytes[t] = (size_t)size * (size_t)size * epi_dtype_size(o->type);
        status = epi_device_alloc(s->ctx, o->device, p->bytes[t], &p->tensors[t].data, err);
        if (status == EPI_OK && t < 2)
            status = fill(p, t, o->type, err);
    }
    return status;
}

/* Seconds of a plain product of that size, of the type and with the rounding that are given. */
static epi_status time_product(const cli_source *s, const cli_options *o, int size, double *seconds,
                               epi_error *err) {
    const epi_dim_binding dims[] = {{"M", size}, {"N", size}, {"K", size}};
    const epi_options options = EPI_OPTIONS(.dims = dims, .dim_count = 3, .type = o->type,
                                            .device = o->device, .rounding = o->rounding);
    cli_runner r = {0};
    cli_place place;
    int runs;
    epi_status status = place_product(&place, s, o, size, err);
    if (status == EPI_OK)
        status = cli_runner_make(&r, s, &options, err);
    if (status == EPI_OK)
        status = cli_burst_size(&r, &place, 0.02, &runs, err);
    if (status == EPI_OK)
        status = cli_burst(&r, &place, runs, seconds, err);
    cli_place_free(&place);
    cli_runner_free(&r);
    return status;
}

static epi_status gpu_product(profile *p, const cli_options *o, epi_error *err) {
    cli_source s;
    double seconds = 0;
    epi_status status = cli_program_open(&s, "matmul:matmul", err);
    if (status != EPI_OK)
        return status;
    p->rate_size = 2 * PRODUCT;
    do { /* as large as there is room for */
        p->rate_size /= 2;
        status = time_product(&s, o, p->rate_size, &seconds, err);
    } while (status == EPI_ERR_MEMORY && p->rate_size > LEAST_PRODUCT);
    double n = p->rate_size;
    p->rate = status == EPI_OK && seconds > 0 ? 2 * n * n * n / seconds : 0;
    cli_source_close(&s);
    return status;
}

static bool has_product(const profile *p) {
    bool has = false;
    for (int i = 0; i < p->row_count; i++)
        has |= p->rows[i].product;
    return has;
}

epi_status profile_rates(profile *p, epi_context *ctx, const cli_options *o, epi_error *err) {
    if (!o->device) {
        cpu_rates(p);
        return EPI_OK;
    }
    epi_status status = gpu_copy(p, ctx, o->device, err);
    for (int i = 0; i < p->row_count && p->copy_rate > 0; i++)
        p->rows[i].copy = p->rows[i].bytes / p->copy_rate;
    return status == EPI_OK && has_product(p) ? gpu_product(p, o, err) : status;
}

/* warnings.c: what is slow about a kernel, said before someone wonders. */
#include <string.h>

#include "run/run.h"

static const double MB = 1e6;

/* So much of what the kernel moves is worth a word. */
static const double SHARE = 1.0 / 16;

static void warn_of_part(const epi_kernel *k, int i, const epi_kernel_info *whole, epi_text *out) {
    epi_part_info part;
    if (epi_kernel_part(k, i, &part) != EPI_OK || part.first != i)
        return;
    const epi_kernel_info *p = &part.info;
    bool heavy = p->bytes_fused > SHARE * whole->bytes_fused;
    if (!strcmp(p->mainloop, "pass") && heavy)
        epi_text_add(
            out,
            "part %d of %d is one operation over memory, which moves %.4g of %.4g MB: no mainloop takes "
            "it with what is beside it\n",
            i + 1, whole->parts, p->bytes_fused / MB, whole->bytes_fused / MB);
    if (!strncmp(p->micro, "any_", 4) && p->flops > SHARE * whole->flops)
        epi_text_add(
            out,
            "part %d of %d is a product without tensor cores, %.4g of %.4g GFLOP: these want bf16 or "
            "f16 operands, in rows of 8 elements\n",
            i + 1, whole->parts, p->flops / 1e9, whole->flops / 1e9);
}

/* The bytes of all inputs and outputs. */
static double tensor_bytes(const epi_kernel *k) {
    double bytes = 0;
    epi_tensor_shape shape;
    for (int t = 0; epi_kernel_tensor(k, t, &shape) == EPI_OK; t++)
        bytes += (double)shape.count * (double)epi_dtype_size(shape.type);
    return bytes;
}

size_t epi_kernel_warnings(const epi_kernel *kernel, char *buf, size_t size) {
    epi_text t = {0};
    epi_kernel_info whole = {0};
    epi_value_info value;
    double bytes = kernel ? tensor_bytes(kernel) : 0;
    if (kernel)
        epi_kernel_get_info(kernel, &whole);
    if (whole.bytes_fused < MB) /* it is over before anyone wonders */
        return epi_text_give(&t, buf, size);
    for (int i = 0; i < whole.parts; i++)
        warn_of_part(kernel, i, &whole, &t);
    for (int i = 0; kernel && epi_kernel_value(kernel, i, &value) == EPI_OK; i++)
        if ((double)value.bytes > bytes)
            epi_text_add(
                &t,
                "part %d of %d stores %s = %s, %.4g MB: more than all inputs and outputs together, %.4g "
                "MB\n",
                value.first + 1, whole.parts, value.name, value.expression, (double)value.bytes / MB,
                bytes / MB);
    if (whole.bytes_fused > 1.01 * whole.bytes_unfused && whole.bytes_unfused > 0)
        epi_text_add(&t, "it moves %.4g MB, where an operation at a time would move %.4g\n",
                     whole.bytes_fused / MB, whole.bytes_unfused / MB);
    return epi_text_give(&t, buf, size);
}

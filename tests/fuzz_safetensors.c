/* fuzz_safetensors.c: whatever the bytes, the reader returns, and every byte it gives out is there. */
#include <stdbool.h>
#include <stdlib.h>

#include "epilog_io.h"

static volatile unsigned sum; /* keeps the reads below from being optimised away */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void must(bool ok) {
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    epi_safetensors *file = NULL;
    epi_error err = {0};
    if (epi_safetensors_parse(bytes, size, "fuzz", &file, &err) != EPI_OK) {
        must(!file && err.status != EPI_OK && err.message[0]);
        return 0;
    }
    size_t total = 0;
    for (size_t i = 0; i < epi_safetensors_count(file); i++) {
        const epi_safetensor *t = epi_safetensors_at(file, i), *got;
        must(epi_safetensors_find(file, t->name) == t);
        must((epi_safetensors_get(file, t->name, &got, &err) == EPI_OK) == (t->type != EPI_DTYPE_COUNT));
        for (size_t k = 0; k < t->bytes; k++)
            sum += ((const unsigned char *)t->data)[k];
        for (int k = 0; k < t->rank; k++)
            must(t->shape[k] >= 0);
        total += t->bytes;
    }
    must(total < size);
    size_t pairs;
    const epi_safetensors_pair *metadata = epi_safetensors_metadata(file, &pairs);
    for (size_t i = 0; i < pairs; i++)
        for (const char *c = metadata[i].value; *c; c++)
            sum += (unsigned char)*c;
    epi_safetensors_close(file);
    return 0;
}

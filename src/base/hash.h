/* hash.h: a 128-bit hash for keys and checksums. It does not resist attackers. */
#ifndef EPI_BASE_HASH_H
#define EPI_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Two lanes of 64 bits, the second fed with the first. Begins as any two numbers: other numbers, another
 * hash. */
typedef struct epi_hash {
    uint64_t a, b;
} epi_hash;

void epi_hash_word(epi_hash *h, uint64_t word);
/* The length goes in first: texts cannot be confused by where one ends and the next begins. */
void epi_hash_add(epi_hash *h, const void *data, size_t size);
/* Of some texts, each with its length, and their number. */
epi_hash epi_hash_texts(const char *const *texts, int count);

#endif

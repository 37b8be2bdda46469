/* hash.c: the hash for the keys of the cache. */
#include "base/hash.h"

#include <string.h>

/* A bijection in which every bit reaches every other. */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void epi_hash_word(epi_hash *h, uint64_t word) {
    h->a = mix(h->a ^ word) + 0x9e3779b97f4a7c15u;
    h->b = mix(h->b + word * 0xd6e8feb86659fd93u + h->a);
}

void epi_hash_add(epi_hash *h, const void *data, size_t size) {
    const unsigned char *at = data;
    epi_hash_word(h, size);
    for (; size > 0;) {
        uint64_t word = 0;
        size_t n = size < sizeof word ? size : sizeof word;
        memcpy(&word, at, n);
        epi_hash_word(h, word);
        at += n;
        size -= n;
    }
}

epi_hash epi_hash_texts(const char *const *texts, int count) {
    epi_hash h = {1, 2};
    for (int i = 0; i < count; i++)
        epi_hash_add(&h, texts[i], strlen(texts[i]));
    epi_hash_word(&h, (uint64_t)count);
    return h;
}

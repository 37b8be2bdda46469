/* long_text.h: texts of any length, from one in which what stands between two ~ is repeated. */
#ifndef EPI_TESTS_LONG_TEXT_H
#define EPI_TESTS_LONG_TEXT_H

#include <string.h>

#include "base/base.h"

/* Adds `size` bytes of a text: # is number i, and $ the one before it. */
static inline void add_numbered(epi_text *t, const char *text, size_t size, int i) {
    for (const char *end = text + size; text < end;) {
        size_t plain = strcspn(text, "#$");
        plain = plain < (size_t)(end - text) ? plain : (size_t)(end - text);
        epi_text_add(t, "%.*s", (int)plain, text);
        text += plain;
        if (text < end)
            epi_text_add(t, "%d", *text++ == '#' ? i : i - 1);
    }
}

/* What repeats does so for # from 1 to length - 1, which elsewhere is $. Where a | divides it, its halves take
 * turns. The caller frees the text. */
static inline epi_text long_text(const char *pattern, int length) {
    epi_text t = {0};
    for (bool repeats = false;; repeats = !repeats) {
        size_t size = strcspn(pattern, "~"), half = strcspn(pattern, "~|");
        if (!repeats)
            add_numbered(&t, pattern, size, length);
        for (int i = 1; i < length && repeats; i++)
            if (i % 2 || half == size)
                add_numbered(&t, pattern, half, i);
            else
                add_numbered(&t, pattern + half + 1, size - half - 1, i);
        if (!pattern[size])
            return t;
        pattern += size + 1;
    }
}

#endif

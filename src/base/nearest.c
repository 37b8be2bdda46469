/* nearest.c: finds names that are similar. */
#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

static char lower_case(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_same(char a, char b) {
    return lower_case(a) == lower_case(b);
}

static int least(int a, int b) {
    return a < b ? a : b;
}

/* How many letters to put in, leave out, replace or swap with the next to make one name of the other, whatever
 * their case. */
static int distance(const char *a, const char *b) {
    enum { MOST = sizeof(((epi_nearest *)0)->best) };
    int row[MOST], above[MOST] = {0}, n = (int)strlen(b); /* of this letter of a, and of the one before it */
    if (n >= MOST || strlen(a) >= MOST)
        return MOST;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int next[MOST] = {i + 1};
        for (int j = 1; j <= n; j++) {
            next[j] = row[j - 1] + !is_same(a[i], b[j - 1]);
            if (i && j > 1 && is_same(a[i], b[j - 2]) && is_same(a[i - 1], b[j - 1]))
                next[j] = least(next[j], above[j - 2] + 1);
            next[j] = least(next[j], least(row[j], next[j - 1]) + 1);
        }
        memcpy(above, row, sizeof above);
        memcpy(row, next, sizeof row);
    }
    return row[n];
}

/* Close is a third of the letters of the longer name at most; of one letter, the same in upper or lower case. */
void epi_nearest_offer(epi_nearest *n, const char *name) {
    if (!*name)
        return;
    int d = distance(n->wanted, name);
    size_t wanted = strlen(n->wanted), longer = wanted > strlen(name) ? wanted : strlen(name);
    int letters = (int)(wanted > 1 ? longer : wanted);
    if (3 * d <= letters && (!n->best[0] || d < n->distance)) {
        snprintf(n->best, sizeof n->best, "%s", name);
        n->distance = d;
    }
    size_t length = strlen(n->all);
    if (n->more || length + strlen(name) + 3 > sizeof n->all)
        n->more++;
    else
        snprintf(n->all + length, sizeof n->all - length, "%s%s", length ? ", " : "", name);
}

const char *epi_nearest_hint(epi_nearest *n, const char *has) {
    char more[32] = "";
    n->hint[0] = 0;
    if (n->more)
        snprintf(more, sizeof more, " and %d more", n->more);
    if (n->best[0])
        snprintf(n->hint, sizeof n->hint, "; did you mean %s?", n->best);
    else if (n->all[0])
        snprintf(n->hint, sizeof n->hint, "; %.40s %s%s", has, n->all, more);
    return n->hint;
}

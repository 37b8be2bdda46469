/* nearest.c: names that are close to each other. */
#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

static char lower_case(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* How many letters to put in, leave out or exchange to make one name of the other, whatever their case. */
static int distance(const char *a, const char *b) {
    enum { MOST = sizeof(((epi_nearest *)0)->best) };
    int row[MOST], n = (int)strlen(b);
    if (n >= MOST || strlen(a) >= MOST)
        return MOST;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (lower_case(a[i]) != lower_case(b[j - 1]));
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[n];
}

/* Close is a third of the letters at most. */
void epi_nearest_offer(epi_nearest *n, const char *name) {
    int d = distance(n->wanted, name);
    if (*name && 3 * d <= (int)strlen(n->wanted) && (!n->best[0] || d < n->distance)) {
        snprintf(n->best, sizeof n->best, "%s", name);
        n->distance = d;
    }
}

/* open.c: stand-ins for the sizes of open axes, and the meaning of numbers computed from them. */
#include "ir/open.h"

/* ---- choosing ---- */

/* Can the prime be told from every size that is not open, and from the primes before it? */
static bool is_apart(const epi_graph *g, const bool *is_open, const int64_t *sizes, const epi_open *o,
                     int64_t prime) {
    for (int dim = 0; dim < g->dim_count; dim++)
        if (!is_open[dim] && sizes[dim] > 0 && sizes[dim] % prime == 0)
            return false;
    for (int i = 0; i < o->count; i++)
        if (o->prime[i] == prime)
            return false;
    return true;
}

/* The next prime that serves. Not small, so that a row of tiles is not the whole; not large, so that products
 * of several keep within 64 bits. */
static int64_t find_prime(const epi_graph *g, const bool *is_open, const int64_t *sizes, const epi_open *o) {
    for (int64_t p = 1009;; p += 2) {
        bool prime = true;
        for (int64_t f = 3; f * f <= p && prime; f += 2)
            prime = p % f != 0;
        if (prime && is_apart(g, is_open, sizes, o, p))
            return p;
    }
}

/* Raises a number to what is needed; returns whether it was less. No axis that has elements is halved more
 * often than that. */
static bool raise(int *halved, int need) {
    enum { MOST = 40 };
    bool more = *halved < need && *halved < MOST;
    if (more)
        *halved = need < MOST ? need : MOST;
    return more;
}

/* Both become the lower one; false: they are. */
static bool join(int *a, int *b) {
    bool differ = *a != *b;
    *a = *b = *a < *b ? *a : *b;
    return differ;
}

/* How often each dim is halved, by itself or by what it is renamed to. */
static void count_halves(const epi_graph *g, int *halved) {
    for (int dim = 0; dim < g->dim_count; dim++)
        halved[dim] = 0;
    for (int i = 0; i < g->node_count; i++) {
        const epi_axes *lists[2] = {&g->nodes[i].axes, &g->nodes[i].over};
        for (int l = 0; l < 2; l++)
            for (int j = 0; j < lists[l]->count; j++) {
                epi_axis a = lists[l]->at[j];
                raise(&halved[a.dim], -a.shift);
            }
    }
    for (bool again = true; again;) {
        epi_axis from, to;
        again = false;
        for (int at = 0; epi_graph_next_pair(g, &at, &from, &to);) {
            again |= raise(&halved[from.dim], halved[to.dim] + to.shift - from.shift);
            again |= raise(&halved[to.dim], halved[from.dim] + from.shift - to.shift);
        }
    }
}

/* By dim: the first of those that renames lead to it from, or from it to: they all have its size. */
static void find_leaders(const epi_graph *g, int *leader) {
    for (int dim = 0; dim < g->dim_count; dim++)
        leader[dim] = dim;
    for (bool again = true; again;) {
        epi_axis from, to;
        again = false;
        for (int at = 0; epi_graph_next_pair(g, &at, &from, &to);)
            again |= join(&leader[from.dim], &leader[to.dim]);
    }
}

/* The size of one follows from that of the other, if that is known and this is not. */
static bool tell(int64_t *sizes, bool *known, epi_axis from, epi_axis to) {
    if (!known[from.dim] || known[to.dim])
        return false;
    sizes[to.dim] = epi_axis_size((epi_axis){from.dim, (int16_t)(from.shift - to.shift)}, sizes);
    return known[to.dim] = true;
}

/* Gives the dims that follow others their sizes. */
static void follow(const epi_graph *g, const int *leader, int64_t *sizes, const bool *is_open) {
    bool known[EPI_MAX_DIMS];
    for (int dim = 0; dim < g->dim_count; dim++)
        known[dim] = !is_open[dim] || leader[dim] == dim;
    for (bool again = true; again;) {
        epi_axis from, to;
        again = false;
        for (int at = 0; epi_graph_next_pair(g, &at, &from, &to);) {
            again |= tell(sizes, known, from, to);
            again |= tell(sizes, known, to, from);
        }
    }
}

bool epi_open_make(const epi_graph *g, const bool *is_open, const int64_t *sizes, const int64_t *largest,
                   epi_open *out) {
    int halved[EPI_MAX_DIMS], leader[EPI_MAX_DIMS];
    count_halves(g, halved);
    find_leaders(g, leader);
    *out = (epi_open){0};
    for (int dim = 0; dim < g->dim_count; dim++) {
        out->sizes[dim] = sizes[dim];
        out->largest[dim] = largest[dim];
        if (!is_open[dim] || leader[dim] != dim)
            continue;
        if (out->count == EPI_MAX_OPEN)
            return false;
        int i = out->count;
        out->dim[i] = dim;
        out->halved[i] = halved[dim];
        out->prime[i] = find_prime(g, is_open, sizes, out);
        out->units[i] = sizes[dim] >> halved[dim];
        out->most[i] = largest[dim] >> halved[dim];
        out->sizes[dim] = out->prime[i] << halved[dim];
        out->count++;
    }
    follow(g, leader, out->sizes, is_open);
    return true;
}

/* ---- numbers ---- */

int epi_open_power(const epi_open *open, int i, int64_t number, int64_t *rest) {
    int power = 0;
    for (; number && number % open->prime[i] == 0; power++)
        number /= open->prime[i];
    if (rest)
        *rest = number;
    return power;
}

bool epi_open_has(const epi_open *open, int dim) {
    bool has = false;
    for (int i = 0; open && i < open->count; i++)
        has |= open->dim[i] == dim;
    return has;
}

bool epi_open_grows(const epi_open *open, int64_t number) {
    for (int i = 0; open && i < open->count; i++)
        if (epi_open_power(open, i, number, NULL))
            return true;
    return false;
}

static int64_t replace(const epi_open *open, int64_t number, const int64_t *units) {
    for (int i = 0; open && i < open->count; i++)
        for (int power = epi_open_power(open, i, number, &number); power > 0; power--)
            number *= units[i];
    return number;
}

int64_t epi_open_now(const epi_open *open, int64_t number) {
    return open ? replace(open, number, open->units) : number;
}

int64_t epi_open_most(const epi_open *open, int64_t number) {
    return open ? replace(open, number, open->most) : number;
}

/* bits.c: the first versions of exp, exp2, log, log2 and pow, which the wheel calls (python/glibc.c), give the
 * bits of libm's newest: over a million numbers each, of every exponent, and the special ones. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { NUMBERS = 1 << 20 };

static const double special[] = {0.0,       -0.0,   1.0,       -1.0,      2.0,     0.5,      HUGE_VAL,
                                 -HUGE_VAL, NAN,    0x1p-1074, 0x1p-1022, 709.78,  709.79,   -745.13,
                                 -745.14,   1024.0, 1023.9999, -1075.0,   -1074.9, 0x1p1023, 3.0};
enum { SPECIAL = sizeof special / sizeof *special };

static uint64_t seed = 7;
static uint64_t next_bits(void) {
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Any bits; or a number between -800 and 800, where exp and pow are neither 0 nor infinite. */
static double number(int i) {
    if (i < SPECIAL)
        return special[i];
    double x;
    uint64_t bits = next_bits();
    memcpy(&x, &bits, sizeof x);
    return i % 2 ? x : ((double)(bits >> 11) * 0x1p-53 - 0.5) * 1600;
}

/* NaN of any bits is one result. */
static int differ(double a, double b) {
    return !(isnan(a) && isnan(b)) && memcmp(&a, &b, sizeof a) != 0;
}

static int wrong(const char *name, int count) {
    printf("%s: %d of %d results differ\n", name, count, NUMBERS);
    return count != 0;
}

static int compare(void *library, const char *name, double (*ours)(double)) {
    double (*newest)(double);
    int count = 0;
    *(void **)&newest = dlsym(library, name);
    for (int i = 0; newest && i < NUMBERS; i++) {
        double x = number(i);
        count += differ(ours(x), newest(x));
    }
    return wrong(name, newest && newest != ours ? count : NUMBERS);
}

static int compare_pow(void *library) {
    double (*newest)(double, double);
    int count = 0;
    *(void **)&newest = dlsym(library, "pow");
    for (int i = 0; newest && i < NUMBERS; i++) {
        double x = number(i < SPECIAL * SPECIAL ? i / SPECIAL : i),
               y = number(i < SPECIAL * SPECIAL ? i % SPECIAL : i);
        double near = exp2(y / 400); /* a base and an exponent whose power is finite */
        count += differ(pow(x, y), newest(x, y)) + differ(pow(near, x), newest(near, x));
    }
    return wrong("pow", newest && newest != pow ? count : NUMBERS);
}

int main(void) {
    void *library = dlopen("libm.so.6", RTLD_NOW);
    if (!library) {
        puts("there is no libm.so.6: this is for glibc");
        return 1;
    }
    int failed = compare(library, "exp", exp) + compare(library, "exp2", exp2) +
                 compare(library, "log", log) + compare(library, "log2", log2) + compare_pow(library);
    return failed != 0;
}

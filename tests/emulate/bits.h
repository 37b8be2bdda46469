/* bits.h: one sequence of attention, in forms that have to give the bits of its rows: all tokens at once, a few, one over
 * a cache of another length or in pages, behind padding, and as a document among others. */
#ifndef EPI_TESTS_EMULATE_BITS_H
#define EPI_TESTS_EMULATE_BITS_H

#include "emulate/kernels.h"

/* Of each sequence of a batch: where its first key is, and the token that the first query is. */
typedef struct bits_form {
    const char *row;
    int start[3], first[3];
} bits_form;

enum { BIT_FORMS = 17, BIT_SIZES = 3 };
static const struct {
    int tokens;
    epi_dtype type;
    bits_form forms[BIT_FORMS]; /* the first is the whole */
} sequences[BIT_SIZES] = {
    {2200,
     EPI_BF16,
     {{"rows B=1,S=2200,R=2200,H=1,G=2,E=16,F=24 attention_192x128_d64", {0}, {0}},
      {"rows B=1,S=2200,R=2200,H=1,G=2,E=16,F=24 attention_128x128_d64", {0}, {0}},
      {"rows B=1,S=300,R=300,H=1,G=2,E=16,F=24 attention_128x128_d64", {0}, {0}},
      {"token B=2,R=1000,H=1,G=2,E=16,F=24 attention_split_8x128_d64", {0, 50}, {999, 300}},
      {"rows B=1,S=2237,R=2237,H=1,G=2,E=16,F=24 attention_192x128_d64", {37}, {-37}},
      {"rows B=2,S=200,R=2700,H=1,G=2,E=16,F=24 attention_128x128_d64", {0, 131}, {1990, 700}},
      {"rows B=3,S=8,R=2600,H=1,G=2,E=16,F=24 attention_split_64x128_d64", {0, 1, 64}, {2192, 2045, 0}},
      {"rows B=3,S=8,R=2600,H=1,G=2,E=16,F=24 attention_split_16x128_d64", {0, 1, 64}, {2192, 2045, 0}},
      {"token B=3,R=2300,H=1,G=2,E=16,F=24 attention_split_64x128_d64", {0, 0, 77}, {2199, 2047, 2100}},
      {"token B=3,R=2300,H=1,G=2,E=16,F=24 attention_split_8x128_d64", {0, 0, 77}, {2199, 2047, 2100}},
      {"token B=3,R=5000,H=1,G=2,E=16,F=24 attention_split_8x128_d64", {0, 2500, 999}, {2048, 2199, 5}},
      {"packed B=1,S=2391,R=2391,H=1,G=2,E=16,F=24 attention_192x128_d64", {133}, {-133}},
      {"packed B=1,S=2391,R=2391,H=1,G=2,E=16,F=24 attention_128x128_d64", {7}, {-7}},
      {"pages B=3,P=130,C=64,N=40,H=1,G=2,E=16,F=24 attention_split_8x128_d64", {0}, {2199, 2048, 64}}}},
    {1400,
     EPI_BF16,
     {{"rows B=1,S=1400,R=1400,H=1,G=1,E=72,F=72 attention_128x128_d128", {0}, {0}},
      {"rows B=1,S=1400,R=1400,H=1,G=1,E=72,F=72 attention_128x128_early_d128", {0}, {0}},
      {"rows B=1,S=1533,R=1533,H=1,G=1,E=72,F=72 attention_128x128_held_d128", {133}, {-133}},
      {"rows B=2,S=130,R=2100,H=1,G=1,E=72,F=72 attention_128x128_d128", {0, 131}, {1000, 1270}},
      {"rows B=3,S=8,R=1500,H=1,G=1,E=72,F=72 attention_split_64x128_d128", {0, 1, 64}, {1392, 1020, 0}},
      {"rows B=3,S=8,R=1500,H=1,G=1,E=72,F=72 attention_split_8x128_d128", {0, 1, 64}, {1392, 1020, 0}},
      {"rows B=2,S=8,R=900,H=1,G=1,E=72,F=72 attention_split_8x128_d128", {0, 20}, {892, 300}},
      {"rows B=2,S=12,R=900,H=1,G=1,E=72,F=72 attention_split_16x128_d128", {0, 20}, {880, 0}},
      {"rows B=3,S=11,R=1500,H=1,G=1,E=72,F=72 attention_split_16x128_d128", {0, 1, 64}, {1389, 1020, 0}},
      {"token B=3,R=3333,H=1,G=1,E=72,F=72 attention_split_8x128_d128", {0, 1900, 77}, {1023, 1399, 1200}},
      {"packed B=1,S=1650,R=1650,H=1,G=1,E=72,F=72 attention_128x128_d128", {101}, {-101}},
      {"packed B=2,S=1500,R=1500,H=1,G=1,E=72,F=72 attention_128x128_early_d128", {0, 61}, {0, -61}},
      {"pages B=3,P=200,C=32,N=60,H=1,G=1,E=72,F=72 attention_split_64x128_d128", {0}, {1399, 1024, 1}}}},
    {200,
     EPI_F16,
     {{"rows B=1,S=200,R=200,H=1,G=2,E=40,F=40 attention_mma_128x64_d64", {0}, {0}},
      {"rows B=1,S=211,R=211,H=1,G=2,E=40,F=40 attention_mma_128x64_d64", {11}, {-11}},
      {"token B=3,R=500,H=1,G=2,E=40,F=40 attention_mma_64x64_d64", {0, 99, 300}, {199, 128, 65}}}},
};

static emulated *bit_kernels[BIT_SIZES][BIT_FORMS];

static void add_form(int size, int f) {
    char row[200], more[80];
    variant v;
    snprintf(row, sizeof row, "tests/attention:bits_%s", sequences[size].forms[f].row);
    const loaded *l = read_row(row, &v, more);
    v.type = sequences[size].type;
    v.exact = true;
    bit_kernels[size][f] = add_staying(l, v);
}

/* A form is a case; the whole is made for any of them. */
static void add_bits(void) {
    for (int size = 0; size < BIT_SIZES; size++)
        for (int f = 1; f < BIT_FORMS && sequences[size].forms[f].row; f++) {
            if (!wanted("bits %s %d", sequences[size].forms[f].row, f))
                continue;
            if (!bit_kernels[size][0])
                add_form(size, 0);
            add_form(size, f);
        }
}

static tensor *named(const problem *p, const char *name) {
    epi_tensor_info info;
    for (int i = 0; i < p->count; i++)
        if (epi_program_tensor(p->program, i, &info) == EPI_OK && !strcmp(info.name, name))
            return (tensor *)&p->t[i];
    return NULL;
}

static int64_t size_of(const loaded *l, const char *dim) {
    for (int i = 0; i < l->dim_count; i++)
        if (!strcmp(l->dims[i].name, dim))
            return l->dims[i].size;
    return 1;
}

/* Copies what a token has: of the sequence's first tensor to place `at` of the form's. */
static void put_token(const problem *form, const problem *whole, const char *name, int64_t at, int tokens,
                      int64_t token) {
    const tensor *to = named(form, name), *from = named(whole, name);
    size_t each = (size_t)(from->shape.count / tokens) * epi_dtype_size(from->shape.type);
    if (token >= 0 && token < tokens)
        memcpy(to->data + (size_t)at * each, from->data + (size_t)token * each, each);
}

/* The sequence as the form has it: what is before and behind is something else. */
static void put_sequence(const bits_form *form, const loaded *l, int tokens, const problem *whole,
                         problem *p) {
    int64_t batches = size_of(l, "B"), rows = size_of(l, "S"), pages = size_of(l, "P"),
            slots = size_of(l, "N"), columns = slots > 1 ? slots * size_of(l, "C") : size_of(l, "R"),
            page = size_of(l, "C");
    const tensor *start = named(p, "start"), *offset = named(p, "offset"), *query = named(p, "query"),
                 *key = named(p, "key"), *table = named(p, "page");
    for (int64_t b = 0; b < batches; b++) {
        for (int64_t s = 0; s < rows; s++)
            put_token(p, whole, "q", b * rows + s, tokens, s + form->first[b]);
        for (int64_t r = 0; r < columns; r++) {
            int64_t token = r - form->start[b], at = b * columns + r;
            if (table) { /* pages lie in another order */
                at = (7 * (b * slots + r / page) + 3) % pages;
                put_element(table->data, EPI_I32, b * slots + r / page, (double)at);
                at = at * page + r % page;
            }
            put_token(p, whole, "k", at, tokens, token);
            put_token(p, whole, "v", at, tokens, token);
            if (key)
                put_element(key->data, EPI_I32, b * columns + r,
                            token < 0        ? (double)(r / 50)
                            : token < tokens ? 99
                                             : 100);
        }
        for (int64_t s = 0; s < rows && query; s++)
            put_element(query->data, EPI_I32, b * rows + s,
                        s + form->first[b] < 0        ? (double)(s / 50)
                        : s + form->first[b] < tokens ? 99
                                                      : 100);
        if (start)
            put_element(start->data, EPI_I32, b, form->start[b]);
        if (offset)
            put_element(offset->data, EPI_I32, b, form->start[b] + form->first[b]);
    }
}

static void compare_form(int size, int f, const problem *whole) {
    const bits_form *form = &sequences[size].forms[f];
    const emulated *e = bit_kernels[size][f];
    int tokens = sequences[size].tokens;
    problem p;
    begin_case(e->name);
    if (!runs(e) || !make_problem(e, &p))
        return;
    put_sequence(form, e->l, tokens, whole, &p);
    run_launches(e, &p, f % 2, form->row);
    for (int o = 0; o < 2; o++) {
        const char *name = o ? "l" : "o";
        int64_t batches = size_of(e->l, "B"), rows = size_of(e->l, "S"), differ = 0;
        const tensor *mine = named(&p, name), *theirs = named(whole, name);
        size_t each = (size_t)(theirs->shape.count / tokens) * epi_dtype_size(theirs->shape.type);
        for (int64_t at = 0; at < batches * rows; at++) {
            int64_t token = at % rows + form->first[at / rows];
            differ += token >= 0 && token < tokens &&
                      memcmp(mine->data + (size_t)at * each, theirs->data + (size_t)token * each, each) != 0;
        }
        check(!differ, "%s: %ld of %ld rows of '%s' have other bits than in the whole sequence", form->row,
              (long)differ, (long)(batches * rows), name);
    }
    problem_free(&p);
}

static void run_bits(int size) {
    const emulated *e = bit_kernels[size][0];
    problem whole;
    begin_case(e->name);
    if (!runs(e) || !make_problem(e, &whole))
        return;
    put_sequence(&sequences[size].forms[0], e->l, sequences[size].tokens, &whole, &whole);
    run_launches(e, &whole, false, "the whole sequence");
    for (int f = 1; f < BIT_FORMS; f++)
        if (bit_kernels[size][f])
            compare_form(size, f, &whole);
    problem_free(&whole);
}

static void add_bits_jobs(void) {
    for (int size = 0; size < BIT_SIZES; size++)
        if (bit_kernels[size][0])
            add_job(run_bits, size);
}

#endif

/* attention.h: attention: its four forms, masks, layouts, sizes off the tile, and more tiles than blocks. */
#ifndef EPI_TESTS_EMULATE_ATTENTION_H
#define EPI_TESTS_EMULATE_ATTENTION_H

#include "emulate/kernels.h"

static const char *const attention[] = {
    "tests/attention:full B=1,H=3,S=200,R=150,E=32,F=48 bf16 attention_192x128_d64",
    "tests/attention:causal B=2,H=2,S=300,R=300,E=16,F=16 f16 attention_192x128_d64",
    "tests/attention:causal B=1,H=3,S=300,R=300,E=72,F=72 bf16 attention_128x128_d128 open",
    "tests/attention:causal B=1,H=1,S=130,R=260,E=136,F=40 bf16 attention_128x96_d192",
    "tests/attention:window B=1,H=2,G=2,S=200,R=200,E=24,F=24 bf16 attention_128x128_d64 open",
    "tests/attention:biased B=1,H=2,S=130,R=150,E=16,F=16 bf16 attention_128x128_d64",
    "tests/attention:lengths B=3,H=1,S=70,R=140,E=16,F=16 bf16 attention_192x128_d64",
    "tests/attention:documents B=1,H=1,S=200,R=200,E=16,F=16 bf16 attention_128x128_d64",
    "tests/attention:queries B=1,H=3,S=200,R=290,E=32,F=16 bf16 attention_rows_128x128_d64 open",
    "tests/attention:queries B=1,H=1,S=140,R=140,E=72,F=72 f16 attention_rows_128x96_d128",
    "tests/attention:turned_queries B=2,H=1,G=2,S=130,R=150,E=32,F=16 bf16 attention_rows_128x128_d64 open",
    "tests/attention:keys B=1,H=3,G=2,S=152,R=140,E=16,F=32 bf16 attention_pair_128x64_d64",
    "tests/attention:keys B=1,H=1,G=3,S=90,R=70,E=72,F=104 bf16 attention_pair_128x48_d128 open",
    "tests/attention:queries B=1,H=1,S=70,R=90,E=192,F=128 bf16 attention_rows_128x64_d192",
    "tests/attention:keys B=1,H=1,G=1,S=50,R=70,E=192,F=128 bf16 attention_pair_128x16_d192",
    "tests/attention:dropout B=1,H=2,S=200,R=300,E=16,F=16 bf16 attention_128x128_d64",
    "tests/attention:dropout B=1,H=2,S=130,R=135,E=16,F=16 bf16 attention_192x128_d64 open",
    "tests/attention:dropout_apart B=1,H=3,S=130,R=140,E=16,F=16 bf16 attention_128x128_d64",
    "tests/attention:dropout_queries B=1,H=2,S=150,R=148,E=16,F=16 bf16 attention_rows_128x128_d64",
    "tests/attention:dropout_keys B=1,H=1,G=2,S=90,R=140,E=16,F=32 bf16 attention_pair_128x64_d64",
    "tests/attention:dropout_keys B=1,H=1,G=2,S=90,R=70,E=16,F=16 bf16 attention_pair_128x64_d64",
    "attention:decode_attention B=3,R=2300,G=2,H=3,E=24 bf16 attention_split_64x128_d64",
    "attention:decode_attention B=2,R=1100,G=1,H=4,E=72 f16 attention_split_64x128_d128",
    "attention:decode_attention B=1,R=600,G=2,H=2,E=136 bf16 attention_split_64x64_d256",
    "tests/attention:tokens B=3,S=5,R=2500,H=2,G=3,E=72,F=48 bf16 attention_split_64x128_d128",
    "tests/attention:cached B=5,H=9,R=2100,E=16,F=32 bf16 attention_split_64x128_d64",
    "attention:paged_attention B=3,P=40,C=32,N=40,G=2,H=3,E=72 bf16 attention_split_64x128_d128",
    "attention:paged_attention B=2,P=9,C=256,N=9,G=1,H=2,E=24 f16 attention_split_64x128_d64",
    "tests/attention:full B=1,H=3,S=1,R=1040,E=128,F=64 bf16 attention_split_64x128_d128 open",
    "tests/attention:latent B=2,S=150,R=200,H=2,E=72,P=24,F=40 bf16 attention_128x96_d192 open",
    "tests/attention:latent_queries B=2,S=140,R=150,H=2,E=40,P=16,F=24 bf16 attention_rows_128x96_d128",
    "tests/attention:latent_queries_f32 B=1,S=140,R=90,H=2,E=64,P=24,F=24 f16 attention_rows_128x64_d128",
    "tests/attention:latent_keys B=2,S=150,R=140,H=2,E=72,P=16,F=32 bf16 attention_rows_128x48_d192 open",
    "tests/attention:latent_pair B=2,S=150,R=140,H=2,E=72,P=40,F=128 bf16 attention_pair_128x64_d192",
    "tests/attention:prefix B=2,H=1,S=384,R=384,E=16,F=16 bf16 attention_128x128_d64 open",
    "tests/attention:prefix_keys B=2,H=1,G=2,S=384,R=384,E=16,F=16 bf16 attention_pair_128x64_d64",
    "tests/attention:prefix_or B=2,H=1,S=384,R=384,E=16,F=16 bf16 attention_128x128_d64",
    "tests/attention:prefix_or_queries B=2,H=1,S=384,R=384,E=16,F=16 bf16 attention_rows_128x128_d64",
    "tests/attention:prefix_or_keys B=2,H=1,G=1,S=384,R=384,E=16,F=16 bf16 attention_pair_128x64_d64",
    "tests/attention:mixed B=2,H=1,S=330,R=530,E=16,F=16 bf16 attention_192x128_d64 open",
    "tests/attention:packed B=1,H=2,S=384,R=384,E=16,F=32 bf16 attention_128x128_d64",
    "tests/attention:packed B=1,H=2,S=128,R=128,E=16,F=32 bf16 attention_128x128_d64",
    "tests/attention:packed_queries B=1,H=2,S=384,R=384,E=16,F=16 bf16 attention_rows_128x128_d64",
    "tests/attention:packed_queries B=1,H=2,S=128,R=128,E=16,F=16 bf16 attention_rows_128x128_d64 open",
    "tests/attention:packed_keys B=1,H=1,G=2,S=384,R=384,E=16,F=32 bf16 attention_pair_128x64_d64",
    "tests/attention:packed_keys B=1,H=1,G=2,S=128,R=128,E=16,F=32 bf16 attention_pair_128x64_d64",
    "tests/attention:full B=1,H=3,S=200,R=150,E=32,F=48 bf16 attention_mma_128x64_d64",
    "tests/attention:causal B=2,H=2,S=150,R=150,E=16,F=16 f16 attention_mma_64x64_d64 open",
    "tests/attention:causal B=1,H=2,S=200,R=200,E=72,F=72 bf16 attention_mma_128x32_d128",
    "tests/attention:causal B=1,H=1,S=130,R=260,E=136,F=40 f16 attention_mma_64x64_d192",
    "tests/attention:full B=1,H=1,S=70,R=90,E=256,F=200 bf16 attention_mma_64x32_d256 open",
    "tests/attention:window B=1,H=2,G=2,S=200,R=200,E=24,F=24 bf16 attention_mma_128x64_d64",
    "tests/attention:biased B=1,H=2,S=130,R=150,E=16,F=16 bf16 attention_mma_64x32_d128 open",
    "tests/attention:lengths B=3,H=1,S=70,R=140,E=16,F=16 bf16 attention_mma_128x64_d64",
    "tests/attention:documents B=1,H=1,S=200,R=200,E=16,F=16 bf16 attention_mma_128x64_d64",
    "tests/attention:dropout B=1,H=2,S=130,R=135,E=16,F=16 bf16 attention_mma_64x64_d64",
    "tests/attention:tokens B=3,S=5,R=2500,H=2,G=3,E=72,F=48 bf16 attention_mma_64x32_d128",
    "attention:decode_attention B=3,R=700,G=2,H=3,E=24 bf16 attention_mma_64x64_d64",
    "tests/attention:steep B=1,H=2,S=130,R=260,E=16,F=16 bf16 attention_mma_128x64_d64",
    "tests/attention:steep B=1,H=1,S=130,R=390,E=16,F=16 bf16 attention_128x128_d64 open",
    "tests/attention:queries B=1,H=3,S=200,R=140,E=32,F=16 bf16 attention_mma_rows_128x32_d64",
    "tests/attention:queries B=1,H=1,S=140,R=140,E=72,F=72 f16 attention_mma_rows_128x32_d128",
    "tests/attention:queries B=1,H=1,S=70,R=90,E=192,F=128 bf16 attention_mma_rows_64x32_d192",
    "tests/attention:queries B=1,H=1,S=70,R=50,E=200,F=256 bf16 attention_mma_rows_64x16_d256",
    "tests/attention:dropout_queries B=1,H=2,S=150,R=148,E=16,F=16 bf16 attention_mma_rows_64x32_d64 open",
    "tests/attention:keys B=1,H=3,G=2,S=152,R=140,E=16,F=32 bf16 attention_mma_pair_64x32_d64",
    "tests/attention:keys B=1,H=1,G=3,S=90,R=140,E=72,F=104 f16 attention_mma_pair_128x32_d128",
    "tests/attention:keys B=1,H=1,G=1,S=50,R=70,E=192,F=128 bf16 attention_mma_pair_64x16_d192",
    "tests/attention:dropout_keys B=1,H=1,G=2,S=90,R=70,E=16,F=32 bf16 attention_mma_pair_64x32_d128",
    "tests/attention:mixed B=2,H=1,S=130,R=330,E=16,F=16 bf16 attention_mma_128x32_d128",
    "tests/attention:packed B=1,H=2,S=384,R=384,E=16,F=32 bf16 attention_mma_128x64_d64",
    "tests/attention:packed B=1,H=2,S=128,R=128,E=16,F=32 bf16 attention_mma_128x64_d64",
    "tests/attention:packed_queries B=1,H=2,S=384,R=384,E=16,F=16 bf16 attention_mma_rows_128x32_d64",
    "tests/attention:packed_queries B=1,H=2,S=128,R=128,E=16,F=16 bf16 attention_mma_rows_128x32_d64",
    "tests/attention:packed_keys B=1,H=1,G=2,S=384,R=384,E=16,F=32 bf16 attention_mma_pair_64x32_d64",
    "tests/attention:packed_keys B=1,H=1,G=2,S=128,R=128,E=16,F=32 bf16 attention_mma_pair_64x32_d64",
    "tests/attention:packed B=3,H=1,S=40,R=50,E=16,F=16 bf16 attention_mma_128x64_d64",
    "tests/attention:prefix_or B=2,H=1,S=384,R=384,E=16,F=16 bf16 attention_mma_128x64_d64",
    "tests/attention:prefix_keys B=2,H=1,G=2,S=384,R=384,E=16,F=16 bf16 attention_mma_pair_64x32_d64",
    "tests/attention:quotient B=1,H=1,S=130,R=150,E=16,F=16 bf16 attention_128x128_d64",
    "tests/attention:steep B=1,H=1,S=200,R=2300,E=16,F=24 bf16 attention_192x128_d64",
    "tests/attention:full B=1,H=1,S=130,R=2300,E=16,F=48 f16 attention_128x128_d64",
    "tests/attention:steep B=1,H=1,S=130,R=2100,E=72,F=72 bf16 attention_128x128_d128",
    "tests/attention:full B=1,H=1,S=70,R=2100,E=128,F=40 bf16 attention_128x128_early_d128",
    "tests/attention:steep B=1,H=1,S=140,R=2100,E=128,F=128 bf16 attention_128x128_held_d128",
    "tests/cliffs:cache_i8 B=2,G=2,J=3,R=2300,E=64 bf16 attention_split_8x128_d64 open",
    "tests/cliffs:cache_i8 B=2,G=1,J=8,R=300,E=128 bf16 attention_split_8x128_d128",
    "tests/cliffs:cache_e4m3 B=2,G=1,J=9,R=1100,E=112 bf16 attention_split_16x128_d128",
    "tests/cliffs:cache_e4m3 B=1,G=2,J=4,R=150,E=48 f16 attention_split_8x128_d64",
    "tests/cliffs:cache_shared_scales B=3,G=2,J=2,R=1500,E=80 bf16 attention_split_8x128_d128 open",
    "tests/attention:keys_u8 B=2,G=1,J=7,R=1200,E=128,F=72 f16 attention_split_8x128_d128",
    "tests/attention:keys_u8 B=1,G=2,J=4,R=170,E=128,F=104 bf16 attention_mma_64x32_d128",
    "tests/attention:paged_i8 B=2,P=40,C=32,N=40,G=2,J=3,E=80 bf16 attention_split_8x128_d128",
    "tests/attention:paged_i8 B=2,P=9,C=128,N=9,G=1,J=11,E=32 bf16 attention_split_16x128_d64",
    "tests/cliffs:cache_scaled_values B=2,G=2,J=3,R=1100,E=72 bf16 attention_split_8x128_d128",
    "tests/cliffs:cache_scaled_values B=2,G=1,J=20,R=1100,E=72 bf16 attention_split_64x128_d128",
    "tests/cliffs:cache_scaled_values B=1,G=2,J=130,R=2300,E=16 bf16 attention_128x128_d64",
    "tests/cliffs:cache_i8 B=2,G=2,J=3,R=300,E=64 bf16 attention_mma_64x64_d64 open",
    "tests/cliffs:cache_e4m3 B=1,G=2,J=5,R=170,E=112 f16 attention_mma_64x32_d128",
    "tests/cliffs:cache_mixed B=2,G=1,J=5,R=200,E=208 bf16 attention_mma_64x32_d256",
    "tests/cliffs:cache_prompt B=1,G=2,J=2,S=70,R=150,E=80 bf16 attention_mma_128x32_d128 open",
    "tests/cliffs:cache_mixed B=2,G=1,J=5,R=1200,E=128 f16 attention_split_8x128_d128",
    "attention:decode_attention B=3,R=2300,G=2,H=3,E=24 bf16 attention_split_8x128_d64 open",
    "attention:decode_attention B=2,R=1100,G=1,H=4,E=72 f16 attention_split_8x128_d128",
    "tests/attention:tokens B=3,S=5,R=2500,H=2,G=3,E=72,F=48 bf16 attention_split_16x128_d128 open",
    "tests/attention:cached B=5,H=9,R=2100,E=16,F=32 bf16 attention_split_16x128_d64",
    "attention:paged_attention B=3,P=40,C=32,N=40,G=2,H=3,E=72 bf16 attention_split_8x128_d128",
    "attention:paged_attention B=2,P=9,C=256,N=9,G=1,H=9,E=24 f16 attention_split_16x128_d64",
    "tests/attention:lengths B=3,H=1,S=7,R=140,E=16,F=16 bf16 attention_split_8x128_d64 open",
    "tests/attention:full B=1,H=3,S=5,R=150,E=32,F=48 f16 attention_split_8x128_d64",
    "tests/attention:biased B=1,H=2,S=9,R=150,E=80,F=120 bf16 attention_split_16x128_d128",
    "tests/attention:steep B=1,H=2,S=12,R=390,E=16,F=16 bf16 attention_split_16x128_d64",
    "tests/attention:linear B=2,H=2,S=300,R=300,E=16,F=24 f16 attention_192x128_d64 open",
    "tests/attention:linear B=1,H=2,S=140,R=270,E=72,F=72 bf16 attention_128x128_d128",
    "tests/attention:decayed B=1,H=2,S=300,R=280,E=16,F=16 bf16 attention_128x128_d64",
    "tests/attention:sigmoids B=1,H=2,G=2,S=130,R=150,E=200,F=40 bf16 attention_128x64_d256",
    "tests/attention:linear B=2,H=2,S=150,R=150,E=16,F=24 f16 attention_mma_128x64_d64",
    "tests/attention:decayed B=1,H=2,S=300,R=280,E=16,F=16 bf16 attention_mma_128x64_d64 open",
    "tests/attention:sigmoids B=1,H=2,G=2,S=130,R=150,E=72,F=40 bf16 attention_mma_64x32_d128",
    "tests/attention:shared_scores B=2,H=3,S=150,R=140,E=72,F=40 bf16 attention_128x128_d128",
    "tests/attention:shared_scores B=2,H=3,S=150,R=140,E=72,F=40 bf16 attention_mma_64x32_d128",
    "tests/attention:layer_queries B=2,H=2,G=2,S=200,R=200,E=128,F=128 bf16 attention_rows_128x96_d128 open",
    "tests/attention:layer_keys B=2,H=2,G=2,S=200,R=200,E=128,F=128 f16 attention_pair_128x64_d128 open",
    NULL,
};

/* A page outside of the table counts as one of zeros. All tokens are seen. */
static void compare_outside(const emulated *e, const char *what) {
    problem p[2];
    enum { K = 1, V, PAGE, LENGTH };
    if (!make_two(e, e, p))
        return;
    for (int n = 0; n < 2; n++) {
        tensor *table = &p[n].t[PAGE], *length = &p[n].t[LENGTH];
        int64_t pages = p[n].t[K].shape.sizes[0], last = table->shape.count - 1;
        for (int i = K; i <= V; i++) /* the first page of keys and of values is 0 */
            memset(p[n].t[i].data, 0,
                   (size_t)(p[n].t[i].shape.count / pages) * epi_dtype_size(p[n].t[i].shape.type));
        put_element(table->data, table->shape.type, 1, n ? -1 : 0);
        put_element(table->data, table->shape.type, last, n ? (double)pages : 0);
        for (int64_t i = 0; i < length->shape.count; i++)
            put_element(length->data, length->shape.type, i,
                        (double)(table->shape.sizes[1] * p[n].t[K].shape.sizes[1]));
        run_launches(e, &p[n], false, what);
    }
    for (int i = p[0].inputs; i < p[0].count; i++)
        check(same_bits(&p[0].t[i], &p[1].t[i]), "%s: a page outside of the table is one of zeros", what);
    free_two(p);
}

/* A document among others, from a multiple of a tile of keys on, has the bits that it has alone. That the
 * others are no numbers does not matter: no tile of theirs is read. */
static void compare_alone(const emulated *e, const char *what) {
    enum { PACKED = 384, ALONE = 128, FIRST = PACKED - ALONE };
    problem p[2];
    int64_t outer, inner;
    if (!make_two(e, e->alone, p))
        return;
    for (int i = 0; i < p[0].inputs; i++) {
        tensor *t = &p[0].t[i];
        if (!check(along(t, PACKED, &outer, &inner), "%s: input %d has positions", what, i))
            continue;
        for (int64_t n = 0; n < t->shape.count; n++)
            if (t->shape.type == EPI_I32)
                put_at(t, n, n / inner % PACKED < FIRST ? 7 : 8);
            else if (n / inner % PACKED < FIRST)
                put_at(t, n, (double)NAN);
        take_positions((positions){&p[1].t[i], ALONE, 0}, (positions){t, PACKED, FIRST}, ALONE, false);
    }
    run_launches(e, &p[0], false, what);
    run_launches(e->alone, &p[1], false, what);
    for (int i = p[0].inputs; i < p[0].count; i++)
        check(take_positions((positions){&p[1].t[i], ALONE, 0}, (positions){&p[0].t[i], PACKED, FIRST}, ALONE,
                             true),
              "%s: tensor %d, a document among others has the bits that it has alone", what, i);
    free_two(p);
}

/* What a prefix and the positions after it hide is not read: of the first 128 queries the last 128 keys, of
 * the last keys the first queries. No numbers there change nothing. Prefixes are 11 and 41. */
static void compare_hidden(const emulated *e, const char *what) {
    enum { ALL = 384, PART = 128 };
    bool keys = strstr(e->l->from->program, "_keys");
    int64_t outer, inner, first = keys ? ALL - PART : 0;
    problem p[2];
    if (!make_two(e, e, p))
        return;
    for (int i = 0; i < p[1].inputs; i++) {
        tensor *t = &p[1].t[i];
        epi_tensor_info info;
        epi_program_tensor(e->l->program, i, &info);
        bool streams = false;
        for (int a = 0; a < info.rank; a++)
            streams |= !strcmp(info.axes[a].dim, keys ? "S" : "R");
        if (streams && check(along(t, ALL, &outer, &inner), "%s: input %d", what, i))
            for (int64_t n = 0; n < t->shape.count; n++)
                if (keys ? n / inner % ALL < PART : n / inner % ALL >= ALL - PART)
                    put_at(t, n, (double)NAN);
    }
    for (int n = 0; n < 2; n++)
        run_launches(e, &p[n], false, what);
    for (int i = p[0].inputs; i < p[0].count; i++)
        check(take_positions((positions){&p[0].t[i], ALL, first}, (positions){&p[1].t[i], ALL, first}, PART,
                             true),
              "%s: tensor %d, what is hidden is not read", what, i);
    free_two(p);
}

static void add_attention_row(const loaded *l, variant v, const char *more) {
    v.exact = true;
    emulated *e = add_named("attention", l, v);
    if (e && !strncmp(l->from->program, "packed", 6) && strstr(l->from->dims, "=384"))
        e->alone = add_partner(with_size(l, "=384", "=128"), v);
    if (strstr(more, "open"))
        add_open_case("attention", l, v, e);
}

static void add_attention(void) {
    for_rows(attention, add_attention_row);
}

#endif

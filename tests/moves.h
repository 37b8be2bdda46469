/* moves.h: programs that gather, scatter, update and draw random numbers, with sizes: one table for the CPU
 * (test_moves.c) and for the emitted CUDA text (test_cuda.c, test_emulate.c). */
#ifndef EPI_TESTS_MOVES_H
#define EPI_TESTS_MOVES_H

#include "cases.h"

static const char moves_text[] =
    "embed(table[V,D], ids: i32[B,T]) -> y[B,T,D] { y = table[ids] }\n"
    "turned(table[V,D], ids: i32[B,T]) -> y[D,T,B] { y = 2*table[ids] }\n"
    "pick(x[T,V], y: i32[T]) -> z[T] { z = gather(x, y, V) }\n"
    "inner(x[T,V], i: i32[S]) -> y[T,S] { y = gather(x, i, V) }\n"
    "permute(x[T,V], p: i32[V]) -> y[T,V] { y = gather(x, p, V) }\n"
    "batched(x[B,V,D], i: i32[B,S]) -> y[B,S,D] { y = gather(x, i, V) }\n"
    "twice(x[V,D], i: i32[T,K], j: i32[S]) -> y[S,K,D] { y = x[i][j] }\n"
    "computed(x[V,D], i: i32[T]) -> y[T,D] { y = x[i + 1] }\n"
    "fixed(x[V,D]) -> (y[D], z[D]) { y = x[0.6]  z = x[0*y[0] - 1] }\n"
    "sums(d[T,D], ids: i32[T]) -> g[V,D] { g = scatter(d, ids, V) }\n"
    "sums_turned(d[D,B,T], ids: i32[B,T]) -> g[D,V] { g = scatter(d, ids, V) }\n"
    "spread(d[T,D], ids: i32[T,K]) -> g[V,D] { g = scatter(d, ids, V) }\n"
    "count(ids: i32[T]) -> n[V] { n = scatter(1, ids, V) }\n"
    "all_to_one(d[T,D]) -> (g[V,T,D], none[V,T,D]) { g = scatter(d, 2, V)  none = scatter(d, 0/0, V) }\n"
    "unpermute(d[T,V], p: i32[V]) -> x[T,V] { x = scatter(d, p, V) }\n"
    "back(d[T,D], i: i32[T]) -> (g[V,D], y[T,D]) { g = scatter(d, i - 1, V)  y = g[i] }\n"
    "noise(seed: i32) -> (u[A,B], v: f32[B,A]) { u = uniform(seed, A, B)  v = uniform(seed, B, A) }\n"
    "dropout(x[T,D], seed: i32) -> y[T,D] { y = where(uniform(seed, T, D) < 0.75, x/0.75, 0) }\n"
    "stochastic(x: f32[T,D], seed: i32) -> y: bf16[T,D] { y = dither(x, uniform(seed, T, D)) }\n"
    "lookup_linear(table[V,D], ids: i32[T], w[F,D]) -> y[T,F] { y = silu(table[ids] @ w) }\n"
    "position_bias(x[T,D], w[F,D], b[V,F], i: i32[T]) -> y[T,F] { y = x @ w + b[i] }\n"
    "row_scales(x[T,D], w[F,D], s[V], i: i32[T]) -> y[T,F] { y = (x @ w)*s[i] }\n"
    "drop_inside(x[T,D], w[F,D], seed: i32) -> y[T,F] { y = (x @ w)*(uniform(seed, T, F) < 0.5) }\n"
    "chosen(x[T,D], w[V,D], y: i32[T]) -> z[T] { z = gather(x @ w, y, V) }\n"
    "embed_wide(table[V,D], ids: i64[B,T]) -> y[B,T,D] { y = table[ids] }\n"
    "sums_wide(d[T,D], ids: i64[T]) -> (g[V,D], n: i64[V]) { g = scatter(d, ids, V)  n = scatter(1, ids, V) "
    "}\n"
    "linear_wide(table[V,D], ids: i64[T], w[F,D], b: i64[T,F]) -> (y[T,F], k: i64[T,F]) {\n"
    "    y = silu(table[ids] @ w) + b\n    k = 100*y\n}\n"
    "best_wide(x[T,D], ids: i64[T], seed: i64) -> (y[T,D], n: i64[T,D], same: i64[T], r: i64[T]) {\n"
    "    y = x*ids + uniform(seed, T, D)\n    n = 1e3*x\n    same = ids\n    r = argmax(x, D)\n}\n"
    "counted_past(x[V,D], c[T,D]) -> y[T,D] { y = gather(x, index(T) + 0, V)*c }\n"
    "places(x[B,S,D], w[P,D]) -> y[B,S,D] { y = x + w[index(S)] }\n"
    "places_turned(x[D,S], w[P,D]) -> y[D,S] { y = x*w[index(S)] }\n"
    "places_back(d[B,S,D]) -> g[P,B,D] { g = scatter(d, index(S), P) }\n"
    "place_bias(x[T,D], w[F,D], b[P,F]) -> y[T,F] { y = x @ w + b[index(T)] }\n"
    "cache(x[B,R,H,D], v[B,H,D], at: i32[B]) -> y[B,R,H,D] { y = update(x, v, at, R) }\n"
    "cache_all(x[R,D], v[D], at: i32) -> y[R,D] { y = update(x, v, at, R) }\n"
    "cache_each(x[T,D,R], v[T], at: i32[D,T]) -> y[T,D,R] { y = update(x, v, at, R) }\n"
    "cache_turned(x[D,R], v[D], at: i32[D]) -> y[R,D] { y = update(x, 2*v, at, R) }\n"
    "cache_number(x[R,D]) -> (y[R,D], z[R,D]) { y = update(x, 7, 1, R)  z = update(2*x, x[0], 0/0, R) }\n"
    "cache_used(x[B,R,D], q[B,D], v[B,D], at: i32[B]) -> (s[B,R], y[B,R,D]) {\n"
    "    y = update(x, v, at, R)\n    s = sum(q*y, D)\n}\n"
    "cache_computed(x[R,D], v[D], at: i32) -> y[R,D] { y = 2*update(x, v + 1, at - 1, R) }\n"
    "cache_places(x[S,R,D], v[S,D]) -> y[S,R,D] { y = update(x, v, index(S), R) }\n"
    "order(e: i32[T,K]) -> p: f32[T,K] { p = argsort(e, E) }\n"
    "order_turned(e: i64[T,K]) -> p: f32[K,T] { p = argsort(e, E, K, T) }\n"
    "places_of(e: i32[T,K]) -> q: f32[T,K] { q = rank(e, E) }\n"
    "places_of_any(x: f32[K,T]) -> q: f32[T,K] { q = rank(x, E, T, K) }\n"
    "begins(e: i32[T,K]) -> o: f32[E] { o = offsets(e, E) }\n"
    "begins_at(o: f32[E]) -> s: f32[K,T] { s = segments(o, E, T, K) }\n"
    "order_all(e: i32[T,K]) -> (p: i32[T,K], q: i32[T,K], o: i32[E], s: i32[T,K]) {\n"
    "    p = argsort(e, E)\n    q = rank(e, E)\n    o = offsets(e, E)\n    s = segments(o, E, T, K)\n}\n"
    "order_computed(x[T], e: i32[T]) -> (p[T], o[E], n[E]) {\n"
    "    i = where(index(T) == 3, 0/0, 3*e - 2)\n    p = argsort(i, E)\n    o = offsets(i, E)\n"
    "    n = offsets(0*e, E)\n}\n"
    "choices(e: i32[T,K], d[T,K], x[T,E]) -> y[T,E] {\n"
    "    g = where(index(E) == gather(e, 0, K), gather(d, 0, K), 0) +\n"
    "        where(index(E) == gather(e, 1, K), gather(d, 1, K), 0)\n    y = (g - sum(g*x, E))*x\n}\n"
    "combined(P[T,K,D], q: i32[T,K], g[D]) -> y[T,D] {\n"
    "    s = gather(P, gather(q, 0, K), T, K) + 2*gather(P, gather(q, 1, K), T, K)\n"
    "    y = s*rsqrt(mean(s*s, D) + 1e-6)*g\n}\n"
    "combined_rows(P[T,K,D], q: i32[T,K], r[T,D], g[D]) -> (y[T,D], n[T,D]) {\n"
    "    y = r + gather(P, gather(q, 0, K), T, K) + gather(P, gather(q, 1, K), T, K)\n"
    "    n = y*rsqrt(mean(y*y, D) + 1e-6)*g\n}\n"
    "combined_turned(P[D,K,T], q: i64[K,T], x[T,D]) -> (y[T,D], z[T,D]) {\n"
    "    y = x + gather(P, gather(q, 2, K), T, K)\n    z = max(y, D)*gather(P, gather(q, 0, K), T, K)\n}\n"
    "largest(p: f32[T,E]) -> e: f32[T,K] { e = topk(p, E, K) }\n"
    "largest_turned(p: f32[E,T,S]) -> e: f32[K,S,T] { e = topk(p, E, K) }\n"
    "largest_equal(p[T,E]) -> (e: i32[T,K], g[T,K]) {\n"
    "    q = where(p > 0.5, -inf, where(p > 0, 0/0, floor(2*p)))\n    e = topk(q, E, K)\n"
    "    g = gather(p, e, E)\n}\n"
    "flat(x[T,D], i: i32[S]) -> a[S,D] { a = gather(x, i, T, K) }\n"
    "flat_turned(y[D,K,T], i: i32[S]) -> b[S,D] { b = gather(y, i, T, K) }\n"
    "flat_sums(d[S,D], i: i32[S]) -> g[T,K,D] { g = scatter(d, i, T, K) }\n"
    "flat_sums_turned(d[S,D], i: i32[S]) -> g[D,K,T] { g = scatter(d, i, T, K) }\n"
    "sums_by_batch(d[B,P,D], i: i32[B,P]) -> g[B,V,D] { g = scatter(d, i, P -> V) }\n"
    "sums_by_batch_turned(d[D,P,B,Q], i: i64[P,B,Q]) -> g[D,V,B] { g = scatter(2*d, i, Q, P -> V) }\n"
    "sums_by_batch_flat(d[P,A,D], i: i32[A,P,B]) -> g[T,A,D,B,K] { g = scatter(d, i - 1, P -> T, K) }\n"
    "sums_by_batch_alone(i: i32[B,P], d[B,P]) -> (g[B,V], n[B,V]) {\n"
    "    g = scatter(d, i, P -> V)\n    n = scatter(1, i, P -> V)\n}\n"
    "unpermute_by_batch(d[B,V,D], p: i32[B,V]) -> x[B,V,D] { x = scatter(d, p, V -> V) }\n"
    "batched_back(x[B,V,D], i: i32[B,P], d[B,P,D]) -> g[B,V,D] { g = grad(batched_of, x)(x, i, d) }\n"
    "batched_of(x[B,V,D], i: i32[B,P]) -> y[B,P,D] { y = gather(x, i, V)**2 }\n"
    "stretches(x[T,A], w[C,D,A]) -> (q[T,F,G,D], k[T,F,D], v[T,F,D]) {\n"
    "    q = x @ gather(w, index(F)*size(G) + index(G), C)\n"
    "    k = x @ gather(w, index(F) + size(F)*size(G), C)\n"
    "    v = silu(x @ gather(w, index(F) + size(F)*size(G) + size(F), C))\n}\n"
    "stretch_inner(x[T,D], w[F,D], b[E]) -> (y[T,F], z[T,G]) {\n"
    "    y = x @ w + gather(b, index(F) + 8, E)\n    z = gather(x, index(G) + 16, D)*2\n}\n"
    "stretch_every(x[A,D], y[G,D]) -> z[F,D] { z = gather(x, index(F)*size(G) + 1, A)*sum(y, G) }\n"
    "stretch_outside(x[A,D]) -> z[F,D] { z = gather(x, index(F)*2 + 1, A) }\n"
    "stretch_stored(x[T,D], w[C,D], u[E,F]) -> y[T,E] {\n"
    "    p = softmax(x @ w, C)\n    y = gather(p, index(F) + 8, C) @ u\n}\n"
    "lone_half(x[T,D], w[F,D], c[T,F], d[T,F]) -> y[T,F] {\n"
    "    z = x @ w\n    a, b = halves(c, F)\n    e, f = halves(d, F)\n    g, h = pairs(z, F)\n"
    "    y = z*join(a, a, F) + join(-h, g, F)*join(f, f, F)\n}\n"
    "half_operand(x[T,D], w[F,D]) -> y[T,F] {\n"
    "    a, b = halves(x, D)\n    c, d = halves(w, D)\n    y = silu(b @ c)\n}\n"
    "half_rows(x[T,D], w[F,D]) -> y[F,T] {\n    a, b = halves(w, F)\n    c = x @ b\n    y = concat(c, -c, "
    "F)\n}\n"
    "pieces(x[T,A], y[T,F,D], z[T,F,D], s[G,D,A]) -> (w: f32[C,D,A], u[E,D,A]) {\n"
    "    w = scatter(sum(x*y, T), index(F) + size(G), C) + scatter(sum(x*z, T), index(F) + size(G) + "
    "size(F), C) +\n"
    "        scatter(sin(s), index(G), C)\n"
    "    u = scatter(sum(x*silu(y), T), index(F), E)\n}\n"
    "cache_ids(ids: i64[B,R], next: i64[B], at: i64[B]) -> y: i64[B,R] { y = update(ids, next, at, R) }\n";

static const test_case moves[] = {
    {"moves", "counted_past", "V=5,T=9,D=24", 0},
    {"moves", "cache", "B=3,R=11,H=2,D=24", TINY},
    {"moves", "cache", "B=2,R=1,H=1,D=2053", 0},
    {"moves", "cache", "B=0,R=5,H=1,D=3", 0},
    {"moves", "cache_all", "R=37,D=24", TINY},
    {"moves", "cache_all", "R=1,D=1", 0},
    {"moves", "cache_each", "T=7,D=5,R=13", 0},
    {"moves", "cache_turned", "D=24,R=13", 0},
    {"moves", "cache_number", "R=5,D=24", 0},
    {"moves", "cache_used", "B=3,R=40,D=16", TINY},
    {"moves", "cache_computed", "R=13,D=37", 0},
    {"moves", "cache_places", "S=5,R=7,D=3", 0},
    {"moves", "cache_ids", "B=5,R=13", 0},
    {"moves", "order", "T=61,K=3,E=7", TINY},
    {"moves", "order", "T=3,K=2,E=1000", 0},
    {"moves", "order", "T=2600,K=2,E=40", 0}, /* on a GPU, two blocks */
    {"moves", "order", "T=2100,K=1,E=1024", 0},
    {"moves", "order", "T=0,K=2,E=5", 0},
    {"moves", "order_turned", "T=61,K=3,E=7", 0},
    {"moves", "places_of", "T=61,K=3,E=7", TINY},
    {"moves", "places_of", "T=2600,K=2,E=40", 0},
    {"moves", "places_of", "T=2100,K=1,E=1024", 0},
    {"moves", "places_of_any", "T=61,K=3,E=2", 0},
    {"moves", "begins", "T=61,K=3,E=7", TINY},
    {"moves", "begins", "T=2100,K=1,E=1024", 0},
    {"moves", "begins", "T=0,K=2,E=5", 0},
    {"moves", "begins_at", "T=61,K=3,E=7", TINY},
    {"moves", "begins_at", "T=1,K=1,E=1", 0},
    {"moves", "order_all", "T=61,K=3,E=7", TINY},
    {"moves", "order_all", "T=1,K=1,E=1", 0},
    {"moves", "order_computed", "T=90,E=31", 0},
    {"moves", "largest", "T=41,E=37,K=8", TINY},
    {"moves", "largest", "T=3,E=1024,K=64", 0},
    {"moves", "largest", "T=3,E=5,K=5", 0},
    {"moves", "largest", "T=2,E=3001,K=6", 0}, /* on a GPU, a block a row */
    {"moves", "largest", "T=1,E=33000,K=3", 0},
    {"moves", "largest", "T=0,E=7,K=2", 0},
    {"moves", "largest_turned", "T=3,E=37,K=8,S=5", 0},
    {"moves", "largest_equal", "T=41,E=37,K=8", 0},
    {"moves", "choices", "T=41,K=3,E=64", TINY},
    {"moves", "choices", "T=5,K=2,E=37", 0},
    {"moves", "combined", "T=41,K=3,D=64", TINY},
    {"moves", "combined", "T=5,K=2,D=37", 0},
    {"moves", "combined", "T=1,K=2,D=2053", 0},
    {"moves", "combined_rows", "T=70,K=2,D=2048", 0},
    {"moves", "combined_rows", "T=70,K=2,D=2048", 0}, /* in the other types */
    {"moves", "combined_turned", "T=21,K=3,D=24", 0},
    {"moves", "flat", "T=11,K=3,D=5,S=40", TINY},
    {"moves", "flat", "T=1,K=3,D=5,S=4", 0},
    {"moves", "flat_turned", "T=11,K=3,D=5,S=40", 0},
    {"moves", "flat_sums", "T=11,K=3,D=5,S=101", SUMS},
    {"moves", "flat_sums_turned", "T=11,K=3,D=5,S=101", SUMS},
    {"moves", "sums_by_batch", "B=3,P=101,D=5,V=11", SUMS},
    {"moves", "sums_by_batch", "B=3,P=9,D=5,V=11", 0}, /* so few that it is no pass */
    {"moves", "sums_by_batch", "B=1,P=1500,D=70,V=300", SUMS},
    {"moves", "sums_by_batch", "B=70,P=40,D=1,V=2", SUMS},
    {"moves", "sums_by_batch", "B=0,P=20,D=5,V=11", 0},
    {"moves", "sums_by_batch", "B=2,P=0,D=5,V=11", 0},
    {"moves", "sums_by_batch_turned", "B=3,P=7,Q=11,D=5,V=11", SUMS},
    {"moves", "sums_by_batch_flat", "A=3,B=2,P=40,D=5,T=11,K=3", SUMS},
    {"moves", "sums_by_batch_alone", "B=5,P=70,V=9", SUMS},
    {"moves", "unpermute_by_batch", "B=3,V=37,D=8", SUMS}, /* positions may repeat */
    {"moves", "batched_back", "B=3,P=40,V=37,D=8", SUMS},
    {"moves", "stretches", "T=70,A=40,C=24,D=16,F=4,G=4", TINY},
    {"moves", "stretches", "T=5,A=7,C=9,D=3,F=2,G=2", 0},     /* they begin where no tensor does */
    {"moves", "stretches", "T=70,A=40,C=20,D=16,F=4,G=4", 0}, /* the last is outside */
    {"moves", "pieces", "T=70,A=40,F=3,D=8,G=2,C=8,E=3", TINY},
    {"moves", "pieces", "T=5,A=7,F=2,D=3,G=1,C=5,E=2", 0}, /* on a GPU they begin where no tensor does */
    {"moves", "pieces", "T=5,A=8,F=2,D=3,G=1,C=6,E=3", 0}, /* and there are gaps */
    {"moves", "half_operand", "T=70,D=64,F=40", TINY},
    {"moves", "half_operand", "T=70,D=64,F=40", 0}, /* in the other types */
    {"moves", "half_operand", "T=5,D=6,F=7", 0},
    {"moves", "half_rows", "T=70,D=40,F=48", TINY},
    {"moves", "stretch_inner", "T=37,D=64,F=24,E=40,G=32", TINY},
    {"moves", "stretch_inner", "T=37,D=19,F=24,E=32,G=3", 0},
    {"moves", "stretch_every", "A=16,D=24,F=5,G=3", TINY},
    {"moves", "stretch_outside", "A=9,D=24,F=5", 0},
    {"moves", "stretch_stored", "T=37,D=24,C=40,E=24,F=16", TINY},
    {"moves", "lone_half", "T=70,D=40,F=64", TINY},
    {"moves", "lone_half", "T=5,D=7,F=6", 0},
    {"moves", "places", "B=3,S=11,D=24,P=13", TINY},
    {"moves", "places", "B=1,S=7,D=2053,P=7", 0},
    {"moves", "places", "B=2,S=0,D=3,P=0", 0},
    {"moves", "places_turned", "D=37,S=24,P=29", 0},
    {"moves", "places_back", "B=3,S=11,D=24,P=13", 0},
    {"moves", "place_bias", "T=37,D=24,F=40,P=41", 0},
    {"moves", "embed_wide", "V=37,D=24,B=3,T=11", TINY},
    {"moves", "sums_wide", "T=101,D=5,V=7", TINY | SUMS},
    {"moves", "linear_wide", "V=31,D=29,T=41,F=70", TINY},
    {"moves", "best_wide", "T=41,D=24", TINY},
    {"moves", "best_wide", "T=5,D=7", 0},
    {"moves", "embed", "V=37,D=24,B=3,T=11", TINY},
    {"moves", "embed", "V=1,D=1,B=1,T=1", 0},
    {"moves", "embed", "V=5,D=2053,B=1,T=7", 0},
    {"moves", "embed", "V=7,D=0,B=2,T=3", 0},
    {"moves", "embed", "V=0,D=3,B=0,T=4", 0},
    {"moves", "turned", "V=37,D=24,B=3,T=11", 0},
    {"moves", "pick", "T=1031,V=13", 0},
    {"moves", "pick", "T=0,V=13", 0},
    {"moves", "inner", "T=5,V=19,S=301", 0},
    {"moves", "permute", "T=7,V=53", TINY},
    {"moves", "batched", "B=3,V=11,S=17,D=5", 0},
    {"moves", "twice", "V=11,D=3,T=7,K=2,S=13", 0},
    {"moves", "computed", "V=13,D=3,T=101", 0},
    {"moves", "fixed", "V=3,D=5", 0},
    {"moves", "fixed", "V=2,D=5", 0},
    {"moves", "sums", "T=101,D=5,V=7", TINY | SUMS},
    {"moves", "sums", "T=2,D=1031,V=3", SUMS},
    {"moves", "sums", "T=1,D=1,V=1", SUMS},
    {"moves", "sums", "T=0,D=5,V=7", SUMS},
    {"moves", "sums", "T=5000,D=1,V=3", SUMS},
    {"moves", "sums", "T=31,D=300,V=1009", TINY | SUMS},
    {"moves", "sums", "T=2500,D=3,V=20000", SUMS}, /* on a GPU, stretches of the index without work */
    {"moves", "sums_turned", "D=37,B=3,T=29,V=13", SUMS},
    {"moves", "spread", "T=29,D=17,K=3,V=11", SUMS},
    {"moves", "count", "T=777,V=19", 0},
    {"moves", "all_to_one", "T=300,D=7,V=3", 0},
    {"moves", "unpermute", "T=7,V=53", SUMS},
    {"moves", "back", "T=41,D=3,V=11", SUMS},
    {"moves", "noise", "A=7,B=13", TINY},
    {"moves", "noise", "A=1,B=2", 0},
    {"moves", "noise", "A=0,B=5", 0},
    {"moves", "noise", "A=3,B=2051", 0},
    {"moves", "dropout", "T=13,D=37", 0},
    {"moves", "stochastic", "T=13,D=137", 0},
    {"moves", "lookup_linear", "V=31,D=29,T=41,F=70", TINY},
    {"moves", "position_bias", "V=31,D=29,T=41,F=70", 0},
    {"moves", "row_scales", "V=31,D=29,T=41,F=70", 0},
    {"moves", "drop_inside", "T=41,D=29,F=70", 0},
    {"moves", "chosen", "T=41,D=29,V=70", 0},
};
enum { MOVES = sizeof moves / sizeof *moves };

static inline bool load_move(epi_context *ctx, const test_case *c, loaded *out) {
    epi_error err = {0};
    *out = (loaded){.from = c};
    bool ok =
        epi_module_parse(ctx, moves_text, sizeof moves_text - 1, "moves.epi", &out->module, &err) == EPI_OK;
    out->program = ok ? epi_module_find(out->module, c->program) : NULL;
    out->dim_count = parse_dims(c->dims, out->dims, out->names);
    return check(out->program != NULL, "moves:%s loads: %s", c->program, err.message);
}

#endif

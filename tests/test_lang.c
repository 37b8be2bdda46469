/* test_lang.c: what the parser, the printer and the checker say, message by message. */
#include <pthread.h>

#include "ran.h"

static epi_context *ctx;

#define KEPT(axis, a, b) \
    "@ sums over " axis " here because both " a " and " b " have it, but the output keeps " axis \
    ": rename it in one of them, or write the sum out: sum(a*b, …)"
#define APART(which) \
    "axes do not line up: " which "; take pairs or halves of the longer one, or join the shorter ones first"
#define WORD(word, as) "'" word "' is a word of the language and cannot be used as " as
#define SEED "the seed of uniform must be an input declared as one integer, seed: i32"
/* what is answered to words of others */
#define TOPK \
    "i = topk(x, E, K=8) gives the positions of the 8 largest along E, and gather(x, i, E) their values"
#define PRODUCT "write a @ b, which sums over the axes that both have; sum(a*b, K) sums over K alone"
#define LOOPS \
    "there are no loops: an operation works on all elements, scan(a, x, T) steps along T, repeat(f, L)(…) " \
    "applies a program L times"
#define STOP \
    "you get gradients only for the inputs that you name; to stop one inside a program, call " \
    "stop(x[T]) -> y[T] by stop_grad { y = x } with stop_grad(d_y[T]) -> d_x[T] { d_x = 0*d_y }"
#define LAYERNORM \
    "without g and b, or for one row x[D], write c = x - mean(x, D) and y = c*rsqrt(mean(c*c, D) + eps)"
#define RMSNORM "without g, or for one row x[D], write y = x*rsqrt(mean(x*x, D) + eps)"
#define QUOTE(mark) \
    "the character '" mark "' has no meaning here; there are no strings in a program: write names of axes " \
    "and operations without quotes"

/* A text that must fail, with | where, and the message it must give. Others are in messages.txt. */
static const struct bad {
    const char *text, *message;
} bad[] = {
    {"f(x[T]) -> y[T] { y = |z }", "unknown name 'z'"},
    {"f(x[T]) -> y[T] { y = |foo(x) }", "unknown operation or program 'foo'; docs/language.md lists the "
                                        "operations, 'epilog list' the programs that come with Epilog"},
    {"f(x[T]) -> y[T] { y = |where(x, x) }", "where takes 3 arguments, but 2 were given"},
    {"f(x[T,D]) -> y { y = |mean(x*x) }", "mean needs an axis too: for a value [T,D] write mean(…, D)"},
    {"f(x) -> y { y = |sum(x) }", "sum takes a value and the axes to reduce over, but 1 argument was given"},
    {"f(x) -> y { y = |sum() }", "sum takes a value and the axes to reduce over, but 0 arguments were given"},
    {"f(x[T]) -> y[T] { a, b = |halves(x) y = a }", "halves needs an axis too: for x[T] write halves(x, T)"},
    {"g(a[T]) -> b[T] { b = a } f(x[T]) -> y[T] { y = |g(x, x) }",
     "g takes 1 argument, but 2 were given: it takes a[T]"},
    {"f(x[T,D], y[T,D/2]) -> z[T,D] { z = x |+ y }", APART("x[T,D] has D and y[T,D/2] has D/2")},
    {"f(x[B,S,K], w[B,K,N]) -> y[B,S,N] { y = x |@ w }", KEPT("B", "x[B,S,K]", "w[B,K,N]")},
    {"f(x[B,S,K], w[B,K,N], c[B,N]) -> y[B,S,N] { y = x |@ w + c }", KEPT("B", "x[B,S,K]", "w[B,K,N]")},
    {"f(x[T,F], s[D], w[D,F]) -> y[T,D] { y = s*x |@ w }",
     KEPT("D", "a value [D,T,F]", "w[D,F]") "; or put the product in parentheses, as in a*(b @ c), because "
                                            "the * before it comes first"},
    {"f(x[T,F], s[D], w[D,F]) -> y[T,D] { y = (s*x) |@ w }", KEPT("D", "a value [D,T,F]", "w[D,F]")},
    {"f(x[T], w[N]) -> y[T,N] { y = x |@ w }", "x[T] @ w[N] have no axis in common: give the axis to sum "
                                               "over the same name in both, or write * for an outer product"},
    {"f(x[T]) -> y[T] { y = x |y = x }",
     "'y' already has a value; values are assigned once, choose another name"},
    {"f(x[T]) -> y[T] { |x = 1 y = x }",
     "'x' already has a value; values are assigned once, choose another name"},
    {"f(x[T]) -> y[T] { y = grad(g, x)(x, x) }\ng(x[T]) -> y[T] { y = grad(h, x)(x, x) }\n"
     "h(x[T]) -> y[T] { y = grad(|f, x)(x, x) }",
     "in g: in h: 'f' calls itself through others; programs are inlined and cannot recurse"},
    {"f(x[T]) -> y { y = sum(x, |Q) }",
     "unknown axis 'Q'; no input or output of f has it, and no rename(x, T, Q) creates it"},
    {"f(x[T], z[D]) -> y { y = |sum(x, D) + sum(z, D) + sum(x, T) }", "sum over D: x[T] has no such axis"},
    {"f(x[T]) -> y[T] { y = x + |T }", "'T' is an axis, but this must be a value: write size(T) or index(T)"},
    {"f(x[T]) -> y[T] { y = index(|x) }", "'x' is a value, but this must be an axis"},
    {"f(x[T]) -> y[T] { |a, b = x y = a }", "2 names on the left, 1 value on the right"},
    {"f(x[T,D]) -> y[T,D] { y = |join(x, x, D) }",
     "join to D: both operands need the axis D/2; they are x[T,D] and x[T,D]"},
    {"f(x[T]) -> y[T] {\n m = index(|U)\n y = x + sum(2*rename(x, T, U), U) }",
     "the axis 'U' is created only later, by the rename in line 3"},
    {"f(x[T], |x[T]) -> y[T] { y = x }", "'x' is declared twice"},
    {"f(x[T]) -> |inf[T] { inf = x }", WORD("inf", "an output's name")},
    {"f(|bf16[T]) -> y[T] { y = x }", WORD("bf16", "an input's name")},
    {"|not(x[T]) -> y[T] { y = x }", WORD("not", "a program's name")},
    {"f(x[T]) -> y[T] { |and = x }", WORD("and", "a name to assign")},
    {"g(a[T,D]) -> b[T,D] { b = a } f(x[T]) -> y[T] { y = g(|x) }",
     "g: a has 2 axes, but its argument, x[T], has 1"},
    {"f(x[T,D], g[D], e) -> y[T,D] { y = |layernorm(x, g, e) }",
     "layernorm takes 4 arguments, but 3 were given: it takes x[T,D], g[D], b[D], eps; " LAYERNORM},
    {"f(x[T,D], g[D], e) -> y[T,D] { y = layernorm(x, |e, g, e) }",
     "layernorm: g has 1 axis, but its argument, e, has 0; " LAYERNORM},
    {"g(a[T], b[D]) -> c[T,D] { c = a*b } f(x[T]) -> y[T] { y = g(x, |x) }",
     "g: the axes T and D of g would both be T; rename it in one of the arguments"},
    {"g(a[T], b[T]) -> c[T] { c = a*b } f(x[T], z[D]) -> y[T] { y = g(x, |z) }",
     "g: the axis T of g is T in one argument, but D in 'b'"},
    {"f(d[B,S,D], i: i32[B,S], w[V,D]) -> t[V,D] { t = unpermute(d, i) }\nunpermute(d[T,D], i: i32[T]) -> "
     "t[T,D] { t = |scatter(d, i, T) }",
     "scatter would sum over B, an extra axis of the call's arguments; write the formula for these axes "
     "instead"},
    {"f(x[T,D], g[E,D]) -> y[T,D] { |y = rmsnorm(x, g, 1) }",
     "y is declared [T,D] but its value is [E,T,D]: declare the axis E, or reduce over it"},
    {"f(x[D]) -> y[D] { y = rmsnorm(|x, x, 1) }",
     "rmsnorm: x has 2 axes, but its argument, x[D], has 1; " RMSNORM},
    {"f(x[T,D]) -> y[T] { y = sum(|embedding_grad(x, argmax(x, D)), D) }",
     "in embedding_grad: the arguments of the call do not give the size of axis 'V' of embedding_grad; add "
     "an input that has this axis"},
    {"f(x[T,D], dy[T,D]) -> d[T,D] { d = |backward(softmax, x)(dy) }",
     "backward(softmax) takes 2 arguments, but 1 was given: it takes y, d_y"},
    {"f(x[T,D], dy[T,D]) -> d[T,D] { d = |backward(softmax, x) }",
     "backward(f, x) is a program: call it with the inputs and results of f that it needs and a cotangent "
     "for each of its results, backward(f, x)(…)"},
    {"f(x[T,D], dy[T,D]) -> d[T,D] { d = |backward(softmax, x)(x, 0) }",
     "in softmax: all cotangents are 0, and so are the gradients"},
    {"n(x[T,D]) -> y[T,D] { y = x*rsqrt(mean(x*x, D)) }\nf(x[T,D], dy[T,D]) -> d[T,D] { d = |backward(n, "
     "x)(x, dy) }",
     "in n: the backward also needs saved[T], which is not a result of n: make it a result, or use grad(n, "
     "…)"},
    {"f(x[T], a[A,B,C,D,E,F,G,H]) -> y[T] { y = g(x, |a) } g(x, a) -> y { y = x + a }",
     "the result would have more than 8 axes"},
    {"f(x[A,B,C,D,E,F,G,H], s: i32, p[I]) -> y[A] { y = |dropout(x, s, p) }",
     "in dropout: the result would have more than 8 axes"},
    /* gather, scatter and random numbers */
    {"f(x[V], i: i32[T]) -> y[T] { y = |gather(x, i) }",
     "gather takes a value, an index and the axes that it indexes, but 2 arguments were given"},
    {"f(x[V], i: i32[T]) -> y[T] { y = |gather(x, i, T) }", "gather over T: x[V] has no such axis"},
    {"f(x[V], i: i32[T]) -> y[T] { y = gather(x, i, |i) }", "'i' is a value, but this must be an axis"},
    {"f(x[V,F], i: i32[F/2]) -> y[F] { y = x|[i] }", APART("x[V,F] has F and i[F/2] has F/2")},
    {"f(x, i: i32[T]) -> y[T] { y = x|[i] }",
     "x[i] takes elements along the first axis of x, but x has no axes"},
    {"f(i: i32[T]) -> y[T] { y = 2|[i] }",
     "x[i] takes elements along the first axis of x, but this has no axes"},
    {"f(x[V], i: i32[T]) -> y[T] { y = x[i|, i] }",
     "x[i] takes one index, along the first axis of x; gather(x, i, V) takes elements along V"},
    {"f(x[V], i: i32[T]) -> y[T] { y = x[|] }", "expected a value, found ']'"},
    {"f(x[V]) -> y[V] { y = x[|V] }", "'V' is an axis, but this must be a value: write size(V) or index(V)"},
    {"f(d[T], i: i32[T]) -> y[T] { y = scatter(d, i, |Q) }",
     "unknown axis 'Q'; no input or output of f has it, and no rename(x, T, Q) creates it"},
    {"f(d[T,V/2], i: i32[T]) -> y[V] { y = |scatter(d, i, V) }",
     "scatter to V: d[T,V/2] has that axis already, and the index i[T] does not; rename the axis first"},
    {"f(d[2*T], i: i32[T], v[V]) -> y[V] { y = |scatter(d, i, V) }", APART("d[2*T] has 2*T and i[T] has T")},
    {"f(x[R,D], v[D], i: i32) -> y[R,D] { y = |update(x, v, i) }",
     "update takes 4 arguments, but 3 were given"},
    {"f(x[D], v[D], i: i32, z[R]) -> y[D] { y = |update(x, v, i, R) }",
     "update along R: x[D] has no such axis"},
    {"f(x[R,D], v[D,F], i: i32) -> y[R,D] { y = |update(x, v, i, R) }",
     "update along R: the value v[D,F] has the axis F, which x[R,D] lacks"},
    {"f(x[R,D], v[D], i: i32[T]) -> y[R,D] { y = |update(x, v, i, R) }",
     "update along R: the index i[T] has the axis T, which x[R,D] lacks"},
    {"f(x[R,D], v[D], i: i32[R]) -> y[R,D] { y = |update(x, v, i, R) }",
     "update along R: the index i[R] must not have that axis, because it is one element along it"},
    {"f(x[R,F], v[F/2], i: i32) -> y[R,F] { y = |update(x, v, i, R) }",
     "update along R: the value v[F/2] has the axis F/2, which x[R,F] lacks"},
    {"f(x[R=4,D], v[D]) -> y[R,D] { y = |update(x, v, 4, R) }",
     "the number 4 is outside the axis R, which has 4 elements"},
    {"f(x[R,D], v[D]) -> y[R,D] { y = |update(x, v, -1, R) }",
     "the number -1 is outside every axis: positions count from 0"},
    {"f(x[R,D], v[D], i: i32) -> y[R,D] { y = |index_put(x, v, i, R) }",
     "unknown operation or program 'index_put': update(x, v, i, V) is x with v at the position i along V"},
    {"f(x[A,B,C,D,E], i: i32[F,G,H,I,J]) -> y[A] { y = x|[i] }", "the result would have more than 8 axes"},
    {"f(e: i32[T,K]) -> y[T,K] { y = |argsort(e + 0, E) }",
     "argsort of a value [T,K], which is computed: name its axes after E, in the order in which its elements "
     "are counted"},
    {"f(e: i32[T,K]) -> y[T,K] { y = |rank(e, E, T) }",
     "rank of e[T,K]: the axes after E must be the axes of the index, in the order in which its elements are "
     "counted"},
    {"f(e: i32[T,K]) -> y[T,K] { y = |argsort(e, T) }",
     "argsort: the index has the axis T that its elements index; rename that axis"},
    {"f(e: i32) -> y { y = |argsort(e, E) }",
     "argsort of e: it orders elements, but this is a single number"},
    {"f(o[E]) -> y[T] { y = |segments(o, E) }", "segments takes a value, the axis that its elements index, "
                                                "and the axes of the positions, but 2 arguments were given"},
    {"f(o[E,T]) -> y[T] { y = |segments(o, E, T) }",
     "segments of o[E,T]: it needs offsets with the axis E alone"},
    {"g(e: i32[T]) -> y[T] { y = |argsort(e, E) }\nf(e: i32[B,T], w[E]) -> y[B,T] { y = g(e) }",
     "argsort would order elements along B, an extra axis of the call's arguments; write the formula for "
     "these axes instead"},
    {"f(p[T,E]) -> y[T] { y = |topk(p, T, E) }", "topk to E: p[T,E] has that axis already"},
    {"f(p[T,E]) -> y[T] { y = |topk(p, D, K=2) }", "topk over D: p[T,E] has no such axis"},
    {"f(p[T,E]) -> y[T,K] { y = |topk(p, E) }", "topk takes 3 arguments, but 2 were given: " TOPK},
    {"f(p[T,E]) -> y[T,K=3] { y = topk(p, E, |K=2) }",
     "the axis K has 2 elements here, but 3 before; give it one size, or two names"},
    {"f(p[T,E]) -> y[T,K] { y = topk(|p=2, E, K) }", "p=2 gives an axis a size, but this must be a value"},
    {"f(p[T,E]) -> y[T] { y = sum(p, E|=2) }",
     "arguments have no names: write them in order; an axis goes by its own name, as in sum(x, D)"},
    {"f(p[T,E]) -> y[T,K] { y = topk(p, E, K=|0) }",
     "the size of an axis must be a whole number from 1 to 2^30, as in K=3"},
    {"f(x[T,D], i: i32[S]) -> y[S,D] { y = |gather(x, i, K, S) }",
     "gather over [K,S]: x[T,D] has none of these axes"},
    {"f(seed: i32) -> y[T] { y = |uniform(seed) }",
     "uniform takes a seed and the axes of the result, but 1 argument was given"},
    {"f(seed: i32) -> y[T] { y = |uniform(seed, T, T) }", "uniform names the axis T twice"},
    {"f(seed: i32) -> y[T] { y = |uniform(seed, T, T/2) }", "uniform names the axis T twice"},
    {"f(seed) -> y[T] { y = |uniform(seed, T) }", SEED},
    {"f(seed: i32[T]) -> y[T] { y = |uniform(seed, T) }", SEED},
    {"f(x[T]) -> y[T] { y = |uniform(1, T) }", SEED},
    {"f(seed: i32) -> y[T] { y = |uniform(seed + 1, T) }", SEED},
    {"f(x[T]) -> y[T] { y = |dither(x) }", "dither takes 2 arguments, but 1 was given"},
    /* syntax */
    {"f(x[T]) -> y[T] { y = (x |}", "expected ')' to close the parenthesis, found '}'"},
    {"f(x[T]) |y[T] { y = x }", "expected '->' between inputs and outputs, found 'y'"},
    {"f(x[T]) -> y[T] { y = x|", "expected '}' after the program's body, found the end of the text"},
    {"f(x: |f33[T]) -> y[T] { y = x }",
     "'f33' is not a type; the types are f32, bf16, f16, i32, f64, i64, e4m3, e5m2, i8, u8, i4, u4"},
    {"f(x[T]) -> y[T] { y = |silu }", "'silu' is an operation: write silu(…)"},
    {"f(x[T]) -> y[T] {\n y = |z\n z = x }", "'z' is assigned only later, in line 3"},
    {"f(x[T]) -> y[T] { y = |if(x, x, x) }", "unknown operation or program 'if': write where(a, b, c)"},
    {"f(x[T]) -> a[T]|, b[T] { a = x b = x }", "write several outputs in parentheses: -> (a[T], b[T])"},
    {"f(x[T]) -> y[T]|: bf16 { y = x }", "write the type before the axes: y: bf16[T]"},
    {"|// square\nf(x[T]) -> y[T] { y = x*x }", "a comment begins with #"},
    {"f(x[T]) -> y[T] { y = |2x }", "'2x' is neither a number nor a name; write a product as 2*x"},
    {"f(x[T]) -> y[T] { a: |i64 = x  y = a }",
     "a value is stored as f32, bf16 or f16; i64 is for inputs and outputs, and i64(…) for values"},
    {"f(x[|i32]) -> y { y = sum(x, i32) }", WORD("i32", "an axis")},
    {"f(x[T]) -> y { y = |softmax(x) }", "softmax needs an axis too: for x[T] write softmax(x, T)"},
    {"f(x[T]) -> y { y = |max(x) }", "max needs an axis too: for x[T] write max(x, T)"},
    {"f(x) -> y { y = |min(x) }", "min takes 2 arguments, but 1 was given"},
    {"f(x[T]) -> y { y = |argmax(x, T, T) }", "argmax takes 2 arguments, but 3 were given"},
    {"f(x[T]) -> y[T] { y = |clamp(x, 0) }", "clamp takes 3 arguments, but 2 were given"},
    {"f(x[T]) -> y[T] { y = |var }", "'var' is an operation: write var(…)"},
    {"f(x[T], w[D]) -> y { y = |var(x, D) }", "var over D: x[T] has no such axis"},
    {"f(x[T]) -> y[T] { y = |softmax(x, T, T) }", "softmax names the axis T twice"},
    {"exp(x[T]) -> y[T] { y = f(x) } f(x[T]) -> y[T] { y = |exp(x) }",
     "'exp' calls itself through others; programs are inlined and cannot recurse"},
    {"f(x[T]) -> y { y = |sum(x, T, T) }", "sum names the axis T twice"},
    {"f(x[T,D], w[F,D]) -> y[T,F] { y = |sum(x*w, D, D) }", "sum names the axis D twice"},
    {"f(x[T,D], w[F,D]) -> y[T,F] { y = |mean(x*w, D, D) }", "mean names the axis D twice"},
    {"f(x[T,D,E], w[F,D,E]) -> y[T,F] { y = |sum(x*w/2, D, E, D) }", "sum names the axis D twice"},
    {"f(x[T,D]) -> y[T] { y = |max(x*x, D, D) }", "max names the axis D twice"},
    {"f(x[T,D]) -> y[T] { y = |var(x, D, D) }", "var names the axis D twice"},
    {"f(x[T,D]) -> y[T] { y = |logsumexp(x, D, D) }", "logsumexp names the axis D twice"},
    {"f(x[T]) -> y[T] { y = x |$ x }", "the character '$' has no meaning here"},
    {"f(x[T]) -> y[T] { y = x |\x80 }", "the byte 0x80 has no meaning here; a program is plain text"},
    {"f(x[T]) -> y[T] { y = x |\xe2\x88 }", "the byte 0xe2 has no meaning here; a program is plain text"},
    {"f(x[T]) -> y[T] { y = x |∞ }", "the character '∞' has no meaning here; write inf"},
    {"f(x[T]) -> y[T] { y = x |α }",
     "the character 'α' has no meaning here; outside comments a program has only ASCII characters"},
    {"f(x[T]) -> y[T] { y = a < b |< c }", "comparisons do not chain; join two with 'and'"},
    {"|f() -> () { }", "the program f has no outputs"},
    /* hints */
    {"f(x[T]) -> y[T] { y = |Exp(x) }", "unknown operation or program 'Exp'; did you mean exp?"},
    {"f(x[T,D]) -> y[T,D] { y = |rmsnrom(x, x, 1) }",
     "unknown operation or program 'rmsnrom'; did you mean rmsnorm?"},
    {"f(x[T]) -> y[T] { y = |my_blcok(x) } my_block(x[T]) -> y[T] { y = x }",
     "unknown operation or program 'my_blcok'; did you mean my_block?"},
    {"f(x[T]) -> y[T] { y = |bmm(x, x) }", "unknown operation or program 'bmm': " PRODUCT},
    {"f(x[T]) -> y[T] { y = |x(2) }", "'x' is a value and cannot be called; write a product as x*(…)"},
    {"f(weights[T]) -> y[T] { y = |wieghts*2 }", "unknown name 'wieghts'; did you mean weights?"},
    {"f(x[T]) -> y[T] { y = where(x > 0, |True, x) }", "unknown name 'True': write 1"},
    {"f(x[T]) -> y { y = sum(x, |t) }", "unknown axis 't'; did you mean T?"},
    {"f(x[T,D]) -> y[T] { y = x|.sum(D) }",
     "the character '.' has no meaning here; there are no methods, fields or modules: write f(x), not x.f() "
     "or torch.f(x)"},
    {"f(x[T,D]) -> y[T] { y = mean(x, |-1) }",
     "argument 2 of mean must be an axis: give its name, not a number"},
    {"f(x[T,D]) -> y[T] { y = mean(x, |1) }",
     "argument 2 of mean must be an axis: give its name, not a number"},
    {"f(x[T]) -> y[T] { y = x |& x }", "the character '&' has no meaning here; write and"},
    {"f(x[T]) -> y[T] { y = x\n |return y }",
     "'return' is not a word of the language; give every output its value: y = value"},
    {"|def f(x[T]) -> y[T] { y = x }",
     "'def' is not a word of the language; a file has programs: name(inputs) -> outputs { name = value }"},
    {"f(x[T]) -> y[T] { y = x |if x > 0 else 0 }",
     "'if' is not a word of the language; write where(a, b, c)"},
    {"f(x[T]) -> y[T] { y = |if x > 0 then x else 0 }",
     "'if' is not a word of the language; write where(a, b, c)"},
    {"f(x[T]) -> y[T] { |for i in T { y = x } }", "'for' is not a word of the language; " LOOPS},
    {"f(x[T]) -> y[T] { y = |for(x) }", "unknown operation or program 'for': " LOOPS},
    {"f(x[T]) -> y[T] { y = |detach(x) }", "unknown operation or program 'detach': " STOP},
    {"f(x[T]) -> y[T] { y = x|.detach() }", "the character '.' has no meaning here; " STOP},
    {"f(x[T,D], w[F,D]) -> y[T,F] { y = |einsum(\"td,fd->tf\", x, w) }",
     "unknown operation or program 'einsum': " PRODUCT},
    {"f(x[T,D], w[F,D]) -> y[T,F] { y = torch|.einsum('td,fd->tf', x, w) }",
     "the character '.' has no meaning here; " PRODUCT},
    {"f(x[B,T,H,D]) -> y[B,H,T,D] { y = |rearrange(exp(x), 'b t h d -> b h t d') }",
     "unknown operation or program 'rearrange': write the value itself: axes match by name, and an output "
     "has its axes in the declared order; declare heads as an axis, as in x[T,H,D]"},
    {"f(x[T]) -> y[T] { y = exp(|\"x\") }", QUOTE("\"")},
    {"f(x[T]) -> y[T] { y = bmm(x) + |'x' }", QUOTE("'")},
    {"f(x[T]) -> y[T] { y = x*|arange(8) }",
     "unknown operation or program 'arange': write index(D), the positions 0, 1, 2, … along the axis D"},
    {"f(x[T,D]) -> y[T,D] { y = |softmax(2*x) }",
     "softmax needs an axis too: for a value [T,D] write softmax(…, D)"},
    {"f(x[T,D]) -> y[T,D] { y = |layernorm(x + 1) }",
     "layernorm takes 4 arguments, but 1 was given: it takes x[T,D], g[D], b[D], eps; " LAYERNORM},
    {"f(x[T,D], g[D]) -> y[T] { y = layernorm(|sum(x, D), g, g, 1e-5) }",
     "layernorm: x has 2 axes, but its argument, a value [T], has 1; " LAYERNORM},
    {"layernorm(x[T]) -> y[T] { y = x }  f(x[T]) -> y[T] { y = |layernorm(x, x) }",
     "layernorm takes 1 argument, but 2 were given: it takes x[T]"},
    {"f(x[T,D]) -> y[T,D] { y = |rmsnorm(x) }",
     "rmsnorm takes 3 arguments, but 1 was given: it takes x[T,D], g[D], eps; " RMSNORM},
    {"f(x[T,D]) -> i: i32[T,K=2] { i = topk(x, D |-> K) }",
     "topk takes no arrow: write its new axis last, as in topk(x, E, K=8)"},
    {"f(x[T,D], i: i32[P]) -> y[P,D] { y = gather(x, i |-> T) }",
     "only scatter takes an arrow, and only one, as in scatter(d, i, P -> T)"},
    {"f(x[T,D]) -> (v[T,K=2], i: i32[T,K=2]) { |v, i = topk(x, D, K=2) }",
     "2 names on the left, 1 value on the right: " TOPK},
    {"f(x[T,D]) -> (v[T,K=2], i: i32[T,K=2]) { v, i = |topk(x, 2) }",
     "topk takes 3 arguments, but 2 were given: " TOPK},
    {"f(x[T]) -> y[T] { |a, b = exp(x) }", "2 names on the left, 1 value on the right"},
    {"f(x[T]) -> y[T] { y |+= x }", "values are assigned once, and there is no '+=': write z = y + …"},
    {"f(x[T] |w[T]) -> y[T] { y = x*w }", "expected ',' or ')' in the list, found 'w'"},
    {"f(x[T,|3]) -> y[T] { y = sum(x, 3) }", "an axis needs a name: declare one with 3 elements as C=3"},
    {"f(x[T], w[D]) -> y[T] { y = |cumsum(x, D) }", "cumsum over D: x[T] has no such axis"},
    {"f(a, x[D], t[T]) -> y[T,D] { y = |scan(a, x, T)*t }", "scan along T: neither a nor x[D] has that axis"},
    {"f(a, x[T], h[T]) -> y[T] { y = scan_back(a, x, T, |h) }",
     "scan_back along T begins with one state, but h[T] has that axis"},
    {"f(a, x[T]) -> y[T] { y = |scan(a, x) }",
     "scan takes a factor, a term, an axis and an optional first state, but 2 arguments were given"},
    {"f(x[T,D], w[D,F]) -> y[T,F] { y = matmul(x, |w) }",
     "matmul: the axes K and N of matmul would both be D; write x @ w, which sums over the axes that both "
     "have"},
};

/* What the messages above tell to write is right: these texts have nothing wrong. */
static const char *const told[] = {
    "f(x[T,E]) -> (v[T,K=8], i: i32[T,K=8]) { i = topk(x, E, K=8)  v = gather(x, i, E) }",
    "f(x[T,D], eps) -> y[T,D] { c = x - mean(x, D)  y = c*rsqrt(mean(c*c, D) + eps) }",
    "f(x[D], eps) -> y[D] { y = x*rsqrt(mean(x*x, D) + eps) }",
    "f(x[T,D], w[F,D]) -> (y[T,F], z[T,F]) { y = x @ w  z = sum(x*w, D) }",
    "f(x[B,T,H,D]) -> y[B,H,T,D] { y = exp(x) }",
    "f(x[T,D], a) -> y[T,D] { y = x*index(D) + scan(a, x, T) }",
    "f(x[T]) -> y[T] { y = 2*x }  g(x[T]) -> y[T] { y = repeat(f, 3)(x) }",
    ("stop(x[T]) -> y[T] by stop_grad { y = x }  stop_grad(d_y[T]) -> d_x[T] { d_x = 0*d_y }\n"
     "f(x[T], w[T]) -> y[T] { y = x*stop(w) }  g(x[T], w[T], d[T]) -> y[T] { y = grad(f, w)(x, w, d) }"),
};

/* What is made of a text, and its messages. */
static epi_status parse(const char *text, epi_module **m, epi_error *err) {
    *m = NULL;
    *err = (epi_error){0};
    return epi_module_parse(ctx, text, strlen(text), "t.epi", m, err);
}

/* A message with its place, as it is shown. */
static void check_shown(const epi_error *err, const char *want) {
    char shown[512];
    epi_error_format(err, shown, sizeof shown);
    check(!strcmp(shown, want), "shown as %s", shown);
}

static void test_messages(void) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[400];
        int before = (int)strcspn(bad[i].text, "|"), line = 1, column = 1;
        snprintf(text, sizeof text, "%.*s%s", before, bad[i].text, bad[i].text + before + 1);
        for (int c = 0; c < before; c++, column++)
            if (text[c] == '\n') {
                line++;
                column = 0;
            }
        epi_module *m;
        epi_error err;
        check(parse(text, &m, &err) != EPI_OK, "must fail: %s", text);
        epi_module_free(m);
        check(!strcmp(err.message, bad[i].message), "%s\n  says    %s\n  expected %s", text, err.message,
              bad[i].message);
        check(err.line == line && err.column == column, "%s\n  at %d:%d, expected %d:%d", text, err.line,
              err.column, line, column);
        check(!strcmp(err.file, "t.epi"), "the error names the file");
    }
}

static void test_told(void) {
    for (size_t i = 0; i < sizeof told / sizeof *told; i++)
        epi_module_free(parsed(ctx, told[i]));
}

/* The one thing a gemm kernel cannot do is a part of its own. */
static void test_incomplete(void) {
    static const char text[] = "f(x[T,K], w[D,K], g[D], eps) -> y[T,D] {\n"
                               "    h = x @ w\n"
                               "    r = rsqrt(mean(h*h, D) + eps)\n"
                               "    y = h*r*g\n"
                               "}\n"
                               "ok(x[T,K], w[D,K], eps) -> (h[T,D], r[T]) {\n"
                               "    h = x @ w\n"
                               "    r = rsqrt(mean(h*h, D) + eps)\n"
                               "}\n"
                               "down(x[T,K], w[D,K]) -> y[T,D] { h = x @ w  m = max(h, T)  y = h - m }\n";
    static const struct {
        const char *program, *mainloop, *second;
    } expected[] = {
        {"ok", "gemm", NULL}, {"f", "parts", "part 2 of 2, rows"}, {"down", "parts", "part 2 of 2, rows"}};
    epi_module *m = parsed(ctx, text);
    for (int i = 0; i < 3; i++) { /* more columns than a tile has */
        epi_kernel *k = kernel_of(epi_module_find(m, expected[i].program), "T=5,K=3,D=300", (way){0});
        char how[4096];
        epi_kernel_describe(k, how, sizeof how);
        check(!strcmp(info_of(k).mainloop, expected[i].mainloop), "%s is %s", expected[i].program,
              info_of(k).mainloop);
        check(!expected[i].second || strstr(how, expected[i].second), "%s: %s", expected[i].program, how);
        epi_kernel_free(k);
    }
    epi_module_free(m);
}

/* Sizes that do not fit the program. */
static void test_dims(void) {
    static const char text[] = "f(x[T,F]) -> y[T,F/2] {\n    a, b = pairs(x, F)\n    y = a + b\n}\n"
                               "g(x[2*F]) -> y[2*F] { y = x }\n"
                               "h(a[M], b[N]) -> c { c = sum(a*b, M, N) }\n";
    static const struct {
        const char *program, *dims, *message;
        int line;
    } cases[] = {
        {"f", "T=3,F=5", "F/2 needs F to be divisible by 2, but it is 5", 2},
        {"f", "T=3", "the size of axis 'F' was not given; give dims F=...", 0},
        {"f", "", "the size of axis 'T' was not given, nor were F; give dims T=...,F=...", 0},
        {"f", "T=3,F=4,F=6", "axis 'F' is given two sizes, 4 and 6", 0},
        {"f", "T=3,F=4,Q=6", "the program has no axis 'Q'; it has T, F", 0},
        {"f", "T=-3,F=4", "the size of axis 'T' is negative", 0},
        {"f", "T=4611686018427387904,F=4", "the size of x[T,F] overflows 64 bits", 1},
        {"g", "F=9223372036854775807", "the size of 2*F overflows 64 bits", 5},
        {"h", "M=1099511627776,N=1048576", "a value [M,N] would have more than 2^48 elements", 0},
    };
    epi_module *m = parsed(ctx, text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        epi_error err = {0};
        bound b;
        bind_dims(&b, cases[i].dims, EPI_F32, 0);
        epi_kernel *k;
        epi_status status = epi_kernel_compile(epi_module_find(m, cases[i].program), &b.options, &k, &err);
        check(status != EPI_OK, "must fail: %s", cases[i].dims);
        epi_kernel_free(k);
        check(!strcmp(err.message, cases[i].message) && err.line == cases[i].line,
              "%s says '%s' at line %d, expected '%s' at %d", cases[i].dims, err.message, err.line,
              cases[i].message, cases[i].line);
    }
    epi_module_free(m);
}

/* print(parse(print(parse(t)))) == print(parse(t)), and what the canonical form looks like. */
static void test_print(void) {
    static const char *const texts[][2] = {
        {"f(x[T,K],w[N,K],r:f32[T])->(y[T,N]){y=(x@w)*r}",
         "f(x[T,K], w[N,K], r: f32[T]) -> y[T,N] {\n    y = (x @ w)*r\n}\n"},
        {"f(x[T,K],w[N,K],g[K],r[T])->y[T,N]{y=r*x*g@w+r/x@w@w@w*r}",
         "f(x[T,K], w[N,K], g[K], r[T]) -> y[T,N] {\n    y = (r*x*g) @ w + ((r/x) @ w @ w @ w)*r\n}\n"},
        {"# a\n#   b\nf(x[2*T]) -> y[2*T] { y = -(x+1)*-x; }",
         "# a\n#   b\nf(x[2*T]) -> y[2*T] {\n    y = -(x + 1)*-x\n}\n"},
        {"f(a[T])->y[T]{y=a-(a-a)-a/(a*a)}", "f(a[T]) -> y[T] {\n    y = a - (a - a) - a/(a*a)\n}\n"},
        {"f(a[T])->y[T]{y=not(a<1 and a>2 or not a==3)}",
         "f(a[T]) -> y[T] {\n    y = not (a < 1 and a > 2 or not a == 3)\n}\n"},
        {"f(a[T])->y[T]{y=(a<1)==(a<2)}", "f(a[T]) -> y[T] {\n    y = (a < 1) == (a < 2)\n}\n"},
        {"f(a[T])->y[T]{y=a*1e-05+.5+1.50e3+inf}",
         "f(a[T]) -> y[T] {\n    y = a*1e-05 + 0.5 + 1500 + inf\n}\n"},
        {"f(x[V,D],i:i32[T],j:i32[S])->y[S,D]{y=((x[i]))[ j ]*2}",
         "f(x[V,D], i: i32[T], j: i32[S]) -> y[S,D] {\n    y = x[i][j]*2\n}\n"},
        {"f(x[V],i:i32[T])->y[T]{y=-x[(i+1)]+(2*x)[i]-(x+(-x))[x[i] or 0]}",
         "f(x[V], i: i32[T]) -> y[T] {\n    y = -x[i + 1] + (2*x)[i] - (x + -x)[x[i] or 0]\n}\n"},
        {"f(x[V,D],i:i32[T],w[D,K])->y[T,K]{y=(x[i]@w)+gather(x@w,i,V)+(-x)[i]@w}",
         "f(x[V,D], i: i32[T], w[D,K]) -> y[T,K] {\n    y = x[i] @ w + gather(x @ w, i, V) + (-x)[i] @ "
         "w\n}\n"},
        {"f(x[V],s:i32)->y[V]{y=dither(x,uniform(s,V))+uniform(s,V)[index(V)]}",
         "f(x[V], s: i32) -> y[V] {\n    y = dither(x, uniform(s, V)) + uniform(s, V)[index(V)]\n}\n"},
        {"f(x[T],i:i32[T])->y[T]{y=-x**2+(-x)**-x[i]**(2*x)-2**(x**2)**3-(x**2)**3*(pow(x,2)@x)**-(x+1)}",
         "f(x[T], i: i32[T]) -> y[T] {\n    y = -x**2 + (-x)**-x[i]**(2*x) - 2**(x**2)**3 - "
         "(x**2)**3*(pow(x, 2) @ x)**-(x + 1)\n}\n"},
        {"f(a[T],b[T],w[T,K])->y[K]{y=(a//b)%b*-a%(b//(a%2))@w}",
         "f(a[T], b[T], w[T,K]) -> y[K] {\n    y = (a // b % b*-a % (b // (a % 2))) @ w\n}\n"},
        {"f(a[T],b[F])->(y[T,F],z[F/2,T]){s [ T,F ]=a*b y=s u:f32[ (F)/2 ,T],v[F/2,T]=pairs(s,F) z=u+v}",
         "f(a[T], b[F]) -> (y[T,F], z[F/2,T]) {\n    s[T,F] = a*b\n    y = s\n"
         "    u: f32[F/2,T], v[F/2,T] = pairs(s, F)\n    z = u + v\n}\n"},
        {"f(d[B,P,Q],i:i32[B,P,Q])->y[B,T,K]{y=scatter(d,i,P,Q->T,K)}",
         "f(d[B,P,Q], i: i32[B,P,Q]) -> y[B,T,K] {\n    y = scatter(d, i, P, Q -> T, K)\n}\n"},
        {"f(a[F])->(y[F/2],z[F/2]){y,z=pairs(a,F)}",
         "f(a[F]) -> (y[F/2], z[F/2]) {\n    y, z = pairs(a, F)\n}\n"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char once[2048], twice[2048];
        const char *source = texts[i][0];
        for (int round = 0; round < 2; round++) {
            epi_module *m = parsed(ctx, source);
            if (!m)
                break;
            epi_program_print(epi_module_program(m, 0), round ? twice : once, sizeof once);
            epi_module_free(m);
            source = once;
        }
        check(!strcmp(once, texts[i][1]), "prints as\n%s, expected\n%s", once, texts[i][1]);
        check(!strcmp(once, twice), "printing again gives\n%s, not\n%s", twice, once);
    }
}

/* Texts whose programs `called` and `written` compute the same bits of the same inputs. */
static const struct same {
    const char *dims, *text;
} same[] = {
    /* Programs call programs: axes bind by position, scales multiply, and the result is the same. */
    {"S=21,D=9,G=35",
     "act(z[T,F]) -> o[T,F/2] { gate, up = pairs(z, F)  o = silu(gate)*up }\n"
     "scale(x[A,B], r[A]) -> (y[A,B], s[A]) { y = x*r  s = sum(y, B) }\n"
     "called(n[S,D], w[2*G,D], r[S]) -> (o[S,G], s[S]) { z, s = scale(n @ w, r)  o = act(z) }\n"
     "written(n[S,D], w[2*G,D], r[S]) -> (o[S,G], s[S]) {\n"
     "  z = (n @ w)*r  s = sum(z, 2*G)  gate, up = pairs(z, 2*G)  o = silu(gate)*up }"},
    /* Programs that come with Epilog are called like those of the text, which come first. */
    {"S=5,E=33,F=7",
     "called(x[S,E], g[E], w[2*F,E]) -> (y[S,F], n[S,E]) {\n"
     "  n = rmsnorm(x, g, 1e-6)  y = swiglu_gate_pairs(n @ w) }\n"
     "written(x[S,E], g[E], w[2*F,E]) -> (y[S,F], n[S,E]) {\n"
     "  n = x*rsqrt(mean(x*x, E) + 1e-6)*g  gate, up = pairs(n @ w, 2*F)  y = silu(gate)*up }"},
    {"T=5,F=9", "swiglu_gate(a[T,F], b[T,F]) -> y[T,F] { y = a - b }\n"
                "called(z[T,2*F], a[T,F], b[T,F]) -> (y[T,F], d[T,F]) {\n"
                "  y = swiglu_gate_pairs(z)  d = swiglu_gate(a, b) }\n"
                "written(z[T,2*F], a[T,F], b[T,F]) -> (y[T,F], d[T,F]) {\n"
                "  gate, up = pairs(z, 2*F)  y = silu(gate)*up  d = a - b }"},
    /* The order of an argument's axes says which is which; a name may state it, in a call that carries axes, too. */
    {"B=2,T=5,F=7", "unit(x[A,B]) -> y[A,B] { y = x - max(x, B) }\n"
                    "called(a[T], b[F], x[B,T,F]) -> (y[T,F], z[F,T], w[B,T,F]) {\n"
                    "  s[F,T] = a*b  y = unit(s)  t[T,F] = s  z = unit(t)  w = turned(x) }\n"
                    "turned(x[T,F]) -> y[T,F] { s[F,T] = 2*x  y = unit(s) }\n"
                    "written(a[T], b[F], x[B,T,F]) -> (y[T,F], z[F,T], w[B,T,F]) {\n"
                    "  s = a*b  y = s - max(s, T)  z = s - max(s, F)\n"
                    "  u = 2*x  w = u - max(u, T) }"},
    /* Axes of an argument in front of the declared ones are carried to what depends on it. */
    {"B=2,S=5,E=33,F=7",
     "called(x[B,S,E], g[E], w[F,E], b[F]) -> y[B,S,F] { y = linear(rmsnorm(x, g, 1e-6), w, b) }\n"
     "written(x[B,S,E], g[E], w[F,E], b[F]) -> y[B,S,F] {\n"
     "  y = x*rsqrt(mean(x*x, E) + 1e-6)*g @ w + b }"},
    /* a callee's reductions go over its own axes: the gradient of g keeps B */
    {"B=3,S=5,D=9", "called(dy[B,S,D], x[B,S,D], g[D], r[B,S]) -> (dx[B,S,D], dg[B,D]) {\n"
                    "  dx, dg = rmsnorm_grad(dy, x, g, r) }\n"
                    "written(dy[B,S,D], x[B,S,D], g[D], r[B,S]) -> (dx[B,S,D], dg[B,D]) {\n"
                    "  dg = sum(dy*(x*r), S)  dn = dy*g  dx = dn*r - x*(mean(dn*x, D)*r*r*r) }"},
    /* scalars too: a program of numbers is one of tensors */
    {"S=3,T=5", "f(a, b) -> y { y = a*b + a }\n"
                "called(x[S,T], z[T]) -> y[S,T] { y = f(x, z) }\n"
                "written(x[S,T], z[T]) -> y[S,T] { y = x*z + x }"},
    /* random numbers are drawn along carried axes as well */
    {"B=3,S=5,D=9",
     "called(x[B,S,D], seed: i32, p) -> y[B,S,D] { y = dropout(x, seed, p) }\n"
     "written(x[B,S,D], seed: i32, p) -> y[B,S,D] { y = where(uniform(seed, B, S, D) >= p, x/(1 - p), 0) }"},
    /* x[i] takes from the first axis that is declared */
    {"H=2,V=11,D=3,B=3,S=5", "called(t[H,V,D], ids: i32[B,S]) -> y[H,B,S,D] { y = embedding(t, ids) }\n"
                             "written(t[H,V,D], ids: i32[B,S]) -> y[H,B,S,D] { y = gather(t, ids, V) }"},
    /* through calls in calls, whatever the order in which a formula meets its operands */
    {"B=3,T=5,D=5", "inner(a[M,N]) -> y[M] { y = sum(a*index(N), N) }\n"
                    "outer(g[D], x[T,D]) -> y[T] { y = inner(g*x) }\n"
                    "called(g[B,D], x[T,D]) -> y[B,T] { y = outer(g, x) }\n"
                    "written(g[B,D], x[T,D]) -> y[B,T] { a = g*x  y = sum(a*index(D), D) }"},
    /* a new name of an axis is the callee's own, and the same one in every call */
    {"S=5,D=7,R=3", "gram(x[T,D]) -> y[T] { y = sum((x @ rename(x, T, R))*index(R), R) }\n"
                    "called(x[S,D], z[S,D], w[R]) -> y[S] { y = gram(x) + gram(z) + w @ index(R) }\n"
                    "written(x[S,D], z[S,D], w[R]) -> y[S] {\n"
                    "  a = x @ rename(x, S, P)  b = z @ rename(z, S, P)\n"
                    "  y = sum(a*index(P), P) + sum(b*index(P), P) + w @ index(R) }"},
    /* an axis that both operands of a callee's product carry is a batch axis */
    {"B=3,M=5,N=4,K=9", "called(x[B,M,K], w[B,N,K]) -> y[B,M,N] { y = matmul(x, w) }\n"
                        "written(x[B,M,K], w[B,N,K]) -> y[B,M,N] { y = sum(x*w, K) }"},
    /* the result of a call has its axes as the callee declares them */
    {"S=5,T=5",
     "first(a[M,N]) -> y[N] { y = sum(a*(index(M) + 1), M) }\n"
     "called(x[S,T]) -> (y[S], z[T]) { y = first(transpose(x))  z = first(transpose(transpose(x))) }\n"
     "written(x[S,T]) -> (y[S], z[T]) { y = sum(x*(index(T) + 1), T)  z = sum(x*(index(S) + 1), S) }"},
    {"D=7,V=7,T=4", "pick(x[V,D], i: i32[T]) -> y[T,D] { y = x[i] }\n"
                    "called(x[D,V], i: i32[T]) -> y[T,D] { y = transpose(x)[i] }\n"
                    "written(x[D,V], i: i32[T]) -> y[T,D] { y = gather(x, i, V) }"},
    /* A word is the formula that it stands for. */
    {"T=7,D=67", "called(x[T,D]) -> (y[T,D], z[T,D]) { y = softmax(x, D)  z = log_softmax(x, D) }\n"
                 "written(x[T,D]) -> (y[T,D], z[T,D]) {\n"
                 "  top = max(x, D)  c = x - where(top == -inf, 0, top)\n"
                 "  e = exp(c)  s = max(sum(e, D), 1)  y = e/s  z = c - log(s) }"},
    {"B=3,T=5,D=7",
     "called(x[B,T,D]) -> (v[B], w[B,T], y[B,T,D]) {\n"
     "  v = var(x, T, D)  w = var(x, D)  y = softmax(x, T, D) }\n"
     "written(x[B,T,D]) -> (v[B], w[B,T], y[B,T,D]) {\n"
     "  a = x - mean(x, T, D)  v = mean(a*a, T, D)\n"
     "  b = x - mean(x, D)  w = mean(b**2, D)\n"
     "  top = max(x, T, D)  e = exp(x - where(top == -inf, 0, top))  y = e/max(sum(e, T, D), 1) }"},
    {"T=67", "called(a[T], b[T], d[T]) -> (q[T], r[T], da[T], db[T]) {\n"
             "  q = 2*a // b*a  r = -a % b*a  da, db = grad(of, a, b)(a, b, d) }\n"
             "of(a[T], b[T]) -> y[T] { y = a % b*2 + a // b }\n"
             "written(a[T], b[T], d[T]) -> (q[T], r[T], da[T], db[T]) {\n"
             "  q = floor(2*a/b)*a  r = (-a - b*floor(-a/b))*a  da = 2*d  db = -2*d*floor(a/b) }"},
    {"T=9,D=31", "called(x[T,D], lo[D], hi) -> (c[T,D], i[T]) { c = clamp(x, lo, hi)  i = argmax(x, D) }\n"
                 "written(x[T,D], lo[D], hi) -> (c[T,D], i[T]) {\n"
                 "  c = min(max(x, lo), hi)\n"
                 "  i = min(where(x == max(x, D), index(D), size(D)), D) }"},
    /* a program of the text comes first; inside itself its name is the word's */
    {"T=9,D=31", "var(x[T,D]) -> y[T] { y = var(x, D) + 1 }\n"
                 "called(x[T,D]) -> v[T] { v = var(x) }\n"
                 "written(x[T,D]) -> v[T] { v = mean((x - mean(x, D))**2, D) + 1 }"},
    {"T=9,D=31", "exp(x[T,D]) -> y[T,D] { y = exp(x)*2 }\n"
                 "called(x[T,D]) -> e[T,D] { e = exp(x) }\n"
                 "written(x[T,D]) -> e[T,D] { e = exp2_of(x)*2 }\n"
                 "exp2_of(x[T,D]) -> e[T,D] { e = exp(x)/2 }"},
    /* Names of operations may name values, axes and inputs: what stands before a parenthesis is the operation. */
    {"T=5,D=9", "called(cos[T,D], sin[T,D], index[T]) -> (sum[T], size) {\n"
                "  exp = cos(sin)*sin(cos) + sin*cos\n"
                "  max = max(exp, D)\n"
                "  sum = sum(exp*index, D) + max\n"
                "  size = sum(index + size(T), T) }\n"
                "written(a[T,D], b[T,D], c[T]) -> (s[T], n) {\n"
                "  e = cos(b)*sin(a) + b*a\n"
                "  m = max(e, D)\n"
                "  s = sum(e*c, D) + m\n"
                "  n = sum(c + size(T), T) }"},
    {"sum=5,mean=1", "called(x[sum,mean]) -> y[sum] { y = sum(x, mean)*index(sum) }\n"
                     "written(x[sum,mean]) -> y[sum] { y = mean(x*size(mean), mean)*index(sum) }"},
};

static void test_same(void) {
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        epi_module *m = parsed(ctx, same[i].text);
        ran called, written = {0};
        if (run_as(&called, epi_module_find(m, "called"), same[i].dims, (way){0}) &&
            run_as(&written, epi_module_find(m, "written"), same[i].dims, (way){0}))
            for (int t = called.p.inputs; t < called.p.count; t++)
                check(called.p.count == written.p.count && same_bits(&called.p.t[t], &written.p.t[t]),
                      "output %d has the bits of what is written out: %s", t - called.p.inputs, same[i].text);
        DISCARD(&called, &written);
        epi_module_free(m);
    }
}

#define UNIT "unit(x[A,B]) -> y[A,B] { y = x*rsqrt(sum(x*x, B)) }\n"
#define NORM "norm(x[A,B], g[B]) -> y[A,B] { y = x*rsqrt(sum(x*x, B))*g }\n"

/* What `check` says of the last program of a text has this in it; NULL: it says nothing. */
static const struct note {
    const char *text, *want;
} notes[] = {
    /* no text shows the order, and another one fits */
    {UNIT "f(a[T], b[F]) -> y[T,F] { y = unit(a*b) }", "text:2:37: unit binds the axes"},
    {UNIT "f(a[T,K], b[K,F]) -> y[T,F] { y = unit(2*sum(a*b, K)) }", "v[T,F] = "},
    {UNIT "f(a[T], b[F]) -> (y[T,F/2], z[T,F/2]) { y, h = pairs(a + b, F)  z = unit(h) }", "h[T,F/2] = "},
    {UNIT "f(x[B,T], b[F]) -> y[B,T,F] { y = unit(x*b) }", "the order [F,B,T] would"},
    {UNIT "f(a[T], b[F], d[T,F]) -> (p[T], q[F]) { p, q = grad(g, a, b)(a, b, d) }\n"
          "g(a[T], b[F]) -> y[T,F] { s = a*b  y = unit(s) }",
     "s[T,F] = "},
    {UNIT "f(a[T], b[F]) -> y[T,F] { y = repeat(unit, 3)(a*b) }", "unit binds the axes"},
    {"twice(x[A,B]) -> y[A,B] { y = 2*x }\n" UNIT "f(a[T], b[F]) -> y[T,F] { y = unit(twice(a*b)) }",
     "text:3:36: unit binds the axes"},
    /* it is stated, or shown; it does not fit, or means the same */
    {UNIT "f(a[T], b[F]) -> y[T,F] { s[T,F] = a*b  y = unit(2*s) }", NULL},
    {UNIT "f(a[T,K], b[K,F]) -> y[T,F] { y = unit(a @ b) }", NULL},
    {UNIT "f(x[T,F], b[F]) -> y[T,F] { y = unit(b*x) }", NULL},
    {UNIT "f(a[T], b[F]) -> y[F,T] { y = unit(unit2(a, b)) }\nunit2(a[T], b[F]) -> y[F,T] { y = a*b }\n"
          "g(a[T], b[F]) -> y[F,T] { y = unit(unit2(a, b)) }",
     NULL},
    {NORM "f(a[T], b[F]) -> y[T,F] { y = norm(a*b, b) }", NULL},
    {"twice(x[A,B]) -> y[A,B] { y = 2*x }\nf(a[T], b[F]) -> y[T,F] { y = twice(a*b) }", NULL},
    /* a scatter sums over a batch, which its result is repeated along */
    {"f(x[B,T], d[B,P], i: i32[B,P]) -> y[B,T] { y = x - 2*scatter(d, i, T) }",
     "text:1:54: this also sums over B, and the sum is then repeated along it; to keep B, write "
     "scatter(d, i, P -> T)"},
    {"f(d[B,P], i: i32[B,P]) -> y[T] { y = sum(scatter(d, i, T)*index(B), B) }",
     "text:1:42: this also sums over B, and the sum is then repeated"},
    {UNIT "f(a[T,K], b[F,K], c[F]) -> y[T] { y = sum(unit(sum(b*a, K))*c, F) }",
     "text:2:48: unit binds the axes"},
    {"f(x[B,T], d[B,P], i: i32[B,P]) -> y[B,T] { y = x - 2*scatter(d, i, P -> T) }", NULL},
    {"f(x[B,T], d[B,P], i: i32[B,P]) -> y[B,T] { y = x - 2*scatter(d, i, B, P -> T) }", NULL},
    {"f(x[T], d[B,P], i: i32[B,P]) -> y[T] { y = x - 2*scatter(d, i, T) }", NULL},
    {"f(x[B,T], d[B], i: i32[B]) -> y[B,T] { y = x - 2*scatter(d, i, T) }", NULL},
};

static void test_notes(void) {
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
        epi_module *m = parsed(ctx, notes[i].text);
        char got[2000] = "";
        epi_program_warnings(epi_module_program(m, epi_module_count(m) - 1), got, sizeof got);
        const char *at = notes[i].want ? strstr(got, notes[i].want) : NULL;
        check(notes[i].want ? at && !strstr(at + 1, notes[i].want) : !*got, "of %s, once: %s", notes[i].text,
              got);
        epi_module_free(m);
    }
}

/* What a terminal would obey is shown, not sent: of the text, of its file's name, and the mark stays in
 * place. */
static void test_control(void) {
    static const char text[] = "f(x[T]) -> y[T] { # \x1b[2J\x9b\xc2\x9b\x7f\a\n  \t# \r\n\ty = \x1b x }";
    static const char line[] = "f(x[T]) -> y[T] { y = \t\x1b[31m }";
    static const char after[] = "f(x[T]) -> y[T] { y = z # \x1b\n}";
    epi_module *m;
    epi_error err;
    check(epi_module_parse(ctx, line, sizeof line - 1, "a\x1b.epi", &m, &err) == EPI_ERR_SYNTAX, "an escape");
    check_shown(&err, "a\\x1b.epi:1:24: the byte 0x1b has no meaning here; a program is plain text\n"
                      "  f(x[T]) -> y[T] { y = \t\\x1b[31m }\n"
                      "                        \t^");
    check(parse(after, &m, &err) == EPI_ERR_CHECK, "behind the mark");
    check_shown(&err, "t.epi:1:23: unknown name 'z'\n  f(x[T]) -> y[T] { y = z # \\x1b\n"
                      "                        ^");
    check(parse(text, &m, &err) == EPI_ERR_SYNTAX && err.line == 3, "controls in comments");
    err =
        (epi_error){.message = "tensor '\x1b]0;\a' and \xc2\x9b, \xc2\xa0, \xc3\x9f", .line = 1, .column = 4};
    snprintf(err.source, sizeof err.source, "\x1b\xc2\x9b");
    check_shown(&err, "1:4: tensor '\\x1b]0;\\x07' and \\xc2\\x9b, \xc2\xa0, \xc3\x9f\n"
                      "  \\x1b\\xc2\\x9b\n"
                      "              ^");
}

/* ---- small stacks, and what is too much ---- */

static void refuse(const epi_text *t, epi_status want, const char *says) {
    epi_module *m = NULL;
    epi_error err = {0};
    check(epi_module_parse(ctx, t->data, t->length, "t", &m, &err) == want && strstr(err.message, says),
          "%.60s ... of %zu bytes: %s", t->data, t->length, err.message);
    epi_module_free(m);
}

enum { SMALL_STACK = 128 * 1024, SANITIZED_STACK = 8 * SMALL_STACK };

static void add_times(epi_text *t, int n, const char *word) {
    while (n-- > 0)
        epi_text_add(t, "%s", word);
}

/* A program whose value is `open` n times, then `middle`, then `close` n times. */
static char *repeated(const char *open, const char *middle, const char *close, int n) {
    epi_text t = {0};
    epi_text_add(&t, "f(x[T], i: i32[T], s: i32) -> y[T] { y = ");
    add_times(&t, n, open);
    epi_text_add(&t, "%s", middle);
    add_times(&t, n, close);
    epi_text_add(&t, " }\n");
    return t.data;
}

static const struct nested {
    const char *open, *middle, *close;
    int n;
    const char *message; /* NULL: it parses */
} nested[] = {
    {"(", "x", ")", 199, NULL},
    {"(", "x", ")", 200, "expressions are nested too deeply; assign inner ones to names"},
    {"(-", "x", ")", 99, NULL},
    {"-", "x", "", 199, NULL},
    {"-", "x", "", 100000, "expressions are nested too deeply; assign inner ones to names"},
    {"not ", "x", "", 199, NULL},
    {"exp(", "x", ")", 199, NULL},
    {"sum(", "x", ")", 199, "sum needs an axis too: for x[T] write sum(x, T)"},
    {"softmax(", "x", ", T)", 199, NULL},
    {"rmsnorm_of_it(", "x", ")", 199,
     "unknown operation or program 'rmsnorm_of_it'; docs/language.md lists the operations, 'epilog list' the "
     "programs that come with Epilog"},
    {"linear(", "x", ", i, s)", 199, "linear: x has 2 axes, but its argument, x[T], has 1"},
    {"max(1, ", "x", ")", 199, NULL},
    {"where(x, x, ", "x", ")", 199, NULL},
    {"x + (", "x", ")", 99, NULL},
    {"x[", "i", "]", 199, NULL},
    {"x or x and x == x + x*-(", "x", ")", 24, NULL},
    {"", "x", " + 1", 4000, NULL},
    {"", "x", " - x*2", 2000, NULL},
    {"(", "x", " + x)*s", 99, NULL},
    {"", "x", "[i]", 4000, NULL},
    {"", "x", " @ x*x", 1000, NULL},
    {"", "x", "*x", 70000, "the program has more than 65536 operations after inlining"},
    {"x and ", "x", "", 4000, NULL},
    {"2**", "x", "", 199, NULL},
    {"2**", "x", "", 1000, "expressions are nested too deeply; assign inner ones to names"},
};

static void *parse_nested(void *unused) {
    for (size_t c = 0; c < sizeof nested / sizeof *nested; c++) {
        char *text = repeated(nested[c].open, nested[c].middle, nested[c].close, nested[c].n);
        epi_module *m;
        epi_error err;
        parse(text, &m, &err);
        check(!strcmp(err.message, nested[c].message ? nested[c].message : ""), "%d times %s %s: %s",
              nested[c].n, nested[c].open, nested[c].close, err.message);
        size_t length = epi_program_print(epi_module_program(m, 0), NULL, 0);
        check(!m || length > 40, "%d times %s %s prints", nested[c].n, nested[c].open, nested[c].close);
        char *once = malloc(length + 1);
        epi_program_print(epi_module_program(m, 0), once, length + 1);
        epi_module_free(m);
        check(nested[c].message || epi_module_parse(ctx, once, length, "t", &m, &err) == EPI_OK,
              "%d times %s %s printed and parsed again: %s", nested[c].n, nested[c].open, nested[c].close,
              err.message);
        if (!nested[c].message)
            epi_module_free(m);
        free(once);
        free(text);
    }
    return unused;
}

/* Expressions inside each other once calls are inlined: 32 programs, each calling the next 9 deep. */
static void *parse_inlined(void *unused) {
    epi_text t = {0};
    for (int i = 0; i < 32; i++) {
        epi_text_add(&t, "p%d(x[T]) -> y[T] { y = ", i);
        add_times(&t, 9, "exp(");
        epi_text_add(&t, i < 31 ? "p%d(x)" : "x", i + 1);
        epi_text_add(&t, ")))))))))\n}\n");
    }
    refuse(&t, EPI_ERR_CHECK,
           "expressions are nested more than 200 deep once calls are inlined; assign inner ones to names");
    epi_text_free(&t);
    return unused;
}

/* Whatever a text holds, parsing and printing it fit in the stack of a thread that has little. */
static void test_small_stack(void) {
    static void *(*const works[])(void *) = {parse_nested, parse_inlined};
    size_t size = SMALL_STACK;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    size = SANITIZED_STACK;
#endif
    for (int i = 0; i < 2; i++) {
        pthread_attr_t attr;
        pthread_t thread;
        pthread_attr_init(&attr);
        check(!pthread_attr_setstacksize(&attr, size), "a thread may have a stack of %zu bytes", size);
        if (check(!pthread_create(&thread, &attr, works[i], NULL), "a thread starts"))
            pthread_join(thread, NULL);
        pthread_attr_destroy(&attr);
    }
}

/* As many inputs and axes as there may be, and one more. */
static void test_counts(void) {
    for (int more = 0; more < 2; more++)
        for (int axes = 0; axes < 2; axes++) {
            epi_text t = {0};
            int count = (axes ? 256 : 1024) + more;
            epi_text_add(&t, "f(");
            for (int i = 0; i < count; i++)
                epi_text_add(&t, axes ? "%sx%d[A%d]" : "%sx%d", i ? ", " : "", i, i);
            epi_text_add(&t, ") -> y { y = %s }", axes ? "sum(x7, A7)" : "x7 + x1023");
            if (!more)
                epi_module_free(parsed(ctx, t.data));
            else if (axes)
                refuse(&t, EPI_ERR_CHECK, "at most 256 differently named axes");
            else
                refuse(&t, EPI_ERR_SYNTAX, "at most 1024 inputs and as many outputs");
            epi_text_free(&t);
        }
}

/* Texts that try to exhaust the compiler: a clear error, never a crash. Each begins in one way, has a middle
 * that stands there many times, with numbers where it wants some, and an end. */
static void test_hostile(void) {
    static const struct {
        const char *begin, *middle, *end;
        int times;
        epi_status status;
        const char *says;
    } texts[] = {
        {"f(x[T]) -> y[T] { y = ", "(", "", 100000, EPI_ERR_SYNTAX, "nested too deeply"},
        {"f(x[T]) -> y[T] { y = ", "-", "", 100000, EPI_ERR_SYNTAX, ""},
        {"f(x[T]) -> y[T] { y = x", "+x", " }", 70000, EPI_ERR_CHECK, "more than 65536 operations"},
        /* each program calls the next one twice: 2^30 calls if nothing stops it */
        {"", "p%d(x[T]) -> y[T] { a = p%d(x) b = p%d(x) y = a + b }\n", "p30(x[T]) -> y[T] { y = x*1.5 }\n",
         30, EPI_ERR_CHECK, "too large once its calls are inlined"},
        {"f(x[T]) -> y[T] {\n v0 = x\n", "v%2$d = v%1$d+x\n", "y = v69999 }\n", 69999, EPI_ERR_CHECK,
         "more than 65536 operations"},
        {"", "x", "", 1 << 21, EPI_ERR_SYNTAX, ""},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        epi_text t = {0};
        if (!wanted("%d times %s", texts[i].times, texts[i].middle))
            continue;
        epi_text_add(&t, "%s", texts[i].begin);
        for (int n = 0; n < texts[i].times; n++)
            epi_text_add(&t, texts[i].middle, n, n + 1, n + 1);
        epi_text_add(&t, "%s", texts[i].end);
        refuse(&t, texts[i].status, texts[i].says);
        epi_text_free(&t);
    }
    no_case();
    epi_module *m = parsed(ctx, "");
    check(m && epi_module_count(m) == 0, "the empty text");
    epi_module_free(m);
}

/* Texts laid out anew: where comments go. What the parser makes of the result is held by test_docs.c. */
static void test_layout(void) {
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", ""},
        {"\n\n", ""},
        {"# only", "# only\n"},
        {"f(x[T])->y[T]{y=x;}", "f(x[T]) -> y[T] {\n    y = x\n}\n"},
        {"\xef\xbb\xbf"
         "f(x[T]) -> y[T] { y = x }\r\n",
         "f(x[T]) -> y[T] {\n    y = x\n}\n"},
        /* numbers and parentheses as they are written, blanks as they are printed */
        {"f(x[T]) -> y[T] { y = (1e-6*x) + .50 * ((x)) }",
         "f(x[T]) -> y[T] {\n    y = (1e-6*x) + .50*(x)\n}\n"},
        {"f(a[T],b[F]) -> y[T,F] { s[T,F] # as it is\n = a*b  u : f32 [T] = a y=s+u }",
         "f(a[T], b[F]) -> y[T,F] {\n    # as it is\n    s[T,F] = a*b\n    u: f32[T] = a\n    y = s + "
         "u\n}\n"},
        /* one blank line stays, more do not, and none at the ends of a body */
        {"f(x[T]) -> y[T] {\n\n a = x\n\n\n b = a\n y = b\n\n}",
         "f(x[T]) -> y[T] {\n    a = x\n\n    b = a\n    y = b\n}\n"},
        /* comments: far above, above, behind, inside and at the end */
        {"#a\n\n#b\nf(x[T]) -> y[T] { # c\n #d\n y = x # e\n  + 1 # f\n #g\n} # h\n#i\n",
         "# a\n\n# b\nf(x[T]) -> y[T] { # c\n    # d\n    # e\n    y = x + 1 # f\n    # g\n} # h\n# i\n"},
        /* behind neighbours they stand below each other */
        {"f(x[T]) -> y[T] {\n a = x # a\n bbb = a # b\n\n y = bbb # c\n}",
         "f(x[T]) -> y[T] {\n    a = x   # a\n    bbb = a # b\n\n    y = bbb # c\n}\n"},
        /* in a head they take its list apart */
        {"f(x[T], # a\n w[T]) -> y[T] { y = x*w }",
         "f(\n    x[T], # a\n    w[T]\n) -> y[T] {\n    y = x*w\n}\n"},
        /* a list that begins on a new line stays in its groups, with what stands before and behind these */
        {"f(\n x[T],y[T],\n\n\n a[T] ,b[T], # w\n # c\n c[T]) -> (\n u[T], v[T]) { u, v = g(x) }",
         "f(\n    x[T], y[T],\n\n    a[T], b[T], # w\n    # c\n    c[T]\n) -> (\n    u[T], v[T]\n) {\n    u, "
         "v = g(x)\n}\n"},
        {"f(x[T],\n y[T],\n\n z[T]) -> u[T] { u = x }", "f(x[T], y[T], z[T]) -> u[T] {\n    u = x\n}\n"},
        {"f # a\n(x[T]) -> (y[T], z[T] # b\n) { y, z = g(x) }",
         "f(\n    # a\n    x[T]\n) -> (\n    y[T],\n    z[T] # b\n) {\n    y, z = g(x)\n}\n"},
        {"f(x[T]) -> # a\n y[T] # b\n { y = x }", "f(x[T]) -> y[T] {\n    # a\n    # b\n    y = x\n}\n"},
        {"f(x[T]) -> y[T] { y = x } g(x[T]) -> y[T] { y = x }",
         "f(x[T]) -> y[T] {\n    y = x\n}\n\ng(x[T]) -> y[T] {\n    y = x\n}\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[1000];
        size_t n;
        epi_error err;
        bool ok = epi_format(cases[i].text, strlen(cases[i].text), "t", got, sizeof got, &n, &err) == EPI_OK;
        check(ok && !strcmp(got, cases[i].want) && n == strlen(got), "laid out anew: %s",
              ok ? got : err.message);
    }
    char small[4] = "?";
    size_t n;
    epi_error err;
    check(epi_format("# abc", 5, "t", small, sizeof small, &n, NULL) == EPI_OK && n == 6 &&
              !strcmp(small, "# a"),
          "a small buffer gets what fits");
    check(epi_format("f(", 2, "t", small, sizeof small, &n, &err) == EPI_ERR_SYNTAX && err.line == 1 && !n,
          "what does not parse is not laid out");
    check(epi_format(NULL, 0, "t", NULL, 0, &n, &err) == EPI_ERR_ARGUMENT, "a text is wanted");
    /* a line that is too long goes on below, behind the least nested operator */
    char text[600] = "f(x[T]) -> y[T] { y = g(x, x)", got[1200];
    for (int i = 0; i < 20; i++)
        strcat(text, " + g(x, x)");
    strcat(text, " }");
    check(epi_format(text, strlen(text), "t", got, sizeof got, &n, NULL) == EPI_OK, "a long line");
    size_t widest = 0;
    for (const char *at = got; *at; at += strcspn(at, "\n") + 1)
        widest = strcspn(at, "\n") > widest ? strcspn(at, "\n") : widest;
    check(widest > 100 && widest <= 120 && strstr(got, ") +\n        g("), "is cut: %s", got);
}

int main(void) {
    if (!check(epi_context_open(&ctx, NULL) == EPI_OK, "a context opens"))
        return finish();
    test_messages();
    test_told();
    test_incomplete();
    test_dims();
    test_print();
    test_layout();
    test_same();
    test_notes();
    test_control();
    test_small_stack();
    test_counts();
    test_hostile();
    epi_context_close(ctx);
    return finish();
}

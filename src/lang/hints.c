/* hints.c: words of other languages, and what to write instead. */
#include "lang/hints.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct hint {
    const char *names; /* with a blank before and behind each */
    const char *text;
} hint;

#define LOOPS \
    "there are no loops: an operation works on all elements, scan(a, x, T) steps along T, repeat(f, L)(…) " \
    "applies a program L times"

static const hint operations[] = {
    {" mm bmm dot einsum tensordot addmm baddbmm inner gemm ",
     "write a @ b, which sums over the axes that both have; sum(a*b, K) sums over K alone"},
    {" permute swapaxes transposed t T movedim ",
     "axes match by name, so nothing is transposed; an output has its axes in the declared order"},
    {" rearrange ", "write the value itself: axes match by name, and an output has its axes in the declared "
                    "order; declare heads as an axis, as in x[T,H,D]"},
    {" reshape view flatten squeeze unsqueeze expand expand_dims broadcast_to tile ",
     "nothing is reshaped: tensors match by the names of their axes, and are repeated along axes that they "
     "lack"},
    {" slice narrow chunk split ",
     "halves(x, F) and pairs(x, F) split an axis, gather(x, index(F) + 3, V) takes a slice of V"},
    {" cat concatenate stack hstack vstack ",
     "concat(a, b, F) appends two halves of an axis F, join(a, b, F) interleaves them"},
    {" index_select take take_along_axis take_along_dim select lookup ",
     "x[i] takes elements along the first axis of x, gather(x, i, V) along V"},
    {" scatter_add index_add bincount ",
     "scatter(x, i, V) adds each element of x to the position of V that i names"},
    {" index_copy index_put put_along_axis dynamic_update_slice assign set ",
     "update(x, v, i, V) is x with v at the position i along V"},
    {" one_hot onehot ", "a one-hot row is index(V) == y"},
    {" arange range iota linspace ", "write index(D), the positions 0, 1, 2, … along the axis D"},
    {" len shape numel count ", "the number of elements along an axis is size(D)"},
    {" zeros ones full zeros_like ones_like full_like eye ",
     "a number is repeated along every axis: write 0 or 1"},
    {" rand random randn normal bernoulli ",
     "random numbers in [0,1) are uniform(seed, T, D), with an input seed: i32"},
    {" if select_if cond iff ternary ifelse masked_fill ", "write where(a, b, c)"},
    {" tril triu causal_mask ",
     "a mask is a condition on positions: where(index(R) <= index(S), s, -inf) is causal"},
    {" scaled_dot_product_attention sdpa flash_attn flex_attention attn ",
     "write attention as a formula: sum(softmax(sum(q*k, E)*rsqrt(size(E)), R)*v, R)"},
    {" for while loop map vmap ", LOOPS},
    {" float int cast to type astype half bfloat16 ",
     "declare types of inputs and outputs, as in y: bf16[T]; all arithmetic is f32"},
    {" detach stop_gradient no_grad ",
     "you get gradients only for the inputs that you name; to stop one inside a program, call stop(x[T]) -> "
     "y[T] by stop_grad { y = x } with stop_grad(d_y[T]) -> d_x[T] { d_x = 0*d_y }"},
    {" print assert return ", "a program is a formula: it only computes its outputs"},
    {" average ", "write mean(x, D)"},
    {" std stddev ", "write sqrt(var(x, D))"},
    {" variance ", "write var(x, D)"},
    {" norm l2norm vector_norm ", "write sqrt(sum(x**2, D))"},
    {" normalize normalise ", "write x*rsqrt(sum(x**2, D))"},
    {" amax maximum fmax ", "write max(a, b), or max(x, D) over an axis"},
    {" amin minimum fmin ", "write min(a, b), or min(x, D) over an axis"},
    {" argmin ", "write argmax(-x, D)"},
    {" clip ", "write clamp(x, lo, hi)"},
    {" roll lag lead delay pad conv1d depthwise_conv1d ",
     "shift(x, T, 1) is the element one place before, 0 outside; a convolution is a sum of shifts"},
    {" prod cumprod sort median ", "there is no such operation"},
    {" any ", "write max(x != 0, D)"},
    {" all ", "write min(x != 0, D)"},
    {" swish ", "write silu(x)"},
    {" logistic expit ", "write sigmoid(x)"},
    {" leaky_relu ", "write where(x > 0, x, 0.01*x)"},
    {" elu ", "write where(x > 0, x, exp(x) - 1)"},
    {" mish ", "write x*tanh(softplus(x))"},
    {" ln ", "write log(x)"},
    {" log10 ", "write log(x)*0.4342944819032518"},
    {" expm1 ", "write exp(x) - 1"},
    {" square sqr ", "write x**2"},
    {" power ", "write a**b"},
    {" cbrt ", "write x**(1/3)"},
    {" reciprocal inv ", "write 1/x"},
    {" ceil ", "write -floor(-x)"},
    {" trunc ", "write sign(x)*floor(abs(x))"},
    {" mod fmod remainder ", "write a % b, which has the sign of b"},
    {" floor_divide floordiv div ", "write a // b"},
    {" fabs ", "write abs(x)"},
    {" tan ", "write sin(x)/cos(x)"},
    {" sinh cosh asin acos atan atan2 ", "there is no such operation"},
    {" nll_loss cross_entropy_loss ", "write logsumexp(z, V) - gather(z, y, V)"},
    {" layer_norm ", "write layernorm(x, g, b, eps)"},
    {" rms_norm ", "write rmsnorm(x, g, eps)"},
};

static const hint names[] = {
    {" True true ", "write 1"},
    {" False false None null ", "write 0"},
    {" nan NaN ", "write 0/0"},
    {" pi ", "write 3.141592653589793"},
    {" infinity Inf INF Infinity ", "write inf"},
    {" if else ", "write where(a, b, c)"},
    {" for while ", LOOPS},
    {" return ", "give every output its value: y = value"},
    {" def let const fn func function import ",
     "a file has programs: name(inputs) -> outputs { name = value }"},
};

/* Calls of what Epilog has that do not fit. */
static const hint calls[] = {
    {" topk ",
     "i = topk(x, E, K=8) gives the positions of the 8 largest along E, and gather(x, i, E) their values"},
    {" layernorm ",
     "without g and b, or for one row x[D], write c = x - mean(x, D) and y = c*rsqrt(mean(c*c, D) + eps)"},
    {" rmsnorm ", "without g, or for one row x[D], write y = x*rsqrt(mean(x*x, D) + eps)"},
};

/* Characters that are not ASCII; here `names` has them one after the other. */
static const hint characters[] = {
    {"·⋅∙×✕∗", "write * for a product"},
    {"−–—", "write - for minus"},
    {"÷", "write /"},
    {"≤⩽", "write <="},
    {"≥⩾", "write >="},
    {"≠", "write !="},
    {"→⟶", "write ->"},
    {"²", "write x**2"},
    {"√", "write sqrt(x)"},
    {"∑Σ", "write sum(x, D)"},
    {"∞", "write inf"},
    {"“”‘’", "there are no strings in a program: write names of axes and operations without quotes"},
    {"\xc2\xa0", "this is a no-break space: write a space"},
};

static const char *find(const hint *table, size_t count, const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < count && n; i++)
        for (const char *at = table[i].names; (at = strstr(at, name)); at++)
            if (at[-1] == ' ' && at[n] == ' ')
                return table[i].text;
    return NULL;
}

const char *epi_hint_operation(const char *name) {
    return find(operations, sizeof operations / sizeof *operations, name);
}

const char *epi_hint_name(const char *name) {
    return find(names, sizeof names / sizeof *names, name);
}

const char *epi_hint_call(const char *name) {
    return find(calls, sizeof calls / sizeof *calls, name);
}

/* x.detach(), torch.einsum(…): the name after the dot may have an answer. */
static const char *hint_after_dot(const char *rest, size_t length) {
    char name[32];
    size_t n = 0;
    while (n + 1 < length && n + 1 < sizeof name &&
           (rest[n + 1] == '_' || isalnum((unsigned char)rest[n + 1])))
        n++;
    snprintf(name, sizeof name, "%.*s", (int)n, rest + 1);
    const char *hint = epi_hint_operation(name);
    return hint ? hint : "there are no methods, fields or modules: write f(x), not x.f() or torch.f(x)";
}

size_t epi_character_length(const char *rest, size_t length) {
    unsigned char c = (unsigned char)*rest;
    size_t bytes = c > 32 && c < 127      ? 1
                   : c < 0xc2 || c > 0xf4 ? 0
                                          : 2 + (size_t)(c >= 0xe0) + (size_t)(c >= 0xf0);
    for (size_t i = 1; i < bytes; i++)
        if (i >= length || ((unsigned char)rest[i] & 0xc0) != 0x80)
            return 0;
    return bytes;
}

/* A character of several bytes, as a text that was copied from a page may have. */
static const char *hint_wide(const char *rest, size_t bytes) {
    for (size_t i = 0; i < sizeof characters / sizeof *characters; i++)
        for (const char *at = characters[i].names; *at; at += epi_character_length(at, strlen(at)))
            if (!strncmp(at, rest, bytes))
                return characters[i].text;
    return "outside comments a program has only ASCII characters";
}

const char *epi_hint_character(const char *rest, size_t length) {
    char next = length > 1 ? rest[1] : 0;
    size_t bytes = epi_character_length(rest, length);
    if (bytes > 1)
        return hint_wide(rest, bytes);
    switch (*rest) {
    case '^': return "write a power as x**2";
    case '&': return "write and";
    case '|': return "write or";
    case '!':
    case '~': return "write not";
    case '?': return "write where(a, b, c)";
    case '.':
        return next == 'T' ? "axes match by name, so nothing is transposed: write w, not w.T"
                           : hint_after_dot(rest, length);
    case '"':
    case '\'': return "there are no strings in a program: write names of axes and operations without quotes";
    default: return NULL;
    }
}

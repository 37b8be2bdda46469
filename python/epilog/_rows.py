"""Operations of PyTorch that are made of others: more rows of SAID (_say.py), each with the arguments of PyTorch's schemas.

Derivatives are PyTorch's, also where two pieces meet: x <= 0 belongs to the left of leaky_relu, and relu6 is flat at 0 and at 6. A branch
that is not taken has to stay finite, as its derivative is multiplied by 0: elu's exponential is that of 0 where x is positive.
"""
import math

import torch

from ._axes import Axis, Unsaid, View, flat, joined
from ._views import index_in, settled, whole

EXPM1 = "where(abs({0}) < 0.5, 2*tanh({0}/2)/(1 - tanh({0}/2)), exp({0}) - 1)"
SIX = "where({input} <= 0, 0, where({input} >= 6, 6, {input}))"
# By element, with the names of the arguments.
FORMS = {
    "expm1": EXPM1.format("{input}"), "exp2": "exp2({input})", "log2": "log2({input})", "reciprocal": "1/{input}", "relu6": SIX,
    "isnan": "({input} != {input})", "isinf": "(abs({input}) == inf)", "isfinite": "(abs({input}) < inf)",
    "and_": "({input} and {other})", "or_": "({input} or {other})", "xor": "(({input} != 0) != ({other} != 0))", "invert": "(not {input})",
    "logical_and": "({input} != 0 and {other} != 0)", "logical_or": "({input} != 0 or {other} != 0)", "logical_not": "({input} == 0)",
    "logical_xor": "(({input} != 0) != ({other} != 0))",
    "hardsigmoid": "where({input} <= (-3), 0, where({input} >= 3, 1, {input}/6 + 0.5))",
    "hardswish": "where({input} <= (-3), 0, where({input} < 3, %s*(%s/6 + 0.5), {input}))" % (("where(abs({input}) < 3, {input}, 0)",) * 2),
    "selu": "1.0507009873554805*where({input} > 0, {input}, 1.6732632423543772*%s)" % EXPM1.format("where({input} > 0, 0, {input})"),
    "mish": "{input}*tanh(softplus({input}))", "logsigmoid": "(-softplus(-{input}))", "softsign": "{input}/(1 + abs({input}))", "tanhshrink": "({input} - tanh({input}))",
    "threshold": "where({input} <= {threshold}, {value}, {input})"}
SAME = {"bitwise_and": "and_", "__and__": "and_", "bitwise_or": "or_", "__or__": "or_", "bitwise_xor": "xor", "__xor__": "xor", "bitwise_not": "invert",
        "moveaxis": "movedim", "multiply": "mul", "subtract": "sub", "negative": "neg", "absolute": "abs",
        "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne", "ravel": "flatten", "concat": "cat", "concatenate": "cat"}
ROWS = {}


def says(*names):
    def keep(function):
        ROWS.update(dict.fromkeys(names, function))
        return function
    return keep


says("softmin")(lambda region, input, dim, _stacklevel=3: region.softmax(region.each("(-{})", input), dim))
says("leaky_relu")(lambda region, input, negative_slope=0.01: region.each("where({0} > 0, {0}, {1}*{0})", input, negative_slope))
says("hardtanh")(lambda region, input, min_val=-1.0, max_val=1.0: region.each("where({0} <= {1}, {1}, where({0} >= {2}, {2}, {0}))", input, min_val, max_val))
says("hardshrink")(lambda region, input, lambd=0.5: region.each("where(abs({0}) <= {1}, 0, {0})", input, lambd))
says("softshrink")(lambda region, input, lambd=0.5: region.each("where(abs({0}) <= {1}, 0, {0} - {1}*sign({0}))", input, lambd))
says("sub")(lambda region, input, other, alpha=1: region.each("({} - {})", input, times(region, other, alpha)))
says("rsub")(lambda region, input, other, alpha=1: region.each("({} - {})", other, times(region, input, alpha)))
says("addcmul")(lambda region, input, tensor1, tensor2, value=1: region.each("({} + {}*{})", input, times(region, tensor1, value), tensor2))
says("addcdiv")(lambda region, input, tensor1, tensor2, value=1: region.each("({} + {}/{})", input, times(region, tensor1, value), tensor2))
says("logsumexp")(lambda region, input, dim, keepdim=False: region.reduce("logsumexp", input, dim, keepdim))
says("cumsum")(lambda region, input, dim: region.along("cumsum", input, dim))
says("expand_as")(lambda region, input, other: region.expand(input, other.shape))
says("view_as", "reshape_as")(lambda region, input, other: region.view(input, other.shape))
says("broadcast_to")(lambda region, input, size: region.expand(input, size))


def times(region, x, by):
    if by == 1:
        return x
    return region.each("{}*{}", x, by) if isinstance(x, View) else x * by


@says("elu", "celu")
def elu(region, input, alpha=1.0):
    by = 1 / alpha if region.is_said("celu") else 1
    left = region.each(EXPM1, region.each("where({0} > 0, 0, {0})*{1}", input, by))
    return region.each("where({0} > 0, {0}, {1}*{2})", input, alpha, left)


@says("clamp", "clip")
def clamp(region, input, min=None, max=None):
    if not isinstance(min, View) and not isinstance(max, View):
        return region.each("clamp({}, {}, {})", input, -math.inf if min is None else min, math.inf if max is None else max)
    x = input if min is None else region.each("where({0} < {1} or {1} != {1}, {1}, {0})", input, min)
    return x if max is None else region.each("where({0} > {1} or {1} != {1}, {1}, {0})", x, max)


says("clamp_min")(lambda region, input, min: clamp(region, input, min))
says("clamp_max")(lambda region, input, max: clamp(region, input, None, max))


@says("glu")
def glu(region, input, dim=-1):
    n = whole(input.shape[dim])
    first, gate = region.split_into(input, [n // 2, n // 2], dim)
    return region.each("{}*sigmoid({})", first, gate)


@says("prelu")
def prelu(region, input, weight):
    """A slope for all, or one for each channel, which dimension 1 counts."""
    if weight.dims and len(input.dims) > 1:
        weight = region.view_of(weight.value, weight.dims + [[]] * (len(input.dims) - 2))
    return region.each("where({0} > 0, {0}, {1}*{0})", input, weight)


@says("lerp")
def lerp(region, input, end, weight):
    """Counted from the nearer end, as PyTorch does."""
    if isinstance(weight, View):
        return region.each("where(abs({2}) < 0.5, {0} + {2}*({1} - {0}), {1} - ({1} - {0})*(1 - {2}))", input, end, weight)
    return region.each("({0} + {2}*({1} - {0}))" if abs(weight) < 0.5 else "({1} - ({1} - {0})*{2})", input, end, weight if abs(weight) < 0.5 else 1 - weight)


# Statistics.
def variance(region, input, dim, correction, keepdim):
    rank = len(input.dims)
    dims = sorted(range(rank) if dim is None or not rank else {d % rank for d in ([dim] if isinstance(dim, int) else dim)})
    count = math.prod(input.shape[d] for d in dims)
    if not dims or correction and not (isinstance(count, int) and count > correction):
        raise Unsaid("a variance of too few elements")
    centred = region.each("{} - {}", input, region.reduce("mean", input, dims, True))
    mean = region.reduce("mean", region.each("{}*{}", centred, centred), dims, keepdim)
    return region.each("{}*{}", mean, count / (count - correction)) if correction else mean


def root(region, x):
    """Its derivative at 0 is 0, as that of PyTorch's norms and deviations."""
    return region.each("where({0} == 0, 0, sqrt(where({0} == 0, 1, {0})))", x)


def corrected(unbiased, correction):
    return int(unbiased) if correction is None else correction


@says("var")
def var(region, input, dim=None, unbiased=True, keepdim=False, correction=None):
    return variance(region, input, dim, corrected(unbiased, correction), keepdim)


@says("std")
def std(region, input, dim=None, unbiased=True, keepdim=False, correction=None):
    return root(region, variance(region, input, dim, corrected(unbiased, correction), keepdim))


@says("norm", "vector_norm")
def norm(region, input, p="fro", dim=None, keepdim=False, ord=2):
    kind = {"fro": 2}.get(p, p) if ord == 2 else ord
    if kind == 1:
        return region.reduce("sum", region.each("abs({})", input), dim, keepdim)
    if kind != 2:
        raise Unsaid("a norm other than 1 and 2")
    return root(region, region.reduce("sum", region.each("{}*{}", input, input), dim, keepdim))


@says("normalize")
def normalize(region, input, p=2.0, dim=1, eps=1e-12):
    return region.each("{0}/where({1} < {2}, {2}, {1})", input, norm(region, input, p, dim, True), eps)


@says("mse_loss")
def mse_loss(region, input, target, reduction="mean"):
    if reduction not in ("none", "mean", "sum") or input.shape != target.shape:
        raise Unsaid("an unsupported form of mse_loss")
    off = region.each("{} - {}", input, target)
    square = region.each("{}*{}", off, off)
    return square if reduction == "none" else region.reduce(reduction, square)


@says("group_norm")
def group_norm(region, input, num_groups, weight=None, bias=None, eps=1e-5):
    n, c, *rest = input.shape
    x = region.view(input, [n, num_groups, whole(c) // num_groups, *rest])
    dims = list(range(2, len(x.dims)))
    x = region.scaled(region.each("{} - {}", x, region.reduce("mean", x, dims, True)), dims, eps, None, None)
    y, channel = region.view(x, [n, c, *rest]), lambda w: region.view_of(w.value, w.dims + [[]] * len(rest))
    y = y if weight is None else region.each("{}*{}", y, channel(weight))
    return y if bias is None else region.each("{} + {}", y, channel(bias))


# Places.
@says("movedim")
def movedim(region, input, source, destination):
    rank, pair = len(input.dims) or 1, [[d] if isinstance(d, int) else list(d) for d in (source, destination)]
    put = {d % rank: s % rank for s, d in zip(*pair)}
    rest = iter(i for i in range(rank) if i not in put.values())
    return region.permute(input, [put[i] if i in put else next(rest) for i in range(rank)]) if input.dims else input


says("swapaxes")(lambda region, input, axis0, axis1: region.transpose(input, axis0, axis1))
says("swapdims")(lambda region, input, dim0, dim1: region.transpose(input, dim0, dim1))
says("zeros_like")(lambda region, input: region.everywhere(input, 0))
says("ones_like")(lambda region, input: region.everywhere(input, 1))
says("full_like")(lambda region, input, fill_value: region.everywhere(input, fill_value))


@says("select")
def select(region, input, dim, index):
    return region.element(input, dim % len(input.dims), index)


@says("narrow")
def narrow(region, input, dim, start, length):
    n, start = whole(input.shape[dim]), whole(start)
    start += n if start < 0 else 0
    return region.part(input, dim, start, start + whole(length))


@says("pad")
def pad(region, input, pad, mode="constant", value=None):
    """What is behind an end is the value, and the number of such places may be negative."""
    if mode != "constant":
        raise Unsaid(f"a pad, {mode}")
    x, rank = input, len(input.dims)
    for k in range(len(pad) // 2):
        dim, before, behind = rank - 1 - k, whole(pad[2 * k]), whole(pad[2 * k + 1])
        n = whole(x.shape[dim])
        if (before, behind) == (0, 0):
            continue
        if n < 1 or before + n + behind < 1:
            raise Unsaid("a pad of size 0")
        spread = region.counting(x, dim, -before, before + n + behind)
        for end, inside in ((before, "where({0}, {2}, {1})"), (before + n, "where({0}, {1}, {2})")):
            if 0 < end < before + n + behind:
                spread = region.each(inside, region.up_to(end, before + n + behind, dim, rank), spread, 0 if value is None else value)
        x = spread
    return x


@says("roll")
def roll(region, input, shifts, dims=()):
    pairs = [[a] if isinstance(a, int) else list(a) for a in (shifts, dims)]
    if len(pairs[0]) != len(pairs[1]):
        raise Unsaid("a roll of all dimensions as one")
    x = input
    for shift, dim in zip(*pairs):
        x = rolled(region, x, dim % len(x.dims), whole(shift))
    return x


def rolled(region, x, dim, shift):
    n = whole(x.shape[dim])
    by = shift % n if n else 0
    return region.at_places(x, dim, n, lambda place: f"where({place} < {by}, {place} + {n - by}, {place} - {by})") if by else x


@says("flip")
def flip(region, input, dims):
    x = input
    for dim in dims if isinstance(dims, (tuple, list)) else [dims]:
        x = turned(region, x, dim % len(x.dims))
    return x


def turned(region, x, dim):
    n = whole(x.shape[dim])
    return region.at_places(x, dim, n, lambda place: f"{n - 1} - {place}") if n > 1 else x


@says("repeat", "tile")
def repeat(region, input, repeats=None, dims=None):
    """Copies are a further axis that the value lacks."""
    times = [whole(n) for n in (repeats if dims is None else dims)]
    missing = len(times) - len(input.dims)
    if any(n < 1 for n in times) or missing < 0 and dims is None:
        raise Unsaid("no copies")
    times, x = [1] * -missing + times, region.padded(input, max(len(times), len(input.dims)))
    return region.view_of(x.value, [[Axis(n), *d] if n > 1 else d for n, d in zip(times, x.dims)])


@says("tril", "triu")
def triangle(region, input, diagonal=0):
    rows, cols = input.dims[-2], input.dims[-1]
    if not flat(rows) or not flat(cols):
        raise Unsaid("a triangle of one row or column")
    sign = "<=" if region.is_said("tril") else ">="
    write = lambda names, name: f"where({index_in(cols, name)} {sign} {index_in(rows, name)} + {whole(diagonal)}, {names[0]}, 0)"
    return region.view_of(region.value(write, [input.value], joined((rows, cols)) + input.value.axes), input.dims)


# Products.
@says("einsum")
def einsum(region, args):
    """Products of two after another, from left to right; a letter that no later one has, nor the result, is summed over where it is met."""
    equation, *operands = args[0], *(args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:])
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        raise Unsaid("an einsum with dots, or without an arrow")
    given, result = equation.replace(" ", "").split("->")
    terms, operands = [list(t) for t in given.split(",")], [settled(o) for o in operands]
    if len(terms) != len(operands) or any(len(set(t)) != len(t) or len(t) != len(o.dims) for t, o in zip(terms, operands)):
        raise Unsaid("an einsum of a diagonal")
    sizes = {}
    if any(sizes.setdefault(a, n) != n for t, o in zip(terms, operands) for a, n in zip(t, o.shape)):
        raise Unsaid("an einsum that expands an axis")
    wanted = [set(result).union(*terms[k + 1:]) for k in range(len(terms))]
    letters, x = summed(region, terms[0], operands[0], wanted[0])
    for k in range(1, len(terms)):
        letters, x = contracted(region, letters, x, *summed(region, terms[k], operands[k], wanted[k] | set(letters)), wanted[k])
    return region.permute(x, [letters.index(a) for a in result])


def summed(region, letters, x, wanted):
    """Without the letters that nobody wants."""
    gone = [i for i, a in enumerate(letters) if a not in wanted]
    return [a for a in letters if a in wanted], region.reduce("sum", x, gone) if gone else x


def contracted(region, p, x, q, y, wanted):
    """The product of two, summed over the letters of both that are not wanted."""
    over = [a for a in p if a in q and a not in wanted]
    both = [a for a in p if a in q and a in wanted]
    mine, other = [a for a in p if a not in q], [a for a in q if a not in p]
    x = region.permute(x, [p.index(a) for a in both + mine + over])
    y = region.permute(y, [q.index(a) for a in both + other + over])
    x = region.view_of(x.value, x.dims[:len(both + mine)] + [[]] * len(other) + x.dims[len(both + mine):])
    y = region.view_of(y.value, y.dims[:len(both)] + [[]] * len(mine) + y.dims[len(both):])
    (x, y), dims = region.broadcast([x, y])
    kept = len(both + mine + other)
    if not joined(dims[kept:]):
        made = region.each("{}*{}", x, y)
        return both + mine + other, region.view_of(made.value, made.dims[:kept])
    return both + mine + other, region.product(x, y, joined(dims[kept:]), dims[:kept])


@says("multi_head_attention_forward")
def multi_head_attention_forward(region, query, key, value, embed_dim_to_check, num_heads, in_proj_weight=None, in_proj_bias=None, bias_k=None, bias_v=None,
                                 add_zero_attn=False, dropout_p=0.0, out_proj_weight=None, out_proj_bias=None, training=True, key_padding_mask=None,
                                 need_weights=True, attn_mask=None, use_separate_proj_weight=False, q_proj_weight=None, k_proj_weight=None,
                                 v_proj_weight=None, average_attn_weights=True, is_causal=False):
    """nn.MultiheadAttention: lengths come first, then the batch, if there is one. A mask says what is hidden, or is added."""
    if bias_k is not None or bias_v is not None or add_zero_attn or dropout_p and training:
        raise Unsaid("attention with further keys, or with dropout")
    batched, same = len(query.dims) == 3, query is key is value
    query, key, value = (t if batched else region.unsqueeze(t, 1) for t in (query, key, value))
    if use_separate_proj_weight:
        biases = region.chunk(in_proj_bias, 3) if in_proj_bias is not None else [None] * 3
        heads = [region.linear(t, w, b) for t, w, b in zip((query, key, value), (q_proj_weight, k_proj_weight, v_proj_weight), biases)]
    elif same:
        heads = region.chunk(region.linear(query, in_proj_weight, in_proj_bias), 3, -1)
    else:
        biases = region.chunk(in_proj_bias, 3) if in_proj_bias is not None else [None] * 3
        heads = [region.linear(t, w, b) for t, w, b in zip((query, key, value), region.chunk(in_proj_weight, 3), biases)]
    q, k, v = (region.permute(region.unflatten(t, 2, (num_heads, -1)), [1, 2, 0, 3]) for t in heads)
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = None
    else:
        is_causal = False
    scores = region.each("{}*{}", region.matmul(q, region.transpose(k, -1, -2)), q.shape[-1] ** -0.5)
    scores = region.causal(scores) if is_causal else scores
    if attn_mask is not None and len(attn_mask.dims) == 3:
        attn_mask = region.unflatten(attn_mask, 0, (-1, num_heads))
    if key_padding_mask is not None:
        hidden = region.view_of(key_padding_mask.value, [*key_padding_mask.dims[:-1], [], [], key_padding_mask.dims[-1]])
    for mask in (attn_mask, hidden if key_padding_mask is not None else None):
        if mask is not None:
            scores = region.each("where({1}, -inf, {0})" if mask.value.dtype == torch.bool else "{} + {}", scores, mask)
    weights = region.along("softmax", scores, -1)
    y = region.permute(region.matmul(weights, v), [2, 0, 1, 3])
    y = region.linear(region.flatten(y, 2), out_proj_weight, out_proj_bias)
    seen = None
    if need_weights:
        seen = region.reduce("mean", weights, 1) if average_attn_weights else weights
    return tuple(t if t is None or batched else region.squeeze(t, d) for t, d in ((y, 1), (seen, 0)))

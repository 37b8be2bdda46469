"""Linear layers with products of e4m3: the texts of programs/fp8.epi on tensors of any number of tokens, and a module.

Tokens come in groups of 128, features too: a tensor [T,D] is seen as [T/128,128,D/128,128]. Tokens that are missing are zeros, which are
in no scale but that of their own group, and in no gradient. A weight is quantised by each forward that is to have a backward: it has no
second copy that could be out of date.
"""
import torch
from torch import nn

from ._op import op

GROUP = 128


def weights_op(count):
    """Of so many weights, each with its bytes in both orders, and their scales: one call, so that the launches follow each other."""
    numbers = range(count)
    given = ", ".join(f"w{i}[P{i},M,G{i},K]" for i in numbers)
    found = ", ".join(f"q{i}: e4m3[P{i},M,G{i},K], t{i}: e4m3[G{i},K,P{i},M], s{i}: f32[P{i},G{i}]" for i in numbers)
    lines = "".join(f"    q{i}, t{i}, s{i} = weight8(w{i})\n" for i in numbers)
    return op(f"weights_fp8({given}) -> ({found}) {{\n{lines}}}\n", rows=(), keep=True)


WEIGHTS = {count: weights_op(count) for count in range(1, 5)}


def weight_inputs(name, into, of):
    """A weight, its bytes in both orders, their scales: as linear8 takes them. into, of: the two axes of its results, and of what it takes."""
    return [f"{name}[{into},{of}]", f"{name}_q: e4m3[{into},{of}]", f"{name}_t: e4m3[{of},{into}]", f"{name}_s: f32[{into[0]},{of[0]}]"]


def conv_inputs(name, into, of):
    """The same for linear8_in, of a weight that lies the other way round."""
    return [f"{name}[{of},{into}]", f"{name}_q: e4m3[{into},{of}]", f"{name}_t: e4m3[{of},{into}]", f"{name}_s: f32[{of[0]},{into[0]}]"]


def linear_line(result, x, name, program="linear8"):
    return f"{result}, {result}_x, {result}_scale = {program}({x}, {name}, {name}_q, {name}_t, {name}_s)"


def linear_op(bias):
    given = ", ".join(["x[N,R,G,K]", *weight_inputs("w", "P,M", "G,K")] + ["b[P,M]"] * bias)
    return op(f"linear_fp8({given}) -> y[N,R,P,M] {{\n    {linear_line('z', 'x', 'w')}\n    y = z{' + b' * bias}\n}}\n", rows=("N",), keep=("w",))


LINEAR = {bias: linear_op(bias) for bias in (False, True)}


def why_not(**sizes):
    """Why there are no groups of 128 in these features; None where there are."""
    bad = [f"{name} is {size}" for name, size in sizes.items() if size % GROUP or not size]
    return f"{' and '.join(bad)}, not a multiple of {GROUP}" if bad else None


def grouped(x):
    """Its last axis in groups; of a matrix both."""
    return x.unflatten(-1, (-1, GROUP)) if x.dim() == 1 else x.unflatten(1, (-1, GROUP)).unflatten(0, (-1, GROUP))


def tokens(x):
    """All axes but the last as groups of tokens, with zeros behind the last."""
    x = x.reshape(-1, x.shape[-1])
    missing = -x.shape[0] % GROUP
    return grouped(nn.functional.pad(x, (0, 0, 0, missing)) if missing else x)


def as_before(y, shape):
    """Groups of tokens with the axes that they had."""
    count = 1
    for size in shape:
        count = count * size
    y = y.flatten(2, 3).flatten(0, 1)
    return (y[:count] if y.shape[0] != count else y).view(*shape, y.shape[-1])


def quantised(weights):
    """Each weight[F,D] as linear8 takes it."""
    split = [grouped(w) for w in weights]
    with torch.no_grad():
        found = WEIGHTS[len(split)](*[w.detach() for w in split])
    return [(w, *found[3 * i:3 * i + 3]) for i, w in enumerate(split)]


def conv_quantised(weights):
    """Each weight[D,F] as linear8_in takes it."""
    return [(w, q, turned, s) for w, turned, q, s in quantised(weights)]


class Linear8(nn.Linear):
    """torch.nn.Linear with products of e4m3 in forward and backward: its input in rows of 128 features with a scale each, its weight in
    blocks of 128 x 128. The weight is kept, and trained, in the type that it has. Features in and out are multiples of 128."""

    def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
        why = why_not(in_features=in_features, out_features=out_features)
        if why:
            raise ValueError(f"{why}: choose other sizes, or epilog.nn.Linear, which supports any")
        super().__init__(in_features, out_features, bias, device, dtype)

    def forward(self, x):
        if not x.numel():
            return super().forward(x)
        given, = quantised([self.weight])
        y = LINEAR[self.bias is not None](tokens(x), *given, *([] if self.bias is None else [grouped(self.bias)]))
        return as_before(y, x.shape[:-1])

"""epilog.quantise: a model whose linear layers have weights of 8 or 4 bits, for generating.

A weight w[F,D] is stored as integers q[F,G,K], G groups of K of a row's elements, and a scale s[F,G] for each: w is s*q but for rounding. The
product is x @ (s*q): q goes from memory as it is, and is scaled on the way in.
"""
import fnmatch

import torch
from torch import nn

from ._known import own_class
from ._op import op
from ._report import OFF, Report

MAKE = {bits: op(f"quantised(w[F,G,K]) -> (q: i{bits}[F,G,K], s: f32[F,G]) {{\n    s = max(max(abs(w), K)/{2 ** (bits - 1) - 1}, 1e-12)\n"
                 f"    q = i{bits}(w/s)\n}}\n", rows=(), keep=True) for bits in (8, 4)}
LINEAR = {(bits, bias): op(f"linear_i{bits}(x[T,G,K], q: i{bits}[F,G,K], s: f32[F,G]{', bias[F]' * bias}) -> y[T,F] {{ y = x @ (s*q){' + bias' * bias} }}",
                           rows=("T",)) for bits in (8, 4) for bias in (False, True)}


class QuantisedLinear(nn.Module):
    """A linear layer of a weight of 8 or 4 bits in groups, made of weight[F,D] (and bias[F]). `q` has its integers: int8[F,D/group,group], or of
    4 bits two to a byte, uint8[F,D/group,group/2], the first in the low half; `s` their scales, f32[F,D/group]. They are no parameters:
    gradients go to the input, and to the bias."""

    def __init__(self, weight, bias=None, bits=8, group=64):
        super().__init__()
        check(bits, group)
        self.out_features, self.in_features = weight.shape
        if self.in_features % group:
            raise ValueError(f"weight has {self.in_features} columns, not a multiple of {group}: choose another group")
        self.bits, self.group = bits, group
        self.bias = bias if bias is None or isinstance(bias, nn.Parameter) else nn.Parameter(bias, requires_grad=False)
        with torch.no_grad():
            q, s = MAKE[bits](weight.detach().contiguous().unflatten(1, (-1, group)))
        self.register_buffer("q", q)
        self.register_buffer("s", s)

    def _apply(self, fn, recurse=True):
        """model.to(torch.bfloat16) is for numbers that are computed with: scales stay f32, and go where the integers go."""
        s = self.s
        super()._apply(fn, recurse)
        self.s = torch.empty_like(s, device=self.q.device) if s.is_meta else s.to(self.q.device)
        return self

    def dequantised(self):
        """The weight[F,D] that it computes with, in f32."""
        q = self.q
        if self.bits == 4:
            q = torch.stack((q << 4, q & 240), -1).flatten(-2).view(torch.int8) >> 4
        return (q * self.s[..., None]).flatten(1)

    def forward(self, x):
        rows = x.reshape(-1, self.s.shape[1], self.group)
        y = LINEAR[self.bits, self.bias is not None](rows, self.q, self.s, *([] if self.bias is None else [self.bias]))
        return y.view(*x.shape[:-1], self.out_features)

    def extra_repr(self):
        return f"{self.in_features}, {self.out_features}, bits={self.bits}, group={self.group}, bias={self.bias is not None}"


def check(bits, group):
    if bits not in MAKE:
        raise ValueError(f"bits is {bits}: it must be 8 or 4")
    if group < 2 or group % 2:
        raise ValueError(f"group is {group}: it must be even, such as 64")


def why_left(module, name, group, leave):
    """Why a linear layer stays as it is, or None."""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in leave):
        return OFF
    if "forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or hasattr(module, "parametrizations"):
        return "it has its own forward, hooks or parametrizations"
    features = turned(module).shape[1]
    return f"it takes {features} features, not a multiple of {group}" if features % group else None


def turned(module):
    """Its weight as [F,D]; GPT-2's lie the other way round."""
    return module.weight if isinstance(module, nn.Linear) else module.weight.T


def quantise(model, bits=8, group=64, leave=("lm_head",)):
    """Puts a QuantisedLinear in the place of each torch.nn.Linear of a model (and of GPT-2's Conv1D), for generating with less memory, and
    faster where weights are what is read. Returns a Report. It cannot be undone: the weights are gone.

    bits: 8 or 4. group: so many elements of a row share a scale. leave: names of modules, or patterns of them, that stay as they are.
    """
    check(bits, group)
    if isinstance(leave, str):
        raise ValueError("leave must be a list of module names")
    report, kinds, size, stored = Report(), {nn.Linear, own_class("pytorch_utils", "Conv1D")} - {None}, 0, 0
    found = {}  # by module: one that stands in two places stays one
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) not in kinds:
            if isinstance(module, nn.Linear):
                report.left.append((name, f"it is a {type(module).__name__}, not a plain Linear"))
            continue
        why = why_left(module, name, group, leave) if name else "it is the model itself: use QuantisedLinear(weight, bias)"
        if why:
            report.left.append((name or "the model", why))
            continue
        made = found.get(module)
        if made is None:
            made = found[module] = QuantisedLinear(turned(module), module.bias, bits, group).train(module.training)
            size, stored = size + module.weight.nbytes, stored + made.q.nbytes + made.s.nbytes
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, made)
        report.replaced.append((name, f"a weight of {bits} bits in groups of {group}"))
    if report.replaced:
        report.replaced.append((f"{len(found)} weights in total", f"{size / 1e6:.1f} MB became {stored / 1e6:.1f} MB"))
    return report

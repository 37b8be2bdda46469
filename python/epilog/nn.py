"""Modules made of Epilog's programs. The names of their parameters are those of the modules they replace."""
import functools
import itertools
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import register_flop_formula

from ._library import EpilogIndexError
from ._op import is_compiling, in_functorch, op, watched
from ._run import blank

ACTIVATIONS = {None: "{}", "silu": "silu({})", "gelu": "gelu({})", "gelu_tanh": "gelu_tanh({})", "relu": "relu({})"}

rms_norm = op("""
rms_norm(x[T,D], weight[D], eps) -> y[T,D] {
    y = x*rsqrt(mean(x*x, D) + eps)*weight
}""", keep=True)

layer_norm = op("""
layer_norm(x[T,D], weight[D], bias[D], eps) -> y[T,D] {
    c = x - mean(x, D)
    y = c*rsqrt(mean(c*c, D) + eps)*weight + bias
}""", keep=True)

swiglu_mlp = op("""
swiglu_mlp(x[T,D], gate[F,D], up[F,D], down[D,F]) -> y[T,D] {
    y = (silu(x @ gate)*(x @ up)) @ down
}""")

geglu_mlp = op("""
geglu_mlp(x[T,D], gate[F,D], up[F,D], down[D,F]) -> y[T,D] {
    y = (gelu_tanh(x @ gate)*(x @ up)) @ down
}""")

GATED = {"silu": swiglu_mlp, "gelu_tanh": geglu_mlp}


class Form(NamedTuple):
    """Which attention it is: what a query sees and what becomes of scores, by what the text has. bias: the axes it has before its last
    two, those of queries and keys; None where there is no bias."""
    causal: bool = False
    window: bool = False
    softcap: bool = False
    scaled: bool = False
    starts: bool = False
    lengths: bool = False
    documents: bool = False
    prefix: bool = False
    bias: str = None
    sinks: bool = False
    spread: bool = False


def attention_lines(form, keys="R"):
    """o, which is what queries[B,S,G,H,E] see of keys[B,R,G,E] and values[B,R,G,F], and the inputs that are read for it: tensors, then
    numbers. keys: the axis that tensors of keys come with. scaled: by a number of its own; the usual 1/sqrt(E) is a constant of the
    kernel, where it costs nothing."""
    z = "sum(queries*keys, E)*" + ("scale" if form.scaled else "rsqrt(size(E))")
    z = f"cap*tanh({z}/cap)" if form.softcap else z
    z += " + bias" if form.bias is not None else ""
    there = "there" if keys == "R" else f"rename(there, {keys}, R)"
    seen = [condition for condition, on in (
        ("index(R) <= max(index(S), prefix - 1)", form.prefix), ("index(R) <= index(S)", form.causal and not form.prefix),
        ("index(R) > index(S) - window", form.window), ("index(R) >= start", form.starts), ("index(R) < length", form.lengths),
        (f"here == {there}", form.documents)) if on]
    weights = "exp(s - sink - softplus(logsumexp(s, R) - sink))" if form.sinks else "softmax(s, R)"
    lines = [f"s = where({' and '.join(seen)}, {z}, -inf)" if seen else f"s = {z}"]
    if form.spread:
        sees = "index(S) >= start" + " and start < length" * form.lengths + " and index(S) < length + window - 1" * (form.lengths and form.window)
        lines += [f"found = sum({weights}*values, R)", f"o = where({sees}, found, mean(values, R))"]
    else:
        lines += [f"o = sum({weights}*values, R)"]
    inputs = [name for name, on in (
        (f"bias[{form.bias}S,R]", form.bias is not None), ("sink[G,H]", form.sinks), ("start: i32[B]", form.starts), ("length: i32[B]", form.lengths),
        ("here: i32[B,S]", form.documents), (f"there: i32[B,{keys}]", form.documents), ("prefix: i32[B]", form.prefix),
        ("scale", form.scaled), ("cap", form.softcap), ("window", form.window)) if on]
    return lines, inputs


def attention_op(form):
    lines, inputs = attention_lines(form)
    given = ", ".join(["queries[B,S,G,H,E]", "keys[B,R,G,E]", "values[B,R,G,F]"] + inputs)
    return op(f"attention({given}) -> o[B,S,G,H,F] {{\n    " + "\n    ".join(lines) + "\n}\n", rows=("B", "S", "R"))


def token_loss_text(smoothing, softcap, z_loss, padded):
    """Cross-entropy of each token; one whose label is `ignore` counts for nothing, and that of one outside the vocabulary is infinite. Numbers
    for what is True come behind. padded: of w the first `words` rows are words."""
    numbers = "".join(", " + name for name in loss_numbers(smoothing, softcap, z_loss, padded))
    made, words = "cap*tanh((x @ w)/cap)" if softcap else "x @ w", "words" if padded else "size(V)"
    picked, mean = "sum(where(label == index(V), z, 0), V)", "sum(where(index(V) < words, z, 0), V)/words" if padded else "mean(z, V)"
    lines = [f"z = where(index(V) < words, {made}, -inf)" if padded else f"z = {made}", "lse = logsumexp(z, V)",
             f"picked = {picked}*(1 - smoothing) + {mean}*smoothing" if smoothing else f"picked = {picked}",
             f"missed = where(label >= 0, where(label < {words}, lse - picked, inf), inf)",
             f"loss = where(label != ignore, missed{' + weight*lse*lse' if z_loss else ''}, 0)"]
    return f"token_loss(x[T,D], w[V,D], label: i32[T], ignore: i32{numbers}) -> loss: f32[T] {{\n    " + "\n    ".join(lines) + "\n}\n"


def loss_numbers(smoothing, softcap, z_loss, padded):
    return [name for name, on in (("smoothing", smoothing), ("cap", softcap), ("weight", z_loss), ("words", padded)) if on]


def pad_words(weight):
    """A weight whose number of words TMA can take as a pitch of logits: GPT-2's 50,257 would have every product with logits copy them first. Else itself."""
    words = weight.shape[0]
    if not weight.is_cuda or weight.dtype == torch.float32 or words % 8 == 0 or weight.numel() < 1 << 18:
        return weight
    return torch.nn.functional.pad(weight, (0, 0, 0, -words % 8))


def loss_form(weight, smoothing=0.0, softcap=None, z_loss=0.0):
    """The weight with as many words as kernels want, which of TOKEN_LOSSES it has then, and that one's numbers."""
    words, weight = weight.shape[0], pad_words(weight)
    padded = weight.shape[0] > words
    numbers = [float(n) for n in (smoothing, softcap, z_loss, padded and words) if n]
    return weight, (bool(smoothing), softcap is not None, bool(z_loss), padded), numbers


@functools.lru_cache(None)
def loss_chunk(which, by_w, more):
    """The sum of some tokens' losses, each times its d, with gradients. by_w: by the weight as well; more: added to those of the chunks
    before."""
    names = ", ".join(["x", "w", "label", "ignore", *loss_numbers(*which)])
    given = ", ".join(["x[T,D]", "w[V,D]", "label: i32[T]", "ignore: i32", *loss_numbers(*which), "d: f32[T]"] + ["before: f32[V,D]"] * more)
    lines = [f"total = sum(d*token_loss({names}), T)",
             f"dx, g = grad(token_loss, x, w)({names}, d)" if by_w else f"dx = grad(token_loss, x)({names}, d)"]
    lines += ["dw = before + g" if more else "dw = g"] if by_w else []
    results = "total: f32, dx[T,D]" + (", dw: f32[V,D]" if by_w else "")
    return op(token_loss_text(*which) + f"loss_chunk({given}) -> ({results}) {{\n    " + "\n    ".join(lines) + "\n}\n")


def token_statistics(softcap):
    """What reinforcement learning asks of each token: log-probability of its label, entropy, most likely token."""
    return op(f"""token_statistics(x[T,D], w[V,D], label: i32[T]{", cap" if softcap else ""}) -> (logp: f32[T], entropy: f32[T], best: i64[T]) {{
    z = {"cap*tanh((x @ w)/cap)" if softcap else "x @ w"}
    lse = logsumexp(z, V)
    logp = sum(where(label == index(V), z, 0), V) - where(label < size(V), lse, inf)
    entropy = lse - sum(exp(z - lse)*z, V)
    best = argmax(z, V)
}}
""")


# All of them are made here: where torch.compile looks, nothing is to be made any more.
TOKEN_LOSSES = {which: op(token_loss_text(*which)) for which in itertools.product((False, True), repeat=4)}
TOKEN_STATISTICS = {softcap: token_statistics(softcap) for softcap in (False, True)}
# With a bias, sinks or a prefix attention is made when it is asked for, which torch.compile finds if it was called once before.
ATTENTION = {form: attention_op(form) for form in itertools.starmap(Form, itertools.product((False, True), repeat=7))
             if form.causal or not form.window}


def rows(x):
    """All axes but the last as one."""
    return x.reshape(-1, x.shape[-1])


class RMSNorm(nn.Module):
    """As torch.nn.RMSNorm over the last axis, and as the norms of Llama-like models."""

    def __init__(self, size, eps=1e-6, device=None, dtype=None):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size, device=device, dtype=dtype)), eps

    def forward(self, x):
        return rms_norm(rows(x), self.weight, self.eps).view(x.shape)

    def extra_repr(self):
        return f"{self.weight.shape[0]}, eps={self.eps}"


class LayerNorm(nn.Module):
    """As torch.nn.LayerNorm over the last axis, with weight and bias."""

    def __init__(self, size, eps=1e-5, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(size, device=device, dtype=dtype))

    def forward(self, x):
        return layer_norm(rows(x), self.weight, self.bias, self.eps).view(x.shape)

    def extra_repr(self):
        return f"{self.weight.shape[0]}, eps={self.eps}"


class Linear(nn.Linear):
    """torch.nn.Linear with what follows it in the epilogue: an activation, and a residual sum where forward is given one."""

    def __init__(self, in_features, out_features, bias=True, activation=None, device=None, dtype=None):
        super().__init__(in_features, out_features, bias, device, dtype)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is {activation!r}: it must be one of {', '.join(str(a) for a in ACTIVATIONS)}")
        self.activation = activation
        made = ACTIVATIONS[activation].format("x @ weight" + (" + bias" if bias else ""))
        given = ", bias[F]" if bias else ""
        self.plain = op(f"linear(x[T,D], weight[F,D]{given}) -> y[T,F] {{ y = {made} }}")
        self.with_residual = op(f"linear_residual(x[T,D], weight[F,D]{given}, residual[T,F]) -> y[T,F] {{ y = residual + {made} }}")

    def forward(self, x, residual=None):
        given = (self.weight,) if self.bias is None else (self.weight, self.bias)
        y = self.plain(rows(x), *given) if residual is None else self.with_residual(rows(x), *given, rows(residual))
        return y.view(*x.shape[:-1], y.shape[-1])

    def extra_repr(self):
        return f"{super().extra_repr()}, activation={self.activation}"


class GatedMLP(nn.Module):
    """down_proj(activation(gate_proj(x))*up_proj(x)), without biases, as the MLPs of Llama-like models."""

    def __init__(self, hidden_size, intermediate_size, activation="silu", device=None, dtype=None):
        super().__init__()
        kind = dict(device=device, dtype=dtype)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False, **kind)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False, **kind)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False, **kind)
        self.activation = activation
        if activation not in GATED:
            raise ValueError(f"activation is {activation!r}: it must be one of {', '.join(GATED)}")
        self.op = GATED[activation]

    def forward(self, x):
        return self.op(rows(x), self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight).view(x.shape)


class SwiGLU(GatedMLP):
    """GatedMLP with SiLU."""

    def __init__(self, hidden_size, intermediate_size, device=None, dtype=None):
        super().__init__(hidden_size, intermediate_size, "silu", device, dtype)


class GEGLU(GatedMLP):
    """GatedMLP with GELU, of the form with tanh."""

    def __init__(self, hidden_size, intermediate_size, device=None, dtype=None):
        super().__init__(hidden_size, intermediate_size, "gelu_tanh", device, dtype)


def attention(q, k, v, causal=False, window=None, softcap=None, scale=None, *, documents=None, lengths=None, starts=None, prefix=None,
              bias=None, sinks=None, spread=False):
    """Attention of q[B,S,H,E] to k[B,R,G,E] and v[B,R,G,F]: o[B,S,H,F]. H is G, or a multiple of it: heads of queries lie group by
    group. Scores are never in memory, nor kept for the backward. A query that sees no key gets 0; with spread, which goes with causal and
    starts, the mean of all values, as where masks are large negative numbers that are added.

    causal: a query sees the keys up to its own position. window: of these the last so many. softcap: scores z become
    softcap*tanh(z/softcap). scale: of scores, 1/sqrt(E) without it. All that follows is tensors, of whole numbers but for the last two:
    starts[B], lengths[B]: keys before the first or from the second on are padding, which nobody sees. documents[B,S]: a query sees keys of its own
    number alone; a pair, [B,S] of queries and [B,R] of keys, where they are not the same. prefix[B]: with causal, the first so many keys
    (from starts on) are seen by all queries. bias[H,S,R]: added to scores, behind the soft cap; [S,R] is for all heads, [B,H,S,R] of each
    sequence, where B or H may be 1. sinks[H]: a score beside those of the keys, for nothing at all.
    """
    if window is not None and (not causal or window < 1):
        raise ValueError("window is the number of last keys that a query sees: it needs causal=True, and must be 1 or more")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is {softcap}: it must be above 0")
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or q.shape[2] % k.shape[2]:
        raise ValueError(f"q has sizes {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}: they must be [B,S,H,E], [B,R,G,E] and [B,R,G,F], "
                         "and H is a multiple of G")
    if prefix is not None and (not causal or window is not None or documents is not None):
        raise ValueError("prefix is what queries see beyond causal=True: it needs causal=True, and works neither with window nor with documents")
    if spread and (not causal or starts is None or documents is not None or prefix is not None or sinks is not None):
        raise ValueError("spread needs causal=True and starts, and works neither with documents nor with prefix or sinks")
    if scale == q.shape[3] ** -0.5:
        scale = None
    (batch, queries, heads, _), keys, groups = q.shape, k.shape[1], k.shape[2]
    if documents is not None and not isinstance(documents, (tuple, list)):
        documents = documents, documents
    whole = [("starts", starts, [batch]), ("lengths", lengths, [batch]), ("prefix", prefix, [batch])]
    whole += [(f"documents of {name}", t, [batch, n]) for name, t, n in zip(("queries", "keys"), documents, (queries, keys))] if documents else []
    for name, t, sizes in whole:
        check_tensor(name, t, sizes, q, (torch.int32, torch.int64))
    check_tensor("sinks", sinks, [heads], q)
    if prefix is not None and starts is not None:
        prefix = starts + prefix
    axes, bias = bias_axes(bias, q, keys, groups) if bias is not None else (None, None)
    form = Form(causal, window is not None, softcap is not None, scale is not None, starts is not None, lengths is not None,
                documents is not None, prefix is not None, axes, sinks is not None, spread)
    made = ATTENTION.get(form)
    if made is None:
        made = ATTENTION[form] = attention_op(form)
    given = (bias, sinks if sinks is None else sinks.view(groups, -1), starts, lengths, *(documents or ()), prefix, scale, softcap, window)
    o = made(q.view(batch, queries, groups, heads // groups, q.shape[3]), k, v, *[t for t in given if t is not None])
    return o.view(batch, queries, heads, v.shape[3])


def check_tensor(name, t, sizes, q, types=None):
    """An error where a tensor beside q is not such as attention asks for."""
    if t is None:
        return
    if not isinstance(t, torch.Tensor) or (types and t.dtype not in types):
        raise TypeError(f"{name} is {t.dtype if isinstance(t, torch.Tensor) else type(t).__name__}: it must be a tensor"
                        + (f" of {' or '.join(str(dtype) for dtype in types)}" if types else ""))
    if list(t.shape) != sizes:
        raise ValueError(f"{name} has sizes {list(t.shape)}: they must be {sizes}, since q has sizes {list(q.shape)}")
    if t.device != q.device:
        raise ValueError(f"{name} is on {t.device}, but q is on {q.device}")


def bias_axes(bias, q, keys, groups):
    """The axes of a bias before its last two, as the text has them, and the bias with these."""
    batch, queries, heads, _ = q.shape
    if bias.dim() not in (2, 3, 4):
        raise ValueError(f"bias has sizes {list(bias.shape)}: they must be [S,R], [H,S,R] or [B,H,S,R]")
    wide = bias.view(*[1] * (4 - bias.dim()), *bias.shape)
    for_all, of_all = wide.shape[0] == 1, wide.shape[1] == 1
    check_tensor("bias", bias, [1 if for_all else batch, 1 if of_all else heads, queries, keys][4 - bias.dim():], q)
    axes = ("" if for_all else "B,") + ("" if of_all else "G,H,")
    return axes, wide.view(*[] if for_all else [batch], *[] if of_all else [groups, heads // groups], queries, keys)


@torch.library.custom_op("epilog::loss_in_chunks", mutates_args=())
def loss_in_chunks(x: torch.Tensor, w: torch.Tensor, label: torch.Tensor, d: torch.Tensor, ignore: int, which: list[bool],
                   numbers: list[float], chunks: int, by_w: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum of the losses of tokens, each times its d, and what its gradients by x and w are; the latter is summed in f32."""
    size, totals, found, dw = max(1, -(-x.shape[0] // chunks)), [], [], []
    for part in zip(x.split(size), label.split(size), d.split(size)):
        total, dx, *dw = loss_chunk(tuple(which), by_w, bool(dw))(part[0], w, part[1], ignore, *numbers, part[2], *dw)
        totals.append(total)
        found.append(dx)
    return torch.stack(totals).sum(), torch.cat(found), dw[0] if by_w else w.new_empty(0, dtype=torch.float32)


@loss_in_chunks.register_fake
def _(x, w, label, d, ignore, which, numbers, chunks, by_w):
    return d.new_empty(()), torch.empty_like(x), w.new_empty(w.shape if by_w else 0, dtype=torch.float32)


@register_flop_formula(torch.ops.epilog.loss_in_chunks, get_raw=True)
def _(x, w, label, d, ignore, which, numbers, chunks, by_w, out_val=None):
    """Of its products: the logits, and each gradient."""
    return 2 * x.shape[0] * w.numel() * (3 if by_w else 2)


class LossInChunks(torch.autograd.Function):
    """The sum over tokens, divided by count: gradients of the sum are made at once, and only scaled in the backward. They are kept
    without the scale, and it is f32: f16 holds neither 1/count of a gradient nor the factor that losses are multiplied by for it."""

    @staticmethod
    def forward(ctx, x, w, label, count, ignore, which, numbers, chunks):
        d = torch.ones(label.shape, dtype=torch.float32, device=x.device)
        total, dx, dw = loss_in_chunks(x, w, label, d, ignore, which, numbers, chunks, w.requires_grad)
        ctx.save_for_backward(dx, dw, count)
        ctx.by_w, ctx.dtype = w.requires_grad, w.dtype
        return total / count

    @staticmethod
    def backward(ctx, g):
        dx, dw, count = ctx.saved_tensors
        scale = g / count.clamp(min=1)  # where no token counts, gradients are 0
        return (dx.float() * scale).to(dx.dtype), (dw * scale).to(ctx.dtype) if ctx.by_w else None, None, None, None, None, None, None


class TokenLossesInChunks(torch.autograd.Function):
    """The loss of each token: what gradients it gets is known in the backward, where all is computed once more."""

    @staticmethod
    def forward(ctx, x, w, label, ignore, which, numbers, chunks):
        ctx.save_for_backward(x, w, label)
        ctx.told = ignore, which, numbers, chunks
        return TOKEN_LOSSES[tuple(which)](x, w, label, ignore, *numbers)

    @staticmethod
    def backward(ctx, g):
        x, w, label = ctx.saved_tensors
        _, dx, dw = loss_in_chunks(x, w, label, g.contiguous(), *ctx.told, w.requires_grad)
        return dx, dw.to(w.dtype) if w.requires_grad else None, None, None, None, None, None


def cast_like_linear(*tensors):
    """What autocast does with the operands of a product."""
    kind = tensors[0].device.type
    to = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return [t.to(to) if to and t.dtype == torch.float32 else t for t in tensors]


def check_labels(labels, words, ignore, wait):
    """An error where a label lies outside the vocabulary, as PyTorch's loss has it: on the CPU, and on a GPU where someone wants to wait
    for it. ignore: the label that is allowed, or None for all below 0. A graph has an assertion instead."""
    if not (labels.is_cpu or (wait and labels.is_cuda)) or in_functorch():
        return
    outside = labels >= words if ignore is None else ((labels < 0) | (labels >= words)) & (labels != ignore)
    if is_compiling() or watched():
        torch._assert_async(~outside.any(), f"a target is out of bounds: there are {words} vocabulary entries")
    elif outside.any():
        raise EpilogIndexError(f"Target {labels[outside][0]} is out of bounds: there are {words} vocabulary entries")


def linear_cross_entropy(x, weight, labels, ignore_index=-100, reduction="mean", label_smoothing=0.0, softcap=None, z_loss=0.0, chunks=1,
                         check_indices=False):
    """cross_entropy(x @ weight.T, labels), the logits of which nobody else sees.

    A label outside the vocabulary that is not ignore_index is an IndexError on the CPU; on a GPU the loss is infinite, or an IndexError
    with check_indices=True, which waits for the labels.

    softcap: logits z become softcap*tanh(z/softcap). z_loss: that many times the square of logsumexp(z) is added to each
    token's loss. chunks: tokens are taken in so many pieces, and only the logits of one are in memory at a time; gradients are then
    made with the loss, and that by the weight is kept in f32. With reduction="none" they are made in the backward, from logits that are
    computed again.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}: it must be mean, sum or none")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is {label_smoothing}: it must be from 0 to 1")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap is {softcap}: it must be above 0")
    if chunks < 1:
        raise ValueError(f"chunks is {chunks}: it must be 1 or more")
    check_labels(labels, weight.shape[0], ignore_index, check_indices)
    weight, which, numbers = loss_form(weight, label_smoothing, softcap, z_loss)
    if chunks > 1 and torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):  # without gradients no logits are kept
        x, weight = cast_like_linear(x, weight)
        given = rows(x), weight, labels.reshape(-1)
        if reduction != "none":
            count = (given[2] != ignore_index).sum() if reduction == "mean" else torch.ones((), device=x.device)
            return LossInChunks.apply(*given, count, ignore_index, which, numbers, chunks)
        loss = TokenLossesInChunks.apply(*given, ignore_index, which, numbers, chunks)
    else:
        loss = TOKEN_LOSSES[which](rows(x), weight, labels.reshape(-1), ignore_index, *numbers)
    if reduction == "none":
        return loss.view(labels.shape)
    return loss.sum() if reduction == "sum" else loss.sum() / (labels != ignore_index).sum()


def loss_ahead(x, weight, labels, softcap=None, chunks=1):
    """Begins with the kernels of linear_cross_entropy while what x is made of is still to be computed: of x and of the labels there need be no more
    than sizes and types."""
    weight, which, numbers = loss_form(weight, softcap=softcap)
    if chunks == 1 or not torch.is_grad_enabled() or not (x.requires_grad or weight.requires_grad):
        TOKEN_LOSSES[which].make_ahead(rows(x), weight, labels.reshape(-1), -100, *numbers)
        return
    x, weight = cast_like_linear(x, weight)
    tokens, label, by_w = rows(x), labels.reshape(-1), weight.requires_grad
    size = max(1, -(-tokens.shape[0] // chunks))
    given = [tokens[:size], weight, label[:size], -100, *numbers, blank((min(size, label.shape[0]),), torch.float32, x.device)]
    with torch.no_grad():
        loss_chunk(which, by_w, False).make_ahead(*given)
        if by_w and tokens.shape[0] > size:
            loss_chunk(which, by_w, True).make_ahead(*given, blank(weight.shape, torch.float32, x.device))


class TokenStatistics(NamedTuple):
    """Of each token, in f32: the log-probability of its label, the entropy of its distribution; and the most likely token."""
    log_prob: torch.Tensor
    entropy: torch.Tensor
    argmax: torch.Tensor


def linear_token_statistics(x, weight, labels, softcap=None, check_indices=False):
    """TokenStatistics of the logits x @ weight.T, which nobody sees. The first two can be differentiated. Labels lie inside the
    vocabulary, or are negative: the log-probability of such a one is that of a logit of 0, and means nothing. One beyond the vocabulary
    is an IndexError, or minus infinity, as in linear_cross_entropy."""
    check_labels(labels, weight.shape[0], None, check_indices)
    numbers = () if softcap is None else (softcap,)
    found = TOKEN_STATISTICS[softcap is not None](rows(x), weight, labels.reshape(-1), *numbers)
    return TokenStatistics(*[t.view(labels.shape) for t in found])


class LinearCrossEntropy(nn.Module):
    """The head of a language model and its loss; `weight` is called as in torch.nn.Linear."""

    def __init__(self, hidden_size, vocabulary, ignore_index=-100, reduction="mean", label_smoothing=0.0, softcap=None, z_loss=0.0,
                 chunks=1, device=None, dtype=None, check_indices=False):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, hidden_size, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=hidden_size ** -0.5)
        self.options = dict(ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing, softcap=softcap,
                            z_loss=z_loss, chunks=chunks, check_indices=check_indices)

    def forward(self, x, labels):
        return linear_cross_entropy(x, self.weight, labels, **self.options)

    def statistics(self, x, labels):
        return linear_token_statistics(x, self.weight, labels, self.options["softcap"], self.options["check_indices"])


from ._experts import Experts, MoE, experts  # noqa: E402, F401: made of what is above
from ._fp8 import Linear8  # noqa: E402, F401
from ._quantise import QuantisedLinear  # noqa: E402, F401

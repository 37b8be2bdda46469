"""Modules made of Epilog's programs. The names of their parameters are those of the modules they replace."""
import torch
from torch import nn

from ._op import op

ACTIVATIONS = {None: "{}", "silu": "silu({})", "gelu": "gelu({})", "gelu_tanh": "gelu_tanh({})", "relu": "relu({})"}

rms_norm = op("""
rms_norm(x[T,D], weight[D], eps) -> y[T,D] {
    y = x*rsqrt(mean(x*x, D) + eps)*weight
}""")

layer_norm = op("""
layer_norm(x[T,D], weight[D], bias[D], eps) -> y[T,D] {
    c = x - mean(x, D)
    y = c*rsqrt(mean(c*c, D) + eps)*weight + bias
}""")

swiglu_mlp = op("""
swiglu_mlp(x[T,D], gate[F,D], up[F,D], down[D,F]) -> y[T,D] {
    y = (silu(x @ gate)*(x @ up)) @ down
}""")

geglu_mlp = op("""
geglu_mlp(x[T,D], gate[F,D], up[F,D], down[D,F]) -> y[T,D] {
    y = (gelu_tanh(x @ gate)*(x @ up)) @ down
}""")

llama_mlp = op("""
# The MLP half of a block: the residual sum is part of it.
llama_mlp(x[T,D], weight[D], gate[F,D], up[F,D], down[D,F], eps) -> y[T,D] {
    n = x*rsqrt(mean(x*x, D) + eps)*weight
    y = x + (silu(n @ gate)*(n @ up)) @ down
}""")

token_loss = op("""
# Cross-entropy of each token; one whose label is `ignore` counts for nothing.
token_loss(x[T,D], w[V,D], label: i32[T], ignore: i32) -> loss: f32[T] {
    z = x @ w
    loss = where(label != ignore, logsumexp(z, V) - sum(where(index(V) == label, z, 0), V), 0)
}""")


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
            raise ValueError(f"activation is {activation!r}: it can be one of {', '.join(str(a) for a in ACTIVATIONS)}")
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
        self.op = {"silu": swiglu_mlp, "gelu_tanh": geglu_mlp}[activation]

    def forward(self, x):
        return self.op(rows(x), self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight).view(x.shape)


class SwiGLU(GatedMLP):
    """GatedMLP with SiLU."""

    def __init__(self, hidden_size, intermediate_size, device=None, dtype=None):
        super().__init__(hidden_size, intermediate_size, "silu", device, dtype)


def linear_cross_entropy(x, weight, labels, ignore_index=-100, reduction="mean"):
    """cross_entropy(x @ weight.T, labels), the logits of which nobody else sees."""
    loss = token_loss(rows(x), weight, labels.reshape(-1), ignore_index)
    if reduction == "none":
        return loss.view(labels.shape)
    if reduction == "sum":
        return loss.sum()
    if reduction != "mean":
        raise ValueError(f"reduction is {reduction!r}: it can be mean, sum or none")
    return loss.sum() / (labels != ignore_index).sum()


class LinearCrossEntropy(nn.Module):
    """The head of a language model and its loss; `weight` is called as in torch.nn.Linear."""

    def __init__(self, hidden_size, vocabulary, ignore_index=-100, reduction="mean", device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, hidden_size, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=hidden_size ** -0.5)
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, x, labels):
        return linear_cross_entropy(x, self.weight, labels, self.ignore_index, self.reduction)

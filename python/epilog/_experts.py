"""A mixture of experts: the texts of its layer, and a module.

Each token goes to K of E experts, which index[T,K] names, and the sum of what they say is weighted by weights[T,K]. In a text that is a
product whose weight is gathered by the token's choice; no order of tokens is written anywhere, and none is promised. Weights lie as Hugging
Face has them: gate and up of an expert are one product, of whose columns the halves, or neighbours, belong together.
"""
import functools
import itertools

import torch
from torch import nn

from ._library import EpilogIndexError
from ._op import op
from .nn import ACTIVATIONS, GatedMLP, rows

GATES = [a for a in ACTIVATIONS if a is not None]


def experts_text(activation, shared):
    """Gated experts. shared: an MLP that all tokens go through is added."""
    given = ["x[T,D]", "w[E,2*F,D]", "wd[E,D,F]", "e: i32[T,K]", "g[T,K]"] + ["sg[S,D]", "su[S,D]", "sd[D,S]"] * shared
    gate = ACTIVATIONS[activation]
    lines = ["a, b = halves(sum(x*gather(w, e, E), D), 2*F)", f"h = g*{gate.format('a')}*b",
             "y = sum(h*gather(wd, e, E), K, F)" + f" + ({gate.format('x @ sg')}*(x @ su)) @ sd" * shared]
    return f"experts({', '.join(given)}) -> y[T,D] {{\n    " + "\n    ".join(lines) + "\n}\n"


EXPERTS = {which: op(experts_text(*which)) for which in itertools.product(GATES, (False, True))}

# gpt-oss: gate and up are neighbours, with biases, and kept within a limit
clamped_experts = op("""
clamped_experts(x[T,D], w[E,D,2*F], b[E,2*F], wd[E,F,D], bd[E,D], e: i32[T,K], g[T,K], alpha, limit) -> y[T,D] {
    z = sum(x*gather(w, e, E), D) + gather(b, e, E)
    gate, up = pairs(z, 2*F)
    a = min(gate, limit)
    h = g*(clamp(up, -limit, limit) + 1)*a*sigmoid(alpha*a)
    y = sum(sum(h*gather(wd, e, E), F) + g*gather(bd, e, E), K)
}""")


SCORES = {"softmax": "softmax(z, E)", "sigmoid": "sigmoid(z)"}


@functools.lru_cache(None)
def router_op(scores, normalize, top_k):
    """Logits, and of the experts with the largest scores weights and numbers."""
    return op(f"""route(x[T,D], w[E,D], scale) -> (z: f32[T,E], g: f32[T,K={top_k}], e: i64[T,K]) {{
    z = x @ w
    p: f32 = {SCORES[scores]}
    e = topk(p, E, K)
    v = gather(p, e, E)
    g = {"v/sum(v, K)" if normalize else "v"}*scale
}}
""")


STORED = {torch.float32: "{}", torch.bfloat16: "bf16({})", torch.float16: "f16({})"}


@functools.lru_cache(None)
def model_router(dtype, top_k, by_logits, bias, normalize, wide):
    """A router as Hugging Face's models have it. The choice and the weights are made of logits as they are stored. by_logits: the weights are
    the softmax of those that were chosen. wide: the weights are f32."""
    given = ["x[T,D]", "w[E,D]"] + ["b[E]"] * bias
    lines = ["z = " + STORED[dtype].format("x @ w + b" if bias else "x @ w")]
    if by_logits:
        lines += ["e = topk(z, E, K)", "g = softmax(gather(z, e, E), K)"]
    else:
        lines += ["p: f32 = softmax(z, E)", "e = topk(p, E, K)", "v = gather(p, e, E)", "g = v/sum(v, K)" if normalize else "g = v"]
    results = f"(z[T,E], g{': f32' if wide else ''}[T,K={top_k}], e: i64[T,K])"
    return op(f"route({', '.join(given)}) -> {results} {{\n    " + "\n    ".join(lines) + "\n}\n")


def experts(x, index, weights, gate_up, down, activation="silu", shared=None, check_indices=False):
    """What the experts of each token say, weighted: of x[…,D], index[…,K] and weights[…,K] it is y[…,D]. gate_up[E,2*F,D] has the rows of
    the gate first, down is [E,D,F]. shared: the weights gate[S,D], up[S,D] and down[D,S] of an MLP for all tokens, which is added.

    An index outside E is an IndexError on the CPU; on a GPU nobody looks, but with check_indices=True, which waits for it.
    """
    if (activation, False) not in EXPERTS:
        raise ValueError(f"activation is {activation!r}: it must be one of {', '.join(GATES)}")
    if gate_up.dim() != 3 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up has sizes {list(gate_up.shape)}; it must be [E,2*F,D]")
    if check_indices and index.is_cuda and index.numel() and not 0 <= index.min() <= index.max() < gate_up.shape[0]:
        raise EpilogIndexError(f"an index is outside the {gate_up.shape[0]} experts")
    made, choices = EXPERTS[activation, shared is not None], index.shape[-1]
    y = made(rows(x), gate_up, down, index.reshape(-1, choices), weights.reshape(-1, choices), *(shared or ()))
    return y.view(x.shape)


class Experts(nn.Module):
    """The weights of gated experts, called as in Hugging Face's models."""

    def __init__(self, hidden_size, intermediate_size, count, activation="silu", device=None, dtype=None):
        super().__init__()
        kind = dict(device=device, dtype=dtype)
        self.activation = activation
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * intermediate_size, hidden_size, **kind))
        self.down_proj = nn.Parameter(torch.empty(count, hidden_size, intermediate_size, **kind))
        nn.init.normal_(self.gate_up_proj, std=hidden_size ** -0.5)
        nn.init.normal_(self.down_proj, std=intermediate_size ** -0.5)

    def forward(self, x, index, weights, shared=None):
        return experts(x, index, weights, self.gate_up_proj, self.down_proj, self.activation, shared)

    def extra_repr(self):
        count, features, size = self.down_proj.shape
        return f"{count} experts of {features} x {size}, activation={self.activation}"


class MoE(nn.Module):
    """A mixture of experts in place of an MLP: a router, gated experts, and with shared_size an MLP of that size for all tokens. Parameters are
    called as in the blocks of Mixtral and Qwen3-MoE.

    scores: "softmax" or "sigmoid" of the router's logits; the top_k largest choose, at most 64. normalize: the weights of a token's experts are
    made to sum to 1; then they are multiplied by scale.
    """

    def __init__(self, hidden_size, intermediate_size, num_experts, top_k, shared_size=0, activation="silu", scores="softmax", normalize=True,
                 scale=1.0, device=None, dtype=None):
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"top_k is {top_k}: it must be from 1 to the number of experts, {num_experts}")
        if scores not in SCORES:
            raise ValueError(f"scores is {scores!r}: it must be one of {', '.join(SCORES)}")
        if activation not in GATES:
            raise ValueError(f"activation is {activation!r}: it must be one of {', '.join(GATES)}")
        kind = dict(device=device, dtype=dtype)
        self.top_k, self.scores, self.scale, self.router = top_k, scores, scale, router_op(scores, normalize, top_k)
        self.gate = nn.Linear(hidden_size, num_experts, bias=False, **kind)
        self.experts = Experts(hidden_size, intermediate_size, num_experts, activation, **kind)
        self.shared_experts = GatedMLP(hidden_size, shared_size, activation, **kind) if shared_size else None

    def route(self, x):
        """The router's logits, of which a loss that balances the experts is made; and of each token's experts weights and index. In f32."""
        found = self.router(rows(x), self.gate.weight, self.scale)
        return [t.view(*x.shape[:-1], t.shape[-1]) for t in found]

    def forward(self, x):
        _, weights, index = self.route(x)
        shared = self.shared_experts
        return self.experts(x, index, weights, shared and (shared.gate_proj.weight, shared.up_proj.weight, shared.down_proj.weight))

    def extra_repr(self):
        return f"top_k={self.top_k}, scores={self.scores}"

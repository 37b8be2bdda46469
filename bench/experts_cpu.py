"""A layer of experts on the CPU beside PyTorch's loop over them: one process, the two in turn, forward and backward.

    PYTHONPATH=python python bench/experts_cpu.py [--threads N] [--tokens 512] [--experts 16] [--chosen 2] [--features 512]
        [--hidden 1024] [--skew S] [--out FILE.json]

PyTorch's side is what transformers does: for each expert, with weights of its own, the tokens that chose it, two products and a gate, a third product,
and index_add_ into the result; its backward is autograd's. --skew S draws experts by 1/rank**S; 0: all alike. Processor
time counts, not time by the clock: other work on the machine takes no part in it. The least of all rounds is printed, with
PyTorch's over Epilog's. Both sides' results come from the allocator's heap, whatever their size: else a gradient of all
experts' weights, which is one tensor here, would get its pages anew at each call."""
import os
import sys

HEAP = dict(MALLOC_MMAP_THRESHOLD_=str(1 << 30), MALLOC_TRIM_THRESHOLD_=str(1 << 32))
if any(os.environ.get(name) != value for name, value in HEAP.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ, **HEAP))

import cpu_beside
from common import torch
import epilog

given, sizes = cpu_beside.arguments(__doc__, threads=1, tokens=512, experts=16, chosen=2, features=512, hidden=1024, rounds=5, skew=0.0)

TEXT = """
moe(x[T,D], wg[E,F,D], wu[E,F,D], wd[E,D,F], e: i32[T,K], gate: f32[T,K]) -> out[T,D] {
    h = gate*silu(sum(x*gather(wg, e, E), D))*sum(x*gather(wu, e, E), D)
    out = sum(h*gather(wd, e, E), K, F)
}"""
ours = epilog.op(TEXT)


def theirs(x, gate, *weights):
    out = torch.zeros_like(x)
    for i, (wg, wu, wd) in enumerate(zip(*(weights[w * E:w * E + E] for w in range(3)))):
        token, which = torch.where(e == i)
        rows = x[token]
        h = torch.nn.functional.silu(rows @ wg.T) * (rows @ wu.T)
        out.index_add_(0, token, (h @ wd.T) * gate[token, which, None])
    return out


torch.manual_seed(0)
T, E, K, D, F = given.tokens, given.experts, given.chosen, given.features, given.hidden
scale = lambda *shape: (torch.randn(shape) * shape[-1] ** -0.5).requires_grad_()
x, wg, wu, wd = torch.randn(T, D, requires_grad=True), scale(E, F, D), scale(E, F, D), scale(E, D, F)
weights = torch.arange(1, E + 1).float() ** -given.skew
e = torch.multinomial(weights.expand(T, E), K).int()
gate = torch.softmax(torch.randn(T, K), -1).requires_grad_()
d = torch.randn(T, D)
apart_weights = [w.detach().clone().requires_grad_() for stack in (wg, wu, wd) for w in stack]
calls = dict(pytorch=(lambda: theirs(x, gate, *apart_weights), (x, gate, *apart_weights)),
             epilog=(lambda: ours(x, wg, wu, wd, e, gate), (x, gate, wg, wu, wd)))
best, results = cpu_beside.measure(calls, d, given.rounds)
stack = lambda w: torch.stack([torch.zeros_like(apart_weights[w * E]) if g is None else g for g in results["pytorch"][3 + w * E:3 + w * E + E]])
results["pytorch"] = (*results["pytorch"][:3], *map(stack, range(3)))
cpu_beside.report(f"{E} experts, {K} a token, f32, {T} tokens of {D} features, {F} hidden, skew {given.skew:g}",
                  given, sizes, best, results)

"""Attention on the CPU beside PyTorch's: one process, the two in turn, forward and backward.

    PYTHONPATH=python python bench/attention_cpu.py [--threads N] [--heads 8] [--length 2048] [--features 64] [--out FILE.json]

Processor time counts, not time by the clock: other work on the machine takes no part in it. The least of all rounds is
printed, with PyTorch's over Epilog's."""
import cpu_beside
from common import torch
import epilog

given, sizes = cpu_beside.arguments(__doc__, threads=1, batch=1, heads=8, length=2048, features=64, rounds=5)

TEXT = """
causal(q[B,H,S,E], k[B,H,R,E], v[B,H,R,E]) -> o[B,H,S,E] {
    p = softmax(where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf), R)
    o = sum(p*v, R)
}"""
ours = epilog.op(TEXT)
theirs = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


torch.manual_seed(0)
shape = (given.batch, given.heads, given.length, given.features)
q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
d = torch.randn(shape)
calls = dict(pytorch=(lambda: theirs(q, k, v), (q, k, v)), epilog=(lambda: ours(q, k, v), (q, k, v)))
cpu_beside.report(f"causal attention, f32, {given.batch} x {given.heads} heads, {given.length} positions, {given.features} features",
                  given, sizes, *cpu_beside.measure(calls, d, given.rounds))

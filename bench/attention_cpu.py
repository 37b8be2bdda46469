"""Attention on the CPU beside PyTorch's: one process, the two in turn, forward and backward.

    PYTHONPATH=python python bench/attention_cpu.py [--threads N] [--heads 8] [--length 2048] [--features 64] [--out FILE.json]

Processor time counts, not time by the clock: other work on the machine takes no part in it. The least of all rounds is
printed, with PyTorch's over Epilog's."""
import argparse
import json
import platform
import subprocess
import sys
import time

import torch
import epilog

parser = argparse.ArgumentParser()
for name, value in (("threads", 1), ("batch", 1), ("heads", 8), ("length", 2048), ("features", 64), ("rounds", 5)):
    parser.add_argument("--" + name, type=int, default=value)
parser.add_argument("--out", help="write the figures as JSON")
given = parser.parse_args()
torch.set_num_threads(given.threads)

TEXT = """
causal(q[B,H,S,E], k[B,H,R,E], v[B,H,R,E]) -> o[B,H,S,E] {
    p = softmax(where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf), R)
    o = sum(p*v, R)
}"""
ours = epilog.op(TEXT)
theirs = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def seconds(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


torch.manual_seed(0)
shape = (given.batch, given.heads, given.length, given.features)
q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
d = torch.randn(shape)
best, results = {}, {}
for count in range(given.rounds + 1):  # the first one compiles and touches memory
    for name, f in (("pytorch", theirs), ("epilog", ours)):
        forward, o = seconds(lambda: f(q, k, v))
        backward, gradients = seconds(lambda: torch.autograd.grad(o, (q, k, v), d))
        best[name] = tuple(map(min, best[name], (forward, backward))) if count > 1 else (forward, backward)
        results[name] = (o.detach(), *gradients)
apart = [((a - b).norm() / b.norm()).item() for a, b in zip(results["epilog"], results["pytorch"])]
assert max(apart) < 1e-5, apart
print(f"causal attention, f32, {given.batch} x {given.heads} heads, {given.length} positions, {given.features} features, "
      f"{given.threads} thread(s), PyTorch {torch.__version__}")
for i, name in enumerate(("forward", "backward")):
    a, b = best["pytorch"][i], best["epilog"][i]
    print(f"{name:9} PyTorch {1e3 * a:7.1f} ms, Epilog {1e3 * b:7.1f} ms: {a / b:.2f}")
if given.out:
    row = {f"{side}_{name}_ms": 1e3 * best[side][i] for side in best for i, name in enumerate(("forward", "backward"))}
    head = dict(date=time.strftime("%Y-%m-%d"), commit=subprocess.getoutput("git rev-parse --short HEAD"), machine=platform.machine(),
                torch=torch.__version__, command=sys.argv, time="processor time, least of the rounds")
    sizes = {n: getattr(given, n) for n in ("threads", "batch", "heads", "length", "features", "rounds")}
    with open(given.out, "w") as f:
        json.dump(dict(head, rows=[dict(sizes, type="f32", apart=apart, **row)]), f, indent=1)

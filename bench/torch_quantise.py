#!/usr/bin/env python3
"""SwiGLUs that leave their tile as e4m3, with a scale for 128 columns of a row, beside the same that leave it in bfloat16; and passes over memory that quantise.

  fp8      gate and up of e4m3, as bench/torch_fp8.py has them: quantised over bfloat16, and the same where gate and up are kept for a backward
  bf16     the same of bfloat16 operands
  passes   rows to e4m3, the same in both orders, and a norm's rows: beside a copy of as many bytes

Every result is checked in the run that times it: what the bytes and scales mean may be as far from f64 as f64's own, quantised, and a twentieth more.
The sides take turns; cool and hot as in bench/torch_fp8.py, which this is built on.

  PYTHONPATH=python python3 bench/torch_quantise.py --out bench/results/h200-quantise.json
  PYTHONPATH=python python3 bench/torch_quantise.py --device cpu --small      # tries the script without a GPU
"""
import sys

import common
from common import distance, torch
import epilog
import torch_fp8 as fp8

OPERANDS = dict(
    fp8=("q: e4m3[T,G,K], s: f32[G,T], gate: e4m3[N,J,G,K], t: f32[N,G], up: e4m3[N,J,G,K], u: f32[N,G]", "x = s*q; g = x @ (t*gate); h = x @ (u*up)"),
    bf16=("x: bf16[T,D], gate: bf16[N,J,D], up: bf16[N,J,D]", "g = x @ gate; h = x @ up"))
QUANTISED = "v = max(max(abs(y), J)/448, 1e-12); p = e4m3(y/v)"
FORMS = {"plain": ("y: bf16[T,N,J]", ""), "quantised": ("p: e4m3[T,N,J], v: f32[T,N]", QUANTISED),
         "kept": ("g: bf16[T,N,J], h: bf16[T,N,J], y: bf16[T,N,J]", ""), "kept quantised": ("g: bf16[T,N,J], h: bf16[T,N,J], p: e4m3[T,N,J], v: f32[T,N]", QUANTISED)}
PASSES = {"rows": "f(x: bf16[N,R,G,K]) -> (q: e4m3[N,R,G,K], s: f32[N,R,G]) { s = max(max(abs(x), K)/448, 1e-12); q = e4m3(x/s) }",
          "both": """f(x: bf16[N,R,G,K]) -> (q: e4m3[N,R,G,K], s: f32[N,R,G], p: e4m3[G,K,N,R], t: f32[N,G,K]) {
    s = max(max(abs(x), K)/448, 1e-12); q = e4m3(x/s); t = max(max(abs(x), R)/448, 1e-12); p = e4m3(x/t) }""",
          "norm": """f(x: bf16[N,R,G,K]) -> (q: e4m3[N,R,G,K], s: f32[N,R,G]) {
    y = x*rsqrt(mean(x*x, G, K) + 1e-5); s = max(max(abs(y), K)/448, 1e-12); q = e4m3(y/s) }"""}


def meant(q, s):
    return q.double() * s.double()[..., None]


def check(q, s, exact):
    """How far bytes and scales are from f64, and how far f64's own are."""
    best = (exact.abs().amax(-1) / 448).clamp(min=1e-12)
    row = dict(distance=distance(meant(q, s), exact), best=distance(meant((exact / best[..., None]).float().to(fp8.E4M3), best), exact))
    return row | dict(ok=row["distance"] <= 1.05 * row["best"])


def gated(args, section, m, n, k):
    row = dict(section=section, M=m, N=n, K=k, errors=[])
    inputs, products = OPERANDS[section]
    ops = {name: epilog.op(f"f({inputs}) -> ({outputs}) {{ {products}; y = silu(g)*h; {more} }}", rows=["T"]) for name, (outputs, more) in FORMS.items()}
    sets = [fp8.Operands(args, m, n, k) for _ in range(fp8.SETS)]
    half = n // 2
    take = lambda v: v.halves() if section == "fp8" else (v.x, v.w[:half].view(-1, 128, k), v.w[half:].view(-1, 128, k))
    some = torch.arange(0, m, max(1, m // 128), device=args.device)
    v = sets[0]
    exact = fp8.swiglu(v.exact(some) if section == "fp8" else v.x[some].double() @ v.w.double().t()).view(len(some), -1, 128)
    for name in ("quantised", "kept quantised"):
        q, s = ops[name](*take(v))[-2:]
        row["errors"].append(check(q[some], s[some], exact) | dict(output=name))
    row["ok"], row["plan"] = all(e["ok"] for e in row["errors"]), {name: op.show(*take(v)) for name, op in ops.items()}
    row["times"] = fp8.timed(args, {name: [lambda v=v, op=op: op(*take(v)) for v in sets] for name, op in ops.items()}, args.slot, args.cool)
    over = lambda a, b: {at: row["times"][a][at] / row["times"][b][at] for at in row["times"][a] if at in ("hot_ms", "cool_ms", "median_ms")}
    row["over"] = {"quantised": over("quantised", "plain"), "kept quantised": over("kept quantised", "kept")}
    return row


def quantise(args, m, n):
    row = dict(section="passes", M=m, N=n, errors=[])
    x = [torch.randn(m // 128, 128, n // 128, 128, device=args.device).to(torch.bfloat16) for _ in range(fp8.SETS)]
    ops = {name: epilog.op(text, rows=["N"]) for name, text in PASSES.items()}
    exact = x[0][:1].double()
    for name, op in ops.items():
        out = op(x[0])
        y = exact / (exact.square().mean((-2, -1), keepdim=True) + 1e-5).sqrt() if name == "norm" else exact
        row["errors"].append(check(out[0][:1], out[1][:1], y) | dict(output=name))
        if name == "both":
            turned = exact.permute(2, 3, 0, 1)
            row["errors"].append(check(out[2][:, :, :1], out[3][:1].permute(1, 2, 0), turned) | dict(output="turned"))
    row["ok"], row["plan"] = all(e["ok"] for e in row["errors"]), {name: op.show(x[0]) for name, op in ops.items()}
    sides = {name: [lambda v=v, op=op: op(v) for v in x] for name, op in ops.items()}
    to = torch.empty_like(x[0])
    sides["copy"] = [lambda v=v: to.copy_(v) for v in x]   # four bytes an element: "rows" and "norm" move three, "both" at least four
    row["times"] = fp8.timed(args, sides, args.slot, args.cool)
    row["over"] = {name: {at: t / row["times"]["copy"][at] for at, t in row["times"][name].items() if at in ("hot_ms", "cool_ms", "median_ms")} for name in ops}
    return row


def line(row):
    times = ", ".join(f"{n} " + " ".join(f"{at[:-3]} {x:.3f}" for at, x in v.items()) for n, v in row["over"].items())
    errors = ", ".join(f"{e['output']} {e['distance'] / max(e['best'], 1e-30):.3f}" for e in row["errors"])
    shape = "x".join(str(row[n]) for n in "MNK" if n in row)
    return f"{'ok   ' if row['ok'] else 'WRONG'} {row['section']} {shape}: {times}; off by {errors} of f64's own; {row['seconds']:.1f} s"


if __name__ == "__main__":
    def work(args):
        shapes = [(256, 512, 256)] if args.small else fp8.GATED
        passes = [(256, 256)] if args.small else [(16384, 2048), (16384, 8192)]
        sections = {n: [lambda s=s, n=n: gated(args, n, *s) for s in shapes] for n in OPERANDS}
        return sections | dict(passes=[lambda s=s: quantise(args, *s) for s in passes])
    sys.exit(common.main(work, "fp8,bf16,passes", __doc__, line, **fp8.OPTIONS))

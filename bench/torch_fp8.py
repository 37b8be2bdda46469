#!/usr/bin/env python3
"""Products of e4m3 with block scales, beside cuBLAS's in bfloat16 and PyTorch's block-wise torch._scaled_mm of the same bytes.

  forward  the products of a Llama of 1B and of 8B: rows with a scale for 128 of the depth, a weight with one for 128 x 128
  weight   the gradients of the first one's weights: the same, as deep as there are tokens
  gated    gate and up side by side, with SwiGLU on the tile: beside the bfloat16 product alone

Every result is checked in the run that times it: sampled rows against f64 of the same bytes and scales, of data around zero and of positive
data, whose sums tensor cores cut short if nobody promotes them. At most 1.5 times as far off as f64's rounded to bfloat16, by Frobenius' norm.
Cool: a pause, one call, then as many as there are sets of operands. Hot: back to back, in slots behind half a slot that is not timed. The sides take turns.

  PYTHONPATH=python python3 bench/torch_fp8.py --out bench/results/h200-fp8.json
  PYTHONPATH=python python3 bench/torch_fp8.py --device cpu --small      # tries the script without a GPU
"""
import math, statistics, sys, time

import common
from common import distance, in_turn, torch
import epilog

E4M3 = torch.float8_e4m3fn
FORWARD = [(16384, n, k) for n, k in ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192))] + [
    (8192, n, k) for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))]
WEIGHT = [(n, k, 16384) for n, k in ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192))]
GATED = [(16384, 16384, 2048), (8192, 28672, 4096)]
PRODUCT = "product(q: e4m3[T,G,K], s: f32[G,T], r: e4m3[N,J,G,K], t: f32[N,G]) -> y: bf16[T,N,J] { y = (s*q) @ (t*r) }"
SWIGLU = """swiglu(q: e4m3[T,G,K], s: f32[G,T], gate: e4m3[N,J,G,K], t: f32[N,G], up: e4m3[N,J,G,K], u: f32[N,G]) -> y: bf16[T,N,J] {
    x = s*q
    y = silu(x @ (t*gate))*(x @ (u*up))
}"""
SETS = 3


def by_groups(x):
    """x[R,C] as bytes [R,C/128,128], and a scale for 128 of a row, [C/128,R]."""
    g = x.float().view(x.shape[0], -1, 128)
    s = g.abs().amax(-1).clamp(min=1e-12) / 448
    return (g / s[..., None]).to(E4M3), s.t().contiguous()


def by_blocks(w):
    """w[N,K] as bytes [N/128,128,K/128,128], and a scale for each square."""
    g = w.float().view(w.shape[0] // 128, 128, -1, 128)
    s = g.abs().amax((1, 3)).clamp(min=1e-12) / 448
    return (g / s[:, None, :, None]).to(E4M3), s


class Operands:
    def __init__(self, args, m, n, k, positive=False):
        def make(rows, scale):   # rows of different size, so that a wrong scale shows
            v = torch.randn(rows, k, device=args.device) * (scale * (0.25 + torch.rand(rows, 1, device=args.device)))
            return (v.abs() if positive else v).to(args.dtype)
        self.x, self.w = make(m, 1.0), make(n, 0.02)
        (self.q, self.s), (self.r, self.t) = by_groups(self.x), by_blocks(self.w)

    def exact(self, some):
        """Some rows of the product, in f64."""
        a = (self.q[some].double() * self.s.t()[some].double()[..., None]).flatten(1)
        b = (self.r.double() * self.t.double()[:, None, :, None]).view(self.w.shape)
        return a @ b.t()

    def torch_blocks(self):
        """PyTorch's own, which takes the same bytes; the scales of rows lie as ours do."""
        return torch._scaled_mm(self.q.flatten(1), self.r.view(self.w.shape).t(), scale_a=self.s.t(), scale_b=self.t.t(), out_dtype=torch.bfloat16)

    def halves(self):
        half = len(self.r) // 2
        return self.q, self.s, self.r[:half], self.t[:half], self.r[half:], self.t[half:]


def swiglu(z):
    return torch.nn.functional.silu(z[:, :z.shape[1] // 2]) * z[:, z.shape[1] // 2:]


def check(name, y, exact, some, dtype):
    """How far it is off, how far f64's results are that are rounded, and the mean error to one side."""
    y, rounded = y.flatten(1)[some].double(), distance(exact.to(dtype), exact)
    row = dict(output=name, distance=distance(y, exact), rounded=rounded, bias=float((y - exact).sum() / exact.abs().sum()))
    return row | dict(ok=row["distance"] <= 1.5 * rounded)


def timed(args, sides, slot_ms, cool):
    """ms of each side, hot and cool: name -> one call for each set of operands."""
    if args.device != "cuda":
        return {n: common.Timer("cpu", 1).turns({n: c[0]})[n] for n, c in sides.items()}
    def run(calls, count, first=0):
        begin, end = common.events()
        begin.record()
        for i in range(count):
            calls[(first + i) % len(calls)]()
        end.record()
        return begin, end
    def rested(calls):
        time.sleep(0.008)
        calls[0]()
        begin, end = run(calls, SETS, 1)
        end.synchronize()
        return begin.elapsed_time(end) / SETS
    one, hot = {}, {n: [] for n in sides}
    for n, calls in sides.items():
        run(calls, len(calls))
        begin, end = run(calls, len(calls))
        end.synchronize()
        one[n] = begin.elapsed_time(end) / len(calls)
    cold = in_turn(sides, rested, cool, back=True)
    for i in range(args.rounds + 1):
        events = {}
        for n in list(sides)[::1 if i % 2 else -1]:
            count = max(SETS, math.ceil(slot_ms / one[n]))
            run(sides[n], count // 2)
            events[n] = count, *run(sides[n], count)
        torch.cuda.synchronize()
        for n, (count, begin, end) in events.items():
            hot[n] += [begin.elapsed_time(end) / count] if i else []
    return {n: dict(hot_ms=statistics.median(hot[n]), hot_min_ms=min(hot[n]), hot_max_ms=max(hot[n]), cool_ms=statistics.median(cold[n])) for n in sides}


def product(args, section, m, n, k):
    row = dict(section=section, M=m, N=n, K=k, errors=[])
    gated = section == "gated"
    op = epilog.op(SWIGLU if gated else PRODUCT, rows=["T"])
    ours = lambda v: op(*v.halves()) if gated else op(v.q, v.s, v.r, v.t)
    some = torch.arange(0, m, max(1, m // 128), device=args.device)
    for positive in (True, False):
        v = Operands(args, m, n, k, positive)
        exact = v.exact(some)
        row["errors"].append(check("positive" if positive else "around zero", ours(v), swiglu(exact) if gated else exact, some, args.dtype))
    row["ok"], row["plan"] = all(e["ok"] for e in row["errors"]), op.show(*(v.halves() if gated else (v.q, v.s, v.r, v.t)))
    row["mainloop"] = next((line.split(",")[1].split(":")[0].strip() for line in row["plan"].splitlines() if line.startswith("tile")), "none")
    sets = [v] + [Operands(args, m, n, k) for _ in range(SETS - 1)]
    out = torch.empty(m, n, device=args.device, dtype=args.dtype)
    sides = {"epilog": [lambda v=v: ours(v) for v in sets], "bf16": [lambda v=v: torch.mm(v.x, v.w.t(), out=out) for v in sets]}
    try:
        if not gated:
            row["torch_distance"] = check("torch", v.torch_blocks(), exact, some, args.dtype)["distance"]
            sides["torch blocks"] = [lambda v=v: v.torch_blocks() for v in sets]
    except Exception as e:
        row["torch_failed"] = str(e).splitlines()[0][:200]
    del exact
    row["times"] = timed(args, sides, args.slot, args.cool)
    over = lambda name, at: row["times"][name][at] / row["times"]["bf16"][at]
    row["over_bf16"] = {n: {at: over(n, at) for at in row["times"][n] if at in ("hot_ms", "cool_ms", "median_ms")} for n in sides if n != "bf16"}
    return row


def line(row):
    times = ", ".join(f"{n} " + " ".join(f"{at[:-3]} {x:.3f}" for at, x in v.items()) for n, v in row["over_bf16"].items())
    errors = ", ".join(f"{e['output']} {e['distance']:.2e} ({e['distance'] / max(e['rounded'], 1e-30):.2f} of rounding, bias {e['bias']:+.1e})" for e in row["errors"])
    return f"{'ok   ' if row['ok'] else 'WRONG'} {row['section']} {row['M']}x{row['N']}x{row['K']} {row['mainloop']}: {times}; {errors}; {row['seconds']:.1f} s {row.get('torch_failed', '')}"


OPTIONS = dict(rounds=5, slot=(20.0, "ms of a slot in which a side is hot"), cool=(9, "rounds of calls behind a pause"))


if __name__ == "__main__":
    def work(args):
        small = [(256, 256, 256)]
        shapes = dict(forward=FORWARD, weight=WEIGHT, gated=GATED)
        return {n: [lambda s=s, n=n: product(args, n, *s) for s in (small if args.small else every)] for n, every in shapes.items()}
    sys.exit(common.main(work, "forward,weight,gated", __doc__, line, **OPTIONS))

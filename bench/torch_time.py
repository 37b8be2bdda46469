#!/usr/bin/env python3
"""What runs along time, beside a copy of as many bytes, and beside PyTorch where it has a kernel for it.

  sum      a running sum along the middle axis, and along the last one
  ema      h(t) = a*h(t-1) + (1 - a)*x(t), with an a for each channel; few channels over a long time, too
  gates    h(t) = a(t)*h(t-1) + b(t), with an a for each element
  conv     a depthwise convolution of width 4 with a bias, and SiLU behind it

Each forward and backward, which is derived, as training calls it: gradients of the long inputs, of the convolution those of weights and bias, too. Every result is checked
in the run that times it: some channels against f64, at most 1.5 times as far off as f64's rounded to the storage type, by Frobenius' norm; gradients 2 times.
`of_copy`: the time of a copy of x times the tensors that must be moved over those that a copy moves, over the time. The sides are CUDA graphs and take
turns; cool and hot as in bench/torch_fp8.py.

  PYTHONPATH=python python3 bench/torch_time.py --out bench/results/h200-time.json
  PYTHONPATH=python python3 bench/torch_time.py --device cpu --small      # tries the script without a GPU
"""
import sys

import common
from common import distance, torch
import epilog
import torch_fp8 as fp8

LONG, LAST = "[B,T,D]", "[B,D,T]"
TAPS = "silu(w3*x + w2*shift(x, T, 1) + w1*shift(x, T, 2) + w0*shift(x, T, 3) + v)"
CHANNEL = ": f32[D]"
# A program: what it is, its inputs beside x (of channels, or as long as x), which of all its backward is for, and the long tensors that forward and
# backward must move.
WORK = {
    "sum": ("cumsum(x, T)", {}, ["x"], 2, 2),
    "ema": ("scan(a, (1 - a)*x, T)", {"a": CHANNEL}, ["x"], 2, 2),
    "gates": ("scan(a, x, T)", {"a": LONG}, ["a", "x"], 3, 5),
    "conv": (TAPS, dict.fromkeys(["w0", "w1", "w2", "w3", "v"], CHANNEL), ["x", "w0", "w1", "w2", "w3", "v"], 2, 3),
}
USUAL = [(8, 4096, 2048, LONG), (8, 4096, 2048, LAST)]
FULL = {"sum": USUAL + [(1, 131072, 512, LONG)], "ema": USUAL + [(1, 131072, 512, LONG)], "gates": USUAL[:1], "conv": USUAL}
SMALL = dict.fromkeys(WORK, [(2, 40, 24, LONG), (2, 40, 24, LAST)])


def text(section, axes):
    body, more = WORK[section][:2]
    declared = ", ".join(n + (CHANNEL if more.get(n) == CHANNEL else axes) for n in ["x"] + list(more))
    return f"f({declared}) -> y{axes} {{ y = {body} }}\n"


def tensors(args, section, b, t, d, axes):
    """Inputs, and the gradient that comes in. Decays are between 0 and 1."""
    long = lambda: torch.randn((b, t, d) if axes == LONG else (b, d, t), device=args.device).to(args.dtype)
    make = lambda name, kind: torch.randn(d, device=args.device) if kind == CHANNEL else long()
    more = [make(n, kind).sigmoid() if n == "a" else make(n, kind) for n, kind in WORK[section][1].items()]
    return [long()] + more, long()


def recurrence(a, b):
    """h(t) = a(t)*h(t-1) + b(t) along the second axis, by doubling, as autograd can follow it."""
    step, zeros = 1, lambda v, n: torch.zeros_like(v[:, :n])
    while step < b.shape[1]:
        before = lambda v: torch.cat([zeros(v, step), v[:, :-step]], 1)
        b, a, step = b + a * before(b), a * before(a), 2 * step
    return b


def conv(x, w0, w1, w2, w3, v):
    """Of x[B,D,T]."""
    w = torch.stack([w0, w1, w2, w3], 1)[:, None].to(x.dtype)
    y = torch.nn.functional.conv1d(x, w, v.to(x.dtype), padding=3, groups=x.shape[1])[..., :x.shape[2]]
    return torch.nn.functional.silu(y)


def of_torch(section, axes, x, *more):
    """The same by PyTorch's own operations; None: it has none that is not a loop."""
    dim = 1 if axes == LONG else 2
    if section == "sum":
        return x.cumsum(dim)
    if section == "conv":
        return conv(x, *more) if axes == LAST else conv(x.transpose(1, 2), *more).transpose(1, 2)
    return None


def exact_of(section, axes, inputs, d):
    """Results and gradients of a few channels, in f64: name -> tensor [B,T,some] or [some]."""
    dim = 2 if axes == LONG else 1
    some = torch.arange(0, d.shape[dim], max(1, d.shape[dim] // 16), device=d.device)
    by_time = lambda v: v.transpose(1, 2) if axes == LAST and v.dim() == 3 else v
    cut = lambda v: by_time(v[some] if v.dim() == 1 else v.index_select(dim, some)).double().requires_grad_()
    x, *more = leaves = [cut(v) for v in inputs]
    if section == "conv":
        y = conv(x.transpose(1, 2), *more).transpose(1, 2)
    elif section == "sum":
        y = x.cumsum(1)
    else:
        y = recurrence(more[0].expand_as(x), (1 - more[0]) * x if section == "ema" else x)
    grads = torch.autograd.grad(y, leaves, by_time(d.index_select(dim, some)).double())
    return some, dim, dict(y=y.detach()) | dict(zip(["g_x"] + ["g_" + n for n in WORK[section][1]], grads))


def check(name, mine, exact, some, dim, axes):
    y = mine[some] if mine.dim() == 1 else mine.index_select(dim, some)
    y = (y.transpose(1, 2) if y.dim() == 3 and axes == LAST else y).double()
    off, best = distance(y, exact), distance(exact.to(mine.dtype), exact)
    # what a gradient is made of may have been stored once between kernels: sums over all steps are of terms rounded so
    limit = 1.5 * best if name == "y" else 2 * best if mine.dim() == 3 else 2.0 ** -8
    return dict(output=name, distance=off, rounded=best, ok=off <= limit)


def backward_of(op, names, inputs, wanted, d):
    """The forward's results, and a call that makes the gradients of some inputs, as training does: what the forward kept is there."""
    leaves = {n: v.detach().requires_grad_(n in wanted) for n, v in zip(names, inputs)}
    y = op(*leaves.values())
    return y, lambda: torch.autograd.grad(y, [leaves[n] for n in wanted], d, retain_graph=True)


def graphed(args, row, stream, name, calls):
    """The calls as CUDA graphs, so that no side pays for the host; where one cannot be captured, as they are."""
    if not stream:
        return calls
    graphs = []
    try:
        for call in calls:
            with torch.cuda.stream(stream):
                call()
            torch.cuda.synchronize()
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1], stream=stream):
                call()
        return [g.replay for g in graphs]
    except Exception as e:
        row.setdefault("not_captured", {})[name] = str(e).splitlines()[0][:200]
        torch.cuda.synchronize()
        return calls


def along(args, section, b, t, d, axes):
    stream = torch.cuda.Stream() if args.device == "cuda" else None
    with torch.cuda.stream(stream):   # a backward runs where its forward did
        return along_stream(args, section, b, t, d, axes, stream)


def along_stream(args, section, b, t, d, axes, stream):
    row = dict(section=section, B=b, T=t, D=d, axes=axes, errors=[])
    _, more, wanted, moved, moved_back = WORK[section]
    names, op = ["x"] + list(more), epilog.op(text(section, axes), rows=())
    sets = [tensors(args, section, b, t, d, axes) for _ in range(fp8.SETS)]
    inputs, cotangent = sets[0]
    some, dim, exact = exact_of(section, axes, inputs, cotangent)
    backs = [backward_of(op, names, v, wanted, dy) for v, dy in sets]
    mine = dict(y=backs[0][0].detach()) | dict(zip(["g_" + n for n in wanted], backs[0][1]()))
    row["errors"] = [check(n, v, exact[n], some, dim, axes) for n, v in mine.items()]
    row["same_bits"] = torch.equal(mine["y"], op(*inputs)) and all(torch.equal(a, b) for a, b in zip(list(mine.values())[1:], backs[0][1]()))
    row["ok"] = row["same_bits"] and all(e["ok"] for e in row["errors"])
    row["plan"] = op.show(*inputs)
    to = torch.empty_like(cotangent)
    sides = {"forward": [lambda v=v: op(*v[0]) for v in sets], "backward": [back for _, back in backs], "copy": [lambda v=v: to.copy_(v[1]) for v in sets]}
    if of_torch(section, axes, *inputs) is not None:
        theirs = lambda *v: of_torch(section, axes, *v)
        sides["torch forward"] = [lambda v=v: theirs(*v[0]) for v in sets]
        sides["torch backward"] = [backward_of(theirs, names, v, wanted, dy)[1] for v, dy in sets]
    sides = {n: graphed(args, row, stream, n, calls) for n, calls in sides.items()}
    row["times"] = fp8.timed(args, sides, args.slot, args.cool)
    best = lambda name: row["times"][name].get("cool_ms", row["times"][name].get("median_ms"))
    row["of_copy"] = dict(forward=moved / 2 * best("copy") / best("forward"), backward=moved_back / 2 * best("copy") / best("backward"))
    row["beside_torch"] = {n: best("torch " + n) / best(n) for n in ("forward", "backward") if "torch " + n in sides}
    return row


def line(row):
    errors = ", ".join(f"{e['output']} {e['distance']:.1e} ({e['distance'] / max(e['rounded'], 1e-30):.2f} of rounding{'' if e['ok'] else ', WRONG'})" for e in row["errors"])
    times = ", ".join(f"{n} " + " ".join(f"{at[:-3]} {1e3 * x:.1f}" for at, x in v.items() if at in ("hot_ms", "cool_ms", "median_ms")) for n, v in row["times"].items())
    moved = next((l for l in row["plan"].splitlines()[::-1] if "MB moved" in l), "")
    return (f"{'ok   ' if row['ok'] else 'WRONG'} {row['section']} {row['B']}x{row['T']}x{row['D']} {row['axes']}: of a copy "
            + " ".join(f"{n} {x:.3f}" for n, x in row["of_copy"].items()) + "; torch / ours " + " ".join(f"{n} {x:.2f}" for n, x in row["beside_torch"].items())
            + f"; us: {times}; {errors}; {row['seconds']:.1f} s {row.get('not_captured', '')}\n      {moved}")


if __name__ == "__main__":
    def work(args):
        return {n: [lambda s=s, n=n: along(args, n, *s) for s in (SMALL if args.small else FULL)[n]] for n in WORK}
    sys.exit(common.main(work, "sum,ema,gates,conv", __doc__, line, **fp8.OPTIONS))

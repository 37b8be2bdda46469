#!/usr/bin/env python3
"""What runs along time on a CPU, beside PyTorch: forward, and backward by all inputs.

  sum      a running sum of 1x1024x512, T the middle axis and T innermost, beside torch.cumsum
  conv     a depthwise convolution of width 4 with a bias, and SiLU behind it, beside conv1d; [B,T,D] and [B,D,T]
  layer    Mamba-2's layer behind its projections, programs/recurrence.epi's ssd, beside PyTorch's chunked form, and that by torch.compile

Time by the clock, the least and the median of all rounds; the sides take turns, in one process, with 1 and with 2 threads. Every result is checked
in the run that times it: against f64 at most twice as far off as PyTorch's or, where that is more, as f64's rounded to the type, by Frobenius' norm.

  PYTHONPATH=python python3 bench/cpu_time.py --out bench/results/xeon-2core-time.json
"""
import argparse, statistics, sys

import common
from common import distance, torch
import epilog
import torch_recurrence as recurrence
import torch_time as along
from torch_time import LAST, LONG

SUM = (1, 1024, 512)
CONV = (2, 1024, 1024)
LAYER = (1, 1024, 8, 128, 64)   # B, T, H, N, P


def cases(small, dtype):
    """A name, our operation, theirs by name, theirs in f64, inputs, and the gradients that come in."""
    args = argparse.Namespace(device="cpu", dtype=dtype)
    for section, shape in (("sum", SUM), ("conv", CONV)):
        if section == "sum" and dtype != torch.float32:
            continue
        for axes in (LONG, LAST):
            inputs, d = along.tensors(args, section, *(2, 40, 24) if small else shape, axes)
            theirs = lambda *v, section=section, axes=axes: along.of_torch(section, axes, *v)
            sides = dict(eager=theirs) if section == "sum" else dict(eager=theirs, compile=torch.compile(theirs, dynamic=False))
            yield f"{section} {axes}", epilog.op(along.text(section, axes), rows=()), sides, theirs, inputs, [d]
    inputs, d = recurrence.tensors(args, "layer", *recurrence.SMALL["layer"] if small else LAYER)
    chunks = recurrence.by_chunks("layer")
    yield "layer", recurrence.program("layer"), dict(eager=chunks, compile=torch.compile(chunks, dynamic=False)), recurrence.written("layer", recurrence.stepped), inputs, d


def far(found, exact):
    return [distance(f, e) for f, e in zip(found, exact)]


def turns(calls, rounds):
    spent = common.in_turn(calls, lambda call: 1e3 * common.seconds(common.again(call, 1))[0], rounds, warm=2, back=True)   # the first two touch memory
    return {n: dict(least_ms=min(t), median_ms=statistics.median(t)) for n, t in spent.items()}


def measure(given, threads, dtype, name, ours, sides, exactly, inputs, d):
    sides = dict(epilog=ours) | sides
    double = lambda ts: [t.double() for t in ts]
    exact = recurrence.results(exactly, double(inputs), double(d))
    mine, eager = (far(recurrence.results(sides[s], inputs, d), exact) for s in ("epilog", "eager"))
    rounded = far([e.to(f.dtype) for e, f in zip(exact, recurrence.results(ours, inputs, d))], exact)
    ok = all(m <= 2 * max(e, r) for m, e, r in zip(mine, eager, rounded))
    with torch.no_grad():
        forward = turns({s: lambda f=f: f(*inputs) for s, f in sides.items()}, given.rounds)
    backward = turns({s: recurrence.training(f, inputs, d)[1] for s, f in sides.items()}, given.rounds)
    row = dict(name=name, type=str(dtype)[6:], threads=threads, shapes=[list(x.shape) for x in inputs], ok=ok, distance=mine, eager_distance=eager, forward=forward, backward=backward)
    over = lambda part: ", ".join(f"{s} {part[s]['least_ms']:.3f}" + ("" if s == "epilog" else f" ({part[s]['least_ms'] / part['epilog']['least_ms']:.2f})") for s in sides)
    print(f"{'ok   ' if ok else 'WRONG'} {name} {row['type']}, {threads} threads: forward {over(forward)}; backward {over(backward)} ms", flush=True)
    return row


def main():
    given = common.arguments(__doc__, {}, rounds=25, threads="1,2", only=("", "names that begin so"), types="float32,bfloat16")
    rows = []
    for threads in map(int, given.threads.split(",")):
        torch.set_num_threads(threads)
        for dtype in (getattr(torch, n) for n in given.types.split(",")):
            torch.manual_seed(0)
            torch._dynamo.reset()   # else it counts the other threads' and types' compilations, and stops
            rows += [measure(given, threads, dtype, *c) for c in cases(given.small, dtype) if c[0].startswith(given.only)]
    common.save(given.out, common.head(given, "day commit cpu torch command rounds", time="by the clock", rows=rows))
    return 0 if all(r["ok"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Epilog beside PyTorch on a CPU: the plain product, the ten kernels, and rows, eager and by torch.compile, one process, in turn.

    PYTHONPATH=python python bench/cpu_torch.py [--type f32|bf16] [--size 1024] [--rounds 15] [--threads 1] [--out FILE.json]

Processor time counts, not time by the clock, and the least of all rounds: other work on the machine takes little part in it.
Both sides are called from Python. Every row is checked in the run that times it: an output may be at most twice as far from an
f64 reference as eager PyTorch's is, plus a millionth of the largest value."""
import glob
import os
import re
import sys

import common
from common import torch
from cpu_beside import seconds
import torch.nn.functional as F

import epilog
import vs_torch as v

EPS = 1e-5
v.torch, v.DEV = torch, "cpu"
given = common.arguments(__doc__, size=1024, rounds=15, threads=1, type=dict(default="f32", choices=("f32", "bf16")))
torch.set_num_threads(given.threads)
TYPE = dict(f32=torch.float32, bf16=torch.bfloat16)[given.type]

# ---- what is measured: a program of programs/, its inputs by name, and the same in PyTorch

def rows_rmsnorm(x, g, eps):
    return (F.rms_norm(x, x.shape[-1:], g, EPS),)
def rows_layernorm(x, g, b, eps):
    return (F.layer_norm(x, x.shape[-1:], g, b, EPS),)
def rows_softmax(x):
    return (torch.softmax(x, -1),)

def product_inputs(case, n):
    """As vs_torch.py makes them: rows, columns and depth are n; heads have 128 features."""
    sizes = dict(case.dims(n, n, n))
    axis = lambda times, name, over: int(times or 1) * sizes[name] // int(over or 1)
    shape = lambda axes: tuple(axis(*a) for a in re.findall(r"(?:(\d+)\*)?([A-Z]\w*)(?:/(\d+))?", axes))
    text, name = programs[case.program], case.program
    signature = re.search(rf"^{name}\((.*?)\) ->", text, re.M | re.S).group(1)
    made = {}
    for tensor in re.findall(r"(\w+)(?:: (\w+))?(?:\[([^\]]*)\])?", signature):
        kind = {"i32": v.I32, "f32": v.F32}.get(tensor[1], v.F32 if given.type == "f32" or not tensor[2] else v.BF16)
        made[tensor[0]] = v.random_input(tensor[0], kind, shape(tensor[2]), n, n)
    return made

def row_inputs(program, n):
    x = torch.randn(n, 4 * n).to(TYPE)  # below 32 MB, or each call would get its result's pages anew
    g, b = (torch.rand(4 * n).to(TYPE) + 0.5 for _ in range(2))
    return dict(rmsnorm=dict(x=x, g=g, eps=EPS), layernorm=dict(x=x, g=g, b=b, eps=EPS), softmax=dict(x=x))[program]

programs = {}
for file in glob.glob(os.path.join(v.ROOT, "programs", "*.epi")):
    text = open(file).read()
    programs.update({name: text for name in re.findall(r"^(\w+)\(", text, re.M)})
cases = [("product", "matmul", v.t_matmul, lambda: product_inputs(v.CASES["matmul"], given.size))]
cases += [("kernels", c.program, c.torch, lambda c=c: product_inputs(c, given.size)) for c in v.KERNELS]
cases += [("rows", name, f, lambda name=name: row_inputs(name, given.size))
          for name, f in (("rmsnorm", rows_rmsnorm), ("layernorm", rows_layernorm), ("softmax", rows_softmax))]

# ---- measuring

def listed(result):
    return result if isinstance(result, tuple) else (result,)

def furthest(outs, refs):
    return [((a.squeeze(0) if a.dim() > r.dim() else a).double() - r).abs().max().item() for a, r in zip(outs, refs)]

def measure(section, name, f, inputs):
    plain = [v.squeezed(t.long() if t.dtype == torch.int32 else t) if torch.is_tensor(t) else t for t in inputs.values()]
    ours, compiled = epilog.op(programs[name], name), torch.compile(f, dynamic=False)
    arguments = [t.item() if torch.is_tensor(t) and not t.dim() else t for t in inputs.values()]
    sides = dict(epilog=lambda: ours(*arguments), compile=lambda: compiled(*plain), eager=lambda: f(*plain))
    results = {}
    def once(side):
        took, results[side] = seconds(sides[side])
        return took
    with torch.no_grad():
        best = {side: min(t) for side, t in common.in_turn({s: s for s in sides}, once, given.rounds, warm=2).items()}  # two compile and touch memory
        refs = listed(f(*[t.double() if torch.is_tensor(t) and t.is_floating_point() else t for t in plain]))
    mine, eager = (furthest(listed(results[s]), refs) for s in ("epilog", "eager"))
    bound = [2 * e + 1e-6 * r.abs().max().item() for e, r in zip(eager, refs)]
    ok = all(m <= b for m, b in zip(mine, bound))
    sizes = dict(zip("mnk", (given.size,) * 3)) if section != "rows" else dict(m=given.size, n=4 * given.size)
    row = dict(section=section, kernel=name, **sizes, ok=ok, error=max(mine), eager_error=max(eager),
               times={side: dict(least_ms=1e3 * t) for side, t in best.items()})
    a, b, e = (1e3 * best[side] for side in ("epilog", "compile", "eager"))
    print(f"{name:20} Epilog {a:7.2f} ms, torch.compile {b:7.2f} ({b / a:.2f}), eager {e:7.2f} ({e / a:.2f}){'' if ok else '  WRONG'}", flush=True)
    return row

torch.manual_seed(0)
rows = [measure(section, name, f, make()) for section, name, f, make in cases]
common.save(given.out, common.head(given, "day commit cpu type threads torch command", time="processor time, least of the rounds", rows=rows))
sys.exit(0 if all(r["ok"] for r in rows) else 1)

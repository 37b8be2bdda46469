#!/usr/bin/env python3
"""Epilog's rows beside a plain copy, eager PyTorch and torch.compile: one process, one GPU, bf16, random data.

Every row is checked in the run that times it: an output may be at most twice as far from an f64 reference as
eager PyTorch in f32 arithmetic on the same 16-bit tensors is, plus one unit of its storage type.
Times: each function is captured in a CUDA graph that goes through enough sets of tensors that nothing is found
in L2, and the graphs are replayed in turn; medians over --rounds. So no side pays for the host. The floor of a
kernel is the time of a device copy that moves as many bytes, measured in the same turn.

  python3 bench/rows_torch.py --out bench/results/h200-rows.json
"""
import json, math, os, sys

import common
import vs_torch as v

EPS = 1e-5
FORWARD = "rmsnorm layernorm softmax swiglu_gate rotary_halves".split()
# seeds of comparison: the shapes at which RMSNorm is measured forward and backward
SHAPES = [(256, 2048), (256, 4096), (256, 5120), (256, 8192), (2048, 2048), (2048, 4096), (2048, 5120), (2048, 8192),
          (8192, 2048), (8192, 3584), (8192, 4096), (8192, 5120), (8192, 8192), (16384, 2048), (16384, 4096), (16384, 8192)]

# ---- the same in PyTorch: parameters are the program's inputs in order, results its outputs; f64 in, f64 out

def wide(t):
    return t if t.dtype == v.torch.float64 else t.float()
def like(y, x):
    return y.to(x.dtype)
def rms(x, eps):
    return v.torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + eps)
def t_rmsnorm(x, g, eps):
    if x.dtype == v.torch.float64:
        return (x * rms(x, eps) * g,)
    return (v.torch.nn.functional.rms_norm(x, x.shape[-1:], g, EPS),)
def t_layernorm(x, g, b, eps):
    return (v.torch.nn.functional.layer_norm(x, x.shape[-1:], g.to(x.dtype), b.to(x.dtype), EPS),)
def t_softmax(x): return (v.torch.softmax(x, -1),)
def t_swiglu_gate(gate, up): return (v.torch.nn.functional.silu(gate) * up,)
def t_rotary_halves(x, c, s):
    a, b = wide(x).chunk(2, -1)
    c, s = wide(c)[None, :, None], wide(s)[None, :, None]
    return (like(v.torch.cat([a * c - b * s, a * s + b * c], -1), x),)
def t_rmsnorm_grad(dy, x, g, r):
    n, dn = wide(x) * r[:, None], wide(dy) * wide(g)
    return like((dn - n * (dn * n).mean(-1, keepdim=True)) * r[:, None], x), (wide(dy) * n).sum(0)
def t_layernorm_grad(dy, x, g, mu, rstd):
    n, dn = (wide(x) - mu[:, None]) * rstd[:, None], wide(dy) * wide(g)
    dx = (dn - dn.mean(-1, keepdim=True) - n * (dn * n).mean(-1, keepdim=True)) * rstd[:, None]
    return like(dx, x), (wide(dy) * n).sum(0), wide(dy).sum(0)
def t_adamw(w, grad, m, vv, lr, beta1, beta2, eps, decay, correct1, correct2, scale, clip):
    g = wide(grad) * scale * clip
    m = beta1 * m + (1 - beta1) * g
    vv = beta2 * vv + (1 - beta2) * g * g
    w = w - lr * (m / correct1 / ((vv / correct2).sqrt() + eps) + decay * w)
    return w, like(w, grad), m, vv
def t_token_loss(z, y, ignore):
    lse = v.torch.logsumexp(wide(z), -1)
    picked = wide(z).gather(1, y.clamp(min=0).long()[:, None])[:, 0]
    return v.torch.where((y != ignore) & (y >= 0), lse - picked, 0 * lse), lse

def e_rmsnorm_grad(dy, x, g, r):
    return v.torch.ops.aten._fused_rms_norm_backward(dy, x, x.shape[-1:], r[:, None], g, [True, True])
def e_layernorm_grad(dy, x, g, mu, rstd):
    return v.torch.ops.aten.native_layer_norm_backward(dy, x, x.shape[-1:], mu[:, None], rstd[:, None], g, g, [True, True, True])

NAMED = dict(eps=EPS, lr=1e-3, beta1=0.9, beta2=0.95, decay=0.1, correct1=0.1, correct2=0.05, scale=1.0, clip=1.0, ignore=-100)

def dims_of(program, m, n):
    if program.startswith("rotary"):
        return dict(B=1, S=m, H=n // 128, D=128)
    if program == "adamw":
        return dict(N=m * n)
    last = "F" if "glu" in program else "V" if "loss" in program else "D"
    return {"T": m, last: n}

def random_input(name, kind, shape, n):
    torch = v.torch
    if name in NAMED and not shape:
        return torch.full((), NAMED[name], device=v.DEV, dtype=torch.int32 if kind == v.I32 else torch.float32)
    if kind == v.I32:
        return torch.randint(0, n, shape, device=v.DEV, dtype=torch.int32)
    if name in ("cos_t", "sin_t"):
        angle = torch.arange(shape[0], device=v.DEV)[:, None] * 10000.0 ** (-torch.arange(shape[1], device=v.DEV) / shape[1])
        return torch.cos(angle) if name == "cos_t" else torch.sin(angle)
    values = torch.rand(shape, device=v.DEV) + 0.5 if name in ("r", "rstd", "g", "v") else torch.randn(shape, device=v.DEV)
    return values.to(torch.bfloat16) if kind == v.BF16 else values

held = []  # pads

def apart(shape, dtype, fill=None):
    """A tensor at an odd distance from the one before: at a power of two two streams would meet in the same banks."""
    held.append(v.torch.empty((len(held) % 13 * 5 + 3) << 17, device=v.DEV, dtype=v.torch.uint8))
    return v.torch.empty(shape, device=v.DEV, dtype=dtype) if fill is None else v.torch.full(shape, fill, device=v.DEV, dtype=dtype)

class Case:
    def __init__(self, epi, device, program, m, n, config, sets_bytes):
        self.program, self.m, self.n, self.torch = program, m, n, globals()["t_" + program]
        self.kernel = v.Kernel(epi, program, dims_of(program, m, n), device, config=config)
        self.names = [(t.name.decode(), t.is_output) for t in epi.programs[program][1]]
        size = lambda kind, shape: math.prod(shape) * (2 if kind in (v.BF16, v.F16) else 4)
        self.bytes = sum(size(*s) for s in self.kernel.shapes)
        self.sets, count = [], max(1, min(64, -(-sets_bytes // self.bytes)))
        for _ in range(count):
            inputs = []
            for (name, out), shape in zip(self.names, self.kernel.shapes):
                if not out:
                    values = random_input(name, *shape, n)
                    inputs.append(apart(values.shape, values.dtype).copy_(values))
            outs = [apart(t.shape, t.dtype).copy_(t) for t in v.poisoned(self.kernel.shapes[len(inputs):])]
            self.sets.append((inputs, outs))
            held.clear()
        self.launches = [self.kernel.bind(i + o) for i, o in self.sets]

    def check(self):
        """Every output of the first set by the error rule."""
        inputs, outs = self.sets[0]
        self.launches[0]()
        v.wait(self.program)
        if self.program == "adamw":
            keep, outs = ([t[:1 << 24] if t.dim() else t for t in ts] for ts in (inputs, outs))
            rows = None
        else:
            keep = inputs
            rows = min(self.m, max(1, (1 << 26) // self.n)) if "grad" not in self.program else None
        if rows and not self.program.startswith("rotary"):  # f64 of all rows may not fit
            keep = [t[:rows] if t.dim() and t.shape[0] == self.m else t for t in inputs]
            outs = [t[:rows] if t.dim() and t.shape[0] == self.m else t for t in outs]
        plain, found = self.torch(*keep), []
        refs = self.torch(*[t.double() if t.is_floating_point() else t for t in keep])
        for (name, _), ref, mine, other in zip([x for x in self.names if x[1]], refs, outs, plain):
            largest = ref.abs().max().item()
            unit = largest * (2.0 ** -8 if mine.dtype == v.torch.bfloat16 else 2.0 ** -23)
            error, eager = ((t.double() - ref).abs().max().item() for t in (mine, other))
            found.append(dict(output=name, error=error, eager_error=eager, largest=largest, ok=error <= 2 * eager + unit))
        return found

def measure(case, others, rounds):
    """us a call of ours, of a copy of as many bytes, and of the others, in turn."""
    torch = v.torch
    half = case.bytes // 2  # whole pages: an odd length would be copied slowly
    half = max(512, half >> 21 << 21 if half > 1 << 24 else half // 512 * 512)
    part = min(half, 1 << 28)  # of a very long one a part is enough
    sources = [(apart(part, torch.uint8), apart(part, torch.uint8)) for _ in range(max(2, len(case.sets)))]
    held.clear()
    sides = dict(copy=lambda: [lambda d=d: d[1].copy_(d[0]) for d in sources],
                 ours=lambda: [case.kernel.bind(i + o) for i, o in case.sets])  # on the stream that is captured
    sides |= {name: lambda f=f: [lambda s=s: f(*s) for s, _ in case.sets] for name, f in others.items()}
    us = common.in_graphs(sides, max(len(case.launches), 16), rounds)
    return us | dict(copy=us["copy"] * half / part)

def arguments():
    return common.arguments(__doc__, lib=v.ROOT + "/build/libepilog.so", append=(False, "add the rows to those that the file has"),
                            only=("", "programs, separated by commas; after a ^ all others"), shapes=("", "MxN,..."),
                            config=("", "shapes of rows to try, separated by commas; - is the chosen one"),
                            torch=("eager,compile", "what else is timed: eager, compile, none"),
                            compile_all=(False, "torch.compile for every row, not for RMSNorm's and one of each other"), rounds=7,
                            sets=(600, "MB of tensors that a turn goes through"), seed=1, text=(None, "a file of programs beside those of programs/"))

def main():
    args = arguments()
    v.need_torch()
    torch = v.torch
    torch.manual_seed(args.seed)
    epi, nvml = v.Epilog(args.lib), v.Nvml()
    if args.text:
        epi.parse(open(args.text, "rb").read(), args.text.encode())
    bench = v.Bench(args, epi, nvml)
    if args.append and os.path.exists(args.out or ""):
        with open(args.out) as f:
            bench.result["rows"] = json.load(f)["rows"]
    wanted = args.only.lstrip("^").split(",") if args.only else None
    shapes = [tuple(int(x) for x in s.split("x")) for s in args.shapes.split(",")] if args.shapes else None
    plan = [("rmsnorm", m, n) for m, n in SHAPES] + [("rmsnorm_grad", m, n) for m, n in SHAPES]
    plan += [(p, m, n) for p in FORWARD for m in (8192, 16384) for n in (2048, 3584, 4096, 5120, 8192)]
    plan += [(p, 2048, 131072) for p in ("rmsnorm", "layernorm", "softmax", "swiglu_gate")]
    plan += [("rotary_halves", 2048, 131072), ("layernorm_grad", 8192, 4096), ("layernorm_grad", 8192, 8192)]
    plan += [("token_loss", 8192, 32768), ("adamw", 1 << 15, 45776)]
    plan = list(dict.fromkeys(plan))
    compiled = {("rmsnorm", m, n) for m, n in SHAPES} | {("rmsnorm_grad", m, n) for m, n in SHAPES}
    compiled |= {(p, 8192, 4096) for p in FORWARD + ["layernorm_grad"]}
    if args.compile_all:
        compiled = set(plan)
    if wanted:
        plan = [(p, m, n) for p, m, n in plan if (p in wanted) != args.only.startswith("^")]
        if shapes:
            plan = [(p, m, n) for p in wanted for m, n in shapes]
    for program, m, n in plan:
        for config in args.config.split(",") if args.config else ["-"]:
            row = dict(section="rows", kernel=program, m=m, n=n, k=0, layout="", config=None if config == "-" else config, rounding="packed")
            def work(row):
                case = Case(epi, bench.device, program, m, n, row["config"], args.sets << 20)
                row.update(chosen=case.kernel.micro, mainloop=case.kernel.mainloop, bytes=case.bytes)
                row["errors"] = case.check()
                row["ok"] = all(e["ok"] for e in row["errors"])
                row["worst"] = max(({"error": e["error"] / max(e["largest"], 1e-30),
                                     "of_eager": e["error"] / max(e["eager_error"], 1e-30)} for e in row["errors"]),
                                   key=lambda e: e["of_eager"])
                others = {}
                if "eager" in args.torch and program != "adamw":
                    others["eager"] = globals().get("e_" + program, case.torch)  # PyTorch's own kernel where it has one
                if "compile" in args.torch and (program, m, n) in compiled:
                    torch._dynamo.reset()
                    others["compile"] = torch.compile(case.torch, dynamic=False)
                us = measure(case, others, args.rounds)
                row.update({name + "_us": t for name, t in us.items()}, gb_s=case.bytes / us["ours"] / 1e3,
                           copy_gb_s=case.bytes / us["copy"] / 1e3, of_copy=us["copy"] / us["ours"])
                del case
            if bench.guarded(row, work):
                print(f"{program:16s} {m:6d} x {n:6d}  " + "  ".join(
                    f"{k[:-3]} {row[k]:8.1f}" for k in row if k.endswith("_us")) +
                    f"  {row['gb_s']:5.0f} GB/s  {100 * row['of_copy']:5.1f} % of copy  {row['chosen']}"
                    f"{'' if row['ok'] else '  WRONG ' + str(row['errors'])}", flush=True)
            torch.cuda.empty_cache()
    bench.write()
    return 1 if bench.failed else 0

if __name__ == "__main__":
    sys.exit(main())

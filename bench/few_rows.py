#!/usr/bin/env python3
"""Epilog's products of few rows beside cuBLAS: one process, one GPU, bf16, random data.

Every row is checked in the run that times it: each result must have the bits of the same rows in a batch of 256,
and that batch may be at most twice as far from an f64 reference as cuBLAS is.
Times: each side is captured in a CUDA graph of launches in a row that goes through enough copies of the weights
that nothing is found in L2, and the graphs are replayed in turn; medians over --rounds. cuBLAS makes the product
alone, so an epilogue is beside less work. The floor is the time of the weights' bytes at --memory.

  python3 bench/few_rows.py --out bench/results/h200-few-rows.json
"""
import math, sys

import common
import vs_torch as v

SHAPES = [(6144, 4096), (28672, 4096), (4096, 14336), (4096, 4096), (128256, 4096), (3072, 1024), (1024, 3072)]
ROWS = [1, 2, 4, 8, 16, 32, 64, 128]
PROGRAMS = {"matmul": "M N K", "residual_rms": "T D K", "norm_swiglu": "T F D"}
MANY = 256

def inputs_of(program, x, w):
    """The program's inputs for these rows; a row has the same in every batch."""
    torch, (rows, n) = v.torch, (x.shape[0], w.shape[0])
    if program == "matmul":
        return [x, w]
    spread = torch.arange(rows, device=v.DEV)[:, None] % 7 - 3
    if program == "residual_rms":
        res = ((torch.arange(n, device=v.DEV) % 11 - 5) * spread / 16).to(x.dtype)
        return [x, w, res, torch.linspace(0.5, 1.5, n, device=v.DEV).to(x.dtype), torch.full((), 1e-5, device=v.DEV)]
    return [x, w, (spread[:, 0] / 8 + 1).float()]

class Side:
    """A program with so many rows: a start for every copy of the weights."""
    def __init__(self, epi, device, program, x, weights, config=None):
        n, k = weights[0].shape
        dims = dict(zip(PROGRAMS[program].split(), (x.shape[0], n, k)))
        self.kernel = v.Kernel(epi, program, dims, device, config=config)
        first = inputs_of(program, x, weights[0])
        types = {v.BF16: v.torch.bfloat16, v.F32: v.torch.float32}
        self.outs = [v.torch.full(shape, math.nan, device=v.DEV, dtype=types[kind]) for kind, shape in self.kernel.shapes[len(first):]]
        self.tensors = [first[:1] + [w] + first[2:] + self.outs for w in weights]

    def starts(self):  # on the current stream
        return [self.kernel.bind(t) for t in self.tensors]

    def result(self, copy=0):
        for t in self.outs:
            t.fill_(math.nan)
        self.kernel.bind(self.tensors[copy])()
        v.wait("few rows")
        return [t.clone() for t in self.outs]

def same(few, many, rows):
    """The bits, of every output that has the rows."""
    return all(v.torch.equal(a.view(v.torch.int16 if a.element_size() == 2 else v.torch.int32),
                             b[:rows].view(v.torch.int16 if b.element_size() == 2 else v.torch.int32)) for a, b in zip(few, many))

def good(x, w, y):
    """At most twice as far from f64 as cuBLAS, over some of the columns."""
    columns = v.torch.randperm(w.shape[0], device=v.DEV)[:512]
    ref = x.double() @ w[columns].double().T
    error, theirs = ((t.double() - ref).abs().max().item() for t in (y[:, columns], (x @ w.T)[:, columns]))
    return error <= 2 * theirs

def cublas(x, weights):
    y = v.torch.empty(x.shape[0], weights[0].shape[0], device=v.DEV, dtype=x.dtype)
    return lambda: [lambda w=w.T: v.torch.matmul(x, w, out=y) for w in weights]

def copies_of(n, k, pool):
    """Views of the pool that are larger than the L2 cache together."""
    count = max(2, min(64, -(-700_000_000 // (2 * n * k)), pool.numel() // (n * k)))
    return [pool[i * n * k:(i + 1) * n * k].view(n, k) for i in range(count)]

def arguments():
    return common.arguments(__doc__, lib=v.ROOT + "/build/libepilog.so", shapes=("", "NxK,..."), rows=",".join(map(str, ROWS)),
                            only=(",".join(PROGRAMS), "programs, separated by commas"),
                            config=("", "configurations to try, separated by commas; - is the chosen one"), rounds=5,
                            memory=(4.3e12, "bytes a second"), seed=1)

def main():
    args = arguments()
    v.need_torch()
    torch = v.torch
    torch.manual_seed(args.seed)
    epi, nvml = v.Epilog(args.lib), v.Nvml()
    bench = v.Bench(args, epi, nvml)
    shapes = [tuple(int(x) for x in s.split("x")) for s in args.shapes.split(",")] if args.shapes else SHAPES
    pool = torch.randn(2 * max(n * k for n, k in shapes + [(4096, 14336)]), device=v.DEV, dtype=torch.bfloat16) * 2 ** -6
    for n, k in shapes:
        weights = copies_of(n, k, pool)
        many_x = torch.randn(MANY, k, device=v.DEV, dtype=torch.bfloat16)
        for program in args.only.split(","):
            many = Side(epi, bench.device, program, many_x, weights[:1]).result()
            right = program != "matmul" or good(many_x, weights[0], many[0])
            for rows in map(int, args.rows.split(",")):
                for config in args.config.split(",") if args.config else ["-"]:
                    row = dict(section="few rows", kernel=program, m=rows, n=n, k=k, layout="NT", config=None if config == "-" else config, rounding="packed")
                    def work(row):
                        x = many_x[:rows].contiguous()
                        side = Side(epi, bench.device, program, x, weights, row["config"])
                        row.update(chosen=side.kernel.micro, mainloop=side.kernel.mainloop, ok=right and same(side.result(), many, rows))
                        calls = max(len(weights), 6) // len(weights) * len(weights)
                        us = common.in_graphs(dict(cublas=cublas(x, weights), ours=side.starts), calls, args.rounds, warm=1)
                        row.update({name + "_us": t for name, t in us.items()}, ratio=us["ours"] / us["cublas"],
                                   gb_s=2 * n * k / us["ours"] / 1e3, floor_us=2e6 * n * k / args.memory)
                    if bench.guarded(row, work):
                        print(f"{program:12s} {rows:4d} rows, {n:6d} x {k:5d}  cuBLAS {row['cublas_us']:7.2f}  ours {row['ours_us']:7.2f}  "
                              f"{row['ratio']:.3f}  {row['gb_s']:5.0f} GB/s  {row['chosen']}{'' if row['ok'] else '  WRONG'}", flush=True)
    bench.write()
    return 1 if bench.failed else 0

if __name__ == "__main__":
    sys.exit(main())

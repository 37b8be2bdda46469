#!/usr/bin/env python3
"""Epilog's PyTorch package beside eager PyTorch, torch.compile and raw cuBLAS products: one process, one GPU.

  call     host time of one call, beside torch.add: small tensors, without grad, with grad, forward and backward
  mlp      the MLP half of a Llama block (RMSNorm, gate and up, SwiGLU, down, residual), forward and backward
  batched  batches of products beside torch.bmm

Every row is checked in the run that times it: a result may be at most twice as far from an f64 reference as eager
PyTorch is. The sides take turns; before each call a buffer larger than L2 is overwritten, and the GPU
waits half a millisecond, so that the host is ahead of it as it is in training; medians over --rounds.
"products" is the sum of the block's products alone, with cuBLAS, timed one after the other in the same way.

  PYTHONPATH=python python3 bench/torch_blocks.py --out bench/results/h200-blocks.json
  PYTHONPATH=python python3 bench/torch_blocks.py --device cpu --small      # tries the script without a GPU
"""
import statistics, sys

import common
from common import Timer, distances, peak_bytes, seconds, torch, wait
import torch._functorch.config
import epilog

EPS = 1e-5
F = torch.nn.functional

MLP = """
llama_mlp(x[T,D], g[D], wg[F,D], wu[F,D], wd[D,F], eps) -> y[T,D] {
    n = x*rsqrt(mean(x*x, D) + eps)*g
    y = x + (silu(n @ wg)*(n @ wu)) @ wd
}"""
BATCHED = "bmm(a[B,M,K], b[B,N,K]) -> c[B,M,N] { c = sum(a*b, K) }"
ADD = "add(x[T,D], y[T,D]) -> z[T,D] { z = x + y }"


def eager_mlp(x, g, wg, wu, wd):
    n = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * g if x.dtype == torch.float64 else F.rms_norm(x, x.shape[-1:], g, EPS)
    return x + (F.silu(n @ wg.T) * (n @ wu.T)) @ wd.T


def host_us(fn, device, calls=2000, batch=50):
    """Median microseconds of a call as the host sees it; the queue of the GPU never fills."""
    spent = []
    for _ in range(calls // batch + 1):
        wait(device)
        spent.append(seconds(common.again(fn, batch))[0] / batch * 1e6)
    return statistics.median(spent[1:])


def call(args):
    """Host time of one call."""
    x, y = (torch.randn(64, 64, device=args.device, dtype=args.dtype) for _ in range(2))
    add = epilog.op(ADD)
    gx, gy = x.clone().requires_grad_(), y.clone().requires_grad_()
    ones = torch.ones_like(x)
    def both(f):
        return lambda: f(gx, gy).backward(ones)
    def no_grad(f):
        def inner():
            with torch.no_grad():
                f(gx, gy)
        return inner
    torch.testing.assert_close(add(x, y), x + y)
    plain, ours = torch.add, add
    return dict(section="call", ok=True, host_us={
        "torch.add": host_us(lambda: plain(x, y), args.device), "epilog": host_us(lambda: ours(x, y), args.device),
        "torch.add, dispatcher": host_us(lambda: torch.ops.aten.add.Tensor(x, y), args.device),
        "epilog, dispatcher": host_us(lambda: ours.traced([x, y]), args.device),
        "torch.add, no_grad": host_us(no_grad(plain), args.device), "epilog, no_grad": host_us(no_grad(ours), args.device),
        "torch.add, with grad": host_us(lambda: plain(gx, gy), args.device),
        "epilog, with grad": host_us(lambda: ours(gx, gy), args.device),
        "torch.add, forward and backward": host_us(both(plain), args.device, 1000),
        "epilog, forward and backward": host_us(both(ours), args.device, 1000)})


def mlp(args, t, d, f):
    row = dict(section="mlp", T=t, D=d, F=f, dtype=str(args.dtype))
    make = lambda *shape, scale=1.0: (torch.randn(*shape, device=args.device) * scale).to(args.dtype)
    x, g = make(t, d), (torch.rand(d, device=args.device) + 0.5).to(args.dtype)
    wg, wu, wd = make(f, d, scale=d ** -0.5), make(f, d, scale=d ** -0.5), make(d, f, scale=f ** -0.5)
    dy = make(t, d)
    inputs = [x, g, wg, wu, wd]
    leaves = [a.clone().requires_grad_() for a in inputs]
    op = epilog.op(MLP)
    ours = lambda *a: op(*a, EPS)
    torch._functorch.config.donated_buffer = False  # so that the compiled backward can be timed by itself
    compiled = torch.compile(eager_mlp, dynamic=False)
    row["compile_s"], y = seconds(lambda: ours(*inputs), args.device)
    row["plan"] = op.show(*inputs, EPS)

    def step(function):
        out = function(*leaves)
        return (out.detach(), *torch.autograd.grad(out, leaves, dy))
    row["compile_step_s"], mine = seconds(lambda: step(ours), args.device)
    plain = step(eager_mlp)
    wide = [a.double().requires_grad_() for a in inputs]
    out = eager_mlp(*wide)
    exact = (out.detach(), *torch.autograd.grad(out, wide, dy.double()))
    del wide, out
    row["errors"] = distances("y dx dg dwg dwu dwd".split(), mine, plain, exact)
    row["ok"] = all(e["ok"] for e in row["errors"])
    row["same_bits_with_and_without_grad"] = torch.equal(mine[0], y)
    del exact, plain, mine, y

    sides = {"epilog": lambda: ours(*inputs), "eager": lambda: eager_mlp(*inputs)}
    steps = {"epilog": lambda: step(ours), "eager": lambda: step(eager_mlp)}
    try:
        compiled(*inputs)
        step(compiled)
        sides["torch.compile"], steps["torch.compile"] = lambda: compiled(*inputs), lambda: step(compiled)
    except Exception as e:  # whatever the compiler stumbles over, ours can still be measured
        row["torch_compile_failed"] = f"{type(e).__name__}: {e}"[:500]
    h, k = make(t, f), make(t, d)
    up, down = torch.empty(t, f, device=args.device, dtype=args.dtype), torch.empty(t, d, device=args.device, dtype=args.dtype)
    weight, turned = torch.empty_like(wg), torch.empty_like(wd)
    forward = {"gate": lambda: torch.mm(x, wg.T, out=up), "up": lambda: torch.mm(x, wu.T, out=up),
               "down": lambda: torch.mm(h, wd.T, out=down)}
    backward = {"d_o": lambda: torch.mm(k, wd, out=up), "d_wd": lambda: torch.mm(k.T, h, out=turned),
                "d_n gate": lambda: torch.mm(h, wg, out=down), "d_n up": lambda: torch.mm(h, wu, out=down),
                "d_wg": lambda: torch.mm(h.T, x, out=weight), "d_wu": lambda: torch.mm(h.T, x, out=weight)}
    timer = Timer(args.device, args.rounds)
    with torch.no_grad():
        row["forward"] = timer.turns({**sides, **{"product " + n: fn for n, fn in forward.items()}})
    row["step"] = timer.turns({**steps, **{"product " + n: fn for n, fn in {**forward, **backward}.items()}})
    for part in ("forward", "step"):
        product = sum(v["median_ms"] for n, v in row[part].items() if n.startswith("product "))
        row[part + "_products_ms"] = product
        row[part + "_over_products"] = {n: row[part][n]["median_ms"] / product for n in sides}
    # the backward alone: of a graph that is kept
    kept = {n: fn(*leaves) for n, fn in (("epilog", ours), ("eager", eager_mlp))}
    if "torch.compile" in steps:
        kept["torch.compile"] = compiled(*leaves)
    def back(out):
        return lambda: torch.autograd.grad(out, leaves, dy, retain_graph=True)
    try:
        row["backward"] = timer.turns({**{n: back(out) for n, out in kept.items()},
                                       **{"product " + n: fn for n, fn in backward.items()}})
        row["backward_products_ms"] = sum(v["median_ms"] for n, v in row["backward"].items() if n.startswith("product "))
        row["backward_over_products"] = {n: row["backward"][n]["median_ms"] / row["backward_products_ms"] for n in kept}
    except RuntimeError as e:  # a compiled graph may refuse to be gone through twice
        row["backward_failed"] = str(e)[:300]
    if args.device == "cuda":
        row["step_peak_bytes"] = {name: peak_bytes(fn) for name, fn in steps.items()}
    torch._dynamo.reset()
    return row


def batched(args, b, m, n, k):
    row = dict(section="batched", B=b, M=m, N=n, K=k, dtype=str(args.dtype))
    a, c = (torch.randn(b, s, k, device=args.device).to(args.dtype) for s in (m, n))
    op = epilog.op(BATCHED)
    mine, plain = op(a, c), torch.bmm(a, c.mT)
    exact = torch.bmm(a.double(), c.double().mT)
    row["errors"] = distances(["c"], [mine], [plain], [exact])
    row["ok"], row["plan"] = row["errors"][0]["ok"], op.show(a, c)
    del exact
    out = torch.empty_like(plain)
    row["times"] = Timer(args.device, args.rounds).turns({"epilog": lambda: op(a, c), "torch.bmm": lambda: torch.bmm(a, c.mT, out=out)})
    row["over_bmm"] = row["times"]["epilog"]["median_ms"] / row["times"]["torch.bmm"]["median_ms"]
    row["tflops"] = 2.0 * b * m * n * k / row["times"]["epilog"]["median_ms"] / 1e9
    return row


def sections(args):
    blocks = [(64, 48, 96)] if args.small else [(8192, 2048, 8192), (8192, 4096, 14336)]
    batches = [(3, 32, 32, 16)] if args.small else [(64, 1024, 1024, 128), (8, 4096, 4096, 128)]
    return {"call": [lambda: call(args)], "mlp": [lambda s=s: mlp(args, *s) for s in blocks],
            "batched": [lambda s=s: batched(args, *s) for s in batches]}


if __name__ == "__main__":
    sys.exit(common.main(sections, "call,mlp,batched", __doc__))

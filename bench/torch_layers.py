#!/usr/bin/env python3
"""Layers of a Llama from their textbook text beside torch.compile, eager PyTorch and raw cuBLAS products: one process, one GPU.

  block    a layer without its attention: out-projection, residual, norm, SwiGLU MLP, residual, norm, q, k, v, rotary embedding
  layer    a whole layer, attention included; the others' attention is PyTorch's SDPA with cuDNN
  norm     LayerNorm and a linear layer
  loss     a linear layer and the cross-entropy of its logits; also within a budget for memory, which saves no logits

The texts have no hint of how they are to be cut. Every row is checked in the run that times it: a result may be at most twice as
far from an f64 reference as eager PyTorch is (at a smaller size where f64 would not fit). Sides take turns, nothing is in L2,
and the host is ahead of the GPU, as in training.

  PYTHONPATH=python python3 bench/torch_layers.py --out bench/results/h200-layers.json
  PYTHONPATH=python python3 bench/torch_layers.py --device cpu --small      # tries the script without a GPU
"""
import sys

import common
from common import Timer, distances, torch
import epilog

EPS = 1e-5
F = torch.nn.functional
ROTARY = """
turn(x[T,H,E], cos: f32[T,E/2], sin: f32[T,E/2]) -> y[T,H,E] {
    a, b = pairs(x, E)
    y = join(a*cos - b*sin, a*sin + b*cos, E)
}
"""
BLOCK = ROTARY + """
block(x[T,D], a[T,H,E], cos: f32[T,E/2], sin: f32[T,E/2], g2[D], g1[D], wo[D,H,E], wg[F,D], wu[F,D], wd[D,F],
      wq[H,E,D], wk[H,E,D], wv[H,E,D], eps) -> (h[T,D], q[T,H,E], k[T,H,E], v[T,H,E]) {
    y = x + a @ wo
    n = rmsnorm(y, g2, eps)
    h = y + (silu(n @ wg)*(n @ wu)) @ wd
    m = rmsnorm(h, g1, eps)
    q = turn(m @ wq, cos, sin)
    k = turn(m @ wk, cos, sin)
    v = m @ wv
}"""
LAYER = """
layer(x[B,S,D], cos: f32[S,E/2], sin: f32[S,E/2], g1[D], g2[D], wq[G,H,E,D], wk[G,E,D], wv[G,E,D], wo[D,G,H,E],
      wg[F,D], wu[F,D], wd[D,F], eps) -> y[B,S,D] {
    n = rmsnorm(x, g1, eps)
    a, b = pairs(n @ wq, E)
    q = join(a*cos - b*sin, a*sin + b*cos, E)
    c, d = pairs(n @ wk, E)
    k = rename(join(c*cos - d*sin, c*sin + d*cos, E), S, R)
    v = rename(n @ wv, S, R)
    s = where(index(R) <= index(S), sum(q*k, E)*rsqrt(size(E)), -inf)
    h = x + sum(softmax(s, R)*v, R) @ wo
    m = rmsnorm(h, g2, eps)
    y = h + (silu(m @ wg)*(m @ wu)) @ wd
}"""
NORM = """
norm(x[T,D], g[D], b[D], w[F,D], c[F], eps) -> y[T,F] {
    y = layernorm(x, g, b, eps) @ w + c
}"""
LOSS = """
loss(x[T,D], w[V,D], y: i64[T]) -> l: f32[T] {
    z = x @ w
    l = logsumexp(z, V) - sum(where(index(V) == y, z, 0), V)
}"""


def rms(x, g):
    return F.rms_norm(x, x.shape[-1:], g, EPS)


def turn(x, cos, sin):
    a, b = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos.unsqueeze(-2).to(a.dtype), sin.unsqueeze(-2).to(a.dtype)
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2).to(x.dtype)


def mm(x, w):  # x @ w over the last axes of w that x has
    k = x.flatten(x.dim() - (w.dim() - 1)) if w.dim() > 2 else x
    return F.linear(k, w.reshape(w.shape[0], -1))


def eager_block(x, a, cos, sin, g2, g1, wo, wg, wu, wd, wq, wk, wv):
    heads = wq.shape[:2]
    y = x + mm(a, wo)
    n = rms(y, g2)
    h = y + F.linear(F.silu(F.linear(n, wg)) * F.linear(n, wu), wd)
    m = rms(h, g1)
    q, k, v = (F.linear(m, w.flatten(0, 1)).unflatten(-1, heads) for w in (wq, wk, wv))
    return h, turn(q, cos, sin), turn(k, cos, sin), v


def eager_layer(x, cos, sin, g1, g2, wq, wk, wv, wo, wg, wu, wd):
    groups, each, size = wq.shape[:3]
    n = rms(x, g1)
    q = turn(F.linear(n, wq.flatten(0, 2)).unflatten(-1, (groups * each, size)), cos, sin)
    k = turn(F.linear(n, wk.flatten(0, 1)).unflatten(-1, (groups, size)), cos, sin)
    v = F.linear(n, wv.flatten(0, 1)).unflatten(-1, (groups, size))
    o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=each > 1)
    h = x + F.linear(o.transpose(1, 2).flatten(2), wo.flatten(1))
    m = rms(h, g2)
    return h + F.linear(F.silu(F.linear(m, wg)) * F.linear(m, wu), wd)


def eager_norm(x, g, b, w, c):
    return F.linear(F.layer_norm(x, x.shape[-1:], g, b, EPS), w, c)


def eager_loss(x, w, y):
    return F.cross_entropy(F.linear(x, w).to(torch.promote_types(x.dtype, torch.float32)), y, reduction="none")


def tuple_of(x):
    return x if isinstance(x, tuple) else (x,)


def measure(args, row, text, numbers, eager, make, products, check, more={}):
    """make(size) gives inputs: tensors that want gradients, and others; `products` lists (rows, columns, depth) of the forward;
    `more` are other operations for the same, by name."""
    op = epilog.op(text)
    ops = {"epilog": op} | more
    ours = {name: lambda *a, o=o: o(*a, *numbers) for name, o in ops.items()}
    compiled = torch.compile(eager, dynamic=False)
    torch._functorch.config.donated_buffer = False

    def prepare(size):
        inputs, wanted = make(*size)
        leaves = [a.clone().requires_grad_() if i in wanted else a for i, a in enumerate(inputs)]
        ds = [torch.randn_like(o) for o in tuple_of(eager(*inputs))]
        return inputs, leaves, [leaves[i] for i in wanted], ds

    def step(function, leaves, wanted, ds):
        out = tuple_of(function(*leaves))
        return (*[o.detach() for o in out], *torch.autograd.grad(out, wanted, [d.to(o.dtype) for d, o in zip(ds, out)]))
    small = prepare(check)
    wide = [a.double() if a.is_floating_point() else a for a in small[0]]
    exact_leaves = [w.requires_grad_() if l.requires_grad else w for w, l in zip(wide, small[1])]
    exact = step(eager, exact_leaves, [w for w in exact_leaves if w.requires_grad], [d.double() for d in small[3]])
    plain = step(eager, *small[1:])
    row["errors"], row["checked_at"] = [], check
    for name, f in ours.items():
        mine = step(f, *small[1:])
        row["errors"] += distances([str(i) if name == "epilog" else f"{i} {name}" for i in range(len(mine))], mine, plain, exact)
    row["ok"] = all(e["ok"] for e in row["errors"])
    del small, wide, exact_leaves, exact, mine, plain
    inputs, leaves, wanted, ds = prepare(row["size"])
    row["plan"] = op.show(*inputs, *numbers)
    sides = ours | {"torch.compile": compiled} | ({"eager": eager} if args.eager else {})
    raw = {}
    for i, (m, n, k) in enumerate(products):
        x, w, y = (torch.randn(*s, device=args.device, dtype=args.dtype) for s in ((m, k), (n, k), (m, n)))
        a, b, c = torch.empty_like(y), torch.empty_like(x), torch.empty_like(w)
        raw[f"product {i}"] = lambda x=x, w=w, a=a: torch.mm(x, w.T, out=a)
        raw[f"back {i}"] = lambda x=x, w=w, y=y, b=b, c=c: (torch.mm(y, w, out=b), torch.mm(y.T, x, out=c))
    timer = Timer(args.device, args.rounds)
    with torch.no_grad():
        row["forward"] = timer.turns({n: (lambda f=f: f(*inputs)) for n, f in sides.items()} |
                                     {n: f for n, f in raw.items() if n.startswith("product")})
    row["step"] = timer.turns({n: (lambda f=f: step(f, leaves, wanted, ds)) for n, f in sides.items()} | raw)
    kept = {n: tuple_of(f(*leaves)) for n, f in sides.items()}
    row["backward"] = timer.turns(
        {n: (lambda o=o: torch.autograd.grad(o, wanted, [d.to(p.dtype) for d, p in zip(ds, o)], retain_graph=True)) for n, o in kept.items()} |
        {n: f for n, f in raw.items() if n.startswith("back")})
    for part in ("forward", "backward", "step"):
        total = sum(v["median_ms"] for n, v in row[part].items() if n not in sides)
        row[part + "_products_ms"] = total
        row[part + "_over_products"] = {n: row[part][n]["median_ms"] / total for n in sides}
        row[part + "_over_compile"] = row[part]["torch.compile"]["median_ms"] / row[part]["epilog"]["median_ms"]
    if args.device == "cuda":
        row["step_peak_bytes"] = {name: common.peak_bytes(lambda: step(f, leaves, wanted, ds)) for name, f in sides.items()}
    torch._dynamo.reset()
    return row


def maker(args):
    def make(*shape, scale=1.0):
        return (torch.randn(*shape, device=args.device) * scale).to(args.dtype)
    def gain(d):
        return (torch.rand(d, device=args.device) + 0.5).to(args.dtype)
    def angles(s, e):
        p = torch.outer(torch.arange(s, device=args.device).float(), 10000.0 ** (-torch.arange(0, e, 2, device=args.device).float() / e))
        return p.cos(), p.sin()
    return make, gain, angles


def block(args, t, d, f, e):
    make, gain, angles = maker(args)
    def inputs(t, d, f):
        h, s = d // e, d ** -0.5
        tensors = [make(t, d), make(t, h, e), *angles(t, e), gain(d), gain(d), make(d, h, e, scale=s), make(f, d, scale=s), make(f, d, scale=s),
                   make(d, f, scale=f ** -0.5), *(make(h, e, d, scale=s) for _ in range(3))]
        return tensors, [0, 1, *range(4, 13)]
    row = dict(section="block", T=t, D=d, F=f, E=e, size=[t, d, f])
    return measure(args, row, BLOCK, [EPS], eager_block, inputs, [(t, d, d), (t, 2 * f, d), (t, d, f), (t, 3 * d, d)],
                   [t, d, f] if args.small else [1024, d, f])


def layer(args, b, s, d, f, e, groups):
    make, gain, angles = maker(args)
    def inputs(b, s, d, f):
        h, w = d // e // groups, d ** -0.5
        tensors = [make(b, s, d), *angles(s, e), gain(d), gain(d), make(groups, h, e, d, scale=w), make(groups, e, d, scale=w),
                   make(groups, e, d, scale=w), make(d, groups, h, e, scale=w), make(f, d, scale=w), make(f, d, scale=w), make(d, f, scale=f ** -0.5)]
        return tensors, [0, *range(3, 12)]
    row = dict(section="layer", B=b, S=s, D=d, F=f, E=e, groups=groups, size=[b, s, d, f])
    t, kv = b * s, groups * e
    return measure(args, row, LAYER, [EPS], eager_layer, inputs, [(t, d + 2 * kv, d), (t, d, d), (t, 2 * f, d), (t, d, f)],
                   [b, s, d, f] if args.small else [1, 1024, d, f])


def norm(args, t, d, f):
    make, gain, _ = maker(args)
    def inputs(t, d, f):
        return [make(t, d), gain(d), make(d), make(f, d, scale=d ** -0.5), make(f)], [0, 1, 2, 3, 4]
    return measure(args, dict(section="norm", T=t, D=d, F=f, size=[t, d, f]), NORM, [EPS], eager_norm, inputs, [(t, f, d)], [t, d, f])


def loss(args, t, d, v):
    make, _, _ = maker(args)
    def inputs(t, d, v):
        return [make(t, d), make(v, d, scale=d ** -0.5), torch.randint(0, v, (t,), device=args.device)], [0, 1]
    memory = 8_000_000 if args.small else 2_000_000_000
    less = epilog.op(LOSS.replace("x @ w", "again(x @ w)"), memory=memory)
    row = dict(section="loss", T=t, D=d, V=v, size=[t, d, v], memory=memory)
    return measure(args, row, LOSS, [], eager_loss, inputs, [(t, v, d)], [t, d, v] if args.small else [8192, d, v], {"epilog, memory": less})


if __name__ == "__main__":
    work = lambda args: {
        "block": [lambda s=s: block(args, *s) for s in ([(64, 64, 96, 16)] if args.small else [(16384, 2048, 5632, 128), (16384, 4096, 11008, 128),
                                                                                     (16384, 8192, 22016, 128)])],
        "layer": [lambda s=s: layer(args, *s) for s in ([(2, 40, 64, 96, 16, 2)] if args.small else
                                                         [(4, 4096, 2048, 5632, 128, 8), (4, 4096, 4096, 11008, 128, 8)])],
        "norm": [lambda s=s: norm(args, *s) for s in ([(64, 64, 48)] if args.small else [(16384, 2048, 2048)])],
        "loss": [lambda s=s: loss(args, *s) for s in ([(2048, 272, 1000)] if args.small else [(16384, 2048, 128256)])]}
    sys.exit(common.main(work, "block,layer,norm,loss", __doc__))

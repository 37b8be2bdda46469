#!/usr/bin/env python3
"""A mixture of experts from its three lines, beside cuBLAS's dense products of the same flops, torch.compile and PyTorch's grouped_mm.

  kernels  each product of the layer and of its backward, in slot order, beside one dense product of the same flops (of the
           weights' gradients: torch.bmm of equal groups)
  layer    the three-line program and its derived backward, sort and combine included, beside the sum of those dense products
  block    router to output, forward and backward, beside torch.compile of the form with torch._grouped_mm
  decode   few tokens: beside the time that the bytes of the chosen experts take at the speed of a copy

Models: qwen (Qwen3-30B-A3B), olmoe, mixtral. Routing: even (experts drawn alike) and zipf (by 1/rank). Every result is checked in
the run that times it: at most twice as far from f64 as the same by bfloat16 products of PyTorch, expert by expert. The sides
take turns; nothing is in L2.

  PYTHONPATH=python python3 bench/torch_experts.py --out bench/results/h200-experts.json
  PYTHONPATH=python python3 bench/torch_experts.py --device cpu --small      # tries the script without a GPU
"""
import sys

import common
from common import Timer, distances, torch
import epilog

F = torch.nn.functional
MODELS = dict(qwen=(16384, 128, 8, 2048, 768), olmoe=(16384, 64, 8, 2048, 1024), mixtral=(8192, 8, 2, 4096, 14336), tiny=(48, 4, 2, 32, 48))
KERNELS = dict(
    up="""up(x[T,D], wg[E,F,D], wu[E,F,D], p: i32[T,K], gate: f32[T,K], o: i32[E]) -> (h[T,K,F], a[T,K,F], u[T,K,F]) {
        s = segments(o, E, T, K)
        a = sum(gather(x, p, T, K)*gather(wg, s, E), D)
        u = sum(gather(x, p, T, K)*gather(wu, s, E), D)
        h = gate*silu(a)*u
    }""",
    down="""down(h[T,K,F], wd[E,D,F], o: i32[E]) -> y[T,K,D] {
        y = sum(h*gather(wd, segments(o, E, T, K), E), F)
    }""",
    dh="""dh(d[T,D], wd[E,D,F], a[T,K,F], u[T,K,F], p: i32[T,K], gate: f32[T,K], o: i32[E]) -> (da[T,K,F], du[T,K,F], dg: f32[T,K]) {
        g = sum(gather(d, p, T, K)*gather(wd, segments(o, E, T, K), E), D)
        b = sigmoid(a)
        c = a*b
        dg = sum(g*c*u, F)
        du = g*gate*c
        da = g*gate*u*(b + c*(1 - b))
    }""",
    dx="""dx(da[T,K,F], du[T,K,F], wg[E,F,D], wu[E,F,D], o: i32[E]) -> y[T,K,D] {
        s = segments(o, E, T, K)
        y = sum(da*gather(wg, s, E), F) + sum(du*gather(wu, s, E), F)
    }""",
    dw1="""dw1(da[T,K,F], du[T,K,F], x[T,D], p: i32[T,K], o: i32[E]) -> (dwg[E,F,D], dwu[E,F,D]) {
        s = segments(o, E, T, K)
        dwg = scatter(da*gather(x, p, T, K), s, E)
        dwu = scatter(du*gather(x, p, T, K), s, E)
    }""",
    dw2="""dw2(d[T,D], h[T,K,F], p: i32[T,K], o: i32[E]) -> dwd[E,D,F] {
        dwd = scatter(gather(d, p, T, K)*h, segments(o, E, T, K), E)
    }""")
LAYER = """
moe(x[T,D], wg[E,F,D], wu[E,F,D], wd[E,D,F], e: i32[T,K], gate: f32[T,K]) -> out[T,D] {
    h = gate*silu(sum(x*gather(wg, e, E), D))*sum(x*gather(wu, e, E), D)
    out = sum(h*gather(wd, e, E), K, F)
}"""
BLOCK = """
block(x[T,D], wr[E,D], wg[E,F,D], wu[E,F,D], wd[E,D,F]) -> (out[T,D], e: i32[T,K]) {
    p = softmax(x @ wr, E)
    e = topk(p, E, K=CHOSEN)
    g = gather(p, e, E)
    gate = g/sum(g, K)
    h = gate*silu(sum(x*gather(wg, e, E), D))*sum(x*gather(wu, e, E), D)
    out = sum(h*gather(wd, e, E), K, F)
}"""


def route(args, t, e, k, how):
    """Experts of each token, k different ones."""
    weight = torch.ones(e, device=args.device) if how == "even" else 1 / torch.arange(1, e + 1, device=args.device)
    return torch.multinomial(weight.expand(t, e), k, replacement=False)


def sorted_slots(e, experts):
    """Slots by expert: which slot is at each position, and where each expert begins."""
    flat = e.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=experts)
    return order.int().view(e.shape), (counts.cumsum(0) - counts).int(), counts.tolist()


def by_expert(counts, f):
    """f(expert, its positions) for each that has any."""
    begin = 0
    for i, n in enumerate(counts):
        if n:
            f(i, slice(begin, begin + n))
        begin += n


def plain_kernels(t, counts, type):
    """What each kernel computes, expert by expert, with products in `type`."""
    t = {n: v.to(type) if v.is_floating_point() else v for n, v in t.items()}
    k, tokens = t["p"].shape[1], t["p"].flatten().long() // t["p"].shape[1]
    slots, (experts, features, depth) = len(tokens), t["wg"].shape
    new = lambda *s: torch.zeros(*s, device=t["x"].device, dtype=type)
    a, u, y, g, dx = new(slots, features), new(slots, features), new(slots, depth), new(slots, features), new(slots, depth)
    dwg, dwu, dwd = new(experts, features, depth), new(experts, features, depth), new(experts, depth, features)
    xs, ds = t["x"][tokens], t["d"][tokens]
    flat = {n: t[n].flatten(0, 1) for n in ("h", "a", "u", "da", "du")}

    def one(i, s):
        a[s], u[s] = xs[s] @ t["wg"][i].T, xs[s] @ t["wu"][i].T
        y[s] = flat["h"][s] @ t["wd"][i].T
        g[s] = ds[s] @ t["wd"][i]
        dx[s] = flat["da"][s] @ t["wg"][i] + flat["du"][s] @ t["wu"][i]
        dwg[i], dwu[i], dwd[i] = flat["da"][s].T @ xs[s], flat["du"][s].T @ xs[s], ds[s].T @ flat["h"][s]
    by_expert(counts, one)
    wide = torch.promote_types(type, torch.float32)
    gate = t["gate"].to(wide).flatten()[:, None]
    b = torch.sigmoid(flat["a"].to(wide))
    c, q = flat["a"].to(wide) * b, g.to(wide)
    back = (q * gate * flat["u"].to(wide) * (b + c * (1 - b)), q * gate * c)
    rows = lambda v: v.view(-1, k, v.shape[-1])
    return dict(up=(rows((gate * F.silu(a.to(wide)) * u.to(wide)).to(type)), rows(a), rows(u)), down=(rows(y),),
                dh=(rows(back[0].to(type)), rows(back[1].to(type)), (q * c * flat["u"].to(wide)).sum(-1).view(-1, k)),
                dx=(rows(dx),), dw1=(dwg, dwu), dw2=(dwd,))


def tensors(args, t, e, k, d, f, how):
    make = lambda *shape, scale=1.0: (torch.randn(*shape, device=args.device) * scale).to(args.dtype)
    chosen = route(args, t, e, k, how)
    p, o, counts = sorted_slots(chosen, e)
    v = dict(x=make(t, d), d=make(t, d), wg=make(e, f, d, scale=d ** -0.5), wu=make(e, f, d, scale=d ** -0.5), wd=make(e, d, f, scale=f ** -0.5),
             p=p, o=o, gate=torch.rand(t, k, device=args.device), **{n: make(t, k, f) for n in ("h", "a", "u", "da", "du")})
    return v, chosen, counts


ARGUMENTS = dict(up="x wg wu p gate o", down="h wd o", dh="d wd a u p gate o", dx="da du wg wu o", dw1="da du x p o", dw2="d h p o")


def dense(args, t, e, k, d, f):
    """The same flops without groups."""
    s = t * k
    make = lambda *shape: torch.randn(*shape, device=args.device).to(args.dtype)
    each = max(1, s // e)
    shapes = dict(up=((s, d), (d, 2 * f)), down=((s, f), (f, d)), dh=((s, d), (d, f)), dx=((s, 2 * f), (2 * f, d)),
                  dw1=((e, 2 * f, each), (e, each, d)), dw2=((e, d, each), (e, each, f)))
    # both operands lie as the products of a layer have them: weights with their depth last in the forward, depth first elsewhere
    def product(name, a, b):
        x = make(*a[:-2], a[-1], a[-2]).mT if name.startswith("dw") else make(*a)
        w = make(*b[:-2], b[-1], b[-2]).mT if name in ("up", "down") else make(*b)
        out = make(*a[:-1], b[-1])
        return lambda: torch.matmul(x, w, out=out)
    return {n: product(n, *v) for n, v in shapes.items()}


def kernels(args, model, how):
    t, e, k, d, f = MODELS[model]
    v, _, counts = tensors(args, t, e, k, d, f, how)
    row = dict(section="kernels", model=model, routing=how, T=t, E=e, K=k, D=d, F=f, slots_least=min(counts), slots_most=max(counts), errors=[], kernels={})
    exact, plain = plain_kernels(v, counts, torch.float64), plain_kernels(v, counts, args.dtype)
    ops, calls = {n: epilog.op(text, rows=["T"]) for n, text in KERNELS.items()}, {}   # K is a number, as a layer has it
    for n, op in ops.items():
        calls[n] = lambda op=op, a=[v[x] for x in ARGUMENTS[n].split()]: op(*a)
        mine = calls[n]()
        mine = mine if isinstance(mine, tuple) else (mine,)
        row["errors"] += distances([f"{n} {i}" for i in range(len(mine))], mine, plain[n], exact[n])
    row["ok"] = all(x["ok"] for x in row["errors"])
    del exact, plain, mine
    others, timer = dense(args, t, e, k, d, f), Timer(args.device, args.rounds)
    for n in KERNELS:
        times = timer.turns({"epilog": calls[n], "cublas": others[n]})
        row["kernels"][n] = times | {"over_cublas": times["epilog"]["median_ms"] / times["cublas"]["median_ms"],
                                     "least_over_least": times["epilog"]["min_ms"] / times["cublas"]["min_ms"]}
    return row


def plain_layer(x, wg, wu, wd, e, gate):
    out = torch.zeros_like(x)
    for i in range(len(wg)):
        token, slot = torch.where(e == i)
        h = F.silu(x[token] @ wg[i].T) * (x[token] @ wu[i].T)
        out = out.index_add(0, token, ((h * gate[token, slot, None].to(x.dtype)) @ wd[i].T).to(x.dtype))
    return out


def grouped(x, wg, wu, wd, e, gate):
    """The form with PyTorch's grouped product: sort, gather, two products, combine."""
    t, k = e.shape
    flat = e.flatten()
    order = torch.argsort(flat, stable=True)
    ends = torch.bincount(flat, minlength=len(wg)).cumsum(0).to(torch.int32)
    xs = x[order // k]
    h = F.silu(torch._grouped_mm(xs, wg.mT, offs=ends)) * torch._grouped_mm(xs, wu.mT, offs=ends)
    y = torch._grouped_mm(h * gate.flatten()[order, None].to(h.dtype), wd.mT, offs=ends)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return y[back].view(t, k, -1).sum(1)


def step(f, inputs, wanted, d):
    out = f(*inputs)
    return (out.detach(), *torch.autograd.grad(out, wanted, d.to(out.dtype)))


def both(args, row, sides, inputs, wanted, d, products):
    """Times forward and backward of the sides, and what cuBLAS takes for the same flops."""
    timer = Timer(args.device, args.rounds)
    with torch.no_grad():
        row["forward"] = timer.turns({n: (lambda f=f: f(*inputs)) for n, f in sides.items()} | {n: products[n] for n in ("up", "down")})
    kept = {n: f(*inputs) for n, f in sides.items()}
    row["backward"] = timer.turns({n: (lambda o=o: torch.autograd.grad(o, wanted, d, retain_graph=True)) for n, o in kept.items()} |
                                  {n: products[n] for n in ("dh", "dx", "dw1", "dw2")})
    for part in ("forward", "backward"):
        total = sum(v["median_ms"] for n, v in row[part].items() if n not in sides)
        row[part + "_cublas_ms"] = total
        row[part + "_over_cublas"] = {n: row[part][n]["median_ms"] / total for n in sides}
    if args.device == "cuda":
        del kept
        row["step_peak_bytes"] = {n: common.peak_bytes(lambda: step(f, inputs, wanted, d)) for n, f in sides.items()}


def checked(args, row, f, plain, inputs, wanted, d):
    """f beside the same by bfloat16 and by f64 products, expert by expert: at the size that is timed."""
    def run(g, type=None):
        values = [v.detach().to(type) if type and v.is_floating_point() else v.detach() for v in inputs]
        leaves = [v.clone().requires_grad_() if i in wanted else v for i, v in enumerate(values)]
        return step(g, leaves, [leaves[i] for i in wanted], d.to(type or d.dtype))
    ours = run(f)
    row["errors"] = distances([str(i) for i in range(len(ours))], ours, run(plain, args.dtype), run(plain, torch.float64))
    row["ok"] = all(x["ok"] for x in row["errors"])


def layer(args, model, how):
    t, e, k, d, f = MODELS[model]
    v, chosen, counts = tensors(args, t, e, k, d, f, how)
    row = dict(section="layer", model=model, routing=how, T=t, E=e, K=k, D=d, F=f)
    op = epilog.op(LAYER)
    ours = lambda x, wg, wu, wd, e, gate: op(x, wg, wu, wd, e.int(), gate)
    inputs, wanted = [v["x"], v["wg"], v["wu"], v["wd"], chosen.int(), v["gate"]], [0, 1, 2, 3, 5]
    checked(args, row, ours, plain_layer, inputs, wanted, v["d"])
    row["plan"] = op.show(*inputs)
    leaves = [x.requires_grad_() if i in wanted else x for i, x in enumerate(inputs)]
    sides = {"epilog": ours} | ({"torch.compile": torch.compile(grouped, dynamic=False)} if args.device == "cuda" else {"loop": plain_layer})
    both(args, row, sides, leaves, [leaves[i] for i in wanted], v["d"], dense(args, t, e, k, d, f))
    torch._dynamo.reset()
    return row


def block(args, model):
    t, e, k, d, f = MODELS[model]
    v, _, _ = tensors(args, t, e, k, d, f, "even")
    wr = (torch.randn(e, d, device=args.device) * d ** -0.5).to(args.dtype)
    row = dict(section="block", model=model, T=t, E=e, K=k, D=d, F=f)
    op = epilog.op(BLOCK.replace("CHOSEN", str(k)))

    def routed(experts, choose):
        def f(x, wr, wg, wu, wd):
            p = torch.softmax((x @ wr.T).to(torch.promote_types(x.dtype, torch.float32)), -1)
            i = choose(p)
            g = p.gather(-1, i)
            return experts(x, wg, wu, wd, i, g / g.sum(-1, keepdim=True))
        return f
    best = lambda p: torch.topk(p, k, dim=-1).indices
    ours = lambda *a: op(*a)[0]
    inputs, wanted = [v["x"], wr, v["wg"], v["wu"], v["wd"]], [0, 1, 2, 3, 4]
    # experts whose shares differ by a rounding are chosen by it: the check takes those that were chosen here, whose shares are the largest
    chosen = op(*inputs)[1].long()
    checked(args, row, ours, routed(plain_layer, lambda p: chosen), inputs, wanted, v["d"])
    p = torch.softmax((v["x"] @ wr.T).float(), -1)
    off = (p.gather(-1, chosen) - torch.topk(p, k, dim=-1).values).abs().max().item()
    row["choice_error"], row["ok"] = off, row["ok"] and off < 0.02
    row["plan"] = op.show(*inputs)
    leaves = [x.requires_grad_() for x in inputs]
    name, other = ("torch.compile", torch.compile(routed(grouped, best), dynamic=False)) if args.device == "cuda" else ("loop", routed(plain_layer, best))
    sides = {"epilog": ours, name: other}
    both(args, row, sides, leaves, leaves, v["d"], dense(args, t, e, k, d, f))
    torch._dynamo.reset()
    return row


def decode(args, model, t):
    _, e, k, d, f = MODELS[model]
    v, chosen, _ = tensors(args, t, e, k, d, f, "even")
    row = dict(section="decode", model=model, T=t, E=e, K=k, D=d, F=f, experts=len(chosen.unique()))
    op = epilog.op(LAYER)
    inputs = [v["x"], v["wg"], v["wu"], v["wd"], chosen.int(), v["gate"]]
    checked(args, row, lambda *a: op(*a), plain_layer, inputs, [0], v["d"])
    bytes_ = row["experts"] * 3 * d * f * v["wg"].element_size()
    a = torch.empty(1 << (28 if args.device == "cuda" else 20), dtype=torch.uint8, device=args.device)
    b = torch.empty_like(a)
    with torch.no_grad():
        times = Timer(args.device, args.rounds).turns({"epilog": lambda: op(*inputs), "copy": lambda: b.copy_(a)})
    speed = 2 * a.numel() / times["copy"]["median_ms"]
    return row | dict(times=times, bytes=bytes_, copy_gb_s=speed / 1e6, over_bytes=times["epilog"]["median_ms"] / (bytes_ / speed))


if __name__ == "__main__":
    def work(args):
        models = ["tiny"] if args.small else ["qwen", "olmoe", "mixtral"]
        tokens = (1, 8) if args.small else (1, 8, 64)
        one = {"kernels": lambda m: [lambda how=how: kernels(args, m, how) for how in ("even", "zipf")],
               "layer": lambda m: [lambda how=how: layer(args, m, how) for how in ("even", "zipf")],
               "block": lambda m: [lambda: block(args, m)],
               "decode": lambda m: [lambda t=t: decode(args, m, t) for t in tokens if m != "olmoe"]}
        every = {n: [row for m in models for row in make(m)] for n, make in one.items()}
        return every | {f"{n}:{m}": make(m) for n, make in one.items() for m in models}   # of one model alone: layer:qwen
    sys.exit(common.main(work, "kernels,layer,block,decode", __doc__))

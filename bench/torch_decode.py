#!/usr/bin/env python3
"""A step of decoding through layers of a Llama of 8B (programs/decode.epi) beside a plain PyTorch layer under torch.compile: one process,
one GPU, microseconds a layer.

  epilog           decode_layer of every layer, caches in place, in one CUDA graph: positions are in device memory
  compile          torch.compile(mode="reduce-overhead") of a layer with one product for q, k and v and one for gate and up; caches are
                   buffers, and attention is SDPA under a mask, where the queries of a group are the rows of one head
  compile, fixed   the same with SDPA over the cached tokens alone, a number of the text: its graph is of this position and no other
  floor            the bytes of weights and cached tokens at the speed of a copy, measured here

d 4096, ff 14336, 32 heads of 8 groups with 128 features, 4096 cached tokens, bf16, batches of 1, 8 and 64. Every layer has weights and
caches of its own, so nothing is in L2. Each row is checked in the run that times it: what comes out of all layers, and what they put
into the caches, may be at most twice as far from f64 as eager PyTorch; the caches are the same elsewhere; and the graph, replayed at
another position, gives the bits of a call there. Sides take turns, --rounds times.

  PYTHONPATH=python python3 bench/torch_decode.py --out bench/results/h200-decode.json
  PYTHONPATH=python python3 bench/torch_decode.py --device cpu --small      # tries the script without a GPU
"""
import argparse, datetime, json, os, statistics, subprocess, sys, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import torch
from torch import nn
from torch.nn import functional as F
import epilog

EPS = 1e-5
NAMES = "g1 wq wk wv wo g2 wg wu wd".split()


def shapes(c):
    d, g, h, e, f = c["d"], c["groups"], c["heads"] // c["groups"], c["size"], c["ff"]
    return dict(g1=(d,), wq=(g, h, e, d), wk=(g, e, d), wv=(g, e, d), wo=(d, g, h, e), g2=(d,), wg=(f, d), wu=(f, d), wd=(d, f))


def make_weights(args, c):
    """A layer's weights, such that activations keep their size."""
    out = {}
    for name, shape in shapes(c).items():
        w = torch.randn(shape, device=args.device, dtype=args.dtype)
        fan = shape[-1] if name != "wo" else c["heads"] * c["size"]
        out[name] = 1 + w / 16 if len(shape) == 1 else w * (fan ** -0.5 / (4 if name in ("wo", "wd") else 1))
    return out


def make_cache(args, c, batch, cached, room):
    cache = torch.randn(batch, room, c["groups"], c["size"], device=args.device, dtype=args.dtype)
    cache[:, cached:] = 0
    return cache


def turned(t, cos, sin):
    """Rotary embedding of neighbouring features, in f32 or f64."""
    a, b = t.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(t.dtype)


def norm(x, g):
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + EPS)).to(x.dtype) * g


class Plain(nn.Module):
    """Layers as one writes them in PyTorch for torch.compile. Caches are [B,G,R,E], as SDPA wants them."""

    def __init__(self, c, weights, keys, values, fixed=None):
        super().__init__()
        self.c, self.fixed, self.count = c, fixed, len(weights)
        for i, w in enumerate(weights):
            both = dict(g1=w["g1"], g2=w["g2"], qkv=torch.cat([w[n].flatten(0, -2) for n in ("wq", "wk", "wv")]),
                        out=w["wo"].flatten(1), gate_up=torch.cat((w["wg"], w["wu"])), down=w["wd"],
                        keys=keys[i].transpose(1, 2).contiguous(), values=values[i].transpose(1, 2).contiguous())
            for name, t in both.items():
                self.register_buffer(f"{name}{i}", t)

    def layer(self, i, x, cos, sin, position, mask):
        c, of = self.c, lambda name: getattr(self, f"{name}{i}")
        b, g, h, e = x.shape[0], c["groups"], c["heads"] // c["groups"], c["size"]
        q, k, v = F.linear(norm(x, of("g1")), of("qkv")).split([g * h * e, g * e, g * e], -1)
        q, k, v = turned(q.view(b, g, h, e), cos[:, None, None], sin[:, None, None]), turned(k.view(b, g, e), cos[:, None], sin[:, None]), v.view(b, g, e)
        keys, values, row = of("keys"), of("values"), torch.arange(b, device=x.device)
        keys[row, :, position] = k
        values[row, :, position] = v
        if self.fixed is None:
            o = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        else:
            n = self.fixed + 1
            o = F.scaled_dot_product_attention(q.reshape(b, g * h, 1, e), keys[:, :, :n], values[:, :, :n], enable_gqa=True)
        x = x + F.linear(o.reshape(b, -1), of("out"))
        gate, up = F.linear(norm(x, of("g2")), of("gate_up")).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, of("down"))

    def forward(self, x, position, frequency):
        angle = position[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        mask = (torch.arange(self.keys0.shape[2], device=x.device) <= position[:, None])[:, None, None]
        for i in range(self.count):
            x = self.layer(i, x, cos, sin, position, mask)
        return x


class Ours:
    """The layers of decode.epi, as calls or as a graph of them."""

    def __init__(self, weights, keys, values):
        with open(os.path.join(ROOT, "programs", "decode.epi")) as f:
            text = f.read()
        self.angles = epilog.op(text, "decode_angles")
        self.layer = epilog.op(text, "decode_layer", into={"keys_new": "keys", "values_new": "values"})
        self.weights, self.keys, self.values = weights, keys, values
        self.eps = torch.tensor(EPS, device=keys[0].device)  # a number would be stored anew for every layer

    def __call__(self, x, position, frequency):
        cos, sin = self.angles(position, frequency)
        for w, keys, values in zip(self.weights, self.keys, self.values):
            x = self.layer(x, *(w[n] for n in NAMES), cos, sin, position, keys, values, self.eps)[0]
        return x

    def show(self, x, position, frequency):
        cos, sin = self.angles(position, frequency)
        return self.layer.show(x, *(self.weights[0][n] for n in NAMES), cos, sin, position, self.keys[0], self.values[0], self.eps)


def exact(c, weights, keys, values, x, position, frequency):
    """All layers in f64: what comes out, and each layer's new keys and values."""
    x, angle, news = x.double(), position[:, None].double() * frequency.double(), []
    b, g, h, e = x.shape[0], c["groups"], c["heads"] // c["groups"], c["size"]
    row = torch.arange(b, device=x.device)
    for w, k_cache, v_cache in zip(weights, keys, values):
        w = {name: t.double() for name, t in w.items()}
        n = norm(x, w["g1"])
        q, k, v = (F.linear(n, w[m].flatten(0, -2)) for m in ("wq", "wk", "wv"))
        q = turned(q.view(b, g, h, e), angle.cos()[:, None, None], angle.sin()[:, None, None])
        k, v = turned(k.view(b, g, e), angle.cos()[:, None], angle.sin()[:, None]), v.view(b, g, e)
        k_all, v_all = k_cache.double(), v_cache.double()
        k_all[row, position.long()], v_all[row, position.long()] = k, v
        s = torch.einsum("bghe,brge->bghr", q, k_all) * e ** -0.5
        s = s.masked_fill(torch.arange(k_all.shape[1], device=x.device) > position[:, None, None, None], -torch.inf)
        o = torch.einsum("bghr,brge->bghe", s.softmax(-1), v_all)
        x = x + F.linear(o.reshape(b, -1), w["wo"].flatten(1))
        m = norm(x, w["g2"])
        x = x + F.linear(F.silu(F.linear(m, w["wg"])) * F.linear(m, w["wu"]), w["wd"])
        news.append((k, v))
        del w, k_all, v_all
    return x, news


def distance(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


def wait(args):
    if args.device == "cuda":
        torch.cuda.synchronize()


def in_graph(args, call):
    """The call as a CUDA graph, and what it gives; on the CPU the call itself."""
    if args.device != "cuda":
        return call, None
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    return graph.replay, out


def once(args, call, repeats):
    """Microseconds of a call: of several on end, with the host ahead of the GPU."""
    wait(args)
    if args.device != "cuda":
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - begin) / repeats * 1e6
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats * 1e3


def measure(args, sides, repeats):
    """Median, least and most of --rounds, sides in turn."""
    spent = {name: [] for name in sides}
    for call in sides.values():
        once(args, call, 2)
    for _ in range(args.rounds):
        for name, call in sides.items():
            spent[name].append(once(args, call, repeats))
    return {name: dict(us=statistics.median(t), least=min(t), most=max(t)) for name, t in spent.items()}


def copy_speed(args):
    """Bytes read and written in a second."""
    n = 1 << (30 if args.device == "cuda" else 24)
    a, b = torch.empty(n, dtype=torch.uint8, device=args.device), torch.empty(n, dtype=torch.uint8, device=args.device)
    return 2 * n / min(once(args, lambda: b.copy_(a), 5) for _ in range(args.rounds)) * 1e6


def check_ours(args, c, ours, weights, before, x, position, frequency, row):
    """Holds calls and graph against f64 and eager PyTorch; answers the graph, which is left as it was found."""
    keys, values = before
    batch = torch.arange(x.shape[0], device=x.device)
    want, news = exact(c, weights, keys, values, x, position, frequency)
    eager = Plain(c, weights, keys, values)
    theirs, mine = eager(x, position, frequency), ours(x, position, frequency)
    row["error"] = dict(epilog=distance(mine, want), eager=distance(theirs, want))
    ok = row["error"]["epilog"] <= 2 * row["error"]["eager"]
    worst = dict(epilog=0.0, eager=0.0)
    for i in range(len(weights)):
        for t, (now, old) in enumerate(((ours.keys[i], keys[i]), (ours.values[i], values[i]))):
            other = getattr(eager, ("keys", "values")[t] + str(i))[batch, :, position.long()]
            worst["epilog"] = max(worst["epilog"], distance(now[batch, position.long()], news[i][t]))
            worst["eager"] = max(worst["eager"], distance(other, news[i][t]))
            kept = now.clone()
            kept[batch, position.long()] = old[batch, position.long()]
            ok &= torch.equal(kept, old)
    row["cache_error"] = worst
    ok &= worst["epilog"] <= 2 * worst["eager"]
    replay, out = in_graph(args, lambda: ours(x, position, frequency))
    if out is not None:  # one graph for every position: another one, in the caches as they are now
        position.sub_(7)
        again = ours(x, position, frequency)
        replay()
        row["one_graph"] = torch.equal(out, again)
        position.add_(7)
        ok &= row["one_graph"]
    row["ok"] = ok
    return replay


def decode(args, c, batch, speed):
    room = (args.cached + 1 + 127) // 128 * 128
    row = dict(section="decode", batch=batch, cached=args.cached, room=room, layers=args.layers, **c)
    weights = [make_weights(args, c) for _ in range(args.layers)]
    keys, values = ([make_cache(args, c, batch, args.cached, room) for _ in range(args.layers)] for _ in range(2))
    x = torch.randn(batch, c["d"], device=args.device, dtype=args.dtype)
    position = torch.full((batch,), args.cached, dtype=torch.int32, device=args.device)
    frequency = 500000.0 ** (-torch.arange(0, c["size"], 2, device=args.device).float() / c["size"])
    ours = Ours(weights, [k.clone() for k in keys], [v.clone() for v in values])
    row["plan"] = ours.show(x, position, frequency)
    sides = {"epilog": check_ours(args, c, ours, weights, (keys, values), x, position, frequency, row)}
    for name, fixed in (("compile", None), ("compile, fixed", args.cached)):
        try:
            model = Plain(c, weights, keys, values, fixed)
            call = torch.compile(model, mode="reduce-overhead", dynamic=False)
            for _ in range(3):
                out = call(x, position, frequency)
            row["error"][name] = distance(out, exact(c, weights, keys, values, x, position, frequency)[0])
            sides[name] = lambda call=call: call(x, position, frequency)
        except Exception as e:  # whatever the other side stumbles over, ours can still be measured
            row[name + "_failed"] = f"{type(e).__name__}: {e}"[:300]
    spent = measure(args, sides, args.repeats)
    moved = sum(t.numel() * t.element_size() for t in weights[0].values())
    moved += 2 * batch * (args.cached + 1) * c["groups"] * c["size"] * x.element_size()
    row.update(us={n: t["us"] / args.layers for n, t in spent.items()}, times=spent, bytes=moved, floor_us=moved / speed * 1e6)
    row["over"] = {n: us / row["us"]["epilog"] for n, us in row["us"].items() if n != "epilog"}
    row["of_floor"] = row["floor_us"] / row["us"]["epilog"]
    return row


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--small", action="store_true", help="a few features, a few tokens: whether it runs")
    p.add_argument("--batches", default="1,8,64")
    p.add_argument("--cached", type=int, default=4096)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--repeats", type=int, default=10)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out")
    p.add_argument("--commit", help="what the result file gives as the commit (default: git's, or unknown)")
    args = p.parse_args()
    args.dtype = torch.bfloat16
    if args.small:
        args.batches, args.cached, args.layers, args.rounds, args.repeats = "1,3", 40, 2, 2, 1
    return args


@torch.no_grad()
def main():
    args = arguments()
    sys.stdout.reconfigure(line_buffering=True)
    torch.manual_seed(args.seed)
    c = dict(d=64, ff=160, heads=8, groups=2, size=16) if args.small else dict(d=4096, ff=14336, heads=32, groups=8, size=128)
    commit = args.commit or subprocess.getoutput(f"git -C '{ROOT}' rev-parse --short HEAD 2>/dev/null") or "unknown"
    speed = copy_speed(args)
    result = dict(date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), commit=commit, version=epilog.__version__,
                  device=torch.cuda.get_device_name(0) if args.device == "cuda" else "cpu", torch=torch.__version__, cuda=torch.version.cuda,
                  python=sys.version.split()[0], command=sys.argv, rounds=args.rounds, copy_gb_s=speed / 1e9, rows=[])
    print(f"{result['device']}, torch {torch.__version__}, a copy moves {speed / 1e9:.0f} GB/s")
    failed = 0
    for batch in map(int, args.batches.split(",")):
        try:
            row = decode(args, c, batch, speed)
        except Exception as e:  # a failure is a row too
            row = dict(section="decode", batch=batch, ok=False, error=f"{type(e).__name__}: {e}")
        failed += not row["ok"]
        result["rows"].append(row)
        print(f"batch {batch:3d}", "ok" if row["ok"] else "FAILED", {n: round(t, 1) for n, t in row.get("us", {}).items()},
              f"us a layer, floor {row.get('floor_us', 0):.1f}", {n: v for n, v in row.items() if "error" in n or n.endswith("_failed")})
        if args.out:
            with open(args.out + ".part", "w") as f:
                json.dump(result, f, indent=1)
            os.replace(args.out + ".part", args.out)
        if args.device == "cuda":
            torch.compiler.reset()
            torch.cuda.empty_cache()
    print(f"{len(result['rows'])} rows, {failed} failed, {args.out or ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

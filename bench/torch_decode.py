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
import os, statistics, sys

import common
from common import ROOT, distance, torch
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


def measure(args, sides, repeats):
    """Median, least and most microseconds of --rounds, sides in turn."""
    us = lambda call: 1e3 * common.ms_of(call, repeats, device=args.device)
    for call in sides.values():
        us(call)
    return {name: dict(us=statistics.median(t), least=min(t), most=max(t)) for name, t in common.in_turn(sides, us, args.rounds).items()}


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
    replay, out = common.graph_of([lambda: ours(x, position, frequency)], 3, args.device)
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
    if args.device == "cuda":  # what the last row has left
        torch.compiler.reset()
        torch.cuda.empty_cache()
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


def line(row):
    return " ".join(map(str, (f"batch {row['batch']:3d}", "ok" if row["ok"] else "FAILED", {n: round(t, 1) for n, t in row["us"].items()}, f"us a layer, floor {row['floor_us']:.1f}",
                              {n: v for n, v in row.items() if "error" in n or n.endswith("_failed")})))


@torch.no_grad()
def main():
    args = common.arguments(__doc__, dict(batches="1,3", cached=40, layers=2, rounds=2, repeats=1), device="cuda", batches="1,8,64", cached=4096,
                            layers=6, rounds=9, repeats=10, seed=0)
    args.dtype = torch.bfloat16
    torch.manual_seed(args.seed)
    c = dict(d=64, ff=160, heads=8, groups=2, size=16) if args.small else dict(d=4096, ff=14336, heads=32, groups=8, size=128)
    speed = common.copy_speed(args.device, args.rounds)
    result = common.head(args, common.FULL, copy_gb_s=speed / 1e9, rows=[])
    print(f"{result['device']}, torch {torch.__version__}, a copy moves {speed / 1e9:.0f} GB/s")
    work = [(dict(section="decode", batch=batch), lambda batch=batch: decode(args, c, batch, speed)) for batch in map(int, args.batches.split(","))]
    return common.measured(args, result, work, line)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""A step of decoding through layers of a Llama of 8B with weights of 16, 8 and 4 bits: one process, one GPU, microseconds a layer.

  bf16    decode_layer of programs/decode.epi
  i8, i4  the same layer with weights s*q: q i8 or i4 (two to a byte), s bf16 for each group of neighbours along the depth

Layers have weights and caches of their own, so nothing is in L2; each side is one CUDA graph of all layers, and sides take turns. Each is
checked in the run that times it: what comes out of all layers may be at most twice as far from f64 of the same bytes as eager bf16 PyTorch is
from f64 of its own. "floor" is the bytes at the speed of a copy.

  PYTHONPATH=python python3 bench/few_bits.py --out bench/results/h200-fewbits.json
  PYTHONPATH=python python3 bench/few_bits.py --device cpu --small      # tries the script without a GPU
"""
import os, sys

import common
from common import ROOT, torch
import epilog
import torch_decode as plain

# Features and hidden features are groups of K and J; a head's are a group by themselves.
LAYER = """few_layer(x[B,N,K], g1[N,K], wq: BITS[G,H,E,N,K], sq: bf16[G,H,E,N], wk: BITS[G,E,N,K], sk: bf16[G,E,N], wv: BITS[G,E,N,K], sv: bf16[G,E,N],
    wo: BITS[N,K,G,H,E], so: bf16[N,K,G,H], g2[N,K], wg: BITS[M,J,N,K], sg: bf16[M,J,N], wu: BITS[M,J,N,K], su: bf16[M,J,N],
    wd: BITS[N,K,M,J], sd: bf16[N,K,M], cos_t: f32[B,E/2], sin_t: f32[B,E/2], position: i32[B], keys[B,R,G,E], values[B,R,G,E], eps)
    -> (y[B,N,K], keys_new[B,R,G,E], values_new[B,R,G,E]) {
    n = x*rsqrt(mean(x*x, N, K) + eps)*g1
    a, b = pairs(n @ (sq*wq), E)
    q = join(a*cos_t - b*sin_t, a*sin_t + b*cos_t, E)
    c, d = pairs(n @ (sk*wk), E)
    k = join(c*cos_t - d*sin_t, c*sin_t + d*cos_t, E)
    v = n @ (sv*wv)
    keys_new = update(keys, k, position, R)
    values_new = update(values, v, position, R)
    s = where(index(R) <= position, sum(q*keys_new, E)*rsqrt(size(E)), -inf)
    h = x + sum(softmax(s, R)*values_new, R) @ (so*wo)
    m = h*rsqrt(mean(h*h, N, K) + eps)*g2
    y = h + (silu(m @ (sg*wg))*(m @ (su*wu))) @ (sd*wd)
}"""


def quantised(w, bits, group):
    """Bits, scales, and the numbers that both stand for, in the weight's shape."""
    most = 2 ** (bits - 1) - 1
    parts = w.float().unflatten(-1, (-1, group))
    s = (parts.abs().amax(-1, keepdim=True) / most).clamp(min=1e-12).to(torch.bfloat16)
    q = (parts / s.float()).round().clamp(-most, most)
    numbers = (q * s.float()).reshape(w.shape)
    q = q.to(torch.int8)
    if bits == 4:
        q = (q[..., 0::2] & 15 | q[..., 1::2] << 4).view(torch.uint8)
    return q.contiguous(), s[..., 0].contiguous(), numbers


class Few:
    """The layers with weights of few bits, as calls."""

    def __init__(self, c, weights, keys, values, bits, group):
        with open(os.path.join(ROOT, "programs", "decode.epi")) as f:
            self.angles = epilog.op(f.read(), "decode_angles")
        self.layer = epilog.op(LAYER.replace("BITS", f"i{bits}"), into={"keys_new": "keys", "values_new": "values"})
        self.keys, self.values, self.exact, self.given = keys, values, [], []
        self.eps = torch.tensor(plain.EPS, device=keys[0].device)
        d, g, h, e, f = c["d"], c["groups"], c["heads"] // c["groups"], c["size"], c["ff"]
        n, m = d // group, f // group
        self.shape = (n, group)
        shapes = dict(wq=(g, h, e, n, group), wk=(g, e, n, group), wv=(g, e, n, group), wo=(n, group, g, h, e), wg=(m, group, n, group),
                      wu=(m, group, n, group), wd=(n, group, m, group))
        for w in weights:
            exact, given = dict(w), []
            for name in plain.NAMES:
                if name not in shapes:
                    given.append(w[name].view(self.shape))
                    continue
                q, s, numbers = quantised(w[name].flatten(1) if name == "wo" else w[name], bits, e if name == "wo" else group)
                exact[name] = numbers.view(w[name].shape)
                shape = shapes[name]
                given += [q.view(*shape[:-1], shape[-1] * bits // 8), s.view(shape[:-1])]
            self.exact.append(exact)
            self.given.append(given)
        self.bytes = sum(t.numel() * t.element_size() for t in self.given[0])

    def __call__(self, x, position, frequency):
        cos, sin = self.angles(position, frequency)
        x = x.unflatten(-1, self.shape)
        for given, keys, values in zip(self.given, self.keys, self.values):
            x = self.layer(x, *given, cos, sin, position, keys, values, self.eps)[0]
        return x.flatten(-2)

    def show(self, x, position, frequency):
        cos, sin = self.angles(position, frequency)
        return self.layer.show(x.unflatten(-1, self.shape), *self.given[0], cos, sin, position, self.keys[0], self.values[0], self.eps)


def run(args, c, batch, speed):
    room = (args.cached + 1 + 127) // 128 * 128
    row = dict(section="few_bits", batch=batch, cached=args.cached, layers=args.layers, **c)
    weights = [plain.make_weights(args, c) for _ in range(args.layers)]
    keys, values = ([plain.make_cache(args, c, batch, args.cached, room) for _ in range(args.layers)] for _ in range(2))
    x = torch.randn(batch, c["d"], device=args.device, dtype=args.dtype)
    position = torch.full((batch,), args.cached, dtype=torch.int32, device=args.device)
    frequency = 500000.0 ** (-torch.arange(0, c["size"], 2, device=args.device).float() / c["size"])
    of = lambda make: make([k.clone() for k in keys], [v.clone() for v in values])
    calls = {"bf16": of(lambda k, v: plain.Ours(weights, k, v))}
    for kind in args.kinds.split(","):
        bits, group = map(int, kind[1:].split("/"))
        calls[kind] = of(lambda k, v: Few(c, weights, k, v, bits, group))
    eager = plain.Plain(c, weights, keys, values)(x, position, frequency)
    allowed = 2 * common.distance(eager, plain.exact(c, weights, keys, values, x, position, frequency)[0])
    row.update(allowed=allowed, error={}, plan={}, bytes={})
    sides = {}
    for name, call in calls.items():
        meant = getattr(call, "exact", weights)
        want = plain.exact(c, meant, keys, values, x, position, frequency)[0]
        row["error"][name] = common.distance(call(x, position, frequency), want)
        row["plan"][name] = call.show(x, position, frequency)
        moved = call.bytes if name != "bf16" else sum(t.numel() * t.element_size() for t in weights[0].values())
        row["bytes"][name] = moved + 2 * batch * (args.cached + 1) * c["groups"] * c["size"] * x.element_size()
        call.exact = None
        sides[name] = common.graph_of([lambda call=call: call(x, position, frequency)], 3, args.device)[0]
    spent = plain.measure(args, sides, args.repeats)
    row["us"] = {n: t["us"] / args.layers for n, t in spent.items()}
    row["floor_us"] = {n: b / speed * 1e6 for n, b in row["bytes"].items()}
    row["above_us"] = {n: row["us"][n] - row["floor_us"][n] for n in row["us"]}
    row["speedup"] = {n: row["us"]["bf16"] / us for n, us in row["us"].items()}
    row["ok"] = all(e <= allowed for e in row["error"].values())
    return row


def line(row):
    rounded = lambda d, n=2: {k: round(v, n) for k, v in d.items()}
    return (f"batch {row['batch']} {'ok' if row['ok'] else 'FAILED'} us {rounded(row['us'], 1)} above {rounded(row['above_us'], 1)} speedup {rounded(row['speedup'])} "
            f"error {rounded(row['error'], 5)} allowed {row['allowed']:.5f}")


@torch.no_grad()
def main():
    args = common.arguments(__doc__, dict(batches="1,3", kinds="i8/64,i4/64", cached=40, layers=2, rounds=2, repeats=1), device="cuda", batches="1,8",
                            kinds=("i8/128,i4/64,i4/128", "bits and groups"), cached=4096, layers=6, rounds=7, repeats=10)
    args.dtype = torch.bfloat16
    torch.manual_seed(0)
    c = dict(d=128, ff=256, heads=8, groups=2, size=64) if args.small else dict(d=4096, ff=14336, heads=32, groups=8, size=128)
    speed = common.copy_speed(args.device, args.rounds)
    result = common.head(args, "date commit version device torch cuda command rounds", copy_gb_s=speed / 1e9, rows=[])
    work = [(dict(section="few_bits", batch=batch), lambda batch=batch: run(args, c, batch, speed)) for batch in map(int, args.batches.split(","))]
    return common.measured(args, result, work, line)


if __name__ == "__main__":
    sys.exit(main())

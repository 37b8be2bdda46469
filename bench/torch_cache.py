#!/usr/bin/env python3
"""One token of attention over a cache in bf16, i8 and e4m3, beside SDPA over the bf16 one: one process, one GPU, microseconds a call.

  bf16, i8, e4m3   the same attention of Epilog; the 8-bit caches have a scale for each key and head, on keys and on values
  sdpa             scaled_dot_product_attention over the bf16 cache, with grouped heads
  floor            the bytes of a cache at the speed of a copy, measured here

32 heads in 8 groups with 128 features, batches of 1 and 32, 8,192 and 16,384 cached tokens. As many caches take turns as together
have 512 MB in 8 bits, so nothing is in L2. Each side is one CUDA graph over all of them. Each row is checked in the run that times it:
a result may be at most twice as far from f64 of the same cache as PyTorch in bf16 is from f64 of its own. Sides take turns, --rounds times.

  PYTHONPATH=python python3 bench/torch_cache.py --out bench/results/h200-cache.json
  PYTHONPATH=python python3 bench/torch_cache.py --device cpu --small      # tries the script without a GPU
"""
import sys

import torch
from torch.nn import functional as F

import common
import epilog
from common import distance
from torch_decode import measure

KINDS = dict(bf16=torch.bfloat16, i8=torch.int8, e4m3=torch.float8_e4m3fn)
LARGEST = dict(i8=127.0, e4m3=448.0)
PLAIN = """cached(q[B,G,J,E], k[B,R,G,E], v[B,R,G,E], length: i32[B]) -> o[B,G,J,E] {
    o = sum(softmax(where(index(R) < length, sum(q*k, E)*rsqrt(size(E)), -inf), R)*v, R)
}"""
SCALED = """cached(q[B,G,J,E], k: %s[B,R,G,E], ks: f32[B,G,R], v: %s[B,R,G,E], vs: f32[B,G,R], length: i32[B]) -> o[B,G,J,E] {
    o = sum(softmax(where(index(R) < length, sum(q*(k*ks), E)*rsqrt(size(E)), -inf), R)*(v*vs), R)
}"""


def quantised(x, kind):
    """A cache [B,R,G,E] in 8 bits, and its scales [B,G,R]."""
    scale = x.float().abs().amax(-1) / LARGEST[kind]
    wide = x.float() / scale[..., None]
    return (wide.round() if kind == "i8" else wide).to(KINDS[kind]), scale.transpose(1, 2).contiguous()


def exact(q, k, v, ks=None, vs=None):
    """In f64, a sequence at a time."""
    out = []
    for b in range(q.shape[0]):
        s = torch.einsum("gje,rge->gjr", q[b].double(), k[b].double())
        if ks is not None:
            s = s * ks[b].double()[:, None]
        w = (s * q.shape[-1] ** -0.5).softmax(-1)
        if vs is not None:
            w = w * vs[b].double()[:, None]
        out.append(torch.einsum("gjr,rge->gje", w, v[b].double()))
    return torch.stack(out)


def measure_row(args, batch, cached, speed):
    c = dict(groups=2, heads=8, size=16) if args.small else dict(groups=8, heads=32, size=128)
    g, j, e = c["groups"], c["heads"] // c["groups"], c["size"]
    cells = batch * cached * g * e
    copies = 2 if args.small else max(1, -(-(512 << 20) // (2 * cells)))
    random = lambda *shape: torch.randn(shape, device=args.device, dtype=torch.bfloat16)
    q, length = random(batch, g, j, e), torch.full((batch,), cached, dtype=torch.int32, device=args.device)
    caches = [(random(batch, cached, g, e), random(batch, cached, g, e)) for _ in range(copies)]
    row = dict(section="cache", batch=batch, cached=cached, copies=copies, **c, bytes={}, error={}, plan={})
    sides = {}
    for kind in KINDS:
        if kind == "bf16":
            op, inputs = epilog.op(PLAIN, "cached"), [(q, k, v, length) for k, v in caches]
            want = exact(q, *caches[0])
        else:
            op = epilog.op(SCALED % (kind, kind), "cached")
            inputs = [(q, *quantised(k, kind), *quantised(v, kind), length) for k, v in caches]
            want = exact(q, inputs[0][1], inputs[0][3], inputs[0][2], inputs[0][4])
        row["bytes"][kind] = sum(t.numel() * t.element_size() for t in inputs[0][1:-1])
        row["plan"][kind] = op.show(*inputs[0])
        row["error"][kind] = distance(op(*inputs[0]), want)
        sides[kind] = lambda op=op, inputs=inputs: [op(*i) for i in inputs][-1]
    heads = q.reshape(batch, g * j, 1, e)
    turned = [(k.transpose(1, 2).contiguous(), v.transpose(1, 2).contiguous()) for k, v in caches]
    sdpa = lambda k, v: F.scaled_dot_product_attention(heads, k, v, enable_gqa=True)
    row["error"]["sdpa"] = distance(sdpa(*turned[0]).view(q.shape), exact(q, *caches[0]))
    row["ok"] = all(error <= 2 * row["error"]["sdpa"] for error in row["error"].values())
    sides["sdpa"] = lambda: [sdpa(*t) for t in turned][-1]
    spent = measure(args, {name: common.graph_of([call], warm=2, device=args.device)[0] for name, call in sides.items()}, args.repeats)
    row["us"] = {name: t["us"] / copies for name, t in spent.items()}
    row["times"] = spent
    row["floor_us"] = {kind: n / speed * 1e6 for kind, n in row["bytes"].items()}
    row["over"] = {name: row["us"]["bf16"] / us for name, us in row["us"].items() if name != "bf16"}
    return row


def line(row):
    return " ".join(map(str, (f"batch {row['batch']:3d} x {row['cached']}", "ok" if row["ok"] else "FAILED", {n: round(t, 1) for n, t in row["us"].items()}, "us;",
                              "bf16's time over theirs", {n: round(t, 2) for n, t in row["over"].items()}, "error", row["error"])))


@torch.no_grad()
def main():
    args = common.arguments(__doc__, dict(shapes="2x600,1x40", rounds=2, repeats=1), device="cuda", shapes="32x8192,32x16384,1x8192,1x16384", rounds=9,
                            repeats=10, seed=0)
    torch.manual_seed(args.seed)
    speed = common.copy_speed(args.device, args.rounds)
    result = common.head(args, common.FULL, copy_gb_s=speed / 1e9, rows=[])
    print(f"{result['device']}, torch {torch.__version__}, a copy moves {speed / 1e9:.0f} GB/s")
    work = [(dict(section="cache", batch=b, cached=n), lambda b=b, n=n: measure_row(args, b, n, speed))
            for b, n in (map(int, shape.split("x")) for shape in args.shapes.split(","))]
    return common.measured(args, result, work, line)


if __name__ == "__main__":
    sys.exit(main())

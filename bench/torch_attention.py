#!/usr/bin/env python3
"""Attention as one Epilog kernel beside PyTorch's scaled_dot_product_attention with the cuDNN backend: one process, one GPU.

  forward   causal and full, grouped heads, D 128 and 64
  score     what a score function costs: ALiBi, softcap, a window; beside FlexAttention where --flex is given
  documents causal within documents of random lengths, packed into sequences, forward and backward, beside FlexAttention, whose
            block mask is made before it is timed; what Epilog works out of the documents' numbers is in its time
  backward  the derived backward: rowsum(d_o*o), gradients of queries, gradients of keys and values
  mma       causal, forward and backward, by the mma.sync configurations that GPUs before Hopper run, beside PyTorch's
            flash attention, which is written for those too
  decode    one query of each sequence over a long cache, contiguous and in pages of 64, beside cuDNN, flash and a copy on the device

Each row is checked in the run that times it: its relative distance from an f64 reference of some of its rows may be at
most twice cuDNN's; gradients are held against those of one head. Times are medians over --rounds of bursts of about 2 ms after a rest, so that the GPU is cool, the
sides in turn. TFLOP/s counts 4 B H S R D, half of it where a mask hides half, of documents what their masks let through, and 2.5 times that
backward.
Decoding is held against f32 arithmetic, and its sides are CUDA graphs of calls that take several caches in turn, so that no cache
is in L2 from the last call; GB/s counts the bytes of keys and values, and what a copy both reads and writes.

  PYTHONPATH=python python3 bench/torch_attention.py --out bench/results/h200-attention.json
"""
import math, re, sys, time

import common
from common import distance, graph_of, seconds, torch
from torch.nn.attention import SDPBackend, sdpa_kernel
import epilog
from epilog._library import Program
from epilog._run import Plan

SCORE = {
    "full": "s = sum(q*k, E)*{scale}",
    "causal": "s = where(index(R) <= index(S), sum(q*k, E)*{scale}, -inf)",
    "window": "s = where(index(R) <= index(S) and index(R) > index(S) - 1024, sum(q*k, E)*{scale}, -inf)",
    "documents": "s = where(index(R) <= index(S) and query == key, sum(q*k, E)*{scale}, -inf)",
    "alibi": "s = where(index(R) <= index(S), sum(q*k, E)*{scale} + a*(index(R) - index(S)), -inf)",
    "softcap": "s = where(index(R) <= index(S), 20*tanh(sum(q*k, E)*({scale}/20)), -inf)",
}


def text(kind, dim):
    """Tokens before heads, heads in groups: as SDPA's tensors lie when projections wrote them."""
    more = {"alibi": ", a: f32[H,G]", "documents": ", query: i32[B,S], key: i32[B,R]"}.get(kind, "")
    return (f"{kind}(q[B,S,H,G,E], k[B,R,H,E], v[B,R,H,F]{more}) -> o[B,S,H,G,F] {{\n    {SCORE[kind].format(scale=dim ** -0.5)}\n"
            "    o = sum(softmax(s, R)*v, R)\n}\n")


def documents_of(b, s, mean):
    """The number of each position's document: lengths are random, from a quarter of the mean to seven quarters."""
    ids = torch.empty(b, s, dtype=torch.int32)
    for i in range(b):
        at = number = 0
        while at < s:
            length = int(torch.randint(mean // 4, 7 * mean // 4, (1,)))
            ids[i, at:at + length] = number
            at, number = at + length, number + 1
    return ids.cuda()


def pairs_of(ids):
    """Pairs of positions that a causal mask within documents lets through, in all sequences."""
    return sum(float(n) * (float(n) + 1) / 2 for row in ids for n in row.bincount())


def flex_of(kind, ids, s, score=None):
    """FlexAttention, compiled, with its mask as blocks."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    mask = {"window": lambda b, h, i, j: (i >= j) & (i - j < 1024), "documents": lambda b, h, i, j: (i >= j) & (ids[b, i] == ids[b, j])}
    mask = mask.get(kind, lambda b, h, i, j: i >= j)
    block = None if kind == "full" else create_block_mask(mask, ids.shape[0] if kind == "documents" else None, None, s, s, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, score_mod=score, block_mask=block, enable_gqa=q.shape[1] > k.shape[1])


def reference(kind, q, k, v, a, rows, ids=None):
    """Some rows of the first batch, in f64."""
    q, k, v = q[:1, rows].double(), k[:1].double(), v[:1].double()
    s = torch.einsum("bshge,brhe->bhgsr", q, k) * q.shape[-1] ** -0.5
    i, j = rows[:, None], torch.arange(k.shape[1], device=q.device)[None]
    if kind == "alibi":
        s = s + a.double()[None, :, :, None, None] * (j - i)
    if kind == "softcap":
        s = 20 * torch.tanh(s / 20)
    if kind != "full":
        s = s.masked_fill(j > i, -math.inf)
    if kind == "window":
        s = s.masked_fill(j <= i - 1024, -math.inf)
    if kind == "documents":
        s = s.masked_fill(ids[0][rows][:, None] != ids[0][None], -math.inf)
    return torch.einsum("bhgsr,brhf->bshgf", s.softmax(-1), v)


def bursts(sides, rounds, rest):
    """Median ms of each side: bursts of about 2 ms after a rest, the sides in turn."""
    def burst(side):
        time.sleep(rest)
        return common.ms_of(*side)
    counted = {}
    for name, fn in sides.items():
        common.again(fn, 3)()
        torch.cuda.synchronize()
        counted[name] = fn, max(1, round(2 / common.ms_of(fn, warm=0)))
    return {name: common.spread(ms) for name, ms in common.in_turn(counted, burst, rounds).items()}


def forward(args, kind, b, h, hk, s, d, mean=None, flex=False):
    g = h // hk
    section = {"full": "forward", "causal": "forward", "documents": "documents"}.get(kind, "score")
    row = dict(section=section, kind=kind, B=b, H=h, KV=hk, S=s, D=d, mean=mean)
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=args.dtype)
    q, k, v = make(b, s, hk, g, d), make(b, s, hk, d), make(b, s, hk, d)
    a = 2.0 ** -(8 * torch.arange(1, h + 1, device="cuda", dtype=torch.float32) / h).reshape(hk, g)
    ids = documents_of(b, s, mean) if mean else None
    tensors = [q, k, v] + {"alibi": [a], "documents": [ids, ids]}.get(kind, [])
    op = epilog.op(text(kind, d))
    def compiled():
        plan = Plan(op.program, tensors, None, open_rows=False)
        ours = lambda: plan.run(tensors, False)[0]
        return ours, ours()
    row["compile_s"], (ours, mine) = seconds(compiled, "cuda")
    row["plan"] = op.show(*tensors)
    row["same_bits"] = torch.equal(mine, ours())
    sides = {"epilog": ours}
    rows = torch.randint(0, s, (64,), device="cuda").sort().values
    exact = reference(kind, q, k, v, a, rows, ids)
    row["error"] = {"epilog": distance(mine[:1, rows], exact)}
    # SDPA wants [B, H, S, D]: views of the same memory, query heads of a group side by side
    qt, kt, vt = q.reshape(b, s, h, d).transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if kind in ("full", "causal"):
        def cudnn():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(qt, kt, vt, is_causal=kind == "causal", enable_gqa=g > 1)
        sides["cudnn"] = cudnn
    if flex:
        flat = a.reshape(-1)
        score = {"alibi": lambda x, b, h, i, j: x + flat[h] * (j - i), "softcap": lambda x, b, h, i, j: 20 * torch.tanh(x / 20)}.get(kind)
        theirs = flex_of(kind, ids, s, score)
        sides["flex"] = lambda: theirs(qt, kt, vt)
    for name in list(sides)[1:]:
        try:
            out = sides[name]().transpose(1, 2).reshape(b, s, hk, g, d)
            row["error"][name] = distance(out[:1, rows], exact)
            del out
        except Exception as e:  # whatever the other side stumbles over, ours can still be measured
            row[name + "_failed"] = f"{type(e).__name__}: {e}"[:300]
            del sides[name]
    best = min([e for n, e in row["error"].items() if n != "epilog"], default=4e-3)
    row["ok"] = row["same_bits"] and row["error"]["epilog"] <= 2 * best
    row["times"] = bursts(sides, args.rounds, args.rest)
    pairs = s * s if kind == "full" else s * (s + 1) / 2 if kind != "window" else sum(min(i + 1, 1024) for i in range(s))
    pairs = pairs_of(ids) / b if kind == "documents" else pairs
    row["tflops"] = {n: 4.0 * b * h * pairs * d / t["median_ms"] / 1e9 for n, t in row["times"].items()}
    row["over"] = {n: t["median_ms"] / row["times"]["epilog"]["median_ms"] for n, t in row["times"].items() if n != "epilog"}
    return row


def head_gradients(kind, q, k, v, d_o, ids):
    """Gradients of the first key head of the first batch, in f64."""
    q, k, v, d_o = q[0, :, 0].double(), k[0, :, 0].double(), v[0, :, 0].double(), d_o[0, :, 0].double()
    d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    scale = q.shape[-1] ** -0.5
    for g in range(q.shape[1]):
        s = q[:, g] @ k.T * scale
        if kind != "full":
            s = s.masked_fill_(torch.ones_like(s, dtype=torch.bool).triu_(1), -math.inf)
        if kind == "documents":
            s = s.masked_fill_(ids[0][:, None] != ids[0][None], -math.inf)
        p = s.softmax(-1)
        del s
        d_v += p.T @ d_o[:, g]
        d_p = d_o[:, g] @ v.T
        d_s = p * (d_p - (d_p * p).sum(-1, keepdim=True)) * scale
        del p, d_p
        d_q[:, g] = d_s @ k
        d_k += d_s.T @ q[:, g]
    return d_q, d_k, d_v


def backward(args, kind, b, h, hk, s, d, mean=None):
    g, other = h // hk, "flex" if kind == "documents" else "cudnn"
    row = dict(section="documents backward" if mean else "backward", kind=kind, B=b, H=h, KV=hk, S=s, D=d, mean=mean)
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=args.dtype)
    q, k, v, d_o = make(b, s, hk, g, d), make(b, s, hk, d), make(b, s, hk, d), make(b, s, hk, g, d)
    first, second = (epilog.op(p.text) for p in epilog.op(text(kind, d)).program.grad(("q", "k", "v"), True))
    ids = documents_of(b, s, mean) if mean else None
    known = dict(q=q, k=k, v=v, d_o=d_o, query=ids, key=ids)
    pick = lambda op: [known[n] for n in op.names]
    plan = Plan(first.program, pick(first), None, open_rows=False)
    known.update(zip([t.name for t in first.program.outputs], plan.run(pick(first), False)))
    tensors = pick(second)
    plan = Plan(second.program, tensors, None, open_rows=False)
    ours = lambda: plan.run(tensors, False)
    mine = ours()
    row["plan"] = second.show(*tensors)
    row["same_bits"] = all(torch.equal(x, y) for x, y in zip(mine, ours()))
    leaves = [x.transpose(1, 2).detach().requires_grad_() for x in (q.reshape(b, s, h, d), k, v)]
    if kind == "documents":
        out = flex_of(kind, ids, s)(*leaves)
    else:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=kind == "causal", enable_gqa=g > 1)
    gradient = d_o.reshape(b, s, h, d).transpose(1, 2)
    run = lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)
    exact = head_gradients(kind, q, k, v, d_o, ids)
    theirs = [x.transpose(1, 2) for x in run()]
    theirs = [theirs[0].reshape(b, s, hk, g, d)[0, :, 0], theirs[1][0, :, 0], theirs[2][0, :, 0]]
    named = dict(zip([t.name for t in second.program.outputs], mine))
    mine = [named["d_q"][0, :, 0], named["d_k"][0, :, 0], named["d_v"][0, :, 0]]
    row["error"] = {n: {"epilog": distance(x, e), other: distance(y, e)} for n, x, y, e in zip(("d_q", "d_k", "d_v"), mine, theirs, exact)}
    row["ok"] = row["same_bits"] and all(e["epilog"] <= 2 * e[other] for e in row["error"].values())
    del exact, theirs, mine, named
    row["times"] = bursts({"epilog": ours, other: run}, args.rounds, args.rest)
    pairs = pairs_of(ids) / b if mean else s * s if kind == "full" else s * (s + 1) / 2
    row["tflops"] = {n: 10.0 * b * h * pairs * d / t["median_ms"] / 1e9 for n, t in row["times"].items()}
    row["over"] = {other: row["times"][other]["median_ms"] / row["times"]["epilog"]["median_ms"]}
    return row


def parts_of(op, tensors):
    """The programs of an operation's parts, in order, and the mainloop of each."""
    return re.findall(r"^part \d+ of \d+, (\w+)\n(.*?^\}\n)", op.show(*tensors), re.S | re.M)


def mma(args, kind, b, h, hk, s, d, back=False):
    """One named configuration for each kernel: the forward, or the parts of the backward one after another."""
    g = h // hk
    row = dict(section="mma backward" if back else "mma", kind=kind, B=b, H=h, KV=hk, S=s, D=d)
    configs = {128: ("128x32_d128", "rows_128x32_d128", "pair_128x32_d128"), 64: ("128x64_d64", "rows_128x32_d64", "pair_64x32_d64")}[d]
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=args.dtype)
    q, k, v, d_o = make(b, s, hk, g, d), make(b, s, hk, d), make(b, s, hk, d), make(b, s, hk, g, d)
    known = dict(q=q, k=k, v=v, d_o=d_o)
    pick = lambda op: [known[n] for n in op.names]
    first, second = (epilog.op(p.text) for p in epilog.op(text(kind, d)).program.grad(("q", "k", "v"), True))

    def plan_of(text, config):
        op = epilog.op(text)
        prog = Program(op.program.text)  # of its own: it has a configuration
        prog.config = config and "attention_mma_" + config
        tensors = pick(op)
        plan = Plan(prog, tensors, None, open_rows=False)
        known.update(zip([t.name for t in prog.outputs], plan.run(tensors, False)))
        return lambda: plan.run([known[n] for n in op.names], False)

    plans, row["configs"] = [plan_of(first.program.text, configs[0])], [configs[0]]
    if back:
        parts, plans = parts_of(second, pick(second)), []
        row["configs"] = []
        for mainloop, part in parts:
            sums = part.split("->")[1].split("{")[0].count("d_")
            config = configs[sums] if mainloop == "attention" else None
            row["configs"].append(config or mainloop)
            plans.append(plan_of(part, config))
    ours = lambda: [out for p in plans for out in p()]
    mine = ours()
    row["same_bits"] = all(torch.equal(x, y) for x, y in zip(mine, ours()))
    leaves = [x.transpose(1, 2).detach().requires_grad_(back) for x in (q.reshape(b, s, h, d), k, v)]

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=kind == "causal", enable_gqa=g > 1)
    if back:
        out, gradient = flash(), d_o.reshape(b, s, h, d).transpose(1, 2)
        theirs = lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)
        exact = head_gradients(kind, q, k, v, d_o, None)
        grads = [x.transpose(1, 2) for x in theirs()]
        grads = [grads[0].reshape(b, s, hk, g, d)[0, :, 0], grads[1][0, :, 0], grads[2][0, :, 0]]
        mine = [known[n][0, :, 0] for n in ("d_q", "d_k", "d_v")]
    else:
        theirs, rows = flash, torch.randint(0, s, (64,), device="cuda").sort().values
        exact = [reference(kind, q, k, v, None, rows)]
        grads = [flash().transpose(1, 2).reshape(b, s, hk, g, d)[:1, rows]]
        mine = [known["o"][:1, rows]]
    row["error"] = {"epilog": max(distance(x, e) for x, e in zip(mine, exact)), "flash": max(distance(x, e) for x, e in zip(grads, exact))}
    row["ok"] = row["same_bits"] and row["error"]["epilog"] <= 2 * row["error"]["flash"]
    del exact, grads, mine
    row["times"] = bursts({"epilog": ours, "flash": theirs}, args.rounds, args.rest)
    count = (10.0 if back else 4.0) * b * h * d * (s * s if kind == "full" else s * (s + 1) / 2)
    row["tflops"] = {n: count / t["median_ms"] / 1e9 for n, t in row["times"].items()}
    row["over"] = {"flash": row["times"]["flash"]["median_ms"] / row["times"]["epilog"]["median_ms"]}
    return row


DECODE = '''decode(q[B,G,H,E], k[B,R,G,E], v[B,R,G,E], length: i32[B]) -> o[B,G,H,E] {
    s = where(index(R) < length, sum(q*k, E)*rsqrt(size(E)), -inf)
    o = sum(softmax(s, R)*v, R)
}
'''
PAGED = '''paged(q[B,G,H,E], k[P,C,G,E], v[P,C,G,E], page: i32[B,N], length: i32[B]) -> o[B,G,H,E] {
    s = sum(q*gather(k, page, P), E)*rsqrt(size(E))
    p = softmax(where(index(N)*size(C) + index(C) < length, s, -inf), N, C)
    o = sum(p*gather(v, page, P), N, C)
}
'''


def decode(args, kind, b, h, hk, s, d, page=64):
    g, n = h // hk, s // page
    row = dict(section="decode", kind=kind, B=b, H=h, KV=hk, S=s, D=d)
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=args.dtype)
    size = 2 * b * s * hk * d * args.dtype.itemsize  # keys and values
    copies = max(2, math.ceil(400e6 / size))         # eight times what L2 holds
    q, length = make(b, hk, g, d), torch.full((b,), s, device="cuda", dtype=torch.int32)
    caches = [(make(b, s, hk, d), make(b, s, hk, d)) for _ in range(copies)]
    if kind == "paged":  # the same memory, its pages in another order
        order = torch.randperm(b * n, device="cuda")
        table = order.to(torch.int32).reshape(b, n)
        pages = [(k.reshape(b * n, page, hk, d), v.reshape(b * n, page, hk, d)) for k, v in caches]
        tensors = [[q, k, v, table, length] for k, v in pages]
        caches = [tuple(x[order].reshape(b, s, hk, d) for x in pages[0])]  # as the table names them, for the reference
    else:
        tensors = [[q, k, v, length] for k, v in caches]
    op = epilog.op(PAGED if kind == "paged" else DECODE)
    def compiled():
        plan = Plan(op.program, tensors[0], None, open_rows=False)
        return plan, plan.run(tensors[0], False)[0]
    row["compile_s"], (plan, mine) = seconds(compiled, "cuda")
    row["plan"] = op.show(*tensors[0])
    row["same_bits"] = torch.equal(mine, plan.run(tensors[0], False)[0])
    calls = {"epilog": [lambda t=t: plan.run(t, False) for t in tensors]}
    if b > 1 and kind == "decode":  # a sequence alone has the bits that it has in the batch
        one = [x[:1].contiguous() for x in tensors[0]]
        row["same_bits"] &= torch.equal(Plan(op.program, one, None, open_rows=False).run(one, False)[0], mine[:1])
    k, v = caches[0]
    exact = torch.empty(b, hk, g, d, device="cuda")
    for i in range(b):  # f32
        p = (torch.einsum("hge,rhe->hgr", q[i].float(), k[i].float()) * d ** -0.5).softmax(-1)
        exact[i] = torch.einsum("hgr,rhe->hge", p, v[i].float())
    row["error"] = {"epilog": distance(mine, exact.double())}
    if kind == "decode":
        flat = q.reshape(b, h, 1, d)
        def sdpa(backend, k, v):
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(flat, k.transpose(1, 2), v.transpose(1, 2), enable_gqa=g > 1)
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            try:
                row["error"][name] = distance(sdpa(backend, k, v).reshape(b, hk, g, d), exact.double())
                calls[name] = [lambda k=k, v=v, backend=backend: sdpa(backend, k, v) for k, v in caches]
            except Exception as e:  # whatever the other side stumbles over, ours can still be measured
                row[name + "_failed"] = f"{type(e).__name__}: {e}"[:300]
    half = size // 2  # so that it moves as many bytes
    blocks = [torch.empty(half, device="cuda", dtype=torch.uint8).random_() for _ in range(2 * copies)]
    calls["copy"] = [lambda i=i: blocks[2 * i].copy_(blocks[2 * i + 1]) for i in range(copies)]
    best = min([e for name, e in row["error"].items() if name != "epilog"], default=4e-3)
    row["ok"] = row["same_bits"] and row["error"]["epilog"] <= 2 * best
    repeats = max(1, math.ceil(8 / copies))
    row["times"] = bursts({name: graph_of(f * repeats)[0] for name, f in calls.items()}, args.rounds, args.rest)
    for t in row["times"].values():
        t.update({x: t[x] / (copies * repeats) for x in t})
    row["gbs"] = {name: size / t["median_ms"] / 1e6 for name, t in row["times"].items()}
    row["over"] = {name: t["median_ms"] / row["times"]["epilog"]["median_ms"] for name, t in row["times"].items() if name != "epilog"}
    return row


def line(row):
    brief = lambda figures: {n: round(x, 3) for n, x in figures.items()}
    shape = [row[n] for n in ("B", "H", "KV", "S", "D")]
    return f"{row['section']} {row['kind']} {shape} {'ok' if row['ok'] else 'FAILED'} {brief(row.get('tflops', row.get('gbs', {})))} {brief(row.get('over', {}))} {row['error']}"


def main():
    args = common.arguments(__doc__, dtype="bfloat16", rounds=7, rest=(0.012, "seconds between bursts"),
                            flex=(False, "FlexAttention too, where there is a score function"),
                            section=dict(default="all", choices=("all", "forward", "backward", "documents", "mma", "decode")),
                            few=(False, "three shapes, to look quickly"), seed=1)
    args.dtype = getattr(torch, args.dtype)
    torch.manual_seed(args.seed)
    result = common.head(args, common.FULL.replace("cuda", "cuda cudnn"), rows=[])
    shapes = [(2, 32, 8, 8192, 128), (4, 32, 8, 4096, 128), (16, 16, 16, 1024, 128), (1, 32, 8, 32768, 128),
              (2, 32, 8, 8192, 64), (16, 16, 16, 1024, 64)]
    work = [(kind, *shape) for shape in shapes for kind in ("causal", "full") if not (kind == "full" and shape[3] > 8192)]
    work += [(kind, 2, 32, 8, 8192, 128) for kind in ("alibi", "softcap", "window")]
    if args.few:
        work = [("causal", *shapes[0]), ("full", *shapes[0]), ("causal", *shapes[4])]
    caches = [(8, 32, 8, 16384, 128), (32, 32, 8, 4096, 128), (1, 32, 8, 131072, 128), (1, 32, 8, 16384, 128)]
    packed = [(2, 32, 8, 8192, 128, 1024), (1, 32, 8, 32768, 128, 2048), (4, 32, 8, 8192, 64, 1024)]
    asked = lambda name: args.section in ("all", name)
    work = [(forward, *w) for w in work if asked("forward")] + \
           [(backward, *w) for w in work if asked("backward") and w[0] in ("full", "causal")] + \
           [(measure, "documents", *p) for p in packed[:1 if args.few else None] for measure in (forward, backward) if asked("documents")] + \
           [(mma, "causal", *shape, back) for shape in (shapes[0], shapes[4]) for back in (False, True) if asked("mma")] + \
           [(decode, kind, *c) for c in caches[:1 if args.few else None] for kind in ("decode", "paged") if asked("decode")]
    def row_of(measure, kind, *shape):
        beside = kind == "documents" or (args.flex and kind not in ("full", "causal"))
        return measure(args, kind, *shape, **(dict(flex=True) if beside and measure is forward else {}))
    return common.measured(args, result, [(dict(section=w[0].__name__, kind=w[1], shape=w[2:]), lambda w=w: row_of(*w)) for w in work], line)


if __name__ == "__main__":
    sys.exit(main())

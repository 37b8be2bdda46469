#!/usr/bin/env python3
"""Scans of products beside the Triton kernels of flash-linear-attention (fla, its chunk_simple_gla) and of mamba_ssm (mamba_chunk_scan_combined).

  ssd      Mamba-2's recurrence: keys and queries shared by the heads. fla's kernels have none such: they get them expanded, once beforehand and once in the call
  gla      simple gated linear attention: a decay for each head and step, log decays given
  layer    programs/recurrence.epi's ssd: steps, skip, gate, a first and a last state; around fla's kernels the maps by torch.compile. mamba_ssm's
           kernels are that layer

Forward, and backward by all inputs, with a checked batch entry in the run that times it: f64, stepped. A result is at most twice as far off as PyTorch's chunked
form or, where that is more, as f64's rounded to the storage type, by Frobenius' norm. How far the others are off is in the row: fla 0.6 refuses its
backward on Hopper with a Triton from 3.4 to 3.7, as one kernel's results are wrong there. It is timed all the same, with that check taken out.
`cublas`: the products of the forward's chunks of 64, as torch.bmm; their flops over our time are `tflops`.
Memory is the most that a call has beside its inputs: a forward without gradients, and forward and backward together.
The sides are CUDA graphs and take turns; cool and hot as in bench/torch_fp8.py. The others' kernels are tuned over all of their own configurations, which
are compiled by all processors first. Of mamba_ssm the sources are enough: what it has in C++ is not imported.

  PYTHONPATH=python:/folder/of/fla:/folder/of/mamba python3 bench/torch_recurrence.py --out bench/results/h200-recurrence.json
  PYTHONPATH=python python3 bench/torch_recurrence.py --device cpu --small      # tries the script without a GPU
"""
import gc, importlib.util, multiprocessing, os, sys, types

import common
from common import distance, torch
import epilog
import torch_fp8 as fp8
from torch_time import graphed

F = torch.nn.functional
CHUNK = 64
SSD = "ssd(q[B,T,N], k[B,T,N], v[B,T,H,P], g: f32[B,T,H]) -> y[B,T,H,P] { y = sum(q*scan(exp(g), k*v, T), N) }"
GLA = "gla(q[B,T,H,N], k[B,T,H,N], v[B,T,H,P], g: f32[B,T,H]) -> y[B,T,H,P] { y = rsqrt(size(N))*sum(q*scan(exp(g), k*v, T), N) }"
NAMES = dict(ssd="q k v g".split(), gla="q k v g".split(), layer="x b c dt bias a_log skip z h".split())
#              B  T     H   N    P
FULL = dict(ssd=(8, 4096, 32, 128, 64), gla=(8, 4096, 16, 128, 128), layer=(8, 4096, 32, 128, 64))
SMALL = dict.fromkeys(FULL, (2, 128, 4, 16, 8))


def program(section):
    if section != "layer":
        return epilog.op(SSD if section == "ssd" else GLA, rows=())
    with open(os.path.join(common.ROOT, "programs", "recurrence.epi")) as f:
        return epilog.op(f.read(), "ssd", rows=())


def tensors(args, section, b, t, h, n, p):
    """Inputs, and the gradients that come in. Keys are of about length 1; half of a state is forgotten after a few to a few hundred steps."""
    device, half = args.device, args.dtype
    make = lambda *shape, scale=1.0: (torch.randn(*shape, device=device) * scale).to(half)
    heads = () if section != "gla" else (h,)
    q, k, v, d = make(b, t, *heads, n), make(b, t, *heads, n, scale=n ** -0.5), make(b, t, h, p), make(b, t, h, p)
    if section != "layer":
        return [q, k, v, F.logsigmoid(torch.randn(b, t, h, device=device)) / 16], [d]
    per_head = lambda low, high: torch.linspace(low, high, h, device=device)
    state = lambda: torch.randn(b, h, n, p, device=device) * n ** -0.5
    return [v, k, q, make(b, t, h, scale=0.5), per_head(-4, -1), per_head(0, 2), per_head(0.5, 1), make(b, t, h, p), state()], [d, state()]


def stepped(q, k, v, g, scale=1.0, h=None):
    """The recurrence as it is written: its results and its last state."""
    s = torch.zeros((), dtype=v.dtype, device=v.device) if h is None else h
    ys = []
    for qt, kt, vt, at in zip(*(x.unbind(1) for x in (q, k, v, g.exp()))):
        s = at[..., None, None] * s + kt[..., None] * vt[..., None, :]
        ys.append((qt[..., None, :] @ s)[..., 0, :])
    return scale * torch.stack(ys, 1), s


def chunked(q, k, v, g, scale=1.0, h=None):
    """The same in chunks, as PyTorch's products take it: within a chunk scores times decays, between chunks the state. Heads of q and k may be one for all."""
    b, t, heads, p = v.shape
    size = min(CHUNK, t)
    q, k, v, g = (x.unflatten(1, (-1, size)) for x in (q, k, v, g))
    sums = g.float().cumsum(2)
    before = sums[:, :, :, None] - sums[:, :, None]
    later = torch.ones(size, size, dtype=torch.bool, device=v.device).triu(1)[..., None]
    decays = before.masked_fill(later, float("-inf")).exp().permute(0, 1, 4, 2, 3)
    scores = (torch.einsum("bcthn,bcshn->bchts", q, k) * decays).to(v.dtype)
    last = sums[:, :, -1]
    added = torch.einsum("bcshn,bcshp->bchnp", (k * (last[:, :, None] - sums).exp()[..., None]).to(v.dtype), v).float()
    s, states = torch.zeros_like(added[:, 0]) if h is None else h.float(), []
    for c in range(v.shape[1]):
        states.append(s)
        s = last[:, c].exp()[..., None, None] * s + added[:, c]
    y = torch.einsum("bchts,bcshp->bcthp", scores, v)
    y = y + torch.einsum("bcthn,bchnp->bcthp", (q * sums.exp()[..., None]).to(v.dtype), torch.stack(states, 1).to(v.dtype))
    return (scale * y).flatten(1, 2), s


def expanded(x, heads):
    return x[:, :, None].expand(-1, -1, heads, -1).contiguous()


def before_scan(x, dt, bias, a_log):
    step = F.softplus(dt.float() + bias.float())
    return (step[..., None] * x).to(x.dtype), -a_log.float().exp() * step


def behind_scan(y, x, skip, z):
    return ((y + skip[:, None] * x) * F.silu(z)).to(z.dtype)


def exact_layer(recur, x, b, c, dt, bias, a_log, skip, z, h):
    step = F.softplus(dt + bias)
    y, last = recur(c[:, :, None], b[:, :, None], step[..., None] * x, -a_log.exp() * step, h=h)
    return (y + skip[:, None] * x) * F.silu(z), last


def written(section, recur):
    """A section's program in PyTorch, of a function that is the recurrence."""
    if section == "layer":
        return lambda *v: exact_layer(recur, *v)
    one = (lambda x: x[:, :, None]) if section == "ssd" else (lambda x: x)
    return lambda q, k, v, g: recur(one(q), one(k), v, g, 1.0 if section == "ssd" else q.shape[-1] ** -0.5)[0]


def by_chunks(section):
    if section != "layer":
        return written(section, chunked)
    def layer(x, b, c, dt, bias, a_log, skip, z, h):
        v, g = before_scan(x, dt, bias, a_log)
        y, last = chunked(c[:, :, None], b[:, :, None], v, g, h=h)
        return behind_scan(y, x, skip, z), last
    return layer


def by_fla(section, compiled=True):
    """The same by fla's kernels; of ssd that is keys and queries that are expanded already."""
    import fla.ops.common.chunk_o
    from fla.ops.simple_gla import chunk_simple_gla as kernel
    fla.ops.common.chunk_o.TRITON_ABOVE_3_7_1 = True   # its check: see above
    if section != "layer":
        return lambda q, k, v, g: kernel(q, k, v, g, scale=1.0 if section == "ssd" else None)[0]
    before, behind = (torch.compile(f) if compiled else f for f in (before_scan, behind_scan))
    def layer(x, b, c, dt, bias, a_log, skip, z, h):
        v, g = before(x, dt, bias, a_log)
        y, last = kernel(expanded(c, x.shape[2]), expanded(b, x.shape[2]), v, g, scale=1.0, initial_state=h, output_final_state=True)
        return behind(y, x, skip, z), last
    return layer


def by_mamba(section):
    if section != "layer":
        raise ValueError("is the layer alone")
    if "mamba_ssm" not in sys.modules:   # without its __init__, which wants what is built in C++
        package = types.ModuleType("mamba_ssm")
        package.__path__ = list(importlib.util.find_spec("mamba_ssm").submodule_search_locations)
        sys.modules["mamba_ssm"] = package
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined as kernel
    def layer(x, b, c, dt, bias, a_log, skip, z, h):
        y, last = kernel(x, dt, -a_log.exp(), b[:, :, None], c[:, :, None], 256, D=skip, z=z, dt_bias=bias,
                         initial_states=h.transpose(2, 3).contiguous(), dt_softplus=True, return_final_states=True)
        return y, last.transpose(2, 3)
    return layer


PEERS = {"fla": by_fla, "mamba_ssm": by_mamba}


def load_peers(peers):
    """What there is of them is imported, so that their kernels can be found."""
    for name in peers:
        try:
            PEERS[name]("layer")
        except Exception as e:
            print(f"{type(e).__name__}: {e}"[:200], flush=True)


def compile_some(at, of, sections, peers):
    """A share of the others' configurations, compiled into Triton's cache by short sequences."""
    from triton.runtime.autotuner import Autotuner
    load_peers(peers)
    for tuner in (o for o in gc.get_objects() if isinstance(o, Autotuner)):
        tuner.configs, tuner._do_bench = tuner.configs[at::of] or tuner.configs[:1], lambda call, quantiles: (call(), [1.0] * len(quantiles))[1]
    args = type("args", (), dict(device="cuda", dtype=torch.bfloat16))
    for section in sections:
        _, _, h, n, p = FULL[section]
        inputs, d = tensors(args, section, 1, 256, h, n, p)
        inputs = [expanded(x, h) for x in inputs[:2]] + inputs[2:] if section == "ssd" else inputs
        makers = {"fla": lambda: by_fla(section, compiled=False), "mamba_ssm": lambda: by_mamba(section)}
        for fn in (makers[name] for name in peers if name == "fla" or section == "layer"):
            try:
                training(fn(), inputs, d)[1]()
            except Exception as e:   # a configuration that is none for this GPU: the tuning leaves it out
                print(f"compile {at}: {type(e).__name__}: {e}"[:200], flush=True)


def tune(sections, peers):
    """All of the others' configurations in Triton's cache, and short turns for the choice among them."""
    import triton.testing
    from triton.runtime.autotuner import Autotuner
    load_peers(peers)
    count = len(os.sched_getaffinity(0))
    workers = [multiprocessing.get_context("spawn").Process(target=compile_some, args=(i, count, sections, peers)) for i in range(count)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for tuner in (o for o in gc.get_objects() if isinstance(o, Autotuner)):
        tuner._do_bench = lambda call, quantiles: triton.testing.do_bench(call, warmup=4, rep=16, quantiles=quantiles)


def training(fn, inputs, d):
    """The forward's results, and a call that makes the gradients of all inputs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    ys = fn(*leaves)
    ys = list(ys) if isinstance(ys, tuple) else [ys]
    return ys, lambda: torch.autograd.grad(ys, leaves, [x.to(y.dtype) for x, y in zip(d, ys)], retain_graph=True)


def results(fn, inputs, d):
    ys, back = training(fn, inputs, d)
    return [y.detach() for y in ys] + list(back())


def heads_together(fn, h):
    """Of keys and queries without heads, what fn makes of expanded ones, with their gradients."""
    return lambda q, k, *more: fn(expanded(q, h), expanded(k, h), *more)


def checked(section, inputs, d, sides):
    """Of the last batch entry, against f64. A gradient that sums over the batch has that entry's alone, so the calls are of it alone."""
    ours = sides["epilog"]
    names = ["y"] + ["l"] * (section == "layer") + ["g_" + n for n in NAMES[section]]
    one = [x if x.dim() == 1 else x[-1:].contiguous() for x in inputs]
    dy = [x[-1:].contiguous() for x in d]
    exact = results(written(section, stepped), [x.double() for x in one], [x.double() for x in dy])
    rows, others = [], {n: results(f, one, dy) for n, f in sides.items() if n != "epilog"}
    for i, (name, e, mine, whole, plain) in enumerate(zip(names, exact, results(ours, one, dy), results(ours, inputs, d), results(by_chunks(section), one, dy))):
        off, far, rounded = (distance(v, e) for v in (mine, plain, e.to(mine.dtype)))
        same = whole.shape[0] != d[0].shape[0] or whole.dim() == 1 or torch.equal(whole[-1:], mine)   # bits do not depend on the batch
        rows.append(dict(output=name, distance=off, chunked=far, others={n: distance(v[i], e) for n, v in others.items()}, rounded=rounded, batch_same_bits=same, ok=same and off <= 2 * max(far, rounded)))
    return rows


def products(args, b, t, h, n, p, section):
    """The products of a forward's chunks: scores, with values, states, with states."""
    count = b * h * (t // CHUNK)
    shared = b * (t // CHUNK) if section != "gla" else count
    make = lambda c, m, k: torch.randn(c, m, k, device=args.device, dtype=args.dtype)
    pairs = [(make(shared, CHUNK, n), make(shared, n, CHUNK)), (make(count, CHUNK, CHUNK), make(count, CHUNK, p)),
             (make(count, n, CHUNK), make(count, CHUNK, p)), (make(count, CHUNK, n), make(count, n, p))]
    return lambda: [torch.bmm(x, y) for x, y in pairs], sum(2.0 * x.shape[0] * x.shape[1] * x.shape[2] * y.shape[2] for x, y in pairs)


def recurrence(args, section):
    stream = torch.cuda.Stream() if args.device == "cuda" else None
    with torch.cuda.stream(stream):   # a backward runs where its forward did
        return beside(args, section, stream)


def beside(args, section, stream):
    b, t, h, n, p = shape = (SMALL if args.small else FULL)[section]
    row = dict(section=section, B=b, T=t, H=h, N=n, P=p)
    ours = program(section)
    sets = [tensors(args, section, *shape) for _ in range(fp8.SETS)]
    inputs, d = sets[0]
    sides = {"epilog": ours}
    for name in args.peers:
        try:
            theirs = PEERS[name](section)
            theirs = heads_together(theirs, h) if section == "ssd" else theirs
            results(theirs, inputs, d)
            sides[name] = theirs
        except Exception as e:
            row[name + "_failed"] = f"{type(e).__name__}: {e}"[:300]
    if len(sides) == 1:
        sides["torch chunked"] = by_chunks(section)
    row["errors"] = checked(section, inputs, d, sides)
    first, again = results(ours, inputs, d), results(ours, inputs, d)
    row["same_bits"] = all(torch.equal(x, y) for x, y in zip(first, again))
    row["ok"] = row["same_bits"] and all(e["ok"] for e in row["errors"])
    row["plan"], row["backward"] = ours.show(*inputs), ours.gradient()
    del first, again
    calls = {}
    for name, fn in sides.items():
        calls[name + " forward"] = [lambda fn=fn, v=v: fn(*v[0]) for v in sets]
        calls[name + " backward"] = [training(fn, *v)[1] for v in sets]
    if "fla" in sides and section == "ssd":
        theirs, ready = by_fla(section), [([expanded(x, h) for x in v[:2]] + v[2:], dy) for v, dy in sets]
        calls["fla, expanded forward"] = [lambda v=v: theirs(*v[0]) for v in ready]
        calls["fla, expanded backward"] = [training(theirs, *v)[1] for v in ready]
    run, flops = products(args, *shape, section)
    calls["cublas forward"] = [run] * fp8.SETS
    if args.device == "cuda":
        row["peak_bytes"] = {n: dict(forward=common.peak_bytes(lambda: fn(*inputs)), training=common.peak_bytes(lambda: results(fn, inputs, d))) for n, fn in sides.items()}
    calls = {n: graphed(args, row, stream, n, c) for n, c in calls.items()}
    row["times"] = fp8.timed(args, calls, args.slot, args.cool)
    best = lambda name: row["times"][name].get("cool_ms", row["times"][name].get("median_ms"))
    row["tflops"] = dict(epilog=flops / best("epilog forward") / 1e9, cublas=flops / best("cublas forward") / 1e9)
    row["beside"] = {n: best(n) / best("epilog " + n.split()[-1]) for n in calls if not n.startswith("epilog")}
    return row


def line(row):
    errors = ", ".join(f"{e['output']} {e['distance']:.1e} ({' '.join(f'{n} {x:.1e}' for n, x in e['others'].items())}, rounded {e['rounded']:.1e}{'' if e['ok'] else ', WRONG'})" for e in row["errors"])
    times = ", ".join(f"{n} " + " ".join(f"{at[:-3]} {1e3 * x:.0f}" for at, x in v.items() if at in ("hot_ms", "cool_ms", "median_ms")) for n, v in row["times"].items())
    peak = ", ".join(f"{n} " + " ".join(f"{at} {x / 1e6:.0f}" for at, x in v.items()) for n, v in row.get("peak_bytes", {}).items())
    return (f"{'ok   ' if row['ok'] else 'WRONG'} {row['section']} {row['B']}x{row['T']}x{row['H']} {row['N']}/{row['P']}: its time over ours "
            + " ".join(f"{n} {x:.2f}" for n, x in row["beside"].items()) + f"; us: {times}; MB: {peak}; TFLOP/s {row['tflops']['epilog']:.0f}, cuBLAS {row['tflops']['cublas']:.0f};"
            f" {errors}; {row['seconds']:.1f} s {' '.join(row.get(n + '_failed', '') for n in PEERS)} {row.get('not_captured', '')}")


if __name__ == "__main__":
    def work(args):
        args.peers = [n for n in args.peers.split(",") if n]
        if set(args.peers) - set(PEERS):
            sys.exit(f"--peers has some of {', '.join(PEERS)}, not {', '.join(sorted(set(args.peers) - set(PEERS)))}")
        if args.device == "cuda" and args.peers:
            try:
                tune(args.sections.split(","), args.peers)
                common.say("the others' configurations are compiled")
            except Exception as e:   # each row says what became of it
                common.say(f"tuning: {type(e).__name__}: {e}")
        return {n: [lambda n=n: recurrence(args, n)] for n in FULL}
    sys.exit(common.main(work, "ssd,gla,layer", __doc__, line, **fp8.OPTIONS, peers=",".join(PEERS)))

#!/usr/bin/env python3
"""torch.compile(model, backend="epilog") beside Inductor: two layers of models at their real sizes, random weights, forward and backward.

  layers   Phi-3 mini, OLMo 2 7B, Gemma 3 4B (a layer with a window, one without), and with --models others; 2 sequences of 4096, causal
  graphs   two layers of OLMo 2 1B on 512 tokens, where the host is slow: with CUDA graphs (mode="reduce-overhead", and torch.cuda.graph)

The model is transformers' own between embedding and head: masks, rotary tables, layers, the last norm. Every row of layers is checked in
the run that times it: a result or gradient may be at most twice as far from f64 as eager PyTorch's is. Sides take turns, nothing is in L2,
and the host is ahead of the GPU. A training step of a Llama of 1B is in bench/torch_llama.py.

  PYTHONPATH=python python3 bench/torch_backend.py --out bench/results/h200-backend.json
  PYTHONPATH=python python3 bench/torch_backend.py --sections layers --models "Phi-3 mini" --kernels     # the longest kernels of a step
  PYTHONPATH=python python3 bench/torch_backend.py --device cpu --small                                  # tries the script without a GPU
"""
import copy, statistics, sys

import common
from common import Timer, distances, kernels, longest, peak_bytes, say, sdpa, started, torch
import transformers
from epilog._compile import Report, compile_graph

BOTH = dict(layer_types=["sliding_attention", "full_attention"])
MODELS = {  # name: (class, what its configuration has)
    "Gemma 3 4B": ("Gemma3Text", dict(hidden_size=2560, intermediate_size=10240, num_attention_heads=8, num_key_value_heads=4, head_dim=256,
                                      sliding_window=1024, query_pre_attn_scalar=256, **BOTH)),
    "Phi-3 mini": ("Phi3", dict(hidden_size=3072, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=32)),
    "OLMo 2 7B": ("Olmo2", dict(hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=32)),
    "Gemma 3 1B": ("Gemma3Text", dict(hidden_size=1152, intermediate_size=6912, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
                                      sliding_window=512, query_pre_attn_scalar=256, **BOTH)),
    "OLMo 2 1B": ("Olmo2", dict(hidden_size=2048, intermediate_size=8192, num_attention_heads=16, num_key_value_heads=16)),
    "Qwen3 4B": ("Qwen3", dict(hidden_size=2560, intermediate_size=9728, num_attention_heads=32, num_key_value_heads=8, head_dim=128))}
FIRST = "Phi-3 mini;OLMo 2 7B;Gemma 3 4B"
TINY = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=8)


def make(args, name, **more):
    kind, sizes = MODELS[name]
    if args.small:
        sizes = {k: TINY.get(k, v) for k, v in sizes.items()}
    config = getattr(transformers, kind + "Config")(**sizes, **more, num_hidden_layers=2, vocab_size=64, pad_token_id=0, bos_token_id=1,
                                                    eos_token_id=2, attention_dropout=0.0, attn_implementation="sdpa", use_cache=False)
    with torch.device(args.device):
        model = getattr(transformers, kind + "Model")(config).to(args.dtype).train()
        model.get_input_embeddings().weight.requires_grad_(False)  # tokens are given as vectors
        for p in model.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
            else:
                torch.nn.init.normal_(p, 0.0 if "Gemma" in kind else 1.0, 0.1)
    return model


def inputs(args, model, batch, length):
    shape = (batch, length, model.config.hidden_size)
    x, d = (torch.randn(shape, device=args.device).to(args.dtype) for _ in range(2))
    return x.requires_grad_(), d


def compiled(args, model, backend, **more):
    """To try the script nobody waits for Inductor."""
    if args.small:
        backend, more = ("aot_eager", {}) if backend == "inductor" else (backend, dict(options={"rest": "aot_eager"}))
    return torch.compile(model, dynamic=False, backend=backend, **more)


def reporting(args, model):
    """The backend, and the report of what it makes of the model."""
    report = Report()
    rest = "aot_eager" if args.small else "inductor"
    return torch.compile(model, dynamic=False, backend=lambda gm, given: compile_graph(gm, given, report, rest)), report


def forward(side, x):
    with sdpa(x.device.type):
        return side(inputs_embeds=x).last_hidden_state


def step(side, x, d, params):
    y = forward(side, x)
    with sdpa(x.device.type):
        return (y.detach(), *torch.autograd.grad(y, (x, *params), d))


def learned(model):
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def layers(args, name):
    row = dict(section="layers", model=name, dtype=str(args.dtype))
    batch, length = (2, 24) if args.small else (args.batch, 4096)
    row["tokens"] = [batch, length]
    torch._dynamo.reset()
    model = make(args, name)
    x, d = inputs(args, model, batch, length)
    params = learned(model)
    say(name, "made")
    run = lambda side: step(side, x, d, params.values())
    ours, report = reporting(args, model)
    sides = {"backend": ours, "inductor": compiled(args, model, "inductor"), "eager": model}
    results = started(row, args.device, sides, run)
    row["report"] = str(report)
    wide = copy.deepcopy(model).double()
    exact = step(wide, x.detach().double().requires_grad_(), d.double(), learned(wide).values())
    del wide
    say("the f64 reference made")
    names = ["y", "dx", *("d " + n for n in params)]
    row["errors"] = {n: distances(names, results[n], results["eager"], exact) for n in sides if n != "eager"}
    row["ok"] = "backend" in sides and all(e["ok"] for e in row["errors"]["backend"])
    del exact, results
    timer = Timer(args.device, args.rounds)
    row["forward"] = timer.turns({n: lambda s=s: forward(s, x) for n, s in sides.items()})
    row["step"] = timer.turns({n: lambda s=s: run(s) for n, s in sides.items()})
    if args.device == "cuda":
        row["step_peak_bytes"] = {n: peak_bytes(lambda: run(s)) for n, s in sides.items()}
    if args.kernels:
        row["kernels"] = {}
        for n, s in sides.items():
            found = kernels(args.device, lambda: run(s))
            row["kernels"][n] = dict(launches=len(found), ms=sum(e["dur"] for e in found) / 1e3, longest=longest(found, args.longest))
    return row


def wall_ms(args, fn, calls=20):
    """Median ms of a call, host and GPU, one after the other."""
    return statistics.median(common.seconds(fn, args.device)[0] * 1e3 for _ in range(calls))


def graphs(args):
    row = dict(section="graphs", model="OLMo 2 1B", dtype=str(args.dtype))
    torch._dynamo.reset()
    model = make(args, row["model"])
    x, d = inputs(args, model, 1, 24 if args.small else 512)
    params = list(learned(model).values())

    def run(side):
        torch.compiler.cudagraph_mark_step_begin()
        return [t.clone() for t in step(side, x, d, params)]
    over = dict(mode="reduce-overhead")
    sides = {"backend": compiled(args, model, "epilog"), "backend, graphs": compiled(args, model, "epilog", **over),
             "inductor": compiled(args, model, "inductor"), "inductor, graphs": compiled(args, model, "inductor", **over), "eager": model}
    results = started(row, args.device, sides, run)
    for _ in range(3):  # a graph is recorded by the second or third call
        results |= started(row, args.device, {n: s for n, s in sides.items() if "graphs" in n}, run)
    row["same_bits"] = {n: all(map(torch.equal, results[n], results[n.split(",")[0]])) for n in results if "graphs" in n and n.split(",")[0] in results}
    row["step_ms"] = {n: wall_ms(args, lambda: run(s)) for n, s in sides.items()}
    if args.device == "cuda" and "backend" in sides:
        try:
            with torch.no_grad():
                replay, y = common.graph_of([lambda: forward(sides["backend"], x)])
                x.copy_(torch.randn_like(x))
                replay()
                row["same_bits"]["torch.cuda.graph"] = torch.equal(y, forward(sides["backend"], x))
                row["forward_ms"] = {"backend": wall_ms(args, lambda: forward(sides["backend"], x)), "torch.cuda.graph": wall_ms(args, replay)}
        except Exception as e:
            row.setdefault("failed", {})["torch.cuda.graph"] = f"{type(e).__name__}: {e}"[:600]
    ours = "backend", "backend, graphs", "torch.cuda.graph"
    row["ok"] = all(row["same_bits"].get(n, True) and n not in row.get("failed", {}) for n in ours)
    return row


def line(row):
    """A row in short."""
    failed = [f"  {n} failed: {why}" for n, why in row.get("failed", {}).items()]
    first = "  first step after s: " + ", ".join(f"{n} {s:.1f}" for n, s in row["first_s"].items())
    if row["section"] == "graphs":
        lines = [f"graphs ok={row['ok']}, same bits {row['same_bits']}, {row['seconds']:.1f} s", first]
        lines += [f"  {part} " + ", ".join(f"{n} {ms:.3f}" for n, ms in row[part].items()) for part in ("step_ms", "forward_ms") if part in row]
        return "\n".join(lines + failed)
    lines = [f"layers {row['model']} {row['tokens']} ok={row['ok']}, {row['seconds']:.1f} s", first]
    lines += ["  " + said for said in row["report"].splitlines() if said.startswith(("graph ", "forward:", "backward:"))]
    for n, errors in row["errors"].items():
        worst = sorted(errors, key=lambda e: -e["error"] / max(e["bound"], 1e-30))[:2]
        lines.append(f"  {n} of the bound: " + ", ".join(f"{e['output']} {e['error'] / max(e['bound'], 1e-30):.2f}" for e in worst))
    for part in ("forward", "step"):
        times = {n: t["median_ms"] for n, t in row[part].items()}
        lines.append(f"  {part:8}" + ", ".join(f"{n} {t:.3f} ({t / times.get('backend', float('nan')):.3f})" for n, t in times.items()))
    if "step_peak_bytes" in row:
        lines.append("  peak GB " + ", ".join(f"{n} {b / 1e9:.2f}" for n, b in row["step_peak_bytes"].items()))
    for n, k in row.get("kernels", {}).items():
        lines += [f"  {n}: {k['launches']} kernels, {k['ms']:.3f} ms"] + [f"    {ms:8.3f} ms {count:4} {what}" for what, count, ms in k["longest"]]
    return "\n".join(lines + failed)


def sections(args):
    return {"layers": [lambda n=n: layers(args, n) for n in args.models.split(";")], "graphs": [lambda: graphs(args)]}


OPTIONS = dict(models=(FIRST, "separated by semicolons: " + "; ".join(MODELS)), batch=2,
               kernels=(False, "the longest kernels of a step of each side"), longest=(14, "how many of them"))


if __name__ == "__main__":
    sys.exit(common.main(sections, "layers,graphs", __doc__, line, **OPTIONS))

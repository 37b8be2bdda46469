#!/usr/bin/env python3
"""Models with experts through Epilog, beside transformers' own (grouped_mm, and its loop over experts) and torch.compile of the former.

  block    router to output, forward (of training) and step (with its backward): Qwen3-30B-A3B's, OLMoE's, Mixtral's sizes; even and Zipf routing
  train    a Qwen3-MoE of four layers, random weights, 50 steps of AdamW: tokens a second, and the mean of the last 20 losses

  apply          epilog.apply: the experts are one program, the router is another
  nn.MoE         epilog.nn.MoE on the same weights
  transformers   Qwen3MoeSparseMoeBlock with grouped_mm
  loop           the same with its loop over experts
  torch.compile  the one with grouped_mm, compiled

Every row of block is checked in the run that times it: a result of apply may be at most twice as far from f64 as transformers' own is,
with the router's choices given; the share of tokens that both routers give the same experts is in the row. nn.MoE has the same program behind
its router, whose logits are not rounded to 16 bits.
Sides take turns, nothing is in L2, and the host is ahead of the GPU.

  PYTHONPATH=python python3 bench/torch_moe.py --out bench/results/h200-moe.json
  PYTHONPATH=python python3 bench/torch_moe.py --device cpu --small      # tries the script without a GPU
"""
import copy, statistics, sys, time

import common
from common import Timer, distances, peak_bytes, say, started, torch, wait
import transformers
import epilog
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

SIZES = {"qwen": (128, 8, 2048, 768), "olmoe": (64, 8, 2048, 1024), "mixtral": (8, 2, 4096, 14336), "tiny": (4, 2, 64, 96)}


def config(experts, choices, hidden, size, **more):
    return transformers.Qwen3MoeConfig(num_experts=experts, num_experts_per_tok=choices, hidden_size=hidden, moe_intermediate_size=size,
                                       norm_topk_prob=True, **more)


def other(block, implementation):
    """The same weights, carried out in another way."""
    made = copy.copy(block)
    made._modules = dict(block._modules, experts=copy.copy(block.experts), gate=copy.copy(block.gate))
    made.experts.config = copy.copy(block.experts.config)
    made.experts.config._experts_implementation = implementation
    return made


def with_router(block, sizes):
    """epilog.nn.MoE with the weights of a block."""
    experts, choices, hidden, size = sizes
    made = epilog.nn.MoE(hidden, size, experts, choices, device="meta")
    made.gate.weight, made.experts.gate_up_proj, made.experts.down_proj = block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj
    return made


def compiled(args, model):
    """To try the script nobody waits for Inductor."""
    return torch.compile(model, dynamic=False, backend="aot_eager" if args.small else "inductor")


def sides_of(args, name):
    """A block, and its ways."""
    with torch.device(args.device):
        block = Qwen3MoeSparseMoeBlock(config(*SIZES[name], experts_implementation="grouped_mm")).to(args.dtype)
        for p in block.parameters():
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    ours = other(block, "grouped_mm")
    if not epilog.apply(torch.nn.ModuleList([ours])).replaced:
        raise RuntimeError("epilog.apply left the block alone")
    torch._dynamo.reset()
    sides = {"apply": lambda: ours, "nn.MoE": lambda: with_router(block, SIZES[name]), "transformers": lambda: other(block, "grouped_mm"),
             "loop": lambda: other(block, "eager"), "torch.compile": lambda: compiled(args, other(block, "grouped_mm"))}
    return block, {n: sides[n]() for n in args.sides.split(";")}


def make(args, block, tokens, zipf):
    """Tokens and a cotangent. zipf: a feature that all tokens have in common makes some experts more likely."""
    experts, hidden = block.gate.weight.shape
    with torch.device(args.device):
        x, d = torch.randn(1, tokens, hidden), torch.randn(1, tokens, hidden)
        if zipf:
            x[..., 0] = 1
            block.gate.weight.data[:, 0] = -torch.arange(1, experts + 1).log()
        return x.to(args.dtype).requires_grad_(), d.to(args.dtype)


def step(side, x, d, params):
    y = side(x)
    return (y.detach(), *torch.autograd.grad(y, (x, *params), d))


def check(block, sides, x, d):
    """Distances from f64, in which every token has the experts that the router chose."""
    with torch.no_grad():
        _, scores, index = block.gate(x.view(-1, x.shape[-1]))
    scores.requires_grad_()
    params, wide = [scores, *block.experts.parameters()], copy.deepcopy(other(block, "eager")).double()
    exact_scores = scores.detach().double().requires_grad_()
    wide.gate.forward = lambda given: (None, exact_scores, index)
    exact = step(wide, x.detach().double().requires_grad_(), d.double(), [exact_scores, *wide.experts.parameters()])
    del wide
    wait(x.device.type)
    say("the f64 reference made")
    fixed = {}
    for name in ("apply", "transformers"):
        side, own = sides[name], sides[name].gate
        side.gate = copy.copy(block.gate)
        side.gate.forward = lambda given: (None, scores, index)
        fixed[name] = step(side, x, d, params)
        side.gate = own
    return distances("y dx dscores dgate_up ddown".split(), fixed["apply"], fixed["transformers"], exact)


def same_experts(sides, x):
    """The share of tokens of which two routers choose the same experts: equal logits of 16 bits may be taken in another order."""
    with torch.no_grad():
        ours, theirs = (sides[n].gate(x.view(-1, x.shape[-1]))[2].sort(-1)[0] for n in ("apply", "transformers"))
        return (ours == theirs).all(-1).float().mean().item()


def block(args, made, name, tokens, zipf):
    row = dict(section="block", sizes=name, tokens=tokens, routing="zipf" if zipf else "even", dtype=str(args.dtype))
    if not made:
        made += sides_of(args, name)
    made, sides = made
    x, d = make(args, made, tokens, zipf)
    say(name, "made")
    params = list(made.parameters())
    kept = dict(sides)
    started(row, args.device, kept, lambda side: step(side, x, d, params))
    row["errors"] = check(made, sides, x, d)
    row["ok"] = all(e["ok"] for e in row["errors"])
    row["same_experts"] = same_experts(sides, x)
    sides, timer = kept, Timer(args.device, args.rounds)
    row["forward"] = timer.turns({n: lambda s=s: s(x) for n, s in sides.items()})
    row["step"] = timer.turns({n: lambda s=s: step(s, x, d, params) for n, s in sides.items()})
    if args.device == "cuda":
        row["step_peak_bytes"] = {n: peak_bytes(lambda: step(s, x, d, params)) for n, s in sides.items()}
    return row


def train(args):
    """Losses of ours against the spread of five seeds of plain."""
    sizes = dict(vocab_size=32000, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=4, head_dim=64, intermediate_size=2048)
    given, tokens, steps = (64, 8, 1024, 512), (4, 1024), 50
    if args.small:
        sizes, given, tokens, steps = dict(sizes, vocab_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=8), (4, 2, 32, 24), (2, 16), 12

    def run(side, seed):
        torch.manual_seed(seed)
        with torch.device(args.device):
            model = transformers.Qwen3MoeForCausalLM(config(*given, experts_implementation="grouped_mm", **sizes)).to(args.dtype).train()
            data = torch.randint(0, sizes["vocab_size"], (8, *tokens), generator=torch.Generator(args.device).manual_seed(0))
        if side == "apply":
            epilog.apply(model)
        called = model
        if side == "torch.compile" and not args.by_layer:
            called = compiled(args, model)
        elif side == "torch.compile":   # equal layers are compiled once
            model.model.layers = torch.nn.ModuleList(compiled(args, l) for l in model.model.layers)
        optimizer, losses, begin = torch.optim.AdamW(model.parameters(), 3e-4, fused=args.device == "cuda"), [], time.perf_counter()
        for i in range(steps):
            if i == 5:
                wait(args.device)
                first, begin = time.perf_counter() - begin, time.perf_counter()
            optimizer.zero_grad()
            loss = called(input_ids=data[i % 8], labels=data[i % 8], use_cache=False).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        wait(args.device)
        spent, last = time.perf_counter() - begin, statistics.mean(l.item() for l in losses[-20:])
        say(f"{side}, seed {seed}: {last:.4f}, {1e3 * spent / (steps - 5):.1f} ms a step, the first five took {first:.1f} s")
        return dict(loss=last, tokens_per_s=(steps - 5) * tokens[0] * tokens[1] / spent, first_s=first)
    torch._dynamo.reset()
    plain = [run("plain", seed)["loss"] for seed in range(4)]
    row = dict(section="train", tokens=list(tokens), steps=steps)
    sides = started(row, args.device, {n: n for n in args.train_sides.split(";")}, lambda side: run(side, 4))
    plain.append(sides["plain"]["loss"])
    mean, spread = statistics.mean(plain), max(plain) - min(plain)
    return row | dict(plain_losses=plain, spread=spread, sides=sides, ok="apply" in sides and abs(sides["apply"]["loss"] - mean) <= 1.5 * spread)


def line(row):
    """A row in short: ms of each side, and what it is over the first one's."""
    if row["section"] == "train":
        return (f"train ok={row['ok']}, losses of plain {min(row['plain_losses']):.4f} to {max(row['plain_losses']):.4f}; " +
                "; ".join(f"{n} {s['loss']:.4f}, {s['tokens_per_s']:.0f} tokens/s, 5 steps after {s['first_s']:.1f} s" for n, s in row["sides"].items()))
    worst = max(e["error"] / max(e["eager_error"], 1e-30) for e in row["errors"])
    lines = [f"block {row['sizes']} {row['routing']} ok={row['ok']}, at most {worst:.2f} of transformers' distance from f64, the same experts for {row['same_experts']:.4f} of tokens, {row['seconds']:.1f} s"]
    for part in ("forward", "step"):
        ours = row[part]["apply"]["median_ms"] if "apply" in row[part] else float("nan")
        lines.append(f"  {part:8}" + ", ".join(f"{n} {t['median_ms']:.3f} ({t['median_ms'] / ours:.2f})" for n, t in row[part].items()))
    if "step_peak_bytes" in row:
        lines.append("  peak GB " + ", ".join(f"{n} {b / 1e9:.2f}" for n, b in row["step_peak_bytes"].items()))
    return "\n".join(lines + [f"  {n} failed: {why}" for n, why in row.get("failed", {}).items()])


def sections(args):
    cases = [("tiny", 64)] if args.small else [(n, 8192 if n == "mixtral" else 16384) for n in args.sizes.split(";")]
    blocks = [lambda c=c, z=z, m=made: block(args, m, *c, z) for c, made in ((c, []) for c in cases)
              for z in ((False,) if args.even else (False, True))]
    return {"block": blocks, "train": [lambda: train(args)]}


OPTIONS = dict(sizes="qwen;olmoe;mixtral", sides=("apply;nn.MoE;transformers;loop;torch.compile", "of block; apply and transformers are needed"),
               even=(False, "no Zipf routing"), train_sides=("plain;apply;torch.compile", "of train; plain is needed"),
               by_layer=(False, "train: torch.compile has the layers one by one, not the model"))


if __name__ == "__main__":
    sys.exit(common.main(sections, "block,train", __doc__, line, **OPTIONS))

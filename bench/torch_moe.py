#!/usr/bin/env python3
"""Models with experts through epilog.apply, beside transformers' own (grouped_mm, and its loop over experts) and torch.compile.

  block    router to output, forward and step (forward and backward): Qwen3-30B-A3B's, OLMoE's, Mixtral's sizes; even and Zipf routing
  train    a Qwen3-MoE of four layers, random weights, 50 steps of AdamW: tokens a second, and the mean of the last 20 losses

Every row of block is checked in the run that times it: a result may be at most twice as far from f64 as transformers' own is.
Sides take turns, nothing is in L2, and the host is ahead of the GPU.

  PYTHONPATH=python python3 bench/torch_moe.py --out bench/results/h200-moe.json
  PYTHONPATH=python python3 bench/torch_moe.py --device cpu --dtype float32 --small --sections block
"""
import copy, os, statistics, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_blocks as common
from torch_blocks import Timer, distances, epilog, torch, wait
import transformers
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

SIZES = {"qwen": (128, 8, 2048, 768), "olmoe": (64, 8, 2048, 1024), "mixtral": (8, 2, 4096, 14336), "small": (16, 2, 512, 1024)}


def config(experts, choices, hidden, size, **more):
    return transformers.Qwen3MoeConfig(num_experts=experts, num_experts_per_tok=choices, hidden_size=hidden, moe_intermediate_size=size,
                                       norm_topk_prob=True, **more)


def make(args, name, tokens, zipf):
    """The block, tokens, and a cotangent. zipf: a feature that all tokens have in common makes some experts more likely."""
    experts, choices, hidden, size = SIZES[name]
    with torch.device(args.device):
        block = Qwen3MoeSparseMoeBlock(config(experts, choices, hidden, size, experts_implementation="grouped_mm")).to(args.dtype)
        for p in block.parameters():
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
        x = torch.randn(1, tokens, hidden)
        if zipf:
            x[..., 0] = 1
            block.gate.weight.data[:, 0] = -torch.arange(1, experts + 1).log()
        return block, x.to(args.dtype).requires_grad_(), torch.randn(1, tokens, hidden).to(args.dtype)


def sides_of(block):
    """The same weights, carried out in different ways."""
    def other(implementation):
        made = copy.copy(block)
        made._modules = dict(block._modules, experts=copy.copy(block.experts))
        made.experts.config = copy.copy(block.experts.config)
        made.experts.config._experts_implementation = implementation
        return made
    ours, grouped = other("grouped_mm"), other("grouped_mm")
    epilog.apply(torch.nn.ModuleList([ours]))
    return {"epilog": ours, "transformers": grouped, "loop": other("eager"), "torch.compile": torch.compile(other("grouped_mm"), dynamic=False)}


def step(side, x, d, params):
    y = side(x)
    return (y.detach(), *torch.autograd.grad(y, (x, *params), d))


def check(args, block, sides, x, d):
    """Distances from f64, in which every token has the experts that the router chose."""
    params = [p for n, p in block.named_parameters() if n.startswith("experts")]
    _, scores, index = block.gate(x.view(-1, x.shape[-1]))
    wide = copy.deepcopy(block).double()
    wide.gate.forward = lambda given: (None, scores.detach().double(), index)
    wide.experts.config._experts_implementation = "eager"
    exact = step(wide, x.detach().double().requires_grad_(), d.double(), [p for n, p in wide.named_parameters() if n.startswith("experts")])
    fixed = {}
    for name in ("epilog", "transformers"):
        side = sides[name]
        side.gate = copy.copy(block.gate)
        side.gate.forward = lambda given: (None, scores.detach(), index)
        fixed[name] = step(side, x, d, params)
        side.gate = block.gate
    return distances("y dx dgate_up ddown".split(), fixed["epilog"], fixed["transformers"], exact)


def tried(row, sides, run):
    """Without those that fail, which the row tells of."""
    for name in list(sides):
        try:
            run(sides[name])
        except Exception as e:
            row[name + " failed"] = f"{type(e).__name__}: {e}"[:300]
            del sides[name]
    return sides


def block(args, name, tokens, zipf=False):
    row = dict(section="block", sizes=name, tokens=tokens, routing="zipf" if zipf else "even", dtype=str(args.dtype))
    made, x, d = make(args, name, tokens, zipf)
    sides, params = sides_of(made), list(made.parameters())
    row["errors"] = check(args, made, sides, x, d)
    row["ok"] = all(e["ok"] for e in row["errors"])
    tried(row, sides, lambda side: step(side, x, d, params))
    timer = Timer(args.device, args.rounds)
    with torch.no_grad():
        row["forward"] = timer.turns({n: lambda s=s: s(x) for n, s in sides.items()})
    row["step"] = timer.turns({n: lambda s=s: step(s, x, d, params) for n, s in sides.items()})
    for part in ("forward", "step"):
        row[part + "_over_epilog"] = {n: t["median_ms"] / row[part]["epilog"]["median_ms"] for n, t in row[part].items()}
    for n, s in sides.items() if args.device == "cuda" else ():
        wait(args.device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(s, x, d, params)
        wait(args.device)
        row.setdefault("step_peak_bytes", {})[n] = torch.cuda.max_memory_allocated() - before
    torch._dynamo.reset()
    return row


def train(args):
    """Losses of ours against the spread of five seeds of plain."""
    sizes = dict(vocab_size=32000, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=4, head_dim=64, intermediate_size=2048)
    given, tokens, steps = (64, 8, 1024, 512), (4, 1024), 50
    if args.small:
        sizes, given, tokens, steps = dict(sizes, vocab_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=8), (4, 2, 32, 24), (2, 16), 10

    def run(side, seed):
        torch.manual_seed(seed)
        with torch.device(args.device):
            model = transformers.Qwen3MoeForCausalLM(config(*given, **sizes)).to(args.dtype).train()
            data = torch.randint(0, sizes["vocab_size"], (8, *tokens), generator=torch.Generator(args.device).manual_seed(0))
        if side == "epilog":
            epilog.apply(model)
        called = torch.compile(model) if side == "torch.compile" else model
        optimizer, losses, spent = torch.optim.AdamW(model.parameters(), 3e-4), [], []
        for i in range(steps):
            wait(args.device)
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = called(input_ids=data[i % 8], labels=data[i % 8]).loss
            loss.backward()
            optimizer.step()
            wait(args.device)
            spent.append(time.perf_counter() - begin)
            losses.append(loss.item())
        return statistics.mean(losses[-20:]), tokens[0] * tokens[1] / statistics.median(spent[5:])
    plain = [run("plain", seed) for seed in range(5)]
    mean, spread = statistics.mean(p[0] for p in plain), max(p[0] for p in plain) - min(p[0] for p in plain)
    ours, compiled = run("epilog", 0), run("torch.compile", 0)
    return dict(section="train", tokens=list(tokens), steps=steps, loss=ours[0], plain_loss=mean, plain_spread=spread,
                tokens_per_s={"epilog": ours[1], "plain": plain[0][1], "torch.compile": compiled[1]}, ok=abs(ours[0] - mean) <= 1.5 * spread)


def sections(args):
    cases = [("small", 512)] if args.small else [("qwen", 16384), ("olmoe", 16384), ("mixtral", 8192)]
    return {"block": [lambda c=c, z=z: block(args, *c, zipf=z) for c in cases for z in (False, True)],
            "train": [lambda: train(args)]}


if __name__ == "__main__":
    sys.exit(common.main(sections, "block,train", __doc__))

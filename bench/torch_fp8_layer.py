#!/usr/bin/env python3
"""A layer of a Llama, forward and backward, with products of e4m3 (epilog.apply(fp8=True)) beside bf16: epilog.apply and torch.compile.

  PYTHONPATH=python python3 bench/torch_fp8_layer.py --out bench/results/h200-fp8-layer.json
  PYTHONPATH=python python3 bench/torch_fp8_layer.py --device cpu --small      # tries the script without a GPU

4 sequences of 4096 tokens, d 2048 (32 heads of 64, 8 for keys, ff 8192) and d 4096 (32 heads of 128, 8 for keys, ff 14336); a model of one layer, so
the norm behind it is in the time. "compile" is torch.compile of transformers' own layer, whose attention takes a mask, "plain, compiled" of one with fused
projections and attention that is causal by a flag (bench/torch_llama.py). Sides take turns; medians of --rounds times of --steps forwards and backwards one after the other, as
the layers of a model are, behind one that is not timed. Each result and gradient is held against "compile"'s, or against
"apply"'s where that is not among the sides (fused projections name their gradients otherwise): what is printed is the Frobenius distance of the worst.
"""
import statistics

import common
from common import sdpa, torch
import epilog
from torch_llama import PlainLayer

SHAPES = {"d2048": dict(hidden_size=2048, intermediate_size=8192, head_dim=64), "d4096": dict(hidden_size=4096, intermediate_size=14336, head_dim=128)}
SIDES = "compile", "plain, compiled", "apply", "apply, fp8"


class Plain(torch.nn.Module):
    def __init__(self, config, other):
        super().__init__()
        c = config.to_dict()
        self.layer, self.norm = PlainLayer(c), torch.nn.RMSNorm(c["hidden_size"], 1e-5)
        with torch.no_grad():
            self.layer.take(other.layers[0])

    def forward(self, x, cos, sin):
        return self.norm(self.layer(x, cos, sin))


def make(args, shape, name):
    from transformers import LlamaConfig, LlamaModel
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=128, num_hidden_layers=1, num_attention_heads=shape["hidden_size"] // shape["head_dim"],
                         num_key_value_heads=shape["hidden_size"] // shape["head_dim"] // 4, max_position_embeddings=args.length,
                         rms_norm_eps=1e-5, attn_implementation="sdpa", **shape)
    with torch.device(args.device):
        model = LlamaModel(config).to(torch.bfloat16).train()
        model.rotary_emb = type(model.rotary_emb)(config)   # whose frequencies are no longer rounded
    compiled = lambda f: torch.compile(f, dynamic=False, backend="eager" if args.small else "inductor")
    if name == "plain, compiled":
        plain = Plain(config, model).to(args.device, torch.bfloat16)
        angle = torch.outer(torch.arange(args.length).float(), 10000.0 ** (-torch.arange(0, shape["head_dim"], 2).float() / shape["head_dim"]))[:, None]
        called, cos, sin = compiled(plain), angle.cos().to(args.device), angle.sin().to(args.device)
        return plain, lambda x: called(x, cos, sin)
    if name != "compile":
        report = str(epilog.apply(model, fp8="fp8" in name))
        assert ("products of e4m3" in report) == ("fp8" in name), report
    called = compiled(model) if name == "compile" else model
    return model, lambda x: called(inputs_embeds=x, use_cache=False).last_hidden_state


class Side:
    def __init__(self, args, shape, name, x, d):
        self.args, self.x, self.d = args, x, d
        self.model, self.called = make(args, shape, name)

    def step(self):
        self.model.zero_grad()
        self.x.grad = None
        with sdpa(self.args.device):
            y = self.called(self.x)
            y.backward(self.d)
        return y

    def timed(self, steps):
        """Seconds of a step, behind one that is not timed."""
        self.step()
        return common.seconds(common.again(self.step, steps), self.args.device)[0] / steps

    def results(self):
        y = self.step()
        found = {"y": y, "x": self.x.grad, **{n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}}
        return {n: t.detach().clone() for n, t in found.items()}


def apart(found, want):
    """Of what both have: gradients of fused projections have other names."""
    return max((((found[n].float() - want[n].float()).norm() / want[n].float().norm()).item(), n) for n in want if n in found)


def main():
    args = common.arguments(__doc__, dict(batch=2, length=64, rounds=2), device="cuda", batch=4, length=4096, rounds=7, steps=8, sides=";".join(SIDES),
                            shapes="d2048,d4096")
    shapes = {name: SHAPES[name] for name in args.shapes.split(",")}
    if args.small:
        shapes = {"small": dict(hidden_size=512, intermediate_size=384, head_dim=64)}
    rows, named = [], args.sides.split(";")
    for shape_name, shape in shapes.items():
        torch.manual_seed(1)
        size = args.batch, args.length, shape["hidden_size"]
        x = torch.randn(size, device=args.device).bfloat16().requires_grad_()
        d = torch.randn(size, device=args.device).bfloat16()
        sides = {name: Side(args, shape, name, x, d) for name in named}
        found = {name: side.results() for name, side in sides.items()}
        base = next((n for n in ("compile", "apply") if n in named), named[0])
        off = {name: apart(found[name], found[base]) for name in named if name != base}
        del found
        times = common.in_turn(sides, lambda side: side.timed(args.steps), args.rounds)
        fastest = min(statistics.median(times[n]) for n in named if "compile" in n)
        for name in sides:
            ms = statistics.median(times[name]) * 1e3
            rows.append(dict(shape=shape_name, side=name, ms=ms, rounds_ms=[t * 1e3 for t in times[name]], off=off.get(name)))
            print(f"{shape_name} {name:12} {ms:8.3f} ms, {fastest / statistics.median(times[name]):.3f} times the faster torch.compile" +
                  (f"; at most {off[name][0]:.1e} from {base} ({off[name][1]})" if name in off else ""), flush=True)
        del sides
    common.save(args.out, common.head(args, "day commit torch batch length steps device", rows=rows))


main()

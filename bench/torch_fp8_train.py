#!/usr/bin/env python3
"""Losses of a small Llama on real text: products of e4m3 (epilog.apply(fp8=True)) beside bf16, five seeds of it.

  PYTHONPATH=python python3 bench/torch_fp8_train.py --out bench/results/h200-fp8-train.json --plot bench/notes/fp8.svg
  PYTHONPATH=python python3 bench/torch_fp8_train.py --device cpu --small      # tries the script without a GPU

The text is the documentation of this repository (docs/*.md and bench/notes/*.md, in the order of their names), or --text FILE: bytes are tokens. d 512, 6 layers of
8 heads, ff 1536, 16 sequences of 512 bytes a step, AdamW on master weights of f32, of which the model's are copies in bf16. A seed says how
weights begin and which pieces of the text come when: e4m3 has the first of them. Sides: "bf16", the model of transformers; "fp8"; with --apply
the same by epilog.apply in bf16. What is compared is the mean loss of the last 50 steps.
"""
import glob, hashlib, os, time

import common
from common import ROOT, torch
import epilog
from transformers import LlamaConfig, LlamaForCausalLM


def read(args):
    names = [args.text] if args.text else sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")) + glob.glob(os.path.join(ROOT, "bench", "notes", "*.md")))
    data = b"".join(open(name, "rb").read() for name in names)
    print(f"{len(names)} files, {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}", flush=True)
    return torch.tensor(list(data), dtype=torch.uint8)


def make(args, side, seed):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=args.width, intermediate_size=3 * args.width, num_hidden_layers=args.layers,
                                         num_attention_heads=args.width // 64, num_key_value_heads=max(2, args.width // 128), head_dim=64,
                                         max_position_embeddings=args.length, tie_word_embeddings=False, attn_implementation="sdpa"))
    model = model.to(args.device, torch.bfloat16).train()
    if side != "bf16":
        report = str(epilog.apply(model, fp8=side == "fp8"))
        assert side != "fp8" or "products of e4m3" in report, report
    return model


def train(args, side, seed, text):
    model = make(args, side, seed)
    params = list(model.parameters())
    master = [torch.nn.Parameter(p.detach().float()) for p in params]
    grads = [torch.zeros_like(m) for m in master]
    for m, g in zip(master, grads):
        m.grad = g
    optimizer = torch.optim.AdamW(master, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=args.device == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / args.warm))
    draw, losses, begin = torch.Generator().manual_seed(100 + seed), [], time.perf_counter()
    for _ in range(args.steps):
        at = torch.randint(0, len(text) - args.length, (args.batch, 1), generator=draw)
        ids = text[at + torch.arange(args.length)].long().to(args.device)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch._foreach_copy_(grads, [p.grad for p in params])
        model.zero_grad(set_to_none=True)
        torch.nn.utils.clip_grad_norm_(master, 1.0)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            torch._foreach_copy_(params, master)
        losses.append(loss.detach())
    losses = torch.stack(losses).float().tolist()
    tail = losses[-args.tail:]
    print(f"{side:6} seed {seed}: {losses[0]:.4f} to {losses[-1]:.4f}, the last {len(tail)} {sum(tail) / len(tail):.4f}; "
          f"{time.perf_counter() - begin:.1f} s", flush=True)
    return losses


def plot(path, curves, steps):
    """The curves as an SVG: bf16's seeds in grey, e4m3 in red."""
    width, height, most = 720, 360, max(max(c) for c in curves.values())
    place = lambda i, loss: f"{50 + (width - 70) * i / max(1, steps - 1):.1f},{10 + (height - 50) * (1 - loss / most):.1f}"
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for loss in range(int(most) + 1):
        x, y = place(0, loss).split(",")
        lines.append(f'<path d="M{x} {y}H{width - 20}" stroke="#ddd"/><text x="30" y="{y}">{loss}</text>')
    for step in range(0, steps, max(1, steps // 6)):
        lines.append(f'<text x="{place(step, 0).split(",")[0]}" y="{height - 22}">{step}</text>')
    for name, curve in reversed(curves.items()):
        colour = {"bf16": "#999", "apply": "#36c", "fp8": "#c22"}[name.split(",")[0]]
        lines.append(f'<polyline fill="none" stroke="{colour}" points="{" ".join(place(i, loss) for i, loss in enumerate(curve))}"/>')
    lines.append(f'<text x="{width // 3}" y="24">loss by step: <tspan fill="#777">bf16, each seed</tspan>, '
                 '<tspan fill="#c22">products of e4m3</tspan></text></svg>')
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")


def main():
    args = common.arguments(__doc__, dict(width=128, layers=2, batch=2, length=64, steps=30, tail=5, seeds=2), device="cuda", apply=False, text=None,
                            width=512, layers=6, batch=16, length=512, steps=300, tail=50, warm=30, rate=1e-3, seeds=5, plot=None)
    text, curves = read(args), {}
    for side, seeds in (("fp8", [0]), ("bf16", range(args.seeds)), ("apply", [0] * args.apply)):
        for seed in seeds:
            curves[f"{side}, seed {seed}"] = train(args, side, seed, text)
    mean = {name: sum(c[-args.tail:]) / len(c[-args.tail:]) for name, c in curves.items()}
    want, found = mean["bf16, seed 0"], mean["fp8, seed 0"]
    others = [mean[name] for name in mean if name.startswith("bf16")]
    fallen = curves["fp8, seed 0"][0] - found
    print(f"fp8 is {100 * (found / want - 1):+.2f} % of bf16 with the same seed; bf16's seeds are {100 * (min(others) / want - 1):+.2f} to "
          f"{100 * (max(others) / want - 1):+.2f} % of it; the loss fell by {fallen:.2f}")
    if args.plot:
        plot(args.plot, curves, args.steps)
    settings = {name: value for name, value in vars(args).items() if name != "commit"}
    common.save(args.out, common.head(args, "day commit torch device", settings=settings, means=mean, curves=curves), None)


main()

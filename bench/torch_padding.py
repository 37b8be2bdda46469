#!/usr/bin/env python3
"""A training step of a Llama on batches with padding, and with packed documents: torch.compile and epilog.apply, in one process.

  PYTHONPATH=python python3 bench/torch_padding.py --out bench/results/h200-padding.json
  PYTHONPATH=python python3 bench/torch_padding.py --device cpu --small --data "padded;left;packed"       # tries the script without a GPU

  padded    sequences of other lengths in rows of --length, behind each padding, 30 % of all; the model is given attention_mask
  left      the same with the padding before them, and positions from the first token on, as generating has it
  packed    documents one after another in full rows; the model is given position_ids that begin anew with each
  whole     full rows of one sequence each, to compare with

  compile        the model of transformers under torch.compile, its attention PyTorch's with cuDNN where that can do the mask
  compile, flex  the same with FlexAttention, whose blocks leave out what a mask hides
  apply          epilog.apply: a layer is one program, the mask with it

d 2048, 32 heads of 8 groups, ff 8192, 4 rows of 4096, pure bf16, AdamW (fused); --layers 16 --vocabulary 128256 are those of the model of 1B.
All have the same weights and take turns, kind of data by kind: --rounds times --steps steps each. tokens/s counts tokens that are no padding.
Losses of the first three steps, and the norm of the first gradient, are held against each other: a side that is further from the first than
--near is told as wrong.
"""
import gc, statistics, time

import common
from common import sdpa, torch
import epilog
from torch import nn


def make(args, attention="sdpa"):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    with torch.device(args.device):
        model = LlamaForCausalLM(LlamaConfig(**args.config, rms_norm_eps=1e-5, tie_word_embeddings=False, max_position_embeddings=args.length,
                                             rope_parameters=dict(rope_type="default", rope_theta=500000.0), attn_implementation=attention))
        for p in model.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
    return model.to(torch.bfloat16).train()


def batch(args, kind, g):
    """What the model is called with, and how many of its tokens are no padding."""
    rows, length = args.batch, args.length
    ids = torch.randint(0, args.config["vocab_size"], (rows, length), generator=g)
    given = dict(input_ids=ids, labels=ids.clone(), use_cache=False)
    place, count = torch.arange(length), rows * length
    if kind in ("padded", "left"):
        share = torch.linspace(0.4, 1.0, rows)[torch.randperm(rows, generator=g)]  # of 4 rows 70 % are tokens
        sizes = (share * length).long()[:, None]
        mask = place < sizes if kind == "padded" else place >= length - sizes
        before = mask.roll(1, 1) & (place > 0)  # the first token is foretold by nobody
        given.update(labels=ids.masked_fill(~(mask & before), -100), attention_mask=mask.long())
        if kind == "left":
            given["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
        count = int(mask.sum())
    elif kind == "packed":
        begins = torch.rand(rows, length, generator=g) < args.documents / length
        begins[:, 0] = True
        first = torch.where(begins, place, 0).cummax(1).values
        given.update(position_ids=place - first, labels=ids.masked_fill(begins, -100))
    return {name: t.to(args.device) if torch.is_tensor(t) else t for name, t in given.items()}, count


class Side:
    def __init__(self, name, args):
        self.args, self.model = args, make(args, "flex_attention" if "flex" in name else "sdpa")
        if name == "apply":
            self.report = str(epilog.apply(self.model))
        self.called = torch.compile(self.model, dynamic=False) if "compile" in name else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=args.device == "cuda")

    def step(self, given, norm=False):
        with sdpa(self.args.device):
            loss = self.called(**given).loss
            loss.backward()
        found = torch.stack([p.grad.float().norm() for p in self.model.parameters()]).norm().item() if norm else None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return (loss.item(), found) if norm else loss.detach()


def first_steps(args, kind, name, sides, given):
    """What a side's first three steps with some data give; in words why there is none, where it fails."""
    gc.collect()
    row, begin = dict(side=f"{kind}, {name}"), time.perf_counter()
    try:
        sides[name] = sides.get(name) or Side(name, args)
        loss, row["norm"] = sides[name].step(given[0][0], True)
        row["start_s"] = time.perf_counter() - begin
        row["losses"] = [loss] + [sides[name].step(given[i][0]).item() for i in (1, 2)]
    except Exception as e:  # one side that cannot run is no reason to lose the others
        row["failed"] = f"{type(e).__name__}: {str(e)[:400]}"
    print(row, flush=True)
    return row


def measure(args, kind, sides):
    g = torch.Generator().manual_seed(1)
    data = [batch(args, kind, g) for _ in range(4)]
    rows = {name: first_steps(args, kind, name, sides, data) for name in args.sides.split(";")}
    running = {name: sides[name] for name, row in rows.items() if "failed" not in row}
    right = compare(args, [rows[name] for name in running])

    def once(side):
        side.step(data[0][0])
        return common.seconds(lambda: [side.step(data[i % len(data)][0]) for i in range(args.steps)], args.device)[0] / args.steps
    spent = common.in_turn(running, once, args.rounds)
    tokens = statistics.mean([data[i % len(data)][1] for i in range(args.steps)])
    for name, times in spent.items():
        rows[name].update(step_ms=statistics.median(times) * 1e3, tokens_s=tokens / statistics.median(times), rounds_ms=[t * 1e3 for t in times])
        print(f"{kind:8}{name:16}{rows[name]['step_ms']:9.2f} ms {rows[name]['tokens_s']:10.0f} tokens/s of {tokens:.0f} in {args.batch * args.length}, "
              f"first loss after {rows[name]['start_s']:.1f} s", flush=True)
    theirs, mine = [r["tokens_s"] for n, r in rows.items() if n != "apply" and "tokens_s" in r], rows.get("apply", {}).get("tokens_s")
    if theirs and mine:
        print(f"{kind}: apply is {mine / max(theirs):.3f} of the better of torch.compile; {'right' if right else 'WRONG'}", flush=True)
    return [dict(row, tokens=tokens, right=right) for row in rows.values()]


def compare(args, rows):
    """Are losses and norms of all sides near those of the first?"""
    right = True
    for row in rows[1:]:
        far = max(abs(a - b) / abs(b) for a, b in zip([*row["losses"], row["norm"]], [*rows[0]["losses"], rows[0]["norm"]]))
        row["far"], right = far, right and far <= args.near
        print(f"{row['side']}: losses and norm at most {far:.1e} of {rows[0]['side']}'s apart", flush=True)
    return right


def main():
    args = common.arguments(__doc__, dict(batch=4, length=48, rounds=1, steps=2), device="cuda",
                            data=("padded;packed", "of padded, left, packed and whole, separated by semicolons"),
                            sides=("compile;apply", "separated by semicolons"), vocabulary=128256, layers=16, batch=4, length=4096,
                            documents=(8.0, "how many begin in a row, about"), rounds=3, steps=4, near=1e-2)
    args.config = dict(vocab_size=args.vocabulary, hidden_size=2048, intermediate_size=8192, num_hidden_layers=args.layers,
                       num_attention_heads=32, num_key_value_heads=8)
    if args.small:
        args.config = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                           num_key_value_heads=2)
    sides, found = {}, []
    for kind in args.data.split(";"):
        found += measure(args, kind, sides)
        common.save(args.out, common.head(args, "day commit torch device config batch length", rows=found))


main()

#!/usr/bin/env python3
"""Generating with a Llama of 1B beside transformers: one process, one GPU, new tokens a second.

  epilog        epilog.generate of a model that epilog.apply replaced: a static cache, and a step as one CUDA graph
  compile       model.generate with a StaticCache, one for all calls, whose step transformers compiles (torch.compile, mode="reduce-overhead"):
                its fastest documented way
  eager         model.generate as it is, with a dynamic cache

Prompts of 128 tokens, greedy, 512 new tokens each, bf16, batches of 1, 8 and 64; no token ends a sequence. Sides take turns, --rounds times;
the first call of each, which compiles, is told apart. Checked in the run that is timed: log-probabilities of the new tokens, as generating gave them,
are at most twice as far from those of the model in f32 as the plain model's own; and how many differ from those of epilog.log_probs, the
training forward, in any bit.

--sections step: the layers of a decode step at batch 1 in one CUDA graph, of a Llama of 8B and of 1B, beside the bytes of weights and
cached tokens at the speed of a copy, measured here.

  PYTHONPATH=python python3 bench/torch_generate.py --out bench/results/h200-generate.json
  PYTHONPATH=python python3 bench/torch_generate.py --device cpu --small      # tries the script without a GPU
"""
import copy, gc, statistics, sys

import common
from common import seconds, torch
import transformers
import epilog
from epilog import _generate

SHAPES = {"1B": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64),
          "8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128),
          "small": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)}


def make(args, shape, words, **more):
    torch.manual_seed(args.seed)
    config = transformers.LlamaConfig(**{**SHAPES[shape], **more}, vocab_size=words, max_position_embeddings=8192, eos_token_id=None, bos_token_id=None,
                         pad_token_id=0, attn_implementation="sdpa", tie_word_embeddings=False)
    with torch.device(args.device):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5)
    return model.requires_grad_(False)


def plain_log_probs(model, ids, prompt):
    logits = model(input_ids=ids, use_cache=False).logits[:, prompt - 1:-1].float()
    return logits.log_softmax(-1).gather(2, ids[:, prompt:, None])[..., 0]


def check(args, plain, patched, exact, generated, prompt, row):
    """Holds log-probabilities of a few of the sequences against the model in f32."""
    sequences, mine = generated.sequences[:2], generated.log_probs[:2]
    want = plain_log_probs(exact, sequences, prompt)
    theirs = plain_log_probs(plain, sequences, prompt)
    trained = epilog.log_probs(patched, sequences)[:, prompt - 1:]
    row["error"] = dict(epilog=(mine - want).abs().mean().item(), plain=(theirs - want).abs().mean().item())
    row["differ_from_training"] = (mine != trained).float().mean().item()
    row["ok"] = row["error"]["epilog"] <= 2 * row["error"]["plain"]


def generating(args, batch, plain, patched, exact):
    ids = torch.randint(1, args.words, (batch, args.prompt), device=args.device)
    given = dict(attention_mask=torch.ones_like(ids), max_new_tokens=args.new, do_sample=False, pad_token_id=0)
    cache = transformers.StaticCache(config=plain.config, max_cache_len=args.prompt + args.new)

    def compiled():
        cache.reset()
        return plain.generate(ids, past_key_values=cache, **given)
    calls = {"epilog": lambda: epilog.generate(patched, ids, log_probs=True, **given).sequences, "compile": compiled,
             "eager": lambda: plain.generate(ids, **given)}
    row, running = dict(section="generate", batch=batch, prompt=args.prompt, new=args.new, first_s={}), {}
    for name in args.sides.split(","):
        try:
            row["first_s"][name], _ = seconds(calls[name], args.device)
            running[name] = calls[name]
        except Exception as e:  # whatever one side stumbles over, the others can still be measured
            row[name + "_failed"] = f"{type(e).__name__}: {e}"[:400]
            print(name, row[name + "_failed"], flush=True)
    def once(call):
        t, found = seconds(call, args.device)
        assert found.shape == (batch, args.prompt + args.new), found.shape
        return t
    spent = common.in_turn(running, once, args.rounds)
    if "epilog" in spent:
        check(args, plain, patched, exact, epilog.generate(patched, ids, log_probs=True, **given), args.prompt, row)
    elif "epilog" in args.sides.split(","):
        row["ok"] = False
    row["tokens_s"] = {name: batch * args.new / statistics.median(t) for name, t in spent.items()}
    row["rounds_s"] = spent
    row["over"] = {name: row["tokens_s"].get("epilog", 0) / t for name, t in row["tokens_s"].items() if name != "epilog"}
    return row


def step(args, shape, cached, layers, speed):
    """The layers alone, one token over so many cached ones."""
    gc.collect()  # the last model
    model = make(args, shape, 1024, num_hidden_layers=layers)
    epilog.apply(model)
    decoder = _generate.decoder_for(model, 1, cached + 1)
    assert type(decoder) is _generate.Decoder, decoder
    for layer in decoder.cache.layers:
        layer.keys[:, :, :cached].normal_()
        layer.values[:, :, :cached].normal_()
    decoder.at.fill_(cached)
    decoder.position.fill_(cached)
    x, cos, sin = decoder.base.embed_tokens(decoder.token), decoder.cos[decoder.position], decoder.sin[decoder.position]
    replay, _ = common.graph_of([lambda: decoder.through(x, cos, sin)], device=args.device)
    us = 1e3 * statistics.median(common.ms_of(replay, 20, device=args.device) for _ in range(9)) / layers
    c = model.config
    moved = sum(p.numel() for p in model.model.layers[0].parameters()) + 2 * (cached + 1) * c.num_key_value_heads * c.head_dim
    floor = 2 * moved / speed * 1e6
    program, before, more, layer, behind, numbers = decoder.layers[0]
    plan = program.show(x, *before, cos, sin, *more, layer.keys, layer.values, decoder.at, *behind, decoder.start, decoder.at, *numbers)
    return dict(section="step", shape=shape, cached=cached, layers=layers, us=us, floor_us=floor, of_floor=floor / us, plan=plan)


def work_of(args, result):
    """The rows, one after another; the models of a section are made when its rows begin."""
    if "step" in args.sections:
        result["copy_bytes_s"] = speed = common.copy_speed(args.device, 9)
        for shape, cached, layers in (("small", 40, 2),) if args.small else (("1B", 1024, 16), ("8B", 4096, 6)):
            yield dict(section="step", shape=shape), lambda: step(args, shape, cached, layers, speed)
    if "generate" in args.sections:
        gc.collect()
        plain = make(args, "small" if args.small else "1B", args.words)
        patched, exact = copy.deepcopy(plain), copy.deepcopy(plain).float()
        result["report"] = str(epilog.apply(patched))
        for batch in map(int, args.batches.split(",")):
            yield dict(section="generate", batch=batch), lambda: generating(args, batch, plain, patched, exact)


def line(row):
    if row["section"] == "step":
        return f"step {row['shape']} {row['cached']} cached: {row['us']:.1f} us a layer, floor {row['floor_us']:.1f}, {row['of_floor']:.3f} of it"
    each = lambda times, form: ", ".join(f"{n} {t:{form}}" for n, t in times.items())
    return (f"batch {row['batch']}: {each(row['tokens_s'], '.0f')} tokens/s; over {each(row['over'], '.2f')}; first {each(row['first_s'], '.1f')} s; "
            f"error {row.get('error')}, {row.get('differ_from_training')} differ from training, ok {row.get('ok')}")


@torch.no_grad()
def main():
    args = common.arguments(__doc__, dict(batches="1,3", prompt=9, new=12, rounds=1, words=300), device="cuda", sections="step,generate",
                            sides="epilog,compile,eager", batches="1,8,64", prompt=128, new=512, rounds=3, words=128256, seed=0)
    result = common.head(args, "date commit version device torch transformers", rows=[])
    return common.measured(args, result, work_of(args, result), line)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Generates text with a Hugging Face model, with layers that Epilog runs.

    python3 examples/pytorch/generate.py MODEL "Once upon a time" [--tokens 100] [--dtype bfloat16] [--device cuda]

MODEL is a name on the Hugging Face hub or a folder that `save_pretrained` wrote. If it has no tokenizer, the prompt is
token numbers: "17 4 23". `--compare` also generates without Epilog, and prints both speeds."""
import argparse
import os
import time

import epilog
import torch

try:
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ModuleNotFoundError:
    raise SystemExit(f"{os.path.basename(__file__)} needs transformers; type pip install transformers")


def read(options):
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype)).to(options.device).eval()
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        ids = tokenizer(options.prompt, return_tensors="pt").input_ids
    except (OSError, ValueError, TypeError):  # there is no tokenizer
        try:
            tokenizer, ids = None, torch.tensor([[int(word) for word in options.prompt.split()]])
        except ValueError:
            raise SystemExit(f"{options.model} has no tokenizer, so the prompt must be token numbers: \"17 4 23\"")
    if not ids.numel():
        raise SystemExit("the prompt is empty")
    if int(ids.max()) >= model.config.vocab_size:
        raise SystemExit(f"the prompt has token {int(ids.max())}; the model knows {model.config.vocab_size}")
    return model, tokenizer, ids.to(options.device)


def timed(model, ids, tokens):
    """The new tokens, and the tokens per second. A first call compiles and is not timed."""
    settings = dict(do_sample=False, eos_token_id=None, pad_token_id=0)
    with torch.inference_mode():
        model.generate(ids, max_new_tokens=2, **settings)
        start = time.perf_counter()
        new = model.generate(ids, max_new_tokens=tokens, **settings)[0, ids.shape[1]:].tolist()
    return new, len(new)/(time.perf_counter() - start)


class Parser(argparse.ArgumentParser):
    def error(self, message):  # one line instead of the whole usage
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def main():
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compare", action="store_true", help="generate without Epilog as well")
    options = parser.parse_args()
    if options.tokens < 1:
        parser.error("--tokens is 1 or more")
    model, tokenizer, ids = read(options)

    before = timed(model, ids, options.tokens) if options.compare else None
    print(epilog.apply(model))  # the replaced modules, and why others were left
    new, speed = timed(model, ids, options.tokens)
    print(options.prompt + tokenizer.decode(new) if tokenizer else " ".join(map(str, new)))
    print(f"{speed:.1f} tokens a second with Epilog", end="")
    if before:
        same = next((i for i, (a, b) in enumerate(zip(new, before[0])) if a != b), len(new))
        print(f", {before[1]:.1f} without; the first {same} of {len(new)} tokens are the same", end="")
    print()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Fine-tunes a Hugging Face model on a text file, with layers that Epilog runs.

    python3 examples/pytorch/finetune.py MODEL TEXT [--steps 100] [--batch 4] [--length 512] [--lr 2e-5] [--out FOLDER]

MODEL is a name on the Hugging Face hub or a folder that `save_pretrained` wrote. If it has no tokenizer, the bytes of the
text are the tokens. Empty lines split the text into documents. Each row of a batch holds several documents (packing). No
token sees another document, because `position_ids` start again at 0 with each. `--out` names a folder for the trained
model, its losses (losses.csv) and a plot of them (losses.svg)."""
import argparse
import os
import sys
import time

import epilog
import torch

try:
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ModuleNotFoundError:
    raise SystemExit(f"{os.path.basename(__file__)} needs transformers; type pip install transformers")


def documents(options, model):
    with open(options.text, encoding="utf-8") as f:
        texts = [text.strip() for text in f.read().split("\n\n") if text.strip()]
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        rows = [tokenizer(text).input_ids for text in texts]
    except (OSError, ValueError, TypeError):  # there is no tokenizer
        rows = [[byte % model.config.vocab_size for byte in text.encode()] for text in texts]
    return [row for row in rows if len(row) > 1]


def packed(rows, batch, length):
    """Yields batches without end: token numbers, positions within the document, and labels."""
    tokens, positions = [], []
    while True:
        for row in rows:
            tokens += row
            positions += range(len(row))
            while len(tokens) >= batch*length:
                ids = torch.tensor(tokens[:batch*length]).view(batch, length)
                places = torch.tensor(positions[:batch*length]).view(batch, length)
                # A document that a row cuts in two starts again at position 0.
                places = places - torch.where(places > torch.arange(length), places - torch.arange(length), 0)
                # The first token of a document has no label: no token before it belongs to the document.
                yield ids, places, torch.where(places == 0, -100, ids)
                tokens, positions = tokens[batch*length:], positions[batch*length:]


def progress(step, steps, loss, speed):
    done = 30*step//steps
    text = f"{'#'*done}{'.'*(30 - done)} {step}/{steps}  loss {loss:.3f}  {speed:.0f} tokens/s"
    print(text, end="\r" if sys.stdout.isatty() and step < steps else "\n", flush=True)


def plot(losses, path):
    """Writes the losses to an SVG file, as a line."""
    low, high = min(losses), max(losses)
    points = " ".join(f"{40 + 540*i/max(1, len(losses) - 1):.1f},{260 - 240*(loss - low)/max(high - low, 1e-9):.1f}" for i, loss in enumerate(losses))
    with open(path, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 300" font-family="sans-serif" font-size="12">'
                f'<rect width="600" height="300" fill="white"/><polyline points="{points}" fill="none" stroke="#0a6"/>'
                f'<text x="4" y="24">{high:.2f}</text><text x="4" y="264">{low:.2f}</text><text x="240" y="290">loss, {len(losses)} steps</text></svg>\n')


class Parser(argparse.ArgumentParser):
    def error(self, message):  # one line instead of the whole usage
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def main():
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("text")
    for name, default in (("steps", 100), ("batch", 4), ("length", 512)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if min(options.steps, options.batch, options.length) < 1:
        parser.error("--steps, --batch and --length are 1 or more")
    model = AutoModelForCausalLM.from_pretrained(options.model).to(options.device).train()
    rows = documents(options, model)
    if not rows:
        raise SystemExit(f"{options.text} has no text")
    print(epilog.apply(model))  # the replaced modules, and why others were left

    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    batches, losses, start = packed(rows, options.batch, options.length), [], time.perf_counter()
    for step in range(1, options.steps + 1):
        ids, positions, labels = (t.to(options.device) for t in next(batches))
        loss = model(input_ids=ids, position_ids=positions, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        progress(step, options.steps, losses[-1], step*ids.numel()/(time.perf_counter() - start))

    if options.out:
        epilog.restore(model)
        model.save_pretrained(options.out)
        with open(os.path.join(options.out, "losses.csv"), "w") as f:
            f.write("step,loss\n" + "".join(f"{i + 1},{loss}\n" for i, loss in enumerate(losses)))
        plot(losses, os.path.join(options.out, "losses.svg"))
        print(f"{options.out} has the model, losses.csv and losses.svg")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Turns a formula into an operation, checks its gradient, and trains a module that uses it.

    python3 examples/pytorch/custom_op.py [--steps 200] [--device cuda]

The formula is a feed-forward block with a norm and a gate. Epilog derives the backward pass. The script first
compares the result and the gradients with the same block in plain PyTorch. Then it fits the block to a function."""
import argparse

import epilog
import torch

# Axes have names. `@` sums over the axis that both sides have: D in the first two products, F in the last.
block = epilog.op("""
block(x[T,D], g[D], w1[F,D], w2[F,D], w3[D,F]) -> y[T,D] {
    n = x*rsqrt(mean(x*x, D) + 1e-6)*g
    y = x + (silu(n @ w1)*(n @ w2)) @ w3
}""")


class Block(torch.nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(width))
        self.gate = torch.nn.Parameter(torch.randn(hidden, width)*width**-0.5)
        self.up = torch.nn.Parameter(torch.randn(hidden, width)*width**-0.5)
        self.down = torch.nn.Parameter(torch.randn(width, hidden)*hidden**-0.5)

    def forward(self, x):
        return block(x, self.norm, self.gate, self.up, self.down)

    def plain(self, x):
        """The same block in PyTorch's own operations."""
        n = torch.nn.functional.rms_norm(x, x.shape[-1:], self.norm, 1e-6)
        return x + (torch.nn.functional.silu(n @ self.gate.T)*(n @ self.up.T)) @ self.down.T


def differences(model, x):
    """How far the result and each gradient are from plain PyTorch's, relative to their largest element."""
    found = {}
    for name, function in (("epilog", model.forward), ("torch", model.plain)):
        model.zero_grad()
        y = function(x)
        y.square().mean().backward()
        found[name] = [y.detach(), *(p.grad.clone() for p in model.parameters())]
    return [float((a - b).abs().max()/b.abs().max()) for a, b in zip(found["epilog"], found["torch"])]


class Parser(argparse.ArgumentParser):
    def error(self, message):  # one line instead of the whole usage
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def main():
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="steps of training (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda (default: %(default)s)")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Block(64, 192).to(options.device)
    x = torch.randn(256, 64, device=options.device)

    worst = max(differences(model, x))
    print(f"results and gradients differ from plain PyTorch by at most {worst:.1e}")
    if worst > 1e-4:
        raise SystemExit("that is more than rounding explains")

    target = torch.sin(2*x) + x.flip(-1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        if step == 0 or (step + 1) % max(1, options.steps//5) == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")

    print("\nWhat the operation became:\n")
    print(block.show(x, model.norm, model.gate, model.up, model.down))


if __name__ == "__main__":
    main()

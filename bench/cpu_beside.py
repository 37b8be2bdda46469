"""Two sides of a computation on the CPU in turn, forward and backward: their times, held against each other, printed and written.

Processor time counts, not time by the clock: other work on the machine takes no part in it. The least of all rounds is taken."""
import json
import platform
import subprocess
import sys
import time

import torch


def seconds(work):
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def measure(calls, d, rounds):
    """calls: by side, a function and what it is differentiated by. The least seconds and the results of each side."""
    best, results = {}, {}
    for count in range(rounds + 1):  # the first one compiles and touches memory
        for name, (call, inputs) in calls.items():
            forward, o = seconds(call)
            backward, gradients = seconds(lambda: torch.autograd.grad(o, inputs, d, allow_unused=True))
            best[name] = tuple(map(min, best[name], (forward, backward))) if count > 1 else (forward, backward)
            results[name] = (o.detach(), *gradients)
    return best, results


def report(title, sizes, best, results, out):
    """Prints PyTorch's time over Epilog's, once their results agree; `out` is a file for the figures, or None."""
    apart = [((a - b).norm() / b.norm()).item() for a, b in zip(results["epilog"], results["pytorch"], strict=True)]
    assert max(apart) < 1e-5, apart
    print(f"{title}, {sizes['threads']} thread(s), PyTorch {torch.__version__}")
    for i, name in enumerate(("forward", "backward")):
        a, b = best["pytorch"][i], best["epilog"][i]
        print(f"{name:9} PyTorch {1e3 * a:7.1f} ms, Epilog {1e3 * b:7.1f} ms: {a / b:.2f}")
    if out:
        row = {f"{side}_{name}_ms": 1e3 * best[side][i] for side in best for i, name in enumerate(("forward", "backward"))}
        head = dict(date=time.strftime("%Y-%m-%d"), commit=subprocess.getoutput("git rev-parse --short HEAD"), machine=platform.machine(),
                    torch=torch.__version__, command=sys.argv, time="processor time, least of the rounds")
        with open(out, "w") as f:
            json.dump(dict(head, rows=[dict(sizes, type="f32", apart=apart, **row)]), f, indent=1)

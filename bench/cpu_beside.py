"""Two sides of a computation on the CPU in turn, forward and backward: their times, held against each other, printed and written.

Processor time counts, not time by the clock: other work on the machine takes no part in it. The least of all rounds is taken."""
import time

import common
from common import torch


def seconds(work):
    return common.seconds(work, clock=time.process_time)


def arguments(doc, **sizes):
    """The options, and of these the sizes."""
    args = common.arguments(doc, **sizes)
    torch.set_num_threads(args.threads)
    return args, {name: getattr(args, name) for name in sizes}


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


def report(title, args, sizes, best, results):
    """Prints PyTorch's time over Epilog's, once their results agree, and writes the result file."""
    apart = [((a - b).norm() / b.norm()).item() for a, b in zip(results["epilog"], results["pytorch"], strict=True)]
    assert max(apart) < 1e-5, apart
    print(f"{title}, {sizes['threads']} thread(s), PyTorch {torch.__version__}")
    for i, name in enumerate(("forward", "backward")):
        a, b = best["pytorch"][i], best["epilog"][i]
        print(f"{name:9} PyTorch {1e3 * a:7.1f} ms, Epilog {1e3 * b:7.1f} ms: {a / b:.2f}")
    row = {f"{side}_{name}_ms": 1e3 * best[side][i] for side in best for i, name in enumerate(("forward", "backward"))}
    common.save(args.out, common.head(args, "day commit machine torch command", time="processor time, least of the rounds",
                                      rows=[dict(sizes, type="f32", apart=apart, **row)]))

#!/usr/bin/env python3
"""Host time of one call of an operation, beside torch.add: small tensors, so that the device does next to nothing.

  PYTHONPATH=python python3 bench/torch_call.py                 # the GPU where there is one, else the CPU
  PYTHONPATH=python python3 bench/torch_call.py --out bench/results/h200-call.json

The sides take turns in rounds; a figure is the median of the rounds. On the CPU it is the thread's own time, so that other
processes do not count; on a GPU it is time by the clock, with a wait for the device between rounds, which is not counted.
"launch" is the part of it that starts the kernel, by a call of the library with everything at hand. "in a graph" is what one operation
more costs in a graph of torch.compile: the difference between graphs of MANY and of one.
"""
import statistics, time

import common
from common import torch
import epilog
from epilog import _direct

MANY = 9


def in_graph(op, count):
    """A graph of so many operations, one after the other."""
    def chain(x, y):
        for _ in range(count):
            x = op(x, y)
        return x
    return torch.compile(chain)


def main():
    args = common.arguments(__doc__, device=common.DEVICE, size=64, calls=(200, "in a round"), rounds=41)
    torch.set_num_threads(1)
    cuda = args.device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    x, y = (torch.randn(args.size, args.size, device=args.device, dtype=dtype) for _ in range(2))
    gx, gy, ones = x.clone().requires_grad_(), y.clone().requires_grad_(), torch.ones_like(x)
    add = epilog.op("add(x[T,D], y[T,D]) -> z[T,D] { z = x + y }")
    for f in (lambda: add(x, y), lambda: add(gx, gy)):
        f(), f()
    assert torch.equal(add(x, y), x + y)

    plan = next(iter(add.program.plans.values()))
    space, out = torch.empty(plan.space, dtype=torch.uint8, device=args.device), torch.empty_like(x)
    frame = plan.frames.pop()  # for good: a call would leave the addresses of its own tensors in it
    frame.pointers[0], frame.pointers[2], frame.pointers[4] = x.data_ptr(), y.data_ptr(), out.data_ptr()
    frame.call.workspace = space.data_ptr()
    if cuda:
        frame.call.stream = torch._C._cuda_getCurrentRawStream(0)
    launch = lambda: plan.lib.epi_kernel_call(plan.kernel.handle, frame.call_at, frame.error_at)

    def no_grad(f):
        def inner():
            with torch.no_grad():
                f(gx, gy)
        return inner
    sides = {"launch": launch, "an empty call by ctypes": plan.lib.epi_version,
             "torch.add": lambda: torch.add(x, y), "epilog": lambda: add(x, y),
             "torch.add, no_grad": no_grad(torch.add), "epilog, no_grad": no_grad(add),
             "torch.add, with grad": lambda: torch.add(gx, gy), "epilog, with grad": lambda: add(gx, gy),
             "torch.add, forward and backward": lambda: torch.add(gx, gy).backward(ones),
             "epilog, forward and backward": lambda: add(gx, gy).backward(ones)}
    for name, given in ("", (x, y)), (", with grad", (gx, gy)):
        for op, count in ("epilog", 1), ("epilog", MANY), ("torch.mm", 1), ("torch.mm", MANY):
            graph = in_graph(add if op == "epilog" else torch.mm, count)
            graph(*given)
            sides[f"{op}, {count} in a graph{name}"] = lambda graph=graph, given=given: graph(*given)
    clock = time.perf_counter if cuda else time.thread_time
    def once(f):
        common.wait(args.device)
        return common.seconds(common.again(f, args.calls), clock=clock)[0] / args.calls * 1e6
    us = {name: statistics.median(t) for name, t in common.in_turn(sides, once, args.rounds, warm=1).items()}
    for name in ("epilog", "torch.mm"):
        for grad in ("", ", with grad"):
            one, many = (us.pop(f"{name}, {count} in a graph{grad}") for count in (1, MANY))
            us[f"{name}, in a graph{grad}"] = (many - one) / (MANY - 1)
    file = _direct.opened_file()
    way = "ctypes" if file is None else "a function in C" if file.functions else "the dispatcher"
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if cuda else 'CPU'}, {args.size} x {args.size}, by {way}")
    for name, t in us.items():
        over = us.get(name.replace("epilog", "torch.add"))
        print(f"{name:32} {t:7.2f} us" + (f"  {t / over:5.2f} of torch.add" if name.startswith("epilog") and over else ""))
    bars = {"without grad": (us["epilog"] / us["torch.add"], 1.5), "with grad": (us["epilog, with grad"] / us["torch.add, with grad"], 4)}
    for name, (ratio, bar) in bars.items():
        print(f"{name}: {ratio:.2f} of torch.add, {'within' if ratio <= bar else 'over'} {bar}")
    common.save(args.out, common.head(args, "day commit torch device size calls rounds", way=way, host_us=us,
                                      of_torch_add={name: ratio for name, (ratio, _) in bars.items()}))


main()

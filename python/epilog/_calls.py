"""epilog::run and epilog::run_saving as graphs of torch.compile call them: straight to the function in C.

A call through PyTorch's dispatcher is one of Python, twice, with the text copied on the way. It is left to what needs it: a tracer or a mode,
a tensor of another class or one that wants a gradient, sizes without a plan, a mistake.
"""
import torch

from ._run import entry_of_run, entry_of_saving, forward_ad, merged, profiler

watched, in_functorch, in_trace = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active, torch._C._get_tracing_state


class Short:
    """What an operation of PyTorch's is called by, in place of its way into the dispatcher. known: functions in C, by text, name and `how`:
    the results' types, or the inputs that gradients are by. entry(text, name, how, args): the function's entry, or None."""

    def __init__(self, overload, entry):
        self.whole, self.entry, self.known = overload._op, entry, {}

    def __hash__(self):  # by which the operation is found in tables of PyTorch's
        return hash(self.whole)

    def __call__(self, text, name, how, tensors, numbers, mask, last):
        if watched() or in_functorch() or in_trace() or forward_ad._current_level >= 0:
            return self.whole(text, name, how, tensors, numbers, mask, last)
        if profiler._is_profiler_enabled:
            with torch.profiler.record_function("epilog::" + name):
                return self.carry_out(text, name, how, tensors, numbers, mask, last)
        return self.carry_out(text, name, how, tensors, numbers, mask, last)

    def carry_out(self, text, name, how, tensors, numbers, mask, last):
        """By the function that is known, or the long way, which may make it known."""
        function = self.known.get((text, name, how))
        args = merged(tensors, numbers, mask) if mask else tensors
        outs = function(*args) if function is not None else None
        if outs is None or outs is False:
            outs, entry = self.whole(text, name, how, tensors, numbers, mask, last), self.entry(text, name, how, args)
            if entry is not None:
                self.known[text, name, how] = entry.call
            return outs
        return outs if type(outs) is tuple else (outs,)


for overload, entry in (torch.ops.epilog.run.default, entry_of_run), (torch.ops.epilog.run_saving.default, entry_of_saving):
    overload._op = Short(overload, entry)

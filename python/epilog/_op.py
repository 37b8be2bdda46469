"""epilog.op: a text as an operation on tensors."""
import math
import sys

import torch

from ._library import EpilogValueError, one_line, program
from ._run import (WHOLE, Plan, Tensor, compiles_long, differentiable, fake, forward_ad, has_gradients, make_ahead, output_shapes, recipe,
                   refuse_kinds, refuse_tangents, refuse_transforms, run_into, scaled, split, wanted_names)

PLAIN = frozenset((Tensor, torch.nn.Parameter, float, int))
is_compiling, autocast = torch.compiler.is_compiling, torch._C._is_any_autocast_enabled
watched, in_functorch = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
in_trace = torch._C._get_tracing_state  # of torch.jit.trace, or None
profiler = torch.autograd.profiler


class Op:
    """A program of a text, callable on tensors. Inputs without axes are numbers, or tensors of one element."""

    def __init__(self, text, name=None, twice=False, into=None, keep=(), rows=None, memory=0, dims=None):
        dims = tuple((d, int(s)) for d, s in (dims or {}).items())
        prog = program(text, name, None if rows is None else tuple(rows), memory, dims)
        for d, s in dims:
            if prog.given.get(d) != s or s < 1:
                raise EpilogValueError(f"{prog.name}: dims gives {d} = {s}, but it is for sizes, 1 or more, of axes that only outputs have and that are not renamed")
        if any(d not in prog.dims for d in prog.rows):
            raise EpilogValueError(f"{prog.name}: rows names {', '.join(prog.rows)}, but the axes are {', '.join(prog.dims)}")
        self.text, self.name, self.twice, self.program = text, prog.name, twice, prog
        self.inputs = [(t.name, t.rank, t.type) for t in prog.inputs]
        self.names = [t.name for t in prog.inputs]
        self.keep = tuple(self.names) if keep is True else tuple(keep)
        if any(n not in self.names for n in self.keep):
            raise EpilogValueError(f"{self.name}: keep names {', '.join(self.keep)}, but the inputs are {', '.join(self.names)}")
        self.open = [t.type is None and t.rank > 0 and t.name not in self.keep for t in prog.inputs]  # what autocast casts
        self.count, self.results = len(prog.inputs), len(prog.outputs)
        self.has_gradients = has_gradients(prog)
        self.direct = self.not_yet
        self.into = self.stored_over(into or {})
        self.__name__ = self.name
        self.__doc__, self.line = text, one_line(prog)

    # A copy of a module has the same operations, and a file of one has their texts.
    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return op, (self.text, self.name, self.twice, {self.program.outputs[o].name: self.names[i] for o, i in self.into}, self.keep,
                    tuple(self.program.rows), self.program.memory, dict(self.program.told))

    def __repr__(self):
        return f"epilog.op({self.name}({', '.join(map(str, self.program.inputs))}))"

    def stored_over(self, into):
        """(output, input) by number for each pair of names, once it is sure that both have the same form."""
        prog, pairs = self.program, []
        for out, given in into.items():
            found = [t for t in prog.outputs if t.name == out], [t for t in prog.inputs if t.name == given]
            if not all(found):
                raise EpilogValueError(f"{self.name}: into stores {out} over {given}, but there is no {'input ' + given if found[0] else 'output ' + out}")
            (o,), (i,) = found
            if o.axes != i.axes or not o.axes or o.type not in (None, i.type):
                raise EpilogValueError(f"{self.name}: {o} cannot be stored over {i}: both need the same axes and type")
            pairs.append((prog.outputs.index(o), prog.inputs.index(i)))
        if len({i for _, i in pairs}) != len(pairs):
            raise EpilogValueError(f"{self.name}: into stores two results over one input")
        return tuple(pairs)

    def bind(self, args, kwargs):
        """Arguments by name in their places."""
        if len(args) + len(kwargs) != self.count or any(k not in self.names[len(args):] for k in kwargs):
            raise TypeError(f"{self.name} takes {self.count} inputs ({', '.join(self.names)}), but was given {len(args)}"
                            + (f" and {', '.join(kwargs)}" if kwargs else ""))
        return args + tuple(kwargs[name] for name in self.names[len(args):])

    def numbers_of(self, args):
        """The arguments, with tensors of one element for inputs without axes as such without axes."""
        return [a.reshape(()) if t.rank == 0 and isinstance(a, Tensor) and a.dim() and a.numel() == 1 else a
                for t, a in zip(self.program.inputs, args)]

    def prepared(self, args):
        """What PyTorch's habits ask for: numbers for scalars on the CPU, numbers in tensors of one element, autocast."""
        args = self.numbers_of(args)
        first = None
        for a in args:
            if isinstance(a, Tensor) and a.dim():
                first = a
                break
        for i, (name, rank, kind) in enumerate(self.inputs):
            a = args[i]
            if rank == 0 and isinstance(a, Tensor) and first is not None and a.device != first.device and not a.requires_grad:
                args[i] = a.item()
        kind = first.device.type if first is not None else "cpu"
        if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
            to = torch.get_autocast_dtype(kind)
            args = [a.to(to) if is_open and isinstance(a, Tensor) and a.dtype == torch.float32 else a
                    for a, is_open in zip(args, self.open)]
        return args

    def __call__(self, *args, **kwargs):
        if self.into:
            return self.call_into(args, kwargs)
        if not (is_compiling() or watched() or in_functorch() or in_trace() or autocast() or kwargs or profiler._is_profiler_enabled
                or forward_ad._current_level >= 0):
            outs = self.direct(*args)
            if outs is not None and outs is not False:
                return outs
            if outs is False:  # a tensor wants a gradient
                outs = differentiable(self.program, args, twice=self.twice)
                return outs[0] if self.results == 1 else outs
        return self.call_long(args, kwargs)

    def call_into(self, args, kwargs):
        """With results stored over inputs. What is returned are all results: of those the tensors that were given."""
        if kwargs or len(args) != self.count:
            args = self.bind(args, kwargs)
        refuse_kinds(self.program, args)
        args = self.numbers_of(args)
        if forward_ad._current_level >= 0:
            refuse_tangents(self.program, args)
        if in_functorch() and not is_compiling():
            refuse_transforms(self.program, args)
        if not is_compiling() and in_trace():  # which leaves out what has no result, and sees no writing in lists
            raise NotImplementedError(f"{self.name}: torch.jit.trace does not support results that are stored over inputs")
        if is_compiling() or watched():
            inputs, outputs, over = [i for _, i in self.into], [o for o, _ in self.into], dict(self.into)
            tensors = [a for i, a in enumerate(args) if isinstance(a, Tensor) and i not in inputs]
            numbers, mask = split(args)[1:]
            made = fake(self.program, args, None)
            places = [t for o, t in enumerate(made) if o not in over]
            torch.ops.epilog.run_into(self.line, self.name, [args[i] for i in inputs], inputs, outputs, places, tensors, numbers, mask)
            outs = [args[over[o]] if o in over else t for o, t in enumerate(made)]
        else:
            outs = run_into(self.program, args, self.into)
        return outs[0] if self.results == 1 else tuple(outs)

    def make_ahead(self, *args):
        """Begins with the kernels of a call that is to come, and of its backward, where compiling takes long. Of tensors there need be no
        more than sizes, types and whether they want gradients."""
        args = self.prepared(args)
        if not any([isinstance(a, Tensor) and compiles_long(a.device) for a in args]):
            return
        wrt = wanted_names(self.program, args) if torch.is_grad_enabled() else ()
        made = recipe(self.program, wrt, args) if wrt else None
        prog, types = (made.forward, made.plain_types) if made else (self.program, None)
        if made:
            made.make_ahead(args, types)
        make_ahead(prog, args, types)

    def kept(self, sizes, dtype):
        """Bytes that a call keeps for its backward, with its first input, where all inputs of this type want gradients and those of integers,
        numbers and tables do not. sizes: of its axes, by name."""
        args = [torch.empty([scaled(sizes, *a) for a in t.axes], dtype=dtype if t.type is None else torch.int32, device="meta",
                            requires_grad=t.type is None and not t.name.endswith("_t")) if t.rank else 1.0 for t in self.program.inputs]
        made = recipe(self.program, wanted_names(self.program, args), args)
        outs = output_shapes(made.forward, args, made.plain_types)
        return sum([math.prod(outs[i][0]) * outs[i][1].itemsize for i in made.kept_outputs]) + args[0].numel() * dtype.itemsize

    def not_yet(self, *args):
        """What stands in for the function in C until there is a plan, and for good where there is none."""
        found = self.program.direct.get(None)
        if found is not None:
            self.direct = found.call
            return self.direct(*args)

    def call_long(self, args, kwargs):
        """A call with something out of the ordinary: new sizes, a tracer, a tensor of another class, autocast, a mistake."""
        if kwargs or len(args) != self.count:
            args = self.bind(args, kwargs)
        for a in args:
            if not isinstance(a, (Tensor, bool, int, float)) and (not hasattr(a, "__float__") or getattr(a, "ndim", 0)):
                raise TypeError(f"{self.name} was given a {type(a).__name__}: inputs are tensors, or numbers if they have no axes")
            if type(a).__name__ == "DTensor":
                raise TypeError(f"{self.name} was given a DTensor: pass the local tensor of this process, to_local()")
        refuse_kinds(self.program, args)
        if forward_ad._current_level >= 0:
            refuse_tangents(self.program, args)
        if in_functorch() and not is_compiling():
            refuse_transforms(self.program, args)
        args = self.prepared(args)
        traced = is_compiling() or watched() or in_functorch() or in_trace() or any(type(a) not in PLAIN for a in args)
        if traced:
            outs = self.traced(args)
        elif profiler._is_profiler_enabled:
            with torch.profiler.record_function("epilog::" + self.name):
                outs = differentiable(self.program, args, twice=self.twice)
        else:
            outs = differentiable(self.program, args, twice=self.twice)
        return outs[0] if self.results == 1 else tuple(outs)

    def traced(self, args):
        """By way of the dispatcher, for torch.compile and other tracers."""
        tensors, numbers, mask, wrt = [], [], 0, []
        for i, a in enumerate(args):
            if isinstance(a, Tensor):
                tensors.append(a)
                if a.requires_grad and self.has_gradients:
                    wrt.append(self.names[i])
            else:
                numbers.append(float(a))
                mask |= 1 << i
        if wrt and torch.is_grad_enabled() and (is_compiling() or not in_trace()):  # a trace serves whatever wants a gradient later
            return torch.ops.epilog.run_saving(self.line, self.name, ",".join(wrt), tensors, numbers, mask,
                                               self.twice)[:self.results]
        return torch.ops.epilog.run(self.line, self.name, "", tensors, numbers, mask, None)

    def show(self, *args, **kwargs):
        """The plan for these tensors, in words: which kernels, and what each does on its tile."""
        args = self.prepared(self.bind(args, kwargs))
        plan = Plan(self.program, args, None, open_rows=False)
        sizes = ", ".join(f"{name} = {size}" for name, size in plan.sizes.items())
        return f"{self.text.strip()}\n\n{sizes}, on {plan.device}\n{plan.kernel.describe().rstrip()}\n"

    def gradient(self, *wrt):
        """The texts of the derived forward and backward, by the inputs named, or all that can have a gradient."""
        wrt = wrt or tuple(n for n, _, kind in self.inputs if kind not in WHOLE)
        return "\n".join(p.text for p in self.program.grad(wrt, True))


def op(text, name=None, twice=False, into=None, keep=(), rows=None, memory=0, dims=None):
    """The program of a text as an operation. Without a name it is the last of the text that no other names as its gradient; the others
    can be called by it. The text is the programs themselves, not the name of a file: of one it is open(path).read().

    twice: keep all inputs for the backward, so that gradients of gradients can always be had.
    into: results, by name, and the inputs that they are stored over: {"w1": "w"} makes w the new w, as an optimizer wants.
    keep: inputs, by name, that autocast leaves as they are, as it does a residual or what is normed; True: all of them.
    rows: axes, by name, whose sizes are open: one kernel serves all of them; () for none. Without it those of the first input but the last, all of one of integers.
    memory: bytes that the workspace of forward or backward may take, or 0 for any number. What is saved between them is no part of it,
        but less is: rows that the forward stores for a product are made again. In the text again(x) says of a value that it is not to
        be saved.
    dims: sizes, by name, of axes that outputs alone have: {"M": 3}. As well the text can say so: y[N,M=3].
    """
    made = Op(text, name, twice, into, keep, rows, memory, dims)
    made.program.written |= not sys._getframe(1).f_globals.get("__name__", "").startswith(__package__ + ".")
    return made

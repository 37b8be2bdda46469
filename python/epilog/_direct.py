"""Programs as functions in C, which dispatch.c carries out: nothing of Python is in their way.

From PyTorch 2.10 on they are functions of Python; with 2.9, operations of the dispatcher. Where neither can be had,
direct() returns None, and everything goes the long way by ctypes; EPILOG_DIRECT=off or =dispatcher asks for less.
"""
import ctypes as c
import os
import threading

import torch

from ._library import HERE, library

P, I64, I32, F32 = c.c_void_p, c.c_int64, c.c_int32, 0  # the last of epi_dtype
MODE = os.environ.get("EPILOG_DIRECT", "")
lock, opened, forms, fragments = threading.RLock(), [], {}, []
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)  # no child is born while another thread has it


class File:
    """dispatch.c as it was built. functions: whether it can make functions of Python."""

    def __init__(self, path):
        lib = library()
        self.so, self.functions = c.PyDLL(path), False
        define = {"open": (c.c_char_p, P, P), "python": (c.c_char_p, P, *[c.py_object] * 4), "function": (c.py_object, c.py_object),
                  "define": (c.c_int, c.c_char_p, c.c_char_p), "entry": (I64, c.c_int, c.c_int, c.c_int, P),
                  "plan": (P, I64, P, P, c.c_size_t, c.c_int, c.c_int, c.c_int, c.c_int, P, P, P, c.c_int), "forget": (c.c_int, P)}
        for name, (result, *arguments) in define.items():
            function = getattr(self.so, "epi_torch_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.missing = self.open(c.cast(lib.epi_kernel_call, P), c.cast(lib.epi_kernel_workspace_at, P))
        exchange = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if self.missing is None and exchange is not None and MODE != "dispatcher":
            pointer = c.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = P, (c.py_object, c.c_char_p)
            table = pointer(exchange, b"dlpack_exchange_api")
            self.functions = self.python(table, None, False, torch.Tensor, torch.nn.Parameter) is None


def opened_file():
    """The file, or None where it is not there or this PyTorch lacks what it needs."""
    if not opened:
        path = os.path.join(os.path.dirname(os.path.abspath(library().path)), "libepilog_torch.so")
        found = File(path) if os.path.exists(path) and MODE != "off" else None
        opened.append(found if found and found.missing is None else None)
    return opened[0]


def form(file, numbers, outputs):
    """The operation for arguments of which those at `numbers` are numbers; None where PyTorch does not take it."""
    letters = "".join("n" if n else "t" for n in numbers)
    name = f"_call_{letters}_{outputs}"
    if name not in forms:
        given = ", ".join(["int entry"] + [f"{'float' if n else 'Tensor'} a{i}" for i, n in enumerate(numbers)])
        results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
        forms[name] = None
        if file.define(f"{name}({given}) -> {results}".encode(), name.encode()) == 0:
            # autograd stands around it, in Python: there is nothing for the dispatcher to do about gradients
            fragments.append(torch.library.Library("epilog", "IMPL"))
            for key in ("AutogradCPU", "AutogradCUDA"):
                fragments[-1].impl(name, torch.library.fallthrough_kernel, key)
            forms[name] = getattr(torch.ops.epilog, name).default._op
    return forms[name]


class Direct:
    """An entry of dispatch.c: a program whose inputs without axes are numbers, with results of given types."""

    def __init__(self, prog, file, number, call):
        self.prog, self.file, self.number, self.call = prog, file, number, call
        self.known = {}  # the plan in C, or None where there was no room, by the kernel

    def add(self, plan):
        """From now on tensors that the plan is for go to its kernel. Under the lock, and only while the plan is kept."""
        kernel = plan.kernel
        if kernel in self.known:
            return
        prog, order = self.prog, {d: i for i, d in enumerate(self.prog.dims)}
        sizes = (I64 * max(1, len(order)))(*[kernel.sizes[d] for d in prog.dims])
        types = (I32 * len(prog.tensors))(*plan.types)
        rows = (I32 * 4)(*[order[d] for d in kernel.open])
        beside = plan.beside.kernel if plan.beside else None
        also = beside.handle if beside and beside.open == kernel.open else None
        self.known[kernel] = self.file.plan(self.number, kernel.handle, also, plan.space, plan.cuda, plan.index if plan.cuda else 0, plan.threads,
                                            plan.many, sizes, types, rows, len(kernel.open))

    def forget(self, kernel):
        """The other way. False: it was used since this was last asked, and stays."""
        found = self.known.get(kernel)
        if found is not None and not self.file.forget(found):
            return False
        self.known.pop(kernel, None)
        return True


def direct(prog, types):
    """The entry of a program for results of these types, or None."""
    file = opened_file()
    if file is None or prog.missing or prog.tied or prog.given or not any(t.rank for t in prog.inputs) or not prog.outputs:
        return None
    with lock:
        if types not in prog.direct:
            prog.direct[types] = entry(file, prog)
    return prog.direct[types]


def entry(file, prog):
    numbers, order = [t.rank == 0 for t in prog.inputs], {d: i for i, d in enumerate(prog.dims)}
    told = []
    for i, t in enumerate(prog.tensors):
        told += [t.rank, -1 if i >= len(numbers) or not numbers[i] else F32 if t.type is None else t.type]
        told += [n for dim, shift in t.axes for n in (order[dim], shift)]
    operation = None if file.functions else form(file, numbers, len(prog.outputs))
    if not file.functions and operation is None:
        return None
    number = file.entry(len(prog.inputs), len(prog.outputs), len(order), (I64 * len(told))(*told))
    if number < 0:
        return None
    if file.functions:
        return Direct(prog, file, number, file.function(number))
    return Direct(prog, file, number, checked(operation, number, numbers))


def checked(operation, number, numbers):
    """An operation of the dispatcher, called as a function in C is."""
    own = frozenset((torch.Tensor, torch.nn.Parameter))

    def call(*args):
        if len(args) != len(numbers):
            return None
        wanted = False
        for a, is_number in zip(args, numbers):
            if is_number:
                if type(a) not in (float, int):
                    return None
            elif type(a) not in own or not (a.is_cpu or a.is_cuda):
                return None
            else:
                wanted = wanted or a.requires_grad
        if wanted and torch.is_grad_enabled():
            return False
        outs = operation(number, *args)
        return None if outs is None or type(outs) is not torch.Tensor and outs[0] is None else outs
    return call

"""Programs on tensors: kernels by sizes and types, gradients by the derived programs, and PyTorch's dispatcher.

run() carries a program out. differentiable() does so under autograd: the forward saves what the derived backward
wants, and only gradients that someone asked for are in that backward. Under torch.compile and other tracers the
same two go through the dispatcher as epilog::run and epilog::run_saving, whose arguments are the texts themselves.
"""
import collections
import ctypes as c
import os
import re
import threading
import warnings

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from ._direct import direct, lock
from ._library import EpilogError, EpilogValueError, library, narrowest, one_line, program

Tensor = torch.Tensor
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int32: 3, torch.float64: 4, torch.int64: 5,
         torch.float8_e4m3fn: 6, torch.float8_e5m2: 7, torch.int8: 8, torch.uint8: 9}
DTYPES = {number: dtype for dtype, number in TYPES.items()}
NAMES = {0: "f32", 1: "bf16", 2: "f16", 3: "i32", 4: "f64", 5: "i64", 6: "e4m3", 7: "e5m2", 8: "i8", 9: "u8"}
F32, BF16, F16, I32, I64, NARROW = 0, 1, 2, 3, 5, -2
BYTES = torch.float8_e4m3fn, torch.float8_e5m2
WHOLE = I32, I64, 8, 9  # integers: nothing is derived by them
MORE_DIGITS = {F32: (), BF16: (F32, F16), F16: (F32,)}  # types of open tensors that have more than the storage type
MOST_PLANS = max(1, int(os.environ.get("EPILOG_PLANS", 2048)))
kept = collections.OrderedDict()  # plans of the CPU, the one that was not used for longest first: where each is found
being_made = {}  # what ends when a plan is there that some thread makes: by program and key
os.register_at_fork(after_in_child=being_made.clear)  # a child has no such threads
warned = set()
profiler = torch.autograd.profiler


def place(prog, name):
    """ "text:line:column: " of a tensor's declaration, and the line with a caret; two empty texts where it is not found."""
    head = re.search(rf"\b{prog.name}\s*\(", prog.text)
    found = head and re.compile(rf"\b{re.escape(name)}\b").search(prog.text, head.end())
    if not found:
        return "", ""
    start = prog.text.rfind("\n", 0, found.start()) + 1
    line = prog.text[start:].split("\n", 1)[0]
    at = found.start() - start
    return f"text:{prog.text.count(chr(10), 0, start) + 1}:{at + 1}: ", f"\n  {line}\n  {' ' * at}^"


def refuse(prog, info, message):
    where, line = place(prog, info.name)
    raise EpilogValueError(f"{where}{prog.name}: {message}{line}")


shape_text = lambda shape: "[" + ", ".join(str(s) for s in shape) + "]"


def size_of(prog, args, dim):
    i, axis, shift = prog.sources[dim]
    size = args[i].shape[axis]
    return size if shift == 0 else size >> shift if shift > 0 else size << -shift


def scaled(sizes, dim, shift):
    """The size of an axis: of its dim, times a power of two."""
    return sizes[dim] if shift == 0 else sizes[dim] << shift if shift > 0 else sizes[dim] >> -shift


def sizes_of(prog, args, told=()):
    """The size of each dim from the tensors, or as it was told; symbolic ones are fine."""
    for info, a in zip(prog.inputs, args):
        if isinstance(a, Tensor) and a.dim() != info.rank:
            more = f"; merge the first ones with flatten(0, {a.dim() - info.rank}), or declare them in the program" if a.dim() > info.rank > 0 else ""
            refuse(prog, info, f"{info} has {info.rank} axes, but the tensor given for it has sizes {shape_text(a.shape)}{more}")
    if len(told) != len(prog.missing):
        raise EpilogValueError(f"{prog.name}: the size of {prog.missing[0]} cannot be read from an input: no input has that axis; give it with epilog.op(text, dims={{\"{prog.missing[0]}\": ...}})")
    sizes = {**prog.given, **dict(zip(prog.missing, told))}
    sizes.update((dim, size_of(prog, args, dim)) for dim in prog.sources)
    sizes = {dim: sizes[dim] for dim in prog.dims}
    for info, a in zip(prog.inputs, args):
        for axis, (dim, shift) in enumerate(info.axes):
            want = scaled(sizes, dim, shift)
            if a.shape[axis] != want:
                source, turned = prog.inputs[prog.sources[dim][0]], info.rank == 2 and a.shape[1 - axis] == want
                refuse(prog, info, f"{info} was given sizes {shape_text(a.shape)}: axis {axis} must be {want}, since "
                                   f"{source} has sizes {shape_text(args[prog.sources[dim][0]].shape)}{'; is it transposed?' if turned else ''}")
    return sizes


def types_of_open(prog, args):
    """epi_dtype of each input with axes whose type the text leaves open."""
    return [TYPES[a.dtype] for info, a in zip(prog.inputs, args)
            if info.type is None and info.rank and isinstance(a, Tensor) and a.dtype in TYPES and a.dtype.is_floating_point]


def output_types(prog, args, types):
    """epi_dtype of each output: what the text says, what the caller says, or that of the first open input with axes. NARROW: as
    values between kernels are stored."""
    given = types or [-1] * len(prog.outputs)
    open_types = types_of_open(prog, args) or [F32]
    default = {-1: open_types[0], NARROW: narrowest(open_types)}
    return [t.type if t.type is not None else g if g >= 0 else default[g] if t.rank else F32 for t, g in zip(prog.outputs, given)]


def output_shapes(prog, args, types, told=()):
    """(shape, dtype) of each output."""
    sizes = sizes_of(prog, args, told)
    return [([scaled(sizes, *a) for a in t.axes], DTYPES[k]) for t, k in zip(prog.outputs, output_types(prog, args, types))]


class Frame:
    """The memory of one call: pointers, strides, numbers. A plan has as many as calls went on at once."""

    def __init__(self, lib, count, ranks):
        self.pointers = (c.c_size_t * (2 * count))()  # epi_tensor: data, strides
        self.strides = [(c.c_int64 * max(1, r))() for r in ranks]
        self.addresses = [c.addressof(s) for s in self.strides]
        self.numbers = (c.c_double * count)()
        self.error = lib.Error()
        self.call = lib.Call(size=c.sizeof(lib.Call), tensors=c.addressof(self.pointers), count=count,
                             numbers=c.addressof(self.numbers))
        self.call_at, self.error_at = c.byref(self.call), c.byref(self.error)


def warn_slow(prog, kernel):
    """Says once of a program what is slow about it, and what to write instead."""
    slow = kernel.warnings() if (prog.text, "slow") not in warned else []
    if slow:
        warned.add((prog.text, "slow"))
        sizes = ", ".join(f"{name} = {size}" for name, size in kernel.sizes.items())
        warnings.warn(f"{prog.name} is slow with {sizes} (see docs/speed.md): " + "\n".join(slow), stacklevel=2)


class Plan:
    """A kernel for tensors of given sizes, types and device, and all that a call of it needs. A draft for a GPU can be described, not run."""

    def __init__(self, prog, args, types, told=(), open_rows=True, draft=False):
        lib = library()
        if lib.Tensor.data.offset or lib.Tensor.strides.offset != 8 or c.sizeof(lib.Tensor) != 16:
            raise EpilogError("epi_tensor is not two pointers")
        tensors = [(info, a) for info, a in zip(prog.inputs, args) if isinstance(a, Tensor)]
        self.device = tensors[0][1].device if tensors else torch.device("cpu")
        for info, a in tensors:
            if a.device != self.device:
                refuse(prog, info, f"{info} is on {a.device} and {tensors[0][0]} on {self.device}: they must be on one device")
        if self.device.type not in ("cpu", "cuda"):
            refuse(prog, tensors[0][0], f"{tensors[0][0]} is on {self.device}: Epilog runs on cpu and cuda")
        self.cuda = self.device.type == "cuda"
        self.index = self.device.index if self.cuda else -1
        for info, a in zip(prog.inputs, args):
            if info.rank and not isinstance(a, Tensor):
                refuse(prog, info, f"{info} needs a tensor, but was given a {type(a).__name__}")
        kinds = []
        for i, (info, a) in enumerate(zip(prog.inputs, args)):
            dtype = a.dtype if isinstance(a, Tensor) else DTYPES[info.type if info.type is not None else F32]
            if dtype not in TYPES or (TYPES[dtype] > F16 and info.type is None):
                refuse(prog, info, f"{info} was given {dtype}: Epilog takes float32, bfloat16 and float16; integers and 8-bit "
                                   "types only where the program declares them")
            integers = info.type in (I32, I64) and TYPES[dtype] in (I32, I64)  # either does for the other
            if info.type is not None and TYPES[dtype] != info.type and not integers:
                refuse(prog, info, f"{info} is declared as {NAMES[info.type]}, but was given {dtype}")
            kinds.append(TYPES[dtype])
        sizes = sizes_of(prog, args, told)
        outputs = output_types(prog, args, types)
        self.prog, self.sizes, self.types = prog, sizes, kinds + outputs
        device = lib.device(self.index) if self.cuda else 0
        if self.cuda and draft:  # texts for GPUs of this generation
            major, minor = torch.cuda.get_device_capability(self.index)
            device = -(10 * major + minor)
        self.threads = 0 if self.cuda else torch.get_num_threads()
        self.kernel = prog.compile(sizes, kinds + outputs, device, self.threads, open_rows)
        if prog.written and not draft:
            warn_slow(prog, self.kernel)
        self.outputs = [(tuple(scaled(sizes, *a) for a in t.axes), DTYPES[k]) for t, k in zip(prog.outputs, outputs)]
        self.space, self.opened = self.kernel.workspace(sizes)
        # A CUDA graph takes the program that leaves its inputs, and nothing can be compiled while it is captured: warming up compiles both.
        beside = prog.lasting if compiles_long(self.device) and not draft else None
        self.beside = beside and plan_for(beside, args, types, told)
        self.frames, self.lib = [], lib
        self.ranks = [t.rank for t in prog.inputs]
        self.many = self.cuda and torch.cuda.device_count() > 1

    def run(self, args, warn, into=()):
        """Tensors and numbers in, output tensors out. into: (output, input), for outputs that are stored over inputs, or (output,
        tensor), for those that have a place already."""
        if self.many and torch.cuda.current_device() != self.index:
            with torch.cuda.device(self.index):
                return self.start(args, warn, into)
        return self.start(args, warn, into)

    def start(self, args, warn, into):
        try:
            frame = self.frames.pop()
        except IndexError:
            frame = Frame(self.lib, len(self.prog.tensors), self.ranks)
            frame.call.workspace_bytes = self.space
            if self.kernel.open:
                frame.call.sizes, frame.call.size_count = c.addressof(self.opened), len(self.kernel.open)
        pointers, held = frame.pointers, None
        device = self.device
        space = torch.empty(self.space, dtype=torch.uint8, device=device)
        at = 0
        for i, a in enumerate(args):
            if isinstance(a, Tensor):
                if a.is_neg() or a._is_zerotensor():  # whose elements are not in memory as they are
                    a = a.clone()
                    held = (held, a)
                pointer, stride = a.data_ptr(), 0
                if not a.is_contiguous():
                    if self.cuda:
                        if warn:
                            self.warn(i, a)
                        a = a.contiguous()
                        held = (held, a)
                        pointer = a.data_ptr()
                    else:
                        frame.strides[i][:] = a.stride()
                        stride = frame.addresses[i]
                if self.cuda and pointer & 15:
                    a = a.clone(memory_format=torch.contiguous_format)
                    held = (held, a)
                    pointer = a.data_ptr()
                pointers[at] = pointer or space.data_ptr()  # a tensor without elements has no address
                pointers[at + 1] = stride
            else:
                pointers[at] = pointers[at + 1] = 0
                frame.numbers[i] = a
            at += 2
        outs = []
        over, later = dict(into), []
        for o, (shape, dtype) in enumerate(self.outputs):
            i = over.get(o)
            if isinstance(i, int) and pointers[2 * i] == args[i].data_ptr() and not args[i].is_neg() and self.kernel.in_place(o, i):
                outs.append(args[i])  # the kernel reads the tensor itself, no copy of it, and may write there
                pointers[at], pointers[at + 1] = pointers[2 * i], pointers[2 * i + 1]
            else:
                out = i if isinstance(i, Tensor) else torch.empty(shape, dtype=dtype, device=device)
                outs.append(out)
                pointers[at] = out.data_ptr() or space.data_ptr()
                pointers[at + 1] = 0
                if isinstance(i, int):
                    later.append((o, i))
            at += 2
        frame.call.workspace = space.data_ptr()
        if self.cuda:
            frame.call.stream = torch._C._cuda_getCurrentRawStream(self.index)
        status = self.lib.epi_kernel_call(self.kernel.handle, frame.call_at, frame.error_at)
        if status:
            self.lib.check(status, frame.error)
        self.frames.append(frame)
        for o, i in later:
            args[i].copy_(outs[o])
            outs[o] = args[i]
        return outs

    def warn(self, i, a):
        key = self.prog.text, i
        if key not in warned:
            warned.add(key)
            warnings.warn(f"{self.prog.name}: {self.prog.inputs[i]} is not contiguous (strides {tuple(a.stride())}): on a GPU it is "
                          "copied in every call", stacklevel=2)


def run(prog, args, types=None, warn=True, told=(), made=None):
    """Carries a program out; no gradients. args: a tensor, or a number, for each input. types: of the outputs.
    told: sizes of dims that no input has. made: the recipe whose forward it is, if the backward is to come."""
    found = prog.direct.get(types)
    if found is not None:
        outs = found.call(*args)
        if outs is False:  # a tensor could have a gradient: not from here
            with torch.no_grad():
                outs = found.call(*args)
        if outs is not None:
            return outs if type(outs) is tuple else (outs,)
    return run_long(prog, args, types, warn, told, made)


def run_long(prog, args, types, warn, told, made):
    """The same by ctypes, and the making of plans. On the meta device there is nothing to carry out."""
    refuse_kinds(prog, args)
    meta = [a.is_meta for a in args if isinstance(a, Tensor)]
    if meta and all(meta):
        return fake(prog, args, types, told)
    if made is not None:
        made.make_ahead(args, types)
    plan, entry = plan_for(prog, args, types, told), direct(prog, types)
    if entry is not None and plan.kernel not in entry.known:
        with lock:
            if plan.cuda or plan in kept:
                entry.add(plan)
    return plan.run(args, warn)


def run_into(prog, args, into, places=()):
    """Carries a program out with outputs stored over inputs: (output, input) in `into`. Where a kernel cannot do so, the result
    is copied there. places: (output, tensor), contiguous ones for other outputs."""
    where = dict(into)
    for o, i in into:
        info, a = prog.inputs[i], args[i]
        if isinstance(a, Tensor) and a.requires_grad and torch.is_grad_enabled():
            refuse(prog, info, f"{info} requires a gradient, but {prog.outputs[o]} would be stored over it: call it under torch.no_grad()")
        if isinstance(a, Tensor) and a.numel() > 1 and any(s > 1 and t == 0 for s, t in zip(a.shape, a.stride())):
            refuse(prog, info, f"{info} is an expanded tensor: {prog.outputs[o]} cannot be stored over it")
        for j, b in enumerate(args):
            if j != i and isinstance(b, Tensor) and isinstance(a, Tensor) and overlap(a, b):
                refuse(prog, info, f"{info} shares memory with {prog.inputs[j]}: {prog.outputs[o]} cannot be stored over it")
    types = tuple([TYPES.get(getattr(args[where[o]], "dtype", None), -1) if o in where else -1 for o in range(len(prog.outputs))])
    plan = plan_for(prog, args, types, ())
    for o, i in into:
        if plan.outputs[o][1] != args[i].dtype:
            refuse(prog, prog.inputs[i], f"{prog.inputs[i]} was given {args[i].dtype}, but {prog.outputs[o]}, which is stored over it, is "
                                         f"{NAMES[prog.outputs[o].type]}")
    with torch.no_grad():
        outs = plan.run(args, True, (*into, *places))
        for _, i in into:
            torch.autograd.graph.increment_version(args[i])
    return outs


def overlap(a, b):
    """Whether the ranges of memory meet in which the elements of both lie."""
    if a.device != b.device or not a.numel() or not b.numel():
        return False
    end = lambda t: t.data_ptr() + (sum((s - 1) * k for s, k in zip(t.shape, t.stride())) + 1) * t.element_size()
    return a.data_ptr() < end(b) and b.data_ptr() < end(a)


def plan_key(args, types, told):
    """What a plan is found by. How many threads a CPU has for it may change at any time."""
    key, threads = [types, told], 0
    for a in args:
        if isinstance(a, Tensor):
            key += a.shape, a.dtype, a.device
            threads = threads or (torch.get_num_threads() if a.is_cpu else 0)
        else:
            key.append(None)
    return (*key, threads)


def plan_for(prog, args, types, told):
    """The plan for these arguments. One that another thread makes is waited for."""
    key = plan_key(args, types, told)
    plan = prog.plans.get(key)
    while plan is None:
        making = begin(prog, key)
        if making is not None:
            making.wait()
            plan = prog.plans.get(key)
            continue
        try:
            plan = prog.plans.get(key) or plan_kept(prog, key, Plan(prog, args, types, told))
        finally:
            end(prog, key)
    return plan_kept(prog, key, plan)


def begin(prog, key):
    """None where the plan is now this thread's to make, up to end(); else what ends when another has made it, or could not."""
    with lock:
        making = being_made.get((prog, key))
        if making is None:
            being_made[prog, key] = threading.Event()
        return making


def end(prog, key):
    with lock:
        being_made.pop((prog, key)).set()


def plan_kept(prog, key, plan):
    """The plan with this key from now on."""
    if plan.cuda:  # of a GPU all stay: a CUDA graph may hold their kernels
        return prog.plans.setdefault(key, plan)
    with lock:
        plan = prog.plans.setdefault(key, plan)
        kept[plan] = prog, key
        kept.move_to_end(plan)
        forget_old_plans(plan)
    return plan


def compiles_long(device):
    """Is it worth while to begin with kernels before they are needed? CUDA's compiler takes seconds for each."""
    return device.type == "cuda"


def make_ahead(prog, args, types, told=()):
    """Begins with the plan for such arguments, in a thread of its own: compiling needs Python's lock no more than tensors' elements. What is
    wrong with them, if anything, the call itself will find and say."""
    key = plan_key(args, types, told)

    def make():
        try:
            plan_kept(prog, key, Plan(prog, args, types, told))
        except Exception:
            pass
        finally:
            end(prog, key)
    if key not in prog.plans and begin(prog, key) is None:
        threading.Thread(target=make, name="epilog, ahead").start()


def forget_old_plans(newest):
    """Takes out plans until there are no more than EPILOG_PLANS; a kernel goes with the last plan that has it. One that C has used since
    this last came by counts as used now, and so does the newest, which C could not use yet."""
    for _ in range(2 * len(kept)):
        if len(kept) <= MOST_PLANS:
            return
        plan, (prog, key) = kept.popitem(last=False)
        entry = prog.direct.get(key[0])
        if plan is not newest and (entry is None or entry.forget(plan.kernel)):
            del prog.plans[key]
        else:
            kept[plan] = prog, key


# ---- gradients ------------------------------------------------------------------------------------------


class Recipe:
    """How the gradients by some inputs are had: forward and backward, and where each of the backward's inputs is from."""

    def __init__(self, prog, wrt, types):
        self.prog, self.wrt = prog, wrt
        self.wanted = [next(i for i, t in enumerate(prog.inputs) if t.name == n) for n in wrt]
        self.results = [i for i, t in enumerate(prog.outputs) if t.type not in WHOLE]  # those that have a cotangent
        self.forward, self.backward = prog.grad(wrt, True, types)
        inputs = {t.name: i for i, t in enumerate(self.forward.inputs)}
        outputs = {t.name: i for i, t in enumerate(self.forward.outputs)}
        self.sources, cotangents = [], []
        for t in self.backward.inputs:
            if t.name in inputs:
                self.sources.append(("input", inputs[t.name]))
            elif t.name in outputs:
                self.sources.append(("output", outputs[t.name]))
            else:
                cotangents.append(len(self.sources))
                self.sources.append(None)
        if len(cotangents) != len(self.results):
            raise EpilogError(f"{prog.name}: the derived backward has {len(cotangents)} cotangents for {len(self.results)} results")
        for at, result in zip(cotangents, self.results):
            self.sources[at] = ("cotangent", result)
        self.count = len(prog.outputs)
        # the same backward where nobody will read again what was saved: it may write over that
        self.spent = [at for at, (kind, i) in enumerate(self.sources) if kind == "output" and i >= self.count]
        self.last = self.backward.spending([self.backward.inputs[at].name for at in self.spent])
        # what is saved of a row is a number or a few, and kept in f32, as between the parts of a program
        self.saved = tuple([F32 if all(dim in prog.rows for dim, _ in t.axes) else NARROW for t in self.forward.outputs[self.count:]])
        self.integers = [i for i, t in enumerate(prog.outputs) if i not in self.results]
        self.numbers = [i for i, t in enumerate(prog.inputs) if t.rank == 0]
        self.all_inputs = list(range(len(prog.inputs)))
        self.plain_types = self.forward_types(None)
        self.kept_inputs = [i for kind, i in self.sources if kind == "input"]
        self.kept_outputs = [i for kind, i in self.sources if kind == "output"]

    def make_ahead(self, args, types):
        """Begins with the backward's plan when a forward is carried out that has none yet: kernels of both are compiled side by side."""
        device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
        if not compiles_long(device) or plan_key(args, types, ()) in self.forward.plans:
            return
        outs = [blank(shape, dtype, device) for shape, dtype in output_shapes(self.forward, args, types)]
        wide = [blank(t.shape, torch.float32, device) if t.dtype in BYTES else t for t in outs]  # as widened() has them
        values = {"input": args, "output": outs, "cotangent": wide}
        told = tuple([size_of(self.forward, args, dim) for dim in self.backward.missing])
        make_ahead(self.last, [values[kind][i] for kind, i in self.sources], self.types(args), told)

    def whole(self):
        """The gradients as one program of all inputs: what can be derived again."""
        return self.prog.grad(self.wrt, False)[0]

    def forward_types(self, types):
        """Of the results, as they are asked for, and of what is saved."""
        asked = (*(types or (-1,) * self.count), *self.saved)
        return None if all(t == -1 for t in asked) else asked

    def types(self, args):
        """A gradient has its input's type, but where the text fixes another."""
        return tuple(TYPES[args[i].dtype] for i in self.wanted)


def types_to_declare(prog, args, types, wrt=()):
    """(name, epi_dtype) of open tensors that have more digits than values between kernels: what is made of them is not saved in fewer. And of
    vectors in `wrt`, whose gradients have their type then, and not f32, which would be converted behind each backward. One open tensor that is
    none tells the type of the others."""
    found = types_of_open(prog, args)
    narrow = narrowest(found)
    kinds = [TYPES.get(getattr(a, "dtype", None)) for a in args] + output_types(prog, args, types)
    tensors = [(t, k) for t, k in zip(prog.tensors, kinds) if t.type is None and t.rank]
    more = [(t.name, k) for t, k in tensors if k in MORE_DIGITS[narrow]]
    if not any([k in MORE_DIGITS[narrow] for k in found]):
        more = []
    inputs = [(t, k) for t, k in tensors if t in prog.inputs and k == narrow != F32]
    vectors = [(t.name, k) for t, k in inputs if t.rank == 1 and t.name in wrt]
    return tuple(more + (vectors if len(vectors) < len(inputs) else []))


def recipe(prog, wrt, args, types=None):
    """The recipe for gradients by inputs of these names, and tensors of these types."""
    told = types_to_declare(prog, args, types, wrt)
    found = prog.recipes.get((wrt, told))
    if found is None:
        found = prog.recipes[wrt, told] = Recipe(prog, wrt, told)
    return found


def blank(shape, dtype, device, wanted=False):
    """A tensor of these sizes for who reads no element of it: there is memory for one. wanted: it asks for a gradient."""
    return torch.empty((), dtype=dtype, device=device, requires_grad=wanted).expand(shape)


def zeros(shape, dtype, device):
    """The cotangent of a result that nobody used."""
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def widened(cotangent):
    """Autograd gives a cotangent the type of its result. Of 8 bits no program takes it."""
    return cotangent.float() if cotangent.dtype in BYTES else cotangent


class Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, made, types, twice, warn, *args):
        outs = run(made.forward, args, made.forward_types(types) if types else made.plain_types, warn, made=made)
        keep(ctx, made, args, outs, twice)
        if made.count == 1:
            return outs[0]
        ctx.set_materialize_grads(False)
        results = tuple(outs[:made.count])
        if made.integers:
            ctx.mark_non_differentiable(*[results[i] for i in made.integers])
        return results

    @staticmethod
    def backward(ctx, *grads):
        carry = differentiable if torch.is_grad_enabled() else run
        if profiler._is_profiler_enabled:
            with torch.profiler.record_function(f"epilog::{ctx.kept[0].prog.name}, backward"):
                return (None, None, None, None, *gradients(ctx, grads, carry))
        return (None, None, None, None, *gradients(ctx, grads, carry))


# Function.apply looks for functorch and for default arguments first; neither is here.
apply = super(torch.autograd.Function, Differentiable).apply


def keep(ctx, made, args, outs, twice):
    """Keeps for the backward what it reads; all inputs where the gradients are to be derived again."""
    inputs = made.all_inputs if twice else made.kept_inputs
    numbers = None
    if made.numbers:
        numbers = {i: args[i] for i in made.numbers if not isinstance(args[i], Tensor)}
        inputs = [i for i in inputs if i not in numbers]
    ctx.save_for_backward(*[args[i] for i in inputs], *[outs[i] for i in made.kept_outputs])
    ctx.spent = False  # has a backward written over it?
    ctx.kept = (made, inputs, numbers, [args[i].dtype for i in made.wanted],
                [(o.shape, o.dtype, o.device) for o in outs[:made.count]] if made.count > 1 else None,
                tuple([size_of(made.forward, args, dim) for dim in made.backward.missing]), saved_as_they_are(True) is None)


saved_as_they_are = torch._C._autograd._top_saved_tensors_default_hooks  # None, or what someone wants done with tensors that are saved
graph_stays = torch._C._autograd._get_current_graph_task_keep_graph  # asked in a backward: is it to be run again?


def gradients(ctx, grads, carry):
    """The gradient for each input of the program, None where nobody wants one."""
    made, inputs, numbers, dtypes, results, told, own = ctx.kept
    count = len(made.prog.inputs)
    if ctx.spent:  # where a hook failed behind it, autograd has the node as if it had not run
        raise EpilogError(f"{made.prog.name}: an earlier backward has overwritten the saved tensors; pass retain_graph=True "
                          "to that backward to keep them")
    if forward_ad._current_level >= 0:
        refuse_tangents(made.prog, [*grads, *ctx.saved_tensors])
    if all([g is None for g in grads]):
        return [None] * count
    kept = ctx.saved_tensors
    values = {("input", i): t for i, t in zip(inputs, kept)}
    if numbers:
        values.update({("input", i): a for i, a in numbers.items()})
    for i, t in zip(made.kept_outputs, kept[len(inputs):]):
        values["output", i] = t
    for i in made.results:
        values["cotangent", i] = widened(zeros(*results[i]) if grads[i] is None else grads[i])
    types = tuple([TYPES[t] for t in dtypes])
    if carry is run or carry is dispatch:
        # a backward that is captured may be replayed more often than its forward
        captured = any([v.is_cuda for v in values.values() if isinstance(v, Tensor)]) and torch.cuda.is_current_stream_capturing()
        once = not torch.compiler.is_compiling() and not graph_stays() and not captured
        last = ctx.spent = carry is run and own and once and made.last is not made.backward
        sources = [values[s] for s in made.sources]
        if last:  # whoever else has them may learn of it
            torch.autograd.graph.increment_version([sources[at] for at in made.spent])
        found = carry(made.last if last else made.backward, sources, types, False, told)
    else:  # derived again: by the program of all inputs, so that the second gradients reach them
        sources = [("input", i) for i in range(count)] + [("cotangent", i) for i in made.results]
        missing = [made.prog.inputs[i].name for kind, i in sources if (kind, i) not in values]
        if missing:
            raise EpilogError(f"{made.prog.name}: a second derivative needs {', '.join(missing)}, which the first does not save. "
                              "Create the operation with twice=True; a compiled or patched model has first derivatives only")
        found = carry(made.whole(), [values[s] for s in sources], types, False)
    result = [None] * count
    for i, g, dtype in zip(made.wanted, found, dtypes):
        result[i] = g if g.dtype == dtype else g.to(dtype)
    return result


def has_tangent(tensor):
    """Is it a dual tensor of forward mode, or does a transform of torch.func hold one in it?"""
    while forward_ad.unpack_dual(tensor).tangent is None:
        if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return True


@torch._disable_dynamo
def refuse_tangents(prog, args):
    """Derivatives are had backward alone: a tangent would be lost, and the derivative be 0 without a word. A graph does not show them: what
    is compiled comes out of it to here."""
    if any([isinstance(a, Tensor) and has_tangent(a) for a in args]):
        raise NotImplementedError(f"{prog.name}: forward-mode AD (torch.func.jvp, jacfwd, dual tensors) is not supported; "
                                  "use backward, torch.autograd.grad or torch.autograd.functional.jvp")


def refuse_transforms(prog, args):
    """A tensor of torch.func's transforms has no memory that a kernel could read."""
    if any([isinstance(a, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(a) for a in args]):
        raise NotImplementedError(f"{prog.name}: transforms of torch.func (grad, vmap, jacrev) are not supported; use backward or "
                                  "torch.autograd.grad, and an axis in the program instead of vmap")


def refuse_kinds(prog, args):
    """Tensors whose elements do not lie at strides from one address."""
    for info, a in zip(prog.inputs, args):
        kind, instead = kind_of(a) if isinstance(a, Tensor) else (None, None)
        if kind:
            refuse(prog, info, f"{info} is {kind}: {instead}")


def kind_of(tensor):
    """What a tensor is that no kernel can read, and what to give instead."""
    if type(tensor).__name__ == "MaskedTensor":
        return "a masked tensor", "to_tensor(0) gives its elements, with 0 where it is masked"
    if tensor.is_nested:
        return "a nested tensor", "to_padded_tensor(0) pads its parts to one length, unbind() gives them one by one"
    if tensor.layout is not torch.strided:
        return f"{'sparse' if 'sparse' in str(tensor.layout) else 'in a layout that Epilog does not support'} ({tensor.layout})", "to_dense() gives all of its elements"
    return None, None


def has_gradients(prog):
    """Integers have none: where all results are such, nothing is derived, whoever asks."""
    return any([t.type not in WHOLE for t in prog.outputs])


def wanted_names(prog, args):
    wanted = has_gradients(prog)
    return tuple([t.name for t, a in zip(prog.inputs, args) if wanted and isinstance(a, Tensor) and a.requires_grad])


def differentiable(prog, args, types=None, warn=True, twice=False):
    """Carries a program out, under autograd where a tensor wants a gradient."""
    if not torch.is_grad_enabled():
        return run(prog, args, types, warn)
    key = types, *[(a.requires_grad, a.dtype) if isinstance(a, Tensor) else None for a in args]
    made = prog.recipes.get(key)
    try:
        if made is None:
            wrt = wanted_names(prog, args)
            made = prog.recipes[key] = recipe(prog, wrt, args, types) if wrt else False
        if made is False:
            return run(prog, args, types, warn)
        outs = apply(made, types, twice, warn, *args)
        return outs if made.count > 1 else (outs,)
    except EpilogValueError:
        Plan(prog, args, types)  # what is wrong with the call is told by the text that the user wrote
        raise


# ---- the dispatcher -------------------------------------------------------------------------------------
# A list of tensors cannot have holes: bit i of `mask` says that input i is the next of the numbers.

registered = torch.library.Library("epilog", "DEF")
registered.define("run(str text, str name, str types, Tensor[] tensors, float[] numbers, int mask, SymInt[]? told) -> Tensor[]")
registered.define("run_into(str text, str name, Tensor(a!)[] written, int[] inputs, int[] outputs, Tensor(b!)[] places, Tensor[] tensors, "
                  "float[] numbers, int mask) -> ()")
registered.define("run_saving(str text, str name, str wrt, Tensor[] tensors, float[] numbers, int mask, bool twice) -> Tensor[]")


def merged(tensors, numbers, mask):
    """Tensors and numbers in the order of the inputs."""
    count, tensors, numbers = len(tensors) + len(numbers), iter(tensors), iter(numbers)
    return [next(numbers if mask >> i & 1 else tensors) for i in range(count)]


def split(args):
    """The other way: tensors, numbers, mask."""
    mask = sum(1 << i for i, a in enumerate(args) if not isinstance(a, Tensor))
    return [a for a in args if isinstance(a, Tensor)], [float(a) for a in args if not isinstance(a, Tensor)], mask


def dispatch(prog, args, types=None, warn=True, told=()):
    """run() by way of the dispatcher."""
    return torch.ops.epilog.run(one_line(prog), prog.name, ",".join(map(str, types or ())), *split(args), list(told) or None)


def types_told(types):
    """Types of results as a text has them, which is "" where nobody asks for others than it says."""
    return tuple([int(t) for t in types.split(",")]) if types else None


def run_kernel(text, name, types, tensors, numbers, mask, told):
    return run(program(text, name), merged(tensors, numbers, mask), types_told(types), told=tuple(told or ()))


def entry_of_run(text, name, types, args):
    """The function in C that epilog::run comes down to, where there is one."""
    return program(text, name).direct.get(types_told(types))


def entry_of_saving(text, name, wrt, args):
    """The same of epilog::run_saving: its forward for tensors of these types, of which no plan fits others."""
    made = recipe(program(text, name), tuple(wrt.split(",")), args)
    return made.forward.direct.get(made.plain_types)


def run_saving_kernel(text, name, wrt, tensors, numbers, mask, twice):
    args = merged(tensors, numbers, mask)
    made = recipe(program(text, name), tuple(wrt.split(",")), args)
    return run(made.forward, args, made.plain_types, made=made)


def placed(written, inputs, tensors, numbers, mask):
    """merged() where tensors that are stored over come apart, with their places among the inputs."""
    rest, args = iter(tensors), []
    written = dict(zip(inputs, written))
    numbers = iter(numbers)
    for i in range(len(written) + len(tensors) + bin(mask).count("1")):
        args.append(next(numbers) if mask >> i & 1 else written[i] if i in written else next(rest))
    return args


def run_into_kernel(text, name, written, inputs, outputs, places, tensors, numbers, mask):
    prog = program(text, name)
    others = [o for o in range(len(prog.outputs)) if o not in outputs]
    run_into(prog, placed(written, inputs, tensors, numbers, mask), tuple(zip(outputs, inputs)), tuple(zip(others, places)))


def run_into_fake(text, name, written, inputs, outputs, places, tensors, numbers, mask):
    sizes_of(program(text, name), placed(written, inputs, tensors, numbers, mask))


def fake(prog, args, types, told=()):
    device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in output_shapes(prog, args, types, told)]


def run_fake(text, name, types, tensors, numbers, mask, told):
    return fake(program(text, name), merged(tensors, numbers, mask), types_told(types), told or ())


def run_saving_fake(text, name, wrt, tensors, numbers, mask, twice):
    args = merged(tensors, numbers, mask)
    made = recipe(program(text, name), tuple(wrt.split(",")), args)
    return fake(made.forward, args, made.plain_types)


def hole(values):
    """The gradient of an argument that is a list of numbers: an empty list counts as one of tensors."""
    return None if values else []


def run_context(ctx, inputs, output):
    text, name, types, tensors, numbers, mask, told = inputs
    ctx.prog, ctx.mask = program(text, name), mask
    ctx.numbers, ctx.told = numbers, told or ()
    ctx.results = [(o.shape, o.dtype) for o in output]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def run_backward(ctx, grads):
    """epilog::run keeps its inputs and nothing else, and computes the rest again; so it can be derived any number of times."""
    args = merged(ctx.saved_tensors, ctx.numbers, ctx.mask)
    wrt = wanted_names(ctx.prog, args)
    result = [None] * len(args)
    if wrt and any(g is not None for g in grads):
        made = recipe(ctx.prog, wrt, args)
        cotangents = [widened(zeros(*ctx.results[i], args[0].device) if grads[i] is None else grads[i]) for i in made.results]
        found = dispatch(made.whole(), [*args, *cotangents], made.types(args), told=ctx.told)
        for i, g in zip(made.wanted, found):
            result[i] = g if g.dtype == args[i].dtype else g.to(args[i].dtype)
    return None, None, None, [g for g, a in zip(result, args) if isinstance(a, Tensor)], hole(ctx.numbers), None, None


def run_saving_context(ctx, inputs, output):
    text, name, wrt, tensors, numbers, mask, twice = inputs
    args = merged(tensors, numbers, mask)
    made = recipe(program(text, name), tuple(wrt.split(",")), args)
    ctx.set_materialize_grads(False)
    keep(ctx, made, args, output, twice)


def run_saving_backward(ctx, grads):
    made, numbers = ctx.kept[0], ctx.kept[2] or {}
    found = gradients(ctx, grads[:made.count], (lambda *a: dispatch(*a)) if torch.is_grad_enabled() else dispatch)
    return None, None, None, [g for i, g in enumerate(found) if i not in numbers], hole(numbers), None, None


def flops(prog, args, types, told=()):
    """Of a run at these sizes: by a plan of the CPU's, which is quickly made for whatever device the tensors are on."""
    kinds = [TYPES[a.dtype] if isinstance(a, Tensor) else F32 if t.type is None else t.type for t, a in zip(prog.inputs, args)]
    kernel = prog.compile(sizes_of(prog, args, told), kinds + output_types(prog, args, types), 0, 1, open_rows=False)
    return int(kernel.info().flops)


def run_flops(text, name, types, tensors, numbers, mask, told, out_val=None):
    return flops(program(text, name), merged(tensors, numbers, mask), types_told(types), told or ())


def run_saving_flops(text, name, wrt, tensors, numbers, mask, twice, out_val=None):
    args = merged(tensors, numbers, mask)
    made = recipe(program(text, name), tuple(wrt.split(",")), args)
    return flops(made.forward, args, made.plain_types)


for op_name, kernel, fake_kernel, backward, context, count in (
        ("run", run_kernel, run_fake, run_backward, run_context, run_flops),
        ("run_saving", run_saving_kernel, run_saving_fake, run_saving_backward, run_saving_context, run_saving_flops)):
    register_flop_formula(getattr(torch.ops.epilog, op_name), get_raw=True)(count)
    registered.impl(op_name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"epilog::{op_name}", fake_kernel, lib=registered)
    torch.library.register_autograd(f"epilog::{op_name}", backward, setup_context=context, lib=registered)
def run_into_flops(text, name, written, inputs, outputs, places, tensors, numbers, mask, out_val=None):
    return flops(program(text, name), placed(written, inputs, tensors, numbers, mask), None)


register_flop_formula(torch.ops.epilog.run_into, get_raw=True)(run_into_flops)
registered.impl("run_into", run_into_kernel, "CompositeExplicitAutograd")
torch.library.register_fake("epilog::run_into", run_into_fake, lib=registered)

"""libepilog by ctypes: texts are parsed and derived here, and kernels compiled. Nothing of PyTorch.

The structures are not copied from epilog.h: the library describes them itself (epi_describe_abi).
"""
import ctypes as c
import glob
import json
import os
import re
import sys
import threading
import weakref

P, TEXT, INT, I64, SIZE = c.c_void_p, c.c_char_p, c.c_int, c.c_int64, c.c_size_t
INTEGERS = 3, 5  # of epi_dtype: i32 and i64
HERE = os.path.dirname(os.path.abspath(__file__))


class EpilogError(RuntimeError):
    """What the library, or a call of an operation, found wrong: what, and where in the text."""


class EpilogValueError(EpilogError, ValueError):
    """A text with a mistake, or tensors whose sizes or types do not fit it."""


class EpilogUnsupported(EpilogError):
    """Valid, but not on this device or in this way."""


class EpilogIndexError(EpilogError, IndexError):
    """An element of an index lies outside the axis it counts along."""


def find_library():
    """EPILOG_LIBRARY, then the one of the wheel, then the one that make left in the tree."""
    own = os.environ.get("EPILOG_LIBRARY")
    tree = os.path.join(HERE, "..", "..", "build", "libepilog.so")
    places = [own] if own else [os.path.join(HERE, "libepilog.so"), tree]
    for place in places:
        if os.path.exists(place):
            return place
    raise ImportError(f"libepilog.so was not found (looked for {', '.join(places)}): run make, or set EPILOG_LIBRARY")


def pip_nvrtc():
    """NVRTC where pip's nvidia packages put it (nvidia/cuda_nvrtc/lib for CUDA 12, nvidia/cu13/lib), or None: of several that for PyTorch's CUDA,
    whose driver is there, else the newest, and of equal ones the first on sys.path."""
    torch = sys.modules.get("torch")
    wanted = str(torch.version.cuda).split(".")[0] if torch else ""
    best = None
    for folder in sys.path:
        for path in glob.glob(os.path.join(glob.escape(folder), "nvidia", "*", "lib", "libnvrtc.so.1[2-9]")):
            major = path.rpartition(".")[2]
            rank = major == wanted, int(major)
            if best is None or rank > best[0]:
                best = rank, os.path.abspath(path)
    return best and best[1]


def find_nvrtc():
    """Tells the library of pip's NVRTC; without that it looks in LD_LIBRARY_PATH and the usual folders by itself."""
    found = None if "EPILOG_NVRTC" in os.environ else pip_nvrtc()
    if found:
        os.environ["EPILOG_NVRTC"] = found


KINDS = {"int": INT, "enum": INT, "i64": I64, "size": SIZE, "f64": c.c_double, "text": TEXT, "pointer": P}
ELEMENTS = {"chars": c.c_char, "bytes": c.c_ubyte, "i64s": I64,
            "axes": type("Axis", (c.Structure,), {"_fields_": [("dim", TEXT), ("shift", INT)]})}


def structure(name, told):
    """A ctypes structure that lies in memory as the library says; what it does not tell of is left as bytes."""
    fields, end = [], 0
    for f in told["fields"]:
        kind = KINDS.get(f["type"]) or ELEMENTS[f["type"]] * (f["size"] // c.sizeof(ELEMENTS[f["type"]]))
        start = -(-end // c.alignment(kind)) * c.alignment(kind)
        if start < f["offset"]:
            fields.append((f"untold_{end}", c.c_ubyte * (f["offset"] - end)))
        fields.append((f["name"], kind))
        end = f["offset"] + f["size"]
    if told["size"] > end:
        fields.append(("untold_end", c.c_ubyte * (told["size"] - end)))
    made = type(name, (c.Structure,), {"_fields_": fields})
    wrong = [f["name"] for f in told["fields"] if getattr(made, f["name"]).offset != f["offset"]]
    if wrong or c.sizeof(made) != told["size"]:
        raise ImportError(f"{name} has not the layout that the library has: {wrong}")
    return made


PROTOTYPES = {  # name: result, arguments
    "epi_version": (TEXT,), "epi_context_open": (INT, P, P), "epi_status_name": (TEXT, INT),
    "epi_error_format": (SIZE, P, TEXT, SIZE), "epi_describe_build": (SIZE, P, TEXT, SIZE),
    "epi_device_count": (INT, P), "epi_device_get_sized": (INT, P, INT, P, SIZE), "epi_device_why_no_gpu": (TEXT, P),
    "epi_module_parse": (INT, P, TEXT, SIZE, TEXT, P, P), "epi_module_free": (None, P),
    "epi_module_count": (INT, P), "epi_module_program": (P, P, INT), "epi_module_find": (P, P, TEXT),
    "epi_program_name": (TEXT, P), "epi_program_gradient": (TEXT, P), "epi_program_print": (SIZE, P, TEXT, SIZE),
    "epi_program_dim_count": (INT, P), "epi_program_dim": (TEXT, P, INT), "epi_program_dim_size": (I64, P, INT),
    "epi_program_renamed": (INT, P, INT, P, P, P),
    "epi_program_tensor_count": (INT, P), "epi_program_tensor": (INT, P, INT, P),
    "epi_program_grad": (INT, P, P, INT, P, P), "epi_program_grad_typed": (INT, P, P, INT, P, P, P),
    "epi_kernel_compile": (INT, P, P, P, P), "epi_kernel_free": (None, P),
    "epi_kernel_workspace": (SIZE, P), "epi_kernel_workspace_at": (INT, P, P, INT, P, P),
    "epi_kernel_tensor": (INT, P, INT, P), "epi_kernel_call": (INT, P, P, P), "epi_kernel_check": (INT, P, P, P, P),
    "epi_kernel_prepare_size": (SIZE, P),
    "epi_kernel_get_info_sized": (None, P, P, SIZE), "epi_kernel_describe": (SIZE, P, TEXT, SIZE), "epi_kernel_in_place": (INT, P, INT, INT),
    "epi_kernel_warnings": (SIZE, P, TEXT, SIZE),
    "epi_bundled_name": (TEXT, INT), "epi_bundled_text": (TEXT, INT),
}


def text_of(function, *arguments):
    """What a function of the library writes into a buffer."""
    size = function(*arguments, None, 0) + 1
    buffer = c.create_string_buffer(size)
    function(*arguments, buffer, size)
    return buffer.value.decode()


class Library:
    """The library, its structures by name (Error for epi_error), and the one context of the process."""

    def __init__(self):
        find_nvrtc()
        self.path = find_library()
        self.so = c.CDLL(os.path.abspath(self.path))
        told = os.stat(self.path)
        self.build = f"{told.st_size:x}.{told.st_mtime_ns:x}"
        self.so.epi_describe_abi.restype, self.so.epi_describe_abi.argtypes = SIZE, (TEXT, SIZE)
        abi = json.loads(text_of(self.so.epi_describe_abi))
        for name, told in abi["structs"].items():
            setattr(self, "".join(word.capitalize() for word in name.split("_")[1:]), structure(name, told))
        self.types = abi["types"]
        for name, (result, *arguments) in PROTOTYPES.items():
            function = getattr(self.so, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.context = P()
        err = self.Error()
        self.check(self.epi_context_open(c.byref(self.context), c.byref(err)), err)
        self.gpus = {}  # CUDA's number of a device: the context's
        for i in range(self.epi_device_count(self.context)):
            info = self.DeviceInfo()
            self.epi_device_get_sized(self.context, i, c.byref(info), c.sizeof(info))
            if info.is_gpu:
                self.gpus[info.ordinal] = i

    def check(self, status, err):
        if status == 0:
            return
        name = self.epi_status_name(status).decode().upper()
        message = text_of(self.epi_error_format, c.byref(err)).strip()
        if "INDEX" in name:
            raise EpilogIndexError(message)
        if "UNSUPPORTED" in name:
            if "NVRTC" in message and "not found" in message:
                message += "; pip install nvidia-cuda-nvrtc-cu12 brings it, as PyTorch for CUDA does"
            raise EpilogUnsupported(message)
        raise (EpilogValueError if err.line or "DIM" in name else EpilogError)(message)

    def device(self, ordinal):
        """The context's number of a GPU, by CUDA's."""
        if ordinal not in self.gpus:
            why = self.epi_device_why_no_gpu(self.context).decode() or f"it sees the GPUs {sorted(self.gpus)}"
            raise EpilogError(f"Epilog cannot use cuda:{ordinal}: {why}")
        return self.gpus[ordinal]


library_lock, library_made = threading.Lock(), []


def library():
    with library_lock:
        if not library_made:
            library_made.append(Library())
    return library_made[0]


class TensorInfo:
    """A tensor of a program, as the text declares it."""
    __slots__ = ("name", "is_output", "type", "axes", "rank")

    def __init__(self, told):
        self.name, self.is_output, self.rank = told.name.decode(), bool(told.is_output), told.rank
        self.type = told.type if told.has_type else None  # None: open
        self.axes = [(a.dim.decode(), a.shift) for a in told.axes[:told.rank]]

    def __str__(self):
        factor = lambda d, s: d if s == 0 else f"{1 << s}*{d}" if s > 0 else f"{d}/{1 << -s}"
        return self.name + (f"[{','.join(factor(*a) for a in self.axes)}]" if self.axes else "")


def renamed_axes(lib, handle):
    """(from, to, shift) of each rename of a program."""
    a, b, shift, found = TEXT(), TEXT(), INT(), []
    while lib.epi_program_renamed(handle, len(found), c.byref(a), c.byref(b), c.byref(shift)):
        found.append((a.value.decode(), b.value.decode(), shift.value))
    return found


class Program:
    """A checked program: its tensors and sizes, its derived programs, its kernels. A derived one has the row axes of the program
    that it is derived from; rows None: those of a text."""

    def __init__(self, text, name=None, rows=None, memory=0, dims=(), spent=(), file="text"):
        lib, err, module = library(), library().Error(), P()
        raw = text.encode()
        if "{" not in text:
            raise EpilogValueError(f"expected the text of a program, but {text[:80]!r} has none; for a file pass open(path).read()")
        lib.check(lib.epi_module_parse(lib.context, raw, len(raw), file.encode(), c.byref(module), c.byref(err)), err)
        count = lib.epi_module_count(module)
        programs = [lib.epi_module_program(module, i) for i in range(count)]
        gradients = {lib.epi_program_gradient(p) for p in programs}  # that others name as theirs: without a name none of these is meant
        meant = [p for p in programs if lib.epi_program_name(p) not in gradients] or programs
        found = lib.epi_module_find(module, name.encode()) if name else meant and meant[-1]
        if not found:
            have = [lib.epi_program_name(p).decode() for p in programs]
            lib.epi_module_free(module)
            raise EpilogValueError(f"the text has no program {name or ''}: it has {', '.join(have) or 'none'}")
        self.text, self.module, self.handle = text, module, found  # programs live as long as the process
        self.name, self.config = lib.epi_program_name(found).decode(), None  # a GPU's configuration by name, for measurements
        self.written = False  # by the user, who is told what is slow about it
        self.dims = [lib.epi_program_dim(found, i).decode() for i in range(lib.epi_program_dim_count(found))]
        self.tensors = []
        for i in range(lib.epi_program_tensor_count(found)):
            told = lib.TensorInfo()
            lib.check(lib.epi_program_tensor(found, i, c.byref(told), ), err)
            self.tensors.append(TensorInfo(told))
        self.inputs = [t for t in self.tensors if not t.is_output]
        self.outputs = [t for t in self.tensors if t.is_output]
        self.derived, self.recipes, self.plans, self.direct, self.lock = {}, {}, {}, {}, threading.Lock()
        self.compiled = weakref.WeakValueDictionary()  # kernels live as long as plans have them
        # Where the size of each dim is read from: input, axis, shift. An axis without a factor is preferred.
        self.sources = {}
        for i, t in enumerate(self.inputs):
            for a, (dim, shift) in enumerate(t.axes):
                if dim not in self.sources or (shift == 0 and self.sources[dim][2] != 0):
                    self.sources[dim] = i, a, shift
        # An axis that outputs alone have, and that is one renamed, has its size from there.
        renamed, read = renamed_axes(lib, found), set(self.sources)
        of = lambda a, shift: (*self.sources[a][:2], self.sources[a][2] - shift) if a in self.sources else None
        for _ in renamed:
            for a, b, shift in renamed:
                if a in self.sources and b not in self.sources:
                    self.sources[b] = of(a, shift)
        # Whether sizes of two axes must be equal, or one follows another: kernels are for given sizes then, and compiling looks at them.
        self.tied = any(b in self.dims and (b not in read or of(a, shift) != self.sources[b]) for a, b, shift in renamed)
        self.sources = {d: self.sources[d] for d in self.dims if d in self.sources}
        # Axes that count rows: how a program is cut does not depend on their sizes, and kernels leave them open.
        first = self.inputs[0] if self.inputs else None  # its last axis counts features, which integers have not
        axes = first.axes[:None if first.type in INTEGERS else -1] if first else []
        self.rows = list(rows) if rows is not None else [d for d, shift in axes]
        self.memory = memory  # bytes that a workspace may have; 0: any number
        self.spent = spent  # inputs, by name, that a run may write over
        self.lasting = None  # of a program with such inputs: the same that leaves them as they are
        self.told = tuple(dims)  # (dim, size) as the caller gave them; `given`: those and the text's of dims that no input has
        sizes = {d: lib.epi_program_dim_size(found, i) for i, d in enumerate(self.dims)}
        self.given = {d: s for d, s in {**sizes, **dict(dims)}.items() if s and d in self.dims and d not in self.sources}
        self.missing = [d for d in self.dims if d not in self.sources and d not in self.given]  # their sizes must be told

    def grad(self, wrt, saved, types=()):
        """The derived programs: (gradients,) or (forward, backward). wrt: names. types: of tensors, by name, that forward and
        backward are to declare (epi_dtype)."""
        key = wrt, saved, types
        with self.lock:
            if key not in self.derived:
                lib, err, module = library(), library().Error(), P()
                names = (TEXT * len(wrt))(*[n.encode() for n in wrt])
                kinds = (lib.TypeBinding * max(1, len(types)))(*[(n.encode(), k) for n, k in types])
                options = lib.Options(size=c.sizeof(lib.Options), types=c.cast(kinds, P), type_count=len(types), memory=self.memory)
                derive, how = (lib.epi_program_grad_typed, [c.byref(options)]) if saved else (lib.epi_program_grad, [])
                lib.check(derive(self.handle, names, len(wrt), *how, c.byref(module), c.byref(err)), err)
                texts = [text_of(lib.epi_program_print, lib.epi_module_program(module, i))
                         for i in range(lib.epi_module_count(module))]
                lib.epi_module_free(module)
                if not saved:  # behind it are programs with gradients of their own that it calls; the last of a text is what is meant
                    texts = ["\n".join(reversed(texts))]
                self.derived[key] = tuple(program(t, rows=tuple(self.rows), memory=self.memory, dims=self.told) for t in texts)
                for p in self.derived[key]:
                    p.written = self.written
        return self.derived[key]

    def spending(self, names):
        """The same program where nobody needs these inputs behind a run, which may write over them; not with a memory budget."""
        if not names or self.memory:
            return self
        made = program(self.text, self.name, tuple(self.rows), 0, self.told, tuple(names))
        made.lasting = self
        return made

    def compile(self, sizes, types, device, threads=0, open_rows=True):
        """A kernel for sizes by dim, types of all tensors in order (epi_dtype), the context's device. Rows are left open: it
        serves all of up to the next power of two. With a memory budget, or axes renamed to others, it is for these sizes alone."""
        rows = [d for d in self.rows if sizes.get(d)][:4] if open_rows and not self.memory and not self.tied else []
        most = {d: 1 << (s - 1).bit_length() if d in rows else s for d, s in sizes.items()}
        key = tuple(most.values()), tuple(types), device, threads, tuple(rows)
        found = self.compiled.get(key)
        if found is None:
            try:
                found = Kernel(self, most, types, device, threads, rows)
            except EpilogUnsupported:
                if not rows:
                    raise
                return self.compile(sizes, types, device, threads, False)
            found = self.compiled.setdefault(key, found)
        return found


programs_lock, programs_made = threading.Lock(), {}


def program(text, name=None, rows=None, memory=0, dims=(), spent=()):
    """The program of a text, or of a one_line(), made once; without a name the last of the text that is no other's gradient. spent: inputs, by
    name, that a run may write over."""
    key = text, name, rows, memory, dims, spent
    found = programs_made.get(key)
    if found is None:
        if text.startswith("%"):  # which no text does
            head, text = text[1:].split(";", 1)
            _, memory, *words = head.split()
            rows = [w for w in words if "=" not in w]
            dims = tuple((d, int(s)) for d, s in (w.split("=") for w in words if "=" in w))
            memory, text = int(memory), re.sub("%.", lambda m: MARKED[m[0]], text)
        made = Program(text, name, rows, memory, dims, spent)
        with programs_lock:
            found = programs_made.setdefault(key, made)
    return found


MARKS = {"%": "%%", "\n": "%n", "\r": "%r", "\\": "%b", '"': "%q"}
MARKED = {mark: character for character, mark in MARKS.items()}


def one_line(prog):
    """A program's memory, row axes, told sizes and text as operations of PyTorch get them: torch.compile writes their arguments into comments of
    Python, and into texts of C++ as they are. Graphs that it keeps on disk are found by them: what one build derives is not for another, which may
    save other values for a backward, so that the build is named first. In this process that is this very program, with the kernels that it has."""
    head = " ".join([library().build, str(prog.memory), *prog.rows, *(f"{d}={s}" for d, s in prog.told)])
    line = f"%{head};" + re.sub('[%\n\r\\\\"]', lambda m: MARKS[m[0]], prog.text)
    programs_made.setdefault((line, prog.name, None, 0, (), ()), prog)
    return line


def narrowest(types):
    """The first of 16 bits, else f32 (epi_dtype)."""
    return next((k for k in types if k in (1, 2)), 0)


class Kernel:
    """A compiled program; `open`: axes whose sizes each run gives, `sizes` has the largest of them."""

    def __init__(self, program, sizes, types, device, threads, open_axes):
        lib, err = library(), library().Error()
        dims = (lib.DimBinding * max(1, len(sizes)))(*[(n.encode(), s) for n, s in sizes.items()])
        bound = [(t.name.encode(), k) for t, k in zip(program.tensors, types) if t.type != k]
        # values between kernels are stored as the narrowest of the open inputs is: operands of products are of one type then
        storage = narrowest([k for t, k in zip(program.inputs, types) if t.type is None and t.rank])
        kinds = (lib.TypeBinding * max(1, len(bound)))(*bound)
        known = [d for d in program.rows if d in sizes]
        rows = (TEXT * max(1, len(known)))(*[d.encode() for d in known])
        opened = (TEXT * max(1, len(open_axes)))(*[d.encode() for d in open_axes])
        spent = (TEXT * max(1, len(program.spent)))(*[n.encode() for n in program.spent])
        options = lib.Options(size=c.sizeof(lib.Options), dims=c.cast(dims, P), dim_count=len(sizes), device=device,
                              types=c.cast(kinds, P), type_count=len(bound), type=storage, threads=threads,
                              row_axes=c.cast(rows, P), row_axis_count=len(known),
                              open_axes=c.cast(opened, P) if open_axes else None, open_axis_count=len(open_axes),
                              spent=c.cast(spent, P), spent_count=len(program.spent), memory=program.memory, config=program.config and program.config.encode())
        self.handle, self.program, self.open, self.sizes = P(), program, open_axes, sizes
        lib.check(lib.epi_kernel_compile(program.handle, c.byref(options), c.byref(self.handle), c.byref(err)), err)
        # not by __del__, during which another thread could still find it in the program's `compiled`
        weakref.finalize(self, lib.epi_kernel_free, self.handle).atexit = False
        if lib.epi_kernel_prepare_size(self.handle):
            raise EpilogError(f"{program.name} has params with values to prepare, which only the C interface supports: leave out `param` here")

    def workspace(self, sizes):
        """Bytes that a run at these sizes needs, and the sizes of the open axes as a call wants them."""
        lib, err, size = library(), library().Error(), SIZE()
        if not self.open:
            return lib.epi_kernel_workspace(self.handle), None
        given = (I64 * len(self.open))(*[sizes[d] for d in self.open])
        lib.check(lib.epi_kernel_workspace_at(self.handle, given, len(self.open), c.byref(size), c.byref(err)), err)
        return size.value, given

    def in_place(self, output, input):
        """Whether the output may be stored over the input; both count from 0."""
        return bool(library().epi_kernel_in_place(self.handle, len(self.program.inputs) + output, input))

    def info(self):
        """epi_kernel_info: launches, flops, bytes."""
        info = library().KernelInfo()
        library().epi_kernel_get_info_sized(self.handle, c.byref(info), c.sizeof(info))
        return info

    def describe(self):
        return text_of(library().epi_kernel_describe, self.handle)

    def warnings(self):
        """What is slow about it, a line each."""
        return text_of(library().epi_kernel_warnings, self.handle).splitlines()

#!/usr/bin/env python3
"""Epilog beside cuBLAS, torch.compile and eager PyTorch: one process, one GPU, bf16, random data.

Every row is checked in the run that times it: an output may be at most twice as far from an f64 reference
as plain bf16 PyTorch is. Times are pairs, ours beside the raw cuBLAS product of the same shape and layout:
  hot      back-to-back launches in slots of --ms, cuBLAS and ours in turn; the last 60 % of a slot is timed:
           the state in which the power limit sets the clock
  cool     bursts of about 2 ms after 12 ms of idling: the boost clock; repeats best
  flushed  single launches after a 256 MB buffer was overwritten: nothing is left in L2
A ratio is ours over cuBLAS; below 1 is faster. The exit status is 1 where a row is wrong or failed,
2 where the GPU was lost, 3 where a kernel hung.

  python3 bench/vs_torch.py --product --kernels 4096,8192 --out bench/results/h200.json
"""
import argparse, ctypes as c, dataclasses, glob, itertools, json, math, os, re, statistics
import subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEV = "cuda"
torch = common = None  # imported by need_torch: --help and --dry-run do without them

die = lambda message: sys.exit(f"vs_torch.py: {message}")

# ---- epilog.h ------------------------------------------------------------------------------------------

with open(os.path.join(ROOT, "include", "epilog.h")) as header:
    VERSION = ".".join(re.findall(r"define EPI_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header.read()))  # that the calls follow
OK, UNSUPPORTED = 0, 6  # epi_status
F32, BF16, F16, I32 = range(4)  # epi_dtype
ROUNDINGS = {"packed": 0, "exact": 1}  # epi_rounding
MAX_AXES, CPU = 8, 0  # CPU is the device

P, TEXT, INT, I64 = c.c_void_p, c.c_char_p, c.c_int, c.c_int64
KINDS = {"int": INT, "enum": INT, "i64": I64, "size": c.c_size_t, "f64": c.c_double, "text": TEXT, "pointer": P}
PARTS = {"chars": c.c_char, "bytes": c.c_ubyte, "i64s": I64, "axes": type("Axis", (c.Structure,), {"_fields_": [("dim", TEXT), ("shift", INT)]})}

def read_structures(lib):
    """The structures as the library itself describes them: Error for epi_error, KernelInfo for epi_kernel_info."""
    lib.epi_describe_abi.restype, lib.epi_describe_abi.argtypes = c.c_size_t, (TEXT, c.c_size_t)
    text = c.create_string_buffer(lib.epi_describe_abi(None, 0) + 1)
    lib.epi_describe_abi(text, len(text))
    for name, told in json.loads(text.value)["structs"].items():
        kind = lambda f: KINDS.get(f["type"]) or PARTS[f["type"]] * (f["size"] // c.sizeof(PARTS[f["type"]]))
        made = type(name, (c.Structure,), {"_fields_": [(f["name"], kind(f)) for f in told["fields"]]})
        if c.sizeof(made) != told["size"] or any(getattr(made, f["name"]).offset != f["offset"] for f in told["fields"]):
            die(f"{name} does not lie in memory as the library says")
        globals()["".join(w.capitalize() for w in name.split("_")[1:])] = made

PROTOTYPES = {  # name: result, arguments; a structure goes by reference
    "epi_version": (TEXT,), "epi_context_open": (INT, P, P),
    "epi_device_find": (INT, P, TEXT), "epi_device_why_no_gpu": (TEXT, P),
    "epi_device_alloc": (INT, P, INT, c.c_size_t, P, P), "epi_device_free": (INT, P, INT, P, P),
    "epi_module_parse": (INT, P, TEXT, c.c_size_t, TEXT, P, P),
    "epi_module_count": (INT, P), "epi_module_program": (P, P, INT), "epi_program_name": (TEXT, P),
    "epi_program_tensor_count": (INT, P), "epi_program_tensor": (INT, P, INT, P),
    "epi_kernel_compile": (INT, P, P, P, P), "epi_kernel_free": (None, P),
    "epi_kernel_tensor": (INT, P, INT, P), "epi_kernel_get_info_sized": (None, P, P, c.c_size_t),
    "epi_kernel_start": (INT, P, P, INT, P, P, P), "epi_kernel_workspace": (c.c_size_t, P),
}

class EpiError(Exception):
    def __init__(self, err):
        super().__init__(err.message.decode(errors="replace") or f"status {err.status}")
        self.status = err.status

class Epilog:
    """The library, a context, and the programs of programs/ by name."""
    def __init__(self, path):
        try:
            self.lib = c.CDLL(os.path.abspath(path))
        except OSError as e:
            die(f"the library cannot be loaded: {e}. Build it with make, or name it with --lib")
        for name, (result, *arguments) in PROTOTYPES.items():
            f = getattr(self.lib, name)
            f.restype, f.argtypes = result, arguments
        version = self.lib.epi_version().decode()
        if version != VERSION:
            die(f"{path} is Epilog {version}; this script was written for {VERSION}: compare epilog.h")
        read_structures(self.lib)
        self.err, self.context, self.programs = Error(), P(), {}
        self.at = c.byref(self.err)
        self.check(self.lib.epi_context_open(c.byref(self.context), self.at))
        for file in glob.glob(ROOT + "/programs/*.epi"):
            with open(file, "rb") as f:
                self.parse(f.read(), file.encode())

    def check(self, status):
        if status != OK:
            raise EpiError(self.err)

    def parse(self, text, name):
        module = P()
        self.check(self.lib.epi_module_parse(self.context, text, len(text), name, c.byref(module), self.at))
        for i in range(self.lib.epi_module_count(module)):
            program = self.lib.epi_module_program(module, i)
            infos = [TensorInfo() for _ in range(self.lib.epi_program_tensor_count(program))]
            for at, info in enumerate(infos):
                self.check(self.lib.epi_program_tensor(program, at, c.byref(info)))
            self.programs[self.lib.epi_program_name(program).decode()] = program, infos  # inputs, then outputs

    def gpu(self):
        device = self.lib.epi_device_find(self.context, b"gpu")
        if device < 0:
            die("Epilog sees no GPU: " + self.lib.epi_device_why_no_gpu(self.context).decode())
        return device

class Kernel:
    def __init__(self, epi, program, dims, device, rounding="packed", config=None):
        self.epi, self.handle, lib = epi, P(), epi.lib
        bindings = (DimBinding * len(dims))(*[(k.encode(), v) for k, v in dims.items()])
        options = Options(size=c.sizeof(Options), dims=c.cast(bindings, P), dim_count=len(dims), type=BF16, device=device,
                          rounding=ROUNDINGS[rounding], config=config.encode() if config else None)
        handle, infos = epi.programs[program]
        begin = time.perf_counter()
        epi.check(lib.epi_kernel_compile(handle, c.byref(options), c.byref(self.handle), epi.at))
        self.seconds = time.perf_counter() - begin
        shapes, info = [TensorShape() for _ in infos], KernelInfo()
        for i, shape in enumerate(shapes):
            epi.check(lib.epi_kernel_tensor(self.handle, i, c.byref(shape)))
        self.shapes = [(s.type, tuple(s.sizes[:s.rank])) for s in shapes]  # in the program's order
        self.workspace = lib.epi_kernel_workspace(self.handle)
        lib.epi_kernel_get_info_sized(self.handle, c.byref(info), c.sizeof(info))
        self.mainloop, self.micro, self.tile = info.mainloop.decode(), info.micro.decode(), [info.tile_m, info.tile_n]

    def __del__(self):
        self.epi.lib.epi_kernel_free(self.handle)

    def bind(self, tensors):
        """A function that starts the kernel on torch's current stream; all that a call needs is made here."""
        space = torch.full((self.workspace + 256,), 255, device=DEV, dtype=torch.uint8)  # scratch, so rubbish
        workspace, stream = P(space.data_ptr() + -space.data_ptr() % 256), P(torch.cuda.current_stream().cuda_stream)
        array, count = (Tensor * len(tensors))(*[Tensor(t.data_ptr(), None) for t in tensors]), len(tensors)
        start, handle, err = self.epi.lib.epi_kernel_start, self.handle, Error()
        reference = c.byref(err)
        def launch():
            if start(handle, array, count, workspace, stream, reference):
                raise EpiError(err)
        launch.keep = self, tensors, space
        return launch

# ---- the same in PyTorch -------------------------------------------------------------------------------
# A bf16 product, then f32 arithmetic: what a PyTorch user writes. With f64 operands each is its own
# reference. Parameters are the program's inputs in order, results its outputs.

wide = lambda t: t if t.dtype == torch.float64 else t.float()

def rotate(d, cos, sin):
    v = wide(d).view(d.shape[0], -1, cos.shape[1], 2)
    a, b, cos, sin = v[..., 0], v[..., 1], cos[:, None, :], sin[:, None, :]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(2).to(d.dtype)

def gated(z):
    v = wide(z).view(z.shape[0], -1, 2)
    return (torch.nn.functional.silu(v[..., 0]) * v[..., 1]).to(z.dtype)

def entropy(z, y):
    zf = wide(z)
    lse = torch.logsumexp(zf, 1)
    return z, lse - zf.gather(1, y[:, None])[:, 0], lse

def scaled(n, w, r):
    return (wide(n @ w.T) * r[:, None]).to(n.dtype)

def t_matmul(a, b): return (a @ b.T,)
def t_matmul_nn(a, b): return (a @ b,)
def t_matmul_tn(a, b): return (a.T @ b,)
def t_rope(x, w, cos, sin): return (rotate(x @ w.flatten(0, 1).T, cos, sin),)
def t_swiglu(x, w): return (gated(x @ w.T),)
def t_cross_entropy(x, w, y): return entropy(x @ w.T, y)
def t_norm_linear(n, w, r): return (((n @ w.T) * r[:, None]).to(n.dtype),)
def t_norm_rope(n, w, r, cos, sin): return (rotate(scaled(n, w.flatten(0, 1), r), cos, sin),)
def t_norm_cross_entropy(n, w, r, y): return entropy(scaled(n, w, r), y)

def t_residual_rms(x, w, res, g, eps):
    h = x @ w.T + res
    return h, h * g, torch.rsqrt((wide(h) ** 2).mean(1) + eps)

def t_norm_swiglu(n, w, r):
    z = scaled(n, w, r)
    return z, gated(z)

def t_rmsnorm_backward(dy, w, x, r, g, s, dres):
    d, xr, g = wide(dy @ w), wide(x) * r[:, None], wide(g)
    dx = wide(dres) + (d * g - xr * s[:, None]) * r[:, None]
    return dx.to(dy.dtype), (xr * g).to(dy.dtype), (d * xr).sum(0)

def t_swiglu_backward(dy, w, z):
    d, v = wide(dy @ w), wide(z).view(z.shape[0], -1, 2)
    gate, up, sg = v[..., 0], v[..., 1], torch.sigmoid(v[..., 0])
    act = gate * sg
    dup, dgate = d * act, d * up * (sg + act * (1 - sg))
    dz = torch.stack([dgate, dup], -1).flatten(1)
    return dz.to(dy.dtype), (act * up).to(dy.dtype), (gate * dgate + up * dup).sum(1)

# ---- what is measured ----------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Case:
    program: str
    dims: object  # (m, n, k) -> the program's sizes
    torch: object
    rows: str  # inputs that have a row per row of the product
    layout: str = "NT"
    columns: object = lambda n: n  # N at size n
    sums: bool = False  # an output is a sum over the rows, so the reference needs all of them at once

sizes = lambda names: lambda m, n, k: dict(zip(names.split(), (m, n, k)))
heads = lambda m, n, k: dict(B=1, S=m, H=n // 128, D=128, E=k)
triple, vocabulary = lambda n: 3 * n, lambda n: 32768
SQUARES = [(4096,) * 3, (8192,) * 3]
PRODUCTS = {
    Case("matmul", sizes("M N K"), t_matmul, "a"):
        SQUARES + [(16384, 4096, 4096), (16384, 11008, 4096), (16384, 4096, 11008)],
    Case("matmul_nn", sizes("M N K"), t_matmul_nn, "a", "NN"): SQUARES,
    Case("matmul_tn", sizes("M N K"), t_matmul_tn, "a", "TN"): SQUARES,
}
KERNELS = [
    Case("rope", heads, t_rope, "x cos_t sin_t", columns=triple),
    Case("swiglu", sizes("T F D"), t_swiglu, "x"),
    Case("cross_entropy", sizes("T V D"), t_cross_entropy, "x y", columns=vocabulary),
    Case("residual_rms", sizes("T D K"), t_residual_rms, "x res"),
    Case("norm_linear", sizes("T F D"), t_norm_linear, "n r"),
    Case("norm_swiglu", sizes("T F D"), t_norm_swiglu, "n r"),
    Case("norm_rope", heads, t_norm_rope, "n r cos_t sin_t", columns=triple),
    Case("norm_cross_entropy", sizes("T V D"), t_norm_cross_entropy, "n r y", columns=vocabulary),
    Case("rmsnorm_backward", sizes("T D F"), t_rmsnorm_backward, "dy x r s dres", "NN", sums=True),
    Case("swiglu_backward", sizes("T F D"), t_swiglu_backward, "dy z", "NN"),
]
CASES = {case.program: case for case in [*PRODUCTS, *KERNELS]}
# One size off the tiles at a time, then all of them; norm_swiglu takes the even N below.
RAGGED = [(4001, 4096, 4096), (4096, 4104, 4096), (4096, 4099, 4096), (4096, 4096, 4104), (4096, 4096, 4095),
          (4001, 4099, 4095)]
CHAIN = dict(T=4096, K=4096, D=4096, F=8192)
LAUNCH, CHUNK, EPS = 256, 2048, 1e-5  # size of the launch section; rows of the reference at a time; the norms' eps

squeezed = lambda t: t[0] if t.dim() > 1 and t.shape[0] == 1 else t  # without the batch axis of 1

def random_input(name, kind, shape, n, k):
    """Normal values such that results are of order 1; rotary tables as models have them."""
    if kind == I32:
        return torch.randint(0, n, shape, device=DEV, dtype=torch.int32)
    if name == "eps":
        return torch.full(shape, EPS, device=DEV)
    if name in ("cos_t", "sin_t"):
        position, pair = (torch.arange(size, device=DEV) for size in shape)
        angle = position[:, None] * 10000.0 ** (-pair / shape[1])
        return (torch.cos if name == "cos_t" else torch.sin)(angle)
    if name in ("r", "s", "g"):
        values = torch.rand(shape, device=DEV) + 0.5
    else:
        values = torch.randn(shape, device=DEV) * (k ** -0.5 if name in ("w", "b") else 1)
    return values.to(torch.bfloat16) if kind == BF16 else values

def poisoned(shapes):
    """Outputs that hold NaN until they are written."""
    types = {F32: torch.float32, BF16: torch.bfloat16, F16: torch.float16}
    return [torch.full(shape, math.nan, device=DEV, dtype=types[kind]) for kind, shape in shapes]

class Problem:
    """A program at given sizes with its inputs, the raw product on the same operands, and the reference."""
    def __init__(self, bench, case, m, n, k):
        self.bench, self.case, self.m, self.n, self.k = bench, case, m, n, k
        self.dims, self.flops = case.dims(m, n, k), 2.0 * m * n * k
        tensors = [(t.name.decode(), t.is_output) for t in bench.epi.programs[case.program][1]]
        shapes = Kernel(bench.epi, case.program, self.dims, CPU).shapes  # the same on every device
        self.inputs = {name: random_input(name, *shape, n, k)
                       for (name, is_output), shape in zip(tensors, shapes) if not is_output}
        self.outputs = [name for name, is_output in tensors if is_output]
        self.args = [squeezed(t.long() if t.dtype == torch.int32 else t) for t in self.inputs.values()]

    def raw(self):
        a, b = self.args[:2]
        a = a.t() if self.case.layout == "TN" else a
        b = b.reshape(-1, b.shape[-1]).t() if self.case.layout == "NT" else b
        out = torch.empty(self.m, self.n, device=DEV, dtype=torch.bfloat16)
        return lambda: torch.mm(a, b, out=out)

    def eager(self):
        return self.case.torch(*self.args)

    def ours(self, rounding, config=None):
        """Compiles; answers the kernel, its launcher, and the outputs it will write."""
        kernel = Kernel(self.bench.epi, self.case.program, self.dims, self.bench.device, rounding, config)
        given = list(self.inputs.values())
        outs = poisoned(kernel.shapes[len(given):])
        return kernel, kernel.bind(given + outs), [squeezed(t) for t in outs]

    def errors(self, outs):
        """Each output's distance from the f64 reference, ours beside eager PyTorch's."""
        lift = lambda t: t.double() if t.dtype == torch.bfloat16 else t
        by_rows, step = self.case.rows.split(), max(self.m, self.n) if self.case.sums else CHUNK
        named, plain = dict(zip(self.inputs, self.args)), self.eager()
        fixed = {name: lift(t) for name, t in named.items() if name not in by_rows}
        found = {name: [] for name in self.outputs}
        for at in range(0, self.m, step):
            rows = {name: named[name].narrow(1 if self.case.layout == "TN" else 0, at, min(step, self.m - at))
                    for name in by_rows}
            refs = self.case.torch(*[fixed[name] if name in fixed else lift(rows[name]) for name in named])
            for name, ref, mine, other in zip(self.outputs, refs, outs, plain):
                mine, other = (t[at:at + step].double() - ref for t in (mine, other))
                found[name].append(torch.stack([mine.abs().max(), other.abs().max(), ref.abs().max(),
                                                mine.square().sum(), ref.square().sum()]).double())
        result = []
        for name, parts in found.items():
            ours, eager, largest = torch.stack(parts)[:, :3].amax(0).tolist()  # a NaN stays one
            off, norm = torch.stack(parts)[:, 3:].sum(0).sqrt().tolist()
            bound = 2 * eager + 1e-6 * largest + 1e-30
            result.append(dict(output=name, error=ours, eager_error=eager, largest=largest, bound=bound,
                               relative_frobenius=off / max(norm, 1e-30), ok=ours <= bound))
        return result

# ---- measuring -----------------------------------------------------------------------------------------

class Nvml:
    """Clock, power and driver version; NaN and "unknown" where NVML is missing."""
    def __init__(self):
        self.device = P()
        try:
            self.lib = c.CDLL("libnvidia-ml.so.1")
            if self.lib.nvmlInit_v2() or self.lib.nvmlDeviceGetHandleByIndex_v2(0, c.byref(self.device)):
                self.lib = None
        except OSError:
            self.lib = None

    def number(self, name, *arguments):
        value = c.c_uint()
        failed = not self.lib or getattr(self.lib, name)(self.device, *arguments, c.byref(value))
        return math.nan if failed else float(value.value)

    def sample(self):
        """SM clock in MHz, power in W."""
        return self.number("nvmlDeviceGetClockInfo", 1), self.number("nvmlDeviceGetPowerUsage") / 1e3

    def driver(self):
        text = c.create_string_buffer(96)
        failed = not self.lib or self.lib.nvmlSystemGetDriverVersion(text, c.c_uint(96))
        return "unknown" if failed else text.value.decode()

def wait(what, limit=20):
    """Like synchronize, but gives up on a kernel that never ends."""
    event, deadline = torch.cuda.Event(), time.monotonic() + limit
    event.record()
    while not event.query():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not end within {limit} s")
        time.sleep(0.0005)

class Timer:
    def __init__(self, nvml):
        self.nvml = nvml
        self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.cache = torch.ones(256 << 20, device=DEV, dtype=torch.uint8)

    def burst(self, fn, warm, count, sample_at=None):
        """ms a launch; with sample_at, also clock and power that many seconds after the first launch."""
        start, sample = time.perf_counter(), ()
        for _ in range(warm):
            fn()
        self.begin.record()
        for _ in range(count):
            fn()
        self.end.record()
        if sample_at is not None:
            time.sleep(max(0, sample_at - (time.perf_counter() - start)))
            sample = self.nvml.sample()
        self.end.synchronize()
        return (self.begin.elapsed_time(self.end) / count, *sample)

    def pairs(self, base, ours, flops, rounds, hot_ms=None):
        """base and ours in turn, `rounds` times: hot in slots of hot_ms, or else cool."""
        counts = {fn: max(2, int((hot_ms or 2.0) / max(1e-3, self.burst(fn, 1, 3)[0]))) for fn in (base, ours)}
        def once(fn):
            if not hot_ms:
                time.sleep(0.012)
                return self.burst(fn, 1, counts[fn])
            warm = max(1, int(0.4 * counts[fn]))
            return self.burst(fn, warm, max(2, counts[fn] - warm), 0.75e-3 * hot_ms)
        once(ours)
        sides = dict(zip(("base", "ours"), zip(*[(once(base), once(ours)) for _ in range(rounds)])))
        ratios = [o[0] / b[0] for b, o in zip(sides["base"], sides["ours"])]
        result = dict(ratio=statistics.median(ratios), ratio_min=min(ratios), ratio_max=max(ratios), ratios=ratios)
        for side, samples in sides.items():
            ms, *state = (statistics.median(column) for column in zip(*samples))
            result.update({side + "_ms": ms, side + "_tflops": flops[side] / ms / 1e9})
            if state:
                result.update({side + "_mhz": state[0], side + "_watts": state[1]})
                result[side + "_cycles"] = ms * state[0] * 1e3
        return result

    def flushed(self, functions):
        """ms of a launch that finds nothing in L2, and its ratio to cuBLAS, by name."""
        def once(fn):
            self.cache.fill_(1)
            return self.burst(fn, 0, 1)[0]
        ms = {name: statistics.median(t) for name, t in common.in_turn(functions, once, 21, warm=1).items()}
        return {**{name + "_ms": t for name, t in ms.items()},
                **{name + "_ratio": t / ms["cublas"] for name, t in ms.items() if name != "cublas"}}

# ---- the run -------------------------------------------------------------------------------------------

class Bench:
    def __init__(self, args, epi, nvml):
        self.args, self.epi, self.nvml, self.device = args, epi, nvml, epi.gpu()
        self.timer, self.failed = Timer(nvml), 0
        self.result = common.head(args, "date commit device torch cuda command seed", version=VERSION, driver=nvml.driver(), type="bf16",
                                  mhz_watts_before=nvml.sample(), rows=[], summary=[])
        print("  ".join(f"{key} {self.result[key]}" for key in "device driver torch cuda commit date".split()))

    def add(self, row):
        self.failed += not row.get("ok", True)
        self.result["rows"].append(row)
        self.write()

    def write(self):
        """After every row: a run that is cut off leaves what it has."""
        self.result["mhz_watts_after"] = self.nvml.sample()
        common.save(self.args.out, self.result)

    def guarded(self, row, work):
        """Whether work(row), which fills the row, went through. A failure is a row too, and the run goes on
        where the GPU can: under a kernel that hangs, or after a fault, the process has to go."""
        end = 0
        try:
            work(row)
        except EpiError as e:
            skip = e.status == UNSUPPORTED and row.get("config")
            row.update(dict(ok=True, skipped=str(e)) if skip else dict(ok=False, error=str(e)))
        except (RuntimeError, TimeoutError) as e:
            end = 3 if isinstance(e, TimeoutError) else 2
            row.update(ok=False, error=f"{type(e).__name__}: {e}")
        self.add(row)
        trouble = row.get("error") or row.get("skipped")
        if trouble:
            print(f"{label(row)} {'skipped' if row['ok'] else 'FAILED'}: {trouble}")
        if end:
            os._exit(end)
        return not trouble

    def checked(self, row, problem):
        """Compiles, runs once and checks; answers the launcher."""
        kernel, launch, outs = problem.ours(row["rounding"], row["config"])
        row.update(chosen=kernel.micro, mainloop=kernel.mainloop, tile=kernel.tile,
                   workspace=kernel.workspace, compile_s=kernel.seconds)
        launch()
        wait(problem.case.program)
        row["errors"] = problem.errors(outs)
        row["ok"] = row.get("ok", True) and all(e["ok"] for e in row["errors"])
        return launch

    def measure(self, problem, functions={}, aligned=None, **more):
        """A row for each rounding and configuration: ours beside cuBLAS, or beside ourselves at the aligned
        sizes; and with L2 flushed beside cuBLAS and the other functions."""
        def work(row):
            base, flops = raw, dict(ours=problem.flops, base=(aligned or problem).flops)
            if aligned:
                other = dict(row)
                base = self.checked(other, aligned)
                row.update(ok=other["ok"], aligned=[aligned.m, aligned.n, aligned.k], aligned_chosen=other["chosen"])
            ours = self.checked(row, problem)
            row["cool"] = self.timer.pairs(base, ours, flops, 2 * self.args.rounds + 1)
            row["hot"] = self.timer.pairs(base, ours, flops, self.args.rounds, self.args.ms)
            row["flushed"] = self.timer.flushed(dict(cublas=raw, ours=ours, **functions))
        raw, rows = problem.raw(), []
        for rounding, config in itertools.product(self.args.rounding, self.args.config):
            rows.append(dict(more, kernel=problem.case.program, m=problem.m, n=problem.n, k=problem.k,
                             layout=problem.case.layout, rounding=rounding, config=config))
            if self.guarded(rows[-1], work):
                print_row(rows[-1])
        return rows

    def product(self):
        print("== The plain product; base is cuBLAS")
        for case, shapes in PRODUCTS.items():
            for shape in shapes:
                self.measure(Problem(self, case, *shape), section="product")

    def kernels(self):
        for size in self.args.kernels:
            print(f"== The ten kernels at {size}; base is the raw product with cuBLAS")
            rows = []
            for case in self.args.only:
                problem = Problem(self, case, size, case.columns(size), size)
                functions, seconds = self.torch_functions(problem) if self.args.torch == "on" else ({}, None)
                rows += self.measure(problem, functions, section="kernels", size=size, torch_compile_s=seconds)
            self.summarise(rows, size)

    def torch_functions(self, problem):
        functions, begin = {}, time.perf_counter()
        try:
            torch._dynamo.reset()
            compiled = torch.compile(problem.case.torch, dynamic=False)
            compiled(*problem.args)
            torch.cuda.synchronize()
            functions["compile"] = lambda: compiled(*problem.args)
        except Exception as e:  # whatever the compiler stumbles over, ours can still be measured
            print(f"{problem.case.program}: torch.compile failed: {e}")
        return dict(functions, eager=problem.eager), time.perf_counter() - begin

    def summarise(self, rows, size):
        kinds = {"hot": ("hot", "ratio"), "cool": ("cool", "ratio"), "flushed": ("flushed", "ours_ratio"),
                 "torch.compile": ("flushed", "compile_ratio"), "eager": ("flushed", "eager_ratio")}
        for rounding, config in dict.fromkeys((r["rounding"], r["config"]) for r in rows):
            mine = [r for r in rows if (r["rounding"], r["config"]) == (rounding, config)]
            for kind, (group, field) in kinds.items():
                found = [(r[group][field], r["kernel"]) for r in mine if field in r.get(group, {})]
                if found:
                    mean, (worst, name) = statistics.geometric_mean(v for v, _ in found), max(found)
                    self.result["summary"].append(dict(size=size, rounding=rounding, config=config, kind=kind,
                                                       geomean=mean, worst=worst, worst_kernel=name, count=len(found)))
                    print(f"  {size} {rounding:6s} {config or 'chosen':19s} {kind:13s} geometric mean {mean:.3f}, "
                          f"worst {worst:.3f} ({name}), {len(found)} kernels")

    def ragged(self):
        print("== Off the tiles; base is our own next aligned shape, 'flushed' is against cuBLAS of the ragged one")
        up = lambda value, step: -(-value // step) * step
        for case in (CASES["matmul"], CASES["norm_swiglu"]):
            for m, n, k in RAGGED:
                n -= n % 2 if case.program == "norm_swiglu" else 0
                aligned = Problem(self, case, up(m, 128), up(n, 256), up(k, 64))
                self.measure(Problem(self, case, m, n, k), aligned=aligned, section="ragged")

    def chain(self):
        print("== The chain residual_rms -> norm_swiglu with the delayed scale: relative Frobenius errors against f64")
        t, k, d, f = (CHAIN[name] for name in "TKDF")
        first, w2 = Problem(self, CASES["residual_rms"], t, d, k), random_input("w", BF16, (f, d), f, d)
        operands = first.args[:4] + [w2]
        def whole(x, w, res, g, w2):
            z = torch.nn.functional.rms_norm(x @ w.T + res, (d,), g, EPS) @ w2.T
            return z, gated(z)
        def distance(names, ours, ref):
            return {name: ((o.double() - r.double()).norm() / r.double().norm()).item()
                    for name, o, r in zip(names, ours, ref)}
        exact, plain = whole(*[t.double() for t in operands]), whole(*operands)
        def work(row):
            _, launch, (_, n, r) = first.ours(row["rounding"])
            kernel = Kernel(self.epi, "norm_swiglu", dict(T=t, D=d, F=f), self.device, row["rounding"])
            outs = poisoned(kernel.shapes[3:])
            second = kernel.bind([n, w2, r] + outs)
            launch()
            second()
            wait("the chain")
            row["errors"] = {**distance(("z", "o"), outs, exact), **distance(("torch z", "torch o"), plain, exact),
                             **distance(("z from torch's", "o from torch's"), outs, plain)}
            row["ok"] = all(row["errors"][name] <= 2 * row["errors"]["torch " + name] for name in "zo")
        for rounding in ROUNDINGS:
            row = dict(section="chain", kernel="residual_rms>norm_swiglu", dims=CHAIN, rounding=rounding)
            if self.guarded(row, work):
                print(f"  {rounding:6s} " + ", ".join(f"{name} {e:.3e}" for name, e in row["errors"].items())
                      + (" ok" if row["ok"] else " WRONG"))

    def launch(self):
        print("== Host time of a launch")
        problem, calls, batch = Problem(self, CASES["norm_swiglu"], LAUNCH, LAUNCH, LAUNCH), 2000, 50
        def host_us(fn):
            spent = []
            for _ in range(calls // batch + 1):
                torch.cuda.synchronize()  # the queue never fills, so no call waits for the GPU
                spent.append(common.seconds(common.again(fn, batch))[0] / batch * 1e6)
            return dict(mean_us=statistics.fmean(spent[1:]), median_us=statistics.median(spent[1:]))
        def work(row):
            start, err, ours = self.epi.lib.epi_kernel_start, c.byref(Error()), problem.ours(row["rounding"])[1]
            row["host"] = {"epi_kernel_start": host_us(ours), "torch.mm(out=)": host_us(problem.raw()),
                           "ctypes alone (a refused call)": host_us(lambda: start(None, None, 0, None, None, err))}
            for name, us in row["host"].items():
                print(f"  {name:30s} mean {us['mean_us']:6.2f} us, median {us['median_us']:6.2f} us")
        self.guarded(dict(section="launch", kernel="norm_swiglu", m=LAUNCH, n=LAUNCH, k=LAUNCH, calls=calls,
                          rounding=self.args.rounding[0]), work)

    def compile(self):
        print("== Compiling at 4096, and loading from the cache in another process (seconds)")
        command, answers = [sys.executable, __file__, "--compile-child", str(self.device), "--lib", self.args.lib], []
        with tempfile.TemporaryDirectory(prefix="epilog-cache-") as cache:
            # the compiler keeps a cache of its own beside the driver's: a cold start goes without it, too
            environment = dict(os.environ, EPILOG_CACHE=cache, CUDA_CACHE_DISABLE="1")
            for _ in range(2):
                done = subprocess.run(command, env=environment, capture_output=True, text=True)
                if done.returncode:
                    self.add(dict(section="compile", ok=False, error=done.stderr[-2000:]))
                    return print(f"  ERROR: {done.stderr[-2000:]}")
                answers.append(json.loads(done.stdout))
            stored = sum(os.path.getsize(f) for f in glob.glob(cache + "/**", recursive=True) if os.path.isfile(f))
        for name, cold in answers[0].items():
            self.add(dict(section="compile", kernel=name, cold_s=cold, cached_s=answers[1][name], cache_bytes=stored))
            print(f"  {name:22s} cold {cold:7.3f}  cached {answers[1][name]:7.4f}")

def label(row):
    shape = "x".join(str(row[key]) for key in "mnk") if "m" in row else ""
    return f"{row['kernel']:18s} {shape:17s} {row['rounding']:6s}"

def print_row(row):
    hot, cool, flushed = row["hot"], row["cool"], row["flushed"]
    worst = max(row["errors"], key=lambda e: e["error"] / e["bound"] if e["error"] == e["error"] else math.inf)
    sides = [f"{s} {hot[s + '_ms']:8.4f} ms {hot[s + '_tflops']:4.0f} TF {hot[s + '_mhz']:4.0f} MHz "
             f"{hot[s + '_watts']:3.0f} W" for s in ("ours", "base")]
    others = [f" {s} {flushed[s + '_ratio']:.3f}" for s in ("compile", "eager") if s + "_ratio" in flushed]
    print(f"{label(row)} {row['chosen']:19s} hot {hot['ratio']:.3f} ({hot['ratio_min']:.3f}-{hot['ratio_max']:.3f}) "
          f"{', '.join(sides)} {row.get('aligned', '')} cycles {hot['ours_cycles'] / hot['base_cycles']:.3f} | "
          f"cool {cool['ratio']:.3f} {cool['ours_ms']:8.4f} ms {cool['ours_tflops']:4.0f} TF | flushed "
          f"{flushed['ours_ratio']:.3f}{''.join(others)} | {worst['output']} off {worst['error']:.1e}, "
          f"eager {worst['eager_error']:.1e} {'ok' if row['ok'] else 'WRONG'}")

# ---- the command ---------------------------------------------------------------------------------------

def need_torch():
    global torch, common
    try:
        import common, torch
    except ImportError as e:
        die(f"PyTorch is needed: {e}")
    if not torch.cuda.is_available():
        die("PyTorch sees no GPU")
    torch.set_grad_enabled(False)
    # Epilog looks for NVRTC in the usual folders; where it would find none, it gets PyTorch's.
    found = glob.glob(os.path.dirname(os.path.dirname(torch.__file__)) + "/nvidia/*/lib/libnvrtc.so.1[23]")
    if found and not glob.glob("/usr/local/cuda/lib64/libnvrtc.so.1[23]"):
        os.environ.setdefault("EPILOG_NVRTC", found[0])

def compile_child(epi, device):
    """Compiles the ten kernels and prints the seconds of each; the device's own start is not counted."""
    memory, begin = P(), time.perf_counter()
    epi.check(epi.lib.epi_device_alloc(epi.context, device, 256, c.byref(memory), epi.at))
    epi.check(epi.lib.epi_device_free(epi.context, device, memory, epi.at))
    seconds = {"(device start)": time.perf_counter() - begin}
    for case in KERNELS:
        seconds[case.program] = Kernel(epi, case.program, case.dims(4096, case.columns(4096), 4096), device).seconds
    print(json.dumps(seconds))

def dry_run(epi):
    """What can be tried without a GPU: every program on the CPU's path, and its text for sm_90."""
    for case in CASES.values():
        dims = case.dims(4096, case.columns(4096), 4096)
        for rounding in ROUNDINGS:
            kernel = Kernel(epi, case.program, dims, -90, rounding)
            assert kernel.shapes == Kernel(epi, case.program, dims, CPU).shapes, case.program
            print(f"{case.program:19s} {rounding:6s} {kernel.mainloop} {kernel.micro:19s} workspace {kernel.workspace}")

def arguments():
    words, names = lambda text: text.split(","), [case.program for case in KERNELS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what to measure (any number of these)")
    what.add_argument("--kernels", type=lambda text: [int(w) for w in words(text)], metavar="N,..",
                      help="the ten kernels with M = K = N, as 4096,8192 (rope: 3N columns; cross entropy: 32768)")
    for name, text in {
            "product": "the plain product in three layouts beside cuBLAS",
            "ragged": "matmul and norm_swiglu at sizes off the tiles, beside the next aligned shape and cuBLAS",
            "chain": "errors of residual_rms -> norm_swiglu against f64: ours in both roundings, PyTorch's in bf16",
            "launch": "host time of epi_kernel_start and of torch.mm",
            "compile": "compile time of the ten kernels, cold and from the cache"}.items():
        what.add_argument("--" + name, action="store_true", help=text)
    how = parser.add_argument_group("how")
    how.add_argument("--rounding", type=words, default=["packed"], metavar="R,..", help="packed (default), exact, both")
    how.add_argument("--config", type=words, default=[None], metavar="NAME,..", help="force GPU configurations, a row "
                     "each (default: the cost model's choice); one that a program does not fit is skipped")
    how.add_argument("--only", type=words, metavar="NAME,..", default=names, help="of the ten kernels, only these")
    how.add_argument("--torch", choices=("on", "off"), default="on", help="time torch.compile and eager beside the ten "
                     "kernels (default on; about 10 s a kernel)")
    how.add_argument("--rounds", type=int, default=5, help="hot pairs; cool pairs are 2*rounds+1 (default 5)")
    how.add_argument("--ms", type=float, default=60, help="length of a hot slot in ms (default 60)")
    how.add_argument("--seed", type=int, default=1, help="of the random inputs (default 1)")
    how.add_argument("--lib", default=ROOT + "/build/libepilog.so", help="the library (default build/libepilog.so)")
    how.add_argument("--out", metavar="FILE", help="write every number as JSON, kept up to date after each row")
    how.add_argument("--commit", help="what the result file gives as the commit (default: git's, or unknown)")
    parser.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile-child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.rounding) - set(ROUNDINGS) | set(args.only) - set(names):
        parser.error(f"there is no {', '.join(unknown)} among {', '.join([*ROUNDINGS, *names])}")
    args.only = [CASES[name] for name in args.only]
    args.sections = [s for s in ("product", "kernels", "ragged", "chain", "launch", "compile") if getattr(args, s)]
    if not args.sections and not args.dry_run and args.compile_child is None:
        parser.error("nothing to measure: give --product, --kernels, --ragged, --chain, --launch or --compile")
    return args

def main():
    args = arguments()
    sys.stdout.reconfigure(line_buffering=True)
    if args.dry_run:
        return dry_run(Epilog(args.lib))
    if args.compile_child is not None:
        return compile_child(Epilog(args.lib), args.compile_child)
    need_torch()
    torch.manual_seed(args.seed)
    bench, begin = Bench(args, Epilog(args.lib), Nvml()), time.perf_counter()
    for section in args.sections:
        getattr(bench, section)()
    bench.result["seconds"] = time.perf_counter() - begin
    bench.write()
    print(f"{len(bench.result['rows'])} rows, {bench.failed} failed, {bench.result['seconds']:.0f} s, {args.out or ''}")
    return 1 if bench.failed else 0

if __name__ == "__main__":
    sys.exit(main())

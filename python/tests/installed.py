"""installed.py VERSION PAGE...: what an installed wheel does in a process that sees neither the tree nor a compiler (wheel.sh)."""
import importlib.metadata
import os
import re
import sys
import tempfile
import warnings

import torch

passed = 0


def hold(what, so, told=None):
    global passed
    if not so:
        sys.exit(f"not so: {what}: {told!r}")
    passed += 1


def refused(kind, function, *arguments):
    try:
        function(*arguments)
    except kind as error:
        return str(error)
    return "nothing"


version, *pages = sys.argv[1:]
backend = next(e for e in importlib.metadata.entry_points(group="torch_dynamo_backends") if e.name == "epilog")

import epilog  # noqa: E402
from epilog import _backend, _direct, _library, _version  # noqa: E402

# Version, place, and what it says about itself.
here, lib = os.path.dirname(epilog.__file__), _library.library()
hold("it is that of the environment", here.startswith(sys.prefix), here)
hold("its library is its own", lib.path == os.path.join(here, "libepilog.so"), lib.path)
hold("the version is one", epilog.__version__ == importlib.metadata.version("epilog-kernels") == version, epilog.__version__)
kept = ("EpilogError EpilogIndexError EpilogValueError Generated LogProbs Op Report apply explain generate log_probs nn op quantise restore "  # of 0.1
        "about").split()
hold("public names stay", set(kept) <= set(epilog.__all__) and all(hasattr(epilog, name) for name in epilog.__all__), epilog.__all__)
hold("torch.compile finds the backend", backend.load() is _backend.backend)
hold("calls go through C", _direct.opened_file() is not None)
about = epilog.about()
for line in (rf"^epilog {re.escape(version)}$", r"^commit: [0-9a-f]{7,}$", r"^compiler: (gcc|clang) \d", r"^CPU kernels in this build: .*plain; this CPU runs: .*plain$",
             r"^(GPU: none: |gpu0: )", r"^NVRTC: NVRTC, CUDA's compiler, cannot be used: EPILOG_NVRTC names /none", rf"^library: {re.escape(lib.path)}$", r"^PyTorch: \d"):
    hold(f"about() has {line}", re.search(line, about, re.M), about)

# It computes, forward and backward, and says at the first use of a GPU why there is none.
torch.manual_seed(1)
swiglu = epilog.op("swiglu(x[T,D], wg[F,D], wu[F,D]) -> y[T,F] { y = silu(x @ wg)*(x @ wu) }")
mine = [torch.randn(n, 64, requires_grad=True) for n in (16, 256, 256)]
theirs = [t.detach().double().requires_grad_() for t in mine]
y, z = swiglu(*mine), torch.nn.functional.silu(theirs[0] @ theirs[1].T) * (theirs[0] @ theirs[2].T)
y.sum().backward(), z.sum().backward()
for got, want in [(y, z), *((a.grad, b.grad) for a, b in zip(mine, theirs))]:
    off = ((got.double() - want).abs().max() / want.abs().max()).item()
    hold("results are near to f64", off < 2**-24 * 64, off)  # sums of 64 and 256 terms in f32
if not lib.gpus:
    told = refused(epilog.EpilogError, lib.device, 0)
    hold("without a GPU it says why", re.match("Epilog cannot use cuda:0: .*(driver|GPU|libcuda)", told), told)

# Without NVRTC a kernel for a GPU says how to get it; other refusals do not.
for message, told in ((b"NVRTC, CUDA's compiler, cannot be used: it was not found. Install CUDA", True), (b"int8 products need a GPU", False)):
    error = lib.Error(message=message)
    unsupported = next(status for status in range(100) if lib.epi_status_name(status) == b"unsupported")
    said = refused(_library.EpilogUnsupported, lib.check, unsupported, error)
    hold("the package of NVRTC is named", message.decode() in said and ("pip install nvidia-cuda-nvrtc" in said) == told, said)

# NVRTC where pip's packages put it: PyTorch's CUDA first, then the newest.
path, cuda, own = sys.path[:], torch.version.cuda, os.environ.pop("EPILOG_NVRTC")
with tempfile.TemporaryDirectory() as folder:
    for name in ("a/nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "a/nvidia/cu13/lib/libnvrtc.so.13", "b/nvidia/cu13/lib/libnvrtc.so.13", "c/nvidia/cu11/lib/libnvrtc.so.11"):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        open(os.path.join(folder, name), "w").close()
    for parts, of, wanted in [("ab", None, "a/nvidia/cu13/lib/libnvrtc.so.13"), ("ba", None, "b/nvidia/cu13/lib/libnvrtc.so.13"), ("ab", "12.8", "a/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"),
                              ("ab", "13.0", "a/nvidia/cu13/lib/libnvrtc.so.13"), ("c", "13.0", None), ("cb", "12.8", "b/nvidia/cu13/lib/libnvrtc.so.13")]:
        sys.path[:], torch.version.cuda = [os.path.join(folder, part) for part in parts], of
        wanted = wanted and os.path.join(folder, wanted)
        hold(f"NVRTC on {parts} for CUDA {of}", _library.pip_nvrtc() == wanted, _library.pip_nvrtc())
        os.environ.pop("EPILOG_NVRTC", None)
        _library.find_nvrtc()
        hold("which the library is told", os.environ.get("EPILOG_NVRTC") == wanted)
    os.environ["EPILOG_NVRTC"] = own
    _library.find_nvrtc()
    hold("unless the user says it", os.environ["EPILOG_NVRTC"] == own)

    # The other project's package: in the same folder, as where a file system does not tell EpiLog from epilog; and in one of its own.
    told = os.path.join(folder, "EpiLog-1.1.2.dist-info")
    os.makedirs(told)
    for name, text in {"METADATA": "Metadata-Version: 2.1\nName: EpiLog\nVersion: 1.1.2\n", "RECORD": "EpiLog/__init__.py,,\nEpiLog/manager.py,,\n"}.items():
        with open(os.path.join(told, name), "w") as f:
            f.write(text)
    sys.path[:], torch.version.cuda = [folder, *path], cuda
    for same in (True, False):
        other = os.path.join(folder, "EpiLog")
        if same:
            os.symlink(here, other)
        else:
            os.remove(other)
            os.makedirs(other)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _version.warn_of_others()
        said = [str(w.message) for w in caught]
        hold("another distribution in the folder is named", len(said) == same and all("the distribution epilog 1.1.2 has files in" in s for s in said), said)
    sys.path[:] = path

# The pages' examples.
for page in pages:
    with open(page) as f:
        blocks = re.findall(r"^```python\n(.*?)^```$", f.read(), re.S | re.M)
    hold(f"{page} has an example", blocks)
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
        passed += 1
print(passed, "passed")

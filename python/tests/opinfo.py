"""PyTorch's own samples of the operations that the backend takes in (OpInfo), through torch.compile beside eager.

    python python/tests/opinfo.py [--ways 0,2] [NAME …]

A sample is tried in several ways (WAYS): as a function, a method, written over its first argument, amid other operations, with tensors that
are not contiguous or repeat an element, in f32 and bf16. What becomes of it is counted: taken in, left to PyTorch, or wrong, of which there
may be none. Results and gradients are held against f64 by the rule of rule.py; sizes, types, strides and whether a gradient is wanted are
eager's. test_opinfo.py draws some of all.
"""
import argparse
import collections
import contextlib
import os
import random
import sys
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

import epilog  # noqa: F401, names the backend
from epilog import _compile
from epilog._compile import Report, compile_graph
from epilog._say import SAID
from rule import floor

UNITS = {torch.float32: 8, torch.bfloat16: 4}  # of the last place of the largest result, where eager happens to be right


def claimed():
    """The samples' operations that have a name which the backend knows."""
    def names(op):
        found = {name.split(".")[-1].strip("_") for name in (op.name, op.aten_name, *(a.name for a in op.aliases))}
        return found | {n[1:] for n in found if op.name.startswith("__r")}
    return [op for op in op_db if names(op) & set(SAID) and not op.name.startswith("masked.") and torch.float32 in op.supported_dtypes("cpu")]


def title(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


# A way to call an operation: what it is of the OpInfo, how its tensors lie, whether it stands amid others, and their type.
Way = collections.namedtuple("Way", "form lie amid dtype")
WAYS = [Way("function", "packed", False, torch.float32), Way("function", "packed", True, torch.float32), Way("function", "packed", True, torch.bfloat16),
        Way("method", "packed", True, torch.float32), Way("in place", "packed", True, torch.float32), Way("operator", "packed", True, torch.float32),
        Way("function", "strided", False, torch.float32), Way("function", "repeated", False, torch.float32)]


def form_of(op, way):
    """The function, the name of the method, or None."""
    if way.form == "function":
        return op.op
    if way.form == "operator":
        return op.operator_variant if op.operator_variant is not op.op else None
    name = getattr(op.method_variant if way.form == "method" else op.inplace_variant, "__name__", None)
    return name if hasattr(torch.Tensor, str(name)) else None


def laid(tensor, how):
    """The tensor in another memory: not contiguous, or its first element along each dimension again and again."""
    if how == "packed" or not tensor.dim() or not tensor.numel():
        return tensor
    if how == "repeated" and tensor.dtype.is_floating_point:
        return tensor[(slice(1),) * tensor.dim()].expand(tensor.shape)
    wide = torch.empty(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)[..., ::2]
    return wide.copy_(tensor)


def is_float(a):
    return isinstance(a, torch.Tensor) and a.is_floating_point()


def same(t):
    """A value of the graph with the same numbers."""
    return torch.neg(torch.neg(t)) if is_float(t) else t


class Case:
    """A sample in one way: a function of its tensors."""

    def __init__(self, op, sample, way):
        leaves, self.spec = tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        self.places = [i for i, a in enumerate(leaves) if isinstance(a, torch.Tensor)]
        self.rest, self.tensors, self.way, self.call = leaves, [leaves[i].detach() for i in self.places], way, form_of(op, way)
        self.wants = [op.supports_autograd and leaves[i].requires_grad for i in self.places]

    def function(self):
        rest, places, spec, call, around = self.rest, self.places, self.spec, self.call, same if self.way.amid else lambda t: t

        def function(*tensors):
            leaves = list(rest)
            for i, t in zip(places, tensors):
                leaves[i] = around(t)
            first, args, kwargs = tree_unflatten(leaves, spec)
            found = getattr(first, call)(*args, **kwargs) if isinstance(call, str) else call(first, *args, **kwargs)
            return tuple(around(t) for t in tree_flatten(found)[0] if isinstance(t, torch.Tensor))
        return function

    def given(self, dtype=None):
        """Tensors of its own, as they are to lie; of another type where one is asked for."""
        out = []
        for t, wants in zip(self.tensors, self.wants):
            t = laid(t.clone() if t.dtype != torch.float32 or dtype is None else t.to(dtype), self.way.lie)
            out.append(t.detach().requires_grad_(wants))
        return out


def step(function, given):
    """Results, and gradients by what wants one."""
    outs = function(*given)
    kept = [o for o in outs if o.requires_grad]
    leaves = [t for t in given if t.requires_grad]
    cotangents = [torch.linspace(-0.7, 1, o.numel(), dtype=torch.float64).to(o.dtype).view(o.shape) for o in kept]
    grads = torch.autograd.grad(kept, leaves, cotangents, allow_unused=True) if kept and leaves else []
    return outs, [torch.zeros_like(t) if g is None else g for g, t in zip(grads, leaves)]


def off(mine, plain, exact, terms):
    """What differs, or None."""
    if mine.shape != plain.shape or mine.dtype != plain.dtype:
        return f"{mine.dtype} {list(mine.shape)} instead of {plain.dtype} {list(plain.shape)}"
    if not is_float(mine):
        return None if torch.equal(mine, plain) else "other elements"
    exact = plain.double() if exact is None or exact.shape != plain.shape else exact.double()
    mine, plain, dtype = mine.double(), plain.double(), mine.dtype
    odd = ~plain.isfinite()
    if not torch.equal(mine[odd].nan_to_num(7e300), plain[odd].nan_to_num(7e300)) or not mine[~odd].isfinite().all():
        return f"{mine[mine.isfinite() == odd].flatten()[:3].tolist()} instead of {plain[mine.isfinite() == odd].flatten()[:3].tolist()}"
    exact = torch.where(exact.isfinite() & ~odd, exact, plain)
    m, p, e = mine[~odd], plain[~odd], exact[~odd]
    if not e.numel():
        return None
    bound, size = floor(dtype, UNITS.get(dtype, 8), terms), e.abs().max().item()
    size = 1.0 if size < bound else size  # of a derivative that cancels nothing is left to measure by
    far, allowed = (m - e).abs().max().item(), 2 * (p - e).abs().max().item() + bound * size
    return None if far <= allowed else f"{far:.3g} off, {allowed:.3g} allowed"


def strides(t):
    return [s for s, n in zip(t.stride(), t.shape) if n > 1] if t.numel() else []


def judged(case, report):
    """What is wrong about a case, or None."""
    torch._dynamo.reset()
    function = case.function()
    fast = torch.compile(function, backend=lambda gm, inputs: compile_graph(gm, inputs, report, "eager"), fullgraph=True, dynamic=False)
    outs, grads = step(function, case.given())
    with contextlib.suppress(RuntimeError, TypeError, NotImplementedError, ValueError):
        wide_outs, wide_grads = step(function, case.given(torch.float64))
        exact = [*wide_outs, *wide_grads]
        exact += [None] * (len(outs) + len(grads) - len(exact))
    exact = locals().get("exact", [None] * (len(outs) + len(grads)))
    try:
        mine, mine_grads = step(fast, case.given())
    except Exception as why:
        return f"{type(why).__name__}: {str(why)[:200]}"
    if len(mine) != len(outs) or len(mine_grads) != len(grads):
        return f"{len(mine)} results and {len(mine_grads)} gradients instead of {len(outs)} and {len(grads)}"
    terms = max([t.numel() for t in case.tensors], default=1)
    for i, (m, p, e) in enumerate(zip([*mine, *mine_grads], [*outs, *grads], exact)):
        name = f"result {i}" if i < len(outs) else f"gradient {i - len(outs)}"
        why = off(m.detach(), p.detach(), e if e is None else e.detach(), terms)
        if why is None and i < len(outs):
            why = f"strides {m.stride()} instead of {p.stride()}" if strides(m) != strides(p) else None
            why = f"requires_grad is {m.requires_grad}" if m.requires_grad != p.requires_grad else why
        if why:
            return f"{name}: {why}"
    return None


def is_random(op, sample):
    p, training = sample.kwargs.get("p", 0.5), sample.kwargs.get("training", True)
    return "dropout" in op.name and p and training or sample.kwargs.get("dropout_p")


def samples(op, dtype):
    if dtype not in op.supported_dtypes("cpu"):
        return []
    torch.manual_seed(0)
    return [s for s in op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd) if not is_random(op, s)]


def is_edge(op, sample, way):
    """Of one element that is repeated the variance is 0, so that a rounding of the mean is multiplied by 1/sqrt(eps); a lower bound that equals the
    upper one has no gradient in eager (test_differences.py, test_equal_bounds)."""
    bounds = [b for b in (*sample.args, *sample.kwargs.values()) if isinstance(b, torch.Tensor)]
    equal = len(bounds) == 2 and bounds[0].shape == bounds[1].shape and bool((bounds[0] == bounds[1]).any())
    return (op.name == "nn.functional.group_norm" and way.lie == "repeated") or (op.name == "clamp" and equal)


def cases(op, ways=WAYS):
    for way in ways:
        if form_of(op, way) is not None:
            for number, sample in enumerate(samples(op, way.dtype)):
                if not is_edge(op, sample, way):
                    yield name_of(op, way, number), Case(op, sample, way)


def name_of(op, way, number):
    return f"{title(op)} {number} ({way.form}, {way.lie}{', amid' if way.amid else ''}, {str(way.dtype)[6:]})"


def tried(case):
    """taken in, left or wrong, and why."""
    report = Report()
    try:
        step(case.function(), case.given())
    except (RuntimeError, TypeError, ValueError) as why:
        return "not valid in this way", str(why)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        why = judged(case, report)
    if why and why.startswith("Unsupported"):  # by dynamo
        return "not valid in this way", why
    if why:
        return "wrong", why
    names = [epilog._compile.operation(n) for g in report.graphs for p in g.programs for n in p.nodes]
    inside = any(n != "neg" for n in names) or (names and "neg" in str(case.call))
    return ("taken in", "") if inside else ("left", "; ".join(w for g in report.graphs for w in g.left))


@contextlib.contextmanager
def strict():
    """Everything is worth a program, and a mistake of the backend is an error."""
    worth, before = _compile.is_worth_it, os.environ.get("EPILOG_BACKEND_STRICT")
    _compile.is_worth_it, os.environ["EPILOG_BACKEND_STRICT"] = lambda nodes: True, "1"
    try:
        yield
    finally:
        _compile.is_worth_it = worth
        os.environ.pop("EPILOG_BACKEND_STRICT")
        if before is not None:
            os.environ["EPILOG_BACKEND_STRICT"] = before


def drawn(count, seed):
    """So many cases of all."""
    draw, ops = random.Random(seed), claimed()
    while count:
        op, way = draw.choice(ops), draw.choice(WAYS)
        found = samples(op, way.dtype) if form_of(op, way) is not None else []
        number = draw.randrange(len(found)) if found else 0
        if found and not is_edge(op, found[number], way):
            yield name_of(op, way, number), Case(op, found[number], way)
            count -= 1


def counted(found):
    """How many of some cases became what, and those that are wrong."""
    count, wrong = collections.Counter(), []
    with strict():
        for name, case in found:
            what, why = tried(case)
            count[what] += 1
            if what == "wrong":
                wrong.append(f"{name}: {why}")
                print("WRONG", wrong[-1], flush=True)
    return count, wrong


def told(count):
    return f"{sum(count.values())} samples: {', '.join(f'{n} {what}' for what, n in count.items())}"


def main(ways, names):
    total = collections.Counter()
    ops = [op for op in claimed() if not names or title(op) in names or op.name in names]
    for op in ops:
        count, _ = counted(cases(op, ways))
        total += count
        print(f"{title(op)}, {told(count)}", flush=True)
    print(f"{len(ops)} operations, {told(total)}")
    return total["wrong"] > 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = argparse.ArgumentParser()
    asked.add_argument("names", nargs="*")
    asked.add_argument("--ways", default=",".join(map(str, range(len(WAYS)))), help="numbers of WAYS")
    asked = asked.parse_args()
    sys.exit(main([WAYS[int(w)] for w in asked.ways.split(",")], asked.names))

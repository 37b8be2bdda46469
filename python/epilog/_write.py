"""A region of a graph as one program: its text, and how tensors of the graph go in and come out.

Everything is written when all axes are known. Names go by the order in which they appear, so that equal layers have equal texts, and share
kernels.
"""
import functools
import itertools
import math
import string
import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ._axes import Unsaid, View, flat, joined, quotient, size_of
from ._library import EpilogError, EpilogIndexError, EpilogValueError
from ._op import op
from ._run import Plan, output_shapes, recipe, wanted_names
from ._run import size_of as axis_size
from ._say import COMPARISONS, FLOATS, INTEGERS, JOINING, SAID, Region, operation
from ._schema import bound, example
from ._views import settled

NARROW = FLOATS[1:]
TYPES = {torch.float32: ": f32", torch.bfloat16: ": bf16", torch.float16: ": f16", torch.int64: ": i64", torch.int32: ": i32"}
NUMBERS = int, float, torch.SymInt, torch.SymFloat


def is_plain(tensor, kinds=(*FLOATS, torch.bool)):
    """Is it a tensor in memory like any other, of these types, with sizes that are known before its elements are?"""
    return (isinstance(tensor, torch.Tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter, FakeTensor)
            and tensor.dtype in kinds and tensor.layout is torch.strided and tensor.device.type in ("cpu", "cuda")
            and not free_unbacked_symbols(tensor))


def name_of(node):
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def layer_of(node):
    """The item of a list of modules that a node is of, and its class's name: programs end there, so that layers share their text."""
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        if getattr(kind, "__module__", str(kind)).startswith("torch.nn"):
            continue
        parts = path.replace("[", ".").replace("]", "").replace("'", "").split(".")
        at = next((i for i, p in enumerate(parts) if p.isdigit()), None)
        if at is not None:
            return ".".join(parts[:at + 1]), getattr(kind, "__name__", str(kind).split(".")[-1])
    return None, None


def named(nodes):
    """The name of the nodes' program, which profilers show: the class of the layer that they are of. None of the language's words has a capital."""
    name = layer_of(nodes[0])[1] or ""
    return name if name.isidentifier() and name.isascii() and name[0].isupper() else "region"


@functools.lru_cache(None)
def made(text, rows, keep):
    return op(text, rows=rows, keep=keep)


class Failed(Exception):
    """The node that a region cannot have, and why. None: the region is nothing as a whole."""

    def __init__(self, node, why):
        super().__init__(why)
        self.node, self.why = node, why


class Refused(Failed):
    """The library takes no such text, or has no kernel for it. stretched: parts of weights are taken in it."""

    def __init__(self, node, why, stretched):
        super().__init__(node, why)
        self.stretched = stretched


class Mistaken(Failed):
    """By a mistake of the backend's own, which is its __cause__."""


class Saying:
    """The nodes of a region said one after the other: a Region, and the view of each node in it. masks: views of nodes outside that follow
    from positions. stretches: parts of weights are taken in the program."""

    def __init__(self, nodes, positions, stretches=True):
        self.region, self.views, self.device, self.positions, self.masks = Region(), {}, None, positions, {}
        self.region.stretches = stretches
        for node in nodes:
            self.region.at = node
            try:
                self.views[node] = self.say(node)
            except Unsaid as why:
                raise Failed(node, str(why))
            except (TypeError, KeyError, IndexError, AttributeError, ValueError, RecursionError) as why:
                raise Failed(node, f"unsupported arguments ({why})")
            except Exception as why:
                raise Mistaken(node, f"a bug of the backend: {type(why).__name__}: {why}") from why

    def given(self, node):
        """A node's view: of one before, or of an input."""
        v = example(node)
        if node in self.views:
            return self.views[node]
        if isinstance(v, (int, float, torch.SymInt)):
            return v
        known = self.positions.known.get(node)
        if known is not None and known.is_bool and (known.least is None or v.dtype in FLOATS):
            self.masks[node] = self.masks.get(node) or self.region.mask(known)
            return self.masks[node]
        if isinstance(v, torch.SymFloat) and not free_unbacked_symbols(v):  # a number that may change: an input without axes
            return float(v.node.expr) if v.node.expr.is_number else self.region.input(node, [], None)
        if not is_plain(v, (*FLOATS, torch.bool, *INTEGERS)):
            raise Unsaid(f"an input that is {v.dtype if isinstance(v, torch.Tensor) else type(v).__name__}")
        if self.device not in (None, v.device):
            raise Unsaid("tensors on two devices")
        self.device = v.device
        return self.region.input(node, [size_of(s) for s in v.shape], v.dtype)

    def say(self, node):
        name, v, args = operation(node), example(node), bound(node)
        if args is None:
            raise Unsaid("arguments that PyTorch's schemas do not have")
        given = self.given if name in JOINING else lambda n: settled(self.given(n))
        self.check_types(node, name)
        found = SAID[name](self.region, **torch.fx.map_arg(args, given))
        if not isinstance(found, View):
            return found
        if len(found.shape) != len(v.shape) or any(quotient(a, size_of(b)) != 1 for a, b in zip(found.shape, v.shape)):
            raise Unsaid(f"sizes {found.shape} instead of {list(v.shape)}")
        self.type(found.value, node, v.dtype)
        return found

    def check_types(self, node, name):
        """Where integers and truth values are not numbers like others."""
        kinds = [example(n).dtype for n in node.all_input_nodes if isinstance(example(n), torch.Tensor)]
        v = example(node)
        if isinstance(v, torch.Tensor) and v.dtype == torch.bool:
            if name in COMPARISONS and not any(k in FLOATS for k in kinds):
                raise Unsaid("a comparison of integers")
            if name not in COMPARISONS and (torch.bool not in kinds or SAID[name] in COUNTS):
                raise Unsaid("an operation on booleans")

    def type(self, value, node, dtype):
        """What is cast to fewer bits is stored so where nothing else reads it."""
        if value.dtype is None:
            value.dtype = dtype
        elif value.node is None and dtype in NARROW and value.dtype == torch.float32:
            seen = {n for n, v in self.views.items() if isinstance(v, View) and v.value is value} | {node}
            if all(u in seen for n in seen - {node} for u in n.users):
                value.dtype = dtype


COUNTS = {SAID[name] for name in "add sub mul truediv neg maximum minimum where masked_fill sum mean amax amin pow".split()}


def needed(region, values):
    """What the values are made of, and they themselves, in the order in which they were made; masks before what reads them, when their axes
    have names."""
    found, todo, order = set(), list(values), {}
    while todo:
        value = todo.pop()
        if value not in found:
            found.add(value)
            todo += value.args
    for v in [v for v in region.values if v in found] + [v for v in values if v not in region.values]:
        order.update(dict.fromkeys(v.args))
        if v.args or v.node is not None:
            order[v] = None
    return list(order)


class Names:
    """Names of axes, in the order in which they are asked for."""

    def __init__(self):
        letters = itertools.chain(string.ascii_uppercase, (c + str(i) for i in itertools.count(1) for c in string.ascii_uppercase))
        self.letters, self.used = iter(letters), {}

    def __call__(self, axis):
        found = flat([axis])
        if len(found) != 1:
            raise Unsaid("an axis that is two elsewhere")
        if found[0].whole is not None:
            name, _, by = self(found[0].whole).partition("/")
            return f"{name}/{2 * int(by or 1)}"
        if found[0] not in self.used:
            self.used[found[0]] = next(self.letters)
        return self.used[found[0]]

    def listed(self, axes):
        return f"[{', '.join(map(self, axes))}]" if axes else ""


def kept_wide(region, results):
    """What is to be f32 where it is stored: f32 beside values of 16 bits. Not so what is so on the way alone, element by element from such of 16
    bits, or from fewer numbers, to such or to a reduction, as in a norm: what it is made of would have to be stored as f32, too."""
    users = {}
    for v in region.values:
        for a in v.args:
            users.setdefault(a, []).append(v)
    wide = {v for v in region.values if v.dtype == torch.float32}
    passing, count = {v for v in wide if v.kind == "each" and v in users and v not in results}, -1
    while len(passing) != count:
        count = len(passing)
        passing = {v for v in passing if all(u in passing or u.kind == "reduction" or u.dtype in NARROW for u in users[v])
                   and all(a in passing or a.dtype != torch.float32 or len(a.axes) < len(v.axes) for a in v.args)}
    return wide - passing if any(v.dtype in NARROW for v in region.values) else set()


class Text:
    """The text of some views. inputs: values in the order of the arguments; results: (output, order of its axes, dimensions) of each view,
    where a dimension is its axes, each the number of one of the result's or (size,) of one that it is expanded along."""

    def __init__(self, name, region, results, types):
        self.region, self.names, self.axis, self.sized = region, {}, Names(), set()
        self.lines, self.origins, self.inputs, self.results, outputs = [], [], [], [], {}
        self.wide = kept_wide(region, {r.value for r in results})
        region.align()
        for value in needed(region, [r.value for r in results]):
            self.write(value)
        for view, dtype in zip(results, types):
            axes = [a for a in joined(view.dims) if a in view.value.axes]
            key = view.value, dtype
            if key not in outputs:
                outputs[key] = len(outputs), axes, f"y{len(outputs)}{TYPES[dtype]}{self.declared(axes)}"
                self.line(None, f"y{outputs[key][0]} = {self.names[view.value]}")
            number, stored, _ = outputs[key]
            self.results.append((number, [stored.index(a) for a in axes], self.dimensions(view, axes)))
        given = [f"{self.names[v]}{TYPES[v.dtype] if v.dtype in INTEGERS else ''}{self.axis.listed(v.axes)}" for v in self.inputs]
        declared = [text for _, _, text in outputs.values()]
        self.text = (f"{name}({', '.join(given)}) -> {declared[0] if len(declared) == 1 else '(' + ', '.join(declared) + ')'} {{\n    "
                     + "\n    ".join(self.lines) + "\n}\n")

    def declared(self, axes):
        """Axes of an output. Those that an index brings into being have their sizes there, if no input has them."""
        known = {a for v in self.inputs for a in v.axes}
        own = set(flat(a for a, _ in self.region.counted)) - known
        listed = [self.axis(a) + (f"={a.size}" if a in own else "") for a in axes]
        self.sized.update(self.axis(a) for a in own & set(axes))
        return f"[{', '.join(listed)}]" if listed else ""

    def undeclared(self):
        """A node that counts along an axis whose size no input and no output tells, or None."""
        base = lambda axis: self.axis(axis).partition("/")[0]
        used, known = {a for v in self.names for a in v.axes}, {base(a) for v in self.inputs for a in v.axes} | self.sized
        return next((node for axis, node in self.region.counted for a in flat([axis]) if a in used and base(a) not in known), None)

    def line(self, value, text):
        self.lines.append(text)
        self.origins.append(value and value.origin)

    def write(self, value):
        """The name of a value, and the line that makes it; its arguments have theirs."""
        if value.pair:
            both, i = value.pair
            self.names[value] = self.names[both] + "ab"[i]
        elif value.node is not None:
            self.names[value] = f"i{len(self.inputs)}"
            self.inputs.append(value)
        else:
            name, made = f"v{len(self.lines)}", value.write([self.names[a] for a in value.args], self.axis)
            declared = ": f32" if value in self.wide else ""
            self.line(value, f"{name}a, {name}b = {made}" if value.kind == "pair" else f"{name}{declared} = {made}")
            self.names[value] = name

    def dimensions(self, view, axes):
        dims = [[axes.index(a) if a in axes else (a.size,) for a in flat(d)] for d in view.dims]
        if any(isinstance(a, tuple) and not isinstance(a[0], int) for d in dims for a in d):
            raise Unsaid("a result that is expanded to an open size")
        return dims

    def node_at(self, message):
        """The node whose line a message of the library names."""
        head, _, rest = message.partition("text:")
        number = rest.split(":")[0]
        at = int(number) - 2 if number.isdigit() else -1
        return self.origins[at] if 0 <= at < len(self.origins) else None

    def kept(self):
        """Inputs that autocast leaves alone: it casts what goes into products, and nothing else."""
        factors = {a.args[0] if a.kind == "stretch" else a for v in self.region.values if v.kind == "product" for a in v.args}
        return tuple(self.names[v] for v in self.inputs if v.axes and v not in factors and v.dtype == torch.float32)

    def rows(self):
        """Axes that are open: of the first input with several, but none that is renamed to one of another input, as the keys of a mask."""
        given = {self.axis(a) for v in self.inputs for a in v.axes}
        tied = set()
        for v in self.region.values:
            for p, q in zip(*(map(self.axis, flat([a])) for a in v.renamed)) if v.renamed else ():
                tied.update({p, q} if p in given and q in given else ())
        first = next((v for v in self.inputs if v.dtype in FLOATS and len(v.axes) > 1), None)
        return tuple(n for n in map(self.axis, first.axes[:-1] if first else ()) if n not in tied and "/" not in n)

    def shapes(self):
        """Of each input the sizes that it is to be seen with: ints, and (input, dimension) where a size is open. None: as it is."""
        source = {}
        for k, v in enumerate(self.inputs):
            for dim, own in zip(v.kept, v.own):
                if len(flat([own])) == 1:
                    source.setdefault(flat([own])[0], (k, dim))
        sizes = [[a.size if isinstance(a.size, int) else source.get(a) for a in flat(v.own)] for v in self.inputs]
        if any(s is None for shape in sizes for s in shape):
            raise Unsaid("an open size that no input has alone")
        return [None if v.rank == len(v.kept) == len(flat(v.own)) else shape for v, shape in zip(self.inputs, sizes)]


def outside(nodes, masks, said):
    """What the nodes are made of: tensors, fractions, and sizes that the graph is given. masks: what the masks that are `said` are made of."""
    inside = {n: {*nodes, *said} for n in nodes} | {n: {*masks} for n in masks}
    found = dict.fromkeys(p for n in masks + nodes for p in n.all_input_nodes if p not in inside[n])
    return [p for p in found if isinstance(example(p), (torch.Tensor, torch.SymFloat)) or (isinstance(example(p), NUMBERS) and p.op == "placeholder")]


def plain_graph(nodes, given, outs):
    """The nodes as a function of PyTorch, for calls that the program turns out not to be for; None where it would need more than is given."""
    graph, env = torch.fx.Graph(), {}
    for p in given:
        env[p] = graph.placeholder(p.name)
    for n in nodes:
        if any(p not in env for p in n.all_input_nodes):
            return None
        env[n] = env.get(n) or graph.node_copy(n, env.__getitem__)
    graph.output(tuple(env[n] for n in outs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


class Program(torch.nn.Module):
    """A region that is said. Its arguments are the tensors of the nodes `given` and `seeds` random numbers, its results those of `outs`."""

    def __init__(self, nodes, positions, stretches=True):
        super().__init__()
        saying, inside = Saying(nodes, positions, stretches), set(nodes)
        masks = positions.made_of(saying.masks)
        self.nodes, self.given, self.seeds = nodes, outside(nodes, masks, saying.masks), saying.region.seeds
        self.stretched = any(v.kind == "stretch" for v in saying.region.values)
        self.outs = [n for n in nodes if any(u not in inside for u in n.users)]
        for n in self.outs:
            check_result(saying.views[n], n)
        self.device = saying.device
        self.write(saying)
        self.lie = [layout(n) for n in self.outs]
        grads = [example(n).requires_grad for n in self.outs]
        self.constant = [any(grads) and not g for g in grads]  # what no gradient reaches, beside what one does
        self.plain = plain_graph(masks + nodes, self.given, self.outs)

    # A graph with programs in it is found among those that PyTorch keeps on disk by what they compute.
    def __getstate__(self):
        kind = self.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return self.op.line, self.op.keep, self.inputs, self.results, self.lie, self.constant, self.seeds, kind, cast, self.plain and self.plain.code

    def __deepcopy__(self, memo):
        return self

    def write(self, saying):
        try:
            text = Text(named(self.nodes), saying.region, [saying.views[n] for n in self.outs], [example(n).dtype for n in self.outs])
            self.text, self.results, self.shapes = text.text, text.results, text.shapes()
        except Unsaid as why:
            raise Failed(self.nodes[-1], str(why))
        if text.undeclared():
            raise Refused(text.undeclared(), "an axis that no tensor has", self.stretched)
        try:
            self.op = made(self.text, text.rows(), text.kept())
        except EpilogValueError as why:
            raise Refused(text.node_at(str(why)), f"the program is refused: {why}", self.stretched)
        place = {n: i for i, n in enumerate(self.given)}
        seed = lambda name: len(place) + int(name.split()[1])
        self.inputs = [(seed(v.node) if isinstance(v.node, str) else place[v.node], v.cut, shape, v.dtype == torch.bool)
                       for v, shape in zip(text.inputs, self.shapes)]

    def arguments(self, tensors):
        """The tensors as the text's inputs are: cut, and seen with its axes."""
        tensors, out = [tensors[i] for i, *_ in self.inputs], []
        for t, (_, cut, shape, is_bool) in zip(tensors, self.inputs):
            for dim, start, stop in cut:
                t = t.narrow(dim, start, stop - start)
            t = t.float() if is_bool else t
            if shape is not None:
                t = t.reshape([tensors[s[0]].shape[s[1]] if isinstance(s, tuple) else s for s in shape])
            out.append(t)
        return out

    def forward(self, *tensors):
        try:
            got = self.op(*self.arguments(tensors))
        except EpilogIndexError:
            raise
        except EpilogError as why:
            if self.plain is None:
                raise
            warnings.warn(f"a region is left to PyTorch: {why}", stacklevel=2)
            return self.plain(*tensors[:len(tensors) - self.seeds])
        outs = self.shown(got if isinstance(got, (tuple, list)) else (got,))
        return tuple([t.detach() if c else t for t, c in zip(outs, self.constant)]) if any(self.constant) else outs

    def shown(self, outputs):
        """The text's outputs as the graph's tensors."""
        return tuple(seen(outputs[i], order, dims, lie) for (i, order, dims), lie in zip(self.results, self.lie))

    def planned(self, draft=False):
        """The plans for tensors like those of the graph: forward, and backward where a gradient is wanted. A draft is not compiled for a GPU."""
        with FakeTensorMode():
            given = [like(example(n)) for n in self.given] + [torch.empty((), dtype=torch.int32, device=self.device)] * self.seeds
            args = self.op.prepared(self.arguments(given))
            wrt = wanted_names(self.op.program, args) if torch.is_grad_enabled() else ()
            made = recipe(self.op.program, wrt, args) if wrt else None
            first, types = (made.forward, made.plain_types) if made else (self.op.program, None)
            outs = [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in output_shapes(first, args, types)]
            for n, t in zip(self.outs, self.shown(outs)):
                if t.shape != like(example(n)).shape or t.dtype != example(n).dtype:
                    raise EpilogError(f"{name_of(n)} would have sizes {list(t.shape)}")
            if not made:
                return [Plan(first, args, types, draft=draft)]
            values = {"input": args, "output": outs, "cotangent": outs}
            told = tuple(axis_size(made.forward, args, dim) for dim in made.backward.missing)
            # On a GPU the one that a CUDA graph takes, as nothing can be compiled while it is captured; the other one has the same texts.
            program = made.backward if self.device.type == "cuda" else made.last
            with ThreadPoolExecutor(1) as other:  # of a GPU both take seconds to compile
                backward = other.submit(Plan, program, [values[kind][i] for kind, i in made.sources], made.types(args), told, draft=draft)
                return [Plan(first, args, types, draft=draft), backward.result()]


def check_result(view, node):
    if not isinstance(view, View) or view.pieces or view.value.node is not None or not view.value.args:
        raise Failed(node, "a result that is an input, or several tensors")
    if example(node).dtype not in FLOATS:
        raise Failed(node, "a result that is not a number")


def like(v):
    """A tensor as the graph's, with the sizes that an open one has at first."""
    if not isinstance(v, torch.Tensor):
        return v.node.hint if isinstance(v, (torch.SymInt, torch.SymFloat)) else v
    sizes = [s.node.hint if isinstance(s, torch.SymInt) else s for s in v.shape]
    return torch.empty(sizes, dtype=v.dtype, device=v.device, requires_grad=v.requires_grad)


def layout(node):
    """The dimensions of a result in the order in which they are to lie in memory. None: in any, as nobody outside the graph sees them."""
    v = example(node)
    if v.is_contiguous():
        return list(range(v.dim()))
    strides = [s.node.hint if isinstance(s, torch.SymInt) else s for s in v.stride()]
    seen_outside = any(u.op == "output" for u in node.users) and 0 not in strides
    return sorted(range(v.dim()), key=lambda i: -strides[i]) if seen_outside else None


def seen(t, order, dims, lie):
    """A result of the text with the dimensions of the graph's."""
    t = t.permute(order) if order != sorted(order) else t
    if [len(d) for d in dims] != [1] * t.dim() or any(isinstance(a, tuple) for d in dims for a in d):
        n = t.shape
        size = lambda a: a[0] if isinstance(a, tuple) else n[a]
        if any(isinstance(a, tuple) for d in dims for a in d):
            t = t.reshape([1 if isinstance(a, tuple) else n[a] for d in dims for a in d]).expand([size(a) for d in dims for a in d])
        t = t.reshape([math.prod(map(size, d)) for d in dims])
    return t if lie is None else t.permute(lie).contiguous().permute([lie.index(i) for i in range(len(lie))])

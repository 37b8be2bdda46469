"""Operations of PyTorch in the language: what each is, as values and axes of a region.

SAID has a row for every operation that is understood. Its arguments have the names and defaults that PyTorch's schemas give them (_schema.py),
whichever way a node has them. An argument that a row does not name is not understood, and neither is the operation then, unless the argument is
as it would be by default.
"""
import inspect
import math
import operator
import string

import torch
import torch.nn.functional as F

from ._axes import Axis, Unsaid, View, flat, joined
from ._positions import Position, text
from ._rows import FORMS, ROWS, SAME, times
from ._schema import argument, example
from ._views import Views, index_in

FLOATS = torch.float32, torch.bfloat16, torch.float16
INTEGERS = torch.int64, torch.int32


def number(c):
    """A number as the language writes it."""
    if isinstance(c, torch.SymInt):
        if not c.node.expr.is_number:
            raise Unsaid("a number that may change")
        c = int(c.node.expr)
    if not isinstance(c, (bool, int, float)) or math.isnan(c):
        raise Unsaid(f"not a number: {c}")
    if math.isinf(c):
        return "inf" if c > 0 else "(-inf)"
    written = repr(int(c)) if c == int(c) and abs(c) < 1e6 else repr(float(c))
    return f"({written})" if c < 0 else written


class Region(Views):
    """The values of some nodes of a graph."""

    def __init__(self):
        super().__init__()
        self.seeds = 0

    def is_said(self, name):
        """Is this what the node being said is called? Of rows that several have."""
        return operation(self.at) == name

    def each(self, form, *args):
        """Elementwise: form has {} for each operand."""
        views, dims = self.broadcast([a for a in args if isinstance(a, View)])
        count = iter(range(len(views)))
        spots = [next(count) if isinstance(a, View) else number(a) for a in args]
        write = lambda names, name: form.format(*(names[s] if isinstance(s, int) else s for s in spots))
        return self.view_of(self.value(write, [v.value for v in views], sum((v.value.axes for v in views), []), "each"), dims)

    def everywhere(self, x, c):
        """A number in the places of another tensor."""
        return self.view_of(self.value(lambda names, name: number(c), [], []), x.dims)

    def mask(self, position):
        """A mask that follows from positions: said, not read."""
        dims = [[] if s == 1 else [Axis(s)] for s in position.shape]

        def write(names, name):
            place = lambda k: index_in(dims[k], name)
            seen = " and ".join(f"{text(a, place)} {sign} {text(b, place)}" for a, sign, b in position.truth or ()) or str(int(position.truth is not None))
            return seen if position.least is None else f"where({seen}, 0, {number(position.least)})"
        value = self.value(write, [], joined(dims[k] for k in position.axes()), "always" if position.truth == () else None)
        value.dtype = torch.bool if position.least is None else torch.float32
        view = self.view_of(value, dims)
        view.position = position
        return view

    def add(self, input, other, alpha=1):
        """Where a mask is added in which each row sees itself, a softmax later does not see the rest."""
        other = times(self, other, alpha)
        y = self.each("({} + {})", input, other)
        for scores, mask in ((input, other), (other, input)):
            position = getattr(mask, "position", None)
            if position is not None and position.least is not None and position.sees_itself() and scores.shape == y.shape:
                y.hidden = scores, position
        return y

    def softmax(self, x, dim):
        if x.hidden and dim % len(x.dims) == len(x.dims) - 1:
            scores, position = x.hidden
            x = self.each("where({1}, {0}, -inf)", scores, self.mask(Position(position.shape, None, position.truth)))
        return self.along("softmax", x, dim)

    def reduce(self, what, x, dim=None, keepdim=False):
        if not x.dims:  # of one number; a dimension may be named all the same
            return x
        dims = range(len(x.dims)) if dim is None else [d % len(x.dims) for d in ([dim] if isinstance(dim, int) else dim)]
        if not list(dims):
            raise Unsaid(f"{what} of no dimensions")
        gone = joined(x.dims[d] for d in dims)
        over = [a for a in gone if a in x.value.axes]
        if len(over) != len(gone) and what in ("sum", "logsumexp"):
            raise Unsaid("a sum over an expanded dimension")
        write = lambda names, name: f"{what}({names[0]}, {', '.join(map(name, flat(over)))})" if over else names[0]
        rest = [[] if i in dims else d for i, d in enumerate(x.dims) if keepdim or i not in dims]
        return self.view_of(self.value(write, [x.value], [a for a in x.value.axes if a not in over], "reduction" if over else None), rest)

    def along(self, what, x, dim):
        """What keeps the dimension that it goes along."""
        axes = flat(x.dims[dim])
        if len(axes) != 1 or axes[0] not in x.value.axes:
            raise Unsaid(f"{what} over a merged or expanded dimension")
        write = lambda names, name: f"{what}({names[0]}, {', '.join(map(name, flat(axes)))})"
        return self.view_of(self.value(write, [x.value], x.value.axes), x.dims)

    # Products.
    def product(self, a, b, over, dims):
        if not all(x in a.value.axes or x in b.value.axes for x in flat(over)) or not flat(over):
            raise Unsaid("a product over an expanded dimension")

        def write(names, name):
            axes = flat(over)
            if set(axes) == set(a.value.axes) & set(b.value.axes):
                return f"{names[0]} @ {names[1]}"
            return f"sum({names[0]}*{names[1]}, {', '.join(map(name, axes))})"
        axes = [x for x in a.value.axes + b.value.axes if x not in flat(over)]
        return self.view_of(self.value(write, [a.value, b.value], axes, "product"), dims)

    def linear(self, input, weight, bias=None):
        if len(weight.dims) != 2:
            raise Unsaid("a linear layer with a weight of one dimension")
        by = self.unify(input.dims[-1], self.fresh(weight, 0, joined(input.dims)), 1)
        y = self.product(input, by, input.dims[-1], input.dims[:-1] + [by.dims[0]])
        if bias is not None:
            y = self.each("{} + {}", y, bias)
        y.linear = input, weight, bias
        return y

    def matmul(self, input, other):
        a, b = input, other
        if len(a.dims) < 2 or len(b.dims) < 2:
            raise Unsaid("a product with a vector")
        if b.turned:
            return self.linear(a, b.turned)
        rank = max(len(a.dims), len(b.dims))
        a, b = self.padded(a, rank), self.padded(b, rank)
        b, dims = self.unify(a.dims[-1], self.fresh(b, rank - 1, joined(a.dims)), rank - 2), []
        for i in range(rank - 2):
            if flat(a.dims[i]) and flat(b.dims[i]):
                b = self.unify(a.dims[i], b, i)
            else:
                b = self.fresh(b, i, joined(a.dims))
            dims.append(flat(a.dims[i]) or b.dims[i])
        return self.product(a, b, a.dims[-1], dims + [a.dims[-2], b.dims[-1]])

    def addmm(self, input, mat1, mat2, beta=1, alpha=1):
        product = self.matmul(mat1, mat2)
        if beta == 0:  # then what is added is not read: it may be memory that nobody filled
            return self.each("{}*{}", product, alpha)
        return self.each("({}*{} + {}*{})", input, beta, product, alpha)

    def scaled_dot_product_attention(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        if dropout_p:
            raise Unsaid("dropout in attention")
        q, k, v = query, key, value
        if enable_gqa:
            k, v = self.repeated(k, q), self.repeated(v, q)
        # The backward's scores are to be those of the forward: it reads q and k themselves.
        q, k = (t if t.value.node is not None else self.each("keep({})", t) for t in (q, k))
        scores = self.matmul(q, self.transpose(k, -1, -2))
        scores = self.each("{}*{}", scores, q.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            scores = self.causal(scores)
        if attn_mask is not None and attn_mask.value.kind != "always":
            scores = self.each("where({1}, {0}, -inf)" if attn_mask.value.dtype == torch.bool else "{} + {}", scores, attn_mask)
        return self.matmul(self.along("softmax", scores, -1), v)

    def repeated(self, keys, query):
        """Keys or values for groups of heads, for each head."""
        shape, heads = keys.shape, query.shape[-3]
        if heads == shape[-3]:
            return keys
        n = heads // shape[-3]
        wide = self.expand(self.unsqueeze(keys, -3), *shape[:-2], n, *shape[-2:])
        return self.view(wide, *shape[:-3], heads, *shape[-2:])

    def causal(self, scores):
        rows, cols = scores.dims[-2], scores.dims[-1]
        if not flat(rows) or not flat(cols):
            raise Unsaid("a causal mask of one row or column")
        write = lambda names, name: f"where({index_in(cols, name)} <= {index_in(rows, name)}, {names[0]}, -inf)"
        return self.view_of(self.value(write, [scores.value], scores.value.axes), scores.dims)

    # Norms and losses.
    def layer_norm(self, input, normalized_shape, weight=None, bias=None, eps=1e-5):
        dims = list(range(-len(normalized_shape), 0))
        centred = self.each("{} - {}", input, self.reduce("mean", input, dims, True))
        return self.scaled(centred, dims, eps, weight, bias)

    def rms_norm(self, input, normalized_shape, weight=None, eps=None):
        if eps is None and input.value.dtype != torch.float32:
            raise Unsaid("rms_norm without an eps")
        return self.scaled(input, list(range(-len(normalized_shape), 0)), torch.finfo(torch.float32).eps if eps is None else eps, weight, None)

    def scaled(self, x, dims, eps, weight, bias):
        y = self.each("{}*rsqrt({} + {})", x, self.reduce("mean", self.each("{}*{}", x, x), dims, True), eps)
        y = y if weight is None else self.each("{}*{}", y, weight)
        return y if bias is None else self.each("{} + {}", y, bias)

    def cross_entropy(self, input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
        """A label outside the classes makes the loss infinite."""
        forms = weight is None and size_average is None and reduce is None and not label_smoothing
        if not forms or len(input.dims) != 2 or len(target.dims) != 1 or reduction not in ("mean", "sum"):
            raise Unsaid("an unsupported form of cross_entropy")
        classes, target = input.dims[1], self.unify(input.dims[0], target, 0)

        def write(names, name):
            z, y, over = names[0], names[1], ", ".join(map(name, flat(classes)))
            size = "*".join(f"size({name(a)})" for a in flat(classes))
            return (f"where({y} >= 0 and {y} < {size}, logsumexp({z}, {over}), inf) - "
                    f"sum(where({index_in(classes, name)} == {y}, {z}, 0), {over})")
        axes = flat(input.dims[0])
        loss = self.view_of(self.value(write, [input.value, target.value], axes), [axes])
        total = self.reduce("sum", self.each("where({} != {}, {}, 0)", target, ignore_index, loss))
        if reduction == "sum":
            return total
        return self.each("{}/{}", total, self.reduce("sum", self.each("where({} != {}, 1, 0)", target, ignore_index)))

    def dropout(self, input, p=0.5, training=True):
        """Random numbers of Epilog's own, from a seed that PyTorch draws at each call."""
        if not (p and training):
            return input
        if p >= 1:
            raise Unsaid("dropout of everything")
        seed, self.seeds = self.value(None, [], [], node=f"seed {self.seeds}"), self.seeds + 1
        seed.dtype = torch.int32
        axes = joined(input.dims)
        write = lambda names, name: f"where(uniform({names[1]}, {', '.join(map(name, flat(axes)))}) < {p}, 0, {names[0]}/{1 - p})"
        return self.view_of(self.value(write, [input.value, seed], axes), input.dims)

    def cast(self, input, **how):
        """Another type: how it is stored is said where the value is written. What is cast to 16 bits and back is rounded to them."""
        if input.value.dtype in (*INTEGERS, torch.bool):
            return self.each("({} + 0)", input)
        to = dtype_of(self.at)
        return self.each(ROUNDED[to], input) if to in ROUNDED and input.value.dtype != to and comes_back(self.at, to) else input

    def clone(self, input, memory_format=None):
        return self.each("{}", input)


# As PyTorch casts: f16(x) would have its largest number for what is beyond.
ROUNDED = {torch.bfloat16: "bf16({})", torch.float16: "(f16({0}) + where(abs({0}) < 65520, 0, sign({0})*inf))"}


def dtype_of(node):
    return getattr(example(node), "dtype", None)


def comes_back(node, dtype):
    """Is something that has the elements of a node cast to another type than its own?"""
    return any(dtype_of(u) in FLOATS and dtype_of(u) != dtype or comes_back(u, dtype) for u in node.users if operation(u) in VIEWS)


def elementwise(form):
    """The row of an operation by element: its form has the names of its arguments."""
    names = list(dict.fromkeys(name for _, name, _, _ in string.Formatter().parse(form) if name))
    numbered = form.format(**{name: "{%d}" % i for i, name in enumerate(names)})

    def say(region, **args):
        if args.keys() != set(names):
            raise Unsaid(f"arguments {', '.join(args)}")
        return region.each(numbered, *(args[name] for name in names))
    say.__signature__ = inspect.Signature(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names)
    return say


SAID = {name: elementwise(form) for name, form in {
    "mul": "{input}*{other}", "truediv": "{input}/{other}", "div": "{input}/{other}", "neg": "(-{input})",
    "square": "{input}*{input}",
    "eq": "({input} == {other})", "ne": "({input} != {other})", "lt": "({input} < {other})", "le": "({input} <= {other})",
    "gt": "({input} > {other})", "ge": "({input} >= {other})",
    "where": "where({condition}, {input}, {other})", "masked_fill": "where({mask}, {value}, {input})",
    # Of two equal numbers each has half of the gradient; their sum may be beyond the type.
    "maximum": "where({input} > {other}, {input}, where({input} < {other}, {other}, {input}/2 + {other}/2))",
    "minimum": "where({input} < {other}, {input}, where({input} > {other}, {other}, {input}/2 + {other}/2))",
    **FORMS, **{f: f + "({input})" for f in "exp log log1p sqrt rsqrt sin cos tanh erf sigmoid abs floor sign relu silu".split()}}.items()}
SAID["max"], SAID["min"] = SAID["maximum"], SAID["minimum"]  # of two tensors: an extreme along a dimension has other arguments
SAID.update((name, getattr(Region, name)) for name in (
    "add linear matmul addmm scaled_dot_product_attention layer_norm rms_norm cross_entropy dropout clone transpose flatten "
    "unflatten unsqueeze squeeze getitem chunk unbind stack repeat_interleave").split())


def says(*names):
    def keep(function):
        SAID.update(dict.fromkeys(names, function))
        return function
    return keep


says("bmm")(lambda region, input, mat2: region.matmul(input, mat2))
says("baddbmm")(lambda region, input, batch1, batch2, beta=1, alpha=1: region.addmm(input, batch1, batch2, beta, alpha))
says("view")(lambda region, input, size: region.view(input, size))
says("reshape")(lambda region, input, shape: region.view(input, shape))
says("permute")(lambda region, input, dims: region.permute(input, dims))
says("expand")(lambda region, input, size: region.expand(input, size))
says("t")(lambda region, input: region.transpose(input, 0, 1))
says("split")(Region.split_by)
says("split_with_sizes")(lambda region, input, split_sizes, dim=0: region.split_into(input, split_sizes, dim))
says("cat")(lambda region, tensors, dim=0: region.cat(tensors, dim))
says("to", "float", "type_as", "bfloat16", "half")(Region.cast)
says("contiguous")(lambda region, input, memory_format=torch.contiguous_format: input)
says("getattr")(Region.attribute)


SAID.update(ROWS)


@says("pow")
def power(region, input, exponent):
    """The derivative by an exponent is NaN in PyTorch where the base is negative."""
    if isinstance(exponent, View) and not (isinstance(input, (int, float)) and input > 0) and example(argument(region.at, "exponent")).requires_grad:
        raise Unsaid("a power whose exponent needs a gradient")
    return region.each("{}**{}", input, exponent)


@says("gelu")
def gelu(region, input, approximate="none"):
    return region.each({"none": "gelu({})", "tanh": "gelu_tanh({})"}[approximate], input)


@says("softplus")
def softplus(region, input, beta=1.0, threshold=20.0):
    if beta != 1 or threshold < 17:  # from there on it is the number itself, in f32
        raise Unsaid("a softplus with a beta or threshold")
    return region.each("softplus({})", input)


says("mean")(lambda region, input, dim=None, keepdim=False, dtype=None: region.reduce("mean", input, dim, keepdim))
says("sum")(lambda region, input, dim=None, keepdim=False, dtype=None: region.reduce("sum", input, dim, keepdim))
says("amax")(lambda region, input, dim=None, keepdim=False: region.reduce("max", input, dim, keepdim))
says("amin")(lambda region, input, dim=None, keepdim=False: region.reduce("min", input, dim, keepdim))


@says("softmax")
def softmax(region, input, dim, _stacklevel=3, dtype=None):
    return region.softmax(input, dim)


@says("log_softmax")
def log_softmax(region, input, dim, _stacklevel=3, dtype=None):
    return region.along("log_softmax", input, dim)


# Written over its first argument: the same where nobody reads that any more.
IN_PLACE = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "truediv", "add_": "add", "sub_": "sub", "mul_": "mul", "div_": "div"}
SAID.update((name, SAID[plain]) for name, plain in (IN_PLACE | SAME).items())
VIEWS = frozenset(("view reshape transpose permute expand flatten unflatten getitem unsqueeze squeeze t contiguous to float type_as clone bfloat16 half "
                   "chunk split split_with_sizes unbind stack getattr expand_as view_as reshape_as broadcast_to movedim moveaxis swapaxes swapdims select narrow ravel").split())
JOINING = frozenset("cat concat concatenate view reshape flatten".split())  # what takes the end of a tensor, or a stack, as it is
HEAVY = frozenset("linear matmul bmm addmm baddbmm einsum scaled_dot_product_attention multi_head_attention_forward layer_norm rms_norm group_norm".split())
COMPARISONS = frozenset("eq ne lt le gt ge isnan isinf isfinite greater greater_equal less less_equal not_equal".split())
FUNCTIONS = {getattr(home, name): name for home in (torch, operator, F, torch._C._nn) for name in SAID
             if callable(getattr(home, name, None)) and not (home is operator and name == "concat")} | {getattr: "getattr", torch.linalg.vector_norm: "vector_norm"}


def operation(node):
    """The name in SAID of what a node does, or None. Functions count by what they are, not by what they are called."""
    if node.op == "call_method":
        return node.target if node.target in SAID and hasattr(torch.Tensor, node.target) else None
    return FUNCTIONS.get(node.target) if node.op == "call_function" else None

"""Axes of a graph's tensors, found by propagation.

A tensor of the graph is a View: a value of the program seen with dimensions. Each dimension is a list of axes: none is a dimension of
size 1, several are a merged one, and an axis that the value lacks is broadcast. So transposes, expansions and views are lists, and
nothing else. Axes are one where an operation lines them up, and are split where a view splits them: everywhere at once, so that the split
of a linear layer's result is one of its weight.
"""
import functools
import math

import sympy
import torch


class Unsaid(Exception):
    """The language has no words for this, and why."""


def size_of(size):
    """An int, or the expression of an open size: two of these are compared without a guard."""
    if isinstance(size, torch.SymInt):
        expression = size.node.expr
        return int(expression) if expression.is_number else expression
    return size


def quotient(a, b):
    """a/b where that is whole for all sizes, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    q = sympy.cancel(sympy.sympify(a) / b)
    if sympy.denom(q) != 1:
        return None
    return int(q) if q.is_number else q


class Axis:
    """same: the axis that it turned out to be; parts: the two that it was split into; whole and half: of twice and of half its size."""

    def __init__(self, size):
        self.size, self.same, self.parts, self.whole, self.half = size, None, None, None, None


def find(axis):
    while axis.same is not None:
        axis = axis.same
    return axis


def flat(axes):
    """The axes as they are now."""
    out = []
    for a in map(find, axes):
        out += flat(a.parts) if a.parts else [a]
    return out


def joined(dims):
    return [a for d in dims for a in flat(d)]


BY_ELEMENT = "each", "pair", "half"  # kinds of values that are made position by position along all axes but those they take apart


class Value:
    """A value of the program. write(names of args, name of an axis) gives its expression when all axes are known.

    node: the graph's, of an input. cut: (dimension, start, stop) of the part of it that is taken. rank, kept: how many dimensions it has, and
    those that have an axis.
    pair: (a pair of values, 0 or 1) of one half. renamed: (from, to). taken: (value, axis, number) of an element along an axis. origin: the node whose saying made it."""

    def __init__(self, write, args, axes, kind=None, node=None):
        self.write, self.args, self.own, self.kind, self.node = write, args, list(axes), kind, node
        self.dtype, self.cut, self.rank, self.kept, self.pair, self.renamed, self.taken, self.origin = None, (), 0, (), None, None, None, None

    @property
    def axes(self):
        return list(dict.fromkeys(flat(self.own)))


class View:
    """A value with dimensions. linear: (x, w, bias) of a linear layer's result. pieces: what a stack or the end of a tensor is made of, where
    that may be joined with something: it has no value before. settle: makes the view that has one. position: of a mask, as it was made.
    hidden: (scores, position of a mask) that it is the sum of. columns: the linear layer's result whose last dimension is several here.
    turned: the input that it is the transpose of."""

    def __init__(self, value, dims, linear=None, pieces=None, settle=None):
        self.value, self.dims, self.linear, self.pieces = value, [list(d) for d in dims], linear, pieces
        self.settle = settle and functools.cache(settle)
        self.position = self.hidden = self.columns = self.turned = None

    @property
    def shape(self):
        return [math.prod(a.size for a in flat(d)) for d in self.dims]


class Space:
    """Values and views of a region, and the axes that they share."""

    def __init__(self):
        self.values, self.views, self.inputs, self.at = [], [], {}, None

    def value(self, *args, **kw):
        self.values.append(Value(*args, **kw))
        self.values[-1].origin = self.at
        return self.values[-1]

    def along_with(self, value, part, whole):
        """The value made of `whole` instead of its `part`, along the axes that the part lacks; None where it is not made by element of it."""
        found, todo, made = {value}, [value], {part: whole}
        more = [x for x in whole.axes if x not in part.axes]
        while todo:
            new = [a for a in todo.pop().args if a not in found]
            found.update(new)
            todo += new
        for v in [v for v in self.values if v in found]:
            if v.kind in BY_ELEMENT and any(a in made for a in v.args) and not any(x in v.axes for x in more):
                copy = made[v] = self.value(v.write, [made.get(a, a) for a in v.args], v.axes + more, v.kind)
                copy.dtype, copy.origin, copy.pair = v.dtype, v.origin, v.pair and (made[v.pair[0]], v.pair[1])
        return made.get(value)

    def view_of(self, value, dims, linear=None):
        axes = joined(dims)
        if len(set(axes)) != len(axes):
            raise Unsaid("an axis twice in one tensor")
        if not set(value.axes) <= set(axes):
            raise Unsaid("an axis that no dimension has")
        self.views.append(View(value, dims, linear))
        return self.views[-1]

    def input(self, node, shape, dtype, cut=()):
        key = node, cut
        if key not in self.inputs:
            for dim, start, stop in cut:
                shape = [stop - start if i == dim else s for i, s in enumerate(shape)]
            dims = [[] if s == 1 else [Axis(s)] for s in shape]
            made = self.value(None, [], joined(dims), node=node)
            made.cut, made.dtype, made.rank, made.kept = cut, dtype, len(dims), [i for i, d in enumerate(dims) if d]
            self.inputs[key] = self.view_of(made, dims)
        return self.inputs[key]

    def is_input(self, view):
        """Is it an input of the graph, as it was given?"""
        return view.value.node is not None and not view.value.cut and view is self.inputs.get((view.value.node, ()))

    # Two axes, or one.
    def split(self, axis, first, last):
        """The axis is two of these sizes, everywhere; so are those of half and twice its size."""
        if quotient(first, 2) is None and axis.half is not None:
            raise Unsaid("a split of an axis whose halves are used")
        outer, inner = Axis(first), Axis(last)
        if axis.half is not None:
            half = Axis(first // 2)
            half.whole, outer.half, find(axis.half).parts = outer, half, [half, inner]
        if axis.whole is not None:
            whole = Axis(2 * first)
            whole.half, outer.whole, find(axis.whole).parts = outer, whole, [whole, inner]
        axis.parts = [outer, inner]

    def halved(self, axis):
        if axis.half is None:
            if not isinstance(axis.size, int) or axis.size % 2:
                raise Unsaid("halves of an odd or dynamic axis")
            axis.half = Axis(axis.size // 2)
            axis.half.whole = axis
        return find(axis.half)

    def doubled(self, axis):
        if axis.whole is None:
            axis.whole = Axis(2 * axis.size)
            axis.whole.half = axis
        return find(axis.whole)

    def together(self, a, b):
        """Has a value or a view both?"""
        return (any(a in x and b in x for x in (v.axes for v in self.values))
                or any(a in x and b in x for x in (joined(v.dims) for v in self.views)))

    def merge(self, a, b):
        """Are a and b one axis from now on? Not where something has both."""
        a, b = find(a), find(b)
        if a is b:
            return True
        pairs = [(find(x), find(y)) for x, y in ((a.half, b.half), (a.whole, b.whole)) if x and y]
        pairs = [(x, y) for x, y in pairs if x is not y]
        if any(self.together(x, y) for x, y in [(a, b), *pairs]):
            return False
        b.same, a.half, a.whole = a, a.half or b.half, a.whole or b.whole
        return all([self.merge(x, y) for x, y in pairs])

    def rename(self, view, a, b):
        """The view with b in the place of a."""
        dims, value = [[b if x is a else x for x in flat(d)] for d in view.dims], view.value
        if a in value.axes:
            if b in value.axes:
                raise Unsaid("an axis twice in one tensor")

            def write(names, axis):
                text = names[0]
                for p, q in zip(flat([a]), flat([b]), strict=True):
                    text = f"rename({text}, {axis(p)}, {axis(q)})"
                return text
            value = self.value(write, [value], [b if x is a else x for x in value.axes], "rename")
            value.renamed, value.dtype = (a, b), view.value.dtype
        return self.view_of(value, dims)

    def unify(self, dim, view, i):
        """The view, with `dim` as its dimension i."""
        while True:
            p, q = flat(dim), flat(view.dims[i])
            differ = next(((x, y) for x, y in zip(p, q) if x is not y), None)
            if differ is None:
                if len(p) != len(q):
                    raise Unsaid("dimensions do not match")
                return view
            x, y = differ
            if x.size != y.size:
                self.split_larger(x, y)
            elif not self.merge(x, y):
                view = self.rename(view, y, x)

    def split_larger(self, x, y):
        """The first part of the larger of two axes has the size of the other."""
        if quotient(x.size, y.size):
            self.split(x, y.size, quotient(x.size, y.size))
        elif quotient(y.size, x.size):
            self.split(y, x.size, quotient(y.size, x.size))
        else:
            raise Unsaid("views that have no common split")

    def align(self):
        """What was renamed has as many parts as its new name: one of them may have been split later."""
        pairs = [v.renamed for v in self.values if v.renamed]
        while True:
            differ = next(((x, y) for a, b in pairs for x, y in zip(flat([a]), flat([b])) if x.size != y.size), None)
            if differ is None:
                return
            self.split_larger(*differ)

    def fresh(self, view, i, taken):
        """The view, with none of the axes `taken` in its dimension i."""
        for a in flat(view.dims[i]):
            if a in taken:
                view = self.rename(view, a, Axis(a.size))
        return view

    def padded(self, view, rank):
        """With dimensions of size 1 in front."""
        missing = rank - len(view.dims)
        return self.view_of(view.value, [[]] * missing + view.dims) if missing else view

    def broadcast(self, views):
        """The views lined up, and the dimensions of what is made of them. An axis that would be in two dimensions gets another name."""
        rank = max(len(v.dims) for v in views)
        views, dims = [self.padded(v, rank) for v in views], [[] for _ in range(rank)]
        for k in range(len(views)):
            for i in range(rank):
                views[k] = self.fresh(views[k], i, joined(d for j, d in enumerate(dims) if j != i))
            for i in range(rank):
                if flat(dims[i]) and flat(views[k].dims[i]):
                    views[k] = self.unify(dims[i], views[k], i)
                dims[i] = dims[i] or flat(views[k].dims[i])
        return views, dims

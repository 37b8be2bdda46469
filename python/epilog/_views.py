"""Views and slices of a graph's tensors: what regroups, takes and joins dimensions.

A view is lists of axes. A slice of a linear layer's result is the result of a slice of its weight; two equal parts are halves, every
second element is pairs, one of more equal blocks is an element of an axis.
"""
import math
import operator

import sympy
import torch

from ._axes import Axis, Space, Unsaid, Value, View, find, flat, joined, quotient, size_of


def listed(sizes):
    """Sizes that were given one by one, or as a list."""
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if not all(isinstance(s, (int, torch.SymInt, sympy.Basic)) and not isinstance(s, bool) for s in sizes):
        raise Unsaid("a view of another type")
    return [size_of(s) for s in sizes]


def whole(number):
    """A number that is known, of a dimension or a position."""
    number = size_of(number)
    if not isinstance(number, int) or isinstance(number, bool):
        raise Unsaid("a part of an open size")
    return number


class Views(Space):
    def __init__(self):
        super().__init__()
        self.halves_made, self.stretches, self.counted = {}, True, []

    # Regrouping.
    def view(self, x, *sizes):
        shape, total = listed(sizes), math.prod(x.shape)
        if x.pieces and len(x.pieces) == 2:
            x = self.cat(list(x.pieces), -1, "join")
        x = settled(x)
        if -1 in shape:
            shape[shape.index(-1)] = quotient(total, -math.prod(shape))
        todo, dims = joined(x.dims), []
        for size in shape:
            dim, todo = self.gathered(todo, size)
            dims.append(dim)
        if todo:
            raise Unsaid("a view across axes")
        seen = self.view_of(x.value, dims)
        if x.linear and len(shape) > len(x.dims) and shape[:len(x.dims) - 1] == x.shape[:-1]:
            seen.columns = x
        return seen

    def gathered(self, todo, size):
        """As many of the axes as have this size together, and the rest. The last of them may be split."""
        dim, have = [], 1
        while have != size:
            rest = quotient(size, have) if todo and size is not None else None
            if not rest:
                raise Unsaid("a view across axes")
            if not quotient(rest, todo[0].size):
                if not quotient(todo[0].size, rest):
                    raise Unsaid("a view across axes")
                self.split(todo[0], rest, quotient(todo[0].size, rest))
                todo = flat(todo)
            dim, have, todo = dim + todo[:1], have * todo[0].size, todo[1:]
        return dim, todo

    def transpose(self, input, dim0, dim1):
        dims = list(input.dims)
        dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
        seen = self.view_of(input.value, dims)
        seen.turned = input if len(dims) == 2 and self.is_input(input) else None
        return seen

    def attribute(self, input, name):
        """A tensor's T or mT."""
        if name not in ("T", "mT") or not isinstance(input, View) or (len(input.dims) != 2 if name == "T" else len(input.dims) < 2):
            raise Unsaid(f"an attribute, {name}")
        return self.transpose(input, -2, -1)

    def permute(self, x, *dims):
        return self.view_of(x.value, [x.dims[i] for i in listed(dims)])

    def expand(self, x, *sizes):
        shape = listed(sizes)
        dims = [[]] * (len(shape) - len(x.dims)) + x.dims
        return self.view_of(x.value, [[Axis(s)] if not flat(d) and s not in (1, -1) else d for d, s in zip(dims, shape)])

    def flatten(self, input, start_dim=0, end_dim=-1):
        rank, shape = len(input.dims), input.shape
        if not rank:
            return self.view(input, [1])
        start, end = start_dim % rank, end_dim % rank
        return self.view(input, shape[:start] + [math.prod(shape[start:end + 1])] + shape[end + 1:])

    def unflatten(self, input, dim, sizes):
        dim, shape = dim % len(input.dims), input.shape
        return self.view(input, shape[:dim] + listed((sizes,)) + shape[dim + 1:])

    def unsqueeze(self, input, dim):
        dim %= len(input.dims) + 1
        seen = self.view_of(input.value, input.dims[:dim] + [[]] + input.dims[dim:])
        if input.linear and dim < len(input.dims):
            seen.linear = self.unsqueeze(input.linear[0], dim), *input.linear[1:]
        return seen

    def squeeze(self, input, dim=None):
        rank = len(input.dims)
        dims = range(rank) if dim is None or not rank else [d % rank for d in ([dim] if isinstance(dim, int) else dim)]
        gone = [d for d in dims if not flat(input.dims[d])]
        return self.view_of(input.value, [d for i, d in enumerate(input.dims) if i not in gone]) if gone else input

    # Parts.
    def getitem(self, input, index):
        x, at = input, index
        if isinstance(x, (tuple, list)):
            return x[whole(at)]
        at = list(at) if isinstance(at, tuple) else [at]
        dots = [k for k, a in enumerate(at) if a is Ellipsis]
        if dots:
            at[dots[0]:dots[0] + 1] = [slice(None)] * (len(x.dims) - sum(a is not None for a in at) + 1)
        i = 0
        for a in at:
            if a is None:
                x = self.unsqueeze(x, i)
            elif isinstance(a, slice):
                x = self.every_second(x, i, a) if a.step == 2 else self.span(x, i, a)
            elif isinstance(a, int) and not isinstance(a, bool):
                x = self.element(x, i, a)
            elif isinstance(a, list) and len(a) == 1 and all(b is a or isinstance(b, slice) for b in at):
                k = whole(a[0]) % whole(x.shape[i])
                x = self.part(x, i, k, k + 1)
            else:
                raise Unsaid("an index that is a tensor")
            i += not isinstance(a, int)
        return x

    def every_second(self, x, dim, at):
        if at.start not in (None, 0, 1) or at.stop not in (None, 2**63 - 1):
            raise Unsaid("a slice with a step")
        last = flat(x.dims[dim])[-1]
        return self.half(x, last, at.start == 1, "pairs")

    def span(self, x, dim, at):
        if at.step not in (None, 1):
            raise Unsaid("a slice with a step")
        n, start, stop = x.shape[dim], size_of(at.start), size_of(at.stop)
        if isinstance(n, int) and all(isinstance(e, (int, type(None))) for e in (start, stop)):
            start, stop, _ = slice(start, stop).indices(n)
            return self.part(x, dim, start, stop)
        if start in (None, 0) and stop in (None, n, 2**63 - 1):
            return x
        raise Unsaid("a slice of an open size")

    def element(self, x, dim, i):
        axes, n = flat(x.dims[dim]), x.shape[dim]
        if len(axes) > 1:
            raise Unsaid("an element of a merged dimension")
        if not (-n <= i < n if isinstance(n, int) else i in (0, 1)):  # of an open size there are two at least
            raise Unsaid("an element that may not exist")
        dims = x.dims[:dim] + x.dims[dim + 1:]
        return self.take(x, axes[0], i % n if isinstance(n, int) else i, dims) if axes else self.view_of(x.value, dims)

    def take(self, x, axis, i, dims):
        if axis not in x.value.axes:
            return self.view_of(x.value, dims)

        def write(names, name):
            text, at, axes = names[0], i, flat([axis])
            for a in reversed(axes[1:]):
                text, at = f"gather({text}, {at % a.size}, {name(a)})", at // a.size
            return f"gather({text}, {at}, {name(axes[0])})"
        value = self.value(write, [x.value], [b for b in x.value.axes if b is not axis])
        value.taken = x.value, axis, i
        return self.view_of(value, dims)

    def half(self, x, axis, second, how="halves"):
        """The first or the second half along an axis, or every second element."""
        h = self.halved(axis)
        dims = [[h if b is axis else b for b in flat(d)] for d in x.dims]
        if axis not in x.value.axes:
            return self.view_of(x.value, dims)
        key = x.value, axis, how
        if key not in self.halves_made:
            axes = [h if b is axis else b for b in x.value.axes]
            write = lambda names, name: f"{how}({names[0]}, {name(flat([axis])[0 if how == 'halves' else -1])})"
            both = self.value(write, [x.value], axes, "pair")
            self.halves_made[key] = [self.value(None, [both], axes, "half") for _ in range(2)]
            for i, one in enumerate(self.halves_made[key]):
                one.pair = both, i
        return self.view_of(self.halves_made[key][second], dims)

    def part(self, x, dim, start, stop, both=False, whole_of_it=False):
        """x[start:stop] along a dimension; None where that is empty. both: the other half is taken as well. whole_of_it: so is all else."""
        dim, n = dim % len(x.dims), whole(x.shape[dim % len(x.dims)])
        if (start, stop) == (0, n):
            return x
        if start >= stop:
            return None
        if x.linear and dim == len(x.dims) - 1 and not both and all(t is None or self.is_input(t) for t in x.linear[1:]):
            x, w, bias = x.linear
            take = self.stretch if self.stretches and (whole_of_it or self.is_taken_apart(dim, n)) else self.part
            return self.linear(x, take(w, 0, start, stop), bias and take(bias, 0, start, stop))
        if x.columns and dim == len(x.columns.dims) - 1 and not both:  # heads of a linear layer's result
            inner, shape = math.prod(x.shape[dim + 1:]), x.shape
            taken = self.part(x.columns, dim, start * inner, stop * inner, whole_of_it=self.is_taken_apart(dim, n))
            return self.view(taken, *shape[:dim], stop - start, *shape[dim + 1:])
        if self.is_input(x):
            return self.part_of_input(x, dim, start, stop)
        size = stop - start
        if stop == n and n % start == 0 and (n // start > 2 or self.is_put_back(start)) and self.is_joined():
            rest = [[Axis(size)] if i == dim else d for i, d in enumerate(x.dims)]
            return View(Value(never, [], []), rest, pieces=(x, dim, start), settle=lambda: self.counting(x, dim, start, size))
        if n % size or start % size:
            return self.counting(x, dim, start, size)
        if n // size == 2 and not self.is_put_back(size):
            return self.half(x, flat(x.dims[dim])[0], start > 0)
        first, *rest = self.blocks(x, dim, n // size)
        return self.take(x, first, start // size, [d if i != dim else rest for i, d in enumerate(x.dims)])

    def is_put_back(self, start):
        """Is what the node being said takes a part of taken from `start` on only to come behind something else again? As rotary embeddings of
        the first features do."""
        def is_end(node):
            at = node.args[1] if node.target is operator.getitem else ()
            at = [a for a in (at if isinstance(at, tuple) else (at,)) if a is not Ellipsis and a != slice(None)]
            return (len(at) == 1 and isinstance(at[0], slice) and (at[0].start, at[0].step) == (start, None) and node.users
                    and all(u.target is torch.cat and u.args[0][-1] is node for u in node.users))
        return self.at.target is operator.getitem and any(is_end(n) for n in self.at.args[0].users)

    def is_joined(self):
        """Is what the node being said takes behind something else in a cat? Of nodes with several results: one of these."""
        takes = [self.at] if self.at.target is operator.getitem else list(self.at.users)
        return any(u.target is torch.cat for n in takes for u in n.users)

    def is_taken_apart(self, dim, n):
        """Is a dimension, of n, of what the node being said takes a part of taken in parts, each place once?"""
        found = [part_of(node, dim, n) for node in self.at.args[0].users]
        if None in found:
            return False
        return [end for _, end in sorted(found)] == [start for start, _ in sorted(found)][1:] + [n] and min(found)[0] == 0

    def stretch(self, x, dim, start, stop):
        """The same of an input that is used in such parts alone: gradients by them are parts of one."""
        axis, *inner = flat(x.dims[dim])
        each = math.prod(a.size for a in inner)
        if start % each or stop % each:
            return self.part(x, dim, start, stop)
        start, part = start // each, Axis((stop - start) // each)

        def write(names, name):
            return f"gather({names[0]}, {index_in([part], name)}{f' + {start}' if start else ''}, {', '.join(map(name, flat([axis])))})"
        self.counted.append((part, self.at))
        if part.size == 1:
            seen = self.take(x, axis, start, [inner if i == dim else d for i, d in enumerate(x.dims)])
        else:
            value = self.value(write, [x.value], [part if a is axis else a for a in x.value.axes])
            seen = self.view_of(value, [[part, *inner] if i == dim else d for i, d in enumerate(x.dims)])
        seen.value.kind, seen.value.dtype = "stretch", x.value.dtype
        return seen

    def counting(self, x, dim, start, size):
        """x[start:start + size] along a dimension, by an index that counts. Places before x and behind it have its first element and its last."""
        n = whole(x.shape[dim])

        def at(place):
            text = f"{place} {'-' if start < 0 else '+'} {abs(start)}"
            text = f"max({text}, 0)" if start < 0 else text
            return f"min({text}, {n - 1})" if start + size > n else text
        return self.at_places(x, dim, size, at)

    def at_places(self, x, dim, size, at):
        """Elements along a dimension, whose numbers are those that at(place) is the text of."""
        axes, new = flat(x.dims[dim]), [Axis(size)] if size > 1 else []
        dims = [new if i == dim else d for i, d in enumerate(x.dims)]
        own = [a for a in axes if a in x.value.axes]
        if not own:
            return self.view_of(x.value, dims)
        if len(own) < len(axes):
            raise Unsaid("a slice of a partly expanded tensor")
        self.counted += [(a, self.at) for a in new]

        def write(names, name):
            return f"gather({names[0]}, {at(index_in(new, name) if new else '0')}, {', '.join(map(name, flat(axes)))})"
        value = self.value(write, [x.value], new + [a for a in x.value.axes if a not in axes])
        value.dtype = x.value.dtype
        return self.view_of(value, dims)

    def part_of_input(self, x, dim, start, stop):
        node, shape = x.value.node, x.shape
        part = self.input(node, shape, x.value.dtype, ((dim, start, stop),))
        for i, d in enumerate(x.dims):
            if i != dim and flat(d):
                part = self.unify(d, part, i)
        return part

    def blocks(self, x, dim, count):
        """The axes of a dimension, the first of which counts so many equal blocks."""
        first = flat(x.dims[dim])[0]
        if isinstance(first.size, int) and first.size > count and first.size % count == 0:
            self.split(first, count, first.size // count)
        axes = flat(x.dims[dim])
        if axes[0].size != count:
            raise Unsaid("a slice across axes")
        return axes

    def split_into(self, x, sizes, dim=0):
        sizes, n = [whole(s) for s in sizes], whole(x.shape[dim])
        if sum(sizes) != n:
            raise Unsaid("parts that do not cover the tensor")
        ends = [sum(sizes[:k + 1]) for k in range(len(sizes))]
        both = len(sizes) == 2 and sizes[0] == sizes[1]
        return [self.part(x, dim, end - size, end, both, True) for end, size in zip(ends, sizes)]

    def split_by(self, input, split_size, dim=0):
        sizes, n = split_size, whole(input.shape[dim])
        return self.split_into(input, [sizes] * (n // sizes) if isinstance(sizes, int) else sizes, dim)

    def chunk(self, input, chunks, dim=0):
        n = whole(input.shape[dim])
        return self.split_into(input, [n // chunks] * chunks, dim)

    def unbind(self, input, dim=0):
        dim %= len(input.dims)
        return [self.element(input, dim, i) for i in range(whole(input.shape[dim]))]

    # Joining.
    def stack(self, tensors, dim=0):
        """Of two behind the last dimension: where it is flattened it is a join."""
        rank = len(tensors[0].dims) + 1
        single = lambda: self.cat([self.unsqueeze(t, dim) for t in tensors], dim)
        if len(tensors) != 2 or dim % rank != rank - 1:
            return single()
        return View(Value(never, [], []), tensors[0].dims + [[Axis(2)]], pieces=tuple(tensors), settle=single)

    def repeat_interleave(self, input, repeats, dim=None):
        if repeats != 2 or dim not in (-1, len(input.dims) - 1):
            raise Unsaid("a repeat_interleave")
        return self.cat([input, input], -1, "join")

    def cat(self, tensors, dim=0, how="concat"):
        parts = [p for p in tensors if p is not None]
        if len(parts) == 1:
            return parts[0]
        if len(parts) == 2 and parts[1].pieces and len(parts[1].pieces) == 3:
            return self.put(parts[0], dim % len(parts[0].dims), *parts[1].pieces)
        parts = [settled(p) for p in parts]
        dim %= len(parts[0].dims)
        if len(parts) != 2 or parts[0].shape != parts[1].shape or not flat(parts[0].dims[dim]):
            return self.one_behind_another(parts, dim)
        a, b = parts
        for i, d in enumerate(a.dims):
            if flat(d):
                b = self.unify(d, b, i)
        at = 0 if how == "concat" else -1
        h = flat(a.dims[dim])[at]
        w = self.doubled(h)
        dims = [[w if x is h else x for x in flat(d)] for d in a.dims]
        if h not in a.value.axes or h not in b.value.axes:
            raise Unsaid("a cat of an expanded dimension")
        axes = [w if x is h else x for x in dict.fromkeys(a.value.axes + b.value.axes)]
        write = lambda names, name: f"{how}({names[0]}, {names[1]}, {name(flat([w])[at])})"
        return self.view_of(self.value(write, [a.value, b.value], axes, "each"), dims)

    def one_behind_another(self, parts, dim):
        """A cat of any parts: each along all places of the result, of which it has its own."""
        sizes = [whole(p.shape[dim]) for p in parts]
        total, end = sum(sizes), sum(sizes)
        for p, size in list(zip(parts, sizes))[::-1]:
            spread, end = self.counting(p, dim, size - end, total), end - size
            y = spread if end + size == total else self.each("where({}, {}, {})", self.up_to(end + size, total, dim, len(p.dims)), spread, y)
        return y

    def up_to(self, end, total, dim, rank):
        """Is a place along a dimension before this one?"""
        axis = Axis(total)
        self.counted.append((axis, self.at))
        value = self.value(lambda names, name: f"{index_in([axis], name)} < {end}", [], [axis])
        value.dtype = torch.bool
        return self.view_of(value, [[axis] if i == dim else [] for i in range(rank)])

    def put(self, a, along, x, dim, start):
        """cat(a, x[start:]), where x[:start] is the first of equal blocks: a in that one, else x."""
        if along != dim or a.shape[dim] != start or a.shape[:dim] + a.shape[dim + 1:] != x.shape[:dim] + x.shape[dim + 1:] or a.value is x.value:
            raise Unsaid("a cat of unequal parts")
        first, *rest = self.blocks(x, dim, x.shape[dim] // start)
        for i, d in enumerate(x.dims):
            if flat(d):
                a = self.unify(rest if i == dim else d, a, i)
        # Of what the first block was made into, all blocks are: no element is taken, so that it can be done on a product's tile.
        taken = next((v for v in self.values if v.taken and (v.taken[0], find(v.taken[1]), v.taken[2]) == (x.value, first, 0)), None)
        made = taken and self.along_with(a.value, taken, x.value) or a.value
        write = lambda names, name: f"where({index_in([first], name)} == 0, {names[0]}, {names[1]})"
        return self.view_of(self.value(write, [made, x.value], [*x.value.axes, *made.axes, first], "each"), x.dims)


def part_of(node, dim, n):
    """Where the part begins and ends that a node takes of a dimension, of n, and of no other; None where it does something else."""
    if node.target is not operator.getitem:
        return None
    taken, at = node.args
    at = list(at) if isinstance(at, tuple) else [at]
    if Ellipsis in at:
        place, rank = at.index(Ellipsis), taken.meta.get("example_value", taken.meta.get("val")).dim()
        at[place:place + 1] = [slice(None)] * (rank - len(at) + 1)
    this = at.pop(dim) if dim < len(at) else None
    if isinstance(this, list) and len(this) == 1 and isinstance(this[0], int) and -n <= this[0] < n:
        this = slice(this[0] % n, this[0] % n + 1)
    known = isinstance(this, slice) and all(isinstance(e, (int, type(None))) for e in (this.start, this.stop))
    return this.indices(n)[:2] if known and this.step in (None, 1) and all(a == slice(None) for a in at) else None


def index_in(axes, name):
    """Where an element stands in a dimension of these axes."""
    first, *rest = flat(axes)
    text = f"index({name(first)})"
    for a in rest:
        text = f"({text}*size({name(a)}) + index({name(a)}))"
    return text


def settled(x):
    """A view that has a value."""
    return x.settle() if isinstance(x, View) and x.settle else x


def never(names, name):
    raise Unsaid("a stack or the end of a tensor by itself")

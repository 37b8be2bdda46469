"""Tensors of a graph whose elements follow from where they stand: numbers that count along dimensions, and masks that compare them.

Such a tensor is an expression in the positions i0, i1 … along its dimensions. A causal mask is i3 <= i2, and that is what a program says of
it, instead of reading it: attention then skips what it hides. transformers builds its masks of these alone where a model is given no other.
"""
import operator

import sympy
import torch

from ._axes import size_of

INTEGERS = torch.int64, torch.int32
MANY = 1 << 23  # what a position may be, so that it is exact in f32
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARE.update({f"__{name}__": sign for name, sign in list(COMPARE.items())})
TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}  # of a and b, said of b and a


def at(dim):
    return sympy.Symbol(f"i{dim}", integer=True)


class Unknown(Exception):
    """Elements that do not follow from where they stand."""


class Position:
    """number: an expression in positions; or truth: comparisons (a, sign, b) that hold all, where None is never true. No expression has the
    position along a dimension of size 1. least: a mask that is added, 0 where the truth is and such a number elsewhere."""

    def __init__(self, shape, number=None, truth=(), least=None):
        self.shape, self.number, self.truth, self.is_bool, self.least = list(shape), number, truth, number is None, least

    def moved(self, shape, places):
        """With places[k] for the position along dimension k."""
        change = lambda e: sympy.expand(sympy.sympify(e).subs({at(k): p for k, p in enumerate(places)}, simultaneous=True))
        if not self.is_bool:
            return Position(shape, change(self.number))
        return Position(shape, None, self.truth and tuple((change(a), sign, change(b)) for a, sign, b in self.truth), self.least)

    def padded(self, rank):
        missing = rank - len(self.shape)
        return self.moved([1] * missing + self.shape, [at(k + missing) for k in range(len(self.shape))])

    def axes(self):
        """The dimensions that it depends on."""
        found = [e.free_symbols for a, _, b in self.truth or () for e in (a, b)] if self.is_bool else [self.number.free_symbols]
        return [k for k in range(len(self.shape)) if any(at(k) in s for s in found)]

    def is_causal(self):
        """Is it true up to the same position of the last two, of which there are as many, and nothing more?"""
        n = len(self.shape)
        if n < 2 or self.shape[-1] != self.shape[-2] or not self.is_bool or not self.truth or len(self.truth) > 1:
            return False
        (a, sign, b), = self.truth
        return sympy.expand(a - b) == {"<=": at(n - 1) - at(n - 2), ">=": at(n - 2) - at(n - 1)}.get(sign)

    def sees_itself(self):
        """Is it true where the last two positions are the same, of which there are as many?"""
        n = len(self.shape)
        if n < 2 or self.shape[-1] != self.shape[-2] or self.truth is None:
            return False
        there = self.moved(self.shape, [at(min(k, n - 2)) for k in range(n)])
        return all(compared(*c) == () for c in there.truth)


def broadcast(*positions):
    rank = max(len(p.shape) for p in positions)
    positions = [p.padded(rank) for p in positions]
    return positions, [next((p.shape[k] for p in positions if p.shape[k] != 1), 1) for k in range(rank)]


def compared(a, sign, b):
    """One comparison: () where it always holds, None where it never does."""
    difference = sympy.expand(a - b)
    if difference.is_number:
        holds = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[sign](difference, 0)
        return () if holds else None
    if isinstance(b, sympy.Abs) and not isinstance(a, sympy.Abs):
        return compared(b, TURNED[sign], a)
    if isinstance(a, sympy.Abs) and sign in ("<", "<="):
        return conjunction(compared(a.args[0], sign, b), compared(-a.args[0], sign, b))
    return ((a, sign, b),)


def conjunction(a, b):
    return None if a is None or b is None else (*a, *(c for c in b if c not in a))


class Positions:
    """known: the Position of each node that has one. written: nodes whose memory something writes to, which have none."""

    def __init__(self, graph, written):
        self.known = {}
        for node in graph.nodes:
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            rule = RULES.get(name) if node.op in ("call_function", "call_method") and is_torch(node) else None
            v = node.meta.get("example_value")
            if rule is None or not isinstance(v, torch.Tensor) or node in written:
                continue
            try:
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.given)
                found = rule(*args, **kwargs)
                if found.shape == [size_of(s) for s in v.shape] and has_type(found, v.dtype) and is_exact(found):
                    self.known[node] = found
            except Exception:  # arguments of another kind: it is computed as it was
                continue

    def given(self, node):
        v = node.meta.get("example_value")
        if node in self.known:
            return self.known[node]
        if isinstance(v, (int, torch.SymInt)):
            return v
        raise Unknown

    def made_of(self, nodes):
        """The known nodes that some are made of, and they themselves, in their order."""
        found, todo = set(), list(nodes)
        while todo:
            node = todo.pop()
            if node in self.known and node not in found:
                found.add(node)
                todo += node.all_input_nodes
        return [n for n in self.known if n in found]


def is_torch(node):
    return node.op == "call_method" or getattr(torch, node.target.__name__, None) is node.target or getattr(
        operator, node.target.__name__, None) is node.target


def has_type(position, dtype):
    """Is it what such a tensor is? The only number of another type than integers is 0, of which masks are made that are added."""
    if position.least is not None or position.number == 0:
        return dtype.is_floating_point or (position.least is None and dtype in INTEGERS)
    return dtype == torch.bool if position.is_bool else dtype in INTEGERS


def is_exact(position):
    """Are all of its numbers positions and small numbers?"""
    numbers = [position.number] if not position.is_bool else [e for a, _, b in position.truth or () for e in (a, b)]
    numbers = [e.args[0] if isinstance(e, sympy.Abs) else e for e in numbers]
    symbols = {at(k) for k in range(len(position.shape))}
    return all(e.free_symbols <= symbols and all(abs(c) < MANY for c in sympy.Poly(e, *symbols).coeffs()) if e.free_symbols
               else abs(e) < MANY for e in numbers)


def arange(start, end=None, step=1, dtype=None, device=None):
    start, end = (0, start) if end is None else (start, end)
    if step != 1 or not isinstance(start, int) or not isinstance(end, (int, torch.SymInt)):
        raise Unknown
    size = size_of(end) - start
    return Position([size], sympy.Integer(start) if size == 1 else at(0) + start)


def number_of(a):
    """A number as a Position without dimensions."""
    if isinstance(a, Position):
        return a
    if not isinstance(a, int):
        raise Unknown
    return Position([], None, () if a else None) if isinstance(a, bool) else Position([], sympy.Integer(a))


def two_numbers(a, b):
    (a, b), shape = broadcast(number_of(a), number_of(b))
    if a.is_bool or b.is_bool:
        raise Unknown
    return a.number, b.number, shape


def arithmetic(function):
    def rule(a, b):
        a, b, shape = two_numbers(a, b)
        return Position(shape, sympy.expand(function(a, b)))
    return rule


def comparison(sign):
    def rule(a, b):
        a, b, shape = two_numbers(a, b)
        return Position(shape, None, compared(a, sign, b))
    return rule


def absolute(x):
    return Position(x.shape, sympy.Abs(x.number))


def zeros(size, dtype=None, device=None):
    if tuple(size):
        raise Unknown
    return Position([], sympy.Integer(0))


def chosen(mask, yes, no):
    """A mask that is added to scores."""
    if not mask.is_bool or mask.least is not None or number_of(yes).number != 0 or not isinstance(no, float) or no > -1e30:
        raise Unknown
    return Position(mask.shape, None, mask.truth, no)


def both(a, b):
    (a, b), shape = broadcast(number_of(a), number_of(b))
    if not (a.is_bool and b.is_bool) or a.least is not None or b.least is not None:
        raise Unknown
    return Position(shape, None, conjunction(a.truth, b.truth))


def getitem(x, index):
    index = list(index) if isinstance(index, tuple) else [index]
    if len(index) == len(x.shape) and all(isinstance(p, Position) for p in index):
        return taken(x, index)
    places, shape, dim = [], [], 0
    for a in index:
        if a is None:
            shape.append(1)
        elif isinstance(a, slice) and a.step is None and all(isinstance(e, (int, type(None))) for e in (a.start, a.stop)) \
                and a.start in (None, 0) and a.stop in (None, 1):
            places.append(at(len(shape)) if a.stop is None else sympy.Integer(0))
            shape.append(x.shape[dim] if a.stop is None else 1)
            dim += 1
        else:
            raise Unknown
    rest = len(x.shape) - dim
    places += [at(len(shape) + k) for k in range(rest)]
    return x.moved(shape + x.shape[dim:], places)


def taken(x, index):
    """Elements by number: of positions from 0 on."""
    index, shape = broadcast(*index)
    for p in index:
        if p.is_bool or any(c < 0 for c in sympy.Poly(p.number, *map(at, range(len(shape)))).coeffs()):
            raise Unknown
    return x.moved(shape, [p.number for p in index])


def unsqueeze(x, dim):
    dim %= len(x.shape) + 1
    return x.moved(x.shape[:dim] + [1] + x.shape[dim:], [at(k + (k >= dim)) for k in range(len(x.shape))])


def expand(x, *sizes):
    sizes = [size_of(s) for s in (sizes[0] if isinstance(sizes[0], (tuple, list)) else sizes)]
    x = x.padded(len(sizes))
    return x.moved([have if s == -1 else s for have, s in zip(x.shape, sizes)], [at(k) for k in range(len(sizes))])


def difference(x, n=1, dim=-1, prepend=None, append=None):
    """Of neighbours; what stands before the first has to continue the row."""
    dim %= len(x.shape)
    if n != 1 or append is not None or prepend is None or x.is_bool or prepend.is_bool:
        raise Unknown
    step = sympy.expand(x.number - x.number.subs(at(dim), at(dim) - 1))
    first = sympy.expand(x.number.subs(at(dim), 0) - prepend.number.subs(at(dim), 0))
    if prepend.shape[dim] != 1 or sympy.expand(step - first) != 0:
        raise Unknown
    return Position(x.shape, step)


def running_sum(x, dim):
    if not x.is_bool or x.truth is not None:
        raise Unknown
    return Position(x.shape, sympy.Integer(0))


def ones(x, size, dtype=None, device=None):
    if dtype is not torch.bool or tuple(size):
        raise Unknown
    return Position([], None, ())


RULES = {"arange": arange, "add": arithmetic(operator.add), "sub": arithmetic(operator.sub), "and_": both, "getitem": getitem, "unsqueeze": unsqueeze,
         "expand": expand, "diff": difference, "cumsum": running_sum, "new_ones": ones, "to": lambda x, *where: x,
         "abs": absolute, "__abs__": absolute, "zeros": zeros, "where": chosen,
         **{name: comparison(sign) for name, sign in COMPARE.items()}}


def text(expression, place):
    """An expression in the language; place(k) is the position along dimension k."""
    terms = []
    for symbol, by in sorted(sympy.sympify(expression).as_coefficients_dict().items(), key=lambda t: (t[0] == 1, str(t[0]))):
        word = str(abs(by)) if symbol == 1 else ("" if abs(by) == 1 else f"{abs(by)}*") + term(symbol, place)
        terms.append(("- " if by < 0 else "+ ") + word if terms else ("-" if by < 0 else "") + word)
    return " ".join(terms) or "0"


def term(symbol, place):
    return f"abs({text(symbol.args[0], place)})" if isinstance(symbol, sympy.Abs) else place(int(str(symbol)[1:]))

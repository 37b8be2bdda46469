"""Reductions, products, scans and moves of named arrays: sections 7 to 12 of docs/language.md."""
import math

import numpy as np

from axes import Named, Skip, axes_of, mapped, spread, whole, without


# ---- reductions: of an array, along an axis by its number ----
def largest(a, i, none=-np.inf, pick=np.max):
    if a.shape[i] == 0:
        return np.full(np.delete(a.shape, i), none)
    return pick(a, i)


def logsumexp(a, i):
    m = largest(a, i)
    m = np.where(np.isfinite(m), m, 0)
    return np.log(np.sum(np.exp(a - np.expand_dims(m, i)), i)) + m


def softmax(a, i):
    m = np.expand_dims(largest(a, i), i)
    e = np.exp(a - np.where(m == -np.inf, 0, m))
    return np.where(m == -np.inf, 0, e/np.sum(e, i, keepdims=True))


def log_softmax(a, i):
    sums = np.expand_dims(logsumexp(a, i), i)
    return np.where(sums == -np.inf, -np.inf, a - np.where((a == np.inf).any(i, keepdims=True), np.nan, sums))


def argmax(a, i):
    """Of the first NaN if there is one."""
    if a.shape[i] == 0:
        raise Skip("argmax of nothing")
    if a.dtype == np.int64:
        return np.argmax(a, i)
    nan = np.isnan(a)
    return np.where(nan.any(i), np.argmax(nan, i), np.argmax(np.where(nan, -np.inf, a), i)).astype(np.int64)


EXACT_REDUCTIONS = {"max": largest, "min": lambda a, i: largest(a, i, np.inf, np.min), "argmax": argmax}
REDUCTIONS = {"sum": np.sum, "mean": np.mean, "var": np.var, "logsumexp": logsumexp}
KEEPING = {"softmax": softmax, "log_softmax": log_softmax, "cumsum": np.cumsum}


def product(over, *factors):
    """The sum over these axes of the product of the factors. It is a float: its operands are, as they are rounded to the storage type."""
    m = mapped(lambda *a: math.prod(a[1:], start=a[0]))(*[Named(x.axes, x.a.astype(float)) for x in factors])
    return Named(without(m.axes, *over), m.a.sum(tuple(m.axes.index(x) for x in over)))


def is_product(over, factors):
    """Do the factors fall into two operands, as section 7 has it? Both have all of `over`, and each has an axis that the other lacks;
    what else is summed over goes to one of them."""
    x = [set(f.axes) for f in factors]
    return any(set(over) <= a & b and a - b and b - a and all(c <= a or c <= b or not c & set(over) for c in x)
               for i, a in enumerate(x) for b in x[i + 1:])


def sum_of_products(over, *factors):
    """`sum(a*b, X)`: a product, or, of factors that are none, a sum of what they make."""
    if is_product(over, factors):
        return product(over, *factors)
    m = mapped(lambda *a: math.prod(a[1:], start=a[0]))(*factors)
    return Named(without(m.axes, *over), m.a.sum(tuple(m.axes.index(x) for x in over)))


def matmul(a, b):
    """`a @ b`: the axes that are left of a, then those of b."""
    shared = [x for x in a.axes if x in b.axes]
    axes = without(a.axes, *shared) + without(b.axes, *shared)
    return Named(axes, product(shared, a, b).to(axes))


def scan(a, b, axis, back, start=None):
    """a*h + b, where h is the step before; at the first step b, or a*start + b."""
    axes = axes_of(a, b)
    i = axes.index(axis)
    steps = [np.moveaxis(spread(a, axes, b), i, 0), np.moveaxis(spread(b, axes, a), i, 0)]
    steps = [np.flip(x, 0) if back else x for x in steps]
    state, out = None if start is None else start.to(without(axes, axis)), []
    for s, t in zip(*steps):
        state = t if state is None else s*state + t
        out.append(state)
    out = np.stack(out) if out else np.zeros(steps[1].shape, np.result_type(a.a, b.a))
    return Named(axes, np.moveaxis(np.flip(out, 0) if back else out, 0, i))


# ---- an axis split in two ----
def part_of(x, axis, half, which, name):
    """`pairs` or `halves`: the first or the second of the two values."""
    n = x.size(axis)//2
    at = np.arange(n)*2 + which if name == "pairs" else np.arange(n) + which*n
    return Named([half if y == axis else y for y in x.axes], np.take(x.a, at, x.axes.index(axis)))


def put_together(a, b, half, axis, name):
    """`join` or `concat`."""
    axes = axes_of(a, b)
    z = [np.moveaxis(spread(v, axes, w), axes.index(half), 0) for v, w in ((a, b), (b, a))]
    z = np.concatenate(z) if name == "concat" else np.stack(z, 1).reshape((2*len(z[0]),) + z[0].shape[1:])
    return Named([axis if y == half else y for y in axes], np.moveaxis(z, 0, axes.index(half)))


# ---- elements by number ----
def gather(x, i, axes, sizes):
    """The axes of the index, then the others of x. Where x lacks one of the axes, it is repeated; outside: 0."""
    n, rest = int(np.prod(sizes)), without(x.axes, *axes)
    shared = tuple(a for a in rest if a in i.axes)
    free = without(rest, *shared)
    flat = np.broadcast_to(x.to(shared + tuple(axes) + free),
                           tuple(map(x.size, shared)) + tuple(sizes) + tuple(map(x.size, free)))
    flat = flat.reshape(flat.shape[:len(shared)] + (n,) + flat.shape[len(shared) + len(axes):])
    at = whole(i.a)
    if n == 0 or flat.size == 0:
        return Named(i.axes + free, np.zeros(at.shape + flat.shape[len(shared) + 1:], x.a.dtype))
    inside = (at >= 0) & (at < n)
    places = [np.arange(i.size(a)).reshape([-1 if b == a else 1 for b in i.axes]) for a in shared]
    out = flat[tuple(np.broadcast_to(p, at.shape) for p in places) + (np.where(inside, at, 0),)]
    return Named(i.axes + free, np.where(inside.reshape(inside.shape + (1,)*len(free)), out, 0))


def scatter(d, i, axes, sizes):
    """All axes of i are summed over; the new axes, then those of d that i lacks."""
    n, free = int(np.prod(sizes)), without(d.axes, *i.axes)
    both = np.broadcast_to(d.to(i.axes + free), i.a.shape + tuple(map(d.size, free)))
    both = both.reshape((i.a.size,) + both.shape[len(i.axes):])
    at = whole(i.a).reshape(-1)
    inside = (at >= 0) & (at < n)
    out = np.zeros((n,) + both.shape[1:], d.a.dtype)
    np.add.at(out, at[inside], both[inside])
    return Named(tuple(axes) + free, out.reshape(tuple(sizes) + out.shape[1:]))


def scatter_rows(d, i, summed, axes, sizes):
    """The same where some axes of i stay: each of their elements has sums of its own. They come first."""
    kept = without(i.axes, *summed)
    free = without(d.axes, *i.axes)
    shape = [i.size(x) for x in kept]
    out = np.zeros(shape + list(sizes) + [d.size(x) for x in free], d.a.dtype)
    for at in np.ndindex(*shape):
        row, index = d, i
        for x, k in zip(kept, at):
            row, index = sliced(row, x, k) if x in row.axes else row, sliced(index, x, k)
        out[at] = scatter(row, index, axes, sizes).to(tuple(axes) + free)
    return Named(kept + tuple(axes) + free, out)


def update(x, v, i, axis):
    here = Named((axis,), np.arange(x.size(axis)))
    r = mapped(lambda x, here, v, i: np.where(whole(i) == here, v, x))(x, here, v, i)
    return Named(x.axes, r.to(x.axes))


def shift(x, axis, count):
    """The element that is so many places before; 0 where there is none."""
    a = np.moveaxis(x.a, x.axes.index(axis), 0)
    out, n = np.zeros_like(a), len(a)
    if abs(count) < n:
        out[max(count, 0):n + min(count, 0)] = a[max(-count, 0):n - max(count, 0)]
    return Named(x.axes, np.moveaxis(out, 0, x.axes.index(axis)))


def renamed(x, axis, name):
    return Named([name if y == axis else y for y in x.axes], x.a)


def sliced(x, axis, at):
    return Named(without(x.axes, axis), np.take(x.a, at, x.axes.index(axis)))


# ---- the order of an index ----
def topk(x, axis, name, k):
    """The positions of the k largest: of equal ones the first; NaN is larger than all."""
    a = np.moveaxis(x.a, x.axes.index(axis), -1)
    nan = np.isnan(a)
    places = np.broadcast_to(np.arange(a.shape[-1]), a.shape)
    falling = ~a if a.dtype == np.int64 else -np.where(nan, 0, a)
    best = np.lexsort((places, falling, ~nan), axis=-1)[..., :k]
    return Named([name if y == axis else y for y in x.axes], np.moveaxis(best, -1, x.axes.index(axis)))


def order(e, axes, count):
    """The numbers of the elements in the order of their values; what is outside comes last."""
    e = whole(e.to(axes)).reshape(-1)
    return np.argsort(np.where((e < 0) | (e >= count), count, e), kind="stable")


def argsort(e, axes, count):
    return Named(axes, order(e, axes, count).reshape([e.size(x) for x in axes]))


def rank(e, axes, count):
    p = order(e, axes, count)
    q = np.empty(p.size, np.int64)
    q[p] = np.arange(p.size)
    return Named(axes, q.reshape([e.size(x) for x in axes]))


def offsets(e, axis, count):
    at = whole(e.a).reshape(-1)
    at = at[(at >= 0) & (at < count)]
    return Named((axis,), np.array([(at < i).sum() for i in range(count)], np.int64))


def segments(o, axis, count):
    """At each place the last value whose offset is not beyond it."""
    return Named((axis,), np.array([np.max(np.flatnonzero(o.a <= p), initial=0) for p in range(count)], np.int64))

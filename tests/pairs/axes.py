"""Arrays whose axes have names, and the rule that same names line up: section 6 of docs/language.md.

An array of int64 is an integer of the language, an array of float64 is a float: sums, products and moves of integers alone stay
integers by NumPy's own rules, and wrap as they do there."""
import numpy as np


class Skip(Exception):
    """What was drawn is no program of the language: draw again."""


class Named:
    def __init__(self, axes, values):
        values = np.asarray(values)
        self.axes = tuple(axes)
        self.a = values if values.dtype == np.int64 else values.astype(np.float64)
        assert self.a.ndim == len(self.axes), (axes, self.a.shape)

    def to(self, axes):
        """The values along these axes, in their order; of size 1 where it lacks one."""
        a = self.a.transpose([self.axes.index(x) for x in axes if x in self.axes])
        return a[tuple(slice(None) if x in self.axes else None for x in axes)]

    def size(self, axis):
        return self.a.shape[self.axes.index(axis)]

    def is_integer(self):
        return self.a.dtype == np.int64


def joined_order(p, q):
    return p if set(q) <= set(p) else q if set(p) <= set(q) else p + tuple(x for x in q if x not in p)


def axes_of(*values):
    """The axes of an elementwise result, in their order."""
    axes = values[0].axes
    for v in values[1:]:
        axes = joined_order(axes, v.axes)
    return axes


def sizes_of(axes, *values):
    return [next(v.size(x) for v in values if x in v.axes) for x in axes]


def spread(value, axes, *others):
    """The values repeated along those of `axes` that only the others have."""
    return np.broadcast_to(value.to(axes), sizes_of(axes, value, *others))


def mapped(f):
    """An elementwise function of named arrays, from one of arrays."""
    def run(*values):
        axes = axes_of(*values)
        return Named(axes, np.broadcast_to(f(*[v.to(axes) for v in values]), sizes_of(axes, *values)))
    return run


def without(axes, *gone):
    return tuple(x for x in axes if x not in gone)


def whole(a):
    """What an index names: the nearest integer; -1, which is no element, for NaN and what no axis has."""
    if a.dtype == np.int64:
        return a
    return np.clip(np.rint(np.where(np.isfinite(a), a, -1)), -1, 2**40).astype(np.int64)

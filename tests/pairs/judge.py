"""What a program's results should be, and how far roundings may move them.

Every value that a kernel may round is moved by a rounding of the storage type, up or down at random, many times: what the results
move by then is how far a right one may be off. Integers, and what only moves, chooses or negates elements, are never moved."""
import math

import numpy as np

from axes import Named
from maps import CONVERSIONS
from program import Input

ROUNDING = {"f32": 2.0**-22, "bf16": 2.0**-8, "f16": 2.0**-11}
BITS = {"f32": 24, "bf16": 8, "f16": 11}
LARGEST = {"f32": 1e30, "bf16": 1e30, "f16": 6e4}  # beyond which results may be infinite
BOLD = 4  # roundings that add up on the way to a step, as of a position
SHARE = 0.01  # of a value's largest operand, that its smallest element may be off by, in roundings


def is_held(a, type):
    """Are all of these numbers of the type, as small multiples of 1/8 are?"""
    eighths = 8*a
    return (eighths == np.rint(eighths)).all() and (np.abs(eighths) < 2.0**BITS[type]).all()


def largest(a):
    a = np.abs(np.asarray(a, float))
    return np.max(a[np.isfinite(a)], initial=0)


class Nearest:
    """In the place of random numbers: every value is rounded to the nearest number of a type."""
    def __init__(self, type):
        self.type = type

    def choice(self, list):
        return self.type


def moved(m, operands, inside, type, rng, scale):
    """The value as some kernel might have it: as it is rounded to the type or to f32, with an error in each element, or, of a sum, with
    nothing left of what is as small as a rounding of its terms."""
    finite = np.isfinite(m.a)
    if not inside and is_held(m.a[finite], type):
        return m
    how = rng.choice(["error", "error", "f32", type] + ["cancelled"]*inside)
    most = max(map(largest, [m.a] + [x.a for x in operands]))
    if how == "cancelled":
        a = np.where(np.abs(m.a) < ROUNDING[type]*most, 0, m.a)
    elif how == "error":
        a = m.a + scale*ROUNDING[type]*(np.abs(m.a) + SHARE*most)*rng.uniform(-1, 1, m.a.shape)
    else:
        a = CONVERSIONS[how](m.a)
    return Named(m.axes, np.where(finite, a, m.a))


def taken(operands, type, rng):
    """What a product may take of these: integers are rounded, and of three or more factors some are multiplied ahead of it."""
    def rounded(x):
        if x.is_integer():
            return Named(x.axes, CONVERSIONS[rng.choice(["f32", type])](x.a.astype(float)))
        if len(operands) == 2 or isinstance(rng, Nearest):
            return x
        return Named(x.axes, x.a*(1 + ROUNDING[type]*rng.uniform(-1, 1, x.a.shape)))
    return [rounded(x) for x in operands]


def evaluated(program, type=None, rng=None, scale=1, inputs=None, base=None):
    """All values of a program. With `rng` they are moved, by `scale` roundings; `inputs` may be others than its own; with `base`, the values of a run
    before, a conversion moves as its operand does, and a step does not."""
    now = {}
    with np.errstate(all="ignore"):
        for v in program.values:
            operands = [now[a] for a in v.args]
            if isinstance(v, Input):
                m = (inputs or {}).get(v, v.now)
            elif base and v.step:
                m = base[v]
            elif base and v.straight:
                m = Named(v.axes, base[v].a + operands[0].to(v.axes) - base[v.args[0]].to(v.axes))
            else:
                m = v.f(*operands)
            if rng is not None and v.multiplies and not m.is_integer():
                m = v.f(*taken(operands, type, rng))
            if rng is not None and not v.exact and not m.is_integer():
                m = moved(m, operands, v.inside, type, rng, scale)
            now[v] = m
    return now


def stored(a, kind):
    """As an output of this type has it."""
    if kind == "i32":
        return np.clip(a, -2**31, 2**31 - 1)
    return a


def results(program, now):
    return [stored(now[y.value].to(y.axes), y.kind) for y in program.results]


def off_by(program, now, got, type, trials):
    """How many times what roundings explain the worst element is off, and which it is: (0, "") where all are right."""
    right, worst, where = results(program, now), 0, ""
    with np.errstate(all="ignore"):
        close = [same(a, r) | (np.abs(a - r) <= ROUNDING[type]*np.abs(r)*(r.dtype != np.int64)) for a, r in zip(got, right)]
    if all(c.all() for c in close):
        return 0, ""
    draws = [(Nearest("f32"), 1), (Nearest(type), 1), *((np.random.default_rng(t), 1) for t in range(trials))]
    draws += [(np.random.default_rng(t), BOLD) for t in range(trials//2)]
    others = [(scale, results(program, evaluated(program, type, rng, scale))) for rng, scale in draws]
    for i, (a, r) in enumerate(zip(got, right)):
        apart = {scale: np.array([distance(m[i], r) for s, m in others if s == scale]) for scale in (1, BOLD)}
        q = np.where(same(a, r), 0, far(np.asarray(a, float), np.asarray(r, float), apart, type, r.dtype == np.int64))
        if q.size and q.max() > worst:
            worst, k = q.max(), np.unravel_index(np.argmax(q), q.shape)
            where = f"y{i}{list(map(int, k))} is {a[k]:.10g}, right is {r[k]:.10g}"
    return worst, where


def distance(m, r):
    """Infinite where one is a number and the other is not."""
    m, r = np.asarray(m, float), np.asarray(r, float)
    with np.errstate(all="ignore"):
        return np.where(same(m, r), 0, np.where(np.isfinite(m) & np.isfinite(r), np.abs(m - r), np.inf))


def same(a, r):
    return (a == r) | ((a != a) & (r != r))


def far(a, r, apart, type, integer):
    """Each element's distance from the right one, over what is allowed: `apart` has how far roundings moved it."""
    spread, bold = apart[1].max(0), apart[BOLD].max(0)
    spread = np.where(bold > 4*BOLD*spread, bold, spread)  # a step is in between
    finite = np.isfinite(spread)
    typical = np.quantile(spread[finite], 0.9) if finite.any() else 0
    rest = 2*ROUNDING[type]*(np.abs(r) + 0.02*largest(r))*(SHARE if type != "f32" and not spread.any() else 1)
    with np.errstate(all="ignore"):
        allowed = 8*spread + (2.0**-23*np.abs(r) if integer else 4*typical + rest)
        q = np.abs(a - r)/(allowed + 1e-30)
        unsure = ~finite | (np.isinf(a) & (a == -r))  # the sign of a zero that was divided by
        return np.where(unsure, 0, np.where(np.isnan(q), math.inf, q))

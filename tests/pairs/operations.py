"""The table of operations: how each takes a value as one of its operands, as text and as NumPy.

An entry is a function of the program, the value, and the operand that the value becomes; it draws everything else, and gives the new
value. What the language does not allow raises Skip."""
import math

import numpy as np

import maps
import moves
from axes import Named, Skip, mapped, sizes_of, without
from program import base

TABLE = {}  # name: (how it takes a value, how many operands it has)


def operation(name, operands=1):
    def put(f):
        TABLE[name] = (f, operands)
        return f
    return put


def with_others(p, v, at, count):
    """The value at its place, and others with axes of it."""
    return [v if i == at else p.fresh(p.some(v)) for i in range(count)]


def listed(values):
    return ", ".join(x.text for x in values)


def with_axis(p, v, axis):
    """Some axes of the value, this one among them."""
    return list(dict.fromkeys([axis] + p.some(v)))


# ---- maps ----
def take_unary(name, f, exact):
    def take(p, v, at):
        text = f"-{v.text}" if name == "-" else f"not {v.text}" if name == "not" else f"{name}({v.text})"
        if name == "rsqrt":
            look_at_zeros(v)
        if name == "floor" and v.divides_integers:
            return p.add(text, mapped(maps.floor_of_quotient), *v.args, exact=True, step=True)
        return p.add(text, mapped(f), v, exact=exact, inside=not exact, step=name in maps.STEPS)
    operation("neg" if name == "-" else name)(take)


def take_conversion(name, f):
    def take(p, v, at):
        return p.add(f"{name}({v.text})", mapped(f), v, exact=name not in ("f32", "f16", "bf16"), straight=True)
    operation(name)(take)


def has_whole_zero(v):
    """Is it made of an integer that is 0 somewhere?"""
    return bool(v.args) and (v.now.is_integer() and (v.now.a == 0).any() or any(map(has_whole_zero, v.args)))


def look_at_zeros(v):
    """An integer's 0 may be -0 where f32 holds it, also as an element of a float; NumPy's has no sign, which the inverse has."""
    if (v.now.a == 0).any() and has_whole_zero(v):
        raise Skip("an inverse of a zero that may be -0")


def take_binary(name, f, exact):
    def take(p, v, at):
        a, b = with_others(p, v, at, 2)
        if name == "/":
            look_at_zeros(b)
        elif name == "pow":
            look_at_zeros(a)
        text = f"{name}({a.text}, {b.text})" if name in ("min", "max", "pow") else f"{a.text} {name} {b.text}"
        made = p.add(text, mapped(f), a, b, exact=exact, inside=name == "pow", step=name in maps.STEPS)
        made.divides_integers = name == "/" and a.now.is_integer() and b.now.is_integer()
        return made
    operation(name, 2)(take)


for _name, _f in maps.EXACT_UNARY.items():
    take_unary(_name, _f, True)
for _name, _f in maps.UNARY.items():
    take_unary(_name, _f, False)
for _name, _f in maps.CONVERSIONS.items():
    take_conversion(_name, _f)
for _name, _f in maps.EXACT_BINARY.items():
    take_binary(_name, _f, True)
for _name, _f in maps.BINARY.items():
    take_binary(_name, _f, False)


@operation("square")
def _(p, v, at):
    return p.add(f"{v.text}**2", mapped(lambda a: a*a), v)


def take_quotient(name, text):
    def take(p, v, at):
        a, b = with_others(p, v, at, 2)
        if not a.now.is_integer():
            look_at_zeros(b)
        return p.add(text.format(a.text, b.text), mapped(maps.floor_of_quotient), a, b, exact=True, step=True)
    operation(name, 2)(take)


take_quotient("floor of a quotient", "floor({}/{})")
take_quotient("//", "{} // {}")


@operation("%", 2)
def _(p, v, at):
    a, b = with_others(p, v, at, 2)
    text = f"{a.text} % {b.text}"
    if a.now.is_integer() and b.now.is_integer():
        return p.add(text, mapped(np.remainder), a, b)
    q = p.add("", mapped(maps.floor_of_quotient), a, b, exact=True, step=True, named=False)
    most = p.add("", mapped(np.multiply), b, q, inside=True, named=False)
    return p.add(text, mapped(np.subtract), a, most, inside=True)


@operation("where", 3)
def _(p, v, at):
    a = with_others(p, v, at, 3)
    return p.add(f"where({listed(a)})", mapped(lambda c, x, y: np.where(c != 0, x, y)), *a, exact=True)


@operation("clamp", 3)
def _(p, v, at):
    a = with_others(p, v, at, 3)
    return p.add(f"clamp({listed(a)})", mapped(lambda x, low, high: np.minimum(np.maximum(x, low), high)), *a, exact=True)


@operation("dither", 2)
def _(p, v, at):
    a, b = with_others(p, v, at, 2)
    return p.add(f"dither({a.text}, {b.text})", mapped(maps.dither), a, b, exact=True, straight=True)


# ---- reductions ----
def take_reduction(name, f, exact):
    def take(p, v, at):
        x = p.axis(v)
        if v.now.is_integer() and p.size(x) == 0 and name in ("max", "min"):
            raise Skip("an extreme of no integers")
        if name != "argmax" and len(v.axes) > 1 and v.now.a.size and p.chance(0.2):
            return p.add(f"{name}({v.text}, {', '.join(v.axes)})", lambda m: Named((), f(m.a.reshape(-1), 0)), v, exact=exact)
        return p.add(f"{name}({v.text}, {x})", lambda m: Named(without(m.axes, x), f(m.a, m.axes.index(x))), v, exact=exact)
    operation(name)(take)


def take_keeping(name, f):
    def take(p, v, at):
        x = p.axis(v)
        return p.add(f"{name}({v.text}, {x})", lambda m: Named(m.axes, f(m.a, m.axes.index(x))), v, inside=True)
    operation(name)(take)


for _name, _f in moves.EXACT_REDUCTIONS.items():
    take_reduction(_name, _f, True)
for _name, _f in moves.REDUCTIONS.items():
    take_reduction(_name, _f, False)
for _name, _f in moves.KEEPING.items():
    take_keeping(_name, _f)


# ---- products ----
@operation("@", 2)
def _(p, v, at):
    x = p.axis(v)
    w = p.fresh([x] + ([p.other(v)] if p.chance(0.8) else []))
    a, b = (v, w) if at == 0 else (w, v)
    return p.add(f"{a.text} @ {b.text}", moves.matmul, a, b, inside=True, multiplies=True)


@operation("sum of products", 2)
def _(p, v, at):
    x = p.axis(v)
    w = p.fresh(with_axis(p, v, x) + ([p.other(v)] if p.chance(0.7) else []))
    a, b = (v, w) if at == 0 else (w, v)
    return p.add(f"sum({a.text}*{b.text}, {x})", lambda a, b: moves.sum_of_products([x], a, b), a, b, inside=True,
                 multiplies=True)


@operation("sum of three", 3)
def _(p, v, at):
    x, o = p.axis(v), p.other(v)
    a = [p.fresh([x, o]), p.fresh([x] if p.chance(0.5) else [o])]
    a.insert(at, v)
    return p.add(f"sum({'*'.join(n.text for n in a)}, {x})", lambda *n: moves.sum_of_products([x], *n), *a, inside=True,
                 multiplies=True)


@operation("product of rows with rows", 2)
def _(p, v, at):
    x = p.axis(v)
    if len(v.axes) < 2:
        raise Skip("a vector")
    k, u = next(a for a in v.axes if a != x), p.new_name(v, x)
    other = p.fresh(v.axes) if p.chance(0.3) else v
    a, b = (v, other) if at == 0 else (other, v)
    return p.add(f"sum({a.text}*rename({b.text}, {x}, {u}), {k})",
                 lambda m, n: moves.sum_of_products([k], m, moves.renamed(n, x, u)), a, b, inside=True, multiplies=True)


# ---- an axis split in two ----
def take_parts(name):
    def take(p, v, at):
        x = p.axis(v)
        if "/" in x or p.size(x) % 2:
            raise Skip("an odd axis")
        half, which, both = x[2:] if x.startswith("2*") else f"{x}/2", p.pick([0, 1]), f"s{len(p.values)}"
        p.lines.append(f"{both}_0, {both}_1 = {name}({v.text}, {x})")
        if p.chance(0.5):
            p.lines.append(f"{both}_2 = {both}_{1 - which}*2")
        return p.add(f"{both}_{which}", lambda m: moves.part_of(m, x, half, which, name), v, exact=True, named=False)
    operation(name)(take)


def take_halves(name):
    def take(p, v, at):
        half = p.axis(v)
        axis = half[:-2] if half.endswith("/2") else f"2*{half}" if half in p.sizes else None
        if not axis:
            raise Skip("a factor")
        w = p.fresh(with_axis(p, v, half))
        a, b = (v, w) if at == 0 else (w, v)
        return p.add(f"{name}({a.text}, {b.text}, {axis})", lambda a, b: moves.put_together(a, b, half, axis, name), a, b, exact=True)
    operation(name, 2)(take)


for _name in ("pairs", "halves"):
    take_parts(_name)
for _name in ("join", "concat"):
    take_halves(_name)


# ---- elements by number ----
@operation("slice")
def _(p, v, at):
    x = p.axis(v)
    n = p.size(x)
    if n == 0:
        raise Skip("nothing to take")
    k = int(p.rng.integers(n))
    number = f"size({x}) - 1" if k == n - 1 else k
    text = f"{v.text}[{k}]" if x == v.axes[0] and p.chance(0.4) else f"gather({v.text}, {number}, {x})"
    return p.add(text, lambda m: moves.sliced(m, x, k), v, exact=True)


@operation("stretch")
def _(p, v, at):
    x, c = p.axis(v), p.other(v, "CK")
    n, k = p.size(x), p.size(c)
    if k > n:
        raise Skip("a short axis")
    first = int(p.rng.integers(n - k + 1))
    p.input([c])  # an axis that an input has
    return p.add(f"gather({v.text}, index({c}) + {first}, {x})",
                 lambda m: moves.gather(m, Named((c,), np.arange(k) + first), [x], [n]), v, exact=True)


@operation("gather", 2)
def _(p, v, at):
    x = p.axis(v) if at == 0 else p.other(v)
    n = p.size(x)
    if at == 0:
        axes = [p.other(v)] + [a for a in v.axes if a != x and p.chance(0.4)] if p.chance(0.7) else [x]
        a, i = v, p.index(axes, n)
    else:
        a, i = p.fresh([x] + [y for y in v.axes if p.chance(0.3)]), v
    return p.add(f"gather({a.text}, {i.text}, {x})", lambda a, i: moves.gather(a, i, [x], [n]), a, i, exact=True)


@operation("gather of two", 2)
def _(p, v, at):
    if at == 0:
        if len(v.axes) < 2:
            raise Skip("a vector")
        x = list(p.mixed(v.axes)[:2])
        sizes = [p.size(y) for y in x]
        a, i = v, p.index([p.other(v)], math.prod(sizes))
    else:
        x = [p.other(v)]
        x.append(p.other(v, "TDSCV".replace(x[0], "")))
        sizes = [p.size(y) for y in x]
        a, i = p.fresh(x), v
    return p.add(f"gather({a.text}, {i.text}, {x[0]}, {x[1]})", lambda a, i: moves.gather(a, i, x, sizes), a, i, exact=True)


@operation("scatter", 2)
def _(p, v, at):
    if at == 0:
        y = p.axis(v)
        x = y if p.chance(0.2) else p.other(v)
        d, i = v, p.index([y] + [a for a in v.axes if a != y and p.chance(0.3)], p.size(x))
    else:
        x = p.other(v)
        d, i = p.fresh(p.some(v) + ([p.other(v, [c for c in "TDSCV" if c != x])] if p.chance(0.5) else [])), v
    p.input([x])
    return p.add(f"scatter({d.text}, {i.text}, {x})", lambda d, i: moves.scatter(d, i, [x], [p.size(x)]), d, i)


@operation("scatter of rows", 2)
def _(p, v, at):
    to = [p.other(v)]
    if p.chance(0.2):
        to.append(p.other(v, "TDSCV".replace(to[0], "")))
    sizes = [p.size(x) for x in to]
    if at == 0:
        axes = p.some(v) + ([p.other(v, [c for c in "TDSCV" if c not in to])] if p.chance(0.3) else [])
        d, i = v, p.index(axes, math.prod(sizes))
    else:
        d, i = p.fresh(p.some(v) + ([p.other(v, [c for c in "TDSCV" if c not in to])] if p.chance(0.5) else [])), v
    if not i.axes:
        raise Skip("a number")
    summed = p.some(i)
    p.input(to)
    return p.add(f"scatter({d.text}, {i.text}, {', '.join(summed)} -> {', '.join(to)})",
                 lambda d, i: moves.scatter_rows(d, i, summed, to, sizes), d, i)


@operation("update", 3)
def _(p, v, at):
    if at == 0:
        x = p.axis(v)
        rest = without(v.axes, x)
        a = [v, p.fresh([y for y in rest if p.chance(0.7)]), p.index([y for y in rest if p.chance(0.5)], p.size(x))]
    else:
        x = p.other(v)
        u = p.fresh([x] + list(v.axes))
        a = [u, v, p.index([y for y in v.axes if p.chance(0.5)], p.size(x))] if at == 1 else [u, p.fresh(p.some(v)), v]
    return p.add(f"update({listed(a)}, {x})", lambda a, v, i: moves.update(a, v, i, x), *a, exact=True)


@operation("shift")
def _(p, v, at):
    x, count = p.axis(v), p.pick([-2, -1, 1, 2, 9])
    return p.add(f"shift({v.text}, {x}, {count})", lambda m: moves.shift(m, x, count), v, exact=True)


@operation("rename")
def _(p, v, at):
    x = p.axis(v)
    u = p.new_name(v, x)
    return p.add(f"rename({v.text}, {x}, {u})", lambda m: moves.renamed(m, x, u), v, exact=True)


# ---- along time ----
def take_scan(name):
    def take(p, v, at):
        x = p.axis(v) if at < 2 else p.other(v)
        if at < 2:
            w = p.fresh(with_axis(p, v, x))
            a = [v, w] if at == 0 else [w, v]
        else:
            a = [p.fresh([x] + list(v.axes)), p.fresh([x] + list(v.axes)), v]
        start = f", {v.text}" if at == 2 else ""
        return p.add(f"{name}({a[0].text}, {a[1].text}, {x}{start})", lambda a, b, *h: moves.scan(a, b, x, name == "scan_back", *h), *a, inside=True)
    operation(name, 3)(take)


for _name in ("scan", "scan_back"):
    take_scan(_name)


# ---- the order of an index ----
@operation("topk")
def _(p, v, at):
    x, k = p.axis(v), p.size("K")
    if "K" in v.axes or k > p.size(x):
        raise Skip("no K")
    return p.add(f"topk({v.text}, {x}, K={k})", lambda m: moves.topk(m, x, "K", k), v, exact=True)


def take_order(name, f):
    def take(p, v, at):
        if not v.axes:
            raise Skip("a number")
        e = p.other(v)
        p.input([e])
        return p.add(f"{name}({v.text}, {e}, {', '.join(v.axes)})", lambda m: f(m, v.axes, p.size(e)), v, exact=True)
    operation(name)(take)


for _name, _f in (("argsort", moves.argsort), ("rank", moves.rank)):
    take_order(_name, _f)


@operation("offsets")
def _(p, v, at):
    if not v.axes:
        raise Skip("a number")
    e = p.other(v)
    p.input([e])
    return p.add(f"offsets({v.text}, {e})", lambda m: moves.offsets(m, e, p.size(e)), v, exact=True)


@operation("segments")
def _(p, v, at):
    if len(v.axes) != 1 or not v.now.a.size or v.now.a[0] != 0 or (np.diff(v.now.a) < 0).any():
        raise Skip("offsets must ascend from 0")
    place = p.other(v)
    p.input([place])
    return p.add(f"segments({v.text}, {v.axes[0]}, {place})", lambda m: moves.segments(m, place, p.size(place)), v, exact=True)


# ---- calls: section 14 ----
CALLED = {"rows": "rows(a[M,N]) -> r[M] { r = sum(a*a, N) }", "cols": "cols(a[M,N]) -> r[N] { r = sum(a, M) }",
          "first": "first(a[M,N]) -> r[N] { r = a[0] }", "mix": "mix(a, b, t) -> y { y = a + t*(b - a) }",
          "half": "half(a) -> y { y = a/2 }", "plus": "plus(a, w) -> y { y = a*0.5 + w }",
          "turn": "turn(a[M,N], b[M,N]) -> r[M] { r = sum(tanh(a)*b, N) }"}


def call(p, name, v=None):
    """The program called so stands in the text; it takes a value of two axes or more."""
    if v and len(v.axes) < 2:
        raise Skip("few axes")
    p.calls[name] = CALLED[name]


def carried(f):
    """An elementwise function as a program: what its arguments have comes in their order."""
    def run(*values):
        axes = tuple(dict.fromkeys(x for v in values for x in v.axes))
        return Named(axes, mapped(f)(*values).to(axes))
    return run


@operation("call rows")
def _(p, v, at):
    call(p, "rows", v)
    return p.add(f"rows({v.text})", lambda m: Named(m.axes[:-1], (m.a*m.a).sum(-1)), v, inside=True)


@operation("call cols")
def _(p, v, at):
    call(p, "cols", v)
    return p.add(f"cols({v.text})", lambda m: Named(without(m.axes, m.axes[-2]), m.a.sum(-2)), v)


@operation("call first")
def _(p, v, at):
    call(p, "first", v)
    if p.size(v.axes[-2]) == 0:
        raise Skip("nothing to take")
    return p.add(f"first({v.text})", lambda m: moves.sliced(m, m.axes[-2], 0), v, exact=True)


@operation("call mix", 3)
def _(p, v, at):
    call(p, "mix")
    a = with_others(p, v, at, 3)
    return p.add(f"mix({listed(a)})", carried(lambda a, b, t: a + t*(b - a)), *a, inside=True)


@operation("repeat")
def _(p, v, at):
    call(p, "half")
    return p.add(f"repeat(half, 3)({v.text})", mapped(lambda a: a/8), v)


@operation("repeat of a stack", 2)
def _(p, v, at):
    call(p, "plus")
    x = p.axis(v) if at else p.other(v)
    if x not in "TDSCV" or not all(p.sizes.values()):  # a size in a text is not 0
        raise Skip("no layers")
    a, w = (v, p.fresh([x] + p.some(v))) if at == 0 else (p.fresh(list(without(p.some(v), x))), v)
    p.sizes_in_text = True

    def run(a, w):
        for k in range(p.size(x)):
            a = carried(lambda a, b: a*0.5 + b)(a, moves.sliced(w, x, k))
        return a
    return p.add(f"repeat(plus, {x})({a.text}, {w.text})", run, a, w)


@operation("call grad", 3)
def _(p, v, at):
    if len(v.axes) != (1 if at == 2 else 2):
        raise Skip("axes")
    m, n = (v.axes[0], p.other(v)) if at == 2 else v.axes
    a = [v if i == at else p.fresh(axes) for i, axes in enumerate(([m, n], [m, n], [m]))]
    if any(x.axes != (m, n) for x in a[:2]):  # axes are bound by position
        raise Skip("another order")
    call(p, "turn")
    t = p.add("", mapped(np.tanh), a[0], named=False)  # it may be rounded by itself
    return p.add(f"grad(turn, a)({listed(a)})", mapped(lambda a, b, d, t: d*b*(1 - t*t)), *a, t, inside=True)

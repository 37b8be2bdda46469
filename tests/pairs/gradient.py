"""Gradients: the derived program, run, beside differences of the oracle along a random direction of each input.

Where the oracle has one derivative on one side and another one on the other, or none, nothing is said. How far roundings may move a
gradient says the library's reference, each value of which is moved by a rounding."""
import numpy as np

import judge
from axes import Named, Skip
from program import Result, declared
from runner import Request, packed

STEP = 2.0**-12
TRIALS = 6


def derivable(p):
    """Inputs that have a gradient."""
    return [x for x in p.inputs if x.kind in ("f32", "", "param")]


def text_of(p, inputs):
    """The program, and behind it one that gives its gradients."""
    given = [Result(f"d{y.text[1:]}", "f32", y.axes, y.value) for y in p.results]
    gives = [Result(f"g{x.text[1:]}", "f32", x.axes, x) for x in inputs]
    body = f"{', '.join(g.text for g in gives)} = grad(f, {', '.join(x.text for x in inputs)})({', '.join(t.text for t in p.inputs + given)})"
    head = f"p({', '.join(filter(None, [declared(p, p.inputs), declared(p, given)]))}) -> ({declared(p, gives)})"
    return p.text("f") + head + " { " + body + " }\n"


def along(p, base, cotangents, x, direction, step):
    """The sum of results times cotangents, a step away."""
    inputs = {x: Named(x.axes, x.now.a + step*direction)}
    now = judge.evaluated(p, inputs=inputs, base=base)
    return sum(float((now[y.value].to(y.axes)*d).sum()) for y, d in zip(p.results, cotangents))


def difference(p, base, cotangents, x, direction):
    """(derivative, how far it may be off), or None at an edge."""
    f = {s: along(p, base, cotangents, x, direction, s*STEP) for s in (-4, -2, -1, 0, 1, 2, 4)}
    if not np.isfinite(list(f.values())).all():
        return None
    by = {s: (f[s] - f[-s])/(2*s*STEP) for s in (1, 2, 4)}
    sides = {s: abs(f[s] - 2*f[0] + f[-s])/(s*STEP) for s in (1, 2)}
    noise = 1e-13*max(map(abs, f.values()))/STEP
    if sides[1] > 0.75*sides[2] + noise:  # a curve's sides come together as the step shrinks; those of a corner do not
        return None
    if max(abs(by[1] - by[s]) for s in (2, 4)) > 0.05*abs(by[1]) + noise:  # jumps, or too steep for the step
        return None
    return by[1] + (by[1] - by[2])/3, abs(by[1] - by[2]) + noise


def attempt(o, p, type, path=""):
    """Asks for gradients; gives (what, detail), as of a result."""
    base = judge.evaluated(p)
    inputs = derivable(p)
    if not inputs or not all(x.now.a.size for x in inputs):
        raise Skip("nothing to derive by")
    if max(judge.largest(m.a) for m in base.values()) > 1e6:
        return "out of range", ""
    if any(v.straight and np.isnan(base[v.args[0]].a).any() for v in p.values):
        return "edge", ""  # an integer's NaN is 0, which moves in no way
    rng = np.random.default_rng(len(p.text()))
    cotangents = [rng.normal(size=base[y.value].to(y.axes).shape).astype(np.float32).astype(float) for y in p.results]
    shapes = [("f32", x.now.a.shape) for x in inputs]

    def asked(*more):
        lines = [f"type {type}", *(f"dim {k} {n}" for k, n in p.dims().items()), *filter(None, o.more.split(";")), *more]
        kinds = [x.kind if x.kind not in ("", "param") else type if x.axes else "f32" for x in p.inputs]
        given = [packed(x.now.a, k) for x, k in zip(p.inputs, kinds)] + [packed(d, "f32") for d in cotangents]
        return Request(text_of(p, inputs), lines, given, shapes)
    answer = yield asked(*([f"path {path}"] if path else []))
    if answer.stage == "crash" or answer.status == "internal":
        return "crash", f"{answer.stage}: {answer.status}: {answer.message}"
    if answer.stage != "ok":
        return "refused", f"{answer.stage}: {answer.message}"
    moved = []
    for t in range(TRIALS):
        moved.append((yield asked("path reference", f"perturb {judge.ROUNDING[type]} {t + 1}")))
    if any(m.stage != "ok" for m in moved):
        return "crash", "the reference does not run"
    said = 0
    for i, x in enumerate(inputs):
        direction = rng.normal(size=x.now.a.shape)
        right = difference(p, base, cotangents, x, direction)
        others = [float((m.results[i]*direction).sum()) for m in moved]
        if right is None or not np.isfinite(others).all():
            continue
        said += 1
        got = float((answer.results[i]*direction).sum())
        allowed = 4*right[1] + judge.ROUNDING[type]*np.abs(answer.results[i]*direction).sum() + 8*np.ptp(others) + 1e-12
        allowed += judge.ROUNDING["f32"]*np.abs(direction).sum()*max(map(judge.largest, cotangents))  # of sums that cancel
        if not abs(got - right[0]) <= allowed:
            return "wrong", f"d{x.text} along a direction is {got:.9g}, by differences {right[0]:.9g}; {abs(got - right[0])/allowed:.3g} times what is allowed"
    return ("ok" if said else "edge"), ""

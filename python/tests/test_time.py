"""Along time: random programs of recurrences, shifts and running sums against the same written in PyTorch, with gradients."""
import random

import pytest
import torch
from torch.nn.functional import silu

import epilog
from rule import check


def scan(a, b, dim, back=False, h=None):
    """a*h + b, step by step."""
    a, b = torch.broadcast_tensors(a, b)
    steps = [None] * b.shape[dim]
    for t in reversed(range(len(steps))) if back else range(len(steps)):
        h = steps[t] = b.select(dim, t) if h is None else a.select(dim, t) * h + b.select(dim, t)
    return torch.stack(steps, dim)


def shift(x, dim, by):
    at = torch.arange(x.shape[dim]) - by
    inside = ((at >= 0) & (at < x.shape[dim])).view([-1 if d == dim else 1 for d in range(x.dim())])
    return torch.where(inside, x.index_select(dim, at.clamp(0, x.shape[dim] - 1)), x.new_zeros(()))


def running(x, dim, compare):
    """The sum of those elements along dim whose position is <=, <, >= or > the own one."""
    total = x.cumsum(dim) if compare[0] == "<" else x.flip(dim).cumsum(dim).flip(dim)
    return total if compare[-1] == "=" else total - x


def chain(r):
    """A few operations in a row on tensors of B, T and D in any order: the text, its inputs, and the same in PyTorch."""
    layout = r.sample("BTD", 3)
    sizes = {"B": r.choice([1, 2, 3]), "T": r.choice([2, 5, 17, 40, 130]), "D": r.choice([1, 3, 8, 16, 33, 64])}
    decay_axes = r.choice([layout, [x for x in layout if x != "D"], ["T"], ["D"]])
    lines, plain, names = [], {}, ["x", "y"]
    for i in range(r.randint(1, 5)):
        to, x, y = f"v{i}", r.choice(names[-3:]), r.choice(names)
        axis = "T" if r.random() < 0.85 else r.choice("BD")
        dim, kind, by, compare = layout.index(axis), r.randrange(6), r.choice([-3, -1, 1, 2, 200]), r.choice(["<=", "<", ">", ">="])
        if kind == 0:
            back = r.random() < 0.4
            lines += [f"{to} = {'scan_back' if back else 'scan'}(tanh(a), {x}, {axis})"]
            plain[to] = lambda v, x=x, dim=dim, back=back: scan(torch.tanh(v["a"]), v[x], dim, back)
        elif kind == 1:
            lines += [f"{to} = scan(sigmoid({y}), {x}, {axis})"]
            plain[to] = lambda v, x=x, y=y, dim=dim: scan(torch.sigmoid(v[y]), v[x], dim)
        elif kind == 2:
            lines += [f"{to} = shift({x}, {axis}, {by})"]
            plain[to] = lambda v, x=x, dim=dim, by=by: shift(v[x], dim, by)
        elif kind == 3:
            lines += [f"u{i} = rename({x}, {axis}, U{i})", f"{to} = 0.1*sum(where(index(U{i}) {compare} index({axis}), u{i}, 0), U{i})"]
            plain[to] = lambda v, x=x, dim=dim, compare=compare: 0.1 * running(v[x], dim, compare)
        elif kind == 4:
            lines += [f"{to} = silu({x} + 0.5)*w"]
            plain[to] = lambda v, x=x: silu(v[x] + 0.5) * v["w"]
        else:
            lines += [f"{to} = {x}*tanh({y}) + {y}"]
            plain[to] = lambda v, x=x, y=y: v[x] * torch.tanh(v[y]) + v[y]
        names.append(to)
    axes, last = ",".join(layout), ",".join(x for x in layout if x != "T")
    text = (f"f(x[{axes}], y[{axes}], a[{','.join(decay_axes)}], w[D]) -> (o[{axes}], l[{last}]) {{\n"
            + "".join(f"    {line}\n" for line in lines) + f"    o = {to} + 0*a*w*x*y\n    l = gather({to}, size(T) - 1, T)\n}}\n")

    def whole(x, y, a, w):
        wide = lambda t, of: t.reshape([sizes[d] if d in of else 1 for d in layout])
        v = {"x": x, "y": y, "a": wide(a, decay_axes), "w": wide(w, "D")}
        for name, value in plain.items():
            v[name] = value(v)
        return v[to] + 0 * v["a"] * v["w"] * x * y, v[to].select(layout.index("T"), sizes["T"] - 1)

    return text, [[sizes[d] for d in of] for of in (layout, layout, decay_axes, "D")], whole


def states(r):
    """A scan of products, with one of many kinds of decay: the text, its inputs, and the same in PyTorch."""
    sizes = {"B": r.choice([1, 2, 3]), "T": r.choice([2, 9, 33, 70]), "H": r.choice([1, 2, 3]), "N": r.choice([1, 4, 20]), "P": r.choice([1, 5, 24])}
    full, back, given, ends = "BTHNP", r.random() < 0.3, r.random() < 0.35, r.random() < 0.5
    of_a, of_k = r.choice(["BTH", "BTHN", "BTHP"]), r.choice(["BTHN", "BTN"])
    decay, call = r.choice([("sigmoid(a)", torch.sigmoid), ("1.1*tanh(a)", lambda a: 1.1 * torch.tanh(a))]), "scan_back" if back else "scan"
    named = lambda name, of: f"{name}[{','.join(of)}]"
    inputs = [("q", of_k), ("k", of_k), ("v", "BTHP"), ("a", of_a)] + ([("h", "BHNP")] if given else [])
    text = (f"f({', '.join(named(*i) for i in inputs)}) -> ({named('y', 'BTHP')}{', ' + named('l', 'BHNP') if ends else ''}) {{\n"
            f"    s = {call}({decay[0]}, k*v, T{', h' if given else ''})\n    y = silu(sum(q*s, N)) + v\n"
            + (f"    l = gather(s, {'0' if back else 'size(T) - 1'}, T)\n" if ends else "") + "}\n")

    def whole(q, k, v, a, h=None):
        wide = lambda t, of: t.reshape([sizes[d] if d in of else 1 for d in full])
        q, k, wide_v, a = wide(q, of_k), wide(k, of_k), wide(v, "BTHP"), wide(a, of_a)
        s = scan(decay[1](a).expand(*[sizes[d] for d in full]), k * wide_v, 1, back, h)
        y = silu((q * s).sum(3)) + v
        return (y, s.select(1, 0 if back else sizes["T"] - 1)) if ends else (y,)

    return text, [[sizes[d] for d in of] for _, of in inputs], whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [chain, states])
@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed, kind, dtype):
    text, shapes, plain = kind(random.Random(seed))
    torch.manual_seed(seed)
    check(epilog.op(text), plain, [(0.7 * torch.randn(shape)).to(dtype).requires_grad_() for shape in shapes], units=2)

"""The table of operations (_say.py) beside PyTorch's own schemas, and all ways in which a node may have its arguments."""
import inspect

import pytest
import torch
import torch.nn.functional as F

import epilog  # noqa: F401, names the backend
from epilog._graph import written
from epilog._say import FUNCTIONS, SAID
from epilog._schema import SPELLINGS, forms
from families import beside, compiled, leaves

WAYS = [(name, target) for target, name in FUNCTIONS.items()] + [(name, name) for name in sorted(SAID) if hasattr(torch.Tensor, name)]
NEEDED = inspect.Parameter.empty


def arguments(name):
    """{argument: default} of a row, and whether it takes any others."""
    found = dict(inspect.signature(SAID[name]).parameters)
    found.pop("region" if "region" in found else "self", None)
    return {n: p.default for n, p in found.items() if p.kind is not p.VAR_KEYWORD}, any(p.kind is p.VAR_KEYWORD for p in found.values())


def theirs(form):
    return {SPELLINGS.get(n, n): form.defaults.get(n, NEEDED) for n in form.arguments}


def is_default(mine, plain):
    """A schema has the number of a memory format and of a reduction, and an empty list where all dimensions are meant."""
    return mine == plain or (mine, plain) in ((torch.contiguous_format, 0), ("mean", 1), (None, []), ((), []))


@pytest.mark.parametrize("name, target", WAYS, ids=[f"{n}, {getattr(t, '__module__', 'a method')}" for n, t in WAYS])
def test_each_way_fits_its_row(name, target):
    """Some form has all that the row needs, needs nothing that the row lacks, and both have the same defaults."""
    mine, others = arguments(name)

    def fits(form):
        plain = theirs(form)
        return (all(n in plain for n, d in mine.items() if d is NEEDED) and (others or all(n in mine for n, d in plain.items() if d is NEEDED))
                and all(NEEDED in (mine[n], plain[n]) or is_default(mine[n], plain[n]) for n in mine.keys() & plain.keys()))
    assert any(map(fits, forms(target))), [theirs(form) for form in forms(target)]


@pytest.mark.parametrize("name", sorted(SAID))
def test_each_row_is_torchs(name):
    """Every argument of a row is one that PyTorch has in some operation with this row, and some node can have it at all."""
    known = {n for way, target in WAYS if SAID[way] is SAID[name] for form in forms(target) for n in theirs(form)}
    assert known and arguments(name)[0].keys() <= known


WRITING = sorted(n for n, f in vars(F).items() if inspect.isfunction(f) and "inplace" in inspect.signature(f).parameters)


@pytest.mark.parametrize("name", WRITING)
def test_inplace_wherever_it_is_given(name):
    graph, function = torch.fx.Graph(), getattr(F, name)
    x, parameters = graph.placeholder("x"), inspect.signature(function).parameters
    before = [0.5 if p.default is NEEDED else p.default for p in list(parameters.values())[1:list(parameters).index("inplace")]]
    for args, kwargs, writes in (((*before, True), {}, True), (before, {"inplace": True}, True), ((*before, False), {}, False), (before, {}, False)):
        node = graph.call_function(function, (x, *args), kwargs)
        assert bool(written(node)) == writes, (args, kwargs)


SPELLED = {
    "x.where": lambda x, y: (x * 2).where(x > 0, y) * 3 + 1,
    "x.where, by name": lambda x, y: (x * 2).where(condition=x > 0, other=y) * 3 + 1,
    "torch.where": lambda x, y: torch.where(x > 0, x * 2, y) * 3 + 1,
    "torch.where, by name": lambda x, y: torch.where(other=y, input=x * 2, condition=x > 0) * 3 + 1,
    "alpha": lambda x, y: torch.add(x, y, alpha=2) * torch.sub(x, y, alpha=3) + torch.rsub(x, y, alpha=3) * 2,
    "a rounded quotient": lambda x, y: torch.div(x, y.abs() + 1, rounding_mode="floor") * 3 + x * y,
    "a number first": lambda x, y: (2 - x) * (1 / (y.abs() + 1)) + 2.0 * x,
    "NumPy's names": lambda x, y: x.sum(axis=-1, keepdims=True) * y + x * 2,
    "a type by place": lambda x, y: x.softmax(-1, torch.float32) * y + 1,
    "sizes one by one": lambda x, y: (x * 2).view(2, 2, 8).permute(1, 0, 2).reshape(4, 8) * y + x,
    "sizes as a list": lambda x, y: (x * 2).view([2, 2, 8]).permute([1, 0, 2]).reshape((4, 8)) * y + x,
    "bmm, by name": lambda x, y: x[None].bmm(mat2=y.t()[None])[0] * 2 + 1,
    "linear, by name": lambda x, y: F.linear(weight=y, input=x) * 2 + 1,
    "split, its names": lambda x, y: torch.split(x * y, split_size_or_sections=4, dim=-1)[0] * (x * y).split(split_size=4, dim=-1)[1] + 1,
    "clamp by place": lambda x, y: (x * y).clamp(-0.5, 0.5) * torch.clamp(x, max=0.1) + 1,
}


@pytest.mark.parametrize("way", SPELLED)
def test_results_are_eagers(way):
    torch.manual_seed(0)
    beside(SPELLED[way], leaves((4, 8), (4, 8)))


@pytest.mark.parametrize("extreme", [torch.maximum, torch.minimum, torch.max, torch.min])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extremes_of_equal_numbers(extreme, dtype):
    """Up to the largest; each of the two has half of the gradient."""
    most = torch.finfo(dtype).max
    a = torch.tensor([[most, -most, 0.6 * most, torch.inf, -torch.inf, torch.nan, 1.0]], dtype=dtype)
    a, b = a.clone().requires_grad_(), a.clone().requires_grad_()
    y = compiled(lambda a, b: extreme(a * 1.0, b) * 0.5 + 0.0)[0](a, b)
    assert torch.equal(y.nan_to_num(7, -1, -2), (a * 0.5).nan_to_num(7, -1, -2))
    for g in torch.autograd.grad(y[:, :5].sum() + y[:, 6:].sum(), (a, b)):
        assert (g[:, [0, 1, 2, 6]] == 0.25).all()

"""What differs from eager PyTorch in a compiled model, and is meant to: the table of docs/compile.md."""
import pytest
import torch
import torch.nn.functional as F

from epilog import _compile
from families import compiled, programs


@pytest.fixture(autouse=True)
def all_of_it(monkeypatch):
    """Whatever is understood is a program, and a mistake of the backend is an error."""
    monkeypatch.setattr(_compile, "is_worth_it", lambda nodes: True)
    monkeypatch.setenv("EPILOG_BACKEND_STRICT", "1")


def ours(function, *args):
    """What a function gives by the backend."""
    call, report = compiled(function, fullgraph=True)
    found = call(*args)
    assert programs(report)
    return found


def test_roundings_on_the_way():
    """A cast to 16 bits and back rounds a value, not its gradient; a sum of what is cast down is that of f32."""
    x = torch.randn(64, 64, requires_grad=True)
    back = lambda x: (x * 1.5).bfloat16().float() * torch.linspace(0.1, 1, 64)
    mine, plain = ours(back, x), back(x)
    torch.testing.assert_close(mine, plain, rtol=1e-6, atol=1e-6)
    exact = (1.5 * torch.linspace(0.1, 1, 64)).expand(64, 64)
    (g,), (e,) = (torch.autograd.grad(y.sum(), x) for y in (mine, plain))
    assert (g - exact).abs().max() < 1e-6 < (e - exact).abs().max() < 1e-2
    total = lambda x: (x * 1.5).bfloat16().sum(1, dtype=torch.float32)
    exact = (x.double() * 1.5).sum(1)
    mine, plain = ours(total, x), total(x)
    assert (mine - exact).abs().max() < 1e-4 < (plain - exact).abs().max()


def test_rows_that_see_nothing():
    x = torch.full((2, 4), -torch.inf)
    for what in (torch.softmax, F.softmin):
        found = ours(lambda x: what(x * (1 if what is torch.softmax else -1), -1) * 2, x)
        assert not found.any() and torch.softmax(x, -1).isnan().all()


def test_labels_outside():
    x, labels = torch.randn(3, 5), torch.tensor([1, 9, 2])
    assert ours(lambda x: F.cross_entropy(x * 2, labels), x).isinf()
    with pytest.raises(IndexError, match="out of bounds"):
        F.cross_entropy(x * 2, labels)


def test_unused_weights():
    """Of a program that has other results."""
    w, u, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True), torch.randn(2, 4)
    plain = lambda x, w, u: (lambda h: (h @ w, h @ u))(torch.tanh(x @ w))
    for found, is_none in ((ours(plain, x, w, u), False), (plain(x, w, u), True)):
        grad = torch.autograd.grad(found[0].sum(), (w, u), allow_unused=True)[1]
        assert grad is None if is_none else not grad.any()


FAR = {  # a function, where it is asked, what eager has there, and what it is here: the limit of the one, or what the function is made of
    "gelu": (F.gelu, 3e38, torch.inf, 3e38), "gelu of infinity": (F.gelu, torch.inf, torch.nan, torch.inf), "hardswish": (F.hardswish, -torch.inf, torch.nan, 0.0),
    "sign": (torch.sign, torch.nan, 0.0, torch.nan), "a root": (lambda x: x ** 0.5, -torch.inf, torch.nan, torch.inf)}


@pytest.mark.parametrize("case", FAR)
def test_far_away(case):
    function, at, eager, here = FAR[case]
    x = torch.full((3,), at)
    torch.testing.assert_close(function(x * 1), torch.full((3,), eager), equal_nan=True)
    torch.testing.assert_close(ours(lambda x: function(x * 1), x), torch.full((3,), here), equal_nan=True)
    large = torch.linspace(-1e20, 1e20, 64)
    assert (ours(lambda x: torch.sin(x * 1), large).abs() <= 1).all()


def test_equal_bounds():
    """Of `clamp` with a lower bound that equals the upper one, the lower bound has the gradient; in eager neither has one."""
    x, low, high = (torch.tensor(v, requires_grad=True) for v in ([-1.0, 0.5], [2.0, 0.0], [2.0, 1.0]))
    clamp = lambda x, low, high: torch.clamp(x * 1, low, high) * 3
    found, plain = (torch.autograd.grad(f.sum(), (x, low, high)) for f in (ours(clamp, x, low, high), clamp(x, low, high)))
    assert [g.tolist() for g in plain] == [[0, 3], [0, 0], [0, 0]]
    assert [g.tolist() for g in found] == [[0, 3], [3, 0], [0, 0]]


def test_derivatives_that_overflow():
    """Where a factor on the way is beyond f32, eager has NaN or an infinity."""
    x = torch.tensor([-3e38, -1e20, 1e20, 1e30], requires_grad=True)
    plain = lambda x: F.gelu(x * 1, approximate="tanh")
    torch.testing.assert_close(torch.autograd.grad(ours(plain, x).sum(), x)[0], torch.tensor([0.0, 0.0, 1.0, 1.0]))
    assert torch.autograd.grad(plain(x).sum(), x)[0].isnan().all()

"""torch.compile(backend="epilog") beside eager where models need no transformers: memory that results share, gradients, what is not read."""
import pytest
import torch
import torch.nn as nn

from epilog import EpilogError
from families import compiled as on


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return nn.Linear(16, 16)


PARTS = {
    "an element": lambda h: (h, h[0]),
    "a column": lambda h: (h, h[:, 0]),
    "chunks": lambda h: (h, *h.chunk(2, -1)),
    "overlapping slices": lambda h: (h[:3], h[2:]),
    "a view": lambda h: (h, h.view(-1)),
    "a transpose": lambda h: (h, h.t()),
    "a view of a view": lambda h: (h, h.view(2, 3, 16)[1].t()),
    "a slice": lambda h: (h[:, :8],),
    "every second": lambda h: (h[:, ::2],),
    "a slice that is read, too": lambda h: (h[:, :8], h[:, :8].tanh() * 2 + 1),
    "after a write": lambda h: (h.mul_(2), h[1]),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
def test_results_that_are_parts(name, rest, layer):
    """They lie in memory as eager's: with its strides, and a write to one is seen in the other."""
    def f(x):
        return PARTS[name](layer(x) * 2 + 1)
    x = torch.randn(6, 16)
    ours, report = on(f, rest)
    with torch.no_grad():
        plain, mine = f(x), ours(x)
        assert [t.stride() for t in mine] == [t.stride() for t in plain] and sum(len(g.programs) for g in report.graphs)
        plain[0].add_(1), mine[0].add_(1)
    for m, p in zip(mine, plain):
        torch.testing.assert_close(m, p)


def test_a_view_of_an_argument_is_one():
    def f(x):
        y = x[0]
        return y, y.tanh() * 2 + x.sigmoid()
    x = torch.randn(4, 8)
    y, _ = on(f)[0](x)
    assert y.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
def test_what_no_gradient_reaches(rest, layer):
    def f(x):
        h = layer(x) * 2
        return h, (h > 0).float().mean(-1), h.floor() * 1.0
    x = torch.randn(4, 16)
    mine = on(f, rest)[0](x)
    assert [t.requires_grad for t in mine] == [t.requires_grad for t in f(x)] == [True, False, True]
    grads = [torch.autograd.grad(outs[0].square().sum() + outs[2].sum(), layer.weight)[0] for outs in (mine, f(x))]
    torch.testing.assert_close(*grads)


@pytest.fixture
def rests(monkeypatch):
    """The names of the compilers that get what is left; none of them is run."""
    names, look_up = [], torch._dynamo.lookup_backend
    def chosen(name):
        names.append(name)
        return look_up(name) if name == "epilog" else lambda gm, inputs, **more: gm.forward
    monkeypatch.setattr(torch._dynamo, "lookup_backend", chosen)
    return names


@pytest.mark.parametrize("how, wanted", [({}, "aot_eager"), ({"options": {"loss_chunks": 2}}, "aot_eager"), ({"options": {"rest": "inductor"}}, "inductor"),
                                         ({"mode": "reduce-overhead"}, "inductor"), ({"options": {"max_autotune": False}}, "inductor"),
                                         ({"options": {"rest": "aot_eager", "max_autotune": False}}, "aot_eager")])
def test_rest_on_a_cpu(how, wanted, rests, layer):
    """Inductor's C++ is not waited for unless it is asked for."""
    torch._dynamo.reset()
    torch.compile(lambda x: layer(x).cumprod(-1), backend="epilog", **how)(torch.randn(4, 16))
    assert rests[-1] == wanted


@pytest.mark.parametrize("device, wanted", [("cpu", "aot_eager"), ("cuda", "inductor")])
def test_rest_of_a_device(device, wanted, rests):
    """A graph whose tensors are there, with nothing in it for a program: one on another device than the CPU is enough."""
    from epilog._compile import Report, compile_graph
    with torch._subclasses.FakeTensorMode():
        here, there = torch.empty(4), torch.empty(4, device=device)
    graph = torch.fx.Graph()
    for tensor in (here, there):
        graph.placeholder(f"x{len(graph.nodes)}").meta["example_value"] = tensor
    graph.output(tuple(graph.nodes))
    compile_graph(torch.fx.GraphModule({}, graph), [here, there], Report())
    assert rests == [wanted]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_beta_zero_does_not_read(bad):
    x, w = torch.randn(6, 16), torch.randn(16, 16)
    for f, b in ((lambda b: torch.addmm(b, x, w, beta=0) + 1.0, torch.full((16,), bad)),
                 (lambda b: torch.baddbmm(b, x[None], w[None], beta=0, alpha=0.5) * 2 + 1.0, torch.full((1, 6, 16), bad))):
        ours, report = on(f)
        torch.testing.assert_close(ours(b), f(b))
        assert report.graphs[0].programs


def test_words_of_second_gradients(layer):
    """A model that is compiled has no text of the caller's."""
    x = torch.randn(4, 16, requires_grad=True)
    y = on(lambda x: nn.functional.gelu(layer(x)) * 2)[0](x)
    with pytest.raises(EpilogError, match="a compiled or patched model has first derivatives only"):
        first, = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        torch.autograd.grad(first.square().sum(), layer.weight)

"""Operations in graphs of torch.compile: how they are called there, what they are called, and what is counted of them."""
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import epilog
from epilog import _direct
from epilog._library import library, program

TEXT = "scaled(x[T,D], w[F,D], s) -> y[T,F] { y = s*relu(x @ w) }"
scaled = epilog.op(TEXT)
plain = lambda x, w, s: s * (x @ w.T).relu()


@pytest.fixture
def long_ways(monkeypatch):
    """The calls that went through the dispatcher."""
    found = []
    for overload in torch.ops.epilog.run.default, torch.ops.epilog.run_saving.default:
        whole = overload._op.whole
        monkeypatch.setattr(overload._op, "whole", lambda *call, whole=whole: found.append(call[1]) or whole(*call))
    return found


@pytest.mark.skipif(_direct.opened_file() is None, reason="there are no functions in C")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_calls_go_to_c(backend, long_ways):
    """From the second on; but not where the sizes' kernel is not there, or a tensor has another type."""
    op = epilog.op(TEXT.replace("scaled", "scaled_" + backend))
    graph = torch.compile(lambda x, w: op(x, w, 2.0), backend=backend, dynamic=True)
    x, w = torch.randn(5, 8, requires_grad=True), torch.randn(6, 8, requires_grad=True)

    def step(x):
        y = graph(x, w.to(x.dtype))
        mine, eager = (torch.autograd.grad(y.float().square().sum(), (x, w)) for y in (y, plain(x, w.to(x.dtype), 2.0)))
        for a, b in zip(mine, eager):
            torch.testing.assert_close(a, b, **dict(rtol=0.1, atol=0.5) if x.dtype == torch.bfloat16 else {})
    step(x)
    del long_ways[:]
    for t in (5, 7, 8, 6):
        step(torch.randn(t, 8, requires_grad=True))
    assert not long_ways
    step(torch.randn(9, 8, requires_grad=True))  # the next power of two has a kernel of its own
    assert long_ways == [op.name, op.name + "_backward"]
    step(torch.randn(9, 8, requires_grad=True))
    step(x.detach().bfloat16().requires_grad_())
    step(x)  # of the types that it was first compiled for
    assert len(long_ways) > 2


def test_calls_that_something_watches(long_ways):
    """Modes, tracers and gradients see an operation as before."""
    class Seeing(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))
    seen, call = [], torch.ops.epilog.run.default
    given = scaled.line, "scaled", "", [torch.randn(3, 8), torch.randn(6, 8)], [2.0], 4, None
    expected = plain(*given[3], 2.0)
    for _ in range(2):
        torch.testing.assert_close(call(*given)[0], expected)
    with Seeing():
        torch.testing.assert_close(call(*given)[0], expected)
    assert seen[0] is call
    given[3][1].requires_grad_()
    (call(*given)[0] * 2).sum().backward()
    torch.testing.assert_close(given[3][1].grad, torch.autograd.grad((plain(*given[3], 2.0) * 2).sum(), given[3][1])[0])
    assert torch.equal(torch.func.vmap(lambda a: a + call(*given)[0].detach())(torch.zeros(2, 3, 6))[1], call(*given)[0])


def test_their_names():
    """torch.profiler has the names of programs."""
    graph = torch.compile(lambda x, w: scaled(x, w, 2.0).sin(), backend="aot_eager")
    x, w = torch.randn(5, 8, requires_grad=True), torch.randn(6, 8)
    graph(x, w).sum().backward()
    with torch.profiler.profile() as profile:
        for _ in range(2):
            graph(x, w).sum().backward()
    counts = {e.key: e.count for e in profile.key_averages()}
    assert counts["epilog::scaled"] == counts["epilog::scaled_backward"] == 2


@pytest.mark.skipif(_direct.opened_file() is None or not _direct.opened_file().functions, reason="there are no functions of Python in C")
def test_numbers_in_tensors(long_ways):
    """An input without axes goes to C as a number or as a tensor, of whichever type: a seed is one."""
    call, x, w = torch.ops.epilog.run.default, torch.randn(3, 8), torch.randn(6, 8)
    given = [torch.tensor(2.5), torch.tensor(2.5, dtype=torch.bfloat16), torch.tensor(2.5, dtype=torch.float16), torch.tensor(-1.0)]
    for again in range(2):
        for s in given:
            torch.testing.assert_close(call(scaled.line, "scaled", "", [x, w, s], [], 0, None)[0], plain(x, w, s.float()))
        for s in (2.5, -1.0):
            torch.testing.assert_close(call(scaled.line, "scaled", "", [x, w], [s], 4, None)[0], plain(x, w, s))
        assert again == 0 or not long_ways
        del long_ways[:]
    drop = epilog.op("drop(x[T,D], seed: i32) -> y[T,D] { y = where(uniform(seed, T, D) < 0.5, 0, x) }")
    for seed in (3, 4, 3):
        assert torch.equal(drop(x, seed), drop(x, torch.tensor(seed, dtype=torch.int32))) and torch.equal(drop(x, seed), drop(x, torch.tensor(seed)))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_flops(device):
    """FlopCounterMode counts products as PyTorch's own, and an operation on an element as one."""
    x, w = torch.randn(32, 64, requires_grad=True, device=device), torch.randn(48, 64, requires_grad=True, device=device)
    with FlopCounterMode(display=False) as mine:
        scaled(x, w, 2.0).sum().backward()
    with FlopCounterMode(display=False) as theirs:
        plain(x, w, 2.0).sum().backward()
    products, elements = theirs.get_total_flops(), 32 * 48
    assert products <= mine.get_total_flops() <= products + 10 * elements
    assert all("epilog" in str(op) for op in mine.get_flop_counts()["Global"])
    over = epilog.op("over(y[T,F], x[T,D], w[F,D]) -> z[T,F] { z = y + x @ w }", into={"z": "y"})
    with torch.no_grad(), FlopCounterMode(display=False) as mine:
        over(torch.zeros(32, 48, device=device), x, w)
    assert 2 * 32 * 48 * 64 <= mine.get_total_flops() <= 2 * 32 * 48 * 64 + 10 * elements


def test_flops_of_a_loss_in_chunks():
    x, w, labels = torch.randn(32, 64, requires_grad=True), torch.randn(48, 64, requires_grad=True), torch.zeros(32, dtype=torch.long)
    with FlopCounterMode(display=False) as mine:
        epilog.nn.linear_cross_entropy(x, w, labels, chunks=4).backward()
    assert mine.get_total_flops() == 3 * 2 * 32 * 48 * 64


def test_texts_survive():
    """What PyTorch writes into programs of Python and C++ has nothing in it that either reads in its own way."""
    text = 'f(x[T]) -> y[T] {\n    # 5 % of "it", \\0 and \\n\r\n    y = 2*x\n}'
    op = epilog.op(text, memory=1 << 20)
    assert not set(op.line) & set('\\"\n\r') and program(op.line).text == text and program(op.line).memory == 1 << 20
    assert torch.equal(epilog.op(text)(torch.ones(3)), torch.full((3,), 2.0))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 8))

    def forward(self, x):
        return scaled(x, self.weight, 2.0)


def exported(block):
    return torch.export.export(block, (torch.randn(4, 8),), dynamic_shapes=({0: torch.export.Dim("t", min=2, max=64)},))


def test_export(tmp_path):
    """A program is one operation of an exported graph, in a file too."""
    block, x = Block(), torch.randn(9, 8)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            torch.export.save(exported(block), tmp_path / "block.pt2")
            found = torch.export.load(tmp_path / "block.pt2").module()
            assert torch.equal(found(x), block(x))
    found(x).sum().backward()
    block(x).sum().backward()
    assert torch.equal(found.weight.grad, block.weight.grad)


def test_ahead_of_time(tmp_path):
    """AOTInductor: in a process that has imported epilog."""
    block, x = Block(), torch.randn(9, 8)
    with torch.no_grad():
        path = torch._inductor.aoti_compile_and_package(exported(block), package_path=str(tmp_path / "block.pt2"))
        assert torch.equal(torch._inductor.aoti_load_package(path)(x), block(x))


def test_transforms_in_graphs():
    """Refused in compiled functions, too; what is not transformed is computed."""
    x, w, call = torch.randn(3, 4, 8), torch.randn(6, 8), lambda f: torch.compile(f, backend="aot_eager")
    by_x = lambda a: scaled(a, w, 2.0)
    for function in (lambda x: torch.func.vmap(by_x)(x), lambda x: torch.func.grad(lambda a: by_x(a).sum())(x[0]),
                     lambda x: torch.func.vjp(by_x, x[0])[1](torch.ones(4, 6))[0], lambda x: torch.func.jvp(by_x, (x[0],), (x[0],))[1]):
        with pytest.raises((RuntimeError, NotImplementedError), match="Batching rule not implemented|functorch transforms|is not supported"):
            call(function)(x)
    with pytest.raises(NotImplementedError, match="transforms of torch.func"):
        torch.func.vmap(call(by_x))(x)
    torch.testing.assert_close(call(lambda x: torch.func.vmap(lambda a: a + by_x(x[0]).sum())(x))(x), x + plain(x[0], w, 2.0).sum())


def test_modes_are_inductors(monkeypatch):
    """mode="reduce-overhead" asks Inductor for CUDA graphs; options that are not the backend's are Inductor's."""
    asked = []
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: lambda gm, inputs, **how: asked.append(how["config_patches"]) or gm)
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    for how in dict(mode="reduce-overhead"), dict(options={"max_autotune": True, "loss_chunks": 2}), dict(options={"rest": "inductor"}):
        torch._dynamo.reset()
        torch.compile(lambda x, w: torch.relu(x @ w) @ w, backend="epilog", **how)(x, w)
    assert asked[0]["triton.cudagraphs"] is True and asked[1:] == [{"max_autotune": True}, None]
    with pytest.raises(Exception, match="loss_chunks is 0"):
        torch._dynamo.reset()
        torch.compile(lambda x, w: torch.relu(x @ w) @ w, backend="epilog", options={"loss_chunks": 0})(x, w)


def test_kept_graphs():
    """PyTorch finds graphs that it keeps on disk by their programs, and by the build that derived them."""
    x, w, count = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True), torch._dynamo.utils.counters["aot_autograd"]

    def step(function):
        torch._dynamo.reset()
        count.clear()
        y = torch.compile(function, backend="epilog", options={"rest": "inductor"})(x, w)
        for found, expected in zip((y, *torch.autograd.grad(y.sum(), (x, w))), (function(x, w), *torch.autograd.grad(function(x, w).sum(), (x, w)))):
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        return {name for name in ("autograd_cache_hit", "autograd_cache_miss", "autograd_cache_bypass") if count[name]}
    first, second = (lambda x, w: torch.relu(x @ w) @ w), (lambda x, w: torch.sigmoid(x @ w) @ w)
    assert [step(f) for f in (first, first, second, first)] == [{"autograd_cache_miss"}, {"autograd_cache_hit"}, {"autograd_cache_miss"}, {"autograd_cache_hit"}]
    assert library().build in scaled.line


def test_graphs_under_autocast():
    """What a graph was made for is part of what it is found by."""
    x, w, found = torch.randn(4, 8), torch.randn(8, 8), []
    for dtype in (torch.bfloat16, torch.float16, None, torch.bfloat16):
        torch._dynamo.reset()
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            found.append(torch.compile(lambda x, w: torch.relu(x @ w) @ w, backend="epilog")(x, w).dtype)
    assert found == [torch.bfloat16, torch.float16, torch.float32, torch.bfloat16]

"""Types of 8 bits beside PyTorch's: every conversion bit for bit, and programs of such tensors."""
import pytest
import torch

import epilog

KINDS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "i8": torch.int8, "u8": torch.uint8,
         "bf16": torch.bfloat16, "f16": torch.float16}


def bits(t):
    return t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[t.element_size()])


def numbers(count, seed=0):
    """All of bf16 (NaN and infinities among them), random bits of f32, and sizes that types of 8 bits have."""
    rng = torch.Generator().manual_seed(seed)
    half = torch.arange(65536, dtype=torch.int32) << 16
    words = torch.randint(-2**31, 2**31, (count // 2,), generator=rng, dtype=torch.int64).to(torch.int32)
    near = torch.randn(count - count // 2, generator=rng) * torch.tensor([1e-2, 1., 100., 1e4]).repeat(count)[:count - count // 2]
    return torch.cat([half.view(torch.float32), words.view(torch.float32), near])


def expected(x, name):
    """What PyTorch makes of x where it is held in the type's range first, as a conversion does; an infinity stays where there is one."""
    kind = KINDS[name]
    if not kind.is_floating_point:
        info = torch.iinfo(kind)
        return torch.where(x.isnan(), 0, x.round().clamp(info.min, info.max)).to(kind)
    most = torch.finfo(kind).max
    held = x.clamp(-most, most)
    return (held if name == "e4m3" else torch.where(x.isinf(), x, held)).to(kind)


@pytest.mark.parametrize("name", KINDS)
def test_forth(name):
    x = numbers(10_000_000 if name == "e4m3" else 1_000_000)
    found = epilog.op(f"f(x[N]) -> y[N] {{ y = {name}(x) }}")(x)
    want = expected(x, name)
    assert found.dtype == KINDS[name]
    nan = want.float().isnan()
    assert torch.equal(found.float().isnan(), nan)
    assert torch.equal(bits(found)[~nan], bits(want)[~nan])


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "i8", "u8"])
def test_back(name):
    codes = torch.arange(256, dtype=torch.uint8).view(KINDS[name])
    found = epilog.op(f"f(q: {name}[N]) -> y: f32[N] {{ y = q }}")(codes)
    assert torch.equal(found.nan_to_num(nan=7e30), codes.float().nan_to_num(nan=7e30))


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_ties(name):
    """Between two neighbours in the middle PyTorch and a conversion go to the even one."""
    v = torch.arange(127, dtype=torch.uint8).view(KINDS[name]).float()
    v = v[v.isfinite()]
    x = torch.cat([(v[1:] + v[:-1]) / 2, -(v[1:] + v[:-1]) / 2])
    found = epilog.op(f"f(x[N]) -> y[N] {{ y = {name}(x) }}")(x)
    assert torch.equal(bits(found), bits(x.to(KINDS[name])))


def test_linear():
    q = torch.randint(-127, 128, (24, 32), dtype=torch.int8)
    s = torch.rand(24) / 127
    x = torch.randn(10, 32)
    y = epilog.op("f(x[T,D], q: i8[F,D], s: f32[F]) -> y[T,F] { y = (x @ q)*s }")(x, q, s)
    torch.testing.assert_close(y, x @ (q.float() * s[:, None]).T)


def test_quantised_and_back():
    x = torch.randn(12, 4, 32)
    x[3] = 0
    q, s = epilog.op("f(x[T,G,K]) -> (q: e4m3[T,G,K], s: f32[T,G]) { s = max(max(abs(x), K)/448, 1e-12); q = e4m3(x/s) }")(x)
    assert q.dtype == torch.float8_e4m3fn
    assert torch.equal(s, (x.abs().amax(2) / 448).clamp(min=1e-12))
    assert torch.equal(bits(q), bits((x / s[..., None]).to(torch.float8_e4m3fn)))


def test_gradient_goes_through():
    x = torch.randn(5, 8, requires_grad=True)
    epilog.op("f(x[T,D]) -> y[T,D] { y = 2*e4m3(3*x) + i8(x) }")(x).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 7.))


def test_refused():
    with pytest.raises(epilog.EpilogError, match="types only where the program declares them"):
        epilog.op("f(x[N]) -> y[N] { y = 2*x }")(torch.zeros(3, dtype=torch.int8))
    with pytest.raises(epilog.EpilogError, match="is declared as e4m3, but was given torch.float8_e5m2"):
        epilog.op("f(x: e4m3[N]) -> y: f32[N] { y = 2*x }")(torch.zeros(3).to(torch.float8_e5m2))


@pytest.mark.parametrize("compiled", [False, True])
def test_results_of_8_bits_under_autograd(compiled):
    """A result that is an integer has no gradient, and one of 8 bits takes the cotangent that autograd makes of its type, or none."""
    call = (lambda op: torch.compile(lambda *a: op(*a), fullgraph=True, backend="aot_eager")) if compiled else lambda op: op
    x = torch.tensor([[1.5, -2.25, 300.0]], requires_grad=True)
    for text in "f(x[T,D]) -> q[T,D] { q = i8(x) }", "f(x[T,D]) -> q: i32[T] { q = argmax(x, D) }":
        assert not call(epilog.op(text))(x).requires_grad
    two = call(epilog.op("f(x[T,D]) -> (q[T,D], y[T,D]) { q = e4m3(x); y = x*x }"))
    for loss, want in ((lambda q, y: y.sum(), 2*x), (lambda q, y: (3*q.float()).sum(), 0*x + 3), (lambda q, y: (q.float() + y).sum(), 2*x + 1)):
        assert torch.equal(torch.autograd.grad(loss(*two(x)), x)[0], want)

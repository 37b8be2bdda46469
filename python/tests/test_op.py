"""epilog.op on the CPU: values, gradients, types, strides, mistakes, tracers."""
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import forward_ad
import torch.nn.functional as F

import epilog
from epilog import _direct, _run, _version
from rule import check

SWIGLU = "swiglu(x[T,D], wg[F,D], wu[F,D]) -> y[T,F] { y = silu(x @ wg)*(x @ wu) }"
swiglu = epilog.op(SWIGLU)
eager_swiglu = lambda x, wg, wu: F.silu(x @ wg.T) * (x @ wu.T)
TYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=[False, True], ids=["called", "compiled"])
def compiled(request):
    return request.param


def in_a_graph(function, compiled=True, **how):
    """The function as one graph of torch.compile, if it is to be compiled."""
    return torch.compile(lambda *args: function(*args), fullgraph=True, backend="aot_eager", **how) if compiled else function


def leaves(*sizes, dtype=torch.float32):
    return [torch.randn(*s).to(dtype).requires_grad_() for s in sizes]


def refused(message, call, *args, kind=ValueError, **more):
    with pytest.raises(kind, match=message):
        call(*args, **more)


def in_threads(work, count):
    """Each of so many threads is given its number."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]


def saved_by(call):
    """What a call gives, and the tensors that it saves for its backward."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        return call(), kept


def given(dtype=torch.float32, grad=(True, True, True), t=5):
    torch.manual_seed(1)
    return [torch.randn(*s).to(dtype).requires_grad_(g) for s, g in zip(((t, 8), (16, 8), (16, 8)), grad)]


@pytest.mark.parametrize("dtype", TYPES)
def test_values_and_gradients(dtype):
    check(swiglu, eager_swiglu, given(dtype))


@pytest.mark.parametrize("grad", [(True, False, False), (False, True, False), (False, False, True), (False, False, False)])
def test_only_wanted_gradients(grad):
    args = given(grad=grad)
    check(swiglu, eager_swiglu, args)
    if any(grad):
        wanted = [n for n, g in zip(("x", "wg", "wu"), grad) if g]
        assert ("-> d_" + wanted[0]) in swiglu.gradient(*wanted)  # one result, not three
        out = swiglu(*args)
        out.sum().backward()
        assert [a.grad is not None for a in args] == list(grad)


def test_no_grad_keeps_nothing():
    with torch.no_grad():
        assert swiglu(*given()).grad_fn is None


def test_several_outputs_and_integers():
    router = epilog.op("router(x[T,D], w[E,D]) -> (p[T,E], best: i32[T]) { z = x @ w  p = softmax(z, E)  best = argmax(z, E) }")
    x, w = torch.randn(6, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
    p, best = router(x, w)
    assert best.dtype == torch.int32 and not best.requires_grad and torch.equal(best.long(), (x @ w.T).argmax(-1))
    check(lambda x, w: router(x, w)[0], lambda x, w: torch.softmax(x @ w.T, -1), [x, w])


def test_an_unused_output_has_no_cotangent():
    two = epilog.op("two(x[T]) -> (a[T], b[T]) { a = x*x  b = exp(x) }")
    check(lambda x: two(x)[0], lambda x: x * x, [torch.randn(7, requires_grad=True)])


def penalty(f, by=1):
    """The gradients of the squares of all results, by the first arguments."""
    def inner(*args):
        found = f(*args)
        total = sum(r.square().sum() for r in (found if isinstance(found, tuple) else (found,)))
        return torch.autograd.grad(total, args[:by], create_graph=True)
    return inner


def test_second_derivatives():
    squared = lambda f: lambda *args: (lambda g: (g.square().sum(), g))(*penalty(f)(*args))
    check(squared(swiglu), squared(eager_swiglu), given())


def test_second_derivative_of_what_was_not_kept():
    text = "f(x[T]) -> y[T] { y = sigmoid(x) }"
    x, = leaves((5,))
    check(penalty(epilog.op(text, twice=True)), penalty(torch.sigmoid), [x])
    refused("twice=True", penalty(epilog.op(text)), x, kind=epilog.EpilogError)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, d):
        return d


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        y = x.pow(3) * w
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx, d):
        x, w, y = ctx.saved_tensors
        return 9 * d * y * x * x * w, (d * x).sum(0)


OWN = """
straight(x[T,D]) -> y[T,D] by straight_grad { y = round(x) }
straight_grad(d_y[T,D]) -> d_x[T,D] { d_x = d_y }

steep(x[T,D], w[D]) -> y[T,D] by steep_grad { y = x*x*x*w }
steep_grad(x[T,D], w[D], y[T,D], d_y[T,D]) -> (d_x[T,D], d_w[D]) {
    d_x = 9*d_y*y*x*x*w
    d_w = sum(d_y*x, T)
}

net(x[T,D], w[D], v[F,D]) -> y[T,F] {
    y = tanh(steep(straight(4*x)/4 + x, w) @ v)
}
"""


def test_a_gradient_that_the_text_names(compiled):
    """In a call of another program, by itself, and derived again: as torch's own functions are."""
    net, steep = epilog.op(OWN, twice=True), epilog.op(OWN, "steep", twice=True)
    eager = lambda x, w, v: torch.tanh(Steep.apply(Straight.apply(4 * x) / 4 + x, w) @ v.T)
    torch.manual_seed(2)
    x, w, v = leaves((5, 4), (4,), (3, 4))
    check(in_a_graph(net, compiled), eager, [x, w, v])
    check(steep, Steep.apply, [x, w])
    if not compiled:
        check(penalty(net, 3), penalty(eager, 3), [x, w, v])
        assert epilog.op(OWN[:OWN.index("steep")]).name == "straight"  # though its gradient stands behind it
        check(penalty(steep, 2), penalty(Steep.apply, 2), [x, w])


def test_statistic_that_is_a_result():
    """The backward reads a log-sum-exp as the forward had it, not as the result has it; a second derivative is right, or refused."""
    text = "f(q[S,E], k[R,E], v[R,C]) -> (o[S,C], l[S]) { s = q @ k  l = logsumexp(s, R)  o = exp(s - l) @ v }"

    def eager(q, k, v):
        return torch.softmax(q @ k.T, -1) @ v, torch.logsumexp(q @ k.T, -1)

    def compare(ours, eager, args, allowed):
        grads = []
        for f, dtype in (ours, args[0].dtype), (eager, torch.float64):
            given = [a.detach().to(dtype).requires_grad_() for a in args]
            grads.append(torch.autograd.grad(sum(r.double().square().sum() for r in f(*given)), given))
        for mine, exact in zip(*grads):
            assert (mine.double() - exact).norm() <= allowed * exact.norm()
    torch.manual_seed(3)
    args = [(torch.randn(*s) * k).bfloat16() for s, k in (((40, 16), 6), ((70, 16), 6), ((70, 24), 1))]
    compare(epilog.op(text), eager, args, 5 * 2**-8)
    compare(penalty(epilog.op(text)), penalty(eager), [a.float() / 8 for a in args], 1e-5)
    beside = "f(x[T,D]) -> m[T] { m = sigmoid(mean(x, D)) }"
    x = torch.randn(5, 8, requires_grad=True)
    check(penalty(epilog.op(beside, twice=True)), penalty(lambda x: torch.sigmoid(x.mean(-1))), [x])
    refused("twice=True", penalty(epilog.op(beside)), x, kind=epilog.EpilogError)


MIXED = "f(x[T,E], a[T,F], w[E,F]) -> y[T,E] { y = sin(x + a @ w) }"
LAST = "f(a[T,F], w[E,F], x[T,E]) -> y[T,E] { y = sin(x + a @ w) }"
eager_mixed = lambda x, a, w: torch.sin(x + a @ w.T)
MIXES = [(torch.float32, torch.bfloat16), (torch.float32, torch.float16), (torch.float16, torch.bfloat16)]


@pytest.mark.parametrize("by", ["a call", "torch.compile", "memory", "x alone"])
@pytest.mark.parametrize("text", [MIXED, LAST])
@pytest.mark.parametrize("types", MIXES)
def test_gradients_where_types_are_mixed(types, text, by):
    """What is made of a tensor with more digits than the others is saved with them, though the text leaves its type open."""
    if text == MIXED and types[0] == torch.float16:
        pytest.skip("values between kernels are float16 then")
    op = epilog.op(text, memory=1 << 30 if by == "memory" else 0)
    f = torch.compile(op, backend="aot_eager") if by == "torch.compile" else op
    torch.manual_seed(3)
    args = [(torch.randn(30, 50) + 100).to(types[0])] + [(torch.randn(*s) / 2).to(types[1]) for s in ((30, 20), (50, 20))]
    ours = f if text == MIXED else lambda x, a, w: f(a, w, x)
    grads = []
    for way, dtype in (ours, None), (eager_mixed, torch.float64):
        given = [a.to(dtype or a.dtype, copy=True).requires_grad_(by != "x alone" or a is args[0]) for a in args]
        way(*given).double().sum().backward()
        grads.append([a.grad for a in given if a.requires_grad])
    for mine, exact, a in zip(*grads, args):
        assert mine.dtype == a.dtype
        assert (mine.double() - exact).norm() <= (1e-5 if mine.dtype == torch.float32 else 2 * torch.finfo(mine.dtype).eps) * exact.norm()


def test_calls_of_one_text_in_many_types():
    """Recipes of one kind of types are not taken for another, whichever came first."""
    op = epilog.op(MIXED)
    torch.manual_seed(3)
    for types in [(t,) * 3 for t in TYPES] + [(x, w, w) for x, w in MIXES] + [(t,) * 3 for t in TYPES]:
        args = [torch.randn(*s).to(t).requires_grad_() for s, t in zip(((6, 8), (6, 4), (8, 4)), types)]
        y = op(*args)
        assert y.dtype == types[0]
        grads = torch.autograd.grad(y.double().sum(), args)
        exact = [a.detach().double().requires_grad_() for a in args]
        for g, e, t in zip(grads, torch.autograd.grad(eager_mixed(*exact).sum(), exact), types):
            assert g.dtype == t and (g.double() - e).norm() <= 8 * torch.finfo(t).eps * e.norm()


def test_the_backward_has_the_size_of_an_axis_that_it_lacks():
    loss = epilog.op("l(x[E,T], w[E,S]) -> y { y = mean((x @ w)**2, T, S) }")
    for t in (6, 11):
        check(loss, lambda x, w: (x.T @ w).square().mean(), [torch.randn(5, t), torch.randn(5, 7, requires_grad=True)])


def test_forward_mode_is_refused():
    """A tangent would be lost without a word, and the derivative be 0."""
    x, wg, wu = given(grad=(False,) * 3)
    swiglu(x, wg, wu)
    compiled = torch.compile(lambda x: swiglu(x, wg, wu), backend="eager")
    compiled(x)
    by_x, tangent = (lambda x: swiglu(x, wg, wu)), torch.ones_like(x)

    def dual(function, x):
        with forward_ad.dual_level():
            return function(forward_ad.make_dual(x, tangent))

    def dual_cotangent(function, x):
        with forward_ad.dual_level():
            y = function(x.requires_grad_())
            return torch.autograd.grad((y * forward_ad.make_dual(torch.ones_like(y), y.detach())).sum(), x)
    for call in (lambda: torch.func.jvp(by_x, (x,), (tangent,)), lambda: torch.func.jacfwd(by_x)(x), lambda: dual(by_x, x),
                 lambda: dual(by_x, x.clone().requires_grad_()), lambda: dual_cotangent(by_x, x.clone()), lambda: dual(compiled, x),
                 lambda: torch.func.jvp(compiled, (x,), (tangent,)), lambda: dual(lambda m: momentum(x[0], x[0] + 1, m[0], 0.1, 0.9), x.clone()),
                 lambda: torch.compile(lambda x: torch.func.jvp(by_x, (x,), (tangent,)), backend="eager")(x)):
        with pytest.raises(NotImplementedError, match="forward-mode AD"):
            call()
    with forward_ad.dual_level():  # of what has no tangent nothing is lost
        assert torch.equal(by_x(x), by_x(x.clone().requires_grad_()))


def test_axes_of_results_alone(compiled):
    text = "steps(x[N]) -> y[N,M] { y = x*x*index(M) }"
    ops = [epilog.op(text, dims={"M": 3}), epilog.op(text.replace("M]", "M=3]"))]
    ops.append(pickle.loads(pickle.dumps(ops[0])))
    for op in ops:
        call = in_a_graph(op, compiled, dynamic=True)
        for n in (5, 6):
            check(call, lambda x: (x * x)[:, None] * torch.arange(3), [torch.randn(n, requires_grad=True)])
    assert epilog.op(text, dims={"M": 4})(torch.ones(2)).shape == (2, 4)
    refused("the size of M cannot be read from an input", epilog.op(text), torch.ones(2))
    for wrong in ({"N": 3}, {"Q": 3}, {"M": -1}):
        refused("of axes that only outputs have", epilog.op, text, dims=wrong)


def test_transforms_are_refused():
    x = torch.randn(3, 4)
    square = epilog.op("square(x[N]) -> y[N] { y = x*x }")
    over = epilog.op("over(x[N]) -> y[N] { y = 2*x }", into={"y": "x"})
    for call in (lambda: torch.func.grad(lambda x: square(x).sum())(x[0]), lambda: torch.func.vmap(square)(x),
                 lambda: torch.func.jacrev(square)(x[0]), lambda: torch.func.vmap(over)(x.clone())):
        with pytest.raises(NotImplementedError, match="transforms of torch.func"):
            call()
    assert torch.equal(torch.func.vmap(lambda y: y + square(x[0]))(x), x + x[0] * x[0])  # of what is not transformed nothing is lost


def test_scalars():
    scale = epilog.op("scale(x[T], s) -> y[T] { y = s*x }")
    x = torch.randn(9, requires_grad=True)
    for s, call in ((2.5, lambda x: scale(x, 2.5)), (3, lambda x: scale(x, 3)), (3, lambda x: scale(s=3, x=x))):
        check(call, lambda x: s * x, [x])
    check(scale, lambda x, s: s * x, [x, torch.tensor(2.5, requires_grad=True)])
    for shape in ((1,), (1, 1)):
        s = torch.full(shape, 2.5, requires_grad=True)
        scale(x, s).sum().backward()
        assert s.grad.shape == shape and torch.allclose(s.grad, x.sum())
        assert torch.equal(in_a_graph(scale)(x, s), 2.5 * x)
    into = epilog.op("into(x[T], s) -> y[T] { y = s*x }", into={"y": "x"})
    assert torch.equal(into(x.detach().clone(), torch.tensor([2.5])), 2.5 * x)
    refused("s has 0 axes, but the tensor given for it has sizes .2.", scale, x, torch.ones(2))


def test_renamed_axes(compiled):
    made = lambda text: in_a_graph(epilog.op(text), compiled, dynamic=True)
    gram = made("gram(x[T,D]) -> l: f32[T] { l = logsumexp(x @ rename(x, T, U), U) }")
    square = made("square(x[T,D]) -> y[T,P] { y = x @ rename(x, T, P) }")  # P is an axis of the result alone
    running = made("running(x[T,D]) -> y[T,D] { u = rename(x, T, U)\n y = sum(where(index(U) <= index(T), u, 0), U) }")
    for t in (6, 7, 6):
        x = torch.randn(t, 4, requires_grad=True)
        check(gram, lambda x: torch.logsumexp(x @ x.T, 1), [x])
        check(square, lambda x: x @ x.T, [x])
        check(running, lambda x: x.cumsum(0), [x])


def test_axes_renamed_to_those_of_others():
    """Which have their own sizes: they must be equal, also where a kernel for more rows was made before."""
    add = epilog.op("add(x[T,D], z[P,D]) -> y[P,D] { y = z + rename(x, T, P) }")
    for t in (8, 7):
        check(add, lambda x, z: x + z, [torch.randn(t, 2, requires_grad=True), torch.randn(t, 2, requires_grad=True)])
    for t, p in ((6, 8), (8, 6), (6, 7)):
        for x in (torch.ones(t, 2), torch.ones(t, 2, requires_grad=True)):
            refused(f"rename of T to P: T has {t} elements, but P has {p}", add, x, torch.ones(p, 2))


def test_indices_of_64_bits():
    take = epilog.op("take(table[V,D], i: i32[T]) -> y[T,D] { y = table[i] }")
    table, i = torch.randn(7, 4, requires_grad=True), torch.tensor([3, 0, 6, 3])
    check(take, lambda t, i: t[i], [table, i])
    check(take, lambda t, i: t[i.long()], [table, i.int()])
    refused("", take, table, torch.tensor([7]), kind=epilog.EpilogIndexError)
    refused("", take, table.detach(), torch.tensor([-1]), kind=IndexError)


def test_strides():
    x, wg, wu = given(grad=(False,) * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for args in ((x.t().contiguous().t(), wg, wu), (x, torch.randn(8, 32).t()[::2], wu), (x, wg[:1].expand(16, 8), wu)):
            assert not all(a.is_contiguous() for a in args)
            assert torch.equal(swiglu(*args), swiglu(*[a.contiguous() for a in args]))
    check(lambda *a: swiglu(*a).sum(0), lambda *a: eager_swiglu(*a).sum(0), given())  # an expanded cotangent


@pytest.mark.parametrize("t", [0, 1, 3, 200])
def test_sizes(t):
    args = given(t=t)
    if t:
        check(swiglu, eager_swiglu, args)
    else:
        assert swiglu(*args).shape == (0, 16)
        assert all(g.abs().sum() == 0 for g in torch.autograd.grad(swiglu(*args).sum(), args))


def test_a_row_has_the_same_bits_in_every_batch():
    x, wg, wu = given(t=64, grad=(False,) * 3)
    whole = swiglu(x, wg, wu)
    for t in (1, 2, 7, 33):
        assert torch.equal(swiglu(x[:t], wg, wu), whole[:t])


MISTAKES = [
    (lambda x, wg, wu: (x, wg[:, :7], wu), ValueError, r"text:1:16: swiglu: wg\[F,D\] was given sizes \[16, 7\]: axis 1 must be 8"),
    (lambda x, wg, wu: (x[0], wg, wu), ValueError, r"text:1:8: swiglu: x\[T,D\] has 2 axes, but the tensor given for it has sizes \[8\]"),
    (lambda x, wg, wu: (x[None], wg, wu), ValueError, r"sizes \[1, 5, 8\]; merge the first ones with flatten\(0, 1\), or declare them"),
    (lambda x, wg, wu: (x, wg, wu.T), ValueError, "since .* has sizes .*; is it transposed."),
    (lambda x, wg, wu: (x.detach().numpy(), wg, wu), TypeError, "swiglu was given a ndarray: inputs are tensors"),
    (lambda x, wg, wu: (x, wg, wu.double()), ValueError, "wu.* was given torch.float64"),
    (lambda x, wg, wu: (x, wg, wu.long()), ValueError, "wu.* was given torch.int64"),
    (lambda x, wg, wu: (x, wg, wu.to("meta")), ValueError, "must be on one device"),
    (lambda x, wg, wu: (x, wg, 2.0), ValueError, "needs a tensor, but was given a float"),
    (lambda x, wg, wu: (x, wg, "wu"), TypeError, "was given a str"),
    (lambda x, wg, wu: (x, wg, None), TypeError, "was given a NoneType"),
    (lambda x, wg, wu: (x, wg), TypeError, "takes 3 inputs"),
]


KINDS = {
    "sparse": (lambda x: x.to_sparse(), r"x\[T,D\] is sparse \(torch.sparse_coo\): to_dense\(\)"),
    "sparse_csr": (lambda x: x.to_sparse_csr(), r"x\[T,D\] is sparse \(torch.sparse_csr\): to_dense\(\)"),
    "mkldnn": (lambda x: x.to_mkldnn(), r"x\[T,D\] is in a layout that Epilog does not support \(torch._mkldnn\): to_dense\(\)"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x[:2]]), r"x\[T,D\] is a nested tensor: to_padded_tensor"),
    "jagged": (lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged), r"x\[T,D\] is a nested tensor: to_padded_tensor"),
    "masked": (lambda x: torch.masked.masked_tensor(x, x > 0), r"x\[T,D\] is a masked tensor: to_tensor"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grad", [True, False])
def test_tensors_without_strides(kind, grad):
    make, message = KINDS[kind]
    x, wg, wu = given(grad=(False, grad, grad))
    refused(message, swiglu, make(x), wg, wu, kind=epilog.EpilogError)


@pytest.mark.parametrize("make, kind, message", MISTAKES)
@pytest.mark.parametrize("grad", [True, False])
def test_mistakes(make, kind, message, grad):
    args = make(*given(grad=(grad,) * 3))
    refused(message, swiglu, *args, kind=kind)
    assert swiglu(*given()).shape == (5, 16)  # and nothing is lost by it


def test_mistakes_in_texts():
    with pytest.raises(epilog.EpilogValueError, match=r"1:27: unknown name 'z'") as e:
        epilog.op("f(x[T]) -> y[T] { y = x + z }")
    assert "^" in str(e.value)
    for message, call in (
            (r"expected the text of a program, but '/tmp/f.epi' has none; for a file pass open\(path\).read", lambda: epilog.op("/tmp/f.epi")),
            ("no program g: it has f", lambda: epilog.op("f(x[T]) -> y[T] { y = x }", "g")),
            ("needs F to be divisible by 2, but it is 7", lambda: epilog.op("f(x[F]) -> y[F/2] { a, b = pairs(x, F) y = a*b }")(torch.zeros(7))),
            ("cannot be read from an input", lambda: epilog.op("f() -> y[T] { y = index(T) }")())):
        refused(message, call)


def test_calls_within_a_text():
    both = epilog.op("sq(x[T,D]) -> y[T,D] { y = x*x }\nf(x[T,D], w[F,D]) -> y[T,F] { y = sq(x) @ w }")
    check(both, lambda x, w: (x * x) @ w.T, given()[:2])


def test_autocast():
    args = given()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = swiglu(*args)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(a.grad.dtype == torch.float32 for a in args)


def test_what_autocast_leaves():
    text = "f(x[T,D], w[F,D], r[T,F]) -> y[T,F] { y = r + relu(x @ w) }"
    args = [torch.randn(3, 8), torch.randn(5, 8), torch.randn(3, 5)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert epilog.op(text)(*args).dtype == torch.bfloat16
        assert epilog.op(text, keep=True)(*args).dtype == torch.float32
        text = "f(r[T,F], x[T,D], w[F,D]) -> y[T,F] { y = r + relu(x @ w) }"
        found = epilog.op(text, keep=("r",))(args[2], args[0], args[1])
    x, w = (a.bfloat16().double() for a in args[:2])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), args[2].double() + (x @ w.T).relu(), rtol=0, atol=8 * 2**-23 * 10)  # 8 terms of up to 10
    refused("keep names q, but the inputs are r, x, w", epilog.op, text, keep=("q",))


def test_losses_under_autocast():
    """A loss reads what PyTorch's would where the text or the call says so."""
    text, z = "loss(z[T,V]) -> l: f32[T] { l = logsumexp(z, V) }", 10 * torch.randn(8, 50)
    kept, typed, plain = epilog.op(text, keep=True), epilog.op(text.replace("z[", "z: f32[")), epilog.op(text)
    with torch.autocast("cpu", torch.bfloat16):
        found = [f(z) for f in (kept, typed, plain)]
    for got, want in zip(found, (z, z, z.bfloat16().float())):
        assert torch.equal(got, plain(want))


def test_show():
    plan = swiglu.show(*given())
    assert "T = 5, D = 8, F = 16, on cpu" in plan and "two products side by side" in plan


def test_threads():
    args, found = given(grad=(False,) * 3), []
    expected = swiglu(*args)
    in_threads(lambda _: found.append(all(torch.equal(swiglu(*args), expected) for _ in range(50))), 4)
    assert found == [True] * 4


def test_threads_make_one_plan(monkeypatch):
    """The others wait for it; where it fails, each has the error."""
    made, real = [], _run.Plan.__init__

    def slow(plan, *args, **kwargs):
        made.append(threading.get_ident())
        time.sleep(0.05)
        real(plan, *args, **kwargs)
    monkeypatch.setattr(_run.Plan, "__init__", slow)
    one = epilog.op("one_plan(x[T,D], w[D]) -> y[T,D] { y = x*w }", rows=())

    def calls(w):
        x, gate, found = torch.randn(7, 8), threading.Barrier(4), []

        def call(_):
            gate.wait()
            try:
                found.append(torch.equal(one(x, w), x * w))
            except epilog.EpilogError as why:
                found.append(str(why))
        in_threads(call, 4)
        return found
    assert calls(torch.randn(8)) == [True] * 4 and len(made) == 1
    assert len(calls(torch.randn(9))) == 4 and not _run.being_made


def test_opcheck():
    args = given()
    torch.library.opcheck(torch.ops.epilog.run.default, (SWIGLU, "swiglu", "", args, [], 0, None))
    torch.library.opcheck(torch.ops.epilog.run_saving.default, (SWIGLU, "swiglu", "x,wg,wu", args, [], 0, False))
    text = "scale(x[T], s) -> y[T] { y = s*x }"
    torch.library.opcheck(torch.ops.epilog.run.default, (text, "scale", "1", [torch.randn(4, requires_grad=True)], [2.0], 2, None))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    torch._dynamo.utils.counters.clear()
    def block(x, wg, wu):
        return swiglu(x * 2, wg, wu).relu()
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for t in (5, 7, 64):
        args = given(t=t)
        assert torch.equal(compiled(*args), block(*args))
        check(compiled, lambda *a: eager_swiglu(a[0] * 2, *a[1:]).relu(), args)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_texts_in_graphs_are_one_line():
    """torch.compile writes arguments into comments: a line end in one would end the comment."""
    from epilog._library import one_line, program
    op = epilog.op("f(w[F,D], x[T,D]) -> y[T,F] {\n    # a comment, with a \\ and a \\nabla in it\n    y = relu(x @ w)\n}")
    seen = []
    def backend(graph, inputs):
        seen.extend(n.args[0] for n in graph.graph.nodes if "epilog" in str(n.target))
        return graph
    args = [torch.randn(6, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)]
    y = torch.compile(op, fullgraph=True, backend=aot_autograd(fw_compiler=backend, bw_compiler=backend))(*args)
    y.sum().backward()
    assert len(seen) == 2 and not any("\n" in t for t in seen)
    assert torch.equal(y, op(*args)) and program(one_line(op.program)).text == op.text
    backward = op.program.grad(("w", "x"), True)[1]
    assert program(one_line(backward), backward.name).rows == backward.rows == ["F"]


def test_row_axes_of_a_derived_program():
    """Those of the program it is derived from; no comment of a text sets them."""
    from epilog._library import one_line, program
    text = "# rows: D\n# \\;\nf(w[F,D], x[T,D]) -> y[T,F] { y = relu(x @ w) }"
    given = program(text)
    for prog in given, *given.grad(("x", "w"), True), *given.grad(("x",), False):
        again = program(one_line(prog), prog.name)
        assert prog.rows == again.rows == ["F"] and again.text == prog.text


def test_one_kernel_for_all_batches():
    op = epilog.op("f(x[B,S,D], w[F,D]) -> y[B,S,F] { y = relu(x @ w) }")
    w = torch.randn(6, 8, requires_grad=True)
    for b, s in ((3, 5), (4, 8), (3, 7), (4, 5)):
        check(op, lambda x, w: (x @ w.T).relu(), [torch.randn(b, s, 8, requires_grad=True), w])
    made = _run.recipe(op.program, ("x", "w"), [torch.empty(3, 5, 8), w])
    forward, backward = made.forward, made.last
    assert len(forward.compiled) == len(backward.compiled) == 1
    assert len(forward.plans) == (4 if _direct.opened_file() is None else 1)  # in C a plan serves all sizes of its kernel
    assert backward.rows == ["B", "S"]


def test_threads_follow_torch():
    """torch.set_num_threads goes for calls that follow, in both directions, with the same bits; what was made for a number serves again."""
    f, before = epilog.op("f(x[T,D], w[F,D]) -> y[T,F] { y = relu(x @ w) }"), torch.get_num_threads()
    x, w = torch.randn(64, 40, requires_grad=True), torch.randn(24, 40)
    try:
        found = []
        for n in (1, 2, 1, 2):
            torch.set_num_threads(n)
            y = f(x.detach(), w)
            found.append((y, torch.autograd.grad(f(x, w).sum(), x)[0]))
        assert all(torch.equal(*pair) for other in found[1:] for pair in zip(found[0], other))
        for prog in (f.program, _run.recipe(f.program, ("x",), [x, w]).last):
            assert sorted({plan.threads for plan in prog.plans.values()}) == [1, 2] and len(prog.compiled) == 2
    finally:
        torch.set_num_threads(before)


def test_plans_are_forgotten(monkeypatch):
    """Those that were not used for longest, with their kernels; by the function in C, by ctypes, with gradients, in several threads."""
    f, wrong = epilog.op("f(x[T,D], w[F,D], s) -> y[T,F] { y = (x @ w)*s }"), []
    monkeypatch.setattr(_run, "MOST_PLANS", 8)

    def call(n, grad):
        x, w = torch.randn(3, n, requires_grad=grad), torch.randn(5, n)
        for s in (2.0, torch.tensor(2.0)):
            y = f(x, w, s)
            if not torch.allclose(y, 2 * (x @ w.T), atol=1e-5) or (grad and not torch.allclose(torch.autograd.grad(y.sum(), x)[0], 2 * w.sum(0).expand(3, n), atol=1e-5)):
                wrong.append(n)

    def calls(seed):
        sizes = torch.randint(1, 20, (150,), generator=torch.Generator().manual_seed(seed)).tolist()
        for n in sizes:
            call(n, n % 3 == 0)
    in_threads(calls, 3)
    assert not wrong and len(_run.kept) == 8
    programs = [f.program, *f.program.grad(("x",), True)]
    plans = [plan for prog in programs for plan in prog.plans.values()]
    assert sum(len(prog.compiled) for prog in programs) == len({id(plan.kernel) for plan in plans}) <= 8
    for prog in programs:
        entry = prog.direct.get(None)
        assert entry is None or set(entry.known) <= {plan.kernel for plan in prog.plans.values()}


@pytest.mark.skipif(_direct.opened_file() is None, reason="this PyTorch has no way in from C")
def test_a_plan_in_use_is_not_forgotten(monkeypatch):
    f, g = (epilog.op(f"f(x[T,D]) -> y[T,D] {{ y = {n}*x }}") for n in (3, 4))
    for n in [*range(1, 9)]*2:
        g(torch.ones(2, n))  # all others are in use, too
    monkeypatch.setattr(_run, "MOST_PLANS", 3)
    made = lambda: [plan.sizes["D"] for plan in f.program.plans.values()]
    f(torch.ones(2, 7))
    for n in range(20, 40):
        assert torch.equal(f.direct(torch.ones(2, 7)), torch.full((2, 7), 3.0))  # which Python does not see
        f(torch.ones(2, n))
    assert len(_run.kept) == 3 and made() == [7, 38, 39]


MODES = """
import torch, epilog, sys
from epilog import _direct, _version
f = epilog.op("f(x[B,S,D], w[F,D], b[F], s) -> (y[B,S,F], m[B,S]) { y = gelu(x @ w + b)*s  m = mean(y*y, F) }")
file = _direct.opened_file()
print("off" if file is None else "functions" if file.functions else "dispatcher", file=sys.stderr)
for seed, (b, s) in enumerate(((2, 3), (2, 3), (1, 4), (2, 4), (5, 7), (5, 7))):
    torch.manual_seed(seed)
    x, w, v = torch.randn(b, s, 8, requires_grad=True), torch.randn(6, 8, requires_grad=True), torch.randn(6)
    for given in ((x, w, v), (x, torch.randn(12, 8)[::2], v), (x[:, :, :0], w[:, :0], v)):
        with torch.no_grad():
            print([t.tolist() for t in f(*given, 0.5)])
    y, m = f(x, w, v, 0.5)
    print([t.tolist() for t in torch.autograd.grad(y.sum() + m.sum(), (x, w))], y.tolist())
"""


def test_the_same_bits_in_every_mode():
    told = {}
    for mode in ("", "dispatcher", "off"):
        found = subprocess.run([sys.executable, "-c", MODES], capture_output=True, text=True, env={**os.environ, "EPILOG_DIRECT": mode})
        assert found.returncode == 0, found.stderr
        told[mode] = found.stdout
        kind = "functions" if not mode and hasattr(torch.Tensor, "__dlpack_c_exchange_api__") else mode or "dispatcher"
        assert found.stderr.strip().split("\n")[-1] == kind
    assert told[""] == told["off"] == told["dispatcher"] and "[[[" in told[""]


def test_direct_calls_keep_nothing():
    if _direct.opened_file() is None:
        pytest.skip("this PyTorch has no way in from C")
    args = given(grad=(False,) * 3)
    expected = swiglu(*args)
    counts = lambda: [sys.getrefcount(a) for a in (*args, None, False, torch.Tensor)]
    assert torch.equal(swiglu.direct(*args), expected)
    assert swiglu.direct(*args[:2]) is None and swiglu.direct(args[0], "w", 3) is None  # for the long way to tell
    assert swiglu.direct(args[0].clone().requires_grad_(), *args[1:]) is False
    before = counts()
    for _ in range(1000):
        swiglu.direct(*args)
        swiglu.direct(args[0], args[1], None)
        swiglu.direct(args[0].double(), *args[1:])
    assert all(abs(a - b) < 100 for a, b in zip(before, counts()))


def test_the_sign_of_a_conjugate():
    f = epilog.op("twice(x[T]) -> y[T] { y = 2*x }")
    for n in (1, 5):
        x = torch.randn(n, dtype=torch.complex64).conj().imag
        f(x.clone())
        assert x.is_neg() and torch.equal(f(x), 2 * x.clone())


def test_the_negative_bit():
    """In every call, not only in the first; of dense tensors, of ones without elements, with a gradient."""
    f, w = epilog.op("f(x[T,D], w[F,D]) -> y[T,F] { y = x @ w }"), torch._neg_view(torch.ones(5, 8))
    for x in (torch.ones(4, 8), torch._neg_view(torch.ones(4, 8)), torch._neg_view(torch.ones(8, 4)).t(), torch.ones(0, 8)):
        for _ in range(3):
            assert torch.equal(f(x, w), x @ w.t())
    x = torch.ones(4, 8, requires_grad=True)
    for _ in range(3):
        assert torch.equal(torch.autograd.grad(f(x, w).sum(), x)[0], torch.full((4, 8), -5.0))


MOMENTUM = "momentum(w[N], g[N], m[N], lr, beta) -> (w1[N], m1[N], norm) { m1 = beta*m + g  w1 = w - lr*m1  norm = sum(g*g, N) }"
momentum = epilog.op(MOMENTUM, into={"w1": "w", "m1": "m"})


def test_results_over_inputs(compiled):
    w, g, m = torch.randn(3, 17)
    w0, m0, version = w.clone(), m.clone(), w._version
    expected = epilog.op(MOMENTUM)(w, g, m, 0.1, 0.9)
    out = in_a_graph(momentum, compiled)(w, g, m, 0.1, 0.9)
    assert torch.equal(w, expected[0]) and torch.equal(m, expected[1]) and torch.equal(out[2], expected[2])
    assert not torch.equal(w, w0) and not torch.equal(m, m0) and w._version > version
    if not compiled:
        assert out[0] is w and out[1] is m


def test_results_over_inputs_that_lie_elsewhere():
    both = torch.randn(17, 2)
    w, m, g = both[:, 0], torch.randn(17), torch.randn(17)  # strided
    expected = epilog.op(MOMENTUM)(w, g, m, 0.1, 0.9)
    momentum(w, g, m, 0.1, 0.9)
    assert torch.equal(both[:, 0], expected[0]) and torch.equal(m, expected[1])
    turn = epilog.op("turn(x[A,B], w[B,A]) -> y[A,B] { y = x + sum(x, A) + rename(w, A, A) }", into={"y": "x"})  # read again: copied
    x, w = torch.randn(4, 5), torch.randn(5, 4)
    wanted = x + x.sum(0) + w.T
    assert turn(x, w) is x
    torch.testing.assert_close(x, wanted)


def test_mistakes_with_results_over_inputs():
    w, g, m = torch.randn(3, 17)
    before = w.clone()
    for args, message in (((w.requires_grad_(), g, m), "call it under torch.no_grad"), ((w.detach(), w.detach(), m), "shares memory with g"),
                          ((w.detach()[:1].expand(17), g, m), "expanded"), ((w.detach(), g, m[:5]), r"m\[N\] was given sizes \[5\]")):
        refused(message, momentum, *args, 0.1, 0.9)
    assert torch.equal(w, before)
    with torch.no_grad():
        momentum(w, g, m, 0.1, 0.9)
    for into, message in (({"w1": "lr"}, "same axes"), ({"w2": "w"}, "no output w2"), ({"w1": "x"}, "no input x"), ({"w1": "w", "m1": "w"}, "two results")):
        refused(message, epilog.op, MOMENTUM, into=into)


def test_opcheck_with_results_over_inputs():
    w, g, m = torch.randn(3, 17)
    torch.library.opcheck(torch.ops.epilog.run_into.default, (MOMENTUM, "momentum", [w, m.clone()], [0, 2], [0, 1], [torch.empty(())],
                                                              [g.clone()], [0.1, 0.9], 24))


def test_versions():
    for version in ("2.9.0", "2.15.1+cu132", "3.0.0a0+git1234"):
        _version.check(version)
    refused("needs PyTorch 2.9 or newer: this is 2.8.1", _version.check, "2.8.1+cpu", kind=ImportError)


def test_no_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    refused("cannot use cuda:0: ", epilog._library.library().device, 0, kind=epilog.EpilogError)


def test_the_newest_nvrtc_of_pip(tmp_path, monkeypatch):
    """CUDA 12 and 13 have it in folders of other names, which say nothing of their age."""
    for folder, version in ("cuda_nvrtc", 12), ("cu13", 13):
        (tmp_path / "nvidia" / folder / "lib").mkdir(parents=True)
        (tmp_path / "nvidia" / folder / "lib" / f"libnvrtc.so.{version}").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setenv("EPILOG_NVRTC", "mine")
    epilog._library.find_nvrtc()
    assert os.environ["EPILOG_NVRTC"] == "mine"
    for cuda, major in (None, 13), ("12.8", 12), ("13.0", 13):  # that of PyTorch's CUDA, else the newest
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.delenv("EPILOG_NVRTC")
        epilog._library.find_nvrtc()
        assert os.environ["EPILOG_NVRTC"].endswith(f"libnvrtc.so.{major}")


def test_meta():
    """Sizes and types without numbers; also where there is a plan for other tensors already."""
    swiglu(*given(torch.bfloat16))
    args = [a.to("meta") for a in given(torch.bfloat16)]
    y = swiglu(*[a.requires_grad_() for a in args])
    assert y.is_meta and y.shape == (5, 16) and y.dtype == torch.bfloat16
    assert [g.shape for g in torch.autograd.grad(y.sum(), args)] == [a.shape for a in args]
    with torch.no_grad():
        assert swiglu(*args).shape == (5, 16)


def test_profiler():
    args = given()
    with torch.profiler.profile() as profile:
        swiglu(*args).sum().backward()
        with torch.no_grad():
            swiglu(*args)
    found = {e.key: e.count for e in profile.key_averages()}
    assert found["epilog::swiglu"] == 2 and found["epilog::swiglu, backward"] == 1


def test_what_is_saved_of_a_row_is_f32(compiled):
    norm = epilog.op("norm(x[T,D], g[D]) -> y[T,D] { y = x*rsqrt(mean(x*x, D))*g }")
    call, (x, g) = in_a_graph(norm, compiled), leaves((6, 8), (8,), dtype=torch.bfloat16)
    y, kept = saved_by(lambda: call(x, g))
    assert y.dtype == torch.bfloat16 and sorted((str(t.dtype), t.dim()) for t in kept) == [
        ("torch.bfloat16", 1), ("torch.bfloat16", 2), ("torch.float32", 1)]
    check(call, lambda x, g: x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * g, [x, g])


LOSS = """loss(x[T,D], w[V,D], y: i64[T]) -> l: f32[T] {
    z = again(x @ w)
    l = logsumexp(z, V) - sum(where(index(V) == y, z, 0), V)
}"""


def test_rows_are_saved():
    """Rows that the forward stores for its product are kept for the backward's, but not where there is a budget."""
    text = "f(x[T,D], g[D], b[D], w[F,D]) -> y[T,F] { n = layernorm(x, g, b, 1e-5)  y = n @ w }"
    (x, g, b, w), grads = leaves((7, 16), (16,), (16,), (5, 16)), []
    for f in (epilog.op(text), epilog.op(text, memory=1_000_000)):
        y, kept = saved_by(lambda: f(x, g, b, w))
        grads.append(torch.autograd.grad(y, (x, g, b, w), torch.ones_like(y)))
        assert [t.shape for t in kept].count((7, 16)) == (1 if f.program.memory else 2)  # x, and the rows that are normalised
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(*grads))


def test_memory():
    """Within a budget rows have the same bits; logits are neither saved nor stored whole."""
    torch.manual_seed(3)
    whole, less = epilog.op(LOSS), epilog.op(LOSS, memory=8_000_000)
    x, w, y = torch.randn(2048, 272, requires_grad=True), (torch.randn(1000, 272) / 16).requires_grad_(), torch.randint(0, 1000, (2048,))
    l, saved = saved_by(lambda: less(x, w, y))
    got, want = torch.autograd.grad(l.sum(), (x, w)), torch.autograd.grad(whole(x, w, y).sum(), (x, w))
    assert torch.equal(l, whole(x, w, y)) and torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1])
    assert max(t.numel() for t in saved) < 2048 * 1000
    backward = less.program.grad(("x", "w"), True)[1]
    assert backward.compiled and all("slabs of" in k.describe() for k in backward.compiled.values())
    assert torch.equal(torch.compile(less, backend="aot_eager")(x.detach(), w.detach(), y), l)
    again = pickle.loads(pickle.dumps(less))
    assert again.program.memory == 8_000_000 and torch.equal(again(x, w, y), l)
    refused("loss needs", epilog.op(LOSS, memory=1000), x.detach(), w.detach(), y, kind=epilog.EpilogError)


def test_zeros_that_are_not_in_memory():
    """As PyTorch's own derivatives make them: a tensor without memory that is not without elements."""
    f, w = epilog.op("f(x[T,D], w[F,D]) -> y[T,F] { y = exp(x @ w) }"), torch.ones(5, 8)
    for _ in range(2):
        assert torch.equal(f(torch._efficientzerotensor((4, 8)), w), torch.ones(4, 5))


@pytest.mark.filterwarnings("ignore")
def test_traced():
    """torch.jit.trace sees an operation, and no numbers that happen to come out of it."""
    f, momentum = epilog.op("f(x[T,D], w[F,D]) -> y[T,F] { y = x @ w }"), epilog.op("g(w[N], d[N]) -> v[N] { v = w + d }", into={"v": "w"})
    x, w, other = torch.randn(4, 8), torch.randn(5, 8), torch.randn(4, 8)
    f(x, w)
    torch.testing.assert_close(torch.jit.trace(lambda x: f(x, w), x)(other), other @ w.T)
    layer = epilog.nn.Linear(8, 5)
    traced = torch.jit.trace(layer, x)
    torch.testing.assert_close(traced(other), layer(other))
    traced(other.requires_grad_()).sum().backward()
    torch.testing.assert_close(layer.weight.grad, other.detach().sum(0).expand(5, 8))
    torch.testing.assert_close(other.grad, layer.weight.detach().sum(0).expand(4, 8))
    with pytest.raises(NotImplementedError, match="torch.jit.trace does not support"):
        torch.jit.trace(lambda a, b: momentum(a.clone(), b), (x[0], x[1]))


LABELS_LOSS = """
loss(x[T,D], w[V,D], label: i32[T]) -> l: f32[T] {
    z = x @ w
    l = logsumexp(z, V) - sum(where(label == index(V), z, 0), V)
}"""


def test_saved_values_are_written_over():
    """The last backward of a graph has the gradient of what was saved in its place; one that is run again has not, nor one whose saved tensors someone else has."""
    loss, label, held, ran = epilog.op(LABELS_LOSS), torch.randint(0, 40, (30,)), [], []
    x, w = torch.randn(30, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)

    def keep(t):
        held.append((t, t.clone()))
        return t
    want = torch.autograd.grad(torch.nn.functional.cross_entropy(x @ w.T, label, reduction="sum"), (x, w))
    made = _run.recipe(loss.program, ("x", "w"), [x, w, label])
    assert made.last is not made.backward and made.last.spent
    plan = lambda prog: next(iter(prog.plans.values()))
    l = loss(x, w, label).sum()
    first = torch.autograd.grad(l, (x, w), retain_graph=True)
    second = torch.autograd.grad(l, (x, w))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        third = torch.autograd.grad(loss(x, w, label).sum(), (x, w))
    for a, b, c, d in zip(want, first, second, third):
        assert torch.equal(a, b) or torch.allclose(a, b, atol=1e-4)
        assert torch.equal(b, c) and torch.equal(b, d)
    assert held and all([torch.equal(t, before) for t, before in held])
    assert plan(made.backward).space - plan(made.last).space >= 4 * 30 * 40  # the logits' gradient


def test_training_makes_the_backward_of_a_cuda_graph(monkeypatch):
    """In a capture nothing can be compiled, and the backward leaves what was saved: where that takes long, it is there once training has run."""
    monkeypatch.setattr(_run, "compiles_long", lambda device: True)
    loss, label = epilog.op(LABELS_LOSS.replace("loss", "captured_loss")), torch.randint(0, 40, (30,))
    x, w = torch.randn(30, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)
    torch.autograd.grad(loss(x, w, label).sum(), (x, w))
    made = _run.recipe(loss.program, ("x", "w"), [x, w, label])
    (key, plan), = made.last.plans.items()
    assert plan.beside is made.backward.plans[key] and plan.beside.kernel is not plan.kernel
    few = torch.autograd.grad(loss(x[:20], w, label[:20]).sum(), (x, w))
    want = torch.autograd.grad(torch.nn.functional.cross_entropy(x[:20] @ w.T, label[:20], reduction="sum"), (x, w))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(few, want))


@pytest.mark.parametrize("late", (False, True))
def test_a_backward_that_failed_behind_what_it_wrote_over(late):
    """A hook that raises leaves the node as if it had not run: what was saved is not taken for what it was. late: by hooks, which know no versions."""
    loss, label, raises = epilog.op(LABELS_LOSS), torch.randint(0, 40, (30,)), [True]
    x, w = torch.randn(30, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)

    def fail(*_):
        if raises:
            raise ValueError(raises.pop())
    l = loss(x, w, label)
    l.grad_fn.register_hook(fail)
    if late:
        for saved in l.grad_fn._raw_saved_tensors:
            saved.register_hooks(lambda t: t, lambda t: t)
    saved = l.grad_fn.saved_tensors
    own = (saved[-1] * torch.ones(1, requires_grad=True)).sum()
    versions = sum([t._version for t in saved])
    refused("", torch.autograd.grad, l.sum(), (x, w))
    assert sum([t._version for t in saved]) > versions
    refused("loss: an earlier backward has overwritten the saved tensors", torch.autograd.grad, l.sum(), (x, w), kind=epilog.EpilogError)
    refused("modified by an inplace operation", own.backward, kind=RuntimeError)  # in another graph


def test_slow():
    text = "picked(x[T,D], w[V,D], y: i32[T]) -> z[T] { z = gather(x @ w, y, V) }"
    args = torch.randn(64, 8), torch.randn(32000, 8), torch.zeros(64, dtype=torch.int32)
    picked = epilog.op(text)
    with pytest.warns(UserWarning, match=r"(?s)picked is slow with .*stores .* = x @ w.*because.*write sum\(where"):
        picked(*args)
    with warnings.catch_warnings():  # of a program once
        warnings.simplefilter("error")
        picked(*args)
        picked(args[0][:3], args[1], args[2][:3])
        swiglu(*given(grad=(False,) * 3))

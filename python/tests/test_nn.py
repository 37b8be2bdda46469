"""epilog.nn beside what it replaces: the same names in the state dict, the same results."""
import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import epilog
from rule import check


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def dtype(request):
    return request.param


def same_state(ours, theirs):
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())


def beside(ours, theirs, x, dtype):
    """ours and a torch module with the same parameters, gradients by those too."""
    same_state(ours, theirs)
    names = [n for n, _ in ours.named_parameters()]
    call = lambda module: lambda x, *p: torch.func.functional_call(module, dict(zip(names, p)), (x,))
    values = [p.detach().to(dtype).requires_grad_() for p in ours.parameters()]
    check(call(ours), call(theirs), [x.to(dtype).requires_grad_(), *values])


def test_norms_and_linear(dtype):
    torch.manual_seed(2)
    x = torch.randn(2, 5, 16)
    for name, sizes, more in (("RMSNorm", (16,), dict(eps=1e-5)), ("LayerNorm", (16,), {}), ("Linear", (16, 24), {}), ("Linear", (16, 24), dict(bias=False))):
        beside(*(getattr(of, name)(*sizes, **more) for of in (epilog.nn, nn)), x, dtype)


@pytest.mark.parametrize("name, function", [("gelu", F.gelu), ("silu", F.silu), ("relu", F.relu),
                                            ("gelu_tanh", lambda z: F.gelu(z, approximate="tanh"))])
def test_linear_with_an_epilogue(name, function):
    layer = epilog.nn.Linear(16, 24, activation=name)
    x, res = torch.randn(3, 4, 16, requires_grad=True), torch.randn(3, 4, 24, requires_grad=True)
    check(lambda x, r, w, b: torch.func.functional_call(layer, {"weight": w, "bias": b}, (x, r)),
          lambda x, r, w, b: r + function(F.linear(x, w, b)), [x, res, layer.weight, layer.bias])
    with pytest.raises(ValueError, match="activation is 'tan'"):
        epilog.nn.Linear(2, 2, activation="tan")


@pytest.mark.parametrize("kind, function", [("silu", F.silu), ("gelu_tanh", lambda z: F.gelu(z, approximate="tanh"))])
def test_gated_mlp(kind, function):
    mlp = epilog.nn.GatedMLP(16, 40, kind)
    assert list(mlp.state_dict()) == ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]
    assert type(epilog.nn.SwiGLU(4, 8)).__mro__[1] is type(epilog.nn.GEGLU(4, 8)).__mro__[1] is epilog.nn.GatedMLP
    with pytest.raises(ValueError, match="activation is 'tan'"):
        epilog.nn.GatedMLP(2, 2, "tan")
    check(lambda x, g, u, d: mlp.op(x, g, u, d), lambda x, g, u, d: (function(x @ g.T) * (x @ u.T)) @ d.T,
          [torch.randn(6, 16, requires_grad=True), *mlp.parameters()])
    x = torch.randn(2, 3, 16)
    assert mlp(x).shape == x.shape and torch.equal(mlp(x)[1], mlp(x[1]))


def seen_of(queries, keys, causal=False, window=None, documents=None, lengths=None, starts=None, prefix=None, **more):
    """The mask written out: [B,1,S,R], or without a batch where all sequences have the same."""
    q, k = torch.arange(queries)[:, None], torch.arange(keys)
    of = lambda t: t[:, None, None, None]
    seen = (k <= q) if causal else (k == k).expand(queries, keys)
    seen = seen & (k > q - window) if window else seen
    seen = seen | (k < of(prefix + (0 if starts is None else starts))) if prefix is not None else seen
    seen = seen & (k >= of(starts)) if starts is not None else seen
    seen = seen & (k < of(lengths)) if lengths is not None else seen
    if documents is not None:
        here, there = documents if isinstance(documents, tuple) else (documents, documents)
        seen = seen & (here[:, None, :, None] == there[:, None, None, :])
    return seen


def eager_attention(q, k, v, softcap=None, scale=None, bias=None, sinks=None, **masks):
    heads = q.shape[2] // k.shape[2]
    q, k, v = (t.repeat_interleave(n, 2).transpose(1, 2) for t, n in ((q, 1), (k, heads), (v, heads)))
    z = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    z = z if bias is None else z + bias
    seen = seen_of(z.shape[-2], z.shape[-1], **masks)
    some = seen.any(-1, keepdim=True)  # a query that sees nothing gets 0
    z = (z if z.dtype == torch.float64 else z.float()).masked_fill(~seen & some, -torch.inf)
    z = z if sinks is None else torch.cat((z, sinks.to(z.dtype)[:, None, None].expand(*z.shape[:3], 1)), -1)
    p = torch.softmax(z, -1)[..., :k.shape[2]] * some
    return (p.to(v.dtype) @ v).transpose(1, 2)


def attention_beside(args, units, *names, eager=eager_attention, terms={}, **more):
    """epilog.nn.attention and eager's with the same arguments; names: of tensors behind q, k and v."""
    by = lambda attention: lambda *a: attention(*a[:3], **dict(zip(names, a[3:])), **more)
    check(by(epilog.nn.attention), by(eager), args, units, terms)


def far_scores(q, k, scale=8 ** -0.5):
    """How far scores are from 0: exp has the absolute rounding error of its exponent."""
    return 1 + torch.einsum("bshe,brhe->bhsr", q, k.repeat_interleave(q.shape[2] // k.shape[2], 2)).abs().max().item() * scale


@pytest.mark.parametrize("more", [dict(), dict(causal=True), dict(causal=True, window=4), dict(causal=True, softcap=2.0, scale=0.3),
                                  dict(causal=True, window=3, softcap=4.0)])
@pytest.mark.parametrize("queries, keys", [(20, 20), (7, 12)])
@pytest.mark.parametrize("heads, groups", [(4, 2), (3, 3)])
def test_attention(dtype, more, queries, keys, heads, groups):
    torch.manual_seed(11)
    args = [torch.randn(2, *sizes).to(dtype).requires_grad_() for sizes in ((queries, heads, 8), (keys, groups, 8), (keys, groups, 16))]
    attention_beside(args, far_scores(*args[:2], more.get("scale", 8 ** -0.5)), **more)


DOCUMENTS = torch.tensor([[0] * 7 + [1] * 4 + [2] * 9, [5] * 3 + [4] * 16 + [5]])
STARTS, LENGTHS = torch.tensor([0, 6]), torch.tensor([13, 20])
MASKS = {"left padding": dict(causal=True, starts=STARTS), "right padding": dict(causal=True, lengths=LENGTHS),
         "a window of padded keys": dict(causal=True, window=4, starts=STARTS, lengths=LENGTHS), "padding, both ways": dict(starts=STARTS, lengths=LENGTHS),
         "no key": dict(lengths=torch.tensor([20, 0])), "documents": dict(causal=True, documents=DOCUMENTS), "documents, both ways": dict(documents=DOCUMENTS),
         "documents and a window": dict(causal=True, window=3, documents=DOCUMENTS),
         "documents of queries and keys": dict(documents=(DOCUMENTS, DOCUMENTS.flip(0))), "holes": dict(causal=True, documents=(torch.ones(2, 20).int(), DOCUMENTS % 2)),
         "a prefix": dict(causal=True, prefix=torch.tensor([5, 0])), "a prefix behind padding": dict(causal=True, prefix=torch.tensor([5, 9]), starts=STARTS)}


def masked(dtype, *more):
    """Arguments of attention to 20 keys, tensors of these sizes behind them, and how far their scores are from 0."""
    torch.manual_seed(11)
    args = [torch.randn(sizes).to(dtype).requires_grad_() for sizes in ((2, 20, 4, 8), (2, 20, 2, 8), (2, 20, 2, 16), *more)]
    return args, far_scores(*args[:2]) + 4 * len(more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MASKS)
def test_attention_with_masks(dtype, name):
    """Beside PyTorch's with the mask written out, and beside eager with the soft cap, too."""
    args, units = masked(dtype)
    mask = seen_of(20, 20, **MASKS[name])

    def sdpa(q, k, v):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2)
    check(lambda q, k, v: epilog.nn.attention(q, k, v, **MASKS[name]), sdpa, args, units)
    attention_beside(args, units, softcap=2.0, **MASKS[name])


@pytest.mark.parametrize("name", ["left padding", "a window of padded keys", "documents", "no key"])
@pytest.mark.parametrize("sizes", [(20, 20), (4, 20, 20), (2, 4, 20, 20), (1, 4, 20, 20), (2, 1, 20, 20)])
def test_attention_with_a_bias(dtype, name, sizes):
    args, units = masked(dtype, sizes)
    attention_beside(args, units, "bias", **MASKS[name])


@pytest.mark.parametrize("name", MASKS)
def test_attention_with_sinks(dtype, name):
    """The gradient by a sink is the sum over queries of d_o*o, of which little may be left."""
    args, units = masked(dtype, (4,))
    with torch.no_grad():
        o = eager_attention(*args[:3], sinks=args[3], **MASKS[name]).double()
        terms = (o * torch.linspace(-1, 1, o.numel()).view_as(o)).abs().sum(-1).square().sum((0, 1)).sqrt().max().item()
    attention_beside(args, units, "sinks", terms={4: terms}, **MASKS[name])


@pytest.mark.parametrize("name", ["a window of padded keys", "documents and a window", "a prefix behind padding"])
def test_gradients_of_masks_by_differences(name):
    """Of f32: differences over a large step, of a function that is nearly linear there. What no query sees has a gradient of exactly 0."""
    args, _ = masked(torch.float32)
    weight = torch.linspace(-1, 1, 2 * 20 * 4 * 16).view(2, 20, 4, 16)
    of = lambda *a: (epilog.nn.attention(*a, **MASKS[name]) * weight).sum()
    grads, seen = torch.autograd.grad(of(*args), args), seen_of(20, 20, **MASKS[name]).expand(2, 1, 20, 20)[:, 0]
    wide = [a.detach().double() for a in args]
    def exact(*a):
        return (eager_attention(*a, **MASKS[name]) * weight).sum().item()
    for i in range(3):
        torch.manual_seed(i)
        step = torch.randn_like(wide[i])
        moved = [[w + sign * 1e-5 * step if j == i else w for j, w in enumerate(wide)] for sign in (1, -1)]
        found = (exact(*moved[0]) - exact(*moved[1])) / 2e-5
        assert abs((grads[i].double() * step).sum().item() - found) <= 1e-5 * (grads[i].double() * step).abs().sum().item()
    assert not grads[0][~seen.any(2)].any() and not grads[1][~seen.any(1)].any() and not grads[2][~seen.any(1)].any()


def test_attention_with_masks_compiled():
    args, _ = masked(torch.float32)
    for name in ("left padding", "documents", "a prefix behind padding"):
        ours = lambda q, k, v: epilog.nn.attention(q, k, v, **MASKS[name])
        plain = ours(*args)
        assert torch.equal(torch.compile(ours, fullgraph=True, backend="aot_eager")(*args), plain)


@pytest.mark.parametrize("more", [dict(starts=torch.tensor([3, 20])), dict(starts=STARTS, lengths=LENGTHS), dict(starts=STARTS, window=4),
                                  dict(starts=STARTS, lengths=torch.tensor([9, 6]), window=4)])
def test_queries_that_spread(dtype, more):
    """A query that sees no key has the mean of all values, with spread=True."""
    args, units = masked(dtype)
    some = seen_of(20, 20, causal=True, **more).any(-1)[:, 0, :, None, None]

    def eager(q, k, v):
        return torch.where(some, eager_attention(q, k, v, causal=True, **more), v.mean(1, keepdim=True).repeat_interleave(2, 2))
    assert not some.all()
    check(lambda q, k, v: epilog.nn.attention(q, k, v, causal=True, spread=True, **more), eager, args, units)


def test_mistakes_of_masks():
    q, k, v = torch.randn(2, 7, 4, 8), torch.randn(2, 9, 2, 8), torch.randn(2, 9, 2, 8)
    for given, kind, message in (
            (dict(lengths=[3, 4]), TypeError, "lengths is list: it must be a tensor of torch.int32 or torch.int64"),
            (dict(lengths=torch.ones(2)), TypeError, "lengths is torch.float32"),
            (dict(starts=torch.ones(3).int()), ValueError, r"starts has sizes \[3\]: they must be \[2\], since q has sizes \[2, 7, 4, 8\]"),
            (dict(documents=torch.ones(2, 7).int()), ValueError, r"documents of keys has sizes \[2, 7\]: they must be \[2, 9\]"),
            (dict(starts=torch.ones(2, device="meta").int()), ValueError, "starts is on meta, but q is on cpu"),
            (dict(prefix=torch.ones(2).int()), ValueError, "prefix is what queries see beyond causal=True"),
            (dict(prefix=torch.ones(2).int(), causal=True, window=2), ValueError, "works neither with window"),
            (dict(spread=True, causal=True), ValueError, "spread needs causal=True and starts"),
            (dict(bias=torch.ones(9)), ValueError, r"bias has sizes \[9\]"), (dict(bias=torch.ones(3, 7, 9)), ValueError, r"they must be \[4, 7, 9\]"),
            (dict(sinks=torch.ones(2)), ValueError, r"sinks has sizes \[2\]: they must be \[4\]"), (dict(window=3), ValueError, "window is the number"),
            (dict(causal=True, softcap=-1.0), ValueError, "softcap is -1.0")):
        with pytest.raises(kind, match=message):
            epilog.nn.attention(q, k, v, **given)
    with pytest.raises(ValueError, match="H is a multiple of G"):
        epilog.nn.attention(q, torch.randn(2, 9, 3, 8), v)


def test_attention_of_all_lengths():
    """One kernel, and a row's bits do not depend on how many others there are; strided tensors are as good."""
    torch.manual_seed(12)
    q, k, v = torch.randn(3, 2, 33, 4, 8)
    whole, op = epilog.nn.attention(q, k, v, causal=True), epilog.nn.ATTENTION[epilog.nn.Form(causal=True)]
    compiled = len(op.program.compiled)
    for length in (33, 40, 64):
        q2, k2, v2 = (torch.cat((t, torch.randn(2, length - 33, 4, 8)), 1) for t in (q, k, v))
        assert torch.equal(epilog.nn.attention(q2, k2, v2, causal=True)[:, :33], whole)
    assert len(op.program.compiled) == compiled
    assert torch.equal(epilog.nn.attention(*torch.stack((q, k, v), 2).unbind(2), causal=True), whole)


@pytest.fixture(params=[False, True], ids=["", "padded"])
def padded(request, monkeypatch):
    """On a GPU words are padded to a multiple of 8; here if they are told to be."""
    if request.param:
        monkeypatch.setattr(epilog.nn, "pad_words", lambda w: F.pad(w, (0, 0, 0, -w.shape[0] % 8)))


def of_loss(seed, dtype=torch.float32, ignored=-100, scale=4):
    """Tokens and words, labels, and how large logits are: exp(z - lse) has the absolute rounding error of its exponent."""
    torch.manual_seed(seed)
    labels = torch.randint(0, 30, (2, 7))
    labels[1, 4:] = ignored
    args = [torch.randn(2, 7, 16).to(dtype).requires_grad_(), (torch.randn(30, 16) / scale).to(dtype).requires_grad_()]
    return args, labels, 1 + (args[0] @ args[1].T).abs().max().item()


def logits_of(x, w, softcap):
    z = x @ w.T
    return z if softcap is None else softcap * torch.tanh(z / softcap)


def eager_loss(x, w, labels, reduction="mean", ignore_index=-100, label_smoothing=0.0, softcap=None, z_loss=0.0):
    z, counts = logits_of(x, w, softcap).flatten(0, 1), labels.flatten() != ignore_index
    z = z if z.dtype == torch.float64 else z.float()
    loss = F.cross_entropy(z, labels.flatten(), ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none")
    loss = loss + z_loss * torch.logsumexp(z, -1).square() * counts
    return {"none": loss.view(labels.shape), "sum": loss.sum()}.get(reduction, loss.sum() / counts.sum())


@pytest.mark.parametrize("more", [dict(reduction="mean"), dict(reduction="sum"), dict(reduction="none"), dict(label_smoothing=0.1, ignore_index=-1),
                                  dict(softcap=5.0, ignore_index=-1), dict(z_loss=0.01, ignore_index=-1),
                                  dict(label_smoothing=0.2, softcap=8.0, z_loss=0.1, ignore_index=-1)])
@pytest.mark.usefixtures("padded")
def test_linear_cross_entropy(more, dtype):
    scale = 1 if "reduction" in more and dtype == torch.float32 else 4
    args, labels, units = of_loss(6, dtype, more.get("ignore_index", -100), scale)
    ours = lambda x, w: epilog.nn.linear_cross_entropy(x, w, labels, **more)
    check(ours, lambda x, w: eager_loss(x, w, labels, **more), args, units)
    head = epilog.nn.LinearCrossEntropy(16, 30, dtype=dtype, **more)
    same_state(head, nn.Linear(16, 30, bias=False))
    assert torch.equal(head(args[0], labels), ours(args[0], head.weight))


@pytest.mark.parametrize("given", [{}, dict(chunks=2), dict(chunks=2, reduction="none"), dict(label_smoothing=0.1, softcap=5.0, z_loss=0.1),
                                   dict(label_smoothing=1.0)])
@pytest.mark.parametrize("label", [30, -1, 1 << 33])
@pytest.mark.usefixtures("padded")
def test_labels_outside_the_vocabulary(given, label):
    """An error, as PyTorch's loss has it; where nobody looks, as on a GPU, the loss is infinite."""
    x, w, labels = torch.randn(9, 16, requires_grad=True), torch.randn(30, 16, requires_grad=True), torch.arange(9)
    labels[2] = -100
    assert epilog.nn.linear_cross_entropy(x, w, labels, **given).isfinite().all()
    labels[4] = label
    for loss in (lambda: F.cross_entropy(x @ w.T, labels), lambda: epilog.nn.linear_cross_entropy(x, w, labels, **given)):
        with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
            loss()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epilog.nn, "check_labels", lambda *given: None)
        found = epilog.nn.linear_cross_entropy(x, w, labels, **{**given, "reduction": "none"})
        assert found.isinf().tolist() == [i == 4 for i in range(9)]
        found[found.isfinite()].sum().backward()
        assert x.grad.isfinite().all() and w.grad.isfinite().all()
        assert epilog.nn.linear_cross_entropy(x, w, labels, **{**given, "reduction": "sum"}).isinf()


@pytest.mark.usefixtures("padded")
def test_labels_outside_the_vocabulary_in_a_graph():
    x, w, labels = torch.randn(9, 16), torch.randn(30, 16), torch.arange(9)
    compiled = torch.compile(lambda *a: epilog.nn.linear_cross_entropy(*a), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, w, labels), epilog.nn.linear_cross_entropy(x, w, labels))
    labels[4] = 30
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(x, w, labels)


def test_statistics_of_labels_outside():
    x, w, labels = torch.randn(3, 16), torch.randn(30, 16), torch.tensor([1, -100, 30])
    with pytest.raises(IndexError, match="Target 30 is out of bounds"):
        epilog.nn.linear_token_statistics(x, w, labels)
    assert epilog.nn.TOKEN_STATISTICS[False](x, w, labels)[0].isinf().tolist() == [False, False, True]


@pytest.mark.parametrize("more", [dict(), dict(reduction="sum"), dict(reduction="none"), dict(label_smoothing=0.1, softcap=4.0, z_loss=0.01)])
@pytest.mark.parametrize("chunks", [2, 3, 20])
@pytest.mark.usefixtures("padded")
def test_loss_in_chunks(chunks, more, dtype):
    """Within the rule of eager, as without chunks; frozen weights get no gradient, and without gradients nothing is different."""
    args, labels, units = of_loss(13, dtype)
    ours = lambda x, w: epilog.nn.linear_cross_entropy(x, w, labels, chunks=chunks, **more)
    check(ours, lambda x, w: eager_loss(x, w, labels, **more), args, units)
    x, w = (a.detach() for a in args)
    assert torch.equal(ours(x, w), epilog.nn.linear_cross_entropy(x, w, labels, **more))
    x.requires_grad_()
    loss = ours(x, w).sum()
    dx, = torch.autograd.grad(loss, x)
    whole = ours(*args).sum()
    assert torch.equal(dx, torch.autograd.grad(whole, args[0])[0]) and w.grad is None


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.usefixtures("padded")
def test_loss_in_chunks_compiled(reduction):
    torch.manual_seed(15)
    args, labels = [torch.randn(9, 16, requires_grad=True), torch.randn(30, 16, requires_grad=True)], torch.randint(0, 30, (9,))
    ours = lambda x, w: epilog.nn.linear_cross_entropy(x, w, labels, reduction=reduction, chunks=2)
    compiled = torch.autograd.grad(torch.compile(ours, fullgraph=True)(*args).sum(), args)
    torch.testing.assert_close(compiled, torch.autograd.grad(ours(*args).sum(), args))


@pytest.mark.usefixtures("padded")
def test_loss_in_chunks_under_autocast():
    """The same types; gradients differ by roundings to bf16: theirs, those of the logits' gradient, and of logits, which one of the two keeps."""
    torch.manual_seed(14)
    x, w, labels = torch.randn(9, 16, requires_grad=True), torch.randn(30, 16, requires_grad=True), torch.randint(0, 30, (9,))
    found = []
    for chunks in (1, 2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = epilog.nn.linear_cross_entropy(x, w, labels, chunks=chunks)
        found.append((loss.detach(), *torch.autograd.grad(loss, (x, w))))
    assert [t.dtype for t in found[0]] == [t.dtype for t in found[1]]
    torch.testing.assert_close(found[1][0], found[0][0], rtol=2 ** -7, atol=0)
    with torch.no_grad():
        z = x @ w.T
        p = z.softmax(-1) * z.abs().max() * 2 ** -9 / 9  # as far as the rounding of a logit moves its token's gradient
        for mine, other, off in zip(found[1][1:], found[0][1:], (p @ w.abs(), p.T @ x.abs())):
            assert ((mine - other).abs() <= 2 ** -7 * (other.abs() + other.abs().max()) + off).all()


@pytest.mark.usefixtures("padded")
def test_loss_in_chunks_scaled():
    """A loss in f16 times what GradScaler begins with, which f16 does not hold: gradients within the rule. None where no token counts."""
    torch.manual_seed(16)
    labels = torch.randint(0, 30, (4096,))
    args = [torch.randn(4096, 16).half().requires_grad_(), (torch.randn(30, 16) / 64).half().requires_grad_()]

    def eager(x, w):
        z = x @ w.T
        return 65536 * F.cross_entropy(z if z.dtype == torch.float64 else z.float(), labels)
    check(lambda x, w: 65536 * epilog.nn.linear_cross_entropy(x, w, labels, chunks=3), eager, args, 2)
    loss = epilog.nn.linear_cross_entropy(*args, torch.full_like(labels, -100), chunks=3)
    assert loss.isnan() and not any(g.any() for g in torch.autograd.grad(loss, args))


@pytest.mark.parametrize("softcap", [None, 4.0])
def test_token_statistics(softcap):
    args, labels, units = of_loss(7, ignored=0)

    def eager(x, w):
        p = torch.log_softmax(logits_of(x, w, softcap), -1)
        return p.gather(-1, labels[..., None])[..., 0], -(p.exp() * p).sum(-1)
    check(lambda x, w: epilog.nn.linear_token_statistics(x, w, labels, softcap)[:2], eager, args, units)
    head = epilog.nn.LinearCrossEntropy(16, 30, softcap=softcap)
    found = head.statistics(args[0], labels)
    assert found.argmax.dtype == torch.int64 and torch.equal(found.argmax, logits_of(args[0], head.weight, softcap).argmax(-1))
    assert torch.equal(found.log_prob, epilog.nn.linear_token_statistics(args[0], head.weight, labels, softcap).log_prob)


def test_mistakes():
    x, w, labels = torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1, 2])
    for given, message in ((dict(reduction="max"), "reduction is 'max'"), (dict(label_smoothing=2), "label_smoothing is 2"),
                           (dict(softcap=0.0), "softcap is 0.0"), (dict(chunks=0), "chunks is 0")):
        with pytest.raises(ValueError, match=message):
            epilog.nn.linear_cross_entropy(x, w, labels, **given)


def test_copies_and_files():
    x = torch.randn(3, 4)
    for made in (epilog.nn.Linear(4, 6, activation="gelu"), epilog.nn.SwiGLU(4, 8), epilog.nn.RMSNorm(4)):
        copied = copy.deepcopy(made)
        with io.BytesIO() as f:
            torch.save(made, f)
            f.seek(0)
            loaded = torch.load(f, weights_only=False)
        assert torch.equal(copied(x), made(x)) and torch.equal(loaded(x), made(x))
        assert all(a is not b for a, b in zip(copied.parameters(), made.parameters()))

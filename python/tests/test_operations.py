"""Operations that the backend takes in: each between two linear layers in one program, and where its pieces meet."""
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from epilog import _compile
from epilog._say import SAID, operation
from families import beside, compiled as on, leaves, programs

torch.manual_seed(0)
SEEN = torch.rand(2, 6, 16) > 0.3
EACH = {
    "logsumexp": lambda h: h - torch.logsumexp(h, -1, keepdim=True), "logsumexp of two": lambda h: h * h.logsumexp((1, 2), True),
    "and": lambda h: h * (SEEN & (h > 0)), "or": lambda h: h.masked_fill(SEEN | (h > 0), 0), "not": lambda h: h.masked_fill(~SEEN, 0), "xor": lambda h: h * (SEEN ^ (h > 0)),
    "logical": lambda h: h * torch.logical_not(torch.logical_or(SEEN, torch.logical_and(h > 0, ~SEEN))),
    "einsum": lambda h: torch.einsum("bsd,btd->bst", h, h) @ h, "einsum of heads": lambda h: torch.einsum("bqhd,bkhd->bhqk", *[h.unflatten(-1, (2, 8))] * 2).sum(1) @ h,
    "einsum of three": lambda h: torch.einsum("bsd,bte,btd->bse", h, h, h), "einsum of one": lambda h: torch.einsum("bsd->bs", h)[..., None] * h,
    "einsum without a sum": lambda h: torch.einsum("bsd,bt->bstd", h, h[..., 0]).sum(2), "normalize": lambda h: F.normalize(h, dim=-1), "normalize, 1": lambda h: F.normalize(h, 1, 1),
    "norm": lambda h: h / h.norm(dim=-1, keepdim=True), "vector_norm": lambda h: h / torch.linalg.vector_norm(h, dim=(1, 2), keepdim=True),
    "var": lambda h: h * h.var(-1, keepdim=True), "var, all": lambda h: h * h.var(unbiased=False), "std": lambda h: h / h.std((1, 2), True, True), "std, 0": lambda h: h / h.std(-1, correction=0)[..., None],
    "cumsum": lambda h: h.cumsum(1), "leaky_relu": lambda h: F.leaky_relu(h, 0.2), "elu": lambda h: F.elu(h, 1.5), "hardswish": F.hardswish, "mish": F.mish, "squeeze": lambda h: h[:, :1].squeeze()[:, None] * h,
    "relu6": F.relu6, "hardtanh": lambda h: F.hardtanh(h, -0.2, 0.3), "hardsigmoid": F.hardsigmoid, "selu": F.selu, "celu": lambda h: F.celu(h, 0.7), "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink, "softsign": F.softsign, "hardshrink": lambda h: F.hardshrink(h, 0.1), "softshrink": lambda h: F.softshrink(h, 0.1),
    "glu": lambda h: F.glu(torch.cat([h, h * 2], -1)), "prelu": lambda h: F.prelu(h.transpose(1, 2), h[0, 0]).transpose(1, 2), "threshold": lambda h: F.threshold(h, 0.1, -1.0),
    "pad": lambda h: F.pad(h, (0, 0, 1, 2)), "pad of features": lambda h: F.pad(h, (-1, 1), value=2.0), "roll": lambda h: h.roll((1, -2), (1, 2)), "flip": lambda h: h.flip(-1, 1, 0),
    "repeat": lambda h: h[..., :8].repeat(1, 1, 2), "tril": lambda h: torch.tril(h @ h.mT, -1) @ h, "triu": lambda h: (h @ h.mT).triu(1) @ h,
    "expand_as": lambda h: h + h[:, :1].expand_as(h), "view_as": lambda h: h.flatten(0, 1).view_as(h), "movedim": lambda h: h.movedim(1, 0).contiguous().movedim(0, 1),
    "swapaxes": lambda h: h.swapaxes(1, 2).swapdims(1, 2), "narrow": lambda h: torch.tanh(h.narrow(1, 1, 4)), "select": lambda h: h * h.select(1, -1)[:, None],
    "clamp_min": lambda h: h.clamp_min(0.1), "clamp_max": lambda h: torch.clamp_max(h, 0.5), "clamp between tensors": lambda h: h.clamp(-h[0], h[1]), "reciprocal": lambda h: (h * h + 1).reciprocal(),
    "sub": lambda h: torch.sub(h, h * h, alpha=0.5), "add": lambda h: torch.add(h, 1.0, alpha=3), "rsub": lambda h: torch.rsub(h, h * h, alpha=2), "addcmul": lambda h: torch.addcmul(h, h, h, value=0.5),
    "addcdiv": lambda h: torch.addcdiv(h, h, h * h + 1), "lerp": lambda h: torch.lerp(h, h * h, 0.3), "lerp by a tensor": lambda h: h.lerp(h * h, h), "softmin": lambda h: F.softmin(h, -1),
    "isnan": lambda h: h.masked_fill(h.isnan() | h.isinf(), 0), "mse_loss": lambda h: h * F.mse_loss(h, h * 2), "group_norm": lambda h: F.group_norm(h.mT, 4, h[0, 0], h[0, 1]).mT,
    "pow": lambda h: 2.0 ** h + (h * h + 1) ** (SEEN * 2.0), "exp2": lambda h: h.exp2(), "log2": lambda h: (h * h + 1).log2(), "zeros_like": lambda h: torch.where(SEEN, h, torch.zeros_like(h)), "full_like": lambda h: torch.where(h > 0, h, torch.full_like(h, -1.0))}


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("EPILOG_BACKEND_STRICT", "1")


@pytest.mark.parametrize("case", EACH)
def test_in_one_program(case):
    """With what is around it, forward and backward."""
    torch.manual_seed(1)
    plain = lambda x, w, b, wo: F.linear(EACH[case](F.linear(x, w, b)), wo)
    report = beside(plain, leaves((2, 6, 8), (16, 8), (16,), (4, 16)), units=64)
    assert len(programs(report)) == 1 and not [why for g in report.graphs for why in g.left if "unknown" in why]


KINKS = {"leaky_relu": F.leaky_relu, "elu": F.elu, "celu": lambda x: F.celu(x, 2.0), "selu": F.selu, "relu6": F.relu6, "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid,
         "hardswish": F.hardswish, "mish": F.mish, "logsigmoid": F.logsigmoid, "softsign": F.softsign, "tanhshrink": F.tanhshrink, "hardshrink": F.hardshrink, "softshrink": F.softshrink,
         "threshold": lambda x: F.threshold(x, 1.0, 5.0), "prelu": lambda x: F.prelu(x, torch.tensor([0.25])), "clamp": lambda x: x.clamp(-1, 3), "clamp_min": lambda x: x.clamp_min(torch.tensor(1.0)),
         "clamp_max": lambda x: x.clamp_max(1.0), "norm": lambda x: (x[:, None] * torch.tensor([1.0, 2.0])).norm(dim=-1), "std": lambda x: (x[:, None] * torch.tensor([1.0, 2.0])).std(-1), "expm1": torch.expm1}


@pytest.mark.parametrize("case", KINKS)
def test_where_pieces_meet(case, monkeypatch):
    """Values and derivatives at the ends of pieces, far away from them, and of NaN, are eager's."""
    monkeypatch.setattr(_compile, "is_worth_it", lambda nodes: True)
    plain = lambda x: KINKS[case](x * 1.0) + 0.0
    x = torch.tensor([-200.0, -90.0, -6.0, -3.0, -1.0, -0.5, -0.25, -1e-4, -0.0, 0.0, 1e-4, 0.25, 0.5, 1.0, 3.0, 6.0, 90.0, 200.0, torch.nan], requires_grad=True)
    call, report = on(plain)
    mine, expected = call(x), plain(x)
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    grads = [torch.autograd.grad(y[:-1].sum(), x)[0][:-1] for y in (mine, expected)]
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)
    assert programs(report) and any(operation(n) == case.split()[0] for p in programs(report) for n in p.nodes)


def attends(**how):
    return nn.MultiheadAttention(16, 4, batch_first=True, **how)


MASK = torch.ones(6, 6, dtype=torch.bool).triu(1)
PADDED = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
ATTENTION = {
    "itself": (attends(), lambda m, x, y: m(x, x, x, need_weights=False)[0]), "its weights": (attends(), lambda m, x, y: (lambda a, w: a * w.sum(-1, keepdim=True) + w @ x)(*m(x, x, x))),
    "weights of heads": (attends(), lambda m, x, y: m(x, x, x, average_attn_weights=False)[1].sum(1) @ x), "another": (attends(), lambda m, x, y: m(x, y, y, need_weights=False)[0]),
    "two others": (attends(), lambda m, x, y: m(x, y, 2 * y, need_weights=False)[0]), "sizes": (attends(kdim=8, vdim=8), lambda m, x, y: m(x, x[..., :8], x[..., 8:])[0]),
    "no bias": (attends(bias=False), lambda m, x, y: m(x, x, x)[0]), "a mask": (attends(), lambda m, x, y: m(x, x, x, attn_mask=MASK, need_weights=False)[0]),
    "causal": (attends(), lambda m, x, y: m(x, x, x, attn_mask=MASK, is_causal=True, need_weights=False)[0]), "padding": (attends(), lambda m, x, y: m(x, x, x, key_padding_mask=PADDED)[0]),
    "both": (attends(), lambda m, x, y: m(x, x, x, key_padding_mask=PADDED, attn_mask=MASK)[0]), "added": (attends(), lambda m, x, y: m(x, x, x, attn_mask=torch.linspace(-1, 1, 36).view(6, 6))[0]),
    "of heads": (attends(), lambda m, x, y: m(x, x, x, attn_mask=torch.linspace(-1, 1, 288).view(8, 6, 6))[0]),
    "one sequence": (attends(), lambda m, x, y: m(x[0], x[0], x[0])[0]), "an encoder": (nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True), lambda m, x, y: m(x)),
    "a decoder": (nn.TransformerDecoderLayer(16, 4, 32, 0.0, batch_first=True), lambda m, x, y: m(x, y, tgt_mask=MASK, tgt_is_causal=True))}


@pytest.mark.parametrize("case", ATTENTION)
def test_multi_head_attention(case):
    """One program, with what is around it."""
    module, how = ATTENTION[case]
    torch.manual_seed(2)
    plain = lambda x, y, *weights: torch.tanh(how(module, torch.tanh(x), y)) * 2
    given = [torch.randn(2, 6, 16, requires_grad=True), torch.randn(2, 5, 16)]
    call, report = on(plain)
    mine, expected = call(*given), plain(*given)
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    leaves = [given[0], *(p for p in module.parameters())]
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), leaves, allow_unused=True) for y in (mine, expected))):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        assert b is not None or a is None or not a.any()
    assert len(programs(report)) == 1 and any(operation(n) == "multi_head_attention_forward" for n in programs(report)[0].nodes)


LEFT = {  # arguments that a row does not name leave the node alone
    "a dtype": lambda h: h.cumsum(1, dtype=h.dtype), "circular": lambda h: F.pad(h, (1, 1), mode="circular")[..., 1:-1], "a norm": lambda h: h / h.norm(p=3, dim=-1, keepdim=True),
    "a diagonal": lambda h: torch.einsum("bii->bi", h @ h.mT)[..., None] * h, "dots": lambda h: torch.einsum("...d,...d->...", h, h)[..., None] * h, "all dimensions": lambda h: h.roll(3),
    "an exponent's gradient": lambda h: h.abs() ** h, "two axes": lambda h: h.flatten(1).cumsum(1).view_as(h), "of one": lambda h: h * torch.nan_to_num(h[..., :1].detach().var(-1, keepdim=True))}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("case", LEFT)
def test_left(case):
    plain = lambda x, w, wo: F.linear(LEFT[case](F.linear(x, w)), wo)
    torch.manual_seed(1)
    report = beside(plain, leaves((2, 6, 8), (16, 8), (4, 16)), units=64)
    assert len(programs(report)) == 2


def test_names():
    """Every row that PyTorch has is one of its functions, methods or operators."""
    homes = torch, torch.Tensor, F, torch._C._nn, torch.linalg, __import__("operator")
    assert not [name for name in SAID if name != "getattr" and not any(hasattr(h, name) for h in homes)]

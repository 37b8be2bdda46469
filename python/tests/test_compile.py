"""torch.compile(model, backend="epilog"): small models beside eager, and what the backend has to leave alone."""
import copy

import pytest
import torch
import torch.nn.functional as F

import epilog
from epilog import _compile, _write
from epilog._compile import Report, compile_graph
from epilog._schema import example
import families
from families import beside, compiled as on, leaves, programs, typed
from rule import check, hold

transformers = pytest.importorskip("transformers")
FAMILIES = ["Llama", "Qwen3", "Gemma3", "Phi3", "Olmo2", "GPTNeoX", "GPT2", "Bert", "ViT", "T5"]
# The terms of the sums on the way to a gradient, as in test_transformers.py.
TERMS = 2 * (2 * (6 * 32 + 64 + 8 + 2 * 10) + 32 + 96) + 20


@pytest.fixture
def said(monkeypatch):
    """What the backend complains of: nothing, in all tests here."""
    found = []
    monkeypatch.setattr(_compile.log, "warning", lambda form, *args: found.append(form % args))
    yield found
    assert not found


class Stored(torch.autograd.Function):
    """Attention in f64, but for its result and that one's gradient, which are as bf16 stores them where the scores' gradients are made: what
    is left of their difference has these roundings."""

    @staticmethod
    def forward(ctx, s, v):
        p = s.softmax(-1)
        ctx.save_for_backward(p, v, p @ v)
        return p @ v

    @staticmethod
    def backward(ctx, d):
        p, v, o = ctx.saved_tensors
        o, d = o.bfloat16().double(), d.bfloat16().double()
        return p * (d @ v.mT - (d * o).sum(-1, keepdim=True)), p.mT @ d


def stored_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    return Stored.apply(s, v)


def within(mine, plain, exact, dtype=None, stored=None):
    """The rule of rule.py, for results and all gradients. What eager has no gradient by, since it is part of no result, has 0, as with
    PyTorch's own backends. dtype: of values on the way, where it is not that of the results."""
    assert mine.keys() >= plain.keys() and all(not mine[name].any() for name in mine.keys() - plain.keys())
    for name, e in exact.items():
        more = 0 if stored is None else 2 * (stored[name] - e).abs().max().item()
        hold(mine[name], plain[name], e, name, 1, TERMS, dtype, more=more)


def step_beside(model, given, call):
    """A step of a model that is compiled, held against eager's."""
    within(families.step(model, given, call), families.step(model, given), families.step(copy.deepcopy(model).double(), given))


def share(report):
    """Of the flops, in programs."""
    return sum(g.flops_inside for g in report.graphs) / sum(g.flops for g in report.graphs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FAMILIES)
def test_family(name, dtype, monkeypatch, said):
    model, given = families.make(name)
    model, exact_model = model.to(dtype), copy.deepcopy(model).to(dtype).double()
    exact, plain = families.step(exact_model, typed(given, torch.float64)), families.step(model, typed(given, dtype))
    call, report = on(model)
    mine = families.step(model, typed(given, dtype), call)
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", stored_attention)
        stored = families.step(exact_model, typed(given, torch.float64)) if dtype == torch.bfloat16 else None
    within(mine, plain, exact, stored=stored)
    assert any(not torch.equal(mine[n], plain[n]) for n in plain)  # it is not eager that ran
    causal = [p for p in programs(report) if "<= index(" in p.text]
    assert len(causal) == (0 if name in ("Bert", "ViT") else 2)  # masks are said, not read
    assert share(report) > (0.9 if name == "ViT" else 0.99)  # its patches are a convolution
    assert len(programs(report)) <= (8 if name == "T5" else 4)
    of = [layer for g in report.graphs for layer in g.layers if layer]
    assert len(of) == len(set(of)) or name == "T5"  # a layer is one program; T5's first makes a bias in place


@pytest.mark.parametrize("name", ["Llama", "Bert"])
def test_training(name, said):
    """Five steps of AdamW: the losses are eager's."""
    def losses(compiled):
        model, given = families.make(name, std=0.05)
        return families.losses(model, given, on(model)[0] if compiled else None, 1e-2)
    mine, plain = losses(True), losses(False)
    assert mine == pytest.approx(plain, rel=1e-4) and plain[-1] < plain[0]


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma2"])
def test_beside_apply(name, said):
    """A layer that is found has no more launches and bytes on a GPU than the program that was written for it."""
    layer_plans = pytest.importorskip("layer_plans")
    for (launches, moved), (by_hand, moved_by_hand) in zip(layer_plans.of_layer(name), layer_plans.by_hand(name)):
        assert launches <= 1.1 * by_hand and moved <= 1.1 * moved_by_hand


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("how", ["slices", "split", "unsqueezed", "heads", "some", "twice", "alone"])
def test_packed(how, biased, said):
    """Heads of different kinds by one weight: parts of it are used as they lie, and their gradients are stored so."""
    def plain(x, w, wo, cos, *bias):
        y = F.linear(x, w, *bias)
        if how == "split":
            q, k, v = y.split([32, 8, 8], -1)
        elif how == "unsqueezed":
            q, k, v = y.unsqueeze(1).split([32, 8, 8], 3)
        elif how == "heads":
            y = y.view(2, 6, 6, 8)
            q, k, v = y[..., :-2, :], y[..., [-2], :], y[..., [-1], :]
        else:
            q, k, v = y[..., :32], y[..., 32:40], y[..., 40:]
        q, k, v = (t.view(2, 6, -1, 8).transpose(1, 2) for t in (q, k, v))
        if how == "twice":
            k = k + y[..., :8].view(2, 6, 1, 8).transpose(1, 2)
        if how != "alone":  # then no tensor has the axis of their features
            q, k = q * cos, k * cos
        o = F.scaled_dot_product_attention(q, k, k if how == "some" else v, is_causal=True, enable_gqa=True)
        return F.linear(o.transpose(1, 2).flatten(2), wo)
    torch.manual_seed(3)
    given = [torch.randn(2, 6, 16), torch.randn(48, 16), torch.randn(16, 32), torch.randn(6, 8), torch.randn(48)][:4 + biased]
    given = [t.requires_grad_(i != 3) for i, t in enumerate(given)]
    report = beside(plain, given, units=64)
    program, = programs(report)
    if how in ("slices", "split", "unsqueezed", "heads"):
        assert program.text.count("gather(") == (6 if biased else 3) and len(program.inputs) == (5 if biased else 4)
        assert how == "heads" or ", pass" not in (plan := program.planned()[1].kernel.describe()) and "scatter" not in plan


PARTS = {  # of a linear layer's result, between two: how many programs there are, of all flops
    "two of them": (lambda h: F.gelu(h[..., :4]).sum(-1, keepdim=True) + F.silu(h[..., 4:]).mean(-1, keepdim=True) + h, 1),
    "three, joined anew": (lambda h: (lambda p: torch.cat((F.gelu(p[2]), p[0], 2 * p[1]), -1))(h.split([4, 4, 8], -1)), 1),
    "one is used": (lambda h: F.gelu(h.split([4, 12], -1)[1]).sum(-1, keepdim=True) * h, 1), "some places joined anew": (lambda h: torch.cat((2 * h[..., :4], h[..., 4:]), -1), 1),
    "without the first row": (lambda h: torch.tanh(h[:, 1:]), 1), "rows in the middle": (lambda h: torch.tanh(h[:, 2:5]), 1), "rows from the end": (lambda h: F.gelu(h[:, -2:]), 1),
    "one row": (lambda h: torch.tanh(h[:, 2:3]) + h, 1), "rows that no result has": (lambda h: torch.tanh(h[:, 1:]).sum(1), 2), "rows turned": (lambda h: torch.cat((h[:, 1:], h[:, :1]), 1), 2),
    "a stack": (lambda h: torch.stack((h, torch.tanh(h), h * h), 1), 1), "a stack behind": (lambda h: torch.stack((h, 2 * h), -1).mT, 1)}


@pytest.mark.parametrize("case", PARTS)
def test_unequal_parts(case, said):
    between, count = PARTS[case]
    plain = lambda x, w, wo: F.linear(between(F.linear(x, w)), wo)
    torch.manual_seed(7)
    given = [torch.randn(s, requires_grad=True) for s in ((2, 6, 8), (16, 8), (8, 16))]
    report = beside(plain, given, units=16)
    assert share(report) == 1 and len(programs(report)) == count


def test_what_is_copied(said):
    """A write leaves the tensor that is written to to PyTorch, not what it takes from."""
    def plain(x, w):
        h, y = x @ w, torch.empty_like(x)
        y[:, :4].copy_(torch.tanh(h[:, :4]))
        y[:, 4:] = h[:, 4:] * 2
        return F.gelu(y) @ w
    assert share(beside(plain, leaves())) == 1


def test_transposed_weight(said):
    """x @ w.T is a linear layer: its weight is an input as it lies, and a part of its result is one of a part of it."""
    def plain(x, w, wo):
        q, k, v = (x @ w.T).view(2, 6, 6, 8)[..., :-2, :], (x @ w.mT)[..., 32:40], (x @ w.t())[..., 40:]
        return (q.flatten(2) @ wo.T) + (k * v) @ wo.T[:8]
    given = [torch.randn(2, 6, 16), torch.randn(48, 16), torch.randn(16, 32)]
    report = beside(plain, [t.requires_grad_() for t in given], units=64)
    assert len(programs(report)) == 1 and not [w for w in report.graphs[0].left if "getattr" in w]


def turned(x, cos, sin, how):
    if how == "halves":
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


@pytest.mark.parametrize("of", [1, 2, 4])
@pytest.mark.parametrize("how", ["halves", "pairs"])
@pytest.mark.parametrize("between", ["nothing", "a norm", "a product", "the whole"])
def test_partial_rotary(how, of, between, said):
    """The first features turned, the others as they are: on the tile of the projection, and attention sees one axis."""
    def plain(x, wq, wk, wv, cos, sin):
        def heads(w):
            return F.linear(x, w).view(2, 6, 2, 16).transpose(1, 2)

        def embed(y):
            head, rest = y[..., :16 // of], y[..., 16 // of:]
            if between == "a norm":
                head = F.rms_norm(head, head.shape[-1:], eps=1e-6)
            elif between == "a product":
                head = head @ (sin.t() @ cos)
            elif between == "the whole":  # the first features beside all of them
                head = head + (head[..., None, :] * y.unflatten(-1, (of, -1))).sum(-2)
            return torch.cat((turned(head, cos, sin, how), rest), -1)
        return F.scaled_dot_product_attention(embed(heads(wq)), embed(heads(wk)), heads(wv), is_causal=True)
    torch.manual_seed(2)
    given = [torch.randn(2, 6, 8), *torch.randn(3, 32, 8), *torch.randn(2, 6, 16 // of)]
    given = [t.requires_grad_(i < 4) for i, t in enumerate(given)]
    report = beside(plain, given, units=64)
    program, = programs(report)
    if between == "nothing":
        plan = program.planned()[0].kernel.describe()
        assert "gather(" not in program.text and "part 3 of 3, attention" in plan


@pytest.fixture
def with_scores(monkeypatch):
    """Scores of 16 tokens are many: arguments of `attended`."""
    monkeypatch.setattr(_compile, "SMALL", 512)
    return [torch.randn(s).bfloat16().requires_grad_() for s in ((2, 16, 32), (48, 32), (32, 16))]


def attended(x, w, wo, *mask, **how):
    q, k, v = F.linear(x, w).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    return F.linear(F.scaled_dot_product_attention(q, k, v, *mask, **how).transpose(1, 2).flatten(2), wo)


def test_scores_in_memory(with_scores, monkeypatch, said):
    """Where a plan would store many scores, attention is PyTorch's, and the layer is programs around it."""
    for made in (True, False):
        torch._dynamo.reset()
        monkeypatch.setattr(_compile, "parts", lambda plan: "gemm attention gemm" if made else "gemm gemm")
        report = beside(lambda *given: attended(*given, is_causal=True), with_scores, units=8)
        assert len(programs(report)) == (1 if made else 2)
        assert made == (not [why for why in report.graphs[0].left if "scores would be stored in memory" in why])


@pytest.mark.parametrize("kind", ["causal", "turned", "window", "added"])
def test_scores_in_memory_behind_a_mask(kind, with_scores, monkeypatch, said):
    """A mask of positions goes to PyTorch's attention, too, the causal one by its name."""
    def plain(x, w, wo):
        i = torch.arange(16)
        mask = i[:, None] >= i if kind == "turned" else i <= i[:, None]
        if kind == "window":
            mask = mask & (i > i[:, None] - 5)
        if kind == "added":
            mask = torch.where(mask, torch.zeros(()), torch.finfo(torch.bfloat16).min).to(x.dtype)
        return attended(x, w, wo, mask[None, None], scale=0.3)
    monkeypatch.setattr(_compile, "parts", lambda plan: "gemm gemm")
    seen = []
    report = Report()
    call = torch.compile(plain, backend=lambda gm, inputs: seen.append(compile_graph(gm, inputs, report, "eager")) or seen[-1])
    check(call, plain, with_scores, units=8)
    node, = [n for n in seen[0].graph.nodes if "scaled_dot_product_attention" in str(n.target)]
    assert len(programs(report)) == 2
    assert bool(node.kwargs.get("is_causal")) == (kind != "window")
    if kind != "window":
        assert (node.args + (None,) * 4)[3] is None and node.kwargs["scale"] == 0.3 and "arange" not in str(seen[0].graph)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cast_and_back(dtype, said):
    """What a graph rounds to 16 bits and reads as f32 is rounded; beyond the type it is infinite."""
    plain = lambda x, w: (x @ w).to(dtype).view(4, 2, 4).float() * 2 + (x @ w).view(4, 2, 4)
    x, w = torch.randn(4, 8) * 1e3, torch.randn(8, 8) * torch.tensor([1e2] + [1.0] * 7)
    x.requires_grad_()
    call, report = on(plain)
    mine, expected = call(x, w), plain(x, w)
    assert len(programs(report)) == 1 and dtype == torch.bfloat16 or expected.isinf().any()
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-2)
    assert torch.equal(mine.isinf(), expected.isinf())
    for got, want in zip(*(torch.autograd.grad(f(x, w)[:, :, 1:].sum(), x) for f in (call, plain))):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1)


def test_open_sizes(said):
    """One graph for batches and lengths of all sizes."""
    model, given = families.make("Llama")
    call, report = on(model, dynamic=True)
    for batch, length in ((2, 10), (3, 12), (4, 7)):
        ids = torch.randint(3, 96, (batch, length))
        given = dict(input_ids=ids, labels=ids, use_cache=False)
        step_beside(model, given, call)
    assert len(report.graphs) == 1 and share(report) > 0.99


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
def test_checkpointing(rest, said):
    model, given = families.make("Llama")
    exact, plain = families.step(copy.deepcopy(model).double(), given), families.step(model, given)
    model.gradient_checkpointing_enable()
    call, report = on(model, rest)
    within(families.step(model, given, call), plain, exact)
    assert share(report) > 0.99
    torch._dynamo.reset()
    for layer in model.model.layers:  # a checkpoint around what is compiled
        layer.compile(backend="epilog", options={"rest": rest})
    for reentrant in (False, True):  # PyTorch's two kinds
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=reentrant))
        within(families.step(model, given), plain, exact)


@pytest.mark.parametrize("name", ["Llama", "Phi3"])
def test_autocast(name, said):
    model, given = families.make(name)
    exact = families.step(copy.deepcopy(model).double(), given)
    call, report = on(model)
    with torch.autocast("cpu", torch.bfloat16):
        plain, mine = families.step(model, given), families.step(model, given, call)
    within(mine, plain, exact, torch.bfloat16)
    assert share(report) > 0.99


@pytest.mark.parametrize("name", ["Qwen3", "Phi3", "GPTNeoX"])
def test_adapters(name, said):
    """LoRA's products are part of the layer's program."""
    peft = pytest.importorskip("peft")
    model, given = families.make(name)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.0, init_lora_weights=False))
    call, report = on(model)
    step_beside(model, given, call)
    assert len(programs(report)) == 3 and not any("lora" in n or "_proj" in n for n in report.graphs[0].left)


def test_named(monkeypatch, said):
    """By its name. aot_eager has the rest on a CPU where nothing else is asked for (test_backend.py)."""
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(16, 8, requires_grad=True)
    plain = lambda x, w: F.silu(x @ w.t()).cumsum(0)
    asked, find = [], torch._dynamo.lookup_backend
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lambda name: asked.append(name) or (lambda gm, inputs, **how: gm))
    check(torch.compile(plain, backend="epilog"), plain, [x, w])
    assert asked[-1] == "aot_eager" and "epilog" in torch._dynamo.list_backends()
    monkeypatch.setattr(torch._dynamo, "lookup_backend", find)
    torch._dynamo.reset()
    check(torch.compile(plain, backend="epilog"), plain, [x, w])


def test_explain(capsys):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8), torch.nn.RReLU())
    report = epilog.explain(model, torch.randn(3, 8))
    text = capsys.readouterr().out
    assert text == str(report) + "\n" and "gelu(" in text and "unknown: rrelu" in text
    assert "forward: 2 kernels (gemm, gemm)" in text and "backward: " in text


@torch.library.custom_op("epilog_test::linear", mutates_args=())
def own_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Not PyTorch's, by the name of one that is."""
    return x @ w.t() + 1


own_linear.register_fake(lambda x, w: x @ w.t())
own_linear.register_autograd(lambda ctx, d: (d @ ctx.saved_tensors[1], d.t() @ ctx.saved_tensors[0]),
                             setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


def written_view(x, w):
    y = x @ w
    top = y[:2]
    y += 1
    return top * 2 + y[:2]


def written_after(x, w):
    y = x @ w
    z = F.gelu(x + y) @ w
    y.add_(z.detach())
    return z @ w, y @ w


def written_part(x, w):
    y = torch.zeros_like(x)
    y[1:3] = (x @ w)[1:3]
    return F.relu(y @ w) @ w


def written_argument(x, w):
    buffer = torch.ones_like(x)
    y = F.silu(x @ w) + buffer
    buffer.mul_(3)
    return F.silu(y @ w) + buffer


def quiet_part(x, w):
    y = F.silu(x @ w)
    with torch.no_grad():
        z = F.silu(y @ w) @ w
    return F.silu(y @ w) * z


def inner_autocast(x, w):
    y = F.silu(x @ w)
    with torch.autocast("cpu", enabled=False):
        z = F.silu(y @ w)
    return z @ w + y


def seen_in_parts(x, w):
    a, b = (x @ w).split([3, 5], 1)
    return F.gelu(torch.cat((b, a), 1) @ w)


def complex_rotation(x, w):
    y = torch.view_as_complex(F.silu(x @ w).view(4, 4, 2))
    return torch.view_as_real(y * torch.polar(torch.ones(4), torch.arange(4.0))).flatten(1) @ w


STRANGE = {
    "an unknown operation": lambda x, w: F.gelu(F.celu(F.gelu(x @ w)) @ w),
    "one by a known name": lambda x, w: F.gelu(torch.ops.epilog_test.linear(F.gelu(x @ w), w)) @ w,
    "f64": lambda x, w: (F.gelu(x @ w).double() @ w.double()).to(w.dtype) @ w,
    "complex": complex_rotation,
    "sparse": lambda x, w: F.gelu(torch.eye(4, dtype=x.dtype).to_sparse() @ F.gelu(x @ w)) @ w,
    "alpha": lambda x, w: F.gelu(torch.add(x @ w, x, alpha=3)) @ w,
    "beta": lambda x, w: F.gelu(torch.addmm(x, x, w, beta=0.5, alpha=2)) @ w,
    "rounding": lambda x, w: F.gelu(torch.div(x @ w, 0.3, rounding_mode="floor") + x) @ w,
    "softplus": lambda x, w: F.softplus(x @ w, 3, 2) @ w,
    "a tensor twice": lambda x, w: F.gelu(x[:, :, None] * x[:, None, :]).sum(1) @ w,
    "its transpose": lambda x, w: F.gelu(w + w.t()) @ w + x[0],
    "the same axis three times": lambda x, w: F.gelu((w @ w) * (w.t() @ w)) @ w.t() @ w + x[1],
    "a split of what is renamed": lambda x, w: (lambda r: F.gelu((r[:, None] * r[None, :]).reshape(2, 4, 8) @ w) @ w)(F.gelu(x @ w)[0]),
    "attention to itself": lambda x, w: F.scaled_dot_product_attention(*[F.gelu(x @ w).view(1, 4, 8)] * 3) @ w,
    "a strange view": lambda x, w: F.gelu((x @ w).as_strided((4, 3), (8, 2))) @ w[:3],
    "another type's view": lambda x, w: F.gelu((x @ w).detach().view(torch.uint8).view(x.dtype) + x) @ w,
    "merged rows and columns": lambda x, w: F.gelu((x @ w).reshape(2, 16).softmax(-1).reshape(4, 8) @ w),
    "a step back": lambda x, w: F.gelu((x @ w).flip(0)[1::2]) @ w,
    "unequal parts": seen_in_parts,
    "parts that are all": lambda x, w: sum(F.gelu(p @ w[:p.shape[1]]).sum() * (i + 1) for i, p in enumerate((x @ w).chunk(3, 1))),
    "a sum of what is expanded": lambda x, w: F.gelu((x @ w)[:, :1].expand(4, 8).sum(1, keepdim=True) + x) @ w,
    "a product of what is expanded": lambda x, w: F.gelu((x @ w)[:, :1].expand(4, 8) @ w) @ w,
    "a part and the rest": lambda x, w: F.gelu(torch.cat((torch.tanh((x @ w)[:, :2]), (x @ w)[:, 2:]), 1)) @ w,
    "the rest by another axis": lambda x, w: F.gelu(torch.cat(((x @ w)[:2, 2:], (x @ w)[:, 2:]), 0) @ w[2:]),
    "truth values": lambda x, w: F.gelu(((x @ w > 0) + (x > 0)).float() + x) @ w,
    "whole numbers": lambda x, w: F.gelu((torch.arange(8) + 2**24 == 2**24 + 1) * (x @ w)) @ w,
    "one more than f32 has": lambda x, w: F.gelu(x @ w * (torch.arange(8) + 2**24 > torch.full((8,), 2**24))) @ w,
    "equal extremes": lambda x, w: F.gelu(torch.maximum(x @ w, x @ w) + torch.minimum(x, x.detach())) @ w,
    "the larger of two": lambda x, w: F.gelu(torch.max(x @ w, x) + torch.min(x, (x @ w).detach())) @ w,
    "the largest": lambda x, w: F.gelu((x @ w).max(1, keepdim=True).values + x) @ w,
    "bounds": lambda x, w: (x @ w).clamp(-0.1, 0.1) @ w + (x @ w).clamp(min=0.5),
    "a small exponential": lambda x, w: torch.expm1(1e-4 * (x @ w)) @ w,
    "written over a view": written_view, "written after": written_after, "written in part": written_part, "written to a buffer": written_argument,
    "no gradients inside": quiet_part, "autocast inside": inner_autocast,
    "no sizes of 1": lambda x, w: F.gelu((x @ w)[:, 3:4] * (x @ w)[2:3]).squeeze(0) @ w,
    "nothing": lambda x, w: F.gelu(x[:0] @ w).sum() + F.gelu(x @ w) @ w,
    "a cast and its source": lambda x, w: (lambda y: F.gelu(y.bfloat16().to(w.dtype) @ w) * 0 + y)(F.gelu(x @ w)),
    "a result that is viewed": lambda x, w: (lambda y: (y.t().contiguous().view(-1), y.cumsum(0).view(-1)))(F.gelu(x @ w)),
    "many times": lambda x, w: [x := F.gelu(x @ w) for _ in range(40)][-1],
}


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", STRANGE)
def test_strange(case, rest, said):
    torch.manual_seed(1)
    report = beside(STRANGE[case], leaves(), units=16, rest=rest)
    assert programs(report) or case in ("written over a view", "sparse")  # what is around it is in programs all the same


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_elements_decide_sizes(said):
    for plain in (lambda x, w: F.gelu(x @ w)[x.sum(1) > 0] @ w, lambda x, w: F.gelu(F.gelu(x @ w) @ w).repeat_interleave(torch.tensor([2, 0, 1, 1]), 0)[..., None]):
        torch._dynamo.reset()
        assert programs(beside(plain, leaves()))


def test_masks(said):
    """Rows of attention that see nothing are 0, as PyTorch's are."""
    q, k, v = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    seen = torch.rand(2, 1, 5, 5) > 0.4
    seen[0, :, 2] = False
    least = torch.where(seen | torch.eye(5, dtype=torch.bool), 0.0, torch.finfo(torch.float32).min)
    for mask in (seen, least, torch.randn(1, 3, 5, 5), None):
        plain = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None) * 2
        assert programs(beside(plain, [q, k, v]))


MASKS = {  # of positions q and k, and whether a program says it
    "causal": (lambda q, k: k <= q, True), "window": (lambda q, k: (k <= q) & (k > q - 3), True), "later": (lambda q, k: k > q + 1, True),
    "all": (lambda q, k: k >= q - 100, True), "none": (lambda q, k: k > q + 100, True), "a constant": (lambda q, k: (q - q == 0) & (k <= q), True),
    **{f"|q - k| {name}": (rule, True) for name, rule in {
        "< 3": lambda q, k: (q - k).abs() < 3, "> 3": lambda q, k: (q - k).abs() > 3, ">= 2": lambda q, k: (k - q).abs() >= 2, "== 1": lambda q, k: abs(q - k) == 1,
        "!= 1": lambda q, k: (q - k).abs() != 1, "behind a number": lambda q, k: 3 > (q - k).abs(), "of two": lambda q, k: (q - k).abs() <= (q - 4).abs()}.items()},
    "products": (lambda q, k: q * k < 7, False), "given": (lambda q, k: (k <= q) & torch.tensor([True, False, True, True, True, True]), False)}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_positions(name, dynamic, said):
    """Masks that follow from positions are part of the text."""
    rule, is_said = MASKS[name]

    def plain(q, k, v):
        at = torch.arange(q.shape[2])
        batch = torch.arange(q.shape[0])[:, None, None, None]
        rows = at.unsqueeze(0).expand(q.shape[0], -1)[batch, at[None, None, :, None]]
        mask = rule(rows, at[None, None, None, :])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.expand(q.shape[0], -1, -1, -1)) * 2
    call, report = on(plain)
    for batch in (2, 3) if dynamic else (2,):
        given = [torch.randn(batch, 3, 6, 4, requires_grad=True) for _ in range(3)]
        for t in given if dynamic else ():
            torch._dynamo.mark_dynamic(t, 0)
        check(call, plain, given)
    assert len(programs(report)) == len(report.graphs) == 1
    assert all(not any(getattr(example(n), "dtype", None) == torch.bool for n in p.given) for p in programs(report)) == is_said


@pytest.mark.parametrize("name, hides", [("causal", True), ("window", True), ("later", False), ("near", True), ("transposed", False)])
def test_added_positions(name, hides, said):
    """Masks that are added hide keys where each query sees itself; a row that sees nothing is a mean over all."""
    rule = {**{k: f for k, (f, _) in MASKS.items()}, "near": lambda q, k: (q - k).abs() <= 2, "transposed": lambda q, k: k <= q}[name]

    def plain(q, k, v):
        at = torch.arange(6)
        mask = torch.where(rule(at[:, None], at[None, :]), torch.zeros((), dtype=q.dtype), torch.finfo(torch.float32).min)
        mask = mask.transpose(0, 1) if name == "transposed" else mask
        return (q @ k.transpose(-1, -2) + mask).softmax(-1) @ v
    report = beside(plain, leaves(*[(2, 3, 6, 4)] * 3))
    assert ["-inf" in p.text for p in programs(report)] == [hides] and len(programs(report)[0].given) == 3


def test_a_position_as_a_number(said):
    """ALiBi's: what a mask compares is added to the scores, too."""
    def plain(q, k, v):
        at = torch.arange(6)
        far = at[None, :] - at[:, None]
        return (q @ k.transpose(-1, -2) + far * 0.25).masked_fill(far > 0, -torch.inf).softmax(-1) @ v
    report = beside(plain, leaves(*[(2, 3, 6, 4)] * 3))
    assert len(programs(report)) == 1 and "index(" in programs(report)[0].text


def test_written_positions(said):
    """A mask that someone writes to is read."""
    def plain(q, k, v):
        mask = torch.arange(6)[:, None] >= torch.arange(6)[None, :]
        mask[2:, 1] = False
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask) * 2
    assert programs(beside(plain, leaves(*[(2, 3, 6, 4)] * 3)))


def test_dropout(said):
    """Its random numbers are Epilog's: other ones at each call, and the same in the backward."""
    w = torch.randn(64, 64)
    x = torch.randn(40, 64, requires_grad=True)
    for rest in ("eager", "aot_eager"):
        call, report = on(lambda x: F.dropout(F.linear(x, w), 0.25) + 0 * x, rest)
        torch.manual_seed(3)
        y, z = call(x), call(x)
        torch.manual_seed(3)
        assert torch.equal(call(x), y) and not torch.equal(y, z) and programs(report)
        kept = (y != 0).float() / 0.75
        assert abs(kept.mean() - 1) < 0.05
        assert torch.allclose(torch.autograd.grad(y.sum(), x)[0], kept @ w, atol=1e-4)


def test_a_cliff(said, monkeypatch):
    """A region whose plan moves far more than PyTorch would is left."""
    monkeypatch.setattr(_compile, "CLIFF", 0.1)
    monkeypatch.setattr(_compile, "SMALL", 0)
    plain = lambda x, w: F.gelu(F.gelu(x @ w) @ w) @ w
    report = beside(plain, leaves())
    assert not programs(report) and any("its plan moves" in why for why in report.graphs[0].left)


def test_a_failure_is_told(said, monkeypatch):
    """Whatever goes wrong in the backend, the graph is PyTorch's."""
    monkeypatch.setattr(_compile, "Regions", lambda *given: 1 / 0)
    beside(lambda x, w: F.gelu(x @ w), leaves())
    assert len(said) == 1 and "ZeroDivisionError" in said.pop()


MISTAKES = {  # where the backend fails, and what it says that it left
    "a node": ((_write.SAID, "softplus"), "softplus"), "a text": ((_write.Text, "declared"), "operations"), "a plan": ((_compile, "moved"), "operations")}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_region(case, said, monkeypatch):
    """A mistake of the backend's own leaves a node or a region to PyTorch, and says what to report; EPILOG_BACKEND_STRICT=1 raises it."""
    (home, name), left = MISTAKES[case]
    find = home.get if isinstance(home, dict) else home.__dict__.get
    right, calls = find(name), []

    def wrong(*args, **kwargs):
        calls.append(args)
        return 1 // 0 if left == "softplus" or len(calls) == 1 else right(*args, **kwargs)
    monkeypatch.setitem(home, name, wrong) if isinstance(home, dict) else monkeypatch.setattr(home, name, wrong)
    plain = lambda x, w: F.gelu(F.softplus(F.gelu(x @ w) @ w).cumprod(0) @ w) @ w
    given = leaves()
    report = beside(plain, given, units=16)
    assert len(said) == 1 and all(part in said[0] for part in (left, "report", "ZeroDivisionError", "test_compile.py:"))
    assert programs(report) and any("a bug of the backend: ZeroDivisionError" in why for why in report.graphs[0].left)
    said.clear(), calls.clear()
    monkeypatch.setenv("EPILOG_BACKEND_STRICT", "1")
    torch._dynamo.reset()
    with pytest.raises(Exception, match="ZeroDivisionError"):
        on(plain)[0](*given)


def hooked(x, w):
    y = x @ w
    y.register_hook(lambda g: 3 * g)
    return F.gelu(y)


AROUND = {
    "grad": lambda x, w: torch.func.grad(lambda y: F.gelu(y @ w).sum())(x), "vmap": lambda x, w: torch.func.vmap(lambda y: F.gelu(y @ w))(x),
    "jvp": lambda x, w: torch.func.jvp(lambda y: F.gelu(y @ w), (x,), (x,))[1], "a hook": hooked,
    "detach": lambda x, w: F.gelu(x @ w).detach() * F.gelu(x @ w), "a new leaf": lambda x, w: F.gelu((x @ w).detach().requires_grad_() @ w) + x,
}


@pytest.mark.parametrize("name", AROUND)
def test_around(name, said):
    beside(AROUND[name], leaves(), units=16)


def test_second_derivatives(said):
    x, w = leaves()
    plain = lambda x, w: F.gelu(x @ w).sum()
    call, report = on(plain)

    def twice(function):
        (g,) = torch.autograd.grad(function(x, w), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), w)[0]
    assert torch.allclose(twice(call), twice(plain), atol=1e-4) and programs(report)
    with torch.inference_mode():
        assert torch.allclose(call(x, w), plain(x, w), atol=1e-5)


@pytest.mark.parametrize("rest", ["eager", "aot_eager"])
def test_loss_in_chunks(rest, said):
    """Where nobody reads the logits, they are not there as a whole; where somebody does, the report says so."""
    model, given = families.make("Llama")

    def step(model, given, call=None):
        model.zero_grad()
        loss = (call or plain)(model)
        loss.backward()
        return {"result": loss.detach(), **{n: p.grad.clone() for n, p in model.named_parameters()}}
    plain = lambda model: model(**given).loss
    exact, eager = step(copy.deepcopy(model).double(), given), step(model, given)
    call, report = on(plain, rest, dict(chunks=3))
    within(step(model, given, call), eager, exact)
    assert report.graphs[0].left["unknown: linear_cross_entropy"] == 1 and "cross_entropy" not in str([n for p in programs(report) for n in p.nodes])
    assert {p.op.name for p in programs(report)} == {"LlamaDecoderLayer", "region"}  # so a profiler has them
    model, given = families.make("Llama")
    call, report = on(model, rest, dict(chunks=3))
    step_beside(model, given, call)
    assert any("not in chunks: something else reads the logits" in why for why in report.graphs[0].left)


LOSSES = {  # and whether they can be taken in chunks
    "a sum": (lambda x, w, t: F.cross_entropy(F.linear(x, w).float(), t, reduction="sum"), True),
    "smoothed": (lambda x, w, t: F.cross_entropy(F.linear(x, w), t.clamp(min=3), label_smoothing=0.1, ignore_index=3), True),
    "one batch": (lambda x, w, t: F.cross_entropy(F.linear(x.view(3, 4, 8), w).view(-1, 7), t), True),
    "of each": (lambda x, w, t: F.cross_entropy(F.linear(x, w), t, reduction="none").square().sum(), False),
    "weighted": (lambda x, w, t: F.cross_entropy(F.linear(x, w), t, w.detach()[:, 0].abs()), False),
    "a distribution": (lambda x, w, t: F.cross_entropy(F.linear(x, w), F.one_hot(t.clamp(min=0), 7).float()), False),
    "capped": (lambda x, w, t: F.cross_entropy(F.linear(x, w).tanh(), t), False),
    "a bias": (lambda x, w, t: F.cross_entropy(F.linear(x, w, w[:, 0]), t), False),
    "other classes": (lambda x, w, t: F.cross_entropy(F.linear(x, w).view(-1, 7, 12)[:, :, 0], t[:1]), False),
    "written to": (lambda x, w, t: F.cross_entropy(F.linear(x, w).mul_(2), t), False),
    "quiet": (lambda x, w, t: (torch.no_grad()(lambda: F.linear(x, w))() * 0 + F.cross_entropy(F.linear(x, w), t)).sum(), True),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_in_chunks(name, said):
    plain, is_chunked = LOSSES[name]
    (x, w), t = leaves((12, 8), (7, 8)), torch.randint(0, 7, (12,))
    t[2] = -100
    report = beside(lambda x, w: plain(x, w, t), [x, w], units=16, more=dict(chunks=4))
    assert (report.graphs[0].left["unknown: linear_cross_entropy"] == 1) == is_chunked


@pytest.mark.parametrize("view", [lambda y: y.transpose(0, 1).as_strided((3, 32), (32, 1)), lambda y: torch.as_strided(y.mT, (3, 4), (32, 8), 2),
                                  lambda y: y[1:].as_strided((2, 8), (8, 1))], ids=["transposed", "by an offset", "of a part"])
def test_memory_as_it_lies(view, said):
    """Strides that a graph takes for its tensor's are those, as in Longformer's windows."""
    plain = lambda x, w: view(F.gelu(x @ w) @ w)
    report = beside(plain, [torch.randn(3, 4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)])
    assert programs(report) and any("reads the memory layout" in why for why in report.graphs[0].left)


@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_of_results(dynamic, said):
    """What a graph returns lies in memory as PyTorch has it, and a view that PyTorch can make is made: behind a barrier, and by who called."""
    def plain(x, w):
        z = (F.gelu(x @ w) @ w).transpose(0, 1)
        with torch.no_grad():
            q = torch.cumsum(z.transpose(0, 1).view(torch.float32).view(size=(-1,)), 0)
        return z, q
    call, report = on(plain, dynamic=dynamic)
    x, w = torch.randn(3, 4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    check(lambda x, w: call(x, w)[0], lambda x, w: plain(x, w)[0], [x, w])
    (z, q), (expected, sums) = call(x, w), plain(x, w)
    assert z.stride() == expected.stride() and programs(report)
    torch.testing.assert_close(z.transpose(0, 1).view(-1), expected.transpose(0, 1).view(-1))
    torch.testing.assert_close(q, sums)


def test_dropout_in_attention(said):
    """It is PyTorch's, with PyTorch's random numbers; what is around it is in programs."""
    w, x = torch.randn(8, 8), torch.randn(1, 3, 16, 8, requires_grad=True)

    def plain(x):
        torch.manual_seed(5)
        q = F.gelu(x @ w) @ w
        return F.gelu(F.scaled_dot_product_attention(q, q * 2, q + 1, dropout_p=0.5) @ w) @ w
    call, report = on(plain)
    found, expected = call(x), plain(x)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)), atol=1e-2, rtol=1e-3)
    assert len(programs(report)) == 2 and any("dropout in attention" in why for g in report.graphs for why in g.left)


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Olmo2"])
def test_kept_values_are_narrow(name, said):
    """What a norm computes in f32 does not have the residual that it norms kept as f32 for the backward."""
    model, given = families.make(name)
    model = model.to(torch.bfloat16)
    call, report = on(model)
    families.step(model, given, call)
    layer = next(p for p in programs(report) if p.op.name != "region").op.program
    forward = layer.grad(tuple(t.name for t in layer.inputs if t.type is None), True)[0]
    rows = [t for t in forward.outputs if t.axes == layer.outputs[0].axes]
    assert len(rows) > 1 and not any(t.type == 0 for t in rows)


def test_kernels_are_made_once(monkeypatch):
    """Equal layers have one forward and one backward between them, and the first step finds what was made to look at the plans."""
    from epilog import _library
    made, init = [], _library.Kernel.__init__
    monkeypatch.setattr(_library.Kernel, "__init__", lambda self, program, *rest: made.append(program.text) or init(self, program, *rest))
    model, given = families.make("Llama")
    given = {name: t[:, :6].repeat(1, 7) if isinstance(t, torch.Tensor) else t for name, t in given.items()}  # a length of no other test
    torch.compile(model, backend="epilog", options={"rest": "eager"})(**given).loss.backward()
    assert made and len(made) == len(set(made)), [made.count(text) for text in set(made)]

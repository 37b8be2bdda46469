"""Mixtures of experts on the CPU: the operation, the module, and the blocks of Hugging Face models."""
import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import silu

import epilog
import families
from epilog.nn import MoE, experts
from rule import check, floor, hold

transformers = pytest.importorskip("transformers")


def plain(x, e, g, w, wd, act=silu, shared=None):
    """Expert by expert, for each token those of its choice."""
    a, b = torch.einsum("td,tkfd->tkf", x, w[e]).chunk(2, -1)
    y = torch.einsum("tkf,tkdf->tkd", act(a) * b, wd[e])
    y = (y * g[..., None].to(y.dtype)).sum(1)
    return y if shared is None else y + (act(x @ shared[0].T) * (x @ shared[1].T)) @ shared[2].T


def given(tokens=10, count=4, choices=2, dtype=torch.float32, features=16, size=24):
    torch.manual_seed(3)
    x, w, wd = torch.randn(tokens, features), torch.randn(count, 2 * size, features) / 4, torch.randn(count, features, size) / 5
    g, e = torch.randn(tokens, count).softmax(-1).topk(choices)
    return [t.to(dtype).requires_grad_() for t in (x, w, wd, g)] + [e]


def beside(x, w, wd, g, e):
    """The operation's values and gradients."""
    check(lambda x, w, wd, g: experts(x, e, g, w, wd), lambda x, w, wd, g: plain(x, e, g, w, wd), [x, w, wd, g], units=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(10, 4, 2), (1, 4, 2), (7, 1, 1), (9, 3, 3), (130, 2, 1)])
def test_values_and_gradients(sizes, dtype):
    beside(*given(*sizes, dtype))


def test_shared_and_activation():
    x, w, wd, g, e = given()
    shared = [torch.randn(*s, requires_grad=True) / 4 for s in ((20, 16), (20, 16), (16, 20))]
    gelu = lambda t: nn.functional.gelu(t, approximate="tanh")
    check(lambda x, w, wd, g, *s: experts(x, e, g, w, wd, "gelu_tanh", s), lambda x, w, wd, g, *s: plain(x, e, g, w, wd, gelu, s),
          [x, w, wd, g, *shared], units=2)


def test_choices():
    """All tokens on one expert; the same one twice; none for some, whose gradients are 0; a token's NaN stays in it."""
    x, w, wd, g, _ = given()
    for e in (torch.full((10, 2), 3), torch.tensor([[1, 1], [0, 1]] * 5)):
        beside(x, w, wd, g, e)
    grads = torch.autograd.grad(experts(x, torch.full((10, 2), 3), g, w, wd).sum(), (w, wd))
    assert not any(grad[:3].any() for grad in grads)
    with torch.no_grad():
        e = given()[4]
        right, x = experts(x, e, g, w, wd), x.clone()
        x[4] = torch.nan
        found = experts(x, e, g, w, wd)
    others = [i for i in range(10) if i != 4]
    assert found[4].isnan().all() and torch.equal(found[others], right[others])


def test_a_row_has_the_same_bits_in_every_batch():
    x, w, wd, g, e = [t.detach() for t in given(150)]
    whole = experts(x, e, g, w, wd)
    for t in (1, 3, 64, 129):
        assert torch.equal(experts(x[:t], e[:t], g[:t], w, wd), whole[:t])


def test_empty_and_mistakes():
    x, w, wd, g, e = [t.detach() for t in given()]
    assert experts(x[:0], e[:0], g[:0], w, wd).shape == (0, 16)
    for wrong in (4, -1):
        bad = e.clone()
        bad[3, 1] = wrong
        with pytest.raises(IndexError):
            experts(x, bad, g, w, wd)
    for message, call in (("gate_up has sizes", lambda: experts(x, e, g, w[0], wd)), ("activation is 'swish'", lambda: experts(x, e, g, w, wd, "swish")),
                          ("top_k is 5: it must be from 1 to the number of experts, 4", lambda: MoE(16, 24, 4, 5)),
                          ("scores is 'max'", lambda: MoE(16, 24, 4, 2, scores="max"))):
        with pytest.raises(ValueError, match=message):
            call()


MODELS = {"Mixtral": dict(num_local_experts=4), "Qwen3Moe": dict(num_experts=4, moe_intermediate_size=24, norm_topk_prob=True, head_dim=8),
          "Olmoe": dict(num_experts=4), "GptOss": dict(num_local_experts=4, head_dim=8),
          "DeepseekV3": dict(n_routed_experts=8, moe_intermediate_size=24, n_group=2, topk_group=1, first_k_dense_replace=0, q_lora_rank=16,
                             kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, num_key_value_heads=4)}


def make(name, layers=2, **more):
    sizes = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
                 num_experts_per_tok=2, pad_token_id=0, eos_token_id=1, bos_token_id=2, router_aux_loss_coef=0.1)
    return families.causal(name, {**sizes, **MODELS[name], **more})


def step(model, **more):
    torch.manual_seed(5)
    ids = torch.randint(3, 96, (2, 10))
    return families.loss_step(model, input_ids=ids, labels=ids, **more)


def wide(model):
    """In f64, which grouped_mm does not take."""
    model = copy.deepcopy(model).double()
    model.config._experts_implementation = "eager"
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("router_loss", [False, True])
def test_step(name, router_loss, called):
    """Against f64, in which every token chooses the same experts. The router's loss is made of what hooks see."""
    more = dict(output_router_logits=True) if router_loss and name != "DeepseekV3" else {}
    model = make(name)
    plain, exact = step(model, **more), step(wide(model), **more)
    names, before = list(model.state_dict()), [p.data_ptr() for p in model.parameters()]
    report = epilog.apply(model)
    assert [n for n, what in report.replaced if what == "experts as one program"] == ["model.layers.0.mlp", "model.layers.1.mlp"]
    mine = step(model, **more)
    assert called.count("experts") + called.count("clamped_experts") == 2 and called.count("route") == (0 if name == "DeepseekV3" else 2)
    for n, e in exact.items():
        hold(mine[n], plain[n], e, n, 4 if n == "loss" else 1, 500)
    assert mine.keys() == plain.keys() and names == list(model.state_dict()) and before == [p.data_ptr() for p in model.parameters()]
    epilog.restore(model)
    again = step(model, **more)
    assert all(torch.equal(again[n], plain[n]) for n in plain)


@pytest.mark.parametrize("name", MODELS)
def test_block_in_bf16(name, called):
    """The block alone, so that all sides have the same choice: the one that its router makes of bf16."""
    model = make(name).bfloat16()
    block = model.model.layers[1].mlp
    x = torch.randn(2, 10, 32).bfloat16()
    router = block.router if name == "GptOss" else block.gate
    _, scores, index = router(x.view(-1, 32))

    def run(block, x, scores):
        x = x.clone().requires_grad_()
        params = [p for n, p in block.named_parameters() if n.startswith(("experts", "shared"))]
        (block.router if name == "GptOss" else block.gate).forward = lambda given: (None, scores, index)
        y = block(x)
        y = y[0] if type(y) is tuple else y
        found = [y.detach(), *torch.autograd.grad(y, (x, *params), torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype))]
        del (block.router if name == "GptOss" else block.gate).forward
        return found
    exact = run(wide(model).model.layers[1].mlp, x.double(), scores.detach().double())
    plain = run(block, x, scores.detach())
    epilog.apply(model)
    mine = run(block, x, scores.detach())
    assert called.count("experts") + called.count("clamped_experts") == 1
    for i, (m, p, e) in enumerate(zip(mine, plain, exact)):
        hold(m, p, e, f"result {i}", 2)


class Doubled(nn.Module):
    """Experts that are others, or a router that is."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.config, self._is_expert_parallel = inner, getattr(inner, "config", None), False

    def forward(self, *args):
        found = self.inner(*args)
        return (found[0], 2 * found[1], found[2]) if isinstance(found, tuple) else 2 * found


def gate_of_its_own(block):
    block.experts._apply_gate = lambda z: z.chunk(2, -1)[1]


def other_linear(block):
    block.experts.down_proj.requires_grad_(False)
    block.experts.register_buffer("scale", torch.ones(()))
    block.experts.__class__ = type("MixtralExperts", (type(block.experts),), {"forward": lambda self, *a: 3 * super(type(self), self).forward(*a)})


OTHERS = {"experts that are others": lambda b: setattr(b, "experts", Doubled(b.experts)), "a class of the same name": other_linear,
          "a hook": lambda b: b.experts.register_forward_hook(lambda m, a, out: 2 * out), "a gate of its own": gate_of_its_own,
          "jitter": lambda b: setattr(b, "jitter_noise", 1e-9), "an activation": lambda b: setattr(b.experts, "act_fn", nn.Tanh()),
          "an implementation": lambda b: setattr(b.experts.config, "_experts_implementation", "doubled"),
          "a router of its own": lambda b: setattr(b, "gate", Doubled(b.gate)), "several devices": lambda b: setattr(b.experts, "_is_expert_parallel", True)}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("first", [False, True])
def test_what_is_not_known(what, first, called):
    """The block computes as before."""
    from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward
    ExpertsInterface.register("doubled", lambda *args: 2 * grouped_mm_experts_forward(*args))
    model, other = make("Mixtral", 1), make("Mixtral", 1)
    for m in (model, other):
        if m is model and not first:
            epilog.apply(m)
        OTHERS[what](m.model.layers[0].mlp)
        if m is model and first:
            report = epilog.apply(m)
            assert what == "jitter" or "model.layers.0.mlp" in dict(report.left)
    mine, plain = step(model), step(other)
    assert called.count("experts") == 0
    for n in plain:
        torch.testing.assert_close(mine[n], plain[n], rtol=1e-4, atol=1e-5)


def test_training():
    """A Qwen3-MoE of four layers: ten steps of AdamW, beside the same without Epilog."""
    torch.manual_seed(5)
    ids, losses = torch.randint(3, 96, (2, 10)), []
    for apply in (False, True):
        model = make("Qwen3Moe", 4)
        if apply:
            epilog.apply(model)
        losses.append(families.losses(model, dict(input_ids=ids, labels=ids), loss=lambda out: out.loss, lr=3e-3, steps=10))
    assert losses[1][-1] < losses[1][0] - 0.3
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalize", [False, True])
def test_router(scores, normalize):
    """Its three results and gradients; of equal scores the first experts."""
    moe, x = MoE(16, 24, 6, 3, scores=scores, normalize=normalize, scale=1.5), torch.randn(40, 16, requires_grad=True)

    def plain(x, w):
        z = x @ w.T
        v = (z.softmax(-1) if scores == "softmax" else z.sigmoid()).topk(3)[0]
        return z, (v / v.sum(-1, keepdim=True) if normalize else v) * 1.5
    check(lambda x, w: tuple(moe.router(x, w, 1.5)[:2]), plain, [x, moe.gate.weight])
    logits, _, index = moe.route(x.view(2, 20, 16))
    assert index.shape == (2, 20, 3) and torch.equal(index, logits.topk(3)[1])
    nn.init.zeros_(moe.gate.weight)
    assert torch.equal(moe.route(x)[2], torch.arange(3).expand(40, 3))


ROUTERS = [name for name in MODELS if name != "DeepseekV3"]


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_routers_of_models(name, normalize, dtype, called):
    """A model's router as a program: its three results, of which the others are made of the logits as they are stored; and gradients."""
    made = make(name, 1, **(dict(norm_topk_prob=normalize) if name in ("Qwen3Moe", "Olmoe") else {}))
    mlp = made.model.layers[0].mlp.to(dtype)
    router = mlp.router if name == "GptOss" else mlp.gate
    x = torch.randn(90, 32).to(dtype).requires_grad_()
    kinds = [t.dtype for t in router(x)]
    epilog.apply(made)
    assert called == []
    logits, weights, index = router(x)
    assert called == ["route"] and [t.dtype for t in (logits, weights, index)] == kinds
    wide = logits.detach().float()
    if name == "GptOss":
        best = wide.topk(2)[0]
        found, right = wide.gather(1, index), best.softmax(-1)
    else:
        best = wide.softmax(-1).topk(2)[0]
        found = wide.softmax(-1).gather(1, index)
        right = best / best.sum(-1, keepdim=True) if normalize or name == "Mixtral" else best
    torch.testing.assert_close(found, best, rtol=1e-6, atol=0)
    torch.testing.assert_close(weights, right.to(weights.dtype), rtol=torch.finfo(weights.dtype).eps * (4 if weights.dtype == torch.float32 else 1), atol=0)

    kind = type(router)._epilog_kind
    exact = [t.detach().double().requires_grad_() for t in (x, *router.parameters())]
    z = nn.functional.linear(*exact)
    if name == "GptOss":
        v = z.gather(1, index).softmax(-1)
    else:
        v = z.softmax(-1).gather(1, index)
        v = v / v.sum(-1, keepdim=True) if normalize or name == "Mixtral" else v
    dz, dv = torch.randn(90, logits.shape[1]), torch.randn(90, 2)
    want = torch.autograd.grad((z, v), exact, (dz.to(dtype).double(), dv.to(weights.dtype).double()))
    mine = torch.autograd.grad((logits, weights), (x, *router.parameters()), (dz.to(dtype), dv.to(weights.dtype)))
    plain = torch.autograd.grad(kind.forward(router, x)[:2], (x, *router.parameters()), (dz.to(dtype), dv.to(weights.dtype)))
    for m, p, w in zip(mine, plain, want):
        assert (m.double() - w).norm() <= 2 * (p.double() - w).norm() + floor(dtype, 1, 500) * w.norm()


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe"])
def test_module(name):
    """Has the parameters of a block, by its names, and computes what it does."""
    block = make(name).model.layers[0].mlp
    moe = MoE(32, 48 if name == "Mixtral" else 24, 4, 2)
    moe.load_state_dict(block.state_dict())
    x = torch.randn(2, 5, 32, requires_grad=True)
    params = [list(m.parameters()) for m in (moe, block)]
    d = torch.linspace(-1, 1, x.numel()).view(x.shape)
    assert [n for n, _ in moe.named_parameters()] == ["gate.weight", "experts.gate_up_proj", "experts.down_proj"]
    named = dict(block.named_parameters())
    torch.testing.assert_close(moe(x), block(x))
    torch.testing.assert_close(torch.autograd.grad(moe(x), (x, *params[0]), d),
                               torch.autograd.grad(block(x), (x, *[named[n] for n, _ in moe.named_parameters()]), d), rtol=1e-4, atol=1e-5)


def test_module_with_shared_experts_compiled():
    moe = MoE(16, 24, 4, 2, shared_size=20, scores="sigmoid", normalize=False, scale=2.5)
    x = torch.randn(6, 16)
    logits, weights, index = moe.route(x)
    torch.testing.assert_close(weights, 2.5 * logits.sigmoid().topk(2)[0])
    s = moe.shared_experts
    wanted = plain(x, index, weights, moe.experts.gate_up_proj, moe.experts.down_proj, silu, [s.gate_proj.weight, s.up_proj.weight, s.down_proj.weight])
    torch.testing.assert_close(moe(x), wanted, rtol=1e-4, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(torch.compile(moe, fullgraph=True, backend="aot_eager")(x), moe(x))
    assert "4 experts of 16 x 24" in repr(moe)

"""Products of e4m3 beside the same recipe in PyTorch's own operations: a linear layer, and models of all families that apply knows."""
import copy

import pytest
import torch

import epilog
import families
from emulated import apart, emulated

transformers = pytest.importorskip("transformers")
SMALL = dict(vocab_size=96, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=64, max_position_embeddings=64)
MODELS = {"Llama": {}, "Mistral": dict(sliding_window=16), "Qwen2": {}, "Qwen3": {}, "Gemma2": dict(
    sliding_window=16, final_logit_softcapping=3.0, attn_logit_softcapping=5.0, query_pre_attn_scalar=64), "GPT2": None}

GPT2 = dict(vocab_size=96, n_embd=128, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=2)


def emulate(model):
    """The model with all linear layers of its decoder layers emulated."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if ("layers." in name or ".h." in name) and kind in ("Linear", "Conv1D"):
            module.forward = lambda x, m=module, turned=kind == "Conv1D": emulated(x, m.weight, m.bias, turned)
    return model


@pytest.mark.parametrize("tokens", [256, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(tokens, bias):
    torch.manual_seed(0)
    layer = epilog.nn.Linear8(256, 384, bias=bias)
    x = torch.randn(2, tokens // 2, 256) * torch.randn(2, tokens // 2, 1).exp()
    x[0, 3] = 0
    d, results = torch.randn(2, tokens // 2, 384), []
    for call in (lambda x: layer(x), lambda x: emulated(x, layer.weight, layer.bias), lambda x: torch.nn.functional.linear(x, layer.weight, layer.bias)):
        layer.zero_grad()
        given = x.clone().requires_grad_()
        y = call(given)
        y.backward(d)
        results.append([y.detach(), given.grad] + [p.grad.clone() for p in layer.parameters()])
    for found, want, exact in zip(*results):  # a number on the edge between two of e4m3 may go to either
        assert apart(found, want) < 0.02 * max(apart(want, exact), 1e-4)
    assert 0.01 < apart(results[1][0], results[2][0]) < 0.06


@pytest.mark.parametrize("shape", [(0,), (0, 4), ()])
def test_linear_of_no_tokens_and_of_one(shape):
    layer, x = epilog.nn.Linear8(128, 256), torch.randn(*shape, 128, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == (*shape, 256) and x.grad.shape == x.shape
    assert (layer.weight.grad == 0).all() == (x.numel() == 0)


def test_linear_in_16_bits():
    torch.manual_seed(0)
    layer = epilog.nn.Linear8(128, 128, dtype=torch.bfloat16)
    x = torch.randn(128, 128, dtype=torch.bfloat16, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == layer.weight.grad.dtype == torch.bfloat16
    assert apart(y.float(), emulated(x.detach().float(), layer.weight.detach().float(), layer.bias.detach().float())) < 4e-3


def test_linear_under_autocast():
    """The weight stays f32, and so does its gradient."""
    layer, x = epilog.nn.Linear8(128, 256), torch.randn(130, 128)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and layer.weight.grad.dtype == torch.float32
    assert apart(y.float(), emulated(x.bfloat16().float(), layer.weight.detach(), layer.bias.detach())) < 1e-2


def test_linear_compiled():
    layer, x = epilog.nn.Linear8(128, 128), torch.randn(130, 128, requires_grad=True)
    made = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(made(x), layer(x))
    made(x).sum().backward()
    assert x.grad is not None and layer.weight.grad is not None


def test_no_numbers():
    layer, x = epilog.nn.Linear8(128, 256), torch.randn(130, 128)
    x[3, 5], x[129, 0] = torch.nan, torch.inf
    y = layer(x)
    assert y[3].isnan().all() and y[129].isnan().all() and y[[0, 2, 4, 128]].isfinite().all()


def test_sizes_of_a_linear_layer():
    with pytest.raises(ValueError, match="in_features is 100, not a multiple of 128: choose other sizes, or epilog.nn.Linear"):
        epilog.nn.Linear8(100, 128)


def make(name):
    return families.causal(name, {**families.QUIET, **GPT2} if name == "GPT2" else {**SMALL, **MODELS[name]}, 0.1)


def step(model, ids, **more):
    labels = ids.clone()
    if "attention_mask" in more:
        labels[0, :8] = -100  # neither of padding nor of what it foretells
    return families.loss_step(model, input_ids=ids, labels=labels, **more)


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    model = make(name)
    exact, reference = copy.deepcopy(model), emulate(copy.deepcopy(model))
    report = epilog.apply(model, fp8=True)
    assert "with products of e4m3" in str(report)
    ids = torch.randint(0, 96, (3, 50))  # 150 tokens: 106 are missing
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    for more in ({}, dict(attention_mask=mask), dict(position_ids=(torch.arange(50) % 30)[None], use_cache=False)):
        found, want, plain = (step(m, ids, **more) for m in (model, reference, exact))
        assert apart(found.pop("loss"), want["loss"]) < 1e-3
        for key in found:  # what an edge brings to the other side all layers behind it see
            assert apart(found[key], want[key]) < 0.4 * apart(want[key], plain[key]), key
    model.eval(), exact.eval()
    assert torch.allclose(model(input_ids=ids).logits, exact(input_ids=ids).logits, atol=1e-3)


def test_layers_left_out():
    model = make("Llama")
    report = str(epilog.apply(model, fp8=True, fp8_except=["model.layers.0"]))
    assert "left alone model.layers.0: its products are not converted to e4m3: as you asked" in report
    assert "replaced model.layers.1: one program, in training with products of e4m3" in report
    with pytest.raises(ValueError, match="fp8_except names model.layers.7: there is no such supported layer"):
        epilog.apply(model, fp8=True, fp8_except=["model.layers.7"])
    with pytest.raises(ValueError, match="needs fp8=True"):
        epilog.apply(model, fp8_except=["model.layers.0"])


def test_sizes_of_a_model():
    config = transformers.LlamaConfig(**dict(SMALL, hidden_size=96))
    with pytest.warns(UserWarning, match="found no layer whose products can use e4m3"):
        report = str(epilog.apply(transformers.LlamaForCausalLM(config), fp8=True))
    assert "left alone model.layers.{0, 1}: its products are not converted to e4m3: hidden_size is 96, not a multiple of 128" in report


def test_autocast_and_checkpointing():
    model = make("Llama")
    epilog.apply(model, fp8=True)
    ids = torch.randint(0, 96, (2, 64))
    plain = step(model, ids)
    model.gradient_checkpointing_enable()
    again = step(model, ids)
    assert all(torch.equal(plain[key], again[key]) for key in plain)
    with torch.autocast("cpu", torch.bfloat16):
        cast = step(model, ids)
    assert all(apart(cast[key], plain[key]) < 0.1 for key in plain)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())

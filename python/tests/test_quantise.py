"""Models with weights of 8 and 4 bits beside the same models with these weights in f32."""
import copy

import pytest
import torch

import epilog
import families

transformers = pytest.importorskip("transformers")


def make(name="Llama"):
    sizes = dict(n_embd=64, n_layer=2, n_head=2, n_positions=64, bos_token_id=1) if name == "GPT2" else dict(
        hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    return families.causal(name, dict(sizes, vocab_size=96, eos_token_id=2), 0.1, seed=3).eval()


def widened(model, quantised):
    """The model with the weights that the quantised one computes with."""
    model = copy.deepcopy(model)
    for name, module in quantised.named_modules():
        if isinstance(module, epilog.nn.QuantisedLinear):
            weight = model.get_submodule(name).weight
            w = module.dequantised()
            weight.data.copy_(w if weight.shape == w.shape and type(model.get_submodule(name)) is torch.nn.Linear else w.T)
    return model


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_layer(bits, group):
    torch.manual_seed(0)
    w, b, x = torch.randn(48, 256), torch.nn.Parameter(torch.randn(48)), torch.randn(2, 5, 256, requires_grad=True)
    layer = epilog.nn.QuantisedLinear(w, b, bits, group)
    back = layer.dequantised()
    steps = w.unflatten(1, (-1, group)).abs().amax(2, keepdim=True) / (127 if bits == 8 else 7)
    assert ((back - w).abs().unflatten(1, (-1, group)) <= 0.5001 * steps).all()
    y = layer(x)
    want = torch.nn.functional.linear(x, back, b)
    torch.testing.assert_close(y, want, atol=1e-4, rtol=1e-4)
    y.sum().backward()
    torch.testing.assert_close(x.grad, back.sum(0).expand_as(x), atol=1e-4, rtol=1e-4)
    assert torch.equal(b.grad, torch.full((48,), 10.0))
    assert layer.q.nbytes == 48 * 256 * bits // 8
    again = epilog.nn.QuantisedLinear(torch.zeros(48, 256), torch.zeros(48), bits, group)  # and zeros are 0
    assert not again.dequantised().any()
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), y)
    again.to(torch.bfloat16)
    assert again.s.dtype == torch.float32 and torch.equal(again.s, layer.s)


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
@pytest.mark.parametrize("bits", [8, 4])
def test_generating(name, bits):
    model = make(name)
    plain = copy.deepcopy(model)
    report = str(epilog.quantise(model, bits=bits, group=32))
    want = widened(plain, model)
    ids = torch.randint(3, 96, (2, 7))
    torch.testing.assert_close(model(ids).logits, want(ids).logits, atol=1e-3, rtol=1e-3)
    made = dict(max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert torch.equal(model.generate(ids, **made), want.generate(ids, **made))
    assert f"a weight of {bits} bits in groups of 32" in report and "left alone lm_head: as you asked" in report
    assert "weights in total: " in report


def test_what_is_left():
    model = make()
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda *args: None)
    report = str(epilog.quantise(model, bits=4, group=64, leave=["lm_head", "*.o_proj"]))
    assert "left alone model.layers.0.mlp.up_proj: it has its own forward, hooks or parametrizations" in report
    assert "left alone model.layers.{0, 1}.mlp.down_proj: it takes 160 features, not a multiple of 64" in report
    assert "left alone model.layers.{0, 1}.self_attn.o_proj: as you asked" in report
    assert type(model.model.layers[1].self_attn.q_proj) is epilog.nn.QuantisedLinear
    with pytest.raises(ValueError, match="bits is 3: it must be 8 or 4"):
        epilog.quantise(model, bits=3)
    with pytest.raises(ValueError, match="160 columns, not a multiple of 64"):
        epilog.nn.QuantisedLinear(torch.zeros(4, 160))

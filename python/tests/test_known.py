"""epilog.apply replaces exactly what it knows, and looks again at each call: whatever else a model is made of, or becomes, it computes
what it would without Epilog. Each case is made before apply and after it."""
import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import epilog
from rule import hold
from test_transformers import TERMS, data, make, step

transformers = pytest.importorskip("transformers")
from transformers import masking_utils  # noqa: E402
from transformers.loss import loss_utils  # noqa: E402
from transformers.models.llama import modeling_llama as llama  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402


@pytest.fixture(params=["before", "after"])
def when(request):
    """A change is made before epilog.apply, or after it."""
    return request.param


def parts_of(model):
    """The first layer, its attention, its MLP, the last linear layer of that."""
    if hasattr(model, "transformer"):
        layer = model.transformer.h[0]
        return layer, layer.attn, layer.mlp, layer.mlp.c_proj
    layer = model.model.layers[0]
    return layer, layer.self_attn, layer.mlp, layer.mlp.down_proj


class Tripled(nn.Linear):
    def forward(self, x):
        return 3 * super().forward(x)


def other_linear(model):
    mlp = parts_of(model)[2]
    weight, mlp.up_proj = mlp.up_proj.weight, Tripled(32, 64, bias=False)
    mlp.up_proj.weight = weight


class Times3(nn.Module):
    def forward(self, x):
        return 3 * x


class Weight(torch.Tensor):
    """As quantised weights are: a tensor of a class of its own, which says itself what a product is."""
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        found = super().__torch_function__(function, kinds, args, kwargs or {})
        return 3 * found.as_subclass(torch.Tensor) if function is nn.functional.linear else found


def tripled(out):
    """A result of a module three times; of a tuple the first."""
    return (3 * out[0], *out[1:]) if isinstance(out, tuple) else 3 * out


def derived(module):
    """The module as one of a class of the same name, derived from its own."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": lambda self, *args, **kwargs: tripled(kind.forward(self, *args, **kwargs))})


class LlamaMLP(nn.Module):
    """No MLP of transformers, but called so."""

    def __init__(self, old):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = old.gate_proj, old.up_proj, old.down_proj, old.act_fn

    def forward(self, x):
        return self.down_proj(torch.tanh(self.gate_proj(x)) * self.up_proj(x))


class OtherAttention(nn.Module):
    """One key less; a mask is added where there is one."""

    def __init__(self, old):
        super().__init__()
        self.old = old

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        q, k, v = (m(hidden_states).unflatten(-1, (-1, 8)).transpose(1, 2) for m in (self.old.q_proj, self.old.k_proj, self.old.v_proj))
        z = q @ k.repeat_interleave(2, 1).mT / 8
        z = z if attention_mask is None else z + attention_mask
        return self.old.o_proj((z.softmax(-1) @ v.repeat_interleave(2, 1)).transpose(1, 2).flatten(2)), None


def other_class(model):
    layer = parts_of(model)[0]
    layer.mlp = LlamaMLP(layer.mlp)


def wrapped_forward(module):
    old = module.forward
    module.forward = lambda *args, **kwargs: tripled(old(*args, **kwargs))


def parametrized(linear):
    nn.utils.parametrize.register_parametrization(linear, "weight", Times3())


def pruned(linear):
    torch.manual_seed(1)
    prune.random_unstructured(linear, "weight", 0.5)


def with_bias(linear):
    linear.bias = nn.Parameter(torch.linspace(-1, 1, linear.weight.shape[0]))


def hook(module, inputs, out):
    return tripled(out)


def pre_hook(module, inputs, kwargs):
    return tuple(3 * a for a in inputs), {k: 3 * v if k == "hidden_states" else v for k, v in kwargs.items()}


def norms_of(model):
    layer = parts_of(model)[0]
    return layer.ln_1 if hasattr(layer, "ln_1") else layer.post_attention_layernorm


def set_eps(norm):
    norm.__dict__["eps" if "eps" in norm.__dict__ else "variance_epsilon"] = 0.3


def buffered_bias(linear):
    del linear.bias
    linear.register_buffer("bias", torch.linspace(-1, 1, linear.weight.shape[0]))


PARTS = {"a layer": lambda m: parts_of(m)[0], "attention": lambda m: parts_of(m)[1], "the MLP": lambda m: parts_of(m)[2],
         "a linear layer": lambda m: parts_of(m)[3], "a norm": norms_of}
DIFFERENT = {"a hook on": lambda module: module.register_forward_hook(hook), "another forward of": wrapped_forward,
             "a class of the same name for": derived, "a hook before": lambda module: module.register_forward_pre_hook(pre_hook, with_kwargs=True)}
CHANGES = {
    **{f"{how} {part}": lambda m, change=DIFFERENT[how], find=PARTS[part]: change(find(m)) for how in DIFFERENT for part in PARTS
       if (how, part) != ("a hook on", "a layer") and (how != "a hook before" or part in ("attention", "the MLP"))},
    "a parametrization": lambda m: parametrized(parts_of(m)[3]),
    "pruning": lambda m: pruned(parts_of(m)[3]),
    "another scale of scores": lambda m: setattr(parts_of(m)[1], "scaling", 1.0),
    "another epsilon": lambda m: set_eps(norms_of(m)),
    "another activation": lambda m: setattr(parts_of(m)[2], "act" if hasattr(parts_of(m)[2], "act") else "act_fn", nn.ReLU()),
}
LLAMA = {
    "another class of the same name": other_class,
    "another attention class": lambda m: setattr(parts_of(m)[0], "self_attn", OtherAttention(parts_of(m)[1])),
    "a weight that says what a product is": lambda m: setattr(parts_of(m)[3], "weight", nn.Parameter(parts_of(m)[3].weight.detach().as_subclass(Weight))),
    "a weight of another type": lambda m: setattr(norms_of(m), "weight", nn.Parameter(norms_of(m).weight.detach().bfloat16())),
    "a derived linear layer": lambda m: setattr(parts_of(m)[3], "__class__", Tripled),
    "another linear layer": other_linear,
    "a bias of the MLP": lambda m: with_bias(parts_of(m)[3]),
    "a bias of the keys": lambda m: with_bias(parts_of(m)[1].k_proj),
    "a bias that is a buffer": lambda m: buffered_bias(parts_of(m)[1].q_proj),
    "a weight before the parameter": lambda m: norms_of(m).__dict__.update(weight=2 * norms_of(m).weight.detach()),
    "a learned scale of scores": lambda m: setattr(parts_of(m)[1], "scaling", nn.Parameter(torch.tensor(8 ** -0.5))),
    "an epsilon that is a tensor": lambda m: norms_of(m).__dict__.update(variance_epsilon=torch.tensor(0.3)),
    "a window": lambda m: setattr(m.config, "sliding_window", 3),
}
ALL = [("Llama", n) for n in {**CHANGES, **LLAMA} if n != "a window"] + [("GPT2", n) for n in CHANGES] + [("Mistral", "a window")]


def logits(model, **more):
    with torch.no_grad():
        return model(input_ids=data()[0], use_cache=False, **more).logits


def pair(name="Llama", old=None, apply=True):
    """A model with Epilog's layers, and the same without; old: their attention before."""
    model, plain = make(name).eval(), make(name).eval()
    if old:
        model.config._attn_implementation = plain.config._attn_implementation = old
    if apply:
        epilog.apply(model)
    return model, plain


def applied(model, when, change, **how):
    """epilog.apply to a model that `change` changes before that or after; its report."""
    if when == "before":
        change(model)
    report = epilog.apply(model, **how)
    if when == "after":
        change(model)
    return report


def beside(model, plain, **told):
    close(logits(model, **told), logits(plain, **told), logits(copy.deepcopy(plain).double(), **told))


def close(mine, plain, exact):
    """The rule, as in test_transformers.py."""
    hold(mine, plain, exact, "the result", 1, TERMS)


def near(mine, plain):
    torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name, what", ALL)
def test_changed(name, what, when, called):
    change, (model, plain, double) = {**CHANGES, **LLAMA}[what], (make(name).eval() for _ in range(3))
    for m in (model, plain, double) if what in WITH_MASKS else ():
        m.config._attn_implementation = "eager"
    change(plain)
    change(double)
    report = applied(model, when, change)
    close(logits(model), logits(plain), logits(double.double()))
    fused, first = called.count("layer") + called.count("rest"), "transformer.h.0" if name == "GPT2" else "model.layers.0"
    if what in AT_THE_CALL:  # of weights nobody can say before a call what they will be
        assert fused == 1
    elif (what, when) in STILL_ONE or name == "Mistral":
        assert fused == (2 if when == "before" or name != "Mistral" else 0)
    else:
        assert fused == 1 and (when == "after" or first in [n for n, _ in report.left]), report
    assert what != "another linear layer" or when == "after" or (first, "mlp.up_proj is a Tripled, not a plain Linear") in report.left


WITH_MASKS = ("another class of the same name", "another attention class", "a learned scale of scores")  # of every kind, as eager attention has them
AT_THE_CALL = ("a weight of another type", "a weight that says what a product is")
STILL_ONE = (("another forward of a layer", "after"), ("another scale of scores", "before"))  # around what was replaced; part of it


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_backward_hooks_fire(name, when):
    model, fired = make(name), []
    applied(model, when, lambda model: [m.register_full_backward_hook(lambda *a, n=n: fired.append(n)) for n, m in enumerate(parts_of(model))])
    step(model)
    assert sorted(fired) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_hooks_of_all_modules(name, called):
    model, seen = make(name).eval(), set()
    epilog.apply(model)
    handle = nn.modules.module.register_module_forward_hook(lambda m, given, out: seen.add(m))
    try:
        logits(model)
    finally:
        handle.remove()
    assert set(parts_of(model)) <= seen and "layer" not in called


@pytest.mark.parametrize("where, what, other", [
    (llama.LlamaMLP, "forward", lambda self, x: 3 * x), (llama.LlamaAttention, "forward", lambda self, hidden_states, **k: (3 * hidden_states, None)),
    (llama.LlamaRMSNorm, "forward", lambda self, x: 3 * x), (llama.LlamaDecoderLayer, "forward", lambda self, x, **k: 3 * x),
    (llama, "apply_rotary_pos_emb", lambda q, k, cos, sin: (3 * q, k)), (nn.Linear, "forward", lambda self, x: 3 * nn.functional.linear(x, self.weight))])
def test_another_function(where, what, other, when, monkeypatch, called):
    """As other libraries of kernels do it: for all modules of a class."""
    model = make("Llama").eval()
    if when == "after":
        epilog.apply(model)
    monkeypatch.setattr(where, what, other)
    if when == "before":
        with warnings.catch_warnings():  # nothing may be left
            warnings.simplefilter("ignore")
            epilog.apply(model)
    mine, fused = logits(model), called.count("layer")
    epilog.restore(model)
    close(mine, logits(model), logits(copy.deepcopy(model).double()))
    assert fused == 0


def test_another_class_in_its_module(monkeypatch):
    """A class that someone put into the module of transformers is not transformers'."""
    class LlamaRMSNorm(llama.LlamaRMSNorm):
        def forward(self, x):
            return 3 * super().forward(x)
    monkeypatch.setattr(llama, "LlamaRMSNorm", LlamaRMSNorm)
    model = make("Llama").eval()
    expected = logits(model)
    report = epilog.apply(model)
    assert torch.equal(logits(model), expected) and not [n for n, _ in report.replaced if "layers" in n or "norm" in n]


def test_another_sdpa(called):
    """Of the name of transformers', but not its function: before apply, and after it."""
    old = ALL_ATTENTION_FUNCTIONS["sdpa"]
    other = lambda module, q, k, v, mask, **kw: (2 * old(module, q, k, v, mask, **kw)[0], None)
    plain, before, after = (make("Llama").eval() for _ in range(3))
    epilog.apply(after)
    try:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", other)
        report = epilog.apply(before)
        assert ("model.layers.0.self_attn", "attention itself stays the model's: sdpa is not the one of transformers") in report.left
        expected = logits(plain)
        for model in (before, after):
            torch.testing.assert_close(logits(model), expected)
    finally:
        ALL_ATTENTION_FUNCTIONS.register("sdpa", old)
    assert "layer" not in called and called.count("rest") == 4


def test_what_may_change(called):
    """Weights may be others, tied, shared; a plain module may take another's place; types and devices may change."""
    model, plain = pair()
    for m in (plain, model):
        first, second = m.model.layers
        torch.manual_seed(7)
        first.mlp.up_proj.weight = nn.Parameter(torch.randn_like(first.mlp.up_proj.weight))
        first.mlp.gate_proj.weight = first.mlp.up_proj.weight
        second.mlp = first.mlp
        second.self_attn.o_proj = nn.Linear(32, 32, bias=False)
    beside(model, plain)
    assert called.count("layer") == 2
    assert torch.equal(logits(model.double()), logits(plain.double())) and called.count("layer") == 2
    close(logits(model.float()), logits(plain.float()), logits(copy.deepcopy(plain).double()))
    assert called.count("layer") == 4


@pytest.mark.parametrize("what", ["another forward of the MLP", "another activation"])
def test_changed_below_a_graph(what):
    """A compiled model is compiled anew."""
    model, plain, double = (make("Llama").eval() for _ in range(3))
    epilog.apply(model)
    compiled = torch.compile(model, backend="eager")
    logits(compiled)
    for m in (model, plain, double):
        CHANGES[what](m)
    close(logits(compiled), logits(plain), logits(double.double()))


def test_copies_are_fused(called):
    for name in ("Llama", "Gemma2", "GPT2"):
        model = make(name)
        epilog.apply(model)
        other, found = copy.deepcopy(model), step(model)
        for p in model.parameters():
            p.detach().zero_()
        called.clear()
        again = step(other)  # by its own weights
        assert all(torch.equal(found[n], again[n]) for n in found) and called.count("layer") == 2
        assert epilog.restore(other) == epilog.restore(model) > 0


@pytest.mark.parametrize("name, modules", [("GPT2", ["c_attn", "c_proj", "c_fc"]), ("Llama", ["q_proj", "down_proj"])])
def test_adapters(name, modules, when):
    peft = pytest.importorskip("peft")
    def adapted(model):
        torch.manual_seed(11)
        return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=modules, init_lora_weights=False, fan_in_fan_out=name == "GPT2"))
    plain, double, model = adapted(make(name)).eval(), adapted(make(name)).eval().double(), make(name)
    if when == "after":
        epilog.apply(model)
    model = adapted(model).eval()
    if when == "before":
        report = epilog.apply(model)
        assert [w for n, w in report.left if n.endswith((".h.0", ".layers.0")) and "not a plain" in w]
    close(logits(model), logits(plain), logits(double))


def own_loss(logits, labels, vocab_size, **kwargs):
    return logits.square().mean()


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
@pytest.mark.parametrize("change", [lambda m: setattr(m, "loss_function", own_loss), lambda m: m.lm_head.register_forward_hook(hook),
                                    lambda m: with_bias(m.lm_head), lambda m: setattr(m.lm_head, "__class__", Tripled)])
def test_changed_loss(name, change, when, called):
    model, plain = make(name), make(name)
    change(plain)
    report = applied(model, when, change)
    found, expected = (m(input_ids=data()[0], labels=data()[1])[0] for m in (model, plain))
    torch.testing.assert_close(found, expected)
    assert "token_loss" not in called and (when == "after" or "the model" in [n for n, _ in report.left])


def test_switches():
    def told(**switches):
        return sorted({what.split(",")[0] for _, what in epilog.apply(make("GPT2"), **switches).replaced})
    everything = ["LayerNorm", "MLP", "one program", "the loss in training"]
    assert told() == everything
    assert told(attention="sdpa") == ["LayerNorm", "MLP", "the loss in training", "two programs around attention"]
    for switch, what in (("layers", "one program"), ("norms", "LayerNorm"), ("mlp", "MLP"), ("loss", "the loss in training")):
        assert told(**{switch: False}) == [w for w in everything if w != what]
    model = make("Llama")
    assert ("the model", "as you asked") in epilog.apply(model, loss=False).left
    assert model(input_ids=data()[0], labels=data()[0]).logits is not None
    with pytest.warns(UserWarning, match="epilog.apply replaced nothing") as seen:
        epilog.apply(model, layers=False, norms=False, loss=False)
    assert seen[0].filename == __file__


def test_the_report_says_what_is_left():
    config = transformers.GPTNeoXConfig(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    report = epilog.apply(transformers.GPTNeoXForCausalLM(config))
    assert ("gpt_neox.layers", "2 GPTNeoXLayer: not a supported layer") in report.left and report.replaced


def test_report():
    """Of layers that are alike in one line."""
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=5,
                                                                   num_attention_heads=4))
    lines = str(epilog.apply(model)).split("\n")
    assert lines[0] == "replaced model.layers.{0, … 4}: one program" and len(lines) == 4
    assert lines[-1].startswith("left alone model.layers.{0, … 4}.self_attn: attention itself is the model's with dropout")


def test_applied_again(called):
    """Looks at the model as it is now."""
    model = make("Llama").eval()
    handle = parts_of(model)[2].register_forward_hook(hook)
    assert ("model.layers.0", "mlp has hooks") in epilog.apply(model).left
    assert model.config._attn_implementation == "sdpa"  # since a layer of the model's own is left
    handle.remove()
    logits(model)
    assert called.count("rest") == 1
    assert not [n for n, _ in epilog.apply(model).left if n == "model.layers.0"] and model.config._attn_implementation == "epilog_sdpa"
    logits(model)
    assert called.count("layer") == 2


def test_restored_below_another_forward():
    """Whoever has wrapped a replaced forward keeps it: it does then as the class does."""
    model, plain = pair()
    for m in (model, plain):
        wrapped_forward(parts_of(m)[0])
    close(logits(model), logits(plain), logits(plain).double())
    epilog.restore(model)
    assert torch.equal(logits(model), logits(plain))


@pytest.mark.parametrize("chunks", [1, 2])
def test_labels_outside_the_vocabulary(chunks):
    model, (ids, labels) = make("Llama"), data()
    epilog.apply(model, loss_chunks=chunks)
    labels[1, 4] = 96
    with pytest.raises(IndexError, match="Target 96 is out of bounds"):
        model(input_ids=ids, labels=labels)
    labels[1, 4] = -100
    assert model(input_ids=ids, labels=labels).loss.isfinite()


def test_another_gelu_after_apply(called):
    """Of the same class, but not of the same text."""
    model, plain = pair(apply=False)
    for m in (model, plain):
        m.model.layers[0].mlp.act_fn, m.model.layers[1].mlp.act_fn = nn.GELU("tanh"), nn.GELU("tanh")
    epilog.apply(model)
    for m in (model, plain):
        m.model.layers[0].mlp.act_fn, m.model.layers[1].mlp.act_fn.approximate = nn.GELU(), "none"
    beside(model, plain)
    assert "layer" not in called and "rest" not in called


@pytest.mark.parametrize("old, told", [("sdpa", dict(sliding_window=3)), ("eager", dict(sliding_window=3)), ("eager", dict(softcap=0.1)),
                                       ("sdpa", dict(is_causal=False)), ("eager", dict(is_causal=False))])
def test_what_a_call_is_told(old, told, called):
    """What the model's own attention does not look at, or looks at in its own way."""
    model, plain = pair(old=old)
    beside(model, plain, **told)
    assert called.count("layer") == (2 if "sliding_window" in told else 0)  # a window is the mask's


def test_a_mask_of_too_few_keys():
    """It hides nothing that it has, but it is not that of the sequence: an error, as the model's."""
    model, plain = pair(old="eager")
    for m in (plain, model):
        with pytest.raises(RuntimeError, match="must match"):
            logits(m, attention_mask=torch.ones(2, 7, dtype=torch.long))


def not_causal(model):
    model.config.is_causal = False


def eager(model):
    model.config._attn_implementation = "eager"


def other_eps(model):
    """An attribute that norms of Llama do not read: they call their epsilon otherwise."""
    for norm in model.modules():
        if isinstance(norm, llama.LlamaRMSNorm):
            norm.eps = 0.5


# A change, what attention was made with, and how many layers are programs as a whole and around attention, where it is made before and after.
@pytest.mark.parametrize("change, old, before, after", [(not_causal, "sdpa", (0, 2), (0, 2)), (not_causal, "eager", (0, 2), (0, 2)),
                                                        (eager, None, (2, 0), (0, 2)), (other_eps, None, (2, 0), (2, 0))])
def test_other_settings(change, old, before, after, when, called):
    model, plain = pair(old=old, apply=False)
    change(plain)
    applied(model, when, change)
    beside(model, plain)
    assert (called.count("layer"), called.count("rest")) == (before if when == "before" else after)


def turned(model):
    model.model.layers = nn.ModuleList(reversed(model.model.layers))


WINDOWS = {"another window": lambda m: setattr(m.config, "sliding_window", 6),
           "other kinds": lambda m: setattr(m.config, "layer_types", m.config.layer_types[::-1]), "layers in another order": turned}


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3", "Gemma2"])
@pytest.mark.parametrize("what", WINDOWS)
def test_windows_of_other_places(name, when, what, called):
    """Masks go by a layer's place in the model and by the configuration as it is, not by what a layer was made with."""
    more = {} if name == "Gemma2" else dict(use_sliding_window=True, sliding_window=4, layer_types=["full_attention", "sliding_attention"])
    model, plain = (make(name, **more).eval() for _ in range(2))
    WINDOWS[what](plain)
    applied(model, when, WINDOWS[what])
    beside(model, plain)
    assert called.count("layer") == 2


def test_another_rotation_before_apply(monkeypatch, called):
    """Whose tables are not two halves that are the same."""
    def interleaved(self, x, position_ids):
        angles = (position_ids[..., None].float() * self.inv_freq).repeat_interleave(2, -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", interleaved)
    model, plain = pair(apply=False)
    report = epilog.apply(model)
    beside(model, plain)
    assert "layer" not in called and ("model.layers.0", "LlamaRotaryEmbedding is not the one of transformers") in report.left


def by_layers(model, mask, tables=None, window=None):
    """A forward of one's own around a model's layers. mask: None, or a function of the model and x."""
    x = model.model.embed_tokens(data()[0])
    positions = torch.arange(x.shape[1])[None]
    tables = model.model.rotary_emb(x, positions) if tables is None else tables(model.model.rotary_emb(x, positions))
    mask = mask and mask(config=model.config, inputs_embeds=x, attention_mask=None, past_key_values=None, position_ids=positions)
    for layer in model.model.layers:
        x = layer(x, attention_mask=mask, position_embeddings=tables)
    return x


def near_mask(config, inputs_embeds, **more):
    """By the interface itself, with a function of one's own."""
    make_mask, length = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation], inputs_embeds.shape[1]
    def seen(batch, head, q, k):
        return (k <= q) & (k > q - 2)
    return make_mask(batch_size=2, q_length=length, kv_length=length, mask_function=seen, dtype=inputs_embeds.dtype, config=config)


def windowed_mask(config, **more):
    config.sliding_window = 3
    return masking_utils.create_sliding_window_causal_mask(config=config, **more)


@pytest.mark.parametrize("old", ["eager", "sdpa"])
@pytest.mark.parametrize("mask, whole", [(None, 0), (masking_utils.create_causal_mask, 2), (windowed_mask, 2), (near_mask, 0)])
def test_masks_of_own_models(old, mask, whole, called):
    """None is what the model's attention takes it for; a window is the mask's, not the layer's."""
    model, plain = pair(old=old)
    found = by_layers(model, mask)
    if mask is not near_mask or old == "eager":  # of sdpa such a call asks that the function be left out
        near(found, by_layers(plain, mask))
        assert called.count("layer") == (2 if mask is None and old == "sdpa" else whole)


def test_no_mask_where_there_is_a_window():
    model, plain = pair("Mistral", "sdpa")
    near(by_layers(model, None), by_layers(plain, None))


def soften(layer, args, kwargs):
    return args, dict(kwargs, attention_mask=kwargs["attention_mask"].clamp(min=-2.0))


def soften_in_place(layer, args, kwargs):
    kwargs["attention_mask"].clamp_(min=-2.0)


@pytest.mark.parametrize("hook", [soften, soften_in_place])
def test_masks_that_someone_changes(hook, called):
    model, plain = pair(old="eager")
    for m in (model, plain):
        m.model.layers[0].register_forward_pre_hook(hook, with_kwargs=True)
    beside(model, plain)
    assert "layer" not in called  # what was looked at is from then on a mask like any other


class Added(nn.Module):
    """A layer of one's own, which adds the mask to something."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        z = hidden_states @ hidden_states.mT / 8
        return hidden_states + (z + attention_mask[:, 0] if attention_mask is not None else z).softmax(-1) @ hidden_states


@pytest.mark.parametrize("change", [lambda m: m.model.layers.__setitem__(0, Added()), lambda m: m.model.layers.__delitem__(0),
                                    lambda m: m.model.layers.__setitem__(0, make("Llama").eval().model.layers[1]), turned])
def test_layers_replaced_after_apply(change):
    model, plain = pair(old="eager")
    change(model), change(plain)
    beside(model, plain)


def clone_module(module):
    """As libraries of meta-learning do it."""
    clone = module.__new__(type(module))
    clone.__dict__ = module.__dict__.copy()
    clone._parameters = {k: None if v is None else v.clone() * 1.3 for k, v in module._parameters.items()}
    clone._modules = {k: clone_module(v) for k, v in module._modules.items()}
    return clone


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_shallow_copies(name, called):
    """They compute with their own weights, and so does what DataParallel makes."""
    model, plain = pair(name)
    close(logits(clone_module(model)), logits(clone_module(plain)), logits(clone_module(plain.double())))
    assert called.count("layer") == 2
    plain.float()
    for m in (model, plain):
        inner = m.transformer if name == "GPT2" else m.model
        norm, at = ("ln_f", inner.ln_f) if name == "GPT2" else ("norm", inner.norm)
        at = copy.copy(at)
        at._parameters = {k: nn.Parameter(2 * p.detach()) for k, p in at._parameters.items()}
        setattr(inner, norm, at)
    beside(model, plain)
    replica = parts_of(model)[0]._replicate_for_data_parallel()
    assert "_epilog" in replica.__dict__ and replica.forward.__self__ is replica


BELOW = [(nn.functional, "linear", "sdpa"), (nn.functional, "silu", "sdpa"), (nn.functional, "scaled_dot_product_attention", "sdpa"),
         (llama, "repeat_kv", "eager"), (nn.functional, "softmax", "eager"), (torch, "rsqrt", "sdpa"), (llama, "rotate_half", "sdpa"),
         (nn.Linear, "__call__", "sdpa")]


@pytest.mark.parametrize("where, name, old", BELOW)
def test_another_function_below(where, name, old, when, monkeypatch, called):
    """Functions that the known ones call."""
    (model, plain), was = pair(old=old, apply=False), getattr(where, name)
    applied(model, when, lambda m: monkeypatch.setattr(where, name, lambda *args, **kwargs: 1.5 * was(*args, **kwargs)), norms=when == "after")
    near(logits(model), logits(plain))
    assert "layer" not in called


def test_another_loss_below(when, monkeypatch):
    model, plain, was = make("Llama"), make("Llama"), loss_utils.fixed_cross_entropy
    applied(model, when, lambda m: monkeypatch.setattr(loss_utils, "fixed_cross_entropy", lambda *args, **kwargs: 3 * was(*args, **kwargs)))
    torch.testing.assert_close(step(model)["loss"], step(plain)["loss"])


class Rounded(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        args = (args[0], args[1].round(decimals=1), *args[2:]) if function is nn.functional.linear else args
        return function(*args, **(kwargs or {}))


class Counted(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return 1.5 * out if function is torch.ops.aten.silu.default else out


@pytest.mark.parametrize("mode", [Rounded, Counted])
def test_modes(mode, called):
    """Of functions, and of the dispatcher."""
    model, plain = pair()
    with mode():
        assert torch.equal(logits(model), logits(plain)) and not called
    with torch.device("cpu"):  # is one, too, but only says where tensors are made
        logits(model)
    assert called.count("layer") == 2


def interleaved(tables):
    return tuple(t[..., :4].repeat_interleave(2, -1) for t in tables)


def written(tables):
    tables[0][..., 4:] = 0.5
    return tables


@pytest.mark.parametrize("tables", [interleaved, lambda tables: tuple(t[:, :, :1] for t in tables), tuple, written])
def test_tables_of_others(tables, called):
    """Only of those that a known rotary embedding returns is known what they are."""
    model, plain = pair(old="sdpa")
    near(by_layers(model, None, tables), by_layers(plain, None, tables))
    assert "layer" not in called


def test_a_layer_that_stands_twice():
    """Its second time it sees in a cache what its first has left there."""
    model, plain = make("Llama"), make("Llama")
    for m in (model, plain):
        m.model.layers[1] = m.model.layers[0]
    epilog.apply(model)
    torch.testing.assert_close(step(model)["loss"], step(plain)["loss"])


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_outputs_are_of_their_class(name):
    model, plain = make(name), make(name)
    epilog.apply(model)
    found, expected = (m(input_ids=data()[0], labels=data()[1]) for m in (model, plain))
    assert type(found) is type(expected)


def test_dropout_that_is_on_by_itself(called):
    """Of a model in eval(), as ensembles of one model have it."""
    model, plain = pair("GPT2")
    for m in (model, plain):
        for block in m.transformer.h:
            block.attn.resid_dropout.p = 0.5
            block.attn.resid_dropout.train()
    torch.manual_seed(3)
    found = logits(model)
    torch.manual_seed(3)
    near(found, logits(plain))
    assert "layer" not in called


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_arguments_in_order(name):
    """As the class of a layer has them, which is not the same in all families."""
    model, plain = pair(name, "eager")
    x, positions = torch.randn(2, 10, 32), torch.arange(10)[None]
    def run(m):
        mask = masking_utils.create_causal_mask(config=m.config, inputs_embeds=x, attention_mask=None, past_key_values=None, position_ids=positions)
        tables = m.model.rotary_emb(x, positions)
        with torch.no_grad():
            return m.model.layers[1](x, tables, mask) if name == "Gemma2" else m.model.layers[1](x, mask, None, None, False, tables)
    near(run(model), run(plain))
    with pytest.raises(TypeError, match="multiple values"):
        model.model.layers[1](x, None, attention_mask=None, position_embeddings=None)


class Embedded(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(inputs_embeds=x, use_cache=False).logits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("old", ["sdpa", "eager"])
def test_traces(old):
    """What torch.jit.trace sees is computed with other tensors later."""
    model, plain = pair(old=old)
    first, second = torch.randn(2, 2, 10, 32)
    traced = torch.jit.trace(Embedded(model), first, strict=False, check_trace=False)
    near(traced(second), Embedded(plain)(second))


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GPT2"])
def test_transforms_of_functions(name):
    model, plain, ids = make(name), make(name), data()[0]
    epilog.apply(model)
    def gradient(m):
        def loss(weights):
            return torch.func.functional_call(m, weights, kwargs=dict(input_ids=ids, labels=ids, use_cache=False)).loss
        return torch.func.grad(loss)({n: p.detach() for n, p in m.named_parameters()})
    found, expected = gradient(model), gradient(plain)
    for n in expected:
        torch.testing.assert_close(found[n], expected[n], rtol=1e-3, atol=1e-4)


def test_one_position_for_all():
    model, plain = pair(old="sdpa")
    position = torch.tensor([[3]])
    near(logits(model, position_ids=position), logits(plain, position_ids=position))


def a_mask(model):
    return masking_utils.create_causal_mask(config=model.config, inputs_embeds=torch.zeros(2, 10, 32), attention_mask=None, past_key_values=None,
                                            position_ids=torch.arange(10)[None])


def written_behind(mask):
    other = mask.detach()
    mask.fill_(2.0)
    return other.clone()


@pytest.mark.parametrize("read", [lambda m: torch.from_numpy(m.numpy()), lambda m: torch.tensor(m.tolist()), lambda m: copy.deepcopy(m).clone(),
                                  lambda m: torch.from_dlpack(m), lambda m: pickle.loads(pickle.dumps(m)).clone(), lambda m: m[:, :, 2:] + 0,
                                  lambda m: torch.where(m < 0, 1, 0), lambda m: torch.tensor(float(m.data_ptr() != 0)), written_behind])
def test_masks_are_read_as_any_other(read):
    model, plain = pair(old="eager")
    mask = a_mask(model)
    assert mask._epilog_seen == (0, None, None, None, 0, False)
    assert torch.equal(read(mask), read(a_mask(plain))) and mask._epilog_seen is None


def test_a_class_of_another_around_it():
    """What is replaced, then parametrized, restored, and plain again."""
    model, plain = pair()
    nn.utils.parametrize.register_parametrization(model.model.norm, "weight", Times3())
    epilog.restore(model)
    nn.utils.parametrize.remove_parametrizations(model.model.norm, "weight", leave_parametrized=False)
    epilog.apply(model)
    beside(model, plain)
    assert torch.equal(logits(model.double()), logits(plain.double()))


def test_what_an_activation_holds_in_a_graph(called):
    """Is compared by its value: Gemma's GELU is a function of some arguments."""
    model, plain = pair("Gemma2")
    close(logits(torch.compile(model, backend="eager")), logits(plain), logits(copy.deepcopy(plain).double()))
    assert called.count("layer") + called.count("rest") == 2
    torch._dynamo.reset()
    model.model.layers[0].mlp.act_fn.act.keywords["approximate"] = plain.model.layers[0].mlp.act_fn.act.keywords["approximate"] = "none"
    called.clear()
    beside(model, plain)
    assert called.count("layer") + called.count("rest") == 1


def test_pickle_refuses(tmp_path):
    model = make("Llama")
    epilog.apply(model)
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(model)
    epilog.restore(model)
    pickle.loads(pickle.dumps(model))
    epilog.apply(model)
    model.save_pretrained(tmp_path)
    assert "epilog" not in (tmp_path / "config.json").read_text()


def test_a_soft_cap_that_sdpa_has_not():
    model = make("Gemma2").eval()
    model.config._attn_implementation = "sdpa"
    assert ("model.layers.0.self_attn", "attention itself stays the model's: sdpa supports no soft cap") in epilog.apply(model).left
    with pytest.raises(ValueError, match="softcap"):
        logits(model)


def test_two_models_of_one_configuration():
    """Attention of one is its own; and what is set of the configuration of a patched model reaches all of its modules."""
    model = make("Llama").eval()
    config, other = model.config, type(model)(model.config).eval()
    other.load_state_dict(model.state_dict())
    plain = logits(model)
    epilog.apply(model)
    assert other.config is config and config._attn_implementation == "sdpa" and torch.equal(logits(other), plain)
    own = {id(m.config) for m in model.modules() if hasattr(m, "config")}
    assert own == {id(model.config)} and model.config is not config and model.config._attn_implementation == "epilog_sdpa"
    epilog.apply(other)
    epilog.restore(model)
    assert other.config._attn_implementation == "epilog_sdpa" and model.config._attn_implementation == "sdpa"
    assert torch.equal(logits(model), plain)


OFFLOADS = {"cpu_offload": dict(execution_device="cpu"), "cpu_offload_with_hook": dict(execution_device="cpu"),
            "dispatch_model": dict(device_map={"": "cpu"}, main_device="cpu", force_hooks=True)}


@pytest.mark.parametrize("what", OFFLOADS)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_offload(name, first, what):
    """accelerate's hooks bring a module's weights when it is called: layers whose parts have them compute as before."""
    offload = getattr(pytest.importorskip("accelerate"), what)
    model, plain = make(name).eval(), make(name).eval()
    if first:
        offload(model, **OFFLOADS[what])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing was replaced
        epilog.apply(model)
    if not first:
        offload(model, **OFFLOADS[what])
    beside(model, plain)
    epilog.restore(model)
    assert torch.equal(logits(model), logits(plain))


def test_results_of_layers(when, called):
    """transformers hooks into attention for good where it is once asked for results of layers: that hides nothing later."""
    def eager():
        model = make("Llama").eval()
        model.config._attn_implementation = "eager"
        return model
    model, (ids, _) = eager(), data()
    ask = lambda m, **more: m(input_ids=ids, use_cache=False, **more)
    with torch.no_grad():
        plain = ask(model, output_hidden_states=True)
        if when == "after":
            model = eager()
        epilog.apply(model)
        for _ in range(2):
            found = ask(model, output_hidden_states=True)
            assert len(found.hidden_states) == 3
            for a, b in zip(found.hidden_states, plain.hidden_states):
                torch.testing.assert_close(a, b)
            ask(model)
        assert called.count("layer") == 8
        assert len(ask(model, output_attentions=True).attentions) == 2 and called.count("layer") == 8
        ask(model)
    assert called.count("layer") == 10

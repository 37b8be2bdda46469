"""epilog.apply on small models with random weights: loss and gradients beside eager, and all of it undone."""
import copy
import inspect
import threading
import types

import pytest
import torch

import epilog
import families
from epilog import _op, _patched, _run
from epilog._op import Op
from rule import hold

transformers = pytest.importorskip("transformers")
SMALL = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
# The terms of the sums on the way to a gradient, one behind the other: of a layer two norms and four products over 32 features,
# one over 64, scores of heads of 8, softmax and values over 10 tokens; head and its softmax; back again; 20 tokens at last.
TERMS = 2 * (2 * (6 * 32 + 64 + 8 + 2 * 10) + 32 + 96) + 20
MODELS = {"Llama": {}, "Llama, biases": dict(attention_bias=True), "Mistral": dict(sliding_window=4), "Qwen2": {},
          "Qwen3": dict(head_dim=16), "Gemma2": dict(head_dim=16, sliding_window=4, final_logit_softcapping=3.0,
                                                     attn_logit_softcapping=5.0, query_pre_attn_scalar=16), "GPT2": None}
GPT2 = dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1,
            eos_token_id=2)


def make(name, **more):
    return families.causal(name.split(",")[0], {**(GPT2 if name == "GPT2" else {**SMALL, **MODELS[name]}), **more})


def data():
    torch.manual_seed(5)
    ids = torch.randint(3, 96, (2, 10))
    labels = ids.clone()
    labels[0, :3] = -100
    return ids, labels


def step(model, **more):
    """Of tokens that are padding no loss is asked for, nor of those that are foretold by padding."""
    ids, labels = data()
    padding = more.pop("padding", more.get("attention_mask"))
    if padding is not None and padding.dim() == 2:
        labels = labels.masked_fill((padding == 0) | (padding.roll(1, 1) == 0), -100)
    return families.loss_step(model, input_ids=ids, labels=labels, **more)


def exact_step(model, **more):
    """step in f64. A softmax does not see what all keys have in common, so of the gradient by their bias little is left of what it is
    the sum of: terms has how large that is, the root of the sum of squares over tokens."""
    model, terms = copy.deepcopy(model).double(), {}
    for name, module in model.named_modules():
        if name.endswith("k_proj") and module.bias is not None:
            module.register_full_backward_hook(lambda m, given, found, name=name: terms.update(
                {name + ".bias": found[0].flatten(0, -2).square().sum(0).sqrt().max()}))
    return step(model, **more), terms


def exact_masks(name, more):
    """What an f64 model is told of padding. Of Gemma 2's attention rows that see nothing would be NaN then, since its softmax is f32: they see
    themselves."""
    mask = more.get("attention_mask")
    if name != "Gemma2" or mask is None or mask.dim() != 2:
        return more
    back = torch.arange(10)[:, None] - torch.arange(10)
    made = lambda seen: torch.where((seen & (mask[:, None, None] != 0)) | (back == 0), 0.0, -1e30).double()
    return dict(more, attention_mask=dict(full_attention=made(back >= 0), sliding_attention=made((back >= 0) & (back < 4))), padding=mask)


def within(mine, plain, exact, dtype=torch.float32, coarsest=None, terms={}):
    """The rule of rule.py for the gradients. The loss is one number, where eager may be right by chance: it is the mean
    of 15 tokens' losses, each with the rounding error of a logit (which are below 1 here). And the models compute
    norms and loss in f32 whatever their type is, so the reference has errors of its own: four roundings of the loss.
    coarsest: the type of values on the way, where it is not that of the gradients. terms: each of the terms of a sum may be rounded twice,
    as the gradient by a key is before and behind its rotation."""
    for name, e in exact.items():
        more = 15 ** -0.5 if name == "loss" else 2 ** 0.5 * terms.get(name, 0)
        hold(mine[name], plain[name], e, name, 4 if name == "loss" else 1, TERMS, coarsest, more=more * torch.finfo(dtype).eps)


def beside(model, run=step, exact_run=None, coarsest=None, **how):
    """A model with Epilog's layers, in f32, beside itself without them and in f64; the report. run: makes a step; how: for epilog.apply."""
    exact, plain = (exact_run or run)(copy.deepcopy(model).double()), run(model)
    report = epilog.apply(model, **how)
    within(run(model), plain, exact, coarsest or torch.float32, coarsest)
    return report


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["epilog", "sdpa"])
def test_step(name, dtype, attention, called):
    model = make(name).to(dtype)
    names, before, old = list(model.state_dict()), [p.data_ptr() for p in model.parameters()], model.config._attn_implementation
    (exact, terms), plain = exact_step(model), step(model)
    report = epilog.apply(model, attention=attention)
    assert report.replaced and report.left and "replaced" in str(report)
    mine = step(model)
    assert [called.count(n) for n in ("layer", "projections", "rest")] == ([2, 0, 0] if attention == "epilog" else [0, 2, 2])
    within(mine, plain, exact, dtype, terms=terms)
    assert names == list(model.state_dict()) and before == [p.data_ptr() for p in model.parameters()]
    assert any(not torch.equal(mine[n], plain[n]) for n in mine)  # it is not eager that ran
    epilog.restore(model)
    assert model.config._attn_implementation == old
    again = step(model)
    assert all(torch.equal(again[n], plain[n]) for n in plain)


def padded(*hidden):
    """A mask of two sequences of 10 tokens, without some of them."""
    mask = torch.ones(2, 10, dtype=torch.long)
    for place in hidden:
        mask[place] = 0
    return mask


PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 0, 0, 1]])
LEFT = padded((1, slice(0, 4)))
FLASH = dict(cu_seq_lens_q=torch.tensor([0, 4, 10, 17, 18, 20]), cu_seq_lens_k=torch.tensor([0, 4, 10, 17, 18, 20]), max_length_q=7, max_length_k=7)
MASKS = {"padding behind": dict(attention_mask=padded((1, slice(7, 10)))), "padding before": dict(attention_mask=LEFT),
         "padding before, with positions": dict(attention_mask=LEFT, position_ids=(LEFT.cumsum(1) - 1).clamp(min=0)),
         "padding on both sides": dict(attention_mask=padded((1, slice(0, 2)), (1, slice(8, 10)), (0, slice(9, 10)))),
         "holes": dict(attention_mask=padded((1, slice(3, 5)), (0, slice(0, 1)))), "packing": dict(position_ids=PACKED),
         "one packing for all": dict(position_ids=PACKED[:1]), "packing, as flash-attention is told": dict(position_ids=PACKED, **FLASH),
         "nothing is hidden": dict(attention_mask=padded())}

LONELY = ["padding before", "padding before, with positions", "padding on both sides", "holes"]  # where some query sees no key


@pytest.mark.parametrize("name, what, dtype", [
    *((name, what, torch.float32) for what in MASKS for name in MODELS if name != "Llama, biases"),
    *((name, what, dtype) for what in ("padding before, with positions", "packing") for dtype in (torch.bfloat16, torch.float16)
      for name in ("Llama", "Gemma2"))])
def test_masks(name, what, dtype, called):
    """Padding and packing are the layer's own program."""
    model, more = make(name).to(dtype), dict(MASKS[what], use_cache=False)
    if name == "GPT2" and "flash" in what:
        pytest.skip("its forward does not take them")
    (exact, terms), plain = exact_step(model, **exact_masks(name, more)), step(model, **more)
    report = epilog.apply(model)
    mine = step(model, **more)
    alone = name == "Gemma2" and what in LONELY  # what its eager attention does there is left to it
    assert [called.count(n) for n in ("layer", "projections", "rest")] == ([0, 2, 2] if alone else [2, 0, 0])
    assert ("a query sees no key" in str(report)) == alone
    within(mine, plain, exact, dtype, terms={} if dtype == torch.float32 else terms)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen3", "Gemma2", "GPT2"])
@pytest.mark.parametrize("what", [*LONELY, "padding behind"])
def test_queries_that_see_no_key(name, what, attention):
    """They have of eager attention what all keys have, in results and gradients, where the last of them foretells a first token, too."""
    if name == "Gemma2" and attention == "sdpa":
        pytest.skip("sdpa has no soft cap")
    (ids, labels), mask = data(), MASKS[what]["attention_mask"]
    given = dict(input_ids=ids, labels=labels.masked_fill(mask == 0, -100), **MASKS[what])

    def loss(model):
        model.zero_grad()
        found = model(**given, use_cache=False).loss
        found.backward()
        return [found.detach(), *[p.grad.clone() for p in model.parameters()]]
    model = make(name)
    model.config._attn_implementation = attention
    plain = copy.deepcopy(model)
    report = epilog.apply(model)
    for mine, theirs in zip(loss(model), loss(plain)):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-4 * theirs.abs().max().item())
    assert len([why for _, why in report.left if "a query sees no key" in why]) == (2 if attention == "eager" and what in LONELY else 0)
    given.pop("labels")
    with torch.no_grad():  # of all tokens, with a cache and without
        for use_cache in (False, True):
            mine, theirs = (m.eval()(**given, use_cache=use_cache).logits for m in (model, plain))
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-4 * theirs.abs().max().item())


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma2", "GPT2"])
@pytest.mark.parametrize("what", ["a cache", "a padded cache", "a mask of one's own"])
def test_attention_that_is_not_plain(name, what, called):
    """With a cache attention is one of three programs; with a mask of its own it is the model's."""
    more = {"a cache": dict(use_cache=True), "a padded cache": dict(use_cache=True, attention_mask=LEFT),
            "a mask of one's own": dict(use_cache=False)}[what]
    model, alone = make(name), name == "Gemma2" and what == "a padded cache"
    if what == "a mask of one's own":
        mask = (torch.ones(10, 10).tril().bool() & (torch.arange(10)[:, None] - torch.arange(10) != 2)).expand(2, 1, 10, 10)
        more["attention_mask"] = mask if model.config._attn_implementation == "sdpa" else torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    run = lambda model, more: step(model, **families.typed(more, next(model.parameters()).dtype))
    exact, plain = run(copy.deepcopy(model).double(), exact_masks(name, more)), run(model, more)
    epilog.apply(model)
    mine = run(model, more)
    within(mine, plain, exact)
    assert called.count("layer") == 0 and called.count("layer_cached") == (0 if "own" in what or alone else 2)  # an empty one


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_dropout_of_attention(name, called):
    """It is the model's, with the same random numbers, and so is the mask, which nobody has made."""
    model = make(name)
    model.config._attn_implementation = "eager"
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    def seeded(model):
        torch.manual_seed(9)
        return step(model)
    beside(model, seeded)
    assert not {"layer", "attention"} & set(called)


def test_weights_of_attention():
    for name in ("Llama", "GPT2"):
        model, ids = make(name).eval(), data()[0]
        model.config._attn_implementation = "eager"
        plain = model(input_ids=ids, output_attentions=True).attentions
        epilog.apply(model)
        mine = model(input_ids=ids, output_attentions=True).attentions
        assert len(mine) == 2
        for a, b in zip(mine, plain):
            torch.testing.assert_close(a, b)


def test_attention_that_was_asked_for():
    model = make("Llama")
    with pytest.raises(ValueError, match="attention is 'cudnn'"):
        epilog.apply(model, attention="cudnn")
    model.config._attn_implementation = "flex_attention"
    assert ("model.layers.0.self_attn", "attention itself stays the model's: flex_attention was requested") in epilog.apply(model).left
    assert model.config._attn_implementation == "flex_attention"


@pytest.mark.parametrize("name, what", [("Llama", None), ("Qwen3", None), ("Gemma2", None), ("GPT2", None), ("Llama", "padding before"),
                                        ("Llama", "packing")])
def test_autocast(name, what, called):
    """Products in bf16; what goes from layer to layer stays f32, as in eager. With a mask attention is Epilog's between two programs."""
    model, more, streams = make(name), dict(MASKS[what], use_cache=False) if what else {}, []

    def cast_step(model):
        streams.clear()
        layers = model.transformer.h if name == "GPT2" else model.model.layers
        hooks = [layer.register_forward_hook(lambda m, given, out: streams.append(out.dtype)) for layer in layers]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = step(model, **more)
        [h.remove() for h in hooks]
        return found
    beside(model, cast_step, lambda m: step(m, **more), torch.bfloat16)
    assert streams == [torch.float32] * 2 and (what is None or called.count("attention") == 2)


@pytest.mark.parametrize("name, what", [("Llama", None), ("GPT2", None), ("Llama", "padding before"), ("Llama", "holes"), ("Llama", "packing")])
def test_checkpointing(name, what, called):
    """What is checkpointed is computed again in the backward."""
    model, more = make(name), dict(MASKS[what], use_cache=False) if what else {}
    epilog.apply(model)
    plain = step(model, **more)
    called.clear()
    model.gradient_checkpointing_enable()
    again = step(model, **more)
    assert called.count("layer") == 4 and all(torch.equal(plain[n], again[n]) for n in plain)


@pytest.mark.parametrize("name, how, more", [
    ("Llama", {}, dict(position_ids=torch.stack([torch.arange(10), torch.arange(10) + 7]))), ("Llama", {}, dict(num_items_in_batch=40)),
    ("Llama", dict(loss_chunks=3), {}), ("Gemma2", dict(loss_chunks=3), {})])
def test_other_steps(name, how, more, called):
    """Positions of their own, a number of items, a loss in chunks."""
    beside(make(name), lambda model: step(model, **more), **how)
    assert not how or called.count("loss_chunk") == 3 and "token_loss" not in called


@pytest.mark.parametrize("name", ["Qwen3", "Gemma2", "GPT2"])
def test_logits(name):
    """They stay where a model is not in training."""
    model, ids = make(name).eval(), data()[0]
    logits = model(input_ids=ids).logits
    epilog.apply(model)
    assert model(input_ids=ids, labels=ids).logits.shape == logits.shape
    torch.testing.assert_close(model(input_ids=ids).logits, logits)
    assert model.train()(input_ids=ids, labels=ids).logits is None


def test_dropout_of_gpt2(called):
    """Where dropout is on, a block does as it did, with the same random numbers; where it is not, it is one program."""
    model, ids = make("GPT2"), data()[0]
    for block in model.transformer.h:
        block.mlp.dropout.p = 0.3
    torch.manual_seed(8)
    plain = model(input_ids=ids, labels=ids).loss
    epilog.apply(model)
    torch.manual_seed(8)
    torch.testing.assert_close(model(input_ids=ids, labels=ids).loss, plain)
    assert "layer" not in called
    model.eval()(input_ids=ids, use_cache=False)
    assert called.count("layer") == 2


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "GPT2"])
def test_compile(name):
    model = make(name)
    epilog.apply(model)
    plain = step(model)
    compiled = step(torch.compile(model, fullgraph=True, dynamic=True))
    torch.testing.assert_close(compiled["loss"], plain["loss"])
    for n in plain:
        if n != "loss":
            torch.testing.assert_close(compiled["_orig_mod." + n], plain[n], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name, what", [("Llama", None), ("Llama", "holes"), ("Llama", "packing"), ("Mistral", "packing"),
                                        ("Gemma2", "packing"), ("GPT2", "packing")])
def test_masks_compiled(name, what, monkeypatch):
    """In a graph as well a layer is one program, whatever hides keys, with the same bits."""
    names, traced = [], Op.traced
    monkeypatch.setattr(Op, "traced", lambda self, args: names.append(self.name) or traced(self, args))
    model, more = make(name), dict(MASKS[what] if what else {}, use_cache=False)
    epilog.apply(model)
    plain = step(model, **more)
    compiled = step(torch.compile(model, fullgraph=True, backend="aot_eager"), **more)
    assert names.count("layer") == 2 and torch.equal(compiled["loss"], plain["loss"])
    for n in plain:
        assert n == "loss" or torch.equal(compiled["_orig_mod." + n], plain[n])


def test_masks_of_others_compiled():
    """What someone else's function hides in a graph is the model's."""
    model, plain = make("Llama"), make("Llama")
    epilog.apply(model)
    other = lambda batch, head, q, k: (q - k) != 2

    def hidden(model, x, positions):
        from transformers.masking_utils import create_causal_mask
        mask = create_causal_mask(config=model.config, inputs_embeds=x, attention_mask=None, past_key_values=None, position_ids=positions,
                                  and_mask_function=other)
        return model.model.layers[0](x, attention_mask=mask, position_embeddings=model.model.rotary_emb(x, positions))
    x, positions = torch.randn(2, 10, 32), torch.arange(10)[None]
    want = hidden(plain, x, positions)
    torch.testing.assert_close(hidden(model, x, positions), want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.compile(lambda x, p: hidden(model, x, p), backend="aot_eager")(x, positions), want, rtol=1e-4, atol=1e-5)


def test_tables_are_copied_once():
    """All layers read one copy of a half of the tables; where someone has written to these, none does."""
    model = make("Llama")
    epilog.apply(model)
    x = torch.randn(2, 10, 32)
    tables = model.model.rotary_emb(x, torch.arange(10)[None])
    found = [layer.__dict__["_epilog"].find(layer, x, tables) for layer in model.model.layers]
    (_, first, *_), (_, second, *_) = found
    assert first[4] is second[4] and first[5] is second[5]
    assert torch.equal(first[4], tables[0][..., :4]) and torch.equal(first[5], tables[1][..., :4]) and first[4].is_contiguous()
    tables[1].mul_(1)
    assert model.model.layers[0].__dict__["_epilog"].find(model.model.layers[0], x, tables) is None


def test_compile_of_arguments_in_order():
    model, ids = make("Llama").eval(), data()[0]
    want = model(ids).logits
    epilog.apply(model)
    got = torch.compile(model, fullgraph=True, backend="aot_eager")(ids).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_unknown_models_are_left_alone():
    report = epilog.apply(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert not report.replaced and "nothing in it is supported" in str(report)


def test_signatures_stay():
    for model in [make(name) for name in ("Llama", "GPT2", "Gemma2")]:
        epilog.apply(model)
        for module in model.modules():
            assert inspect.signature(module.forward) == inspect.signature(types.MethodType(type(module).forward, module))


@pytest.mark.parametrize("name, batch, chunks", [("Llama", 5, 1), ("Gemma2", 9, 3), ("GPT2", 17, 1)])  # sizes that no other test has plans for
def test_kernels_ahead(name, batch, chunks, monkeypatch):
    """Where compiling takes long, kernels of backward and loss are begun with before they are needed, each once, and none for nothing."""
    plans, used = [], set()

    class Plan(_run.Plan):
        def __init__(self, prog, *given, **how):
            plans.append((prog.name, threading.current_thread() is threading.main_thread(), self))
            super().__init__(prog, *given, **how)

        def run(self, *given):
            used.add(self)
            return super().run(*given)
    monkeypatch.setattr(_run, "Plan", Plan)
    for module in (_run, _op, _patched):
        monkeypatch.setattr(module, "compiles_long", lambda device: True)
    model, ids = make(name), torch.randint(3, 96, (batch, 40))
    epilog.apply(model, loss_chunks=chunks)
    model(input_ids=ids, labels=ids).loss.backward()
    beside = {plan.beside for plan in used} - {None}  # which a CUDA graph would take
    assert not _run.being_made and used | beside == {plan for _, _, plan in plans} and len({p.prog for p in used | beside}) == len(plans)
    assert len(beside) == len({plan.prog for plan in used if plan.prog.lasting})
    ahead = [n for n, is_main, _ in plans if not is_main]
    assert "layer_backward" in ahead and any(["loss" in n for n in ahead]) and "layer_forward" not in ahead


def kept_by(model):
    """Bytes that a step keeps for its backward, but for weights."""
    own, kept = {p.data_ptr() for p in model.parameters()}, {}

    def note(t):
        if t.data_ptr() not in own:
            kept[t.data_ptr()] = max(kept.get(t.data_ptr(), 0), t.numel() * t.element_size())
        return t
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        loss = model(input_ids=data()[0], labels=data()[1]).loss  # which holds them
    del loss
    return sum(kept.values())


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GPT2"])
def test_memory(name):
    """Layers keep no more than they may: as many as it takes make their MLP's first products again. Gradients are within the rule."""
    model = make(name)
    exact, plain = exact_step(model)[0], step(model)
    epilog.apply(model)
    most = kept_by(model)
    report = epilog.apply(model, memory=0)
    layer = model.transformer.h[0] if name == "GPT2" else model.model.layers[0]
    least, (of_all, of_less) = kept_by(model), layer._epilog.bytes
    assert most - least == 2 * 20 * (of_all - of_less) > 0 and "no more can be recomputed" in str(report)
    beside = most - 2 * 20 * of_all  # what is kept by others
    for memory in (2 * 20 * of_all, 2 * 20 * of_all - 1, 20 * (of_all + of_less), 20 * (of_all + of_less) - 1, 2 * 20 * of_less):
        report = epilog.apply(model, memory=memory)
        kept = kept_by(model)
        assert kept - beside <= memory and (kept == most) == (memory >= 2 * 20 * of_all) and "made again" not in str(report)
    within(step(model), plain, exact)
    epilog.apply(model, attention="sdpa", memory=0)
    assert kept_by(model) < most + 2 * 20 * of_less
    with pytest.raises(ValueError, match="memory is -1"):
        epilog.apply(model, memory=-1)

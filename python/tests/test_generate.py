"""Generating with patched models, in transformers' loop and in epilog.generate: the model's tokens and logits, and whose programs made them."""
import copy

import pytest
import torch

import epilog
from families import causal, make

transformers = pytest.importorskip("transformers")
NAMES = ["Llama", "Mistral", "Qwen3", "Gemma2", "GPT2"]


def models(name):
    """A model in f32 as it was, and the same with Epilog's layers; its report."""
    plain, _ = make(name)
    plain = plain.eval()
    if name == "Gemma2":  # sdpa has no soft cap
        plain.config._attn_implementation = "eager"
    patched = copy.deepcopy(plain)
    return plain, patched, epilog.apply(patched)


def prompts(padding=True):
    torch.manual_seed(1)
    ids = torch.randint(3, 96, (3, 10))
    mask = torch.ones_like(ids)
    if padding:
        mask[1, :4], mask[2, :1] = 0, 0
    return ids, dict(attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)


WAYS = {"plain": dict(), "beams": dict(num_beams=3), "chunks": dict(prefill_chunk_size=3), "static": dict(cache_implementation="static"),
        "static, beams": dict(cache_implementation="static", num_beams=2)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_loop_of_transformers(name, way, called):
    """Windows of 4 keys (Mistral, Gemma 2) are passed by. Every call's attention is in a layer's program."""
    (plain, patched, report), (ids, given) = models(name), prompts()
    given.update(WAYS[way], eos_token_id=None, return_dict_in_generate=True, output_logits=True)
    want, got = plain.generate(ids, **given), patched.generate(ids, **given)
    assert torch.equal(got.sequences, want.sequences)
    for mine, theirs in zip(got.logits, want.logits):
        torch.testing.assert_close(mine, theirs)
    layers = sum(called.count(name) for name in ("layer_cached", "layer_fill", "layer_step"))
    assert layers >= 16 and "rest" not in called and "attention" not in called
    assert ("layer_step" in called) == (name in ("Llama", "Qwen3", "Gemma2"))  # where layers of the cache have no window
    assert len(report.left) == 2 if name != "GPT2" else report.left


@pytest.mark.parametrize("name", NAMES)
def test_loop_of_epilog(name, called):
    """Where sequences end by a token, too: as transformers has it. A second call finds all made."""
    (plain, patched, _), (ids, given) = models(name), prompts()
    ends = plain.generate(ids, eos_token_id=None, **given)[:, 13].tolist()
    for last in (None, ends[:1], ends):
        want = plain.generate(ids, eos_token_id=last, **given)
        for _ in range(2):
            got, log_probs = epilog.generate(patched, ids, eos_token_id=last, log_probs=True, **given)
            assert torch.equal(got, want) and log_probs.shape == (3, want.shape[1] - 10)
            mask = torch.nn.functional.pad(given["attention_mask"], (0, log_probs.shape[1]), value=1)
            logits = plain(input_ids=got, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[:, 9:-1]
            ended = torch.stack([torch.isin(got[:, 10:10 + i], torch.tensor(last or [-1])).any(1) for i in range(log_probs.shape[1])], 1)
            theirs = logits.log_softmax(-1).gather(2, got[:, 10:, None])[..., 0].masked_fill(ended, 0)
            torch.testing.assert_close(log_probs, theirs, rtol=1e-4, atol=1e-4)
    assert ("choose" in called) == (name != "GPT2")


def test_padding_is_the_token_that_ends():
    (plain, patched, _), (ids, given) = models("Llama"), prompts(False)
    for batch in (1, 3):
        last = plain.generate(ids[:batch], **{**given, "attention_mask": torch.ones_like(ids[:batch])})[0, 13].item()
        more = {**given, "attention_mask": torch.ones_like(ids[:batch]), "pad_token_id": last, "eos_token_id": last}
        assert torch.equal(epilog.generate(patched, ids[:batch], **more), plain.generate(ids[:batch], **more))


def test_sampling_and_processors():
    """Random numbers are drawn as transformers draws them, behind its processors."""
    (plain, patched, _), (ids, given) = models("Llama"), prompts()
    given.update(do_sample=True, top_k=7, temperature=0.5, repetition_penalty=1.2, eos_token_id=None)
    found = []
    for generate in (plain.generate, lambda *a, **k: epilog.generate(patched, *a, **k)):
        torch.manual_seed(5)
        found.append(generate(ids, **given))
    assert torch.equal(*found)


def test_what_is_left_is_told_once():
    (plain, patched, report), (ids, given) = models("Llama"), prompts()
    before = len(report.left)
    given["attention_mask"][0, 3] = 0
    for _ in range(2):
        assert torch.equal(patched.generate(ids, **given), plain.generate(ids, **given))
    assert len(report.left) == before + 2 and "hides more" in report.left[-1][1]  # a layer each


@pytest.mark.parametrize("what", ["hook", "weight", "head", "restored", "frequencies", "order of layers"])
def test_changed_between_calls(what):
    """A Decoder that was made for what is no longer there is not used."""
    (plain, patched, _), (ids, given) = models("Llama"), prompts()
    with torch.inference_mode():
        epilog.generate(patched, ids, **given)
    if what == "hook":
        fired = []
        patched.model.layers[1].mlp.register_forward_hook(lambda *a: fired.append(1))
    if what == "weight":
        for model in (plain, patched):
            model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(model.model.layers[0].mlp.up_proj.weight.detach().flip(0))
    if what == "head":
        for model in (plain, patched):
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0))
            model.model.norm.weight = torch.nn.Parameter(model.model.norm.weight.detach().flip(0))
    if what == "restored":
        epilog.restore(patched)
    for model in (plain, patched):
        if what == "frequencies":
            model.model.rotary_emb.inv_freq.mul_(0.5)
        if what == "order of layers":  # each has still its place in the cache
            model.model.layers = torch.nn.ModuleList(model.model.layers[::-1])
    given.update(eos_token_id=None)
    (got, found), want = epilog.generate(patched, ids, log_probs=True, **given), plain.generate(ids, output_logits=True, return_dict_in_generate=True, **given)
    assert torch.equal(got, want.sequences)
    torch.testing.assert_close(found, torch.stack(want.logits, 1).log_softmax(-1).gather(2, got[:, 10:, None])[..., 0])
    assert what != "hook" or len(fired) == 8


def test_other_lengths_and_batches():
    plain, patched, _ = models("Llama")
    for batch, length, new in ((2, 5, 9), (2, 30, 3), (3, 30, 110), (1, 1, 1)):
        ids = torch.randint(3, 96, (batch, length))
        given = dict(attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None)
        assert torch.equal(epilog.generate(patched, ids, **given), plain.generate(ids, **given))


def test_refused():
    _, patched, _ = models("Llama")
    ids, given = prompts()
    for more in (dict(num_beams=2), dict(return_dict_in_generate=True), dict(streamer=object()), dict(position_ids=torch.arange(3, 13)[None]),
                 dict(inputs_embeds=torch.zeros(3, 10, 32)), dict(output_hidden_states=True)):
        with pytest.raises(ValueError, match="use model.generate"):
            epilog.generate(patched, ids, **given, **more)


def test_window_of_masks():
    """It is the configuration's, whatever attention was made with."""
    (plain, patched, _), (ids, given) = models("Gemma2"), prompts()
    for model in (plain, patched):
        model.config.sliding_window = 8
    assert torch.equal(epilog.generate(patched, ids, **given), plain.generate(ids, **given))


def test_dropout():
    """It is in every step, as transformers has it."""
    (_, patched, _), (ids, given) = models("Llama"), prompts()
    for layer in patched.train().model.layers:
        layer.self_attn.attention_dropout = 0.5
    assert type(epilog._generate.known_layers(patched)) is str
    epilog.generate(patched, ids, **given)
    assert type(epilog._generate.known_layers(patched.eval())) is list


def test_products_of_e4m3():
    """In training they are in every step, as in the prompt and in the trainer's log-probabilities; in eval nowhere."""
    model = causal("Llama", dict(vocab_size=96, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
                                 num_key_value_heads=2), 0.08)
    epilog.apply(model, fp8=True)
    ids, given = prompts(False)
    given.update(eos_token_id=None)
    trained = []
    for mode in (True, False):
        got, found = epilog.generate(model.train(mode), ids, log_probs=True, **given)
        trained.append(epilog.log_probs(model, got)[:, 9:].detach())
        torch.testing.assert_close(found, trained[-1], rtol=0, atol=1e-4)
    assert not torch.allclose(*trained, rtol=0, atol=1e-3)


class After(transformers.StoppingCriteria):
    """The first sequence ends before the others."""

    def __init__(self, **more):
        self.__dict__.update(more)

    def __call__(self, input_ids, scores, **more):
        return torch.tensor([input_ids.shape[1] > 12, False, False])


@pytest.mark.parametrize("last", [None, 2])
def test_criteria_of_ones_own(last):
    """A token that ends sequences may be told by a criterion alone; where none does, what comes behind an end is no padding."""
    from transformers.generation.stopping_criteria import EosTokenCriteria
    (plain, patched, _), (ids, given) = models("Llama"), prompts()
    given.update(eos_token_id=last)
    ends = plain.generate(ids, **given)[0, 12].item()
    for criterion in (EosTokenCriteria([ends]), After(), After(eos_token_id=ends)):
        more = dict(given, stopping_criteria=transformers.StoppingCriteriaList([criterion]))
        assert torch.equal(epilog.generate(patched, ids, **more), plain.generate(ids, **more))


def test_cache_of_ones_own():
    """It is filled, for who wants to go on with it."""
    (plain, patched, _), (ids, given) = models("Llama"), prompts()
    caches = [transformers.DynamicCache(config=plain.config) for _ in range(2)]
    want, got = plain.generate(ids, past_key_values=caches[0], **given), epilog.generate(patched, ids, past_key_values=caches[1], **given)
    assert torch.equal(got, want) and caches[1].get_seq_length() == caches[0].get_seq_length()
    torch.testing.assert_close(caches[1].layers[1].keys[0], caches[0].layers[1].keys[0])


def test_autocast():
    _, patched, _ = models("Llama")
    ids, given = prompts(False)
    given.update(eos_token_id=None)
    with torch.autocast("cpu", torch.bfloat16):
        got, found = epilog.generate(patched, ids, log_probs=True, **given)
        torch.testing.assert_close(found, epilog.log_probs(patched, got)[:, 9:].detach(), rtol=0.02, atol=0.02)
    assert epilog.generate(patched, ids, log_probs=True, **given).log_probs.shape == found.shape


def test_log_probs_of_several_calls():
    """Each has its own; sequences that were not chosen one by one are refused."""
    _, patched, _ = models("Llama")
    ids, given = prompts(False)
    given.update(eos_token_id=None)
    del given["attention_mask"]
    with epilog.LogProbs(patched) as found:
        for prompt in (ids, ids.flip(1), ids[:, :5], ids[:2]):
            out = patched.generate(prompt, logits_processor=[found], **given)
            want = epilog.log_probs(patched, out)[:, prompt.shape[1] - 1:].detach()
            assert torch.equal(found.of(out), want) and torch.equal(found.of(out), want)
        again = patched.generate(out, logits_processor=[found], **given)  # goes on where the last one ended
        assert found.of(again).shape == (2, 8)
        with pytest.raises(ValueError, match="the last call"):
            found.of(out)
        beams = patched.generate(ids, logits_processor=[found], num_beams=3, num_return_sequences=3, **given)
        with pytest.raises(ValueError, match="the last call"):
            found.of(beams)


def test_heads_that_are_not_known():
    """Cohere multiplies its logits, Granite divides them; Olmo 2 and Gemma 3 do as Llama and Gemma 2."""
    ids, _ = prompts()
    for name in ("Cohere", "Granite"):
        for call in (lambda m: epilog.log_probs(m, ids), lambda m: epilog.generate(m, ids, max_new_tokens=2)):
            with pytest.raises(ValueError, match="not supported"):
                call(make(name)[0])
    for name in ("Olmo2", "Gemma3", "Mixtral"):
        model = make(name)[0].eval()
        want = model(ids, use_cache=False).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        torch.testing.assert_close(epilog.log_probs(model, ids), want)
    model = make("Llama")[0].eval()
    model.lm_head.register_forward_hook(lambda module, args, out: out / 2)
    with pytest.raises(ValueError, match="hooks"):
        epilog.log_probs(model, ids)


def test_a_call_inside_another():
    """As in another thread: what a Decoder has is one call's."""
    (plain, patched, _), (ids, given) = models("Llama"), prompts(False)
    given.update(eos_token_id=None)
    inner = []

    def processor(input_ids, scores):
        if len(inner) < 3:
            inner.append(epilog.generate(patched, ids.flip(1), **given))
        return scores

    got = epilog.generate(patched, ids, logits_processor=[processor], **given)
    assert torch.equal(got, plain.generate(ids, **given))
    assert all(torch.equal(found, plain.generate(ids.flip(1), **given)) for found in inner)

"""One model, the same bits: what a sampler says of the tokens that it chose is, bit for bit, what training says of them.

The log-probability that counts is the one of the head's own program, in f32 (epilog.log_probs, epilog.LogProbs, epilog.generate): what
transformers makes of logits of 16 bits is not promised.
"""
import pytest
import torch

import epilog
import families

transformers = pytest.importorskip("transformers")


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def dtype(request):
    return request.param


def same_bits_model(dtype, layers=8, size=64):
    """A small Llama whose layers are Epilog's; from 512 features on the algebra has something to do in them."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(vocab_size=300, hidden_size=size, intermediate_size=5*size//2, num_hidden_layers=layers, num_attention_heads=4,
                                      num_key_value_heads=2, head_dim=size//4, pad_token_id=0, bos_token_id=1, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.15) if p.dim() > 1 else torch.nn.init.normal_(p, 1, 0.1)
    epilog.apply(model)
    return model


def prompts(lengths):
    """Sequences of these lengths with padding before them, and the mask that says so."""
    rng, most = torch.Generator().manual_seed(len(lengths)), max(lengths)
    ids, mask = torch.zeros(len(lengths), most, dtype=torch.long), torch.zeros(len(lengths), most, dtype=torch.long)
    for i, n in enumerate(lengths):
        ids[i, most - n:], mask[i, most - n:] = torch.randint(3, 300, (n,), generator=rng), 1
    return ids, mask


def documents(lengths):
    """The same sequences without padding."""
    return [row[len(row) - n:] for row, n in zip(prompts(lengths)[0], lengths)]


def by_transformers(model, ids, mask, **more):
    """(sequences, log-probabilities of what was chosen) of transformers' own loop."""
    with epilog.LogProbs(model) as found:
        out = model.generate(ids, attention_mask=mask, logits_processor=[found], **more)
    return out, found.of(out)


def by_epilog(model, ids, mask, **more):
    return epilog.generate(model, ids, attention_mask=mask, log_probs=True, **more)


def alone(model, sequence):
    """Log-probabilities of one sequence without anything beside it, made by a forward that keeps what a backward wants."""
    return trained(model, sequence[None], torch.ones_like(sequence)[None])[0]


def trained(model, sequences, mask):
    """What training says: the same tokens in one forward that keeps what a backward wants."""
    mask = torch.nn.functional.pad(mask, (0, sequences.shape[1] - mask.shape[1]), value=1)
    found = epilog.log_probs(model, sequences, mask)
    assert found.requires_grad
    return found.detach()


WAYS = {"epilog": by_epilog, "dynamic": by_transformers, "static": lambda *given, **more: by_transformers(*given, cache_implementation="static", **more)}
SAMPLED = dict(do_sample=True, temperature=0.8, top_k=50)


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def test_generate_has_the_bits_of_training(way, dtype):
    model = same_bits_model(dtype)
    for length, choice in ((1, dict(do_sample=False)), (129, SAMPLED), (700, dict(do_sample=False))):
        ids, mask = prompts([length, length])
        sequences, found = way(model, ids, mask, max_new_tokens=15, **choice)
        assert torch.equal(found, trained(model, sequences, mask)[:, length - 1:])


def test_generate_where_layers_are_rewritten(way, dtype):
    model = same_bits_model(dtype, 2, 512)
    ids, mask = prompts([70, 33])
    for chunk in (None, 32):
        sequences, found = way(model, ids, mask, max_new_tokens=5, do_sample=False, prefill_chunk_size=chunk)
        assert torch.equal(found, trained(model, sequences, mask)[:, 69:])


def test_generate_by_chunks_of_the_prompt(way, dtype):
    model = same_bits_model(dtype)
    ids, mask = prompts([300])
    whole = way(model, ids, mask, max_new_tokens=10, do_sample=False)
    parts = way(model, ids, mask, max_new_tokens=10, do_sample=False, prefill_chunk_size=77)
    assert torch.equal(whole[0], parts[0]) and torch.equal(whole[1], parts[1])


@pytest.mark.parametrize("lengths", [[130, 7, 64], [700, *range(1, 16)]])
def test_generate_with_padding_before_prompts(lengths, way, dtype):
    """Each sequence has the bits that it has alone, and those of training."""
    model = same_bits_model(dtype)
    ids, mask = prompts(lengths)
    sequences, found = way(model, ids, mask, max_new_tokens=20, do_sample=False)
    most = max(lengths)
    assert torch.equal(found, trained(model, sequences, mask)[:, most - 1:])
    for i in (1, len(lengths) - 1):
        own = slice(most - lengths[i], None)
        single, of_it = way(model, ids[i:i + 1, own], mask[i:i + 1, own], max_new_tokens=20, do_sample=False)
        assert torch.equal(single[0], sequences[i, own]) and torch.equal(of_it[0], found[i])


LENGTHS = [1, 2, 130, 77, 300, 31, 513, 96]


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_moves_no_bit(side, dtype):
    """Sequences that are padded in one batch have the bits that each has alone, whichever side the padding is on."""
    model, (ids, mask) = same_bits_model(dtype), prompts(LENGTHS)
    single = [alone(model, d) for d in documents(LENGTHS)]
    if side != "left":  # to its left end, or some of the way
        shifts = [(ids.shape[1] - n) // (1 if side == "right" else 2) for n in LENGTHS]
        ids, mask = (torch.stack([row.roll(-by) for row, by in zip(t, shifts)]) for t in (ids, mask))
    found = trained(model, ids, mask)
    for row, here, n, want in zip(found, mask, LENGTHS, single):
        first = int(here.argmax())
        assert torch.equal(row[first:first + n - 1], want)


def test_packing_moves_no_bit(dtype):
    """Documents one after another in a row have the bits that each has alone, in any order."""
    model, each = same_bits_model(dtype), documents(LENGTHS)
    single = [alone(model, d) for d in each]
    for order in ([0, 1, 2, 3, 4, 5, 6, 7], [6, 2, 7, 0, 5, 3, 4, 1]):
        packed, positions = torch.cat([each[i] for i in order]), torch.cat([torch.arange(LENGTHS[i]) for i in order])
        found, first = epilog.log_probs(model, packed[None], position_ids=positions[None]).detach()[0], 0
        for i in order:
            assert torch.equal(found[first:first + LENGTHS[i] - 1], single[i])
            first += LENGTHS[i]


SMALL = dict(vocab_size=300, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
OTHERS = {"Mistral": dict(sliding_window=40), "Qwen2": {}, "Qwen3": {}, "Gemma2": dict(sliding_window=40, query_pre_attn_scalar=16)}


@pytest.mark.parametrize("family", [*OTHERS, "GPT2"])
def test_padding_and_packing_of_other_families(family, dtype):
    """With windows, soft caps, norms of heads and biases, too."""
    config = dict(vocab_size=300, n_embd=64, n_layer=2, n_head=4, n_positions=1200) if family == "GPT2" else {**SMALL, **OTHERS[family]}
    model = families.causal(family, config, 0.15, seed=3).to(dtype).eval()
    epilog.apply(model)
    (ids, mask), each = prompts(LENGTHS), documents(LENGTHS)
    single = [alone(model, d) for d in each]
    if family != "Gemma2":  # whose eager attention is another where a query sees no key
        padded = trained(model, ids, mask)
        assert all(torch.equal(row[row.shape[0] + 1 - n:], want) for row, n, want in zip(padded, LENGTHS, single))
    packed = epilog.log_probs(model, torch.cat(each)[None], position_ids=torch.cat([torch.arange(n) for n in LENGTHS])[None])[0]
    for part, want in zip(packed.split([*LENGTHS[:-1], LENGTHS[-1] - 1]), single):
        assert torch.equal(part[:len(want)], want)

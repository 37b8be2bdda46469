"""Generating with models that epilog.apply replaced: log-probabilities as training has them, and a loop whose step is one CUDA graph.

Processors of logits, criteria to stop and everything around them are transformers': its generate() calls `loop` as a method of decoding
(custom_generate). A Decoder is a model, a static cache and the tensors that a step reads and writes, which stay where they are: one
graph serves all positions, and later calls.
"""
import functools
import importlib
import inspect
import threading
import weakref
from typing import NamedTuple

import torch
from torch import nn

from ._attention import generating
from ._known import are_idle, families, plain_type, trouble
from ._op import op
from ._patched import Layer
from .nn import linear_token_statistics

ROOM = 128  # caches have a multiple of it, so that calls of other lengths find their kernels made
AHEAD = 16  # steps between two looks at whether all sequences have ended
UNDERSTOOD = frozenset(("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "cache_position"))
ROPES = "default", "llama3", "linear", "yarn"  # whose frequencies do not depend on the length


def head_text(softcap, name, results, lines):
    z = "cap*tanh((x @ w)/cap)" if softcap else "x @ w"
    return f"{name}(x[T,D], w[V,D]{', cap' if softcap else ''}) -> {results} {{\n    z = {z}\n    {lines}\n}}\n"


CHOOSE = {softcap: op(head_text(softcap, "choose", "(best: i64[T], logp: f32[T])",
                                "best = argmax(z, V)\n    logp = max(z, V) - logsumexp(z, V)")) for softcap in (False, True)}
LOGITS = {softcap: op(head_text(softcap, "logits", "l: f32[T,V]", "l = z")) for softcap in (False, True)}


class Generated(NamedTuple):
    """Sequences as transformers returns them, and of each new token the log-probability that the model gives it, in f32; 0 behind the end."""
    sequences: torch.Tensor
    log_probs: torch.Tensor


def words_of(function):
    """What a function does, in whatever module it stands."""
    code = inspect.unwrap(function).__code__
    return code.co_code, code.co_names


@functools.lru_cache(None)
def is_capped(forward):
    """Of a model's forward: do its logits have the soft cap of its configuration? None where they may be something else than its head's product.
    Many a model has that of Llama, word for word."""
    for home in ("llama", "gemma2"):
        importlib.import_module(f"transformers.models.{home}.modeling_{home}")
    known = [words_of(f.head.forward) for f in families() if f.head is not None]
    return "final_logit_softcapping" in words_of(forward)[1] if words_of(forward) in known else None


def head_of(model):
    """The model below its head, the head's weight and soft cap."""
    base, head, softcap = getattr(model, model.base_model_prefix, None), model.get_output_embeddings(), getattr(model.config, "final_logit_softcapping", None)
    if base is None or base is model or not isinstance(head, nn.Linear) or head.bias is not None:
        raise ValueError(f"{type(model).__name__} has no LM head that is a linear layer without bias; log-probabilities need one")
    if torch.compiler.is_compiling():  # where nobody can look at a function
        return base, head.weight, softcap
    capped = is_capped(plain_type(model).forward)
    if capped is None:
        raise ValueError(f"{type(model).__name__} may compute its logits from more than the product of its head: its forward is not supported")
    if plain_type(head) is not nn.Linear or "forward" in head.__dict__ or (head._forward_hooks and not are_idle(head._forward_hooks)):
        raise ValueError(f"the head of {type(model).__name__} has hooks, or is not a plain linear layer; log-probabilities need one")
    return base, head.weight, softcap if capped else None


def positions_of(attention_mask):
    """Places of tokens in their sequences, as transformers counts them when it generates."""
    return None if attention_mask is None else (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def log_probs(model, ids, attention_mask=None, position_ids=None, **more):
    """Of each token of ids[B,S] but the first: the logarithm of its probability behind those before it, f32[B,S-1], as training has it
    (it can be differentiated). With an attention_mask positions count from a sequence's first token, as in generating; position_ids that begin
    anew tell documents apart, which are packed. What tokens outside of the mask get means nothing, nor what a document's first token gets."""
    base, weight, softcap = head_of(model)
    position_ids = positions_of(attention_mask) if position_ids is None else position_ids
    found = base(input_ids=ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False, **more)
    labels = nn.functional.pad(ids[:, 1:], (0, 1))
    return linear_token_statistics(found.last_hidden_state, weight, labels, softcap).log_prob[:, :-1]


class LogProbs:
    """Log-probabilities of the tokens that transformers' own generate() chooses, greedily or by sampling:

        with epilog.LogProbs(model) as found:
            out = model.generate(**inputs, logits_processor=[found])
        found.of(out)       # of all new tokens, f32[B,N]
    """

    def __init__(self, model):
        self.model, self.hidden, self.ids, self.asked = model, [], None, False

    def __enter__(self):
        self.hook = self.model.get_output_embeddings().register_forward_pre_hook(self.see)
        return self

    def __exit__(self, *error):
        self.hook.remove()

    def see(self, module, args):
        self.last = args[0][:, -1]

    def __call__(self, input_ids, scores):
        if self.asked or self.ids is None or not torch.equal(input_ids[:, :-1], self.ids):  # another call of generate()
            self.hidden, self.asked = [], False
        self.hidden.append(self.last)
        self.ids = input_ids
        return scores

    def of(self, sequences):
        """Of the last call's."""
        if self.ids is None or not torch.equal(sequences[:, :-1], self.ids):
            raise ValueError("these are not the sequences from the last call of generate() (greedy or sampling)")
        self.asked, (_, weight, softcap) = True, head_of(self.model)
        new = sequences[:, sequences.shape[1] - len(self.hidden):]
        return linear_token_statistics(torch.stack(self.hidden, 1), weight, new, softcap).log_prob


class Modules:
    """A model's layers by way of its modules, whatever cache it has."""

    def __init__(self, base, cache, mask):
        self.base, self.cache, self.mask = base, cache, mask

    def prefill(self, ids, chunk):
        """The last token's hidden state, [B,D]. Of ids what the cache has already is left out."""
        positions, past = positions_of(self.mask), int(self.cache.get_seq_length())
        ids = ids[:, ids.shape[1] + past - self.mask.shape[1]:]
        for part in ids.split(chunk or ids.shape[1], 1):
            end = past + part.shape[1]
            found = self.base(input_ids=part, attention_mask=self.mask[:, :end], position_ids=positions[:, past:end],
                              past_key_values=self.cache, use_cache=True)
            past = end
        return found.last_hidden_state[:, -1]

    def hidden(self, token):
        """The same of one more token for each sequence."""
        self.mask = torch.cat((self.mask, self.mask.new_ones(self.mask.shape[0], 1)), 1)
        found = self.base(input_ids=token[:, None], attention_mask=self.mask, position_ids=positions_of(self.mask)[:, -1:],
                          past_key_values=self.cache, use_cache=True)
        return found.last_hidden_state[:, -1]


class Decoder:
    """A model's layers as programs on tensors that stay where they are, a static cache among them; on a GPU as CUDA graphs."""

    def __init__(self, model, layers, batch, room):
        from transformers.cache_utils import Cache, StaticLayer
        self.base, self.weight, softcap = head_of(model)
        self.made_of, self.most, device = made_of(model, layers), room, self.weight.device
        cached = [StaticLayer(max_cache_len=room) for _ in layers]
        self.cache, self.layers = Cache(layers=cached), []
        whole = lambda *sizes: torch.zeros(sizes, dtype=torch.long, device=device)
        self.token, self.position, self.at, self.count = whole(batch), whole(batch), whole(), whole()
        self.start, self.ended = whole(batch).int(), whole(batch).bool()
        self.new, self.pad, self.last = whole(batch, room), whole(), whole(1) - 1
        self.log_probs = torch.zeros(batch, room, device=device)
        number = lambda n: torch.tensor(n, dtype=torch.float32, device=device)  # one that is stored by a call costs a launch
        self.cap = [] if softcap is None else [number(softcap)]
        for (parts, before, out, behind), layer in zip(layers, cached):
            groups, heads, size, _ = before[1].shape
            empty = before[1].new_empty(batch, groups, 1, size)
            layer.lazy_initialization(empty, empty)
            window = parts.window()
            program = parts.programs[True, bool(window)].step
            numbers = [number(n) for n in parts.numbers + ([window] if window else [])]
            self.layers.append((program, before[:4], before[6:], layer, [out.view(-1, groups, heads, size), *behind, number(parts.eps)], numbers))
        self.cos, self.sin = (t[0, :, :t.shape[2] // 2].clone() for t in self.tables())
        self.replay, self.busy = {}, threading.Lock()

    def tables(self):
        x = self.weight.new_empty(1, self.most, 1)
        return self.base.rotary_emb(x, position_ids=torch.arange(self.most, device=x.device)[None])

    def begin(self, mask, pad, last):
        """Of a call: what its sequences look like, and which tokens end them."""
        self.cache.reset()
        for t in (self.at, self.count, self.ended, self.log_probs):
            t.zero_()
        self.pad.fill_(pad)
        if self.last.shape != last.shape:
            with torch.inference_mode(False):
                self.last, self.replay = torch.zeros_like(last), {}
        self.last.copy_(last)
        self.new.fill_(pad)
        length = mask.sum(1)
        self.start.copy_(mask.shape[1] - length)
        self.position.copy_(length)
        self.at.fill_(mask.shape[1])
        for table, now in zip((self.cos, self.sin), self.tables()):
            table.copy_(now[0, :, :table.shape[1]])

    def through(self, x, cos, sin):
        """All layers."""
        for program, before, more, layer, behind, numbers in self.layers:
            x = program(x, *before, cos, sin, *more, layer.keys, layer.values, self.at, *behind, self.start, self.at, *numbers)[0]
        return x

    def step(self):
        """The hidden state of each sequence's token, [B,D]."""
        x = self.through(self.base.embed_tokens(self.token), self.cos[self.position], self.sin[self.position])
        self.position += 1
        self.at += 1
        return self.base.norm(x)

    def choose(self, hidden):
        """Takes the most likely tokens, and their log-probabilities, in."""
        best, log_prob = CHOOSE[bool(self.cap)](hidden, self.weight, *self.cap)
        self.token.copy_(torch.where(self.ended, self.pad, best))
        self.log_probs.index_copy_(1, self.count[None], torch.where(self.ended, 0, log_prob)[:, None])
        self.new.index_copy_(1, self.count[None], self.token[:, None])
        self.ended |= (self.token[:, None] == self.last).any(1)
        self.count += 1

    def greedy(self):
        self.choose(self.step())

    def run(self, name):
        """One of the methods, by its graph where there is one."""
        if not self.weight.is_cuda:
            return getattr(self, name)()
        if name not in self.replay:
            self.replay[name] = self.capture(name)
        graph, found = self.replay[name]
        graph.replay()
        return found

    def capture(self, name):
        """Its kernels are made by a first call, which is undone as the second one is: it writes where the next step does."""
        state = self.token, self.position, self.at, self.count, self.ended, self.new, self.log_probs
        kept, stream = [t.clone() for t in state], torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            getattr(self, name)()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = getattr(self, name)()
        for t, old in zip(state, kept):
            t.copy_(old)
        return graph, found

    def prefill(self, ids, mask, chunk):
        return Modules(self.base, self.cache, mask).prefill(ids, chunk)

    def hidden(self, token):
        self.token.copy_(token)
        return self.run("step")


def made_of(model, layers):
    """What a Decoder is made of, by its values: it reads tensors where they lie."""
    base, weight, softcap = head_of(model)
    tensors = [weight, base.norm.weight, base.embed_tokens.weight, base.rotary_emb.inv_freq]
    for _, before, out, behind in layers:
        tensors += [*before[:4], *before[6:], out, *behind]
    eps = [base.norm.__dict__.get(name) for name in ("eps", "variance_epsilon")]
    return [softcap, *eps, *((t.data_ptr(), t.dtype) for t in tensors)]


def known_layers(model):
    """What programs of a step read of each layer, or in words why it is not known."""
    base, weight, _ = head_of(model)
    family = next((f for f in families() if f.model is not None and plain_type(base) is f.model and not f.known.gpt2), None)
    if family is None:
        return f"{type(base).__name__} is not supported"
    rotary, norm, embed = (base._modules.get(name) for name in ("rotary_emb", "norm", "embed_tokens"))
    why = trouble(base, family.model) or trouble(rotary, family.rotary) or trouble(norm, family.norm) or trouble(embed, type(embed))
    if why is not None:
        return why
    if getattr(rotary, "rope_type", None) not in ROPES:
        return "its rotary frequencies depend on the length"
    x, found = weight.new_empty(1, 1, base.config.hidden_size), []
    tables = rotary(x, position_ids=torch.zeros(1, 1, dtype=torch.long, device=x.device))
    for layer in base.layers[:base.config.num_hidden_layers]:
        parts = layer.__dict__.get("_epilog")
        given = parts.find(layer, x, tables) if isinstance(parts, Layer) and trouble(layer, parts.kind) is None else None
        if given is None or not parts.attends(given[0], x):
            return "some of its layers are not Epilog's, or were changed"
        if given[0].layer_idx != len(found) or parts.window() not in (None, getattr(base.config, "sliding_window", None)):  # that of masks is the latter
            return "some of its layers have another place in the cache, or another window than the masks"
        if given[0].training and given[0].attention_dropout:
            return "dropout is on"
        if layer.training and parts.programs8:
            return "some layers use e4m3 products in training"
        attention, before, out, behind = given
        found.append((parts, parts.shaped(before)[1], out, behind))
    return found


decoders = weakref.WeakKeyDictionary()


def decoder_for(model, batch, length):
    """The Decoder of a model, made anew where the last call's is not for this one; in words why there is none."""
    layers, found = known_layers(model), decoders.get(model)
    if type(layers) is str:
        return layers
    if found is None or found.token.shape[0] != batch or found.most < length or found.made_of != made_of(model, layers):
        decoders.pop(model, None)
        with torch.inference_mode(False), torch.no_grad():  # its tensors are for calls in any mode
            found = decoders[model] = Decoder(model, layers, batch, -(-length // ROOM) * ROOM)
    return found


def padded_left(mask):
    """Are the tokens of all sequences at the end?"""
    return bool((mask[:, 1:] >= mask[:, :-1]).all()) and bool(mask[:, -1].all())


def only_ends(criteria):
    """Do sequences end by their length or by a token, and nothing else?"""
    from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
    return all(type(c) in (EosTokenCriteria, MaxLengthCriteria) for c in criteria)


def by_graphs(decoder, input_ids, mask, most, chunk, log_probs):
    """The greedy loop, all of whose tensors are the Decoder's: the host looks at them now and then."""
    decoder.choose(decoder.prefill(input_ids, mask, chunk))
    count, new = 1, most - input_ids.shape[1]
    while count < new and not (count % AHEAD == 0 and decoder.ended.all()):
        decoder.run("greedy")
        count += 1
    if decoder.ended.all():  # for how long it has been so
        ended = (decoder.new[:, :count, None] == decoder.last).any(2).cumsum(1) > 0
        count = count + 1 - int(ended.all(0).sum())
    sequences = torch.cat((input_ids, decoder.new[:, :count]), 1)
    return Generated(sequences, decoder.log_probs[:, :count].clone()) if log_probs else sequences


def by_steps(steps, hidden, weight, softcap, ids, processors, criteria, config, log_probs):
    """The loop of transformers, on logits in f32."""
    cap, ended, found = [] if softcap is None else [softcap], torch.zeros_like(ids[:, 0]).bool(), []
    pads = config._pad_token_tensor is not None and any(hasattr(c, "eos_token_id") for c in criteria)
    while True:
        scores = processors(ids, LOGITS[bool(cap)](hidden, weight, *cap))
        token = torch.multinomial(scores.softmax(-1), 1)[:, 0] if config.do_sample else scores.argmax(-1)
        token = torch.where(ended, config._pad_token_tensor, token) if pads else token
        if log_probs:
            found.append(linear_token_statistics(hidden, weight, token, softcap).log_prob.masked_fill(ended, 0))
        ids = torch.cat((ids, token[:, None]), 1)
        ended = ended | criteria(ids, None)
        if ended.all():
            return Generated(ids, torch.stack(found, 1)) if log_probs else ids
        hidden = steps.hidden(token)


def refuse_others(given, mask):
    """Of what a model is given, what is not understood is an error. Positions are transformers', unless someone else gave them."""
    positions = given.get("position_ids")
    others = [name for name, value in given.items() if name not in UNDERSTOOD and value is not None]
    if positions is not None and bool((positions != positions_of(mask))[mask.bool().expand(mask.shape)].any()):
        others.append("your own position_ids")
    if others:
        raise ValueError(f"epilog.generate does not support {', '.join(others)}: use model.generate")


def ends_of(criteria, device):
    """The tokens that end a sequence, by criteria that only_ends knows; -1 where there is none."""
    from transformers.generation.stopping_criteria import EosTokenCriteria
    found = [c.eos_token_id.to(device).long() for c in criteria if type(c) is EosTokenCriteria]
    return torch.cat(found) if found else torch.full((1,), -1, device=device)


def loop(model, input_ids, logits_processor, stopping_criteria, generation_config, log_probs=False, keeps_cache=False, **given):
    """A method of decoding, as transformers wants it (custom_generate). keeps_cache: the cache is someone's who wants it filled."""
    from transformers.cache_utils import DynamicCache
    config, (base, weight, softcap) = generation_config, head_of(model)
    if config.num_beams > 1 or config.return_dict_in_generate:
        raise ValueError("epilog.generate chooses greedily or samples, and returns sequences: use model.generate for beams and everything else")
    cache, mask, most = given.get("past_key_values"), given.get("attention_mask"), stopping_criteria.max_length
    cache = DynamicCache(config=base.config) if cache is None else cache
    mask = torch.ones_like(input_ids) if mask is None else mask
    refuse_others(given, mask)
    steps = None
    own_cache = type(cache) is DynamicCache and cache.get_seq_length() == 0 and not keeps_cache
    if own_cache and most is not None and padded_left(mask) and not torch.is_autocast_enabled(weight.device.type):
        steps = decoder_for(model, input_ids.shape[0], most)
    if type(steps) is not Decoder or not steps.busy.acquire(blocking=False):  # a call in another thread, or around this one, has it
        steps = Modules(base, cache, mask)
        return by_steps(steps, steps.prefill(input_ids, config.prefill_chunk_size), weight, softcap, input_ids, logits_processor,
                        stopping_criteria, config, log_probs)
    try:
        pad = config._pad_token_tensor
        steps.begin(mask, 0 if pad is None else int(pad), ends_of(stopping_criteria, input_ids.device))
        if not config.do_sample and not logits_processor and only_ends(stopping_criteria):
            return by_graphs(steps, input_ids, mask, most, config.prefill_chunk_size, log_probs)
        return by_steps(steps, steps.prefill(input_ids, mask, config.prefill_chunk_size), weight, softcap, input_ids, logits_processor,
                        stopping_criteria, config, log_probs)
    finally:
        steps.busy.release()


def generate(model, inputs=None, log_probs=False, **given):
    """As model.generate, greedily or by sampling, of a model that epilog.apply replaced: a step is one program a layer over a static cache,
    and on a GPU a CUDA graph. What is given is transformers' (max_new_tokens, attention_mask, do_sample, temperature, logits_processor,
    stopping_criteria, prefill_chunk_size, …). Processors see logits in f32. Cache and graph stay for the next call with so many sequences,
    until epilog.restore. log_probs: returns Generated(sequences, log_probs)."""
    if given.get("streamer") is not None or given.get("assistant_model") is not None:
        raise ValueError("use model.generate for streamer and assistant_model")
    token = generating.set(True)
    try:
        with torch.cuda.device_of(head_of(model)[1]):
            return model.generate(inputs, custom_generate=loop, log_probs=log_probs, keeps_cache=given.get("past_key_values") is not None, **given)
    finally:
        generating.reset(token)

"""Epilog's attention among those of transformers: for every implementation it takes the place of there is one, by the name epilog_….

An implementation is two functions. The one that makes masks returns a Causal where a query sees the keys up to its own position, or the
last of them by a window, without those that are padding or of other documents. That is a mask like any other to whoever looks at it,
but it is made only then. What it lets be seen (Seen) is told by a few numbers for each sequence or token, which are made on the device
once a mask, and read by every layer. Only such a mask, and none at all where the old attention takes that for causal, is for Epilog.
Everything else is the old implementation's, mask and attention, and so is what Epilog is not fast at or cannot do: other GPUs, dropout,
weights as a result.
"""
import contextvars
import copy
import functools
import sys
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from ._known import Names, are_numbers, fit, own_function, watched
from .nn import attention

PREFIX = "epilog_"
REPLACED = ("sdpa", "eager")
# What a layer may be told that does not change attention; anything else is for the model's own.
# How flash-attention is told of documents is read by no other: the mask has them, by positions that begin anew.
HARMLESS = frozenset(("position_ids", "use_cache", "output_hidden_states", "return_dict", "num_items_in_batch", "shift_labels", "ignore_index",
                      "labels", "cache_position", "logits_to_keep", "token_type_ids", "sliding_window", "cu_seq_lens_q", "cu_seq_lens_k",
                      "max_length_q", "max_length_k", "seq_idx"))
capabilities, known = {}, {}
in_graph = {}  # what masks are made of, as it was when a model was given Epilog's attention: torch.compile cannot ask whose it is
generating = contextvars.ContextVar("generating", default=False)  # in epilog.generate: where transformers compiles a step, a mask is a tensor


def fits(device, dtype, size):
    """Is attention Epilog's for such heads: one kernel on the CPU or on Hopper? On other GPUs it has not been held against PyTorch's."""
    if device.type != "cuda":
        return device.type == "cpu"
    if device not in capabilities:
        capabilities[device] = torch.cuda.get_device_capability(device)
    if dtype == torch.float32 and torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
    return capabilities[device][0] == 9 and dtype in (torch.bfloat16, torch.float16) and size % 8 == 0 and 8 <= size <= 256


def is_full(mask, keys):
    """Does a mask hide none of so many keys? Those that it does not reach are hidden. Asked of a GPU's, it is waited for, as transformers does for PyTorch's attention; not while tracing."""
    return mask is None or (not torch.compiler.is_compiling() and type(mask) is torch.Tensor and mask.shape[-1] == keys and bool(mask.all()))


class Seen(NamedTuple):
    """What a mask lets a query see of the keys up to its own. window: how many of the last, 0 for all. starts and lengths: i32[B], the first
    key and the one behind the last that are no padding. documents: i32[B,S] of queries and of keys, of which it sees those with its own number.
    offset: keys in a cache before that of the first query, a number or a tensor of one. spread: some query sees no key, as padding before a
    sequence does not, and has the mean of all values, as in eager attention; else it would have 0."""
    window: int = 0
    starts: torch.Tensor = None
    lengths: torch.Tensor = None
    documents: tuple = None
    offset: object = 0
    spread: bool = False


def kind_of(seen):
    """Which of a layer's programs it is for, without a cache (_layers.py)."""
    kind = "documents" if seen.documents is not None else "padded" if seen.lengths is not None else "starts" if seen.starts is not None else "plain"
    return kind + ", spread" * seen.spread


def told_of(seen):
    """What such a program reads for it, beside the window."""
    return [t for t in (seen.starts, seen.lengths, *(seen.documents or ())) if t is not None]


def without_padding(window, mask):
    """What a padding mask[B,R] leaves of a window. Where no sequence has a hole two numbers of each tell it, else every key does, and so in a
    graph: whether one has a hole is waited for, as transformers waits for whether there is padding at all."""
    documents = torch.ones_like(mask, dtype=torch.int32), mask.to(torch.int32)
    if torch.compiler.is_compiling():
        return Seen(window, documents=documents, spread=True)
    keys, count = mask.shape[1], mask.cumsum(1)
    count = torch.cat((count[:, :window], count[:, window:] - count[:, :-window]), 1) if 0 < window < keys else count
    here = torch.arange(keys, device=mask.device, dtype=torch.int32)
    starts, lengths = torch.where(mask, here, keys).amin(1).to(torch.int32), torch.where(mask, here + 1, 0).amax(1).to(torch.int32)
    before = (lengths == keys) | (starts == keys)  # one that has no token yet is padding before it
    whole = mask.sum(1) == (lengths - starts).clamp(min=0)
    full, before, whole, all_see = torch.stack((mask.all(), before.all(), whole.all(), (count > 0).all())).tolist()
    if full:
        return Seen(window)
    spread = not all_see
    return Seen(window, starts, None if before else lengths, spread=spread) if whole else Seen(window, documents=documents, spread=spread)


def is_ours(config):
    return (getattr(config, "_attn_implementation", None) or "").startswith(PREFIX)


def old_name(config):
    """The implementation that Epilog's took the place of."""
    return config._attn_implementation.removeprefix(PREFIX)


def current(old, module):
    """What an implementation does at this time: its attention and its masks."""
    attend = sys.modules["transformers.modeling_utils"].ALL_ATTENTION_FUNCTIONS
    mask = sys.modules["transformers.masking_utils"].ALL_MASK_ATTENTION_FUNCTIONS
    return attend[old] if old in attend else eager_of(module), mask[old]


def eager_of(module):
    """What "eager" is to an attention: the function of that name beside its class, or beside one that it is derived from."""
    for kind in type(module).__mro__:
        found = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
        if found is not None:
            return found


def own(old, module):
    """What it is in transformers; None where someone put another function there."""
    home, name = type(module).__module__.removeprefix("transformers."), "eager_attention_forward"
    home, name = (home, name) if old == "eager" else ("integrations.sdpa_attention", "sdpa_attention_forward")
    return own_function(home, name), own_function("masking_utils", old + "_mask")


def is_known(old, module):
    """Is what Epilog's attention stands for still what it was?"""
    found = known.get((old, type(module)))
    return found is not None and current(old, module) == found[0] and found[1].changed() is None


def is_causal(config):
    """Does transformers make causal masks for it? It is a switch of models that look both ways."""
    return getattr(config, "is_causal", True) is True


def is_plain(module, query, keys, mask, dropout, more):
    """Is it for Epilog: causal attention of a sequence to itself? query: [B,S,H,E] or what it is made of; keys: their number.
    A mask has to be one of mask_of's, for so many keys."""
    return keys == query.shape[1] and (mask is None or mask.shape[-1] == keys) and is_usual(module, dropout, more)


def is_usual(module, dropout, more):
    """Is it causal attention, and nothing asked of it that changes what it is?"""
    if dropout or not getattr(module, "is_causal", True) or not is_causal(module.config):
        return False
    for name, value in more.items():
        if name == "is_causal" and value is not None and value is not True:
            return False
        if name not in HARMLESS and name != "is_causal" and value is not None and value is not False:
            return False
    return True


class Causal(torch.Tensor):
    """A mask that nobody has made yet: a query sees the keys up to its own position that its Seen tells. Whatever is done with
    it is done with the mask that its Unmade makes; from then on it is a mask like any other, since it may have been changed."""
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, unmade, shape, dtype, device):
        mask = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        mask.unmade = unmade
        return mask

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        mask = args[0] if args else None
        if function is torch.ops.aten.detach.default and mask.unmade.made is None:  # as checkpoints do with all that they are given
            return Causal(mask.unmade, mask.shape, mask.dtype, mask.device)
        args, kwargs = tree_map_only(Causal, Causal.changed, (args, kwargs or {}))
        return function(*args, **kwargs)

    @property
    def _epilog_seen(self):
        return self.unmade.seen

    def mask(self):
        """The mask itself, to be read."""
        return self.unmade.mask()

    def changed(self):
        """The mask itself, which may be written to."""
        self.unmade.seen = None
        return self.mask()


class Unmade:
    """What a Causal is to become, and all that were detached from it: they have one memory."""

    def __init__(self, make, seen):
        self.make, self.seen, self.made = make, seen, None

    def mask(self):
        if self.made is None:
            self.made = self.make()
        return self.made


def by_mask(name):
    return lambda self, *args, **kwargs: getattr(self.changed(), name)(*args, **kwargs)


for method in ("__repr__", "__deepcopy__", "__reduce_ex__", "__array__", "__dlpack__", "numpy", "tolist", "data_ptr", "untyped_storage"):
    setattr(Causal, method, by_mask(method))  # what does not come by way of the dispatcher


def seen_through(mask, old):
    """What a mask lets a sequence see of itself; None where nobody knows. None at all is what the old attention takes it for."""
    if mask is None:
        return Seen() if old == "sdpa" else None
    seen = getattr(mask, "_epilog_seen", None)
    return seen if seen is not None and type(seen.offset) is int and seen.offset == 0 else None


def seen_in_cache(mask, old, queries, keys):
    """The same of keys in a cache, after those of the call are in it."""
    if mask is None:
        return Seen(offset=keys - queries) if old == "sdpa" and queries in (1, keys) else None
    seen = getattr(mask, "_epilog_seen", None) if mask.shape[-2:] == (queries, keys) else None
    return seen if seen is not None and seen.documents is None and seen.lengths is None else None


def made_by(function, maker):
    """Is a function one that a function of transformers makes?"""
    return maker is not None and getattr(function, "__code__", None) in maker.__code__.co_consts


def held_by(function, name):
    """What a function holds by a name of those around it."""
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def both_in(function):
    """The two functions that one is the conjunction of; None where it is none."""
    inner = held_by(function, "mask_functions") if made_by(function, own_function("masking_utils", "and_masks")) else None
    return inner if type(inner) is tuple and len(inner) == 2 else None


def documents_in(function):
    """Of a function that says of a mask which keys are seen: what it is but for documents, and these, None where there are none. Where it
    counts positions from each document's first token, they have to be as the tokens lie: then it is the same."""
    packing, counting = (own_function("masking_utils", n) for n in ("packed_sequence_mask_function", "remap_positions_for_packed_sequence"))
    parts = both_in(function) or ()
    packed = [f for f in parts if made_by(f, packing)]
    if len(packed) != 1:
        return function, None
    (rest,), documents = [f for f in parts if f is not packed[0]], held_by(packed[0], "packed_sequence_mask")
    if made_by(rest, counting):
        positions, rest = held_by(rest, "position_ids"), held_by(rest, "mask_function")
        if positions.shape != documents.shape or not bool(((positions.diff() == 1) | (documents.diff() != 0)).all()):
            return function, None
    return rest, documents.to(torch.int32)


def window_in(function, local_size):
    """What a function that says of a mask which keys are seen has of a window, 0 for none; None where it is unknown. Known are the two of
    transformers, by identity."""
    causal, near = (own_function("masking_utils", n) for n in ("causal_mask_function", "sliding_window_overlay"))
    if causal is None or function is causal:
        return 0 if causal is not None and local_size is None else None
    parts = both_in(function)
    if parts is None or parts[1] is not causal or not made_by(parts[0], near):
        return None
    window = held_by(parts[0], "sliding_window")
    return window if type(window) is int and window == local_size and window > 0 else None


def said(function, local_size):
    """Of a function that says of a mask which keys are seen: the window, None where it is unknown, and documents, None where there are none."""
    function, documents = documents_in(function)
    return window_in(function, local_size), documents


def said_in_graph(function, local_size, config, batch, keys, device, packed):
    """The same where torch.compile looks, which does not show what a function holds; a model of these has none of this form but for windows
    and documents. A document begins where a query does not see the key before its own. packed: may there be documents?"""
    causal, conjunction = in_graph.get("causal"), in_graph.get("and")
    if function is causal:
        return 0 if causal is not None and local_size is None else None, None
    window = 0 if local_size is None and packed else local_size if local_size == getattr(config, "sliding_window", None) else None
    if window is None or window == 1 or getattr(config, "attention_chunk_size", None) is not None or function.__code__ is not conjunction:
        return None, None
    if not packed:
        return window, None
    here = torch.arange(keys, device=device)
    before = function(torch.arange(batch, device=device)[:, None], 0, here, (here - 1).clamp(min=0))
    return window, (~before).expand(batch, keys).cumsum(1, dtype=torch.int32)


def seen_alone(window, documents, mask):
    """What a sequence sees of itself, by a padding mask[B,R] or None; None where nobody knows."""
    if mask is None:
        return Seen(window, documents=None if documents is None else (documents, documents))
    plain = documents is None and type(mask) is torch.Tensor and mask.dim() == 2 and mask.dtype == torch.bool
    return without_padding(window, mask) if plain else None


def seen_of_cache(window, batch, q_length, q_offset, kv_offset, attention_mask, device):
    """The same of keys in a cache: None where a mask hides more than what comes before each sequence's first token. Asked of a GPU's, it is
    waited for."""
    if attention_mask is None:
        return Seen(window, offset=q_offset - kv_offset)
    if type(attention_mask) is not torch.Tensor or attention_mask.dim() != 2 or attention_mask.shape[0] != batch:
        return None
    length = attention_mask.shape[1]
    start = length - attention_mask.sum(1, dtype=torch.int32)
    shown = (attention_mask == (torch.arange(length, device=device) >= start[:, None])).all() & (q_offset + q_length <= length)
    shown, spread = torch.stack((shown, (start > q_offset).any())).tolist()
    return Seen(window, (start - kv_offset).clamp(min=0).int(), offset=q_offset - kv_offset, spread=spread) if shown else None


LONELY = ("used the model's own attention in a call where a query sees no key, as with left padding: eager attention lets it see all keys, and "
          "has gradients for that; sdpa gives it 0")


def lonely(mask):
    """A mask of which the report is to tell why it is not Epilog's."""
    if not torch.compiler.is_compiling():
        mask._epilog_lonely = True
    return mask


def is_lonely(mask):
    return getattr(mask, "_epilog_lonely", False)


def mask_of(old):
    """The function that makes masks, in place of `old`'s."""
    def make(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None,
             allow_is_causal_skip=True, dtype=torch.float32, config=None, device="cpu", **kwargs):
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        compiling, static = torch.compiler.is_compiling(), type(q_offset) is torch.Tensor
        q_offset = q_offset.clone() if static and not compiling else q_offset  # the cache counts on in it
        more = {} if mask_function is None else dict(mask_function=mask_function)
        carry = functools.partial(
            ALL_MASK_ATTENTION_FUNCTIONS[old], batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
            kv_offset=kv_offset, dtype=dtype, config=config, device=device, **more, **kwargs)
        own = functools.partial(carry, attention_mask=attention_mask, allow_is_causal_skip=allow_is_causal_skip)
        if config is None or mask_function is None or not is_causal(config) or watched():
            return own()
        size, local_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads, kwargs.get("local_size")
        if not fits(torch.device(device), dtype, size) or (compiling and kwargs.get("use_vmap")):  # a function of someone else's is in it
            return own()
        packed = not allow_is_causal_skip and attention_mask is None  # where transformers looks for documents, as it always does in a graph
        window, documents = (said_in_graph(mask_function, local_size, config, batch_size, kv_length, device, packed) if compiling
                             else said(mask_function, local_size))
        alone = not static and q_offset == kv_offset == 0 and q_length == kv_length and (attention_mask is None or attention_mask.shape[-1] == kv_length)
        skip = allow_is_causal_skip and old == "sdpa" and not compiling and local_size is None  # its own sign of a causal mask: none
        if window is None or (documents is not None and not alone) or (
                not alone and (compiling or (static and torch.device(device).type == "cuda" and not generating.get()))):
            return own()
        if alone:
            seen = seen_alone(window, documents, attention_mask)
        elif skip and q_length == 1 and is_full(attention_mask, kv_length):
            return own()
        else:
            seen = seen_of_cache(window, batch_size, q_length, q_offset, kv_offset, attention_mask, device)
        if seen is None:
            return own()
        if old == "sdpa":
            seen = seen._replace(spread=False)
        elif seen.spread and (seen.documents is not None or torch.is_grad_enabled()):
            return lonely(own())
        if skip and alone and kind_of(seen) == "plain":
            return carry(attention_mask=None, allow_is_causal_skip=True)
        if compiling:  # where nobody reads it, it is not in the graph
            mask = carry(attention_mask=attention_mask, allow_is_causal_skip=False)
            mask._epilog_seen = seen
            return mask
        return Causal(Unmade(functools.partial(carry, attention_mask=attention_mask, allow_is_causal_skip=False), seen),
                      (batch_size, 1, q_length, kv_length), torch.bool if old == "sdpa" else dtype, device)
    return make


def attention_of(old):
    """The function that is attention, in place of `old`'s. Tensors are [B,H,S,E]."""
    def attend(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        softcap, (q, k, v) = kwargs.get("softcap"), (t.transpose(1, 2) for t in (query, key, value))
        weights = old == "eager" and module._forward_hooks  # they are what a hook looks for
        seen, more = seen_through(attention_mask, old), {n: x for n, x in kwargs.items() if n != "softcap"}
        asked = seen is not None and are_numbers((scaling, softcap)) and softcap == getattr(module, "attn_logit_softcapping", None)
        if (asked and is_plain(module, q, k.shape[1], attention_mask, dropout, more) and not weights and is_known(old, module)
                and not watched() and fit(q, (k, v)) and fits(q.device, q.dtype, q.shape[3])
                and (q.is_cpu or all(t.is_contiguous() for t in (q, k, v)))):
            return attention(q, k, v, True, seen.window or None, softcap, scaling, starts=seen.starts, lengths=seen.lengths, documents=seen.documents,
                             spread=seen.spread), None
        mask = attention_mask.mask() if type(attention_mask) is Causal else attention_mask
        carry = eager_of(module) if old == "eager" else ALL_ATTENTION_FUNCTIONS[old]
        return carry(module, query, key, value, mask, dropout=dropout, scaling=scaling, **kwargs)
    return attend


def why_not(module):
    """Why Epilog's cannot stand for a layer's attention; None where it can."""
    config, old = module.config, old_name(module.config)
    if old not in REPLACED:
        return f"{old} was requested"
    if not is_causal(config):
        return "it is not causal (is_causal)"
    if old == "sdpa" and getattr(module, "attn_logit_softcapping", None) is not None:
        return "sdpa supports no soft cap"
    if getattr(config, "output_attentions", False):
        return "the attention weights are results (output_attentions)"
    if None in own(old, module) or current(old, module) != own(old, module):
        return f"{old} is not the one of transformers"
    return None


def take_place(model, attentions):
    """Makes Epilog's the attention of some layers of a model, by their configuration. The model gets a copy of it first: another model
    may be made of the same object."""
    from transformers import AttentionInterface, AttentionMaskInterface
    causal, both = (own_function("masking_utils", name) for name in ("causal_mask_function", "and_masks"))
    if causal is not None and both is not None:
        in_graph.update({"causal": causal, "and": next(c for c in both.__code__.co_consts if getattr(c, "co_name", None) == "and_mask")})
    copies = {}
    for module in model.modules():
        if "config" in module.__dict__:
            module.config = copy.deepcopy(module.config, copies)
    for module in attentions:
        config, old = module.config, old_name(module.config)
        if (old, type(module)) not in known:
            known[old, type(module)] = own(old, module), Names(own(old, module)[:1])
        if not is_ours(config):
            AttentionInterface.register(PREFIX + old, attention_of(old))
            AttentionMaskInterface.register(PREFIX + old, mask_of(old))
            config._attn_implementation = PREFIX + old


def give_back(config):
    config._attn_implementation = old_name(config)

"""Epilog's attention among those of transformers: for every implementation it takes the place of there is one, by the name epilog_….

An implementation is two functions. The one that makes masks answers None where a query sees the keys up to its own position, or the last
of them by the layer's window, and nothing else: with no cache, no padding and no documents that are packed together. Everything else is
the old implementation's, mask and attention, and so is what Epilog is not fast at or cannot do: other GPUs, dropout, weights as a result.
"""
import sys

import torch

from ._known import are_numbers, fit, own_function
from .nn import attention

PREFIX = "epilog_"
REPLACED = ("sdpa", "eager")
# What a layer may be told that does not change attention; anything else is for the model's own.
HARMLESS = frozenset(("position_ids", "use_cache", "output_hidden_states", "return_dict", "num_items_in_batch", "shift_labels", "ignore_index",
                      "labels", "cache_position", "logits_to_keep", "token_type_ids"))
capabilities, known = {}, {}


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
    return (old, type(module)) in known and current(old, module) == known[old, type(module)]


def is_causal(config):
    """Does transformers make causal masks for it? It is a switch of models that look both ways."""
    return getattr(config, "is_causal", True) is True


def window_of(module, told):
    """The window that a layer's mask was made with: a layer is told its own, and a call may say what no model looks at."""
    mask = getattr(module.config, "sliding_window", None)
    own = module.__dict__.get("sliding_window", mask)
    return mask if told is not None and told == own else None


def is_plain(module, query, keys, mask, dropout, more):
    """Is it for Epilog: causal attention of a sequence to itself? query: [B,S,H,E] or what it is made of; keys: their number."""
    if mask is not None or keys != query.shape[1] or dropout or not getattr(module, "is_causal", True) or not is_causal(module.config):
        return False
    for name, value in more.items():
        if name == "is_causal" and value is not None and value is not True:
            return False
        if name not in HARMLESS and name != "is_causal" and value is not None and value is not False:
            return False
    return True


def mask_of(old):
    """The function that makes masks, in place of `old`'s."""
    def make(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None,
             allow_is_causal_skip=True, dtype=torch.float32, config=None, device="cpu", **kwargs):
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        plain = allow_is_causal_skip and is_causal(config) and type(q_offset) is int and q_offset == kv_offset == 0 and q_length == kv_length
        if plain and fits(torch.device(device), dtype, size) and is_full(attention_mask, kv_length):
            return None
        return ALL_MASK_ATTENTION_FUNCTIONS[old](
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function,
            attention_mask=attention_mask, allow_is_causal_skip=allow_is_causal_skip, dtype=dtype, config=config, device=device, **kwargs)
    return make


def own_mask(old, x, length, window, skip=True):
    """The mask of `old` for a causal sequence, where none was made. x: of its batch, type and device. skip: there may be none."""
    from transformers import masking_utils as masks
    seen = masks.causal_mask_function if window is None else masks.sliding_window_causal_mask_function(window)
    return masks.ALL_MASK_ATTENTION_FUNCTIONS[old](batch_size=x.shape[0], q_length=length, kv_length=length, mask_function=seen,
                                                   local_size=window, allow_is_causal_skip=skip, dtype=x.dtype, device=x.device)


def foreign_mask(module, parts, x, mask):
    """The mask for an attention that someone put in the place of the known one: it does not know that none means causal.
    And for a layer whose window is not that of the masks any more."""
    if mask is not None or not is_ours(parts.config) or x.shape[1] < 2 or not is_causal(parts.config):
        return mask
    window = parts.told.get("sliding_window")
    if parts.position is not None and mask_window(parts.config, parts.position) != window:
        return own_mask(old_name(parts.config), x, x.shape[1], mask_window(parts.config, parts.position), False)
    return mask if type(module) is parts.attention_kind else own_mask(old_name(parts.config), x, x.shape[1], window)


def mask_window(config, position):
    """The window of the mask that a model with kinds of layers makes for the one at a position."""
    kinds = config.layer_types
    return config.sliding_window if position < len(kinds) and kinds[position] == "sliding_attention" else None


def attention_of(old):
    """The function that is attention, in place of `old`'s. Tensors are [B,H,S,E]."""
    def attend(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
        told, softcap, (q, k, v) = kwargs.get("sliding_window"), kwargs.get("softcap"), (t.transpose(1, 2) for t in (query, key, value))
        weights = old == "eager" and module._forward_hooks  # they are what a hook looks for
        window, more = window_of(module, told), {n: x for n, x in kwargs.items() if n not in ("sliding_window", "softcap")}
        asked = are_numbers((scaling, told, softcap)) and window == told and softcap == getattr(module, "attn_logit_softcapping", None)
        if (asked and is_plain(module, q, k.shape[1], attention_mask, dropout, more) and not weights and is_known(old, module)
                and fit(q, (k, v)) and fits(q.device, q.dtype, q.shape[3])
                and (q.is_cpu or all(t.is_contiguous() for t in (q, k, v)))):
            return attention(q, k, v, True, window, softcap, scaling), None
        if attention_mask is None and is_causal(module.config) and query.shape[2] == key.shape[2] > 1:
            attention_mask = own_mask(old, query, query.shape[2], window)
        carry = eager_of(module) if old == "eager" else ALL_ATTENTION_FUNCTIONS[old]
        return carry(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    return attend


def take_place(module):
    """Makes Epilog's the attention of a model's configuration, which that of a layer has; why not, or None. Not done twice."""
    config = module.config
    old = old_name(config)
    if (old, type(module)) in known and is_ours(config):
        return None
    if old not in REPLACED:
        return f"{old} was asked for"
    if not is_causal(config):
        return "it is not causal (is_causal)"
    if getattr(config, "output_attentions", False):
        return "the weights of attention are results (output_attentions)"
    if None in own(old, module) or current(old, module) != own(old, module):
        return f"{old} is not that of transformers"
    known[old, type(module)] = own(old, module)
    from transformers import AttentionInterface, AttentionMaskInterface
    AttentionInterface.register(PREFIX + old, attention_of(old))
    AttentionMaskInterface.register(PREFIX + old, mask_of(old))
    config._attn_implementation = PREFIX + old
    return None


def give_back(config):
    config._attn_implementation = old_name(config)

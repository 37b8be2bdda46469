"""Modules of Hugging Face models as Epilog carries them out: of each kind what it knows of itself, and its forward.

A decoder layer is one program where attention is Epilog's, and two around attention where it is someone else's (_attention.py says
when). What a replaced module knows is made once, by epilog.apply, which is told by Unknown where something is not known. At each call
find() looks whether all is still so, and gives the weights; where it is not, the module does as its class does. What it knows is not of
one module, but of all that are as it: a copy of a module has it too, and its forward reads the copy's own weights.
"""
import functools
import inspect
import sys
from typing import NamedTuple

import torch
from torch import nn

from ._attention import (LONELY, eager_of, fits, is_causal, is_known, is_lonely, is_ours, is_plain, is_usual, kind_of, old_name, seen_in_cache, seen_through,
                         told_of)
from ._known import (Names, Tree, activation_of, are_numbers, bias_of, fit, hooks_of_all, is_own, own_class, own_forward, own_function,
                     plain_type, trouble, watched, weight_of)
from ._fp8 import why_not
from ._layers import gpt2_parts, in_autocast, llama_parts
from ._layers8 import gpt2_parts8, llama_parts8
from ._op import op
from ._run import blank, compiles_long
from .nn import layer_norm, linear_cross_entropy, loss_ahead, rms_norm, rows

gemma_norm = op("""
gemma_norm(x[T,D], weight[D], eps) -> y[T,D] {
    y = x*rsqrt(mean(x*x, D) + eps)*(1 + weight)
}""", keep=True)

gpt2_mlp = op("""
gpt2_mlp(x[T,D], w1[D,F], b1[F], w2[F,D], b2[D]) -> y[T,D] {
    y = gelu_tanh(x @ w1 + b1) @ w2 + b2
}""")


class Unknown(Exception):
    """Why a module is left alone."""


def need(condition, why):
    if not condition:
        raise Unknown(why)


def found_in(tree, module):
    """The modules of a tree, as apply wants them."""
    found = tree.find(module)
    need(type(found) is list, found)
    return found


def is_kind(module, parts):
    """Is a replaced module still of the class that it was, and is the class still as it was?"""
    return (type(module) is parts.kind or plain_type(module) is parts.kind) and parts.kind.forward is parts.forward


def as_before(module):
    """The forward of its class, as it was; a module that was restored below someone's wrapper has its class again."""
    return getattr(module, "_epilog_kind", type(module)).forward


def epsilon_of(family):
    """What the norms of a family, or LayerNorm, call their epsilon."""
    return "eps" if family is None or family.known.gemma else "variance_epsilon"


def inner_of(act):
    """What an activation of a class may be without being of another: by its value, which a copy has too."""
    inner = act.__dict__.get("act")
    if type(inner) is functools.partial:
        inner = inner.func, inner.args, tuple(inner.keywords.items())
    return getattr(inner, "__func__", inner), act.__dict__.get("approximate")


class Arguments:
    """What a forward takes behind hidden_states, by its own names, in its order, with its defaults."""

    def __init__(self, forward):
        found = [p for p in inspect.signature(forward).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][2:]  # behind self and hidden_states
        self.names, self.defaults = [p.name for p in found], {p.name: p.default for p in found}

    def bind(self, args, kwargs):
        """All of them by name; None where the forward has no such arguments."""
        if args and (len(args) > len(self.names) or any([name in kwargs for name in self.names[:len(args)]])):
            return None
        return {**self.defaults, **dict(zip(self.names, args)), **kwargs}


def own_scale(attention):
    """What scores are multiplied by; None where it is the usual 1/sqrt(E)."""
    return None if attention.scaling == attention.head_dim ** -0.5 else attention.scaling


LLAMA_TREE = {"self_attn": "attention", "self_attn.q_proj": nn.Linear, "self_attn.k_proj": nn.Linear, "self_attn.v_proj": nn.Linear,
              "self_attn.o_proj": nn.Linear, "mlp": "mlp", "mlp.gate_proj": nn.Linear, "mlp.up_proj": nn.Linear,
              "mlp.down_proj": nn.Linear, "mlp.act_fn": None, "input_layernorm": "norm", "post_attention_layernorm": "norm"}
GEMMA_NORMS = {"pre_feedforward_layernorm": "norm", "post_feedforward_layernorm": "norm"}
HEAD_NORMS = {"self_attn.q_norm": "norm", "self_attn.k_norm": "norm"}
ATTENTION, Q, K, V, O, MLP, GATE, UP, DOWN, ACT, NORM = range(11)  # of what the tree finds; all behind it are norms
LINEAR = Q, K, V, O, GATE, UP, DOWN


class Tables(NamedTuple):
    """What a known rotary embedding returns: of both tables the second half is the first once more."""
    cos: torch.Tensor
    sin: torch.Tensor

    def written(self):
        """Has someone written to them since? Of what is made under torch.inference_mode nobody knows, nor in a graph."""
        return not torch.compiler.is_compiling() and any([not t.is_inference() and t._version for t in self])

    def halves(self):
        """The first halves, which all layers read. They are copied once, where it is known that nobody has written to the tables since."""
        made = [t[..., :t.shape[-1] // 2] for t in self]
        if torch.compiler.is_compiling() or any([t.is_inference() or t.requires_grad for t in self]):
            return made
        for t, half in zip(self, made):
            if not hasattr(t, "_epilog_half"):
                t._epilog_half = half.contiguous()
        return [t._epilog_half for t in self]


class Rotary:
    """What a patched rotary embedding knows."""

    def __init__(self, kind):
        self.kind, self.names = kind, Names((), [kind])

    def holds(self, module):
        return trouble(module, self.kind) is None and not hooks_of_all() and not watched() and self.names.changed() is None


def rotary_forward(self, *args, **kwargs):
    found, parts = as_before(self)(self, *args, **kwargs), self.__dict__.get("_epilog")
    return Tables(*found) if parts is not None and type(found) is tuple and parts.holds(self) else found


class Told:
    """What tells the report of a layer, once each, what it left to the model in a call; and what it may keep for its backward."""
    report, name, memory = None, None, None

    def limit(self, memory, index, count, module):
        """All layers together may keep so many bytes; this is one of them."""
        self.memory, self.index, self.count = memory, index, count
        sizes, dtype, programs = self.sizes(module)
        self.bytes = [programs.whole[less]["plain"].kept(dict(sizes, B=1, S=1), dtype) for less in (False, True)]  # of a token

    def keeps_less(self, x):
        """Does the layer make products of its MLP again? So do as many as the limit asks for, from the first on: their backwards come last, when the
        others have let go of what they kept."""
        if self.memory is None or not torch.is_grad_enabled():
            return False
        tokens, (all_of_it, less) = x.shape[0] * x.shape[1], self.bytes
        if tokens * self.count * less > self.memory and not torch.compiler.is_compiling():
            self.leave(f"saved {tokens * self.count * less} bytes with the other layers, more than memory={self.memory}: no more can be recomputed")
        return tokens * (self.count * all_of_it - self.index * (all_of_it - less)) > self.memory

    def leave(self, why):
        if self.report is not None and (self.name, why) not in self.report.left:
            self.report.left.append((self.name, why))


class Layer(Told):
    """What a patched decoder layer knows: of what modules and numbers its programs were made."""

    def __init__(self, layer, family):
        self.known, self.kind, self.forward = family.known, family.layer, family.layer.forward
        self.arguments, self.eps_name = Arguments(self.forward), epsilon_of(family)
        tree = LLAMA_TREE | (GEMMA_NORMS if self.known.gemma else {}) | (HEAD_NORMS if self.known.head_norm else {})
        kinds = {name: getattr(family, k) if type(k) is str else k for name, k in tree.items()}
        kinds["mlp.act_fn"] = type(layer.mlp.act_fn) if hasattr(layer.mlp, "act_fn") else nn.SiLU
        need(None not in kinds.values(), f"the classes of {family.name} are not the ones of transformers")
        self.tree = Tree(kinds)
        found = found_in(self.tree, layer)
        activation, self.facts = activation_of(found[ACT]), self.facts_of(found)
        need(activation, f"its activation {type(found[ACT]).__name__} is not supported")
        need(self.facts, "some of its numbers are tensors")
        (self.size, scale, window, softcap, _), (q, k, v, o, *mlp), self.inner, eps = self.facts
        for name, bias in zip(("gate_proj", "up_proj", "down_proj"), mlp):
            need(not bias, f"mlp.{name} has a bias")
        need(q == k == v, "some of q_proj, k_proj and v_proj have a bias, and others have none")
        need(self.size % 2 == 0, f"heads of {self.size} features cannot be halved")
        need(len(set(eps)) == 1, "its norms have different epsilons")
        groups = found[ATTENTION].num_key_value_groups
        need(groups * found[K].out_features == found[Q].out_features, "its heads are not in groups of the same size")
        self.eps, self.bias, self.out_bias, self.head_norm = eps[0], q, o, self.known.head_norm
        scale = own_scale(found[ATTENTION])
        # what attention is told beside its tensors; its numbers in a program are those that are there
        gemma = self.known.gemma
        self.told = (dict(sliding_window=window) if self.known.window else {}) | (dict(softcap=softcap) if gemma else {})
        self.numbers = [n for n in (scale, softcap) if n is not None]
        self.make = lambda parts: {(per_sequence, windowed): parts(q, self.head_norm, per_sequence, gemma, o, activation, windowed, softcap is not None,
                                                                   scale is not None) for per_sequence in (False, True) for windowed in (False, True)}
        self.programs, self.programs8 = self.make(llama_parts), None

    def use8(self):
        """From now on products are of e4m3 in training."""
        self.programs8 = self.make(llama_parts8)

    def facts_of(self, found):
        """All that may change without a module becoming another: numbers, biases, what an activation calls. None where a number is none."""
        attention = found[ATTENTION]
        where = self.known.window
        window = (attention.config if where == "config" else attention).sliding_window if where else None
        softcap = attention.attn_logit_softcapping if self.known.gemma else None
        numbers = attention.head_dim, attention.scaling, window, softcap, attention.num_key_value_groups
        eps = tuple([m.__dict__[self.eps_name] for m in found[NORM:]])
        if not are_numbers(numbers) or not are_numbers(eps):
            return None
        biases = tuple([bias_of(found[i]) is not None for i in LINEAR])
        return numbers, biases, inner_of(found[ACT]), eps

    def window(self):
        """How many keys a query sees; None for all up to its own."""
        return self.facts[0][2]

    def attends(self, attention, x):
        """Can its attention be Epilog's?"""
        return is_ours(attention.config) and is_known(old_name(attention.config), attention) and fits(x.device, x.dtype, self.size) and is_causal(attention.config)

    def find(self, layer, x, tables):
        """The modules as they are now, and the weights; None where something is not as it was."""
        found = self.tree.find(layer) if is_kind(layer, self) and type(tables) is Tables else None
        if type(found) is not list or self.facts_of(found) != self.facts or tables.written():
            return None
        if tables.cos.shape[1:] != (x.shape[1], self.size):
            return None
        weights = [weight_of(m) for m in found[NORM:]]
        first, second = weights[:1], weights[1:2] if self.head_norm else weights[1:]
        before = [*first, weight_of(found[Q]), weight_of(found[K]), weight_of(found[V]), *tables.halves()]
        if self.bias:
            before += [bias_of(found[Q]), bias_of(found[K]), bias_of(found[V])]
        if self.head_norm:
            before += weights[2:]
        out, behind = weight_of(found[O]), [bias_of(found[O])] if self.out_bias else []
        behind += [*second, weight_of(found[GATE]), weight_of(found[UP]), weight_of(found[DOWN])]
        return (found[ATTENTION], before, out, behind) if fit(x, [*before, out, *behind]) else None

    def sizes(self, layer):
        """Of the axes of its program; the type of its weights; the programs."""
        q, k, _, _, _, gate = found_in(self.tree, layer)[Q:GATE + 1]
        groups = k.out_features // self.size
        sizes = dict(D=q.in_features, G=groups, H=q.out_features // k.out_features, E=self.size, F=gate.out_features)
        return sizes, q.weight.dtype, self.programs[False, False]

    def why_not8(self, layer):
        """Why its products cannot be of e4m3, or None."""
        found = found_in(self.tree, layer)
        return why_not(hidden_size=found[Q].in_features, queries=found[Q].out_features, keys=found[K].out_features,
                       intermediate_size=found[GATE].out_features)

    def shaped(self, before):
        """Whether positions are per sequence, and what programs read before attention, but for x."""
        norm, q, k, v, cos, sin, *more = before
        size, features = self.size, q.shape[1]
        groups = k.shape[0] // size
        cos, sin = cos.contiguous(), sin.contiguous()
        per_sequence = cos.shape[0] != 1
        cos, sin = (cos, sin) if per_sequence else (cos[0], sin[0])
        if self.bias:
            more[:3] = more[0].view(groups, -1, size), more[1].view(groups, size), more[2].view(groups, size)
        shaped = [norm, q.view(groups, -1, size, features), k.view(groups, size, features), v.view(groups, size, features), cos, sin]
        return per_sequence, shaped + more


def seen_of(parts, attention, x, mask, cache, dropout, more):
    """Of a layer that can be one program at this call, attention with it: what a query sees. Else None. Of a mask that would be Epilog's but for
    the queries that see no key the report tells once."""
    config = attention.config
    if is_lonely(mask):
        parts.leave(LONELY)
    if not is_ours(config) or cache is not None or in_autocast(x):
        return None
    seen = seen_through(mask, old_name(config))
    whole = (seen is not None and is_known(old_name(config), attention)
             and is_plain(attention, x, x.shape[1], mask, dropout if attention.training else 0, more)
             and fits(x.device, x.dtype, attention.head_dim))
    return seen if whole else None


def seen_of_call(parts, attention, x, mask, keys, dropout, more):
    """Of a layer whose attention over a cache of so many keys can be in its program: what queries see. Else None, which the report tells once."""
    config = attention.config
    if not is_ours(config) or torch.compiler.is_compiling() or not fits(x.device, x.dtype, attention.head_dim) or is_lonely(mask):
        return None
    past = seen_in_cache(mask, old_name(config), x.shape[1], keys)
    if in_autocast(x):
        parts.leave("used the model's own attention in a call with a cache under autocast")
    elif past is None:
        parts.leave("used the model's own attention in a call with a cache whose mask hides more than left padding, or is made for "
                    "torch.compile, as transformers does for a static cache on a GPU (epilog.generate has its own)")
    elif not is_known(old_name(config), attention) or not is_usual(attention, dropout if attention.training else 0, more):
        parts.leave("used the model's own attention in a call with a cache, with dropout or an unsupported argument")
    elif past.starts is None:
        return past._replace(starts=torch.zeros(x.shape[0], dtype=torch.int32, device=x.device))
    else:
        return past
    return None


def plain_layer(cache, index, x):
    """The layer of a cache that a program may put keys and values into; None where it is of another kind, or has no room for them."""
    utils, layers = sys.modules["transformers.cache_utils"], getattr(cache, "layers", ())
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or index >= len(layers) or cache.offloading:
        return None
    found, count = layers[index], x.shape[1]
    if type(found) is utils.DynamicLayer and type(cache) in (utils.Cache, utils.DynamicCache):
        return found
    static = type(found) is utils.StaticLayer and type(cache) in (utils.Cache, utils.StaticCache)
    return found if static and int(found.cumulative_length) + count <= found.max_cache_len else None


def room_in(layer, x, groups, size):
    """Its keys and values with room for those of x, and where that begins. A static layer has counted them; what a dynamic one has there is put in later."""
    dynamic = type(layer) is sys.modules["transformers.cache_utils"].DynamicLayer
    blank = x.new_zeros(x.shape[0], groups, x.shape[1], size) if dynamic or not layer.is_initialized else None
    if dynamic:
        slot = layer.get_seq_length()
        return *layer.update(blank, blank), slot
    if blank is not None:
        layer.lazy_initialization(blank, blank)
    slot = layer.cumulative_length.clone()
    layer.cumulative_length.add_(x.shape[1])
    return layer.keys, layer.values, slot


def layer_forward(self, hidden_states, *args, **kwargs):
    parts = self.__dict__.get("_epilog")
    given = parts.arguments.bind(args, kwargs) if parts is not None else None
    found = parts.find(self, hidden_states, given["position_embeddings"]) if given is not None else None
    if found is None:
        return as_before(self)(self, hidden_states, *args, **kwargs)
    return (layer_run8 if parts.programs8 and self.training else layer_run)(parts, found, hidden_states, **given)


def layer_run(parts, found, hidden_states, attention_mask, past_key_values, position_embeddings, **more):
    attention, before, out, behind = found
    per_sequence, before = parts.shaped(before)
    seen = seen_of(parts, attention, hidden_states, attention_mask, past_key_values, attention.attention_dropout, more)
    programs, less = parts.programs[per_sequence, bool(seen and seen.window)], parts.keeps_less(hidden_states)
    if seen is not None:
        groups, heads, size, _ = before[1].shape
        return programs.whole[less][kind_of(seen)](hidden_states, *before, out.view(-1, groups, heads, size), *behind, parts.eps, *told_of(seen),
                                         *parts.numbers, *([seen.window] if seen.window else []))
    if past_key_values is not None:
        return layer_cached(parts, found, before, hidden_states, attention_mask, past_key_values, per_sequence, more)
    query, key, value = programs.projections(hidden_states, *before, parts.eps)
    query, key, value = (t.transpose(1, 2) for t in (query.flatten(2, 3), key, value))
    attended = attend(attention, query, key, value, attention_mask, attention.attention_dropout, **more, **parts.told)
    return programs.rest(hidden_states, attended, [out, *behind], parts.eps, less)


def layer_cached(parts, found, before, x, mask, cache, per_sequence, more):
    """With a cache: as one program that puts keys and values into it, or as two around what a cache of another kind does with them."""
    attention, _, out, behind = found
    groups, heads, size, _ = before[1].shape
    shaped, at, dropout = out.view(-1, groups, heads, size), attention.layer_idx, attention.attention_dropout
    layer = plain_layer(cache, at, x)
    past = seen_of_call(parts, attention, x, mask, layer.get_mask_sizes(x.shape[1])[0], dropout, more) if layer is not None else None
    if past is not None:
        programs = parts.programs[per_sequence, bool(past.window)]
        keys, values, slot = room_in(layer, x, groups, size)
        numbers = [shaped, *behind, parts.eps, past.starts, past.offset, *parts.numbers, *([past.window] if past.window else [])]
        if x.shape[1] > 1:
            return programs.fill[past.spread](x, *before, keys, values, slot, *numbers)[0]
        tables = [t.reshape(-1, size // 2) if per_sequence else t[0] for t in before[4:6]]
        step = programs.step if torch.is_tensor(slot) else programs.step_open
        return step(x[:, 0], *before[:4], *tables, *before[6:], keys, values, slot, *numbers)[0][:, None]
    query, key, value = parts.programs[per_sequence, False].projections(x, *before, parts.eps)
    key, value = cache.update(key.transpose(1, 2), value.transpose(1, 2), at)
    past = seen_of_call(parts, attention, x, mask, key.shape[2], dropout, more)
    if past is not None and fit(x, (key, value)):
        programs = parts.programs[per_sequence, bool(past.window)]
        return programs.cached[past.spread](x, query, key, value, shaped, *behind, parts.eps, past.starts, past.offset, *parts.numbers,
                               *([past.window] if past.window else []))
    attended = attend(attention, query.flatten(2, 3).transpose(1, 2), key, value, mask, dropout, **more, **parts.told)
    return parts.programs[per_sequence, False].rest(x, attended, [out, *behind], parts.eps)


def layer_run8(parts, found, hidden_states, attention_mask, past_key_values, position_embeddings, **more):
    """The same with products of e4m3: attention stands between two programs, with what comes before it."""
    attention, before, out, behind = found
    per_sequence, (_, *shapes) = parts.shaped(before)
    seen = seen_of(parts, attention, hidden_states, attention_mask, past_key_values, attention.attention_dropout, more)
    programs, tables = parts.programs8[per_sequence, bool(seen and seen.window)], shapes[3:]
    groups, heads, size, _ = shapes[0].shape
    q, k, v = programs.project(hidden_states, before[:4], parts.eps)
    given = [q.unflatten(2, (groups, heads, size)), k.unflatten(2, (groups, size)), v.unflatten(2, (groups, size)), *tables]
    given += [parts.eps] if parts.head_norm else []
    if seen is not None:
        attended = programs.attend[kind_of(seen)](*given, *told_of(seen), *parts.numbers, *([seen.window] if seen.window else [])).flatten(2)
    else:
        query, key, value = programs.turn(*given)
        query, key, value = (t.transpose(1, 2) for t in (query.flatten(2, 3), key, value))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, attention.layer_idx)
        attended = attend(attention, query, key, value, attention_mask, attention.attention_dropout, **more, **parts.told)
    return programs.rest(hidden_states, attended, [out, *behind], parts.eps)


def attend(module, query, key, value, mask, dropout, **kwargs):
    """Attention itself, as the model's configuration wants it; the heads' values side by side."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    carry = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, eager_of(module))
    attended, _ = carry(module, query, key, value, mask, dropout=dropout if module.training else 0.0, scaling=module.scaling, **kwargs)
    return attended.reshape(*attended.shape[:-2], -1).contiguous()


GPT2_MLP = {"c_fc": "conv", "c_proj": "conv", "act": None, "dropout": nn.Dropout}
GPT2_TREE = {"ln_1": nn.LayerNorm, "attn": "attention", "attn.c_attn": "conv", "attn.c_proj": "conv", "attn.attn_dropout": nn.Dropout,
             "attn.resid_dropout": nn.Dropout, "ln_2": nn.LayerNorm, "mlp": "mlp", **{"mlp." + name: k for name, k in GPT2_MLP.items()}}


def gpt2_tree(kinds, family, act):
    known = {"conv": own_class("pytorch_utils", "Conv1D"), "attention": family.attention, "mlp": family.mlp, None: type(act)}
    kinds = {name: known.get(k, k) for name, k in kinds.items()}
    need(None not in kinds.values(), "the classes of GPT2 are not the ones of transformers")
    return Tree(kinds)


class Block(Told):
    """What a patched block of GPT-2 knows: as Layer."""

    def __init__(self, block, family):
        self.kind, self.forward = family.layer, family.layer.forward
        self.arguments = Arguments(self.forward)
        need(not hasattr(block, "crossattention"), "it has cross-attention")
        self.tree = gpt2_tree(GPT2_TREE, family, getattr(block.mlp, "act", None))
        found = found_in(self.tree, block)
        need(hasattr(found[1], "scaling"), "another version of transformers: its attention has no scaling attribute")
        need(activation_of(found[10]) == "gelu_tanh", f"its activation {type(found[10]).__name__} is not supported")
        self.facts = self.facts_of(found)
        need(self.facts, "some of its numbers are tensors")
        need(self.facts[0] == self.facts[1], "its norms have different epsilons")
        scale = own_scale(found[1])
        self.programs, self.programs8, self.numbers = gpt2_parts(scale is not None), None, [] if scale is None else [scale]

    def use8(self):
        self.programs8 = gpt2_parts8(bool(self.numbers))

    def facts_of(self, found):
        first, attention, second, act = found[0], found[1], found[6], found[10]
        numbers = first.eps, second.eps, attention.num_heads, attention.head_dim, attention.split_size, attention.scaling
        return (*numbers, attention.is_cross_attention, inner_of(act)) if are_numbers(numbers) else None

    def sizes(self, block):
        found = found_in(self.tree, block)
        heads, size = found[1].num_heads, found[1].head_dim
        return dict(D=heads * size, K=3, G=heads, E=size, F=found[8].weight.shape[1]), found[2].weight.dtype, self.programs

    def why_not8(self, block):
        found = found_in(self.tree, block)
        return why_not(hidden_size=found[2].weight.shape[0], intermediate_size=found[8].weight.shape[1])

    def find(self, block, x, given):
        """The modules as they are now, and the weights; None where something is not as it was, or the block is not for this call."""
        found = self.tree.find(block) if is_kind(block, self) and given.get("encoder_hidden_states") is None else None
        if type(found) is not list or self.facts_of(found) != self.facts:
            return None
        first, attention, qkv, out, _, dropout, second, _, up, down, _, last = found
        if any([m.training and m.p for m in (dropout, last)]) or (attention.reorder_and_upcast_attn
                                                          and attention.config._attn_implementation.endswith("eager")):
            return None
        weights = [get(m) for m in (first, qkv, out, second, up, down) for get in (weight_of, bias_of)]
        return (attention, *weights) if fit(x, weights) else None


def gpt2_forward(self, hidden_states, *args, **kwargs):
    parts = self.__dict__.get("_epilog")
    given = parts.arguments.bind(args, kwargs) if parts is not None else None
    found = parts.find(self, hidden_states, given) if given is not None else None
    if found is None:
        return as_before(self)(self, hidden_states, *args, **kwargs)
    return gpt2_run(parts, found, parts.programs8 is not None and self.training, hidden_states, **given)


def gpt2_run(parts, found, fp8, hidden_states, past_key_values=None, attention_mask=None, encoder_hidden_states=None,
             encoder_attention_mask=None, **more):
    attention, g, b, qkv, qkv_bias, out, *behind = found
    heads, eps = (attention.num_heads, attention.head_dim), parts.facts[0]
    before = [g, b, qkv.view(-1, 3, *heads), qkv_bias.view(3, *heads)]
    seen = seen_of(parts, attention, hidden_states, attention_mask, past_key_values, attention.attn_dropout.p, more)
    whole = seen is not None and not seen.window
    programs = parts.programs8 if fp8 else parts.programs
    if whole and not fp8:
        less = parts.keeps_less(hidden_states)
        return programs.whole[less][kind_of(seen)](hidden_states, *before, out.view(*heads, -1), *behind, eps, *told_of(seen), *parts.numbers)
    if fp8:
        (z,) = programs.project(hidden_states, [g, b, qkv], eps)
        given = z.unflatten(2, (3, *heads)), before[3]
        if whole:
            return programs.rest(hidden_states, programs.attend[kind_of(seen)](*given, *told_of(seen), *parts.numbers).flatten(2), [out, *behind], eps)
    made = programs.turn(*given) if fp8 else programs.projections(hidden_states, *before, eps)
    query, key, value = (t.transpose(1, 2) for t in made)
    if past_key_values is not None:
        cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        key, value = cache.update(key, value, attention.layer_idx)
        past = seen_of_call(parts, attention, hidden_states, attention_mask, key.shape[2], attention.attn_dropout.p, more) if not fp8 else None
        if past is not None and past.window == 0 and fit(hidden_states, (key, value)):
            return programs.cached[past.spread](hidden_states, made[0], key, value, out.view(*heads, -1), *behind, eps, past.starts, past.offset, *parts.numbers)
    more = {k: v for k, v in more.items() if k != "output_attentions"}
    attended = attend(attention, query, key, value, attention_mask, attention.attn_dropout.p, **more)
    return programs.rest(hidden_states, attended, [out, *behind], eps)


class Norm:
    """What a patched norm knows: its class, and its program."""

    def __init__(self, kind, family):
        program = layer_norm if family is None else gemma_norm if family.known.gemma else rms_norm
        self.kind, self.forward, self.program, self.eps_name = kind, own_forward(kind), program, epsilon_of(family)
        need(self.forward is not None, f"{kind.__name__} has not its original forward")
        self.names = Names([self.forward])
        need(self.names.why is None, self.names.why)

    def find(self, norm, x, bias):
        """The program and the weights; None where something is not as it was. Under autocast what is not f32 is PyTorch's to cast."""
        given = [weight_of(norm), bias_of(norm)] if bias else [weight_of(norm)]
        plain = is_kind(norm, self) and are_numbers((norm.__dict__[self.eps_name],)) and fit(x, given) and not watched() and self.names.changed() is None
        return given if plain and (x.dtype == torch.float32 or not torch.is_autocast_enabled(x.device.type)) else None


def norm_forward(self, hidden_states):
    parts = self.__dict__.get("_epilog")
    given = parts.find(self, hidden_states, False) if parts is not None else None
    if given is None:
        return as_before(self)(self, hidden_states)
    return parts.program(rows(hidden_states), *given, self.__dict__[parts.eps_name]).view(hidden_states.shape)


def layer_norm_forward(self, input):
    parts = self.__dict__.get("_epilog")
    given = parts.find(self, input, True) if parts is not None else None
    if given is None or len(self.normalized_shape) != 1 or given[0].shape[0] != self.normalized_shape[0]:
        return as_before(self)(self, input)
    return parts.program(rows(input), *given, self.eps).view(input.shape)


class GPT2MLP:
    """What a patched MLP of GPT-2 knows."""

    def __init__(self, mlp, family):
        self.kind, self.forward, self.tree = family.mlp, family.mlp.forward, gpt2_tree(GPT2_MLP, family, getattr(mlp, "act", None))
        act = found_in(self.tree, mlp)[2]
        need(activation_of(act) == "gelu_tanh", f"its activation {type(act).__name__} is not supported")
        self.inner = inner_of(act)

    def find(self, mlp, x):
        found = self.tree.find(mlp) if is_kind(mlp, self) else None
        if type(found) is not list or inner_of(found[2]) != self.inner:
            return None
        given = [weight_of(found[0]), bias_of(found[0]), weight_of(found[1]), bias_of(found[1])]
        return given if fit(x, given) else None


def gpt2_mlp_forward(self, hidden_states):
    parts = self.__dict__.get("_epilog")
    given = parts.find(self, hidden_states) if parts is not None else None
    if given is None:
        return as_before(self)(self, hidden_states)
    return self.dropout(gpt2_mlp(rows(hidden_states), *given).view(hidden_states.shape))


def loss_of(model):
    """What its loss_function is, without the warning that comes with asking."""
    from transformers.modeling_utils import LOSS_MAPPING
    own, kind = getattr(model, "_loss_function", None), getattr(model, "loss_type", None)
    return own if own is not None else LOSS_MAPPING[kind if kind in LOSS_MAPPING else "ForCausalLM"]


class Head:
    """What a patched model with a loss knows: whose loss and head it stands for."""

    def __init__(self, model, family, chunks, check_indices):
        self.kind, self.forward, self.chunks, self.check_indices = family.head, family.head.forward, chunks, check_indices
        self.loss = own_function("loss.loss_utils", "ForCausalLMLoss")
        self.tree, self.capped = Tree({"lm_head": nn.Linear}, [self.loss]), family.known.gemma
        self.model, self.layer, self.attention = family.model, family.layer, "attn" if family.known.gpt2 else "self_attn"
        found = found_in(self.tree, model)
        need(found[0].bias is None, "lm_head has a bias")
        asked = inspect.getattr_static(family.head, "loss_function")  # a property, of all models
        need(self.loss is not None and loss_of(model) is self.loss and isinstance(asked, property)
             and is_own(asked.fget, sys.modules["transformers.modeling_utils"], "PreTrainedModel.loss_function"),
             "its loss_function is not the one of transformers")
        self.asked, self.begun = asked, set()  # sizes and types of labels for which kernels were begun with

    def begin(self, model, base, weight, labels):
        """Begins with the kernels of the loss before the layers are computed, whose own are compiled meanwhile."""
        kind = labels.shape, labels.dtype, weight.dtype, weight.device, torch.is_grad_enabled()
        if kind in self.begun or torch.compiler.is_compiling() or not compiles_long(weight.device):
            return
        self.begun.add(kind)
        wanted = any([p.requires_grad for p in base.parameters()])
        hidden = blank((labels.numel(), weight.shape[1]), weight.dtype, weight.device, wanted)
        if fit(hidden, [weight]):
            loss_ahead(hidden, weight, blank((labels.numel(),), labels.dtype, weight.device), self.softcap(model), self.chunks)

    def softcap(self, model):
        return model.config.final_logit_softcapping if self.capped else None

    def has_loss(self, model):
        asked = torch.compiler.is_compiling() or self.kind.loss_function is self.asked  # which cannot be traced
        return asked and loss_of(model) is self.loss

    def needs_no_cache(self, base):
        """Is what a model computes the same without a cache: does each of its layers have a place of its own there?"""
        layers = getattr(base, "h" if self.attention == "attn" else "layers", ())
        if plain_type(base) is not self.model or not all([plain_type(m) is self.layer for m in layers]):
            return False
        places = [getattr(m, self.attention).layer_idx for m in layers]
        return len(set(places)) == len(places)

    def find(self, model):
        """lm_head's weight; None where something is not as it was."""
        found = self.tree.find(model) if is_kind(model, self) and self.has_loss(model) else None
        if type(found) is not list or found[0].bias is not None:
            return None
        if self.capped and not are_numbers((model.config.final_logit_softcapping,)):
            return None
        words = found[0].weight.shape[0]
        return found[0].weight if words == model.config.vocab_size == getattr(model, "vocab_size", words) else None


def causal_lm_forward(self, *args, labels=None, logits_to_keep=0, return_dict=None, **kwargs):
    """In training the loss is had without anyone seeing the logits: those of the answer are None. Nor is a cache made that nobody asked
    for, but where positions are given: with a cache they do not tell documents apart. Otherwise as before."""
    parts = self.__dict__.get("_epilog")
    asked = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
    plain = isinstance(logits_to_keep, int) and logits_to_keep == 0 and asked is not False and len(args) == 0
    weight = parts.find(self) if parts is not None and labels is not None and self.training and plain else None
    if weight is None:
        given = dict(kwargs) if return_dict is None else dict(kwargs, return_dict=return_dict)
        return as_before(self)(self, *args, labels=labels, logits_to_keep=logits_to_keep, **given)
    from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions, CausalLMOutputWithPast
    base = getattr(self, self.base_model_prefix)
    if kwargs.get("use_cache") is None and kwargs.get("position_ids") is None and parts.needs_no_cache(base):
        kwargs["use_cache"] = False
    parts.begin(self, base, weight, labels)
    outputs = base(**kwargs)
    hidden, logits = outputs.last_hidden_state, None
    if fit(hidden, [weight]):
        loss = head_loss(self, parts, hidden, weight, labels, **kwargs)
    else:
        logits = self.lm_head(hidden)
        if parts.capped and self.config.final_logit_softcapping is not None:
            cap = self.config.final_logit_softcapping
            logits = torch.tanh(logits / cap) * cap
        loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
    found = dict(loss=loss, logits=logits, past_key_values=outputs.past_key_values, hidden_states=outputs.hidden_states,
                 attentions=outputs.attentions)
    crossed = "cross_attentions" in type(outputs).__dataclass_fields__  # as GPT-2's
    return CausalLMOutputWithCrossAttentions(**found, cross_attentions=outputs.cross_attentions) if crossed else CausalLMOutputWithPast(**found)


def head_loss(model, parts, hidden, weight, labels, ignore_index=-100, shift_labels=None, num_items_in_batch=None, **kwargs):
    """As ForCausalLMLoss of the logits."""
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = linear_cross_entropy(hidden, weight, shift_labels.to(hidden.device), ignore_index, reduction, softcap=parts.softcap(model),
                                chunks=parts.chunks, check_indices=parts.check_indices)
    if num_items_in_batch is None:
        return loss
    return loss / (num_items_in_batch.to(loss.device) if torch.is_tensor(num_items_in_batch) else num_items_in_batch)

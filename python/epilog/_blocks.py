"""Blocks of experts in Hugging Face models: what a replaced one knows of itself, and its forward.

The router is called as the block calls it, so that hooks see its logits, of which losses are made. Where it is known, it is a program of its
own. What it chose goes, with the tokens, into one program for all experts, on weights that lie as they do in the model.
"""
import sys

import torch
from torch import nn

from ._experts import EXPERTS, clamped_experts, model_router
from ._known import (PLAIN, TYPES, Names, Tree, activation_of, are_numbers, bias_of, fit, is_own, own_forward, own_function, plain_type,
                     watched, weight_of)
from ._patched import as_before, found_in, inner_of, is_kind, need
from .nn import rows

MOST_CHOICES = 64  # of topk
SAME = "eager", "grouped_mm", "batched_mm"  # implementations of experts that differ in the order of work alone


SHARED = ("gate_proj", "up_proj", "down_proj")


def parameter(module, name):
    """None where someone made it something else than a parameter."""
    return None if name in module.__dict__ else module._parameters.get(name)


def has_own_gate(kind, family):
    """Is what it does between its products as transformers has it?"""
    found = vars(kind).get("_apply_gate")
    if family.known.experts.clamped:
        return is_own(found, sys.modules["transformers." + family.home], family.name + "Experts._apply_gate")
    return found is not None and found is own_function("integrations.moe", "_default_apply_gate")


class Block:
    """What a patched block knows: of what modules and numbers it was made."""

    def __init__(self, block, family):
        self.kind, self.forward, self.known, self.router = family.block, family.block.forward, family.known.experts, family.router
        self.gate = vars(family.experts).get("_apply_gate") if family.experts else None
        need(family.router and family.experts and (family.shared or not self.known.shared) and has_own_gate(family.experts, family),
             f"the classes of {family.name} are not the ones of transformers")
        kinds = {"experts": family.experts}
        if not self.known.clamped:
            kinds["experts.act_fn"] = type(getattr(block.experts, "act_fn", nn.SiLU()))
        if self.known.shared:
            kinds["shared_experts"] = family.shared
            kinds |= {"shared_experts." + name: nn.Linear for name in SHARED}
            kinds["shared_experts.act_fn"] = type(getattr(block.shared_experts, "act_fn", nn.SiLU()))
        self.tree = Tree(kinds)
        found = found_in(self.tree, block)
        self.facts = self.facts_of(block, found)
        need(self.facts, "some of its numbers are tensors")
        self.program = clamped_experts
        if not self.known.clamped:
            activations = [activation_of(found[i]) for i in ([1, 6] if self.known.shared else [1])]
            need(activations[0], f"its activation {type(found[1]).__name__} is not supported")
            need(len(set(activations)) == 1, "its shared experts have another activation")
            self.program = EXPERTS[activations[0], self.known.shared]
        why = self.trouble(block, found[0])
        need(why is None, why)

    def facts_of(self, block, found):
        """All that may change without a module becoming another. None where a number is none."""
        experts = found[0]
        if self.known.clamped:
            return (experts.alpha, experts.limit) if are_numbers((experts.alpha, experts.limit)) else None
        return tuple([inner_of(found[i]) for i in ([1, 6] if self.known.shared else [1])])

    def trouble(self, block, experts):
        """Why it is not for this call, or None."""
        router, asked = getattr(block, self.known.router_at), experts.config._experts_implementation
        if type(router) is not self.router and plain_type(router) is not self.router:
            return f"{self.known.router_at} is a {type(router).__name__}, not a plain {self.router.__name__}"
        if asked is not None and asked not in SAME:
            return f"{asked} was requested"
        if getattr(experts, "_is_expert_parallel", False):  # transformers 5.17 has no such word: there they have another forward
            return "its experts are on several devices"
        if "_apply_gate" in experts.__dict__ or type(experts)._apply_gate is not self.gate:
            return "experts has its own gate"
        if asked not in (None, "eager") and not own_implementation(asked):
            return f"{asked} is not the one of transformers"
        return None

    def find(self, block, x):
        """The router, and the weights; None where something is not as it was, or the block is not for this call."""
        found = self.tree.find(block) if is_kind(block, self) and not torch.is_autocast_enabled(x.device.type) else None
        if type(found) is not list or self.facts_of(block, found) != self.facts or self.trouble(block, found[0]) is not None:
            return None
        if getattr(block, "jitter_noise", 0) and block.training:  # Mixtral's
            return None
        names = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias") if self.known.clamped else ("gate_up_proj", "down_proj")
        weights = [parameter(found[0], name) for name in names]
        shared = [weight_of(m) for m in found[3:6]] if self.known.shared else []
        if any([m.bias is not None for m in found[3:6]]) or not fit(x, weights + shared):
            return None
        return getattr(block, self.known.router_at), weights, shared


class Router:
    """What a patched router knows."""

    def __init__(self, family):
        self.kind, self.forward, self.known = family.router, own_forward(family.router), family.known.experts
        need(self.known.routes, "its choice among groups of experts is not supported")
        need(self.forward is not None, f"{self.kind.__name__} has not its original forward")
        self.names = Names([self.forward])
        need(self.names.why is None, self.names.why)

    def find(self, router, x):
        """Its program, and the weights; None where something is not as it was, or not for this call."""
        weights = [weight_of(router), bias_of(router)] if self.known.clamped else [weight_of(router)]
        if not is_kind(router, self) or not fit(x, weights) or torch.is_autocast_enabled(x.device.type) or watched():
            return None
        normalize = self.known.normalized or router.__dict__.get("norm_topk_prob", False)
        if self.names.changed() is not None or type(router.top_k) is not int or type(normalize) is not bool:
            return None
        if not 1 <= router.top_k <= min(MOST_CHOICES, weights[0].shape[0]):
            return None
        return model_router(x.dtype, router.top_k, self.known.clamped, self.known.clamped, normalize, self.known.normalized), weights


def router_forward(self, hidden_states):
    parts = self.__dict__.get("_epilog")
    found = parts.find(self, hidden_states) if parts is not None else None
    if found is None:
        return as_before(self)(self, hidden_states)
    program, weights = found
    return tuple(program(rows(hidden_states), *weights))


def own_implementation(name):
    """Is the implementation of that name the one that transformers has?"""
    functions = sys.modules["transformers.integrations.moe"].ALL_EXPERTS_FUNCTIONS
    return functions[name] is own_function("integrations.moe", name + "_experts_forward")


def block_forward(self, hidden_states, *args, **kwargs):
    parts = self.__dict__.get("_epilog")
    found = parts.find(self, hidden_states) if parts is not None and not args and not kwargs else None
    if found is None:
        return as_before(self)(self, hidden_states, *args, **kwargs)
    x, (router, weights, shared) = rows(hidden_states), found
    _, scores, index = router(x)
    if type(scores) not in PLAIN or scores.dtype not in TYPES:
        y = self.experts(x, index, scores)
    else:
        y = parts.program(x, *weights, index, scores, *shared, *(parts.facts if parts.known.clamped else ()))
    y = y.view(hidden_states.shape)
    return (y, scores) if parts.known.clamped else y

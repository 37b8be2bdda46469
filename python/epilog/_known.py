"""What is known of transformers and of torch.nn: classes and functions by identity, never by name.

epilog.apply replaces a module where it is exactly what its program was written for: of a class that its own module of transformers
defines, with the forward that is written there, on which nobody has hung a hook or set another forward. All of it is asked again at
each call, since it may have changed.
"""
import functools
import sys
import types

import torch
from torch import nn
from torch.nn.modules import module as everyone  # where hooks of all modules are

PLAIN = (torch.Tensor, nn.Parameter)
TYPES = (torch.float32, torch.bfloat16, torch.float16)
NUMBERS = (int, float, type(None))  # what a program takes beside tensors: what is learned is none of them


def is_own(function, home, name):
    """Is a function the one that a module defines by that name, in decorators of transformers' and PyTorch's alone?"""
    while isinstance(function, types.FunctionType):
        if function.__globals__ is vars(home):
            return function.__qualname__ == name
        if function.__globals__.get("__name__", "").split(".")[0] not in ("transformers", "torch"):
            return False
        function = getattr(function, "__wrapped__", None)
    return False


def own_function(home, name):
    """The function that a module of transformers defines by that name; None where it is not loaded, or someone put another there."""
    home = sys.modules.get("transformers." + home)
    found = vars(home).get(name) if home else None
    return found if is_own(found, home, name) else None


def own_class(home, name):
    """The same of a class, whose forward is its own too."""
    full, home = "transformers." + home, sys.modules.get("transformers." + home)
    found = vars(home).get(name) if home else None
    if not isinstance(found, type) or found.__module__ != full or found.__qualname__ != name:
        return None
    return found if is_own(vars(found).get("forward"), home, name + ".forward") else None


def own_forward(kind):
    """The forward of a class where it is as its module has it, or None: someone may have put another there, for all modules of it."""
    found = vars(kind).get("forward")
    return kind.forward if is_own(found, sys.modules[kind.__module__], kind.__qualname__ + ".forward") else None


class Family:
    """The classes of a family of models, by what they are in it; None where one of them is not its module's own."""

    def __init__(self, name, home, layer="DecoderLayer", head="ForCausalLM"):
        of = functools.partial(own_class, f"models.{home}.modeling_{home}")
        self.name, self.home = name, f"models.{home}.modeling_{home}"
        self.layer, self.attention, self.mlp, self.head = of(name + layer), of(name + "Attention"), of(name + "MLP"), of(name + head)
        self.norm, self.rotary = of(name + "RMSNorm"), of(name + "RotaryEmbedding")


FAMILIES = {"Llama": "llama", "Mistral": "mistral", "Qwen2": "qwen2", "Qwen3": "qwen3", "Gemma2": "gemma2"}


def families():
    """Those whose modules are loaded."""
    found = [Family(name, home) for name, home in FAMILIES.items() if f"transformers.models.{home}.modeling_{home}" in sys.modules]
    gpt2 = "transformers.models.gpt2.modeling_gpt2" in sys.modules
    return found + ([Family("GPT2", "gpt2", "Block", "LMHeadModel")] if gpt2 else [])


def plain_type(module):
    """Its class; behind the one that fully_shard makes of it, where it did."""
    kind, sharded = type(module), sys.modules.get("torch.distributed.fsdp")
    made = sharded is not None and len(kind.__bases__) == 2 and kind.__bases__[0] is sharded.FSDPModule
    return kind.__bases__[1] if made else kind


def class_name(kind, beside):
    """The name of a class; with its module where another one is called the same."""
    return kind.__name__ if kind.__name__ != beside.__name__ else f"{kind.__module__}.{kind.__qualname__}"


def trouble(module, kind):
    """Why a module is not plainly one of that class, or None."""
    if type(module) is not kind:
        return f"is a {class_name(type(module), kind)}, no plain {kind.__name__}"
    own = module.__dict__
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return "has hooks"
    if "forward" in own and own["forward"] is not own.get("_epilog_forward"):
        return "has a forward of its own"
    for name in ("weight", "bias"):
        if name in own or name in own["_buffers"]:
            return f"has a {name} that is no parameter"
    return None


def hooks_of_all():
    """Has someone hooked into every module there is?"""
    return bool(everyone._global_forward_hooks or everyone._global_forward_pre_hooks or everyone._global_backward_hooks
                or everyone._global_backward_pre_hooks)


class Tree:
    """The modules that a layer is made of: the class of each, by its name in the layer, parents first. functions: what else is
    called by its name, as (module, name)."""

    def __init__(self, kinds, functions=()):
        names, self.parts = list(kinds), []
        for name, kind in kinds.items():
            parent, _, child = name.rpartition(".")
            self.parts.append((names.index(parent) if parent else -1, child, kind, name))
        self.forwards = [(kind, own_forward(kind)) for kind in dict.fromkeys(kinds.values())]
        self.functions = [(vars(sys.modules["transformers." + home]), name, own_function(home, name)) for home, name in functions]

    # A copy of a module is of the same classes.
    def __deepcopy__(self, memo):
        return self

    def find(self, layer):
        """The modules, in the order of the names; or in words which of them is not what it was."""
        if hooks_of_all():
            return "there are hooks on all modules"
        for kind, forward in self.forwards:
            if kind.forward is not forward:
                return f"{kind.__name__} has not the forward that it was written with"
        for where, name, function in self.functions:
            if function is None or where[name] is not function:
                return f"{name} is not that of transformers"
        found, traced = [], torch.compiler.is_compiling()
        for at, child, kind, name in self.parts:
            module = (layer if at < 0 else found[at])._modules.get(child)
            if traced and module is not None:
                module.forward  # so that a graph is made anew where it becomes another
            why = trouble(module, kind)
            if why is not None:
                return f"{name} {why}"
            found.append(module)
        return found


def activation_of(act):
    """An activation as the language has it; None where it is not known."""
    kind, gelu = type(act), nn.functional.gelu
    inner = act.__dict__.get("act")
    if kind is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(act.approximate)
    if kind is nn.SiLU or kind is own_class("activations", "SiLUActivation"):
        return "silu"
    if kind is own_class("activations", "NewGELUActivation"):
        return "gelu_tanh"
    if kind is own_class("activations", "GELUTanh"):
        fast = isinstance(inner, functools.partial) and (inner.func, inner.args, inner.keywords) == (gelu, (), {"approximate": "tanh"})
        return "gelu_tanh" if fast or getattr(inner, "__func__", None) is kind._gelu_tanh_python else None
    if kind is own_class("activations", "GELUActivation"):
        return "gelu" if inner is gelu or getattr(inner, "__func__", None) is kind._gelu_python else None
    return None


def weight_of(module):
    """None where someone made it something else than a parameter."""
    return None if "weight" in module.__dict__ else module._parameters.get("weight")


def bias_of(module):
    """As weight_of. That of a linear layer may be missing: trouble() says whether it is elsewhere."""
    return None if "bias" in module.__dict__ else module._parameters.get("bias")


def are_numbers(values):
    for n in values:
        if type(n) not in NUMBERS:
            return False
    return True


def fit(x, tensors):
    """Are all of them plain tensors of one type? Others are for the model's own arithmetic."""
    dtype = x.dtype
    if type(x) not in PLAIN or dtype not in TYPES:
        return False
    for t in tensors:
        if type(t) not in PLAIN or t.dtype is not dtype:
            return False
    return True

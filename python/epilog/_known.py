"""What is known of transformers and of torch.nn: classes and functions by identity, never by name.

epilog.apply replaces a module where it is exactly what its program was written for: of a class that its own module of transformers
defines, with the forward that is written there, on which nobody has hung a hook or set another forward, and with the functions below it
that it calls by name (Names). All of it is asked again at each call, since it may have changed.
"""
import dis
import functools
import operator
import sys
import types
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as everyone  # where hooks of all modules are
from torch.utils._device import DeviceContext

PLAIN = (torch.Tensor, nn.Parameter)
TYPES = (torch.float32, torch.bfloat16, torch.float16)
HOMES = "torch", "transformers"
CALLED = types.FunctionType, types.BuiltinFunctionType
BELOW = ("transformers.models.", "transformers.loss.", "transformers.integrations.sdpa_attention", "transformers.activations",
         "torch.nn.functional")  # where functions are looked through for what they call
NUMBERS = (int, float, type(None))  # what a program takes beside tensors: what is learned is none of them


def is_own(function, home, name):
    """Is a function the one that a module defines by that name, in decorators of transformers' and PyTorch's alone?"""
    while isinstance(function, types.FunctionType):
        if function.__globals__ is vars(home):
            return function.__qualname__ == name
        if function.__globals__.get("__name__", "").split(".")[0] not in HOMES:
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


class Experts(NamedTuple):
    """Of a family with experts: what the classes of their block and its router are called behind the family's name, and the router in the block;
    whether it has an MLP for all tokens; whether its gate is the one of gpt-oss, and the block returns the weights too; whether the router is
    model_router's; whether its weights always sum to 1, and are f32."""
    block: str
    router: str
    router_at: str = "gate"
    shared: bool = False
    clamped: bool = False
    routes: bool = True
    normalized: bool = False


class Known(NamedTuple):
    """Of a family: its module of transformers, and what the classes of a layer and of a model with a loss are called behind its name. gpt2: its
    layers are as GPT-2's. window: what has the size of one, attention or its configuration. head_norm: queries and keys have norms of their own.
    gemma: norms behind attention and MLP as well, all of which store their gains less 1, and soft caps. experts: then nothing but those and norms
    is known of it."""
    home: str
    layer: str = "DecoderLayer"
    head: str = "ForCausalLM"
    gpt2: bool = False
    window: str = None
    head_norm: bool = False
    gemma: bool = False
    experts: Experts = None


MODELS = {  # all that epilog.apply knows of a model by the name of its family
    "Llama": Known("llama"), "Mistral": Known("mistral", window="config"), "Qwen2": Known("qwen2", window="attention"),
    "Qwen3": Known("qwen3", window="attention", head_norm=True), "Gemma2": Known("gemma2", window="attention", gemma=True),
    "GPT2": Known("gpt2", "Block", "LMHeadModel", gpt2=True),
    "Mixtral": Known("mixtral", experts=Experts("SparseMoeBlock", "TopKRouter", normalized=True)),
    "Qwen3Moe": Known("qwen3_moe", experts=Experts("SparseMoeBlock", "TopKRouter")),
    "Olmoe": Known("olmoe", experts=Experts("SparseMoeBlock", "TopKRouter")),
    "GptOss": Known("gpt_oss", experts=Experts("MLP", "TopKRouter", "router", clamped=True)),
    "DeepseekV3": Known("deepseek_v3", experts=Experts("MoE", "TopkRouter", shared=True, routes=False))}


class Family:
    """The classes of a family of models, by what they are in it; None where one of them is not its module's own, or it has none. Of a family with
    experts, layers and the loss, which has a part of the router's, are known only to be told of."""

    def __init__(self, name):
        self.name, self.known = name, MODELS[name]
        self.home, experts = f"models.{self.known.home}.modeling_{self.known.home}", self.known.experts
        of = lambda kind, there=True: own_class(self.home, name + kind) if there else None
        self.layer, self.head, self.norm = of(self.known.layer), of(self.known.head), of("RMSNorm")
        self.attention, self.mlp, self.rotary, self.model = (of(kind, not experts) for kind in ("Attention", "MLP", "RotaryEmbedding", "Model"))
        self.block, self.router, self.experts = (of(experts.block), of(experts.router), of("Experts")) if experts else (None, None, None)
        self.shared = of("MLP", experts and experts.shared)


def families():
    """Those whose modules are loaded."""
    return [Family(name) for name, known in MODELS.items() if f"transformers.models.{known.home}.modeling_{known.home}" in sys.modules]


def plain_type(module):
    """Its class; behind those that apply and fully_shard make of it, where they did."""
    kind, sharded = type(module), sys.modules.get("torch.distributed.fsdp")
    while True:
        if "_epilog_kind" in vars(kind):
            kind = kind._epilog_kind
        elif sharded is not None and len(kind.__bases__) == 2 and kind.__bases__[0] is sharded.FSDPModule:
            kind = kind.__bases__[1]
        else:
            return kind


def class_name(kind, beside):
    """The name of a class; with its module where another one is called the same."""
    return kind.__name__ if kind.__name__ != beside.__name__ else f"{kind.__module__}.{kind.__qualname__}"


def trouble(module, kind):
    """Why a module is not plainly one of that class, or None."""
    if type(module) is not kind and ("_epilog_kind" not in vars(type(module)) or type(module)._epilog_kind is not kind):
        return f"is a {class_name(type(module), kind)}, not a plain {kind.__name__}"
    own = module.__dict__
    if own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return "has hooks"
    if own["_forward_hooks"] and not are_idle(own["_forward_hooks"]):
        return "has hooks"
    if "forward" in own:
        return "has its own forward"
    for name in ("weight", "bias"):
        if name in own or name in own["_buffers"]:
            return f"has a {name} that is not a parameter"
    return None


def are_idle(hooks):
    """Are they all such by which transformers collects results of modules (output_hidden_states), and this call asks for none of theirs? From
    the first call on that asked for some, they stay."""
    install = own_function("utils.output_capturing", "install_output_capuring_hook")
    if install is None or torch.compiler.is_compiling():
        return False
    made, asked = install.__code__.co_consts, install.__globals__["_active_collector"].get()
    for hook in hooks.values():
        code = getattr(hook, "__code__", None)
        if not any(code is c for c in made) or (asked and hook.__closure__[code.co_freevars.index("key")].cell_contents in asked):
            return False
    return True


def hooks_of_all():
    """Has someone hooked into every module there is?"""
    return bool(everyone._global_forward_hooks or everyone._global_forward_pre_hooks or everyone._global_backward_hooks
                or everyone._global_backward_pre_hooks)


def is_original(function, name):
    """Is a function one that PyTorch or transformers has by that name?"""
    home = function.__globals__.get("__name__", "") if isinstance(function, types.FunctionType) else "torch"
    return isinstance(function, CALLED) and function.__name__ == name and home.split(".")[0] in HOMES


def called_by(function):
    """What a function calls by a name of its module, or of one that it names: (module, name, what that is now)."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    home, holder = sys.modules.get(function.__globals__.get("__name__")), None
    for step in dis.get_instructions(function):
        holder = home if step.opname == "LOAD_GLOBAL" else holder if step.opname in ("LOAD_ATTR", "LOAD_METHOD") else None
        found = getattr(holder, step.argval, None) if type(holder) is types.ModuleType else None
        ours = found is not None and holder.__name__.split(".")[0] in HOMES and "torch_function" not in step.argval
        if ours and callable(found) and not isinstance(found, type):
            yield holder, step.argval, found
        holder = found


class Names:
    """The functions that others call by name, from some on down to PyTorch's own: where each is found, and what it was. kinds: classes,
    whose forward and __call__ are among them."""

    def __init__(self, functions, kinds=()):
        known, todo, self.why = {}, list(functions), None
        if not is_own(nn.Module.__call__, everyone, "Module._wrapped_call_impl") or not is_own(nn.Module._call_impl, everyone, "Module._call_impl"):
            self.why = "torch.nn.Module.__call__ was replaced"
        for kind in kinds:
            known[kind] = dict(forward=own_forward(kind), __call__=nn.Module.__call__, _call_impl=nn.Module._call_impl)
            todo.append(known[kind]["forward"])
        while todo:
            function = todo.pop()
            for holder, name, found in called_by(function) if function is not None else ():
                if name in known.setdefault(holder, {}):
                    continue
                known[holder][name] = found
                if not is_original(found, name):
                    self.why = self.why or f"{holder.__name__}.{name} was replaced"
                elif isinstance(found, types.FunctionType) and found.__globals__["__name__"].startswith(BELOW):
                    todo.append(found)
        self.known = [(holder, operator.attrgetter(*names, "__name__"), (*names.values(), holder.__name__), tuple(names.items()))
                      for holder, names in known.items() if names]

    # A copy of a module calls the same functions.
    def __deepcopy__(self, memo):
        return self

    def changed(self):
        """In words what is not what it was, or None."""
        if self.why is not None:
            return self.why
        if torch.compiler.is_compiling():
            return self.changed_in_graph()
        for holder, get, values, _ in self.known:
            if get(holder) != values:
                return f"functions of {holder.__name__} were replaced"
        return None

    def changed_in_graph(self):
        """The same where torch.compile looks: a graph is made anew where one of them becomes another."""
        for holder, _, _, names in self.known:
            for name, value in names:
                if getattr(holder, name) is not value:
                    return "functions were replaced"
        return None


def watched():
    """Does someone look at, or change, what PyTorch's functions do: a mode, a trace, a transform of torch.func? That of a default device
    changes none that a layer calls."""
    if torch._C._len_torch_function_stack():
        for mode in torch.overrides._get_current_function_mode_stack():
            if type(mode) is not DeviceContext:
                return True
    if torch.compiler.is_compiling():
        return False
    return torch._C._len_torch_dispatch_stack() > 0 or torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None


class Tree:
    """The modules that a layer is made of: the class of each, by its name in the layer, parents first. And what they call."""

    def __init__(self, kinds, functions=()):
        names, self.parts = list(kinds), []
        for name, kind in kinds.items():
            parent, _, child = name.rpartition(".")
            self.parts.append((names.index(parent) if parent else -1, child, kind, name))
        self.names = Names(functions, dict.fromkeys(kinds.values()))

    # A copy of a module is of the same classes.
    def __deepcopy__(self, memo):
        return self

    def find(self, layer):
        """The modules, in the order of the names; or in words which of them is not what it was."""
        if hooks_of_all():
            return "there are global hooks on modules"
        why = "a mode, a trace or a transform watches PyTorch's functions" if watched() else self.names.changed()
        if why is not None:
            return why
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

"""epilog.apply and epilog.restore: Hugging Face models with their layers carried out by Epilog.

Modules stay where they are, with their weights and names; only their forward is another (_patched.py): that of a class which is made of
theirs, so that a copy of a module, a shallow one too, has it with weights of its own. A module is replaced where it is exactly what is
known (_known.py), and looks at every call whether it still is: if not, it does as it did before.
"""
import fnmatch
import functools
import types
import warnings

from torch import nn

from . import _blocks
from ._attention import give_back, is_ours, take_place, why_not
from ._generate import decoders
from ._known import MODELS, class_name, families, plain_type
from ._report import OFF, Report
from ._patched import (Block, GPT2MLP, Head, Layer, Norm, Rotary, Unknown, causal_lm_forward, gpt2_forward, gpt2_mlp_forward, layer_forward,
                       layer_norm_forward, need, norm_forward, rotary_forward)


@functools.lru_cache(None)
def patched(kind, function):
    """A class like `kind` but for its forward, whose signature, at which others look, is the old one's."""
    forward = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    forward.__kwdefaults__ = function.__kwdefaults__
    return type(kind.__name__, (kind,), dict(__module__=kind.__module__, __qualname__=kind.__qualname__, __doc__=kind.__doc__,
                                             _epilog_kind=kind, forward=functools.wraps(kind.forward)(forward)))


def set_forward(module, parts, function):
    """Another forward for this one module, and what it has to know."""
    need("forward" not in module.__dict__, "it has its own forward")
    module._epilog = parts
    module.__class__ = patched(type(module), function)


PLAIN = "the model's with dropout, with your own mask, and on a GPU except Hopper in 16 bits"


class Applying:
    """One call of apply: goes through the modules of a model, and replaces what is known."""

    def __init__(self, model, loss_chunks, check_indices, wanted, fp8, fp8_except):
        self.model, self.report, self.families, self.wanted = model, Report(), families(), wanted
        self.fp8, self.excepted = fp8, {pattern: False for pattern in fp8_except}  # whether a layer has that name
        self.loss, self.inside, self.layers = (loss_chunks, check_indices), set(), []

    def what(self, module):
        """(family, what it is in it) of a module that is, or claims to be, of a known class; None for all others."""
        kind = plain_type(module)
        for family in self.families:
            for role in ("layer", "head", "norm", "mlp", "block", "router"):
                known = getattr(family, role, None)
                if known is not None and (isinstance(module, known) or kind.__name__ == known.__name__):
                    return family, role
        return (None, "norm") if isinstance(module, nn.LayerNorm) else None

    def replace(self, name, module):
        """Replaces one module, if it is known and wanted."""
        family, role = self.what(module) or (None, None)
        if role is None or id(module) in self.inside or (role == "mlp" and not family.known.gpt2):
            return
        switch = {"layer": "layers", "head": "loss", "norm": "norms", "mlp": "mlp", "block": "experts", "router": "experts"}[role]
        try:
            need(self.wanted[switch], OFF)
            known = nn.LayerNorm if family is None else getattr(family, role)
            need(plain_type(module) is known, f"it is a {class_name(type(module), known)}, not a plain {known.__name__}")
            getattr(self, role)(name, module, family)
        except Unknown as why:
            self.report.left.append((name or "the model", str(why)))

    def layer(self, name, module, family):
        need(family.known.experts is None, "of a layer with experts, only the experts and the norms are supported")
        gpt2 = family.known.gpt2
        if not gpt2:
            need(family.rotary is not None, f"{family.name}RotaryEmbedding is not the one of transformers")
        parts = Block(module, family) if gpt2 else Layer(module, family)
        parts.report, parts.name = self.report, f"{name}.{'attn' if gpt2 else 'self_attn'}"
        set_forward(module, parts, gpt2_forward if gpt2 else layer_forward)
        fp8 = self.fp8 and self.is_eight(name, module, parts)
        if fp8:
            parts.use8()
        where = (", without dropout" if gpt2 else "") + (", in training with products of e4m3 and with attention between them" if fp8 else "")
        self.layers.append((name, module, "attn" if gpt2 else "self_attn", where))
        if not gpt2:  # a block's norms and MLP are replaced as well, for calls that the whole is not for
            self.inside.update(id(m) for m in module.modules())

    def is_eight(self, name, module, parts):
        """Are products of a layer to be of e4m3? What stays in its type is told."""
        patterns = [p for p in self.excepted if fnmatch.fnmatchcase(name, p)]
        self.excepted.update(dict.fromkeys(patterns, True))
        why = OFF if patterns else parts.why_not8(module)
        if why:
            self.report.left.append((name, f"its products are not converted to e4m3: {why}"))
        return why is None

    def head(self, name, module, family):
        need(family.known.experts is None, "its loss includes the router's loss")
        set_forward(module, Head(module, family, *self.loss), causal_lm_forward)
        self.report.replaced.append((name or "the model", "the loss in training, together with lm_head"))

    def norm(self, name, module, family):
        if family is None:
            need(len(module.normalized_shape) == 1 and module.weight is not None and module.bias is not None,
                 "LayerNorm over several axes, or without weight or bias")
            set_forward(module, Norm(nn.LayerNorm, None), layer_norm_forward)
        else:
            set_forward(module, Norm(family.norm, family), norm_forward)
        self.report.replaced.append((name, "RMSNorm" if family else "LayerNorm"))

    def mlp(self, name, module, family):
        set_forward(module, GPT2MLP(module, family), gpt2_mlp_forward)
        self.report.replaced.append((name, "MLP"))

    def block(self, name, module, family):
        set_forward(module, _blocks.Block(module, family), _blocks.block_forward)
        self.report.replaced.append((name, "experts as one program"))
        if self.fp8:
            self.report.left.append((name, "its products are not converted to e4m3: those of experts never are"))

    def router(self, name, module, family):
        set_forward(module, _blocks.Router(family), _blocks.router_forward)
        self.report.replaced.append((name, "router as one program, with the choice"))

    def attention(self, wanted):
        """Whose attention it is. Masks are made by a model's configuration, for all of its layers: it is Epilog's where all are."""
        ours, mixed = {id(module) for _, module, _, _ in self.layers}, set()
        for beside in self.model.modules():
            if isinstance(beside, nn.ModuleList) and not all(id(m) in ours for m in beside):
                mixed.update(id(m) for m in beside)
        told, taken = [], []
        for name, module, child, where in self.layers:
            beside = "other layers of the model were not replaced" if id(module) in mixed else None
            why = OFF if not wanted else beside or why_not(getattr(module, child))
            taken += [] if why else [getattr(module, child)]
            told.append((name, ("two programs around attention" if why else "one program") + where))
            self.report.left.append((f"{name}.{child}", "attention itself " + (f"stays the model's: {why}" if why else f"is {PLAIN}")))
        if taken:
            take_place(self.model, taken)
        self.report.replaced[:0] = told

    def tables(self):
        """Rotary embeddings say of their tables that they are known."""
        known = {family.rotary for family in self.families} - {None}
        for module in self.model.modules():
            if plain_type(module) in known and "forward" not in module.__dict__:
                set_forward(module, Rotary(plain_type(module)), rotary_forward)

    def unknown(self, name, module):
        """Lists of layers of which none is known are told of."""
        kinds = {type(m) for m in module}
        if len(kinds) == 1 and not any(self.what(m) for m in module) and any(True for _ in module.parameters()):
            self.report.left.append((name, f"{len(module)} {kinds.pop().__name__}: not a supported layer"))


def apply(model, attention="epilog", loss_chunks=1, *, layers=True, norms=True, mlp=True, experts=True, loss=True, check_indices=False,
          fp8=False, fp8_except=(), memory=None):
    """Lets Epilog carry out the layers of a Hugging Face model that it knows. Returns a Report; restore() undoes it. Called again, it
    looks at the model as it is then.

    attention: "epilog", or "sdpa", which leaves it to what the model has, PyTorch's as a rule. Epilog's is for causal sequences, padded or
    packed ones among them, without dropout, on the CPU and, in 16 bits, on Hopper: else it is what the model has, call by call.
    loss_chunks: in how many pieces of tokens the loss is computed in training (linear_cross_entropy).
    layers, norms, mlp, experts, loss: False leaves alone whole decoder layers, norms elsewhere, GPT-2's MLPs, blocks of experts, the loss
    with lm_head.
    check_indices: labels are looked through on a GPU, too, which waits for it.
    fp8: in training (model.train()) the linear layers of decoder layers have products of e4m3, as epilog.nn.Linear8 has them; attention,
    norms, lm_head and the loss stay as they are, and so do weights, their gradients and all of model.eval(). Sizes are multiples of 128.
    fp8_except: names of layers for which that does not hold, or patterns of them, as ("model.layers.0", "model.layers.31").
    memory: bytes that all decoder layers together may keep for the backward of a step; None for as many as make it fastest. As many layers as it
    takes make the first products of their MLPs again instead of keeping them. Not for products of e4m3.
    """
    if isinstance(fp8_except, str) or (fp8_except and not fp8):
        raise ValueError("fp8_except must be a list of layer names, and needs fp8=True")
    if attention not in ("epilog", "sdpa"):
        raise ValueError(f"attention is {attention!r}: it must be epilog or sdpa")
    if memory is not None and (type(memory) not in (int, float) or not memory >= 0):
        raise ValueError(f"memory is {memory!r}: it must be a number of bytes, or None")
    restore(model)
    work = Applying(model, loss_chunks, check_indices, dict(layers=layers, norms=norms, mlp=mlp, experts=experts, loss=loss),
                    fp8, fp8_except)
    for name, module in list(model.named_modules()):
        work.replace(name, module)
        if isinstance(module, nn.ModuleList):
            work.unknown(name, module)
    unmet = [pattern for pattern, met in work.excepted.items() if not met]
    if unmet:
        restore(model)
        raise ValueError(f"fp8_except names {', '.join(unmet)}: there is no such supported layer")
    if fp8 and not any(module._epilog.programs8 for _, module, _, _ in work.layers):
        warnings.warn(f"epilog.apply(fp8=True) found no layer whose products can use e4m3:\n{work.report}", stacklevel=2)
    if work.layers:
        work.tables()
    for index, (_, module, _, _) in enumerate(work.layers):
        if memory is not None:
            module._epilog.limit(memory, index, len(work.layers), module)
    work.attention(attention == "epilog")
    if not work.report.replaced:
        if not work.report.left:
            with_experts = [name for name, known in MODELS.items() if known.experts]
            others = ", ".join(name for name in MODELS if name not in with_experts)
            work.report.left.append((type(model).__name__, f"nothing in it is supported: {others} are, and experts of {', '.join(with_experts)}"))
        warnings.warn(f"epilog.apply replaced nothing:\n{work.report}", stacklevel=2)
    return work.report


def restore(model):
    """Undoes apply: every module does again what its class says. Returns how many were changed back."""
    count = 0
    for module in model.modules():
        if is_ours(getattr(module, "config", None)):
            give_back(module.config)
        if "_epilog_kind" in vars(type(module)):  # else someone may have made another class of it, which does as the one before
            module.__class__ = type(module)._epilog_kind
        if "_epilog" in module.__dict__:
            del module._epilog
            count += 1
        decoders.pop(module, None)
    return count

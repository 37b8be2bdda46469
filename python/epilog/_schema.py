"""What the arguments of a node are called: PyTorch's own names for them, however they were given.

A node has its arguments by place or by name, and a method has its tensor before it. Which is which PyTorch's schemas say, and the signatures of
what it has in Python. Of several overloads it is the first whose arguments have these names and types.
"""
import functools
import inspect
import operator

import torch
from torch.jit._builtins import _find_builtin

# Of one argument with several names, the one that the rows of _say.py have. The second line is NumPy's, which PyTorch takes everywhere.
SPELLINGS = {"self": "input", "tensor": "input", "split_size_or_sections": "split_size", "train": "training",
             "axis": "dim", "keepdims": "keepdim", "x1": "input", "x2": "other"}
# What has its arguments by place alone.
PLACES = {operator.getitem: ("input", "index"), operator.pow: ("input", "exponent"), getattr: ("input", "name")}
# Methods without a schema.
CASTS = {name: torch._C.parse_schema(f"aten::{name}(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor") for name in ("float", "half", "bfloat16")}
NUMBERS = int, float, complex, torch.SymInt, torch.SymFloat
FITS = {"TensorType": torch.Tensor, "NumberType": NUMBERS, "FloatType": (int, float, torch.SymInt, torch.SymFloat), "BoolType": (bool, torch.SymBool),
        "IntType": (int, torch.SymInt, torch.dtype, torch.layout, torch.memory_format), "StringType": str, "DeviceObjType": (torch.device, str, int)}


def example(node):
    """What dynamo says that a node is."""
    return node.meta.get("example_value", node.meta.get("val"))


def has_type(value, kind, is_one=False):
    """Can an argument of this type of a schema be such a value? is_one: a list may be its only element."""
    if kind.kind() == "OptionalType":
        return value is None or has_type(value, kind.getElementType(), is_one)
    if kind.kind() == "ListType":
        one = kind.getElementType()
        return all(has_type(v, one) for v in value) if isinstance(value, (tuple, list)) else is_one and has_type(value, one)
    return isinstance(value, FITS.get(kind.kind(), ())) and (kind.kind() != "IntType" or not isinstance(value, bool))


class Form:
    """One way to call a function: of a schema, by which a method's tensor is the argument `self`, wherever that stands."""

    def __init__(self, schema, method):
        self.arguments = {a.name: a for a in schema.arguments}
        self.defaults = {name: a.default_value for name, a in self.arguments.items() if a.has_default_value()}
        self.places = [a.name for a in schema.arguments if not a.kwarg_only]
        if method and "self" in self.places:
            self.places = ["self", *(name for name in self.places if name != "self")]
        first = self.arguments[self.places[1]] if method and len(self.places) == 2 else None
        self.is_variadic = first is not None and str(first.type) == "List[int]"  # x.view(2, 3)

    def bind(self, args, kwargs):
        """{name: argument}, or None where they are not of this form."""
        if self.is_variadic and len(args) > 1 and all(has_type(a, self.arguments[self.places[1]].type.getElementType()) for a in values(args[1:])):
            args = args[0], tuple(args[1:])
        named = {next((n for n in self.arguments if n == name or SPELLINGS.get(n, n) == SPELLINGS.get(name, name)), name): a for name, a in kwargs.items()}
        found = dict(zip(self.places, args)) | named
        if len(args) > len(self.places) or len(found) != len(args) + len(kwargs) or not self.arguments.keys() >= found.keys():
            return None
        if not found.keys() | self.defaults.keys() >= self.arguments.keys():
            return None
        return found if all(has_type(v, self.arguments[n].type, self.arguments[n].N) for n, v in zip(found, values(found.values()))) else None


class Signature:
    """The same of a function that is written in Python."""

    def __init__(self, function):
        self.signature = inspect.signature(function)
        self.arguments = self.signature.parameters
        self.defaults = {name: p.default for name, p in self.arguments.items() if p.default is not p.empty}

    def bind(self, args, kwargs):
        try:
            return dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError:
            return None


class Places:
    """The same of an operator of Python."""

    def __init__(self, names):
        self.arguments, self.defaults = dict.fromkeys(names), {}

    def bind(self, args, kwargs):
        return dict(zip(self.arguments, args)) if len(args) <= len(self.arguments) and not kwargs else None


def values(args):
    return torch.fx.map_arg(tuple(args), example)


@functools.lru_cache(None)
def forms(target):
    """The ways to call a function, or the method of this name."""
    if target in PLACES or getattr(target, "__module__", None) == "_operator":
        return [Places(PLACES.get(target) or ("input", "other")[:len(inspect.signature(target).parameters)])]
    method = getattr(torch.Tensor, target, None) if isinstance(target, str) else None
    function = target if method is None else method
    if inspect.isfunction(function):
        return [Signature(function)]
    if target in CASTS:
        return [Form(CASTS[target], True)]
    name = f"aten::{target}" if method is not None else _find_builtin(target)
    return [Form(s, method is not None) for s in torch._C._jit_get_schemas_for_operator(name)] if name else []


def bound(node):
    """{name: argument} of a node, without those that are as they would be anyway. None: of no form that PyTorch tells."""
    for form in forms(node.target):
        found = form.bind(node.args, node.kwargs)
        if found is not None:
            return {SPELLINGS.get(name, name): a for name, a in found.items() if name not in form.defaults or not is_same(a, form.defaults[name])}
    return None


def is_same(a, b):
    return a is b or isinstance(a, (bool, int, float, str)) and type(b) in (bool, int, float, str) and a == b


def argument(node, name):
    """An argument of a node, None where it is not given or as it would be anyway."""
    return (bound(node) or node.kwargs).get(name)

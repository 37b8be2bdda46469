"""Epilog: Transformer arithmetic as short texts, fused, with derived gradients, on PyTorch tensors."""
from . import _version  # before anything that an older PyTorch lacks
from . import _calls, nn
from ._backend import explain, register
from ._library import EpilogError, EpilogIndexError, EpilogValueError, library
from ._op import Op, op
from ._transformers import Report, apply, restore

__all__ = ["EpilogError", "EpilogIndexError", "EpilogValueError", "Op", "Report", "apply", "explain", "nn", "op", "restore"]
__version__ = library().epi_version().decode()
register()

"""Epilog: Transformer arithmetic as short texts, fused, with derived gradients, on PyTorch tensors."""
from ._library import EpilogError, EpilogIndexError, EpilogValueError, library
from ._op import Op, op

__all__ = ["EpilogError", "EpilogIndexError", "EpilogValueError", "Op", "op"]
__version__ = library().epi_version().decode()

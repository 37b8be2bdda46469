"""Epilog: Transformer arithmetic as short texts, fused, with derived gradients, on PyTorch tensors."""
from . import _version  # before anything that an older PyTorch lacks
from . import _calls, nn
from ._backend import explain, register
from ._generate import Generated, LogProbs, generate, log_probs
from ._library import EpilogError, EpilogIndexError, EpilogValueError, library
from ._op import Op, op
from ._quantise import quantise
from ._report import Report
from ._transformers import apply, restore

__all__ = ["EpilogError", "EpilogIndexError", "EpilogValueError", "Generated", "LogProbs", "Op", "Report", "apply", "explain", "generate", "log_probs", "nn", "op", "quantise", "restore"]
__version__ = library().epi_version().decode()
register()

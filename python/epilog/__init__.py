"""Epilog: Transformer arithmetic as short texts, fused, with derived gradients, on PyTorch tensors. about() tells what is installed.."""
from . import _version  # before anything that an older PyTorch lacks
from . import _calls, nn
from ._about import about
from ._backend import explain, register
from ._generate import Generated, LogProbs, generate, log_probs
from ._library import EpilogError, EpilogIndexError, EpilogValueError, library
from ._op import Op, op
from ._quantise import quantise
from ._report import Report
from ._transformers import apply, restore

__all__ = ["EpilogError", "EpilogIndexError", "EpilogValueError", "Generated", "LogProbs", "Op", "Report", "about", "apply", "explain", "generate", "log_probs", "nn", "op", "quantise", "restore"]
__distribution__ = "epilog-kernels"  # what pip calls it; `epilog` there is another project
__version__ = library().epi_version().decode()
register()

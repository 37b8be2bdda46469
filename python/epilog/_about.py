"""What is installed here, and what it finds on this machine."""
import os
import shutil
import subprocess

import torch

from ._library import library, text_of

HERE = os.path.dirname(os.path.abspath(__file__))


def commit():
    """The commit that the package is of: a wheel has it written down, a clone asks git."""
    try:
        from ._commit import COMMIT
        return COMMIT
    except ImportError:
        root = os.path.join(HERE, "..", "..")
        told = shutil.which("git") and os.path.exists(os.path.join(root, ".git")) and subprocess.run(
            ["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        return told and told.stdout.strip() or "unknown"


def about():
    """Version, commit, compiler, CPU kernels, GPUs, and NVRTC or why it is not there, as lines of text."""
    lib = library()
    version, *lines = text_of(lib.epi_describe_build, lib.context).splitlines()
    return "\n".join([version, f"commit: {commit()}", *lines, f"library: {os.path.abspath(lib.path)}", f"PyTorch: {torch.__version__}"])

"""What has to be so before the rest is imported: a PyTorch that is new enough, and no other distribution in this folder. Told here, before
something is missed in the middle of a call."""
import importlib.metadata
import os
import warnings

import torch

OLDEST = 2, 9
HERE = os.path.dirname(os.path.abspath(__file__))


def check(version):
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if found < OLDEST:
        raise ImportError(f"Epilog needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer: this is {version}")


def warn_of_others(folder=HERE):
    """A warning where the distribution named epilog, which is another project, has files in this folder: pip would take them away with it."""
    try:
        other = importlib.metadata.distribution("epilog")
    except importlib.metadata.PackageNotFoundError:
        return
    folders = {str(other.locate_file(file.parts[0])) for file in other.files or ()}
    if any(os.path.isdir(f) and os.path.samefile(f, folder) for f in folders):
        warnings.warn(f"the distribution epilog {other.version} has files in {folder}, the folder of epilog-kernels: run pip uninstall epilog, "
                      "then pip install --force-reinstall --no-deps epilog-kernels", stacklevel=4)


check(torch.__version__)
warn_of_others()

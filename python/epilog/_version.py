"""Which PyTorch is needed: told here, before something is missed in the middle of a call."""
import torch

OLDEST = 2, 9


def check(version):
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if found < OLDEST:
        raise ImportError(f"Epilog needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer: this is {version}")


check(torch.__version__)

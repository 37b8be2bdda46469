"""The wheel: make builds both libraries, which go into the package. They are linked with neither Python nor PyTorch, so one
wheel does for all versions of them."""
import os
import re
import shutil
import subprocess

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("EPILOG_BUILD", os.path.join(ROOT, "build"))
LIBRARIES = ["libepilog.so", "libepilog_torch.so"]


class Build(build_py):
    def run(self):
        super().run()
        subprocess.check_call(["make", "-C", ROOT, "-s", f"-j{os.cpu_count()}", f"BUILD={BUILD}", *[f"{BUILD}/{n}" for n in LIBRARIES]])
        for name in LIBRARIES:
            shutil.copy(f"{BUILD}/{name}", os.path.join(self.build_lib, "epilog", name))


def newest_glibc():
    """The newest version of glibc that a symbol of the libraries asks for: 34 of 2.34."""
    found = {2}
    for name in LIBRARIES:
        with open(f"{BUILD}/{name}", "rb") as f:
            found.update(int(n) for n in re.findall(rb"GLIBC_2\.(\d+)", f.read()))
    return max(found)


class Wheel(bdist_wheel):
    """Linux with such a glibc is all that the libraries need (manylinux, PEP 600)."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2].replace("linux_", f"manylinux_2_{newest_glibc()}_", 1)


class Binary(Distribution):
    def has_ext_modules(self):
        return True


with open(os.path.join(ROOT, "Makefile")) as f:
    version = re.search(r"^VERSION := (\S+)", f.read(), re.M).group(1)
setup(version=version, cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Binary)

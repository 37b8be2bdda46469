"""The wheel: make builds libepilog.so, which goes into the package. It has no Python in it, so one wheel does for all."""
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


class Build(build_py):
    def run(self):
        super().run()
        subprocess.check_call(["make", "-C", ROOT, "-s", f"-j{os.cpu_count()}", f"BUILD={BUILD}", f"{BUILD}/libepilog.so"])
        shutil.copy(f"{BUILD}/libepilog.so", os.path.join(self.build_lib, "epilog", "libepilog.so"))


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Binary(Distribution):
    def has_ext_modules(self):
        return True


with open(os.path.join(ROOT, "Makefile")) as f:
    version = re.search(r"^VERSION := (\S+)", f.read(), re.M).group(1)
setup(version=version, cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Binary)

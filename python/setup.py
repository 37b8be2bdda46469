"""The wheel: make builds the libraries, which go into the package. They are linked with neither Python nor PyTorch, so one
wheel does for all versions of them."""
import atexit
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("EPILOG_BUILD", os.path.join(ROOT, "build"))
HEADER = os.path.join(ROOT, "include", "epilog.h")
LIBRARIES = ["libepilog.so", "libepilog_torch.so"]
HEADERS = ["epilog.h", "epilog_io.h"]
OLDEST_GLIBC = 28  # of 2.28: what python/glibc.c makes of newer symbols


def refuse(why):
    sys.exit(f"epilog-kernels cannot be built here: {why}")


def look_around():
    """Says in a sentence what to do where the libraries cannot be built."""
    if sys.platform != "linux":
        refuse(f"it runs on Linux, and this is {platform.system() or sys.platform}; use a Linux machine, a container, or WSL 2 on Windows.")
    if sys.maxsize < 2**32:
        refuse("it needs a 64-bit Python on x86-64 or AArch64, and this Python has 32 bits; install a 64-bit one.")
    if not os.path.exists(HEADER):
        refuse(f"its sources in C are not beside {os.path.dirname(os.path.abspath(__file__))}; run pip install ./python in a whole clone.")
    if not shutil.which("make"):
        refuse("GNU make is missing; install it (apt install make, dnf install make), or install a wheel, which needs no compiler.")
    compiler = os.environ.get("CC", "cc").split()[0]
    if not shutil.which(compiler):
        refuse(f"there is no C compiler '{compiler}'; install GCC 12 or clang 14, or newer, name it by CC, or install a wheel, which needs none.")


def run_make(*targets):
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    command = ["make", "-C", ROOT, "-s", f"-j{os.cpu_count()}", f"BUILD={BUILD}", *[f"{BUILD}/{name}" for name in targets]]
    if subprocess.call(command, env=plain):
        refuse("make failed, and what it says stands above; GNU make and GCC 12 or clang 14, or newer, are needed.")


def commit():
    told = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True) if shutil.which("git") else None
    return told.stdout.strip() if told and told.returncode == 0 else "unknown"


class Build(build_py):
    def run(self):
        if self.editable_mode:  # the package takes the libraries of the build that is beside it
            run_make("libepilog.so", "libepilog_torch.so", "epilog")
            return super().run()
        super().run()
        run_make(*[f"wheel/{name}" for name in LIBRARIES])
        for name in LIBRARIES:
            shutil.copy(f"{BUILD}/wheel/{name}", os.path.join(self.build_lib, "epilog", name))
        os.makedirs(os.path.join(self.build_lib, "epilog", "include"), exist_ok=True)
        for name in HEADERS:
            shutil.copy(os.path.join(ROOT, "include", name), os.path.join(self.build_lib, "epilog", "include", name))
        with open(os.path.join(self.build_lib, "epilog", "_commit.py"), "w") as f:
            f.write(f'COMMIT = "{commit()}"\n')


def newest_glibc():
    """The newest version of glibc that a symbol of the libraries asks for: 34 of 2.34."""
    found = {OLDEST_GLIBC}
    for name in LIBRARIES:
        with open(f"{BUILD}/wheel/{name}", "rb") as f:
            found.update(int(n) for n in re.findall(rb"GLIBC_2\.(\d+)", f.read()))
    return max(found)


class Wheel(bdist_wheel):
    """Linux with such a glibc is all that the libraries need (manylinux, PEP 600)."""

    def get_tag(self):
        tag = super().get_tag()[2]
        if platform.libc_ver()[0] == "glibc":
            tag = tag.replace("linux_", f"manylinux_2_{newest_glibc()}_", 1)
        return "py3", "none", tag


class Binary(Distribution):
    def has_ext_modules(self):
        return True


look_around()
with open(HEADER) as f:
    version = ".".join(re.findall(r"^#define EPI_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", f.read(), re.M))
os.makedirs(BUILD, exist_ok=True)
between = tempfile.mkdtemp(prefix="python-", dir=BUILD)  # of this process: wheels may be made at once
atexit.register(shutil.rmtree, between, ignore_errors=True)
setup(version=version, cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Binary,
      options={"build": {"build_base": between}, "egg_info": {"egg_base": between}})

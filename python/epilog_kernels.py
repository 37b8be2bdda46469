"""The module that has the distribution's own name. PyTorch takes the backend from here, so that it can say what is wrong where another
package stands in the place of `epilog`. 
    epilog run softmax --dims T=8,D=8                   the command, which needs no PyTorch
    python -m epilog_kernels                            what is installed
    cc my.c $(python -m epilog_kernels --cflags --libs) a program in C with the library of this package
"""
import os
import sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "epilog")
AGAIN = "run pip uninstall epilog, then pip install --force-reinstall --no-deps epilog-kernels"


def package():
    """The package epilog of this distribution; an ImportError where `import epilog` finds another one."""
    import epilog
    found = getattr(epilog, "__file__", None)  # None: a folder without an __init__.py
    if found and os.path.realpath(os.path.dirname(found)) != os.path.realpath(HERE):
        raise ImportError(f"import epilog finds {found}, which is not the one of epilog-kernels ({HERE}): rename that file, or take its folder out of sys.path")
    if not found or getattr(epilog, "__distribution__", None) != "epilog-kernels":
        raise ImportError(f"another distribution wrote over {HERE}, or took files out of it: {AGAIN}")
    return epilog


def __getattr__(name):
    if name == "backend":  # of torch.compile
        package()
        from epilog._backend import backend
        return backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def command():
    """The command `epilog`: the same as make's, as a function of the library. In a tree that is not installed it is make's."""
    import ctypes
    import signal
    library, built = os.path.join(HERE, "libepilog.so"), os.path.join(HERE, "..", "..", "build", "epilog")
    if not os.path.exists(library):
        os.execv(built, ["epilog", *sys.argv[1:]])
    for number in (signal.SIGINT, signal.SIGPIPE):  # as a program in C has them, and not Python
        signal.signal(number, signal.SIG_DFL)
    words = [b"epilog", *map(os.fsencode, sys.argv[1:])]
    sys.exit(ctypes.CDLL(library).epi_command(len(words), (ctypes.c_char_p * (len(words) + 1))(*words)))


def flags(asked):
    """What a C compiler is told to use the library of this package: --cflags and --libs, as pkg-config takes them."""
    told = {"--cflags": f"-I{HERE}/include", "--libs": f"-L{HERE} -lepilog -Wl,-rpath,{HERE}"}
    unknown = [word for word in asked if word not in told]
    return f"usage: python -m epilog_kernels [--cflags] [--libs]; got {unknown[0]}" if unknown else " ".join(told[word] for word in asked)


if __name__ == "__main__":
    said = flags(sys.argv[1:]) or package().about()
    sys.exit(said) if said.startswith("usage") else print(said)

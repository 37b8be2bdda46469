"""The module that has the distribution's own name. PyTorch takes the backend from here, so that it can say what is wrong where another
package stands in the place of `epilog`. `python -m epilog_kernels` prints what is installed."""
import os

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


if __name__ == "__main__":
    print(package().about())

"""The name under which torch.compile finds the backend (_compile.py), which is imported only when it is asked for."""
from importlib.metadata import entry_points

NAME, GROUP = "epilog", "torch_dynamo_backends"


def backend(gm, inputs, mode=None, options=None):
    """A backend of torch.compile. options: {"rest": "inductor"}, "aot_eager" or "eager" for what is not in programs (_compile.py has the default);
    {"loss_chunks": 8} for losses whose logits nobody reads; others are Inductor's."""
    from ._compile import Report, compile_graph
    options = dict(options or {})
    rest, chunks = options.pop("rest", None), options.pop("loss_chunks", 1)
    if not isinstance(chunks, int) or chunks < 1:
        raise ValueError(f"loss_chunks is {chunks!r}: it must be 1 or more")
    return compile_graph(gm, inputs, Report(), rest, mode, options, chunks)


def explain(model, *args, **kwargs):
    """Prints what torch.compile(model, backend="epilog") makes of a call: programs, their kernels, what was left and why. Graphs that dynamo
    has made are forgotten, as by torch._dynamo.explain. Returns the report."""
    from ._compile import explained
    report = explained(model, args, kwargs)
    print(report)
    return report


def register():
    """Names the backend where the package's metadata does not: in a tree that is not installed."""
    if not any(e.name == NAME for e in entry_points(group=GROUP)):
        from torch._dynamo.backends.registry import _BACKENDS, register_backend
        if NAME not in _BACKENDS:
            register_backend(backend, name=NAME)

"""Before PyTorch is imported: graphs that torch.compile keeps on disk may be of another version of the package."""
import os
import tempfile

folder = tempfile.TemporaryDirectory(prefix="epilog-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name

import pytest  # noqa: E402


@pytest.fixture
def fresh():
    """Graphs of torch.compile are a test's own."""
    import torch
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def called(monkeypatch):
    """The names of the programs that have been called."""
    import epilog
    names, call = [], epilog.Op.__call__
    monkeypatch.setattr(epilog.Op, "__call__", lambda self, *args, **kwargs: names.append(self.name) or call(self, *args, **kwargs))
    return names

"""Before PyTorch is imported: graphs that torch.compile keeps on disk may be of another version of the package."""
import os
import tempfile
import zlib

folder = tempfile.TemporaryDirectory(prefix="epilog-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name

import pytest  # noqa: E402


@pytest.fixture(autouse=True)
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


def pytest_collection_modifyitems(config, items):
    """EPILOG_DRAW=1/20 takes one test of twenty by EPILOG_SEED, as tests/draw.h does for the programs in C."""
    of = int(os.environ.get("EPILOG_DRAW", "1/1").split("/")[1])
    seed = int(os.environ.get("EPILOG_SEED", "1"))
    kept = {id(item) for item in items if (zlib.crc32(item.nodeid.encode()) + seed) % of == 0} or {id(item) for item in items[seed % max(len(items), 1):][:1]}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]

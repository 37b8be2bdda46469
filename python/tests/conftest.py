"""Before PyTorch is imported: graphs that torch.compile keeps on disk may be of another version of the package."""
import os
import tempfile

folder = tempfile.TemporaryDirectory(prefix="epilog-inductor-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name

"""README.md, docs/pytorch.md, docs/tutorial.md and docs/compile.md: their Python blocks, one after the other."""
import os
import re

import pytest

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")


@pytest.mark.parametrize("page, count", [("../README.md", 1), ("pytorch.md", 14), ("tutorial.md", 1), ("compile.md", 1)])
def test_page(page, count):
    if page in ("pytorch.md", "compile.md"):
        pytest.importorskip("transformers")
    page = os.path.join(DOCS, page)
    with open(page) as f:
        text = f.read()
    names, blocks = {}, list(re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M))
    assert len(blocks) == count
    for block in blocks:
        lines = "\n" * (text.count("\n", 0, block.start()) + 1)  # so that a failure names the line of the page
        exec(compile(lines + block.group(1), page, "exec"), names)

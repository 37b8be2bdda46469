"""docs/pytorch.md: its Python blocks, one after the other."""
import os
import re

import pytest

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "pytorch.md")


def test_page():
    pytest.importorskip("transformers")
    with open(PAGE) as f:
        text = f.read()
    names, blocks = {}, list(re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M))
    assert len(blocks) == 6
    for block in blocks:
        lines = "\n" * (text.count("\n", 0, block.start()) + 1)  # so that a failure names the line of the page
        exec(compile(lines + block.group(1), PAGE, "exec"), names)

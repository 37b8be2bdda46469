"""README.md and pages of docs: their Python blocks, one after the other, and the tests that they name."""
import os
import re

import pytest

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")


@pytest.mark.parametrize("page, count", [("../README.md", 1), ("pytorch.md", 11), ("huggingface.md", 4), ("tutorial.md", 1), ("coming-from.md", 4), ("compile.md", 1)])
def test_page(page, count):
    if page in ("huggingface.md", "compile.md"):
        pytest.importorskip("transformers")
    page = os.path.join(DOCS, page)
    with open(page) as f:
        text = f.read()
    names, blocks = {}, list(re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M))
    assert len(blocks) == count
    for block in blocks:
        lines = "\n" * (text.count("\n", 0, block.start()) + 1)  # so that a failure names the line of the page
        exec(compile(lines + block.group(1), page, "exec"), names)


@pytest.mark.parametrize("page", ["pytorch.md", "compile.md"])
def test_named_tests_are_there(page):
    """In a row of a table a file of tests stands before the tests that are in it."""
    tests = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(DOCS, page)) as f:
        rows = [re.findall(r"`(?:python/tests/)?(test_\w+(?:\.py)?)`", row) for row in f if row.startswith("|")]
    for row in rows:
        for name in row:
            if name.endswith(".py"):
                with open(os.path.join(tests, name)) as f:
                    there = f.read()
            else:
                assert f"\ndef {name}(" in there, f"{page} names {name}"
    assert any(rows)

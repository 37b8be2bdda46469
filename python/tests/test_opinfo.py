"""Some of PyTorch's own samples, drawn anew each day: all of them are `make test-opinfo`. EPILOG_SEED repeats a draw."""
import datetime
import os

import pytest

opinfo = pytest.importorskip("opinfo")
SEED, COUNT = int(os.environ.get("EPILOG_SEED", datetime.date.today().toordinal())), 60


def test_drawn(capsys):
    count, wrong = opinfo.counted(opinfo.drawn(COUNT, SEED))
    with capsys.disabled():
        print(f" seed {SEED}: {opinfo.told(count)}")
    assert not wrong and count["taken in"] > COUNT / 4

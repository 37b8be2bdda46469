"""examples/pytorch, as a user runs them, on tiny models."""
import os
import subprocess
import sys

import pytest
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(name, *words):
    return subprocess.run([sys.executable, os.path.join(ROOT, "examples", "pytorch", name), *map(str, words), "--device", "cpu"], capture_output=True, text=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny")
    config = transformers.LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name, wrong", [("custom_op.py", ["--frob"]), ("generate.py", ["model"]), ("finetune.py", ["model", "text", "--steps", 0])])
def test_help_and_wrong_arguments(name, wrong):
    """As of the examples in C: --help is usage on standard output; wrong arguments are one line, and status 2."""
    if name != "custom_op.py":
        pytest.importorskip("transformers")
    done = run(name, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: {name}") and not done.stderr
    done = run(name, *wrong)
    assert done.returncode == 2 and not done.stdout, done.stderr
    assert done.stderr.startswith(f"{name}: ") and done.stderr.endswith("; see --help\n") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["generate.py", "finetune.py"])
def test_without_transformers(name):
    """A missing package is one line, which says what to install."""
    path = os.path.join(ROOT, "examples", "pytorch", name)
    code = f"import runpy, sys; sys.modules['transformers'] = None; runpy.run_path({path!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == f"{name} needs transformers; type pip install transformers\n"


def test_custom_op():
    done = run("custom_op.py", "--steps", 60)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step")]
    assert losses[-1] < losses[0]/2 and "part 1 of" in done.stdout


def test_generate(tiny):
    done = run("generate.py", tiny, "17 4 23", "--tokens", 12, "--compare")
    assert done.returncode == 0, done.stderr
    assert "the first 12 of 12 tokens are the same" in done.stdout


@pytest.mark.parametrize("words, says", [(["", "--tokens", 3], "the prompt is empty"), (["once upon"], "must be token numbers"), (["1 999"], "the prompt has token 999"),
                                         (["1", "--tokens", 0], "--tokens is 1 or more")])
def test_generate_says_what_is_wrong(tiny, words, says):
    done = run("generate.py", tiny, *words)
    assert done.returncode == (2 if "--tokens" in says else 1) and says in done.stderr


def test_finetune(tiny, tmp_path):
    text = tmp_path/"text.txt"
    text.write_text("\n\n".join(f"the number {i} comes before the number {i + 1}" for i in range(80)))
    done = run("finetune.py", tiny, text, "--steps", 30, "--batch", 2, "--length", 64, "--lr", "3e-3", "--out", tmp_path/"out")
    assert done.returncode == 0, done.stderr
    losses = [float(line.split(",")[1]) for line in open(tmp_path/"out"/"losses.csv").read().splitlines()[1:]]
    assert len(losses) == 30 and sum(losses[-5:])/5 < losses[0] - 1
    assert (tmp_path/"out"/"losses.svg").read_text().startswith("<svg") and (tmp_path/"out"/"model.safetensors").exists()


def test_packed_documents_are_apart():
    """Positions begin anew with each document and each row, and a document's first token is no label."""
    pytest.importorskip("transformers")
    sys.path.insert(0, os.path.join(ROOT, "examples", "pytorch"))
    try:
        import finetune
    finally:
        sys.path.pop(0)
    rows = [[1, 2, 3, 4, 5], [6, 7, 8]]
    batches = finetune.packed(rows, 2, 4)
    ids, positions, labels = next(batches)
    assert ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert positions.tolist() == [[0, 1, 2, 3], [0, 0, 1, 2]]
    assert labels.tolist() == [[-100, 2, 3, 4], [-100, -100, 7, 8]]


def test_no_text(tiny, tmp_path):
    (tmp_path/"empty.txt").write_text("\n\n")
    done = run("finetune.py", tiny, tmp_path/"empty.txt")
    assert done.returncode == 1 and "has no text" in done.stderr

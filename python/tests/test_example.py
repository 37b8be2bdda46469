"""examples/llama.c goes on with a prompt as transformers does, from the checkpoint that transformers wrote."""
import os
import subprocess

import pytest
import torch

transformers = pytest.importorskip("transformers")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    library = os.path.join(ROOT, "build", "libepilog.a")
    if not os.path.exists(library):
        pytest.skip("the library is not built here")
    out = str(tmp_path_factory.mktemp("example") / "llama")
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", os.path.join(ROOT, "examples", "llama.c"), "-I" + os.path.join(ROOT, "include"), library,
                    "-lm", "-ldl", "-pthread", "-o", out], check=True)
    return out


def checkpoint(folder, dtype, **settings):
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**{**dict(vocab_size=500, hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=6,
                                                num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3), **settings})
    model = transformers.LlamaForCausalLM(config).to(dtype).eval()
    model.save_pretrained(folder, max_shard_size="200KB")
    return model, sorted(str(folder / f) for f in os.listdir(folder) if f.endswith(".safetensors"))


def run(example, folder, files, *words):
    return subprocess.run([example, str(folder / "config.json"), *files, "--", *map(str, words)], capture_output=True, text=True)


@pytest.mark.parametrize("settings", [{}, dict(tie_word_embeddings=True, head_dim=32, rope_theta=5e5), dict(rope_scaling=LLAMA3)])
def test_same_tokens(example, tmp_path, settings):
    model, files = checkpoint(tmp_path, torch.float32, **settings)
    assert len(files) > 1
    prompt = torch.randint(0, 500, (1, 37))
    wanted = model.generate(prompt, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 37:].tolist()
    done = run(example, tmp_path, files, 40, *prompt[0].tolist())
    assert done.returncode == 0, done.stderr
    assert [int(t) for t in done.stdout.split()] == wanted


def test_bf16(example, tmp_path):
    """Each token is nearly the first of the model in f32: of two that are close bf16 may take the other."""
    model, files = checkpoint(tmp_path, torch.bfloat16)
    prompt = torch.randint(0, 500, (1, 20)).tolist()[0]
    done = run(example, tmp_path, files, 30, *prompt)
    assert done.returncode == 0, done.stderr
    tokens = [int(t) for t in done.stdout.split()]
    logits = lambda m: m(torch.tensor([prompt + tokens])).logits[0, 19:-1].double()
    rounded = logits(model)
    exact = logits(model.float())
    behind = exact.max(-1).values - exact.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert behind.max() <= 2 * (exact - rounded).abs().max()  # twice as far as bf16 moves a logit in transformers


def test_refused(example, tmp_path):
    _, files = checkpoint(tmp_path, torch.float32, attention_bias=True)
    for words, told in (((5, 1, 2), "biases"), ((0, 1), "TOKENS"), (("4x", 1), "TOKENS"), ((5,), "llama config.json")):
        done = run(example, tmp_path, files, *words)
        assert done.returncode == 1 and told in done.stderr, done.stderr
    (tmp_path / "plain").mkdir()
    _, files = checkpoint(tmp_path / "plain", torch.float32)
    assert "no token 1,2" in run(example, tmp_path / "plain", files, 5, "1,2").stderr
    assert "no token 500" in run(example, tmp_path / "plain", files, 5, 1, 500).stderr
    assert "no file has" in run(example, tmp_path / "plain", files[:1], 5, 1, 2).stderr

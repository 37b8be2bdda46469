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


def run(example, folder, files, *words, options=()):
    words = [w if isinstance(w, bytes) else str(w) for w in words]
    return subprocess.run([example, *map(str, options), str(folder / "config.json"), *files, "--", *words], capture_output=True, text=True)


def lines_of(done):
    assert done.returncode == 0, done.stderr
    return [[int(t) for t in line.split()] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("settings", [{}, dict(tie_word_embeddings=True, head_dim=32, rope_theta=5e5), dict(rope_scaling=LLAMA3)])
def test_same_tokens(example, tmp_path, settings):
    model, files = checkpoint(tmp_path, torch.float32, **settings)
    assert len(files) > 1
    prompt = torch.randint(0, 500, (1, 37))
    wanted = model.generate(prompt, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 37:].tolist()
    assert lines_of(run(example, tmp_path, files, 40, *prompt[0].tolist())) == [wanted]


def test_bf16(example, tmp_path):
    """Each token is nearly the first of the model in f32: of two that are close bf16 may take the other."""
    model, files = checkpoint(tmp_path, torch.bfloat16)
    prompt = torch.randint(0, 500, (1, 20)).tolist()[0]
    tokens, = lines_of(run(example, tmp_path, files, 30, *prompt))
    logits = lambda m: m(torch.tensor([prompt + tokens])).logits[0, 19:-1].double()
    rounded = logits(model)
    exact = logits(model.float())
    behind = exact.max(-1).values - exact.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert behind.max() <= 2 * (exact - rounded).abs().max()  # twice as far as bf16 moves a logit in transformers


def test_refused(example, tmp_path):
    _, files = checkpoint(tmp_path, torch.float32, attention_bias=True)
    for words, status, told in (((5, 1, 2), 1, "biases"), ((0, 1), 2, "TOKENS"), (("4x", 1), 2, "TOKENS"), ((5,), 2, "config.json model.safetensors")):
        done = run(example, tmp_path, files, *words)
        assert done.returncode == status and told in done.stderr, done.stderr
    plain = tmp_path / "plain"
    plain.mkdir()
    _, files = checkpoint(plain, torch.float32)
    for given, words, told in ((files, (5, "1,2"), "no token 1,2"), (files, (5, 1, 500), "no token 500"), (files[:1], (5, 1, 2), "no file has")):
        assert told in run(example, plain, given, *words).stderr


PROMPTS = [[7, 300, 4], [11], list(range(40, 90)), [7, 300, 4, 9, 1, 2]]


def joined(prompts):
    return [w for p in prompts for w in (",", *p)][1:]


@pytest.mark.parametrize("options", [(), ("--temperature", 0.8, "--top-k", 40, "--top-p", 0.9, "--seed", 3)])
def test_batches(example, tmp_path, options):
    """Prompts of different lengths go on as each does alone; each ends by itself. A draw is by the place in the batch: the first alone is the first."""
    _, files = checkpoint(tmp_path, torch.float32, eos_token_id=None)
    together = lines_of(run(example, tmp_path, files, 30, *joined(PROMPTS), options=options))
    assert [len(line) for line in together] == [30] * 4
    for i, prompt in enumerate(PROMPTS):
        if not options or i == 0:
            assert lines_of(run(example, tmp_path, files, 30, *prompt, options=options)) == [together[i]]
    (tmp_path / "ends").mkdir()
    _, files = checkpoint(tmp_path / "ends", torch.float32, eos_token_id=[together[1][4], together[3][8]])
    for line, whole in zip(lines_of(run(example, tmp_path / "ends", files, 30, *joined(PROMPTS), options=options)), together):
        ends = [i for i, t in enumerate(whole) if t in (together[1][4], together[3][8])]
        assert line == (whole[:ends[0] + 1] if ends else whole)


def test_draws(example, tmp_path):
    """Tokens that are drawn come as often as they are probable, and are of those that top-k and top-p leave."""
    model, files = checkpoint(tmp_path, torch.float32, vocab_size=50, initializer_range=0.1)
    prompt = [5, 17, 31]
    logits = model(torch.tensor([prompt])).logits[0, -1].double()
    drawn = lambda *options: [t for seed in range(2) for (t,) in
                              lines_of(run(example, tmp_path, files, 1, *joined([prompt] * 250), options=("--seed", seed, *options)))]
    probable = torch.softmax(logits / 0.7, 0)
    found = torch.bincount(torch.tensor(drawn("--temperature", 0.7)), minlength=50) / 500
    assert ((found - probable).abs() <= 5 * (probable / 500).sqrt() + 2 / 500).all()
    order = probable.argsort(descending=True)
    assert set(drawn("--temperature", 0.7, "--top-k", 3)) == set(order[:3].tolist())
    within = int((probable[order].cumsum(0) < 0.5).sum()) + 1
    assert set(drawn("--temperature", 0.7, "--top-p", 0.5)) <= set(order[:within].tolist())
    assert set(drawn("--temperature", 0.7, "--top-k", 1)) == {int(order[0])}
    assert len({tuple(drawn("--temperature", 1)) for _ in range(2)}) == 1


def small_tokenizer(folder):
    """Of 500 tokens, as GPT-2 cuts words."""
    tokenizers = pytest.importorskip("tokenizers")
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer, t.decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    t.train_from_iterator([open(__file__).read()], tokenizers.trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<end>"], show_progress=False))
    t.save(str(folder / "tokenizer.json"))
    return t


def test_texts(example, tmp_path):
    t = small_tokenizer(tmp_path)
    model, files = checkpoint(tmp_path, torch.float32)
    options = ("--tokenizer", tmp_path / "tokenizer.json")
    texts = ["def test(example):", "Grüße, 日本 👩‍👩‍👧"]
    wanted = []
    for text in texts:
        ids = torch.tensor([t.encode(text).ids])
        wanted.append(t.decode(model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)[0, ids.shape[1]:].tolist()))
    both = subprocess.run([example, *map(str, options), str(tmp_path / "config.json"), *files, "--", "12", *texts], capture_output=True)
    assert both.returncode == 0, both.stderr
    assert both.stdout.decode("utf-8", "replace") == "".join(text + "\n" for text in wanted)


def test_bad_texts(example, tmp_path):
    small_tokenizer(tmp_path)
    _, files = checkpoint(tmp_path, torch.float32)
    path = tmp_path / "tokenizer.json"
    tell = lambda *words, options=("--tokenizer", path): run(example, tmp_path, files, *words, options=options).stderr
    assert "empty" in tell(5, "") and "empty" in tell(5, 1, ",", ",", 2, options=())
    assert "not UTF-8: byte 2" in tell(5, b"ab\xff")
    assert "context of 512" in tell(5, "the word " * 600) and "context of 512" in tell(510, 1, 2, 3, options=())
    assert "--top-p" in tell(5, 1, options=("--top-p", 2)) and "--temperature" in tell(5, 1, options=("--temperature", "hot"))
    text = path.read_text()
    for broken, told in ((text[:1000], "byte"), (text.replace('"merges"', '"mergers"'), "mergers"), ("", "byte 0")):
        path.write_text(broken)
        assert told in tell(5, "text"), told
    config = (tmp_path / "config.json").read_text()
    for old, new, told in (('"hidden_act"', '"mup_scale": 2, "hidden_act"', "mup_scale"), ('"hidden_size": 96', '"hidden_size": 96.5', "hidden_size"),
                           ('"hidden_size": 96', '"hidden_size": 1e300', "hidden_size"), ('"vocab_size": 500', '"vocab_size": -5', "vocab_size"),
                           ('"mlp_bias": false', '"mlp_bias": true', "mlp_bias"), ('"num_hidden_layers": 3', '"num_hidden_layers": 300', "layers")):
        assert old in config
        (tmp_path / "config.json").write_text(config.replace(old, new))
        assert told in tell(5, 1, options=()), told

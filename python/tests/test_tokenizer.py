"""Tokenizers of epilog_io.h beside Hugging Face's: the same tokens and the same text of the same tokenizer.json, on texts that are meant to be
hard. Those of the test are trained here; EPILOG_TOKENIZER names files of real ones, separated by colons."""
import ctypes as c
import os
import random

import pytest

from epilog._library import library

tokenizers = pytest.importorskip("tokenizers")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PIECES = [*"abcXYZ 'sStTrReEvVmMlLdD09\n\r\t .,;:!?(){}<>|", "  ", "   ", "\u00a0", "\u2003", "é", "e\u0301", "ß", "ſ", "日", "本", "א", "ش", "👩‍👩‍👧",
          "🇩🇪", "½", "²", "Ⅷ", "३", "\u200b", "\ufeff", "\x00", "\x7f", "\x85", "<|end|>", "<|end", "<tool>", "Ġ", "don't", "DON'T", "'ll",
          "12345", "1 2 3", "İ", "ŉ", "\u0345", "𝔘", "\U0010ffff", "\ud7a3", "for (int i = 0; i < n; i++)\n    {\n", "\t\t\treturn x_1;\r\n\r\n"]
CORPUS = [open(__file__, encoding="utf-8").read() * 3 + "Zażółć gęślą jaźń 日本語のテキスト שלום привет naïve 12345 don't DON'T \t\t\n\n  \r\n x" * 20]


class Ours:
    def __init__(self, text):
        self.so, self.handle, raw = library().so, c.c_void_p(), text.encode()
        error = library().Error()
        status = self.so.epi_tokenizer_parse(raw, c.c_size_t(len(raw)), b"tokenizer.json", c.byref(self.handle), c.byref(error))
        library().check(status, error)

    def encode(self, text):
        raw, count = text.encode(), c.c_size_t()
        ids = (c.c_int32 * (len(raw) + 40))()
        assert self.so.epi_tokenizer_encode(self.handle, raw, c.c_size_t(len(raw)), ids, c.c_size_t(len(ids)), c.byref(count), None) == 0
        return ids[:count.value]

    def decode(self, ids, skip):
        given, size = (c.c_int32 * max(1, len(ids)))(*ids), c.c_size_t()
        buffer = c.create_string_buffer(200 * len(ids) + 1)
        assert self.so.epi_tokenizer_decode(self.handle, given, c.c_size_t(len(ids)), skip, buffer, c.c_size_t(len(buffer)), c.byref(size), None) == 0
        return buffer.raw[:size.value].decode("utf-8", "replace")


def trained(kind):
    """A small tokenizer, its words as one of these models cuts them."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    own = pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = lambda pattern: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    t.pre_tokenizer = {"gpt2": own, "smollm2": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), own]),
                       "llama3": split(LLAMA3), "qwen2": split(LLAMA3.replace("{1,3}", ""))}[kind]
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=1000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                      special_tokens=["<|begin|>", "<|end|>"], show_progress=False))
    t.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("<tool>>", normalized=True), AddedToken("<|end|><|end|>", normalized=False)])
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    if kind == "llama3":
        template = processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", t.token_to_id("<|begin|>"))])
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return t


def compare(theirs, count):
    ours, rng = Ours(theirs.to_str()), random.Random(5)
    for text in [*CORPUS, *("".join(rng.choices(PIECES, k=rng.randrange(30))) for _ in range(count))]:
        ids = theirs.encode(text).ids
        assert ours.encode(text) == ids, text
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip), text


@pytest.mark.parametrize("kind", ["gpt2", "smollm2", "llama3", "qwen2"])
def test_small_ones(kind):
    compare(trained(kind), 1000)


@pytest.mark.skipif("EPILOG_TOKENIZER" not in os.environ, reason="EPILOG_TOKENIZER names no tokenizer.json")
def test_real_ones():
    for path in os.environ["EPILOG_TOKENIZER"].split(":"):
        compare(tokenizers.Tokenizer.from_file(path), 20000)


def test_what_is_not_understood_is_refused():
    from tokenizers import normalizers, pre_tokenizers
    for part, value, told in (("normalizer", normalizers.NFC(), "normalizer"), ("pre_tokenizer", pre_tokenizers.Metaspace(), "Metaspace")):
        t = trained("gpt2")
        setattr(t, part, value)
        with pytest.raises(Exception, match=told):
            Ours(t.to_str())

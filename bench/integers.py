"""Positions and counts beyond 2^24, on a CPU or a GPU: are they right, and how long does a kernel take?

    python3 bench/integers.py [--device gpu] [--epilog build/epilog] [--write bench/results/NAME.json]

Each program has an axis of 2^24 + 64 elements of 8 bits, all 0 but one beyond 2^24, and what is right is known without any
other implementation. A program that is wrong ends the run."""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

SIZE = 2**24 + 64
AT = 2**24 + 1
LONG = 33554000
# name, text, what the first elements of the result are
PROGRAMS = [
    ("argmax", "f(x: i8[T]) -> y: i32 { y = argmax(x, T) }", [AT]),
    ("topk", "f(x: i8[T]) -> y: i32[K=2] { y = topk(x, T, K) }", [AT, 0]),
    ("gather", "f(x: i8[T]) -> y: i32[K=4] { y = gather(x, index(K) + (argmax(x, T) - 1), T) }", [0, 9, 0, 0]),
    ("label pick", "f(x: i8[T]) -> y: i32 { y = sum(where(index(T) == argmax(x, T), x, 0), T) }", [9]),
    ("flat position", "f(x: i8[T]) -> y: i32 { y = max(where(x == 9, index(T)//4096*4096 + index(T) % 4096, -1), T) }", [AT]),
    ("count", "f(x: i8[T]) -> y: i32 { y = sum(x == 0, T) }", [SIZE - 1]),
    ("count by scatter", "f(x: i8[T]) -> y: i32[K=2] { y = scatter(1, x == 9, K) }", [SIZE - 1, 1]),
    ("running count", "f(x: i8[T]) -> y: i32 { y = max(cumsum(x == 0, T), T) }", [SIZE - 1]),
    ("remainder", "f(x: i8[T]) -> y: i32 { y = sum(index(T) - 40*floor(index(T)/40), T) + 0*x[0] }",
     [LONG//40*780 + LONG % 40*(LONG % 40 - 1)//2]),
]


def write_tensor(path, size):
    header = json.dumps({"x": {"dtype": "I8", "shape": [size], "data_offsets": [0, size]}}).encode()
    data = bytearray(size)
    data[min(AT, size - 1)] = 9
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + data)


def read_tensor(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    y = header["y"]
    count = (y["data_offsets"][1] - y["data_offsets"][0])//4
    return list(struct.unpack(f"<{count}i", data[:4*count]))


def measure(o, folder, name, text, right):
    size = LONG if name == "remainder" else SIZE
    program, x, y = (os.path.join(folder, n) for n in ("p.epi", "x.safetensors", "y.safetensors"))
    with open(program, "w") as f:
        f.write(text)
    write_tensor(x, size)
    got = subprocess.run([o.epilog, "run", program, "--dims", f"T={size}", "--device", o.device, "--in", x, "--out", y,
                          "--no-check", "--json"], capture_output=True, text=True)
    if got.returncode:
        sys.exit(f"{name}: {got.stderr}")
    result = read_tensor(y)
    if result != right:
        sys.exit(f"{name}: {result}, and right is {right}")
    ms = json.loads(got.stdout)["ms"]
    print(f"{name:18} {size:>10} elements  {ms:10.3f} ms  right")
    return {"name": name, "program": text, "elements": size, "ms": ms}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--device", default="cpu")
    p.add_argument("--epilog", default="build/epilog")
    p.add_argument("--write")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(o, folder, *program) for program in PROGRAMS]
    device = subprocess.run([o.epilog, "devices"], capture_output=True, text=True).stdout.strip().splitlines()
    if o.write:
        with open(o.write, "w") as f:
            json.dump({"command": "python3 bench/integers.py " + " ".join(sys.argv[1:]), "device": o.device, "devices": device,
                       "rows": rows}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()

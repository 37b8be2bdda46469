"""Programs run by build/test/pairs_run, a process that lives on from one to the next. A crash of it is an answer, too."""
import os
import select
import signal
import subprocess
import time

import numpy as np

STORED = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "i8": np.int8, "u8": np.uint8, "i4": np.uint8, "u4": np.uint8,
          "f16": np.float16, "bf16": np.uint16}


def packed(a, type):
    """The bytes of a tensor in its type. What is given for bf16 has at most 8 bits."""
    a = np.ascontiguousarray(a)
    if type == "bf16":
        return (a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if type in ("i4", "u4"):
        u = a.astype(int) & 15
        return (u[..., 0::2] | u[..., 1::2] << 4).astype(np.uint8).tobytes()
    return a.astype(STORED[type]).tobytes()


def unpacked(data, type, shape):
    a = np.frombuffer(data, STORED[type]).reshape(shape)
    if type == "bf16":
        a = (a.astype(np.uint32) << 16).view(np.float32)
    return a if type in ("i32", "i64") else a.astype(float)


class Request:
    """`options`: lines of a request. `inputs`: the bytes of tensors. `outputs`: (type, shape) of results."""
    def __init__(self, text, options, inputs, outputs):
        self.outputs = outputs
        self.sizes = [int(np.prod(shape))*np.dtype(STORED[type]).itemsize for type, shape in outputs]
        lines = [f"text {len(text)}", *options, *(f"input {len(x)}" for x in inputs), *(f"output {n}" for n in self.sizes), "go", ""]
        self.bytes = "\n".join(lines).encode() + text.encode() + b"".join(inputs)


class Answer:
    """`stage` is where it ended: parse, compile, run, ok; or crash, where the process ended or did not answer."""
    def __init__(self, stage, status, message, results=()):
        self.stage, self.status, self.message, self.results = stage, status, message, results


class Ended(Exception):
    pass


class Runner:
    def __init__(self, command, seconds=120):
        self.command, self.seconds, self.process = command, seconds, None

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def stop(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process = None

    def read(self, count, until_line=False):
        data, end = bytearray(), time.monotonic() + self.seconds
        while len(data) < count and not (until_line and data.endswith(b"\n")):
            if not select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
                raise Ended(f"no answer in {self.seconds} s")
            more = os.read(self.process.stdout.fileno(), 1 if until_line else count - len(data))
            if not more:
                raise Ended("")
            data += more
        return bytes(data)

    def read_answer(self, request):
        stage, status, said, count = self.read(1000, until_line=True).decode().split()
        message, data = self.read(int(said)).decode(), self.read(int(count))
        if stage != "ok":
            return Answer(stage, status, message)
        ends = np.cumsum(request.sizes)
        parts = zip(ends, request.sizes, request.outputs)
        return Answer(stage, status, message, [unpacked(data[e - n:e], *output) for e, n, output in parts])

    def ask(self, request):
        if self.process is None or self.process.poll() is not None:
            self.start()
        try:
            self.process.stdin.write(request.bytes)
            self.process.stdin.flush()
            return self.read_answer(request)
        except (Ended, BrokenPipeError) as ended:
            return self.crashed(str(ended))

    def ask_many(self, requests):
        """For a runner that reads all of them before it answers. What ends it is the answer of one; the others are asked again."""
        answers, seconds = [], self.seconds
        self.seconds += 5*len(requests)  # in which it compiles all of them
        while len(answers) < len(requests):
            left = requests[len(answers):]
            self.start()
            try:
                for request in left:
                    self.process.stdin.write(request.bytes)
                self.process.stdin.close()
                for request in left:
                    answers.append(self.read_answer(request))
                self.process.wait()
            except (Ended, BrokenPipeError) as ended:
                answers.append(self.crashed(str(ended)))
        self.process, self.seconds = None, seconds
        return answers

    def crashed(self, why):
        try:
            self.process.wait(timeout=5 if not why.startswith("no answer") else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        code = self.process.returncode
        self.process = None
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return Answer("crash", name, why or name)

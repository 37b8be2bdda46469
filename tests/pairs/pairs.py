#!/usr/bin/env python3
"""Feeds the result of every operation to every operand of every other one, and holds what the library makes of it against NumPy.

    python3 tests/pairs/pairs.py [--types f32,bf16,f16] [--seed N] [--tries N] [--between N] [--grad] [--device gpu] [--jobs N]
                                 [--share I/N] [--draw N] [--only PRODUCER[,CONSUMER[,OPERAND]]] [--again SEED] [--more 'path unfused']

The oracle is written from docs/language.md alone, and shares nothing with src. Each pair is tried with axes, sizes (1 and 0, too),
inputs (of 8 and 4 bits, integers, params), neighbours and outputs that its seed draws. What differs by more than roundings in the
storage type explain, what crashes, and what is refused without a reason that the documents give, is printed with its text, sizes and
the command that repeats it. docs/hacking.md, "Pairs", tells more."""
import argparse
import collections
import multiprocessing
import re
import sys
import tempfile
import time
import warnings

try:
    import numpy as np
except ImportError:
    print("skipped: python3 has no NumPy")
    sys.exit(0)

import gradient
import judge
from axes import Skip
from grow import all_pairs, grow
from runner import Request, Runner, packed

FEW_TRIALS, MANY_TRIALS = 2, 40
TRIES_FOR_ONE = 12  # programs that are drawn for one that is run
# What the documents refuse: a message that says so, and the chapter of docs/language.md that has the rule.
REFUSED = {r"nested|more than 8 axes": "16", r"sums over .* but the output keeps": "7", r"have no axis in common": "7",
           r"declared as i32|of type i32|stored as i(32|64)": "4, operands of products", r"has at most 64|there are at most as many places": "12"}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--runner", default="build/test/pairs_run")
    p.add_argument("--types", default="f32,bf16,f16")
    p.add_argument("--seed", type=int, default=1, help="another one is another program of each pair")
    p.add_argument("--tries", type=int, default=1, help="programs of each pair")
    p.add_argument("--between", type=int, default=0, help="so many random operations stand between the two")
    p.add_argument("--face", help="sizes: plain, ones, turned, empty, wide or long; else they are drawn")
    p.add_argument("--grad", action="store_true", help="gradients, held against differences of the oracle")
    p.add_argument("--device", default="cpu")
    p.add_argument("--jobs", type=int, default=1, help="processes")
    p.add_argument("--together", type=int, default=0, help="so many pairs are asked for at once, as the emulator has it")
    p.add_argument("--share", default="0/1", help="I/N: every N-th pair from the I-th on")
    p.add_argument("--draw", type=int, default=0, help="so many pairs, drawn by the seed")
    p.add_argument("--only", default="", help="a producer, a consumer and an operand, or the first of them")
    p.add_argument("--again", type=int, help="the program of this seed alone, as a failure names it, with --only")
    p.add_argument("--seconds", type=float, default=1e9, help="no pair is begun behind these")
    p.add_argument("--more", default="", help="lines of a request besides, as 'path unfused;algebra written'; tests/pairs/run.c has them")
    p.add_argument("--open", default="", help="T=64: the axis is open, up to that size")
    p.add_argument("--reference", action="store_true", help="the library's own reference, too")
    p.add_argument("--verbose", action="store_true", help="refusals one by one")
    return p.parse_args()


# ---- one program ----
def stored_type(t, type):
    """Where the text leaves it open it is the storage type; scalars stay f32."""
    kind = "" if t.kind == "param" else t.kind
    return kind or (type if t.axes else "f32")


def options_of(o, p, type, path):
    dims = p.dims()
    lines = [f"type {type}", *(f"dim {k} {n}" for k, n in dims.items()), *filter(None, o.more.split(";"))]
    if path:
        lines.append(f"path {path}")
    name, _, most = o.open.partition("=")
    if name in dims and not p.sizes_in_text and dims[name] <= int(most):
        lines.append(f"open {name} {most}")
    return lines


def asked(o, p, type, path):
    inputs = [packed(x.now.a, stored_type(x, type)) for x in p.inputs]
    outputs = [(stored_type(y, type), y.value.now.to(y.axes).shape) for y in p.results]
    return Request(p.text(), options_of(o, p, type, path), inputs, outputs)


def attempt(o, p, type, path=""):
    """Asks for results; gives (what, detail): ok, refused, crash, wrong, out of range."""
    now = p.now()
    if max(judge.largest(m.a) for m in now.values()) > judge.LARGEST[type]:
        return "out of range", ""
    answer = yield asked(o, p, type, path)
    if answer.stage == "crash" or answer.status == "internal":
        return "crash", f"{answer.stage}: {answer.status}: {answer.message}"
    if answer.stage != "ok":
        return "refused", f"{answer.stage}: {answer.message}"
    off, where = judge.off_by(p, now, answer.results, type, FEW_TRIALS)
    if off > 1:
        off, where = judge.off_by(p, now, answer.results, type, MANY_TRIALS)
    return ("wrong", f"{where}; {off:.3g} times what roundings explain") if off > 1 else ("ok", "")


# ---- one pair ----
class Outcome:
    def __init__(self):
        self.counts, self.reached, self.failures, self.refusals, self.programs = collections.Counter(), set(), [], [], 0


def seed_of(*what):
    h = 1469598103934665603
    for c in repr(what).encode():
        h = (h ^ c)*1099511628211 & 2**63 - 1
    return h


def again(o, pair, seed, type):
    words = ["python3 tests/pairs/pairs.py", f"--only '{','.join(map(str, pair))}' --again {seed} --types {type}"]
    for name in ("between", "more", "open", "face"):
        if getattr(o, name):
            words.append(f"--{name} '{getattr(o, name)}'")
    return " ".join(words + (["--grad"] if o.grad else []) + ([f"--device {o.device}"] if o.device != "cpu" else []))


def try_program(o, p, pair, seed, outcome):
    """Asks for all types of one program; gives whether any of them ran."""
    ran = False
    for type, path in [(t, "") for t in o.types.split(",")] + ([("f32", "reference")] if o.reference else []):
        what, detail = yield from (gradient.attempt if o.grad else attempt)(o, p, type, path)
        outcome.counts[what] += 1
        if what == "refused":
            outcome.refusals.append((pair, detail, p.text()))
        elif what != "out of range":
            ran = True
            outcome.reached.add((pair, path or type))
        if what in ("wrong", "crash"):
            dims = ",".join(f"{k}={n}" for k, n in p.dims().items())
            outcome.failures.append(f"FAILED {' -> '.join(pair[:2])} as operand {pair[2]}, {path or type}: {what}: {detail}\n"
                                    f"again: {again(o, pair, seed, type)}\n--dims {dims}\n{p.text()}")
    outcome.programs += ran
    return ran


def try_pair(o, pair):
    """Asks for programs of a pair until enough have run; gives the outcome."""
    outcome, done = Outcome(), 0
    for trial in range(TRIES_FOR_ONE*o.tries):
        seed = o.again if o.again is not None else seed_of(pair, trial, o.seed)
        try:
            done += yield from try_program(o, grow(seed, pair, o.between, o.grad, o.face), pair, seed, outcome)
        except Skip:
            outcome.counts["not possible"] += 1
        if done >= o.tries or o.again is not None:
            break
    return outcome


# ---- all of them ----
def begin(o, end):
    global options, runner, deadline
    options, deadline = o, end
    folder = [tempfile.mkdtemp()] if o.together else []  # where the emulator's texts are compiled
    runner = Runner([o.runner] + folder + ([o.device] if o.device != "cpu" else []))


def answered(pair):
    """The outcome of a pair, whose requests are answered one by one."""
    asking, answer = try_pair(options, pair), None
    if time.monotonic() > deadline:
        return Outcome()
    while True:
        try:
            answer = runner.ask(asking.send(answer))
        except StopIteration as end:
            return end.value


def answered_together(pairs):
    """The same of many pairs, for the emulator: what all of them ask for is answered at once, until none asks any more."""
    asking = {try_pair(options, pair): None for pair in pairs}
    while asking and time.monotonic() < deadline:
        requests = {}
        for pair, answer in asking.items():
            try:
                requests[pair] = pair.send(answer)
            except StopIteration as end:
                yield end.value
        asking = dict(zip(requests, runner.ask_many(list(requests.values()))))


def outcomes(o, pairs):
    end = time.monotonic() + o.seconds
    if o.jobs > 1:
        with multiprocessing.Pool(o.jobs, begin, (o, end)) as pool:
            yield from pool.imap_unordered(answered, pairs, 4)
        return
    begin(o, end)
    if o.together:
        for i in range(0, len(pairs), o.together):
            yield from answered_together(pairs[i:i + o.together])
    else:
        yield from map(answered, pairs)
    runner.stop()


def wanted(o):
    """In an order that no seed but the first changes, so that a share is a sample."""
    pairs = all_pairs()
    pairs = [pairs[i] for i in np.random.default_rng(o.seed if o.draw else 0).permutation(len(pairs))]
    if o.only:
        words = o.only.split(",")
        pairs = [x for x in pairs if all(not w or w == str(y) for w, y in zip(words, x))]
    i, n = map(int, o.share.split("/"))
    return pairs[i::n][:o.draw or None]


def short(message):
    return re.sub(r"\d+", "N", re.sub(r"[vx]\d+\S*|'[^']*'|y\d+", "…", message))[:90]


def report(o, pairs, total, seconds):
    columns = [*o.types.split(",")] + (["reference"] if o.reference else [])
    for c in columns:
        print(f"{c}: {sum(k == c for _, k in total.reached)} of {len(pairs)} pairs reached")
    reached = {pair for pair, _ in total.reached}
    never = collections.Counter(f"{a} -> {b}" for a, b, i in pairs if (a, b, i) not in reached)
    print(f"{total.programs} programs:", dict(total.counts))
    for message, n in collections.Counter(short(m) for _, m, _ in total.refusals).most_common(30):
        print(f"refused {n}: {message}")
    if never:
        print("never reached:", ", ".join(f"{k}" for k, n in never.most_common(12)), f"… {sum(never.values())} in all")
    print(f"{total.counts['ok']} passed, {len(total.failures)} failed; seed {o.seed}, {seconds:.0f} s")


def main():
    o, total, start = arguments(), Outcome(), time.monotonic()
    warnings.simplefilter("ignore")  # of NumPy: means of nothing, quotients by 0
    pairs = wanted(o)
    for outcome in outcomes(o, pairs):
        total.counts += outcome.counts
        total.reached |= outcome.reached
        total.failures += outcome.failures
        total.refusals += outcome.refusals
        total.programs += outcome.programs
        for failure in outcome.failures:
            print(failure, flush=True)
        if o.verbose:
            for pair, message, text in outcome.refusals:
                print(f"refused {pair}: {message}\n{text}", flush=True)
    report(o, pairs, total, time.monotonic() - start)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())

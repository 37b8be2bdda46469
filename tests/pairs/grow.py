"""Pairs, and a program of each: the result of one operation becomes an operand of another."""
import math

import numpy as np

import maps
from axes import Named, Skip, mapped
from operations import TABLE
from program import Program

LEAVES = ("input", "param", "input f32", "input i8", "input u8", "input i4", "input u4", "input i32", "input i64", "index", "position",
          "size", "number", "whole number", "uniform")
MOST_ELEMENTS, MOST_LONG = 10**6, 2**25


def all_pairs():
    """(producer, consumer, operand of the consumer)"""
    return [(a, b, i) for a in (*LEAVES, *TABLE) for b, (_, count) in TABLE.items() for i in range(count)]


def constant(p, text, value, named):
    return p.add(text, lambda: value, exact=True, named=named)


def leaf(p, name):
    """A value that is made of no other; its axes are those of some input."""
    named = p.chance(0.5)
    if name.startswith(("input", "param")):
        axes = p.pick([["T", "D"]]*7 + [["T"]]*2 + [["T", "D", "S"]])
        return p.input(axes, {"input": "", "param": "param"}.get(name, name[6:]))
    if name == "number":
        return constant(p, "1.5", Named((), 1.5), named)
    if name == "whole number":
        return constant(p, "3", Named((), np.array(3)), named)
    p.input(["T", "D"] if name == "uniform" else ["D"])
    d = p.size("D")
    if name == "index":
        return constant(p, "index(D)", Named(("D",), np.arange(d)), named)
    if name == "position":
        return constant(p, "(size(D) - 1 - index(D))", Named(("D",), np.arange(d)[::-1]), named)
    if name == "size":
        return constant(p, "size(D)", Named((), np.array(d)), named)
    seed = int(p.rng.integers(1, 9))
    s, shape = p.input([], "i32", seed), (p.size("T"), d)
    return constant(p, f"uniform({s.text}, T, D)", Named(("T", "D"), maps.philox(seed, math.prod(shape)).reshape(shape)), True)


def applied(p, name, v, at=None):
    take, count = TABLE[name]
    return take(p, v, int(p.rng.integers(count)) if at is None else at)


def grow(seed, pair, between=0, smooth=False, face=None):
    """The program of a seed: everything in it is drawn by that, and the sizes, unless they are told."""
    rng = np.random.default_rng(seed)
    producer, consumer, at = pair
    faces = ["plain"]*5 + ["ones", "turned"] + ([] if smooth else ["wide", "empty"])
    drawn = faces[rng.integers(len(faces))]
    p = Program(rng, face or drawn, smooth)
    if producer in LEAVES:
        v = leaf(p, producer)
    else:
        v = p.input(p.pick([["T", "D"]]*7 + [["T", "D", "S"]]*2 + [["T"]]))
        if p.chance(0.3):
            v = p.add(f"tanh({v.text})", mapped(np.tanh), v)
        v = applied(p, producer, v)
    first = v
    for _ in range(between):
        v = applied(p, p.pick(list(TABLE)), v)
    v = applied(p, consumer, v, at)
    if v.now.a.size > (MOST_LONG if face == "long" else MOST_ELEMENTS):
        raise Skip("large")
    p.result(p.add(f"{v.text}*3 + 1", mapped(lambda a: 3*a + 1), v) if p.chance(0.2) else v)
    if first.text.startswith("v") and p.chance(0.25):
        p.result(first)
    return p

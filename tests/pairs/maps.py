"""Elementwise operations, conversions and random numbers, in float64 and int64: sections 8 and 12 of docs/language.md."""
import math

import numpy as np


# ---- storage types ----
def rounded(x, bits, low, most):
    """To so many bits, as near as can be; `low` is the least exponent, and what is beyond `most` becomes it."""
    x = np.asarray(x, float)
    exponent = np.maximum(np.floor(np.log2(np.abs(np.where((x == 0) | ~np.isfinite(x), 1, x)))), low)
    step = 2.0**(exponent - bits + 1)
    r = np.where(np.isinf(x), x, np.rint(x/step)*step)
    beyond = np.where(np.isinf(x) & (most > 500), np.inf, most)
    return np.where(np.abs(r) > most, np.sign(x)*beyond, r)


def clipped(low, high):
    return lambda x: np.where(np.isnan(x), 0, np.clip(np.rint(x), low, high)) + 0.0


def itself(f):
    """An integer is left as it is."""
    return lambda x: x if x.dtype == np.int64 else f(x)


CONVERSIONS = {
    "f32": lambda x: np.float32(x).astype(float), "bf16": lambda x: rounded(x, 8, -126, 3.3895313892515355e38),
    "f16": lambda x: rounded(x, 11, -14, 65504), "e4m3": lambda x: rounded(x, 4, -6, 448),
    "e5m2": lambda x: rounded(x, 3, -14, 57344), "i8": clipped(-128, 127), "u8": clipped(0, 255), "i4": clipped(-8, 7),
    "u4": clipped(0, 15), "i32": itself(clipped(-2**31, 2**31 - 1)), "i64": itself(clipped(-2.0**63, 2.0**63))}


def dither(x, u):
    """The first 16 bits of u are added to the bits of x as f32; the lower 16 bits of the sum are cleared."""
    u = np.clip(np.where(np.isnan(u), 0, u), 0, 1 - 2.0**-24)
    b = np.float32(x).view(np.uint32).astype(np.uint64) + np.floor(u*65536).astype(np.uint64)
    r = (b & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(x), r, x)


def philox(seed, count):
    """`uniform`: word e mod 4 of the counter e div 4, shifted right by 8 bits and divided by 2^24."""
    e, low = np.arange(count, dtype=np.uint64), np.uint64(0xFFFFFFFF)
    c, k = [e//4 & low, e//4 >> np.uint64(32), 0*e, 0*e], [seed & 0xFFFFFFFF, 0]
    for _ in range(10):
        p, q = c[0]*np.uint64(0xD2511F53), c[2]*np.uint64(0xCD9E8D57)
        c = [(q >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]), q & low, (p >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]), p & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    word = np.select([e % 4 == i for i in range(4)], c)
    return (word >> np.uint64(8)).astype(float)/2**24


# ---- maps ----
def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1/(1 + e), e/(1 + e))


def truth(x):
    """0 and 1, which are integers whatever was compared."""
    return lambda *operands: np.asarray(x(*operands), np.int64)


erf = np.vectorize(math.erf, otypes=[float])
# These give what they were given, a negation or a choice of it, or a whole number: nothing is rounded.
EXACT_UNARY = {
    "-": np.negative, "abs": np.abs, "sign": np.sign, "floor": itself(np.floor), "round": itself(np.rint),
    "relu": lambda x: np.maximum(x, 0), "not": truth(lambda x: x == 0), "keep": lambda x: x, "again": lambda x: x}
UNARY = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1/np.sqrt(x), "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "erf": erf, "sigmoid": sigmoid,
    "silu": lambda x: x*sigmoid(x), "gelu": lambda x: x*0.5*(1 + erf(x/math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5*x*(1 + np.tanh(math.sqrt(2/math.pi)*(x + 0.044715*x*x*x))),
    "softplus": lambda x: np.logaddexp(0, x)}
EXACT_BINARY = {
    "min": np.minimum, "max": np.maximum, "<": truth(np.less), "<=": truth(np.less_equal), ">": truth(np.greater),
    ">=": truth(np.greater_equal), "==": truth(np.equal), "!=": truth(np.not_equal),
    "and": truth(lambda a, b: (a != 0) & (b != 0)), "or": truth(lambda a, b: (a != 0) | (b != 0))}
BINARY = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide,
    "pow": lambda a, b: np.power(np.asarray(a, float), b)}


# Their derivative is 0.
STEPS = {"sign", "floor", "round", "not", "<", "<=", ">", ">=", "==", "!=", "and", "or"}


def floor_of_quotient(a, b):
    """`floor(a/b)`, which of integers is `a//b`: toward minus infinity, 0 where b is 0."""
    if a.dtype == b.dtype == np.int64:
        return np.floor_divide(a, b)
    return np.floor(np.divide(a, b))

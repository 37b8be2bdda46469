"""A program that grows, value by value: its text, its inputs, and what each value is."""
import re

import numpy as np

from axes import Named, Skip, mapped

# Sizes that meet tiles and vectors in different ways.
FACES = {"plain": dict(T=5, D=8, S=3, C=2, K=2, V=7), "ones": dict(T=1, D=4, S=1, C=1, K=1, V=1),
         "turned": dict(T=8, D=2, S=9, C=1, K=1, V=4), "empty": dict(T=0, D=4, S=3, C=2, K=2, V=5),
         "wide": dict(T=33, D=72, S=17, C=5, K=3, V=40),
         "long": dict(T=1, D=2**24 + 3, S=2, C=1, K=1, V=2)}  # more positions than f32 has whole numbers
NEW_NAMES = ("U", "W", "X", "Y", "Z", "UU", "WW")  # that `rename` makes
INTEGERS = {"i8": (-8, 9), "u8": (0, 4), "i4": (-8, 8), "u4": (0, 16), "i32": (-12, 13), "i64": (-12, 400)}


def base(axis):
    """The name of an axis without its factor."""
    return re.sub(r"^\d+\*|/\d+$", "", axis)


class Value:
    """One value: how the text names it, and the function that makes it of other values.

    `exact`: it is not rounded, as what moves, chooses or negates; `inside`: it is made of others that are, so that it may be off although
    it is itself a number of the type. `straight`: a conversion, whose derivative is that of its operand; `step`: its derivative is 0.
    `multiplies`: it may be a product, which rounds its operands, integers too. `divides_integers`: it is a/b of integers, of which
    `floor` makes a//b."""
    divides_integers = False

    def __init__(self, text, f, args, now, exact=False, inside=False, straight=False, step=False, multiplies=False):
        self.text, self.f, self.args, self.now = text, f, args, now
        self.exact, self.inside, self.straight, self.step, self.multiplies = exact, inside, straight, step, multiplies
        self.axes = now.axes


class Input(Value):
    def __init__(self, name, kind, now):
        Value.__init__(self, name, None, (), now, exact=True)
        self.kind = kind


class Result:
    def __init__(self, name, kind, axes, value):
        self.text, self.kind, self.axes, self.value = name, kind, axes, value


def declared(program, tensors):
    """Tensors as the head of a program declares them; of inputs also their sizes, where these stand in the text."""
    seen = set()

    def axis(a):
        if not program.sizes_in_text or a != base(a) or a in seen or not isinstance(tensors[0], Input):
            return a
        seen.add(a)
        return f"{a}={program.sizes[a]}"
    return ", ".join(t.text + (f": {t.kind}" if t.kind else "") + (f"[{','.join(map(axis, t.axes))}]" if t.axes else "")
                     for t in tensors)


class Program:
    def __init__(self, rng, face, smooth=False):
        """`smooth`: inputs are floats that differ, as derivatives by differences want them."""
        self.rng, self.face, self.smooth = rng, face, smooth
        self.sizes = dict(FACES[face])
        self.values, self.inputs, self.lines, self.calls, self.results = [], [], [], {}, []
        self.sizes_in_text = False
        self.whole_numbers = rng.random() < 0.5

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, list):
        return list[int(self.rng.integers(len(list)))]

    def size(self, axis):
        m = re.match(r"(?:(\d+)\*)?(\w+)(?:/(\d+))?$", axis)
        n = self.sizes[m[2]]*int(m[1] or 1)
        if n % int(m[3] or 1):
            raise Skip("an odd axis")
        return n//int(m[3] or 1)

    # ---- values ----
    def add(self, text, f, *args, named=True, **rounding):
        """A value made of others. Most get a name of their own; others stand in the expression that uses them."""
        with np.errstate(all="ignore"):
            now = f(*[a.now for a in args])
        v = Value(text, f, args, now, **rounding)
        self.values.append(v)
        if named:
            v.text = f"v{len(self.values)}"
            self.lines.append(f"{v.text} = {text}")
        return v

    def input(self, axes, kind=None, values=None):
        """An input of any kind, with any values that its type has."""
        if values is None:
            axes = self.mixed(axes)
        shape = [self.size(a) for a in axes]
        kind = self.kind_for(axes, shape, kind)
        if values is None:
            values = self.numbers(kind, shape)
        values = np.asarray(values, np.int64 if kind in INTEGERS else float)
        x = Input(f"x{len(self.inputs)}", kind, Named(axes, values))
        self.values.append(x)
        self.inputs.append(x)
        return x

    def kind_for(self, axes, shape, kind):
        if kind is None:
            kind = "f32" if self.smooth else "i8" if self.face == "long" else str(self.rng.choice(["", "", "", "", "", "f32", "i8", "u8", "i4", "u4", "i32", "param"]))
        if kind in ("i4", "u4") and (not axes or shape[-1] % 2 or axes[-1] != base(axes[-1])):
            kind = kind[0] + "8"
        return "" if kind == "param" and not axes else kind

    def numbers(self, kind, shape):
        if kind in INTEGERS:
            return self.rng.integers(*INTEGERS[kind], shape)
        if self.smooth:
            return self.rng.normal(size=shape).astype(np.float32)
        return self.rng.integers(0, 4, shape) if self.whole_numbers else self.rng.integers(-24, 25, shape)/8

    def fresh(self, axes, **how):
        """An operand: an input, or something made of one."""
        x = self.input(axes, **how)
        r = self.rng.random()
        if how or r > 0.3:
            return x
        if r < 0.15:
            return self.add(f"tanh({x.text})", mapped(np.tanh), x)
        return self.add(f"{x.text}*2", mapped(lambda a: 2*a), x)

    def index(self, axes, count):
        """Whole numbers that name elements of an axis; read as they are, or made."""
        if count == 0:
            raise Skip("nothing to name")
        axes = self.mixed(axes)
        x = self.input(axes, self.pick(["i32", "i32", "i64"]), self.rng.integers(0, count, [self.size(a) for a in axes]))
        return self.add(f"({x.text} + 0)", lambda a: a, x, exact=True, named=False) if self.chance(0.3) else x

    # ---- axes ----
    def mixed(self, axes):
        return tuple(axes[i] for i in self.rng.permutation(len(axes)))

    def some(self, v):
        """Some axes of a value, at least one where it has any."""
        return [a for a in v.axes if self.chance(0.6)] or list(v.axes[-1:])

    def axis(self, v):
        if not v.axes:
            raise Skip("no axis")
        return self.pick(v.axes)

    def other(self, v, names="TDSCV"):
        """An axis that the value has not, nor a factor of it."""
        have = {base(a) for a in v.axes}
        free = [a for a in names if a not in have]
        if not free:
            raise Skip("no axis left")
        return self.pick(free)

    def new_name(self, v, axis):
        """A name that the value's axis can be renamed to."""
        n = self.size(axis)
        name = next((u for u in NEW_NAMES if u not in v.axes and self.sizes.get(u, n) == n), None)
        if not name:
            raise Skip("no name left")
        self.sizes[name] = n
        return name

    def now(self):
        """What each value is."""
        return {v: v.now for v in self.values}

    # ---- results and text ----
    def result(self, v):
        """A value becomes an output, with its axes in any order; an integer is also stored as one."""
        kind = "f32"
        if not self.smooth and v.now.is_integer():
            kind = self.pick(["f32", "i64", "i64", "i32"])
        elif not self.smooth and not v.exact and not v.straight and self.chance(0.15):  # what is open has a conversion's type
            kind = ""
        self.results.append(Result(f"y{len(self.results)}", kind, self.mixed(v.axes), v))

    def dims(self):
        """The sizes that a compiler of the text wants: of the axes that its inputs and outputs have."""
        named = {base(a) for t in self.inputs + self.results for a in t.axes}
        return {k: n for k, n in self.sizes.items() if k in named}

    def text(self, name="p"):
        ins, outs = declared(self, self.inputs), declared(self, self.results)
        body = [*self.lines, *(f"{y.text} = {y.value.text}" for y in self.results)]
        called = "".join(text + "\n" for text in self.calls.values())
        return called + f"{name}({ins}) -> ({outs}) {{\n" + "".join(f"    {line}\n" for line in body) + "}\n"

"""The texts of decoder layers whose products are of e4m3 (_fp8.py): what comes before attention, and what comes behind it, on groups of 128
tokens and features; between them attention, on sequences and heads, with what stands before it.
"""
import functools

from ._fp8 import as_before, conv_inputs, conv_quantised, grouped, linear_line, quantised, tokens, weight_inputs
from ._layers import BETWEEN, attentions, in_autocast, rotary_turned, text
from ._op import op


def fp8_op(name, inputs, results, lines, keep=()):
    """What stands for a weight has no part in sums: autocast leaves it alone."""
    weights = [i.split("[")[0] for i in inputs if i.startswith("w") and ":" not in i]
    return op(text(name, inputs, results, lines), rows=("N",), keep=(*keep, *weights))


def rms(x, gain, one_plus):
    return f"{x}*rsqrt(mean({x}*{x}, G, K) + eps)*{f'(1 + {gain})' if one_plus else gain}"


def gated_rest8(bias, activation, sandwich):
    """As gated_rest."""
    out = [linear_line("a0", "o", "wo"), "a = a0" + (" + bo" if bias else "")]
    out += ["h = x + " + (rms("a", "ga", True) if sandwich else "a")]
    mlp = ["n2 = " + rms("h", "g2", sandwich), linear_line("gate", "n2", "wg"), linear_line("up", "n2", "wu"),
           linear_line("m", f"{activation}(gate)*up", "wd"), "y = h + " + (rms("m", "gm", True) if sandwich else "m")]
    weights = [i for name, axes in (("wg", ("F,M", "G,K")), ("wu", ("F,M", "G,K")), ("wd", ("G,K", "F,M"))) for i in weight_inputs(name, *axes)]
    return ((["bo[G,K]"] * bias + ["ga[G,K]"] * sandwich, out), (["g2[G,K]"] + ["gm[G,K]"] * sandwich + weights, mlp))


def plain_rest8():
    """As plain_rest."""
    centred = lambda x, gain, bias: [f"c = {x} - mean({x}, G, K)", f"n = c*rsqrt(mean(c*c, G, K) + eps)*{gain} + {bias}"]
    mlp = [*centred("h", "g2", "b2"), linear_line("z", "n", "wf", "linear8_in"), linear_line("m", "gelu_tanh(z + bf)", "wp", "linear8_in"), "y = h + (m + bp)"]
    return ((["bo[G,K]"], [linear_line("a", "o", "wo", "linear8_in"), "h = x + (a + bo)"]),
            (["g2[G,K]", "b2[G,K]", *conv_inputs("wf", "F,M", "G,K"), "bf[F,M]", *conv_inputs("wp", "G,K", "F,M"), "bp[G,K]"], mlp))


class Parts8:
    """A layer as programs: project(), then `turn` for someone else's attention or `attend`, then rest(). before: the inputs of what is projected,
    by these lines. heads: the inputs that the results are for what stands before attention, which is `middle`, as rotary_turned has it.
    prepare: of matrices, what the product of each takes."""

    def __init__(self, before, lines, results, heads, middle, rest, wo, prepare, window, softcap, scaled):
        (inputs, turned), ((out_inputs, out_lines), (mlp_inputs, mlp_lines)) = middle, rest
        self.prepare, self.projections = prepare, fp8_op("projections8", ["x[N,R,G,K]", *before, "eps"], results, lines)
        queries = "[B,S,G,H,E]" if len(heads) == 3 else "[B,S,G,E]"
        self.turn = op(text("turn", heads + inputs, f"(q{queries}, k[B,S,G,E], v[B,S,G,E])", turned))
        self.attend = {kind: op(text("turn_attend", [*heads, *inputs, *told], f"o{queries}", turned + BETWEEN + seen))
                       for kind, (seen, told) in attentions(window, softcap, scaled).items()}
        given = ["x[N,R,G,K]", "o[N,R,P,M]", *wo, *out_inputs]
        self.behind = fp8_op("rest8", given + mlp_inputs + ["eps"], "y[N,R,G,K]", out_lines + mlp_lines)
        self.first = len(given) - 2  # as Parts has it
        self.out = fp8_op("rest8_out", given + ["eps"], "h[N,R,G,K]", out_lines, keep=("x",))
        self.mlp = fp8_op("rest8_mlp", ["h[N,R,G,K]", *mlp_inputs, "eps"], "y[N,R,G,K]", mlp_lines, keep=("h",))

    def prepared(self, weights):
        """Vectors in groups, and for each matrix what its product takes."""
        matrices = iter(self.prepare([w for w in weights if w.dim() != 1]))
        return [t for w in weights for t in ([grouped(w)] if w.dim() == 1 else next(matrices))]

    def project(self, x, weights, eps):
        found = self.projections(tokens(x), *self.prepared(weights), eps)
        return [as_before(y, x.shape[:-1]) for y in (found if isinstance(found, (tuple, list)) else [found])]

    def rest(self, x, o, weights, eps):
        groups, attended, given = tokens(x), tokens(o), self.prepared(weights)
        if in_autocast(x):
            y = self.mlp(self.out(groups, attended, *given[:self.first], eps), *given[self.first:], eps)
        else:
            y = self.behind(groups, attended, *given, eps)
        return as_before(y, x.shape[:-1])


@functools.lru_cache(None)
def llama_parts8(bias, head_norm, per_sequence, gemma, out_bias, activation, window, softcap, scaled):
    axes = {"q": "P,M", "k": "L,M", "v": "L,M"}
    before = ["g[G,K]"] + [i for name in "qkv" for i in weight_inputs("w" + name, axes[name], "G,K")]
    lines = ["n = " + rms("x", "g", gemma)] + [linear_line(name, "n", "w" + name) for name in "qkv"]
    inputs, turned = rotary_turned(bias, head_norm, per_sequence, "{}_in")
    return Parts8(before, lines, "(q[N,R,P,M], k[N,R,L,M], v[N,R,L,M])", ["q_in[B,S,G,H,E]", "k_in[B,S,G,E]", "v_in[B,S,G,E]"],
                  (inputs + ["eps"] * head_norm, turned), gated_rest8(out_bias, activation, gemma), weight_inputs("wo", "G,K", "P,M"), quantised,
                  window, softcap, scaled)


@functools.lru_cache(None)
def gpt2_parts8(scaled):
    slices = [f"{name} = gather(z, {i}, K) + gather(bias, {i}, K)" for i, name in enumerate("qkv")]
    lines = ["c = x - mean(x, G, K)", "n = c*rsqrt(mean(c*c, G, K) + eps)*g + b", linear_line("z", "n", "w", "linear8_in")]
    return Parts8(["g[G,K]", "b[G,K]", *conv_inputs("w", "P,M", "G,K")], lines, "z[N,R,P,M]", ["z[B,S,K,G,E]"], (["bias[K,G,E]"], slices), plain_rest8(),
                  conv_inputs("wo", "G,K", "P,M"), conv_quantised, False, False, scaled)

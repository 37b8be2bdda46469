"""The texts of decoder layers, made of three pieces that fit together: what comes before attention, attention, what comes behind it.

Each piece is lines of a program and the inputs that they read. All three in a row are a whole layer as one program; the first and the
last are programs of their own where something else is attention.
"""
import functools

import torch

from ._op import op
from .nn import Form, attention_lines


def text(name, inputs, results, lines):
    body = "\n    ".join(lines)
    return f"{name}({', '.join(inputs)}) -> {results} {{\n    {body}\n}}\n"


def rotary_projections(bias, head_norm, per_sequence, one_plus):
    """From x: what rotary_turned has."""
    inputs, lines = rotary_turned(bias, head_norm, per_sequence, "n @ w{}")
    return (["g[D]", "wq[G,H,E,D]", "wk[G,E,D]", "wv[G,E,D]", *inputs],
            [f"n = x*rsqrt(mean(x*x, D) + eps)*{'(1 + g)' if one_plus else 'g'}", *lines])


def rotary_turned(bias, head_norm, per_sequence, product):
    """q[B,S,G,H,E], k and v[B,S,G,E], with rotary embedding where a feature of each half is a pair. product: of which they are made, by their
    names. bias: of the projections. head_norm: queries and keys have a norm of their own, before they are turned. per_sequence: so are
    positions. one_plus: gains are stored less 1."""
    table = "[B,S,E/2]" if per_sequence else "[S,E/2]"
    inputs = ["cos_t" + table, "sin_t" + table]
    inputs += ["bq[G,H,E]", "bk[G,E]", "bv[G,E]"] if bias else []
    inputs += ["gq[E]", "gk[E]"] if head_norm else []
    lines = []
    for name in "qk":
        lines.append(f"{name}0 = {product.format(name)}" + (f" + b{name}" if bias else ""))
        if head_norm:
            lines.append(f"{name}1 = {name}0*rsqrt(mean({name}0*{name}0, E) + eps)*g{name}")
        lines.append(f"{name}a, {name}b = halves({name}{int(head_norm)}, E)")
        lines.append(f"{name} = concat({name}a*cos_t - {name}b*sin_t, {name}a*sin_t + {name}b*cos_t, E)")
    return inputs, lines + [f"v = {product.format('v')}" + (" + bv" if bias else "")]


def gated_rest(bias, activation, sandwich, kept="{}"):
    """From x and o to the next x. sandwich: with norms behind attention and MLP as well, as Gemma 2 has them. kept: what an MLP's first products
    stand in. In two pieces: up to h, the residual in between, and from there."""
    inputs = ["bo[D]"] if bias else []
    attended = "o @ wo" + (" + bo" if bias else "")
    mlp = f"({activation}({kept.format('n2 @ wg')})*({kept.format('n2 @ wu')})) @ wd"
    weights = ["wg[F,D]", "wu[F,D]", "wd[D,F]"]
    if not sandwich:
        return (inputs, [f"h = x + {attended}"]), (["g2[D]", *weights], ["n2 = h*rsqrt(mean(h*h, D) + eps)*g2", f"y = h + {mlp}"])
    return ((inputs + ["ga[D]"], [f"a = {attended}", "h = x + a*rsqrt(mean(a*a, D) + eps)*(1 + ga)"]),
            (["g2[D]", "gm[D]", *weights], ["n2 = h*rsqrt(mean(h*h, D) + eps)*(1 + g2)", f"m = {mlp}",
                                            "y = h + m*rsqrt(mean(m*m, D) + eps)*(1 + gm)"]))


def layer_norm_projections():
    """LayerNorm, then queries, keys and values[B,S,G,E] by the three slices of one weight."""
    slices = [f"{name} = n @ gather(w, {i}, K) + gather(bias, {i}, K)" for i, name in enumerate("qkv")]
    return ["g[D]", "b[D]", "w[D,K,G,E]", "bias[K,G,E]"], ["c = x - mean(x, D)", "n = c*rsqrt(mean(c*c, D) + eps)*g + b", *slices]


def plain_rest(kept="{}"):
    """As gated_rest, with the MLP of GPT-2."""
    return ((["bo[D]"], ["h = x + (o @ wo + bo)"]),
            (["g2[D]", "b2[D]", "wf[D,F]", "bf[F]", "wp[F,D]", "bp[D]"],
             ["d = h - mean(h, D)", "n2 = d*rsqrt(mean(d*d, D) + eps)*g2 + b2", f"y = h + (gelu_tanh({kept.format(kept.format('n2 @ wf') + ' + bf')}) @ wp + bp)"]))


# The backward's scores are to be those of the forward, whose sums it reads: so it reads q and k themselves, and does not make
# them again from products that were rounded.
BETWEEN = ["keys = rename(keep(k), S, R)", "values = rename(v, S, R)", "queries = keep(q)"]


def cached_lines(window, softcap, scaled, spread=False):
    """As attention_lines, where `offset` tokens are in the cache before the first of the queries, and a sequence's begin at its `start`."""
    lines, (start, *numbers) = attention_lines(Form(True, window, softcap, scaled, starts=True, spread=spread))
    return [line.replace("index(S)", "index(S) + offset") for line in lines], [start, "offset: i32", *numbers]


def put_there(line):
    """A line that reads keys and values where those of the program are put."""
    return line.replace("queries", "q").replace("*keys", "*keys_new").replace("*values", "*values_new").replace("mean(values", "mean(values_new")


def alone(lines):
    """Lines, or inputs, of one token of each sequence."""
    if type(lines) is list:
        return [alone(line) for line in lines]
    return lines.replace("[B,S,", "[B,").replace("[S,", "[").replace("index(S) + offset", "offset")


KINDS = {"plain": {}, "starts": dict(starts=True), "padded": dict(starts=True, lengths=True), "documents": dict(documents=True),
         "starts, spread": dict(starts=True, spread=True), "padded, spread": dict(starts=True, lengths=True, spread=True)}


def attentions(window, softcap, scaled):
    """Attention of a layer by what a query sees of the keys up to its own (Seen of _attention.py): lines and inputs of each kind."""
    return {kind: attention_lines(Form(True, window, softcap, scaled, **masks), "S") for kind, masks in KINDS.items()}


class Parts:
    """A layer as programs: `projections`, `rest` and, with attention between them, `whole`, of each kind. Inputs come in the order of the pieces,
    numbers last; `cached` and `fill` are there twice, [True] for queries that spread over all keys. results: of the projections. wo: the output projection, with {} for the axes of heads. rest: gated_rest or plain_rest, by what
    is kept. The last two are there twice: [True] makes the MLP's first products again in the backward, and does not keep them."""

    def __init__(self, before, results, heads, wo, rest, window, softcap, scaled):
        (inputs, lines), ((out_inputs, out_lines), (mlp_inputs, mlp_lines)) = before, rest("{}")
        mlps = {False: mlp_lines, True: rest("again({})")[1][1]}
        self.projections = op(text("projections", ["x[B,S,D]", *inputs, "eps"], results, lines))
        given = ["x[B,S,D]", "o[B,S,C]", wo.format("C"), *out_inputs]
        self.behind = {less: op(text("rest", given + mlp_inputs + ["eps"], "y[B,S,D]", out_lines + mlp)) for less, mlp in mlps.items()}
        # Under autocast x and h stay f32 as PyTorch has them, and nothing else does: h must be a result.
        self.first = len(given) - 2  # the weights up to h
        self.out = op(text("rest_out", given + ["eps"], "h[B,S,D]", out_lines), keep=("x",))
        self.mlp = op(text("rest_mlp", ["h[B,S,D]", *mlp_inputs, "eps"], "y[B,S,D]", mlp_lines), keep=("h",))
        whole = ["x[B,S,D]", *inputs, wo.format(heads), *out_inputs, *mlp_inputs, "eps"]
        self.whole = {less: {kind: op(text("layer", whole + told, "y[B,S,D]", lines + BETWEEN + seen + out_lines + mlp))
                             for kind, (seen, told) in attentions(window, softcap, scaled).items()} for less, mlp in mlps.items()}
        # With a cache, which lies as transformers has it: for tokens whose keys and values it has already, and for such that are put there, one
        # of each sequence or several. The latter are one program, as the whole is, so that the algebra does the same with both.
        (seen, numbers), spread = cached_lines(window, softcap, scaled), cached_lines(window, softcap, scaled, True)[0]
        axes, caches = heads.replace("G", "B,S,G", 1), ["keys[B,G,R,E]", "values[B,G,R,E]"]
        behind = [wo.format(heads), *out_inputs, *mlp_inputs, "eps"]
        self.cached = [op(text("layer_cached", ["x[B,S,D]", f"queries[{axes}]", *caches, *behind, *numbers], "y[B,S,D]", what + out_lines + mlp_lines),
                          rows=("B", "S", "R")) for what in (seen, spread)]
        given, results = ["x[B,S,D]", *inputs, *caches, "slot: i32", *behind, *numbers], "(y[B,S,D], keys_new[B,G,R,E], values_new[B,G,R,E])"
        made = lambda put, what=seen: lines + put + [put_there(line) for line in what] + out_lines + mlp_lines
        over = {"keys_new": "keys", "values_new": "values"}
        filled = ["place = index(R) - slot", "new = place >= 0 and place < size(S)", "keys_new = where(new, gather(k, place, S), keys)",
                  "values_new = where(new, gather(v, place, S), values)"]
        self.fill = [op(text("layer_fill", given, results, made(filled, what)), into=over, rows=("B", "S", "R")) for what in (seen, spread)]
        put = ["keys_new = update(keys, k, slot, R)", "values_new = update(values, v, slot, R)"]
        one = text("layer_step", *[alone(part) for part in (given, results, made(put))])
        self.step, self.step_open = (op(one, into=over, rows=rows) for rows in (("B",), ("B", "R")))

    def rest(self, x, o, weights, eps, less=False):
        if not in_autocast(x):
            return self.behind[less](x, o, *weights, eps)
        return self.mlp(self.out(x, o, *weights[:self.first], eps), *weights[self.first:], eps)


def in_autocast(x):
    """Is x f32, and products of it are to be of 16 bits?"""
    return x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type)


@functools.lru_cache(None)
def llama_parts(bias, head_norm, per_sequence, gemma, out_bias, activation, window, softcap, scaled):
    return Parts(rotary_projections(bias, head_norm, per_sequence, gemma), "(q[B,S,G,H,E], k[B,S,G,E], v[B,S,G,E])", "G,H,E", "wo[D,{}]",
                 functools.partial(gated_rest, out_bias, activation, gemma), window, softcap, scaled)


@functools.lru_cache(None)
def gpt2_parts(scaled):
    return Parts(layer_norm_projections(), "(q[B,S,G,E], k[B,S,G,E], v[B,S,G,E])", "G,E", "wo[{},D]", plain_rest, False, False, scaled)

"""Launches and bytes of a decoder layer that torch.compile's backend says, as planned for a GPU that need not be there, and those of the
program that epilog.apply has for it. As a command it prints a table of bench/notes/hopper.md: python layer_plans.py [NAME …]

Sizes are those of a model of 1B: 2 sequences of 2048 tokens, 2048 features, 16 heads of 128, 4 for keys; bf16. Nothing is computed: tensors
are fake."""
import os
import re
import subprocess
import sys
import tempfile
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import families
from epilog import _run
from epilog._compile import Report, compile_graph
from epilog._layers import llama_parts
from epilog._library import library
from epilog._schema import example
from epilog._write import like

TOKENS, ARCH = (2, 2048), "sm_90a"
LARGE = dict(families.SMALL, hidden_size=2048, intermediate_size=8192, num_hidden_layers=1, num_attention_heads=16, num_key_value_heads=4,
             max_position_embeddings=4096)
HEAD = dict(head_dim=128)
GPT2 = dict(n_embd=2048, n_layer=1, n_head=16, n_positions=2048)
CHANGED = {"Mistral": dict(sliding_window=512), "GPT2": GPT2, "GPTJ": dict(GPT2, rotary_dim=64), "Bloom": dict(n_layer=1, n_head=16),
           "OPT": dict(ffn_dim=8192, word_embed_proj_dim=2048), "Gemma2": dict(HEAD, query_pre_attn_scalar=128, sliding_window=512),
           "Gemma3": dict(HEAD, query_pre_attn_scalar=128, sliding_window=512, layer_types=["sliding_attention"]),
           **dict.fromkeys(("Qwen3", "Glm4", "Ernie4_5", "Helium", "SeedOss"), HEAD)}
# What apply's program has: bias, head_norm, per_sequence, gemma, out_bias, activation, window, softcap, scaled.
BY_HAND = {"Llama": (False, False, False, False, False, "silu", False, False, False), "Qwen3": (False, True, False, False, False, "silu", False, False, False),
           "Gemma2": (False, False, False, True, False, "gelu_tanh", True, True, True)}
SIZES = dict(B=2, S=2048, D=2048, G=4, H=4, E=128, F=8192)


class Done(Exception):
    """All that was wanted is in the report."""


def reported(name):
    """What the backend makes of a model of one layer."""
    import transformers
    report = Report()

    def backend(gm, inputs):
        compile_graph(gm, inputs, report, "eager")
        raise Done
    torch._dynamo.reset()
    kind = ("Gemma3Text" if name == "Gemma3" else name) + "Config"
    config = families.config(transformers, kind, {**LARGE, **CHANGED.get(name, {})})
    made = families.kind_of(transformers, name)
    with FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = made(config).train()
        finally:
            torch.set_default_dtype(torch.float32)
        ids = torch.randint(3, 96, TOKENS)
        try:
            torch.compile(model, backend=backend)(input_ids=ids, labels=ids, use_cache=False)
        except torch._dynamo.exc.BackendCompilerFailed as failed:
            if not isinstance(failed.__cause__ or failed.inner_exception, Done):
                raise
    return report


def layers(report):
    """The programs of layers: those that are of an item of a list of modules."""
    return [p for g in report.graphs for p, of in zip(g.programs, g.layers) if of]


def arguments(program):
    """Of a region's program, as the graph would give them."""
    seeds = [torch.empty((), dtype=torch.int32)] * program.seeds
    return program.op.prepared(program.arguments([like(example(n)) for n in program.given] + seeds))


def arguments_by_hand(op):
    """Of a program of apply's: weights and x want gradients, tables do not."""
    size = lambda axis: _run.scaled(SIZES, *axis)
    return [torch.empty([size(a) for a in t.axes], dtype=torch.bfloat16, requires_grad=not t.name.endswith("_t")) if t.rank else 1.0
            for t in op.program.inputs]


def shown(prog, args, types, told=()):
    """(launches, MB) of a program's plan. With a budget no products are launched as one: which are depends on what happens to be neighbours."""
    kinds = [_run.TYPES[a.dtype] if isinstance(a, torch.Tensor) else 0 for a in args] + _run.output_types(prog, args, types)
    with tempfile.NamedTemporaryFile("w", suffix=".epi") as file:
        file.write(prog.text)
        file.flush()
        call = [os.path.join(os.path.dirname(library().path), "epilog"), "show", f"{file.name}:{prog.name}", "--type", "bf16", "--arch", ARCH,
                "--memory", "1000G", "--dims", ",".join(f"{d}={s}" for d, s in _run.sizes_of(prog, args, told).items())]
        bound = ",".join(f"{t.name}={_run.NAMES[k]}" for t, k in zip(prog.tensors, kinds) if t.type != k)
        text = subprocess.run(call + (["--types", bound] if bound else []), capture_output=True, text=True, check=True).stdout
    launches, moved = re.findall(r"(\d+) launch(?:es)?; ([\d.e+-]+) MB moved fused", text)[-1]
    return int(launches), float(moved)


def planned(op, args):
    """(launches, MB) of forward and backward in training."""
    prog = op.program
    made = _run.recipe(prog, _run.wanted_names(prog, args), args)
    outs = [torch.empty(s, dtype=d) for s, d in _run.output_shapes(made.forward, args, made.plain_types)]
    values = {"input": args, "output": outs, "cotangent": outs}
    told = tuple(_run.size_of(made.forward, args, d) for d in made.backward.missing)
    return shown(made.forward, args, made.plain_types), shown(made.backward, [values[k][i] for k, i in made.sources], made.types(args), told)


def of_layer(name):
    """The same of all programs of a layer together."""
    with FakeTensorMode():
        each = [planned(p.op, arguments(p)) for p in layers(reported(name))]
    return [tuple(map(sum, zip(*way))) for way in zip(*each)]


def by_hand(name):
    with FakeTensorMode():
        op = llama_parts(*BY_HAND[name]).whole[False]["plain"]
        return planned(op, arguments_by_hand(op))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    print("| model | forward: launches | MB | backward: launches | MB | by hand: forward | | backward | |\n|---|---|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or families.CAUSAL:
        if name != "Mixtral":
            hand = by_hand(name) if name in BY_HAND else [("", "")] * 2
            cells = [str(round(c) if isinstance(c, float) else c) for way in [*of_layer(name), *hand] for c in way]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)

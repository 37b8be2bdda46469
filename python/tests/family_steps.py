"""Training of small models by torch.compile's backend beside eager, as a table of bench/notes/cpu.md: python family_steps.py [NAME …]

Five steps of AdamW in f32: the largest relative difference of a loss to eager's. In bf16: how far losses are from those of f64, and how far
eager's are. One graph for batches of 2 and 3 and lengths of 10 and 12 (dynamic), checkpointed layers, LoRA on all linear layers: the largest
difference of gradients to eager's, relative to their norms. fullgraph: whether the model is one graph, as with PyTorch's own backends."""
import copy
import sys
import warnings

import torch

import families

NAMES = ["Llama", "Mistral", "Qwen3", "Gemma3", "Phi3", "Olmo2", "SmolLM3", "Granite", "GPTNeoX", "GPT2", "Bert", "ViT", "T5", "Mixtral"]


def trained(name, dtype, ours):
    """Losses of a model with weights as bf16 has them, whatever it computes in."""
    torch._dynamo.reset()
    model, given = families.make(name, std=0.05)
    model = model.bfloat16().to(dtype)
    if dtype == torch.float64:  # which grouped products do not take
        model.config._experts_implementation = "eager"
    return families.losses(model, families.typed(given, dtype), families.compiled(model)[0] if ours else None)


def beside(model, given, **how):
    torch._dynamo.reset()
    plain = families.step(model, given)
    return families.apart(families.step(model, given, families.compiled(model, **how)[0]), plain)


def is_whole(model, given, backend):
    torch._dynamo.reset()
    try:
        torch.compile(model, backend=backend, fullgraph=True)(**given)
        return True
    except Exception:
        return False


def fullgraph(model, given):
    plain = is_whole(model, given, "eager")
    mine = is_whole(model, given, lambda gm, inputs: families.compiled_graph(gm, inputs))
    return "yes" if plain and mine else "as plain" if plain == mine else "NOT"


def dynamic(model, given):
    torch._dynamo.reset()
    call, report = families.compiled(model, dynamic=True)
    found = []
    for batch, length in ((2, 10), (3, 12)):
        now = {k: v if not isinstance(v, torch.Tensor) else torch.randn(batch, 3, 16, 16) if k == "pixel_values" else torch.randint(3, 96, (batch, length))
               for k, v in given.items()}
        found.append(families.apart(families.step(model, now, call), families.step(model, now)))
    return max(found), len(report.graphs)


def checkpointed(model, given):
    plain = families.step(model, given)
    model.gradient_checkpointing_enable()
    torch._dynamo.reset()
    return families.apart(families.step(model, given, families.compiled(model)[0]), plain)


def adapted(model, given):
    import peft
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.0, init_lora_weights=False))
    return beside(model, given)


def shown(function, *args):
    try:
        found = function(*args)
        return f"{found:.0e}" if isinstance(found, float) else f"{found[0]:.0e} ({found[1]})" if isinstance(found, tuple) else found
    except Exception as why:
        return f"{type(why).__name__}: {str(why).splitlines()[0][:60]}"


def row(name):
    mine, plain = trained(name, torch.float32, True), trained(name, torch.float32, False)
    far = max(abs(a - b) / abs(b) for a, b in zip(mine, plain))
    narrow, eager, exact = trained(name, torch.bfloat16, True), trained(name, torch.bfloat16, False), trained(name, torch.float64, False)
    off = [max(abs(a - b) / abs(b) for a, b in zip(found, exact)) for found in (narrow, eager)]
    made = lambda: copy.deepcopy(families.make(name))
    cells = [shown(f, *made()) for f in (fullgraph, dynamic, checkpointed, adapted)]
    return f"| {name} | {far:.0e} | {off[0]:.1e} | {off[1]:.1e} | {' | '.join(cells)} |"


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    print("| model | five steps, f32 | bf16 | eager in bf16 | fullgraph | dynamic (graphs) | checkpoints | LoRA |\n|---|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or NAMES:
        print(row(name), flush=True)

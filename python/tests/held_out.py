"""Models of transformers that nobody looked at when the backend was written, drawn by a seed: python held_out.py [SEED [COUNT]]

Of all causal models and encoders but those of families.py, small and with random weights, those that a small configuration makes and that
run. For each: programs, the share of flops in them, and the largest difference of results and gradients to eager, relative to their norms."""
import random
import sys
import warnings

import torch

import families


def names():
    """Classes of models with a loss of words, and configurations' names."""
    from transformers.models.auto import modeling_auto
    causal, masked = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    known = {n.lower() for n in families.NAMES}
    found = {kind: model for table in (masked, causal) for kind, model in table.items() if isinstance(model, str)}
    return sorted((kind, model) for kind, model in found.items() if kind.replace("-", "").replace("_", "") not in known and model[:4].lower() not in known)


def make(kind, model):
    import transformers
    torch.manual_seed(4)
    config = transformers.AutoConfig.for_model(kind, **{**families.SMALL, **families.QUIET, "max_position_embeddings": 64})
    made = getattr(transformers, model)(config)
    if sum(p.numel() for p in made.parameters()) > 3e7:
        raise ValueError("large")
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.1)
    ids = torch.randint(3, 96, (2, 16))
    given = dict(input_ids=ids, labels=ids)
    return made.train(), given | (dict(use_cache=False) if "use_cache" in vars(config) else {})


def row(kind, model):
    try:
        made, given = make(kind, model)
        torch.manual_seed(1)
        plain = families.step(made, given)
        torch.manual_seed(1)
        again = families.step(made, given)
        if not all(torch.equal(plain[n], again[n]) for n in plain) or not all(t.isfinite().all() for t in plain.values()):
            raise ValueError("not the same twice")
    except Exception:
        return None  # no such small model
    torch._dynamo.reset()
    torch.manual_seed(1)
    call, report = families.compiled(made)
    far = families.apart(families.step(made, given, call), plain)
    total = lambda what: sum(getattr(g, what) for g in report.graphs)
    return (f"| {model} | {len(report.graphs)} | {sum(len(g.programs) for g in report.graphs)} | "
            f"{total('flops_inside') / max(1, total('flops')):.1%} | {far:.0e} |")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    seed, count = int(sys.argv[1]) if sys.argv[1:] else 0, int(sys.argv[2]) if sys.argv[2:] else 5
    drawn = names()
    random.Random(seed).shuffle(drawn)
    print(f"seed {seed}, of {len(drawn)} models\n| model | graphs | programs | flops in them | largest difference |\n|---|---|---|---|---|")
    for found in filter(None, (row(*name) for name in drawn)):
        print(found, flush=True)
        count -= 1
        if not count:
            break

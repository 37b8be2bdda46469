"""Families of transformers with small configurations and random weights, in training. As a command it prints what torch.compile's backend
makes of each, as a table of bench/notes/cpu.md: python families.py [NAME …]"""
import collections
import sys
import warnings

import torch

from rule import check

SMALL = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
QUIET = dict.fromkeys(("attention_dropout", "residual_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout",
                       "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate"), 0.0)
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=32)
CAUSAL = {  # name: what its configuration has beside SMALL
    "Llama": {}, "Mistral": dict(sliding_window=4), "Qwen2": {}, "Qwen3": dict(head_dim=8), "SmolLM3": {}, "Granite": {}, "Olmo": {}, "Olmo2": {},
    "Gemma2": dict(head_dim=8, sliding_window=4, query_pre_attn_scalar=8), "Gemma3": dict(
        head_dim=8, query_pre_attn_scalar=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"]),
    "Phi": {}, "Phi3": {}, "GPTNeoX": {}, "StableLm": {}, "Starcoder2": {}, "Cohere": {}, "Nemotron": {}, "Glm4": dict(head_dim=8),
    "Ernie4_5": dict(head_dim=8), "Helium": dict(head_dim=8), "Exaone4": {}, "Apertus": {}, "SeedOss": dict(head_dim=8), "Arcee": {},
    "GPT2": GPT2, "GPTJ": dict(GPT2, rotary_dim=4), "OPT": dict(ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=32),
    "Bloom": dict(n_layer=2, n_head=4), "Falcon": {}, "Mixtral": dict(num_local_experts=4),
    "DeepseekV2": dict(num_key_value_heads=4, head_dim=8, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
                       first_k_dense_replace=2)}  # of its layers those without experts
ENCODERS = {"Bert": {}, "Roberta": {}, "ModernBert": {}, "DistilBert": dict(dim=32, hidden_dim=64, n_layers=2, n_heads=4),
            "CLIPText": dict(max_position_embeddings=16), "ViT": dict(image_size=16, patch_size=4), "T5": None}
NAMES = [*CAUSAL, *ENCODERS]


def make(name, std=0.2):
    """(model, its arguments) of a family, the same at every call."""
    import transformers
    torch.manual_seed(4)
    if name == "T5":
        # gated-gelu: a relu's gradient jumps where its operand is rounded to the other side of 0
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=96, feed_forward_proj="gated-gelu", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0, dropout_rate=0.0))
    elif name in ENCODERS:
        model = getattr(transformers, name + "Model")(config(transformers, name + "Config", ENCODERS[name]))
    else:
        kind, settings = ("Gemma3Text" if name == "Gemma3" else name) + "Config", CAUSAL[name]
        model = kind_of(transformers, name)(config(transformers, kind, settings))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=std)
    ids = torch.randint(3, 96, (2, 10))
    if name == "ViT":
        return model.train(), dict(pixel_values=torch.randn(2, 3, 16, 16))
    labels = ids.clone()
    labels[0, :3] = -100
    return model.train(), dict(input_ids=ids, **({} if name in ENCODERS and name != "T5" else dict(labels=labels, use_cache=False)))


def kind_of(transformers, name):
    return next(getattr(transformers, name + n) for n in ("ForCausalLM", "LMHeadModel") if hasattr(transformers, name + n))


def causal(name, settings, std=0.2, seed=4):
    """A causal model of these settings, in training, with random weights that are the same at every call."""
    import transformers
    torch.manual_seed(seed)
    model = kind_of(transformers, name)(getattr(transformers, name + "Config")(**settings))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=std)
    return model.train()


def config(transformers, kind, settings):
    return getattr(transformers, kind)(**{**SMALL, **QUIET, **settings})


def result(out):
    """A number to take gradients of, and what it is made of."""
    if getattr(out, "loss", None) is not None:
        return out.loss + out.logits.square().mean(), out.logits
    out = out.last_hidden_state
    return (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum(), out


def compiled_graph(gm, inputs, report=None, rest="eager", **more):
    from epilog._compile import Report, compile_graph
    return compile_graph(gm, inputs, report or Report(), rest, **more)


def compiled(model, rest="eager", more={}, **how):
    """A model or a function by the backend, and the report of what that made of it. more: for the backend; how: for torch.compile."""
    from epilog._compile import Report
    report = Report()
    return torch.compile(model, backend=lambda gm, inputs: compiled_graph(gm, inputs, report, rest, **more), **how), report


def beside(plain, given, units=1, rest="eager", **how):
    """A function by the backend, held against the function itself; the report."""
    call, report = compiled(plain, rest, **how)
    check(call, plain, given, units)
    return report


def leaves(*sizes):
    """Tensors that want gradients; a function's two, where no sizes are given."""
    return [torch.randn(s, requires_grad=True) for s in sizes or ((4, 8), (8, 8))]


def programs(report):
    return [p for g in report.graphs for p in g.programs]


def typed(given, dtype):
    return {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in given.items()}


def step(model, given, call=None):
    model.zero_grad()
    loss, out = result((model if call is None else call)(**given))
    loss.backward()
    return {"result": out.detach(), **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}


def loss_step(model, **given):
    """The loss and the gradients."""
    model.zero_grad()
    loss = model(**given).loss
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}}


def losses(model, given, call=None, lr=1e-3, steps=5, loss=lambda out: result(out)[0]):
    """Of steps of AdamW. loss: of what the model gives."""
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=lr), []
    for _ in range(steps):
        optimizer.zero_grad()
        now = loss((model if call is None else call)(**given))
        now.backward()
        optimizer.step()
        found.append(now.item())
    return found


def apart(mine, plain):
    """The largest difference of results and gradients, relative to their norms."""
    return max((((mine[n] - plain[n]).norm() / plain[n].norm()).item() for n in plain if plain[n].norm() > 1e-3), default=0)


def row(name):
    torch._dynamo.reset()
    model, given = make(name)
    plain = step(model, given)
    call, report = compiled(model)
    far = apart(step(model, given, call), plain)
    graphs, made = report.graphs, programs(report)
    left = collections.Counter()
    for g in graphs:
        left.update({why: n for why, n in g.left.items() if not any(dull in why for dull in ("too little", "int", "no gradients", "by its positions"))})
    total = lambda what: sum(getattr(g, what) for g in graphs)
    rest = ", ".join(sorted({why.split(": ")[-1] if why.startswith("unknown") else why for why in left} - DULL))
    return (f"| {name} | {total('nodes')} | {total('inside')} | {len(made)} ({len({p.text for p in made})}) | "
            f"{total('flops_inside') / max(1, total('flops')):.1%} | {far:.0e} | {rest} |")


DULL = {"arange", "embedding", "new_ones", "new_zeros", "zeros", "zeros_like", "ones", "full", "full_like", "empty_like", "__eq__", "__abs__", "and_",
        "diff", "cumsum", "pad", "_log_api_usage_once", "long",
        "_set_grad_enabled: not an operation on tensors"}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    print("| model | operations | in programs | programs (texts) | flops in them | largest difference | left beside embeddings and masks |\n|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or NAMES:
        print(row(name), flush=True)

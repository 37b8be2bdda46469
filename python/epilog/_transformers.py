"""epilog.apply and epilog.restore: Hugging Face models with their layers carried out by Epilog.

Modules stay where they are, with their weights and names; only their forward is another. A decoder layer becomes
two programs around PyTorch's attention: norm, projections and rotary embedding before it; the output projection,
residuals, norm and MLP behind it. At every call a layer looks whether its parts are still what they were (an
adapter may have taken the place of a linear layer, someone may have hooked in): if not, it does as it did before.
"""
import functools
import inspect
import re
import sys
import types

import torch
from torch import nn

from ._op import op
from .nn import layer_norm, linear_cross_entropy, rms_norm, rows

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2")
HEADS = {f + "ForCausalLM" for f in FAMILIES} | {"GPT2LMHeadModel"}  # models with a loss
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu": "gelu"}



class behind_attention:
    """What comes behind attention, from the residual x to the next: output projection, residual, norm, MLP, residual. One program;
    but two under autocast, where x and h, which the first lines make, stay f32 as PyTorch has them, and nothing else does.
    first: the inputs of the program up to h's last."""

    def __init__(self, head, rest, first):
        head, rest = head.strip("\n"), rest.strip("\n")
        name, inputs = re.match(r"(\w+)\((.*)\) -> ", head).groups()
        inputs = re.findall(r"\w+(?:\[[^]]*\])?", inputs)
        before, after = inputs[:first], inputs[first:-1]
        given = lambda names: ", ".join(names + ["eps"])
        self.first, self.whole = first, op(f"{head}\n{rest}\n")
        body = head.split("{\n", 1)[1]
        self.out = op(f"{name}_out({given(before)}) -> h[B,S,D] {{\n{body}\n}}\n", keep=("x",))
        self.mlp = op(f"{name}_mlp({given(['h[B,S,D]'] + after)}) -> y[B,S,D] {{\n{rest}\n", keep=("h",))

    def __call__(self, x, *given):
        if x.dtype != torch.float32 or not torch.is_autocast_enabled(x.device.type):
            return self.whole(x, *given)
        *weights, eps = given
        h = self.out(x, *weights[:self.first - 1], eps)
        return self.mlp(h, *weights[self.first - 1:], eps)


gemma_norm = op("""
gemma_norm(x[T,D], weight[D], eps) -> y[T,D] {
    y = x*rsqrt(mean(x*x, D) + eps)*(1 + weight)
}""", keep=True)

gpt2_mlp = op("""
gpt2_mlp(x[T,D], w1[D,F], b1[F], w2[F,D], b2[D]) -> y[T,D] {
    y = gelu_tanh(x @ w1 + b1) @ w2 + b2
}""")

gpt2_projections = op("""
# LayerNorm, then queries, keys and values as the three slices of one product.
gpt2_projections(x[B,S,D], g[D], b[D], w[D,K,H,E], bias[K,H,E], eps) -> y[B,S,K,H,E] {
    c = x - mean(x, D)
    n = c*rsqrt(mean(c*c, D) + eps)*g + b
    y = n @ w + bias
}""")

gpt2_rest = behind_attention("""
gpt2_rest(x[B,S,D], o[B,S,C], wo[C,D], bo[D], g[D], b[D], w1[D,F], b1[F], w2[F,D], b2[D], eps) -> y[B,S,D] {
    h = x + (o @ wo + bo)
""", """
    c = h - mean(h, D)
    n = c*rsqrt(mean(c*c, D) + eps)*g + b
    y = h + (gelu_tanh(n @ w1 + b1) @ w2 + b2)
}""", 4)


@functools.lru_cache(None)
def projections(bias, head_norm, per_sequence, one_plus):
    """Norm, then queries, keys and values, with rotary embedding where a feature of each half is a pair."""
    table = "[B,S,E/2]" if per_sequence else "[S,E/2]"
    inputs = ["x[B,S,D]", "g[D]", "wq[H,E,D]", "wk[G,E,D]", "wv[G,E,D]", "cos_t" + table, "sin_t" + table]
    inputs += ["bq[H,E]", "bk[G,E]", "bv[G,E]"] if bias else []
    inputs += ["gq[E]", "gk[E]"] if head_norm else []
    lines = [f"n = x*rsqrt(mean(x*x, D) + eps)*{'(1 + g)' if one_plus else 'g'}"]
    for name in "qk":
        lines.append(f"{name}0 = n @ w{name}" + (f" + b{name}" if bias else ""))
        if head_norm:
            lines.append(f"{name}1 = {name}0*rsqrt(mean({name}0*{name}0, E) + eps)*g{name}")
        lines.append(f"{name}a, {name}b = halves({name}{int(head_norm)}, E)")
        lines.append(f"{name} = concat({name}a*cos_t - {name}b*sin_t, {name}a*sin_t + {name}b*cos_t, E)")
    lines.append("v = n @ wv" + (" + bv" if bias else ""))
    body = "\n    ".join(lines)
    return op(f"projections({', '.join(inputs)}, eps) -> (q[B,S,H,E], k[B,S,G,E], v[B,S,G,E]) {{\n    {body}\n}}\n")


@functools.lru_cache(None)
def rest(bias, activation, sandwich):
    """sandwich: with norms behind attention and MLP as well, as Gemma 2 has them."""
    given = "x[B,S,D], o[B,S,C], wo[D,C], " + ("bo[D], " if bias else "")
    attended, mlp = "o @ wo" + (" + bo" if bias else ""), f"({activation}(n @ wg)*(n @ wu)) @ wd"
    if not sandwich:
        return behind_attention(f"""
rest({given}g[D], wg[F,D], wu[F,D], wd[D,F], eps) -> y[B,S,D] {{
    h = x + {attended}
""", f"""
    n = h*rsqrt(mean(h*h, D) + eps)*g
    y = h + {mlp}
}}""", 3 + bias)
    return behind_attention(f"""
rest({given}ga[D], g[D], gm[D], wg[F,D], wu[F,D], wd[D,F], eps) -> y[B,S,D] {{
    a = {attended}
    h = x + a*rsqrt(mean(a*a, D) + eps)*(1 + ga)
""", f"""
    n = h*rsqrt(mean(h*h, D) + eps)*(1 + g)
    m = {mlp}
    y = h + m*rsqrt(mean(m*m, D) + eps)*(1 + gm)
}}""", 4 + bias)


def untouched(module, kind):
    """Of exactly that class, and nobody has hooked in."""
    return (type(module) is kind and not module._forward_hooks and not module._forward_pre_hooks
            and ("forward" not in module.__dict__ or "_epilog" in module.__dict__))


def epsilon(norm):
    return norm.eps if hasattr(norm, "eps") else norm.variance_epsilon


class Layer:
    """What a patched decoder layer and its attention know of each other. It holds modules without being one."""

    def __init__(self, layer, family):
        attention = layer.self_attn
        self.family, self.norm, self.norm_kind = family, layer.input_layernorm, type(layer.input_layernorm)
        self.heads = attention.q_proj.out_features // attention.head_dim, attention.k_proj.out_features // attention.head_dim
        self.bias, self.head_norm = attention.q_proj.bias is not None, hasattr(attention, "q_norm")
        self.out_bias, self.eps = attention.o_proj.bias is not None, epsilon(layer.input_layernorm)
        gemma = family == "Gemma2"
        self.norms = ["post_attention_layernorm"] + (["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else [])
        self.projections = [projections(self.bias, self.head_norm, per_sequence, gemma) for per_sequence in (False, True)]
        self.rest = rest(self.out_bias, ACTIVATIONS[activation_of(attention.config)], gemma)

    def usable(self, layer):
        attention, mlp = layer.self_attn, layer.mlp
        linear = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        norms = [layer.input_layernorm] + [getattr(layer, name) for name in self.norms]
        norms += [attention.q_norm, attention.k_norm] if self.head_norm else []
        return all(untouched(m, nn.Linear) for m in linear) and all(untouched(m, self.norm_kind) for m in norms)


def activation_of(config):
    return getattr(config, "hidden_activation", None) or config.hidden_act


def layer_forward(self, hidden_states, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False,
                  position_embeddings=None, **kwargs):
    parts, given = self._epilog, dict(attention_mask=attention_mask, position_ids=position_ids, past_key_values=past_key_values,
                                      use_cache=use_cache, position_embeddings=position_embeddings, **kwargs)
    if position_embeddings is None or not parts.usable(self):
        return type(self).forward(self, hidden_states, **given)
    attended, _ = self.self_attn(hidden_states=hidden_states, epilog_part=parts, **given)
    mlp, out = self.mlp, self.self_attn.o_proj
    bias = (out.bias,) if parts.out_bias else ()
    gains = [getattr(self, name).weight for name in parts.norms]
    return parts.rest(hidden_states, attended, out.weight, *bias, *gains, mlp.gate_proj.weight, mlp.up_proj.weight,
                      mlp.down_proj.weight, parts.eps)


def attend(module, query, key, value, mask, dropout, **kwargs):
    """Attention itself, as the model's configuration wants it; the heads' values side by side."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    name = module.config._attn_implementation
    carry = sys.modules[type(module).__module__].eager_attention_forward if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
    attended, weights = carry(module, query, key, value, mask, dropout=dropout if module.training else 0.0,
                              scaling=module.scaling, **kwargs)
    return attended.reshape(*attended.shape[:-2], -1).contiguous(), weights


def attention_forward(self, hidden_states, position_embeddings=None, attention_mask=None, past_key_values=None, epilog_part=None,
                      **kwargs):
    """From what the layer was given, before its norm, to the heads' values, before the output projection. Called by
    anyone but a patched layer it is what it was."""
    if epilog_part is None:
        return type(self).forward(self, hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
                                  past_key_values=past_key_values, **kwargs)
    parts, size = epilog_part, self.head_dim
    cos, sin = (t[..., :size // 2].contiguous() for t in position_embeddings)
    per_sequence = cos.shape[0] != 1
    cos, sin = (cos, sin) if per_sequence else (cos[0], sin[0])
    q, k, v = self.q_proj, self.k_proj, self.v_proj
    shaped = lambda m, heads: m.weight.view(heads, size, -1)
    given = [hidden_states, parts.norm.weight, shaped(q, parts.heads[0]), shaped(k, parts.heads[1]), shaped(v, parts.heads[1]), cos, sin]
    given += [m.bias.view(-1, size) for m in (q, k, v)] if parts.bias else []
    given += [self.q_norm.weight, self.k_norm.weight] if parts.head_norm else []
    query, key, value = parts.projections[1 if per_sequence else 0](*given, parts.eps)
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, self.layer_idx)
    if parts.family == "Mistral":
        kwargs["sliding_window"] = getattr(self.config, "sliding_window", None)
    elif parts.family != "Llama":
        kwargs["sliding_window"] = self.sliding_window
    if parts.family == "Gemma2":
        kwargs["softcap"] = self.attn_logit_softcapping
    return attend(self, query, key, value, attention_mask, self.attention_dropout, **kwargs)


class Block:
    """What a patched block of GPT-2 knows: the names of forward's arguments, in order, and the class of its linear layers."""

    def __init__(self, block):
        self.names = list(inspect.signature(type(block).forward).parameters)[2:]
        self.linear = type(block.attn.c_attn)

    def usable(self, block, given):
        attention, mlp = block.attn, block.mlp
        dropouts = (attention.resid_dropout, mlp.dropout)
        linear = (attention.c_attn, attention.c_proj, mlp.c_fc, mlp.c_proj)
        return (given.get("encoder_hidden_states") is None and not (block.training and any(d.p for d in dropouts))
                and not (attention.reorder_and_upcast_attn and attention.config._attn_implementation == "eager")
                and all(untouched(m, self.linear) for m in linear) and all(untouched(m, nn.LayerNorm) for m in (block.ln_1, block.ln_2))
                and untouched(attention, type(attention)) and untouched(mlp, type(mlp)))


def gpt2_forward(self, hidden_states, *args, **kwargs):
    parts, given = self._epilog, dict(kwargs)
    given.update(zip(parts.names, args))
    if not parts.usable(self, given):
        return type(self).forward(self, hidden_states, *args, **kwargs)
    attention, mlp, first, second = self.attn, self.mlp, self.ln_1, self.ln_2
    qkv, shape = attention.c_attn, (3, attention.num_heads, attention.head_dim)
    y = gpt2_projections(hidden_states, first.weight, first.bias, qkv.weight.view(-1, *shape), qkv.bias.view(shape), first.eps)
    query, key, value = (t.transpose(1, 2) for t in y.unbind(2))
    past = given.pop("past_key_values", None)
    if past is not None:
        cache = getattr(past, "self_attention_cache", past)
        key, value = cache.update(key, value, attention.layer_idx)
    mask = given.pop("attention_mask", None)
    more = {k: v for k, v in given.items() if k not in ("encoder_hidden_states", "encoder_attention_mask", "output_attentions")}
    attended, _ = attend(attention, query, key, value, mask, attention.attn_dropout.p, **more)
    return gpt2_rest(hidden_states, attended, attention.c_proj.weight, attention.c_proj.bias, second.weight, second.bias,
                     mlp.c_fc.weight, mlp.c_fc.bias, mlp.c_proj.weight, mlp.c_proj.bias, second.eps)


def norm_forward(self, hidden_states):
    norm = gemma_norm if type(self).__name__ == "Gemma2RMSNorm" else rms_norm
    return norm(rows(hidden_states), self.weight, epsilon(self)).view(hidden_states.shape)


def layer_norm_forward(self, x):
    return layer_norm(rows(x), self.weight, self.bias, self.eps).view(x.shape)


def gpt2_mlp_forward(self, hidden_states):
    first, second = self.c_fc, self.c_proj
    if not (untouched(first, type(first)) and untouched(second, type(first)) and type(first).__name__ == "Conv1D"):
        return type(self).forward(self, hidden_states)
    y = gpt2_mlp(rows(hidden_states), first.weight, first.bias, second.weight, second.bias)
    return self.dropout(y.view(hidden_states.shape))


def causal_lm_forward(self, *args, labels=None, logits_to_keep=0, return_dict=None, **kwargs):
    """In training the loss is had without anyone seeing the logits: those of the answer are None. Otherwise as before."""
    plain = isinstance(logits_to_keep, int) and logits_to_keep == 0 and return_dict is not False and not args
    if labels is None or not self.training or not plain or not untouched(self.lm_head, nn.Linear) or self.lm_head.bias is not None:
        given = dict(kwargs) if return_dict is None else dict(kwargs, return_dict=return_dict)
        return type(self).forward(self, *args, labels=labels, logits_to_keep=logits_to_keep, **given)
    from transformers.modeling_outputs import CausalLMOutputWithPast
    outputs = getattr(self, self.base_model_prefix)(**kwargs)
    ignore, shifted, items = kwargs.get("ignore_index", -100), kwargs.get("shift_labels"), kwargs.get("num_items_in_batch")
    if shifted is None:
        shifted = nn.functional.pad(labels, (0, 1), value=ignore)[..., 1:]
    shifted = shifted.to(outputs.last_hidden_state.device)
    loss = linear_cross_entropy(outputs.last_hidden_state, self.lm_head.weight, shifted, ignore, "mean" if items is None else "sum",
                                softcap=getattr(self.config, "final_logit_softcapping", None))
    if items is not None:
        loss = loss / (items.to(loss.device) if torch.is_tensor(items) else items)
    return CausalLMOutputWithPast(loss=loss, logits=None, past_key_values=outputs.past_key_values,
                                  hidden_states=outputs.hidden_states, attentions=outputs.attentions)


class Report:
    """What apply replaced, and what it left alone and why: names of modules, in lists."""

    def __init__(self):
        self.replaced, self.left = [], []

    def __str__(self):
        lines = [f"replaced {name}: {what}" for name, what in self.replaced]
        return "\n".join(lines + [f"left alone {name}: {why}" for name, why in self.left])


@functools.lru_cache(None)
def with_signature(function, old):
    """A function of its own for each class that it is put into: its signature, at which others look, is the old one's."""
    new = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    new.__kwdefaults__ = function.__kwdefaults__
    return functools.wraps(old)(new)


def set_forward(module, function):
    """Another forward for this one module."""
    module.forward = types.MethodType(with_signature(function, type(module).forward), module)


def why_not(layer):
    """Why a decoder layer cannot be replaced, or None."""
    attention, mlp = layer.self_attn, layer.mlp
    if any(not hasattr(mlp, name) for name in ("gate_proj", "up_proj", "down_proj")):
        return "its MLP has no gate_proj, up_proj and down_proj"
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        if type(getattr(attention, name)) is not nn.Linear:
            return f"self_attn.{name} is a {type(getattr(attention, name)).__name__}, no plain Linear"
    for name in ("gate_proj", "up_proj", "down_proj"):
        if type(getattr(mlp, name)) is not nn.Linear:
            return f"mlp.{name} is a {type(getattr(mlp, name)).__name__}, no plain Linear"
        if getattr(mlp, name).bias is not None:
            return f"mlp.{name} has a bias"
    if activation_of(attention.config) not in ACTIVATIONS:
        return f"its activation {activation_of(attention.config)} has no text here"
    if attention.head_dim % 2:
        return f"heads of {attention.head_dim} features have no halves"
    eps = {epsilon(m) for m in layer.modules() if type(m) is type(layer.input_layernorm)}
    return None if len(eps) == 1 else "its norms have different epsilons"


def why_not_gpt2(block):
    """Why a block of GPT-2 cannot be replaced whole, or None."""
    if hasattr(block, "crossattention"):
        return "it has cross-attention"
    if not hasattr(block.attn, "scaling"):
        return "transformers of another version: its attention does not tell its scaling"
    if block.mlp.act.__class__.__name__ not in GELU_TANH:
        return f"its activation {block.mlp.act.__class__.__name__} has no text here"
    return None


GELU_TANH = ("NewGELUActivation", "GELUTanh")


def apply(model):
    """Lets Epilog carry out the layers of a Hugging Face model that it knows. Returns a Report; restore() undoes it."""
    report, inside = Report(), set()
    for name, module in model.named_modules():
        kind = type(module).__name__.removeprefix("FSDP")  # fully_shard puts a class of its own before a module's
        family = next((f for f in FAMILIES if kind == f + "DecoderLayer"), None)
        if "_epilog" in module.__dict__:
            report.left.append((name, "it is replaced already"))
        elif family:
            reason = why_not(module)
            if reason:
                report.left.append((name, reason))
                continue
            module._epilog = module.self_attn._epilog = Layer(module, family)
            set_forward(module, layer_forward)
            set_forward(module.self_attn, attention_forward)
            inside.update(id(m) for m in module.modules())
            report.replaced.append((name, "two programs around attention"))
            report.left.append((name + ".self_attn", "attention itself stays PyTorch's"))
        elif id(module) in inside:
            continue
        elif any(kind == f + "RMSNorm" for f in FAMILIES):
            module._epilog = True
            set_forward(module, norm_forward)
            report.replaced.append((name, "RMSNorm"))
        elif kind == "GPT2Block":  # its norms and MLP are replaced as well, for calls that the whole is not for
            reason = why_not_gpt2(module)
            if reason:
                report.left.append((name, reason))
                continue
            module._epilog = Block(module)
            set_forward(module, gpt2_forward)
            report.replaced.append((name, "two programs around attention, where no dropout is on"))
            report.left.append((name + ".attn", "attention itself stays PyTorch's"))
        elif kind in HEADS:
            module._epilog = True
            set_forward(module, causal_lm_forward)
            report.replaced.append((name or "the model", "the loss in training, together with lm_head"))
        elif kind == "GPT2MLP":
            if module.act.__class__.__name__ not in GELU_TANH:
                report.left.append((name, f"its activation {module.act.__class__.__name__} has no text here"))
                continue
            module._epilog = True
            set_forward(module, gpt2_mlp_forward)
            report.replaced.append((name, "MLP"))
        elif type(module) is nn.LayerNorm:
            if len(module.normalized_shape) != 1 or module.weight is None or module.bias is None:
                report.left.append((name, "LayerNorm over several axes, or without weight or bias"))
                continue
            module._epilog = True
            set_forward(module, layer_norm_forward)
            report.replaced.append((name, "LayerNorm"))
    if not report.replaced:
        report.left.append((type(model).__name__, f"nothing in it is known: {', '.join(FAMILIES)} and GPT-2 are"))
    return report


def restore(model):
    """Undoes apply: every module does again what its class says. Returns how many were changed back."""
    count = 0
    for module in model.modules():
        if "_epilog" in module.__dict__:
            del module._epilog
            del module.forward
            count += 1
    return count

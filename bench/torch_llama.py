#!/usr/bin/env python3
"""A training step of a Llama of 1B: eager, torch.compile, Liger, and epilog.apply in its ways, in one process.

  PYTHONPATH=python python3 bench/torch_llama.py --out bench/results/h200-llama.json
  PYTHONPATH=python python3 bench/torch_llama.py --losses 50                # and 50 losses of apply beside five seeds of eager
  PYTHONPATH=python python3 bench/torch_llama.py --device cpu --small       # tries the script without a GPU
  PYTHONPATH=python python3 bench/torch_llama.py --sides apply --rounds 1 --kernels kernels.txt    # the kernels of a step, in order

  eager, compile        the model of transformers, its attention PyTorch's with cuDNN
  plain, compiled       the model with fused projections and attention that is causal by a flag, as one writes it for torch.compile; what
                        "compile" makes of transformers' own takes a mask, and so scores that nobody sees
  apply                 epilog.apply: a layer is one program, attention with it
  apply, chunks         the same with the loss in 8 chunks of tokens
  apply, fp8            epilog.apply(fp8=True): products of the layers in e4m3
  apply, sdpa           epilog.apply(attention="sdpa"): two programs around cuDNN's attention
  apply and compile     the first of these under torch.compile; by --sides also "apply, memory": epilog.apply(memory=0), where layers keep the least
  backend               torch.compile(model, backend="epilog"); by --sides also "backend, graphs", with CUDA graphs;
                        "backend, loss", a function that returns the loss alone, without logits; "backend, chunks", that with the loss in 8 chunks
  liger                 where liger_kernel can be imported: its patch of the model

--model says which shape: llama-1b (d 2048, 16 layers, 32 heads of 8 groups, ff 8192, vocabulary 128256), four layers of llama-8b,
qwen3-0.6b or gpt2 (124M). 4 sequences of 4096 unless --batch and --length say something else, pure bf16, AdamW (fused).
All sides are there at once, with the same weights, and take turns: --rounds times --steps steps each. A side's peak of memory is
that of its first steps, less what the others hold; start_s is the time to its first loss, compiling included. A side that does not
fit or fails is told as such, and left out.
"""
import contextlib, gc, importlib.util, re, statistics, sys, time, unittest.mock

import common
from common import kernels, longest, sdpa, torch
import epilog
from torch import nn

F = nn.functional
SMALL = dict(options={"rest": "aot_eager"})  # to try the script nobody waits for Inductor
APPLY = {"apply": {}, "apply, chunks": dict(loss_chunks=8), "apply, fp8": dict(fp8=True), "apply, sdpa": dict(attention="sdpa"), "apply and compile": {}}
LESS = {"apply, memory": dict(memory=0)}  # all that can be made again is
BACKEND = {"backend": {}, "backend, graphs": dict(mode="reduce-overhead"), "backend, loss": {}, "backend, chunks": dict(options={"loss_chunks": 8})}
LLAMA = dict(tie_word_embeddings=False, rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=500000.0))
MODELS = {
    "llama-1b": ("Llama", dict(LLAMA, vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8)),
    "llama-8b": ("Llama", dict(LLAMA, vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=8)),
    "qwen3-0.6b": ("Qwen3", dict(LLAMA, tie_word_embeddings=True, vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                                 num_key_value_heads=8, head_dim=128)),
    "gpt2": ("GPT2", dict(vocab_size=50257, n_embd=768, n_layer=12, n_head=12, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)),
}
FEW = {"Llama": dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2),
       "Qwen3": dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16),
       "GPT2": dict(vocab_size=256, n_embd=64, n_layer=2, n_head=4)}
SIDES = ("eager", "compile", "plain, compiled", *APPLY, "backend") + (("liger",) if importlib.util.find_spec("liger_kernel") else ())


class PlainLayer(nn.Module):
    """A layer of a Llama, or with norms over heads of a Qwen3: q, k and v are one product, gate and up one."""

    def __init__(self, c, head_norms=False):
        super().__init__()
        d, ff = c["hidden_size"], c["intermediate_size"]
        self.heads, self.groups = c["num_attention_heads"], c["num_key_value_heads"]
        self.size = c.get("head_dim") or d // self.heads
        self.n1, self.n2 = nn.RMSNorm(d, 1e-5), nn.RMSNorm(d, 1e-5)
        self.nq, self.nk = (nn.RMSNorm(self.size, 1e-5) if head_norms else nn.Identity() for _ in range(2))
        self.qkv = nn.Linear(d, (self.heads + 2 * self.groups) * self.size, bias=False)
        self.out, self.gate_up, self.down = nn.Linear(self.heads * self.size, d, bias=False), nn.Linear(d, 2 * ff, bias=False), nn.Linear(ff, d, bias=False)

    def take(self, its):
        a, m = its.self_attn, its.mlp
        self.n1.weight.copy_(its.input_layernorm.weight)
        self.n2.weight.copy_(its.post_attention_layernorm.weight)
        if hasattr(a, "q_norm"):
            self.nq.weight.copy_(a.q_norm.weight)
            self.nk.weight.copy_(a.k_norm.weight)
        self.qkv.weight.copy_(torch.cat((a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)))
        self.out.weight.copy_(a.o_proj.weight)
        self.gate_up.weight.copy_(torch.cat((m.gate_proj.weight, m.up_proj.weight)))
        self.down.weight.copy_(m.down_proj.weight)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, -1, self.size).split([self.heads, self.groups, self.groups], 2)
        def turn(t):
            a, c = t.float().chunk(2, -1)
            return torch.cat((a * cos - c * sin, a * sin + c * cos), -1).to(t.dtype)
        q, k, v = (t.transpose(1, 2) for t in (turn(self.nq(q)), turn(self.nk(k)), v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(o.transpose(1, 2).reshape(b, s, -1))
        gate, up = self.gate_up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class PlainGPT2Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.heads = c["n_embd"], c["n_head"]
        self.n1, self.n2 = nn.LayerNorm(d, 1e-5), nn.LayerNorm(d, 1e-5)
        self.qkv, self.out, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def take(self, its):
        for mine, other in ((self.n1, its.ln_1), (self.n2, its.ln_2)):
            mine.load_state_dict(other.state_dict())
        for mine, other in ((self.qkv, its.attn.c_attn), (self.out, its.attn.c_proj), (self.up, its.mlp.c_fc), (self.down, its.mlp.c_proj)):
            mine.weight.copy_(other.weight.T)
            mine.bias.copy_(other.bias)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.transpose(1, 2) for t in self.qkv(self.n1(x)).view(b, s, 3, self.heads, -1).unbind(2))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(o.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Plain(nn.Module):
    """A Llama, Qwen3 or GPT-2 with fused projections and causal attention by its flag, as one writes it for torch.compile, with a model's weights."""

    def __init__(self, kind, c, length, other):
        super().__init__()
        of_gpt2 = kind == "GPT2"
        d, vocabulary = c["n_embd" if of_gpt2 else "hidden_size"], c["vocab_size"]
        self.embed, self.head = nn.Embedding(vocabulary, d), nn.Linear(d, vocabulary, bias=False)
        if other.config.tie_word_embeddings:
            self.head.weight = self.embed.weight
        if of_gpt2:
            self.layers, self.norm, self.places = nn.ModuleList(PlainGPT2Layer(c) for _ in range(c["n_layer"])), nn.LayerNorm(d, 1e-5), nn.Embedding(length, d)
        else:
            self.layers, self.norm = nn.ModuleList(PlainLayer(c, kind == "Qwen3") for _ in range(c["num_hidden_layers"])), nn.RMSNorm(d, 1e-5)
        size = 0 if of_gpt2 else self.layers[0].size
        angle = torch.outer(torch.arange(length).float(), 500000.0 ** (-torch.arange(0, size, 2).float() / max(size, 1)))[:, None]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        its = other.transformer if of_gpt2 else other.model
        with torch.no_grad():
            self.embed.weight.copy_((its.wte if of_gpt2 else its.embed_tokens).weight)
            self.head.weight.copy_(other.lm_head.weight)
            self.norm.load_state_dict((its.ln_f if of_gpt2 else its.norm).state_dict())
            if of_gpt2:
                self.places.weight.copy_(its.wpe.weight)
            for mine, layer in zip(self.layers, its.h if of_gpt2 else its.layers):
                mine.take(layer)

    def forward(self, ids, labels):
        x = self.embed(ids)
        if hasattr(self, "places"):
            x = x + self.places.weight[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x) if hasattr(self, "places") else layer(x, self.cos, self.sin)
        z = self.head(self.norm(x))[:, :-1].float()
        return F.cross_entropy(z.flatten(0, 1), labels[:, 1:].flatten())


class Side:
    """A model with its optimizer, and how a step of it goes."""

    def __init__(self, name, args, weights, seed=0):
        self.name, self.args, self.returns_loss = name, args, name.startswith("plain") or name in ("backend, loss", "backend, chunks")
        torch.manual_seed(seed)
        self.model = make(args)
        if weights is not None and seed == 0:
            self.model.load_state_dict(weights)
        if name.startswith("plain"):
            plain = Plain(args.kind, args.config, args.length, self.model)
            cos, sin = plain.cos, plain.sin   # they stay f32
            self.model = plain.to(args.device, torch.bfloat16)
            plain.cos, plain.sin = cos.to(args.device), sin.to(args.device)
        if name in APPLY | LESS:
            self.report = str(epilog.apply(self.model, **(APPLY | LESS)[name]))
        if name == "liger":
            # Its rotary embedding goes to the module of all such models: there it is while this side's steps run, and no longer.
            from liger_kernel.transformers import _apply_liger_kernel_to_instance
            self.home = sys.modules[type(self.model).__module__]
            before = self.home.apply_rotary_pos_emb
            _apply_liger_kernel_to_instance(model=self.model)
            self.rotary = self.home.apply_rotary_pos_emb
            self.home.apply_rotary_pos_emb = before
        self.model.train()
        self.called = torch.compile(self.model, dynamic=False) if "compile" in name else self.model
        if name in BACKEND:
            called = self.loss_alone if self.returns_loss else self.model
            self.called = torch.compile(called, dynamic=False, backend="epilog", **(SMALL if args.small else BACKEND[name]))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.rate, fused=args.device == "cuda")

    def loss_alone(self, ids, labels):
        return self.model(input_ids=ids, labels=labels, use_cache=False).loss

    def step(self, ids):
        patch = contextlib.nullcontext()
        if self.name == "liger":
            patch = unittest.mock.patch.object(self.home, "apply_rotary_pos_emb", self.rotary)
        with sdpa(self.args.device), patch:
            loss = self.called(ids, ids) if self.returns_loss else self.called(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def make(args):
    import transformers
    config = getattr(transformers, args.kind + "Config")(**args.config, max_position_embeddings=args.length, attn_implementation="sdpa")
    made = getattr(transformers, args.kind + ("LMHeadModel" if args.kind == "GPT2" else "ForCausalLM"))
    with torch.device(args.device):
        model = made(config).to(torch.bfloat16)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=0.02)
    return model


def batches(args, count, seed=1):
    """Sequences with something to learn: a token is, nine times of ten, a fixed function of the one before."""
    g = torch.Generator().manual_seed(seed)
    vocabulary = args.config["vocab_size"]
    follows = torch.randperm(vocabulary, generator=g)
    out = []
    for _ in range(count):
        ids = torch.randint(0, vocabulary, (args.batch, args.length), generator=g)
        keep = torch.rand(args.batch, args.length, generator=g) < 0.9
        for s in range(1, args.length):
            ids[:, s] = torch.where(keep[:, s], follows[ids[:, s - 1]], ids[:, s])
        out.append(ids.to(args.device))
    return out


def free(args):
    gc.collect()
    if args.device == "cuda":
        torch.cuda.empty_cache()


def measure(args, names, weights):
    data, sides, rows = batches(args, 4), {}, {}
    for name in names:
        free(args)
        row = rows[name] = dict(side=name)
        if args.device == "cuda":
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        try:
            side = Side(name, args, weights)
            row["loss_first"] = side.step(data[0]).item()
            row["start_s"] = time.perf_counter() - begin
            for i in range(1, 3):
                row["loss_third"] = side.step(data[i]).item()
        except Exception as e:  # one side that cannot run is no reason to lose the others
            row["failed"] = f"{type(e).__name__}: {str(e)[:600]}"
            print(name, row["failed"], flush=True)
            side = None
            continue
        if args.device == "cuda":
            row["peak_gib"] = (torch.cuda.max_memory_allocated() - held) / 2**30
        sides[name] = side
        print(name, row, flush=True)

    def once(side):
        free(args)  # what the last side has let go of may lie in pieces that this one cannot use
        side.step(data[0])  # so that what the last side left in the caches is gone
        return common.seconds(lambda: steps(side), args.device)[0] / args.steps

    def steps(side):
        for i in range(args.steps):
            side.step(data[i % len(data)])
    spent = common.in_turn(sides, once, args.rounds)
    for name, times in spent.items():
        row, tokens = rows[name], args.batch * args.length
        row.update(step_ms=statistics.median(times) * 1e3, tokens_s=tokens / statistics.median(times), rounds_ms=[t * 1e3 for t in times])
        print(f"{name:20} {row['step_ms']:9.2f} ms {row['tokens_s']:10.0f} tokens/s" +
              (f" {row['peak_gib']:7.2f} GiB" if "peak_gib" in row else "") + f", first loss after {row['start_s']:.1f} s", flush=True)
    if args.kernels:
        write_kernels(args, sides, rows, data[0])
    return list(rows.values())


KINDS = {"products": r"^gemm|nvjet|cutlass|gemm_", "attention": r"^attention|cudnn|fmha|flash", "optimizer": r"multi_tensor_apply"}


def kind_of(kernel):
    return next((kind for kind, names in KINDS.items() if re.search(names, kernel)), "others")


def write_kernels(args, sides, rows, ids):
    """The kernels of one step of each side in the order of their starts: when and how long in microseconds, blocks, name. The longest are
    printed; a row has the time of each kind, launches, and `all` from the first start to the last end."""
    with open(args.kernels, "w") as f:
        for name, side in sides.items():
            events = kernels(args.device, lambda: side.step(ids))
            head = f"{name}: {len(events)} kernels, {sum(e['dur'] for e in events) / 1e3:.2f} ms"
            print(head, *(f"{ms:9.3f} ms {launches:5} {kernel}" for kernel, launches, ms in longest(events)), sep="\n  ", flush=True)
            spent = dict.fromkeys([*KINDS, "others"], 0.0)
            for e in events:
                spent[kind_of(e["name"])] += e["dur"] / 1e3
            spent["all"] = (max(e["ts"] + e["dur"] for e in events) - events[0]["ts"]) / 1e3
            rows[name].update(kernels_ms=spent, launches=len(events))
            f.write(head + "\n")
            for e in events:
                f.write(f"{e['ts'] - events[0]['ts']:10.1f} {e['dur']:9.1f} {e['args'].get('grid', [0])[0]:7} {e['name'][:100]}\n")


def product_floor(args, model):
    """Milliseconds that the products of a step take at the rate of a product of 8192 x 8192 x 8192 by PyTorch, hot, in this run."""
    if args.device != "cuda":
        return None
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * 8192 ** 3 / common.ms_of(lambda: x @ y, 40, warm=40)
    weights = sum(p.numel() for m in model.modules() if type(m).__name__ in ("Linear", "Conv1D") for p in [m.weight])
    return 6 * args.batch * args.length * weights / rate


def losses(args, weights, steps):
    """Losses of eager from five seeds, and of apply from the first. The mean of apply's last 20 is to lie within 1.5 times the seeds' spread of their middle."""
    data, curves = batches(args, steps, 2), {}
    for name, seed in [("eager", seed) for seed in range(5)] + [("apply", 0)]:
        free(args)
        side = Side(name, args, weights, seed)
        curves[f"{name}, seed {seed}"] = [side.step(ids).item() for ids in data]
        del side
    *seeds, mine = (statistics.mean(curve[-20:]) for curve in curves.values())
    spread, middle = max(seeds) - min(seeds), statistics.mean(seeds)
    near = abs(mine - middle) <= 1.5 * spread
    print(f"losses: apply's last 20 of {steps} are {mine:.4f} on average, eager's {' '.join(f'{m:.4f}' for m in seeds)}; {mine - middle:+.4f} from their middle, "
          f"the seeds are {spread:.4f} apart: {'near' if near else 'FAR'}", flush=True)
    return dict(curves=curves, last=mine, seeds=seeds, spread=spread, near=near)


def main():
    args = common.arguments(__doc__, dict(batch=2, length=32, rounds=2, steps=2), device="cuda", sides=(";".join(SIDES), "separated by semicolons"),
                            model=dict(choices=MODELS, default="llama-1b"), vocabulary=dict(type=int, help="instead of the model's"),
                            layers=dict(type=int, help="likewise"), batch=4, length=4096, rounds=3, steps=5, rate=3e-4, losses=0,
                            kernels=(None, "a file for the kernels of a step of each side"))
    args.kind, args.config = MODELS[args.model]
    if args.small:
        args.config = {**args.config, **FEW[args.kind]}
    if args.vocabulary:
        args.config = {**args.config, "vocab_size": args.vocabulary}
    if args.layers:
        args.config = {**args.config, "n_layer" if args.kind == "GPT2" else "num_hidden_layers": args.layers}
    torch.manual_seed(0)
    weights = {k: v.cpu() for k, v in make(args).state_dict().items()}
    rows = measure(args, args.sides.split(";"), weights)
    floor = product_floor(args, make(args)) if args.kernels else None
    curves = losses(args, weights, args.losses) if args.losses else None
    speed = {r["side"]: r["tokens_s"] for r in rows if "tokens_s" in r}
    ours, theirs = [speed[n] for n in speed if n.startswith("apply") and n != "apply, fp8"], [speed[n] for n in speed if n in ("compile", "plain, compiled")]
    if ours and theirs:
        print(f"the better of apply is {max(ours) / max(theirs):.3f} of the better of torch.compile")
    if "apply, fp8" in speed and theirs:
        print(f"apply with products of e4m3 is {speed['apply, fp8'] / max(theirs):.3f} of it")
    common.save(args.out, common.head(args, "day commit torch device model config batch length", product_floor_ms=floor, rows=rows, losses=curves))


if __name__ == "__main__":
    main()

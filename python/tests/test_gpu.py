"""What only a GPU shows: results and gradients there, streams, CUDA graphs, tensors of several devices, copies.

Without pytest: PYTHONPATH=python python3 python/tests/test_gpu.py
"""
import os
import sys
import warnings

import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import epilog
from emulated import apart, emulated
from epilog import _direct
from rule import check

swiglu = epilog.op("swiglu(x[T,D], wg[F,D], wu[F,D]) -> y[T,F] { y = silu(x @ wg)*(x @ wu) }")
norm = epilog.op("norm(x[T,D], g[D], eps) -> (y[T,D], r: f32[T]) { r = rsqrt(mean(x*x, D) + eps)  y = x*r*g }")
eager_swiglu = lambda x, wg, wu: F.silu(x @ wg.T) * (x @ wu.T)


def given(t=64, dtype=torch.bfloat16, grad=False):
    torch.manual_seed(11)
    return [(torch.randn(*s, device="cuda") * k).to(dtype).requires_grad_(grad)
            for s, k in (((t, 128), 1), ((256, 128), 0.1), ((256, 128), 0.1))]


def eager_norm(x, g):
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    return x * r * g


def raises(kind, part, function):
    try:
        function()
    except kind as e:
        assert part in str(e), e
    else:
        raise AssertionError(f"nothing was raised: {part}")


def test_results_and_gradients():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for t in (1, 64, 65, 300):
            check(swiglu, eager_swiglu, given(t, dtype, True))
    x, g = torch.randn(33, 256, device="cuda").bfloat16().requires_grad_(), torch.rand(256, device="cuda").bfloat16().requires_grad_()
    check(lambda x, g: norm(x, g, 1e-5)[0], eager_norm, [x, g])


def test_all_ways_give_the_same_bits():
    """By the function in C, and by ctypes; on a second call the first is what runs."""
    args = given()
    long = epilog._run.run_long(swiglu.program, args, None, True, (), None)[0]
    found = swiglu.direct(*args) if swiglu(*args) is not None else None
    assert _direct.opened_file().functions and found is not None
    assert torch.equal(found, long) and torch.equal(swiglu(*args), long)
    for t in (33, 50, 64):  # all by the one plan
        assert torch.equal(swiglu.direct(args[0][:t], *args[1:]), long[:t])


def test_streams():
    args = given(512)
    expected = swiglu(*args)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x = args[0] * 2  # late: a kernel on another stream would read it too early
        found = swiglu(x, *args[1:])
    side.synchronize()
    assert torch.equal(found, swiglu(args[0] * 2, *args[1:])) and not torch.equal(found, expected)


def test_cuda_graphs():
    args = given(128)
    static = args[0].clone()
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            swiglu(static, *args[1:]), norm(static, args[1][0, :128], 1e-5)
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = swiglu(static, *args[1:])
        z, _ = norm(static, args[1][0, :128], 1e-5)
    for k in (1, 2, 3):
        static.copy_(args[0] * k)
        graph.replay()
        assert torch.equal(y, swiglu(args[0] * k, *args[1:])) and torch.equal(z, norm(args[0] * k, args[1][0, :128], 1e-5)[0])


LOSS = """
loss(x[T,D], w[V,D], label: i32[T]) -> l: f32[T] {
    z = x @ w
    l = logsumexp(z, V) - sum(where(label == index(V), z, 0), V)
}"""


def test_cuda_graphs_of_training():
    """A captured backward leaves what was saved, and nothing is compiled in a capture: warming up made it, for all rows that it ran with."""
    loss, label = epilog.op(LOSS), torch.randint(0, 256, (64,), device="cuda")
    static, w, _ = given(64, grad=True)
    step = lambda t: torch.autograd.grad(loss(static[:t], w, label[:t]).sum(), (static, w))
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for t in (64, 64, 50, 50):  # the last by the function in C
            step(t)
    torch.cuda.current_stream().wait_stream(warm)
    graphs = []
    for t in (64, 50):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step(t)
        graphs.append((t, graph, found))
    first = static.detach().clone()
    for k in (1, 2, 3):
        with torch.no_grad():
            static.copy_(first * k)
        for t, graph, found in graphs:
            graph.replay()
            assert all(torch.equal(a, b) for a, b in zip(found, step(t)))


def test_compile_with_graphs():
    args = given(96, grad=True)
    block = lambda x, wg, wu: swiglu(x * 2, wg, wu).relu()
    compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        y = compiled(*args)
        found = torch.autograd.grad(y.float().sum(), args)
        wanted = torch.autograd.grad(block(*args).float().sum(), args)
        assert torch.equal(y, block(*args)) and all(torch.equal(a, b) for a, b in zip(found, wanted))


def test_backend_with_graphs():
    """Regions in CUDA graphs of torch.compile; a seed is a tensor there, and another one at each call."""
    w = torch.randn(128, 128, device="cuda").bfloat16() * 0.1
    plain = lambda x, p: F.dropout(F.gelu(F.gelu(x @ w) @ w), p) @ w
    compiled = torch.compile(plain, backend="epilog", mode="reduce-overhead")
    for p in (0.0, 0.5):
        found = []
        for k in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.full((64, 128), 0.1 * (k + 1 if p == 0 else 1), device="cuda", dtype=torch.bfloat16, requires_grad=True)
            y = compiled(x, p)
            found.append((y.detach().clone(), torch.autograd.grad(y.float().sum(), x)[0].clone()))
            if p == 0:
                expected = plain(x, p)
                assert torch.allclose(y, expected, rtol=0.05, atol=0.05)
                assert torch.allclose(found[-1][1], torch.autograd.grad(expected.float().sum(), x)[0], rtol=0.05, atol=0.05)
        assert p == 0 or not any(torch.equal(a, b) for (a, _), (b, _) in zip(found, found[1:]))


def test_mistakes():
    x, wg, wu = given()
    raises(ValueError, "must be on one device", lambda: swiglu(x, wg.cpu(), wu))
    raises(ValueError, "must be on one device", lambda: swiglu(x.cpu(), wg, wu))
    raises(ValueError, "axis 1 must be 128", lambda: swiglu(x, wg[:, :64], wu))
    assert torch.equal(swiglu(x, wg, wu), swiglu(x, wg, wu))


def test_copies():
    """Strided tensors, and such that do not begin at 16 bytes, are copied; of the first kind it is told once."""
    x, wg, wu = given()
    expected = swiglu(x, wg, wu)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            assert torch.equal(swiglu(x.t().contiguous().t(), wg, wu), expected)
    assert len([w for w in told if "not contiguous" in str(w.message)]) == 1
    odd = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view_as(x).copy_(x)
    assert odd.data_ptr() % 16 and torch.equal(swiglu(odd, wg, wu), expected)


def test_results_over_inputs():
    step = epilog.op("step(w[N], g[N], lr) -> w1[N] { w1 = w - lr*g }", into={"w1": "w"})
    w, g = torch.randn(2, 1000, device="cuda")
    wanted, at = w - 0.5 * g, w.data_ptr()
    assert step(w, g, 0.5) is w and w.data_ptr() == at
    torch.testing.assert_close(w, wanted)


def test_loss():
    torch.manual_seed(12)
    x, w = (torch.randn(70, 128, device="cuda") / 4).requires_grad_(), (torch.randn(1000, 128, device="cuda") / 4).requires_grad_()
    labels = torch.randint(0, 1000, (70,), device="cuda")
    labels[:7] = -100
    units = 1 + (x @ w.T).abs().max().item()  # as in test_nn.py
    check(lambda x, w: epilog.nn.linear_cross_entropy(x, w, labels), lambda x, w: F.cross_entropy(x @ w.T, labels), [x, w], units)


def test_labels_outside_the_vocabulary():
    """Nobody looks, and the loss is infinite; with check_indices it is an error."""
    x, w, labels = torch.randn(70, 128, device="cuda"), torch.randn(1000, 128, device="cuda"), torch.randint(0, 1000, (70,), device="cuda")
    for label in (1000, -1):
        labels[5] = label
        found = epilog.nn.linear_cross_entropy(x, w, labels, reduction="none")
        assert found.isinf().tolist() == [i == 5 for i in range(70)]
        raises(IndexError, f"Target {label} is out of bounds", lambda: epilog.nn.linear_cross_entropy(x, w, labels, check_indices=True))
    labels[5] = -100
    assert epilog.nn.linear_cross_entropy(x, w, labels, check_indices=True).isfinite()


def plain_experts(x, w, wd, g, e):
    a, b = torch.einsum("td,tkfd->tkf", x, w[e]).chunk(2, -1)
    return (torch.einsum("tkf,tkdf->tkd", F.silu(a) * b, wd[e]) * g[..., None].to(x.dtype)).sum(1)


def test_experts():
    """Groups of all sizes, empty ones too; the router's choice; what lies outside."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for t, count, k in ((1, 4, 2), (65, 8, 3), (300, 5, 5), (257, 1, 1)):
            torch.manual_seed(12)
            x, w, wd = (torch.randn(*s, device="cuda") * f for s, f in (((t, 64), 1), ((count, 192, 64), 0.1), ((count, 64, 96), 0.1)))
            g, e = torch.randn(t, count, device="cuda").softmax(-1).topk(k)
            args = [a.to(dtype).requires_grad_() for a in (x, w, wd, g)]
            for index in (e, torch.full_like(e, count - 1)):
                check(lambda *a: epilog.nn.experts(a[0], index, a[3], a[1], a[2]), lambda *a: plain_experts(*a, index), args, units=2)
    raises(IndexError, "outside the 1 experts", lambda: epilog.nn.experts(x, e + 1, g, w, wd, check_indices=True))
    moe, x = epilog.nn.MoE(64, 96, 8, 2, shared_size=32, device="cuda", dtype=torch.bfloat16), torch.randn(3, 50, 64, device="cuda").bfloat16()
    logits, weights, index = moe.route(x)
    assert torch.equal(index, logits.topk(2)[1]) and moe(x).isfinite().all()
    whole = moe(x.requires_grad_())
    whole.sum().backward()
    assert all(p.grad.isfinite().all() for p in moe.parameters()) and torch.equal(moe(x[:1]), whole[:1])


def test_weights_of_small_groups():
    """Many experts of a few stages each: blocks of gradients that nobody wrote have been seen here. Memory that was used is given out again."""
    torch.manual_seed(13)
    t, count, k, d, f = 2048, 128, 8, 512, 256
    e = torch.multinomial(torch.ones(t, count, device="cuda"), k)
    x, w, wd = (torch.randn(*s, device="cuda").bfloat16() * 0.1 for s in ((t, d), (count, 2 * f, d), (count, d, f)))
    g, dy = torch.rand(t, k, device="cuda"), torch.randn(t, d, device="cuda").bfloat16()

    def gradients(experts, type):
        leaves = [a.to(type).requires_grad_() for a in (x, w, wd)]
        return torch.autograd.grad(experts(*leaves), leaves, dy.to(type))

    def by_expert(x, w, wd):
        out = torch.zeros_like(x)
        for i in range(count):
            token, slot = torch.where(e == i)
            a, b = (x[token] @ w[i].T).chunk(2, -1)
            out = out.index_add(0, token, (F.silu(a) * b * g[token, slot, None].to(x.dtype)) @ wd[i].T)
        return out
    exact, plain = gradients(by_expert, torch.float64), gradients(by_expert, torch.bfloat16)
    far = lambda a, b: ((a.double() - b).abs().amax() / b.abs().amax()).item()
    for _ in range(4):
        used = [torch.full_like(a, 777) for a in exact for _ in range(2)]
        del used
        mine = gradients(lambda *a: epilog.nn.experts(a[0], e, g, a[1], a[2]), torch.bfloat16)
        assert all(far(a, b) <= 2 * far(c, b) for a, b, c in zip(mine, exact, plain))


def test_threads_keep_memory_apart():
    """Workspaces come from PyTorch's pool: what one call leaves must not be given to another before its kernels are done."""
    args = given(512)
    expected = [swiglu(args[0] * k, *args[1:]) for k in range(1, 5)]
    streams = [torch.cuda.Stream() for _ in expected]
    inputs = [args[0] * k for k in range(1, 5)]
    torch.cuda.synchronize()
    for _ in range(20):
        outs = []
        for s, x in zip(streams, inputs):
            with torch.cuda.stream(s):
                outs.append(swiglu(x, *args[1:]))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(outs, expected))


def masks_of_attention(device, size):
    """Sequences of other lengths with padding before or behind them, and one after another: their tokens, where each begins, and the masks."""
    lengths, rows = torch.tensor([200, 131, 1]), 200
    place = torch.arange(rows)
    documents = torch.repeat_interleave(torch.arange(3), lengths)[None]
    starts, behind = (rows - lengths).int(), lengths.int()
    masks = {"left": (dict(starts=starts), (place >= starts[:, None])), "right": (dict(lengths=behind), place < behind[:, None]),
             "packed": (dict(documents=documents), documents[0] >= 0)}
    torch.manual_seed(21)
    tokens = [[torch.randn(n, heads, size).to(torch.bfloat16) for heads in (4, 2, 2)] for n in lengths.tolist()]
    for name, (masks, here) in masks.items():
        filled = [torch.randn(*here.view(-1, here.shape[-1]).shape, heads, size).to(torch.bfloat16) for heads in (4, 2, 2)]
        for i, t in enumerate(filled):
            t[here.view(t.shape[:2])] = torch.cat([sequence[i] for sequence in tokens])
        yield name, [t.to(device) for t in filled], {n: t.to(device) for n, t in masks.items()}, here.view(filled[0].shape[:2]).to(device)


def sdpa_with(masks):
    place = torch.arange(1024, device=next(iter(masks.values())).device)

    def attend(q, k, v):
        here = place[:k.shape[1]]
        seen = here <= here[:q.shape[1], None]
        for name, t in masks.items():
            seen = seen & (t[:, None, :, None] == t[:, None, None, :] if name == "documents" else here >= t[:, None, None, None] if name == "starts"
                           else here < t[:, None, None, None])
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True).transpose(1, 2)
    return attend


def test_attention_with_masks(device="cuda"):
    """Beside PyTorch's with the mask written out, gradients too; and the bits of each sequence alone."""
    for size in (64, 128):
        alone = None
        for name, args, masks, here in masks_of_attention(device, size):
            ours = lambda q, k, v: epilog.nn.attention(q, k, v, causal=True, **masks)
            keep = here[:, :, None, None]  # what rows of padding have means nothing
            check(lambda q, k, v: ours(q, k, v).masked_fill(~keep, 0), lambda q, k, v: sdpa_with(masks)(q, k, v).masked_fill(~keep, 0),
                  [t.clone().requires_grad_() for t in args], 4)
            found, tokens = ours(*args)[here], [t[here] for t in args]
            if alone is None:
                alone = torch.cat([epilog.nn.attention(*[t[None] for t in parts], causal=True)[0]
                                   for parts in zip(*[t.split([200, 131, 1]) for t in tokens])])
            assert torch.equal(found, alone), name


def test_generating(device="cuda"):
    """A step is a CUDA graph, of a second call the same. Padding before prompts moves no bit of log-probabilities, which are those of training."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
                                         num_key_value_heads=2, head_dim=64, eos_token_id=None)).to(device, torch.bfloat16).eval()
    epilog.apply(model)
    ids = torch.randint(1, 1000, (3, 150), device=device)
    mask = torch.ones_like(ids)
    mask[1, :133], mask[2, :20] = 0, 0
    given = dict(max_new_tokens=20, do_sample=False, pad_token_id=0)
    sequences, found = epilog.generate(model, ids, attention_mask=mask, log_probs=True, **given)
    again = epilog.generate(model, ids, attention_mask=mask, log_probs=True, prefill_chunk_size=64, **given)
    assert torch.equal(again.sequences, sequences) and torch.equal(again.log_probs, found)
    trained = epilog.log_probs(model, sequences, F.pad(mask, (0, 20), value=1))[:, 149:]
    assert torch.equal(trained.detach(), found), (trained != found).float().mean().item()
    alone = epilog.generate(model, ids[1:2, 133:], attention_mask=mask[1:2, 133:], log_probs=True, **given)
    assert torch.equal(alone.sequences[0], sequences[1, 133:]) and torch.equal(alone.log_probs[0], found[1])


def test_products_of_e4m3():
    """As the same recipe in PyTorch's own operations, but for the rounding of results."""
    for tokens, features in ((1000, 512), (4096, 2048)):
        torch.manual_seed(0)
        layer = epilog.nn.Linear8(features, 384, bias=False, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(tokens, features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        d = torch.randn(tokens, 384, device="cuda", dtype=torch.bfloat16)
        y = layer(x)
        y.backward(d)
        wide, weight = x.detach().float().requires_grad_(), layer.weight.detach().float().requires_grad_()
        want = emulated(wide, weight)
        want.backward(d.float())
        for found, exact in ((y, want), (x.grad, wide.grad), (layer.weight.grad, weight.grad)):
            assert apart(found.float(), exact) < 2e-3  # 1.7e-3 is the rounding of bf16


def test_weights_of_few_bits():
    for bits in (8, 4):
        layer = epilog.nn.QuantisedLinear(torch.randn(384, 512, device="cuda", dtype=torch.bfloat16), None, bits, 64)
        for tokens in (1, 5, 200):
            x = torch.randn(tokens, 512, device="cuda", dtype=torch.bfloat16)
            assert apart(layer(x).float(), x.float() @ layer.dequantised().T) < 5e-3


if not torch.cuda.is_available():
    if __name__ == "__main__":
        sys.exit("there is no GPU")
    import pytest
    pytest.skip("there is no GPU", allow_module_level=True)

if __name__ == "__main__":
    failed = 0
    for name, function in [(n, f) for n, f in globals().items() if n.startswith("test_")]:
        try:
            function()
            print("ok    ", name, flush=True)
        except Exception as e:
            failed += 1
            print("FAILED", name, f"{type(e).__name__}: {str(e)[:500]}", flush=True)
    sys.exit(failed > 0)

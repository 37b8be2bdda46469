"""DDP, FSDP2 and tensor parallel around what Epilog carries out: two processes with gloo, bit by bit.

Halving is exact, so the mean of two gradients has the same bits whoever computes it: the gradients that the processes agree
on have to be those, whatever PyTorch does to get there.
"""
import functools
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import epilog
import families

pytest.importorskip("transformers")
MODELS = {"Llama": {}, "Olmo2": dict(num_key_value_heads=4, pad_token_id=0, bos_token_id=1, eos_token_id=2),
          "Qwen3Moe": dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)}


def make(name="Llama"):
    return families.causal(name, {**dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                         num_key_value_heads=2, tie_word_embeddings=False), **MODELS[name]})


def applied(name="Llama", **how):
    m = make(name)
    epilog.apply(m, **how)
    return m


def sharded(*modules, **policy):
    for module in modules:
        fully_shard(module, mesh=init_device_mesh("cpu", (2,)), **policy)


def batch(rank):
    torch.manual_seed(100 + rank)
    return torch.randint(0, 64, (2, 12))


def gradients(m, rank):
    """By name, of one process's batch."""
    m.zero_grad()
    m(input_ids=batch(rank), labels=batch(rank)).loss.backward()
    return {n.removeprefix("module."): p.grad for n, p in m.named_parameters()}


def expected(m):
    alone = [{n: g.clone() for n, g in gradients(m, rank).items()} for rank in (0, 1)]
    return {n: (alone[0][n] + alone[1][n]) / 2 for n in alone[0]}


def same(found, wanted):
    assert found.keys() == wanted.keys()
    wrong = [n for n in wanted if not torch.equal(found[n], wanted[n])]
    assert not wrong, wrong


def same_whole(m, rank, wanted):
    """The same of a model whose gradients are in parts."""
    same({n: g.full_tensor() for n, g in gradients(m, rank).items()}, wanted)


def ddp(rank, name="Llama"):
    m = applied(name)
    wanted = expected(m)
    same(gradients(torch.nn.parallel.DistributedDataParallel(m), rank), wanted)


def compiled(name):
    """Layers by torch.compile's backend, and the report of it."""
    from epilog._compile import Report
    m, report = make(name), Report()
    for layer in m.model.layers:
        layer.compile(backend=lambda gm, inputs: families.compiled_graph(gm, inputs, report))
    return m, report


def ddp_compiled(rank):
    for name in "Llama", "Olmo2":
        m, report = compiled(name)
        wanted = expected(m)
        same(gradients(torch.nn.parallel.DistributedDataParallel(m), rank), wanted)
        assert report.graphs and all(g.flops_inside == g.flops for g in report.graphs)


def fsdp_compiled(rank):
    for name in "Llama", "Olmo2":
        wanted, (m, report) = expected(compiled(name)[0]), compiled(name)
        sharded(*m.model.layers, m)
        same_whole(m, rank, wanted)
        assert report.graphs and all(g.flops_inside == g.flops for g in report.graphs)


def fsdp(rank, apply_first=True, name="Llama", **policy):
    m, wanted = make(name), expected(applied(name))
    report = epilog.apply(m) if apply_first else None
    sharded(*m.model.layers, m, **policy)
    report = report or epilog.apply(m)
    assert len([n for n, what in report.replaced if "one program" in what and "router" not in what]) == 2
    same_whole(m, rank, wanted)


def fsdp_of_parts(rank):
    """Parts of a layer are sharded by themselves: their hooks gather the weights, so the layer computes as before."""
    m, wanted = make(), expected(applied(layers=False))
    sharded(*(part for layer in m.model.layers for part in (layer.mlp, layer.self_attn)), m)
    report = epilog.apply(m)
    assert [name for name, why in report.left if "FSDP" in why] == ["model.layers.0", "model.layers.1"]
    same_whole(m, rank, wanted)


def tensor_parallel(rank):
    """Each process has half of the columns of an MLP, as local tensors of DTensors; the sum is PyTorch's."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(10)
    x, gate, up, down = torch.randn(6, 16), torch.randn(32, 16), torch.randn(32, 16), torch.randn(16, 32)
    parts = [distribute_tensor(w, mesh, [Shard(axis)]) for w, axis in ((gate, 0), (up, 0), (down, 1))]
    with pytest.raises(TypeError, match="DTensor.*to_local"):
        epilog.nn.swiglu_mlp(x, *parts)
    y = epilog.nn.swiglu_mlp(x, *[p.to_local() for p in parts])
    dist.all_reduce(y)
    halves = [epilog.nn.swiglu_mlp(x, gate[s], up[s], down[:, s]) for s in (slice(0, 16), slice(16, 32))]
    assert torch.equal(y, halves[0] + halves[1])


def start(rank, work, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        work(rank)
        dist.barrier()  # a process that ends while the other still gathers can take it down: Gloo's threads are not joined then
    finally:
        dist.destroy_process_group()


WORK = {"ddp": ddp, "ddp with experts": functools.partial(ddp, name="Qwen3Moe"), "ddp, compiled": ddp_compiled, "fsdp": fsdp,
        "fsdp, then apply": functools.partial(fsdp, apply_first=False), "fsdp with experts": functools.partial(fsdp, name="Qwen3Moe"),
        "fsdp with offload": functools.partial(fsdp, offload_policy=CPUOffloadPolicy(pin_memory=False)), "fsdp of parts": fsdp_of_parts,
        "fsdp, compiled": fsdp_compiled, "tensor parallel": tensor_parallel}


@pytest.mark.parametrize("work", WORK)
def test_two_processes(work):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(start, (WORK[work], port), nprocs=2)

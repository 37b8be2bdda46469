"""DDP, FSDP2 and tensor parallel around what Epilog carries out: two processes with gloo, bit by bit.

Halving is exact, so the mean of two gradients has the same bits whoever computes it: the gradients that the processes agree
on have to be those, whatever PyTorch does to get there.
"""
import copy
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import epilog
from epilog._compile import Report, compile_graph

transformers = pytest.importorskip("transformers")


def model():
    torch.manual_seed(9)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, tie_word_embeddings=False)
    return transformers.LlamaForCausalLM(config).train()


def model_with_experts():
    torch.manual_seed(9)
    config = transformers.Qwen3MoeConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                         num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
                                         tie_word_embeddings=False)
    return transformers.Qwen3MoeForCausalLM(config).train()


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


def ddp(rank, make=model):
    m = make()
    epilog.apply(m)
    wanted = expected(m)
    same(gradients(torch.nn.parallel.DistributedDataParallel(m), rank), wanted)


def other_model():
    torch.manual_seed(9)
    config = transformers.Olmo2Config(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=4, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return transformers.Olmo2ForCausalLM(config).train()


def compiled(make):
    """Layers by torch.compile's backend, and the report of it."""
    m, report = make(), Report()
    for layer in m.model.layers:
        layer.compile(backend=lambda gm, inputs: compile_graph(gm, inputs, report, "eager"))
    return m, report


def ddp_compiled(rank):
    for make in model, other_model:
        m, report = compiled(make)
        wanted = expected(m)
        same(gradients(torch.nn.parallel.DistributedDataParallel(m), rank), wanted)
        assert report.graphs and all(g.flops_inside == g.flops for g in report.graphs)


def fsdp_compiled(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    for make in model, other_model:
        wanted, (m, report) = expected(compiled(make)[0]), compiled(make)
        for layer in m.model.layers:
            fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
        fully_shard(m, mesh=init_device_mesh("cpu", (2,)))
        same({n: g.full_tensor() for n, g in gradients(m, rank).items()}, wanted)
        assert report.graphs and all(g.flops_inside == g.flops for g in report.graphs)


def ddp_with_experts(rank):
    ddp(rank, model_with_experts)


def fsdp(rank, apply_first=True, make=model, **policy):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    m = make()
    alone = copy.deepcopy(m)
    epilog.apply(alone)
    wanted = expected(alone)
    mesh = init_device_mesh("cpu", (2,))
    report = epilog.apply(m) if apply_first else None
    for layer in m.model.layers:
        fully_shard(layer, mesh=mesh, **policy)
    fully_shard(m, mesh=mesh, **policy)
    report = report or epilog.apply(m)
    assert len([name for name, what in report.replaced if "one program" in what]) == 2
    found = gradients(m, rank)
    same({n: g.full_tensor() for n, g in found.items()}, wanted)


def fsdp_then_apply(rank):
    fsdp(rank, False)


def fsdp_with_offload(rank):
    from torch.distributed.fsdp import CPUOffloadPolicy
    fsdp(rank, offload_policy=CPUOffloadPolicy(pin_memory=False))


def fsdp_with_experts(rank):
    fsdp(rank, make=model_with_experts)


def fsdp_of_parts(rank):
    """Parts of a layer are sharded by themselves: their hooks gather the weights, so the layer computes as before."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    m = model()
    alone = copy.deepcopy(m)
    epilog.apply(alone, layers=False)
    wanted = expected(alone)
    mesh = init_device_mesh("cpu", (2,))
    for layer in m.model.layers:
        fully_shard(layer.mlp, mesh=mesh)
        fully_shard(layer.self_attn, mesh=mesh)
    fully_shard(m, mesh=mesh)
    report = epilog.apply(m)
    assert [name for name, why in report.left if "FSDP" in why] == ["model.layers.0", "model.layers.1"]
    same({n: g.full_tensor() for n, g in gradients(m, rank).items()}, wanted)


def tensor_parallel(rank):
    """Each process has half of the columns of an MLP, as local tensors of DTensors; the sum is PyTorch's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
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


@pytest.mark.parametrize("work", [ddp, fsdp, fsdp_then_apply, fsdp_with_offload, fsdp_of_parts, tensor_parallel, ddp_with_experts, fsdp_with_experts, ddp_compiled, fsdp_compiled])
def test_two_processes(work):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(start, (work, port), nprocs=2)

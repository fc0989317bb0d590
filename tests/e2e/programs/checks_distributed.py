"""Collectives and remote calls: work that goes on after its operation has returned, and hands memory to system calls."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import torch
import torch.distributed
from common import MIB, directory
from support import data, enable, needs_distributed, same, stat

RANKS = 2
TENSORS = 16

Wrap = Callable[[list[torch.nn.Module]], torch.nn.Module]


def exchange(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    enable(8 * MIB, policy="lru")
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    tensors = [torch.full((MIB // 4,), float(i + rank)) for i in range(TENSORS)]
    torch.lms.reclaim("cpu")
    faults = stat("faults")
    works = [torch.distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
    for i in range(8):  # pages out whatever may leave while the work is under way
        assert float(torch.full((MIB // 4,), float(i)).sum()) == i * (MIB // 4)
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full_like(tensor, float(2 * i + 1)))
    received = [torch.full((MIB // 4,), float(i * (1 - rank))) for i in range(TENSORS)]
    torch.lms.reclaim("cpu")
    for tensor in received:
        torch.distributed.broadcast(tensor, 0)
    for i, tensor in enumerate(received):
        assert torch.equal(tensor, torch.full_like(tensor, float(i)))
    assert stat("faults") == faults, "the collectives' tensors were not pinned"
    torch.distributed.barrier()
    torch.lms.reclaim("cpu")
    assert stat("pinned_bytes.current") == 0, "pins outlive their collective"
    torch.distributed.destroy_process_group()


def exchanged(rank: int, meeting: str, limit: int | None) -> list[torch.Tensor]:
    """What the collectives give that gloo makes temporaries for, which are no arguments of any operation."""
    torch.set_num_threads(1)
    if limit is not None:
        enable(limit, min_size=1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    results = []
    sent = data(0.25, seed=rank)
    count = sent.numel()
    for wait in (False, True):

        def done(work: torch.distributed.Work | None, wait: bool = wait) -> None:
            if wait:
                assert work is not None
                work.wait()

        several = [torch.zeros(count) for _ in range(RANKS)]
        done(torch.distributed.all_gather(several, sent, async_op=wait))
        one = torch.zeros(RANKS * count)
        done(torch.distributed.all_gather_into_tensor(one, sent, async_op=wait))
        gathered = [torch.zeros(count) for _ in range(RANKS)] if rank == 0 else None
        done(torch.distributed.gather(sent, gathered, async_op=wait))
        part = torch.zeros(count // RANKS)
        done(torch.distributed.reduce_scatter_tensor(part, sent, async_op=wait))
        scattered = torch.zeros(count)
        done(torch.distributed.scatter(scattered, [sent, sent * 2] if rank == 0 else None, async_op=wait))
        results += [*several, one, *(gathered or []), part, scattered]
    torch.distributed.destroy_process_group()
    return results


def wrap_in_ddp(layers: list[torch.nn.Module]) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)


def wrap_in_fsdp1(layers: list[torch.nn.Module]) -> torch.nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    wrapped = [FullyShardedDataParallel(layer, device_id=torch.device("cpu")) for layer in layers]
    return FullyShardedDataParallel(torch.nn.Sequential(*wrapped), device_id=torch.device("cpu"))


def wrap_in_fsdp2(layers: list[torch.nn.Module]) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    model = torch.nn.Sequential(*layers)
    fully_shard(model, mesh=mesh)
    return model


def train(rank: int, meeting: str, limit: int | None, wrap: Wrap = wrap_in_ddp) -> list[torch.Tensor]:
    """The parameters, or what this rank has of them, after three steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if limit is not None:
        enable(limit)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    model = wrap([torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(12)])
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        x = torch.randn(256, 256, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    local = [getattr(parameter, "_local_tensor", parameter) for parameter in model.parameters()]
    parameters = [parameter.detach().clone() for parameter in local]
    torch.distributed.destroy_process_group()
    return parameters


def run_ranks(work: Callable[[int, str], None]) -> None:
    """Runs work(rank, meeting file) in a forked process per rank."""
    needs_distributed()
    with directory() as folder:
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=work, args=(rank, f"{folder}/meeting")) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    assert [process.exitcode for process in ranks] == [0] * RANKS


def check_collectives() -> None:
    run_ranks(exchange)


def as_in_stock(work: Callable[..., list[torch.Tensor]], limit: int, *arguments: object) -> None:
    with directory() as folder:

        def both(rank: int, meeting: str) -> None:
            torch.save(work(rank, f"{meeting}-stock", None, *arguments), f"{folder}/stock-{rank}")
            torch.save(work(rank, f"{meeting}-lms", limit, *arguments), f"{folder}/lms-{rank}")
            assert stat("out.bytes") > 0

        run_ranks(both)
        for rank in range(RANKS):
            same(torch.load(f"{folder}/lms-{rank}"), torch.load(f"{folder}/stock-{rank}"))


def check_gathering_collectives() -> None:
    as_in_stock(exchanged, 64 << 10)


def check_distributed_data_parallel() -> None:
    as_in_stock(train, 6 * MIB)


def check_fully_sharded_data_parallel() -> None:
    as_in_stock(train, 2 * MIB, wrap_in_fsdp1)


def check_fully_shard() -> None:
    as_in_stock(train, 2 * MIB, wrap_in_fsdp2)


def doubled(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor * 2 for tensor in tensors]


def call(rank: int, meeting: str, limit: int | None) -> list[torch.Tensor]:
    """What comes back from the other rank."""
    from torch.distributed import rpc

    torch.set_num_threads(1)
    if limit is not None:
        enable(limit, min_size=1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}")
    rpc.init_rpc(str(rank), rank=rank, world_size=RANKS, rpc_backend_options=options)
    results = []
    if rank == 0:
        sent = [data(0.25, seed=i) for i in range(8)]
        futures = [rpc.rpc_async("1", doubled, (sent,)) for _ in range(3)]
        results = [tensor for future in futures for tensor in future.wait()]
        results.append(rpc.rpc_sync("1", torch.add, (sent[0], sent[1])))  # in C++ alone
    rpc.shutdown()
    return results


def check_remote_calls() -> None:
    as_in_stock(call, 64 << 10)

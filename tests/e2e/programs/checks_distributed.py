"""Collectives, whose work goes on after their operation has returned and hands tensors to system calls."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import torch
import torch.distributed
from common import MIB, directory
from support import enable, same, stat

RANKS = 2
TENSORS = 16


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


def train(rank: int, meeting: str, limit: int | None) -> list[torch.Tensor]:
    """The parameters after three steps of DistributedDataParallel."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if limit is not None:
        enable(limit)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(12)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        x = torch.randn(256, 256, generator=torch.Generator().manual_seed(10 * step + rank))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    parameters = [parameter.detach().clone() for parameter in model.parameters()]
    torch.distributed.destroy_process_group()
    return parameters


def run_ranks(work: Callable[[int, str], None]) -> None:
    """Runs work(rank, meeting file) in a forked process per rank."""
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


def check_distributed_data_parallel() -> None:
    with directory() as folder:

        def both(rank: int, meeting: str) -> None:
            torch.save(train(rank, f"{meeting}-stock", None), f"{folder}/stock-{rank}")
            torch.save(train(rank, f"{meeting}-lms", 6 * MIB), f"{folder}/lms-{rank}")
            assert stat("out.bytes") > 0

        run_ranks(both)
        for rank in range(RANKS):
            same(torch.load(f"{folder}/lms-{rank}"), torch.load(f"{folder}/stock-{rank}"))

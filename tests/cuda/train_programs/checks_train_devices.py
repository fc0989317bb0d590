"""Two GPUs: in one process, and a process each. Collectives are simulator/nccl.cc's, which run on the streams."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from perceptrons import WIDTH, perceptron, sample
from raw_kernels import launch_scale
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import comm
from training import parameters_and_gradients, trains

STEPS = 3
BOTH = ("cuda:0", "cuda:1")


class Halves(nn.Module):
    """What DataParallel computes, on one device."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.module(half) for half in x.chunk(2)])


def check_train_data_parallel() -> None:
    def program(device: str) -> Iterator[Tensor]:
        model = perceptron(device)
        both = nn.DataParallel(model, [0, 1]) if device != "cpu" else Halves(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for step in range(STEPS):
            loss = both(sample(device, step)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss
        yield from parameters_and_gradients(model)

    trains(program, devices=BOTH)


def check_train_collectives_of_three() -> None:
    """With values from the host no copy between devices tells which of them are going to be peers."""
    os.environ["SIM_CUDA_DEVICES"] = "3"
    three = ("cuda:0", "cuda:1", "cuda:2")

    def program(device: str) -> Iterator[Tensor]:
        for step in range(STEPS):
            values = [sample("cpu", 10 * step + index).mul(100).round() for index in range(12)]  # added up in any order
            if device == "cpu":
                yield from (value + 2 * value + 3 * value for value in values)
                continue
            copies = comm.broadcast_coalesced([value.to(device) for value in values], [0, 1, 2])
            factors = [[value * (index + 1) for value in each] for index, each in enumerate(copies)]
            yield from comm.reduce_add_coalesced(factors, 0)

    trains(program, devices=three)


def check_train_in_a_pipeline() -> None:
    """Micro-batches go from the first device to the second, and their gradients back; nothing waits for the host."""

    def program(device: str) -> Iterator[Tensor]:
        other = "cpu" if device == "cpu" else "cuda:1"
        first, second = perceptron(device), perceptron(other, seed=2)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, foreach=False)
        for step in range(STEPS):
            optimizer.zero_grad()
            losses = [
                second(first(part).to(other, non_blocking=True)).square().mean()
                for part in sample(device, step).chunk(4)
            ]
            for loss in losses:
                loss.backward()
            optimizer.step()
            yield from losses
        yield from parameters_and_gradients(first)
        yield from parameters_and_gradients(second)

    trains(program, devices=BOTH)


def check_train_copies_between_devices() -> None:
    """Every shape of copy: contiguous or not, of another type, back and forth, on streams of both devices."""

    def program(device: str) -> Iterator[Tensor]:
        other = "cpu" if device == "cpu" else "cuda:1"
        values = [sample(device, seed).repeat(2, 2) for seed in range(4)]
        for turn in range(4):
            there = [value.to(other, non_blocking=True, copy=True) for value in values]
            turned = [value.t().to(other).to(torch.float64) for value in values]
            mixed = torch.empty(values[0].shape[::-1], device=other).t()
            mixed.copy_(values[turn], non_blocking=True)
            for value, copy, transposed in zip(values, there, turned, strict=True):
                copy.mul_(0.5).add_(transposed.t()).add_(mixed)
                value.copy_(copy, non_blocking=True)
                value[::2, 1:].copy_(copy[::2, :-1])
        yield from values

    trains(program, devices=BOTH)


def check_train_reads_its_peers_memory() -> None:
    """A kernel of the second device reads a tensor of the first, which is freed at once."""

    def program(device: str) -> Iterator[Tensor]:
        on_gpu = device != "cpu"
        other = "cuda:1" if on_gpu else "cpu"
        sample(other, 0).to(device)  # gives the second access to the memory of the first
        kept = [torch.zeros(128, WIDTH, device=other) for _ in range(6)]
        for step in range(18):
            made, result = sample(device, step).repeat(2, 1), torch.empty(128, WIDTH, device=other)
            if on_gpu:
                theirs = torch.cuda.current_stream(other)
                theirs.wait_stream(torch.cuda.current_stream(device))
                with torch.lms.pin(made, result):
                    launch_scale(result, made, 3.0, theirs)
                    made.record_stream(theirs)
            else:
                result.copy_(made * 3)
            del made
            torch.full((128, WIDTH), float("inf"), device=device)  # would be given its memory, and be read
            kept[step % len(kept)].add_(result)
        yield from kept
        yield from (sample(device, seed) for seed in range(30))

    trains(program, devices=BOTH)


def train_rank(rank: int, meeting: str) -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{meeting}", rank=rank, world_size=2)

    def program(device: str) -> Iterator[Tensor]:
        if device != "cpu":
            torch.cuda.set_device(device)
        model = perceptron(device)
        parallel = nn.parallel.DistributedDataParallel(
            model, None if device == "cpu" else [rank], bucket_cap_mb=1, gradient_as_bucket_view=True
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        for step in range(STEPS):
            optimizer.zero_grad()
            with parallel.no_sync():
                parallel(sample(device, 10 * step + rank)).square().mean().backward()
            loss = parallel(sample(device, 100 + 10 * step + rank)).square().mean()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            yield total
        yield from parameters_and_gradients(model)
        gathered = [torch.empty(64, WIDTH, device=device) for _ in range(2)]
        dist.all_gather(gathered, sample(device, rank))
        yield from gathered
        part = torch.empty(32, WIDTH, device=device)
        dist.reduce_scatter_tensor(part, sample(device, 50 + rank)) if device != "cpu" else part.copy_(
            sum(sample(device, 50 + other) for other in range(2)).chunk(2)[rank]
        )
        yield part

    trains(program, devices=[f"cuda:{rank}"])
    dist.destroy_process_group()


def reduce_in_rank(rank: int, meeting: str) -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{meeting}", rank=rank, world_size=2)

    def program(device: str) -> Iterator[Tensor]:
        if device != "cpu":
            torch.cuda.set_device(device)
        values = [sample(device, 10 * seed + rank) for seed in range(16)]
        for _ in range(2):
            works = [dist.all_reduce(value, async_op=True) for value in values]
            busy = perceptron(device)(sample(device, 99))  # needs memory while the collectives wait for theirs
            for work, value in zip(works, values, strict=True):
                work.wait()
                value.mul_(0.25)
            yield busy
        yield from values

    trains(program, devices=[f"cuda:{rank}"])
    dist.destroy_process_group()


def on_two_processes(train: Callable[[int, str], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spawn(train, (os.path.join(folder, "meeting"),), nprocs=2)


def check_train_a_process_for_each_device() -> None:
    on_two_processes(train_rank)


def check_train_beside_running_collectives() -> None:
    on_two_processes(reduce_in_rank)


def check_train_beside_collectives_that_record_no_stream() -> None:
    os.environ["TORCH_NCCL_AVOID_RECORD_STREAMS"] = "1"
    on_two_processes(reduce_in_rank)


def check_train_adds_16_bit_gradients_up() -> None:
    """Every device has a copy of the model and half of the batch, and NCCL adds the gradients up."""

    def program(device: str) -> Iterator[Tensor]:
        for dtype in (torch.bfloat16, torch.float16):
            copies = [perceptron(name).to(dtype) for name in ((device, device) if device == "cpu" else BOTH)]
            for model, half in zip(copies, sample("cpu", 0).to(dtype).chunk(2), strict=True):
                model(half.to(next(model.parameters()).device)).square().mean().backward()
            for pair in zip(*(model.parameters() for model in copies), strict=True):
                gradients = [parameter.grad for parameter in pair]
                if device == "cpu":
                    gradients = [gradients[0] + gradients[1]] * 2
                else:
                    torch.cuda.nccl.all_reduce(gradients)
                yield from gradients

    trains(program, devices=BOTH)

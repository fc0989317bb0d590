"""Trains a program on the CPU and, in less and less memory, on the simulated GPU, and compares all that it returns.

A program is a function of a device that builds what it trains there, trains it, and returns tensors: losses, parameters,
gradients. Its draws are the same on both devices (operators/generators.h). Every run on the GPU has another seed of the
schedule, and runs in any order that streams and events allow; in every second one nothing runs before somebody waits for
it (the simulator's option "lazy").
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Program = Callable[[str], Iterable[Tensor]]

KIB = 1 << 10
MIN_SIZE = 16 * KIB  # of a managed tensor: programs are small, so that many seeds can run
FACTORS = (1.0, 1.5, 2.0, 4.0)  # what a program needs, as a multiple of the limit
POLICIES = ("iteration", "lru")
SEEDS = int(os.environ.get("LMS_TEST_SEEDS", "1"))  # for each of the 8 combinations: every second lazy


@dataclass(frozen=True)
class Run:
    """One run on the GPU."""

    policy: str
    factor: float
    seed: int
    lazy: bool


def runs(factors: Sequence[float]) -> Iterator[Run]:
    combinations = [(policy, factor) for policy in POLICIES for factor in factors]
    for turn in range(SEEDS):
        for index, combination in enumerate(combinations):
            yield Run(*combination, seed=turn * len(combinations) + index + 1, lazy=(turn + index) % 2 == 0)


def simulator() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.sim_seed.argtypes = [ctypes.c_uint64]
    return library


def results(program: Program, device: str) -> list[Tensor]:
    torch.manual_seed(0)
    return [tensor.detach().cpu() for tensor in program(device)]


def trains(
    program: Program,
    devices: Sequence[str] = ("cuda:0",),
    reference: str = "cpu",
    min_size: int = MIN_SIZE,
    factors: Sequence[float] = FACTORS,
    store: str | None = None,
) -> None:
    """Raises AssertionError unless every run gives what the program gives on `reference`, to the bit, and blocks have left
    and come back where the limit is less than it needs. On a GPU, the reference is without LMS. The program is given the
    first of the devices.
    """
    torch.set_num_threads(1)
    expected = results(program, reference)
    assert expected and all(tensor.isfinite().all() for tensor in expected)
    for name in devices:
        torch.lms.enable(name, limit=1 << 30, min_size=min_size, store=store)
    compare(results(program, devices[0]), expected, "with enough memory")
    needed = {name: torch.lms.stats(name)["device_bytes.peak"] for name in devices}
    assert all(needed.values())
    for run in runs(factors):
        train_under(run, program, needed, expected, min_size, store)


def train_under(
    run: Run, program: Program, needed: dict[str, int], expected: list[Tensor], min_size: int, store: str | None
) -> None:
    torch.cuda.synchronize()
    gc.collect()
    for name, nbytes in needed.items():
        torch.lms.enable(name, limit=int(nbytes / run.factor), min_size=min_size, policy=run.policy, store=store)
        torch.lms.reset_peak_stats(name)
    before = {name: torch.lms.stats(name) for name in needed}
    simulator().sim_seed(run.seed)
    assert simulator().sim_set(b"lazy", b"%d" % run.lazy) == 0
    compare(results(program, next(iter(needed))), expected, str(run))
    for name in needed:
        after = torch.lms.stats(name)
        left, came = (after[key] - before[name][key] for key in ("out.blocks", "in.blocks"))
        assert run.factor == 1 or left > 0, (name, run, after)
        assert run.factor < 2 or came > 0, (name, run, after)  # before, what left may never have been needed again


def compare(actual: list[Tensor], expected: list[Tensor], where: str) -> None:
    assert len(actual) == len(expected), f"{where}: {len(actual)} results, not {len(expected)}"
    wrong = [
        f"result {index}, {tuple(one.shape)}: {(one != other).sum()} elements"
        for index, (one, other) in enumerate(zip(actual, expected, strict=True))
        if not torch.equal(one, other)
    ]
    assert not wrong, f"{where}: {len(wrong)} of {len(actual)} differ: {'; '.join(wrong[:5])}"


def parameters_and_gradients(module: torch.nn.Module) -> list[Tensor]:
    parameters = list(module.parameters())
    return [*parameters, *(parameter.grad for parameter in parameters if parameter.grad is not None)]

"""Programs that leave what they have done until then: what was brought in ahead of need is freed unused."""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
from collections.abc import Iterator

import torch
from perceptrons import sample
from torch import Tensor
from training import trains

COUNT = 16
PAGE = 2 << 20
PAGES = 12


class Neighbour:
    """Somebody else who has all of the card's memory but `leaves` bytes; nobody on the CPU."""

    def __init__(self, device: str, leaves: int) -> None:
        self.leaves = leaves if device != "cpu" else None

    def __enter__(self) -> None:
        if self.leaves is not None:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            free, _ = torch.cuda.mem_get_info()
            self.memory = ctypes.c_uint64()
            driver = ctypes.CDLL("libcuda.so.1")
            assert driver.cuMemAlloc_v2(ctypes.byref(self.memory), ctypes.c_size_t(free - self.leaves)) == 0

    def __exit__(self, *error: object) -> None:
        if self.leaves is not None:
            assert ctypes.CDLL("libcuda.so.1").cuMemFree_v2(self.memory) == 0


def check_train_abandons_what_was_prefetched() -> None:
    def program(device: str) -> Iterator[Tensor]:
        kept = [sample(device, seed) for seed in range(8)]
        for phase in range(4):
            values = [sample(device, 100 * phase + index) for index in range(COUNT)]
            total = torch.zeros(64, 96, device=device)
            for _ in range(4):
                for value in values:
                    total += value
            for value in values[: 6 + phase]:
                value.mul_(0.5)
                total -= value
            del values, value
            # They take the memory of those, and are not read for a while.
            fresh = [torch.full((64, 96), float(index), device=device) for index in range(COUNT)]
            for tensor in kept:
                tensor.add_(total, alpha=0.01)
            yield torch.stack(fresh).sum(0)
            yield total
        yield from kept

    trains(program)


def check_train_pages_out_what_was_prefetched() -> None:
    """What was brought in for one pass is needed by none, while others need the memory."""

    def program(device: str) -> Iterator[Tensor]:
        one, other = ([sample(device, 100 * half + index) for index in range(COUNT)] for half in range(2))
        total = torch.zeros(64, 96, device=device)
        for turn in range(4):
            for _ in range(4):
                for value in one:
                    total += value
                    value.mul_(0.99)
            for value in one[:turn]:
                value += total
            for value in other:  # was never part of it
                value += total
            one, other = other, one
            total = total * 0.01
        yield total
        yield from one
        yield from other

    trains(program)


def check_train_where_others_fill_the_card() -> None:
    """The device refuses memory that the limit allows, at last altogether: the program goes on without."""

    def program(device: str) -> Iterator[Tensor]:
        with Neighbour(device, leaves=PAGES * PAGE):
            kept = [sample(device, seed) for seed in range(PAGES + 4)]
            for step in range(8):
                if device != "cpu":
                    with contextlib.suppress(torch.cuda.OutOfMemoryError):
                        torch.empty((PAGES + 1) * PAGE, dtype=torch.uint8, device=device)
                        raise AssertionError("there is more memory than the card has left")
                fresh = [torch.full((64, 96), float(index), device=device) for index in range(4)]
                for index, tensor in enumerate(kept):
                    tensor.mul_(0.9).add_(fresh[(step + index) % len(fresh)])
            yield from kept

    trains(program, factors=(0.25,))


def check_train_while_the_cache_is_emptied() -> None:
    def program(device: str) -> Iterator[Tensor]:
        kept = [sample(device, seed) for seed in range(COUNT)]
        for step in range(4):
            for index, tensor in enumerate(kept):
                tensor.add_(kept[index - 3], alpha=0.1)
            del kept[step]
            kept.append(sample(device, 100 + step))
            if device != "cpu":
                torch.cuda.empty_cache()
        yield from kept

    trains(program)


def check_train_from_a_file() -> None:
    """The store can only be read and written by the host, in pieces; the largest tensor takes several."""

    def program(device: str) -> Iterator[Tensor]:
        kept = [torch.full((9 << 20 >> 2,), float(index), device=device) for index in range(3)]
        kept += [sample(device, seed) for seed in range(COUNT)]
        for step in range(3):
            for index, tensor in enumerate(kept):
                tensor.mul_(0.9).add_(kept[(index + step) % COUNT].flatten()[: 64 * 96].sum())
        yield from kept

    with tempfile.TemporaryDirectory() as folder:
        trains(program, store=folder)
        torch.lms.disable("cuda:0")  # lets go of the file

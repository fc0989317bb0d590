"""Programs that leave what they have done until then: what was brought in ahead of need is freed unused."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from perceptrons import sample
from torch import Tensor
from training import trains

COUNT = 16


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

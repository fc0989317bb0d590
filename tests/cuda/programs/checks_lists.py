"""Functions on lists of tensors, which no kernel of the simulated device serves: what they are called with."""

from __future__ import annotations

import torch
from cuda_support import MIB, data, enable, to_cuda


def groups_of(tensors: list[torch.Tensor]) -> list[int]:
    """How many tensors a function on a list gets at a time."""
    from torch.lms._tensor_lists import _in_groups

    found: list[int] = []

    def stock(tensors: list[torch.Tensor]) -> None:
        found.append(len(tensors))

    _in_groups(stock)(tensors)
    return found


def check_a_list_is_handed_on_in_groups_of_a_sixteenth_of_the_limit() -> None:
    enable(64 * MIB)
    tensors = to_cuda([data(2, seed) for seed in range(48)])
    assert groups_of(tensors) == [2] * 24
    assert groups_of(tensors[:2]) == [2]


def check_a_group_counts_the_pages_that_small_tensors_take() -> None:
    enable(64 * MIB, min_size=16 << 10)
    small = to_cuda([data(2, seed)[:4096].clone() for seed in range(9)])
    assert torch.lms.stats("cuda")["device_bytes.peak"] == 9 * 2 * MIB
    assert groups_of(small) == [2, 2, 2, 2, 1]
    unmanaged = [tensor[:4095].clone() for tensor in small]
    assert torch.lms.stats("cuda")["device_bytes.peak"] == 9 * 2 * MIB
    assert groups_of(unmanaged) == [9]

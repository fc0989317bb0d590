"""Functions on lists of tensors, which no kernel of the simulated device serves: what they are called with."""

from __future__ import annotations

import torch
from cuda_support import MIB, data, enable, to_cuda


def check_a_list_is_handed_on_in_groups_of_a_sixteenth_of_the_limit() -> None:
    from torch.lms._tensor_lists import _in_groups

    found: list[int] = []

    def stock(tensors: list[torch.Tensor]) -> None:
        found.append(len(tensors))

    enable(64 * MIB)
    tensors = to_cuda([data(2, seed) for seed in range(48)])
    _in_groups(stock)(tensors)
    assert found == [2] * 24, found
    found.clear()
    _in_groups(stock)(tensors[:2])
    assert found == [2], found

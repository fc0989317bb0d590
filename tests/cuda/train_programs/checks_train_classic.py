"""What the older implementations (PyTorch 1.1 to 1.5) were tested for, through their functions and statistics.

Where this differs from them: while LMS is off, `memory_stats` has none of its keys, so what was equal then is not compared;
and reserved memory is compared when all is back, not while some has left.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIB = 1 << 20
SIZES = ((32,), (128,), (10, 1024, 1024))  # two small tensors, and one of 40 MiB


def tensors() -> list[Tensor]:
    return [torch.empty(*size, device="cuda").normal_() for size in SIZES]


def stat(name: str) -> int:
    return torch.cuda.memory_stats()[name]


def check_train_tensors_that_no_operation_uses_are_inactive() -> None:
    torch.cuda.set_enabled_lms(False)
    assert "pinned_bytes.all.current" not in torch.cuda.memory_stats()
    before = tensors()
    torch.cuda.set_enabled_lms(True)
    kept = tensors()
    assert stat("allocated_bytes.all.current") > stat("pinned_bytes.all.current")
    # What was there before stays the stock allocator's.
    assert stat("pinned_bytes.all.current") >= sum(tensor.nbytes for tensor in before)
    del kept


def check_train_the_limit_decides_what_leaves() -> None:
    torch.cuda.set_enabled_lms(True)
    for limit in (80 * MIB, 1024 * MIB):
        torch.cuda.set_limit_lms(limit)
        torch.cuda.empty_cache()
        kept = tensors()
        names = ("allocated_bytes.all.current", "reclaimed_bytes")
        names += ("alloc_distribution.cudamalloc", "alloc_distribution.reclaim_one")
        kept += tensors()[2:]
        before = [stat(name) for name in names]
        kept.append(torch.empty(*SIZES[2], device="cuda").normal_())
        allocated, reclaimed, fresh, exchanged = (
            stat(name) - earlier for name, earlier in zip(names, before, strict=True)
        )
        if limit == 80 * MIB:
            assert (allocated, fresh) == (0, 0) and min(reclaimed, exchanged) > 0
        else:
            assert (reclaimed, exchanged) == (0, 0) and min(allocated, fresh) > 0
        del kept


def check_train_what_is_reclaimed_comes_back() -> None:
    torch.cuda.set_enabled_lms(True)
    names = ("allocated_bytes.all.current", "reserved_bytes.all.current", "pinned_bytes.all.current")
    names += ("alloc_distribution.cudamalloc", "reclaimed_bytes")
    kept = tensors()
    sums = [torch.sum(tensor).item() for tensor in kept]
    first = {name: stat(name) for name in names}
    torch.cuda.reclaim_inactive()
    away = {name: stat(name) for name in names}
    assert away["reclaimed_bytes"] > first["reclaimed_bytes"]
    assert away["allocated_bytes.all.current"] < first["allocated_bytes.all.current"]
    assert away["pinned_bytes.all.current"] == first["pinned_bytes.all.current"]
    assert [torch.sum(tensor).item() for tensor in kept] == sums
    back = {name: stat(name) for name in names}
    for name in names[:3]:
        assert back[name] == first[name], (name, first, away, back)

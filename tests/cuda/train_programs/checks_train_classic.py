"""What the older implementations (PyTorch 1.1 to 1.5) were tested for, through their functions and statistics.

One thing differs: memory does not stay reserved while its contents are away, but goes back to the device, so that other
libraries and processes may have it; a tensor that comes back takes it from there, and not from a list of free memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIB = 1 << 20
SIZES = ((32,), (128,), (10, 1024, 1024))  # two small tensors, and one of 40 MiB


def tensor(*size: int) -> Tensor:
    return torch.empty(*size, device="cuda").normal_()


def tensors() -> list[Tensor]:
    return [tensor(*size) for size in SIZES]


def stats(*names: str) -> dict[str, int]:
    every = torch.cuda.memory_stats(torch.cuda.current_device())
    return {name: every[name] for name in names}


# ------------------------------------------------------------------------------------------------ as of 1.4 and 1.5


def check_train_tensors_that_no_operation_uses_are_inactive() -> None:
    for enabled in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.set_enabled_lms(enabled)
        kept = tensors()
        allocated, pinned = stats("allocated_bytes.all.current", "pinned_bytes.all.current").values()
        assert (allocated > pinned) if enabled else (allocated == pinned), (enabled, allocated, pinned)
        del kept


def check_train_the_limit_decides_what_leaves() -> None:
    names = ("allocated_bytes.all.current", "reclaimed_bytes")
    names += ("alloc_distribution.cudamalloc", "alloc_distribution.reclaim_one")
    torch.cuda.set_enabled_lms(True)
    for limit in (80 * MIB, 1024 * MIB):
        torch.cuda.empty_cache()
        torch.cuda.set_limit_lms(limit)
        kept = tensors()
        before = stats(*names)
        kept.append(tensor(*SIZES[2]))
        allocated, reclaimed, fresh, exchanged = (now - before[name] for name, now in stats(*names).items())
        if limit == 80 * MIB:  # which the small ones count against
            assert (allocated, fresh) == (0, 0) and min(reclaimed, exchanged) > 0
        else:
            assert (reclaimed, exchanged) == (0, 0) and min(allocated, fresh) > 0
        del kept


def check_train_what_is_reclaimed_comes_back() -> None:
    torch.cuda.set_enabled_lms(True)
    names = ("allocated_bytes.all.current", "reserved_bytes.all.current", "pinned_bytes.all.current")
    names += ("alloc_distribution.freelist", "alloc_distribution.cudamalloc", "reclaimed_bytes")
    torch.cuda.empty_cache()
    kept = tensors()
    sums = [torch.sum(tensor).item() for tensor in kept]
    first = stats(*names)
    torch.cuda.reclaim_inactive()
    away = stats(*names)
    assert away["reclaimed_bytes"] > first["reclaimed_bytes"]
    assert away["pinned_bytes.all.current"] == first["pinned_bytes.all.current"]
    assert away["allocated_bytes.all.current"] < first["allocated_bytes.all.current"]
    gone = first["allocated_bytes.all.current"] - away["allocated_bytes.all.current"]
    assert away["reserved_bytes.all.current"] == first["reserved_bytes.all.current"] - gone
    assert [torch.sum(tensor).item() for tensor in kept] == sums
    back = stats(*names)
    for name in names[:3]:
        assert back[name] == first[name], (name, first, away, back)
    assert back["alloc_distribution.freelist"] > away["alloc_distribution.freelist"]
    assert back["alloc_distribution.cudamalloc"] == away["alloc_distribution.cudamalloc"] + 1  # of the device


# ------------------------------------------------------------------------------------------------ as of 1.1 to 1.3


def check_train_what_no_operation_uses_is_not_active() -> None:
    for enabled in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.set_enabled_lms(enabled)
        kept = tensors()
        allocated, active = torch.cuda.memory_allocated(0), torch.cuda.memory_active(0)
        assert (allocated > active) if enabled else (allocated == active), (enabled, allocated, active)
        del kept


def check_train_a_limit_of_0_keeps_the_least() -> None:
    torch.cuda._lms._ZERO_IS_LEAST = True  # as in the releases that meant it so
    torch.cuda.set_enabled_lms(True)
    for limit in (0, 1024 * MIB):
        torch.cuda.empty_cache()
        torch.cuda.set_limit_lms(limit)
        kept = tensors()
        allocated, reclaimed = torch.cuda.memory_allocated(0), torch.cuda.memory_reclaimed(0)
        before = torch.cuda.alloc_distribution(0)
        kept.append(tensor(*SIZES[2]))
        after = torch.cuda.alloc_distribution(0)
        more, left = torch.cuda.memory_allocated(0) - allocated, torch.cuda.memory_reclaimed(0) - reclaimed
        fresh, exchanged = (after[source] - before[source] for source in ("cudamalloc", "reclaim_one"))
        if limit == 0:
            assert (more, fresh) == (0, 0) and min(left, exchanged) > 0, (before, after)
        else:
            assert (left, exchanged) == (0, 0) and min(more, fresh) > 0, (before, after)
        del kept


def check_train_the_size_decides_what_is_active() -> None:
    torch.cuda.set_enabled_lms(True)
    for size in (MIB, 0):
        torch.cuda.empty_cache()
        torch.cuda.set_size_lms(size)
        before = torch.cuda.memory_active(0)
        kept = tensors()
        more = torch.cuda.memory_active(0) - before
        assert (more == 0) if size == 0 else (more > 0), (size, more)
        del kept


def check_train_what_was_active_stays_so() -> None:
    torch.cuda.set_enabled_lms(True)
    torch.cuda.empty_cache()
    kept = tensors()
    sums = [torch.sum(tensor).item() for tensor in kept]
    cached, allocated = torch.cuda.memory_reserved(0), torch.cuda.memory_allocated(0)  # the former was memory_cached
    active, reclaimed = torch.cuda.memory_active(0), torch.cuda.memory_reclaimed(0)
    torch.cuda.reclaim_inactive()
    assert torch.cuda.memory_reclaimed(0) > reclaimed
    assert torch.cuda.memory_active(0) == active
    assert torch.cuda.memory_allocated(0) < allocated
    assert torch.cuda.memory_reserved(0) == cached - (allocated - torch.cuda.memory_allocated(0))
    assert [torch.sum(tensor).item() for tensor in kept] == sums
    assert (torch.cuda.memory_reserved(0), torch.cuda.memory_allocated(0)) == (cached, allocated)
    assert torch.cuda.memory_active(0) == active

"""LMS in ``torch.cuda.memory_stats`` and ``torch.cuda.memory_summary``, under the keys of the older implementations.

The keys of ``memory_stats`` are always there (torch/cuda/_lms.py); the table in ``memory_summary`` is while LMS is enabled
for the device. They count from the first enable on, or from ``torch.cuda.reset_accumulated_memory_stats``.
docs/statistics.md explains each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _devices, _library
from ._kind import Device
from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable

    Counts = dict[str, int]

# What counts events, each the sum of these statistics of the pager.
_COUNTED = {
    "reclaimed": ("out.blocks", "clean_drop.blocks"),
    "reclaimed_bytes": ("out.bytes", "clean_drop.bytes"),
    # Requests for memory, of blocks that are new and of those that come back, by where it was found.
    "freelist": ("allocations.cached",),
    "cudamalloc": ("requests.fresh",),
    "reclaim_one": ("requests.one_out",),
    "reclaim_fragments": ("requests.several_out",),
    "reclaim_all": ("over_limit.requests",),
}

_TITLES = (
    ("allocated_bytes.current", "Managed memory"),
    ("resident_bytes.current", "  of it resident"),
    ("away_bytes.current", "  of it paged out"),
    ("pinned_bytes.current", "Pinned memory"),
    ("inactive_bytes.current", "Inactive memory"),
    ("cached_bytes.current", "Cached memory"),
    ("limit_bytes", "Limit"),
    ("over_limit_bytes.peak", "Most beyond the limit"),
    ("out.bytes", "Paged out in all"),
    ("in.bytes", "Paged in in all"),
    ("clean_drop.bytes", "Left without a copy"),
)

_zero: dict[tuple[str, Device], Counts] = {}  # what was counted when a function last began anew


def device_of(device: Any) -> Device:
    """The device that a function of ``torch.cuda`` is asked about: an index, a name, a ``torch.device`` or None."""
    if torch.version.cuda is None:
        return Device(_devices.KINDS["cuda"], 0)  # of which nothing is counted
    return _devices.find(torch.device("cuda", device) if isinstance(device, int) else device or "cuda")


def _in_front() -> bool:
    """Whether LMS is in front of the stock allocator, and adds the pager's blocks to what that counts."""
    return any(
        _library.enabled(device) or torch.lms._waits(device)
        for device in _library.devices()
        if device.kind.name == "cuda"
    )


def _inactive(device: Device, statistics: Counts, unit: str) -> int:
    """The bytes, or blocks, that may leave: none while LMS is disabled."""
    return statistics[f"inactive_{unit}.current"] if _library.enabled(device) else 0


def _since(function: str, device: Device, counts: Counts) -> Counts:
    zero = _zero.get((function, device), {})
    return {key: count - zero.get(key, 0) for key, count in counts.items()}


def _counts(statistics: Counts) -> Counts:
    return {key: sum(statistics[name] for name in names) for key, names in _COUNTED.items()}


def _distribution(stock: dict[str, Any], counts: Counts, statistics: Counts) -> Counts:
    """Where requests for memory, to either allocator, found it; `stock`: what PyTorch's own counts."""
    # The stock allocator's own; it counts each OOM as a retry before.
    resident_blocks = statistics["allocated_blocks.current"] - statistics["away_blocks.current"]
    requests = stock["allocation"]["all"]["allocated"] - (resident_blocks if _in_front() else 0)
    segments, retries = stock["segment"]["all"]["allocated"], stock["num_alloc_retries"] - stock["num_ooms"]
    return {
        "freelist": counts["freelist"] + requests - segments,
        "cudamalloc": counts["cudamalloc"] + segments - retries,
        "reclaim_one": counts["reclaim_one"],
        "reclaim_fragments": counts["reclaim_fragments"],
        "reclaim_all": counts["reclaim_all"],
        "cudamalloc_retry": retries,
    }


def add(result: dict[str, Any], index: int) -> None:
    """Adds LMS's keys to the nested dictionary of a device's statistics."""
    device = Device(_devices.KINDS["cuda"], index)
    statistics = _library.statistics(device)
    counts = _since("memory_stats", device, _counts(statistics))
    result["reclaimed"], result["reclaimed_bytes"] = counts["reclaimed"], counts["reclaimed_bytes"]
    result["alloc_distribution"] = _distribution(result, counts, statistics)
    # The allocator counts blocks of the pager while they are resident; they are none of the small pool.
    for key, of, inactive in (
        ("pinned", "allocation", _inactive(device, statistics, "blocks")),
        ("pinned_bytes", "allocated_bytes", _inactive(device, statistics, "bytes")),
    ):
        result[key] = {}
        for pool, values in result[of].items():
            current = values["current"] - (0 if pool == "small_pool" else inactive)
            result[key][pool] = {**values, "current": current, "freed": values["allocated"] - current}


def begin_anew(index: int) -> None:
    """Lets the keys that count begin at 0."""
    device = Device(_devices.KINDS["cuda"], index)
    _zero["memory_stats", device] = _counts(_library.statistics(device))


# ------------------------------------------------------------------------- the functions of 1.1 to 1.3


def active(device: Any) -> int:
    """The bytes in the device's memory that cannot be paged out now."""
    allocated: int = torch.cuda.memory_allocated(device)
    found = device_of(device)
    return allocated - _inactive(found, _library.statistics(found), "bytes")


def _reclaimed(device: Device) -> Counts:
    return {"reclaimed_bytes": _counts(_library.statistics(device))["reclaimed_bytes"]}


def _sources(device: Device) -> Counts:
    statistics = _library.statistics(device)
    counts = _counts(statistics)
    # From 1.4 on: before, nobody counts the stock allocator's.
    if _devices.cuda_is_initialized() and hasattr(torch._C, "_cuda_memoryStats"):
        counts = _distribution(torch._C._cuda_memoryStats(device.index), counts, statistics)
    return {
        "freelist": counts["freelist"],
        "cudamalloc": counts["cudamalloc"],
        "reclaim_one": counts["reclaim_one"],
        "reclaim_fragments": counts["reclaim_fragments"],
        "cudamalloc_over_limit": counts["reclaim_all"],
        "reclaim_all": 0,
        "cudamalloc_purge": counts.get("cudamalloc_retry", 0),
    }


_SINCE_RESET: dict[str, Callable[[Device], Counts]] = {"reclaimed": _reclaimed, "alloc_distribution": _sources}


def since_reset(function: str, device: Any) -> Counts:
    found = device_of(device)
    return _since(function, found, _SINCE_RESET[function](found))


def reset(function: str, device: Any) -> None:
    found = device_of(device)
    _zero[function, found] = _SINCE_RESET[function](found)


def _memory_summary(stock: Callable[..., str]) -> Callable[..., str]:
    def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
        text = stock(device, abbreviated)
        found = device_of(device)
        if not torch.lms.is_enabled(str(found)):
            return text
        statistics = _library.statistics(found)
        rows = [f"{'Large Model Support':^75}"]
        rows += [f" {title:<21} | {statistics[name] / 2**20:>13.1f} MiB {'':<32}" for name, title in _TITLES]
        line = "-" * 75
        return text + "".join(f"|{row:<75}|\n" for row in [rows[0], line, *rows[1:], "=" * 75])

    return memory_summary


ROWS: tuple[Row, ...] = (
    Row(("cuda",), "torch.cuda", "memory_summary", _memory_summary),
    Row(("cuda",), "torch.cuda.memory", "memory_summary", _memory_summary),
)

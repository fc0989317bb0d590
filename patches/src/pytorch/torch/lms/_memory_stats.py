"""LMS in ``torch.cuda.memory_stats`` and ``torch.cuda.memory_summary``, under the keys of the older implementations.

Only while LMS is enabled for the device do the keys exist. They count from the first enable on, or from
``torch.cuda.reset_accumulated_memory_stats``. docs/statistics.md explains each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import _devices, _library
from ._kind import Device
from ._wrapping import Row

if TYPE_CHECKING:
    from collections.abc import Callable

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

_zero: dict[Device, dict[str, int]] = {}  # the counts at the last reset


def _device(index: int) -> Device:
    return Device(_devices.KINDS["cuda"], index)


def _counts(statistics: dict[str, int]) -> dict[str, int]:
    return {key: sum(statistics[name] for name in names) for key, names in _COUNTED.items()}


def _distribution(result: dict[str, Any], counts: dict[str, int], statistics: dict[str, int]) -> dict[str, int]:
    """Where requests for memory, to either allocator, found it."""
    # The stock allocator's own; it counts each OOM as a retry before.
    resident_blocks = statistics["allocated_blocks.current"] - statistics["away_blocks.current"]
    requests = result["allocation"]["all"]["allocated"] - resident_blocks
    segments, retries = result["segment"]["all"]["allocated"], result["num_alloc_retries"] - result["num_ooms"]
    return {
        "freelist": counts["freelist"] + requests - segments,
        "cudamalloc": counts["cudamalloc"] + segments - retries,
        "reclaim_one": counts["reclaim_one"],
        "reclaim_fragments": counts["reclaim_fragments"],
        "reclaim_all": counts["reclaim_all"],
        "cudamalloc_retry": retries,
    }


def _memory_stats(stock: Callable[[int], dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
    def memory_stats(index: int) -> dict[str, Any]:
        result = stock(index)
        device = _device(index)
        if not torch.lms.is_enabled(str(device)):
            return result
        statistics = _library.statistics(device)
        zero = _zero.get(device, {})
        counts = {key: count - zero.get(key, 0) for key, count in _counts(statistics).items()}
        result["reclaimed"], result["reclaimed_bytes"] = counts["reclaimed"], counts["reclaimed_bytes"]
        result["alloc_distribution"] = _distribution(result, counts, statistics)
        # The allocator counts blocks of the pager while they are resident; they are none of the small pool.
        for key, of, inactive in (
            ("pinned", "allocation", statistics["inactive_blocks.current"]),
            ("pinned_bytes", "allocated_bytes", statistics["inactive_bytes.current"]),
        ):
            result[key] = {
                pool: {"current": values["current"] - (0 if pool == "small_pool" else inactive)}
                for pool, values in result[of].items()
            }
        return result

    return memory_stats


def _reset_accumulated(stock: Callable[[int], None]) -> Callable[[int], None]:
    def reset_accumulated_memory_stats(index: int) -> None:
        stock(index)
        device = _device(index)
        _zero[device] = _counts(_library.statistics(device))

    return reset_accumulated_memory_stats


def _memory_summary(stock: Callable[..., str]) -> Callable[..., str]:
    def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
        text = stock(device, abbreviated)
        found = _devices.find(torch.device("cuda", device) if isinstance(device, int) else device or "cuda")
        if not torch.lms.is_enabled(str(found)):
            return text
        statistics = _library.statistics(found)
        rows = [f"{'Large Model Support':^75}"]
        rows += [f" {title:<21} | {statistics[name] / 2**20:>13.1f} MiB {'':<32}" for name, title in _TITLES]
        line = "-" * 75
        return text + "".join(f"|{row:<75}|\n" for row in [rows[0], line, *rows[1:], "=" * 75])

    return memory_summary


ROWS: tuple[Row, ...] = (
    Row(("cuda",), "torch._C", "_cuda_memoryStats", _memory_stats),
    Row(("cuda",), "torch._C", "_cuda_resetAccumulatedMemoryStats", _reset_accumulated),
    Row(("cuda",), "torch.cuda", "memory_summary", _memory_summary),
    Row(("cuda",), "torch.cuda.memory", "memory_summary", _memory_summary),
)

"""The names by which programs written for the older implementations use Large Model Support on CUDA.

They are about every CUDA device that the process sees; :mod:`torch.lms` speaks of one at a time, and has more to say.
Sizes are in bytes. Until CUDA starts, the settings are recorded; without CUDA they have no effect, so that such programs
run anywhere. Settings apply to the process, and may be read and written from any thread.

Every release has them all: in ``torch.cuda``, and in ``torch.cuda.memory`` where there is one. ``torch.cuda.memory_stats``
has LMS's keys whether it is enabled or not.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.lms._sizes import Size

__all__ = [
    "alloc_distribution",
    "get_enabled_lms",
    "get_limit_lms",
    "get_size_lms",
    "max_memory_active",
    "memory_active",
    "memory_reclaimed",
    "reclaim_inactive",
    "reset_alloc_distribution",
    "reset_max_memory_active",
    "reset_memory_reclaimed",
    "set_enabled_lms",
    "set_limit_lms",
    "set_size_lms",
]

_lock = threading.RLock()
_enabled = False
_limit: int | None = None
_size = 1 << 20
_ZERO_IS_LEAST = not hasattr(torch._C, "_cuda_memoryStats")  # what a limit of 0 meant up to 1.3
_waiting = False  # whether _apply is among the calls that PyTorch makes when CUDA starts


def _is_initialized() -> bool:
    from torch.lms._devices import cuda_is_initialized

    return cuda_is_initialized()


def _options() -> dict[str, Any]:
    """The limit and the rest, as :func:`torch.lms._enable` takes them."""
    from torch.lms import _library

    options: dict[str, Any] = {"limit": _limit or None, "min_size": max(_size, 1)}
    if _limit:
        options["limit_kind"] = _library.LIMIT_TOTAL
    elif _limit is not None and _ZERO_IS_LEAST:
        options.update(limit=0, limit_kind=_library.LIMIT_LEAST)
    return options


def _apply(current: int | None = None) -> None:
    """Gives every device the settings: those that LMS knows and the current one at once, the others when they are used.

    Called while CUDA starts, when no device is the current one yet, or later.
    """
    global _waiting
    with _lock:
        _waiting = False
        if not _enabled:
            torch.lms._disable_at_first_use()
        for index in range(torch.cuda.device_count()):
            device = torch.device("cuda", index)
            if not _enabled:
                torch.lms.disable(device)
            elif index == current or torch.lms._is_known(device):
                torch.lms._enable(device, **_options())
        if _enabled:
            torch.lms._enable_at_first_use(**_options())


def _set(enabled: bool, limit: int | None, size: int) -> None:
    global _enabled, _limit, _size, _waiting
    with _lock:
        before = (_enabled, _limit, _size)
        _enabled, _limit, _size = enabled, limit, size
        if not (before[0] or enabled) or torch.version.cuda is None:
            return  # nothing is enabled and nothing is to be
        if _is_initialized():
            try:
                _apply(torch.cuda.current_device())
            except BaseException:
                _enabled, _limit, _size = before
                raise
            return
        waiting, _waiting = _waiting, True
    if not waiting:
        torch.cuda._lazy_call(_apply)  # without the lock, which _apply takes while PyTorch holds one of its own


def set_enabled_lms(enable: bool) -> None:
    """Enables or disables LMS on every CUDA device: on the current one now, if CUDA has started, and on the others when
    they are first used, so that a process which uses one of several devices leaves the others alone.

    :raises RuntimeError: CUDA has started, and the device cannot do it; the sentence says why.
    """
    if not isinstance(enable, bool):
        raise TypeError(f"enable: expected a bool, got {type(enable).__name__}")
    _set(enable, _limit, _size)


def get_enabled_lms() -> bool:
    """Returns what :func:`set_enabled_lms` set; False at first."""
    return _enabled


def set_limit_lms(limit: Size) -> None:
    """Sets the bytes of each device's memory that tensors may occupy before any is paged out; "8GiB" will do.

    What PyTorch's own allocator has reserved, for small tensors and those from before LMS was enabled, counts as well, so
    that :func:`torch.lms.limit` tells what of it is left for managed ones. More than a device has means all of it.

    0: from 1.4 on, and before it was ever set, what is free on the device when LMS is enabled, less 5 % for other uses,
    and what is small does not count. In 1.1 to 1.3: as little as the largest operation needs.
    """
    from torch.lms import _arguments  # here, since torch.lms loads when it is first used

    _set(_enabled, _arguments.check_limit("limit", limit, None), _size)


def get_limit_lms() -> int:
    """Returns what :func:`set_limit_lms` set, in bytes; 0 at first."""
    return _limit or 0


def set_size_lms(size: Size) -> None:
    """Sets the bytes from which on a tensor may be paged out; 1 MiB at first; "4MiB" will do."""
    from torch.lms import _arguments

    _set(_enabled, _limit, _arguments.check_size("size", size))


def get_size_lms() -> int:
    """Returns what :func:`set_size_lms` set, in bytes."""
    return _size


def reclaim_inactive() -> None:
    """Pages out every inactive tensor in the memory of every device for which LMS is enabled."""
    if _is_initialized():
        for index in range(torch.cuda.device_count()):
            if torch.lms.is_enabled(f"cuda:{index}"):
                torch.lms.reclaim(f"cuda:{index}")


# --------------------------------------------------------------------------- statistics, as 1.1 to 1.3 had them

# `device` is an index, a torch.device or a name; None is the current device.


def memory_active(device: Any = None) -> int:
    """Returns the bytes of tensors in the device's memory that could not be paged out now."""
    from torch.lms import _memory_stats

    return _memory_stats.active(device)


def max_memory_active(device: Any = None) -> int:
    """Returns an upper bound of what :func:`memory_active` has been: ``torch.cuda.max_memory_allocated``.

    A pin takes no lock, so pins are not counted.
    """
    most: int = torch.cuda.max_memory_allocated(device)
    return most


def reset_max_memory_active(device: Any = None) -> None:
    """Lets the peak begin anew, and with it ``torch.cuda.max_memory_allocated``."""
    reset = getattr(torch.cuda, "reset_peak_memory_stats", None) or torch.cuda.reset_max_memory_allocated
    reset(device)


def memory_reclaimed(device: Any = None) -> int:
    """Returns the bytes of tensors that have left the device's memory, each time counted."""
    from torch.lms import _memory_stats

    return _memory_stats.since_reset("reclaimed", device)["reclaimed_bytes"]


def reset_memory_reclaimed(device: Any = None) -> None:
    """Lets :func:`memory_reclaimed` begin at 0."""
    from torch.lms import _memory_stats

    _memory_stats.reset("reclaimed", device)


def alloc_distribution(device: Any = None) -> dict[str, int]:
    """Returns how many requests for memory found it where, as docs/statistics.md has it.

    ``cudamalloc_over_limit`` is what is called ``reclaim_all`` there, and ``reclaim_all`` is 0. Up to 1.3 PyTorch does not count
    the requests to its own allocator, so those of small tensors are missing.
    """
    from torch.lms import _memory_stats

    return _memory_stats.since_reset("alloc_distribution", device)


def reset_alloc_distribution(device: Any = None) -> None:
    """Lets :func:`alloc_distribution` begin at 0."""
    from torch.lms import _memory_stats

    _memory_stats.reset("alloc_distribution", device)


# ---------------------------------------------------------------------- where programs look for it all


def _memory_stats(stock: Callable[[int], dict[str, Any]]) -> Callable[[int], dict[str, Any]]:
    def memory_stats(index: int) -> dict[str, Any]:
        from torch.lms import _memory_stats

        result = stock(index)
        _memory_stats.add(result, index)
        return result

    return memory_stats


def _reset_accumulated(stock: Callable[[int], None]) -> Callable[[int], None]:
    def reset_accumulated_memory_stats(index: int) -> None:
        from torch.lms import _memory_stats

        stock(index)
        _memory_stats.begin_anew(index)

    return reset_accumulated_memory_stats


def _offer() -> None:
    memory = sys.modules.get("torch.cuda.memory")  # from 1.4 on
    for name in __all__ if memory is not None else ():
        setattr(memory, name, globals()[name])
    for name, wrap in (
        ("_cuda_memoryStats", _memory_stats),
        ("_cuda_resetAccumulatedMemoryStats", _reset_accumulated),
    ):
        stock = getattr(torch._C, name, None)  # there is none without CUDA
        if stock is not None:
            setattr(torch._C, name, functools.update_wrapper(wrap(stock), stock))


_offer()

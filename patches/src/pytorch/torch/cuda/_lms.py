"""The names by which programs written for the older implementations switch Large Model Support on for CUDA.

They are about every CUDA device that the process sees; :mod:`torch.lms` speaks of one at a time, and has more to say.
Sizes are in bytes. Until CUDA starts, the settings are recorded; without CUDA they have no effect, so that such programs
run anywhere. Settings apply to the process, and may be read and written from any thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.lms._sizes import Size

__all__ = [
    "get_enabled_lms",
    "get_limit_lms",
    "get_size_lms",
    "reclaim_inactive",
    "set_enabled_lms",
    "set_limit_lms",
    "set_size_lms",
]

_lock = threading.RLock()
_enabled = False
_limit = 0
_size = 1 << 20
_waiting = False  # whether _apply is among the calls that PyTorch makes when CUDA starts


def _is_initialized() -> bool:
    from torch.lms._devices import cuda_is_initialized

    return cuda_is_initialized()


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
                torch.lms.enable(device, limit=_limit or None, min_size=max(_size, 1))
        if _enabled:
            torch.lms._enable_at_first_use(_limit or None, max(_size, 1))


def _set(enabled: bool, limit: int, size: int) -> None:
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
    """Sets the bytes of each device's memory that large tensors may occupy before any is paged out; "8GiB" will do.

    0, which it is at first: what is free on the device when LMS is enabled, less 5 % for other uses.

    :raises ValueError: LMS is enabled, and a device has less memory than that.
    """
    from torch.lms import _arguments  # here, since torch.lms loads when it is first used

    _set(_enabled, _arguments.check_limit("limit", limit, None), _size)


def get_limit_lms() -> int:
    """Returns what :func:`set_limit_lms` set, in bytes."""
    return _limit


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

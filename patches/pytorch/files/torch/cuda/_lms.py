"""The names by which programs written for the older implementations switch Large Model Support on for CUDA.

Sizes are in bytes. Without CUDA the settings are recorded and have no effect, so that such programs run anywhere; for
CPU tensors see :mod:`torch.lms`. Settings apply to the process, and may be read and written from any thread.
"""

from __future__ import annotations

import torch

__all__ = [
    "get_enabled_lms",
    "get_limit_lms",
    "get_size_lms",
    "reclaim_inactive",
    "set_enabled_lms",
    "set_limit_lms",
    "set_size_lms",
]

_enabled = False
_limit = 0
_size = 1 << 20


def _check_bytes(name: str, value: int) -> int:
    from torch.lms import _check_bytes as check_bytes  # here, since torch.lms loads when it is first used

    return check_bytes(name, value, 0)


def set_enabled_lms(enable: bool) -> None:
    """Enables or disables LMS for CUDA.

    :raises RuntimeError: there is a CUDA device, and this build's LMS manages CPU tensors only.
    """
    global _enabled
    if not isinstance(enable, bool):
        raise TypeError(f"enable: expected a bool, got {type(enable).__name__}")
    if enable and torch.cuda.is_available():
        raise RuntimeError(
            "LMS in this build of PyTorch manages CPU tensors only and cannot page out CUDA memory; "
            "leave set_enabled_lms(True) out, or see torch.lms.enable('cpu', limit=...)"
        )
    _enabled = enable


def get_enabled_lms() -> bool:
    """Returns what :func:`set_enabled_lms` set; False at first."""
    return _enabled


def set_limit_lms(limit: int) -> None:
    """Sets the bytes of device memory to allocate before anything is paged out; 0 at first."""
    global _limit
    _limit = _check_bytes("limit", limit)


def get_limit_lms() -> int:
    """Returns what :func:`set_limit_lms` set, in bytes."""
    return _limit


def set_size_lms(size: int) -> None:
    """Sets the bytes from which on a tensor may be paged out; 1 MiB at first."""
    global _size
    _size = _check_bytes("size", size)


def get_size_lms() -> int:
    """Returns what :func:`set_size_lms` set, in bytes."""
    return _size


def reclaim_inactive() -> None:
    """Pages out every inactive tensor in CUDA memory. Nothing is there without CUDA, or while LMS is not enabled."""

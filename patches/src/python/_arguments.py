"""The arguments that a program gives: checked, and made what the C interface takes. Sizes are in bytes.

A wrong one raises TypeError or ValueError that names it.
"""

from __future__ import annotations

import ctypes
import operator
import os
from typing import TYPE_CHECKING

from . import _library

if TYPE_CHECKING:
    from ._kind import Device

UINT64_MAX = 2**64 - 1  # as a limit: the default; as an amount: everything


def check_int(name: str, value: int, unit: str = "") -> int:
    # bool is an int, but limit=True is a mistake; operator.index refuses float and takes NumPy's integers.
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an int{unit}, got {type(value).__name__}") from None


def check_bytes(name: str, value: int, minimum: int) -> int:
    number = check_int(name, value, " (bytes)")
    if not minimum <= number <= UINT64_MAX:
        raise ValueError(f"{name}: expected at least {minimum} and at most 2**64 - 1 bytes, got {number}")
    return number


def check_bool(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected a bool, got {type(value).__name__}")
    return value


def check_capacity(name: str, limit: int, device: Device) -> int:
    """Asks the device, which has to be ready, for its memory."""
    capacity = device.kind.capacity(device.index)
    if capacity is not None and limit > capacity:
        raise ValueError(f"{name}: {limit} bytes is more than the {capacity} bytes of memory that '{device}' has")
    return limit


def check_path(path: str | os.PathLike[str]) -> bytes:
    try:
        return os.fsencode(path)
    except TypeError:
        raise TypeError(f"path: expected a str or an os.PathLike, got {type(path).__name__}") from None


def check_min_size(value: int | None, device: Device) -> int:
    return device.kind.min_size if value is None else check_bytes("min_size", value, 1)


def check_options(
    device: Device, limit: int | None, store: str | os.PathLike[str] | None, policy: str, strict: bool
) -> _library.Options:
    """The options with which a device is enabled."""
    return _library.Options(
        struct_size=ctypes.sizeof(_library.Options),
        limit=_default_limit(device) if limit is None else check_bytes("limit", limit, 0),
        store=_check_store(store),
        policy=_check_policy(policy),
        strict=check_bool("strict", strict),
        address_space=0,
    )


def _default_limit(device: Device) -> int:
    if not device.kind.has_default_limit:
        raise TypeError(f"limit: '{device}' needs one; expected an int (bytes), got None")
    return UINT64_MAX


def _check_store(store: str | os.PathLike[str] | None) -> bytes | None:
    if store is None:
        return None
    try:
        path = os.fsencode(store)
    except TypeError:
        raise TypeError(f"store: expected None, a str or an os.PathLike, got {type(store).__name__}") from None
    if b"\0" in path or not os.path.isdir(path):
        raise ValueError(f"store: {os.fsdecode(path)!r} is not a directory that exists")
    return path


def _check_policy(policy: str) -> bytes:
    if not isinstance(policy, str):
        raise TypeError(f"policy: expected a str, got {type(policy).__name__}")
    names = _library.policies()
    if policy not in names:
        raise ValueError(f"policy: expected one of {', '.join(map(repr, names))}, got {policy!r}")
    return policy.encode()

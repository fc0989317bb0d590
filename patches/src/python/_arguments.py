"""The arguments that a program gives: checked, and made what the C interface takes, whose sizes are in bytes.

A wrong one raises TypeError or ValueError that names it, and says what may have been meant.
"""

from __future__ import annotations

import ctypes
import difflib
import operator
import os
from typing import TYPE_CHECKING

from . import _library, _share, _sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ._kind import Device
    from ._sizes import Size

    Folder = str | os.PathLike[str]
    Store = Folder | Sequence[Folder]

UINT64_MAX = 2**64 - 1  # as a limit: no number of the program's; as an amount: everything
_LEAST_LIMIT = 4096  # bytes, but for 0: below a page nothing fits, so that another unit was meant


def did_you_mean(value: str, names: Iterable[str]) -> str:
    """The end of a sentence about a name that is none of `names`."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(value.lower(), by_lower, 1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def check_int(name: str, value: int) -> int:
    # bool is an int, but limit=True is a mistake; operator.index refuses float and takes NumPy's integers.
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}") from None


def check_size(name: str, value: Size, minimum: int = 0, whole: Callable[[], int] | None = None) -> int:
    """The bytes that a size means, as :func:`_sizes.parse` has it."""
    nbytes = _sizes.parse(name, value, whole)
    if nbytes < minimum:
        raise ValueError(f"{name}: expected at least {minimum} bytes, got {value!r}")
    return nbytes


def check_limit(name: str, value: Size, whole: Callable[[], int] | None) -> int:
    """The bytes that a limit means; `whole` is the device's memory, which is asked for where the limit is a part of it."""
    nbytes = check_size(name, value, 0, whole)
    if 0 < nbytes < _LEAST_LIMIT:
        raise ValueError(
            f"{name}: {value!r} is {nbytes} bytes, in which no tensor fits; did you mean '{nbytes}GiB'? (0 keeps resident "
            "only what an operation uses)"
        )
    return nbytes


def check_bool(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}: expected a bool, got {type(value).__name__}")
    return value


def check_capacity(name: str, limit: int, device: Device) -> int:
    """Asks the device, which has to be ready, for its memory."""
    capacity = device.kind.capacity(device.index)
    if capacity is not None and limit > capacity:
        raise ValueError(
            f"{name}: {limit} bytes is more than the {capacity} bytes of memory ({_sizes.text(capacity)}) that '{device}' has"
        )
    return limit


def check_path(path: str | os.PathLike[str]) -> bytes:
    try:
        return os.fsencode(path)
    except TypeError:
        raise TypeError(f"path: expected a str or an os.PathLike, got {type(path).__name__}") from None


def check_min_size(value: Size | None, device: Device, limit: int) -> int:
    """The bytes from which on a tensor is managed; `limit` is the device's, in bytes."""
    if value is None:
        return device.kind.min_size
    nbytes = check_size("min_size", value, 1)
    if 0 < limit < nbytes and nbytes > device.kind.min_size:  # what no program says who means it
        raise ValueError(
            f"min_size: {value!r} is more than the limit of {_sizes.text(limit)}, in which no tensor of that size fits; "
            "min_size is where tensors begin to be managed, and limit what they may occupy together"
        )
    return nbytes


def check_options(
    device: Device,
    limit: Size | None,
    store: Store | None,
    policy: str,
    strict: bool,
    limit_kind: int = _library.LIMIT_MANAGED,
    share: bool | str | _share.Share = False,
    checksum: bool = True,
) -> _library.Options:
    """The options with which a device is enabled; their limit is UINT64_MAX where the library finds it."""
    if is_auto(limit) and not device.kind.has_default_limit:
        limit_kind = _library.LIMIT_AUTO
    return _library.Options(
        struct_size=ctypes.sizeof(_library.Options),
        limit=limit_of(device, limit),
        store=check_store(store),
        policy=check_policy(policy),
        strict=check_bool("strict", strict),
        address_space=0,
        limit_kind=limit_kind,
        share=check_share(share, device),
        unchecked=not check_bool("checksum", checksum),
    )


def is_auto(limit: Size | None) -> bool:
    return isinstance(limit, str) and limit.strip().lower() == "auto"


def limit_of(device: Device, limit: Size | None, whole: Callable[[], int] | None = None) -> int:
    """The bytes that a limit means, or UINT64_MAX; `whole` is as for :func:`check_limit`, or None for the device's."""
    if is_auto(limit) or (limit is None and device.kind.has_default_limit):
        return UINT64_MAX
    if limit is None:
        raise TypeError(
            f"limit: '{device}' needs one, such as limit='8GiB', 0.5 for half of the memory, or 'auto' for what there is"
        )
    return check_limit("limit", limit, whole or device.memory)


def check_share(share: bool | str | _share.Share, device: Device) -> bytes | None:
    given = _share.given(share)
    return None if given is None else _share.terms(given, device.memory)


def check_store(store: Store | None) -> bytes | None:
    """The directories as the C interface takes them, a line each."""
    if store is None:
        return None
    folders = list(store) if isinstance(store, (list, tuple)) else [store]
    if not folders:
        raise ValueError("store: an empty list; leave it out for a store in host memory")
    return b"\n".join(_check_folder(folder) for folder in folders)


def _check_folder(folder: Folder) -> bytes:
    try:
        path = os.fsencode(folder)
    except TypeError:
        raise TypeError(
            f"store: expected None, a str, an os.PathLike or a list of these, got {type(folder).__name__}"
        ) from None
    if b"\0" in path or not os.path.isdir(path):
        raise ValueError(f"store: {os.fsdecode(path)!r} is not a directory that exists{_no_store(os.fsdecode(path))}")
    if b"\n" in path:
        raise ValueError(f"store: {os.fsdecode(path)!r} has a line break in its name; choose another directory")
    return path


def split_store(text: str) -> Store:
    """The directories that a text without a list names: separated as in PATH, unless all of it is one."""
    return text if os.path.isdir(text) or os.pathsep not in text else text.split(os.pathsep)


def _no_store(path: str) -> str:
    """Why it is none, where that can be told."""
    home, folder = os.path.expanduser(path), os.path.dirname(path)
    if "\0" in path:
        return ""
    if home != path:
        return f", as nobody has replaced the '~'; did you mean {home!r}?"
    if all(map(os.path.isdir, path.split(os.pathsep))):
        return f"; did you mean {path.split(os.pathsep)}?"
    if os.path.exists(path):
        return f" but a file, and LMS makes its own, without a name; did you mean {folder or '.'!r}?"
    return "; make it first, on a fast local disk"


def check_policy(policy: str) -> bytes:
    if not isinstance(policy, str):
        raise TypeError(f"policy: expected a str, got {type(policy).__name__}")
    names = _library.policies()
    if policy not in names:
        wanted = f"expected one of {', '.join(map(repr, names))}, got {policy!r}"
        raise ValueError(f"policy: {wanted}{did_you_mean(policy, names)}")
    return policy.encode()

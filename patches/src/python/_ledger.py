"""Reads the ledgers in which processes that share a budget say what they have; ledger.h describes them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_END = ".ledger"
_HEADER, _HEADER_BYTES, _VERSION = struct.Struct("=QQQQ"), 256, 1
_MAGIC = int.from_bytes(b"LMSHARE1", "little")
# token pid weight minimum priority budget allowed held demand giving beat page resident allocated away in out wait command
_RECORD, _RECORD_BYTES, _MOST = struct.Struct("=QQdQqQQQQQQQQQQQQQ32s"), 256, 128
_NUMBER = struct.Struct("=Q")
_FLOCK, _GET_LOCK = struct.Struct("@hhqqi"), 36  # struct flock, F_OFD_GETLK
_FIRST_PLACE_BYTE = 1


class Sharer(NamedTuple):
    """A process that shares a budget. Sizes are in bytes."""

    budget: str  # its name
    budget_bytes: int
    place: int
    pid: int  # in the process's own namespace
    page: int  # the inode of its statistics page; 0: it has none
    command: str
    allowed: int
    held: int
    demand: int
    resident: int
    allocated: int
    away: int
    in_bytes: int
    out_bytes: int
    wait_ns: int


def folders() -> list[str]:
    """Where this user's processes may meet; meeting_point.h says in which order they look."""
    named, runtime, user = os.environ.get("LMS_SHARE"), os.environ.get("XDG_RUNTIME_DIR"), os.geteuid()
    if named:
        return [named]
    return [*([f"{runtime}/lms"] if runtime else []), f"/run/user/{user}/lms", f"/tmp/lms-{user}"]


def sharers() -> list[Sharer]:
    """The sharers that live, of all budgets."""
    found = []
    for folder in dict.fromkeys(map(os.path.realpath, folders())):
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):
                if name.endswith(_END):
                    with contextlib.suppress(OSError, struct.error):
                        found += _read(os.path.join(folder, name), name[: -len(_END)])
    return found


def _read(path: str, name: str) -> Iterator[Sharer]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        data = os.pread(descriptor, _HEADER_BYTES + _MOST * _RECORD_BYTES, 0)
        magic, version, budget, _ = _HEADER.unpack_from(data)
        if (magic, version) != (_MAGIC, _VERSION):
            return
        for place in range(_MOST):
            begin = _HEADER_BYTES + place * _RECORD_BYTES
            record = data[begin : begin + _RECORD.size]
            fields, (checksum,) = _RECORD.unpack(record), _NUMBER.unpack_from(data, begin + _RECORD.size)
            if fields[0] and _checksum(record) == checksum and _lives(descriptor, place):
                yield _sharer(name, budget, place, fields)
    finally:
        os.close(descriptor)


def _checksum(data: bytes) -> int:
    """FNV-1a of 64 bits."""
    total = 0xCBF29CE484222325
    for byte in data:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return total


def _sharer(name: str, budget: int, place: int, fields: tuple[int, ...]) -> Sharer:
    _, pid, _, _, _, _, allowed, held, demand, _, _, page, *counts, command = fields
    text = bytes(command).split(b"\0")[0].decode(errors="replace")
    return Sharer(name, budget, place, pid, page, text, allowed, held, demand, *counts)


def _lives(descriptor: int, place: int) -> bool:
    answer = fcntl.fcntl(
        descriptor, _GET_LOCK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _FIRST_PLACE_BYTE + place, 1, 0)
    )
    return _FLOCK.unpack(answer[: _FLOCK.size])[0] != fcntl.F_UNLCK

"""How a wheel's archive has to be laid out: each member once, one behind the other from the first byte on, and nothing beside them.

Programs differ in what they read out of an archive that says two things of a member, or holds what its directory does not list.
Of one that is laid out like this all of them read the same.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

from lmsbuild.errors import DamagedWheel
from lmsbuild.wheel.input_file import InputFile

_LOCAL = struct.Struct("<4s5H3I2H")
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_SIZES_64 = struct.Struct("<2Q")
_EXTRA = struct.Struct("<2H")
_FULL = 0xFFFFFFFF  # stands for a number that the 64-bit extension has
# So in the end: members on this disk, members, size and offset of the directory.
_FULLS = (0xFFFF, 0xFFFF, _FULL, _FULL)
_ID_64 = 1  # of the extension among a member's extra fields
_ID_NAME = 0x7075  # of another name for it, which some programs take

_NEWEST = 45  # version of the format: 4.5 has 64-bit sizes
_FOLLOWS = 0x8  # flag: checksum and sizes follow the data
_PLAIN = 0x2 | 0x4 | _FOLLOWS | 0x800  # flags: how hard it was compressed, and that the name is UTF-8
_DESCRIPTORS = tuple(struct.Struct(form) for form in ("<3I", "<4I", "<I2Q", "<2I2Q"))  # with and without a signature
_SIGNATURE = 0x08074B50  # of what follows the data


@dataclass(frozen=True)
class Directory:
    """Where the archive's directory is."""

    begin: int  # offset of its first byte
    count: int  # members


def directory(file: InputFile) -> Directory:
    """Reads the end of an archive. Raises DamagedWheel when something follows it, or lies between it and the directory."""
    name, at = file.path.name, file.size - _END.size
    record = file.read_at(max(at, 0), _END.size)
    if at < 0 or record[:4] != b"PK\5\6":
        raise DamagedWheel(f"{name} is truncated, no wheel at all, or goes on behind its end: download it again")
    _, disk, first, *short, comment = _END.unpack(record)
    count, size, begin = short[1:]
    if wide := _end_64(file, at):
        count, size, begin = wide
        at -= _LOCATOR.size + _END_64.size
    true = (count, count, size, begin)
    agrees = all(had == is_so or (wide and had == full) for had, is_so, full in zip(short, true, _FULLS, strict=True))
    if not agrees or disk or first or comment or begin + size != at:
        raise DamagedWheel(
            f"{name} has an end that does not fit what is before it, or bytes before its begin: download it again"
        )
    return Directory(begin, count)


def _end_64(file: InputFile, at: int) -> tuple[int, int, int] | None:
    """Count, size and offset of a directory as the 64-bit end before the one at `at` says; None: there is none."""
    locator_at = at - _LOCATOR.size
    if locator_at < _END_64.size:
        return None
    signature, disk, begin, disks = _LOCATOR.unpack(file.read_at(locator_at, _LOCATOR.size))
    if signature != b"PK\6\7":
        return None
    record_at = locator_at - _END_64.size
    mark, length, _, _, own, first, here, count, size, offset = _END_64.unpack(file.read_at(record_at, _END_64.size))
    sound = (mark, length, own, first, here) == (b"PK\6\6", _END_64.size - 12, 0, 0, count)
    if not sound or (disk, begin, disks) != (0, record_at, 1):
        raise DamagedWheel(f"{file.path.name} has a 64-bit end that is not as it has to be: download it again")
    return count, size, offset


def check_entry(info: zipfile.ZipInfo, wheel: str) -> None:
    """Raises DamagedWheel when a member is packed in a way that wheels do not use, by the entry in the directory."""
    if info.flag_bits & 1:
        raise DamagedWheel(f"{info.filename} in {wheel} is encrypted: download the wheel again")
    odd = info.flag_bits & ~_PLAIN or info.extract_version > _NEWEST or info.volume
    if odd or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DamagedWheel(
            f"{info.filename} in {wheel} is compressed or packed in a way that wheels do not use: download it again"
        )
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        raise DamagedWheel(f"{info.filename} in {wheel} has two sizes: download the wheel again")
    if info.is_dir() and info.file_size:
        raise DamagedWheel(f"{info.filename} in {wheel} is a folder with contents of its own: download the wheel again")


def check_members(file: InputFile, members: Sequence[zipfile.ZipInfo], end: Directory) -> None:
    """Raises DamagedWheel when a member's header contradicts the directory, or members overlap or leave room for others."""
    if len(members) != end.count:
        raise DamagedWheel(f"{file.path.name} lists {len(members)} members, but counts {end.count}: download it again")
    ordered = sorted(members, key=lambda info: info.header_offset)
    following = [info.header_offset for info in ordered[1:]] + [end.begin]
    position = 0
    for info, behind in zip(ordered, following, strict=True):
        if info.header_offset != position:
            what = "overlaps another member" if info.header_offset < position else "follows bytes of no member"
            raise DamagedWheel(f"{info.filename} in {file.path.name} {what}: download the wheel again")
        position = _data(file, info) + info.compress_size
        if info.flag_bits & _FOLLOWS:
            _check_descriptor(file, info, position, behind)
            position = behind
    if position != end.begin:
        raise DamagedWheel(f"{file.path.name} has bytes of no member, or members in its directory: download it again")


def _data(file: InputFile, info: zipfile.ZipInfo) -> int:
    """Checks the header before a member's data, and returns where the data begins."""
    name = info.orig_filename.encode()
    header = file.read_at(info.header_offset, _LOCAL.size)
    differs = DamagedWheel(
        f"{info.filename} in {file.path.name} has two descriptions that differ: download the wheel again"
    )
    if len(header) != _LOCAL.size or header[:4] != b"PK\3\4":
        raise DamagedWheel(f"{file.path.name} is damaged at {info.filename}: download it again")
    _, version, flags, method, _, _, checksum, packed, size, name_length, extra_length = _LOCAL.unpack(header)
    rest = file.read_at(info.header_offset + _LOCAL.size, name_length + extra_length)
    if rest[:name_length] != name or (flags, method) != (info.flag_bits, info.compress_type) or version > _NEWEST:
        raise differs
    stated, true = (checksum, packed, size), (info.CRC, info.compress_size, info.file_size)
    extra = _extra(rest[name_length:], differs)
    if _ID_NAME in {**extra, **_extra(info.extra, differs)}:
        raise differs
    if wide := extra.get(_ID_64):
        if len(wide) != _SIZES_64.size:
            raise differs
        size_64, packed_64 = _SIZES_64.unpack(wide)
        # The second is what Python's zipfile wrote before 3.11.4: both say the same.
        if (packed, size) not in ((_FULL, _FULL), (packed_64, size_64)):
            raise differs
        stated = checksum, packed_64, size_64
    # Sizes that follow the data are nought here, or were filled in.
    if stated != true and not (flags & _FOLLOWS and all(a in (0, b) for a, b in zip(stated, true, strict=True))):
        raise differs
    begin: int = info.header_offset + _LOCAL.size + name_length + extra_length
    return begin


def _extra(data: bytes, differs: DamagedWheel) -> dict[int, bytes]:
    """Extra fields by their number."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        if len(data) < at + _EXTRA.size:
            raise differs
        number, length = _EXTRA.unpack_from(data, at)
        at += _EXTRA.size
        if number in found or len(data) < at + length:
            raise differs
        found[number] = data[at : at + length]
        at += length
    return found


def _check_descriptor(file: InputFile, info: zipfile.ZipInfo, begin: int, end: int) -> None:
    """Checks what follows a member's data, from `begin` to `end`."""
    form = next((form for form in _DESCRIPTORS if form.size == end - begin), None)
    true = (info.CRC, info.compress_size, info.file_size)
    if form is None or form.unpack(file.read_at(begin, form.size)) not in (true, (_SIGNATURE, *true)):
        raise DamagedWheel(
            f"{info.filename} in {file.path.name} is not followed by its checksum and sizes: download the wheel again"
        )

"""The tar files that a package consists of, unpacked with care: nothing is missing or hidden, and none is a bomb.

Clients read the same archive in several ways: by the zip file's directory or from its beginning on, up to the first end or to
the last. So there must be only one way to read it.
"""

from __future__ import annotations

import bz2
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from typing import IO, Any

from lmsbuild.conda import tools
from lmsbuild.published import strict_json

CHUNK = 1 << 16  # bytes that are read at once
_SMALLEST_LIMIT, _RATIO = 256 << 20, 200  # bytes that any package may unpack to, and how many for each of its own
_HEADER = 1 << 20  # bytes before a member's contents, for its name and the like
_BLOCK = tarfile.BLOCKSIZE
_LARGEST_METADATA = 1 << 16  # bytes of metadata.json

_LOCAL = struct.Struct("<4s5H3L2H")  # zip: what stands before each entry
_DIRECTORY_ROW, _ENDS = 46, (22, 98)  # bytes of a row of the directory, and after it, with or without 64 bits
_DESCRIPTORS = (12, 16, 20, 24)  # bytes after an entry whose sizes were not known before it
_LARGE = 0xFFFFFFFF  # the size stands elsewhere
_LARGEST_HEADER, _BLOCK_HEADER = 18, 3  # zstd: bytes in front of a frame, and of each block in it
_REPEATED = 1  # the kind of a block that has one byte


class Damaged(ValueError):
    """What is wrong with an archive."""


class OtherName(Damaged):
    """The parts have another package's name, which is this error's text."""


class Stream:
    """What a part unpacks to, as far as it is allowed."""

    def __init__(self, source: Any, largest: int) -> None:
        self._source, self._largest = source, largest
        self._at = self._filled = 0  # bytes read, and those up to the last that is not 0
        self._allowed = _HEADER

    def read(self, size: int) -> bytes:
        """At most that many bytes, none at the end. Raises Damaged."""
        data: bytes = self._source.read(size)
        self._at += len(data)
        if data and data[-1]:
            self._filled = self._at
        elif used := len(data.rstrip(b"\0")):
            self._filled = self._at - len(data) + used
        if self._at > self._allowed + CHUNK:  # which tarfile reads ahead
            raise Damaged("it has a header that is too large")
        return data

    def allow(self, end: int) -> None:
        """Lets the contents of a member be read, which end there, and the next one's header. Raises Damaged."""
        if end > self._largest:
            raise Damaged(f"it unpacks to more than {self._largest} bytes, too many for its size")
        self._allowed = end + _HEADER

    def check_end(self, end: int) -> None:
        """Reads on to the end, where only zeros may be, and at least a block of them. `end` is that of the last member."""
        while self.read(CHUNK):
            if self._filled > end:
                break
        if self._filled > end:
            raise Damaged("something follows its last member")
        if self._at < end + _BLOCK:
            raise Damaged("it does not end after its last member")


def tars(file: IO[bytes], name: str, size: int, *, only_info: bool) -> Iterator[tuple[str, Stream]]:
    """The tar files of the package called `name`, and of which part each is: "info", "pkg", or "" for both.

    Raises Damaged, and what reading a damaged file raises.
    """
    largest = max(_SMALLEST_LIMIT, size * _RATIO)
    file.seek(0)
    if name.endswith(".tar.bz2"):
        yield "", Stream(_Bz2(file), largest)
        return
    zstandard = tools.zstandard()
    with zipfile.ZipFile(file) as archive:
        entries = _entries(file, archive, name.removesuffix(".conda"), size)
        row, _ = entries["metadata"]
        if row.file_size > _LARGEST_METADATA:
            raise Damaged(f"its metadata.json has more than {_LARGEST_METADATA} bytes")
        _check_metadata(archive.read(row))
        for part in ("info",) if only_info else ("info", "pkg"):
            row, end = entries[part]
            _check_frames(file, end - row.file_size, end)
            with archive.open(row) as packed:
                unpacked = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
                yield part, Stream(unpacked, largest)


class _Bz2:
    """A file of bz2 streams, to its end: what bz2.open does not say is when one is cut off, or garbage follows."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._unpack, self._left = bz2.BZ2Decompressor(), b""

    def read(self, size: int) -> bytes:
        while True:
            if self._unpack.eof:
                self._left = self._unpack.unused_data or self._file.read(CHUNK)
                if not self._left:
                    return b""
                self._unpack = bz2.BZ2Decompressor()
            elif self._unpack.needs_input and not self._left:
                self._left = self._file.read(CHUNK)
                if not self._left:
                    raise Damaged("it is cut off")
            given, self._left = self._left, b""
            if data := self._unpack.decompress(given, size):
                return data


def _entries(file: IO[bytes], archive: zipfile.ZipFile, stem: str, size: int) -> dict[str, tuple[zipfile.ZipInfo, int]]:
    """The three entries that a .conda file has, and where their contents end.

    Raises Damaged when something else is in it, or between them.
    """
    wanted = {"metadata.json": "metadata", f"info-{stem}.tar.zst": "info", f"pkg-{stem}.tar.zst": "pkg"}
    rows = sorted(archive.infolist(), key=lambda row: row.header_offset)
    names = {row.filename for row in rows}
    other = next((name[5:-8] for name in names if name.startswith("info-") and name.endswith(".tar.zst")), stem)
    if other != stem and names == {"metadata.json", f"info-{other}.tar.zst", f"pkg-{other}.tar.zst"}:
        raise OtherName(other)
    if len(rows) != len(wanted) or names != set(wanted):
        raise Damaged(f"it has {', '.join(repr(row.filename[:80]) for row in rows[:5])}, not {' and '.join(wanted)}")
    at, found = 0, {}
    for row in rows:
        end = _check_entry(file, row, at)
        found[wanted[row.filename]] = row, end
        at = end + _descriptor(file, row, end)
    ends = at + sum(_DIRECTORY_ROW + len(row.filename) + len(row.extra) + len(row.comment) for row in rows)
    if at != archive.start_dir or size - ends not in _ENDS:
        raise Damaged("something is hidden in front of its directory or behind it")
    return found


def _check_entry(file: IO[bytes], row: zipfile.ZipInfo, at: int) -> int:
    """Where the contents of the entry end that has to begin at `at`. Raises Damaged."""
    file.seek(at)
    header = file.read(_LOCAL.size)
    if row.header_offset != at or len(header) != _LOCAL.size:
        raise Damaged(f"something is hidden in front of {row.filename}")
    _, _, flags, method, _, _, crc, packed, unpacked, name, extra = _LOCAL.unpack(header)
    if method or row.compress_type or (flags | row.flag_bits) & 1 or row.compress_size != row.file_size:
        raise Damaged(f"{row.filename} is compressed or encrypted in it, where it has to be stored")
    if file.read(name) != row.filename.encode():
        raise Damaged(f"{row.filename} has another name in front of it")
    more = file.read(extra)
    end: int = at + _LOCAL.size + name + extra + row.file_size
    if flags & 8:
        return end
    if _LARGE in (packed, unpacked):
        sizes = {packed, unpacked, *struct.unpack("<2Q", more[4:20])} if more[:2] == b"\1\0" and extra >= 20 else set()
        sizes -= {_LARGE}
    else:
        sizes = {packed, unpacked}
    if crc != row.CRC or sizes != {row.file_size}:
        raise Damaged(f"{row.filename} has another size or checksum in front of it")
    return end


def _descriptor(file: IO[bytes], row: zipfile.ZipInfo, end: int) -> int:
    """Bytes between an entry and what follows, which has its sizes and checksum where they do not stand before it."""
    if not row.flag_bits & 8:
        return 0
    file.seek(end)
    behind = file.read(max(_DESCRIPTORS) + 4)
    for size in _DESCRIPTORS:
        if behind[size : size + 4] in (b"PK\3\4", b"PK\1\2"):
            return size
    raise Damaged(f"something is hidden behind {row.filename}")


def _check_metadata(data: bytes) -> None:
    try:
        version = strict_json.parse(data)["conda_pkg_format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"its metadata.json does not say which format it is of ({error})") from error
    if version != 2 or not isinstance(version, int):
        raise Damaged(f"it is of version {version!r} of the format, not 2")


def _check_frames(file: IO[bytes], at: int, end: int) -> None:
    """Raises Damaged unless these are complete zstd frames: what unpacks them takes one that is cut off for its end."""
    zstandard = tools.zstandard()
    while at < end:
        file.seek(at)
        head = file.read(_LARGEST_HEADER)
        if not head.startswith(zstandard.FRAME_HEADER):
            raise Damaged("something is hidden between its parts")
        frame, last = zstandard.get_frame_parameters(head), False
        at += zstandard.frame_header_size(head)
        while not last:
            file.seek(at)
            row = int.from_bytes(file.read(_BLOCK_HEADER), "little")
            last, kind, size = bool(row & 1), row >> 1 & 3, row >> 3
            at += _BLOCK_HEADER + (1 if kind == _REPEATED else size)
            if at > end:
                raise Damaged("it is cut off")
        at += 4 if frame.has_checksum else 0
    if at > end:
        raise Damaged("it is cut off")

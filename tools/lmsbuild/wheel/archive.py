"""A zip archive whose unchanged members are copied as they are, compressed bytes and all.

Compressing a framework's libraries again would take minutes, and give other bytes with another zlib. Limits: an
archive below 4 GiB with fewer than 65,535 members, which is what package registries take.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from lmsbuild.errors import DamagedWheel
from lmsbuild.source_date import Date

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_CHUNK = 1 << 20  # bytes
_LIMIT = 0xFFFFFFFF  # bytes: what fits without the 64-bit extension
_UTF8 = 0x800  # flag: the name is UTF-8
_LEVEL = 6


def compressed_chunks(file: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """The member's bytes as the archive stores them. Raises DamagedWheel when they are not all there."""
    file.seek(info.header_offset)
    header = file.read(_LOCAL.size)
    if len(header) != _LOCAL.size or header[:4] != b"PK\3\4":
        raise DamagedWheel(f"the archive is damaged at {info.filename}: download it again")
    name_length, extra_length = _LOCAL.unpack(header)[9:11]
    file.seek(name_length + extra_length, 1)
    left = info.compress_size
    while left:
        chunk = file.read(min(left, _CHUNK))
        if not chunk:
            raise DamagedWheel(f"the archive ends within {info.filename}: download it again")
        left -= len(chunk)
        yield chunk


def unpacked_chunks(file: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """The member's contents. Raises DamagedWheel when they are not what the archive's directory says, or go on beyond that."""
    checksum, size = 0, 0
    for chunk in _unpacked(file, info):
        checksum = zlib.crc32(chunk, checksum)
        size += len(chunk)
        if size > info.file_size:  # before more of it is unpacked
            break
        yield chunk
    if (checksum, size) != (info.CRC, info.file_size):
        raise DamagedWheel(
            f"the archive is damaged at {info.filename}, whose size or checksum differs: download it again"
        )


def _unpacked(file: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
    if info.compress_type == zipfile.ZIP_STORED:
        yield from compressed_chunks(file, info)
        return
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for packed in compressed_chunks(file, info):
            left = packed
            while left and not unpacker.eof:
                yield unpacker.decompress(left, _CHUNK)
                left = unpacker.unconsumed_tail
            if unpacker.unused_data or (left and unpacker.eof):
                break
        yield unpacker.flush()
    except zlib.error as error:
        raise DamagedWheel(f"the archive is damaged at {info.filename}: download it again") from error
    if not unpacker.eof or unpacker.unused_data:
        raise DamagedWheel(f"the archive is damaged at {info.filename}: download it again")


def is_copy(file: BinaryIO, info: zipfile.ZipInfo, base: BinaryIO, original: zipfile.ZipInfo) -> bool:
    """Whether a member is, compressed bytes and all, one of another archive. Raises DamagedWheel."""
    facts, expected = ((each.CRC, each.file_size, each.compress_size, each.compress_type) for each in (info, original))
    return facts == expected and all(
        copied == chunk
        for copied, chunk in zip(compressed_chunks(file, info), compressed_chunks(base, original), strict=True)
    )


class ArchiveWriter:
    """Writes an archive member by member; the same calls give the same bytes. Not thread-safe."""

    def __init__(self, file: BinaryIO, date: Date) -> None:
        """`date` is given to every member that is added, not copied."""
        self._file = file
        self._date = date
        self._central: list[bytes] = []
        self._central_size = 0
        self._offset = 0

    def copy(self, source: BinaryIO, info: zipfile.ZipInfo, name: str) -> None:
        """Copies a member of another archive without unpacking it, under `name`."""
        header = _Header(
            name=name,
            method=info.compress_type,
            date=info.date_time,
            checksum=info.CRC,
            compressed=info.compress_size,
            size=info.file_size,
            attributes=info.external_attr,
        )
        self._begin(header)
        for chunk in compressed_chunks(source, info):
            self._file.write(chunk)

    def add(self, name: str, data: bytes, mode: int) -> None:
        """Adds a file with the permissions `mode`."""
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = compressor.compress(data) + compressor.flush()
        header = _Header(
            name=name,
            method=zipfile.ZIP_DEFLATED,
            date=self._date,
            checksum=zlib.crc32(data),
            compressed=len(packed),
            size=len(data),
            attributes=(stat.S_IFREG | mode) << 16,
        )
        self._begin(header)
        self._file.write(packed)

    def finish(self) -> None:
        """Writes the directory of the archive; nothing can be added afterwards."""
        count = len(self._central)
        if count >= 0xFFFF or self._offset + self._central_size >= _LIMIT:
            raise DamagedWheel(f"an archive with {count} members and {self._offset} bytes is too large for a wheel")
        for entry in self._central:
            self._file.write(entry)
        self._file.write(_END.pack(b"PK\5\6", 0, 0, count, count, self._central_size, self._offset, 0))

    def _begin(self, header: _Header) -> None:
        if self._offset + header.compressed >= _LIMIT or header.size >= _LIMIT:
            raise DamagedWheel(f"{header.name} makes the archive larger than 4 GiB, which no wheel can be")
        local = header.local()
        self._file.write(local)
        entry = header.central(self._offset)
        self._central.append(entry)
        self._central_size += len(entry)
        self._offset += len(local) + header.compressed


class _Header:
    """What the archive says of one member, in front of it and in the directory."""

    def __init__(
        self, *, name: str, method: int, date: Date, checksum: int, compressed: int, size: int, attributes: int
    ) -> None:
        self.name = name
        self.compressed = compressed
        self.size = size
        self._attributes = attributes
        self._encoded = name.encode()
        flags = 0 if name.isascii() else _UTF8
        year, month, day, hour, minute, second = date
        time = hour << 11 | minute << 5 | second // 2
        day_number = (year - 1980) << 9 | month << 5 | day
        self._common = (flags, method, time, day_number, checksum, compressed, size, len(self._encoded), 0)

    def local(self) -> bytes:
        return _LOCAL.pack(b"PK\3\4", 20, *self._common) + self._encoded

    def central(self, offset: int) -> bytes:
        made_by = 3 << 8 | 20  # Unix, so that the permissions count
        fixed = _CENTRAL.pack(b"PK\1\2", made_by, 20, *self._common, 0, 0, 0, self._attributes, offset)
        return fixed + self._encoded

"""Wheels that contradict themselves, or that programs read in different ways: each is refused, as what it is."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import synthetic
from lmsbuild.errors import DamagedWheel, Failure, TamperedWheel, UnsafeMember
from lmsbuild.wheel.wheel import WheelFile
from synthetic import DIST_INFO, Member

FILES = {
    "torch/__init__.py": Member(b"a = 1\n" * 500),
    "torch/version.py": Member(b"b = 2\n" * 10),
    f"{DIST_INFO}/METADATA": Member(b"Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n\nText\n"),
    f"{DIST_INFO}/WHEEL": Member(b"Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n"),
}
Spoil = Callable[[bytearray], bytes]


METADATA, WHEEL = f"{DIST_INFO}/METADATA", f"{DIST_INFO}/WHEEL"


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (METADATA, b"-Version: 2.1", b"-Version: 9.9", "states the Metadata-Version '9.9', which no installer knows"),
        (METADATA, b"Metadata-Version: 2.1\n", b"", "states the Metadata-Version None"),
        (METADATA, b"Name:", b"Requires-Python: soon\nName:", "states what no installer can read .*soon"),
        (WHEEL, b"-Version: 1.0", b"-Version: 2.0", "states the Wheel-Version '2.0'"),
        (WHEEL, b"Tag: cp311-cp311-linux_x86_64\n", b"", "is not for cp311-cp311, as its WHEEL says"),
        (WHEEL, b"Tag: cp311-", b"Tag: cp310-", "is not for cp311-cp311"),
    ],
)
def test_what_installers_refuse(tmp_path: Path, name: str, old: bytes, new: bytes, said: str) -> None:
    """Such wheels can be read; they are put into no index, and nothing is grafted onto them."""
    with WheelFile(_wheel(tmp_path, FILES)) as wheel:
        wheel.check_installable()
    changed = {**FILES, name: Member(FILES[name].data.replace(old, new))}
    assert changed[name] != FILES[name]
    with WheelFile(_wheel(tmp_path, changed)) as wheel, pytest.raises(DamagedWheel, match=said):
        wheel.check_installable()


def _check(path: Path) -> None:
    with WheelFile(path) as wheel:
        wheel.verify(lambda name: None, lambda done: None)


def _wheel(folder: Path, files: dict[str, Member], extra: str = "") -> Path:
    return synthetic.write_wheel(folder / synthetic.wheel_name(), files, extra)


def _entries(data: bytes) -> tuple[int, dict[str, tuple[int, int]]]:
    """Where the directory begins; and of each member where its header and its entry are."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        at, found = archive.start_dir, {}
        for info in archive.infolist():
            found[info.filename] = info.header_offset, at
            at += 46 + len(info.filename.encode()) + len(info.extra)
        return archive.start_dir, found


# Where a field is in a member's header and in its entry of the directory, and its form.
FLAGS, METHOD, CRC, PACKED, SIZE = (6, 8, "<H"), (8, 10, "<H"), (14, 16, "<I"), (18, 20, "<I"), (22, 24, "<I")
NEEDS, DISK, OFFSET = (4, 6, "<H"), (None, 34, "<H"), (None, 42, "<I")


def _set(field: tuple[int | None, int, str], change: Callable[[int], int], *, header: bool = True) -> Spoil:
    """Changes a field of torch/__init__.py; in the directory alone without `header`."""

    def spoil(data: bytearray) -> bytes:
        local, entry = _entries(data)[1]["torch/__init__.py"]
        in_header, in_entry, form = field
        for base, offset in ((local, in_header if header else None), (entry, in_entry)):
            if offset is not None:
                struct.pack_into(form, data, base + offset, change(*struct.unpack_from(form, data, base + offset)))
        return bytes(data)

    return spoil


def _rename(old: bytes, new: bytes) -> Spoil:
    return lambda data: bytes(data).replace(old, new)


def _moved(data: bytes, by: int) -> bytes:
    """Where the archive begins later, with its offsets set right."""
    moved = bytearray(data)
    begin, entries = _entries(data)
    for local, entry in entries.values():
        struct.pack_into("<I", moved, entry + 42, local + by)
    struct.pack_into("<I", moved, len(moved) - 6, begin + by)
    return b"#" * by + bytes(moved)


def _without_entry(data: bytearray) -> bytes:
    """The directory no longer lists the last member but one, whose bytes stay."""
    begin, entries = _entries(data)
    first, second = sorted(entry for _, entry in entries.values())[:2]
    end = bytearray(data[-22:])
    struct.pack_into("<2H", end, 8, len(entries) - 1, len(entries) - 1)
    struct.pack_into("<I", end, 12, len(data) - 22 - begin - (second - first))
    return bytes(data[:first] + data[second:-22] + end)


def _wide(offset: int) -> Spoil:
    """With a 64-bit end whose place is given wrong by `offset`."""

    def spoil(data: bytearray) -> bytes:
        begin, entries = _entries(data)
        at, count = len(data) - 22, len(entries)
        wide = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, at - begin, begin)
        return bytes(data[:at]) + wide + struct.pack("<4sIQI", b"PK\6\7", 0, at + offset, 1) + bytes(data[at:])

    return spoil


@pytest.mark.parametrize(
    ("spoil", "failure", "message"),
    [
        pytest.param(_set(CRC, lambda crc: crc ^ 1), DamagedWheel, "checksum", id="wrong checksum"),
        pytest.param(
            _set(CRC, lambda crc: crc ^ 1, header=False), DamagedWheel, "two descriptions", id="two checksums"
        ),
        pytest.param(_set(SIZE, lambda size: size + 1, header=False), DamagedWheel, "two descriptions", id="two sizes"),
        pytest.param(
            _set(PACKED, lambda size: size - 1, header=False), DamagedWheel, "two descr", id="two packed sizes"
        ),
        pytest.param(_set(METHOD, lambda method: 0, header=False), DamagedWheel, "two sizes", id="two methods"),
        pytest.param(_set(SIZE, lambda size: 10), DamagedWheel, "size or checksum", id="larger than stated"),
        pytest.param(_set(SIZE, lambda size: size + 1), DamagedWheel, "size or checksum", id="smaller than stated"),
        pytest.param(_set(PACKED, lambda size: size - 1), DamagedWheel, "version.*no member", id="a gap"),
        pytest.param(_set(PACKED, lambda size: size + 1), DamagedWheel, "version.*overlaps", id="an overlap"),
        pytest.param(
            _set(OFFSET, lambda offset: offset + 5000), DamagedWheel, "no member|damaged", id="no header there"
        ),
        pytest.param(_set(FLAGS, lambda flags: flags | 1), DamagedWheel, "encrypted", id="encrypted"),
        pytest.param(_set(FLAGS, lambda flags: flags | 8), DamagedWheel, "not followed", id="nothing follows"),
        pytest.param(_set(FLAGS, lambda flags: flags | 0x20), DamagedWheel, "do not use", id="a patch"),
        pytest.param(_set(METHOD, lambda method: 12), DamagedWheel, "do not use", id="bzip2"),
        pytest.param(_set(NEEDS, lambda version: 46), DamagedWheel, "do not use", id="newer format"),
        pytest.param(_set(NEEDS, lambda version: 99), DamagedWheel, "download it again", id="unknown format"),
        pytest.param(_set(DISK, lambda disk: 1), DamagedWheel, "do not use", id="another disk"),
        pytest.param(lambda data: b"#!/bin/sh\n" + data, DamagedWheel, "before its begin", id="prepended"),
        pytest.param(lambda data: _moved(data, 10), DamagedWheel, "no member", id="prepended, offsets set right"),
        pytest.param(lambda data: bytes(data + b"\n"), DamagedWheel, "behind its end", id="appended"),
        pytest.param(lambda data: bytes(data + data), DamagedWheel, "before its begin", id="two wheels"),
        pytest.param(lambda data: bytes(data + data[-22:]), DamagedWheel, "does not fit", id="two ends"),
        pytest.param(lambda data: bytes(data[:-2] + b"\1\0x"), DamagedWheel, "behind its end", id="a comment"),
        pytest.param(_without_entry, DamagedWheel, "no member", id="a member that is not listed"),
        pytest.param(_wide(1), DamagedWheel, "64-bit end", id="64-bit end elsewhere"),
        pytest.param(_rename(b"torch/version.py", b"torch/vers\0on.py"), UnsafeMember, "plain UTF-8", id="NUL"),
        pytest.param(_rename(b"torch/version.py", b"torch/versi\xe9n.py"[:16]), UnsafeMember, "UTF-8", id="not UTF-8"),
    ],
)
def test_an_archive_that_contradicts_itself_is_refused(
    tmp_path: Path, spoil: Spoil, failure: type[Failure], message: str
) -> None:
    path = _wheel(tmp_path, FILES)
    _check(path)
    path.write_bytes(spoil(bytearray(path.read_bytes())))
    with pytest.raises(failure, match=message):
        _check(path)


@pytest.mark.parametrize(
    "name",
    [
        *(".", "./a", "torch/./a", "torch//a", "torch/a//", "..", "torch/..", "../a", "/a", "//a", "torch\\a", "C:\\a"),
        *("torch/\1", "torch/\n", "torch/\x7f", "torch/\x85", f"torch/{'x' * 256}", f"torch/{'é' * 128}", ""),
    ],
)
def test_a_name_that_is_none_of_a_file_in_the_wheel_is_refused(tmp_path: Path, name: str) -> None:
    path = _wheel(tmp_path, {**FILES, name: Member(b"x")})
    with pytest.raises(UnsafeMember, match="do not use this file"):
        _check(path)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFBLK, stat.S_IFCHR, stat.S_IFSOCK, stat.S_IFDIR])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: int) -> None:
    path = _wheel(tmp_path, {**FILES, "torch/x": Member(b"version.py", kind=kind)})
    with pytest.raises(UnsafeMember, match="torch/x"):
        _check(path)


METADATA, RECORD = f"{DIST_INFO}/METADATA", f"{DIST_INFO}/RECORD"


@pytest.mark.parametrize(
    ("files", "extra", "failure", "message"),
    [
        pytest.param({"torch/Version.py": Member(b"")}, "", TamperedWheel, "twice", id="names that differ in case"),
        pytest.param({"torch/version.py/x": Member(b"")}, "", UnsafeMember, "as a folder", id="file and folder"),
        pytest.param(
            {"torch/version.py/": Member(b"", kind=stat.S_IFDIR)}, "", UnsafeMember, "as a folder", id="folder"
        ),
        pytest.param({"torch/x/": Member(b"x", kind=stat.S_IFDIR)}, "", DamagedWheel, "contents", id="full folder"),
        pytest.param({"a-1.dist-info/METADATA": Member(b"")}, "", DamagedWheel, "2 dist-info", id="two dist-info"),
        pytest.param({"a-1.data/purelib/a": Member(b"")}, "", DamagedWheel, r"a-1\.data", id="data of another"),
        pytest.param({METADATA: Member(b"Name: a\nVersion: 2.13.0+cpu\n")}, "", DamagedWheel, "a 2.13", id="name"),
        pytest.param({METADATA: Member(b"Name: torch\nVersion: 2\n")}, "", DamagedWheel, "torch 2", id="version"),
        pytest.param({METADATA: Member(b"Name: torch\nVersion: x\n")}, "", DamagedWheel, "torch x", id="no version"),
        pytest.param({METADATA: Member(b"Name: torch\n")}, "", DamagedWheel, "is torch:", id="version lacks"),
        pytest.param({METADATA: Member(b"\xff")}, "", DamagedWheel, "METADATA.*UTF-8", id="METADATA not UTF-8"),
        pytest.param({f"{DIST_INFO}/WHEEL": Member(b"\xff")}, "", DamagedWheel, "WHEEL.*UTF-8", id="WHEEL not UTF-8"),
        pytest.param({f"{DIST_INFO}/WHEEL": Member(b"Tag: a-b\n")}, "", DamagedWheel, "'a-b'", id="a tag of two"),
        pytest.param({}, "/etc/passwd,sha256=x,1\n", TamperedWheel, "outside the wheel", id="absolute in RECORD"),
        pytest.param({}, "torch/version.py,sha256=x,1\n", TamperedWheel, "twice", id="twice in RECORD"),
        pytest.param({}, "a,b\n", TamperedWheel, "cannot be read", id="RECORD of two columns"),
        pytest.param({}, f'"{"x" * 200_000}",,\n', TamperedWheel, "cannot be read", id="RECORD that csv refuses"),
    ],
)
def test_contents_that_are_not_those_of_the_wheel_are_refused(
    tmp_path: Path, files: dict[str, Member], extra: str, failure: type[Failure], message: str
) -> None:
    path = _wheel(tmp_path, {**FILES, **files}, extra)
    with pytest.raises(failure, match=message):
        _check(path)


def test_a_member_with_a_second_name_is_refused(tmp_path: Path) -> None:
    """Some programs take that of the extra field."""
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("a.py")
        name = b"evil.pth"
        info.extra = struct.pack("<HHBI", 0x7075, 5 + len(name), 1, zlib.crc32(b"a.py")) + name
        archive.writestr(info, b"")
        archive.writestr("a-1.dist-info/METADATA", "Name: a\nVersion: 1\n")
    with pytest.raises(DamagedWheel, match="two descriptions that differ"):
        WheelFile(path)


def test_a_record_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = _wheel(tmp_path, FILES)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data + b"\xff,,\n" if name == RECORD else data)
    with pytest.raises(TamperedWheel, match="RECORD"):
        _check(path)


@pytest.mark.parametrize("name", ["torch-2.13.0-cp311-cp311-linux_x86_64.whl", "torch_x-2.13.0+cpu-py3-none-any.whl"])
def test_a_wheel_under_the_name_of_another_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DamagedWheel, match="dist-info.*another wheel's"):
        _check(_wheel(tmp_path, FILES).rename(tmp_path / name))


class _Pipe(io.BytesIO):
    """A file that zipfile cannot go back in, so that checksums follow the data."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError


@pytest.mark.parametrize("way", ["as it is", "64-bit end", "streamed", "64-bit sizes", "stored", "more folders"])
def test_other_ways_to_write_a_sound_wheel_pass(tmp_path: Path, way: str) -> None:
    files = dict(FILES)
    if way == "more folders":
        folder = Member(b"", kind=stat.S_IFDIR)
        files |= {"torch/": folder, "torch/empty/": folder, "torch-2.13.0.data/scripts/x": Member(b"#!python\n")}
    path = _wheel(tmp_path, files)
    data = path.read_bytes()
    if way == "64-bit end":
        path.write_bytes(_wide(0)(bytearray(data)))
    elif way != "as it is":
        written = _Pipe() if way == "streamed" else io.BytesIO()
        method = zipfile.ZIP_STORED if way == "stored" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(written, "w", method) as new:
            for name in old.namelist():
                with new.open(name, "w", force_zip64=way == "64-bit sizes") as member:
                    member.write(old.read(name))
        path.write_bytes(written.getvalue())
    _check(path)


def test_a_bomb_is_not_unpacked_beyond_its_stated_size(tmp_path: Path) -> None:
    path = _wheel(tmp_path, {**FILES, "torch/__init__.py": Member(bytes(64 << 20), listed=b"")})
    path.write_bytes(_set(SIZE, lambda size: 10)(bytearray(path.read_bytes())))
    target = tmp_path / "unpacked"
    with WheelFile(path) as wheel, pytest.raises(DamagedWheel, match="size or checksum"):
        wheel.verify(lambda name: target if name == "torch/__init__.py" else None, lambda done: None)
    assert target.stat().st_size <= 2 << 20

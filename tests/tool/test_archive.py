"""The zip writer that copies members without unpacking them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lmsbuild.errors import DamagedWheel
from lmsbuild.wheel.archive import ArchiveWriter, compressed_chunks

DATE = (2026, 1, 2, 3, 4, 6)


@dataclass(frozen=True)
class Row:
    """A member of an archive."""

    name: str
    data: bytes
    method: int
    mode: int
    date: tuple[int, int, int, int, int, int]


ROWS = (
    Row("a.txt", b"a" * 5000, zipfile.ZIP_DEFLATED, 0o100644, DATE),
    Row("bin/tool", bytes(range(256)) * 9, zipfile.ZIP_STORED, 0o100755, DATE),
    Row("ünïcode.txt", b"u", zipfile.ZIP_DEFLATED, 0o100640, DATE),
    Row("empty", b"", zipfile.ZIP_DEFLATED, 0o100644, DATE),
)
any_row = st.builds(
    Row,
    name=st.text(st.characters(exclude_categories=["C"], exclude_characters="\\"), min_size=1, max_size=20),
    data=st.binary(max_size=300) | st.builds(bytes.__mul__, st.binary(max_size=3), st.integers(0, 100_000)),
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    mode=st.integers(0, 0o777).map(lambda bits: 0o100000 | bits),
    date=st.datetimes(datetime(1980, 1, 1), datetime(2107, 12, 31))
    .map(lambda at: at.replace(second=at.second & ~1))
    .map(lambda at: (at.year, at.month, at.day, at.hour, at.minute, at.second)),
)


def _source(path: Path, rows: Sequence[Row] = ROWS) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for row in rows:
            info = zipfile.ZipInfo(row.name, row.date)
            info.external_attr = row.mode << 16
            archive.writestr(info, row.data, row.method)
    return path


def _copy_all(source: Path, target: Path) -> None:
    with zipfile.ZipFile(source) as archive, source.open("rb") as raw, target.open("wb") as file:
        writer = ArchiveWriter(file, DATE)
        for info in archive.infolist():
            writer.copy(raw, info, info.filename)
        writer.add("new.so", b"n" * 300, 0o755)
        writer.finish()


@example(rows=ROWS)
@given(rows=st.lists(any_row, max_size=6, unique_by=lambda row: row.name))
def test_copied_members_keep_contents_permissions_dates_and_compressed_bytes(
    tmp_path_factory: pytest.TempPathFactory, rows: Sequence[Row]
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    source, target = _source(folder / "a.zip", rows), folder / "b.zip"
    _copy_all(source, target)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target) as new:
        assert new.testzip() is None
        assert new.namelist() == [*old.namelist(), "new.so"]
        for before, row in zip(old.infolist(), rows, strict=True):
            after = new.getinfo(before.filename)
            assert new.read(after) == old.read(before) == row.data
            for field in ("external_attr", "date_time", "compress_type", "compress_size", "CRC"):
                assert getattr(after, field) == getattr(before, field), field
            with source.open("rb") as a, target.open("rb") as b:
                assert list(compressed_chunks(a, before)) == list(compressed_chunks(b, after))
        added = new.getinfo("new.so")
        assert (added.external_attr >> 16, added.date_time) == (0o100755, DATE)


def test_the_same_calls_give_the_same_bytes(tmp_path: Path) -> None:
    source = _source(tmp_path / "a.zip")
    for name in ("b.zip", "c.zip"):
        _copy_all(source, tmp_path / name)
    assert (tmp_path / "b.zip").read_bytes() == (tmp_path / "c.zip").read_bytes()


def test_members_whose_sizes_follow_the_data_are_copied(tmp_path: Path) -> None:
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            self.data += data
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("streamed.txt", b"s" * 4000)
        assert archive.getinfo("streamed.txt").flag_bits & 8
    source, target = tmp_path / "a.zip", tmp_path / "b.zip"
    source.write_bytes(pipe.data)
    _copy_all(source, target)
    with zipfile.ZipFile(target) as new:
        assert new.testzip() is None
        assert new.read("streamed.txt") == b"s" * 4000
        assert not new.getinfo("streamed.txt").flag_bits & 8


@pytest.mark.parametrize("damage", ["header", "end"])
def test_a_damaged_member_is_refused(tmp_path: Path, damage: str) -> None:
    source = _source(tmp_path / "a.zip")
    with zipfile.ZipFile(source) as archive:
        info = archive.getinfo("bin/tool")
    data = bytearray(source.read_bytes())
    if damage == "header":
        data[info.header_offset] ^= 0xFF
    else:
        del data[info.header_offset + 100 :]
    source.write_bytes(data)
    with source.open("rb") as file, pytest.raises(DamagedWheel, match="bin/tool"):
        list(compressed_chunks(file, info))


def test_an_archive_beyond_4_gib_is_refused() -> None:
    info = zipfile.ZipInfo("huge", DATE)
    info.CRC, info.compress_size, info.file_size = 0, 1 << 32, 1 << 32
    with pytest.raises(DamagedWheel, match="4 GiB"):
        ArchiveWriter(io.BytesIO(), DATE).copy(io.BytesIO(), info, "huge")

"""The finished wheel is read back before it is published."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

import synthetic
from lmsbuild.errors import DamagedWheel
from lmsbuild.graft import readback
from lmsbuild.graft.readback import Copied
from lmsbuild.wheel import archive
from lmsbuild.wheel import wheel as wheel_module
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.wheel import WheelFile
from synthetic import DIST_INFO, Member

CONTENTS = b"a = 1\n" * 500
FILES = {
    "torch/__init__.py": Member(CONTENTS),
    "torch/lms/__init__.py": Member(b"b = 2\n"),
    f"{DIST_INFO}/METADATA": Member(b"Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n"),
    f"{DIST_INFO}/WHEEL": Member(b"Wheel-Version: 1.0\n"),
}


def _finished(folder: Path, **changed: Member) -> Path:
    folder.mkdir(exist_ok=True)
    return synthetic.write_wheel(folder / synthetic.wheel_name(), {**FILES, **changed})


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Copied]:
    """What a wheel has of the one that it was made of."""
    base = _finished(tmp_path / "base")
    name = "torch/__init__.py"
    with WheelFile(base) as wheel:
        yield Copied(wheel, {name: name}, wheel.record())


def test_a_wheel_as_it_was_written_is_published(
    copied: Copied, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = _finished(tmp_path / "work")
    whole = finished.read_bytes()
    readback.check_and_publish(finished, copied, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == whole
    assert not finished.exists()
    assert capsys.readouterr().err.split() == ["check", "publish"]


@pytest.mark.parametrize(
    "spoil", ["a bit", "a bit of a copy", "its end", "RECORD", "a copy", "a copy's row", "a copy's name", "gone"]
)
def test_a_wheel_that_is_not_as_it_was_written_is_not_published(copied: Copied, tmp_path: Path, spoil: str) -> None:
    finished = _finished(tmp_path / "work")
    data = bytearray(finished.read_bytes())
    if spoil == "a bit":
        data[60] ^= 1
        finished.write_bytes(data)
    elif spoil == "a bit of a copy":  # in the middle of what was compressed, which is not unpacked again
        with WheelFile(finished) as wheel:
            info = wheel.members["torch/__init__.py"]
            data[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 1
        finished.write_bytes(data)
    elif spoil == "its end":
        finished.write_bytes(data[:-1])
    elif spoil == "RECORD":
        _finished(tmp_path / "work", **{"torch/lms/__init__.py": Member(b"b = 3\n", listed=b"b = 2\n")})
    elif spoil == "a copy":  # sound by its own RECORD
        _finished(tmp_path / "work", **{"torch/__init__.py": Member(b"a = 2\n" * 500)})
    elif spoil == "a copy's row":
        _finished(tmp_path / "work", **{"torch/__init__.py": Member(CONTENTS, listed=b"a = 2\n" * 500)})
    elif spoil == "a copy's name":
        copied = replace(copied, names={"torch/missing.py": "torch/__init__.py"})
    else:
        finished.unlink()
    with pytest.raises(DamagedWheel, match="not what was written, so it is not published"):
        readback.check_and_publish(finished, copied, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_only_the_file_that_was_checked_is_published(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished, other = _finished(tmp_path / "work"), _finished(tmp_path / "other")
    check = readback._check

    def check_and_swap(file: InputFile, copied: Copied) -> None:
        check(file, copied)
        other.rename(finished)

    monkeypatch.setattr(readback, "_check", check_and_swap)
    with pytest.raises(DamagedWheel, match="another file took the place"):
        readback.check_and_publish(finished, copied, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_copies_are_not_unpacked_again(copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[str] = []
    unpack = archive.unpacked_chunks

    def unpack_and_note(file: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
        unpacked.append(info.filename)
        yield from unpack(file, info)

    monkeypatch.setattr(wheel_module, "unpacked_chunks", unpack_and_note)
    readback.check_and_publish(_finished(tmp_path / "work"), copied, tmp_path / "target")
    assert "torch/lms/__init__.py" in unpacked
    assert "torch/__init__.py" not in unpacked

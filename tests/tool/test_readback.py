"""The finished wheel is read back before it is published."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import synthetic
from lmsbuild.errors import DamagedWheel
from lmsbuild.graft import readback
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.wheel import WheelFile
from synthetic import DIST_INFO, Member

FILES = {
    "torch/__init__.py": Member(b"a = 1\n" * 500),
    "torch/lms/__init__.py": Member(b"b = 2\n"),
    f"{DIST_INFO}/METADATA": Member(b"Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n"),
    f"{DIST_INFO}/WHEEL": Member(b"Wheel-Version: 1.0\n"),
}


def _finished(folder: Path, **changed: Member) -> Path:
    folder.mkdir(exist_ok=True)
    return synthetic.write_wheel(folder / synthetic.wheel_name(), {**FILES, **changed})


def _copied(path: Path) -> dict[str, zipfile.ZipInfo]:
    with WheelFile(path) as wheel:
        return {"torch/__init__.py": wheel.members["torch/__init__.py"]}


def test_a_wheel_as_it_was_written_is_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished = _finished(tmp_path / "work")
    whole = finished.read_bytes()
    readback.check_and_publish(finished, _copied(finished), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == whole
    assert not finished.exists()
    assert capsys.readouterr().err.split() == ["check", "publish"]


@pytest.mark.parametrize("spoil", ["a bit", "its end", "RECORD", "a copy", "gone"])
def test_a_wheel_that_is_not_as_it_was_written_is_not_published(tmp_path: Path, spoil: str) -> None:
    finished = _finished(tmp_path / "work")
    copied, data = _copied(finished), bytearray(finished.read_bytes())
    if spoil == "a bit":
        data[60] ^= 1
        finished.write_bytes(data)
    elif spoil == "its end":
        finished.write_bytes(data[:-1])
    elif spoil == "RECORD":
        _finished(tmp_path / "work", **{"torch/lms/__init__.py": Member(b"b = 3\n", listed=b"b = 2\n")})
    elif spoil == "a copy":  # sound by its own RECORD
        _finished(tmp_path / "work", **{"torch/__init__.py": Member(b"a = 2\n" * 500)})
    else:
        finished.unlink()
    with pytest.raises(DamagedWheel, match="not what was written, so it is not published"):
        readback.check_and_publish(finished, copied, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_only_the_file_that_was_checked_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished, other = _finished(tmp_path / "work"), _finished(tmp_path / "other")
    check = readback._check

    def check_and_swap(file: InputFile, copied: dict[str, zipfile.ZipInfo]) -> None:
        check(file, copied)
        other.rename(finished)

    monkeypatch.setattr(readback, "_check", check_and_swap)
    with pytest.raises(DamagedWheel, match="another file took the place"):
        readback.check_and_publish(finished, _copied(finished), tmp_path / "target")
    assert not (tmp_path / "target").exists()

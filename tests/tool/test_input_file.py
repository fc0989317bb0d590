"""A file that is opened once and used from then on, whatever happens under its name."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from lmsbuild.errors import NoSuchFile
from lmsbuild.wheel.input_file import InputFile

DATA = bytes(range(256)) * 10_000  # more than one chunk


def _file(folder: Path, data: bytes = DATA) -> Path:
    path = folder / "file"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = {"folder": tmp_path, "device": Path("/dev/null")}.get(kind, tmp_path / "file")
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(NoSuchFile, match=str(path)):
        InputFile(path)


@pytest.mark.parametrize("data", [b"", b"x", DATA])
def test_the_hash_and_the_copy_are_of_the_whole_file(tmp_path: Path, data: bytes) -> None:
    seen: list[int] = []
    with InputFile(_file(tmp_path, data)) as file:
        whole = file.sha256(seen.append)
        assert whole == hashlib.sha256(data).hexdigest()
        assert seen[-1:] == ([len(data)] if data else [])
        assert file.make_private(tmp_path, seen.append) == whole
        assert (file.stream().read(), file.size, seen[-1:]) == (data, len(data), [len(data)] if data else [])
        file.copy_to(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "file"]


def test_file_systems_that_cannot_copy_by_themselves_do_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    with InputFile(_file(tmp_path)) as file:
        assert file.make_private(tmp_path) == hashlib.sha256(DATA).hexdigest()
        assert file.stream().read() == DATA


def test_another_file_under_the_same_name_changes_nothing(tmp_path: Path) -> None:
    path = _file(tmp_path)
    with InputFile(path) as file:
        other = tmp_path / "other"
        other.write_bytes(b"another")
        os.replace(other, path)
        assert file.sha256() == hashlib.sha256(DATA).hexdigest()


def test_programs_get_the_same_file(tmp_path: Path) -> None:
    path = _file(tmp_path)
    with InputFile(path) as file:
        assert file.is_at(path)
        path.unlink()
        assert not file.is_at(path)
        path.write_bytes(b"another")
        assert not file.is_at(path)
        assert subprocess.run(["cat", file.for_programs], capture_output=True, check=True).stdout == DATA


def test_a_private_copy_stays_when_the_file_is_written_to(tmp_path: Path) -> None:
    path = _file(tmp_path)
    with InputFile(path) as file:
        digest = file.make_private(tmp_path)
        with path.open("r+b") as original:
            original.write(b"changed in place")
        assert file.sha256() == digest
        assert file.read_at(0, 16) == DATA[:16]


def test_streams_have_positions_of_their_own(tmp_path: Path) -> None:
    with InputFile(_file(tmp_path)) as file:
        first, second = file.stream(), file.stream()
        first.seek(-5, os.SEEK_END)
        assert (first.read(), second.read(3), second.tell()) == (DATA[-5:], DATA[:3], 3)
        first.close()
        assert second.read(2) == DATA[3:5]


def test_archives_are_read_from_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("name", DATA)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "a.zip", "name")
    with InputFile(tmp_path / "a.zip") as file, zipfile.ZipFile(file.stream()) as archive:
        assert archive.read("name") == DATA
    with InputFile(tmp_path / "a.tar.gz") as file, tarfile.open(fileobj=file.stream()) as tar:
        assert tar.getnames() == ["name"]


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    """A file size limit stands in for it, in a process of its own."""
    program = (
        "import resource, signal, sys; from pathlib import Path; from lmsbuild.wheel.input_file import InputFile\n"
        "from lmsbuild.errors import NoSpace\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: InputFile(Path(sys.argv[1])).make_private(Path(sys.argv[2]))\n"
        "except NoSpace: print('no space')"
    )
    words = [sys.executable, "-c", program, _file(tmp_path), tmp_path]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "no space\n"

"""`python -m torch.lms top`, patches/src/python/_top.py: what it reads, what it computes, and how it shows that."""

from __future__ import annotations

import argparse
import fcntl
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lmsbuild import paths

STATISTICS = ("limit_bytes", "resident_bytes.current", "allocated_bytes.current", "away_bytes.current")
COUNTERS = ("in.bytes", "out.bytes", "stall_ns")
MIB = 1 << 20


@pytest.fixture(scope="module")
def top() -> Iterator[ModuleType]:
    folder = paths.patches_folder() / "src" / "python"
    spec = importlib.util.spec_from_loader("lms_python", loader=None, is_package=True)
    assert spec is not None
    package = importlib.util.module_from_spec(spec)
    package.__path__ = [str(folder)]
    sys.modules["lms_python"] = package
    yield importlib.import_module("lms_python._top")
    for name in [name for name in sys.modules if name.startswith("lms_python")]:
        del sys.modules[name]


def page(values: dict[str, int], pid: int, device: str = "cpu", version: int = 1) -> bytes:
    """A page as a pager writes it."""
    places = "".join(f"{name} {4096 + 8 * index}\n" for index, name in enumerate(values))
    text = f"lms-statistics {version}\npid {pid}\ndevice {device}\n{places}".encode()
    return text.ljust(4096, b"\0") + b"".join(value.to_bytes(8, sys.byteorder) for value in values.values())


def publish(data: bytes, name: str = "lms-statistics") -> int:
    file = os.memfd_create(name)
    os.write(file, data)
    return file


def values(*numbers: int) -> dict[str, int]:
    return dict(zip(STATISTICS + COUNTERS, numbers, strict=True))


def own(top: ModuleType) -> dict[str, Any]:
    return {sample.device: sample for (pid, _), sample in top.samples().items() if pid == os.getpid()}


def test_the_pages_of_this_process_are_found_and_no_other_files(top: ModuleType) -> None:
    mine = values(8 * MIB, 1, 2, 3, 4, 5, 6)
    files = [
        publish(page(mine, os.getpid())),
        publish(page(values(9, 1, 2, 3, 4, 5, 6), os.getpid(), "cuda:1")),
        publish(page(mine, os.getppid(), "cuda:2")),  # the parent's, before this process has its own
        publish(page(mine, os.getpid(), "cuda:3", version=2)),  # of a later release
        publish(page(mine, os.getpid(), "cuda:4"), "another"),
        publish(b"nonsense"),
        publish(b"non\0sense"),
        publish(b""),
    ]
    try:
        found = own(top)
        assert sorted(found) == ["cpu", "cuda:1"]
        assert found["cpu"].values == mine and found["cuda:1"].values["limit_bytes"] == 9
    finally:
        for file in files:
            os.close(file)
    assert own(top) == {}


def test_rates_are_differences_by_time(top: ModuleType) -> None:
    key = (os.getpid(), "cpu")
    first = {key: top.Sample(*key, values(8 * MIB, 5, 6, 1, 100, 1000, 0), 10.0)}
    second = {key: top.Sample(*key, values(8 * MIB, 7, 9, 2, 300, 1600, 10**9), 12.0)}
    [row] = top.rows(first, second)
    assert (row.pid, row.device, row.limit, row.resident, row.allocated, row.away) == (*key, 8 * MIB, 7, 9, 2)
    assert (row.in_rate, row.out_rate, row.stall) == (100.0, 300.0, 0.5)
    assert " ".join(sys.orig_argv[1:]) in row.command
    [new] = top.rows({}, second)
    assert (new.in_rate, new.out_rate, new.stall) == (0.0, 0.0, 0.0)
    assert top.rows(second, {}) == []


def _options(top: ModuleType, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    top.add_arguments(parser)
    parser.set_defaults(parser=parser)
    return parser.parse_args(words)


@pytest.fixture
def published(top: ModuleType) -> Iterator[None]:
    file = publish(page(values(8 * MIB, 5 * MIB, 12 * MIB, 7 * MIB, 0, 0, 0), os.getpid()))
    yield
    os.close(file)


@pytest.fixture
def ledger(top: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One with two sharers, of which the first lives, as processes of other containers would."""
    module = sys.modules[f"{top.__package__}._ledger"]
    path = tmp_path / "cuda-1f-team.ledger"
    data = module._HEADER.pack(module._MAGIC, 1, 100 * MIB, 0).ljust(256, b"\0")
    for index in range(2):
        numbers = (60 * MIB, 50 * MIB, 70 * MIB, 0, 0, 0, 40 * MIB, 90 * MIB, 50 * MIB, 300 * MIB, 200 * MIB, 10**9)
        record = module._RECORD.pack(1, 7 + index, 1.0, 0, 0, 100 * MIB, *numbers, b"trainer\n")
        data += (record + module._NUMBER.pack(module._checksum(record))).ljust(256, b"\0")
    path.write_bytes(data.ljust(256 + 128 * 256, b"\0"))
    monkeypatch.setenv("LMS_SHARE", str(tmp_path))
    with path.open("r+b") as file:
        fcntl.fcntl(file, 37, module._FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 1, 1, 0))  # F_OFD_SETLK
        yield path


def test_who_shares_in_another_container(top: ModuleType, ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top.main(_options(top, "--once", "--json", "--interval", "0.01"))
    [row] = [row for row in json.loads(capsys.readouterr().out) if row["budget"] is not None]
    assert (row["pid"], row["command"], row["device"], row["budget"]) == (7, "trainer", "cuda", "cuda-1f-team")
    assert (row["limit"], row["resident"], row["share"], row["in_rate"]) == (60 * MIB, 40 * MIB, 60 * MIB, 0.0)
    top.main(_options(top, "--once", "--interval", "0.01"))
    assert "cuda-1f-team" in capsys.readouterr().out


def test_what_is_no_ledger_is_left_out(top: ModuleType, ledger: Path) -> None:
    whole = ledger.read_bytes()
    for data in (b"", whole[:300], b"x" * len(whole), whole[:260] + b"x" + whole[261:]):
        ledger.write_bytes(data)
        assert [sample for sample in top.samples().values() if sample.budget is not None] == []
    ledger.unlink()
    os.mkfifo(ledger)
    assert [sample for sample in top.samples().values() if sample.budget is not None] == []


def test_one_table(top: ModuleType, published: None, capsys: pytest.CaptureFixture[str]) -> None:
    top.main(_options(top, "--once", "--interval", "0.01"))
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == [*top._TITLES]
    [line] = [line.split() for line in lines if line.split()[0] == str(os.getpid())]
    assert line[1:9] == ["cpu", "8", "MiB", "5", "MiB", "12", "MiB", "7"]


def test_one_table_for_programs(top: ModuleType, published: None, capsys: pytest.CaptureFixture[str]) -> None:
    top.main(_options(top, "--once", "--json", "--interval", "0.01"))
    [row] = [row for row in json.loads(capsys.readouterr().out) if row["pid"] == os.getpid()]
    assert (row["limit"], row["away"], row["out_rate"], row["device"]) == (8 * MIB, 7 * MIB, 0.0, "cpu")


@pytest.mark.parametrize("rich", [True, False])
def test_it_goes_on_until_it_is_interrupted(
    top: ModuleType, published: None, rich: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.live", None)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", pause)
    monkeypatch.setattr(top, "_command", lambda pid: "train.py [/a] [red]" if pid == os.getpid() else "another")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LINES", "1000")  # for as many processes as may be there
    top.main(_options(top, "--interval", "2"))
    assert pauses == [2.0, 2.0, 2.0]
    text = capsys.readouterr().out
    assert str(os.getpid()) in text and "5 MiB" in text and "RESIDENT" in text
    assert "train.py [/a] [red]" in text


def test_a_program_that_is_an_argument_takes_one_line(top: ModuleType) -> None:
    code = "print(flush=True)\n\ninput()  # \x1b[31mred\x07"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, "a  b"], stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None and running.stdout.readline()  # before, it may be another program still
        said = top._command(running.pid)
        running.communicate(b"\n")
    assert said == f"{Path(sys.executable).name} -c print(flush=True) input() # [31mred a b"


@pytest.mark.parametrize("words", [["--json"], ["--once", "--interval", "0"]])
def test_wrong_options(top: ModuleType, words: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        top.main(_options(top, *words))
    assert raised.value.code == 2


def test_processes_that_end_meanwhile_are_left_out(top: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "12").mkdir()  # without descriptors
    (tmp_path / "self").mkdir()
    assert top.samples(str(tmp_path)) == {}

"""Work grows no faster than what it is done on: counted for n and 4n entries, without a clock. Here: wheels, and indices of them."""

from __future__ import annotations

import inspect
import itertools
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

import synthetic
import work_samples
from lmsbuild import command
from lmsbuild.ending import signals
from lmsbuild.fetch import download
from lmsbuild.graft import graft, readback
from lmsbuild.index import index
from lmsbuild.sbom import in_wheel
from lmsbuild.sbom.part import Part
from lmsbuild.trial import trial
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.wheel import WheelFile
from served import wheel
from synthetic import Member
from work import assert_linear
from workshop import Workshop

QUADRATIC = sorted({name for name, _ in inspect.getmembers(work_samples, inspect.isfunction)} - {"linear", "wait"})
Prepare = Callable[[int], Callable[[], object]]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    """New folders."""
    return (tmp_path / str(number) for number in itertools.count())


def _sample(name: str, folder: Path) -> Prepare:
    def prepare(entries: int) -> Callable[[], object]:
        names = [f"entry {number:05}" for number in range(entries)]
        file = folder / "file"
        file.write_text("x" * 1000 * entries)
        return lambda: getattr(work_samples, name)(names, file)

    return prepare


@pytest.mark.parametrize("name", QUADRATIC)
def test_what_is_quadratic_is_noticed(tmp_path: Path, name: str) -> None:
    with pytest.raises(AssertionError, match="of 2, 20 and 80 entries: "):
        assert_linear(_sample(name, tmp_path), 20)


def test_what_is_linear_passes(tmp_path: Path) -> None:
    assert_linear(_sample("linear", tmp_path), 20)


def test_futures_that_are_waited_for() -> None:
    """Each is done when the one before it was taken, so that the order is the same in every run."""

    def run(futures: list[Future[None]]) -> None:
        futures[0].set_result(None)
        for after, _ in enumerate(signals.completed(futures), start=1):
            if after < len(futures):
                futures[after].set_result(None)

    assert_linear(lambda entries: partial(run, [Future() for _ in range(entries)]), 50)


def test_calls_side_by_side() -> None:
    def prepare(entries: int) -> Callable[[], object]:
        return partial(command.call_all, [lambda: None] * entries, 2, lambda done: None)

    assert_linear(prepare, 100)


def test_programs_side_by_side(tmp_path: Path) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        return partial(command.run_all, [["true"]] * entries, folder=tmp_path, on_finish=lambda done: None)

    assert_linear(prepare, 8)


def _members(entries: int) -> dict[str, Member]:
    """Files, two in a folder, each of some kB that do not compress."""
    return {
        f"torch/part{number // 2:03}/module{number:04}.py": Member(random.Random(number).randbytes(4000))
        for number in range(entries)
    }


def _open(path: Path) -> None:
    with WheelFile(path):
        pass


def _verify(path: Path, folder: Path) -> None:
    with WheelFile(path) as file:
        file.verify(lambda name: folder / name, lambda done: None)


def _check(path: Path, folder: Path) -> None:
    """As `lmsbuild try` does."""
    folder.mkdir()
    trial._checked(path, folder)


def _check_known(path: Path, folder: Path) -> None:
    folder.mkdir()
    known = download.Release("torch", "2.13.0", {})
    with InputFile(path) as file:
        download.check_known(known, file, folder)


def _read_back(path: Path, folder: Path) -> None:
    folder.mkdir()
    with WheelFile(path) as file:
        record = file.record()
        copied = readback.Copied(file, {name: name for name in record if not name.endswith("/RECORD")}, record)
        readback.check_and_publish(path, copied, folder / path.name)


def _add_sbom(path: Path, folder: Path) -> None:
    folder.mkdir()
    in_wheel.add(path, folder / path.name, synthetic.TARGET, [Part("torch")])


@pytest.mark.parametrize(
    "run",
    [lambda path, folder: _open(path), _verify, _check, _check_known, _read_back, _add_sbom],
    ids=["open", "verify", "try", "hash", "read back", "sbom"],
)
def test_a_wheel_of_many_members(places: Iterator[Path], run: Callable[[Path, Path], None]) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        return partial(run, wheel(next(places), files=_members(entries)), next(places))

    assert_linear(prepare, 30, sorts=True)


def _deep(folder: Path, entries: int) -> Path:
    """A wheel with one member, in a folder in a folder and so on."""
    return wheel(folder, files={f"torch/{'a/' * entries}b": Member(b"")})


def _with_extra_fields(folder: Path, entries: int) -> Path:
    """A wheel whose member has that many extra fields, of programs that nobody knows."""
    made = wheel(folder)
    with zipfile.ZipFile(made) as old:
        contents = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(made, "w") as new:
        for name, data in contents.items():
            info = zipfile.ZipInfo(name)
            info.extra = b"".join(struct.pack("<2H", 0x8000 + number, 0) for number in range(entries))
            new.writestr(info, data)
    return made


@pytest.mark.parametrize("write", [_deep, _with_extra_fields])
def test_a_member_with_much_in_its_header(places: Iterator[Path], write: Callable[[Path, int], Path]) -> None:
    assert_linear(lambda entries: partial(_open, write(next(places), entries)), 300)


def test_the_graft_of_many_members(workshop: Workshop, stand_in: dict[str, Member], places: Iterator[Path]) -> None:
    """Patched, compiled, written and read back; the programs that this takes are as many for any number."""

    def prepare(entries: int) -> Callable[[], object]:
        folder = next(places)
        folder.mkdir()
        base = synthetic.write_wheel(folder / synthetic.wheel_name(), {**stand_in, **_members(entries)})
        return partial(graft.build, workshop.options(base_wheel=base, output=folder / "dist"))

    assert_linear(prepare, 30, sorts=True)


def _wheels(folder: Path, entries: int) -> list[Path]:
    return [wheel(folder, version=f"1.{1000 + number}") for number in range(entries)]


@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
def test_an_index_that_gets_many_wheels(places: Iterator[Path], monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    """But for what is done within each. They are given, or were put there by other means."""
    monkeypatch.setattr(WheelFile, "verify", lambda *arguments: {})

    def prepare(entries: int) -> Callable[[], object]:
        folder, elsewhere = next(places), next(places)
        wheels = _wheels(elsewhere if given else folder, entries)
        return partial(index.publish, folder, wheels if given else [])

    assert_linear(prepare, 30)


def test_an_index_that_gets_nothing_new(places: Iterator[Path]) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        folder = next(places)
        index.publish(folder, _wheels(next(places), entries))
        return partial(index.publish, folder)

    assert_linear(prepare, 12, sorts=True)


def test_an_index_that_gets_one_more_wheel(places: Iterator[Path]) -> None:
    """Of those that it has none is read, nor is a program started."""

    def prepare(entries: int) -> Callable[[], object]:
        folder = next(places)
        index.publish(folder, _wheels(next(places), entries))
        return partial(index.publish, folder, [wheel(next(places), version="2.0")])

    assert_linear(prepare, 12, sorts=True)


def test_an_index_that_gets_a_wheel_of_many_members(places: Iterator[Path]) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        return partial(index.publish, next(places), [wheel(next(places), files=_members(entries))])

    assert_linear(prepare, 30, sorts=True)

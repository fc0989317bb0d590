"""Work grows no faster than what it is done on. Here: channels of many packages, and packages of many files."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import raw_packages as raw
import small_wheels
from lmsbuild import paths
from lmsbuild.bases import framework_package
from lmsbuild.channel import attestations, audit, channel, index, inspection, repair
from lmsbuild.conda import package_file, reproducible
from lmsbuild.conda.platforms import find_platform
from lmsbuild.conda.requirements import read_providers
from lmsbuild.conda.tree import unpack
from lmsbuild.conda.variants import layout
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.wheel import WheelFile, parse_name
from stand_ins import SUBDIR
from work import assert_linear

RECIPES = paths.recipes_folder()
SITE = "lib/python3.11/site-packages"


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    """New folders."""
    return (tmp_path / str(number) for number in itertools.count())


def _package(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"raw-{version}-0.tar.bz2"
    rows = [raw.file("share/file")]
    path.write_bytes(raw.build_old(rows, raw.tables(rows, {**raw.INDEX, "version": version})))
    return path


def _packages(folder: Path, entries: int) -> list[Path]:
    return [_package(folder, f"1.{1000 + number}") for number in range(entries)]


def _published(places: Iterator[Path], entries: int) -> Path:
    folder = next(places)
    _packages(folder / SUBDIR, entries)
    channel.publish(folder, [])
    return folder


def _check(folder: Path) -> None:
    assert audit.check(folder, RECIPES) > 0


def _spoilt(folder: Path, entries: int) -> Path:
    """A channel with packages that are none, beside their attestations."""
    (folder / SUBDIR).mkdir(parents=True)
    for number in range(entries):
        package = folder / SUBDIR / f"raw-1.{1000 + number}-0.conda"
        package.write_bytes(b"")
        attestations.beside(package).write_bytes(b"")
    return folder


def test_a_channel_that_gets_many_packages(places: Iterator[Path]) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        return partial(channel.publish, next(places), _packages(next(places), entries))

    assert_linear(prepare, 10, sorts=True)


def test_a_channel_that_gets_one_more_package(places: Iterator[Path]) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        folder = _published(places, entries)
        return partial(channel.publish, folder, [_package(next(places), "2.0")])

    assert_linear(prepare, 12, sorts=True)


@pytest.mark.parametrize("run", [partial(channel.publish, packages=[]), _check, repair.repair])
def test_a_channel_of_many_packages(places: Iterator[Path], run: Callable[[Path], object]) -> None:
    assert_linear(lambda entries: partial(run, _published(places, entries)), 12, sorts=True)


def test_the_repair_of_many_packages(places: Iterator[Path]) -> None:
    assert_linear(lambda entries: partial(repair.repair, _spoilt(next(places), entries)), 50, sorts=True)


def _part(entries: int) -> index.Part:
    """Packages each of which requires one build of another, as `pytorch-cpu` does."""
    records = {}
    for number in range(1000, 1000 + entries):
        common = {"version": f"1.{number}", "build": "0", "build_number": 0, "subdir": SUBDIR}
        records[f"one-1.{number}-0.conda"] = {**common, "name": "one", "depends": []}
        needs = [f"one ==1.{number} 0"]
        records[f"other-1.{number}-0.conda"] = {**common, "name": "other", "depends": needs}
        records[f"another{number:04}-1.{number}-0.conda"] = {**common, "name": f"another{number:04}", "depends": needs}
    return index.Part(SUBDIR, records, {file: index.facts({}) for file in records})


@pytest.mark.parametrize("run", [index.tables, lambda part: index.channeldata([part])], ids=["tables", "channeldata"])
def test_the_index_of_many_packages(run: Callable[[index.Part], object]) -> None:
    assert_linear(lambda entries: partial(run, _part(entries)), 60)


def test_the_requirements_of_many_packages() -> None:
    def prepare(entries: int) -> Callable[[], object]:
        part = _part(entries)
        assert len(part.packages) == 3 * entries
        return lambda: list(audit._check_dependencies([part]))

    assert_linear(prepare, 100)


def test_many_attestations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for reading them, which takes much for each."""

    def prepare(entries: int) -> Callable[[], object]:
        bundles = [{"dsseEnvelope": {"payload": str(number)}} for number in range(2 * entries)]
        known = json.dumps(bundles[:entries]).encode()
        record = {"sha256": "0" * 64, attestations.KEY: hashlib.sha256(known).hexdigest()}
        package, given = tmp_path / "raw.conda", tmp_path / "given.sigs"
        found = {
            given: (bundles[entries:], b""),
            attestations.kept(package, record[attestations.KEY]): (bundles[:entries], known),
        }
        monkeypatch.setattr(attestations, "_read", lambda path, sha256: found[path])
        return partial(attestations.joined, package, record, given)

    assert_linear(prepare, 100)


def _large(folder: Path, entries: int) -> Path:
    """A package of many files, and of links to each of them."""
    folder.mkdir()
    files = [raw.file(f"share/part{number // 2:03}/file{number:04}") for number in range(entries)]
    links = [raw.link(f"share/part{number // 2:03}/link{number:04}", f"file{number:04}") for number in range(entries)]
    path = folder / f"{raw.NAME}.conda"
    path.write_bytes(raw.build([*files, *links]))
    return path


def _inspect(path: Path) -> None:
    with package_file.opened(path) as package:
        inspection.sound(package)


def _rewrite(path: Path) -> None:
    reproducible.rewrite(path, path.with_name("rewritten"), 0, 1, 1, {})


def _publish(path: Path) -> None:
    channel.publish(path.with_name("channel"), [path])


@pytest.mark.parametrize("run", [_inspect, _rewrite, _publish])
def test_a_package_of_many_files(places: Iterator[Path], run: Callable[[Path], None]) -> None:
    assert_linear(lambda entries: partial(run, _large(next(places), entries)), 40, sorts=True)


def _as_wheel(path: Path, folder: Path) -> None:
    folder.mkdir()
    with InputFile(path) as file:
        platform = find_platform(RECIPES, SUBDIR)
        framework_package.as_wheel([file], "torch", "torch/lib", "1.0", platform, folder)


def test_a_package_of_many_files_as_a_base(places: Iterator[Path]) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        folder = next(places)
        folder.mkdir()
        rows = [raw.file(f"{SITE}/torch/file{number:04}.py") for number in range(entries)]
        rows.append(raw.file(f"{SITE}/torch-1.0.dist-info/METADATA"))
        path = folder / f"{raw.NAME}.conda"
        path.write_bytes(raw.build(rows))
        return partial(_as_wheel, path, next(places))

    assert_linear(prepare, 30, sorts=True)


@pytest.mark.parametrize("chained", [False, True], ids=["nowhere", "chained"])
def test_many_links_of_a_base(tmp_path: Path, chained: bool) -> None:
    """Beside many files: such as lead nowhere, and such as lead to the next one, and the last to a file."""

    def prepare(entries: int) -> Callable[[], object]:
        files = {f"share/file{number:04}": tmp_path for number in range(entries)} | {f"link{entries:04}": tmp_path}
        target = "link{:04}" if chained else "nowhere{:04}"
        links = {
            f"link{number:04}": (target.format(number + 1), target.format(number + 1)) for number in range(entries)
        }
        contents = framework_package._Contents(files, links)
        return lambda: [framework_package._behind(contents, name) for name in links]

    assert_linear(prepare, 50, sorts=True)


def test_a_wheel_of_many_files_as_an_environment_has_it(places: Iterator[Path]) -> None:
    own, providers = {"torch/version.py": b"", "torch/lms/__init__.py": b""}, read_providers(RECIPES)

    def prepare(entries: int) -> Callable[[], object]:
        folder = next(places)
        folder.mkdir()
        files = {f"torch/part{number // 2:03}/file{number:04}.py": b"" for number in range(entries)}
        path = small_wheels.write(folder, own=own, files=files)
        target = layout(parse_name(path), path.name, RECIPES)

        def run() -> None:
            with WheelFile(path) as wheel:
                unpack(wheel, target, providers, next(places))

        return run

    assert_linear(prepare, 30, sorts=True)

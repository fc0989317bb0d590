"""Work grows no faster than what it is done on. Here: catalogues, and what is built or checked of all their tags."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

import synthetic
from lmsbuild import paths
from lmsbuild.catalogue import catalogue, rows
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.cli import cli
from lmsbuild.matrix import build_all, local, matrix
from lmsbuild.matrix.matrix import Filters, Row
from lmsbuild.patch import generate
from lmsbuild.tag import check_tags, platform_table, release
from work import assert_linear
from workshop import Workshop

RECIPES = paths.recipes_folder()
BUILD = """[[build]]
tag = "v3.{number}.0"
machine = "ppc64le"
python = "3.11"
suite = "bookworm"
architecture = "ppc64el"
license = "BSD-3-Clause"
"""
LISTS = ("needs", "requires", "framework", "headers", "without", "beside", "unused", "texts")


def _tags(pattern: Tag, entries: int) -> list[Tag]:
    found = []
    for number in range(entries):
        version = f"3.{1000 + number}.0"
        known = {synthetic.wheel_name(version, abi): "0" * 64 for abi in ("cp311", "cp312")}
        found.append(replace(pattern, name=f"v{version}", version=version, commit=f"{number:040x}", wheels=known))
    return found


Make = Callable[[int], Path]


@pytest.fixture
def made(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a folder of patches whose catalogue has so many tags, each of which Debian builds, too: the tool's own from then on."""
    places = (tmp_path / f"patches{number}" for number in itertools.count())

    def make(entries: int) -> Path:
        patches = next(places)
        shutil.copytree(workshop.patches, patches)
        folder, tags = patches / "catalogue/pytorch", _tags(workshop.tag, entries)
        (folder / "tags.toml").write_text(f'package = "torch"\n\n{rows.text(tags)}')
        for tag in tags:
            shutil.copytree(workshop.patches / "pytorch/v2.13.0", patches / "pytorch" / tag.name, symlinks=True)
        lists = "".join(f'{key} = ["a"]\n' for key in LISTS)
        (folder / "debian.toml").write_text(
            "\n".join(BUILD.format(number=1000 + each) + lists for each in range(entries))
        )
        monkeypatch.setattr(paths, "patches_folder", lambda: patches)
        return patches

    return make


def _find(patches: Path) -> None:
    catalogue.find_tag(patches, catalogue.tags(patches)[-1].name)


def _not_found(patches: Path) -> None:
    with pytest.raises(catalogue.UnknownTag):
        catalogue.find_tag(patches, "v4.0.0")


def _write(patches: Path) -> None:
    rows.write(patches, catalogue.tags(patches)[0])


def _select(patches: Path) -> None:
    matrix.document(matrix.select(patches, RECIPES, Filters(platforms=("linux-64",))))


def _shard(patches: Path) -> None:
    matrix.select(patches, RECIPES, Filters(shard="1/2"))


def _series(patches: Path) -> None:
    generate.write(generate.series(patches, "pytorch"))


def _missing(patches: Path) -> None:
    generate.missing_hooks(patches, ["pytorch"])


@pytest.mark.parametrize(
    "run",
    [catalogue.tags, _find, _not_found, _write, _select, _shard, platform_table.text, _series, _missing],
    ids=["read", "find", "not found", "write", "matrix", "shard", "table", "series", "hooks"],
)
def test_a_catalogue_of_many_tags(made: Make, run: Callable[[Path], object]) -> None:
    assert_linear(lambda entries: partial(run, made(entries)), 8, sorts=True)


def test_the_list_of_many_tags(made: Make) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        made(entries)
        return partial(CliRunner().invoke, cli, ["list"], catch_exceptions=False)

    assert_linear(prepare, 8, sorts=True)


def test_a_tag_of_many_wheels(workshop: Workshop) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        known = {synthetic.wheel_name("2.13.0", f"cp3{100 + number}"): "0" * 64 for number in range(entries)}
        tag = replace(workshop.tag, wheels=known)
        return lambda: (tag.interpreters, tag.machines, catalogue.of_package(tag, "torch"))

    assert_linear(prepare, 30, sorts=True)


def _rows(entries: int) -> list[Row]:
    """Packages and the wheels that they are made of; every third wheel is alone."""
    found = [Row("pytorch", f"v2.{1000 + number}.0", "torch", "3.12", "linux-64", "wheel") for number in range(entries)]
    return [each for row in found for each in (row, *([replace(row, kind="conda")] if len(row.tag) % 3 else []))]


def test_shards_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "MOST_JOBS", 8)
    assert_linear(lambda entries: partial(matrix.shards_needed, _rows(entries)), 100)


def test_many_rows_that_may_be_up_to_date(made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each is made from is found out, and none is built."""
    monkeypatch.setattr(local, "build", lambda jobs, at_once, shown: iter(()))

    def prepare(entries: int) -> Callable[[], object]:
        asked = build_all.Options(matrix.select(made(entries), RECIPES, Filters()), tmp_path / "dist", 1, None, ())
        return partial(build_all.build, asked)

    assert_linear(prepare, 4, sorts=True)


def test_the_check_of_many_tags(workshop: Workshop, made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what is read, patched and compiled of each wheel."""
    checked: list[str] = []
    base = workshop.cache / "kept" / workshop.base.name
    base.parent.mkdir(parents=True)
    shutil.copy(workshop.base, base)
    monkeypatch.setattr(check_tags.download, "fetch", lambda tag, target, cache: base)
    monkeypatch.setattr(check_tags.download, "check_known", lambda tag, file: None)
    monkeypatch.setattr(check_tags.graft, "edited_members", lambda patches, tag: {})
    monkeypatch.setattr(check_tags.graft, "compile_graft", lambda options, *others: checked.append(options.tag.name))
    monkeypatch.setattr(check_tags.generate, "hook", lambda patches, tag, originals: {})

    def prepare(entries: int) -> Callable[[], object]:
        patches = made(entries)
        generate.write(generate.series(patches, "pytorch"))
        known = catalogue.tags(patches)
        by_name = {tag.name: tag for tag in known}
        monkeypatch.setattr(release, "read", lambda patches, framework, name, *others: by_name[name])
        return partial(check_tags.check, known, patches, workshop.cache, smoke=False)

    assert_linear(prepare, 4)
    assert len(checked) == 2 + 2 + 4 + 16


def test_what_the_check_says_of_many_tags(workshop: Workshop) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        results = [check_tags.Result(tag, "cp312", "", False, False, 0) for tag in _tags(workshop.tag, entries)]
        return partial(check_tags.table, results, check_tags.table(results))

    assert_linear(prepare, 30, sorts=True)

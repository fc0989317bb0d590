"""Work grows no faster than what it is done on. Here: repositories of git's that others made, and upstream's trees."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import upstream
from lmsbuild.catalogue.catalogue import Tag
from lmsbuild.patch import edits
from lmsbuild.patch.patch import apply_to_checkout, apply_to_folder, read_patch
from lmsbuild.source import foreign, source, submodules
from upstream import git
from work import assert_linear, count

TAG = "v9.0.0"
URL = "https://nowhere.invalid"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """New folders, in which nothing of the user's settings counts."""
    (tmp_path / "gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@localhost\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return (tmp_path / str(number) for number in itertools.count())


def _files(entries: int) -> dict[str, bytes]:
    return {f"part{number // 2:03}/file{number:04}.txt": f"{number:04}\n".encode() for number in range(entries)}


def _checkout(folder: Path, entries: int) -> Path:
    upstream.commit(folder, "base", {"file.txt": b"before\n", **_files(entries)})
    return folder


def _patch(folder: Path, edited: dict[str, bytes], changed: dict[str, bytes]) -> Path:
    """A patch with these changes, as a file."""
    upstream.commit(folder, "base", edited)
    upstream.commit(folder, "change", changed)
    git(folder, "format-patch", "-q", "--full-index", "--no-renames", "-1")
    return folder / "0001-change.patch"


def test_a_checkout_of_many_files(places: Iterator[Path]) -> None:
    """No program runs for one of them, and none of them is read by the tool."""
    file = _patch(next(places), {"file.txt": b"before\n"}, {"file.txt": b"after\n", "new.txt": b"new\n"})
    patch = read_patch("the patch", [file])

    def prepare(entries: int) -> Callable[[], object]:
        return partial(apply_to_checkout, patch, _checkout(next(places), entries))

    assert_linear(prepare, 40)


@pytest.mark.parametrize("to_checkout", [True, False], ids=["checkout", "folder"])
def test_a_patch_of_many_files(places: Iterator[Path], to_checkout: bool) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        before = {name: b"before\n" + data for name, data in _files(entries).items()}
        after = {name: b"after\n" + data for name, data in _files(entries).items()}
        added = {f"new/{name}": data for name, data in after.items()}
        patch = read_patch("the patch", [_patch(next(places), before, {**after, **added})])
        folder = next(places)
        upstream.commit(folder, "base", before)
        return partial(apply_to_checkout if to_checkout else apply_to_folder, patch, folder)

    assert_linear(prepare, 10)


def _many_settings(folder: Path, entries: int) -> None:
    with (folder / ".git/config").open("a") as settings:
        settings.writelines(f'[filter "own{number:04}"]\n\tclean = false\n' for number in range(entries))


def _many_included(folder: Path, entries: int) -> None:
    """Of each file of settings a program asks what it includes, since only git reads it as git does."""
    for number in range(entries):
        (folder / f".git/more{number:04}").write_text("")
    with (folder / ".git/config").open("a") as settings:
        settings.writelines(f"[include]\n\tpath = more{number:04}\n" for number in range(entries))


def _many_lenders(folder: Path, entries: int) -> None:
    """Folders of objects that the repository refers to."""
    lenders = [folder.parent / f"{folder.name}-{number:04}" for number in range(entries)]
    for lender in lenders:
        lender.mkdir()
    (folder / ".git/objects/info").mkdir(exist_ok=True)
    (folder / ".git/objects/info/alternates").write_text("".join(f"{lender}\n" for lender in lenders))


def _many_objects(folder: Path, entries: int) -> None:
    for number in range(entries):
        (folder / f".git/objects/{number % 10:02}").mkdir(exist_ok=True)
        (folder / f".git/objects/{number % 10:02}/{number:038}").write_bytes(b"")


@pytest.mark.parametrize("add", [_many_settings, _many_included, _many_lenders, _many_objects])
def test_a_repository_of_others(places: Iterator[Path], add: Callable[[Path, int], None]) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        folder = _checkout(next(places), 1)
        add(folder, entries)

        def check() -> None:
            repository = foreign.find(folder)
            assert repository
            foreign.check_files(repository)
            foreign.check_owner(repository)
            foreign.disarmed(git(folder, "config", "--null", "--name-only", "--list").encode())

        return check

    assert_linear(prepare, 6 if add is _many_included else 40)


def test_attributes_of_many_folders(tmp_path: Path) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        return partial(foreign.check_attributes, tmp_path, [f"a/b/c{number:04}/d/e" for number in range(entries)])

    assert_linear(prepare, 20)


def test_attributes_in_a_path_that_nothing_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up index may have one of any length: what is beyond the longest costs nothing."""
    monkeypatch.setattr(foreign, "_LONGEST", 80)
    longest, longer = (count(partial(foreign.check_attributes, tmp_path, ["a/" * deep])) for deep in (40, 4000))
    assert longer.steps < longest.steps * 1.1 + 1000


def _site(places: Iterator[Path], files: int, modules: int) -> source.Options:
    """A clone with so many files and submodules, and the order for a tree of it."""
    part, clone, catalogue = next(places), next(places), next(places)
    commit = upstream.commit(part, "part", {"part.h": b""})
    names = [f"third_party/part{number:04}" for number in range(modules)]
    text = "".join(f'[submodule "{name}"]\n\tpath = {name}\n\turl = {URL}/{name}\n' for name in names)
    upstream.commit(clone, "base", {".gitmodules": text.encode(), **_files(files)})
    for name in names:
        git(clone, "clone", "-q", "--bare", part, clone / ".git/modules" / name)
        git(clone, "update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
    git(clone, "commit", "-qm", "release", "--allow-empty")
    git(clone, "tag", TAG)
    found = git(clone, "rev-parse", "HEAD").strip()
    (catalogue / "catalogue/x").mkdir(parents=True)
    (catalogue / "catalogue/x/source.toml").write_text('repository = "nowhere.invalid/x"\nfolders = ["part0"]\n')
    nothing = dict.fromkeys(("cuda", "abi", "standard", "generation", "trained"), "")
    known = {"package": "x", "packages": ("x",), "framework": "x", "name": TAG, "version": TAG[1:]}
    tag = Tag(**known, **nothing, commit=found, supports=(), wheels={}, blobs={}, records={})
    return source.Options(tag, catalogue, next(places), next(places), str(clone), whole=True)


def test_the_source_of_many_files(places: Iterator[Path]) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        return partial(source.obtain, _site(places, entries, 0))

    assert_linear(prepare, 20)


def test_the_source_out_of_the_cache(places: Iterator[Path]) -> None:
    def prepare(entries: int) -> Callable[[], object]:
        options = _site(places, entries, 0)
        source.obtain(options)
        return partial(source.obtain, replace(options, tree=next(places)))

    assert_linear(prepare, 20)


def test_the_source_of_many_submodules(places: Iterator[Path]) -> None:
    """Each takes programs, but as many as in a tree with few."""

    def prepare(entries: int) -> Callable[[], object]:
        return partial(source.obtain, _site(places, 1, entries))

    assert_linear(prepare, 2, few=1)


def test_names_of_many_submodules() -> None:
    def prepare(entries: int) -> Callable[[], object]:
        return partial(submodules._check_names, [f"third_party/part{number:04}" for number in range(entries)])

    assert_linear(prepare, 100)


def test_edits_of_many_files() -> None:
    def prepare(entries: int) -> Callable[[], object]:
        asked = [edits.Edit(f"file{number:04}", "", "line\n", "", "more\n", "", "") for number in range(entries)]
        return partial(edits.apply_edits, asked, {edit.path: b"line\nother\n" for edit in asked})

    assert_linear(prepare, 20)

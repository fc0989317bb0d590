"""The submodules of a tree, all the way down: each is a repository of our own, at the commit that the tree names.

`git submodule update` would go by settings and folders of the clone that a tree is made from, and copy its objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from lmsbuild import command
from lmsbuild.errors import SourceIncomplete, SourceUnreachable, UnsafeSource
from lmsbuild.source import address, foreign, repository

_AT_ONCE = 4  # connections
_MODE = "160000"  # of a submodule in a listing
_HINT = (
    "They come from where .gitmodules says, or out of the clone that --source names; git's setting url.<base>.insteadOf "
    "sends it elsewhere"
)


@dataclass(frozen=True)
class Source:
    """Where the submodules of one tree come from."""

    address: str  # of the tree's own repository, to which addresses are relative
    modules: tuple[Path, ...]  # folders of a repository on this machine with those that it has
    alone: bool  # whether they come from these folders alone


@dataclass(frozen=True)
class _Submodule:
    name: str
    path: str
    url: str  # as .gitmodules says
    commit: str


@dataclass(frozen=True)
class _Tree:
    """A checkout of our own, and where its submodules come from."""

    folder: Path
    git: Path
    source: Source


def fetch(tree: Path, source: Source, scratch: Path) -> None:
    """Brings in the submodules of a checkout of our own. Raises SourceIncomplete, UnsafeSource or NoSpace."""
    trees = [_Tree(tree, tree / ".git", source)]
    while trees:
        wanted = [(above, each) for above in trees for each in _listed(above)]
        trees = command.call_all(
            [partial(_bring, above, each, scratch) for above, each in wanted], _AT_ONCE, lambda done: None
        )
        for above, each in wanted:  # not side by side, since git locks its settings
            url = address.resolved(above.source.address, each.url)
            repository.checked(above.folder, "config", f"submodule.{each.name}.url", url)


def missing(tree: Path) -> list[str]:
    """The submodules that are not there, or not at the commit that the tree names."""
    listed = repository.run(tree, "submodule", "status", "--recursive")
    return [line.split()[1] for line in listed.text.splitlines() if not line.startswith(" ")]


def _listed(tree: _Tree) -> list[_Submodule]:
    """The submodules that the tree names. Raises SourceIncomplete or UnsafeSource."""
    commits = {}
    for line in repository.checked(tree.folder, "ls-tree", "-r", "-z", "HEAD").output.split(b"\0"):
        described, _, path = os.fsdecode(line).partition("\t")
        if described.startswith(_MODE):
            commits[path] = described.split()[2]
    if not commits:
        return []
    words = ("config", "--blob", "HEAD:.gitmodules", "--no-includes", "--null", "--get-regexp", r"^submodule\.")
    stated: dict[str, dict[str, str]] = {}
    for entry in os.fsdecode(repository.run(tree.folder, *words).output).split("\0"):
        key, _, value = entry.partition("\n")
        name, _, what = key.removeprefix("submodule.").rpartition(".")
        stated.setdefault(name, {})[what] = value
    names = {values["path"]: name for name, values in stated.items() if "path" in values}
    for path in commits:
        if "url" not in stated.get(names.get(path, ""), {}):
            raise SourceIncomplete(
                f"{tree.folder / path} is to be a submodule, but .gitmodules does not say where it is"
            )
    found = [_Submodule(names[path], path, stated[names[path]]["url"], commit) for path, commit in commits.items()]
    _check_names([each.name for each in found])
    _check_names([each.path for each in found])
    for each in found:
        if not address.is_relative(each.url):
            address.protocol(each.url)
    return found


def _check_names(names: Iterable[str]) -> None:
    """Raises UnsafeSource for a folder that would not be below its own, not git's, or within that of another."""
    folders: set[PurePosixPath] = set()
    for name in names:
        parts = name.split("/")
        if name.startswith("-") or not name.isprintable() or "\\" in name or {"", ".", ".."} & {*parts}:
            raise UnsafeSource(f"a submodule has the name or path {name!r}, which git would take for something else")
        if ".git" in name.lower().split("/"):
            raise UnsafeSource(f"a submodule has the name or path {name!r}, which would be among git's own files")
        folders.add(PurePosixPath(name))
    for folder in folders:
        for outer in folders.intersection(folder.parents):
            raise UnsafeSource(f"the submodules {str(outer)!r} and {str(folder)!r} would lie one within the other")


def _bring(above: _Tree, wanted: _Submodule, scratch: Path) -> _Tree:
    folder = above.folder / wanted.path
    for parent in (folder, *folder.parents):
        if parent == above.folder:
            break
        if parent.is_symlink():
            raise UnsafeSource(f"the submodule {wanted.path} would be written through the link {parent}")
    git = above.git / "modules" / wanted.name
    url = address.resolved(above.source.address, wanted.url)
    kept = _kept(above.source, wanted)
    try:
        place = _place(above.source, wanted, url, kept, scratch)
        _make(folder, git, url, place, wanted.commit)
    except SourceUnreachable as error:
        raise SourceIncomplete(f"the submodule {wanted.path} cannot be had: {error}. {_HINT}") from error
    modules = kept.modules if kept else ()
    return _Tree(folder, git, Source(url, modules, above.source.alone))


def _kept(source: Source, wanted: _Submodule) -> foreign.Repository | None:
    found = (foreign.find(folder / wanted.name) for folder in source.modules)
    return next((each for each in found if each), None)


def _place(
    source: Source, wanted: _Submodule, url: str, kept: foreign.Repository | None, scratch: Path
) -> repository.Place:
    if kept:
        foreign.check_files(kept)
        place = repository.lent(kept, str(kept.git), scratch)
        if source.alone or repository.has(place, wanted.commit):
            return place
    if source.alone:
        raise SourceUnreachable("it is not there")
    if not address.is_relative(wanted.url) and address.protocol(wanted.url) not in address.SUBMODULES:
        raise UnsafeSource(
            f".gitmodules has the submodule {wanted.path} come from {wanted.url}, which is not https: give a clone that has "
            "the submodules with --source"
        )
    return repository.locate(url, url, scratch)


def _make(folder: Path, git: Path, url: str, place: repository.Place, commit: str) -> None:
    """Makes the checkout `folder`, whose repository is at `git`. Raises SourceUnreachable."""
    git.parent.mkdir(parents=True, exist_ok=True)
    repository.create(folder, f"--separate-git-dir={git}")
    # As git does, so that the tree can be moved.
    (folder / ".git").write_text(f"gitdir: {os.path.relpath(git, folder)}\n")
    repository.checked(folder, "config", "core.worktree", os.path.relpath(folder, git))
    repository.without_filters(git)
    repository.checked(folder, "remote", "add", "origin", place.url)
    for step in (repository.fetch, repository.check_out):
        done = step(folder, place, commit)
        if done.code:
            raise SourceUnreachable(repository.reason(done, place))
    repository.checked(folder, "remote", "set-url", "origin", url)

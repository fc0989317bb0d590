"""Gets upstream's source tree at a tag: from git, and where Debian has the tag, from its archive when git cannot.

A tree from git is the catalogue's commit, or there is no tree. What was fetched once is kept in the cache, as the
folder `.git` of a finished tree, so that the next time needs no network: it is fetched from there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild import git_command, report
from lmsbuild.catalogue.catalogue import Tag, read_toml
from lmsbuild.errors import (
    FolderInUse,
    NoSuchFile,
    NoSuchRevision,
    SourceIncomplete,
    SourceUnreachable,
    UnsafeSource,
    WrongCommit,
    disk_failures,
)
from lmsbuild.lock import locked
from lmsbuild.source import address as addresses
from lmsbuild.source import debian, foreign, repository, submodules
from lmsbuild.workspace import workspace

DEBIAN = "debian"  # as --source takes it; a folder of that name is ./debian

_IDENTITY = {"user.name": "lmsbuild", "user.email": "lmsbuild@localhost"}
_OWN = {"config", "FETCH_HEAD", "hooks", "index", "logs"}  # what concerns one tree alone in its `.git`


@dataclass(frozen=True)
class Origin:
    """Where the source of a framework's tags comes from, as patches/catalogue/<framework>/source.toml says."""

    address: str
    folders: tuple[str, ...]  # what applying the patch needs of the tree
    debian: Mapping[str, debian.SourcePackage]  # by tag


@dataclass(frozen=True)
class Options:
    """One tree."""

    tag: Tag
    patches: Path
    cache: Path
    tree: Path  # the folder to make
    source: str | None = None  # a clone, a bundle or an address instead of upstream's repository, or DEBIAN
    whole: bool = False  # all folders and submodules, instead of those that applying the patch needs


def read_origin(patches: Path, framework: str) -> Origin:
    table = read_toml(patches / "catalogue" / framework / "source.toml")
    packages = {tag: _source_package(row) for tag, row in table.get("debian", {}).items()}
    return Origin(f"https://{table['repository']}", tuple(table["folders"]), packages)


def _source_package(row: Mapping[str, Any]) -> debian.SourcePackage:
    if "packaging" not in row:
        return debian.SourcePackage(**row)
    added = row["packaging"]
    packaging = debian.Packaging(added["file"], added["sha256"], tuple(added["without"]))
    return debian.SourcePackage(**{**row, "packaging": packaging})


def debian_package(options: Options) -> debian.SourcePackage:
    """What Debian has of the tag. Raises NoSuchRevision, or SourceIncomplete when a whole tree cannot be made of it."""
    tag = options.tag
    packages = read_origin(options.patches, tag.framework).debian
    usable = [name for name, package in packages.items() if package.packaging or not options.whole]
    if tag.name in usable:
        return packages[tag.name]
    there = f"there is {', '.join(usable)}" if usable else "there is no tag that it does for"
    if tag.name not in packages:
        raise NoSuchRevision(f"Debian's archive has no {tag.full_name}; {there}. Take another --source")
    raise SourceIncomplete(f"Debian's archive of {tag.full_name} is no whole tree; {there}. Take another --source")


def obtain(options: Options) -> str:
    """Makes the tree, at once and complete, and says in a sentence what it is and what was verified.

    Raises FolderInUse, NoSuchFile, SourceUnreachable, NoSuchRevision, WrongCommit or SourceIncomplete.
    """
    tree = options.tree.absolute()
    check_vacant(tree)
    with disk_failures(tree, options.cache), workspace(tree.parent, "another path") as scratch:
        fresh = scratch / "tree"
        said = _fill(fresh, options)
        check_vacant(tree)
        if tree.is_dir():
            tree.rmdir()
        os.replace(fresh, tree)
    return said


def check_vacant(tree: Path) -> None:
    """Raises FolderInUse unless a tree can be made there."""
    if tree.is_dir() and not tree.is_symlink():
        if any(tree.iterdir()):
            raise FolderInUse(f"{tree} is not empty: give the path of a folder that does not exist yet, or remove it")
    elif os.path.lexists(tree):
        raise FolderInUse(f"{tree} is there and no folder: give the path of a folder that does not exist yet")


def address(options: Options) -> str:
    """What git fetches from. Raises NoSuchFile or UnsafeSource."""
    if options.source is None:
        return read_origin(options.patches, options.tag.framework).address
    if Path(options.source).exists():
        return str(Path(options.source).absolute())
    if addresses.protocol(options.source) == "file" and ":" not in options.source:
        raise NoSuchFile(f"--source {options.source}: there is no such clone or bundle; an address names its protocol")
    return options.source


def check_commit(tag: Tag, tree: Path, where: str) -> None:
    """Raises WrongCommit unless the tag in `tree` is the commit that the catalogue knows."""
    found = commit(tag, tree)
    if not _is_known(tag, found):
        raise WrongCommit(
            f"{tag.name} in {where} is commit {found or 'unknown'}, but the catalogue knows {tag.commit}: the tag was "
            "moved, or it is another project's. Give upstream's repository, or a true mirror, with --source"
        )


def _is_known(tag: Tag, commit: str) -> bool:
    """Whether it is the catalogue's commit, of which that may have the first digits only."""
    return bool(tag.commit) and commit.startswith(tag.commit)


def commit(tag: Tag, tree: Path) -> str:
    """The commit that the tag is in the checkout; empty when there is none."""
    return repository.run(tree, "rev-parse", "--verify", "--quiet", f"refs/tags/{tag.name}^{{commit}}").text.strip()


def _fill(fresh: Path, options: Options) -> str:
    """Makes the tree `fresh` from the cache, from git, or from Debian's archive."""
    tag = options.tag
    if options.source == DEBIAN:
        package = debian_package(options)
        return from_archive(fresh, options, debian.fetch(package, options.cache))
    at = address(options)
    kept = _kept(options, options.whole)
    with locked(kept.with_name(f"{kept.name}.lock"), "another run fetches the same tag; waiting for it"):
        for whole in (True, False) if not options.whole else (True,):
            cached = _kept(options, whole)
            if cached.is_dir() and _restored(cached, fresh, options, at):
                return f"{tag.name} at commit {tag.commit}, as the catalogue has it (cached)"
        try:
            _fetch(fresh, options, at)
        except SourceUnreachable as error:
            shutil.rmtree(fresh, ignore_errors=True)
            carried = read_origin(options.patches, tag.framework).debian.get(tag.name)
            if options.source is not None or carried is None:
                raise
            if options.whole and carried.packaging:
                raise SourceUnreachable(f"{error}. On Debian {carried.suite} there is --source {DEBIAN}") from error
            if options.whole:
                raise SourceUnreachable(f"{error}. Debian's archive of {tag.name} is no whole tree") from error
            report.note(f"{error}")
            report.note("Debian has this tag: taking upstream's files from its archive")
            try:
                archive = debian.fetch(carried, options.cache)
            except SourceUnreachable as second:
                raise SourceUnreachable(f"{error}\n  Nor is Debian's archive of use: {second}") from second
            return from_archive(fresh, options, archive)
        _keep(fresh / ".git", kept)
    return f"{tag.name} at commit {tag.commit}, as the catalogue has it"


def _kept(options: Options, whole: bool) -> Path:
    tag = options.tag
    return options.cache / f"source-{tag.framework}-{tag.name}-{tag.commit[:8]}-{'whole' if whole else 'part'}"


def _fetch(fresh: Path, options: Options, at: str) -> None:
    scratch = fresh.parent
    place = repository.locate(at, at, scratch, options.tag.name)
    modules: tuple[Path, ...] = ()
    if place.lender and options.source and Path(options.source).exists():
        clone = foreign.find(Path(at))
        modules = clone.modules if clone else ()
    _make(fresh, options, place, submodules.Source(at, modules, alone=False))


def _make(fresh: Path, options: Options, place: repository.Place, below: submodules.Source) -> None:
    """Makes the tree `fresh` of what is at `place`, and of the submodules `below`."""
    tag = options.tag
    name = f"refs/tags/{tag.name}"
    with report.progress(f"fetch {tag.name}", None):
        repository.create(fresh)
        repository.without_filters(fresh / ".git")
        repository.checked(fresh, "remote", "add", "origin", place.url)
        words: tuple[str, ...] = ()
        if not options.whole:
            folders = read_origin(options.patches, tag.framework).folders
            # Two commands, as git before 2.35 needs them.
            repository.checked(fresh, "sparse-checkout", "init", "--cone")
            repository.checked(fresh, "sparse-checkout", "set", *folders)
            words = ("--filter=blob:none",)
        done = repository.fetch(fresh, place, f"+{name}:{name}", *words)
        if done.code and "couldn't find remote ref" in done.error_text:
            # A mirror may have upstream's history but not its tags.
            if repository.fetch(fresh, place, f"+{tag.commit}:{name}", *words).code:
                raise NoSuchRevision(
                    f"{place.said} has neither the tag {tag.name} nor its commit {tag.commit}: bring the mirror up to date "
                    "(`git fetch --tags`), or give another one with --source"
                )
            report.note(f"{place.said} has no tag {tag.name}, but its commit")
        elif done.code:
            raise SourceUnreachable(repository.unreachable(place.said, repository.reason(done, place)))
        check_commit(tag, fresh, place.said)
        done = repository.check_out(fresh, place, name)
        if done.code:
            raise SourceUnreachable(repository.unreachable(place.said, repository.reason(done, place)))
        repository.checked(fresh, "remote", "set-url", "origin", below.address)
        if options.whole:
            submodules.fetch(fresh, below, fresh.parent)


def from_archive(fresh: Path, options: Options, archive: Path) -> str:
    """Makes the tree `fresh` of Debian's archive of upstream's files, as a repository with one commit.

    A whole tree has a second one, of what Debian adds, and the tag.
    """
    tag = options.tag
    origin = read_origin(options.patches, tag.framework)
    debian.unpack(archive, origin.debian[tag.name].sha256, fresh, None if options.whole else origin.folders)
    for name, blob in tag.blobs.items():
        found = git_command.blob_hash((fresh / name).read_bytes()) if (fresh / name).is_file() else "none"
        if found != blob:
            raise WrongCommit(
                f"{name} in {archive.name} has the git hash {found}, the catalogue knows {blob} for {tag.name}: "
                "take upstream's tree from elsewhere with --source"
            )
    repository.create(fresh)
    repository.without_filters(fresh / ".git")
    _commit_all(fresh, f"{tag.framework} {tag.name} without third_party, from Debian's {archive.name}")
    said = (
        f"{tag.name} from Debian's {archive.name}, by its sha256; it states no commit of upstream's, but the "
        f"{len(tag.blobs)} files that the patch edits are those of the catalogue"
    )
    return f"{said}; {_add_packaging(fresh, options)}" if options.whole else said


def _add_packaging(fresh: Path, options: Options) -> str:
    """Adds what Debian adds, with its patches applied, and says in a few words what that is."""
    package = debian_package(options)
    packaging = package.packaging
    assert packaging is not None
    added = debian.fetch_packaging(package, packaging, options.cache)
    debian.unpack(added, packaging.sha256, fresh / "debian")
    count = debian.apply_patches(fresh, packaging)
    _commit_all(fresh, f"{count} patches of Debian's {packaging.file}")
    repository.checked(fresh, "tag", options.tag.name)
    left = f", without {', '.join(packaging.without)}" if packaging.without else ""
    return f"with the {count} patches of {packaging.file}, by its sha256{left}"


def _commit_all(tree: Path, message: str) -> None:
    repository.checked(tree, "add", "--all", "--force")
    repository.checked(tree, "commit", "--quiet", "-m", message, settings=_IDENTITY)


def _keep(folder: Path, kept: Path) -> None:
    """Puts a finished `.git` into the cache, in one step."""
    with workspace(kept.parent, "LMSBUILD_CACHE") as scratch:
        _copy(folder, scratch / "git")
        shutil.rmtree(kept, ignore_errors=True)
        os.replace(scratch / "git", kept)


def _restored(kept: Path, fresh: Path, options: Options, at: str) -> bool:
    """Makes the tree from the cache; when that is damaged, removes it and says so."""
    try:
        found = foreign.find(kept)
        if found is None:
            raise SourceIncomplete(f"{kept} is no repository")
        foreign.check_files(found)
        place = repository.lent(found, str(kept), fresh.parent, options.tag.name)
        _make(fresh, options, place, submodules.Source(at, found.modules, alone=True))
    except (NoSuchRevision, SourceIncomplete, SourceUnreachable, UnsafeSource, WrongCommit) as error:
        report.note(f"{kept.name} in the cache is damaged; fetching it again: {error}")
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(kept)
        return False
    return True


def _copy(folder: Path, target: Path) -> None:
    """Copies a `.git`; what git never changes in place is linked where both are on one file system."""

    def copy(source: str, destination: str) -> str:
        if "/objects/" in source:
            try:
                os.link(source, destination)
                return destination
            except OSError:
                pass
        return str(shutil.copy2(source, destination))

    def left(inside: str, names: list[str]) -> set[str]:
        return _OWN & {*names} if "HEAD" in names else set()

    shutil.copytree(folder, target, symlinks=True, copy_function=copy, ignore=left)

"""Upstream's source as Debian carries it.

apt needs no deb-src entry: it gets a list of its own, with the address and the key of the entry for binary packages.
"""

from __future__ import annotations

import platform
import posixpath
import shutil
import tarfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import command, git_command
from lmsbuild.errors import PatchMismatch, SourceUnreachable, WrongHash
from lmsbuild.fetch import apt
from lmsbuild.lock import locked
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.wheel.wheel import file_sha256
from lmsbuild.workspace import workspace


@dataclass(frozen=True)
class Packaging:
    """What Debian adds to upstream's archive: patches with which the build takes the distribution's libraries."""

    file: str
    sha256: str
    without: tuple[str, ...]  # the patches that a wheel is better off without


@dataclass(frozen=True)
class SourcePackage:
    """Upstream's archive in one of Debian's source packages."""

    package: str
    suite: str
    file: str
    sha256: str
    packaging: Packaging | None = None  # None: nobody has built a wheel with it


def fetch(source: SourcePackage, cache: Path, configured: Path = apt.CONFIGURED) -> Path:
    """Upstream's archive, from the cache or Debian. Safe to call from several processes at once: one fetches, the others wait.

    Raises apt.NotDebian, SourceUnreachable or WrongHash.
    """
    return _get(source, source, cache, configured)


def fetch_packaging(
    source: SourcePackage, packaging: Packaging, cache: Path, configured: Path = apt.CONFIGURED
) -> Path:
    """What Debian adds to it; otherwise as `fetch`."""
    return _get(source, packaging, cache, configured)


def _get(source: SourcePackage, wanted: SourcePackage | Packaging, cache: Path, configured: Path) -> Path:
    kept = cache / f"debian-{wanted.sha256[:8]}" / wanted.file
    with locked(kept.parent.with_suffix(".lock"), "another run fetches the same archive; waiting for it"):
        if kept.exists() and file_sha256(kept) == wanted.sha256:
            return kept
        line = f"deb-src {apt.entry(configured, kept)} {source.suite} main"
        with workspace(cache, "LMSBUILD_CACHE") as folder:
            words = ["source", "--download-only", "--tar-only" if wanted is source else "--diff-only", source.package]
            fetched = apt.fetch(folder / "apt", line, words) / wanted.file
            if not fetched.exists():
                raise SourceUnreachable(
                    f"{source.suite} has another version of {source.package} now, not {wanted.file}"
                )
            _check_hash(wanted.file, file_sha256(fetched), wanted.sha256)
            kept.parent.mkdir(exist_ok=True)
            shutil.move(fetched, kept)
    return kept


def _check_hash(name: str, found: str, known: str) -> None:
    if found != known:
        raise WrongHash(
            f"{name} from Debian's archive has the sha256 {found}, the catalogue knows {known}: "
            "it was damaged or replaced; fetch the source from elsewhere with --source"
        )


def unpack(archive: Path, sha256: str, folder: Path, folders: tuple[str, ...] | None = None) -> None:
    """Writes the files that are at the top of the archive's tree or below `folders` into `folder`; without those, all.

    Raises WrongHash or NoSuchFile.
    """
    with InputFile(archive) as file:
        _check_hash(archive.name, file.make_private(folder.parent), sha256)
        _unpack(file, folder, folders)


def _unpack(archive: InputFile, folder: Path, folders: tuple[str, ...] | None) -> None:
    with tarfile.open(fileobj=archive.stream()) as tree:
        for member in tree:
            name = member.name.partition("/")[2]
            if not (member.isfile() or member.issym()) or ".." in name.split("/") or name.startswith("/"):
                continue
            if folders is not None and "/" in name and not any(name.startswith(f"{below}/") for below in folders):
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                leads = posixpath.normpath(posixpath.join("/inside", name, "..", member.linkname))
                if leads.startswith("/inside/"):
                    target.symlink_to(member.linkname)
                continue
            content = tree.extractfile(member)
            assert content is not None
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)


def missing_packages(wanted: Collection[str]) -> list[str]:
    """Those of the wanted packages that are not installed. Raises apt.NotDebian."""
    if shutil.which("dpkg-query") is None:
        raise apt.NotDebian("this is no Debian: dpkg-query is not there")
    known = command.run(["dpkg-query", "--show", "--showformat", "${binary:Package} ${db:Status-Status}\\n", *wanted])
    states = (line.split() for line in known.text.splitlines())
    installed = {name.partition(":")[0] for name, state in states if state == "installed"}
    return [package for package in wanted if package not in installed]


def suite() -> str:
    """The suite that this machine runs; empty when it is none of Debian's."""
    release = platform.freedesktop_os_release()
    return release.get("VERSION_CODENAME", "") if release.get("ID") == "debian" else ""


def apply_patches(tree: Path, packaging: Packaging) -> int:
    """Applies Debian's patches, which are in `tree`, to its files; returns how many. Raises PatchMismatch."""
    patches = tree / "debian/patches"
    series = [line.split()[0] for line in (patches / "series").read_text().splitlines() if line.strip()]
    chosen = [name for name in series if not name.startswith("#") and name not in packaging.without]
    for name in chosen:
        done = git_command.run(tree, "apply", "--whitespace=nowarn", patches / name)
        if done.code:
            raise PatchMismatch(f"Debian's {name} of {packaging.file} does not apply: {done.error_text.strip()}")
    return len(chosen)

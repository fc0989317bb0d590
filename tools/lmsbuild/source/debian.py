"""Upstream's source as Debian carries it.

apt needs no deb-src entry: it gets a list of its own, with the address and the key of the entry for binary packages.
"""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from lmsbuild.errors import SourceUnreachable, WrongHash
from lmsbuild.fetch import apt
from lmsbuild.lock import locked
from lmsbuild.wheel.wheel import file_sha256
from lmsbuild.workspace import workspace


@dataclass(frozen=True)
class SourcePackage:
    """Upstream's archive in one of Debian's source packages."""

    package: str
    suite: str
    file: str
    sha256: str


def fetch(source: SourcePackage, cache: Path, configured: Path = apt.CONFIGURED) -> Path:
    """The archive, from the cache or Debian. Safe to call from several processes at once: one fetches, the others wait.

    Raises NotDebian, SourceUnreachable or WrongHash.
    """
    kept = cache / f"debian-{source.sha256[:8]}" / source.file
    with locked(kept.parent.with_suffix(".lock"), "another run fetches the same archive; waiting for it"):
        if kept.exists() and file_sha256(kept) == source.sha256:
            return kept
        line = f"deb-src {apt.entry(configured, kept)} {source.suite} main"
        with workspace(cache, "LMSBUILD_CACHE") as folder:
            words = ["source", "--download-only", "--tar-only", source.package]
            fetched = apt.fetch(folder / "apt", line, words) / source.file
            if not fetched.exists():
                raise SourceUnreachable(
                    f"{source.suite} has another version of {source.package} now, not {source.file}"
                )
            found = file_sha256(fetched)
            if found != source.sha256:
                raise WrongHash(
                    f"{source.file} from Debian's archive has the sha256 {found}, the catalogue knows {source.sha256}: "
                    "it was damaged or replaced; fetch the source from elsewhere with --source"
                )
            kept.parent.mkdir(exist_ok=True)
            shutil.move(fetched, kept)
    return kept


def unpack(archive: Path, folder: Path, folders: tuple[str, ...]) -> None:
    """Writes the files that are at the top of the archive's tree or below `folders` into `folder`."""
    with tarfile.open(archive) as tree:
        for member in tree:
            name = member.name.partition("/")[2]
            if not member.isfile() or ".." in name.split("/") or name.startswith("/"):
                continue
            if "/" in name and not any(name.startswith(f"{below}/") for below in folders):
                continue
            content = tree.extractfile(member)
            assert content is not None
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)
            target.chmod(0o755 if member.mode & 0o100 else 0o644)

"""Upstream's source as Debian carries it, fetched by apt as this machine is configured to use it; no root is needed.

apt needs no deb-src entry: it gets a list of its own, with the address and the key of the entry for binary packages.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lmsbuild import command
from lmsbuild.errors import NoSpace, SourceUnreachable, WrongHash
from lmsbuild.lock import locked
from lmsbuild.wheel.wheel import file_sha256
from lmsbuild.workspace import workspace

CONFIGURED = Path("/etc/apt")
_ARCHIVE = re.compile(r"\S+/debian(?:\.list)?/?")  # also a list of mirrors, as cloud images have it


class NotDebian(SourceUnreachable):
    """This machine cannot ask Debian's archive."""


@dataclass(frozen=True)
class SourcePackage:
    """Upstream's archive in one of Debian's source packages."""

    package: str
    suite: str
    file: str
    sha256: str


def fetch(source: SourcePackage, cache: Path, configured: Path = CONFIGURED) -> Path:
    """The archive, from the cache or Debian. Safe to call from several processes at once: one fetches, the others wait.

    Raises NotDebian, SourceUnreachable or WrongHash.
    """
    kept = cache / f"debian-{source.sha256[:8]}" / source.file
    with locked(kept.parent.with_suffix(".lock"), "another run fetches the same archive; waiting for it"):
        if kept.exists() and file_sha256(kept) == source.sha256:
            return kept
        entry = next(archives(configured), None)
        if entry is None or shutil.which("apt-get") is None:
            raise NotDebian(f"needs apt-get and an entry for Debian's archive in {configured}, or {kept}")
        with workspace(cache, "LMSBUILD_CACHE") as folder:
            fetched = _fetch(folder, f"deb-src {entry} {source.suite} main", source.package) / source.file
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


def _fetch(root: Path, entry: str, package: str) -> Path:
    """Has apt fetch the upstream archive with an index of its own below `root`; returns the folder that it is in."""
    folders = [root / name for name in ("lists/partial", "cache/archives/partial", "files")]
    for folder in folders:
        folder.mkdir(parents=True)
    (root / "sources.list").write_text(entry + "\n")
    settings = root / "apt.conf"
    settings.write_text(
        f'Dir::Etc::SourceList "{root}/sources.list";\n'
        'Dir::Etc::SourceParts "/dev/null";\n'
        f'Dir::State::Lists "{root}/lists";\n'
        f'Dir::Cache "{root}/cache";\n'
        'Acquire::Languages "none";\n'
        'Acquire::Retries "5";\n'  # waits of 1, 2, 4, 8 and 16 seconds
        'APT::Sandbox::User "";\n'
    )
    for words in (["update", "--error-on=any"], ["source", "--download-only", "--tar-only", package]):
        done = command.run(["apt-get", "--config-file", settings, "--quiet", *words], folder=folders[-1])
        if done.found_no_space:
            raise NoSpace(root.parent, "apt-get says so")
        if done.code:
            reasons = [line for line in f"{done.text}{done.error_text}".splitlines() if line.startswith("E:")]
            raise SourceUnreachable(f"apt-get {words[0]} failed: {' '.join(reasons) or done.error_text.strip()}")
    return folders[-1]


def archives(configured: Path) -> Iterator[str]:
    """The options and address of every entry of an apt configuration for Debian's main archive."""
    for file in sorted(configured.glob("sources.list.d/*.sources")):
        for stanza in re.split(r"\n\s*\n", file.read_text()):
            fields = {name.lower(): value.strip() for name, value in re.findall(r"(?m)^([\w-]+):(.*)$", stanza)}
            if fields.get("enabled", "yes").lower() != "yes" or "main" not in fields.get("components", "").split():
                continue
            key = fields.get("signed-by", "")
            option = f"[signed-by={key.replace(' ', ',')}] " if key.startswith("/") else ""
            yield from (option + address for address in fields.get("uris", "").split() if _ARCHIVE.fullmatch(address))
    for file in (configured / "sources.list", *sorted(configured.glob("sources.list.d/*.list"))):
        if file.exists():
            line = rf"(?m)^deb(?:-src)?\s+((?:\[.*?\]\s+)?{_ARCHIVE.pattern})\s+\S+\s.*\bmain\b"
            yield from re.findall(line, file.read_text())

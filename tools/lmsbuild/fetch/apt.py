"""Debian's archive, as this machine's apt is configured to use it: with an index of its own, and nothing installed or changed.

apt checks what it fetches against the archive's signed index. No root is needed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from lmsbuild import command
from lmsbuild.errors import NoSpace, SourceUnreachable
from lmsbuild.lock import locked
from lmsbuild.wheel.input_file import InputFile
from lmsbuild.workspace import workspace

CONFIGURED = Path("/etc/apt")
# What was unpacked into the tree beside it: name, version, architecture and sha256 of each package.
LISTED = "packages.txt"
TREE = "tree"
_ARCHIVE = re.compile(r"\S+/debian(?:\.list)?/?")  # also a list of mirrors, as cloud images have it
_FIELDS = ("Package", "Version", "Architecture")


class NotDebian(SourceUnreachable):
    """This machine cannot ask Debian's archive."""


def packages(names: Sequence[str], suite: str, architecture: str, cache: Path, configured: Path = CONFIGURED) -> Path:
    """A folder of the cache with what packages for an architecture, any that Debian has, install: the tree, and a list of them.

    What they depend on is not fetched. Safe to call from several processes at once: one fetches, the others wait.
    Raises NotDebian or SourceUnreachable.
    """
    key = hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:8]
    kept = cache / f"debian-packages-{suite}-{architecture}-{key}"
    with locked(kept.with_suffix(".lock"), "another run fetches the same packages; waiting for it"):
        if not kept.exists():
            line = f"deb {entry(configured, kept, 'dpkg-deb')} {suite} main"
            with workspace(cache, "LMSBUILD_CACHE") as folder:
                files = fetch(folder / "apt", line, ["download", *names], architecture)
                _unpack(sorted(files.iterdir()), folder / "made")
                os.replace(folder / "made", kept)
    return kept


def entry(configured: Path, kept: Path, *programs: str) -> str:
    """The options and address of the archive. Raises NotDebian when apt is not there, or knows none; then `kept` may be given."""
    found = next(archives(configured), None)
    missing = [name for name in ("apt-get", *programs) if shutil.which(name) is None]
    if found is None or missing:
        needed = " and ".join(missing) or "apt-get"
        raise NotDebian(
            f"needs {needed} and an entry for Debian's archive in {configured}, as on a machine or in a container that has Debian, "
            f"or {kept}, as such a machine keeps it"
        )
    return found


def fetch(root: Path, line: str, words: Sequence[str], architecture: str = "") -> Path:
    """Has apt fetch something with an index of its own below `root`, which is made; returns the folder that it is in.

    `line` is the entry of sources.list, without `architecture` for this machine's. Raises SourceUnreachable.
    """
    folders = [root / name for name in ("lists/partial", "cache/archives/partial", "files")]
    for folder in folders:
        folder.mkdir(parents=True)
    (root / "sources.list").write_text(line + "\n")
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
    if architecture:
        (root / "status").touch()  # of another architecture nothing is installed
        with settings.open("a") as file:
            file.write(f'APT::Architecture "{architecture}";\nAPT::Architectures {{ "{architecture}"; }};\n')
            file.write(f'Dir::State::status "{root}/status";\n')
    for arguments in (["update", "--error-on=any"], words):
        done = command.run(["apt-get", "--config-file", settings, "--quiet", *arguments], folder=folders[-1])
        if done.found_no_space:
            raise NoSpace(root.parent, "apt-get says so")
        if done.code:
            reasons = [said for said in f"{done.text}{done.error_text}".splitlines() if said.startswith("E:")]
            raise SourceUnreachable(f"apt-get {arguments[0]} failed: {' '.join(reasons) or done.error_text.strip()}")
    return folders[-1]


def _unpack(files: Sequence[Path], folder: Path) -> None:
    rows = []
    (folder / TREE).mkdir(parents=True)
    for file in files:
        with InputFile(file) as opened:
            sha256, same = opened.sha256(), opened.for_programs
            words: list[list[str | Path]] = [["--extract", same, folder / TREE], ["--field", same, *_FIELDS]]
            for arguments in words:
                done = command.run(["dpkg-deb", *arguments])
                if done.found_no_space:
                    raise NoSpace(folder.parent, "dpkg-deb says so")
                if done.code:
                    raise SourceUnreachable(f"dpkg-deb cannot read {file.name}: {done.error_text.strip()}")
        fields = dict(line.split(": ", 1) for line in done.text.splitlines())
        rows.append(" ".join([*(fields[name] for name in _FIELDS), sha256]))
    (folder / LISTED).write_text("".join(f"{row}\n" for row in rows))


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

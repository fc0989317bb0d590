"""Upstream's source as Debian carries it, fetched by apt as this machine is configured to use it; no root is needed.

apt needs no deb-src entry: it gets a list of its own, with the address and the key of the entry for binary packages.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmsbuild.wheel import file_sha256

_CONFIGURED = Path("/etc/apt")
_ARCHIVE = re.compile(r"\S+/debian(?:\.list)?/?")  # also a list of mirrors, as cloud images have it


def source(cache: Path, package: str, suite: str, file: str, sha256: str) -> Path:
    """The upstream archive of a source package, from the cache or Debian's archive.

    Fails when apt does, or when the file is another one than is known. Skips the test on a machine of another
    distribution, which cannot get it.
    """
    kept = cache / f"debian-{sha256[:8]}" / file
    cache.mkdir(parents=True, exist_ok=True)
    with kept.parent.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists() or file_sha256(kept) != sha256:
            entry = next(archives(_CONFIGURED), None)
            if entry is None or shutil.which("apt-get") is None:
                pytest.skip(f"needs apt-get and an entry for Debian's archive in {_CONFIGURED}, or {kept}")
            with tempfile.TemporaryDirectory(prefix="apt-") as folder:
                fetched = _fetch(Path(folder), f"deb-src {entry} {suite} main", package) / file
                assert fetched.exists(), f"{suite} has another version of {package}: {file} is not part of it"
                assert file_sha256(fetched) == sha256, f"{file} is not the file that is known under this name"
                kept.parent.mkdir(exist_ok=True)
                shutil.move(fetched, kept)
    return kept


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
        'Acquire::Retries "3";\n'
        'APT::Sandbox::User "";\n'
    )
    for words in (["update", "--error-on=any"], ["source", "--download-only", "--tar-only", package]):
        done = subprocess.run(
            ["apt-get", "--config-file", settings, "--quiet", *words],
            cwd=folders[-1],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"apt-get {' '.join(words)} failed:\n{done.stdout}{done.stderr}"
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

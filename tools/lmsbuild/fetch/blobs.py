"""Files of upstream's, kept in the cache under git's hash, by which they are checked whenever they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lmsbuild import git_command
from lmsbuild.catalogue.rows import replace_file


def load(cache: Path, wanted: Mapping[str, str]) -> dict[str, bytes] | None:
    """The files with these hashes, by path; None unless all are there and whole."""
    found = {}
    for path, blob in wanted.items():
        try:
            data = (cache / "blobs" / blob).read_bytes()
        except OSError:
            return None
        if git_command.blob_hash(data) != blob:
            return None
        found[path] = data
    return found


def store(cache: Path, wanted: Mapping[str, str], files: Mapping[str, bytes]) -> None:
    """Keeps those of the files that have the hash which they should have. Raises OSError."""
    folder = cache / "blobs"
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        if git_command.blob_hash(data) == wanted[path]:
            replace_file(folder / wanted[path], data)

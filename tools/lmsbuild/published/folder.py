"""What all folders that are published have in common, channels as well as indices of wheels.

One run at a time writes into such a folder, and who reads it finds each file as it was or as it is to be. What was hashed
once is not hashed again while its size and date stay the same; `lmsbuild-index.json` remembers these.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmsbuild.errors import NOT_WRITABLE, BadChannel, OutputNotWritable, disk_failures
from lmsbuild.lock import locked
from lmsbuild.published import strict_json
from lmsbuild.published.regular_file import read_file

SEEN = "lmsbuild-index.json"
_LOCK = ".lmsbuild-lock"
_ASIDE = re.compile(r"\.lmsbuild-[0-9a-f]{32}\.part")


@dataclass(frozen=True)
class Published:
    """What publishing did."""

    added: tuple[str, ...]
    known: int  # files that were there before
    hashed: int  # files that had to be read


@contextmanager
def publishing(folder: Path, kind: str) -> Iterator[None]:
    """Holds the lock of a folder, which is made when it is missing. Raises OutputNotWritable or NoSpace."""
    waiting = f"another run publishes into this {kind}; waiting for it"
    with disk_failures(folder), _writable(folder, kind), locked(folder / _LOCK, waiting):
        remove_leftovers(folder)
        yield


def stamp(status: os.stat_result) -> list[int]:
    """By what a file is known again: its size and date."""
    return [status.st_size, status.st_mtime_ns]


def aside(path: Path) -> Path:
    """Where a file is written until it is complete: beside its place, under a name that nothing else has."""
    return path.with_name(f".lmsbuild-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]}.part")


def remove_leftovers(folder: Path) -> None:
    """Removes what a run that was killed had written aside. For who holds the lock."""
    for path in folder.iterdir():
        if _ASIDE.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):  # a folder is none of ours
            path.unlink()


def read_json(path: Path, written_by: str) -> dict[str, Any]:
    """A file that the command `written_by` writes. Raises BadChannel."""
    try:
        found = strict_json.parse(read_file(path))
    except FileNotFoundError as error:
        raise BadChannel(f"{path} is missing: `{written_by}` writes it") from error
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadChannel(f"{path} cannot be read ({reason}): put back the one that was published") from error
    if not isinstance(found, dict):
        raise BadChannel(f"{path} is no index: put back the one that was published")
    return found


def read_seen(path: Path, written_by: str) -> dict[str, Any]:
    """What is remembered of files, by name; nothing when it cannot be read, as it is found out again then."""
    try:
        return read_json(path, written_by)
    except BadChannel:
        return {}


def write(path: Path, data: bytes) -> None:
    """Writes a file aside, and moves it to its place in one step; one that says this already is left as it is.

    Another gets a later date, in whole seconds, than the one in its place: by these web servers tell clients what is new. For who
    holds the lock.
    """
    if path.is_file() and path.read_bytes() == data:
        return
    later = int(path.stat().st_mtime) + 1 if path.is_file() else 0
    new = aside(path)
    new.unlink(missing_ok=True)  # which may be a link to elsewhere
    try:
        with new.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if new.stat().st_mtime < later:
            os.utime(new, (later, later))
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)  # where a folder is in its place


@contextmanager
def _writable(folder: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        raise OutputNotWritable(
            f"cannot write to the {kind} {folder}: {error.strerror} ({error.filename2 or error.filename}); what it had is as it "
            "was. Mend that, or run as a user who may write there"
        ) from error

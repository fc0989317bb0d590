"""A lock between processes, on a file; it is gone with the process that holds it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmsbuild import report


@contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Holds the lock `path`, whose folder is made when it is missing; says `waiting` when another run holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.note(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

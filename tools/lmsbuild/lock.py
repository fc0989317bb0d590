"""A lock between processes, on a file; it is gone with the process that holds it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lmsbuild import report
from lmsbuild.errors import Failure, OutputNotWritable


@contextmanager
def held(path: Path, otherwise: Failure) -> Iterator[None]:
    """Holds the lock `path`, whose folder is made when it is missing; raises `otherwise` when another run holds it.

    Raises OutputNotWritable, too, for what is no file.
    """
    lock = _lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise otherwise from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Holds the lock `path`, whose folder is made when it is missing; says `waiting` when another run holds it.

    The file stays: whether it is locked is the system's to know, on NFS the server's. Raises OutputNotWritable for what is no file.
    """
    lock = _lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        report.note(waiting)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _lock(path: Path) -> FileLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    # FileLock follows no link, but it would lock a pipe or a device, and empties a file.
    if os.path.lexists(path):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size:
            raise OutputNotWritable(
                f"{path} is a link, a folder or a device, or has contents, but has to be an empty file, the lock between runs: "
                "remove it"
            )
    return FileLock(path)

"""A lock between processes, on a file; it is gone with the process that holds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lmsbuild import report
from lmsbuild.errors import Failure


@contextmanager
def held(path: Path, otherwise: Failure) -> Iterator[None]:
    """Holds the lock `path`, whose folder is made when it is missing; raises `otherwise` when another run holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
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

    The file stays: whether it is locked is the system's to know, on NFS the server's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        report.note(waiting)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()

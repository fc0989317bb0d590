"""The temporary folder of one build, beside its output, so that the finished wheel moves into place at once.

Its name says what it is. A run that is killed leaves it behind, and the next run into the same folder removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from lmsbuild import report
from lmsbuild.ending import signals
from lmsbuild.errors import OutputNotWritable

_PREFIX = ".lmsbuild-"
_NAME = re.compile(rf"{re.escape(_PREFIX)}\w{{8}}")  # as mkdtemp makes it
_LOCK = "lock"
_MOMENT = 3600  # seconds in which a folder gets its lock, or is removed


@contextmanager
def workspace(output: Path, chosen_with: str = "--output") -> Iterator[Path]:
    """Yields the absolute path of a new folder in `output`, which is made when it is missing; removes the new folder at the end.

    `chosen_with` is what the user chooses `output` with. Raises OutputNotWritable.
    """
    with ExitStack() as undone_at_the_end:
        try:
            output.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(output)
            with signals.postponed():
                folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=output.resolve()))
                # Where the file of the lock could not go while it was open, as on NFS, the folder is still there.
                undone_at_the_end.callback(_remove, folder)
            # Held until this process ends, however it ends: an unlocked folder is a dead run's. The lock gets its name when it
            # is held, so that no run that begins meanwhile sees it unlocked.
            unnamed = folder / f"{_LOCK}-unnamed"
            undone_at_the_end.enter_context(FileLock(unnamed))
            unnamed.rename(folder / _LOCK)
            undone_at_the_end.callback(_remove, folder)
        except OSError as error:
            raise OutputNotWritable(
                f"cannot write to {output}: {error.strerror}; give a folder that you may write to with {chosen_with}"
            ) from error
        yield folder


def publish(file: Path, target: Path) -> None:
    """Moves a finished file to its place in one step. Raises OSError."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(file, target)


def _remove(folder: Path) -> None:
    """Removes a folder with one descriptor at a time, since others may be why the run ends.

    The lock goes last, so that the next run takes what cannot be removed as a dead run's.
    """
    lock = folder / _LOCK
    with signals.postponed():
        for root, folders, files in os.walk(folder, topdown=False):
            for path in (os.path.join(root, name) for name in (*folders, *files)):
                with suppress(OSError):
                    if os.path.isdir(path) and not os.path.islink(path):
                        os.rmdir(path)
                    elif path != str(lock):
                        os.unlink(path)
        with suppress(OSError):
            if set(os.listdir(folder)) <= {_LOCK}:
                lock.unlink(missing_ok=True)
                folder.rmdir()


def _remove_leftovers(output: Path) -> None:
    for folder in filter(lambda path: _NAME.fullmatch(path.name), output.iterdir()):
        # Not a FileLock, which would make the file anew where a run that ends has just removed it.
        with suppress(OSError), _opened(folder / _LOCK) as lock:
            if stat.S_ISDIR(folder.lstat().st_mode) and (lock is None or _is_dead(lock)):
                report.note(f"removing {folder.name}, which an interrupted run left behind")
                _remove(folder)


def _is_dead(lock: int) -> bool:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    status = os.fstat(lock)
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 0


@contextmanager
def _opened(lock: Path) -> Iterator[int | None]:
    """The open file; None: there is none, in a folder that no run makes or removes at this moment. Raises OSError."""
    try:
        opened = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if time.time() - lock.parent.lstat().st_mtime < _MOMENT:
            raise
        yield None
        return
    try:
        yield opened
    finally:
        os.close(opened)

"""The temporary folder of one build, beside its output, so that the finished wheel moves into place at once.

Its name says what it is. A run that is killed leaves it behind, and the next run into the same folder removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from lmsbuild import report
from lmsbuild.errors import OutputNotWritable

_PREFIX = ".lmsbuild-"
_LOCK = "lock"


@contextmanager
def workspace(output: Path, chosen_with: str = "--output") -> Iterator[Path]:
    """Yields the absolute path of a new folder in `output`, which is made when it is missing; removes the new folder at the end.

    `chosen_with` is what the user chooses `output` with. Raises OutputNotWritable.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(output)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=output.resolve()))
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write to {output}: {error.strerror}; give a folder that you may write to with {chosen_with}"
        ) from error
    try:
        # Held until this process ends, however it ends: an unlocked folder is a dead run's. The lock gets its name when it
        # is held, so that no run that begins meanwhile sees it unlocked.
        unnamed = folder / f"{_LOCK}-unnamed"
        with FileLock(unnamed):
            unnamed.rename(folder / _LOCK)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        # Where the file of the lock could not go while it was open, as on NFS, the folder is still there.
        shutil.rmtree(folder, ignore_errors=True)


def publish(file: Path, target: Path) -> None:
    """Moves a finished file to its place in one step. Raises OSError."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(file, target)


def _remove_leftovers(output: Path) -> None:
    # A folder without the lock's file is one that another run makes at this moment.
    for lock in output.glob(f"{_PREFIX}*/{_LOCK}"):
        folder = lock.parent
        # Not a FileLock, which would make the file anew where a run that ends has just removed it.
        with suppress(OSError), lock.open("r+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(stream.fileno()).st_nlink > 0:
                report.note(f"removing {folder.name}, which an interrupted run left behind")
                shutil.rmtree(folder, ignore_errors=True)

"""Opens a regular file, and nothing else: a pipe or device in its place is not waited for.

The scripts of ci/gpu read the catalogue by this, where Python has no packages.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from lmsbuild.published import strict_json


def open_descriptor(path: Path) -> int:
    """A descriptor to read the file by. Raises OSError, also for what is no regular file."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is no file, but a folder, pipe or device", str(path))
    return opened


def open_file(path: Path) -> IO[bytes]:
    """The file, opened to be read. Raises OSError, also for what is no regular file."""
    return os.fdopen(open_descriptor(path), "rb")


def read_file(path: Path, largest: int = strict_json.LARGEST) -> bytes:
    """What the file holds. Raises OSError, also when it is larger than `largest` bytes."""
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise OSError(errno.EFBIG, f"it has more than {largest} bytes", str(path))
        return file.read()

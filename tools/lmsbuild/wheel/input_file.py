"""A file that is opened once, and read through that descriptor from its hash to its last byte.

Another file under the same name changes nothing of it. Who may write to it, however, can change it in place: a private copy,
which has no name, is out of reach of everybody else.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from lmsbuild.errors import NoSuchFile, disk_failures
from lmsbuild.published.regular_file import open_descriptor

if TYPE_CHECKING:
    from typing_extensions import Self

_CHUNK = 1 << 20  # bytes
_AHEAD = 1 << 13  # bytes that a stream reads at least: each of a wheel's thousands of members has one of its own


class InputFile:
    """An open regular file. Use as a context manager. Threads may read it at the same time."""

    def __init__(self, path: Path) -> None:
        """Raises NoSuchFile, also for what is no regular file; a pipe or device is not waited for."""
        self.path = path
        self.private_sha256 = ""  # of the private copy, if the file is one
        try:
            self._descriptor = open_descriptor(path)
        except FileNotFoundError as error:
            raise NoSuchFile(f"there is no file {path}") from error
        except OSError as error:
            raise NoSuchFile(f"cannot read {path}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._descriptor).st_size

    @property
    def for_programs(self) -> str:
        """A path by which programs that this one starts get this very file."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def is_at(self, path: Path) -> bool:
        """Whether the file is the one that has this path now."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(path, follow_symlinks=False))
        except OSError:
            return False

    def read_at(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset` on; fewer at the end of the file."""
        return os.pread(self._descriptor, count, offset)

    def stream(self) -> BinaryIO:
        """The file as a seekable one with a position of its own; closing it closes nothing else."""
        return io.BufferedReader(_Stream(self), _AHEAD)

    def sha256(self, on_bytes: Callable[[int], None] = lambda done: None) -> str:
        """The sha256, in hexadecimal; `on_bytes` gets how many bytes are read."""
        digest, done = hashlib.sha256(), 0
        while chunk := self.read_at(done, _CHUNK):
            digest.update(chunk)
            done += len(chunk)
            on_bytes(done)
        return digest.hexdigest()

    def make_private(self, folder: Path, on_bytes: Callable[[int], None] = lambda done: None) -> str:
        """Copies the file into `folder`, without a name, and reads that copy from now on; returns its sha256.

        `on_bytes` gets how many bytes are copied. Raises NoSpace or OutputNotWritable.
        """
        with disk_failures(folder), tempfile.TemporaryFile(dir=folder) as file:
            digest = self._copy(file.fileno(), on_bytes)
            copied = os.dup(file.fileno())
        self.close()
        self._descriptor, self.private_sha256 = copied, digest
        return digest

    def copy_to(self, target: Path) -> None:
        """Writes a copy to `target`, a file that is made. Raises OSError."""
        with target.open("x+b") as file:
            self._copy(file.fileno(), lambda done: None)

    def _copy(self, target: int, on_bytes: Callable[[int], None]) -> str:
        """Copies all to a descriptor, and hashes what has arrived there."""
        digest, done = hashlib.sha256(), 0
        while count := _copy_some(self._descriptor, target, done):
            left = count
            while left:
                chunk = os.pread(target, left, done)
                digest.update(chunk)
                done += len(chunk)
                left -= len(chunk)
            on_bytes(done)
        return digest.hexdigest()


def _copy_some(source: int, target: int, offset: int) -> int:
    """Copies some bytes, at the same offset, and returns how many; 0 at the end."""
    try:
        # The file system shares the blocks of both files where it can.
        if count := os.copy_file_range(source, target, _CHUNK, offset, offset):
            return count
    except OSError:  # not between these file systems; what is wrong with the disk is said below
        pass
    chunk = os.pread(source, _CHUNK, offset)
    return os.pwrite(target, chunk, offset)


class Positioned(io.RawIOBase):
    """A file that is read at any position, as a seekable stream. Not thread-safe."""

    _position = 0

    def length(self) -> int:
        """Bytes."""
        raise NotImplementedError

    def read_at(self, offset: int, count: int) -> bytes:
        """At most `count` bytes from `offset` on; none at the end."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.length()}[whence]
        if begin + offset < 0:
            raise ValueError("a position before the begin of the file")
        self._position = begin + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self.read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Stream(Positioned):
    def __init__(self, file: InputFile) -> None:
        super().__init__()
        self._file = file

    def length(self) -> int:
        return self._file.size

    def read_at(self, offset: int, count: int) -> bytes:
        return self._file.read_at(offset, count)

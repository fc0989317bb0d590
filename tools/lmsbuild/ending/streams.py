"""Standard output and error, when nobody reads them or they cannot be written: that has to be known, and said at most once."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from lmsbuild.errors import OutputLost, ReaderGone

if TYPE_CHECKING:
    from typing_extensions import Buffer

_EXACT = "lmsbuild"  # the error handler by which names of files keep their bytes, and the rest gets escapes


class _Stream(io.FileIO):
    """A descriptor that is written to until that fails; what comes after is dropped."""

    def __init__(self, descriptor: int, name: str, *, is_needed: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._called = name
        self._is_needed = is_needed
        self.reason = ""  # why it cannot be written; empty: it can

    def write(self, data: Buffer, /) -> int:
        """Raises ReaderGone, or OutputLost if it is needed: once."""
        size = memoryview(data).nbytes
        if self.reason:
            return size
        try:
            return super().write(data) or 0
        except OSError as error:
            self.reason = str(error.strerror)
            if error.errno == errno.EPIPE:
                raise ReaderGone(f"nobody reads {self._called} any more") from error
            if self._is_needed:
                raise OutputLost(self.message()) from error
            return size

    def message(self) -> str:
        return (
            f"cannot write to {self._called}: {self.reason}; send it to a terminal, or to a file on a disk with space"
        )


_streams: list[_Stream] = []


def guard() -> None:
    """Puts guarded streams in the place of the program's own. What goes to standard error is no result: its loss ends nothing."""
    _occupy()
    codecs.register_error(_EXACT, _exact)
    _streams[:] = [
        _Stream(1, "standard output", is_needed=True),
        _Stream(2, "standard error", is_needed=False),
    ]
    sys.stdout, sys.stderr = (
        _text(_streams[0], sys.stdout, _EXACT),
        _text(_streams[1], sys.stderr, "backslashreplace"),
    )


def finish() -> None:
    """Writes what is left. Raises ReaderGone, or OutputLost, also when something that went to standard error was lost."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for guarded in _streams:
        if guarded.reason:
            raise OutputLost(guarded.message())


def _text(stream: _Stream, before: Any, errors: str) -> TextIO:
    encoding = before.encoding if before else "utf-8"
    buffered = io.BufferedWriter(stream)
    return io.TextIOWrapper(buffered, encoding=encoding, errors=errors, line_buffering=True)


def _occupy() -> None:
    """Opens what was closed when the program started, lest a file that is opened later gets the number: a file that cannot be
    written in place of standard output, nothing in place of standard error.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_WRONLY if descriptor == 2 else os.O_RDONLY)


def _exact(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.lookup_error("backslashreplace")(error)

"""Programs that run with the grafted torch: killed with all their children when this script ends for whatever reason.

A program prints one JSON object on its last line of standard output. One that is talked to answers each line that it
is sent with one line, a JSON object.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from lmsbuild import command
from lmsbuild.errors import MissingProgram, ProgramFailed

PROGRAMS = Path(__file__).resolve().parent / "programs"
_TAIL = 12  # lines of a failed program's standard error that are shown


def run(words: Sequence[str | Path], environment: Mapping[str, str], timeout: float) -> dict[str, Any]:
    """Runs a program to its end and returns the object on its last line. `timeout` in seconds. Raises ProgramFailed."""
    with Conversation(words, environment) as program:
        return program.finish(timeout)


def output(words: Sequence[str | Path]) -> str:
    """What a program of the system prints; nothing where it is not installed."""
    try:
        return command.run(words).text.strip()
    except MissingProgram:
        return ""


class Conversation(AbstractContextManager["Conversation"]):
    """A program that is running. Leaving the `with` block kills it. Not thread-safe."""

    def __init__(self, words: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self._name = next(Path(str(word)).name for word in [*words[1:], words[0]] if not str(word).startswith("-"))
        self._pending = b""
        with ExitStack() as stack:
            self._errors = stack.enter_context(tempfile.TemporaryFile())
            started = command.started(
                words,
                environment=environment,
                dies_with_thread=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
            self._process = stack.enter_context(started)
            self._end = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        command.kill(self._process)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._end.close()

    def ask(self, request: str, timeout: float) -> dict[str, Any]:
        """Sends a line and returns the answer. `timeout` in seconds. Raises ProgramFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended unasked") from None
        return self._answer(timeout)

    def answer(self, timeout: float) -> dict[str, Any]:
        """The next line that the program says of its own accord."""
        return self._answer(timeout)

    def finish(self, timeout: float) -> dict[str, Any]:
        """Waits for the end and returns the object on the last line."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        deadline = time.monotonic() + timeout
        last = b""
        while (line := self._line(deadline)) is not None:
            last = line if line.strip() else last
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self._failure("does not end") from None
        if code:
            raise self._failure(f"ended with exit code {code}")
        return self._parse(last)

    def _answer(self, timeout: float) -> dict[str, Any]:
        line = self._line(time.monotonic() + timeout)
        if line is None:
            code = self._process.wait()
            raise self._failure(f"ended with exit code {code}")
        return self._parse(line)

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._failure(f"answered {line[:200]!r}, which is no JSON object")
        return value

    def _line(self, deadline: float) -> bytes | None:
        assert self._process.stdout is not None
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise self._failure("does not answer in time")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                rest, self._pending = self._pending, b""
                return rest or None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _failure(self, what: str) -> ProgramFailed:
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()[-_TAIL:]
        return ProgramFailed("\n    ".join([f"{self._name} {what}", *said]))


def say(text: str) -> None:
    """Tells the reader how far things are, on standard error."""
    print(text, file=sys.stderr, flush=True)

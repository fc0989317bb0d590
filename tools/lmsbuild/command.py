"""The one door to other programs.

Arguments are lists, never shell strings. Every program runs in a process group of its own, and the whole group is
killed when the tool is interrupted: no compiler outlives a Ctrl-C.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from lmsbuild import report
from lmsbuild.ending import signals
from lmsbuild.errors import MissingProgram

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_T = TypeVar("_T")
_running: set[subprocess.Popen[bytes]] = set()
_running_lock = threading.Lock()  # also held while a program is started, so that none is started unseen
_is_ending = False


@dataclass(frozen=True)
class Finished:
    """A program that ran to its end."""

    arguments: tuple[str, ...]
    code: int
    output: bytes
    errors: bytes

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace")

    @property
    def error_text(self) -> str:
        return self.errors.decode(errors="replace")

    @property
    def found_no_space(self) -> bool:
        """Whether it failed because the disk is full."""
        return self.code != 0 and os.strerror(errno.ENOSPC) in self.error_text


def run(
    arguments: Sequence[str | Path],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    on_line: Callable[[str], None] | None = None,
) -> Finished:
    """Runs a program and returns what it printed, whatever its exit code. Thread-safe.

    `environment` replaces the tool's own. `on_line` is called with each line of standard output as it comes.
    Raises MissingProgram when there is no such program.
    """
    words = tuple(str(word) for word in arguments)
    output = errors = b""
    pipe = subprocess.PIPE
    with started(words, folder=folder, environment=environment, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        output, errors = _communicate(process, stdin, on_line)
    finished = Finished(words, process.returncode, output, errors)
    report.output(finished.error_text)
    return finished


def run_all(
    commands: Sequence[Sequence[str | Path]],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    on_finish: Callable[[int], None],
) -> list[Finished]:
    """Runs programs side by side, as many at a time as there are processors; `on_finish` gets how many are done."""
    calls = [partial(run, arguments, folder=folder, environment=environment) for arguments in commands]
    return call_all(calls, os.cpu_count() or 1, on_finish)


def call_all(calls: Sequence[Callable[[], _T]], most: int, on_finish: Callable[[int], None]) -> list[_T]:
    """Calls functions that run programs side by side, `most` at a time; `on_finish` gets how many are done.

    When one fails the programs are killed, and what it raised is raised.
    """
    with ThreadPoolExecutor(max_workers=most) as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            for done, future in enumerate(signals.completed(futures), start=1):
                future.result()
                on_finish(done)
        except BaseException:
            for future in futures:
                future.cancel()
            while wait(futures, 0.1).not_done:  # a function may run another program after the one that was killed
                kill_all()
            raise
    return [future.result() for future in futures]


def run_logged(arguments: Sequence[str | Path], *, folder: Path, environment: Mapping[str, str], log: BinaryIO) -> int:
    """Runs a program for hours: what it prints goes to the end of `log` as it comes. Returns its exit code."""
    with started(
        arguments,
        folder=folder,
        environment=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    ) as process:
        return process.wait()


def kill_all(for_good: bool = False) -> None:
    """Kills every program that is running, with its children; `for_good`: and none is started any more."""
    for process in _all_running(for_good):
        kill(process)


def end_all(for_good: bool = False, seconds: float = 10) -> None:
    """Asks every program that is running to end, and kills those that have not after that time; otherwise as `kill_all`."""
    processes = _all_running(for_good)
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
    end = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
    kill_all()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a program that was started here, with its children, unless it has ended."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@contextmanager
def started(
    arguments: Sequence[str | Path],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    dies_with_thread: bool = False,
    **streams: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own, which does not outlive the block: it is waited for, or killed on an error.

    `dies_with_thread`: the kernel asks it to end when the thread that started it ends, even if this process is killed. For
    programs that end what they have started. `streams` are Popen's. Raises MissingProgram.
    """
    words = tuple(str(word) for word in arguments)
    report.command(words)
    try:
        with signals.postponed(), _running_lock:
            if _is_ending:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=None if environment is None else dict(environment),
                start_new_session=True,
                preexec_fn=_die_with_thread if dies_with_thread else None,  # noqa: PLW1509  (see above)
                **streams,
            )
            _running.add(process)
    except (FileNotFoundError, PermissionError) as error:
        raise MissingProgram(f"cannot run {words[0]}: {error.strerror}; run `lmsbuild doctor`") from error
    except KeyboardInterrupt:
        kill_all()
        raise
    with process:
        try:
            yield process
        except BaseException:
            kill(process)
            raise
        finally:
            with _running_lock:
                _running.discard(process)


def _all_running(for_good: bool) -> list[subprocess.Popen[bytes]]:
    global _is_ending
    with _running_lock:
        _is_ending = _is_ending or for_good
        return list(_running)


def _communicate(
    process: subprocess.Popen[bytes], stdin: bytes, on_line: Callable[[str], None] | None
) -> tuple[bytes, bytes]:
    if on_line is None:
        return process.communicate(stdin)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.close()
    errors: list[bytes] = []
    drain = threading.Thread(target=lambda stream: errors.append(stream.read()), args=(process.stderr,), daemon=True)
    drain.start()
    lines: list[bytes] = []
    for line in process.stdout:
        lines.append(line)
        on_line(line.decode(errors="replace"))
    process.wait()
    drain.join()
    return b"".join(lines), b"".join(errors)


def _die_with_thread() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

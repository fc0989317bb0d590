"""Runs the command line on one input, in a child of this process, and says what is wrong with how that ended."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

from lmsbuild import cli, errors, paths
from lmsbuild.fetch import http_requests, patience

SECONDS = 60  # of one run, after which it hangs
_MEMORY = 6 << 30  # bytes
_FILE = 1 << 30  # bytes
_MOMENT = 2.0  # seconds that what a command has started has to end after it
_MOST_SAID = 100_000  # bytes that are kept of what is printed
_SET_CHILD_SUBREAPER = 36  # of prctl, <linux/prctl.h>
_TEMPORARY, _CACHE = "temporary", "cache"  # folders of each case, as TMPDIR and LMSBUILD_CACHE
# What no command leaves: all that it writes aside, but for the lock of a folder that is published; and temporary files.
_LEFT = re.compile(rf"(?:^|/)\.lmsbuild-(?!lock$)|\.part$|\.download-|^{_TEMPORARY}/")


def _classes(kind: type[errors.Failure]) -> dict[int, str]:
    return {each.exit_code: each.__name__ for each in kind.__subclasses__()} | {
        code: name for each in kind.__subclasses__() for code, name in _classes(each).items()
    }


CODES = {0: "success", 2: "wrong usage", **_classes(errors.Failure)}


@dataclass(frozen=True)
class Case:
    """One input, in a folder of its own."""

    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)  # beside this process's; "" takes a variable away
    patches: Path | None = None  # instead of the tool's
    fresh: bool = (
        False  # by an interpreter of its own, which reads the environment as it starts; with the tool's patches
    )
    served: Path | None = None  # a folder that a web server shows where pip looks
    accept: Callable[[], None] | None = None  # a second reader of what was made, when all commands succeed; raises
    forbidden: Path | None = None  # a file that only the input's own code would make


@dataclass(frozen=True)
class Verdict:
    outcome: str  # the name of the exit code, of the first command that failed
    wrong: str = ""  # what breaks the promise; empty: nothing


def judge(case: Case, folder: Path, before: frozenset[str]) -> Verdict:
    """Runs a case in its folder, of which `before` are the names that were there."""
    outcome = "success"
    (folder / _TEMPORARY).mkdir()
    own = {"TMPDIR": str(folder / _TEMPORARY), "LMSBUILD_CACHE": str(folder / _CACHE), **case.environment}
    for words in case.commands:
        ended = forked(lambda words=words: _command(case, words), folder, own)  # type: ignore[misc]
        outcome = CODES.get(ended.code, str(ended.code)) if outcome == "success" else outcome  # type: ignore[arg-type]
        wrong = _wrong(ended)
        if wrong:
            return Verdict(outcome, f"{' '.join(words)[:200]!r}: {wrong}\n{ended.said}")
    left = sorted(name for name in names(folder) - before if _LEFT.search(name))
    if left:
        return Verdict(outcome, f"left behind: {left}")
    if case.forbidden and case.forbidden.exists():
        return Verdict(outcome, "code of the input ran")
    if outcome == "success" and case.accept:
        ended = forked(case.accept, folder, own)
        if ended.code != 0:
            return Verdict(outcome, f"a second reader refuses what was made: {ended.said}")
    return Verdict(outcome)


def names(folder: Path) -> frozenset[str]:
    """The paths of what is in a folder, relative to it."""
    walked = ((Path(root).relative_to(folder), (*folders, *files)) for root, folders, files in os.walk(folder))
    return frozenset(str(root / name) for root, found in walked for name in found)


def _wrong(ended: Ended) -> str:
    if ended.code is None:
        return f"no end after {SECONDS} seconds"
    if ended.running:
        return f"left running: {', '.join(ended.running)}"
    if ended.code not in CODES:
        return f"exit code {ended.code} is in no catalogue"
    if "Traceback (most recent call last)" in ended.said:
        return "a traceback"
    if ended.code and not re.search(r"^(?:error: \S|Error: \S|Usage: )", ended.said, re.MULTILINE):
        return f"exit code {ended.code} without a sentence"
    return ""


def _command(case: Case, words: Sequence[str]) -> None:
    if case.fresh:
        os.execv(sys.executable, [sys.executable, "-m", "lmsbuild", *words])
    if case.patches:
        paths.patches_folder = lambda: case.patches  # type: ignore[assignment,return-value]
    if case.served:
        # A server that answers nothing is given up after a minute and a half: here sooner.
        patience.pause, http_requests._TIMEOUTS = lambda seconds: None, (1.0, 1.0)
        address = f"http://127.0.0.1:{_serve(case.served).server_port}"
        os.environ |= {"PIP_INDEX_URL": address, "PIP_RETRIES": "0", "PIP_DEFAULT_TIMEOUT": "1"}
        for name in ("PIP_NO_INDEX", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            os.environ.pop(name, None)
    sys.argv = ["lmsbuild", *words]
    cli.main()


class _Handler(SimpleHTTPRequestHandler):
    """Says of each file that it is what its name says, of a folder's pages first the one in JSON."""

    def do_GET(self) -> None:
        if self.path.endswith("/"):
            as_json = Path(self.translate_path(f"{self.path}index.json"))
            self.path += "index.json" if as_json.exists() else "index.html"
        super().do_GET()

    def guess_type(self, path: object) -> str:
        return (
            "application/vnd.pypi.simple.v1+json"
            if str(path).endswith("/index.json")
            else super().guess_type(str(path))
        )

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def _serve(folder: Path) -> ThreadingHTTPServer:
    """A web server that ends with the process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@dataclass(frozen=True)
class Ended:
    """How a child process ended."""

    code: int | None  # None: it was killed at the end of its time
    said: str
    running: tuple[str, ...] = ()  # the programs that it left running, which are killed


def forked(work: Callable[[], None], folder: Path, environment: Mapping[str, str]) -> Ended:
    """Calls a function in a child process, in `folder`."""
    _adopt()
    others = _children()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _become(work, folder, environment, writing)
    os.close(writing)
    said, code = bytearray(), None
    end, status = time.monotonic() + SECONDS, os.pidfd_open(child)
    watched = [reading, status]
    while code is None and (left := end - time.monotonic()) > 0:
        ready = select.select(watched, [], [], left)[0]
        if reading in ready:
            chunk = os.read(reading, 1 << 16)
            said += chunk[: max(0, _MOST_SAID - len(said))]
            if not chunk:
                watched.remove(reading)
        elif status in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    running = _killed(others, 0 if code is None else _MOMENT)
    os.close(reading)
    os.close(status)
    return Ended(code, said.decode(errors="replace"), () if code is None else running)


def _adopt() -> None:
    """From now on a process whose parent ends becomes a child of this one, also one with a session of its own."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _children() -> dict[int, str]:
    """The programs of this process's children, by their numbers; those that have ended, too."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            program, _, rest = path.read_text().partition("(")[2].rpartition(")")
            if int(rest.split()[1]) == os.getpid():
                found[int(path.parent.name)] = program
    return found


def _killed(others: Container[int], moment: float) -> tuple[str, ...]:
    """Kills all children but `others` that still run after a moment, with what they leave in turn; returns their programs."""
    end, killed = time.monotonic() + moment, dict[int, str]()
    while True:
        left = {number: program for number, program in _children().items() if number not in others}
        ended = [number for number in left if os.waitpid(number, os.WNOHANG)[0]]
        if not left:
            return tuple(killed.values())
        if ended:  # and what these have left may not have been seen yet
            continue
        if time.monotonic() >= end:
            killed |= left
            for number in left:
                os.kill(number, signal.SIGKILL)
        time.sleep(0.01)


def _become(work: Callable[[], None], folder: Path, environment: Mapping[str, str], output: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGQUIT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for name, value in environment.items():
            if value:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
        tempfile.tempdir = None  # what TMPDIR was when this process began
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        for kind, most in (
            (resource.RLIMIT_AS, _MEMORY),
            (resource.RLIMIT_FSIZE, _FILE),
            (resource.RLIMIT_CPU, SECONDS),
        ):
            resource.setrlimit(kind, (most, most))
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  (that is what is looked for)
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 75
    os._exit(code)

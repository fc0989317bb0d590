"""Runs the command line on one input, in a child of this process, and says what is wrong with how that ended."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from lmsbuild import cli, errors, paths

SECONDS = 60  # of one run, after which it hangs
_MEMORY = 6 << 30  # bytes
_FILE = 1 << 30  # bytes
_LEFT = re.compile(r"\.lmsbuild-\w{8}$|\.part$|\.download-")


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
    accept: Callable[[], None] | None = None  # a second reader of what was made, when all commands succeed; raises
    forbidden: Path | None = None  # a file that only the input's own code would make


@dataclass(frozen=True)
class Verdict:
    outcome: str  # the name of the exit code, of the first command that failed
    wrong: str = ""  # what breaks the promise; empty: nothing


def judge(case: Case, folder: Path, before: frozenset[str]) -> Verdict:
    """Runs a case in its folder, of which `before` are the names that were there."""
    outcome = "success"
    for words in case.commands:
        code, said = forked(lambda words=words: _command(case, words), folder, case.environment)  # type: ignore[misc]
        outcome = CODES.get(code, str(code)) if outcome == "success" else outcome
        wrong = _wrong(code, said)
        if wrong:
            return Verdict(outcome, f"{' '.join(words)[:200]!r}: {wrong}\n{said}")
    left = sorted(name for name in names(folder) - before if _LEFT.search(name))
    if left:
        return Verdict(outcome, f"left behind: {left}")
    if case.forbidden and case.forbidden.exists():
        return Verdict(outcome, "code of the input ran")
    if outcome == "success" and case.accept:
        code, said = forked(case.accept, folder, case.environment)
        if code:
            return Verdict(outcome, f"a second reader refuses what was made: {said}")
    return Verdict(outcome)


def names(folder: Path) -> frozenset[str]:
    return frozenset(str(Path(root, name)) for root, folders, files in os.walk(folder) for name in (*folders, *files))


def _wrong(code: int | None, said: str) -> str:
    if code is None:
        return f"no end after {SECONDS} seconds"
    if code not in CODES:
        return f"exit code {code} is in no catalogue"
    if "Traceback (most recent call last)" in said:
        return "a traceback"
    if code and not re.search(r"^(?:error: \S|Error: \S|Usage: )", said, re.MULTILINE):
        return f"exit code {code} without a sentence"
    return ""


def _command(case: Case, words: Sequence[str]) -> None:
    if case.patches:
        paths.patches_folder = lambda: case.patches  # type: ignore[assignment,return-value]
    sys.argv = ["lmsbuild", *words]
    cli.main()


def forked(work: Callable[[], None], folder: Path, environment: Mapping[str, str]) -> tuple[int | None, str]:
    """Calls a function in a child process, in `folder`; returns its exit code, None for one that was killed at the end of its time,
    and what it said.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _become(work, folder, environment, writing)
    os.close(writing)
    said, ended = bytearray(), False
    with os.fdopen(reading, "rb", buffering=0) as stream:
        while not ended and select.select([stream], [], [], SECONDS)[0]:
            chunk = stream.read(1 << 16)
            said += (chunk or b"")[: max(0, 100_000 - len(said))]
            ended = not chunk
    alive = not ended and os.waitpid(child, os.WNOHANG)[0] == 0
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # and what it may have started
    if alive:
        os.waitpid(child, 0)
        return None, said.decode(errors="replace")
    status = os.waitpid(child, 0)[1] if ended else 0
    return os.waitstatus_to_exitcode(status), said.decode(errors="replace")


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

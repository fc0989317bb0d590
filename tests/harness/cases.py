"""C++ test programs of cases (tests/pager/check.h), of which each runs in a process of its own: `program NAME`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

# Which is why CASE starts a line in the sources.
_CASE = re.compile(r"^CASE(_WITHOUT_SANITIZER)?\((\w+)\) \{", re.MULTILINE)
_SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # The fault handler allocates memory. It may: it runs on the program's own access to a block, never inside malloc or
    # at an arbitrary moment, which is what the report is about.
    # The pager's worker may start in a forked child; its parent's threads hold nothing there.
    "TSAN_OPTIONS": "report_signal_unsafe=0:die_after_fork=0:halt_on_error=1:second_deadlock_stack=1",
}
_MOST = 10_000  # characters of what a program prints that a report quotes


def names(source: Path, flavour: str = "plain") -> list[str]:
    """The cases of a program that run in the flavour."""
    found = _CASE.findall(source.read_text())
    return [name for without_sanitizer, name in found if flavour == "plain" or not without_sanitizer]


def run(
    words: Sequence[str | Path], folder: Path, variables: Mapping[str, str] | None = None, timeout_s: float = 120
) -> str:
    """What a program prints that ends well; the test fails if it does not. `folder` is the program's alone."""
    done = attempt(words, folder, variables, timeout_s)
    if done.returncode:
        pytest.fail(_report(f"exit code {done.returncode}", words, variables, done.stdout), pytrace=False)
    print(done.stdout)
    return done.stdout


def attempt(
    words: Sequence[str | Path], folder: Path, variables: Mapping[str, str] | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """The same for a program that may end otherwise; the test fails if it does not end in time.

    Of the variables for the pager and the simulated CUDA it has those alone, and what is set for tests.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SIM_", "LMS_"))}
    kept |= {name: value for name, value in os.environ.items() if name.startswith("LMS_TEST_")}
    try:
        return subprocess.run(
            words,
            env={**kept, **_SANITIZERS, "LMS_TEST_DIRECTORY": str(folder), **(variables or {})},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout.decode(errors="replace") if expired.stdout else ""
        pytest.fail(_report(f"still running after {timeout_s} s", words, variables, printed), pytrace=False)


def _report(what: str, words: Sequence[str | Path], variables: Mapping[str, str] | None, printed: str) -> str:
    """With the command that repeats it."""
    settings = [f"{name}={value}" for name, value in (variables or {}).items()]
    return f"{what}: {shlex.join([*settings, *map(str, words)])}\n{printed[-_MOST:]}"

"""Runs every case of the pager's test programs, plain and under the sanitizers.

LMS_TEST_SEED repeats a run, LMS_TEST_STEPS sets the length of the random ones. LMS_TEST_FULL=1 runs all programs under
ThreadSanitizer.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from presets import FLAVOURS
from samples import FULL

HERE = Path(__file__).parent
CASE = re.compile(r"^CASE(_WITHOUT_SANITIZER)?\((\w+)\) \{", re.MULTILINE)
TIMEOUT_S = 120
# What has threads of its own, above all.
THREADED = ("disk", "faults", "forks", "sharers", "sharing", "stress", "units")

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # The fault handler allocates memory. It may: it runs on the program's own access to a block, never inside malloc or
    # at an arbitrary moment, which is what the report is about.
    # The pager's worker may start in a forked child; its parent's threads hold nothing there.
    "TSAN_OPTIONS": "report_signal_unsafe=0:die_after_fork=0:halt_on_error=1:second_deadlock_stack=1",
}


def cases() -> list[tuple[str, str, str]]:
    """(flavour, program, case), flavour by flavour within a program so that one builds while another runs."""
    found = []
    for source in sorted(HERE.glob("*.cc")):
        for flavour in FLAVOURS:
            for without_sanitizer, name in CASE.findall(source.read_text()):
                left_out = flavour == "thread" and not FULL and source.stem not in THREADED
                if (flavour == "plain" or not without_sanitizer) and not left_out:
                    found.append((flavour, source.stem, name))
    return found


@pytest.mark.parametrize(("flavour", "program", "case"), cases())
def test_case(flavour: str, program: str, case: str, build: Callable[[str, str], Path], tmp_path: Path) -> None:
    environment = {**os.environ, **SANITIZER_OPTIONS, "LMS_TEST_DIRECTORY": str(tmp_path)}
    command = [str(build(flavour, program)), case]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode(errors="replace") if expired.stdout else ""
        pytest.fail(f"still running after {TIMEOUT_S} s: {' '.join(command)}\n{output}", pytrace=False)
    print(done.stdout)
    if done.returncode != 0:
        pytest.fail(f"exit code {done.returncode}: {' '.join(command)}\n{done.stdout}", pytrace=False)

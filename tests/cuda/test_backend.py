"""Runs every case of the test programs of the CUDA backend, and of the pager on it, under the sanitizers.

LMS_TEST_SEED repeats a run, LMS_TEST_STEPS sets the length of the random ones. LMS_TEST_FULL=1 runs them plain, and
those of one thread under ThreadSanitizer.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from presets import FLAVOURS, Builds
from samples import FULL

HERE = Path(__file__).parent
PROGRAMS = ("backend_units", "backend_model", "pager_units", "sharing_units")
CASE = re.compile(r"^CASE\((\w+)\) \{", re.MULTILINE)
WITHOUT_THREAD_SANITIZER = {
    "less_address_space",  # ThreadSanitizer itself takes most of it
    "every_call_fails_once",  # these two have one thread, and would take minutes
    "random_sizes_need_few_mappings",
}
# By flavour; every program under the others.
PROGRAMS_UNDER = {} if FULL else {"plain": (), "thread": ("backend_model", "pager_units", "sharing_units")}
SANITIZER_OPTIONS = {"TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
TIMEOUT_S = 300


def cases() -> list[tuple[str, str, str]]:
    """(flavour, program, case)"""
    return [
        (flavour, program, case)
        for flavour in FLAVOURS
        for program in PROGRAMS_UNDER.get(flavour, PROGRAMS)
        for case in CASE.findall((HERE / f"{program}.cc").read_text())
        if flavour != "thread" or case not in WITHOUT_THREAD_SANITIZER
    ]


@pytest.mark.parametrize(("flavour", "name", "case"), cases())
def test_case(flavour: str, name: str, case: str, builds: Builds, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(builds.get(flavour, name)), case],
        env={**os.environ, **SANITIZER_OPTIONS, "LMS_TEST_DIRECTORY": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:]

"""Runs every case of the pager's test programs: under AddressSanitizer, and where that sees less, plain or under ThreadSanitizer.

LMS_TEST_SEED repeats a run, LMS_TEST_STEPS sets the length of the random ones. `-m ""` runs all programs in every flavour.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cases
from presets import Builds

HERE = Path(__file__).parent
# The programs that `build` runs in a flavour. The rest runs before a release.
BUILT = {
    # A sanitizer stands before the system calls and in the signal handlers, and the pager ships with -O2.
    "plain": ("faults", "stress", "system_calls"),
    # What has threads of its own, above all.
    "thread": ("disk", "faults", "forks", "sharers", "sharing", "stress", "units"),
}


def parameters() -> list[Any]:
    """(flavour, program, case), program by program."""
    found = []
    for source in sorted(HERE.glob("*.cc")):
        sanitized = cases.names(source, "address")
        for case in sanitized:
            found.append(pytest.param("address", source.stem, case))
        for flavour, programs in BUILT.items():
            for case in cases.names(source, flavour):
                is_built = source.stem in programs or case not in sanitized  # which no sanitizer lets run
                mark = pytest.mark.build if is_built else pytest.mark.release
                found.append(pytest.param(flavour, source.stem, case, marks=mark))
    return found


@pytest.fixture(scope="module")
def build(builds: Builds, request: pytest.FixtureRequest) -> Callable[[str, str], Path]:
    """build(flavour, program): its path."""
    builds.start_all(request.session.items, test_case)
    return builds.get


@pytest.mark.parametrize(("flavour", "program", "case"), parameters())
def test_case(flavour: str, program: str, case: str, build: Callable[[str, str], Path], tmp_path: Path) -> None:
    cases.run([build(flavour, program), case], tmp_path)

"""Runs every case of the pager's test programs: under AddressSanitizer, and where that sees less, plain or under ThreadSanitizer.

LMS_TEST_SEED repeats a run, LMS_TEST_STEPS sets the length of the random ones. `-m ""` runs all programs in every flavour.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cases

HERE = Path(__file__).parent
# The programs that `build` runs in a flavour. The rest runs before a release.
BUILT = {
    # A sanitizer stands before the system calls and in the signal handlers, and the pager ships with -O2.
    "plain": ("faults", "stress", "system_calls"),
    # What has threads of its own, above all.
    "thread": ("disk", "faults", "forks", "sharers", "sharing", "stress", "units"),
}
# Of those, what takes longest and is tried in another flavour, or by other cases of its program, too.
LONG = {
    ("plain", "failures", "more_blocks_than_mappings"),  # the kernel lists 60,000 mappings again and again
    ("plain", "stress", "iteration_file"),
    ("plain", "stress", "strict_memory"),
    ("thread", "disk", "a_directory_whose_disk_fails_is_left_out"),
    ("thread", "disk", "the_program_closes_all_descriptors"),
    ("thread", "sharing", "alone_it_has_the_whole_budget"),
    ("thread", "sharing", "garbage_in_the_ledger_harms_nobody"),
    ("thread", "sharing", "a_header_that_lies_changes_nothing"),
    ("thread", "sharing", "files_that_are_moved_or_removed_are_made_again"),
    ("thread", "sharing", "what_one_does_not_use_another_has"),
    ("thread", "sharing", "who_does_not_answer_is_not_waited_for"),
    ("thread", "sharing", "who_is_stopped_with_the_ledger_locked_holds_up_nobody"),
    ("thread", "sharing", "who_works_gets_a_share_by_weight"),
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
                is_built = is_built and (flavour, source.stem, case) not in LONG
                mark = pytest.mark.build if is_built else pytest.mark.release
                found.append(pytest.param(flavour, source.stem, case, marks=mark))
    return found


def test_what_is_long_is_a_case() -> None:
    assert {each.values for each in parameters()} >= LONG


@pytest.mark.parametrize(("flavour", "program", "case"), parameters())
def test_case(flavour: str, program: str, case: str, built: Callable[[str, str], Path], tmp_path: Path) -> None:
    cases.run([built(flavour, program), case], tmp_path)

"""Runs every case of the test programs of the CUDA backend, and of the pager on it, under AddressSanitizer, and of those with
threads some under ThreadSanitizer.

LMS_TEST_SEED repeats a run, LMS_TEST_STEPS sets the length of the random ones. `-m ""` runs all in every flavour.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cases

HERE = Path(__file__).parent
PROGRAMS = ("backend_units", "backend_model", "pager_units", "sharing_units")
LONG = {
    "every_call_fails_once",
    "random_sizes_need_few_mappings",
    "a_stream_that_is_destroyed_after_its_operations",
}
# What `build` runs under ThreadSanitizer: several threads or processes, each in a way of its own.
THREADED = {
    "backend_model": cases.names(HERE / "backend_model.cc"),
    "pager_units": ("others_go_on_while_the_host_waits_for_a_copy", "others_go_on_while_the_store_grows")
    + ("blocks_come_and_go",),
    "sharing_units": ("a_program_without_lms_takes_some_and_gives_it_back",),
}
WITHOUT_THREAD_SANITIZER = {
    "less_address_space",  # ThreadSanitizer itself takes most of it
    "every_call_fails_once",  # these two have one thread, and would take minutes
    "random_sizes_need_few_mappings",
}
TIMEOUT_S = 300


def parameters() -> list[Any]:
    """(flavour, program, case), program by program."""
    found = []
    for program in PROGRAMS:
        for case in cases.names(HERE / f"{program}.cc"):
            is_long = program == "sharing_units" or case in LONG
            found.append(pytest.param("address", program, case, marks=[pytest.mark.build] if is_long else []))
            found.append(pytest.param("plain", program, case, marks=pytest.mark.release))
            if case not in WITHOUT_THREAD_SANITIZER:
                mark = pytest.mark.build if case in THREADED.get(program, ()) else pytest.mark.release
                found.append(pytest.param("thread", program, case, marks=mark))
    return found


@pytest.mark.parametrize(("flavour", "program", "case"), parameters())
def test_case(flavour: str, program: str, case: str, built: Callable[[str, str], Path], tmp_path: Path) -> None:
    cases.run([built(flavour, program), case], tmp_path, timeout_s=TIMEOUT_S)
